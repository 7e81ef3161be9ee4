package cutover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// RestartReading is one look at one node of a chain that resumes from K. A nil
// pointer is a reading that could not be had.
type RestartReading struct {
	ID     string `json:"id"`
	NodeID string `json:"node_id"` // as it names itself; "" unknown
	// Why says what could not be read, where anything could not.
	Why     string `json:"why,omitempty"`
	Reached bool   `json:"reached"`

	State   string   `json:"state"` // Docker's word for the container
	Policy  string   `json:"restart_policy"`
	Digests []string `json:"digests"` // of its image
	OneShot []string `json:"one_shot"`

	Height *uint64    `json:"height"`
	Sealed *uint64    `json:"last_sealed"`
	HashK  *node.Hash `json:"hash_k"` // hash of macroblock K as it shows it
	NoK    bool       `json:"no_k"`   // it says that it has no macroblock K
	// Eligible is the eligible set of K+1, with Known where its proof was read and
	// holds by itself.
	Eligible      []string   `json:"eligible"`
	EligibleKnown bool       `json:"eligible_known"`
	Common        *node.Hash `json:"common"` // hash of the macroblock that all are compared at

	Lines RestartLines `json:"lines"`
	// Asides are the directories that stand beside its data directory.
	Asides []string `json:"asides"`
}

// runs says whether a process of the node can exist.
func (r RestartReading) runs() bool { return sight{State: r.State}.runs() }

// release says whether the node runs the image of the record.
func (r RestartReading) release(v RestartValues) bool {
	return slices.ContainsFunc(r.Digests, func(d string) bool { return v.digest() != "" && strings.HasSuffix(d, v.digest()) })
}

// wrongHash says that the node shows another macroblock K than the record.
func (r RestartReading) wrongHash(v RestartValues) bool {
	return r.HashK != nil && *r.HashK != v.Manifest.Restart.ResumeMBHash
}

// follows says that the node is on the restarted chain, whatever its image says.
func (r RestartReading) follows(v RestartValues) bool {
	return r.HashK != nil && !r.wrongHash(v) && r.Sealed != nil && *r.Sealed > v.K() && len(r.Lines.Mismatch) == 0
}

// oldSide says why a node still carries data that the restart abandoned, or still
// is on the old side; "" where nothing says so.
func (r RestartReading) oldSide(v RestartValues) string {
	switch {
	case !r.Reached:
		return ""
	case r.wrongHash(v):
		return fmt.Sprintf("shows macroblock %d with hash %s", v.K(), r.HashK.Short())
	case r.Lines.Malformed != "":
		return "refuses the manifest: " + r.Lines.Malformed
	case len(r.Lines.Mismatch) > 0:
		return "failed closed on the pin, so it carries data above it: " + strings.Join(r.Lines.Mismatch, ", ")
	case !r.release(v) && !r.follows(v):
		return "does not run the image of the record"
	case !r.runs():
		return "is " + cmp.Or(r.State, "gone")
	}
	return ""
}

// The checks of a restart that was executed, by name, in their order.
const (
	CheckManifest = "manifest"    // no node refuses it, each that runs says that it is active
	CheckPin      = "pin"         // no node failed closed on it
	CheckHashK    = "hash_k"      // every node shows K with the recorded hash
	CheckBlocks   = "blocks"      // heights rise above K
	CheckSeals    = "seals"       // macroblocks above K are sealed on several nodes, and go on
	CheckEligible = "eligible"    // the first new macroblock's eligible set has no barred identity
	CheckTips     = "tips"        // the nodes agree
	CheckOperator = "operators"   // and so do those of three operators
	CheckSides    = "sides"       // nobody is left on the old side
	CheckTemp     = "temporaries" // no variable of the restart is left
)

// JudgeRestart decides from two looks, the second some block times after the
// first, whether a restart holds. common is the macroblock whose hashes Common are
// of; told are the other operators' words on it.
func JudgeRestart(v RestartValues, before, after []RestartReading, common uint64, told []Told) []observe.Check {
	return []observe.Check{judgeManifest(v, after), judgePin(v, after), judgeHashK(v, after), judgeBlocks(v, before, after),
		judgeSeals(v, before, after), judgeEligible(v, after), judgeTips(after, common), judgeOperators(v, after, common, told),
		judgeSides(v, after), judgeTemporaries(after)}
}

// finding folds what was found on the hosts into one check: whatever fails fails
// it, what is not known leaves it unknown.
type finding struct{ fails, unknown []string }

