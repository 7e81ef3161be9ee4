package rustlex

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxSize bounds a source file; the node's largest is well below a megabyte.
const MaxSize = 16 << 20

// Kind is what a token is.
type Kind int

// The kinds of tokens. Comments and blanks are no tokens.
const (
	Ident    Kind = iota // a name or keyword; Value is without r#
	Number               // an integer or float with its suffix
	String               // "…" or r#"…"#; Value is the text it stands for
	Bytes                // b"…", br"…", c"…", cr"…"
	Char                 // 'c'
	Byte                 // b'c'; Value is the one byte
	Lifetime             // 'a
	Punct                // one character of punctuation
)

// Token is one token and where it stands.
type Token struct {
	Kind   Kind
	Text   string // as written
	Value  string // what an Ident, String or Byte stands for
	Offset int    // of its first byte
	Line   int    // from 1
	Column int    // from 1, in characters
	Close  int    // for an opening bracket: index of the closing one
}

// End is the offset of the first byte behind the token.
func (t Token) End() int { return t.Offset + len(t.Text) }

// Is reports whether the token is this punctuation, name or keyword.
func (t Token) Is(text string) bool {
	return (t.Kind == Punct || t.Kind == Ident) && t.Text == text
}

// Error is a file that is no Rust source, with the place where that shows.
type Error struct {
	Line, Column int
	What, Hint   string
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.What) }

type lexer struct {
	src    []byte
	at     int
	line   int
	start  int // offset of the line's first byte
	tokens []Token
}

// Lex splits a source file into tokens and matches its brackets. A byte order mark and either kind of line end are accepted,
// as the compiler accepts them; what is cut off in a string, a comment or a bracket is an *Error at the place that opens it.
func Lex(src []byte) ([]Token, error) {
	l := &lexer{src: src, line: 1}
	if err := l.readable(); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(src, []byte("\xef\xbb\xbf")) {
		l.at, l.start = 3, 3
	}
	if rest := src[l.at:]; bytes.HasPrefix(rest, []byte("#!")) && !bytes.HasPrefix(bytes.TrimLeft(rest[2:], " \t\r\n"), []byte("[")) {
		l.skipLine()
	}
	for l.at < len(src) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	if err := l.match(); err != nil {
		return nil, err
	}
	return l.tokens, nil
}

// readable refuses content that is no text, naming the likely cause.
func (l *lexer) readable() error {
	if len(l.src) > MaxSize {
		return &Error{Line: 1, Column: 1, What: fmt.Sprintf("the file is larger than %d bytes", MaxSize), Hint: "give a Rust source file"}
	}
	if bytes.HasPrefix(l.src, []byte("\xff\xfe")) || bytes.HasPrefix(l.src, []byte("\xfe\xff")) {
		return &Error{Line: 1, Column: 1, What: "the file is UTF-16", Hint: "save it as UTF-8"}
	}
	line, start := 1, 0
	for off := 0; off < len(l.src); {
		r, size := utf8.DecodeRune(l.src[off:])
		what, hint := "", ""
		switch {
		case r == utf8.RuneError && size == 1:
			what, hint = fmt.Sprintf("byte 0x%02x is not UTF-8", l.src[off]), "save the file as UTF-8"
		case r == 0:
			what, hint = "the file holds a zero byte", "it is not a text file, or was cut off by a crash"
		}
		if what != "" {
			return &Error{Line: line, Column: utf8.RuneCount(l.src[start:off]) + 1, What: what, Hint: hint}
		}
		if off += size; r == '\n' {
			line, start = line+1, off
		}
	}
	return nil
}

// place is the position of the byte the lexer stands at.
func (l *lexer) place() (line, column int) {
	return l.line, utf8.RuneCount(l.src[l.start:l.at]) + 1
}

func (l *lexer) fault(format string, args ...any) error {
	line, column := l.place()
	return &Error{Line: line, Column: column, What: fmt.Sprintf(format, args...)}
}

func (l *lexer) peek(n int) byte {
	if l.at+n < len(l.src) {
		return l.src[l.at+n]
	}
	return 0
}

// advance moves on n bytes, counting lines.
func (l *lexer) advance(n int) {
	for range n {
		if l.src[l.at] == '\n' {
			l.line, l.start = l.line+1, l.at+1
		}
		l.at++
	}
}

func (l *lexer) skipLine() {
	for l.at < len(l.src) && l.src[l.at] != '\n' {
		l.at++
	}
}

