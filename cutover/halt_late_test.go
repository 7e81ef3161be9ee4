package cutover_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// stopped waits until the nodes of these hosts have stopped.
func (w *world) stopped(ids ...string) {
	w.Helper()
	for range 1000 {
		if !slices.ContainsFunc(ids, func(id string) bool { return w.node(id).State != "exited" }) {
			return
		}
		w.Blocks(10)
	}
	w.Fatalf("%v do not stop", ids)
}

// diesArming begins a halt of seven whose process is lost when the fourth node is to
// be armed, and lets the height come: three stop, four run without the variable.
func (w *world) diesArming() (op string) {
	w.Helper()
	tool := w.tool()
	tool.emit = func(e rolling.Event) {
		if e.Node == "004" && e.Name == "time_left" {
			tool.kill()
		}
	}
	if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(7)}); err == nil {
		w.Fatal("the process did not die")
	}
	tool.exit()
	w.stopped("001", "002", "003")
	return tool.op()
}

// mustHoldArming asserts that an arming which the height has overtaken holds, names
// who is not armed, and has started nothing.
func (w *world) mustHoldArming(err error, op string, armed []string, not ...string) {
	w.Helper()
	var stopped *rolling.StoppedError
	if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "held in phase prepare") ||
		!strings.Contains(stopped.Hint(), "qnetops abort "+op) ||
		!strings.Contains(stopped.Hint(), "qnetops resume "+op+" --waive members=REASON") {
		w.Fatalf("got %v", err)
	}
	for _, id := range not {
		if !strings.Contains(err.Error(), id+": failed: is not armed") {
			w.Errorf("%s is not named: %v", id, err)
		}
	}
	for _, id := range armed {
		if c := w.node(id); c.State != "exited" || !carries(c.Env, "QNET_HALT_HEIGHT=") {
			w.Errorf("%s: %s, want it stopped on its height", id, names(w.all(id)))
		}
	}
}

// TestArmingOvertaken: a halt that is resumed when its height has gone by arms no
// further and starts nobody again. Abort takes it back; or the nodes that run on are
// stopped by hand, and it ends as a halt.
func TestArmingOvertaken(t *testing.T) {
	armed, rest := []string{"001", "002", "003"}, []string{"004", "005", "006", "007"}
	resumed := func(t *testing.T, w *world, op string, waivers ...rolling.Waiver) error {
		t.Helper()
		tool := w.tool()
		defer tool.exit()
		doc, err := tool.ops(waivers...).Resume(tool.ctx, op)
		return tool.note(doc, err)
	}
	t.Run("taken back", func(t *testing.T) {
		inLab(t, 7, func(t *testing.T, w *world) {
			op := w.diesArming()
			for range 2 { // a second resume says the same
				w.mustHoldArming(resumed(t, w, op), op, armed, rest...)
			}
			w.mustHoldArming(resumed(t, w, op, because), op, armed, rest...)
			tool := w.tool()
			defer tool.exit()
			if doc, err := tool.ops().Abort(tool.ctx, op); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.untouched()
			w.healthy()
			w.clean()
		})
	})
	t.Run("ended by hand", func(t *testing.T) {
		inLab(t, 7, func(t *testing.T, w *world) {
			op := w.diesArming()
			w.mustHoldArming(resumed(t, w, op), op, armed, rest...)
			for _, id := range rest {
				w.inject(id, "stop", "")
			}
			if err := resumed(t, w, op, because); err != nil {
				t.Fatal(err)
			}
			w.areDown(armed...)
			for _, id := range rest {
				if c := w.node(id); c.State != "exited" || c.RestartPolicy != "no" {
					t.Errorf("%s: %s", id, names(w.all(id)))
				}
			}
			tool := w.tool()
			defer tool.exit()
			w.released(tool)
			w.healthy()
			w.clean()
		})
	})
}

func (w *world) areDown(ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.down(id)
	}
}

// slowReplace makes the replace of one node take so many blocks.
func (t *tool) slowReplace(id string, blocks int) {
	t.emit = func(e rolling.Event) {
		if e.Kind == rolling.KindStep && e.Name == "replace" && e.State == "done" && e.Node == id {
			t.w.Blocks(blocks)
		}
	}
}

// TestHeightComesWhileArming: the height comes while a node is on its way to M3. It
// stops there, and that is no failure: its old container would go on past the height.
func TestHeightComesWhileArming(t *testing.T) {
	t.Run("of the last node", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.tool()
			tool.slowReplace("004", 9*rolling.ExpectedNode)
			doc, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)})
			if err != nil || doc.Outcome != rolling.OutcomeDone {
				t.Fatalf("%+v\n%v", doc, err)
			}
			for _, id := range w.ids() {
				w.down(id)
			}
			w.clean()
		})
	})
	t.Run("before the first", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.tool()
			defer tool.exit()
			height := w.far(4)
			tool.when(cutover.Prepare, "begun", func() {
				for w.tip() < height {
					w.Blocks(50)
				}
			})
			_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: height})
			var late *cutover.TooLateError
			if !errors.As(err, &late) || tool.unfinished() != "" {
				t.Fatalf("operation %q, got %v", tool.unfinished(), err)
			}
			w.untouched()
			w.clean()
		})
	})
	t.Run("before the others", func(t *testing.T) {
		inLab(t, 4, func(t *testing.T, w *world) {
			tool := w.tool()
			tool.slowReplace("002", 9*rolling.ExpectedNode)
			_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)})
			op := tool.op()
			w.mustHoldArming(err, op, []string{"001", "002"}, "003", "004")
			tool.exit()
			tool = w.tool()
			defer tool.exit()
			if doc, err := tool.ops().Abort(tool.ctx, op); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.untouched()
			w.healthy()
			w.clean()
		})
	})
}
