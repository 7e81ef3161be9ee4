package cutover

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// Procedure is one kind of cut-over. Each of its methods settles by looking: it
// may be called by a process that knows nothing but the plan and the journal,
// with the fleet anywhere between untouched and finished.
type Procedure interface {
	// Do brings a phase to its end and tells how every host stands. An error holds
	// the operation in this phase; so does a tally in which a host has not finished.
	Do(ctx context.Context, r *Run, phase PhaseName) (Tally, error)
	// Undo takes a phase back on every host that has got into it.
	Undo(ctx context.Context, r *Run, phase PhaseName) error
	// Returnable refuses, by looking, once the point of no return has been passed;
	// the error says what leads on from there.
	Returnable(ctx context.Context, r *Run) error
	// Settle writes down what became of the steps whose outcome is not known.
	Settle(ctx context.Context, r *Run) error
}

// Steps of the whole fleet in the journal: a barrier passed, the way back taken, the
// operation given up beyond its point of no return.
const (
	stepBarrier = "fleet/"
	stepBack    = "fleet/back"
	stepClosing = "fleet/closing"
)

// Run is a cut-over under way. Its Runner has the steps, the journal, the fleet
// and the waivers of this process; the Runner's own plan is empty.
type Run struct {
	*rolling.Runner
	Session *rolling.Session
	Plan    Plan
}

// Waived returns the reason a check was waived with, in the plan or just now.
func (r *Run) Waived(check string) (string, bool) { return waived(check, r.Waivers, r.Plan.Waivers) }

// Passed says whether the barrier after a phase was passed.
func (r *Run) Passed(ctx context.Context, phase PhaseName) bool {
	return r.Result(ctx, stepBarrier+string(phase)) != nil
}

// barrierOf is the tally a barrier was passed with; empty where it was not.
func (r *Run) barrierOf(ctx context.Context, phase PhaseName) Tally {
	t := Tally{}
	if raw := r.Result(ctx, stepBarrier+string(phase)); raw != nil && json.Unmarshal(raw, &t) != nil {
		return Tally{}
	}
	return t
}

// Returning says whether the operation is on its way back.
func (r *Run) Returning(ctx context.Context) bool { return r.Result(ctx, stepBack) != nil }

// Closing says whether the operation is being closed as it stands, and why.
func (r *Run) Closing(ctx context.Context) (why string, begun bool) {
	raw := r.Result(ctx, stepClosing)
	var noted struct {
		Why string `json:"why"`
	}
	if raw != nil && json.Unmarshal(raw, &noted) != nil {
		noted.Why = "not readable"
	}
	return noted.Why, raw != nil
}

// Forward takes the operation through the phases that are not behind it.
func (r *Run) Forward(ctx context.Context, p Procedure) error {
	for _, phase := range r.Plan.Phases {
		if r.Passed(ctx, phase.Name) {
			continue
		}
		if phase.Name == r.Plan.AtPhase {
			if err := r.countdown(ctx, phase); err != nil {
				return err
			}
		}
		text := phase.Does
		if phase.NoReturn != "" {
			text += "; POINT OF NO RETURN: " + phase.NoReturn
		}
		r.Say(rolling.Event{Kind: rolling.KindNote, Name: string(phase.Name), State: "begun", Text: text})
		tally, err := p.Do(ctx, r, phase.Name)
		if err != nil {
			return err
		}
		if err := r.barrier(ctx, phase, tally); err != nil {
			return err
		}
	}
	return nil
}

// barrier lets the operation out of a phase, or holds it there.
func (r *Run) barrier(ctx context.Context, phase Phase, tally Tally) error {
	if open := Judge(r.Plan.Hosts, tally, membersWaived(r)); len(open) > 0 {
		return r.Held(phase.Name, open)
	}
	r.Say(rolling.Event{Kind: rolling.KindNote, Name: string(phase.Name), State: "done", Text: "barrier passed: " + tally.String()})
	return r.Record(ctx, stepBarrier+string(phase.Name), "barrier after "+string(phase.Name), tally)
}

// Held is the error of an operation that holds before the end of a phase.
func (r *Run) Held(phase PhaseName, open []string) error {
	id := r.Op.ID()
	return &rolling.StoppedError{Operation: id,
		Reason: fmt.Sprintf("held in phase %s, not finished: %s", phase, strings.Join(open, "; ")),
		Next: fmt.Sprintf("qnetops resume %s goes on from here; a host that will not come back, or whose node you have stopped, is "+
			"passed by with --waive members=REASON; qnetops abort %s goes back, while the point of no return is ahead", id, id)}
}

// countdown waits for the time the operator named, and says how long it is.
func (r *Run) countdown(ctx context.Context, phase Phase) error {
	at, err := time.Parse(time.RFC3339, r.Plan.At)
	if err != nil {
		return fmt.Errorf("the plan's start time: %w", err)
	}
	for {
		left := time.Until(at)
		if left <= 0 {
			r.Say(rolling.Event{Kind: rolling.KindNote, Name: string(phase.Name), Text: "the time has come; looking again before " +
				"anything is done"})
			return nil
		}
		r.Say(rolling.Event{Kind: rolling.KindWait, Name: string(phase.Name), State: string(observe.Unknown),
			Text: fmt.Sprintf("begins at %s, in %s", r.Plan.At, left.Round(time.Second))})
		if !wait(ctx, min(left, tick(left))) {
			return ctx.Err()
		}
	}
}

// tick is how often a countdown speaks: seldom when there is much time.
func tick(left time.Duration) time.Duration {
	switch {
	case left > time.Hour:
		return 10 * time.Minute
	case left > 2*time.Minute:
		return time.Minute
	case left > 10*time.Second:
		return 5 * time.Second
	}
	return time.Second
}

// Back undoes what was begun, the newest phase first, and ends the operation as
// aborted. That it is on the way back is journaled before the first undo: whoever
// resumes it then goes on going back.
func (r *Run) Back(ctx context.Context, p Procedure, why string) error {
	if !r.Returning(ctx) {
		if err := p.Returnable(ctx, r); err != nil {
			return err
		}
		if err := r.Record(ctx, stepBack, "go back", map[string]string{"why": why}); err != nil {
			return err
		}
	}
	for _, phase := range slices.Backward(r.Plan.Phases) {
		if err := p.Undo(ctx, r, phase.Name); err != nil {
			return err
		}
	}
	return r.Session.Finish(ctx, journal.Aborted, "taken back: "+why)
}

// end writes down how a run of the operation ended.
func (r *Run) end(ctx context.Context, cause error) error {
	if cause == nil {
		return r.Session.Finish(ctx, journal.Done, "every phase passed")
	}
	return r.Session.Stop(ctx, cause)
}
