package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/qnetops/qnetops/host"
)

// Abort ends an operation without going on: the node in flight is put back,
// staged successors are removed, finished nodes stay as they are.
func (r *Runner) Abort(ctx context.Context) (Document, error) {
	doc := Document{Schema: docSchema, Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	var errs []error
	for _, p := range r.Plan.Nodes {
		result := NodeResult{ID: p.ID, Outcome: NodeUntouched, Reason: p.ActionWhy, Milestones: []Milestone{}}
		if p.Action == ActionReplace {
			var err error
			result, err = r.abortNode(ctx, p)
			if err != nil {
				var left *LeftoverError
				if errors.As(err, &left) {
					left.Back = true // a resume would go on with what is being aborted
				}
				errs = append(errs, fmt.Errorf("host %s: %w", p.ID, err))
			}
		}
		doc.Nodes = append(doc.Nodes, result)
	}
	return doc, errors.Join(errs...)
}

func (r *Runner) abortNode(ctx context.Context, p NodePlan) (NodeResult, error) {
	result := NodeResult{ID: p.ID, Outcome: NodeUntouched, Milestones: []Milestone{}}
	situation, err := r.situation(ctx, p)
	switch away := r.passes(p.ID, err); {
	case (err != nil || away) && !r.stoppedBefore(ctx, p):
		result.Reason = "never stopped by this operation and cannot be reached now; a staged successor may be left there"
		return result, nil
	case away:
		return r.passNode(ctx, p, result), nil
	case err != nil:
		return result, r.away(err)
	}
	at, held := stageOf(situation, p), heldAs(situation, p) != nil
	if !held && (at == stageWaiting || at == stageStaged) && r.stoppedBefore(ctx, p) && !situation.Current.Running() {
		return result, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "the node was stopped and nothing runs: " + describe(situation)}
	}
	switch at {
	case stageStaged:
		if err := r.discard(ctx, p, situation.Next.Name); err != nil {
			return result, err
		}
	case stageWaiting:
		if err := r.discardLost(ctx, p); err != nil {
			return result, err
		}
	case stageRolled:
		result.Outcome = NodeRolled
		r.recall(ctx, p, situation.Current.ID, &result)
		if len(result.Milestones) == 0 || firstFailed(result.Milestones) != nil {
			result.Outcome, result.Reason = NodeHeld, "it runs the new container, which has not proven itself, and there is no old one to go back to"
		}
		return result, nil
	case stageReplaced:
		r.recall(ctx, p, situation.Current.ID, &result)
		if len(result.Milestones) > 0 && firstFailed(result.Milestones) == nil {
			// Only the old container is still to go; finish leaves it where a
			// milestone had been skipped.
			return r.finish(ctx, p, result)
		}
		return r.undo(ctx, p, result)
	default:
		return r.abortUnclear(ctx, p, situation, result)
	}
	switch {
	case held && r.NoPutBack: // what makes it stay down is not over with the operation
		result.Outcome, result.Reason = NodeHeld, "its successor did not start, and its old container is not started again"
		return result, nil
	case held:
		return r.undo(ctx, p, result)
	}
	return r.backAgain(ctx, p, situation, result)
}

// abortUnclear ends the stay of an operation on a node that somebody else has
// worked on since: what is ours there is taken back, what is theirs is left.
func (r *Runner) abortUnclear(ctx context.Context, p NodePlan, s host.Situation, result NodeResult) (NodeResult, error) {
	switch {
	case s.Unsettled:
	case s.Aside != nil && s.Aside.ID == p.ContainerID && s.Current == nil:
		return r.undo(ctx, p, result)
	case s.Current.Running() && s.Current.ID != p.ContainerID && s.Aside == nil:
		result.Reason = "its container was replaced by somebody else and is left as it is"
		if s.Next == nil {
			return result, nil
		}
		return result, r.discard(ctx, p, s.Next.Name)
	}
	return result, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: describe(s)}
}

