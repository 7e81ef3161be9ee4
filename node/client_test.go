package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answer is a literal reply of a node.
type answer struct {
	status int
	kind   string
	body   string
}

func asJSON(body string) answer { return answer{200, "application/json", body} }
func asText(body string) answer { return answer{200, "text/plain; charset=utf-8", body} }

// serve answers the given request lines and fails the test on any other, and on
// a request a node would treat as nobody's.
func serve(t *testing.T, routes map[string]answer) *Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			t.Error("request carries Origin")
		}
		a, ok := routes[r.Method+" "+r.URL.RequestURI()]
		if !ok {
			t.Errorf("unexpected request %s %s", r.Method, r.URL.RequestURI())
			w.WriteHeader(500)
			return
		}
		if a.kind != "" {
			w.Header().Set("Content-Type", a.kind)
		} else {
			w.Header()["Content-Type"] = nil
		}
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
	}))
	t.Cleanup(srv.Close)
	return &Client{Base: srv.URL, HTTP: srv.Client()}
}

const (
	limitBody  = `{"success":false,"error":"Rate limit exceeded","retry_after_seconds":30,"message":"slow down"}`
	limitShort = `{"error":"Rate limit exceeded"}`
	tip        = "ac1035132b59c51dc43ed9f8a9dc6382a1e3eda2a7915db21f30b3ad6d59f6e2"
	healthBody = `{"status":"healthy","node_id":"genesis_node_001","height":3213600,"network_height":3213601,"sync_status":"synchronized","peers":5,"validated_peers":5,"mempool_size":0,"node_type":"Super","region":"Europe","uptime_seconds":7200,"version":"1.0.0","api_version":"v1","clock_drift_ema_secs":0,"clock_drift_peak_secs":-1,"current_timeout_round":0,"max_slot_delay_secs":2,"max_timeout_round_seen":1,"failover_count":3,"timestamp_rejections":0}`
	posBody    = `{"height":3213600,"tip_hash":"` + tip + `","own_window":35706,"last_sealed_mb_index":35705,"sealed_lag_windows":1,"finalized_height":3213540,"tc_window_floor":35706,"floor_above_window":false,"certified_round_current_window":0,"certified_round_next_slot":2}`
)

// every route of the client, to run the same trap against all of them.
var every = map[string]struct {
	path string
	text bool
	call func(context.Context, *Client) error
}{
	"healthz":    {"GET /healthz", true, func(ctx context.Context, c *Client) error { _, err := c.Healthz(ctx); return err }},
	"health":     {"GET /health", true, func(ctx context.Context, c *Client) error { return c.Health(ctx) }},
	"nodehealth": {"GET /api/v1/node/health", false, func(ctx context.Context, c *Client) error { _, err := c.NodeHealth(ctx); return err }},
	"sync":       {"GET /api/v1/sync/status", false, func(ctx context.Context, c *Client) error { _, err := c.SyncStatus(ctx); return err }},
	"height":     {"GET /api/v1/height", false, func(ctx context.Context, c *Client) error { _, err := c.Height(ctx); return err }},
	"position":   {"GET /api/v1/debug/consensus-position", false, func(ctx context.Context, c *Client) error { _, err := c.Position(ctx); return err }},
	"producer":   {"GET /api/v1/producer/status", false, func(ctx context.Context, c *Client) error { _, err := c.ProducerStatus(ctx); return err }},
	"peers":      {"GET /api/v1/peers", false, func(ctx context.Context, c *Client) error { _, err := c.Peers(ctx); return err }},
	"stats":      {"GET /api/v1/blocks/stats", false, func(ctx context.Context, c *Client) error { _, err := c.BlocksStats(ctx); return err }},
	"macroblock": {"GET /api/v1/macroblock/7", false, func(ctx context.Context, c *Client) error { _, err := c.Macroblock(ctx, 7); return err }},
	"proof":      {"GET /api/v1/macroblock/7/proof", false, func(ctx context.Context, c *Client) error { _, err := c.Proof(ctx, 7); return err }},
	"snapshot":   {"GET /api/v1/snapshot/latest", false, func(ctx context.Context, c *Client) error { _, err := c.SnapshotLatest(ctx, nil); return err }},
	"failovers":  {"GET /api/v1/failovers?from_height=0", false, func(ctx context.Context, c *Client) error { _, err := c.Failovers(ctx, 0, 0); return err }},
	"reputation": {"GET /api/v1/reputation/history", false, func(ctx context.Context, c *Client) error { _, err := c.ReputationHistory(ctx, ""); return err }},
	"archive":    {"GET /api/v1/archive", false, func(ctx context.Context, c *Client) error { _, err := c.Archive(ctx); return err }},
	"info":       {"POST /rpc", false, func(ctx context.Context, c *Client) error { _, err := c.NodeInfo(ctx); return err }},
	"recovery":   {"POST /rpc", false, func(ctx context.Context, c *Client) error { _, err := c.RecoveryStatus(ctx); return err }},
}

