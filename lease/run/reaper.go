package run

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/lease"
)

// page is the memory that the supervisor shares with the reaper. All times are nanoseconds of CLOCK_BOOTTIME.
type page struct {
	proven     atomic.Int64 // send edge of the newest proof, 0 where proofs do not age (a file lock)
	exit       atomic.Int64 // the age at which the command must be dead
	group      atomic.Int64 // process group of the command, 0 before it is started
	done       atomic.Int64 // 1: nothing of the command is left
	code       atomic.Int64 // the code that the supervisor was about to exit with
	generation atomic.Int64
	supervisor atomic.Int64
	run        [32]byte
}

const pageSize = 4096

func newPage() (*os.File, *page, error) {
	fd, err := unix.MemfdCreate("qnetops-lease", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("making the shared page: %w", err)
	}
	f := os.NewFile(uintptr(fd), "qnetops-lease")
	if err := f.Truncate(pageSize); err != nil {
		f.Close()
		return nil, nil, err
	}
	p, err := mapPage(f)
	return f, p, err
}

func mapPage(f *os.File) (*page, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the shared page: %w", err)
	}
	return (*page)(unsafe.Pointer(&mem[0])), nil // mapped for the life of the process
}

// The reaper's inherited files, in the order of exec.Cmd.ExtraFiles.
const (
	reaperLife = 3 + iota // the read end of a pipe that ends with the supervisor
	reaperPage
	reaperExits
	reaperLock
)

const reaperEvery = 25 * time.Millisecond

// Reap is the body of the reaper process. It returns when nothing of the command is left, and never before.
func Reap(lockPath string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	p, err := mapPage(os.NewFile(reaperPage, "page"))
	if err != nil {
		return err
	}
	exits := os.NewFile(reaperExits, "exits")
	lock := os.NewFile(reaperLock, "lock") // held until nothing is left: a successor must not begin while we are killing
	defer lock.Close()
	for {
		gone, err := lifeEnded(reaperEvery)
		if err != nil {
			return err
		}
		if p.done.Load() == 1 {
			return nil
		}
		age, limit := int64(lease.BootTime{}.Now())-p.proven.Load(), p.exit.Load()
		late := p.proven.Load() > 0 && limit > 0 && age >= limit
		if !gone && !late {
			continue
		}
		reason := fmt.Sprintf("the newest proof was %s old: the supervisor is stopped or stuck", time.Duration(age).Round(time.Millisecond))
		if gone {
			reason = "the supervisor is gone"
		}
		reapAll(p, lockPath, gone)
		r := Record{Run: runName(p), Event: "reaped", PID: int(p.supervisor.Load()), Generation: uint64(p.generation.Load()), Reason: reason}
		if code := int(p.code.Load()); code != 0 {
			r.Code = &code
		}
		writeRecord(exits, r)
		return nil
	}
}

// reapAll kills until there is nothing left to kill, twice in a row.
func reapAll(p *page, lockPath string, gone bool) {
	t := tree{lock: lockPath}
	if !gone {
		t.root = int(p.supervisor.Load()) // it has adopted the command's orphans
	}
	for quiet := 0; quiet < 2; quiet++ {
		t.group = int(p.group.Load()) // it may have been started at the very moment
		if t.kill() > 0 {
			quiet = -1
		}
		_, _ = unix.Poll(nil, 5)
	}
}

// lifeEnded waits for the end of the supervisor.
func lifeEnded(wait time.Duration) (bool, error) {
	fds := []unix.PollFd{{Fd: reaperLife, Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watching the supervisor: %w", err)
	}
	return n > 0, nil
}

func runName(p *page) string {
	for i, c := range p.run {
		if c == 0 {
			return string(p.run[:i])
		}
	}
	return string(p.run[:])
}
