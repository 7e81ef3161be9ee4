package engine

import (
	"strconv"
	"strings"
	"time"
)

const (
	// backoffStart, backoffMax and backoffReset are the restart delays of
	// Docker: doubling from 100 ms to a minute, forgotten after 10 s of running.
	backoffStart = 100 * time.Millisecond
	backoffMax   = time.Minute
	backoffReset = 10 * time.Second
	// defaultStopTimeout is used where neither caller nor container says one.
	defaultStopTimeout = 10 * time.Second
)

// container is one container. All fields are guarded by the engine's lock.
type container struct {
	engine     *Engine
	id, name   string
	seq        int
	created    time.Time
	image      *localImage
	config     object
	hostConfig object
	path       string
	args       []string
	mounts     []mount
	endpoints  map[string]*endpoint
	order      []string // of the endpoints
	ports      []Port   // published now
	sandbox    string
	logs       *logBuffer

	status        string // created, running, restarting, exited
	pid, exitCode int
	errText       string
	oomKilled     bool
	started       time.Time
	finished      time.Time
	restartCount  int
	exits         int  // ends of the process so far
	manualStop    bool // stopped by a person; unless-stopped remembers it
	startedBefore bool
	exitOnNext    bool // the next exit is not followed by a restart
	backoff       time.Duration
	restartTimer  *time.Timer
	run           *run
	removed       chan struct{}   // closed when the container is gone
	changed       []chan struct{} // closed at the next start or exit
}

// run is one life of a container's process.
type run struct {
	proc      Running
	exited    chan struct{} // closed after the exit has been recorded
	code      int
	powerLost bool
}

func (c *container) restarting() bool { return c.status == "restarting" }

// running is what State.Running says: true while waiting for a restart too.
func (c *container) running() bool { return c.run != nil || c.restarting() }

func (c *container) env() []string { return list(c.config, "Env") }

func (c *container) stopSignal() string {
	s := strings.ToUpper(str(c.config, "StopSignal"))
	if s == "" {
		return "SIGTERM"
	}
	if !strings.HasPrefix(s, "SIG") && !isDigits(s) {
		s = "SIG" + s
	}
	return s
}

