package simnode

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// rpcError is a JSON-RPC error object.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (a *api) rpc(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Version string                     `json:"jsonrpc"`
		Method  string                     `json:"method"`
		Params  map[string]json.RawMessage `json:"params"`
		ID      *uint64                    `json:"id"`
	}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req) != nil || req.ID == nil || req.Method == "" {
		text(w, http.StatusBadRequest, "Request body deserialize error")
		return
	}
	result, fail := a.call(a.caller(r), req.Method, req.Params)
	if fail != nil {
		reply(w, http.StatusOK, m{"jsonrpc": "2.0", "error": fail, "id": *req.ID})
		return
	}
	reply(w, http.StatusOK, m{"jsonrpc": "2.0", "result": result, "id": *req.ID})
}

func (a *api) call(who caller, method string, params map[string]json.RawMessage) (any, *rpcError) {
	operator := []string{"node_recoveryStatus", "node_armRecovery", "node_disarmRecovery", "node_decreeEndorse", "node_decreeSubmit"}
	if slices.Contains(operator, method) && !who.internal {
		return nil, &rpcError{-32004, "operator method: local interface only"}
	}
	switch method {
	case "node_getInfo":
		return a.info(), nil
	case "node_recoveryStatus":
		return m{"armed": false, "enabled": true, "heard_from": a.heard()}, nil
	case "node_armRecovery":
		// Below ten members the relaxed quorum is the strict one: inert.
		return m{"armed": false, "reason": "relaxed_quorum_not_below_strict"}, nil
	case "node_disarmRecovery":
		return m{"disarm_requested": true, "armed": false}, nil
	case "node_decreeEndorse":
		return a.endorse(params)
	case "node_decreeSubmit":
		return a.submit(params)
	}
	return nil, &rpcError{-32601, "method not found"}
}

func (a *api) info() m {
	var body m
	a.read(func(p *proc) {
		v := p.syncView(p.c.tip(), time.Now())
		body = m{"node_id": p.s.id, "height": p.shown(v.own), "peers": v.peers, "mempool_size": 0, "version": "1.0.0",
			"build": p.build(), "node_type": "Super", "region": "Europe", "status": v.status}
	})
	return body
}

// heard counts the committee members this node hears, itself included.
func (a *api) heard() int {
	n := 0
	a.read(func(p *proc) {
		for _, id := range p.c.committee(node.WindowOf(p.c.tip() + 1)) {
			if pe := p.peers[id]; id == p.s.id || (pe != nil && p.alive(pe, time.Now())) {
				n++
			}
		}
	})
	return n
}

// decree is a genesis-signed order to go back to a height.
type decree struct {
	Seq    uint64
	Target uint64
	Sigs   []decreeSig
}

type decreeSig struct {
	NodeID string `json:"node_id"`
	Sig    string `json:"sig"`
}

func (p *proc) decreeText(d decree) string {
	return fmt.Sprintf("RDCR:%s:%d:%d", p.c.network, d.Seq, d.Target)
}

// decreeParams reads the two numbers. A string, a fraction or a negative one
// counts as missing.
func decreeParams(params map[string]json.RawMessage) (decree, *rpcError) {
	var d decree
	if params == nil {
		return d, &rpcError{-32602, "params required"}
	}
	if !decode(params["seq"], &d.Seq) {
		return d, &rpcError{-32602, "seq required"}
	}
	if !decode(params["target_height"], &d.Target) {
		return d, &rpcError{-32602, "target_height required"}
	}
	return d, nil
}

// decode reads a parameter; null counts as missing.
func decode(raw json.RawMessage, v any) bool {
	return len(raw) > 0 && string(raw) != "null" && json.Unmarshal(raw, v) == nil
}

func (a *api) endorse(params map[string]json.RawMessage) (any, *rpcError) {
	d, fail := decreeParams(params)
	if fail != nil {
		return nil, fail
	}
	var sig string
	a.read(func(p *proc) { sig = sign(p.s.id, p.decreeText(d)) })
	return m{"node_id": a.p.s.id, "sig": hex.EncodeToString([]byte(sig))}, nil
}

func (a *api) submit(params map[string]json.RawMessage) (any, *rpcError) {
	d, fail := decreeParams(params)
	if fail != nil {
		return nil, fail
	}
	var entries []json.RawMessage
	if !decode(params["sigs"], &entries) {
		return nil, &rpcError{-32602, "sigs required"}
	}
	for _, raw := range entries {
		var s decreeSig
		if json.Unmarshal(raw, &s) == nil { // a malformed entry is dropped silently
			d.Sigs = append(d.Sigs, s)
		}
	}
	p := a.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if fail := p.judgeDecree(d); fail != nil {
		return nil, fail
	}
	ids := slices.Clone(p.peerIDs)
	p.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids[:min(16, len(ids))] {
		p.send(id, message{T: msgDecree, Decree: &d})
	}
	p.scheduleDecree(d)
	return m{"accepted": true, "seq": d.Seq, "target_height": d.Target}, nil
}

// judgeDecree says why a decree is refused, nil if it is not.
func (p *proc) judgeDecree(d decree) *rpcError {
	var last uint64
	_, _ = p.st.readJSON(fileDecree, &last)
	if d.Seq <= max(last, p.decreeSeq) {
		return &rpcError{-32000, "seq at or below applied floor"}
	}
	signed := map[string]bool{}
	for _, s := range d.Sigs {
		raw, err := hex.DecodeString(s.Sig)
		if err == nil && slices.Contains(p.c.genesis, s.NodeID) && verify(s.NodeID, p.decreeText(d), string(raw)) {
			signed[s.NodeID] = true
		}
	}
	if len(signed) < node.QuorumSize(len(p.c.genesis)) {
		return &rpcError{-32000, "decree signature quorum not met"}
	}
	if floor := p.c.floor(); d.Target < floor {
		return &rpcError{-32000, fmt.Sprintf("target %d is below the certified floor %d: a certified checkpoint is irrevocable", d.Target, floor)}
	}
	return nil
}

// scheduleDecree prunes and exits three seconds later, for a clean boot.
func (p *proc) scheduleDecree(d decree) {
	p.decreeSeq = d.Seq
	p.at(time.Now().Add(p.s.scale(3)), func(time.Time) {
		p.log.always("[WARN][DECREE] executing seq=%d target=%d", d.Seq, d.Target)
		p.stored(p.st.writeJSON(fileDecree, d.Seq))
		if d.Target < p.c.tip() && d.Target >= p.c.floor() {
			p.cut(d.Target)
		}
		p.lowerMark(p.c.tip())
		p.stored(p.dropVotes())
		_ = p.st.flush()
		p.quit(exitOK)
	})
}

// onDecree takes a gossiped decree.
func (p *proc) onDecree(d decree) {
	if p.judgeDecree(d) == nil {
		p.scheduleDecree(d)
	}
}
