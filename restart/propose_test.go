package restart_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// chainHash is the hash of macroblock index on a branch; branch 0 is the honest chain.
func chainHash(kind byte, branch int, index uint64) *node.Hash {
	h := node.Hash{kind, byte(branch)}
	for i := range 8 {
		h[8+i] = byte(index >> (8 * i))
	}
	return &h
}

func ptr[T any](v T) *T { return &v }

func ids(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("genesis_node_%03d", i+1))
	}
	return out
}

// goodCertificate is of full quorum, over the first signers of the committee.
func goodCertificate(committee int) *restart.Certificate {
	q := node.QuorumSize(committee)
	return &restart.Certificate{Committee: committee, Quorum: q, Signers: ids(committee)[:q],
		Signatures: restart.Signatures{Unreadable: q, Reason: "envelope not understood"}}
}

// entry is macroblock index as an honest host shows it.
func entry(index uint64) restart.Macroblock {
	mb := restart.Macroblock{Index: index, Held: restart.HeldYes, Hash: chainHash('h', 0, index), Previous: chainHash('h', 0, index-1),
		Timestamp: ptr(index * 90), Digest: chainHash('d', 0, index), Proof: goodCertificate(5)}
	if index == 1 {
		mb.Previous = &node.Hash{}
	}
	return mb
}

// honest is a host that holds everything up to last and lists it from first on.
func honest(id string, first, last uint64) restart.HostFinding {
	h := restart.HostFinding{ID: id, NodeID: "node_" + id, Reachable: true, Height: ptr(last*90 + 7), Sealed: ptr(last)}
	for i := first; i <= last; i++ {
		h.Macroblocks = append(h.Macroblocks, entry(i))
	}
	return h
}

// operator is his evidence.
func operator(name string, hosts ...restart.HostFinding) restart.OperatorEvidence {
	for i := range hosts {
		hosts[i].NodeID = "node_" + name + hosts[i].ID
	}
	return restart.OperatorEvidence{Evidence: restart.Evidence{Schema: restart.EvidenceSchema, Operator: name, Hosts: hosts}}
}

func merged(ops ...restart.OperatorEvidence) restart.Merged {
	m := restart.Merged{Operators: ops}
	for _, op := range ops {
		m.Expected = append(m.Expected, op.Evidence.Operator)
	}
	return m
}

// at is the entry of a host for a macroblock, to be changed by a test.
func at(h *restart.HostFinding, index uint64) *restart.Macroblock {
	for i := range h.Macroblocks {
		if h.Macroblocks[i].Index == index {
			return &h.Macroblocks[i]
		}
	}
	panic(fmt.Sprintf("no macroblock %d", index))
}

func hostOf(m restart.Merged, op, host int) *restart.HostFinding {
	return &m.Operators[op].Evidence.Hosts[host]
}

