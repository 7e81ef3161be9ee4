package restart

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FileFault is one fault of a file. Line and Column count from 1 and are 0 where only the key is known.
type FileFault struct {
	File         string
	Line, Column int
	Key          string // a JSON path such as hosts[2].macroblocks[7].hash, or a word of the line
	What         string
}

// String is `file:line:column: key: what` without the parts that are not known.
func (f FileFault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
		if f.Column > 0 {
			fmt.Fprintf(&b, ":%d", f.Column)
		}
	}
	b.WriteString(": ")
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	b.WriteString(f.What)
	return b.String()
}

// FileFaults are all faults of one file: an error of one line a fault.
type FileFaults struct {
	Faults []FileFault
	hint   string
}

func (e *FileFaults) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// Hint says what to do with such a file.
func (e *FileFaults) Hint() string { return e.hint }

// First is the first fault and how many there are, for where there is room for a line only.
func (e *FileFaults) First() string {
	if len(e.Faults) == 1 {
		return e.Faults[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", e.Faults[0], len(e.Faults)-1)
}

// unshown says whether a character is one that is not shown but acted on: a control character, a line separator, or a sign that
// hides text or turns it round. In a name or a reason that somebody else wrote it could make a terminal or a page say something else.
func unshown(r rune) bool {
	return r < ' ' || r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// isPlain says whether a text can be shown as it is.
func isPlain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unshown) }

// notPlain is the offset of the first character of a canonical document that its texts must not hold; -1 where there is none.
// Control characters are escaped there, and nothing else is but the quote and the backslash.
func notPlain(data []byte) int {
	for i := 0; i < len(data); {
		switch b := data[i]; {
		case b == '\\' && i+1 < len(data) && (data[i+1] == '"' || data[i+1] == '\\'):
			i += 2
		case b == '\\' || b < ' ' || b == 0x7f:
			return i
		case b < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(data[i:])
			if unshown(r) {
				return i
			}
			i += n
		}
	}
	return -1
}

// clipped shortens text of unknown origin before it enters an error, and keeps what acts on a terminal out of it.
func clipped(s string) string {
	s = strings.Map(func(r rune) rune {
		if unshown(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	const most = 200
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
