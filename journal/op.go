package journal

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/qnetops/qnetops/internal/sqldb"
)

const (
	recordWait = 10 * time.Second // bound of writing an outcome when the caller's own context is already over
	maxError   = 8 << 10          // bytes of an error's text that are kept
)

// Op is one operation under one epoch. Once begun or resumed, several goroutines may use it.
type Op struct {
	store  *Store
	id     string
	epoch  uint64
	reader bool // from Store.Op and not resumed: it may be read, and finished or written only after Resume
}

// ID is the operation's name, such as roll-20260102T030405Z-1a2b.
func (o *Op) ID() string { return o.id }

// Record reads the operation with its steps.
func (o *Op) Record(ctx context.Context) (r Record, err error) {
	err = o.store.db.Read(ctx, func(tx *sqldb.Tx) error {
		found, err := readRecords(ctx, tx, `WHERE id = $1`, o.id)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return ErrNotFound
		}
		r = found[0]
		events, err := readEvents(ctx, tx, o.id)
		r.Steps = fold(events)
		return err
	})
	if err != nil {
		return Record{}, fmt.Errorf("reading operation %s: %w", o.id, err)
	}
	return r, nil
}

// Steps is the latest attempt of every step, in the order of their first intent.
func (o *Op) Steps(ctx context.Context) ([]StepRecord, error) {
	r, err := o.Record(ctx)
	return r.Steps, err
}

