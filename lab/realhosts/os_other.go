//go:build !linux

package realhosts

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// osMissing is what the operating system itself lacks for a lab: everywhere else, Linux.
func osMissing() []string { return []string{"Linux"} }

func initAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func (p Process) signal(unix.Signal) error { return &NeedError{Missing: osMissing()} }

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}
