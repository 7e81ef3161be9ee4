package tomlfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/tomlfile"
)

type jump struct {
	Address string `toml:"address"`
	Port    uint16 `toml:"port"`
}

type host struct {
	ID    string         `toml:"id"`
	Port  int            `toml:"port"`
	Sudo  *bool          `toml:"sudo"`
	Tags  []string       `toml:"tags"`
	Jumps []jump         `toml:"jump"`
	Env   map[string]int `toml:"env"`
}

type chain struct {
	Block tomlfile.Duration `toml:"block"`
	Since time.Time         `toml:"since"`
	Share float64           `toml:"share"`
}

type base struct {
	Name string `toml:"name"`
}

type file struct {
	base
	Chain *chain `toml:"chain"`
	Hosts []host `toml:"host"`
	Any   any    `toml:"any"`
	Plain string
	Not   string `toml:"-"`
}

func decode(t *testing.T, text string) (file, *tomlfile.Positions, string) {
	t.Helper()
	v, pos, err := tomlfile.DecodeBytes[file]("hosts.toml", []byte(text))
	if pos == nil {
		t.Fatal("no positions")
	}
	if err == nil {
		return v, pos, ""
	}
	var ps tomlfile.Problems
	if !errors.As(err, &ps) || len(ps) == 0 || ps.Hint() == "" {
		t.Fatalf("%T %v", err, err)
	}
	return v, pos, err.Error()
}

const good = `# a comment
name = "mainnet"
Plain = 'x'

[chain]
block = "1m30s"
since = 2026-01-02T03:04:05Z
share = 1

[[host]]
id = "001"
port = 0x16
sudo = true
tags = [
  "a", # with a comment
  "b",
]
env.A = 1
env."b c" = +2
[[host.jump]]
address = "192.0.2.1"
port = 65_535

[[host]]
id = """
002"""
jump = [{address = "192.0.2.2", port = 1}]
[host.env]
C = 3

[any]
x = [1, "two", {three = 3.0}]
`

func TestGoodFile(t *testing.T) {
	yes := true
	want := file{base: base{"mainnet"}, Plain: "x",
		Chain: &chain{tomlfile.Duration(90 * time.Second), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 1},
		Hosts: []host{
			{ID: "001", Port: 22, Sudo: &yes, Tags: []string{"a", "b"}, Jumps: []jump{{"192.0.2.1", 65535}}, Env: map[string]int{"A": 1, "b c": 2}},
			{ID: "002", Jumps: []jump{{"192.0.2.2", 1}}, Env: map[string]int{"C": 3}},
		},
		Any: map[string]any{"x": []any{int64(1), "two", map[string]any{"three": 3.0}}},
	}
	for name, text := range map[string]string{
		"plain":   good,
		"CRLF":    strings.ReplaceAll(good, "\n", "\r\n"),
		"BOM":     "\xef\xbb\xbf" + good,
		"no end":  strings.TrimSuffix(good, "\n"),
		"blanked": "\n\n" + good,
	} {
		got, pos, err := decode(t, text)
		if err != "" {
			t.Errorf("%s: %s", name, err)
			continue
		}
		if !got.Chain.Since.Equal(want.Chain.Since) {
			t.Errorf("%s: %v", name, got.Chain.Since)
		}
		got.Chain.Since = want.Chain.Since
		if name != "CRLF" && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
		if name == "blanked" {
			continue
		}
		for key, at := range map[string][2]int{"name": {2, 1}, "chain": {5, 2}, "chain.block": {6, 1}, "host": {10, 3}, "host[0]": {10, 3}, "host[0].tags[1]": {16, 3},
			"host[0].env.A": {18, 5}, `host[0].env."b c"`: {19, 5}, "host[0].jump[0].port": {22, 1}, "host[1].jump[0].port": {27, 33}, "host[1].env.C": {29, 1}} {
			if line, col, ok := pos.Lookup(key); !ok || line != at[0] || col != at[1] {
				t.Errorf("%s: %s is at %d:%d (%v), want %v", name, key, line, col, ok, at)
			}
		}
		if _, _, ok := pos.Lookup("host[2]"); ok {
			t.Errorf("%s: a third host", name)
		}
	}
}

const faulty = `name = 7
colour = "red"

[chain]
block = "soon"

[[host]]
id = "001"
prot = 22
port = "x"
jump = [{address = "192.0.2.1", port = 70000}, {adress = "192.0.2.2"}]

[[host]]
id = "002"
id = "003"
tags = ["a", 3, "b"]
[host.extra]
a = 1

[[host]]
id = "004"
`

