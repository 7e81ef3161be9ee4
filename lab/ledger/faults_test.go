package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/node"
)

// proofCode is the code of the fault a proof has: of the node's refusal, or of the first check that fails; empty is none.
func proofCode(t testing.TB, c *node.Client, i uint64) string {
	t.Helper()
	var refusal *node.ProofError
	var missing *node.NotFoundError
	p, err := c.Proof(t.Context(), i)
	switch {
	case errors.As(err, &refusal):
		return refusal.Code
	case errors.As(err, &missing):
		return "missing"
	case err != nil:
		t.Fatalf("proof %d: %v", i, err)
	}
	mb, err := c.Macroblock(t.Context(), i)
	if err != nil {
		t.Fatalf("macroblock %d: %v", i, err)
	}
	var fault *node.ProofFault
	if errors.As(p.Check(&mb), &fault) {
		return fault.Code
	}
	return ""
}

// TestForks: two chains share every hash up to the fork and none from it on; both are fully certified. Nodes that name
// the fork alike are on one chain, others are not.
func TestForks(t *testing.T) {
	for _, at := range []uint64{1, 2, 30, 50} {
		l := made(t, Config{})
		_, good := open(t, l, NodeConfig{ID: "genesis_node_001"})
		_, a := open(t, l, NodeConfig{ID: "genesis_node_002"}, fmt.Sprintf("fork=%d:a", at))
		_, a2 := open(t, l, NodeConfig{ID: "genesis_node_003"}, fmt.Sprintf("fork=%d:a", at))
		_, b := open(t, l, NodeConfig{ID: "genesis_node_004"}, fmt.Sprintf("fork=%d:b", at))
		for i := uint64(1); i <= l.Sealed(); i++ {
			var hashes []node.Hash
			for _, c := range []*node.Client{good, a, a2, b} {
				mb, err := c.Macroblock(t.Context(), i)
				if err != nil {
					t.Fatal(err)
				}
				hashes = append(hashes, mb.Hash())
			}
			forked := i >= at
			if (hashes[0] != hashes[1]) != forked || hashes[1] != hashes[2] || (hashes[1] != hashes[3]) != forked {
				t.Fatalf("fork at %d: macroblock %d has hashes %v", at, i, hashes)
			}
		}
		for _, c := range []*node.Client{a, b} {
			for _, i := range []uint64{at, 50} {
				mb, p := both(t, c, i)
				if err := p.Check(&mb); err != nil || valid(p) != len(p.Signers) {
					t.Errorf("fork at %d, macroblock %d: %v, %d valid", at, i, err, valid(p))
				}
			}
		}
	}
}

// TestForkAboveTheLastSeal: sealed history agrees, tips do not.
func TestForkAboveTheLastSeal(t *testing.T) {
	l := made(t, Config{})
	_, good := open(t, l, NodeConfig{})
	_, forked := open(t, l, NodeConfig{ID: "genesis_node_002"}, "fork=51")
	a, err := good.Position(t.Context())
	b, err2 := forked.Position(t.Context())
	if err != nil || err2 != nil || a.Height != b.Height || *a.TipHash == *b.TipHash {
		t.Errorf("%+v, %+v: %v %v", a, b, err, err2)
	}
	one, _ := both(t, good, 50)
	if two, _ := both(t, forked, 50); one.Hash() != two.Hash() {
		t.Error("sealed history differs")
	}
}

// TestForged: the blocks are the right ones and the certificate is full, and yet the state root is another; what is built
// on it is the same on all nodes of that side.
func TestForged(t *testing.T) {
	l := made(t, Config{})
	_, good := open(t, l, NodeConfig{})
	_, a := open(t, l, NodeConfig{ID: "genesis_node_002"}, "forged=40")
	_, b := open(t, l, NodeConfig{ID: "genesis_node_003"}, "forged=40")
	right, _ := both(t, good, 40)
	false1, proof := both(t, a, 40)
	if !slices.Equal(right.MicroBlocks, false1.MicroBlocks) || right.StateRoot == false1.StateRoot || right.Hash() == false1.Hash() || right.PreviousHash != false1.PreviousHash {
		t.Error("macroblock 40 is not the same blocks with another state")
	}
	if err := proof.Check(&false1); err != nil || valid(proof) != len(proof.Signers) {
		t.Errorf("the forged certificate: %v", err)
	}
	next, _ := both(t, a, 41)
	other, _ := both(t, b, 41)
	if next.PreviousHash != false1.Hash() || next.Hash() != other.Hash() {
		t.Error("the forged side is not one chain")
	}
}