// TestEveryRouteRefuses runs the answers that must never be read as values
// against every route.
func TestEveryRouteRefuses(t *testing.T) {
	traps := map[string]answer{
		"empty object":    asJSON(`{}`),
		"empty body":      asJSON(``),
		"null":            asJSON(`null`),
		"list":            asJSON(`[]`),
		"html":            {200, "text/html", "<html><body>Welcome to nginx</body></html>"},
		"html as json":    asJSON("<html></html>"),
		"no content type": {200, "", `{}`},
		"storage error":   asJSON(`{"error":"Failed to get macroblock","details":"internal error"}`),
		"odd error":       asJSON(`{"error":{"code":1}}`),
		"empty error":     asJSON(`{"error":""}`),
		"bare failure":    asJSON(`{"success":false}`),
		"framework 404":   {404, "text/plain; charset=utf-8", ""},
		"server error":    {500, "application/json", healthBody},
		"read budget":     {503, "application/json", `{"error":"busy"}`},
		"redirect":        {302, "application/json", posBody},
		"two documents":   asJSON(posBody + posBody),
		"cut json":        asJSON(posBody[:40]),
		"not utf-8":       asText("ok h=1 build=\xff"),
	}
	for name, r := range every {
		for trap, a := range traps {
			c := serve(t, map[string]answer{r.path: a})
			err := r.call(t.Context(), c)
			if _, ok := errors.AsType[*AnswerError](err); !ok {
				t.Errorf("%s, %s: error %v, want an AnswerError", name, trap, err)
			}
			if err != nil && len(err.Error()) > 600 {
				t.Errorf("%s, %s: error of %d bytes", name, trap, len(err.Error()))
			}
		}
	}
}

// TestTooLargeBody: each kind of route has a bound, and a body beyond it is no answer.
func TestTooLargeBody(t *testing.T) {
	for name, a := range map[string]answer{
		"healthz":  asText("ok h=1 build=" + strings.Repeat("a", maxSmall)),
		"position": asJSON(posBody + strings.Repeat(" ", maxBody)),
		"proof":    asJSON(`{"x":"` + strings.Repeat("a", maxProof) + `"}`),
	} {
		r := every[name]
		err := r.call(t.Context(), serve(t, map[string]answer{r.path: a}))
		if e, ok := errors.AsType[*AnswerError](err); !ok || !strings.Contains(e.Reason, "larger") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryRouteSeesRateLimit: the limit comes as HTTP 200.
func TestEveryRouteSeesRateLimit(t *testing.T) {
	for name, r := range every {
		for _, a := range []answer{asJSON(limitBody), asText(limitBody), asJSON(limitShort), {429, "text/plain", "slow"}} {
			c := serve(t, map[string]answer{r.path: a})
			err := r.call(t.Context(), c)
			limit, ok := errors.AsType[*RateLimitedError](err)
			if !ok {
				t.Errorf("%s, %s: error %v, want a RateLimitedError", name, a.body, err)
				continue
			}
			if a.body == limitBody && limit.RetryAfter != 30*time.Second {
				t.Errorf("%s: retry after %s, want 30s", name, limit.RetryAfter)
			}
		}
	}
}

// TestCutOffBody: a connection that ends before Content-Length is no answer.
func TestCutOffBody(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 50\r\n\r\nok h=12")
		rw.Flush()
		conn.Close()
	}))
	defer srv.Close()
	h, err := (&Client{Base: srv.URL}).Healthz(t.Context())
	if _, ok := errors.AsType[*AnswerError](err); !ok {
		t.Errorf("got %+v, %v, want an AnswerError", h, err)
	}
}

