package simnode

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

// restartAt makes the manifest of a restart from macroblock k as an operator would: recomputed from what a node serves.
func restartAt(t *testing.T, n *labNode, k uint64, excluded ...string) Manifest {
	t.Helper()
	mb := n.mbOf(k)
	digest := func(i uint64) node.Hash {
		p := n.proofOf(i)
		raw, err := hex.DecodeString(p.EligibleRaw)
		if err != nil {
			t.Fatal(err)
		}
		return node.CommitteeFields{Eligible: raw, Beacon: &p.Checkpoint.Beacon, Committee: p.Committee, Banned: node.EncodeStrings(p.Banned)}.DigestV2()
	}
	slices.Sort(excluded)
	return Manifest{Restart: Restart{ResumeFromMB: k, ResumeMBHash: mb.hash(), Excluded: excluded},
		Pin: Pin{Index: k, Hash: mb.hash(), DigestAnchor: digest(k), DigestPred: digest(k - 1)}}
}

// aside renames a stopped node's data directory, as an operator does.
func (n *labNode) aside() {
	n.lab.t.Helper()
	if err := os.Rename(n.dir, fmt.Sprintf("%s-aside-%d", n.dir, time.Now().UnixNano())); err != nil {
		n.lab.t.Fatal(err)
	}
}

// stalled is a fleet of five genesis nodes and one super node of which the last two died: four are no quorum of six.
// It returns the survivors and the dead.
func stalled(l *labNet) (up, down []*labNode) {
	l.start(l.ids...)
	l.blocks(upBlocks + 130)
	for i, id := range l.ids {
		if i >= 4 {
			l.nodes[id].halt()
			down = append(down, l.nodes[id])
		} else {
			up = append(up, l.nodes[id])
		}
	}
	l.blocks(150)
	return up, down
}

// bootBlocks is a little more than a genesis node takes with one genesis node absent.
const bootBlocks = secPeerWait + 15

// restarted takes a stalled fleet through a restart in which the first survivor keeps its data and serves the others.
func restarted(t *testing.T, l *labNet, up, down []*labNode) Manifest {
	t.Helper()
	k := up[0].sealedNow()
	for _, n := range up[1:] {
		k = min(k, n.sealedNow())
	}
	m := restartAt(t, up[0], k, down[0].id, down[1].id)
	for _, n := range up {
		n.halt()
	}
	up[0].startWith(m)
	for _, n := range up[1:] {
		n.aside()
		n.startWith(m)
	}
	l.blocks(bootBlocks)
	return m
}

