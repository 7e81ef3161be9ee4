package cutover_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// armedUntil arms a fleet, is interrupted, and lets time pass until so many blocks
// are left.
func (w *world) armedUntil(left uint64) (op string, height uint64) {
	w.Helper()
	tool := w.tool()
	height = w.far(len(w.ids()))
	tool.cancelAt(cutover.Hold)
	if _, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: height}); err == nil {
		w.Fatal("it was not interrupted")
	}
	tool.exit()
	for w.tip() < height-left {
		w.Blocks(10)
	}
	return tool.op(), height
}

// TestDisarmAsksForTime: a halt that cannot be taken back whole before its height is
// not taken back at all; the height is waited for.
func TestDisarmAsksForTime(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		op, _ := w.armedUntil(500)
		tool := w.tool()
		_, err := tool.ops().Abort(tool.ctx, op)
		w.mustRefuse(err, "point_of_no_return", "1240 blocks are needed to disarm 4 nodes")
		w.mustRefuse(err, "point_of_no_return", "qnetops resume "+op)
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		if doc, err := tool.ops().Resume(tool.ctx, op); err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range w.ids() {
			w.down(id)
		}
		w.clean()
	})
}

// TestDisarmOvertaken: a disarm that takes longer than there was time is ended all
// the same: a node that has stopped costs no vote, and those that have are started
// together, for they wait for each other.
func TestDisarmOvertaken(t *testing.T) {
	t.Run("in one run", func(t *testing.T) {
		inLab(t, 5, func(t *testing.T, w *world) {
			op, _ := w.armedUntil(6 * rolling.ExpectedNode)
			tool := w.tool()
			defer tool.exit()
			tool.emit = func(e rolling.Event) {
				if e.Kind == rolling.KindStep && e.Name == "putback" && e.State == "done" && e.Node == "005" {
					w.stopped("001", "002", "003", "004")
				}
			}
			if doc, err := tool.ops().Abort(tool.ctx, op); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.untouched()
			w.healthy()
			w.clean()
		})
	})
	t.Run("while it waits", func(t *testing.T) {
		inLab(t, 5, func(t *testing.T, w *world) {
			op, height := w.armedUntil(6 * rolling.ExpectedNode)
			tool := w.tool()
			defer tool.exit()
			tool.emit = func(e rolling.Event) {
				if e.Kind == rolling.KindStep && e.Name == "putback" && e.State == "done" && e.Node == "005" {
					w.inject("001", "mute", "") // so that the quorum is waited for until the height
					for w.tip() < height-300 {
						w.Blocks(10)
					}
				}
			}
			doc, err := tool.ops().Abort(tool.ctx, op)
			w.Clear("001", "mute")
			if err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.untouched()
			w.healthy()
			w.clean()
		})
	})
	t.Run("resumed", func(t *testing.T) {
		inLab(t, 5, func(t *testing.T, w *world) {
			op, _ := w.armedUntil(6 * rolling.ExpectedNode)
			tool := w.tool()
			tool.emit = func(e rolling.Event) {
				if e.Node == "004" && e.Name == "quorum" {
					tool.kill()
				}
			}
			if _, err := tool.ops().Abort(tool.ctx, op); err == nil {
				t.Fatal("the process did not die")
			}
			tool.exit()
			w.stopped("001", "002", "003", "004")
			tool = w.tool()
			defer tool.exit()
			if doc, err := tool.ops().Resume(tool.ctx, op); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
				t.Fatalf("%+v\n%v", doc, err)
			}
			w.untouched()
			w.healthy()
			w.clean()
		})
	})
}

// TestDisarmGoesPastAHostThatIsAway: a host that cannot be looked at keeps no other
// armed. It is named, and put back when it answers; or it is passed by.
func TestDisarmGoesPastAHostThatIsAway(t *testing.T) {
	for name, c := range map[string]struct {
		fault, arg string
		back       bool
	}{
		"comes back":    {"drop-ssh", "hold", true},
		"stays away":    {"drop-ssh", "hold", false},
		"has no engine": {"engine-down", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 7, func(t *testing.T, w *world) {
				op, _ := w.armedUntil(10 * rolling.ExpectedNode)
				w.inject("007", c.fault, c.arg)
				tool := w.tool()
				_, err := tool.ops().Abort(tool.ctx, op)
				var stopped *rolling.StoppedError
				if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "007") ||
					!strings.Contains(stopped.Hint(), "qnetops resume "+op) || !strings.Contains(stopped.Hint(), "--waive members=REASON") {
					t.Fatalf("got %v", err)
				}
				for _, id := range w.ids()[:6] {
					w.runs(id, "v1")
				}
				tool.exit()
				tool = w.tool()
				var waivers []rolling.Waiver
				if c.back {
					w.Clear("007", c.fault)
				} else {
					waivers = append(waivers, because)
				}
				doc, err := tool.ops(waivers...).Resume(tool.ctx, op)
				if err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
					t.Fatalf("%+v\n%v", doc, err)
				}
				tool.exit()
				if !c.back { // it is still armed when it comes back
					w.Clear("007", c.fault)
					w.setBack("007")
				}
				w.untouched()
				w.healthy()
				w.clean()
			})
		})
	}
}

// setBack is the command `qnetops restore NODE`.
func (w *world) setBack(id string) {
	w.Helper()
	tool := w.tool()
	defer tool.exit()
	plan, err := tool.Ops().LookBack(tool.ctx, id, nil)
	if err == nil {
		_, err = tool.Ops().Restore(tool.ctx, plan)
	}
	if err != nil {
		w.Fatal(err)
	}
}
