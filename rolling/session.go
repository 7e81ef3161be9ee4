package rolling

import (
	"context"
	"encoding/json"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
)

// Session is one operation of a room that is built on this one, such as a
// cut-over: its lease is held and its epoch is on every host that answered.
type Session struct {
	Op    *journal.Op
	Lease lease.Lease

	ops   *Operations
	again bool // it was taken up by resume or abort
}

// Begin starts an operation of another room and runs fn in it. fn ends it with
// Finish, Nothing or Stop; Fleet, Operator and Epoch of spec are filled in here.
func (o *Operations) Begin(ctx context.Context, spec journal.Spec, fn func(context.Context, *Session) error) error {
	return o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		spec.Fleet, spec.Operator, spec.Epoch = o.Fleet.Inventory().Name, o.Operator, held.Token().Epoch
		op, err := o.Store.Begin(ctx, spec)
		if err != nil {
			return err
		}
		o.began(op.ID())
		s := &Session{Op: op, Lease: held, ops: o}
		if err := s.fence(ctx); err != nil {
			return s.Nothing(ctx, err)
		}
		return fn(ctx, s)
	})
}

// Continue makes an unfinished operation this process's own and runs fn in it.
// check refuses what cannot be gone on with, before anything is taken. Steps in
// doubt are left to fn, which settles them by looking.
func (o *Operations) Continue(ctx context.Context, id string, check func(journal.Record) error, fn func(context.Context, *Session) error) error {
	op, err := o.Store.Op(ctx, id)
	if err != nil {
		return err
	}
	record, err := op.Record(ctx)
	if err != nil {
		return err
	}
	switch name := o.Fleet.Inventory().Name; {
	case record.State.Finished():
		return &NotOpenError{ID: id, Why: "it is " + string(record.State), Err: journal.ErrFinished}
	case record.Fleet != name:
		return &NotOpenError{ID: id, Why: "it is of fleet " + record.Fleet + ", the inventory is of fleet " + name}
	}
	if err := check(record); err != nil {
		return err
	}
	return o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		s := &Session{Op: op, Lease: held, ops: o, again: true}
		if err := s.fence(ctx); err != nil {
			return err
		}
		if err := op.Resume(ctx, held.Token().Epoch); err != nil {
			return err
		}
		o.began(id)
		return fn(ctx, s)
	})
}

// fence writes the epoch to every host that answers. One that does not is fenced
// at the first step on it (Step takes the fence itself).
func (s *Session) fence(ctx context.Context) error {
	token, err := s.Lease.Raise(ctx, 0, s.Op.ID())
	if err != nil {
		return err
	}
	return TakeFences(ctx, s.ops.Fleet, token, nil)
}

// Runner gives the machinery of a roll on the nodes of plan, within this operation.
func (s *Session) Runner(plan Plan) *Runner {
	return &Runner{Fleet: s.ops.Fleet, Op: s.Op, Lease: s.Lease, Plan: plan, Emit: s.ops.Emit, Waivers: s.ops.Waivers, Again: s.again}
}

// Nothing closes an operation that changed nothing.
func (s *Session) Nothing(ctx context.Context, cause error) error {
	return s.ops.nothing(ctx, s.Lease, s.Op, cause)
}

// Stop writes down that the operation stands and why; it is resumed or aborted
// later, and the fences stay.
func (s *Session) Stop(ctx context.Context, cause error) error {
	return s.ops.close(ctx, s.Runner(Plan{}), cause)
}

// Finish ends the operation for good, as Done or Aborted, and gives the fences
// back.
func (s *Session) Finish(ctx context.Context, state journal.State, summary string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	if err := s.Op.Finish(ctx, state, summary); err != nil {
		return err
	}
	s.ops.release(ctx, s.Lease)
	return nil
}

// Step is one journaled change on one host: lease and fence are checked before
// it, the intent is on disk before the request leaves, and an interrupt lets it
// end. A step that is done again gets an id of its own.
func (r *Runner) Step(ctx context.Context, id, name, title string, do func(context.Context, *host.Writer) (any, error)) error {
	return r.step(ctx, id, name, title, func(ctx context.Context, w *host.Writer) (any, error) {
		// A host that was away when the operation began has an older epoch.
		if _, err := w.TakeFence(ctx); err != nil {
			return nil, err
		}
		return do(ctx, w)
	})
}

// TakeFence makes a host accept this operation's epoch, for one that was away when
// the operation began or was taken over.
func (r *Runner) TakeFence(ctx context.Context, id string) error {
	w, err := r.writer(ctx, id)
	if err == nil {
		_, err = w.TakeFence(ctx)
	}
	return err
}

// Record journals something that was only looked at, under step.
func (r *Runner) Record(ctx context.Context, step, title string, result any) error {
	return r.record(ctx, step, title, result)
}

// Result is the outcome of the newest finished attempt of a step, or nil.
func (r *Runner) Result(ctx context.Context, step string) json.RawMessage { return r.result(ctx, step) }

// Touched says whether any node of this operation was ever stopped by it, or may
// have been.
func (r *Runner) Touched(ctx context.Context) bool { return r.touched(ctx) }

// Say emits one event of this operation.
func (r *Runner) Say(e Event) { r.emit(e) }

// Reach returns the connection to a host, dialling again where it is dead or could
// not be made before.
func Reach(ctx context.Context, f *fleet.Fleet, id string) (*fleet.Conn, error) {
	return reach(ctx, f, id)
}

// Each runs fn for every id, some at a time, and waits for all.
func Each(ctx context.Context, ids []string, fn func(ctx context.Context, id string)) {
	eachOf(ctx, ids, fn)
}
