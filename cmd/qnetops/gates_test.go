package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
)

const gatesTree = "../../gates/testdata/tree"

// runLine runs one command line of the program.
func runLine(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	s, o, e := testStreams(t)
	code = Main(context.Background(), append([]string{"qnetops"}, args...), s)
	return o.String(), e.String(), code
}

// answer runs a command with -o json and decodes its document.
func answer(t *testing.T, want int, args ...string) map[string]any {
	t.Helper()
	out, errs, code := runLine(t, append(args, "-o", "json")...)
	if code != want {
		t.Fatalf("%v: exit %d, want %d\n%s%s", args, code, want, out, errs)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return doc
}

// moved copies the source tree with one text replaced.
func moved(t *testing.T, old, now string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(gatesTree)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "core", "qnet-state", "src", "feature_gates.rs")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("the tree has no %q", old)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(data), old, now)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestGatesList(t *testing.T) {
	doc := answer(t, exitDone, "gates", "list", gatesTree, "--tip", "3_213_731")
	list := doc["gates"].([]any)
	if doc["tip"] != 3213731.0 || len(list) != 14 {
		t.Fatalf("%v", doc)
	}
	for i, want := range map[int]map[string]any{
		7:  {"feature": "gas_metering", "height": 100000.0, "epoch": 6.0, "state": "active", "blocks": nil, "expected_at": nil},
		11: {"feature": "tx_target_bound", "height": 3657600.0, "epoch": 254.0, "state": "pending", "blocks": 443869.0},
	} {
		gate := list[i].(map[string]any)
		for key, value := range want {
			if gate[key] != value {
				t.Errorf("gate %d: %s is %v, want %v", i, key, gate[key], value)
			}
		}
		if gate["line"].(float64) == 0 {
			t.Errorf("gate %d has no line", i)
		}
	}
	at, err := time.Parse(time.RFC3339, list[11].(map[string]any)["expected_at"].(string))
	if off := time.Until(at) - 443869*time.Second; err != nil || off < -time.Minute || off > time.Minute {
		t.Errorf("expected at %v, %v", at, err)
	}
	out, _, code := runLine(t, "gates", "list", gatesTree, "--tip", "3213731")
	for _, say := range []string{"1_612_800", "tx_target_bound", "443869", "five times faster"} {
		if code != exitDone || !strings.Contains(out, say) {
			t.Errorf("exit %d, does not say %q:\n%s", code, say, out)
		}
	}
	// no inventory and no tip: heights, and no state
	doc = answer(t, exitDone, "gates", "list", gatesTree)
	if gate := doc["gates"].([]any)[0].(map[string]any); doc["tip"] != nil || gate["state"] != "unknown" {
		t.Errorf("%v", doc)
	}
}

func TestGatesProposeAndCheck(t *testing.T) {
	doc := answer(t, exitDone, "gates", "propose", "--tip", "3213731")
	if doc["gate"] != 3830400.0 || doc["epoch"] != 266.0 || doc["ahead"] != 616669.0 || doc["tip"] != 3213731.0 {
		t.Errorf("%v", doc)
	}
	if out, _, code := runLine(t, "gates", "propose", "--tip", "3213731"); code != exitDone || !strings.HasPrefix(out, "3_830_400\n") {
		t.Errorf("exit %d: %s", code, out)
	}
	far := moved(t, "3_657_600", "3_830_400")
	doc = answer(t, exitDone, "gates", "check", gatesTree, far, "--tip", "3213731")
	if doc["ok"] != true || len(doc["findings"].([]any)) != 0 || len(doc["changes"].([]any)) != 3 {
		t.Errorf("%v", doc)
	}
	doc = answer(t, exitRefused, "gates", "check", gatesTree, far, "--tip", "3657000")
	first := doc["findings"].([]any)[0].(map[string]any)
	if doc["ok"] != false || first["code"] != "crossed_frozen" || first["severity"] != "refuse" || first["old"] != 3657600.0 || first["new"] != 3830400.0 || first["feature"] != "tx_target_bound" {
		t.Errorf("%v", doc)
	}
	out, errs, code := runLine(t, "gates", "check", gatesTree, moved(t, "(id::SLOT_GAP_REANCHOR, SLOT_GAP_REANCHOR_GATE_HEIGHT),", ""), "--tip", "3213731")
	if code != exitRefused || !strings.Contains(out, "refuse removed slot_gap_reanchor") || !strings.Contains(errs, "hint:") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	doc = answer(t, exitDone, "gates", "check", moved(t, "3_657_600", "4_320_000"), gatesTree, "--tip", "3213731")
	if f := doc["findings"].([]any); doc["ok"] != true || len(f) != 3 || f[0].(map[string]any)["code"] != "lead_short" || f[0].(map[string]any)["severity"] != "warn" {
		t.Errorf("%v", doc)
	}
}

