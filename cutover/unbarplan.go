package cutover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// UnbarPlan is the part of letting barred identities back: one image takes the
// place of another on all nodes at one moment. If some did so before the others,
// the two groups would derive different committees for the windows in between.
type UnbarPlan struct {
	// Identities come back with the image. What an image bars nobody can read from
	// outside: that this one no longer bars them is its publisher's word.
	Identities []string     `json:"identities"`
	Roll       rolling.Plan `json:"roll"`
	First      []string     `json:"first"` // genesis hosts
}

// UnbarAsk is what the operator asked.
type UnbarAsk struct {
	Ask
	Image      string
	Identities []string
}

func (a UnbarAsk) spec() rolling.Spec {
	return rolling.Spec{Image: a.Image, Targets: a.Hosts, Skipped: a.Skipped, Waivers: a.Waivers, HoldOnFail: true,
		KeepOld: true, RecoveryHalted: true}
}

// NewUnbar decides the plan. It is pure.
func NewUnbar(view observe.View, in rolling.Inputs, ask UnbarAsk, roles map[string]string) Plan {
	p := base(KindUnbar, view.Fleet, ask.Ask)
	roll := rolling.New(view, in, ask.spec()) // by id: the swap is at one moment and has no order
	roll.Kind, roll.RecoveryHalted = "unbar", false
	ids := slices.Clone(ask.Identities)
	slices.Sort(ids)
	p.Unbar = &UnbarPlan{Identities: slices.Compact(ids), Roll: roll, First: []string{}}
	for _, id := range p.Hosts {
		if roles[id] == fleet.RoleGenesis {
			p.Unbar.First = append(p.Unbar.First, id)
		}
	}
	p.Committee, p.AtPhase = roll.Committee, Go
	p.Threshold = Threshold{Rule: "every committee member of the inventory", Absent: members(p.Committee.Members, p.Hosts,
		nodeIDs(view))}
	p.Phases = []Phase{
		{Prepare, "pull the image by digest and create every successor, stopped", "qnetops abort: the successors are removed", ""},
		{Hold, "every host is looked at again: it runs, its successor is ready", "qnetops abort, as above", ""},
		{Go, "all nodes change to the image at once, at the time named", "none; qnetops resume goes on",
			"the first successor that is started: it derives committees with " + strings.Join(p.Unbar.Identities, ", ")},
		{Verify, "each node passes M0 to M4", "none; the old containers are kept until every node has passed", ""},
		{Release, "archive the logs of the old containers and remove them", "none is needed", ""},
	}
	return p
}

// ProposeUnbar looks at the fleet and decides.
func (o *Operations) ProposeUnbar(ctx context.Context, ask UnbarAsk) (Proposal, error) {
	roles := map[string]string{}
	for _, h := range o.Fleet.Inventory().Hosts {
		roles[h.ID] = h.Role
	}
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	in, err := rolling.Gather(ctx, o.Fleet, ask.spec())
	if err != nil {
		return Proposal{}, err
	}
	plan := NewUnbar(view, in, ask, roles)
	p := Proposal{Plan: plan}
	p.Checks = slices.Concat(checkStart(ask.At, time.Now()), []observe.Check{checkMembers(plan), startSet(view, plan.Hosts, 0),
		heardOf(ctx, o.Fleet, ask)},
		checkArmed(plan, in), checkSwap(plan),
		rolling.Preflight(view, in, plan.Unbar.Roll))
	return p, ctx.Err()
}

// checkSwap refuses a node that would not change with the others.
func checkSwap(p Plan) []observe.Check {
	var out []observe.Check
	for _, n := range p.Unbar.Roll.Nodes {
		if n.Action != rolling.ActionReplace {
			out = append(out, observe.Check{Name: "image", Verdict: observe.Fail, Reason: n.ID + ": " + n.ActionWhy +
				"; it would not change with the others"})
		}
	}
	return out
}

// heardOf warns of identities that still are among a node's peers: where they
// heartbeat, letting them back changes the next committee; where they do not, the
// change is none.
func heardOf(ctx context.Context, f *fleet.Fleet, ask UnbarAsk) observe.Check {
	heard := map[string][]string{}
	asked := 0
	for _, id := range ask.Hosts {
		conn, err := rolling.Reach(ctx, f, id)
		if err != nil {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, askLimit)
		peers, err := conn.Node().Peers(bounded)
		cancel()
		if err != nil {
			continue
		}
		asked++
		for _, p := range peers.Peers {
			if slices.Contains(ask.Identities, p.ID) {
				heard[p.ID] = append(heard[p.ID], id)
			}
		}
	}
	c := observe.Check{Name: "heartbeat", Verdict: observe.Pass, Reason: fmt.Sprintf("none of them is a peer of the %d nodes "+
		"that answer", asked)}
	if len(heard) > 0 {
		var parts []string
		for _, id := range slices.Sorted(keysIn(heard)) {
			parts = append(parts, fmt.Sprintf("%s is a peer of %s", id, strings.Join(heard[id], ", ")))
		}
		c.Reason = "WARNING: " + strings.Join(parts, "; ") + ": they come back into the committee at once, so every operator's " +
			"nodes must change at this very moment"
	}
	return c
}

func keysIn(m map[string][]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Unbar runs a plan that was printed and confirmed.
func (o *Operations) Unbar(ctx context.Context, ask UnbarAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) { return o.ProposeUnbar(ctx, ask) })
}
