package rolling_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// oneByOne rolls the plan of a spec within an operation of another room, which has no checks of its own.
func (t *tool) oneByOne(spec rolling.Spec, noPutBack bool) error {
	plan, err := t.look(t.Ctx, spec)
	if err != nil {
		return err
	}
	room := journal.Spec{Kind: "room", Plan: []byte("{}"), PlanDigest: "none"}
	return t.Ops().Begin(t.Ctx, room, func(ctx context.Context, s *rolling.Session) error {
		r := s.Runner(plan)
		r.NoPutBack = noPutBack
		if _, err := r.OneByOne(ctx); err != nil {
			return s.Stop(ctx, err)
		}
		return s.Finish(ctx, journal.Done, "rolled")
	})
}

// startFails keeps the engine of a host from starting the successor that a roll has staged there.
func (t *tool) startFails(id string) {
	during(t, func() {
		for _, c := range t.w.Nodes(id) {
			if strings.Contains(c.Name, "-next-") {
				t.w.Inject(id, "start-fail", c.Name)
			}
		}
	})
}

// TestRestorePrefersTheHeldContainer: a halt keeps the container from before it aside; where the successor of the armed one does
// not start, that is held, and it is what a restore brings back: the older one would run past the height by the old rules.
func TestRestorePrefersTheHeldContainer(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		err := tool.armed("4000000", func(ctx context.Context, s *rolling.Session, r *rolling.Runner) error {
			if _, err := r.Arm(ctx); err != nil {
				return s.Stop(ctx, err)
			}
			return s.Finish(ctx, journal.Done, "armed")
		})
		if err != nil {
			t.Fatal(err)
		}
		tool.Exit()
		armed := w.Node("003").ID
		w.Wait(2 * time.Second) // names of containers carry the second
		tool = w.tool()
		tool.startFails("003")
		w.stopped(tool.oneByOne(tool.spec("qnet:v2", "003"), true), "003", "the node is down")
		tool.Exit()
		w.Clear("", "")
		older := slices.ContainsFunc(w.Nodes("003"), func(c engine.Summary) bool { return strings.Contains(c.Name, "-pre-") })
		if c := w.Node("003"); !older || c.ID != armed || c.State != "exited" {
			t.Fatalf("003: %s, want the armed one held beside an older one", rollingtest.Names(w.Nodes("003")))
		}
		var refused *rolling.RefusedError
		if _, err := w.tool().restore("003"); !errors.As(err, &refused) || refused.Checks[0].Name != "one_shot" ||
			!strings.Contains(err.Error(), "QNET_HALT_HEIGHT") {
			t.Errorf("%v, want a refusal by check one_shot", err)
		}
		if got := w.Running("003"); len(got) > 0 {
			t.Errorf("%s runs", rollingtest.Names(got))
		}
		plan, err := w.tool().Ops().LookBack(t.Context(), "003", []rolling.Waiver{{Check: "one_shot", Reason: "a test"}})
		if err != nil || plan.Nodes[0].ContainerID != armed {
			t.Errorf("%+v %v, want %s", plan.Nodes, err, armed)
		}
		w.Clean()
	})
}

// TestRestoreLostBeforeItBegan: the connection is lost before a held node's put-back has begun. Its old container bears the
// node's name all along and is stopped: that is no put-back that is done, and the next try does it.
func TestRestoreLostBeforeItBegan(t *testing.T) {
	for _, within := range []bool{true, false} {
		t.Run(map[bool]string{true: "within the roll", false: "by itself"}[within], func(t *testing.T) {
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				old := w.Node("001").ID
				tool := w.tool()
				tool.startFails("001")
				w.stopped(tool.oneByOne(tool.spec("qnet:v2", "001"), true), "001", "the node is down")
				tool.Exit()
				w.Clear("", "")
				w.Wait(2 * time.Second) // names of containers carry the second
				state := "state.db"
				if !within { // the operator's machine and its state are gone
					state = "new.db"
					for _, id := range w.IDs() {
						os.Remove(filepath.Join(w.Host(id).Root(), host.DefaultStateDir, "fence.json"))
					}
				}
				tool = w.toolAt(state)
				tool.when(rolling.KindStep, "putback", "begun", func() { w.Inject("001", "drop-ssh", "") })
				_, err := tool.restore("001")
				w.stopped(err, "001", "the connection was lost before the node was touched")
				if c := w.Node("001"); c.ID != old || c.State != "exited" {
					t.Errorf("001: %s", rollingtest.Names(w.Nodes("001")))
				}
				for _, s := range tool.Operations()[0].Steps {
					if s.ID == "001/putback" && s.State != journal.StepFailed {
						t.Errorf("step %s is %s", s.ID, s.State)
					}
				}
				tool.Exit()
				tool = w.toolAt(state)
				if n, err := tool.restore("001"); err != nil || n.Outcome != rolling.NodeRestored {
					t.Fatalf("%+v %v", n, err)
				}
				if c := w.Node("001"); c.ID != old || c.State != "running" || c.RestartPolicy != "always" {
					t.Errorf("001: %s", rollingtest.Names(w.Nodes("001")))
				}
				tool.Exit()
				w.Clean()
			})
		})
	}
}