// discardLost removes a successor of which the host's log says nothing: the
// engine made it after the agent had died.
func (r *Runner) discardLost(ctx context.Context, p NodePlan) error {
	if !r.begun(ctx, p.ID+"/stage") {
		return nil
	}
	return r.discard(ctx, p, r.nextName(p))
}

// begun says whether a step was ever begun in this operation.
func (r *Runner) begun(ctx context.Context, step string) bool {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return true // unknown is not fine
	}
	for _, s := range steps {
		if isStep(s.ID, step) {
			return true
		}
	}
	return false
}

// discard removes a staged successor.
func (r *Runner) discard(ctx context.Context, p NodePlan, name string) error {
	return r.step(ctx, p.ID, "discard", "remove the staged successor", func(ctx context.Context, w *host.Writer) (any, error) {
		err := w.Discard(ctx, name)
		if errors.Is(err, host.ErrNotFound) {
			err = nil
		}
		return nil, err
	})
}

// backAgain ends the abort of a node that runs its old container. One that was
// replaced and put back is called restored only on proof, from an earlier run
// or by watching it now.
func (r *Runner) backAgain(ctx context.Context, p NodePlan, s host.Situation, result NodeResult) (NodeResult, error) {
	if !r.stoppedBefore(ctx, p) {
		return result, nil
	}
	r.recall(ctx, p, "", &result)
	var seen proof
	if raw := r.result(ctx, p.ID+"/restored"); raw != nil && json.Unmarshal(raw, &seen) == nil && seen.Container == s.Current.ID {
		result.Outcome, result.Reason = NodeRestored, "put back before the abort"
		return result, r.ClearFailed(ctx, p)
	}
	at := s.Current.StartedAt
	return wanted(r.restored(ctx, p, result, host.ReplaceResult{Outcome: host.PutBack, OldID: s.Current.ID, StartedAt: at, StoppedAt: at}, "aborted"))
}

// wanted is the end of a way back that was asked for: that the node is on its old
// container again is no failure there, that something is left on its host is.
func wanted(result NodeResult, err error) (NodeResult, error) {
	var stop *StoppedError
	if result.Outcome == NodeRestored && errors.As(err, &stop) {
		return result, stop.Err
	}
	return result, err
}

// stoppedBefore says whether this operation ever began to replace the node.
func (r *Runner) stoppedBefore(ctx context.Context, p NodePlan) bool {
	return r.begun(ctx, p.ID+"/replace")
}

// undo puts the old container of the node in flight back.
func (r *Runner) undo(ctx context.Context, p NodePlan, result NodeResult) (NodeResult, error) {
	done, err := r.PutBack(ctx, p)
	if err != nil {
		result.Outcome = NodeHeld
		return result, err
	}
	return wanted(r.restored(ctx, p, result, done, "aborted"))
}

// FinishAll archives and removes the old containers that were kept because a
// milestone had been skipped.
func (r *Runner) FinishAll(ctx context.Context) ([]Finished, error) {
	var out []Finished
	for _, p := range r.Plan.Targets() {
		done, err := r.Archive(ctx, p)
		if err == nil {
			err = r.ClearFailed(ctx, p)
		}
		if err != nil {
			return out, fmt.Errorf("host %s: %w", p.ID, err)
		}
		if done.Archive != "" {
			out = append(out, Finished{Node: p.ID, FinishResult: done})
		}
	}
	return out, nil
}

// looksAfterAbort reads every target once more: each must run exactly its old
// or its new container, or the abort has not ended.
func (r *Runner) looksAfterAbort(ctx context.Context, doc *Document) error {
	for _, p := range r.Plan.Targets() {
		touched := r.result(ctx, p.ID+"/replace") != nil
		situation, err := r.situation(ctx, p)
		if err != nil {
			if !touched || r.passed[p.ID] {
				continue // it was never stopped, or passed by; that it cannot be reached now is for status
			}
			return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the last look after the abort failed", Err: err}
		}
		if touched && !situation.Current.Running() {
			return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "after the abort no container runs: " + describe(situation)}
		}
	}
	return nil
}
