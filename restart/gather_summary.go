package restart

import (
	"maps"
	"slices"

	"github.com/qnetops/qnetops/node"
)

// Summary is what one operator's own evidence says at a glance. It decides nothing.
type Summary struct {
	// Common is the newest macroblock that all hosts hold of which the node could be read; nil where there is none.
	Common        *uint64
	Hosts         []HostSummary
	Disagreements []Disagreement // by Index, hash before digest
	Unreachable   []string
}

// HostSummary is one host at a glance.
type HostSummary struct {
	ID        string
	Reachable bool
	Reason    string
	Sealed    *uint64
	Height    *uint64
	Common    *node.Hash // its hash of the newest common macroblock
	Held      int        // macroblocks
	Missing   int
	Unknown   int
	Faulty    int // held with a certificate that is unknown, relaxed or does not hold
}

// Summarize looks over one file of evidence.
func Summarize(ev Evidence) Summary {
	s := Summary{Hosts: []HostSummary{}, Disagreements: []Disagreement{}, Unreachable: []string{}}
	held, asked := map[uint64]int{}, 0
	hashes, digests := map[uint64]map[string]string{}, map[uint64]map[string]string{}
	said := func(in map[uint64]map[string]string, index uint64, host string, h *node.Hash) {
		if h == nil {
			return
		}
		if in[index] == nil {
			in[index] = map[string]string{}
		}
		in[index][host] = h.String()
	}
	for _, h := range ev.Hosts {
		if !h.Reachable {
			s.Unreachable = append(s.Unreachable, h.ID)
		} else if h.Sealed != nil {
			asked++
		}
		sum := HostSummary{ID: h.ID, Reachable: h.Reachable, Reason: h.Reason, Sealed: h.Sealed, Height: h.Height}
		for _, m := range h.Macroblocks {
			said(hashes, m.Index, ev.Operator+"/"+h.ID, m.Hash)
			said(digests, m.Index, ev.Operator+"/"+h.ID, m.Digest)
			sum.count(m)
			if m.Held == HeldYes && h.Sealed != nil {
				held[m.Index]++
			}
		}
		s.Hosts = append(s.Hosts, sum)
	}
	for i, n := range held {
		if n == asked && (s.Common == nil || i > *s.Common) {
			s.Common = &i
		}
	}
	s.atCommon(ev)
	for _, i := range slices.Sorted(maps.Keys(hashes)) {
		s.disagree(i, "hash", hashes[i])
		s.disagree(i, "digest", digests[i])
	}
	return s
}

func (h *HostSummary) count(m Macroblock) {
	switch m.Held {
	case HeldYes:
		h.Held++
		if m.Proof == nil || m.Proof.Fault != "" {
			h.Faulty++
		}
	case HeldNo:
		h.Missing++
	default:
		h.Unknown++
	}
}

func (s *Summary) atCommon(ev Evidence) {
	if s.Common == nil {
		return
	}
	for i, h := range ev.Hosts {
		for _, m := range h.Macroblocks {
			if m.Index == *s.Common {
				s.Hosts[i].Common = m.Hash
			}
		}
	}
}

func (s *Summary) disagree(index uint64, kind string, values map[string]string) {
	if len(slices.Compact(slices.Sorted(maps.Values(values)))) > 1 {
		s.Disagreements = append(s.Disagreements, Disagreement{Index: index, Kind: kind, Values: values})
	}
}
