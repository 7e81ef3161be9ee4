package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// decodeStrict unmarshals b into v and demands that every field of v is there:
// encoding/json leaves a missing number at zero, and zero is an answer. A field
// may be absent when its tag says omitempty, and null when it is a pointer.
// Unknown fields are allowed, since newer nodes add some.
func decodeStrict(b []byte, v any) error {
	if err := demand(b, reflect.TypeOf(v).Elem(), ""); err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("body has another shape: %w", err)
	}
	return nil
}

// demand walks the type beside the raw value and names the first missing field.
func demand(raw json.RawMessage, t reflect.Type, at string) error {
	if t.Kind() == reflect.Pointer {
		if isNull(raw) {
			return nil
		}
		t = t.Elem()
	}
	if isNull(raw) && t != reflect.TypeFor[json.RawMessage]() {
		return fmt.Errorf("%s is null", at)
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil // checks itself
	}
	switch t.Kind() {
	case reflect.Struct:
		return demandFields(raw, t, at)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return fmt.Errorf("%s is not a list", at)
		}
		for i, item := range items {
			if err := demand(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func demandFields(raw json.RawMessage, t reflect.Type, at string) error {
	var have map[string]json.RawMessage
	if err := json.Unmarshal(raw, &have); err != nil {
		return fmt.Errorf("%s is not an object", strings.TrimPrefix(at+" value", " "))
	}
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		where := strings.TrimPrefix(at+"."+name, ".")
		value, ok := have[name]
		if !ok {
			if strings.Contains(opts, "omitempty") {
				continue
			}
			return fmt.Errorf("%s is missing", where)
		}
		if err := demand(value, f.Type, where); err != nil {
			return err
		}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }
