package node

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Proof is the certificate of a macroblock as one node assembled it, with the
// inputs of the committee digests. Signers of one macroblock differ between
// nodes: a certificate forms on the vote that reaches the quorum, so a healthy
// member may be missing from it.
type Proof struct {
	Index                    uint64
	Epoch                    uint64
	Checkpoint               Checkpoint
	Signers                  []string
	Sigs                     []string // ASCII envelopes; "" for one the node could not print
	Committee                []string // derived by the serving node; empty when underivable
	CommitteePubkeys         map[string]string
	EligibleRaw              []byte // empty when absent or empty: HTTP cannot tell
	Banned                   []string
	RecoveryAnchorCheckpoint *Checkpoint
}

type proofBody struct {
	Index      uint64     `json:"index"`
	Epoch      uint64     `json:"epoch"`
	Checkpoint Checkpoint `json:"checkpoint"`
	QC         struct {
		Signers []string `json:"signers"`
		Sigs    []string `json:"sigs"`
	} `json:"qc"`
	Committee                []string          `json:"committee"`
	CommitteePubkeys         map[string]string `json:"committee_pubkeys"`
	EligibleRaw              string            `json:"eligible_raw"`
	Banned                   []string          `json:"banned"`
	RecoveryAnchorCheckpoint *Checkpoint       `json:"recovery_anchor_checkpoint"`
}

