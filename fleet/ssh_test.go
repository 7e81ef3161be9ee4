package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/sshd"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

func TestReadsTheNodeThroughAVerifiedConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		m.serveNode()
		f := w.open()
		c := w.conn(f, "001")
		for range 3 {
			health, err := c.Node().Healthz(t.Context())
			if err != nil || health.Height != 4711 || health.Build != "1111111" {
				t.Fatalf("Healthz = %+v, %v", health, err)
			}
		}
		if len(w.dials) != 1 || m.srv.Stats().Forwards != 1 {
			t.Errorf("%d dials and %d channels for three reads, want 1 and 1", len(w.dials), m.srv.Stats().Forwards)
		}
		if want := fingerprint(testSigner(101).PublicKey()); c.HostKey() != want {
			t.Errorf("HostKey = %s, want %s", c.HostKey(), want)
		}
	})
}

func TestUnknownAndChangedKeysAreToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		unknown, changed := w.add(nil), w.add(nil)
		revoked := w.add(nil)
		w.known[0] = "# nothing"
		w.known[1] = knownhosts.Line([]string{"h2.example.org"}, testSigner(99).PublicKey())
		w.known[2] += "\n@revoked * " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(testSigner(103).PublicKey())))
		f := w.open()
		for id, want := range map[string]KeyFault{"001": KeyUnknown, "002": KeyChanged, "003": KeyRevoked} {
			_, err := f.Conn(t.Context(), id)
			var fault *HostKeyError
			if !errors.As(err, &fault) || fault.Fault != want || fault.Host != id {
				t.Fatalf("host %s: %v, want fault %s", id, err, want)
			}
			if fault.Hint() == "" {
				t.Errorf("host %s: no hint", id)
			}
		}
		_, err := f.Conn(t.Context(), "002")
		if shown, held := fingerprint(testSigner(102).PublicKey()), fingerprint(testSigner(99).PublicKey()); !strings.Contains(err.Error(), shown) || !strings.Contains(err.Error(), held) {
			t.Errorf("changed key: %q names not both %s and %s", err, shown, held)
		}
		for _, m := range []*machine{unknown, changed, revoked} {
			if m.srv.Stats().Logins != 0 {
				t.Errorf("host %s saw a login although its key was not right", m.id)
			}
		}
	})
}

// A host with an ECDSA and an ed25519 key, of which known_hosts holds one:
// without the algorithms from known_hosts the library would be shown the other.
func TestAsksForTheKeyThatKnownHostsHolds(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecSigner, err := ssh.NewSignerFromKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for _, recorded := range []ssh.Signer{testSigner(50), ecSigner} {
		w := newWorld(t)
		w.add(nil)
		ln := memnet.Listen("two keys")
		go serveTwoKeys(ln, testSigner(50), ecSigner)
		w.nodes["h1.example.org:22"].ln = ln
		w.known[0] = knownhosts.Line([]string{"h1.example.org"}, recorded.PublicKey())
		c := w.conn(w.open(), "001")
		if got := c.HostKey(); got != fingerprint(recorded.PublicKey()) {
			t.Errorf("shown %s, recorded %s", got, fingerprint(recorded.PublicKey()))
		}
		ln.Close()
	}
}

func serveTwoKeys(ln net.Listener, keys ...ssh.Signer) {
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	for _, k := range keys {
		cfg.AddHostKey(k)
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			_, chans, reqs, err := ssh.NewServerConn(nc, cfg)
			if err != nil {
				return
			}
			go ssh.DiscardRequests(reqs)
			for ch := range chans {
				ch.Reject(ssh.Prohibited, "no")
			}
		}()
	}
}

// A host that lost its recorded kind of key is a changed host, not one with a
// negotiation problem.
func TestMissingKindOfKeyIsAChangedKey(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		signer, _ := ssh.NewSignerFromKey(ec)
		w.known[0] = knownhosts.Line([]string{"h1.example.org"}, signer.PublicKey())
		_, err := w.open().Conn(t.Context(), "001")
		var fault *HostKeyError
		if !errors.As(err, &fault) || fault.Fault != KeyChanged {
			t.Fatalf("%v, want a changed key", err)
		}
		if len(w.dials) != 1 {
			t.Errorf("%d dials, want 1: a key fault is not worth a second try", len(w.dials))
		}
	})
}

