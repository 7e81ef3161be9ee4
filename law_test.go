// Package law_test holds the rules of this repository that no compiler checks: who may import whom, what only the program
// itself may do, that every package says what it is for, and what no text here may contain.
package law_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

const module = "github.com/qnetops/qnetops"

// rooms is the import law: a package may import the rooms to its right and the standard library. What is not listed is
// forbidden, and so is a package that is in no room. "x/..." is x and all below it. Tests may import anything.
const rooms = `
node:                 -
lease:                internal/...
lease/leasetest:      lease internal/...
lease/run:            lease internal/...
journal:              lease internal/...
journal/journaltest:  journal internal/...
host:                 node internal/...
fleet:                host node lease internal/...
observe:              fleet host node
gates:                node internal/...
manifest:             node internal/...
rolling:              observe fleet host node gates journal lease
rolling/rollingtest:  rolling observe fleet journal lease lab lab/... internal/...
restart:              observe fleet node manifest journal
cutover:              rolling restart manifest observe fleet host node gates journal lease
report:               -
lab:                  lab/... node host internal/...
lab/engine:           lab/... node host internal/...
lab/ledger:           lab/... node host internal/...
lab/memnet:           lab/... node host internal/...
lab/realhosts:        lab/... node host internal/...
lab/simnode:          lab/... node host internal/...
lab/sshd:             lab/... node host internal/...
lab/sshkey:           lab/... node host internal/...
internal/need:        -
internal/pgtest:      internal/need
internal/rustlex:     -
internal/sqldb:       internal/...
internal/tomlfile:    internal/...
cmd/qnetops:          ...
`

// modules says which rooms may import which third-party package (or one below it); the longest match decides. A module that
// is not listed may be imported by tests only.
const modules = `
github.com/urfave/cli/v2:                cmd/...
github.com/olekukonko/tablewriter:       report
github.com/docker/docker:                fleet host lab/...
github.com/docker/go-connections:        fleet host lab/...
github.com/distribution/reference:       fleet host lab/...
github.com/google/go-containerregistry:  lab/...
github.com/containerd/errdefs:           fleet host lab/...
github.com/skeema/knownhosts:            fleet lab/...
golang.org/x/crypto/ssh:                 fleet host restart lab/...
golang.org/x/crypto/sha3:                node lab/...
github.com/pelletier/go-toml/v2:         internal/tomlfile
github.com/pressly/goose/v3:             internal/sqldb
github.com/jackc/pgx/v5:                 lease
github.com/jackc/pgx/v5/stdlib:          cmd/...
modernc.org/sqlite:                      cmd/...
golang.org/x/sys/unix:                   lease lease/run host lab/... internal/pgtest cmd/...
golang.org/x/term:                       cmd/...
github.com/cloudflare/circl/sign/mldsa:  restart lab/...
github.com/hiddeco/sshsig:               restart
golang.org/x/sync:                       fleet observe rolling lab/... cmd/...
golang.org/x/time:                       fleet node lab/...
`

// forTests are packages that exist for tests: they may import "testing", and nothing but tests and each other imports them.
var forTests = []string{"internal/need", "internal/pgtest", "journal/journaltest", "lease/leasetest", "rolling/rollingtest"}

// source is one Go file outside testdata.
type source struct {
	room string // folder, "." is the root
	file string
	test bool
	set  *token.FileSet
	ast  *ast.File
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.file, s.set.Position(n.Pos()).Line)
}

// imports maps each import path to its node.
func (s source) imports() map[string]ast.Node {
	out := map[string]ast.Node{}
	for _, i := range s.ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out[p] = i
		}
	}
	return out
}

// sources parses every Go file of the repository, whatever system or tag it is for.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		room := path.Dir(filepath.ToSlash(file))
		out = append(out, source{room: room, file: file, test: strings.HasSuffix(file, "_test.go"), set: set, ast: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("only %d files found: run the test from the repository", len(out))
	}
	return out
}

