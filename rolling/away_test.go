package rolling_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

var lostMember = rolling.Waiver{Check: "members", Reason: "its disk burnt"}

// dies takes a host away for good: its node ends and nobody comes to it any more.
func (w *world) dies(id string) {
	w.Inject(id, "drop-ssh", "hold")
	_ = w.Host(id).Engine().StopContainer(w.Host(id).Spec().Container) // it may be down already
}

// TestAbortPassesALostHostBy: the host of the node in flight dies for good, with the operator's process or under its eyes. The
// roll is ended all the same, by an abort with the waiver, and by nothing else; what the lost node was left in is said.
func TestAbortPassesALostHostBy(t *testing.T) {
	for name, at := range map[string]point{"in doubt": {"tx stop_old intent", 1}, "watched": {"milestone M1", 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				tool := w.tool()
				tl := w.follow(tool, func(p point) {
					if p == at {
						tool.Kill()
					}
				})
				if _, err := tool.roll(tool.spec("qnet:v2", "002", "003")); err == nil {
					t.Fatal("the roll is done")
				}
				tl.stop()
				tool.Exit()
				op := w.tool().Unfinished()
				w.dies("002")
				w.lostIsNamed(op)
				tool = w.tool()
				doc, err := tool.Ops(lostMember).Abort(tool.Ctx, op)
				if err != nil || outcomes(doc)["002"] != rolling.NodeHeld || outcomes(doc)["003"] != rolling.NodeUntouched {
					t.Fatalf("%v, %+v", err, doc)
				}
				if reason := nodeOf(doc, "002").Reason; !strings.Contains(reason, "cannot be reached") ||
					!strings.Contains(reason, "may be down or run either container") || !strings.Contains(reason, lostMember.Reason) {
					t.Errorf("reason %q", reason)
				}
				record := tool.Operations()[0]
				if record.State != journal.Aborted || len(record.Unsettled()) > 0 {
					t.Errorf("%s, in doubt %+v", record.State, record.Unsettled())
				}
				w.runs("003", "v1") // and nothing staged is left there
				tool.Exit()
				w.Clear("002", "drop-ssh") // it was not gone for good after all
				w.Inject("002", "reboot", "")
				w.Blocks(500)
				tool = w.tool()
				if n, err := tool.restore("002"); err != nil || n.Outcome != rolling.NodeRestored {
					t.Errorf("put back once it is there again: %+v, %v", n, err)
				}
				w.runs("002", "v1")
				tool.Exit()
				w.Clean()
			})
		})
	}
}

// lostIsNamed: neither a resume nor an abort without the waiver goes on, and both name the one way out there is.
func (w *world) lostIsNamed(op string) {
	w.Helper()
	for what, run := range map[string]func(t *tool) error{
		"resume":                 func(t *tool) error { _, err := t.resume(op); return err },
		"resume with the waiver": func(t *tool) error { _, err := t.Ops(lostMember).Resume(t.Ctx, op); return err },
		"abort":                  func(t *tool) error { _, err := t.abort(op); return err },
	} {
		tool := w.tool()
		err := run(tool)
		var away *rolling.AwayError
		if !errors.As(err, &away) || !strings.Contains(away.Hint(), "qnetops abort "+op+" --waive members=REASON") {
			w.Errorf("%s: %v, want the way out named", what, err)
		}
		var hint interface{ Hint() string }
		for e := err; errors.As(e, &hint); e = errors.Unwrap(hint.(error)) {
			if strings.Contains(hint.Hint(), "--skip") {
				w.Errorf("%s: hint %q", what, hint.Hint())
			}
		}
		tool.Exit()
	}
}

// TestAbortPassesNobodyByWhoAnswers: the waiver is for machines that are gone. A host that can be spoken to is not passed by, and
// one that comes back before the abort is put back as without it.
func TestAbortPassesNobodyByWhoAnswers(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tl := w.follow(tool, func(p point) {
			if p == (point{"milestone M1", 1}) {
				tool.Kill()
			}
		})
		if _, err := tool.roll(tool.spec("qnet:v2", "002")); err == nil {
			t.Fatal("the roll is done")
		}
		tl.stop()
		tool.Exit()
		op := w.tool().Unfinished()
		w.Inject("002", "engine-down", "")
		tool = w.tool()
		doc, err := tool.Ops(lostMember).Abort(tool.Ctx, op)
		if err == nil || tool.Unfinished() != op {
			t.Fatalf("passed by: %v, %+v", err, doc)
		}
		tool.Exit()
		w.Clear("002", "engine-down")
		w.Blocks(500)
		tool = w.tool()
		doc, err = tool.Ops(lostMember).Abort(tool.Ctx, op)
		if err != nil || outcomes(doc)["002"] != rolling.NodeRestored {
			t.Errorf("%v, %+v, %s", err, doc, rollingtest.Names(w.Nodes("002")))
		}
		tool.Exit()
		w.runs("002", "v1")
		w.Clean()
	})
}
