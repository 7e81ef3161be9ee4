package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// sessionTarget is the Target of a ForwardingError about a session channel.
const sessionTarget = "session"

// maxSessions is how many commands run at a time on one connection, below the
// 10 of sshd's MaxSessions. Forwarded channels do not count there.
const maxSessions = 8

// link is one SSH connection to a host or a jump host. It dies once.
type link struct {
	name     string // for errors
	conn     ssh.Conn
	sessions chan struct{}
	opening  gate
	key      string // fingerprint of the verified host key
	dead     chan struct{}

	mu     sync.Mutex
	err    error
	timer  *time.Timer
	open   int           // sessions open now
	opened bool          // there has been one
	ended  chan struct{} // closed and replaced when one of them ends
}

// newLink takes over a connection whose handshake is done. keepalive 0 asks no
// questions (a jump host's link always has some).
func newLink(name string, conn ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request, keepalive time.Duration) *link {
	l := &link{name: name, conn: conn, sessions: make(chan struct{}, maxSessions), opening: newGate(), dead: make(chan struct{}), ended: make(chan struct{})}
	go l.serve(chans, reqs)
	if keepalive > 0 {
		l.mu.Lock()
		l.timer = time.AfterFunc(keepalive, func() { l.ping(keepalive) })
		l.mu.Unlock()
	}
	return l
}

// serve answers the peer: no to every channel and every request (a server has
// nothing to open towards this program; agent forwarding is never asked for).
// It ends with the connection.
func (l *link) serve(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	for chans != nil || reqs != nil {
		select {
		case ch, ok := <-chans:
			if !ok {
				chans = nil
				continue
			}
			ch.Reject(ssh.Prohibited, "no channels towards the client")
		case req, ok := <-reqs:
			if !ok {
				reqs = nil
				continue
			}
			if req.WantReply {
				req.Reply(false, nil)
			}
		}
	}
	err := l.conn.Wait()
	if err == nil {
		err = io.EOF
	}
	l.fail(err)
}

// ping asks and waits for two intervals; a peer is thus known to be dead three
// intervals after its last sign of life. Any answer will do: sshd refuses the
// request, and that refusal is the sign of life.
func (l *link) ping(interval time.Duration) {
	bound := time.AfterFunc(2*interval, func() {
		l.fail(&TimeoutError{Host: l.name, What: "keepalive", After: 2 * interval})
	})
	_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
	if !bound.Stop() {
		return
	}
	if err != nil {
		l.fail(err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.timer.Reset(interval)
	}
}

// fail marks the link dead with its first reason and closes it.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		if l.timer != nil {
			l.timer.Stop()
		}
		close(l.dead)
	}
	l.mu.Unlock()
	if first {
		l.conn.Close()
	}
}

var errClosed = errors.New("closed by this program")

func (l *link) close() { l.fail(errClosed) }

func (l *link) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) dropped() error { return &DroppedError{Host: l.name, Err: l.cause()} }

// channel opens a channel within ctx. The library's open has no context; one
// that comes too late is closed when it comes.
func (l *link) channel(ctx context.Context, kind, target string, payload []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	done := make(chan opened, 1)
	go func() {
		ch, reqs, err := l.conn.OpenChannel(kind, payload)
		done <- opened{ch, reqs, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, nil, l.channelError(target, o.err)
		}
		return o.ch, o.reqs, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				go ssh.DiscardRequests(o.reqs)
				o.ch.Close()
			}
		}()
		return nil, nil, ctx.Err()
	}
}

func (l *link) channelError(target string, err error) error {
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) {
		return &ForwardingError{Host: l.name, Target: target, Denied: refused.Reason == ssh.Prohibited, Err: refused}
	}
	l.fail(err) // only a broken connection answers an open with anything else
	return l.dropped()
}

// dialTCP opens a channel to an address as seen from the host.
func (l *link) dialTCP(ctx context.Context, host string, port int) (net.Conn, error) {
	target := net.JoinHostPort(host, itoa(port))
	payload := ssh.Marshal(struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}{host, uint32(port), "127.0.0.1", 0})
	ch, reqs, err := l.channel(ctx, "direct-tcpip", target, payload)
	if err != nil {
		return nil, err
	}
	return newChannelConn(ch, reqs, target), nil
}

// dialUnix opens a channel to a unix socket of the host.
func (l *link) dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	payload := ssh.Marshal(struct {
		Path   string
		Unused string
		Zero   uint32
	}{socket, "", 0})
	ch, reqs, err := l.channel(ctx, "direct-streamlocal@openssh.com", socket, payload)
	if err != nil {
		return nil, err
	}
	return newChannelConn(ch, reqs, socket), nil
}

