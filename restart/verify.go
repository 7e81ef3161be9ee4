package restart

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/observe"
)

// VerifySchema names the document of restart verify-record.
const VerifySchema = "qnetops/verify-record/v1"

// maxDifferences bounds how many differences of one part are listed.
const maxDifferences = 50

// Difference is something in a record that does not hold, and where.
type Difference struct {
	Where string `json:"where"` // a file, a place in the record, or a host of the one who verifies
	Code  string `json:"code"`
	What  string `json:"what"`
}

// Verification is what came out when a record was recomputed.
type Verification struct {
	Schema       string    `json:"schema"`
	OK           bool      `json:"ok"`
	K            uint64    `json:"k"`
	StartAt      time.Time `json:"start_at"`
	RecordSHA256 string    `json:"record_sha256"` // to compare with the publisher over another channel
	Operator     string    `json:"operator"`      // who published
	Key          string    `json:"key"`           // fingerprint of the key that signed; empty: none that counts
	// Waived is who overrode the trigger and why; nil: nobody did.
	Waived *TriggerWaiver `json:"trigger_waived"`
	// Shown are the hosts of the one who verifies that show K with the recorded hash and digests.
	Shown       []string     `json:"shown_by"`
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// TriggerWaiver is a trigger that did not hold and was overridden.
type TriggerWaiver struct {
	By      string   `json:"by"` // who published
	Reason  string   `json:"reason"`
	Failing []string `json:"failing"` // the checks that do not pass
}

// VerifyInput is what a record is held against.
type VerifyInput struct {
	Folder  Folder
	Signers Signers  // of the one who verifies, never the folder's
	Own     Evidence // of his own nodes, gathered now, with K-1 and K among what was asked for
	Render  Renderer
	Block   time.Duration // of his inventory
	Now     time.Time
}

// VerifyRecord recomputes a record from the evidence in its folder and from the verifier's own nodes and lists everything that
// differs. The error is *FileFaults for a record that cannot be read at all.
func VerifyRecord(in VerifyInput) (Verification, error) {
	data := in.Folder[RecordName]
	r, err := DecodeRecord(RecordName, data)
	if err != nil {
		return Verification{}, err
	}
	v := &verifying{in: in, r: r, out: Verification{Schema: VerifySchema, K: r.K, StartAt: r.StartAt, RecordSHA256: FileHash(data), Operator: r.Operator,
		Shown: []string{}, Differences: []Difference{}, Notes: []string{}}}
	v.add(in.Folder.compareFiles(r.Files)...)
	v.signature(data)
	v.times()
	v.evidence()
	v.stated()
	v.rendered()
	v.own()
	v.out.OK = len(v.out.Differences) == 0
	return v.out, nil
}

// DecodeRecord reads a record strictly: what comes back has the canonical form data, byte for byte. Anything else is *FileFaults
// with the place of every fault that was found.
func DecodeRecord(name string, data []byte) (Record, error) {
	var r Record
	fail := func(faults []FileFault) (Record, error) {
		return Record{}, &FileFaults{faults, "a record is not edited by hand: fetch the folder again, or ask who published it"}
	}
	if json.Unmarshal(data, &r) == nil && r.Schema == RecordSchema {
		if again, err := Canonical(r); err == nil && bytes.Equal(again, data) {
			if faults := r.unplain(name, data); len(faults) > 0 {
				return fail(faults)
			}
			return r, nil
		}
	}
	return fail(explainRecord(name, data))
}

// unplain finds text in a canonical record that does more than to be shown. Only the build instructions have lines.
func (r Record) unplain(name string, data []byte) []FileFault {
	build, err := Canonical(r.Release.Build)
	if err == nil && isPlain(r.Release.oneLine()) {
		build = append([]byte(`"build_instructions":`), build...)
		data = bytes.Replace(data, build, bytes.Repeat([]byte{' '}, len(build)), 1)
	}
	rd := reader{name: name, data: data}
	rd.plain()
	return rd.faults
}

// explainRecord says what is wrong with bytes that are no canonical record. It comes back with at least one fault.
func explainRecord(name string, data []byte) []FileFault {
	rd := reader{name: name, data: data}
	if rd.bytesOK(); len(rd.faults) > 0 {
		return rd.faults
	}
	root := rd.read()
	if root == nil {
		return rd.faults
	}
	if rd.match(root, reflect.TypeFor[Record](), ""); len(rd.faults) > 0 {
		return rd.faults
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return []FileFault{{File: name, What: err.Error()}}
	}
	if r.Schema != RecordSchema {
		return []FileFault{{File: name, Key: "schema", What: fmt.Sprintf("is %q, want %q", clipped(r.Schema), RecordSchema)}}
	}
	again, err := Canonical(r)
	if err != nil {
		return []FileFault{{File: name, What: err.Error()}}
	}
	line, column := firstDifference(data, again)
	return []FileFault{{File: name, Line: line, Column: column, What: "is not the canonical form of what it says (RFC 8785, no newline at the end): it differs from here on"}}
}

// verifying is one verification under way.
type verifying struct {
	in  VerifyInput
	r   Record
	out Verification
}

// add keeps names of files that nobody could read as they stand from a terminal.
func (v *verifying) add(d ...Difference) {
	for i := range d {
		d[i].Where = clipped(d[i].Where)
	}
	v.out.Differences = append(v.out.Differences, d...)
}

func (v *verifying) differ(where, code, format string, args ...any) {
	v.add(Difference{where, code, fmt.Sprintf(format, args...)})
}

func (v *verifying) note(format string, args ...any) {
	v.out.Notes = append(v.out.Notes, fmt.Sprintf(format, args...))
}

func (v *verifying) signature(data []byte) {
	signed, err := Verify(v.in.Signers, data, v.in.Folder[RecordName+SigSuffix], v.in.Now)
	var bad *SignatureError
	switch {
	case errors.As(err, &bad):
		v.differ(RecordName+SigSuffix, bad.Code, "%s", bad.Reason)
	case err != nil:
		v.differ(RecordName+SigSuffix, CodeBadSignature, "%v", err)
	case !slices.Contains(signed.Principals, v.r.Operator):
		v.differ(RecordName+SigSuffix, CodeUnknownSigner, "the record is published by %s and signed with a key of %s", v.r.Operator, strings.Join(signed.Principals, ", "))
	default:
		v.out.Key = signed.Key
	}
	if v.out.Key != "" && !plainArmor(v.in.Folder[RecordName+SigSuffix]) {
		v.differ(RecordName+SigSuffix, CodeChanged, "the signature counts, and its file is not as one is written: a byte of it was changed")
	}
}

// plainArmor reports whether a signature is armored as ssh-keygen or this program does it. Armor that says the same can be written
// in other ways, and the signature's file is in no list of hashes; so only these are accepted, and no byte can change unseen.
func plainArmor(armor []byte) bool {
	block, rest := pem.Decode(armor)
	if block == nil || len(rest) > 0 || len(block.Headers) > 0 {
		return false
	}
	text := base64.StdEncoding.EncodeToString(block.Bytes)
	for _, width := range []int{64, 70} {
		var b strings.Builder
		b.WriteString("-----BEGIN SSH SIGNATURE-----\n")
		for line := range slices.Chunk([]byte(text), width) {
			b.Write(line)
			b.WriteByte('\n')
		}
		b.WriteString("-----END SSH SIGNATURE-----\n")
		if b.String() == string(armor) {
			return true
		}
	}
	return false
}

func (v *verifying) times() {
	if v.r.CreatedAt.After(v.in.Now.Add(clockSlack)) {
		v.differ(RecordName+": created_at", "future", "the record was made at %s, which is still to come (now %s)", v.r.CreatedAt.Format(time.RFC3339), v.in.Now.UTC().Format(time.RFC3339))
	}
	for _, f := range judgeStart(v.r.StartAt, v.r.CreatedAt) {
		v.differ(RecordName+": start_at", f.Code, "when the record was made: %s", f.Text)
	}
	if !v.r.StartAt.After(v.in.Now) {
		v.note("the start %s has passed: ask the others how far they are before you act", v.r.StartAt.Format(time.RFC3339))
	}
	if block := v.in.Block.String(); v.r.Trigger.Block != block {
		v.differ(RecordName+": trigger.block", "block", "the record counts with a block time of %s, your inventory says %s", clipped(v.r.Trigger.Block), block)
	}
}

// evidence merges the files of the folder anew, with the verifier's signers, and computes everything that follows.
func (v *verifying) evidence() {
	var files []File
	for _, name := range slices.Sorted(maps.Keys(v.in.Folder)) {
		if path.Dir(name) == EvidenceFolder && !strings.HasSuffix(name, SigSuffix) {
			files = append(files, File{Name: name, Data: v.in.Folder[name], Sig: v.in.Folder[name+SigSuffix]})
		}
	}
	m := Merge(files, v.in.Signers, v.r.CreatedAt)
	block, err := time.ParseDuration(v.r.Trigger.Block)
	if err != nil || block <= 0 {
		block = v.in.Block
	}
	again := v.r
	again.K = 0
	for _, f := range again.compute(m, TriggerInput{Block: block, RollbackUseless: v.r.Trigger.RollbackUseless, Waived: v.r.Trigger.Waived}) {
		v.differ("evidence", f.Code, "%s", f.Text)
	}
	v.compare("proposal", v.r.Proposal, again.Proposal)
	if again.K == 0 {
		v.differ(RecordName+": k", "no_k", "from the evidence in the folder, with your allowed signers, no K follows")
		return
	}
	for _, part := range []struct {
		where        string
		recorded, is any
	}{{"k", v.r.K, again.K}, {"hash", v.r.Hash, again.Hash}, {"digest", v.r.Digest, again.Digest}, {"digest_pred", v.r.DigestPred, again.DigestPred},
		{"manifest", v.r.Manifest, again.Manifest}, {"exclusion", v.r.Exclusion, again.Exclusion}, {"thresholds", v.r.Thresholds, again.Thresholds}, {"trigger", v.r.Trigger, again.Trigger},
		{"assumptions", v.r.Assumptions, again.Assumptions}} {
		v.compare(part.where, part.recorded, part.is)
	}
	for _, f := range v.r.judge() {
		v.differ(RecordName, f.Code, "%s", f.Text)
	}
}

// stated notes all that rests on the publisher's word alone: nothing of it can be recomputed, and each of it may be a lie.
func (v *verifying) stated() {
	c, by := v.r.Choice, v.r.Operator
	v.note("that %s/%s serves the state of macroblock %d is %s's word, of %s", v.r.Archive.Fleet, v.r.Archive.Host, v.r.Archive.K, by, v.r.Archive.At.UTC().Format(time.RFC3339))
	if t := v.r.Trigger; t.Waived != "" {
		v.out.Waived = &TriggerWaiver{By: by, Reason: t.Waived, Failing: append([]string{}, t.Reasons()...)}
		v.note("the trigger is waived by %s: %s; what does not pass: %s", by, t.Waived, cmp.Or(strings.Join(t.Reasons(), "; "), "nothing"))
	}
	if c.Forged > 0 {
		v.note("%s states that macroblock %d is forged; no evidence can show that: judge it yourself", by, c.Forged)
	}
	if c.Below > 0 {
		v.note("K was asked for below macroblock %d by %s", c.Below, by)
	}
	if v.r.Trigger.RollbackUseless != "" {
		v.note("%s states that a rollback is useless: %s", by, v.r.Trigger.RollbackUseless)
	}
	for _, a := range c.Absent {
		v.note("K was chosen without %s, by %s's word: %s", a.Operator, by, a.Reason)
	}
	for _, a := range c.Add {
		v.note("%s is barred by %s's word: %s", a.ID, by, a.Reason)
	}
	if len(c.Drop) > 0 {
		v.note("taken off the list of the barred by %s: %s", by, strings.Join(c.Drop, ", "))
	}
	if c.List != nil {
		v.note("the list of the barred is %s's own (%s), not the proposed one", by, c.ListName)
	}
	for _, l := range v.r.Proposal.LeftOut {
		v.note("not counted: %s: %s: %s", l.Name, l.Code, l.Reason)
	}
	for _, w := range v.r.Exclusion.Warnings {
		v.note("warning: %s", w)
	}
}

// compare lists where a part of the record differs from what was computed.
func (v *verifying) compare(where string, recorded, is any) {
	list, err := compareValues(RecordName+": "+where, recorded, is)
	if err != nil {
		v.differ(RecordName+": "+where, "unreadable", "%v", err)
	}
	if len(list) > maxDifferences {
		list = append(list[:maxDifferences], Difference{RecordName + ": " + where, "more", fmt.Sprintf("and %d more", len(list)-maxDifferences)})
	}
	v.add(list...)
}

// compareValues walks two values by their canonical forms.
func compareValues(where string, recorded, is any) ([]Difference, error) {
	a, errA := generic(recorded)
	b, errB := generic(is)
	if err := errors.Join(errA, errB); err != nil {
		return nil, err
	}
	return walk(where, a, b), nil
}

func generic(value any) (any, error) {
	data, err := Canonical(value)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var out any
	return out, dec.Decode(&out)
}

func walk(where string, a, b any) []Difference {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			var out []Difference
			keys := maps.Clone(x)
			maps.Copy(keys, y)
			for _, k := range slices.Sorted(maps.Keys(keys)) {
				out = append(out, walk(where+"."+k, x[k], y[k])...)
			}
			return out
		}
	case []any:
		if y, ok := b.([]any); ok && len(x) == len(y) {
			var out []Difference
			for i := range x {
				out = append(out, walk(fmt.Sprintf("%s[%d]", where, i), x[i], y[i])...)
			}
			return out
		}
	}
	if reflect.DeepEqual(a, b) {
		return nil
	}
	return []Difference{{where, "differs", fmt.Sprintf("recorded %s, computed %s", shown(a), shown(b))}}
}

