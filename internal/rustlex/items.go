package rustlex

import (
	"fmt"
	"strconv"
	"strings"
)

// Item is one item of a module: a constant, a function, a module, or something else that is passed over.
type Item struct {
	Kind  string // const, static, fn, mod, or the keyword of another item
	Name  string
	Const bool    // a const fn
	Cfg   bool    // an attribute decides whether it is compiled at all
	Head  Token   // the token of its name, or its first one
	Type  []Token // of a const or static; the result of a fn
	Value []Token // of a const or static: between = and ;
	Body  []Token // of a fn or mod: inside its braces
}

// Group is the tokens inside the bracket at index i of tokens, whose Close counts within tokens.
func Group(tokens []Token, i int) []Token { return Cut(tokens, i+1, tokens[i].Close) }

// Cut is tokens[from:to] with the bracket indices made relative to it.
func Cut(tokens []Token, from, to int) []Token {
	out := make([]Token, to-from)
	for i, t := range tokens[from:to] {
		if t.Close > 0 {
			t.Close -= from
		}
		out[i] = t
	}
	return out
}

// skip is the index behind the token at i, or behind the bracket that opens there.
func skip(tokens []Token, i int) int {
	if c := tokens[i].Close; c > i {
		return c + 1
	}
	return i + 1
}

// Items lists what stands at the top level of a module, in order. Source that compiles is split as the compiler does; of other
// source an item may be missing, never invented from a comment, a string or the inside of another item.
func Items(tokens []Token) []Item {
	var out []Item
	for i := 0; i < len(tokens); {
		var cfg bool
		if i, cfg = attributes(tokens, i); i >= len(tokens) {
			break
		}
		from := i
		i = visibility(tokens, i)
		end := itemEnd(tokens, i)
		item := shape(Cut(tokens, i, end))
		item.Cfg = cfg
		if item.Head.Text == "" {
			item.Head = tokens[from]
		}
		out = append(out, item)
		i = end
	}
	return out
}

// attributes skips #[…] and #![…]. An inner attribute is about the whole module.
func attributes(tokens []Token, i int) (next int, cfg bool) {
	for i < len(tokens) && tokens[i].Is("#") {
		j := i + 1
		if j < len(tokens) && tokens[j].Is("!") {
			j++
		}
		if j >= len(tokens) || !tokens[j].Is("[") {
			break
		}
		for _, t := range Group(tokens, j) {
			if t.Is("cfg") || t.Is("cfg_attr") {
				cfg = true
			}
			break
		}
		i = skip(tokens, j)
	}
	return i, cfg
}

// visibility skips pub and pub(crate).
func visibility(tokens []Token, i int) int {
	if i < len(tokens) && tokens[i].Is("pub") {
		if i++; i < len(tokens) && tokens[i].Is("(") {
			i = skip(tokens, i)
		}
	}
	return i
}

// isValue reports whether an item is a constant, which ends at a semicolon whatever brackets it holds.
func isValue(tokens []Token) bool {
	if len(tokens) < 2 || !tokens[0].Is("const") && !tokens[0].Is("static") {
		return false
	}
	for _, t := range tokens[1:min(len(tokens), 5)] {
		switch {
		case t.Is("fn"):
			return false
		case t.Is(":"):
			return true
		}
	}
	return true
}

// itemEnd is the index behind the item that starts at i.
func itemEnd(tokens []Token, i int) int {
	if i >= len(tokens) {
		return i
	}
	rest := tokens[i:]
	toSemicolon := isValue(rest) || rest[0].Is("use") || rest[0].Is("type") || rest[0].Is("let")
	for j := i; j < len(tokens); j = skip(tokens, j) {
		t := tokens[j]
		if t.Is(";") {
			return j + 1
		}
		if t.Is("{") && !toSemicolon {
			return skip(tokens, j)
		}
	}
	return len(tokens)
}

