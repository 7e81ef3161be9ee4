package host

import (
	"context"
	"net"
)

// LocalGuardian is a guardian inside this process, for a lab that keeps many
// hosts in one program.
type LocalGuardian struct {
	net.Conn
	pid    int
	done   chan struct{}
	cancel context.CancelFunc
}

// StartLocalGuardian runs Guard in a goroutine. The end of ctx, or Kill, is its death.
func StartLocalGuardian(ctx context.Context, cfg Config, pid int) *LocalGuardian {
	ctx, cancel := context.WithCancel(ctx)
	near, far := net.Pipe()
	g := &LocalGuardian{Conn: near, pid: pid, done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(g.done)
		defer cancel()
		// What a guardian could not settle stays in the log for the next writer.
		_ = Guard(ctx, cfg, far)
	}()
	return g
}

// PID is the number the lab gave it.
func (g *LocalGuardian) PID() int { return g.pid }

// Done is closed when the guardian has ended.
func (g *LocalGuardian) Done() <-chan struct{} { return g.done }

// Kill ends the guardian as a SIGKILL would.
func (g *LocalGuardian) Kill() { g.cancel() }
