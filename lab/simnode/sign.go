package simnode

import (
	"encoding/base64"
	"encoding/hex"
	"sync"

	"github.com/cloudflare/circl/sign/mldsa/mldsa65"
	"golang.org/x/crypto/sha3"

	"github.com/qnetops/qnetops/node"
)

// There are two kinds of signature in the lab. What nodes say to each other (votes on their way, decrees) carries a
// cheap envelope that whoever knows an id can make: nobody outside sees it, and checking real signatures of a hundred
// nodes would measure the lab. What a node serves as a certificate carries ML-DSA-65 signatures that verify with the
// keys it serves; they are made when they are asked for, by the node that is asked, because every key follows from its
// id. Both are ASCII envelopes, as the real ones are, and deterministic.
const (
	cheapPrefix = "labsig1:"
	votePrefix  = "labsig2:"
)

// sign makes node id's cheap signature of a text.
func sign(id, text string) string {
	sum := sha3.Sum256([]byte("qnetops-lab-signature\x00" + id + "\x00" + text))
	return cheapPrefix + base64.StdEncoding.EncodeToString(sum[:])
}

// verify says whether sig is node id's cheap signature of a text.
func verify(id, text, sig string) bool { return sig == sign(id, text) }

// Bounds of what a Signer remembers. An expanded key takes 64 KiB and a signature 4.4 KB, so a full memory takes 40 MB,
// which only a committee of hundreds fills.
const (
	keysKept = 64
	sigsKept = 8192
)

// Signer makes the ML-DSA-65 signatures and public keys of any identity. It remembers what it made, so that all nodes of
// a lab that share one pay for a signature once. Its methods may be called from any goroutine.
type Signer struct {
	mu   sync.Mutex
	keys map[string]*mldsa65.PrivateKey
	pubs map[string]string
	sigs map[voteOf]string
}

type voteOf struct {
	id         string
	checkpoint node.Hash
}

// NewSigner makes a signer that remembers nothing yet.
func NewSigner() *Signer {
	return &Signer{keys: map[string]*mldsa65.PrivateKey{}, pubs: map[string]string{}, sigs: map[voteOf]string{}}
}

// Vote is id's signature of a checkpoint: an ASCII envelope with the base64 of the 3309 bytes over node.VoteText.
func (s *Signer) Vote(id string, checkpoint node.Hash) string {
	v := voteOf{id, checkpoint}
	s.mu.Lock()
	sig, known := s.sigs[v]
	s.mu.Unlock()
	if known {
		return sig
	}
	raw := make([]byte, mldsa65.SignatureSize)
	if mldsa65.SignTo(s.key(id), []byte(node.VoteText(checkpoint)), nil, false, raw) != nil {
		return "" // only a context of more than 255 bytes fails, and there is none
	}
	sig = votePrefix + base64.StdEncoding.EncodeToString(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sigs) >= sigsKept {
		clear(s.sigs)
	}
	s.sigs[v] = sig
	return sig
}

// PublicKey is id's public key, 1952 bytes in hex.
func (s *Signer) PublicKey(id string) string {
	s.mu.Lock()
	pub, known := s.pubs[id]
	s.mu.Unlock()
	if !known {
		s.key(id)
		s.mu.Lock()
		pub = s.pubs[id]
		s.mu.Unlock()
	}
	return pub
}

// key derives id's key pair; the first few private keys are kept.
func (s *Signer) key(id string) *mldsa65.PrivateKey {
	s.mu.Lock()
	key := s.keys[id]
	s.mu.Unlock()
	if key != nil {
		return key
	}
	seed := sha3.Sum256([]byte("qnetops-lab-key\x00" + id))
	pub, key := mldsa65.NewKeyFromSeed(&seed)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pubs[id] = hex.EncodeToString(pub.Bytes())
	if len(s.keys) < keysKept {
		s.keys[id] = key
	}
	return key
}
