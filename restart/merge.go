package restart

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// File is a file of evidence with its detached signature, as they were read.
type File struct {
	Name string
	Data []byte
	Sig  []byte // armored; empty where there is none
}

// Further codes of LeftOut; the first three are those of a SignatureError.
const (
	CodeUnreadable = "unreadable"
	CodeConflict   = "conflict"
	CodeOtherChain = "other_chain"
	CodeFuture     = "future"
	CodeGap        = "gap"        // a number is missing between an operator's files; what is there counts
	CodeSuperseded = "superseded" // a host's macroblock of which a later supplement says something else
)

// Merge reads the files of all operators into one body of evidence and names whatever does not count. What it gives does
// not depend on the order of the files. Nothing is settled by majority: of two files that contradict each other none counts.
//
//   - A file counts if one of the signers signed these very bytes, and speaks as the operator he is.
//   - An operator's files carry one id and rising numbers. A later one adds to and corrects the earlier ones. Two contents
//     under one number are a conflict, and so are two ids: which of them holds is for the operator to say.
//   - A key that signs as two operators is a conflict: they were to be independent.
//   - Files that name different networks are left out, all of them.
//
// now is the time at which keys must count and evidence must have been taken.
func Merge(files []File, signers Signers, now time.Time) Merged {
	m := merging{signers: signers, now: now, out: Merged{Operators: []OperatorEvidence{}, LeftOut: []LeftOut{}, Expected: signers.Principals()}}
	if m.out.Expected == nil {
		m.out.Expected = []string{}
	}
	read := m.oneChain(m.oneKeyEach(m.readAll(sortedFiles(files))))
	byOperator := map[string][]readFile{}
	for _, r := range read {
		byOperator[r.ev.Operator] = append(byOperator[r.ev.Operator], r)
	}
	for _, operator := range slices.Sorted(maps.Keys(byOperator)) {
		if e, ok := m.operator(byOperator[operator]); ok {
			m.out.Operators = append(m.out.Operators, e)
		}
	}
	slices.SortFunc(m.out.LeftOut, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Reason, b.Reason))
	})
	return m.out
}

func sortedFiles(files []File) []File {
	out := slices.Clone(files)
	slices.SortFunc(out, func(a, b File) int {
		return cmp.Or(cmp.Compare(filepath.Base(a.Name), filepath.Base(b.Name)), bytes.Compare(a.Data, b.Data), bytes.Compare(a.Sig, b.Sig))
	})
	return out
}

type merging struct {
	signers Signers
	now     time.Time
	out     Merged
}

// readFile is a file that is readable and signed by whom it says.
type readFile struct {
	ev  Evidence
	ref FileRef
}

func (m *merging) leaveOut(name, code, format string, args ...any) {
	m.out.LeftOut = append(m.out.LeftOut, LeftOut{Name: name, Code: code, Reason: fmt.Sprintf(format, args...)})
}

// readAll reads files in their order, several at a time.
func (m *merging) readAll(files []File) []readFile {
	read, left := make([]*readFile, len(files)), make([]*LeftOut, len(files))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				read[i], left[i] = m.read(files[i])
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	wg.Wait()
	var out []readFile
	seen := map[string]bool{}
	for i, r := range read {
		if r == nil {
			m.out.LeftOut = append(m.out.LeftOut, *left[i])
		} else if !seen[r.ref.SHA256] {
			seen[r.ref.SHA256] = true // the same content twice is one file
			out = append(out, *r)
		}
	}
	return out
}

func (m *merging) read(f File) (*readFile, *LeftOut) {
	name := filepath.Base(f.Name)
	signed, err := Verify(m.signers, f.Data, f.Sig, m.now)
	var bad *SignatureError
	if errors.As(err, &bad) {
		return nil, &LeftOut{name, bad.Code, bad.Reason}
	}
	ev, err := Decode(name, f.Data)
	if err != nil {
		reason := err.Error()
		if faults, ok := errors.AsType[*FileFaults](err); ok {
			reason = faults.First()
		}
		return nil, &LeftOut{name, CodeUnreadable, reason}
	}
	switch {
	case !slices.Contains(signed.Principals, ev.Operator):
		return nil, &LeftOut{name, CodeUnknownSigner, fmt.Sprintf("it speaks as %s and is signed with a key of %s", ev.Operator, strings.Join(signed.Principals, ", "))}
	case ev.TakenAt.After(m.now.Add(clockSlack)):
		return nil, &LeftOut{name, CodeFuture, fmt.Sprintf("taken at %s, which is still to come (now %s)", ev.TakenAt.Format(time.RFC3339), m.now.UTC().Format(time.RFC3339))}
	}
	sum := sha256.Sum256(f.Data)
	return &readFile{ev, FileRef{Name: name, Number: ev.Number, SHA256: hex.EncodeToString(sum[:]), Signer: ev.Operator, Key: signed.Key}}, nil
}

