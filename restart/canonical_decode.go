package restart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qnetops/qnetops/node"
)

// MaxEvidence is the largest file of evidence that is read or written, in bytes: a committee of a thousand makes some
// megabytes a host.
const MaxEvidence = 64 << 20

// maxFaults bounds how many faults of one file are listed.
const maxFaults = 100

// Decode reads a file of evidence. It is strict: what comes back has the canonical form data, byte for byte, so a signature
// over data is one over what was read. Anything else is *FileFaults with the place of every fault that was found: keys that
// are unknown, doubled or missing, values of the wrong kind, lists out of order, times after the evidence was taken.
// Whether it was taken in the future is for Merge to say, which knows the time.
func Decode(name string, data []byte) (Evidence, error) {
	if len(data) > MaxEvidence {
		return Evidence{}, evidenceFaults([]FileFault{{File: name, What: fmt.Sprintf("is %d bytes, more than the %d an evidence file may have", len(data), MaxEvidence)}})
	}
	var ev Evidence
	if json.Unmarshal(data, &ev) == nil {
		if again, err := Canonical(ev); err == nil && bytes.Equal(again, data) {
			r := reader{name: name, data: data}
			r.plain()
			if faults := append(r.faults, judgeEvidence(name, ev)...); len(faults) > 0 {
				return Evidence{}, evidenceFaults(faults)
			}
			return ev, nil
		}
	}
	return Evidence{}, evidenceFaults(explain(name, data))
}

func evidenceFaults(faults []FileFault) error {
	if len(faults) > maxFaults {
		faults = faults[:maxFaults]
	}
	return &FileFaults{faults, "evidence is not edited by hand: ask its operator for the file and its .sig again, or gather anew"}
}

// explain says what is wrong with bytes that are no canonical evidence. It comes back with at least one fault.
func explain(name string, data []byte) []FileFault {
	r := reader{name: name, data: data}
	if r.bytesOK(); len(r.faults) > 0 {
		return r.faults
	}
	root := r.read()
	if root == nil {
		return r.faults
	}
	r.match(root, reflect.TypeFor[Evidence](), "")
	var ev Evidence
	if len(r.faults) == 0 {
		if err := json.Unmarshal(data, &ev); err != nil {
			return []FileFault{{File: name, What: err.Error()}}
		}
		r.faults = judgeEvidence(name, ev)
	}
	if len(r.faults) > 0 {
		return r.faults
	}
	again, err := Canonical(ev)
	if err != nil {
		return []FileFault{{File: name, What: err.Error()}}
	}
	at := 0
	for at < min(len(again), len(data)) && again[at] == data[at] {
		at++
	}
	r.fault(at, "", "is not the canonical form of what it says (RFC 8785, no newline at the end): it differs from here on")
	return r.faults
}

// reader takes JSON apart and remembers where things stand.
type reader struct {
	name   string
	data   []byte
	dec    *json.Decoder
	faults []FileFault
}

func (r *reader) fault(offset int, key, format string, args ...any) {
	if len(r.faults) >= maxFaults {
		return // finding its line takes as long as the file is, and nobody reads more
	}
	offset = min(max(offset, 0), len(r.data))
	before := r.data[:offset]
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	r.faults = append(r.faults, FileFault{File: r.name, Line: bytes.Count(before, []byte{'\n'}) + 1, Column: column,
		Key: clipped(strings.TrimPrefix(key, ".")), What: fmt.Sprintf(format, args...)})
}

// bytesOK looks for what JSON parsers let pass or do not name.
func (r *reader) bytesOK() {
	if bytes.HasPrefix(r.data, []byte("\xef\xbb\xbf")) {
		r.fault(0, "", "begins with a byte order mark")
	}
	if at := bytes.IndexByte(r.data, '\r'); at >= 0 {
		r.fault(at, "", "has a carriage return: the line ends were changed on the way (CRLF)")
	}
	for at, rest := 0, r.data; len(rest) > 0; {
		c, n := utf8.DecodeRune(rest)
		if c == utf8.RuneError && n == 1 {
			r.fault(at, "", "is not UTF-8")
			break
		}
		at, rest = at+n, rest[n:]
	}
	if len(bytes.TrimSpace(r.data)) == 0 {
		r.fault(0, "", "is empty")
	}
}

// plain looks for signs in a canonical document that act on a terminal or a page instead of being shown.
func (r *reader) plain() {
	if at := notPlain(r.data); at >= 0 {
		r.fault(at, "", "holds a control character, or one that hides text or turns it round")
	}
}

// item is a JSON value with its place.
type item struct {
	at      int // offset of its first byte
	value   any // string, json.Number, bool or nil; nothing for a list or an object
	list    []*item
	members []member
	kind    json.Delim // '[' or '{' or 0
}

type member struct {
	key  string
	at   int
	item *item
}

func (r *reader) read() *item {
	r.dec = json.NewDecoder(bytes.NewReader(r.data))
	r.dec.UseNumber()
	root, err := r.item("", 0)
	if err != nil {
		r.syntax(err)
		return nil
	}
	if _, err := r.dec.Token(); err != io.EOF {
		r.fault(int(r.dec.InputOffset()), "", "goes on after its end")
		return nil
	}
	return root
}

