package rolling

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/observe"
)

// heldSuffix makes the name a plan calls a container by that was held: it bears the
// node's own.
const heldSuffix = "-pre-held"

// Held says that what comes back is the node's own container, which a replace stopped
// for good when its successor did not start.
func (p NodePlan) Held() bool { return p.Aside == p.Container+heldSuffix }

// LookBack finds the container that was set aside last on one node, and what
// would come back with it. It needs no journal: everything is on the host, also
// when the operator's machine and its state are gone.
func (o *Operations) LookBack(ctx context.Context, id string, waivers []Waiver) (Plan, error) {
	inv := o.Fleet.Inventory()
	h, ok := inv.Host(id)
	if !ok {
		return Plan{}, &fleet.UnknownHostError{IDs: []string{id}, Known: inv.IDs(), Path: inv.Path}
	}
	agent, err := agentOf(ctx, o.Fleet, id)
	if err != nil {
		return Plan{}, err
	}
	facts, err := agent.Facts(ctx, host.FactsRequest{Container: h.Container})
	if err != nil {
		return Plan{}, fmt.Errorf("host %s: %w", id, err)
	}
	aside, name := facts, newestAside(facts.Siblings, h.Container)
	switch {
	case facts.Held: // before what is aside: that is older, such as from before a halt
		name = h.Container + heldSuffix
	case name != "":
		aside, err = agent.Facts(ctx, host.FactsRequest{Container: name})
	default:
		return Plan{}, &NothingAsideError{Host: id, Container: h.Container}
	}
	if err != nil || aside.Container == nil {
		return Plan{}, fmt.Errorf("host %s: reading %s: %w", id, name, err)
	}
	p := NodePlan{ID: id, Container: h.Container, Why: "asked for", Action: ActionReplace, ContainerID: aside.Container.ID, Aside: name,
		StopTimeout: leastStopSeconds, OnFail: "hold", OnFailWhy: "it is the way back itself", ToDigest: present(aside.Container).Digest}
	if c := facts.Container; c != nil {
		p.FromRef, p.FromDigest = c.ImageRef, present(c).Digest
		p.StopTimeout = max(p.StopTimeout, c.StopTimeoutSeconds)
	}
	plan := Plan{Schema: "qnetops/plan/v1", Kind: kindRestore, Fleet: inv.Name, Gates: "not checked", Waivers: waivers, Nodes: []NodePlan{p}}
	r := &Runner{Plan: plan}
	return plan, cmp.Or(r.halted(p, facts.Container), r.oneShot(p.ID, aside.Container))
}

// halted forbids starting what was set aside before a halt on a node that has halted:
// it would go on past the height by the rules that the others leave behind.
func (r *Runner) halted(p NodePlan, c *host.ContainerFacts) error {
	if c == nil || c.Running() || p.Held() || !slices.Contains(c.OneShot, host.VarHaltHeight) {
		return nil
	}
	if _, waived := r.waived("one_shot"); waived {
		return nil
	}
	return &RefusedError{Checks: []observe.Check{{Name: "one_shot", Verdict: observe.Fail, Reason: fmt.Sprintf("%s: it is down with %s, and %s is "+
		"from before that: it would go on past the height; qnetops halt release starts the fleet", p.ID, host.VarHaltHeight, p.Aside)}}}
}

func newestAside(siblings []host.Sibling, container string) string {
	var asides []string
	for _, s := range siblings {
		if strings.HasPrefix(s.Name, container+"-pre-") {
			asides = append(asides, s.Name)
		}
	}
	if len(asides) == 0 {
		return ""
	}
	sort.Strings(asides) // the stamp in the name sorts by time
	return asides[len(asides)-1]
}

