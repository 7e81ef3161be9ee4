package rolling

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lease"
)

// Abort ends an operation without going on: the node in flight is put back,
// staged successors are removed, finished nodes stay as they are.
func (r *Runner) Abort(ctx context.Context) (Document, error) {
	doc := Document{Schema: "qnetops/roll/v1", Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Outcome: OutcomeStopped, Nodes: []NodeResult{}}
	var errs []error
	for _, p := range r.Plan.Nodes {
		result := NodeResult{ID: p.ID, Outcome: NodeUntouched, Reason: p.ActionWhy, Milestones: []Milestone{}}
		if p.Action == ActionReplace {
			var err error
			result, err = r.abortNode(ctx, p)
			if err != nil {
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
	if err != nil {
		return result, err
	}
	switch stageOf(situation, p) {
	case stageWaiting:
		r.recallRestored(ctx, p, &result)
		return result, nil
	case stageStaged:
		r.recallRestored(ctx, p, &result)
		return result, r.discard(ctx, p, situation.Next.Name)
	case stageRolled:
		result.Outcome = NodeRolled
		r.recall(ctx, p, &result)
		return result, nil
	case stageReplaced:
		r.recall(ctx, p, &result)
		if len(result.Milestones) > 0 && firstFailed(result.Milestones) == nil {
			// Only the old container is still to go; finish leaves it where a
			// milestone had been skipped.
			return r.finish(ctx, p, result)
		}
		return r.undo(ctx, p, result)
	}
	return r.abortUnclear(ctx, p, situation, result)
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

// recallRestored says of a node that runs its old container again that it was
// touched: an earlier run of the operation replaced it and put it back.
func (r *Runner) recallRestored(ctx context.Context, p NodePlan, result *NodeResult) {
	if r.result(ctx, p.ID+"/replace") == nil {
		return
	}
	result.Outcome, result.Reason = NodeRestored, "put back before the abort"
	r.recall(ctx, p, result)
}

// undo puts the old container of the node in flight back.
func (r *Runner) undo(ctx context.Context, p NodePlan, result NodeResult) (NodeResult, error) {
	done, err := r.PutBack(ctx, p)
	if err != nil {
		result.Outcome = NodeHeld
		return result, err
	}
	result, err = r.restored(ctx, p, result, done, "aborted")
	if result.Outcome == NodeRestored {
		return result, nil
	}
	return result, err
}

// FinishAll archives and removes the old containers that were kept because a
// milestone had been skipped.
func (r *Runner) FinishAll(ctx context.Context) ([]host.FinishResult, error) {
	var out []host.FinishResult
	for _, p := range r.Plan.Targets() {
		done, err := r.Archive(ctx, p)
		if err != nil {
			return out, fmt.Errorf("host %s: %w", p.ID, err)
		}
		if done.Archive != "" {
			out = append(out, done)
		}
	}
	return out, nil
}

// Restoring puts one node's old container back without a journal: everything
// it needs is on the host. It is the way back when the operator's machine and
// its state are gone.
type Restoring struct {
	Fleet *fleet.Fleet
	Lease lease.Lease
	Emit  func(Event)
}

// RestorePlan is what a restore would do to one node.
type RestorePlan struct {
	ID        string `json:"id"`
	Container string `json:"container"`
	Aside     string `json:"aside"`
	Current   string `json:"current"`
	Others    []string
	stop      int
}

// Look finds the container that was set aside last.
func (r *Restoring) Look(ctx context.Context, id string) (RestorePlan, error) {
	h, ok := r.Fleet.Inventory().Host(id)
	if !ok {
		return RestorePlan{}, &fleet.UnknownHostError{IDs: []string{id}, Known: r.Fleet.Inventory().IDs(), Path: r.Fleet.Inventory().Path}
	}
	agent, err := agentOf(ctx, r.Fleet, id)
	if err != nil {
		return RestorePlan{}, err
	}
	facts, err := agent.Facts(ctx, host.FactsRequest{Container: h.Container})
	if err != nil {
		return RestorePlan{}, fmt.Errorf("host %s: %w", id, err)
	}
	plan := RestorePlan{ID: id, Container: h.Container, stop: leastStopSeconds}
	if facts.Container != nil {
		plan.Current = facts.Container.ImageRef
		plan.stop = max(plan.stop, facts.Container.StopTimeoutSeconds)
	}
	var asides []string
	for _, s := range facts.Siblings {
		if strings.HasPrefix(s.Name, h.Container+"-pre-") {
			asides = append(asides, s.Name)
		}
	}
	if len(asides) == 0 {
		return plan, &NothingAsideError{Host: id, Container: h.Container}
	}
	sort.Strings(asides) // the stamp in the name sorts by time
	plan.Aside, plan.Others = asides[len(asides)-1], asides[:len(asides)-1]
	return plan, nil
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

// Run puts the container back and watches it through M0 to M2.
func (r *Restoring) Run(ctx context.Context, plan RestorePlan) (NodeResult, error) {
	result := NodeResult{ID: plan.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	if err := r.Lease.Check(ctx); err != nil {
		return result, err
	}
	w, err := writerOf(ctx, r.Fleet, plan.ID, r.Lease.Token())
	if err != nil {
		return result, err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
	defer cancel()
	failed := plan.Container + "-failed-" + time.Now().UTC().Format("20060102T150405Z")
	done, err := w.PutBack(bounded, host.PutBackRequest{Container: plan.Container, AsideName: plan.Aside,
		FailedName: failed, StopTimeoutSeconds: plan.stop}, r.tx(plan.ID))
	if err != nil {
		return result, fmt.Errorf("host %s: %w", plan.ID, err)
	}
	if done.Outcome == host.InDoubt {
		return result, &InDoubtError{Operation: "restore", Node: plan.ID, Reason: done.Reason}
	}
	down := done.StartedAt.Sub(done.StoppedAt).Seconds()
	result.DowntimeSeconds, result.Killed = &down, done.Killed
	if result, err = r.prove(ctx, plan, result, done); err != nil {
		return result, err
	}
	return result, r.clear(ctx, plan, failed)
}

// clear archives the log of the container that was replaced and removes it, as
// a roll does after it has put a node back.
func (r *Restoring) clear(ctx context.Context, plan RestorePlan, failed string) error {
	if err := r.Lease.Check(ctx); err != nil {
		return err
	}
	w, err := writerOf(ctx, r.Fleet, plan.ID, r.Lease.Token())
	if err != nil {
		return err
	}
	_, err = w.Finish(ctx, host.FinishRequest{Container: plan.Container, AsideName: failed, LogDir: r.Fleet.Inventory().LogArchive}, r.tx(plan.ID))
	if errors.Is(err, host.ErrNotFound) {
		return nil // none bore the node's name
	}
	if err != nil {
		return fmt.Errorf("host %s: the node is restored, container %s could not be removed: %w", plan.ID, failed, err)
	}
	return nil
}

func (r *Restoring) tx(id string) func(host.TxEvent) {
	return func(e host.TxEvent) {
		r.Emit(Event{At: time.Now(), Node: id, Kind: KindTx, Name: e.Step, State: e.State, Text: e.Text})
	}
}

func (r *Restoring) prove(ctx context.Context, plan RestorePlan, result NodeResult, done host.ReplaceResult) (NodeResult, error) {
	tip := FleetHeight(ctx, r.Fleet, plan.ID, 5*time.Second)
	if tip == nil {
		tip = new(uint64)
	}
	want := expectation(r.Fleet, done, *tip)
	want.OnlyRejoined, want.WaiveBuild = true, "any build: the container that ran before is what was asked for"
	seen, err := watch(ctx, r.Fleet, plan.ID, want.ContainerID, want, func(m Milestone) {
		r.Emit(Event{At: time.Now(), Node: plan.ID, Kind: KindMilestone, Name: m.Name, State: m.Verdict, Text: m.Reason})
	})
	result.Milestones = seen
	if err != nil {
		return result, &StoppedError{Operation: "restore", Node: plan.ID, Reason: "the old container is back, but was not watched to the end", Err: err, Interrupted: errors.Is(err, context.Canceled)}
	}
	if failed := firstFailed(seen); failed != nil {
		return result, &StoppedError{Operation: "restore", Node: plan.ID, Reason: fmt.Sprintf("the old container is back, but %s failed: %s", failed.Name, failed.Reason)}
	}
	result.Outcome = NodeRestored
	return result, nil
}
