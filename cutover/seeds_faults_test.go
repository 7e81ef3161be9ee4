package cutover_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling"
)

// What befalls a run besides the faults and kills that the lab has names for.
const (
	blowTool      = "kill-tool"   // SIGKILL of the operator's process
	blowInterrupt = "interrupt"   // its Ctrl-C
	blowStop      = "hand-stop"   // the node's container is stopped by another hand
	blowRemove    = "remove-next" // somebody tidies up: a staged successor is removed by hand
)

// blow is one thing that befalls a run, and when: at the so manieth event of the
// operation, at a time after its beginning, or when a host's engine has carried out
// its so manieth change.
type blow struct {
	what, host, arg string
	event           int           // from 1; 0: not by events
	change          int           // from 1; 0: not by changes
	after           time.Duration // where both are 0
	lasts           time.Duration // 0: until somebody mends everything
}

func (b blow) String() string {
	when := fmt.Sprintf("after %s", b.after)
	switch {
	case b.event > 0:
		when = fmt.Sprintf("at event %d", b.event)
	case b.change > 0:
		when = fmt.Sprintf("after change %d on its engine", b.change)
	}
	what := b.what
	if b.arg != "" {
		what += "=" + b.arg
	}
	if b.lasts > 0 {
		when += " for " + b.lasts.String()
	}
	return fmt.Sprintf("%s on %s %s", what, b.host, when)
}

// sudden are the blows that happen once.
func sudden() []string {
	return append([]string{blowTool, blowTool, blowInterrupt, blowStop, blowRemove, lab.FaultEngineRestart,
		lab.FaultLogRotate}, lab.Kills()...)
}

// lasting are the faults that last. Left out is what recreates the node's container
// by hand: what then is lost is nobody's fault but that hand's. FaultStop is there as
// blowStop, which nobody takes back by a start.
func lasting() []string {
	return slices.DeleteFunc(lab.Kinds(), func(kind string) bool {
		return slices.Contains([]string{lab.FaultStop, lab.FaultLogLevel, "image", lab.FaultEngineRestart, lab.FaultReboot,
			lab.FaultLogRotate}, kind)
	})
}

// span is how long an undisturbed run of a kind takes and how many events it emits
// that are no waits, about; blows are drawn within.
func span(kind string, hosts int) (events int, took time.Duration) {
	switch kind {
	case cutover.KindHalt:
		return 60 * hosts, 30 * time.Second
	case cutover.KindDecree:
		return 10, 5 * time.Second
	case cutover.KindRestart:
		return 80 * hosts, 200 * time.Second
	case cutover.KindUnbar:
		return 60 * hosts, 45 * time.Second
	case cutover.KindRollback:
		return 55 * hosts, 20 * time.Second
	}
	return 65 * hosts, 20 * time.Second
}

// drawBlows draws what befalls a run.
func drawBlows(rng *rand.Rand, s *seedScene) (out []blow) {
	events, took := span(s.kind, len(s.hosts))
	for range pick(rng, 1, 1, 2, 2, 2, 3, 3, 4) {
		b := blow{host: pick(rng, s.hosts...)}
		if rng.IntN(5) < 3 {
			b.what = pick(rng, sudden()...)
		} else {
			b.what = pick(rng, lasting()...)
			// An engine that is away for good keeps an agent waiting for a quarter of an
			// hour; a host that cannot be reached is the same to the tool, and costs less.
			if rng.IntN(3) > 0 || b.what == engine.FaultEngineDown {
				b.lasts = time.Duration(1+rng.IntN(20)) * time.Second
			}
		}
		if b.what == lab.FaultDropSSH {
			b.arg = "hold"
		}
		switch rng.IntN(5) {
		case 0, 1, 2:
			b.event = 1 + rng.IntN(events)
		case 3:
			b.change = 1 + rng.IntN(12)
		default:
			b.after = time.Duration(rng.Int64N(int64(took))).Truncate(time.Millisecond)
		}
		out = append(out, b)
	}
	return out
}

