package restart

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/qnetops/qnetops/node"
)

// Asker gives the hashes of one host's macroblocks. A macroblock is part of a hash chain: two hosts that have the same hash
// at an index have the same ones at all below it.
type Asker interface {
	// HashAt computes the hash of macroblock index (1 or more) from its fields. An error is unknown, whatever it is.
	HashAt(ctx context.Context, index uint64) (node.Hash, error)
}

// Branch is one host in a search for forks.
type Branch struct {
	ID    string
	Last  uint64 // newest macroblock it holds
	Asker Asker
}

// Fork is where chains part: Agreed is the last macroblock at which the hosts have the same hash (0: before the first),
// Index the first at which they are known to differ. Between them nothing is known, and nothing is to be known where Index
// is Agreed+1.
type Fork struct {
	Agreed uint64
	Index  uint64
	// Sides are the hosts on each side, by ID. Hosts of which it is not known are in no side.
	Sides [][]string
}

// Exact says whether the first differing macroblock was found.
func (f Fork) Exact() bool { return f.Index == f.Agreed+1 }

// ForkSearch is what a search found.
type ForkSearch struct {
	Forks   []Fork            // by Index
	Unknown map[string]string // hosts that did not answer, and why
	Asked   map[string]int    // requests per host
}

// Requests is the most that one host is asked to find forks among n macroblocks: 2·log2(n), and at least one.
func Requests(n uint64) int {
	if n < 2 {
		return 1
	}
	return max(1, int(2*math.Log2(float64(n))))
}

// FindForks finds the points at which the chains of hosts part, by bisection from agreed, at which all are taken to have
// the same hash (0 is before the first macroblock). No host is asked more than Requests times; where that is not enough,
// which takes more than three different chains, a fork is given by the range in which it lies. A host that fails to answer
// is not asked again, and is on no side of what is found after that.
func FindForks(ctx context.Context, branches []Branch, agreed uint64) ForkSearch {
	s := &forkSearch{ctx: ctx, known: map[string]map[uint64]node.Hash{},
		result: ForkSearch{Unknown: map[string]string{}, Asked: map[string]int{}}}
	var set []Branch
	for _, b := range branches {
		s.known[b.ID] = map[uint64]node.Hash{}
		s.most = max(s.most, b.Last)
		if b.Last > agreed {
			set = append(set, b)
		}
	}
	s.budget = Requests(s.most - min(s.most, agreed))
	slices.SortFunc(set, func(a, b Branch) int { return compareUTF16(a.ID, b.ID) })
	s.resolve(set, agreed)
	slices.SortStableFunc(s.result.Forks, func(a, b Fork) int {
		return cmp.Compare(a.Index, b.Index)
	})
	return s.result
}

type forkSearch struct {
	ctx    context.Context
	known  map[string]map[uint64]node.Hash
	most   uint64
	budget int
	result ForkSearch
}

// resolve finds all forks above low among hosts that agree there.
func (s *forkSearch) resolve(set []Branch, low uint64) {
	if len(set) < 2 || s.ctx.Err() != nil {
		return
	}
	top := set[0].Last
	for _, b := range set {
		top = min(top, b.Last)
	}
	groups := s.split(set, top)
	if len(groups) > 1 {
		s.part(groups, low, top)
	}
	for _, g := range groups {
		s.resolve(slices.DeleteFunc(slices.Clone(g), func(b Branch) bool { return b.Last <= top }), top)
	}
}

// pending is a search among groups that agree at low and differ at high.
type pending struct {
	groups    [][]Branch
	low, high uint64
}

