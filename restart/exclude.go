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

// ExcludeSchema names the document of `restart exclude`.
const ExcludeSchema = "qnetops/exclude/v1"

// Bounds of what is taken for silence and for life.
const (
	// ExcludeWindows is how many windows up to the stall are looked at: an epoch. What an identity did before says nothing
	// about the stall.
	ExcludeWindows = 160
	// MinSilentWindows is in how many of them, after its last sign of life, an identity must have been in the committee and
	// in nobody's list of signers. A certificate lists only the votes that came first (facts 6.3): a healthy member is
	// missing from many, and one certificate proves nothing.
	MinSilentWindows = 10
	// MinSilentOperators is how many independent operators must have seen each of them.
	MinSilentOperators = 2
	// AliveWindows is how old, in windows before the stall, the last sign of life of an identity may be that was not silent
	// before it.
	AliveWindows = 10
	// BootGenesis is how many genesis nodes must be started for any of them to come up: each waits for three others, for ever
	// (facts 3, 8 #14).
	BootGenesis = 4
	// maxExcerpts is how many log lines are named for each identity, the newest.
	maxExcerpts = 8
)

// Verdicts on an identity.
const (
	ExcludeProposed    = "proposed"     // the evidence shows it silent
	ExcludeGiven       = "given"        // listed by hand
	ExcludeDropped     = "dropped"      // proposed, and taken off by hand
	ExcludeNotProposed = "not_proposed" // alive, or not clear enough
)

// What is known of an identity since the stall. To have signed until it says nothing about the time after it: what made the chain
// stall may be that very machine.
const (
	LifeAlive  = "alive"              // not silent before, and seen since the newest seal: its node answered, or it signed or took part in a later window
	LifeSigned = "signed_until_stall" // not silent before, and nothing was seen of it since
	LifeNone   = "not_shown"          // no sign of life in the AliveWindows before the stall
)

// ExcludeOptions change the list by hand.
type ExcludeOptions struct {
	Add  []Added
	Drop []string
	// List, where not nil, is the list in place of the proposed one: strictly ascending by bytes, as the node demands it.
	List     []string
	ListName string // where it came from
}

// Added is an identity to bar for a reason that is not in the evidence.
type Added struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Exclusion is whom to bar, with the evidence on every member of the stalled committee. It is the document of `restart
// exclude`.
type Exclusion struct {
	Schema     string     `json:"schema"`
	K          *uint64    `json:"k"`
	Stalled    *uint64    `json:"stalled_at"` // the last sealed macroblock whose committee all operators show
	Committee  []string   `json:"committee"`  // the stalled committee, as all of them show it
	Operators  []string   `json:"operators"`  // whose evidence was used
	Windows    []uint64   `json:"windows"`    // looked at, ascending
	Excluded   []string   `json:"excluded"`   // the list, ascending by bytes, for restart.excluded of the manifest
	Identities []Identity `json:"identities"` // every member of the committee, by id
	// Alive and SignedUntil are those not on the list that are shown alive, and that signed until the stall and were not seen since.
	Alive       []string `json:"alive"`
	SignedUntil []string `json:"signed_until_stall"`
	// Unanswered are hosts ("operator/host") whose node did not answer and is not known by its identity.
	Unanswered []string   `json:"unanswered"`
	Before     Arithmetic `json:"before"` // of the stalled committee
	After      Arithmetic `json:"after"`  // of what is left of it
	Warnings   []string   `json:"warnings"`
	Refused    []string   `json:"refused"` // why this list must not be published; empty: it may
}

// Arithmetic is what a committee needs to seal. Who signed until the stall counts as long as nothing speaks against it; but a host
// whose node does not answer runs one of them, unless an identity that is not shown alive, or one on the list, explains it.
type Arithmetic struct {
	Committee   int `json:"committee"`
	Quorum      int `json:"quorum"`
	Alive       int `json:"alive"`              // of its members shown alive since the stall
	SignedUntil int `json:"signed_until_stall"` // of its members that signed until the stall, and nothing was seen of since
	Away        int `json:"away"`               // of SignedUntil, at least so many are nodes that did not answer
	Spare       int `json:"spare"`              // how many of Alive + SignedUntil - Away may fail; negative: so many are missing
}

// Voting is how many are taken to vote.
func (a Arithmetic) Voting() int { return a.Alive + a.SignedUntil - a.Away }

// arithmetic is that of a committee. missing are the hosts whose node did not answer and that no other member explains.
func arithmetic(committee, alive, signed, missing int) Arithmetic {
	a := Arithmetic{Committee: committee, Quorum: node.QuorumSize(committee), Alive: alive, SignedUntil: signed, Away: min(max(missing, 0), signed)}
	a.Spare = a.Voting() - a.Quorum
	return a
}

