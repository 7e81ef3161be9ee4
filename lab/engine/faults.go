package engine

import (
	"sort"
)

// Names of the faults of an engine. Restarting it is an act, not a state: see
// Restart, Crash and PowerLoss.
const (
	FaultPullFail   = "pull-fail"   // a pull breaks midway, with the argument as message
	FaultCreateFail = "create-fail" // no container can be created
	FaultStartFail  = "start-fail"  // no container can be started; argument: only this name
	FaultDiskFull   = "disk-full"   // pulls and creates find no space
	FaultEngineDown = "engine-down" // no daemon: connections are refused, containers run on, nothing is restarted
)

// Faults lists the names Inject knows.
func Faults() []string {
	return []string{FaultPullFail, FaultCreateFail, FaultStartFail, FaultDiskFull, FaultEngineDown}
}

// Inject switches a fault on. It reports whether the name is known.
func (e *Engine) Inject(name, arg string) bool {
	all := Faults()
	sort.Strings(all)
	if i := sort.SearchStrings(all, name); i == len(all) || all[i] != name {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults[name] = arg
	if name == FaultEngineDown {
		e.disappearLocked()
	}
	return true
}

// Clear switches one fault off, or all of them for an empty name.
func (e *Engine) Clear(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for f := range e.faults {
		if name == "" || name == f {
			delete(e.faults, f)
			if f == FaultEngineDown && !e.closed {
				e.appearLocked()
			}
		}
	}
}

// Fault reports whether a fault is on, and its argument.
func (e *Engine) Fault(name string) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	arg, on := e.faults[name]
	return arg, on
}

// faultFor is a fault whose argument may limit it to one container.
func (e *Engine) faultFor(name, container string) (string, bool) {
	arg, on := e.faults[name]
	if !on || arg != "" && arg != container {
		return "", false
	}
	return "", true
}

// createFault refuses a create under a fault.
func (e *Engine) createFault(name string) error {
	if _, full := e.faults[FaultDiskFull]; full {
		return refused(500, "mkdir /var/lib/docker/overlay2/%s-init: no space left on device", e.newID()[:32])
	}
	if _, on := e.faultFor(FaultCreateFail, name); on {
		return refused(500, "lab fault create-fail: the container cannot be created")
	}
	return nil
}

// AppendLog writes to a container's log as its process does to its output: whole lines.
func (e *Engine) AppendLog(ref, text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.find(ref)
	if c == nil {
		return refused(404, "No such container: %s", ref)
	}
	_, err := c.logs.writer("stdout").Write([]byte(text))
	return err
}

// RotateLogs drops all but the newest n lines of every container's log.
func (e *Engine) RotateLogs(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		c.logs.rotate(n)
	}
}
