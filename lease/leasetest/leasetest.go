// Package leasetest holds every test of a lease to what a lease is for: never two holders at once, numbers that only rise,
// and no effect of an old holder after one of a newer. A test writes down what it saw; Check judges it.
package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lease"
)

// Log is what a test saw. All times are CLOCK_BOOTTIME of one machine.
type Log struct {
	mu      sync.Mutex
	spans   []*span
	effects []effect
}

type span struct {
	who        string
	generation uint64
	from, to   time.Duration // to is -1 while it lasts
}

type effect struct {
	target, who string
	generation  uint64
	at          time.Duration
}

// Hook is a lease.Options.OnEvent that writes down when a holder begins and ends.
func (l *Log) Hook(who string, also ...func(lease.Event)) func(lease.Event) {
	return func(e lease.Event) {
		switch e.State {
		case lease.Holding:
			l.Begin(who, e.Generation, e.At)
		case lease.Lost, lease.Released, lease.Withheld:
			l.End(who, e.At)
		}
		for _, f := range also {
			f(e)
		}
	}
}

// Begin writes down that somebody holds the lease from now on; again while it lasts changes nothing.
func (l *Log) Begin(who string, generation uint64, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.who == who && s.to < 0 {
			return
		}
	}
	l.spans = append(l.spans, &span{who: who, generation: generation, from: at, to: -1})
}

// End writes down that somebody does not hold it any more, whatever it believes: it was killed, or is paused and will not
// act before it looks at the lease.
func (l *Log) End(who string, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.who == who && s.to < 0 {
			s.to = at
		}
	}
}

// Effect writes down that a target accepted an effect.
func (l *Log) Effect(target, who string, generation uint64, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects = append(l.effects, effect{target, who, generation, at})
}

// Holders is how often the lease was held.
func (l *Log) Holders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.spans)
}

// Faults lists what must not be, in what was seen so far.
func (l *Log) Faults() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	spans := slices.Clone(l.spans)
	slices.SortFunc(spans, func(a, b *span) int { return int(a.from - b.from) })
	for i := 1; i < len(spans); i++ {
		a, b := spans[i-1], spans[i]
		if b.generation <= a.generation {
			out = append(out, fmt.Sprintf("%s held generation %d after %s had %d", b.who, b.generation, a.who, a.generation))
		}
		for _, before := range spans[:i] {
			if before.to < 0 || before.to > b.from {
				out = append(out, fmt.Sprintf("two holders: %s (generation %d) until %v, %s (generation %d) from %v", before.who, before.generation, before.to, b.who, b.generation, b.from))
			}
		}
	}
	newest := map[string]effect{}
	for _, e := range l.effects {
		if last, ok := newest[e.target]; ok && e.generation < last.generation {
			out = append(out, fmt.Sprintf("stale effect at %s: %s with generation %d after %s with %d", e.target, e.who, e.generation, last.who, last.generation))
		}
		newest[e.target] = e
	}
	return out
}

// Check fails the test for each fault.
func (l *Log) Check(t testing.TB) {
	t.Helper()
	if faults := l.Faults(); len(faults) > 0 {
		t.Errorf("the lease did not do what it is for:\n  %s", strings.Join(faults, "\n  "))
	}
}