func TestRestartFromK(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		archive, stale := up[0], up[0].heightNow()
		m := restarted(t, l, up, down)
		k := m.Pin.Index
		l.blocks(300)

		// The one with data above K serves and does not fork.
		if archive.out.count("[ERR][SYNC] v2_below_ws mb=") == 0 || archive.heightNow() != stale || archive.sealedNow() != k {
			t.Errorf("archive at %d (was %d):\n%s", archive.heightNow(), stale, archive.out)
		}
		// The others resume from K, with a committee of four and its quorum of three.
		n := up[1]
		if n.heightNow() < node.WindowHead(k)+250 || n.sealedNow() < k+2 {
			t.Fatalf("height %d, sealed %d after a restart from %d:\n%s", n.heightNow(), n.sealedNow(), k, n.out)
		}
		if n.mbOf(k).hash() != m.Pin.Hash {
			t.Error("another macroblock K")
		}
		for w := k + 1; w <= n.sealedNow(); w++ {
			p := n.proofOf(w)
			checkProof(t, n.mbOf(w), p)
			if len(p.Committee) != 4 || len(p.QC.Signers) != 3 {
				t.Errorf("window %d: committee %v, %d signers", w, p.Committee, len(p.QC.Signers))
			}
			raw, _ := hex.DecodeString(p.EligibleRaw)
			list, err := node.DecodeEligible(raw)
			if err != nil || slices.ContainsFunc(list, func(e node.Producer) bool { return slices.Contains(m.Restart.Excluded, e.NodeID) }) {
				t.Errorf("window %d: eligible %v, %v", w, list, err)
			}
		}
		if n.out.count("snapshot_applied h=90") != 1 {
			t.Error("no cold join from the snapshot of height 90")
		}
		// K itself still reads with the committee it was sealed by.
		if p := n.proofOf(k); len(p.Committee) != 6 {
			t.Errorf("committee of K: %v", p.Committee)
		} else {
			checkProof(t, n.mbOf(k), p)
		}
		for h := node.WindowHead(k) + 1; h < n.heightNow(); h++ {
			if who := n.json(fmt.Sprintf("/api/v1/microblock/%d", h))["producer"].(string); slices.Contains(m.Restart.Excluded, who) {
				t.Fatalf("block %d by %s", h, who)
			}
		}
		// The archive joins in the end, and a barred node follows and is no member.
		archive.halt()
		archive.aside()
		archive.startWith(m)
		barred := down[0]
		barred.aside()
		barred.startWith(m)
		l.blocks(bootBlocks + 200)
		for _, other := range []*labNode{archive, barred} {
			if a, b := other.heightNow(), n.heightNow(); a+1 < b {
				t.Errorf("%s: %d of %d:\n%s", other.id, a, b, other.out)
			}
		}
		if archive.out.count("participating active_lock") == 0 || barred.out.count("NOT_IN_COMMITTEE total=4 committee=4") == 0 {
			t.Errorf("barred node:\n%s", barred.out)
		}
		// An ordinary restart of a node of the new chain is no stale data.
		n.halt()
		n.startWith(m)
		l.blocks(bootBlocks)
		if n.out.count("fail_closed") != 0 || n.heightNow()+1 < archive.heightNow() {
			t.Errorf("restarted node:\n%s", n.out)
		}
	})
}

// TestOldImageStaysOut: a node that missed the release neither follows nor disturbs the restarted chain.
func TestOldImageStaysOut(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		m := restarted(t, l, up, down)
		down[0].start()
		l.blocks(300)
		n, old := up[1], down[0]
		if s := n.sealedNow(); s < m.Pin.Index+2 {
			t.Errorf("sealed %d after a restart from %d", s, m.Pin.Index)
		}
		if s := old.sealedNow(); s > m.Pin.Index+1 {
			t.Errorf("the old image sealed %d", s)
		}
	})
}

func TestPinRefusals(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		k := up[0].sealedNow()
		good := restartAt(t, up[0], k, down[0].id, down[1].id)
		for _, n := range up {
			n.halt()
		}
		wrong := good
		wrong.Pin.Hash, wrong.Restart.ResumeMBHash = node.Hash{7}, node.Hash{7}
		digest := good
		digest.Pin.DigestPred = node.Hash{7}
		none := good // the manifest is retired and the pin lost its digests: only a joining node finds out
		none.Restart, none.Pin.DigestAnchor = Restart{}, node.Hash{}

		up[0].startWith(good)
		up[1].startWith(wrong) // its own data holds another K
		for i, m := range []Manifest{digest, none} {
			up[2+i].aside()
			up[2+i].startWith(m)
		}
		down[0].aside()
		down[0].startWith(wrong) // K comes from a peer
		l.blocks(bootBlocks + 60)
		for n, want := range map[*labNode]string{up[0]: tagBelow, up[1]: tagMismatch + fmt.Sprintf(" mb=%d have=", k),
			up[2]: tagMismatch + fmt.Sprintf(" mb=%d reason=committee_digest", k), up[3]: tagDefer, down[0]: tagMismatch} {
			if n.out.count("[ERR][SYNC] "+want) < 2 { // said once and repeated
				t.Errorf("%s: no line %q:\n%s", n.id, want, n.out)
			}
			n.halt()
		}
		// Started again with the good release, what a wrong one latched off goes on.
		before := up[2].out.count("fail_closed")
		up[2].startWith(good)
		up[0].startWith(good)
		l.blocks(40)
		if up[2].out.count("fail_closed") != before || up[2].heightNow() != node.WindowHead(k) || up[2].sealedNow() != k {
			t.Errorf("height %d:\n%s", up[2].heightNow(), up[2].out)
		}
	})
}

