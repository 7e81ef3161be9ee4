package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// Kinds of cut-overs in the journal.
const (
	KindHalt     = "halt"
	KindRelease  = "halt-release"
	KindRollback = "rollback"
	KindDecree   = "decree"
	KindRestart  = "restart"
	KindUnbar    = "unbar"
)

// Kinds lists the kinds of operations that Resume and Abort here know.
func Kinds() []string {
	return []string{KindHalt, KindRelease, KindRollback, KindDecree, KindRestart, KindUnbar}
}

// Operations runs whole cut-overs, with the fleet, the journal and the lease of
// the rolls.
type Operations struct {
	*rolling.Operations
}

// Proposal is a plan with what speaks for and against it now.
type Proposal struct {
	Plan   Plan
	Checks []observe.Check
}

// Refused returns the refusal of the plan, or nil.
func (p Proposal) Refused() error { return refused(p.Checks, p.Plan.Waivers) }

// Document is the answer of a command that runs a cut-over (qnetops/cutover/v1).
type Document struct {
	Schema     string `json:"schema"`
	Operation  string `json:"operation"`
	Kind       string `json:"kind"`
	PlanDigest string `json:"plan_digest"`
	// Outcome is done, stopped, in_doubt or aborted.
	Outcome string        `json:"outcome"`
	Phases  []PhaseResult `json:"phases"`
	Hosts   []HostResult  `json:"hosts"`
	// Spread is the distance between the lowest and the highest height a node
	// stopped at, in blocks; nil where that is not the point or not known.
	Spread *uint64 `json:"spread"`
	// Chain is how the chain went on, where that is the point (rollback, decree).
	Chain *Chain `json:"chain,omitempty"`
}

// PhaseResult says whether the barrier after a phase was passed.
type PhaseResult struct {
	Name   PhaseName `json:"name"`
	Passed bool      `json:"passed"`
}

// HostResult is what became of one host. A nil pointer is not known.
type HostResult struct {
	ID            string              `json:"id"`
	State         State               `json:"state"` // in the last phase that was worked on
	Text          string              `json:"text"`
	StopHeight    *uint64             `json:"stop_height"`
	Flushed       *bool               `json:"flushed"`
	RestartPolicy string              `json:"restart_policy"`
	Milestones    []rolling.Milestone `json:"milestones"`
	Rollback      *RollbackResult     `json:"rollback,omitempty"`
	Decree        *DecreeResult       `json:"decree,omitempty"`
}

// outcomeAborted is an operation that was taken back.
const outcomeAborted = "aborted"

const docSchema = "qnetops/cutover/v1"

// schemaOf names the document of a kind.
func schemaOf(kind string) string {
	switch kind {
	case KindRollback:
		return "qnetops/rollback/v1"
	case KindDecree:
		return "qnetops/decree/v1"
	}
	return docSchema
}

// kept is a procedure that tells about its hosts for the document.
type kept interface {
	Procedure
	hosts(ctx context.Context, r *Run) []HostResult
}

// closer is a procedure that has something to take away before an operation is
// closed beyond its point of no return.
type closer interface {
	Close(ctx context.Context, r *Run) error
}

func (o *Operations) procedure(plan Plan) (kept, error) {
	switch {
	case plan.Kind == KindHalt && plan.Halt != nil:
		return &halt{plan: plan, fleet: o.Fleet}, nil
	case plan.Kind == KindRelease && plan.Release != nil:
		return newRelease(plan, o.Fleet), nil
	case plan.Kind == KindRollback && plan.Rollback != nil:
		return newRollback(plan, o.Fleet), nil
	case plan.Kind == KindDecree && plan.Decree != nil:
		return newDecree(plan, o.Fleet), nil
	case plan.Kind == KindRestart && plan.Restart != nil:
		return newRestart(plan, o.Fleet), nil
	case plan.Kind == KindUnbar && plan.Unbar != nil:
		return newUnbar(plan, o.Fleet), nil
	}
	return nil, fmt.Errorf("a plan of kind %q is not known here", plan.Kind)
}