// shape reads what an item is.
func shape(t []Token) Item {
	switch {
	case isValue(t):
		return value(t)
	case len(t) > 1 && t[0].Is("mod"):
		item := Item{Kind: "mod", Name: t[1].Value, Head: t[1]}
		if len(t) > 2 && t[2].Is("{") {
			item.Body = Group(t, 2)
		}
		return item
	}
	for i := 0; i < min(len(t)-1, 6); i++ {
		if t[i].Is("fn") {
			return function(t, i)
		}
		if t[i].Kind != Ident && t[i].Kind != String {
			break
		}
	}
	if len(t) == 0 {
		return Item{}
	}
	return Item{Kind: t[0].Text, Head: t[0]}
}

func value(t []Token) Item {
	item := Item{Kind: t[0].Text}
	i := 1
	if i < len(t) && t[i].Is("mut") {
		i++
	}
	if i < len(t) {
		item.Name, item.Head = t[i].Value, t[i]
	}
	if i++; i >= len(t) || !t[i].Is(":") {
		return item
	}
	from := i + 1
	for i = from; i < len(t) && !t[i].Is("=") && !t[i].Is(";"); i = skip(t, i) {
	}
	item.Type = Cut(t, from, min(i, len(t)))
	if i < len(t) && t[i].Is("=") {
		end := len(t)
		if t[end-1].Is(";") {
			end--
		}
		item.Value = Cut(t, i+1, end)
	}
	return item
}

func function(t []Token, fn int) Item {
	item := Item{Kind: "fn", Name: t[fn+1].Value, Head: t[fn+1], Const: t[0].Is("const")}
	for i := fn + 2; i < len(t); i = skip(t, i) {
		switch {
		case t[i].Is("{"):
			item.Body = Group(t, i)
			return item
		case t[i].Is("-") && i+1 < len(t) && t[i+1].Is(">"):
			from := i + 2
			for i = from; i < len(t) && !t[i].Is("{") && !t[i].Is("where"); i = skip(t, i) {
			}
			item.Type = Cut(t, from, min(i, len(t)))
			i--
		}
	}
	return item
}

// Split cuts tokens at the commas that stand outside of brackets; a trailing comma opens no part.
func Split(tokens []Token) [][]Token {
	var out [][]Token
	from := 0
	for i := 0; i < len(tokens); i = skip(tokens, i) {
		if tokens[i].Is(",") {
			out = append(out, Cut(tokens, from, i))
			from = i + 1
		}
	}
	if from < len(tokens) {
		out = append(out, Cut(tokens, from, len(tokens)))
	}
	return out
}

// Code is the tokens as one line of text, without comments.
func Code(tokens []Token) string {
	var b strings.Builder
	for i, t := range tokens {
		wordy := func(k Kind) bool { return k != Punct }
		if i > 0 && (wordy(t.Kind) && wordy(tokens[i-1].Kind) || tokens[i-1].Is(",") || tokens[i-1].Is(";")) {
			b.WriteByte(' ')
		}
		b.WriteString(t.Text)
	}
	return b.String()
}

// Attributed reports whether tokens begin with an attribute, and returns what follows it.
func Attributed(tokens []Token) (rest []Token, attributed bool) {
	i, _ := attributes(tokens, 0)
	return Cut(tokens, i, len(tokens)), i > 0
}

// Uint is the value of an integer literal: underscores, 0x, 0o, 0b, and a suffix if it is one of those given.
func Uint(t Token, bits int, suffixes ...string) (uint64, error) {
	if t.Kind != Number {
		return 0, fmt.Errorf("%q is not a number", t.Text)
	}
	text := t.Text
	for _, s := range suffixes {
		if cut, ok := strings.CutSuffix(text, s); ok {
			text = cut
			break
		}
	}
	base := 10
	for prefix, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
		if cut, ok := strings.CutPrefix(text, prefix); ok {
			text, base = cut, b
			break
		}
	}
	v, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), base, bits)
	if err != nil {
		if ne, ok := err.(*strconv.NumError); ok && ne.Err == strconv.ErrRange {
			return 0, fmt.Errorf("%s does not fit in %d bits", t.Text, bits)
		}
		return 0, fmt.Errorf("%q is not a whole number", t.Text)
	}
	return v, nil
}
