package rolling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
)

// Settle looks at every node that has a step in doubt and writes down what it
// finds. The fence must have been taken before: taking it waits for a local
// transaction in hand and settles what a dead agent left behind, so that what
// is seen here does not move any more. Nodes that cannot be reached keep their
// doubt and are named in the error, unless they are passed by in this process.
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
		if reason, given := r.waivedNow("members"); given && (isAway(err) || r.passed[id]) {
			if err := r.passBy(ctx, id, reason); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return r.cannotLook(record.Kind, id, s.ID, err)
		}
		if err := r.settleNode(ctx, *p, situation); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) cannotLook(kind, id, step string, err error) error {
	why := "step " + step + " may have happened and the host cannot be looked at"
	switch {
	case !isAway(err):
	case r.aborts || kind == kindRoll || kind == kindRestore: // a resume of these goes past no host
		why += " (where its machine is lost, qnetops abort " + r.Op.ID() + " --waive members=REASON passes it by)"
	default:
		why += " (where its machine is lost, --waive members=REASON passes it by)"
	}
	return &InDoubtError{Operation: r.Op.ID(), Node: id, Reason: why, Err: err}
}

// passBy settles the steps in doubt of a host that is gone, as not done: its machine may never come back, and no way out may
// rest on it. What its own agents had in hand they have ended by themselves.
func (r *Runner) passBy(ctx context.Context, id, reason string) error {
	record, err := r.Op.Record(ctx)
	if err != nil {
		return err
	}
	note := "the host cannot be reached; passed by: " + reason
	for _, step := range record.Unsettled() {
		if of, _, _ := strings.Cut(step.ID, "/"); of != id {
			continue
		}
		if err := r.Op.Settle(context.WithoutCancel(ctx), step.ID, journal.StepFailed, note, nil); err != nil {
			return err
		}
		r.emit(Event{Node: id, Kind: KindNote, Name: step.ID, State: string(journal.StepFailed), Text: note})
	}
	return nil
}

// isAway says that a host could not be spoken to, or fell silent, or is another machine now; what it answered itself is none
// of that.
func isAway(err error) bool {
	var (
		away    *fleet.UnreachableError
		slow    *fleet.TimeoutError
		dropped *fleet.DroppedError
		other   *fleet.HostKeyError
	)
	return errors.As(err, &away) || errors.As(err, &slow) || errors.As(err, &dropped) || errors.As(err, &other) || isGone(err) ||
		errors.Is(err, context.DeadlineExceeded) // of one dial
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
		// name the container aside; which one bears the name, and that it runs, says
		// enough: where a replace was held the old one bears it, stopped, all along.
		if s.Current.ID == p.ContainerID && s.Current.Running() {
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
