package simnode

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

// client is package node's client for a lab node, as the tool uses it.
func (n *labNode) client() *node.Client {
	return &node.Client{Base: "http://node:8001", MetricsBase: "http://node:8101", HTTP: &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		_, port, _ := net.SplitHostPort(req.URL.Host)
		return n.response("127.0.0.1", port, req)
	})}}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestNodeClientReadsTheLab: package node, written against the facts alone,
// understands each answer of the lab and finds nothing wrong with its proofs.
func TestNodeClientReadsTheLab(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 200)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		digests := map[uint64]node.Hash{}
		for _, id := range l.ids {
			c := l.nodes[id].client()
			pos, err := c.Position(ctx)
			if err != nil || pos.TipHash == nil || pos.RoundNextSlot == nil || *pos.RoundNextSlot != 0 {
				t.Fatalf("%s: position %+v: %v", id, pos, err)
			}
			for i := uint64(1); i <= pos.LastSealed; i++ {
				mb, err := c.Macroblock(ctx, i)
				if err != nil {
					t.Fatalf("%s: macroblock %d: %v", id, i, err)
				}
				p, err := c.Proof(ctx, i)
				if err != nil {
					t.Fatalf("%s: proof %d: %v", id, i, err)
				}
				if err := p.Check(&mb); err != nil || !p.FullQuorum() {
					t.Errorf("%s: %v", id, err)
				}
				digest := p.Fields().DigestV2()
				if old, ok := digests[i]; ok && old != digest {
					t.Errorf("%s: another committee digest of %d", id, i)
				}
				digests[i] = digest
			}
			for name, call := range map[string]func() error{
				"healthz":    func() error { _, err := c.Healthz(ctx); return err },
				"health":     func() error { return c.Health(ctx) },
				"nodeHealth": func() error { _, err := c.NodeHealth(ctx); return err },
				"sync":       func() error { _, err := c.SyncStatus(ctx); return err },
				"height":     func() error { _, err := c.Height(ctx); return err },
				"producer":   func() error { _, err := c.ProducerStatus(ctx); return err },
				"peers":      func() error { _, err := c.Peers(ctx); return err },
				"stats":      func() error { _, err := c.BlocksStats(ctx); return err },
				"snapshot":   func() error { _, err := c.SnapshotLatest(ctx, nil); return err },
				"failovers":  func() error { _, err := c.Failovers(ctx, 0, 10); return err },
				"reputation": func() error { _, err := c.ReputationHistory(ctx, id); return err },
				"archive":    func() error { _, err := c.Archive(ctx); return err },
				"info":       func() error { _, err := c.NodeInfo(ctx); return err },
				"recovery":   func() error { _, err := c.RecoveryStatus(ctx); return err },
				"metrics":    func() error { _, err := c.Metrics(ctx); return err },
			} {
				if err := call(); err != nil {
					t.Errorf("%s: %s: %v", id, name, err)
				}
			}
		}
		c, faults := l.nodes[l.ids[0]].client(), l.nodes[l.ids[0]].faults
		var missing *node.NotFoundError
		if _, err := c.Macroblock(ctx, 999); !errors.As(err, &missing) {
			t.Errorf("a missing macroblock: %v", err)
		}
		_ = faults.Set(FaultStorageError, "")
		if _, err := c.Macroblock(ctx, 1); err == nil || errors.As(err, &missing) {
			t.Errorf("a storage error reads as missing: %v", err)
		}
		faults.Clear()
		_ = faults.Set(FaultRateLimit, "")
		var limited *node.RateLimitedError
		if _, err := c.Position(ctx); !errors.As(err, &limited) || limited.RetryAfter <= 0 {
			t.Errorf("rate limit: %v", err)
		}
	})
}

// TestNodeParserReadsTheLog: package node's log parser finds what it looks for.
func TestNodeParserReadsTheLog(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		n, gone := l.nodes[l.ids[0]], l.nodes[l.ids[4]]
		l.start(l.ids...)
		l.blocks(upBlocks + 100)
		gone.halt()
		l.nodes[l.ids[3]].halt()
		l.blocks(500)
		gone.start()
		l.blocks(200)
		found := map[string]int{}
		for line := range strings.Lines(n.out.String()) {
			p := node.ParseLine(strings.TrimSuffix(line, "\n"))
			if p.Level == "" || p.Module == "" {
				t.Errorf("no level or module in %q", line)
			}
			if s, ok := node.Sealed(p); ok {
				found["sealed"]++
				if want := map[bool]int{true: 4, false: 5}[s.Window <= 2]; s.Signers != want || s.Round != s.Window*3 {
					t.Errorf("%+v from %q", s, line)
				}
			}
			if _, ok := node.Participation(p); ok {
				found["participation"]++
			}
			if _, ok := node.Defer(p); ok {
				found["defer"]++
			}
			if _, ok := node.FailoverMetrics(p); ok {
				found["failover"]++
			}
			if node.BringupComplete(p) {
				found["bringup"]++
			}
			if node.Fatal(p) {
				t.Errorf("fatal: %q", line)
			}
		}
		if found["sealed"] < 2 || found["participation"] < 3 || found["defer"] < 1 || found["failover"] < 1 || found["bringup"] != 1 {
			t.Errorf("found %v in\n%s", found, n.out)
		}
	})
}
