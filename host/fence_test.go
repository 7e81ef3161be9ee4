package host

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFenceJudges(t *testing.T) {
	held := &FenceRecord{Claim: claim1}
	released := &FenceRecord{Claim: claim1, Released: true}
	with := func(fn func(*Claim)) Claim { c := claim1; fn(&c); return c }
	for _, c := range []struct {
		name  string
		rec   *FenceRecord
		claim Claim
		ok    bool
	}{
		{"first claim", nil, claim1, true},
		{"same claim again", held, claim1, true},
		{"smaller epoch", held, with(func(c *Claim) { c.Epoch = 6 }), false},
		{"larger epoch", held, with(func(c *Claim) { c.Epoch = 8; c.Owner = "bob"; c.Operation = "x" }), true},
		{"same epoch, other owner", held, with(func(c *Claim) { c.Owner = "bob" }), false},
		{"same epoch, other operation", held, with(func(c *Claim) { c.Operation = "roll-2" }), false},
		{"other store, not released", held, with(func(c *Claim) { c.Store = "t"; c.Epoch = 99 }), false},
		{"other fleet of the same store, not released", held, with(func(c *Claim) { c.Fleet = "g"; c.Epoch = 99 }), false},
		{"other store, released", released, with(func(c *Claim) { c.Store = "t"; c.Epoch = 8 }), true},
		{"other store, released, same epoch", released, with(func(c *Claim) { c.Store = "t" }), false},
		{"other store, released, smaller epoch", released, with(func(c *Claim) { c.Store = "t"; c.Epoch = 3 }), false},
	} {
		if got := judgeTake(c.rec, c.claim); (got == nil) != c.ok {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if judgeWrite(nil, claim1) == nil || judgeWrite(released, claim1) == nil || judgeWrite(held, with(func(c *Claim) { c.Epoch = 8 })) == nil {
		t.Error("a write passes under a claim that was not taken")
	}
	if fe := judgeWrite(held, claim1); fe != nil {
		t.Error(fe)
	}
}

func TestFenceOverTheWire(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		if rec, err := r.client.Fence(r.ctx); err != nil || rec != nil {
			t.Fatalf("a host never claimed: %+v %v", rec, err)
		}
		if err := r.w.Discard(r.ctx, "x"); err == nil {
			t.Error("a write without the fence")
		}
		rep := r.stage()
		st, err := os.Stat(filepath.Join(dir, "var/lib/qnetops/fence.json"))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("fence file: %v %v", st, err)
		}
		// A paused operator wakes up after another has taken over.
		newer := r.client.Writer(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
		if _, err := newer.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		before := len(r.e.cs)
		for name, call := range map[string]func() error{
			"take":    func() error { _, err := r.w.TakeFence(r.ctx); return err },
			"release": func() error { return r.w.ReleaseFence(r.ctx) },
			"pull":    func() error { _, err := r.w.Pull(r.ctx, "r.example.org/q@"+imgNew, nil); return err },
			"stage": func() error {
				_, err := r.w.Stage(r.ctx, StageRequest{Container: nodeName, ImageDigest: imgNew, NextName: "n2", Operation: "roll-1"})
				return err
			},
			"discard": func() error { return r.w.Discard(r.ctx, nodeName+"-next") },
			"replace": func() error { _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); return err },
			"put back": func() error {
				_, err := r.w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: "a", FailedName: "b"}, nil)
				return err
			},
			"finish": func() error {
				_, err := r.w.Finish(r.ctx, FinishRequest{Container: nodeName, AsideName: "a", LogDir: "/l"}, nil)
				return err
			},
		} {
			var fe *FencedError
			if err := call(); !errors.As(err, &fe) || fe.Record.Owner != "bob" || fe.Hint() == "" {
				t.Errorf("%s by a stale operator: %v", name, err)
			}
		}
		if len(r.e.cs) != before || r.e.find(nodeName).status != "running" {
			t.Error("a stale operator changed something")
		}
		if err := newer.ReleaseFence(r.ctx); err != nil {
			t.Error(err)
		}
		if rec, err := r.client.Fence(r.ctx); err != nil || !rec.Released || rec.Epoch != 8 {
			t.Errorf("released record %+v %v", rec, err)
		}
	})
}

