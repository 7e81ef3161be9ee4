package cutover_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// TestHostDiesWhileItStages: whether it has a successor is not known, and so what was made ready
// cannot be taken back at once; the operation stays open, says what leads on, and that
// ends it (seeds 93 and 95).
func TestHostDiesWhileItStages(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		w.unsealed(130)
		before := map[string]string{}
		for _, id := range w.ids() {
			before[id] = w.node(id).ID
		}
		var killed atomic.Bool
		w.lab.OnAgentRequest(func(id, method string) {
			if id == "001" && method == "stage" && killed.CompareAndSwap(false, true) {
				if err := w.lab.Kill(id, lab.KillHost); err != nil {
					t.Error(err)
				}
			}
		})
		tool := w.tool()
		_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
		open := tool.unfinished()
		var hint interface{ Hint() string }
		if err == nil || !killed.Load() || open == "" || !errors.As(err, &hint) || !strings.Contains(hint.Hint(), "qnetops abort "+open) {
			t.Fatalf("%v, operation %q", err, open)
		}
		tool.exit()
		time.Sleep(10 * time.Second)
		tool = w.tool()
		doc, err := tool.ops().Abort(tool.ctx, open)
		if err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
			t.Errorf("%+v %v", doc, err)
		}
		for id, was := range before {
			if c := w.all(id); len(c) != 1 || c[0].ID != was || c[0].State != "running" {
				t.Errorf("%s: %s", id, names(c))
			}
		}
		w.clean()
	})
}
