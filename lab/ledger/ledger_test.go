package ledger

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudflare/circl/sign/mldsa/mldsa65"

	"github.com/qnetops/qnetops/node"
)

// made is a ledger of a few macroblocks.
func made(t testing.TB, cfg Config) *Ledger {
	t.Helper()
	if cfg.Macroblocks == 0 {
		cfg.Macroblocks = 50
	}
	if cfg.Members == 0 {
		cfg.Members = 6
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// open is a node of a ledger with faults ("kind" or "kind=arg") and a client for it.
func open(t testing.TB, l *Ledger, cfg NodeConfig, faults ...string) (*Node, *node.Client) {
	t.Helper()
	if cfg.ID == "" {
		cfg.ID = "genesis_node_001"
	}
	n := l.Node(cfg)
	for _, f := range faults {
		kind, arg, _ := strings.Cut(f, "=")
		if err := n.Set(Kind(kind), arg); err != nil {
			t.Fatal(err)
		}
	}
	c, closed := n.Open()
	t.Cleanup(closed)
	return n, c
}

// both asks for a macroblock and its proof.
func both(t testing.TB, c *node.Client, i uint64) (node.Macroblock, node.Proof) {
	t.Helper()
	mb, err := c.Macroblock(t.Context(), i)
	if err != nil {
		t.Fatalf("macroblock %d: %v", i, err)
	}
	p, err := c.Proof(t.Context(), i)
	if err != nil {
		t.Fatalf("proof %d: %v", i, err)
	}
	return mb, p
}

// valid counts the signatures of a proof that verify with the keys it names.
func valid(p node.Proof) int {
	good := 0
	for k, id := range p.Signers {
		_, text, _ := strings.Cut(p.Sigs[k], ":")
		sig, err := base64.StdEncoding.DecodeString(text)
		key, err2 := hex.DecodeString(p.CommitteePubkeys[id])
		var pub mldsa65.PublicKey
		if err == nil && err2 == nil && pub.UnmarshalBinary(key) == nil &&
			mldsa65.Verify(&pub, []byte(node.VoteText(p.Checkpoint.Hash())), nil, sig) {
			good++
		}
	}
	return good
}

// TestGoodNodes: committees of five, six and a thousand: every check of package node holds, every signature verifies,
// a certificate lists exactly the quorum, and two nodes agree on hash and digest.
func TestGoodNodes(t *testing.T) {
	for _, c := range []struct {
		members int
		indices []uint64
	}{{1, []uint64{1, 3, 50}}, {5, []uint64{1, 2, 3, 25, 50}}, {6, []uint64{1, 2, 3, 25, 50}}, {1000, []uint64{2, 50}}} {
		t.Run(fmt.Sprint(c.members), func(t *testing.T) {
			l := made(t, Config{Members: c.members})
			_, a := open(t, l, NodeConfig{ID: "genesis_node_001"})
			_, b := open(t, l, NodeConfig{ID: "genesis_node_002"})
			for _, i := range c.indices {
				mb, p := both(t, a, i)
				mb2, p2 := both(t, b, i)
				if err := p.Check(&mb); err != nil || !p.FullQuorum() {
					t.Errorf("macroblock %d: %v", i, err)
				}
				want := min(c.members, 5)
				if i > 2 {
					want = c.members
				}
				if len(p.Committee) != want || len(p.Signers) != node.QuorumSize(want) || valid(p) != len(p.Signers) {
					t.Errorf("macroblock %d: committee %d, signers %d, valid %d", i, len(p.Committee), len(p.Signers), valid(p))
				}
				if mb.Hash() != mb2.Hash() || p.Fields().DigestV2() != p2.Fields().DigestV2() {
					t.Errorf("macroblock %d: two good nodes differ", i)
				}
				if main, err := l.Hash(i); err != nil || main != mb.Hash() {
					t.Errorf("macroblock %d: hash %s, the ledger says %s (%v)", i, mb.Hash(), main, err)
				}
			}
		})
	}
}

// TestSignersDiffer: each node collects votes of its own, and a silent identity is in no certificate from its window on.
func TestSignersDiffer(t *testing.T) {
	l := made(t, Config{Silent: map[string]uint64{"genesis_node_003": 20}})
	first := l.Node(NodeConfig{ID: "genesis_node_001"})
	second := l.Node(NodeConfig{ID: "genesis_node_002"})
	seen, differ := 0, 0
	for i := uint64(1); i <= l.Sealed(); i++ {
		one := first.unsigned(i).Signers
		if !slices.Equal(one, second.unsigned(i).Signers) {
			differ++
		}
		if slices.Contains(one, "genesis_node_003") {
			if seen++; i >= 20 {
				t.Errorf("a silent identity signed macroblock %d", i)
			}
		}
	}
	if seen < 5 || differ < 20 {
		t.Errorf("in %d certificates before it fell silent; certificates of two nodes differ in %d of 50", seen, differ)
	}
}

// TestBanned: a banned identity is in the ban set and not eligible from its window on, and not in the committee two later.
func TestBanned(t *testing.T) {
	l := made(t, Config{Members: 8, Banned: map[string]uint64{"genesis_node_002": 10}})
	_, c := open(t, l, NodeConfig{})
	for i, want := range map[uint64]struct {
		banned int
		member bool
	}{9: {0, true}, 10: {1, true}, 11: {1, true}, 12: {1, false}} {
		mb, p := both(t, c, i)
		if err := p.Check(&mb); err != nil {
			t.Error(err)
		}
		eligible, err := node.DecodeEligible(p.EligibleRaw)
		if err != nil || len(eligible) != 8-want.banned || len(p.Banned) != want.banned || slices.Contains(p.Committee, "genesis_node_002") != want.member {
			t.Errorf("macroblock %d: %d eligible, banned %v, committee %v, %v", i, len(eligible), p.Banned, p.Committee, err)
		}
	}
}

// TestEqualSeedsEqualLedgers, and another seed is another chain.
func TestEqualSeedsEqualLedgers(t *testing.T) {
	a, b, other := made(t, Config{Seed: 7}), made(t, Config{Seed: 7}), made(t, Config{Seed: 8})
	pa, pb := a.Node(NodeConfig{ID: "x"}).Proof(40), b.Node(NodeConfig{ID: "x"}).Proof(40)
	if !slices.Equal(pa.Sigs, pb.Sigs) || !slices.Equal(pa.Signers, pb.Signers) {
		t.Error("two ledgers of one seed differ")
	}
	if a.main.hash(50) != b.main.hash(50) || a.main.hash(1) == other.main.hash(1) || slices.Equal(a.members, other.members) {
		t.Error("the seed does not decide the chain")
	}
}

// TestConfigRefuses: what cannot be a chain is no ledger.
func TestConfigRefuses(t *testing.T) {
	for want, cfg := range map[string]Config{
		"macroblocks must be":     {Members: 5},
		"members must be":         {Macroblocks: 1, Members: 1001},
		"blocks above":            {Macroblocks: 1, Members: 5, Above: 2881},
		"block time":              {Macroblocks: 1, Members: 5, Block: -1},
		"before 1970":             {Macroblocks: 10, Members: 5, Stalled: time.Unix(100, 0)},
		"silent identity":         {Macroblocks: 1, Members: 5, Silent: map[string]uint64{"nobody": 1}},
		"banned identity":         {Macroblocks: 1, Members: 5, Banned: map[string]uint64{"nobody": 1}},
		"macroblock 30 could not": {Macroblocks: 50, Members: 5, Silent: map[string]uint64{"genesis_node_001": 1, "genesis_node_002": 30}},
		"macroblock 12 could not": {Macroblocks: 50, Members: 1, Banned: map[string]uint64{"genesis_node_001": 10}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestDeepHistory: 100,000 macroblocks are linked by previous_hash as deep as one looks, old signatures are gone except
// where there is an archive, and the whole takes few megabytes.
func TestDeepHistory(t *testing.T) {
	const depth = 100_000
	l := made(t, Config{Macroblocks: depth})
	_, c := open(t, l, NodeConfig{})
	for _, i := range []uint64{2, 3, 40, 1_000, 33_333, 50_000, 77_777, depth - 1, depth} {
		mb, err := c.Macroblock(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		below, err := c.Macroblock(t.Context(), i-1)
		if err != nil || below.Hash() != mb.PreviousHash {
			t.Errorf("macroblock %d does not follow from %d (%v)", i, i-1, err)
		}
	}
	first, err := c.Macroblock(t.Context(), 1)
	if err != nil || !first.PreviousHash.IsZero() {
		t.Errorf("macroblock 1 follows from %s (%v)", first.PreviousHash, err)
	}
	_, archive := open(t, l, NodeConfig{ID: "genesis_node_002", Archive: true})
	for i, want := range map[uint64]string{depth - node.QCSigRetention: "", depth - node.QCSigRetention - 1: node.ProofSigsPruned, 1: node.ProofSigsPruned} {
		if code := proofCode(t, c, i); code != want {
			t.Errorf("proof of %d: %q, want %q", i, code, want)
		}
		if code := proofCode(t, archive, i); code != "" {
			t.Errorf("proof of %d on the archive host: %q", i, code)
		}
	}
	if size := len(l.main.hashes) * len(node.Hash{}); size > 4<<20 {
		t.Errorf("%d bytes are kept", size)
	}
}

// TestHistoryOnAnotherClock: a ledger works inside a bubble, whose clock has its own time.
func TestHistoryOnAnotherClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := made(t, Config{Stalled: time.Now().Add(-3 * time.Hour)})
		c, closed := l.Node(NodeConfig{ID: "genesis_node_001"}).Open()
		defer closed()
		mb, p := both(t, c, 50)
		if err := p.Check(&mb); err != nil {
			t.Error(err)
		}
		age := time.Since(time.Unix(int64(mb.Timestamp), 0))
		if want := 3*time.Hour + node.HorizonBlocks*time.Second; age != want {
			t.Errorf("the last seal is %s old, want %s", age, want)
		}
	})
}

// TestReadings: the readings beside the history, as package node reads them.
func TestReadings(t *testing.T) {
	l := made(t, Config{Macroblocks: 400, Above: 100})
	n, c := open(t, l, NodeConfig{ID: "genesis_node_004", Build: "abcdef1", Archive: true})
	ctx := t.Context()
	h, err := c.Healthz(ctx)
	if err != nil || h.Height != 36_100 || h.Build != "abcdef1" || c.Health(ctx) != nil {
		t.Errorf("healthz %+v: %v", h, err)
	}
	health, err := c.NodeHealth(ctx)
	if err != nil || health.NodeID != "genesis_node_004" || health.ValidatedPeers != 5 || health.Status != "healthy" {
		t.Errorf("health %+v: %v", health, err)
	}
	pos, err := c.Position(ctx)
	if err != nil || pos.Height != 36_100 || pos.LastSealed != 400 || pos.SealedLag != 1 || pos.FinalizedHeight != 36_000 || pos.TipHash == nil {
		t.Errorf("position %+v: %v", pos, err)
	}
	info, err := c.NodeInfo(ctx)
	if err != nil || info.NodeID != "genesis_node_004" || info.Build != "abcdef1" {
		t.Errorf("info %+v: %v", info, err)
	}
	status, err := c.ProducerStatus(ctx)
	if err != nil || status.CurrentProducer != "" || status.NextRotationHeight != 36_121 {
		t.Errorf("producer %+v: %v", status, err)
	}
	recovery, err := c.RecoveryStatus(ctx)
	if err != nil || recovery.Armed || recovery.HeardFrom != 6 || recovery.Enabled == nil {
		t.Errorf("recovery %+v: %v", recovery, err)
	}
	archive, err := c.Archive(ctx)
	if err != nil || !archive.Enabled || len(archive.Segments) != 2 || archive.NextEpoch == nil || *archive.NextEpoch != 2 || archive.Segments[1].LastHeight != 28_800 {
		t.Errorf("archive %+v: %v", archive, err)
	}
	if refused := n.Refused(); len(refused) > 0 {
		t.Errorf("refused %v", refused)
	}
	asked := n.Asked()
	if asked["/rpc"] != 2 || asked["/healthz"] != 1 || asked["/api/v1/archive"] != 1 {
		t.Errorf("asked %v", asked)
	}
	n.Forget()
	if err := c.RPC(ctx, "node_armRecovery", nil, nil); err == nil {
		t.Error("a method that changes something was answered")
	}
	if _, err := c.Peers(ctx); err == nil {
		t.Error("an unknown route was answered")
	}
	if got := n.Refused(); !slices.Equal(got, []string{"rpc node_armRecovery", "GET /api/v1/peers"}) || len(n.Asked()) != 1 {
		t.Errorf("refused %v, asked %v", got, n.Asked())
	}
}

// TestLog: package node finds the last seals and the horizon in the log.
func TestLog(t *testing.T) {
	l := made(t, Config{Macroblocks: 45})
	n := l.Node(NodeConfig{ID: "genesis_node_001", Lines: []string{"[ERR][ROLLBACK] refused target=1 certified_floor=4080 reason=certified_checkpoint_irrevocable action=start_unchanged"}})
	var sealed []uint64
	kinds := map[string]int{}
	for _, line := range n.Lines() {
		p := node.ParseLine(line)
		kinds[p.Level+" "+p.Module]++
		if s, ok := node.Sealed(p); ok {
			sealed = append(sealed, s.Window)
		}
	}
	if !slices.Equal(sealed, []uint64{43, 44, 45}) || kinds["WARN PROD"] != 1 || kinds["INFO GALC"] != 1 || kinds["ERR ROLLBACK"] != 1 || kinds["INFO NODE"] != 1 {
		t.Errorf("sealed %v, kinds %v", sealed, slices.Sorted(maps.Keys(kinds)))
	}
}
