package rolling

import (
	"fmt"
	"sort"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// Waits of the re-entry checks, in block times (1 block time is 1 s on the
// real chain). They rest on the node's own times: its boot contract is audited
// 120 s after bring-up and exits the process when a subsystem is missing
// (facts 3), so a node that answered before that may still be about to die.
const (
	soakAfterBringup = 130
	soakAfterStart   = 330 // where the bring-up line cannot be seen
	deadlineRPC      = 240
	deadlineLater    = 600
	cleanBlocks      = 30
	// ExpectedNode is how many blocks an undisturbed node takes from its turn to
	// M3: 30 until it does not produce, 60 in which it settles with its peers (facts
	// 3), 130 of soak while M1 to M3 go along, and 90 until the window is over in
	// which it counts as restarted. What is planned by height is planned with it.
	ExpectedNode = 310
	// leastDeadline is real time: on a fast lab chain 240 block times may be
	// shorter than an SSH round trip on a loaded machine.
	leastDeadline = 10 * time.Second
	// wrongBuilds is how often /healthz must name another build before that is
	// taken as final; one answer could come from a port that is changing hands.
	wrongBuilds = 3
	// longestBlind is how long, in block times, a milestone's clock stands still
	// while nothing at all can be seen of the fleet.
	longestBlind = 1800
)

// Milestone is the state of one re-entry check of one node.
type Milestone struct {
	// Name is M0 to M4, Title what it proves.
	Name  string `json:"name"`
	Title string `json:"title"`
	// Verdict is pass, fail, unknown or skipped; unknown never passes.
	Verdict string `json:"verdict"`
	// Seconds from the start of the successor to the verdict; nil while open.
	Seconds *float64 `json:"seconds"`
	Reason  string   `json:"reason"`
}

// The verdict of a milestone that was left out on request.
const verdictSkipped = "skipped"

// Sighting is one round of readings about the node that was replaced. A nil
// field is a reading that could not be had or could not be trusted.
type Sighting struct {
	At time.Time
	// Container as the engine sees it; nil when it could not be asked.
	Running      *bool
	ContainerID  string
	RestartCount *int
	StartedAt    time.Time
	State        string
	ExitCode     int

	Health   *node.Healthz
	Position *node.Position
	Status   *node.NodeHealth
	// FleetHeight is the highest height any other reachable node shows.
	FleetHeight *uint64
	// Lines are log lines of the successor not handed over before.
	Lines []node.LogLine
	// Seals are certificates read from any node since the last sighting.
	Seals []SealSighting
}

// SealSighting is one macroblock certificate as one node served it.
type SealSighting struct {
	Index     uint64
	Committee []string
	Signers   []string
}

// Expectation is what the milestones of one node are measured against.
type Expectation struct {
	Block       time.Duration
	ContainerID string
	StartedAt   time.Time
	// Build is the QNET_BUILD_ID of the new image's Config.Env; "" when the
	// image is not stamped, which leaves M1 unknown unless waived.
	Build       string
	WaiveBuild  string
	NodeID      string
	StartHeight uint64 // fleet tip when the successor was started
	// LinesHidden says that the node's log level hides participation lines.
	LinesHidden bool
	// Halted skips M3 and M4: on a chain that stands they cannot pass.
	Halted bool
	// Armed leaves M4 out: a node that is armed for a cut-over must vote, and what
	// it produces is shown by the chain that goes on.
	Armed bool
	// OnlyRejoined asks for M0 to M2 alone: what a container that was put
	// back must show before it is called restored.
	OnlyRejoined bool
}

// Reentry judges a node's way back into the chain. It is fed sightings and
// holds no connection, so that every rule of it can be tested as a table.
type Reentry struct {
	want Expectation

	bringup      *time.Time
	sawLines     bool
	m0, m1, m2   *Milestone
	m3, m4       *Milestone
	opened       map[string]time.Time
	wrongAnswers int
	fed          bool
	last         time.Time     // of the newest sighting
	blind        time.Duration // for which no clock ran

	participated map[uint64]bool
	spoiled      map[uint64]bool
	signed       map[uint64]bool
	fullSeals    map[uint64]bool

	cleanFrom      *uint64
	cleanFailovers uint64
}

// NewReentry starts judging; nothing has passed yet.
func NewReentry(want Expectation) *Reentry {
	r := &Reentry{
		want:         want,
		m0:           &Milestone{Name: "M0", Title: "stable"},
		m1:           &Milestone{Name: "M1", Title: "rpc"},
		m2:           &Milestone{Name: "M2", Title: "converged"},
		m3:           &Milestone{Name: "M3", Title: "finality"},
		m4:           &Milestone{Name: "M4", Title: "production"},
		opened:       map[string]time.Time{"M0": want.StartedAt, "M1": want.StartedAt},
		participated: map[uint64]bool{},
		spoiled:      map[uint64]bool{},
		signed:       map[uint64]bool{},
		fullSeals:    map[uint64]bool{},
	}
	for _, m := range r.all() {
		m.Verdict, m.Reason = string(observe.Unknown), "not seen yet"
	}
	if want.Halted || want.OnlyRejoined {
		why := "the chain is halted (--recovery-halted)"
		if want.OnlyRejoined {
			why = "not asked of a container that was put back"
		}
		r.m3.Verdict, r.m3.Reason = verdictSkipped, why
		r.m4.Verdict, r.m4.Reason = verdictSkipped, why
	}
	if want.Armed {
		r.m4.Verdict, r.m4.Reason = verdictSkipped, "not asked of a node that is armed for a cut-over"
	}
	return r
}

func (r *Reentry) all() []*Milestone { return []*Milestone{r.m0, r.m1, r.m2, r.m3, r.m4} }

// Milestones returns the state of all five, M0 first.
func (r *Reentry) Milestones() []Milestone {
	var out []Milestone
	for _, m := range r.all() {
		out = append(out, *m)
	}
	return out
}

// Done says whether nothing is open any more: all passed or skipped, or one
// failed.
func (r *Reentry) Done() bool { return r.Failed() != nil || r.Passed() }

// Passed says whether every milestone passed or was skipped.
func (r *Reentry) Passed() bool {
	for _, m := range r.all() {
		if m.Verdict != string(observe.Pass) && m.Verdict != verdictSkipped {
			return false
		}
	}
	return true
}

// Failed returns the first milestone that failed, or nil.
func (r *Reentry) Failed() *Milestone {
	for _, m := range r.all() {
		if m.Verdict == string(observe.Fail) {
			return m
		}
	}
	return nil
}

// Feed takes one sighting and settles what it decides. Milestones M1 to M4
// pass in order; M0 runs beside them, because any restart before the end
// fails it, whatever else was reached.
func (r *Reentry) Feed(s Sighting) {
	if r.Done() {
		return
	}
	if !r.fed {
		// A deadline counts from when somebody could have seen the answer: a
		// resume hours after the start must not fail M1 over one missed reading.
		r.fed = true
		r.opened["M1"] = s.At
	}
	if s.blind() {
		r.pause(s.At)
	}
	r.last = s.At
	r.collect(s)
	r.judgeStable(s)
	r.judgeRPC(s)
	r.judgeConverged(s)
	r.judgeFinality(s)
	r.judgeProduction(s)
	r.expire(s.At)
}

// collect keeps from the log and the certificates what later milestones need;
// a line must not be lost because an earlier milestone was still open.
func (r *Reentry) collect(s Sighting) {
	for _, line := range s.Lines {
		r.sawLines = true
		if r.bringup == nil && node.BringupComplete(line) {
			at := s.At
			if !line.Time.IsZero() && line.Time.Before(at) {
				at = line.Time
			}
			r.bringup = &at
		}
		if w, ok := node.Participation(line); ok {
			r.participated[w] = true
		}
		if w, ok := node.Defer(line); ok {
			r.spoiled[w] = true
		}
		if w, ok := node.Abstain(line); ok {
			r.spoiled[w] = true
		}
	}
	for _, seal := range s.Seals {
		quorum := node.QuorumSize(len(seal.Committee))
		if quorum > 0 && countMembers(seal.Signers, seal.Committee) >= quorum {
			r.fullSeals[seal.Index] = true
		}
		for _, id := range seal.Signers {
			if id == r.want.NodeID && r.want.NodeID != "" {
				r.signed[seal.Index] = true
			}
		}
	}
}

// countMembers counts distinct signers that are in the committee: a name that
// is listed twice or does not belong there is no vote.
func countMembers(signers, committee []string) int {
	members := map[string]bool{}
	for _, id := range committee {
		members[id] = true
	}
	n := 0
	for _, id := range signers {
		if members[id] {
			members[id] = false
			n++
		}
	}
	return n
}

func (r *Reentry) judgeStable(s Sighting) {
	if s.ContainerID != "" && s.ContainerID != r.want.ContainerID {
		r.settle(r.m0, observe.Fail, s.At, "another container runs under this name")
		return
	}
	if s.RestartCount != nil && *s.RestartCount > 0 {
		// The engine keeps the exit code only until the next start.
		why := fmt.Sprintf("the container restarted %d time(s)", *s.RestartCount)
		if s.ExitCode != 0 {
			why += fmt.Sprintf(", last exit code %d", s.ExitCode)
		}
		r.settle(r.m0, observe.Fail, s.At, why)
		return
	}
	if s.Running != nil && !*s.Running {
		r.settle(r.m0, observe.Fail, s.At, fmt.Sprintf("the container is %s, exit code %d", s.State, s.ExitCode))
		return
	}
	if !s.StartedAt.IsZero() && s.StartedAt.After(r.want.StartedAt.Add(time.Second)) {
		r.settle(r.m0, observe.Fail, s.At, "the container was started again at "+s.StartedAt.UTC().Format(time.RFC3339))
		return
	}
	if r.m0.Verdict != string(observe.Unknown) || s.Running == nil {
		return
	}
	if r.bringup != nil {
		if soaked := s.At.Sub(*r.bringup); soaked >= r.blocks(soakAfterBringup) {
			r.settle(r.m0, observe.Pass, s.At, fmt.Sprintf("no restart in %s after bring-up", soaked.Round(time.Millisecond)))
		} else {
			r.m0.Reason = fmt.Sprintf("soaking: %s of %s after bring-up", soaked.Round(time.Millisecond), r.blocks(soakAfterBringup))
		}
		return
	}
	if soaked := s.At.Sub(r.want.StartedAt); soaked >= r.blocks(soakAfterStart) {
		r.settle(r.m0, observe.Pass, s.At, fmt.Sprintf("no restart in %s after the start (bring-up line not seen)", soaked.Round(time.Millisecond)))
		return
	}
	r.m0.Reason = "waiting for bring-up to complete"
}

func (r *Reentry) judgeRPC(s Sighting) {
	if r.m1.Verdict != string(observe.Unknown) {
		return
	}
	if s.Health == nil {
		r.m1.Reason = "/healthz does not answer"
		return
	}
	switch {
	case r.want.Build == "" && r.want.WaiveBuild != "":
		r.m1.Verdict, r.m1.Reason = verdictSkipped, "build not compared, waived: "+r.want.WaiveBuild
		r.stamp(r.m1, s.At)
		r.opened["M2"] = s.At
	case r.want.Build == "":
		r.m1.Reason = "/healthz answers, but the image carries no QNET_BUILD_ID to compare with"
	case s.Health.Build == "":
		r.m1.Reason = "/healthz names no build"
	case s.Health.Build == r.want.Build:
		r.settle(r.m1, observe.Pass, s.At, "/healthz shows build "+s.Health.Build)
		r.opened["M2"] = s.At
	default:
		r.wrongAnswers++
		r.m1.Reason = fmt.Sprintf("/healthz shows build %s, want %s", s.Health.Build, r.want.Build)
		if r.wrongAnswers >= wrongBuilds {
			r.settle(r.m1, observe.Fail, s.At, r.m1.Reason)
		}
	}
}

func (r *Reentry) judgeConverged(s Sighting) {
	if r.m2.Verdict != string(observe.Unknown) || !r.reached(r.m1) {
		return
	}
	height := s.height()
	switch {
	case height == nil:
		r.m2.Reason = "the node's height cannot be read"
	case s.FleetHeight == nil:
		r.m2.Reason = "no other node's height to compare with"
	case s.Status == nil:
		r.m2.Reason = "the node's peers cannot be read"
	case *s.FleetHeight > *height && *s.FleetHeight-*height >= observe.BehindBlocks:
		r.m2.Reason = fmt.Sprintf("%d blocks behind the fleet", *s.FleetHeight-*height)
	case s.overclaims():
		r.m2.Reason = fmt.Sprintf("it says height %d, the fleet is at %d: one of them cannot be", *height, *s.FleetHeight)
	case s.Status.ValidatedPeers < 1:
		r.m2.Reason = "no validated peer: the node talks to nobody"
	default:
		r.settle(r.m2, observe.Pass, s.At, fmt.Sprintf("at height %d, fleet %d, %d validated peers", *height, *s.FleetHeight, s.Status.ValidatedPeers))
		r.opened["M3"] = s.At
	}
}

func (r *Reentry) judgeFinality(s Sighting) {
	if r.m3.Verdict != string(observe.Unknown) || !r.reached(r.m2) {
		return
	}
	restart := node.WindowOf(r.want.StartHeight)
	for _, w := range r.voted() {
		if w <= restart {
			continue
		}
		for _, sealed := range sorted(r.fullSeals) {
			if sealed >= w {
				how := "logged participation in"
				if r.signed[w] {
					how = "signed"
				}
				r.settle(r.m3, observe.Pass, s.At, fmt.Sprintf("%s window %d, window %d sealed by a full quorum", how, w, sealed))
				r.opened["M4"] = s.At
				return
			}
		}
		r.m3.Reason = fmt.Sprintf("took part in window %d, waiting for a full-quorum seal of it or a later one", w)
		return
	}
	r.m3.Reason = fmt.Sprintf("no vote seen in a window above %d yet", restart)
}

// voted lists the windows that prove a vote: the node's own id among the
// signers, or its participation line where no defer or abstain line followed.
func (r *Reentry) voted() []uint64 {
	windows := map[uint64]bool{}
	for w := range r.signed {
		windows[w] = true
	}
	if !r.want.LinesHidden {
		for w := range r.participated {
			if !r.spoiled[w] {
				windows[w] = true
			}
		}
	}
	return sorted(windows)
}

func (r *Reentry) judgeProduction(s Sighting) {
	if r.m4.Verdict != string(observe.Unknown) || !r.reached(r.m3) {
		return
	}
	height := s.height()
	if s.Status == nil || height == nil {
		r.m4.Reason = "failovers and height cannot be read"
		return
	}
	if s.overclaims() {
		r.m4.Reason = fmt.Sprintf("it says height %d, the fleet is at %d: one of them cannot be", *height, *s.FleetHeight)
		return
	}
	disturbed := s.Status.CurrentTimeoutRound != 0 || r.cleanFrom != nil && s.Status.FailoverCount > r.cleanFailovers
	if r.cleanFrom == nil || disturbed || *height < *r.cleanFrom {
		r.cleanFrom, r.cleanFailovers = height, s.Status.FailoverCount
	}
	clean := *height - *r.cleanFrom
	if clean >= cleanBlocks {
		r.settle(r.m4, observe.Pass, s.At, fmt.Sprintf("%d blocks without a failover", clean))
		return
	}
	r.m4.Reason = fmt.Sprintf("%d of %d blocks without a failover", clean, cleanBlocks)
	if disturbed {
		r.m4.Reason = fmt.Sprintf("failover or timeout round %d seen, counting again", s.Status.CurrentTimeoutRound)
	}
}

// expire turns an open milestone whose deadline passed into a failure that
// names what was last seen.
func (r *Reentry) expire(now time.Time) {
	for _, m := range []*Milestone{r.m1, r.m2, r.m3, r.m4} {
		opened, started := r.opened[m.Name]
		if m.Verdict != string(observe.Unknown) || !started {
			continue
		}
		if limit := r.deadline(m.Name); now.Sub(opened) >= limit {
			r.settle(m, observe.Fail, now, fmt.Sprintf("not reached in %s: %s", limit.Round(time.Millisecond), m.Reason))
		}
	}
}

// blind says that neither the node nor any other one could be read: then it is
// the operator who is cut off, and that says nothing about the node.
func (s Sighting) blind() bool {
	return s.Running == nil && s.Health == nil && s.Position == nil && s.Status == nil && s.FleetHeight == nil && len(s.Lines)+len(s.Seals) == 0
}

// pause takes the time since the last sighting off every open deadline: a good
// node must not be put back because the operator's own connection was away. It
// does so for longestBlind in all, since every wait must end.
func (r *Reentry) pause(now time.Time) {
	gap := now.Sub(r.last)
	if r.last.IsZero() || gap <= 0 {
		return
	}
	if rest := r.blocks(longestBlind) - r.blind; gap > rest {
		gap = rest
	}
	r.blind += gap
	for _, m := range r.all() {
		if opened, started := r.opened[m.Name]; started && m.Verdict == string(observe.Unknown) {
			r.opened[m.Name] = opened.Add(gap)
		}
	}
}

func (r *Reentry) deadline(name string) time.Duration {
	blocks := deadlineLater
	if name == "M1" {
		blocks = deadlineRPC
	}
	return max(r.blocks(blocks), leastDeadline)
}

func (r *Reentry) blocks(n int) time.Duration { return time.Duration(n) * r.want.Block }

func (r *Reentry) reached(m *Milestone) bool {
	return m.Verdict == string(observe.Pass) || m.Verdict == verdictSkipped
}

func (r *Reentry) settle(m *Milestone, v observe.Verdict, at time.Time, reason string) {
	m.Verdict, m.Reason = string(v), reason
	r.stamp(m, at)
}

func (r *Reentry) stamp(m *Milestone, at time.Time) {
	seconds := at.Sub(r.want.StartedAt).Seconds()
	m.Seconds = &seconds
}

// overclaims says whether the node shows a height that the others rule out.
func (s Sighting) overclaims() bool {
	h := s.height()
	return h != nil && s.FleetHeight != nil && *h > *s.FleetHeight && *h-*s.FleetHeight >= observe.BehindBlocks
}

func (s Sighting) height() *uint64 {
	if s.Position != nil {
		return &s.Position.Height
	}
	if s.Health != nil {
		return &s.Health.Height
	}
	return nil
}

func sorted(set map[uint64]bool) []uint64 {
	out := make([]uint64, 0, len(set))
	for w := range set {
		out = append(out, w)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}