func TestCallEndsWithContext(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-hang }))
	defer srv.Close()
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := (&Client{Base: srv.URL}).NodeHealth(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
}

func TestHealthz(t *testing.T) {
	for body, want := range map[string]Healthz{
		"ok h=3213540 build=d1b90578df8f":         {3213540, "d1b90578df8f"},
		"ok h=0 build=v2.19.0-unstamped":          {0, "v2.19.0-unstamped"},
		"ok h=12":                                 {12, ""},
		"ok h=12\n":                               {12, ""},
		"ok h=7 build=a-h=99":                     {7, "a-h=99"},
		"ok h=18446744073709551615 build=abcdef0": {1<<64 - 1, "abcdef0"},
	} {
		got, err := serve(t, map[string]answer{"GET /healthz": asText(body)}).Healthz(t.Context())
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", body, got, err, want)
		}
	}
	for _, body := range []string{"", "ok", "ok h=", "ok h=-5 build=a", "ok h=+5", "ok h=1.5", "ok h=18446744073709551616",
		"ok h=5 build=", "ok h=5 build=a b", "ok h=5 built=a", "OK h=5", " ok h=5", "ok h=5 build=a\nok h=6", "ok h=0x10", "ok build=a h=5"} {
		if got, err := serve(t, map[string]answer{"GET /healthz": asText(body)}).Healthz(t.Context()); err == nil {
			t.Errorf("%q: %+v, want an error", body, got)
		}
	}
}

