package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
)

// executors are three operators with two hosts each of one network of nine; the nodes
// of the last three hosts, one of each operator, are gone.
type executors struct {
	*operators
	lab    *lab.Lab
	gone   []string // hosts
	barred []string // their identities
}

func newExecutors(t *testing.T) *executors {
	t.Helper()
	dir := t.TempDir()
	l, err := startProcessLab(lab.Config{Nodes: 9, Block: 10 * time.Millisecond, Dir: dir, History: labHistory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.WaitFor(t.Context(), "every node to move", moving); err != nil {
		t.Fatal(err)
	}
	x := &executors{lab: l, gone: []string{"007", "008", "009"}, operators: &operators{t: t, dir: t.TempDir(), names: []string{"ann", "bob", "eve"}, hosts: map[string]string{}}}
	var signers strings.Builder
	for i, name := range x.names {
		x.hosts[name] = x.inventory(name, lab.HostID(2*i+1), lab.HostID(2*i+2), x.gone[i])
		_, allowed := signKey(t, x.dir, name)
		line, err := os.ReadFile(allowed)
		if err != nil {
			t.Fatal(err)
		}
		signers.Write(line)
	}
	x.write("signers", signers.String())
	return x
}

// inventory gives an operator the hosts of the lab that are his.
func (x *executors) inventory(name string, ids ...string) string {
	x.t.Helper()
	all, err := os.ReadFile(filepath.Join(x.lab.Dir(), lab.HostsFile))
	if err != nil {
		x.t.Fatal(err)
	}
	head, hosts, _ := strings.Cut(string(all), "\n[[host]]\n")
	text := strings.Replace(head, fmt.Sprintf("fleet = %q", lab.FleetName), fmt.Sprintf("fleet = %q", name), 1)
	for _, h := range strings.Split(hosts, "\n[[host]]\n") {
		if slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(h, fmt.Sprintf("id = %q\n", id)) }) {
			text += "\n[[host]]\n" + h
		}
	}
	path := filepath.Join(x.lab.Dir(), name+".toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
	return path
}

// line is a command line of one operator, who leaves the host out whose node is gone.
func (x *executors) line(name string, args ...string) []string {
	return slices.Concat(args, []string{"--hosts", x.hosts[name], "--state", x.path("state-" + name), "--skip", x.gone[slices.Index(x.names, name)]})
}

// together has all operators run a command at the same time; each must end with 0.
func (x *executors) together(what string, args func(name string) []string) {
	x.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, name := range x.names {
		wg.Go(func() {
			out, errs, code := runLine(x.t, x.line(name, args(name)...)...)
			mu.Lock()
			defer mu.Unlock()
			x.said.WriteString(out + errs)
			if code != exitDone {
				x.t.Errorf("%s by %s: exit %d\n%s%s", what, name, code, out, errs)
			}
		})
	}
	wg.Wait()
	if x.t.Failed() {
		x.t.FailNow()
	}
}

// record takes the stalled chain to a record.
func (x *executors) record(start time.Time) {
	x.t.Helper()
	if err := os.Mkdir(x.path("evidence"), 0o755); err != nil {
		x.t.Fatal(err)
	}
	for _, name := range x.names {
		x.run(exitDone, x.as(name, "restart", "gather", "--operator", name, "--out", filepath.Join(x.path("evidence"), name+".json"))...)
	}
	choice := []string{"--allowed-signers", x.path("signers"), x.path("evidence"), "--operator", "ann", "--waive", "trigger=the test does not wait"}
	for _, id := range x.barred {
		choice = append(choice, "--add", id+"=gone")
	}
	x.run(exitDone, x.as("ann", append([]string{"restart", "record", "--manifest", x.path("restart.json")}, choice...)...)...)
	image := x.release("restart", x.path("restart.json"))
	k := x.manifest(x.path("restart.json")).Restart.ResumeFromMB
	doc, _ := x.run(exitDone, x.as("ann", "restart", "archive-check", "002", "--k", fmt.Sprint(k), "--joiners", "5", "-o", "json")...)
	x.write("archive.json", doc)
	x.write("build.txt", "make image\n")
	x.run(exitDone, x.as("ann", append([]string{"restart", "record", "--out", x.path("record"), "--archive-check", x.path("archive.json"), "--commit", "0123456789abcdef", "--image", image,
		"--build", x.path("build.txt"), "--start-at", start.UTC().Truncate(time.Second).Format(time.RFC3339)}, choice...)...)...)
}

// release adds an image to the registry by a manifest file, as lab image does.
func (x *executors) release(tag, file string) string {
	x.t.Helper()
	added, err := addLabImage(func(tag string, raw []byte) (simnode.AddedImage, error) { return x.lab.AddImage(tag, raw) }, tag, x.manifest(file))
	if err != nil {
		x.t.Fatal(err)
	}
	return byDigest(added)
}

func (x *executors) manifest(file string) manifest.Manifest {
	x.t.Helper()
	loaded, err := manifest.Load(file)
	if err != nil {
		x.t.Fatal(err)
	}
	return loaded.Manifest
}

// stall takes three of nine nodes away.
func (x *executors) stall() {
	x.t.Helper()
	for _, id := range x.gone {
		if err := x.lab.Inject(id, lab.FaultStop, ""); err != nil {
			x.t.Fatal(err)
		}
		h, err := x.lab.Host(id)
		if err != nil {
			x.t.Fatal(err)
		}
		x.barred = append(x.barred, h.NodeID())
	}
	slices.Sort(x.barred)
	from := topOf(x.lab.Status(x.t.Context()))
	if err := x.lab.WaitFor(x.t.Context(), "blocks that nobody seals", func(s lab.Status) bool { return topOf(s) > from+2*node.MacroblockBlocks }); err != nil {
		x.t.Fatal(err)
	}
}

// execute is restart execute of one operator, with the archive host of his fleet.
func (x *executors) execute(name string, more ...string) []string {
	return append([]string{"restart", "execute", "--allowed-signers", x.path("signers"), x.path("record"), "--archive", lab.HostID(2*slices.Index(x.names, name) + 2)}, more...)
}

// readiness has everybody write his file; what is not ready, not his or not whole is
// refused.
func (x *executors) readiness() {
	x.t.Helper()
	for _, name := range x.names {
		x.run(exitDone, x.line(name, x.execute(name, "--ready-out", x.path("ready-"+name), "--operator", name, "--sign-key", x.path("sign_"+name))...)...)
	}
	_, errs := x.run(exitRefused, x.line("ann", x.execute("ann", "--ready-out", x.path("ready-false"), "--operator", "bob", "--sign-key", x.path("sign_ann"))...)...)
	wantSaid(x.t, errs, "signed with a key of ann, not of", "hint: ")
	if _, err := os.Stat(x.path("ready-false")); err == nil {
		x.t.Error("a file that nobody would take was written")
	}
	_, errs = x.run(exitRefused, x.line("ann", x.execute("ann", "--yes")...)...)
	wantSaid(x.t, errs, "survivors", "2 of 6 identities, 5 needed")
	whole, err := os.ReadFile(x.path("ready-bob"))
	if err != nil {
		x.t.Fatal(err)
	}
	x.write("ready-changed", strings.Replace(string(whole), "genesis_node_003", "genesis_node_005", 1))
	sig, err := os.ReadFile(x.path("ready-bob.sig"))
	if err != nil {
		x.t.Fatal(err)
	}
	x.write("ready-changed.sig", string(sig))
	_, errs = x.run(exitUsage, x.line("ann", x.execute("ann", x.path("ready-changed"), "--yes")...)...)
	wantSaid(x.t, errs, "ready-changed: ", "hint: ")
}

// verified gathers the words of the others and has ann judge.
func (x *executors) verified() {
	x.t.Helper()
	words := []string{}
	for _, name := range []string{"bob", "eve"} {
		doc, _ := x.run(exitRefused, x.line(name, "restart", "verify", "--allowed-signers", x.path("signers"), x.path("record"), "--operator", name, "-o", "json")...)
		x.write("verify-"+name+".json", doc)
		words = append(words, x.path("verify-"+name+".json"))
	}
	line := append([]string{"restart", "verify", "--allowed-signers", x.path("signers"), x.path("record"), "--operator", "ann"}, words...)
	_, errs := x.run(exitRefused, x.line("ann", line[:len(line)-1]...)...)
	wantSaid(x.t, errs, "operators unknown")
	out, _ := x.run(exitDone, x.line("ann", line...)...)
	wantSaid(x.t, out, "the nodes of yours, bob, eve agree", "no barred identity")
}

// TestRestartExecuteOfThreeOperators takes three operators from a stall to the end:
// readiness files, execution at one time, verification among each other, the first
// look at the retirement, and the barred let back at one moment.
func TestRestartExecuteOfThreeOperators(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a lab of nine")
	}
	t.Parallel()
	x := newExecutors(t)
	x.stall()
	start := time.Now().Add(30 * time.Second)
	x.record(start)
	began := time.Now()
	x.readiness()
	// A run of each is behind them: what lies before the start takes no longer now.
	at := start
	if soon := time.Now().Add(max(8*time.Second, time.Since(began))); soon.After(at) {
		at = soon
	}
	x.together("restart execute", func(name string) []string {
		args := x.execute(name, "--yes", "--at", at.UTC().Truncate(time.Second).Format(time.RFC3339))
		for _, other := range x.names {
			if other != name {
				args = append(args, x.path("ready-"+other))
			}
		}
		return args
	})
	x.verified()
	doc, _ := x.run(exitRefused, x.line("ann", "restart", "retire", "--allowed-signers", x.path("signers"), x.path("record"), "-o", "json")...)
	var retire struct {
		Left    uint64            `json:"blocks_left"`
		Barred  []string          `json:"barred"`
		Cleared manifest.Manifest `json:"cleared"`
	}
	if err := json.Unmarshal([]byte(doc), &retire); err != nil || retire.Left == 0 || !slices.Equal(retire.Barred, x.barred) {
		t.Fatalf("%v %+v, barred are %v", err, retire, x.barred)
	}
	x.unbar(retire.Cleared)
	for _, name := range x.names {
		for _, value := range lab.Sentinels() {
			if strings.Contains(x.said.String(), value) {
				t.Fatalf("a secret was printed (to %s or another)", name)
			}
		}
	}
	if bad := slices.Concat(x.lab.Violations(), x.lab.Refusals()); len(bad) > 0 {
		t.Errorf("%q", bad)
	}
}

