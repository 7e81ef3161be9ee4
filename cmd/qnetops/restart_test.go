package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/restart"
)

// signKey writes a new SSH key and an allowed-signers file that names it.
func signKey(t *testing.T, dir, operator string) (key, allowed string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key, allowed = filepath.Join(dir, "sign_"+operator), filepath.Join(dir, "allowed_"+operator)
	for path, data := range map[string][]byte{key: pem.EncodeToMemory(block), allowed: []byte(operator + " " + string(ssh.MarshalAuthorizedKey(pub)))} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, allowed
}

// gatherLab is a fleet that has sealed, on loopback.
func gatherLab(t *testing.T, nodes int) (l *lab.Lab, hosts string) {
	t.Helper()
	dir := t.TempDir()
	const history = 90 * 12
	l, err := startProcessLab(lab.Config{Nodes: nodes, Block: 20 * time.Millisecond, Dir: dir, History: history})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.WaitHeight(t.Context(), history+150); err != nil {
		t.Fatal(err)
	}
	return l, filepath.Join(dir, lab.HostsFile)
}

// TestRestartGather writes, signs, supplements and reads evidence of a fleet, one host of which is down.
func TestRestartGather(t *testing.T) {
	l, hosts := gatherLab(t, 6)
	dir := t.TempDir()
	key, allowed := signKey(t, dir, "ann@example.org")
	if err := l.Inject("005", lab.FaultDropSSH, "hold"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "e.json")
	line := []string{"restart", "gather", "--hosts", hosts, "--operator", "ann@example.org", "--sign-key", key}
	doc := answer(t, exitDone, append(line, "--out", file)...)
	if doc["file"] != file || doc["signature"] != file+".sig" || doc["number"] != 1.0 || doc["newest_common"] == nil || len(doc["disagreements"].([]any)) != 0 {
		t.Errorf("%v", doc)
	}
	if down := doc["unreachable"].([]any); len(down) != 1 || down[0] != "005" {
		t.Errorf("unreachable: %v", down)
	}
	ev := gatheredFile(t, file, allowed)
	if len(ev.Hosts) != 6 || ev.Hosts[4].Reachable || ev.Operator != "ann@example.org" || ev.Fleet != lab.FleetName {
		t.Fatalf("%+v", ev)
	}
	for _, h := range slices.Delete(slices.Clone(ev.Hosts), 4, 5) {
		if h.Reason != "" || h.Committee == nil || len(h.Macroblocks) < 10 || len(h.Lines) == 0 || h.Recovery == nil || h.Archive == nil || h.NodeID == "" || h.Build == "" {
			t.Errorf("host %s: %s %+v", h.ID, h.Reason, h)
		}
		for _, m := range h.Macroblocks[:5] {
			if m.Proof == nil || m.Proof.Fault != "" || m.Proof.Signatures.Valid != len(m.Proof.Signers) {
				t.Errorf("host %s: %+v %+v", h.ID, m, m.Proof)
			}
		}
	}
	if mode, err := os.Stat(file); err != nil || mode.Mode().Perm() != 0o644 {
		t.Errorf("%v %v", mode.Mode(), err)
	}
	out, errs, code := runLine(t, append(line, "--out", file)...)
	if code != exitUsage || !strings.Contains(errs, "is there already") {
		t.Errorf("over an older file: exit %d\n%s%s", code, out, errs)
	}
	second := filepath.Join(dir, "e2.json")
	out, errs, code = runLine(t, "restart", "gather", "--hosts", hosts, "--sign-key", key, "--supplement", file, "--from", "3", "--to", "5", "--only", "001,002", "--out", second)
	if code != exitDone || !strings.Contains(out, "number 2") || !strings.Contains(out, "next: qnetops restart propose-k") || strings.Contains(out, "005") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	later := gatheredFile(t, second, allowed)
	if later.ID != ev.ID || later.Number != 2 || len(later.Hosts) != 2 || !slices.Equal(later.Asked, []restart.IndexRange{{From: 3, To: 5}}) {
		t.Errorf("%+v", later)
	}
	m := restart.Merge([]restart.File{evidenceFile(t, second), evidenceFile(t, file)}, signersOf(t, allowed), time.Now())
	if len(m.Operators) != 1 || len(m.Operators[0].Files) != 2 || len(m.Operators[0].Evidence.Hosts) != 6 {
		t.Errorf("%+v", m.LeftOut)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".evidence-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if refused := l.Refusals(); len(refused) > 0 {
		t.Errorf("hosts were asked what they do not know: %v", refused)
	}
}

func evidenceFile(t *testing.T, path string) restart.File {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := os.ReadFile(path + ".sig")
	if err != nil {
		t.Fatal(err)
	}
	return restart.File{Name: path, Data: data, Sig: sig}
}

func signersOf(t *testing.T, path string) restart.Signers {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	signers, err := restart.ParseAllowedSigners(path, text)
	if err != nil {
		t.Fatal(err)
	}
	return signers
}

