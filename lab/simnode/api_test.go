package simnode

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
	"golang.org/x/crypto/sha3"
)

// shape checks the exact set of keys of an answer and their JSON types:
// n number, s string, b bool, a array, o object, z null.
func shape(t *testing.T, where string, v map[string]any, want string) {
	t.Helper()
	expect := map[string]string{}
	for _, f := range strings.Fields(want) {
		k, kind, _ := strings.Cut(f, ":")
		expect[k] = kind
	}
	if got := slices.Sorted(maps.Keys(v)); !slices.Equal(got, slices.Sorted(maps.Keys(expect))) {
		t.Errorf("%s: keys %v, want %v", where, got, slices.Sorted(maps.Keys(expect)))
		return
	}
	for k, kind := range expect {
		got := map[bool]string{}
		switch v[k].(type) {
		case float64:
			got[true] = "n"
		case string:
			got[true] = "s"
		case bool:
			got[true] = "b"
		case []any:
			got[true] = "a"
		case map[string]any:
			got[true] = "o"
		case nil:
			got[true] = "z"
		}
		if got[true] != kind {
			t.Errorf("%s: %s is %s, want %s", where, k, got[true], kind)
		}
	}
}

func TestEndpointShapes(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(200)
		n := l.nodes[l.ids[1]]
		for path, want := range map[string]string{
			"/api/v1/node/health": "status:s node_id:s height:n network_height:n sync_status:s peers:n validated_peers:n mempool_size:n node_type:s region:s " +
				"uptime_seconds:n version:s api_version:s clock_drift_ema_secs:n clock_drift_peak_secs:n current_timeout_round:n max_slot_delay_secs:n " +
				"max_timeout_round_seen:n failover_count:n timestamp_rejections:n",
			"/api/v1/sync/status": "local_height:n network_height:n is_syncing:b is_ahead:b blocks_behind:n blocks_ahead:n sync_progress:s estimated_sync_time:s",
			"/api/v1/height":      "height:n network_height:n is_syncing:b blocks_behind:n",
			pathPosition: "height:n tip_hash:s own_window:n last_sealed_mb_index:n sealed_lag_windows:n finalized_height:n tc_window_floor:n " +
				"floor_above_window:b certified_round_current_window:n certified_round_next_slot:n",
			"/api/v1/producer/status": "current_height:n is_producer:b current_producer:s producer_endpoint:s node_id:s leadership_round:n next_rotation_height:n " +
				"blocks_until_rotation:n producer_selection_method:s consensus_threshold:n",
			"/api/v1/peers": "peers:a total:n statistics:o",
			"/api/v1/blocks/stats": "current_height:n blocks_per_minute:n average_block_time:n microblocks_produced:n macroblock_height:n next_macroblock:n " +
				"blocks_until_macroblock:n pending_transactions:n average_tx_per_block:n",
			"/api/v1/macroblock/2": "index:n height:n timestamp:n micro_blocks_count:n micro_blocks:a state_root:s consensus_data:o previous_hash:s",
			"/api/v1/macroblock/2/proof": "index:n epoch:n checkpoint:o qc:o committee:a committee_pubkeys:o eligible_raw:s banned:a " +
				"recovery_anchor_checkpoint:z",
			"/api/v1/macroblock/999":              "error:s index:n info:s",
			"/api/v1/macroblock/999/proof":        "error:s index:n",
			"/api/v1/snapshot/latest":             "height:n ipfs_cid:s available:b node_id:s timestamp:n",
			"/api/v1/snapshot/91":                 "error:s height:n",
			"/api/v1/failovers":                   "failovers:a total_count:n from_height:n limit:n status:s statistics:o message:s",
			"/api/v1/reputation/history":          "node_id:s current_reputation:n history:a total_changes:n limit:n status:s",
			"/api/v1/archive":                     "enabled:b segment_blocks:n next_epoch:z segments:a",
			"/api/v1/reputation/history?limit=3":  "node_id:s current_reputation:n history:a total_changes:n limit:n status:s",
			"/api/v1/snapshot/latest?max_height=": "height:n ipfs_cid:s available:b node_id:s timestamp:n",
		} {
			shape(t, path, n.json(path), want)
		}
		proof := n.json("/api/v1/macroblock/2/proof")
		shape(t, "checkpoint", proof["checkpoint"].(map[string]any), "index:n parent_qc:o window_head_height:n window_mb_hashes:a state_root:s beacon:s "+
			"epoch_commitment:s reward_root:s registry_root:s logs_root:s dilithium_pk_root:s reward_epoch_root:s total_supply:s timestamp:n proposer:s recovery_anchor:z")
		shape(t, "qc", proof["qc"].(map[string]any), "signers:a sigs:a")
		shape(t, "consensus_data", n.json("/api/v1/macroblock/2")["consensus_data"].(map[string]any),
			"next_leader:s commits_count:n reveals_count:n pool2_total_fees:z pool3_total_activations:z")
		for id, key := range proof["committee_pubkeys"].(map[string]any) {
			if raw, err := hex.DecodeString(key.(string)); err != nil || len(raw) != 1952 {
				t.Errorf("public key of %s: %d bytes, %v", id, len(raw), err)
			}
		}
	})
}

