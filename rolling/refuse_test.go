package rolling_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// TestRefusals: what forbids a roll is found before anything is changed, and the
// refusal names the check and the host.
func TestRefusals(t *testing.T) {
	inLab(t, lab.Config{Nodes: 5, Block: fast}, func(t *testing.T, w *world) {
		for _, c := range []struct {
			kind, arg string
			after     int // blocks
			check     string
			words     string
			waivable  bool
		}{
			{"second-updater", "", 0, "second_updater", "003: [watchtower]", true},
			{"disk-full", "5000000000", 0, "disk", "003: 5000000000 bytes free", true},
			{"skew", "3", 0, "clock", "003: clock is off by 3s", true},
			{"fork", "", 2, "fork", "003", false},
			{"ratelimit", "", 2, "fleet", "003 is unknown", true},
			{"lie-height", "1000", 2, "fleet", "003 is unknown", true},
			{"drop-ssh", "hold", 0, "reachable", "003: ", false},
			{"stop", "", 40, "quorum", "quorum 4; 3 vote without 003", false},
		} {
			if c.check == "quorum" { // one is down already when the first one goes
				w.Inject("004", "stop", "")
			}
			w.Inject("003", c.kind, c.arg)
			w.Blocks(c.after)
			mark := len(w.Lab.Requests())
			tool := w.tool()
			spec := tool.spec("qnet:v2")
			_, err := tool.roll(spec)
			w.MustRefuse(err, c.check, c.words)
			if rolling.Waivable(c.check) != c.waivable {
				t.Errorf("%s: waivable %v", c.check, !c.waivable)
			}
			spec.Waivers = []rolling.Waiver{{Check: c.check, Reason: "known"}}
			_, err = tool.propose(t.Context(), spec)
			if refused := (*rolling.RefusedError)(nil); errors.As(err, &refused) {
				for _, r := range refused.Checks {
					if r.Name == c.check && c.waivable {
						t.Errorf("%s was waived and refuses: %s", c.check, r.Reason)
					}
				}
			} else if !c.waivable {
				t.Errorf("%s was waived: %v", c.check, err)
			}
			tool.Exit()
			for _, id := range w.IDs() {
				if got := w.changes(id, mark); len(got) > 0 {
					t.Errorf("%s: host %s was changed: %q", c.kind, id, got)
				}
			}
			if err := w.Lab.Clear("", ""); err != nil {
				t.Fatal(err)
			}
			w.Blocks(200)
		}
		w.Clean()
	})
}

// TestUnreachableHost: it is left out by name only, and counts as down.
func TestUnreachableHost(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		w.Inject("003", "drop-ssh", "hold")
		tool := w.tool()
		spec := tool.spec("qnet:v2", "001", "002", "004")
		spec.Skipped = []string{"003"}
		// Four members, quorum three: without 003 none may go.
		_, err := tool.roll(spec)
		w.MustRefuse(err, "quorum", "quorum 3; 2 vote without 001")
		tool.Exit()
	})
	inLab(t, lab.Config{Nodes: 6, Block: fast, SuperFrom: 6}, func(t *testing.T, w *world) {
		w.Inject("006", "drop-ssh", "hold")
		tool := w.tool()
		spec := tool.spec("qnet:v2", "001", "002")
		spec.Skipped = []string{"003", "004", "005", "006"}
		_, err := tool.roll(spec)
		w.MustRefuse(err, "quorum", "quorum 5; 4 vote without 001")
		w.Clean()
	})
}

// TestEngineTooOld is a refusal that names the host.
func TestEngineTooOld(t *testing.T) {
	cfg := lab.Config{Nodes: 4, Block: fast, Host: func(i int, h *lab.HostSpec) {
		if i == 3 {
			h.APIVersion = "1.38"
		}
	}}
	inLab(t, cfg, func(t *testing.T, w *world) {
		tool := w.tool()
		_, err := tool.roll(tool.spec("qnet:v2"))
		w.MustRefuse(err, "reachable", "003")
		if !strings.Contains(err.Error(), "1.38") {
			t.Errorf("%v does not name the version", err)
		}
		w.Clean()
	})
}

