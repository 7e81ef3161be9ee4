package gates

import (
	"fmt"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Code names a rule that a finding is about.
type Code string

// The rules of Check.
const (
	CrossedFrozen Code = "crossed_frozen" // the height in force is reached or nearly, so it never changes again
	Removed       Code = "removed"        // a gate that is gone is active from genesis
	TooNear       Code = "too_near"       // the new height leaves no margin above the tip
	LeadShort     Code = "lead_short"     // the new height is less than seven days away
	OffBoundary   Code = "off_boundary"   // not the first block of an epoch
	Duplicate     Code = "duplicate"      // two entries for one feature: the first wins silently
	Unreadable    Code = "unreadable"     // a height or id that the source does not say plainly
	Order         Code = "order"          // rules that must not start before, or apart from, each other
	NoEntry       Code = "no_entry"       // a declared id without a height is active from genesis
)

// Severity says whether a finding stands in the way.
type Severity string

// The severities.
const (
	Refuse Severity = "refuse"
	Warn   Severity = "warn"
)

// Finding is one thing about one gate of the new build. Old and New are the heights of the two builds, nil where a build has
// no entry or its height cannot be read.
type Finding struct {
	Feature  string   `json:"feature"`
	Old      *uint64  `json:"old"`
	New      *uint64  `json:"new"`
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
}

// Change is a gate whose height differs between the builds.
type Change struct {
	Feature string  `json:"feature"`
	Old     *uint64 `json:"old"`
	New     *uint64 `json:"new"`
	Kind    string  `json:"kind"` // added, moved, removed
}

// Report is the answer of Check.
type Report struct {
	Findings []Finding
	Changes  []Change
}

// OK reports whether nothing stands in the way; warnings do not.
func (r Report) OK() bool {
	for _, f := range r.Findings {
		if f.Severity == Refuse {
			return false
		}
	}
	return true
}

// Check judges replacing a build by another one while the chain stands at tip, the highest height of the whole fleet. For a
// gate whose height differs, that it is frozen is checked first: the old height decides whether it may change at all, and only
// then the new one whether it is far enough away. The rules about epoch boundaries and order apply to gates above the tip and
// to changed ones; what is history is left alone. One build against itself gives what is wrong with that build.
func Check(old, now Set, tip uint64) Report {
	c := &checker{old: old, now: now, tip: tip}
	seen := map[string]Gate{}
	for _, g := range now.Gates {
		if first, twice := seen[g.Feature]; twice {
			c.find(g.Feature, c.oldHeight(g.Feature), g.Height, Duplicate, Refuse, "listed in lines %d and %d of %s: the first wins silently", first.Line, g.Line, now.Source)
			continue
		}
		seen[g.Feature] = g
		c.gate(g)
	}
	c.removed()
	c.undeclared()
	c.order()
	return c.report
}

type checker struct {
	old, now Set
	tip      uint64
	report   Report
}

func (c *checker) find(feature string, old, now *uint64, code Code, severity Severity, format string, args ...any) {
	c.report.Findings = append(c.report.Findings, Finding{feature, old, now, code, severity, fmt.Sprintf(format, args...)})
}

// oldHeight is the height in force in the running build: that of its entry, or 0 for an id that is declared without one.
func (c *checker) oldHeight(feature string) *uint64 {
	if g, ok := c.old.Gate(feature); ok {
		return g.Height
	}
	if c.old.declares(feature) {
		return new(uint64)
	}
	return nil
}

// known reports whether the running build knows the rule, with or without an entry.
func (c *checker) known(feature string) bool {
	_, listed := c.old.Gate(feature)
	return listed || c.old.declares(feature)
}

// above adds without wrapping round.
func above(tip, blocks uint64) uint64 {
	if sum := tip + blocks; sum >= tip {
		return sum
	}
	return ^uint64(0)
}

func same(a, b *uint64) bool { return a != nil && b != nil && *a == *b }

// show is a height as the node's source writes it.
func show(h *uint64) string {
	if h == nil {
		return "unreadable"
	}
	return node.Underscored(*h)
}

// gate judges one entry of the new build against the running one.
func (c *checker) gate(g Gate) {
	old := c.oldHeight(g.Feature)
	known := c.known(g.Feature)
	changed := !known || !same(old, g.Height)
	if changed {
		kind := "moved"
		if !known {
			kind = "added"
		}
		c.report.Changes = append(c.report.Changes, Change{g.Feature, old, g.Height, kind})
	}
	margin := above(c.tip, node.GateMargin)
	switch {
	case known && old != nil && changed && *old <= margin:
		c.frozen(g, *old)
		return
	case g.Height == nil:
		c.find(g.Feature, old, nil, Unreadable, Refuse, "%s:%d: %s", c.now.Source, g.Line, g.Why)
		return
	case known && old == nil:
		running, _ := c.old.Gate(g.Feature)
		c.find(g.Feature, nil, g.Height, Unreadable, Refuse, "the height in the running build cannot be read (%s:%d: %s), so it may be frozen", c.old.Source, running.Line, running.Why)
		return
	case changed && *g.Height <= margin:
		c.near(g, old)
	case changed && *g.Height < above(c.tip, node.GateLead):
		c.find(g.Feature, old, g.Height, LeadShort, Warn, "%s is %d blocks above the tip %d, less than the %d (seven days) a rollout should have; catching up after a halt the chain runs up to %d times faster",
			show(g.Height), *g.Height-c.tip, c.tip, node.GateLead, catchUp)
	}
	if (changed || *g.Height > c.tip) && *g.Height%node.EpochBlocks != 0 {
		c.find(g.Feature, old, g.Height, OffBoundary, Refuse, "%s is no multiple of %d: rules that read the height and rules that read the start of the epoch would switch apart (the boundaries beside it are %s and %s)",
			show(g.Height), node.EpochBlocks, node.Underscored(*g.Height/node.EpochBlocks*node.EpochBlocks), node.Underscored(above(*g.Height/node.EpochBlocks*node.EpochBlocks, node.EpochBlocks)))
	}
}

func (c *checker) frozen(g Gate, old uint64) {
	what := fmt.Sprintf("gate already crossed, its height %s is frozen", node.Underscored(old))
	if old > c.tip {
		what = fmt.Sprintf("its height %s is only %d blocks above the tip %d and frozen (margin %d)", node.Underscored(old), old-c.tip, c.tip, node.GateMargin)
	}
	c.find(g.Feature, &old, g.Height, CrossedFrozen, Refuse, "%s; the new build says %s, and blocks between would replay under the other rule", what, show(g.Height))
}

func (c *checker) near(g Gate, old *uint64) {
	proposal := "there is no later boundary"
	if p, ok := Propose(c.tip); ok {
		proposal = "the next one to propose is " + node.Underscored(p.Height)
	}
	where := fmt.Sprintf("at or below the tip %d, so the rule would be born active", c.tip)
	if *g.Height > c.tip {
		where = fmt.Sprintf("%d blocks above the tip %d; more than %d are needed", *g.Height-c.tip, c.tip, node.GateMargin)
	}
	c.find(g.Feature, old, g.Height, TooNear, Refuse, "%s is %s; %s", show(g.Height), where, proposal)
}

// removed finds gates of the running build that the new one lacks: they would be active from genesis.
func (c *checker) removed() {
	seen := map[string]bool{}
	for _, g := range c.old.Gates {
		if _, kept := c.now.Gate(g.Feature); kept || seen[g.Feature] {
			continue
		}
		seen[g.Feature] = true
		if g.Height != nil && *g.Height == 0 {
			continue // active from genesis before and after
		}
		c.report.Changes = append(c.report.Changes, Change{g.Feature, g.Height, nil, "removed"})
		c.find(g.Feature, g.Height, nil, Removed, Refuse, "the gate at %s is gone from the new build, which makes its rule active from genesis: every block below replays under the other rule", show(g.Height))
	}
}

// undeclared finds ids and heights that the new build declares and does not list.
func (c *checker) undeclared() {
	for _, id := range c.now.IDs {
		_, listed := c.now.Gate(id.Feature)
		if listed || c.known(id.Feature) {
			continue
		}
		c.find(id.Feature, nil, nil, NoEntry, Refuse, "%s:%d: the id is new and has no activation height, so its rule is born active on every node that runs the build", c.now.Source, id.Line)
	}
	for _, g := range c.now.Idle {
		if !c.old.idle(g.Const) {
			c.find(g.Const, nil, nil, NoEntry, Warn, "%s:%d: no entry uses this height", c.now.Source, g.Line)
		}
	}
}

func (s Set) idle(name string) bool {
	for _, g := range s.Idle {
		if g.Const == name {
			return true
		}
	}
	return false
}

// pairs are the invariants between gates that the node's own tests hold (facts 6.4): the second never starts before the first,
// or both start together.
var pairs = []struct {
	first, second string
	together      bool
	why           string
}{
	{"tx_target_bound", "wallet_one_node", false, "before it a wallet could still become a super node by the way that tx_target_bound closes"},
	{"light_key_commitment", "light_shard_backup_owners", true, "one coordinated flip covers both"},
}

func (c *checker) order() {
	for _, p := range pairs {
		a, okA := c.now.Gate(p.first)
		b, okB := c.now.Gate(p.second)
		if !okA || !okB || a.Height == nil || b.Height == nil || !c.judged(a) && !c.judged(b) {
			continue
		}
		old := c.oldHeight(p.second)
		switch {
		case p.together && *a.Height != *b.Height:
			c.find(p.second, old, b.Height, Order, Refuse, "%s must start together with %s, at %s: %s", p.second, p.first, show(a.Height), p.why)
		case !p.together && *b.Height < *a.Height:
			c.find(p.second, old, b.Height, Order, Refuse, "%s must not start before %s, at %s: %s", p.second, p.first, show(a.Height), p.why)
		}
	}
}

// judged reports whether the rules about boundaries and order apply to a gate.
func (c *checker) judged(g Gate) bool {
	return *g.Height > c.tip || !c.known(g.Feature) || !same(c.oldHeight(g.Feature), g.Height)
}

// Summary is the report in one line.
func (r Report) Summary() string {
	var refused []string
	warnings := 0
	for _, f := range r.Findings {
		if f.Severity == Refuse {
			refused = append(refused, fmt.Sprintf("%s (%s)", f.Feature, f.Code))
		} else {
			warnings++
		}
	}
	switch {
	case len(refused) > 0:
		return "refused: " + strings.Join(refused, ", ")
	case warnings > 0:
		return fmt.Sprintf("nothing stands in the way, %d warnings", warnings)
	}
	return fmt.Sprintf("nothing stands in the way, %d gates changed", len(r.Changes))
}
