package cutover

import (
	"fmt"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Stop is a node's stop on its halt height, from the log of the run that ended.
type Stop struct {
	Container string `json:"container"`
	// Armed is the height it was armed with, Height the one it stopped at.
	Armed   uint64    `json:"armed"`
	Height  uint64    `json:"height"`
	Flushed bool      `json:"flushed"`
	At      time.Time `json:"at"`
	Started time.Time `json:"started"` // of the run that ended so
	// Forced: the node did not come to its stop by itself and was stopped. Whether
	// it flushed is not known then, nor, with Height 0, where it stands: it was
	// crashing again and again.
	Forced bool `json:"forced,omitempty"`
}

// newest is the stop that counts: the one just seen, unless it is that of an
// earlier run, whose last lines may carry the very time a later one began.
func newest(s sight, known *Stop) *Stop {
	if s.Stop == nil || known != nil && !s.Stop.At.After(known.At) {
		return known
	}
	return s.Stop
}

// ofLater takes from a sight the stop that belongs to the run before it.
func ofLater(s sight, known *Stop) sight {
	if known != nil && s.Stop != nil && !known.Started.Equal(s.Started) && !s.Stop.At.After(known.At) {
		s.Stop = nil
	}
	return s
}

// sight is one look at one host. A nil pointer is a reading that could not be had.
type sight struct {
	Reached bool
	Why     string // why it was not reached
	// Gone: the host answers, and no container bears the node's name. Then Reached is
	// not set, for nothing can be said of the container.
	Gone bool

	Container string // id
	State     string // Docker's word
	ExitCode  int
	Restarts  int
	Policy    string
	Retries   int
	Armed     *uint64
	OneShot   []string
	Started   time.Time
	Since     time.Time // its lines in the log begin
	Height    *uint64
	Stop      *Stop // of the run that ended
	// Stuck: others have stopped, and for quietBlocks/2 nothing has moved any more.
	Stuck bool
}

func (s sight) runs() bool {
	switch s.State {
	case "running", "paused", "restarting", "removing":
		return true
	}
	return false
}

// crashes says that a node has ended, was started again by its engine, and has not come
// up since, or waits for its next start.
func (s sight) crashes() bool {
	return s.State == "restarting" || s.State == "running" && s.Height == nil && s.Restarts > 0
}

// hasCome says whether the height of a halt has come: the chain is there, or a node
// that was armed for it has stopped.
func hasCome(h uint64, armed map[string]string, sights map[string]sight) bool {
	for id, s := range sights {
		if s.Stop != nil && s.Container == armed[id] {
			return true
		}
	}
	top := highest(sights)
	return top != nil && *top >= h
}

// judgeArmed says which hosts have the container that was armed, when nobody is armed
// any more, and lists those that have not.
func judgeArmed(hosts []string, armed map[string]string, sights map[string]sight) (Tally, []string) {
	t, not := Tally{}, []string{}
	for _, id := range hosts {
		s := sights[id]
		switch {
		case s.Reached && armed[id] != "" && s.Container == armed[id]:
			t.finish(id, "armed")
			continue
		case !s.Reached:
			t[id] = Standing{State: Missing, Text: s.Why}
			if armed[id] != "" {
				continue
			}
		case s.runs():
			t[id] = Standing{State: Failed, Text: "is not armed and runs on past the height"}
		default:
			t[id] = Standing{State: Failed, Down: true, Text: "is not armed, and is down"}
		}
		not = append(not, id)
	}
	return t, not
}

// progress is how far a halt has come: heights, stops, hosts that are where they
// should be. It only grows. A node that crashes at each start (facts 8 #18) shows
// something else at every look and comes no further, and it must not be waited for.
type progress struct {
	heights  map[string]uint64
	finished map[string]bool
}

func (p *progress) grows(t Tally, sights map[string]sight, stops map[string]*Stop) (grown bool) {
	if p.heights == nil {
		p.heights, p.finished = map[string]uint64{}, map[string]bool{}
	}
	for id, s := range sights {
		if s.Height != nil && *s.Height > p.heights[id] {
			p.heights[id], grown = *s.Height, true
		}
		stop := stops[id]
		if done := t[id].State == Finished || stop != nil && !stop.Forced; done && !p.finished[id] {
			p.finished[id], grown = true, true
		}
	}
	return grown
}

// act is what is to be done with one host of a halt.
type act string

const (
	actNone  act = ""
	actArm   act = "arm_policy"  // give the armed policy back that somebody changed
	actNo    act = "halt_policy" // it has stopped: nothing may start it again
	actStop  act = "stop"        // it came back after its stop
	actStart act = "start"       // it ended before the height, and not by itself
	actForce act = "force"       // it cannot stop by itself: note that, then stop it
)

// judgeHalt decides how a host stands in a halt at height h and what is to be
// done with it. armed is the container that was armed ("": not known), known the
// stop that was journaled before, others says that another node of the halt runs.
func judgeHalt(h uint64, armed string, s sight, known *Stop, others bool) (Standing, act) {
	waiting := func(format string, args ...any) Standing {
		return Standing{State: Waiting, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}, actNone
	case armed == "" && s.runs():
		return Standing{State: Failed, Text: "was never armed and runs: it does not stop at the height"}, actNone
	case armed != "" && s.Container != armed:
		return Standing{State: Failed, Text: "another container than the armed one bears the node's name", Down: !s.runs()}, actNone
	case s.runs() && known != nil && known.Height == 0:
		return waiting("crashes again and again; it is stopped"), actStop
	case s.runs() && known != nil:
		return waiting("came back after its stop at height %d; it is stopped again", known.Height), actStop
	case s.runs() && s.Stuck && s.Height != nil:
		// Its halt loop begins at bring-up, and alone it waits for its peers for ever.
		return waiting("runs at height %d without the others and cannot stop by itself; it is stopped", *s.Height), actForce
	case s.Stuck && s.crashes():
		return waiting("crashes again and again (restart %d, exit code %d) and comes to no height; it is stopped", s.Restarts,
			s.ExitCode), actForce
	case s.runs() && s.Policy != policyArmed:
		return waiting("its restart policy is %s, not %s", s.Policy, policyArmed), actArm
	case s.State == "restarting":
		return waiting("crashed with exit code %d; its engine starts it again (restart %d)", s.ExitCode, s.Restarts), actNone
	case s.runs() && s.Height == nil:
		return waiting("armed; its height is not known"), actNone
	case s.runs() && *s.Height < h:
		return waiting("armed, at height %d, %d blocks left", *s.Height, h-*s.Height), actNone
	case s.runs():
		return waiting("at height %d, stops at its next poll", *s.Height), actNone
	}
	return judgeEnded(s, known, others && armed != "")
}

// judgeEnded is judgeHalt for a node whose process has ended.
func judgeEnded(s sight, known *Stop, others bool) (Standing, act) {
	settle := actNone
	if s.Policy != policyHalted {
		settle = actNo
	}
	switch {
	case s.Stop != nil && !s.Stop.Flushed:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("stopped at height %d, but its log does not say that the "+
			"storage was flushed", s.Stop.Height)}, settle
	case s.Stop != nil && s.ExitCode != 0:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("stopped at height %d with exit code %d", s.Stop.Height,
			s.ExitCode)}, settle
	case (s.Stop != nil || known != nil) && settle != actNone:
		return Standing{State: Waiting, Down: true, Text: "stopped; its restart policy is still " + s.Policy}, settle
	case s.Stop != nil:
		return Standing{State: Finished, Down: true, Text: fmt.Sprintf("stopped at height %d, flushed, restart policy %s",
			s.Stop.Height, s.Policy)}, actNone
	case known != nil && known.Height == 0:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("crashed again and again and was stopped, exit code %d: where it "+
			"stands is not known, and it may not have flushed", s.ExitCode)}, actNone
	case known != nil && known.Forced:
		return Standing{State: Finished, Down: true, Text: fmt.Sprintf("was stopped at height %d with exit code %d, for alone it "+
			"could not stop by itself; restart policy %s",
			known.Height, s.ExitCode, s.Policy)}, actNone
	case known != nil:
		return Standing{State: Finished, Down: true, Text: fmt.Sprintf("stopped at height %d, came back and was stopped again: "+
			"it may stand higher; restart policy %s",
			known.Height, s.Policy)}, actNone
	case others:
		return Standing{State: Waiting, Down: true, Text: fmt.Sprintf("ended before the height with exit code %d (an engine that "+
			"restarts does that); it is started again", s.ExitCode)}, actStart
	}
	return Standing{State: Failed, Down: true, Text: fmt.Sprintf("ended with exit code %d and not on its halt height, and no "+
		"other node runs that it could follow", s.ExitCode)}, settle
}

// stopOf finds the stop on a halt height in the log of one run: nil when the run
// did not end that way.
func stopOf(container string, lines []node.LogLine) *Stop {
	var stop *Stop
	for _, l := range lines {
		if armed, at, ok := node.HaltReached(l); ok {
			stop = &Stop{Container: container, Armed: armed, Height: at, At: l.Time.UTC()}
		}
		if stop != nil && l.Module == "HALT" && strings.HasPrefix(l.Text, "storage.flush_all() complete") {
			stop.Flushed = true
		}
		if node.BringupComplete(l) {
			stop = nil // a later start: the stop before it is history
		}
	}
	return stop
}

// spread is the distance between the lowest and the highest stop; nil where fewer
// than two are known.
func spread(hosts []HostResult) *uint64 {
	var low, high uint64
	n := 0
	for _, h := range hosts {
		if h.StopHeight == nil {
			continue
		}
		if n == 0 || *h.StopHeight < low {
			low = *h.StopHeight
		}
		high = max(high, *h.StopHeight)
		n++
	}
	if n < 2 {
		return nil
	}
	d := high - low
	return &d
}
