package rolling_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// stopped asserts a stop at a node.
func (w *world) stopped(err error, node, words string) *rolling.StoppedError {
	w.Helper()
	var stop *rolling.StoppedError
	if !errors.As(err, &stop) {
		w.Fatalf("got %v, want a stop at %s", err, node)
	}
	if stop.Node != node || !strings.Contains(err.Error(), words) {
		w.Errorf("stopped at %q with %v, want %s with %q", stop.Node, err, node, words)
	}
	return stop
}

// touched lists the hosts on which a node's container was ever stopped.
func (w *world) touched() []string {
	var out []string
	for _, r := range w.Lab.Requests() {
		if strings.HasSuffix(r.Path, "/stop") && !slices.Contains(out, r.Host) {
			out = append(out, r.Host)
		}
	}
	return out
}

// TestBadImages: each bad image stops the roll at its own milestone with exactly
// one node touched, which is put back where that is promised.
func TestBadImages(t *testing.T) {
	for _, c := range []struct {
		tag, failed string
		outcome     string
		reason      string
	}{
		{"crash", "M0", rolling.NodeRestored, "restarted"},
		{"gap", "M0 M1", rolling.NodeRestored, ""},
		{"oom", "M0 M1", rolling.NodeRestored, ""},
		{"liar", "M1", rolling.NodeRestored, "/healthz shows build 1111111, want"},
		{"mute", "M3", rolling.NodeHeld, "no vote seen"},
	} {
		t.Run(c.tag, func(t *testing.T) {
			t.Parallel()
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				tool := w.tool()
				doc, err := tool.roll(tool.spec("qnet:" + c.tag))
				stop := w.stopped(err, "001", c.reason)
				n := nodeOf(doc, "001")
				if n.Outcome != c.outcome || doc.Outcome != rolling.OutcomeStopped {
					t.Errorf("%s is %s: %s, %+v", n.ID, n.Outcome, n.Reason, n.Milestones)
				}
				failed := ""
				for _, m := range n.Milestones {
					if m.Verdict == "fail" {
						failed = m.Name
					}
				}
				if failed == "" || !strings.Contains(c.failed, failed) {
					t.Errorf("failed at %q, want %s: %+v", failed, c.failed, n.Milestones)
				}
				if got := w.touched(); !slices.Equal(got, []string{"001"}) {
					t.Errorf("touched %v", got)
				}
				for _, id := range []string{"002", "003", "004"} {
					if outcomes(doc)[id] != rolling.NodeUntouched {
						t.Errorf("%s is %s", id, outcomes(doc)[id])
					}
				}
				// The liar is found out before it has written anything.
				if len(stop.LastLines) == 0 && c.tag != "liar" || !strings.Contains(stop.Hint(), "resume "+stop.Operation) {
					t.Errorf("the stop shows %d last lines and the hint %q", len(stop.LastLines), stop.Hint())
				}
				if c.outcome == rolling.NodeRestored {
					if len(w.Running("001")) != 1 || !rollingtest.IsImage(w.Running("001")[0], "v1") || len(w.Nodes("001")) != 1 {
						t.Errorf("containers %s", rollingtest.Names(w.Nodes("001")))
					}
				} else if got := w.Nodes("001"); len(got) != 2 || !rollingtest.IsImage(w.Running("001")[0], c.tag) {
					t.Errorf("containers %s, want the new one running and the old one aside", rollingtest.Names(got))
				}
				if state := tool.Operations()[0].State; state != journal.Stopped {
					t.Errorf("the operation is %s", state)
				}
				tool.Exit()
				w.abortAll(stop.Operation)
				w.Clean()
			})
		})
	}
}

// abortAll ends an operation and asserts that the fleet is on v1, with nothing left over.
func (w *world) abortAll(op string) {
	w.Helper()
	tool := w.tool()
	if _, err := tool.abort(op); err != nil {
		w.Fatalf("abort: %v", err)
	}
	if state := tool.Operations()[0].State; state != journal.Aborted {
		w.Errorf("the operation is %s", state)
	}
	tool.Exit()
	for _, id := range w.IDs() {
		w.runs(id, "v1")
	}
	w.healthy("v1")
}

// TestSlowImagePasses: a node that catches up late is not a failed one.
func TestSlowImagePasses(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:slow", "002"))
		if err != nil {
			t.Fatal(err)
		}
		w.allPassed(nodeOf(doc, "002"))
		w.runs("002", "slow")
		w.Clean()
	})
}

// TestOnFailHold: the operator may ask to keep a node that failed as it is.
func TestOnFailHold(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		spec := tool.spec("qnet:liar")
		spec.HoldOnFail = true
		doc, err := tool.roll(spec)
		stop := w.stopped(err, "001", "held: --on-fail hold")
		if n := nodeOf(doc, "001"); n.Outcome != rolling.NodeHeld || verdict(n, "M1") != "fail" {
			t.Errorf("%+v", n)
		}
		if got := w.Running("001"); len(got) != 1 || !rollingtest.IsImage(got[0], "liar") {
			t.Errorf("running %s", rollingtest.Names(got))
		}
		tool.Exit()
		w.abortAll(stop.Operation)
		w.Clean()
	})
}