// part finds the first index above low at which groups differ that agree at low and differ at high, and after that, which
// counts more for choosing K, the forks between those of them that part later.
func (s *forkSearch) part(groups [][]Branch, low, high uint64) {
	var later []pending
	for high-low > 1 {
		middle := low + (high-low)/2
		sides, dumb := s.sides(groups, middle)
		if len(dumb) > 0 {
			// Where these part from the others stays open; the others are told apart without them.
			s.found(groups, low, high)
			if groups = slices.Concat(sides...); len(groups) < 2 {
				break
			}
			continue
		}
		if len(sides) == 1 {
			low = middle
			continue
		}
		groups = nil
		for _, side := range sides {
			if len(side) > 1 {
				later = append(later, pending{side, middle, high})
			}
			groups = append(groups, slices.Concat(side...))
		}
		high = middle
	}
	if len(groups) > 1 {
		s.found(groups, low, high)
	}
	for _, p := range later {
		s.part(p.groups, p.low, p.high)
	}
}

// sides puts groups together that have the same hash at an index; dumb are those of which nobody says it. One host speaks
// for each group: below the index at which they were told apart its members have the same chain.
func (s *forkSearch) sides(groups [][]Branch, index uint64) (sides [][][]Branch, dumb [][]Branch) {
	var hashes []node.Hash
	for _, g := range groups {
		h, ok := s.spoken(g, index)
		if !ok {
			dumb = append(dumb, g)
			continue
		}
		i := slices.Index(hashes, h)
		if i < 0 {
			hashes, sides = append(hashes, h), append(sides, nil)
			i = len(hashes) - 1
		}
		sides[i] = append(sides[i], g)
	}
	return sides, dumb
}

// spoken is the hash of a group, from the first of its members that gives one.
func (s *forkSearch) spoken(group []Branch, index uint64) (node.Hash, bool) {
	for {
		b, ok := s.speaker(group, index)
		if !ok {
			return node.Hash{}, false
		}
		if h, ok := s.hash(b, index); ok {
			return h, true
		}
	}
}

func (s *forkSearch) found(groups [][]Branch, low, high uint64) {
	f := Fork{Agreed: low, Index: high}
	for _, g := range groups {
		var ids []string
		for _, b := range g {
			ids = append(ids, b.ID)
		}
		slices.Sort(ids)
		f.Sides = append(f.Sides, ids)
	}
	slices.SortFunc(f.Sides, func(a, b []string) int { return slices.Compare(a, b) })
	s.result.Forks = append(s.result.Forks, f)
}

// speaker picks a host of a group that knows an index already, or else the one that was asked least and may be asked.
func (s *forkSearch) speaker(group []Branch, index uint64) (Branch, bool) {
	best, found := Branch{}, false
	for _, b := range group {
		if _, ok := s.known[b.ID][index]; ok {
			return b, true
		}
		if s.mayAsk(b) && (!found || s.result.Asked[b.ID] < s.result.Asked[best.ID]) {
			best, found = b, true
		}
	}
	return best, found
}

func (s *forkSearch) mayAsk(b Branch) bool {
	return s.result.Unknown[b.ID] == "" && s.result.Asked[b.ID] < s.budget
}

// split asks hosts for their hash at an index and puts equal ones together; those that do not say are left out.
func (s *forkSearch) split(set []Branch, index uint64) [][]Branch {
	var hashes []node.Hash
	var groups [][]Branch
	for _, b := range set {
		h, ok := s.hash(b, index)
		if !ok {
			continue
		}
		i := slices.Index(hashes, h)
		if i < 0 {
			hashes, groups = append(hashes, h), append(groups, nil)
			i = len(hashes) - 1
		}
		groups[i] = append(groups[i], b)
	}
	return groups
}

func (s *forkSearch) hash(b Branch, index uint64) (node.Hash, bool) {
	if h, ok := s.known[b.ID][index]; ok {
		return h, true
	}
	if !s.mayAsk(b) {
		if s.result.Unknown[b.ID] == "" {
			s.result.Unknown[b.ID] = fmt.Sprintf("asked %d times, which is the bound of a search", s.budget)
		}
		return node.Hash{}, false
	}
	s.result.Asked[b.ID]++
	h, err := b.Asker.HashAt(s.ctx, index)
	if err != nil {
		s.result.Unknown[b.ID] = fmt.Sprintf("macroblock %d: %v", index, err)
		return node.Hash{}, false
	}
	s.known[b.ID][index] = h
	return h, true
}
