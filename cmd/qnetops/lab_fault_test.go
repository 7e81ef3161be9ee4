package main

import (
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
)

// TestLabFaultSaysWhereAndHowOn: a fault that was set is said, with the way to take it back, and every command that is named names
// the folder that was given: without it they would look for a lab elsewhere.
func TestLabFaultSaysWhereAndHowOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := startProcessLab(lab.Config{Nodes: 2, Block: 20 * time.Millisecond, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.ServeControl(dir); err != nil {
		t.Fatal(err)
	}
	clears := "qnetops lab fault --clear --dir " + dir
	for _, c := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"002", "mute"}, exitDone, []string{"fault mute is set on node 002", clears}},
		{[]string{"001", "drop-ssh=hold"}, exitDone, []string{"fault drop-ssh=hold is set on node 001", clears}},
		{[]string{"001", "drop-ssh=none"}, exitUsage, []string{`"none" is not known: want hold, or no argument`}},
		{[]string{"002", "nonsense"}, exitUsage, []string{"qnetops lab fault --kinds --dir " + dir, "qnetops lab status --dir " + dir}},
		{[]string{"--clear"}, exitDone, []string{"all faults are taken back"}},
		{[]string{"--kinds", "--dir", dir + "/other"}, exitUsage, []string{"no lab runs in", "the folder of one that runs with --dir"}},
	} {
		s, out, errs := testStreams(t)
		code := Main(t.Context(), append([]string{"qnetops", "lab", "fault", "--dir", dir}, c.args...), s)
		said := out.String() + errs.String()
		for _, words := range c.words {
			if !strings.Contains(said, words) {
				t.Errorf("%q does not say %q:\n%s", c.args, words, said)
			}
		}
		if code != c.code {
			t.Errorf("%q: exit code %d, want %d\n%s", c.args, code, c.code, said)
		}
	}
}