// emit makes the next n bytes a token.
func (l *lexer) emit(kind Kind, n int, value string) {
	line, column := l.place()
	l.tokens = append(l.tokens, Token{Kind: kind, Text: string(l.src[l.at : l.at+n]), Value: value, Offset: l.at, Line: line, Column: column})
	l.advance(n)
}

// next reads one token, blank or comment.
func (l *lexer) next() error {
	r, size := utf8.DecodeRune(l.src[l.at:])
	switch {
	case unicode.IsSpace(r) || r == '\u200e' || r == '\u200f':
		l.advance(size)
	case r == '/' && l.peek(1) == '/':
		l.skipLine()
	case r == '/' && l.peek(1) == '*':
		return l.blockComment()
	case r == '"':
		return l.quoted(0, String)
	case r == '\'':
		return l.charOrLifetime()
	case r >= '0' && r <= '9':
		l.number()
	case isStart(r):
		return l.word()
	case r < utf8.RuneSelf && strings.ContainsRune("!#$%&()*+,-./:;<=>?@[]^{|}~", r):
		l.emit(Punct, 1, "")
	default:
		return l.fault("the character %q has no meaning here", r)
	}
	return nil
}

// blockComment skips /* … */, which nests in Rust.
func (l *lexer) blockComment() error {
	unclosed := l.fault("a comment is opened with /* and never closed")
	depth := 0
	for l.at < len(l.src) {
		switch {
		case l.src[l.at] == '/' && l.peek(1) == '*':
			depth++
			l.advance(2)
		case l.src[l.at] == '*' && l.peek(1) == '/':
			depth--
			l.advance(2)
			if depth == 0 {
				return nil
			}
		default:
			l.advance(1)
		}
	}
	return unclosed
}

func isStart(r rune) bool { return r == '_' || unicode.IsLetter(r) }
func isPart(r rune) bool {
	return isStart(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Mc, r)
}

// wordLen is the length of the name that starts n bytes ahead.
func (l *lexer) wordLen(n int) int {
	from := l.at + n
	to := from
	for to < len(l.src) {
		r, size := utf8.DecodeRune(l.src[to:])
		if !isPart(r) {
			break
		}
		to += size
	}
	return to - from
}

// word reads a name, or a literal with a prefix of letters.
func (l *lexer) word() error {
	n := l.wordLen(0)
	prefix, next := string(l.src[l.at:l.at+n]), l.peek(n)
	switch {
	case next == '"' && (prefix == "b" || prefix == "c"):
		return l.quoted(n, Bytes)
	case next == '\'' && prefix == "b":
		return l.byteChar()
	case (next == '"' || next == '#') && (prefix == "r" || prefix == "br" || prefix == "cr"):
		kind := Bytes
		if prefix == "r" {
			kind = String
		}
		if raw, err := l.raw(n, kind); raw || err != nil {
			return err
		}
		if prefix == "r" && next == '#' && l.wordLen(2) > 0 {
			m := l.wordLen(2)
			l.emit(Ident, 2+m, string(l.src[l.at+2:l.at+2+m]))
			return nil
		}
	}
	l.emit(Ident, n, prefix)
	return nil
}

// raw reads r"…" or r#"…"#, whose prefix has n bytes; false where it is none.
func (l *lexer) raw(n int, kind Kind) (bool, error) {
	hashes := 0
	for l.peek(n+hashes) == '#' {
		hashes++
	}
	if l.peek(n+hashes) != '"' {
		return false, nil
	}
	open := n + hashes + 1
	end := bytes.Index(l.src[l.at+open:], []byte(`"`+strings.Repeat("#", hashes)))
	if end < 0 {
		return false, l.fault("a raw string is opened and never closed")
	}
	text := string(l.src[l.at+open : l.at+open+end])
	l.emit(kind, open+end+1+hashes, strings.ReplaceAll(text, "\r\n", "\n"))
	return true, nil
}

// quoted reads a string with escapes whose quote stands n bytes ahead.
func (l *lexer) quoted(n int, kind Kind) error {
	var b strings.Builder
	for i := n + 1; ; {
		if l.at+i >= len(l.src) {
			return l.fault("a string is opened and never closed")
		}
		switch c := l.src[l.at+i]; {
		case c == '"':
			l.emit(kind, i+1, b.String())
			return nil
		case c == '\\':
			text, used, err := l.escape(i)
			if err != nil {
				return err
			}
			b.WriteString(text)
			i += used
		case c == '\r' && l.peek(i+1) == '\n':
			i++
		default:
			b.WriteByte(c)
			i++
		}
	}
}

