package restart_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// The oracle reads the definition of K index by index, host by host, without any shortcut.

type oracleAnswer struct {
	k      uint64          // 0: none
	why    string          // as Proposal.StopCode
	needed map[string]bool // "operator index", where undecided
	bound  uint64          // greatest index that nothing refuses for certain
}

type oracle struct {
	ops    map[string][]restart.HostFinding
	absent map[string]bool
	limit  uint64 // K < limit; 0: none
}

func newOracle(m restart.Merged, o restart.ProposeOptions) *oracle {
	or := &oracle{ops: map[string][]restart.HostFinding{}, absent: map[string]bool{}, limit: max(o.Below, o.Forged)}
	for _, op := range m.Operators {
		or.ops[op.Evidence.Operator] = op.Evidence.Hosts
	}
	for _, a := range o.Absent {
		or.absent[a.Operator] = true
	}
	return or
}

func shownAt(h restart.HostFinding, i uint64) *restart.Macroblock {
	for k := range h.Macroblocks {
		if h.Macroblocks[k].Index == i {
			return &h.Macroblocks[k]
		}
	}
	return nil
}

// has: "yes", "no", "?" or "away".
func has(h restart.HostFinding, i uint64) string {
	mb := shownAt(h, i)
	if mb == nil {
		if h.Sealed != nil && *h.Sealed < i {
			return "no"
		}
		if !h.Reachable {
			return "away"
		}
		return "?"
	}
	if mb.Held == restart.HeldYes && mb.Hash != nil && mb.Digest != nil {
		return "yes"
	}
	if mb.Held == restart.HeldNo {
		return "no"
	}
	return "?"
}

func sealedWell(h restart.HostFinding, i uint64) string {
	mb := shownAt(h, i)
	if mb == nil || mb.Held == restart.HeldNo {
		return has(h, i)
	}
	if mb.Proof == nil {
		return "?"
	}
	set := map[string]bool{}
	for _, s := range mb.Proof.Signers {
		set[s] = true
	}
	n := mb.Proof.Committee
	faulty := mb.Proof.Fault != "" || mb.Proof.Relaxed || n < 1 || mb.Proof.Quorum != n-(n-1)/3 ||
		len(set) != len(mb.Proof.Signers) || len(set) < mb.Proof.Quorum || len(set) > n
	if faulty {
		return "no"
	}
	return "yes"
}

// says joins the hosts of an operator.
func (or *oracle) says(op string, i uint64, ask func(restart.HostFinding, uint64) string) string {
	count := map[string]int{}
	for _, h := range or.ops[op] {
		count[ask(h, i)]++
	}
	if count["yes"] > 0 {
		return "yes"
	}
	if count["?"] == 0 && count["no"] > 0 {
		return "no"
	}
	return "?"
}

// different says whether the hosts differ at i in their own entries (kind hash or digest), and with links as well.
func (or *oracle) different(i uint64) (entries, links bool) {
	hashes, digests, above := map[node.Hash]bool{}, map[node.Hash]bool{}, map[node.Hash]bool{}
	for _, hosts := range or.ops {
		for _, h := range hosts {
			if mb := shownAt(h, i); mb != nil && mb.Hash != nil {
				hashes[*mb.Hash] = true
			}
			if mb := shownAt(h, i); mb != nil && mb.Digest != nil {
				digests[*mb.Digest] = true
			}
			if mb := shownAt(h, i+1); mb != nil && mb.Previous != nil {
				above[*mb.Previous] = true
			}
		}
	}
	if i == 0 {
		hashes[node.Hash{}] = true
	}
	entries = len(hashes) > 1 || len(digests) > 1
	for h := range hashes {
		above[h] = true
	}
	return entries, len(above) > 1
}

// surelyDifferent is how many nodes surely stand behind the hosts that pass.
func (or *oracle) surelyDifferent(pass func(restart.HostFinding) bool) int {
	everywhere := map[string]bool{}
	best := 0
	for op, hosts := range or.ops {
		own := map[string]bool{}
		for _, h := range hosts {
			if or.absent[op] || !pass(h) {
				continue
			}
			if h.NodeID == "" {
				own["?"+h.ID] = true
			} else {
				own[h.NodeID], everywhere[h.NodeID] = true, true
			}
		}
		best = max(best, len(own))
	}
	return max(best, len(everywhere))
}