// Execute runs a plan that was printed and confirmed. again makes the proposal
// anew under the lease: the same plan, and nothing against it, or nothing is done.
func (o *Operations) Execute(ctx context.Context, plan Plan, again func(context.Context) (Proposal, error)) (Document,
	error) {
	doc := newDocument("", plan)
	proc, err := o.procedure(plan)
	if err != nil {
		return doc, err
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		return doc, err
	}
	spec := journal.Spec{Kind: plan.Kind, Plan: raw, PlanDigest: plan.Digest()}
	for _, w := range plan.Waivers {
		spec.Waivers = append(spec.Waivers, journal.Waiver{Check: w.Check, Reason: w.Reason, By: o.Operator})
	}
	err = o.Begin(ctx, spec, func(ctx context.Context, s *rolling.Session) error {
		doc.Operation = s.Op.ID()
		now, err := again(ctx)
		if err == nil && now.Plan.Digest() != plan.Digest() {
			err = &rolling.PlanChangedError{Printed: plan.Digest(), Now: now.Plan.Digest()}
		}
		if err == nil {
			err = now.Refused()
		}
		if err != nil {
			return s.Nothing(ctx, err)
		}
		r := &Run{Runner: s.Runner(rolling.Plan{}), Session: s, Plan: plan}
		err = r.Forward(ctx, proc)
		if cause := untouched(ctx, r, err); cause != nil && !isOut(ctx, r, proc) {
			// Nothing was stopped: the fleet is left as it was found.
			return o.leave(ctx, r, proc, cause)
		}
		return o.conclude(ctx, r, proc, &doc, err)
	})
	return doc, o.outcome(&doc, err)
}

// leave takes back what a run began that failed before any node was stopped. Where that
// does not go now, such as with a host that is away, the operation stays open.
func (o *Operations) leave(ctx context.Context, r *Run, proc kept, cause error) error {
	err := proc.Settle(ctx, r)
	if err == nil {
		err = r.Back(ctx, proc, cause.Error())
	}
	if err == nil {
		return cause
	}
	var doubt *rolling.InDoubtError
	if errors.As(err, &doubt) {
		return r.end(ctx, errors.Join(err, cause)) // the hint of the first is shown
	}
	return r.end(ctx, &rolling.StoppedError{Operation: r.Op.ID(),
		Reason: "no node was stopped, and what had been made ready is not all taken back", Err: errors.Join(cause, err)})
}

// isOut says whether a cut-over that stops no node itself has let its change out.
func isOut(ctx context.Context, r *Run, proc kept) bool {
	p, ok := proc.(interface {
		accepted(ctx context.Context, r *Run) bool
	})
	return ok && p.accepted(ctx, r)
}

// stopsBegun says whether a node was ever stopped by this operation.
func stopsBegun(ctx context.Context, r *Run) bool {
	return slices.ContainsFunc(r.Plan.Hosts, func(id string) bool { return stepBegun(ctx, r, id, string(actStop)) })
}

// untouched is the cause of a run that failed before any node was stopped and that
// there is no use in resuming; nil otherwise.
func untouched(ctx context.Context, r *Run, err error) error {
	var (
		late    *TooLateError
		stopped *rolling.StoppedError
		doubt   *rolling.InDoubtError
	)
	switch {
	case err == nil, ctx.Err() != nil, r.Touched(ctx), stopsBegun(ctx, r):
		return nil
	case errors.As(err, &late):
		return late
	case errors.As(err, &stopped), errors.As(err, &doubt):
		return nil
	}
	return err
}

