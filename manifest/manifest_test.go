package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/node"
)

type vector struct {
	Desc     string
	Pin      [2]any    `json:"WS_CHECKPOINT"`
	Anchor   node.Hash `json:"DIGEST_ANCHOR"`
	Pred     node.Hash `json:"DIGEST_PRED"`
	Index    uint64    `json:"resume_from_mb"`
	Hash     node.Hash `json:"resume_mb_hash"`
	Excluded []string  `json:"excluded"`
	Expect   string
}

func (v vector) manifest(t testing.TB) Manifest {
	t.Helper()
	pin, err := node.ParseHash(v.Pin[1].(string))
	if err != nil {
		t.Fatal(err)
	}
	return Manifest{Restart{v.Index, v.Hash, v.Excluded}, Pin{uint64(v.Pin[0].(float64)), pin, v.Anchor, v.Pred}}
}

func vectors(t testing.TB) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	if err := json.Unmarshal(raw, &out); err != nil || len(out) < 13 {
		t.Fatalf("%d cases, %v", len(out), err)
	}
	return out
}

func good(t testing.TB) Manifest {
	for _, v := range vectors(t) {
		if v.Desc == "good" {
			return v.manifest(t)
		}
	}
	t.Fatal("no good case")
	return Manifest{}
}

func source(t testing.TB) []byte {
	t.Helper()
	src, err := os.ReadFile("testdata/genesis_constants.rs")
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// Every case of the vectors, in every form a manifest has, and every code of the node by at least one of them.
func TestTheNodesRules(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range vectors(t) {
		m := v.manifest(t)
		for form, read := range forms(t, m) {
			if !read.Equal(m) {
				t.Errorf("%s: read back from %s: %+v", v.Desc, form, Diff(m, read.Manifest))
			}
			got := "ok"
			for i, f := range Validate(read.Manifest, Known{}) {
				if f.FromNode() && i > 0 {
					t.Errorf("%s: %s comes after another", v.Desc, f.Code)
				}
				if f.FromNode() {
					got = f.Code
					if p := read.At(f.Key); p.Line == 0 || f.Text == "" {
						t.Errorf("%s: %s in %s has no place or text: %+v", v.Desc, f.Code, form, f)
					}
				}
			}
			if got != v.Expect {
				t.Errorf("%s from %s: %s, want %s", v.Desc, form, got, v.Expect)
			}
		}
		seen[v.Expect] = true
		if v.Expect == "ok" {
			if f := Validate(m, Known{}); len(f) > 0 {
				t.Errorf("%s: %+v", v.Desc, f)
			}
		}
	}
	for _, code := range []string{"restart_hash_without_height", "restart_excludes_without_height", "restart_zero_hash", "restart_disagrees_with_ws_pin_index",
		"restart_disagrees_with_ws_pin_hash", "restart_without_committee_digests", "restart_excluded_not_sorted_or_duplicated"} {
		if !seen[code] {
			t.Errorf("no case for %s", code)
		}
	}
}

// forms writes m in every form and reads it back.
func forms(t testing.TB, m Manifest) map[string]Loaded {
	t.Helper()
	tomlText, err := m.TOML()
	if err != nil {
		t.Fatal(err)
	}
	jsonText, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	patched, err := Patch("x.rs", source(t), m)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Loaded{}
	for name, data := range map[string][]byte{"m.toml": tomlText, "m.json": jsonText, "rendered.rs": []byte(Render(m)), "patched.rs": patched} {
		l, err := Read(name, data)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, data)
		}
		out[name] = l
	}
	return out
}