// oneShot forbids putting back a container whose variables would act
// once more on the data: a rollback, a wiped directory.
func (r *Runner) oneShot(id string, c *host.ContainerFacts) error {
	if c == nil || len(c.OneShot) == 0 {
		return nil
	}
	if _, waived := r.waived("one_shot"); waived {
		return nil
	}
	return &RefusedError{Checks: []observe.Check{{Name: "one_shot", Verdict: observe.Fail,
		Reason: fmt.Sprintf("%s: %s carries %s, which would act again on its data if it were started", id, c.Name, strings.Join(c.OneShot, ", "))}}}
}

// NothingAsideError says that a node has no old container to go back to.
type NothingAsideError struct{ Host, Container string }

func (e *NothingAsideError) Error() string {
	return fmt.Sprintf("host %s: no container %s-pre-… is set aside", e.Host, e.Container)
}

// Hint says what else leads back.
func (e *NothingAsideError) Hint() string {
	return "an old container is removed once its successor passed every milestone; roll the node to the earlier image by digest instead (qnetops ops shows it)"
}

// Restore puts one node's old container back. It journals itself as an
// operation of its own, or within the unfinished one: a node must be able to
// come back in the middle of a roll, and the rest of that stays to be decided.
func (o *Operations) Restore(ctx context.Context, plan Plan) (Document, error) {
	doc := Document{Schema: docSchema, PlanDigest: plan.Digest(), Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	raw, err := json.Marshal(plan)
	if err != nil {
		return doc, err
	}
	err = o.under(ctx, func(ctx context.Context, held lease.Lease) error {
		op, err := o.Store.Begin(ctx, journal.Spec{Kind: kindRestore, Fleet: plan.Fleet, Operator: o.Operator, Epoch: held.Token().Epoch,
			Plan: raw, PlanDigest: plan.Digest(), Waivers: o.waivers(plan)})
		var open *journal.UnfinishedError
		within := errors.As(err, &open)
		if within {
			if op, err = o.Store.Op(ctx, open.ID); err == nil {
				err = op.Resume(ctx, held.Token().Epoch)
			}
		}
		if err != nil {
			return err
		}
		doc.Operation = op.ID()
		o.began(op.ID())
		token, err := held.Raise(ctx, 0, op.ID())
		if err == nil {
			err = TakeFences(ctx, o.Fleet, token, []string{plan.Nodes[0].ID})
		}
		r := &Runner{Fleet: o.Fleet, Op: op, Lease: held, Plan: plan, Emit: o.Emit}
		if err != nil && !within {
			return o.nothing(ctx, held, op, err)
		}
		if err != nil {
			return o.close(ctx, r, err)
		}
		doc, err = o.restore(ctx, held, r, within)
		return err
	})
	return doc, err
}

// resumeRestore goes on with a restore that was cut short.
func (o *Operations) resumeRestore(ctx context.Context, held lease.Lease, r *Runner) (Document, error) {
	return o.restore(ctx, held, r, false)
}

func (o *Operations) restore(ctx context.Context, held lease.Lease, r *Runner, within bool) (Document, error) {
	doc := Document{Schema: docSchema, Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Outcome: OutcomeDone}
	result, err := r.Restore(ctx)
	doc.Nodes = []NodeResult{result}
	if err != nil {
		doc.Outcome = outcomeOf(err)
		return doc, o.close(ctx, r, err)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	text := "node " + result.ID + " runs its old container again"
	if within {
		return doc, r.Op.Finish(end, journal.Stopped, text+"; the rest of the operation is to be resumed or aborted")
	}
	err = r.Op.Finish(end, journal.Done, text)
	o.release(end, held)
	return doc, err
}

// Restore does the one node of a restore's plan from wherever it stands.
func (r *Runner) Restore(ctx context.Context) (NodeResult, error) {
	p := r.Plan.Nodes[0]
	result := NodeResult{ID: p.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	agent, err := agentAgain(ctx, r.Fleet, p.ID)
	if err != nil {
		return result, err
	}
	facts, err := agent.Facts(ctx, host.FactsRequest{Container: p.Container})
	if err != nil {
		return result, fmt.Errorf("host %s: %w", p.ID, err)
	}
	done := host.ReplaceResult{Outcome: host.PutBack, OldID: p.ContainerID}
	if c := facts.Container; c != nil && c.ID == p.ContainerID && c.Running() {
		done.StartedAt, done.StoppedAt = c.StartedAt, c.StartedAt // an earlier run put it back already
	} else if done, err = r.restoreTx(ctx, p); err != nil {
		return result, err
	} else {
		if result.Killed = done.Killed; !done.StoppedAt.IsZero() {
			down := done.StartedAt.Sub(done.StoppedAt).Seconds()
			result.DowntimeSeconds = &down
		}
	}
	return r.restoreProof(ctx, p, result, done)
}

func (r *Runner) restoreTx(ctx context.Context, p NodePlan) (host.ReplaceResult, error) {
	failed := p.Container + "-failed-" + time.Now().UTC().Format("20060102T150405Z")
	var done host.ReplaceResult
	err := r.step(ctx, p.ID, "putback", "put "+p.Aside+" back", func(ctx context.Context, w *host.Writer) (any, error) {
		var err error
		_, allowed := r.waived("one_shot") // LookBack refused without it
		done, err = w.PutBack(ctx, host.PutBackRequest{Container: p.Container, AsideName: p.Aside, FailedName: failed,
			StopTimeoutSeconds: p.StopTimeout, ExpectAsideID: p.ContainerID, AllowOneShot: allowed}, r.tx(p))
		return done, err
	})
	done, err = r.afterTx(ctx, p, "putback", done, err)
	if err == nil && done.Outcome != host.PutBack {
		err = &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the old container was not put back: " + done.Reason}
	}
	return done, err
}

// restoreLost is the error of a restore whose answer was lost and whose container does not run in the node's place: nil where
// it does, or where this is no restore. After a replace that was held the old container bears the node's name from the
// beginning, so that the name alone says nothing; whether the host began says its log.
func (r *Runner) restoreLost(s host.Situation, p NodePlan, lost error) error {
	if p.Aside == "" || s.Unsettled || s.Current.Running() && s.Current.ID == p.ContainerID {
		return nil
	}
	for _, e := range slices.Backward(s.Entries) {
		switch {
		case e.Outcome == host.InDoubt:
			return &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: describe(s), Err: lost}
		case e.Spec != nil && e.Spec.OldID == p.ContainerID && e.Tx == "put_back":
			return nil
		case e.Spec != nil:
			return r.lostBefore(p, lost) // of what set it aside, in the same operation
		}
	}
	return r.lostBefore(p, lost)
}

func (r *Runner) lostBefore(p NodePlan, lost error) error {
	return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the connection was lost before the node was touched", Err: lost}
}

// restoreProof watches the container that came back through M0 to M2 and then
// clears what it replaced out of the way.
func (r *Runner) restoreProof(ctx context.Context, p NodePlan, result NodeResult, done host.ReplaceResult) (NodeResult, error) {
	want := expectation(r.Fleet, done, 0)
	want.OnlyRejoined, want.WaiveBuild = true, "any build: the container that ran before is what was asked for"
	seen, err := r.milestones(ctx, p, want)
	result.Milestones = seen
	if err != nil {
		return result, &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the old container is back, but was not watched to the end", Err: err,
			Interrupted: interrupted(ctx, err)}
	}
	if failed := firstFailed(seen); failed != nil {
		return result, &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: fmt.Sprintf("the old container is back, but %s failed: %s", failed.Name, failed.Reason)}
	}
	result.Outcome = NodeRestored
	return result, r.onOld(ctx, r.ClearFailed(ctx, p))
}

// interrupted tells an operator's interrupt from a lease that was lost; both
// end the context.
func interrupted(ctx context.Context, err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(context.Cause(ctx), lease.ErrLost)
}