// hintsOf are all hints of an error's tree, as they are printed.
func hintsOf(err error) string {
	var out []string
	if h, ok := err.(interface{ Hint() string }); ok {
		out = append(out, h.Hint())
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			out = append(out, hintsOf(inner))
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			out = append(out, hintsOf(inner))
		}
	}
	return strings.Join(out, "\n")
}

// leftover asserts that an error names what is left on 001 and the command that clears it.
func (w *world) leftover(err error, command string) {
	w.Helper()
	var left *rolling.LeftoverError
	hints := hintsOf(err)
	if !errors.As(err, &left) || left.Node != "001" || !strings.Contains(hints, "qnetops "+command+" clears it") ||
		strings.Count(hints, " clears it") != 1 || !strings.Contains(hints, "--waive leftover=REASON") {
		w.Errorf("%v\nhints: %s\nwant what is left on 001, cleared by %s", err, hints, command)
	}
}

// TestLeftoverNamesWhatClearsIt: what a bad image has left beside a node that is on its old container again is cleared by abort.
// A resume would stop the node once more and start the bad image again.
func TestLeftoverNamesWhatClearsIt(t *testing.T) {
	full := func(w *world, tool *tool) {
		tool.when(rolling.KindStep, "putback", "begun", func() { w.Inject("001", "disk-full", "0") })
	}
	// rolled back has 001 on its old container again, with the failed one beside it.
	rolledBack := func(w *world) (op string) {
		w.Helper()
		tool := w.tool()
		full(w, tool)
		doc, err := tool.roll(tool.spec("qnet:liar"))
		if n := nodeOf(doc, "001"); n.Outcome != rolling.NodeRestored {
			w.Fatalf("%+v %v", n, err)
		}
		op = tool.Op()
		w.leftover(err, "abort "+op)
		tool.Exit()
		return op
	}
	cleared := func(w *world, op string, mark int) {
		w.Helper()
		w.Clear("", "")
		w.abortAll(op)
		if stops := w.changes("001", mark); slices.ContainsFunc(stops, func(s string) bool { return strings.HasSuffix(s, "/stop") }) {
			w.Errorf("001 was stopped again: %q", stops)
		}
		w.Clean()
	}
	t.Run("put back by itself", func(t *testing.T) {
		inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
			op, mark := rolledBack(w), len(w.Lab.Requests())
			tool := w.tool()
			_, err := tool.abort(op) // nothing is mended yet
			w.leftover(err, "abort "+op)
			tool.Exit()
			cleared(w, op, mark)
		})
	})
	t.Run("aborted", func(t *testing.T) {
		inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
			tool := w.tool()
			_, err := tool.roll(tool.spec("qnet:mute"))
			op := w.stopped(err, "001", "M3").Operation
			tool.Exit()
			tool = w.tool()
			full(w, tool)
			_, err = tool.abort(op)
			w.leftover(err, "abort "+op)
			tool.Exit()
			cleared(w, op, len(w.Lab.Requests()))
		})
	})
	t.Run("restored in the middle of a roll", func(t *testing.T) {
		inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
			tool := w.tool()
			_, err := tool.roll(tool.spec("qnet:mute"))
			op := w.stopped(err, "001", "M3").Operation
			tool.Exit()
			tool = w.tool()
			full(w, tool)
			_, err = tool.restore("001")
			w.leftover(err, "abort "+op)
			tool.Exit()
			cleared(w, op, len(w.Lab.Requests()))
		})
	})
	t.Run("waived", func(t *testing.T) {
		inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
			op := rolledBack(w)
			tool := w.tool()
			if _, err := tool.said(tool.Ops(rolling.Waiver{Check: "leftover", Reason: "by hand"}).Abort(tool.Ctx, op)); err != nil {
				t.Fatal(err)
			}
			if got := w.Nodes("001"); len(got) != 2 || tool.Unfinished() != "" {
				t.Errorf("001: %s", rollingtest.Names(got))
			}
			tool.Exit()
			w.Clean()
		})
	})
	t.Run("rolled", func(t *testing.T) {
		inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
			tool := w.tool()
			tool.Emit = func(e rolling.Event) {
				switch {
				case e.Node == "001" && e.Kind == rolling.KindStep && e.Name == "replace" && e.State == "begun":
					w.Inject("001", "lie-build", "")
				case e.Kind == rolling.KindStep && e.Name == "putback" && e.State == "begun":
					w.Clear("001", "lie-build")
					w.Inject("001", "disk-full", "0")
				}
			}
			_, err := tool.roll(tool.spec("qnet:v2"))
			op := w.stopped(err, "001", "M1").Operation
			tool.Exit()
			w.Clear("", "")
			w.Wait(2 * time.Second) // names of containers carry the second
			tool = w.tool()
			tool.when(rolling.KindStep, "finish", "done", func() { w.Inject("001", "disk-full", "0") })
			_, err = tool.resume(op)
			w.leftover(err, "resume "+op)
			tool.Exit()
			w.Clear("", "")
			w.resumed("v2", w.IDs()...)
		})
	})
}