func propose(t *testing.T, m restart.Merged, o restart.ProposeOptions) restart.Proposal {
	t.Helper()
	p, err := restart.Propose(m, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantK(t *testing.T, p restart.Proposal, k uint64) {
	t.Helper()
	switch {
	case p.K == nil:
		t.Fatalf("no K: %s %v", p.Stop, p.Needed)
	case *p.K != k:
		t.Fatalf("K %d, want %d: %v", *p.K, k, p.Refused)
	case *p.Hash != *chainHash('h', 0, k) || *p.Digest != *chainHash('d', 0, k) || *p.DigestPred != *chainHash('d', 0, k-1):
		t.Fatalf("K %d with hash %v, digest %v, pred %v", k, p.Hash, p.Digest, p.DigestPred)
	}
}

func wantNone(t *testing.T, p restart.Proposal, say string) {
	t.Helper()
	if p.K != nil || p.Hash != nil || p.Digest != nil || p.DigestPred != nil || !strings.Contains(p.Stop, say) {
		t.Fatalf("K %v, stop %q, want none because of %q", p.K, p.Stop, say)
	}
}

// three operators with two hosts each that hold 1 to 20.
func fleet3() restart.Merged {
	return merged(
		operator("alice", honest("001", 1, 20), honest("002", 1, 20)),
		operator("bob", honest("003", 1, 20), honest("004", 1, 20)),
		operator("carol", honest("005", 1, 20), honest("006", 1, 20)))
}

func TestProposeCases(t *testing.T) {
	both := func(change func(mb *restart.Macroblock), index uint64, op int) func(m *restart.Merged) {
		return func(m *restart.Merged) {
			change(at(hostOf(*m, op, 0), index))
			change(at(hostOf(*m, op, 1), index))
		}
	}
	cases := []struct {
		name    string
		change  func(m *restart.Merged)
		options restart.ProposeOptions
		k       uint64
		stop    string
		refused map[uint64]string
	}{
		{name: "all agree", k: 20},
		{name: "one host of an operator lacks it", change: func(m *restart.Merged) { clear20(m, 1, 0) }, k: 20},
		{name: "an operator lacks it", change: both(func(mb *restart.Macroblock) { *mb = restart.Macroblock{Index: 20, Held: restart.HeldNo} }, 20, 1), k: 19,
			refused: map[uint64]string{20: "not held by bob"}},
		{name: "fork above", change: func(m *restart.Merged) { branch(hostOf(*m, 2, 0), 18); branch(hostOf(*m, 2, 1), 18) }, k: 17,
			refused: map[uint64]string{18: "differ in its hash", 20: "contradiction, of macroblock 18 (hash)"}},
		{name: "fork inside one operator", change: func(m *restart.Merged) { branch(hostOf(*m, 2, 1), 20) }, k: 19, refused: map[uint64]string{20: "differ in its hash"}},
		{name: "equal hash, other digest", change: func(m *restart.Merged) { at(hostOf(*m, 0, 0), 20).Digest = chainHash('d', 9, 20) }, k: 19,
			refused: map[uint64]string{20: "differ in its digest"}},
		{name: "digest below agreement", change: func(m *restart.Merged) { at(hostOf(*m, 0, 0), 11).Digest = chainHash('d', 9, 11) },
			stop: "first offending window 11, kind digest"},
		{name: "hash below agreement", change: func(m *restart.Merged) { at(hostOf(*m, 0, 0), 11).Hash = chainHash('h', 9, 11) },
			stop: "first offending window 11, kind hash"},
		{name: "broken link below", change: func(m *restart.Merged) { at(hostOf(*m, 0, 0), 11).Previous = chainHash('h', 9, 10) },
			stop: "first offending window 10, kind hash"},
		{name: "broken link at the top", change: func(m *restart.Merged) { at(hostOf(*m, 0, 0), 20).Previous = chainHash('h', 9, 19) },
			stop: "first offending window 19, kind hash"},
		{name: "relaxed at one host", change: func(m *restart.Merged) { at(hostOf(*m, 1, 1), 20).Proof.Relaxed = true }, k: 19,
			refused: map[uint64]string{20: "recovery pin at bob/004"}},
		{name: "recovery fault at one host", change: func(m *restart.Merged) { at(hostOf(*m, 1, 1), 20).Proof.Fault = node.FaultRecovery }, k: 19},
		{name: "bad certificates of an operator", change: both(func(mb *restart.Macroblock) { mb.Proof.Fault = node.FaultCommitment }, 20, 1), k: 19,
			refused: map[uint64]string{20: "bob (epoch_commitment)"}},
		{name: "one bad certificate of two", change: func(m *restart.Merged) { at(hostOf(*m, 1, 1), 20).Proof.Fault = node.FaultQuorum }, k: 20},
		{name: "facts of a certificate contradict themselves", change: both(func(mb *restart.Macroblock) { mb.Proof.Quorum = 3 }, 20, 1), k: 19},
		{name: "too few signers", change: both(func(mb *restart.Macroblock) { mb.Proof.Signers = mb.Proof.Signers[:3] }, 20, 1), k: 19},
		{name: "doubled signer", change: both(func(mb *restart.Macroblock) { mb.Proof.Signers = []string{"a", "b", "c", "c"} }, 20, 1), k: 19},
		{name: "unknown at an operator", change: both(func(mb *restart.Macroblock) {
			*mb = restart.Macroblock{Index: 20, Held: restart.HeldUnknown, Reason: "storage error"}
		}, 20, 1), stop: "undecided: macroblock 20"},
		{name: "unknown, and refused by another", change: func(m *restart.Merged) {
			both(func(mb *restart.Macroblock) { mb.Digest = nil }, 20, 1)(m)
			both(func(mb *restart.Macroblock) { *mb = restart.Macroblock{Index: 20, Held: restart.HeldNo} }, 20, 2)(m)
		}, k: 19},
		{name: "below", options: restart.ProposeOptions{Below: 12}, k: 11, refused: map[uint64]string{12: "not below 12", 20: "not below 12"}},
		{name: "forged", options: restart.ProposeOptions{Forged: 12}, k: 11, refused: map[uint64]string{12: "not below the forged macroblock 12"}},
		{name: "only the first two", options: restart.ProposeOptions{Below: 3}, k: 2},
		{name: "expected and mute", change: func(m *restart.Merged) { m.Expected = append(m.Expected, "dave") }, stop: "no evidence from dave"},
		{name: "waived", change: func(m *restart.Merged) { m.Expected = append(m.Expected, "dave") },
			options: restart.ProposeOptions{Absent: []restart.Absent{{Operator: "dave", Reason: "on a boat"}}}, k: 20},
		{name: "what a waived one shows still contradicts", change: func(m *restart.Merged) { at(hostOf(*m, 1, 0), 11).Hash = chainHash('h', 9, 11) },
			options: restart.ProposeOptions{Absent: []restart.Absent{{Operator: "bob", Reason: "lost his data"}}}, stop: "window 11"},
		{name: "a waived one need not hold it", change: both(func(mb *restart.Macroblock) { *mb = restart.Macroblock{Index: 20, Held: restart.HeldNo} }, 20, 1),
			options: restart.ProposeOptions{Absent: []restart.Absent{{Operator: "bob", Reason: "lost his data"}}}, k: 20},
		{name: "an operator without any host that answers", change: func(m *restart.Merged) {
			m.Operators[1].Evidence.Hosts = []restart.HostFinding{{ID: "003", Reason: "no route"}}
		}, stop: "undecided"},
		{name: "nothing at all", change: func(m *restart.Merged) { *m = restart.Merged{} }, stop: "no evidence at all"},
		{name: "somebody invents a higher one", change: func(m *restart.Merged) {
			h := hostOf(*m, 0, 0)
			h.Macroblocks = append(h.Macroblocks, entry(21))
			h.Sealed = ptr(uint64(21))
		}, k: 20, refused: map[uint64]string{21: "not held by bob, carol"}},
		{name: "somebody claims a height without end", change: func(m *restart.Merged) { hostOf(*m, 0, 0).Sealed = ptr(^uint64(0)) }, k: 20},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := fleet3()
			if c.change != nil {
				c.change(&m)
			}
			p := propose(t, m, c.options)
			if c.stop != "" {
				wantNone(t, p, c.stop)
				return
			}
			wantK(t, p, c.k)
			for index, say := range c.refused {
				i := slices.IndexFunc(p.Refused, func(r restart.Refusal) bool { return r.Index == index })
				if i < 0 || !strings.Contains(p.Refused[i].Reason, say) {
					t.Errorf("macroblock %d is not refused because of %q: %v", index, say, p.Refused)
				}
			}
			if !slices.IsSortedFunc(p.Refused, func(a, b restart.Refusal) int { return int(b.Index) - int(a.Index) }) {
				t.Errorf("not newest first: %v", p.Refused)
			}
		})
	}
}

