package cutover_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/rolling"
)

// unsealed makes two of five nodes silent, so that nothing more is certified, and
// lets n blocks pile up. It returns the height that is certified everywhere.
func (w *world) unsealed(n int) uint64 {
	w.Helper()
	w.inject("002", "mute", "")
	w.inject("003", "mute", "")
	w.Blocks(n)
	return w.certified(w.ids()...)
}

// certified is the height up to which one of these hosts holds certificates.
func (w *world) certified(ids ...string) (floor uint64) {
	w.Helper()
	tool := w.tool()
	defer tool.exit()
	for _, id := range ids {
		conn, err := tool.fleet.Conn(w.Context(), id)
		if err != nil {
			w.Fatal(err)
		}
		pos, err := conn.Node().Position(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		floor = max(floor, pos.FinalizedHeight+30) // the newest certified checkpoint is one above the final one
	}
	return floor
}

// heal takes every fault back when a phase of a rollback begins.
func (w *world) heal(t *tool, phase cutover.PhaseName) {
	t.when(phase, "begun", func() { w.Clear("", "") })
}

var needed = rolling.Waiver{Check: "fleet", Reason: "the lag is short in a test"}

// unarmed asserts that one container is left on each host, that it runs with the
// policy it had, and carries no rollback variable.
func (w *world) unarmed(ids ...string) {
	w.Helper()
	for _, id := range ids {
		got, c := w.all(id), w.node(id)
		if len(got) != 1 || c.State != "running" || c.RestartPolicy != "always" || armed(c.Env) {
			w.Errorf("host %s: %s, want one that runs as before", id, names(got))
		}
	}
}

func armed(env []string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "QNET_ROLLBACK_") })
}

func hostOf(doc cutover.Document, id string) cutover.HostResult {
	for _, h := range doc.Hosts {
		if h.ID == id {
			return h
		}
	}
	return cutover.HostResult{}
}

// TestGoodRollback: a fleet whose tail is not sealed goes back to what it holds
// certified, produces and seals again, and carries no variable in the end.
func TestGoodRollback(t *testing.T) {
	for name, explicit := range map[string]bool{"last sealed": false, "height": true} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				floor := w.unsealed(500)
				tool := w.tool()
				w.heal(tool, cutover.Go)
				ask := cutover.RollbackAsk{Ask: tool.ask()} // 500 blocks without a seal: the fleet is stalled by its own verdict
				if explicit {
					ask.Target = &floor
				}
				doc, err := tool.rollback(ask)
				if err != nil {
					t.Fatal(err)
				}
				if doc.Schema != "qnetops/rollback/v1" || doc.Outcome != rolling.OutcomeDone || doc.Chain == nil || doc.Chain.Verdict != cutover.ChainSealing ||
					doc.Chain.FromHeight < floor || doc.Chain.FromHeight > floor+60 {
					t.Errorf("%+v, chain %+v, floor %d", doc, doc.Chain, floor)
				}
				for _, h := range doc.Hosts {
					if h.State != cutover.Finished || h.Rollback == nil || h.Rollback.Outcome != cutover.RollbackDrop || h.Rollback.To == nil || *h.Rollback.To != floor {
						t.Errorf("%+v %+v, want it at %d", h, h.Rollback, floor)
					}
				}
				w.unarmed(w.ids()...)
				w.healthy()
				w.clean()
			})
		})
	}
}

// TestRollbackRefused: what no rollback can do is refused with numbers, and
// nothing is touched.
func TestRollbackRefused(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		tool := w.tool()
		height := func(h uint64) cutover.RollbackAsk {
			return cutover.RollbackAsk{Ask: tool.ask(needed), Target: &h}
		}
		tip := w.tip()
		boundary := tip / 30 * 30
		_, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask()})
		w.mustRefuse(err, "fleet", "healthy")
		_, err = tool.rollback(height(boundary + 600))
		w.mustRefuse(err, "rollback_height", "above the tip")
		_, err = tool.rollback(height(boundary + 7))
		w.mustRefuse(err, "rollback_height", fmt.Sprintf("%d and %d", boundary, boundary+30))
		_, err = tool.rollback(height(90))
		w.mustRefuse(err, "certified_floor", "height 90 is below its certified floor")
		ask := tool.ask(needed)
		ask.Hosts = ask.Hosts[1:]
		_, err = tool.rollback(cutover.RollbackAsk{Ask: ask})
		w.mustRefuse(err, "members", "genesis_node_001")
		ask = tool.ask(needed)
		ask.At = time.Now().Add(-time.Minute)
		_, err = tool.rollback(cutover.RollbackAsk{Ask: ask})
		w.mustRefuse(err, "start_time", "ago")
		if id := tool.unfinished(); id != "" {
			t.Errorf("operation %s was begun", id)
		}
		w.unarmed(w.ids()...)
		w.clean()
	})
}

