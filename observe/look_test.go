package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
)

// fakeFleet is a chain and the hosts on it, under the fake clock of synctest. A
// node answers the routes this package may use with bodies written out here, and
// refuses every other one.
type fakeFleet struct {
	t       *testing.T
	block   time.Duration
	genesis time.Time
	base    uint64        // height at genesis
	stop    time.Duration // the chain stands from here on; 0 for never
	hosts   []*fakeHost
}

type fakeHost struct {
	fleet *fakeFleet
	id    string
	node  string
	err   error // of the connection

	lag, add   uint64 // blocks below the chain, blocks claimed above it
	hang       map[string]bool
	body       map[string]string // instead of the real answer; "404" for a refused connection
	tipRounds  int               // answers with another tip hash, -1 for always
	sealRounds int               // answers with another macroblock
	started    time.Time
	inspectErr error
	lines      []string
	signers    func(mb uint64) []string

	mu       sync.Mutex
	rested   bool // since the last request
	requests map[string]int
	state    string
	exit     int
}

func newFakeFleet(t *testing.T, n int) *fakeFleet {
	f := &fakeFleet{t: t, block: time.Second, genesis: time.Now(), base: 90*20 + 45}
	for i := 1; i <= n; i++ {
		f.hosts = append(f.hosts, &fakeHost{fleet: f, id: fmt.Sprintf("%03d", i), node: fmt.Sprintf("genesis_node_%03d", i),
			hang: map[string]bool{}, body: map[string]string{}, requests: map[string]int{}, state: "running",
			started: time.Now().Add(-time.Hour)})
	}
	return f
}

func (f *fakeFleet) Name() string         { return "test" }
func (f *fakeFleet) Block() time.Duration { return f.block }
func (f *fakeFleet) Hosts() (out []fleet.Host) {
	for _, h := range f.hosts {
		out = append(out, fleet.Host{ID: h.id, Role: "genesis", Container: "qnet-genesis-" + h.id, APIPort: 8001})
	}
	return out
}

func (f *fakeFleet) Target(_ context.Context, id string) (target, error) {
	for _, h := range f.hosts {
		if h.id == id {
			return h, h.err
		}
	}
	return nil, errors.New("no such host")
}

func (f *fakeFleet) height() uint64 {
	passed := max(0, time.Since(f.genesis))
	if f.stop > 0 {
		passed = min(passed, f.stop)
	}
	return f.base + uint64(passed/f.block)
}

func (f *fakeFleet) members() (out []string) {
	for _, h := range f.hosts {
		out = append(out, h.node)
	}
	return out
}

func (h *fakeHost) Node() *node.Client {
	return &node.Client{Base: "http://127.0.0.1:8001", HTTP: &http.Client{Transport: h}}
}

func (h *fakeHost) Rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rested = true
}

func (h *fakeHost) Inspect(context.Context) (host.ContainerFacts, error) {
	return host.ContainerFacts{ID: "c" + h.id, Name: "qnet-genesis-" + h.id, ImageRef: "qnet:v1", ImageID: "sha256:11", State: h.state, ExitCode: h.exit,
		StartedAt: h.started, RestartPolicy: "always", DataDir: host.DataDir{HostPath: "/data"}}, h.inspectErr
}

func (h *fakeHost) Containers(context.Context) ([]fleet.Container, error) { return nil, nil }
func (h *fakeHost) Digests(context.Context, string) ([]string, error) {
	return []string{"registry.example.org/qnet@sha256:11"}, nil
}
func (h *fakeHost) Clock(context.Context) (time.Duration, error) { return 0, nil }
func (h *fakeHost) Disk(_ context.Context, path string) (host.DiskFacts, error) {
	return host.DiskFacts{Path: path, FreeBytes: 1 << 40, TotalBytes: 1 << 41}, nil
}
func (h *fakeHost) Lines(context.Context, time.Time, int) (out []node.LogLine, err error) {
	for _, l := range h.lines {
		out = append(out, node.ParseLine(l))
	}
	return out, nil
}

func (h *fakeHost) count(path string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests[path]++
	h.rested = false
	return h.requests[path]
}

func (h *fakeHost) total() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.requests {
		n += c
	}
	return n
}

