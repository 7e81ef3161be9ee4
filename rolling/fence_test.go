package rolling_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/rolling"
)

// during runs fn once, when the roll of a tool has begun to replace its first
// node; the roll waits meanwhile.
func during(t *tool, fn func()) (ran *atomic.Bool) {
	ran = new(atomic.Bool)
	t.when(rolling.KindStep, "replace", "begun", func() { ran.Store(true); fn() })
	return ran
}

// TestTwoRollsAtOnce: with one store the lease refuses the second, with two the
// hosts do, before any other check.
func TestTwoRollsAtOnce(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		first := w.tool()
		ran := during(first, func() {
			second := w.tool()
			_, err := second.roll(second.spec("qnet:v2", "003"))
			var held *lease.HeldError
			if !errors.As(err, &held) || held.Owner != first.Owner {
				t.Errorf("the second roll: %v, want the lease's holder named", err)
			}
			second.Exit()

			other := w.toolAt("other.DB")
			mark := len(w.Lab.Requests())
			_, err = other.roll(other.spec("qnet:none-such", "003"))
			var fenced *host.FencedError
			if !errors.As(err, &fenced) || fenced.Record.Store != first.Store.ID() || fenced.Record.Operation != first.Op() {
				t.Errorf("a roll from another store: %v, want the fence's holder named before the image is asked for", err)
			}
			if got := w.Lab.Requests()[mark:]; len(got) > 0 {
				t.Errorf("it spoke to an engine: %v", got)
			}
			// One that did not look would be refused by the hosts themselves.
			claim, err := other.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			token, err := claim.Raise(t.Context(), 1_000_000, "roll-of-another-store")
			if err != nil {
				t.Fatal(err)
			}
			if err := rolling.TakeFences(t.Context(), other.Fleet, token, nil); !errors.As(err, &fenced) {
				t.Errorf("a higher epoch of another store was not refused: %v", err)
			}
			other.Exit()
		})
		if _, err := first.roll(first.spec("qnet:v2", "002")); err != nil || !ran.Load() {
			t.Fatalf("the first roll (%v): %v", ran.Load(), err)
		}
		first.Exit()
		w.runs("002", "v2")
		w.runs("003", "v1")
		w.healthy("")
		w.Clean()
	})
}

// TestInvariant1PausedOperatorChangesNothing: an operator who is paused, loses
// the lease to another and wakes up is refused by the journal; and where its
// request was on the way already, by the host.
func TestInvariant1PausedOperatorChangesNothing(t *testing.T) {
	for _, where := range []string{"before the request left", "on the way to the host"} {
		t.Run(where, func(t *testing.T) {
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				first := w.tool()
				paused, wake := make(chan struct{}), make(chan struct{})
				pause := func() { close(paused); <-wake }
				wakeUp := sync.OnceFunc(func() { close(wake) })
				stopped := false
				if where == "before the request left" {
					during(first, pause)
				} else {
					w.Lab.OnAgentRequest(func(id, method string) {
						if method == "replace" && !stopped {
							stopped = true
							pause()
						}
					})
				}
				var err error
				ended := make(chan struct{})
				t.Cleanup(func() { wakeUp(); <-ended })
				go func() {
					defer close(ended)
					_, err = first.roll(first.spec("qnet:v2", "002", "003"))
				}()
				<-paused
				second := w.takeLeaseAway(first)
				if doc, err := second.resume(first.Op()); err != nil {
					t.Fatalf("the second operator: %v, %+v", err, doc)
				}
				second.Exit()
				mark := len(w.Lab.Requests())
				records := w.fenceOf("002")
				wakeUp()
				<-ended
				var fenced *host.FencedError
				switch {
				case where == "on the way to the host" && !errors.As(err, &fenced):
					t.Errorf("the first operator ended with %v, want the host's refusal", err)
				case !errors.Is(err, journal.ErrFenced) && !errors.As(err, &fenced) && !errors.Is(err, lease.ErrLost):
					t.Errorf("the first operator ended with %v, want a fence", err)
				}
				w.Blocks(3000)
				for _, id := range w.IDs() {
					if got := w.changes(id, mark); len(got) > 0 {
						t.Errorf("host %s was changed after the first woke up: %q", id, got)
					}
				}
				if now := w.fenceOf("002"); *now != *records {
					t.Errorf("the fence was %+v, is %+v", records, now)
				}
				first.Exit()
				w.runs("002", "v2")
				w.runs("003", "v2")
				w.healthy("")
				w.Clean()
			})
		})
	}
}