// strikes lets the blows of a run fall.
type strikes struct {
	w     *world
	blows []blow
	log   func(format string, args ...any)

	mu      sync.Mutex
	now     *tool // the process that lives
	events  int
	changes map[string]int
	fallen  []bool
	hit     map[string][]string // host -> what befell it
	timers  []*time.Timer
	over    bool
}

func newStrikes(w *world, blows []blow, log func(string, ...any)) *strikes {
	s := &strikes{w: w, blows: blows, log: log, changes: map[string]int{}, fallen: make([]bool, len(blows)),
		hit: map[string][]string{}}
	for i, b := range blows {
		if b.event == 0 && b.change == 0 {
			s.timers = append(s.timers, time.AfterFunc(b.after, func() { s.fall(i) }))
		}
	}
	return s
}

// changed is called after an engine has carried out a change that was asked of it.
func (s *strikes) changed(host string) {
	s.count(func() (n int) { s.changes[host]++; return s.changes[host] }, func(b blow) int { return b.change }, host)
}

// event is called for what the tool emits.
func (s *strikes) event(e rolling.Event) {
	if e.Kind != rolling.KindWait {
		s.count(func() int { s.events++; return s.events }, func(b blow) int { return b.event }, "")
	}
}

func (s *strikes) count(up func() int, of func(blow) int, host string) {
	s.mu.Lock()
	n := up()
	var due []int
	for i, b := range s.blows {
		if of(b) == n && (host == "" || b.host == host) {
			due = append(due, i)
		}
	}
	s.mu.Unlock()
	for _, i := range due {
		s.fall(i)
	}
}

// fall lets a blow fall, once.
func (s *strikes) fall(i int) {
	s.mu.Lock()
	b, t := s.blows[i], s.now
	if s.fallen[i] || s.over {
		s.mu.Unlock()
		return
	}
	s.fallen[i] = true
	s.hit[b.host] = append(s.hit[b.host], b.what)
	s.mu.Unlock()
	s.log("BLOW %s", b)
	var err error
	switch {
	case b.what == blowTool:
		t.kill()
	case b.what == blowInterrupt:
		t.cancel()
	case b.what == blowStop:
		// not awaited: a hook may not keep an engine from answering
		s.later(0, func() { _ = s.w.host(b.host).Engine().StopContainer(s.w.host(b.host).Spec().Container) })
	case b.what == blowRemove:
		s.removeNext(b.host)
	case slices.Contains(lab.Kills(), b.what):
		err = s.w.lab.Kill(b.host, b.what)
	default:
		err = s.w.lab.Inject(b.host, b.what, b.arg)
		if b.lasts > 0 {
			s.later(b.lasts, func() {
				s.log("OVER %s", b)
				_ = s.w.lab.Clear(b.host, b.what)
			})
		}
	}
	if err != nil {
		s.w.Errorf("%s: %v", b, err)
	}
}

func (s *strikes) removeNext(host string) {
	for _, c := range s.w.all(host) {
		if strings.Contains(c.Name, "-next-") && c.State == "created" {
			s.later(0, func() { _ = s.w.host(host).Engine().RemoveContainer(c.ID) })
		}
	}
}

func (s *strikes) later(d time.Duration, fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timers = append(s.timers, time.AfterFunc(d, fn))
}

// fell says which blows fell.
func (s *strikes) fell() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for i, b := range s.blows {
		if s.fallen[i] {
			out = append(out, b.what)
		}
	}
	return fmt.Sprintf("%d of %d blows fell: %v", len(out), len(s.blows), out)
}

// end: nothing falls any more.
func (s *strikes) end() {
	s.mu.Lock()
	s.over = true
	timers := s.timers
	s.mu.Unlock()
	for _, t := range timers {
		t.Stop()
	}
}

// befell says whether a host was hit by one of these.
func (s *strikes) befell(host string, what ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.hit[host], func(h string) bool { return slices.Contains(what, h) })
}

// live names the process that lives now.
func (s *strikes) live(t *tool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = t
}
