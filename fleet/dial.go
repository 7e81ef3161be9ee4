package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// endpoint is one hop with everything a handshake needs.
type endpoint struct {
	name       string // id of a host, or a jump host as written
	address    string // as dialled
	port       int
	user       string
	keys       []string
	only       bool
	knownHosts []string
	alias      string // HostKeyAlias of ssh's settings: the name in known_hosts
}

func (e endpoint) target() string { return net.JoinHostPort(e.address, itoa(e.port)) }

// known is the name known_hosts is asked for: the name dialled, also behind a
// jump host, where the connection itself has no address worth a record.
func (e endpoint) known() string {
	if e.alias != "" {
		return net.JoinHostPort(e.alias, "22")
	}
	return e.target()
}

// routeKey identifies a chain of hops, so that hosts behind one bastion share
// its one connection.
func routeKey(route []endpoint) string {
	var b strings.Builder
	for _, e := range route {
		fmt.Fprintf(&b, "%s@%s>", e.user, e.target())
	}
	return b.String()
}

// dialer makes links and keeps them: one for each chain of hops and run.
type dialer struct {
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	keys     *keyring
	known    *hostKeys
	timeout  time.Duration
	interval time.Duration
	starts   int

	mu     sync.Mutex
	slots  map[string]*slot
	limits map[string]chan struct{}
}

type slot struct {
	ready chan struct{}
	link  *link
	err   error
}

func (s *slot) spent() bool {
	select {
	case <-s.ready:
		return s.err != nil || s.link.isDead()
	default:
		return false
	}
}

