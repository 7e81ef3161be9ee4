package node

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// ProducerStatus says who produces. CurrentProducer may be empty when the node
// cannot derive the roster.
type ProducerStatus struct {
	CurrentHeight       uint64  `json:"current_height"`
	IsProducer          bool    `json:"is_producer"` // of the next block
	CurrentProducer     string  `json:"current_producer"`
	NodeID              string  `json:"node_id"`
	LeadershipRound     uint64  `json:"leadership_round"`
	NextRotationHeight  uint64  `json:"next_rotation_height"`
	BlocksUntilRotation uint64  `json:"blocks_until_rotation"`
	SelectionMethod     string  `json:"producer_selection_method,omitempty"`
	ConsensusThreshold  float64 `json:"consensus_threshold,omitempty"`
}

// ProducerStatus asks /api/v1/producer/status.
func (c *Client) ProducerStatus(ctx context.Context) (ProducerStatus, error) {
	const path = "/api/v1/producer/status"
	var v ProducerStatus
	if err := c.getJSON(ctx, path, &v); err != nil {
		return ProducerStatus{}, err
	}
	if v.NodeID == "" {
		return ProducerStatus{}, &AnswerError{path, "node_id is empty", 200}
	}
	return v, nil
}

// Peer is one line of a node's peer list.
type Peer struct {
	ID         string  `json:"id"`
	Address    string  `json:"address"`
	NodeType   string  `json:"node_type"`
	Region     string  `json:"region"`
	LastSeen   int64   `json:"last_seen"`  // unix seconds
	Reputation float64 `json:"reputation"` // a constant for display
	Version    string  `json:"version"`
	// MaybeAppended marks an entry the node may have added by itself: with fewer
	// than three peers it appends up to two genesis entries that are no
	// connections.
	MaybeAppended bool `json:"-"`
}

// PeerStatistics are the counts of the peer list by kind.
type PeerStatistics struct {
	SuperNodes uint64 `json:"super_nodes"`
	FullNodes  uint64 `json:"full_nodes"` // always 0
	LightNodes uint64 `json:"light_nodes"`
}

// Peers is a node's peer list. It does not judge isolation; ValidatedPeers of
// NodeHealth does.
type Peers struct {
	Peers      []Peer         `json:"peers"`
	Total      uint64         `json:"total"`
	Statistics PeerStatistics `json:"statistics"`
}

// Peers asks /api/v1/peers. Each call prints a line into the node's log: ask rarely.
func (c *Client) Peers(ctx context.Context) (Peers, error) {
	const path = "/api/v1/peers"
	var v Peers
	if err := c.getJSON(ctx, path, &v); err != nil {
		return Peers{}, err
	}
	if v.Total != uint64(len(v.Peers)) {
		return Peers{}, &AnswerError{path, fmt.Sprintf("total %d, but %d peers", v.Total, len(v.Peers)), 200}
	}
	markAppended(v.Peers)
	return v, nil
}

// markAppended marks genesis entries among the last two of a list short enough
// that the node may have filled it up.
func markAppended(peers []Peer) {
	const belowReal, atMost = 3, 2 // appended below three real peers, at most two
	if len(peers) >= belowReal+atMost {
		return
	}
	for i := max(0, len(peers)-atMost); i < len(peers); i++ {
		peers[i].MaybeAppended = strings.HasPrefix(peers[i].ID, "genesis_node_")
	}
}

// BlocksStats is mostly arithmetic: MacroblockHeight is height/90, not a sealed
// macroblock.
type BlocksStats struct {
	CurrentHeight         uint64  `json:"current_height"`
	BlocksPerMinute       float64 `json:"blocks_per_minute"`  // constant
	AverageBlockTime      float64 `json:"average_block_time"` // constant
	MicroblocksProduced   uint64  `json:"microblocks_produced"`
	MacroblockHeight      uint64  `json:"macroblock_height"`
	NextMacroblock        uint64  `json:"next_macroblock"`
	BlocksUntilMacroblock uint64  `json:"blocks_until_macroblock"` // never 0
	PendingTransactions   uint64  `json:"pending_transactions"`
	AverageTxPerBlock     float64 `json:"average_tx_per_block"`
}

