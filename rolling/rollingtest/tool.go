package rollingtest

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// Tool is one process of the operator's program: what cmd/qnetops does around the operations.
type Tool struct {
	W     *World
	Owner string
	State string // the journal: a file, or the DSN of a Postgres

	Ctx    context.Context
	Cancel context.CancelFunc
	DB     *sqldb.DB
	Store  *journal.Store
	Fleet  *fleet.Fleet
	Lease  lease.Lease         // of a test's own; nil: the process takes one
	Held   lease.Lease         // by the process
	Emit   func(rolling.Event) // a test's hook, before the event is kept

	mu    sync.Mutex
	began string
	dead  bool
	conns []net.Conn
}

// Tool starts a process that knows the inventory and the store, and nothing else.
func (w *World) Tool() *Tool {
	w.Helper()
	return w.ToolAt(filepath.Join(w.Dir, "state.db"))
}

// ToolAt is Tool with a store of another name.
func (w *World) ToolAt(state string) *Tool {
	w.Helper()
	return w.start(w.Hosts, w.Agent, state)
}

// Elsewhere starts a process on a machine of its own: it has an inventory, keys and an agent in a folder that no other
// process knows, and shares the store alone.
func (w *World) Elsewhere(state string) *Tool {
	w.Helper()
	hosts, agent := w.machine(w.TempDir())
	return w.start(hosts, agent, state)
}

func (w *World) start(hosts, agent, state string) *Tool {
	w.Helper()
	t := &Tool{W: w, Owner: "tester@example.org", State: state}
	t.Ctx, t.Cancel = context.WithCancel(w.Context())
	var err error
	if t.DB, err = sqldb.Open(t.Ctx, t.State); err != nil {
		w.Fatal(err)
	}
	if t.Store, err = journal.Open(t.Ctx, t.DB); err != nil {
		w.Fatal(err)
	}
	inv, err := fleet.Load(hosts)
	if err != nil {
		w.Fatal(err)
	}
	t.Fleet, err = fleet.Open(t.Ctx, inv, inv.IDs(), fleet.Options{Dial: t.dial, AgentBinary: agent, Version: "test",
		Getenv: func(string) string { return "" }})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(t.Exit)
	return t
}

func (t *Tool) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := t.W.Lab.Dial(ctx, network, addr)
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

// Kill is SIGKILL: nothing reaches a host or the journal from here on. The goroutines that still run are those of a dead
// process.
func (t *Tool) Kill() {
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
	t.DB.Close()
	t.Cancel()
}

// Exit is the ordinary end of a process, or what the kernel does after a kill.
func (t *Tool) Exit() {
	if t.Held != nil {
		_ = t.Held.Release(context.WithoutCancel(t.Ctx)) // a dead process's store is closed
	}
	t.Cancel()
	t.Fleet.Close()
	t.DB.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
}

func (t *Tool) event(e rolling.Event) {
	if t.Emit != nil {
		t.Emit(e)
	}
	t.W.keep(e)
}

// Ops is what the commands use.
func (t *Tool) Ops(waivers ...rolling.Waiver) *rolling.Operations {
	return &rolling.Operations{Fleet: t.Fleet, Store: t.Store, Operator: t.Owner, Waivers: waivers, Emit: t.event, Acquire: t.Acquire,
		Began: func(id string) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.began = id
		}}
}

// Op is the id of the operation that this process began or took over last.
func (t *Tool) Op() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.began
}

// Acquire takes the lease, or uses one of a test's own.
func (t *Tool) Acquire(ctx context.Context) (lease.Lease, error) {
	if t.Lease != nil {
		return t.Lease, nil
	}
	held, err := lease.Acquire(ctx, lease.Options{DB: t.DB, Scope: t.Fleet.Inventory().Name, Owner: t.Owner})
	if err == nil {
		t.mu.Lock()
		t.Held = held
		t.mu.Unlock()
	}
	return held, err
}

// Operations lists the journal, newest first.
func (t *Tool) Operations() []journal.Record {
	t.W.Helper()
	records, err := t.Store.List(t.W.Context(), t.Fleet.Inventory().Name)
	if err != nil {
		t.W.Fatal(err)
	}
	return records
}

// Unfinished is the id of the fleet's open operation, "" where there is none.
func (t *Tool) Unfinished() string {
	t.W.Helper()
	for _, r := range t.Operations() {
		if !r.State.Finished() {
			return r.ID
		}
	}
	return ""
}

// Healthy lets at most 60 times ten blocks pass until the fleet is healthy, since a node that has just rejoined is behind for
// a moment, and returns the last view.
func (w *World) Healthy() (view observe.View) {
	w.Helper()
	t := w.Tool()
	defer t.Exit()
	for range 60 {
		var err error
		if view, err = observe.Observe(w.Context(), t.Fleet, observe.Options{}); err != nil {
			w.Fatal(err)
		}
		if view.Verdict == observe.Healthy {
			return view
		}
		w.Blocks(10)
	}
	w.Errorf("the fleet does not become healthy: %s, %q", view.Verdict, view.Reasons)
	return view
}
