package host

import (
	"fmt"
	"testing"
)

// world is the pair of containers as decide sees them, on which its actions are
// carried out, some of them refused, with a daemon that may revive what its
// policies say at any moment.
type world struct {
	o   observation
	log []TxEntry
}

func (w *world) add(e TxEntry) {
	e.Tx = txReplace
	w.log = append(w.log, e)
}

var always = Policy{Name: "always"}

func testSpec(back bool) *TxSpec {
	return &TxSpec{OldID: "o", NextID: "n", Name: "node", NextName: "node-next", AsideName: "node-pre", FailedName: "node-failed", Policy: always, OldStarted: "t0", Back: back}
}

// act carries out a step; it reports a start beside a running container, or one
// that the law of decide forbids.
func (w *world) act(step string) error {
	o, n := &w.o.Old, &w.o.Next
	switch step {
	case stepStopOld:
		o.State = "exited"
	case stepStopNext:
		if n.State != "created" {
			n.State = "exited"
		}
	case stepOldNo:
		o.Policy = Policy{Name: "no"}
	case stepNextNo:
		n.Policy = Policy{Name: "no"}
	case stepOldPolicy:
		o.Policy = always
	case stepNextPolicy:
		n.Policy = always
	case stepStartOld:
		if n.runs() || n.Exists && n.Policy.Name != "no" {
			return fmt.Errorf("old started while the successor is %s with policy %s", n.State, n.Policy.Name)
		}
		o.State, o.StartedAt = "running", "t1"
	case stepStartNext:
		if o.runs() || o.Exists && o.Policy.Name != "no" {
			return fmt.Errorf("successor started while the old one is %s with policy %s", o.State, o.Policy.Name)
		}
		n.State, n.StartedAt = "running", "t1"
	case stepOldAside:
		o.Name = "node-pre"
	case stepNextName:
		if o.Exists && o.Name == "node" {
			return fmt.Errorf("name is taken")
		}
		n.Name = "node"
	case stepNextFailed:
		n.Name = "node-failed"
	case stepOldName:
		if n.Exists && n.Name == "node" {
			return fmt.Errorf("name is taken")
		}
		o.Name = "node"
	case stepSettleOld:
	default:
		return fmt.Errorf("unknown step %s", step)
	}
	return nil
}

// settle runs decide to its end.
func (w *world) settle(t *testing.T, refuse map[string]int) action {
	t.Helper()
	for range 200 {
		a := decide(w.o, replay(w.log))
		switch a.Step {
		case stepEnd:
			return a
		case stepTurn:
			w.add(TxEntry{Step: stepTurn, State: TxDone, Text: a.Why})
			continue
		}
		w.add(TxEntry{Step: a.Step, State: TxIntent})
		if refuse[a.Step] > 0 {
			refuse[a.Step]--
			w.add(TxEntry{Step: a.Step, State: TxFailed})
			continue
		}
		if err := w.act(a.Step); err != nil {
			t.Fatalf("%+v: %s: %v", w.o, a.Step, err)
		}
		w.add(TxEntry{Step: a.Step, State: TxDone})
	}
	t.Fatalf("no end from %+v", w.o)
	return action{}
}

// TestDecideFromEverywhere starts from every combination of states, policies and
// names, forward and back, with and without an open start in the log, and wants
// an end with exactly one container running under the node's name.
func TestDecideFromEverywhere(t *testing.T) {
	states := []string{"", "created", "running", "paused", "restarting", "exited", "dead"}
	policies := []Policy{{Name: "no"}, always, {Name: "on-failure", MaximumRetryCount: 3}}
	n := 0
	for _, mode := range []struct{ back, hold bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		for _, os := range states {
			for _, op := range policies {
				for _, on := range []string{"node", "node-pre"} {
					for _, ns := range states {
						for _, np := range policies {
							for _, nn := range []string{"node-next", "node", "node-failed"} {
								for _, open := range []bool{false, true} {
									if on == "node" && nn == "node" {
										continue // an engine has each name once
									}
									n++
									w := &world{o: observation{
										Old:  seen{Exists: os != "", Name: on, State: os, Policy: op, StartedAt: "t0"},
										Next: seen{Exists: ns != "", Name: nn, State: ns, Policy: np}}}
									spec := testSpec(mode.back)
									if mode.hold {
										spec.Hold = "test"
									}
									w.add(TxEntry{Step: stepBegin, Spec: spec})
									if open {
										w.add(TxEntry{Step: stepStartNext, State: TxIntent})
									}
									start := w.o
									refuse := map[string]int{}
									if mode.hold && n%2 == 0 {
										refuse[stepStartNext] = 1000
									}
									end := w.settle(t, refuse)
									checkEnd(t, start, w.o, end)
									if mode.hold {
										checkHold(t, start, w, end)
									}
								}
							}
						}
					}
				}
			}
		}
	}
	if n < 6000 {
		t.Errorf("only %d combinations", n)
	}
}

