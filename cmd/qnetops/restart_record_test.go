package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/restart"
)

// twoOperators are ann and bob, each with three hosts on one stalled chain, and their files.
type twoOperators struct {
	t     *testing.T
	dir   string
	hosts map[string]string // inventory by operator
	labs  map[string]*lab.Lab
}

func newTwoOperators(t *testing.T) *twoOperators {
	t.Helper()
	led := stalledLedger(t, 30)
	o := &twoOperators{t: t, dir: t.TempDir(), hosts: map[string]string{}, labs: map[string]*lab.Lab{}}
	var signers bytes.Buffer
	for i, name := range []string{"ann", "bob"} {
		o.hosts[name], o.labs[name] = ledgerFleet(t, led, 3*i, 3)
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		block, err := ssh.MarshalPrivateKey(private, name)
		if err != nil {
			t.Fatal(err)
		}
		o.write(name+".key", pem.EncodeToMemory(block))
		key, err := ssh.NewPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&signers, "%s namespaces=\"qnetops\" %s", name, ssh.MarshalAuthorizedKey(key))
	}
	o.write("signers", signers.Bytes())
	o.write("build.txt", []byte("git checkout 0123456789abcdef\nmake image\n"))
	for name := range o.hosts {
		o.run(exitDone, "restart", "gather", "--hosts", o.hosts[name], "--operator", name, "--sign-key", o.path(name+".key"), "--out", o.path("evidence-"+name+".json"))
	}
	out := o.run(exitDone, "restart", "archive-check", "002", "--hosts", o.hosts["ann"], "--k", "30", "-o", "json")
	o.write("archive.json", []byte(out))
	return o
}

func (o *twoOperators) path(name string) string { return filepath.Join(o.dir, name) }

func (o *twoOperators) write(name string, data []byte) {
	o.t.Helper()
	if err := os.WriteFile(o.path(name), data, 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *twoOperators) run(want int, args ...string) string {
	o.t.Helper()
	out, errs, code := runLine(o.t, args...)
	if code != want {
		o.t.Fatalf("%s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, out, errs)
	}
	return out + errs
}

// record is a command line of restart record by ann; change replaces flags by name, and "" takes one away.
func (o *twoOperators) record(change map[string]string) []string {
	flags := map[string]string{"--hosts": o.hosts["ann"], "--operator": "ann", "--sign-key": o.path("ann.key"), "--allowed-signers": o.path("signers"), "--out": o.path("record"),
		"--archive-check": o.path("archive.json"), "--commit": "0123456789abcdef", "--image": "registry.example.org/qnet@sha256:" + strings.Repeat("5a", 32),
		"--build": o.path("build.txt"), "--start-at": time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339), "--rollback-useless": "the newest seal itself is what fails"}
	maps.Copy(flags, change)
	line := []string{"restart", "record", o.path("evidence-ann.json"), o.path("evidence-bob.json")}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if flags[name] != "" {
			line = append(line, name, flags[name])
		}
	}
	return line
}

