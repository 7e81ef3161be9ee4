package restart

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lab "github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// archiveLab is a stalled chain whose last macroblock is 95, so that its nodes hold the snapshots 90, 3600 and 7200.
func archiveLab(t *testing.T) *lab.Ledger {
	t.Helper()
	l, err := lab.New(lab.Config{Seed: 1, Macroblocks: 95, Members: 6})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// override is a node of which some routes answer otherwise.
type override struct {
	node  *lab.Node
	route map[string]http.HandlerFunc
}

func (o override) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for prefix, fn := range o.route {
		if strings.HasPrefix(r.URL.Path, prefix) {
			fn(w, r)
			return
		}
	}
	o.node.ServeHTTP(w, r)
}

func openHost(t *testing.T, id string, n http.Handler) ArchiveHost {
	srv := httptest.NewServer(n)
	t.Cleanup(srv.Close)
	return ArchiveHost{ID: id, Node: &node.Client{Base: srv.URL, HTTP: srv.Client()}}
}

func answerJSON(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

func archiveInput(hosts ...ArchiveHost) ArchiveInput {
	return ArchiveInput{Fleet: "lab", Designated: "001", K: 95, Block: time.Millisecond, Hosts: hosts, Joiners: 40, ReadBytes: 1 << 20, Sample: 4, Seed: 7,
		Patience: 20 * time.Second, Now: func() time.Time { return stalledAt }}
}

// wants compares the verdicts of the checks that are named.
func wants(t *testing.T, name string, got ArchiveCheck, want map[string]observe.Verdict) {
	t.Helper()
	for _, c := range got.Checks {
		if w, ok := want[c.Name]; ok && w != c.Verdict {
			t.Errorf("%s: %s is %s, want %s: %s", name, c.Name, c.Verdict, w, c.Reason)
		}
		if c.Reason == "" {
			t.Errorf("%s: %s gives no reason", name, c.Name)
		}
		delete(want, c.Name)
	}
	for missing := range want {
		t.Errorf("%s: %s was not checked", name, missing)
	}
}

func TestArchiveCheckOfAGoodHost(t *testing.T) {
	l := archiveLab(t)
	first, second := l.Node(lab.NodeConfig{ID: "genesis_node_001", Archive: true}), l.Node(lab.NodeConfig{ID: "genesis_node_002"})
	a, b := openHost(t, "001", first), openHost(t, "002", second)
	b.Peer = a.Node
	got, err := CheckArchive(t.Context(), archiveInput(a, b))
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "good", got, map[string]observe.Verdict{ArchiveSnapshot: observe.Pass, ArchiveTransfer: observe.Pass, ArchiveThroughput: observe.Pass,
		ArchiveReach: observe.Pass, ArchiveMacro: observe.Pass, ArchiveBodies: observe.Pass, ArchiveKeep: observe.Pass})
	if !got.OK || !got.Serves() || len(got.Failing()) != 0 {
		t.Errorf("not ok: %v", got.Failing())
	}
	if got.NodeID != "genesis_node_001" || *got.SnapshotHeight != 7200 || got.MaxHeight != 8550 || got.Schema != ArchiveSchema {
		t.Errorf("%+v", got)
	}
	// From the snapshot on: blocks 7201 to 8550 of macroblocks 81 to 95, the ends among those asked for.
	if m := got.Macroblocks; m.From != 81 || m.To != 95 || len(m.Asked) != 6 || m.Asked[0] != 81 || m.Asked[5] != 95 || !slices.IsSorted(m.Asked) {
		t.Errorf("macroblocks %+v", m)
	}
	if m := got.Bodies; m.From != 7201 || m.To != 8550 || len(m.Asked) != 6 || m.Asked[0] != 7201 || m.Asked[5] != 8550 {
		t.Errorf("bodies %+v", m)
	}
	// Three snapshots are kept and one is written every 3,600 blocks.
	if p := got.Prune; *p.At != 18000 || *p.Blocks != 18000-l.Height() || *p.Moving || p.Never {
		t.Errorf("prune %+v", p)
	}
	if got.LastHolder != nil || got.StopNow != nil || len(got.Holders) != 2 || got.Holders[0].Holds != HeldYes || *got.Holders[1].Height != 7200 {
		t.Errorf("holders %+v", got.Holders)
	}
	// 40 joiners are three rounds of 16 at best, and all after one another at worst; both are rounded up.
	one := float64(*got.SnapshotBytes) / float64(*got.Rate)
	if f := got.Fetch; f.Best == nil || f.Worst == nil || float64(*f.Best) != math.Ceil(3*one) || float64(*f.Worst) != math.Ceil(40*one) {
		t.Errorf("fetch %+v, one transfer %v s", f, one)
	}
	if got.Archive == nil || !got.Archive.Enabled {
		t.Errorf("archive %+v", got.Archive)
	}
}

func TestArchiveCheckNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const pass, fail, unknown = observe.Pass, observe.Fail, observe.Unknown
	for _, c := range []struct {
		name   string
		fault  lab.Kind
		arg    string
		config lab.NodeConfig
		route  map[string]http.HandlerFunc
		want   map[string]observe.Verdict
	}{
		{name: "holds none", fault: lab.FaultNoSnapshots, want: map[string]observe.Verdict{ArchiveSnapshot: fail, ArchiveKeep: unknown}},
		{name: "no whole transfer is free", fault: lab.FaultBusy, want: map[string]observe.Verdict{ArchiveSnapshot: pass, ArchiveTransfer: pass, ArchiveThroughput: pass}},
		{name: "no transfer is free", route: map[string]http.HandlerFunc{"/api/v1/snapshot/7200": answerJSON(200, `{"error":"snapshot serve busy"}`)},
			want: map[string]observe.Verdict{ArchiveSnapshot: pass, ArchiveTransfer: unknown, ArchiveThroughput: unknown}},
		{name: "rate limit", fault: lab.FaultRateLimit, want: map[string]observe.Verdict{ArchiveSnapshot: unknown, ArchiveKeep: unknown}},
		{name: "macroblocks cannot be read", fault: lab.FaultStorage, want: map[string]observe.Verdict{ArchiveTransfer: pass, ArchiveMacro: unknown, ArchiveBodies: unknown}},
		{name: "K is missing", fault: lab.FaultMissing, arg: "95", want: map[string]observe.Verdict{ArchiveMacro: fail}},
		{name: "signatures are gone", fault: lab.FaultPruned, arg: "3", want: map[string]observe.Verdict{ArchiveMacro: fail}},
		{name: "a seal that does not fit its certificate", fault: lab.FaultBadSeal, arg: "95", want: map[string]observe.Verdict{ArchiveMacro: fail}},
		{name: "no committee", fault: lab.FaultNoCommittee, arg: "95", want: map[string]observe.Verdict{ArchiveMacro: fail}},
		{name: "only snapshots above K", config: lab.NodeConfig{Snapshots: []uint64{10800}}, want: map[string]observe.Verdict{ArchiveSnapshot: fail}},
		{name: "the one of height 90", config: lab.NodeConfig{Snapshots: []uint64{90}}, want: map[string]observe.Verdict{ArchiveSnapshot: pass, ArchiveKeep: pass, ArchiveBodies: pass}},
		{name: "a snapshot at the end of K", config: lab.NodeConfig{Snapshots: []uint64{8550}}, want: map[string]observe.Verdict{ArchiveSnapshot: pass, ArchiveBodies: pass, ArchiveMacro: pass}},
		{name: "it ignores the bound", route: map[string]http.HandlerFunc{"/api/v1/snapshot/latest": answerJSON(200, `{"height":9000,"ipfs_cid":"","available":true,"node_id":"x","timestamp":1}`)},
			want: map[string]observe.Verdict{ArchiveSnapshot: unknown}},
		{name: "a proxy answers the transfers", route: map[string]http.HandlerFunc{"/api/v1/snapshot/7200": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>gateway</html>") }},
			want: map[string]observe.Verdict{ArchiveSnapshot: pass, ArchiveTransfer: unknown, ArchiveThroughput: unknown}},
		{name: "no chunks, but the whole", route: map[string]http.HandlerFunc{"/api/v1/snapshot/7200/manifest": answerJSON(200, `{"error":"Snapshot not found","height":7200}`)},
			want: map[string]observe.Verdict{ArchiveTransfer: pass, ArchiveThroughput: pass}},
		{name: "no whole, but chunks", route: map[string]http.HandlerFunc{"/api/v1/snapshot/7200": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/v1/snapshot/7200" {
				answerJSON(200, `{"error":"Failed to get snapshot","details":"internal error"}`)(w, r)
				return
			}
			archiveLab(t).Node(lab.NodeConfig{ID: "x"}).ServeHTTP(w, r)
		}}, want: map[string]observe.Verdict{ArchiveTransfer: pass}},
		{name: "blocks are pruned", route: map[string]http.HandlerFunc{"/api/v1/microblock/": answerJSON(404, `{"error":"not found"}`)}, want: map[string]observe.Verdict{ArchiveMacro: pass, ArchiveBodies: fail}},
		{name: "blocks of another chain", route: map[string]http.HandlerFunc{"/api/v1/microblock/": answerJSON(200, `{"hash":"`+strings.Repeat("ab", 32)+`"}`)}, want: map[string]observe.Verdict{ArchiveBodies: fail}},
		{name: "blocks without a hash", route: map[string]http.HandlerFunc{"/api/v1/microblock/": answerJSON(200, `{"transactions":[]}`)}, want: map[string]observe.Verdict{ArchiveBodies: unknown}},
		{name: "blocks fail", route: map[string]http.HandlerFunc{"/api/v1/microblock/": answerJSON(500, `{"error":"internal error"}`)}, want: map[string]observe.Verdict{ArchiveBodies: unknown}},
		{name: "nobody says a height", route: map[string]http.HandlerFunc{"/api/v1/debug/": answerJSON(500, `{}`)}, want: map[string]observe.Verdict{ArchiveKeep: unknown}},
	} {
		c.config.ID = "genesis_node_001"
		n := archiveLab(t).Node(c.config)
		if c.fault != "" {
			if err := n.Set(c.fault, c.arg); err != nil {
				t.Fatal(err)
			}
		}
		got, err := CheckArchive(t.Context(), archiveInput(openHost(t, "001", override{n, c.route})))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		bad := slices.ContainsFunc(got.Checks, func(c observe.Check) bool { return c.Verdict != pass })
		if got.OK == bad || got.Serves() == bad {
			t.Errorf("%s: ok %v, serves %v with %v", c.name, got.OK, got.Serves(), got.Failing())
		}
		wants(t, c.name, got, c.want)
	}
}

