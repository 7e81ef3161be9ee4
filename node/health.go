package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Healthz is the cheapest reading of a node: it survives where the other health
// route hangs. Its height comes from another source than NodeHealth's and may
// differ from it by a block or more.
type Healthz struct {
	Height uint64
	Build  string // QNET_BUILD_ID of the running binary; "" on builds that do not say
}

// Healthz asks /healthz, whose body is exactly `ok h=<u64> build=<id>`.
func (c *Client) Healthz(ctx context.Context) (Healthz, error) {
	r, err := c.get(ctx, c.Base, "/healthz", maxSmall)
	if err != nil {
		return Healthz{}, err
	}
	s, err := r.text()
	if err != nil {
		return Healthz{}, err
	}
	h, err := parseHealthz(s)
	if err != nil {
		return Healthz{}, r.bad("%v", err)
	}
	return h, nil
}

// parseHealthz splits by position, never by searching for "h=": a build id may
// contain that text.
func parseHealthz(s string) (Healthz, error) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(s, "\n"), "ok h=")
	if !ok {
		return Healthz{}, fmt.Errorf("body %q does not start with \"ok h=\"", clip(s))
	}
	num, build, stamped := strings.Cut(rest, " ")
	h, err := strconv.ParseUint(num, 10, 64)
	if err != nil {
		return Healthz{}, fmt.Errorf("height %q is not a number", clip(num))
	}
	if !stamped {
		return Healthz{Height: h}, nil
	}
	id, ok := strings.CutPrefix(build, "build=")
	if !ok || id == "" || len(id) > 128 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Healthz{}, fmt.Errorf("build stamp %q has another shape", clip(build))
	}
	return Healthz{Height: h, Build: id}, nil
}

// String is the body the node sends.
func (h Healthz) String() string {
	if h.Build == "" {
		return fmt.Sprintf("ok h=%d", h.Height)
	}
	return fmt.Sprintf("ok h=%d build=%s", h.Height, h.Build)
}

// Health asks /health, which proves only that the process serves HTTP.
func (c *Client) Health(ctx context.Context) error {
	r, err := c.get(ctx, c.Base, "/health", maxSmall)
	if err != nil {
		return err
	}
	s, err := r.text()
	if err != nil {
		return err
	}
	if strings.TrimSpace(s) != "OK" {
		return r.bad("body is %q, want OK", clip(s))
	}
	return nil
}

// NodeHealth is what a node says of itself. NetworkHeight is never below Height
// and equals it on a node that hears nobody; Status is "healthy" in bootstrap
// even with no peers. Judge isolation by ValidatedPeers only.
type NodeHealth struct {
	Status              string `json:"status"`  // healthy isolated syncing degraded checking
	NodeID              string `json:"node_id"` // public display name
	Height              uint64 `json:"height"`
	NetworkHeight       uint64 `json:"network_height"`
	SyncStatus          string `json:"sync_status"` // synchronized syncing bootstrap isolated checking
	Peers               uint64 `json:"peers"`
	ValidatedPeers      uint64 `json:"validated_peers"`
	MempoolSize         uint64 `json:"mempool_size"`
	NodeType            string `json:"node_type"` // Super or Light
	Region              string `json:"region"`
	UptimeSeconds       int64  `json:"uptime_seconds"` // 0 when the node does not know
	Version             string `json:"version"`        // constant, says nothing about the build
	APIVersion          string `json:"api_version"`
	ClockDriftEMASecs   int64  `json:"clock_drift_ema_secs"`
	ClockDriftPeakSecs  int64  `json:"clock_drift_peak_secs"` // never cleared
	CurrentTimeoutRound uint64 `json:"current_timeout_round"` // 0 in steady state
	MaxSlotDelaySecs    uint64 `json:"max_slot_delay_secs"`
	MaxTimeoutRoundSeen uint64 `json:"max_timeout_round_seen"`
	FailoverCount       uint64 `json:"failover_count"` // since process start
	TimestampRejections uint64 `json:"timestamp_rejections"`
}

// NodeHealth asks /api/v1/node/health. The route has hung in production while
// the node was fine; never let its silence spoil Healthz.
func (c *Client) NodeHealth(ctx context.Context) (NodeHealth, error) {
	const path = "/api/v1/node/health"
	var v NodeHealth
	if err := c.getJSON(ctx, path, &v); err != nil {
		return NodeHealth{}, err
	}
	switch {
	case v.NodeID == "":
		return NodeHealth{}, &AnswerError{path, "node_id is empty", 200}
	case v.NetworkHeight < v.Height:
		return NodeHealth{}, &AnswerError{path, fmt.Sprintf("network_height %d is below own height %d", v.NetworkHeight, v.Height), 200}
	}
	return v, nil
}

// SyncStatus is what a node believes about its gap. A node that hears nobody
// looks synced.
type SyncStatus struct {
	LocalHeight       uint64 `json:"local_height"`
	NetworkHeight     uint64 `json:"network_height"`
	IsSyncing         bool   `json:"is_syncing"`
	IsAhead           bool   `json:"is_ahead"` // always false
	BlocksBehind      uint64 `json:"blocks_behind"`
	BlocksAhead       uint64 `json:"blocks_ahead"`  // always 0
	SyncProgress      string `json:"sync_progress"` // like "99.98%"
	EstimatedSyncTime string `json:"estimated_sync_time"`
}