// TestLies: one node invents a chain that agrees with itself; only its keys, or its signatures, give it away.
func TestLies(t *testing.T) {
	l := made(t, Config{})
	_, good := open(t, l, NodeConfig{})
	for arg, want := range map[string]struct{ validAll, sameKeys bool }{"45": {true, false}, "45:keys": {true, false}, "45:sigs": {false, true}} {
		_, liar := open(t, l, NodeConfig{ID: "genesis_node_005"}, "lie="+arg)
		for i := uint64(44); i <= 46; i++ {
			truth, honest := both(t, good, i)
			mb, p := both(t, liar, i)
			if err := p.Check(&mb); err != nil {
				t.Errorf("lie=%s: macroblock %d is not consistent: %v", arg, i, err)
			}
			lied := i >= 45
			if (mb.Hash() != truth.Hash()) != lied {
				t.Errorf("lie=%s: macroblock %d: hash differs: %v", arg, i, !lied)
			}
			sameKeys := p.CommitteePubkeys["genesis_node_001"] == honest.CommitteePubkeys["genesis_node_001"]
			if sameKeys != (!lied || want.sameKeys) || (valid(p) == len(p.Signers)) != (!lied || want.validAll) {
				t.Errorf("lie=%s: macroblock %d: same keys %v, %d of %d signatures valid", arg, i, sameKeys, valid(p), len(p.Signers))
			}
		}
	}
	_, other := open(t, l, NodeConfig{ID: "genesis_node_004"}, "lie=45")
	_, again := open(t, l, NodeConfig{ID: "genesis_node_005"}, "lie=45")
	one, _ := both(t, other, 50)
	if two, _ := both(t, again, 50); one.Hash() == two.Hash() {
		t.Error("two liars tell the same")
	}
}

// TestDigests: a bad seal and a certified other set leave the hash alone and change the digest; the first is not what its
// certificate commits to, the second is. A bad seal heals after as many reads as the fault says.
func TestDigests(t *testing.T) {
	l := made(t, Config{})
	_, good := open(t, l, NodeConfig{})
	_, other := open(t, l, NodeConfig{ID: "genesis_node_002"}, "other-digest=30:x", "bad-seal=31,33-34:2")
	compare := func(i uint64) (sameHash, sameDigest bool, fault error) {
		t.Helper()
		mb, p := both(t, good, i)
		mb2, p2 := both(t, other, i)
		return mb.Hash() == mb2.Hash(), p.Fields().DigestV2() == p2.Fields().DigestV2(), p2.Check(&mb2)
	}
	if sameHash, sameDigest, err := compare(30); !sameHash || sameDigest || err != nil {
		t.Errorf("another digest: hash %v, digest %v, %v", sameHash, sameDigest, err)
	}
	for _, i := range []uint64{31, 33, 34} {
		for read := 1; read <= 4; read++ {
			sameHash, sameDigest, err := compare(i)
			var fault *node.ProofFault
			if bad := read <= 2; !sameHash || sameDigest == bad || errors.As(err, &fault) != bad || (bad && fault.Code != node.FaultCommitment) {
				t.Errorf("bad seal of %d, read %d: hash %v, digest %v, %v", i, read, sameHash, sameDigest, err)
			}
		}
	}
	if sameHash, sameDigest, err := compare(32); !sameHash || !sameDigest || err != nil {
		t.Errorf("macroblock 32 has a fault it should not have: %v", err)
	}
	_, for2ever := open(t, l, NodeConfig{ID: "genesis_node_003"}, "bad-seal=31")
	for range 5 {
		if code := proofCode(t, for2ever, 31); code != node.FaultCommitment {
			t.Errorf("a bad seal that does not heal: %q", code)
		}
	}
}

