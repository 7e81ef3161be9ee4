package restart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

const (
	// FlatBlocks is for how many block times finality must have been flat before a stalled chain is restarted: two hours of
	// one block a second (DESIGN.md 3.5, facts 3).
	FlatBlocks = 7_200
	// SettleBlocks is how many block times after a rollback it is known whether the chain seals again (DESIGN.md 3.7).
	SettleBlocks = 180
)

// TriggerCheck is the name under which a trigger that does not hold is waived.
const TriggerCheck = "trigger"

// The kinds of a trigger.
const (
	TriggerStalled = "stalled"
	TriggerForged  = "forged"
)

// Trigger says whether a restart may be published at all. Anything less than a trigger is a fault to mend, not a restart.
type Trigger struct {
	Kind            string          `json:"kind"` // stalled or forged
	Verdict         observe.Verdict `json:"verdict"`
	Block           string          `json:"block"`            // block time of the chain, by which all times scale
	FlatBlocks      uint64          `json:"flat_blocks"`      // block times for which finality must have been flat
	Forged          *uint64         `json:"forged"`           // first macroblock that is forged; nil: none
	RollbackUseless string          `json:"rollback_useless"` // stated by the one who publishes; empty: not stated
	Checks          []observe.Check `json:"checks"`
	Waived          string          `json:"waived"` // reason of --waive trigger=REASON; empty: not waived
}

// Holds reports whether the trigger passed or was waived by name.
func (t Trigger) Holds() bool { return t.Verdict == observe.Pass || t.Waived != "" }

// TriggerInput is what beside the evidence decides.
type TriggerInput struct {
	K               uint64
	Block           time.Duration // block time of the chain
	Forged          uint64        // first forged macroblock; 0: none is
	RollbackUseless string        // why a rollback would not help, stated by name
	Absent          []Absent      // operators who are named as absent
	Waived          string
}

// CheckTrigger judges merged evidence. A stalled chain is restarted when finality was flat for more than two hours on every
// operator's hosts and a rollback was done or shown useless; a chain with a forged macroblock as soon as that is confirmed, and
// from a K strictly below it. It is a function of its arguments: everyone with the same files comes to the same answer.
func CheckTrigger(m Merged, in TriggerInput) Trigger {
	flat := FlatBlocks * in.Block
	t := Trigger{Kind: TriggerStalled, Block: in.Block.String(), FlatBlocks: FlatBlocks, RollbackUseless: in.RollbackUseless, Waived: in.Waived}
	if in.Forged > 0 {
		t.Kind, t.Forged = TriggerForged, &in.Forged
		t.Checks = []observe.Check{checkForged(in), checkForgedShown(m, in)}
	} else {
		t.Checks = []observe.Check{checkFlat(m, in, flat), checkRollback(m, in)}
	}
	t.Verdict = observe.Pass
	for _, c := range t.Checks {
		t.Verdict = worse(t.Verdict, c.Verdict)
	}
	return t
}

// Reasons names the checks that do not pass.
func (t Trigger) Reasons() []string {
	var out []string
	for _, c := range t.Checks {
		if c.Verdict != observe.Pass {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Name, c.Verdict, c.Reason))
		}
	}
	return out
}

// worse is the verdict of two checks that must both pass: fail before unknown before pass.
func worse(a, b observe.Verdict) observe.Verdict {
	switch {
	case a == observe.Fail || b == observe.Fail:
		return observe.Fail
	case a == observe.Pass && b == observe.Pass:
		return observe.Pass
	}
	return observe.Unknown
}

func checkForged(in TriggerInput) observe.Check {
	c := observe.Check{Name: "below_forged", Verdict: observe.Pass, Reason: fmt.Sprintf("K %d is below the first forged macroblock %d", in.K, in.Forged)}
	if in.K >= in.Forged {
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("K %d is not below the first forged macroblock %d: the restart would keep the forged state", in.K, in.Forged)
	}
	return c
}

// checkForgedShown wants somebody to show that there is a sealed macroblock where finality is said to be forged. That it is forged
// no evidence can show: it is stated by the one who publishes, and every operator judges it himself.
func checkForgedShown(m Merged, in TriggerInput) observe.Check {
	for _, op := range m.Operators {
		for i := range op.Evidence.Hosts {
			if h := &op.Evidence.Hosts[i]; h.newest() >= in.Forged {
				return observe.Check{Name: "forged_sealed", Verdict: observe.Pass,
					Reason: fmt.Sprintf("%s/%s has sealed macroblock %d; that it is forged is stated by the one who publishes", op.Evidence.Operator, h.ID, in.Forged)}
			}
		}
	}
	return observe.Check{Name: "forged_sealed", Verdict: observe.Fail, Reason: fmt.Sprintf("no host has sealed macroblock %d, so it cannot be forged", in.Forged)}
}

