package cutover_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// TestOperatorLostAtEveryBarrier: at each barrier, and at the beginning of each
// phase, the operator's machine is lost, and the operation is resumed by a process
// that knows the store alone. It ends as if nothing had happened.
func TestOperatorLostAtEveryBarrier(t *testing.T) {
	for _, state := range []string{"begun", "done"} {
		t.Run(state, func(t *testing.T) {
			inLab(t, 4, func(t *testing.T, w *world) {
				tool := w.tool()
				h := w.far(4)
				ask := cutover.HaltAsk{Ask: tool.ask(), Height: h}
				tool.dieAt(cutover.Prepare, state)
				_, err := tool.halt(ask)
				w.lost(tool, err, state, cutover.Hold, cutover.Go, cutover.Verify)
				for _, id := range w.ids() {
					w.down(id)
				}
				tool = w.tool()
				tool.dieAt(cutover.Prepare, state)
				_, err = tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
				w.lost(tool, err, state, cutover.Hold, cutover.Go, cutover.Verify, cutover.Release)
				for _, id := range w.ids() {
					w.runs(id, "v2")
				}
				w.healthy()
				w.clean()
			})
		})
	}
}

// lost takes an operation whose first process has just died through the deaths in
// further phases to its end.
func (w *world) lost(first *tool, err error, state string, phases ...cutover.PhaseName) {
	w.Helper()
	for i := 0; ; i++ {
		if i < len(phases)+1 && err == nil {
			w.Fatalf("process %d did not die", i)
		}
		if i == len(phases)+1 {
			break
		}
		first.exit()
		first = w.tool()
		if i < len(phases) {
			first.dieAt(phases[i], state)
		}
		_, err = first.ops().Resume(first.ctx, first.unfinished())
	}
	if err != nil {
		w.Fatalf("the last resume: %v", err)
	}
	if open := first.unfinished(); open != "" {
		w.Errorf("operation %s did not end", open)
	}
	first.exit()
}

// TestKillsInTheMiddle: whatever dies while the fleet is armed, stops and is
// started again, a resume brings it to its end and nothing breaks.
func TestKillsInTheMiddle(t *testing.T) {
	for _, victim := range lab.Kills() {
		if !full() && !slices.Contains([]string{lab.KillBoth, lab.KillEngine, lab.KillHost}, victim) {
			continue // with QNETOPS_LONG all of them
		}
		t.Run(victim, func(t *testing.T) {
			inLab(t, 4, func(t *testing.T, w *world) {
				strike := func(tl *tool, phase cutover.PhaseName) {
					struck := false
					tl.emit = func(e rolling.Event) {
						if e.Kind == rolling.KindNote && e.Name == string(phase) && e.State == "begun" && !struck {
							struck = true
							if err := w.lab.Kill("002", victim); err != nil {
								w.Errorf("kill: %v", err)
							}
						}
					}
				}
				tool := w.tool()
				strike(tool, cutover.Go)
				_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)})
				w.through(tool, err)
				for _, id := range w.ids() {
					// A host that booted after the others had stopped cannot come up alone to
					// stop by itself, and is stopped in its boot.
					if c := w.node(id); id == "002" && victim == lab.KillHost && c.State == "exited" && c.RestartPolicy == "no" {
						continue
					}
					w.down(id)
				}
				tool = w.tool()
				strike(tool, cutover.Go)
				_, err = tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
				w.through(tool, err)
				for _, id := range w.ids() {
					w.runs(id, "v2")
				}
				w.healthy()
				w.clean()
			})
		})
	}
}

// through resumes an operation until it has ended.
func (w *world) through(t *tool, err error) {
	w.Helper()
	for range 4 {
		w.Logf("run: %v", err)
		t.exit()
		var doubt *rolling.InDoubtError
		if errors.As(err, &doubt) {
			w.Fatalf("in doubt: %v", err)
		}
		t = w.tool()
		open := t.unfinished()
		if open == "" {
			t.exit()
			return
		}
		time.Sleep(time.Second)
		_, err = t.ops().Resume(t.ctx, open)
	}
	w.Fatalf("the operation did not end: %v", err)
}
