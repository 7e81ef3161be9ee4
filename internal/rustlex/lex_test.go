package rustlex

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/internal/need"
)

func texts(tokens []Token) string {
	var out []string
	for _, t := range tokens {
		out = append(out, t.Text)
	}
	return strings.Join(out, " ")
}

func TestCommentsAndStringsAreNoTokens(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"line comment", "a // b\nc", "a c"},
		{"doc comment with code", "/// pub const X: u64 = 1;\n//! y\nz", "z"},
		{"block comment", "a /* b */ c", "a c"},
		{"nested block comment", "a /* b /* c */ d */ e", "a e"},
		{"comment marks in a string", `a "/*" b "//" c`, `a "/*" b "//" c`},
		{"quote in a comment", "a // it's \"\nb", "a b"},
		{"comment end in a string inside a comment", "/* \"*/ a", "a"},
		{"raw string with quotes", `a r#"b "c" // d"# e`, `a r#"b "c" // d"# e`},
		{"escaped quote", `a "b\"c" d`, `a "b\"c" d`},
		{"char and lifetime", `'a' 'b '"' '\'' x`, `'a' 'b '"' '\'' x`},
		{"byte literals", `b'x' b'\n' b"//" br"/*"`, `b'x' b'\n' b"//" br"/*"`},
		{"tuple field", "X.0.1", "X . 0 . 1"},
		{"range and float", "0..9 1.5", "0 . . 9 1.5"},
		{"raw name", "r#type", "r#type"},
		{"mark and CRLF", "\xef\xbb\xbfa // x\r\nb", "a b"},
		{"script line", "#!/usr/bin/env run\na", "a"},
		{"attribute at the start", "#![allow(x)]\na", "# ! [ allow ( x ) ] a"},
	} {
		tokens, err := Lex([]byte(c.src))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := texts(tokens); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestStringsStandForTheirText(t *testing.T) {
	for src, want := range map[string]string{
		`"a\tb\\\"\x41\u{e9}\0"`: "a\tb\\\"Aé\x00",
		"\"a\\\n   b\"":          "ab",
		`r"a\n"`:                 `a\n`,
		`r##"a"#b"##`:            `a"#b`,
		"\"a\r\nb\"":             "a\nb",
	} {
		tokens, err := Lex([]byte(src))
		if err != nil || len(tokens) != 1 || tokens[0].Kind != String || tokens[0].Value != want {
			t.Errorf("%s: %+v, %v; want %q", src, tokens, err, want)
		}
	}
}

func TestBadSourceNamesThePlace(t *testing.T) {
	for _, c := range []struct {
		name, src  string
		line, col  int
		what, hint string
	}{
		{"open comment", "a\n /* b /* c */", 2, 2, "never closed", ""},
		{"open string", "a = \"b\nc", 1, 5, "never closed", ""},
		{"open raw string", "r#\"a\"", 1, 1, "never closed", ""},
		{"open bracket", "x = &[\n (1,\n 2)", 1, 6, "never closed", "cut off"},
		{"wrong bracket", "(\n]", 2, 1, "of line 1", ""},
		{"nothing to close", "a }", 1, 3, "closes nothing", ""},
		{"not UTF-8", "é\nab\xffc", 2, 3, "0xff is not UTF-8", "UTF-8"},
		{"zero byte", "a\x00", 1, 2, "zero byte", "cut off"},
		{"UTF-16", "\xff\xfea\x00", 1, 1, "UTF-16", "UTF-8"},
		{"unknown escape", `  "ab\q"`, 1, 6, "escape", ""},
		{"surrogate", `"\u{d800}"`, 1, 2, "character", ""},
		{"stray character", "a ` b", 1, 3, "no meaning", ""},
		{"open character", "let c = '", 1, 9, "never closed", ""},
	} {
		_, err := Lex([]byte(c.src))
		var at *Error
		if !errors.As(err, &at) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if at.Line != c.line || at.Column != c.col || !strings.Contains(at.What, c.what) || !strings.Contains(at.Hint, c.hint) {
			t.Errorf("%s: %+v", c.name, *at)
		}
	}
}

const module = `
//! const PROSE: u64 = 1;
#![allow(dead_code)]
use a::{b, c};
/* pub const DEAD: u64 = 2; */
pub const A: u64 = 1_000;
const B: [u8; 2] = { const INNER: u8 = 3; [INNER; 2] };
#[cfg(test)] pub(crate) static C: &str = "const D: u64 = 4;";
const fn f<T>(x: [u8; 2]) -> u64 where T: Copy { crate::t::X }
pub fn g() { const LOCAL: u64 = 5; }
struct S { a: u64 }
impl S { const ASSOC: u64 = 6; }
macro_rules! m { () => { const MACRO: u64 = 7; } }
thing!(const CALL: u64 = 8;);
pub mod id { pub const E: &str = "e"; }
mod elsewhere;
extern "C" fn h() {}
const LAST: (u64, [u8; 2]) = (1, [0u8; 2]);
`

func TestItemsAreThoseOfTheTopLevel(t *testing.T) {
	tokens, err := Lex([]byte(module))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	byName := map[string]Item{}
	for _, i := range Items(tokens) {
		got = append(got, strings.TrimSpace(i.Kind+" "+i.Name))
		byName[i.Name] = i
	}
	want := "use|const A|const B|static C|fn f|fn g|struct|impl|macro_rules|thing|mod id|mod elsewhere|fn h|const LAST"
	// the macro call's semicolon stands alone
	if g := strings.ReplaceAll(strings.Join(got, "|"), "|;", ""); g != want {
		t.Errorf("items\n got  %s\n want %s", g, want)
	}
	if c := byName["C"]; !c.Cfg || byName["A"].Cfg {
		t.Error("the cfg attribute is not where it belongs")
	}
	if f := byName["f"]; !f.Const || Code(f.Type) != "u64" || Code(f.Body) != "crate::t::X" {
		t.Errorf("fn f: %+v", f)
	}
	if l := byName["LAST"]; Code(l.Type) != "(u64, [u8; 2])" || Code(l.Value) != "(1, [0u8; 2])" {
		t.Errorf("LAST: %s = %s", Code(l.Type), Code(l.Value))
	}
	if e := Items(byName["id"].Body); len(e) != 1 || e[0].Name != "E" || e[0].Value[0].Value != "e" {
		t.Errorf("mod id: %+v", e)
	}
}

func TestIntegers(t *testing.T) {
	for src, want := range map[string]uint64{"0": 0, "691_200": 691200, "5u64": 5, "0xff": 255, "0xFFu8": 255, "0b101": 5, "0o17_u8": 15, "18446744073709551615": 1<<64 - 1} {
		tokens, err := Lex([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Uint(tokens[0], 64, "u64", "u8"); err != nil || got != want {
			t.Errorf("%s: %d, %v", src, got, err)
		}
	}
	for src, want := range map[string]string{"18446744073709551616": "does not fit", "1.5": "whole number", "5i64": "whole number", "x": "not a number"} {
		tokens, _ := Lex([]byte(src))
		if _, err := Uint(tokens[0], 64, "u64"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// FuzzLex: no input breaks it, and tokens tile the source in order.
func FuzzLex(f *testing.F) {
	f.Add([]byte(module))
	f.Add([]byte("r#\"a\"# b'\\x41' '\\u{e9}' /* /* */ */ 0x_1.0 'a 'b' \"\\\n\""))
	f.Fuzz(func(t *testing.T, src []byte) {
		tokens, err := Lex(src)
		if err != nil {
			return
		}
		end := 0
		for _, tok := range tokens {
			if tok.Offset < end || tok.Text == "" || string(src[tok.Offset:tok.End()]) != tok.Text {
				t.Fatalf("token %+v does not stand in its place", tok)
			}
			end = tok.End()
		}
		for _, item := range Items(tokens) {
			Items(item.Body)
			Split(item.Value)
			Code(item.Type)
		}
	})
}

// The compiler and this package agree on what a constant is: a program that prints them is the judge.
func TestTheCompilerAgrees(t *testing.T) {
	rustc := need.Program(t, "rustc")[0]
	dir := t.TempDir()
	src := filepath.Join(dir, "x.rs")
	code := "/* /* const X: u64 = 1; */ */ const X: u64 = 0x_ff_u64; // const X: u64 = 2;\nconst S: &str = r#\"const X: u64 = 3;\\n\"#;\nfn main() { const X: u64 = 9; let _ = X; println!(\"{}|{}\", crate::X, S); }\n"
	if err := os.WriteFile(src, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "x")
	if out, err := exec.Command(rustc, "-A", "warnings", "-o", bin, src).CombinedOutput(); err != nil {
		t.Skipf("rustc cannot build here: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := Lex([]byte(code))
	if err != nil {
		t.Fatal(err)
	}
	items := Items(tokens)
	x, err := Uint(items[0].Value[0], 64, "u64")
	if err != nil || string(out) != "255|"+items[1].Value[0].Value+"\n" || x != 255 || len(items) != 3 {
		t.Errorf("compiler %q, we %d and %q of %d items, %v", out, x, items[1].Value[0].Value, len(items), err)
	}
}
