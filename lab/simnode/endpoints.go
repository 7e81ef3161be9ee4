package simnode

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
	"golang.org/x/crypto/sha3"
)

func (a *api) healthz(w http.ResponseWriter, r *http.Request) {
	if arg, on := a.p.fault.get(FaultHangHealth); on && arg == "all" {
		a.hang(r)
		return
	}
	var h uint64
	a.read(func(p *proc) { h = p.shown(p.c.tip()) })
	text(w, http.StatusOK, fmt.Sprintf("ok h=%d build=%s", h, a.p.build()))
}

// syncView is what a node thinks of itself against the network.
type syncView struct {
	own, network uint64
	peers        int
	status       string
}

// syncView decides the sync status. With no reading of the network the network
// height is the own height, so a node alone looks synchronized.
func (p *proc) syncView(own uint64, now time.Time) syncView {
	best, who := p.best(now)
	v := syncView{own: own, network: max(own, best), peers: p.livePeers(now)}
	switch {
	case who == "" && p.s.genesis:
		v.status = "bootstrap"
	case v.peers == 0:
		v.status = "isolated"
	case best == 0:
		v.status = "checking"
	case v.network >= own+node.BehindBlocks:
		v.status = "syncing"
	default:
		v.status = "synchronized"
	}
	return v
}

// healthWord is the decision order of /node/health (facts 1.3).
func (p *proc) healthWord(v syncView) string {
	switch {
	case v.status == "bootstrap":
		return "healthy"
	case v.peers == 0:
		return "isolated"
	case v.status == "syncing":
		return "syncing"
	case v.peers < 4 && !p.s.genesis:
		return "degraded"
	case v.status == "checking":
		return "checking"
	}
	return "healthy"
}

func (a *api) nodeHealth(w http.ResponseWriter, r *http.Request) {
	if a.p.fault.On(FaultHangHealth) {
		a.hang(r)
		return
	}
	var body m
	a.read(func(p *proc) {
		now := time.Now()
		v := p.syncView(p.cachedHeight, now)
		if v.status == "bootstrap" {
			p.log.always("[INFO][HEALTH] bootstrap_mode h=%d", v.own)
		}
		drift := p.fault.num(FaultSkew, 5)
		body = m{"status": p.healthWord(v), "node_id": p.s.id, "height": p.shown(v.own), "network_height": p.shown(v.network),
			"sync_status": v.status, "peers": v.peers, "validated_peers": v.peers, "mempool_size": 0, "node_type": "Super",
			"region": "Europe", "uptime_seconds": p.uptime(now), "version": "1.0.0", "api_version": "v1",
			"clock_drift_ema_secs": drift, "clock_drift_peak_secs": drift, "current_timeout_round": p.round,
			"max_slot_delay_secs": p.slotDelaySecs(), "max_timeout_round_seen": p.maxRound, "failover_count": p.failovers,
			"timestamp_rejections": p.stampRejects}
	})
	reply(w, http.StatusOK, body)
}

// uptime is 0 without a start time in the environment, as in the node.
func (p *proc) uptime(now time.Time) int64 {
	if p.s.nodeStartSecs == 0 {
		return 0
	}
	return now.Unix() - p.s.nodeStartSecs
}

func (a *api) syncStatus(w http.ResponseWriter, _ *http.Request) {
	var v syncView
	a.read(func(p *proc) {
		v = p.syncView(p.c.tip(), time.Now())
		v.own, v.network = p.shown(v.own), p.shown(v.network)
	})
	progress, left := 100.0, "synced"
	if v.network > 0 {
		progress = min(float64(v.own)/float64(v.network)*100, 100)
	}
	if gap := v.network - v.own; gap > 0 {
		left = fmt.Sprintf("%ds", gap)
	}
	reply(w, http.StatusOK, m{"local_height": v.own, "network_height": v.network, "is_syncing": v.own < v.network,
		"is_ahead": false, "blocks_behind": v.network - v.own, "blocks_ahead": 0,
		"sync_progress": fmt.Sprintf("%.2f%%", progress), "estimated_sync_time": left})
}

