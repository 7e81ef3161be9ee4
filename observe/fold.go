package observe

import (
	"fmt"
	"slices"
	"time"
)

// Range is the lowest and highest value in a group; nil where no node has one.
type Range struct{ Low, High *uint64 }

func (r *Range) add(v *uint64) {
	if v == nil {
		return
	}
	if r.Low == nil || *v < *r.Low {
		r.Low = v
	}
	if r.High == nil || *v > *r.High {
		r.High = v
	}
}

// String prints one number where both are the same.
func (r Range) String() string {
	switch {
	case r.Low == nil:
		return "?"
	case *r.Low == *r.High:
		return fmt.Sprint(*r.Low)
	}
	return fmt.Sprintf("%d-%d", *r.Low, *r.High)
}

// Group is a set of nodes that look the same: everything that a person would
// compare is equal, and what moves by itself is given as a range.
type Group struct {
	IDs   []string
	First NodeView // stands for what is equal
	// Odd marks every group but the largest, and whatever is not healthy.
	Odd bool

	Height, Behind, LastSealed, SealedLag, Finalized, ValidatedPeers, TimeoutRound Range
	// ClockOffset is the one furthest from zero; nil when none is known.
	ClockOffset *time.Duration
}

// Fold puts nodes that look the same into one group each. Groups with something
// odd come first, then the others, each in the order of the inventory.
func Fold(v View) []Group {
	var groups []Group
	at := map[string]int{}
	for _, n := range v.Nodes {
		key := n.likeness()
		i, seen := at[key]
		if !seen {
			i = len(groups)
			at[key] = i
			groups = append(groups, Group{First: n})
		}
		groups[i].add(n)
	}
	largest := 0
	for i, g := range groups {
		if len(g.IDs) > len(groups[largest].IDs) {
			largest = i
		}
	}
	for i := range groups {
		groups[i].Odd = i != largest || groups[i].First.Verdict != Healthy
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		switch {
		case a.Odd == b.Odd:
			return 0
		case a.Odd:
			return -1
		}
		return 1
	})
	return groups
}

func (g *Group) add(n NodeView) {
	g.IDs = append(g.IDs, n.ID)
	g.Height.add(n.Height)
	g.Behind.add(n.Behind)
	g.LastSealed.add(n.LastSealed)
	g.SealedLag.add(n.SealedLag)
	g.Finalized.add(n.Finalized)
	g.ValidatedPeers.add(n.ValidatedPeers)
	g.TimeoutRound.add(n.TimeoutRound)
	if n.ClockOffset != nil && (g.ClockOffset == nil || n.ClockOffset.Abs() > g.ClockOffset.Abs()) {
		g.ClockOffset = n.ClockOffset
	}
}

// likeness is what makes two nodes look the same. A reading that is missing on
// one of them tells them apart.
func (n NodeView) likeness() string {
	var container any
	if c := n.Container; c != nil {
		restarts := -1
		if c.RestartCount != nil {
			restarts = *c.RestartCount
		}
		container = []any{c.Image, c.Digest, c.State, restarts, c.RestartPolicy, c.OneShot}
	}
	known := []bool{n.Height != nil, n.TipHash != nil, n.LastSealed != nil, n.ValidatedPeers != nil, n.Disk != nil}
	var failed []string
	for _, c := range NodeChecks(n) {
		if c.Verdict != Pass {
			failed = append(failed, c.Name+" "+string(c.Verdict))
		}
	}
	return fmt.Sprintf("%q", fmt.Sprint(n.Verdict, n.Reasons, n.Reachable, deref(n.Build), container, known, failed,
		n.TimeoutRound != nil && *n.TimeoutRound > 0))
}

func deref(s *string) string {
	if s == nil {
		return "?"
	}
	return "=" + *s
}

// Oddity is what tells a group of nodes from the fleet's largest one.
type Oddity struct {
	IDs         []string
	Differences []string // "build 3333333, the others 1111111"
}

// Odd names the nodes that look unlike most others and how, also where each by
// itself is healthy: a build of its own, a restart more, a reading that only
// they lack. Without a largest group nobody is the odd one.
func Odd(v View) []Oddity {
	groups := Fold(v)
	largest, second := -1, 0
	for i, g := range groups {
		switch {
		case largest < 0 || len(g.IDs) > len(groups[largest].IDs):
			if largest >= 0 {
				second = len(groups[largest].IDs)
			}
			largest = i
		default:
			second = max(second, len(g.IDs))
		}
	}
	if largest < 0 || second == len(groups[largest].IDs) || !groups[largest].First.Reachable {
		return nil
	}
	var out []Oddity
	for i, g := range groups {
		if i == largest {
			continue
		}
		if d := g.First.differences(groups[largest].First); len(d) > 0 {
			out = append(out, Oddity{g.IDs, d})
		}
	}
	return out
}

// traits are the things of likeness that a person compares, by name.
func (n NodeView) traits() [][2]string {
	if !n.Reachable {
		return nil // nothing of it was seen, and its verdict says so
	}
	out := [][2]string{{"build", orUnknown(n.Build)}}
	c := n.Container
	if c == nil {
		c = &ContainerView{}
	}
	restarts := "unknown"
	if c.RestartCount != nil {
		restarts = fmt.Sprint(*c.RestartCount)
	}
	round := "0"
	if n.TimeoutRound != nil && *n.TimeoutRound > 0 {
		round = "above 0"
	}
	return append(out, [2]string{"image", c.Image}, [2]string{"digest", c.Digest}, [2]string{"state", c.State},
		[2]string{"restarts", restarts}, [2]string{"restart policy", c.RestartPolicy}, [2]string{"timeout round", round})
}

func orUnknown(s *string) string {
	if s == nil {
		return "unknown"
	}
	return *s
}

func (n NodeView) differences(most NodeView) []string {
	var out []string
	other := most.traits()
	for i, t := range n.traits() {
		if t[1] != other[i][1] {
			out = append(out, fmt.Sprintf("%s %s, the others %s", t[0], orNone(t[1]), orNone(other[i][1])))
		}
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
