package simnode

import (
	"net/http"
	"time"
)

// Gate is the way into a node's API for a server that stands in for a node: who a caller counts as, and the read_only
// bucket of the rate limit (facts 1.0).
type Gate struct{ limits limiter }

// NewGate makes a gate with the node's default limit; its windows scale with the block time.
func NewGate(block time.Duration) *Gate {
	return &Gate{limiter{s: &settings{block: block, rateLimit: 100}, buckets: map[string]*bucket{}}}
}

// Admit counts a request. When it is refused, retry says for how many seconds.
func (g *Gate) Admit(r *http.Request) (retry int, ok bool) {
	who := callerOf(r, nil)
	if who.exempt {
		return 0, true
	}
	return g.limits.allow(bucketRead, who.ip)
}

// Internal says whether operator methods answer this caller.
func (g *Gate) Internal(r *http.Request) bool { return callerOf(r, nil).internal }

// LimitBody is the body of a refusal by the rate limit, which comes as HTTP 200.
func LimitBody(retry int) map[string]any { return limitBody(retry) }