// Identity is the evidence on one member.
type Identity struct {
	ID      string `json:"id"`
	Verdict string `json:"verdict"`
	Life    string `json:"life"` // alive, signed_until_stall or not_shown
	Why     string `json:"why"`
	// SilentWindows are the windows after its last sign of life in which it was in the committee and, by certificates of
	// enough operators, in no union of signers.
	SilentWindows int         `json:"silent_windows"`
	SilentBy      []string    `json:"silent_by"`      // the operators who showed those
	LastSigned    *uint64     `json:"last_signed"`    // newest window with it among the signers of any node's certificate
	LastTakingIn  *uint64     `json:"last_taking_in"` // newest window its own log says that it takes part in
	AnsweredBy    []string    `json:"answered_by"`    // hosts whose node named itself so after the newest seal
	Excerpts      []Excerpt   `json:"excerpts"`
	With          *Arithmetic `json:"with"`    // of the committee as the list stands, where it is listed
	Without       *Arithmetic `json:"without"` // if this entry were not on it, or once it is un-barred and dead: it counts, and does not vote
	Returns       *Arithmetic `json:"returns"` // once it is un-barred and votes
}

// Excerpt is a log line that speaks about an identity, by its hash.
type Excerpt struct {
	Host   string `json:"host"` // operator/host
	Kind   string `json:"kind"`
	Window uint64 `json:"window"`
	SHA256 string `json:"sha256"`
}

// Exclude proposes whom to bar from the restart. Only what is shown is proposed: an identity that was in the committee and,
// in at least MinSilentWindows windows after its last sign of life, in no node's list of signers, by self-consistent
// certificates of MinSilentOperators independent operators. Any sign of life counts, whoever shows it: a signature in any
// certificate, also a faulty one, or a line of its own log that it takes part. Whoever fell silent with the stall itself
// signed until the end and is not proposed; Add is for that.
//
// The list is refused if those taken to vote (Arithmetic) are fewer than the quorum of what is left of the committee, if there is
// no K or no committee that all operators show, or if it names somebody outside it.
//
// A barred identity that returns is filtered from eligibility on every path as long as the manifest is in force, so its return
// changes nothing. Un-barring makes the committee grow again, and the quorum with it: Returns and Without say to what.
func Exclude(m Merged, p Proposal, o ExcludeOptions) Exclusion {
	x := exclusion{ledger: newLedger(m, nil), out: Exclusion{
		Schema: ExcludeSchema, K: p.K, Committee: []string{}, Operators: []string{}, Windows: []uint64{}, Excluded: []string{},
		Identities: []Identity{}, Alive: []string{}, SignedUntil: []string{}, Unanswered: []string{}, Warnings: []string{}, Refused: []string{},
	}}
	for _, party := range x.parties {
		x.out.Operators = append(x.out.Operators, party.name)
	}
	if p.K == nil {
		x.refuse("there is no K, so there is nothing to resume without them: %s", p.Stop)
	}
	if !x.stalled() {
		x.check(o, nil)
		return x.out
	}
	x.read()
	proposed := x.judge()
	x.list(o, proposed)
	x.count()
	return x.out
}

type exclusion struct {
	*ledger
	out     Exclusion
	life    map[string]uint64 // newest window with a sign of life, also a doubtful one: it keeps from being proposed
	later   map[string]bool   // signed above the stall, by a certificate that counts
	members map[string]int    // place in out.Identities
	// shown is, by window, who showed a self-consistent certificate of it; signers is the union over all certificates.
	shown    map[uint64][]*witness
	signers  map[uint64]map[string]bool
	listedBy map[string]map[string]bool // operators by the identity of a node
}

func (x *exclusion) refuse(format string, args ...any) {
	x.out.Refused = append(x.out.Refused, fmt.Sprintf(format, args...))
}

func (x *exclusion) warn(format string, args ...any) {
	x.out.Warnings = append(x.out.Warnings, fmt.Sprintf(format, args...))
}

// committeeOf is the committee of a macroblock by one host's word; nil: not known.
func committeeOf(w *witness, index uint64) []string {
	if mb := w.entries[index]; mb != nil && mb.Proof != nil {
		if mb.Proof.Members != nil {
			return mb.Proof.Members
		}
		return w.finding.Committee
	}
	if s := w.finding.Sealed; s != nil && *s == index {
		return w.finding.Committee
	}
	return nil
}