// clear20 leaves nothing of an entry that is not held.
func clear20(m *restart.Merged, op, host int) {
	*at(hostOf(*m, op, host), 20) = restart.Macroblock{Index: 20, Held: restart.HeldNo}
}

// branch puts a host on another chain from index on.
func branch(h *restart.HostFinding, from uint64) {
	for i := range h.Macroblocks {
		mb := &h.Macroblocks[i]
		if mb.Index >= from {
			mb.Hash, mb.Digest = chainHash('h', 1, mb.Index), chainHash('d', 1, mb.Index)
		}
		if mb.Index > from {
			mb.Previous = chainHash('h', 1, mb.Index-1)
		}
	}
}

// One machine that two operators list is one witness.
func TestProposeWantsTwoNodes(t *testing.T) {
	m := merged(operator("alice", honest("001", 1, 9)), operator("bob", honest("001", 1, 9)))
	wantK(t, propose(t, m, restart.ProposeOptions{}), 9)
	for i := range m.Operators {
		hostOf(m, i, 0).NodeID = "genesis_node_001"
	}
	wantNone(t, propose(t, m, restart.ProposeOptions{}), "no macroblock")
	hostOf(m, 1, 0).NodeID = "" // perhaps the same one
	wantNone(t, propose(t, m, restart.ProposeOptions{}), "no macroblock")
	one := merged(operator("alice", honest("001", 1, 9), honest("002", 1, 8)))
	wantK(t, propose(t, one, restart.ProposeOptions{}), 8)
}