// ask returns whether index i is refused for certain, and what is missing to know: "operator index".
func (or *oracle) ask(i uint64) (refused bool, missing map[string]bool) {
	missing = map[string]bool{}
	if i < 2 || or.limit > 0 && i >= or.limit {
		refused = true
	}
	here, _ := or.different(i)
	below, link := or.different(i - 1)
	if here || below || link {
		refused = true
	}
	for op, hosts := range or.ops {
		for _, h := range hosts {
			if mb := shownAt(h, i); mb != nil && mb.Proof != nil && (mb.Proof.Relaxed || mb.Proof.Fault == node.FaultRecovery) {
				refused = true
			}
		}
		if or.absent[op] {
			continue
		}
		for _, answer := range []string{or.says(op, i, has), or.says(op, i, sealedWell)} {
			switch answer {
			case "no":
				refused = true
			case "?":
				missing[fmt.Sprint(op, " ", i)] = true
			}
		}
		switch or.says(op, i-1, has) {
		case "no":
			refused = true
		case "?":
			missing[fmt.Sprint(op, " ", i-1)] = true
		}
	}
	for _, at := range []uint64{i, max(i, 1) - 1} {
		holds := func(h restart.HostFinding) bool { return has(h, at) == "yes" }
		may := func(h restart.HostFinding) bool { return has(h, at) == "yes" || has(h, at) == "?" }
		if or.surelyDifferent(may) < 2 {
			refused = true
		}
		if or.surelyDifferent(holds) >= 2 {
			continue
		}
		for op, hosts := range or.ops {
			for _, h := range hosts {
				if has(h, at) == "?" && !or.absent[op] {
					missing[fmt.Sprint(op, " ", at)] = true
				}
			}
		}
	}
	return refused, missing
}

func (or *oracle) top() uint64 {
	top := uint64(1)
	for _, hosts := range or.ops {
		for _, h := range hosts {
			if h.Sealed != nil {
				top = max(top, *h.Sealed)
			}
			for _, mb := range h.Macroblocks {
				top = max(top, mb.Index)
			}
		}
	}
	return top
}

func (or *oracle) answer(m restart.Merged) oracleAnswer {
	lowest, forked := uint64(0), false
	for i := or.top() + 2; i > 0; i-- {
		if entries, links := or.different(i - 1); entries || links {
			lowest, forked = i-1, true
		}
	}
	a := oracleAnswer{why: restart.StopNothing, needed: map[string]bool{}}
	for i := or.top(); i >= 1; i-- {
		refused, missing := or.ask(i)
		if refused {
			continue
		}
		a.bound = max(a.bound, i)
		if len(missing) == 0 {
			a.k = i
			break
		}
		if forked && i >= lowest {
			continue
		}
		maps.Copy(a.needed, missing)
		onlyBelow := true
		for what := range missing {
			onlyBelow = onlyBelow && strings.HasSuffix(what, fmt.Sprint(" ", i-1))
		}
		if onlyBelow {
			break
		}
	}
	if a.k > 0 {
		a.why = ""
	}
	if len(a.needed) > 0 {
		a.k, a.why = 0, restart.StopUndecided
	}
	if a.k > 0 && forked && lowest <= a.k {
		a.k, a.why = 0, restart.StopContradiction
	}
	for _, name := range m.Expected {
		if or.ops[name] == nil && !or.absent[name] {
			a.k, a.why = 0, restart.StopNoEvidence
		}
	}
	return a
}

