package cutover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// What a rollback will do with a node, and what it did. The forecast has drop,
// nothing, refuse and unknown; the rest stands in the node's log alone.
const (
	RollbackDrop    = "drop"      // blocks above the target go
	RollbackNothing = "nothing"   // it holds none: markers and signing mark are lowered all the same
	RollbackRefuse  = "refuse"    // its certified floor is above the target: it starts unchanged
	RollbackNoPoint = "no_point"  // it holds nothing certified: it starts unchanged
	RollbackFailed  = "failed"    // it could not: it starts unchanged
	RollbackUnknown = "unknown"   // nothing was seen
	RollbackNoMark  = "mark_kept" // done, but its signing mark could not be lowered: it refuses to produce
)

// Forecast is what a rollback will do on one host, from what can be read. The
// certified floor itself is served nowhere (facts 9.7): FloorAtLeast is the height
// up to which the node certainly holds certificates; it may hold more.
type Forecast struct {
	ID           string  `json:"id"`
	Height       *uint64 `json:"height"`
	FloorAtLeast *uint64 `json:"certified_floor_at_least"`
	Will         string  `json:"will"` // drop, nothing, refuse or unknown
	Text         string  `json:"text"`
}

// foretell says what a rollback to target (nil: to the certified floor) will do on
// a node at height h whose floor is at least floor.
func foretell(id string, target, h, floor *uint64) Forecast {
	f := Forecast{ID: id, Height: h, FloorAtLeast: floor, Will: RollbackUnknown}
	switch {
	case h == nil || floor == nil:
		f.Text = "its height and its seals cannot be read: nobody knows what it will do"
	case target == nil && *floor == 0:
		f.Text = fmt.Sprintf("at height %d with nothing sealed: without a certified point it starts unchanged", *h)
	case target == nil:
		f.Will = RollbackDrop
		f.Text = fmt.Sprintf("at height %d, goes to its certified floor, %d or above: at most %d blocks are dropped; the floor "+
			"itself cannot be read",
			*h, *floor, *h-min(*h, *floor))
	case *target < *floor:
		f.Will = RollbackRefuse
		f.Text = fmt.Sprintf("holds a certified point at %d, above %d: it refuses and starts unchanged", *floor, *target)
	case *target >= *h:
		f.Will = RollbackNothing
		f.Text = fmt.Sprintf("at height %d, nothing above %d to drop; its signing mark is lowered", *h, *target)
	default:
		f.Will = RollbackDrop
		f.Text = fmt.Sprintf("at height %d, %d blocks are dropped, unless it holds a certified point above %d, which cannot be "+
			"read: then it refuses",
			*h, *h-*target, *target)
	}
	return f
}

// floorAtLeast is the height up to which a node certainly holds certificates.
func floorAtLeast(n *observe.NodeView) *uint64 {
	if n == nil || n.LastSealed == nil || n.Finalized == nil {
		return nil
	}
	floor := max(*n.Finalized, node.WindowHead(*n.LastSealed))
	return &floor
}

// RollbackResult is what the log of a node says that its rollback did (facts 4.6).
type RollbackResult struct {
	Outcome string  `json:"outcome"`
	To      *uint64 `json:"to"`      // truncated to this height
	Dropped *uint64 `json:"dropped"` // blocks
	Floor   *uint64 `json:"certified_floor"`
	Text    string  `json:"text"`
}

// ok says whether the node stands where the rollback was to bring it.
func (r RollbackResult) ok() bool {
	return r.Outcome == RollbackDrop || r.Outcome == RollbackNothing
}

// readRollback finds the outcome in the log of one run; target is nil for the
// certified floor. Lines that contradict each other leave the worse one.
func readRollback(target *uint64, lines []node.LogLine) RollbackResult {
	res := RollbackResult{Outcome: RollbackUnknown, Text: "its log says nothing of a rollback"}
	for _, l := range lines {
		if l.Module != "ROLLBACK" {
			continue
		}
		if to, dropped, ok := node.Truncated(l); ok {
			res.Outcome, res.To, res.Dropped = RollbackDrop, &to, &dropped
			res.Text = fmt.Sprintf("truncated to %d, %d blocks dropped", to, dropped)
			if target != nil && to != *target {
				res.Outcome, res.Text = RollbackFailed, res.Text+fmt.Sprintf(", and not to %d", *target)
			}
			continue
		}
		if asked, floor, ok := node.RollbackRefused(l); ok {
			res.Outcome, res.Floor = RollbackRefuse, &floor
			res.Text = fmt.Sprintf("refused: its certified floor is %d, the target %d; it started unchanged", floor, asked)
			continue
		}
		switch l.Event {
		case "already_at_or_below":
			res.Outcome, res.Text = RollbackNothing, "already at or below "+l.Keys["target"]+", nothing dropped"
		case "no_certified_point_found":
			res.Outcome, res.Text = RollbackNoPoint, "it holds no certified point; it started unchanged"
		case "failed":
			res.Outcome, res.Text = RollbackFailed, "the rollback failed: "+l.Text
		case "signed_mark_lower_failed":
			res.Outcome, res.Text = RollbackNoMark, res.Text+"; its signing mark could not be lowered, so it refuses to produce"
		}
	}
	return res
}