func TestEmptyUnderAPinRefusesToMint(t *testing.T) {
	const fatal = "[FATAL][GEN] WS restart pin active (K=3) with empty local chain — refusing to mint fresh genesis"
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		m := goodManifest()
		// All of them wiped: nobody has anything.
		for _, id := range l.ids {
			l.nodes[id].startWith(m)
		}
		l.blocks(10)
		if h := l.nodes[l.ids[0]].heightNow(); h != 0 {
			t.Errorf("height %d: minted", h)
		}
		for _, id := range l.ids {
			if code := l.nodes[id].exited(secJoin + 10); code != 1 || l.nodes[id].out.count(fatal) != 1 {
				t.Errorf("%s: exit %d:\n%s", id, code, l.nodes[id].out)
			}
			if files := inventory(t, l.nodes[id].dir); files[fileBlocks] != 0 || files[fileMeta] != 0 {
				t.Errorf("%s began a chain: %v", id, files)
			}
		}
	})
	// A peer that is busy or holds no snapshot is as good as none, and one that pruned what follows its snapshot leaves the
	// node below K.
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		k := up[0].sealedNow()
		m := restartAt(t, up[0], k, down[0].id, down[1].id)
		for _, n := range up {
			n.halt()
		}
		archive, n := up[0], up[1]
		archive.startWith(m)
		n.aside()
		for fault, line := range map[Kind]string{FaultSnapshotBusy: "err=snapshot serve busy", FaultNoSnapshot: "err=Snapshot not found max_h="} {
			_ = archive.faults.Set(fault, "")
			n.startWith(m)
			if code := n.exited(secJoin + 20); code != 1 || n.out.count(line) == 0 {
				t.Errorf("%s: exit %d:\n%s", fault, code, n.out)
			}
			archive.faults.Clear()
		}
		_ = archive.faults.Set(FaultPruned, fmt.Sprint(node.WindowHead(k)))
		n.startWith(m)
		l.blocks(60)
		if h := n.heightNow(); h != 90 {
			t.Errorf("height %d: nobody has the blocks from the snapshot of 90 on", h)
		}
		if code, _ := archive.get("/api/v1/microblock/100"); code != 404 {
			t.Errorf("a pruned body: %d", code)
		}
		archive.faults.Clear()
		l.blocks(30)
		if h := n.heightNow(); h != node.WindowHead(k) {
			t.Errorf("height %d, want %d", h, node.WindowHead(k))
		}
	})
}

// TestSixteenTransfersAtATime: seventeen ask at once, one is told that the node is busy; later it is served.
func TestSixteenTransfersAtATime(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		n.start()
		probe := l.hub.Join("probe")
		send := func(m message) {
			raw, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			_ = probe.Send(t.Context(), n.id, raw)
		}
		l.blocks(2)
		var network node.Hash
		answers := func(blocks int) (state, busy int) {
			l.blocks(blocks)
			for {
				select {
				case env := <-probe.Receive():
					var m message
					if err := json.Unmarshal(env.Msg, &m); err != nil {
						t.Fatal(err)
					}
					switch {
					case m.T == msgHello:
						network = m.Network
					case m.T == msgState && m.Busy:
						busy++
					case m.T == msgState && m.Height == 90:
						state++
					}
				default:
					return state, busy
				}
			}
		}
		l.blocks(secHello)
		answers(1)
		send(message{T: msgHello, Network: network, Boot: 1})
		for range 17 {
			send(message{T: msgGetSt, Height: 270})
		}
		if state, busy := answers(1); state != 0 || busy != 1 {
			t.Errorf("at once: %d snapshots, %d refusals", state, busy)
		}
		req := newGet("/api/v1/snapshot/90")
		if _, body, _, err := n.do("127.0.0.1", "8001", req); err != nil || strings.TrimSpace(body) != `{"error":"snapshot serve busy"}` {
			t.Errorf("over HTTP meanwhile: %q, %v", body, err)
		}
		if state, busy := answers(secTransfer + 1); state != 16 || busy != 0 {
			t.Errorf("then: %d snapshots, %d refusals", state, busy)
		}
		send(message{T: msgGetSt, Height: 89})
		send(message{T: msgGetSt, Height: 270})
		if state, busy := answers(secTransfer + 1); state != 1 || busy != 0 {
			t.Errorf("afterwards: %d snapshots, %d refusals", state, busy)
		}
	})
}