func TestJumpHost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		bastion := w.addBastion()
		behind := func(h *Host, _ *sshd.Config) { h.Jump, h.Port = "001", 2200+len(w.inv.Hosts) }
		one, two := w.add(behind), w.add(behind)
		one.serveNode()
		two.serveNode()
		f := w.open()
		for _, id := range []string{"002", "003"} {
			if _, err := w.conn(f, id).Node().Healthz(t.Context()); err != nil {
				t.Errorf("host %s: %v", id, err)
			}
		}
		if len(w.dials) != 1 || bastion.srv.Stats().Logins != 1 {
			t.Errorf("dials %v: two hosts and their bastion share one connection to it", w.dials)
		}
	})
}

func TestJumpHostKeyIsVerifiedToo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.addBastion()
		w.add(func(h *Host, _ *sshd.Config) { h.Jump, h.Port = "001", 2201 })
		w.add(func(h *Host, _ *sshd.Config) { h.Jump, h.Port = "root@h1.example.org", 2202 })
		w.known[0] = knownhosts.Line([]string{"h1.example.org"}, testSigner(99).PublicKey())
		f := w.open()
		for _, id := range []string{"002", "003"} {
			_, err := f.Conn(t.Context(), id)
			var fault *HostKeyError
			if !errors.As(err, &fault) || fault.Address != "h1.example.org:22" || !strings.Contains(err.Error(), "host "+id) {
				t.Errorf("host %s: %v, want the bastion's key fault", id, err)
			}
		}
	})
}

// Behind a jump host the name that was dialled is what known_hosts is asked
// for, and a key recorded for another name does not help.
func TestKeyBehindAJumpHostIsThatOfTheNameDialled(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.addBastion()
		w.add(func(h *Host, _ *sshd.Config) { h.Jump, h.Port = "001", 2201 })
		w.known[1] = knownhosts.Line([]string{"elsewhere.example.org:2201"}, testSigner(102).PublicKey())
		_, err := w.open().Conn(t.Context(), "002")
		var fault *HostKeyError
		if !errors.As(err, &fault) || fault.Fault != KeyUnknown || fault.Address != "h2.example.org:2201" {
			t.Errorf("%v, want an unknown key of h2.example.org:2201", err)
		}
	})
}

func TestAuthFailure(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(func(h *Host, _ *sshd.Config) { h.Key = writeKey(t, w.dir, "wrong", testKey(wrongSeed), "") })
		w.add(func(h *Host, _ *sshd.Config) { h.User = "nobody" })
		w.add(func(h *Host, _ *sshd.Config) { h.Key = writeKey(t, w.dir, "locked", testKey(userSeed), "secret") })
		f := w.open()
		for id, word := range map[string]string{"001": "wrong", "002": "nobody", "003": "nobody to ask"} {
			_, err := f.Conn(t.Context(), id)
			var auth *AuthError
			if !errors.As(err, &auth) || auth.Host != id || !strings.Contains(err.Error(), word) || auth.Hint() == "" {
				t.Errorf("host %s: %v, want an AuthError naming %q", id, err, word)
			}
		}
	})
}

func TestPassphraseIsAskedOnceAndNotTimed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		key := writeKey(t, w.dir, "locked", testKey(userSeed), "secret")
		for range 3 {
			w.add(func(h *Host, _ *sshd.Config) { h.Key = key })
		}
		p := &prompter{passphrases: []string{"mistyped", "secret"}, delay: DefaultConnectTimeout - time.Second}
		w.opts.Prompt = p
		f := w.open()
		for _, id := range w.inv.IDs() {
			w.conn(f, id)
		}
		if len(p.asked) != 2 {
			t.Errorf("asked %v, want one wrong and one right answer for three hosts", p.asked)
		}
	})
}