func shown(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return clipped(string(data))
}

// rendered writes anew what follows from the record itself: the manifest's forms and the texts for people.
func (v *verifying) rendered() {
	forms, err := v.r.forms()
	if err != nil {
		v.differ(RecordName+": manifest", "unreadable", "%v", err)
	}
	plain := v.r
	plain.Files = nil
	texts, err := v.in.Render(plain)
	if err == nil {
		for _, f := range v.r.Files {
			if _, own := texts[f.Name]; !own {
				plain.Files = append(plain.Files, f)
			}
		}
		texts, err = v.in.Render(plain)
	}
	if err != nil {
		v.differ(RecordName, "unreadable", "it cannot be written for people: %v", err)
	}
	for _, set := range []Folder{forms, texts} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if got, ok := v.in.Folder[name]; !ok {
				v.differ(name, "missing", "is not there")
			} else if !bytes.Equal(got, set[name]) {
				line, column := firstDifference(got, set[name])
				v.differ(name, "not_of_record", "differs from what %s says from line %d, column %d on (the record was written by %s)", RecordName, line, column, clipped(v.r.Tool))
			}
		}
	}
}

// own holds the record against the verifier's own nodes.
func (v *verifying) own() {
	for _, h := range v.in.Own.Hosts {
		v.ownHost(h)
		v.ownNewer(&h)
	}
	if len(v.out.Shown) == 0 {
		v.differ("your hosts", "own_unknown", "none of them shows macroblocks %d and %d with the recorded hash and digests", v.r.K-1, v.r.K)
	}
	if v.r.Trigger.Kind != TriggerStalled || v.r.Trigger.Waived != "" {
		return
	}
	mine := Merged{Operators: []OperatorEvidence{{Evidence: v.in.Own}}}
	if c := checkFlat(mine, TriggerInput{Block: v.in.Block}, FlatBlocks*v.in.Block); c.Verdict != observe.Pass {
		v.differ("your hosts", "own_trigger", "%s %s: %s", c.Name, c.Verdict, c.Reason)
	}
}

