package rolling_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// push puts an image of the given environment into the registry.
func (w *world) push(tag string, env ...string) {
	w.Helper()
	if _, err := w.Lab.Registry().Push(lab.Repository+":"+tag, engine.Image{Entrypoint: []string{"/qnetops", "lab", "node"}, Env: env,
		WorkingDir: "/app", ExposedPorts: []string{"8001/tcp", "9876/tcp", "9877/tcp", "10876/udp"}, Size: 1 << 20}); err != nil {
		w.Fatal(err)
	}
}

// TestInvariant5SuccessorIsWrong: a successor that would not find the data, or
// whose build could never be told from the old one, is found before any stop.
func TestInvariant5SuccessorIsWrong(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		w.push("moved", "QNET_BUILD_ID=abcdef0", "QNET_DATA_DIR=/app/elsewhere")
		w.push("unstamped", "QNET_DATA_DIR=/app/data")
		for tag, check := range map[string]string{"moved": "data_dir", "unstamped": "build_stamp"} {
			tool := w.tool()
			_, err := tool.roll(tool.spec("qnet:"+tag, "001", "002"))
			w.MustRefuse(err, check, "002")
			if state := tool.Operations()[0].State; state != journal.Aborted {
				t.Errorf("%s: the operation is %s", tag, state)
			}
			tool.Exit()
		}
		if got := w.touched(); len(got) > 0 {
			t.Errorf("touched %v", got)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v1")
		}
		w.healthy("v1")
		w.Clean()
	})
}

// TestSetEnv: without an image each node keeps its own and gets the variable.
func TestSetEnv(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		before := w.inspect("002")["Config"].(map[string]any)["Env"]
		tool := w.tool()
		spec := tool.spec("", "002")
		spec.SetEnv = []host.EnvVar{{Name: "QNET_LOG_LEVEL", Value: "2"}}
		doc, err := tool.roll(spec)
		if err != nil {
			t.Fatal(err)
		}
		w.allPassed(nodeOf(doc, "002"))
		gone, added := setDiff(before, w.inspect("002")["Config"].(map[string]any)["Env"])
		if len(gone) != 0 || !slices.Equal(added, []string{"QNET_LOG_LEVEL=2"}) {
			t.Errorf("lost %q, gained %q", gone, added)
		}
		w.runs("002", "v1")
		w.Clean()
	})
}

// TestInvariant8LastLook: the outcome comes from the fleet as it is in the end.
func TestInvariant8LastLook(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.when(rolling.KindStep, "finish", "done", func() { w.Inject("002", "stop", "") })
		_, err := tool.roll(tool.spec("qnet:v2", "002"))
		w.stopped(err, "", "002: its container is exited")
		if state := tool.Operations()[0].State; state != journal.Stopped {
			t.Errorf("the operation is %s", state)
		}
		tool.Exit()
		if err := w.Lab.Clear("", ""); err != nil {
			t.Fatal(err)
		}
		w.Blocks(500)
		w.resumed("v2", "002")
	})
}

// resumed goes on with the open operation and asserts its end.
func (w *world) resumed(tag string, ids ...string) {
	w.Helper()
	tool := w.tool()
	if _, err := tool.resume(tool.Unfinished()); err != nil {
		w.Fatalf("resume: %v", err)
	}
	if open := tool.Unfinished(); open != "" {
		w.Errorf("operation %s is still open", open)
	}
	tool.Exit()
	for _, id := range ids {
		w.runs(id, tag)
	}
	w.healthy("")
	w.Clean()
}

