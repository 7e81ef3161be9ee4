package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// pgKeeper keeps a lease on Postgres: a beat that proves and renews, and a monitor that ends the lease when the newest proof
// is too old, whatever the beat is stuck in.
type pgKeeper struct {
	h          *Held
	mu         sync.Mutex // of current
	current    store
	redial     func(context.Context) (store, error)                  // only where no session lock is held: then a session is nothing
	giveBack   func(ctx context.Context, g uint64, why string) error // on a connection of its own
	onProof    func(time.Duration)
	slot       chan struct{} // one question at a time; a channel, so that waiting for it can be bounded
	generation atomic.Uint64
	proven     stamp // send edge of the newest answered question
	renewed    stamp // send edge of the newest renewal
	tooOld     time.Duration

	first    chan struct{} // closed with the first proof
	firstOne sync.Once
	stop     chan struct{}
	stopOne  sync.Once
	loops    sync.WaitGroup
}

func newKeeper(h *Held, s store, generation uint64) *pgKeeper {
	k := &pgKeeper{h: h, current: s, slot: make(chan struct{}, 1), first: make(chan struct{}), stop: make(chan struct{}), tooOld: h.policy.Exit}
	if s.pooled() {
		// Nobody takes over before the TTL, and no session has to be kept: a gap in the answers may be longer.
		k.tooOld = h.policy.TTL / 2
	}
	k.generation.Store(generation)
	now := h.clock.Now()
	k.proven.raise(now)
	k.renewed.raise(now)
	return k
}

func (k *pgKeeper) start() {
	k.loops.Go(k.beat)
	k.loops.Go(k.monitor)
}

func (k *pgKeeper) halt() { k.stopOne.Do(func() { close(k.stop) }) }

func (k *pgKeeper) drop() {
	k.halt()
	k.store().sever()
}

func (k *pgKeeper) lost() { k.drop() }

func (k *pgKeeper) store() store {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// beat proves and renews. Each round asks one question; a question that hangs is the monitor's business.
func (k *pgKeeper) beat() {
	tick := time.NewTicker(k.h.policy.Beat)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case k.slot <- struct{}{}:
		}
		_, err := k.ask(context.Background())
		<-k.slot
		k.lostBy(err)
		select {
		case <-k.stop:
			return
		case <-tick.C:
		}
	}
}

// monitor ends the lease by age. It does nothing that could block.
func (k *pgKeeper) monitor() {
	tick := time.NewTicker(k.h.policy.Monitor)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-tick.C:
		}
		if err := k.age(k.h.clock.Now()); err != nil {
			k.lostBy(err)
			return
		}
	}
}

// age is an error once the newest proof is too old.
func (k *pgKeeper) age(now time.Duration) error {
	if age := now - k.proven.at(); age >= k.tooOld {
		return &lostError{code: CodeTooOld, why: fmt.Sprintf("the newest proof is %s old, %s is the most", age.Round(time.Millisecond), k.tooOld)}
	}
	return nil
}

// lostBy ends the lease where err says that it is lost.
func (k *pgKeeper) lostBy(err error) {
	var lost *lostError
	if !errors.As(err, &lost) {
		return
	}
	select {
	case <-k.stop: // the session was closed on purpose
	default:
		_ = k.h.lose(lost.code, lost.why)
	}
}

// stamp records a proof by the moment its question was sent: a late answer must not look fresher than what it proves.
func (k *pgKeeper) stamp(edge time.Duration, renewed bool) {
	if renewed {
		k.renewed.raise(edge)
	}
	if k.proven.raise(edge) && k.onProof != nil {
		k.onProof(edge)
	}
}

// ask puts one question to the guard and settles what the answer means. The slot is the caller's.
func (k *pgKeeper) ask(ctx context.Context) (verdict, error) {
	for again := false; ; again = true {
		edge := k.h.clock.Now()
		if err := k.age(edge); err != nil {
			return gone, err // after a pause: what the database says now does not undo that we were away
		}
		p, err := k.store().prove(ctx, k.generation.Load())
		if rowBusy(err) && !again {
			// The server measures its statement timeout by the wall clock: a step of it ends a healthy question. The session
			// lives and has its lock; whether the answer comes in time the age of the proof decides.
			continue
		}
		if err != nil {
			return gone, k.failed(ctx, err)
		}
		v := judge(p)
		switch {
		case v == gone && !p.Mine:
			return gone, &lostError{code: CodeGuardLost, why: "another session has the lease"}
		case v == gone:
			return gone, &lostError{code: CodeGuardLost, why: "the session lock is gone"}
		case v == recheck && again:
			return gone, &lostError{code: CodeGuardLost, why: "the lease has expired and somebody else has its row"}
		case v == recheck:
			continue
		case v == busy && edge-k.renewed.at() >= k.h.policy.TTL-k.h.policy.Silence:
			return gone, &lostError{code: CodeGuardLost, why: "somebody else keeps the row locked and the lease is about to expire"}
		}
		k.stamp(edge, p.Renewed)
		k.settle(v)
		return v, nil
	}
}

