package rolling

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/qnetops/qnetops/observe"
)

// spareBytes stays free on a host beside the image and the archived log: a
// validator that fills its disk refuses blocks.
const spareBytes = 5_000_000_000

// clockBound is how far a host's clock may be off: leaders are derived from
// it, and a drift over a second has forked the chain before (facts 8, 10).
const clockBound = time.Second

// Waivable says whether a check may be overridden by name. Those that protect
// data or the fence may not.
func Waivable(check string) bool {
	return slices.Contains(WaivableChecks(), check)
}

// WaivableChecks lists the names for --waive.
func WaivableChecks() []string {
	return []string{"build_stamp", "clock", "decree_not_taken", "decree_taken", "disk", "fleet", "latched", "leftover", "members", "one_shot",
		"point_of_no_return", "producing", "second_updater"}
}

// Preflight lists what speaks for and against running the plan now. A check
// that fails or cannot be answered refuses the plan unless it was waived.
func Preflight(view observe.View, in Inputs, plan Plan) []observe.Check {
	checks := append([]observe.Check{checkFleet(view, plan), checkCommittee(plan)}, in.Gates.checks(view, plan)...)
	for _, p := range plan.Nodes {
		input := in.Nodes[p.ID]
		n := view.Node(p.ID)
		if input.Err != nil || n == nil || !n.Reachable {
			checks = append(checks, observe.Check{Name: "reachable", Verdict: observe.Fail, Reason: unreachableReason(p.ID, n, input.Err)})
			continue
		}
		if p.Action == ActionNone {
			continue
		}
		checks = append(checks, checkContainer(p, input), checkDataDir(p, input), checkUpdater(p, n, input),
			checkDisk(p, input, plan), checkClock(p, n), checkPlatform(p, in), checkLeftover(p, input))
	}
	return checks
}

