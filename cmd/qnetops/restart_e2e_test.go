package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/node"
)

// operators are some who each have two hosts of one stalled chain, read over SSH, and a folder for their files.
type operators struct {
	t     *testing.T
	dir   string
	names []string
	hosts map[string]string // inventory by operator
	labs  map[string]*lab.Lab
	said  strings.Builder // all that was ever printed
}

func newOperators(t *testing.T, led *ledger.Ledger, lines []string, names ...string) *operators {
	t.Helper()
	o := &operators{t: t, dir: t.TempDir(), names: names, hosts: map[string]string{}, labs: map[string]*lab.Lab{}}
	var signers strings.Builder
	for i, name := range names {
		l, err := startProcessLab(lab.Config{Nodes: 2, Block: ledgerBlock, Dir: t.TempDir(), Seed: int64(i), Ledger: func(n int) *ledger.Node {
			return led.Node(ledger.NodeConfig{ID: led.Members()[2*i+n-1], Build: lab.BuildID("v1"), Lines: lines})
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		o.hosts[name], o.labs[name] = filepath.Join(l.Dir(), lab.HostsFile), l
		_, allowed := signKey(t, o.dir, name)
		line, err := os.ReadFile(allowed)
		if err != nil {
			t.Fatal(err)
		}
		signers.Write(line)
	}
	o.write("signers", signers.String())
	return o
}

func (o *operators) path(name string) string { return filepath.Join(o.dir, name) }

func (o *operators) write(name, text string) {
	o.t.Helper()
	if err := os.WriteFile(o.path(name), []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operators) run(want int, args ...string) (out, errs string) {
	o.t.Helper()
	out, errs, code := runLine(o.t, args...)
	o.said.WriteString(out + errs)
	if code != want {
		o.t.Fatalf("%s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, out, errs)
	}
	return out, errs
}

// as is a command line of one operator: his hosts, and his key where something is signed.
func (o *operators) as(name string, args ...string) []string {
	args = append(args, "--hosts", o.hosts[name])
	if slices.Contains(args, "gather") || slices.Contains(args, "record") {
		args = append(args, "--sign-key", o.path("sign_"+name))
	}
	return args
}

// gather makes everybody's evidence in a folder; those who are away cannot be reached, and make none.
func (o *operators) gather(folder string, away ...string) {
	o.t.Helper()
	if err := os.Mkdir(o.path(folder), 0o755); err != nil {
		o.t.Fatal(err)
	}
	for _, name := range o.names {
		want := exitDone
		if slices.Contains(away, name) {
			want = exitError
		}
		o.run(want, o.as(name, "restart", "gather", "-v", "--operator", name, "--out", filepath.Join(o.path(folder), name+".json"))...)
	}
}

// rightK is K by the nodes themselves: the newest macroblock below bound that one node of each present operator holds with a
// certificate that holds, as the one below it, and of which all nodes that hold it have the same hash and digest. It is 0 where the
// nodes differ in anything below: then somebody's word is wrong.
func (o *operators) rightK(bound uint64, absent ...string) uint64 {
	top := uint64(0)
	for _, l := range o.labs {
		for _, h := range l.Hosts() {
			top = max(top, h.Ledger().Sealed())
		}
	}
	for k := min(top, bound-1); k >= 2; k-- {
		if !o.agreed(k, absent) || !o.agreed(k-1, absent) {
			continue
		}
		for i := uint64(1); i < k; i++ {
			if !o.agreed(i, absent) {
				return 0
			}
		}
		return k
	}
	return 0
}

func (o *operators) agreed(i uint64, absent []string) bool {
	hashes, digests := map[node.Hash]bool{}, map[node.Hash]bool{}
	for _, name := range o.names {
		if slices.Contains(absent, name) {
			continue
		}
		good := false
		for _, h := range o.labs[name].Hosts() {
			n := h.Ledger()
			if i > n.Sealed() {
				continue
			}
			mb := n.Macroblock(i)
			hashes[mb.Hash()] = true
			if n.Proof(i).Check(&mb) == nil {
				good, digests[n.Fields(i).DigestV2()] = true, true
			}
		}
		if !good {
			return false
		}
	}
	return len(hashes) == 1 && len(digests) == 1
}

// TestRestartOfThreeOperators takes three operators with two hosts each over SSH to K, through everything that can be wrong with a
// chain, and holds each K against the one that the nodes' own data give.
func TestRestartOfThreeOperators(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three labs")
	}
	t.Parallel()
	const top = 30
	led := stalledLedger(t, top)
	o := newOperators(t, led, nil, "ann", "bob", "eve")
	inject := func(name, host string, kind ledger.Kind, arg string) {
		t.Helper()
		if err := o.labs[name].Inject(host, string(kind), arg); err != nil {
			t.Fatal(err)
		}
	}
	everywhere := func(kind ledger.Kind, arg string) {
		for _, name := range o.names {
			inject(name, "001", kind, arg)
			inject(name, "002", kind, arg)
		}
	}
	for i, c := range []struct {
		name  string
		spoil func()
		away  []string
		args  []string
		bound uint64 // 0: none
		k     uint64 // what the spoiling was made for
		code  int
		say   []string
	}{
		{name: "all is well", k: top, say: []string{"held by", "ann/001, ann/002, bob/001, bob/002, eve/001, eve/002", "verified by  signatures", "archive-check HOST --k 30"}},
		{name: "a fork at a macroblock", spoil: func() { inject("bob", "002", ledger.FaultFork, "25:x") }, k: 24, say: []string{"macroblock 25: different hash", "above the first contradiction"}},
		{name: "one hash with two digests", spoil: func() { inject("eve", "001", ledger.FaultOtherDigest, "29-30") }, k: 28, say: []string{"macroblock 29: different digest"}},
		{name: "two digests below what all agree on", spoil: func() { inject("eve", "001", ledger.FaultOtherDigest, "28") }, code: exitRefused,
			say: []string{"first offending window 28, kind digest", "eve adds: qnetops restart gather --supplement eve.json --from 28 --to 28"}},
		{name: "bad seals that heal", spoil: func() {
			inject("bob", "001", ledger.FaultBadSeal, "30:1")
			inject("bob", "002", ledger.FaultBadSeal, "30:1")
		}, k: top},
		{name: "bad seals that stay", spoil: func() {
			inject("bob", "001", ledger.FaultBadSeal, "30")
			inject("bob", "002", ledger.FaultBadSeal, "30")
		}, k: 29, say: []string{"no certificate of full quorum at bob"}},
		{name: "a lying node", spoil: func() { inject("ann", "002", ledger.FaultLie, "27:keys") }, k: 26, say: []string{"macroblock 27: different hash: ann/001,bob/001,bob/002,eve/001,eve/002", "; ann/002 "}},
		{name: "an operator's nodes lag", spoil: func() {
			inject("eve", "001", ledger.FaultLag, "3")
			inject("eve", "002", ledger.FaultLag, "2")
		}, k: 28, say: []string{"29..30", "not held by eve"}},
		{name: "nobody can reach an operator", spoil: func() {
			inject("eve", "001", lab.FaultDropSSH, "hold")
			inject("eve", "002", lab.FaultDropSSH, "hold")
		}, away: []string{"eve"}, code: exitRefused, say: []string{"no evidence from eve", "--absent"}},
		{name: "and he is waived", spoil: func() {
			inject("eve", "001", lab.FaultDropSSH, "hold")
			inject("eve", "002", lab.FaultDropSSH, "hold")
		}, away: []string{"eve"}, args: []string{"--absent", "eve=it's not reachable"}, k: top, say: []string{"without eve: it's not reachable", `--absent 'eve=it'\''s not reachable'`}},
		{name: "a forged macroblock that nobody speaks of", spoil: func() { everywhere(ledger.FaultForged, "22") }, k: top},
		{name: "a forged macroblock", spoil: func() { everywhere(ledger.FaultForged, "22") }, args: []string{"--forged", "22"}, bound: 22, k: 21,
			say: []string{"not below the forged macroblock 22", "archive-check HOST --k 21 --forged"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.t = t
			defer func() {
				for _, l := range o.labs {
					if err := l.Clear("", ""); err != nil {
						t.Error(err)
					}
				}
			}()
			if c.spoil != nil {
				c.spoil()
			}
			folder := fmt.Sprint("evidence", i)
			o.gather(folder, c.away...)
			args := append([]string{"restart", "propose-k", "--allowed-signers", o.path("signers"), o.path(folder)}, c.args...)
			out, errs := o.run(c.code, args...)
			wantSaid(t, out+errs, c.say...)
			if c.code != exitDone {
				if right := o.rightK(1<<40, c.away...); len(c.away) == 0 && right != 0 {
					t.Errorf("no K, and the nodes' data say %d", right)
				}
				return
			}
			doc := answer(t, exitDone, args...)
			bound := c.bound
			if bound == 0 {
				bound = 1 << 40
			}
			right := o.rightK(bound, c.away...)
			if right != c.k || doc["k"] != float64(right) {
				t.Fatalf("K %v, the nodes' data say %d, the scenario is made for %d\n%s", doc["k"], right, c.k, out)
			}
			n := o.labs["ann"].Hosts()[0].Ledger()
			if doc["hash"] != n.Hash(right).String() || doc["digest"] != n.Fields(right).DigestV2().String() || doc["digest_pred"] != n.Fields(right-1).DigestV2().String() {
				t.Errorf("K %d with %v, %v, %v", right, doc["hash"], doc["digest"], doc["digest_pred"])
			}
		})
	}
	o.t = t
	// Who is alive since the stall: four nodes answered; of eve's two one did not, and nobody knows which member it is.
	if err := o.labs["eve"].Inject("002", lab.FaultDropSSH, "hold"); err != nil {
		t.Fatal(err)
	}
	o.gather("alive")
	out, _ := o.run(exitDone, "restart", "exclude", "--allowed-signers", o.path("signers"), o.path("alive"))
	wantSaid(t, out, "5 of 6 must sign, 5 shown alive, 1 signed until the stall (1 of them behind hosts that do not answer), 0 may fail", "hosts whose node did not answer: eve/002", "bar nobody")
	out, errs := o.run(exitRefused, "restart", "exclude", "--allowed-signers", o.path("signers"), o.path("evidence8"))
	wantSaid(t, out+errs, "no list to publish", "there is no K")
	out, _ = o.run(exitDone, "restart", "exclude", "--allowed-signers", o.path("signers"), o.path("evidence9"), "--absent", "eve=not reachable")
	wantSaid(t, out, "5 of 6 must sign, 4 shown alive, 2 signed until the stall, 1 may fail", "warning: the quorum of 5 rests on identities of which nothing was seen since the stall")
}

// TestRestartSupplementsByTheHints decides an undecided choice by nothing but the commands that are printed, each typed as it
// stands in the operator's own folder.
func TestRestartSupplementsByTheHints(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two labs")
	}
	const top, fork = 150, 61 // the files hold 87 to 150, 86 and 22 at first
	o := newOperators(t, stalledLedger(t, top), nil, "ann", "bob")
	for _, host := range []string{"001", "002"} {
		if err := o.labs["bob"].Inject(host, string(ledger.FaultFork), fmt.Sprintf("%d:x", fork)); err != nil {
			t.Fatal(err)
		}
	}
	o.gather("evidence")
	t.Chdir(o.path("evidence"))
	propose := []string{"restart", "propose-k", "--allowed-signers", o.path("signers"), "."}
	printed := regexp.MustCompile(`(?m)(ann|bob) adds: qnetops (restart gather --supplement \S+ --from \d+ --to \d+)$`)
	for round := 0; ; round++ {
		out, errs, code := runLine(t, propose...)
		if code == exitDone {
			if right := o.rightK(1 << 40); right != fork-1 || round == 0 {
				t.Fatalf("round %d, and the nodes' data say %d", round, right)
			}
			wantSaid(t, strings.SplitN(out, "\n", 2)[0], fmt.Sprint(fork-1))
			return
		}
		commands := printed.FindAllStringSubmatch(errs, -1)
		if code != exitRefused || len(commands) == 0 || round > 6 {
			t.Fatalf("round %d: exit %d\n%s%s", round, code, out, errs)
		}
		for _, c := range commands {
			o.run(exitDone, o.as(c[1], strings.Fields(c[2])...)...)
		}
	}
}

// TestRestartShowsNoSecret: nothing of the secrets in the nodes' environment and in the lines they print is in any file or on any
// stream of any step, up to a record that another operator has verified.
func TestRestartShowsNoSecret(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two labs")
	}
	var lines []string
	for _, value := range lab.Sentinels() {
		lines = append(lines, "[FATAL][PREFLIGHT] checks_failed node_type=Super err="+value, "[FATAL]["+value+"] "+value, "[WARN][CONS] checkpoint_defer mb=7 reason="+value,
			"[ERR][ROLLBACK] failed target=90 err="+value+" action=start_unchanged", "[FATAL][RESTART] malformed_manifest err="+value)
	}
	o := newOperators(t, stalledLedger(t, 30), lines, "ann", "bob", "eve")
	if err := o.labs["eve"].Inject("002", string(ledger.FaultStorage), ""); err != nil {
		t.Fatal(err)
	}
	o.gather("evidence")
	choice := []string{"--allowed-signers", o.path("signers"), o.path("evidence")}
	o.run(exitDone, append([]string{"restart", "propose-k"}, choice...)...)
	o.run(exitDone, append([]string{"restart", "exclude", "-o", "json"}, choice...)...)
	doc, _ := o.run(exitDone, o.as("ann", "restart", "archive-check", "002", "--k", "30", "-o", "json")...)
	o.write("archive.json", doc)
	o.write("build.txt", "make image\n")
	record := append(choice, "--operator", "ann", "--out", o.path("record"), "--archive-check", o.path("archive.json"), "--commit", "0123456789abcdef",
		"--image", "registry.example.org/qnet@sha256:"+strings.Repeat("5a", 32), "--build", o.path("build.txt"), "--start-at", time.Now().Add(6*time.Hour).UTC().Format(time.RFC3339),
		"--waive", "trigger=a rehearsal, said ann")
	o.run(exitDone, o.as("ann", append([]string{"restart", "record", "-v"}, record...)...)...)
	out, _ := o.run(exitDone, o.as("bob", "restart", "verify-record", "-v", o.path("record"), "--allowed-signers", o.path("signers"))...)
	wantSaid(t, out, "its trigger does not hold and is waived by ann: a rehearsal, said ann", "what does not pass: ", "rollback fail: ann/001: rollback failed")
	_, errs := o.run(exitUsage, o.as("bob", "restart", "verify-record", o.path("record"), "--allowed-signers", o.path("record/allowed_signers"))...)
	wantSaid(t, errs, "lies in the folder that it is to judge", "hint: give your own file")
	if err := os.Symlink(o.path("record/allowed_signers"), o.path("mine")); err != nil {
		t.Fatal(err)
	}
	o.run(exitUsage, o.as("bob", "restart", "verify-record", o.path("record"), "--allowed-signers", o.path("mine"))...)
	verified := answer(t, exitDone, o.as("bob", "restart", "verify-record", o.path("record"), "--allowed-signers", o.path("signers"))...)
	if waived, ok := verified["trigger_waived"].(map[string]any); !ok || waived["by"] != "ann" || waived["reason"] != "a rehearsal, said ann" {
		t.Errorf("%v", verified["trigger_waived"])
	}
	texts := map[string]string{"what was printed": o.said.String()}
	err := filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		texts[strings.TrimPrefix(path, o.dir)] = string(data)
		return err
	})
	if err != nil || len(texts) < 20 {
		t.Fatalf("%v, %d files", err, len(texts))
	}
	for _, where := range slices.Sorted(maps.Keys(texts)) {
		for name, value := range lab.Sentinels() {
			if strings.Contains(texts[where], value) {
				t.Errorf("%s is in %s", name, where)
			}
		}
	}
	var ev struct {
		Hosts []struct {
			Lines []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(texts["/evidence/ann.json"]), &ev); err != nil || len(ev.Hosts) == 0 || !slices.ContainsFunc(ev.Hosts[0].Lines, func(l struct{ Text string }) bool {
		return strings.HasPrefix(l.Text, "[ERR][ROLLBACK] failed target=90 ***")
	}) {
		t.Errorf("%v, or the planted lines are not in the evidence: this test shows nothing", err)
	}
}
