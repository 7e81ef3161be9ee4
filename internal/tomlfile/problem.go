package tomlfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Problem is one fault of a file. Line and Column count from 1, Column in characters; both are 0 where the fault has no
// place (a key that is missing from the top of the file). Key is empty for faults of syntax.
type Problem struct {
	File         string
	Line, Column int
	Key          string
	What         string
	Hint         string
}

// String is `file:line:column: key: what; hint`, without the parts that are not known.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	b.WriteString(": ")
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.What)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Problems are all faults of one file, in the order of the file. It is an error of one line a fault.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Hint says what to do about the list as a whole; each fault carries its own.
func (ps Problems) Hint() string {
	if len(ps) == 0 {
		return ""
	}
	lines := map[int]bool{} // a line may have several faults; 0 is where a key is missing, which is one line to write
	missing := 0
	for _, p := range ps {
		if p.Line == 0 {
			missing++
			continue
		}
		lines[p.Line] = true
	}
	if n := len(lines) + missing; n > 1 {
		return fmt.Sprintf("mend the %d lines of %s; they are all that is wrong", n, ps[0].File)
	}
	return "mend that line of " + ps[0].File
}

func (ps Problems) sorted() Problems {
	out := slices.Clone(ps)
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Key, b.Key))
	})
	return slices.Compact(out)
}

// FileError is a file that could not be read at all. It unwraps to the cause, so errors.Is(err, fs.ErrNotExist) works.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return "reading " + e.Path + ": " + cause(e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Hint names what to do: a missing file and a forbidden one need different hands.
func (e *FileError) Hint() string {
	switch {
	case errors.Is(e.Err, fs.ErrNotExist):
		return "there is no such file: check the path and the folder you are in, or write the file (an .example.toml shows every field)"
	case errors.Is(e.Err, fs.ErrPermission):
		return "the file is there but may not be read: check its owner and mode"
	}
	return "give the path of a TOML file"
}

// cause drops the path from a path error, which the message has already named.
func cause(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
