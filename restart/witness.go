package restart

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
)

// state is what one host, or one operator by all his hosts, has of a macroblock.
type state int

// The states. Away is a host that did not answer: it says nothing about any macroblock, and asking for a range of it would
// not change that.
const (
	stateUnknown state = iota
	stateHolds
	stateMissing
	stateAway
)

// witness is one host with the operator who read it.
type witness struct {
	operator string
	read     time.Time // when the host was read last; zero: not known
	finding  *HostFinding
	entries  map[uint64]*Macroblock
}

func (w *witness) name() string { return w.operator + "/" + w.finding.ID }

// at says what the host has of a macroblock: held means with hash and digest, because one without the other proves nothing.
// A macroblock above the host's last sealed one is missing; one that is not listed below it is unknown.
func (w *witness) at(index uint64) state {
	mb := w.entries[index]
	switch {
	case mb == nil && w.finding.Sealed != nil && index > *w.finding.Sealed:
		return stateMissing
	case mb == nil && !w.finding.Reachable:
		return stateAway
	case mb == nil:
		return stateUnknown
	case mb.Held == HeldNo:
		return stateMissing
	case mb.Held == HeldYes && mb.Hash != nil && mb.Digest != nil:
		return stateHolds
	}
	return stateUnknown
}

// why says why the host's state of a macroblock is unknown.
func (w *witness) why(index uint64) string {
	mb := w.entries[index]
	switch {
	case mb == nil && !w.finding.Reachable:
		return w.finding.ID + ": not reached: " + cmp.Or(w.finding.Reason, "no reason given")
	case mb == nil:
		return w.finding.ID + ": not in the evidence"
	case mb.Reason != "":
		return w.finding.ID + ": " + mb.Reason
	}
	return w.finding.ID + ": hash, digest or certificate unknown"
}

// certificate says whether the host shows a certificate of full quorum: holds, missing (it shows another one) or unknown.
func (w *witness) certificate(index uint64) state {
	mb := w.entries[index]
	switch {
	case mb == nil || mb.Held == HeldNo:
		return w.at(index)
	case mb.Proof == nil:
		return stateUnknown
	case faultOf(mb.Proof) == "":
		return stateHolds
	}
	return stateMissing
}

// faultOf is why a certificate does not count; "" when it does. The facts are checked against each other once more, because
// an evidence file is somebody's word.
func faultOf(c *Certificate) string {
	switch {
	case c.Fault != "":
		return c.Fault
	case c.Relaxed:
		return node.FaultRecovery
	case c.Committee <= 0 || c.Committee > node.MaxCommittee || c.Quorum != node.QuorumSize(c.Committee):
		return node.FaultQuorum
	}
	distinct := make(map[string]bool, len(c.Signers))
	for _, id := range c.Signers {
		distinct[id] = true
	}
	if len(distinct) != len(c.Signers) || len(distinct) > c.Committee {
		return node.FaultSigners
	}
	if len(distinct) < c.Quorum {
		return node.FaultQuorum
	}
	return ""
}

// party is one operator: his hosts, by id.
type party struct {
	name    string
	present bool // K needs him
	hosts   []*witness
}

// anyOf joins what an operator's hosts say: one that holds is enough; what one does not know, none of the others can deny
// for it; a host that did not answer counts only if none did.
func (p *party) anyOf(say func(*witness) state) state {
	seen := [4]bool{}
	for _, w := range p.hosts {
		seen[say(w)] = true
	}
	switch {
	case seen[stateHolds]:
		return stateHolds
	case seen[stateUnknown], !seen[stateMissing]:
		return stateUnknown
	}
	return stateMissing
}

func (p *party) holds(index uint64) state {
	return p.anyOf(func(w *witness) state { return w.at(index) })
}

func (p *party) certified(index uint64) state {
	return p.anyOf(func(w *witness) state { return w.certificate(index) })
}

// why says why the operator's word on a macroblock is unknown.
func (p *party) why(index uint64) string {
	var parts []string
	for _, w := range p.hosts {
		if mb := w.entries[index]; w.at(index) == stateUnknown || w.at(index) == stateAway || mb != nil && w.certificate(index) == stateUnknown {
			parts = append(parts, w.why(index))
		}
	}
	if len(p.hosts) == 0 {
		return "no host in the evidence"
	}
	return strings.Join(parts, "; ")
}

// nodes is how many different nodes surely stand behind a list of hosts. Two operators may list the same machine: hosts that
// name the same node count once, and a host whose node is not known counts beside others of its own operator only.
func nodes(list []*witness) int {
	ids := map[string]bool{}
	byOperator := map[string]map[string]bool{}
	most := 0
	for _, w := range list {
		key := "host " + w.finding.ID
		if id := w.finding.NodeID; id != "" {
			ids[id] = true
			key = "node " + id
		}
		own := byOperator[w.operator]
		if own == nil {
			own = map[string]bool{}
			byOperator[w.operator] = own
		}
		own[key] = true
		most = max(most, len(own))
	}
	return max(most, len(ids))
}