// TestRollbackDoesNotGoOn: a fleet in which nobody produces afterwards and one that
// produces and does not seal are told apart, in time, each with its own step; and
// closing the operation takes the variable from every node.
func TestRollbackDoesNotGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		during func(w *world)
		want   string
		words  string
		next   string
	}{
		"nobody produces": {func(w *world) {
			if err := w.lab.Clear("", ""); err != nil {
				w.Error(err)
			}
			for _, id := range w.ids() {
				w.inject(id, "stop-producing", "")
			}
		}, cutover.ChainSilent, "nobody produces", "down or isolated"},
		"produces without sealing": {func(*world) {}, cutover.ChainUnsealed, "produces and does not seal", "stop the fleet"},
		"signing marks are left": {func(w *world) { w.leave("keep-mark") },
			cutover.ChainSilent, "nobody produces", "lowers every signing mark"},
		"vote commitments are left": {func(w *world) { w.leave("keep-votes") },
			cutover.ChainUnsealed, "produces and does not seal", "stop the fleet"},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				w.unsealed(130)
				tool := w.tool()
				var up, told time.Time
				var once sync.Once
				tool.emit = func(e rolling.Event) {
					if e.Kind == rolling.KindNote && e.Name == string(cutover.Go) && e.State == "begun" {
						c.during(w)
					}
					if e.Kind == rolling.KindWait && e.Name == "chain" {
						once.Do(func() { up = time.Now() })
						told = time.Now()
					}
				}
				doc, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
				var stopped *rolling.StoppedError
				if !errors.As(err, &stopped) || !strings.Contains(stopped.Error(), c.words) || !strings.Contains(stopped.Hint(), c.next) {
					t.Fatalf("%v (%v)", err, doc)
				}
				if doc.Outcome != rolling.OutcomeStopped || doc.Chain == nil || doc.Chain.Verdict != c.want {
					t.Errorf("%+v %+v", doc, doc.Chain)
				}
				// The limit is 180 block times, and no shorter than ten real seconds.
				if limit := max(180*fast, 10*time.Second) + 60*fast; told.Sub(up) > limit {
					t.Errorf("told after %s", told.Sub(up))
				}
				id := tool.unfinished()
				tool.exit()
				tool = w.tool()
				if _, err := tool.ops().Abort(tool.ctx, id); err == nil {
					t.Error("went back beyond the point of no return")
				} else {
					w.mustRefuse(err, "point_of_no_return", "removes the variable")
				}
				tool.exit()
				tool = w.tool()
				if doc, err = tool.ops(rolling.Waiver{Check: "point_of_no_return", Reason: "a test"}).Abort(tool.ctx, id); err != nil || doc.Outcome != "aborted" {
					t.Errorf("%+v %v", doc, err)
				}
				w.unarmed(w.ids()...)
				w.clean()
			})
		})
	}
}

// leave heals the fleet, and makes every node leave something behind in a rollback
// that keeps it from going on (facts 8.2 to 8.4).
func (w *world) leave(what string) {
	w.Clear("", "")
	for _, id := range w.ids() {
		w.inject(id, what, "")
	}
}

// TestRollbackAfterTheOperatorDied: killed at each barrier, and resumed or taken
// back by another process that has the store alone.
func TestRollbackAfterTheOperatorDied(t *testing.T) {
	for _, phase := range []cutover.PhaseName{cutover.Prepare, cutover.Hold, cutover.Go, cutover.Verify, cutover.Release} {
		for _, end := range []string{"begun", "done"} {
			t.Run(string(phase)+" "+end, func(t *testing.T) {
				inLab(t, 5, func(t *testing.T, w *world) {
					w.unsealed(130)
					tool := w.tool()
					w.heal(tool, cutover.Go)
					tool.dieAt(phase, end)
					_, _ = tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
					tool.exit()
					tool = w.tool()
					w.heal(tool, cutover.Go)
					id := tool.unfinished()
					if id == "" {
						t.Fatal("nothing to resume")
					}
					doc, err := tool.ops().Resume(tool.ctx, id)
					if err := tool.note(doc, err); err != nil || doc.Outcome != rolling.OutcomeDone {
						t.Fatalf("%+v %v", doc, err)
					}
					w.unarmed(w.ids()...)
					w.healthy()
					w.clean()
				})
			})
		}
	}
}

