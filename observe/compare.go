package observe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// fact is one thing a node said in one round of reading: the hash at a height,
// or of a macroblock.
type fact struct {
	round int
	key   uint64
	value node.Hash
}

// relation is how two nodes compare.
type relation int

const (
	apart   relation = iota // nothing in common
	agree                   // the last comparison was equal
	suspect                 // different, once
	split                   // different, in two rounds of reading, and still
)

// compareFacts compares two nodes round by round. A node that sealed something of
// its own drops it and fetches the common one, and a tip may be replaced, so one
// difference is only a suspicion and a later agreement clears it.
func compareFacts(a, b []fact) (relation, uint64) {
	out, at, different := apart, uint64(0), 0
	for _, round := range rounds(a, b) {
		key, va, vb, ok := common(a, b, round)
		if !ok {
			continue
		}
		at = key
		if va == vb {
			out = agree
			continue
		}
		if different++; different >= 2 {
			out = split
		} else {
			out = suspect
		}
	}
	return out, at
}

func rounds(lists ...[]fact) []int {
	var out []int
	for _, l := range lists {
		for _, f := range l {
			out = append(out, f.round)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// common finds the highest key both have said up to a round, one of them in it.
func common(a, b []fact, round int) (key uint64, va, vb node.Hash, ok bool) {
	for _, fa := range a {
		if fa.round > round || superseded(a, fa, round) {
			continue
		}
		for _, fb := range b {
			if fb.key != fa.key || fb.round > round || superseded(b, fb, round) {
				continue
			}
			if max(fa.round, fb.round) == round && (!ok || fa.key > key) {
				key, va, vb, ok = fa.key, fa.value, fb.value, true
			}
		}
	}
	return key, va, vb, ok
}

// superseded reports that a later reading up to the round speaks of the same key.
func superseded(l []fact, f fact, round int) bool {
	for _, o := range l {
		if o.key == f.key && o.round > f.round && o.round <= round {
			return true
		}
	}
	return false
}

// matrix holds how every node compares with the others by one kind of fact.
type matrix struct {
	agrees, splits, suspects []int
	splitAt, suspectAt       []uint64
}

// compareAll compares all pairs. Nodes that said the same things form one class,
// so that a fleet of a thousand costs a handful of comparisons.
func compareAll(facts [][]fact) matrix {
	n := len(facts)
	m := matrix{make([]int, n), make([]int, n), make([]int, n), make([]uint64, n), make([]uint64, n)}
	classes := map[string][]int{}
	var order []string
	for i, f := range facts {
		if len(f) == 0 {
			continue
		}
		sig := fmt.Sprint(f)
		if classes[sig] == nil {
			order = append(order, sig)
		}
		classes[sig] = append(classes[sig], i)
	}
	for i, sa := range order {
		m.note(classes[sa], len(classes[sa])-1, agree, 0)
		for _, sb := range order[i+1:] {
			rel, at := compareFacts(facts[classes[sa][0]], facts[classes[sb][0]])
			m.note(classes[sa], len(classes[sb]), rel, at)
			m.note(classes[sb], len(classes[sa]), rel, at)
		}
	}
	return m
}

func (m matrix) note(nodes []int, others int, rel relation, at uint64) {
	for _, i := range nodes {
		switch rel {
		case agree:
			m.agrees[i] += others
		case suspect:
			m.suspects[i] += others
			m.suspectAt[i] = at
		case split:
			m.splits[i] += others
			m.splitAt[i] = at
		}
	}
}

// odd reports that node i differs from more nodes than it agrees with: the side
// of a fork that has no majority, or both sides when none has.
func (m matrix) odd(i int) bool { return m.splits[i] > 0 && m.splits[i] > m.agrees[i] }

// doubtful is odd on the word of a single reading.
func (m matrix) doubtful(i int) bool { return m.suspects[i] > 0 && m.suspects[i] > m.agrees[i] }

func (m matrix) any(rel []int) bool {
	return slices.ContainsFunc(rel, func(n int) bool { return n > 0 })
}

// tipFacts and the others turn a node's readings into comparable facts.
func tipFacts(n NodeView) []fact {
	var out []fact
	for _, s := range n.Samples {
		if s.TipHash != nil {
			out = append(out, fact{s.Round, s.Height, *s.TipHash})
		}
	}
	return out
}

func sealFacts(n NodeView) []fact {
	var out []fact
	for _, s := range n.Seals {
		out = append(out, fact{s.Round, s.Index, s.Hash})
	}
	return out
}

func digestFacts(n NodeView) []fact {
	var out []fact
	for _, s := range n.Seals {
		if s.Digest != nil {
			out = append(out, fact{s.Round, s.Index, *s.Digest})
		}
	}
	return out
}

// comparison is how the nodes of a view compare, by tip, by sealed macroblock and
// by its committee fields.
type comparison struct{ tips, seals, digests matrix }

func compare(nodes []NodeView) comparison {
	by := func(f func(NodeView) []fact) matrix {
		all := make([][]fact, len(nodes))
		for i, n := range nodes {
			all[i] = f(n)
		}
		return compareAll(all)
	}
	return comparison{by(tipFacts), by(sealFacts), by(digestFacts)}
}

// forked says whether and how node i is on another history than most.
func (c comparison) forked(i int) (string, bool) {
	var why []string
	if c.tips.odd(i) {
		why = append(why, fmt.Sprintf("another tip hash than %s at height %d, read twice", nodesWord(c.tips.splits[i]), c.tips.splitAt[i]))
	}
	if c.seals.odd(i) {
		why = append(why, fmt.Sprintf("another hash of macroblock %d than %s, read twice", c.seals.splitAt[i], nodesWord(c.seals.splits[i])))
	}
	if c.digests.odd(i) {
		why = append(why, fmt.Sprintf("other committee fields in macroblock %d than %s, read twice", c.digests.splitAt[i], nodesWord(c.digests.splits[i])))
	}
	return strings.Join(why, "; "), len(why) > 0
}

// doubted says that node i differed once and could not be read again.
func (c comparison) doubted(i int) (string, bool) {
	switch {
	case c.tips.doubtful(i):
		return fmt.Sprintf("another tip hash at height %d, read only once", c.tips.suspectAt[i]), true
	case c.seals.doubtful(i):
		return fmt.Sprintf("another hash of macroblock %d, read only once", c.seals.suspectAt[i]), true
	case c.digests.doubtful(i):
		return fmt.Sprintf("other committee fields in macroblock %d, read only once", c.digests.suspectAt[i]), true
	}
	return "", false
}

func nodesWord(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
