package cutover

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// policyArmed is the restart policy of an armed node: one that halted exits 0 and
// stays down, one that crashed comes back. policyHalted is that of a halted one,
// so that no engine and no boot starts it again.
const (
	policyArmed  = "on-failure"
	policyHalted = "no"
)

// HaltPlan is the part of a halt.
type HaltPlan struct {
	// Height is QNET_HALT_HEIGHT: each node stops at its first poll at or above it,
	// up to 30 blocks later (facts 5.1).
	Height uint64 `json:"height"`
	// Roll arms the nodes one by one. Its nodes carry the restart policies that the
	// release gives back.
	Roll rolling.Plan `json:"roll"`
	// IDs are the node ids of the hosts, which nobody can ask a halted node for.
	IDs map[string]string `json:"ids"`
}

// HaltAsk is what the operator asked of a halt.
type HaltAsk struct {
	Ask
	Height uint64
}

func (a HaltAsk) spec() rolling.Spec {
	return rolling.Spec{Targets: a.Hosts, Skipped: a.Skipped, Waivers: a.Waivers, Arm: &rolling.Arming{
		OneShot: []host.EnvVar{{Name: host.VarHaltHeight, Value: strconv.FormatUint(a.Height,
			10)}}, Policy: host.Policy{Name: policyArmed}}}
}

// NewHalt decides the plan of a halt from what was seen. It is pure.
func NewHalt(view observe.View, in rolling.Inputs, ask HaltAsk) Plan {
	p := base(KindHalt, view.Fleet, ask.Ask)
	roll := rolling.New(view, in, ask.spec())
	roll.Kind = "arm"
	p.Halt = &HaltPlan{Height: ask.Height, Roll: roll, IDs: nodeIDs(view)}
	p.Committee = roll.Committee
	p.Threshold = Threshold{Rule: "every committee member of the inventory", Absent: members(p.Committee.Members, p.Hosts,
		p.Halt.IDs)}
	if p.At != "" {
		p.AtPhase = Prepare
	}
	p.Phases = []Phase{
		{Prepare, fmt.Sprintf("arm node by node: the same image with QNET_HALT_HEIGHT=%d and restart policy %s, up to M3",
			ask.Height, policyArmed),
			"qnetops halt disarm: the old containers are put back one by one, with the policies they had", ""},
		{Hold, "the armed fleet runs on towards the height", fmt.Sprintf("qnetops halt disarm, as above, while %d blocks are left "+
			"for each node", rolling.ExpectedNode), ""},
		{Go, "every node stops by itself at its first poll at or above the height; its restart policy is set to " + policyHalted,
			"none; qnetops halt release IMAGE starts the fleet again, with the image it has if nothing is to " +
				"change", "the first node that stops at the height"},
		{Verify, "every process exited 0 after its flush line, policy " + policyHalted + " read back; stop heights and spread",
			"none is needed", ""},
	}
	return p
}

func nodeIDs(view observe.View) map[string]string {
	ids := map[string]string{}
	for _, n := range view.Nodes {
		ids[n.ID] = n.NodeID
	}
	return ids
}

// needBlocks is what arming reckons with for n nodes, in blocks: twice the time it
// takes undisturbed, so that it can be taken back from any point.
func needBlocks(n int) uint64 { return 2 * uint64(n) * rolling.ExpectedNode }

// leftBlocks is what must be left before one more node is armed, when armed of n
// are: time to arm the rest, and time to disarm what is armed then.
func leftBlocks(n, armed int) uint64 {
	return uint64(max(n-armed, armed+1)) * rolling.ExpectedNode
}

// backBlocks is what must be left to disarm so many nodes before the first of them stops.
func backBlocks(armed int) uint64 { return uint64(armed) * rolling.ExpectedNode }

