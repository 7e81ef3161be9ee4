package restart

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// unverified says why the certificates of K are not verified by signatures; "" when they are: every present operator shows
// one whose valid signatures reach the quorum, and the keys of its signers are named equally by hosts of two operators, or
// by two hosts where there is one operator. A key that one node names for another proves nothing by itself.
func (c *choice) unverified(k uint64) string {
	hosts := map[string][]string{} // by what is amiss
	for _, p := range c.parties {
		notes := map[string]string{} // by host
		proved := !p.present
		for _, w := range p.hosts {
			note := c.unproved(w, k)
			proved = proved || note == ""
			if mb := w.entries[k]; mb != nil && mb.Proof != nil {
				notes[w.name()] = note
			}
		}
		for _, name := range slices.Sorted(maps.Keys(notes)) {
			if !proved {
				hosts[notes[name]] = append(hosts[notes[name]], name)
			}
		}
	}
	var text []string
	for note, names := range hosts {
		text = append(text, strings.Join(names, ", ")+": "+note)
	}
	slices.Sort(text)
	return strings.Join(text, "; ")
}

// unproved says why one host's certificate does not prove itself.
func (c *choice) unproved(w *witness, k uint64) string {
	if w.certificate(k) != stateHolds {
		return "no certificate of full quorum"
	}
	proof := w.entries[k].Proof
	if s := proof.Signatures; s.Valid < proof.Quorum || s.Invalid > 0 {
		note := fmt.Sprintf("%d of %d signatures verified, quorum %d", s.Valid, len(proof.Signers), proof.Quorum)
		if s.Invalid > 0 {
			note += fmt.Sprintf(", %d invalid", s.Invalid)
		}
		if s.Unreadable > 0 {
			note += fmt.Sprintf(", %d unreadable", s.Unreadable)
		}
		if s.Reason != "" {
			note += " (" + s.Reason + ")"
		}
		return note
	}
	var unsure []string
	for _, id := range proof.Signers {
		if !c.keyAgreed(id) {
			unsure = append(unsure, id)
		}
	}
	if len(unsure) > 0 {
		return "the keys of " + strings.Join(unsure, ", ") + " are not named equally by two independent operators"
	}
	return ""
}

// keyAgreed says whether all who name a key for an identity name the same, and enough do.
func (c *choice) keyAgreed(id string) bool {
	var key *node.Hash
	var namers []*witness
	for _, w := range c.hosts {
		named, ok := w.finding.Keys[id]
		if !ok {
			continue
		}
		if key != nil && *key != named {
			return false
		}
		key = &named
		namers = append(namers, w)
	}
	if nodes(namers) < 2 {
		return false
	}
	return len(c.parties) == 1 || slices.ContainsFunc(namers, func(w *witness) bool { return w.operator != namers[0].operator })
}
