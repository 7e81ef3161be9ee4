package simnode

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/qnetops/qnetops/node"
)

// checkProof is facts 2.6 in its order, written out here on its own.
func checkProof(t *testing.T, mb mbBody, p proofBody) {
	t.Helper()
	if mb.Error != "" || p.Error != "" {
		t.Fatalf("macroblock or proof missing: %q %q", mb.Error, p.Error)
	}
	cp := p.Checkpoint
	raw, err := hex.DecodeString(p.EligibleRaw)
	if err != nil {
		t.Fatalf("eligible_raw: %v", err)
	}
	switch {
	case !slices.Equal(mb.MicroBlocks, cp.WindowMBHashes):
		t.Fatal("micro blocks differ from the checkpoint's")
	case mb.StateRoot != cp.StateRoot || mb.Timestamp != cp.Timestamp:
		t.Fatal("state root or timestamp differ from the checkpoint's")
	case cp.WindowHeadHeight != mb.Index*90 || len(mb.MicroBlocks) != 90 || mb.Height != mb.Index:
		t.Fatalf("head %d, %d hashes, own number %d for macroblock %d", cp.WindowHeadHeight, len(mb.MicroBlocks), mb.Height, mb.Index)
	case node.Beacon(mb.MicroBlocks) != cp.Beacon:
		t.Fatal("beacon does not recompute")
	case node.EpochCommitment(raw, p.Committee, p.Banned) != cp.EpochCommitment:
		t.Fatal("epoch commitment does not recompute")
	case !slices.IsSorted(p.Committee) || cp.RecoveryAnchor != nil:
		t.Fatal("committee not sorted, or a relaxed certificate")
	case len(p.QC.Signers) != node.QuorumSize(len(p.Committee)) || len(p.QC.Sigs) != len(p.QC.Signers):
		t.Fatalf("%d signers of %d members: want exactly the first quorum", len(p.QC.Signers), len(p.Committee))
	}
	seen := map[string]bool{}
	for i, id := range p.QC.Signers {
		if seen[id] || !slices.Contains(p.Committee, id) || !verifies(p.Pubkeys[id], p.QC.Sigs[i], cp.Hash()) {
			t.Fatalf("signer %s is doubled, foreign or wrongly signed", id)
		}
		seen[id] = true
	}
	if cp.Index == mb.Index {
		t.Fatal("checkpoint index is the BFT round, not the macroblock index")
	}
}

func (b mbBody) hash() node.Hash {
	return node.MacroBlock{Height: b.Height, Timestamp: b.Timestamp, PreviousHash: b.PreviousHash, StateRoot: b.StateRoot, MicroBlocks: b.MicroBlocks}.Hash()
}

func TestChainGrowsAndSeals(t *testing.T) {
	bubble(t, 5, 0, nil, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(60 + 2 + 400)
		first := l.nodes[l.ids[0]]
		h := first.heightNow()
		if h < 395 || h > 403 {
			t.Fatalf("height %d after 400 blocks and the boot wait; log:\n%s", h, first.out)
		}
		sealed := first.sealedNow()
		if sealed != 4 && sealed != 3 {
			t.Fatalf("sealed %d at height %d", sealed, h)
		}
		differ := false
		var prev node.Hash
		for i := uint64(1); i <= 3; i++ {
			ref := first.mbOf(i)
			if ref.PreviousHash != prev {
				t.Fatalf("macroblock %d does not follow %d", i, i-1)
			}
			prev = ref.hash()
			for _, id := range l.ids {
				mb, p := l.nodes[id].mbOf(i), l.nodes[id].proofOf(i)
				checkProof(t, mb, p)
				if mb.hash() != prev {
					t.Fatalf("%s: another macroblock %d", id, i)
				}
				if !slices.Equal(p.Committee, l.ids) {
					t.Fatalf("committee %v, want the genesis set", p.Committee)
				}
				differ = differ || !slices.Equal(slices.Sorted(slices.Values(p.QC.Signers)), slices.Sorted(slices.Values(first.proofOf(i).QC.Signers)))
			}
		}
		if !differ {
			t.Error("all certificates list the same signers: first voters should differ between nodes")
		}
		for _, id := range l.ids {
			n := l.nodes[id]
			if n.out.count("validator=true mb=3 participating active_lock=acquired") != 1 {
				t.Errorf("%s: no participation line for window 3", id)
			}
			if got := n.num("/api/v1/node/health", "failover_count"); got != 0 {
				t.Errorf("%s: failover_count %d on a healthy chain", id, got)
			}
		}
	})
}

func TestTwoChainSeal(t *testing.T) {
	bubble(t, 5, 0, []string{EnvHistory + "=360"}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(62 + 20)
		n := l.nodes[l.ids[0]]
		// Head 360 is certified, its child at 390 is not there yet.
		if h, s := n.heightNow(), n.sealedNow(); h >= 390 || s != 3 {
			t.Fatalf("height %d sealed %d, want macroblock 4 unsealed before 390", h, s)
		}
		l.blocks(20)
		if h, s := n.heightNow(), n.sealedNow(); h < 391 || s != 4 {
			t.Fatalf("height %d sealed %d, want macroblock 4 sealed after 390", h, s)
		}
	})
}

