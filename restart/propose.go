package restart

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// ProposeSchema names the document of `restart propose-k`.
const ProposeSchema = "qnetops/propose-k/v1"

// Kinds of a Disagreement.
const (
	KindHash   = "hash"   // of the macroblock
	KindDigest = "digest" // of its committee fields, under the same hash
)

// Words of Proposal.Verified.
const (
	VerifiedSignatures = "signatures"
	VerifiedAgreement  = "agreement"
)

// Codes of Proposal.Stop.
const (
	StopNoEvidence    = "no_evidence"   // of an operator who is not waived
	StopStale         = "stale"         // somebody's evidence was taken before others sealed on
	StopContradiction = "contradiction" // at or below what would be K
	StopUndecided     = "undecided"     // see Needed
	StopNothing       = "nothing"       // no macroblock satisfies the definition
)

// MaxRefused is how many of the newest refused macroblocks Proposal.Refused lists. Only macroblocks that a host shows are
// listed, so files with the usual 64 newest never reach it.
const MaxRefused = 1024

// ProposeOptions narrow the choice.
type ProposeOptions struct {
	Below  uint64   // K < Below; 0: no bound
	Forged uint64   // index of the first forged macroblock, K < Forged; 0: none
	Absent []Absent // operators without whom K is chosen
}

// OptionError is a choice that was asked for in a way that cannot be answered.
type OptionError struct{ What, Do string }

func (e *OptionError) Error() string { return e.What }

// Hint says how to ask instead.
func (e *OptionError) Hint() string { return e.Do }

// Propose chooses K from the evidence alone: no clock, no network, no chance; the order of the input does not matter.
//
// An operator is present if his evidence is asked for (Expected) or given, and he is not waived (Absent). A host holds a
// macroblock if it shows it with hash and digest. K is the greatest index such that
//
//	(a) each present operator holds it: at least one of his hosts does;
//	(b) all hosts of all operators that show a hash of it show the same one, and so for the digest;
//	(c) each present operator shows a certificate of it that is self-consistent, unrelaxed and of full quorum, and no host
//	    of anybody shows a relaxed one;
//	(d) K >= 2; each present operator holds K-1, K-1 satisfies (b), and each previous hash in K is the hash of K-1;
//	(f) hosts of at least two different nodes of present operators hold it, and so for K-1, whose digest is published too;
//	(g) it is below Below and below Forged.
//
// There is no K, and Stop says why,
//
//	(e) if hosts contradict each other at or below that index, in hash, digest or the previous hash of the next one: who
//	    agrees at K and differs below it lies, since a hash commits to everything below;
//	(h) if an operator is expected, gave nothing and is not waived;
//	(i) if a present operator's evidence is older than a macroblock that others show and that could be K (see stale).
//
// Unknown is not agreement: an index above that K, and below the lowest contradiction, which nothing refuses and which is
// not known to satisfy (a) to (f) makes the choice undecided. Then there is no K and Needed says who has to add what, down
// to the newest one of which only the macroblock below it is unknown. A contradiction above K does not stop; it is why what
// lies above is refused.
//
// What a lie of one host can do. Contradicting others (another hash, digest or previous hash, a worse certificate, a
// macroblock that does not exist, a denial) can only take K away or make it older; where the choice was undecided or stopped,
// a denial can settle it on an older one. Two lies can make K newer. Claiming what it lacks (a macroblock, with the hash and
// digest that others show, or a better certificate): then its operator has no state at K. Hiding that it differed (a fork, a
// bad or relaxed seal that it alone saw): then K is what comes out without that host. Neither can bring out a K that the
// other present operators do not all hold and certify, nor, for any index, a hash or digest that no other node shows.
//
// The error is an *OptionError. No fault of the evidence is an error.
func Propose(m Merged, o ProposeOptions) (Proposal, error) {
	p := Proposal{
		Schema: ProposeSchema, HeldBy: []string{}, Absent: []Absent{}, Refused: []Refusal{}, Disagreements: []Disagreement{},
		Hosts: []HostWay{}, LeftOut: sortedLeftOut(m.LeftOut), Verified: VerifiedAgreement, VerifiedNote: "there is no K to verify",
	}
	waived, err := waivers(m, o)
	if err != nil {
		return p, err
	}
	p.Absent = append(p.Absent, o.Absent...)
	slices.SortFunc(p.Absent, func(a, b Absent) int { return strings.Compare(a.Operator, b.Operator) })
	l := newLedger(m, waived)
	p.Disagreements = append(p.Disagreements, l.disagreements...)
	c := choice{ledger: l, options: o}
	c.search()
	p.Refused = append(p.Refused, c.refused...)
	p.StopCode, p.Stop = c.stop(m, waived)
	switch p.StopCode {
	case "":
		c.fill(&p)
	case StopUndecided:
		p.Needed = c.needed()
	}
	p.Hosts = append(p.Hosts, ways(l.hosts, p.K)...)
	return p, nil
}

