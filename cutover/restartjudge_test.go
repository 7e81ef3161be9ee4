package cutover

import (
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

func hashOfByte(b byte) (h node.Hash) { h[0] = b; return h }

func testValues() RestartValues {
	m := manifest.Manifest{Restart: manifest.Restart{ResumeFromMB: 10, ResumeMBHash: hashOfByte(1), Excluded: []string{"genesis_node_005"}},
		Pin: manifest.Pin{Index: 10, Hash: hashOfByte(1), DigestAnchor: hashOfByte(2), DigestPred: hashOfByte(3)}}
	return RestartValues{Record: "aa", Publisher: "ann", Image: "registry.example.org/qnet@sha256:77", Manifest: m, Needed: 3,
		Remaining: []string{"n1", "n2", "n3", "n4"}, Operators: []string{"ann"}}
}

// restarted are readings of four nodes that have sealed macroblock 12, or what
// change makes of them.
func restarted(sealed, height uint64, change func(r *RestartReading)) []RestartReading {
	var out []RestartReading
	for _, id := range []string{"001", "002", "003", "004"} {
		hash, common := hashOfByte(1), hashOfByte(9)
		r := RestartReading{ID: id, Reached: true, State: "running", Digests: []string{"registry.example.org/qnet@sha256:77"}, Height: &height, Sealed: &sealed,
			HashK: &hash, Common: &common, Eligible: []string{"genesis_node_001"}, EligibleKnown: true,
			Lines: RestartLines{Read: true, Active: true, Resume: 10, Excluded: 1}}
		if change != nil {
			change(&r)
		}
		out = append(out, r)
	}
	return out
}

func only(id string, change func(r *RestartReading)) func(r *RestartReading) {
	return func(r *RestartReading) {
		if r.ID == id {
			change(r)
		}
	}
}

func TestJudgeRestart(t *testing.T) {
	other := hashOfByte(7)
	for name, c := range map[string]struct {
		change func(r *RestartReading)
		still  bool // nothing rises between the looks
		told   []Told
		values func(v *RestartValues)
		want   string // check=verdict of those that do not pass
	}{
		"holds":                 {want: ""},
		"malformed":             {change: only("002", func(r *RestartReading) { r.Lines.Malformed, r.State = "restart_zero_hash", "restarting" }), want: "manifest=fail sides=fail"},
		"another manifest":      {change: only("002", func(r *RestartReading) { r.Lines.Resume = 9 }), want: "manifest=fail"},
		"line rotated away":     {change: only("002", func(r *RestartReading) { r.Lines = RestartLines{Read: true} }), want: ""},
		"log not read":          {change: only("002", func(r *RestartReading) { r.Lines = RestartLines{} }), want: "manifest=unknown pin=unknown"},
		"refuses to start":      {change: only("002", func(r *RestartReading) { r.Lines.Fatal = "WS restart pin active" }), want: "manifest=fail"},
		"data above K":          {change: only("003", func(r *RestartReading) { r.Lines.Mismatch = []string{"v2_ws_pin_mismatch"} }), want: "pin=fail sides=fail"},
		"wrong hash":            {change: only("003", func(r *RestartReading) { r.HashK = &other }), want: "hash_k=fail sides=fail"},
		"joins still":           {change: only("003", func(r *RestartReading) { r.HashK, r.NoK = nil, true }), want: "hash_k=unknown"},
		"old image":             {change: only("004", func(r *RestartReading) { r.Digests, r.Sealed, r.Common = []string{"x@sha256:66"}, nil, nil }), want: "tips=unknown sides=fail"},
		"newer image":           {change: only("004", func(r *RestartReading) { r.Digests = []string{"x@sha256:88"} }), want: ""},
		"down":                  {change: only("004", func(r *RestartReading) { r.State = "exited" }), want: "sides=fail"},
		"away":                  {change: only("004", func(r *RestartReading) { *r = RestartReading{ID: "004", Why: "no route"} }), want: "manifest=unknown pin=unknown hash_k=unknown tips=unknown sides=unknown temporaries=unknown"},
		"stands":                {still: true, want: "blocks=fail seals=fail"},
		"barred is eligible":    {change: only("001", func(r *RestartReading) { r.Eligible = []string{"genesis_node_005"} }), want: "eligible=fail"},
		"no certificate":        {change: func(r *RestartReading) { r.EligibleKnown = false }, want: "eligible=unknown"},
		"fork":                  {change: only("001", func(r *RestartReading) { r.Common = &other }), want: "tips=fail"},
		"variable left":         {change: only("001", func(r *RestartReading) { r.OneShot = []string{"QNET_ROLLBACK_TO_HEIGHT"} }), want: "temporaries=fail"},
		"three operators":       {values: func(v *RestartValues) { v.Operators = []string{"ann", "bob", "eve"} }, want: "operators=unknown"},
		"three operators agree": {values: func(v *RestartValues) { v.Operators = []string{"ann", "bob", "eve"} }, told: []Told{said("bob", 9), said("eve", 9)}, want: ""},
		"one operator twice":    {values: func(v *RestartValues) { v.Operators = []string{"ann", "bob", "eve"} }, told: []Told{said("bob", 9), said("bob", 9)}, want: "operators=unknown"},
		"one operator differs":  {told: []Told{said("bob", 8)}, want: "operators=fail"},
		"of another record":     {told: []Told{{By: "bob", Record: "bb"}}, want: "operators=fail"},
	} {
		t.Run(name, func(t *testing.T) {
			v := testValues()
			if c.values != nil {
				c.values(&v)
			}
			before := restarted(11, 1010, c.change)
			if c.still {
				before = restarted(12, 1100, c.change)
			}
			var got []string
			for _, check := range JudgeRestart(v, before, restarted(12, 1100, c.change), 12, c.told) {
				if check.Verdict != observe.Pass {
					got = append(got, check.Name+"="+string(check.Verdict))
				}
				if check.Reason == "" {
					t.Errorf("check %s gives no reason", check.Name)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), c.want)
			}
		})
	}
}

