package cutover_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// inStalledAgain runs fn with a fleet that was restarted from K and stalled once
// more before it sealed anything: on the first release two of four nodes never
// vote. The pinned macroblock counts without a certified child, so each host that
// joined has its certified floor exactly at K, and above it the blocks that nobody
// certified, up to where production parks. carries leaves the archive host of that
// restart, 002, with all it had. The second release resumes from the same K.
func inStalledAgain(t *testing.T, carries bool, fn func(*testing.T, *world, *tool, cutover.RestartValues)) {
	t.Helper()
	inStalled(t, func(t *testing.T, w *world, first *tool, v cutover.RestartValues) {
		first.when(cutover.Verify, "begun", func() {
			for _, id := range []string{"001", "003"} {
				w.inject(id, "mute", "")
			}
			if carries { // nobody else serves, so the archive host keeps its data
				for _, id := range []string{"001", "003", "004"} {
					w.inject(id, "no-snapshot", "")
				}
			}
		})
		if _, err := first.restart(first.restartAsk(v, soon())); err == nil {
			t.Fatal("the release on which nobody votes passed")
		}
		if _, err := first.ops(rolling.Waiver{Check: "point_of_no_return", Reason: "a release that does not vote"}).Abort(first.ctx, first.op()); err != nil {
			t.Fatal(err)
		}
		w.Blocks(map[bool]int{false: 3200, true: 6000}[carries]) // a leader that is away costs its failovers
		for _, id := range survivors {
			if carries {
				w.Clear(id, "no-snapshot")
			}
			for _, c := range w.all(id) {
				if c.Name != w.host(id).Spec().Container {
					if err := w.host(id).Engine().RemoveContainer(c.Name); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		first.exit()
		image := w.image("mended", v.Manifest)
		v.Image = strings.TrimSuffix(image.Ref, ":mended") + "@" + image.Digest
		fn(t, w, w.tool(), v)
	})
}

// mend lets every node vote on the release of the second restart.
func (w *world) mend(t *tool) {
	t.when(cutover.Go, "begun", func() {
		for _, id := range []string{"001", "003"} {
			w.Clear(id, "mute")
		}
	})
}

// wentBack asserts that a host is on the restarted chain by the rollback variable,
// and carries it no more.
func (w *world) wentBack(doc cutover.Document, v cutover.RestartValues, id string, before map[string]int64) {
	w.Helper()
	h := hostOf(doc, id)
	if h.State != cutover.Finished || h.RestartPolicy != "always" || h.Rollback == nil || h.Rollback.Outcome != cutover.RollbackDrop ||
		h.Rollback.To == nil || *h.Rollback.To != v.Head() || h.Rollback.Dropped == nil || *h.Rollback.Dropped == 0 {
		w.Errorf("%+v, rollback %+v", h, h.Rollback)
	}
	w.unarmed(id)
	if was, is := foldersOf(before), foldersOf(w.dataFiles(id)); !slices.Equal(was, is) {
		w.Errorf("%s: its data was moved: %v, now %v", id, was, is)
	}
	for name := range before {
		if _, there := w.dataFiles(id)[name]; !there && filepath.Base(name) != "CLEAN" { // the mark of a flush goes with the next start
			w.Errorf("%s: %s is gone", id, name)
		}
	}
}

// foldersOf are the directories of an inventory.
func foldersOf(files map[string]int64) (out []string) {
	for name := range files {
		out = append(out, filepath.Dir(name))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ways are those of a plan, by host.
func ways(p cutover.Plan) map[string]string {
	out := map[string]string{}
	for _, h := range p.Restart.Hosts {
		out[h.ID] = h.Way
	}
	return out
}

// TestRestartByRollback: where every host's floor is K, every node goes back by
// itself; no directory is touched, and the variable goes once new macroblocks are
// sealed. Until then status names it.
func TestRestartByRollback(t *testing.T) {
	inStalledAgain(t, false, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		before := map[string]map[string]int64{}
		for _, id := range survivors {
			before[id] = w.dataFiles(id)
		}
		ask := tool.restartAsk(v, soon())
		p, err := tool.ops().ProposeRestart(tool.ctx, ask)
		if err != nil {
			t.Fatal(err)
		}
		for id, way := range ways(p.Plan) {
			if way != restart.WayRollback {
				t.Errorf("%s: way %s", id, way)
			}
		}
		w.mend(tool)
		tool.when(cutover.Release, "begun", func() { w.nags(tool, fmt.Sprintf("QNET_ROLLBACK_TO_HEIGHT=%d", v.Head()), survivors...) })
		doc, err := tool.restart(ask)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range survivors {
			w.wentBack(doc, v, id, before[id])
		}
		tool.onNewChain(v, survivors)
		w.clean()
	})
}

// nags asserts that these nodes carry the variable, that nothing starts them once
// more with it, and that status says so.
func (w *world) nags(t *tool, variable string, ids ...string) {
	w.Helper()
	view, err := observe.Observe(t.ctx, t.fleet, observe.Options{})
	if err != nil {
		w.Fatal(err)
	}
	for _, id := range ids {
		if c := w.node(id); !slices.Contains(c.Env, variable) || c.RestartPolicy != "no" {
			w.Errorf("%s: %s %v", id, names(w.all(id)), c.Env)
		}
		if n := view.Node(id); !slices.ContainsFunc(observe.NodeChecks(*n), func(c observe.Check) bool { return c.Name == observe.CheckOneShot && c.Verdict == observe.Fail }) {
			w.Errorf("%s: status does not name the variable", id)
		}
	}
}

// TestRestartByRollbackOperatorLost: at each barrier, and at the beginning of each
// phase, the operator's machine is lost.
func TestRestartByRollbackOperatorLost(t *testing.T) {
	for _, state := range []string{"begun", "done"} {
		t.Run(state, func(t *testing.T) {
			inStalledAgain(t, false, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
				begin := func() error { _, err := tool.restart(tool.restartAsk(v, soon())); return err }
				phases := []cutover.PhaseName{cutover.Prepare, cutover.Hold, cutover.Data, cutover.Go, cutover.Verify, cutover.Release}
				for _, phase := range phases {
					w.mend(tool)
					tool.dieAt(phase, state)
					if err := begin(); err == nil {
						t.Fatalf("the process of phase %s did not die", phase)
					}
					tool.exit()
					tool = w.tool()
					begin = func() error { _, err := tool.ops().Resume(tool.ctx, tool.unfinished()); return err }
				}
				defer tool.exit()
				if err := begin(); err != nil {
					t.Fatal(err)
				}
				w.unarmed(survivors...)
				tool.onNewChain(v, survivors)
				w.clean()
			})
		})
	}
}

// TestRestartByRollbackClosed: an operation that cannot go on, for nobody votes, is
// closed as it stands; the variable goes from every node.
func TestRestartByRollbackClosed(t *testing.T) {
	inStalledAgain(t, false, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		if doc, err := tool.restart(tool.restartAsk(v, soon())); err == nil || !strings.Contains(err.Error(), "held in phase verify") {
			t.Fatalf("%+v\n%v", doc, err)
		}
		w.nags(tool, fmt.Sprintf("QNET_ROLLBACK_TO_HEIGHT=%d", v.Head()), survivors...)
		_, err := tool.ops().Abort(tool.ctx, tool.op())
		w.mustRefuse(err, "point_of_no_return", "001, 002, 003, 004")
		doc, err := tool.ops(rolling.Waiver{Check: "point_of_no_return", Reason: "nobody votes"}).Abort(tool.ctx, tool.op())
		if err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range survivors {
			if c := w.node(id); c.State != "running" || c.RestartPolicy != "always" || armed(c.Env) {
				t.Errorf("%s: %s", id, names(w.all(id)))
			}
			for _, c := range w.all(id) {
				if c.ID != w.node(id).ID && (c.State == "running" || c.RestartPolicy != "no") {
					t.Errorf("%s: %s", id, names(w.all(id)))
				}
			}
		}
		w.clean()
	})
}

// TestRestartByRollbackClosedWithoutALostHost: the roll that takes the variable away has been begun when a host is lost. The
// others are rid of it all the same, once a person passes the lost one by.
func TestRestartByRollbackClosedWithoutALostHost(t *testing.T) {
	inStalledAgain(t, false, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		if _, err := tool.restart(tool.restartAsk(v, soon())); err == nil || !strings.Contains(err.Error(), "held in phase verify") {
			t.Fatalf("got %v", err)
		}
		open, closing := tool.op(), rolling.Waiver{Check: "point_of_no_return", Reason: "nobody votes"}
		tool.exit()
		tool = w.tool()
		tool.emit = func(e rolling.Event) {
			if e.Kind == rolling.KindStep && e.Name == "stage" && e.State == "done" {
				w.inject("004", "drop-ssh", "hold")
				_ = w.host("004").Engine().StopContainer(w.host("004").Spec().Container)
			}
		}
		if _, err := tool.ops(closing).Abort(tool.ctx, open); err == nil {
			t.Fatal("closed with a host that is lost")
		}
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		doc, err := tool.ops(membersOf("004 is lost")).Resume(tool.ctx, open) // the closing is journaled
		if err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range without(survivors, "004") {
			if c := w.node(id); c.State != "running" || c.RestartPolicy != "always" || armed(c.Env) {
				t.Errorf("%s: %s", id, names(w.all(id)))
			}
		}
		w.clean()
	})
}

// TestRestartMixedWays: a host that still carries certified blocks above K is set
// aside and joins, the others go back by themselves.
func TestRestartMixedWays(t *testing.T) {
	inStalledAgain(t, true, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		defer tool.exit()
		before := map[string]map[string]int64{}
		for _, id := range survivors {
			before[id] = w.dataFiles(id)
		}
		ask := tool.restartAsk(v, soon())
		ask.Archive = "001"
		p, err := tool.ops().ProposeRestart(tool.ctx, ask)
		if err != nil {
			t.Fatal(err)
		}
		for id, way := range ways(p.Plan) {
			if want := map[bool]string{true: restart.WayRename, false: restart.WayRollback}[id == "002"]; way != want {
				t.Errorf("%s: way %s, want %s", id, way, want)
			}
		}
		w.mend(tool)
		doc, err := tool.restart(ask)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range without(survivors, "002") {
			w.wentBack(doc, v, id, before[id])
		}
		w.inventory(map[string]map[string]int64{"002": before["002"]})
		w.unarmed("002")
		tool.onNewChain(v, survivors)
		w.clean()
	})
}

