package simnode

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/cloudflare/circl/sign/mldsa/mldsa65"

	"github.com/qnetops/qnetops/node"
)

// verifies checks a served signature with a served key, as a tool does that knows neither's maker.
func verifies(key, sig string, checkpoint node.Hash) bool {
	_, text, found := strings.Cut(sig, ":")
	rawKey, err := hex.DecodeString(key)
	rawSig, err2 := base64.StdEncoding.DecodeString(text)
	var pub mldsa65.PublicKey
	if !found || err != nil || err2 != nil || pub.UnmarshalBinary(rawKey) != nil {
		return false
	}
	return mldsa65.Verify(&pub, []byte(node.VoteText(checkpoint)), nil, rawSig)
}

// TestServedSignaturesVerify: the certificates of pre-made and of live macroblocks carry ML-DSA-65 signatures of their
// checkpoints, each by its own signer, and two nodes serve the same signature of one vote.
func TestServedSignaturesVerify(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 200)
		votes := map[string]string{} // signer and checkpoint -> signature
		again := 0
		for _, id := range l.ids[:3] {
			c := l.nodes[id].client()
			pos, err := c.Position(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range []uint64{1, pos.LastSealed} {
				p, err := c.Proof(t.Context(), i)
				if err != nil {
					t.Fatalf("%s: proof %d: %v", id, i, err)
				}
				hash := p.Checkpoint.Hash()
				for k, signer := range p.Signers {
					if !verifies(p.CommitteePubkeys[signer], p.Sigs[k], hash) {
						t.Errorf("%s: signature of %s under macroblock %d does not verify", id, signer, i)
					}
					if other := p.Signers[(k+1)%len(p.Signers)]; verifies(p.CommitteePubkeys[other], p.Sigs[k], hash) {
						t.Errorf("%s: signature of %s verifies as one of %s", id, signer, other)
					}
					vote := signer + hash.String()
					if old, known := votes[vote]; known {
						again++
						if old != p.Sigs[k] {
							t.Errorf("two signatures of %s under macroblock %d", signer, i)
						}
					}
					votes[vote] = p.Sigs[k]
				}
			}
		}
		if again == 0 {
			t.Error("no vote was seen on two nodes")
		}
	})
}

// TestSignerForgets: a full memory changes no signature.
func TestSignerForgets(t *testing.T) {
	s := NewSigner()
	first := s.Vote("genesis_node_001", node.Hash{1})
	for i := range sigsKept {
		s.sigs[voteOf{"filler", node.Hash{byte(i), byte(i >> 8), 2}}] = ""
	}
	s.Vote("genesis_node_002", node.Hash{1})
	if len(s.sigs) != 1 {
		t.Errorf("%d signatures kept", len(s.sigs))
	}
	if s.Vote("genesis_node_001", node.Hash{1}) != first {
		t.Error("another signature the second time")
	}
}

func BenchmarkVote(b *testing.B) {
	s := NewSigner()
	var h node.Hash
	for b.Loop() {
		h[0]++
		h[1] += h[0] >> 7
		s.Vote("genesis_node_001", h)
		clear(s.sigs)
	}
}
