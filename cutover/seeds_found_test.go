package cutover_test

import (
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// TestEngineDiesWhileTheVariableGoes: a node that has its container without the
// variable back is up again after its engine died, by its own restart policy or, where
// it had none yet, by the next resume (seed 217).
func TestEngineDiesWhileTheVariableGoes(t *testing.T) {
	for name, at := range map[string]struct {
		step, state string
		nth         int
	}{"before its policy": {"clear", "done", 1}, "after its policy": {"putback", "begun", 2}} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				w.unsealed(130)
				tool := w.tool()
				first, seen := "", 0
				tool.emit = func(e rolling.Event) {
					if e.Kind == rolling.KindNote && e.Name == string(cutover.Go) && e.State == "begun" {
						w.Clear("", "")
					}
					if e.Kind != rolling.KindStep {
						return
					}
					if first == "" && e.Name == "putback" {
						first = e.Node
					}
					if e.Name == at.step && e.State == at.state {
						if seen++; seen == at.nth {
							if err := w.lab.Kill(first, lab.KillEngine); err != nil {
								t.Error(err)
							}
						}
					}
				}
				_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
				if seen < at.nth {
					t.Fatalf("the engine was not killed: %v", err)
				}
				w.through(tool, err)
				w.unarmed(w.ids()...)
				w.healthy()
				w.clean()
			})
		})
	}
}