// waivers checks the options and returns the names of the waived.
func waivers(m Merged, o ProposeOptions) (map[string]bool, error) {
	known := map[string]bool{}
	for _, name := range m.Expected {
		known[name] = true
	}
	for _, op := range m.Operators {
		known[op.Evidence.Operator] = true
	}
	if o.Below > 0 && o.Forged > 0 {
		return nil, &OptionError{"a bound and a forged macroblock were both given", "give the lower one of them; K lies strictly below either"}
	}
	if bound := max(o.Below, o.Forged); bound == 1 || bound == 2 {
		return nil, &OptionError{fmt.Sprintf("below macroblock %d there is no K", bound), "K is at least 2, because a restart needs the digest of K-1 too"}
	}
	waived := map[string]bool{}
	for _, a := range o.Absent {
		switch {
		case !known[a.Operator]:
			return nil, &OptionError{fmt.Sprintf("%q is not an operator whose evidence is asked for", a.Operator),
				"known: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")}
		case waived[a.Operator]:
			return nil, &OptionError{fmt.Sprintf("%s is waived twice", a.Operator), "name each absent operator once"}
		case strings.TrimSpace(a.Reason) == "":
			return nil, &OptionError{fmt.Sprintf("%s is waived without a reason", a.Operator), "the reason is published with K"}
		}
		waived[a.Operator] = true
	}
	return waived, nil
}

func sortedLeftOut(list []LeftOut) []LeftOut {
	out := append([]LeftOut{}, list...)
	slices.SortFunc(out, func(a, b LeftOut) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Code, b.Code), strings.Compare(a.Reason, b.Reason))
	})
	return out
}

// choice is the search for K.
type choice struct {
	*ledger
	options ProposeOptions
	best    *uint64   // the greatest index that satisfies (a) to (g) but (e)
	open    []segment // undecided ones above it, newest first
	refused []Refusal // newest first
}

// segment is a run of indices of which the evidence says the same, both ends included.
type segment struct {
	from, to uint64
	ruling
}

// lowest is the index of the lowest contradiction.
func (l *ledger) lowest() (Disagreement, bool) {
	if len(l.disagreements) == 0 {
		return Disagreement{}, false
	}
	return l.disagreements[0], true
}

// search goes down from the newest macroblock that anybody claims until one satisfies the definition.
func (c *choice) search() {
	fork, forked := c.lowest()
	edges := c.edges()
	for i := len(edges) - 1; i > 0 && c.best == nil; i-- {
		s := segment{from: edges[i-1], to: edges[i] - 1}
		s.ruling = c.judge(s.from)
		above := forked && s.from >= fork.Index
		switch {
		case len(s.refusals) == 0 && len(s.unknown) == 0:
			c.best = &s.from
		case len(s.refusals) == 0 && !above:
			c.open = append(c.open, s)
			if !slices.ContainsFunc(s.unknown, func(g gap) bool { return !g.below }) {
				return // once the one below it is known this one satisfies all, so nothing older is asked for
			}
		default:
			c.refuse(s, above, fork)
		}
	}
}

// refuse lists the macroblocks of a segment that a host shows. Only one of a single index can be listed.
func (c *choice) refuse(s segment, above bool, fork Disagreement) {
	shown := func(w *witness) bool { return w.entries[s.from].Held == HeldYes }
	if len(c.refused) >= MaxRefused || !slices.ContainsFunc(c.claims[s.from], shown) {
		return
	}
	reasons := s.refusals
	if len(reasons) == 0 {
		for _, n := range s.unknown {
			reasons = append(reasons, "not known to be held by "+n.party.name)
		}
		reasons = slices.Compact(reasons)
	}
	if above && s.from > fork.Index {
		reasons = append(slices.Clone(reasons), fmt.Sprintf("above the first contradiction, of macroblock %d (%s)", fork.Index, fork.Kind))
	}
	c.refused = append(c.refused, Refusal{Index: s.from, Reason: strings.Join(reasons, "; ")})
}

