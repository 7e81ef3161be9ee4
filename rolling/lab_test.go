package rolling_test

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

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/rolling"
)

// world is a fleet in memory with the folder of its operator.
type world struct {
	*testing.T
	lab   *lab.Lab
	dir   string // hosts.toml, keys, state
	hosts string // path of hosts.toml
	agent string // what is installed on the hosts; the lab runs its own

	mu     sync.Mutex
	events []rolling.Event
	said   []string // all that the tool let out: documents, errors, plans, checks
}

// inLab runs fn in a bubble of virtual time with a fleet that seals.
func inLab(t *testing.T, cfg lab.Config, fn func(*testing.T, *world)) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole fleet")
	}
	synctest.Test(t, func(t *testing.T) { fn(t, up(t, cfg)) })
}

// history is long enough that the chain has sealed for ten windows.
const history = 90 * 12

func up(t *testing.T, cfg lab.Config) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	cfg.Dir = t.TempDir()
	if cfg.Nodes == 0 {
		cfg.Nodes = 6
	}
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	cfg.History = history
	change := cfg.Host
	cfg.Host = func(i int, h *lab.HostSpec) {
		h.Uname = "Linux x86_64" // what the agent below is built for
		if change != nil {
			change(i, h)
		}
	}
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

// blocks lets the chain run for n block times.
func (w *world) blocks(n int) { time.Sleep(time.Duration(n) * w.lab.Block()) }

// nodes are the containers of a host that could be its node: all but others' tools.
func (w *world) nodes(id string) []engine.Summary {
	var out []engine.Summary
	for _, c := range w.host(id).Engine().Containers() {
		if strings.HasPrefix(c.Name, w.host(id).Spec().Container) {
			out = append(out, c)
		}
	}
	return out
}

func (w *world) running(id string) []engine.Summary {
	return slices.DeleteFunc(w.nodes(id), func(c engine.Summary) bool { return c.State != "running" })
}

// runs asserts that the one container left on a host runs an image.
func (w *world) runs(id, tag string) {
	w.Helper()
	got := w.nodes(id)
	h := w.host(id)
	if len(got) != 1 || got[0].State != "running" || got[0].Name != h.Spec().Container || !w.isImage(got[0], tag) {
		w.Errorf("host %s: containers %s, want one that runs %s", id, names(got), tag)
	}
}

// isImage tells an image by the build its containers inherit.
func (w *world) isImage(c engine.Summary, tag string) bool {
	return slices.Contains(c.Env, "QNET_BUILD_ID="+lab.BuildID(tag))
}

func names(cs []engine.Summary) string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s (%s, %s)", c.Name, c.State, c.Image))
	}
	return strings.Join(out, ", ")
}

// ids of all hosts.
func (w *world) ids() []string {
	var out []string
	for _, h := range w.lab.Hosts() {
		out = append(out, h.ID())
	}
	return out
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
}

// note keeps what leaves the tool.
func (w *world) note(what any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch v := what.(type) {
	case error:
		w.said = append(w.said, fmt.Sprintf("%v %s", v, hints(v)))
	case string:
		w.said = append(w.said, v)
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			w.Errorf("not JSON: %v", err)
		}
		w.said = append(w.said, string(raw))
	}
}

