package restart

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
)

// RecordSchema names the record of a restart.
const RecordSchema = "qnetops/restart-record/v1"

// The names of files in a record's folder. Evidence and its signatures lie in EvidenceFolder under their own names.
const (
	RecordName     = "record.json"
	SigSuffix      = ".sig"
	SignersName    = "allowed_signers"
	EvidenceFolder = "evidence"
	ManifestTOML   = "manifest.toml"
	ManifestJSON   = "manifest.json"
	ConstantsName  = "genesis_constants.rs" // the five constants, to paste
)

// Release is the build that restarts the chain.
type Release struct {
	Commit string `json:"commit"`             // of the node's source, 7 to 40 hex digits
	Image  string `json:"image"`              // repository@sha256:…
	Build  string `json:"build_instructions"` // how anyone builds that image from that commit
}

// oneLine is the text of the build instructions without its line ends and tabs.
func (r Release) oneLine() string {
	return strings.NewReplacer("\r\n", "", "\n", "", "\t", "").Replace(r.Build)
}

// Thresholds say how many are needed for what.
type Thresholds struct {
	Window    uint64   `json:"window"`    // the stalled macroblock whose committee this is
	Committee []string `json:"committee"` // sorted
	Quorum    int      `json:"quorum"`    // of the whole committee
	Alive     []string `json:"alive"`     // members shown alive since the stall and not barred
	// SignedUntil are members that signed until the stall, were not seen since, and are not barred.
	SignedUntil []string `json:"signed_until_stall"`
	Remaining   int      `json:"remaining"` // members that are not barred
	// SurvivorsNeeded is the quorum of the remaining members: so many must run the release before anything is sealed.
	SurvivorsNeeded int `json:"survivors_needed"`
	Spare           int `json:"spare"` // of those taken to vote, how many may fail
}

// RecordChoice repeats how K and the exclusion were asked for, so that anyone can ask the same.
type RecordChoice struct {
	Below    uint64   `json:"below"`  // 0: no bound
	Forged   uint64   `json:"forged"` // 0: none is
	Absent   []Absent `json:"absent"`
	Add      []Added  `json:"exclude_add"`
	Drop     []string `json:"exclude_drop"`
	List     []string `json:"exclude_list"` // null: the proposed one
	ListName string   `json:"exclude_list_name"`
}

// Record is what is published before a restart is executed. Everything in it can be recomputed from the files in its folder and
// from any operator's own nodes, but the release, the start and what the archive host showed.
type Record struct {
	Schema      string            `json:"schema"`
	Fleet       string            `json:"fleet"`
	Operator    string            `json:"operator"` // who publishes and signs
	Tool        string            `json:"tool"`
	CreatedAt   time.Time         `json:"created_at"` // also the time at which keys had to count
	K           uint64            `json:"k"`
	Hash        node.Hash         `json:"hash"`
	Digest      node.Hash         `json:"digest"`
	DigestPred  node.Hash         `json:"digest_pred"`
	StartAt     time.Time         `json:"start_at"` // UTC; nobody starts before it
	Release     Release           `json:"release"`
	Manifest    manifest.Document `json:"manifest"`
	Exclusion   Exclusion         `json:"exclusion"`
	Thresholds  Thresholds        `json:"thresholds"`
	Trigger     Trigger           `json:"trigger"`
	Archive     ArchiveCheck      `json:"archive"`
	Choice      RecordChoice      `json:"choice"`
	Proposal    Proposal          `json:"proposal"`
	Assumptions []string          `json:"assumptions"`
	Files       []RecordFile      `json:"files"` // all of the folder but record.json and its signature, by name
}

// RecordInput is what a record is made of.
type RecordInput struct {
	Fleet, Operator, Tool string
	Files                 []File // evidence of all operators
	Signers               []byte // the allowed-signers file
	Choice                RecordChoice
	RollbackUseless       string
	Waived                string // reason of --waive trigger=REASON
	Block                 time.Duration
	Release               Release
	StartAt               time.Time
	Archive               ArchiveCheck
	Now                   time.Time
}

// Renderer writes a record for people. It depends on the record alone, gets it without the names it gives, and gives the same
// bytes for the same record.
type Renderer func(Record) (Folder, error)

// RecordFault is one reason why a record is not made.
type RecordFault struct {
	Code string
	Text string
}

// RecordRefused says why no record is made: all reasons at once.
type RecordRefused struct{ Faults []RecordFault }

func (e *RecordRefused) Error() string {
	var lines []string
	for _, f := range e.Faults {
		lines = append(lines, f.Code+": "+f.Text)
	}
	return "no record is made, and nothing was written:\n  " + strings.Join(lines, "\n  ")
}