func (f *finding) fail(format string, args ...any) {
	f.fails = append(f.fails, fmt.Sprintf(format, args...))
}

func (f *finding) blank(format string, args ...any) {
	f.unknown = append(f.unknown, fmt.Sprintf(format, args...))
}

func (f *finding) check(name, pass string, args ...any) observe.Check {
	c := observe.Check{Name: name, Verdict: observe.Pass, Reason: fmt.Sprintf(pass, args...)}
	if len(f.unknown) > 0 {
		c.Verdict, c.Reason = observe.Unknown, strings.Join(f.unknown, "; ")
	}
	if len(f.fails) > 0 {
		c.Verdict, c.Reason = observe.Fail, strings.Join(append(f.fails, f.unknown...), "; ")
	}
	return c
}

func judgeManifest(v RestartValues, after []RestartReading) observe.Check {
	var f finding
	for _, r := range after {
		l, want := r.Lines, uint64(len(v.Manifest.Restart.Excluded))
		switch {
		case l.Malformed != "":
			f.fail("%s refuses the manifest of its image: %s", r.ID, l.Malformed)
		case l.Fatal != "":
			f.fail("%s refuses to start: %s", r.ID, l.Fatal)
		case !l.Read || !r.Reached:
			f.blank("%s: %s", r.ID, cmp.Or(r.Why, "its log was not read"))
		case l.Active && (l.Resume != v.K() || l.Excluded != want):
			f.fail("%s resumes from macroblock %d and bars %d, the record says %d and %d", r.ID, l.Resume, l.Excluded, v.K(), want)
		case !l.Active && !r.follows(v): // of one that does, the line may have been rotated away
			f.blank("%s does not say that a manifest is active", r.ID)
		}
	}
	return f.check(CheckManifest, "active on all %d nodes, from macroblock %d", len(after), v.K())
}

func judgePin(v RestartValues, after []RestartReading) observe.Check {
	var f finding
	for _, r := range after {
		switch {
		case len(r.Lines.Mismatch) > 0:
			f.fail("%s: %s", r.ID, strings.Join(r.Lines.Mismatch, ", "))
		case !r.Lines.Read:
			f.blank("%s: %s", r.ID, cmp.Or(r.Why, "its log was not read"))
		case r.Lines.Cut && !r.follows(v): // one that follows the chain has not failed closed
			f.blank("%s: its log is too long to be read whole, and it does not follow the chain above macroblock %d", r.ID, v.K())
		}
	}
	return f.check(CheckPin, "no node failed closed on the pin of macroblock %d", v.K())
}

func judgeHashK(v RestartValues, after []RestartReading) observe.Check {
	var f finding
	for _, r := range after {
		switch {
		case r.wrongHash(v):
			f.fail("%s shows %s, the record says %s", r.ID, r.HashK, v.Manifest.Restart.ResumeMBHash)
		case r.NoK:
			f.blank("%s has no macroblock %d yet", r.ID, v.K())
		case r.HashK == nil:
			f.blank("%s: %s", r.ID, cmp.Or(r.Why, "does not show it"))
		}
	}
	return f.check(CheckHashK, "all %d nodes show macroblock %d with the hash of the record", len(after), v.K())
}

// several is how many nodes must be seen to go on: three, or all there are.
func several(n int) int { return min(3, n) }

// rising lists the nodes whose value rose between the looks and is above a bound.
func rising(before, after []RestartReading, bound uint64, of func(RestartReading) *uint64) (up, not []string) {
	for _, r := range after {
		now := of(r)
		at := slices.IndexFunc(before, func(b RestartReading) bool { return b.ID == r.ID })
		var was *uint64
		if at >= 0 {
			was = of(before[at])
		}
		if now != nil && was != nil && *now > *was && *now > bound {
			up = append(up, r.ID)
			continue
		}
		not = append(not, r.ID+" "+number(was)+" to "+number(now))
	}
	return up, not
}

func number(v *uint64) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprint(*v)
}

func judgeBlocks(v RestartValues, before, after []RestartReading) observe.Check {
	var f finding
	up, not := rising(before, after, v.Head(), func(r RestartReading) *uint64 { return r.Height })
	if len(up) < several(len(after)) || len(after) == 0 {
		f.fail("heights rise above %d on %d nodes, %d are needed (%s)", v.Head(), len(up), max(1, several(len(after))),
			strings.Join(not, ", "))
	}
	return f.check(CheckBlocks, "heights rise above %d on %s", v.Head(), strings.Join(up, ", "))
}

