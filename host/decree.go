package host

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/qnetops/qnetops/node"
)

// decreeTime bounds the one request of a decree. It runs on the agent's own time,
// not on the connection's: an answer that nobody waits for is still written down.
const decreeTime = 30 * time.Second

// DecreeRequest hands a recovery decree to the node on this host's loopback, where
// alone the node takes it (facts 1.18). Target is in blocks.
type DecreeRequest struct {
	Container string           `json:"container"` // of the node, for the log
	Port      int              `json:"port"`      // api_port of the host
	Seq       uint64           `json:"seq"`
	Target    uint64           `json:"target"`
	Sigs      []node.DecreeSig `json:"sigs"`
}

// DecreeAnswer is the node's own answer. Refused holds its words; nothing has
// happened then.
type DecreeAnswer struct {
	Accepted bool   `json:"accepted"`
	Refused  string `json:"refused,omitempty"`
}

// decree posts it once. One that this operation has seen accepted here is not
// posted again.
func (h *hostOps) decree(ctx context.Context, req DecreeRequest, log *txLog) (DecreeAnswer, error) {
	if req.Port < 1 || req.Port > 65535 || len(req.Sigs) == 0 || req.Seq == 0 {
		return DecreeAnswer{}, errorf(CodeBadRequest, "", "a decree needs a port, a number and signatures")
	}
	for _, e := range log.entries {
		if e.Tx == txDecree && e.Step == stepDecree && e.State == TxDone {
			return DecreeAnswer{Accepted: true}, nil
		}
	}
	if err := log.add(TxEntry{Step: stepDecree, State: TxIntent, Text: strconv.FormatUint(req.Seq, 10)}); err != nil {
		return DecreeAnswer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, decreeTime)
	defer cancel()
	var sent atomic.Bool // before there is a connection, nothing can have been
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	c := node.Client{Base: "http://127.0.0.1:" + strconv.Itoa(req.Port), HTTP: &http.Client{Transport: h.node}}
	err := c.DecreeSubmit(ctx, req.Seq, req.Target, req.Sigs)
	if err == nil {
		return DecreeAnswer{Accepted: true}, log.add(TxEntry{Step: stepDecree, State: TxDone})
	}
	var (
		refused *node.RPCError
		limited *node.RateLimitedError
	)
	switch {
	case errors.As(err, &refused):
		return DecreeAnswer{Refused: refused.Message}, log.add(TxEntry{Step: stepDecree, State: TxFailed, Text: refused.Message})
	case errors.As(err, &limited), !sent.Load():
		gone := errorf(CodeNodeAway, "is the node up, and is api_port right in hosts.toml", "node did not take the decree: %v", err)
		return DecreeAnswer{}, errors.Join(gone, log.add(TxEntry{Step: stepDecree, State: TxFailed, Text: err.Error()}))
	}
	return DecreeAnswer{}, errorf(CodeNodeDoubt, "look whether the nodes restart", "the decree was sent and its answer is not known: %v", err)
}

// Decree hands a decree to the node of this host. ErrNodeDoubt, a *ConnectionError
// or an ended ctx leave open whether the node took it.
func (w *Writer) Decree(ctx context.Context, req DecreeRequest) (DecreeAnswer, error) {
	var a DecreeAnswer
	err := w.do(ctx, methodDecree, req, &a, nil)
	return a, err
}