// randomFleet has 1 to 7 operators with 1 to 6 hosts on a short chain, and whatever may be wrong with them.
func randomFleet(r *rand.Rand) restart.Merged {
	var m restart.Merged
	last := 4 + r.Uint64N(16)
	faults := r.IntN(4) // 0: a fleet with nothing but lag
	fork := 2 + r.Uint64N(last)
	var hole restart.IndexRange // which nobody lists, as between the powers of two
	if r.IntN(3) == 0 {
		hole.From = 1 + r.Uint64N(last)
		hole.To = hole.From + r.Uint64N(5)
	}
	for i := range 1 + r.IntN(7) {
		var hosts []restart.HostFinding
		for j := range 1 + r.IntN(6) {
			lag := uint64(0)
			if r.IntN(3) == 0 {
				lag = r.Uint64N(3)
			}
			h := honest(fmt.Sprintf("%03d", 10*i+j), 1+r.Uint64N(3), last-lag)
			if faults > 0 && r.IntN(8) == 0 {
				branch(&h, fork)
			}
			for range r.IntN(1 + 2*faults) {
				spoil(r, &h)
			}
			h.Macroblocks = slices.DeleteFunc(h.Macroblocks, func(mb restart.Macroblock) bool { return mb.Index >= hole.From && mb.Index <= hole.To })
			hosts = append(hosts, h)
		}
		op := operator(fmt.Sprintf("op%d", i), hosts...)
		if faults > 1 && r.IntN(10) == 0 {
			op.Evidence.Hosts[0].NodeID = []string{"", "shared"}[r.IntN(2)]
		}
		m.Operators = append(m.Operators, op)
		m.Expected = append(m.Expected, op.Evidence.Operator)
	}
	if r.IntN(20) == 0 {
		m.Expected = append(m.Expected, "mute")
	}
	return m
}

// spoil makes one thing of a host's evidence unknown, missing or bad.
func spoil(r *rand.Rand, h *restart.HostFinding) {
	if len(h.Macroblocks) == 0 {
		return
	}
	k := r.IntN(len(h.Macroblocks))
	if r.IntN(2) == 0 {
		k = len(h.Macroblocks) - 1 - r.IntN(min(3, len(h.Macroblocks))) // most of the choice happens near the top
	}
	mb := &h.Macroblocks[k]
	switch r.IntN(12) {
	case 0: // missing window
		*mb = restart.Macroblock{Index: mb.Index, Held: restart.HeldNo}
	case 1: // storage error
		*mb = restart.Macroblock{Index: mb.Index, Held: restart.HeldUnknown, Reason: "internal error"}
	case 2: // pruned signatures
		mb.Digest, mb.Proof, mb.Reason = nil, nil, node.ProofSigsPruned
	case 3: // not in the file
		h.Macroblocks = slices.Delete(h.Macroblocks, k, k+1)
	case 4: // bad seal
		mb.Digest = chainHash('d', 2, mb.Index)
	case 5:
		if mb.Proof != nil {
			mb.Proof.Fault = node.FaultCommitment
		}
	case 6:
		if mb.Proof != nil {
			mb.Proof.Relaxed = true
		}
	case 7:
		h.Sealed = nil
	case 8:
		h.Reachable = false
		h.Macroblocks = nil
		h.Sealed = nil
	case 9:
		if r.IntN(4) == 0 {
			mb.Previous = chainHash('h', 3, mb.Index-1)
		}
	case 10:
		mb.Previous = nil
	case 11:
		h.NodeID = ""
	}
}

func randomOptions(r *rand.Rand, m restart.Merged) restart.ProposeOptions {
	var o restart.ProposeOptions
	switch r.IntN(8) {
	case 0:
		o.Below = 3 + r.Uint64N(18)
	case 1:
		o.Forged = 3 + r.Uint64N(18)
	}
	for _, name := range m.Expected {
		if name == "mute" && r.IntN(2) == 0 || r.IntN(15) == 0 {
			o.Absent = append(o.Absent, restart.Absent{Operator: name, Reason: "away"})
		}
	}
	return o
}

// indices spells the needed ranges out.
func indices(list []restart.NeededRange) map[string]bool {
	out := map[string]bool{}
	for _, r := range list {
		for i := r.From; i <= r.To; i++ {
			out[fmt.Sprint(r.Operator, " ", i)] = true
		}
	}
	return out
}