func judgeSeals(v RestartValues, before, after []RestartReading) observe.Check {
	var f finding
	up, not := rising(before, after, v.K(), func(r RestartReading) *uint64 { return r.Sealed })
	if len(up) < several(len(after)) || len(after) == 0 {
		f.fail("new seals above macroblock %d are seen on %d nodes, %d are needed (%s)", v.K(), len(up), max(1,
			several(len(after))), strings.Join(not, ", "))
	}
	return f.check(CheckSeals, "last_sealed_mb_index rises on %s", strings.Join(up, ", "))
}

func judgeEligible(v RestartValues, after []RestartReading) observe.Check {
	var f finding
	shown := []string{}
	for _, r := range after {
		if !r.EligibleKnown {
			continue
		}
		shown = append(shown, r.ID)
		for _, id := range v.Manifest.Restart.Excluded {
			if slices.Contains(r.Eligible, id) {
				f.fail("%s shows the barred %s in the eligible set of macroblock %d", r.ID, id, v.K()+1)
			}
		}
	}
	if len(shown) == 0 {
		f.blank("no node shows the certificate of macroblock %d yet", v.K()+1)
	}
	return f.check(CheckEligible, "no barred identity in the eligible set of macroblock %d, shown by %s", v.K()+1,
		strings.Join(shown, ", "))
}

func judgeTips(after []RestartReading, common uint64) observe.Check {
	var f finding
	groups := map[node.Hash][]string{}
	for _, r := range after {
		if r.Common == nil {
			f.blank("%s does not show macroblock %d", r.ID, common)
			continue
		}
		groups[*r.Common] = append(groups[*r.Common], r.ID)
	}
	if len(groups) > 1 {
		f.fail("the nodes show %d different macroblocks %d: %v", len(groups), common, groups)
	}
	if len(groups) == 0 && len(after) == 0 {
		f.blank("no node was looked at")
	}
	return f.check(CheckTips, "all %d nodes show the same macroblock %d", len(after), common)
}

// Told is what another operator's restart verify says.
type Told struct {
	By     string    `json:"by"`
	Index  uint64    `json:"index"`
	Hash   node.Hash `json:"hash"`
	Record string    `json:"record_sha256"`
	// Own is the hash of that macroblock on the nodes of the one who verifies; nil:
	// they do not show it.
	Own *node.Hash `json:"own"`
}

func judgeOperators(v RestartValues, after []RestartReading, common uint64, told []Told) observe.Check {
	var f finding
	need := several(len(v.Operators))
	agree := []string{}
	if slices.ContainsFunc(after, func(r RestartReading) bool { return r.Common != nil }) {
		agree = append(agree, "yours")
	}
	for _, t := range told {
		switch {
		case t.Record != v.Record:
			f.fail("the document of %s is of another record", t.By)
		case t.Own == nil:
			f.blank("your nodes do not show macroblock %d, which %s compares at", t.Index, t.By)
		case *t.Own != t.Hash:
			f.fail("%s has another macroblock %d", t.By, t.Index)
		case t.Index <= v.K():
			f.blank("%s compares at macroblock %d, which is not above %d", t.By, t.Index, v.K())
		case !slices.Contains(agree, t.By):
			agree = append(agree, t.By)
		}
	}
	if len(agree) < need {
		f.blank("%d of %d operators are known to agree; give the documents of the others (restart verify -o json)", len(agree), need)
	}
	return f.check(CheckOperator, "the nodes of %s agree", strings.Join(agree, ", "))
}

func judgeSides(v RestartValues, after []RestartReading) observe.Check {
	var f finding
	for _, r := range after {
		if why := r.oldSide(v); why != "" {
			f.fail("%s %s", r.ID, why)
		} else if !r.Reached {
			f.blank("%s cannot be seen: %s", r.ID, r.Why)
		}
	}
	return f.check(CheckSides, "no node is on the old side")
}

func judgeTemporaries(after []RestartReading) observe.Check {
	var f finding
	for _, r := range after {
		if len(r.OneShot) > 0 {
			f.fail("%s still carries %s", r.ID, strings.Join(r.OneShot, ", "))
		} else if !r.Reached {
			f.blank("%s cannot be seen", r.ID)
		}
	}
	return f.check(CheckTemp, "no node carries a variable of the restart")
}
