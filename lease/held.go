package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
)

// keeper is what keeps a lease: a session on Postgres, or a file lock.
type keeper interface {
	// fence proves the right now. A loss it has already reported to the Held.
	fence(ctx context.Context) error
	// raise moves the generation on in the store.
	raise(ctx context.Context, from, to uint64, operation string) error
	// release gives the lease back with one attempt and lets go of everything, whatever the store says.
	release(ctx context.Context, why string) error
	// drop lets go of everything and gives nothing back.
	drop()
	// lost ends the keeping, after a loss. What stops others on this machine stays until drop.
	lost()
}

// Held is a lease that this process has. It implements Lease.
type Held struct {
	id     Identity
	policy Policy
	clock  Clock
	mode   Mode
	how    How
	exit   func(Code, string)
	emit   func(Event)
	keep   keeper
	write  func(context.Context, writeFunc) error // nil where the store is not Postgres
	work   *barrier

	ctx    context.Context
	cancel context.CancelCauseFunc
	dead   context.Context // ends with the loss and with nothing else
	die    context.CancelFunc

	raising sync.Mutex // one Raise at a time
	mu      sync.Mutex // held for a few instructions only
	token   Token
	state   State
	loss    error
}

func newHeld(ctx context.Context, o settled, mode Mode, how How, token Token) *Held {
	h := &Held{id: o.id, policy: o.policy, clock: o.clock, mode: mode, how: how, exit: o.Exit, emit: o.emit, work: newBarrier(), token: token, state: Proving}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.dead, h.die = context.WithCancel(context.Background())
	return h
}

// Token is the present right, as hosts and the journal see it.
func (h *Held) Token() Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token
}

// Context ends when the lease is lost or given back, or with the context given to Acquire.
func (h *Held) Context() context.Context { return h.ctx }

// Mode is what keeps the lease, How the way it was taken, Policy its timing.
func (h *Held) Mode() Mode { return h.mode }

// How says how the lease was taken.
func (h *Held) How() How { return h.how }

// Policy is the timing it is kept by.
func (h *Held) Policy() Policy { return h.policy }

// State is where it stands.
func (h *Held) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// LockFile is the locked file of a lease on one machine, for processes that must have ended before the lease is free; nil on
// Postgres.
func (h *Held) LockFile() *os.File {
	if k, ok := h.keep.(*localKeeper); ok {
		return k.lock.File()
	}
	return nil
}

// Dead is closed when the lease is lost, and only then.
func (h *Held) Dead() <-chan struct{} { return h.dead.Done() }

// enter moves between the states of a live lease; a state that ends it stays.
func (h *Held) enter(s State) {
	h.mu.Lock()
	switch h.state {
	case s, Lost, Released, Withheld, Closing:
		h.mu.Unlock()
		return
	}
	h.state = s
	generation := h.token.Epoch
	h.mu.Unlock()
	h.emit(Event{At: h.clock.Now(), State: s, Generation: generation, How: h.how})
}

// lose ends the lease for good. The exit comes first: nothing that could block may stand before it.
func (h *Held) lose(code Code, why string) error {
	loss := &lostError{code: code, why: why}
	h.mu.Lock()
	switch h.state {
	case Lost, Released, Withheld:
		was := h.loss
		h.mu.Unlock()
		if was == nil {
			was = ErrReleased
		}
		return was
	}
	h.state, h.loss = Lost, loss
	generation := h.token.Epoch
	h.mu.Unlock()
	if h.exit != nil {
		h.exit(code, why)
	}
	h.cancel(loss)
	h.die()
	h.keep.lost()
	h.emit(Event{At: h.clock.Now(), State: Lost, Generation: generation, Code: code, Text: why})
	return loss
}

// alive reports why the lease has ended, nil while it has not.
func (h *Held) alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case Lost:
		return fmt.Errorf("lease %s: %w", h.id.Scope, h.loss)
	case Released, Withheld:
		return fmt.Errorf("lease %s: %w", h.id.Scope, ErrReleased)
	}
	return nil
}

// Check is the fence: it proves, now and at the store, that the right is still held. Call it before each effect outside. Any
// error means: do not act. ErrLost is for good; after ErrDeferred and ErrBusy a later try may pass.
func (h *Held) Check(ctx context.Context) error {
	if err := h.alive(); err != nil {
		return err
	}
	if err := h.keep.fence(ctx); err != nil {
		return fmt.Errorf("lease %s: %w", h.id.Scope, err)
	}
	return h.alive()
}

