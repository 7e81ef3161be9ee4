package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/observe"
)

// Kinds of operations in the journal.
const (
	kindRoll    = "roll"
	kindRestore = "restore"
	kindFinish  = "finish"
)

// closing bounds what must happen at the end of an operation even when its
// context is over: the last look, the last entry, the fence.
const closing = time.Minute

// Operations runs whole operations on a fleet: under a lease and a fence, from
// the first journal entry to the last look. A command adds only its questions
// and its printing.
type Operations struct {
	Fleet *fleet.Fleet
	Store *journal.Store
	// Acquire takes the fleet's lease for this process.
	Acquire func(context.Context) (lease.Lease, error)
	// Operator is the person, for the journal.
	Operator string
	// Waivers given to a resume or an abort count beside those of the plan.
	Waivers []Waiver
	// Emit receives progress; Began the id of an operation once it exists.
	Emit  func(Event)
	Began func(id string)
}

// Proposal is a plan with what it rests on and what speaks against it.
type Proposal struct {
	Plan   Plan
	Checks []observe.Check
	Gates  *GateInput // nil: not checked
}

// Refused returns the refusal of the plan, or nil.
func (p Proposal) Refused() error {
	if refused := Refusals(p.Checks, p.Plan); len(refused) > 0 {
		return &RefusedError{Checks: refused}
	}
	return nil
}

// Free says whether an operation may begin at all: no host is held by another
// store, which is read before anything else, and none of the fleet's own is
// unfinished. The journal decides for good when the operation begins.
func (o *Operations) Free(ctx context.Context) error {
	if _, err := ReadFences(ctx, o.Fleet, o.Store.ID()); err != nil {
		return err
	}
	records, err := o.Store.List(ctx, o.Fleet.Inventory().Name)
	if err != nil {
		return err
	}
	if open := unfinishedOf(records); open == nil {
		return nil
	}
	// One that runs right now is told from one that is left over by its lease:
	// its holder is named, or waited for where that was asked.
	held, err := o.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := held.Release(ctx); err != nil {
		return err
	}
	if records, err = o.Store.List(ctx, o.Fleet.Inventory().Name); err != nil {
		return err
	}
	if open := unfinishedOf(records); open != nil {
		return open
	}
	return nil
}

func unfinishedOf(records []journal.Record) *journal.UnfinishedError {
	for _, rec := range records {
		if !rec.State.Finished() {
			return &journal.UnfinishedError{ID: rec.ID, Kind: rec.Kind, State: rec.State}
		}
	}
	return nil
}

// Propose looks at the fleet and decides. The same three steps, observe,
// gather and decide, run again under the lease before anything is changed.
func (o *Operations) Propose(ctx context.Context, spec Spec) (Proposal, error) {
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	in, err := Gather(ctx, o.Fleet, spec)
	if err != nil {
		return Proposal{}, err
	}
	if spec.Gates != nil && in.Image != nil {
		if in.Gates, err = ReadGates(ctx, spec.Gates, view, *in.Image); err != nil {
			return Proposal{}, err
		}
	}
	p := Proposal{Plan: New(view, in, spec), Gates: in.Gates}
	p.Checks = Preflight(view, in, p.Plan)
	if err := ctx.Err(); err != nil {
		return p, err // checks that were cut short say nothing
	}
	if len(p.Plan.Targets()) > 0 && !spec.RecoveryHalted {
		p.Checks = append(p.Checks, o.quorum(ctx, p.Plan.Targets()[0]))
	}
	return p, nil
}

// quorum shows the arithmetic of the first node; every node's own is measured
// again at its turn.
func (o *Operations) quorum(ctx context.Context, first NodePlan) observe.Check {
	c := observe.Check{Name: "quorum", Verdict: observe.Unknown}
	voters, err := observe.Quorum(ctx, o.Fleet, first.ID)
	if err != nil {
		c.Reason = err.Error()
		return c
	}
	c.Reason = fmt.Sprintf("committee of %d (window %d), quorum %d; %d vote without %s",
		len(voters.Committee.Members), voters.Committee.Index, voters.Committee.Quorum, voters.Count, first.ID)
	c.Verdict = observe.Pass
	if !voters.Enough() {
		c.Verdict = observe.Fail
		c.Reason += "; not counted: " + strings.Join(voters.Missing(), ", ")
	}
	return c
}