func checkEnd(t *testing.T, start, o observation, end action) {
	t.Helper()
	old, next := o.Old, o.Next
	switch end.Outcome {
	case Replaced:
		if !next.runs() || next.Name != "node" || next.Policy != always || old.runs() || old.Exists && (old.Policy.Name != "no" || old.Name != "node-pre") {
			t.Errorf("from %+v: replaced, but %+v", start, o)
		}
	case PutBack:
		if !old.runs() || old.Name != "node" || old.Policy != always || next.runs() || next.Exists && (next.Policy.Name != "no" || next.Name != "node-failed") {
			t.Errorf("from %+v: put back, but %+v", start, o)
		}
	case Held:
		if old.runs() || next.runs() || old.Policy.Name != "no" || old.Name != "node" || next.Exists && (next.Policy.Name != "no" || next.Name != "node-failed") {
			t.Errorf("from %+v: held, but %+v", start, o)
		}
	default:
		if start.Old.Exists {
			t.Errorf("from %+v: in doubt although the old container exists: %s", start, end.Why)
		}
		if old.runs() && next.runs() {
			t.Errorf("from %+v: both run", start)
		}
	}
}

// checkHold wants that the old container was never started, and that the node is
// held only where its successor cannot start.
func checkHold(t *testing.T, start observation, w *world, end action) {
	t.Helper()
	refused := start.Next.Exists == false
	for _, e := range w.log {
		if e.Step == stepStartOld {
			t.Errorf("from %+v: the old container was started again", start)
		}
		refused = refused || e.Step == stepStartNext && e.State == TxFailed
	}
	if end.Outcome == Held && !refused && end.Why == "" {
		t.Errorf("from %+v: held without a reason", start)
	}
	if end.Outcome == Held && !refused && start.Next.State != "exited" && start.Next.State != "created" && start.Next.State != "dead" {
		t.Errorf("from %+v: held although the successor could run", start)
	}
}

// TestDecideHoldWithRefusals: with no way back, whatever the engine refuses, the
// old container is not started and a successor that runs is not stopped for it.
func TestDecideHoldWithRefusals(t *testing.T) {
	for _, byName := range []bool{false, true} { // the log says so, or the container shows it
		for _, step := range []string{stepStopOld, stepOldNo, stepNextPolicy, stepStartNext, stepOldAside, stepNextName, stepNextFailed, stepOldPolicy} {
			for _, times := range []int{1, 1000} {
				w := &world{o: observation{Old: seen{Exists: true, Name: "node", State: "running", Policy: always, StartedAt: "t0"},
					Next: seen{Exists: true, Name: "node-next", State: "created", Policy: Policy{Name: "no"}}}}
				spec := testSpec(false)
				if byName {
					w.o.Old.OneShot = "QNET_ROLLBACK_TO_HEIGHT"
				} else {
					spec.Hold = "test"
				}
				w.add(TxEntry{Step: stepBegin, Spec: spec})
				end := w.settle(t, map[string]int{step: times})
				name := fmt.Sprintf("%s refused %d times, by name %v", step, times, byName)
				checkHold(t, w.o, w, end)
				want, runs := Replaced, true
				switch {
				case step == stepStartNext:
					want, runs = Held, false
				case times == 1:
				case step == stepStopOld, step == stepOldNo:
					want = PutBack // it was never stopped
				case step == stepNextPolicy, step == stepOldAside, step == stepNextName:
					want = InDoubt
				}
				if end.Outcome != want || (w.o.Old.runs() != w.o.Next.runs()) != runs {
					t.Errorf("%s: %s (%s), old %s, successor %s", name, end.Outcome, end.Why, w.o.Old.State, w.o.Next.State)
				}
			}
		}
	}
}

