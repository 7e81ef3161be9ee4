package cutover_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/rolling"
)

var because = rolling.Waiver{Check: "members", Reason: "a test"}

// TestHaltRefusals: bad input is refused with its numbers and changes nothing.
func TestHaltRefusals(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		tool := w.tool()
		tip := w.tip()
		_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: tip - 10})
		w.mustRefuse(err, "halt_height", "at or below the tip")
		_, err = tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: tip + 200})
		w.mustRefuse(err, "halt_height", "(2 x 5 nodes x 310 blocks)")
		ask := tool.ask()
		ask.At = time.Now().Add(-time.Minute)
		_, err = tool.halt(cutover.HaltAsk{Ask: ask, Height: w.far(5)})
		w.mustRefuse(err, "start_time", "ago")
		ask = tool.ask()
		ask.Hosts, ask.Skipped = []string{"001", "002", "003", "004"}, []string{"005"}
		_, err = tool.halt(cutover.HaltAsk{Ask: ask, Height: w.far(5)})
		w.mustRefuse(err, "members", "1 of 5 committee members take no part")
		_, err = tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2", Policy: "always"})
		w.mustRefuse(err, "halted", "a release starts a fleet that has halted")
		_, err = tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
		w.mustRefuse(err, "policy", "name it with --policy")
		if n := len(w.changes()); n > 0 {
			t.Errorf("refusals changed something: %q", w.changes())
		}
		w.clean()
	})
}

// changes lists what was asked of the engines that changes something.
func (w *world) changes() (out []string) {
	for _, r := range w.lab.Requests() {
		if r.Method != "GET" && r.Method != "HEAD" {
			out = append(out, r.Host+" "+r.Method+" "+r.Path)
		}
	}
	return out
}

// TestTooLateDisarms: when the time runs out half way, what was armed is disarmed
// and the operation is over, with a height that would do.
func TestTooLateDisarms(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.emit = func(e rolling.Event) {
			if e.Kind == rolling.KindStep && e.Name == "replace" && e.State == "done" && e.Node == "002" {
				time.Sleep(6 * rolling.ExpectedNode * fast) // a slow host, a slow image, a slow operator
			}
		}
		_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)})
		var stopped *rolling.StoppedError
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "node 003 is not armed") || !strings.Contains(stopped.Hint(), "--height ") {
			t.Fatalf("got %v", err)
		}
		w.untouched()
		if open := tool.unfinished(); open != "" {
			t.Errorf("operation %s is left", open)
		}
		w.healthy()
		w.clean()
	})
}

// untouched asserts that every node runs its first container as it was.
func (w *world) untouched() {
	w.Helper()
	for _, id := range w.ids() {
		w.runs(id, "v1")
	}
}

// TestAbort: before the first stop everything is taken back; after it abort
// refuses and says what leads on, and the waiver closes the operation as it stands.
func TestAbort(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.cancelAt(cutover.Hold)
		if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)}); err == nil {
			t.Fatal("not interrupted")
		}
		tool.exit()
		tool = w.tool()
		doc, err := tool.ops().Abort(tool.ctx, tool.unfinished())
		if err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v %v", doc, err)
		}
		w.untouched()
		w.healthy()
		tool.exit()

		tool = w.tool()
		tool.cancelAt(cutover.Verify)
		if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)}); err == nil {
			t.Fatal("not interrupted")
		}
		tool.exit()
		tool = w.tool()
		open := tool.unfinished()
		_, err = tool.ops().Abort(tool.ctx, open)
		w.mustRefuse(err, "point_of_no_return", "qnetops resume "+open)
		if _, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"}); !errors.As(err, new(*journal.UnfinishedError)) {
			t.Errorf("a second operation: %v", err)
		}
		waiver := rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}
		if doc, err := tool.ops(waiver).Abort(tool.ctx, open); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
			t.Errorf("%+v %v", doc, err)
		}
		for _, id := range w.ids() {
			w.down(id)
		}
		w.clean()
	})
}

