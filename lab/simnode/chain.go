package simnode

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
	"golang.org/x/crypto/sha3"
)

// block is one microblock. Slot counts block times: slot s of the live chain is
// due at genesis + (s - history) block times, and a block's slot is always above
// its parent's. Round is the timeout round it was made in, Turn how many
// producers the rotation has been moved on by failovers.
type block struct {
	H        uint64    `json:"h"`
	Slot     int64     `json:"s"`
	Round    uint64    `json:"r,omitempty"`
	Turn     uint64    `json:"o,omitempty"`
	Producer string    `json:"p"`
	Prev     node.Hash `json:"v"`
	Joins    []string  `json:"j,omitempty"` // super nodes registered by this block
	Beats    []string  `json:"e,omitempty"` // heartbeats of identities that are left out
	Hash     node.Hash `json:"x"`
}

func (b *block) sum() node.Hash {
	buf := make([]byte, 0, 192)
	buf = append(buf, "qnetops-lab-block"...)
	buf = binary.LittleEndian.AppendUint64(buf, b.H)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(b.Slot))
	buf = binary.LittleEndian.AppendUint64(buf, b.Round)
	buf = binary.LittleEndian.AppendUint64(buf, b.Turn)
	buf = append(buf, b.Prev[:]...)
	buf = append(buf, b.Producer...)
	for _, id := range b.Joins {
		buf = append(append(buf, 0), id...)
	}
	for _, id := range b.Beats {
		buf = append(append(buf, 1), id...)
	}
	return sha3.Sum256(buf)
}

// cert is a certificate as one node holds it: exactly the first quorum of the
// votes that reached it, in that order.
type cert struct {
	Index   uint64    `json:"i"`
	Hash    node.Hash `json:"x"`
	Signers []string  `json:"s"`
	Sigs    []string  `json:"g"`
	// Bars are the identities left out here: at the boundary of a window of its
	// eligible set, else of its committee. Only a restart leaves anyone out.
	Bars []string `json:"b,omitempty"`
}

// sealedMB is a macroblock this node holds sealed.
type sealedMB struct {
	hash      node.Hash
	timestamp uint64
	stateRoot node.Hash
	prev      node.Hash
}

// failoverRow is one row of /api/v1/failovers.
type failoverRow struct {
	height            uint64
	failed, emergency string
	timestamp         int64
}

// maxFailoverRows is how many failover rows a node keeps (facts 1.13).
const maxFailoverRows = 10_000

// chain is the state machine: blocks, certificates and what follows from them.
// Everything but certificates is a pure function of the blocks. It has no lock
// of its own.
type chain struct {
	s       *settings
	genesis []string // genesis members, sorted
	hist    []string // super nodes of the pre-made history
	network node.Hash

	blocks    []block           // height h at h-1
	joined    map[string]uint64 // super node -> height of its registration
	certs     []cert            // checkpoint i at i-1, without gaps
	sealed    []sealedMB        // macroblock w at w-1
	failovers []failoverRow

	committees map[uint64][]string // memo of committee, dropped by truncate
	bars       map[uint64][]string // what certificates say of who is left out, by index
	barring    bool                // the release's own exclusions count: see excluded
}

// newChain makes a chain with the first premade blocks of the network's pre-made
// history.
func newChain(s *settings, histSupers []string, premade uint64) *chain {
	c := &chain{s: s, bars: map[uint64][]string{}, joined: map[string]uint64{}, committees: map[uint64][]string{}}
	for n := 1; n <= s.genesisCount; n++ {
		c.genesis = append(c.genesis, GenesisID(n))
	}
	if s.history > 0 {
		c.hist = slices.Clone(histSupers)
		slices.Sort(c.hist)
		c.hist = slices.Compact(c.hist)
	}
	c.network = sha3.Sum256(fmt.Appendf(nil, "qnetops-lab-genesis %d %d %d %q", s.genesisNanos, s.history, s.genesisCount, c.hist))
	c.premake(min(premade, s.history))
	return c
}

