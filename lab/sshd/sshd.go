// Package sshd is the SSH server of one lab host: public keys only, one pinned
// host key, commands, and forwarding to the host's own loopback ports and unix
// sockets, from a jump host to other hosts as well. Everything else is refused the way OpenSSH refuses it, and recorded.
//
// It works on real listeners and on connections in memory, also inside a
// testing/synctest bubble.
package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// MaxSessions is OpenSSH's default limit of open sessions on one connection.
const MaxSessions = 10

// Killed is what Exec returns for a process that died by SIGKILL.
const Killed = -9

// loginGrace is OpenSSH's LoginGraceTime: an unauthenticated connection is
// closed after it.
const loginGrace = 120 * time.Second

// Startups limits connections that have not authenticated yet, as OpenSSH's
// MaxStartups start:rate:full does. The zero value sets no limit.
type Startups struct{ Start, Rate, Full int }

// DefaultStartups is OpenSSH's default, 10:30:100.
var DefaultStartups = Startups{Start: 10, Rate: 30, Full: 100}

// Config describes one server.
type Config struct {
	HostKey ssh.Signer
	// Users maps a user to the public keys that may log in as it.
	Users map[string][]ssh.PublicKey
	// Exec runs a command line and returns its exit status, or Killed. ctx ends
	// with the session's connection; a process that outlives it must not use ctx.
	Exec func(ctx context.Context, user, line string, stdin io.Reader, stdout, stderr io.Writer) int
	// DialTCP connects to a port on the host's loopback interface.
	DialTCP func(ctx context.Context, user string, port int) (net.Conn, error)
	// DialHop makes the host a jump host: it connects to an address other than
	// loopback. syscall.EACCES is what policy (PermitOpen) forbids.
	DialHop func(ctx context.Context, user, address string) (net.Conn, error)
	// DialUnix connects to a unix socket of the host. os.ErrPermission and the
	// like are reported to the client as a failed connect, as sshd does.
	DialUnix func(ctx context.Context, user, path string) (net.Conn, error)
	// ForbidForwarding is AllowTcpForwarding no and AllowStreamLocalForwarding no.
	ForbidForwarding bool
	MaxSessions      int // 0 means MaxSessions
	MaxStartups      Startups
	Seed             uint64 // of the early drops of MaxStartups
}

// Server is the SSH server of one host.
type Server struct {
	cfg Config

	mu       sync.Mutex
	key      ssh.Signer
	refuse   bool
	closed   bool
	conns    map[net.Conn]struct{}
	starting int
	rng      *rand.Rand
	lns      map[net.Listener]struct{}
	refused  []string
	stats    Stats
	wg       sync.WaitGroup
}

// Stats counts what the server has seen.
type Stats struct {
	Connections int // accepted, whether or not they authenticated
	Logins      int
	Dropped     int // by MaxStartups
	Sessions    int
	Forwards    int
}

// New returns a server that serves nothing yet.
func New(cfg Config) *Server {
	if cfg.MaxSessions == 0 {
		cfg.MaxSessions = MaxSessions
	}
	return &Server{cfg: cfg, key: cfg.HostKey, conns: map[net.Conn]struct{}{},
		lns: map[net.Listener]struct{}{}, rng: rand.New(rand.NewPCG(cfg.Seed, 22))}
}

// Serve accepts connections until the listener or the server is closed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.lns[l] = struct{}{}
	s.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accepting: %w", err)
		}
		s.wg.Go(func() { s.ServeConn(c) })
	}
}

// ServeConn serves one connection and returns when it has ended.
func (s *Server) ServeConn(nc net.Conn) {
	if !s.admit(nc) {
		sever(nc)
		return
	}
	defer s.forget(nc)
	conn, chans, reqs, err := s.handshake(nc)
	if err != nil {
		return
	}
	s.count(func(st *Stats) { st.Logins++ })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { answerGlobal(reqs) })
	c := &connection{srv: s, user: conn.User()}
	for ch := range chans {
		wg.Go(func() { c.open(ctx, ch) })
	}
	cancel()
	wg.Wait()
}

// handshake authenticates within the login grace time.
func (s *Server) handshake(nc net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	s.mu.Lock()
	cfg := &ssh.ServerConfig{PublicKeyCallback: s.publicKey, ServerVersion: "SSH-2.0-OpenSSH_9.6"}
	cfg.AddHostKey(s.key)
	s.starting++
	s.mu.Unlock()
	defer s.count(func(*Stats) { s.starting-- })
	grace := time.AfterFunc(loginGrace, func() { nc.Close() })
	defer grace.Stop()
	conn, chans, reqs, err := ssh.NewServerConn(nc, cfg)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	return conn, chans, reqs, nil
}

func (s *Server) publicKey(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	for _, k := range s.cfg.Users[meta.User()] {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errors.New("the key is not authorized")
}

// admit registers a connection, or refuses it: server stopped, or too many
// unauthenticated connections.
func (s *Server) admit(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse || s.closed {
		return false
	}
	s.stats.Connections++
	if s.dropStartup() {
		s.stats.Dropped++
		return false
	}
	s.conns[nc] = struct{}{}
	return true
}

// dropStartup is the rule of sshd(8): from Start on drop with probability
// Rate/100, growing to certainty at Full.
func (s *Server) dropStartup() bool {
	m := s.cfg.MaxStartups
	switch {
	case m == (Startups{}) || s.starting < m.Start:
		return false
	case s.starting >= m.Full:
		return true
	}
	p := m.Rate + (100-m.Rate)*(s.starting-m.Start)/max(1, m.Full-m.Start)
	return s.rng.IntN(100) < p
}

func (s *Server) forget(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, nc)
	nc.Close()
}

func (s *Server) count(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// DropAll breaks every connection at once; new ones are accepted.
func (s *Server) DropAll() {
	s.mu.Lock()
	conns := make([]net.Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		sever(c)
	}
}

// SwapHostKey gives later connections another host key.
func (s *Server) SwapHostKey(key ssh.Signer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

// Refuse makes the server refuse new connections, as a stopped sshd does.
func (s *Server) Refuse(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// Refusing reports whether new connections are refused.
func (s *Server) Refusing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuse
}

// Refusals lists what clients asked for and did not get.
func (s *Server) Refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.refused...)
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close stops the server, breaks its connections and waits for those that
// Serve accepted.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	lns := s.lns
	s.lns = map[net.Listener]struct{}{}
	s.mu.Unlock()
	for l := range lns {
		l.Close()
	}
	s.DropAll()
	s.wg.Wait()
}

func (s *Server) refusal(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, fmt.Sprintf(format, args...))
}

// sever breaks a connection without saying goodbye.
func sever(c net.Conn) {
	switch c := c.(type) {
	case interface{ Sever() }:
		c.Sever()
	case *net.TCPConn:
		c.SetLinger(0) // a reset instead of a polite end
		c.Close()
	default:
		c.Close()
	}
}

// answerGlobal answers connection-wide requests. OpenSSH answers
// keepalive@openssh.com with a failure too: the reply is the sign of life.
func answerGlobal(reqs <-chan *ssh.Request) {
	for r := range reqs {
		if r.WantReply {
			r.Reply(false, nil)
		}
	}
}

// reason turns a dial error into the words sshd uses.
func reason(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Connection refused"
	default:
		return "open failed"
	}
}
