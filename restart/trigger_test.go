package restart

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/observe"
)

var stalledAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// sealedHost is a host whose newest seal, of macroblock 500, was made at a time.
func sealedHost(id string, at time.Time, lines ...Line) HostFinding {
	sealed, stamp := uint64(500), uint64(at.Unix())
	return HostFinding{ID: id, Reachable: true, Sealed: &sealed, Lines: lines,
		Macroblocks: []Macroblock{{Index: 499, Held: HeldYes}, {Index: 500, Held: HeldYes, Timestamp: &stamp}}}
}

func logged(at time.Time, text string) Line { return Line{At: &at, Text: text} }

func rolledBack(at time.Time) Line {
	return logged(at, "[INFO][ROLLBACK] truncated_to=45000 dropped=417 — remove the env var before the next start")
}

func operatorWith(name string, taken time.Time, hosts ...HostFinding) OperatorEvidence {
	return OperatorEvidence{Evidence: Evidence{Operator: name, TakenAt: taken, Hosts: hosts}}
}

// stalled is two operators whose chain stalled at stalledAt, of whom both rolled back an hour later, after so much time.
func stalled(after time.Duration) Merged {
	taken := stalledAt.Add(after)
	return Merged{Expected: []string{"ann", "bob"}, Operators: []OperatorEvidence{
		operatorWith("ann", taken, sealedHost("001", stalledAt, rolledBack(stalledAt.Add(time.Hour))), sealedHost("002", stalledAt)),
		operatorWith("bob", taken, sealedHost("003", stalledAt.Add(-5*time.Second), rolledBack(stalledAt.Add(time.Hour)))),
	}}
}

