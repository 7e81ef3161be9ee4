package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Kind of a fault of a node.
type Kind string

// The faults of a node and their arguments. LIST is macroblock indices and ranges of them: 5,7-9. Faults of one node
// combine; of two that change the same answer the later one in the list of Kinds counts.
const (
	FaultFork        Kind = "fork"          // =INDEX[:NAME] another chain from INDEX on; equal names are one chain
	FaultForged      Kind = "forged"        // =INDEX certified with a false state root there, and built upon
	FaultLie         Kind = "lie"           // =INDEX[:keys|:sigs] a chain of its own: invented keys, or signatures that do not fit
	FaultBadSeal     Kind = "bad-seal"      // =LIST[:READS] another eligible set than certified; right again after READS proofs
	FaultOtherDigest Kind = "other-digest"  // =LIST[:NAME] another eligible set, certified: the same hash with another digest
	FaultWrongNumber Kind = "wrong-number"  // =LIST the macroblock gives another number than asked for
	FaultMissing     Kind = "missing"       // =LIST not held
	FaultStorage     Kind = "storage-error" // [=LIST] cannot be read
	FaultPruned      Kind = "pruned"        // =AGE signatures older than AGE windows are gone, instead of 14,880
	FaultLag         Kind = "lag"           // =WINDOWS the last of them are not sealed here
	FaultRelaxed     Kind = "relaxed"       // =LIST sealed under a recovery pin
	FaultShort       Kind = "short"         // =LIST a certificate one signer short of the quorum
	FaultNoQC        Kind = "no-qc"         // =LIST held without a certificate
	FaultNoCommittee Kind = "no-committee"  // =LIST the committee cannot be derived
	FaultBadSig      Kind = "bad-sig"       // =LIST one signature is another member's
	FaultOpaqueSigs  Kind = "opaque-sigs"   // [=LIST] signatures in an envelope of another kind
	FaultArmed       Kind = "armed"         // recovery is armed
	FaultNoSnapshots Kind = "no-snapshots"  // holds none
	FaultBusy        Kind = "snapshot-busy" // all transfers are taken
	FaultRateLimit   Kind = "ratelimit"     // everything is refused by the rate limit
	FaultHang        Kind = "hang"          // [=LIST] never answers
)

// form says what a kind's argument is.
type form int

const (
	formNone     form = iota
	formIndex         // INDEX[:NAME]
	formNumber        // a number
	formList          // LIST[:REST]
	formOptional      // the same or nothing, which is every macroblock
)

func forms() map[Kind]form {
	return map[Kind]form{FaultFork: formIndex, FaultForged: formIndex, FaultLie: formIndex, FaultBadSeal: formList, FaultOtherDigest: formList,
		FaultWrongNumber: formList, FaultMissing: formList, FaultStorage: formOptional, FaultPruned: formNumber, FaultLag: formNumber,
		FaultRelaxed: formList, FaultShort: formList, FaultNoQC: formList, FaultNoCommittee: formList, FaultBadSig: formList,
		FaultOpaqueSigs: formOptional, FaultArmed: formNone, FaultNoSnapshots: formNone, FaultBusy: formNone, FaultRateLimit: formNone,
		FaultHang: formOptional}
}

// Kinds lists the faults a node of a ledger knows.
func Kinds() []Kind {
	return []Kind{FaultFork, FaultForged, FaultLie, FaultBadSeal, FaultOtherDigest, FaultWrongNumber, FaultMissing, FaultStorage, FaultPruned,
		FaultLag, FaultRelaxed, FaultShort, FaultNoQC, FaultNoCommittee, FaultBadSig, FaultOpaqueSigs, FaultArmed, FaultNoSnapshots,
		FaultBusy, FaultRateLimit, FaultHang}
}

// span is a range of macroblock indices, both ends included.
type span struct{ from, to uint64 }

// fault is a fault as it was set.
type fault struct {
	arg   string
	spans []span // none: every macroblock
	rest  string // after the colon
	n     uint64 // index, age, windows, or reads
}

// hits says whether the fault is about macroblock i.
func (f *fault) hits(i uint64) bool {
	return f != nil && (len(f.spans) == 0 || slices.ContainsFunc(f.spans, func(s span) bool { return s.from <= i && i <= s.to }))
}

