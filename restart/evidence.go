package restart

import (
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// EvidenceSchema names the evidence file.
const EvidenceSchema = "qnetops/evidence/v1"

// Namespace is the SSHSIG namespace of everything this package signs and accepts.
const Namespace = "qnetops"

// NewestSealed is how many of the newest sealed macroblocks an evidence file describes one by one; below them it holds
// last-64·2^i (DESIGN.md 3.5).
const NewestSealed = 64

// Evidence is what one operator saw of the chain on the nodes of his own hosts. Its canonical form (Canonical) is what is
// signed. Pointers are nil for what is unknown.
type Evidence struct {
	Schema   string `json:"schema"`
	Fleet    string `json:"fleet"`    // name of the fleet in the operator's hosts.toml
	Operator string `json:"operator"` // principal of the signature in the allowed-signers file
	// ID is drawn once for the first file an operator makes of a stall; what he adds later carries the same ID and a
	// higher Number. Two files of one ID and Number with other content are a conflict.
	ID      string        `json:"id"` // 32 hex digits
	Number  uint64        `json:"number"`
	Tool    string        `json:"tool"`     // version of the program that wrote it
	TakenAt time.Time     `json:"taken_at"` // UTC, whole seconds
	Network *node.Hash    `json:"network"`  // hash of the genesis block, where a node says it
	Asked   []IndexRange  `json:"asked"`    // ranges asked for beside the usual ones
	Hosts   []HostFinding `json:"hosts"`    // by ID, ascending
}

// IndexRange is a range of macroblock indices, both ends included.
type IndexRange struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// HostFinding is what one host's node showed.
type HostFinding struct {
	ID     string `json:"id"`      // the host in the operator's inventory
	NodeID string `json:"node_id"` // read from the node; empty when unknown
	Build  string `json:"build"`
	// Reachable is false when nothing could be read; Reason says why, and why single readings are unknown.
	Reachable bool     `json:"reachable"`
	Reason    string   `json:"reason,omitempty"`
	Height    *uint64  `json:"height"`
	TipHash   *string  `json:"tip_hash"`
	Sealed    *uint64  `json:"last_sealed"` // index of the last sealed macroblock
	Finalized *uint64  `json:"finalized"`   // block height
	Committee []string `json:"committee"`   // of the last sealed macroblock, as this node derives it; nil: unknown
	Banned    []string `json:"banned"`      // at the last sealed macroblock; nil: unknown
	// Keys maps each member of Committee to the SHA3-256 of the public key this node names for it. Signatures mean
	// something only where several operators' nodes name the same keys.
	Keys map[string]node.Hash `json:"keys"`
	// FloorAtLeast is a height the node certainly holds certified: nothing at or below it can be rolled back. The floor
	// itself is served nowhere (facts 9.7), it may be higher. FloorExact is set where a log line named it.
	FloorAtLeast *uint64          `json:"floor_at_least"`
	FloorExact   *uint64          `json:"floor_exact"`
	Recovery     *RecoveryFinding `json:"recovery"`
	Snapshots    []Snapshot       `json:"snapshots"` // found; nil: unknown
	Archive      *ArchiveFinding  `json:"archive"`
	Macroblocks  []Macroblock     `json:"macroblocks"` // by Index, ascending
	Lines        []Line           `json:"lines"`       // of the log, oldest first
}

// newest is the newest macroblock that the host says it has sealed or shows; 0: it says nothing of the kind.
func (h *HostFinding) newest() uint64 {
	out := uint64(0)
	if h.Sealed != nil {
		out = *h.Sealed
	}
	for i := range h.Macroblocks {
		if h.Macroblocks[i].Held == HeldYes {
			out = max(out, h.Macroblocks[i].Index)
		}
	}
	return out
}

// answered says that the node itself gave an answer. The log of a node that is down can be read all the same.
func (h *HostFinding) answered() bool {
	return h.NodeID != "" || h.Height != nil || h.Sealed != nil || h.Snapshots != nil || h.Recovery != nil || h.Archive != nil ||
		slices.ContainsFunc(h.Macroblocks, func(m Macroblock) bool { return m.Held != HeldUnknown })
}

// RecoveryFinding is node_recoveryStatus.
type RecoveryFinding struct {
	Armed     bool   `json:"armed"`
	AnchorMB  uint64 `json:"anchor_mb"` // 0 when not armed
	HeardFrom uint64 `json:"heard_from"`
}

// Snapshot is one state snapshot a node said it holds.
type Snapshot struct {
	Height    uint64 `json:"height"`
	Timestamp uint64 `json:"timestamp"` // unix seconds
}

// ArchiveFinding is the state of a node's archive.
type ArchiveFinding struct {
	Enabled  bool             `json:"enabled"`
	Segments []ArchiveSegment `json:"segments"`
}

// ArchiveSegment is one archived epoch.
type ArchiveSegment struct {
	Epoch    uint64 `json:"epoch"`
	First    uint64 `json:"first_height"`
	Last     uint64 `json:"last_height"`
	Complete bool   `json:"complete"` // no block of it is missing
}

// Held says what a node has of a macroblock.
type Held string

// The values of Held. A storage error and a proof that cannot be read are unknown, never missing.
const (
	HeldYes     Held = "held"
	HeldNo      Held = "missing"
	HeldUnknown Held = "unknown"
)

// Macroblock is what one node showed of one macroblock.
type Macroblock struct {
	Index     uint64       `json:"index"`
	Held      Held         `json:"held"`
	Reason    string       `json:"reason,omitempty"` // why unknown
	Hash      *node.Hash   `json:"hash"`             // computed from the fields (facts 2.1)
	Previous  *node.Hash   `json:"previous"`         // previous_hash: hash of Index-1 by this node's word
	Timestamp *uint64      `json:"timestamp"`        // unix seconds
	Digest    *node.Hash   `json:"digest"`           // committee-fields digest v2, computed (facts 2.3, 2.6)
	Proof     *Certificate `json:"certificate"`      // nil: unknown, see Reason
}

// Certificate holds the facts of a macroblock's certificate.
type Certificate struct {
	// Fault is the code of the first check of facts 2.6 that does not hold (node.Fault… or node.Proof… constants);
	// empty: self-consistent, unrelaxed, full quorum.
	Fault      string    `json:"fault"`
	Checkpoint node.Hash `json:"checkpoint"` // hash of the checkpoint, computed from its fields
	Committee  int       `json:"committee"`  // size
	Quorum     int       `json:"quorum"`
	Relaxed    bool      `json:"relaxed"` // sealed under a recovery pin
	// Members is the committee, where it differs from the host's Committee; nil: it does not.
	Members []string `json:"members,omitempty"`
	Signers []string `json:"signers"` // in the order of the certificate
	// Signatures says how many of the signers' signatures were verified with the keys this node names: valid, invalid,
	// and unreadable (an envelope this program does not understand, or no key).
	Signatures Signatures `json:"signatures"`
}

// Signatures counts the outcomes of checking a certificate's signatures.
type Signatures struct {
	Valid      int    `json:"valid"`
	Invalid    int    `json:"invalid"`
	Unreadable int    `json:"unreadable"`
	Reason     string `json:"reason,omitempty"` // why unreadable
}

// Line is an excerpt of a node's log: its text without secrets, and the SHA-256 of the whole line as the engine gave it.
type Line struct {
	At     *time.Time `json:"at"`
	Kind   string     `json:"kind"` // [TAG] of the line and its first word
	Text   string     `json:"text"`
	SHA256 string     `json:"sha256"`
}