// conclude goes back by itself where the procedure says so, looks at the hosts
// and writes down how the operation stands.
func (o *Operations) conclude(ctx context.Context, r *Run, proc kept, doc *Document, err error) error {
	var late *TooLateError
	if errors.As(err, &late) {
		if back := r.Back(ctx, proc, late.Error()); back != nil {
			err = r.end(ctx, errors.Join(back, err))
		} else {
			err = &rolling.StoppedError{Operation: r.Op.ID(), Reason: late.Error() + "; what was armed is disarmed again",
				Next: late.Hint()}
		}
		o.look(ctx, r, proc, doc)
		return err
	}
	o.look(ctx, r, proc, doc)
	return r.end(ctx, err)
}

// look fills the document from what is journaled and seen at the end.
func (o *Operations) look(ctx context.Context, r *Run, proc kept, doc *Document) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	doc.Phases = doc.Phases[:0]
	for _, p := range r.Plan.Phases {
		doc.Phases = append(doc.Phases, PhaseResult{p.Name, r.Passed(ctx, p.Name)})
	}
	doc.Hosts = proc.hosts(ctx, r)
	o.untold(ctx, doc.Hosts)
	doc.Spread = spread(doc.Hosts)
	if c, ok := proc.(interface{ chain() *Chain }); ok {
		doc.Chain = c.chain()
	}
}

// notBegun is what a procedure says of a host that it has not worked on in this
// process.
const notBegun = "not begun"

// untold says of the hosts that this process has not come to what is seen of them: an
// operator decides by it.
func (o *Operations) untold(ctx context.Context, hosts []HostResult) {
	var ids []string
	for _, h := range hosts {
		if h.Text == notBegun || h.Text == "" {
			ids = append(ids, h.ID)
		}
	}
	sights := lookAll(ctx, o.Fleet, ids)
	for i, h := range hosts {
		s, asked := sights[h.ID]
		switch {
		case !asked:
		case !s.Reached:
			hosts[i].State, hosts[i].Text = Missing, "cannot be seen: "+s.Why
		case s.runs():
			hosts[i].Text = "its node runs, restart policy " + s.Policy
		default:
			hosts[i].Text = fmt.Sprintf("its node is down, exit code %d, restart policy %s", s.ExitCode, s.Policy)
		}
	}
}

func newDocument(id string, plan Plan) Document {
	doc := Document{Schema: schemaOf(plan.Kind), Operation: id, Kind: plan.Kind, PlanDigest: plan.Digest(),
		Outcome: rolling.OutcomeStopped,
		Phases:  []PhaseResult{}, Hosts: []HostResult{}}
	for _, p := range plan.Phases {
		doc.Phases = append(doc.Phases, PhaseResult{Name: p.Name})
	}
	for _, id := range plan.Hosts {
		doc.Hosts = append(doc.Hosts, HostResult{ID: id, State: Waiting, Text: notBegun, Milestones: []rolling.Milestone{}})
	}
	return doc
}

// outcome names the end in the document and passes the error on.
func (o *Operations) outcome(doc *Document, err error) error {
	var doubt *rolling.InDoubtError
	switch {
	case errors.As(err, &doubt):
		doc.Outcome = rolling.OutcomeInDoubt
	case err != nil:
		doc.Outcome = rolling.OutcomeStopped
	case doc.Outcome != outcomeAborted:
		doc.Outcome = rolling.OutcomeDone
	}
	return err
}

// Resume goes on with a cut-over from what is really on the hosts: forward, back where it was being taken back, or with its
// closing where that was begun.
func (o *Operations) Resume(ctx context.Context, id string) (Document, error) {
	return o.goOn(ctx, id, func(ctx context.Context, r *Run, proc kept, doc *Document) error {
		if why, closing := r.Closing(ctx); closing {
			return o.closeAsItStands(ctx, r, proc, doc, why)
		}
		if r.Returning(ctx) {
			return o.back(ctx, r, proc, doc, "resumed on its way back")
		}
		return o.conclude(ctx, r, proc, doc, r.Forward(ctx, proc))
	})
}