// An agent full of keys must not use up sshd's tries before the configured one.
func TestIdentitiesOnlyTakesTheConfiguredKeyFromTheAgent(t *testing.T) {
	w := newWorld(t)
	ring := agent.NewKeyring()
	for seed := range 20 {
		ring.Add(agent.AddedKey{PrivateKey: ptr(testKey(200 + seed))})
	}
	ring.Add(agent.AddedKey{PrivateKey: ptr(testKey(userSeed))})
	socket := filepath.Join(t.TempDir(), "a")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go agent.ServeAgent(ring, c)
		}
	}()
	// Only the public half is on this machine.
	public := filepath.Join(w.dir, "onlypub")
	if err := os.WriteFile(public+".pub", ssh.MarshalAuthorizedKey(testSigner(userSeed).PublicKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	home := w.opts.Getenv
	w.opts.Getenv = func(name string) string {
		if name == "SSH_AUTH_SOCK" {
			return socket
		}
		return home(name)
	}
	k := newKeyring(w.opts.withDefaults())
	defer k.close()
	now := func(f func()) { f() }
	o := k.offer(t.Context(), []string{public}, true, now)
	if len(o.signers) != 1 || !strings.Contains(o.names[0], "from the agent") {
		t.Errorf("identities_only offers %v, want the one key from the agent", o.names)
	}
	if o := k.offer(t.Context(), []string{public}, false, now); len(o.signers) != 21 || !strings.Contains(o.names[0], "onlypub") {
		t.Errorf("without identities_only %d keys, first %s; want 21 with the configured one first", len(o.signers), o.names[0])
	}
	w.add(func(h *Host, _ *sshd.Config) { h.Key = public })
	w.conn(w.open(), "001")
}

func ptr[T any](v T) *T { return &v }

func TestSilentHostTimesOut(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		silent := memnet.Listen("silent")
		w.nodes["h1.example.org:22"].ln = silent
		go func() {
			if c, err := silent.Accept(); err == nil {
				io.Copy(io.Discard, c)
			}
		}()
		begin := time.Now()
		_, err := w.open().Conn(t.Context(), "001")
		var late *TimeoutError
		if !errors.As(err, &late) || time.Since(begin) != DefaultConnectTimeout {
			t.Errorf("after %s: %v, want a TimeoutError after %s", time.Since(begin), err, DefaultConnectTimeout)
		}
	})
}

func TestUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		delete(w.nodes, "h1.example.org:22")
		_, err := w.open().Conn(t.Context(), "001")
		var gone *UnreachableError
		if !errors.As(err, &gone) || !errors.Is(err, syscall.ECONNREFUSED) || len(w.dials) != 1 {
			t.Errorf("%v after %d dials, want an UnreachableError with its cause after 1", err, len(w.dials))
		}
	})
}

// sshd drops starts at random once MaxStartups is reached.
func TestEarlyDropIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		drops := 2
		w.opts.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := w.dial(ctx, network, address)
			if drops--; drops >= 0 && err == nil {
				c.Close()
			}
			return c, err
		}
		w.conn(w.open(), "001")
		if len(w.dials) != 3 {
			t.Errorf("%d dials, want 3", len(w.dials))
		}
	})
}

// Forty hosts behind one bastion: never more handshakes through it than Starts.
func TestStartsAreLimited(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.addBastion()
		w.inv.SSH.Starts = 3
		var mu sync.Mutex
		var now, most int
		for range 40 {
			w.add(func(h *Host, cfg *sshd.Config) {
				h.Jump, h.Port = "001", 2200+len(w.inv.Hosts)
				cfg.Users = map[string][]ssh.PublicKey{"root": {testSigner(userSeed).PublicKey()}}
			})
		}
		slow := &slowKey{Signer: testSigner(userSeed), around: func(sign func()) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			pause(t.Context(), time.Second)
			sign()
			mu.Lock()
			now--
			mu.Unlock()
		}}
		f := newFleet(w.inv, w.inv.Hosts, w.opts)
		f.dialer.keys.files[w.inv.hopDefaults.Key] = &keyFile{public: slow.PublicKey(), signer: slow}
		w.writeKnown()
		begin := time.Now()
		f.parallel(t.Context(), f.hosts, func(ctx context.Context, h Host) { f.open(ctx, h, false) })
		defer f.Close()
		for _, id := range w.inv.IDs() {
			w.conn(f, id)
		}
		if most != 3 {
			t.Errorf("%d handshakes at a time, want 3", most)
		}
		// One for the bastion, then 40 in threes, a second each.
		if took := time.Since(begin); took != 15*time.Second {
			t.Errorf("took %s, want 15s", took)
		}
	})
}

