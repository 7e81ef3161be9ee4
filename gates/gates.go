package gates

import (
	"time"

	"github.com/qnetops/qnetops/node"
)

// Gate is one entry of the node's list of activation heights.
type Gate struct {
	Feature string  // the id the node asks for; the expression as written where it cannot be resolved
	Height  *uint64 // first block under the rule; nil where the source does not say it in a form that is understood
	Why     string  // why Height is nil, or why the entry cannot be relied on
	Const   string  // the constant that holds the height; "" for a bare number
	File    string  // where the number is written
	At      int     // its line there
	Line    int     // line of the entry in the list
}

// State is what a gate is at some tip.
type State string

// The states of a gate.
const (
	Active  State = "active"  // the block at the tip is under the rule
	Pending State = "pending" // it is still ahead
	Unknown State = "unknown" // no tip, or no readable height
)

// State says whether the rule holds at a tip; nil is a tip that is not known.
func (g Gate) State(tip *uint64) State {
	switch {
	case tip == nil || g.Height == nil:
		return Unknown
	case *g.Height <= *tip:
		return Active
	}
	return Pending
}

// ID is a feature id that the source declares, with or without an entry in the list.
type ID struct {
	Name    string // of the constant
	Feature string
	Line    int
}

// Set is what one build says about its gates.
type Set struct {
	Source string // the file, or folder@commit:path
	Commit string // full commit id where it was read from a revision
	Gates  []Gate // every entry in the order of the list; of two with one feature the first counts
	IDs    []ID   // declared in mod id
	Idle   []Gate // constants named …_GATE_HEIGHT that no entry uses
}

// Gate returns the entry that counts for a feature.
func (s Set) Gate(feature string) (Gate, bool) {
	for _, g := range s.Gates {
		if g.Feature == feature {
			return g, true
		}
	}
	return Gate{}, false
}

// declares reports whether mod id names the feature.
func (s Set) declares(feature string) bool {
	for _, id := range s.IDs {
		if id.Feature == feature {
			return true
		}
	}
	return false
}

// Unreadable lists the entries whose height or id is not known.
func (s Set) Unreadable() []Gate {
	var out []Gate
	for _, g := range s.Gates {
		if g.Height == nil {
			out = append(out, g)
		}
	}
	return out
}

// WouldCross lists the gates that a chain at tip reaches within so many blocks: a roll that lasts that long would be unfinished
// when they switch. A gate whose height cannot be read is not among them; Check refuses those.
func WouldCross(s Set, tip, blocks uint64) []Gate {
	var out []Gate
	seen := map[string]bool{}
	for _, g := range s.Gates {
		if !seen[g.Feature] && g.Height != nil && *g.Height > tip && *g.Height-tip <= blocks {
			out = append(out, g)
		}
		seen[g.Feature] = true
	}
	return out
}

// catchUp is how many times faster than normal a chain may run after a halt: it produces the missed seconds at its 200 ms floor.
const catchUp = 5

// Expectation is when a height will be reached. The chain makes a block a second, but a chain that stood still catches up
// faster, so At is no promise: until Earliest the height cannot be there, unless the clock of the estimate is wrong.
type Expectation struct {
	Blocks   uint64 // still to come
	At       time.Time
	Earliest time.Time
}

// Expect estimates when a chain at tip reaches height, one block every block time from now. It is nil for a height that is not
// ahead or too far for a date.
func Expect(height, tip uint64, block time.Duration, now time.Time) *Expectation {
	const horizon = 100 * 365 * 24 * time.Hour
	if height <= tip || block <= 0 || height-tip > uint64(horizon/block) {
		return nil
	}
	span := time.Duration(height-tip) * block
	return &Expectation{Blocks: height - tip, At: now.Add(span).UTC(), Earliest: now.Add(span / catchUp).UTC()}
}

// Propose is the first epoch boundary that is at least node.GateLead above the tip; ok is false when no such height exists.
func Propose(tip uint64) (p node.GateProposal, ok bool) {
	p = node.ProposeGate(tip, node.GateLead)
	return p, p.Height > 0
}