// parseFault reads the argument of a fault.
func parseFault(kind Kind, arg string) (*fault, error) {
	f := &fault{arg: arg}
	bad := func(format string, args ...any) (*fault, error) {
		return nil, fmt.Errorf("fault %s: argument %q %s", kind, arg, fmt.Sprintf(format, args...))
	}
	form, known := forms()[kind]
	if !known {
		return nil, fmt.Errorf("unknown fault %q of a node of a ledger: known are %s", kind, joinKinds())
	}
	head, rest, colon := strings.Cut(arg, ":")
	f.rest = rest
	if colon && !takesRest(kind, rest) {
		return bad("has a part after the colon that the fault does not know")
	}
	var err error
	switch form {
	case formNone:
		if arg != "" {
			return bad("is not wanted")
		}
	case formIndex, formNumber:
		if f.n, err = strconv.ParseUint(head, 10, 64); err != nil || (form == formIndex && f.n == 0) {
			return bad("is not a number, want one from 1 on")
		}
	case formList, formOptional:
		if head == "" && form == formOptional {
			break
		}
		if f.spans, err = parseSpans(head); err != nil {
			return bad("is not a list of indices like 5,7-9: %v", err)
		}
	}
	if kind == FaultBadSeal && rest != "" {
		f.n, _ = strconv.ParseUint(rest, 10, 64) // takesRest read it
	}
	return f, nil
}

// takesRest says whether a kind knows what stands after the colon.
func takesRest(kind Kind, rest string) bool {
	switch kind {
	case FaultFork, FaultOtherDigest:
		return rest != ""
	case FaultLie:
		return rest == "keys" || rest == "sigs"
	case FaultBadSeal:
		n, err := strconv.ParseUint(rest, 10, 32)
		return err == nil && n > 0
	}
	return false
}

func parseSpans(list string) ([]span, error) {
	var spans []span
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", first)
		}
		to, err := strconv.ParseUint(last, 10, 64)
		if err != nil || to < from {
			return nil, fmt.Errorf("%q is not a range", part)
		}
		spans = append(spans, span{from, to})
	}
	return spans, nil
}

func joinKinds() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// Set turns a fault on, in the place of one of the same kind. An unknown kind or an unusable argument is an error. A fork
// from a low index makes the hashes of its macroblocks at once, which takes as long as making them took the ledger.
func (n *Node) Set(kind Kind, arg string) error {
	f, err := parseFault(kind, arg)
	if err != nil {
		return err
	}
	n.change(func(set map[Kind]*fault) { set[kind] = f })
	return nil
}

// Clear turns the named faults off, or all of them when none is named.
func (n *Node) Clear(kinds ...Kind) {
	n.change(func(set map[Kind]*fault) {
		if len(kinds) == 0 {
			clear(set)
		}
		for _, k := range kinds {
			delete(set, k)
		}
	})
}

// change replaces the faults and finds the chain the node is on with them.
func (n *Node) change(edit func(map[Kind]*fault)) {
	n.setting.Lock()
	defer n.setting.Unlock()
	next := maps.Clone(n.faultSet())
	edit(next)
	chain := n.l.chain(n.cfg.ID, next)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults, n.chain = next, chain
	clear(n.reads)
}

// chain is the chain a node with these faults is on: its turnings in the order of their indices.
func (l *Ledger) chain(id string, faults map[Kind]*fault) *branch {
	type turning struct {
		kind Kind
		at   uint64
		name string
	}
	var turnings []turning
	for _, kind := range []Kind{FaultFork, FaultForged, FaultLie} {
		if f := faults[kind]; f != nil {
			turnings = append(turnings, turning{kind, f.n, f.rest})
		}
	}
	slices.SortStableFunc(turnings, func(a, b turning) int { return cmp.Compare(a.at, b.at) })
	b := l.main
	for _, t := range turnings {
		if t.kind == FaultLie {
			t.name = id // whatever its signatures are, the chain is the liar's own
		}
		b = l.branch(b, t.at, t.kind, t.name)
	}
	return b
}

// Faults returns the faults that are on with their arguments.
func (n *Node) Faults() map[Kind]string {
	out := map[Kind]string{}
	for kind, f := range n.faultSet() {
		out[kind] = f.arg
	}
	return out
}

// Draw picks a fault with its argument from a seeded source, near the end of the history, where it matters. Equal sources
// draw equal faults. It draws none that keeps a node from answering at all.
func (l *Ledger) Draw(rng *rand.Rand) (Kind, string) {
	kinds := slices.DeleteFunc(Kinds(), func(k Kind) bool { return k == FaultRateLimit || k == FaultHang })
	kind := kinds[rng.IntN(len(kinds))]
	near := func() uint64 { return l.Sealed() - rng.Uint64N(min(l.Sealed(), node.MaxDerivedRosterWindows)) }
	index := strconv.FormatUint(near(), 10)
	switch forms()[kind] {
	case formIndex:
		return kind, index
	case formNumber:
		return kind, strconv.FormatUint(rng.Uint64N(min(l.Sealed(), node.MaxDerivedRosterWindows)), 10)
	case formList, formOptional:
		if rng.IntN(2) == 0 {
			return kind, index
		}
		a, b := near(), near()
		return kind, fmt.Sprintf("%d-%d", min(a, b), max(a, b))
	}
	return kind, ""
}