func (a *api) height(w http.ResponseWriter, _ *http.Request) {
	if !a.limits.spend() {
		reply(w, http.StatusServiceUnavailable, m{"error": "read budget exhausted"})
		return
	}
	var v syncView
	a.read(func(p *proc) {
		v = p.syncView(p.c.tip(), time.Now())
		v.own, v.network = p.shown(v.own), p.shown(v.network)
	})
	reply(w, http.StatusOK, m{"height": v.own, "network_height": v.network, "is_syncing": v.own < v.network, "blocks_behind": v.network - v.own})
}

func (a *api) position(w http.ResponseWriter, _ *http.Request) {
	var body m
	a.read(func(p *proc) {
		tip := p.shown(p.c.tip())
		own, sealed, final := node.OwnWindow(tip), p.c.lastSealed(), p.c.finalized()
		hash := p.c.tipHash()
		if p.fault.On(FaultFork) {
			hash = root("fork-"+p.s.id, hash)
		}
		body = m{"height": tip, "tip_hash": hash.String(), "own_window": own, "last_sealed_mb_index": sealed,
			"sealed_lag_windows": own - min(own, sealed), "finalized_height": final,
			"tc_window_floor": node.OwnWindow(final), "floor_above_window": node.OwnWindow(final) > own,
			"certified_round_current_window": p.round, "certified_round_next_slot": p.round}
	})
	reply(w, http.StatusOK, body)
}

func (a *api) producerStatus(w http.ResponseWriter, _ *http.Request) {
	var body m
	a.read(func(p *proc) {
		tip := p.c.tip()
		next := node.RoundOf(tip + 1)
		rotation := (next+1)*node.RotationBlocks + 1
		who := ""
		if !p.parked {
			who = p.c.producer(tip+1, p.round)
		}
		body = m{"current_height": p.shown(tip), "is_producer": who == p.s.id, "current_producer": who, "producer_endpoint": "",
			"node_id": p.s.id, "leadership_round": next, "next_rotation_height": rotation, "blocks_until_rotation": rotation - tip,
			"producer_selection_method": "vrf_rotation", "consensus_threshold": 70}
	})
	reply(w, http.StatusOK, body)
}

// peers lists the connections, and with fewer than three of them also genesis
// entries that are none. Each call prints a line to the node's log.
func (a *api) peers(w http.ResponseWriter, _ *http.Request) {
	var list []m
	a.read(func(p *proc) {
		now := time.Now()
		p.log.always("[INFO][API] peers_listed count=%d", p.livePeers(now))
		entry := func(id string, seen time.Time) m {
			return m{"id": id, "address": peerAddress(id), "node_type": "Super", "region": "Europe", "last_seen": seen.Unix(),
				"reputation": float(70), "version": "1.0.0"}
		}
		have := map[string]bool{p.s.id: true}
		for id, pe := range p.peers {
			if p.alive(pe, now) {
				have[id] = true
				list = append(list, entry(id, pe.seen))
			}
		}
		slices.SortFunc(list, func(x, y m) int { return strings.Compare(x["id"].(string), y["id"].(string)) })
		if len(list) < 3 {
			appended := 0
			for _, id := range p.c.genesis {
				if !have[id] && appended < 2 {
					appended++
					list = append(list, entry(id, now))
				}
			}
		}
	})
	reply(w, http.StatusOK, m{"peers": orEmpty(list), "total": len(list),
		"statistics": m{"super_nodes": len(list), "full_nodes": 0, "light_nodes": 0}})
}

// orEmpty prints an empty list as [] and not as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// peerAddress is a display address from the documentation range.
func peerAddress(id string) string {
	sum := sha3.Sum256([]byte(id))
	return fmt.Sprintf("198.51.100.%d:9876", 1+int(sum[0])%254)
}

func (a *api) blocksStats(w http.ResponseWriter, _ *http.Request) {
	var h, made uint64
	a.read(func(p *proc) { h, made = p.shown(p.c.tip()), p.produced })
	reply(w, http.StatusOK, m{"current_height": h, "blocks_per_minute": 60, "average_block_time": float(1), "microblocks_produced": made,
		"macroblock_height": h / 90, "next_macroblock": (h/90 + 1) * 90, "blocks_until_macroblock": 90 - h%90,
		"pending_transactions": 0, "average_tx_per_block": float(0)})
}

