package gates

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/qnetops/qnetops/internal/rustlex"
	"github.com/qnetops/qnetops/internal/tomlfile"
)

// File is where the gates stand in the node's repository.
const File = "core/qnet-state/src/feature_gates.rs"

// siblings reads another module of the crate, by its path from the crate's source folder ("transaction.rs"), and names the
// file. It is nil where only one file is at hand.
type siblings func(rel string) (data []byte, name string, err error)

// Parse reads the content of a feature_gates.rs; name stands for the file in messages. Constants of other modules cannot be
// followed and leave their gates unreadable. What is no Rust source, or has no list of activations, is tomlfile.Problems.
func Parse(name string, data []byte) (Set, error) { return parse(name, data, nil) }

// unit is one module while its constants are being resolved.
type unit struct {
	name   string
	path   string // within the crate: "" is the gates' own module
	items  []rustlex.Item
	open   siblings
	others map[string]*unit
	busy   map[string]bool // constants being evaluated, to notice a circle
	used   map[string]bool // constants that some entry rests on
}

func problem(name string, line, column int, key, what, hint string) error {
	return tomlfile.Problems{{File: name, Line: line, Column: column, Key: key, What: what, Hint: hint}}
}

func lex(name string, data []byte) ([]rustlex.Item, error) {
	tokens, err := rustlex.Lex(data)
	var at *rustlex.Error
	if errors.As(err, &at) {
		return nil, problem(name, at.Line, at.Column, "", at.What, at.Hint)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return rustlex.Items(tokens), nil
}

func parse(name string, data []byte, open siblings) (Set, error) {
	items, err := lex(name, data)
	if err != nil {
		return Set{}, err
	}
	u := &unit{name: name, items: items, open: open, others: map[string]*unit{}, busy: map[string]bool{}, used: map[string]bool{}}
	u.others["feature_gates"] = u
	list, err := u.activations()
	if err != nil {
		return Set{}, err
	}
	s := Set{Source: name, IDs: u.ids()}
	for _, entry := range list {
		s.Gates = append(s.Gates, u.entry(entry))
	}
	for _, i := range items {
		if i.Kind == "const" && strings.HasSuffix(i.Name, "_GATE_HEIGHT") && !u.used[i.Name] {
			s.Idle = append(s.Idle, Gate{Const: i.Name, File: name, At: i.Head.Line, Line: i.Head.Line})
		}
	}
	return s, nil
}

// activations finds the one list of (id, height) pairs at the top level.
func (u *unit) activations() ([][]rustlex.Token, error) {
	const hint = "give the node's " + File
	found, err := u.only("ACTIVATIONS")
	if err != nil {
		return nil, problem(u.name, 0, 0, "ACTIVATIONS", err.Error(), hint)
	}
	at := func(what string) error {
		return problem(u.name, found.Head.Line, found.Head.Column, "ACTIVATIONS", what, hint)
	}
	if found.Cfg {
		return nil, at("an attribute decides whether this list is compiled, so the source does not say what a build holds")
	}
	v := found.Value
	if len(v) > 0 && v[0].Is("&") {
		v = rustlex.Cut(v, 1, len(v))
	}
	if len(v) == 0 || !v[0].Is("[") || v[0].Close != len(v)-1 {
		return nil, at("is not a list written out in brackets")
	}
	return rustlex.Split(rustlex.Group(v, 0)), nil
}

// only finds the constant of that name; none or several is an error.
func (u *unit) only(name string) (rustlex.Item, error) {
	var found []rustlex.Item
	var lines []string
	for _, i := range u.items {
		if (i.Kind == "const" || i.Kind == "static") && i.Name == name {
			found = append(found, i)
			lines = append(lines, fmt.Sprint(i.Head.Line))
		}
	}
	switch len(found) {
	case 0:
		return rustlex.Item{}, fmt.Errorf("there is no constant %s at the top level of the file", name)
	case 1:
		return found[0], nil
	}
	return rustlex.Item{}, fmt.Errorf("%s is defined in lines %s", name, strings.Join(lines, " and "))
}

// ids lists what mod id declares.
func (u *unit) ids() []ID {
	var out []ID
	for _, m := range u.items {
		if m.Kind != "mod" || m.Name != "id" {
			continue
		}
		for _, i := range rustlex.Items(m.Body) {
			if i.Kind == "const" && len(i.Value) == 1 && i.Value[0].Kind == rustlex.String {
				out = append(out, ID{Name: i.Name, Feature: i.Value[0].Value, Line: i.Head.Line})
			}
		}
	}
	return out
}

// entry reads one (id, height) pair.
func (u *unit) entry(tokens []rustlex.Token) Gate {
	tokens, attributed := rustlex.Attributed(tokens)
	if len(tokens) == 0 {
		return Gate{Why: "an entry is empty", File: u.name}
	}
	g := Gate{Feature: rustlex.Code(tokens), File: u.name, At: tokens[0].Line, Line: tokens[0].Line}
	if !tokens[0].Is("(") || tokens[0].Close != len(tokens)-1 {
		g.Why = "an entry is not a pair in parentheses"
		return g
	}
	pair := rustlex.Split(rustlex.Group(tokens, 0))
	if len(pair) != 2 || len(pair[0]) == 0 || len(pair[1]) == 0 {
		g.Why = "an entry does not have exactly an id and a height"
		return g
	}
	feature, err := u.feature(pair[0])
	g.Feature = feature
	v, herr := u.eval(pair[1])
	g.Const, g.File, g.At = v.name, v.file, v.line
	switch {
	case attributed:
		g.Why = "an attribute decides whether the entry is compiled"
	case err != nil:
		g.Why = err.Error()
	case herr != nil:
		g.Why = herr.Error()
	default:
		g.Height = &v.height
	}
	return g
}

// feature resolves the id of an entry: a string, id::NAME, or a constant of the module.
func (u *unit) feature(tokens []rustlex.Token) (string, error) {
	if len(tokens) == 1 && tokens[0].Kind == rustlex.String {
		return tokens[0].Value, nil
	}
	code := rustlex.Code(tokens)
	p := pathOf(tokens)
	if len(p) > 1 && (p[0] == "self" || p[0] == "Self") {
		p = p[1:]
	}
	var scope []rustlex.Item
	switch {
	case len(p) == 1:
		scope = u.items
	case len(p) == 2 && p[0] == "id":
		for _, m := range u.items {
			if m.Kind == "mod" && m.Name == "id" {
				scope = append(scope, rustlex.Items(m.Body)...)
			}
		}
	default:
		return code, fmt.Errorf("%s is not an id that can be resolved", code)
	}
	inner := unit{items: scope}
	item, err := inner.only(p[len(p)-1])
	switch {
	case err != nil:
		return code, fmt.Errorf("the id %s is not defined once in the file", code)
	case item.Cfg:
		return code, fmt.Errorf("an attribute decides whether the id %s is compiled", code)
	case len(item.Value) != 1 || item.Value[0].Kind != rustlex.String:
		return code, fmt.Errorf("the id %s is not a string", code)
	}
	return item.Value[0].Value, nil
}

// pathOf is a path a::b::c as its names; nil for anything else.
func pathOf(tokens []rustlex.Token) []string {
	var out []string
	for i, t := range tokens {
		switch i % 3 {
		case 0:
			if t.Kind != rustlex.Ident {
				return nil
			}
			out = append(out, t.Value)
		default:
			if !t.Is(":") {
				return nil
			}
		}
	}
	if len(tokens)%3 != 1 {
		return nil
	}
	return out
}

// value is a height and where it is written.
type value struct {
	height uint64
	name   string
	file   string
	line   int
}

// eval reads the expressions that the node's source uses for heights: a number, a constant, or a call of a const fn that is
// one of these. Anything else is an error, because a guessed height is worse than none.
func (u *unit) eval(tokens []rustlex.Token) (value, error) {
	v := value{file: u.name}
	if len(tokens) == 0 {
		return v, errors.New("there is no height")
	}
	v.line = tokens[0].Line
	if tokens[0].Is("(") && tokens[0].Close == len(tokens)-1 {
		return u.eval(rustlex.Group(tokens, 0))
	}
	if len(tokens) == 1 && tokens[0].Kind == rustlex.Number {
		h, err := rustlex.Uint(tokens[0], 64, "u64")
		v.height = h
		return v, err
	}
	call := false
	if n := len(tokens); n > 2 && tokens[n-2].Is("(") && tokens[n-1].Is(")") {
		tokens, call = tokens[:n-2], true
	}
	p := pathOf(tokens)
	if len(p) == 0 {
		return v, fmt.Errorf("the expression %s is not understood as a height", rustlex.Code(tokens))
	}
	if strings.Join(p, "::") == "u64::MAX" {
		v.height = math.MaxUint64
		return v, nil
	}
	home, err := u.module(p[:len(p)-1])
	if err != nil {
		return v, err
	}
	return home.lookup(p[len(p)-1], call)
}

// lookup evaluates a constant or a const fn of a module by its name.
func (u *unit) lookup(name string, call bool) (value, error) {
	v := value{name: name, file: u.name}
	if u.busy[name] {
		return v, fmt.Errorf("%s is defined by itself", name)
	}
	u.busy[name], u.used[name] = true, true
	defer delete(u.busy, name)
	var found []rustlex.Item
	for _, i := range u.items {
		if i.Name == name && (i.Kind == "fn") == call && (i.Kind == "fn" || i.Kind == "const" || i.Kind == "static") {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		return v, fmt.Errorf("%s is not defined exactly once in %s", name, u.name)
	}
	item := found[0]
	v.line = item.Head.Line
	body := item.Value
	if call {
		body = item.Body
	}
	switch {
	case item.Cfg:
		return v, fmt.Errorf("an attribute decides whether %s is compiled", name)
	case rustlex.Code(item.Type) != "u64":
		return v, fmt.Errorf("%s is not a u64", name)
	}
	inner, err := u.eval(body)
	if inner.name == "" {
		inner.name, inner.line = name, v.line
	}
	return inner, err
}

// module finds the module that a path leads to: this one, or a file of the crate.
func (u *unit) module(p []string) (*unit, error) {
	if len(p) == 0 || len(p) == 1 && p[0] == "self" {
		return u, nil
	}
	if p[0] == "super" && u.path == "" { // the gates' module is a child of the crate
		p = append([]string{"crate"}, p[1:]...)
	}
	if p[0] != "crate" || len(p) != 2 {
		return nil, fmt.Errorf("the module %s cannot be followed", strings.Join(p, "::"))
	}
	if other := u.others[p[1]]; other != nil {
		return other, nil
	}
	if u.open == nil {
		return nil, fmt.Errorf("the height stands in the module %s, which is not at hand: give the source tree instead of one file", p[1])
	}
	data, name, err := u.open(p[1] + ".rs")
	if err != nil {
		data, name, err = u.open(path.Join(p[1], "mod.rs"))
	}
	if err != nil {
		return nil, fmt.Errorf("the height stands in the module %s, which is not at hand: %w", p[1], err)
	}
	items, err := lex(name, data)
	if err != nil {
		return nil, fmt.Errorf("the height stands in another file: %w", err)
	}
	other := &unit{name: name, path: p[1], items: items, open: u.open, others: u.others, busy: map[string]bool{}, used: map[string]bool{}}
	u.others[p[1]] = other
	return other, nil
}