// reading is what one host contributes to a check.
type reading struct {
	verdict observe.Verdict
	text    string
	// silent is a host that could not be reached: it neither shows nor hinders.
	silent bool
}

// checkFlat asks every operator for hosts whose newest sealed macroblock is old, and none whose is not. A node that answers and
// whose newest seal is not known might hold a fresh one, so it keeps the answer open; a node that is down holds nothing open.
func checkFlat(m Merged, in TriggerInput, flat time.Duration) observe.Check {
	c := observe.Check{Name: "finality_flat", Evidence: map[string]string{}}
	return perOperator(c, m, in.Absent, func(h HostFinding, taken time.Time) reading { return flatReading(h, taken, flat) }, fold("no host of %s could be reached", worse))
}

func flatReading(h HostFinding, taken time.Time, flat time.Duration) reading {
	if !h.Reachable {
		return reading{observe.Unknown, "not reached: " + h.Reason, true}
	}
	if !h.answered() {
		return reading{observe.Unknown, "its node is down: " + h.Reason, true}
	}
	mb, why := newestSeal(h)
	if why != "" {
		return reading{observe.Unknown, why, false}
	}
	age := taken.Sub(unixTime(*mb.Timestamp))
	text := fmt.Sprintf("macroblock %d sealed %s, %s before the evidence", mb.Index, unixTime(*mb.Timestamp).Format(time.RFC3339), age)
	switch {
	case age < 0:
		return reading{observe.Fail, fmt.Sprintf("macroblock %d is stamped %s, after the evidence was taken", mb.Index, unixTime(*mb.Timestamp).Format(time.RFC3339)), false}
	case age <= flat:
		return reading{observe.Fail, text + fmt.Sprintf(", not more than %s", flat), false}
	}
	return reading{observe.Pass, text, false}
}

// newestSeal is the newest sealed macroblock a host shows, with its time; or why that is not known.
func newestSeal(h HostFinding) (Macroblock, string) {
	if h.Sealed == nil {
		return Macroblock{}, "its last sealed macroblock is not known"
	}
	newest := h.newest()
	for _, mb := range h.Macroblocks {
		if mb.Index == newest && mb.Held == HeldYes && mb.Timestamp != nil {
			return mb, ""
		}
	}
	return Macroblock{}, fmt.Sprintf("the time of its last sealed macroblock %d is not known", newest)
}

// unixTime is a chain timestamp; one beyond the calendar becomes its end, which is in the future of every evidence.
func unixTime(seconds uint64) time.Time {
	const end = 253_402_300_799 // 9999-12-31T23:59:59Z
	return time.Unix(int64(min(seconds, end)), 0).UTC()
}

// checkRollback asks every operator for a rollback after the stall began, done or refused by the node, which left finality flat
// long enough to know that it did not help.
func checkRollback(m Merged, in TriggerInput) observe.Check {
	c := observe.Check{Name: "rollback", Evidence: map[string]string{}}
	if in.RollbackUseless != "" {
		c.Verdict, c.Reason = observe.Pass, "stated useless by the one who publishes: "+in.RollbackUseless
		return c
	}
	begun, ok := stallBegan(m)
	if !ok {
		c.Verdict, c.Reason = observe.Unknown, "no host shows when the last macroblock was sealed, so no rollback can be told from an older one"
		return c
	}
	settle := SettleBlocks * in.Block
	return perOperator(c, m, in.Absent, func(h HostFinding, taken time.Time) reading { return rollbackReading(h, taken, begun, settle) }, fold("no host of %s could be reached", better))
}

// stallBegan is the time of the newest seal that anyone shows.
func stallBegan(m Merged) (time.Time, bool) {
	var newest uint64
	for _, op := range m.Operators {
		for _, h := range op.Evidence.Hosts {
			if mb, why := newestSeal(h); why == "" {
				newest = max(newest, *mb.Timestamp)
			}
		}
	}
	return unixTime(newest), newest > 0
}

// better is the verdict of two hosts of which one is enough.
func better(a, b observe.Verdict) observe.Verdict {
	switch {
	case a == observe.Pass || b == observe.Pass:
		return observe.Pass
	case a == observe.Unknown && b == observe.Unknown:
		return observe.Unknown
	}
	return observe.Fail
}

