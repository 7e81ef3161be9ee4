package lease

import "time"

// State is where a lease stands.
type State string

// The states, in the order in which a lease goes through them. A lease that is lost stays lost: the same process never takes
// it again.
const (
	Idle      State = "idle"
	Guarding  State = "guarding"  // trying to get the session lock
	Observing State = "observing" // has it (or can have none), watches the row
	Claiming  State = "claiming"
	Reclaim   State = "reclaiming" // taking the lease of a twin that has been silent for a whole TTL
	Proving   State = "proving"    // owns the row, waits for the first proof; nothing may act yet
	Holding   State = "held"
	Deferred  State = "deferred" // holds, but its own long write keeps the row from being renewed: no effect may begin
	Closing   State = "closing"
	Withheld  State = "withheld" // gone without a release, because a writer was still at work
	Released  State = "released"
	Lost      State = "lost"
)

// Mode is what keeps a lease.
type Mode string

// The modes.
const (
	Guarded Mode = "guarded" // a session lock on Postgres: taken over within Silence
	TTLOnly Mode = "ttl"     // no session lock can be held (a pooler is in between): taken over after the TTL
	Local   Mode = "flock"   // a file lock: this machine only
)

// How a lease was taken.
type How string

// The ways to a lease.
const (
	ByInsert  How = "first"    // nobody ever held it
	ByRelease How = "released" // it had been given back
	ByAdopt   How = "adopt"    // a dead predecessor of the same identity
	ByExpiry  How = "expired"  // its TTL was over by the database's clock, and it was silent
	BySilence How = "silent"   // unchanged for a whole TTL by our own clock
	ByReclaim How = "reclaim"  // a twin of the same identity, silent for a whole TTL, whose session was ended
	ByLock    How = "lock"     // the file lock was free
)

// Event is one step of a lease, for logs and tests. At is on the lease's Clock.
type Event struct {
	At         time.Duration
	State      State
	Generation uint64
	How        How    // with Proving
	Code       Code   // with Lost
	Text       string // for people
	Component  string // with an effect
	Outcome    Outcome
}

// Outcome is how an effect ended.
type Outcome string

// The outcomes of an effect. Unknown means that it may have happened: it is found out by looking, never by repeating.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Unknown Outcome = "unknown"
)

// Code is the exit code of `qnetops lease run` where it is not the command's own.
type Code int

// The codes. They stay clear of what shells and init systems use.
const (
	CodeGuardLost Code = 90  // the session that holds the lock is gone, or the lease was taken
	CodeTooOld    Code = 91  // the newest proof is too old
	CodeFence     Code = 92  // a fence could not prove the lease in its time
	CodeWatchdog  Code = 93  // a watchdog fired; the lease was given back
	CodeWithheld  Code = 94  // a watchdog fired; the lease was not given back, since something was still at work
	CodeTwin      Code = 95  // a live process of the same identity holds it
	CodeHeld      Code = 96  // another identity holds it
	CodePolicy    Code = 97  // unsafe timing
	CodePooler    Code = 98  // --require-fast, and no session lock can be held
	CodeUsage     Code = 125 // our own command line or set-up
	CodeCannotRun Code = 126 // CMD is there and cannot be run
	CodeNotFound  Code = 127 // CMD is not there
)

// Meaning is one line about a code, "" for one that is not ours.
func (c Code) Meaning() string {
	switch c {
	case CodeGuardLost:
		return "lease lost: the guarding session is gone or the lease was taken"
	case CodeTooOld:
		return "lease lost: the newest proof was too old"
	case CodeFence:
		return "fence refused: the lease could not be proven in time"
	case CodeWatchdog:
		return "watchdog fired, lease released"
	case CodeWithheld:
		return "watchdog fired, lease withheld: something was still at work, or the store did not answer"
	case CodeTwin:
		return "held by a live process of the same identity"
	case CodeHeld:
		return "held by another identity"
	case CodePolicy:
		return "unsafe timing refused"
	case CodePooler:
		return "a pooler is in the way and --require-fast was given"
	case CodeUsage:
		return "lease run itself was called or set up wrongly"
	case CodeCannotRun:
		return "the command cannot be run"
	case CodeNotFound:
		return "the command was not found"
	}
	return ""
}
