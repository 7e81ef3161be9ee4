package sshd

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// connection is the state of one authenticated connection.
type connection struct {
	srv  *Server
	user string

	mu       sync.Mutex
	sessions int
}

func (c *connection) open(ctx context.Context, nc ssh.NewChannel) {
	switch nc.ChannelType() {
	case "session":
		c.session(ctx, nc)
	case "direct-tcpip":
		c.directTCP(ctx, nc)
	case "direct-streamlocal@openssh.com":
		c.directUnix(ctx, nc)
	default:
		c.srv.refusal("channel %s", nc.ChannelType())
		nc.Reject(ssh.UnknownChannelType, "unknown channel type")
	}
}

func (c *connection) session(ctx context.Context, nc ssh.NewChannel) {
	c.mu.Lock()
	full := c.sessions >= c.srv.cfg.MaxSessions
	if !full {
		c.sessions++
	}
	c.mu.Unlock()
	if full {
		c.srv.refusal("session above MaxSessions %d", c.srv.cfg.MaxSessions)
		nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	defer func() {
		c.mu.Lock()
		c.sessions--
		c.mu.Unlock()
	}()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	c.srv.count(func(st *Stats) { st.Sessions++ })
	c.serveSession(ctx, ch, reqs)
}

// serveSession answers requests until the client runs a command or leaves.
func (c *connection) serveSession(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request) {
	for r := range reqs {
		var exec struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil || c.srv.cfg.Exec == nil {
			if r.Type != "env" { // sshd ignores variables that AcceptEnv does not list
				c.srv.refusal("session request %s", r.Type)
			}
			if r.WantReply {
				r.Reply(false, nil)
			}
			continue
		}
		r.Reply(true, nil)
		c.runExec(ctx, ch, reqs, exec.Command)
		return
	}
}

func (c *connection) runExec(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, line string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	drained := make(chan struct{})
	go func() { // requests after exec; the loop ends when the client closes the channel
		defer close(drained)
		defer cancel()
		answerGlobal(reqs)
	}()
	code := c.srv.cfg.Exec(ctx, c.user, line, ch, ch, ch.Stderr())
	if code < 0 {
		ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal     string
			Core       bool
			Text, Lang string
		}{Signal: "KILL"}))
	} else {
		ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)}))
	}
	ch.Close()
	<-drained
}

// directTCP forwards to a port of the host itself; only a jump host is a way to
// other machines, and only to those its configuration knows.
func (c *connection) directTCP(ctx context.Context, nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	cfg, address := c.srv.cfg, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))
	dial := func() (net.Conn, error) { return nil, syscall.EACCES }
	switch loopback := to.Host == "127.0.0.1" || to.Host == "localhost"; {
	case cfg.ForbidForwarding:
	case loopback && cfg.DialTCP != nil:
		dial = func() (net.Conn, error) { return cfg.DialTCP(ctx, c.user, int(to.Port)) }
	case !loopback && cfg.DialHop != nil:
		dial = func() (net.Conn, error) { return cfg.DialHop(ctx, c.user, address) }
	}
	target, err := dial()
	if errors.Is(err, syscall.EACCES) {
		c.srv.refusal("direct-tcpip %s", address)
		nc.Reject(ssh.Prohibited, "administratively prohibited: open failed")
		return
	}
	c.forward(nc, target, err)
}

func (c *connection) directUnix(ctx context.Context, nc ssh.NewChannel) {
	var to struct {
		Path      string
		Reserved0 string
		Reserved1 uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	if c.srv.cfg.ForbidForwarding || c.srv.cfg.DialUnix == nil {
		c.srv.refusal("direct-streamlocal %s", to.Path)
		nc.Reject(ssh.Prohibited, "administratively prohibited: open failed")
		return
	}
	target, err := c.srv.cfg.DialUnix(ctx, c.user, to.Path)
	c.forward(nc, target, err)
}

// forward joins a channel and a connection, or the error of its dial, until both
// directions have ended or one of them breaks.
func (c *connection) forward(nc ssh.NewChannel, target net.Conn, err error) {
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, reason(err))
		return
	}
	defer target.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	c.srv.count(func(st *Stats) { st.Forwards++ })
	var wg sync.WaitGroup
	wg.Go(func() {
		answerGlobal(reqs) // ends with the channel
		target.Close()
	})
	wg.Go(func() {
		relay(target, ch)
		if half, ok := target.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		} else {
			target.Close()
		}
	})
	relay(ch, target)
	ch.Close()
	target.Close()
	wg.Wait()
}

// relayBuffer is small: a lab has thousands of channels open.
const relayBuffer = 4 << 10

// relay copies to the end of from. The wrappers keep io from taking a way that
// has a larger buffer of its own.
func relay(to io.Writer, from io.Reader) {
	io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, relayBuffer))
}