// A chain that moves prunes: the check says when, and whom to stop. Where it moves because finality is forged the host still
// can be the archive, once it is stopped.
func TestArchiveCheckOfAMovingChain(t *testing.T) {
	n := archiveLab(t).Node(lab.NodeConfig{ID: "genesis_node_001"})
	var asked atomic.Uint64
	moving := override{n, map[string]http.HandlerFunc{"/api/v1/debug/consensus-position": func(w http.ResponseWriter, r *http.Request) {
		h := 11_430 + asked.Add(1)
		answerJSON(200, fmt.Sprintf(`{"height":%d,"tip_hash":"","own_window":127,"last_sealed_mb_index":95,"sealed_lag_windows":32,"finalized_height":8550,"tc_window_floor":95,"floor_above_window":false,"certified_round_current_window":0,"certified_round_next_slot":0}`, h))(w, r)
	}}}
	in := archiveInput(openHost(t, "001", moving))
	for _, forged := range []bool{false, true} {
		in.Forged = forged
		got, err := CheckArchive(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, "moving", got, map[string]observe.Verdict{ArchiveKeep: observe.Fail, ArchiveBodies: observe.Pass})
		if got.OK || got.Serves() != forged || got.StopNow == nil || *got.StopNow != "001" {
			t.Errorf("forged %v: ok %v, serves %v, stop %v", forged, got.OK, got.Serves(), got.StopNow)
		}
		if p := got.Prune; !*p.Moving || *p.Blocks != 18000-(11_430+asked.Load()) || *p.Seconds != *p.Blocks/1000 {
			t.Errorf("prune %+v after %d", p, asked.Load())
		}
		until := got.At.Add(time.Duration(*got.Prune.Seconds) * time.Second)
		if kept, _ := got.Kept(until); kept != forged {
			t.Errorf("forged %v: stopped before the pruning, kept %v", forged, kept)
		}
		if kept, why := got.Kept(until.Add(time.Second)); kept {
			t.Errorf("stopped after the pruning and kept: %s", why)
		}
	}
}

