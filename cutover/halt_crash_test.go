package cutover_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// loops makes the node of a host end at each of its starts; its engine starts it
// again and again (facts 8 #18).
func (w *world) loops(id string) {
	w.Helper()
	mark := filepath.Join(w.host(id).DataDir(), "signed-mark.json")
	if err := os.WriteFile(mark, []byte("{"), 0o600); err != nil {
		w.Fatal(err)
	}
	w.again(id)
}

// TestHaltEndsDespiteACrashLoop: a node that crashes at each start never comes to its
// stop. The command ends, with the node stopped and named, and goes on without it
// when a person says so.
func TestHaltEndsDespiteACrashLoop(t *testing.T) {
	if !testing.Short() {
		t.Parallel()
	}
	// At the pace of the real chain: an engine waits up to a minute before the next start.
	rollingtest.InLab(t, lab.Config{Nodes: 4, Block: time.Second}, func(t *testing.T, base *rollingtest.World) {
		w := worldOf(base)
		tool := w.tool()
		h := w.far(4)
		ctx, cancel := context.WithTimeout(tool.ctx, 6*4*rolling.ExpectedNode*time.Second)
		defer cancel()
		tool.ctx = ctx
		looping := false
		tool.when(cutover.Hold, "begun", func() {
			if !looping {
				looping = true
				w.loops("004")
			}
		})
		_, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: h})
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "held in phase go, not finished: 004: failed: ") ||
			!strings.Contains(err.Error(), "crash") {
			t.Fatalf("%v, got %v", ctx.Err(), err)
		}
		if c := w.node("004"); c.State != "exited" || c.RestartPolicy != "no" {
			t.Errorf("004: %s, want it stopped for good", names(w.all("004")))
		}
		op := tool.op()
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		doc, err := tool.ops(because).Resume(tool.ctx, op)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, n := range doc.Hosts {
			if (n.StopHeight == nil) != (n.ID == "004") {
				t.Errorf("%+v", n)
			}
		}
		w.areDown("001", "002", "003")
		w.clean()
	})
}
