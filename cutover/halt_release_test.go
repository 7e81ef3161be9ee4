package cutover_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

var closing = rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}

// TestReleaseOnABetterImage: the way out that a release names where its image cannot
// run is one.
func TestReleaseOnABetterImage(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.afterHalt()
		if _, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:crash"}); err == nil {
			t.Fatal("it is done")
		}
		op := tool.op()
		tool.exit()
		tool = w.tool()
		_, err := tool.ops().Abort(tool.ctx, op)
		var refused *rolling.RefusedError
		if !errors.As(err, &refused) {
			t.Fatalf("got %v", err)
		}
		said := refused.Checks[0].Reason
		at := 0
		for _, words := range []string{"stop the nodes by hand (docker stop)",
			"qnetops abort " + op + " --waive point_of_no_return=REASON", "qnetops halt release IMAGE"} {
			i := strings.Index(said[at:], words)
			if i < 0 {
				t.Fatalf("%q does not say %q in its turn", said, words)
			}
			at += i
		}
		for _, id := range w.ids() {
			w.inject(id, "stop", "")
		}
		if doc, err := tool.ops(closing).Abort(tool.ctx, op); err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		w.released(tool)
		w.healthy()
		w.clean()
	})
}

// TestReleaseAfterAHaltThatWasClosed: a halt that was closed as it stood has recorded
// the policies too.
func TestReleaseAfterAHaltThatWasClosed(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.cancelAt(cutover.Verify)
		if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)}); err == nil {
			t.Fatal("not interrupted")
		}
		op := tool.op()
		tool.exit()
		tool = w.tool()
		if doc, err := tool.ops(closing).Abort(tool.ctx, op); err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		w.released(tool)
		w.clean()
	})
}

// TestPassedByKeepsItsOldContainers: a host that was passed by before its successor had
// proven itself keeps what it had, although it answers again in the end (invariant 3).
func TestPassedByKeepsItsOldContainers(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.afterHalt()
		tool.when(cutover.Verify, "begun", func() { w.inject("003", "drop-ssh", "hold") })
		_, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
		if err == nil || !strings.Contains(err.Error(), "held in phase verify, not finished: 003: missing") {
			t.Fatalf("got %v", err)
		}
		op := tool.op()
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		tool.when(cutover.Release, "begun", func() { w.Clear("003", "drop-ssh") })
		if doc, err := tool.ops(because).Resume(tool.ctx, op); err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range w.ids() {
			want := 1
			if id == "003" {
				want = 3
			}
			if got := w.all(id); len(got) != want {
				t.Errorf("%s: %s", id, names(got))
			}
		}
		w.clean()
	})
}

// TestReleaseGoesOnWithoutACrashLoop: one node that crashes at each start holds the
// release, with the way on without it.
func TestReleaseGoesOnWithoutACrashLoop(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.afterHalt()
		looping := false
		tool.when(cutover.Verify, "begun", func() {
			if !looping {
				looping = true
				w.loops("003")
			}
		})
		_, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
		if err == nil || !strings.Contains(err.Error(), "003: failed: ") ||
			!strings.Contains(err.Error(), "stopped by hand (docker stop), then --waive members=REASON passes it by") {
			t.Fatalf("got %v", err)
		}
		op := tool.op()
		tool.exit()
		w.inject("003", "stop", "")
		tool = w.tool()
		defer tool.exit()
		if doc, err := tool.ops(because).Resume(tool.ctx, op); err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range []string{"001", "002", "004"} {
			w.runs(id, "v2")
		}
		w.clean()
	})
}

// released starts a halted fleet on the next image, with nothing left of the halt.
func (w *world) released(t *tool) {
	w.Helper()
	if _, err := t.release(cutover.ReleaseAsk{Ask: t.ask(), Image: "qnet:v2"}); err != nil {
		w.Fatal(err)
	}
	for _, id := range w.ids() {
		w.runs(id, "v2")
	}
}