// RoundTrip is the node's HTTP server.
func (h *fakeHost) RoundTrip(r *http.Request) (*http.Response, error) {
	path := r.URL.Path
	times := h.count(path)
	if h.hang[path] || h.hang["*"] {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if h.state != "running" {
		return nil, errors.New("connection refused")
	}
	kind, body := "application/json", ""
	switch height := h.fleet.height() - h.lag + h.add; {
	case h.body[path] != "" || h.body["*"] != "":
		body = h.body[path] + h.body["*"]
	case path == "/healthz":
		kind, body = "text/plain; charset=utf-8", fmt.Sprintf("ok h=%d build=1111111", height)
	case path == "/api/v1/debug/consensus-position":
		body = h.position(height, times)
	case path == "/api/v1/node/health":
		body = fmt.Sprintf(`{"status":"healthy","node_id":"display","height":%d,"network_height":%d,"sync_status":"synchronized","peers":5,"validated_peers":5,"mempool_size":0,"node_type":"Super","region":"Europe","uptime_seconds":0,"version":"1.0.0","api_version":"v1","clock_drift_ema_secs":0,"clock_drift_peak_secs":0,"current_timeout_round":0,"max_slot_delay_secs":0,"max_timeout_round_seen":0,"failover_count":0,"timestamp_rejections":0}`, height, height)
	case path == "/rpc":
		body = `{"jsonrpc":"2.0","id":1,"result":{"node_id":"` + h.node + `"}}`
	case strings.HasPrefix(path, "/api/v1/macroblock/"):
		body = h.macroblock(path, times)
	default:
		h.fleet.t.Errorf("host %s: unexpected request %s %s", h.id, r.Method, path)
		return nil, errors.New("unexpected request")
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Request: r,
		Body: io.NopCloser(bytes.NewReader([]byte(body)))}, nil
}

func (h *fakeHost) position(height uint64, times int) string {
	tip := tipAt(height - h.add)
	if h.tipRounds < 0 || times <= h.tipRounds {
		tip = ptr(hash("other" + tip.String()))
	}
	sealed := height/90 - 1
	return fmt.Sprintf(`{"height":%d,"tip_hash":"%s","own_window":%d,"last_sealed_mb_index":%d,"sealed_lag_windows":1,"finalized_height":%d,"tc_window_floor":%d,"floor_above_window":false,"certified_round_current_window":0}`,
		height, tip, height/90, sealed, sealed*90, sealed)
}

// macroblock serves both the macroblock and its proof, consistent with each other.
func (h *fakeHost) macroblock(path string, times int) string {
	var index uint64
	var rest string
	fmt.Sscanf(strings.TrimPrefix(path, "/api/v1/macroblock/"), "%d%s", &index, &rest)
	var micro []node.Hash
	for i := index*90 - 89; i <= index*90; i++ {
		micro = append(micro, *tipAt(i))
	}
	root := hash("root")
	if h.sealRounds < 0 || times <= h.sealRounds {
		root = hash("bad root")
	}
	members := h.fleet.members()
	signers := members
	if h.signers != nil {
		signers = h.signers(index)
	}
	var v any = map[string]any{"index": index, "height": index, "timestamp": index * 90, "micro_blocks_count": 90, "micro_blocks": micro, "state_root": root,
		"previous_hash": hash("prev"), "consensus_data": map[string]any{"next_leader": "", "commits_count": 0, "reveals_count": 0, "pool2_total_fees": nil, "pool3_total_activations": nil}}
	if rest == "/proof" {
		v = node.Proof{Index: index, Epoch: index, Committee: members, Signers: signers, Sigs: make([]string, len(signers)), Banned: []string{},
			Checkpoint: node.Checkpoint{WindowHeadHeight: index * 90, WindowMBHashes: micro, StateRoot: root, Timestamp: index * 90,
				Beacon: node.Beacon(micro), EpochCommitment: node.EpochCommitment(nil, members, nil)}}
	}
	b, err := json.Marshal(v)
	if err != nil {
		h.fleet.t.Error(err)
	}
	return string(b)
}

// watching runs look under the fake clock and reports how long it took.
func watching(t *testing.T, n int, setup func(*fakeFleet), check func(*fakeFleet, View, time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, n)
		if setup != nil {
			setup(f)
		}
		began := time.Now()
		v, err := look(t.Context(), f, Options{Signers: true})
		if err != nil {
			t.Fatal(err)
		}
		check(f, v, time.Since(began))
	})
}

