package lease

import (
	"strings"
	"time"
)

// verdict is what an answer means for the holder.
type verdict int

const (
	alive    verdict = iota
	deferred         // alive, but no effect may begin
	busy             // alive; somebody else has the row locked
	recheck          // looks lost, but our own commit may have come in between: ask once more
	gone
)

// judge reads one answer. It decides nothing by any clock.
func judge(p proof) verdict {
	switch {
	case !p.Guard || !p.Mine:
		return gone
	case p.Renewed:
		return alive
	case p.OwnLock && (p.Expired || p.InMargin):
		return deferred
	case p.OwnLock:
		return alive
	case p.Expired:
		return recheck
	}
	return busy
}

// look is one look at the lease by a candidate, with the time that it has been unchanged.
type look struct {
	row     row
	found   bool
	guarded bool          // we have the session lock
	pooled  bool          // we can have none
	still   time.Duration // unchanged for at least this long, counted from when we had the lock where we have it
}

// move is what a candidate does next: take it in this way, or look again after a while. A move with neither waits for
// somebody else.
type move struct {
	how How
	in  time.Duration
}

// decide says when a candidate may take the lease. Durations are on the candidate's own clock; the database's clock alone
// never suffices, since it can step.
func decide(l look, me Identity, p Policy) move {
	silence, ttl := patience(l.row, p)
	wait := func(how How, need time.Duration) move {
		if l.still >= need {
			return move{how: how}
		}
		return move{in: need - l.still}
	}
	ours := l.found && l.row.Identity == me && strings.HasPrefix(l.row.Token, adoptable)
	broken := l.found && strings.HasPrefix(l.row.Token, revoked)
	switch {
	case !l.guarded && !l.pooled && ours && !l.row.Released:
		return wait(ByReclaim, ttl) // a session of our identity is alive: only a whole TTL of silence says more than that
	case !l.guarded && !l.pooled && broken && l.row.Identity == me:
		return wait(ByReclaim, silence) // a live holder has gone by now; one that is paused keeps its lock for ever
	case !l.guarded && !l.pooled:
		return move{} // a twin has the lock and is about to take the lease, or to go
	case !l.found:
		return move{how: ByInsert}
	case broken:
		return wait(ByRelease, silence) // a holder that cannot hear of it acts on for a silence
	case l.row.Released:
		return move{how: ByRelease}
	case ours && l.guarded:
		return wait(ByAdopt, silence)
	case l.row.Expired:
		return wait(ByExpiry, silence)
	}
	return wait(BySilence, ttl)
}

// patience is how long the candidate watches: at least what its own policy says, and at least what the holder lives by. A
// fast candidate must not overtake a steady holder.
func patience(r row, p Policy) (silence, ttl time.Duration) {
	theirs := time.Duration(r.Holder.Silence * float64(time.Second))
	if theirs <= 0 && r.Token != "" {
		theirs = 2 * time.Second // unknown: what the steady profile needs
	}
	return max(p.Silence, theirs), max(p.TTL, time.Duration(r.Holder.TTL*float64(time.Second)))
}
