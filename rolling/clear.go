package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/qnetops/qnetops/host"
)

// heldAs is the end of a replace of this operation that was held: the old container
// bears the node's name and is stopped for good, its successor did not start. nil
// where the node stands otherwise.
func heldAs(s host.Situation, p NodePlan) *host.ReplaceResult {
	if s.Unsettled || s.Current == nil || s.Current.ID != p.ContainerID || s.Current.Running() {
		return nil
	}
	for _, e := range slices.Backward(s.Entries) {
		if e.Outcome == "" {
			continue
		}
		if e.Outcome == host.Held && e.Result != nil && e.Result.OldID == p.ContainerID {
			return e.Result
		}
		return nil
	}
	return nil
}

// LeftoverError says that a container which the operation made, and which is of no
// use any more, is still on its host: in the way of the next plan, and with the
// variables it carries.
type LeftoverError struct {
	Operation, Node string
	Container       string // "": which one, if any, cannot be seen
	// Back says that the node is on its old container again, or that the roll is being aborted: then abort clears it, and a
	// resume would give the node its successor once more.
	Back bool
	Err  error
}

func (e *LeftoverError) Error() string {
	if e.Container == "" {
		return fmt.Sprintf("host %s: it cannot be seen whether a container that failed is left there: %v", e.Node, e.Err)
	}
	return fmt.Sprintf("host %s: container %s is left there, it cannot be archived and removed: %v", e.Node, e.Container, e.Err)
}

func (e *LeftoverError) Unwrap() error { return e.Err }

// Hint says what leads on.
func (e *LeftoverError) Hint() string {
	if e.Back {
		return clearBy("abort", e.Operation)
	}
	return clearNext(e.Operation)
}

func clearNext(op string) string { return clearBy("resume", op) }

func clearBy(command, op string) string {
	return fmt.Sprintf("mend what keeps it there, then qnetops %s %s clears it; with --waive leftover=REASON it stays, to be "+
		"removed by hand", command, op)
}

// onOld marks what is left beside a node that is on its old container again. Of a roll only abort leaves it there; a cut-over
// knows from its journal which way it goes, and a restore of its own goes on with nothing else.
func (r *Runner) onOld(ctx context.Context, err error) error {
	var left *LeftoverError
	if !errors.As(err, &left) {
		return err
	}
	record, readErr := r.Op.Record(context.WithoutCancel(ctx))
	left.Back = readErr == nil && record.Kind == kindRoll
	return err
}

// Clear ends the stay of what the operation has set aside on a node that runs its
// successor: the old container, and successors that failed before it.
func (r *Runner) Clear(ctx context.Context, p NodePlan) error {
	if _, err := r.Archive(ctx, p); err != nil && !r.Leaves(p.ID, err) {
		return err
	}
	return r.ClearFailed(ctx, p)
}

// ClearFailed archives the logs of the successors that failed and removes them, so
// that they are not in the way of the next roll; the archive keeps the evidence. One
// that cannot be cleared is a LeftoverError, unless it was waived by name just now.
func (r *Runner) ClearFailed(ctx context.Context, p NodePlan) error {
	s, err := r.situation(ctx, p)
	if err != nil { // unknown is not cleared: what may be left is named
		return r.leftover(p, "", err)
	}
	for _, name := range failedNames(s.Entries) {
		if err := r.clearOne(ctx, p, name); err != nil {
			if err := r.leftover(p, name, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// leftover is the error of a container that cannot be cleared, nil where that was waived.
func (r *Runner) leftover(p NodePlan, name string, err error) error {
	if r.Leaves(p.ID, err) {
		return nil
	}
	return &LeftoverError{Operation: r.Op.ID(), Node: p.ID, Container: name, Err: err}
}

// Leaves says that what cannot be cleared is left on purpose, and notes it. A waiver
// of the plan is none: it was for what an earlier operation had left.
func (r *Runner) Leaves(id string, err error) bool {
	if isGone(err) || isFenced(err) || errors.Is(err, context.Canceled) {
		return false
	}
	reason, given := r.waivedNow("leftover")
	if given {
		r.note(id+"/leftover", "left on the host ("+reason+"): "+err.Error())
	}
	return given
}

// waivedNow returns the reason a check was waived with by whoever took the operation up again, having seen how it stands; a
// waiver of the plan is not one.
func (r *Runner) waivedNow(check string) (string, bool) {
	if !r.Again {
		return "", false
	}
	return Plan{Waivers: r.Waivers}.waived(check)
}

func (r *Runner) clearOne(ctx context.Context, p NodePlan, name string) error {
	agent, err := agentAgain(ctx, r.Fleet, p.ID)
	if err != nil {
		return err
	}
	facts, err := agent.Facts(ctx, host.FactsRequest{Container: name})
	if err != nil || facts.Container == nil || facts.Container.Running() {
		return err
	}
	return r.step(ctx, p.ID, "clear", "archive the failed container's log, remove it", func(ctx context.Context,
		w *host.Writer) (any, error) {
		return w.Finish(ctx, host.FinishRequest{Container: p.Container, AsideName: name,
			LogDir: r.Fleet.Inventory().LogArchive}, r.tx(p))
	})
}

// failedNames are the names that an operation gave to successors that failed.
func failedNames(entries []host.TxEntry) (names []string) {
	for _, e := range entries {
		if e.Spec != nil && e.Spec.FailedName != "" && !slices.Contains(names, e.Spec.FailedName) {
			names = append(names, e.Spec.FailedName)
		}
	}
	return names
}