// Events is the whole journal of the operation, oldest first.
func (o *Op) Events(ctx context.Context) (out []Event, err error) {
	err = o.store.db.Read(ctx, func(tx *sqldb.Tx) error {
		events, err := readEvents(ctx, tx, o.id)
		for _, e := range events {
			out = append(out, e.Event)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading operation %s: %w", o.id, err)
	}
	return out, nil
}

// Resume takes the operation over under a lease's epoch, which must not be smaller than the one that wrote last. From then
// on the earlier writer gets ErrFenced. Steps it left without an outcome are in doubt (failed, where they only looked). The
// operation runs again.
func (o *Op) Resume(ctx context.Context, epoch uint64) error {
	err := o.store.db.Write(ctx, func(tx *sqldb.Tx) error {
		if err := o.guard(ctx, tx, epoch); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE qnetops_operation SET epoch = $2, state = 'running' WHERE id = $1`, o.id, int64(epoch)); err != nil {
			return err
		}
		next := &Op{store: o.store, id: o.id, epoch: epoch}
		if err := next.add(ctx, tx, entry{what: "resume"}); err != nil {
			return err
		}
		return next.doubtOpenSteps(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("resuming operation %s: %w", o.id, err)
	}
	o.epoch, o.reader = epoch, false
	return nil
}

// doubtOpenSteps writes down what is known of the steps an earlier writer left open.
func (o *Op) doubtOpenSteps(ctx context.Context, tx *sqldb.Tx) error {
	events, err := readEvents(ctx, tx, o.id)
	if err != nil {
		return err
	}
	for _, s := range fold(events) {
		if s.State != StepIntent {
			continue
		}
		e := entry{what: "outcome", step: s.ID, attempt: s.Attempt, state: StepInDoubt, err: "its process ended before the outcome was written"}
		if s.Looks {
			e.state = StepFailed
		}
		if err := o.add(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// guard locks the operation's row and refuses a finished operation and an epoch that another writer has overtaken.
func (o *Op) guard(ctx context.Context, tx *sqldb.Tx, epoch uint64) error {
	var now int64
	var state State
	err := tx.QueryRow(ctx, `SELECT epoch, state FROM qnetops_operation WHERE id = $1`+tx.ForUpdate(), o.id).Scan(&now, &state)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return err
	case uint64(now) > epoch:
		return fmt.Errorf("epoch %d, the operation is at %d: %w", epoch, now, ErrFenced)
	case state.Finished():
		return fmt.Errorf("it is %s: %w", state, ErrFinished)
	}
	return nil
}

// write runs fn in a transaction that proves this writer's right first. It is carried out although the caller's context is
// over: what happened must be written down. The bound keeps a dead store from holding the program.
func (o *Op) write(ctx context.Context, fn func(ctx context.Context, tx *sqldb.Tx) error) error {
	if o.reader {
		return errors.New("the operation was opened for reading; resume it under a lease first")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWait)
	defer cancel()
	return o.store.db.Write(ctx, func(tx *sqldb.Tx) error {
		if err := o.guard(ctx, tx, o.epoch); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}

// Do carries out a step: intent on disk, then fn, then the outcome on disk. What fn returns is kept as JSON.
//
// A step that is already done is passed over without calling fn (Steps has its result). One that is in doubt is refused with
// *InDoubtError until Settle. One that failed is tried again as the next attempt. fn's error is returned as it is, after the
// step was written down as failed, or as in doubt where the error is ErrUnknownOutcome or fn gave up because ctx ended.
// When the outcome cannot be written the answer is *InDoubtError, or ErrFenced where a newer epoch has taken over.
func (o *Op) Do(ctx context.Context, step Step, fn func(ctx context.Context) (any, error)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("step %s: not started: %w", step.ID, err)
	}
	attempt, skip, err := o.intend(ctx, step)
	if err != nil || skip {
		return err
	}
	result, failure := fn(ctx)
	out := entry{what: "outcome", step: step.ID, attempt: attempt, state: StepDone}
	if failure != nil {
		out.state, out.err = outcomeOf(ctx, step, failure), failure.Error()
	}
	var unwritable error
	if result != nil {
		if out.data, err = json.Marshal(result); err != nil {
			unwritable = fmt.Errorf("step %s: its result is not JSON: %w", step.ID, err)
		}
	}
	err = o.write(ctx, func(ctx context.Context, tx *sqldb.Tx) error { return o.add(ctx, tx, out) })
	switch {
	case errors.Is(err, ErrFenced):
		return fmt.Errorf("step %s of operation %s: %w", step.ID, o.id, errors.Join(err, failure))
	case err != nil:
		return &InDoubtError{Operation: o.id, Step: step.ID, Err: errors.Join(fmt.Errorf("writing down its outcome: %w", err), failure)}
	}
	if failure != nil {
		return failure
	}
	return unwritable
}

// outcomeOf sorts a failure: only an act that surely did not take place is "failed".
func outcomeOf(ctx context.Context, step Step, err error) StepState {
	cut := ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
	if !step.Looks && (cut || errors.Is(err, ErrUnknownOutcome)) {
		return StepInDoubt
	}
	return StepFailed
}

// intend writes the intent of the next attempt; skip means that the step is already done.
func (o *Op) intend(ctx context.Context, step Step) (attempt int, skip bool, err error) {
	if step.ID == "" {
		return 0, false, errors.New("a step needs an id")
	}
	err = o.write(ctx, func(ctx context.Context, tx *sqldb.Tx) error {
		last, err := o.last(ctx, tx, step.ID)
		if err != nil {
			return err
		}
		switch {
		case last == nil:
			attempt = 1
		case last.State == StepDone:
			skip = true
			return nil
		case last.State == StepFailed:
			attempt = last.Attempt + 1
		default:
			return &InDoubtError{Operation: o.id, Step: step.ID}
		}
		return o.add(ctx, tx, entry{what: "intent", step: step.ID, attempt: attempt, state: StepIntent, looks: step.Looks, title: step.Title})
	})
	var doubt *InDoubtError
	if err != nil && !errors.As(err, &doubt) {
		err = fmt.Errorf("step %s of operation %s: not started: %w", step.ID, o.id, err)
	}
	return attempt, skip, err
}

// last is the latest attempt of a step, nil where it was never begun.
func (o *Op) last(ctx context.Context, tx *sqldb.Tx, id string) (*StepRecord, error) {
	events, err := readEvents(ctx, tx, o.id, clean(id))
	if err != nil {
		return nil, err
	}
	if steps := fold(events); len(steps) > 0 {
		return &steps[0], nil
	}
	return nil, nil
}

// Settle writes down what looking at the world has shown about a step in doubt: done, failed (it did not happen, it may be
// tried again) or still in doubt. note says what was seen. A step that is not in doubt is left as it is and refused.
func (o *Op) Settle(ctx context.Context, stepID string, state StepState, note string, result any) error {
	var data []byte
	var err error
	if result != nil {
		if data, err = json.Marshal(result); err != nil {
			return fmt.Errorf("settling step %s: its result is not JSON: %w", stepID, err)
		}
	}
	if state != StepDone && state != StepFailed && state != StepInDoubt {
		return fmt.Errorf("settling step %s: %q is no outcome", stepID, state)
	}
	err = o.write(ctx, func(ctx context.Context, tx *sqldb.Tx) error {
		last, err := o.last(ctx, tx, stepID)
		if err != nil {
			return err
		}
		if last == nil || !last.unsettled() {
			return errors.New("it is not in doubt")
		}
		e := entry{what: "settle", step: stepID, attempt: last.Attempt, state: state, title: note, data: data}
		if state == StepFailed {
			e.err = last.Error
		}
		return o.add(ctx, tx, e)
	})
	if err != nil {
		return fmt.Errorf("settling step %s of operation %s: %w", stepID, o.id, err)
	}
	return nil
}

// Note adds an event that is no step, such as a barrier's verdicts. data is kept as JSON.
func (o *Op) Note(ctx context.Context, event string, data any) error {
	var text []byte
	var err error
	if data != nil {
		if text, err = json.Marshal(data); err != nil {
			return fmt.Errorf("noting %s: %w", event, err)
		}
	}
	err = o.write(ctx, func(ctx context.Context, tx *sqldb.Tx) error {
		return o.add(ctx, tx, entry{what: "note", title: event, data: text})
	})
	if err != nil {
		return fmt.Errorf("noting %s in operation %s: %w", event, o.id, err)
	}
	return nil
}

// Finish says where the operation ends for now: Done and Aborted for good, Stopped and InDoubt until somebody resumes it.
// Done and Aborted are refused with *InDoubtError while a step's outcome is not known.
func (o *Op) Finish(ctx context.Context, state State, summary string) error {
	if !state.Finished() && state != Stopped && state != InDoubt {
		return fmt.Errorf("finishing operation %s: %q is no end", o.id, state)
	}
	err := o.write(ctx, func(ctx context.Context, tx *sqldb.Tx) error {
		if state.Finished() {
			events, err := readEvents(ctx, tx, o.id)
			if err != nil {
				return err
			}
			for _, s := range fold(events) {
				if s.unsettled() {
					return &InDoubtError{Operation: o.id, Step: s.ID}
				}
			}
		}
		now := stamp(time.Now())
		if _, err := tx.Exec(ctx, `UPDATE qnetops_operation SET state = $2, summary = $3, finished_at = $4 WHERE id = $1`,
			o.id, string(state), clean(summary), sql.NullString{String: now, Valid: state.Finished()}); err != nil {
			return err
		}
		return o.add(ctx, tx, entry{what: "finish", state: StepState(state), title: summary})
	})
	if err != nil {
		return fmt.Errorf("finishing operation %s: %w", o.id, err)
	}
	return nil
}

// entry is a line to be added to the journal.
type entry struct {
	what    string
	step    string
	attempt int
	state   StepState
	looks   bool
	title   string
	err     string
	data    []byte
}

func (o *Op) add(ctx context.Context, tx *sqldb.Tx, e entry) error {
	looks := 0
	if e.looks {
		looks = 1
	}
	_, err := tx.Exec(ctx, `INSERT INTO qnetops_entry (op, at, epoch, what, step, attempt, state, looks, title, error, data)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		o.id, stamp(time.Now()), int64(o.epoch), e.what, clean(e.step), e.attempt, string(e.state), looks,
		clean(e.title), clean(shorten(e.err)), clean(string(e.data)))
	return err
}

func shorten(s string) string {
	if len(s) <= maxError {
		return s
	}
	return s[:maxError] + " …"
}
