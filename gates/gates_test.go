package gates

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/node"
)

const tree = "testdata/tree"

// facts are the values of facts 6.4, in the order of the source.
var facts = []struct {
	feature string
	height  uint64
}{
	{"burn_attestation_required", 0}, {"registry_root_required", 0}, {"light_reg_epoch_roster", 0}, {"logs_root_required", 0},
	{"reward_epoch_root_required", 0}, {"light_key_commitment", 691_200}, {"light_shard_backup_owners", 691_200}, {"gas_metering", 100_000},
	{"slot_gap_reanchor", 1_339_200}, {"contract_gas_signed", 1_497_600}, {"microblock_sig_raw", 1_612_800}, {"tx_target_bound", 3_657_600},
	{"wallet_one_node", 3_657_600}, {"failover_tenure_bound", 3_657_600},
}

func load(t *testing.T, spec string) Set {
	t.Helper()
	s, err := Load(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func matchesFacts(t *testing.T, s Set) {
	t.Helper()
	if len(s.Gates) != len(facts) {
		t.Errorf("%d gates, want %d: %+v", len(s.Gates), len(facts), s.Gates)
		return
	}
	for i, want := range facts {
		g := s.Gates[i]
		if g.Feature != want.feature || g.Height == nil || *g.Height != want.height {
			t.Errorf("gate %d: %s %s (%s), want %s %d", i, g.Feature, show(g.Height), g.Why, want.feature, want.height)
		}
	}
}

func TestTheWholeGrammar(t *testing.T) {
	for _, spec := range []string{tree, tree + "/core/qnet-state", tree + "/core/qnet-state/src", tree + "/" + File} {
		matchesFacts(t, load(t, spec))
	}
	s := load(t, tree)
	if len(s.IDs) != len(facts)+1 || s.IDs[len(facts)].Feature != "recency_span_epoch" || len(s.Idle) != 0 {
		t.Errorf("ids %+v, idle %+v", s.IDs, s.Idle)
	}
	src, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(File)))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(src), "\n")
	for _, g := range s.Gates {
		if entry := lines[g.Line-1]; !strings.HasPrefix(entry, "    (id::") || !strings.Contains(strings.ToLower(entry), g.Feature) {
			t.Errorf("%s: line %d is %q", g.Feature, g.Line, entry)
		}
	}
	// where the number is written: behind a function in another file, behind another constant, in the entry itself
	for feature, want := range map[string]string{"gas_metering": "GAS_METERING_ACTIVATION_HEIGHT", "wallet_one_node": "TX_TARGET_BOUND_GATE_HEIGHT", "reward_epoch_root_required": ""} {
		g, _ := s.Gate(feature)
		if g.Const != want {
			t.Errorf("%s: constant %q in %s:%d, want %q", feature, g.Const, g.File, g.At, want)
		}
	}
	if g, _ := s.Gate("gas_metering"); filepath.Base(g.File) != "transaction.rs" || g.At != 4 {
		t.Errorf("gas_metering stands in %s:%d", g.File, g.At)
	}
}

func TestTheOlderForm(t *testing.T) {
	s := load(t, "testdata/older.rs")
	if len(s.Gates) != 2 || s.Gates[1].Feature != "logs_root_required" || *s.Gates[1].Height != 14_400 || len(s.IDs) != 0 {
		t.Errorf("%+v", s)
	}
	if s, err := Parse("empty.rs", []byte("const ACTIVATIONS: &[(&str, u64)] = &[];")); err != nil || len(s.Gates) != 0 {
		t.Errorf("an empty list: %+v, %v", s, err)
	}
}

