package cutover_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/rolling"
)

// endorse is the command `qnetops decree endorse`, on all hosts.
func (t *tool) endorse(seq, target uint64) []node.DecreeSig {
	t.w.Helper()
	doc, err := cutover.Endorse(t.ctx, t.fleet, t.fleet.Inventory().IDs(), seq, target)
	if err != nil {
		t.w.Fatal(err)
	}
	if doc.Schema != cutover.EndorsementSchema || doc.Quorum != 4 || len(doc.Signatures) != 5 || len(doc.Missing) != 0 {
		t.w.Fatalf("%+v", doc)
	}
	return doc.Sigs()
}

// anew clears the faults once a node has started anew: before that the votes that
// were held back would certify what the decree is to prune.
func (w *world) anew(e rolling.Event) {
	if e.Kind == rolling.KindWait && e.Name == string(cutover.Verify) && strings.HasPrefix(e.Text, "started anew") {
		w.Clear("", "")
	}
}

func (w *world) posts() *atomic.Int32 {
	var n atomic.Int32
	w.lab.OnAgentRequest(func(_, method string) {
		if method == "decree" {
			n.Add(1)
		}
	})
	return &n
}

func TestGoodDecree(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		target := w.unsealed(500)
		tool := w.tool()
		tool.emit = w.anew
		posts := w.posts()
		ask := cutover.DecreeAsk{Ask: tool.ask(), Seq: 3, Target: target, Sigs: tool.endorse(3, target)}
		doc, err := tool.decree(ask)
		if err != nil {
			t.Fatal(err)
		}
		if doc.Schema != "qnetops/decree/v1" || doc.Outcome != rolling.OutcomeDone || doc.Chain == nil || doc.Chain.Verdict != cutover.ChainSealing {
			t.Errorf("%+v %+v", doc, doc.Chain)
		}
		for _, h := range doc.Hosts {
			if h.State != cutover.Finished || h.Decree == nil || !h.Decree.Restarted || h.Decree.Pruned == nil || !*h.Decree.Pruned {
				t.Errorf("%+v %+v", h, h.Decree)
			}
		}
		if posts.Load() != 1 {
			t.Errorf("handed over %d times", posts.Load())
		}
		w.unarmed(w.ids()...)
		w.healthy()
		// The journal remembers the number.
		target = w.tip() / 30 * 30
		ask = cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 3, Target: target, Sigs: ask.Sigs}
		_, err = tool.decree(ask)
		w.mustRefuse(err, "decree_seq", "take 4 or more")
		w.clean()
	})
}

// TestDecreeRefused: what the tool can see is refused before anything is sent, what
// only the node knows in the node's words, and nothing happens either way.
func TestDecreeRefused(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		target := w.unsealed(130)
		tool := w.tool()
		posts := w.posts()
		sigs := tool.endorse(1, target)
		ask := func(change func(*cutover.DecreeAsk)) error {
			a := cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 1, Target: target, Sigs: slices.Clone(sigs)}
			change(&a)
			_, err := tool.decree(a)
			return err
		}
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Sigs = a.Sigs[:3] }), "signatures", "3 signatures, 4 are needed; not there: genesis_node_004, genesis_node_005")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Sigs[0].Sig = "zz" }), "signatures", "not hex")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Sigs[0].NodeID = "super_node_9" }), "signatures", "not of the genesis set")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Seq = 0 }), "decree_seq", "number 0")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Target = 90 }), "certified_floor", "below its certified floor")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Target = w.tip()/30*30 + 300 }), "decree_height", "above the tip")
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Waivers = nil }), "fleet", "would take blocks that are good")
		if _, err := cutover.Endorse(tool.ctx, tool.fleet, w.ids(), 1, 90); err == nil {
			t.Error("a decree below the certified floor was endorsed")
		} else {
			w.mustRefuse(err, "certified_floor", "below its certified floor")
		}
		if posts.Load() != 0 {
			t.Errorf("handed over %d times", posts.Load())
		}
		// A signature of good form that is not true: two of five are of another decree.
		other := tool.endorse(2, target)
		w.mustRefuse(ask(func(a *cutover.DecreeAsk) { a.Sigs[0], a.Sigs[1] = other[0], other[1] }), "decree", "decree signature quorum not met: at least one signature is not true")
		if id := tool.unfinished(); id != "" {
			t.Errorf("operation %s is left open", id)
		}
		w.clean()
	})
}

// TestDecreeInDoubt: the agent dies while it hands the decree over. Whether it took
// place is settled by looking, and it goes on, or is sent again by a resume, once.
func TestDecreeInDoubt(t *testing.T) {
	for name, sent := range map[string]bool{"taken": true, "not taken": false} {
		t.Run(name, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				target := w.unsealed(130)
				tool := w.tool()
				tool.emit = w.anew
				var killed atomic.Bool
				kill := func(id string) {
					if killed.CompareAndSwap(false, true) {
						if err := w.lab.Kill(id, lab.KillBoth); err != nil {
							t.Error(err)
						}
					}
				}
				w.lab.OnAgentRequest(func(id, method string) {
					if method == "decree" && !sent {
						kill(id)
					}
				})
				w.lab.OnAgentOutput(func(id string, line []byte) {
					if sent && strings.Contains(string(line), `"accepted":true`) {
						kill(id)
					}
				})
				ask := cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 1, Target: target, Sigs: tool.endorse(1, target)}
				doc, err := tool.decree(ask)
				if !killed.Load() {
					t.Fatal("the agent was not killed")
				}
				if !sent {
					var stopped *rolling.StoppedError
					if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "did not reach the nodes") {
						t.Fatalf("%v", err)
					}
					doc, err = tool.ops().Resume(tool.ctx, doc.Operation)
				}
				if err != nil || doc.Outcome != rolling.OutcomeDone || doc.Chain.Verdict != cutover.ChainSealing {
					t.Fatalf("%+v %v", doc, err)
				}
				w.unarmed(w.ids()...)
				w.clean()
			})
		})
	}
}