func (r *reader) syntax(err error) {
	var s *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		r.fault(len(r.data), "", "is cut off")
	case errors.As(err, &s):
		r.fault(int(s.Offset)-1, "", "is no JSON: %s", s)
	default:
		r.fault(int(r.dec.InputOffset()), "", "%s", err)
	}
}

// maxDepth is more than evidence needs and less than hurts.
const maxDepth = 32

func (r *reader) item(path string, depth int) (*item, error) {
	at := r.next()
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	it := &item{at: at, value: token}
	delim, ok := token.(json.Delim)
	if !ok {
		return it, nil
	}
	if depth >= maxDepth {
		return nil, fmt.Errorf("%s is nested more than %d deep", strings.TrimPrefix(path, "."), maxDepth)
	}
	it.kind, it.value = delim, nil
	seen := map[string]bool{}
	for r.dec.More() {
		if delim == '[' {
			in, err := r.item(deeper(path, fmt.Sprintf("[%d]", len(it.list))), depth+1)
			if err != nil {
				return nil, err
			}
			it.list = append(it.list, in)
			continue
		}
		at := r.next()
		key, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := key.(string)
		in, err := r.item(deeper(path, "."+name), depth+1)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			r.fault(at, deeper(path, "."+name), "stands there twice")
		}
		seen[name] = true
		it.members = append(it.members, member{name, at, in})
	}
	_, err = r.dec.Token()
	return it, err
}

// maxPath is how much of a path is remembered: a long key must not be copied for each of a million values below it.
const maxPath = 400

// deeper is the path of a value below another one.
func deeper(path, step string) string {
	if len(path) > maxPath {
		return path
	}
	return path + step
}

// next is the offset at which the next token begins.
func (r *reader) next() int {
	at := int(r.dec.InputOffset())
	for at < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[at]) >= 0 {
		at++
	}
	return at
}

// match compares a value with the type it is to become and notes every difference.
func (r *reader) match(it *item, t reflect.Type, path string) {
	switch {
	case t.Kind() == reflect.Pointer:
		if it.kind == 0 && it.value == nil {
			return
		}
		r.match(it, t.Elem(), path)
	case t == reflect.TypeFor[time.Time]():
		r.matchText(it, path, "a time", func(s string) error { _, err := time.Parse(time.RFC3339Nano, s); return err })
	case t == reflect.TypeFor[node.Hash]():
		r.matchText(it, path, "a hash", func(s string) error { _, err := node.ParseHash(s); return err })
	case t.Kind() == reflect.Struct:
		r.matchRecord(it, t, path)
	case t.Kind() == reflect.Map:
		if it.kind != '{' {
			r.unless(it, path, "an object")
			return
		}
		for _, m := range it.members {
			r.match(m.item, t.Elem(), deeper(path, "."+m.key))
		}
	case t.Kind() == reflect.Slice:
		if it.kind != '[' {
			r.unless(it, path, "a list")
			return
		}
		for i, in := range it.list {
			r.match(in, t.Elem(), deeper(path, fmt.Sprintf("[%d]", i)))
		}
	case t.Kind() == reflect.String:
		r.matchText(it, path, "text", func(string) error { return nil })
	case t.Kind() == reflect.Bool:
		if _, ok := it.value.(bool); !ok {
			r.fault(it.at, path, "want true or false")
		}
	default:
		r.matchNumber(it, t, path)
	}
}

// unless is the fault of a value of another kind; null stands for a list or an object that is not known.
func (r *reader) unless(it *item, path, want string) {
	if it.kind != 0 || it.value != nil {
		r.fault(it.at, path, "want %s", want)
	}
}

func (r *reader) matchText(it *item, path, want string, check func(string) error) {
	s, ok := it.value.(string)
	if !ok {
		r.fault(it.at, path, "want %s in quotes", want)
		return
	}
	if err := check(s); err != nil {
		r.fault(it.at, path, "is no usable value: %s", clipped(err.Error()))
	}
}

// matchNumber wants a whole number that a double holds exactly; whether it may be negative is for the type to say.
func (r *reader) matchNumber(it *item, t reflect.Type, path string) {
	n, ok := it.value.(json.Number)
	if !ok {
		r.fault(it.at, path, "want a number")
		return
	}
	low, span := int64(0), "from 0 to 2^53-1"
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 {
		low, span = -MaxSafe, "from -2^53+1 to 2^53-1"
	}
	if v, err := strconv.ParseInt(n.String(), 10, 64); err != nil || v < low || v > MaxSafe {
		r.fault(it.at, path, "%s is not a whole number %s", clipped(n.String()), span)
	}
}

func (r *reader) matchRecord(it *item, t reflect.Type, path string) {
	if it.kind != '{' {
		r.fault(it.at, path, "want an object")
		return
	}
	fields := fieldsOf(t)
	for _, f := range fields {
		if !f.omitEmpty && !slices.ContainsFunc(it.members, func(m member) bool { return m.key == f.key }) {
			r.fault(it.at, deeper(path, "."+f.key), "is missing")
		}
	}
	for _, m := range it.members {
		i := slices.IndexFunc(fields, func(f canonField) bool { return f.key == m.key })
		if i < 0 {
			r.fault(m.at, deeper(path, "."+m.key), "is not known")
			continue
		}
		r.match(m.item, t.FieldByIndex(fields[i].index).Type, deeper(path, "."+m.key))
	}
}
