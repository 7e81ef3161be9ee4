package rolling

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

// The tests use a block time of one second, as the real chain has.
var started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func want() Expectation {
	return Expectation{Block: time.Second, ContainerID: "new", StartedAt: started, Build: "2222222",
		NodeID: "genesis_node_001", StartHeight: 1000}
}

// good is a sighting of a node in order, seconds after its start.
func good(after int, height uint64) Sighting {
	running, zero := true, 0
	return Sighting{At: started.Add(time.Duration(after) * time.Second), Running: &running, ContainerID: "new",
		RestartCount: &zero, StartedAt: started, State: "running",
		Health:      &node.Healthz{Height: height, Build: "2222222"},
		Position:    &node.Position{Height: height},
		Status:      &node.NodeHealth{ValidatedPeers: 4},
		FleetHeight: &height,
	}
}

func lines(raw ...string) []node.LogLine {
	var out []node.LogLine
	for _, r := range raw {
		out = append(out, node.ParseLine(r))
	}
	return out
}

func committee(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("genesis_node_%03d", i+1))
	}
	return out
}

func verdict(r *Reentry, name string) Milestone {
	for _, m := range r.Milestones() {
		if m.Name == name {
			return m
		}
	}
	return Milestone{}
}

func expect(t *testing.T, r *Reentry, name, verdictWanted string) {
	t.Helper()
	if got := verdict(r, name); got.Verdict != verdictWanted {
		t.Fatalf("%s is %s (%s), want %s", name, got.Verdict, got.Reason, verdictWanted)
	}
}

func TestReentryOfAGoodNode(t *testing.T) {
	r := NewReentry(want())
	s := good(10, 1010)
	s.Lines = lines("[INFO][NODE] bringup_complete")
	r.Feed(s)
	expect(t, r, "M1", "pass")
	expect(t, r, "M2", "pass")
	expect(t, r, "M3", "unknown")
	// Window of height 1000 is 12; the first above it is 13.
	s = good(100, 1100)
	s.Lines = lines("[INFO][CONS] validator=true mb=13 participating active_lock=acquired")
	r.Feed(s)
	expect(t, r, "M3", "unknown")
	s = good(139, 1139)
	s.Seals = []SealSighting{{Index: 13, Committee: committee(6), Signers: committee(5)}}
	r.Feed(s)
	expect(t, r, "M0", "unknown") // 129 s after bring-up
	expect(t, r, "M3", "pass")
	r.Feed(good(140, 1140))
	expect(t, r, "M0", "pass")
	r.Feed(good(168, 1168))
	expect(t, r, "M4", "unknown") // 29 blocks since M3 passed at 1139
	r.Feed(good(169, 1169))
	expect(t, r, "M4", "pass")
	if !r.Passed() {
		t.Fatal("all milestones passed, but the re-entry is not done")
	}
}

func TestM0(t *testing.T) {
	t.Run("the boot contract kills the process 120 s after a good healthz", func(t *testing.T) {
		r := NewReentry(want())
		s := good(10, 1010)
		s.Lines = lines("[INFO][NODE] bringup_complete")
		r.Feed(s)
		one := 1
		s = good(131, 1131)
		s.RestartCount, s.ExitCode = &one, 1
		r.Feed(s)
		expect(t, r, "M0", "fail")
	})
	t.Run("a restart after the soak still fails it", func(t *testing.T) {
		r := NewReentry(want())
		s := good(10, 1010)
		s.Lines = lines("[INFO][NODE] bringup_complete")
		r.Feed(s)
		r.Feed(good(140, 1140))
		expect(t, r, "M0", "pass")
		one := 1
		s = good(150, 1150)
		s.RestartCount = &one
		r.Feed(s)
		expect(t, r, "M0", "fail")
	})
	t.Run("a process that ended", func(t *testing.T) {
		r := NewReentry(want())
		stopped := false
		s := good(5, 1005)
		s.Running, s.State, s.ExitCode = &stopped, "exited", 137
		r.Feed(s)
		expect(t, r, "M0", "fail")
		if !strings.Contains(verdict(r, "M0").Reason, "137") {
			t.Errorf("the exit code is not named: %s", verdict(r, "M0").Reason)
		}
	})
	t.Run("without a bring-up line 330 s after the start", func(t *testing.T) {
		r := NewReentry(want())
		r.Feed(good(329, 1329))
		expect(t, r, "M0", "unknown")
		r.Feed(good(330, 1330))
		expect(t, r, "M0", "pass")
	})
	t.Run("an engine that does not answer proves nothing", func(t *testing.T) {
		r := NewReentry(want())
		s := good(400, 1400)
		s.Running, s.RestartCount, s.ContainerID = nil, nil, ""
		r.Feed(s)
		expect(t, r, "M0", "unknown")
	})
}