// ownHost compares one node. What it does not show is no difference; somebody has to show it, and own sees to that.
func (v *verifying) ownHost(h HostFinding) {
	where := "your host " + h.ID
	at := func(index uint64) *Macroblock {
		for i := range h.Macroblocks {
			if mb := &h.Macroblocks[i]; mb.Index == index && mb.Held == HeldYes {
				return mb
			}
		}
		return nil
	}
	k, pred := at(v.r.K), at(v.r.K-1)
	before := len(v.out.Differences)
	v.ownCommittee(where, &h)
	if k != nil {
		if k.Hash != nil && *k.Hash != v.r.Hash {
			v.differ(where, "own_hash", "its macroblock %d has the hash %s, recorded is %s", v.r.K, k.Hash, v.r.Hash)
		}
		if k.Digest != nil && *k.Digest != v.r.Digest {
			v.differ(where, "own_digest", "the digest of its macroblock %d is %s, recorded is %s", v.r.K, k.Digest, v.r.Digest)
		}
		if k.Proof != nil && k.Proof.Fault != "" {
			v.differ(where, "own_certificate", "its certificate of macroblock %d does not hold: %s", v.r.K, k.Proof.Fault)
		}
	}
	if pred != nil {
		if pred.Digest != nil && *pred.Digest != v.r.DigestPred {
			v.differ(where, "own_digest", "the digest of its macroblock %d is %s, recorded is %s", v.r.K-1, pred.Digest, v.r.DigestPred)
		}
		if k != nil && k.Previous != nil && pred.Hash != nil && *k.Previous != *pred.Hash {
			v.differ(where, "own_link", "its macroblock %d does not follow its macroblock %d", v.r.K, v.r.K-1)
		}
	}
	if len(v.out.Differences) == before && k != nil && pred != nil && k.Hash != nil && k.Digest != nil && pred.Digest != nil {
		v.out.Shown = append(v.out.Shown, h.ID)
	}
}