// Two revisions of one repository, as an operator has them before a roll.
func TestGatesOfRevisions(t *testing.T) {
	git := need.Program(t, "git")[0]
	dir := moved(t, "//! Test", "//! A test")
	commit := func() string {
		var id []byte
		for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-q", "-m", "x", "--no-gpg-sign"}, {"rev-parse", "HEAD"}} {
			out, err := exec.Command(git, append([]string{"-C", dir}, args...)...).Output()
			if err != nil {
				t.Fatalf("git %v: %v", args, err)
			}
			id = out
		}
		return strings.TrimSpace(string(id))
	}
	old := commit()
	file := filepath.Join(dir, "core", "qnet-state", "src", "feature_gates.rs")
	data, _ := os.ReadFile(file)
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(data), "3_657_600", "3_830_400")), 0o600); err != nil {
		t.Fatal(err)
	}
	doc := answer(t, exitDone, "gates", "check", dir+"@"+old[:7], dir+"@"+commit(), "--tip", "3213731")
	if len(doc["changes"].([]any)) != 3 {
		t.Errorf("%v", doc)
	}
	if list := answer(t, exitDone, "gates", "list", dir+"@"+old, "--tip", "1"); list["commit"] != old {
		t.Errorf("%v", list)
	}
}

func TestGatesFaults(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	prose := file("prose.rs", "//! const ACTIVATIONS: &[(&str, u64)] = &[(\"a\", 1)];\n")
	odd := file("odd.rs", "const ACTIVATIONS: &[(&str, u64)] = &[\n    (\"a\", 2 * 7),\n];\n")
	for _, c := range []struct {
		args []string
		code int
		say  []string
	}{
		{[]string{"gates"}, exitUsage, []string{"list, propose, check"}},
		{[]string{"gates", "list"}, exitUsage, []string{"exactly one"}},
		{[]string{"gates", "list", filepath.Join(dir, "absent")}, exitUsage, []string{"absent", "no such file", "hint:"}},
		{[]string{"gates", "list", dir}, exitUsage, []string{"holds no"}},
		{[]string{"gates", "list", dir + "@"}, exitUsage, []string{"no commit id"}},
		{[]string{"gates", "list", prose}, exitUsage, []string{"prose.rs", "no constant ACTIVATIONS"}},
		{[]string{"gates", "list", file("cut.rs", "const ACTIVATIONS: &[(&str, u64)] = &[\n(\"a\", 1),\n")}, exitUsage, []string{"cut.rs:1:38", "never closed"}},
		{[]string{"gates", "list", file("bytes.rs", "//! \xff\n")}, exitUsage, []string{"bytes.rs:1:5", "not UTF-8"}},
		{[]string{"gates", "list", odd}, exitUsage, []string{"unknown", "odd.rs:2: a", "not understood"}},
		{[]string{"gates", "list", gatesTree, "--tip", "-5"}, exitUsage, []string{"--tip"}},
		{[]string{"gates", "propose"}, exitUsage, []string{"tip is not known", "--tip H"}},
		{[]string{"gates", "propose", "--tip", "18446744073709551615"}, exitUsage, []string{"no epoch boundary"}},
		{[]string{"gates", "propose", "--hosts", filepath.Join(dir, "absent.toml")}, exitUsage, []string{"absent.toml"}},
		{[]string{"gates", "check", gatesTree}, exitUsage, []string{"OLD NEW"}},
		{[]string{"gates", "check", gatesTree, odd, "--tip", "1"}, exitRefused, []string{"unreadable a"}},
		{[]string{"gates", "check", prose, filepath.Join(dir, "absent"), "--tip", "1"}, exitUsage, []string{"prose.rs", "absent"}},
	} {
		out, errs, code := runLine(t, c.args...)
		for _, say := range c.say {
			if code != c.code || !strings.Contains(out+errs, say) {
				t.Errorf("%v: exit %d, want %d and %q:\n%s%s", c.args, code, c.code, say, out, errs)
			}
		}
	}
}