func TestNewcomerWaitsForTheTransactionInHand(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stage()
		done := make(chan ReplaceResult, 1)
		first, w := r.client, r.w
		go func() {
			res, err := w.Replace(r.ctx, replaceRequest(rep), nil)
			if err != nil {
				t.Error(err)
			}
			done <- res
		}()
		time.Sleep(2 * time.Second) // the old container is being stopped
		r.connect(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
		short, cancel := context.WithTimeout(r.ctx, time.Second)
		if _, err := r.w.TakeFence(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a newcomer did not wait: %v", err)
		}
		cancel()
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Error(err)
		}
		select {
		case res := <-done:
			if res.Outcome != Replaced {
				t.Errorf("%+v", res)
			}
		default:
			t.Error("the newcomer was let in before the transaction had ended")
		}
		first.Close()
	})
}

func TestUnreadableFenceRecordRefuses(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		if err := os.MkdirAll(filepath.Join(dir, "var/lib/qnetops"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "var/lib/qnetops/fence.json"), []byte(`{"fleet":`), 0o600); err != nil {
			t.Fatal(err)
		}
		r.connect(claim1)
		if _, err := r.w.TakeFence(r.ctx); err == nil {
			t.Error("what cannot be read was taken over")
		}
	})
}

func TestTxLogTornLine(t *testing.T) {
	cfg := Config{Root: tempDir(t), StateDir: "/s"}
	l, err := cfg.openTx("op", "c", txReplace, byAgent)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"a", "b"} {
		if err := l.add(TxEntry{Step: s, State: TxIntent}); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	name := cfg.txPath("op", "c")
	raw, _ := os.ReadFile(name)
	for cut := 1; cut < 40; cut++ { // a crash anywhere inside the last line
		if err := os.WriteFile(name, raw[:len(raw)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := cfg.openTx("op", "c", txReplace, byGuardian)
		if err != nil {
			t.Fatalf("cut %d: %v", cut, err)
		}
		if len(l.entries) != 1 {
			t.Fatalf("cut %d: %d entries", cut, len(l.entries))
		}
		if err := l.add(TxEntry{Step: "c"}); err != nil {
			t.Fatal(err)
		}
		l.close()
		if e, _, err := readTx(name); err != nil || len(e) != 2 || e[1].Step != "c" || e[1].By != byGuardian {
			t.Fatalf("cut %d: %+v %v", cut, e, err)
		}
	}
	if err := os.WriteFile(name, []byte("{broken\n"+string(raw)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.openTx("op", "c", txReplace, byAgent); err == nil {
		t.Error("a log damaged in the middle was accepted")
	}
	if _, err := cfg.openTx("../op", "c", txReplace, byAgent); err == nil {
		t.Error("an operation id that leaves the folder was accepted")
	}
}

func TestLoginHeader(t *testing.T) {
	var l dockerLogins
	if err := json.Unmarshal([]byte(`{"auths":{"r.example.org:5000":{"auth":"dXNlcjpwYTpzcw=="},"id.example.org":{"auth":"dXNlcjo=","identitytoken":"tok"},"store.example.org":{},"bad.example.org":{"auth":"%%"}},
	 "credsStore":"desktop","credHelpers":{"help.example.org":"ecr"}}`), &l); err != nil {
		t.Fatal(err)
	}
	head := func(reg string) map[string]string {
		h, err := l.header(reg)
		if err != nil || h == nil {
			t.Fatalf("%s: %v %v", reg, h, err)
		}
		return decodeAuth(t, h.Get("X-Registry-Auth"))
	}
	if h := head("r.example.org:5000"); h["username"] != "user" || h["password"] != "pa:ss" || h["serveraddress"] != "r.example.org:5000" {
		t.Errorf("%v", h)
	}
	if h := head("id.example.org"); h["identitytoken"] != "tok" {
		t.Errorf("%v", h)
	}
	if h, err := l.header("public.example.org"); h != nil || err != nil {
		t.Errorf("a registry without a login: %v %v", h, err)
	}
	for _, reg := range []string{"help.example.org", "store.example.org", "bad.example.org"} {
		_, err := l.header(reg)
		if !errors.Is(err, ErrAuth) || strings.Contains(err.Error(), "%%") {
			t.Errorf("%s: %v", reg, err)
		}
	}
}

func TestReference(t *testing.T) {
	d := "sha256:" + sha
	for ref, want := range map[string]reference{
		"qnet":                      {repo: "qnet"},
		"r.example.org:5000/a/q:v1": {repo: "r.example.org:5000/a/q", tag: "v1"},
		"r.example.org:5000/q":      {repo: "r.example.org:5000/q"},
		"r.example.org/q:v1@" + d:   {repo: "r.example.org/q", tag: "v1", digest: d},
		"localhost/q@" + d:          {repo: "localhost/q", digest: d},
	} {
		got, err := parseReference(ref)
		if err != nil || got != want {
			t.Errorf("%s: %+v %v", ref, got, err)
		}
	}
	for ref, reg := range map[string]string{"qnet:v1": "https://index.docker.io/v1/", "a/q": "https://index.docker.io/v1/", "r.example.org:5000/q": "r.example.org:5000", "localhost/q": "localhost"} {
		r, err := parseReference(ref)
		if err != nil || r.registry() != reg {
			t.Errorf("%s: registry %q %v", ref, r.registry(), err)
		}
	}
	for _, bad := range []string{"", "a b", "a@sha256:zz", "../x", "a?b", ":v1"} {
		if r, err := parseReference(bad); err == nil {
			t.Errorf("%q accepted: %+v", bad, r)
		}
	}
}

// A record that is taken over refuses its earlier holder for good, and only the
// record that was seen can be taken over.
func TestTakeOverIsForTheRecordThatWasSeen(t *testing.T) {
	cfg := Config{Root: t.TempDir(), StateDir: "/var/lib/qnetops", Version: "test"}
	if err := os.MkdirAll(cfg.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	old := FenceRecord{Claim: Claim{Fleet: "f", Store: "gone", Owner: "first", Operation: "roll-1", Epoch: 7}}
	if err := cfg.writeFence(old); err != nil {
		t.Fatal(err)
	}
	claim := Claim{Fleet: "f", Store: "new", Owner: "second", Operation: "break-1", Epoch: 8}
	other := old
	other.Epoch = 6
	if _, err := cfg.takeOver(claim, takeOverParams{Expect: other}); !errors.Is(err, ErrChanged) {
		t.Errorf("another record than the one there: %v", err)
	}
	low := claim
	low.Epoch = 7
	if _, err := cfg.takeOver(low, takeOverParams{Expect: old}); err == nil {
		t.Error("an epoch that is not above the record's was accepted")
	}
	taken, err := cfg.takeOver(claim, takeOverParams{Expect: old, Reason: "its machine burnt"})
	if err != nil || !taken.Released || !strings.Contains(taken.Note, "first") || !strings.Contains(taken.Note, "burnt") {
		t.Errorf("%+v, %v", taken, err)
	}
	rec, err := cfg.readFence()
	if err != nil {
		t.Fatal(err)
	}
	if judgeTake(rec, old.Claim) == nil || judgeWrite(rec, old.Claim) == nil {
		t.Error("the earlier holder may take or write again")
	}
	next := Claim{Fleet: "f", Store: "new", Owner: "second", Operation: "restore-1", Epoch: 9}
	if refused := judgeTake(rec, next); refused != nil {
		t.Errorf("the store that took over is refused: %v", refused)
	}
}
