package cutover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// State is how far one host is in a phase.
type State string

// The states of a host in a phase.
const (
	Finished State = "finished"
	Waiting  State = "waiting" // it is on its way
	Missing  State = "missing" // it cannot be seen: nothing is known of it
	Failed   State = "failed"  // it will not get there by itself
	Apart    State = "apart"   // it takes no part any more, and the threshold is reached without it
)

// Standing is one host in a phase, with what was seen.
type Standing struct {
	State State  `json:"state"`
	Text  string `json:"text"`
	// Down says that the host's node was seen not to run.
	Down bool `json:"down"`
}

// Tally is the standing of every host of a phase, by the host's id.
type Tally map[string]Standing

// set is for procedures that fill a tally from several goroutines under their own lock.
func (t Tally) finish(id, format string, args ...any) {
	t[id] = Standing{State: Finished, Text: fmt.Sprintf(format, args...)}
}

// Judge says who keeps a phase from being over: every host that has not finished
// it, by id. With the waiver `members` a host that cannot be seen, or that failed
// and whose node is down, holds nobody up; one that runs and has not finished always
// does, and so does one that is only waited for.
func Judge(hosts []string, t Tally, membersWaived bool) []string {
	var out []string
	for _, id := range hosts {
		s, known := t[id]
		switch {
		case !known:
			out = append(out, id+": not looked at")
		case s.State == Finished, s.State == Apart, membersWaived && (s.State == Missing || s.State == Failed && s.Down):
		default:
			out = append(out, fmt.Sprintf("%s: %s: %s", id, s.State, s.Text))
		}
	}
	return out
}

// String is the tally in one line: how many have finished, and each other host by name.
func (t Tally) String() string {
	finished := 0
	var rest []string
	for _, id := range slices.Sorted(maps.Keys(t)) {
		if t[id].State == Finished {
			finished++
			continue
		}
		rest = append(rest, fmt.Sprintf("%s %s (%s)", id, t[id].State, t[id].Text))
	}
	text := fmt.Sprintf("%d of %d", finished, len(t))
	if len(rest) > 0 {
		text += "; " + strings.Join(rest, ", ")
	}
	return text
}