func hints(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// saw lists the events of a kind and name, as "state text".
func (w *world) saw(node, kind, name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.events {
		if (node == "" || e.Node == node) && e.Kind == kind && e.Name == name {
			out = append(out, e.State+" "+e.Text)
		}
	}
	return out
}

// tool is one process of the operator's program. It mirrors what cmd/qnetops
// does around a Runner.
type tool struct {
	w     *world
	owner string
	state string // file of the journal

	ctx    context.Context
	cancel context.CancelFunc
	db     *sqldb.DB
	store  *journal.Store
	fleet  *fleet.Fleet
	lease  lease.Lease // of a test's own
	held   lease.Lease // by the process
	began  string
	plan   rolling.Plan        // of the last roll
	emit   func(rolling.Event) // a test's hook, before the event is kept
	ready  func()              // a test's hook, when the plan is confirmed and nothing has begun

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (w *world) tool() *tool { return w.toolAt("state.db") }

// toolAt starts the program with a journal of its own name.
func (w *world) toolAt(state string) *tool {
	w.Helper()
	t := &tool{w: w, owner: "tester@example.org", state: filepath.Join(w.dir, state)}
	t.ctx, t.cancel = context.WithCancel(w.Context())
	var err error
	if t.db, err = sqldb.Open(t.ctx, t.state); err != nil {
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

// kill is SIGKILL: nothing reaches a host or the journal from here on. The
// goroutines that still run are those of a dead process.
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
}

// ops is what the commands use.
func (t *tool) ops() *rolling.Operations {
	return &rolling.Operations{Fleet: t.fleet, Store: t.store, Operator: t.owner, Emit: t.event, Acquire: t.acquire,
		Began: func(id string) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.began = id
		}}
}

// op is the id of the operation that this process began or took over last.
func (t *tool) op() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.began
}

// acquire takes the lease, or uses one of a test's own.
func (t *tool) acquire(ctx context.Context) (lease.Lease, error) {
	if t.lease != nil {
		return t.lease, nil
	}
	held, err := lease.Acquire(ctx, lease.Options{DB: t.db, Scope: t.fleet.Inventory().Name, Owner: t.owner})
	if err == nil {
		t.mu.Lock()
		t.held = held
		t.mu.Unlock()
	}
	return held, err
}

// look decides as a command does before its question.
func (t *tool) look(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	p, err := t.ops().Propose(ctx, spec)
	return p.Plan, err
}

// spec of a roll of the given nodes, none: all.
func (t *tool) spec(image string, targets ...string) rolling.Spec {
	if len(targets) == 0 {
		targets = t.fleet.Inventory().IDs()
	}
	return rolling.Spec{Image: image, Targets: targets}
}

// propose is the part before the question: fences, look, checks.
func (t *tool) propose(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	ops := t.ops()
	if err := ops.Free(ctx); err != nil {
		return rolling.Plan{}, err
	}
	p, err := ops.Propose(ctx, spec)
	if err != nil {
		return p.Plan, err
	}
	t.w.note(p.Plan)
	t.w.note(p.Checks)
	if err := p.Refused(); err != nil {
		return p.Plan, err
	}
	if spec.RecoveryHalted {
		return p.Plan, ops.Standing(ctx)
	}
	return p.Plan, nil
}

// roll is the command `qnetops roll`.
func (t *tool) roll(spec rolling.Spec) (rolling.Document, error) {
	doc, err := t.rollOnce(t.ctx, spec)
	return t.said(doc, err)
}

func (t *tool) said(doc rolling.Document, err error) (rolling.Document, error) {
	t.w.note(doc)
	if err != nil {
		t.w.note(err)
	}
	return doc, err
}

func (t *tool) rollOnce(ctx context.Context, spec rolling.Spec) (rolling.Document, error) {
	plan, err := t.propose(ctx, spec)
	if err != nil {
		return rolling.Document{}, err
	}
	if len(plan.Targets()) == 0 {
		return rolling.Document{Outcome: rolling.OutcomeDone}, nil
	}
	t.plan = plan
	if t.ready != nil {
		t.ready()
	}
	return t.ops().Roll(ctx, spec, plan)
}

// resume is the command `qnetops resume OP`.
func (t *tool) resume(id string) (rolling.Document, error) { return t.said(t.ops().Resume(t.ctx, id)) }

// abort is the command `qnetops abort OP`.
func (t *tool) abort(id string) (rolling.Document, error) { return t.said(t.ops().Abort(t.ctx, id)) }

// restore is the command `qnetops restore NODE`.
func (t *tool) restore(id string) (rolling.NodeResult, error) {
	ops := t.ops()
	plan, err := ops.LookBack(t.ctx, id, nil)
	if err != nil {
		return rolling.NodeResult{}, err
	}
	doc, err := t.said(ops.Restore(t.ctx, plan))
	if len(doc.Nodes) == 0 {
		return rolling.NodeResult{}, err
	}
	return doc.Nodes[0], err
}

// told says whether a note of that name was emitted.
func (w *world) told(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == rolling.KindNote && e.Name == name {
			return true
		}
	}
	return false
}

// operations lists the journal, newest first.
func (t *tool) operations() []journal.Record {
	t.w.Helper()
	records, err := t.store.List(t.w.Context(), t.fleet.Inventory().Name)
	if err != nil {
		t.w.Fatal(err)
	}
	return records
}

// outcomes is the outcome of each node of a document.
func outcomes(doc rolling.Document) map[string]string {
	out := map[string]string{}
	for _, n := range doc.Nodes {
		out[n.ID] = n.Outcome
	}
	return out
}

func nodeOf(doc rolling.Document, id string) rolling.NodeResult {
	for _, n := range doc.Nodes {
		if n.ID == id {
			return n
		}
	}
	return rolling.NodeResult{}
}

func verdict(n rolling.NodeResult, name string) string {
	for _, m := range n.Milestones {
		if m.Name == name {
			return m.Verdict
		}
	}
	return ""
}

// mustRefuse asserts a refusal by a check and that no engine was changed.
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

// changes lists the requests that change something on a host's engine, pulls
// and staged successors left out, since a mark.
func (w *world) changes(id string, since int) []string {
	var out []string
	for _, r := range w.lab.Requests()[since:] {
		if r.Host == id && r.Method != "GET" && r.Method != "HEAD" {
			out = append(out, r.Origin+" "+r.Method+" "+r.Path)
		}
	}
	return out
}
