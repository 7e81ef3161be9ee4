package node

import (
	"slices"
	"strconv"
)

// MacroBlock holds the hashed fields of a macroblock. Height is the number of
// the window (head / 90), not the BFT round.
type MacroBlock struct {
	Height, Timestamp       uint64
	PreviousHash, StateRoot Hash
	MicroBlocks             []Hash
}

// Hash returns the macroblock hash: height, timestamp, previous hash, state root
// and the block hashes in order, without tag or lengths. The previous hash comes
// before the state root. No HTTP route returns this value.
func (m MacroBlock) Hash() Hash {
	p := preimage{b: make([]byte, 0, 80+32*len(m.MicroBlocks))}
	p.u64(m.Height)
	p.u64(m.Timestamp)
	p.hash(m.PreviousHash)
	p.hash(m.StateRoot)
	for _, h := range m.MicroBlocks {
		p.hash(h)
	}
	return p.sum()
}

// CommitteeFields are the four fields of a macroblock that its hash does not
// cover and the committee-fields digest does. A nil field is absent (None), an
// empty non-nil one is present and empty (Some); the digests differ.
type CommitteeFields struct {
	Eligible  []byte   // raw bincode of the eligible producers
	Beacon    *Hash    // randomness beacon
	Committee []string // ids in stored order; the order counts
	Banned    []byte   // raw bincode of the ban list; a current sealer always writes Some
}

// DigestV1 returns the historic digest, over eligible set and beacon only.
func (c CommitteeFields) DigestV1() Hash {
	var p preimage
	p.str("QNET_COMMITTEE_FIELDS_v1")
	p.optBytes(c.Eligible)
	p.optHash(c.Beacon)
	return p.sum()
}

// DigestV2 returns the current digest over all four fields.
func (c CommitteeFields) DigestV2() Hash {
	var p preimage
	p.str("QNET_COMMITTEE_FIELDS_v2")
	p.optBytes(c.Eligible)
	p.optHash(c.Beacon)
	if c.Committee == nil {
		p.byte(0)
	} else {
		p.byte(1)
		p.u32(uint32(len(c.Committee)))
		for _, id := range c.Committee {
			p.u32(uint32(len(id)))
			p.str(id)
		}
	}
	p.optBytes(c.Banned)
	return p.sum()
}

// optBytes writes the digest's option form, whose lengths are 32-bit while the
// bincode inside uses 64-bit ones.
func (p *preimage) optBytes(b []byte) {
	if b == nil {
		p.byte(0)
		return
	}
	p.byte(1)
	p.u32(uint32(len(b)))
	p.bytes(b)
}

func (p *preimage) optHash(h *Hash) {
	if h == nil {
		p.byte(0)
		return
	}
	p.byte(1)
	p.hash(*h)
}

// Beacon returns the randomness beacon of a window: the hash of a tag and the
// XOR of its block hashes.
func Beacon(micro []Hash) Hash {
	var x Hash
	for _, h := range micro {
		for i := range x {
			x[i] ^= h[i]
		}
	}
	var p preimage
	p.str("qnet-beacon-v2")
	p.hash(x)
	return p.sum()
}

// EpochCommitment returns the value by which a certificate commits to eligible
// bytes, committee and ban list. Both lists are sorted before hashing, so their
// order does not count here.
func EpochCommitment(eligible []byte, committee, banned []string) Hash {
	var p preimage
	p.str("qnet-epoch-v2")
	p.u64(uint64(len(eligible)))
	p.bytes(eligible)
	for _, id := range slices.Sorted(slices.Values(committee)) {
		p.str(id)
		p.byte(0)
	}
	p.str("banned")
	p.u64(uint64(len(banned)))
	for _, id := range slices.Sorted(slices.Values(banned)) {
		p.str(id)
		p.byte(0)
	}
	return p.sum()
}

// GenesisCheckpointText returns the text genesis nodes sign for a live
// checkpoint (version 1).
func GenesisCheckpointText(network Hash, mb uint64, mbHash, anchor, pred Hash, mintedAt uint64) string {
	return "QNET_GENESIS_CHECKPOINT_v1:1:" + network.String() + ":" + strconv.FormatUint(mb, 10) + ":" +
		mbHash.String() + ":" + anchor.String() + ":" + pred.String() + ":" + strconv.FormatUint(mintedAt, 10)
}