// table reads a law: left side to right side, in order.
func table(t *testing.T, text string) (order []string, law map[string][]string) {
	t.Helper()
	law = map[string][]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		left, right, ok := strings.Cut(line, ": ")
		if _, twice := law[left]; !ok || twice {
			t.Fatalf("the law cannot be read at %q", line)
		}
		order = append(order, left)
		law[left] = strings.Fields(right)
	}
	return order, law
}

// allowed reports whether a room is among the patterns.
func allowed(room string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, all := strings.CutSuffix(p, "...")
		below = strings.TrimSuffix(below, "/")
		return p == room || all && (below == "" || room == below || strings.HasPrefix(room, below+"/"))
	})
}

// breaches lists what a file imports against the law.
func breaches(s source, law, mods map[string][]string) []string {
	var out []string
	for imp, n := range s.imports() {
		first, _, _ := strings.Cut(imp, "/")
		room, ours := strings.CutPrefix(imp, module+"/")
		switch {
		case ours:
			if !allowed(room, law[s.room]) {
				out = append(out, fmt.Sprintf("%s: %s may not import %s", s.at(n), s.room, room))
			}
			if slices.Contains(forTests, room) && !slices.Contains(forTests, s.room) {
				out = append(out, fmt.Sprintf("%s: %s is for tests only", s.at(n), room))
			}
		case imp == "testing" && !slices.Contains(forTests, s.room):
			out = append(out, fmt.Sprintf("%s: testing is for tests only", s.at(n)))
		case strings.Contains(first, "."):
			best := ""
			for m := range mods {
				if (imp == m || strings.HasPrefix(imp, m+"/")) && len(m) > len(best) {
					best = m
				}
			}
			if best == "" || !allowed(s.room, mods[best]) {
				out = append(out, fmt.Sprintf("%s: %s may not import %s", s.at(n), s.room, imp))
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestImports(t *testing.T) {
	order, law := table(t, rooms)
	_, mods := table(t, modules)
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		seen[s.room] = true
		if _, known := law[s.room]; !known {
			t.Errorf("%s: the room %s is not in the law; add it to law_test.go with what it may import", s.file, s.room)
			continue
		}
		for _, b := range breaches(s, law, mods) {
			t.Error(b)
		}
	}
	for _, room := range order {
		if !seen[room] {
			t.Errorf("the law names the room %s, which is not there", room)
		}
	}
	for _, right := range mods {
		for _, room := range right {
			if !slices.ContainsFunc(order, func(r string) bool { return allowed(r, []string{room}) }) {
				t.Errorf("the law of modules names the room %s, which is not there", room)
			}
		}
	}
}

// The checker itself must be able to say no.
func TestTheLawCanRefuse(t *testing.T) {
	_, law := table(t, rooms)
	_, mods := table(t, modules)
	for _, c := range []struct {
		room, imp string
		want      bool // allowed
	}{
		{"node", "net/http", true},
		{"node", module + "/fleet", false},
		{"node", "golang.org/x/crypto/sha3", true},
		{"node", "golang.org/x/crypto/ssh", false},
		{"report", "github.com/olekukonko/tablewriter/tw", true},
		{"fleet", "github.com/olekukonko/tablewriter", false},
		{"fleet", module + "/internal/tomlfile", true},
		{"observe", module + "/internal/tomlfile", false},
		{"rolling", module + "/lab", false},
		{"rolling", "github.com/docker/docker/client", false},
		{"lab/sshd", module + "/lab/memnet", true},
		{"lab/sshd", module + "/fleet", false},
		{"journal", "modernc.org/sqlite", false},
		{"internal/sqldb", "github.com/jackc/pgx/v5/stdlib", false},
		{"cmd/qnetops", "github.com/jackc/pgx/v5/stdlib", true},
		{"cmd/qnetops", module + "/lab", true},
		{"cmd/qnetops", "example.org/unheard/of", false},
		{"journal", module + "/internal/pgtest", false},
		{"rolling/rollingtest", module + "/lab", true},
		{"rolling/rollingtest", "testing", true},
		{"rolling/rollingtest", module + "/cutover", false},
		{"rolling", module + "/rolling/rollingtest", false},
		{"cutover", module + "/rolling/rollingtest", false},
		{"cmd/qnetops", module + "/rolling/rollingtest", false}, // it may import everything else
		{"fleet", "testing", false},
		{"nowhere", module + "/node", false},
	} {
		f, set := &ast.File{Imports: []*ast.ImportSpec{{Path: &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(c.imp)}}}}, token.NewFileSet()
		got := breaches(source{room: c.room, file: "x.go", set: set, ast: f}, law, mods)
		if (len(got) == 0) != c.want {
			t.Errorf("%s imports %s: %v", c.room, c.imp, got)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	docs := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ok := s.ast.Doc != nil && len(strings.Fields(s.ast.Doc.Text())) >= 5
		docs[s.room] = docs[s.room] || ok
	}
	for room, ok := range docs {
		if !ok {
			t.Errorf("the package in %s has no package comment", room)
		}
	}
}

// Libraries return errors and emit events: only the program prints, only its main function ends it, and only the lab, which
// plays the outside world, may sleep.
func TestOnlyTheProgramPrintsAndExits(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		program, lab := strings.HasPrefix(s.room, "cmd/"), s.room == "lab" || strings.HasPrefix(s.room, "lab/")
		for _, decl := range s.ast.Decls {
			fn, isFunc := decl.(*ast.FuncDecl)
			inMain := isFunc && program && fn.Recv == nil && fn.Name.Name == "main"
			ast.Inspect(decl, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
						t.Errorf("%s: uses the built-in %s", s.at(n), id.Name)
					}
				}
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := sel.X.(*ast.Ident)
				if !ok {
					return true
				}
				switch name := pkg.Name + "." + sel.Sel.Name; {
				case name == "time.Sleep" && !lab:
					t.Errorf("%s: sleeps; wait on a timer and the context together", s.at(n))
				case name == "os.Exit" && !inMain:
					t.Errorf("%s: ends the program; only main in cmd/ does", s.at(n))
				case strings.HasPrefix(name, "fmt.Print") && !program:
					t.Errorf("%s: prints; return the text or emit an event", s.at(n))
				case pkg.Name == "log" && regexp.MustCompile(`^(Print|Fatal|Panic)`).MatchString(sel.Sel.Name) && s.imports()["log"] != nil:
					t.Errorf("%s: logs through the global logger", s.at(n))
				}
				return true
			})
		}
	}
}