func TestLookHealthy(t *testing.T) {
	watching(t, 6, nil, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Healthy || len(v.Reasons) != 0 {
			t.Errorf("%s %q", v.Verdict, v.Reasons)
		}
		if took != time.Second {
			t.Errorf("took %s, want the block time between two samples", took)
		}
		n := v.Node("002")
		if n.NodeID != "genesis_node_002" || *n.Build != "1111111" || n.Container.Digest != "registry.example.org/qnet@sha256:11" || len(n.Samples) != 2 {
			t.Errorf("%+v", n)
		}
		if v.Seal == nil || v.Seal.Index != 19 || v.Seal.Quorum != 5 || len(v.Seal.Committee) != 6 || len(v.Seal.Signers) != 6 {
			t.Errorf("seal %+v", v.Seal)
		}
		// Hundreds of hosts must not keep what they no longer need; the last to be asked is the one that gives the certificate.
		if busy := slices.DeleteFunc(slices.Clone(f.hosts), func(h *fakeHost) bool { return h.rested }); len(busy) > 1 {
			t.Errorf("%d hosts keep idle connections", len(busy))
		}
		// Half of 300 requests a minute, over three block times.
		if n := f.hosts[0].total(); n > 7 {
			t.Errorf("%d requests to one node", n)
		}
	})
}

func TestLookForkIsReadTwice(t *testing.T) {
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].tipRounds = -1 }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Fork || v.Node("003").Verdict != Fork || v.Node("001").Verdict != Healthy || took != time.Second {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
	})
	// Different in the first sample only: looked at again, no fork.
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].tipRounds = 1 }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Healthy {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
	})
}

func TestLookBadSealIsReadAgain(t *testing.T) {
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].sealRounds = 1 }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Healthy || took != 2*time.Second {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
	})
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].sealRounds = -1 }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Fork || v.Node("003").Verdict != Fork || !strings.Contains(v.Reasons[0], "macroblock 19") {
			t.Errorf("%s: %q", v.Verdict, v.Reasons)
		}
	})
}

func TestLookStall(t *testing.T) {
	// Stands for two block times only: the movement after that is waited for.
	watching(t, 6, func(f *fakeFleet) { f.genesis = f.genesis.Add(2500 * time.Millisecond) }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Healthy || took != 4*time.Second {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
	})
	watching(t, 6, func(f *fakeFleet) { f.stop = time.Nanosecond }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Stalled || took != 15*time.Second {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
		if n := f.hosts[0].total(); n > 37 {
			t.Errorf("%d requests in 15 s exceed half of the rate limit", n)
		}
	})
}