func (a *api) microblock(w http.ResponseWriter, _ *http.Request, h uint64) {
	var body m
	a.read(func(p *proc) {
		if _, gone := p.pruned(); h < 1 || h > p.c.tip() || h <= gone {
			return
		}
		b := p.c.blocks[h-1]
		body = m{"height": h, "hash": b.Hash.String(), "previous_hash": b.Prev.String(), "producer": b.Producer,
			"timestamp": p.c.stamp(b.Slot), "transactions": []any{}}
	})
	if body == nil {
		reply(w, http.StatusNotFound, m{"error": "Microblock not found", "height": h})
		return
	}
	reply(w, http.StatusOK, body)
}

func (a *api) macroblock(w http.ResponseWriter, _ *http.Request, i uint64) {
	if a.p.fault.On(FaultStorageError) {
		reply(w, http.StatusOK, m{"error": "Failed to get macroblock", "details": "internal error"})
		return
	}
	var body m
	a.read(func(p *proc) {
		if i < 1 || i > p.c.lastSealed() {
			return
		}
		mb := p.c.sealed[i-1]
		body = m{"index": i, "height": i, "timestamp": mb.timestamp, "micro_blocks_count": node.MacroblockBlocks,
			"micro_blocks": p.c.micro(node.WindowHead(i)), "state_root": mb.stateRoot, "previous_hash": mb.prev,
			"consensus_data": m{"next_leader": "", "commits_count": 0, "reveals_count": 0, "pool2_total_fees": nil, "pool3_total_activations": nil}}
	})
	if body == nil {
		// For index 0 the range underflows, as the node's arithmetic does.
		reply(w, http.StatusOK, m{"error": "Macroblock not found", "index": i,
			"info": fmt.Sprintf("Macroblock #%d would cover blocks %d-%d", i, (i-1)*90+1, i*90)})
		return
	}
	reply(w, http.StatusOK, body)
}

func (a *api) proof(w http.ResponseWriter, _ *http.Request, i uint64) {
	var ct cert
	var cp node.Checkpoint
	var committee []string
	var eligible []byte
	a.read(func(p *proc) {
		if i < 1 || i > p.c.lastSealed() || p.fault.On(FaultStorageError) {
			return // a storage error reads as missing here
		}
		round := i * 3
		ct, cp, committee, eligible = p.c.certs[round-1], p.c.checkpoint(round), p.c.committee(i), p.c.eligibleRaw(i)
	})
	if ct.Index == 0 {
		reply(w, http.StatusOK, m{"error": "macroblock_not_found", "index": i})
		return
	}
	// Signed here and not under the node's lock: it takes a moment.
	keys, sigs := m{}, make([]string, len(ct.Signers))
	for k, id := range ct.Signers {
		sigs[k] = a.signer.Vote(id, ct.Hash)
	}
	for _, id := range slices.Concat(committee, ct.Signers) {
		keys[id] = a.signer.PublicKey(id)
	}
	reply(w, http.StatusOK, m{"index": i, "epoch": i, "checkpoint": cp, "qc": m{"signers": ct.Signers, "sigs": sigs},
		"committee": committee, "committee_pubkeys": keys, "eligible_raw": hex.EncodeToString(eligible),
		"banned": []string{}, "recovery_anchor_checkpoint": nil})
}

func (a *api) failovers(w http.ResponseWriter, r *http.Request) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 0 {
		limit = 100
	}
	from, _ := strconv.ParseUint(r.URL.Query().Get("from_height"), 10, 64)
	rows, byWho := []m{}, map[string]int{}
	a.read(func(p *proc) {
		for _, f := range p.c.failovers {
			if f.height >= from && len(rows) < limit {
				rows = append(rows, m{"height": f.height, "failed_producer": f.failed, "emergency_producer": f.emergency,
					"reason": "timeout", "timestamp": f.timestamp, "block_type": "microblock"})
				byWho[f.failed]++
			}
		}
	})
	body := m{"failovers": rows, "total_count": len(rows), "from_height": from, "limit": limit, "status": "no_failovers",
		"statistics": m{}, "message": "No failover events recorded"}
	if len(rows) > 0 {
		body["status"], body["message"] = "success", fmt.Sprintf("%d failover events", len(rows))
		body["statistics"] = m{"total_failovers": len(rows), "by_producer": byWho, "by_reason": m{"timeout": len(rows)}}
	}
	reply(w, http.StatusOK, body)
}

