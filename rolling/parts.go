package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
)

// The parts of a roll for who runs them on all nodes at once: a cut-over, whose
// nodes are all stopped while their containers are changed.

// StageAll pulls the image and creates every successor, and refuses what nothing
// explains. Nothing is stopped; what was staged stays for a second try.
func (r *Runner) StageAll(ctx context.Context) error {
	errs, diff := r.stageAll(ctx, r.targets())
	if len(diff) > 0 {
		errs = append(errs, &RefusedError{Checks: diff})
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (r *Runner) targets() []string {
	var ids []string
	for _, p := range r.Plan.Targets() {
		ids = append(ids, p.ID)
	}
	return ids
}

func (r *Runner) stageAll(ctx context.Context, ids []string) (errs []error, diff []observe.Check) {
	var mu sync.Mutex
	eachOf(ctx, ids, func(ctx context.Context, id string) {
		checks, err := r.prepareNode(ctx, *r.Plan.Node(id))
		mu.Lock()
		defer mu.Unlock()
		diff = append(diff, checks...)
		if err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return errs, diff
}

// DiscardAll removes every successor that was staged and not started.
func (r *Runner) DiscardAll(ctx context.Context) error { return r.all(ctx, r.Discard) }

// Discard removes the successor of one node that was staged and not started.
func (r *Runner) Discard(ctx context.Context, p NodePlan) error { return r.clearStaged(ctx, p) }

// SwapIn puts the staged successor in the place of a stopped node, from wherever
// the node stands; one that runs its successor already is left.
func (r *Runner) SwapIn(ctx context.Context, p NodePlan) error {
	situation, err := r.situation(ctx, p)
	if err != nil {
		return err
	}
	switch stageOf(situation, p) {
	case stageReplaced, stageRolled:
		return nil
	case stageUnclear:
		return &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "the containers on the host fit no step of this " +
			"operation: " + describe(situation)}
	}
	return r.swap(ctx, p)
}

// swap stages the successor once more, which must still match, and replaces.
func (r *Runner) swap(ctx context.Context, p NodePlan) error {
	report, err := r.stage(ctx, p)
	if err != nil {
		return err
	}
	if checks := explain(p, report, r.Plan); len(checks) > 0 {
		return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Err: &RefusedError{Checks: checks},
			Reason: "its successor no longer matches"}
	}
	done, err := r.replace(ctx, p)
	if err == nil && done.Outcome != host.Replaced {
		reason := "the successor did not start: " + done.Reason
		err = &StoppedError{Operation: r.Op.ID(), Node: p.ID, LastLines: tail(done.LastLines, 12), Reason: reason}
	}
	return err
}

// Swapped says whether a successor of this operation runs on the node, or may
// run: what cannot be told counts as yes.
func (r *Runner) Swapped(ctx context.Context, p NodePlan) bool {
	situation, err := r.situation(ctx, p)
	if err != nil {
		return r.stoppedBefore(ctx, p)
	}
	at := stageOf(situation, p)
	return at != stageWaiting && at != stageStaged || heldAs(situation, p) != nil
}

// Watch follows a node that runs its successor through its milestones. A node
// that fails is held.
func (r *Runner) Watch(ctx context.Context, p NodePlan) (NodeResult, error) {
	result := NodeResult{ID: p.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	situation, err := r.situation(ctx, p)
	if err != nil {
		return result, err
	}
	switch stageOf(situation, p) {
	case stageReplaced:
		return r.reenter(ctx, p, result, replacedAs(situation))
	case stageRolled:
		r.recall(ctx, p, situation.Current.ID, &result)
		result.Outcome = NodeRolled
		return result, nil
	}
	return result, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "it does not run its successor: " + describe(situation)}
}

// all runs fn on every target and joins the errors, each with its host.
func (r *Runner) all(ctx context.Context, fn func(context.Context, NodePlan) error) error {
	var (
		mu   sync.Mutex
		errs []error
	)
	eachOf(ctx, r.targets(), func(ctx context.Context, id string) {
		if err := fn(ctx, *r.Plan.Node(id)); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return errors.Join(errs...)
}

// Arm replaces node by node by an armed successor and keeps the old containers
// aside. It goes on from wherever the fleet stands.
func (r *Runner) Arm(ctx context.Context) ([]NodeResult, error) { return r.OneByOne(ctx) }

// OneByOne stages every successor and then replaces node by node under the quorum
// rule, each proven before the next is touched, as a roll does. It goes on from
// wherever the fleet stands.
func (r *Runner) OneByOne(ctx context.Context) ([]NodeResult, error) {
	doc := Document{}
	for _, p := range r.Plan.Nodes {
		doc.Nodes = append(doc.Nodes, NodeResult{ID: p.ID, Outcome: NodeUntouched, Reason: p.ActionWhy, Milestones: []Milestone{}})
	}
	if err := r.StageAll(ctx); err != nil {
		return doc.Nodes, err
	}
	err := r.roll(ctx, &doc)
	return doc.Nodes, err
}

// Disarm puts the old containers back, the last armed first, one node at a time
// under the quorum rule: what was staged is removed, what was armed runs without
// the variable and with the restart policy it had. A container that cannot be cleared
// away keeps no other node waiting; it is the error in the end.
func (r *Runner) Disarm(ctx context.Context) ([]NodeResult, error) {
	var (
		out  []NodeResult
		left []error
	)
	nodes := r.Plan.Targets()
	slices.Reverse(nodes)
	for _, p := range nodes {
		result, err := r.disarmNode(ctx, p)
		out = append(out, result)
		var kept *LeftoverError
		if errors.As(err, &kept) {
			left, err = append(left, kept), nil
		}
		if err == nil && r.Back != nil {
			err = r.Back(ctx, p)
		}
		if err != nil {
			return out, r.stopped(p.ID, err)
		}
	}
	if len(left) > 0 {
		return out, &StoppedError{Operation: r.Op.ID(), Reason: "what was armed is disarmed, and not all of it is cleared away",
			Next: clearNext(r.Op.ID()), Err: errors.Join(left...)}
	}
	return out, nil
}

func (r *Runner) disarmNode(ctx context.Context, p NodePlan) (NodeResult, error) {
	situation, err := r.situation(ctx, p)
	if err != nil || stageOf(situation, p) != stageReplaced {
		return r.abortNode(ctx, p)
	}
	result := NodeResult{ID: p.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	if err := r.settled(ctx, p); err != nil {
		return result, err
	}
	if err := r.mayStop(ctx, p); err != nil {
		return result, err
	}
	return r.undo(ctx, p, result)
}
