package restart

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cloudflare/circl/sign/mldsa/mldsa65"

	"github.com/qnetops/qnetops/node"
)

// Certificates checks the signatures of certificates and remembers what it has checked: the members' votes are the same on
// all nodes, and so a second node's certificate costs next to nothing. It may be used from several goroutines.
//
// What is known: a vote is an ML-DSA-65 signature over the text node.VoteText of the checkpoint's hash (facts 2.5), public
// keys come with the proof, and an envelope is ASCII. What is not: the form of the envelope, and whether the node signs
// with a context string. So an envelope is read only if it is the 3309 bytes of a signature in hex or base64 behind any
// number of `name:` prefixes, everything else is unreadable and proves nothing; and the context is taken to be empty, which
// is the standard's default. Where not one signature of a certificate verifies, the reason says that this may be why.
type Certificates struct {
	mu   sync.Mutex
	keys map[string]*mldsa65.PublicKey // by hex
	done map[[sha256.Size]byte]bool
}

// NewCertificates remembers nothing yet.
func NewCertificates() *Certificates {
	return &Certificates{keys: map[string]*mldsa65.PublicKey{}, done: map[[sha256.Size]byte]bool{}}
}

// Verify counts the signatures of a proof. Only committee members count, each once.
func (c *Certificates) Verify(p node.Proof) Signatures {
	var out Signatures
	var reasons []string
	text := node.VoteText(p.Checkpoint.Hash())
	seen := map[string]bool{}
	for i, id := range p.Signers {
		sig := ""
		if i < len(p.Sigs) {
			sig = p.Sigs[i]
		}
		ok, err := false, error(nil)
		switch {
		case seen[id]:
			err = errors.New("a signer is listed twice")
		case !slices.Contains(p.Committee, id):
			err = errors.New("a signer is not in the committee")
		default:
			ok, err = c.vote(p.CommitteePubkeys[id], text, sig)
		}
		seen[id] = true
		switch {
		case err != nil:
			out.Unreadable++
			if !slices.Contains(reasons, err.Error()) {
				reasons = append(reasons, err.Error())
			}
		case ok:
			out.Valid++
		default:
			out.Invalid++
		}
	}
	if out.Invalid > 0 && out.Valid == 0 {
		reasons = append(reasons, "no signature verifies: the node may sign with a context or a text that is not known here")
	}
	out.Reason = strings.Join(reasons, "; ")
	return out
}

// vote checks one signature. An error means that nothing can be said.
func (c *Certificates) vote(key, text, envelope string) (bool, error) {
	sig, err := openEnvelope(envelope)
	if err != nil {
		return false, err
	}
	pub, err := c.key(key)
	if err != nil {
		return false, err
	}
	sum := sha256.New()
	for _, part := range []string{key, text, string(sig)} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	what := [sha256.Size]byte(sum.Sum(nil))
	c.mu.Lock()
	ok, known := c.done[what]
	c.mu.Unlock()
	if known {
		return ok, nil
	}
	ok = mldsa65.Verify(pub, []byte(text), nil, sig)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[what] = ok
	return ok, nil
}

func (c *Certificates) key(text string) (*mldsa65.PublicKey, error) {
	if text == "" {
		return nil, errors.New("a signer's public key is not served")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if pub, ok := c.keys[text]; ok {
		return pub, nil
	}
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != mldsa65.PublicKeySize {
		return nil, fmt.Errorf("a public key is not the hex of %d bytes", mldsa65.PublicKeySize)
	}
	pub := new(mldsa65.PublicKey)
	if err := pub.UnmarshalBinary(raw); err != nil {
		return nil, fmt.Errorf("a public key cannot be read: %w", err)
	}
	c.keys[text] = pub
	return pub, nil
}

// openEnvelope takes the 3309 bytes of a signature out of an envelope.
func openEnvelope(s string) ([]byte, error) {
	if s == "" {
		return nil, errors.New("a signature is not served")
	}
	body := s[strings.LastIndexByte(s, ':')+1:]
	if sig, err := hex.DecodeString(body); err == nil && len(sig) == mldsa65.SignatureSize {
		return sig, nil
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if sig, err := enc.Strict().DecodeString(body); err == nil && len(sig) == mldsa65.SignatureSize && !strings.ContainsAny(body, "\r\n") {
			return sig, nil
		}
	}
	return nil, fmt.Errorf("a signature's envelope is not understood (%d characters, none of the forms with %d bytes inside)", len(body), mldsa65.SignatureSize)
}