// Standing checks the promise of --recovery-halted on the live fleet.
func (o *Operations) Standing(ctx context.Context) error {
	return Halted(ctx, func(ctx context.Context) (observe.View, error) {
		return observe.Observe(ctx, o.Fleet, observe.Options{})
	}, o.Fleet.Inventory().Block)
}

// Roll runs a plan that was printed and confirmed. The document is complete
// whatever the error; nothing is done when the fleet no longer gives this plan.
func (o *Operations) Roll(ctx context.Context, spec Spec, plan Plan) (Document, error) {
	raw, err := json.Marshal(plan)
	if err != nil {
		return Document{}, err
	}
	doc := Document{Schema: docSchema, PlanDigest: plan.Digest(), Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	err = o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		op, err := o.Store.Begin(ctx, journal.Spec{Kind: kindRoll, Fleet: plan.Fleet, Operator: o.Operator, Epoch: held.Token().Epoch,
			Plan: raw, PlanDigest: plan.Digest(), Waivers: o.waivers(plan)})
		if err != nil {
			return err
		}
		doc.Operation = op.ID()
		o.began(op.ID())
		if err := o.fenceFor(ctx, held, op, plan); err != nil {
			return o.nothing(ctx, held, op, err)
		}
		now, err := o.again(ctx, spec, plan)
		if err != nil {
			return o.nothing(ctx, held, op, err)
		}
		runner := &Runner{Fleet: o.Fleet, Op: op, Lease: held, Plan: plan, Emit: o.Emit}
		if now.Gates != nil {
			runner.CheckBuild = func(ctx context.Context, build string) error { return now.Gates.staged(ctx, spec.Gates, build) }
		}
		doc, err = runner.Run(ctx)
		return o.end(ctx, held, runner, &doc, err)
	})
	return doc, err
}

// again makes sure under the lease that what was confirmed still holds: the
// same plan, and no check against it that was not there before the question.
func (o *Operations) again(ctx context.Context, spec Spec, plan Plan) (Proposal, error) {
	now, err := o.Propose(ctx, spec)
	if err != nil {
		return now, err
	}
	if now.Plan.Digest() != plan.Digest() {
		return now, &PlanChangedError{Printed: plan.Digest(), Now: now.Plan.Digest()}
	}
	// Who votes changes from window to window; each node waits for that at its
	// own turn.
	now.Checks = slices.DeleteFunc(now.Checks, func(c observe.Check) bool { return c.Name == "quorum" })
	return now, now.Refused()
}

// nothing closes an operation that changed nothing.
func (o *Operations) nothing(ctx context.Context, held lease.Lease, op *journal.Op, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	o.release(ctx, held)
	return errors.Join(cause, op.Finish(ctx, journal.Aborted, "nothing was changed: "+cause.Error()))
}

// release gives the fence back. Where that cannot be done the operation has
// ended all the same; it is said, because until the next operation of this
// store another store stays refused there.
func (o *Operations) release(ctx context.Context, held lease.Lease) {
	if err := ReleaseFences(ctx, o.Fleet, held.Token()); err != nil && o.Emit != nil {
		o.Emit(Event{At: time.Now(), Operation: held.Token().Operation, Kind: KindNote, Name: "fence",
			Text: "not given back: " + err.Error() + "; the next operation of this store takes it over"})
	}
}

func (o *Operations) waivers(plan Plan) []journal.Waiver {
	var out []journal.Waiver
	for _, w := range plan.Waivers {
		out = append(out, journal.Waiver{Check: w.Check, Reason: w.Reason, By: o.Operator})
	}
	return out
}

func (o *Operations) began(id string) {
	if o.Began != nil {
		o.Began(id)
	}
}

