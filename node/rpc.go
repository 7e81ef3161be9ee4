package node

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// RPC calls a JSON-RPC method; params may be nil, out may be nil. A method's
// error is an *RPCError.
func (c *Client) RPC(ctx context.Context, method string, params, out any) error {
	if params == nil {
		params = struct{}{}
	}
	const id = 1 // the node demands an unsigned integer
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params, "id": id})
	if err != nil {
		return fmt.Errorf("encoding params of %s: %w", method, err)
	}
	r, err := c.do(ctx, http.MethodPost, c.Base, "/rpc", body, maxBody)
	if err != nil {
		return err
	}
	if r.status != http.StatusOK || r.kind != "application/json" {
		return r.bad("%s: not a JSON-RPC answer (content type %q)", method, r.kind)
	}
	var v struct {
		Version string          `json:"jsonrpc"`
		ID      *uint64         `json:"id"`
		Result  json.RawMessage `json:"result"`
		Error   *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		return r.bad("%s: %v", method, err)
	}
	switch {
	case v.Version != "2.0" || v.ID == nil || *v.ID != id:
		return r.bad("%s: answer belongs to another request", method)
	case v.Error != nil:
		return &RPCError{method, v.Error.Code, clip(v.Error.Message)}
	case len(v.Result) == 0:
		return r.bad("%s: neither result nor error", method)
	case out == nil:
		return nil
	}
	if err := decodeStrict(v.Result, out); err != nil {
		return r.bad("%s: %v", method, err)
	}
	return nil
}

// NodeInfo is the answer of node_getInfo. Only the id is sure to be there.
type NodeInfo struct {
	NodeID      string  `json:"node_id"`
	Height      *uint64 `json:"height,omitempty"`
	Peers       *uint64 `json:"peers,omitempty"`
	MempoolSize *uint64 `json:"mempool_size,omitempty"`
	Version     string  `json:"version,omitempty"`
	Build       string  `json:"build,omitempty"`
	NodeType    string  `json:"node_type,omitempty"`
	Region      string  `json:"region,omitempty"`
	Status      string  `json:"status,omitempty"`
}

// NodeInfo calls node_getInfo.
func (c *Client) NodeInfo(ctx context.Context) (NodeInfo, error) {
	var v NodeInfo
	if err := c.RPC(ctx, "node_getInfo", nil, &v); err != nil {
		return NodeInfo{}, err
	}
	if v.NodeID == "" {
		return NodeInfo{}, &AnswerError{"/rpc", "node_getInfo: node_id is empty", 200}
	}
	return v, nil
}

// RecoveryStatus is the answer of node_recoveryStatus. The pointers are nil
// while recovery is not armed.
type RecoveryStatus struct {
	Armed         bool       `json:"armed"`
	Enabled       *bool      `json:"enabled,omitempty"`
	HeardFrom     uint64     `json:"heard_from"`
	AnchorMB      *uint64    `json:"anchor_mb,omitempty"`
	AnchorCPIndex *uint64    `json:"anchor_cp_index,omitempty"`
	AnchorDigest  *Hash      `json:"anchor_digest,omitempty"`
	SpanWindows   *[2]uint64 `json:"span_windows,omitempty"`
	Committee     *uint64    `json:"committee,omitempty"` // size
	QuorumSize    *uint64    `json:"quorum_size,omitempty"`
	RelaxedQuorum *uint64    `json:"relaxed_quorum,omitempty"`
}

// RecoveryStatus calls node_recoveryStatus.
func (c *Client) RecoveryStatus(ctx context.Context) (RecoveryStatus, error) {
	var v RecoveryStatus
	if err := c.RPC(ctx, "node_recoveryStatus", nil, &v); err != nil {
		return RecoveryStatus{}, err
	}
	if v.Armed && (v.AnchorMB == nil || v.AnchorDigest == nil || v.Committee == nil) {
		return RecoveryStatus{}, &AnswerError{"/rpc", "node_recoveryStatus: armed without an anchor", 200}
	}
	return v, nil
}

// Metrics are the five series of the metrics port. Older builds kept the heights
// at 0 and put the unix time into the uptime, so those values are nil.
type Metrics struct {
	UptimeSeconds *float64
	Height        *uint64
	NetworkHeight *uint64
	BlocksBehind  *uint64
	Peers         *uint64
}

// Metrics asks /metrics on MetricsBase.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	const path = "/metrics"
	if c.MetricsBase == "" {
		return Metrics{}, fmt.Errorf("asking %s: the metrics port is not published", path)
	}
	r, err := c.get(ctx, c.MetricsBase, path, maxBody)
	if err != nil {
		return Metrics{}, err
	}
	text, err := r.text()
	if err != nil {
		return Metrics{}, err
	}
	series, err := parseMetrics(text)
	if err != nil {
		return Metrics{}, r.bad("%v", err)
	}
	return readMetrics(series), nil
}

func readMetrics(series map[string]float64) Metrics {
	count := func(name string, zeroIsUnknown bool) *uint64 {
		v, ok := series[name]
		if !ok || v < 0 || v != math.Trunc(v) || v > 1<<53 || (zeroIsUnknown && v == 0) {
			return nil
		}
		n := uint64(v)
		return &n
	}
	m := Metrics{
		Height:        count("qnet_blocks_height", true),
		NetworkHeight: count("qnet_network_height", true),
		Peers:         count("qnet_peers_connected", false),
	}
	if m.Height != nil && m.NetworkHeight != nil {
		m.BlocksBehind = count("qnet_blocks_behind", false)
	}
	const unixLike = 1e9 // no process has been up for thirty years
	if up, ok := series["qnet_node_uptime_seconds"]; ok && up >= 0 && up < unixLike {
		m.UptimeSeconds = &up
	}
	return m
}

// parseMetrics reads the plain series of a Prometheus text body. A line it cannot
// read spoils the body: it is then something else.
func parseMetrics(text string) (map[string]float64, error) {
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value := splitSeries(line)
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || name == "" {
			return nil, fmt.Errorf("line %q is not a series", clip(line))
		}
		out[name] = v
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no series")
	}
	return out, nil
}

// splitSeries cuts "name{labels} value [timestamp]" into name and value.
func splitSeries(line string) (name, value string) {
	name, rest, _ := strings.Cut(line, " ")
	if bare, _, labelled := strings.Cut(line, "{"); labelled {
		name, rest = bare, line[strings.LastIndexByte(line, '}')+1:]
	}
	if f := strings.Fields(rest); len(f) > 0 {
		value = f[0]
	}
	return name, value
}
