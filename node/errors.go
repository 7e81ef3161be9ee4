package node

import (
	"fmt"
	"time"
)

// RateLimitedError says the node refused to answer for a while. The node sends
// it as HTTP 200, so it must never be read as an answer with zero fields.
type RateLimitedError struct {
	Path       string
	RetryAfter time.Duration // as the node said; 0 when it did not
}

func (e *RateLimitedError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("%s: node limits the rate, retry in %s", e.Path, e.RetryAfter)
	}
	return e.Path + ": node limits the rate"
}

// Hint says how an operator gets out of the limit.
func (e *RateLimitedError) Hint() string {
	return "wait, poll less often, or add the caller to QNET_WHITELIST_IPS on the node"
}

// NotFoundError says the node does not hold what was asked for.
type NotFoundError struct {
	What string
	// Uncertain is true where the node gives the same answer for a storage
	// error: absence is then not proven.
	Uncertain bool
}

func (e *NotFoundError) Error() string {
	if e.Uncertain {
		return e.What + " not found, or not readable"
	}
	return e.What + " not found"
}

// AnswerError is an answer that cannot be trusted: an error body, another shape
// or type than the route has, a value that contradicts itself.
type AnswerError struct {
	Path   string
	Reason string
	Status int // HTTP status
}

func (e *AnswerError) Error() string {
	if e.Status != 0 && e.Status != 200 {
		return fmt.Sprintf("%s: answer not usable (HTTP %d): %s", e.Path, e.Status, e.Reason)
	}
	return fmt.Sprintf("%s: answer not usable: %s", e.Path, e.Reason)
}

// Hint names the usual cause.
func (e *AnswerError) Hint() string {
	return "check that the API port belongs to a QNet node and that no proxy answers in its place"
}

// Codes of ProofError, as the proof route spells them.
const (
	ProofNoQC         = "no_checkpoint_qc"
	ProofQCDecode     = "qc_decode_failed"
	ProofBannedDecode = "banned_decode_failed"
	ProofSigsPruned   = "qc_sigs_pruned"
)

// ProofError says the node holds macroblock Index but serves no proof of it.
type ProofError struct {
	Index uint64
	Code  string
}

func (e *ProofError) Error() string {
	return fmt.Sprintf("proof of macroblock %d: %s", e.Index, e.Code)
}

// Hint says where the proof may still be had.
func (e *ProofError) Hint() string {
	if e.Code == ProofSigsPruned {
		return "ask a node that runs with QNET_ARCHIVE=1, or a younger macroblock"
	}
	return "ask another node"
}

// RPCError is a JSON-RPC error object.
type RPCError struct {
	Method  string
	Code    int
	Message string
}

func (e *RPCError) Error() string {
	return fmt.Sprintf("rpc %s: %s (%d)", e.Method, e.Message, e.Code)
}