// TestUnseenIsNotCleared: whether something is left cannot be seen at that moment; the abort does not pass for done.
func TestUnseenIsNotCleared(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		_, err := tool.roll(tool.spec("qnet:mute"))
		op := w.stopped(err, "001", "M3").Operation
		tool.Exit()
		tool = w.tool()
		proven := false
		tool.when(rolling.KindMilestone, "M2", "pass", func() { proven = true })
		w.Lab.OnAgentRequest(func(id, method string) {
			if id == "001" && method == "situation" && proven {
				proven = false
				w.Inject("001", "drop-ssh", "")
			}
		})
		_, err = tool.abort(op)
		w.Lab.OnAgentRequest(nil)
		w.leftover(err, "abort "+op)
		if got := w.Nodes("001"); len(got) != 2 || tool.Unfinished() != op {
			t.Errorf("001: %s, open %q", rollingtest.Names(got), tool.Unfinished())
		}
		tool.Exit()
		w.abortAll(op)
		w.Clean()
	})
}

// TestLostHostIsPassedBy: a step is in doubt on a host whose machine is gone. That holds whoever takes the operation up, until
// the host is passed by name; a waiver of the plan is none.
func TestLostHostIsPassedBy(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		w.Lab.OnAgentOutput(func(id string, line []byte) {
			if id == "002" && strings.Contains(string(line), `"stop_old"`) {
				tool.Kill()
			}
		})
		err := tool.oneByOne(tool.spec("qnet:v2", "002"), true)
		w.Lab.OnAgentOutput(nil)
		if err == nil {
			t.Fatal("it is done")
		}
		tool.Exit()
		w.Inject("002", "drop-ssh", "hold")
		op := w.tool().Unfinished()
		members := rolling.Waiver{Check: "members", Reason: "its disk burnt"}
		lost := rolling.NodePlan{ID: "002", Container: w.Host("002").Spec().Container}
		plan := rolling.Plan{Waivers: []rolling.Waiver{members}, Nodes: []rolling.NodePlan{lost}}
		settle := func(waivers ...rolling.Waiver) (err error) {
			tool := w.tool()
			defer tool.Exit()
			none := func(journal.Record) error { return nil }
			return tool.Ops(waivers...).Continue(tool.Ctx, op, none, func(ctx context.Context, s *rolling.Session) error {
				err = s.Runner(plan).Settle(ctx)
				return s.Stop(ctx, errors.Join(err, errors.New("enough")))
			})
		}
		var doubt *rolling.InDoubtError
		if err := settle(); !errors.As(err, &doubt) || doubt.Node != "002" ||
			!strings.Contains(err.Error(), "--waive members=REASON") {
			t.Errorf("%v, want it in doubt", err)
		}
		if err := settle(members); errors.As(err, &doubt) {
			t.Errorf("passed by: %v", err)
		}
		record := w.tool().Operations()[0]
		if open := record.Unsettled(); len(open) > 0 {
			t.Errorf("in doubt: %+v", open)
		}
		want := []string{"failed the host cannot be reached; passed by: its disk burnt"}
		if said := w.saw("002", rolling.KindNote, "002/replace"); !slices.Equal(said, want) {
			t.Errorf("said %q", said)
		}
		w.Clean()
	})
}

// TestStoppedDoesNotSayThatNothingWasChanged: a refusal under way is one of an operation that has changed something.
func TestStoppedDoesNotSayThatNothingWasChanged(t *testing.T) {
	check := observe.Check{Name: "container", Verdict: observe.Fail, Reason: "it is another one"}
	refused := &rolling.RefusedError{Checks: []observe.Check{check}}
	stop := &rolling.StoppedError{Operation: "halt-1", Node: "003", Reason: "its successor no longer matches", Err: refused}
	want := "operation halt-1 stopped at node 003: its successor no longer matches: refused:\n" +
		"  check container: fail: it is another one"
	if got := stop.Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
