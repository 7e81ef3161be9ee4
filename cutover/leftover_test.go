package cutover_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling"
)

// fills lets a host's disk be full from the moment on that a step of it begins.
func (t *tool) fills(id, step string) {
	was := t.emit
	t.emit = func(e rolling.Event) {
		if was != nil {
			was(e)
		}
		if e.Node == id && e.Kind == rolling.KindStep && e.Name == step && e.State == "begun" {
			t.w.inject(id, engine.FaultDiskFull, "")
		}
	}
}

// onlyOn asserts that beside the node's container one that failed, or was set aside,
// is left on a host and on no other.
func (w *world) onlyOn(id, infix string) {
	w.Helper()
	for _, other := range w.ids() {
		all := w.all(other)
		left := slices.ContainsFunc(all, func(c engine.Summary) bool { return strings.Contains(c.Name, infix) })
		if left != (other == id) || left != (len(all) == 2) {
			w.Errorf("%s: %s", other, names(all))
		}
	}
}

// TestLeftoverHoldsTheEnd: what cannot be archived and removed in the end, because the disk is
// full, keeps the operation open and is named with what leads on; no other node waits
// for it. Once there is room a resume clears it (seed 193).
func TestLeftoverHoldsTheEnd(t *testing.T) {
	held := func(t *testing.T, w *world, first *tool, err error, infix string) string {
		t.Helper()
		op := first.unfinished()
		var hint interface{ Hint() string }
		if err == nil || op == "" || !errors.As(err, &hint) || !strings.Contains(hint.Hint(), "qnetops resume "+op) ||
			!strings.Contains(err.Error()+hint.Hint(), "--waive leftover=REASON") || !strings.Contains(err.Error(), "0 bytes free") {
			t.Fatalf("operation %q: %v", op, err)
		}
		w.onlyOn("002", infix)
		first.exit()
		return op
	}
	resumed := func(t *testing.T, w *world, op, want string) {
		t.Helper()
		w.Clear("002", engine.FaultDiskFull)
		tool := w.tool()
		defer tool.exit()
		if doc, err := tool.ops().Resume(tool.ctx, op); err != nil || doc.Outcome != want || tool.unfinished() != "" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range w.ids() {
			if all := w.all(id); len(all) != 1 {
				t.Errorf("%s: %s", id, names(all))
			}
		}
		w.unarmed(w.ids()...)
		w.clean()
	}
	t.Run("rollback", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			w.unsealed(130)
			tool := w.tool()
			w.heal(tool, cutover.Hold)
			tool.fills("002", "putback")
			_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
			op := held(t, w, tool, err, "-failed-")
			for _, id := range w.ids() { // all run without it, with the policy they had
				if c := w.node(id); c.State != "running" || c.RestartPolicy != "always" || carries(c.Env, "QNET_ROLLBACK_") {
					t.Errorf("%s: %s", id, names(w.all(id)))
				}
			}
			resumed(t, w, op, rolling.OutcomeDone)
			w.healthy()
		})
	})
	t.Run("disarm", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.tool()
			tool.when(cutover.Hold, "begun", tool.cancel)
			if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4) + 2000}); err == nil {
				t.Fatal("it was not interrupted")
			}
			op := tool.op()
			tool.exit()
			tool = w.tool()
			tool.fills("002", "putback")
			_, err := tool.ops().Abort(tool.ctx, op)
			op = held(t, w, tool, err, "-failed-")
			resumed(t, w, op, "aborted")
			w.healthy()
		})
	})
	t.Run("release", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.afterHalt()
			tool.fills("002", "finish")
			_, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
			tool.exit()
			if err == nil || !strings.Contains(err.Error(), "--waive leftover=REASON") {
				t.Fatalf("got %v", err)
			}
			resumed(t, w, tool.op(), rolling.OutcomeDone)
		})
	})
	t.Run("waived", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			w.unsealed(130)
			tool := w.tool()
			w.heal(tool, cutover.Hold)
			tool.fills("002", "putback")
			_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
			op := held(t, w, tool, err, "-failed-")
			tool = w.tool()
			defer tool.exit()
			doc, err := tool.ops(rolling.Waiver{Check: "leftover", Reason: "removed by hand"}).Resume(tool.ctx, op)
			if err != nil || doc.Outcome != rolling.OutcomeDone || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.onlyOn("002", "-failed-")
		})
	})
}

// TestFailedSuccessorIsCleared: a successor that did not start, and that another one
// followed, is gone when the operation is done: a later plan would refuse with data_shared.
// While the host is down it is on exactly one container, the old one, for good.
func TestFailedSuccessorIsCleared(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		w.unsealed(130)
		before := w.node("003").ID
		tool := w.tool()
		w.heal(tool, cutover.Hold)
		killed := false
		was := tool.emit
		tool.emit = func(e rolling.Event) {
			if was != nil {
				was(e)
			}
			if e.Node == "003" && e.Kind == rolling.KindTx && e.Name == "rename_old_aside" && e.State == "done" && !killed {
				killed = true
				if err := w.lab.Kill("003", lab.KillEngine); err != nil {
					t.Error(err)
				}
			}
		}
		_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
		tool.exit()
		if err == nil || !killed {
			t.Fatalf("killed %v: %v", killed, err)
		}
		time.Sleep(10 * time.Second)
		if c := w.node("003"); c.ID != before || c.State != "exited" || c.RestartPolicy != "no" {
			t.Errorf("003: %s, want its old container stopped for good", names(w.all("003")))
		}
		again := w.tool()
		defer again.exit()
		if doc, err := again.ops().Resume(again.ctx, tool.op()); err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		w.unarmed(w.ids()...)
		w.healthy()
		w.clean()
	})
}

// TestHeldHostIsTidied: a host whose successor never starts and that is passed by, or whose
// operation is closed as it stands, is left on its old container alone, down for good: what
// failed would be in the way of the roll that follows.
func TestHeldHostIsTidied(t *testing.T) {
	alone := func(w *world, before string) {
		w.Helper()
		if all := w.all("003"); len(all) != 1 || all[0].ID != before || all[0].State != "exited" || all[0].RestartPolicy != "no" {
			w.Errorf("003: %s, want its old container alone, stopped for good", names(all))
		}
	}
	t.Run("passed by", func(t *testing.T) {
		inLab(t, 7, func(t *testing.T, w *world) {
			w.unsealed(130)
			before := w.node("003").ID
			tool := w.tool()
			w.heal(tool, cutover.Hold)
			tool.startFails("003")
			if _, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)}); err == nil {
				t.Fatal("it is done")
			}
			tool.exit()
			w.Wait(2 * time.Second) // names of containers carry the second
			again := w.tool()
			defer again.exit()
			members := rolling.Waiver{Check: "members", Reason: "its engine is broken"}
			if doc, err := again.ops(members).Resume(again.ctx, tool.op()); err != nil || doc.Outcome != rolling.OutcomeDone {
				t.Fatalf("%+v\n%v", doc, err)
			}
			alone(w, before)
			w.unarmed("001", "002", "004", "005", "006", "007")
			w.clean()
		})
	})
	t.Run("closed", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.afterHalt()
			tool.startFails("003")
			if _, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"}); err == nil {
				t.Fatal("it is done")
			}
			tool.exit()
			again := w.tool()
			defer again.exit()
			doc, err := again.ops(rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}).Abort(again.ctx, tool.op())
			if err != nil || doc.Outcome != "aborted" || again.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.down("003")
			for _, c := range w.all("003") {
				if strings.Contains(c.Name, "-failed-") {
					t.Errorf("003: %s", names(w.all("003")))
				}
			}
			w.clean()
		})
	})
}
