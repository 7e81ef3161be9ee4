package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// object is a JSON object. The engine works on raw JSON where a typed struct
// would drop what it does not know.
type object = map[string]any

// apiError is an answer of the API other than success.
type apiError struct {
	status  int
	message string
}

func (e *apiError) Error() string { return e.message }

func refused(status int, format string, args ...any) *apiError {
	return &apiError{status: status, message: fmt.Sprintf(format, args...)}
}

func str(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

func sub(o object, key string) object {
	m, _ := o[key].(object)
	return m
}

func list(o object, key string) []string {
	switch v := o[key].(type) {
	case []string:
		return v
	case string: // Cmd and Entrypoint may be one string
		return []string{v}
	case []any:
		out := make([]string, 0, len(v))
		for _, x := range v {
			s, _ := x.(string)
			out = append(out, s)
		}
		return out
	}
	return nil
}

func number(v any) int64 {
	switch n := v.(type) {
	case json.Number:
		i, _ := n.Int64()
		return i
	case int64:
		return n
	case int:
		return int64(n)
	case float64:
		return int64(n)
	}
	return 0
}

func orNull(s []string) any {
	if s == nil {
		return nil
	}
	return s
}

// set is Docker's way to write a set: keys with empty objects, or null.
func set(keys []string) any {
	if len(keys) == 0 {
		return nil
	}
	o := object{}
	for _, k := range keys {
		o[k] = object{}
	}
	return o
}

func labelsJSON(l map[string]string) any {
	if l == nil {
		return nil
	}
	o := object{}
	for k, v := range l {
		o[k] = v
	}
	return o
}

// toObject takes a value through JSON.
func toObject(v any) object {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	o, _ := decodeObject(b)
	return o
}

func decodeObject(b []byte) (object, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var o object
	if err := d.Decode(&o); err != nil {
		return nil, err
	}
	return o, nil
}

func clone(o object) object {
	if o == nil {
		return nil
	}
	return toObject(o)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// lookupFold finds a key whatever its case, as Go's JSON decoder in the real
// engine does.
func lookupFold(o object, key string) (any, bool) {
	if v, ok := o[key]; ok {
		return v, true
	}
	for k, v := range o {
		if strings.EqualFold(k, key) {
			return v, true
		}
	}
	return nil, false
}
