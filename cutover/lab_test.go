package cutover_test

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "modernc.org/sqlite" // the journal's store

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// fast is the block time of these labs; all times of the nodes scale with it.
const fast = 20 * time.Millisecond

// history is long enough that the chain has sealed for ten windows.
const history = 90 * 12

// world is a fleet in memory with the folder of its operator.
type world struct {
	*testing.T
	lab          *lab.Lab
	dir          string
	hosts, agent string // hosts.toml; what is installed on the hosts

	mu     sync.Mutex
	events []rolling.Event
	said   []string
}

// inLab runs fn in a bubble of virtual time with a fleet that seals.
func inLab(t *testing.T, nodes int, fn func(*testing.T, *world)) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole fleet")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { fn(t, up(t, nodes)) })
}

func up(t *testing.T, nodes int) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	cfg := lab.Config{Dir: t.TempDir(), Nodes: nodes, Seed: 1, Block: fast, History: history,
		Host: func(_ int, h *lab.HostSpec) { h.Uname = "Linux x86_64" }} // what the agent below is built for
	var err error
	if w.lab, err = lab.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.lab.Close)
	if err := w.lab.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.lab.WaitHeight(t.Context(), history+100); err != nil {
		t.Fatal(err)
	}
	if w.hosts, err = w.lab.WriteFiles(w.dir); err != nil {
		t.Fatal(err)
	}
	w.agent = filepath.Join(w.dir, "agent")
	if err := os.WriteFile(w.agent, elfHeader(), 0o755); err != nil {
		t.Fatal(err)
	}
	return w
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

func (w *world) host(id string) *lab.Host {
	w.Helper()
	h, err := w.lab.Host(id)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) inject(id, kind, arg string) {
	w.Helper()
	if err := w.lab.Inject(id, kind, arg); err != nil {
		w.Fatal(err)
	}
}

func (w *world) ids() []string {
	var out []string
	for _, h := range w.lab.Hosts() {
		out = append(out, h.ID())
	}
	return out
}

// tip is the highest height of the fleet, as the lab itself sees it.
func (w *world) tip() (top uint64) {
	for _, n := range w.lab.Status(w.Context()).Nodes {
		if n.Height != nil {
			top = max(top, *n.Height)
		}
	}
	return top
}

// node is the container that bears the node's name on a host.
func (w *world) node(id string) engine.Summary {
	w.Helper()
	for _, c := range w.host(id).Engine().Containers() {
		if c.Name == w.host(id).Spec().Container {
			return c
		}
	}
	w.Fatalf("%s: no container of the node's name", id)
	return engine.Summary{}
}

// all are the containers of a host that are or were its node.
func (w *world) all(id string) (out []engine.Summary) {
	for _, c := range w.host(id).Engine().Containers() {
		if strings.HasPrefix(c.Name, w.host(id).Spec().Container) {
			out = append(out, c)
		}
	}
	return out
}

func names(cs []engine.Summary) string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s (%s %d, %s)", c.Name, c.State, c.ExitCode, c.RestartPolicy))
	}
	return strings.Join(out, ", ")
}

// down asserts that a host's node has halted and can be started by nothing but a
// person.
func (w *world) down(id string) {
	w.Helper()
	c := w.node(id)
	if c.State != "exited" || c.ExitCode != 0 || c.RestartPolicy != "no" || !slices.ContainsFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, "QNET_HALT_HEIGHT=") }) {
		w.Errorf("%s: %s, want it halted", id, names(w.all(id)))
	}
}

// runs asserts that one container is left on a host, that it runs an image with
// the policy it had, and carries no halt height.
func (w *world) runs(id, tag string) {
	w.Helper()
	got := w.all(id)
	c := w.node(id)
	if len(got) != 1 || c.State != "running" || c.RestartPolicy != "always" || !slices.Contains(c.Env, "QNET_BUILD_ID="+lab.BuildID(tag)) ||
		slices.ContainsFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, "QNET_HALT_HEIGHT=") }) {
		w.Errorf("host %s: %s, want one that runs %s", id, names(got), tag)
	}
}