func TestHealth(t *testing.T) {
	if err := serve(t, map[string]answer{"GET /health": asText("OK")}).Health(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNodeHealth(t *testing.T) {
	got, err := serve(t, map[string]answer{"GET /api/v1/node/health": asJSON(healthBody)}).NodeHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.NodeID != "genesis_node_001" || got.Height != 3213600 || got.ValidatedPeers != 5 || got.FailoverCount != 3 || got.ClockDriftPeakSecs != -1 {
		t.Errorf("got %+v", got)
	}
	for name, edit := range map[string][2]string{
		"negative height":       {`"height":3213600`, `"height":-1`},
		"fractional peers":      {`"validated_peers":5`, `"validated_peers":4.5`},
		"string height":         {`"height":3213600`, `"height":"3213600"`},
		"null peers":            {`"validated_peers":5`, `"validated_peers":null`},
		"missing peers":         {`"validated_peers":5,`, ``},
		"other case":            {`"validated_peers"`, `"Validated_Peers"`},
		"network below height":  {`"network_height":3213601`, `"network_height":3213599`},
		"empty id":              {`"node_id":"genesis_node_001"`, `"node_id":""`},
		"height beyond 64 bits": {`"height":3213600`, `"height":99999999999999999999`},
	} {
		body := strings.Replace(healthBody, edit[0], edit[1], 1)
		if body == healthBody {
			t.Fatalf("%s edits nothing", name)
		}
		got, err := serve(t, map[string]answer{"GET /api/v1/node/health": asJSON(body)}).NodeHealth(t.Context())
		if _, ok := errors.AsType[*AnswerError](err); !ok || got != (NodeHealth{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestPosition(t *testing.T) {
	ask := func(body string) (Position, error) {
		return serve(t, map[string]answer{"GET /api/v1/debug/consensus-position": asJSON(body)}).Position(t.Context())
	}
	p, err := ask(posBody)
	if err != nil || p.TipHash == nil || p.TipHash.String() != tip || p.RoundNextSlot == nil || *p.RoundNextSlot != 2 {
		t.Fatalf("got %+v, %v", p, err)
	}
	if p.Height != 3213600 || p.LastSealed != 35705 || p.SealedLag != 1 || p.FinalizedHeight != 3213540 {
		t.Errorf("got %+v", p)
	}
	old, err := ask(strings.Replace(posBody, `,"certified_round_next_slot":2`, "", 1))
	if err != nil || old.RoundNextSlot != nil {
		t.Errorf("older build: %+v, %v", old, err)
	}
	for _, unknown := range []string{`""`, `null`, `"AC10"`, `7`, `"` + strings.ToUpper(tip) + `"`, `"` + strings.Repeat("0", 64) + `"`} {
		p, err := ask(strings.Replace(posBody, `"`+tip+`"`, unknown, 1))
		if err != nil || p.TipHash != nil {
			t.Errorf("tip %s: %v, %v, want unknown", unknown, p.TipHash, err)
		}
	}
	for _, edit := range [][2]string{
		{`"own_window":35706`, `"own_window":35707`},
		{`"sealed_lag_windows":1`, `"sealed_lag_windows":0`},
		{`"height":3213600`, `"height":13213600`},
		{`"tip_hash":"` + tip + `",`, ``},
		{`"finalized_height":3213540`, `"finalized_height":-1`},
		{`"floor_above_window":false`, `"floor_above_window":0`},
	} {
		if p, err := ask(strings.Replace(posBody, edit[0], edit[1], 1)); err == nil {
			t.Errorf("%s: %+v, want an error", edit[1], p)
		}
	}
	// A node ahead of itself: the newest macroblock came by sync, the lag saturates.
	ahead := strings.NewReplacer(`"last_sealed_mb_index":35705`, `"last_sealed_mb_index":35708`, `"sealed_lag_windows":1`, `"sealed_lag_windows":0`).Replace(posBody)
	if p, err := ask(ahead); err != nil || p.SealedLag != 0 {
		t.Errorf("ahead: %+v, %v", p, err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ask(string(b))
	if err != nil || *back.TipHash != *p.TipHash || back.Height != p.Height {
		t.Errorf("round trip: %s %v", b, err)
	}
}

func TestSyncStatusAndHeight(t *testing.T) {
	c := serve(t, map[string]answer{
		"GET /api/v1/sync/status": asJSON(`{"local_height":90,"network_height":100,"is_syncing":true,"is_ahead":false,"blocks_behind":10,"blocks_ahead":0,"sync_progress":"90.00%","estimated_sync_time":"10s"}`),
		"GET /api/v1/height":      asJSON(`{"height":90,"network_height":100,"is_syncing":true,"blocks_behind":10}`),
	})
	s, err := c.SyncStatus(t.Context())
	if err != nil || s.BlocksBehind != 10 || s.SyncProgress != "90.00%" {
		t.Errorf("%+v %v", s, err)
	}
	h, err := c.Height(t.Context())
	if err != nil || h.NetworkHeight != 100 {
		t.Errorf("%+v %v", h, err)
	}
}

func TestPeersMarksAppended(t *testing.T) {
	peer := func(id string) string {
		return `{"id":"` + id + `","address":"192.0.2.9:9876","node_type":"Super","region":"Europe","last_seen":1783213540,"reputation":70.0,"version":"1.0.0"}`
	}
	ask := func(total int, ids ...string) (Peers, error) {
		var list []string
		for _, id := range ids {
			list = append(list, peer(id))
		}
		return serve(t, map[string]answer{"GET /api/v1/peers": asJSON(fmt.Sprintf(
			`{"peers":[%s],"total":%d,"statistics":{"super_nodes":1,"full_nodes":0,"light_nodes":0}}`, strings.Join(list, ","), total))}).Peers(t.Context())
	}
	for _, c := range []struct{ ids, marked string }{
		{"genesis_node_001 genesis_node_002", "11"},
		{"super_node_aa genesis_node_001 genesis_node_002", "011"},
		{"super_node_aa super_node_bb genesis_node_001 genesis_node_002", "0011"},
		{"super_node_aa super_node_bb super_node_cc", "000"},
		{"genesis_node_001 genesis_node_002 genesis_node_003 genesis_node_004 genesis_node_005", "00000"},
	} {
		ids := strings.Fields(c.ids)
		p, err := ask(len(ids), ids...)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, x := range p.Peers {
			got += map[bool]string{true: "1", false: "0"}[x.MaybeAppended]
		}
		if got != c.marked {
			t.Errorf("%s: marked %s, want %s", c.ids, got, c.marked)
		}
	}
	if _, err := ask(3, "genesis_node_001"); err == nil {
		t.Error("total and list disagree: no error")
	}
}

// vectorClient serves the two HTTP bodies of vector 2, after edits to the proof.
func vectorClient(t *testing.T, edit func(map[string]any)) *Client {
	t.Helper()
	bodies := vectors(t).Bodies
	var proof map[string]any
	dec := json.NewDecoder(bytes.NewReader(bodies["GET /api/v1/macroblock/35706/proof"]))
	dec.UseNumber()
	if err := dec.Decode(&proof); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(proof)
	}
	b, err := json.Marshal(proof)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, map[string]answer{
		"GET /api/v1/macroblock/35706":       asJSON(string(bodies["GET /api/v1/macroblock/35706"])),
		"GET /api/v1/macroblock/99999":       asJSON(string(bodies["GET /api/v1/macroblock/99999 (missing)"])),
		"GET /api/v1/macroblock/35706/proof": asJSON(string(b)),
	})
}

func TestMacroblockAndProofOfVector(t *testing.T) {
	want := vectors(t).Macroblocks[1].Expected
	c := vectorClient(t, nil)
	mb, err := c.Macroblock(t.Context(), 35706)
	if err != nil {
		t.Fatal(err)
	}
	if mb.Hash() != want.Hash {
		t.Errorf("hash %s, want %s", mb.Hash(), want.Hash)
	}
	p, err := c.Proof(t.Context(), 35706)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(&mb); err != nil {
		t.Errorf("check: %v", err)
	}
	if !p.FullQuorum() {
		t.Error("5 of 6 is a full quorum")
	}
	if got := p.Fields().DigestV2(); got != want.V2 {
		t.Errorf("digest %s, want %s", got, want.V2)
	}
	if got := p.Checkpoint.Hash(); got != *want.CP {
		t.Errorf("checkpoint hash %s, want %s", got, *want.CP)
	}
	if p.Checkpoint.TotalSupply != 9007199254740993 {
		t.Errorf("supply %d lost its last digit", p.Checkpoint.TotalSupply)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Proof
	if err := json.Unmarshal(b, &back); err != nil || back.Check(&mb) != nil {
		t.Errorf("round trip: %v, %v", err, back.Check(&mb))
	}
	_, err = c.Macroblock(t.Context(), 99999)
	if nf, ok := errors.AsType[*NotFoundError](err); !ok || nf.Uncertain {
		t.Errorf("missing macroblock: %v", err)
	}
}

// TestZeroIndexIsNeverAsked: the node's arithmetic underflows on it.
func TestZeroIndexIsNeverAsked(t *testing.T) {
	c := serve(t, nil)
	if _, err := c.Macroblock(t.Context(), 0); err == nil {
		t.Error("macroblock 0: no error")
	}
	if _, err := c.Proof(t.Context(), 0); err == nil {
		t.Error("proof 0: no error")
	}
}

func TestProofRefusals(t *testing.T) {
	for code, want := range map[string]any{
		"macroblock_not_found": &NotFoundError{}, "no_checkpoint_qc": &ProofError{}, "qc_decode_failed": &ProofError{},
		"banned_decode_failed": &ProofError{}, "qc_sigs_pruned": &ProofError{},
	} {
		c := serve(t, map[string]answer{"GET /api/v1/macroblock/7/proof": asJSON(`{"error":"` + code + `","index":7}`)})
		_, err := c.Proof(t.Context(), 7)
		if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", want) {
			t.Errorf("%s: %T %v", code, err, err)
		}
		if nf, ok := err.(*NotFoundError); ok && !nf.Uncertain {
			t.Error("a storage error reads the same: absence must be uncertain")
		}
	}
	for name, edit := range map[string]func(map[string]any){
		"other index":    func(p map[string]any) { p["index"] = 35705 },
		"other epoch":    func(p map[string]any) { p["epoch"] = 35707 },
		"odd hex":        func(p map[string]any) { p["eligible_raw"] = "abc" },
		"fewer sigs":     func(p map[string]any) { p["qc"].(map[string]any)["sigs"] = []string{} },
		"supply number":  func(p map[string]any) { p["checkpoint"].(map[string]any)["total_supply"] = 5 },
		"no anchor":      func(p map[string]any) { delete(p["checkpoint"].(map[string]any), "recovery_anchor") },
		"odd anchor":     func(p map[string]any) { p["checkpoint"].(map[string]any)["recovery_anchor"] = []int{1} },
		"short hash":     func(p map[string]any) { p["checkpoint"].(map[string]any)["beacon"] = "ab" },
		"null committee": func(p map[string]any) { p["committee"] = nil },
		"no signers":     func(p map[string]any) { delete(p["qc"].(map[string]any), "signers") },
	} {
		_, err := vectorClient(t, edit).Proof(t.Context(), 35706)
		if _, ok := errors.AsType[*AnswerError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProofCheckFaults(t *testing.T) {
	load := func() (Macroblock, Proof) {
		c := vectorClient(t, nil)
		mb, err := c.Macroblock(t.Context(), 35706)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Proof(t.Context(), 35706)
		if err != nil {
			t.Fatal(err)
		}
		return mb, p
	}
	for code, edit := range map[string]func(*Macroblock, *Proof){
		FaultMicroBlocks: func(m *Macroblock, p *Proof) { m.MicroBlocks[3][0] ^= 1 },
		FaultStateRoot:   func(m *Macroblock, p *Proof) { m.StateRoot[0] ^= 1 },
		FaultTimestamp:   func(m *Macroblock, p *Proof) { m.Timestamp++ },
		FaultHead:        func(m *Macroblock, p *Proof) { p.Checkpoint.WindowHeadHeight += 30 },
		FaultCount: func(m *Macroblock, p *Proof) {
			m.MicroBlocks, p.Checkpoint.WindowMBHashes = m.MicroBlocks[:89], p.Checkpoint.WindowMBHashes[:89]
		},
		FaultBeacon:     func(m *Macroblock, p *Proof) { p.Checkpoint.Beacon[0] ^= 1 },
		FaultCommitment: func(m *Macroblock, p *Proof) { p.Banned = []string{"super_node_4f2c9a10"} },
		FaultOrder:      func(m *Macroblock, p *Proof) { p.Committee[0], p.Committee[1] = p.Committee[1], p.Committee[0] },
		FaultRecovery:   func(m *Macroblock, p *Proof) { p.Checkpoint.RecoveryAnchor = &RecoveryAnchor{} },
		FaultQuorum:     func(m *Macroblock, p *Proof) { p.Signers = p.Signers[:4] },
		FaultSigners:    func(m *Macroblock, p *Proof) { p.Signers[1] = p.Signers[0] },
	} {
		mb, p := load()
		edit(&mb, &p)
		err := p.Check(&mb)
		fault, ok := errors.AsType[*ProofFault](err)
		if !ok || fault.Code != code {
			t.Errorf("%s: got %v", code, err)
		}
	}
	mb, p := load()
	p.Signers[0] = "stranger"
	if f, ok := errors.AsType[*ProofFault](p.Check(&mb)); !ok || f.Code != FaultSigners {
		t.Errorf("stranger: %v", p.Check(&mb))
	}
	if p.FullQuorum() {
		t.Error("a stranger completes a quorum")
	}
	_, p = load()
	p.Committee = nil
	if p.FullQuorum() {
		t.Error("an underivable committee has a quorum")
	}
}

func TestSnapshotLatest(t *testing.T) {
	bound := uint64(7200)
	good := `{"height":7200,"ipfs_cid":"","available":true,"node_id":"genesis_node_001","timestamp":1783213540}`
	c := serve(t, map[string]answer{"GET /api/v1/snapshot/latest?max_height=7200": asJSON(good)})
	if s, err := c.SnapshotLatest(t.Context(), &bound); err != nil || s.Height != 7200 {
		t.Errorf("%+v %v", s, err)
	}
	// The node ignores a bound it cannot read and sends the newest.
	c = serve(t, map[string]answer{"GET /api/v1/snapshot/latest?max_height=7200": asJSON(strings.Replace(good, "7200", "10800", 1))})
	if s, err := c.SnapshotLatest(t.Context(), &bound); err == nil {
		t.Errorf("above the bound: %+v", s)
	}
	c = serve(t, map[string]answer{"GET /api/v1/snapshot/latest": asJSON(`{"height":0,"ipfs_cid":"","available":false,"message":"No snapshots available yet"}`)})
	if _, err := c.SnapshotLatest(t.Context(), nil); !isType[*NotFoundError](err) {
		t.Errorf("none: %v", err)
	}
}

func isType[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

func TestOtherRoutes(t *testing.T) {
	c := serve(t, map[string]answer{
		"GET /api/v1/producer/status":                  asJSON(`{"current_height":100,"is_producer":false,"current_producer":"","producer_endpoint":null,"node_id":"genesis_node_002","leadership_round":3,"next_rotation_height":121,"blocks_until_rotation":20,"producer_selection_method":"x","consensus_threshold":70}`),
		"GET /api/v1/blocks/stats":                     asJSON(`{"current_height":100,"blocks_per_minute":60,"average_block_time":1.0,"microblocks_produced":100,"macroblock_height":1,"next_macroblock":180,"blocks_until_macroblock":80,"pending_transactions":0,"average_tx_per_block":0.5}`),
		"GET /api/v1/failovers?from_height=5&limit=2":  asJSON(`{"failovers":[{"height":9,"failed_producer":"a","emergency_producer":"b","reason":"r","timestamp":1,"block_type":"micro"}],"total_count":1,"from_height":5,"limit":2,"status":"success","statistics":{}}`),
		"GET /api/v1/reputation/history?node_id=a%26b": asJSON(`{"node_id":"a&b","current_reputation":0.0,"history":[],"total_changes":0,"limit":10,"status":"active"}`),
		"GET /api/v1/reputation/history":               asJSON(`{"node_id":"me","current_reputation":70.0,"history":[],"total_changes":0,"limit":10,"status":"active"}`),
		"GET /api/v1/archive":                          asJSON(`{"enabled":true,"segment_blocks":14400,"next_epoch":null,"segments":[{"epoch":1,"first_height":1,"last_height":14400,"blocks":14399,"missing":[[7,7]],"macroblocks":160,"macroblocks_unsigned":0,"bytes":5,"sha3":"ab"}]}`),
	})
	if p, err := c.ProducerStatus(t.Context()); err != nil || p.NodeID != "genesis_node_002" || p.CurrentProducer != "" {
		t.Errorf("producer: %+v %v", p, err)
	}
	if s, err := c.BlocksStats(t.Context()); err != nil || s.NextMacroblock != 180 {
		t.Errorf("stats: %+v %v", s, err)
	}
	if f, err := c.Failovers(t.Context(), 5, 2); err != nil || f.Failovers[0].Height != 9 {
		t.Errorf("failovers: %+v %v", f, err)
	}
	r, err := c.ReputationHistory(t.Context(), "a&b")
	if err != nil || r.Banned() == nil || !*r.Banned() {
		t.Errorf("reputation 0: %+v %v", r, err)
	}
	// 70 is also the answer while the macroblock is not sealed: not a "no".
	if r, err = c.ReputationHistory(t.Context(), ""); err != nil || r.Banned() != nil {
		t.Errorf("reputation 70: %+v %v", r, err)
	}
	if a, err := c.Archive(t.Context()); err != nil || a.NextEpoch != nil || a.Segments[0].Missing[0] != [2]uint64{7, 7} {
		t.Errorf("archive: %+v %v", a, err)
	}
}

func TestRPC(t *testing.T) {
	ask := func(body string) (RecoveryStatus, error) {
		return serve(t, map[string]answer{"POST /rpc": asJSON(body)}).RecoveryStatus(t.Context())
	}
	s, err := ask(`{"jsonrpc":"2.0","result":{"armed":false,"enabled":true,"heard_from":3},"id":1}`)
	if err != nil || s.Armed || s.HeardFrom != 3 {
		t.Errorf("%+v %v", s, err)
	}
	s, err = ask(`{"jsonrpc":"2.0","result":{"armed":true,"anchor_mb":9,"anchor_cp_index":27,"anchor_digest":"` + tip + `","span_windows":[10,11],"heard_from":3,"committee":6,"quorum_size":5,"relaxed_quorum":5},"id":1}`)
	if err != nil || *s.AnchorMB != 9 || s.SpanWindows[1] != 11 {
		t.Errorf("%+v %v", s, err)
	}
	_, err = ask(`{"jsonrpc":"2.0","error":{"code":-32004,"message":"operator method: local interface only"},"id":1}`)
	if e, ok := errors.AsType[*RPCError](err); !ok || e.Code != -32004 {
		t.Errorf("error object: %v", err)
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","result":{"armed":true,"heard_from":3},"id":1}`,
		`{"jsonrpc":"2.0","result":{"armed":false,"heard_from":3},"id":2}`,
		`{"jsonrpc":"2.0","result":{"armed":false,"heard_from":3}}`,
		`{"jsonrpc":"1.0","result":{"armed":false,"heard_from":3},"id":1}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","result":null,"id":1}`,
		`{"jsonrpc":"2.0","result":{"heard_from":3},"id":1}`,
	} {
		if s, err := ask(body); err == nil {
			t.Errorf("%s: %+v", body, s)
		}
	}
	c := serve(t, map[string]answer{"POST /rpc": {400, "text/plain", "Request body deserialize error"}})
	if err := c.RPC(t.Context(), "x", map[string]int{"a": 1}, nil); !isType[*AnswerError](err) {
		t.Errorf("framework rejection: %v", err)
	}
	info, err := serve(t, map[string]answer{"POST /rpc": asJSON(`{"jsonrpc":"2.0","result":{"node_id":"super_node_4f2c9a10","height":5},"id":1}`)}).NodeInfo(t.Context())
	if err != nil || info.NodeID != "super_node_4f2c9a10" || *info.Height != 5 || info.Peers != nil {
		t.Errorf("%+v %v", info, err)
	}
}

func TestMetrics(t *testing.T) {
	ask := func(body string) (Metrics, error) {
		c := serve(t, map[string]answer{"GET /metrics": {200, "text/plain; version=0.0.4", body}})
		c.MetricsBase = c.Base
		return c.Metrics(t.Context())
	}
	m, err := ask("# TYPE qnet_blocks_height gauge\nqnet_blocks_height 100\nqnet_network_height{net=\"a b\"} 101 1783213540000\nqnet_blocks_behind 0\nqnet_peers_connected 0\nqnet_node_uptime_seconds 12.5\n")
	if err != nil || *m.Height != 100 || *m.NetworkHeight != 101 || *m.BlocksBehind != 0 || *m.Peers != 0 || *m.UptimeSeconds != 12.5 {
		t.Errorf("%+v %v", m, err)
	}
	// Builds of late 2025: heights constant 0, uptime is the unix time.
	m, err = ask("qnet_blocks_height 0\nqnet_network_height 0\nqnet_blocks_behind 0\nqnet_peers_connected 3\nqnet_node_uptime_seconds 1764000000\n")
	if err != nil || m.Height != nil || m.NetworkHeight != nil || m.BlocksBehind != nil || m.UptimeSeconds != nil || *m.Peers != 3 {
		t.Errorf("%+v %v", m, err)
	}
	for _, body := range []string{"", "# only comments\n", "hello\n", "qnet_blocks_height many\n"} {
		if m, err := ask(body); err == nil {
			t.Errorf("%q: %+v", body, m)
		}
	}
	if m, err = ask("qnet_blocks_height -4\n"); err != nil || m.Height != nil {
		t.Errorf("negative: %+v %v", m, err)
	}
	if _, err := (&Client{}).Metrics(t.Context()); err == nil {
		t.Error("no metrics address: no error")
	}
}

func TestErrorsCarryNoControlCharacters(t *testing.T) {
	c := serve(t, map[string]answer{"GET /api/v1/height": asJSON(`{"error":"bad \u001b[31m\u0007` + strings.Repeat("é", 400) + `"}`)})
	_, err := c.Height(t.Context())
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\a") || len(err.Error()) > 400 {
		t.Errorf("error %q", err)
	}
}
