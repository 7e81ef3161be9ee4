package main

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// choiceFolder is a folder with the signed evidence of operators who hold macroblocks 1 to 30, and their allowed signers.
type choiceFolder struct {
	t            *testing.T
	dir, signers string
	keys         map[string]ssh.Signer
}

func newChoiceFolder(t *testing.T, operators ...string) choiceFolder {
	t.Helper()
	f := choiceFolder{t: t, dir: t.TempDir(), keys: map[string]ssh.Signer{}}
	f.signers = filepath.Join(t.TempDir(), "signers")
	var lines strings.Builder
	for i, name := range operators {
		signer, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(slices.Repeat([]byte{byte(i + 1)}, 32)))
		if err != nil {
			t.Fatal(err)
		}
		f.keys[name] = signer
		fmt.Fprintf(&lines, "%s %s", name, ssh.MarshalAuthorizedKey(signer.PublicKey()))
	}
	if err := os.WriteFile(f.signers, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// put writes one operator's signed evidence; change may spoil it before it is signed.
func (f choiceFolder) put(name string, change func(*restart.Evidence)) {
	f.t.Helper()
	six := []string{"genesis_node_001", "genesis_node_002", "genesis_node_003", "genesis_node_004", "genesis_node_005", "genesis_node_006"}
	last := uint64(30)
	ev := restart.Evidence{Schema: restart.EvidenceSchema, Fleet: name, Operator: name, ID: fmt.Sprintf("%032x", name)[:32], Number: 1, Tool: "test",
		TakenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Asked: []restart.IndexRange{}}
	for j := range 2 {
		h := restart.HostFinding{ID: fmt.Sprintf("00%d", j+1), NodeID: fmt.Sprintf("%s_%d", name, j), Reachable: true, Sealed: &last, Committee: six,
			Banned: []string{}, Keys: map[string]node.Hash{}, Snapshots: []restart.Snapshot{}, Macroblocks: []restart.Macroblock{}, Lines: []restart.Line{}}
		height, floor := last*90+9, last*90
		h.Height, h.FloorAtLeast = &height, &floor
		for i := uint64(1); i <= last; i++ {
			hash, digest, previous, at := node.Hash{1, byte(i)}, node.Hash{2, byte(i)}, node.Hash{1, byte(i - 1)}, i*90
			if i == 1 {
				previous = node.Hash{}
			}
			h.Macroblocks = append(h.Macroblocks, restart.Macroblock{Index: i, Held: restart.HeldYes, Hash: &hash, Digest: &digest, Previous: &previous, Timestamp: &at,
				Proof: &restart.Certificate{Checkpoint: node.Hash{3, byte(i)}, Committee: 6, Quorum: 5, Signers: six[:5],
					Signatures: restart.Signatures{Unreadable: 5, Reason: "no key"}}})
		}
		ev.Hosts = append(ev.Hosts, h)
	}
	if change != nil {
		change(&ev)
	}
	data, err := restart.Canonical(ev)
	if err != nil {
		f.t.Fatal(err)
	}
	sig, err := restart.Sign(f.keys[name], data)
	if err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(f.dir, name+".json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path+".sig", sig, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// line runs a step of restart on the folder.
func (f choiceFolder) line(step string, more ...string) (out, errs string, code int) {
	f.t.Helper()
	return runLine(f.t, append([]string{"restart", step, "--allowed-signers", f.signers, f.dir}, more...)...)
}

func wantSaid(t *testing.T, text string, say ...string) {
	t.Helper()
	for _, s := range say {
		if !strings.Contains(text, s) {
			t.Errorf("does not say %q:\n%s", s, text)
		}
	}
}

func TestRestartProposeK(t *testing.T) {
	f := newChoiceFolder(t, "alice", "bob")
	f.put("alice", nil)
	f.put("bob", func(ev *restart.Evidence) {
		for i := range ev.Hosts {
			for j := 27; j < 30; j++ {
				ev.Hosts[i].Macroblocks[j] = restart.Macroblock{Index: uint64(j) + 1, Held: restart.HeldNo}
			}
		}
	})
	out, errs, code := f.line("propose-k")
	if code != exitDone || errs != "" {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	wantSaid(t, out, node.Hash{1, 27}.String(), node.Hash{2, 27}.String(), node.Hash{2, 26}.String(), "alice/001, alice/002, bob/001, bob/002", "28..30", "not held by bob",
		"rename", "a rollback would be refused and change nothing", "not verified by signatures", "next: qnetops restart exclude --allowed-signers "+f.signers)
	if !strings.HasPrefix(out, "K") || !strings.Contains(strings.SplitN(out, "\n", 2)[0], "27") {
		t.Errorf("K is not in the first line:\n%s", out)
	}
	out, _, code = f.line("propose-k", "-o", "json")
	var p map[string]any
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitDone {
		t.Fatalf("exit %d, %v", code, err)
	}
	for _, key := range []string{"schema", "k", "hash", "digest", "digest_pred", "held_by", "absent", "refused", "disagreements", "hosts", "verified", "left_out"} {
		if v, ok := p[key]; !ok || v == nil {
			t.Errorf("%s is %v", key, v)
		}
	}
	if p["schema"] != "qnetops/propose-k/v1" || p["k"] != 27.0 || len(p["refused"].([]any)) != 3 || p["verified"] != "agreement" {
		t.Errorf("%v", p)
	}
	if host := p["hosts"].([]any)[0].(map[string]any); host["id"] != "alice/001" || host["certified_floor"] != 2700.0 || host["way"] != "rename" {
		t.Errorf("%v", host)
	}
	if out, _, code := f.line("propose-k", "--forged", "1_2"); code != exitDone || !strings.Contains(out, node.Hash{1, 11}.String()) {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestRestartProposeKRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		bob   func(*restart.Evidence)
		after func(f choiceFolder)
		say   []string
	}{
		{"a contradiction below", func(ev *restart.Evidence) { ev.Hosts[0].Macroblocks[9].Digest = &node.Hash{9} }, nil,
			[]string{"first offending window 10, kind digest", "macroblock 10: different digest", "alice adds: qnetops restart gather --supplement alice.json --from 10 --to 10", "bob adds: qnetops restart gather --supplement bob.json --from 10 --to 10", "he withdraws his files of the old one"}},
		{"undecided", func(ev *restart.Evidence) {
			for i := range ev.Hosts {
				ev.Hosts[i].Macroblocks = slices.Delete(ev.Hosts[i].Macroblocks, 27, 30)
			}
		}, nil, []string{"undecided: macroblock 30", "needed from bob: macroblocks 28 to 30", "bob adds: qnetops restart gather --supplement bob.json --from 28 --to 30", "--below"}},
		{"a changed byte", nil, func(f choiceFolder) {
			path := filepath.Join(f.dir, "bob.json")
			data, err := os.ReadFile(path)
			if err != nil {
				f.t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(data), "test", "tost", 1)), 0o600); err != nil {
				f.t.Fatal(err)
			}
		}, []string{"no evidence from bob", "left out: bob.json: changed", "--absent"}},
		{"no signature", nil, func(f choiceFolder) {
			if err := os.Remove(filepath.Join(f.dir, "bob.json.sig")); err != nil {
				f.t.Fatal(err)
			}
		}, []string{"no evidence from bob", "left out: bob.json: bad_signature"}},
		{"nothing agreed", func(ev *restart.Evidence) {
			for i := range ev.Hosts {
				for j := range ev.Hosts[i].Macroblocks {
					ev.Hosts[i].Macroblocks[j] = restart.Macroblock{Index: uint64(j) + 1, Held: restart.HeldNo}
				}
			}
		}, nil, []string{"no macroblock in the evidence", "2..30", "not held by bob", "nothing older is left"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newChoiceFolder(t, "alice", "bob")
			f.put("alice", nil)
			f.put("bob", c.bob)
			if c.after != nil {
				c.after(f)
			}
			out, errs, code := f.line("propose-k")
			if code != exitRefused || !strings.HasPrefix(out, "no K: ") || !strings.Contains(errs, "error: no K: ") || !strings.Contains(errs, "hint:") {
				t.Errorf("exit %d", code)
			}
			wantSaid(t, out+errs, c.say...)
		})
	}
	f := newChoiceFolder(t, "alice", "bob")
	f.put("alice", nil)
	if out, errs, code := f.line("propose-k", "--absent", "bob=his data centre burnt"); code != exitDone || !strings.Contains(out, "without bob: his data centre burnt") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestRestartChoiceBadInput(t *testing.T) {
	f := newChoiceFolder(t, "alice", "bob")
	f.put("alice", nil)
	f.put("bob", nil)
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := t.TempDir()
	for _, c := range []struct {
		args []string
		say  []string
	}{
		{[]string{"propose-k", f.dir}, []string{"hint: qnetops restart propose-k --allowed-signers"}},
		{[]string{"propose-k", "--allowed-signers", f.signers}, []string{"no evidence is named"}},
		{[]string{"propose-k", "--allowed-signers", f.signers, filepath.Join(f.dir, "nobody.json"), empty}, []string{"nobody.json", "has no *.json"}},
		{[]string{"propose-k", "--allowed-signers", write("alice ssh-ed25519 xx\n"), f.dir}, []string{"file:1"}},
		{[]string{"propose-k", "--allowed-signers", f.signers, f.dir, "--below", "x", "--absent", "bob", "--forged", "0"}, []string{"--below \"x\"", "--absent \"bob\"", "--forged \"0\""}},
		{[]string{"propose-k", "--allowed-signers", f.signers, f.dir, "--below", "9", "--forged", "8"}, []string{"both"}},
		{[]string{"propose-k", "--allowed-signers", f.signers, f.dir, "--absent", "bbo=x"}, []string{"bbo", "alice, bob"}},
		{[]string{"exclude", "--allowed-signers", f.signers, f.dir, "--add", "genesis_node_001"}, []string{"ID=REASON"}},
		{[]string{"exclude", "--allowed-signers", f.signers, f.dir, "--list", write("b\na\n\ufeffc\na\n")}, []string{"file:2: a comes after b", "file:4: a is on line 2 already"}},
		{[]string{"exclude", "--allowed-signers", f.signers, f.dir, "--list", filepath.Join(empty, "none")}, []string{"none"}},
	} {
		out, errs, code := runLine(t, append([]string{"restart"}, c.args...)...)
		if code != exitUsage || out != "" {
			t.Errorf("%v: exit %d\n%s%s", c.args, code, out, errs)
		}
		wantSaid(t, errs, c.say...)
	}
}

func TestRestartExclude(t *testing.T) {
	f := newChoiceFolder(t, "alice", "bob")
	f.put("alice", nil)
	f.put("bob", nil)
	out, errs, code := f.line("exclude")
	if code != exitDone {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	wantSaid(t, out, "bar 1 of 6: genesis_node_006", "5 of 6 must sign, 0 shown alive, 5 signed until the stall, 0 may fail", "4 of 5 must sign, 0 shown alive, 5 signed until the stall, 1 may fail",
		"silent in 30 windows by 2 operators", "un-barred and voting 5 of 6 must sign, 1 shown alive, 5 signed until the stall", "next:")
	doc := map[string]any{}
	out, _, code = f.line("exclude", "-o", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitDone {
		t.Fatalf("exit %d, %v", code, err)
	}
	if doc["schema"] != "qnetops/exclude/v1" || doc["k"] != 30.0 || doc["stalled_at"] != 30.0 || doc["excluded"].([]any)[0] != "genesis_node_006" || len(doc["identities"].([]any)) != 6 {
		t.Errorf("%v", doc)
	}
	out, errs, code = f.line("exclude", "--add", "somebody=else")
	if code != exitRefused {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	wantSaid(t, errs, "--add: somebody is not in the stalled committee", "hint:")
	out, errs, code = f.line("exclude", "--drop", "genesis_node_006")
	if code != exitDone {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	wantSaid(t, out, "bar nobody", "warning: no fault is tolerated afterwards", "dropped")
	list := filepath.Join(t.TempDir(), "bar.txt")
	if err := os.WriteFile(list, []byte("genesis_node_001\ngenesis_node_006\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, code = f.line("exclude", "--list", list)
	if code != exitDone {
		t.Errorf("exit %d", code)
	}
	wantSaid(t, out, "bar 2 of 6", "warning: genesis_node_001 is listed and signed until the stall: given in "+list)
}

// docs/json.md lists fields that the documents have.
func TestRestartChoiceDocuments(t *testing.T) {
	describes(t, restart.ProposeSchema, reflect.TypeFor[restart.Proposal](), 15)
	describes(t, restart.ExcludeSchema, reflect.TypeFor[restart.Exclusion](), 15)
}

// describes checks that docs/json.md has a part on a document, and that the document has each field of it, at least so many.
func describes(t *testing.T, schema string, doc reflect.Type, least int) {
	t.Helper()
	text, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "`"+schema+"`\n")
	if !ok {
		t.Fatalf("docs/json.md does not describe %s", schema)
	}
	part, _, _ = strings.Cut(part, "\n##")
	fields := 0
	for line := range strings.Lines(part) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z_]+[a-z0-9_.\\[\\]]*)`").FindAllStringSubmatch(cells[1], -1) {
			fields++
			if path := strings.Split(strings.ReplaceAll(name[1], "[]", ""), "."); !hasJSONField(doc, path) {
				t.Errorf("%s has no field %s", schema, name[1])
			}
		}
	}
	if fields < least {
		t.Errorf("%s: %d fields described", schema, fields)
	}
}

func hasJSONField(doc reflect.Type, path []string) bool {
	for doc.Kind() == reflect.Pointer || doc.Kind() == reflect.Slice {
		doc = doc.Elem()
	}
	if len(path) == 0 {
		return true
	}
	if doc.Kind() != reflect.Struct {
		return false
	}
	for i := range doc.NumField() {
		if name, _, _ := strings.Cut(doc.Field(i).Tag.Get("json"), ","); name == path[0] {
			return hasJSONField(doc.Field(i).Type, path[1:])
		}
	}
	return false
}