// premake computes the pre-made history: every block and certificate, the same
// blocks on all nodes, and on each node its own choice of signers.
func (c *chain) premake(blocks uint64) {
	for h := uint64(1); h <= blocks; h++ {
		b := block{H: h, Slot: int64(h), Producer: c.producer(h, 0), Prev: c.tipHash()}
		b.Hash = b.sum()
		c.push(b)
		if h%node.CheckpointBlocks == 0 {
			c.pushCert(c.historyCert(h / node.CheckpointBlocks))
		}
	}
}

// historyCert is the certificate this node would have collected.
func (c *chain) historyCert(i uint64) cert {
	hash := c.checkpoint(i).Hash()
	members := slices.Clone(c.committee(node.WindowOf(i * node.CheckpointBlocks)))
	order := func(id string) uint64 {
		sum := sha3.Sum256(fmt.Appendf(nil, "%s %d %s", c.s.id, i, id))
		return binary.LittleEndian.Uint64(sum[:])
	}
	slices.SortFunc(members, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	ct := cert{Index: i, Hash: hash}
	for _, id := range members[:node.QuorumSize(len(members))] {
		ct.Signers = append(ct.Signers, id)
		ct.Sigs = append(ct.Sigs, sign(id, node.VoteText(hash)))
	}
	return ct
}

func (c *chain) tip() uint64 { return uint64(len(c.blocks)) }

func (c *chain) tipHash() node.Hash { return c.hashAt(c.tip()) }

// hashAt is the block hash at a height this chain has; height 0 is the genesis
// block, whose hash names the network.
func (c *chain) hashAt(h uint64) node.Hash {
	if h == 0 {
		return c.network
	}
	return c.blocks[h-1].Hash
}

func (c *chain) slotOf(h uint64) int64 {
	if h == 0 {
		return 0
	}
	return c.blocks[h-1].Slot
}

// due is when a slot begins on the shared schedule.
func (c *chain) due(slot int64) time.Time {
	return time.Unix(0, c.s.genesisNanos+(slot-int64(c.s.history))*int64(c.s.block))
}

// slotAt is the slot that runs at t.
func (c *chain) slotAt(t time.Time) int64 {
	return (t.UnixNano()-c.s.genesisNanos)/int64(c.s.block) + int64(c.s.history)
}

// stamp is a slot as a chain timestamp in unix seconds. With blocks shorter
// than a second several blocks share one.
func (c *chain) stamp(slot int64) uint64 { return uint64(c.due(slot).Unix()) }

// eligible is the eligible set sealed in macroblock w: the genesis members and
// each super node whose registration is at least the warm-up below the window's
// head, without those a restart left out. Window 0 stands for the genesis set.
func (c *chain) eligible(w uint64) []string {
	ids := slices.Concat(c.genesis, c.hist)
	head := node.WindowHead(w)
	if w == 0 {
		return slices.Clone(c.genesis)
	}
	for id, at := range c.joined {
		if at+node.ActivationWarmupBlocks <= head {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return without(slices.Compact(ids), c.left(w))
}

// committee is the committee and roster of window w, from macroblock w-2
// without walk-back; the first two windows have the genesis set. What a restart
// leaves out is filtered here too, on every path.
func (c *chain) committee(w uint64) []string {
	if ids, ok := c.committees[w]; ok {
		return ids
	}
	ids := c.genesis
	if w > 2 {
		ids = c.eligible(w - 2)
	}
	if w > 0 {
		first := node.WindowHead(w-1)/node.CheckpointBlocks + 1
		ids = without(without(ids, c.excluded(w)), c.bars[first])
	}
	c.committees[w] = ids
	return ids
}

// turn0 is the producer offset height h starts with: a failover keeps the turn
// to the end of its rotation round.
func (c *chain) turn0(h uint64) uint64 {
	if h < 2 || node.RoundOf(h) != node.RoundOf(h-1) {
		return 0
	}
	return c.blocks[h-2].Turn
}

// producer is who makes block h in a timeout round; h is at most tip+1.
func (c *chain) producer(h, round uint64) string {
	roster := c.committee(node.WindowOf(h))
	return roster[(node.RoundOf(h)+c.turn0(h)+round)%uint64(len(roster))]
}

var (
	errHeight   = errors.New("not the next height")
	errPrev     = errors.New("another parent")
	errProducer = errors.New("not the producer of this round")
	errContent  = errors.New("hash or slot wrong")
)

// check says whether b can follow the tip.
func (c *chain) check(b *block) error {
	switch {
	case b.H != c.tip()+1:
		return errHeight
	case b.Prev != c.tipHash():
		return errPrev
	case b.Slot <= c.slotOf(c.tip()) || b.Hash != b.sum():
		return errContent
	case b.Round > node.MaxFailoverRound || b.Turn != c.turn0(b.H)+b.Round || b.Producer != c.producer(b.H, b.Round):
		return errProducer
	}
	return nil
}

// push appends a checked block.
func (c *chain) push(b block) {
	if b.Round > 0 {
		c.failovers = append(c.failovers, failoverRow{height: b.H, failed: c.producer(b.H, b.Round-1),
			emergency: b.Producer, timestamp: int64(c.stamp(b.Slot))})
		if len(c.failovers) > maxFailoverRows {
			c.failovers = c.failovers[1:]
		}
	}
	c.blocks = append(c.blocks, b)
	for _, id := range b.Joins {
		if _, ok := c.joined[id]; !ok {
			c.joined[id] = b.H
		}
	}
}

// truncate drops all blocks above h, and the certificates and macroblocks that
// rest on them.
func (c *chain) truncate(h uint64) {
	c.blocks = c.blocks[:min(h, c.tip())]
	if n := h / node.CheckpointBlocks; uint64(len(c.certs)) > n {
		c.certs = c.certs[:n]
		c.sealed = c.sealed[:min(uint64(len(c.sealed)), c.sealable())]
	}
	for id, at := range c.joined {
		if at > h {
			delete(c.joined, id)
		}
	}
	for i := range c.bars {
		if i > uint64(len(c.certs)) {
			delete(c.bars, i)
		}
	}
	c.failovers = slices.DeleteFunc(c.failovers, func(r failoverRow) bool { return r.height > h })
	clear(c.committees)
}

// floor is the height of the newest certified checkpoint: nothing at or below
// it is ever given up.
func (c *chain) floor() uint64 { return uint64(len(c.certs)) * node.CheckpointBlocks }

// finalized is the height that is final by the two-chain rule: the checkpoint
// below the newest certified one.
func (c *chain) finalized() uint64 {
	if len(c.certs) == 0 {
		return 0
	}
	final := c.floor() - node.CheckpointBlocks
	if k := c.pin().Index; k > 0 && k <= c.lastSealed() && c.floor() >= node.WindowHead(k) {
		final = max(final, node.WindowHead(k))
	}
	return final
}

// sealable is the newest macroblock the certificates allow to be sealed: the
// pinned one needs no certified child.
func (c *chain) sealable() uint64 {
	w := c.finalized() / node.MacroblockBlocks
	if k := c.pin().Index; k > w && c.holds(k) && c.macroblock(k).Hash() == c.pin().Hash {
		w = k
	}
	return w
}

func (c *chain) lastSealed() uint64 { return uint64(len(c.sealed)) }

// sealBase is where the production horizon is measured from.
func (c *chain) sealBase() uint64 { return max(node.WindowHead(c.lastSealed()), c.floor()) }

// pushCert appends the next certificate and seals what it makes final. It
// returns the macroblock sealed by it, 0 for none.
func (c *chain) pushCert(ct cert) uint64 {
	c.certs = append(c.certs, ct)
	c.note(ct.Index, ct.Bars)
	w := c.lastSealed() + 1
	if w > c.sealable() {
		return 0
	}
	mb := c.macroblock(w)
	c.sealed = append(c.sealed, sealedMB{hash: mb.Hash(), timestamp: mb.Timestamp, stateRoot: mb.StateRoot, prev: mb.PreviousHash})
	return w
}

// macroblock builds macroblock w; the one before it must be sealed and its
// blocks there.
func (c *chain) macroblock(w uint64) node.MacroBlock {
	head := node.WindowHead(w)
	mb := node.MacroBlock{Height: w, Timestamp: c.stamp(c.slotOf(head)), StateRoot: root("state", c.hashAt(head)), MicroBlocks: c.micro(head)}
	if w > 1 {
		mb.PreviousHash = c.sealed[w-2].hash
	}
	return mb
}

// micro lists the block hashes from the start of a window to head.
func (c *chain) micro(head uint64) []node.Hash {
	first := node.WindowHead(node.WindowOf(head)-1) + 1
	hashes := make([]node.Hash, 0, node.MacroblockBlocks)
	for h := first; h <= head; h++ {
		hashes = append(hashes, c.hashAt(h))
	}
	return hashes
}

// root stands for a Merkle root of the state after a block.
func root(name string, head node.Hash) node.Hash {
	return sha3.Sum256(append([]byte("qnetops-lab-"+name), head[:]...))
}

// eligibleRaw is the eligible set as a macroblock stores it.
func (c *chain) eligibleRaw(w uint64) []byte {
	var list []node.Producer
	for _, id := range c.eligible(w) {
		list = append(list, node.Producer{NodeID: id, Reputation: 7000})
	}
	return node.EncodeEligible(list)
}

// checkpoint builds checkpoint i, whose parent must be certified and whose
// blocks must be there. All nodes on one chain build the same one.
func (c *chain) checkpoint(i uint64) node.Checkpoint {
	head := i * node.CheckpointBlocks
	w, tip := node.WindowOf(head), c.hashAt(head)
	sealing := w // an inner checkpoint commits to the set the window started with
	if head%node.MacroblockBlocks != 0 {
		sealing = w - 1
	}
	micro := c.micro(head)
	cp := node.Checkpoint{Index: i, WindowHeadHeight: head, WindowMBHashes: micro, StateRoot: root("state", tip),
		Beacon: node.Beacon(micro), EpochCommitment: node.EpochCommitment(c.eligibleRaw(sealing), c.committee(w), nil),
		RewardRoot: node.Hash{}, RegistryRoot: root("registry", tip), LogsRoot: root("logs", tip),
		DilithiumPKRoot: root("dpk", tip), RewardEpochRoot: root("reward-epoch", tip),
		TotalSupply: 1<<53 + 1 + head, // above what a JSON number holds exactly
		Timestamp:   c.stamp(c.slotOf(head)), Proposer: c.blocks[head-1].Producer}
	if i > 1 {
		cp.Parent = &node.ParentQC{CheckpointHash: c.certs[i-2].Hash, Index: i - 1}
	}
	return cp
}

// validCert says whether a certificate is a quorum of distinct, rightly signed
// votes of the committee of its window.
func (c *chain) validCert(ct cert) bool {
	members := c.committee(node.WindowOf(ct.Index * node.CheckpointBlocks))
	if len(ct.Signers) != len(ct.Sigs) || len(ct.Signers) < node.QuorumSize(len(members)) {
		return false
	}
	seen := map[string]bool{}
	for k, id := range ct.Signers {
		if seen[id] || !slices.Contains(members, id) || !verify(id, node.VoteText(ct.Hash), ct.Sigs[k]) {
			return false
		}
		seen[id] = true
	}
	return true
}
