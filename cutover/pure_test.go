package cutover

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

func height(h uint64) *uint64 { return &h }

// TestJudgeHalt: what is to be done with one host, in every state it may be found in.
func TestJudgeHalt(t *testing.T) {
	const h = 1000
	run := sight{Reached: true, Container: "a", State: "running", Policy: "on-failure", Height: height(900)}
	with := func(s sight, change func(*sight)) sight { change(&s); return s }
	stop := &Stop{Container: "a", Armed: h, Height: 1012, Flushed: true}
	halted := sight{Reached: true, Container: "a", State: "exited", Policy: "no", Stop: stop}
	for name, c := range map[string]struct {
		s      sight
		known  *Stop
		others bool
		state  State
		act    act
		says   string
	}{
		"on its way":            {run, nil, true, Waiting, actNone, "100 blocks left"},
		"at the height":         {with(run, func(s *sight) { s.Height = height(1001) }), nil, true, Waiting, actNone, "next poll"},
		"height unknown":        {with(run, func(s *sight) { s.Height = nil }), nil, true, Waiting, actNone, "not known"},
		"not reached":           {sight{Why: "no route"}, nil, true, Missing, actNone, "no route"},
		"not reached, stopped":  {sight{Why: "no route"}, stop, true, Missing, actNone, "no route"},
		"policy always":         {with(run, func(s *sight) { s.Policy = "always" }), nil, true, Waiting, actArm, "always"},
		"crashing":              {with(run, func(s *sight) { s.State, s.ExitCode = "restarting", 1 }), nil, true, Waiting, actNone, "exit code 1"},
		"halted, policy armed":  {with(halted, func(s *sight) { s.Policy = "on-failure" }), nil, true, Waiting, actNo, "on-failure"},
		"halted for good":       {halted, nil, true, Finished, actNone, "1012"},
		"halted, known":         {halted, stop, false, Finished, actNone, "1012"},
		"came back":             {run, stop, true, Waiting, actStop, "came back"},
		"came back, always":     {with(run, func(s *sight) { s.Policy = "always" }), stop, true, Waiting, actStop, "came back"},
		"stopped again, armed":  {with(halted, func(s *sight) { s.Stop, s.Policy = nil, "on-failure" }), stop, false, Waiting, actNo, "on-failure"},
		"stopped again":         {with(halted, func(s *sight) { s.Stop = nil }), stop, false, Finished, actNone, "may stand higher"},
		"no flush line":         {with(halted, func(s *sight) { s.Stop = &Stop{Height: 1012} }), nil, true, Failed, actNone, "flushed"},
		"no flush, armed":       {with(halted, func(s *sight) { s.Stop, s.Policy = &Stop{Height: 1012}, "on-failure" }), nil, true, Failed, actNo, "flushed"},
		"halt with exit code 1": {with(halted, func(s *sight) { s.ExitCode = 1 }), nil, true, Failed, actNone, "exit code 1"},
		"ended by its engine":   {with(halted, func(s *sight) { s.Stop, s.Policy = nil, "on-failure" }), nil, true, Waiting, actStart, "started again"},
		"ended, all are down":   {with(halted, func(s *sight) { s.Stop, s.Policy = nil, "on-failure" }), nil, false, Failed, actNo, "no other node runs"},
		"stuck at the height":   {with(run, func(s *sight) { s.Stuck, s.Height = true, height(1001) }), nil, false, Waiting, actForce, "at height 1001"},
		"stuck, unknown":        {with(run, func(s *sight) { s.Stuck, s.Height = true, nil }), nil, false, Waiting, actNone, "not known"},
		"forced, still runs":    {with(run, func(s *sight) { s.Stuck = true }), &Stop{Height: 1001, Forced: true}, false, Waiting, actStop, "stopped again"},
		"forced":                {with(halted, func(s *sight) { s.Stop, s.ExitCode = nil, 143 }), &Stop{Height: 1001, Forced: true}, false, Finished, actNone, "exit code 143"},
		"another container":     {with(run, func(s *sight) { s.Container = "b" }), nil, true, Failed, actNone, "another container"},
	} {
		t.Run(name, func(t *testing.T) {
			got, todo := judgeHalt(h, "a", c.s, c.known, c.others)
			if got.State != c.state || todo != c.act || !strings.Contains(got.Text, c.says) {
				t.Errorf("got %s, act %q, %q; want %s, %q, %q", got.State, todo, got.Text, c.state, c.act, c.says)
			}
			if got.Down && c.s.runs() {
				t.Error("a node that runs is called down")
			}
		})
	}
}