// TestCertificateFaults: what a proof has wrong is seen for what it is, at its index and nowhere else.
func TestCertificateFaults(t *testing.T) {
	l := made(t, Config{Members: 12})
	for fault, want := range map[string]string{
		"relaxed=20": node.FaultRecovery, "short=20": node.FaultQuorum, "no-qc=20": node.ProofNoQC, "no-committee=20": node.FaultCommitment,
		"missing=20": "missing", "storage-error=20": "missing", "bad-sig=20": "", "opaque-sigs=20": "",
	} {
		_, c := open(t, l, NodeConfig{}, fault)
		if fault == "missing=20" || fault == "storage-error=20" {
			var missing *node.NotFoundError
			if _, err := c.Proof(t.Context(), 20); !errors.As(err, &missing) || !missing.Uncertain {
				t.Errorf("%s: proof: %v", fault, err)
			}
			_, err := c.Macroblock(t.Context(), 20)
			if errors.As(err, &missing) != (fault == "missing=20") || err == nil {
				t.Errorf("%s: macroblock: %v", fault, err)
			}
		} else if code := proofCode(t, c, 20); code != want {
			t.Errorf("%s: %q, want %q", fault, code, want)
		}
		for _, i := range []uint64{19, 21} {
			if code := proofCode(t, c, i); code != "" {
				t.Errorf("%s: macroblock %d: %q", fault, i, code)
			}
		}
	}
	_, c := open(t, l, NodeConfig{}, "bad-sig=20", "opaque-sigs=21", "relaxed=22", "no-committee=23")
	if _, p := both(t, c, 20); valid(p) != len(p.Signers)-1 {
		t.Errorf("bad-sig: %d of %d valid", valid(p), len(p.Signers))
	}
	if _, p := both(t, c, 21); valid(p) != 0 || len(p.Sigs) != node.QuorumSize(12) {
		t.Errorf("opaque-sigs: %d of %d valid", valid(p), len(p.Sigs))
	}
	if _, p := both(t, c, 22); p.FullQuorum() || len(p.Signers) != node.RelaxedQuorum(12) || p.RecoveryAnchorCheckpoint == nil || p.Checkpoint.RecoveryAnchor.AnchorMB != 21 ||
		p.Checkpoint.RecoveryAnchor.Digest != p.RecoveryAnchorCheckpoint.ContentDigest() || valid(p) != len(p.Signers) {
		t.Errorf("relaxed: %+v with %d signers", p.Checkpoint.RecoveryAnchor, len(p.Signers))
	}
	if _, p := both(t, c, 23); len(p.Committee) != 0 || p.FullQuorum() {
		t.Error("a committee that cannot be derived is served")
	}
}

// TestOtherFaults: faults of the answers around the history.
func TestOtherFaults(t *testing.T) {
	l := made(t, Config{Macroblocks: 130, Members: 12})
	ctx := t.Context()
	_, c := open(t, l, NodeConfig{}, "pruned=10", "lag=5", "armed", "wrong-number=100", "storage-error")
	pos, err := c.Position(ctx)
	if err != nil || pos.LastSealed != 125 || pos.Height != l.Height() || pos.FinalizedHeight != 125*90 {
		t.Errorf("lag: %+v, %v", pos, err)
	}
	recovery, err := c.RecoveryStatus(ctx)
	if err != nil || !recovery.Armed || *recovery.AnchorMB != 125 || *recovery.QuorumSize != 9 || *recovery.RelaxedQuorum != 7 || *recovery.SpanWindows != [2]uint64{126, 127} {
		t.Errorf("armed: %+v, %v", recovery, err)
	}
	if code := proofCode(t, c, 125); code != "missing" {
		t.Errorf("storage error everywhere: %q", code)
	}
	n, c := open(t, l, NodeConfig{}, "pruned=10", "lag=5", "wrong-number=100")
	for i, want := range map[uint64]string{114: node.ProofSigsPruned, 115: "", 125: "", 126: "missing"} {
		if code := proofCode(t, c, i); code != want {
			t.Errorf("proof of %d: %q, want %q", i, code, want)
		}
	}
	var odd *node.AnswerError
	if _, err := c.Macroblock(ctx, 100); !errors.As(err, &odd) {
		t.Errorf("wrong number: %v", err)
	}
	n.Clear(FaultLag, FaultWrongNumber)
	if _, err := c.Macroblock(ctx, 100); err != nil || n.Sealed() != 130 || len(n.Faults()) != 1 {
		t.Errorf("after clearing two of three faults: %v, faults %v", err, n.Faults())
	}
}