// escape reads the escape i bytes ahead and returns its text and length. \xNN above 7f is only valid in byte strings.
func (l *lexer) escape(i int) (string, int, error) {
	simple := map[byte]string{'n': "\n", 'r': "\r", 't': "\t", '\\': "\\", '0': "\x00", '\'': "'", '"': `"`}
	c := l.peek(i + 1)
	if text, ok := simple[c]; ok {
		return text, 2, nil
	}
	switch {
	case c == 'x' && isHex(l.peek(i+2)) && isHex(l.peek(i+3)):
		return string([]byte{hexValue(l.peek(i+2))<<4 | hexValue(l.peek(i+3))}), 4, nil
	case c == 'u' && l.peek(i+2) == '{':
		return l.unicodeEscape(i)
	case c == '\n' || c == '\r' && l.peek(i+2) == '\n':
		n := 1
		for strings.IndexByte(" \t\r\n", l.peek(i+n)) >= 0 && l.at+i+n < len(l.src) {
			n++
		}
		return "", n, nil
	}
	l.advance(i)
	return "", 0, l.fault("a string holds an escape that Rust does not know")
}

func (l *lexer) unicodeEscape(i int) (string, int, error) {
	var v rune
	digits := 0
	for n := 3; ; n++ {
		c := l.peek(i + n)
		switch {
		case c == '_' && digits > 0:
		case isHex(c) && digits < 6:
			v, digits = v<<4|rune(hexValue(c)), digits+1
		case c == '}' && digits > 0 && utf8.ValidRune(v):
			return string(v), n + 1, nil
		default:
			l.advance(i)
			return "", 0, l.fault(`\u{…} does not name a character`)
		}
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func hexValue(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	}
	return c - 'A' + 10
}

// charOrLifetime tells 'a' from 'a: a lifetime is a name without a quote behind it.
func (l *lexer) charOrLifetime() error {
	r, size := utf8.DecodeRune(l.src[min(l.at+1, len(l.src)):])
	switch {
	case r == '\\':
		text, used, err := l.escape(1)
		if err != nil {
			return err
		}
		if l.peek(1+used) != '\'' {
			return l.fault("a character is opened with ' and never closed")
		}
		l.emit(Char, used+2, text)
	case size > 0 && r != '\'' && r != '\n' && r != '\r' && l.peek(1+size) == '\'':
		l.emit(Char, size+2, string(r))
	case isStart(r):
		l.emit(Lifetime, 1+l.wordLen(1), "")
	default:
		return l.fault("a character is opened with ' and never closed")
	}
	return nil
}

// byteChar reads b'c'.
func (l *lexer) byteChar() error {
	text, used := string([]byte{l.peek(2)}), 1
	if l.peek(2) == '\\' {
		var err error
		if text, used, err = l.escape(2); err != nil {
			return err
		}
	}
	if len(text) != 1 || l.peek(2) == '\'' || l.peek(2+used) != '\'' {
		return l.fault("b' does not hold exactly one byte")
	}
	l.emit(Byte, used+3, text)
	return nil
}

// number reads digits with underscores, prefix and suffix. A dot belongs to it only when a digit follows and it is not the
// field of a tuple: in WS_CHECKPOINT.0 the 0 is a token of its own, and in 0..9 it ends before the dots.
func (l *lexer) number() {
	n := l.wordLen(0)
	field := len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].Is(".")
	if d := l.peek(n + 1); !field && l.peek(n) == '.' && d >= '0' && d <= '9' {
		n += 1 + l.wordLen(n+1)
	}
	l.emit(Number, n, "")
}

// match pairs the brackets; in a truncated file the first one left open is named.
func (l *lexer) match() error {
	var open []int
	closing := map[string]string{"(": ")", "[": "]", "{": "}"}
	for i, t := range l.tokens {
		if t.Kind != Punct {
			continue
		}
		switch t.Text {
		case "(", "[", "{":
			open = append(open, i)
		case ")", "]", "}":
			if len(open) == 0 {
				return &Error{Line: t.Line, Column: t.Column, What: fmt.Sprintf("%q closes nothing", t.Text)}
			}
			last := &l.tokens[open[len(open)-1]]
			if closing[last.Text] != t.Text {
				return &Error{Line: t.Line, Column: t.Column, What: fmt.Sprintf("%q does not close the %q of line %d", t.Text, last.Text, last.Line)}
			}
			last.Close = i
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t := l.tokens[open[len(open)-1]]
		return &Error{Line: t.Line, Column: t.Column, What: fmt.Sprintf("%q is never closed", t.Text), Hint: "the file seems to be cut off; fetch it again"}
	}
	return nil
}
