package lease

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestProfiles(t *testing.T) {
	for _, name := range append(Profiles(), "") {
		p, err := PolicyOf(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, ttl := range []time.Duration{3 * time.Second, 10 * time.Second, time.Hour} {
			if _, err := p.Lower(ttl).Check(); err != nil {
				t.Errorf("%s with a TTL of %v: %v", name, ttl, err)
			}
		}
	}
	steady, _ := PolicyOf(Steady)
	if w, _ := steady.Check(); len(w) != 0 {
		t.Errorf("steady warns: %v", w)
	}
	fast, _ := PolicyOf(Fast)
	if w, _ := fast.Check(); len(w) != 1 || !strings.Contains(w[0], "250ms") {
		t.Errorf("fast does not say up to which round trip it is stable: %v", w)
	}
	if _, err := PolicyOf("quick"); !errors.As(err, new(*PolicyError)) {
		t.Error(err)
	}
}

// Issues Qbit-Org/qbit-mining-bootstrap#212 and riverqueue/river#216 too.
func TestScenario30UnsafeTiming(t *testing.T) {
	for want, change := range map[string]func(*Policy){
		"exit 1.25s + monitor 50ms + work 100ms + late 500ms < silence 1s does not hold (1.9s)": func(p *Policy) { p.Silence = time.Second },
		"dead 1.5s > exit 1.25s + monitor 50ms":                                                 func(p *Policy) { p.Dead = 1500 * time.Millisecond },
		"effect 50s + headroom 20s < ttl 1m0s":                                                  func(p *Policy) { p.Effect, p.Headroom = 50*time.Second, 20*time.Second },
		"silence 2s < ttl 250ms":                                                                func(p *Policy) { p.TTL = p.Beat },
		"beat 2s < exit 1.25s":                                                                  func(p *Policy) { p.Beat = 2 * time.Second },
		"poll 0s must be above zero":                                                            func(p *Policy) { p.Poll = 0 },
		"no duration may be below zero":                                                         func(p *Policy) { p.Late = -time.Second },
	} {
		p, _ := PolicyOf(Steady)
		change(&p)
		_, err := p.Check()
		var refused *PolicyError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || refused.Hint() == "" {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestKeyNeverChanges(t *testing.T) {
	// Computed once with another program: sha256 of the parts with zero bytes in between, its first 8 bytes as a signed
	// big-endian number. Another value would let two versions hold one lease.
	for id, want := range map[Identity]int64{
		{"mainnet", "qnetops", 1}: -8615049953133906244,
		{"svc", "svc", 2}:         -6031896556650584789,
	} {
		if got := id.key(); got != want {
			t.Errorf("%v: %d, want %d", id, got, want)
		}
	}
	seen := map[int64]bool{}
	for _, id := range []Identity{{"ab", "c", 1}, {"a", "bc", 1}, {"a", "b", 11}, {"a", "b1", 1}} {
		seen[id.key()] = true
	}
	if len(seen) != 4 {
		t.Error("two identities share a key")
	}
}

func TestTokens(t *testing.T) {
	a, b := newSession(true), newSession(true)
	if a.token == b.token || a.app == b.app || !strings.HasPrefix(a.token, "heartbeat-v1:") || len(a.token) != 13+32 || strings.HasPrefix(newSession(false).token, "heartbeat") {
		t.Error(a, b)
	}
	if len(a.guardName()) > 63 {
		t.Error("longer than a Postgres name")
	}
	for token, c := range map[string]struct{ allowed, ok bool }{"": {false, true}, "mine": {true, true}, "theirs": {false, false}, "heartbeat-v1:x": {true, false}, "heartbeat-v2:x": {true, false}} {
		if err := fixed(token, c.allowed); (err == nil) != c.ok {
			t.Errorf("%q: %v", token, err)
		}
	}
}

func TestJudge(t *testing.T) {
	good := proof{Guard: true, Mine: true, Renewed: true}
	for name, c := range map[string]struct {
		change func(*proof)
		want   verdict
	}{
		"renewed":                      {func(*proof) {}, alive},
		"session gone":                 {func(p *proof) { p.Guard = false }, gone},
		"taken":                        {func(p *proof) { p.Mine, p.Renewed = false, false }, gone},
		"own write":                    {func(p *proof) { p.Renewed, p.OwnLock = false, true }, alive},
		"own write over the margin":    {func(p *proof) { p.Renewed, p.OwnLock, p.InMargin = false, true, true }, deferred},
		"own write over the TTL":       {func(p *proof) { p.Renewed, p.OwnLock, p.InMargin, p.Expired = false, true, true, true }, deferred},
		"foreign lock":                 {func(p *proof) { p.Renewed = false }, busy},
		"foreign lock over the margin": {func(p *proof) { p.Renewed, p.InMargin = false, true }, busy},
		"foreign lock over the TTL":    {func(p *proof) { p.Renewed, p.InMargin, p.Expired = false, true, true }, recheck},
	} {
		p := good
		c.change(&p)
		if got := judge(p); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestDecide(t *testing.T) {
	p, _ := PolicyOf(Fast)
	steady, _ := PolicyOf(Steady)
	me := Identity{"s", "w", 1}
	mine := row{Identity: me, Token: adoptable + "x", Holder: Holder{Silence: 1, TTL: 60}}
	other := mine
	other.Writer = "z"
	with := func(r row, change func(*row)) row { change(&r); return r }
	for name, c := range map[string]struct {
		l    look
		want How // "" is wait
		in   time.Duration
	}{
		"no row":                           {look{guarded: true}, ByInsert, 0},
		"no row, a twin has the lock":      {look{}, "", 0},
		"released":                         {look{row: with(other, func(r *row) { r.Released = true }), found: true, guarded: true}, ByRelease, 0},
		"released, a twin has the lock":    {look{row: with(mine, func(r *row) { r.Released = true }), found: true, still: time.Hour}, "", 0},
		"broken, just now":                 {look{row: with(other, func(r *row) { r.Released, r.Token = true, revoked+"x" }), found: true, guarded: true}, "", time.Second},
		"broken, silent":                   {look{row: with(other, func(r *row) { r.Released, r.Token = true, revoked+"x" }), found: true, guarded: true, still: time.Second}, ByRelease, 0},
		"broken, a paused twin has it":     {look{row: with(mine, func(r *row) { r.Released, r.Token = true, revoked+"x" }), found: true, still: time.Second}, ByReclaim, 0},
		"broken, the twin may be ending":   {look{row: with(mine, func(r *row) { r.Released, r.Token = true, revoked+"x" }), found: true, still: 300 * time.Millisecond}, "", 700 * time.Millisecond},
		"broken steady holder":             {look{row: with(mine, func(r *row) { r.Released, r.Token, r.Holder.Silence = true, revoked+"x", 2 }), found: true, still: time.Second}, "", time.Second},
		"broken, behind a stranger's lock": {look{row: with(other, func(r *row) { r.Released, r.Token = true, revoked+"x" }), found: true, still: time.Hour}, "", 0},
		"dead twin, silent too short":      {look{row: mine, found: true, guarded: true, still: 900 * time.Millisecond}, "", 100 * time.Millisecond},
		"dead twin, silent":                {look{row: mine, found: true, guarded: true, still: time.Second}, ByAdopt, 0},
		"dead twin of a steady holder":     {look{row: with(mine, func(r *row) { r.Holder.Silence = 2 }), found: true, guarded: true, still: time.Second}, "", time.Second},
		"dead twin that says nothing":      {look{row: with(mine, func(r *row) { r.Holder = Holder{} }), found: true, guarded: true, still: time.Second}, "", time.Second},
		"twin with a plain token":          {look{row: with(mine, func(r *row) { r.Token = "x" }), found: true, guarded: true, still: 5 * time.Second}, "", 55 * time.Second},
		"twin of a later version":          {look{row: with(mine, func(r *row) { r.Token = "heartbeat-v2:x" }), found: true, guarded: true, still: 5 * time.Second}, "", 55 * time.Second},
		"live twin":                        {look{row: mine, found: true, still: 59 * time.Second}, "", time.Second},
		"paused twin":                      {look{row: mine, found: true, still: 60 * time.Second}, ByReclaim, 0},
		"paused stranger behind our lock":  {look{row: other, found: true, still: time.Hour}, "", 0},
		"stranger":                         {look{row: other, found: true, guarded: true, still: 59 * time.Second}, "", time.Second},
		"stranger, silent for a TTL":       {look{row: other, found: true, guarded: true, still: 60 * time.Second}, BySilence, 0},
		"stranger, expired, just seen":     {look{row: with(other, func(r *row) { r.Expired = true }), found: true, guarded: true}, "", time.Second},
		"stranger, expired, silent":        {look{row: with(other, func(r *row) { r.Expired = true }), found: true, guarded: true, still: time.Second}, ByExpiry, 0},
		"stranger with a longer TTL":       {look{row: with(other, func(r *row) { r.Holder.TTL = 90 }), found: true, guarded: true, still: 60 * time.Second}, "", 30 * time.Second},
		"pooler, own corpse":               {look{row: mine, found: true, pooled: true, still: 5 * time.Second}, "", 55 * time.Second},
		"pooler, own corpse, expired":      {look{row: with(mine, func(r *row) { r.Expired = true }), found: true, pooled: true, still: time.Second}, ByExpiry, 0},
		"other epoch is another identity":  {look{row: with(mine, func(r *row) { r.Epoch = 2 }), found: true, guarded: true, still: 5 * time.Second}, "", 55 * time.Second},
	} {
		got := decide(c.l, me, p)
		if got.how != c.want || got.in != c.in {
			t.Errorf("%s: %q in %v, want %q in %v", name, got.how, got.in, c.want, c.in)
		}
	}
	if got := decide(look{row: mine, found: true, guarded: true, still: time.Second}, me, steady); got.in != time.Second {
		t.Errorf("a steady candidate keeps its own silence: %v", got)
	}
}

// The time that a lease was unchanged begins with the answer to the first look and ends with the question of the last, and
// never before the session lock was ours.
func TestWatch(t *testing.T) {
	r := row{Token: "a", Renewals: 1}
	w := &watch{}
	if got := w.see(r, true, 0, 10); got != 0 {
		t.Errorf("first look: %d", got)
	}
	if got := w.see(r, true, 20, 30); got != 10 {
		t.Errorf("asked at 20, first answered at 10: %d", got)
	}
	w.guarded, w.guardAt = true, 15
	if got := w.see(r, true, 40, 41); got != 25 {
		t.Errorf("lock at 15, asked at 40: %d", got)
	}
	r.Renewals++
	if got := w.see(r, true, 50, 55); got != 0 {
		t.Errorf("renewed: %d", got)
	}
	r.Generation++
	w.see(r, true, 60, 61)
	if got := w.see(r, false, 70, 71); got != 0 {
		t.Errorf("gone: %d", got)
	}
}

func TestFolders(t *testing.T) {
	for magic, refused := range map[int64]bool{0xef53: false, 0x01021994: false, 0x794c7630: false, 0x6969: true, 0xff534d42: true, 0xfe534d42: true, 0x65735546: true, 0x01021997: true} {
		err := checkMagic("/state", magic)
		var r *RefusedError
		if errors.As(err, &r) != refused || refused && (r.Code != CodeUsage || r.Hint() == "") {
			t.Errorf("%x: %v", magic, err)
		}
	}
	if err := checkFolder(t.TempDir()); err != nil {
		t.Errorf("a temporary folder: %v", err)
	}
}

func TestCodes(t *testing.T) {
	for c := Code(90); c <= 98; c++ {
		if c.Meaning() == "" {
			t.Errorf("code %d has no meaning", c)
		}
	}
	if Code(1).Meaning() != "" {
		t.Error("a code of the command is explained as ours")
	}
	if LossCode(errors.New("x")) != 0 || LossCode(ErrLost) != CodeGuardLost || LossCode(&lostError{code: CodeFence}) != CodeFence {
		t.Error("loss codes")
	}
}

func TestHolderLives(t *testing.T) {
	me := Self("x", "h")
	if !me.Live() {
		t.Error("this very process is called dead")
	}
	for name, change := range map[string]func(*Holder){"another boot": func(h *Holder) { h.BootID = "x" }, "a reused number": func(h *Holder) { h.Started++ }, "no number": func(h *Holder) { h.PID = 0 },
		"nothing known": func(h *Holder) { *h = Holder{PID: h.PID} }} {
		h := me
		change(&h)
		if h.Live() {
			t.Errorf("%s is called alive", name)
		}
		if err := KillHolder(Info{Holder: h}); err == nil {
			t.Errorf("%s was killed", name)
		}
	}
}

func TestSchemaVersion(t *testing.T) {
	for _, dialect := range []string{"postgres", "sqlite"} {
		entries, err := files.ReadDir("migrations/" + dialect)
		if err != nil || len(entries) != schemaVersion {
			t.Errorf("%s has %d migrations, the version says %d (%v)", dialect, len(entries), schemaVersion, err)
		}
	}
}