func TestM1(t *testing.T) {
	lie := func(after int) Sighting {
		s := good(after, 1010)
		s.Health = &node.Healthz{Height: 1010, Build: "1111111"}
		return s
	}
	t.Run("the old build is reported", func(t *testing.T) {
		r := NewReentry(want())
		r.Feed(lie(10))
		r.Feed(lie(11))
		expect(t, r, "M1", "unknown")
		r.Feed(lie(12))
		expect(t, r, "M1", "fail")
	})
	t.Run("no build at all is unknown until the deadline", func(t *testing.T) {
		r := NewReentry(want())
		s := good(10, 1010)
		s.Health = &node.Healthz{Height: 1010}
		r.Feed(s)
		expect(t, r, "M1", "unknown")
		s = good(249, 1249)
		s.Health = nil
		r.Feed(s)
		expect(t, r, "M1", "unknown")
		s = good(250, 1250) // 240 s after somebody first looked
		s.Health = nil
		r.Feed(s)
		expect(t, r, "M1", "fail")
	})
	t.Run("an unstamped image never passes by itself", func(t *testing.T) {
		w := want()
		w.Build = ""
		r := NewReentry(w)
		r.Feed(good(10, 1010))
		expect(t, r, "M1", "unknown")
		w.WaiveBuild = "old image"
		r = NewReentry(w)
		r.Feed(good(10, 1010))
		expect(t, r, "M1", "skipped")
	})
}

func TestM2(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Sighting)
		verdict string
	}{
		{"nine behind", func(s *Sighting) { h := uint64(1019); s.FleetHeight = &h }, "pass"},
		{"ten behind", func(s *Sighting) { h := uint64(1020); s.FleetHeight = &h }, "unknown"},
		{"no peer, whatever its own word for the network", func(s *Sighting) {
			s.Status = &node.NodeHealth{ValidatedPeers: 0, NetworkHeight: 1010, Status: "healthy", SyncStatus: "bootstrap"}
		}, "unknown"},
		{"no other node answers", func(s *Sighting) { s.FleetHeight = nil }, "unknown"},
		{"health cannot be read", func(s *Sighting) { s.Status = nil }, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReentry(want())
			s := good(10, 1010)
			c.change(&s)
			r.Feed(s)
			expect(t, r, "M2", c.verdict)
		})
	}
	t.Run("never within 600 s", func(t *testing.T) {
		r := NewReentry(want())
		s := good(10, 1010)
		s.Status = nil
		r.Feed(s)
		s = good(610, 1610)
		s.Status = nil
		r.Feed(s)
		expect(t, r, "M2", "fail")
	})
}

func TestM3(t *testing.T) {
	full := []SealSighting{{Index: 13, Committee: committee(6), Signers: committee(5)}}
	part := "[INFO][CONS] validator=true mb=13 participating active_lock=acquired"
	others := []string{"genesis_node_002", "genesis_node_003", "genesis_node_004", "genesis_node_005", "genesis_node_006"}
	for _, c := range []struct {
		name    string
		lines   []string
		seals   []SealSighting
		hidden  bool
		verdict string
	}{
		{"participation and a full seal", []string{part}, full, false, "pass"},
		{"a later full seal will do", []string{part}, []SealSighting{{Index: 14, Committee: committee(6), Signers: others}}, false, "pass"},
		{"a seal below quorum", []string{part}, []SealSighting{{Index: 13, Committee: committee(6), Signers: committee(4)}}, false, "unknown"},
		{"a name twice is one vote", []string{part}, []SealSighting{{Index: 13, Committee: committee(6), Signers: append(committee(4), "genesis_node_004")}}, false, "unknown"},
		{"strangers are no votes", []string{part}, []SealSighting{{Index: 13, Committee: committee(6), Signers: append(committee(4), "stranger")}}, false, "unknown"},
		{"an empty committee has no quorum", []string{part}, []SealSighting{{Index: 13, Signers: committee(5)}}, false, "unknown"},
		{"participation in the window of the restart", []string{strings.Replace(part, "mb=13", "mb=12", 1)}, []SealSighting{{Index: 13, Committee: committee(6), Signers: others}}, false, "unknown"},
		{"participated, then abstained", []string{part, "[WARN][CONS] window_end_abstain mb=13 eligible=6 committee=6 reason=underivable"}, []SealSighting{{Index: 13, Committee: committee(6), Signers: others}}, false, "unknown"},
		{"participated, then deferred", []string{part, "[WARN][CONS] checkpoint_defer mb=13 reason=anchor_unsealed_frozen"}, []SealSighting{{Index: 13, Committee: committee(6), Signers: others}}, false, "unknown"},
		{"own id among the signers needs no line", nil, full, false, "pass"},
		{"at log level 2 only signers count", []string{part}, []SealSighting{{Index: 13, Committee: committee(6), Signers: others}}, true, "unknown"},
		{"a seal alone proves nothing about this node", nil, []SealSighting{{Index: 13, Committee: committee(6), Signers: others}}, false, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := want()
			w.LinesHidden = c.hidden
			r := NewReentry(w)
			s := good(100, 1100)
			s.Lines, s.Seals = lines(c.lines...), c.seals
			r.Feed(s)
			expect(t, r, "M3", c.verdict)
		})
	}
}

