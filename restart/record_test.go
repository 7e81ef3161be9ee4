package restart

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	lab "github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// incident is a chain that stalled three hours before now, and what two operators hold of it: nodes 0 to 2 and 3 to 5.
type incident struct {
	led  *lab.Ledger
	now  time.Time
	keys map[string]ssh.Signer
}

func newIncident(t *testing.T) *incident {
	t.Helper()
	now := stalledAt.Add(3 * time.Hour)
	led, err := lab.New(lab.Config{Seed: 9, Macroblocks: 20, Members: 6, Stalled: stalledAt})
	if err != nil {
		t.Fatal(err)
	}
	i := &incident{led: led, now: now, keys: map[string]ssh.Signer{}}
	for n, name := range []string{"ann", "bob", "eve"} {
		signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(n + 1)}, ed25519.SeedSize)))
		if err != nil {
			t.Fatal(err)
		}
		i.keys[name] = signer
	}
	return i
}

// allowed is an allowed-signers file of these operators.
func (i *incident) allowed(names ...string) []byte {
	var b bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&b, "%s namespaces=\"%s\" %s", name, Namespace, ssh.MarshalAuthorizedKey(i.keys[name].PublicKey()))
	}
	return b.Bytes()
}

// gather is the evidence of an operator whose hosts run the nodes from first on.
func (i *incident) gather(t *testing.T, operator string, first int) Evidence {
	t.Helper()
	var hosts []Host
	for n := first; n < first+3; n++ {
		nd := i.led.Node(lab.NodeConfig{ID: i.led.Members()[n]})
		c, done := nd.Open()
		t.Cleanup(done)
		hosts = append(hosts, Host{ID: fmt.Sprintf("%03d", n+1), Node: c})
	}
	ev, err := Gather(context.Background(), hosts, Options{Fleet: operator + "s-fleet", Operator: operator, ID: strings.Repeat("0", 31) + fmt.Sprint(first), Number: 1, Tool: "test", Now: i.now, Block: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func (i *incident) file(t *testing.T, ev Evidence) File {
	t.Helper()
	data, err := Canonical(ev)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := Sign(i.keys[ev.Operator], data)
	if err != nil {
		t.Fatal(err)
	}
	return File{Name: "evidence-" + ev.Operator + ".json", Data: data, Sig: sig}
}

// plainRender stands for the texts for people.
func plainRender(r Record) (Folder, error) {
	var names []string
	for _, f := range r.Files {
		names = append(names, f.Name)
	}
	return Folder{"record.md": fmt.Appendf(nil, "K %d %s\n%s\n", r.K, r.Hash, strings.Join(names, "\n"))}, nil
}

func archiveOf(k uint64) ArchiveCheck {
	height := node.WindowHead(k) - 90
	return ArchiveCheck{Schema: ArchiveSchema, Fleet: "anns-fleet", Host: "001", At: stalledAt, K: k, MaxHeight: node.WindowHead(k), SnapshotHeight: &height, OK: true,
		Checks: []observe.Check{{Name: ArchiveSnapshot, Verdict: observe.Pass, Reason: "it is there"}}, Holders: []Holder{}, Notes: []string{},
		Macroblocks: Sampled{Asked: []uint64{}}, Bodies: Sampled{Asked: []uint64{}}}
}

func (i *incident) input(files ...File) RecordInput {
	return RecordInput{Fleet: "anns-fleet", Operator: "ann", Tool: "qnetops test", Files: files, Signers: i.allowed("ann", "bob"),
		RollbackUseless: "the newest seal itself is what fails", Block: time.Second, StartAt: i.now.Add(6 * time.Hour), Now: i.now, Archive: archiveOf(20),
		Release: Release{Commit: "0123456789abcdef", Image: "registry.example.org/qnet@sha256:" + strings.Repeat("5a", 32), Build: "git checkout, make image\n"}}
}

// good is a record that holds, with bob's own evidence to verify it by.
func good(t *testing.T) (*incident, RecordInput, Evidence) {
	t.Helper()
	i := newIncident(t)
	bob := i.gather(t, "bob", 3)
	return i, i.input(i.file(t, i.gather(t, "ann", 0)), i.file(t, bob)), bob
}

// TestRecord takes one incident, whose evidence takes its time to gather, through all that can be said of a record.
func TestRecord(t *testing.T) {
	t.Parallel()
	i, in, bob := good(t)
	for name, test := range map[string]func(*testing.T, *incident, RecordInput, Evidence){
		"is made": recordIsMade, "sees every byte": everyByteIsSeen, "what was changed is found": whatWasChangedIsFound,
		"is refused": recordIsRefused, "what is only stated is said": whatIsOnlyStatedIsSaid, "numbers": numbersAreRead,
	} {
		t.Run(name, func(t *testing.T) { test(t, i, in, bob) })
	}
}

func (i *incident) verifyInput(t *testing.T, folder Folder, own Evidence) VerifyInput {
	t.Helper()
	signers, err := ParseAllowedSigners("his signers", i.allowed("ann", "bob"))
	if err != nil {
		t.Fatal(err)
	}
	return VerifyInput{Folder: folder, Signers: signers, Own: own, Render: plainRender, Block: time.Second, Now: i.now.Add(time.Hour)}
}

func recordIsMade(t *testing.T, i *incident, in RecordInput, bob Evidence) {
	r, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := i.led.Hash(20)
	if err != nil {
		t.Fatal(err)
	}
	nd := i.led.Node(lab.NodeConfig{ID: "reader"})
	if r.K != 20 || r.Hash != hash || r.Digest != nd.Fields(20).DigestV2() || r.DigestPred != nd.Fields(19).DigestV2() {
		t.Errorf("K %d %s %s %s", r.K, r.Hash, r.Digest, r.DigestPred)
	}
	if th := r.Thresholds; th.Quorum != 5 || th.Remaining != 6 || th.SurvivorsNeeded != 5 || th.Spare != 1 || !slices.Equal(th.Committee, i.led.Members()) || th.Window != 20 {
		t.Errorf("%+v", th)
	}
	// Each form of the manifest reads back as the same value, and is what the record says.
	for _, name := range []string{ManifestTOML, ManifestJSON, ConstantsName} {
		l, err := manifest.Read(name, folder[name])
		if err != nil || !l.Equal(r.Manifest.Manifest) || l.Pin.Index != 20 || l.Pin.DigestPred != r.DigestPred {
			t.Errorf("%s: %v %+v", name, err, l.Manifest)
		}
	}
	var names []string
	for _, f := range r.Files {
		names = append(names, f.Name)
	}
	want := []string{SignersName, "evidence/evidence-ann.json", "evidence/evidence-ann.json.sig", "evidence/evidence-bob.json", "evidence/evidence-bob.json.sig", ConstantsName, ManifestJSON, ManifestTOML, "record.md"}
	if !slices.Equal(names, want) {
		t.Errorf("files %q", names)
	}
	if _, again, err := NewRecord(in, i.keys["ann"], plainRender); err != nil || !bytes.Equal(again[RecordName], folder[RecordName]) {
		t.Errorf("the same input makes another record: %v", err)
	}
	v, err := VerifyRecord(i.verifyInput(t, folder, bob))
	if err != nil || !v.OK || len(v.Differences) > 0 || !slices.Equal(v.Shown, []string{"004", "005", "006"}) || v.RecordSHA256 != FileHash(folder[RecordName]) || v.Key == "" {
		t.Errorf("%v %+v", err, v)
	}
}

// Every single byte of every file that is changed is seen: all of them in short files, a sample of the long ones and both ends.
func everyByteIsSeen(t *testing.T, i *incident, in RecordInput, bob Evidence) {
	_, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, data := range folder {
		var places []int
		if len(data) <= 1500 && name != RecordName {
			for n := range data {
				places = append(places, n)
			}
		} else {
			for range Seeds(12) {
				places = append(places, rng.IntN(len(data)))
			}
			places = append(places, 0, len(data)-1)
		}
		if testing.Short() {
			rng.Shuffle(len(places), func(a, b int) { places[a], places[b] = places[b], places[a] })
			places = places[:min(len(places), 10)]
		}
		for _, n := range places {
			changed := maps.Clone(folder)
			changed[name] = bytes.Clone(data)
			changed[name][n] ^= 1 << rng.IntN(8)
			in := i.verifyInput(t, changed, bob)
			if name != RecordName && name != RecordName+SigSuffix {
				// What the hash of a file shows needs no evidence to be read again.
				r, err := DecodeRecord(RecordName, folder[RecordName])
				if d := changed.compareFiles(r.Files); err != nil || len(d) != 1 || d[0].Where != name || d[0].Code != "changed" {
					t.Errorf("seed %d: byte %d of %s: %v %v", seed, n, name, d, err)
				}
				continue
			}
			if name == RecordName+SigSuffix {
				v := verifying{in: in, r: Record{Operator: "ann"}}
				if v.signature(folder[RecordName]); len(v.out.Differences) == 0 {
					t.Errorf("seed %d: byte %d of %s is changed and nobody sees it", seed, n, name)
				}
				continue
			}
			if v, err := VerifyRecord(in); err == nil && v.OK {
				t.Errorf("seed %d: byte %d of %s is changed and nobody sees it", seed, n, name)
			}
		}
	}
}

func whatWasChangedIsFound(t *testing.T, i *incident, in RecordInput, bob Evidence) {
	_, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	// resign makes a record that somebody with ann's key changed on purpose and signed again.
	resign := func(change func(*Record)) func(*VerifyInput) {
		return func(v *VerifyInput) {
			r, err := DecodeRecord(RecordName, folder[RecordName])
			if err != nil {
				t.Fatal(err)
			}
			change(&r)
			data, err := Canonical(r)
			if err != nil {
				t.Fatal(err)
			}
			sig, err := Sign(i.keys["ann"], data)
			if err != nil {
				t.Fatal(err)
			}
			v.Folder[RecordName], v.Folder[RecordName+SigSuffix] = data, sig
		}
	}
	own := func(change func(h *HostFinding)) func(*VerifyInput) {
		return func(v *VerifyInput) {
			v.Own.Hosts = slices.Clone(v.Own.Hosts)
			h := &v.Own.Hosts[1]
			h.Macroblocks = slices.Clone(h.Macroblocks)
			change(h)
		}
	}
	last := func(h *HostFinding) *Macroblock { return &h.Macroblocks[len(h.Macroblocks)-1] }
	other := node.Hash{1, 2, 3}
	for _, c := range []struct {
		name   string
		change func(*VerifyInput)
		want   []string // code at where, each a part of a difference
	}{
		{"a file is missing", func(v *VerifyInput) { delete(v.Folder, ManifestTOML) }, []string{"missing manifest.toml"}},
		{"a file is added", func(v *VerifyInput) { v.Folder["evidence/note.txt"] = []byte("x") }, []string{"extra evidence/note.txt"}},
		{"no signature", func(v *VerifyInput) { delete(v.Folder, RecordName+SigSuffix) }, []string{"bad_signature record.json.sig"}},
		{"signed by another operator", func(v *VerifyInput) {
			v.Folder[RecordName+SigSuffix], err = Sign(i.keys["bob"], folder[RecordName])
		}, []string{"unknown_signer record.json.sig"}},
		{"signed by nobody he knows", func(v *VerifyInput) {
			v.Folder[RecordName+SigSuffix], err = Sign(i.keys["eve"], folder[RecordName])
		}, []string{"unknown_signer record.json.sig"}},
		{"his file knows one operator more", func(v *VerifyInput) {
			v.Signers, err = ParseAllowedSigners("s", i.allowed("ann", "bob", "eve"))
		}, []string{"no_k evidence"}},
		{"his file does not know bob", func(v *VerifyInput) { v.Signers, err = ParseAllowedSigners("s", i.allowed("ann")) }, []string{"differs record.json: proposal"}},
		{"another K", resign(func(r *Record) { r.K = 19 }), []string{"differs record.json: k", "archive record.json"}},
		{"another hash", resign(func(r *Record) { r.Hash = other }), []string{"differs record.json: hash", "own_hash your host 004", "own_unknown your hosts"}},
		{"another digest", resign(func(r *Record) { r.Digest = other }), []string{"differs record.json: digest", "own_digest your host 004"}},
		{"another digest of K-1", resign(func(r *Record) { r.DigestPred = other }), []string{"differs record.json: digest_pred", "own_digest your host 005"}},
		{"somebody barred", resign(func(r *Record) { r.Manifest.Restart.Excluded = []string{i.led.Members()[2]} }), []string{"differs record.json: manifest.restart.excluded", "not_of_record manifest.toml", "not_of_record genesis_constants.rs"}},
		{"another choice", resign(func(r *Record) { r.Choice.Below = 15 }), []string{"differs record.json: k", "differs record.json: proposal.k"}},
		{"another threshold", resign(func(r *Record) { r.Thresholds.SurvivorsNeeded = 2 }), []string{"differs record.json: thresholds.survivors_needed"}},
		{"another trigger", resign(func(r *Record) { r.Trigger.Checks[0].Reason = "trust me" }), []string{"differs record.json: trigger.checks[0].reason"}},
		{"a useless rollback withdrawn", resign(func(r *Record) { r.Trigger.RollbackUseless = "" }), []string{"differs record.json: trigger.verdict"}},
		{"another block time", resign(func(r *Record) { r.Trigger.Block = "1ms" }), []string{"block record.json: trigger.block"}},
		{"another image by tag", resign(func(r *Record) { r.Release.Image = "registry.example.org/qnet:latest" }), []string{"image record.json"}},
		{"a word for a commit", resign(func(r *Record) { r.Release.Commit = "HEAD" }), []string{"commit record.json"}},
		{"an archive that does not serve", resign(func(r *Record) { r.Archive.Checks[0].Verdict = observe.Unknown }), []string{"archive record.json"}},
		{"text that hides", resign(func(r *Record) { r.Trigger.RollbackUseless = "no\u200b use" }), []string{"!hides text"}},
		{"an escape in the operator's name", resign(func(r *Record) { r.Operator = "ann\x1b[2J" }), []string{"!control character"}},
		{"a negative count", resign(func(r *Record) { r.Thresholds.Spare = -1 }), []string{"differs record.json: thresholds.spare"}},
		{"an archive check of an earlier stall", resign(func(r *Record) { r.Archive.At = stalledAt.Add(-time.Hour) }), []string{"archive evidence"}},
		{"made in the future", resign(func(r *Record) { r.CreatedAt = r.CreatedAt.Add(48 * time.Hour) }), []string{"future record.json: created_at"}},
		{"a start before it was made", resign(func(r *Record) { r.StartAt = r.CreatedAt.Add(-time.Second) }), []string{"start record.json: start_at"}},
		{"a file listed that is not there", resign(func(r *Record) { r.Files[0].Name = "../x" }), []string{"bad_name", "extra allowed_signers"}},
		{"published under another name", resign(func(r *Record) { r.Operator = "bob" }), []string{"unknown_signer record.json.sig"}},
		{"his host has another hash", own(func(h *HostFinding) { last(h).Hash = &other }), []string{"own_hash your host 005"}},
		{"his host has another digest", own(func(h *HostFinding) { last(h).Digest = &other }), []string{"own_digest your host 005"}},
		{"his host's certificate does not hold", own(func(h *HostFinding) {
			c := *last(h).Proof
			c.Fault = node.FaultQuorum
			last(h).Proof = &c
		}), []string{"own_certificate your host 005"}},
		{"his host has another committee", own(func(h *HostFinding) { h.Committee = []string{"x", "y"} }), []string{"own_committee your host 005"}},
		{"the chain seals again", own(func(h *HostFinding) {
			stamp := uint64(i.now.Unix())
			h.Macroblocks = append(h.Macroblocks, Macroblock{Index: 96, Held: HeldYes, Timestamp: &stamp})
		}), []string{"own_trigger your hosts"}},
		{"a record of an earlier stall", own(func(h *HostFinding) {
			mb := *last(h)
			stamp := uint64(i.now.Add(6 * time.Minute).Unix())
			mb.Index, mb.Timestamp = 21, &stamp
			h.Macroblocks = append(h.Macroblocks, mb)
		}), []string{"own_newer your host 005: it has macroblock 21", "own_trigger your hosts"}},
		{"none of his hosts answers", func(v *VerifyInput) { v.Own.Hosts = []HostFinding{{ID: "004", Reason: "down"}} }, []string{"own_unknown your hosts", "own_trigger your hosts"}},
	} {
		err = nil
		v := i.verifyInput(t, maps.Clone(folder), bob)
		c.change(&v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := VerifyRecord(v)
		if say, unreadable := strings.CutPrefix(c.want[0], "!"); unreadable {
			if err == nil || !strings.Contains(err.Error(), say) {
				t.Errorf("%s: %v, want %q", c.name, err, say)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var said []string
		for _, d := range got.Differences {
			said = append(said, d.Code+" "+d.Where+": "+d.What)
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, want) }) {
				t.Errorf("%s: no %q among %d:\n  %s", c.name, want, len(said), strings.Join(said, "\n  "))
			}
		}
		if got.OK {
			t.Errorf("%s: holds", c.name)
		}
	}
}

func recordIsRefused(t *testing.T, i *incident, in RecordInput, _ Evidence) {
	whole := in
	for _, c := range []struct {
		name   string
		change func(*RecordInput)
		want   []string
	}{
		{"start in the past", func(in *RecordInput) { in.StartAt = in.Now.Add(-time.Minute) }, []string{"start"}},
		{"start now", func(in *RecordInput) { in.StartAt = in.Now }, []string{"start"}},
		{"all that is written by hand", func(in *RecordInput) {
			in.StartAt, in.Release, in.Archive, in.RollbackUseless = in.Now, Release{Commit: "v1.2", Image: "qnet:latest"}, ArchiveCheck{}, ""
		}, []string{"trigger", "archive", "commit", "image", "build", "start"}},
		{"a short commit", func(in *RecordInput) { in.Release.Commit = "012345" }, []string{"commit"}},
		{"an upper-case commit", func(in *RecordInput) { in.Release.Commit = "0123ABC" }, []string{"commit"}},
		{"a digest that is too short", func(in *RecordInput) { in.Release.Image = "qnet@sha256:" + strings.Repeat("5", 63) }, []string{"image"}},
		{"archive of another K", func(in *RecordInput) { in.Archive = archiveOf(19) }, []string{"archive"}},
		{"archive that fails", func(in *RecordInput) {
			in.Archive.Checks = []observe.Check{{Name: ArchiveBodies, Verdict: observe.Unknown, Reason: "?"}}
		}, []string{"archive"}},
		{"archive above K", func(in *RecordInput) { h := node.WindowHead(20) + 1; in.Archive.SnapshotHeight = &h }, []string{"archive"}},
		{"archive of an earlier stall", func(in *RecordInput) { in.Archive.At = stalledAt.Add(-time.Hour) }, []string{"archive"}},
		{"archive of the future", func(in *RecordInput) { in.Archive.At = in.Now.Add(6 * time.Minute) }, []string{"archive"}},
		{"text that hides", func(in *RecordInput) { in.Choice.Absent = []Absent{{"bob", "away\u202e"}} }, []string{"text"}},
		{"text for a terminal", func(in *RecordInput) { in.RollbackUseless, in.Release.Build = "\x1b[2J", "make\x1b[2J" }, []string{"text", "text"}},
		{"a file whose name changes on its way", func(in *RecordInput) { in.Files[0].Name = "evidénce.json" }, []string{"evidence"}},
		{"a file whose name is an option", func(in *RecordInput) { in.Files[0].Name = "-rf" }, []string{"evidence"}},
		{"two names that differ in case", func(in *RecordInput) {
			in.Files[0].Name, in.Files[1].Name = "Evidence.json", "evidence.json"
		}, []string{"evidence"}},
		{"no trigger", func(in *RecordInput) { in.RollbackUseless = "" }, []string{"trigger"}},
		{"no K", func(in *RecordInput) { in.Files = in.Files[:1] }, []string{"no_k"}},
		{"forged at or below K", func(in *RecordInput) { in.Choice.Forged = 20; in.Archive = archiveOf(20) }, []string{"archive"}},
		{"one barred outside the committee", func(in *RecordInput) { in.Choice.List, in.Choice.ListName = []string{"nobody"}, "list" }, []string{"exclusion"}},
		{"too many barred", func(in *RecordInput) { in.Choice.List, in.Choice.ListName = i.led.Members(), "list" }, []string{"tool_excluded_breaks_quorum", "exclusion"}},
		{"another's key", func(in *RecordInput) { in.Operator = "bob" }, []string{"signer"}},
		{"a signature in the place of evidence", func(in *RecordInput) { in.Files[1].Name = "evidence-bob.json.sig" }, []string{"evidence"}},
		{"two files of one name", func(in *RecordInput) { in.Files[1].Name = "other/" + in.Files[0].Name }, []string{"evidence"}},
	} {
		in := whole
		in.Files = slices.Clone(whole.Files)
		c.change(&in)
		_, folder, err := NewRecord(in, i.keys["ann"], plainRender)
		var refused *RecordRefused
		if !errors.As(err, &refused) || folder != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var codes []string
		for _, f := range refused.Faults {
			codes = append(codes, f.Code)
		}
		if !slices.Equal(codes, c.want) || refused.Hint() == "" {
			t.Errorf("%s: %q, want %q\n%v", c.name, codes, c.want, err)
		}
	}
	in = whole
	in.RollbackUseless, in.Waived = "", "the council decided"
	r, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil || r.Trigger.Waived != "the council decided" || r.Trigger.Verdict == observe.Pass || !bytes.Contains(folder[RecordName], []byte("the council decided")) {
		t.Errorf("waived: %v %+v", err, r.Trigger)
	}
	in.Signers = []byte("nonsense")
	var faults *FileFaults
	if _, _, err := NewRecord(in, i.keys["ann"], plainRender); !errors.As(err, &faults) {
		t.Errorf("unreadable signers: %v", err)
	}
}

// All that rests on the publisher's word alone is said to who verifies, and a waiver with who and why.
func whatIsOnlyStatedIsSaid(t *testing.T, i *incident, in RecordInput, bob Evidence) {
	six, whole := i.led.Members(), in
	in.RollbackUseless, in.Waived = "", "the council decided"
	in.Choice = RecordChoice{Below: 20, Add: []Added{{ID: six[5], Reason: "seen to forge"}}}
	in.Archive = archiveOf(19)
	_, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	v, err := VerifyRecord(i.verifyInput(t, folder, bob))
	if err != nil || !v.OK || v.Waived == nil || v.Waived.By != "ann" || v.Waived.Reason != "the council decided" || len(v.Waived.Failing) != 1 || !strings.Contains(v.Waived.Failing[0], "rollback") {
		t.Fatalf("%v %+v %+v", err, v.Waived, v.Differences)
	}
	notes := strings.Join(v.Notes, "\n")
	for _, say := range []string{"the trigger is waived by ann: the council decided; what does not pass: rollback", "K was asked for below macroblock 20 by ann", six[5] + " is barred by ann's word: seen to forge"} {
		if !strings.Contains(notes, say) {
			t.Errorf("does not say %q:\n%s", say, notes)
		}
	}
	in = whole
	in.Choice.Absent = []Absent{{"bob", "cannot be reached"}}
	in.Choice.Forged, in.Archive = 20, archiveOf(19)
	in.Archive.At = stalledAt.Add(-time.Hour) // of a chain that runs on
	_, folder, err = NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	v, err = VerifyRecord(i.verifyInput(t, folder, bob))
	notes = strings.Join(v.Notes, "\n")
	for _, say := range []string{"K was chosen without bob, by ann's word: cannot be reached", "ann states that macroblock 20 is forged", "ann states that a rollback is useless"} {
		if err != nil || v.Waived != nil || !strings.Contains(notes, say) {
			t.Errorf("%v, does not say %q:\n%s", err, say, notes)
		}
	}
	// The chain runs on with forged finality, and nothing of that could be K; below the forged one it could.
	for index, newer := range map[uint64]bool{20: false, 25: false, 19: true} {
		own := i.verifyInput(t, folder, bob)
		own.Own.Hosts = slices.Clone(bob.Hosts)
		mb := own.Own.Hosts[0].Macroblocks[len(own.Own.Hosts[0].Macroblocks)-1]
		stamp := uint64(i.now.Add(6 * time.Minute).Unix())
		mb.Index, mb.Timestamp = index, &stamp
		own.Own.Hosts[0].Macroblocks = []Macroblock{mb}
		v, err := VerifyRecord(own)
		if err != nil || slices.ContainsFunc(v.Differences, func(d Difference) bool { return d.Code == "own_newer" }) != newer {
			t.Errorf("macroblock %d: %v %v", index, err, v.Differences)
		}
	}
}

// A record holds negative numbers where so many are missing, and nowhere else.
func numbersAreRead(t *testing.T, i *incident, in RecordInput, _ Evidence) {
	_, folder, err := NewRecord(in, i.keys["ann"], plainRender)
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{`"k":20,`: "k: -20 is not a whole number from 0", `"survivors_needed":5`: "", `"window":20`: "thresholds.window: -20 is not a whole number from 0"} {
		key, value, _ := strings.Cut(from, ":")
		text := strings.Replace(string(folder[RecordName]), from, key+":-"+value, 1)
		_, err := DecodeRecord(RecordName, []byte(text))
		if text == string(folder[RecordName]) || (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", from, err, want)
		}
	}
	if _, err := DecodeRecord(RecordName, []byte(strings.Replace(string(folder[RecordName]), `"survivors_needed":5`, `"survivors_needed":-9007199254740992`, 1))); err == nil {
		t.Error("a number beyond 2^53 is read")
	}
}

func TestFolder(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "record")
	f := Folder{RecordName: []byte("{}"), "evidence/a.json": []byte("a"), "evidence/a.json.sig": []byte("s")}
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFolder(dir)
	if err != nil || len(got) != 3 || string(got["evidence/a.json"]) != "a" {
		t.Errorf("%v %v", got, err)
	}
	var bad *FolderError
	if err := f.Write(dir); !errors.As(err, &bad) {
		t.Errorf("written over: %v", err)
	}
	if err := (Folder{"x/y": nil, "x": nil}).Write(filepath.Join(parent, "half")); err == nil {
		t.Error("a folder that cannot be")
	}
	if err := f.Write(filepath.Join(parent, "none", "record")); !errors.As(err, &bad) || bad.Hint() == "" {
		t.Errorf("into nowhere: %v", err)
	}
	left, err := os.ReadDir(parent)
	if err != nil || len(left) != 1 {
		t.Errorf("what failed left something behind: %v", left)
	}
	for name, spoil := range map[string]func() error{
		"a link":         func() error { return os.Symlink("a.json", filepath.Join(dir, "evidence", "b.json")) },
		"an empty place": func() error { return os.Mkdir(filepath.Join(dir, "more"), 0o755) },
		"no record":      func() error { return os.Remove(filepath.Join(dir, RecordName)) },
	} {
		os.RemoveAll(dir)
		if err := f.Write(dir); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFolder(dir); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadFolder(filepath.Join(parent, "nowhere")); !errors.As(err, &bad) {
		t.Errorf("nowhere: %v", err)
	}
}

// Whatever the bytes are, a record that is read has exactly these bytes as its form.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"schema":"qnetops/restart-record/v1"}`))
	if data, err := Canonical(Record{Schema: RecordSchema}); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRecord("record.json", data)
		var faults *FileFaults
		switch {
		case err == nil:
			if again, err := Canonical(r); err != nil || !bytes.Equal(again, data) {
				t.Errorf("%v", err)
			}
		case !errors.As(err, &faults) || len(faults.Faults) == 0:
			t.Errorf("%v", err)
		}
	})
}
