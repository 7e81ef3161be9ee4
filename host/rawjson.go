package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Raw JSON as the engine gives it: objects stay maps, numbers stay text. Fields
// that this program has never heard of survive that way.

type object = map[string]any

func decodeObject(raw json.RawMessage, what string) (object, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var o object
	if err := d.Decode(&o); err != nil || o == nil {
		return nil, errorf(CodeEngine, "", "the engine's description of %s is not a JSON object", what)
	}
	return o, nil
}

func sub(o object, path ...string) object {
	for _, p := range path {
		next, _ := o[p].(object)
		o = next
	}
	return o
}

func str(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

func list(o object, key string) []any {
	l, _ := o[key].([]any)
	return l
}

func texts(o object, key string) []string {
	var out []string
	for _, v := range list(o, key) {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func number(o object, key string) int {
	switch n := o[key].(type) {
	case json.Number:
		i, err := n.Int64()
		if err != nil {
			return 0
		}
		return int(i)
	case int:
		return n
	}
	return 0
}

func anyList(ss []string) []any {
	out := make([]any, len(ss))
	for i, s := range ss {
		out[i] = s
	}
	return out
}

// empty says that a value tells an engine nothing: absent, null, "" or a
// container without content. 0 and false are values: a stop timeout of 0 or a
// swappiness of 0 is not the same as none.
func empty(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case string:
		return x == ""
	case []any:
		return len(x) == 0
	case object:
		return len(x) == 0
	}
	return false
}

// zero is empty, or a number or switch at its default.
func zero(v any) bool {
	switch x := v.(type) {
	case bool:
		return !x
	case json.Number:
		f, err := x.Float64()
		return err == nil && f == 0
	case []any:
		for _, e := range x {
			if !zero(e) {
				return false
			}
		}
		return true
	}
	return empty(v)
}

func same(a, b any) bool {
	if empty(a) && empty(b) {
		return true
	}
	return reflect.DeepEqual(normal(a), normal(b))
}

// normal drops empty members of objects, so that null and absent compare equal
// at any depth.
func normal(v any) any {
	switch x := v.(type) {
	case object:
		out := object{}
		for k, e := range x {
			if !empty(e) {
				out[k] = normal(e)
			}
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = normal(e)
		}
		return out
	}
	return v
}

func clone(v any) any {
	switch x := v.(type) {
	case object:
		out := make(object, len(x))
		for k, e := range x {
			out[k] = clone(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = clone(e)
		}
		return out
	}
	return v
}

func keys[V any](ms ...map[string]V) []string {
	all := map[string]bool{}
	for _, m := range ms {
		for k := range m {
			all[k] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// envEntry is one variable; bare means that the entry has no `=` (the variable
// is removed from what the image sets).
type envEntry struct {
	name, value string
	bare        bool
}

func (e envEntry) String() string {
	if e.bare {
		return e.name
	}
	return e.name + "=" + e.value
}

func parseEnv(entries []string) []envEntry {
	var out []envEntry
	for _, s := range entries {
		name, value, found := strings.Cut(s, "=")
		out = append(out, envEntry{name: name, value: value, bare: !found})
	}
	return out
}

// envMap maps names to whole entries; of a name given twice the last counts.
func envMap(entries []string) map[string]envEntry {
	m := map[string]envEntry{}
	for _, e := range parseEnv(entries) {
		m[e.name] = e
	}
	return m
}

func mountsOf(inspect object) []mountPoint {
	var out []mountPoint
	for _, v := range list(inspect, "Mounts") {
		m, _ := v.(object)
		rw, known := m["RW"].(bool)
		out = append(out, mountPoint{Type: str(m, "Type"), Name: str(m, "Name"), Source: str(m, "Source"),
			Destination: str(m, "Destination"), ReadOnly: known && !rw})
	}
	for dst := range sub(inspect, "HostConfig", "Tmpfs") {
		out = append(out, mountPoint{Type: "tmpfs", Destination: dst})
	}
	return out
}

// dataDirOf finds the data directory in effect of an inspected container.
func dataDirOf(inspect object) DataDir {
	return dataDir(dataEnv(envMap(texts(sub(inspect, "Config"), "Env"))), mountsOf(inspect))
}

func dataEnv(env map[string]envEntry) *string {
	if e, ok := env["QNET_DATA_DIR"]; ok && !e.bare {
		return &e.value
	}
	return nil
}

func buildOf(image object) string {
	return envMap(texts(sub(image, "Config"), "Env"))["QNET_BUILD_ID"].value
}

func encode(v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	return b, nil
}