// unbar changes all nodes to a release without the list, at one time.
func (x *executors) unbar(cleared manifest.Manifest) {
	x.t.Helper()
	raw, err := cleared.JSON()
	if err != nil {
		x.t.Fatal(err)
	}
	x.write("open.json", string(raw))
	image := x.release("open", x.path("open.json"))
	at := time.Now().Add(20 * time.Second).UTC().Truncate(time.Second)
	line := func(name string, when time.Time) []string {
		return append(append([]string{"restart", "unbar"}, x.barred...), "--image", image, "--at", when.Format(time.RFC3339), "--yes", "--waive", "members=the others change at the same time")
	}
	_, errs := x.run(exitRefused, x.line("ann", line("ann", time.Now().Add(-time.Minute).UTC())...)...)
	wantSaid(x.t, errs, "start_time")
	x.together("restart unbar", func(name string) []string { return line(name, at) })
	for _, h := range x.lab.Hosts() {
		if slices.Contains(x.gone, h.ID()) {
			continue
		}
		all := h.Engine().Containers()
		if len(all) != 1 || all[0].State != "running" || all[0].StartedAt.Before(at) || !strings.Contains(all[0].Image, image[strings.Index(image, "@"):]) {
			x.t.Errorf("host %s after %s: %+v", h.ID(), at, all)
		}
	}
}
