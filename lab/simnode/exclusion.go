package simnode

import (
	"slices"

	"github.com/qnetops/qnetops/node"
)

// Who a restart leaves out. The release's list counts for all windows above the macroblock it resumes from, wherever a set
// is derived. What was certified says itself who was missing (cert.Bars), so a later release with another list still reads
// the chain. An identity that the list no longer names comes back with the next macroblock if it was heard in that
// macroblock's window, and stays away if not.

// pin is the release's pin.
func (c *chain) pin() Pin { return c.s.release.Pin }

// excluded is the release's list where it counts for window w.
func (c *chain) excluded(w uint64) []string {
	if r := &c.s.release.Restart; c.barring && w > r.ResumeFromMB {
		return r.Excluded
	}
	return nil
}

// left are the identities left out of the eligible set of macroblock w.
func (c *chain) left(w uint64) []string {
	if w == 0 || (!c.barring && len(c.bars) == 0) {
		return nil
	}
	boundary := node.WindowHead(w) / node.CheckpointBlocks
	gone, known := c.bars[boundary]
	if !known && boundary > uint64(len(c.certs)) {
		gone = c.silent(w, c.left(w-1))
	}
	return union(gone, c.excluded(w))
}

// silent are those of ids of which no block of window w holds a heartbeat.
func (c *chain) silent(w uint64, ids []string) []string {
	if len(ids) == 0 {
		return nil
	}
	heard := map[string]bool{}
	for h := node.WindowHead(w-1) + 1; h <= min(node.WindowHead(w), c.tip()); h++ {
		for _, id := range c.blocks[h-1].Beats {
			heard[id] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return heard[id] })
}

// barsAt are the Bars of certificate i as this node would make it.
func (c *chain) barsAt(i uint64) []string {
	head := i * node.CheckpointBlocks
	w := node.WindowOf(head)
	if head%node.MacroblockBlocks == 0 {
		return c.left(w)
	}
	return c.excluded(w)
}

// note takes down who is left out at certificate i.
func (c *chain) note(i uint64, ids []string) {
	if old, known := c.bars[i]; slices.Equal(old, ids) && (known || len(ids) == 0) {
		return
	}
	c.bars[i] = ids
	clear(c.committees)
}

// explains says whether ct certifies this chain's own blocks and only who is left out differs from what this node derives:
// same, and it could take that over; or disputed, and its own release forbids it.
func (c *chain) explains(ct cert) (same, disputed bool) {
	old, known := c.bars[ct.Index]
	barring := c.barring
	c.bars[ct.Index] = ct.Bars
	clear(c.committees)
	if same = c.checkpoint(ct.Index).Hash() == ct.Hash; !same && barring {
		c.bar(false)
		disputed = c.checkpoint(ct.Index).Hash() == ct.Hash
	}
	if known {
		c.bars[ct.Index] = old
	} else {
		delete(c.bars, ct.Index)
	}
	c.bar(barring)
	return same, disputed
}

// bar turns the release's own exclusions on or off.
func (c *chain) bar(on bool) {
	c.barring = on
	clear(c.committees)
}

// barsFor are the notes that a node which fetches blocks from a height to end needs to follow them.
func (c *chain) barsFor(from, end uint64) map[uint64][]string {
	if len(c.bars) == 0 {
		return nil
	}
	first := from/node.CheckpointBlocks - min(from/node.CheckpointBlocks, 3*node.MacroblockBlocks/node.CheckpointBlocks)
	notes := map[uint64][]string{}
	for i, ids := range c.bars {
		if i >= first && i <= min(end/node.CheckpointBlocks+node.MacroblockBlocks/node.CheckpointBlocks, uint64(len(c.certs))) {
			notes[i] = ids
		}
	}
	return notes
}

// digest is the committee-fields digest of macroblock w.
func (c *chain) digest(w uint64) node.Hash {
	beacon := node.Beacon(c.micro(node.WindowHead(w)))
	return node.CommitteeFields{Eligible: c.eligibleRaw(w), Beacon: &beacon, Committee: c.committee(w), Banned: node.EncodeStrings(nil)}.DigestV2()
}

// holds says whether macroblock w is there: its blocks, certified, on a sealed one.
func (c *chain) holds(w uint64) bool {
	head := node.WindowHead(w)
	return c.tip() >= head && uint64(len(c.certs)) >= head/node.CheckpointBlocks && c.lastSealed()+1 >= w
}

// without is ids less those in gone; ids itself when there are none.
func without(ids, gone []string) []string {
	if len(gone) == 0 {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(gone, id) })
}

// union is both lists as one sorted list; nil when there is nothing.
func union(a, b []string) []string {
	if len(a)+len(b) == 0 {
		return nil
	}
	ids := slices.Concat(a, b)
	slices.Sort(ids)
	return slices.Compact(ids)
}
