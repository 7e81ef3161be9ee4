package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/node"
)

// stallBlocks is for how many blocks nothing is sealed until the fleet is stalled by
// its own verdict: more than four windows.
const stallBlocks = 5*node.MacroblockBlocks + 50

// rollback is a fleet that stalls above its last seal and goes back together: first
// by the node's variable, then, stalled anew, by a decree.
func (r *rehearsal) rollback(ctx context.Context) {
	r.healthy(ctx)
	began := r.unsealed(ctx)
	between := r.heightBetween(ctx)
	r.command(ctx, want{exit: exitRefused, says: []string{"rollback_height", "two certified points"}, label: "rollback to a height between two certified points"},
		"rollback", "--to-height", fmt.Sprint(between), "--yes")
	r.command(ctx, want{exit: exitDone}, "rollback", "--to-last-sealed", "--dry-run")
	healed := r.during(ctx, "the silent nodes are mended while all are stopped", "every node is stopped", nobodyRuns, func() error { return r.lab.Clear("", "") })
	r.command(ctx, want{exit: exitDone, judge: cutoverDone(wentOn(rolledBack)), label: "rollback --to-last-sealed --yes"}, "rollback", "--to-last-sealed", "--yes", "-o", "json")
	healed()
	r.do(ctx, "no container carries the variable any more", "one container on each host, as it was, without the variable", r.unarmed)
	r.healthy(ctx)
	if !r.failed() {
		r.restored = time.Since(began)
	}
	r.decree(ctx)
}

// decree is the same by one order that the genesis nodes sign.
func (r *rehearsal) decree(ctx context.Context) {
	const seq = "1"
	r.unsealed(ctx)
	floor, err := r.certified(ctx)
	if err != nil {
		r.do(ctx, "the certified height is read", "an answer of every node", func() string { return err.Error() })
	}
	target := fmt.Sprint(floor + node.CheckpointBlocks)
	r.command(ctx, want{exit: exitRefused, says: []string{"certified_floor"}, label: "decree endorse below what is certified"},
		"decree", "endorse", "--seq", seq, "--target", fmt.Sprint(node.CheckpointBlocks), "--yes")
	r.command(ctx, want{exit: exitDone}, "decree", "endorse", "--seq", seq, "--target", target, "--out", r.path("endorsed.json"), "--yes")
	began := time.Now()
	healed := r.during(ctx, "the silent nodes are mended once the decree is carried out", "a node has started anew",
		func(lab.Status) bool { return r.startedSince(began) }, func() error { return r.lab.Clear("", "") })
	r.command(ctx, want{exit: exitDone, judge: cutoverDone(wentOn(pruned)), label: "decree submit --seq " + seq + " --target " + target + " endorsed.json --yes"},
		"decree", "submit", "--seq", seq, "--target", target, r.path("endorsed.json"), "--yes", "-o", "json")
	healed()
	r.do(ctx, "every node runs as before", "one container on each host, as it was", r.unarmed)
	r.healthy(ctx)
}

// unsealed makes so many nodes silent that nothing more is certified, and lets
// blocks pile up. It returns when it was decided that something must be done.
func (r *rehearsal) unsealed(ctx context.Context) time.Time {
	silent := r.tooMany()
	r.do(ctx, fmt.Sprintf("hosts %s fall silent: %d blocks and no seal", strings.Join(silent, ", "), stallBlocks), "blocks go on, seals do not", func() string {
		if err := r.inject(silent, string(simnode.FaultMute), ""); err != nil {
			return err.Error()
		}
		from := topOf(r.lab.Status(ctx))
		return errorText(r.lab.WaitFor(ctx, "blocks above the last seal", func(s lab.Status) bool { return topOf(s) >= from+stallBlocks }))
	})
	r.command(ctx, want{exit: exitRefused, says: []string{"stalled"}}, "status", "--check")
	return time.Now()
}

// heightBetween is a height above what is certified that is no certified point.
func (r *rehearsal) heightBetween(ctx context.Context) uint64 {
	floor, err := r.certified(ctx)
	r.do(ctx, "the certified height is read", "an answer of every node", func() string { return errorText(err) })
	return floor + node.CheckpointBlocks + 7
}

func nobodyRuns(s lab.Status) bool {
	return !slices.ContainsFunc(s.Nodes, func(n lab.NodeStatus) bool { return n.State != "exited" })
}

// wentOn holds a cut-over to a chain that seals and to hosts that each did what they
// should.
func wentOn(each func(cutover.HostResult) string) func(cutover.Document) string {
	return func(doc cutover.Document) string {
		if doc.Chain == nil || doc.Chain.Verdict != cutover.ChainSealing {
			return fmt.Sprintf("a chain that does not seal: %+v", doc.Chain)
		}
		var wrong []string
		for _, h := range doc.Hosts {
			if bad := each(h); h.State != cutover.Finished || bad != "" {
				wrong = append(wrong, fmt.Sprintf("%s is %s: %s%s", h.ID, h.State, h.Text, bad))
			}
		}
		return strings.Join(wrong, "; ")
	}
}

func rolledBack(h cutover.HostResult) string {
	if h.Rollback == nil || h.Rollback.Outcome != cutover.RollbackDrop {
		return fmt.Sprintf(" its log says %+v", h.Rollback)
	}
	return ""
}

func pruned(h cutover.HostResult) string {
	if h.Decree == nil || !h.Decree.Restarted || h.Decree.Pruned == nil || !*h.Decree.Pruned {
		return fmt.Sprintf(" its log says %+v", h.Decree)
	}
	return ""
}

// unarmed says which host has other than one container that runs with the policy it
// had and without a variable of a rollback.
func (r *rehearsal) unarmed() string {
	var wrong []string
	for _, h := range r.lab.Hosts() {
		all := h.Engine().Containers()
		for _, c := range all {
			armed := slices.ContainsFunc(c.Env, func(e string) bool {
				return strings.HasPrefix(e, host.VarRollbackToSealed+"=") || strings.HasPrefix(e, host.VarRollbackToHeight+"=")
			})
			if len(all) != 1 || c.State != "running" || c.RestartPolicy != "always" || armed {
				wrong = append(wrong, fmt.Sprintf("host %s: %s is %s, policy %s, variable %v", h.ID(), c.Name, c.State, c.RestartPolicy, armed))
			}
		}
	}
	return strings.Join(wrong, "; ")
}

// startedSince says whether a node's container has started again.
func (r *rehearsal) startedSince(then time.Time) bool {
	for _, h := range r.lab.Hosts() {
		if slices.ContainsFunc(h.Engine().Containers(), func(c engine.Summary) bool { return c.StartedAt.After(then) }) {
			return true
		}
	}
	return false
}
