package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/lab/memnet"
)

func signer(t *testing.T, seed byte) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fixture is a server whose commands and targets the tests look at.
type fixture struct {
	srv  *Server
	l    *memnet.Listener
	echo *memnet.Listener
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{l: memnet.Listen("host:22"), echo: memnet.Listen("127.0.0.1:8001")}
	cfg := Config{
		HostKey: signer(t, 1),
		Users:   map[string][]ssh.PublicKey{"root": {signer(t, 2).PublicKey()}},
		Exec: func(ctx context.Context, user, line string, in io.Reader, out, errw io.Writer) int {
			if line == "wait" {
				<-ctx.Done()
				return 1
			}
			b, _ := io.ReadAll(in)
			fmt.Fprintf(out, "%s ran %s with %s", user, line, b)
			fmt.Fprint(errw, "warned")
			return 7
		},
		DialTCP: func(ctx context.Context, _ string, port int) (net.Conn, error) {
			if port != 8001 {
				return nil, syscall.ECONNREFUSED
			}
			return f.echo.Dial(ctx, "sshd")
		},
		DialUnix: func(ctx context.Context, _, path string) (net.Conn, error) {
			if path != "/var/run/docker.sock" {
				return nil, syscall.ENOENT
			}
			return f.echo.Dial(ctx, "sshd")
		},
	}
	if change != nil {
		change(&cfg)
	}
	f.srv = New(cfg)
	go f.srv.Serve(f.l)
	go f.serveEcho()
	t.Cleanup(func() { f.srv.Close(); f.echo.Close() })
	return f
}

func (f *fixture) serveEcho() {
	for {
		c, err := f.echo.Accept()
		if err != nil {
			return
		}
		go func() { io.Copy(c, c); c.Close() }()
	}
}

func (f *fixture) dial(t *testing.T, key, hostKey ssh.Signer) (*ssh.Client, error) {
	t.Helper()
	nc, err := f.l.Dial(t.Context(), "operator")
	if err != nil {
		return nil, err
	}
	conn, chans, reqs, err := ssh.NewClientConn(nc, "host:22", &ssh.ClientConfig{User: "root",
		Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(hostKey.PublicKey())})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return ssh.NewClient(conn, chans, reqs), nil
}

func (f *fixture) mustDial(t *testing.T) *ssh.Client {
	t.Helper()
	c, err := f.dial(t, signer(t, 2), signer(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func bubble(t *testing.T, change func(*Config), body func(*testing.T, *fixture)) {
	synctest.Test(t, func(t *testing.T) { body(t, newFixture(t, change)) })
}

func TestExecGivesOutputAndExitStatus(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		defer c.Close()
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		var out, errb bytes.Buffer
		s.Stdin, s.Stdout, s.Stderr = strings.NewReader("input"), &out, &errb
		err = s.Run("uname -sm")
		var exit *ssh.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
			t.Fatalf("want exit status 7, got %v", err)
		}
		if out.String() != "root ran uname -sm with input" || errb.String() != "warned" {
			t.Fatalf("got %q and %q", out.String(), errb.String())
		}
	})
}

func TestOnlyTheAuthorizedKeyLogsIn(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *fixture) {
		if _, err := f.dial(t, signer(t, 3), signer(t, 1)); err == nil {
			t.Fatal("an unknown key logged in")
		}
		nc, _ := f.l.Dial(t.Context(), "operator")
		_, _, _, err := ssh.NewClientConn(nc, "host:22", &ssh.ClientConfig{User: "root",
			Auth: []ssh.AuthMethod{ssh.Password("root")}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
		if err == nil {
			t.Fatal("a password logged in")
		}
		nc.Close()
		if got := f.srv.Stats(); got.Logins != 0 || got.Connections != 2 {
			t.Fatalf("stats %+v", got)
		}
	})
}

func TestForwardsOnlyToTheHostItself(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		defer c.Close()
		for _, addr := range [][2]string{{"tcp", "127.0.0.1:8001"}, {"unix", "/var/run/docker.sock"}} {
			conn, err := c.Dial(addr[0], addr[1])
			if err != nil {
				t.Fatalf("%v: %v", addr, err)
			}
			io.WriteString(conn, "ping")
			b := make([]byte, 4)
			if _, err := io.ReadFull(conn, b); err != nil || string(b) != "ping" {
				t.Fatalf("%v: echo %q, %v", addr, b, err)
			}
			conn.Close()
		}
		want := map[string]ssh.RejectionReason{"192.0.2.7:8001": ssh.Prohibited, "127.0.0.1:9": ssh.ConnectionFailed}
		for addr, code := range want {
			_, err := c.Dial("tcp", addr)
			var open *ssh.OpenChannelError
			if !errors.As(err, &open) || open.Reason != code {
				t.Fatalf("%s: want reason %v, got %v", addr, code, err)
			}
		}
		if got := f.srv.Refusals(); len(got) != 1 || got[0] != "direct-tcpip 192.0.2.7:8001" {
			t.Fatalf("refusals %q", got)
		}
	})
}