// oneKeyEach leaves out what one key signed as several operators.
func (m *merging) oneKeyEach(read []readFile) []readFile {
	operators := map[string][]string{}
	for _, r := range read {
		if !slices.Contains(operators[r.ref.Key], r.ev.Operator) {
			operators[r.ref.Key] = append(operators[r.ref.Key], r.ev.Operator)
		}
	}
	return slices.DeleteFunc(read, func(r readFile) bool {
		who := operators[r.ref.Key]
		if len(who) < 2 {
			return false
		}
		slices.Sort(who)
		m.leaveOut(r.ref.Name, CodeConflict, "the key %s signs as %s, who are then not independent", r.ref.Key, strings.Join(who, " and "))
		return true
	})
}

// oneChain leaves out all that name a network where they name more than one: none of them is known to be the right one.
func (m *merging) oneChain(read []readFile) []readFile {
	names := map[string]string{} // network -> an operator
	for _, r := range read {
		if n := r.ev.Network; n != nil && names[n.String()] == "" {
			names[n.String()] = r.ev.Operator
		}
	}
	if len(names) < 2 {
		return read
	}
	var all []string
	for _, n := range slices.Sorted(maps.Keys(names)) {
		all = append(all, n[:12]+" ("+names[n]+")")
	}
	return slices.DeleteFunc(read, func(r readFile) bool {
		if r.ev.Network != nil {
			m.leaveOut(r.ref.Name, CodeOtherChain, "network %s; the files name %s", r.ev.Network.Short(), strings.Join(all, ", "))
		}
		return r.ev.Network != nil
	})
}

// operator takes one operator's files together.
func (m *merging) operator(files []readFile) (OperatorEvidence, bool) {
	ids := map[string]bool{}
	for _, r := range files {
		ids[r.ev.ID+" of fleet "+r.ev.Fleet] = true
	}
	if len(ids) > 1 {
		for _, r := range files {
			m.leaveOut(r.ref.Name, CodeConflict, "%s gave evidence under %d ids (%s); he has to say which holds, by withdrawing the other files",
				r.ev.Operator, len(ids), strings.Join(slices.Sorted(maps.Keys(ids)), ", "))
		}
		return OperatorEvidence{}, false
	}
	byNumber := map[uint64][]readFile{}
	for _, r := range files {
		byNumber[r.ev.Number] = append(byNumber[r.ev.Number], r)
	}
	var out OperatorEvidence
	last := uint64(0)
	for _, n := range slices.Sorted(maps.Keys(byNumber)) {
		if same := byNumber[n]; len(same) > 1 {
			for _, r := range same {
				m.leaveOut(r.ref.Name, CodeConflict, "%s gave %d contents under number %d of %s", r.ev.Operator, len(same), n, r.ev.ID)
			}
			last = n
			continue
		}
		r := byNumber[n][0]
		if n > last+1 {
			m.leaveOut(r.ref.Name, CodeGap, "number %d of %s by %s follows on %d: the files between are missing", n, r.ev.ID, r.ev.Operator, last)
		}
		last = n
		if len(out.Files) == 0 {
			out.Evidence, out.ReadAt = r.ev, map[string]time.Time{}
		} else {
			m.supplement(&out.Evidence, r)
		}
		for _, h := range r.ev.Hosts {
			if h.Reachable || out.ReadAt[h.ID].IsZero() {
				out.ReadAt[h.ID] = r.ev.TakenAt
			}
		}
		out.Files = append(out.Files, r.ref)
	}
	return out, len(out.Files) > 0
}

