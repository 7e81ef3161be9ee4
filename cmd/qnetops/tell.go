package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/rolling"
)

// teller shows progress on stderr: one line per event in a pipe; on a terminal
// also one last line that is redrawn with what is being waited for.
type teller struct {
	mu     sync.Mutex
	w      io.Writer
	live   bool
	start  time.Time
	status map[string]string // node -> what it is waiting for
	order  []string
	drawn  bool
	pulled map[string]time.Time
	said   map[string]string
	op     string
	done   bool
	// verbose also prints intents.
	verbose bool
}

// pullEvery is how often one host's pull is mentioned in a pipe.
const pullEvery = 2 * time.Second

func newTeller(s streams, g globals, inv *fleet.Inventory) *teller {
	t := &teller{verbose: g.verbose, w: s.err, live: s.live, start: time.Now(), status: map[string]string{}, pulled: map[string]time.Time{}, said: map[string]string{}}
	if inv != nil {
		t.order = inv.IDs()
	}
	return t
}

// say prints one line of progress.
func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line(fmt.Sprintf(format, args...))
}

// operation names the operation once, with the commands that concern it.
func (t *teller) operation(id string) {
	t.mu.Lock()
	t.op = id
	t.mu.Unlock()
	t.say("operation %s (after a crash: qnetops resume %s)", id, id)
}

// event renders one event of a roll.
func (t *teller) event(e rolling.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return
	}
	switch e.Kind {
	case rolling.KindPull:
		t.pull(e)
	case rolling.KindMilestone:
		t.milestone(e)
	case rolling.KindWait:
		t.status[e.Node] = e.Name + ": " + e.Text
		t.once(e, fmt.Sprintf("%s  %-9s %s: %s", e.Node, e.Name, e.State, e.Text))
	default:
		if e.Kind == rolling.KindStep {
			t.status[e.Node] = e.Text
			if e.State != "begun" {
				delete(t.status, e.Node)
			}
		}
		name := e.Name
		if e.Kind == rolling.KindTx {
			t.status[e.Node] = e.Name
			if e.State == "intent" && !t.verbose {
				break // its outcome follows
			}
			name = "· " + e.Name
		}
		t.line(strings.TrimRight(fmt.Sprintf("%s  %-9s %s %s", e.Node, name, e.State, e.Text), " "))
	}
	t.draw()
}

// pull says how a download goes, not once per network packet.
func (t *teller) pull(e rolling.Event) {
	t.status[e.Node] = "pull " + e.Name + " " + e.State + " " + e.Text
	if !t.live && e.At.Sub(t.pulled[e.Node]) >= pullEvery {
		t.pulled[e.Node] = e.At
		t.line(fmt.Sprintf("%s  pull      %s %s %s", e.Node, e.Name, e.State, e.Text))
	}
}

// milestone prints verdicts as lines; what is still open goes to the live line,
// or in a pipe into a line when the kind of reason changes.
func (t *teller) milestone(e rolling.Event) {
	t.status[e.Node] = e.Name + ": " + e.Text
	if e.State != "unknown" {
		t.line(fmt.Sprintf("%s  %-9s %s: %s", e.Node, e.Name, e.State, e.Text))
		delete(t.status, e.Node)
	}
}

// once prints a line unless the same kind of line was printed last for this
// node: a counter that runs must not fill a log.
func (t *teller) once(e rolling.Event, text string) {
	key := e.Node + e.Name
	kind := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	if t.said[key] != kind {
		t.said[key] = kind
		t.line(text)
	}
}

func (t *teller) line(text string) {
	t.erase()
	fmt.Fprintf(t.w, "%8s  %s\n", time.Since(t.start).Round(100*time.Millisecond), text)
}

func (t *teller) draw() {
	if !t.live {
		return
	}
	t.erase()
	var parts []string
	for _, id := range t.order {
		if s := t.status[id]; s != "" {
			parts = append(parts, id+" "+s)
		}
	}
	if len(parts) == 0 {
		return
	}
	text := strings.Join(parts, " | ")
	if runes := []rune(text); len(runes) > 110 {
		text = string(runes[:107]) + "..."
	}
	fmt.Fprintf(t.w, "%8s  %s", time.Since(t.start).Round(100*time.Millisecond), text)
	t.drawn = true
}

func (t *teller) erase() {
	if t.drawn {
		fmt.Fprint(t.w, "\r\x1b[2K")
		t.drawn = false
	}
}

// close ends the live line; later events are dropped so that they cannot
// scribble over the answer.
func (t *teller) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.erase()
	t.done = true
}
