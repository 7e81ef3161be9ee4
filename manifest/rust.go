package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/internal/rustlex"
	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/node"
)

// names are the constants and the types they have in the node's source.
var names = []struct{ name, typ string }{
	{"WS_CHECKPOINT", "(u64, [u8; 32])"},
	{"WS_CHECKPOINT_DIGEST_ANCHOR", "[u8; 32]"},
	{"WS_CHECKPOINT_DIGEST_PRED", "[u8; 32]"},
	{"RESTART_MANIFEST", "RestartManifest"},
}

// span is where a value stands in the source.
type span struct{ from, to int }

// rust is the constants of one source file while they are being read.
type rust struct {
	name     string
	items    map[string]rustlex.Item
	out      Loaded
	spans    map[string]span
	indirect map[string]bool // fields that are written as a part of WS_CHECKPOINT
	problems tomlfile.Problems
}

// Parse reads the constants from the node's genesis_constants.rs, in any layout of facts 6.2: hashes as [0u8; 32] or as 32
// numbers, over any lines, with comments between. It matches items of the module, not words: what stands in a comment, a string
// or another module does not count, and a constant that is missing, doubled or conditional is a fault. Faults are
// tomlfile.Problems, all of them at once; name stands for the file in them.
func Parse(name string, src []byte) (Loaded, error) {
	r, err := read(name, src)
	if err != nil {
		return Loaded{}, err
	}
	return r.out, nil
}

func read(name string, src []byte) (*rust, error) {
	tokens, err := rustlex.Lex(src)
	var at *rustlex.Error
	if errors.As(err, &at) {
		return nil, tomlfile.Problems{{File: name, Line: at.Line, Column: at.Column, What: at.What, Hint: at.Hint}}
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	r := &rust{name: name, out: Loaded{Name: name, at: map[string]Position{}}, items: map[string]rustlex.Item{}, spans: map[string]span{}, indirect: map[string]bool{}}
	r.collect(rustlex.Items(tokens))
	r.pin()
	r.hashItem("WS_CHECKPOINT_DIGEST_ANCHOR", KeyDigestAnchor, &r.out.Pin.DigestAnchor)
	r.hashItem("WS_CHECKPOINT_DIGEST_PRED", KeyDigestPred, &r.out.Pin.DigestPred)
	r.manifest()
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b tomlfile.Problem) int { return a.Line - b.Line })
		return nil, r.problems
	}
	return r, nil
}

func (r *rust) fault(t rustlex.Token, key, format string, args ...any) {
	r.problems = append(r.problems, tomlfile.Problem{File: r.name, Line: t.Line, Column: t.Column, Key: key, What: fmt.Sprintf(format, args...)})
}

// collect picks the constants out of the items and checks that each is there once, plainly, with its type.
func (r *rust) collect(items []rustlex.Item) {
	for _, want := range names {
		var found []rustlex.Item
		for _, i := range items {
			if (i.Kind == "const" || i.Kind == "static") && i.Name == want.name {
				found = append(found, i)
			}
		}
		if len(found) == 0 {
			r.problems = append(r.problems, tomlfile.Problem{File: r.name, Key: want.name, What: "there is no such constant at the top level of the file", Hint: "give the whole " + Source})
			continue
		}
		first := found[0]
		for _, again := range found[1:] {
			r.fault(again.Head, want.name, "is already defined in line %d", first.Head.Line)
		}
		typ := rustlex.Code(first.Type)
		if want.name == "RESTART_MANIFEST" {
			typ = typ[strings.LastIndex(typ, ":")+1:]
		}
		typ = strings.ReplaceAll(typ, ", )", ")")
		typ = strings.ReplaceAll(typ, ",)", ")")
		switch {
		case first.Cfg:
			r.fault(first.Head, want.name, "an attribute decides whether it is compiled, so the source does not say what a release holds")
		case first.Kind != "const" || typ != want.typ:
			r.fault(first.Head, want.name, "is %s %s, not const %s", first.Kind, rustlex.Code(first.Type), want.typ)
		case len(first.Value) == 0:
			r.fault(first.Head, want.name, "has no value")
		default:
			r.items[want.name] = first
		}
	}
}