// K is the greatest index that satisfies the definition, for random fleets with random faults.
func TestProposeAgainstBruteForce(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	seeds := restart.Seeds(3000)
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		m := randomFleet(r)
		o := randomOptions(r, m)
		want := newOracle(m, o).answer(m)
		p := propose(t, m, o)
		seen[want.why]++
		if got := p.StopCode; got != want.why {
			t.Fatalf("seed %d: %q, the oracle says %q: K %v, oracle %d; %s; needed %v, oracle %v", seed, got, want.why, p.K, want.k, p.Stop, p.Needed, want.needed)
		}
		if p.K != nil && *p.K != want.k {
			t.Fatalf("seed %d: K %d, the oracle says %d: %v", seed, *p.K, want.k, p.Refused)
		}
		if got := indices(p.Needed); want.why == restart.StopUndecided && !maps.Equal(got, want.needed) {
			t.Fatalf("seed %d: needed %v, the oracle says %v", seed, p.Needed, slices.Sorted(maps.Keys(want.needed)))
		}
		checkFilled(t, seed, m, p)
	}
	for _, kind := range []string{"", restart.StopNoEvidence, restart.StopUndecided, restart.StopContradiction, restart.StopNothing} {
		if seen[kind] < int(seeds/60) {
			t.Errorf("the fleets were too tame: %v", seen)
		}
	}
}

// checkFilled compares the values of K with the evidence.
func checkFilled(t *testing.T, seed uint64, m restart.Merged, p restart.Proposal) {
	t.Helper()
	if p.K == nil {
		if p.Hash != nil || p.Digest != nil || p.DigestPred != nil || len(p.HeldBy) > 0 || p.Stop == "" || p.StopCode == "" {
			t.Fatalf("seed %d: no K and %+v", seed, p)
		}
		return
	}
	var held []string
	for _, op := range m.Operators {
		for _, h := range op.Evidence.Hosts {
			if has(h, *p.K) == "yes" {
				held = append(held, op.Evidence.Operator+"/"+h.ID)
				if mb := shownAt(h, *p.K); *mb.Hash != *p.Hash || *mb.Digest != *p.Digest {
					t.Fatalf("seed %d: %s shows %v, not %v", seed, h.ID, mb.Hash, p.Hash)
				}
			}
			if has(h, *p.K-1) == "yes" && *shownAt(h, *p.K-1).Digest != *p.DigestPred {
				t.Fatalf("seed %d: digest_pred %v", seed, p.DigestPred)
			}
			for _, mb := range h.Macroblocks {
				refused := slices.ContainsFunc(p.Refused, func(r restart.Refusal) bool { return r.Index == mb.Index && r.Reason != "" })
				if mb.Held == restart.HeldYes && mb.Index > *p.K && !refused {
					t.Fatalf("seed %d: %d is newer than K %d and not refused", seed, mb.Index, *p.K)
				}
			}
		}
	}
	if slices.Sort(held); !slices.Equal(held, p.HeldBy) {
		t.Fatalf("seed %d: held by %v, want %v", seed, p.HeldBy, held)
	}
}

