package restart

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/qnetops/qnetops/node"
)

// MaxSafe is the largest whole number a canonical document can hold, 2^53-1: numbers of RFC 8785 are IEEE 754 doubles, and
// above it two different heights would be written alike.
const MaxSafe = 1<<53 - 1

// Canonical returns the one form in which v is signed and hashed: JSON by RFC 8785 (JCS), with the tags of encoding/json.
// Keys are sorted by UTF-16 code units, there is no white space, and no newline at the end, so that any JCS program makes
// the same bytes. Of numbers only whole ones from -MaxSafe to MaxSafe are taken; anything else, and text that is not UTF-8,
// is an error that names its place.
func Canonical(v any) ([]byte, error) {
	c := canon{fields: map[reflect.Type][]canonField{}, speaks: map[reflect.Type]bool{}}
	if err := c.value(reflect.ValueOf(v)); err != nil {
		return nil, fmt.Errorf("writing the canonical form: %w", err)
	}
	return c.out, nil
}

// canon writes one document. It remembers the sorted fields of each type: evidence holds the same few types ten thousand times.
type canon struct {
	out    []byte
	fields map[reflect.Type][]canonField
	speaks map[reflect.Type]bool // whether values of a type say themselves how they look
}

// canonField is a field of a struct as encoding/json sees it.
type canonField struct {
	key                        string
	index                      []int
	omitEmpty, omitZero, quote bool
}

// placeError is a value that cannot be written, and where it is.
type placeError struct {
	place string
	err   error
}

func (e *placeError) Error() string { return strings.TrimPrefix(e.place, ".") + ": " + e.err.Error() }
func (e *placeError) Unwrap() error { return e.err }

// under puts an outer step before the place of an error.
func under(step string, err error) error {
	if err == nil {
		return nil
	}
	var p *placeError
	if errors.As(err, &p) {
		return &placeError{step + p.place, p.err}
	}
	return &placeError{step, err}
}

func (c *canon) value(v reflect.Value) error {
	if !v.IsValid() {
		c.out = append(c.out, "null"...)
		return nil
	}
	if k := v.Kind(); k == reflect.Pointer || k == reflect.Interface {
		if v.IsNil() {
			c.out = append(c.out, "null"...)
			return nil
		}
		return c.value(v.Elem())
	}
	if done, err := c.special(v); done {
		return err
	}
	switch v.Kind() {
	case reflect.Bool:
		c.out = strconv.AppendBool(c.out, v.Bool())
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return c.integer(v.Int() >= -MaxSafe && v.Int() <= MaxSafe, strconv.FormatInt(v.Int(), 10))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return c.integer(v.Uint() <= MaxSafe, strconv.FormatUint(v.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		f := v.Float()
		if f != math.Trunc(f) {
			return fmt.Errorf("the number %v is not a whole one", f)
		}
		return c.integer(math.Abs(f) <= MaxSafe, strconv.FormatFloat(f+0, 'f', 0, 64))
	case reflect.String:
		return c.text(v.String())
	case reflect.Slice, reflect.Array:
		return c.list(v)
	case reflect.Map:
		return c.object(v)
	case reflect.Struct:
		return c.record(v)
	}
	return fmt.Errorf("a %s has no form in JSON", v.Type())
}

// special writes the types that say themselves how they look.
func (c *canon) special(v reflect.Value) (done bool, err error) {
	t := v.Type()
	speaks, known := c.speaks[t]
	if !known {
		speaks = t == reflect.TypeFor[json.Number]() || t == reflect.TypeFor[[]byte]() ||
			t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
		c.speaks[t] = speaks
	}
	if !speaks {
		return false, nil
	}
	switch s := v.Interface().(type) {
	case node.Hash:
		c.out = append(hex.AppendEncode(append(c.out, '"'), s[:]), '"')
		return true, nil
	case time.Time:
		return true, c.text(s.Format(time.RFC3339Nano))
	case json.Number:
		n, err := strconv.ParseInt(s.String(), 10, 64)
		if err != nil {
			return true, fmt.Errorf("the number %s is not a whole one within 2^53", s)
		}
		return true, c.value(reflect.ValueOf(n))
	case json.Marshaler:
		raw, err := s.MarshalJSON()
		if err != nil {
			return true, err
		}
		var inner any
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		if err := dec.Decode(&inner); err != nil {
			return true, err
		}
		return true, c.value(reflect.ValueOf(inner))
	case encoding.TextMarshaler:
		text, err := s.MarshalText()
		if err != nil {
			return true, err
		}
		return true, c.text(string(text))
	case []byte:
		if s == nil {
			return false, nil
		}
		return true, c.text(base64.StdEncoding.EncodeToString(s))
	}
	return false, nil
}

func (c *canon) integer(safe bool, digits string) error {
	if !safe {
		return fmt.Errorf("the number %s is beyond 2^53-1 and would not be written exactly", digits)
	}
	c.out = append(c.out, digits...)
	return nil
}

// text writes a string with the escapes of RFC 8785 and no others.
func (c *canon) text(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("text %q is not UTF-8", s)
	}
	c.out = append(c.out, '"')
	from := 0
	for i := range len(s) {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' {
			continue
		}
		c.out = append(c.out, s[from:i]...)
		from = i + 1
		if at := strings.IndexByte("\"\\\b\f\n\r\t", b); at >= 0 {
			c.out = append(c.out, '\\', `"\bfnrt`[at])
		} else {
			c.out = fmt.Appendf(c.out, `\u%04x`, b)
		}
	}
	c.out = append(append(c.out, s[from:]...), '"')
	return nil
}