// The tip is the highest of the whole inventory, whatever --only says, and a node that is down is named.
func TestTheTipComesFromTheWholeFleet(t *testing.T) {
	dir := t.TempDir()
	l, err := startProcessLab(lab.Config{Nodes: 4, Block: 50 * time.Millisecond, Dir: dir, History: labHistory})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hosts := filepath.Join(dir, lab.HostsFile)
	doc := answer(t, exitDone, "gates", "propose", "--hosts", hosts, "--only", "002")
	tip := uint64(doc["tip"].(float64))
	if want := node.ProposeGate(tip, node.GateLead); tip < labHistory || uint64(doc["gate"].(float64)) != want.Height {
		t.Errorf("%v, want %+v", doc, want)
	}
	if doc = answer(t, exitDone, "gates", "list", gatesTree, "--hosts", hosts); doc["gates"].([]any)[0].(map[string]any)["state"] != "active" {
		t.Errorf("%v", doc)
	}
	l.Close()
	_, errs, code := runLine(t, "gates", "propose", "--hosts", hosts)
	if code != exitError || !strings.Contains(errs, "001") || !strings.Contains(errs, "no node of the inventory") {
		t.Errorf("nobody answers: exit %d\n%s", code, errs)
	}
}

func TestHighest(t *testing.T) {
	s, _, errs := testStreams(t)
	tip := highest(s, map[string]uint64{"001": 10, "002": 12, "003": 11}, map[string]error{"004": context.DeadlineExceeded})
	if tip == nil || *tip != 12 || !strings.Contains(errs.String(), "004: no height") || strings.Contains(errs.String(), "epoch") {
		t.Errorf("%v %s", tip, errs)
	}
	if tip = highest(s, map[string]uint64{"001": 10, "002": 99999}, nil); *tip != 99999 || !strings.Contains(errs.String(), "002 says 99999") {
		t.Errorf("%v %s", tip, errs)
	}
	if highest(s, nil, nil) != nil {
		t.Error("a tip of nobody")
	}
}

// goodManifest writes the vectors' good manifest in its three forms.
func goodManifest(t *testing.T) (dir string, m manifest.Manifest) {
	t.Helper()
	raw, err := os.ReadFile("../../manifest/testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Desc     string
		Pin      [2]any    `json:"WS_CHECKPOINT"`
		Anchor   node.Hash `json:"DIGEST_ANCHOR"`
		Pred     node.Hash `json:"DIGEST_PRED"`
		Index    uint64    `json:"resume_from_mb"`
		Hash     node.Hash `json:"resume_mb_hash"`
		Excluded []string  `json:"excluded"`
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if c.Desc == "good" {
			m = manifest.Manifest{Restart: manifest.Restart{ResumeFromMB: c.Index, ResumeMBHash: c.Hash, Excluded: c.Excluded}, Pin: manifest.Pin{Index: c.Index, Hash: c.Hash, DigestAnchor: c.Anchor, DigestPred: c.Pred}}
		}
	}
	text, err := m.TOML()
	if err != nil || !m.Active() {
		t.Fatalf("%+v %v", m, err)
	}
	dir = t.TempDir()
	doc, _ := m.JSON()
	for name, data := range map[string][]byte{"m.toml": text, "m.json": doc, "m.rs": []byte(manifest.Render(m))} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, m
}

