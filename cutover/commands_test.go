package cutover_test

import (
	"context"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// tool is one process of the operator's program, with the commands of cut-overs.
type tool struct {
	*rollingtest.Tool
	w      *world
	ctx    context.Context
	cancel context.CancelFunc
	store  *journal.Store
	fleet  *fleet.Fleet
	emit   func(rolling.Event) // a test's hook, before the event is kept
}

func (w *world) toolOf(p *rollingtest.Tool) *tool {
	t := &tool{Tool: p, w: w, ctx: p.Ctx, cancel: p.Cancel, store: p.Store, fleet: p.Fleet}
	p.Emit = func(e rolling.Event) {
		if t.emit != nil {
			t.emit(e)
		}
	}
	return t
}

func (t *tool) kill()              { t.Kill() }
func (t *tool) exit()              { t.Exit() }
func (t *tool) op() string         { return t.Op() }
func (t *tool) unfinished() string { t.w.Helper(); return t.Unfinished() }

// ops is what the commands use.
func (t *tool) ops(waivers ...rolling.Waiver) *cutover.Operations {
	return &cutover.Operations{Operations: t.Ops(waivers...)}
}

func (t *tool) ask(waivers ...rolling.Waiver) cutover.Ask {
	return cutover.Ask{Hosts: t.fleet.Inventory().IDs(), Waivers: waivers}
}

// note keeps what leaves the tool.
func (t *tool) note(what any, err error) error {
	t.w.Note(what)
	if err != nil {
		t.w.Note(err)
	}
	return err
}

// when calls fn each time that a phase comes to a state ("begun", "done"), besides
// what the process does already.
func (t *tool) when(phase cutover.PhaseName, state string, fn func()) {
	before := t.emit
	t.emit = func(e rolling.Event) {
		if before != nil {
			before(e)
		}
		if e.Kind == rolling.KindNote && e.Name == string(phase) && e.State == state {
			fn()
		}
	}
}

// dieAt makes a process die when a phase comes to a state.
func (t *tool) dieAt(phase cutover.PhaseName, state string) { t.when(phase, state, t.kill) }

// cancelAt interrupts a process when a phase begins.
func (t *tool) cancelAt(phase cutover.PhaseName) { t.when(phase, "begun", t.cancel) }

// proposed is what a command decided before its question.
type proposed interface{ Refused() error }

// command is what each of the commands below does around its operation.
func command[P proposed](t *tool, propose func(*cutover.Operations) (P, error), run func(*cutover.Operations, P) (cutover.Document, error)) (cutover.Document, error) {
	ops := t.ops()
	if err := ops.Free(t.ctx); err != nil {
		return cutover.Document{}, err
	}
	p, err := propose(ops)
	if err == nil {
		err = p.Refused()
	}
	if err != nil {
		return cutover.Document{}, t.note(p, err)
	}
	doc, err := run(ops, p)
	return doc, t.note(doc, err)
}

// halt is the command `qnetops halt --height H`.
func (t *tool) halt(ask cutover.HaltAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.Proposal, error) { return ops.ProposeHalt(t.ctx, ask) },
		func(ops *cutover.Operations, p cutover.Proposal) (cutover.Document, error) {
			return ops.Halt(t.ctx, ask, p.Plan)
		})
}

// release is the command `qnetops halt release IMAGE`.
func (t *tool) release(ask cutover.ReleaseAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.Proposal, error) { return ops.ProposeRelease(t.ctx, ask) },
		func(ops *cutover.Operations, p cutover.Proposal) (cutover.Document, error) {
			return ops.ReleaseHalt(t.ctx, ask, p.Plan)
		})
}

// rollback is the command `qnetops rollback`.
func (t *tool) rollback(ask cutover.RollbackAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.RollbackProposal, error) {
		return ops.ProposeRollback(t.ctx, ask)
	},
		func(ops *cutover.Operations, p cutover.RollbackProposal) (cutover.Document, error) {
			return ops.Rollback(t.ctx, ask, p.Plan)
		})
}

// decree is the command `qnetops decree submit`.
func (t *tool) decree(ask cutover.DecreeAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.Proposal, error) { return ops.ProposeDecree(t.ctx, ask) },
		func(ops *cutover.Operations, p cutover.Proposal) (cutover.Document, error) {
			return ops.Decree(t.ctx, ask, p.Plan)
		})
}

// restart is the command `qnetops restart execute`.
func (t *tool) restart(ask cutover.RestartAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.Proposal, error) { return ops.ProposeRestart(t.ctx, ask) },
		func(ops *cutover.Operations, p cutover.Proposal) (cutover.Document, error) {
			return ops.ExecuteRestart(t.ctx, ask, p.Plan)
		})
}

// unbar is the command `qnetops restart unbar`.
func (t *tool) unbar(ask cutover.UnbarAsk) (cutover.Document, error) {
	return command(t, func(ops *cutover.Operations) (cutover.Proposal, error) { return ops.ProposeUnbar(t.ctx, ask) },
		func(ops *cutover.Operations, p cutover.Proposal) (cutover.Document, error) {
			return ops.Unbar(t.ctx, ask, p.Plan)
		})
}

// afterHalt halts a fleet of four and gives the process that comes after it.
func (w *world) afterHalt() *tool {
	w.Helper()
	t := w.tool()
	if _, err := t.halt(cutover.HaltAsk{Ask: t.ask(), Height: w.far(4)}); err != nil {
		w.Fatal(err)
	}
	t.exit()
	return w.tool()
}