// edges are the indices at which what the evidence says may change, ascending, so that between two of them it is the same.
// What is said of an index depends on it and on the one below.
func (c *choice) edges() []uint64 {
	set := map[uint64]bool{1: true, 2: true}
	top := uint64(1)
	add := func(from, to uint64) {
		for i := from; i <= to; i++ {
			set[i] = true
		}
	}
	for _, index := range c.indices {
		if index > 0 && index <= MaxK {
			add(index, index+2)
			top = max(top, index)
		}
	}
	for _, w := range c.hosts {
		if s := w.finding.Sealed; s != nil && *s <= MaxK {
			add(*s+1, *s+2)
			top = max(top, *s)
		}
	}
	add(c.options.Below, c.options.Below)
	add(c.options.Forged, c.options.Forged)
	if fork, forked := c.lowest(); forked {
		add(fork.Index, fork.Index)
	}
	set[top+1] = true
	delete(set, 0)
	var out []uint64
	for _, i := range slices.Sorted(maps.Keys(set)) {
		if i <= top+1 {
			out = append(out, i)
		}
	}
	return out
}

// ruling is what the evidence says of one index: refused for reasons, else undecided while something is unknown.
type ruling struct {
	refusals []string
	unknown  []gap
}

// gap is what is not known of one operator: of the index itself, or of the one below it.
type gap struct {
	party *party
	below bool
}

// judge asks the definition of Propose about one index, but for (e) and (h).
func (c *choice) judge(index uint64) ruling {
	var v ruling
	c.judgeBounds(&v, index)
	if kind, differ := c.differ[index]; differ {
		v.refuse("the hosts differ in its " + kind)
	}
	c.judgeOperators(&v, index)
	c.judgeRelaxed(&v, index)
	c.judgeWitnesses(&v, index, false)
	if len(v.refusals) == 0 {
		c.judgeBelow(&v, index)
	}
	return v
}

// judgeBelow asks (d), and (f) of the macroblock below. What is refused for itself is not refused for that one as well: it
// would say the same of each of a run of missing ones.
func (c *choice) judgeBelow(v *ruling, index uint64) {
	var without []string
	for _, p := range c.parties {
		switch st := p.holds(index - 1); {
		case !p.present:
		case st == stateMissing:
			without = append(without, p.name)
		case st == stateUnknown:
			v.unknown = append(v.unknown, gap{party: p, below: true})
		}
	}
	if len(without) > 0 {
		v.refuse("the macroblock below it is not held by " + strings.Join(without, ", "))
	}
	c.judgeWitnesses(v, index-1, true)
	if kind, differ := c.differ[index-1]; differ {
		v.refuse("the hosts differ in the " + kind + " of the macroblock below it")
	}
	if c.linkBroken(index) {
		v.refuse("its previous hash is not the hash of the macroblock below it")
	}
}

func (r *ruling) refuse(reason string) { r.refusals = append(r.refusals, reason) }

func (c *choice) judgeBounds(v *ruling, index uint64) {
	o := c.options
	switch {
	case o.Forged > 0 && index >= o.Forged:
		v.refuse(fmt.Sprintf("not below the forged macroblock %d", o.Forged))
	case o.Below > 0 && index >= o.Below:
		v.refuse(fmt.Sprintf("not below %d, as asked", o.Below))
	case index < 2:
		v.refuse("the first macroblock has none below it")
	}
}

func (c *choice) judgeOperators(v *ruling, index uint64) {
	var lacking, uncertified []string
	for _, p := range c.parties {
		if !p.present {
			continue
		}
		held, certified := p.holds(index), p.certified(index)
		switch {
		case held == stateMissing:
			lacking = append(lacking, p.name)
		case certified == stateMissing:
			uncertified = append(uncertified, fmt.Sprintf("%s (%s)", p.name, p.faults(index)))
		case held == stateUnknown || certified == stateUnknown:
			v.unknown = append(v.unknown, gap{party: p})
		}
	}
	if len(lacking) > 0 {
		v.refuse("not held by " + strings.Join(lacking, ", "))
	}
	if len(uncertified) > 0 {
		v.refuse("no certificate of full quorum at " + strings.Join(uncertified, ", "))
	}
}