func TestManifestCommands(t *testing.T) {
	dir, m := goodManifest(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, form := range []string{"m.toml", "m.json", "m.rs"} {
		if doc := answer(t, exitDone, "manifest", "validate", at(form)); doc["ok"] != true || len(doc["errors"].([]any)) != 0 {
			t.Errorf("%s: %v", form, doc)
		}
		out, _, code := runLine(t, "manifest", "render", at(form))
		if code != exitDone || out != manifest.Render(m) {
			t.Errorf("%s: exit %d\n%s", form, code, out)
		}
		if doc := answer(t, exitDone, "manifest", "diff", at("m.toml"), at(form), "--check"); doc["equal"] != true {
			t.Errorf("%s: %v", form, doc)
		}
	}
	// parse gives the file back, in both forms
	for flag, want := range map[string]string{"table": "m.toml", "json": "m.json"} {
		out, _, code := runLine(t, "manifest", "parse", at("m.rs"), "-o", flag)
		if text, _ := os.ReadFile(at(want)); code != exitDone || out != string(text) {
			t.Errorf("-o %s: exit %d\n%s", flag, code, out)
		}
	}
	// a patch of the node's source is what git takes
	git := need.Program(t, "git")[0]
	src, err := os.ReadFile("../../manifest/testdata/genesis_constants.rs")
	if err != nil {
		t.Fatal(err)
	}
	file := at("genesis_constants.rs")
	if err := os.WriteFile(file, src, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	out, errs, code := runLine(t, "manifest", "render", "m.toml", "--patch", "genesis_constants.rs")
	if code != exitDone {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	cmd := exec.Command(git, "apply", "-")
	cmd.Stdin = strings.NewReader(out)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, said, out)
	}
	if doc := answer(t, exitDone, "manifest", "diff", "m.json", "genesis_constants.rs", "--check"); doc["equal"] != true {
		t.Errorf("%v", doc)
	}
	if out, errs, code := runLine(t, "manifest", "render", "m.toml", "--patch", "genesis_constants.rs"); code != exitDone || out != "" || !strings.Contains(errs, "already") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestManifestFaultsAndRefusals(t *testing.T) {
	dir, m := goodManifest(t)
	good, _ := os.ReadFile(filepath.Join(dir, "m.toml"))
	file := func(name, old, now string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("no %q", old)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Replace(string(good), old, now, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ids := strings.Join(m.Restart.Excluded, ",")
	unsorted := file("unsorted.toml", `excluded = ["genesis_node_004", "super_node_4f2c9a10"]`, "excluded = [\n  \"b\",\n  \"a\",\n]")
	zero := file("zero.toml", "index = 35706", "index = 0")
	short := file("short.toml", m.Pin.DigestPred.String(), m.Pin.DigestPred.String()[1:])
	for _, c := range []struct {
		args []string
		code int
		say  []string
	}{
		{[]string{"manifest"}, exitUsage, []string{"validate, render, parse, diff"}},
		{[]string{"manifest", "validate"}, exitUsage, []string{"exactly one"}},
		{[]string{"manifest", "validate", filepath.Join(dir, "absent.toml")}, exitUsage, []string{"absent.toml", "no such file"}},
		{[]string{"manifest", "validate", dir}, exitUsage, []string{"regular file"}},
		{[]string{"manifest", "validate", short}, exitUsage, []string{"short.toml:12", "63 characters"}},
		{[]string{"manifest", "validate", file("unknown.toml", "index", "idx")}, exitUsage, []string{"unknown.toml:9", "unknown key"}},
		{[]string{"manifest", "validate", unsorted}, exitRefused, []string{"unsorted.toml:8: restart.excluded[1]: restart_excluded_not_sorted_or_duplicated"}},
		{[]string{"manifest", "validate", zero}, exitRefused, []string{"restart_disagrees_with_ws_pin_index", "tool_pin_without_index"}},
		{[]string{"manifest", "validate", filepath.Join(dir, "m.toml"), "--committee", "n1,n2"}, exitRefused, []string{"tool_excluded_not_in_committee"}},
		{[]string{"manifest", "validate", filepath.Join(dir, "m.toml"), "--committee", ids + ",n1,n2", "--alive", "n1"}, exitRefused, []string{"tool_excluded_breaks_quorum"}},
		{[]string{"manifest", "validate", filepath.Join(dir, "m.toml"), "--committee", ids + ",n1,n2", "--alive", "n1,n2"}, exitDone, []string{"2 identities barred"}},
		{[]string{"manifest", "validate", filepath.Join(dir, "m.toml"), "--alive", "n1"}, exitUsage, []string{"--committee"}},
		{[]string{"manifest", "render", unsorted}, exitRefused, []string{"not_sorted"}},
		{[]string{"manifest", "render", filepath.Join(dir, "m.toml"), "--patch", unsorted}, exitUsage, []string{"unsorted.toml"}},
		{[]string{"manifest", "parse", filepath.Join(dir, "m.toml")}, exitUsage, []string{"m.toml"}},
		{[]string{"manifest", "diff", short, file("other.toml", "index", "idx")}, exitUsage, []string{"short.toml:12", "other.toml:9"}},
		{[]string{"manifest", "diff", unsorted, filepath.Join(dir, "m.toml")}, exitDone, []string{"restart.excluded", "2 ids", "barred only in"}},
		{[]string{"manifest", "diff", zero, filepath.Join(dir, "m.toml"), "--check"}, exitRefused, []string{"ws_checkpoint.index", "differ in 1"}},
	} {
		out, errs, code := runLine(t, c.args...)
		for _, say := range c.say {
			if code != c.code || !strings.Contains(out+errs, say) {
				t.Errorf("%v: exit %d, want %d and %q:\n%s%s", c.args, code, c.code, say, out, errs)
			}
		}
	}
	doc := answer(t, exitRefused, "manifest", "validate", unsorted)
	if e := doc["errors"].([]any)[0].(map[string]any); doc["ok"] != false || e["code"] != "restart_excluded_not_sorted_or_duplicated" || e["line"] != 8.0 || e["text"] == "" {
		t.Errorf("%v", doc)
	}
}
