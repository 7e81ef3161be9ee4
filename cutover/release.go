package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// release is the Procedure of the release of a halted fleet.
type release struct {
	plan  Plan
	fleet *fleet.Fleet

	mu    sync.Mutex
	last  Tally
	nodes map[string]rolling.NodeResult
}

func newRelease(plan Plan, f *fleet.Fleet) *release {
	return &release{plan: plan, fleet: f, last: Tally{}, nodes: map[string]rolling.NodeResult{}}
}

func (x *release) roll(r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Release.Roll)
	runner.From = &x.plan.Release.From
	return runner
}

// Do runs one phase.
func (x *release) Do(ctx context.Context, r *Run, phase PhaseName) (Tally, error) {
	switch phase {
	case Prepare:
		if err := x.roll(r).StageAll(ctx); err != nil {
			return nil, err
		}
		return x.all("its successor is ready"), nil
	case Hold:
		return x.halted(ctx)
	case Go:
		return x.start(ctx, r)
	case Verify:
		return x.watch(ctx, r)
	case Release:
		return x.clear(ctx, r)
	}
	return nil, fmt.Errorf("a release has no phase %s", phase)
}

func (x *release) all(text string) Tally {
	t := Tally{}
	for _, id := range x.plan.Hosts {
		t.finish(id, "%s", text)
	}
	x.last = t
	return t
}

// halted looks once more that no node runs.
func (x *release) halted(ctx context.Context) (Tally, error) {
	sights := lookAll(ctx, x.fleet, x.plan.Hosts)
	t := Tally{}
	for _, id := range x.plan.Hosts {
		switch s := sights[id]; {
		case !s.Reached:
			t[id] = Standing{State: Missing, Text: s.Why}
		case s.runs():
			t[id] = Standing{State: Failed, Text: "it runs again, by another hand: stop it, and see who started it"}
		default:
			t.finish(id, "halted, restart policy %s", s.Policy)
		}
	}
	x.last = t
	return t, ctx.Err()
}

// start swaps the successors in: the genesis hosts first and together, because
// they wait for each other, then the rest. Before the very first it looks again
// that the fleet is halted: a countdown may lie in between.
func (x *release) start(ctx context.Context, r *Run) (Tally, error) {
	if !r.Touched(ctx) {
		t, err := x.halted(ctx)
		_, members := r.Waived("members")
		if err != nil || len(Judge(x.plan.Hosts, t, members)) > 0 {
			return t, err
		}
	}
	var later []string
	for _, id := range x.plan.Hosts {
		if !slices.Contains(x.plan.Release.First, id) {
			later = append(later, id)
		}
	}
	t, err := x.each(ctx, r, x.plan.Release.First, Tally{}, x.swap)
	if err != nil {
		return t, err
	}
	return x.each(ctx, r, later, t, x.swap)
}

func (x *release) swap(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
	return "its successor runs", runner.SwapIn(ctx, p)
}

// each does one thing on several hosts at once and fills the tally. What concerns
// one host is its standing there; only a lost lease or an end is an error of all.
func (x *release) each(ctx context.Context, r *Run, ids []string, t Tally, do func(context.Context, *rolling.Runner, rolling.NodePlan) (string, error)) (Tally, error) {
	var (
		mu   sync.Mutex
		errs []error
	)
	runner := x.roll(r)
	runner.Together()
	var wg sync.WaitGroup // all of them: they are started together and wait for each other
	for _, id := range ids {
		wg.Go(func() {
			text, err := "", runner.TakeFence(ctx, id)
			if err == nil {
				text, err = do(ctx, runner, *runner.Plan.Node(id))
			}
			standing := Standing{State: Finished, Text: text}
			if err != nil {
				standing = x.failed(ctx, id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			t[id] = standing
			var fenced *host.FencedError
			var doubt *rolling.InDoubtError
			if errors.As(err, &fenced) || errors.As(err, &doubt) {
				errs = append(errs, fmt.Errorf("host %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	x.last = t
	return t, errors.Join(append(errs, ctx.Err(), r.Lease.Check(ctx))...)
}

// failed sorts a host that did not get there: one that cannot be reached, or one
// that was tried and failed.
func (x *release) failed(ctx context.Context, id string, err error) Standing {
	s := lookAt(context.WithoutCancel(ctx), x.fleet, id)
	if !s.Reached {
		return Standing{State: Missing, Text: err.Error()}
	}
	return Standing{State: Failed, Text: err.Error(), Down: !s.runs()}
}

// watch follows all nodes at once through their milestones.
func (x *release) watch(ctx context.Context, r *Run) (Tally, error) {
	return x.each(ctx, r, x.here(ctx, r), x.absent(ctx, r), func(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
		result, err := runner.Watch(ctx, p)
		x.mu.Lock()
		x.nodes[p.ID] = result
		x.mu.Unlock()
		return "passed M0 to M4", err
	})
}

// here are the hosts that got through go; absent those that were passed by with
// the waiver `members`, as they stood then.
func (x *release) here(ctx context.Context, r *Run) []string {
	away := x.absent(ctx, r)
	return slices.DeleteFunc(slices.Clone(x.plan.Hosts), func(id string) bool { _, gone := away[id]; return gone })
}

func (x *release) absent(ctx context.Context, r *Run) Tally {
	out := Tally{}
	for id, s := range r.barrierOf(ctx, Go) {
		if s.State != Finished {
			out[id] = s
		}
	}
	return out
}

// clear ends the stay of the old containers: the armed ones, and those from before
// the arming.
func (x *release) clear(ctx context.Context, r *Run) (Tally, error) {
	return x.each(ctx, r, x.here(ctx, r), x.absent(ctx, r), func(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) (string, error) {
		if _, err := runner.Archive(ctx, p); err != nil {
			return "", err
		}
		for _, name := range x.plan.Release.Asides[p.ID] {
			if err := x.finishAside(ctx, runner, p, name); err != nil {
				return "", err
			}
		}
		return "its old containers are archived and removed", nil
	})
}

func (x *release) finishAside(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan, name string) error {
	return runner.Step(ctx, p.ID, "clear", "archive the log of "+name+", remove it", func(ctx context.Context, w *host.Writer) (any, error) {
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
	return x.roll(r).DiscardAll(ctx)
}

// Returnable looks whether a successor runs anywhere.
func (x *release) Returnable(ctx context.Context, r *Run) error {
	runner := x.roll(r)
	var on []string
	for _, p := range x.plan.Release.Roll.Targets() {
		if runner.Swapped(ctx, p) {
			on = append(on, p.ID)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf("the new image has been started on %s and may have written blocks by its rules: the old one is not started again. "+
			"Mend what holds it and qnetops resume %s; if this image cannot run, close the operation as it stands with "+
			"--waive point_of_no_return=REASON and roll a better one with qnetops roll IMAGE --recovery-halted", strings.Join(on, ", "), r.Op.ID())}}}
}

// Settle settles the steps in doubt by looking at the hosts.
func (x *release) Settle(ctx context.Context, r *Run) error { return x.roll(r).Settle(ctx) }

func (x *release) hosts(context.Context, *Run) []HostResult {
	var out []HostResult
	for _, id := range x.plan.Hosts {
		res := HostResult{ID: id, State: Waiting, Text: "not begun", Milestones: []rolling.Milestone{}}
		if t, known := x.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if n, known := x.nodes[id]; known {
			res.Milestones = n.Milestones
		}
		if p := x.plan.Release.Roll.Node(id); p != nil && p.NextPolicy != nil && res.State == Finished {
			res.RestartPolicy = p.NextPolicy.Name
		}
		out = append(out, res)
	}
	return out
}