// A jump host is a way to the addresses it knows and to no others.
func TestJumpHostForwardsToWhatItKnows(t *testing.T) {
	inner := memnet.Listen("192.0.2.7:22")
	defer inner.Close()
	hop := func(ctx context.Context, user, address string) (net.Conn, error) {
		switch address {
		case "192.0.2.7:22":
			return inner.Dial(ctx, user)
		case "192.0.2.8:22":
			return nil, syscall.ECONNREFUSED
		}
		return nil, syscall.EACCES
	}
	bubble(t, func(c *Config) { c.DialHop = hop }, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		defer c.Close()
		conn, err := c.Dial("tcp", "192.0.2.7:22")
		if err != nil {
			t.Fatal(err)
		}
		far, err := inner.Accept()
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789"), 5000) // more than one buffer and one window
		go func() { conn.Write(sent); conn.(interface{ CloseWrite() error }).CloseWrite() }()
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(sent), err)
		}
		far.Close()
		for addr, code := range map[string]ssh.RejectionReason{"192.0.2.8:22": ssh.ConnectionFailed, "192.0.2.7:8001": ssh.Prohibited} {
			_, err := c.Dial("tcp", addr)
			var open *ssh.OpenChannelError
			if !errors.As(err, &open) || open.Reason != code {
				t.Errorf("%s: want reason %v, got %v", addr, code, err)
			}
		}
		if got := f.srv.Refusals(); len(got) != 1 || got[0] != "direct-tcpip 192.0.2.7:8001" {
			t.Errorf("refusals %q", got)
		}
	})
}

func TestForbiddenForwarding(t *testing.T) {
	bubble(t, func(c *Config) { c.ForbidForwarding = true }, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		defer c.Close()
		for _, addr := range [][2]string{{"tcp", "127.0.0.1:8001"}, {"unix", "/var/run/docker.sock"}} {
			_, err := c.Dial(addr[0], addr[1])
			var open *ssh.OpenChannelError
			if !errors.As(err, &open) || open.Reason != ssh.Prohibited {
				t.Fatalf("%v: got %v", addr, err)
			}
		}
	})
}

func TestMaxSessionsAndNoShell(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		defer c.Close()
		for i := range MaxSessions {
			s, err := c.NewSession()
			if err != nil {
				t.Fatalf("session %d: %v", i, err)
			}
			if err := s.Start("wait"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.NewSession(); err == nil {
			t.Fatal("the eleventh session was accepted")
		}
		c2 := f.mustDial(t)
		defer c2.Close()
		s, err := c2.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if s.Shell() == nil {
			t.Fatal("a shell was given")
		}
		ok, _, err := c2.SendRequest("keepalive@openssh.com", true, nil)
		if err != nil || ok {
			t.Fatalf("a keepalive is answered with a failure: %v, %v", ok, err)
		}
	})
}

func TestDropSwapRefuse(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.mustDial(t)
		f.srv.DropAll()
		if err := c.Wait(); err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("a dropped connection must not look like a goodbye: %v", err)
		}
		f.srv.SwapHostKey(signer(t, 9))
		if _, err := f.dial(t, signer(t, 2), signer(t, 1)); err == nil {
			t.Fatal("the old host key was shown")
		}
		f.srv.Refuse(true)
		if _, err := f.dial(t, signer(t, 2), signer(t, 9)); err == nil {
			t.Fatal("a stopped server accepted a connection")
		}
		f.srv.Refuse(false)
		c, err := f.dial(t, signer(t, 2), signer(t, 9))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

func TestMaxStartupsDropsTheSurplus(t *testing.T) {
	bubble(t, func(c *Config) { c.MaxStartups = Startups{Start: 2, Rate: 100, Full: 3} }, func(t *testing.T, f *fixture) {
		for range 5 { // connect and say nothing
			if _, err := f.l.Dial(t.Context(), "operator"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if got := f.srv.Stats(); got.Dropped != 3 {
			t.Fatalf("dropped %d of 5, want 3", got.Dropped)
		}
		time.Sleep(loginGrace + time.Second)
		synctest.Wait()
		f.mustDial(t).Close()
	})
}

func TestRealListener(t *testing.T) {
	f := newFixture(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go f.srv.Serve(l)
	c, err := ssh.Dial("tcp", l.Addr().String(), &ssh.ClientConfig{User: "root",
		Auth: []ssh.AuthMethod{ssh.PublicKeys(signer(t, 2))}, HostKeyCallback: ssh.FixedHostKey(signer(t, 1).PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Dial("tcp", "127.0.0.1:8001"); err != nil {
		t.Fatal(err)
	}
}
