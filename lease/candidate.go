package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// candidate is a process on its way to a lease.
type candidate struct {
	o    settled
	dial func(context.Context) (store, error)
	note string // what it found out about the present holder
	last row    // the lease as last seen
	twin bool   // it is the session lock that is in the way
}

// taken is what a candidate ends with.
type taken struct {
	store      store
	generation uint64
	how        How
}

// run tries until it has the lease, may wait no longer, or is refused.
func (c *candidate) run(ctx context.Context) (t taken, err error) {
	c.o.emit(Event{At: c.o.clock.Now(), State: Guarding})
	limit := c.o.clock.Now() + c.o.Wait
	err = c.persist(ctx, limit, func() (err error) {
		t, err = c.attempt(ctx, limit)
		return err
	})
	return t, err
}

// persist does something with the database again and again while there is time: it may be restarting. The lease is then
// watched from the beginning.
func (c *candidate) persist(ctx context.Context, limit time.Duration, fn func() error) error {
	for {
		err := fn()
		var refused *RefusedError
		var held *HeldError
		if err == nil || errors.As(err, &refused) || errors.As(err, &held) || ctx.Err() != nil || c.over(limit) {
			return err
		}
		if err := c.pause(ctx, c.o.policy.Poll); err != nil {
			return err
		}
	}
}

// over reports whether the time that the caller gave for other holders has passed.
func (c *candidate) over(limit time.Duration) bool { return c.o.Wait >= 0 && c.o.clock.Now() >= limit }

func (c *candidate) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(d, time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the lease of %s: %w", c.o.id.Scope, ctx.Err())
	}
}

// watch times how long the lease has been unchanged: from the moment the first equal look had been answered to the moment
// the last one was asked.
type watch struct {
	row     row
	found   bool
	since   time.Duration
	guarded bool
	guardAt time.Duration
}

func (w *watch) see(r row, found bool, asked, answered time.Duration) (still time.Duration) {
	if found != w.found || !found || !r.same(w.row) {
		w.since = answered
	}
	w.row, w.found = r, found
	from := w.since
	if w.guarded {
		from = max(from, w.guardAt)
	}
	return max(0, asked-from)
}

// attempt is one session's way to the lease.
func (c *candidate) attempt(ctx context.Context, limit time.Duration) (t taken, err error) {
	s, err := c.dial(ctx)
	if err != nil {
		return taken{}, err
	}
	defer func() {
		if err != nil {
			s.sever() // also after a cancelled question: whatever lock the server has given meanwhile must not stay
		}
	}()
	w := &watch{}
	for {
		if !s.pooled() && !w.guarded {
			if w.guarded, err = s.lock(ctx); err != nil {
				return taken{}, fmt.Errorf("trying the session lock of %s: %w", c.o.id.Scope, err)
			}
			w.guardAt = c.o.clock.Now()
			if w.guarded {
				c.o.emit(Event{At: w.guardAt, State: Observing})
			}
		}
		asked := c.o.clock.Now()
		r, found, err := s.observe(ctx)
		if err != nil {
			return taken{}, err
		}
		still := w.see(r, found, asked, c.o.clock.Now())
		c.last, c.twin = r, !w.guarded && !s.pooled()
		m := decide(look{row: r, found: found, guarded: w.guarded, pooled: s.pooled(), still: still}, c.o.id, c.o.policy)
		if m.how != "" {
			t, ok, err := c.take(ctx, s, r, found, m.how, limit)
			if err != nil || ok {
				return t, err
			}
			m.in = c.o.policy.Monitor // it changed at the last moment: look again, from the beginning
		} else if c.over(limit) && !c.adopting(w, m, limit) {
			return taken{}, c.held()
		}
		if err := c.pause(ctx, c.next(m)); err != nil {
			return taken{}, err
		}
	}
}

// adopting reports whether the candidate may go on although its time for other holders is over: it has the session lock, the
// predecessor of its own identity (or one whose TTL is over) has not moved since, and the silence is bounded; or the lease was
// broken.
func (c *candidate) adopting(w *watch, m move, limit time.Duration) bool {
	silence, _ := patience(w.row, c.o.policy)
	if strings.HasPrefix(w.row.Token, revoked) {
		return m.in > 0 && m.in <= silence // a person has said that it may be taken
	}
	if !w.guarded {
		return c.o.Wait == 0 && c.o.clock.Now() < limit+c.o.policy.Poll // a session that has just died is about to be noticed
	}
	return w.found && (w.row.Identity == c.o.id || w.row.Expired) && m.in > 0 && m.in <= silence && w.since <= w.guardAt+c.o.policy.Poll
}

// next is when to look again.
func (c *candidate) next(m move) time.Duration {
	if m.in > 0 && m.in < c.o.policy.Poll {
		return m.in
	}
	return c.o.policy.Poll
}

func (c *candidate) held() error {
	h := c.last.Holder.held(c.o.id.Scope)
	h.Twin, h.Note = c.twin || c.last.Identity == c.o.id, c.note
	return h
}

// take claims what was observed; ok is false where it has changed since.
func (c *candidate) take(ctx context.Context, s store, r row, found bool, how How, limit time.Duration) (taken, bool, error) {
	c.o.emit(Event{At: c.o.clock.Now(), State: Claiming, How: how})
	from := &r
	if !found {
		from = nil
	}
	generation, ok, err := s.claim(ctx, from, how)
	if rowBusy(err) {
		return taken{}, false, nil // a write under the lease holds its row: whoever writes is alive
	}
	if err != nil || !ok {
		return taken{}, false, err
	}
	t := taken{store: s, generation: generation, how: how}
	if how == ByReclaim {
		return c.reclaim(ctx, t, limit)
	}
	return t, true, nil
}

// reclaim finishes a take-over from a paused twin: the row is ours, so whatever the twin still sends changes nothing; its
// session is ended, and only a whole silence after its lock was free may anything begin.
func (c *candidate) reclaim(ctx context.Context, t taken, limit time.Duration) (taken, bool, error) {
	begun := c.o.clock.Now()
	c.o.emit(Event{At: begun, State: Reclaim, Generation: t.generation})
	for said := false; ; said = true {
		n, err := t.store.evict(ctx)
		if err != nil {
			return taken{}, false, err
		}
		got, err := t.store.lock(ctx)
		if err != nil {
			return taken{}, false, fmt.Errorf("trying the session lock of %s: %w", c.o.id.Scope, err)
		}
		if got {
			break
		}
		if said {
			c.note = fmt.Sprintf("it was silent for a whole TTL and its lease is revoked, but its session on the server does not end (%d asked to): look at that backend process", n)
			c.o.emit(Event{At: c.o.clock.Now(), State: Reclaim, Generation: t.generation, Text: c.note})
		}
		if c.over(limit) && c.o.clock.Now() > max(begun, limit)+c.o.policy.Silence {
			c.twin = true
			return taken{}, false, c.held()
		}
		if err := c.pause(ctx, c.o.policy.Poll); err != nil {
			return taken{}, false, err
		}
	}
	silence, _ := patience(c.last, c.o.policy)
	return t, true, c.pause(ctx, silence)
}