func TestM4StartsAgainAfterAFailover(t *testing.T) {
	r := NewReentry(want())
	s := good(100, 1100)
	s.Seals = []SealSighting{{Index: 13, Committee: committee(6), Signers: committee(5)}}
	r.Feed(s)
	expect(t, r, "M3", "pass")
	s = good(120, 1120)
	s.Status = &node.NodeHealth{ValidatedPeers: 4, FailoverCount: 1}
	r.Feed(s)
	late := func(after int, height uint64) Sighting {
		s := good(after, height)
		s.Status = &node.NodeHealth{ValidatedPeers: 4, FailoverCount: 1}
		return s
	}
	r.Feed(late(149, 1149))
	expect(t, r, "M4", "unknown")
	r.Feed(late(150, 1150))
	expect(t, r, "M4", "pass")
}

func TestRecoveryHaltedSkipsOnlyFinalityAndProduction(t *testing.T) {
	w := want()
	w.Halted = true
	r := NewReentry(w)
	s := good(10, 1000)
	s.Lines = lines("[INFO][NODE] bringup_complete")
	r.Feed(s)
	for name, v := range map[string]string{"M0": "unknown", "M1": "pass", "M2": "pass", "M3": "skipped", "M4": "skipped"} {
		expect(t, r, name, v)
	}
	if r.Done() {
		t.Error("M0 must still be waited for")
	}
}

// On a lab chain of 20 ms blocks 240 block times are 4.8 s, less than a busy
// machine may take to answer: a deadline is never under ten real seconds.
func TestDeadlinesAreNeverUnderTenSeconds(t *testing.T) {
	w := want()
	w.Block = 20 * time.Millisecond
	r := NewReentry(w)
	s := good(0, 1010)
	s.Health = nil
	r.Feed(s)
	s = good(9, 1010)
	s.Health = nil
	r.Feed(s)
	expect(t, r, "M1", "unknown")
	s = good(10, 1010)
	s.Health = nil
	r.Feed(s)
	expect(t, r, "M1", "fail")
}

// While the operator himself is cut off no deadline runs, but not for ever; a node that alone is silent has no such grace.
func TestDeadlinesStandStillWhileNothingIsSeen(t *testing.T) {
	at := func(seconds int) time.Time { return good(seconds, 1010).At }
	r := NewReentry(want())
	silent := good(0, 1010)
	silent.Health = nil
	r.Feed(silent)
	for s := 1; s <= 1800; s += 10 { // half an hour of nothing, then 239 s of a silent node
		r.Feed(Sighting{At: at(s)})
	}
	expect(t, r, "M1", "unknown")
	last := 1791
	for _, s := range []int{1, 120, 239} {
		silent = good(last+s, 1010)
		silent.Health = nil
		r.Feed(silent)
		expect(t, r, "M1", "unknown")
	}
	silent = good(last+241, 1010)
	silent.Health = nil
	r.Feed(silent)
	expect(t, r, "M1", "fail")

	r = NewReentry(want())
	first := good(0, 1010)
	first.Health = nil
	r.Feed(first)
	for s := 1; s <= 1800+239; s++ {
		r.Feed(Sighting{At: at(s)})
	}
	expect(t, r, "M1", "unknown")
	r.Feed(Sighting{At: at(1800 + 241)})
	expect(t, r, "M1", "fail")
}

// A resume hours after the start looks for the first time: one answer that does
// not come must not put a good node back.
func TestResumeDoesNotFailM1OverOneMissedReading(t *testing.T) {
	r := NewReentry(want())
	s := good(7200, 8200)
	s.Health = nil
	r.Feed(s)
	expect(t, r, "M1", "unknown")
	r.Feed(good(7201, 8201))
	expect(t, r, "M1", "pass")
}
