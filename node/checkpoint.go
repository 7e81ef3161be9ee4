package node

import (
	"encoding/json"
	"fmt"
)

// ParentQC names the checkpoint whose certificate a checkpoint builds on.
type ParentQC struct {
	CheckpointHash Hash   `json:"checkpoint_hash"`
	Index          uint64 `json:"index"`
}

// RecoveryAnchor marks a checkpoint sealed under an armed recovery: a relaxed
// certificate, which can never be a restart point. On the wire it is the pair
// [anchor_mb, digest].
type RecoveryAnchor struct {
	AnchorMB uint64
	Digest   Hash
}

// MarshalJSON writes the pair.
func (a RecoveryAnchor) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{a.AnchorMB, a.Digest})
}

// UnmarshalJSON reads the pair and refuses any other length.
func (a *RecoveryAnchor) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return fmt.Errorf("recovery_anchor: %w", err)
	}
	if len(pair) != 2 {
		return fmt.Errorf("recovery_anchor has %d elements, want 2", len(pair))
	}
	if err := json.Unmarshal(pair[0], &a.AnchorMB); err != nil {
		return fmt.Errorf("recovery_anchor: %w", err)
	}
	if err := json.Unmarshal(pair[1], &a.Digest); err != nil {
		return fmt.Errorf("recovery_anchor: %w", err)
	}
	return nil
}

// Checkpoint is what a certificate certifies. Index is the BFT round, not the
// macroblock index, which is WindowHeadHeight/90.
type Checkpoint struct {
	Index            uint64          `json:"index"`
	Parent           *ParentQC       `json:"parent_qc"`
	WindowHeadHeight uint64          `json:"window_head_height"`
	WindowMBHashes   []Hash          `json:"window_mb_hashes"`
	StateRoot        Hash            `json:"state_root"`
	Beacon           Hash            `json:"beacon"`
	EpochCommitment  Hash            `json:"epoch_commitment"`
	RewardRoot       Hash            `json:"reward_root"`
	RegistryRoot     Hash            `json:"registry_root"`
	LogsRoot         Hash            `json:"logs_root"`
	DilithiumPKRoot  Hash            `json:"dilithium_pk_root"`
	RewardEpochRoot  Hash            `json:"reward_epoch_root"`
	TotalSupply      uint64          `json:"total_supply,string"` // decimal string: it exceeds 2^53
	Timestamp        uint64          `json:"timestamp"`
	Proposer         string          `json:"proposer"`
	RecoveryAnchor   *RecoveryAnchor `json:"recovery_anchor"`
}

// roots are the eight roots in the order both hashes take them.
func (c Checkpoint) roots() [8]Hash {
	return [8]Hash{
		c.StateRoot, c.Beacon, c.EpochCommitment, c.RewardRoot,
		c.RegistryRoot, c.LogsRoot, c.DilithiumPKRoot, c.RewardEpochRoot,
	}
}

// Hash returns the checkpoint hash that votes sign. Checkpoints of older builds
// folded fewer roots and cannot be recomputed this way.
func (c Checkpoint) Hash() Hash {
	var p preimage
	p.str("qnet-checkpoint-v2")
	p.u64(c.Index)
	if c.Parent != nil {
		p.hash(c.Parent.CheckpointHash)
		p.u64(c.Parent.Index)
	}
	p.u64(c.WindowHeadHeight)
	for _, h := range c.WindowMBHashes {
		p.hash(h)
	}
	for _, h := range c.roots() {
		p.hash(h)
	}
	p.u64(c.TotalSupply)
	p.u64(c.Timestamp)
	p.str(c.Proposer)
	if c.RecoveryAnchor == nil {
		p.byte(0)
	} else {
		p.byte(1)
		p.u64(c.RecoveryAnchor.AnchorMB)
		p.hash(c.RecoveryAnchor.Digest)
	}
	return p.sum()
}

// ContentDigest returns the digest of the content alone: index, parent, proposer
// and recovery pin do not enter, so two certificates of one window agree.
func (c Checkpoint) ContentDigest() Hash {
	var p preimage
	p.str("qnet-checkpoint-content-v2")
	p.u64(c.WindowHeadHeight)
	p.u64(uint64(len(c.WindowMBHashes)))
	for _, h := range c.WindowMBHashes {
		p.hash(h)
	}
	for _, h := range c.roots() {
		p.hash(h)
	}
	p.u64(c.TotalSupply)
	p.u64(c.Timestamp)
	return p.sum()
}

// VoteText returns the text a committee member signs (ML-DSA-65) to vote for a
// checkpoint.
func VoteText(checkpoint Hash) string { return "QNET_BFT2_VOTE:" + checkpoint.String() }
