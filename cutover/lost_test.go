package cutover_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

func membersOf(reason string) rolling.Waiver { return rolling.Waiver{Check: "members", Reason: reason} }

// again takes an operation up by another process that has the store alone.
func (s *scene) again(p *tool, waivers ...rolling.Waiver) (*tool, error) {
	s.Helper()
	open := p.unfinished()
	p.exit()
	p = s.process()
	_, err := p.ops(waivers...).Resume(p.ctx, open)
	return p, err
}

func sceneOf(w *world, name string) *scene {
	k := kinds()[slices.IndexFunc(kinds(), func(k kind) bool { return k.name == name })]
	return k.on(w, "")
}

// TestPlanWaiverLetsNoOwnHostGo: the waiver of a plan is for members whom nobody here can look at. An own host that cannot be
// seen holds the operation all the same: its node runs on with the blocks that the others would drop.
func TestPlanWaiverLetsNoOwnHostGo(t *testing.T) {
	for _, name := range []string{"rollback", "unbar"} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 6, func(t *testing.T, w *world) {
				s := sceneOf(w, name)
				victim := s.hosts[2]
				p := s.process()
				p.when(cutover.Hold, "begun", func() { w.inject(victim, "drop-ssh", "hold") })
				s.dead = "nobody" // the plan is asked for with the waiver
				_, err := s.begin(p)
				if err == nil || !strings.Contains(err.Error(), "held in phase hold") || !strings.Contains(err.Error(), victim+": missing") {
					t.Fatalf("got %v", err)
				}
				if c := w.node(victim); c.State != "running" {
					t.Errorf("%s: %s", victim, names(w.all(victim)))
				}
				w.Clear(victim, "drop-ssh")
				s.dead = ""
				s.through(p, err)
				s.restored()
			})
		})
	}
}

// TestLostHostKeepsNobodyDown: a host dies for good while everything is stopped, and the cut-over is taken back. With the
// waiver the others run again on their data; the one that is lost is not started, its data is still aside.
func TestLostHostKeepsNobodyDown(t *testing.T) {
	for name, phase := range map[string]cutover.PhaseName{"rollback": cutover.Hold, "restart": cutover.Data} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 8, func(t *testing.T, w *world) {
				s := sceneOf(w, name)
				victim := s.hosts[len(s.hosts)-1]
				p := s.process()
				p.dieAt(phase, "done")
				if _, err := s.begin(p); err == nil {
					t.Fatal("the process did not die")
				}
				s.die(victim)
				p.exit()
				p = s.process()
				open := p.unfinished()
				_, err := p.ops().Abort(p.ctx, open)
				if err == nil || !strings.Contains(err.Error(), victim+": missing") {
					t.Fatalf("got %v", err)
				}
				if p, err = s.again(p, membersOf(victim+" is lost")); err != nil {
					t.Fatalf("taken back without %s: %v", victim, err)
				}
				if open := p.unfinished(); open != "" {
					t.Errorf("operation %s is open", open)
				}
				p.exit()
				for _, id := range without(s.hosts, victim) {
					if c := w.node(id); c.State != "running" || c.RestartPolicy != "always" {
						t.Errorf("%s: %s", id, names(w.all(id)))
					}
				}
				s.revive(victim)
				w.Wait(time.Minute)
				if got := w.Running(victim); len(got) > 0 {
					t.Errorf("%s runs: %s", victim, names(w.all(victim)))
				}
				s.inventory(s.before)
			})
		})
	}
}

// TestClosedRollbackStartsNoHeldNode: a rollback is closed beyond its point of no return while one node is held on its old
// container. Started, that would bring the blocks back which the others have dropped: it stays down, and is named. A closing
// that was cut short is taken up as one, and nothing goes back a second time.
func TestClosedRollbackStartsNoHeldNode(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(map[bool]string{false: "at once", true: "cut short"}[cut], func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				w.unsealed(500)
				p := w.tool()
				w.heal(p, cutover.Hold)
				p.startFails("003")
				if _, err := p.rollback(cutover.RollbackAsk{Ask: p.ask()}); err == nil || !strings.Contains(err.Error(), "003: failed") {
					t.Fatalf("got %v", err)
				}
				open, closing := p.op(), rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}
				p.exit()
				p = w.tool()
				replaced := 0
				p.emit = func(e rolling.Event) {
					if e.Kind == rolling.KindStep && e.Name == "putback" && e.State == "done" && cut {
						p.cancel()
					}
					if e.Kind == rolling.KindStep && e.Name == "replace" {
						replaced++
					}
				}
				doc, err := p.ops(closing).Abort(p.ctx, open)
				if cut {
					if err == nil {
						t.Fatal("the process did not die")
					}
					p.exit()
					p = w.tool()
					p.emit = func(e rolling.Event) {
						if e.Kind == rolling.KindStep && e.Name == "replace" {
							replaced++
						}
					}
					doc, err = p.ops().Resume(p.ctx, open)
				}
				if err != nil || doc.Outcome != "aborted" || replaced > 0 {
					t.Fatalf("%+v %v, replaced %d times", doc, err, replaced)
				}
				if h := hostOf(doc, "003"); h.State != cutover.Missing || !strings.Contains(h.Text, "its own blocks above the target must go") {
					t.Errorf("%+v", h)
				}
				p.exit()
				w.unarmed("001", "002", "004", "005")
				for _, c := range w.all("003") {
					if c.State == "running" || c.RestartPolicy != "no" || armed(c.Env) {
						t.Errorf("003: %s", names(w.all("003")))
					}
				}
				w.clean()
			})
		})
	}
}

