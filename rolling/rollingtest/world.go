// Package rollingtest is for tests only: the fleet and the operator's program that the tests of packages rolling and cutover
// run on. A World is a fleet of the process lab with its operator's folder; a Tool is one process of the operator's program,
// which can be killed as a process can. Nothing but tests may import it (the law test holds that); a test that uses it links
// the driver of the store itself.
package rollingtest

import (
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling"
)

// Fast is a block time for labs in virtual time; all times of the nodes scale with it.
const Fast = 20 * time.Millisecond

// History is long enough that the chain has sealed for ten windows: how many blocks there are when a lab starts.
const History = 90 * 12

// World is a fleet in memory with the folder of its operator.
type World struct {
	*testing.T
	Lab   *lab.Lab
	Dir   string // hosts.toml, keys, state
	Hosts string // path of hosts.toml
	Agent string // what is installed on the hosts; the lab runs its own

	mu     sync.Mutex
	events []rolling.Event
	said   []string // all that the tool let out: documents, errors, plans, events
}

// InLab runs fn in a bubble of virtual time with a fleet that seals. Under -short it is passed over.
func InLab(t *testing.T, cfg lab.Config, fn func(*testing.T, *World)) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole fleet")
	}
	synctest.Test(t, func(t *testing.T) { fn(t, Up(t, cfg)) })
}

// Up starts a fleet that seals: six nodes and seed 1 where cfg names no other. Outside a bubble it runs in real time.
func Up(t *testing.T, cfg lab.Config) *World {
	t.Helper()
	w := &World{T: t, Dir: t.TempDir()}
	cfg.Dir, cfg.History = t.TempDir(), History
	if cfg.Nodes == 0 {
		cfg.Nodes = 6
	}
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	change := cfg.Host
	cfg.Host = func(i int, h *lab.HostSpec) {
		h.Uname = "Linux x86_64" // what the agent below is built for
		if change != nil {
			change(i, h)
		}
	}
	var err error
	if w.Lab, err = lab.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Lab.Close)
	if err := w.Lab.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Lab.WaitHeight(t.Context(), History+100); err != nil {
		t.Fatal(err)
	}
	w.Hosts, w.Agent = w.machine(w.Dir)
	return w
}

// machine puts into a folder what an operator needs: hosts.toml with its keys, and an agent.
func (w *World) machine(dir string) (hosts, agent string) {
	w.Helper()
	hosts, err := w.Lab.WriteFiles(dir)
	if err != nil {
		w.Fatal(err)
	}
	agent = filepath.Join(dir, "agent")
	if err := os.WriteFile(agent, elfHeader(), 0o755); err != nil {
		w.Fatal(err)
	}
	return hosts, agent
}

// elfHeader is the shortest file that says it is a program for Linux on x86-64.
func elfHeader() []byte {
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(h[16:], uint16(elf.ET_EXEC))
	binary.LittleEndian.PutUint16(h[18:], uint16(elf.EM_X86_64))
	binary.LittleEndian.PutUint32(h[20:], 1)
	binary.LittleEndian.PutUint16(h[52:], 64)
	return h
}

// Host is a host of the lab.
func (w *World) Host(id string) *lab.Host {
	w.Helper()
	h, err := w.Lab.Host(id)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// Inject starts a fault of the lab on a host.
func (w *World) Inject(id, kind, arg string) {
	w.Helper()
	if err := w.Lab.Inject(id, kind, arg); err != nil {
		w.Fatal(err)
	}
}

// Clear ends a fault of the lab; an empty host or kind means all of them.
func (w *World) Clear(id, kind string) {
	w.Helper()
	if err := w.Lab.Clear(id, kind); err != nil {
		w.Error(err)
	}
}

// Wait lets time pass for the fleet, virtual in a bubble.
func (w *World) Wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.Context().Done():
	}
}

// Blocks lets the chain run for n block times.
func (w *World) Blocks(n int) { w.Wait(time.Duration(n) * w.Lab.Block()) }

// IDs of all hosts.
func (w *World) IDs() (out []string) {
	for _, h := range w.Lab.Hosts() {
		out = append(out, h.ID())
	}
	return out
}

// Tip is the highest height of the fleet, as the lab itself sees it.
func (w *World) Tip() (top uint64) {
	for _, n := range w.Lab.Status(w.Context()).Nodes {
		if n.Height != nil {
			top = max(top, *n.Height)
		}
	}
	return top
}

// Nodes are the containers of a host that are or were its node: all but those of others.
func (w *World) Nodes(id string) (out []engine.Summary) {
	w.Helper()
	for _, c := range w.Host(id).Engine().Containers() {
		if strings.HasPrefix(c.Name, w.Host(id).Spec().Container) {
			out = append(out, c)
		}
	}
	return out
}

// Node is the container that bears the node's name on a host.
func (w *World) Node(id string) engine.Summary {
	w.Helper()
	for _, c := range w.Nodes(id) {
		if c.Name == w.Host(id).Spec().Container {
			return c
		}
	}
	w.Fatalf("%s: no container of the node's name", id)
	return engine.Summary{}
}

// Running are those of Nodes that run.
func (w *World) Running(id string) []engine.Summary {
	return slices.DeleteFunc(w.Nodes(id), func(c engine.Summary) bool { return c.State != "running" })
}

// IsImage tells an image by the build its containers inherit.
func IsImage(c engine.Summary, tag string) bool {
	return slices.Contains(c.Env, "QNET_BUILD_ID="+lab.BuildID(tag))
}

// Names says of containers what a failed test needs to know.
func Names(cs []engine.Summary) string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s (%s %d, %s, %s)", c.Name, c.State, c.ExitCode, c.RestartPolicy, c.Image))
	}
	return strings.Join(out, ", ")
}

// Note keeps what leaves the tool: a text, an error with its hint, or a document. A document that is no JSON fails the test.
func (w *World) Note(what any) {
	text := ""
	switch v := what.(type) {
	case error:
		text = v.Error()
		if h := (interface{ Hint() string })(nil); errors.As(v, &h) {
			text += " " + h.Hint()
		}
	case string:
		text = v
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			w.Errorf("not JSON: %v", err)
		}
		text = string(raw)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *World) keep(e rolling.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
	w.said = append(w.said, e.Text)
}

// Events are what all processes have emitted so far, in order.
func (w *World) Events() []rolling.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// Said is all that left the tool so far.
func (w *World) Said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

// Clean asserts what must hold after every test: no rule of the lab was broken, nothing was asked that no host knows, and no
// secret value left the tool (invariant 7).
func (w *World) Clean() {
	w.Helper()
	if v := w.Lab.Violations(); len(v) > 0 {
		w.Errorf("violations: %q", v)
	}
	if r := w.Lab.Refusals(); len(r) > 0 {
		w.Errorf("asked what no host knows: %q", r)
	}
	said := w.Said()
	for name, value := range lab.Sentinels() {
		if slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, value) }) {
			w.Errorf("the value of %s left the tool", name)
		}
	}
}

// MustRefuse asserts a refusal by a check whose reason has these words.
func (w *World) MustRefuse(err error, check, words string) {
	w.Helper()
	var refused *rolling.RefusedError
	if !errors.As(err, &refused) {
		w.Fatalf("got %v, want a refusal by check %s", err, check)
	}
	for _, c := range refused.Checks {
		if c.Name == check && strings.Contains(c.Reason, words) {
			return
		}
	}
	w.Errorf("got %v, want check %s with %q", err, check, words)
}