func hash(b byte) node.Hash {
	var h node.Hash
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

func TestOurOwnRules(t *testing.T) {
	committee := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	for _, c := range []struct {
		name   string
		change func(*Manifest)
		known  Known
		want   string
	}{
		{"good", func(*Manifest) {}, Known{}, ""},
		{"K is 1", func(m *Manifest) { m.Restart.ResumeFromMB, m.Pin.Index = 1, 1 }, Known{}, "tool_k_below_2 ws_checkpoint.index"},
		{"K is 2", func(m *Manifest) { m.Restart.ResumeFromMB, m.Pin.Index = 2, 2 }, Known{}, ""},
		{"K beyond all heights", func(m *Manifest) { m.Restart.ResumeFromMB, m.Pin.Index = 1<<63, 1<<63 }, Known{}, "tool_k_too_large ws_checkpoint.index"},
		{"digests equal", func(m *Manifest) { m.Pin.DigestPred = m.Pin.DigestAnchor }, Known{}, "tool_digests_equal ws_checkpoint.digest_pred"},
		{"digest is the hash", func(m *Manifest) { m.Pin.DigestAnchor = m.Pin.Hash }, Known{}, "tool_digest_is_hash ws_checkpoint.digest_anchor"},
		{"pred digest is the hash", func(m *Manifest) { m.Pin.DigestPred = m.Pin.Hash }, Known{}, "tool_digest_is_hash ws_checkpoint.digest_pred"},
		{"empty id", func(m *Manifest) { m.Restart.Excluded = []string{"", "n2"} }, Known{}, "tool_excluded_bad_id restart.excluded[0]"},
		{"blank in an id", func(m *Manifest) { m.Restart.Excluded = []string{"n2 "} }, Known{}, "tool_excluded_bad_id restart.excluded[0]"},
		{"pin without hash", func(m *Manifest) { m.Restart = Restart{}; m.Pin.Hash = node.Hash{} }, Known{}, "tool_pin_zero_hash ws_checkpoint.hash"},
		{"pin without a digest", func(m *Manifest) { m.Restart = Restart{}; m.Pin.DigestPred = node.Hash{} }, Known{}, "tool_pin_without_digests ws_checkpoint.digest_pred"},
		{"values without index", func(m *Manifest) { m.Restart = Restart{}; m.Pin.Index = 0 }, Known{}, "tool_pin_without_index ws_checkpoint.hash,tool_pin_without_index ws_checkpoint.digest_anchor,tool_pin_without_index ws_checkpoint.digest_pred"},
		{"node's code first, then ours", func(m *Manifest) { m.Restart.Excluded = []string{"b", "a", ""} }, Known{}, "restart_excluded_not_sorted_or_duplicated restart.excluded[1],tool_excluded_bad_id restart.excluded[2]"},
		{"members barred", func(m *Manifest) { m.Restart.Excluded = []string{"n1", "n6"} }, Known{Committee: committee, Alive: []string{"n2", "n3", "n4", "n5"}}, ""},
		{"one of four silent is tolerated", func(m *Manifest) { m.Restart.Excluded = []string{"n1", "n6"} }, Known{Committee: committee, Alive: []string{"n2", "n3", "n4"}}, ""},
		{"too few alive", func(m *Manifest) { m.Restart.Excluded = []string{"n1", "n6"} }, Known{Committee: committee, Alive: []string{"n2", "n3", "n1"}}, "tool_excluded_breaks_quorum restart.excluded"},
		{"everyone barred", func(m *Manifest) { m.Restart.Excluded = committee }, Known{Committee: committee}, "tool_excluded_breaks_quorum restart.excluded"},
		{"no member", func(m *Manifest) { m.Restart.Excluded = []string{"n1", "n7"} }, Known{Committee: committee}, "tool_excluded_not_in_committee restart.excluded[1]"},
		{"computed otherwise", func(*Manifest) {}, Known{K: &Computed{Index: 35706}}, "tool_hash_not_of_k ws_checkpoint.hash,tool_digest_not_of_k ws_checkpoint.digest_anchor,tool_digest_not_of_k_minus_1 ws_checkpoint.digest_pred"},
		{"computed of another index", func(*Manifest) {}, Known{K: &Computed{Index: 35705}}, "tool_index_not_k ws_checkpoint.index"},
	} {
		m := good(t)
		c.change(&m)
		var got []string
		for _, f := range Validate(m, c.known) {
			got = append(got, f.Code+" "+f.Key)
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%s: %s, want %s", c.name, strings.Join(got, ","), c.want)
		}
	}
}

func TestLayouts(t *testing.T) {
	m := good(t)
	dec := func(h node.Hash, first, sep string) string {
		parts := make([]string, len(h))
		for i, b := range h {
			parts[i] = fmt.Sprint(b)
		}
		parts[0] += first
		return "[" + strings.Join(parts, sep) + "]"
	}
	var hexed []string
	for _, b := range m.Pin.DigestAnchor {
		hexed = append(hexed, fmt.Sprintf("0x%X", b))
	}
	src := "\xef\xbb\xbf// WS_CHECKPOINT: (u64, [u8; 32]) = (1, [1u8; 32]);\r\n" +
		"pub(crate) const RESTART_MANIFEST : crate::RestartManifest=RestartManifest{excluded:&[ \"genesis_node_004\" , /* one more */ r#\"super_node_4f2c9a10\"#,],\r\n" +
		"resume_mb_hash:" + dec(m.Restart.ResumeMBHash, "", ",") + ",resume_from_mb:WS_CHECKPOINT.0};\r\n" +
		"#[allow(dead_code)] const WS_CHECKPOINT:(u64,[u8;32],)=(\r\n35_706u64, // the index\r\n" + dec(m.Pin.Hash, "u8", ",\r\n  ") + ",);\r\n" +
		"const WS_CHECKPOINT_DIGEST_ANCHOR: [u8; 32] = [" + strings.Join(hexed, ", ") + ",];\r\n" +
		"const WS_CHECKPOINT_DIGEST_PRED: [u8; 32] = " + dec(m.Pin.DigestPred, "_u8", " , /* , */ ") + ";"
	l, err := Parse("x.rs", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if !l.Equal(m) {
		t.Errorf("%+v", Diff(m, l.Manifest))
	}
	for text, want := range map[string]node.Hash{"[0x2a; 32]": {31: 1}, "[b'*'; 0x20]": {31: 1}, "[42u8; 32usize]": {31: 1}} {
		for i := range want {
			want[i] = 42
		}
		l, err := Parse("x.rs", []byte(strings.Replace(Render(Manifest{}), "DIGEST_PRED: [u8; 32] = [0u8; 32]", "DIGEST_PRED: [u8; 32] = "+text, 1)))
		if err != nil || l.Pin.DigestPred != want {
			t.Errorf("%s: %s, %v", text, l.Pin.DigestPred, err)
		}
	}
}

// What the file says beside its items does not count: comments, strings, other modules, functions.
func TestTheSourceOfTheTests(t *testing.T) {
	l, err := Load("testdata/genesis_constants.rs")
	if err != nil {
		t.Fatal(err)
	}
	if !l.Equal(Manifest{}) {
		t.Errorf("%+v", Diff(Manifest{}, l.Manifest))
	}
	lines := strings.Split(string(source(t)), "\n")
	for key, want := range map[string]string{KeyIndex: "pub const WS_CHECKPOINT:", KeyDigestPred: "pub const WS_CHECKPOINT_DIGEST_PRED", KeyExcluded: "    excluded: &[]"} {
		if p := l.At(key); !strings.HasPrefix(lines[p.Line-1], want) {
			t.Errorf("%s is placed at %d:%d: %s", key, p.Line, p.Column, lines[p.Line-1])
		}
	}
}

func TestSourceFaults(t *testing.T) {
	whole := Render(Manifest{})
	replace := func(old, now string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("the rendered constants have no %q", old)
		}
		return strings.Replace(whole, old, now, 1)
	}
	for _, c := range []struct{ name, src, want string }{
		{"commented out", replace("pub const WS_CHECKPOINT_DIGEST_PRED", "// pub const WS_CHECKPOINT_DIGEST_PRED"), "x.rs: WS_CHECKPOINT_DIGEST_PRED: there is no such constant"},
		{"in a block comment", "/*" + whole + "*/", "WS_CHECKPOINT: there is no such constant"},
		{"in a module", "mod m {" + whole + "}", "there is no such constant"},
		{"only prose", "//! WS_CHECKPOINT, RESTART_MANIFEST\n", "RESTART_MANIFEST: there is no such constant"},
		{"twice", whole + "pub const WS_CHECKPOINT: (u64, [u8; 32]) = (0, [0u8; 32]);", "x.rs:9:11: WS_CHECKPOINT: is already defined in line 1"},
		{"under a condition", "#[cfg(feature = \"x\")]\n" + whole, "x.rs:2:11: WS_CHECKPOINT: an attribute decides"},
		{"another type", replace("(u64, [u8; 32]) =", "(u32, [u8; 32]) ="), "is const (u32, [u8; 32]), not const (u64, [u8; 32])"},
		{"31 bytes", replace("DIGEST_PRED: [u8; 32] = [0u8; 32]", "DIGEST_PRED: [u8; 32] = ["+strings.Repeat("1,", 31)+"]"), "x.rs:3:49: ws_checkpoint.digest_pred: has 31 bytes, not 32"},
		{"33 bytes", replace("(0, [0u8; 32])", "(0, ["+strings.Repeat("1,", 33)+"])"), "ws_checkpoint.hash: has 33 bytes, not 32"},
		{"repeats 31 times", replace("resume_mb_hash: [0u8; 32]", "resume_mb_hash: [0u8; 31]"), "x.rs:6:27: restart.resume_mb_hash: repeats 31 times"},
		{"a byte too large", replace("DIGEST_ANCHOR: [u8; 32] = [0u8; 32]", "DIGEST_ANCHOR: [u8; 32] = ["+strings.Repeat("1,", 31)+"256]"), "element 32: 256 does not fit"},
		{"a hash as text", replace("resume_mb_hash: [0u8; 32]", "resume_mb_hash: hex(\"00\")"), "is not an array"},
		{"a hash by name", replace("resume_mb_hash: [0u8; 32]", "resume_mb_hash: OTHER"), "OTHER is not an array"},
		{"negative index", replace("resume_from_mb: 0", "resume_from_mb: -1"), "-1 is not a number"},
		{"a field is missing", replace("    excluded: &[],\n", ""), "x.rs:4:11: RESTART_MANIFEST: the field excluded is missing"},
		{"a field is doubled", replace("excluded: &[],", "excluded: &[], excluded: &[\"a\"],"), "restart.excluded: is already set in line 7"},
		{"an unknown field", replace("excluded: &[],", "excluded: &[], also: 1,"), "the field also is not known"},
		{"the rest of another", replace("excluded: &[],", "..OTHER"), "is not a field with its value"},
		{"a list by name", replace("excluded: &[]", "excluded: LIST"), "LIST is not a list"},
		{"an id by name", replace("excluded: &[]", "excluded: &[\"a\", B]"), "x.rs:7:22: restart.excluded[1]: B is not a string"},
		{"cut off", whole[:len(whole)-10], "never closed"},
		{"cut off in a string", replace("excluded: &[]", "excluded: &[\"a"), "string is opened and never closed"},
		{"not UTF-8", "// \xff\n" + whole, "x.rs:1:4: byte 0xff is not UTF-8"},
		{"zero byte", whole + "\x00", "zero byte"},
		{"empty", "", "there is no such constant"},
	} {
		_, err := Parse("x.rs", []byte(c.src))
		var p tomlfile.Problems
		if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	// all at once
	_, err := Parse("x.rs", []byte(strings.NewReplacer("resume_from_mb: 0", "resume_from_mb: x", "resume_mb_hash: [0u8; 32]", "resume_mb_hash: [0u8; 3]", "(0,", "(y,").Replace(whole)))
	var p tomlfile.Problems
	if !errors.As(err, &p) || len(p) != 3 {
		t.Errorf("three faults, reported: %v", err)
	}
}

func TestFileFaults(t *testing.T) {
	m := good(t)
	tomlText, _ := m.TOML()
	jsonText, _ := m.JSON()
	edit := func(text []byte, old, now string) string {
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(string(text), old, now, 1)
	}
	h := m.Pin.DigestPred.String()
	for _, c := range []struct{ file, text, want string }{
		{"m.toml", edit(tomlText, h, h[1:]), "m.toml:12:1: ws_checkpoint.digest_pred: hash has 63 characters"},
		{"m.toml", edit(tomlText, h, strings.ToUpper(h)), "upper-case"},
		{"m.toml", edit(tomlText, h, "0x"+h[2:]), "not hex"},
		{"m.toml", edit(tomlText, "index = 35706", "index = -1"), "ws_checkpoint.index"},
		{"m.toml", edit(tomlText, "index = 35706", "index = \"35706\""), "ws_checkpoint.index"},
		{"m.toml", edit(tomlText, "index = 35706\n", ""), "ws_checkpoint.index: is missing"},
		{"m.toml", edit(tomlText, "index = 35706", "index = 35706\nindex = 1"), "already set"},
		{"m.toml", edit(tomlText, "index", "indx"), "unknown key"},
		{"m.toml", edit(tomlText, "[ws_checkpoint]", "[ws_checkpoint"), "m.toml:8"},
		{"m.toml", string(tomlText[:len(tomlText)-20]), "m.toml:12"},
		{"m.toml", edit(tomlText, "genesis_node_004", "genesis\xff"), "not UTF-8"},
		{"m.toml", string(jsonText), "name it .json"},
		{"m.toml", "", "empty"},
		{"m.json", edit(jsonText, h, h+"0"), "m.json:15:20: ws_checkpoint.digest_pred: hash has 65 characters"},
		{"m.json", edit(jsonText, "35706", "-1"), "restart.resume_from_mb: -1 is no whole number"},
		{"m.json", edit(jsonText, "35706", "35706.5"), "no whole number"},
		{"m.json", edit(jsonText, "35706", "\"35706\""), "is not a number"},
		{"m.json", edit(jsonText, "35706", "18446744073709551616"), "no whole number"},
		{"m.json", edit(jsonText, `"index": 35706`, `"index": 35706, "index": 1`), "ws_checkpoint.index: is already set in line 12"},
		{"m.json", edit(jsonText, `"index"`, `"indx"`), "unknown key"},
		{"m.json", edit(jsonText, `"index": 35706,`, ``), "m.json:11:3: ws_checkpoint.index: is missing"},
		{"m.json", edit(jsonText, "manifest/v1", "manifest/v2"), "another kind of document"},
		{"m.json", edit(jsonText, `"genesis_node_004"`, `4`), "restart.excluded[0]: is not a string"},
		{"m.json", edit(jsonText, `"excluded": [`, `"excluded": {}, "x": [`), "restart.excluded: is not a list"},
		{"m.json", string(jsonText) + "{}", "something follows"},
		{"m.json", string(jsonText[:len(jsonText)-10]), "ends in the middle"},
		{"m.json", edit(jsonText, "{", "{,"), "is no JSON"},
		{"m.json", "[]", "is not an object"},
		{"m.json", "", "empty"},
		{"m.json", "{\"schema\": \"\xff\"}", "not UTF-8"},
		{"m.json", "\xff\xfe{\x00", "not UTF-8"},
	} {
		_, err := Read(c.file, []byte(c.text))
		var p tomlfile.Problems
		if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v\n%s", c.want, err, c.text)
		}
	}
	// several faults come together
	_, err := Read("m.json", []byte(`{"restart": {"resume_from_mb": "x", "excluded": [1, 2], "who": {"a": [1]}}}`))
	var p tomlfile.Problems
	if !errors.As(err, &p) || len(p) != 9 {
		t.Errorf("nine faults, reported %d:\n%v", len(p), err)
	}
	// line ends and a byte order mark do no harm
	for name, text := range map[string][]byte{"m.toml": tomlText, "m.json": jsonText} {
		windows := append([]byte("\xef\xbb\xbf"), bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))...)
		if l, err := Read(name, windows); err != nil || !l.Equal(m) {
			t.Errorf("%s with CRLF: %v", name, err)
		}
	}
	for _, path := range []string{"testdata", "testdata/nothing.toml"} {
		var bad *FileError
		if _, err := Load(path); !errors.As(err, &bad) || bad.Hint() == "" {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// rest is the fixture without the values of the five items, found by plain text: its layout is known.
func rest(t *testing.T, src []byte) string {
	t.Helper()
	text := string(src)
	for _, item := range []string{"\npub const WS_CHECKPOINT: (u64, [u8; 32]) = (", "\npub const WS_CHECKPOINT_DIGEST_ANCHOR: [u8; 32] = ", "\npub const WS_CHECKPOINT_DIGEST_PRED: [u8; 32] = ",
		"\n    resume_from_mb: ", "\n    resume_mb_hash: ", "\n    excluded: "} {
		at := strings.Index(text, item)
		if at < 0 {
			t.Fatalf("no %q in\n%s", item, text)
		}
		at += len(item)
		stop := min(at+strings.Index(text[at:]+";\n", ";\n"), at+strings.Index(text[at:]+",\n    re", ",\n    re"), at+strings.Index(text[at:]+",\n    ex", ",\n    ex"), at+strings.Index(text[at:]+",\n};", ",\n};"))
		text = text[:at] + text[stop:]
	}
	return text
}

func TestPatchChangesNothingElse(t *testing.T) {
	src := source(t)
	for _, v := range vectors(t) {
		m := v.manifest(t)
		out, err := Patch("x.rs", src, m)
		if err != nil {
			t.Fatal(err)
		}
		if rest(t, src) != rest(t, out) {
			t.Errorf("%s: something else changed\n%s", v.Desc, rest(t, out))
		}
		if same, _ := Patch("x.rs", out, m); !bytes.Equal(same, out) {
			t.Errorf("%s: a second patch changed the file", v.Desc)
		}
	}
	// comments beside a value stay, line ends are those of the file
	windows := bytes.ReplaceAll(src, []byte("\n"), []byte("\r\n"))
	windows = bytes.Replace(windows, []byte("resume_from_mb: 0,"), []byte("resume_from_mb: 0, // K"), 1)
	out, err := Patch("x.rs", windows, good(t))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(out, []byte("\n")) != bytes.Count(out, []byte("\r\n")) || !bytes.Contains(out, []byte("resume_from_mb: 35706, // K\r\n")) {
		t.Errorf("%s", out)
	}
}

// A field that is written as a part of the pin must not follow the pin to another value.
func TestPatchOfAFieldThatFollowsThePin(t *testing.T) {
	m := good(t)
	src := strings.NewReplacer("resume_from_mb: 35706", "resume_from_mb: WS_CHECKPOINT.0").Replace(Render(m))
	src = src[:strings.Index(src, "resume_mb_hash: ")] + "resume_mb_hash: WS_CHECKPOINT.1,\n" + src[strings.Index(src, "    excluded"):]
	next := m
	next.Pin.Index, next.Pin.Hash = 40000, hash(9)
	out, err := Patch("x.rs", []byte(src), next)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Parse("x.rs", out); err != nil || !l.Equal(next) {
		t.Errorf("%v %+v\n%s", err, l, out)
	}
	if same, err := Patch("x.rs", []byte(src), m); err != nil || string(same) != src {
		t.Errorf("%v: nothing was to change\n%s", err, same)
	}
}

func TestUnifiedDiffApplies(t *testing.T) {
	programs := need.Program(t, "git", "patch")
	for _, v := range vectors(t) {
		if v.Expect != "ok" {
			continue // each case starts two programs; the broken ones change nothing in how a diff is made
		}
		m := v.manifest(t)
		for name, src := range map[string][]byte{"plain": source(t), "windows": bytes.ReplaceAll(source(t), []byte("\n"), []byte("\r\n")), "one line": []byte(strings.ReplaceAll(strings.TrimSuffix(Render(Manifest{}), "\n"), "\n", " ")), "no end": []byte(strings.TrimSuffix(Render(good(t)), "\n"))} {
			want, err := Patch("x.rs", src, m)
			if err != nil {
				t.Fatal(err)
			}
			text, err := UnifiedDiff("some/where/"+Source, src, m)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(want, src) {
				if text != "" {
					t.Errorf("%s, %s: a diff of nothing: %s", v.Desc, name, text)
				}
				continue
			}
			for _, tool := range [][]string{{programs[0], "apply", "-"}, {programs[1], "-s", "--binary", "-p1"}} {
				dir := t.TempDir()
				file := filepath.Join(dir, filepath.FromSlash(Source))
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, src, 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(tool[0], tool[1:]...)
				cmd.Dir, cmd.Stdin = dir, strings.NewReader(text)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s, %s: %s: %v\n%s\n%s", v.Desc, name, filepath.Base(tool[0]), err, out, text)
					continue
				}
				if got, _ := os.ReadFile(file); !bytes.Equal(got, want) {
					t.Errorf("%s, %s: %s gives another file", v.Desc, name, filepath.Base(tool[0]))
				}
			}
		}
	}
}

// The compiler reads what was rendered as the same bytes.
func TestTheCompilerAgrees(t *testing.T) {
	rustc := need.Program(t, "rustc")[0]
	m := good(t)
	m.Restart.Excluded = append(m.Restart.Excluded, "é\"\\\n\u200b")
	src, err := Patch("x.rs", source(t), m)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "x.rs"), filepath.Join(dir, "x")
	main := "\nfn main() { let h = |b: &[u8; 32]| b.iter().map(|x| format!(\"{:02x}\", x)).collect::<String>();\n" +
		"println!(\"{} {} {} {} {} {} {}\", RESTART_MANIFEST.resume_from_mb, h(&RESTART_MANIFEST.resume_mb_hash), RESTART_MANIFEST.excluded.iter().map(|e| e.bytes().map(|b| format!(\"{:02x}\", b)).collect::<String>()).collect::<Vec<_>>().join(\",\"), WS_CHECKPOINT.0, h(&WS_CHECKPOINT.1), h(&WS_CHECKPOINT_DIGEST_ANCHOR), h(&WS_CHECKPOINT_DIGEST_PRED)); }\n"
	if err := os.WriteFile(file, append(src, main...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(rustc, "-A", "warnings", "-o", bin, file).CombinedOutput(); err != nil {
		t.Fatalf("rustc refuses what was rendered: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, id := range m.Restart.Excluded {
		ids = append(ids, fmt.Sprintf("%x", id))
	}
	want := fmt.Sprintf("%d %s %s %d %s %s %s\n", m.Restart.ResumeFromMB, m.Restart.ResumeMBHash, strings.Join(ids, ","), m.Pin.Index, m.Pin.Hash, m.Pin.DigestAnchor, m.Pin.DigestPred)
	if string(out) != want {
		t.Errorf("the compiler reads\n%swant\n%s", out, want)
	}
}

func random(r *rand.Rand) Manifest {
	var m Manifest
	for _, h := range []*node.Hash{&m.Restart.ResumeMBHash, &m.Pin.Hash, &m.Pin.DigestAnchor, &m.Pin.DigestPred} {
		if r.IntN(4) > 0 {
			for i := range h {
				h[i] = byte(r.Uint32())
			}
		}
	}
	m.Restart.ResumeFromMB, m.Pin.Index = r.Uint64()>>(1+r.IntN(63)), r.Uint64()>>(1+r.IntN(63))
	letters := []rune("ab_09\"\\'\n\t\x00\x7fé\u2028{}🦀#/*")
	for range r.IntN(6) {
		var id []rune
		for range r.IntN(8) {
			id = append(id, letters[r.IntN(len(letters))])
		}
		m.Restart.Excluded = append(m.Restart.Excluded, string(id))
	}
	return m
}

func TestRoundTripsOfRandomManifests(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		m := random(r)
		for form, l := range forms(t, m) {
			if !l.Equal(m) {
				t.Fatalf("%s: %+v", form, Diff(m, l.Manifest))
			}
		}
	}
	big := Manifest{Pin: Pin{Index: 1<<64 - 1}}
	if _, err := big.TOML(); err == nil {
		t.Error("TOML cannot hold 2^64-1")
	}
	text, _ := big.JSON()
	if l, err := Read("m.json", text); err != nil || !l.Equal(big) {
		t.Errorf("JSON holds 2^64-1: %v", err)
	}
}

func TestDiff(t *testing.T) {
	a := good(t)
	b := a
	b.Restart.Excluded = []string{"genesis_node_004", "x"}
	b.Pin.Index++
	var keys []string
	for _, d := range Diff(a, b) {
		keys = append(keys, d.Key)
		if d.A == d.B || d.A == "" {
			t.Errorf("%+v", d)
		}
	}
	if !slices.Equal(keys, []string{KeyExcluded, KeyIndex}) || Diff(a, a) != nil {
		t.Errorf("%v", keys)
	}
	if got := OnlyIn(a, b); !slices.Equal(got, []string{"super_node_4f2c9a10"}) {
		t.Errorf("%v", got)
	}
	if Diff(Manifest{}, Manifest{Restart: Restart{Excluded: []string{}}}) != nil {
		t.Error("no list and an empty list differ")
	}
}

// FuzzForms: what is read as a manifest is written and read again as the same one.
func FuzzForms(f *testing.F) {
	tomlText, _ := good(f).TOML()
	jsonText, _ := good(f).JSON()
	f.Add(tomlText)
	f.Add(jsonText)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"m.toml", "m.json"} {
			l, err := Read(name, data)
			if err != nil {
				continue
			}
			Validate(l.Manifest, Known{})
			text, err := l.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := Read("m.json", text); err != nil || !again.Equal(l.Manifest) {
				t.Fatalf("%v\n%s", err, text)
			}
		}
	})
}

// FuzzSource: a source file that can be read is patched to any manifest, and back to its own values without any change.
func FuzzSource(f *testing.F) {
	f.Add(source(f), uint64(1))
	f.Add([]byte(Render(good(f))), uint64(2))
	f.Add([]byte(strings.ReplaceAll(Render(good(f)), "resume_from_mb: 35706", "resume_from_mb: WS_CHECKPOINT.0")), uint64(3))
	f.Fuzz(func(t *testing.T, src []byte, seed uint64) {
		l, err := Parse("x.rs", src)
		if err != nil {
			return
		}
		if same, err := Patch("x.rs", src, l.Manifest); err != nil || !bytes.Equal(same, src) {
			t.Fatalf("%v: its own values change it", err)
		}
		m := random(rand.New(rand.NewPCG(seed, 1)))
		if _, err := UnifiedDiff("x.rs", src, m); err != nil {
			t.Fatal(err)
		}
		if again, err := Read("m.rs", []byte(Render(l.Manifest))); err != nil || !again.Equal(l.Manifest) {
			t.Fatalf("rendered: %v", err)
		}
	})
}