// Hint says what to do.
func (e *RecordRefused) Hint() string {
	if len(e.Faults) == 1 && e.Faults[0].Code == TriggerCheck {
		return "mend the chain instead; where the operators decided otherwise: --waive " + TriggerCheck + "=REASON, which is published with the record"
	}
	return "docs/restart.md has a line for each of these"
}

// NewRecord makes the record and its folder, without writing it, and signs it. The error is *RecordRefused with every reason
// why there must be none, *FileFaults for an allowed-signers file that cannot be read, or a failure to render or to sign.
func NewRecord(in RecordInput, signer ssh.Signer, render Renderer) (Record, Folder, error) {
	signers, err := ParseAllowedSigners(SignersName, in.Signers)
	if err != nil {
		return Record{}, nil, err
	}
	now := in.Now.UTC().Truncate(time.Second)
	r := Record{Schema: RecordSchema, Fleet: in.Fleet, Operator: in.Operator, Tool: in.Tool, CreatedAt: now, StartAt: in.StartAt.UTC(),
		Release: in.Release, Archive: in.Archive, Choice: in.Choice.withLists()}
	merged := Merge(in.Files, signers, now)
	faults := r.compute(merged, TriggerInput{Block: in.Block, RollbackUseless: in.RollbackUseless, Waived: in.Waived})
	faults = append(faults, r.judge()...)
	faults = append(faults, judgeStart(r.StartAt, now)...)
	faults = append(faults, signerFault(signers, signer, in.Operator, now)...)
	faults = append(faults, in.judgeTexts()...)
	folder, named := evidenceFiles(in.Files)
	faults = append(faults, named...)
	if len(faults) > 0 {
		return Record{}, nil, &RecordRefused{faults}
	}
	folder[SignersName] = in.Signers
	return r.publish(folder, signer, render)
}

// DraftManifest is the manifest that a record of this input would have, for the release that is still to be cut: it needs neither
// release nor archive, start or trigger. The error is as for NewRecord.
func DraftManifest(in RecordInput) (manifest.Manifest, error) {
	signers, err := ParseAllowedSigners(SignersName, in.Signers)
	if err != nil {
		return manifest.Manifest{}, err
	}
	r := Record{Choice: in.Choice.withLists()}
	faults := r.compute(Merge(in.Files, signers, in.Now.UTC().Truncate(time.Second)), TriggerInput{Block: in.Block})
	if faults = append(faults, r.judgeManifest()...); len(faults) > 0 {
		return manifest.Manifest{}, &RecordRefused{faults}
	}
	return r.Manifest.Manifest, nil
}

// withLists has empty lists for those that are not there, so that it reads back as it was; List alone may be none.
func (c RecordChoice) withLists() RecordChoice {
	c.Absent, c.Add, c.Drop = append([]Absent{}, c.Absent...), append([]Added{}, c.Add...), append([]string{}, c.Drop...)
	return c
}

// publish puts the folder together and signs the record, which names the hash of every other file in it.
func (r Record) publish(folder Folder, signer ssh.Signer, render Renderer) (Record, Folder, error) {
	forms, err := r.forms()
	if err != nil {
		return Record{}, nil, err
	}
	maps.Copy(folder, forms)
	r.Files = folder.list()
	rendered, err := render(r)
	if err != nil {
		return Record{}, nil, fmt.Errorf("writing the record for people: %w", err)
	}
	maps.Copy(folder, rendered)
	r.Files = folder.list()
	data, err := Canonical(r)
	if err != nil {
		return Record{}, nil, err
	}
	if _, err := DecodeRecord(RecordName, data); err != nil {
		return Record{}, nil, fmt.Errorf("the record is not fit to be written, please report this: %w", err)
	}
	sig, err := Sign(signer, data)
	if err != nil {
		return Record{}, nil, err
	}
	folder[RecordName], folder[RecordName+SigSuffix] = data, sig
	return r, folder, nil
}

// forms are the manifest's files.
func (r Record) forms() (Folder, error) {
	m := r.Manifest.Manifest
	text, err := m.TOML()
	if err != nil {
		return nil, err
	}
	doc, err := m.JSON()
	if err != nil {
		return nil, err
	}
	return Folder{ManifestTOML: text, ManifestJSON: doc, ConstantsName: []byte(manifest.Render(m))}, nil
}