// BlocksStats asks /api/v1/blocks/stats.
func (c *Client) BlocksStats(ctx context.Context) (BlocksStats, error) {
	var v BlocksStats
	if err := c.getJSON(ctx, "/api/v1/blocks/stats", &v); err != nil {
		return BlocksStats{}, err
	}
	return v, nil
}

// ConsensusData is the part of a macroblock that is served with it. Under
// Checkpoint-BFT it is empty; the committee fields are not among it.
type ConsensusData struct {
	NextLeader            string  `json:"next_leader"`
	CommitsCount          uint64  `json:"commits_count"`
	RevealsCount          uint64  `json:"reveals_count"`
	Pool2TotalFees        *uint64 `json:"pool2_total_fees"`
	Pool3TotalActivations *uint64 `json:"pool3_total_activations"`
}

// Macroblock is a macroblock as a node serves it. Its hash is not served:
// compute it with Hash.
type Macroblock struct {
	Index            uint64        `json:"index"`
	Height           uint64        `json:"height"` // its own number, equal to Index
	Timestamp        uint64        `json:"timestamp"`
	MicroBlocksCount uint64        `json:"micro_blocks_count"`
	MicroBlocks      []Hash        `json:"micro_blocks"`
	StateRoot        Hash          `json:"state_root"`
	ConsensusData    ConsensusData `json:"consensus_data"`
	PreviousHash     Hash          `json:"previous_hash"`
}

// Block returns the hashed fields.
func (m Macroblock) Block() MacroBlock {
	return MacroBlock{m.Height, m.Timestamp, m.PreviousHash, m.StateRoot, m.MicroBlocks}
}

// Hash returns the hash recomputed from the served fields.
func (m Macroblock) Hash() Hash { return m.Block().Hash() }

// Macroblock asks for the macroblock of a window. Index 0 does not exist and is
// refused without asking, because the node's text for it underflows. A
// NotFoundError is certain here: a storage error reads differently.
func (c *Client) Macroblock(ctx context.Context, index uint64) (Macroblock, error) {
	what := "macroblock " + strconv.FormatUint(index, 10)
	if index == 0 {
		return Macroblock{}, &NotFoundError{What: what}
	}
	r, err := c.get(ctx, c.Base, "/api/v1/macroblock/"+strconv.FormatUint(index, 10), maxBody)
	if err != nil {
		return Macroblock{}, err
	}
	text, err := r.object()
	if err != nil {
		return Macroblock{}, err
	}
	if text == "Macroblock not found" {
		return Macroblock{}, &NotFoundError{What: what}
	}
	var v Macroblock
	if err := r.decode(&v); err != nil {
		return Macroblock{}, err
	}
	if v.Index != index || v.Height != index {
		return Macroblock{}, r.bad("asked for %d, got index %d height %d", index, v.Index, v.Height)
	}
	if v.MicroBlocksCount != uint64(len(v.MicroBlocks)) {
		return Macroblock{}, r.bad("micro_blocks_count %d, but %d hashes", v.MicroBlocksCount, len(v.MicroBlocks))
	}
	return v, nil
}

// Snapshot is an offer of /api/v1/snapshot/latest.
type Snapshot struct {
	Height    uint64 `json:"height"`
	IPFSCID   string `json:"ipfs_cid"`
	Available bool   `json:"available"`
	NodeID    string `json:"node_id"`
	Timestamp int64  `json:"timestamp"`
}

// SnapshotLatest asks for the newest snapshot, or the newest at or below
// maxHeight. The node ignores a bound it cannot read, so the answer is checked
// against it. None on offer is a NotFoundError.
func (c *Client) SnapshotLatest(ctx context.Context, maxHeight *uint64) (Snapshot, error) {
	path := "/api/v1/snapshot/latest"
	if maxHeight != nil {
		path += "?max_height=" + strconv.FormatUint(*maxHeight, 10)
	}
	var head struct {
		Height    uint64 `json:"height"`
		Available bool   `json:"available"`
	}
	r, err := c.get(ctx, c.Base, path, maxBody)
	if err != nil {
		return Snapshot{}, err
	}
	if err := r.decode(&head); err != nil {
		return Snapshot{}, err
	}
	if !head.Available {
		return Snapshot{}, &NotFoundError{What: "snapshot"}
	}
	var v Snapshot
	if err := r.decode(&v); err != nil {
		return Snapshot{}, err
	}
	if maxHeight != nil && v.Height > *maxHeight {
		return Snapshot{}, r.bad("asked for a snapshot at or below %d, got %d", *maxHeight, v.Height)
	}
	return v, nil
}

