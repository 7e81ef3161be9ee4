package lease

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is a clock that never steps and that goes on while the machine is suspended. Go's own monotonic time stops then, and
// the wall clock steps; neither can tell how old a proof is.
type Clock interface {
	// Now is the time since an arbitrary origin that is the same for all processes of the machine.
	Now() time.Duration
}

// BootTime is CLOCK_BOOTTIME.
type BootTime struct{}

// Now reads the clock of the kernel.
func (BootTime) Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("reading CLOCK_BOOTTIME: " + err.Error()) // the kernel has it since 2.6.39; without it no lease can be kept
	}
	return time.Duration(t.Nano())
}

// stamp is the send edge of the newest proof. It only moves forward: a slower writer must not make a fresher proof look older.
type stamp struct{ v atomic.Int64 }

func (s *stamp) at() time.Duration { return time.Duration(s.v.Load()) }

// raise reports whether edge is newer than what was there.
func (s *stamp) raise(edge time.Duration) bool {
	for {
		old := s.v.Load()
		if int64(edge) <= old {
			return false
		}
		if s.v.CompareAndSwap(old, int64(edge)) {
			return true
		}
	}
}
