package restart

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// paceBurst is how many requests may go out at once: with those of a whole window after them they stay below RateRequests,
// also when some were held back and come together.
const paceBurst = node.RateRequests/2 - 2*readsAtOnce

// pace keeps one node from being asked more than half of what its read_only bucket allows, once the first paceBurst requests
// are out. The other half is for whoever else watches the node from this address.
type pace struct {
	scale time.Duration // a second of the node
	every time.Duration
	mu    sync.Mutex
	due   time.Time // when the next request would be due had all come evenly
	until time.Time // shut by the node
}

func newPace(block time.Duration) *pace {
	window := time.Duration(int64(node.RateWindow/node.BlockTime) * int64(block))
	return &pace{scale: block, every: window / (node.RateRequests / 2)}
}

// wait blocks until a request may go out.
func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	early := p.due.Add(-(paceBurst - 1) * p.every)
	p.due = p.due.Add(p.every)
	if p.until.After(early) {
		early = p.until
	}
	p.mu.Unlock()
	if d := early.Sub(now); d > 0 && !pause(ctx, d) {
		return ctx.Err()
	}
	return ctx.Err()
}

// limited notes that the node shut the bucket for a while, and says whether it opens again while there is still time.
func (p *pace) limited(ctx context.Context, after time.Duration) bool {
	d := time.Duration(int64(after/time.Second) * int64(p.scale))
	if after <= 0 {
		d = time.Duration(int64(node.RateBlock/node.BlockTime) * int64(p.scale))
	}
	until := time.Now().Add(max(d, p.every))
	if end, ok := ctx.Deadline(); ok && !until.Before(end) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until.After(p.until) {
		p.until = until
	}
	return true
}

// foundError is what this program itself finds wrong, in words that may be published.
type foundError string

func (e foundError) Error() string { return string(e) }

// publicReason says why something is unknown without words of a node, an engine or a server, which may hold anything, and
// without the addresses, users and key files of the operator: evidence is published.
func publicReason(err error) string {
	var (
		limited *node.RateLimitedError
		missing *node.NotFoundError
		proof   *node.ProofError
		fault   *node.ProofFault
		busy    *node.BusyError
		rpc     *node.RPCError
		answer  *node.AnswerError
		found   foundError
	)
	switch {
	case errors.As(err, &found):
		return found.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "no answer in time"
	case errors.As(err, &limited):
		return "the node limits the rate"
	case errors.As(err, &missing):
		return missing.Error()
	case errors.As(err, &proof):
		return proof.Code
	case errors.As(err, &fault):
		return "the certificate does not hold: " + fault.Code
	case errors.As(err, &busy):
		return "the node serves no further snapshot now"
	case errors.As(err, &rpc):
		return "the method answers an error"
	case errors.As(err, &answer):
		return answerReason(answer)
	}
	return linkReason(err)
}

// answerReason keeps the words of this program about an answer, and of the node only those it is known to use.
func answerReason(e *node.AnswerError) string {
	ours := regexp.MustCompile(`^(asked for [0-9]+, got( index)? [0-9]+( height [0-9]+)?|micro_blocks_count [0-9]+, but [0-9]+ hashes|[a-z_.0-9\[\]]+ is (missing|null|not a list)|body is cut off)$`)
	if ours.MatchString(e.Reason) {
		return "answer not usable: " + e.Reason
	}
	if text, ok := strings.CutPrefix(e.Reason, "node reports: "); ok {
		if text == "Failed to get macroblock" || text == "Failed to get snapshot info" {
			return "the node reports: " + text
		}
		return "the node reports an error"
	}
	return "answer not usable"
}

// linkReason is for what goes wrong before a node can answer, and for what this package itself finds impossible.
func linkReason(err error) string {
	var (
		unreachable *fleet.UnreachableError
		key         *fleet.HostKeyError
		auth        *fleet.AuthError
		timeout     *fleet.TimeoutError
		dropped     *fleet.DroppedError
		forward     *fleet.ForwardingError
		engine      *fleet.EngineError
	)
	switch {
	case errors.As(err, &unreachable):
		return "SSH does not reach the host"
	case errors.As(err, &key):
		return "the host key is " + string(key.Fault)
	case errors.As(err, &auth):
		return "SSH login refused"
	case errors.As(err, &timeout):
		return "SSH has no answer in time"
	case errors.As(err, &dropped):
		return "the SSH connection was lost"
	case errors.As(err, &forward):
		return "nothing listens at the node's port, or sshd forbids the way to it"
	case errors.As(err, &engine):
		return "the container engine: " + string(engine.Fault)
	}
	return "could not be read, or cannot be true"
}