func TestTrigger(t *testing.T) {
	const h = time.Hour
	at := func(d time.Duration) time.Time { return stalledAt.Add(d) }
	host := func(m *Merged, op, i int) *HostFinding { return &m.Operators[op].Evidence.Hosts[i] }
	for _, c := range []struct {
		name   string
		after  time.Duration
		change func(*Merged, *TriggerInput)
		want   observe.Verdict
		reason string // in the reasons, when it does not pass
	}{
		{"two hours and a second", 2*h + time.Second, nil, observe.Pass, ""},
		{"exactly two hours", 2 * h, nil, observe.Fail, "not more than 2h0m0s"},
		{"shorter blocks, shorter wait", h + 20*time.Second, func(_ *Merged, in *TriggerInput) { in.Block = 100 * time.Millisecond }, observe.Pass, ""},
		{"longer blocks, longer wait", 3 * h, func(_ *Merged, in *TriggerInput) { in.Block = 2 * time.Second }, observe.Fail, "not more than 4h0m0s"},
		{"one host seals on", 3 * h, func(m *Merged, _ *TriggerInput) { *host(m, 0, 1) = sealedHost("002", at(2*h)) }, observe.Fail, "ann/002"},
		{"a seal from the future", 3 * h, func(m *Merged, _ *TriggerInput) { *host(m, 1, 0) = sealedHost("003", at(4*h)) }, observe.Fail, "after the evidence was taken"},
		{"a stamp beyond all calendars", 3 * h, func(m *Merged, _ *TriggerInput) { *host(m, 1, 0).Macroblocks[1].Timestamp = 1<<64 - 1 }, observe.Fail, "after the evidence was taken"},
		{"a host is down", 3 * h, func(m *Merged, _ *TriggerInput) {
			*host(m, 0, 1) = HostFinding{ID: "002", Reason: "no route to host"}
		}, observe.Pass, ""},
		{"a node is down, and its log can be read", 3 * h, func(m *Merged, _ *TriggerInput) {
			*host(m, 0, 1) = HostFinding{ID: "002", Reachable: true, Reason: "connection refused", Lines: []Line{logged(at(-h), "[INFO][BOOT] up")}}
		}, observe.Pass, ""},
		{"the only node of an operator is down, and its log can be read", 3 * h, func(m *Merged, _ *TriggerInput) {
			*host(m, 1, 0) = HostFinding{ID: "003", Reachable: true, Reason: "connection refused", Lines: []Line{rolledBack(at(h))}}
		}, observe.Unknown, "no host of bob could be reached"},
		{"all hosts of one operator are down", 3 * h, func(m *Merged, _ *TriggerInput) { *host(m, 1, 0) = HostFinding{ID: "003"} }, observe.Unknown, "no host of bob could be reached"},
		{"a node answers and its seal is unknown", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 0, 1).Sealed = nil }, observe.Unknown, "ann/002"},
		{"its newest macroblock cannot be read", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 0, 1).Macroblocks[1].Held = HeldUnknown }, observe.Unknown, "last sealed macroblock 500 is not known"},
		{"it shows one above what it says is its last", 3 * h, func(m *Merged, _ *TriggerInput) {
			stamp := uint64(at(2 * h).Unix())
			host(m, 0, 1).Macroblocks = append(host(m, 0, 1).Macroblocks, Macroblock{Index: 501, Held: HeldYes, Timestamp: &stamp})
		}, observe.Fail, "macroblock 501"},
		{"an operator gave nothing", 3 * h, func(m *Merged, _ *TriggerInput) { m.Expected = append(m.Expected, "eve") }, observe.Unknown, "no evidence of eve"},
		{"and is named absent", 3 * h, func(m *Merged, in *TriggerInput) {
			m.Expected = append(m.Expected, "eve")
			in.Absent = []Absent{{"eve", "machine lost"}}
		}, observe.Pass, ""},
		{"no evidence at all", 3 * h, func(m *Merged, _ *TriggerInput) { *m = Merged{} }, observe.Unknown, "there is no evidence"},
		{"one operator did not roll back", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 1, 0).Lines = nil }, observe.Unknown, "bob/003: no line of a rollback"},
		{"it is stated useless", 3 * h, func(m *Merged, in *TriggerInput) {
			host(m, 1, 0).Lines = nil
			in.RollbackUseless = "the last sealed macroblock is bad itself"
		}, observe.Pass, ""},
		{"stated useless, and finality is not flat", h, func(_ *Merged, in *TriggerInput) { in.RollbackUseless = "no use" }, observe.Fail, "finality_flat"},
		{"a rollback of an older stall", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 1, 0).Lines = []Line{rolledBack(at(-h))} }, observe.Unknown, "not of this stall"},
		{"a rollback just now", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 1, 0).Lines = []Line{rolledBack(at(3*h - 179*time.Second))} }, observe.Unknown, "whether it helped is known 3m0s after it"},
		{"a rollback long enough ago", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 1, 0).Lines = []Line{rolledBack(at(3*h - 180*time.Second))} }, observe.Pass, ""},
		{"a rollback at an unknown time", 3 * h, func(m *Merged, _ *TriggerInput) { host(m, 1, 0).Lines[0].At = nil }, observe.Unknown, "at an unknown time"},
		{"a supplement of one host makes the other's reading no newer", 3 * h, func(m *Merged, _ *TriggerInput) {
			m.Operators[0].ReadAt = map[string]time.Time{"001": at(3 * h), "002": at(10 * time.Minute)}
		}, observe.Fail, "ann/002: macroblock 500 sealed 2026-03-01T12:00:00Z, 10m0s before the evidence"},
		{"a rollback whose host was read right after it", 3 * h, func(m *Merged, _ *TriggerInput) {
			m.Operators[1].ReadAt = map[string]time.Time{"003": at(2*h + time.Minute)}
			host(m, 1, 0).Lines = []Line{rolledBack(at(2 * h))}
		}, observe.Unknown, "whether it helped is known 3m0s after it"},
		{"forged, and nobody has sealed it", 0, func(_ *Merged, in *TriggerInput) { in.Forged = 501 }, observe.Fail, "no host has sealed macroblock 501"},
		{"forged, and shown by one", 0, func(_ *Merged, in *TriggerInput) { in.Forged = 500 }, observe.Pass, ""},
		{"forged, K below", 0, func(_ *Merged, in *TriggerInput) { in.Forged = 496 }, observe.Pass, ""},
		{"forged, K is it", 3 * h, func(_ *Merged, in *TriggerInput) { in.Forged = 495 }, observe.Fail, "not below the first forged macroblock 495"},
		{"forged, K above", 3 * h, func(_ *Merged, in *TriggerInput) { in.Forged = 2 }, observe.Fail, "keep the forged state"},
	} {
		m, in := stalled(c.after), TriggerInput{K: 495, Block: time.Second}
		if c.change != nil {
			c.change(&m, &in)
		}
		got := CheckTrigger(m, in)
		if got.Verdict != c.want || !strings.Contains(strings.Join(got.Reasons(), "\n"), c.reason) || (c.want == observe.Pass) != (len(got.Reasons()) == 0) {
			t.Errorf("%s: %s, want %s with %q: %q", c.name, got.Verdict, c.want, c.reason, got.Reasons())
		}
		if got.Holds() != (c.want == observe.Pass) {
			t.Errorf("%s: holds %v", c.name, got.Holds())
		}
		if in.Waived = "the council decided"; !CheckTrigger(m, in).Holds() || CheckTrigger(m, in).Verdict != c.want {
			t.Errorf("%s: a waiver lets it hold and does not change the verdict", c.name)
		}
	}
}