// faults are the distinct reasons for which an operator's certificates do not count.
func (p *party) faults(index uint64) string {
	found := map[string]bool{}
	for _, w := range p.hosts {
		if mb := w.entries[index]; mb != nil && mb.Proof != nil {
			found[faultOf(mb.Proof)] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

func (c *choice) judgeRelaxed(v *ruling, index uint64) {
	var relaxed []string
	for _, w := range c.claims[index] {
		if proof := w.entries[index].Proof; proof != nil && (proof.Relaxed || proof.Fault == node.FaultRecovery) {
			relaxed = append(relaxed, w.name())
		}
	}
	if len(relaxed) > 0 {
		v.refuse("sealed under a recovery pin at " + strings.Join(relaxed, ", "))
	}
}

// judgeWitnesses wants two nodes behind a macroblock; below says that it is the one below the judged one.
func (c *choice) judgeWitnesses(v *ruling, index uint64, below bool) {
	var holders, silent []*witness
	for _, p := range c.parties {
		for _, w := range p.hosts {
			switch st := w.at(index); {
			case !p.present:
			case st == stateHolds:
				holders = append(holders, w)
			case st == stateUnknown:
				silent = append(silent, w)
			}
		}
	}
	if nodes(holders) >= 2 {
		return
	}
	if nodes(append(slices.Clone(holders), silent...)) < 2 {
		what := "it rests"
		if below {
			what = "the macroblock below it rests"
		}
		v.refuse(what + " on the word of fewer than two nodes")
		return
	}
	for _, p := range c.parties {
		if p.present && slices.ContainsFunc(silent, func(w *witness) bool { return w.operator == p.name }) {
			v.unknown = append(v.unknown, gap{party: p, below: below})
		}
	}
}

// linkBroken says whether a host's previous hash in a macroblock contradicts a hash of the one below.
func (c *choice) linkBroken(index uint64) bool {
	var t tally
	for _, w := range c.claims[index] {
		t.add(w.entries[index].Previous)
	}
	for _, w := range c.claims[index-1] {
		t.add(w.entries[index-1].Hash)
	}
	return t.differ
}

// stop says why there is no K; "" when there is one.
func (c *choice) stop(m Merged, waived map[string]bool) (code, text string) {
	given := map[string]bool{}
	for _, p := range c.parties {
		given[p.name] = true
	}
	var mute []string
	for _, name := range m.Expected {
		if !given[name] && !waived[name] {
			mute = append(mute, name)
		}
	}
	slices.Sort(mute)
	fork, forked := c.lowest()
	stale := c.stale()
	switch {
	case len(mute) > 0:
		return StopNoEvidence, "no evidence from " + strings.Join(slices.Compact(mute), ", ") + ", and no waiver"
	case len(c.parties) == 0:
		return StopNoEvidence, "no evidence at all"
	case stale != "":
		return StopStale, stale
	case forked && c.best != nil && fork.Index <= *c.best:
		return StopContradiction, fmt.Sprintf("the hosts agree on macroblock %d and contradict each other on what it is built on: somebody's word is wrong; first offending window %d, kind %s",
			*c.best, fork.Index, fork.Kind)
	case len(c.open) > 0:
		return StopUndecided, fmt.Sprintf("undecided: macroblock %d may be the one, and not all operators have shown what they have of it", c.open[0].to)
	case c.best == nil:
		return StopNothing, "no macroblock in the evidence is held by every present operator with one hash, one digest and a full-quorum certificate"
	}
	return "", ""
}

// fill writes what is said of K.
func (c *choice) fill(p *Proposal) {
	k := *c.best
	p.K = &k
	for _, w := range c.holders(k) {
		p.HeldBy = append(p.HeldBy, w.name())
		p.Hash, p.Digest = w.entries[k].Hash, w.entries[k].Digest
	}
	for _, w := range c.holders(k - 1) {
		p.DigestPred = w.entries[k-1].Digest
	}
	p.VerifiedNote = c.unverified(k)
	if p.VerifiedNote == "" {
		p.Verified = VerifiedSignatures
	}
}
