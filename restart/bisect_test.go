package restart

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/qnetops/qnetops/node"
)

// testChain is a chain that leaves its parent's after a macroblock; the parent of the trunk is nil.
type testChain struct {
	name   byte
	parent *testChain
	leaves uint64 // last macroblock shared with the parent
}

func (c *testChain) hash(i uint64) node.Hash {
	for c.parent != nil && i <= c.leaves {
		c = c.parent
	}
	var h node.Hash
	h[0] = c.name
	binary.BigEndian.PutUint64(h[1:], i)
	return h
}

// parts is the first index at which two chains differ, by looking at every one.
func parts(a, b *testChain, last uint64) uint64 {
	for i := uint64(1); i <= last; i++ {
		if a.hash(i) != b.hash(i) {
			return i
		}
	}
	return 0
}

type testAsker struct {
	chain *testChain
	asked int
	fails func(index uint64) bool
	seen  map[uint64]bool
	t     *testing.T
}

func (a *testAsker) HashAt(_ context.Context, i uint64) (node.Hash, error) {
	a.asked++
	if i == 0 || a.seen[i] {
		a.t.Errorf("macroblock %d asked for, seen before: %v", i, a.seen[i])
	}
	a.seen[i] = true
	if a.fails != nil && a.fails(i) {
		return node.Hash{}, errors.New("storage error")
	}
	return a.chain.hash(i), nil
}

func TestRequestsIsTwiceTheLogarithm(t *testing.T) {
	for n, want := range map[uint64]int{0: 1, 1: 1, 2: 2, 64: 12, 1024: 20, 100_000: 33, 1 << 20: 40} {
		if got := Requests(n); got != want {
			t.Errorf("%d macroblocks: %d requests, want %d", n, got, want)
		}
	}
}

// TestTwoChainsArePartedExactly looks for each fork point of a short chain and some of a long one.
func TestTwoChainsArePartedExactly(t *testing.T) {
	for _, last := range []uint64{1, 2, 3, 7, 64, 100_000} {
		for leaves := uint64(0); leaves < last; leaves += max(1, last/50) {
			trunk := &testChain{name: 1}
			side := &testChain{name: 2, parent: trunk, leaves: leaves}
			askers := map[string]*testAsker{}
			var branches []Branch
			for id, c := range map[string]*testChain{"a": trunk, "b": side, "c": side, "d": trunk} {
				askers[id] = &testAsker{chain: c, seen: map[uint64]bool{}, t: t}
				branches = append(branches, Branch{id, last, askers[id]})
			}
			got := FindForks(t.Context(), branches, 0)
			if len(got.Forks) != 1 || !got.Forks[0].Exact() || got.Forks[0].Index != leaves+1 || len(got.Unknown) > 0 ||
				!slices.EqualFunc(got.Forks[0].Sides, [][]string{{"a", "d"}, {"b", "c"}}, slices.Equal) {
				t.Fatalf("%d macroblocks, fork after %d: %+v", last, leaves, got)
			}
			for id, a := range askers {
				if a.asked > Requests(last) || a.asked != got.Asked[id] {
					t.Errorf("%d macroblocks: %s was asked %d times (%d by the count), at most %d", last, id, a.asked, got.Asked[id], Requests(last))
				}
			}
		}
	}
}

// TestForksOfRandomChains compares what is found with the chains themselves. Whatever fails, nothing false is said and no
// host is asked too often; where nothing fails and few chains are there, everything is found.
func TestForksOfRandomChains(t *testing.T) {
	for seed := range Seeds(3000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		last := 1 + rng.Uint64N(1<<(1+rng.UintN(12)))
		chains := []*testChain{{name: 1}}
		for i := range rng.IntN(5) {
			p := chains[rng.IntN(len(chains))]
			chains = append(chains, &testChain{name: byte(i + 2), parent: p, leaves: p.leaves + rng.Uint64N(last-min(p.leaves, last-1))})
		}
		of, askers, faulty, length := map[string]*testChain{}, map[string]*testAsker{}, rng.IntN(3) == 0, map[string]uint64{}
		var branches []Branch
		same := rng.IntN(2) == 0
		for i := range 2 + rng.IntN(5) {
			id := fmt.Sprint(i)
			of[id], length[id] = chains[rng.IntN(len(chains))], last
			if !same {
				length[id] = 1 + rng.Uint64N(last)
			}
			a := &testAsker{chain: of[id], seen: map[uint64]bool{}, t: t}
			if faulty && rng.IntN(2) == 0 {
				bad := 2 + rng.Uint64N(6)
				a.fails = func(index uint64) bool { return index%bad == 0 }
			}
			askers[id] = a
			branches = append(branches, Branch{id, length[id], a})
		}
		got := FindForks(t.Context(), branches, 0)
		longest := uint64(0)
		for _, l := range length {
			longest = max(longest, l)
		}
		for id, a := range askers {
			if a.asked > Requests(longest) || a.asked != got.Asked[id] {
				t.Fatalf("seed %d: %s was asked %d times of %d", seed, id, a.asked, Requests(longest))
			}
		}
		told := map[[2]string]bool{}
		for _, f := range got.Forks {
			for i, side := range f.Sides {
				for _, other := range f.Sides[i+1:] {
					for _, a := range side {
						for _, b := range other {
							at := parts(of[a], of[b], last)
							if at <= f.Agreed || at > f.Index {
								t.Fatalf("seed %d: %s and %s part at %d, found %+v", seed, a, b, at, f)
							}
							told[[2]string{min(a, b), max(a, b)}] = true
						}
					}
				}
				for _, a := range side {
					if of[a].hash(f.Index) != of[side[0]].hash(f.Index) {
						t.Fatalf("seed %d: one side has two hashes at %d: %+v", seed, f.Index, f)
					}
				}
			}
		}
		if len(got.Unknown) > 0 {
			if !faulty && len(chains) <= 2 && same {
				t.Fatalf("seed %d: unknown without a fault: %v", seed, got.Unknown)
			}
			continue
		}
		for a := range of {
			for b := range of {
				at := parts(of[a], of[b], min(length[a], length[b]))
				if a < b && (at > 0) != told[[2]string{a, b}] {
					t.Fatalf("seed %d: %s and %s part at %d, told: %v: %+v", seed, a, b, at, told[[2]string{a, b}], got)
				}
			}
		}
	}
}

// TestAFailedHostIsOnNoSide: the host that does not answer is named, the others are told apart exactly.
func TestAFailedHostIsOnNoSide(t *testing.T) {
	trunk := &testChain{name: 1}
	askers := []*testAsker{
		{chain: trunk}, {chain: &testChain{name: 2, parent: trunk, leaves: 700}},
		{chain: &testChain{name: 3, parent: trunk, leaves: 300}, fails: func(i uint64) bool { return i < 1000 }},
	}
	var branches []Branch
	for i, a := range askers {
		a.t, a.seen = t, map[uint64]bool{}
		branches = append(branches, Branch{fmt.Sprint(i), 1000, a})
	}
	got := FindForks(t.Context(), branches, 0)
	if len(got.Forks) != 2 || got.Forks[0].Index != 701 || !got.Forks[0].Exact() || len(got.Forks[0].Sides) != 2 {
		t.Errorf("%+v", got.Forks)
	}
	if f := got.Forks[1]; f.Agreed != 0 || f.Index != 1000 || len(f.Sides) != 3 || f.Exact() {
		t.Errorf("%+v", f)
	}
	if len(got.Unknown) != 1 || got.Unknown["2"] == "" {
		t.Errorf("%v", got.Unknown)
	}
}