func (c *canon) list(v reflect.Value) error {
	if v.Kind() == reflect.Slice && v.IsNil() {
		c.out = append(c.out, "null"...)
		return nil
	}
	c.out = append(c.out, '[')
	for i := range v.Len() {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if err := c.value(v.Index(i)); err != nil {
			return under(fmt.Sprintf("[%d]", i), err)
		}
	}
	c.out = append(c.out, ']')
	return nil
}

func (c *canon) object(v reflect.Value) error {
	if v.Type().Key().Kind() != reflect.String {
		return fmt.Errorf("a map with keys of type %s has no form in JSON", v.Type().Key())
	}
	if v.IsNil() {
		c.out = append(c.out, "null"...)
		return nil
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return compareUTF16(a.String(), b.String()) })
	c.out = append(c.out, '{')
	for i, key := range keys {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if err := c.text(key.String()); err != nil {
			return err
		}
		c.out = append(c.out, ':')
		if err := c.value(v.MapIndex(key)); err != nil {
			return under("."+key.String(), err)
		}
	}
	c.out = append(c.out, '}')
	return nil
}

func (c *canon) record(v reflect.Value) error {
	fields, ok := c.fields[v.Type()]
	if !ok {
		fields = fieldsOf(v.Type())
		c.fields[v.Type()] = fields
	}
	c.out = append(c.out, '{')
	first := true
	for _, f := range fields {
		field, err := v.FieldByIndexErr(f.index)
		if err != nil || f.omitEmpty && isEmpty(field) || f.omitZero && field.IsZero() {
			continue // an embedded pointer that is nil has no fields
		}
		if !first {
			c.out = append(c.out, ',')
		}
		first = false
		if err := c.text(f.key); err != nil {
			return err
		}
		c.out = append(c.out, ':')
		if err := c.field(f, field); err != nil {
			return under("."+f.key, err)
		}
	}
	c.out = append(c.out, '}')
	return nil
}

// field writes a value, within quotes where the tag says so (heights of money that JSON numbers cannot hold).
func (c *canon) field(f canonField, v reflect.Value) error {
	if !f.quote {
		return c.value(v)
	}
	switch {
	case v.CanInt():
		return c.text(strconv.FormatInt(v.Int(), 10))
	case v.CanUint():
		return c.text(strconv.FormatUint(v.Uint(), 10))
	}
	return fmt.Errorf("the tag string is for whole numbers, not for %s", v.Type())
}

// fieldsOf lists the fields of a struct in canonical order, those of embedded structs among them.
func fieldsOf(t reflect.Type) []canonField {
	var out []canonField
	for _, f := range reflect.VisibleFields(t) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Tag.Get("json") == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		has := func(opt string) bool { return slices.Contains(strings.Split(opts, ","), opt) }
		out = append(out, canonField{key: name, index: f.Index, omitEmpty: has("omitempty"), omitZero: has("omitzero"), quote: has("string")})
	}
	// Of two fields of one name the outer one counts, as in encoding/json.
	slices.SortStableFunc(out, func(a, b canonField) int {
		return cmp.Or(compareUTF16(a.key, b.key), cmp.Compare(len(a.index), len(b.index)))
	})
	return slices.CompactFunc(out, func(a, b canonField) bool { return a.key == b.key })
}

// isEmpty is what omitempty leaves out.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// compareUTF16 orders keys as RFC 8785 does. It differs from the order of bytes only where a character beyond the basic plane
// meets one of its upper end.
func compareUTF16(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] >= utf8.RuneSelf || b[i] >= utf8.RuneSelf {
			return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		}
	}
	return cmp.Compare(a, b)
}