// TestEngineRestartsWhileArmed: a node that its engine ended before the height is
// started again and stops there; a node that somebody starts after its stop is
// stopped again, also where its policy was changed.
func TestEngineRestartsWhileArmed(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		h := w.far(4)
		var restarted, revived bool
		tool.emit = func(e rolling.Event) {
			switch {
			case e.Kind == rolling.KindNote && e.Name == string(cutover.Hold) && e.State == "begun" && !restarted:
				restarted = true
				w.inject("002", "engine-restart", "")
			case e.Kind == rolling.KindStep && e.Name == "halt_policy" && e.State == "done" && !revived:
				revived = true
				if err := w.host(e.Node).Engine().StartContainer(w.host(e.Node).Spec().Container); err != nil {
					w.Errorf("start: %v", err)
				}
			}
		}
		doc, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: h})
		if err != nil {
			t.Fatal(err)
		}
		if !restarted || !revived {
			t.Errorf("restarted %v, revived %v", restarted, revived)
		}
		if !slices.ContainsFunc(doc.Hosts, func(n cutover.HostResult) bool { return strings.Contains(n.Text, "came back") }) {
			t.Errorf("nobody is said to have come back: %+v", doc.Hosts)
		}
		for _, n := range doc.Hosts {
			// The one that came back was stopped in its boot, before it handles a signal.
			if c := w.node(n.ID); c.State != "exited" || c.RestartPolicy != "no" || c.ExitCode != 0 && !strings.Contains(n.Text, "came back") {
				t.Errorf("%s: %s, %s", n.ID, names(w.all(n.ID)), n.Text)
			}
		}
		w.clean()
	})
}

// TestHostAway: a host that cannot be seen holds the operation, by name; it goes
// on when the host is back, and by the waiver without it.
func TestHostAway(t *testing.T) {
	for name, back := range map[string]bool{"comes back": true, "stays away": false} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				tool := w.tool()
				tool.when(cutover.Hold, "begun", func() { w.inject("003", "drop-ssh", "hold") })
				_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(5)})
				var stopped *rolling.StoppedError
				if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "held in phase go, not finished: 003: missing") {
					t.Fatalf("got %v", err)
				}
				tool.exit()
				tool = w.tool()
				waivers := []rolling.Waiver{because}
				if back {
					waivers = nil
					if err := w.lab.Clear("003", ""); err != nil {
						t.Fatal(err)
					}
				}
				doc, err := tool.ops(waivers...).Resume(tool.ctx, tool.unfinished())
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range doc.Hosts {
					if gone := n.ID == "003" && !back; (n.State == cutover.Missing) != gone || (n.StopHeight == nil) != gone {
						t.Errorf("%+v", n)
					}
				}
				w.clean()
			})
		})
	}
}

// TestStartTime: a halt counts down, speaks while it does, and begins no earlier.
func TestStartTime(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		ask := tool.ask()
		ask.At = time.Now().Add(20 * time.Second).Truncate(time.Second)
		var first time.Time
		said := 0
		tool.emit = func(e rolling.Event) {
			if e.Kind == rolling.KindWait && strings.Contains(e.Text, "begins at") {
				said++
			}
			if e.Kind == rolling.KindStep && first.IsZero() {
				first = e.At
				tool.cancel()
			}
		}
		_, err := tool.halt(cutover.HaltAsk{Ask: ask, Height: w.far(4) + 2000})
		if !errors.Is(err, context.Canceled) || first.Before(ask.At) || said < 3 {
			t.Errorf("first step %s, start %s, said %d times: %v", first, ask.At, said, err)
		}
	})
}

// TestReleaseThatCannotRun: an image that crashes holds the release in verify, with
// the old containers kept; abort refuses, and the waiver lets a better image be rolled.
func TestReleaseThatCannotRun(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.tool()
		if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: w.far(4)}); err != nil {
			t.Fatal(err)
		}
		doc, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:crash"})
		var stopped *rolling.StoppedError
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "held in phase verify") || doc.Outcome != rolling.OutcomeStopped {
			t.Fatalf("got %v, %+v", err, doc)
		}
		for _, id := range w.ids() {
			if got := w.all(id); len(got) != 3 {
				t.Errorf("%s: %s, want both old containers kept", id, names(got))
			}
		}
		_, err = tool.ops().Abort(tool.ctx, tool.unfinished())
		w.mustRefuse(err, "point_of_no_return", "has been started on 001, 002, 003, 004")
		if _, err := tool.ops(rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}).Abort(tool.ctx, tool.unfinished()); err != nil || tool.unfinished() != "" {
			t.Error(err)
		}
		w.clean()
	})
}

// TestReleaseAbort: before the first start a release is taken back whole.
func TestReleaseAbort(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		tool := w.afterHalt()
		tool.cancelAt(cutover.Hold)
		if _, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"}); err == nil {
			t.Fatal("not interrupted")
		}
		tool.exit()
		tool = w.tool()
		if doc, err := tool.ops().Abort(tool.ctx, tool.unfinished()); err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v %v", doc, err)
		}
		for _, id := range w.ids() {
			w.down(id)
			if got := w.all(id); len(got) != 2 {
				t.Errorf("%s: %s", id, names(got))
			}
		}
		if _, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"}); err != nil {
			t.Fatal(err)
		}
		for _, id := range w.ids() {
			w.runs(id, "v2")
		}
		w.clean()
	})
}
