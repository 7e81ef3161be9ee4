package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// Steps of the hosts that go back by the rollback variable.
const (
	stepRolledBack = "rolled_back" // what the node said of its rollback
	stepUnset      = "fleet/unset" // the roll that takes the variable away again
)

// back are the hosts of way rollback: their certified floor is not above K.
func (p RestartPlan) back() (ids []string) {
	for _, h := range p.Hosts {
		if h.Way == restart.WayRollback {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// backVariable brings a node to the last height of K when it starts.
func (v RestartValues) backVariable() host.EnvVar {
	return host.EnvVar{Name: host.VarRollbackToHeight, Value: strconv.FormatUint(v.Head(), 10)}
}

// armed is the roll of the hosts that go back, or of the others.
func (x *restarting) armed(r *Run, back bool) *rolling.Runner {
	runner := x.roll(r)
	ids := x.plan.Restart.back()
	runner.Plan.Nodes = slices.DeleteFunc(slices.Clone(runner.Plan.Nodes),
		func(p rolling.NodePlan) bool { return slices.Contains(ids, p.ID) != back })
	if back {
		runner.Plan.Arm = &rolling.Arming{OneShot: []host.EnvVar{x.plan.Restart.Values.backVariable()},
			Policy: host.Policy{Name: policyHalted}}
	}
	return runner
}

// rollOf is the roll that has a host's successor.
func (x *restarting) rollOf(r *Run, id string) *rolling.Runner {
	return x.armed(r, slices.Contains(x.plan.Restart.back(), id))
}

// stage creates every successor, with the variable where the node goes back.
func (x *restarting) stage(ctx context.Context, r *Run) error {
	return errors.Join(x.armed(r, false).StageAll(ctx), x.armed(r, true).StageAll(ctx))
}

// goesBack says that a node is to go back when it starts. One that did not is
// brought to K as the others are, once a person has cleared it.
func (x *restarting) goesBack(ctx context.Context, r *Run, id string) bool {
	res, known := x.backResult(ctx, r, id)
	cleared := r.Result(ctx, id+"/"+stepLatched) != nil && !latchOf(ctx, r, id).set()
	return x.plan.Restart.host(id).Way == restart.WayRollback && !(known && !res.ok() && cleared)
}

// backResult is what a node said of its rollback, from the journal.
func (x *restarting) backResult(ctx context.Context, r *Run, id string) (res RollbackResult, known bool) {
	raw := r.Result(ctx, id+"/"+stepRolledBack)
	return res, raw != nil && json.Unmarshal(raw, &res) == nil
}

// said reads once what a node that was started says of its rollback, and writes it
// down: with its container the log goes, too.
func (x *restarting) said(ctx context.Context, r *Run, id string) (RollbackResult, bool) {
	if res, known := x.backResult(ctx, r, id); known {
		return res, true
	}
	s := lookAt(ctx, x.fleet, id)
	if !s.Reached {
		return RollbackResult{}, false
	}
	head := x.plan.Restart.Values.Head()
	lines, err := runLines(ctx, x.fleet, id, s.Since)
	res := readRollback(&head, lines)
	if err != nil || res.Outcome == RollbackUnknown {
		return res, false
	}
	return res, r.Record(ctx, id+"/"+stepRolledBack, res.Text, res) == nil
}

// unsetKnown is the roll that takes the variable away, once it was begun.
func (x *restarting) unsetKnown(ctx context.Context, r *Run) (plan rolling.Plan, known bool) {
	raw := r.Result(ctx, stepUnset)
	return plan, raw != nil && json.Unmarshal(raw, &plan) == nil
}

// unset takes the rollback variable from every node that carries it, one after the
// other under the quorum rule, each after its bring-up: the same image in a new
// container without it, proven like any other, with the restart policy of ordinary
// times. closing takes the rules of a chain that stands. A latched node stays
// stopped, and keeps it.
func (x *restarting) unset(ctx context.Context, r *Run, here []string, closing bool) error {
	ids := slices.DeleteFunc(x.plan.Restart.back(), func(id string) bool {
		return !slices.Contains(here, id) || latchOf(ctx, r, id).set()
	})
	if len(ids) == 0 {
		return nil
	}
	plan, known := x.unsetKnown(ctx, r)
	if !known {
		var err error
		if plan, err = x.unsetPlan(ctx, ids); err != nil {
			return err
		}
		title := fmt.Sprintf("take %s from %s", x.plan.Restart.Values.backVariable().Name, strings.Join(ids, ", "))
		if err := r.Record(ctx, stepUnset, title, plan); err != nil {
			return err
		}
	}
	// Who was lost since it was planned is left out.
	plan.Nodes = slices.DeleteFunc(slices.Clone(plan.Nodes), func(p rolling.NodePlan) bool { return !slices.Contains(ids, p.ID) })
	runner := r.Session.Runner(plan)
	runner.Among = x.plan.Hosts
	if closing {
		runner.Closing = ids
	}
	if _, err := runner.OneByOne(ctx); err != nil {
		return err
	}
	return x.unarmed(ctx, r, ids)
}

// unsetPlan looks at the nodes that carry the variable and plans their roll.
func (x *restarting) unsetPlan(ctx context.Context, ids []string) (rolling.Plan, error) {
	spec := rolling.Spec{Targets: ids, HoldOnFail: true, Policies: map[string]host.Policy{}}
	for _, id := range ids {
		if p := x.plan.Restart.host(id).Policy; p != nil {
			spec.Policies[id] = *p
		}
	}
	view, err := observe.Observe(ctx, x.fleet, observe.Options{})
	if err != nil {
		return rolling.Plan{}, err
	}
	in, err := rolling.Gather(ctx, x.fleet, spec)
	if err != nil {
		return rolling.Plan{}, err
	}
	for _, id := range ids {
		if err := in.Nodes[id].Err; err != nil {
			return rolling.Plan{}, fmt.Errorf("host %s: %w", id, err)
		}
	}
	return rolling.New(view, in, spec), ctx.Err()
}

// unarmed reads back that no node carries the variable any more.
func (x *restarting) unarmed(ctx context.Context, r *Run, ids []string) error {
	var open []string
	for id, s := range lookAll(ctx, x.fleet, ids) {
		h := x.plan.Restart.host(id)
		switch {
		case !s.Reached:
			open = append(open, id+" cannot be seen: "+s.Why)
		case len(s.OneShot) > 0:
			open = append(open, id+" still carries "+strings.Join(s.OneShot, ", "))
		case h.Policy != nil && s.Policy != h.Policy.Name:
			open = append(open, id+": its restart policy reads "+s.Policy+", not "+h.Policy.Name)
		}
	}
	slices.Sort(open)
	if len(open) > 0 {
		return r.Held(Release, open)
	}
	return ctx.Err()
}

// Close leaves an operation beyond its point of no return: the variable goes from
// every node that was started with it, by the rules of a chain that stands.
func (x *restarting) Close(ctx context.Context, r *Run) error {
	on := swapped(ctx, x.roll(r))
	sights := lookAll(ctx, x.fleet, on)
	on = slices.DeleteFunc(on, func(id string) bool { // a node that is held is on its old container, which has no variable
		s := sights[id]
		return !s.Reached && membersWaived(r) || s.Reached && s.Container == x.plan.Restart.Roll.Node(id).ContainerID
	})
	if err := x.unset(ctx, r, on, true); err != nil {
		return err
	}
	return x.closed(ctx, r, x.roll(r))
}
