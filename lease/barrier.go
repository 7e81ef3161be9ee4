package lease

import (
	"context"
	"errors"
	"sync"
)

// ErrClosing is the answer to new work once a lease is being given back.
var ErrClosing = errors.New("the lease is being given back: no new work may begin")

// barrier counts the work that must end before a lease may be given back.
type barrier struct {
	mu     sync.Mutex // held for a few instructions only
	closed bool
	n      int
	idle   chan struct{} // closed when closed and n is 0
}

func newBarrier() *barrier { return &barrier{idle: make(chan struct{})} }

// enter admits one piece of work. Nested work of somebody already admitted passes a closed barrier: it could otherwise never
// end.
func (b *barrier) enter(nested bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed && (!nested || b.n == 0) {
		return ErrClosing
	}
	b.n++
	return nil
}

func (b *barrier) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.closed && b.n == 0 {
		close(b.idle)
	}
}

// shut refuses new work from now on.
func (b *barrier) shut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	if b.n == 0 {
		close(b.idle)
	}
}

// wait returns nil once everything has ended.
func (b *barrier) wait(ctx context.Context) error {
	select {
	case <-b.idle:
		return nil
	default:
	}
	select {
	case <-b.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Work is one piece of admitted work. It may be handed to another goroutine; it ends once.
type Work struct {
	b    *barrier
	once sync.Once
}

// Done ends it. Only the first call counts.
func (w *Work) Done() { w.once.Do(w.b.leave) }

// Nested admits work within this work, also while the lease is being given back.
func (w *Work) Nested() (*Work, error) {
	if err := w.b.enter(true); err != nil {
		return nil, err
	}
	return &Work{b: w.b}, nil
}
