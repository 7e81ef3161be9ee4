package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// A cut-over that has armed nodes and is refused at the next one tells what it has done; one that was refused before anything was
// touched tells the reason alone, and what an operation that is taken up again answers is told always.
func TestHalfArmedHaltTellsItsHosts(t *testing.T) {
	check := observe.Check{Name: "container", Verdict: observe.Fail, Reason: "003: it is another one"}
	refused := &rolling.RefusedError{Checks: []observe.Check{check}}
	doc := cutover.Document{Operation: "halt-1", Kind: cutover.KindHalt, Outcome: rolling.OutcomeStopped,
		Phases: []cutover.PhaseResult{{Name: cutover.Prepare}, {Name: cutover.Hold}},
		Hosts:  []cutover.HostResult{{ID: "001", State: cutover.Finished, Text: "armed"}, {ID: "003", State: cutover.Waiting}}}
	first := func(r *rollRun, err error) error {
		return r.carryOut(t.Context(), cutover.Proposal{}, "?", func() (cutover.Document, error) { return doc, err })
	}
	again := func(r *rollRun, err error) error { return r.answerCutover(doc, err) }
	for _, c := range []struct {
		name string
		run  func(*rollRun, error) error
		err  error
		told bool
		code int
	}{
		{"refused at the last look", first, refused, false, exitRefused},
		{"refused at the third node", first, &rolling.StoppedError{Operation: "halt-1", Node: "003", Err: refused}, true, exitStopped},
		{"refused on its way back", again, refused, true, exitRefused},
	} {
		for _, asJSON := range []bool{false, true} {
			s, out, _ := testStreams(t)
			g := globals{yes: true, json: asJSON}
			err := c.run(&rollRun{s: s, g: g, tell: newTeller(s, g, nil)}, c.err)
			if code := exitCode(t.Context(), err); code != c.code {
				t.Errorf("%s: exit code %d, want %d: %v", c.name, code, c.code, err)
			}
			if told := strings.Contains(out.String(), "halt-1") && strings.Contains(out.String(), "armed"); told != c.told {
				t.Errorf("%s: its hosts are told: %v, want %v\n%s", c.name, told, c.told, out)
			}
			if asJSON && c.told && !json.Valid([]byte(out.String())) {
				t.Errorf("%s: not one document: %s", c.name, out)
			}
		}
	}
}
