package ledger

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// rpcError is a JSON-RPC error object.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (n *Node) rpc(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Method string  `json:"method"`
		ID     *uint64 `json:"id"`
	}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req) != nil || req.ID == nil || req.Method == "" {
		text(w, http.StatusBadRequest, "Request body deserialize error")
		return
	}
	result, fail := n.call(n.gate.Internal(r), req.Method)
	if fail != nil {
		reply(w, m{"jsonrpc": "2.0", "error": fail, "id": *req.ID})
		return
	}
	reply(w, m{"jsonrpc": "2.0", "result": result, "id": *req.ID})
}

// call answers the methods that change nothing.
func (n *Node) call(internal bool, method string) (any, *rpcError) {
	switch {
	case method == "node_getInfo":
		return m{"node_id": n.cfg.ID, "height": n.l.Height(), "peers": n.peers(), "mempool_size": 0, "version": "1.0.0", "build": n.cfg.Build,
			"node_type": "Super", "region": "Europe", "status": "synchronized"}, nil
	case method == "node_recoveryStatus" && internal:
		return n.recovery(), nil
	case method == "node_recoveryStatus":
		return nil, &rpcError{-32004, "operator method: local interface only"}
	}
	n.mu.Lock()
	n.refused = append(n.refused, "rpc "+strings.ToValidUTF8(method, "?"))
	n.mu.Unlock()
	return nil, &rpcError{-32601, "method not found"}
}

// recovery is node_recoveryStatus. Where it is armed its anchor is the last sealed macroblock and its span the two
// windows above it (facts 3).
func (n *Node) recovery() node.RecoveryStatus {
	heard, sealed := n.peers()+1, n.Sealed()
	if n.faultSet()[FaultArmed] == nil || sealed == 0 {
		enabled := true
		return node.RecoveryStatus{Enabled: &enabled, HeardFrom: heard}
	}
	chain, _ := n.seen()
	anchor := chain.checkpoint(sealed, eligibleRaw(n.l.eligible(sealed)))
	digest, span := anchor.ContentDigest(), [2]uint64{sealed + 1, sealed + 2}
	committee := len(n.l.Committee(sealed + 1))
	size, quorum, relaxed := uint64(committee), uint64(node.QuorumSize(committee)), uint64(node.RelaxedQuorum(committee))
	return node.RecoveryStatus{Armed: true, AnchorMB: &sealed, AnchorCPIndex: &anchor.Index, AnchorDigest: &digest, SpanWindows: &span,
		HeardFrom: heard, Committee: &size, QuorumSize: &quorum, RelaxedQuorum: &relaxed}
}
