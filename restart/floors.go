package restart

import (
	"fmt"

	"github.com/qnetops/qnetops/node"
)

// Ways to bring a host to K.
const (
	WayRollback = "rollback" // by the rollback variable: its certified floor is not above K
	WayRename   = "rename"   // its data directory is set aside and it joins anew: no rollback goes below its floor
	WayNone     = "none"     // it shows nothing above K
	WayUnknown  = "unknown"
)

// ways says for each host how it can be brought to K (DESIGN.md 3.7). k is nil while there is none.
func ways(hosts []*witness, k *uint64) []HostWay {
	var out []HostWay
	for _, w := range hosts {
		h := HostWay{ID: w.name(), CertifiedFloor: floorOf(w.finding)}
		if k == nil {
			h.Way, h.Reason = WayUnknown, "there is no K"
		} else {
			h.Way, h.Reason = wayOf(w.finding, *k)
		}
		out = append(out, h)
	}
	return out
}

// floorOf is the best known certified floor of a host: the one a log line named, unless the host surely holds more.
func floorOf(f *HostFinding) *uint64 {
	if f.FloorExact != nil && (f.FloorAtLeast == nil || *f.FloorExact >= *f.FloorAtLeast) {
		return f.FloorExact
	}
	return f.FloorAtLeast
}

// wayOf compares heights in blocks. The floor itself is served nowhere (facts 9.7): what is only known to be at least so
// high can rule a rollback out, never in.
func wayOf(f *HostFinding, k uint64) (way, reason string) {
	head := node.WindowHead(k)
	above := func(h *uint64) bool { return h != nil && *h > head }
	switch {
	case above(f.FloorAtLeast):
		return WayRename, fmt.Sprintf("holds a certified point at %d, above %d: a rollback would be refused and change nothing", *f.FloorAtLeast, head)
	case above(f.FloorExact):
		return WayRename, fmt.Sprintf("its certified floor is %d, above %d: a rollback would be refused and change nothing", *f.FloorExact, head)
	case nothingAbove(f, k):
		return WayNone, fmt.Sprintf("at height %d, nothing above %d", *f.Height, head)
	case f.FloorExact != nil:
		return WayRollback, fmt.Sprintf("its certified floor is %d, not above %d; should it have risen since, the rollback is refused and changes nothing", *f.FloorExact, head)
	case !f.Reachable && f.Height == nil:
		return WayUnknown, "not reached: " + f.Reason
	}
	return WayUnknown, fmt.Sprintf("its certified floor is not known; a rollback to %d that is refused changes nothing", head)
}

// nothingAbove says whether a host shows that it has no block and no macroblock above K. Not to know its height is not that.
func nothingAbove(f *HostFinding, k uint64) bool {
	if f.Height == nil || *f.Height > node.WindowHead(k) || f.Sealed != nil && *f.Sealed > k {
		return false
	}
	for i := range f.Macroblocks {
		if f.Macroblocks[i].Index > k && f.Macroblocks[i].Held != HeldNo {
			return false
		}
	}
	return true
}