// Failover is one recorded change of producer out of turn.
type Failover struct {
	Height            uint64 `json:"height"`
	FailedProducer    string `json:"failed_producer"`
	EmergencyProducer string `json:"emergency_producer"`
	Reason            string `json:"reason"`
	Timestamp         int64  `json:"timestamp"`
	BlockType         string `json:"block_type"`
}

// Failovers is a node's record of failovers: at most 10,000 rows and 24 hours. An
// empty list proves nothing, because a storage error reads the same.
type Failovers struct {
	Failovers  []Failover `json:"failovers"`
	TotalCount uint64     `json:"total_count"` // rows in this answer
	FromHeight uint64     `json:"from_height"`
	Limit      uint64     `json:"limit"`
	Status     string     `json:"status"` // success or no_failovers
}

// Failovers asks /api/v1/failovers for at most limit rows from a height on;
// limit 0 means the node's default of 100.
func (c *Client) Failovers(ctx context.Context, fromHeight, limit uint64) (Failovers, error) {
	q := url.Values{"from_height": {strconv.FormatUint(fromHeight, 10)}}
	if limit > 0 {
		q.Set("limit", strconv.FormatUint(limit, 10))
	}
	path := "/api/v1/failovers?" + q.Encode()
	var v Failovers
	if err := c.getJSON(ctx, path, &v); err != nil {
		return Failovers{}, err
	}
	if v.TotalCount != uint64(len(v.Failovers)) {
		return Failovers{}, &AnswerError{path, "total_count does not match the rows", 200}
	}
	return v, nil
}

// Reputation is the node's reputation answer.
type Reputation struct {
	NodeID            string  `json:"node_id"`
	CurrentReputation float64 `json:"current_reputation"`
	TotalChanges      uint64  `json:"total_changes"`
	Limit             uint64  `json:"limit"`
	Status            string  `json:"status"`
}

// Banned reports true when the id is in a ban set, and nil otherwise: a full
// reputation is also what the node answers when the macroblock it would look in
// is not sealed yet. Proof of the last sealed macroblock tells for sure.
func (r Reputation) Banned() *bool {
	if r.CurrentReputation != 0 {
		return nil
	}
	yes := true
	return &yes
}

// ReputationHistory asks /api/v1/reputation/history; an empty id means the node itself.
func (c *Client) ReputationHistory(ctx context.Context, nodeID string) (Reputation, error) {
	path := "/api/v1/reputation/history"
	if nodeID != "" {
		path += "?" + url.Values{"node_id": {nodeID}}.Encode()
	}
	var v Reputation
	if err := c.getJSON(ctx, path, &v); err != nil {
		return Reputation{}, err
	}
	if nodeID != "" && v.NodeID != nodeID {
		return Reputation{}, &AnswerError{path, "answer is about another node", 200}
	}
	return v, nil
}

// ArchiveSegment is one epoch in a node's history archive.
type ArchiveSegment struct {
	Epoch               uint64      `json:"epoch"`
	FirstHeight         uint64      `json:"first_height"`
	LastHeight          uint64      `json:"last_height"`
	Blocks              uint64      `json:"blocks"`
	Missing             [][2]uint64 `json:"missing"`
	Macroblocks         uint64      `json:"macroblocks"`
	MacroblocksUnsigned uint64      `json:"macroblocks_unsigned"`
	Bytes               uint64      `json:"bytes"`
	SHA3                string      `json:"sha3"`
}

// Archive is the list of a node's archive segments.
type Archive struct {
	Enabled       bool             `json:"enabled"`
	SegmentBlocks uint64           `json:"segment_blocks"`
	NextEpoch     *uint64          `json:"next_epoch"`
	Segments      []ArchiveSegment `json:"segments"`
}

// Archive asks /api/v1/archive.
func (c *Client) Archive(ctx context.Context) (Archive, error) {
	var v Archive
	if err := c.getJSON(ctx, "/api/v1/archive", &v); err != nil {
		return Archive{}, err
	}
	return v, nil
}