func TestArchiveCheckNamesTheLastHolder(t *testing.T) {
	l := archiveLab(t)
	none, busy := l.Node(lab.NodeConfig{ID: "genesis_node_002", Snapshots: []uint64{10800}}), l.Node(lab.NodeConfig{ID: "genesis_node_003"})
	if err := busy.Set(lab.FaultRateLimit, ""); err != nil {
		t.Fatal(err)
	}
	got, err := CheckArchive(t.Context(), archiveInput(openHost(t, "003", busy), openHost(t, "002", none), openHost(t, "001", l.Node(lab.NodeConfig{ID: "genesis_node_001"})),
		ArchiveHost{ID: "004", Err: errors.New("ops@192.0.2.7: no route to host")}))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, h := range got.Holders {
		said = append(said, h.ID+" "+string(h.Holds))
	}
	if form, err := Canonical(got); err != nil || strings.Contains(string(form), "192.0.2.7") || strings.Contains(string(form), "ops@") {
		t.Errorf("%v, or the document, which is published, names an address or a user:\n%s", err, form)
	}
	if want := []string{"001 held", "002 missing", "003 unknown", "004 unknown"}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
	if got.LastHolder == nil || *got.LastHolder != "001" || !strings.Contains(strings.Join(got.Notes, "\n"), "do not touch it") {
		t.Errorf("last holder %v, notes %q", got.LastHolder, got.Notes)
	}
}

// An address that leads to another node must not pass for the archive's.
func TestArchiveReachIsOfTheSameNode(t *testing.T) {
	l := archiveLab(t)
	a := openHost(t, "001", l.Node(lab.NodeConfig{ID: "genesis_node_001"}))
	b := openHost(t, "002", l.Node(lab.NodeConfig{ID: "genesis_node_002"}))
	b.Peer = b.Node
	got, err := CheckArchive(t.Context(), archiveInput(a, b))
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "itself", got, map[string]observe.Verdict{ArchiveReach: observe.Unknown})
	none := openHost(t, "003", l.Node(lab.NodeConfig{ID: "genesis_node_001", Snapshots: []uint64{}}))
	b.Peer = none.Node
	if got, err = CheckArchive(t.Context(), archiveInput(a, b)); err != nil {
		t.Fatal(err)
	}
	wants(t, "another", got, map[string]observe.Verdict{ArchiveReach: observe.Fail})
}

func TestArchiveInputs(t *testing.T) {
	a := openHost(t, "001", archiveLab(t).Node(lab.NodeConfig{ID: "genesis_node_001"}))
	for _, k := range []uint64{0, 1, MaxK + 1} {
		in := archiveInput(a)
		in.K = k
		var bad *KError
		if _, err := CheckArchive(t.Context(), in); !errors.As(err, &bad) {
			t.Errorf("K %d: %v", k, err)
		}
	}
	in := archiveInput(a)
	in.Designated = "009"
	if _, err := CheckArchive(t.Context(), in); err == nil {
		t.Error("a host that is none of the fleet")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := CheckArchive(ctx, archiveInput(a)); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
}
