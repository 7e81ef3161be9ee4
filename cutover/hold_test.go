package cutover_test

import (
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// again makes the engine of a host start its node anew.
func (w *world) again(id string) {
	w.Helper()
	e, name := w.host(id).Engine(), w.host(id).Spec().Container
	if err := e.StopContainer(name); err != nil {
		w.Fatal(err)
	}
	if err := e.StartContainer(name); err != nil {
		w.Fatal(err)
	}
}

// TestHoldWaitsForANodeThatIsStarting: a node that was started anew just before
// everything is stopped is stopped once it has come up, for before that it does not
// flush; the others run until then, for it waits for them.
func TestHoldWaitsForANodeThatIsStarting(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		tool.when(cutover.Prepare, "done", func() { w.again("003") })
		held := false
		tool.when(cutover.Hold, "done", func() {
			held = true
			for _, id := range survivors {
				if c := w.node(id); c.State != "exited" || c.ExitCode != 0 || c.RestartPolicy != "no" {
					t.Errorf("%s: %s", id, names(w.all(id)))
				}
			}
		})
		if doc, err := tool.restart(tool.restartAsk(v, soon())); err != nil || doc.Outcome != rolling.OutcomeDone || !held {
			t.Fatalf("%+v\n%v", doc, err)
		}
		tool.onNewChain(v, survivors)
		w.clean()
	})
}

// TestHoldDoesNotWaitForEver: a node that never comes up is stopped when M1's
// deadline is over, which is not flushed: the operation holds and names it.
func TestHoldDoesNotWaitForEver(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		tool.when(cutover.Prepare, "done", func() {
			w.inject("003", "isolate", "")
			w.again("003")
		})
		_, err := tool.restart(tool.restartAsk(v, soon()))
		if err == nil || !strings.Contains(err.Error(), "held in phase hold") || !strings.Contains(err.Error(), "003: failed: ended with exit code") {
			t.Fatalf("got %v", err)
		}
		if _, err := tool.ops().Abort(tool.ctx, tool.op()); err != nil {
			t.Fatal(err)
		}
		for _, id := range survivors {
			w.runs(id, "v1")
		}
	})
}

// TestVerifyReadsALargeLog: of a log that is too long to be read whole the
// beginning and the end are read, and say what is asked; a refusal at its end is
// found.
func TestVerifyReadsALargeLog(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		if doc, err := tool.restart(tool.restartAsk(v, soon())); err != nil {
			t.Fatalf("%+v\n%v", doc, err)
		}
		lines := func(text string) {
			if err := w.host("003").Engine().AppendLog(w.host("003").Spec().Container, text); err != nil {
				t.Fatal(err)
			}
		}
		lines(strings.Repeat("[INFO][MEMORY] node=genesis_node_003 rss_mb=900 delta_mb=0\n", 120_000))
		tool.onNewChain(v, survivors)
		verify := func() cutover.RestartVerify {
			doc, err := cutover.VerifyRestart(tool.ctx, tool.fleet, survivors, v, "ann", nil)
			if err != nil {
				t.Fatal(err)
			}
			return doc
		}
		for _, h := range verify().Hosts {
			if want := h.ID == "003"; !h.Lines.Read || h.Lines.Cut != want || !h.Lines.Active {
				t.Errorf("%s: %+v", h.ID, h.Lines)
			}
		}
		lines("[ERR][SYNC] v2_ws_pin_mismatch mb=12 action=fail_closed\n")
		doc := verify()
		for _, c := range doc.Checks {
			if c.Name == cutover.CheckPin && (c.Verdict != "fail" || !strings.Contains(c.Reason, "003: v2_ws_pin_mismatch")) {
				t.Errorf("%+v", c)
			}
		}
		if doc.OK || len(doc.OldSide) != 1 || doc.OldSide[0].ID != "003" {
			t.Errorf("%+v", doc.OldSide)
		}
	})
}