func (a *api) reputation(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("node_id")
	if id == "" {
		id = a.p.s.id
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 0 {
		limit = 100
	}
	reply(w, http.StatusOK, m{"node_id": id, "current_reputation": float(70), "history": []any{}, "total_changes": 0, "limit": limit, "status": "active"})
}

func (a *api) metrics(w http.ResponseWriter, _ *http.Request) {
	var v syncView
	var up time.Duration
	a.read(func(p *proc) {
		v = p.syncView(p.c.tip(), time.Now())
		v.own, v.network = p.shown(v.own), p.shown(v.network)
		up = time.Since(p.started)
	})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, s := range []struct {
		name, kind string
		value      uint64
	}{{"qnet_node_uptime_seconds", "counter", uint64(up.Seconds())}, {"qnet_blocks_height", "gauge", v.own}, {"qnet_network_height", "gauge", v.network},
		{"qnet_blocks_behind", "gauge", v.network - v.own}, {"qnet_peers_connected", "gauge", uint64(v.peers)}} {
		_, _ = fmt.Fprintf(w, "# HELP %s QNet node\n# TYPE %s %s\n%s %d\n", s.name, s.name, s.kind, s.name, s.value)
	}
}

// snapshots lists the heights this node holds a snapshot of: the newest three
// and the anchor of the first macroblock.
func (c *chain) snapshots() []uint64 {
	top := node.WindowHead(c.lastSealed()) / node.SnapshotBlocks * node.SnapshotBlocks
	var list []uint64
	if c.lastSealed() >= 1 {
		list = append(list, node.MacroblockBlocks)
	}
	for k := uint64(node.SnapshotKeep); k > 0; k-- {
		if h := (k - 1) * node.SnapshotBlocks; top > h {
			list = append(list, top-h)
		}
	}
	return list
}

func (a *api) snapshotLatest(w http.ResponseWriter, r *http.Request) {
	limit, err := strconv.ParseUint(r.URL.Query().Get("max_height"), 10, 64)
	if err != nil {
		limit = ^uint64(0) // silently ignored
	}
	body := m{"height": 0, "ipfs_cid": "", "available": false, "message": "No snapshots available yet"}
	a.read(func(p *proc) {
		for _, h := range p.snapshots() {
			if h <= limit {
				body = m{"height": h, "ipfs_cid": "", "available": true, "node_id": p.s.id, "timestamp": p.c.stamp(p.c.slotOf(h))}
			}
		}
	})
	reply(w, http.StatusOK, body)
}

// snapshotChunkSize is the size of a lab snapshot's chunks; it has two.
const snapshotChunkSize = 32 << 10

// snapshotData is the content of a snapshot, nil when it is not held. It stands
// for state and is the same on all nodes of one chain.
func (a *api) snapshotData(h uint64) []byte {
	var data []byte
	a.read(func(p *proc) {
		if slices.Contains(p.snapshots(), h) {
			data = make([]byte, 2*snapshotChunkSize)
			seed := p.c.hashAt(h)
			sha3.ShakeSum256(data, seed[:])
		}
	})
	return data
}

func (a *api) snapshot(w http.ResponseWriter, _ *http.Request, h uint64) {
	data := a.snapshotData(h)
	if data == nil {
		reply(w, http.StatusOK, m{"error": "Snapshot not found", "height": h})
		return
	}
	if !a.p.permit() {
		reply(w, http.StatusOK, m{"error": "snapshot serve busy"})
		return
	}
	defer a.p.release()
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=\"snapshot_%d.bin\"", h))
	octets(w, data)
}

func octets(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
}

func (a *api) snapshotManifest(w http.ResponseWriter, _ *http.Request, h uint64) {
	data := a.snapshotData(h)
	if data == nil {
		reply(w, http.StatusOK, m{"error": "Snapshot not found", "height": h})
		return
	}
	var chunks []string
	for part := range slices.Chunk(data, snapshotChunkSize) {
		sum := sha3.Sum256(part)
		chunks = append(chunks, hex.EncodeToString(sum[:]))
	}
	reply(w, http.StatusOK, m{"height": h, "chunk_size": snapshotChunkSize, "total_size": len(data), "chunks": chunks})
}