// TestSnapshots: the newest three and 90, at or below a height when asked; chunks make up the whole.
func TestSnapshots(t *testing.T) {
	l := made(t, Config{Macroblocks: 170})
	ctx := t.Context()
	n, c := open(t, l, NodeConfig{})
	for max, want := range map[uint64]uint64{99_999: 14_400, 14_399: 10_800, 7_199: 90, 89: 0} {
		s, err := c.SnapshotLatest(ctx, &max)
		if s.Height != want || (err != nil) != (want == 0) {
			t.Errorf("at or below %d: %+v, %v", max, s, err)
		}
	}
	get := func(path string) (string, string) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr = "127.0.0.1:1"
		n.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Result().Body)
		return w.Header().Get("Content-Type"), string(body)
	}
	kind, whole := get("/api/v1/snapshot/14400")
	_, first := get("/api/v1/snapshot/14400/chunk/0")
	_, second := get("/api/v1/snapshot/14400/chunk/1")
	if kind != "application/octet-stream" || first+second != whole || len(whole) != 2*chunkSize {
		t.Errorf("%s of %d bytes, chunks of %d and %d", kind, len(whole), len(first), len(second))
	}
	if _, manifest := get("/api/v1/snapshot/14400/manifest"); !strings.Contains(manifest, hexSum([]byte(second))) || !strings.Contains(manifest, "65536") {
		t.Errorf("manifest %s", manifest)
	}
	for _, path := range []string{"/api/v1/snapshot/3600", "/api/v1/snapshot/3600/manifest", "/api/v1/snapshot/14400/chunk/2"} {
		if kind, body := get(path); kind != "application/json" || !strings.Contains(body, "Snapshot not found") {
			t.Errorf("%s: %s %s", path, kind, body)
		}
	}
	if err := n.Set(FaultBusy, ""); err != nil {
		t.Fatal(err)
	}
	if _, body := get("/api/v1/snapshot/14400"); !strings.Contains(body, "snapshot serve busy") {
		t.Errorf("busy: %s", body)
	}
	_, none := open(t, l, NodeConfig{}, "no-snapshots")
	var missing *node.NotFoundError
	if _, err := none.SnapshotLatest(ctx, nil); !errors.As(err, &missing) {
		t.Errorf("no snapshots: %v", err)
	}
	_, own := open(t, l, NodeConfig{Snapshots: []uint64{7_200, 3_600}})
	if s, err := own.SnapshotLatest(ctx, nil); err != nil || s.Height != 7_200 {
		t.Errorf("chosen snapshots: %+v, %v", s, err)
	}
}

// TestBodies: block bodies of six epochs are served, older ones are pruned.
func TestBodies(t *testing.T) {
	l := made(t, Config{Macroblocks: 1200}) // tip 110,880
	n := l.Node(NodeConfig{ID: "genesis_node_001"})
	for h, want := range map[uint64]int{14_400: 404, 14_401: 200, 110_880: 200, 110_881: 404, 0: 404} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/api/v1/microblock/"+strconv.FormatUint(h, 10), nil)
		r.RemoteAddr = "127.0.0.1:1"
		n.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("block %d: %d, want %d", h, w.Code, want)
		}
		if mb := n.Macroblock(161); h == 14_401 && !strings.Contains(w.Body.String(), mb.MicroBlocks[0].String()) {
			t.Errorf("block %d is not in its macroblock: %s", h, w.Body)
		}
	}
}

// TestRefusals: rate limit, traps of the paths, and operator methods for those inside only.
func TestRefusals(t *testing.T) {
	l := made(t, Config{})
	n, c := open(t, l, NodeConfig{})
	ask := func(method, from, path, body string, header ...string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.RemoteAddr = from
		if len(header) == 2 {
			r.Header.Set(header[0], header[1])
		}
		n.ServeHTTP(w, r)
		return w
	}
	const bridge = "172.17.0.1:40000"
	for k := range 301 {
		body := ask("GET", bridge, "/api/v1/macroblock/1", "").Body.String()
		if limited := strings.Contains(body, "Rate limit exceeded"); limited != (k == 300) {
			t.Fatalf("request %d: limited %v", k+1, limited)
		}
	}
	if body := ask("GET", bridge, "/api/v1/snapshot/90", "").Body.String(); body != "{\"error\":\"Rate limit exceeded\"}\n" {
		t.Errorf("the short refusal: %s", body)
	}
	if body := ask("GET", bridge, "/healthz", "").Body.String(); body != fmt.Sprintf("ok h=%d build=v1.0.0-unstamped", l.Height()) {
		t.Errorf("healthz: %s", body)
	}
	const inside = "10.0.0.1:1"
	if w := ask("GET", inside, "/api/v1/macroblock/abc", ""); w.Code != http.StatusNotFound || w.Body.Len() > 0 {
		t.Errorf("no number: %d %s", w.Code, w.Body)
	}
	if body := ask("GET", inside, "/api/v1/macroblock/51", "").Body.String(); !strings.Contains(body, "Macroblock #51 would cover blocks 4501-4590") {
		t.Errorf("missing: %s", body)
	}
	const status = `{"jsonrpc":"2.0","method":"node_recoveryStatus","params":{},"id":1}`
	for _, r := range []struct{ from, body, want string }{{inside, status, `"armed":false`}, {"198.51.100.9:1", status, "-32004"}, {inside, `{"id":"x"}`, "deserialize error"}} {
		if body := ask("POST", r.from, "/rpc", r.body).Body.String(); !strings.Contains(body, r.want) {
			t.Errorf("rpc from %s: %s, want %s", r.from, body, r.want)
		}
	}
	if body := ask("POST", inside, "/rpc", status, "Origin", "http://example.org").Body.String(); !strings.Contains(body, "-32004") {
		t.Errorf("rpc with an Origin: %s", body)
	}
	if err := n.Set(FaultRateLimit, ""); err != nil {
		t.Fatal(err)
	}
	var limited *node.RateLimitedError
	if _, err := c.Position(t.Context()); !errors.As(err, &limited) || limited.RetryAfter != 30*time.Second {
		t.Errorf("rate limit: %v", err)
	}
}

