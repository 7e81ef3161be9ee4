package observe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// hall is a committee of six with six hosts that all signed window 100.
func hall(edit func(*VoterInput)) VoterInput {
	in := VoterInput{Now: start, Block: time.Second, Tip: 100*90 + 60, Signers: map[uint64][]string{}}
	in.Committee = Committee{Index: 100, Quorum: node.QuorumSize(6)}
	for i := 1; i <= 6; i++ {
		id := fmt.Sprintf("genesis_node_%03d", i)
		in.Committee.Members = append(in.Committee.Members, id)
		in.Signers[100] = append(in.Signers[100], id)
		in.Hosts = append(in.Hosts, VoterReading{HostID: fmt.Sprintf("%03d", i), NodeID: id, Reachable: true,
			Height: ptr(in.Tip), StartedAt: ptr(start.Add(-time.Hour))})
	}
	if edit != nil {
		edit(&in)
	}
	return in
}

func unsign(in *VoterInput, id string) {
	for w, ids := range in.Signers {
		var kept []string
		for _, s := range ids {
			if s != id {
				kept = append(kept, s)
			}
		}
		in.Signers[w] = kept
	}
}

func TestCountVoters(t *testing.T) {
	const third = "genesis_node_003"
	for name, c := range map[string]struct {
		edit  func(*VoterInput)
		count int
		say   string // in the list of those missing
	}{
		"all":                          {nil, 6, ""},
		"without one":                  {func(in *VoterInput) { in.Without = "003" }, 5, "to be stopped"},
		"unreachable":                  {func(in *VoterInput) { in.Hosts[2].Reachable, in.Hosts[2].Why = false, "timeout" }, 5, "does not answer: timeout"},
		"ten behind":                   {func(in *VoterInput) { in.Hosts[2].Height = ptr(in.Tip - 10) }, 5, "10 blocks behind"},
		"nine behind":                  {func(in *VoterInput) { in.Hosts[2].Height = ptr(in.Tip - 9) }, 6, ""},
		"height unknown":               {func(in *VoterInput) { in.Hosts[2].Height = nil }, 5, "height is not known"},
		"start unknown":                {func(in *VoterInput) { in.Hosts[2].StartedAt = nil }, 5, "last start is not known"},
		"restarted in this window":     {func(in *VoterInput) { in.Hosts[2].StartedAt = ptr(start.Add(-59 * time.Second)) }, 5, "restarted in window 101"},
		"restarted in the last window": {func(in *VoterInput) { in.Hosts[2].StartedAt = ptr(start.Add(-61 * time.Second)) }, 6, ""},
		"silent":                       {func(in *VoterInput) { unsign(in, third) }, 5, "neither signed"},
		"signed ten windows ago":       {func(in *VoterInput) { unsign(in, third); in.Signers[91] = []string{third} }, 6, ""},
		"signed eleven windows ago":    {func(in *VoterInput) { unsign(in, third); in.Signers[90] = []string{third} }, 5, "neither signed"},
		"participated in this window":  {func(in *VoterInput) { unsign(in, third); in.Hosts[2].Participated = []uint64{101} }, 6, ""},
		"participated in the last one": {func(in *VoterInput) { unsign(in, third); in.Hosts[2].Participated = []uint64{100} }, 6, ""},
		"participated before that":     {func(in *VoterInput) { unsign(in, third); in.Hosts[2].Participated = []uint64{99} }, 5, "neither signed"},
		// The union of many windows matters: a certificate lists only the first n-f.
		"left out of the newest certificate": {func(in *VoterInput) { unsign(in, third); in.Signers[99] = []string{third} }, 6, ""},
		"outside the inventory, signs":       {func(in *VoterInput) { in.Hosts = in.Hosts[:5] }, 6, ""},
		"outside the inventory, silent":      {func(in *VoterInput) { in.Hosts = in.Hosts[:5]; unsign(in, "genesis_node_006") }, 5, "no signature in the last 10"},
		// A host that is down has no readable id: its old signatures must not
		// let it pass for a member outside the inventory.
		"down host is no outside member": {func(in *VoterInput) { in.Hosts[2].NodeID, in.Hosts[2].Reachable = "", false }, 5, "may be the node of host 003"},
		"two nameless hosts": {func(in *VoterInput) {
			in.Hosts[2].NodeID, in.Hosts[2].Reachable = "", false
			in.Hosts[4].NodeID, in.Hosts[4].Reachable = "", false
		}, 4, "host 005"},
		"the host to be stopped is nameless": {func(in *VoterInput) { in.Hosts[2].NodeID, in.Without = "", "003" }, 5, "to be stopped"},
		"a host outside the committee": {func(in *VoterInput) {
			in.Hosts = append(in.Hosts, VoterReading{HostID: "007", NodeID: "super_node_x", Reachable: true})
			in.Without = "007"
		}, 6, ""},
		"two hosts claim one id":             {func(in *VoterInput) { in.Hosts[2].NodeID = "genesis_node_004" }, 4, "both claim"},
		"signers of nobody count for nobody": {func(in *VoterInput) { in.Signers[100] = append(in.Signers[100], "stranger") }, 6, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := CountVoters(hall(c.edit))
			if v.Count != c.count {
				t.Errorf("%d vote, want %d: %+v", v.Count, c.count, v.Counted)
			}
			if missing := strings.Join(v.Missing(), "; "); !strings.Contains(missing, c.say) {
				t.Errorf("missing %q does not say %q", missing, c.say)
			}
			if want := c.count >= 5; v.Enough() != want {
				t.Errorf("enough is %v with %d of 6", v.Enough(), v.Count)
			}
		})
	}
	if (Voters{}).Enough() {
		t.Error("an empty committee has a quorum")
	}
}