// checkTarget refuses a height that no rollback and no decree can bring the fleet
// to, in numbers; nil is each node's own certified floor.
func checkTarget(name string, target *uint64, view observe.View, hosts []Forecast) []observe.Check {
	if target == nil {
		return []observe.Check{checkSomething(name, hosts)}
	}
	t := *target
	c := observe.Check{Name: name, Verdict: observe.Pass, Reason: fmt.Sprintf("height %d", t)}
	top := tip(view)
	switch below := t / node.CheckpointBlocks * node.CheckpointBlocks; {
	case t != below:
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("height %d lies between two certified points, %d and %d: a checkpoint is "+
			"certified every %d blocks",
			t, below, below+node.CheckpointBlocks, node.CheckpointBlocks)
	case top == nil:
		c.Verdict, c.Reason = observe.Unknown, "no node's height can be believed, so nobody knows what lies above the target"
	case t > *top:
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("height %d is above the tip %d: there is nothing to go back from", t, *top)
	}
	out := []observe.Check{c}
	for _, f := range hosts {
		if f.Will == RollbackRefuse {
			out = append(out, observe.Check{Name: "certified_floor", Verdict: observe.Fail,
				Reason: fmt.Sprintf("%s: height %d is below its certified floor, which is %d or above: "+
					"it would refuse and start unchanged, and its copy would pull the fleet back; take %d or "+
					"more", f.ID, t, *f.FloorAtLeast, *f.FloorAtLeast)})
		}
	}
	return out
}

func checkSomething(name string, hosts []Forecast) observe.Check {
	c := observe.Check{Name: name, Verdict: observe.Unknown, Reason: "no host shows a certified point to go back to"}
	for _, f := range hosts {
		if f.Will == RollbackDrop {
			return observe.Check{Name: name, Verdict: observe.Pass, Reason: "each node goes to the last certified point it holds"}
		}
	}
	return c
}

// checkSealedHistory refuses where two nodes hold different macroblocks under one
// index: a rollback ends above the last seal and cannot mend what lies below it.
func checkSealedHistory(view observe.View) observe.Check {
	c := observe.Check{Name: "sealed_history", Verdict: observe.Pass, Reason: "no two nodes hold different macroblocks"}
	type held struct {
		by   string
		hash node.Hash
	}
	seen := map[uint64]held{}
	for _, n := range view.Nodes {
		if len(n.Seals) == 0 {
			continue
		}
		s := n.Seals[len(n.Seals)-1] // a seal that was dropped and fetched again is read twice: the newest counts
		if first, ok := seen[s.Index]; ok && first.hash != s.Hash {
			c.Verdict = observe.Fail
			c.Reason = fmt.Sprintf("%s and %s hold different macroblocks %d: the branches part below their last seal, where no "+
				"rollback goes (qnetops restart is for that)",
				first.by, n.ID, s.Index)
			return c
		} else if !ok {
			seen[s.Index] = held{n.ID, s.Hash}
		}
	}
	return c
}

// checkNeeded refuses to take blocks from a chain that has nothing wrong with it.
func checkNeeded(view observe.View) observe.Check {
	c := observe.Check{Name: "fleet", Verdict: observe.Pass, Reason: "verdict " + string(view.Verdict)}
	if view.Verdict == observe.Healthy || view.Verdict == observe.Behind {
		c.Verdict, c.Reason = observe.Fail, "the fleet is "+string(view.Verdict)+" and seals: a rollback would take blocks that "+
			"are good"
	}
	return c
}

// stalledBlocks is how long a chain may stand, or run without sealing, after it
// was started again, in block times: a seal takes up to 90 blocks to the boundary
// and a certified child 30 above it, and 2880 blocks on it would park (facts 3, 8).
const stalledBlocks = 180

// pulseBlocks is what a chain must have produced before the missing seal says
// something.
const pulseBlocks = node.MacroblockBlocks + 2*node.CheckpointBlocks

// The ways a chain can stand after it was started again.
const (
	ChainWaiting  = "waiting"
	ChainSealing  = "sealing"
	ChainSilent   = "nobody_produces"          // facts 8 #2
	ChainUnsealed = "produces_without_sealing" // facts 8 #3, #4
	ChainSlow     = "produces_slowly"
)

