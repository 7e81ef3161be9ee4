package engine

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// eventLimit is how many past events an engine remembers.
const eventLimit = 256

// event is one message of the events stream.
type event struct {
	at   time.Time
	body object
}

// eventLog remembers events and wakes the streams that follow.
type eventLog struct {
	past []event
	seq  int // number of the first event in past
	wake chan struct{}
	dead chan struct{} // closed when the daemon ends
}

func (l *eventLog) add(e event) {
	l.past = append(l.past, e)
	if n := len(l.past) - eventLimit; n > 0 {
		l.past = l.past[n:]
		l.seq += n
	}
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// drop forgets everything, as an ended daemon does.
func (l *eventLog) drop() {
	l.seq += len(l.past)
	l.past = nil
	if l.dead != nil {
		close(l.dead)
		l.dead = nil
	}
}

// from returns the events from number n on and a channel for the next one.
func (l *eventLog) from(n int) ([]event, int, <-chan struct{}, <-chan struct{}) {
	n = max(n, l.seq)
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	if l.dead == nil {
		l.dead = make(chan struct{})
	}
	return append([]event(nil), l.past[n-l.seq:]...), l.seq + len(l.past), l.wake, l.dead
}

func (e *Engine) emit(kind, action, id string, attributes object) {
	now := time.Now()
	body := object{"Type": kind, "Action": action, "Actor": object{"ID": id, "Attributes": attributes},
		"scope": "local", "time": now.Unix(), "timeNano": now.UnixNano()}
	e.events.add(event{at: now, body: body})
}

// emitContainer emits an event of a container with its labels, image and name.
func (e *Engine) emitContainer(c *container, action string, more object) {
	attrs := object{}
	for k, v := range sub(c.config, "Labels") {
		attrs[k] = v
	}
	for k, v := range more {
		attrs[k] = v
	}
	attrs["image"], attrs["name"] = str(c.config, "Image"), c.name
	e.emit("container", action, c.id, attrs)
	last := e.events.past[len(e.events.past)-1].body
	last["status"], last["id"], last["from"] = action, c.id, str(c.config, "Image")
}

// match applies the filters of the events endpoint.
func (f filters) event(o object) bool {
	actor := sub(o, "Actor")
	attrs := sub(actor, "Attributes")
	kind, id := str(o, "Type"), str(actor, "ID")
	of := func(key, want string) bool {
		return len(f[key]) == 0 || kind == want && (f.prefix(key, id) || f.exact(key, str(attrs, "name")))
	}
	image := len(f["image"]) == 0 || f.exact("image", str(attrs, "image")) || kind == "image" && f.exact("image", str(attrs, "name"))
	return f.exact("type", kind) && f.exact("event", str(o, "Action")) && of("container", "container") &&
		of("network", "network") && of("volume", "volume") && image && f.exact("scope", "local") && f.labels(attrs)
}

// filters is the parsed filters parameter.
type filters map[string][]string

// parseFilters reads {"key":["value"]} and the older {"key":{"value":true}}.
func parseFilters(s string) (filters, error) {
	f := filters{}
	if s == "" {
		return f, nil
	}
	var lists map[string][]string
	if json.Unmarshal([]byte(s), &lists) == nil {
		return lists, nil
	}
	var sets map[string]map[string]bool
	if err := json.Unmarshal([]byte(s), &sets); err != nil {
		return nil, refused(400, "invalid filter")
	}
	for k, m := range sets {
		for v, on := range m {
			if on {
				f[k] = append(f[k], v)
			}
		}
	}
	return f, nil
}

// known refuses filters the endpoint does not have.
func (f filters) known(keys ...string) error {
	for k := range f {
		found := false
		for _, ok := range keys {
			found = found || ok == k
		}
		if !found {
			return refused(400, "Invalid filter '%s'", k)
		}
	}
	return nil
}

func (f filters) any(key string, test func(want string) bool) bool {
	if len(f[key]) == 0 {
		return true
	}
	for _, w := range f[key] {
		if test(w) {
			return true
		}
	}
	return false
}

func (f filters) exact(key, have string) bool {
	return f.any(key, func(w string) bool { return w == have })
}

func (f filters) prefix(key, have string) bool {
	return f.any(key, func(w string) bool { return w != "" && strings.HasPrefix(have, w) })
}

func (f filters) contains(key, have string) bool {
	return f.any(key, func(w string) bool {
		if s, ok := strings.CutPrefix(w, "^"); ok { // the anchored form people use
			if exact, ok := strings.CutSuffix(s, "$"); ok {
				return strings.TrimPrefix(exact, "/") == have
			}
			return strings.HasPrefix(have, strings.TrimPrefix(s, "/"))
		}
		return strings.Contains("/"+have, w)
	})
}

func (f filters) flag(key string, have bool) bool {
	return f.any(key, func(w string) bool { b, err := strconv.ParseBool(w); return err == nil && b == have })
}

// labels wants all of the listed labels.
func (f filters) labels(have object) bool {
	for _, w := range f["label"] {
		k, v, valued := strings.Cut(w, "=")
		got, ok := have[k]
		if !ok || valued && got != v {
			return false
		}
	}
	return true
}
