package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/realhosts"
	"github.com/qnetops/qnetops/rolling"
)

// cutoverBlock is the block time of these fleets: most of a cut-over is chain time, and four nodes with it take a fifth of
// one core.
const cutoverBlock = 15 * time.Millisecond

// cutoverNodes is the smallest committee that tolerates a fault: 3 of 4 must sign.
const cutoverNodes = 4

// TestCutoversOnRealHosts is every cut-over on real sshd and real engines with the ordinary program: each once undisturbed and
// once with something killed in the middle and resumed by the command that was named.
func TestCutoversOnRealHosts(t *testing.T) {
	program := buildProgram(t)
	var all sync.WaitGroup // at once, however few processors there are: they mostly wait for their chains
	for _, c := range []struct {
		name   string
		supers int // the node that is barred: a genesis node waits for three others
		run    func(*realFleet)
	}{
		{"halt and release", 0, (*realFleet).haltsAndReleases},
		{"rollback and decree", 0, (*realFleet).rollbacksAndDecrees},
		{"restart and unbar", 1, (*realFleet).restartsAndUnbars},
	} {
		all.Go(func() {
			t.Run(c.name, func(t *testing.T) { withoutSecrets(upCutover(t, program, c.supers, cutoverBlock), c.run) })
		})
	}
	all.Wait()
}

// withoutSecrets runs a test and holds that nothing shows a planted secret while it runs and at its end.
func withoutSecrets(f *realFleet, run func(*realFleet)) {
	stop := f.watchProcesses()
	run(f)
	stop()
	f.noSecrets()
}

// upCutover brings a fleet up, with so many super nodes beside the genesis nodes, and waits until it seals with all its
// members.
func upCutover(t *testing.T, program string, supers int, block time.Duration) *realFleet {
	t.Helper()
	need.Linux(t)
	need.Root(t)
	need.Program(t, "dockerd", "containerd", "sshd", "iptables", "ip", "docker")
	f := &realFleet{t: t, program: program, dir: t.TempDir()}
	began := time.Now()
	f.raise(realhosts.Config{Nodes: cutoverNodes + supers, SuperFrom: cutoverNodes + 1, Block: block})
	f.healthy()
	f.committee(cutoverNodes + supers)
	t.Logf("part %-32s %5.1f s", "hosts up", time.Since(began).Seconds())
	return f
}

// part runs one part of a sequence, says how long it took, and holds what must be true after each: no file of a data
// directory is gone.
func (f *realFleet) part(name string, run func()) {
	f.t.Helper()
	before, began := f.inventory(), time.Now()
	run()
	f.kept(before)
	f.t.Logf("part %-32s %5.1f s", name, time.Since(began).Seconds())
}

// far is a height that leaves what arming asks for, twice, and time to arm so many nodes more.
func (f *realFleet) far(more uint64) string {
	return fmt.Sprint(f.status().tip() + (2*cutoverNodes+more)*rolling.ExpectedNode)
}

const buildV1, buildV2 = "1111111", "2222222"

// haltsAndReleases: a halt undisturbed, the release of it with an engine killed; a halt with the tool killed, the release of
// it undisturbed.
func (f *realFleet) haltsAndReleases() {
	f.part("halt", func() {
		f.ends("halt", "--height", f.far(5))
		f.halted(f.ids()...)
	})
	f.part("every engine restarts", func() {
		f.enginesAgain()
		f.halted(f.ids()...)
	})
	f.part("release, an engine killed", func() {
		kill := func(*exec.Cmd) { f.again(f.KillEngine(f.t.Context(), "003"), f.StartEngine(f.t.Context(), "003")) }
		_, code := f.follow(f.command("halt", "release", "qnet:v2", "--yes", "-v"), marks{phase("go", "begun"): kill})
		f.through(code)
		f.whole(buildV2, f.ids()...)
	})
	f.part("halt, the tool killed", func() {
		_, code := f.follow(f.command("halt", "--height", f.far(5), "--yes", "-v"), marks{"003  replace   begun": killTool})
		f.through(code)
		f.halted(f.ids()...)
	})
	f.part("release", func() {
		f.ends("halt", "release", "qnet:v1")
		f.whole(buildV1, f.ids()...)
	})
}