func TestEndpointArithmeticAndTraps(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 60)
		n := l.nodes[l.ids[1]]
		v := n.json("/api/v1/blocks/stats")
		h := uint64(v["current_height"].(float64))
		// Arithmetic on the height, not sealed macroblocks.
		if v["macroblock_height"].(float64) != float64(h/90) || v["next_macroblock"].(float64) != float64((h/90+1)*90) || v["blocks_until_macroblock"].(float64) != float64(90-h%90) {
			t.Errorf("blocks/stats at %d: %v", h, v)
		}
		if _, body := n.get("/api/v1/blocks/stats"); !strings.Contains(body, `"average_block_time":1.0`) {
			t.Errorf("average_block_time is not a float: %s", body)
		}
		p := n.json(pathPosition)
		if p["own_window"].(float64) != float64(uint64(p["height"].(float64))/90) {
			t.Errorf("own_window is height/90: %v", p)
		}
		if _, err := node.ParseHash(p["tip_hash"].(string)); err != nil {
			t.Errorf("tip_hash: %v", err)
		}
		prod := n.json("/api/v1/producer/status")
		next := uint64(prod["current_height"].(float64)) + 1
		if prod["leadership_round"].(float64) != float64((next-1)/30) || prod["next_rotation_height"].(float64) != float64(((next-1)/30+1)*30+1) {
			t.Errorf("producer/status: %v", prod)
		}
		before := n.out.count("peers_listed")
		if peers := n.json("/api/v1/peers"); peers["total"].(float64) != 5 {
			t.Errorf("peers: %v", peers)
		}
		if n.out.count("peers_listed") != before+1 {
			t.Error("GET /peers must print a line")
		}
		if code, body := n.get("/health"); code != 200 || body != "OK" {
			t.Errorf("/health: %d %q", code, body)
		}
		for path, want := range map[string]int{"/api/v1/macroblock/abc": 404, "/api/v1/macroblock/-1": 404, "/api/v1/microblock/99999": 404,
			"/api/v1/archive/segment/0": 404, "/genesis/block": 404, "/nonsense": 404, "/api/v1/macroblock/99999": 200} {
			if code, body := n.get(path); code != want {
				t.Errorf("%s: %d %q, want %d", path, code, body, want)
			}
		}
		if v := n.json("/api/v1/macroblock/99999"); v["info"] != "Macroblock #99999 would cover blocks 8999821-8999910" || v["error"] != "Macroblock not found" {
			t.Errorf("missing macroblock: %v", v)
		}
		if v := n.json("/api/v1/macroblock/99999/proof"); v["error"] != "macroblock_not_found" {
			t.Errorf("missing proof: %v", v)
		}
		if v := n.json("/api/v1/archive/segment/7"); v["error"] != "segment not archived here" || v["epoch"].(float64) != 7 {
			t.Errorf("missing segment: %v", v)
		}
		if v := n.json("/api/v1/failovers"); v["status"] != "no_failovers" || len(v["failovers"].([]any)) != 0 || v["limit"].(float64) != 100 {
			t.Errorf("failovers: %v", v)
		}
		if v := n.json("/api/v1/reputation/history"); v["node_id"] != n.id || v["current_reputation"].(float64) != 70 {
			t.Errorf("reputation: %v", v)
		}
	})
}

