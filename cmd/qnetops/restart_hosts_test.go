package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/restart"
)

// restarts goes the whole way to a published restart on real hosts: two operators with three hosts each gather and sign, K is
// chosen, the archive is asked, a record is made by one and verified from the hosts of the other. ssh-keygen, which shares no
// code with this program, makes the keys and checks a signature.
func (f *realFleet) restarts(t *testing.T) {
	keygen := need.Program(t, "ssh-keygen")[0]
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var signers strings.Builder
	for _, who := range []string{"ann", "ben"} {
		if out, err := exec.Command(keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", at(who)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
		public, err := os.ReadFile(at(who + ".pub"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&signers, "%s %s", who, public)
	}
	for name, text := range map[string]string{"signers": signers.String(), "build.txt": "make image\n"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(at("evidence"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.must(0, "restart", "gather", "--only", "001,002,003", "--operator", "ann", "--sign-key", at("ann"), "--out", at("evidence/ann.json"))
	f.must(0, "restart", "gather", "--only", "004,005,006", "--operator", "ben", "--sign-key", at("ben"), "--out", at("evidence/ben.json"))
	evidence, err := os.ReadFile(at("evidence/ann.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range lab.Sentinels() {
		if bytes.Contains(evidence, []byte(secret)) {
			t.Errorf("the evidence holds %s", name)
		}
	}
	check := exec.Command(keygen, "-Y", "verify", "-f", at("signers"), "-I", "ann", "-n", restart.Namespace, "-s", at("evidence/ann.json.sig"))
	check.Stdin = bytes.NewReader(evidence)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("ssh-keygen does not accept the signature: %v\n%s", err, out)
	}

	var chosen restart.Proposal
	if err := json.Unmarshal([]byte(f.must(0, "restart", "propose-k", "--allowed-signers", at("signers"), at("evidence"), "-o", "json")), &chosen); err != nil {
		t.Fatal(err)
	}
	if chosen.K == nil || *chosen.K < 2 || len(chosen.HeldBy) != 6 {
		t.Fatalf("%+v", chosen)
	}
	shown := f.must(0, "restart", "archive-check", "001", "--k", fmt.Sprint(*chosen.K), "-o", "json")
	if err := os.WriteFile(at("archive.json"), []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	record := []string{"restart", "record", "--allowed-signers", at("signers"), at("evidence"), "--out", at("record"), "--archive-check", at("archive.json"),
		"--commit", "0123456789abcdef0123456789abcdef01234567", "--image", "registry.example.org/qnet@sha256:" + strings.Repeat("a", 64), "--build", at("build.txt"),
		"--start-at", time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339), "--operator", "ann", "--sign-key", at("ann")}
	f.must(exitRefused, record...) // the chain is well: no reason to restart it
	if _, err := os.Stat(at("record")); err == nil {
		t.Fatal("a refused record was written")
	}
	f.must(0, append(record, "--waive", "trigger=a rehearsal")...)
	f.must(0, "restart", "verify-record", at("record"), "--allowed-signers", at("signers"), "--only", "004,005,006")

	manifest := at("record/manifest.toml")
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Replace(text, []byte(chosen.Hash.String()), []byte(chosen.Digest.String()), 1)
	if err := os.WriteFile(manifest, wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := f.run("restart", "verify-record", at("record"), "--allowed-signers", at("signers"), "--only", "004,005,006"); code != exitRefused || !strings.Contains(out, "manifest.toml") {
		t.Errorf("a changed manifest: exit code %d\n%s", code, out)
	}
}