// TestRestartOnOwnData: nodes whose certified floor is exactly K·90 keep their data, rolled back to it by the variable. The
// pinned macroblock counts as sealed without a certified child.
func TestRestartOnOwnData(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 12) // a little above 360, where nothing is certified yet
		s := parseEnv(environ(l.env))
		c := newChain(&s, nil, s.history)
		m := Manifest{Pin: Pin{Index: 4, Hash: c.macroblock(4).Hash(), DigestAnchor: c.digest(4), DigestPred: c.digest(3)}}
		m.Restart = Restart{ResumeFromMB: 4, ResumeMBHash: m.Pin.Hash, Excluded: []string{GenesisID(5)}}
		n := l.nodes[l.ids[0]]
		if h := n.heightNow(); h <= 360 || h >= 390 {
			t.Fatalf("height %d", h)
		}
		for _, id := range l.ids {
			l.nodes[id].halt()
		}
		// Without the variable the blocks above K are stale.
		n.startWith(m)
		l.blocks(2)
		if n.out.count("[ERR][SYNC] v2_below_ws mb=4 local_h=") != 1 {
			t.Errorf("log:\n%s", n.out)
		}
		n.halt()
		for _, id := range l.ids[:4] {
			l.nodes[id].startWith(m, "QNET_ROLLBACK_TO_HEIGHT=360")
		}
		l.blocks(2)
		if n.heightNow() != 360 || n.sealedNow() != 4 || n.num(pathPosition, "finalized_height") != 360 {
			t.Errorf("height %d, sealed %d", n.heightNow(), n.sealedNow())
		}
		l.blocks(bootBlocks + 200)
		if p := n.proofOf(5); p.Error != "" || len(p.Committee) != 4 || n.sealedNow() < 5 {
			t.Errorf("sealed %d, window 5: %+v\n%s", n.sealedNow(), p.Committee, n.out)
		}
	})
}

// TestBelowKSyncsUp: data that ends below K is taken on by sync, and checked at K.
func TestBelowKSyncsUp(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		late := l.nodes[l.ids[1]]
		late.start()
		l.blocks(3)
		late.halt()
		l.start(l.ids[0], l.ids[2], l.ids[3], l.ids[4], l.ids[5])
		l.blocks(bootBlocks + 300)
		k := l.nodes[l.ids[0]].sealedNow()
		if node.WindowHead(k) <= 360 {
			t.Fatalf("sealed %d", k)
		}
		m := restartAt(t, l.nodes[l.ids[0]], k, l.ids[4], l.ids[5])
		for _, id := range l.ids {
			l.nodes[id].halt()
		}
		l.nodes[l.ids[0]].startWith(m)
		late.startWith(m)
		l.blocks(30)
		if late.heightNow() != node.WindowHead(k) || late.sealedNow() != k || late.out.count("fail_closed") != 0 {
			t.Errorf("height %d, sealed %d, want K=%d:\n%s", late.heightNow(), late.sealedNow(), k, late.out)
		}
	})
}

// unbarred is the release that follows: the pin stays, the list is another.
func unbarred(m Manifest, excluded ...string) Manifest {
	m.Restart.Excluded = excluded
	if len(excluded) == 0 {
		m.Restart = Restart{}
	}
	return m
}

