package lease

import (
	"context"
	"time"
)

// Crash does to a holder what SIGKILL does: its session and its loops end, and it says nothing to anybody.
func (h *Held) Crash() {
	h.mu.Lock()
	h.state = Withheld
	h.mu.Unlock()
	h.keep.drop()
}

// Pause does to a holder what SIGSTOP does, as far as one process can do it to itself: nothing runs, sessions stay.
func (h *Held) Pause() (resume func()) {
	k := h.keep.(*pgKeeper)
	k.slot <- struct{}{}
	return func() { <-k.slot }
}

// GuardPID is the server's process of the guarding session.
func (h *Held) GuardPID() uint32 { return h.keep.(*pgKeeper).store().(*pgStore).conn.PgConn().PID() }

// Wedge keeps the guard's slot until the returned func is called.
func (h *Held) Wedge() func() { return h.Pause() }

// Proven is the send edge of the newest proof.
func (h *Held) Proven() time.Duration { return h.keep.(*pgKeeper).proven.at() }

// SessionToken is what stands in the row.
func (h *Held) SessionToken() string {
	switch k := h.keep.(type) {
	case *pgKeeper:
		return k.store().(*pgStore).sess.token
	case *localKeeper:
		return k.token
	}
	return ""
}

// LateRelease is a release that was on its way when its holder was overtaken.
func (h *Held) LateRelease(ctx context.Context) error {
	k := h.keep.(*pgKeeper)
	return k.giveBack(ctx, k.generation.Load(), "late")
}

// Names of what tests of the inside use.
type (
	Row   = row
	Proof = proof
)

var CheckMagic = checkMagic