// TestDecideWithRefusals has the engine refuse every step once, twice, and for
// ever, from the ordinary beginning.
func TestDecideWithRefusals(t *testing.T) {
	for _, step := range []string{stepStopOld, stepOldNo, stepNextPolicy, stepStartNext, stepOldAside, stepNextName, stepStopNext, stepNextNo,
		stepOldPolicy, stepStartOld, stepNextFailed, stepOldName} {
		for _, times := range []int{1, 2, 1000} {
			for _, second := range []string{"", stepStartNext} { // the second makes the way back be walked
				w := &world{o: observation{Old: seen{Exists: true, Name: "node", State: "running", Policy: always, StartedAt: "t0"},
					Next: seen{Exists: true, Name: "node-next", State: "created", Policy: Policy{Name: "no"}}}}
				w.add(TxEntry{Step: stepBegin, Spec: testSpec(false)})
				refuse := map[string]int{step: times}
				if second != "" {
					refuse[second] = 1
				}
				end := w.settle(t, refuse)
				name := fmt.Sprintf("%s refused %d times, %q too", step, times, second)
				if end.Outcome == InDoubt {
					if times < maxFails || second == "" {
						t.Errorf("%s: in doubt: %s", name, end.Why)
					}
					continue
				}
				if w.o.Old.runs() == w.o.Next.runs() {
					t.Errorf("%s: %s, old %s, next %s", name, end.Outcome, w.o.Old.State, w.o.Next.State)
				}
				if times == 1 && second == "" && step != stepStartNext && end.Outcome != Replaced {
					t.Errorf("%s: %s, want replaced", name, end.Outcome)
				}
			}
		}
	}
}

// TestDecideAgainstRevival has a daemon restart between any two steps: what has a
// policy comes back.
func TestDecideAgainstRevival(t *testing.T) {
	for at := range 14 {
		for _, fail := range []bool{false, true} {
			w := &world{o: observation{Old: seen{Exists: true, Name: "node", State: "running", Policy: always, StartedAt: "t0"},
				Next: seen{Exists: true, Name: "node-next", State: "created", Policy: Policy{Name: "no"}}}}
			w.add(TxEntry{Step: stepBegin, Spec: testSpec(false)})
			refuse := map[string]int{}
			if fail {
				refuse[stepStartNext] = 1
			}
			for i := 0; ; i++ {
				if i == at {
					both := 0
					for _, c := range []*seen{&w.o.Old, &w.o.Next} {
						if c.Policy.Name == "always" {
							c.State, both = "running", both+1
						}
					}
					if both > 1 {
						t.Fatalf("at step %d a daemon restart runs both", at)
					}
				}
				a := decide(w.o, replay(w.log))
				if a.Step == stepEnd {
					checkEnd(t, w.o, w.o, a)
					break
				}
				if i > 60 {
					t.Fatal("no end")
				}
				if a.Step == stepTurn {
					w.add(TxEntry{Step: stepTurn, Text: a.Why})
					continue
				}
				w.add(TxEntry{Step: a.Step, State: TxIntent})
				if refuse[a.Step] > 0 {
					refuse[a.Step]--
					w.add(TxEntry{Step: a.Step, State: TxFailed})
					continue
				}
				if err := w.act(a.Step); err != nil {
					t.Fatal(err)
				}
				w.add(TxEntry{Step: a.Step, State: TxDone})
			}
		}
	}
}

func TestDecideLooksAfterARefusedStop(t *testing.T) {
	w := &world{o: observation{Old: seen{Exists: true, Name: "node", State: "running", Policy: always, StartedAt: "t0"}, Next: seen{Exists: true, Name: "node-next", State: "created", Policy: Policy{Name: "no"}}}}
	w.add(TxEntry{Step: stepBegin, Spec: testSpec(false)})
	end := w.settle(t, map[string]int{stepStopOld: 1000})
	settled := 0
	for _, e := range w.log {
		if e.Step == stepSettleOld && e.State == TxDone {
			settled++
		}
	}
	if end.Outcome != PutBack || settled != 1 {
		t.Errorf("%s after %d looks", end.Outcome, settled)
	}
}

// TestDecideStopsAStartOnItsWay: a start of the successor was sent and nobody
// knows its outcome; before the old container is started, a stop must follow it.
func TestDecideStopsAStartOnItsWay(t *testing.T) {
	o := observation{Old: seen{Exists: true, Name: "node", State: "exited", Policy: Policy{Name: "no"}, StartedAt: "t0"},
		Next: seen{Exists: true, Name: "node-next", State: "created", Policy: Policy{Name: "no"}}}
	log := []TxEntry{{Tx: txReplace, Step: stepBegin, Spec: testSpec(false)}, {Tx: txReplace, Step: stepStartNext, State: TxIntent},
		{Tx: txReplace, Step: stepTurn, State: TxDone, Text: "x"}}
	if a := decide(o, replay(log)); a.Step != stepStopNext {
		t.Errorf("%+v, want a stop of the successor first", a)
	}
	log = append(log, TxEntry{Tx: txReplace, Step: stepStopNext, State: TxIntent}, TxEntry{Tx: txReplace, Step: stepStopNext, State: TxDone})
	if a := decide(o, replay(log)); a.Step != stepOldPolicy {
		t.Errorf("%+v, want the old policy after the stop", a)
	}
}