// Every line of facts 4.6 that tells of a rollback counts for what it is, and the ones beside it do not.
func TestRollbackLines(t *testing.T) {
	for text, want := range map[string]observe.Verdict{
		"[INFO][ROLLBACK] truncated_to=3213540 dropped=417 ***":                                                                observe.Pass, // as evidence holds it
		"[INFO][ROLLBACK] truncated_to=3213540 dropped=417 — remove the env var before the next start":                         observe.Pass,
		"[ERR][ROLLBACK] refused target=90 certified_floor=180 reason=certified_checkpoint_irrevocable action=start_unchanged": observe.Pass,
		"[ERR][ROLLBACK] no_certified_point_found action=start_unchanged":                                                      observe.Pass,
		"[INFO][ROLLBACK] already_at_or_below target=90":                                                                       observe.Pass,
		"[ERR][ROLLBACK] failed target=90 err=io action=start_unchanged":                                                       observe.Fail,
		"[WARN][ROLLBACK] signed_mark_lowered from_h=9 from_w=1 to_h=8 to_w=1 reason=blocks_abandoned":                         "",
		"[WARN][ROLLBACK] delete_fail h=9":                                                                                     "",
		"[INFO][HALT] storage.flush_all() complete":                                                                            "",
		"someone wrote truncated_to=1 dropped=2 into a chat":                                                                   "",
		"[INFO][NODE] truncated_to=1 dropped=2":                                                                                "",
		"[ERR][ROLLBACK] refused target=x certified_floor=180":                                                                 "",
	} {
		if _, got := rollbackLine(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Whatever one host says, it can only turn a trigger that holds into one that does not, never the other way: all others still
// decide.
func TestOneHostCannotTrigger(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range 500 {
		after := time.Duration(r.IntN(4*3600)) * time.Second
		m := stalled(after)
		honest := CheckTrigger(m, TriggerInput{K: 495, Block: time.Second})
		lie := &m.Operators[0].Evidence.Hosts[1]
		*lie = sealedHost("002", stalledAt.Add(time.Duration(r.IntN(8*3600)-4*3600)*time.Second), rolledBack(stalledAt.Add(time.Hour)))
		if r.IntN(3) == 0 {
			lie.Sealed = nil
		}
		if got := CheckTrigger(m, TriggerInput{K: 495, Block: time.Second}); got.Verdict == observe.Pass && honest.Verdict != observe.Pass {
			t.Fatalf("seed %d, round %d: %s after %s, honest %s: %v", seed, i, got.Verdict, after, honest.Verdict, fmt.Sprint(*lie))
		}
	}
}