// TestRestartRollbackRefused: what was gathered says that the floor is K, and the
// node holds more by then. It refuses and changes nothing, is stopped for good and
// named; cleared by name its data is set aside and it joins, the archive host after
// a second one serves.
func TestRestartRollbackRefused(t *testing.T) {
	for _, id := range []string{"003", "002"} { // 002 serves the others
		t.Run(id, func(t *testing.T) {
			inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
				defer tool.exit()
				before := map[string]map[string]int64{}
				for _, h := range survivors {
					before[h] = w.dataFiles(h)
				}
				ask := tool.restartAsk(v, soon())
				verify, head := ask.Verify, v.Head()
				ask.Verify = func(ctx context.Context) (restart.Verification, restart.Evidence, error) {
					got, ev, err := verify(ctx)
					for i := range ev.Hosts {
						if h := &ev.Hosts[i]; h.ID == id { // as it was before the checkpoints above K were certified
							h.FloorAtLeast, h.FloorExact = &head, &head
						}
					}
					return got, ev, err
				}
				floor := w.certified(id)
				doc, err := tool.restart(ask)
				if words := fmt.Sprintf("refused: its certified floor is %d, the target %d", floor, head); err == nil || !strings.Contains(err.Error(), id+": failed: did not go back: "+words) {
					t.Fatalf("%+v\n%v", doc, err)
				}
				if r := hostOf(doc, id).Rollback; r == nil || r.Outcome != cutover.RollbackRefuse || r.Floor == nil || *r.Floor != floor {
					t.Errorf("%+v", r)
				}
				if c := w.node(id); c.State != "exited" || c.RestartPolicy != "no" {
					t.Errorf("%s: %s", id, names(w.all(id)))
				}
				if _, err := tool.ops().Resume(tool.ctx, tool.op()); err == nil || !strings.Contains(err.Error(), "latched="+id) {
					t.Fatalf("a resume let it go on: %v", err)
				}
				if doc, err = tool.ops(rolling.Waiver{Check: "latched", Reason: id}).Resume(tool.ctx, tool.op()); err != nil || doc.Outcome != rolling.OutcomeDone {
					t.Fatalf("%+v\n%v", doc, err)
				}
				w.inventory(before)
				w.unarmed(survivors...)
				tool.onNewChain(v, survivors)
				w.clean()
			})
		})
	}
}