// settle moves the state after an answer.
func (k *pgKeeper) settle(v verdict) {
	if v == deferred {
		k.h.enter(Deferred)
	} else {
		k.h.enter(Holding)
	}
	k.firstOne.Do(func() { close(k.first) })
}

// failed says what an unanswered question means. A session that held the lock is never replaced.
func (k *pgKeeper) failed(ctx context.Context, err error) error {
	if k.redial == nil {
		return &lostError{code: CodeGuardLost, why: fmt.Sprintf("the guarding session failed (%v)", err)}
	}
	k.store().sever()
	dialing, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	if next, again := k.redial(dialing); again == nil {
		k.mu.Lock()
		k.current = next
		k.mu.Unlock()
	}
	return fmt.Errorf("asking the store for the lease: %w", err)
}

// take gets the slot, within the caller's patience.
func (k *pgKeeper) take(ctx context.Context) error {
	select {
	case k.slot <- struct{}{}:
		return nil
	case <-k.stop:
		return k.ended()
	case <-ctx.Done():
		return fmt.Errorf("waiting to prove the lease: %w", ctx.Err())
	}
}

// ended is why no question is asked any more.
func (k *pgKeeper) ended() error {
	if err := k.h.alive(); err != nil {
		return err
	}
	return ErrReleased
}

// run lets fn use the guard on a goroutine of its own. A caller that gives up must not cut a question short: the driver
// would close the session. After limit the lease is lost.
func (k *pgKeeper) run(ctx context.Context, limit time.Duration, fn func(context.Context) error) error {
	if err := k.take(ctx); err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		defer func() { <-k.slot }()
		err := fn(context.Background())
		k.lostBy(err)
		result <- err
	}()
	over := time.NewTimer(limit)
	defer over.Stop()
	select {
	case err := <-result:
		return err
	case <-k.stop:
		return k.ended()
	case <-ctx.Done():
		return fmt.Errorf("proving the lease: %w", ctx.Err())
	case <-over.C:
		if k.redial != nil {
			return fmt.Errorf("no proof of the lease within %s", limit)
		}
		return k.h.lose(CodeFence, fmt.Sprintf("a fence found no proof within %s", limit))
	}
}

const busyPause = 20 * time.Millisecond

// fence is the question before an effect. Unlike a beat it does not pass while somebody else has the row locked: that may be
// a rival about to take the lease.
func (k *pgKeeper) fence(ctx context.Context) error {
	return k.run(ctx, k.h.policy.Query, func(ctx context.Context) error {
		begin := k.h.clock.Now()
		for {
			v, err := k.ask(ctx)
			switch {
			case err != nil:
				return err
			case v == alive:
				return nil
			case v == deferred:
				return ErrDeferred
			case k.h.clock.Now()-begin >= k.h.policy.Query/2:
				return ErrBusy // the other half is for the last question: to run out of time would be a loss
			}
			pause := time.NewTimer(busyPause)
			select {
			case <-k.stop:
				pause.Stop()
				return ErrReleased
			case <-pause.C:
			}
		}
	})
}

func (k *pgKeeper) raise(ctx context.Context, from, to uint64, operation string) error {
	return k.run(ctx, 2*k.h.policy.Query, func(ctx context.Context) error {
		edge := k.h.clock.Now()
		if err := k.age(edge); err != nil {
			return err
		}
		ok, err := k.store().raise(ctx, from, to, operation)
		switch {
		case rowBusy(err):
			return ErrBusy // nothing was written
		case err != nil:
			return &lostError{code: CodeGuardLost, why: fmt.Sprintf("the guarding session failed (%v)", err)}
		case !ok:
			return &lostError{code: CodeGuardLost, why: "another session has the lease"}
		}
		k.generation.Store(to)
		k.stamp(edge, true)
		return nil
	})
}

// release stops the beat first: it would take the released row for a loss.
func (k *pgKeeper) release(ctx context.Context, why string) error {
	k.halt()
	err := k.giveBack(ctx, k.generation.Load(), why)
	k.store().sever()
	return err
}