// Raise sets the epoch to max(own, seen)+1, where seen is the largest epoch found on the hosts, and binds the token to an
// operation. The new number is in the store before Raise returns.
func (h *Held) Raise(ctx context.Context, seen uint64, operation string) (Token, error) {
	h.raising.Lock()
	defer h.raising.Unlock()
	if err := h.alive(); err != nil {
		return Token{}, err
	}
	from := h.Token().Epoch
	to := max(from, seen)
	if to >= math.MaxInt64 {
		return Token{}, fmt.Errorf("raising the epoch of %s: a host shows %d, which leaves no larger number", h.id.Scope, seen)
	}
	to++
	if err := h.keep.raise(ctx, from, to, operation); err != nil {
		return Token{}, fmt.Errorf("raising the epoch of %s: %w", h.id.Scope, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.token.Epoch, h.token.Operation = to, operation
	return h.token, nil
}

// Admit counts one piece of work that must end before the lease may be given back.
func (h *Held) Admit() (*Work, error) {
	if err := h.alive(); err != nil {
		return nil, err
	}
	if err := h.work.enter(false); err != nil {
		return nil, err
	}
	return &Work{b: h.work}, nil
}

// Fence is the right to do one effect. Give its Token to a target that can compare epochs; a target that cannot may still
// see an effect of a process that was paused between the fence and the effect.
type Fence struct {
	Token     Token
	Component string
	held      *Held
	work      *Work
}

// Do does another effect within this one, under a fence of its own.
func (f Fence) Do(ctx context.Context, component string, fn func(context.Context, Fence) error) error {
	w, err := f.work.Nested()
	if err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	defer w.Done()
	return f.held.do(ctx, w, component, fn)
}

// ErrUnknown is what an effect returns that may or may not have happened.
var ErrUnknown = errors.New("whether it happened is not known")

// UnknownError is an effect whose outcome is not known. It must be found out by looking, and done again only under a new
// fence; never repeat it blindly.
type UnknownError struct {
	Component string
	Err       error
}

func (e *UnknownError) Error() string {
	return e.Component + ": " + e.Err.Error() + " (" + ErrUnknown.Error() + ")"
}

func (e *UnknownError) Unwrap() []error { return []error{e.Err, ErrUnknown} }

// Do is the way to do an effect outside: a fence, then fn under a deadline of Policy.Effect, which also ends with the lease.
// Nothing below fn may repeat a request by itself: one fence is for one attempt. Where fn fails by its deadline, by the loss
// of the lease or with ErrUnknown, the error is an *UnknownError.
func (h *Held) Do(ctx context.Context, component string, fn func(context.Context, Fence) error) error {
	w, err := h.Admit()
	if err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	defer w.Done()
	return h.do(ctx, w, component, fn)
}

func (h *Held) do(ctx context.Context, w *Work, component string, fn func(context.Context, Fence) error) error {
	if err := h.Check(ctx); err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.policy.Effect)
	defer cancel()
	defer context.AfterFunc(h.dead, cancel)()
	token := h.Token()
	err := fn(ctx, Fence{Token: token, Component: component, held: h, work: w})
	outcome := OK
	switch {
	case err != nil && (ctx.Err() != nil || errors.Is(err, ErrUnknown)):
		outcome, err = Unknown, &UnknownError{Component: component, Err: err}
	case err != nil:
		outcome, err = Failed, fmt.Errorf("%s: %w", component, err)
	}
	e := Event{At: h.clock.Now(), State: h.State(), Generation: token.Epoch, Component: component, Outcome: outcome}
	if err != nil {
		e.Text = err.Error()
	}
	h.emit(e)
	return err
}

// ErrWithheld is a lease that was not given back, because work was still under way: a successor waits until it is certain
// that this process is gone.
var ErrWithheld = errors.New("the lease was not given back: work was still under way")

const storeWait = 10 * time.Second // bound of the store's part in an orderly release

// Release gives the right back once all admitted work has ended, for which it waits Policy.Quiesce. Calling it again does
// nothing. It also works under a context that is over. The row and its counter stay.
func (h *Held) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.policy.Quiesce+storeWait)
	defer cancel()
	return h.release(ctx, h.policy.Quiesce, "")
}

// Abandon is Release for a process that is about to exit because something in it hangs: everything together takes at most
// limit. The error says whether the lease was given back; after ErrWithheld it was not.
func (h *Held) Abandon(limit time.Duration, why string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.release(ctx, limit, why)
}

func (h *Held) release(ctx context.Context, quiesce time.Duration, why string) error {
	h.mu.Lock()
	switch h.state {
	case Lost, Released, Withheld, Closing:
		lost := h.state == Lost
		h.mu.Unlock()
		if lost {
			h.keep.drop()
		}
		return nil
	}
	h.state = Closing
	generation := h.token.Epoch
	h.mu.Unlock()
	h.work.shut()
	h.cancel(ErrReleased)
	end := func(s State, err error) error {
		h.mu.Lock()
		lost := h.state == Lost
		if !lost {
			h.state = s
		}
		h.mu.Unlock()
		if lost {
			return nil // there is nothing left to give back
		}
		h.emit(Event{At: h.clock.Now(), State: s, Generation: generation, Text: why})
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, quiesce)
	err := h.work.wait(waiting)
	cancel()
	if err != nil {
		err = end(Withheld, fmt.Errorf("lease %s: %w", h.id.Scope, ErrWithheld))
		h.keep.drop()
		return err
	}
	if h.State() == Lost {
		h.keep.drop()
		return nil
	}
	if err := h.keep.release(ctx, why); err != nil {
		return end(Withheld, fmt.Errorf("giving back the lease of %s: %w", h.id.Scope, err))
	}
	return end(Released, nil)
}