func TestPeersAppendsGenesis(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids[0], l.ids[5])
		l.blocks(10)
		super := l.nodes[l.ids[5]]
		v := super.json("/api/v1/peers")
		if v["total"].(float64) != 3 {
			t.Errorf("one connection and two appended genesis entries expected: %v", v)
		}
		if h := super.json("/api/v1/node/health"); h["validated_peers"].(float64) != 1 || h["status"] != "degraded" {
			t.Errorf("health: %v", h)
		}
		l.hub.Cut(super.id)
		l.blocks(40)
		if h := super.json("/api/v1/node/health"); h["status"] != "isolated" || h["sync_status"] != "isolated" {
			t.Errorf("health of a super node alone: %v", h)
		}
		if v := super.json("/api/v1/peers"); v["total"].(float64) != 2 {
			t.Errorf("alone, two appended entries expected: %v", v)
		}
	})
}

func TestRateLimit(t *testing.T) {
	bubble(t, 5, 0, []string{history, "QNET_API_KEY_ADMIN=0123456789abcdef", "QNET_WHITELIST_IPS=192.0.2.9"}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		n.start()
		l.blocks(1)
		ask := func(from, path string, header ...string) (int, map[string]any) {
			t.Helper()
			req := newGet(path)
			for i := 0; i+1 < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			code, body, _, err := n.do(from, "8001", req)
			if err != nil {
				t.Fatal(err)
			}
			var v map[string]any
			_ = json.Unmarshal([]byte(body), &v)
			return code, v
		}
		limited := func(v map[string]any) bool { return v["success"] == false && v["error"] == "Rate limit exceeded" }
		const gateway = "172.17.0.1"
		for i := range 300 {
			if _, v := ask(gateway, pathPosition); limited(v) {
				t.Fatalf("the bridge gateway is limited after %d requests", i)
			}
		}
		code, v := ask(gateway, pathPosition)
		if code != 200 || !limited(v) || v["retry_after_seconds"].(float64) != 30 || v["message"] == "" {
			t.Fatalf("request 301: %d %v", code, v)
		}
		if _, v := ask(gateway, "/api/v1/snapshot/90"); len(v) != 1 || v["error"] != "Rate limit exceeded" {
			t.Errorf("snapshot download has the short body: %v", v)
		}
		if code, _ := ask(gateway, "/healthz"); code != 200 {
			t.Error("healthz is limited")
		}
		for range 400 {
			if _, v := ask("127.0.0.1", "/api/v1/archive"); limited(v) {
				t.Fatal("loopback is exempt")
			}
		}
		if _, v := ask("192.0.2.9", pathPosition); limited(v) {
			t.Error("a whitelisted address is exempt")
		}
		if _, v := ask(gateway, "/api/v1/archive", "X-API-Key", "0123456789abcdef"); limited(v) {
			t.Error("an API key exempts /archive")
		}
		if _, v := ask(gateway, pathPosition, "X-API-Key", "0123456789abcdef"); !limited(v) {
			t.Error("an API key exempts other routes")
		}
		l.blocks(31)
		if _, v := ask(gateway, pathPosition); limited(v) {
			t.Error("still blocked after 30 scaled seconds")
		}
	})
}

