package restart

import (
	"fmt"
	"strings"
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

// clipped shortens text of unknown origin before it enters an error, and keeps control characters out of a terminal.
func clipped(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
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