// unwanted lists what no text of this repository may contain. This file is the one place that has to name it.
var unwanted = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/wor[k]/|/roo[t]/go\b|/Users/[a-z]|go/pkg/mod\b|/home/[a-z0-9]+/(src|go|work)\b`), "a path of the machine it was written on"},
	{regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK|WIP)\b`), "unfinished work; finish it or file an issue"},
	{regexp.MustCompile(`(?i)\bnot (yet )?implemented\b|\blorem ipsum\b|\bcoming soon\b`), "a stub"},
	{regexp.MustCompile(`<{7} |>{7} `), "an unresolved merge"},
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{40}`), "a private key"},
	{regexp.MustCompile(`(?i)\b(AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36})\b`), "a credential"},
}

var quad = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`)

// addresses that documentation, loopback and labs may use (RFC 5737, 1918, 2544, 6598, 3927).
var addresses = prefixes("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "127.0.0.0/8", "0.0.0.0/32", "255.255.255.255/32",
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "100.64.0.0/10", "169.254.0.0/16")

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestTexts(t *testing.T) {
	for _, file := range tracked(t) {
		data, err := os.ReadFile(file)
		if err != nil || bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 || file == "law_test.go" || file == "go.sum" {
			continue // gone meanwhile, or no text
		}
		for _, u := range unwanted {
			for _, at := range u.pattern.FindAllIndex(data, -1) {
				t.Errorf("%s:%d: %q is %s", file, 1+bytes.Count(data[:at[0]], []byte("\n")), data[at[0]:at[1]], u.why)
			}
		}
		for _, at := range quad.FindAllIndex(data, -1) {
			a, err := netip.ParseAddr(string(data[at[0]:at[1]]))
			if err == nil && !slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.Errorf("%s:%d: %s may be somebody's address; use 192.0.2.x", file, 1+bytes.Count(data[:at[0]], []byte("\n")), a)
			}
		}
	}
}

