package observe

import (
	"context"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
)

// ReadNode takes one cheap sample of a node: position and /healthz, two requests.
// It gives no verdict, which needs the rest of the fleet.
func ReadNode(ctx context.Context, conn *fleet.Conn, block time.Duration) NodeView {
	return readNode(ctx, conn.Host(), connTarget{conn}, block)
}

func readNode(ctx context.Context, h fleet.Host, t target, block time.Duration) NodeView {
	ctx, cancel := context.WithTimeout(ctx, max(3*block, leastTimeout))
	defer cancel()
	n := &subject{host: h, target: t, seen: NodeView{ID: h.ID, Role: h.Role, Reachable: true, Verdict: StateUnknown}}
	var beside sync.WaitGroup
	beside.Go(func() { n.position(ctx, 0) })
	health, err := t.Node().Healthz(ctx)
	beside.Wait()
	n.healthz(health, err)
	return n.seen
}