// compute fills in all that follows from the evidence, the choice and the exclusion.
func (r *Record) compute(m Merged, t TriggerInput) []RecordFault {
	p, err := Propose(m, ProposeOptions{Below: r.Choice.Below, Forged: r.Choice.Forged, Absent: r.Choice.Absent})
	if err != nil {
		return []RecordFault{{"choice", err.Error()}}
	}
	r.Proposal = p
	if p.K == nil || p.Hash == nil || p.Digest == nil || p.DigestPred == nil {
		return []RecordFault{{"no_k", cmp.Or(p.Stop, "the evidence is not enough to choose K; qnetops restart propose-k names what is missing")}}
	}
	r.K, r.Hash, r.Digest, r.DigestPred = *p.K, *p.Hash, *p.Digest, *p.DigestPred
	t.K, t.Forged, t.Absent = r.K, r.Choice.Forged, r.Choice.Absent
	r.Trigger = CheckTrigger(m, t)
	x := Exclude(m, p, ExcludeOptions{Add: r.Choice.Add, Drop: r.Choice.Drop, List: r.Choice.List, ListName: r.Choice.ListName})
	r.Exclusion = x
	r.Thresholds = Thresholds{Committee: x.Committee, Quorum: x.Before.Quorum, Alive: x.Alive, SignedUntil: x.SignedUntil, Remaining: x.After.Committee,
		SurvivorsNeeded: x.After.Quorum, Spare: x.After.Spare}
	if x.Stalled != nil {
		r.Thresholds.Window = *x.Stalled
	}
	r.Manifest = manifest.Manifest{Restart: manifest.Restart{ResumeFromMB: r.K, ResumeMBHash: r.Hash, Excluded: x.Excluded},
		Pin: manifest.Pin{Index: r.K, Hash: r.Hash, DigestAnchor: r.Digest, DigestPred: r.DigestPred}}.Document()
	r.Assumptions = assumptions(p)
	return r.judgeArchiveTime(m)
}

// judge finds what makes a record wrong whenever it is read; the start has a rule of its own.
func (r Record) judge() []RecordFault {
	var out []RecordFault
	if r.K > 0 && !r.Trigger.Holds() {
		out = append(out, RecordFault{TriggerCheck, strings.Join(r.Trigger.Reasons(), "; ")})
	}
	out = append(out, r.judgeManifest()...)
	out = append(out, r.judgeArchive()...)
	return append(out, r.judgeRelease()...)
}

// judgeManifest holds the manifest against the rules of the node and our own, and the list against the evidence.
func (r Record) judgeManifest() []RecordFault {
	var out []RecordFault
	if r.K == 0 {
		return nil
	}
	known := manifest.Known{Committee: r.Thresholds.Committee, Alive: slices.Concat(r.Thresholds.Alive, r.Thresholds.SignedUntil),
		K: &manifest.Computed{Index: r.K, Hash: r.Hash, DigestAnchor: r.Digest, DigestPred: r.DigestPred}}
	for _, f := range manifest.Validate(r.Manifest.Manifest, known) {
		out = append(out, RecordFault{f.Code, f.Key + ": " + f.Text})
	}
	for _, why := range r.Exclusion.Refused {
		out = append(out, RecordFault{"exclusion", why})
	}
	return out
}

// judgeArchiveTime refuses an archive check of another time than the stall: what a host served before the chain stood may be pruned.
// Where finality is forged the chain runs on, and the check comes first.
func (r Record) judgeArchiveTime(m Merged) []RecordFault {
	at := r.Archive.At
	switch begun, known := stallBegan(m); {
	case r.Archive.Schema == "":
	case at.After(r.CreatedAt.Add(clockSlack)):
		return []RecordFault{{"archive", fmt.Sprintf("the archive check of %s is of %s, which is still to come", r.Archive.Host, at.Format(time.RFC3339))}}
	case r.Choice.Forged == 0 && known && at.Before(begun.Add(-clockSlack)):
		return []RecordFault{{"archive", fmt.Sprintf("the archive check of %s is of %s, before the last seal at %s: it is not of this stall", r.Archive.Host, at.Format(time.RFC3339), begun.Format(time.RFC3339))}}
	}
	return nil
}

