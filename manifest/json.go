package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/node"
)

// jsonReader walks a JSON manifest token by token: the standard decoder knows neither where a key stands nor that it is
// doubled, and a value that is silently the second of two is the last thing wanted here.
type jsonReader struct {
	name     string
	data     []byte
	dec      *json.Decoder
	out      Loaded
	problems tomlfile.Problems
}

// errSyntax ends the walk; the fault is already noted.
var errSyntax = errors.New("syntax")

func readJSON(name string, data []byte) (Loaded, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	r := &jsonReader{name: name, data: data, dec: json.NewDecoder(bytes.NewReader(data)), out: Loaded{Name: name, at: map[string]Position{}}}
	r.dec.UseNumber()
	if r.readable() {
		r.document()
	}
	if len(r.problems) > 0 {
		return Loaded{}, r.problems
	}
	return r.out, nil
}

func (r *jsonReader) fault(offset int, key, what, hint string) {
	p := r.place(offset)
	r.problems = append(r.problems, tomlfile.Problem{File: r.name, Line: p.Line, Column: p.Column, Key: key, What: what, Hint: hint})
}

func (r *jsonReader) place(offset int) Position {
	before := r.data[:min(max(offset, 0), len(r.data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return Position{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1}
}

func (r *jsonReader) readable() bool {
	if len(r.data) > tomlfile.MaxSize {
		r.problems = append(r.problems, tomlfile.Problem{File: r.name, What: fmt.Sprintf("is larger than %d bytes", tomlfile.MaxSize), Hint: "a manifest is a page of text"})
		return false
	}
	for off := 0; off < len(r.data); {
		c, size := utf8.DecodeRune(r.data[off:])
		if c == utf8.RuneError && size == 1 {
			r.fault(off, "", fmt.Sprintf("byte 0x%02x is not UTF-8", r.data[off]), "save the file as UTF-8")
			return false
		}
		off += size
	}
	return true
}

// document reads the one object of the file and sees that nothing is missing and nothing follows.
func (r *jsonReader) document() {
	tok, at, err := r.token()
	if err != nil {
		return
	}
	if tok != json.Delim('{') {
		r.fault(at, "", "is not an object", "{ \"restart\": {…}, \"ws_checkpoint\": {…} }")
		return
	}
	if r.object("", []string{"schema", "restart", "ws_checkpoint"}, r.member) != nil {
		return
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		r.fault(r.next(), "", "something follows the manifest", "one file holds one manifest")
	}
	for _, key := range Keys() {
		if _, ok := r.out.at[key]; !ok {
			p := r.out.At(key)
			r.problems = append(r.problems, tomlfile.Problem{File: r.name, Line: p.Line, Column: p.Column, Key: key, What: "is missing", Hint: "every field is written out, a zero too"})
		}
	}
}

// next is the offset of the next token: the decoder stands behind the last one.
func (r *jsonReader) next() int {
	off := int(r.dec.InputOffset())
	for off < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[off]) >= 0 {
		off++
	}
	return off
}

func (r *jsonReader) token() (json.Token, int, error) {
	at := r.next()
	tok, err := r.dec.Token()
	if err == nil {
		return tok, at, nil
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		r.fault(int(syntax.Offset)-1, "", "is no JSON: "+syntax.Error(), "")
	case len(bytes.TrimSpace(r.data)) == 0:
		r.problems = append(r.problems, tomlfile.Problem{File: r.name, What: "the file is empty"})
	default:
		r.fault(len(r.data), "", "the file ends in the middle", "it seems to be cut off; fetch it again")
	}
	return nil, at, errSyntax
}

// object reads the members of an object whose brace is already read.
func (r *jsonReader) object(path string, known []string, member func(key string) error) error {
	seen := map[string]int{}
	for {
		tok, at, err := r.token()
		if err != nil {
			return err
		}
		if tok == json.Delim('}') {
			return nil
		}
		name := tok.(string) // the decoder has refused anything else
		key := strings.TrimPrefix(path+"."+name, ".")
		first, twice := seen[name]
		seen[name] = at
		switch {
		case twice:
			r.fault(at, key, fmt.Sprintf("is already set in line %d", r.place(first).Line), "keep one of the two")
			err = r.skip()
		case !slices.Contains(known, name):
			r.fault(at, key, "unknown key", "known are "+strings.Join(known, ", "))
			err = r.skip()
		default:
			r.out.at[key] = r.place(at)
			err = member(key)
		}
		if err != nil {
			return err
		}
	}
}

// skip passes over a value.
func (r *jsonReader) skip() error {
	for depth := 0; ; {
		tok, _, err := r.token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

func (r *jsonReader) member(key string) error {
	restart, pin := &r.out.Restart, &r.out.Pin
	switch key {
	case "restart":
		return r.table(key, "resume_from_mb", "resume_mb_hash", "excluded")
	case "ws_checkpoint":
		return r.table(key, "index", "hash", "digest_anchor", "digest_pred")
	case "schema":
		return r.str(key, func(s string) error {
			if s != Schema {
				return fmt.Errorf("%q is another kind of document, want %q", s, Schema)
			}
			return nil
		})
	case KeyResumeFrom:
		return r.number(key, &restart.ResumeFromMB)
	case KeyIndex:
		return r.number(key, &pin.Index)
	case KeyExcluded:
		return r.list(key)
	}
	into := map[string]*node.Hash{KeyResumeHash: &restart.ResumeMBHash, KeyHash: &pin.Hash, KeyDigestAnchor: &pin.DigestAnchor, KeyDigestPred: &pin.DigestPred}[key]
	return r.str(key, func(s string) error { return into.UnmarshalText([]byte(s)) })
}

// wrong notes a value of another type and passes over it.
func (r *jsonReader) wrong(tok json.Token, at int, key, want string) error {
	r.fault(at, key, "is not "+want, "")
	depth := 0
	if tok == json.Delim('{') || tok == json.Delim('[') {
		depth = 1
	}
	for depth > 0 {
		tok, _, err := r.token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}

func (r *jsonReader) table(key string, known ...string) error {
	tok, at, err := r.token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return r.wrong(tok, at, key, "an object")
	}
	return r.object(key, known, r.member)
}

func (r *jsonReader) str(key string, use func(string) error) error {
	tok, at, err := r.token()
	if err != nil {
		return err
	}
	s, ok := tok.(string)
	if !ok {
		return r.wrong(tok, at, key, "a string")
	}
	if err := use(s); err != nil {
		r.fault(at, key, err.Error(), "")
	}
	return nil
}

func (r *jsonReader) number(key string, into *uint64) error {
	tok, at, err := r.token()
	if err != nil {
		return err
	}
	n, ok := tok.(json.Number)
	if !ok {
		return r.wrong(tok, at, key, "a number")
	}
	if err := json.Unmarshal([]byte(n), into); err != nil {
		r.fault(at, key, fmt.Sprintf("%s is no whole number from 0 to 2^64-1", n), "")
	}
	return nil
}

func (r *jsonReader) list(key string) error {
	tok, at, err := r.token()
	if err != nil {
		return err
	}
	if tok != json.Delim('[') {
		return r.wrong(tok, at, key, "a list")
	}
	for i := 0; ; i++ {
		tok, at, err := r.token()
		if err != nil {
			return err
		}
		if tok == json.Delim(']') {
			return nil
		}
		elem := fmt.Sprintf("%s[%d]", key, i)
		r.out.at[elem] = r.place(at)
		id, ok := tok.(string)
		if !ok {
			if err := r.wrong(tok, at, elem, "a string"); err != nil {
				return err
			}
			continue
		}
		r.out.Restart.Excluded = append(r.out.Restart.Excluded, id)
	}
}