// slowKey signs with something around it.
type slowKey struct {
	ssh.Signer
	around func(func())
}

func (s *slowKey) Sign(r io.Reader, data []byte) (sig *ssh.Signature, err error) {
	s.around(func() { sig, err = s.Signer.Sign(r, data) })
	return sig, err
}

func TestDroppedConnectionIsAnErrorUntilRedial(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		m.serveNode()
		m.exec = func(ctx context.Context, _ host.Command, _ io.Reader, _, _ io.Writer) int {
			<-ctx.Done()
			return 0
		}
		f := w.open()
		c := w.conn(f, "001")
		failed := make(chan error)
		go func() { _, err := c.Clock(t.Context()); failed <- err }()
		pause(t.Context(), time.Second)
		m.srv.DropAll()
		var dropped *DroppedError
		if err := <-failed; !errors.As(err, &dropped) {
			t.Errorf("command in flight: %v, want a DroppedError", err)
		}
		<-c.Dead()
		if _, err := c.Node().Healthz(t.Context()); !errors.As(err, &dropped) {
			t.Errorf("read on a dead connection: %v, want a DroppedError", err)
		}
		if _, err := f.Conn(t.Context(), "001"); !errors.As(err, &dropped) {
			t.Errorf("Conn: %v, want a DroppedError", err)
		}
		if len(w.dials) != 1 {
			t.Errorf("%d dials: something reconnected by itself", len(w.dials))
		}
		again, err := f.Redial(t.Context(), "001")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Node().Healthz(t.Context()); err != nil {
			t.Error(err)
		}
		if same, err := f.Redial(t.Context(), "001"); err != nil || same != again {
			t.Errorf("Redial of a living connection made another: %v", err)
		}
	})
}

// A peer that vanished without a word (cable pulled) is found in three
// keepalive intervals.
func TestDeadPeerIsFoundInBoundedTime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		hole := &blackHole{}
		w.opts.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := w.dial(ctx, network, address)
			hole.Conn = c
			return hole, err
		}
		c := w.conn(w.open(), "001")
		pause(t.Context(), 10*time.Minute) // keepalives are answered all along
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		hole.on.Store(true)
		<-c.Dead()
		if took := time.Since(begin); took > 3*DefaultKeepalive {
			t.Errorf("found after %s, want at most %s", took, 3*DefaultKeepalive)
		}
		var late *TimeoutError
		if err := c.Err(); !errors.As(err, &late) {
			t.Errorf("%v, want a TimeoutError inside", err)
		}
	})
}

// blackHole swallows what is written once it is on.
type blackHole struct {
	net.Conn
	on atomic.Bool
}

func (b *blackHole) Write(p []byte) (int, error) {
	if b.on.Load() {
		return len(p), nil
	}
	return b.Conn.Write(p)
}

func TestForbiddenForwardingIsTyped(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(func(_ *Host, cfg *sshd.Config) { cfg.ForbidForwarding = true })
		c := w.conn(w.open(), "001")
		_, err := c.Node().Healthz(t.Context())
		var refused *ForwardingError
		if !errors.As(err, &refused) || !refused.Denied || refused.Target != "127.0.0.1:8001" || !strings.Contains(refused.Hint(), "AllowTcpForwarding") {
			t.Errorf("%v, want a ForwardingError", err)
		}
	})
}