// mark remembers where the value of a key stands.
func (r *rust) mark(key string, tokens []rustlex.Token) {
	first := tokens[0]
	r.out.at[key] = Position{first.Line, first.Column}
	r.spans[key] = span{first.Offset, tokens[len(tokens)-1].End()}
}

func (r *rust) pin() {
	item, ok := r.items["WS_CHECKPOINT"]
	if !ok {
		return
	}
	v := item.Value
	if !v[0].Is("(") || v[0].Close != len(v)-1 {
		r.fault(v[0], "WS_CHECKPOINT", "is not a pair written out in parentheses")
		return
	}
	parts := rustlex.Split(rustlex.Group(v, 0))
	if len(parts) != 2 || len(parts[0]) == 0 || len(parts[1]) == 0 {
		r.fault(v[0], "WS_CHECKPOINT", "has %d parts, not an index and a hash", len(parts))
		return
	}
	r.number(KeyIndex, parts[0], &r.out.Pin.Index)
	r.hash(KeyHash, parts[1], &r.out.Pin.Hash)
}

func (r *rust) hashItem(name, key string, into *node.Hash) {
	if item, ok := r.items[name]; ok {
		r.hash(key, item.Value, into)
	}
}

// manifest reads the struct literal: its fields in any order, each exactly once.
func (r *rust) manifest() {
	item, ok := r.items["RESTART_MANIFEST"]
	if !ok {
		return
	}
	v := item.Value
	open := 0
	for open < len(v) && (v[open].Kind == rustlex.Ident || v[open].Is(":")) {
		open++
	}
	if open == 0 || open == len(v) || !v[open].Is("{") || v[open].Close != len(v)-1 || v[open-1].Text != "RestartManifest" {
		r.fault(v[0], "RESTART_MANIFEST", "is not a RestartManifest written out in braces")
		return
	}
	seen := map[string]rustlex.Token{}
	for _, field := range rustlex.Split(rustlex.Group(v, open)) {
		r.field(v[open], field, seen)
	}
	for _, key := range []string{KeyResumeFrom, KeyResumeHash, KeyExcluded} {
		name := key[len("restart."):]
		if _, ok := seen[name]; !ok {
			r.fault(item.Head, "RESTART_MANIFEST", "the field %s is missing", name)
		}
	}
}

func (r *rust) field(open rustlex.Token, tokens []rustlex.Token, seen map[string]rustlex.Token) {
	if len(tokens) == 0 {
		r.fault(open, "RESTART_MANIFEST", "a field is empty")
		return
	}
	if rest, attributed := rustlex.Attributed(tokens); attributed {
		r.fault(tokens[0], "RESTART_MANIFEST", "an attribute stands before a field, so the source does not say what a release holds")
		tokens = rest
	}
	if len(tokens) < 3 || tokens[0].Kind != rustlex.Ident || !tokens[1].Is(":") {
		first := open
		if len(tokens) > 0 {
			first = tokens[0]
		}
		r.fault(first, "RESTART_MANIFEST", "%q is not a field with its value", rustlex.Code(tokens))
		return
	}
	name, value := tokens[0].Value, rustlex.Cut(tokens, 2, len(tokens))
	if first, twice := seen[name]; twice {
		r.fault(tokens[0], "restart."+name, "is already set in line %d", first.Line)
		return
	}
	seen[name] = tokens[0]
	switch key := "restart." + name; key {
	case KeyResumeFrom:
		r.number(key, value, &r.out.Restart.ResumeFromMB)
	case KeyResumeHash:
		r.hash(key, value, &r.out.Restart.ResumeMBHash)
	case KeyExcluded:
		r.list(key, value)
	default:
		r.fault(tokens[0], "RESTART_MANIFEST", "the field %s is not known to this tool", name)
	}
}

