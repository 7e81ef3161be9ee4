package cutover

import (
	"context"
	"fmt"
	"slices"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/rolling"
)

// release is the Procedure of the release of a halted fleet.
type release struct{ *crew }

func newRelease(plan Plan, f *fleet.Fleet) *release { return &release{newCrew(plan, f)} }

// roll never starts an old container again: other nodes may have written blocks by
// the rules of the new image, and an armed one would stop at once.
func (x *release) roll(r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Release.Roll)
	runner.From, runner.NoPutBack = &x.plan.Release.From, true
	return runner
}

// Do runs one phase.
func (x *release) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		if err := x.roll(r).StageAll(ctx); err != nil {
			return nil, err
		}
		t = x.all("its successor is ready")
	case Hold:
		t, err = x.halted(ctx)
	case Go:
		t, err = x.start(ctx, r)
	case Verify:
		here, away := x.here(ctx, r, Go)
		runner := x.roll(r)
		runner.Together()
		t, err = x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
			return x.prove(ctx, runner, id)
		})
	case Release:
		t, err = x.clear(ctx, r)
	default:
		return nil, fmt.Errorf("a release has no phase %s", phase)
	}
	return x.keep(t), err
}

// halted looks once more that no node runs.
func (x *release) halted(ctx context.Context) (Tally, error) {
	t := Tally{}
	for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
		switch {
		case !s.Reached:
			t[id] = Standing{State: Missing, Text: s.Why}
		case s.runs():
			t[id] = Standing{State: Failed, Text: "it runs again, by another hand: stop it, and see who started it"}
		default:
			t.finish(id, "halted, restart policy %s", s.Policy)
		}
	}
	return t, ctx.Err()
}

// start swaps the successors in: the genesis hosts first and together, because
// they wait for each other, then the rest. Before the very first it looks again
// that the fleet is halted: a countdown may lie in between.
func (x *release) start(ctx context.Context, r *Run) (Tally, error) {
	if !r.Touched(ctx) {
		if t, err := x.halted(ctx); err != nil || len(x.open(r, t)) > 0 {
			return t, err
		}
	}
	// Where it is resumed another hand may have started one that had halted.
	if err := x.comeUp(ctx, r, x.plan.Release.Roll); err != nil {
		return Tally{}, err
	}
	var later []string
	for _, id := range x.plan.Hosts {
		if !slices.Contains(x.plan.Release.First, id) {
			later = append(later, id)
		}
	}
	runner := x.roll(r)
	swap := func(ctx context.Context, id string) (Standing, error) {
		return Standing{State: Finished, Text: "its successor runs"}, runner.SwapIn(ctx, *runner.Plan.Node(id))
	}
	t, err := x.change(ctx, r, x.plan.Release.First, Tally{}, swap)
	if err != nil {
		return t, err
	}
	return x.change(ctx, r, later, t, swap)
}

// clear ends the stay of the old containers: the armed ones, and those from before
// the arming.
func (x *release) clear(ctx context.Context, r *Run) (Tally, error) {
	// Where a successor has not proven itself the old containers stay (invariant 3).
	here, away := x.here(ctx, r, Go, Verify)
	runner := x.roll(r)
	away, err := x.tidy(ctx, r, runner, away)
	if err != nil {
		return away, err
	}
	return x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
		p := *runner.Plan.Node(id)
		err := runner.Clear(ctx, p)
		for _, name := range x.plan.Release.Asides[id] {
			if err == nil {
				err = x.finishAside(ctx, runner, p, name)
			}
			if err != nil && runner.Leaves(id, err) {
				err = nil
			}
		}
		return x.cleared(ctx, r, id, "its old containers are archived and removed", err)
	})
}

func (x *release) finishAside(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan, name string) error {
	return runner.Step(ctx, p.ID, "clear", "archive the log of "+name+", remove it", func(ctx context.Context,
		w *host.Writer) (any, error) {
		facts, err := w.Client().Facts(ctx, host.FactsRequest{Container: name})
		if err != nil || facts.Container == nil {
			return nil, err // an earlier run has removed it
		}
		return w.Finish(ctx, host.FinishRequest{Container: p.Container, AsideName: name, LogDir: x.fleet.Inventory().LogArchive}, nil)
	})
}

// Undo removes the successors that were staged.
func (x *release) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	if phase != Prepare {
		return nil
	}
	return x.discard(ctx, r, x.roll(r))
}

// Returnable looks whether a successor runs anywhere.
func (x *release) Returnable(ctx context.Context, r *Run) error {
	return noReturn(swapped(ctx, x.roll(r)), "the new image has been started on %s and may have written blocks by its rules: "+
		"the old one is not started again. "+
		"Mend what holds it and qnetops resume %s; if this image cannot run, stop the nodes by hand (docker stop), qnetops "+
		"abort %s --waive point_of_no_return=REASON closes the operation as it stands, and qnetops halt release IMAGE starts "+
		"all nodes on a better one", r.Op.ID(), r.Op.ID())
}

// Close clears the successors that did not start: the image that follows is rolled to
// hosts without them.
func (x *release) Close(ctx context.Context, r *Run) error { return x.closed(ctx, r, x.roll(r)) }

// Settle settles the steps in doubt by looking at the hosts.
func (x *release) Settle(ctx context.Context, r *Run) error { return x.roll(r).Settle(ctx) }

func (x *release) hosts(context.Context, *Run) []HostResult { return x.results(x.plan.Release.Roll) }