// tip is the highest height of a view that can be believed; nil: none can.
func tip(view observe.View) *uint64 {
	var out *uint64
	for i := range view.Nodes {
		n := &view.Nodes[i]
		if n.Height != nil && n.Behind != nil && (out == nil || *n.Height > *out) {
			out = n.Height
		}
	}
	return out
}

func checkHeight(p Plan, view observe.View) observe.Check {
	c := observe.Check{Name: "halt_height", Verdict: observe.Unknown, Reason: "no node's height can be believed, so nobody " +
		"knows whether there is time to arm"}
	h, n := p.Halt.Height, len(p.Halt.Roll.Targets())
	now := tip(view)
	if now == nil {
		return c
	}
	need := needBlocks(n)
	c.Verdict = observe.Pass
	c.Reason = fmt.Sprintf("height %d is %d blocks ahead of the tip %d; %d are needed to arm %d nodes", h, h-min(h, *now), *now,
		need, n)
	switch {
	case h <= *now:
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("height %d is at or below the tip %d: the first nodes would stop as soon "+
			"as they are armed; take %d or more",
			h, *now, *now+need)
	case h-*now < need:
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("height %d is %d blocks ahead of the tip %d, and %d are needed (2 x %d "+
			"nodes x %d blocks); take %d or more",
			h, h-*now, *now, need, n, rolling.ExpectedNode, *now+need)
	}
	return c
}

// checkArmed refuses a node that carries a one-shot variable already: whose it is
// and what it would do must be settled first.
func checkArmed(p Plan, in rolling.Inputs) []observe.Check {
	var out []observe.Check
	for _, id := range p.Hosts {
		c := in.Nodes[id].Facts.Container
		if c == nil || len(c.OneShot) == 0 {
			continue
		}
		text := fmt.Sprintf("%s: its container carries %s already", id, strings.Join(c.OneShot, ", "))
		if c.HaltHeight != nil {
			text += fmt.Sprintf(" (%d)", *c.HaltHeight)
		}
		out = append(out, observe.Check{Name: "armed", Verdict: observe.Fail, Reason: text +
			"; qnetops halt status shows it, qnetops halt disarm removes it"})
	}
	return out
}

// ProposeHalt looks at the fleet and decides. quorum counts the voters for the
// first node too; each node's own are counted again at its turn.
func (o *Operations) ProposeHalt(ctx context.Context, ask HaltAsk) (Proposal, error) {
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	in, err := rolling.Gather(ctx, o.Fleet, ask.spec())
	if err != nil {
		return Proposal{}, err
	}
	p := Proposal{Plan: NewHalt(view, in, ask)}
	p.Checks = slices.Concat(checkStart(ask.At, time.Now()), []observe.Check{checkHeight(p.Plan, view), checkMembers(p.Plan)},
		checkArmed(p.Plan, in), rolling.Preflight(view, in, p.Plan.Halt.Roll))
	return p, ctx.Err()
}

// Halt runs a halt that was printed and confirmed: it arms, waits until the fleet
// has stopped at the height, and returns when every node is seen to be down for
// good.
func (o *Operations) Halt(ctx context.Context, ask HaltAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) { return o.ProposeHalt(ctx, ask) })
}

// TooLateError says that a node could not be armed because the height is too near.
type TooLateError struct {
	Node             string
	Height, Tip      uint64
	Left, Need, Next uint64
}

func (e *TooLateError) Error() string {
	return fmt.Sprintf("node %s is not armed: %d blocks are left to height %d from %d, and %d are needed for the nodes still "+
		"to be armed or to be disarmed",
		e.Node, e.Left, e.Height, e.Tip, e.Need)
}

// Hint names a height that would do.
func (e *TooLateError) Hint() string {
	return fmt.Sprintf("halt again with --height %d or more", e.Next)
}

// Unwrap makes it a refusal, where nothing had been changed.
func (e *TooLateError) Unwrap() error {
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "halt_height", Verdict: observe.Fail, Reason: e.Error()}}}
}
