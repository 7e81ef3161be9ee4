package restart_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/restart"
)

// chainTime is a time on the chain of entry, whose macroblock i was sealed i*90 seconds after 1970.
func chainTime(macroblock uint64, later time.Duration) time.Time {
	return time.Unix(int64(macroblock)*90, 0).Add(later)
}

// fleetAt is fleet3 read three hours after its macroblock 20 was sealed.
func fleetAt() restart.Merged {
	m := fleet3()
	for i := range m.Operators {
		m.Operators[i].Evidence.TakenAt = chainTime(20, 3*time.Hour)
	}
	return m
}

// earlier is an operator's evidence of an earlier stall, after macroblock 12.
func earlier(m restart.Merged, op int, taken time.Time) {
	for j := range m.Operators[op].Evidence.Hosts {
		*hostOf(m, op, j) = honest(hostOf(m, op, j).ID, 1, 12)
	}
	m.Operators[op] = operator(m.Operators[op].Evidence.Operator, m.Operators[op].Evidence.Hosts...)
	m.Operators[op].Evidence.TakenAt = taken
}

// Evidence of an earlier stall, genuine as its signature is, must not make K older.
func TestProposeRefusesEvidenceOfAnEarlierStall(t *testing.T) {
	old := chainTime(12, 40*time.Second)
	for _, c := range []struct {
		name    string
		change  func(m *restart.Merged)
		options restart.ProposeOptions
		k       uint64
		stop    string
	}{
		{name: "all of one time", change: func(*restart.Merged) {}, k: 20},
		{name: "replayed", change: func(m *restart.Merged) { earlier(*m, 1, old) }, stop: "the evidence of bob was taken at"},
		{name: "replayed, and waived", change: func(m *restart.Merged) { earlier(*m, 1, old) }, k: 20,
			options: restart.ProposeOptions{Absent: []restart.Absent{{Operator: "bob", Reason: "away"}}}},
		{name: "his nodes lag, and he read them now", change: func(m *restart.Merged) { earlier(*m, 1, chainTime(20, time.Hour)) }, k: 12},
		{name: "taken some minutes before the last seal", change: func(m *restart.Merged) { earlier(*m, 1, chainTime(20, -4*time.Minute)) }, k: 12},
		{name: "what was sealed since could not be K", change: func(m *restart.Merged) { earlier(*m, 1, old) }, k: 11, options: restart.ProposeOptions{Forged: 12}},
		{name: "bounded above it", change: func(m *restart.Merged) { earlier(*m, 1, old) }, stop: "before macroblock 18 was sealed", options: restart.ProposeOptions{Below: 19}},
		{name: "his clock is behind, and he shows the newest", change: func(m *restart.Merged) { m.Operators[1].Evidence.TakenAt = old }, k: 20},
		{name: "the others only have seals that are later than their own evidence", change: func(m *restart.Merged) {
			earlier(*m, 1, old)
			m.Operators[0].Evidence.TakenAt, m.Operators[2].Evidence.TakenAt = old, old
		}, k: 12},
		{name: "a seal that counts nowhere", change: func(m *restart.Merged) {
			earlier(*m, 1, old)
			for _, op := range []int{0, 2} {
				for j := range m.Operators[op].Evidence.Hosts {
					for i := range hostOf(*m, op, j).Macroblocks {
						if mb := &hostOf(*m, op, j).Macroblocks[i]; mb.Index > 12 {
							mb.Proof.Fault = "quorum"
						}
					}
				}
			}
		}, k: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fleetAt()
			c.change(&m)
			p := propose(t, m, c.options)
			if c.stop == "" {
				wantK(t, p, c.k)
				return
			}
			if wantNone(t, p, c.stop); p.StopCode != restart.StopStale || !strings.Contains(p.Stop, "alice/001 shows it") {
				t.Errorf("%s: %s", p.StopCode, p.Stop)
			}
		})
	}
}

// A supplement of one host makes the whole of an operator's evidence as new as that reading: his other hosts need not hold K.
func TestProposeTakesTheNewestReading(t *testing.T) {
	m := fleetAt()
	*hostOf(m, 1, 1) = honest("004", 1, 12)
	hostOf(m, 1, 1).NodeID = "node_bob004"
	m.Operators[1].ReadAt = map[string]time.Time{"003": chainTime(20, time.Hour), "004": chainTime(12, time.Minute)}
	wantK(t, propose(t, m, restart.ProposeOptions{}), 20)
}

// Whoever replays an older file of one operator never gets an older K: there is none, or the same.
func TestReplayNeverMakesKOlder(t *testing.T) {
	stopped := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := fleetAt()
		at, last := r.IntN(3), 2+r.Uint64N(18)
		for j := range m.Operators[at].Evidence.Hosts {
			*hostOf(m, at, j) = honest(hostOf(m, at, j).ID, 1, last)
		}
		name := m.Operators[at].Evidence.Operator
		m.Operators[at] = operator(name, m.Operators[at].Evidence.Hosts...)
		m.Operators[at].Evidence.TakenAt = chainTime(last, time.Duration(r.IntN(90))*time.Second)
		p := propose(t, m, restart.ProposeOptions{})
		switch fresh := chainTime(20, 0).Sub(m.Operators[at].Evidence.TakenAt) <= 5*time.Minute; {
		case p.K == nil && p.StopCode == restart.StopStale:
			stopped++
		case p.K == nil || *p.K < last && *p.K < 20 || *p.K < 20 && !fresh:
			t.Fatalf("seed %d: %s with %d of 20 gives %v: %s", seed, name, last, p.K, p.Stop)
		}
	}
	if stopped < 100 {
		t.Errorf("too tame: %d", stopped)
	}
}
