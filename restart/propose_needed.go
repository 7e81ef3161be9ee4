package restart

import (
	"cmp"
	"slices"
	"strings"
)

// MaxNeeded is how many undecided macroblocks are asked for in one round: at the node's rate limit some two minutes of a
// host's answers. A longer run is narrowed round by round: by its middle where a contradiction lies right above it (the
// fork may be anywhere in it), else by its newest part.
const MaxNeeded = 256

// needed lists what each operator has to add, by operator and index.
func (c *choice) needed() []NeededRange {
	var out []NeededRange
	left := uint64(MaxNeeded)
	fork, forked := c.lowest()
	for _, run := range c.runs() {
		from, to := run[0].from, run[len(run)-1].to
		if to-from >= left {
			if forked && fork.Index == to+1 {
				from += (to - from) / 2
				to = from
			} else {
				from = to - left + 1
			}
		}
		left -= min(left, to-from+1)
		for _, s := range run {
			if lo, hi := max(s.from, from), min(s.to, to); lo <= hi {
				out = append(out, s.ranges(lo, hi)...)
			}
		}
		if left == 0 || from > run[0].from {
			break
		}
	}
	return join(out)
}

// runs are the undecided segments in runs without a hole, newest run first, each ascending.
func (c *choice) runs() [][]segment {
	var out [][]segment
	for _, s := range c.open {
		if n := len(out); n > 0 && out[n-1][0].from == s.to+1 {
			out[n-1] = slices.Insert(out[n-1], 0, s)
			continue
		}
		out = append(out, []segment{s})
	}
	return out
}

// ranges are what the operators have to add to decide the indices from lo to hi of a segment.
func (s segment) ranges(lo, hi uint64) []NeededRange {
	var out []NeededRange
	for _, g := range s.unknown {
		r := NeededRange{Operator: g.party.name, IndexRange: IndexRange{From: lo, To: hi}, Reason: g.party.why(s.from)}
		if g.below {
			r.IndexRange, r.Reason = IndexRange{From: lo - 1, To: hi - 1}, g.party.why(s.from-1)
		}
		out = append(out, r)
	}
	return out
}

// join makes one range of those of an operator that touch.
func join(list []NeededRange) []NeededRange {
	slices.SortFunc(list, func(a, b NeededRange) int {
		return cmp.Or(strings.Compare(a.Operator, b.Operator), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), strings.Compare(a.Reason, b.Reason))
	})
	var out []NeededRange
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].Operator == r.Operator && r.From <= out[n-1].To+1 {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	return out
}