func TestUnbarring(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		m := restarted(t, l, up, down)
		up[0].halt()
		up[0].aside()
		up[0].startWith(m)
		alive, dead := down[1], down[0] // the super node comes back and heartbeats, the genesis node stays away
		alive.aside()
		alive.startWith(m)
		l.blocks(bootBlocks + 100)
		members := func(n *labNode) []string { return n.proofOf(n.sealedNow()).Committee }
		if got := members(up[1]); len(got) != 4 {
			t.Fatalf("committee %v: a barred node that heartbeats came back", got)
		}
		for _, n := range append(slices.Clone(up), alive) {
			n.halt()
			n.startWith(unbarred(m))
		}
		l.blocks(bootBlocks + 400)
		for _, n := range append(slices.Clone(up), alive) {
			if got := members(n); len(got) != 5 || !slices.Contains(got, alive.id) || slices.Contains(got, dead.id) {
				t.Errorf("%s: committee %v\n%s", n.id, got, n.out)
			}
		}
		if alive.out.count("participating active_lock") == 0 {
			t.Error("it does not take part")
		}
		// A node that joins now follows the chain through both lists, by its pin and by its data.
		up[3].halt()
		up[3].aside()
		up[3].startWith(unbarred(m))
		l.blocks(bootBlocks)
		if a, b := up[3].sealedNow(), up[1].sealedNow(); a+1 < b {
			t.Errorf("joined and sealed %d of %d:\n%s", a, b, up[3].out)
		}
		up[1].halt()
		up[1].start() // the node replays the chain whatever the release says today
		l.blocks(3)
		if a, b := up[1].sealedNow(), up[2].sealedNow(); a+1 < b {
			t.Errorf("replayed and sealed %d of %d", a, b)
		}
	})
}

// TestUnbarringHalfTheFleet: while only some nodes un-bar an identity that heartbeats, the two groups derive different sets
// and their checkpoint is not sealed; when the others follow, it is.
func TestUnbarringHalfTheFleet(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		m := restarted(t, l, up, down)
		up[0].halt()
		up[0].aside()
		up[0].startWith(m)
		alive := down[1]
		alive.aside()
		alive.startWith(m)
		l.blocks(bootBlocks + 100)
		for _, n := range []*labNode{up[0], up[1]} { // two of four: neither side has the quorum of three
			n.halt()
			n.startWith(unbarred(m))
		}
		l.blocks(bootBlocks + 100)
		stuck := up[2].sealedNow()
		l.blocks(300)
		for _, n := range up {
			if s := n.sealedNow(); s > stuck {
				t.Errorf("%s sealed %d -> %d", n.id, stuck, s)
			}
		}
		if a, b := up[0].heightNow(), up[2].heightNow(); max(a, b) < node.WindowHead(stuck)+250 {
			t.Errorf("heights %d and %d: production should go on", a, b)
		}
		for _, n := range []*labNode{up[2], up[3], alive} {
			n.halt()
			n.startWith(unbarred(m))
		}
		l.blocks(bootBlocks + 300)
		for _, n := range append(slices.Clone(up), alive) {
			if s := n.sealedNow(); s < stuck+3 {
				t.Errorf("%s: sealed %d -> %d after all follow:\n%s", n.id, stuck, s, n.out)
			}
		}
		if got := up[2].proofOf(up[2].sealedNow()).Committee; len(got) != 5 {
			t.Errorf("committee %v", got)
		}
	})
}

// TestUnbarringOneTooEarly: one that runs ahead refuses what the quorum certifies and follows it a window later.
func TestUnbarringOneTooEarly(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		up, down := stalled(l)
		m := restarted(t, l, up, down)
		alive := down[1]
		alive.aside()
		alive.startWith(m)
		l.blocks(200)
		up[0].halt()
		up[0].aside()
		up[0].startWith(m)
		l.blocks(bootBlocks)
		n := up[3]
		n.halt()
		n.startWith(unbarred(m))
		l.blocks(bootBlocks + 300)
		if n.out.count("[WARN][BFT2] persist_refused reason=epoch_commitment_mismatch head=") == 0 {
			t.Errorf("no refusal:\n%s", n.out)
		}
		if a, b := n.sealedNow(), up[1].sealedNow(); a+3 < b || b < m.Pin.Index+5 {
			t.Errorf("sealed %d, the others %d", a, b)
		}
	})
}
