package observe

import (
	"fmt"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Committee is who must certify, from the newest sealed proof.
type Committee struct {
	Index   uint64 // macroblock
	Members []string
	Quorum  int
}

// VoterLine says for one committee member, or one host whose node id is not
// known, whether it counts and why.
type VoterLine struct {
	NodeID string // "" for a host whose id could not be read
	HostID string // "" for a member outside the inventory
	Counts bool
	Why    string
}

// Voters is who would vote without one host.
type Voters struct {
	Committee Committee
	Counted   []VoterLine
	Count     int
}

// Enough reports whether those who count reach the quorum. An empty committee
// has no quorum and is never enough.
func (v Voters) Enough() bool { return v.Committee.Quorum > 0 && v.Count >= v.Committee.Quorum }

// Missing lists who does not count, with the reason, for the operator.
func (v Voters) Missing() []string {
	var out []string
	for _, l := range v.Counted {
		if l.Counts {
			continue
		}
		name := l.NodeID
		switch {
		case name == "":
			name = "host " + l.HostID
		case l.HostID != "":
			name = l.HostID + " " + name
		}
		out = append(out, name+" ("+l.Why+")")
	}
	return out
}

// VoterReading is what was read of one host of the inventory.
type VoterReading struct {
	HostID    string
	NodeID    string // "" when it could not be read
	Reachable bool   // the node answered
	Why       string // why it did not
	Height    *uint64
	StartedAt *time.Time // of the container, on this machine's clock
	// Participated are the windows the node logged participation in, without
	// those it then deferred or abstained from.
	Participated []uint64
}

// VoterInput is all CountVoters looks at.
type VoterInput struct {
	Now   time.Time
	Block time.Duration
	// Pace is how long a block has really taken of late; 0 is Block. On a chain
	// that is slower than its block time a window began earlier than Block says.
	Pace      time.Duration
	Committee Committee
	Tip       uint64 // highest believed height of the fleet
	Hosts     []VoterReading
	// Signers are, by window, the union of the signers of all nodes' certificates.
	Signers map[uint64][]string
	Without string // host id that is taken as stopped; "" for none
}

// CountVoters counts the committee members that vote without one host. A member
// of the inventory counts if its node answers, is fewer than BehindBlocks behind,
// was not restarted in this window, and signed one of the last ten sealed windows
// or logged participation in one of the last two. A member outside the inventory
// counts by its signatures. A host whose node id is not known may be any member
// that no host is known to be, so each such host takes one of those away.
func CountVoters(in VoterInput) Voters {
	v := Voters{Committee: in.Committee}
	signed := in.signed()
	hosts, nameless := in.hostsByNode()
	var outside []int // lines of counted members that no host is known to be
	for _, id := range in.Committee.Members {
		line := VoterLine{NodeID: id}
		at := hosts[id]
		switch len(at) {
		case 0:
			line.Counts, line.Why = signed[id], "no signature in the last 10 windows"
			if line.Counts {
				line.Why = "outside the inventory, signed lately"
				outside = append(outside, len(v.Counted))
			}
		case 1:
			line.HostID = at[0].HostID
			line.Counts, line.Why = in.judge(at[0], signed[id])
		default:
			line.HostID = at[0].HostID
			line.Why = fmt.Sprintf("hosts %s and %s both claim this id", at[0].HostID, at[1].HostID)
			nameless = append(nameless, at[1:]...) // one of them is somebody else
		}
		v.Counted = append(v.Counted, line)
	}
	for _, h := range nameless {
		why := "its node id is not known"
		if h.HostID == in.Without {
			why = "to be stopped; " + why
		} else if h.NodeID != "" {
			why = "claims the id of another host"
		} else if !h.Reachable {
			why = "does not answer: " + h.Why
		}
		v.Counted = append(v.Counted, VoterLine{HostID: h.HostID, Why: why})
		if n := len(outside); n > 0 {
			l := &v.Counted[outside[n-1]]
			l.Counts, l.Why = false, "may be the node of host "+h.HostID+", whose id is not known"
			outside = outside[:n-1]
		}
	}
	for _, l := range v.Counted {
		if l.Counts {
			v.Count++
		}
	}
	return v
}

// signed is the union of signers over the last ten windows up to the committee's.
func (in VoterInput) signed() map[string]bool {
	out := map[string]bool{}
	for window, ids := range in.Signers {
		if window > in.Committee.Index || window+signerWindows <= in.Committee.Index {
			continue
		}
		for _, id := range ids {
			out[id] = true
		}
	}
	return out
}

func (in VoterInput) hostsByNode() (byNode map[string][]VoterReading, nameless []VoterReading) {
	byNode = map[string][]VoterReading{}
	for _, h := range in.Hosts {
		if h.NodeID == "" {
			nameless = append(nameless, h)
			continue
		}
		byNode[h.NodeID] = append(byNode[h.NodeID], h)
	}
	return byNode, nameless
}

func (in VoterInput) judge(h VoterReading, signed bool) (bool, string) {
	window := node.WindowOf(in.Tip)
	switch {
	case h.HostID == in.Without:
		return false, "to be stopped"
	case !h.Reachable:
		return false, "does not answer: " + h.Why
	case h.Height == nil:
		return false, "its height is not known"
	case in.Tip >= *h.Height && in.Tip-*h.Height >= BehindBlocks:
		return false, fmt.Sprintf("%d blocks behind", in.Tip-*h.Height)
	case h.StartedAt == nil:
		return false, "its last start is not known"
	case h.StartedAt.After(in.windowStart(window)):
		return false, fmt.Sprintf("restarted in window %d", window)
	case signed:
		return true, "signed in the last 10 windows"
	}
	for _, w := range h.Participated {
		if w <= window+1 && w+participationWindows > window {
			return true, fmt.Sprintf("logged participation in window %d", w)
		}
	}
	return false, "neither signed in the last 10 windows nor logged participation in the last 2"
}

// windowStart estimates when the window of the tip began. It errs to the early
// side, where a restart is seen in a window that it was not in: then the next
// node waits for nothing, but no vote is counted that will not come.
func (in VoterInput) windowStart(window uint64) time.Time {
	if window == 0 {
		return in.Now
	}
	into := in.Tip - node.WindowHead(window-1)
	return in.Now.Add(-time.Duration(into) * max(in.Block, in.Pace))
}

// participated takes the windows back that a node deferred or abstained from.
func participated(lines []node.LogLine) []uint64 {
	said := map[uint64]bool{}
	taken := map[uint64]bool{}
	for _, l := range lines {
		if w, ok := node.Participation(l); ok {
			said[w] = true
		}
		if w, ok := node.Defer(l); ok {
			taken[w] = true
		}
		if w, ok := node.Abstain(l); ok {
			taken[w] = true
		}
	}
	var out []uint64
	for w := range said {
		if !taken[w] {
			out = append(out, w)
		}
	}
	slices.Sort(out)
	return out
}