// clean asserts what must hold after every test.
func (w *world) clean() {
	w.Helper()
	if v := w.lab.Violations(); len(v) > 0 {
		w.Errorf("violations: %q", v)
	}
	if r := w.lab.Refusals(); len(r) > 0 {
		w.Errorf("asked what no host knows: %q", r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, value := range lab.Sentinels() {
		for _, s := range w.said {
			if strings.Contains(s, value) {
				w.Errorf("the value of %s left the tool", name)
			}
		}
	}
}

// healthy asserts that the whole fleet is.
func (w *world) healthy() {
	w.Helper()
	tool := w.tool()
	defer tool.exit()
	for range 60 {
		view, err := observe.Observe(w.Context(), tool.fleet, observe.Options{})
		if err != nil {
			w.Fatal(err)
		}
		if view.Verdict == observe.Healthy {
			return
		}
		time.Sleep(10 * fast)
	}
	w.Errorf("the fleet does not become healthy")
}

// tool is one process of the operator's program.
type tool struct {
	w      *world
	ctx    context.Context
	cancel context.CancelFunc
	db     *sqldb.DB
	store  *journal.Store
	fleet  *fleet.Fleet
	held   lease.Lease
	emit   func(rolling.Event)

	mu    sync.Mutex
	began string
	dead  bool
	conns []net.Conn
}

// tool starts a process that knows the inventory and the store, and nothing else.
func (w *world) tool() *tool {
	w.Helper()
	t := &tool{w: w}
	t.ctx, t.cancel = context.WithCancel(w.Context())
	var err error
	if t.db, err = sqldb.Open(t.ctx, filepath.Join(w.dir, "state.db")); err != nil {
		w.Fatal(err)
	}
	if t.store, err = journal.Open(t.ctx, t.db); err != nil {
		w.Fatal(err)
	}
	inv, err := fleet.Load(w.hosts)
	if err != nil {
		w.Fatal(err)
	}
	t.fleet, err = fleet.Open(t.ctx, inv, inv.IDs(), fleet.Options{Dial: t.dial, AgentBinary: w.agent, Version: "test", Getenv: func(string) string { return "" }})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(t.exit)
	return t
}

func (t *tool) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := t.w.lab.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		c.Close()
		return nil, errors.New("the process is dead")
	}
	t.conns = append(t.conns, c)
	return c, nil
}

// kill is SIGKILL: nothing reaches a host or the journal from here on.
func (t *tool) kill() {
	t.mu.Lock()
	first := !t.dead
	t.dead = true
	conns := t.conns
	t.mu.Unlock()
	if !first {
		return
	}
	for _, c := range conns {
		c.(interface{ Sever() }).Sever()
	}
	t.db.Close()
	t.cancel()
}

// exit is the ordinary end of a process, or what the kernel does after a kill.
func (t *tool) exit() {
	if t.held != nil {
		_ = t.held.Release(context.WithoutCancel(t.ctx)) // a dead process's store is closed
	}
	t.cancel()
	t.fleet.Close()
	t.db.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
}

func (t *tool) event(e rolling.Event) {
	if t.emit != nil {
		t.emit(e)
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.events = append(t.w.events, e)
	t.w.said = append(t.w.said, e.Text)
}

// ops is what the commands use.
func (t *tool) ops(waivers ...rolling.Waiver) *cutover.Operations {
	return &cutover.Operations{Operations: &rolling.Operations{Fleet: t.fleet, Store: t.store, Operator: "tester@example.org", Waivers: waivers, Emit: t.event,
		Acquire: func(ctx context.Context) (lease.Lease, error) {
			held, err := lease.Acquire(ctx, lease.Options{DB: t.db, Scope: t.fleet.Inventory().Name, Owner: "tester@example.org"})
			t.held = held
			return held, err
		},
		Began: func(id string) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.began = id
		}}}
}

func (t *tool) op() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.began
}

func (t *tool) ask(waivers ...rolling.Waiver) cutover.Ask {
	return cutover.Ask{Hosts: t.fleet.Inventory().IDs(), Waivers: waivers}
}

// halt is the command `qnetops halt --height H`.
func (t *tool) halt(ask cutover.HaltAsk) (cutover.Document, error) {
	ops := t.ops()
	if err := ops.Free(t.ctx); err != nil {
		return cutover.Document{}, err
	}
	p, err := ops.ProposeHalt(t.ctx, ask)
	if err == nil {
		err = p.Refused()
	}
	if err != nil {
		return cutover.Document{}, t.note(p, err)
	}
	doc, err := ops.Halt(t.ctx, ask, p.Plan)
	return doc, t.note(doc, err)
}

// release is the command `qnetops halt release IMAGE`.
func (t *tool) release(ask cutover.ReleaseAsk) (cutover.Document, error) {
	ops := t.ops()
	if err := ops.Free(t.ctx); err != nil {
		return cutover.Document{}, err
	}
	p, err := ops.ProposeRelease(t.ctx, ask)
	if err == nil {
		err = p.Refused()
	}
	if err != nil {
		return cutover.Document{}, t.note(p, err)
	}
	doc, err := ops.ReleaseHalt(t.ctx, ask, p.Plan)
	return doc, t.note(doc, err)
}

// note keeps what leaves the tool.
func (t *tool) note(what any, err error) error {
	raw, bad := json.Marshal(what)
	if bad != nil {
		t.w.Errorf("not JSON: %v", bad)
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.said = append(t.w.said, string(raw), fmt.Sprint(err))
	return err
}

// far is a height that leaves time to arm n nodes.
func (w *world) far(n int) uint64 { return w.tip() + uint64(2*n+1)*rolling.ExpectedNode }

// mustRefuse asserts a refusal by a check.
func (w *world) mustRefuse(err error, check, words string) {
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

// files lists every file below a host's data directory but those the node
// rewrites, with nothing but its name.
func (w *world) files(id string) []string {
	w.Helper()
	root := filepath.Join(w.host(id).Root(), w.host(id).Spec().DataPath)
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// unfinished is the id of the fleet's open operation.
func (t *tool) unfinished() string {
	t.w.Helper()
	records, err := t.store.List(t.w.Context(), t.fleet.Inventory().Name)
	if err != nil {
		t.w.Fatal(err)
	}
	for _, r := range records {
		if !r.State.Finished() {
			return r.ID
		}
	}
	return ""
}
