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
	"github.com/qnetops/qnetops/observe"
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
	lease  lease.Lease
	runner *rolling.Runner
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
	if t.lease != nil {
		_ = t.lease.Release(context.WithoutCancel(t.ctx)) // a dead process's store is closed
	}
	t.cancel()
	t.fleet.Close()
	t.db.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
}

func (t *tool) killed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dead
}

func (t *tool) event(e rolling.Event) {
	if t.emit != nil {
		t.emit(e)
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.events = append(t.w.events, e)
}

// look observes, gathers and decides.
func (t *tool) look(ctx context.Context, spec rolling.Spec) (observe.View, rolling.Inputs, rolling.Plan, error) {
	view, err := observe.Observe(ctx, t.fleet, observe.Options{})
	if err != nil {
		return view, rolling.Inputs{}, rolling.Plan{}, err
	}
	in, err := rolling.Gather(ctx, t.fleet, spec)
	if err != nil {
		return view, in, rolling.Plan{}, err
	}
	return view, in, rolling.New(view, in, spec), nil
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
	if _, err := rolling.ReadFences(ctx, t.fleet, t.store.ID()); err != nil {
		return rolling.Plan{}, err
	}
	view, in, plan, err := t.look(ctx, spec)
	if err != nil {
		return plan, err
	}
	checks := rolling.Preflight(view, in, plan)
	if !spec.RecoveryHalted && len(plan.Targets()) > 0 {
		checks = append(checks, t.voters(ctx, plan.Targets()[0].ID))
	}
	t.w.note(plan)
	t.w.note(checks)
	if refused := rolling.Refusals(checks, plan); len(refused) > 0 {
		return plan, &rolling.RefusedError{Checks: refused}
	}
	if spec.RecoveryHalted {
		return plan, rolling.Halted(ctx, func(ctx context.Context) (observe.View, error) {
			return observe.Observe(ctx, t.fleet, observe.Options{})
		}, t.fleet.Inventory().Block)
	}
	return plan, nil
}

// voters is the quorum arithmetic of the first node, as the plan shows it.
func (t *tool) voters(ctx context.Context, first string) observe.Check {
	voters, err := observe.Quorum(ctx, t.fleet, first)
	if err != nil {
		return observe.Check{Name: "quorum", Verdict: observe.Unknown, Reason: err.Error()}
	}
	c := observe.Check{Name: "quorum", Verdict: observe.Fail, Reason: fmt.Sprintf("quorum %d of %d; %d vote without %s; not counted: %v",
		voters.Committee.Quorum, len(voters.Committee.Members), voters.Count, first, voters.Missing())}
	if voters.Enough() {
		c.Verdict = observe.Pass
	}
	return c
}

// acquire takes the lease with an epoch above all the hosts have seen.
func (t *tool) acquire(ctx context.Context) (context.Context, error) {
	held := t.lease // of a test's own
	if held == nil {
		var err error
		if held, err = lease.Acquire(ctx, lease.Options{DB: t.db, Scope: t.fleet.Inventory().Name, Owner: t.owner}); err != nil {
			return nil, err
		}
		t.lease = held
	}
	highest, err := rolling.ReadFences(held.Context(), t.fleet, t.store.ID())
	if err != nil {
		return nil, err
	}
	_, err = held.Raise(held.Context(), highest, "")
	return held.Context(), err
}

func (t *tool) fence(ctx context.Context, op string, must []string) error {
	token, err := t.lease.Raise(ctx, 0, op)
	if err != nil {
		return err
	}
	return rolling.TakeFences(ctx, t.fleet, token, must)
}

func targets(plan rolling.Plan) []string {
	var out []string
	for _, p := range plan.Targets() {
		out = append(out, p.ID)
	}
	return out
}

// roll is the command `qnetops roll`.
func (t *tool) roll(spec rolling.Spec) (rolling.Document, error) {
	doc, err := t.rollOnce(t.ctx, spec)
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
	if t.ready != nil {
		t.ready()
	}
	ctx, err = t.acquire(ctx)
	if err != nil {
		return rolling.Document{}, err
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		return rolling.Document{}, err
	}
	op, err := t.store.Begin(ctx, journal.Spec{Kind: "roll", Fleet: t.fleet.Inventory().Name, Operator: t.owner, Epoch: t.lease.Token().Epoch, Plan: raw, PlanDigest: plan.Digest()})
	if err != nil {
		return rolling.Document{}, err
	}
	if err := t.fence(ctx, op.ID(), targets(plan)); err != nil {
		_ = op.Finish(ctx, journal.Aborted, err.Error())
		return rolling.Document{}, err
	}
	_, _, again, err := t.look(ctx, spec)
	if err == nil && again.Digest() != plan.Digest() {
		err = &rolling.PlanChangedError{Printed: plan.Digest(), Now: again.Digest()}
	}
	if err != nil {
		_ = op.Finish(ctx, journal.Aborted, err.Error())
		return rolling.Document{}, errors.Join(err, rolling.ReleaseFences(ctx, t.fleet, t.lease.Token()))
	}
	t.runner = &rolling.Runner{Fleet: t.fleet, Op: op, Lease: t.lease, Plan: plan, Emit: t.event}
	doc, err := t.runner.Run(ctx)
	return t.end(ctx, plan, doc, err)
}

// end is the last look and the last entry of a roll or a resume.
func (t *tool) end(ctx context.Context, plan rolling.Plan, doc rolling.Document, cause error) (rolling.Document, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	op := t.runner.Op
	if cause == nil {
		view, err := observe.Observe(ctx, t.fleet, observe.Options{})
		if err != nil {
			return doc, err
		}
		if wrong := rolling.Compare(view, plan); len(wrong) > 0 {
			cause = &rolling.StoppedError{Operation: op.ID(), Reason: strings.Join(wrong, "; ")}
		}
	}
	record, err := op.Record(ctx)
	if err == nil && !record.State.Finished() {
		state, summary := journal.Done, "done"
		if cause != nil {
			state, summary = stateOf(cause), cause.Error()
		}
		if err := op.Finish(ctx, state, summary); err != nil {
			return doc, errors.Join(cause, err)
		}
		record.State = state
	}
	if record.State.Finished() {
		cause = errors.Join(cause, rolling.ReleaseFences(ctx, t.fleet, t.lease.Token()))
	}
	return doc, cause
}

func stateOf(cause error) journal.State {
	var doubt *rolling.InDoubtError
	if errors.As(cause, &doubt) {
		return journal.InDoubt
	}
	return journal.Stopped
}

// takeOver is what resume and abort begin with.
func (t *tool) takeOver(id string) (context.Context, rolling.Plan, error) {
	op, err := t.store.Op(t.ctx, id)
	if err != nil {
		return nil, rolling.Plan{}, err
	}
	record, err := op.Record(t.ctx)
	if err != nil {
		return nil, rolling.Plan{}, err
	}
	if record.State.Finished() {
		return nil, rolling.Plan{}, fmt.Errorf("operation %s is %s: %w", id, record.State, journal.ErrFinished)
	}
	plan, err := rolling.LoadPlan(record.Plan, record.PlanDigest)
	if err != nil {
		return nil, plan, err
	}
	ctx, err := t.acquire(t.ctx)
	if err != nil {
		return nil, plan, err
	}
	if err := t.fence(ctx, id, targets(plan)); err != nil {
		return nil, plan, err
	}
	if err := op.Resume(ctx, t.lease.Token().Epoch); err != nil {
		return nil, plan, err
	}
	t.runner = &rolling.Runner{Fleet: t.fleet, Op: op, Lease: t.lease, Plan: plan, Emit: t.event}
	if err := t.runner.Settle(ctx); err != nil {
		_ = op.Finish(ctx, stateOf(err), err.Error())
		return nil, plan, err
	}
	return ctx, plan, nil
}

// resume is the command `qnetops resume OP`.
func (t *tool) resume(id string) (rolling.Document, error) {
	ctx, plan, err := t.takeOver(id)
	var doc rolling.Document
	if err == nil {
		doc, err = t.runner.Run(ctx)
		doc, err = t.end(ctx, plan, doc, err)
	}
	t.w.note(doc)
	if err != nil {
		t.w.note(err)
	}
	return doc, err
}

// abort is the command `qnetops abort OP`.
func (t *tool) abort(id string) (rolling.Document, error) {
	ctx, _, err := t.takeOver(id)
	if err != nil {
		t.w.note(err)
		return rolling.Document{}, err
	}
	doc, err := t.runner.Abort(ctx)
	if err != nil {
		t.w.note(err)
		return doc, errors.Join(err, t.runner.Op.Finish(ctx, stateOf(err), err.Error()))
	}
	t.w.note(doc)
	return doc, errors.Join(t.runner.Op.Finish(ctx, journal.Aborted, "aborted"), rolling.ReleaseFences(ctx, t.fleet, t.lease.Token()))
}

// restore is the command `qnetops restore NODE`.
func (t *tool) restore(id string) (rolling.NodeResult, error) {
	restoring := &rolling.Restoring{Fleet: t.fleet, Emit: t.event}
	plan, err := restoring.Look(t.ctx, id)
	if err != nil {
		return rolling.NodeResult{}, err
	}
	ctx, err := t.acquire(t.ctx)
	if err != nil {
		return rolling.NodeResult{}, err
	}
	if err := t.fence(ctx, "restore-1", []string{id}); err != nil {
		return rolling.NodeResult{}, err
	}
	restoring.Lease = t.lease
	result, err := restoring.Run(ctx, plan)
	t.w.note(result)
	return result, errors.Join(err, rolling.ReleaseFences(ctx, t.fleet, t.lease.Token()))
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