// stalled finds the last macroblock below every contradiction whose committee each operator shows. Where two hosts show
// different ones nothing can be proposed.
func (x *exclusion) stalled() bool {
	set := map[uint64]bool{}
	for _, index := range x.indices {
		set[index] = true
	}
	for _, w := range x.hosts {
		if w.finding.Sealed != nil {
			set[*w.finding.Sealed] = true
		}
	}
	fork, forked := x.lowest()
	for _, index := range slices.Backward(slices.Sorted(maps.Keys(set))) {
		if forked && index >= fork.Index || index == 0 {
			continue
		}
		committee, conflict := x.committeeAt(index)
		if conflict != "" {
			x.refuse("%s", conflict)
			return false
		}
		if committee != nil {
			x.out.Stalled, x.out.Committee = &index, committee
			return true
		}
	}
	x.refuse("no macroblock below every contradiction whose committee each operator shows")
	return false
}

// committeeAt is the committee of a macroblock, sorted by bytes, if each operator shows one and all show the same.
func (x *exclusion) committeeAt(index uint64) (committee []string, conflict string) {
	var first *witness
	showing := map[string]bool{}
	for _, w := range x.hosts {
		c := committeeOf(w, index)
		switch {
		case len(c) == 0:
			continue
		case first == nil:
			first, committee = w, c
		case !slices.Equal(c, committee):
			return nil, fmt.Sprintf("the committee of macroblock %d is not the same at %s and %s: settle that first", index, first.name(), w.name())
		}
		showing[w.operator] = true
	}
	if len(showing) < len(x.parties) || first == nil {
		return nil, ""
	}
	return slices.Compact(slices.Sorted(slices.Values(committee))), ""
}

// read collects certificates and logs of the windows that count.
func (x *exclusion) read() {
	x.life, x.later, x.members = map[string]uint64{}, map[string]bool{}, map[string]int{}
	x.shown, x.signers = map[uint64][]*witness{}, map[uint64]map[string]bool{}
	for i, id := range x.out.Committee {
		x.members[id] = i
		x.out.Identities = append(x.out.Identities, Identity{ID: id, SilentBy: []string{}, AnsweredBy: []string{}, Excerpts: []Excerpt{}})
	}
	for _, index := range x.indices {
		if !x.counts(index) {
			continue
		}
		if index <= *x.out.Stalled { // above it a signature is a sign of life, and to be missing there is nothing
			x.out.Windows = append(x.out.Windows, index)
			x.signers[index] = map[string]bool{}
		}
		for _, w := range x.claims[index] {
			if proof := w.entries[index].Proof; proof != nil {
				x.certificate(w, index, proof)
			}
		}
	}
	sealed := x.sealedAt()
	for _, w := range x.hosts {
		x.log(w)
		x.answered(w, sealed)
	}
}

// sealedAt is when the macroblock of the stall was sealed, by the latest of those who show it; zero where nobody says it.
func (x *exclusion) sealedAt() (at time.Time) {
	for _, w := range x.claims[*x.out.Stalled] {
		if stamp := w.entries[*x.out.Stalled].Timestamp; stamp != nil && unixTime(*stamp).After(at) {
			at = unixTime(*stamp)
		}
	}
	return at
}

// answered notes whose node a host runs, if that node answered after the newest seal, or that it did not answer at all.
func (x *exclusion) answered(w *witness, sealed time.Time) {
	switch i, member := x.members[w.finding.NodeID]; {
	case w.finding.NodeID == "" && w.finding.Height == nil:
		x.out.Unanswered = append(x.out.Unanswered, w.name())
	case member && !sealed.IsZero() && w.read.After(sealed):
		x.out.Identities[i].AnsweredBy = append(x.out.Identities[i].AnsweredBy, w.name())
	}
}

func (x *exclusion) certificate(w *witness, index uint64, proof *Certificate) {
	good := faultOf(proof) == ""
	for _, id := range proof.Signers {
		if signers := x.signers[index]; signers != nil {
			signers[id] = true
		}
		if i, member := x.members[id]; member {
			x.out.Identities[i].LastSigned = newest(x.out.Identities[i].LastSigned, index)
			x.life[id] = max(x.life[id], index)
			x.later[id] = x.later[id] || good && index > *x.out.Stalled
		}
	}
	if good {
		x.shown[index] = append(x.shown[index], w)
	}
}

func newest(a *uint64, b uint64) *uint64 {
	if a != nil && *a >= b {
		return a
	}
	return &b
}