// lies are what a host can say against the others; each may only take K away or make it older.
func lies() map[string]func(r *rand.Rand, h *restart.HostFinding) {
	pick := func(r *rand.Rand, h *restart.HostFinding) *restart.Macroblock {
		return &h.Macroblocks[r.IntN(len(h.Macroblocks))]
	}
	return map[string]func(r *rand.Rand, h *restart.HostFinding){
		"hash":   func(r *rand.Rand, h *restart.HostFinding) { mb := pick(r, h); mb.Hash = chainHash('h', 8, mb.Index) },
		"digest": func(r *rand.Rand, h *restart.HostFinding) { mb := pick(r, h); mb.Digest = chainHash('d', 8, mb.Index) },
		"previous": func(r *rand.Rand, h *restart.HostFinding) {
			mb := pick(r, h)
			mb.Previous = chainHash('h', 8, mb.Index-1)
		},
		"branch": func(r *rand.Rand, h *restart.HostFinding) { branch(h, pick(r, h).Index) },
		"certificate": func(r *rand.Rand, h *restart.HostFinding) {
			c := pick(r, h).Proof
			if c == nil {
				return
			}
			switch r.IntN(4) {
			case 0:
				c.Fault = node.FaultQuorum
			case 1:
				c.Relaxed = true
			case 2:
				c.Signers = c.Signers[:1]
			case 3:
				c.Committee, c.Quorum = 50, 34
			}
		},
		"invented": func(r *rand.Rand, h *restart.HostFinding) {
			next := h.Macroblocks[len(h.Macroblocks)-1].Index + 1 + r.Uint64N(2)
			mb := entry(next)
			mb.Hash, mb.Digest = chainHash('h', 8, next), chainHash('d', 8, next)
			h.Macroblocks = append(h.Macroblocks, mb)
			if h.Sealed != nil {
				h.Sealed = ptr(next)
			}
		},
		"denial": func(r *rand.Rand, h *restart.HostFinding) {
			mb := pick(r, h)
			*mb = restart.Macroblock{Index: mb.Index, Held: restart.HeldNo}
		},
		"denial of all above": func(r *rand.Rand, h *restart.HostFinding) {
			k := r.IntN(len(h.Macroblocks))
			h.Sealed = ptr(h.Macroblocks[k].Index)
			h.Macroblocks = h.Macroblocks[:k+1]
		},
	}
}

// tellLie changes one host of the evidence; ok is false where there is nothing to lie about.
func tellLie(r *rand.Rand, m restart.Merged, lie func(*rand.Rand, *restart.HostFinding)) (op, host int, ok bool) {
	op = r.IntN(len(m.Operators))
	host = r.IntN(len(m.Operators[op].Evidence.Hosts))
	h := hostOf(m, op, host)
	if len(h.Macroblocks) == 0 {
		return op, host, false
	}
	lie(r, h)
	return op, host, true
}

// fleetOf is the random fleet of a seed, and the state of the generator behind it.
func fleetOf(seed uint64) (restart.Merged, *rand.Rand) {
	r := rand.New(rand.NewPCG(seed, 7))
	return randomFleet(r), r
}

// A single host that contradicts the others can take K away or make it older, and never give another hash for one index.
func TestProposeSurvivesOneLiar(t *testing.T) {
	t.Parallel()
	all := lies()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			chosen, lost, older := 0, 0, 0
			seeds := restart.Seeds(1000)
			for seed := range seeds {
				m, _ := fleetOf(seed)
				want := propose(t, m, restart.ProposeOptions{})
				lying, r := fleetOf(seed)
				op, host, ok := tellLie(r, lying, all[name])
				if !ok {
					continue
				}
				got := propose(t, lying, restart.ProposeOptions{})
				switch {
				case want.K != nil && got.K == nil:
					lost++
				case want.K != nil && *got.K < *want.K:
					older++
				}
				if got.K == nil {
					continue
				}
				chosen++
				if want.K != nil && *got.K > *want.K && !dissents(m, op, host) {
					t.Fatalf("seed %d: %d/%d lies and K goes from %d to %d", seed, op, host, *want.K, *got.K)
				}
				if bound := newOracle(m, restart.ProposeOptions{}).answer(m).bound; *got.K > bound && !dissents(m, op, host) {
					t.Fatalf("seed %d: %d/%d lies and K is %d, above every index that was not refused (%d)", seed, op, host, *got.K, bound)
				}
				honestlyBacked(t, seed, m, got, op, host)
				if want.K != nil && *got.K == *want.K && (*got.Hash != *want.Hash || *got.Digest != *want.Digest || *got.DigestPred != *want.DigestPred) {
					t.Fatalf("seed %d: another value for K %d", seed, *got.K)
				}
			}
			if chosen < int(seeds/25) || lost+older < int(seeds/100) {
				t.Errorf("too tame: %d chosen, %d lost, %d older", chosen, lost, older)
			}
		})
	}
}

