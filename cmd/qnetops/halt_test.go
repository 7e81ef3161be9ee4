package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// Bad input of halt is told what, why and what to do instead, with code 2.
func TestHaltUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		say  []string
	}{
		{"halt", []string{"--height H"}},
		{"halt --height 0", []string{"--height H"}},
		{"halt --height -5", []string{"height"}},
		{"halt --height soon", []string{"height"}},
		{"halt nonsense --height 5", []string{"nonsense"}},
		{"halt --height 5 --only 001", []string{"whole fleet", "--skip"}},
		{"halt --height 5 --at tomorrow", []string{"--at", "UTC"}},
		{"halt --height 5 --at 2030-01-02T03:04:05+02:00", []string{"--at", "UTC"}},
		{"halt status extra", []string{"extra"}},
		{"halt disarm --policy sometimes", []string{"sometimes", "unless-stopped"}},
		{"halt release", []string{"exactly one image"}},
		{"halt release a b", []string{"exactly one image"}},
		{"halt release a --policy no", []string{"--policy", "always"}},
		{"halt release a --at 2030", []string{"--at", "UTC"}},
		{"rehearse stop", []string{"no rehearsal", "halt"}},
	} {
		s, out, errs := testStreams(t)
		code := Main(context.Background(), append([]string{"qnetops"}, strings.Fields(c.args)...), s)
		text := out.String() + errs.String()
		if code != exitUsage {
			t.Errorf("%s: exit code %d, want %d\n%s", c.args, code, exitUsage, text)
		}
		for _, say := range c.say {
			if !strings.Contains(text, say) {
				t.Errorf("%s: does not say %q:\n%s", c.args, say, text)
			}
		}
	}
}

// The last line of a cut-over says how it ended, where it holds and how far apart
// the nodes stopped.
func TestCutoverLine(t *testing.T) {
	spread := uint64(27)
	phases := []cutover.PhaseResult{{Name: cutover.Prepare, Passed: true}, {Name: cutover.Hold, Passed: true}, {Name: cutover.Go}}
	for _, c := range []struct {
		doc  cutover.Document
		want string
	}{
		{cutover.Document{Operation: "halt-1", Outcome: rolling.OutcomeStopped, Phases: phases}, "stopped: operation halt-1, 2 of 3 phases, before the end of go"},
		{cutover.Document{Operation: "halt-1", Outcome: rolling.OutcomeInDoubt, Phases: phases[:1]}, "in doubt: operation halt-1, 1 of 1 phases"},
		{cutover.Document{Operation: "halt-1", Outcome: rolling.OutcomeDone, Phases: phases[:2], Spread: &spread},
			"done: operation halt-1, 2 of 2 phases, stop heights 27 blocks apart"},
	} {
		if got := cutoverLine(c.doc); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// Each check that can refuse a halt or a release has its line in the runbook.
func TestHaltChecksAreInTheRunbook(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "RUNBOOK.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"halt_height", "start_time", "members", "armed", "halted", "start_set", "policy", "point_of_no_return"} {
		if !strings.Contains(string(raw), "- `"+name+"`: ") {
			t.Errorf("RUNBOOK.md says nothing about check %s", name)
		}
	}
}