func TestParticipatedTakesBack(t *testing.T) {
	var lines []node.LogLine
	for _, raw := range []string{
		"[INFO][CONS] validator=true mb=7 participating active_lock=acquired",
		"[INFO][CONS] validator=true mb=8 participating active_lock=acquired",
		"[WARN][CONS] checkpoint_defer mb=8 reason=anchor_unsealed_frozen",
		"[INFO][CONS] validator=true mb=9 participating active_lock=acquired",
		"[WARN][CONS] window_end_abstain mb=9 eligible=6 committee=0 reason=underivable",
		"[INFO][CONS] validator=true mb=10 participating active_lock=acquired",
	} {
		lines = append(lines, node.ParseLine(raw))
	}
	if got := fmt.Sprint(participated(lines)); got != "[7 10]" {
		t.Errorf("participated %s", got)
	}
}

func TestHaltedAt(t *testing.T) {
	parse := func(raws ...string) (out []node.LogLine) {
		for _, r := range raws {
			out = append(out, node.ParseLine(r))
		}
		return out
	}
	reached := "[INFO][HALT] Reached halt_height=1000 current=1017 — flushing and stopping for coordinated upgrade"
	if h := haltedAt(parse("[INFO][NODE] bringup_complete", reached, "[INFO][HALT] storage.flush_all() complete")); h == nil || *h != 1000 {
		t.Errorf("halted at %v", h)
	}
	// With restart policy always the container starts again: the halt is history.
	if h := haltedAt(parse(reached, "[INFO][NODE] bringup_complete")); h != nil {
		t.Errorf("halted at %d in an earlier run", *h)
	}
	if h := haltedAt(parse("[INFO][HALT] QNET_HALT_HEIGHT=1000 — node will stop at this block (coordinated upgrade)")); h != nil {
		t.Error("armed is not halted")
	}
}

