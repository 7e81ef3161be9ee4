package rolling

import (
	"context"
	"fmt"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
)

// Settle looks at every node that has a step in doubt and writes down what it
// finds. The fence must have been taken before: taking it waits for a local
// transaction in hand and settles what a dead agent left behind, so that what
// is seen here does not move any more. Nodes that cannot be reached keep their
// doubt and are named in the error.
func (r *Runner) Settle(ctx context.Context) error {
	record, err := r.Op.Record(ctx)
	if err != nil {
		return err
	}
	looked := map[string]bool{}
	for _, s := range record.Unsettled() {
		id, _, _ := strings.Cut(s.ID, "/")
		p := r.Plan.Node(id)
		if p == nil || looked[id] {
			continue
		}
		looked[id] = true
		situation, err := r.situation(ctx, *p)
		if err != nil {
			return &InDoubtError{Operation: r.Op.ID(), Node: id, Reason: "step " + s.ID + " may have happened and the host cannot be looked at", Err: err}
		}
		if err := r.settleNode(ctx, *p, situation); err != nil {
			return err
		}
	}
	return nil
}

// settleNode writes the outcome of every step in doubt of one node from what
// its host shows now.
func (r *Runner) settleNode(ctx context.Context, p NodePlan, s host.Situation) error {
	record, err := r.Op.Record(ctx)
	if err != nil {
		return err
	}
	for _, step := range record.Unsettled() {
		id, name, _ := strings.Cut(step.ID, "/")
		if id != p.ID {
			continue
		}
		name, _, _ = strings.Cut(name, "#")
		state, result := settledAs(name, s, p)
		if state == journal.StepInDoubt {
			return &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "step " + step.ID + ": " + describe(s)}
		}
		note := fmt.Sprintf("looked: %s", describe(s))
		if err := r.Op.Settle(context.WithoutCancel(ctx), step.ID, state, note, result); err != nil {
			return err
		}
		r.emit(Event{Node: p.ID, Kind: KindNote, Name: step.ID, State: string(state), Text: "settled by looking: " + describe(s)})
	}
	return nil
}

// settledAs decides whether a step happened. Pull, stage, discard and clear can
// be done again without harm, so they count as not done.
func settledAs(step string, s host.Situation, p NodePlan) (journal.StepState, any) {
	at := stageOf(s, p)
	switch step {
	case "replace", "putback", "finish":
	default:
		return journal.StepFailed, nil
	}
	if p.Aside != "" && !s.Unsettled && s.Current != nil {
		// A restore that died before its host began has no log there that would
		// name the container aside; which one bears the name says enough.
		if s.Current.ID == p.ContainerID {
			return journal.StepDone, nil
		}
		return journal.StepFailed, nil
	}
	if at == stageUnclear {
		return journal.StepInDoubt, nil
	}
	old := (at == stageWaiting || at == stageStaged) && heldAs(s, p) == nil
	switch step {
	case "replace":
		if at == stageReplaced {
			return journal.StepDone, replacedAs(s)
		}
		if at == stageRolled {
			return journal.StepDone, nil
		}
	case "putback":
		if old {
			return journal.StepDone, nil
		}
	case "finish":
		if at == stageRolled {
			return journal.StepDone, nil
		}
	}
	return journal.StepFailed, nil
}