// pinPart recognises WS_CHECKPOINT.0 and .1, by which a release may say that restart and pin are the same macroblock.
func pinPart(tokens []rustlex.Token) string {
	switch rustlex.Code(tokens) {
	case "WS_CHECKPOINT.0":
		return KeyIndex
	case "WS_CHECKPOINT.1":
		return KeyHash
	}
	return ""
}

func (r *rust) number(key string, tokens []rustlex.Token, into *uint64) {
	r.mark(key, tokens)
	if key == KeyResumeFrom && pinPart(tokens) == KeyIndex {
		*into, r.indirect[key] = r.out.Pin.Index, true
		return
	}
	if len(tokens) != 1 {
		r.fault(tokens[0], key, "%s is not a number", rustlex.Code(tokens))
		return
	}
	v, err := rustlex.Uint(tokens[0], 64, "u64")
	if err != nil {
		r.fault(tokens[0], key, "%v", err)
		return
	}
	*into = v
}

// hash reads [0u8; 32], or the 32 bytes one by one.
func (r *rust) hash(key string, tokens []rustlex.Token, into *node.Hash) {
	r.mark(key, tokens)
	if key == KeyResumeHash && pinPart(tokens) == KeyHash {
		*into, r.indirect[key] = r.out.Pin.Hash, true
		return
	}
	if !tokens[0].Is("[") || tokens[0].Close != len(tokens)-1 {
		r.fault(tokens[0], key, "%s is not an array of 32 bytes written out", clip(rustlex.Code(tokens)))
		return
	}
	inner := rustlex.Group(tokens, 0)
	if len(inner) == 3 && inner[1].Is(";") {
		r.repeat(key, inner, into)
		return
	}
	bytes := rustlex.Split(inner)
	for i, b := range bytes {
		if len(b) != 1 {
			at := tokens[0]
			if len(b) > 0 {
				at = b[0]
			}
			r.fault(at, key, "element %d is not a byte", i+1)
			return
		}
		v, err := oneByte(b[0])
		if err != nil {
			r.fault(b[0], key, "element %d: %v", i+1, err)
			return
		}
		if i < len(into) {
			into[i] = v
		}
	}
	if len(bytes) != len(into) {
		r.fault(tokens[0], key, "has %d bytes, not %d", len(bytes), len(into))
	}
}

func (r *rust) repeat(key string, inner []rustlex.Token, into *node.Hash) {
	v, err := oneByte(inner[0])
	if err != nil {
		r.fault(inner[0], key, "%v", err)
		return
	}
	count, err := rustlex.Uint(inner[2], 64, "usize")
	if err != nil || count != uint64(len(into)) {
		r.fault(inner[2], key, "repeats %s times, not %d", inner[2].Text, len(into))
		return
	}
	for i := range into {
		into[i] = v
	}
}

func oneByte(t rustlex.Token) (byte, error) {
	if t.Kind == rustlex.Byte {
		return t.Value[0], nil
	}
	v, err := rustlex.Uint(t, 8, "u8")
	return byte(v), err
}

// list reads &["a", "b"].
func (r *rust) list(key string, tokens []rustlex.Token) {
	r.mark(key, tokens)
	if len(tokens) < 3 || !tokens[0].Is("&") || !tokens[1].Is("[") || tokens[1].Close != len(tokens)-1 {
		r.fault(tokens[0], key, "%s is not a list written out as &[…]", clip(rustlex.Code(tokens)))
		return
	}
	for i, elem := range rustlex.Split(rustlex.Group(tokens, 1)) {
		if len(elem) != 1 || elem[0].Kind != rustlex.String {
			at := tokens[1]
			if len(elem) > 0 {
				at = elem[0]
			}
			r.fault(at, fmt.Sprintf("%s[%d]", key, i), "%s is not a string", clip(rustlex.Code(elem)))
			continue
		}
		r.out.at[fmt.Sprintf("%s[%d]", key, i)] = Position{elem[0].Line, elem[0].Column}
		r.out.Restart.Excluded = append(r.out.Restart.Excluded, elem[0].Value)
	}
}

// clip keeps a quoted piece of source short enough for a message.
func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}
