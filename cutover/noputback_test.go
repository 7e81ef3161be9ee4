package cutover_test

import (
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// startFails keeps the engine of a host from starting the successor of the
// operation under way, from go on.
func (t *tool) startFails(id string) {
	t.when(cutover.Go, "begun", func() {
		op := t.op()
		t.w.inject(id, "start-fail", t.w.host(id).Spec().Container+"-next-"+op[strings.LastIndex(op, "-")+1:])
	})
}

// TestNoOldContainerComesBack: beyond the point of no return a successor that does
// not start leaves its host down. The old container would write by rules that are
// left behind: with a halt height or without one, with the blocks above the target
// of a rollback. Once the engine starts it, the operation goes on.
func TestNoOldContainerComesBack(t *testing.T) {
	check := func(t *testing.T, w *world, first *tool, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "held in phase go") || !strings.Contains(err.Error(), "003: failed: ") {
			t.Fatalf("got %v", err)
		}
		for _, c := range w.all("003") {
			if c.State == "running" || c.RestartPolicy != "no" {
				t.Errorf("003: %s, want nothing that runs or may be started", names(w.all("003")))
			}
		}
		w.Clear("003", "start-fail")
		w.Wait(2 * time.Second) // names of containers carry the second
		tool := w.tool()
		defer tool.exit()
		doc, err := tool.ops().Resume(tool.ctx, first.op())
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		w.healthy()
		w.clean()
	}
	t.Run("rollback", func(t *testing.T) {
		inLab(t, 5, func(t *testing.T, w *world) {
			w.unsealed(500)
			tool := w.tool()
			w.heal(tool, cutover.Hold) // a fault that is there at the start would be the other reason
			tool.startFails("003")
			_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask()})
			tool.exit()
			check(t, w, tool, err)
			w.unarmed(w.ids()...)
		})
	})
	t.Run("release", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.afterHalt()
			tool.startFails("003")
			_, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
			tool.exit()
			check(t, w, tool, err)
			for _, id := range w.ids() {
				w.runs(id, "v2")
			}
		})
	})
}