// link gives the link at the end of route. The first caller makes it, others
// wait. renew replaces what is dead or has failed; without it a failure is the
// answer for the whole run.
func (d *dialer) link(ctx context.Context, route []endpoint, renew bool) (*link, error) {
	key := routeKey(route)
	d.mu.Lock()
	s, ok := d.slots[key]
	if ok && renew && s.spent() {
		ok = false
	}
	if !ok {
		s = &slot{ready: make(chan struct{})}
		d.slots[key] = s
	}
	d.mu.Unlock()
	if !ok {
		s.link, s.err = d.connect(ctx, route, renew)
		close(s.ready)
	}
	select {
	case <-s.ready:
		return s.link, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *dialer) connect(ctx context.Context, route []endpoint, renew bool) (*link, error) {
	var via *link
	last := route[len(route)-1]
	if before := route[:len(route)-1]; len(before) > 0 {
		var err error
		if via, err = d.link(ctx, before, renew); err != nil {
			return nil, fmt.Errorf("host %s: by jump host %s: %w", last.name, before[len(before)-1].name, err)
		}
	}
	return d.retry(ctx, last, via, d.limit(route[0].target()))
}

// limit is the gate of handshakes in progress through one first hop.
func (d *dialer) limit(first string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate, ok := d.limits[first]
	if !ok {
		gate = make(chan struct{}, d.starts)
		d.limits[first] = gate
	}
	return gate
}

// startTries is how often a handshake is begun that the peer ends before it
// has shown a key. sshd drops early starts at random once MaxStartups is
// reached; no command can have run by then, so a second try is safe.
const startTries = 4

func (d *dialer) retry(ctx context.Context, e endpoint, via *link, gate chan struct{}) (*link, error) {
	for try := 1; ; try++ {
		select {
		case gate <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		l, early, err := d.handshake(ctx, e, via)
		<-gate
		if err == nil || !early || try == startTries {
			return l, err
		}
		if err := pause(ctx, jitter(try)); err != nil {
			return nil, err
		}
	}
}

// jitter is 50 to 150 ms, doubled with each try: callers that were dropped
// together must not come back together.
func jitter(try int) time.Duration {
	base := 50 * time.Millisecond << (try - 1)
	return base + rand.N(2*base)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errConnectTimeout = errors.New("connect timeout")

// handshake makes one attempt. early says that the peer hung up before the key
// exchange, which is the one failure worth another try.
func (d *dialer) handshake(parent context.Context, e endpoint, via *link) (l *link, early bool, err error) {
	v, err := d.known.verifier(e.name, e.known(), e.knownHosts)
	if err != nil {
		return nil, false, fmt.Errorf("host %s: %w", e.name, err)
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	clock := time.AfterFunc(d.timeout, func() { cancel(errConnectTimeout) })
	defer clock.Stop()
	a := &attempt{d: d, e: e, v: v, via: via, ctx: ctx}
	// Time an operator takes to type a passphrase is not the host's.
	a.wait = func(f func()) { clock.Stop(); f(); clock.Reset(d.timeout) }
	l, err = a.run()
	if err == nil {
		return l, false, nil
	}
	return nil, a.early(err), a.explain(parent, err)
}

// attempt is one handshake with what is known about how far it came.
type attempt struct {
	d      *dialer
	e      endpoint
	v      *verifier
	via    *link
	ctx    context.Context
	wait   func(func())
	scan   bool // only look at the host key
	dialed bool
	offer  *offer
}

// errScanned ends a handshake whose host key was all that was wanted.
var errScanned = errors.New("host key seen")

func (a *attempt) run() (*link, error) {
	conn, err := a.dial()
	if err != nil {
		return nil, err
	}
	a.dialed = true
	stop := context.AfterFunc(a.ctx, func() { conn.Close() })
	c, chans, reqs, err := ssh.NewClientConn(conn, a.e.target(), &ssh.ClientConfig{
		User:              a.e.user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeysCallback(a.signers)},
		HostKeyCallback:   a.check,
		HostKeyAlgorithms: a.v.algorithms(),
		ClientVersion:     "SSH-2.0-qnetops",
	})
	if !stop() && err == nil {
		c.Close()
		err = context.Cause(a.ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := newLink(a.e.name, c, chans, reqs, a.d.interval)
	l.key = fingerprint(a.v.key)
	return l, nil
}

func (a *attempt) check(name string, remote net.Addr, key ssh.PublicKey) error {
	if err := a.v.check(name, remote, key); err != nil || !a.scan {
		return err
	}
	return errScanned
}

func (a *attempt) dial() (net.Conn, error) {
	if a.via != nil {
		return a.via.dialTCP(a.ctx, a.e.address, a.e.port)
	}
	return a.d.dial(a.ctx, "tcp", a.e.target())
}

// signers assembles the keys only when the host key was accepted and the host
// asks for them.
func (a *attempt) signers() ([]ssh.Signer, error) {
	a.offer = a.d.keys.offer(a.ctx, a.e.keys, a.e.only, a.wait)
	return a.offer.signers, nil
}

// early holds for a connection that came about and ended before a host key was
// shown.
func (a *attempt) early(err error) bool {
	if !a.dialed || a.v.key != nil || a.ctx.Err() != nil {
		return false
	}
	var algorithms *ssh.AlgorithmNegotiationError
	return !errors.As(err, &algorithms)
}

// explain gives the failure its type by how far the attempt came. The texts of
// the SSH library are not looked at.
func (a *attempt) explain(parent context.Context, err error) error {
	var algorithms *ssh.AlgorithmNegotiationError
	var dropped *DroppedError
	switch {
	case parent.Err() != nil:
		return fmt.Errorf("host %s: connecting: %w", a.e.name, parent.Err())
	case errors.Is(context.Cause(a.ctx), errConnectTimeout):
		return &TimeoutError{Host: a.e.name, What: a.phase(), After: a.d.timeout}
	case a.v.fault != nil:
		return a.v.fault
	case errors.As(err, &dropped):
		return fmt.Errorf("host %s: by jump host: %w", a.e.name, err)
	case !a.dialed:
		return a.unreachable(err)
	case errors.As(err, &algorithms) && len(a.v.known) > 0 && slices.Equal(algorithms.SupportedAlgorithms, a.v.algorithms()):
		return a.v.error(KeyChanged) // the host has no key of a recorded kind any more
	case !a.v.verified:
		return a.unreachable(err)
	}
	return a.refused(err)
}

func (a *attempt) unreachable(err error) error {
	u := &UnreachableError{Host: a.e.name, Address: a.e.target(), Err: err}
	if a.via != nil {
		u.Via = a.via.name
	}
	return u
}

func (a *attempt) refused(err error) error {
	e := &AuthError{Host: a.e.name, Address: a.e.target(), User: a.e.user, Err: err}
	if a.offer != nil {
		e.Offered, e.Notes = a.offer.names, slices.Clone(a.offer.notes)
		for _, s := range a.offer.signers {
			if fs, ok := s.(*fileSigner); ok && fs.err != nil {
				e.Notes = append(e.Notes, fs.err.Error())
			}
		}
	}
	return e
}

// phase says in words what was waited for.
func (a *attempt) phase() string {
	switch {
	case !a.dialed:
		return "dialling " + a.e.target()
	case a.v.key == nil:
		return "waiting for the host key of " + a.e.target()
	}
	return "logging in to " + a.e.target()
}

// close ends all links, hosts' and jump hosts' alike.
func (d *dialer) close() {
	d.mu.Lock()
	slots := make([]*slot, 0, len(d.slots))
	for _, s := range d.slots {
		slots = append(slots, s)
	}
	d.mu.Unlock()
	for _, s := range slots {
		select {
		case <-s.ready:
			if s.link != nil {
				s.link.close()
			}
		default: // its maker's ctx ends it
		}
	}
	d.keys.close()
}