// Abort takes a cut-over back while its point of no return is ahead. With the
// waiver `point_of_no_return` an operation beyond it is closed as it stands.
func (o *Operations) Abort(ctx context.Context, id string) (Document, error) {
	return o.goOn(ctx, id, func(ctx context.Context, r *Run, proc kept, doc *Document) error {
		why, closing := r.Closing(ctx)
		if reason, ok := waived("point_of_no_return", o.Waivers); ok && !closing && !r.Returning(ctx) && proc.Returnable(ctx, r) != nil {
			why, closing = reason, true
		}
		if closing {
			return o.closeAsItStands(ctx, r, proc, doc, why)
		}
		return o.back(ctx, r, proc, doc, "aborted")
	})
}

// closeAsItStands ends an operation beyond its point of no return. That it is being closed is journaled first: whoever takes
// it up then goes on closing, where going forward would do once more what was given up.
func (o *Operations) closeAsItStands(ctx context.Context, r *Run, proc kept, doc *Document, why string) error {
	if _, begun := r.Closing(ctx); !begun {
		if err := r.Record(ctx, stepClosing, "close as it stands", map[string]string{"why": why}); err != nil {
			return err
		}
	}
	if c, ok := proc.(closer); ok {
		if err := c.Close(ctx, r); err != nil {
			o.look(ctx, r, proc, doc)
			return r.end(ctx, err)
		}
	}
	o.look(ctx, r, proc, doc)
	doc.Outcome = outcomeAborted
	return r.Session.Finish(ctx, journal.Aborted, "closed as it stands beyond the point of no return: "+why)
}

func (o *Operations) back(ctx context.Context, r *Run, proc kept, doc *Document, why string) error {
	err := r.Back(ctx, proc, why)
	o.look(ctx, r, proc, doc)
	var refused *rolling.RefusedError
	if errors.As(err, &refused) && !r.Returning(ctx) {
		// Asking changed nothing: the operation stands where it stood, for the reason it did.
		why := err.Error()
		if record, readErr := r.Op.Record(context.WithoutCancel(ctx)); readErr == nil && record.Summary != "" {
			why = record.Summary
		}
		return errors.Join(err, r.Op.Finish(context.WithoutCancel(ctx), journal.Stopped, why))
	}
	if err != nil {
		return r.end(ctx, err)
	}
	doc.Outcome = outcomeAborted
	return nil
}

// going is what Resume and Abort do with an operation that was taken over.
type going func(context.Context, *Run, kept, *Document) error

func (o *Operations) goOn(ctx context.Context, id string, fn going) (Document, error) {
	doc := Document{Schema: docSchema, Operation: id, Outcome: rolling.OutcomeStopped, Phases: []PhaseResult{},
		Hosts: []HostResult{}}
	var plan Plan
	var proc kept
	err := o.Continue(ctx, id, func(record journal.Record) (err error) {
		if !slices.Contains(Kinds(), record.Kind) {
			return &rolling.NotOpenError{ID: id, Why: "it is a " + record.Kind + ", which is no cut-over"}
		}
		if plan, err = LoadPlan(record.Plan, record.PlanDigest); err != nil {
			return err
		}
		for _, h := range plan.Hosts {
			if _, known := o.Fleet.Inventory().Host(h); !known {
				return &rolling.NotOpenError{ID: id, Why: "its plan names host " + h + ", which the inventory does not have"}
			}
		}
		doc = newDocument(id, plan)
		proc, err = o.procedure(plan)
		return err
	}, func(ctx context.Context, s *rolling.Session) error {
		r := &Run{Runner: s.Runner(rolling.Plan{}), Session: s, Plan: plan}
		if err := proc.Settle(ctx, r); err != nil {
			o.look(ctx, r, proc, &doc)
			return r.end(ctx, err)
		}
		return fn(ctx, r, proc, &doc)
	})
	return doc, o.outcome(&doc, err)
}