func TestCallerRules(t *testing.T) {
	a := &api{p: &proc{s: settings{whitelist: map[string]bool{"192.0.2.9": true}}}}
	for _, c := range []struct {
		remote, xff, origin string
		want                caller
	}{
		{"127.0.0.1:1", "", "", caller{"127.0.0.1", true, true}},
		{"[::1]:1", "", "", caller{"::1", true, true}},
		{"172.17.0.1:1", "", "", caller{"172.17.0.1", true, false}},
		{"pipe", "", "", caller{"172.17.0.1", true, false}},
		{"198.51.100.7:1", "", "", caller{"198.51.100.7", false, false}},
		{"198.51.100.7:1", "127.0.0.1", "", caller{"198.51.100.7", false, false}},
		{"127.0.0.1:1", "10.0.0.1, 198.51.100.7", "", caller{"198.51.100.7", false, false}},
		{"127.0.0.1:1", "198.51.100.7, 127.0.0.1", "", caller{"0.0.0.0", false, false}},
		{"192.0.2.9:1", "", "", caller{"192.0.2.9", true, true}},
		{"127.0.0.1:1", "", "http://example.org", caller{"127.0.0.1", false, true}},
	} {
		req := newGet("/")
		req.RemoteAddr = c.remote
		if c.xff != "" {
			req.Header.Set("X-Forwarded-For", c.xff)
		}
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		if got := a.caller(req); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func (n *labNode) post(from, path, body string, header ...string) (int, map[string]any) {
	n.lab.t.Helper()
	req, _ := http.NewRequest(http.MethodPost, "http://node"+path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	code, raw, _, err := n.do(from, "8001", req)
	if err != nil {
		n.lab.t.Fatal(err)
	}
	var v map[string]any
	_ = json.Unmarshal([]byte(raw), &v)
	return code, v
}

func TestShutdownEndpoint(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids[1:]...)
		n.start("QNET_ADMIN_SECRET=let me out")
		l.blocks(upBlocks)
		const path = "/api/v1/shutdown"
		for _, c := range []struct{ from, body, origin, want string }{
			{"198.51.100.7", `{"admin_secret":"let me out"}`, "", "Shutdown endpoint restricted to internal network"},
			{"127.0.0.1", `{"admin_secret":"let me out"}`, "http://example.org", "Shutdown endpoint restricted to internal network"},
			{"127.0.0.1", `{"admin_secret":"wrong"}`, "", "Unauthorized: invalid or missing admin_secret"},
			{"127.0.0.1", `{}`, "", "Unauthorized: invalid or missing admin_secret"},
		} {
			if code, v := n.post(c.from, path, c.body, "Origin", c.origin); code != 200 || v["success"] != false || v["error"] != c.want {
				t.Errorf("%+v: %d %v", c, code, v)
			}
		}
		if _, v := l.nodes[l.ids[1]].post("127.0.0.1", path, `{"admin_secret":""}`); v["error"] != "Shutdown disabled: QNET_ADMIN_SECRET not configured on this node" {
			t.Errorf("without a secret: %v", v)
		}
		if code, _ := n.post("127.0.0.1", path, `{"admin_secret":"`+strings.Repeat("x", 5000)+`"}`); code != 400 {
			t.Errorf("a body above 4 KiB: %d", code)
		}
		_, v := n.post("172.17.0.1", path, `{"admin_secret":"let me out","reason":"test"}`)
		shape(t, path, v, "success:b message:s node_id:s shutdown_in_seconds:n reason:s timestamp:n")
		if v["shutdown_in_seconds"].(float64) != 10 || v["reason"] != "test" {
			t.Errorf("%v", v)
		}
		l.blocks(8)
		if _, body := n.get("/healthz"); body == "" {
			t.Error("down before the delay")
		}
		if code := n.exited(5); code != 0 || n.out.count("[WARN][API] shutdown_rejected_external ip=198.51.100.7") != 1 {
			t.Errorf("exit %d", code)
		}
		other := l.nodes[l.ids[1]]
		for range 6 {
			_, v = other.post("172.17.0.1", path, `{}`)
		}
		if v["error"] != "Rate limit exceeded" || v["retry_after_seconds"].(float64) != 300 {
			t.Errorf("sixth request in a minute: %v", v)
		}
	})
}

