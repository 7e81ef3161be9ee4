package lab

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/lab/simnode"
)

// Faults of a host, next to those of its engine and its node.
const (
	FaultStop          = "stop"           // the node's container is stopped by hand
	FaultEngineRestart = "engine-restart" // once: the engine restarts and revives by policy
	FaultReboot        = "reboot"         // once: the host loses its power and boots
	FaultDropSSH       = "drop-ssh"       // once: connections break; =hold: and none is accepted until cleared
	FaultHostKey       = "host-key"       // the SSH server shows another key
	FaultSecondUpdater = "second-updater" // a Watchtower runs on the host
	FaultLogRotate     = "log-rotate"     // once: logs lose all but the newest LINES [0]
	FaultLogLevel      = "log-level"      // =LEVEL [2]: the node is recreated with QNET_LOG_LEVEL
	FaultImage         = "image"          // once: =TAG: the node is recreated from that image, as by hand, on the data it has
)

// fault is a fault of a host. Those without clear happen once.
type fault struct {
	inject func(h *Host, arg string) error
	clear  func(h *Host) error
}

func hostFaults() map[string]fault {
	engineFault := func(name string) fault {
		return fault{
			func(h *Host, arg string) error { h.engine.Inject(name, arg); return nil },
			func(h *Host) error { h.engine.Clear(name); return nil },
		}
	}
	faults := map[string]fault{
		FaultStop:          {stopNode, startNode},
		FaultEngineRestart: {restartEngine, nil},
		FaultReboot:        {func(h *Host, _ string) error { h.reboot(); return nil }, nil},
		FaultDropSSH:       {dropSSH, acceptSSH},
		FaultHostKey:       {changeKey, restoreKey},
		FaultSecondUpdater: {startUpdater, stopUpdater},
		FaultLogRotate:     {rotateLogs, nil},
		FaultLogLevel:      {setLogLevel, clearLogLevel},
		FaultImage:         {setImage, nil},
	}
	for _, name := range engine.Faults() {
		faults[name] = engineFault(name)
	}
	return faults
}

// Kinds lists the faults that Inject knows.
func Kinds() []string {
	kinds := slices.Collect(maps.Keys(hostFaults()))
	for _, k := range simnode.Kinds() {
		kinds = append(kinds, string(k))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds) // a host's fault goes before its node's of the same name
}

// Inject sets a fault on a host or its node. An unknown kind or host is an
// error that lists the known ones. A node of a ledger has the faults of
// ledger.Kinds instead of those of a simulated node.
func (l *Lab) Inject(id, kind, arg string) error {
	h, err := l.Host(id)
	if err != nil {
		return err
	}
	f, ofHost := hostFaults()[kind]
	switch {
	case ofHost:
		if err := f.inject(h, arg); err != nil {
			return fmt.Errorf("fault %s on host %s: %w", kind, id, err)
		}
		if f.clear == nil {
			return nil
		}
	case h.ledger != nil:
		if err := h.ledger.Set(ledger.Kind(kind), arg); err != nil {
			return fmt.Errorf("host %s: %w", id, err)
		}
	case slices.Contains(simnode.Kinds(), simnode.Kind(kind)):
		if err := h.faults.Set(simnode.Kind(kind), arg); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown fault %q: known are %s", kind, strings.Join(Kinds(), ", "))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults[id] == nil {
		l.faults[id] = map[string]string{}
	}
	l.faults[id][kind] = arg
	return nil
}

// Draw picks a fault from a seeded source: a host, a kind that can be cleared
// again and its default argument. Equal sources draw equal faults. It is for
// labs whose nodes are simulated; a ledger has a Draw of its own.
func (l *Lab) Draw(rng *rand.Rand) (id, kind string) {
	faults := hostFaults()
	kinds := slices.DeleteFunc(Kinds(), func(k string) bool { f, ofHost := faults[k]; return ofHost && f.clear == nil })
	return l.hosts[rng.IntN(len(l.hosts))].spec.ID, kinds[rng.IntN(len(kinds))]
}

// Clear takes faults back: of one host or of all ("" ), of one kind or of all.
// It goes on after an error and returns the first.
func (l *Lab) Clear(id, kind string) error {
	hosts := l.hosts
	if id != "" {
		h, err := l.Host(id)
		if err != nil {
			return err
		}
		hosts = []*Host{h}
	}
	if kind != "" && !slices.Contains(Kinds(), kind) && !slices.Contains(ledger.Kinds(), ledger.Kind(kind)) {
		return fmt.Errorf("unknown fault %q: known are %s", kind, strings.Join(Kinds(), ", "))
	}
	var first error
	for _, h := range hosts {
		for k := range l.Faults(h.spec.ID) {
			if kind != "" && kind != k {
				continue
			}
			if err := l.clearOne(h, k); err != nil && first == nil {
				first = fmt.Errorf("clearing fault %s on host %s: %w", k, h.spec.ID, err)
			}
		}
	}
	return first
}