// Refusals returns the checks that refuse the plan, in a stable order.
func Refusals(checks []observe.Check, plan Plan) []observe.Check {
	var out []observe.Check
	for _, c := range checks {
		if c.Verdict == observe.Pass {
			continue
		}
		if _, ok := plan.waived(c.Name); ok && Waivable(c.Name) {
			continue
		}
		out = append(out, c)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func checkFleet(view observe.View, plan Plan) observe.Check {
	c := observe.Check{Name: "fleet", Verdict: observe.Pass, Reason: "verdict " + string(view.Verdict)}
	if view.Verdict == observe.Fork {
		return observe.Check{Name: "fork", Verdict: observe.Fail, Reason: firstReason(view.Reasons, "nodes disagree about the chain")}
	}
	if plan.RecoveryHalted {
		c.Reason += " (--recovery-halted)"
		return c
	}
	switch view.Verdict {
	case observe.Stalled, observe.Halted:
		c.Verdict = observe.Fail
		c.Reason = fmt.Sprintf("the fleet is %s (%s); M3 and M4 cannot pass on a chain that stands; --recovery-halted is the mode for that", view.Verdict, firstReason(view.Reasons, "no reason"))
	}
	if odd := unreadable(view, plan); len(odd) > 0 && c.Verdict == observe.Pass {
		c.Verdict, c.Reason = observe.Unknown, strings.Join(odd, "; ")
	}
	return c
}

// unreadable lists the nodes that answer and yet cannot be judged, unless they
// are left out by name. A host that is not reached at all counts as down in the
// quorum arithmetic instead.
func unreadable(view observe.View, plan Plan) []string {
	var out []string
	for _, n := range view.Nodes {
		if n.Reachable && n.Verdict == observe.StateUnknown && !slices.Contains(plan.Skipped, n.ID) {
			out = append(out, fmt.Sprintf("%s is unknown: %s", n.ID, firstReason(n.Reasons, "no reason")))
		}
	}
	return out
}

// checkCommittee: without a committee there is no quorum to keep, and the plan's
// arithmetic would change under the operator's eyes once one is known.
func checkCommittee(plan Plan) observe.Check {
	c := observe.Check{Name: "committee", Verdict: observe.Pass, Reason: fmt.Sprintf("%d members", plan.Committee.Size)}
	if plan.Committee.Size == 0 && !plan.RecoveryHalted {
		c.Verdict, c.Reason = observe.Unknown, "no sealed macroblock that the nodes have in common names the committee; on a young chain wait for its first seals"
	}
	return c
}

func checkContainer(p NodePlan, input NodeInput) observe.Check {
	c := observe.Check{Name: "container", Verdict: observe.Pass, Reason: p.ID + ": " + p.Container}
	if input.Facts.Container == nil {
		c.Verdict, c.Reason = observe.Fail, p.ID+": no container of the configured name on this host"
	}
	return c
}

func checkDataDir(p NodePlan, input NodeInput) observe.Check {
	c := observe.Check{Name: "data_dir", Verdict: observe.Pass, Reason: p.ID + ": " + p.DataPath}
	d := input.Carry.DataDir
	if !d.OK {
		c.Verdict = observe.Fail
		c.Reason = fmt.Sprintf("%s: the data directory in effect is %q now and would be %q: %s", p.ID, d.Old.HostPath, d.New.HostPath, d.Why)
	}
	return c
}

func checkUpdater(p NodePlan, n *observe.NodeView, input NodeInput) observe.Check {
	names := append([]string{}, input.Facts.Updaters...)
	if len(names) == 0 {
		names = n.Updaters
	}
	c := observe.Check{Name: "second_updater", Verdict: observe.Pass, Reason: p.ID + ": none"}
	if len(names) > 0 {
		c.Verdict = observe.Fail
		c.Reason = fmt.Sprintf("%s: %v updates containers on this host outside any roll; stop it first", p.ID, names)
	}
	return c
}

func checkDisk(p NodePlan, input NodeInput, plan Plan) observe.Check {
	c := observe.Check{Name: "disk", Verdict: observe.Unknown, Reason: p.ID + ": free space could not be read"}
	image := plan.Image.Bytes
	if image <= 0 && plan.Image.Digest != "" {
		image = input.Present.SizeBytes // a registry does not tell; builds are of a size
	}
	need := uint64(spareBytes) + uint64(max(image, 0))
	if ct := input.Facts.Container; ct != nil {
		need += uint64(max(ct.LogBytes, 0))
	}
	for _, d := range input.Facts.Disks {
		if d.Error != "" {
			return c
		}
		c.Verdict = observe.Pass
		c.Reason = fmt.Sprintf("%s: %d bytes free under %s, %d needed (image + log archive + 5 GB)", p.ID, d.FreeBytes, d.Path, need)
		if d.FreeBytes < need {
			c.Verdict = observe.Fail
			return c
		}
	}
	return c
}

func checkClock(p NodePlan, n *observe.NodeView) observe.Check {
	c := observe.Check{Name: "clock", Verdict: observe.Unknown, Reason: p.ID + ": clock offset could not be measured"}
	if n.ClockOffset == nil {
		return c
	}
	c.Verdict = observe.Pass
	if n.ClockOffset.Abs() > clockBound {
		c.Verdict = observe.Fail
	}
	c.Reason = fmt.Sprintf("%s: clock is off by %s, bound %s", p.ID, n.ClockOffset.Round(time.Millisecond), clockBound)
	return c
}

func checkPlatform(p NodePlan, in Inputs) observe.Check {
	c := observe.Check{Name: "platform", Verdict: observe.Pass, Reason: p.ID + ": image fits"}
	if in.Image == nil || in.Image.Arch == "" {
		return c
	}
	if have := in.Nodes[p.ID].Present.Arch; have != "" && have != in.Image.Arch {
		c.Verdict = observe.Fail
		c.Reason = fmt.Sprintf("%s: the image is for %s, the node runs %s", p.ID, in.Image.Arch, have)
	}
	return c
}

// checkLeftover: a container set aside by an earlier operation may be the only
// way back of a node; a second roll over it needs a decision.
func checkLeftover(p NodePlan, input NodeInput) observe.Check {
	c := observe.Check{Name: "leftover", Verdict: observe.Pass, Reason: p.ID + ": none"}
	for _, s := range input.Facts.Siblings {
		switch {
		case strings.HasPrefix(s.Name, p.Container+"-pre-"), strings.HasPrefix(s.Name, p.Container+"-next-"):
			c.Verdict = observe.Fail
			c.Reason = fmt.Sprintf("%s: container %s of an earlier operation is still there (%s)", p.ID, s.Name, leftoverWay(p, s.Name))
		case s.SharesData && s.Writable:
			c := observe.Check{Name: "data_shared", Verdict: observe.Fail, Reason: fmt.Sprintf("%s: container %s (%s) has the node's "+
				"data directory mounted, writable; two processes on one database destroy it", p.ID, s.Name, s.State)}
			if way := leftoverWay(p, s.Name); way != "" {
				c.Reason += " (" + way + ")"
			}
			return c
		}
	}
	return c
}

// leftoverWay says how a container that an operation left is done away with, by its kind of name; "" where it is none.
func leftoverWay(p NodePlan, name string) string {
	kind, tail, _ := strings.Cut(strings.TrimPrefix(name, p.Container+"-"), "-")
	remove := fmt.Sprintf("once no open operation needs it (qnetops ops), docker rm %s on the host removes it", name)
	switch kind {
	case "pre":
		return fmt.Sprintf("roll --finish OP removes it, restore %s puts it back", p.ID)
	case "next": // the end of the operation's id
		return fmt.Sprintf("a successor that never started, staged by the operation whose id ends in -%s; %s", tail, remove)
	case "failed":
		return fmt.Sprintf("a successor that an operation took back at %s; %s", tail, remove)
	}
	return ""
}

func unreachableReason(id string, n *observe.NodeView, err error) string {
	if err == nil && n != nil {
		err = n.Err
	}
	if err == nil {
		return id + ": not reachable; leave it out by name with --skip " + id
	}
	return fmt.Sprintf("%s: %v; leave it out by name with --skip %s", id, err, id)
}

func firstReason(reasons []string, otherwise string) string {
	if len(reasons) > 0 {
		return reasons[0]
	}
	return otherwise
}