func TestEveryFaultAtOnce(t *testing.T) {
	v, pos, _ := decode(t, faulty)
	if len(v.Hosts) != 3 || v.Hosts[2].ID != "004" || v.Hosts[0].ID != "001" {
		t.Errorf("what can be read is given: %+v", v)
	}
	pos.Add("host[1].port", "is missing", "give it a number")
	pos.Addf("host[2]", "has no %s", "jump")
	pos.Add("top", "is missing", "")
	pos.Add("host[0].port", "is missing", "")    // already faulted: not again
	pos.Add("host[0].jump", "is missing", "")    // its statement is faulty
	pos.Add("name", "is empty", "")              // its type is wrong
	pos.Add("host[1].extra.a", "is missing", "") // in an unknown table
	got := pos.Err().Error()
	want := strings.TrimSpace(`
hosts.toml: top: is missing
hosts.toml:1:1: name: is the number 7, not a string in quotes
hosts.toml:2:1: colour: unknown key; known here: Plain, any, chain, host, name
hosts.toml:5:1: chain.block: is not a length of time such as "1s" or "1m30s"
hosts.toml:9:1: host[0].prot: unknown key; did you mean port?
hosts.toml:10:1: host[0].port: is a string, not a whole number from -9223372036854775808 to 9223372036854775807
hosts.toml:11:33: host[0].jump[0].port: is the number 70000, not a whole number from 0 to 65535
hosts.toml:11:49: host[0].jump[1].adress: unknown key; did you mean address?
hosts.toml:13:3: host[1].port: is missing; give it a number
hosts.toml:15:1: host[1].id: is already set in line 14; keep one of the two
hosts.toml:16:14: host[1].tags[1]: is the number 3, not a string in quotes
hosts.toml:17:7: host[1].extra: unknown key; known here: env, id, jump, port, sudo, tags
hosts.toml:20:3: host[2]: has no jump`)
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"wrong case", "Name = 'x'", "hosts.toml:1:1: Name: unknown key; did you mean name?"},
		{"hidden field", "Not = 'x'", "hosts.toml:1:1: Not: unknown key; known here: Plain, any, chain, host, name"},
		{"table for a list", "[host]\nid = 'x'", "hosts.toml:1:2: host: is a list of tables; write [[host]]"},
		{"list for a table", "[[chain]]\nblock = '1s'", "hosts.toml:1:3: chain: is a table, not a list of tables; write [chain] once, or a value"},
		{"table for a value", "[name]\nx = 1", "hosts.toml:1:2: name: is a string in quotes, not a table"},
		{"dotted through a value", "name.x = 1", "hosts.toml:1:1: name: is a string in quotes, not a table"},
		{"value for a table", "chain = 3", "hosts.toml:1:1: chain: is the number 3, not a table"},
		{"value for a list", "host = 'x'", "hosts.toml:1:1: host: is a string, not a list of tables"},
		{"table twice", "[chain]\nshare = 1.0\n[chain]\nblock = '1s'", "hosts.toml:3:2: chain: the table is already opened in line 1; keep one of the two"},
		{"negative time", "[chain]\nblock = '-1s'", "hosts.toml:2:1: chain.block: is a negative length of time"},
		{"number for text", "[chain]\nblock = 3", "hosts.toml:2:1: chain.block: is the number 3, not a string in quotes"},
		{"text for a date", "[chain]\nsince = '2026'", "hosts.toml:2:1: chain.since: is a string, not a date or time"},
		{"text for a number", "[chain]\nshare = '1'", "hosts.toml:2:1: chain.share: is a string, not a number"},
		{"number for yes", "[[host]]\nsudo = 1", "hosts.toml:2:1: host[0].sudo: is the number 1, not true or false"},
		{"list of list", "[[host]]\ntags = [['a']]", "hosts.toml:2:1: host[0].tags[0]: is a list, not a string in quotes"},
		{"fraction", "[[host]]\nport = 1.5", "hosts.toml:2:1: host[0].port: is a number with a fraction, not a whole number from -9223372036854775808 to 9223372036854775807"},
		{"too large", "[[host]]\nport = 99999999999999999999", "hosts.toml:2:1: host[0].port: is the number 99999999999999999999, not a whole number from -9223372036854775808 to 9223372036854775807"},
		{"in a map", "[[host]]\nenv = {A = 'x'}", "hosts.toml:2:8: host[0].env.A: is a string, not a whole number from -9223372036854775808 to 9223372036854775807"},
		{"doubled inside", "[[host]]\nenv = {A = 1, A = 2}", "hosts.toml:2:15: host[0].env.A: is already set in line 2; keep one of the two"},
		{"not UTF-8", "name = 'x'\nPlain = '\xff'", "hosts.toml:2:10: byte 0xff is not UTF-8; save the file as UTF-8"},
		{"UTF-16", "\xff\xfen\x00", "hosts.toml:1:1: the file is UTF-16; save it as UTF-8"},
		{"zero bytes", "name = 'x'\n\x00\x00", "hosts.toml:2:1: the file holds a zero byte; it is not a text file, or was cut off by a crash"},
		{"empty", "", "hosts.toml: the file is empty; an .example.toml shows every field"},
		{"only comments", "# nothing\n\t\n#", "hosts.toml: the file is empty; an .example.toml shows every field"},
	} {
		if _, _, got := decode(t, c.text); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

// Faults of syntax do not hide the others, and a key in the part that could not be read is not called missing.
func TestSyntax(t *testing.T) {
	text := `name = "mainnet
[chain]
block = "never"

[[host
id = "001"
port = "this belongs to the broken header"

[[host]]
id = "002"
tags = ["a", "b"
port = "x"

[[host]]
id = = 3
port = "y"
`
	v, pos, err := decode(t, text)
	var at []string
	for line := range strings.SplitSeq(err, "\n") {
		place, _, _ := strings.Cut(line, " ")
		at = append(at, strings.TrimPrefix(place, "hosts.toml:"))
	}
	if got, want := strings.Join(at, " "), "1:16: 3:1: 5:7: 12:1: 12:1: 15:6: 16:1:"; got != want {
		t.Errorf("faults at %s, want %s\n%s", got, want, err)
	}
	if len(v.Hosts) != 2 || v.Hosts[0].ID != "002" {
		t.Errorf("what can be read is given: %+v", v)
	}
	n := len(at)
	pos.Add("name", "is missing", "")
	pos.Add("host[1].id", "is missing", "")
	if got := strings.Count(pos.Err().Error(), "\n") + 1; got != n {
		t.Errorf("keys of the broken part are called missing:\n%v", pos.Err())
	}
	pos.Add("host[0].id", "is no id", "")
	if !strings.Contains(pos.Err().Error(), "hosts.toml:10:1: host[0].id: is no id") {
		t.Error(pos.Err())
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	_, pos, err := tomlfile.Decode[file](filepath.Join(dir, "hosts.toml"))
	var fe *tomlfile.FileError
	if pos != nil || !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &fe) || !strings.Contains(fe.Hint(), "no such file") || strings.Count(err.Error(), dir) != 1 {
		t.Errorf("missing: %v", err)
	}
	if _, pos, err := tomlfile.Decode[file](dir); pos != nil || !errors.As(err, &fe) || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a folder: %v", err)
	}
	big := filepath.Join(dir, "big.toml")
	if err := os.WriteFile(big, make([]byte, tomlfile.MaxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, pos, err := tomlfile.Decode[file](big); pos != nil || err == nil {
		t.Error("a file of any size")
	}
	path := filepath.Join(dir, "ok.toml")
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if v, pos, err := tomlfile.Decode[file](path); err != nil || pos.File != path || v.Name != "mainnet" {
		t.Error(v, err)
	}
}

// A value may be a secret in the wrong place; a fault names its kind, never the text.
func TestTextIsNotRepeated(t *testing.T) {
	for _, text := range []string{"chain = 'hunter2'", "[chain]\nblock = 'hunter2'", "[chain]\nshare = 'hunter2'", "[[host]]\nport = 'hunter2'", "name = 'hunter2"} {
		if _, _, err := decode(t, text); err == "" || strings.Contains(err, "hunter2") {
			t.Errorf("%q: %s", text, err)
		}
	}
}

// Whatever the bytes: no crash, faults inside the file, and no fault exactly where strict go-toml finds none either.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{good, faulty, "", "\xff", "a = [", "[[host]]\n[host]\n", "[host.jump]\n[[host.jump]]", "host = []\n[[host]]", "name.a.b = 1", "any.x = 1\nany.x.y = 2",
		"[any.a]\n[any]\n[any]", "\"\" = 1", "any = {a = {b = [{}]}}", "[chain]\nblock = \"\"\"\n1s\"\"\"", "a = \"\"\"", "[\n", "a.\n", "\r", "x = 1 \r y"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, pos, err := tomlfile.DecodeBytes[file]("f.toml", data)
		if pos == nil {
			t.Fatal("no positions")
		}
		pos.Add("host[0].id", "x", "")
		if pos.Err() == nil {
			return
		}
		lines := strings.Count(string(data), "\n") + 1
		var ps tomlfile.Problems
		if !errors.As(pos.Err(), &ps) {
			t.Fatalf("%T", err)
		}
		for _, p := range ps {
			if p.Line < 0 || p.Line > lines || p.Column < 0 || p.Column > len(data)+1 || p.What == "" || strings.ContainsAny(p.What, "\n") {
				t.Errorf("%+v in %d lines", p, lines)
			}
		}
	})
}