// ledger is the evidence of all operators, by macroblock.
type ledger struct {
	parties []*party              // by name
	hosts   []*witness            // of all operators, by operator and id
	claims  map[uint64][]*witness // who lists a macroblock, in the order of hosts
	indices []uint64              // listed ones, ascending
	differ  map[uint64]string     // hash or digest: the hosts that list this macroblock differ in it
	// disagreements are all contradictions, lowest first; also those that only the previous hash of the next one shows.
	disagreements []Disagreement
}

// newLedger sorts the evidence; neither the order of operators, hosts nor macroblocks in it matters afterwards. waived are
// the operators without whom K is chosen: what they show still contradicts, it is only not needed.
func newLedger(m Merged, waived map[string]bool) *ledger {
	l := &ledger{claims: map[uint64][]*witness{}, differ: map[uint64]string{}}
	byName := map[string]*party{}
	for i := range m.Operators {
		e := &m.Operators[i].Evidence
		p := byName[e.Operator]
		if p == nil {
			p = &party{name: e.Operator, present: !waived[e.Operator]}
			byName[e.Operator] = p
		}
		for j := range e.Hosts {
			w := newWitness(e.Operator, &e.Hosts[j])
			w.read = m.Operators[i].readAt(w.finding.ID)
			p.hosts = append(p.hosts, w)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p := byName[name]
		slices.SortStableFunc(p.hosts, func(a, b *witness) int { return strings.Compare(a.finding.ID, b.finding.ID) })
		l.parties = append(l.parties, p)
		l.hosts = append(l.hosts, p.hosts...)
	}
	for _, w := range l.hosts {
		for index := range w.entries {
			l.claims[index] = append(l.claims[index], w)
		}
	}
	l.indices = slices.Sorted(maps.Keys(l.claims))
	l.compare()
	return l
}

func newWitness(operator string, f *HostFinding) *witness {
	w := &witness{operator: operator, finding: f, entries: make(map[uint64]*Macroblock, len(f.Macroblocks))}
	for i := range f.Macroblocks {
		w.entries[f.Macroblocks[i].Index] = &f.Macroblocks[i]
	}
	return w
}

// compare finds every contradiction. A previous hash is its node's word for the hash of the macroblock below, so a broken
// link is a disagreement about that one, even where nobody lists it. Where the hashes differ the digests are not compared:
// they are of different macroblocks.
func (l *ledger) compare() {
	for _, index := range l.indices {
		if index > 0 {
			if _, listed := l.claims[index-1]; !listed {
				l.compareHashes(index - 1)
			}
		}
		l.compareHashes(index)
	}
}

func (l *ledger) compareHashes(index uint64) {
	var listed, all, digests tally
	if index == 0 {
		all.add(&node.Hash{}) // there is no macroblock 0: the previous hash of the first one is all zeros (facts 2.1)
	}
	for _, w := range l.claims[index] {
		mb := w.entries[index]
		listed.add(mb.Hash)
		all.add(mb.Hash)
		digests.add(mb.Digest)
	}
	for _, w := range l.claims[index+1] {
		all.add(w.entries[index+1].Previous)
	}
	if all.differ {
		l.disagreements = append(l.disagreements, Disagreement{Index: index, Kind: KindHash, Values: l.values(index, KindHash)})
	}
	switch {
	case listed.differ:
		l.differ[index] = KindHash
	case digests.differ:
		l.differ[index] = KindDigest
		l.disagreements = append(l.disagreements, Disagreement{Index: index, Kind: KindDigest, Values: l.values(index, KindDigest)})
	}
}

// values is what each host says: "operator/host", and "operator/host previous of N" where it says so in the next macroblock.
func (l *ledger) values(index uint64, kind string) map[string]string {
	out := map[string]string{}
	for _, w := range l.claims[index] {
		v := w.entries[index].Hash
		if kind == KindDigest {
			v = w.entries[index].Digest
		}
		if v != nil {
			out[w.name()] = v.String()
		}
	}
	if kind == KindDigest {
		return out
	}
	for _, w := range l.claims[index+1] {
		if p := w.entries[index+1].Previous; p != nil {
			out[fmt.Sprintf("%s previous of %d", w.name(), index+1)] = p.String()
		}
	}
	return out
}

// tally notes whether all known values are the same.
type tally struct {
	first  *node.Hash
	differ bool
}

func (t *tally) add(h *node.Hash) {
	switch {
	case h == nil:
	case t.first == nil:
		t.first = h
	case *t.first != *h:
		t.differ = true
	}
}

// holders are the hosts that hold a macroblock.
func (l *ledger) holders(index uint64) []*witness {
	var out []*witness
	for _, w := range l.claims[index] {
		if w.at(index) == stateHolds {
			out = append(out, w)
		}
	}
	return out
}