// TestHang: a node that hangs keeps its caller until the caller gives up, and stopping it leaves nothing behind.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := made(t, Config{})
		n := l.Node(NodeConfig{ID: "genesis_node_001"})
		c, closed := n.Open()
		defer closed()
		brief := func(call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return call(ctx)
		}
		proof := func(i uint64) func(context.Context) error {
			return func(ctx context.Context) error { _, err := c.Proof(ctx, i); return err }
		}
		_ = n.Set(FaultHang, "20")
		if err := brief(proof(20)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a proof that hangs: %v", err)
		}
		if err := brief(proof(21)); err != nil {
			t.Error(err)
		}
		_ = n.Set(FaultHang, "")
		if err := brief(func(ctx context.Context) error { _, err := c.Healthz(ctx); return err }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a node that hangs: %v", err)
		}
	})
}

// TestArguments: an unknown fault or an unusable argument is refused and changes nothing.
func TestArguments(t *testing.T) {
	n := made(t, Config{}).Node(NodeConfig{ID: "genesis_node_001"})
	for _, bad := range []string{"nonsense", "fork", "fork=0", "fork=x", "fork=5:", "lie=5:hands", "forged=5:x", "bad-seal", "bad-seal=5:0", "bad-seal=5:x", "missing=7-5",
		"missing=5,", "missing=5:x", "pruned", "pruned=-1", "lag=x", "armed=1", "hang=x", "storage-error=5-"} {
		kind, arg, _ := strings.Cut(bad, "=")
		if err := n.Set(Kind(kind), arg); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if len(n.Faults()) != 0 || len(forms()) != len(Kinds()) {
		t.Errorf("faults %v; %d kinds, %d forms", n.Faults(), len(Kinds()), len(forms()))
	}
	for _, kind := range Kinds() {
		if _, ok := forms()[kind]; !ok {
			t.Errorf("%s has no form", kind)
		}
	}
}

// TestDrawnFaults: every fault drawn can be set, whatever is combined the node answers in shapes that package node reads,
// and equal seeds draw equal faults.
func TestDrawnFaults(t *testing.T) {
	l := made(t, Config{Macroblocks: 60})
	const seed = 20260101
	rng, twin := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 1))
	drawn := map[Kind]bool{}
	for round := range 40 {
		n, c := open(t, l, NodeConfig{ID: fmt.Sprintf("genesis_node_%03d", round%5+1)})
		for range 3 {
			kind, arg := l.Draw(rng)
			if k, a := l.Draw(twin); k != kind || a != arg {
				t.Fatalf("seed %d draws %s=%s and %s=%s", seed, kind, arg, k, a)
			}
			if err := n.Set(kind, arg); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			drawn[kind] = true
		}
		if _, err := c.Position(t.Context()); err != nil {
			t.Errorf("seed %d, faults %v: %v", seed, n.Faults(), err)
		}
		for i := uint64(29); i <= 60; i += 3 {
			_, err := c.Proof(t.Context(), i)
			var missing *node.NotFoundError
			var refusal *node.ProofError
			if err != nil && !errors.As(err, &missing) && !errors.As(err, &refusal) {
				t.Errorf("seed %d, faults %v: proof %d: %v", seed, n.Faults(), i, err)
			}
		}
	}
	if len(drawn) != len(Kinds())-2 {
		t.Errorf("seed %d: %d kinds drawn", seed, len(drawn))
	}
}

// FuzzFault: no argument breaks a node.
func FuzzFault(f *testing.F) {
	for _, kind := range Kinds() {
		f.Add(string(kind), "5-7,9:2")
	}
	f.Add("fork", "3:a")
	f.Add("lag", "18446744073709551615")
	l := made(f, Config{Macroblocks: 10})
	f.Fuzz(func(t *testing.T, kind, arg string) {
		n := l.Node(NodeConfig{ID: "genesis_node_001"})
		if n.Set(Kind(kind), arg) != nil || Kind(kind) == FaultHang {
			return
		}
		for _, path := range []string{"/api/v1/macroblock/5", "/api/v1/macroblock/5/proof", "/api/v1/debug/consensus-position", "/api/v1/snapshot/latest"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			n.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
	})
}
