package rolling

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// quorumWait bounds how long a node waits for the others to vote again: a
// node that has just rejoined counts only from the next window on.
const quorumWait = deadlineLater

// turnWait bounds how long a node's production turn may last: 30 blocks a
// turn, with room for failovers.
const turnWait = 180

// haltedQuiet is how long nothing may have moved for --recovery-halted.
const haltedQuiet = 60

// until asks a question again once a block time until it is answered with yes,
// the wait (in real time, at least leastDeadline) is over, or ctx ends.
func (r *Runner) until(ctx context.Context, p NodePlan, what string, limit time.Duration, ask func(context.Context) (bool, string, error)) error {
	deadline := time.Now().Add(max(limit, leastDeadline))
	said := ""
	for {
		// An engine or a node that takes a request and never answers must not
		// keep the deadline from being looked at.
		bounded, cancel := context.WithTimeout(ctx, max(askLimit, node.MacroblockBlocks*r.Fleet.Inventory().Block))
		ok, why, err := ask(bounded)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok {
			return nil
		}
		if err != nil {
			why = err.Error()
		}
		if why != said {
			said = why
			r.emit(Event{Node: p.ID, Kind: KindWait, Name: what, State: string(observe.Unknown), Text: why})
		}
		if time.Now().After(deadline) {
			return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: fmt.Sprintf("check %s did not pass in %s: %s", what, max(limit, leastDeadline), why), Err: err}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(r.Fleet.Inventory().Block, leastPoll)):
		}
	}
}

// askLimit bounds one question of a wait.
const askLimit = 15 * time.Second

// standing says whether the rules of --recovery-halted apply to this node: the
// chain must still be where it was when the operation began. A new image that
// revives the chain brings back the quorum rule, M3 and M4 for the rest.
func (r *Runner) standing(ctx context.Context) bool {
	if r.Closing != nil {
		return true
	}
	if !r.Plan.RecoveryHalted {
		return false
	}
	tip := FleetHeight(ctx, r.Fleet, "", 5*time.Second)
	var began struct{ Tip uint64 }
	if raw := r.result(ctx, "fleet/halted"); raw != nil && json.Unmarshal(raw, &began) == nil {
		return tip == nil || *tip <= began.Tip
	}
	if tip != nil {
		began.Tip = *tip
		if err := r.record(ctx, "fleet/halted", "note where the chain stands", began); err != nil {
			return false
		}
	}
	return true
}

// quorum is invariant 2: before a node is stopped, the members that vote
// without it are at least quorum_size of the committee, from live readings.
func (r *Runner) quorum(ctx context.Context, p NodePlan) error {
	if r.standing(ctx) {
		return r.othersReachable(ctx, p)
	}
	block := r.Fleet.Inventory().Block
	if r.electorate == nil {
		r.electorate = observe.NewElectorate(r.Fleet)
	}
	return r.until(ctx, p, "quorum", quorumWait*block, func(ctx context.Context) (bool, string, error) {
		voters, err := r.electorate.Count(ctx, p.ID)
		if err != nil {
			return false, "", err
		}
		text := fmt.Sprintf("%d of %d vote without %s, quorum %d", voters.Count, len(voters.Committee.Members), p.ID, voters.Committee.Quorum)
		if voters.Enough() {
			r.emit(Event{Node: p.ID, Kind: KindWait, Name: "quorum", State: string(observe.Pass), Text: text})
			return true, text, nil
		}
		return false, text + "; not counted: " + strings.Join(voters.Missing(), ", "), nil
	})
}

// othersReachable is the rule of a halted chain: one node at a time, all
// others answering.
func (r *Runner) othersReachable(ctx context.Context, p NodePlan) error {
	block := r.Fleet.Inventory().Block
	return r.until(ctx, p, "others_reachable", deadlineRPC*block, func(ctx context.Context) (bool, string, error) {
		var down []string
		others := r.Closing
		if others == nil {
			others = r.Fleet.Inventory().IDs()
		}
		for _, id := range others {
			if id == p.ID {
				continue
			}
			conn, err := connOf(ctx, r.Fleet, id)
			if err == nil {
				_, err = conn.Node().Healthz(ctx)
			}
			if err != nil {
				down = append(down, id)
			}
		}
		return len(down) == 0, "not answering: " + strings.Join(down, ", "), nil
	})
}