// TestStopOf: the stop is read of the last run of a log, whole keys only.
func TestStopOf(t *testing.T) {
	const (
		reached = "[INFO][HALT] Reached halt_height=1000 current=1012 — flushing and stopping for coordinated upgrade"
		flushed = "[INFO][HALT] storage.flush_all() complete"
		failed  = "[ERR][HALT] storage.flush_all() failed: disk full"
		up      = "[INFO][NODE] bringup_complete"
	)
	for name, c := range map[string]struct {
		lines []string
		want  *Stop
	}{
		"halted":          {[]string{up, reached, flushed}, &Stop{"a", 1000, 1012, true, time.Time{}, time.Time{}, false}},
		"not flushed":     {[]string{reached, failed}, &Stop{"a", 1000, 1012, false, time.Time{}, time.Time{}, false}},
		"flush cut off":   {[]string{reached}, &Stop{"a", 1000, 1012, false, time.Time{}, time.Time{}, false}},
		"flush before it": {[]string{flushed, reached}, &Stop{"a", 1000, 1012, false, time.Time{}, time.Time{}, false}},
		"started later":   {[]string{reached, flushed, up}, nil},
		"never":           {[]string{up, flushed}, nil},
		"impossible":      {[]string{"[INFO][HALT] Reached halt_height=1000 current=900"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []node.LogLine
			for _, l := range c.lines {
				lines = append(lines, node.ParseLine(l))
			}
			got := stopOf("a", lines)
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestJudge: a barrier names everybody who has not finished; the waiver passes by
// who is away or failed and is down, and nobody who runs or is only waited for.
func TestJudge(t *testing.T) {
	tally := Tally{"1": {State: Finished}, "2": {State: Missing, Text: "no route"}, "3": {State: Failed, Text: "crashed", Down: true},
		"4": {State: Waiting, Text: "runs"}, "6": {State: Waiting, Text: "its turn comes", Down: true}}
	hosts := []string{"1", "2", "3", "4", "5", "6"}
	if got := strings.Join(Judge(hosts, tally, false), "; "); got != "2: missing: no route; 3: failed: crashed; 4: waiting: runs; 5: not looked at; 6: waiting: its turn comes" {
		t.Error(got)
	}
	if got := strings.Join(Judge(hosts, tally, true), "; "); got != "4: waiting: runs; 5: not looked at; 6: waiting: its turn comes" {
		t.Error(got)
	}
	if got := tally.String(); got != "1 of 5; 2 missing (no route), 3 failed (crashed), 4 waiting (runs), 6 waiting (its turn comes)" {
		t.Error(got)
	}
}

// TestCheckHeight: refused at the tip, below it and within the margin, with the
// number that would do; what nobody can believe is unknown.
func TestCheckHeight(t *testing.T) {
	plan := func(h uint64) Plan {
		return Plan{Halt: &HaltPlan{Height: h, Roll: rolling.Plan{Nodes: []rolling.NodePlan{{ID: "1", Action: rolling.ActionReplace}, {ID: "2", Action: rolling.ActionReplace}}}}}
	}
	view := observe.View{Nodes: []observe.NodeView{{ID: "1", Height: height(5000), Behind: height(0)}, {ID: "2", Height: height(9000)}}}
	need := uint64(2 * 2 * rolling.ExpectedNode)
	for _, c := range []struct {
		h    uint64
		view observe.View
		want observe.Verdict
		says string
	}{
		{4000, view, observe.Fail, "at or below the tip 5000"},
		{5000, view, observe.Fail, "at or below"},
		{5000 + need - 1, view, observe.Fail, "take 6240 or more"},
		{5000 + need, view, observe.Pass, "ahead"},
		{9000, observe.View{}, observe.Unknown, "believed"},
	} {
		if got := checkHeight(plan(c.h), c.view); got.Verdict != c.want || !strings.Contains(got.Reason, c.says) {
			t.Errorf("height %d: %s %q, want %s %q", c.h, got.Verdict, got.Reason, c.want, c.says)
		}
	}
	for n := 1; n < 40; n++ { // at the nominal pace there is time at every turn
		for armed := range n {
			if left := needBlocks(n) - uint64(armed)*rolling.ExpectedNode; left < leftBlocks(n, armed) {
				t.Errorf("%d of %d armed: %d blocks left, %d asked for", armed, n, left, leftBlocks(n, armed))
			}
		}
	}
}

// TestPlanDigest: the same view gives the same plan; heights and times that move
// are not in it, and what the operator said is.
func TestPlanDigest(t *testing.T) {
	view := func(h uint64, at time.Time) observe.View {
		return observe.View{Fleet: "f", TakenAt: at, Nodes: []observe.NodeView{{ID: "2", NodeID: "n2", Height: &h}, {ID: "1", NodeID: "n1", Height: &h}},
			Seal: &observe.SealView{Index: h / 90, Committee: []string{"n1", "n2", "n3"}}}
	}
	in := rolling.Inputs{Nodes: map[string]rolling.NodeInput{"1": {Facts: host.Facts{Container: &host.ContainerFacts{ID: "c", RestartPolicy: "unless-stopped"}}}}}
	ask := HaltAsk{Ask: Ask{Hosts: []string{"2", "1"}}, Height: 9000}
	a, b := NewHalt(view(100, time.Unix(1, 0)), in, ask), NewHalt(view(4000, time.Unix(9, 0)), in, ask)
	if a.Digest() != b.Digest() {
		t.Error("the digest moves with the chain")
	}
	if len(a.Threshold.Absent) != 1 || a.Threshold.Absent[0] != "n3" || checkMembers(a).Verdict != observe.Fail {
		t.Errorf("absent %v", a.Threshold.Absent)
	}
	if p := a.Halt.Roll.Node("1").Policy; p == nil || p.Name != "unless-stopped" {
		t.Errorf("the policy to be given back is %v", p)
	}
	ask.Height++
	if NewHalt(view(100, time.Unix(1, 0)), in, ask).Digest() == a.Digest() {
		t.Error("another height, the same digest")
	}
	ask.Height, ask.At = 9000, time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	later := NewHalt(view(100, time.Unix(1, 0)), in, ask)
	if later.Digest() == a.Digest() || later.At != "2030-01-02T02:04:05Z" || later.AtPhase != Prepare {
		t.Errorf("start time %q before %q", later.At, later.AtPhase)
	}
	var noReturn []PhaseName
	for _, p := range a.Phases {
		if p.Undo == "" || p.Does == "" {
			t.Errorf("phase %s does not say what undoes it", p.Name)
		}
		if p.NoReturn != "" {
			noReturn = append(noReturn, p.Name)
		}
	}
	if len(noReturn) != 1 || noReturn[0] != Go {
		t.Errorf("points of no return in %v", noReturn)
	}
	raw := strings.NewReplacer(`"height":9000`, `"height":9001`)
	if _, err := LoadPlan([]byte(raw.Replace(mustJSON(t, a))), a.Digest()); err == nil {
		t.Error("a changed plan was read")
	}
}

func TestStartTime(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	if c := checkStart(now.Add(-time.Minute), now); len(c) != 1 || c[0].Verdict != observe.Fail || !strings.Contains(c[0].Reason, "1m0s ago") {
		t.Errorf("%+v", c)
	}
	if len(checkStart(now.Add(time.Second), now))+len(checkStart(time.Time{}, now)) != 0 {
		t.Error("a time to come, or none, is refused")
	}
}

func TestSpread(t *testing.T) {
	hosts := []HostResult{{StopHeight: height(1012)}, {}, {StopHeight: height(1003)}, {StopHeight: height(1030)}}
	if d := spread(hosts); d == nil || *d != 27 {
		t.Errorf("spread %v", d)
	}
	if spread(hosts[:2]) != nil {
		t.Error("one height has no spread")
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestLaterRun: the stop of an earlier run is not taken for that of a later one,
// and a later stop takes the place of an earlier one.
func TestLaterRun(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	first := &Stop{Height: 1012, At: at.Add(time.Hour), Started: at}
	again := sight{Started: at.Add(time.Hour), Stop: &Stop{Height: 1012, At: first.At, Started: at.Add(time.Hour)}}
	if newest(again, first) != first || ofLater(again, first).Stop != nil {
		t.Error("the last line of the first run is taken for the second run's")
	}
	same := sight{Started: at, Stop: &Stop{Height: 1012, At: first.At, Started: at}}
	if newest(same, first) != first || ofLater(same, first).Stop == nil {
		t.Error("the run that is known is not known again")
	}
	later := sight{Started: at.Add(time.Hour), Stop: &Stop{Height: 1044, At: at.Add(2 * time.Hour), Started: at.Add(time.Hour)}}
	if newest(later, first) != later.Stop || ofLater(later, first).Stop != later.Stop || newest(later, nil) != later.Stop {
		t.Error("a later stop does not count")
	}
	if newest(sight{}, nil) != nil || newest(sight{}, first) != first {
		t.Error("no stop seen")
	}
}
