package ledger

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/sha3"

	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/node"
)

// m is a JSON object.
type m = map[string]any

// ServeHTTP answers as the node's API does.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) { n.handler.ServeHTTP(w, r) }

// routes are the routes a stopped fleet is read through, and no others.
func (n *Node) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(method, path string, fn http.HandlerFunc) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			n.count(path)
			if hang := n.faultSet()[FaultHang]; hang != nil && len(hang.spans) == 0 {
				<-r.Context().Done()
				return
			}
			fn(w, r)
		})
	}
	get := func(path string, fn http.HandlerFunc) { handle("GET", path, n.limited(fn)) }
	handle("GET", "/healthz", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, node.Healthz{Height: n.l.Height(), Build: n.cfg.Build}.String())
	})
	handle("GET", "/health", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK") })
	get("/api/v1/node/health", n.nodeHealth)
	get("/api/v1/debug/consensus-position", n.position)
	get("/api/v1/producer/status", n.producerStatus)
	get("/api/v1/microblock/{h}", number("h", n.microblock))
	get("/api/v1/macroblock/{index}", number("index", n.macroblock))
	get("/api/v1/macroblock/{index}/proof", number("index", n.proof))
	get("/api/v1/snapshot/latest", n.snapshotLatest)
	get("/api/v1/snapshot/{h}", number("h", n.snapshot))
	get("/api/v1/snapshot/{h}/manifest", number("h", n.snapshotManifest))
	get("/api/v1/snapshot/{h}/chunk/{i}", number("h", n.snapshotChunk))
	get("/api/v1/archive", n.archive)
	get("/api/v1/archive/segment/{epoch}", number("epoch", n.archiveSegment))
	handle("POST", "/rpc", n.limited(n.rpc))
	handle("POST", "/{$}", n.limited(n.rpc))
	mux.HandleFunc("/", n.unknown)
	return mux
}

func (n *Node) count(route string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[route]++
}

// unknown refuses what no route answers, as the real framework does, and keeps it for the test that looks.
func (n *Node) unknown(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	n.refused = append(n.refused, r.Method+" "+r.URL.RequestURI())
	n.mu.Unlock()
	w.WriteHeader(http.StatusNotFound)
}

// limited puts a handler behind the rate limit. The snapshot download has a shorter refusal.
func (n *Node) limited(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		retry, ok := 30, n.faultSet()[FaultRateLimit] == nil
		if ok {
			retry, ok = n.gate.Admit(r)
		}
		switch {
		case ok:
			next(w, r)
		case strings.HasSuffix(r.Pattern, "/snapshot/{h}"):
			reply(w, m{"error": "Rate limit exceeded"})
		default:
			reply(w, simnode.LimitBody(retry))
		}
	}
}

// number parses a path parameter; one that is no u64 matches no route.
func number(name string, next func(http.ResponseWriter, *http.Request, uint64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := strconv.ParseUint(r.PathValue(name), 10, 64)
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next(w, r, v)
	}
}

// reply answers with HTTP 200, which the node's refusals have too.
func reply(w http.ResponseWriter, v any) { replyAs(w, http.StatusOK, v) }

func replyAs(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, s)
}

// peers are all members but this node: a stalled fleet still hears itself.
func (n *Node) peers() uint64 {
	return uint64(len(slices.DeleteFunc(n.l.Members(), func(id string) bool { return id == n.cfg.ID })))
}

func (n *Node) nodeHealth(w http.ResponseWriter, _ *http.Request) {
	reply(w, node.NodeHealth{Status: "healthy", NodeID: n.cfg.ID, Height: n.l.Height(), NetworkHeight: n.l.Height(), SyncStatus: "synchronized",
		Peers: n.peers(), ValidatedPeers: n.peers(), NodeType: "Super", Region: "Europe", Version: "1.0.0", APIVersion: "v1"})
}