// tracked lists the files that git knows, or all of them where there is no git.
func tracked(t *testing.T) []string {
	t.Helper()
	if out, err := exec.Command("git", "ls-files", "-z").Output(); err == nil && len(out) > 0 {
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	}
	var files []string
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)

// Documents point at files that are there, and CONTRIBUTING names every room.
func TestDocuments(t *testing.T) {
	for _, file := range tracked(t) {
		if filepath.Ext(file) != ".md" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, m := range link.FindAllSubmatch(data, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), string(m[1]))); err != nil {
				t.Errorf("%s points at %s, which is not there", file, m[1])
			}
		}
	}
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	order, _ := table(t, rooms)
	for _, room := range order {
		if !bytes.Contains(text, []byte("`"+room+"`")) {
			t.Errorf("CONTRIBUTING.md does not name the room %s", room)
		}
	}
}

var (
	section = regexp.MustCompile("(?m)^## .*`(qnetops/[a-z]+/v1)`$")
	example = regexp.MustCompile("(?s)```json\n(.*?)```")
	field   = regexp.MustCompile("`([a-z_]+(?:\\[\\])?(?:\\.[a-z_]+(?:\\[\\])?)*)`")
)

// docs/json.md is a contract: each field it lists is one of the document, and its examples are documents.
func TestJSONDocuments(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "json.md"))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]reflect.Type{
		"qnetops/status/v1":  reflect.TypeFor[observe.StatusDocument](),
		"qnetops/roll/v1":    reflect.TypeFor[rolling.Document](),
		"qnetops/cutover/v1": reflect.TypeFor[cutover.Document](),
		"qnetops/halt/v1":    reflect.TypeFor[cutover.HaltStatus](),
	}
	heads := section.FindAllSubmatchIndex(text, -1)
	found := 0
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		schema, part := string(text[h[2]:h[3]]), text[h[1]:end]
		for _, m := range example.FindAllSubmatch(part, -1) {
			checkExample(t, schema, m[1], types[schema])
		}
		doc := types[schema]
		if doc == nil {
			continue // the command that writes it holds its fields in a test of its own
		}
		found++
		for line := range strings.Lines(string(part)) {
			cells := strings.SplitN(line, "|", 3)
			if len(cells) < 3 || strings.TrimSpace(cells[0]) != "" {
				continue
			}
			for _, m := range field.FindAllStringSubmatch(cells[1], -1) {
				if !hasField(doc, strings.Split(strings.ReplaceAll(m[1], "[]", ""), ".")) {
					t.Errorf("docs/json.md: %s has no field %s", schema, m[1])
				}
			}
		}
	}
	if found != len(types) {
		t.Errorf("docs/json.md describes %d of %d documents", found, len(types))
	}
}

func checkExample(t *testing.T, schema string, text []byte, doc reflect.Type) {
	t.Helper()
	var any struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(text, &any); err != nil || any.Schema != schema {
		t.Errorf("docs/json.md: the example of %s is not one (%q, %v)", schema, any.Schema, err)
	}
	if doc == nil {
		return
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(reflect.New(doc).Interface()); err != nil {
		t.Errorf("docs/json.md: the example of %s: %v", schema, err)
	}
}

// hasField follows json names through structs, pointers and lists.
func hasField(t reflect.Type, path []string) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if len(path) == 0 {
		return true
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == path[0] {
			return hasField(f.Type, path[1:])
		}
	}
	return false
}
