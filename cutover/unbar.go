package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/rolling"
)

// unbar is the Procedure of a change of the image on all nodes at one moment.
type unbar struct{ *crew }

func newUnbar(plan Plan, f *fleet.Fleet) *unbar { return &unbar{newCrew(plan, f)} }

// stepMoment is where the fleet's tip is journaled when the moment has come.
const stepMoment = "fleet/moment"

// roll never starts an old container again: it bars whom the others do not.
func (x *unbar) roll(ctx context.Context, r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Unbar.Roll)
	runner.NoPutBack = true
	var tip uint64
	if raw := r.Result(ctx, stepMoment); raw != nil && json.Unmarshal(raw, &tip) == nil {
		runner.From = &tip
	}
	return runner
}

// Do runs one phase.
func (x *unbar) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		if err = x.roll(ctx, r).StageAll(ctx); err == nil {
			t, err = x.ready(ctx)
		}
	case Hold:
		t, err = x.ready(ctx)
	case Go:
		t, err = x.swapAll(ctx, r)
	case Verify:
		here, away := x.here(ctx, r, Hold, Go)
		runner := x.roll(ctx, r)
		runner.Together()
		t, err = x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
			return x.prove(ctx, runner, id)
		})
	case Release:
		// Where a successor has not proven itself the old container stays (invariant 3).
		here, away := x.here(ctx, r, Hold, Go, Verify)
		runner := x.roll(ctx, r)
		if away, err = x.tidy(ctx, r, runner, away); err != nil {
			return away, err
		}
		t, err = x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
			return x.cleared(ctx, r, id, "its old container is archived and removed", runner.Clear(ctx, *runner.Plan.Node(id)))
		})
	default:
		return nil, fmt.Errorf("an un-barring has no phase %s", phase)
	}
	return x.keep(t), err
}

// prove is watch for nodes of which each may be left behind in the end. One that fails
// and runs on, or crashes again and again, is not passed by as one that is down is: it is
// said what leads there.
func (c *crew) prove(ctx context.Context, runner *rolling.Runner, id string) (Standing, error) {
	s, err := c.watch(ctx, runner, id)
	if err == nil || ofAll(err) {
		return s, err
	}
	if s = c.failed(ctx, id, err); s.State == Failed && !s.Down {
		s.Text += "; to go on without it it is stopped by hand (docker stop), then --waive members=REASON passes it by"
	}
	return s, nil
}

// ready looks whether every node runs, so that none is left behind at the moment.
func (x *unbar) ready(ctx context.Context) (Tally, error) {
	t := Tally{}
	for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
		switch {
		case !s.Reached:
			t[id] = Standing{State: Missing, Text: s.Why}
		case !s.runs():
			t[id] = Standing{State: Failed, Down: true, Text: "its node does not run"}
		default:
			t.finish(id, "runs, its successor is ready")
		}
	}
	return t, ctx.Err()
}

// comeUp waits for the nodes that are starting on the containers a roll is to replace,
// before the first is stopped: a stop before bring-up is not flushed, and a genesis node
// comes up while three others run.
func (c *crew) comeUp(ctx context.Context, r *Run, roll rolling.Plan) error {
	_, err := c.each(ctx, c.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		s, p := lookAt(ctx, c.fleet, id), roll.Node(id)
		if !s.Reached || !s.runs() || p == nil || s.Container != p.ContainerID {
			return Standing{}, ctx.Err()
		}
		return Standing{}, c.cameUp(ctx, r, id, s)
	})
	return err
}

// swapAll changes all nodes at once. Before the first it looks once more that none
// is left behind: a countdown lies in between.
func (x *unbar) swapAll(ctx context.Context, r *Run) (Tally, error) {
	if err := x.comeUp(ctx, r, x.plan.Unbar.Roll); err != nil {
		return Tally{}, err
	}
	if !r.Touched(ctx) {
		if t, err := x.ready(ctx); err != nil || len(x.open(r, t)) > 0 {
			return t, err
		}
		tip := rolling.FleetHeight(ctx, x.fleet, "", askLimit)
		if tip == nil {
			return nil, errors.New("no node's height can be read, so nobody could tell the new seals from the old")
		}
		if err := r.Record(ctx, stepMoment, fmt.Sprintf("the moment has come, the chain is at %d", *tip), *tip); err != nil {
			return nil, err
		}
	}
	here, away := x.here(ctx, r, Hold)
	runner := x.roll(ctx, r)
	return x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
		return Standing{State: Finished, Text: "its successor runs"}, runner.SwapIn(ctx, *runner.Plan.Node(id))
	})
}

// Undo removes the successors that were staged.
func (x *unbar) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	if phase != Prepare {
		return nil
	}
	return x.discard(ctx, r, x.roll(ctx, r))
}

// Returnable looks whether a successor runs anywhere.
func (x *unbar) Returnable(ctx context.Context, r *Run) error {
	return noReturn(swapped(ctx, x.roll(ctx, r)), "the new image runs on %s: the other nodes must follow, for until then the "+
		"two groups derive different committees; "+
		"qnetops resume %s. Where they cannot, qnetops abort %s --waive point_of_no_return=REASON closes the operation as it "+
		"stands", r.Op.ID(), r.Op.ID())
}

// Close clears the successors that did not start.
func (x *unbar) Close(ctx context.Context, r *Run) error { return x.closed(ctx, r, x.roll(ctx, r)) }

// Settle settles the steps in doubt by looking at the hosts.
func (x *unbar) Settle(ctx context.Context, r *Run) error { return x.roll(ctx, r).Settle(ctx) }

func (x *unbar) hosts(context.Context, *Run) []HostResult { return x.results(x.plan.Unbar.Roll) }