// A record that one operator made on his hosts holds on the other's, and not after a byte of any of its files was changed.
func TestRecordVerifiesFromAnotherOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two labs")
	}
	o := newTwoOperators(t)
	said := o.run(exitDone, o.record(nil)...)
	folder, err := restart.ReadFolder(o.path("record"))
	if err != nil {
		t.Fatal(err)
	}
	sum := restart.FileHash(folder[restart.RecordName])
	for _, say := range []string{sum, "over another channel", "verify-record"} {
		if !strings.Contains(said, say) {
			t.Errorf("record does not say %q:\n%s", say, said)
		}
	}
	for _, name := range []string{"record.md", "record.html", "record.json.sig", "manifest.toml", "manifest.json", "genesis_constants.rs", "allowed_signers",
		"evidence/evidence-ann.json", "evidence/evidence-ann.json.sig", "evidence/evidence-bob.json", "evidence/evidence-bob.json.sig"} {
		if len(folder[name]) == 0 {
			t.Errorf("%s is not in the folder", name)
		}
	}
	var r restart.Record
	if err := json.Unmarshal(folder[restart.RecordName], &r); err != nil || r.K != 30 || r.Archive.Host != "002" || r.Thresholds.SurvivorsNeeded != 5 {
		t.Errorf("%v %+v", err, r.Thresholds)
	}
	for _, say := range []string{r.Hash.String(), r.Digest.String(), r.DigestPred.String(), r.Release.Image, "make image", manifest.Render(r.Manifest.Manifest)} {
		if !bytes.Contains(folder["record.md"], []byte(say)) {
			t.Errorf("record.md does not say %q", say)
		}
	}
	if page := string(folder["record.html"]); !strings.Contains(page, r.Hash.String()) || strings.Contains(page, "src=") || strings.Contains(page, "http://") {
		t.Error("record.html does not say the hash, or loads something")
	}
	verify := []string{"restart", "verify-record", o.path("record"), "--hosts", o.hosts["bob"], "--allowed-signers", o.path("signers")}
	doc := answer(t, exitDone, verify...)
	if doc["schema"] != "qnetops/verify-record/v1" || doc["ok"] != true || doc["record_sha256"] != sum || doc["operator"] != "ann" || len(doc["shown_by"].([]any)) != 3 {
		t.Errorf("%v", doc)
	}
	for name, data := range folder {
		changed := bytes.Clone(data)
		changed[len(changed)/2] ^= 1
		file := filepath.Join(o.path("record"), filepath.FromSlash(name))
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		out, errs, code := runLine(t, verify...)
		if code != exitRefused && !(name == restart.RecordName && code == exitUsage) || !strings.Contains(out+errs, name) {
			t.Errorf("a changed byte in %s: exit %d\n%s%s", name, code, out, errs)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("ssh-keygen", func(t *testing.T) {
		need.Program(t, "ssh-keygen")
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", o.path("signers"), "-I", "ann", "-n", restart.Namespace, "-s", filepath.Join(o.path("record"), restart.RecordName+".sig"))
		cmd.Stdin = bytes.NewReader(folder[restart.RecordName])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	// On the verifier's side: a node on a fork, and hosts that are down.
	if err := o.labs["bob"].Inject("003", string(ledger.FaultFork), "30:x"); err != nil {
		t.Fatal(err)
	}
	if out := o.run(exitRefused, verify...); !strings.Contains(out, "own_hash") || !strings.Contains(out, "your host 003") {
		t.Errorf("a fork at home:\n%s", out)
	}
	o.labs["bob"].Close()
	if out := o.run(exitRefused, verify...); !strings.Contains(out, "own_unknown") || !strings.Contains(out, "own_trigger") {
		t.Errorf("nobody at home:\n%s", out)
	}
}

func TestRecordRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two labs")
	}
	o := newTwoOperators(t)
	o.write("not-archive.json", []byte(`{"schema":"qnetops/status/v1"}`))
	for _, c := range []struct {
		name   string
		change map[string]string
		more   []string
		code   int
		say    []string
	}{
		{"a start in the past", map[string]string{"--start-at": "2026-01-01T00:00:00Z"}, nil, exitRefused, []string{"start: ", "not in the future"}},
		{"all at once", map[string]string{"--start-at": "2026-01-01T00:00:00Z", "--image": "qnet:latest", "--commit": "HEAD", "--rollback-useless": ""}, nil, exitRefused,
			[]string{"trigger: ", "start: ", "image: ", "commit: "}},
		{"forged below the archive's K", map[string]string{"--forged": "25"}, nil, exitRefused, []string{"archive: ", "about macroblock 30, the record about 24"}},
		{"without bob", map[string]string{"--allowed-signers": o.path("build.txt")}, nil, exitUsage, []string{"build.txt", "hint: "}},
		{"flags are missing", map[string]string{"--image": "", "--commit": "", "--build": "", "--out": ""}, nil, exitUsage, []string{"--image is missing", "--commit is missing", "--build is missing", "--out is missing"}},
		{"no time", map[string]string{"--start-at": "tomorrow"}, nil, exitUsage, []string{"--start-at \"tomorrow\" is no time"}},
		{"another document", map[string]string{"--archive-check": o.path("not-archive.json")}, nil, exitUsage, []string{"not-archive.json", "qnetops/archive-check/v1"}},
		{"files that are not there", map[string]string{"--build": o.path("none"), "--archive-check": o.path("none2")}, nil, exitUsage, []string{"none:", "none2:"}},
		{"a folder that is there", map[string]string{"--out": o.dir}, nil, exitUsage, []string{"never written over"}},
		{"bob's name with ann's key", map[string]string{"--operator": "bob"}, nil, exitRefused, []string{"signer: "}},
		{"a check of a roll", map[string]string{"--waive": "clock=no"}, nil, exitUsage, []string{"waivable: trigger"}},
	} {
		out, errs, code := runLine(t, append(o.record(c.change), c.more...)...)
		for _, say := range c.say {
			if code != c.code || out != "" || !strings.Contains(errs, say) {
				t.Errorf("%s: exit %d, want %d with %q\n%s%s", c.name, code, c.code, say, out, errs)
			}
		}
		if _, err := os.Lstat(o.path("record")); err == nil {
			t.Fatalf("%s: something was written", c.name)
		}
	}
	out := o.run(exitDone, append(o.record(map[string]string{"--rollback-useless": "", "--waive": "trigger=the council decided", "--out": ""}), "--dry-run")...)
	if !strings.Contains(out, "the trigger is waived: the council decided") || !strings.Contains(out, "nothing was written") {
		t.Errorf("waived:\n%s", out)
	}
	draft := o.path("draft.toml")
	o.run(exitDone, "restart", "record", o.path("evidence-ann.json"), o.path("evidence-bob.json"), "--hosts", o.hosts["ann"], "--allowed-signers", o.path("signers"), "--manifest", draft)
	if m, err := manifest.Load(draft); err != nil || m.Restart.ResumeFromMB != 30 || m.Pin.Hash != m.Restart.ResumeMBHash || len(manifest.Validate(m.Manifest, manifest.Known{})) > 0 {
		t.Errorf("%+v %v", m, err)
	}
	o.run(exitUsage, "restart", "record", o.path("evidence-ann.json"), "--hosts", o.hosts["ann"], "--allowed-signers", o.path("signers"), "--manifest", draft, "--dry-run")
	o.run(exitRefused, "restart", "record", o.path("evidence-ann.json"), "--hosts", o.hosts["ann"], "--allowed-signers", o.path("signers"), "--manifest", o.path("none.rs"))
	for args, say := range map[string]string{"": "exactly one folder", o.dir: "is no record", o.path("nowhere"): "nowhere"} {
		line := append([]string{"restart", "verify-record", "--hosts", o.hosts["bob"], "--allowed-signers", o.path("signers")}, strings.Fields(args)...)
		if out, errs, code := runLine(t, line...); code != exitUsage || out != "" || !strings.Contains(errs, say) {
			t.Errorf("verify-record %s: exit %d\n%s%s", args, code, out, errs)
		}
	}
	if _, errs, code := runLine(t, "restart", "verify-record", o.dir, "--hosts", o.hosts["bob"]); code != exitUsage || !strings.Contains(errs, "your own file") {
		t.Errorf("without signers: exit %d\n%s", code, errs)
	}
}

// docs/json.md lists fields that the documents have, and docs/restart.md names every check of an archive.
func TestPublishDocuments(t *testing.T) {
	describes(t, restart.ArchiveSchema, reflect.TypeFor[restart.ArchiveCheck](), 15)
	describes(t, restart.RecordSchema, reflect.TypeFor[restart.Record](), 15)
	describes(t, restart.VerifySchema, reflect.TypeFor[restart.Verification](), 8)
	describes(t, "qnetops/restartrecord/v1", reflect.TypeFor[recordDocumentJSON](), 3)
	guide, err := os.ReadFile("../../docs/restart.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{restart.ArchiveSnapshot, restart.ArchiveTransfer, restart.ArchiveThroughput, restart.ArchiveReach, restart.ArchiveMacro, restart.ArchiveBodies, restart.ArchiveKeep, restart.TriggerCheck} {
		if !bytes.Contains(guide, []byte("| `"+check+"` |")) {
			t.Errorf("docs/restart.md does not say what to do about %s", check)
		}
	}
}