// TestDecreeReachesWhoWasAway: a host is away when it is noted where the nodes stand, is passed by, and comes back behind the
// decree with its blocks above the target. It is handed the same decree.
func TestDecreeReachesWhoWasAway(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		s := sceneOf(w, "decree")
		p := s.process()
		p.when(cutover.Prepare, "begun", func() { w.inject("005", "drop-ssh", "hold"); w.inject("005", "isolate", "") })
		if _, err := s.begin(p); err == nil || !strings.Contains(err.Error(), "005: missing") {
			t.Fatalf("got %v", err)
		}
		open := p.op()
		p.exit()
		p = s.process()
		back := false
		p.when(cutover.Verify, "begun", func() {
			if !back {
				back = true
				w.Clear("005", "drop-ssh")
				w.Clear("005", "isolate")
			}
		})
		doc, err := p.ops(membersOf("005 is away")).Resume(p.ctx, open)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		p.exit()
		if h := hostOf(doc, "005"); h.State != cutover.Finished {
			t.Errorf("%+v", h)
		}
		s.restored()
	})
}

// TestDecreeSettledByWord: the answer is lost and one host is lost with it, so that looking never tells whether the decree was
// taken. Whoever has read the logs says so; without that nothing is sent again.
func TestDecreeSettledByWord(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(map[bool]string{true: "taken", false: "not taken"}[taken], func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				target := w.unsealed(130)
				tool := w.tool()
				tool.emit = w.anew
				handed := 0
				w.lab.OnAgentRequest(func(id, method string) {
					if method != "decree" {
						return
					}
					if handed++; handed == 1 && !taken {
						w.inject("004", "drop-ssh", "hold")
						if err := w.lab.Kill(id, lab.KillBoth); err != nil {
							t.Error(err)
						}
					}
				})
				w.lab.OnAgentOutput(func(id string, line []byte) {
					if taken && handed == 1 && strings.Contains(string(line), `"accepted":true`) {
						for _, other := range []string{"002", "003", "004", "005"} { // they have not started anew yet
							w.inject(other, "drop-ssh", "hold")
						}
						tool.kill()
					}
				})
				doc, err := tool.decree(cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 1, Target: target, Sigs: tool.endorse(1, target)})
				if taken {
					tool.exit()
					tool = w.tool()
					doc, err = tool.ops().Resume(tool.ctx, tool.unfinished())
				}
				var doubt *rolling.InDoubtError
				if !errors.As(err, &doubt) || !strings.Contains(err.Error(), "decree_taken=REASON") {
					t.Fatalf("%+v %v", doc, err)
				}
				w.Clear("", "drop-ssh")
				word := "decree_taken"
				if !taken {
					word = "decree_not_taken"
				}
				tool.exit()
				tool = w.tool()
				tool.emit = w.anew
				doc, err = tool.ops(rolling.Waiver{Check: word, Reason: "the logs say so"}).Resume(tool.ctx, doc.Operation)
				if err != nil || doc.Outcome != rolling.OutcomeDone || handed != map[bool]int{true: 1, false: 2}[taken] {
					t.Fatalf("%+v %v, handed over %d times", doc, err, handed)
				}
				tool.exit()
				w.unarmed(w.ids()...)
				w.clean()
			})
		})
	}
}

// TestDecreeAfterTheOperatorDied: killed at each barrier and resumed by another
// process that has the store alone; the decree is handed over once.
func TestDecreeAfterTheOperatorDied(t *testing.T) {
	for _, at := range []string{"prepare done", "go begun", "go done", "verify begun", "verify done"} {
		t.Run(at, func(t *testing.T) {
			inLab(t, 5, func(t *testing.T, w *world) {
				target := w.unsealed(130)
				posts := w.posts()
				tool := w.tool()
				ask := cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 1, Target: target, Sigs: tool.endorse(1, target)}
				tool.emit = func(e rolling.Event) {
					w.anew(e)
					if e.Kind == rolling.KindNote && e.Name+" "+e.State == at {
						tool.kill()
					}
				}
				_, _ = tool.decree(ask)
				tool.exit()
				time.Sleep(time.Second)
				tool = w.tool()
				tool.emit = w.anew
				id := tool.unfinished()
				doc, err := tool.ops().Resume(tool.ctx, id)
				if err := tool.note(doc, err); err != nil || doc.Outcome != rolling.OutcomeDone {
					t.Fatalf("%+v %v", doc, err)
				}
				if posts.Load() != 1 {
					t.Errorf("handed over %d times", posts.Load())
				}
				w.clean()
			})
		})
	}
}
