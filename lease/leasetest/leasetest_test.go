package leasetest

import (
	"strings"
	"testing"
)

// A checker that cannot fail protects nothing.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Log)
		want string
	}{
		"in turn": {func(l *Log) {
			l.Begin("a", 1, 0)
			l.End("a", 10)
			l.Begin("b", 2, 10)
			l.Effect("x", "a", 1, 5)
			l.Effect("x", "b", 2, 12)
		}, ""},
		"raised while held": {func(l *Log) { l.Begin("a", 1, 0); l.Begin("a", 5, 3); l.End("a", 10); l.Begin("b", 6, 10) }, ""},
		"overlap":           {func(l *Log) { l.Begin("a", 1, 0); l.End("a", 10); l.Begin("b", 2, 9) }, "two holders"},
		"never ended":       {func(l *Log) { l.Begin("a", 1, 0); l.Begin("b", 2, 9) }, "two holders"},
		"around another": {func(l *Log) {
			l.Begin("a", 1, 0)
			l.Begin("b", 2, 1)
			l.End("b", 2)
			l.End("a", 10)
			l.Begin("c", 3, 5)
		}, "two holders: a (generation 1) until 10ns, c"},
		"number repeated": {func(l *Log) { l.Begin("a", 1, 0); l.End("a", 1); l.Begin("b", 1, 2) }, "held generation 1 after"},
		"stale effect":    {func(l *Log) { l.Effect("x", "b", 2, 1); l.Effect("x", "a", 1, 2) }, "stale effect"},
		"two targets":     {func(l *Log) { l.Effect("x", "b", 2, 1); l.Effect("y", "a", 1, 2) }, ""},
	} {
		l := &Log{}
		c.do(l)
		got := strings.Join(l.Faults(), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
