package cutover

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/rolling"
)

// depth says how much of a host is read.
type depth bool

const (
	shallow depth = false // the node and its log
	deep    depth = true  // also what lies beside its data directory
)

// readRestart looks at every host at once. It only reads.
func readRestart(ctx context.Context, f *fleet.Fleet, ids []string, v RestartValues) []RestartReading {
	out := make([]RestartReading, len(ids))
	var mu sync.Mutex
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		r := readRestartAt(ctx, f, id, v, deep)
		mu.Lock()
		defer mu.Unlock()
		out[slices.Index(ids, id)] = r
	})
	return out
}

// readRestartAt bounds each part of the look by itself: a host whose log or whose
// directory takes long still has a node that can be asked.
func readRestartAt(ctx context.Context, f *fleet.Fleet, id string, v RestartValues, d depth) RestartReading {
	r := RestartReading{ID: id, Digests: []string{}, OneShot: []string{}, Eligible: []string{}, Asides: []string{},
		Lines: RestartLines{Mismatch: []string{}}}
	var conn *fleet.Conn
	var c host.ContainerFacts
	bounded(ctx, func(ctx context.Context) {
		var err error
		if conn, err = rolling.Reach(ctx, f, id); err == nil {
			c, err = conn.Inspect(ctx)
		}
		r.note(err)
	})
	if r.Why != "" {
		return r
	}
	r.Reached, r.State, r.Policy = true, c.State, c.RestartPolicy
	r.Digests, r.OneShot = append(r.Digests, c.ImageRef), append(r.OneShot, c.OneShot...)
	r.Digests = append(r.Digests, c.ImageDigests...)
	bounded(ctx, func(ctx context.Context) {
		err := r.Lines.read(ctx, conn.Engine().Logs, c.Name, c.LogSince())
		r.note(err)
	})
	if d == deep {
		bounded(ctx, func(ctx context.Context) { r.asides(ctx, conn) })
	}
	if r.runs() {
		bounded(ctx, func(ctx context.Context) { r.node(ctx, conn.Node(), v) })
	}
	return r
}

// bounded runs one look that must not keep the others waiting.
func bounded(ctx context.Context, fn func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	fn(ctx)
}

func (r *RestartReading) note(err error) {
	if err != nil && r.Why == "" {
		r.Why = err.Error()
	}
}

// asides needs the agent; without it nothing is said of what lies beside the data.
func (r *RestartReading) asides(ctx context.Context, conn *fleet.Conn) {
	agent, err := conn.Agent(ctx)
	if err != nil {
		return
	}
	if inv, err := agent.Data(ctx, host.DataRequest{Container: conn.Host().Container}); err == nil {
		r.Asides = inv.Asides
	}
}

// node asks the node itself. Macroblock K is what every node of the new chain has;
// that one is missing is an answer, that it cannot be read is none.
func (r *RestartReading) node(ctx context.Context, n *node.Client, v RestartValues) {
	if p, err := n.Position(ctx); err == nil {
		r.Height, r.Sealed = &p.Height, &p.LastSealed
	} else {
		r.note(err)
	}
	if h, err := n.NodeHealth(ctx); err == nil {
		r.NodeID = h.NodeID
	}
	hash, missing, err := hashAt(ctx, n, v.K())
	r.HashK, r.NoK = hash, missing
	r.note(err)
	if r.Sealed == nil || *r.Sealed <= v.K() {
		return
	}
	r.Eligible, r.EligibleKnown = eligibleOf(ctx, n, v.K()+1)
}

func hashAt(ctx context.Context, n *node.Client, index uint64) (hash *node.Hash, missing bool, err error) {
	mb, err := n.Macroblock(ctx, index)
	var none *node.NotFoundError
	if errors.As(err, &none) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	h := mb.Hash()
	return &h, false, nil
}

// eligibleOf reads the eligible set of a macroblock from a certificate that holds
// by itself: the set is bound by what was certified (facts 2.6).
func eligibleOf(ctx context.Context, n *node.Client, index uint64) ([]string, bool) {
	mb, err := n.Macroblock(ctx, index)
	if err != nil {
		return []string{}, false
	}
	proof, err := n.Proof(ctx, index)
	if err != nil || proof.Check(&mb) != nil {
		return []string{}, false
	}
	set, err := node.DecodeEligible(proof.EligibleRaw)
	if err != nil {
		return []string{}, false
	}
	out := []string{}
	for _, p := range set {
		out = append(out, p.NodeID)
	}
	return out, true
}

// commonSealed is the newest macroblock that all nodes which have sealed above K
// share; 0: none. One that has not got above K shows nothing of the new chain: with
// it the others would be compared at K, where a fork above K does not show.
func commonSealed(readings []RestartReading, k uint64) (common uint64) {
	for _, r := range readings {
		if r.Sealed != nil && *r.Sealed > k && (common == 0 || *r.Sealed < common) {
			common = *r.Sealed
		}
	}
	return common
}

// compareSealed fills in the hashes of the newest common macroblock above K, and
// says which that is; 0: none.
func compareSealed(ctx context.Context, f *fleet.Fleet, readings []RestartReading, k uint64) uint64 {
	common := commonSealed(readings, k)
	if common == 0 {
		return 0
	}
	var ids []string
	for _, r := range readings {
		ids = append(ids, r.ID)
	}
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		i := slices.Index(ids, id)
		if s := readings[i].Sealed; s != nil && *s >= common {
			readings[i].Common = hashOn(ctx, f, id, common) // each fills in its own
		}
	})
	return common
}

// hashOn is a macroblock's hash as a host's node shows it; nil: it does not.
func hashOn(ctx context.Context, f *fleet.Fleet, id string, index uint64) *node.Hash {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return nil
	}
	h, _, err := hashAt(ctx, conn.Node(), index)
	if err != nil {
		return nil
	}
	return h
}