// judgeArchive demands a host that serves the state.
func (r Record) judgeArchive() []RecordFault {
	a := r.Archive
	switch {
	case a.Schema != ArchiveSchema || a.Host == "":
		return []RecordFault{{"archive", "there is no archive check: designate a host and run qnetops restart archive-check"}}
	case r.K > 0 && a.K != r.K:
		return []RecordFault{{"archive", fmt.Sprintf("the archive check of %s is about macroblock %d, the record about %d", a.Host, a.K, r.K)}}
	case !a.Serves():
		return []RecordFault{{"archive", fmt.Sprintf("%s is not shown to serve the state of macroblock %d: %s", a.Host, a.K, strings.Join(a.Failing(), ", "))}}
	case a.SnapshotHeight == nil || *a.SnapshotHeight > a.MaxHeight || a.MaxHeight != node.WindowHead(a.K):
		return []RecordFault{{"archive", fmt.Sprintf("the archive check of %s names no snapshot at or below the end of macroblock %d", a.Host, a.K)}}
	}
	return nil
}

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
	imageForm  = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}$`)
)

func (r Record) judgeRelease() []RecordFault {
	var out []RecordFault
	if !commitForm.MatchString(r.Release.Commit) {
		out = append(out, RecordFault{"commit", fmt.Sprintf("%q is no commit of the release: want 7 to 40 lower-case hex digits", clipped(r.Release.Commit))})
	}
	if !imageForm.MatchString(r.Release.Image) {
		out = append(out, RecordFault{"image", fmt.Sprintf("%q does not name one image: want REPOSITORY@sha256: with 64 hex digits; a tag can be moved", clipped(r.Release.Image))})
	}
	if strings.TrimSpace(r.Release.Build) == "" {
		out = append(out, RecordFault{"build", "there are no build instructions: nobody could check that the image is that commit"})
	}
	return out
}

// judgeTexts finds what the publisher wrote and nobody could read as it stands.
func (in RecordInput) judgeTexts() []RecordFault {
	texts := map[string]string{"the fleet's name": in.Fleet, "the operator": in.Operator, "--rollback-useless": in.RollbackUseless, "--waive": in.Waived,
		"the name of the list": in.Choice.ListName, "the build instructions": in.Release.oneLine()}
	for _, a := range in.Choice.Absent {
		texts["--absent "+clipped(a.Operator)] = a.Reason
	}
	for _, a := range in.Choice.Add {
		texts["--add "+clipped(a.ID)] = a.Reason
	}
	var out []RecordFault
	for _, what := range slices.Sorted(maps.Keys(texts)) {
		if !isPlain(texts[what]) {
			out = append(out, RecordFault{"text", what + ": holds a control character, or one that hides text or turns it round"})
		}
	}
	return out
}

func judgeStart(start, now time.Time) []RecordFault {
	switch {
	case start.Nanosecond() != 0:
		return []RecordFault{{"start", "the start is not on a whole second"}}
	case !start.After(now):
		return []RecordFault{{"start", fmt.Sprintf("the start %s is not in the future: it is %s", start.Format(time.RFC3339), now.Format(time.RFC3339))}}
	}
	return nil
}

// signerFault says beforehand that the signature would not be accepted by the file that is published with it.
func signerFault(signers Signers, signer ssh.Signer, operator string, now time.Time) []RecordFault {
	names, why := signers.of(signer.PublicKey(), now)
	if !slices.Contains(names, operator) {
		return []RecordFault{{"signer", fmt.Sprintf("the key %s is not one of %s: %s", ssh.FingerprintSHA256(signer.PublicKey()), operator, cmp.Or(why, "it is that of "+strings.Join(names, ", ")))}}
	}
	return nil
}

// fileForm is what a file of evidence may be called: other names change on their way through archives and file systems.
var fileForm = regexp.MustCompile(`^[A-Za-z0-9@_][A-Za-z0-9@._+-]{0,199}$`)

// evidenceFiles are the files of all operators under the names they have in the folder.
func evidenceFiles(files []File) (Folder, []RecordFault) {
	out, faults := Folder{}, []RecordFault{}
	taken := map[string]bool{}
	for _, f := range files {
		name := path.Join(EvidenceFolder, path.Base(strings.ReplaceAll(f.Name, `\`, "/")))
		twice := taken[strings.ToLower(name)]
		taken[strings.ToLower(name)] = true
		switch {
		case !fileForm.MatchString(path.Base(name)):
			faults = append(faults, RecordFault{"evidence", fmt.Sprintf("%q is no name that every machine keeps as it is: rename it and its signature, with letters, digits and @._+-", clipped(path.Base(name)))})
		case twice:
			faults = append(faults, RecordFault{"evidence", fmt.Sprintf("two files are called %s: rename one and its signature", path.Base(name))})
		case strings.HasSuffix(name, SigSuffix):
			faults = append(faults, RecordFault{"evidence", fmt.Sprintf("%s is named as a signature: name the file that it belongs to", path.Base(name))})
		}
		out[name] = f.Data
		if len(f.Sig) > 0 {
			out[name+SigSuffix] = f.Sig
		}
	}
	return out, faults
}

// assumptions are what cannot be read from a node and had to be taken for given (facts 2.6).
func assumptions(p Proposal) []string {
	out := []string{
		"a macroblock without bans holds a present, empty ban list: a sealer always writes one, and HTTP does not tell it from an absent one",
		"an empty eligible set is an absent one: HTTP does not tell them apart",
		"the committee's order is the one in which the serving nodes derive it, sorted by id",
		"no node serves the digests: they were recomputed; one operator compares them with his node's own value before the release",
	}
	if p.Verified != VerifiedSignatures {
		out = append(out, "the certificates rest on the agreement of several nodes, not on verified signatures: "+p.VerifiedNote)
	}
	return out
}