// ownNewer finds what was sealed after the record was made and could have been K: then the record is of an earlier stall, whoever
// hands it on now.
func (v *verifying) ownNewer(h *HostFinding) {
	bounds := ProposeOptions{Below: v.r.Choice.Below, Forged: v.r.Choice.Forged}
	for _, mb := range slices.Backward(h.Macroblocks) {
		if mb.Held != HeldYes || mb.Timestamp == nil || mb.Proof == nil || faultOf(mb.Proof) != "" || !bounds.allows(mb.Index) {
			continue
		}
		if at := unixTime(*mb.Timestamp); at.After(v.r.CreatedAt.Add(clockSlack)) {
			v.differ("your host "+h.ID, "own_newer", "it has macroblock %d, sealed at %s, after the record was made at %s: the record is of an earlier time",
				mb.Index, at.Format(time.RFC3339), v.r.CreatedAt.Format(time.RFC3339))
			return
		}
	}
}

// ownCommittee compares the committee at the stall, where the node shows that macroblock.
func (v *verifying) ownCommittee(where string, h *HostFinding) {
	list := slices.Sorted(slices.Values(committeeOf(newWitness(v.in.Own.Operator, h), v.r.Thresholds.Window)))
	if len(list) > 0 && !slices.Equal(list, v.r.Thresholds.Committee) {
		v.differ(where, "own_committee", "its committee of macroblock %d is %s, recorded is %s", v.r.Thresholds.Window, strings.Join(list, ", "), strings.Join(v.r.Thresholds.Committee, ", "))
	}
}
