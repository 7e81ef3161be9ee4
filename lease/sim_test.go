package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// simDB is the database of a simulation: one row, one session lock, its own clock.
type simDB struct {
	mu      sync.Mutex
	row     *row
	expires time.Time
	guard   *simStore
	step    time.Duration // of its clock
}

func (d *simDB) now() time.Time { return time.Now().Add(d.step) }

// simStore is one session with it.
type simStore struct {
	db      *simDB
	who     claimant
	delay   time.Duration // of each answer, half of it before the server acts
	dead    chan struct{}
	deadOne sync.Once
	cut     atomic.Bool // the server has ended the session and the client does not hear of it
	calls   atomic.Int64
}

func (d *simDB) dial(who claimant, delay time.Duration) *simStore {
	return &simStore{db: d, who: who, delay: delay, dead: make(chan struct{})}
}

var errSevered = errors.New("the session is closed")

// trip is the way there and back; fn is what the server does.
func (s *simStore) trip(ctx context.Context, fn func()) error {
	s.calls.Add(1)
	half := func() error {
		t := time.NewTimer(s.delay / 2)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-s.dead:
			return errSevered
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := half(); err != nil {
		return err
	}
	if s.cut.Load() {
		select {
		case <-s.dead:
			return errSevered
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.db.mu.Lock()
	fn()
	s.db.mu.Unlock()
	return half()
}

func (s *simStore) pooled() bool { return false }

func (s *simStore) sever() {
	s.deadOne.Do(func() {
		close(s.dead)
		if !s.cut.Load() {
			s.free()
		}
	})
}

func (s *simStore) free() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.guard == s {
		s.db.guard = nil
	}
}

// die is the moment at which the server ends the session without the client hearing of it.
func (s *simStore) die() {
	s.cut.Store(true)
	s.free()
}

func (s *simStore) lock(ctx context.Context) (got bool, err error) {
	err = s.trip(ctx, func() {
		if s.db.guard == nil {
			s.db.guard = s
		}
		got = s.db.guard == s
	})
	return got, err
}

func (s *simStore) observe(ctx context.Context) (r row, found bool, err error) {
	err = s.trip(ctx, func() {
		if s.db.row != nil {
			r, found = *s.db.row, true
			r.Expired = !s.db.expires.After(s.db.now())
		}
	})
	return r, found, err
}

func (s *simStore) claim(ctx context.Context, from *row, how How) (generation uint64, ok bool, err error) {
	err = s.trip(ctx, func() {
		now := s.db.row
		switch {
		case from == nil && now != nil, from != nil && (now == nil || !from.same(*now)):
			return
		case (how == ByExpiry || how == ByRelease) && !now.Released && s.db.expires.After(s.db.now()):
			return
		}
		next := row{Identity: s.who.id, Token: s.who.sess.token, Generation: 1, Holder: s.who.holder}
		if now != nil {
			next.Generation, next.Renewals = now.Generation+1, now.Renewals+1
		}
		s.db.row, s.db.expires = &next, s.db.now().Add(s.who.policy.TTL)
		generation, ok = next.Generation, true
	})
	return generation, ok, err
}

func (s *simStore) prove(ctx context.Context, generation uint64) (p proof, err error) {
	err = s.trip(ctx, func() {
		r := s.db.row
		p.Guard = s.db.guard == s
		p.Mine = r != nil && r.Token == s.who.sess.token && r.Generation == generation && !r.Released
		if p.Mine {
			r.Renewals++
			p.Renewed = true
			s.db.expires = s.db.now().Add(s.who.policy.TTL)
		}
	})
	return p, err
}

func (s *simStore) raise(ctx context.Context, from, to uint64, _ string) (ok bool, err error) {
	err = s.trip(ctx, func() {
		if ok = s.db.row.Token == s.who.sess.token && s.db.row.Generation == from; ok {
			s.db.row.Generation, s.db.row.Renewals = to, s.db.row.Renewals+1
		}
	})
	return ok, err
}

func (s *simStore) evict(ctx context.Context) (n int, err error) {
	err = s.trip(ctx, func() {
		if s.db.guard != nil {
			s.db.guard.cut.Store(true)
			s.db.guard, n = nil, 1
		}
	})
	return n, err
}

// simClock counts from the beginning of the bubble. A process that the machine runs late sees every moment late.
type simClock struct {
	begin time.Time
	late  time.Duration
	skip  *atomic.Int64 // a suspended machine: the clock goes on, timers do not
}

func (c simClock) Now() time.Duration {
	if c.late > 0 {
		time.Sleep(c.late)
	}
	now := time.Since(c.begin) + time.Hour
	if c.skip != nil {
		now += time.Duration(c.skip.Load())
	}
	return now
}

// simHold takes the lease in the simulation.
func simHold(ctx context.Context, db *simDB, policy Policy, clock Clock, delay time.Duration, exit func(Code, string), events func(Event)) (*Held, *simStore, error) {
	if events == nil {
		events = func(Event) {}
	}
	o := settled{Options: Options{Wait: time.Minute, Exit: exit}, id: Identity{"sim", FleetWriter, 1}, policy: policy, clock: clock, emit: events}
	who := claimant{id: o.id, sess: newSession(true), policy: policy, holder: Holder{TTL: policy.TTL.Seconds(), Silence: policy.Silence.Seconds()}}
	var s *simStore
	c := &candidate{o: o, dial: func(context.Context) (store, error) {
		s = db.dial(who, delay)
		return s, nil
	}}
	t, err := c.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	h := newHeld(ctx, o, Guarded, t.how, Token{Epoch: t.generation})
	k := newKeeper(h, t.store, t.generation)
	k.giveBack = func(ctx context.Context, g uint64, _ string) error {
		return db.dial(who, delay).trip(ctx, func() { db.row.Released = true })
	}
	h.keep = k
	if err := k.prove(ctx, o); err != nil {
		return nil, s, err
	}
	return h, s, nil
}

// overlap runs one life: the holder's session dies on the server at a phase of its beat, the holder is run late by late, and
// a successor waits. It says how long before the successor's claim the holder was gone; below zero is two at once.
func overlap(t *testing.T, p Policy, phase, delay, late time.Duration) (gap time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		clock := simClock{begin: begin}
		db := &simDB{}
		var gone atomic.Int64
		slow := simClock{begin: begin, late: late}
		first, s, err := simHold(t.Context(), db, p, slow, delay, func(Code, string) { gone.Store(int64(clock.Now() + p.Work)) }, nil)
		if err != nil {
			t.Fatal(err)
		}
		taken := make(chan time.Duration, 1)
		go func() {
			var at time.Duration
			h, _, err := simHold(t.Context(), db, p, clock, 0, nil, func(e Event) {
				if e.State == Proving {
					at = e.At
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			_ = h.Release(t.Context())
			taken <- at
		}()
		time.Sleep(2*time.Second + phase)
		if first.State() != Holding {
			t.Errorf("the holder did not live: %s", first.State())
		}
		s.die()
		at := <-taken
		if gone.Load() == 0 {
			time.Sleep(p.Silence + late)
		}
		gap = at - time.Duration(gone.Load())
		if gone.Load() == 0 {
			gap = -time.Hour
		}
		_ = first.Release(t.Context())
		time.Sleep(time.Minute) // what runs late ends late
	})
	return gap
}

// Whatever the phase of its beat in which a holder is cut off, and however late the machine runs it within what the profile
// allows, it is gone before anybody else begins. A machine later than that is the control: the sweep can fail.
func TestSweepOfPhasesAndLateness(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles() {
		p, _ := PolicyOf(name)
		worst := time.Hour
		for phase := time.Duration(0); phase < p.Beat; phase += 10 * time.Millisecond {
			for _, late := range []time.Duration{0, 10 * time.Millisecond, p.Late / 2, p.Late} {
				for _, delay := range []time.Duration{time.Millisecond, 40 * time.Millisecond} {
					// Late processes also beat late: what they may be late is what is left of their stability.
					if late > 0 && 2*late+delay >= p.Exit-p.Beat {
						late = (p.Exit - p.Beat - delay) / 3
					}
					gap := overlap(t, p, phase, delay, late)
					worst = min(worst, gap)
					if gap <= 0 {
						t.Errorf("%s: cut at %v, %v late, answers after %v: two at once for %v", name, phase, late, delay, -gap)
					}
				}
			}
		}
		t.Logf("%s: at least %v between the old holder's end and the next one's claim", name, worst)
	}
	bad, _ := PolicyOf(Fast)
	bad.Exit = 1300 * time.Millisecond // refused by Check; here to see the sweep find it
	found := false
	for phase := time.Duration(0); phase < bad.Beat; phase += 50 * time.Millisecond {
		found = found || overlap(t, bad, phase, time.Millisecond, 0) <= 0
	}
	if !found {
		t.Error("the sweep does not find the overlap of an unsafe policy")
	}
}

// Random lives: sessions die, answers are slow, several candidates wait, the database's clock steps. Never two.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			begin := time.Now()
			db := &simDB{}
			var mu sync.Mutex
			holders, lives := 0, 0
			var newest uint64
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range 4 {
				p, _ := PolicyOf(Profiles()[i%2])
				delay := time.Duration(rng.IntN(60)) * time.Millisecond
				rng := rand.New(rand.NewPCG(seed, uint64(i)+2))
				all.Go(func() {
					for ctx.Err() == nil {
						out := make(chan struct{})
						var once sync.Once
						enter := func(e Event) {
							mu.Lock()
							defer mu.Unlock()
							if e.State == Holding {
								if holders++; holders > 1 {
									t.Errorf("seed %d: %d holders", seed, holders)
								}
								lives++
								if e.Generation <= newest {
									t.Errorf("seed %d: generation %d after %d", seed, e.Generation, newest)
								}
								newest = e.Generation
							}
						}
						leave := func() { once.Do(func() { mu.Lock(); holders--; mu.Unlock(); close(out) }) }
						h, s, err := simHold(ctx, db, p, simClock{begin: begin}, delay, nil, enter)
						if err != nil {
							if LossCode(err) != 0 {
								leave()
							}
							continue
						}
						context.AfterFunc(h.dead, leave)
						select {
						case <-time.After(time.Duration(rng.IntN(4000)) * time.Millisecond):
							if rng.IntN(3) == 0 {
								leave()
								_ = h.Release(ctx)
							} else {
								s.die()
								<-out
							}
						case <-ctx.Done():
							leave()
							_ = h.Release(context.Background())
						case <-out:
						}
					}
				})
			}
			for range 60 {
				time.Sleep(time.Second)
				db.mu.Lock()
				db.step = time.Duration(rng.IntN(7200)-3600) * time.Second
				db.mu.Unlock()
			}
			cancel()
			all.Wait()
			if lives < 10 {
				t.Errorf("seed %d: only %d lives in a minute", seed, lives)
			}
		})
	}
}