// under runs fn under the fleet's lease, with an epoch above every one that a
// host or the store has seen. The context of fn dies with the lease.
func (o *Operations) under(ctx context.Context, fn func(context.Context, lease.Lease) error) error {
	held, err := o.Acquire(ctx)
	if err != nil {
		return err
	}
	defer o.giveBack(ctx, held)
	highest, err := ReadFences(held.Context(), o.Fleet, o.Store.ID())
	if err != nil {
		return err
	}
	if _, err := held.Raise(held.Context(), highest, ""); err != nil {
		return err
	}
	return lostOr(held.Context(), fn(held.Context(), held))
}

// lostOr names a lost lease as the cause where its context's end was all that
// an error says: to the operator that is code 5, not an interrupt.
func lostOr(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), lease.ErrLost) && !errors.Is(err, lease.ErrLost) {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}

// fenceFor binds the token to the operation and writes its epoch to every host
// that answers, before the first change. Nodes that the operation has stopped
// or will stop must take it.
func (o *Operations) fenceFor(ctx context.Context, held lease.Lease, op *journal.Op, plan Plan) error {
	token, err := held.Raise(ctx, 0, op.ID())
	if err != nil {
		return err
	}
	must, err := o.must(ctx, op, plan)
	if err != nil {
		return err
	}
	return TakeFences(ctx, o.Fleet, token, must)
}

// must are the nodes without which an operation cannot go on: all targets of a
// new one, and of one that goes on those it has touched; a host that died
// before its turn must not keep another node from being put back.
func (o *Operations) must(ctx context.Context, op *journal.Op, plan Plan) ([]string, error) {
	steps, err := op.Steps(ctx)
	if err != nil {
		return nil, err
	}
	touched := map[string]bool{}
	for _, s := range steps {
		if id, _, ok := strings.Cut(s.ID, "/"); ok && isStep(s.ID, "replace") {
			touched[id] = true
		}
	}
	var out []string
	for _, p := range plan.Targets() {
		if len(steps) == 0 || touched[p.ID] {
			out = append(out, p.ID)
		}
	}
	return out, nil
}

// Resume goes on with an operation from what is really on the hosts.
func (o *Operations) Resume(ctx context.Context, id string) (Document, error) {
	return o.takeOver(ctx, id, false, func(ctx context.Context, held lease.Lease, r *Runner, kind string) (Document, error) {
		switch kind {
		case kindRestore:
			return o.resumeRestore(ctx, held, r)
		case kindFinish:
			return o.endFinish(ctx, held, r)
		}
		doc, err := r.Run(ctx)
		err = o.end(ctx, held, r, &doc, err)
		return doc, err
	})
}

// Abort ends an operation: the node in flight is put back, finished nodes are
// left as they are. A host that cannot be reached is passed by where members is
// waived.
func (o *Operations) Abort(ctx context.Context, id string) (Document, error) {
	return o.takeOver(ctx, id, true, func(ctx context.Context, held lease.Lease, r *Runner, kind string) (Document, error) {
		if kind != kindRoll {
			return o.abortOther(ctx, held, r, kind)
		}
		doc, err := r.Abort(ctx)
		err = o.endAbort(ctx, held, r, &doc, err)
		return doc, err
	})
}

type goOn func(context.Context, lease.Lease, *Runner, string) (Document, error)

// takeOver makes an unfinished operation this process's own: lease, a newer
// epoch on the hosts, and a look at each step in doubt before anything is done.
func (o *Operations) takeOver(ctx context.Context, id string, aborts bool, fn goOn) (Document, error) {
	doc := Document{Schema: docSchema, Operation: id, Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	op, err := o.Store.Op(ctx, id)
	if err != nil {
		return doc, err
	}
	record, err := op.Record(ctx)
	if err != nil {
		return doc, err
	}
	plan, err := o.planOf(record)
	if err != nil {
		return doc, err
	}
	doc.PlanDigest = record.PlanDigest
	err = o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		r := &Runner{Fleet: o.Fleet, Op: op, Lease: held, Plan: plan, Emit: o.Emit, Of: ofRecord(record), Waivers: o.Waivers, Again: true,
			aborts: aborts}
		if err := o.fenceAgain(ctx, held, r); err != nil {
			return err
		}
		if err := op.Resume(ctx, held.Token().Epoch); err != nil {
			return err
		}
		o.began(id)
		if err := r.Settle(ctx); err != nil {
			return o.close(ctx, r, err)
		}
		doc, err = fn(ctx, held, r, record.Kind)
		return err
	})
	return doc, err
}