// gatheredFile reads a file as the next step does, and has ssh-keygen check the signature where it is there.
func gatheredFile(t *testing.T, path, allowed string) restart.Evidence {
	t.Helper()
	f := evidenceFile(t, path)
	who, err := restart.Verify(signersOf(t, allowed), f.Data, f.Sig, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ev, err := restart.Decode(path, f.Data)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), need.Program(t, "ssh-keygen")[0], "-Y", "verify", "-f", allowed, "-I", who.Principals[0], "-n", restart.Namespace, "-s", path+".sig")
	cmd.Stdin = bytes.NewReader(f.Data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("ssh-keygen refuses the signature: %v\n%s", err, out)
	}
	return ev
}

// TestRestartGatherShowsNoSecret: nodes that print their secrets make evidence without them.
func TestRestartGatherShowsNoSecret(t *testing.T) {
	dir := t.TempDir()
	key, _ := signKey(t, dir, "ann@example.org")
	file, hosts := filepath.Join(dir, "e.json"), filepath.Join(dir, "lab", lab.HostsFile)
	var lines []string
	for _, value := range lab.Sentinels() {
		lines = append(lines, "[FATAL][PREFLIGHT] checks_failed node_type=Super err="+value, "[FATAL][RPC] "+value+" refused",
			"[INFO][BFT2] macroblock_sealed window=1 round=3 head_h=90 signers=5 role="+value, "[WARN][CONS] checkpoint_defer mb=7 reason="+value, value)
	}
	led, err := ledger.New(ledger.Config{Macroblocks: 30, Members: 6})
	if err != nil {
		t.Fatal(err)
	}
	l, err := startProcessLab(lab.Config{Nodes: 3, Block: 50 * time.Millisecond, Dir: filepath.Dir(hosts), Ledger: func(i int) *ledger.Node {
		return led.Node(ledger.NodeConfig{ID: led.Members()[i], Lines: lines})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	out, errs, code := runLine(t, "restart", "gather", "--hosts", hosts, "--operator", "ann@example.org", "--sign-key", key, "--out", file, "-v")
	if code != exitDone {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range lab.Sentinels() {
		if strings.Contains(string(data)+out+errs, value) {
			t.Errorf("%s is shown", name)
		}
	}
	if !strings.Contains(string(data), "[FATAL][PREFLIGHT] ***") || !strings.Contains(string(data), "checkpoint_defer mb=7 ***") {
		t.Error("the planted lines are not in the evidence: this test shows nothing")
	}
}

// TestRestartGatherRefusals: what cannot be done is said before a host is asked, and nothing is written.
func TestRestartGatherRefusals(t *testing.T) {
	dir := t.TempDir()
	key, _ := signKey(t, dir, "ann")
	hosts := filepath.Join(dir, "hosts.toml")
	text := "fleet = \"x\"\n[ssh]\nknown_hosts = [\"known\"]\n[[host]]\nid = \"001\"\naddress = \"127.0.0.1\"\nport = 1\nrole = \"genesis\"\ncontainer = \"qnet-genesis-001\"\n"
	for path, data := range map[string]string{hosts: text, filepath.Join(dir, "known"): "", filepath.Join(dir, "bad.json"): "{\"schema\":1}\r\n"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out.json")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "--from and --to go together", []string{"--sign-key", key, "--from", "3"}},
		{exitUsage, "is no range of macroblocks", []string{"--sign-key", key, "--from", "0", "--to", "3"}},
		{exitUsage, "more than 2000 macroblocks", []string{"--sign-key", key, "--from", "1", "--to", "2001"}},
		{exitUsage, "no SSH agent", nil},
		{exitUsage, "no such file", []string{"--sign-key", filepath.Join(dir, "none")}},
		{exitUsage, "carriage return", []string{"--sign-key", key, "--supplement", filepath.Join(dir, "bad.json")}},
		{exitUsage, "no such file", []string{"--sign-key", key, "--supplement", filepath.Join(dir, "none.json")}},
		{exitUsage, "takes no arguments", []string{"--sign-key", key, "more"}},
		{exitUsage, "there is no folder", []string{"--sign-key", key, "--out", filepath.Join(dir, "none", "e.json")}},
		{exitError, "none of 1 hosts answered\n  001: host: SSH does not reach the host", []string{"--sign-key", key}},
	} {
		args := append([]string{"restart", "gather", "--hosts", hosts, "--operator", "ann"}, c.args...)
		if !slices.Contains(args, "--out") {
			args = append(args, "--out", out)
		}
		_, errs, code := runLine(t, args...)
		if code != c.code || !strings.Contains(errs, c.want) || !strings.Contains(errs, "hint: ") {
			t.Errorf("%v: exit %d, want %d with %q\n%s", c.args, code, c.code, c.want, errs)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Fatalf("%v: %s was written", c.args, out)
		}
	}
}

// TestRestartGatherDryRun reads and writes nothing, and needs no key.
func TestRestartGatherDryRun(t *testing.T) {
	_, hosts := gatherLab(t, 4)
	dir := t.TempDir()
	t.Chdir(dir)
	doc := answer(t, exitDone, "restart", "gather", "--hosts", hosts, "--operator", "ann", "--dry-run")
	if doc["file"] != nil || doc["signature"] != nil || len(doc["hosts"].([]any)) != 4 {
		t.Errorf("%v", doc)
	}
	if raw, err := json.Marshal(doc["hosts"]); err != nil || !strings.Contains(string(raw), `"held":`) {
		t.Errorf("%s %v", raw, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}
