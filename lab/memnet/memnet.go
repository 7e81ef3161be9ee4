// Package memnet is the network of a lab that lives in memory: buffered
// connections and listeners which block on condition variables only, so that a
// lab can run inside a testing/synctest bubble.
//
// The buffer matters. Both ends of an SSH handshake write before they read; on
// an unbuffered net.Pipe that is a deadlock.
package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferLimit is how much one direction of a connection holds before writes
// wait: enough for a handshake, small enough that a stuck reader is noticed.
const bufferLimit = 256 << 10

// Addr is the address of an in-memory endpoint.
type Addr struct{ Name string }

// Network names the network as net.Addr asks.
func (Addr) Network() string { return "tcp" }

// String is the name given to the endpoint.
func (a Addr) String() string { return a.Name }

// half is one direction of a connection.
type half struct {
	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	eof    bool  // the writer closed its side; buffered bytes are still read
	broken error // the connection is gone; buffered bytes are lost
	rdead  deadline
	wdead  deadline
}

// deadline wakes the waiters of a half when it passes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newHalf() *half {
	h := &half{}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (h *half) setDeadline(d *deadline, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.cond.Broadcast()
		})
	}
	h.cond.Broadcast()
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.broken != nil:
			return 0, h.broken
		case h.rdead.passed():
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[n:]
			if len(h.buf) == 0 {
				h.buf = nil // let a large buffer go
			}
			h.cond.Broadcast()
			return n, nil
		case h.eof:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		h.cond.Wait()
	}
}

func (h *half) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	written := 0
	for len(p) > 0 {
		switch {
		case h.broken != nil:
			return written, h.broken
		case h.eof:
			return written, io.ErrClosedPipe
		case h.wdead.passed():
			return written, os.ErrDeadlineExceeded
		case len(h.buf) < bufferLimit:
			n := min(bufferLimit-len(h.buf), len(p))
			h.buf = append(h.buf, p[:n]...)
			p, written = p[n:], written+n
			h.cond.Broadcast()
			continue
		}
		h.cond.Wait()
	}
	return written, nil
}

// end marks the end of the writes; what is buffered can still be read.
func (h *half) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eof = true
	h.cond.Broadcast()
}

// fail breaks the half; what is buffered is lost.
func (h *half) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken == nil {
		h.broken = err
	}
	for _, d := range []*deadline{&h.rdead, &h.wdead} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	h.cond.Broadcast()
}

// Conn is one end of an in-memory connection.
type Conn struct {
	in, out       *half
	local, remote Addr
	// Tag says who opened the connection; the lab names processes with it.
	Tag string

	once    sync.Once
	onClose func()
}

// Pipe returns both ends of a new connection.
func Pipe(client, server string) (*Conn, *Conn) {
	up, down := newHalf(), newHalf()
	c := &Conn{in: down, out: up, local: Addr{client}, remote: Addr{server}}
	s := &Conn{in: up, out: down, local: Addr{server}, remote: Addr{client}}
	return c, s
}

// Origin says who opened the connection.
func (c *Conn) Origin() string { return c.Tag }

// Read reads what the other end wrote.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write buffers p for the other end; it waits while the buffer is full.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p) }

// CloseWrite ends this side's writes, as the shutdown of a TCP connection does.
func (c *Conn) CloseWrite() error { c.out.end(); return nil }

// Close ends the connection: the other end reads what was written and then EOF;
// its own writes fail from now on.
func (c *Conn) Close() error {
	c.out.end()
	c.in.fail(net.ErrClosed)
	c.closed()
	return nil
}

// Sever breaks both directions at once, as a dead host or a cut cable does:
// nothing that is buffered arrives.
func (c *Conn) Sever() {
	c.in.fail(syscall.ECONNRESET)
	c.out.fail(syscall.ECONNRESET)
	c.closed()
}

func (c *Conn) closed() {
	c.once.Do(func() {
		if c.onClose != nil {
			c.onClose()
		}
	})
}

// OnClose registers f, called once when this end is closed or severed. It must
// be set before the connection is used.
func (c *Conn) OnClose(f func()) { c.onClose = f }

// LocalAddr is the name of this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the name of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline bounds reads and writes.
func (c *Conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.rdead, t)
	c.out.setDeadline(&c.out.wdead, t)
	return nil
}

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.rdead, t)
	return nil
}

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.wdead, t)
	return nil
}

// Listener accepts in-memory connections.
type Listener struct {
	addr Addr

	mu     sync.Mutex
	cond   *sync.Cond
	queue  []*Conn
	closed bool
}

// Listen returns a listener with a name.
func Listen(name string) *Listener {
	l := &Listener{addr: Addr{name}}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

// Dial connects to the listener; from names the caller. A closed listener
// refuses, as the kernel would.
func (l *Listener) Dial(ctx context.Context, from string) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: l.addr, Err: syscall.ECONNREFUSED}
	}
	c, s := Pipe(from, l.addr.Name)
	l.queue = append(l.queue, s)
	l.cond.Signal()
	return c, nil
}

// Close stops accepting; connections that wait are broken.
func (l *Listener) Close() error {
	l.mu.Lock()
	queue := l.queue
	wasClosed := l.closed
	l.queue, l.closed = nil, true
	l.cond.Broadcast()
	l.mu.Unlock()
	for _, c := range queue {
		c.Sever()
	}
	if wasClosed {
		return errors.New("listener is closed already")
	}
	return nil
}

// Addr is the name of the listener.
func (l *Listener) Addr() net.Addr { return l.addr }