func (f *realFleet) again(errs ...error) {
	f.t.Helper()
	for _, err := range errs {
		if err != nil {
			f.t.Error(err)
		}
	}
}

// stall makes two nodes silent, so that nothing more is sealed, until the fleet is stalled or, in a hurry, for some blocks.
// It returns the height that is certified everywhere.
func (f *realFleet) stall(hurry bool) uint64 {
	f.t.Helper()
	for _, id := range []string{"002", "003"} {
		f.again(f.Inject(f.t.Context(), id, "mute", ""))
	}
	time.Sleep(130 * f.State().Block)
	doc := f.status()
	for deadline := time.Now().Add(time.Minute); !hurry && doc.Fleet.Verdict != "stalled"; doc = f.status() {
		if time.Now().After(deadline) {
			f.t.Fatalf("the fleet does not stall: %+v", doc)
		}
		time.Sleep(300 * time.Millisecond)
	}
	var floor uint64
	for _, n := range doc.Nodes {
		if n.Finalized != nil {
			floor = max(floor, *n.Finalized+30) // the newest certified checkpoint is one above the final one
		}
	}
	return floor
}

// heal takes all faults of the nodes back.
func (f *realFleet) heal(*exec.Cmd) { f.again(f.ClearFaults(f.t.Context())) }

