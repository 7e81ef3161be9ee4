package cutover

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// chainWatch sees a chain that was started again go on: blocks above where it
// stood, then a new seal.
type chainWatch struct {
	fleet *fleet.Fleet

	mu   sync.Mutex
	seen *Chain
}

// stepStand is where the journal keeps what the chain is measured against, so that
// another process asks for the same.
const stepStand = "fleet/stand"

// stand is where the chain stood when its nodes had come up.
type stand struct {
	Height uint64 `json:"height"`
	Sealed uint64 `json:"sealed"`
}

func (w *chainWatch) report() *Chain {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// positions reads where every host's node stands; one that does not answer is left
// out.
func (w *chainWatch) positions(ctx context.Context, ids []string) map[string]node.Position {
	var mu sync.Mutex
	out := map[string]node.Position{}
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		ctx, cancel := context.WithTimeout(ctx, max(3*w.fleet.Inventory().Block, 2*time.Second))
		defer cancel()
		conn, err := rolling.Reach(ctx, w.fleet, id)
		if err != nil {
			return
		}
		if pos, err := conn.Node().Position(ctx); err == nil {
			mu.Lock()
			defer mu.Unlock()
			out[id] = pos
		}
	})
	return out
}

// stood notes once where the chain stands.
func (w *chainWatch) stood(ctx context.Context, r *Run, ids []string) (stand, error) {
	var s stand
	if raw := r.Result(ctx, stepStand); raw != nil && json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	all := w.positions(ctx, ids)
	if len(all) == 0 {
		return s, &rolling.StoppedError{Operation: r.Op.ID(), Reason: "no node answers, so nobody knows where the chain stands"}
	}
	for _, pos := range all {
		s.Height, s.Sealed = max(s.Height, pos.Height), max(s.Sealed, pos.LastSealed)
	}
	return s, r.Record(ctx, stepStand, "note where the chain stands", s)
}

// run waits for blocks and a new seal, and returns the error that tells which of
// the two did not come. after is what the chain was started again after.
func (w *chainWatch) run(ctx context.Context, r *Run, ids []string, after string) error {
	from, err := w.stood(ctx, r, ids)
	if err != nil {
		return err
	}
	if err := w.forked(ctx, r, ids); err != nil {
		return err
	}
	block := w.fleet.Inventory().Block
	p := &pulse{block: block, need: min(2, len(ids)), chain: Chain{FromHeight: from.Height, FromSealed: from.Sealed}}
	for {
		var heights, seals []uint64
		for _, pos := range w.positions(ctx, ids) {
			heights, seals = append(heights, pos.Height), append(seals, pos.LastSealed)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c := p.feed(time.Now(), heights, seals)
		w.mu.Lock()
		w.seen = &c
		w.mu.Unlock()
		state := observe.Unknown
		if c.Verdict == ChainSealing {
			state = observe.Pass
		}
		r.Say(rolling.Event{Kind: rolling.KindWait, Name: "chain", State: string(state), Text: c.Text})
		switch c.Verdict {
		case ChainSealing:
			return w.forked(ctx, r, ids)
		case ChainWaiting:
		default:
			return w.stuck(ctx, r, ids, c, after)
		}
		if !wait(ctx, max(block, leastPoll)) {
			return ctx.Err()
		}
	}
}

// forked compares the tips of the nodes that take part: one that was left on the old
// side differs, and is no reason to hold the others.
func (w *chainWatch) forked(ctx context.Context, r *Run, ids []string) error {
	view, err := observe.Observe(ctx, w.fleet, observe.Options{})
	if err != nil || !slices.ContainsFunc(view.Nodes, func(n observe.NodeView) bool {
		return n.Verdict == observe.Fork && slices.Contains(ids, n.ID)
	}) {
		return err
	}
	return &rolling.StoppedError{Operation: r.Op.ID(), Reason: fmt.Sprintf("the nodes hold different blocks: %v", view.Reasons),
		Next: "qnetops status names the odd ones; " + closeHint(r)}
}

func closeHint(r *Run) string {
	return fmt.Sprintf("qnetops resume %s looks again; qnetops abort %s --waive point_of_no_return=REASON closes the "+
		"operation as it stands", r.Op.ID(), r.Op.ID())
}

// stuck is the error of a chain that does not go on, with what the nodes' logs say
// of it and what helps.
func (w *chainWatch) stuck(ctx context.Context, r *Run, ids []string, c Chain, after string) error {
	seen := newOmens()
	var mu sync.Mutex
	sights := lookAll(ctx, w.fleet, ids)
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		lines, err := runLines(ctx, w.fleet, id, sights[id].Since)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, l := range lines {
			seen.see(id, l)
		}
	})
	reason := "after " + after + " " + c.Text
	if omen := seen.String(); omen != "" {
		reason += "; the logs: " + omen
	}
	return &rolling.StoppedError{Operation: r.Op.ID(), Reason: reason, Next: nextOf(c.Verdict, seen) + "; " + closeHint(r)}
}

// nextOf is the step that helps a chain that does not go on.
func nextOf(verdict string, seen omens) string {
	switch {
	case verdict == ChainSilent && len(seen.signed)+len(seen.mark) > 0:
		return "the nodes hold back because of what they signed before: close this operation, then qnetops rollback " +
			"--to-last-sealed once more, " +
			"which lowers every signing mark to the height it ends at"
	case verdict == ChainSilent:
		return "see in qnetops status whether enough nodes are up and hear each other; a node that is down or isolated comes first"
	case verdict == ChainUnsealed:
		return "stop the fleet before it is further ahead: nothing of these blocks will be sealed. If a node holds a certified " +
			"point above the target, " +
			"rollback --to-last-sealed on every node brings them together; if that has been done, the chain restarts from a " +
			"macroblock (qnetops restart)"
	}
	return "see in qnetops status why blocks come slowly (failovers, nodes that are down)"
}