func TestNodeChecks(t *testing.T) {
	verdict := func(name string, edit func(*NodeView)) Verdict {
		n := good("001", 1, 2)
		edit(&n)
		for _, c := range NodeChecks(n) {
			if c.Name == name {
				if c.Reason == "" {
					t.Errorf("%s has no reason", name)
				}
				return c.Verdict
			}
		}
		t.Fatalf("no check %s", name)
		return ""
	}
	noContainer := func(n *NodeView) { n.Container = nil }
	noList := func(n *NodeView) { n.UpdatersKnown = false }
	for _, c := range []struct {
		name string
		edit func(*NodeView)
		want Verdict
	}{
		{CheckOneShot, func(*NodeView) {}, Pass},
		{CheckOneShot, func(n *NodeView) { n.Container.OneShot = []string{"QNET_CLEAN_DATA"} }, Fail},
		{CheckOneShot, noContainer, Unknown},
		{CheckSecondUpdater, func(*NodeView) {}, Pass},
		{CheckSecondUpdater, func(n *NodeView) { n.Updaters = []string{"watchtower"} }, Fail},
		{CheckSecondUpdater, noList, Unknown},
		{CheckClock, func(*NodeView) {}, Pass},
		{CheckClock, func(n *NodeView) { n.ClockOffset = ptr(-1001 * time.Millisecond) }, Fail},
		{CheckClock, func(n *NodeView) { n.ClockOffset = ptr(time.Second) }, Pass},
		{CheckClock, func(n *NodeView) { n.ClockDriftSecs = ptr(int64(-5)) }, Fail},
		{CheckClock, func(n *NodeView) { n.ClockOffset = nil }, Unknown},
		{CheckRestartPolicy, func(*NodeView) {}, Pass},
		{CheckRestartPolicy, func(n *NodeView) { n.Container.RestartPolicy = "no" }, Fail},
		{CheckRestartPolicy, func(n *NodeView) { n.Container.RestartPolicy = "on-failure" }, Fail},
		{CheckRestartPolicy, noContainer, Unknown},
		{CheckDisk, func(*NodeView) {}, Pass},
		{CheckDisk, func(n *NodeView) { n.Disk.FreeBytes = 4_999_999_999 }, Fail},
		{CheckDisk, func(n *NodeView) { n.Disk.FreeBytes = 5_000_000_000 }, Pass},
		{CheckDisk, func(n *NodeView) { n.Disk = nil }, Unknown},
		{CheckTLSTerminator, func(*NodeView) {}, Pass},
		{CheckTLSTerminator, func(n *NodeView) { n.TLSTerminators = []string{"qnet-tls (running)"} }, Pass},
		{CheckTLSTerminator, func(n *NodeView) { n.TLSTerminators = []string{"qnet-tls (exited)"} }, Fail},
		{CheckTLSTerminator, noList, Unknown},
		{CheckLogLevel, func(*NodeView) {}, Pass},
		{CheckLogLevel, func(n *NodeView) { n.LogLevel = ptr("2") }, Fail},
		{CheckLogLevel, func(n *NodeView) { n.LogLevel = ptr("3") }, Pass},
		{CheckLogLevel, func(n *NodeView) { n.LogLevel = ptr("?") }, Unknown},
		{CheckLogLevel, func(n *NodeView) { n.LogLevel = nil }, Unknown},
		{CheckLeftover, func(*NodeView) {}, Pass},
		{CheckLeftover, func(n *NodeView) { n.Leftovers = []string{"x-pre-1 (exited)"} }, Fail},
		{CheckLeftover, noList, Unknown},
	} {
		if got := verdict(c.name, c.edit); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	v := Judge(six(func(n []NodeView) { n[1].Disk = nil; n[2].Updaters = []string{"watchtower"} }))
	got := map[string]Check{}
	for _, c := range v.Checks {
		got[c.Name] = c
	}
	if c := got[CheckDisk]; c.Verdict != Unknown || !strings.HasPrefix(c.Reason, "002: ") || len(c.Evidence) != 6 {
		t.Errorf("disk: %+v", c)
	}
	if c := got[CheckSecondUpdater]; c.Verdict != Fail || c.Reason != "003: watchtower replaces containers outside any roll" {
		t.Errorf("second updater: %+v", c)
	}
}

func TestContainersOf(t *testing.T) {
	var n NodeView
	n.containersOf([]fleet.Container{
		{Name: "qnet-genesis-001", Image: "registry.example.org/qnet-production:abc", State: "running"},
		{Name: "qnet-genesis-001-pre-20260101T000000Z", Image: "x", State: "exited"},
		{Name: "qnet-genesis-0011", Image: "x", State: "running"},
		{Name: "wt", Image: "docker.io/containrrr/watchtower:latest", State: "running"},
		{Name: "old-wt", Image: "containrrr/watchtower@sha256:00", State: "exited"},
		{Name: "my-watchtower-2", Image: "sha256:aaaa", State: "restarting"},
		{Name: "qnet-tls", Image: "registry.example.org:5000/caddy:2", State: "running"},
	}, "qnet-genesis-001")
	if got := fmt.Sprint(n.Updaters, n.Leftovers, n.TLSTerminators, n.UpdatersKnown); got !=
		"[wt my-watchtower-2] [qnet-genesis-001-pre-20260101T000000Z (exited)] [qnet-tls (running)] true" {
		t.Error(got)
	}
}

func TestFold(t *testing.T) {
	v := Judge(six(func(n []NodeView) {
		n[1].Build = ptr("2222222")
		n[3].resample(970, 971)
		n[4].Samples = append([]Sample{}, n[4].Samples...)
		n[5].ValidatedPeers, n[5].ClockOffset = ptr(uint64(4)), ptr(-300*time.Millisecond)
	}))
	var got []string
	for _, g := range Fold(v) {
		got = append(got, fmt.Sprintf("%v odd=%v height=%s peers=%s", g.IDs, g.Odd, g.Height, g.ValidatedPeers))
	}
	want := []string{
		"[002] odd=true height=1001 peers=5",
		"[004] odd=true height=971 peers=5",
		"[001 003 005 006] odd=false height=1001 peers=4-5",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if off := Fold(v)[2].ClockOffset; off == nil || *off != -300*time.Millisecond {
		t.Errorf("clock offset %v", off)
	}
	if g := Fold(View{}); len(g) != 0 {
		t.Errorf("an empty view folds to %v", g)
	}
	if s := (Range{}).String(); s != "?" {
		t.Errorf("an empty range prints %q", s)
	}
}

// TestOdd: who differs from most others is named with the difference, also where each is healthy by itself; where there is no
// largest group, nobody is odd.
func TestOdd(t *testing.T) {
	v := Judge(six(func(n []NodeView) {
		n[1].Build = ptr("2222222")
		n[3].Container.RestartCount = ptr(3)
		n[4] = NodeView{ID: "005", Role: "genesis", Err: fmt.Errorf("no route to host")}
	}))
	var got []string
	for _, o := range Odd(v) {
		got = append(got, fmt.Sprintf("%v %s", o.IDs, strings.Join(o.Differences, "; ")))
	}
	slices.Sort(got)
	want := []string{
		"[002] build 2222222, the others " + *v.Nodes[0].Build,
		"[004] restarts 3, the others 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	half := Judge(six(func(n []NodeView) {
		for i := range 3 {
			n[i].Build = ptr("2222222")
		}
	}))
	if odd := Odd(half); len(odd) != 0 {
		t.Errorf("three against three: %+v", odd)
	}
}