// A file alone cannot follow the height into another module: it says so, and the other gates stay readable.
func TestAFileAloneLeavesOneGateUnreadable(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(File)))
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "feature_gates.rs")
	if err := os.WriteFile(alone, src, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := load(t, alone).Unreadable()
	if len(bad) != 1 || bad[0].Feature != "gas_metering" || !strings.Contains(bad[0].Why, "transaction") {
		t.Errorf("unreadable: %+v", bad)
	}
	// CRLF and a byte order mark change nothing
	for _, variant := range []string{"\xef\xbb\xbf" + string(src), strings.ReplaceAll(string(src), "\n", "\r\n")} {
		s, err := parse("v.rs", []byte(variant), func(string) ([]byte, string, error) {
			return []byte("pub const GAS_METERING_ACTIVATION_HEIGHT: u64 = 100_000;\r\n"), "transaction.rs", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		matchesFacts(t, s)
	}
}

func TestUnreadableHeightsAndIDs(t *testing.T) {
	for _, c := range []struct{ name, src, why string }{
		{"arithmetic", `const ACTIVATIONS: &[(&str, u64)] = &[("a", 254 * 14_400)];`, "not understood"},
		{"negative", `const ACTIVATIONS: &[(&str, u64)] = &[("a", -1)];`, "not understood"},
		{"too large", `const ACTIVATIONS: &[(&str, u64)] = &[("a", 99999999999999999999)];`, "does not fit"},
		{"other type", `const ACTIVATIONS: &[(&str, u64)] = &[("a", 5i64)];`, "whole number"},
		{"missing constant", `const ACTIVATIONS: &[(&str, u64)] = &[("a", B)];`, "not defined exactly once"},
		{"commented-out constant", "// const B: u64 = 5;\nconst ACTIVATIONS: &[(&str, u64)] = &[(\"a\", B)];", "not defined exactly once"},
		{"doubled constant", `const B: u64 = 1; const B: u64 = 2; const ACTIVATIONS: &[(&str, u64)] = &[("a", B)];`, "not defined exactly once"},
		{"constant of another type", `const B: u32 = 1; const ACTIVATIONS: &[(&str, u64)] = &[("a", B)];`, "not a u64"},
		{"circle", `const B: u64 = C; const C: u64 = B; const ACTIVATIONS: &[(&str, u64)] = &[("a", B)];`, "by itself"},
		{"circle of functions", `const fn b() -> u64 { b() } const ACTIVATIONS: &[(&str, u64)] = &[("a", b())];`, "by itself"},
		{"function with more", `const fn b() -> u64 { let x = 1; x } const ACTIVATIONS: &[(&str, u64)] = &[("a", b())];`, "not understood"},
		{"condition", `#[cfg(feature = "net")] const B: u64 = 1; const ACTIVATIONS: &[(&str, u64)] = &[("a", B)];`, "attribute decides"},
		{"condition on the entry", `const ACTIVATIONS: &[(&str, u64)] = &[#[cfg(x)] ("a", 1)];`, "attribute decides"},
		{"foreign module", `const ACTIVATIONS: &[(&str, u64)] = &[("a", other::x::B)];`, "cannot be followed"},
		{"missing id", `mod id { } const ACTIVATIONS: &[(&str, u64)] = &[(id::A, 1)];`, "not defined once"},
		{"id in a comment", "mod id { /* pub const A: &str = \"a\"; */ }\nconst ACTIVATIONS: &[(&str, u64)] = &[(id::A, 1)];", "not defined once"},
		{"id that is no string", `mod id { pub const A: &str = concat!("a"); } const ACTIVATIONS: &[(&str, u64)] = &[(id::A, 1)];`, "not a string"},
		{"no pair", `const ACTIVATIONS: &[(&str, u64)] = &[("a", 1, 2)];`, "exactly an id"},
		{"no parentheses", `const ACTIVATIONS: &[(&str, u64)] = &[pair("a", 1)];`, "not a pair"},
	} {
		s, err := Parse("x.rs", []byte(c.src))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		bad := s.Unreadable()
		if len(bad) != 1 || !strings.Contains(bad[0].Why, c.why) || bad[0].Line == 0 {
			t.Errorf("%s: %+v", c.name, s.Gates)
			continue
		}
		if g := bad[0]; g.State(new(uint64)) != Unknown {
			t.Errorf("%s: state %s", c.name, g.State(new(uint64)))
		}
		if got := Check(s, s, 0).Findings; len(got) != 1 || got[0].Code != Unreadable || got[0].Severity != Refuse {
			t.Errorf("%s: check says %+v", c.name, got)
		}
	}
}

func TestNoListIsAFaultWithAPlace(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(File)))
	if err != nil {
		t.Fatal(err)
	}
	cut := whole[:strings.Index(string(whole), "(id::WALLET_ONE_NODE")]
	for _, c := range []struct{ name, src, want string }{
		{"prose only", "//! const ACTIVATIONS: &[(&str, u64)] = &[(\"a\", 1)];\n", "x.rs: ACTIVATIONS: there is no constant"},
		{"empty file", "", "x.rs: ACTIVATIONS: there is no constant"},
		{"in a string", `const S: &str = "const ACTIVATIONS: &[(&str, u64)] = &[];";`, "there is no constant"},
		{"in a test module", "mod tests { const ACTIVATIONS: &[(&str, u64)] = &[]; }", "there is no constant"},
		{"twice", "const ACTIVATIONS: &[u8] = &[];\nconst ACTIVATIONS: &[u8] = &[];", "lines 1 and 2"},
		{"under a condition", "\n#[cfg(a)]\nconst ACTIVATIONS: &[u8] = &[];", "x.rs:3:7: ACTIVATIONS: an attribute"},
		{"another form", "const ACTIVATIONS: &[(&str, u64)] = LIST;", "x.rs:1:7: ACTIVATIONS: is not a list"},
		{"cut off", string(cut), "never closed"},
		{"not UTF-8", "//\xff\n", "x.rs:1:3: byte 0xff"},
		{"UTF-16", "\xff\xfe/\x00", "UTF-16"},
	} {
		_, err := Parse("x.rs", []byte(c.src))
		var p tomlfile.Problems
		if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestProposals(t *testing.T) {
	raw, err := os.ReadFile("testdata/heights.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Tip, Lead, Gate, Epoch, Ahead uint64
		Rendered                      string
	}
	if err := json.Unmarshal(raw, &cases); err != nil || len(cases) < 8 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		p, ok := Propose(c.Tip)
		if !ok || c.Lead != node.GateLead || p.Height != c.Gate || p.Epoch != c.Epoch || p.Ahead != c.Ahead || node.Underscored(p.Height) != c.Rendered {
			t.Errorf("tip %d: %+v, want %+v", c.Tip, p, c)
		}
	}
	if _, ok := Propose(^uint64(0)); ok {
		t.Error("a height beyond 64 bits was proposed")
	}
	// what is proposed passes the check
	for tip := uint64(0); tip < 3*node.EpochBlocks; tip += 977 {
		p, _ := Propose(tip)
		report := Check(set(), set("x", p.Height), tip)
		if !report.OK() || len(report.Findings) > 0 {
			t.Fatalf("tip %d: %+v", tip, report.Findings)
		}
	}
}

// set builds a build from pairs of feature and height; a negative height is unreadable.
func set(pairs ...any) Set {
	s := Set{Source: "set"}
	for i := 0; i < len(pairs); i += 2 {
		g := Gate{Feature: pairs[i].(string), Line: i + 1}
		switch h := pairs[i+1].(type) {
		case int:
			if h >= 0 {
				v := uint64(h)
				g.Height = &v
			} else {
				g.Why = "odd"
			}
		case uint64:
			g.Height = &h
		}
		s.Gates = append(s.Gates, g)
		s.IDs = append(s.IDs, ID{Feature: g.Feature})
	}
	return s
}

func (s Set) with(ids ...string) Set {
	for _, id := range ids {
		s.IDs = append(s.IDs, ID{Feature: id})
	}
	return s
}

func TestCheck(t *testing.T) {
	const tip = 3_213_731                        // the tip of facts 6.4
	const edge = tip + node.GateMargin           // 3,242,531: the last frozen height
	const boundary = 3_254_400                   // 226 epochs, above the edge
	const far = boundary + 42*node.EpochBlocks*2 // well above the lead
	for _, c := range []struct {
		name     string
		old, now Set
		tip      uint64
		want     string
	}{
		{"nothing changes", set("a", 100_000, "b", far), set("a", 100_000, "b", far), tip, ""},
		{"crossed gate moved up", set("a", 1_584_000), set("a", far), tip, "a crossed_frozen refuse"},
		{"crossed gate moved down", set("a", 1_584_000), set("a", 0), tip, "a crossed_frozen refuse"},
		{"gate from genesis given a height", set("a", 0), set("a", far), tip, "a crossed_frozen refuse"},
		{"gate at the tip", set("a", tip), set("a", far), tip, "a crossed_frozen refuse"},
		{"old height at the edge", set("a", edge), set("a", far), tip, "a crossed_frozen refuse"},
		{"old height just above the edge", set("a", edge+1), set("a", far), tip, ""},
		{"frozen is said before too near", set("a", 1_584_000), set("a", 1_612_800), 1_590_000, "a crossed_frozen refuse"},
		{"frozen is said before unreadable", set("a", 14_400), set("a", -1), tip, "a crossed_frozen refuse"},
		{"pending gate moved to the edge", set("a", far), set("a", edge), tip, "a too_near refuse,a off_boundary refuse"},
		{"pending gate moved below the tip", set("a", far), set("a", 14_400), tip, "a too_near refuse"},
		{"new gate at zero is born active", set(), set("a", 0), tip, "a too_near refuse"},
		{"new gate at the edge on a boundary", set(), set("a", 2*node.EpochBlocks), 0, "a too_near refuse"},
		{"new gate above the edge is short of the lead", set(), set("a", boundary), tip, "a lead_short warn"},
		{"the source's own choice of five days", set(), set("a", 3_657_600), tip, "a lead_short warn"},
		{"new gate at the lead", set(), set("a", 604_800), 0, ""},
		{"new gate just short of the lead", set(), set("a", 604_800), 1, "a lead_short warn"},
		{"new gate far away off the boundary", set(), set("a", far+1), tip, "a off_boundary refuse"},
		{"gate ahead off the boundary, unchanged", set("a", far+90), set("a", far+90), tip, "a off_boundary refuse"},
		{"old gate off the boundary, unchanged", set("a", 100_000), set("a", 100_000), tip, ""},
		{"gate near the tip, unchanged", set("a", boundary), set("a", boundary), boundary - 1, ""},
		{"gate removed", set("a", far), set(), tip, "a removed refuse"},
		{"crossed gate removed", set("a", 14_400), set(), tip, "a removed refuse"},
		{"crossed gate removed, id kept", set("a", 14_400), set().with("a"), tip, "a removed refuse"},
		{"gate at zero removed", set("a", 0), set(), tip, ""},
		{"unreadable gate removed", set("a", -1), set(), tip, "a removed refuse"},
		{"new height unreadable", set("a", far), set("a", -1), tip, "a unreadable refuse"},
		{"old height unreadable", set("a", -1), set("a", far), tip, "a unreadable refuse"},
		{"both unreadable", set("a", -1), set("a", -1), tip, "a unreadable refuse"},
		{"listed twice", set("a", 14_400), set("a", 14_400, "a", 14_400), tip, "a duplicate refuse"},
		{"the first of two counts", set("a", 14_400), set("a", far, "a", 14_400), tip, "a crossed_frozen refuse,a duplicate refuse"},
		{"new id without an entry", set(), set().with("a"), tip, "a no_entry refuse"},
		{"old id without an entry", set().with("a"), set().with("a"), tip, ""},
		{"id from genesis given a height", set().with("a"), set("a", far), tip, "a crossed_frozen refuse"},
		{"id from genesis listed at zero", set().with("a"), set("a", 0), tip, ""},
		{"order broken by a move", set("tx_target_bound", far, "wallet_one_node", far), set("tx_target_bound", far+14_400, "wallet_one_node", far), tip, "wallet_one_node order refuse"},
		{"order kept", set("tx_target_bound", far, "wallet_one_node", far), set("tx_target_bound", far, "wallet_one_node", far+14_400), tip, ""},
		{"order of history is left alone", set("tx_target_bound", 28_800, "wallet_one_node", 14_400), set("tx_target_bound", 28_800, "wallet_one_node", 14_400), tip, ""},
		{"light gates part", set(), set("light_key_commitment", far, "light_shard_backup_owners", far+14_400), tip, "light_shard_backup_owners order refuse"},
		{"tip beyond all", set(), set("a", far), ^uint64(0), "a too_near refuse"},
		{"never", set(), set("a", ^uint64(0)), tip, "a off_boundary refuse"},
	} {
		report := Check(c.old, c.now, c.tip)
		var got []string
		ok := true
		for _, f := range report.Findings {
			got = append(got, fmt.Sprintf("%s %s %s", f.Feature, f.Code, f.Severity))
			ok = ok && f.Severity == Warn
			if f.Text == "" {
				t.Errorf("%s: %s has no text", c.name, f.Code)
			}
		}
		if strings.Join(got, ",") != c.want || report.OK() != ok {
			t.Errorf("%s: %s, want %s", c.name, strings.Join(got, ","), c.want)
		}
	}
}

// The real list passes against itself at the tip of the facts, and its changes are what happened between its versions.
func TestTheRealListPasses(t *testing.T) {
	s := load(t, tree)
	if r := Check(s, s, 3_213_731); len(r.Findings)+len(r.Changes) > 0 {
		t.Errorf("%+v", r)
	}
	// one move, and what a script has to tell about it
	moved := load(t, tree)
	h := uint64(3_830_400)
	for i := range moved.Gates {
		if *moved.Gates[i].Height == 3_657_600 {
			moved.Gates[i].Height = &h
		}
	}
	r := Check(s, moved, 3_213_731)
	if !r.OK() || len(r.Changes) != 3 || r.Changes[0].Kind != "moved" || !strings.Contains(r.Summary(), "3 gates changed") {
		t.Errorf("%+v %s", r, r.Summary())
	}
	// at a later tip the same move comes too late
	r = Check(s, moved, 3_657_600-node.GateMargin)
	if r.OK() || r.Findings[0].Code != CrossedFrozen || !strings.Contains(r.Summary(), "crossed_frozen") {
		t.Errorf("%+v", r)
	}
}

func TestStatesAndCrossings(t *testing.T) {
	s := set("zero", 0, "at", 100, "next", 101, "far", 200, "next", 50, "odd", -1)
	tip := uint64(100)
	var states []string
	for _, g := range s.Gates {
		states = append(states, string(g.State(&tip)))
	}
	if got := strings.Join(states, " "); got != "active active pending pending active unknown" {
		t.Error(got)
	}
	if s.Gates[0].State(nil) != Unknown {
		t.Error("a state without a tip")
	}
	names := func(gates []Gate) (out []string) {
		for _, g := range gates {
			out = append(out, g.Feature)
		}
		return out
	}
	for blocks, want := range map[uint64][]string{0: nil, 1: {"next"}, 99: {"next"}, 100: {"next", "far"}, ^uint64(0): {"next", "far"}} {
		if got := names(WouldCross(s, tip, blocks)); !slices.Equal(got, want) {
			t.Errorf("within %d blocks: %v, want %v", blocks, got, want)
		}
	}
	now := time.Date(2026, 10, 7, 0, 0, 0, 0, time.UTC)
	e := Expect(3_657_600, 3_225_600, time.Second, now)
	if e == nil || e.Blocks != 432_000 || !e.At.Equal(now.AddDate(0, 0, 5)) || !e.Earliest.Equal(now.AddDate(0, 0, 1)) {
		t.Errorf("%+v", e)
	}
	if Expect(5, 5, time.Second, now) != nil || Expect(^uint64(0), 0, time.Second, now) != nil {
		t.Error("a date for a height that is reached, or beyond all dates")
	}
}

// repository makes a git repository with the tree in its first commit and a moved gate in the second.
func repository(t *testing.T) (dir string, commits []string) {
	t.Helper()
	program := need.Program(t, "git")[0]
	dir = t.TempDir()
	run := func(args ...string) string {
		cmd := exec.Command(program, append([]string{"-C", dir, "-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q")
	if err := os.CopyFS(dir, os.DirFS(tree)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, filepath.FromSlash(File))
	for _, h := range []string{"3_657_600", "3_830_400"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(data), "3_657_600", h)), 0o600); err != nil {
			t.Fatal(err)
		}
		run("add", "-A")
		run("commit", "-q", "-m", h)
		commits = append(commits, run("rev-parse", "HEAD"))
	}
	run("branch", "deadbeef")
	run("tag", "v1.0")
	return dir, commits
}

func TestRevisions(t *testing.T) {
	dir, commits := repository(t)
	t.Setenv("GIT_DIR", filepath.Join(t.TempDir(), "elsewhere")) // a caller's own git must not be asked
	for i, want := range []uint64{3_657_600, 3_830_400} {
		for _, id := range []string{commits[i], commits[i][:7]} {
			s := load(t, dir+"@"+id)
			g, _ := s.Gate("failover_tenure_bound")
			gas, _ := s.Gate("gas_metering")
			if *g.Height != want || s.Commit != commits[i] || gas.Height == nil || *gas.Height != 100_000 {
				t.Errorf("%s: %s, %s, commit %s", id, show(g.Height), show(gas.Height), s.Commit)
			}
		}
	}
	matchesFacts(t, load(t, dir+"/core/qnet-state@"+commits[0][:9]))
	for _, c := range []struct{ spec, want string }{
		{dir + "@", "is no commit id"}, // git would read the index
		{dir + "@HEAD", "is no commit id"},
		{dir + "@v1.0", "is no commit id"},
		{dir + "@" + strings.ToUpper(commits[0]), "is no commit id"},
		{dir + "@" + commits[0][:6], "is no commit id"},
		{dir + "@--output=x", "is no commit id"},
		{dir + "@0123456789", "no such commit"},
		{dir + "@deadbeef", "branch or tag"},
		{t.TempDir() + "@" + commits[0], "no such commit"},
		{filepath.Join(dir, "core") + "@" + commits[0], "holds no"},
		{t.TempDir(), "holds no"},
		{filepath.Join(dir, "nothing.rs"), "no such file"},
	} {
		_, err := Load(t.Context(), c.spec)
		var source *SourceError
		if !errors.As(err, &source) || !strings.Contains(err.Error(), c.want) || source.Hint() == "" {
			t.Errorf("%s: %v, want %q", c.spec, err, c.want)
		}
	}
}

// FuzzParse: whatever the file holds, nothing breaks and no height comes from a comment.
func FuzzParse(f *testing.F) {
	src, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(File)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(src)
	f.Add([]byte(`const ACTIVATIONS: &[(&str, u64)] = &[("a", 1), #[x] (b::C, d()),];`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("x.rs", data)
		if err != nil {
			return
		}
		for _, g := range s.Gates {
			if (g.Height == nil) == (g.Why == "") {
				t.Fatalf("%+v", g)
			}
		}
		Check(s, s, 5)
		commented, err := Parse("x.rs", append([]byte("// const ACTIVATIONS: &[(&str, u64)] = &[(\"ghost\", 1)];\n"), data...))
		if err == nil && len(commented.Gates) != len(s.Gates) {
			t.Fatal("a comment was read")
		}
	})
}
