package node

import (
	"math"
	"strconv"
	"time"
)

// Numbers of the chain. Lengths are in blocks unless a name says otherwise.
const (
	// BlockTime is the time between two blocks of the real chain. A lab scales
	// it; use the inventory's block time for waiting.
	BlockTime = time.Second
	// RotationBlocks is how long one producer keeps its turn.
	RotationBlocks = 30
	// CheckpointBlocks is the distance between two checkpoints.
	CheckpointBlocks = 30
	// MacroblockBlocks is the length of a window: a macroblock seals 90 blocks.
	MacroblockBlocks = 90
	// EpochBlocks is the length of an epoch (rewards, gates, pruning, archive).
	EpochBlocks = 14_400
	// HorizonBlocks is how far past the seal base a roster can be derived; a
	// producer parks beyond it.
	HorizonBlocks = 2_880
	// MaxDerivedRosterWindows is the horizon in windows.
	MaxDerivedRosterWindows = 32
	// MaxCommittee is the largest committee (COMMITTEE_SIZE).
	MaxCommittee = 1_000
	// RelaxedMinCommittee is the committee size from which the relaxed quorum of
	// a recovery is smaller than the strict one.
	RelaxedMinCommittee = 10
	// GateLead is how far ahead of the tip a new activation height is put.
	GateLead = 604_800
	// GateMargin is how close an activation height may come before it is frozen.
	GateMargin = 28_800
	// ActivationWarmupBlocks is the warm-up of a newly activated node.
	ActivationWarmupBlocks = 180
	// MaxFailoverRound is the cap of the failover round.
	MaxFailoverRound = 50
	// SnapshotBlocks is the distance between two snapshots.
	SnapshotBlocks = 3_600
	// SnapshotKeep is how many snapshots a node keeps.
	SnapshotKeep = 3
	// SnapshotSyncSwitchGap is the gap from which a node syncs by snapshot.
	SnapshotSyncSwitchGap = 1_500
	// QCSigRetention is how many windows certificates keep their signatures.
	QCSigRetention = 14_880
	// BodyRetentionBlocks is how long block bodies are kept.
	BodyRetentionBlocks = 86_400
	// RecoverySpanIndices is the span of an armed recovery in checkpoints.
	RecoverySpanIndices = 6
	// GALCWindows is the distance between two genesis-signed live checkpoints.
	GALCWindows = 40
	// BehindBlocks is the distance from the highest node at which a node counts
	// as behind.
	BehindBlocks = 10

	// BootAudit is how long after bring-up the boot contract may still end the
	// process. It scales with the block time in a lab.
	BootAudit = 120 * time.Second
	// StopTimeout is the least time a node needs to flush when it is stopped. It
	// never scales: it is the container engine's patience, not the chain's.
	StopTimeout = 60 * time.Second
	// RateWindow and RateRequests are the read_only bucket of the HTTP server:
	// RateRequests in RateWindow from one address that is not exempt. The
	// operator's tunnel usually arrives as the bridge gateway and is not exempt.
	RateWindow   = 60 * time.Second
	RateRequests = 300
	// RateBlock is how long the bucket stays shut after it overflowed.
	RateBlock = 30 * time.Second
	// DefaultAPIPort is QNET_API_PORT when unset; metrics listen on +MetricsPortOffset.
	DefaultAPIPort    = 8001
	MetricsPortOffset = 100
)

// QuorumSize returns how many of n committee members must sign a certificate:
// n - floor((n-1)/3), and 0 for an empty committee.
func QuorumSize(n int) int {
	if n <= 0 {
		return 0
	}
	return n - (n-1)/3
}

// RelaxedQuorum returns the quorum of an armed recovery. Below
// RelaxedMinCommittee members it equals QuorumSize, so arming changes nothing
// on a small fleet.
func RelaxedQuorum(n int) int {
	if n < RelaxedMinCommittee {
		return QuorumSize(n)
	}
	return n/2 + 1
}

// WindowOf returns the window that height h belongs to, (h-1)/90+1, the number
// the participation line and the roster use. It is 0 for height 0.
func WindowOf(h uint64) uint64 {
	if h == 0 {
		return 0
	}
	return (h-1)/MacroblockBlocks + 1
}

// OwnWindow returns h/90, the number consensus-position calls own_window. It is
// one less than WindowOf everywhere except at exact multiples of 90.
func OwnWindow(h uint64) uint64 { return h / MacroblockBlocks }

// WindowHead returns the last height of window w.
func WindowHead(w uint64) uint64 { return w * MacroblockBlocks }

// RoundOf returns the producer round of height h: 0 up to height 30, then
// (h-1)/30. Round N starts at block N*30+1.
func RoundOf(h uint64) uint64 {
	if h <= RotationBlocks {
		return 0
	}
	return (h - 1) / RotationBlocks
}

// GateProposal is an activation height on an epoch boundary.
type GateProposal struct {
	Height uint64 // first multiple of EpochBlocks at or above tip + lead
	Epoch  uint64 // Height / EpochBlocks
	Ahead  uint64 // Height - tip, in blocks
}

// ProposeGate returns the first epoch boundary at or above tip+lead. It returns
// the zero proposal when that boundary does not fit in 64 bits.
func ProposeGate(tip, lead uint64) GateProposal {
	if lead > math.MaxUint64-tip || tip+lead > math.MaxUint64-EpochBlocks {
		return GateProposal{}
	}
	epoch := (tip + lead + EpochBlocks - 1) / EpochBlocks
	h := epoch * EpochBlocks
	return GateProposal{Height: h, Epoch: epoch, Ahead: h - tip}
}

// Underscored prints v with underscores between groups of three digits, as the
// node's source writes activation heights.
func Underscored(v uint64) string {
	s := strconv.FormatUint(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "_" + s[i:]
	}
	return s
}
