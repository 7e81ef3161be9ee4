package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/qnetops/qnetops/node"
)

// TestDecreeIsHandedOverOnce: accepted, refused in the node's words, not sent and
// in doubt are told apart, and what was accepted is not sent again.
func TestDecreeIsHandedOverOnce(t *testing.T) {
	for name, c := range map[string]struct {
		answer string // of the node; "" breaks the connection
		port   int
		posts  int // after two requests
		ok     func(DecreeAnswer, error) bool
	}{
		"accepted": {`"result":{"accepted":true,"seq":7,"target_height":900}`, 8001, 1,
			func(a DecreeAnswer, err error) bool { return err == nil && a.Accepted }},
		"refused": {`"error":{"code":-32000,"message":"decree signature quorum not met"}`, 8001, 2,
			func(a DecreeAnswer, err error) bool {
				return err == nil && !a.Accepted && a.Refused == "decree signature quorum not met"
			}},
		"in doubt": {"", 8001, 2, func(_ DecreeAnswer, err error) bool { return errors.Is(err, ErrNodeDoubt) }},
		"not sent": {"", 8002, 0, func(_ DecreeAnswer, err error) bool { return isCode(err, CodeNodeAway) }},
		"bad port": {"", 0, 0, func(_ DecreeAnswer, err error) bool { return isCode(err, CodeBadRequest) }},
	} {
		t.Run(name, func(t *testing.T) {
			posts := 0
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				posts++
				if c.answer == "" {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,%s}`, c.answer)
			})}
			go func() { _ = srv.Serve(l) }()
			defer srv.Close()
			cfg := Config{Root: t.TempDir(), DialNode: func(ctx context.Context, port int) (net.Conn, error) {
				if port != 8001 {
					return nil, syscall.ECONNREFUSED
				}
				return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
			}}
			ops := newOps(cfg)
			req := DecreeRequest{Container: nodeName, Port: c.port, Seq: 7, Target: 900, Sigs: []node.DecreeSig{{NodeID: "genesis_node_001", Sig: "41"}}}
			for range 2 {
				log, err := cfg.openTx("decree-1", nodeName, txDecree, byAgent)
				if err != nil {
					t.Fatal(err)
				}
				a, err := ops.decree(t.Context(), req, log)
				log.close()
				if !c.ok(a, err) {
					t.Errorf("%+v %v", a, err)
				}
			}
			if posts != c.posts {
				t.Errorf("posted %d times, want %d", posts, c.posts)
			}
		})
	}
}

// TestDecreeIsFenced: it is a change like any other.
func TestDecreeIsFenced(t *testing.T) {
	bubble(t, func(r *rig) {
		newer := claim1
		newer.Epoch++
		if _, err := r.client.Writer(newer).TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		_, err := r.w.Decree(r.ctx, DecreeRequest{Container: nodeName, Port: 8001, Seq: 1, Target: 30, Sigs: []node.DecreeSig{{NodeID: "x", Sig: "41"}}})
		var fenced *FencedError
		if !errors.As(err, &fenced) || !strings.Contains(err.Error(), "fenced") {
			t.Errorf("%v", err)
		}
	})
}
