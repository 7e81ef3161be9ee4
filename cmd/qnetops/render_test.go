package main

import (
	"errors"
	"testing"

	"github.com/qnetops/qnetops/rolling"
)

// TestNoTableWithoutANode: an operation that was refused before any node was looked at has nothing to show, which its error says;
// one that had no node to do says so in one line.
func TestNoTableWithoutANode(t *testing.T) {
	for _, c := range []struct {
		outcome, want string
		cause         error
	}{
		{rolling.OutcomeStopped, "", errors.New("its fence is held")},
		{rolling.OutcomeInDoubt, "", errors.New("a host cannot be looked at")},
		{rolling.OutcomeStopped, "aborted: operation roll-1\n", nil},
		{rolling.OutcomeDone, "done: operation roll-1\n", nil},
	} {
		s, out, _ := testStreams(t)
		r := &rollRun{s: s}
		if err := r.printDocument(rolling.Document{Operation: "roll-1", Outcome: c.outcome}, c.cause); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("%s, %v: %q, want %q", c.outcome, c.cause, out, c.want)
		}
	}
	doc := rolling.Document{Operation: "roll-1", Nodes: []rolling.NodeResult{{Outcome: rolling.NodeRolled}, {Outcome: rolling.NodeHeld}}}
	if got, want := lastLine(doc, errors.New("no")), "stopped: operation roll-1, 1 rolled, 1 held"; got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
}
