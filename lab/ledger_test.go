package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/node"
)

// through is an HTTP client whose connections are channels of an SSH connection.
func through(c *ssh.Client, network, address string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return c.Dial(network, address) }}}
}

func stalled(t *testing.T, macroblocks uint64) *ledger.Ledger {
	t.Helper()
	led, err := ledger.New(ledger.Config{Seed: 11, Macroblocks: macroblocks, Members: 6, Stalled: time.Now().Add(-3 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return led
}

// TestLedgerHosts: two operators' labs share one stalled chain; its nodes are read through SSH as any other, have their
// own faults and a log, and stop and start with their containers.
func TestLedgerHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		led := stalled(t, 300)
		labs := make([]*Lab, 2)
		for k := range labs {
			labs[k] = up(t, Config{Nodes: 3, Seed: int64(k), Ledger: func(i int) *ledger.Node {
				return led.Node(ledger.NodeConfig{ID: led.Members()[3*k+i-1], Build: BuildID("v1")})
			}})
		}
		synctest.Wait()
		client := func(l *Lab, id string) *node.Client {
			return &node.Client{Base: "http://127.0.0.1:8001", HTTP: through(connect(t, l, id), "tcp", "127.0.0.1:8001")}
		}
		a, b := client(labs[0], "002"), client(labs[1], "003")
		one, err := a.Macroblock(t.Context(), 300)
		two, err2 := b.Macroblock(t.Context(), 300)
		if err != nil || err2 != nil || one.Hash() != two.Hash() {
			t.Errorf("two operators' nodes of one chain: %v %v", err, err2)
		}
		info, err := b.NodeInfo(t.Context())
		h, _ := labs[1].Host("003")
		if err != nil || info.NodeID != led.Members()[5] || h.NodeID() != info.NodeID || h.Ledger().ID() != info.NodeID {
			t.Errorf("node %+v: %v", info, err)
		}
		if err := labs[1].Inject("003", "fork", "300:x"); err != nil {
			t.Fatal(err)
		}
		if two, err = b.Macroblock(t.Context(), 300); err != nil || one.Hash() == two.Hash() {
			t.Errorf("forked and yet equal: %v", err)
		}
		if err := labs[1].Inject("003", "mute", ""); err == nil || !strings.Contains(err.Error(), "bad-seal") {
			t.Errorf("a fault of another kind of node: %v", err)
		}
		if err := labs[1].Clear("003", "fork"); err != nil {
			t.Fatal(err)
		}
		if two, err = b.Macroblock(t.Context(), 300); err != nil || one.Hash() != two.Hash() {
			t.Errorf("after the fork was cleared: %v", err)
		}
		if err := labs[0].Inject("002", "stop", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Healthz(t.Context()); err == nil {
			t.Error("a stopped node answers")
		}
		if err := labs[0].Clear("002", ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if z, err := a.Healthz(t.Context()); err != nil || z.Build != BuildID("v1") || z.Height != led.Height() {
			t.Errorf("a node that was started again: %+v, %v", z, err)
		}
		engine := through(connect(t, labs[0], "002"), "unix", "/var/run/docker.sock")
		resp, err := engine.Get("http://docker/v1.41/containers/qnet-genesis-002/logs?stdout=1&stderr=1")
		if err != nil {
			t.Fatal(err)
		}
		log, _ := io.ReadAll(resp.Body)
		if n := strings.Count(string(log), "macroblock_sealed window=300 "); n != 2 {
			t.Errorf("the last seal is %d times in the log of two lives:\n%s", n, log)
		}
		clean(t, labs[0])
		clean(t, labs[1])
	})
}

// shapeDiffers compares two JSON values by fields and types. An empty list and a null say nothing.
func shapeDiffers(at string, a, b any) string {
	switch x := a.(type) {
	case nil:
		return ""
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok && b != nil {
			return fmt.Sprintf("%s: an object and %T", at, b)
		}
		if at == ".committee_pubkeys" || b == nil { // its fields are identities
			return ""
		}
		if ka, kb := slices.Sorted(maps.Keys(x)), slices.Sorted(maps.Keys(y)); !slices.Equal(ka, kb) {
			return fmt.Sprintf("%s: fields %v and %v", at, ka, kb)
		}
		for k := range x {
			if d := shapeDiffers(at+"."+k, x[k], y[k]); d != "" {
				return d
			}
		}
	case []any:
		y, ok := b.([]any)
		if !ok && b != nil {
			return fmt.Sprintf("%s: a list and %T", at, b)
		}
		if len(x) > 0 && len(y) > 0 {
			return shapeDiffers(at+"[]", x[0], y[0])
		}
	default:
		if b != nil && fmt.Sprintf("%T", a) != fmt.Sprintf("%T", b) {
			return fmt.Sprintf("%s: %T and %T", at, a, b)
		}
	}
	return ""
}

// TestLedgerAnswersAsTheNodeDoes: status, kind and shape of each answer are those of the simulated node.
func TestLedgerAnswersAsTheNodeDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		led := stalled(t, 162)
		l := up(t, Config{Nodes: 2, Seed: 12, History: 14_580, Host: func(_ int, h *HostSpec) { h.Env = append(h.Env, "QNET_ARCHIVE=1") },
			Ledger: func(i int) *ledger.Node {
				if i == 1 {
					return nil
				}
				return led.Node(ledger.NodeConfig{ID: "genesis_node_002", Archive: true})
			}})
		time.Sleep(5 * time.Second)
		ask := func(id, method, path, body string) (int, string, any) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8001"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := through(connect(t, l, id), "tcp", "127.0.0.1:8001").Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var v any
			_ = json.Unmarshal(raw, &v) // not all answers are JSON
			return resp.StatusCode, resp.Header.Get("Content-Type"), v
		}
		call := func(method string) [3]string {
			return [3]string{"POST", "/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{},"id":1}`, method)}
		}
		requests := [][3]string{call("node_getInfo"), call("node_recoveryStatus"), call("nothing"), {"POST", "/rpc", "{}"}, {"POST", "/", "{}"}}
		for _, path := range []string{"/healthz", "/health", "/api/v1/node/health", "/api/v1/debug/consensus-position", "/api/v1/producer/status",
			"/api/v1/microblock/14500", "/api/v1/microblock/99999", "/api/v1/macroblock/3", "/api/v1/macroblock/9999", "/api/v1/macroblock/x", "/api/v1/macroblock/0",
			"/api/v1/macroblock/3/proof", "/api/v1/macroblock/9999/proof", "/api/v1/snapshot/latest", "/api/v1/snapshot/latest?max_height=5",
			"/api/v1/snapshot/latest?max_height=x", "/api/v1/snapshot/90", "/api/v1/snapshot/91", "/api/v1/snapshot/90/manifest", "/api/v1/snapshot/91/manifest",
			"/api/v1/snapshot/90/chunk/1", "/api/v1/snapshot/90/chunk/2", "/api/v1/archive", "/api/v1/archive/segment/0", "/api/v1/archive/segment/7", "/nothing"} {
			requests = append(requests, [3]string{"GET", path, ""})
		}
		for _, r := range requests {
			code, kind, want := ask("001", r[0], r[1], r[2])
			code2, kind2, got := ask("002", r[0], r[1], r[2])
			if d := shapeDiffers("", want, got); code != code2 || (kind != kind2 && r[1] != "/nothing") || d != "" {
				t.Errorf("%s %s %s: %d %s and %d %s: %s", r[0], r[1], r[2], code, kind, code2, kind2, d)
			}
		}
	})
}
