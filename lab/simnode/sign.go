package simnode

import (
	"encoding/base64"
	"encoding/hex"

	"golang.org/x/crypto/sha3"
)

// The lab's signatures prove nothing: whoever knows an id can make them. They
// are ASCII envelopes as the real ones are, and everything that signs or
// verifies goes through this file.

const sigPrefix = "labsig1:"

// pubKeyBytes is the size of an ML-DSA-65 public key.
const pubKeyBytes = 1952

// sign makes node id's signature of a text.
func sign(id, text string) string {
	sum := sha3.Sum256([]byte("qnetops-lab-signature\x00" + id + "\x00" + text))
	return sigPrefix + base64.StdEncoding.EncodeToString(sum[:])
}

// verify says whether sig is node id's signature of a text.
func verify(id, text, sig string) bool { return sig == sign(id, text) }

// pubKey is node id's public key in hex.
func pubKey(id string) string {
	key := make([]byte, pubKeyBytes)
	sha3.ShakeSum256(key, []byte("qnetops-lab-public-key\x00"+id))
	return hex.EncodeToString(key)
}
