package node

import (
	"context"
	"encoding/hex"
	"fmt"
)

// DecreeSig is one genesis node's signature over a recovery decree: the hex of the
// ASCII signature string over RDCR:{genesis_hash}:{seq}:{target_height} (facts 1.18).
type DecreeSig struct {
	NodeID string `json:"node_id"`
	Sig    string `json:"sig"`
}

// maxDecreeSig bounds the hex of a signature: an envelope of some kilobytes.
const maxDecreeSig = 64 << 10

// CheckForm says what is wrong with the form of a signature: the node drops a
// malformed one without a word, so that a typing error reads as a missing quorum.
// Only the node can tell whether the signature is true.
func (s DecreeSig) CheckForm() error {
	raw, err := hex.DecodeString(s.Sig)
	switch {
	case s.NodeID == "":
		return fmt.Errorf("signature without a node_id")
	case s.Sig == "":
		return fmt.Errorf("signature of %s is empty", clip(s.NodeID))
	case len(s.Sig) > maxDecreeSig:
		return fmt.Errorf("signature of %s is longer than %d characters", clip(s.NodeID), maxDecreeSig)
	case err != nil:
		return fmt.Errorf("signature of %s is not hex", clip(s.NodeID))
	}
	for _, b := range raw {
		if b <= ' ' || b > '~' {
			return fmt.Errorf("signature of %s is not the hex of an ASCII text", clip(s.NodeID))
		}
	}
	return nil
}

// decreeParams is what both decree methods take; heights in blocks.
type decreeParams struct {
	Seq    uint64      `json:"seq"`
	Target uint64      `json:"target_height"`
	Sigs   []DecreeSig `json:"sigs,omitempty"`
}

// DecreeEndorse has the node sign a decree with its consensus key. Nothing happens
// to the chain by it, but whoever holds a quorum of such signatures can prune it.
// Refusals are *RPCError.
func (c *Client) DecreeEndorse(ctx context.Context, seq, target uint64) (DecreeSig, error) {
	var v DecreeSig
	if err := c.RPC(ctx, "node_decreeEndorse", decreeParams{Seq: seq, Target: target}, &v); err != nil {
		return DecreeSig{}, err
	}
	if err := v.CheckForm(); err != nil {
		return DecreeSig{}, &AnswerError{"/rpc", "node_decreeEndorse: " + err.Error(), 200}
	}
	return v, nil
}

// DecreeSubmit hands a decree to the node, which gossips it and, three seconds
// later, prunes and exits. It must not be repeated blindly. A refusal is an
// *RPCError; any other error leaves open whether the node took it.
func (c *Client) DecreeSubmit(ctx context.Context, seq, target uint64, sigs []DecreeSig) error {
	var v struct {
		Accepted bool   `json:"accepted"`
		Seq      uint64 `json:"seq"`
		Target   uint64 `json:"target_height"`
	}
	if err := c.RPC(ctx, "node_decreeSubmit", decreeParams{seq, target, sigs}, &v); err != nil {
		return err
	}
	if !v.Accepted || v.Seq != seq || v.Target != target {
		return &AnswerError{"/rpc", fmt.Sprintf("node_decreeSubmit: answers accepted=%v for decree %d to height %d", v.Accepted, v.Seq, v.Target), 200}
	}
	return nil
}