// rollbackReading is the newest rollback line of a host that counts, else the newest that does not.
func rollbackReading(h HostFinding, taken, begun time.Time, settle time.Duration) reading {
	out := reading{observe.Unknown, "no line of a rollback", !h.Reachable}
	for _, line := range h.Lines {
		what, verdict := rollbackLine(line.Text)
		if what == "" {
			continue
		}
		switch {
		case line.At == nil:
			verdict, what = observe.Unknown, what+", at an unknown time"
		case line.At.Before(begun):
			verdict, what = observe.Unknown, what+" at "+line.At.UTC().Format(time.RFC3339)+", before the last seal: not of this stall"
		case verdict == observe.Pass && taken.Sub(*line.At) < settle:
			verdict, what = observe.Unknown, fmt.Sprintf("%s at %s: whether it helped is known %s after it", what, line.At.UTC().Format(time.RFC3339), settle)
		default:
			what += " at " + line.At.UTC().Format(time.RFC3339)
		}
		if out.verdict != observe.Pass || verdict == observe.Pass {
			out = reading{verdict, what, false}
		}
	}
	return out
}

// rollbackLine reads the lines of facts 4.6. A rollback that ended, and one that the node refused because nothing may be rolled
// back, both show that rolling back is no way out; one that failed shows nothing of the kind.
func rollbackLine(text string) (what string, verdict observe.Verdict) {
	l := node.ParseLine(text)
	if to, dropped, ok := node.Truncated(l); ok {
		return fmt.Sprintf("rolled back to %d, %d blocks dropped", to, dropped), observe.Pass
	}
	if target, floor, ok := node.RollbackRefused(l); ok {
		return fmt.Sprintf("rollback to %d refused, certified floor %d", target, floor), observe.Pass
	}
	if l.Module != "ROLLBACK" {
		return "", ""
	}
	switch l.Event {
	case "no_certified_point_found", "already_at_or_below":
		return "rollback: " + l.Event, observe.Pass
	case "failed":
		return "rollback failed", observe.Fail
	}
	return "", ""
}

// folder makes one verdict of an operator's hosts.
type folder func(operator string, hosts map[string]reading) (observe.Verdict, string)

// fold combines the verdicts of the hosts that were reached; none reached is unknown, for the reason given.
func fold(none string, combine func(a, b observe.Verdict) observe.Verdict) folder {
	return func(operator string, hosts map[string]reading) (observe.Verdict, string) {
		ids := slices.DeleteFunc(slices.Sorted(maps.Keys(hosts)), func(id string) bool { return hosts[id].silent })
		if len(ids) == 0 {
			return observe.Unknown, fmt.Sprintf(none, operator)
		}
		verdict := hosts[ids[0]].verdict
		for _, id := range ids[1:] {
			verdict = combine(verdict, hosts[id].verdict)
		}
		decisive := ids[slices.IndexFunc(ids, func(id string) bool { return hosts[id].verdict == verdict })]
		return verdict, operator + "/" + decisive + ": " + hosts[decisive].text
	}
}

// perOperator demands a check of every operator: of those with evidence by their hosts, and of those expected and not named as
// absent that there is evidence at all.
func perOperator(c observe.Check, m Merged, absent []Absent, read func(h HostFinding, taken time.Time) reading, judge folder) observe.Check {
	c.Verdict = observe.Pass
	var bad []string
	seen := map[string]bool{}
	for _, a := range absent {
		seen[a.Operator] = true
	}
	for _, op := range m.Operators {
		e := op.Evidence
		seen[e.Operator] = true
		hosts := map[string]reading{}
		for _, h := range e.Hosts {
			r := read(h, op.readAt(h.ID))
			hosts[h.ID], c.Evidence[e.Operator+"/"+h.ID] = r, r.text
		}
		verdict, reason := judge(e.Operator, hosts)
		c.Verdict = worse(c.Verdict, verdict)
		if verdict != observe.Pass {
			bad = append(bad, reason)
		}
	}
	for _, name := range m.Expected {
		if !seen[name] {
			c.Verdict = worse(c.Verdict, observe.Unknown)
			bad = append(bad, "there is no evidence of "+name)
		}
	}
	switch {
	case len(m.Operators) == 0:
		c.Verdict, c.Reason = observe.Unknown, "there is no evidence"
	case len(bad) > 0:
		c.Reason = strings.Join(bad, "; ")
	default:
		c.Reason = fmt.Sprintf("shown by all of %d operators", len(m.Operators))
	}
	return c
}
