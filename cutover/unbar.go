package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// unbar is the Procedure of a change of the image on all nodes at one moment.
type unbar struct {
	plan  Plan
	fleet *fleet.Fleet

	mu    sync.Mutex
	last  Tally
	nodes map[string]rolling.NodeResult
}

func newUnbar(plan Plan, f *fleet.Fleet) *unbar {
	return &unbar{plan: plan, fleet: f, last: Tally{}, nodes: map[string]rolling.NodeResult{}}
}

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
		t, err = x.each(ctx, r, func(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
			result, err := runner.Watch(ctx, p)
			x.mu.Lock()
			x.nodes[p.ID] = result
			x.mu.Unlock()
			return "passed M0 to M4", err
		})
	case Release:
		t, err = x.each(ctx, r, func(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
			_, err := runner.Archive(ctx, p)
			return "its old container is archived and removed", err
		})
	default:
		return nil, fmt.Errorf("an un-barring has no phase %s", phase)
	}
	x.last = t
	return t, err
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

// swapAll changes all nodes at once. Before the first it looks once more that none
// is left behind: a countdown lies in between.
func (x *unbar) swapAll(ctx context.Context, r *Run) (Tally, error) {
	if !r.Touched(ctx) {
		t, err := x.ready(ctx)
		_, members := r.Waived("members")
		if err != nil || len(Judge(x.plan.Hosts, t, members)) > 0 {
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
	return x.each(ctx, r, func(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
		return "its successor runs", runner.SwapIn(ctx, p)
	})
}

// each does one thing on all hosts that got through go, at once.
func (x *unbar) each(ctx context.Context, r *Run, do func(context.Context, *rolling.Runner, rolling.NodePlan) (string, error)) (Tally, error) {
	var (
		mu   sync.Mutex
		errs []error
	)
	t := passedBy(ctx, r, Hold, Go)
	here := slices.DeleteFunc(slices.Clone(x.plan.Hosts), func(id string) bool { _, gone := t[id]; return gone })
	runner := x.roll(ctx, r)
	rolling.Each(ctx, here, func(ctx context.Context, id string) {
		text, err := do(ctx, runner, *runner.Plan.Node(id))
		s := Standing{State: Finished, Text: text}
		if err != nil {
			at := lookAt(context.WithoutCancel(ctx), x.fleet, id)
			if s = (Standing{State: Failed, Text: err.Error(), Down: at.Reached && !at.runs()}); !at.Reached {
				s.State = Missing
			}
		}
		mu.Lock()
		defer mu.Unlock()
		t[id] = s
		if err != nil && ofAll(err) {
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return t, errors.Join(append(errs, ctx.Err(), r.Lease.Check(ctx))...)
}

// Undo removes the successors that were staged.
func (x *unbar) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	if phase != Prepare {
		return nil
	}
	return x.roll(ctx, r).DiscardAll(ctx)
}

// Returnable looks whether a successor runs anywhere.
func (x *unbar) Returnable(ctx context.Context, r *Run) error {
	runner := x.roll(ctx, r)
	var on []string
	for _, p := range x.plan.Unbar.Roll.Targets() {
		if runner.Swapped(ctx, p) {
			on = append(on, p.ID)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf("the new image runs on %s: the other nodes must follow, for until then the two groups derive different committees; qnetops resume %s. "+
			"To close the operation as it stands: --waive point_of_no_return=REASON", strings.Join(on, ", "), r.Op.ID())}}}
}

// Settle settles the steps in doubt by looking at the hosts.
func (x *unbar) Settle(ctx context.Context, r *Run) error { return x.roll(ctx, r).Settle(ctx) }

func (x *unbar) hosts(context.Context, *Run) []HostResult {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []HostResult
	for _, id := range x.plan.Hosts {
		res := HostResult{ID: id, State: Waiting, Text: "not begun", Milestones: []rolling.Milestone{}}
		if t, known := x.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if n, known := x.nodes[id]; known {
			res.Milestones = n.Milestones
		}
		out = append(out, res)
	}
	return out
}