func TestScenario28SlowerFenceDoesNotAgeTheProof(t *testing.T) {
	var s stamp
	if !s.raise(100) || s.raise(50) || s.at() != 100 || !s.raise(101) || s.raise(101) {
		t.Errorf("the stamp stands at %d", s.at())
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() { s.raise(time.Duration(1000 - i)) })
	}
	all.Wait()
	if s.at() != 1000 {
		t.Errorf("after 50 at once: %d", s.at())
	}
	synctest.Test(t, func(t *testing.T) {
		p, _ := PolicyOf(Fast)
		h, s, err := simHold(t.Context(), &simDB{}, p, simClock{begin: time.Now()}, time.Millisecond, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		k := h.keep.(*pgKeeper)
		for range 40 {
			before := k.proven.at()
			k.stamp(before-400*time.Millisecond, true) // what a fence writes that was descheduled after its answer
			if k.proven.at() < before {
				t.Fatal("the stamp went back")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if h.State() != Holding {
			t.Errorf("state %s", h.State())
		}
		_ = s
		_ = h.Release(t.Context())
	})
}

func TestScenario29GuardLostBeforeTheFirstProof(t *testing.T) {
	for name, silent := range map[string]bool{"closed": false, "silent": true} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := PolicyOf(Fast)
			db := &simDB{}
			var exit atomic.Int32
			var held atomic.Bool
			begin := time.Now()
			var s *simStore
			o := settled{Options: Options{Exit: func(c Code, _ string) { exit.Store(int32(c)) }}, id: Identity{"sim", FleetWriter, 1}, policy: p, clock: simClock{begin: begin},
				emit: func(e Event) {
					if e.State == Holding {
						held.Store(true)
					}
				}}
			s = db.dial(claimant{id: o.id, sess: newSession(true), policy: p}, time.Millisecond)
			if _, err := s.lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			g, _, err := s.claim(t.Context(), nil, ByInsert)
			if err != nil {
				t.Fatal(err)
			}
			h := newHeld(t.Context(), o, Guarded, ByInsert, Token{Epoch: g})
			k := newKeeper(h, s, g)
			h.keep = k
			if s.die(); !silent {
				s.sever()
			}
			err = k.prove(t.Context(), o)
			code := Code(exit.Load())
			if !errors.Is(err, ErrLost) || held.Load() || code != LossCode(err) {
				t.Errorf("%s: %v, held %v, exit %d", name, err, held.Load(), code)
			}
			if want := map[bool]Code{false: CodeGuardLost, true: CodeTooOld}[silent]; code != want {
				t.Errorf("%s: code %d, want %d", name, code, want)
			}
			if took := time.Since(begin); took > p.Exit+2*p.Monitor {
				t.Errorf("%s: noticed after %v", name, took)
			}
		})
	}
}