// turn waits while the node produces now or next: stopping the leader costs
// the chain a failover for nothing. It says whether it had to wait.
func (r *Runner) turn(ctx context.Context, p NodePlan) (waited bool, err error) {
	if r.standing(ctx) {
		return false, nil
	}
	if reason, ok := r.Plan.waived("producing"); ok {
		r.emit(Event{Node: p.ID, Kind: KindWait, Name: "producing", State: verdictSkipped, Text: "waived: " + reason})
		return false, nil
	}
	block := r.Fleet.Inventory().Block
	err = r.until(ctx, p, "producing", turnWait*block, func(ctx context.Context) (bool, string, error) {
		idle, why, err := r.idle(ctx, p)
		waited = waited || !idle
		return idle, why, err
	})
	return waited, err
}

// idle says whether the node produces neither now nor next. One that runs and
// does not say so may be producing.
func (r *Runner) idle(ctx context.Context, p NodePlan) (bool, string, error) {
	conn, err := reach(ctx, r.Fleet, p.ID)
	if err != nil {
		return false, "", err
	}
	c, err := conn.Inspect(ctx)
	if err != nil {
		return false, "", err
	}
	if !c.Running() {
		return true, "", nil
	}
	limit, cancel := context.WithTimeout(ctx, max(r.Fleet.Inventory().Block, 2*time.Second))
	defer cancel()
	status, err := conn.Node().ProducerStatus(limit)
	switch {
	case err != nil:
		return false, "", fmt.Errorf("who produces cannot be read: %w", err)
	case status.CurrentProducer == "":
		return false, fmt.Sprintf("who produces after height %d is unknown", status.CurrentHeight), nil
	case status.IsProducer || status.CurrentProducer == status.NodeID:
		return false, fmt.Sprintf("it produces; its turn ends in %d blocks", status.BlocksUntilRotation), nil
	}
	return true, "", nil
}

// Halted checks the promise of --recovery-halted: no height and no seal moves
// within 60 block times.
func Halted(ctx context.Context, look func(context.Context) (observe.View, error), block time.Duration) error {
	first, err := look(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(haltedQuiet*block, time.Second)):
	}
	second, err := look(ctx)
	if err != nil {
		return err
	}
	moved, compared := movement(first, second)
	if compared < len(second.Nodes) && len(moved) == 0 {
		return &RefusedError{Checks: []observe.Check{{Name: "recovery_halted", Verdict: observe.Unknown,
			Reason: fmt.Sprintf("only %d of %d nodes' heights could be read twice, so nobody knows whether the chain stands", compared, len(second.Nodes))}}}
	}
	if len(moved) == 0 {
		return nil
	}
	return &RefusedError{Checks: []observe.Check{{Name: "recovery_halted", Verdict: observe.Fail,
		Reason: fmt.Sprintf("--recovery-halted is for a chain that stands, but within %d block times %s", haltedQuiet, strings.Join(moved, "; "))}}}
}

// movement lists what moved between two looks and counts the nodes whose
// height was seen in both.
func movement(before, after observe.View) (out []string, compared int) {
	for _, n := range after.Nodes {
		was := before.Node(n.ID)
		if was == nil {
			continue
		}
		if was.Height != nil && n.Height != nil {
			compared++
		}
		if was.Height != nil && n.Height != nil && *n.Height > *was.Height {
			out = append(out, fmt.Sprintf("%s went from height %d to %d", n.ID, *was.Height, *n.Height))
		}
		if was.LastSealed != nil && n.LastSealed != nil && *n.LastSealed > *was.LastSealed {
			out = append(out, fmt.Sprintf("%s sealed macroblock %d", n.ID, *n.LastSealed))
		}
	}
	return out, compared
}