// SyncStatus asks /api/v1/sync/status.
func (c *Client) SyncStatus(ctx context.Context) (SyncStatus, error) {
	const path = "/api/v1/sync/status"
	var v SyncStatus
	if err := c.getJSON(ctx, path, &v); err != nil {
		return SyncStatus{}, err
	}
	if v.NetworkHeight < v.LocalHeight || v.BlocksBehind > v.NetworkHeight {
		return SyncStatus{}, &AnswerError{path, "heights contradict each other", 200}
	}
	return v, nil
}

// Height is the short form of SyncStatus.
type Height struct {
	Height        uint64 `json:"height"`
	NetworkHeight uint64 `json:"network_height"`
	IsSyncing     bool   `json:"is_syncing"`
	BlocksBehind  uint64 `json:"blocks_behind"`
}

// Height asks /api/v1/height. The node answers 503 when its read budget is spent.
func (c *Client) Height(ctx context.Context) (Height, error) {
	const path = "/api/v1/height"
	var v Height
	if err := c.getJSON(ctx, path, &v); err != nil {
		return Height{}, err
	}
	if v.NetworkHeight < v.Height {
		return Height{}, &AnswerError{path, "network_height is below height", 200}
	}
	return v, nil
}

// Position is where a node stands in consensus. It is the reading to poll: cheap,
// without side effects, and it does not lean on what peers told the node.
type Position struct {
	Height           uint64
	TipHash          *Hash // nil when the node does not know it
	OwnWindow        uint64
	LastSealed       uint64 // index of the newest macroblock the node holds
	SealedLag        uint64 // windows; small and not zero on a healthy node
	FinalizedHeight  uint64
	TCWindowFloor    uint64
	FloorAboveWindow bool
	RoundCurrent     uint64  // certified round of the current window
	RoundNextSlot    *uint64 // nil on builds that do not serve it
}

type positionBody struct {
	Height           uint64          `json:"height"`
	TipHash          json.RawMessage `json:"tip_hash"`
	OwnWindow        uint64          `json:"own_window"`
	LastSealed       uint64          `json:"last_sealed_mb_index"`
	SealedLag        uint64          `json:"sealed_lag_windows"`
	FinalizedHeight  uint64          `json:"finalized_height"`
	TCWindowFloor    uint64          `json:"tc_window_floor"`
	FloorAboveWindow bool            `json:"floor_above_window"`
	RoundCurrent     uint64          `json:"certified_round_current_window"`
	RoundNextSlot    *uint64         `json:"certified_round_next_slot,omitempty"`
}

// MarshalJSON writes the shape of the route; an unknown tip hash is "".
func (p Position) MarshalJSON() ([]byte, error) {
	tip := json.RawMessage(`""`)
	if p.TipHash != nil {
		tip = json.RawMessage(strconv.Quote(p.TipHash.String()))
	}
	return json.Marshal(positionBody{p.Height, tip, p.OwnWindow, p.LastSealed, p.SealedLag,
		p.FinalizedHeight, p.TCWindowFloor, p.FloorAboveWindow, p.RoundCurrent, p.RoundNextSlot})
}

// UnmarshalJSON reads the shape of the route and refuses numbers that contradict
// each other. A tip hash of any other form than 64 hex digits is unknown.
func (p *Position) UnmarshalJSON(b []byte) error {
	var w positionBody
	if err := decodeStrict(b, &w); err != nil {
		return err
	}
	if w.OwnWindow != OwnWindow(w.Height) {
		return fmt.Errorf("own_window %d does not belong to height %d", w.OwnWindow, w.Height)
	}
	if want := w.OwnWindow - min(w.OwnWindow, w.LastSealed); w.SealedLag != want {
		return fmt.Errorf("sealed_lag_windows %d, but own_window %d and last_sealed_mb_index %d make %d",
			w.SealedLag, w.OwnWindow, w.LastSealed, want)
	}
	*p = Position{Height: w.Height, OwnWindow: w.OwnWindow, LastSealed: w.LastSealed, SealedLag: w.SealedLag,
		FinalizedHeight: w.FinalizedHeight, TCWindowFloor: w.TCWindowFloor, FloorAboveWindow: w.FloorAboveWindow,
		RoundCurrent: w.RoundCurrent, RoundNextSlot: w.RoundNextSlot}
	var s string
	if json.Unmarshal(w.TipHash, &s) == nil {
		if h, err := ParseHash(s); err == nil && !h.IsZero() {
			p.TipHash = &h
		}
	}
	return nil
}

// Position asks /api/v1/debug/consensus-position.
func (c *Client) Position(ctx context.Context) (Position, error) {
	var v Position
	if err := c.getJSON(ctx, "/api/v1/debug/consensus-position", &v); err != nil {
		return Position{}, err
	}
	return v, nil
}
