package restart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxList is the largest list of identities that is read, in bytes: a committee has at most a thousand.
const MaxList = 1 << 20

// ParseList reads a list of identities, one a line. Empty lines and lines that begin with # say nothing. The error is a
// *FileFaults with every fault: what is no text, and a list that is not strictly ascending by bytes, which a node refuses to
// start with (facts 6.1).
func ParseList(name string, data []byte) ([]string, error) {
	if len(data) > MaxList {
		return nil, &FileFaults{Faults: []FileFault{{File: name, What: fmt.Sprintf("is %d bytes, more than the %d of a list", len(data), MaxList)}}}
	}
	out := []string{}
	at := map[string]int{}
	var faults []FileFault
	number, previous := 0, ""
	for line := range strings.Lines(string(data)) {
		number++
		fault := func(what string) {
			faults = append(faults, FileFault{File: name, Line: number, What: what})
		}
		id := strings.TrimRight(line, "\n")
		switch {
		case id == "" || id[0] == '#':
			continue
		case !utf8.ValidString(id):
			fault("is not UTF-8")
		case number == 1 && strings.HasPrefix(id, "\ufeff"):
			fault("begins with a byte order mark")
		case strings.HasSuffix(id, "\r"):
			fault("ends in a carriage return: write the file with LF line ends")
		case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f && r <= 0xa0 }):
			fault(fmt.Sprintf("%q: an identity has no spaces and no control characters", clipped(id)))
		case at[id] > 0:
			fault(fmt.Sprintf("%s is on line %d already", clipped(id), at[id]))
		case id < previous:
			fault(fmt.Sprintf("%s comes after %s: the list must ascend by bytes", clipped(id), clipped(previous)))
		}
		if at[id] == 0 {
			at[id] = number
		}
		out, previous = append(out, id), id
	}
	if len(faults) > 0 {
		return nil, &FileFaults{Faults: faults, hint: "one identity a line, each once, sorted by bytes (LC_ALL=C sort -u)"}
	}
	return out, nil
}

// check refuses what was listed by hand and cannot be; committee is nil where it is not known.
func (x *exclusion) check(o ExcludeOptions, committee []string) {
	for i, id := range o.List {
		if i > 0 && id <= o.List[i-1] {
			x.refuse("%s: %q after %q: the list must be strictly ascending by bytes, or a node refuses to start", o.ListName, id, o.List[i-1])
		}
	}
	seen := map[string]string{}
	note := func(flag, id string) {
		switch {
		case seen[id] != "" && seen[id] == flag:
			x.refuse("%s names %s twice", flag, id)
		case seen[id] != "":
			x.refuse("%s and %s both name %s", seen[id], flag, id)
		case committee != nil && !slices.Contains(committee, id):
			x.refuse("%s: %s is not in the stalled committee", flag, id)
		}
		seen[id] = flag
	}
	for _, a := range o.Add {
		if strings.TrimSpace(a.Reason) == "" {
			x.refuse("--add %s has no reason", a.ID)
		}
		note("--add", a.ID)
	}
	for _, id := range o.Drop {
		note("--drop", id)
	}
	for _, id := range o.List {
		if committee != nil && !slices.Contains(committee, id) {
			x.refuse("%s: %s is not in the stalled committee", o.ListName, id)
		}
	}
}

// list makes the list: the proposed or the given one, with what was added and without what was dropped.
func (x *exclusion) list(o ExcludeOptions, proposed map[string]bool) {
	x.check(o, x.out.Committee)
	on, why := maps.Clone(proposed), map[string]string{}
	if o.List != nil {
		on = map[string]bool{}
		for _, id := range o.List {
			on[id] = true
			if !proposed[id] {
				why[id] = "given in " + o.ListName
			}
		}
	}
	for _, a := range o.Add {
		if !on[a.ID] {
			why[a.ID] = "added: " + a.Reason
		}
		on[a.ID] = true
	}
	for _, id := range o.Drop {
		if _, member := x.members[id]; member && !on[id] {
			x.warn("--drop %s: it is not on the list anyway", id)
		}
		delete(on, id)
	}
	for i := range x.out.Identities {
		id := &x.out.Identities[i]
		switch {
		case on[id.ID] && why[id.ID] != "":
			id.Verdict, id.Why = ExcludeGiven, why[id.ID]+"; "+id.Why
			if id.Life = x.lifeOf(*id); id.Life != LifeNone {
				x.warn("%s is listed and %s: %s", id.ID, lifeText(id.Life), id.Why)
			}
		case !on[id.ID] && proposed[id.ID]:
			id.Verdict = ExcludeDropped
		}
		if on[id.ID] {
			x.out.Excluded = append(x.out.Excluded, id.ID)
		}
	}
}