func TestJSONRPC(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 10)
		n := l.nodes[l.ids[0]]
		call := func(from, method, params string, header ...string) (any, float64, string) {
			t.Helper()
			code, v := n.post(from, "/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s,"id":7}`, method, params), header...)
			if code != 200 || v["jsonrpc"] != "2.0" || v["id"].(float64) != 7 {
				t.Fatalf("%s: %d %v", method, code, v)
			}
			if e, ok := v["error"].(map[string]any); ok {
				return nil, e["code"].(float64), e["message"].(string)
			}
			return v["result"], 0, ""
		}
		info, _, _ := call("127.0.0.1", "node_getInfo", "{}")
		shape(t, "node_getInfo", info.(map[string]any), "node_id:s height:n peers:n mempool_size:n version:s build:s node_type:s region:s status:s")
		rec, _, _ := call("127.0.0.1", "node_recoveryStatus", "{}")
		shape(t, "node_recoveryStatus", rec.(map[string]any), "armed:b enabled:b heard_from:n")
		if rec.(map[string]any)["heard_from"].(float64) != 6 {
			t.Errorf("heard_from: %v", rec)
		}
		arm, _, _ := call("127.0.0.1", "node_armRecovery", "{}")
		if arm.(map[string]any)["armed"] != false { // inert below ten members
			t.Errorf("armed with six members: %v", arm)
		}
		dis, _, _ := call("127.0.0.1", "node_disarmRecovery", "{}")
		shape(t, "node_disarmRecovery", dis.(map[string]any), "disarm_requested:b armed:b")

		for _, c := range []struct {
			from, method, params, origin string
			code                         float64
			message                      string
		}{
			{"127.0.0.1", "nonsense", "{}", "", -32601, "method not found"},
			{"198.51.100.7", "node_recoveryStatus", "{}", "", -32004, "operator method: local interface only"},
			{"127.0.0.1", "node_armRecovery", "{}", "http://example.org", -32004, "operator method: local interface only"},
			{"127.0.0.1", "node_decreeEndorse", "null", "", -32602, "params required"},
			{"127.0.0.1", "node_decreeEndorse", "{}", "", -32602, "seq required"},
			{"127.0.0.1", "node_decreeEndorse", `{"seq":"1","target_height":9}`, "", -32602, "seq required"},
			{"127.0.0.1", "node_decreeEndorse", `{"seq":1.5,"target_height":9}`, "", -32602, "seq required"},
			{"127.0.0.1", "node_decreeEndorse", `{"seq":1,"target_height":-9}`, "", -32602, "target_height required"},
			{"127.0.0.1", "node_decreeSubmit", `{"seq":1,"target_height":9}`, "", -32602, "sigs required"},
			{"127.0.0.1", "node_decreeSubmit", `{"seq":1,"target_height":9,"sigs":[]}`, "", -32000, "decree signature quorum not met"},
			{"127.0.0.1", "node_decreeSubmit", `{"seq":0,"target_height":9,"sigs":[]}`, "", -32000, "seq at or below applied floor"},
		} {
			if _, code, msg := call(c.from, c.method, c.params, "Origin", c.origin); code != c.code || msg != c.message {
				t.Errorf("%+v: %v %q", c, code, msg)
			}
		}
		for _, body := range []string{`{"jsonrpc":"2.0","method":"node_getInfo","id":-1}`, `{"jsonrpc":"2.0","method":"node_getInfo","id":"x"}`, `{`} {
			if code, _ := n.post("127.0.0.1", "/", body); code != 400 {
				t.Errorf("%s: %d, want the framework's 400", body, code)
			}
		}
	})
}

func TestDecree(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 45)
		n := l.nodes[l.ids[0]]
		target := n.num(pathPosition, "finalized_height") + 35
		endorse := func(id string, target uint64) string {
			_, v := l.nodes[id].post("127.0.0.1", "/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","method":"node_decreeEndorse","params":{"seq":1,"target_height":%d},"id":1}`, target))
			raw, _ := json.Marshal(v["result"])
			return string(raw)
		}
		submit := func(target uint64, sigs ...string) map[string]any {
			_, v := n.post("127.0.0.1", "/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","method":"node_decreeSubmit","params":{"seq":1,"target_height":%d,"sigs":[%s]},"id":1}`, target, strings.Join(sigs, ",")))
			return v
		}
		var sigs, low []string
		for _, id := range l.ids[:4] {
			sigs, low = append(sigs, endorse(id, target)), append(low, endorse(id, 10))
		}
		// The sixth node cannot contribute, and a malformed entry is dropped.
		if v := submit(target, sigs[0], sigs[1], sigs[2], endorse(l.ids[5], target), `{"node_id":3}`); v["error"].(map[string]any)["message"] != "decree signature quorum not met" {
			t.Errorf("three genesis signatures: %v", v)
		}
		if v := submit(10, low...); !strings.HasPrefix(v["error"].(map[string]any)["message"].(string), "target 10 is below the certified floor ") {
			t.Errorf("below the floor: %v", v)
		}
		v := submit(target, sigs...)
		if r, _ := v["result"].(map[string]any); r["accepted"] != true || r["target_height"].(float64) != float64(target) {
			t.Fatalf("submit: %v", v)
		}
		for _, id := range l.ids {
			if code := l.nodes[id].exited(10); code != 0 {
				t.Errorf("%s: exit %d", id, code)
			}
		}
		n.start()
		l.blocks(2)
		if h := n.heightNow(); h != target {
			t.Errorf("height %d after the decree, want %d", h, target)
		}
	})
}