// said is another operator's word on macroblock 12, of which the own nodes show 9.
func said(by string, b byte) Told {
	own := hashOfByte(9)
	return Told{By: by, Index: 12, Hash: hashOfByte(b), Record: "aa", Own: &own}
}

func TestCommonSealed(t *testing.T) {
	sealed := func(all ...uint64) (out []RestartReading) {
		for _, s := range all {
			out = append(out, RestartReading{Sealed: &s})
		}
		return append(out, RestartReading{}) // one that says nothing
	}
	for _, c := range []struct {
		readings []RestartReading
		want     uint64
	}{{sealed(30, 28, 27), 27}, {sealed(40, 20, 41), 40}, {sealed(20, 19), 0}, {sealed(), 0}} {
		if got := commonSealed(c.readings, 20); got != c.want { // compared at K or below, a fork above K would pass
			t.Errorf("%d, want %d", got, c.want)
		}
	}
}

func TestOneNodeAloneIsNoChain(t *testing.T) {
	v := testValues()
	checks := JudgeRestart(v, nil, nil, 0, nil)
	for _, c := range checks {
		if (c.Name == CheckBlocks || c.Name == CheckSeals) && c.Verdict != observe.Fail || c.Name == CheckTips && c.Verdict == observe.Pass {
			t.Errorf("nobody was looked at, and %s is %s", c.Name, c.Verdict)
		}
	}
}

func TestRestartLines(t *testing.T) {
	for line, want := range map[string]RestartLines{
		"[FATAL][RESTART] malformed_manifest err=restart_zero_hash — refusing to start":      {Malformed: "restart_zero_hash"},
		"[WARN][RESTART] manifest_active resume_from_mb=10 excluded=1":                       {Active: true, Resume: 10, Excluded: 1},
		"[ERR][SYNC] refused reason=v2_ws_pin_mismatch mb=11":                                {Mismatch: []string{"v2_ws_pin_mismatch"}},
		"[INFO][SYNC] waits reason=v2_qc_defer_anchor mb=11":                                 {},
		"[FATAL][RPC] Cannot bind port 8001: in use":                                         {Fatal: "Cannot bind port 8001: in use"},
		"[INFO][BFT2] macroblock_sealed window=11 round=33 head_h=990 signers=4 role=leader": {},
	} {
		var l RestartLines
		l.add(node.ParseLine(line))
		if l.Malformed != want.Malformed || l.Active != want.Active || l.Resume != want.Resume || l.Excluded != want.Excluded || !slices.Equal(l.Mismatch, want.Mismatch) || l.Fatal != want.Fatal {
			t.Errorf("%s: %+v", line, l)
		}
	}
}

func TestSurvivors(t *testing.T) {
	v := testValues()
	for _, c := range []struct {
		ready   []string
		enough  bool
		missing int
	}{{nil, false, 4}, {[]string{"n1", "n1", "n2"}, false, 2}, {[]string{"n1", "n2", "n3"}, true, 1}, {[]string{"n1", "n2", "genesis_node_005", "stranger"}, false, 2}} {
		if s := v.count(c.ready); s.Enough() != c.enough || len(s.Missing) != c.missing {
			t.Errorf("%v: %s", c.ready, s)
		}
	}
	v.Needed = 0
	if v.count(v.Remaining).Enough() {
		t.Error("a threshold that is not known was reached")
	}
}

func TestRetire(t *testing.T) {
	v := testValues()
	for _, c := range []struct {
		sealed uint64
		change func(r *RestartReading)
		ok     bool
		left   string
	}{
		{10 + 159, nil, false, "90"},
		{10 + 160, nil, true, "0"},
		{10 + 160, only("002", func(r *RestartReading) { r.Sealed = nil }), false, "?"},
		{10 + 200, only("002", func(r *RestartReading) { r.Lines.Mismatch = []string{"v2_below_ws"} }), false, "0"},
	} {
		after := restarted(c.sealed, c.sealed*90+7, c.change)
		doc := verdictOf(v, "ann", restarted(c.sealed-1, c.sealed*90, c.change), after, c.sealed, nil)
		got := Retire(v, doc)
		if got.OK != c.ok || number(got.Left) != c.left {
			t.Errorf("sealed %d: ok %v, left %s, %+v", c.sealed, got.OK, number(got.Left), got.Checks)
		}
		if got.Cleared.Pin != v.Manifest.Pin || got.Cleared.Active() || len(got.Cleared.Restart.Excluded) > 0 || !got.Kept.Equal(v.Manifest) {
			t.Errorf("manifests %+v, %+v", got.Cleared, got.Kept)
		}
	}
}

func TestDecodeRestartVerify(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"schema":"qnetops/restart-verify/v1","operator":"bob"}`:                                                   true,
		`{"schema":"qnetops/restart-verify/v1"}`:                                                                    false,
		`{"schema":"qnetops/restart-verify/v1","operator":"bob","index":4}`:                                         false,
		`{"schema":"qnetops/restart-verify/v1","operator":"bob","index":4,"hash":"` + hashOfByte(3).String() + `"}`: true,
		`{"schema":"qnetops/status/v1","operator":"bob"}`:                                                           false,
		`no`: false,
	} {
		if _, err := DecodeRestartVerify([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