// takenLease is the lease of an operator on another machine, who got it while
// the first one was paused.
type takenLease struct {
	lease.Lease
	ctx   context.Context
	token lease.Token
}

func (l *takenLease) Token() lease.Token          { return l.token }
func (l *takenLease) Context() context.Context    { return l.ctx }
func (l *takenLease) Check(context.Context) error { return nil }

func (l *takenLease) Release(context.Context) error { return nil }

func (l *takenLease) Raise(_ context.Context, seen uint64, operation string) (lease.Token, error) {
	l.token.Epoch, l.token.Operation = max(l.token.Epoch, seen)+1, operation
	return l.token, nil
}

// takeLeaseAway starts a second operator on the store of one who is paused.
func (w *world) takeLeaseAway(first *tool) *tool {
	w.Helper()
	second := w.tool()
	second.Owner = "second@example.org"
	token := first.Held.Token()
	token.Owner = second.Owner
	second.Lease = &takenLease{ctx: second.Ctx, token: token}
	return second
}

// TestNoLeaseNoChange: a host refuses a writer whose claim it has not accepted.
func TestNoLeaseNoChange(t *testing.T) {
	inLab(t, lab.Config{Nodes: 1, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		claim, err := tool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx := claim.Context()
		token, err := claim.Raise(ctx, 0, "roll-1")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tool.Fleet.Conn(ctx, "001")
		if err != nil {
			t.Fatal(err)
		}
		writer, err := conn.Writer(ctx, token)
		if err != nil {
			t.Fatal(err)
		}
		var fenced *host.FencedError
		if _, err := writer.Pull(ctx, lab.Repository+":v2", nil); !errors.As(err, &fenced) {
			t.Errorf("a pull without a fence: %v", err)
		}
		if got := w.changes("001", 0); len(got) > 0 {
			t.Errorf("changed: %q", got)
		}
	})
}

// TestBreakTakesOverAnotherStoresFence: the operator's machine and its state are
// gone in the middle of a roll. Another store is refused before anything else,
// takes the records over, and puts the node back; the first operator, should it
// wake up after all, changes nothing.
func TestBreakTakesOverAnotherStoresFence(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		first := w.tool()
		paused, wake := make(chan struct{}), make(chan struct{})
		stop := sync.OnceFunc(func() { close(paused); <-wake })
		first.Emit = func(e rolling.Event) {
			if e.Node == "002" && e.Kind == rolling.KindMilestone && e.Name == "M1" && e.State == "pass" {
				stop()
			}
		}
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err = first.roll(first.spec("qnet:v2", "002", "003"))
		}()
		<-paused

		second := w.toolAt("other.DB")
		second.Owner = "second@example.org"
		var fenced *host.FencedError
		if _, err := second.restore("002"); !errors.As(err, &fenced) || fenced.Record.Owner != first.Owner {
			t.Errorf("before the break: %v, want a refusal that names %s", err, first.Owner)
		}
		held, foreign := second.Ops().Foreign(t.Context())
		if foreign != nil || len(held) != 4 || held[0].Record.Operation != first.Op() {
			t.Fatalf("held by another store: %+v, %v", held, foreign)
		}
		if err := second.Ops().TakeOver(t.Context(), held, "its machine is gone"); err != nil {
			t.Fatal(err)
		}
		if err := second.Ops().TakeOver(t.Context(), held, "again"); !errors.Is(err, host.ErrChanged) {
			t.Errorf("the same records were taken over twice: %v", err)
		}
		if n, err := second.restore("002"); err != nil || n.Outcome != rolling.NodeRestored {
			t.Errorf("after the break: %+v, %v", n, err)
		}
		mark := len(w.Lab.Requests())
		close(wake)
		<-ended
		if err == nil {
			t.Error("the first operator believes that it has done its roll")
		}
		for _, id := range w.IDs() {
			if got := w.changes(id, mark); len(got) > 0 {
				t.Errorf("host %s was changed after the break: %q", id, got)
			}
		}
		w.runs("002", "v1")
		first.Exit()
		second.Exit()
	})
}