// MarshalJSON writes the shape of the route.
func (p Proof) MarshalJSON() ([]byte, error) {
	w := proofBody{Index: p.Index, Epoch: p.Epoch, Checkpoint: p.Checkpoint,
		Committee: notNil(p.Committee), CommitteePubkeys: p.CommitteePubkeys,
		EligibleRaw: hex.EncodeToString(p.EligibleRaw), Banned: notNil(p.Banned),
		RecoveryAnchorCheckpoint: p.RecoveryAnchorCheckpoint}
	w.QC.Signers, w.QC.Sigs = notNil(p.Signers), notNil(p.Sigs)
	if w.CommitteePubkeys == nil {
		w.CommitteePubkeys = map[string]string{}
	}
	if w.Checkpoint.WindowMBHashes == nil {
		w.Checkpoint.WindowMBHashes = []Hash{}
	}
	return json.Marshal(w)
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// UnmarshalJSON reads the shape of the route.
func (p *Proof) UnmarshalJSON(b []byte) error {
	var w proofBody
	if err := decodeStrict(b, &w); err != nil {
		return err
	}
	raw, err := hex.DecodeString(w.EligibleRaw)
	if err != nil {
		return fmt.Errorf("eligible_raw: %w", err)
	}
	if len(w.QC.Signers) != len(w.QC.Sigs) {
		return fmt.Errorf("qc has %d signers and %d sigs", len(w.QC.Signers), len(w.QC.Sigs))
	}
	*p = Proof{w.Index, w.Epoch, w.Checkpoint, w.QC.Signers, w.QC.Sigs, w.Committee,
		w.CommitteePubkeys, raw, w.Banned, w.RecoveryAnchorCheckpoint}
	return nil
}

// Proof asks for the proof of macroblock index. A NotFoundError is uncertain
// here: the node gives the same answer for a storage error. A macroblock without
// a usable certificate is a ProofError.
func (c *Client) Proof(ctx context.Context, index uint64) (Proof, error) {
	num := strconv.FormatUint(index, 10)
	if index == 0 {
		return Proof{}, &NotFoundError{What: "macroblock 0"}
	}
	r, err := c.get(ctx, c.Base, "/api/v1/macroblock/"+num+"/proof", maxProof)
	if err != nil {
		return Proof{}, err
	}
	text, err := r.object()
	if err != nil {
		return Proof{}, err
	}
	switch text {
	case "macroblock_not_found":
		return Proof{}, &NotFoundError{What: "macroblock " + num, Uncertain: true}
	case ProofNoQC, ProofQCDecode, ProofBannedDecode, ProofSigsPruned:
		return Proof{}, &ProofError{index, text}
	}
	var v Proof
	if err := r.decode(&v); err != nil {
		return Proof{}, err
	}
	if v.Index != index {
		return Proof{}, r.bad("asked for %d, got %d", index, v.Index)
	}
	if head := v.Checkpoint.WindowHeadHeight; v.Epoch != WindowOf(head) {
		return Proof{}, r.bad("epoch %d does not belong to head %d", v.Epoch, head)
	}
	return v, nil
}

// Fields returns the digest inputs of the macroblock, with two assumptions HTTP
// cannot settle: no bans is present-and-empty, and an empty eligible set is
// absent.
func (p Proof) Fields() CommitteeFields {
	beacon := p.Checkpoint.Beacon
	f := CommitteeFields{Beacon: &beacon, Banned: EncodeStrings(p.Banned)}
	if len(p.EligibleRaw) > 0 {
		f.Eligible = p.EligibleRaw
	}
	if len(p.Committee) > 0 {
		f.Committee = p.Committee
	}
	return f
}

// FullQuorum reports whether the distinct signers that belong to the committee
// reach its quorum, under a certificate without recovery pin. An underivable
// committee is never a full quorum.
func (p Proof) FullQuorum() bool {
	if len(p.Committee) == 0 || p.Checkpoint.RecoveryAnchor != nil {
		return false
	}
	seen := map[string]bool{}
	for _, id := range p.Signers {
		if slices.Contains(p.Committee, id) {
			seen[id] = true
		}
	}
	return len(seen) >= QuorumSize(len(p.Committee))
}

// ProofFault is why a proof does not hold, as Check found it.
type ProofFault struct {
	Index uint64
	Code  string // one of the Fault constants
	Text  string
}

// Codes of ProofFault, in the order Check looks.
const (
	FaultMicroBlocks = "micro_blocks"
	FaultStateRoot   = "state_root"
	FaultTimestamp   = "timestamp"
	FaultHead        = "window_head_height"
	FaultCount       = "hash_count"
	FaultBeacon      = "beacon"
	FaultCommitment  = "epoch_commitment"
	FaultOrder       = "committee_order"
	FaultRecovery    = "recovery_anchor"
	FaultQuorum      = "quorum"
	FaultSigners     = "signers"
)

func (f *ProofFault) Error() string {
	return fmt.Sprintf("proof of macroblock %d: %s: %s", f.Index, f.Code, f.Text)
}

// Check compares the proof with the macroblock and with itself, and returns a
// *ProofFault for the first thing that does not hold. Without a check of the
// signatures one node can still serve an invented, self-consistent proof: what
// holds then is the agreement of several nodes on hash and digest.
func (p Proof) Check(mb *Macroblock) error {
	cp := p.Checkpoint
	fault := func(code, format string, args ...any) error {
		return &ProofFault{p.Index, code, fmt.Sprintf(format, args...)}
	}
	switch {
	case !slices.Equal(mb.MicroBlocks, cp.WindowMBHashes):
		return fault(FaultMicroBlocks, "block hashes differ from the certified ones")
	case mb.StateRoot != cp.StateRoot:
		return fault(FaultStateRoot, "%s, certified %s", mb.StateRoot.Short(), cp.StateRoot.Short())
	case mb.Timestamp != cp.Timestamp:
		return fault(FaultTimestamp, "%d, certified %d", mb.Timestamp, cp.Timestamp)
	case mb.Index != p.Index || cp.WindowHeadHeight != WindowHead(p.Index):
		return fault(FaultHead, "head %d is not the end of window %d", cp.WindowHeadHeight, mb.Index)
	case len(mb.MicroBlocks) != MacroblockBlocks:
		return fault(FaultCount, "%d hashes, want %d", len(mb.MicroBlocks), MacroblockBlocks)
	case Beacon(mb.MicroBlocks) != cp.Beacon:
		return fault(FaultBeacon, "does not follow from the block hashes")
	case EpochCommitment(p.EligibleRaw, p.Committee, p.Banned) != cp.EpochCommitment:
		return fault(FaultCommitment, "eligible set, committee or bans are not the certified ones")
	case !slices.IsSorted(p.Committee):
		return fault(FaultOrder, "committee is not sorted")
	case cp.RecoveryAnchor != nil:
		return fault(FaultRecovery, "sealed under a recovery pin, not by a full quorum")
	}
	return p.checkSigners(fault)
}

func (p Proof) checkSigners(fault func(code, format string, args ...any) error) error {
	quorum := QuorumSize(len(p.Committee))
	if len(p.Signers) < quorum || quorum == 0 {
		return fault(FaultQuorum, "%d signers of a committee of %d, want %d", len(p.Signers), len(p.Committee), quorum)
	}
	seen := map[string]bool{}
	for _, id := range p.Signers {
		if seen[id] {
			return fault(FaultSigners, "%s signed twice", clip(id))
		}
		seen[id] = true
		if _, found := slices.BinarySearch(p.Committee, id); !found {
			return fault(FaultSigners, "%s is not in the committee", clip(id))
		}
	}
	return nil
}