// planOf reads the plan of a record and refuses what cannot be gone on with.
func (o *Operations) planOf(record journal.Record) (Plan, error) {
	if record.State.Finished() {
		return Plan{}, &NotOpenError{ID: record.ID, Why: "it is " + string(record.State), Err: journal.ErrFinished}
	}
	if name := o.Fleet.Inventory().Name; record.Fleet != name {
		return Plan{}, &NotOpenError{ID: record.ID, Why: fmt.Sprintf("it is of fleet %s, the inventory is of fleet %s", record.Fleet, name)}
	}
	switch record.Kind {
	case kindRoll, kindFinish, kindRestore:
		plan, err := LoadPlan(record.Plan, record.PlanDigest)
		for _, p := range plan.Nodes {
			if _, known := o.Fleet.Inventory().Host(p.ID); !known && err == nil {
				err = &NotOpenError{ID: record.ID, Why: "its plan names host " + p.ID + ", which the inventory does not have"}
			}
		}
		return plan, err
	}
	return Plan{}, &NotOpenError{ID: record.ID, Why: "it is a " + record.Kind + ", which this command does not know"}
}

// ofRecord names the operation whose containers a record works on.
func ofRecord(record journal.Record) string {
	var data struct {
		Of string `json:"of"`
	}
	if record.Kind == kindFinish && json.Unmarshal(record.Data, &data) == nil {
		return data.Of
	}
	return ""
}

// NotOpenError says why an operation cannot be resumed or aborted.
type NotOpenError struct {
	ID, Why string
	Err     error // journal.ErrFinished where that is why
}

func (e *NotOpenError) Error() string { return "operation " + e.ID + ": " + e.Why }

func (e *NotOpenError) Unwrap() error { return e.Err }

// Hint says where to look.
func (e *NotOpenError) Hint() string {
	return "qnetops ops lists the operations and their states; --hosts and --state choose fleet and journal"
}

// end looks at the fleet once more: the outcome comes from what is there now,
// not from what was intended.
func (o *Operations) end(ctx context.Context, held lease.Lease, r *Runner, doc *Document, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	if cause == nil {
		cause = o.verify(ctx, r)
		doc.Outcome = outcomeOf(cause)
	}
	if cause != nil {
		return o.close(ctx, r, cause)
	}
	err := r.Op.Finish(ctx, journal.Done, "every node passed its milestones")
	o.release(ctx, held)
	return err
}

// lastLook is how long, in block times, the fleet may take to look as planned
// when everything has been done; a node may be a few blocks behind just then.
const lastLook = 60

// verify compares the last look with the plan.
func (o *Operations) verify(ctx context.Context, r *Runner) error {
	block := o.Fleet.Inventory().Block
	deadline := time.Now().Add(max(lastLook*block, leastDeadline))
	for {
		view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
		if err != nil {
			return &StoppedError{Operation: r.Op.ID(), Reason: "the last look at the fleet failed", Err: err}
		}
		wrong := Compare(view, r.Plan)
		if len(wrong) == 0 {
			r.note("last look", fmt.Sprintf("fleet %s is %s", view.Fleet, view.Verdict))
			return nil
		}
		if time.Now().After(deadline) {
			return &StoppedError{Operation: r.Op.ID(), Reason: "the last look at the fleet shows something else than the plan: " + strings.Join(wrong, "; ")}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(3*block, time.Second)):
		}
	}
}

// close writes down how an operation stands that did not end well; one that
// the runner has already backed out of is finished and gives its fence back.
func (o *Operations) close(ctx context.Context, r *Runner, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	record, err := r.Op.Record(ctx)
	if err != nil {
		return errors.Join(cause, err)
	}
	if record.State.Finished() {
		o.release(ctx, r.Lease)
		return cause
	}
	state := journal.Stopped
	var doubt *InDoubtError
	if errors.As(cause, &doubt) {
		state = journal.InDoubt
	}
	if err := r.Op.Finish(ctx, state, cause.Error()); err != nil {
		cause = errors.Join(cause, err)
	}
	// Plain errors after a change must not read as "nothing changed".
	return r.stopped("", cause)
}