func (n *Node) position(w http.ResponseWriter, _ *http.Request) {
	chain, _ := n.seen()
	tip, own, sealed := chain.blockHash(n.l.Height()), node.OwnWindow(n.l.Height()), n.Sealed()
	reply(w, node.Position{Height: n.l.Height(), TipHash: &tip, OwnWindow: own, LastSealed: sealed, SealedLag: own - min(own, sealed),
		FinalizedHeight: n.Finalized(), TCWindowFloor: node.OwnWindow(n.Finalized()), RoundNextSlot: new(uint64)})
}

// producerStatus names no producer: on a chain at its horizon the roster cannot be derived.
func (n *Node) producerStatus(w http.ResponseWriter, _ *http.Request) {
	round := node.RoundOf(n.l.Height() + 1)
	rotation := (round+1)*node.RotationBlocks + 1
	reply(w, m{"current_height": n.l.Height(), "is_producer": false, "current_producer": "", "producer_endpoint": "", "node_id": n.cfg.ID,
		"leadership_round": round, "next_rotation_height": rotation, "blocks_until_rotation": rotation - n.l.Height(),
		"producer_selection_method": "vrf_rotation", "consensus_threshold": 70})
}

// microblock serves the bodies that are kept: those of the last six epochs, pruned at epoch boundaries.
func (n *Node) microblock(w http.ResponseWriter, _ *http.Request, h uint64) {
	tip := n.l.Height()
	kept := (tip - min(tip, node.BodyRetentionBlocks)) / node.EpochBlocks * node.EpochBlocks
	if h <= kept || h > tip {
		replyAs(w, http.StatusNotFound, m{"error": "Microblock not found", "height": h})
		return
	}
	chain, _ := n.seen()
	committee := n.l.Committee(node.WindowOf(h))
	reply(w, m{"height": h, "hash": chain.blockHash(h), "previous_hash": chain.blockHash(h - 1),
		"producer": committee[node.RoundOf(h)%uint64(len(committee))], "timestamp": n.l.stamp(h), "transactions": []any{}})
}

// stuck waits with the caller where the fault hang is about this macroblock.
func (n *Node) stuck(r *http.Request, i uint64) bool {
	if !n.faultSet()[FaultHang].hits(i) {
		return false
	}
	<-r.Context().Done()
	return true
}

func (n *Node) macroblock(w http.ResponseWriter, r *http.Request, i uint64) {
	switch {
	case n.stuck(r, i):
	case n.faultSet()[FaultStorage].hits(i):
		reply(w, m{"error": "Failed to get macroblock", "details": "internal error"})
	case !n.holds(i): // for index 0 the range underflows, as the node's arithmetic does
		reply(w, m{"error": "Macroblock not found", "index": i, "info": fmt.Sprintf("Macroblock #%d would cover blocks %d-%d", i, (i-1)*90+1, i*90)})
	default:
		reply(w, n.Macroblock(i))
	}
}

func (n *Node) proof(w http.ResponseWriter, r *http.Request, i uint64) {
	switch {
	case n.stuck(r, i):
	case n.faultSet()[FaultStorage].hits(i) || !n.holds(i): // one answer for both, as the node's
		reply(w, m{"error": "macroblock_not_found", "index": i})
	case n.faultSet()[FaultNoQC].hits(i):
		reply(w, m{"error": node.ProofNoQC, "index": i})
	case n.pruned(i):
		reply(w, m{"error": node.ProofSigsPruned, "index": i, "action": "repin_recent_anchor"})
	default:
		n.mu.Lock()
		n.reads[i]++
		n.mu.Unlock()
		reply(w, n.Proof(i))
	}
}

func (n *Node) snapshotLatest(w http.ResponseWriter, r *http.Request) {
	limit, err := strconv.ParseUint(r.URL.Query().Get("max_height"), 10, 64)
	if err != nil {
		limit = ^uint64(0) // silently ignored
	}
	for _, h := range slices.Backward(n.snapshots()) {
		if h <= limit {
			reply(w, node.Snapshot{Height: h, Available: true, NodeID: n.cfg.ID, Timestamp: int64(n.l.stamp(h))})
			return
		}
	}
	reply(w, m{"height": 0, "ipfs_cid": "", "available": false, "message": "No snapshots available yet"})
}