func TestProposeNeeds(t *testing.T) {
	// What a host of the usual evidence shows of a chain of 100,000: the newest 64 and last-64·2^i.
	usual := func(id string, last uint64) restart.HostFinding {
		h := honest(id, last-63, last)
		for step := uint64(64); step < last; step *= 2 {
			h.Macroblocks = append([]restart.Macroblock{entry(last - step)}, h.Macroblocks...)
		}
		return h
	}
	fleet := func() restart.Merged {
		return merged(operator("alice", usual("001", 100_000)), operator("bob", usual("002", 100_000)))
	}
	wantK(t, propose(t, fleet(), restart.ProposeOptions{}), 100_000)

	p := propose(t, fleet(), restart.ProposeOptions{Forged: 99_900})
	wantNone(t, p, "undecided: macroblock 99899")
	// 99,872 is in the usual evidence of both; only what lies around it is asked for.
	var want []restart.NeededRange
	for _, who := range [][2]string{{"alice", "001"}, {"bob", "002"}} {
		for _, span := range []restart.IndexRange{{From: 99_871, To: 99_871}, {From: 99_873, To: 99_899}} {
			want = append(want, restart.NeededRange{Operator: who[0], IndexRange: span, Reason: who[1] + ": not in the evidence"})
		}
	}
	if !slices.Equal(p.Needed, want) {
		t.Errorf("needed %v, want %v", p.Needed, want)
	}

	// A fork at 50,000 among 100,000 is found by halves: the evidence that is asked for is added until K is chosen.
	m := fleet()
	branch(hostOf(m, 1, 0), 50_000)
	rounds, added := 0, uint64(0)
	for {
		p := propose(t, m, restart.ProposeOptions{})
		if p.K != nil {
			wantK(t, p, 49_999)
			break
		}
		if rounds++; rounds > 20 || len(p.Needed) == 0 {
			t.Fatalf("round %d: %s %v", rounds, p.Stop, p.Needed)
		}
		for _, r := range p.Needed {
			h := hostOf(m, map[string]int{"alice": 0, "bob": 1}[r.Operator], 0)
			for i := r.From; i <= r.To; i++ {
				if !slices.ContainsFunc(h.Macroblocks, func(mb restart.Macroblock) bool { return mb.Index == i }) {
					h.Macroblocks = append(h.Macroblocks, entry(i))
					added++
				}
			}
		}
		slices.SortFunc(hostOf(m, 0, 0).Macroblocks, byIndex)
		slices.SortFunc(hostOf(m, 1, 0).Macroblocks, byIndex)
		branch(hostOf(m, 1, 0), 50_000)
	}
	if added > 2*(2*10+restart.MaxNeeded+1) {
		t.Errorf("%d macroblocks were asked for in %d rounds", added, rounds)
	}
}

func byIndex(a, b restart.Macroblock) int { return int(a.Index) - int(b.Index) }

