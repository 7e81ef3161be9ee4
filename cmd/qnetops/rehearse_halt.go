package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// halt is a halt with an engine that restarts in the middle and one that
// restarts when all is down, and the release on another image.
func (r *rehearsal) halt(ctx context.Context) {
	const before = 200 // blocks before the height: every node is armed by then
	// Room to arm all nodes, and to look around before the first is.
	height := topOf(r.lab.Status(ctx)) + uint64(2*r.nodes+1)*rolling.ExpectedNode
	r.command(ctx, want{exit: exitRefused, says: []string{"halt_height"}}, "halt", "--height", "1", "--yes")
	middle := r.during(ctx, "the engine of host 002 restarts while the fleet is armed", fmt.Sprintf("%d blocks are left to the height", before),
		func(s lab.Status) bool { return topOf(s)+before >= height }, func() error { return r.lab.Inject("002", lab.FaultEngineRestart, "") })
	r.command(ctx, want{exit: exitDone}, "halt", "--height", fmt.Sprint(height), "--yes")
	middle()
	r.command(ctx, want{exit: exitDone}, "halt", "status")
	r.do(ctx, "every engine restarts, and the fleet stays halted", "no node runs 3 s later", func() string { return r.staysDown(ctx) })
	r.command(ctx, want{exit: exitDone}, "halt", "release", "qnet:v2", "--yes")
	r.healthy(ctx)
}

// staysDown restarts every engine of the halted fleet; nothing may come back.
func (r *rehearsal) staysDown(ctx context.Context) string {
	for _, h := range r.lab.Hosts() {
		if err := r.lab.Inject(h.ID(), lab.FaultEngineRestart, ""); err != nil {
			return err.Error()
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(3 * time.Second):
	}
	var up []string
	for _, n := range r.lab.Status(ctx).Nodes {
		if n.State != "exited" {
			up = append(up, n.ID+" is "+n.State)
		}
	}
	return strings.Join(up, ", ")
}