// dissents says whether a host differs, by its own truthful evidence, from others or from the rules: then what it says
// instead may hide that.
func dissents(m restart.Merged, op, host int) bool {
	for _, mb := range m.Operators[op].Evidence.Hosts[host].Macroblocks {
		if mb.Proof != nil && mb.Proof.Relaxed {
			return true
		}
		for _, o := range m.Operators {
			for _, h := range o.Evidence.Hosts {
				same, below := shownAt(h, mb.Index), shownAt(h, mb.Index-1)
				if same != nil && (unlike(mb.Hash, same.Hash) || unlike(mb.Digest, same.Digest) || unlike(mb.Previous, same.Previous)) ||
					below != nil && unlike(mb.Previous, below.Hash) {
					return true
				}
				if next := shownAt(h, mb.Index+1); next != nil && unlike(next.Previous, mb.Hash) {
					return true
				}
			}
		}
		if mb.Index == 1 && mb.Previous != nil && !mb.Previous.IsZero() {
			return true
		}
	}
	return false
}

func unlike(a, b *node.Hash) bool { return a != nil && b != nil && *a != *b }

// honestlyBacked checks that an honest host showed K and K-1 with these very values.
func honestlyBacked(t *testing.T, seed uint64, m restart.Merged, p restart.Proposal, op, host int) {
	t.Helper()
	shows, below := false, false
	for i, o := range m.Operators {
		for j, h := range o.Evidence.Hosts {
			if i == op && j == host {
				continue
			}
			shows = shows || has(h, *p.K) == "yes" && *shownAt(h, *p.K).Hash == *p.Hash && *shownAt(h, *p.K).Digest == *p.Digest
			below = below || has(h, *p.K-1) == "yes" && *shownAt(h, *p.K-1).Digest == *p.DigestPred
		}
	}
	if !shows || !below {
		t.Fatalf("seed %d: no honest host shows K %d with %v, %v and %v below", seed, *p.K, p.Hash, p.Digest, p.DigestPred)
	}
}

// A host that claims more than it has, with the values the others show, can make K newer: never beyond what all other
// present operators hold and certify, and never with a hash that no honest host shows.
func TestProposeLieAboutPossession(t *testing.T) {
	t.Parallel()
	newer := 0
	seeds := restart.Seeds(3000)
	for seed := range seeds {
		m, _ := fleetOf(seed)
		want := propose(t, m, restart.ProposeOptions{})
		top := newOracle(m, restart.ProposeOptions{}).top()
		lying, r := fleetOf(seed)
		op, host, ok := tellLie(r, lying, func(r *rand.Rand, h *restart.HostFinding) {
			first := h.Macroblocks[0].Index
			*h = restart.HostFinding{ID: h.ID, NodeID: h.NodeID, Reachable: true, Height: ptr(top * 90), Sealed: &top}
			for i := first; i <= top; i++ {
				h.Macroblocks = append(h.Macroblocks, entry(i))
			}
		})
		if !ok {
			continue
		}
		got := propose(t, lying, restart.ProposeOptions{})
		if got.K == nil {
			continue
		}
		honestlyBacked(t, seed, m, got, op, host)
		if want.K != nil && *got.K > *want.K {
			newer++
		}
		or := newOracle(m, restart.ProposeOptions{})
		for i, o := range m.Operators {
			name := o.Evidence.Operator
			if i != op && (or.says(name, *got.K, has) != "yes" || or.says(name, *got.K, sealedWell) != "yes") {
				t.Fatalf("seed %d: K %d, which %s does not hold and certify", seed, *got.K, name)
			}
		}
	}
	if newer < int(seeds/150) {
		t.Errorf("too tame: %d", newer)
	}
	// What it costs: alice's only host lags and claims otherwise.
	m := merged(operator("alice", honest("001", 1, 19)), operator("bob", honest("002", 1, 20)))
	wantK(t, propose(t, m, restart.ProposeOptions{}), 19)
	*hostOf(m, 0, 0) = honest("001", 1, 20)
	wantK(t, propose(t, m, restart.ProposeOptions{}), 20)
}
