package pgtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP path to a server that can be made slow or dead while connections last.
type Proxy struct {
	Port int

	listener net.Listener
	to       func(context.Context) (net.Conn, error)
	mu       sync.Mutex
	delay    time.Duration // of what the server sends
	hole     chan struct{} // closed: everything passes; open: nothing does
	conns    []net.Conn
}

// NewProxy listens on loopback and forwards to the server's unix socket or TCP address.
func (s *Server) NewProxy(t testing.TB) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	network, address := "unix", s.dir+"/.s.PGSQL.5432"
	if s.Port != 0 {
		network, address = "tcp", s.Address()
	}
	open := make(chan struct{})
	close(open)
	p := &Proxy{Port: l.Addr().(*net.TCPAddr).Port, listener: l, hole: open,
		to: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, network, address) }}
	go p.accept()
	t.Cleanup(p.close)
	return p
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := p.to(context.Background())
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		go p.pump(server, client, false)
		go p.pump(client, server, true)
	}
}

// pump copies until one side ends. What arrives while the path is dead stays where it is.
func (p *Proxy) pump(to, from net.Conn, reply bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		delay, hole := p.delay, p.hole
		p.mu.Unlock()
		if reply && delay > 0 {
			<-time.After(delay)
		}
		<-hole
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

// Delay holds back each answer of the server.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut lets nothing through in either direction, not even the end of a connection, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = make(chan struct{})
}

// Heal ends a Cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hole:
	default:
		close(p.hole)
	}
}

func (p *Proxy) close() {
	p.Heal()
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}
