package cutover

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// RollbackPlan is the part of a rollback.
type RollbackPlan struct {
	// Target is QNET_ROLLBACK_TO_HEIGHT, in blocks; nil is
	// QNET_ROLLBACK_TO_LAST_SEALED, each node's certified floor.
	Target *uint64 `json:"target"`
	// Roll stages a successor with the variable for every node. Its nodes carry the
	// restart policies that they get back.
	Roll rolling.Plan      `json:"roll"`
	IDs  map[string]string `json:"ids"` // host -> node id
}

// RollbackAsk is what the operator asked of a rollback.
type RollbackAsk struct {
	Ask
	Target *uint64 // nil: to the last sealed
}

func (a RollbackAsk) variable() host.EnvVar {
	if a.Target == nil {
		return host.EnvVar{Name: host.VarRollbackToSealed, Value: "1"}
	}
	return host.EnvVar{Name: host.VarRollbackToHeight, Value: strconv.FormatUint(*a.Target, 10)}
}

// spec is that of a roll to the same image. A container that carries the variable
// gets restart policy `no`: each start would repeat the rollback and lower the
// node's signing mark once more, below what it has signed since.
func (a RollbackAsk) spec() rolling.Spec {
	return rolling.Spec{Targets: a.Hosts, Skipped: a.Skipped, Waivers: a.Waivers, RecoveryHalted: true,
		Arm: &rolling.Arming{OneShot: []host.EnvVar{a.variable()}, Policy: host.Policy{Name: policyHalted}}}
}

// NewRollback decides the plan of a rollback from what was seen. It is pure.
func NewRollback(view observe.View, in rolling.Inputs, ask RollbackAsk) Plan {
	p := base(KindRollback, view.Fleet, ask.Ask)
	roll := rolling.New(view, in, ask.spec())
	// The order of a halted chain, by id, so that a fork's moods do not move it; its
	// rules do not apply where the variable goes again, for by then the chain seals.
	roll.Kind, roll.RecoveryHalted = "arm", false
	p.Rollback = &RollbackPlan{Target: ask.Target, Roll: roll, IDs: nodeIDs(view)}
	p.Committee = roll.Committee
	p.Threshold = Threshold{Rule: "every committee member of the inventory", Absent: members(p.Committee.Members, p.Hosts,
		p.Rollback.IDs)}
	if p.At != "" {
		p.AtPhase = Hold
	}
	v := ask.variable()
	p.Phases = []Phase{
		{Prepare, fmt.Sprintf("create a successor with %s=%s on every host, of the image it has, stopped", v.Name, v.Value),
			"qnetops abort: the successors are removed", ""},
		{Hold, "stop every node; each flushes and exits 0, its restart policy is " + policyHalted,
			"qnetops abort: the nodes are started again as they were, all together", ""},
		{Go, "start the successors together; each node goes back before it reads its state", "none; qnetops resume goes on",
			"the first successor that is started: the blocks above the target are gone there"},
		{Verify, fmt.Sprintf("read from each log what it did, compare the tips, see blocks and a new seal within %d block times",
			stalledBlocks),
			"none; qnetops abort --waive point_of_no_return=REASON removes the variable and closes the operation as it stands", ""},
		{Release, "put the containers without the variable back, one by one under the quorum rule, each after its bring-up; give " +
			"the restart policies back", "none is needed", ""},
	}
	return p
}

// rollbackOwn are checks of a roll that a rollback answers itself: it is for
// fleets that are forked or stand.
func rollbackOwn(c observe.Check) bool { return c.Name == "fleet" || c.Name == "fork" }

// forecasts says for every host what will happen there.
func forecasts(view observe.View, ask RollbackAsk) []Forecast {
	out := []Forecast{}
	for _, id := range ask.Hosts {
		var h *uint64
		n := view.Node(id)
		if n != nil {
			h = n.Height
		}
		out = append(out, foretell(id, ask.Target, h, floorAtLeast(n)))
	}
	return out
}

// RollbackProposal is a proposal with what will happen on each host.
type RollbackProposal struct {
	Proposal
	Forecasts []Forecast
}

// ProposeRollback looks at the fleet and decides.
func (o *Operations) ProposeRollback(ctx context.Context, ask RollbackAsk) (RollbackProposal, error) {
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return RollbackProposal{}, err
	}
	in, err := rolling.Gather(ctx, o.Fleet, ask.spec())
	if err != nil {
		return RollbackProposal{}, err
	}
	p := RollbackProposal{Proposal: Proposal{Plan: NewRollback(view, in, ask)}, Forecasts: forecasts(view, ask)}
	p.Checks = slices.Concat(checkStart(ask.At, time.Now()), checkTarget("rollback_height", ask.Target, view, p.Forecasts),
		[]observe.Check{checkNeeded(view), checkSealedHistory(view), checkMembers(p.Plan), startSet(view, p.Plan.Hosts,
			runningBeside(view, p.Plan.Hosts))}, checkArmed(p.Plan, in),
		slices.DeleteFunc(rolling.Preflight(view, in, p.Plan.Rollback.Roll), rollbackOwn))
	return p, ctx.Err()
}

// Rollback runs a rollback that was printed and confirmed.
func (o *Operations) Rollback(ctx context.Context, ask RollbackAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) {
		p, err := o.ProposeRollback(ctx, ask)
		return p.Proposal, err
	})
}