func TestNothingListensIsTyped(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		m.node.Close()
		_, err := w.conn(w.open(), "001").Node().Healthz(t.Context())
		var refused *ForwardingError
		if !errors.As(err, &refused) || refused.Denied || !strings.Contains(refused.Hint(), "listens") {
			t.Errorf("%v, want a ForwardingError that is no policy", err)
		}
	})
}

// More commands than sshd's MaxSessions wait for each other.
func TestSessionsStayBelowMaxSessions(t *testing.T) {
	for _, limit := range []int{10, 3} {
		bubble(t, func(t *testing.T, w *world) {
			m := w.add(func(_ *Host, cfg *sshd.Config) { cfg.MaxSessions = limit })
			m.exec = func(_ context.Context, _ host.Command, _ io.Reader, out, _ io.Writer) int {
				pause(t.Context(), time.Second)
				io.WriteString(out, "946684800.000000000\n")
				return 0
			}
			c := w.conn(w.open(), "001")
			errs := make(chan error)
			for range 25 {
				go func() { _, err := c.Clock(t.Context()); errs <- err }()
			}
			for range 25 {
				if err := <-errs; err != nil {
					t.Errorf("MaxSessions %d: %v", limit, err)
				}
			}
		})
	}
}

// The agent's session lasts; a server with no room beside it must not make a
// command wait for ever.
func TestNoRoomBesideTheAgent(t *testing.T) {
	agentWorld(t, func(_ *Host, cfg *sshd.Config) { cfg.MaxSessions = 1 }, func(t *testing.T, w *world, m *machine, a *agentHost) {
		c := w.conn(w.open(), "001")
		if _, err := c.Agent(t.Context()); err != nil {
			t.Fatal(err)
		}
		var refused *ForwardingError
		if _, err := c.Clock(t.Context()); !errors.As(err, &refused) || refused.Target != sessionTarget {
			t.Errorf("%v, want a ForwardingError about sessions", err)
		}
	})
}

func TestNoSessionAtAllIsTyped(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		ln := memnet.Listen("no sessions")
		t.Cleanup(func() { ln.Close() })
		go serveTwoKeys(ln, testSigner(101))
		w.nodes["h1.example.org:22"].ln = ln
		_, err := w.conn(w.open(), "001").Clock(t.Context())
		var refused *ForwardingError
		if !errors.As(err, &refused) || refused.Target != sessionTarget || !strings.Contains(refused.Hint(), "MaxSessions") {
			t.Errorf("%v, want a ForwardingError about sessions", err)
		}
	})
}

func TestCancelledOpenIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, w.inv, nil, w.opts); !errors.Is(err, context.Canceled) {
			t.Errorf("Open = %v, want context.Canceled", err)
		}
	})
}

func TestEachReportsHostsWithoutConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		w.add(nil)
		w.add(nil)
		delete(w.nodes, "h2.example.org:22")
		boom := errors.New("boom")
		errs := w.open().Each(t.Context(), func(_ context.Context, c *Conn) error {
			if c.Host().ID == "003" {
				return boom
			}
			return nil
		})
		var gone *UnreachableError
		if len(errs) != 2 || !errors.As(errs["002"], &gone) || !errors.Is(errs["003"], boom) {
			t.Errorf("Each = %v", errs)
		}
	})
}

func TestUnknownIDNamesTheKnownOnes(t *testing.T) {
	w := newWorld(t)
	w.inv.Hosts = []Host{{ID: "001"}, {ID: "002"}}
	_, err := Open(t.Context(), w.inv, []string{"009"}, w.opts)
	var unknown *UnknownHostError
	if !errors.As(err, &unknown) || !strings.Contains(unknown.Hint(), "001, 002") || !errors.Is(err, ErrNotInFleet) {
		t.Errorf("%v", err)
	}
	if _, err := w.inv.Select(nil, []string{"01"}); !errors.Is(err, ErrNotInFleet) {
		t.Errorf("a misspelt --skip gives %v", err)
	}
	some, err := w.inv.Select([]string{"002", "001"}, []string{"002"})
	if err != nil || len(some) != 1 || some[0].ID != "001" {
		t.Errorf("Select = %v, %v", some, err)
	}
}