func TestPremadeHistory(t *testing.T) {
	bubble(t, 5, 1, []string{EnvHistory + "=360"}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(90)
		for i := uint64(1); i <= 3; i++ {
			var ref node.Hash
			for _, id := range l.ids {
				mb, p := l.nodes[id].mbOf(i), l.nodes[id].proofOf(i)
				checkProof(t, mb, p)
				if ref.IsZero() {
					ref = mb.hash()
				}
				if mb.hash() != ref {
					t.Fatalf("%s: another pre-made macroblock %d", id, i)
				}
				if want := 5 + int(i/3); len(p.Committee) != want {
					t.Fatalf("committee of %d has %d members, want %d", i, len(p.Committee), want)
				}
			}
		}
		super := l.nodes[l.ids[5]]
		l.blocks(100)
		if super.out.count("participating active_lock=acquired") == 0 {
			t.Errorf("the super node does not take part:\n%s", super.out)
		}
	})
}

func TestCommitteeGrowth(t *testing.T) {
	bubble(t, 5, 1, nil, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		super := l.nodes[l.ids[5]]
		l.blocks(62 + 640)
		// Registered in one of the first blocks, eligible 180 blocks later:
		// sealed into macroblock 3 (head 270), a member from window 5 on.
		for w, want := range map[uint64]int{2: 5, 4: 5, 5: 6, 6: 6} {
			p := l.nodes[l.ids[1]].proofOf(w)
			if len(p.Committee) != want {
				t.Errorf("committee of window %d: %d members, want %d", w, len(p.Committee), want)
			}
			if quorum := map[int]int{5: 4, 6: 5}[want]; len(p.QC.Signers) != quorum {
				t.Errorf("window %d: %d signers, want %d", w, len(p.QC.Signers), quorum)
			}
		}
		raw, _ := hex.DecodeString(l.nodes[l.ids[1]].proofOf(3).EligibleRaw)
		list, err := node.DecodeEligible(raw)
		if err != nil || len(list) != 6 || list[5] != (node.Producer{NodeID: l.ids[5], Reputation: 7000}) {
			t.Errorf("eligible set of macroblock 3: %v %v", list, err)
		}
		if super.out.count("NOT_IN_COMMITTEE total=5 committee=5 → skip_consensus") == 0 || super.out.count("validator=true mb=5 ") != 1 {
			t.Errorf("super node log:\n%s", super.out)
		}
	})
}

func TestOneDownStillSeals(t *testing.T) {
	bubble(t, 5, 1, []string{EnvHistory + "=360"}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		l.nodes[l.ids[3]].halt()
		n := l.nodes[l.ids[0]]
		before := n.sealedNow()
		l.blocks(400)
		if after := n.sealedNow(); after < before+3 {
			t.Fatalf("sealed %d -> %d with one of six down", before, after)
		}
		p := n.proofOf(n.sealedNow())
		if len(p.QC.Signers) != 5 || slices.Contains(p.QC.Signers, l.ids[3]) {
			t.Fatalf("signers %v with %s down", p.QC.Signers, l.ids[3])
		}
		if n.num("/api/v1/node/health", "failover_count") == 0 {
			t.Error("the dead node's turn passed without failover")
		}
	})
}

func TestTwoDownStopsSealing(t *testing.T) {
	bubble(t, 5, 1, []string{EnvHistory + "=360"}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		l.nodes[l.ids[3]].halt()
		l.nodes[l.ids[4]].halt()
		l.blocks(60)
		n := l.nodes[l.ids[0]]
		sealed, h := n.sealedNow(), n.heightNow()
		l.blocks(300)
		if s := n.sealedNow(); s != sealed {
			t.Fatalf("sealed %d -> %d with four of six", sealed, s)
		}
		if now := n.heightNow(); now < h+200 {
			t.Fatalf("height %d -> %d: production should go on", h, now)
		}
		if n.out.count("checkpoint_defer mb=") == 0 {
			t.Error("no defer line once the anchor is unsealed")
		}
		// Up to the horizon and not one block further.
		l.blocks(3600)
		base := n.num(pathPosition, "finalized_height") + 30
		if h := n.heightNow(); h != base+node.HorizonBlocks {
			t.Fatalf("height %d, want parked at %d", h, base+node.HorizonBlocks)
		}
		if n.out.count("parked reason=roster_derivation_horizon") == 0 {
			t.Error("no parked line")
		}
		// With a fifth member back everything is certified and goes on.
		l.nodes[l.ids[3]].start()
		l.blocks(400)
		if s := n.sealedNow(); s < (base+node.HorizonBlocks)/90 {
			t.Fatalf("sealed %d after the fifth member is back; log of it:\n%s", s, l.nodes[l.ids[3]].out)
		}
		if n.heightNow() <= base+node.HorizonBlocks {
			t.Error("production did not go on")
		}
	})
}

func TestObserverNeverJoins(t *testing.T) {
	bubble(t, 5, 1, nil, func(t *testing.T, l *labNet) {
		l.start(l.ids[:5]...)
		observer := l.nodes[l.ids[5]]
		observer.start(EnvObserver + "=1")
		l.blocks(62 + 600)
		if p := observer.proofOf(5); len(p.Committee) != 5 {
			t.Errorf("committee %v", p.Committee)
		}
		if h, tip := observer.heightNow(), l.nodes[l.ids[0]].heightNow(); h+1 < tip {
			t.Errorf("observer at %d of %d", h, tip)
		}
	})
}