// channelConn is a channel as a net.Conn. Deadlines do not exist on a channel:
// callers bound their waits by closing it, as net/http does with its context.
type channelConn struct {
	ssh.Channel
	target string
}

func newChannelConn(ch ssh.Channel, reqs <-chan *ssh.Request, target string) net.Conn {
	go ssh.DiscardRequests(reqs)
	return &channelConn{Channel: ch, target: target}
}

type channelAddr string

func (a channelAddr) Network() string { return "ssh" }
func (a channelAddr) String() string  { return string(a) }

func (c *channelConn) LocalAddr() net.Addr  { return channelAddr("") }
func (c *channelConn) RemoteAddr() net.Addr { return channelAddr(c.target) }

func (c *channelConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *channelConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *channelConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// process is a command that runs on the host.
type process struct {
	ssh.Channel
	exit    chan struct{} // closed when the status is known or the channel is gone
	status  int           // -1: none was sent (signal, lost connection)
	signal  string
	release func()
}

// start runs a command line on the host. The caller closes the process. Nobody
// waits for the end of a lasting one.
func (l *link) start(ctx context.Context, line string, lasting bool) (*process, error) {
	ch, reqs, release, err := l.session(ctx, lasting)
	if err != nil {
		return nil, err
	}
	p := &process{Channel: ch, exit: make(chan struct{}), status: -1, release: release}
	go p.watch(reqs)
	stop := context.AfterFunc(ctx, func() { ch.Close() })
	defer stop()
	ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{line}))
	switch {
	case ctx.Err() != nil:
		p.Close()
		return nil, ctx.Err()
	case err != nil && l.isDead():
		return nil, l.dropped()
	case err != nil:
		p.Close()
		return nil, err
	case !ok:
		p.Close()
		return nil, &ForwardingError{Host: l.name, Target: sessionTarget, Denied: true, Err: errors.New("sshd runs no commands for this user")}
	}
	return p, nil
}

// session opens a session channel, one open at a time. When sshd opens no more
// of them while some of ours are open (MaxSessions below the usual 10), it waits
// for one to end.
func (l *link) session(ctx context.Context, lasting bool) (ssh.Channel, <-chan *ssh.Request, func(), error) {
	select {
	case l.sessions <- struct{}{}:
	case <-l.dead:
		return nil, nil, nil, l.dropped()
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
	ch, reqs, err := l.openSession(ctx, lasting)
	if err != nil {
		<-l.sessions
		return nil, nil, nil, err
	}
	return ch, reqs, sync.OnceFunc(func() { l.endSession(lasting) }), nil
}

func (l *link) openSession(ctx context.Context, lasting bool) (ssh.Channel, <-chan *ssh.Request, error) {
	if err := l.opening.enter(ctx); err != nil {
		return nil, nil, err
	}
	defer l.opening.leave()
	for try := 1; ; try++ {
		l.mu.Lock()
		others, ended, some := l.open, l.ended, l.opened
		l.mu.Unlock()
		ch, reqs, err := l.channel(ctx, "session", sessionTarget, nil)
		if err == nil {
			l.mu.Lock()
			if !lasting {
				l.open++
			}
			l.opened = true
			l.mu.Unlock()
			return ch, reqs, nil
		}
		var refused *ForwardingError
		switch {
		case !errors.As(err, &refused) || !some:
			return nil, nil, err
		case others == 0 && try > 3:
			return nil, nil, err
		case others == 0: // a server may count a session for a moment after its end
			if pause(ctx, jitter(1)) != nil {
				return nil, nil, err
			}
			continue
		}
		select {
		case <-ended:
		case <-l.dead:
			return nil, nil, l.dropped()
		case <-ctx.Done():
			return nil, nil, errors.Join(err, ctx.Err())
		}
	}
}

func (l *link) endSession(lasting bool) {
	l.mu.Lock()
	if !lasting {
		l.open--
	}
	close(l.ended)
	l.ended = make(chan struct{})
	l.mu.Unlock()
	<-l.sessions
}

// watch follows the requests of the server on a session: its exit status.
func (p *process) watch(reqs <-chan *ssh.Request) {
	defer close(p.exit)
	defer p.release()
	for req := range reqs {
		switch req.Type {
		case "exit-status":
			if len(req.Payload) >= 4 {
				p.status = int(binary.BigEndian.Uint32(req.Payload))
			}
		case "exit-signal":
			var msg struct {
				Signal string
				Core   bool
				Text   string
				Lang   string
			}
			if ssh.Unmarshal(req.Payload, &msg) == nil {
				p.signal = msg.Signal
			}
		}
		if req.WantReply {
			req.Reply(false, nil)
		}
	}
}