func (l *Lab) clearOne(h *Host, kind string) error {
	l.mu.Lock()
	delete(l.faults[h.spec.ID], kind)
	l.mu.Unlock()
	if f, ok := hostFaults()[kind]; ok {
		return f.clear(h)
	}
	if h.ledger != nil {
		h.ledger.Clear(ledger.Kind(kind))
		return nil
	}
	h.faults.Clear(simnode.Kind(kind))
	return nil
}

// Faults returns the faults that are set on a host, with their arguments.
func (l *Lab) Faults(id string) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.faults[id])
}

// nodeContainer is the name of the container that is the node now: the one of
// the inventory's name.
func (h *Host) nodeContainer() string { return h.spec.Container }

func stopNode(h *Host, _ string) error { return h.engine.StopContainer(h.nodeContainer()) }
func startNode(h *Host) error          { return h.engine.StartContainer(h.nodeContainer()) }

func restartEngine(h *Host, _ string) error {
	h.engine.GoDown(engine.Orderly)
	h.lab.spawn(func() { h.engine.ComeBack(h.lab.ctx, engine.Orderly, 200*time.Millisecond) })
	return nil
}

func dropSSH(h *Host, arg string) error {
	if arg != "" && arg != "hold" {
		return fmt.Errorf("argument %q is not known: want hold, or no argument", arg)
	}
	h.sshd.Refuse(arg == "hold")
	h.sshd.DropAll()
	return nil
}

func acceptSSH(h *Host) error {
	h.sshd.Refuse(h.off())
	return nil
}

func changeKey(h *Host, _ string) error {
	key, err := ssh.NewSignerFromKey(edKey(h.lab.cfg.Seed, "another host "+h.spec.ID))
	if err != nil {
		return err
	}
	h.sshd.SwapHostKey(key)
	return nil
}

func restoreKey(h *Host) error {
	h.sshd.SwapHostKey(h.key)
	return nil
}

func startUpdater(h *Host, _ string) error {
	if err := h.engine.Load(updaterImage); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"Image": updaterImage, "Cmd": []string{"--interval", "300", h.nodeContainer()},
		"HostConfig": map[string]any{"Binds": []string{engineSocket + ":/var/run/docker.sock"}, "RestartPolicy": map[string]any{"Name": "always"}}})
	if err != nil {
		return err
	}
	if _, err := h.engine.CreateContainer("watchtower", body); err != nil {
		return err
	}
	return h.engine.StartContainer("watchtower")
}

func stopUpdater(h *Host) error { return h.engine.RemoveContainer("watchtower") }

func rotateLogs(h *Host, arg string) error {
	n := 0
	if arg != "" {
		var err error
		if n, err = strconv.Atoi(arg); err != nil || n < 0 {
			return fmt.Errorf("argument %q is not a number of lines", arg)
		}
	}
	h.engine.RotateLogs(n)
	return nil
}

func setLogLevel(h *Host, arg string) error {
	if arg == "" {
		arg = "2"
	}
	if n, err := strconv.Atoi(arg); err != nil || n < 0 || n > 5 {
		return fmt.Errorf("argument %q is not a log level from 0 to 5", arg)
	}
	return h.recreate("QNET_LOG_LEVEL=" + arg)
}

func clearLogLevel(h *Host) error { return h.recreate("") }

// setImage is what an operator does by hand who forgets what a cut-over does
// with the data: remove the container, run another image.
func setImage(h *Host, arg string) error {
	if arg == "" {
		return fmt.Errorf("which image: want image=TAG with one of %s, or one that was added", strings.Join(Tags(), ", "))
	}
	if err := h.engine.Load(Repository + ":" + arg); err != nil {
		return err
	}
	if err := h.engine.StopContainer(h.nodeContainer()); err != nil {
		return err
	}
	if err := h.engine.RemoveContainer(h.nodeContainer()); err != nil {
		return err
	}
	if err := h.createNode(arg); err != nil {
		return err
	}
	return h.engine.StartContainer(h.nodeContainer())
}

// recreate replaces the node's container by one with another log level, as an
// operator would by hand: the level is read once, at start.
func (h *Host) recreate(level string) error {
	raw, err := h.engine.Inspect(h.nodeContainer())
	if err != nil {
		return err
	}
	var o struct {
		Config     map[string]any
		HostConfig map[string]any
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("reading inspect: %w", err)
	}
	env, _ := o.Config["Env"].([]any)
	env = slices.DeleteFunc(env, func(kv any) bool { s, _ := kv.(string); return strings.HasPrefix(s, "QNET_LOG_LEVEL=") })
	if level != "" {
		env = append(env, level)
	}
	body := o.Config
	body["Env"], body["HostConfig"] = env, o.HostConfig
	delete(body, "Hostname")
	if err := h.engine.StopContainer(h.nodeContainer()); err != nil {
		return err
	}
	if err := h.engine.RemoveContainer(h.nodeContainer()); err != nil {
		return err
	}
	if err := h.createFrom(body); err != nil {
		return err
	}
	return h.engine.StartContainer(h.nodeContainer())
}