// TestRollbackGoesBackOnce: while one host does not start the others go on by themselves. One that ends meanwhile is not started with
// the variable again, which would lower its signing mark below what it has signed; it runs without it in the end.
func TestRollbackGoesBackOnce(t *testing.T) {
	inLab(t, 7, func(t *testing.T, w *world) {
		for _, id := range []string{"002", "003", "004"} {
			w.inject(id, "mute", "")
		}
		w.Blocks(500)
		p := w.tool()
		p.when(cutover.Go, "begun", func() {
			for _, id := range []string{"002", "003", "004"} {
				w.Clear(id, "mute")
			}
		})
		p.startFails("007")
		_, err := p.rollback(cutover.RollbackAsk{Ask: p.ask()})
		if err == nil || !strings.Contains(err.Error(), "007: failed") {
			t.Fatalf("got %v", err)
		}
		open := p.op()
		p.exit()
		w.sealing("001", "002", "003", "004", "005")
		if err := w.host("002").Engine().StopContainer(w.host("002").Spec().Container); err != nil {
			t.Fatal(err)
		}
		ended := w.node("002").ID
		w.Clear("007", "start-fail")
		p = w.tool()
		again := false
		p.emit = func(e rolling.Event) {
			for _, c := range w.all("002") {
				again = again || c.ID == ended && c.State == "running"
			}
		}
		doc, err := p.ops().Resume(p.ctx, open)
		if again {
			t.Error("002 was started with the variable once more")
		}
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		p.exit()
		w.unarmed(w.ids()...)
		w.healthy()
		w.clean()
	})
}

// TestRollbackDoesNotMindTheOldSide: a host that was left out goes on with the blocks that the others have dropped. That it
// differs is no reason to hold those.
func TestRollbackDoesNotMindTheOldSide(t *testing.T) {
	inLab(t, 7, func(t *testing.T, w *world) {
		for _, id := range []string{"002", "003", "004"} {
			w.inject(id, "mute", "")
		}
		w.Blocks(130)
		w.inject("007", "isolate", "") // its blocks are its own from here on
		w.Blocks(370)
		p := w.tool()
		p.when(cutover.Go, "begun", func() {
			for _, id := range []string{"002", "003", "004"} {
				w.Clear(id, "mute")
			}
		})
		ask := p.ask(membersOf("007 is not ours to stop"), needed)
		ask.Hosts, ask.Skipped = without(w.ids(), "007"), []string{"007"}
		doc, err := p.rollback(cutover.RollbackAsk{Ask: ask})
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		p.exit()
		w.unarmed(without(w.ids(), "007")...)
	})
}

// TestRestoreDoesNotUnhalt: what lies aside on a halted node is from before the halt. It is not put back unasked: it would go
// on past the height.
func TestRestoreDoesNotUnhalt(t *testing.T) {
	inLab(t, 4, func(t *testing.T, w *world) {
		p := w.afterHalt()
		_, err := p.ops().LookBack(p.ctx, "003", nil)
		w.mustRefuse(err, "one_shot", "would go on past the height")
		waived := []rolling.Waiver{{Check: "one_shot", Reason: "a test"}}
		if plan, err := p.ops().LookBack(p.ctx, "003", waived); err != nil || len(plan.Nodes) != 1 {
			t.Errorf("%+v %v", plan, err)
		}
	})
}

// TestRollbackOfOneAlone: a host that was lost in a rollback comes back when that has ended. It goes back alone, and finds the
// genesis nodes that run.
func TestRollbackOfOneAlone(t *testing.T) {
	inLab(t, 7, func(t *testing.T, w *world) {
		const late = "005"
		for _, id := range []string{"002", "003", "004"} {
			w.inject(id, "mute", "")
		}
		w.Blocks(500)
		floor := w.certified(w.ids()...)
		p := w.tool()
		p.when(cutover.Hold, "done", func() { w.inject(late, "drop-ssh", "hold") })
		p.when(cutover.Go, "begun", func() {
			for _, id := range []string{"002", "003", "004"} {
				w.Clear(id, "mute")
			}
		})
		_, err := p.rollback(cutover.RollbackAsk{Ask: p.ask()})
		if err == nil || !strings.Contains(err.Error(), late+": missing") {
			t.Fatalf("got %v", err)
		}
		open := p.op()
		p.exit()
		p = w.tool()
		doc, err := p.ops(membersOf(late+" is lost")).Resume(p.ctx, open)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		p.exit()
		w.Clear(late, "drop-ssh")
		if got := w.Running(late); len(got) > 0 {
			t.Errorf("%s runs: %s", late, names(w.all(late)))
		}
		for _, c := range w.all(late) { // what was staged there
			if c.Name != w.host(late).Spec().Container {
				if err := w.host(late).Engine().RemoveContainer(c.Name); err != nil {
					t.Fatal(err)
				}
			}
		}
		p = w.tool()
		ask := p.ask(needed, membersOf("they run"))
		ask.Hosts, ask.Skipped = []string{late}, without(w.ids(), late)
		doc, err = p.rollback(cutover.RollbackAsk{Ask: ask, Target: &floor})
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		p.exit()
		w.healthy()
	})
}
