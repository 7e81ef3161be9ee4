package cutover

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// PhaseName is one of the five phases; a kind of cut-over may leave some out.
type PhaseName string

// The phases, in their order.
const (
	Prepare PhaseName = "prepare" // reversible on every host
	Hold    PhaseName = "hold"    // everything is ready; nothing has happened yet
	Go      PhaseName = "go"      // the change itself
	Verify  PhaseName = "verify"  // looked at, not assumed
	Release PhaseName = "release" // what was kept for the way back goes
)

// Phase is one line of a plan.
type Phase struct {
	Name PhaseName `json:"name"`
	Does string    `json:"does"`
	// Undo says what takes the phase back while that is possible.
	Undo string `json:"undo"`
	// NoReturn is set where the point of no return lies in this phase, and says
	// what passes it.
	NoReturn string `json:"no_return,omitempty"`
}

// Threshold says whose readiness the barriers ask for.
type Threshold struct {
	Rule string `json:"rule"`
	// Absent are the committee members that take no part, by node id; with any of
	// them the plan needs the waiver `members`.
	Absent []string `json:"absent"`
}

// Plan is what a cut-over will do: printed, hashed, confirmed, and then run as
// it stands. It holds nothing that moves by itself (heights, times, producers);
// At is what the operator said.
type Plan struct {
	Schema string `json:"schema"`
	Kind   string `json:"kind"`
	Fleet  string `json:"fleet"`
	// At is when AtPhase begins, RFC 3339 in UTC; "" is at once.
	At        string             `json:"at,omitempty"`
	AtPhase   PhaseName          `json:"at_phase,omitempty"`
	Committee rolling.Arithmetic `json:"committee"`
	Hosts     []string           `json:"hosts"`
	Threshold Threshold          `json:"threshold"`
	Skipped   []string           `json:"skipped"`
	Waivers   []rolling.Waiver   `json:"waivers"`
	Phases    []Phase            `json:"phases"`

	// Exactly one of these belongs to the kind.
	Halt     *HaltPlan     `json:"halt,omitempty"`
	Release  *ReleasePlan  `json:"release,omitempty"`
	Rollback *RollbackPlan `json:"rollback,omitempty"`
	Decree   *DecreePlan   `json:"decree,omitempty"`
	Restart  *RestartPlan  `json:"restart,omitempty"`
	Unbar    *UnbarPlan    `json:"unbar,omitempty"`
}

const planSchema = "qnetops/cutover-plan/v1"

// Digest identifies the plan: SHA-256 over its canonical JSON, in hex.
func (p Plan) Digest() string {
	body, err := json.Marshal(p)
	if err != nil {
		// Every field is plain data; a failure here must not turn into an empty,
		// matching digest.
		panic("cutover: plan cannot be encoded: " + err.Error())
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// LoadPlan reads the plan of a journaled cut-over.
func LoadPlan(raw json.RawMessage, digest string) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("reading the journaled plan: %w", err)
	}
	if have := p.Digest(); have != digest {
		return p, fmt.Errorf("the journaled plan has digest %.12s, its operation names %.12s: it was written by another version "+
			"or changed", have, digest)
	}
	return p, nil
}

// base fills in what every kind of plan has.
func base(kind, fleet string, ask Ask) Plan {
	p := Plan{Schema: planSchema, Kind: kind, Fleet: fleet, Hosts: slices.Clone(ask.Hosts),
		Skipped: append([]string{}, ask.Skipped...), Waivers: append([]rolling.Waiver{}, ask.Waivers...)}
	if !ask.At.IsZero() {
		p.At = ask.At.UTC().Format(time.RFC3339)
	}
	slices.Sort(p.Hosts)
	slices.Sort(p.Skipped)
	return p
}

// Ask is what the operator said, for every kind.
type Ask struct {
	Hosts   []string // that take part
	Skipped []string // left out by name
	At      time.Time
	Waivers []rolling.Waiver
}

// checkStart refuses a start in the past: nobody can be there in time.
func checkStart(at, now time.Time) []observe.Check {
	if at.IsZero() || at.After(now) {
		return nil
	}
	return []observe.Check{{Name: "start_time", Verdict: observe.Fail, Reason: fmt.Sprintf("--at %s is %s ago; name a time to "+
		"come, in UTC",
		at.UTC().Format(time.RFC3339), now.Sub(at).Round(time.Second))}}
}

// members finds the committee members that no host of the plan is known to be.
// ids is the node id of each host that could be asked.
func members(committee []string, hosts []string, ids map[string]string) []string {
	out := []string{}
	for _, member := range committee {
		if !slices.ContainsFunc(hosts, func(h string) bool { return ids[h] == member }) {
			out = append(out, member)
		}
	}
	return out
}

func checkMembers(p Plan) observe.Check {
	c := observe.Check{Name: "members", Verdict: observe.Pass, Reason: fmt.Sprintf("all %d committee members take part",
		p.Committee.Size)}
	if n := len(p.Threshold.Absent); n > 0 {
		c.Verdict = observe.Fail
		c.Reason = fmt.Sprintf("%d of %d committee members take no part: %v", n, p.Committee.Size, p.Threshold.Absent)
	}
	return c
}

// waived returns the reason a check was waived with, in the plan or by a resume.
func waived(check string, lists ...[]rolling.Waiver) (string, bool) {
	for _, list := range lists {
		for _, w := range list {
			if w.Check == check {
				return w.Reason, true
			}
		}
	}
	return "", false
}

// refused turns the checks that speak against a plan into the refusal, or nil.
func refused(checks []observe.Check, waivers []rolling.Waiver) error {
	left := rolling.Refusals(checks, rolling.Plan{Waivers: waivers})
	if len(left) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: left}
}