// chunkSize is the size of a snapshot's chunks in bytes; it has two.
const chunkSize = 32 << 10

// snapshotData stands for the state at a height, nil when no snapshot of it is held. It is the same on all nodes of one
// chain.
func (n *Node) snapshotData(h uint64) []byte {
	if !slices.Contains(n.snapshots(), h) {
		return nil
	}
	chain, _ := n.seen()
	data, seed := make([]byte, 2*chunkSize), chain.blockHash(h)
	sha3.ShakeSum256(data, seed[:])
	return data
}

func (n *Node) snapshot(w http.ResponseWriter, _ *http.Request, h uint64) {
	data := n.snapshotData(h)
	if data == nil {
		reply(w, m{"error": "Snapshot not found", "height": h})
		return
	}
	busy := n.faultSet()[FaultBusy] != nil
	if !busy {
		select {
		case n.permits <- struct{}{}:
			defer func() { <-n.permits }()
		default:
			busy = true
		}
	}
	if busy {
		reply(w, m{"error": "snapshot serve busy"})
		return
	}
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=\"snapshot_%d.bin\"", h))
	octets(w, data)
}

func octets(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
}

func (n *Node) snapshotManifest(w http.ResponseWriter, _ *http.Request, h uint64) {
	data := n.snapshotData(h)
	if data == nil {
		reply(w, m{"error": "Snapshot not found", "height": h})
		return
	}
	var chunks []string
	for part := range slices.Chunk(data, chunkSize) {
		chunks = append(chunks, hexSum(part))
	}
	reply(w, m{"height": h, "chunk_size": chunkSize, "total_size": len(data), "chunks": chunks})
}

func (n *Node) snapshotChunk(w http.ResponseWriter, r *http.Request, h uint64) {
	i, err := strconv.ParseUint(r.PathValue("i"), 10, 16)
	data := n.snapshotData(h)
	if lo := int(i) * chunkSize; err == nil && lo < len(data) {
		octets(w, data[lo:lo+chunkSize])
		return
	}
	reply(w, m{"error": "Snapshot not found", "height": h})
}

func hexSum(data []byte) string {
	sum := sha3.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// segment stands for an archived epoch, nil when it is not archived here.
func (n *Node) segment(epoch uint64) []byte {
	if !n.cfg.Archive || epoch >= n.epochs() {
		return nil
	}
	const size = 1 << 10
	chain, _ := n.seen()
	data, seed := make([]byte, size), chain.hash((epoch+1)*node.EpochBlocks/node.MacroblockBlocks)
	sha3.ShakeSum256(data, seed[:])
	return data
}

func (n *Node) archive(w http.ResponseWriter, _ *http.Request) {
	a := node.Archive{Enabled: n.cfg.Archive, SegmentBlocks: node.EpochBlocks, Segments: []node.ArchiveSegment{}}
	if n.cfg.Archive {
		next := n.epochs()
		a.NextEpoch = &next
		for epoch := range next {
			data := n.segment(epoch)
			a.Segments = append(a.Segments, node.ArchiveSegment{Epoch: epoch, FirstHeight: epoch*node.EpochBlocks + 1,
				LastHeight: (epoch + 1) * node.EpochBlocks, Blocks: node.EpochBlocks, Missing: [][2]uint64{},
				Macroblocks: node.EpochBlocks / node.MacroblockBlocks, Bytes: uint64(len(data)), SHA3: hexSum(data)})
		}
	}
	reply(w, a)
}

func (n *Node) archiveSegment(w http.ResponseWriter, _ *http.Request, epoch uint64) {
	data := n.segment(epoch)
	if data == nil {
		replyAs(w, http.StatusNotFound, m{"error": "segment not archived here", "epoch": epoch})
		return
	}
	w.Header().Set("X-Segment-Sha3", hexSum(data))
	octets(w, data)
}