// TestRollbackTakenBack: before the first successor is started an abort starts
// every node as it was, also by another process.
func TestRollbackTakenBack(t *testing.T) {
	for _, phase := range []cutover.PhaseName{cutover.Prepare, cutover.Hold} {
		t.Run(string(phase), func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				before := map[string]string{}
				for _, id := range w.ids() {
					before[id] = w.node(id).ID
				}
				tool := w.tool()
				tool.dieAt(phase, "done")
				_, _ = tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
				tool.exit()
				tool = w.tool()
				id := tool.unfinished()
				doc, err := tool.ops().Abort(tool.ctx, id)
				if err := tool.note(doc, err); err != nil || doc.Outcome != "aborted" {
					t.Fatalf("%+v %v", doc, err)
				}
				for _, h := range w.ids() {
					if w.node(h).ID != before[h] {
						t.Errorf("%s runs another container", h)
					}
				}
				w.unarmed(w.ids()...)
				op, err := tool.store.Op(tool.ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				if rec, err := op.Record(tool.ctx); err != nil || rec.State != journal.Aborted {
					t.Errorf("%v %v", rec.State, err)
				}
				w.healthy()
				w.clean()
			})
		})
	}
}

// TestRollbackWithOneHostDead: a host that is lost between the plan and the stop
// holds the operation; the waiver passes it by, the others go on, and it is named.
func TestRollbackWithOneHostDead(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		w.unsealed(130)
		tool := w.tool()
		tool.when(cutover.Hold, "begun", func() { w.inject("005", "drop-ssh", "hold") })
		doc, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed)})
		var stopped *rolling.StoppedError
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "held in phase hold") || !strings.Contains(err.Error(), "005: missing") {
			t.Fatalf("%+v %v", doc, err)
		}
		// The host is gone for good: so is its node.
		if err := w.host("005").Engine().StopContainer(w.host("005").Spec().Container); err != nil {
			t.Fatal(err)
		}
		tool.exit()
		tool = w.tool()
		tool.when(cutover.Go, "begun", func() { w.Clear("002", ""); w.Clear("003", "") })
		doc, err = tool.ops(rolling.Waiver{Check: "members", Reason: "005 is lost"}).Resume(tool.ctx, stopped.Operation)
		// Four of five seal, but none of the four may be stopped for the removal.
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "quorum") || doc.Chain == nil || doc.Chain.Verdict != cutover.ChainSealing {
			t.Fatalf("%+v %v", doc, err)
		}
		// It is back, its blocks above the target with it; now the variable can go.
		if err := w.lab.Clear("005", ""); err != nil {
			t.Fatal(err)
		}
		if err := w.host("005").Engine().StartContainer(w.host("005").Spec().Container); err != nil {
			t.Fatal(err)
		}
		tool.exit()
		tool = w.tool()
		doc, err = tool.ops(rolling.Waiver{Check: "members", Reason: "005 was lost"}).Resume(tool.ctx, stopped.Operation)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		// It went back alone, while the others ran, and follows them.
		if h := hostOf(doc, "005"); h.State != cutover.Finished || h.Rollback == nil || h.Rollback.Outcome != cutover.RollbackDrop {
			t.Errorf("%+v %+v", h, h.Rollback)
		}
		w.unarmed(w.ids()...)
		w.healthy()
		w.clean()
	})
}

// TestRollbackRefusedByOneHost: a host that holds more certified than could be read
// says so in its log; the operation holds, names the floor, and closing it takes the
// variable from every node.
func TestRollbackRefusedByOneHost(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		floor := w.unsealed(130)
		target := floor - 30 // certified, and not final: what can be read does not show it
		tool := w.tool()
		doc, err := tool.rollback(cutover.RollbackAsk{Ask: tool.ask(needed), Target: &target})
		var stopped *rolling.StoppedError
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "held in phase verify") || !strings.Contains(err.Error(), fmt.Sprintf("its certified floor is %d", floor)) {
			t.Fatalf("%+v %v", doc, err)
		}
		for _, h := range doc.Hosts {
			if h.State != cutover.Failed || h.Rollback == nil || h.Rollback.Outcome != cutover.RollbackRefuse || h.Rollback.Floor == nil || *h.Rollback.Floor != floor {
				t.Errorf("%+v %+v", h, h.Rollback)
			}
		}
		w.clean()
	})
}