func isDigits(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

func (c *container) stopTimeout() time.Duration {
	if v, ok := c.config["StopTimeout"]; ok && v != nil {
		return time.Duration(number(v)) * time.Second
	}
	return defaultStopTimeout
}

func policyName(hc object) string {
	if n := str(sub(hc, "RestartPolicy"), "Name"); n != "" {
		return n
	}
	return "no"
}

// wantsRestart is the policy's word on a container that has ended.
func (c *container) wantsRestart() bool {
	switch policyName(c.hostConfig) {
	case "always":
		return true
	case "unless-stopped":
		return !c.manualStop
	case "on-failure":
		limit := number(sub(c.hostConfig, "RestartPolicy")["MaximumRetryCount"])
		return c.exitCode != 0 && (limit == 0 || int64(c.restartCount) < limit)
	}
	return false
}

// start starts a container on behalf of a person.
func (e *Engine) start(c *container) error {
	if c.running() {
		return refused(304, "")
	}
	c.manualStop, c.exitOnNext = false, false
	c.restartCount, c.backoff = 0, 0
	return e.startLocked(c)
}

// startLocked starts the process; the caller holds the lock.
func (e *Engine) startLocked(c *container) error {
	err := e.tryStart(c)
	if err == nil {
		e.noteChange(c)
		return nil
	}
	e.releaseNetwork(c)
	code := 128
	if c.status != "created" {
		c.status = "exited"
	}
	c.exitCode, c.errText = code, err.Error()
	c.started = zeroIf(c.status == "created", c.started)
	return err
}

func zeroIf(zero bool, t time.Time) time.Time {
	if zero {
		return time.Time{}
	}
	return t
}

func (e *Engine) tryStart(c *container) error {
	if text, ok := e.faultFor(FaultStartFail, c.name); ok {
		return refused(500, "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: %s", orDefault(text, "lab fault start-fail"))
	}
	if err := e.attachNetwork(c); err != nil {
		return err
	}
	if err := e.publish(c); err != nil {
		return err
	}
	e.noteViolations(c)
	c.logs.open()
	proc, err := e.cfg.Runner.Start(e.ctx, e.process(c))
	if err != nil {
		return refused(500, "failed to create task for container: %v", err)
	}
	e.nextPID++
	c.run = &run{proc: proc, exited: make(chan struct{})}
	c.status, c.pid, c.exitCode, c.errText, c.oomKilled = "running", e.nextPID, 0, "", false
	c.started, c.startedBefore = time.Now().UTC(), true
	e.emitContainer(c, "start", nil)
	r := c.run
	e.wg.Go(func() { e.watch(c, r) })
	return nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// process describes a container to the runner.
func (e *Engine) process(c *container) Process {
	p := Process{ContainerID: c.id, Name: c.name, Image: str(c.config, "Image"), ImageID: c.image.id,
		Entrypoint: list(c.config, "Entrypoint"), Cmd: list(c.config, "Cmd"), Env: append([]string(nil), c.env()...),
		Hostname: str(c.config, "Hostname"), User: str(c.config, "User"),
		HostNetwork: str(c.hostConfig, "NetworkMode") == "host", Ports: append([]Port(nil), c.ports...),
		Stdout: c.logs.writer("stdout"), Stderr: c.logs.writer("stderr")}
	for _, m := range c.mounts {
		if m.kind != "tmpfs" {
			p.Mounts = append(p.Mounts, Mount{Destination: m.dest, HostPath: m.source, Dir: e.path(m.source), Volume: m.name, ReadOnly: !m.rw})
		}
	}
	return p
}

// watch waits for the end of a process and applies the restart policy.
func (e *Engine) watch(c *container, r *run) {
	code := r.proc.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	defer close(r.exited)
	r.code = code
	if r.powerLost {
		code = 255
	}
	if o, ok := r.proc.(interface{ OOMKilled() bool }); ok {
		c.oomKilled = o.OOMKilled()
	}
	ran := time.Since(c.started)
	c.run = nil
	c.exits++
	c.logs.closeWriters()
	e.releaseNetwork(c)
	c.setStopped(code)
	if !r.powerLost {
		e.emitContainer(c, "die", object{"exitCode": strconv.Itoa(code)})
	}
	e.afterExit(c, ran)
	e.noteChange(c)
}

// afterExit restarts by policy, or removes what asked to be removed.
func (e *Engine) afterExit(c *container, ran time.Duration) {
	switch {
	case e.stopping, e.closed:
	case !c.exitOnNext && c.wantsRestart():
		e.scheduleRestart(c, ran)
	case c.hostConfig["AutoRemove"] == true:
		e.drop(c, true)
	}
}

// scheduleRestart waits the back-off and starts the container again.
func (e *Engine) scheduleRestart(c *container, ran time.Duration) {
	if ran >= backoffReset {
		c.backoff = 0
	}
	c.backoff = min(max(backoffStart, 2*c.backoff), backoffMax)
	c.restartCount++
	c.status = "restarting"
	timer := new(*time.Timer)
	*timer = time.AfterFunc(c.backoff, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if c.restartTimer != *timer || e.stopping || e.closed {
			return
		}
		c.restartTimer = nil
		c.status = "exited"
		e.startLocked(c)
	})
	c.restartTimer = *timer
}

func (c *container) cancelRestart() {
	if c.restartTimer != nil {
		c.restartTimer.Stop()
		c.restartTimer = nil
	}
}

// setStopped records an end.
func (c *container) setStopped(code int) {
	c.status, c.pid, c.exitCode = "exited", 0, code
	c.finished = time.Now().UTC()
}

// noteChange wakes who waits for a state and tells the lab.
func (e *Engine) noteChange(c *container) {
	for _, ch := range c.changed {
		close(ch)
	}
	c.changed = nil
	if e.cfg.OnChange != nil {
		e.cfg.OnChange()
	}
}

// next returns a channel that closes at the container's next start or exit.
func (c *container) next() <-chan struct{} {
	ch := make(chan struct{})
	c.changed = append(c.changed, ch)
	return ch
}

// stop stops a container; t < 0 means the container's own timeout.
// The lock is not held.
func (e *Engine) stop(c *container, t time.Duration) error {
	e.mu.Lock()
	if !c.running() {
		e.mu.Unlock()
		return refused(304, "")
	}
	if t < 0 {
		t = c.stopTimeout()
	}
	sig := c.stopSignal()
	r := e.sendSignal(c, sig)
	e.mu.Unlock()
	if r != nil {
		r.proc.Signal(sig)
		if !waitExit(r, t) {
			e.mu.Lock()
			e.emitContainer(c, "kill", object{"signal": "9"})
			e.mu.Unlock()
			r.proc.Signal("SIGKILL")
			<-r.exited
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopping {
		e.emitContainer(c, "stop", nil)
	}
	return nil
}

// sendSignal notes that a person ended the container and returns the process
// that has to be signalled, if there is one. A container that waits for a
// restart just stays down.
func (e *Engine) sendSignal(c *container, sig string) *run {
	if !e.stopping {
		c.manualStop = true
	}
	if sig == "SIGKILL" || sig == "9" || sig == c.stopSignal() || str(c.config, "StopSignal") == "" {
		c.exitOnNext = true
	}
	if c.run == nil {
		c.cancelRestart()
		code := c.exitCode
		c.setStopped(code)
		e.noteChange(c)
		return nil
	}
	e.emitContainer(c, "kill", object{"signal": signalNumber(sig)})
	return c.run
}

func signalNumber(sig string) string {
	known := map[string]string{"SIGTERM": "15", "SIGKILL": "9", "SIGINT": "2", "SIGHUP": "1", "SIGQUIT": "3", "SIGUSR1": "10", "SIGUSR2": "12"}
	if n, ok := known[sig]; ok {
		return n
	}
	return sig
}

// waitExit waits for the end of a run for at most t.
func waitExit(r *run, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-r.exited:
		return true
	case <-timer.C:
		return false
	}
}

// endProcess signals, waits and kills.
func endProcess(r *run, sig string, t time.Duration) {
	r.proc.Signal(sig)
	if !waitExit(r, t) {
		r.proc.Signal("SIGKILL")
		<-r.exited
	}
}

// kill sends one signal; the lock is not held.
func (e *Engine) kill(c *container, sig string) error {
	if sig == "" {
		sig = "SIGKILL"
	}
	sig = strings.ToUpper(sig)
	if !strings.HasPrefix(sig, "SIG") && !isDigits(sig) {
		sig = "SIG" + sig
	}
	e.mu.Lock()
	if c.run == nil {
		e.mu.Unlock()
		return refused(409, "Cannot kill container: %s: Container %s is not running", c.name, c.id)
	}
	r := e.sendSignal(c, sig)
	e.mu.Unlock()
	if sig == "9" {
		sig = "SIGKILL"
	}
	r.proc.Signal(sig)
	if sig == "SIGKILL" {
		<-r.exited
	}
	return nil
}

// restart stops and starts.
func (e *Engine) restart(c *container, t time.Duration) error {
	e.mu.Lock()
	running := c.running()
	e.mu.Unlock()
	if running {
		if err := e.stop(c, t); err != nil && !isNotModified(err) {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.start(c); err != nil {
		return err
	}
	e.emitContainer(c, "restart", nil)
	return nil
}

func isNotModified(err error) bool {
	a, ok := err.(*apiError)
	return ok && a.status == 304
}

// rename gives a container another name.
func (e *Engine) rename(c *container, name string) error {
	name = strings.TrimPrefix(name, "/")
	switch {
	case name == "":
		return refused(400, "Neither old nor new names may be empty")
	case name == c.name:
		return refused(400, "Renaming a container with the same name as its current name")
	case !nameRule.MatchString(name):
		return refused(400, "Error when allocating new name: Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
	}
	if err := e.nameFree(name); err != nil {
		return refused(409, "Error when allocating new name: %s", err.Error())
	}
	old := c.name
	delete(e.names, old)
	c.name = name
	e.names[name] = c.id
	e.emitContainer(c, "rename", object{"oldName": "/" + old})
	return nil
}

// updatable are the settings /update can change besides the restart policy.
var updatable = []string{"BlkioWeight", "CpuShares", "CpuPeriod", "CpuQuota", "CpuRealtimePeriod", "CpuRealtimeRuntime",
	"CpusetCpus", "CpusetMems", "Memory", "MemoryReservation", "MemorySwap", "NanoCpus", "PidsLimit"}

// update changes the restart policy and resource limits.
func (e *Engine) update(c *container, body object) error {
	v, _ := lookupFold(body, "RestartPolicy")
	policy, _ := v.(object)
	if err := checkRestartPolicy(policy); err != nil {
		return err
	}
	if name := str(policy, "Name"); name != "" {
		if c.hostConfig["AutoRemove"] == true && name != "no" {
			return refused(409, "Restart policy cannot be updated because AutoRemove is enabled for the container")
		}
		c.hostConfig["RestartPolicy"] = object{"Name": name, "MaximumRetryCount": number(policy["MaximumRetryCount"])}
	}
	for _, k := range updatable {
		v, ok := lookupFold(body, k)
		if _, text := v.(string); ok && !isZero(v) && (text || number(v) != 0) {
			c.hostConfig[k] = v
		}
	}
	e.emitContainer(c, "update", nil)
	return nil
}

// remove removes a container; the lock is not held.
func (e *Engine) remove(c *container, force, volumes bool) error {
	e.mu.Lock()
	if c.running() && !force {
		defer e.mu.Unlock()
		if c.restarting() {
			return refused(409, "You cannot remove a restarting container %s. Stop the container before attempting removal or force remove", c.id)
		}
		return refused(409, "You cannot remove a running container %s. Stop the container before attempting removal or force remove", c.id)
	}
	var r *run
	if c.running() {
		r = e.sendSignal(c, "SIGKILL")
	}
	e.mu.Unlock()
	if r != nil {
		r.proc.Signal("SIGKILL")
		<-r.exited
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(c, volumes)
	return nil
}

// drop forgets a container and, if asked, its anonymous volumes.
func (e *Engine) drop(c *container, volumes bool) {
	if e.containers[c.id] == nil {
		return
	}
	delete(e.containers, c.id)
	delete(e.names, c.name)
	if volumes {
		for _, m := range c.mounts {
			if m.anonymous && len(e.volumeUsers(m.name)) == 0 {
				e.removeVolumeDir(m.name)
			}
		}
	}
	e.emitContainer(c, "destroy", nil)
	c.logs.finish()
	if c.removed != nil {
		close(c.removed)
	}
	e.noteChange(c)
}

// gone returns a channel that closes when the container is removed.
func (c *container) gone() <-chan struct{} {
	if c.removed == nil {
		c.removed = make(chan struct{})
	}
	return c.removed
}