// TestOneShotVariableHolds: an old container that would act again is not put
// back, and its variable is not carried over.
func TestOneShotVariableHolds(t *testing.T) {
	cfg := lab.Config{Nodes: 4, Block: fast, Host: func(i int, h *lab.HostSpec) {
		if i == 1 {
			h.Env = []string{"QNET_CONFIRM_RESET=no"}
		}
	}}
	inLab(t, cfg, func(t *testing.T, w *world) {
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:crash"))
		w.stopped(err, "001", "the old container carries QNET_CONFIRM_RESET")
		if n := nodeOf(doc, "001"); n.Outcome != rolling.NodeHeld {
			t.Errorf("%+v", n)
		}
		plan := tool.plan.Node("001")
		if plan.OnFail != "hold" || !slices.ContainsFunc(plan.LeftOut, func(i host.Item) bool { return i.Name == "QNET_CONFIRM_RESET" }) {
			t.Errorf("plan %+v", plan)
		}
		for _, c := range w.Nodes("001") {
			carries := slices.Contains(c.Env, "QNET_CONFIRM_RESET=no")
			if carries != strings.Contains(c.Name, "-pre-") {
				t.Errorf("%s carries the variable: %v", c.Name, carries)
			}
		}
		// Neither the hinted abort nor a restore starts it again unasked.
		_, err = tool.abort(tool.Op())
		var refused *rolling.RefusedError
		if !errors.As(err, &refused) || refused.Checks[0].Name != "one_shot" {
			t.Errorf("abort: %v, want a refusal by check one_shot", err)
		}
		if _, err := tool.restore("001"); !errors.As(err, &refused) || refused.Checks[0].Name != "one_shot" {
			t.Errorf("restore: %v, want a refusal by check one_shot", err)
		}
		for _, c := range w.Nodes("001") {
			if c.State == "running" && slices.Contains(c.Env, "QNET_CONFIRM_RESET=no") {
				t.Errorf("%s runs with the variable", c.Name)
			}
		}
		// Asked for by name it comes back.
		ops := tool.Ops()
		ops.Waivers = []rolling.Waiver{{Check: "one_shot", Reason: "the variable is inert"}}
		if _, err := ops.Abort(t.Context(), tool.Op()); err != nil {
			t.Errorf("abort with a waiver: %v", err)
		}
		w.runs("001", "v1")
		w.Clean()
	})
}

// TestHeldNodeIsNamed: where neither the successor starts nor the old container may, the node is left on its old container, stopped for
// good. That is not started unasked; a restore by name does it, and a resume tries a successor once more and leaves nothing behind.
func TestHeldNodeIsNamed(t *testing.T) {
	held := func(t *testing.T, fn func(w *world, op, old string)) {
		cfg := lab.Config{Nodes: 4, Block: fast, Host: func(i int, h *lab.HostSpec) {
			if i == 1 {
				h.Env = []string{"QNET_CONFIRM_RESET=no"}
			}
		}}
		inLab(t, cfg, func(t *testing.T, w *world) {
			old := w.Node("001").ID
			tool := w.tool()
			during(tool, func() {
				for _, c := range w.Nodes("001") {
					if strings.Contains(c.Name, "-next-") {
						w.Inject("001", "start-fail", c.Name)
					}
				}
			})
			_, err := tool.roll(tool.spec("qnet:v2"))
			stop := w.stopped(err, "001", "the node is down")
			tool.Exit()
			if c := w.Node("001"); c.ID != old || c.State != "exited" || c.RestartPolicy != "no" {
				t.Errorf("001: %s, want its old container stopped for good", rollingtest.Names(w.Nodes("001")))
			}
			w.Clear("", "")
			w.Wait(2 * time.Second) // names of containers carry the second
			fn(w, stop.Operation, old)
			w.Clean()
		})
	}
	t.Run("resume", func(t *testing.T) {
		held(t, func(w *world, op, _ string) {
			if _, err := w.tool().resume(op); err != nil {
				w.Fatal(err)
			}
			for _, id := range w.IDs() {
				w.runs(id, "v2")
				if c := w.Node(id); c.RestartPolicy != "always" { // not the one of a node that is held
					w.Errorf("%s: %s", id, rollingtest.Names(w.Nodes(id)))
				}
			}
		})
	})
	t.Run("restore", func(t *testing.T) {
		held(t, func(w *world, _, old string) {
			for _, c := range w.Nodes("001") { // as where the host was tidied: its log says that the node is held
				if c.ID != old {
					if err := w.Host("001").Engine().RemoveContainer(c.Name); err != nil {
						w.Fatal(err)
					}
				}
			}
			var refused *rolling.RefusedError
			if _, err := w.tool().restore("001"); !errors.As(err, &refused) || refused.Checks[0].Name != "one_shot" {
				w.Errorf("%v, want a refusal by check one_shot", err)
			}
			waive := []rolling.Waiver{{Check: "one_shot", Reason: "the variable is inert"}}
			tool := w.tool()
			ops := tool.Ops(waive...)
			plan, err := ops.LookBack(tool.Ctx, "001", waive)
			if err != nil {
				w.Fatal(err)
			}
			if _, err := ops.Restore(tool.Ctx, plan); err != nil {
				w.Fatal(err)
			}
			w.runs("001", "v1")
			if c := w.Node("001"); c.ID != old {
				w.Errorf("001: %s", rollingtest.Names(w.Nodes("001")))
			}
		})
	})
}