// TestNoSuchImage is an error before anything is changed.
func TestNoSuchImage(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		_, err := tool.roll(tool.spec("qnet:none-such"))
		var bad *rolling.ImageError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), "registry.lab.example:5000/qnet:none-such") || bad.Hint() == "" {
			t.Errorf("%v", err)
		}
		if ops := tool.Operations(); len(ops) != 0 {
			t.Errorf("%d operations", len(ops))
		}
		w.Clean()
	})
}

// TestPrepareFails: what fails before the first stop leaves every host as it was.
func TestPrepareFails(t *testing.T) {
	for _, kind := range []string{"pull-fail", "create-fail"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				tool := w.tool()
				tool.ready = func() { w.Inject("003", kind, "") }
				doc, err := tool.roll(tool.spec("qnet:v2"))
				if err == nil || !strings.Contains(err.Error(), "host 003") || doc.Outcome != rolling.OutcomeStopped {
					t.Errorf("%v, %+v", err, doc)
				}
				var stop *rolling.StoppedError
				if errors.As(err, &stop) {
					t.Errorf("nothing was changed, and it says that it stopped midway: %v", err)
				}
				if ops := tool.Operations(); len(ops) != 1 || ops[0].State != journal.Aborted {
					t.Errorf("operations %+v", ops)
				}
				if got := w.touched(); len(got) > 0 {
					t.Errorf("touched %v", got)
				}
				tool.Exit()
				for _, id := range w.IDs() {
					w.runs(id, "v1") // and no successor is left
				}
				w.healthy("v1")
				w.Clean()
			})
		})
	}
}

// TestStartFails: a successor that does not start is put aside by the host
// itself, and the old one proves that it is back.
func TestStartFails(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		during(tool, func() {
			for _, c := range w.Nodes("001") {
				if strings.Contains(c.Name, "-next-") {
					w.Inject("001", "start-fail", c.Name)
				}
			}
		})
		doc, err := tool.roll(tool.spec("qnet:v2"))
		stop := w.stopped(err, "001", "did not start")
		if n := nodeOf(doc, "001"); n.Outcome != rolling.NodeRestored || n.DowntimeSeconds == nil {
			t.Errorf("%+v", n)
		}
		if got := w.touched(); !slices.Equal(got, []string{"001"}) {
			t.Errorf("touched %v", got)
		}
		tool.Exit()
		w.runs("001", "v1")
		if err := w.Lab.Clear("", ""); err != nil {
			t.Fatal(err)
		}
		again := w.tool()
		if _, err := again.resume(stop.Operation); err != nil {
			t.Fatalf("resume: %v", err)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v2")
		}
		w.healthy("v2")
		w.Clean()
	})
}

// TestInvariant9SamePlan: the same fleet and the same words give the same plan,
// minutes and blocks later; a changed fleet gives another.
func TestInvariant9SamePlan(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		digest := func(spec rolling.Spec) string {
			plan, err := tool.look(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			return plan.Digest()
		}
		first := digest(tool.spec("qnet:v2"))
		w.Blocks(1000)
		if again := digest(tool.spec("qnet:v2")); again != first {
			t.Errorf("digest %s became %s", first, again)
		}
		if other := digest(tool.spec("qnet:v2", "001")); other == first {
			t.Error("another plan has the same digest")
		}
		tool.ready = func() { w.Inject("003", "log-level", "2") } // the container becomes another one
		_, err := tool.roll(tool.spec("qnet:v2"))
		var changed *rolling.PlanChangedError
		if !errors.As(err, &changed) {
			t.Errorf("the fleet changed after the question: %v", err)
		}
		if ops := tool.Operations(); len(ops) != 1 || ops[0].State != journal.Aborted {
			t.Errorf("operations %+v", ops)
		}
		if got := w.touched(); len(got) > 0 {
			t.Errorf("touched %v", got)
		}
		tool.Exit()
		w.healthy("v1")
		w.Clean()
	})
}

// TestNothingToDo: a fleet on the image already is left alone.
func TestNothingToDo(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:v1"))
		if err != nil || doc.Outcome != rolling.OutcomeDone || len(tool.Operations()) != 0 {
			t.Errorf("%+v %v", doc, err)
		}
		view, err := observe.Observe(t.Context(), tool.Fleet, observe.Options{})
		if err != nil || view.Verdict != observe.Healthy {
			t.Errorf("%s %v", view.Verdict, err)
		}
		w.Clean()
	})
}
