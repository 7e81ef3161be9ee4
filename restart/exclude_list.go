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
			if x.alive(id.ID) {
				x.warn("%s is listed and shown alive: %s", id.ID, id.Why)
			}
		case !on[id.ID] && proposed[id.ID]:
			id.Verdict = ExcludeDropped
		}
		if on[id.ID] {
			x.out.Excluded = append(x.out.Excluded, id.ID)
		}
	}
}

// alive says whether the evidence shows an identity alive shortly before the stall or after it.
func (x *exclusion) alive(id string) bool {
	return x.life[id] > 0 && x.life[id]+AliveWindows > *x.out.Stalled
}

// count does the arithmetic of the quorum (DESIGN.md 3.6).
func (x *exclusion) count() {
	all := 0
	for _, id := range x.out.Committee {
		if !x.alive(id) {
			continue
		}
		all++
		if !slices.Contains(x.out.Excluded, id) {
			x.out.Alive = append(x.out.Alive, id)
		}
	}
	n, alive := len(x.out.Committee)-len(x.out.Excluded), len(x.out.Alive)
	x.out.Before = arithmetic(len(x.out.Committee), all)
	x.out.After = arithmetic(n, alive)
	for i := range x.out.Identities {
		if id := &x.out.Identities[i]; slices.Contains(x.out.Excluded, id.ID) {
			with, without, returns := x.out.After, arithmetic(n+1, alive), arithmetic(n+1, alive+1)
			id.With, id.Without, id.Returns = &with, &without, &returns
		}
	}
	switch {
	case n == 0:
		x.refuse("the list leaves nobody in the committee")
	case x.out.After.Spare < 0:
		x.refuse("%d identities are shown alive, fewer than the %d that the remaining committee of %d needs to seal", alive, x.out.After.Quorum, n)
	case x.out.After.Spare == 0:
		x.warn("no fault is tolerated afterwards: %d identities are shown alive and %d of %d must sign", alive, x.out.After.Quorum, n)
	}
}