func TestLookHangingHealth(t *testing.T) {
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].hang["/api/v1/node/health"] = true }, func(f *fakeFleet, v View, took time.Duration) {
		n := v.Node("003")
		if n.Build == nil || *n.Build != "1111111" || n.Height == nil || n.ValidatedPeers != nil || n.Verdict != Healthy {
			t.Errorf("%+v %q", n, n.Reasons)
		}
		if took > 4*time.Second {
			t.Errorf("took %s", took)
		}
	})
	watching(t, 6, func(f *fakeFleet) { f.hosts[2].hang["*"] = true }, func(f *fakeFleet, v View, took time.Duration) {
		if n := v.Node("003"); n.Verdict != StateUnknown || v.Node("001").Verdict != Healthy || v.Verdict != StateUnknown {
			t.Errorf("%s: %s %q", v.Verdict, n.Verdict, n.Reasons)
		}
		if took > 6*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestLookOddOnes(t *testing.T) {
	const limit = `{"success":false,"error":"Rate limit exceeded","retry_after_seconds":30,"message":"x"}`
	watching(t, 6, func(f *fakeFleet) {
		f.hosts[0].lag = 20
		f.hosts[1].body["*"] = limit
		f.hosts[2].err = errors.New("no route to host")
		f.hosts[3].add = 1000
		f.hosts[4].state, f.hosts[4].exit = "exited", 1
	}, func(f *fakeFleet, v View, took time.Duration) {
		for id, want := range map[string]State{"001": Behind, "002": StateUnknown, "003": Down, "005": Down} {
			if n := v.Node(id); n.Verdict != want {
				t.Errorf("%s: %s, want %s: %q", id, n.Verdict, want, n.Reasons)
			}
		}
		if v.Verdict != StateUnknown || v.Node("003").Reachable {
			t.Errorf("%s %q", v.Verdict, v.Reasons)
		}
	})
	watching(t, 6, func(f *fakeFleet) { f.hosts[3].add = 1000 }, func(f *fakeFleet, v View, took time.Duration) {
		if v.Node("004").Verdict != StateUnknown || v.Node("001").Verdict != Healthy || *v.Node("001").Behind != 0 || v.Seal.Index != 19 {
			t.Errorf("%q, seal %+v", v.Reasons, v.Seal)
		}
	})
	watching(t, 6, func(f *fakeFleet) {
		for _, h := range f.hosts {
			h.state = "exited"
			h.lines = []string{"[INFO][HALT] Reached halt_height=1000 current=1017 — flushing and stopping for coordinated upgrade"}
		}
	}, func(f *fakeFleet, v View, took time.Duration) {
		if v.Verdict != Halted || took > 2*time.Second {
			t.Errorf("%s after %s: %q", v.Verdict, took, v.Reasons)
		}
	})
}

func TestLookEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 3)
		f.stop = time.Nanosecond
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := look(ctx, f, Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestElectorate(t *testing.T) {
	count := func(t *testing.T, f *fakeFleet, without string) (Voters, time.Duration) {
		began := time.Now()
		v, err := newElectorate(f).Count(t.Context(), without)
		if err != nil {
			t.Fatal(err)
		}
		return v, time.Since(began)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 6)
		v, took := count(t, f, "003")
		if v.Count != 5 || !v.Enough() || v.Committee.Index != 19 || took > time.Second {
			t.Errorf("%+v after %s", v, took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// A silent member: all ten windows are read, at half of the rate limit.
		f := newFakeFleet(t, 6)
		for _, h := range f.hosts {
			h.signers = func(uint64) []string { return f.members()[:5] }
		}
		e := newElectorate(f)
		began := time.Now()
		for range 3 {
			v, err := e.Count(t.Context(), "001")
			if err != nil || v.Count != 4 || v.Enough() {
				t.Errorf("%+v %v", v, err)
			}
		}
		took := time.Since(began)
		if n := f.hosts[0].total(); float64(n-3) > 2.5*took.Seconds()+3 {
			t.Errorf("%d requests in %s", n, took)
		}
		// The log vouches for it where no certificate does.
		f.hosts[5].lines = []string{fmt.Sprintf("[INFO][CONS] validator=true mb=%d participating active_lock=acquired", node.WindowOf(f.height()))}
		if v, _ := e.Count(t.Context(), "001"); v.Count != 5 {
			t.Errorf("%+v", v)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// Each certificate leaves one member out; the union over nodes has all.
		f := newFakeFleet(t, 6)
		for i, h := range f.hosts {
			h.signers = func(uint64) []string {
				m := f.members()
				return append(m[:i:i], m[i+1:]...)
			}
		}
		if v, _ := count(t, f, ""); v.Count != 6 {
			t.Errorf("%+v", v)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 6)
		f.hosts[4].err = errors.New("no route to host")
		v, _ := count(t, f, "001")
		if v.Count != 4 || v.Enough() {
			t.Errorf("one down, one to be stopped: %+v", v)
		}
		f.hosts[4].err = nil
		f.hosts[4].started = time.Now().Add(-10 * time.Second)
		if v, _ := count(t, f, "001"); v.Count != 4 || !strings.Contains(strings.Join(v.Missing(), ";"), "restarted in window") {
			t.Errorf("one just restarted: %+v", v)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 6)
		for _, h := range f.hosts {
			for i := uint64(1); i < 30; i++ {
				h.body[fmt.Sprintf("/api/v1/macroblock/%d/proof", i)] = `{"error":"no_checkpoint_qc","index":1}`
			}
		}
		if _, err := newElectorate(f).Count(t.Context(), "001"); !errors.Is(err, ErrNoCommittee) {
			t.Errorf("error %v", err)
		}
	})
}

// TestLookFrozenConsensus: the node answers, follows and is healthy by all else.
func TestLookFrozenConsensus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 6)
		for _, h := range f.hosts {
			h.signers = func(uint64) []string { return f.members()[:5] }
		}
		v, err := look(t.Context(), f, Options{Voters: true})
		if err != nil {
			t.Fatal(err)
		}
		c := v.Checks[len(v.Checks)-1]
		if v.Verdict != Healthy || c.Name != CheckVotes || c.Verdict != Fail || !strings.Contains(c.Reason, "006 genesis_node_006 (neither signed") || v.Voters.Count != 5 {
			t.Errorf("%s %+v", v.Verdict, c)
		}
	})
	if c := votesCheck(Voters{}, ErrNoCommittee); c.Verdict != Unknown {
		t.Errorf("%+v", c)
	}
}

func TestReadNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeFleet(t, 1)
		n := readNode(t.Context(), f.Hosts()[0], f.hosts[0], f.block)
		if *n.Height != f.height() || *n.Build != "1111111" || f.hosts[0].total() != 2 {
			t.Errorf("%+v", n)
		}
	})
}