// log takes what a host's log says about its own identity. A line that it takes part is a sign of life unless another one
// takes it back for the same window (facts 4.2).
func (x *exclusion) log(w *witness) {
	i, member := x.members[w.finding.NodeID]
	if !member {
		return
	}
	id := &x.out.Identities[i]
	takesIn, takenBack := map[uint64]bool{}, map[uint64]bool{}
	for _, line := range w.finding.Lines {
		l := node.ParseLine(line.Text)
		window, part := node.Participation(l)
		if part {
			takesIn[window] = true
		} else if window, part = notTakingIn(l); part {
			takenBack[window] = true
		}
		if part && x.counts(window) {
			id.Excerpts = append(id.Excerpts, Excerpt{Host: w.name(), Kind: line.Kind, Window: window, SHA256: line.SHA256})
		}
	}
	slices.SortStableFunc(id.Excerpts, func(a, b Excerpt) int {
		return cmp.Or(cmp.Compare(b.Window, a.Window), strings.Compare(a.Host, b.Host), strings.Compare(a.SHA256, b.SHA256))
	})
	id.Excerpts = id.Excerpts[:min(len(id.Excerpts), maxExcerpts)]
	for window := range takesIn {
		if !takenBack[window] && x.counts(window) {
			id.LastTakingIn = newest(id.LastTakingIn, window)
			x.life[id.ID] = max(x.life[id.ID], window)
		}
	}
}

// counts says whether a window is one of those looked at, or above the stall.
func (x *exclusion) counts(window uint64) bool {
	return window <= MaxK && window+ExcludeWindows > *x.out.Stalled
}

// notTakingIn reads the lines by which a node says that it does not vote in a window.
func notTakingIn(l node.LogLine) (window uint64, ok bool) {
	for _, read := range []func(node.LogLine) (uint64, bool){node.Defer, node.Abstain, node.NotInCommittee, node.ConsensusSkip} {
		if window, ok := read(l); ok {
			return window, true
		}
	}
	return 0, false
}

// judge counts each identity's silence and returns who is proposed.
func (x *exclusion) judge() map[string]bool {
	proposed := map[string]bool{}
	for i := range x.out.Identities {
		id := &x.out.Identities[i]
		by := map[string]bool{}
		for _, index := range x.out.Windows {
			if index <= x.life[id.ID] && x.life[id.ID] > 0 {
				continue
			}
			if operators := x.silentIn(id.ID, index); len(operators) >= MinSilentOperators {
				id.SilentWindows++
				for _, name := range operators {
					by[name] = true
				}
			}
		}
		id.SilentBy = append(id.SilentBy, slices.Sorted(maps.Keys(by))...)
		id.Verdict, id.Why = ExcludeNotProposed, x.why(*id)
		if id.SilentWindows >= MinSilentWindows {
			id.Verdict = ExcludeProposed
			proposed[id.ID] = true
		}
	}
	return proposed
}

// silentIn are the operators who show that an identity was in the committee of a window and in no union of signers, if enough of
// them are independent.
func (x *exclusion) silentIn(id string, index uint64) []string {
	if x.signers[index][id] {
		return nil
	}
	var operators []string
	independent := map[string]bool{}
	for _, w := range x.shown[index] {
		if _, member := slices.BinarySearch(committeeOf(w, index), id); member {
			if !slices.Contains(operators, w.operator) {
				operators = append(operators, w.operator)
			}
			if x.owns(w) {
				independent[w.operator] = true
			}
		}
	}
	if len(independent) < MinSilentOperators {
		return nil
	}
	return operators
}

// owns says whether the node behind a host is known and no other operator lists it too. Two operators who list the same machine
// have one pair of eyes, whoever else's machines they list beside it.
func (x *exclusion) owns(w *witness) bool {
	if x.listedBy == nil {
		x.listedBy = map[string]map[string]bool{}
		for _, o := range x.hosts {
			if x.listedBy[o.finding.NodeID] == nil {
				x.listedBy[o.finding.NodeID] = map[string]bool{}
			}
			x.listedBy[o.finding.NodeID][o.operator] = true
		}
	}
	return w.finding.NodeID != "" && len(x.listedBy[w.finding.NodeID]) == 1
}

func (x *exclusion) why(id Identity) string {
	life := "no sign of life in the windows looked at"
	switch last := x.life[id.ID]; {
	case last == 0:
	case id.LastTakingIn != nil && *id.LastTakingIn == last:
		life = fmt.Sprintf("its log says that it took part in window %d", last)
	default:
		life = fmt.Sprintf("signed in window %d", last)
	}
	if len(x.parties) < MinSilentOperators {
		return life + "; only one operator's evidence, and silence must be seen by " + fmt.Sprint(MinSilentOperators)
	}
	if id.SilentWindows == 0 && x.life[id.ID] > 0 {
		return life
	}
	since := ""
	if x.life[id.ID] > 0 {
		since = " since"
	}
	text := fmt.Sprintf("%s; silent in %d windows%s by %d operators", life, id.SilentWindows, since, len(id.SilentBy))
	if id.SilentWindows < MinSilentWindows {
		text += fmt.Sprintf(", fewer than %d windows", MinSilentWindows)
	}
	return text
}