// TestInvariant11ArchiveFirst: where the old log cannot be archived the old
// container stays.
func TestInvariant11ArchiveFirst(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.when(rolling.KindMilestone, "M4", "pass", func() { w.Inject("001", "disk-full", "0") })
		doc, err := tool.roll(tool.spec("qnet:v2", "001", "002"))
		w.stopped(err, "001", "not enough space to archive the log")
		if n := nodeOf(doc, "001"); n.Outcome != rolling.NodeRolled {
			t.Errorf("%+v", n)
		}
		if got := w.Nodes("001"); len(got) != 2 {
			t.Errorf("containers %s, want the old one kept", rollingtest.Names(got))
		}
		if got := w.touched(); !slices.Equal(got, []string{"001"}) {
			t.Errorf("touched %v", got)
		}
		tool.Exit()
		if err := w.Lab.Clear("", ""); err != nil {
			t.Fatal(err)
		}
		w.resumed("v2", "001", "002")
		w.archived("001", 1)
	})
}

// TestKilledAgainAndAgain: a resume may die as well, each time further on.
func TestKilledAgainAndAgain(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		for i, at := range []point{{"tx start_next intent", 1}, {"milestone M2", 1}, {"step finish begun", 1}, {"tx remove_aside intent", 1}} {
			tool := w.tool()
			var fired atomic.Bool
			tl := w.follow(tool, func(p point) {
				if p == at {
					fired.Store(true)
					tool.Kill()
				}
			})
			var err error
			if i == 0 {
				_, err = tool.roll(tool.spec("qnet:v2", victimHost))
			} else {
				_, err = tool.resume(tool.Unfinished())
			}
			tl.stop()
			tool.Exit()
			if !fired.Load() || err == nil {
				t.Fatalf("%s: fired %v, %v", at, fired.Load(), err)
			}
			w.Blocks(500)
		}
		w.resumed("v2", victimHost)
	})
}

// TestInterrupt: Ctrl-C lets the step in hand end and leaves the rest to resume;
// before the first stop it leaves nothing.
func TestInterrupt(t *testing.T) {
	for _, c := range []struct {
		step    string
		touched bool
	}{{"pull", false}, {"replace", true}} {
		t.Run(c.step, func(t *testing.T) {
			t.Parallel()
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				tool := w.tool()
				tool.when(rolling.KindStep, c.step, "begun", func() { tool.Cancel() })
				_, err := tool.roll(tool.spec("qnet:v2", "002", "003"))
				tool.Exit()
				if !c.touched {
					if err == nil || len(w.touched()) > 0 || unfinished(w.tool()) != "" {
						t.Errorf("%v, touched %v", err, w.touched())
					}
					w.runs("002", "v1")
					w.healthy("v1")
					return
				}
				if stop := w.stopped(err, "002", ""); !stop.Interrupted {
					t.Errorf("not interrupted: %v", err)
				}
				if got := w.Running("002"); len(got) != 1 || !rollingtest.IsImage(got[0], "v2") {
					t.Errorf("the step did not end: %s", rollingtest.Names(w.Nodes("002")))
				}
				w.resumed("v2", "002", "003")
			})
		})
	}
}

// TestSomebodyElse: a node whose container another hand has replaced meanwhile is
// left alone, and the operation can be ended.
func TestSomebodyElse(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.when(rolling.KindStep, "finish", "begun", func() { w.Inject("003", "log-level", "3") })
		doc, err := tool.roll(tool.spec("qnet:v2", "002", "003"))
		var doubt *rolling.InDoubtError
		if !errors.As(err, &doubt) || doubt.Node != "003" || doc.Outcome != rolling.OutcomeInDoubt {
			t.Fatalf("%v, %+v", err, doc)
		}
		if got := w.touched(); !slices.Equal(got, []string{"002"}) {
			t.Errorf("touched %v", got)
		}
		op := tool.Op()
		tool.Exit()
		tool = w.tool()
		doc, err = tool.abort(op)
		if err != nil || outcomes(doc)["002"] != rolling.NodeRolled || !strings.Contains(nodeOf(doc, "003").Reason, "somebody else") {
			t.Errorf("%v, %+v", err, doc)
		}
		tool.Exit()
		w.runs("002", "v2")
		w.runs("003", "v1")
		w.Clean()
	})
}