func TestProposeRefusesOptions(t *testing.T) {
	for _, c := range []struct {
		o   restart.ProposeOptions
		say string
	}{
		{restart.ProposeOptions{Absent: []restart.Absent{{Operator: "dvae", Reason: "x"}}}, "dvae"},
		{restart.ProposeOptions{Absent: []restart.Absent{{Operator: "bob", Reason: " "}}}, "without a reason"},
		{restart.ProposeOptions{Absent: []restart.Absent{{Operator: "bob", Reason: "x"}, {Operator: "bob", Reason: "y"}}}, "twice"},
		{restart.ProposeOptions{Below: 5, Forged: 6}, "both"},
		{restart.ProposeOptions{Below: 2}, "no K"},
		{restart.ProposeOptions{Forged: 1}, "no K"},
	} {
		_, err := restart.Propose(fleet3(), c.o)
		var option *restart.OptionError
		if !errors.As(err, &option) || !strings.Contains(err.Error(), c.say) || option.Hint() == "" {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

func TestProposeVerified(t *testing.T) {
	sign := func(m restart.Merged) {
		for i := range m.Operators {
			for j := range m.Operators[i].Evidence.Hosts {
				h := hostOf(m, i, j)
				h.Keys = map[string]node.Hash{}
				for _, id := range ids(5) {
					h.Keys[id] = *chainHash('k', 0, uint64(id[len(id)-1]))
				}
				at(h, 20).Proof.Signatures = restart.Signatures{Valid: 4}
			}
		}
	}
	rekey := func(h *restart.HostFinding) { h.Keys[ids(1)[0]] = *chainHash('k', 7, 7) }
	for _, c := range []struct {
		name   string
		change func(m restart.Merged)
		note   string // "": verified
	}{
		{"as it should be", func(restart.Merged) {}, ""},
		{"one host of each suffices", func(m restart.Merged) {
			for i := range 3 {
				at(hostOf(m, i, 0), 20).Proof.Signatures = restart.Signatures{Unreadable: 4, Reason: "no key"}
			}
		}, ""},
		{"not one of an operator", func(m restart.Merged) {
			for j := range 2 {
				at(hostOf(m, 1, j), 20).Proof.Signatures = restart.Signatures{Valid: 3, Unreadable: 1, Reason: "envelope not understood"}
			}
		}, "bob/003, bob/004: 3 of 4 signatures verified, quorum 4, 1 unreadable (envelope not understood)"},
		{"an invalid one", func(m restart.Merged) {
			for j := range 2 {
				at(hostOf(m, 1, j), 20).Proof.Signatures = restart.Signatures{Valid: 4, Invalid: 1}
			}
		}, "1 invalid"},
		{"another key for one identity", func(m restart.Merged) { rekey(hostOf(m, 2, 1)) }, "genesis_node_001"},
		{"keys of one operator only", func(m restart.Merged) {
			for _, host := range []*restart.HostFinding{hostOf(m, 1, 0), hostOf(m, 1, 1), hostOf(m, 2, 0), hostOf(m, 2, 1)} {
				host.Keys = nil
			}
		}, "not named equally"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fleet3()
			sign(m)
			c.change(m)
			p := propose(t, m, restart.ProposeOptions{})
			wantK(t, p, 20)
			want := restart.VerifiedSignatures
			if c.note != "" {
				want = restart.VerifiedAgreement
			}
			if p.Verified != want || !strings.Contains(p.VerifiedNote, c.note) || c.note == "" && p.VerifiedNote != "" {
				t.Errorf("%s: %q", p.Verified, p.VerifiedNote)
			}
		})
	}
	one := merged(fleet3().Operators[0])
	sign(one)
	if p := propose(t, one, restart.ProposeOptions{}); p.Verified != restart.VerifiedSignatures {
		t.Errorf("two hosts of the only operator: %s", p.VerifiedNote)
	}
}

func TestProposeWays(t *testing.T) {
	head := uint64(20 * 90)
	for _, c := range []struct {
		name    string
		change  func(h *restart.HostFinding)
		way     string
		floor   *uint64
		explain string
	}{
		{"floor not known", func(*restart.HostFinding) {}, restart.WayUnknown, nil, "refused changes nothing"},
		{"exactly at K", func(h *restart.HostFinding) { h.FloorExact = &head }, restart.WayRollback, &head, "changes nothing"},
		{"exactly above K", func(h *restart.HostFinding) { h.FloorExact = ptr(head + 1) }, restart.WayRename, ptr(head + 1), "change nothing"},
		{"at least above K", func(h *restart.HostFinding) { h.FloorAtLeast = ptr(head + 30) }, restart.WayRename, ptr(head + 30), "change nothing"},
		{"at least at K proves nothing", func(h *restart.HostFinding) { h.FloorAtLeast = &head }, restart.WayUnknown, &head, ""},
		{"an older line names a lower floor", func(h *restart.HostFinding) { h.FloorAtLeast, h.FloorExact = ptr(head+90), ptr(head-90) }, restart.WayRename, ptr(head + 90), ""},
		{"nothing above", func(h *restart.HostFinding) { h.Height = &head }, restart.WayNone, nil, "nothing above 1800"},
		{"height unknown", func(h *restart.HostFinding) { h.Height = nil }, restart.WayUnknown, nil, ""},
		{"height at K, but a macroblock above", func(h *restart.HostFinding) {
			h.Height = &head
			h.Macroblocks = append(h.Macroblocks, entry(21))
		}, restart.WayUnknown, nil, ""},
		{"not reached", func(h *restart.HostFinding) { *h = restart.HostFinding{ID: h.ID, Reason: "no route"} }, restart.WayUnknown, nil, "no route"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fleet3()
			c.change(hostOf(m, 1, 1))
			p := propose(t, m, restart.ProposeOptions{Below: 21})
			wantK(t, p, 20)
			w := p.Hosts[3]
			if len(p.Hosts) != 6 || w.ID != "bob/004" || w.Way != c.way || !strings.Contains(w.Reason, c.explain) {
				t.Errorf("%+v", p.Hosts)
			}
			if (w.CertifiedFloor == nil) != (c.floor == nil) || c.floor != nil && *w.CertifiedFloor != *c.floor {
				t.Errorf("floor %v, want %v", w.CertifiedFloor, c.floor)
			}
		})
	}
	m := fleet3()
	m.Expected = append(m.Expected, "dave")
	for _, w := range propose(t, m, restart.ProposeOptions{}).Hosts {
		if w.Way != restart.WayUnknown {
			t.Errorf("without K: %+v", w)
		}
	}
}

// shuffled is the same evidence in another order.
func shuffled(r *rand.Rand, m restart.Merged) restart.Merged {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	var out restart.Merged
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	r.Shuffle(len(out.Operators), func(i, j int) { out.Operators[i], out.Operators[j] = out.Operators[j], out.Operators[i] })
	r.Shuffle(len(out.Expected), func(i, j int) { out.Expected[i], out.Expected[j] = out.Expected[j], out.Expected[i] })
	r.Shuffle(len(out.LeftOut), func(i, j int) { out.LeftOut[i], out.LeftOut[j] = out.LeftOut[j], out.LeftOut[i] })
	for i := range out.Operators {
		hosts := out.Operators[i].Evidence.Hosts
		r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
		for _, h := range hosts {
			r.Shuffle(len(h.Macroblocks), func(i, j int) { h.Macroblocks[i], h.Macroblocks[j] = h.Macroblocks[j], h.Macroblocks[i] })
		}
	}
	return out
}

func TestProposeSameBytesInAnyOrder(t *testing.T) {
	for seed := range restart.Seeds(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := randomFleet(r)
		m.LeftOut = []restart.LeftOut{{Name: "a.json", Code: "changed"}, {Name: "b.json", Code: "future"}, {Name: "b.json", Code: "conflict"}}
		first, err := json.Marshal(propose(t, m, restart.ProposeOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			again, err := json.Marshal(propose(t, shuffled(r, m), restart.ProposeOptions{}))
			if err != nil || !bytes.Equal(first, again) {
				t.Fatalf("seed %d: %v\n%s\n%s", seed, err, first, again)
			}
		}
	}
}