// rollbacksAndDecrees: a rollback and a decree undisturbed on a stalled fleet, then each with something killed.
func (f *realFleet) rollbacksAndDecrees() {
	hurry := []string{"--waive", "fleet=the lag is short in a test"}
	f.part("rollback", func() {
		f.stall(false)
		out, code := f.follow(f.command("rollback", "--to-last-sealed", "--yes", "-v"), marks{phase("hold", "done"): f.heal})
		if code != exitDone || !strings.Contains(out, "chain: sealing") {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		f.whole(buildV1, f.ids()...)
	})
	f.part("decree", func() {
		target := f.stall(false)
		args := []string{"decree", "submit", "--seq", "1", "--target", fmt.Sprint(target), "--yes", "-v"}
		out, code := f.follow(f.command(args...), marks{"started anew": f.heal})
		if code != exitDone || !strings.Contains(out, "chain: sealing") {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		f.whole(buildV1, f.ids()...)
	})
	f.part("rollback, a host killed", func() {
		target := f.stall(true)
		args := append([]string{"rollback", "--to-height", fmt.Sprint(target), "--yes", "-v"}, hurry...)
		_, code := f.follow(f.command(args...), marks{
			phase("hold", "done"): f.heal, phase("go", "begun"): func(*exec.Cmd) { f.again(f.Reboot(f.t.Context(), "004")) }})
		f.through(code)
		f.whole(buildV1, f.ids()...)
	})
	f.part("decree, the tool killed", func() {
		target := f.stall(true)
		args := append([]string{"decree", "submit", "--seq", "2", "--target", fmt.Sprint(target), "--yes", "-v"}, hurry...)
		was := f.starts()
		_, code := f.follow(f.command(args...), marks{"001  decree    done": killTool})
		f.again(f.anew(was))
		f.heal(nil)
		f.through(code)
		f.whole(buildV1, f.ids()...)
	})
}

// starts is when the node of each host that answers was started.
func (f *realFleet) starts() map[string]string {
	out := map[string]string{}
	for _, id := range f.ids() {
		all, err := f.nodesOf(id)
		if err != nil {
			continue
		}
		for _, c := range all {
			out[id] = c.State.StartedAt
		}
	}
	return out
}

// anew waits until every node has started anew since a decree: the votes that were held back would certify what it prunes. A
// host that does not answer has no node that could vote.
func (f *realFleet) anew(was map[string]string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		same := 0
		for id, at := range f.starts() {
			if at == was[id] {
				same++
			}
		}
		if same == 0 {
			return nil
		}
	}
	return errors.New("the decree did not make every node start anew")
}

// restartFiles is one operator's folder on the way to a restart.
type restartFiles struct {
	*realFleet
	dir  string
	took []string       // the hosts that take part
	lost realhosts.Host // the one that does not
	skip []string       // the flags that leave it out
}

func (r restartFiles) at(name string) string { return filepath.Join(r.dir, name) }

// with is a command line for the hosts that take part.
func (r restartFiles) with(line ...string) []string { return append(line, r.skip...) }

func (f *realFleet) restartFolder(took []string, lost realhosts.Host) restartFiles {
	f.t.Helper()
	dir := filepath.Join(f.dir, fmt.Sprint("restart-", time.Now().UnixNano()))
	r := restartFiles{realFleet: f, dir: dir, took: took, lost: lost, skip: []string{"--skip", lost.ID}}
	if err := os.MkdirAll(r.at("evidence"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	_, signers := signKey(f.t, r.dir, "ann")
	line, err := os.ReadFile(signers)
	if err != nil {
		f.t.Fatal(err)
	}
	for name, text := range map[string]string{"signers": string(line), "build.txt": "make image\n"} {
		if err := os.WriteFile(r.at(name), []byte(text), 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	return r
}

// record goes from a stalled fleet to a verified record of a release that was cut for it, and returns K's build.
func (r restartFiles) record(tag string, barred ...string) string {
	r.t.Helper()
	began := time.Now()
	r.must(0, r.with("restart", "gather", "--operator", "ann", "--sign-key", r.at("sign_ann"), "--out", r.at("evidence/ann.json"))...)
	record := []string{"restart", "record", "--allowed-signers", r.at("signers"), r.at("evidence")}
	for _, id := range barred {
		record = append(record, "--add", id+"=it is lost")
	}
	r.must(0, append(slices.Clone(record), "--manifest", r.at("manifest.json"))...)
	text, err := os.ReadFile(r.at("manifest.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	image, err := r.AddImage(r.t.Context(), tag, text)
	if err != nil {
		r.t.Fatal(err)
	}
	var m struct {
		Restart struct {
			K uint64 `json:"resume_from_mb"`
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		r.t.Fatal(err)
	}
	archive := r.must(0, r.with("restart", "archive-check", "002", "--k", fmt.Sprint(m.Restart.K), "-o", "json")...)
	if err := os.WriteFile(r.at("archive.json"), []byte(archive), 0o600); err != nil {
		r.t.Fatal(err)
	}
	start := time.Now().Add(10*time.Second + 3*time.Since(began)) // three readings are behind; the execution does two before it goes
	r.must(0, append(record, "--out", r.at("record"), "--archive-check", r.at("archive.json"), "--commit", "0123456789abcdef",
		"--image", strings.TrimSuffix(image.Ref, ":"+tag)+"@"+image.Digest, "--build", r.at("build.txt"),
		"--operator", "ann", "--sign-key", r.at("sign_ann"),
		"--start-at", start.UTC().Format(time.RFC3339), "--waive", "trigger=a test")...)
	return image.Build
}

// execute is the command line of restart execute.
func (r restartFiles) execute() []string {
	return r.with("restart", "execute", r.at("record"), "--allowed-signers", r.at("signers"), "--yes", "-v")
}

// verified asks restart verify until it holds: nodes that join need some time.
func (r restartFiles) verified() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, code := r.run(r.with("restart", "verify", r.at("record"), "--allowed-signers", r.at("signers"), "--operator", "ann")...)
		if code == exitDone {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("restart verify: exit %d\n%s", code, out)
		}
	}
}

// renamed asserts that the data that was there before is the directory that was set aside, and that the archive host's was
// copied before.
func (r restartFiles) renamed(was map[string]uint64) {
	r.t.Helper()
	for _, id := range r.took {
		asides, err := filepath.Glob(r.Path(id, realhosts.DataDir) + "-above-*")
		if err != nil || !slices.ContainsFunc(asides, func(dir string) bool {
			return r.inode(id, strings.TrimPrefix(dir, r.Path(id, ""))) == was[id]
		}) {
			r.t.Errorf("host %s: none of %v is the directory that held its data", id, asides)
		}
	}
	if copies, err := filepath.Glob(r.Path("002", realhosts.DataDir) + "-copy-*"); err != nil || len(copies) == 0 {
		r.t.Errorf("the data of the archive host was not copied: %v", err)
	}
}

func (r restartFiles) inodes() map[string]uint64 {
	out := map[string]uint64{}
	for _, id := range r.took {
		out[id] = r.inode(id, realhosts.DataDir)
	}
	return out
}

// sealed waits until every node has sealed so many macroblocks.
func (f *realFleet) sealed(n uint64) {
	f.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		doc := f.status()
		have := 0
		for _, node := range doc.Nodes {
			if node.Sealed != nil && *node.Sealed >= n {
				have++
			}
		}
		if have == len(doc.Nodes) {
			return
		}
	}
	f.t.Fatalf("not every node has sealed %d macroblocks", n)
}

// unsealed lets the chain run above its last seal.
func (f *realFleet) unsealed(mute ...string) {
	f.t.Helper()
	for _, id := range mute {
		f.again(f.Inject(f.t.Context(), id, "mute", ""))
	}
	from := f.status().tip()
	for deadline := time.Now().Add(time.Minute); f.status().tip() < from+150; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatal("the chain does not run on")
		}
	}
}

// unbar is the command line that lets the lost identity back with a further release that bars nobody.
func (r restartFiles) unbar(tag string, ahead time.Duration) (line []string, build string) {
	r.t.Helper()
	var m map[string]any
	text, err := os.ReadFile(r.at("manifest.json"))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	m["restart"] = map[string]any{"resume_from_mb": 0, "resume_mb_hash": strings.Repeat("0", 64), "excluded": []string{}}
	open, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	image, err := r.AddImage(r.t.Context(), tag, open)
	if err != nil {
		r.t.Fatal(err)
	}
	at := time.Now().Add(ahead).UTC().Format(time.RFC3339)
	return r.with("restart", "unbar", r.lost.NodeID, "--image", "qnet:"+tag, "--at", at, "--yes", "-v"), image.Build
}

// restartsAndUnbars: one node is lost for good and another does not vote. The chain is restarted without the lost one, which
// is let back; both once more with something killed.
func (f *realFleet) restartsAndUnbars() {
	took, lost := []string{"001", "002", "003", "004"}, f.host("005")
	f.sealed(6)
	f.again(f.Inject(f.t.Context(), lost.ID, "stop", "")) // its host answers: each command would wait for one that does not
	r := f.restartFolder(took, lost)
	var was map[string]uint64
	f.part("restart", func() {
		f.unsealed("003")
		build := r.record("restart", lost.NodeID)
		was = r.inodes()
		if out, code := f.follow(f.command(r.execute()...), nil); code != exitDone {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		r.renamed(was)
		f.whole(build, took...)
		r.verified()
	})
	f.part("unbar, the agent killed", func() {
		line, build := r.unbar("open", 8*time.Second)
		kill := func(*exec.Cmd) { f.killAgents("002", false) }
		_, code := f.follow(f.command(line...), marks{"002  · start_next intent": kill})
		f.through(code)
		f.whole(build, took...)
	})
	f.part("restart, a host killed", func() {
		f.unsealed("003")
		r = f.restartFolder(took, lost)
		build := r.record("again")
		was = r.inodes()
		kill := func(*exec.Cmd) { f.again(f.Reboot(f.t.Context(), "001")) }
		_, code := f.follow(f.command(r.execute()...), marks{phase("data", "done"): kill})
		f.through(code)
		r.renamed(was)
		f.whole(build, took...)
		r.verified()
	})
	f.part("unbar", func() {
		line, build := r.unbar("wide", 8*time.Second)
		if out, code := f.follow(f.command(line...), nil); code != exitDone {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		f.whole(build, took...)
	})
	f.nothingShown(r.dir)
}

// nothingShown searches the files of a restart for the planted secrets.
func (f *realFleet) nothingShown(dir string) {
	f.t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		seen++
		for name, value := range lab.Sentinels() {
			if bytes.Contains(raw, []byte(value)) {
				f.t.Errorf("the value of %s stands in %s", name, path)
			}
		}
		return err
	})
	if err != nil || seen < 8 {
		f.t.Errorf("%d files of a restart were searched: %v", seen, err)
	}
}