// lifeOf says what is known of an identity since the stall.
func (x *exclusion) lifeOf(id Identity) string {
	last, stalled := x.life[id.ID], *x.out.Stalled
	switch {
	case last == 0 || last+AliveWindows <= stalled:
		return LifeNone
	case x.later[id.ID], id.LastTakingIn != nil && *id.LastTakingIn > stalled, len(id.AnsweredBy) > 0:
		return LifeAlive
	}
	return LifeSigned
}

func lifeText(life string) string {
	return map[string]string{LifeAlive: "shown alive", LifeSigned: "signed until the stall", LifeNone: "not shown alive"}[life]
}

// count does the arithmetic of the quorum (DESIGN.md 3.6).
func (x *exclusion) count() {
	n, alive, signed := 0, 0, 0 // of all members
	missing := len(x.out.Unanswered)
	for i := range x.out.Identities {
		id := &x.out.Identities[i]
		id.Life = x.lifeOf(*id)
		listed := slices.Contains(x.out.Excluded, id.ID)
		n++
		switch {
		case id.Life == LifeAlive:
			alive++
			if !listed {
				x.out.Alive = append(x.out.Alive, id.ID)
			}
		case id.Life == LifeSigned:
			signed++
			if !listed {
				x.out.SignedUntil = append(x.out.SignedUntil, id.ID)
			}
		default:
			missing--
		}
	}
	x.out.Before = arithmetic(n, alive, signed, missing)
	left := len(x.out.SignedUntil)
	n, alive, missing = n-len(x.out.Excluded), len(x.out.Alive), missing-(signed-left)
	x.out.After = arithmetic(n, alive, left, missing)
	for i := range x.out.Identities {
		if id := &x.out.Identities[i]; slices.Contains(x.out.Excluded, id.ID) {
			with, without, returns := x.out.After, arithmetic(n+1, alive, left, missing), arithmetic(n+1, alive+1, left, missing)
			id.With, id.Without, id.Returns = &with, &without, &returns
		}
	}
	x.verdict()
}

// verdict refuses a list that leaves too few, and warns where it is close or rests on those not seen since the stall.
func (x *exclusion) verdict() {
	a := x.out.After
	away := ""
	if a.Away > 0 {
		away = fmt.Sprintf(", %d of which must be behind hosts that did not answer (%s)", a.Away, strings.Join(x.out.Unanswered, ", "))
	}
	who := fmt.Sprintf("%d identities are shown alive", a.Alive)
	if a.SignedUntil > 0 {
		who += fmt.Sprintf(" and %d signed until the stall%s", a.SignedUntil, away)
	}
	switch {
	case a.Committee == 0:
		x.refuse("the list leaves nobody in the committee")
	case a.Spare < 0:
		x.refuse("%s, fewer than the %d that the remaining committee of %d needs to seal", who, a.Quorum, a.Committee)
	case a.Spare == 0:
		x.warn("no fault is tolerated afterwards: %s and %d of %d must sign", who, a.Quorum, a.Committee)
	}
	x.boot()
	if a.Spare >= 0 && a.Alive < a.Quorum && a.Committee > 0 {
		x.warn("the quorum of %d rests on identities of which nothing was seen since the stall: %s; ask their operators before you publish",
			a.Quorum, strings.Join(x.out.SignedUntil, ", "))
	}
}

// boot warns where so few genesis identities are left that those would wait for each other for ever when they are started. A
// barred node that its operator starts all the same is heard as a peer; nobody can rely on that.
func (x *exclusion) boot() {
	var left, away []string
	for i := range x.out.Identities {
		switch id := &x.out.Identities[i]; {
		case !genesis(id.ID):
		case id.Life == LifeNone || slices.Contains(x.out.Excluded, id.ID):
			away = append(away, id.ID)
		default:
			left = append(left, id.ID)
		}
	}
	if len(left) > 0 && len(away) > 0 && len(left) < BootGenesis {
		x.warn("a genesis node waits at boot for three others, for ever, and %d are left: %s. Without %s, barred or not shown alive, none of them would "+
			"come up unless an operator of one of these starts it too", len(left), strings.Join(left, ", "), strings.Join(away, ", "))
	}
}

// genesis says whether an identity is one of the five of the genesis set, by its name.
func genesis(id string) bool {
	n, ok := strings.CutPrefix(id, "genesis_node_00")
	return ok && len(n) == 1 && n >= "1" && n <= "5"
}
