package node

import (
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/crypto/sha3"
)

// Hash is a 32-byte SHA3-256 value: of a block, a macroblock, a root or a digest.
// Its text form is exactly 64 lower-case hex digits.
type Hash [32]byte

// ParseHash reads the text form. Anything but 64 lower-case hex digits is an
// error: the node writes nothing else, and a hash of another shape compared as
// text would disagree with an equal one.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != 2*len(h) {
		return Hash{}, fmt.Errorf("hash has %d characters, want 64 hex digits", len(s))
	}
	if strings.ContainsAny(s, "ABCDEF") {
		return Hash{}, fmt.Errorf("hash has upper-case digits, want lower case")
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return Hash{}, fmt.Errorf("hash is not hex: %w", err)
	}
	return h, nil
}

// String returns the 64 hex digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Short returns the first 12 hex digits, enough to tell two hashes apart in a table.
func (h Hash) Short() string { return hex.EncodeToString(h[:6]) }

// IsZero reports whether all bytes are zero, which the node uses for "none".
func (h Hash) IsZero() bool { return h == Hash{} }

// MarshalText returns the 64 hex digits.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText wrote; see ParseHash.
func (h *Hash) UnmarshalText(b []byte) error {
	v, err := ParseHash(string(b))
	if err != nil {
		return err
	}
	*h = v
	return nil
}

// preimage builds the bytes that are hashed. Every integer is little-endian.
type preimage struct{ b []byte }

func (p *preimage) str(s string)   { p.b = append(p.b, s...) }
func (p *preimage) bytes(b []byte) { p.b = append(p.b, b...) }
func (p *preimage) byte(b byte)    { p.b = append(p.b, b) }
func (p *preimage) hash(h Hash)    { p.b = append(p.b, h[:]...) }

func (p *preimage) u64(v uint64) {
	p.b = append(p.b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
}

func (p *preimage) u32(v uint32) {
	p.b = append(p.b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

// sum is SHA3-256 of FIPS 202, which is not the older Keccak-256.
func (p *preimage) sum() Hash { return sha3.Sum256(p.b) }