// Issue golang/go#24595: timers stand still while the machine is suspended. The clock of the proofs does not.
func TestSuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := PolicyOf(Steady)
		var skip atomic.Int64
		h, _, err := simHold(t.Context(), &simDB{}, p, simClock{begin: time.Now(), skip: &skip}, time.Millisecond, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + 20*time.Millisecond)
		skip.Store(int64(time.Hour))
		begin := time.Now()
		if err := h.Check(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("a fence right after waking up: %v", err)
		}
		<-h.Dead()
		if LossCode(context.Cause(h.Context())) != CodeTooOld || time.Since(begin) > p.Monitor {
			t.Errorf("after %v: %v", time.Since(begin), context.Cause(h.Context()))
		}
	})
}

// Issue JasperFx/wolverine#4261: a hundred fences at once, and the end of the lease is not held up by them.
func TestManyFencesAndARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := PolicyOf(Steady)
		h, s, err := simHold(t.Context(), &simDB{}, p, simClock{begin: time.Now()}, 2*time.Millisecond, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var good atomic.Int32
		for range 100 {
			all.Go(func() {
				if err := h.Check(t.Context()); err == nil {
					good.Add(1)
				} else if !errors.Is(err, ErrReleased) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if good.Load() != 100 || s.calls.Load() < 100 {
			t.Errorf("%d of 100 fences passed with %d questions", good.Load(), s.calls.Load())
		}
		for range 100 {
			all.Go(func() { _ = h.Check(t.Context()) })
		}
		begin := time.Now()
		if err := h.Release(t.Context()); err != nil || time.Since(begin) > 5*time.Second {
			t.Errorf("release after %v: %v", time.Since(begin), err)
		}
		all.Wait()
	})
}

// A caller that gives up does not take the session with it.
func TestImpatientFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := PolicyOf(Steady)
		h, _, err := simHold(t.Context(), &simDB{}, p, simClock{begin: time.Now()}, 50*time.Millisecond, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if err := h.Check(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
		if err := h.Check(t.Context()); err != nil {
			t.Error(err)
		}
		_ = h.Release(t.Context())
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := PolicyOf(Steady)
		var outcomes []string
		h, s, err := simHold(t.Context(), &simDB{}, p, simClock{begin: time.Now()}, time.Millisecond, nil, func(e Event) {
			if e.Component != "" {
				outcomes = append(outcomes, e.Component+" "+string(e.Outcome))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		failure := errors.New("refused")
		calls := s.calls.Load()
		err = h.Do(t.Context(), "a", func(ctx context.Context, f Fence) error {
			if f.Token.Epoch != 1 {
				t.Errorf("epoch %d", f.Token.Epoch)
			}
			return f.Do(ctx, "b", func(context.Context, Fence) error { return failure })
		})
		if !errors.Is(err, failure) || s.calls.Load() < calls+2 {
			t.Errorf("%v with %d fences", err, s.calls.Load()-calls)
		}
		var unknown *UnknownError
		if err := h.Do(t.Context(), "slow", func(ctx context.Context, _ Fence) error { <-ctx.Done(); return ctx.Err() }); !errors.As(err, &unknown) {
			t.Errorf("past its deadline: %v", err)
		}
		begin := time.Now()
		if err := h.Do(t.Context(), "cut", func(ctx context.Context, _ Fence) error { s.die(); <-ctx.Done(); return ctx.Err() }); !errors.Is(err, ErrUnknown) {
			t.Errorf("lost meanwhile: %v", err)
		}
		if took := time.Since(begin); took > p.Exit+p.Monitor {
			t.Errorf("the effect went on for %v after the loss", took)
		}
		if err := h.Do(t.Context(), "late", func(context.Context, Fence) error { t.Error("acted after the loss"); return nil }); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if got := fmt.Sprint(outcomes); got != "[b failed a failed slow unknown cut unknown]" {
			t.Error(got)
		}
	})
}
