package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

// MaxSize bounds a file, in bytes. An inventory of 1000 hosts is about 200 KB; a file beyond this is the wrong file.
const MaxSize = 8 << 20

// Decode reads path into a T. Positions is nil only where the file could not be read (*FileError); otherwise it holds the
// place of every key and the faults found so far, which are also the returned error (Problems). A faulty file still gives
// the parts of T that could be read.
func Decode[T any](path string) (T, *Positions, error) {
	var zero T
	data, err := read(path)
	if err != nil {
		return zero, nil, &FileError{Path: path, Err: err}
	}
	return DecodeBytes[T](path, data)
}

// DecodeBytes is Decode for content already in memory; name stands for the file in faults.
func DecodeBytes[T any](name string, data []byte) (T, *Positions, error) {
	var value T
	pos := newPositions(name, data)
	if !pos.readable() {
		return value, pos, pos.Err()
	}
	clean := scan(pos, reflect.TypeFor[T]())
	if len(pos.problems) > 0 {
		// What is left after blanking the faulty statements; an error here would only repeat a fault already named.
		if err := toml.Unmarshal(clean, &value); err != nil {
			var fresh T
			value = fresh
		}
		return value, pos, pos.Err()
	}
	pos.judge(pos.data, &value)
	return value, pos, pos.Err()
}

// judge lets go-toml have the last word: whatever the walk missed is still refused, with go-toml's own position.
func (p *Positions) judge(data []byte, into any) {
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	err := dec.Decode(into)
	var missing *toml.StrictMissingError
	var single *toml.DecodeError
	switch {
	case err == nil:
	case errors.As(err, &missing):
		for i := range missing.Errors {
			e := &missing.Errors[i]
			line, col := e.Position()
			p.problems = append(p.problems, Problem{File: p.File, Line: line, Column: col, Key: keyText(e.Key()), What: "unknown key"})
		}
	case errors.As(err, &single):
		line, col := single.Position()
		p.problems = append(p.problems, Problem{File: p.File, Line: line, Column: col, Key: keyText(single.Key()), What: tidy(single.Error())})
	default:
		p.problems = append(p.problems, Problem{File: p.File, What: tidy(err.Error())})
	}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.New("is a folder, not a file")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxSize {
		return nil, fmt.Errorf("is larger than %d bytes", MaxSize)
	}
	return data, nil
}

// Positions knows where each key of one file stands and collects the faults of that file.
type Positions struct {
	File     string
	data     []byte
	lines    []int          // offset of the first byte of each line
	keys     map[string]int // key path -> offset
	problems Problems
	faulty   map[string]bool // keys with a fault of type or spelling: further faults there would only be noise
	broken   bool            // part of the file could not be parsed, so an absent key proves nothing
}

func newPositions(name string, data []byte) *Positions {
	data = bytes.Clone(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))) // editors on Windows put a byte order mark there
	p := &Positions{File: name, data: data, lines: []int{0}, keys: map[string]int{}, faulty: map[string]bool{}}
	for i, c := range data {
		if c == '\n' {
			p.lines = append(p.lines, i+1)
		}
	}
	return p
}

// readable refuses content that is no text before a parser sees it: the message can then name the real cause.
func (p *Positions) readable() bool {
	if bytes.HasPrefix(p.data, []byte("\xff\xfe")) || bytes.HasPrefix(p.data, []byte("\xfe\xff")) {
		p.fault(0, "", "the file is UTF-16", "save it as UTF-8")
		return false
	}
	for off := 0; off < len(p.data); {
		r, size := utf8.DecodeRune(p.data[off:])
		if r == utf8.RuneError && size == 1 {
			p.fault(off, "", fmt.Sprintf("byte 0x%02x is not UTF-8", p.data[off]), "save the file as UTF-8")
			return false
		}
		if r == 0 {
			p.fault(off, "", "the file holds a zero byte", "it is not a text file, or was cut off by a crash")
			return false
		}
		off += size
	}
	if empty(p.data) {
		p.problems = append(p.problems, Problem{File: p.File, What: "the file is empty", Hint: "an .example.toml shows every field"})
		return false
	}
	return true
}

// empty reports whether there is nothing but blanks and comments.
func empty(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// Has reports whether the file sets key, or opens a table of that name.
func (p *Positions) Has(key string) bool { _, ok := p.keys[key]; return ok }

// Lookup gives line and column of key, both from 1; ok is false when the file does not set it.
func (p *Positions) Lookup(key string) (line, column int, ok bool) {
	off, ok := p.keys[key]
	if !ok {
		return 0, 0, false
	}
	line, column = p.place(off)
	return line, column, true
}

// Add records a fault found by the caller at key. A key that is missing is placed at the table it should stand in. Where
// the key already has a fault the new one is dropped: a port that is no number is not also "missing". In a file with
// faults of syntax only keys that are really there can be faulted, since the missing ones may stand in the broken part.
func (p *Positions) Add(key, what, hint string) {
	for k := key; k != ""; k = parent(k) {
		if p.faulty[k] {
			return
		}
	}
	if p.broken && !p.Has(key) {
		return
	}
	prob := Problem{File: p.File, Key: key, What: what, Hint: hint}
	for k := key; k != ""; k = parent(k) {
		if line, column, ok := p.Lookup(k); ok {
			prob.Line, prob.Column = line, column
			break
		}
	}
	p.problems = append(p.problems, prob)
}

// Addf is Add without a hint and with a formatted text.
func (p *Positions) Addf(key, format string, args ...any) {
	p.Add(key, fmt.Sprintf(format, args...), "")
}

// Err is all faults so far, in the order of the file, as Problems; nil when there are none.
func (p *Positions) Err() error {
	if len(p.problems) == 0 {
		return nil
	}
	return p.problems.sorted()
}

func (p *Positions) fault(offset int, key, what, hint string) {
	line, column := p.place(offset)
	p.problems = append(p.problems, Problem{File: p.File, Line: line, Column: column, Key: key, What: what, Hint: hint})
	if key != "" {
		p.faulty[key] = true
	}
}

// place turns a byte offset into line and column, both from 1.
func (p *Positions) place(offset int) (line, column int) {
	offset = min(offset, len(p.data))
	i := sort.SearchInts(p.lines, offset+1) - 1
	return i + 1, utf8.RuneCount(p.data[p.lines[i]:offset]) + 1
}

// parent is the key one level up: hosts[3].port, hosts[3], hosts, "".
func parent(key string) string {
	quoted := false
	cut := 0
	for i := 0; i < len(key); i++ {
		switch c := key[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case (c == '.' || c == '[') && !quoted:
			cut = i
		}
	}
	return key[:cut]
}