func (a *api) snapshotChunk(w http.ResponseWriter, r *http.Request, h uint64) {
	i, err := strconv.ParseUint(r.PathValue("i"), 10, 16)
	data := a.snapshotData(h)
	if lo := int(i) * snapshotChunkSize; err == nil && lo < len(data) {
		octets(w, data[lo:lo+snapshotChunkSize])
		return
	}
	reply(w, http.StatusOK, m{"error": "Snapshot not found", "height": h})
}

// segment is one archived epoch.
func (a *api) segment(epoch uint64) []byte {
	var data []byte
	a.read(func(p *proc) {
		if p.archiving() && epoch < node.WindowHead(p.c.lastSealed())/node.EpochBlocks {
			first := epoch * node.EpochBlocks
			data, _ = json.Marshal(p.c.blocks[first : first+node.EpochBlocks])
		}
	})
	return data
}

func (p *proc) archiving() bool { return environ(p.cfg.Env).get("QNET_ARCHIVE") == "1" }

func (a *api) archive(w http.ResponseWriter, _ *http.Request) {
	body := m{"enabled": a.p.archiving(), "segment_blocks": node.EpochBlocks, "next_epoch": nil, "segments": []m{}}
	if a.p.archiving() {
		var list []m
		var next uint64
		for data := a.segment(next); data != nil; data = a.segment(next) {
			sum := sha3.Sum256(data)
			list = append(list, m{"epoch": next, "first_height": next*node.EpochBlocks + 1, "last_height": (next + 1) * node.EpochBlocks,
				"blocks": node.EpochBlocks, "missing": []any{}, "macroblocks": node.EpochBlocks / node.MacroblockBlocks,
				"macroblocks_unsigned": 0, "bytes": len(data), "sha3": hex.EncodeToString(sum[:])})
			next++
		}
		body["segments"], body["next_epoch"] = orEmpty(list), next
	}
	reply(w, http.StatusOK, body)
}

func (a *api) archiveSegment(w http.ResponseWriter, _ *http.Request, epoch uint64) {
	data := a.segment(epoch)
	if data == nil {
		reply(w, http.StatusNotFound, m{"error": "segment not archived here", "epoch": epoch})
		return
	}
	sum := sha3.Sum256(data)
	w.Header().Set("X-Segment-Sha3", hex.EncodeToString(sum[:]))
	octets(w, data)
}

// shutdown is the operator's stop over HTTP; every answer is HTTP 200.
func (a *api) shutdown(w http.ResponseWriter, r *http.Request) {
	who := a.caller(r)
	if !who.exempt {
		if retry, ok := a.limits.allow(bucketBenchmark, who.ip); !ok {
			reply(w, http.StatusOK, limitBody(retry))
			return
		}
	}
	var req struct {
		AdminSecret string  `json:"admin_secret"`
		Reason      string  `json:"reason"`
		Message     string  `json:"message"`
		Timeout     *uint64 `json:"graceful_timeout_seconds"`
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<10))
	if err != nil || json.Unmarshal(raw, &req) != nil {
		text(w, http.StatusBadRequest, "Request body deserialize error")
		return
	}
	refuse := func(msg string) { reply(w, http.StatusOK, m{"success": false, "error": msg}) }
	switch {
	case !who.internal:
		a.p.log.always("[WARN][API] shutdown_rejected_external ip=%s", who.ip)
		refuse("Shutdown endpoint restricted to internal network")
	case a.p.s.adminSecret == "":
		refuse("Shutdown disabled: QNET_ADMIN_SECRET not configured on this node")
	case req.AdminSecret != a.p.s.adminSecret:
		refuse("Unauthorized: invalid or missing admin_secret")
	default:
		delay := uint64(10)
		if req.Timeout != nil {
			delay = *req.Timeout
		}
		now := time.Now()
		a.p.mu.Lock()
		a.p.shutdownAt = now.Add(a.p.s.scale(float64(min(delay, 3600))))
		a.p.mu.Unlock()
		reply(w, http.StatusOK, m{"success": true, "message": "Graceful shutdown initiated", "node_id": a.p.s.id,
			"shutdown_in_seconds": delay, "reason": req.Reason, "timestamp": now.Unix()})
	}
}