// TestDocument holds the fields that others rely on, and that unknown is null.
func TestDocument(t *testing.T) {
	v := six(func(n []NodeView) {
		n[0].Container.StartedAt = ptr(start.In(time.FixedZone("x", 3600)))
		n[0].ClockOffset = ptr(-1500 * time.Millisecond)
		n[0].TimeoutRound, n[0].Finalized, n[0].TipHash = ptr(uint64(0)), ptr(uint64(900)), tipAt(1001)
		n[1] = NodeView{ID: "002", Role: "genesis", Err: fmt.Errorf("no route to host")}
	})
	b, err := json.Marshal(Judge(v).Document())
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Schema string
		Fleet  map[string]any
		Nodes  []map[string]any
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.Schema != "qnetops/status/v1" || d.Fleet["verdict"] != "unknown" || len(d.Fleet["reasons"].([]any)) != 1 {
		t.Errorf("%s %v", d.Schema, d.Fleet)
	}
	n := d.Nodes[0]
	for key, want := range map[string]any{
		"id": "001", "reachable": true, "build": "1111111", "height": 1001.0, "behind": 0.0, "last_sealed": 10.0, "sealed_lag": 1.0,
		"finalized": 900.0, "validated_peers": 5.0, "timeout_round": 0.0, "clock_offset_seconds": -1.5, "verdict": "healthy",
		"tip_hash": tipAt(1001).String(),
	} {
		if n[key] != want {
			t.Errorf("%s = %v, want %v", key, n[key], want)
		}
	}
	container := n["container"].(map[string]any)
	for key, want := range map[string]any{"name": "qnet-genesis-001", "image": "", "digest": nil, "state": "running", "started_at": "2026-07-05T10:00:00Z", "restart_count": 0.0} {
		if got, ok := container[key]; !ok || got != want {
			t.Errorf("container.%s = %v (%v), want %v", key, got, ok, want)
		}
	}
	for _, key := range []string{"container", "build", "height", "behind", "tip_hash", "last_sealed", "sealed_lag", "finalized", "validated_peers", "timeout_round", "clock_offset_seconds", "second_updaters"} {
		if got, ok := d.Nodes[1][key]; !ok || got != nil {
			t.Errorf("unknown %s = %v (present %v), want null", key, got, ok)
		}
	}
	if r, ok := d.Nodes[0]["reasons"].([]any); !ok || len(r) != 0 {
		t.Errorf("reasons %v, want an empty list", d.Nodes[0]["reasons"])
	}
}