func TestSnapshots(t *testing.T) {
	bubble(t, 5, 0, []string{EnvHistory + "=14490"}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		n.start("QNET_ARCHIVE=1")
		l.blocks(1)
		for query, want := range map[string]uint64{"": 14400, "?max_height=14399": 10800, "?max_height=7200": 7200, "?max_height=7199": 90, "?max_height=90": 90,
			"?max_height=89": 0, "?max_height=nonsense": 14400} {
			if h := n.num("/api/v1/snapshot/latest"+query, "height"); h != want {
				t.Errorf("latest%s: %d, want %d (newest three and the anchor)", query, h, want)
			}
		}
		if v := n.json("/api/v1/snapshot/latest?max_height=89"); v["available"] != false || v["message"] != "No snapshots available yet" {
			t.Errorf("none: %v", v)
		}
		code, body, head, err := n.do("127.0.0.1", "8001", newGet("/api/v1/snapshot/10800"))
		if err != nil || code != 200 || head.Get("Content-Type") != "application/octet-stream" || head.Get("Content-Disposition") != `attachment; filename="snapshot_10800.bin"` {
			t.Errorf("download: %d %v %v", code, head, err)
		}
		man := n.json("/api/v1/snapshot/10800/manifest")
		_, chunk, _, _ := n.do("127.0.0.1", "8001", newGet("/api/v1/snapshot/10800/chunk/1"))
		sum := sha3.Sum256([]byte(chunk))
		if man["chunks"].([]any)[1] != hex.EncodeToString(sum[:]) || !strings.HasSuffix(body, chunk) {
			t.Error("chunk 1 is not what the manifest and the download say")
		}
		if v := n.json("/api/v1/snapshot/3600"); v["error"] != "Snapshot not found" {
			t.Errorf("pruned snapshot: %v", v)
		}
		arch := n.json("/api/v1/archive")
		if arch["enabled"] != true || arch["next_epoch"].(float64) != 1 || len(arch["segments"].([]any)) != 1 {
			t.Fatalf("archive: %v", arch)
		}
		seg := arch["segments"].([]any)[0].(map[string]any)
		shape(t, "segment", seg, "epoch:n first_height:n last_height:n blocks:n missing:a macroblocks:n macroblocks_unsigned:n bytes:n sha3:s")
		_, body, head, _ = n.do("127.0.0.1", "8001", newGet("/api/v1/archive/segment/0"))
		sum = sha3.Sum256([]byte(body))
		if head.Get("X-Segment-Sha3") != hex.EncodeToString(sum[:]) || seg["sha3"] != head.Get("X-Segment-Sha3") {
			t.Error("segment hash")
		}
	})
}

func TestMetricsPort(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 10)
		n := l.nodes[l.ids[0]]
		_, body, _, err := n.do("127.0.0.1", "8101", newGet("/metrics"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"# TYPE qnet_node_uptime_seconds counter", "\nqnet_blocks_height 3", "\nqnet_network_height 3", "\nqnet_blocks_behind 0\n", "\nqnet_peers_connected 4\n"} {
			if !strings.Contains(body, want) {
				t.Errorf("no %q in\n%s", want, body)
			}
		}
	})
}

func TestBindFailure(t *testing.T) {
	bubble(t, 5, 0, nil, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		tries := 0
		cfg := Config{Env: append(l.env, n.env...), Stdout: n.out, Stderr: n.out, Net: l.hub.Join(n.id),
			Listen: func(string, string) (net.Listener, error) { tries++; return nil, errors.New("address in use") }}
		start := time.Now()
		code := Run(t.Context(), cfg)
		if took := time.Since(start); code != 1 || tries != 10 || took != 18*l.block || n.out.count("[FATAL][RPC] Cannot bind port 8001") != 1 {
			t.Errorf("exit %d after %d tries in %v; want 10 tries, 2 s apart:\n%s", code, tries, took, n.out)
		}
		n.start("QNET_API_PORT=0x") // unparsable: the default port
		l.blocks(1)
		if code, _ := n.get("/health"); code != 200 {
			t.Error("default port")
		}
	})
}
