package cutover

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJudgeHaltOfOneThatComesToNothing: a node that crashes at each start is stopped
// once the others have, and then named; one that was never armed is neither armed nor
// started here.
func TestJudgeHaltOfOneThatComesToNothing(t *testing.T) {
	const h = 1000
	loop := sight{Reached: true, Container: "a", State: "restarting", Policy: "on-failure", Restarts: 7, ExitCode: 137}
	with := func(s sight, change func(*sight)) sight { change(&s); return s }
	stuck := with(loop, func(s *sight) { s.Stuck = true })
	in := func(s sight, state, policy string, code int) sight {
		return with(s, func(s *sight) { s.State, s.Policy, s.ExitCode = state, policy, code })
	}
	young := with(stuck, func(s *sight) { s.State, s.Restarts = "running", 0 })
	down := in(loop, "exited", "no", 137)
	forced := &Stop{Container: "a", Armed: h, Forced: true}
	for name, c := range map[string]struct {
		armed  string
		s      sight
		known  *Stop
		others bool
		state  State
		act    act
		says   string
	}{
		"crashes":                 {"a", loop, nil, true, Waiting, actNone, "crashed with exit code 137"},
		"crashes, alone":          {"a", stuck, nil, false, Waiting, actForce, "restart 7, exit code 137"},
		"starting, alone":         {"a", in(stuck, "running", "on-failure", 0), nil, false, Waiting, actForce, "again and again"},
		"starts for once":         {"a", young, nil, false, Waiting, actNone, "not known"},
		"to be stopped":           {"a", stuck, forced, false, Waiting, actStop, "it is stopped"},
		"stopped":                 {"a", down, forced, false, Failed, actNone, "may not have flushed"},
		"stopped, by policy":      {"a", in(loop, "exited", "on-failure", 137), forced, false, Waiting, actNo, "still on-failure"},
		"not armed":               {"", in(loop, "running", "always", 0), nil, true, Failed, actNone, "never armed"},
		"not armed, stopped":      {"", in(loop, "exited", "always", 0), nil, true, Failed, actNo, "exit code 0"},
		"not armed, stopped well": {"", in(loop, "exited", "no", 0), nil, true, Failed, actNone, "exit code 0"},
	} {
		t.Run(name, func(t *testing.T) {
			got, todo := judgeHalt(h, c.armed, c.s, c.known, c.others)
			if got.State != c.state || todo != c.act || !strings.Contains(got.Text, c.says) || got.Down == c.s.runs() {
				t.Errorf("got %+v, act %q; want %s, %q, %q", got, todo, c.state, c.act, c.says)
			}
		})
	}
}

// TestProgress: a node that crashes again and again is no progress, whatever it shows
// meanwhile; a height that was not reached before is, and a stop, each once.
func TestProgress(t *testing.T) {
	var p progress
	sights := func(s sight) map[string]sight { return map[string]sight{"1": s} }
	tally := func(s State, text string) Tally { return Tally{"1": {State: s, Text: text}} }
	up := sights(sight{Reached: true, State: "running", Height: height(900)})
	if !p.grows(tally(Waiting, "at 900"), up, nil) || p.grows(tally(Waiting, "at 900"), up, nil) {
		t.Error("a height counts once")
	}
	for i, s := range []sight{{Reached: true, State: "restarting", Restarts: 1}, {Reached: true, State: "running", Restarts: 1},
		{Reached: true, State: "running", Height: height(899), Restarts: 2}, {Why: "no route"},
		{Reached: true, State: "restarting", Restarts: 3}} {
		if p.grows(tally(Waiting, s.State), sights(s), nil) {
			t.Errorf("look %d is taken for progress", i)
		}
	}
	if p.grows(tally(Waiting, ""), up, map[string]*Stop{"1": {Forced: true, At: time.Unix(1, 0)}}) {
		t.Error("that it is stopped from here is taken for progress")
	}
	stop := map[string]*Stop{"1": {Height: 1003}}
	if !p.grows(tally(Waiting, ""), up, stop) || p.grows(tally(Finished, ""), up, stop) ||
		p.grows(tally(Waiting, "came back"), up, stop) {
		t.Error("a stop counts once")
	}
	if !p.grows(tally(Waiting, ""), sights(sight{Reached: true, Height: height(901)}), stop) {
		t.Error("it goes on and that is none")
	}
}

// TestJudgeArmed: when the height has come, and who is not armed then.
func TestJudgeArmed(t *testing.T) {
	run := func(container string, h uint64) sight {
		return sight{Reached: true, Container: container, State: "running", Height: height(h)}
	}
	end := func(container string, stop *Stop) sight {
		return sight{Reached: true, Container: container, State: "exited", Stop: stop}
	}
	hosts, armed := []string{"1", "2", "3", "4", "5", "6"}, map[string]string{"1": "a", "2": "a", "3": "a", "6": "a"}
	at := map[string]sight{"1": end("a", &Stop{Height: 1001}), "2": run("a", 998), "3": run("b", 998), "4": end("c", nil),
		"5": {Why: "away"}, "6": {Why: "away"}}
	two := map[string]sight{"2": at["2"]}
	if !hasCome(1000, armed, at) || !hasCome(998, armed, two) || hasCome(999, armed, two) {
		t.Error("when the height has come")
	}
	if hasCome(1000, nil, map[string]sight{"1": at["1"]}) {
		t.Error("the stop of a container that was not armed here is taken for one")
	}
	tally, not := judgeArmed(hosts, armed, at)
	if !slices.Equal(not, []string{"3", "4", "5"}) {
		t.Errorf("not armed: %v", not)
	}
	want := map[string]Standing{"1": {State: Finished}, "2": {State: Finished}, "3": {State: Failed},
		"4": {State: Failed, Down: true}, "5": {State: Missing}, "6": {State: Missing}}
	for id, w := range want {
		if got := tally[id]; got.State != w.State || got.Down != w.Down {
			t.Errorf("%s: %+v, want %+v", id, got, w)
		}
	}
}
