package lease

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Policy is the timing of a lease on Postgres. All of it rests on one chain: the newest proof of the holder was sent before
// its session died, and its session died before a successor can take the session lock. From that moment the successor waits
// Silence; by then the holder must have noticed that its newest proof is Exit old, and be gone.
type Policy struct {
	Profile string

	Beat    time.Duration // B: how often the holder proves and renews
	Query   time.Duration // Q: the server's bound on one statement of the guard, and the time a fence may take
	Monitor time.Duration // M: how often the holder looks at the age of its newest proof
	Exit    time.Duration // H: the age of the newest proof at which the holder is gone
	Work    time.Duration // X: what an exit for that reason may take
	Late    time.Duration // L: how late the machine may run any of this
	Silence time.Duration // S: how long a successor watches an unchanged lease before it takes it over
	Dead    time.Duration // K: after this the server ends the session of a machine that fell silent
	TTL     time.Duration // T: how long a lease lives without renewal, for holders of another identity
	Poll    time.Duration // how often a waiting candidate looks

	Release  time.Duration // bound of the release on a watchdog's exit
	Quiesce  time.Duration // how long an orderly release waits for writers
	Effect   time.Duration // the longest effect outside that is done under one fence
	Headroom time.Duration // what must remain of the TTL after such an effect
}

// The named profiles.
const (
	Steady = "steady" // rides out round trips of half a second and a loaded machine
	Fast   = "fast"   // successor after one second; needs a quiet machine and a near database
)

// Profiles are the names that PolicyOf knows.
func Profiles() []string { return []string{Steady, Fast} }

// PolicyOf returns a named profile; "" is Steady.
func PolicyOf(profile string) (Policy, error) {
	p := Policy{
		Profile: Steady,
		Beat:    250 * time.Millisecond, Query: 500 * time.Millisecond, Monitor: 50 * time.Millisecond,
		Exit: 1250 * time.Millisecond, Work: 100 * time.Millisecond, Late: 500 * time.Millisecond, Silence: 2 * time.Second,
		Dead: 4 * time.Second, TTL: time.Minute, Poll: 250 * time.Millisecond,
		Release: 5 * time.Second, Quiesce: 15 * time.Second, Effect: 10 * time.Second, Headroom: 5 * time.Second,
	}
	switch profile {
	case "", Steady:
	case Fast:
		p.Profile = Fast
		p.Exit, p.Work, p.Late, p.Silence = 750*time.Millisecond, 0, 150*time.Millisecond, time.Second
	default:
		return Policy{}, &PolicyError{Broken: []string{fmt.Sprintf("profile %q is not one of %s", profile, strings.Join(Profiles(), ", "))}}
	}
	return p, nil
}

// Lower returns the policy with a shorter TTL. The longest effect and its headroom shrink with it, down to what still leaves
// the safety inequality true; nothing else changes.
func (p Policy) Lower(ttl time.Duration) Policy {
	if ttl < p.TTL {
		p.Effect = time.Duration(float64(p.Effect) * float64(ttl) / float64(p.TTL))
		p.Headroom = time.Duration(float64(p.Headroom) * float64(ttl) / float64(p.TTL))
	}
	p.TTL = ttl
	return p
}

// Margin is how much of the TTL must be left for an effect to begin while our own write keeps the lease from being renewed.
func (p Policy) Margin() time.Duration { return max(p.TTL/2, p.Effect+p.Headroom) }

// gone is when a holder is certainly gone, counted from its newest proof.
func (p Policy) gone() time.Duration { return p.Exit + p.Monitor + p.Work + p.Late }

// PolicyError lists the inequalities that a policy breaks. A lease under such a policy could be held by two.
type PolicyError struct{ Broken []string }

func (e *PolicyError) Error() string {
	return "unsafe lease timing refused: " + strings.Join(e.Broken, "; ")
}

// Hint says what to do next.
func (e *PolicyError) Hint() string {
	return "use a profile as it is (" + strings.Join(Profiles(), ", ") + "), or change the values until each inequality holds"
}

// Check refuses a policy under which two could hold the lease, and returns warnings about one under which a healthy holder
// could give up without need.
func (p Policy) Check() (warnings []string, err error) {
	var broken []string
	need := func(ok bool, format string, args ...any) {
		if !ok {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	for name, d := range map[string]time.Duration{"beat": p.Beat, "query": p.Query, "monitor": p.Monitor, "exit": p.Exit, "silence": p.Silence,
		"dead": p.Dead, "ttl": p.TTL, "poll": p.Poll, "release": p.Release, "effect": p.Effect} {
		need(d > 0, "%s %s must be above zero", name, d)
	}
	need(p.Work >= 0 && p.Late >= 0 && p.Headroom >= 0 && p.Quiesce >= 0, "no duration may be below zero")
	need(p.gone() < p.Silence, "exit %s + monitor %s + work %s + late %s < silence %s does not hold (%s): a successor could begin before the holder is gone",
		p.Exit, p.Monitor, p.Work, p.Late, p.Silence, p.gone())
	need(p.Dead > p.gone(), "dead %s > exit %s + monitor %s + work %s + late %s does not hold: the server could free the lock before the holder is gone",
		p.Dead, p.Exit, p.Monitor, p.Work, p.Late)
	need(p.Effect+p.Headroom < p.TTL, "effect %s + headroom %s < ttl %s does not hold: an effect could outlive the lease", p.Effect, p.Headroom, p.TTL)
	need(p.Margin() < p.TTL, "margin %s < ttl %s does not hold: no effect could ever begin", p.Margin(), p.TTL)
	need(p.Beat < p.Exit, "beat %s < exit %s does not hold: the holder would give up before its next proof", p.Beat, p.Exit)
	need(p.Silence < p.TTL, "silence %s < ttl %s does not hold", p.Silence, p.TTL)
	if broken != nil {
		slices.Sort(broken)
		return nil, &PolicyError{Broken: broken}
	}
	if 2*p.Query+p.Beat > p.Exit {
		warnings = append(warnings, fmt.Sprintf("round trips above %s make a healthy holder give up (2 x query %s + beat %s <= exit %s does not hold)",
			(p.Exit-p.Beat)/2, p.Query, p.Beat, p.Exit))
	}
	return warnings, nil
}
