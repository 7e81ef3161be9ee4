package realhosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// osMissing is what the operating system itself lacks for a lab.
func osMissing() []string { return nil }

// initAttr gives a host's init its namespaces and a session of its own: the lab outlives its maker's terminal.
func initAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
}

// signal goes through a pidfd: between the look at the start time and the signal the pid cannot change hands. A process
// that is gone is no error.
func (p Process) signal(sig unix.Signal) error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", p.PID, err)
	}
	return nil
}

// dialSocket connects to a unix socket whose path may be longer than a socket address allows (108 bytes): through a
// descriptor of its folder the path is short.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", filepath.Dir(path), err)
	}
	defer unix.Close(fd)
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)))
}
