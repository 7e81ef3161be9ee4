package node

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Producer is one entry of a sealed eligible set. Reputation is in hundredths of
// a percent: 7000 is 70.00 %.
type Producer struct {
	NodeID     string `json:"node_id"`
	Reputation uint32 `json:"reputation"`
}

// EncodeEligible encodes an eligible set as the node stores it: bincode 1.x with
// fixed-width little-endian integers and 64-bit lengths.
func EncodeEligible(list []Producer) []byte {
	var p preimage
	p.u64(uint64(len(list)))
	for _, e := range list {
		p.u64(uint64(len(e.NodeID)))
		p.str(e.NodeID)
		p.u32(e.Reputation)
	}
	return p.b
}

// EncodeStrings encodes a list of ids (the ban list) in the same form.
func EncodeStrings(list []string) []byte {
	var p preimage
	p.u64(uint64(len(list)))
	for _, s := range list {
		p.u64(uint64(len(s)))
		p.str(s)
	}
	return p.b
}

// DecodeEligible reads what EncodeEligible wrote and refuses trailing bytes.
func DecodeEligible(b []byte) ([]Producer, error) {
	r := reader{b: b}
	n := r.count(8 + 4)
	list := make([]Producer, 0, n)
	for range n {
		list = append(list, Producer{NodeID: r.str(), Reputation: r.u32()})
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decoding eligible set: %w", err)
	}
	return list, nil
}

// DecodeStrings reads what EncodeStrings wrote and refuses trailing bytes.
func DecodeStrings(b []byte) ([]string, error) {
	r := reader{b: b}
	n := r.count(8)
	list := make([]string, 0, n)
	for range n {
		list = append(list, r.str())
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decoding list of ids: %w", err)
	}
	return list, nil
}

var errShort = errors.New("bytes end too early")

// reader keeps its first error so that callers read straight through.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.b)) {
		r.err = errShort
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) str() string { return string(r.take(r.u64())) }

// count reads a list length and refuses one the remaining bytes cannot hold, so
// that a hostile length never becomes an allocation.
func (r *reader) count(least uint64) uint64 {
	n := r.u64()
	if r.err == nil && n > uint64(len(r.b))/least {
		r.err = errShort
	}
	if r.err != nil {
		return 0
	}
	return n
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%d bytes left over", len(r.b))
	}
	return r.err
}
