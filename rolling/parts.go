package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// The parts of a roll for who runs them on all nodes at once: a cut-over, whose
// nodes are all stopped while their containers are changed.

// StageAll pulls the image and creates every successor, and refuses what nothing
// explains. Nothing is stopped; what was staged stays for a second try.
func (r *Runner) StageAll(ctx context.Context) error {
	errs, diff := r.stageAll(ctx, r.targets())
	if len(diff) > 0 {
		errs = append(errs, &RefusedError{Checks: diff})
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (r *Runner) targets() []string {
	var ids []string
	for _, p := range r.Plan.Targets() {
		ids = append(ids, p.ID)
	}
	return ids
}

func (r *Runner) stageAll(ctx context.Context, ids []string) (errs []error, diff []observe.Check) {
	var mu sync.Mutex
	eachOf(ctx, ids, func(ctx context.Context, id string) {
		checks, err := r.prepareNode(ctx, *r.Plan.Node(id))
		mu.Lock()
		defer mu.Unlock()
		diff = append(diff, checks...)
		if err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return errs, diff
}

// Discard removes the successor of one node that was staged and not started.
func (r *Runner) Discard(ctx context.Context, p NodePlan) error { return r.clearStaged(ctx, p) }

// SwapIn puts the staged successor in the place of a stopped node, from wherever
// the node stands; one that runs its successor already is left.
func (r *Runner) SwapIn(ctx context.Context, p NodePlan) error {
	situation, err := r.situation(ctx, p)
	if err != nil {
		return err
	}
	switch stageOf(situation, p) {
	case stageReplaced, stageRolled:
		return nil
	case stageUnclear:
		return &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "the containers on the host fit no step of this " +
			"operation: " + describe(situation)}
	}
	return r.swap(ctx, p)
}

// swap stages the successor once more, which must still match, and replaces.
func (r *Runner) swap(ctx context.Context, p NodePlan) error {
	report, err := r.stage(ctx, p)
	if err != nil {
		return err
	}
	if checks := explain(p, report, r.Plan); len(checks) > 0 {
		return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Err: &RefusedError{Checks: checks},
			Reason: "its successor no longer matches"}
	}
	done, err := r.replace(ctx, p)
	if err == nil && done.Outcome != host.Replaced {
		reason := "the successor did not start: " + done.Reason
		err = &StoppedError{Operation: r.Op.ID(), Node: p.ID, LastLines: tail(done.LastLines, 12), Reason: reason}
	}
	return err
}

// Swapped says whether a successor of this operation runs on the node, or may
// run: what cannot be told counts as yes.
func (r *Runner) Swapped(ctx context.Context, p NodePlan) bool {
	situation, err := r.situation(ctx, p)
	if err != nil {
		return r.stoppedBefore(ctx, p)
	}
	at := stageOf(situation, p)
	return at != stageWaiting && at != stageStaged || heldAs(situation, p) != nil
}

// Watch follows a node that runs its successor through its milestones. A node
// that fails is held.
func (r *Runner) Watch(ctx context.Context, p NodePlan) (NodeResult, error) {
	result := NodeResult{ID: p.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	situation, err := r.situation(ctx, p)
	if err != nil {
		return result, err
	}
	switch stageOf(situation, p) {
	case stageReplaced:
		return r.reenter(ctx, p, result, replacedAs(situation))
	case stageRolled:
		r.recall(ctx, p, situation.Current.ID, &result)
		result.Outcome = NodeRolled
		return result, nil
	}
	return result, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "it does not run its successor: " + describe(situation)}
}

// Arm replaces node by node by an armed successor and keeps the old containers
// aside. It goes on from wherever the fleet stands.
func (r *Runner) Arm(ctx context.Context) ([]NodeResult, error) { return r.OneByOne(ctx) }

// OneByOne stages every successor and then replaces node by node under the quorum
// rule, each proven before the next is touched, as a roll does. It goes on from
// wherever the fleet stands.
func (r *Runner) OneByOne(ctx context.Context) ([]NodeResult, error) {
	doc := Document{}
	for _, p := range r.Plan.Nodes {
		doc.Nodes = append(doc.Nodes, NodeResult{ID: p.ID, Outcome: NodeUntouched, Reason: p.ActionWhy, Milestones: []Milestone{}})
	}
	if err := r.StageAll(ctx); err != nil {
		return doc.Nodes, err
	}
	err := r.roll(ctx, &doc)
	return doc.Nodes, err
}

// Disarm puts the old containers back, the last armed first, one node at a time
// under the quorum rule: what was staged is removed, what was armed runs without
// the variable and with the restart policy it had. Nodes that are down already cost no
// vote, and where the halt height comes meanwhile they may be too many for the rule: they
// come first, and all together, for a genesis node waits for three others (facts 8 #14).
// Neither a container that cannot be cleared away nor a host that cannot be reached keeps
// another node waiting; it is the error in the end.
func (r *Runner) Disarm(ctx context.Context) (out []NodeResult, err error) {
	var (
		left   []error
		unseen *UnseenError
	)
	todo, fallen := r.Plan.Targets(), map[string]bool{}
	slices.Reverse(todo)
	for len(todo) > 0 {
		if err := r.raise(ctx, todo); err != nil {
			return out, err
		}
		p := todo[0]
		result, fell, err := r.disarmNext(ctx, todo, fallen)
		todo = todo[1:]
		if fell && err != nil {
			todo = append(todo, p)
			continue
		}
		out = append(out, result)
		var (
			kept *LeftoverError
			one  *UnseenError
		)
		switch {
		case errors.As(err, &kept):
			left, err = append(left, kept), nil
		case errors.As(err, &one):
			unseen = unseen.and(one)
			continue
		}
		if err == nil && r.Back != nil {
			err = r.Back(ctx, p)
		}
		if err != nil {
			return out, r.stopped(p.ID, err)
		}
	}
	return out, r.notDisarmed(left, unseen)
}

// notDisarmed is the error of a disarm that has come past what it could not do; nil
// where there is none of that.
func (r *Runner) notDisarmed(left []error, unseen *UnseenError) error {
	switch {
	case unseen != nil:
		return &StoppedError{Operation: r.Op.ID(), Reason: "what can be looked at is disarmed, the rest is not",
			Next: fmt.Sprintf("qnetops resume %s goes on with the hosts that are named, once they answer", r.Op.ID()),
			Err:  errors.Join(append([]error{unseen}, left...)...)}
	case len(left) > 0:
		return &StoppedError{Operation: r.Op.ID(), Reason: "what was armed is disarmed, and not all of it is cleared away",
			Next: clearNext(r.Op.ID()), Err: errors.Join(left...)}
	}
	return nil
}

// UnseenError says which hosts a disarm has come past, because they could not be looked
// at; their nodes may still be armed.
type UnseenError struct {
	Hosts []string
	Err   error
}

func (e *UnseenError) Error() string { return e.Err.Error() }

func (e *UnseenError) Unwrap() error { return e.Err }

func (e *UnseenError) and(other *UnseenError) *UnseenError {
	if e == nil {
		return other
	}
	return &UnseenError{Hosts: append(slices.Clone(e.Hosts), other.Hosts...), Err: errors.Join(e.Err, other.Err)}
}

// raise puts back at once what was armed and is down, and sorts those to the front:
// they prove themselves before another one is stopped. A host that falls silent
// meanwhile is looked at again at its turn.
func (r *Runner) raise(ctx context.Context, nodes []NodePlan) error {
	var (
		mu   sync.Mutex
		down = map[string]bool{}
		errs []error
	)
	r.eachNode(ctx, nodes, func(ctx context.Context, p NodePlan) {
		s, err := r.situation(ctx, p)
		if err != nil || stageOf(s, p) != stageReplaced || s.Current.Running() && s.Current.State != "restarting" {
			return
		}
		if err = r.TakeFence(ctx, p.ID); err == nil {
			_, err = r.PutBack(ctx, p)
		}
		mu.Lock()
		defer mu.Unlock()
		if down[p.ID] = true; err != nil && !isAway(err) {
			errs = append(errs, r.stopped(p.ID, err))
		}
	})
	slices.SortStableFunc(nodes, func(a, b NodePlan) int {
		switch {
		case down[a.ID] == down[b.ID]:
			return 0
		case down[a.ID]:
			return -1
		}
		return 1
	})
	return errors.Join(append(errs, ctx.Err())...)
}

func (r *Runner) eachNode(ctx context.Context, nodes []NodePlan, fn func(context.Context, NodePlan)) {
	var ids []string
	for _, p := range nodes {
		ids = append(ids, p.ID)
	}
	eachOf(ctx, ids, func(ctx context.Context, id string) { fn(ctx, *r.Plan.Node(id)) })
}

// disarmNext disarms the first of these nodes, and lets go of it when one of them goes
// down: what it waits for, votes of others or their heights, comes when that one is back.
// fallen are those that were seen to do so before, each of which counts once.
func (r *Runner) disarmNext(ctx context.Context, nodes []NodePlan, fallen map[string]bool) (result NodeResult, fell bool,
	err error) {
	bounded, cancel := context.WithCancel(ctx)
	seen := make(chan []string, 1)
	var acts atomic.Bool // the first is put back: that it is down for a moment is our own doing
	watched := slices.DeleteFunc(slices.Clone(nodes), func(p NodePlan) bool { return fallen[p.ID] })
	go func() {
		down := r.falls(bounded, watched, func(id string) bool { return acts.Load() && id == nodes[0].ID })
		cancel()
		seen <- down
	}()
	result, err = r.disarmNode(bounded, nodes[0], func() { acts.Store(true) })
	cancel()
	for _, id := range <-seen {
		fell, fallen[id] = ctx.Err() == nil, true
	}
	return result, fell, err
}

// falls waits until armed containers of these nodes are seen to be down, and says of
// which, but for those that are to be; of none where ctx ends before.
func (r *Runner) falls(ctx context.Context, nodes []NodePlan, toBe func(id string) bool) (down []string) {
	for {
		var mu sync.Mutex
		limit, done := context.WithTimeout(ctx, askLimit)
		r.eachNode(limit, nodes, func(ctx context.Context, p NodePlan) {
			conn, err := connOf(ctx, r.Fleet, p.ID)
			if err != nil {
				return
			}
			if c, err := conn.Inspect(ctx); err == nil && c.ID != p.ContainerID &&
				(!c.Running() || c.State == "restarting") && !toBe(p.ID) {
				mu.Lock()
				defer mu.Unlock()
				down = append(down, p.ID)
			}
		})
		done()
		if len(down) > 0 {
			return down
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(3*r.Fleet.Inventory().Block, leastPoll)):
		}
	}
}

// disarmNode puts one node back that runs; acts is called before that is begun.
func (r *Runner) disarmNode(ctx context.Context, p NodePlan, acts func()) (NodeResult, error) {
	result := NodeResult{ID: p.ID, Outcome: NodeHeld, Milestones: []Milestone{}}
	situation, err := r.situation(ctx, p)
	switch {
	case err != nil && r.stoppedBefore(ctx, p) && !isFenced(err) && ctx.Err() == nil:
		return result, &UnseenError{Hosts: []string{p.ID}, Err: fmt.Errorf("host %s: %w", p.ID, err)}
	case err != nil || stageOf(situation, p) != stageReplaced:
		acts()
		return r.abortNode(ctx, p)
	}
	if err := r.settled(ctx, p); err != nil {
		return result, err
	}
	if err := r.mayStop(ctx, p); err != nil {
		return result, err
	}
	acts()
	if err := r.TakeFence(ctx, p.ID); err != nil { // it may have been away when the operation was taken up
		return result, err
	}
	return r.undo(ctx, p, result)
}

// atHalt says why a node of a roll that arms a halt height is not put back where it
// has failed: with the height behind it, its old container would go on past it. ""
// where the height is ahead, or none is armed.
func (r *Runner) atHalt(ctx context.Context, p NodePlan) string {
	i := slices.IndexFunc(r.Plan.oneShot(), func(v host.EnvVar) bool { return v.Name == host.VarHaltHeight })
	if i < 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	height, err := strconv.ParseUint(r.Plan.oneShot()[i].Value, 10, 64)
	if err != nil {
		return "its halt height cannot be read"
	}
	tip := FleetHeight(ctx, r.Fleet, "", 5*time.Second)
	switch {
	case tip == nil:
		return "no node's height can be read, and its halt height may be behind it"
	case *tip >= height:
		return fmt.Sprintf("the chain is at %d, its halt height is %d", *tip, height)
	}
	stopped := false
	conn, err := reach(ctx, r.Fleet, p.ID)
	if err == nil {
		stopped, err = observe.SawLine(ctx, conn, p.Container, time.Time{}, func(l node.LogLine) bool {
			_, _, ok := node.HaltReached(l)
			return ok
		})
	}
	switch {
	case err != nil:
		return "whether it stopped at its halt height cannot be seen: " + err.Error()
	case stopped:
		return fmt.Sprintf("it stopped at its halt height %d", height)
	}
	return ""
}
