package rolling

import (
	"context"
	"fmt"

	"github.com/qnetops/qnetops/lease"
)

// AwayError says that an operation that was taken up again needs a host that cannot be reached.
type AwayError struct {
	Operation string
	Err       error
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("operation %s: a host whose node it has in hand cannot be reached: %v", e.Operation, e.Err)
}

func (e *AwayError) Unwrap() error { return e.Err }

// Hint names the way out where the machine is gone for good.
func (e *AwayError) Hint() string {
	return fmt.Sprintf("bring the host back and run the same command again; where it will not come back, qnetops abort %s "+
		"--waive members=REASON passes it by and ends the operation without it", e.Operation)
}

// away names the way out where an error is that a host is away.
func (r *Runner) away(err error) error {
	if err == nil || isFenced(err) || !isAway(err) {
		return err
	}
	return &AwayError{Operation: r.Op.ID(), Err: err}
}

// fenceAgain is fenceFor of an operation that is taken up again. Where that is waived now an abort goes past the hosts that
// cannot be reached: a machine that is gone must not keep the others from being put back.
func (o *Operations) fenceAgain(ctx context.Context, held lease.Lease, r *Runner) error {
	if _, given := r.waivedNow("members"); !r.aborts || !given {
		return r.away(o.fenceFor(ctx, held, r.Op, r.Plan))
	}
	token, err := held.Raise(ctx, 0, r.Op.ID())
	if err != nil {
		return err
	}
	must, err := o.must(ctx, r.Op, r.Plan)
	if err != nil {
		return err
	}
	if err := TakeFences(ctx, o.Fleet, token, nil); err != nil {
		return err
	}
	for _, id := range must { // taken twice is the same as once; it dials again where the first connection failed
		err := r.TakeFence(ctx, id)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && (isFenced(err) || !r.passes(id, err)) {
			return fmt.Errorf("host %s: %w", id, err)
		}
	}
	return nil
}

// passes says whether an abort goes past a host: it cannot be reached, and whoever aborts has waived that now, or it was gone
// past before.
func (r *Runner) passes(id string, err error) bool {
	if _, given := r.waivedNow("members"); given && r.aborts && isAway(err) {
		if r.passed == nil {
			r.passed = map[string]bool{}
		}
		r.passed[id] = true
	}
	return r.passed[id]
}

// passNode is the end of an abort on a node that it goes past, from what the journal knows.
func (r *Runner) passNode(ctx context.Context, p NodePlan, result NodeResult) NodeResult {
	reason, _ := r.waivedNow("members")
	result.Outcome, result.Reason = NodeHeld, "its host cannot be reached; the node was stopped by this operation and may be down or "+
		"run either container; passed by: "+reason
	if r.result(ctx, p.ID+"/finish") != nil {
		result.Outcome, result.Reason = NodeRolled, "its host cannot be reached; the node had been rolled before; passed by: "+reason
	}
	r.emit(Event{Node: p.ID, Kind: KindNote, Name: "abort", State: result.Outcome, Text: result.Reason})
	return result
}