// endAbort closes an aborted operation once every node is known to run one
// container; the last look decides that, not what was done.
func (o *Operations) endAbort(ctx context.Context, held lease.Lease, r *Runner, doc *Document, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	if cause == nil {
		cause = r.looksAfterAbort(ctx, doc)
	}
	if cause != nil {
		return o.close(ctx, r, cause)
	}
	err := r.Op.Finish(ctx, journal.Aborted, abortSummary(*doc))
	o.release(ctx, held)
	return err
}

func abortSummary(doc Document) string {
	counts := map[string]int{}
	for _, n := range doc.Nodes {
		counts[n.Outcome]++
	}
	text := fmt.Sprintf("aborted: %d rolled, %d restored, %d untouched", counts[NodeRolled], counts[NodeRestored], counts[NodeUntouched])
	if counts[NodeHeld] > 0 {
		text += fmt.Sprintf(", %d held", counts[NodeHeld])
	}
	if counts[NodeRolled] > 0 && counts[NodeRolled] < len(doc.Nodes) {
		text += "; the fleet runs mixed builds"
	}
	return text
}

// Finish archives and removes the old containers that a finished roll kept.
func (o *Operations) Finish(ctx context.Context, id string) (Document, error) {
	var doc Document
	op, err := o.Store.Op(ctx, id)
	if err != nil {
		return doc, err
	}
	record, err := op.Record(ctx)
	if err != nil {
		return doc, err
	}
	if record.Kind != kindRoll || !record.State.Finished() {
		return doc, &NotOpenError{ID: id, Why: fmt.Sprintf("only a finished roll can be finished, this is a %s that is %s", record.Kind, record.State)}
	}
	plan, err := LoadPlan(record.Plan, record.PlanDigest)
	if err != nil {
		return doc, err
	}
	data, err := json.Marshal(map[string]string{"of": id})
	if err != nil {
		return doc, err
	}
	err = o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		op, err := o.Store.Begin(ctx, journal.Spec{Kind: kindFinish, Fleet: plan.Fleet, Operator: o.Operator, Epoch: held.Token().Epoch,
			Plan: record.Plan, PlanDigest: record.PlanDigest, Data: data})
		if err != nil {
			return err
		}
		o.began(op.ID())
		if err := o.fenceFor(ctx, held, op, plan); err != nil {
			return o.nothing(ctx, held, op, err)
		}
		r := &Runner{Fleet: o.Fleet, Op: op, Lease: held, Plan: plan, Emit: o.Emit, Of: id}
		doc, err = o.endFinish(ctx, held, r)
		return err
	})
	return doc, err
}

func (o *Operations) endFinish(ctx context.Context, held lease.Lease, r *Runner) (Document, error) {
	doc := Document{Schema: docSchema, Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Outcome: OutcomeDone, Nodes: []NodeResult{}}
	results, err := r.FinishAll(ctx)
	for _, done := range results {
		doc.Nodes = append(doc.Nodes, NodeResult{ID: done.Node, Outcome: NodeRolled, Archive: done.Archive, Milestones: []Milestone{}})
	}
	if err != nil {
		doc.Outcome = OutcomeStopped
		return doc, o.close(ctx, r, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	err = r.Op.Finish(ctx, journal.Done, fmt.Sprintf("%d old containers removed", len(results)))
	o.release(ctx, held)
	return doc, err
}

// abortOther ends a restore or a finish: neither has anything to take back.
func (o *Operations) abortOther(ctx context.Context, held lease.Lease, r *Runner, kind string) (Document, error) {
	doc := Document{Schema: docSchema, Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	err := r.Op.Finish(ctx, journal.Aborted, "aborted; what the "+kind+" had done stays")
	o.release(ctx, held)
	return doc, err
}

// docSchema names the answer of roll, resume, abort and restore.
const docSchema = "qnetops/roll/v1"

// Finished is a container that was archived and removed.
type Finished struct {
	Node string
	host.FinishResult
}
