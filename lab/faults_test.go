package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// wanted are the kinds that issue 2 asks for.
var wanted = strings.Fields("stop mute isolate lag slow skew hang-health lie-height lie-build ratelimit disk-full pull-fail create-fail " +
	"start-fail engine-restart engine-down drop-ssh host-key second-updater log-rotate log-level failover fork")

func TestEveryWantedFaultExistsAndClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 2, Seed: 10})
		waitHeight(t, l, 2)
		for _, kind := range wanted {
			if err := l.Inject("001", kind, ""); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			time.Sleep(time.Minute)
			if err := l.Clear("001", ""); err != nil {
				t.Errorf("clearing %s: %v", kind, err)
			}
			if f := l.Faults("001"); len(f) != 0 {
				t.Errorf("after clearing %s: %v", kind, f)
			}
		}
		time.Sleep(10 * time.Minute)
		s := l.Status(t.Context())
		if s.Nodes[0].State != "running" || s.Nodes[0].Height == nil || s.Nodes[0].Build != "1111111" {
			t.Errorf("after everything was cleared: %s", s)
		}
		if c := l.Hosts()[0].Engine().Containers(); len(c) != 1 {
			t.Errorf("containers left: %+v", c)
		}
		clean(t, l)
	})
}

func TestKindsAreListedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range Kinds() {
		if seen[kind] {
			t.Errorf("%s is listed twice", kind)
		}
		seen[kind] = true
	}
	for _, kind := range wanted {
		if !seen[kind] {
			t.Errorf("%s is not listed", kind)
		}
	}
}

func TestDrawnFaultsRepeatAndClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 3, Seed: 16})
		a, b := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
		seen := map[string]bool{}
		for range 40 {
			id, kind := l.Draw(a)
			if id2, kind2 := l.Draw(b); id != id2 || kind != kind2 {
				t.Fatalf("%s %s and %s %s from one seed", id, kind, id2, kind2)
			}
			seen[kind] = true
			if err := l.Inject(id, kind, ""); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if _, on := l.Faults(id)[kind]; !on {
				t.Errorf("%s cannot be cleared", kind)
			}
			if err := l.Clear("", ""); err != nil {
				t.Fatal(err)
			}
		}
		if len(seen) < 10 {
			t.Errorf("40 draws gave only %d kinds", len(seen))
		}
	})
}

func TestUnknownFaultAndNodeListTheKnownOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 2})
		err := l.Inject("001", "nonsense", "")
		for _, kind := range wanted {
			if err == nil || !strings.Contains(err.Error(), kind) {
				t.Fatalf("%v does not list %s", err, kind)
			}
		}
		if err := l.Inject("009", "stop", ""); err == nil || !strings.Contains(err.Error(), "known are 001, 002") {
			t.Errorf("unknown node: %v", err)
		}
		for _, bad := range [][2]string{{"log-level", "9"}, {"log-rotate", "x"}, {"drop-ssh", "x"}, {"skew", "x"}} {
			if err := l.Inject("001", bad[0], bad[1]); err == nil {
				t.Errorf("%s=%s was accepted", bad[0], bad[1])
			}
		}
		if err := l.Clear("", "nonsense"); err == nil {
			t.Error("an unknown kind was cleared")
		}
	})
}

// healthz asks the node past SSH.
func healthz(t *testing.T, h *Host) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", h.APIBase()+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.HTTP().Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

func TestFaultsShowOnTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 11})
		waitHeight(t, l, 2)
		h := l.Hosts()[0]
		inject := func(kind, arg string) {
			t.Helper()
			if err := l.Clear("", ""); err != nil {
				t.Fatal(err)
			}
			if err := l.Inject("001", kind, arg); err != nil {
				t.Fatal(err)
			}
		}
		inject("lie-build", "abcdef0")
		if got := healthz(t, h); !strings.HasSuffix(got, "build=abcdef0") {
			t.Errorf("lie-build: %q", got)
		}
		inject("skew", "7")
		if d := time.Until(h.now()); d != 7*time.Second {
			t.Errorf("skew: the host's clock is off by %v", d)
		}
		inject("disk-full", "1000")
		if got := h.disk().FreeBytes; got != 1000 {
			t.Errorf("disk-full: %d bytes free", got)
		}
		inject("second-updater", "")
		if c := h.Engine().Containers(); len(c) != 2 || c[0].Name != "watchtower" || c[0].State != "running" {
			t.Errorf("second-updater: %+v", c)
		}
		inject("host-key", "")
		if _, err := tryConnect(t, l, "001"); err == nil {
			t.Error("host-key: the pinned key was shown")
		}
		inject("drop-ssh", "hold")
		if _, err := l.Dial(t.Context(), "tcp", h.addr()); err == nil {
			t.Error("drop-ssh=hold: a connection was accepted")
		}
		inject("log-level", "2")
		level := ""
		for _, kv := range h.Engine().Containers()[0].Env {
			if v, ok := strings.CutPrefix(kv, "QNET_LOG_LEVEL="); ok {
				level = v
			}
		}
		if level != "2" {
			t.Errorf("log-level: %q", level)
		}
		inject("stop", "")
		if s := l.Status(t.Context()).Nodes[0]; s.State != "exited" || s.Height != nil || s.Container != "" {
			t.Errorf("stop: %+v", s)
		}
	})
}

func TestControlFromAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	l, err := New(Config{Nodes: 2, Block: 20 * time.Millisecond, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx := t.Context()
	var not *NotRunningError
	if _, err := Connect(ctx, dir); !errors.As(err, &not) || not.Hint() == "" {
		t.Fatalf("no lab yet: %v", err)
	}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.ServeControl(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, StateFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the record holds a token: %v, %v", info, err)
	}
	waitHeight(t, l, 1)
	c, err := Connect(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Fault(ctx, "002", "lie-height", "500"); err != nil {
		t.Fatal(err)
	}
	s, err := c.Status(ctx)
	if err != nil || len(s.Nodes) != 2 || s.Nodes[1].Faults["lie-height"] != "500" || s.Nodes[1].Height == nil || *s.Nodes[1].Height < 500 {
		t.Errorf("status %+v, %v", s, err)
	}
	if err := c.Fault(ctx, "002", "nonsense", ""); err == nil || !strings.Contains(err.Error(), "known are") {
		t.Errorf("unknown fault: %v", err)
	}
	if err := c.Clear(ctx, "", ""); err != nil || len(l.Faults("002")) != 0 {
		t.Errorf("clear: %v", err)
	}
	if err := c.Kill(ctx, "001", KillConnection); err != nil {
		t.Errorf("kill: %v", err)
	}
	stranger, err := Connect(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Record.Token = "guessed"
	if err := stranger.Down(ctx); err == nil {
		t.Error("a stranger without the token was heard")
	}
	stranger.Close()
	if err := c.Down(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the lab did not end")
	}
	l.Close()
	if _, err := Connect(ctx, dir); !errors.As(err, &not) {
		t.Errorf("after down: %v", err)
	}
}

func TestLongPathFallsBackToLoopback(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	l, err := New(Config{Nodes: 1, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.ServeControl(dir); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Record.Network != "tcp" {
		t.Errorf("network %s", c.Record.Network)
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestManyHostsHaveAddressesOfTheirOwn(t *testing.T) {
	l, err := New(Config{Nodes: 250, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := map[string]bool{}
	for _, h := range l.Hosts() {
		if seen[h.addr()] {
			t.Fatalf("two hosts at %s", h.addr())
		}
		seen[h.addr()] = true
		if !strings.HasPrefix(h.addr(), "192.0.2.") {
			t.Fatalf("address %s", h.addr())
		}
	}
	if _, err := New(Config{Nodes: MaxNodes + 1, Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(MaxNodes)) {
		t.Errorf("too many nodes: %v", err)
	}
}