// Chain is how the chain stands after it was started again, against where it stood
// when every node had come up.
type Chain struct {
	Verdict    string  `json:"verdict"`
	FromHeight uint64  `json:"from_height"`
	FromSealed uint64  `json:"from_sealed"`
	Height     *uint64 `json:"height"`
	Sealed     *uint64 `json:"sealed"` // the newest that enough nodes hold
	Text       string  `json:"text"`
}

// pulse judges a chain that was started again, one look after the other.
type pulse struct {
	block time.Duration
	need  int // nodes that must show a new seal
	chain Chain
	since time.Time // the first look
	moved time.Time // when a height above the start was first seen
}

// leastPulse is real time: on a fast lab chain 180 block times may be shorter than
// a round of looks.
const leastPulse = 10 * time.Second

// feed takes one look: heights and newest seals of the nodes that answered.
func (p *pulse) feed(now time.Time, heights, seals []uint64) Chain {
	if p.since.IsZero() {
		p.since = now
	}
	c := &p.chain
	c.Height, c.Sealed = nil, nil
	if len(heights) > 0 {
		top := slices.Max(heights)
		c.Height = &top
		if top > c.FromHeight && p.moved.IsZero() {
			p.moved = now
		}
	}
	if len(seals) >= p.need && p.need > 0 {
		slices.Sort(seals)
		held := seals[len(seals)-p.need]
		c.Sealed = &held
	}
	c.Verdict, c.Text = p.judge(now)
	return *c
}

func (p *pulse) judge(now time.Time) (verdict, text string) {
	c, limit := p.chain, max(stalledBlocks*p.block, leastPulse)
	switch {
	case c.Sealed != nil && *c.Sealed > c.FromSealed:
		return ChainSealing, fmt.Sprintf("macroblock %d is sealed on %d nodes or more, at height %d", *c.Sealed, p.need, *c.Height)
	case p.moved.IsZero() && now.Sub(p.since) < limit:
		return ChainWaiting, fmt.Sprintf("no block above %d yet", c.FromHeight)
	case p.moved.IsZero():
		return ChainSilent, fmt.Sprintf("nobody produces: no node has a block above %d, %d block times after they came up",
			c.FromHeight, stalledBlocks)
	case now.Sub(p.moved) < limit:
		return ChainWaiting, fmt.Sprintf("%s produced above %d, no macroblock above %d sealed yet", p.blocks(), c.FromHeight,
			c.FromSealed)
	case c.Height != nil && *c.Height < c.FromHeight+pulseBlocks:
		return ChainSlow, fmt.Sprintf("%s in %d block times: too few to be sealed (up to %d are needed), and too slow", p.blocks(),
			stalledBlocks, pulseBlocks)
	}
	return ChainUnsealed, fmt.Sprintf("it produces and does not seal: %s above %d in %d block times, and no macroblock above "+
		"%d; it will park %d blocks above its last seal",
		p.blocks(), c.FromHeight, stalledBlocks, c.FromSealed, node.HorizonBlocks)
}

func (p *pulse) blocks() string {
	if p.chain.Height == nil {
		return "blocks, nobody can say how many,"
	}
	return fmt.Sprintf("%d blocks", *p.chain.Height-min(*p.chain.Height, p.chain.FromHeight))
}

// omens are lines of a node that explain why a chain that was started again does
// not go on.
type omens struct {
	signed   map[string]bool // hosts that yield because they have signed that height before
	mark     map[string]bool // whose signing mark could not be lowered
	parked   map[string]bool
	rejected map[string]bool // that refuse certificates
}

func newOmens() omens {
	return omens{signed: map[string]bool{}, mark: map[string]bool{}, parked: map[string]bool{}, rejected: map[string]bool{}}
}

func (o omens) see(id string, l node.LogLine) {
	switch {
	case l.Module == "ROLLBACK" && l.Event == "signed_mark_lower_failed":
		o.mark[id] = true
	case strings.Contains(l.Text, "already_signed_this_round"):
		o.signed[id] = true
	case l.Module == "PROD" && l.Event == "parked":
		o.parked[id] = true
	default:
		if _, ok := node.QCRejected(l); ok {
			o.rejected[id] = true
		}
	}
}

// String names what was seen, by host; "" where nothing was.
func (o omens) String() string {
	var parts []string
	for _, k := range []struct {
		in   map[string]bool
		says string
	}{
		{o.mark, "could not lower the signing mark"}, {o.signed, "yield because they have signed that height before " +
			"(already_signed_this_round)"},
		{o.parked, "are parked at the horizon"}, {o.rejected, "refuse certificates"},
	} {
		var ids []string
		for id := range k.in {
			ids = append(ids, id)
		}
		if slices.Sort(ids); len(ids) > 0 {
			parts = append(parts, strings.Join(ids, ", ")+" "+k.says)
		}
	}
	return strings.Join(parts, "; ")
}