// supplement takes a later file in: what it knows counts, what it does not know stays as it was.
func (m *merging) supplement(ev *Evidence, r readFile) {
	later := r.ev
	ev.Number, ev.Tool, ev.TakenAt = later.Number, later.Tool, later.TakenAt
	if later.Network != nil {
		ev.Network = later.Network
	}
	ev.Asked = append(slices.Clone(ev.Asked), later.Asked...)
	hosts := map[string]HostFinding{}
	for _, h := range ev.Hosts {
		hosts[h.ID] = h
	}
	for _, h := range later.Hosts {
		old, known := hosts[h.ID]
		switch {
		case !known || !old.Reachable:
			hosts[h.ID] = h
		case h.Reachable:
			hosts[h.ID] = m.host(old, h, r.ref.Name)
		}
	}
	ev.Hosts = nil
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		ev.Hosts = append(ev.Hosts, hosts[id])
	}
}

// host takes a later finding of a host in.
func (m *merging) host(old, later HostFinding, file string) HostFinding {
	out := later
	out.NodeID, out.Build = cmp.Or(later.NodeID, old.NodeID), cmp.Or(later.Build, old.Build)
	out.Height, out.TipHash = cmp.Or(later.Height, old.Height), cmp.Or(later.TipHash, old.TipHash)
	out.Sealed, out.Finalized = cmp.Or(later.Sealed, old.Sealed), cmp.Or(later.Finalized, old.Finalized)
	out.Recovery, out.Archive = cmp.Or(later.Recovery, old.Recovery), cmp.Or(later.Archive, old.Archive)
	out.FloorAtLeast, out.FloorExact = cmp.Or(later.FloorAtLeast, old.FloorAtLeast), cmp.Or(later.FloorExact, old.FloorExact)
	if f := out.FloorAtLeast; f != nil && out.FloorExact != nil && *out.FloorExact < *f {
		out.FloorExact = nil // the node has certified more since that line
	}
	if later.Committee == nil {
		out.Committee, out.Banned, out.Keys = old.Committee, old.Banned, old.Keys
	}
	if later.Snapshots == nil {
		out.Snapshots = old.Snapshots
	}
	blocks := map[uint64]Macroblock{}
	for _, b := range old.Macroblocks {
		blocks[b.Index] = spelledOut(b, old.Committee, out.Committee)
	}
	for _, b := range later.Macroblocks {
		before, known := blocks[b.Index]
		if known && b.Held == HeldUnknown && before.Held != HeldUnknown {
			continue
		}
		if known && before.Hash != nil && (b.Hash == nil || *b.Hash != *before.Hash) {
			m.leaveOut(file, CodeSuperseded, "host %s showed macroblock %d as %s before; what number %s says counts", later.ID, b.Index, before.Hash.Short(), file)
		}
		b = spelledOut(b, later.Committee, out.Committee)
		if known && b.Proof == nil && before.Proof != nil && b.Hash != nil && before.Hash != nil && *b.Hash == *before.Hash {
			b = before // a certificate that was seen is not lost because it could not be read again
		}
		blocks[b.Index] = b
	}
	out.Macroblocks = []Macroblock{}
	for _, i := range slices.Sorted(maps.Keys(blocks)) {
		out.Macroblocks = append(out.Macroblocks, blocks[i])
	}
	out.Lines = mergedLines(old.Lines, later.Lines)
	return out
}

// spelledOut writes the committee of a certificate out where it was left to the host's and that has changed.
func spelledOut(b Macroblock, was, is []string) Macroblock {
	if b.Proof == nil || b.Proof.Members != nil || slices.Equal(was, is) {
		return b
	}
	c := *b.Proof
	c.Members = was
	b.Proof = &c
	return b
}

// mergedLines keeps each line once, in order of time, those without a time first.
func mergedLines(old, later []Line) []Line {
	out := slices.Clone(old)
	for _, l := range later {
		if !slices.ContainsFunc(old, func(o Line) bool { return o.SHA256 == l.SHA256 }) {
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b Line) int {
		return timeOf(a).Compare(timeOf(b))
	})
	return out
}

func timeOf(l Line) time.Time {
	if l.At == nil {
		return time.Time{}
	}
	return *l.At
}
