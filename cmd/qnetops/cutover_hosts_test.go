package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qnetops/qnetops/host"
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
	for name, run := range map[string]func(*realFleet){"halt and release": (*realFleet).haltsAndReleases, "rollback and decree": (*realFleet).rollbacksAndDecrees,
		"restart and unbar": (*realFleet).restartsAndUnbars} {
		supers := strings.Count(name, "restart") // the node that is barred: a genesis node waits for three others
		all.Go(func() { t.Run(name, func(t *testing.T) { withoutSecrets(upCutover(t, program, supers), run) }) })
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
func upCutover(t *testing.T, program string, supers int) *realFleet {
	t.Helper()
	need.Linux(t)
	need.Root(t)
	need.Program(t, "dockerd", "containerd", "sshd", "iptables", "ip", "docker")
	f := &realFleet{t: t, program: program, dir: t.TempDir()}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cluster, err := realhosts.Up(ctx, realhosts.Config{Nodes: cutoverNodes + supers, SuperFrom: cutoverNodes + 1, Dir: filepath.Join(f.dir, "lab"), Block: cutoverBlock, Binary: program, NodeEnv: sentinelEnv})
	if err != nil {
		t.Fatal(err)
	}
	f.Cluster = cluster
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := cluster.Down(ctx); err != nil {
			t.Errorf("taking the lab down: %v", err)
		}
	})
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

// phase is how the progress of a cut-over says that a phase begins, or that its barrier was passed.
func phase(name, state string) string { return fmt.Sprintf("  %-9s %s ", name, state) }

// follow runs a command and does what belongs to a line of its progress, once, when that line comes. It returns what was
// printed and the exit code (-1: killed).
func (f *realFleet) follow(cmd *exec.Cmd, at map[string]func(*exec.Cmd)) (string, int) {
	f.t.Helper()
	at = maps.Clone(at)
	out, code := f.drain(cmd, at)
	if len(at) > 0 {
		f.t.Errorf("qnetops %s never said %q\n%s", strings.Join(cmd.Args[1:], " "), slices.Collect(maps.Keys(at)), tail(out, 25))
	}
	return out, code
}

// drain is follow for a command that need not come to all those lines; it takes out of the map what was done.
func (f *realFleet) drain(cmd *exec.Cmd, at map[string]func(*exec.Cmd)) (string, int) {
	f.t.Helper()
	progress, err := cmd.StderrPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	var said bytes.Buffer
	for scan := bufio.NewScanner(progress); scan.Scan(); {
		said.WriteString(scan.Text() + "\n")
		for mark, do := range at {
			if strings.Contains(scan.Text(), mark) {
				delete(at, mark)
				do(cmd)
			}
		}
	}
	_ = cmd.Wait()
	f.keep(out.Bytes(), said.Bytes())
	code := cmd.ProcessState.ExitCode()
	f.t.Logf("qnetops %s: exit %d", strings.Join(cmd.Args[1:], " "), code)
	if code > 0 {
		f.t.Logf("%s", tail(said.String(), 25))
	}
	return out.String() + said.String(), code
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// killTool is SIGKILL of the operator's process.
func killTool(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// through brings an operation to its end by the command that its first line names, and asks that it was needed where the tool
// itself was killed. An engine or a host that starts again may take a second try.
func (f *realFleet) through(code int) {
	f.t.Helper()
	for try := 0; code != exitDone; try++ {
		if state := f.state(); code != -1 && (state == "done" || state == "aborted") {
			f.t.Fatalf("exit %d, and the operation is %s", code, state)
		}
		if try == 4 {
			f.t.Fatalf("resume never succeeded, last exit code %d", code)
		}
		if try > 0 {
			time.Sleep(3 * time.Second)
		}
		_, code = f.follow(f.command("resume", f.newest(), "-v"), nil)
	}
	if state := f.state(); state != "done" {
		f.t.Errorf("the operation is %s", state)
	}
}

// state is that of the newest operation.
func (f *realFleet) state() string {
	f.t.Helper()
	var doc struct{ Operations []struct{ State string } }
	if err := json.Unmarshal([]byte(f.must(0, "ops", "-o", "json")), &doc); err != nil || len(doc.Operations) == 0 {
		f.t.Fatalf("no operations: %v", err)
	}
	return doc.Operations[0].State
}

// inspected is what this test reads of `docker inspect`.
type inspected struct {
	Name  string
	State struct {
		Status    string
		ExitCode  int
		StartedAt string
	}
	HostConfig struct{ RestartPolicy struct{ Name string } }
	Config     struct {
		Image string
		Env   []string
	}
	Mounts []struct{ Destination string }
}

func (c inspected) String() string {
	return fmt.Sprintf("%s: %s (%d), policy %s, image %s, one-shot %v", c.Name, c.State.Status, c.State.ExitCode, c.HostConfig.RestartPolicy.Name, c.Config.Image, c.oneShot())
}

// oneShot names the variables that act again at each start.
func (c inspected) oneShot() (names []string) {
	for _, kv := range c.Config.Env {
		if name, _, _ := strings.Cut(kv, "="); host.OneShot(name) {
			names = append(names, name)
		}
	}
	return names
}

// nodes asks the docker program of a host for every container, running or not, that has the node's data.
func (f *realFleet) nodes(id string) []inspected {
	f.t.Helper()
	list, err := f.Exec(f.t.Context(), id, "docker", "ps", "-aq", "--no-trunc")
	if err != nil {
		f.t.Fatalf("host %s: %v", id, err)
	}
	ids := strings.Fields(string(list))
	if len(ids) == 0 {
		return nil
	}
	raw, err := f.Exec(f.t.Context(), id, append([]string{"docker", "inspect"}, ids...)...)
	if err != nil {
		f.t.Fatalf("host %s: docker inspect: %v", id, err)
	}
	var all []inspected
	if err := json.Unmarshal(raw, &all); err != nil {
		f.t.Fatalf("host %s: docker inspect: %v", id, err)
	}
	return slices.DeleteFunc(all, func(c inspected) bool {
		return !slices.ContainsFunc(c.Mounts, func(m struct{ Destination string }) bool { return m.Destination == "/app/data" })
	})
}

func (f *realFleet) ids() (ids []string) {
	for _, h := range f.Hosts() {
		ids = append(ids, h.ID)
	}
	return ids
}

// halted asserts that nothing but a person can start the nodes again: the armed container exited 0, no container of a host
// runs, and every restart policy is `no`.
func (f *realFleet) halted(ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		armed := false
		for _, c := range f.nodes(id) {
			if c.State.Status == "running" || c.HostConfig.RestartPolicy.Name != "no" {
				f.t.Errorf("host %s: %s, want it down for good", id, c)
			}
			if strings.TrimPrefix(c.Name, "/") == f.host(id).Container {
				armed = slices.Contains(c.oneShot(), host.VarHaltHeight) && c.State.Status == "exited" && c.State.ExitCode == 0
			}
		}
		if !armed {
			f.t.Errorf("host %s: %v, want the armed node exited with 0", id, f.nodes(id))
		}
	}
}

// enginesAgain restarts the engine of every host, as an upgrade of its package does.
func (f *realFleet) enginesAgain() {
	f.t.Helper()
	var group errgroup.Group
	for _, id := range f.ids() {
		group.Go(func() error { return f.RestartEngine(f.t.Context(), id) })
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// whole asserts that each host has one container with the node's data, which runs the image with the policy it had at first,
// that no container carries a one-shot variable, and that seals rise on all of them.
func (f *realFleet) whole(build string, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		got := f.nodes(id)
		if len(got) != 1 || got[0].State.Status != "running" || got[0].HostConfig.RestartPolicy.Name != "always" || len(got[0].oneShot()) > 0 ||
			build != "" && !slices.Contains(got[0].Config.Env, "QNET_BUILD_ID="+build) {
			f.t.Errorf("host %s: %v, want one that runs build %s as before", id, got, build)
		}
	}
	f.sealsRise(ids...)
}

// chainDoc is what this test reads of `status -o json`.
type chainDoc struct {
	Fleet struct{ Verdict string }
	Nodes []struct {
		ID        string
		Height    *uint64
		Sealed    *uint64 `json:"last_sealed"`
		Finalized *uint64
	}
}

func (f *realFleet) status(args ...string) (doc chainDoc) {
	f.t.Helper()
	out, code := f.run(append([]string{"status", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		f.t.Fatalf("status: exit %d: %v", code, err)
	}
	return doc
}

func (d chainDoc) tip() (top uint64) {
	for _, n := range d.Nodes {
		if n.Height != nil {
			top = max(top, *n.Height)
		}
	}
	return top
}

// sealsRise waits until every one of these nodes shows a newer seal than any showed at first.
func (f *realFleet) sealsRise(ids ...string) {
	f.t.Helper()
	var from uint64
	for _, n := range f.status().Nodes {
		if n.Sealed != nil {
			from = max(from, *n.Sealed)
		}
	}
	var doc chainDoc
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		doc = f.status()
		risen := 0
		for _, n := range doc.Nodes {
			if slices.Contains(ids, n.ID) && n.Sealed != nil && *n.Sealed > from {
				risen++
			}
		}
		if from > 0 && risen == len(ids) {
			return
		}
	}
	f.t.Errorf("the seals of %v do not rise above %d: %+v", ids, from, doc)
}

// inventory is every file beside and below the node's data on every host, with its size.
func (f *realFleet) inventory() map[string]map[string]int64 {
	f.t.Helper()
	all := map[string]map[string]int64{}
	for _, id := range f.ids() {
		root := f.Path(id, filepath.Dir(realhosts.DataDir))
		all[id] = map[string]int64{}
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil // a running node replaces its files
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				rel, _ := filepath.Rel(root, path)
				all[id][rel] = info.Size()
			}
			return nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	return all
}

// kept asserts that nothing of a data directory was deleted: each file of it is there under its name, or below a directory
// that the data was renamed or copied to; each file that had been set aside before is untouched.
func (f *realFleet) kept(before map[string]map[string]int64) {
	f.t.Helper()
	now := f.inventory()
	data := filepath.Base(realhosts.DataDir)
	for id, files := range before {
		for name, size := range files {
			top, rest, _ := strings.Cut(name, "/")
			if base := filepath.Base(name); base == "CLEAN" || strings.HasPrefix(base, "lab-faults") || strings.HasSuffix(base, ".new") || strings.HasSuffix(base, ".tmp") {
				continue // the mark of a flushed stop, which the node takes away as it starts; of this test; half of a replacement under way
			}
			if top != data {
				if have, there := now[id][name]; !there || have != size {
					f.t.Errorf("host %s: %s was set aside with %d bytes, there %v, now %d", id, name, size, there, have)
				}
				continue
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(now[id])), func(have string) bool {
				dir, same, _ := strings.Cut(have, "/")
				return same == rest && (dir == data || strings.HasPrefix(dir, data+"-"))
			}) {
				f.t.Errorf("host %s: %s is gone", id, name)
			}
		}
	}
}

// inode tells directories apart: a renamed one is the same.
func (f *realFleet) inode(id, inside string) uint64 {
	f.t.Helper()
	info, err := os.Stat(f.Path(id, inside))
	if err != nil {
		f.t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
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
		f.must(0, "halt", "--height", f.far(5), "--yes")
		f.halted(f.ids()...)
	})
	f.part("every engine restarts", func() {
		f.enginesAgain()
		f.halted(f.ids()...)
	})
	f.part("release, an engine killed", func() {
		_, code := f.follow(f.command("halt", "release", "qnet:v2", "--yes", "-v"), map[string]func(*exec.Cmd){phase("go", "begun"): func(*exec.Cmd) {
			f.again(f.KillEngine(f.t.Context(), "003"), f.StartEngine(f.t.Context(), "003"))
		}})
		f.through(code)
		f.whole(buildV2, f.ids()...)
	})
	f.part("halt, the tool killed", func() {
		_, code := f.follow(f.command("halt", "--height", f.far(5), "--yes", "-v"), map[string]func(*exec.Cmd){"003  replace   begun": killTool})
		f.through(code)
		f.halted(f.ids()...)
	})
	f.part("release", func() {
		f.must(0, "halt", "release", "qnet:v1", "--yes")
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
	time.Sleep(130 * cutoverBlock)
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
		out, code := f.follow(f.command("rollback", "--to-last-sealed", "--yes", "-v"), map[string]func(*exec.Cmd){phase("hold", "done"): f.heal})
		if code != exitDone || !strings.Contains(out, "chain: sealing") {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		f.whole(buildV1, f.ids()...)
	})
	f.part("decree", func() {
		target := f.stall(false)
		out, code := f.follow(f.command("decree", "submit", "--seq", "1", "--target", fmt.Sprint(target), "--yes", "-v"), map[string]func(*exec.Cmd){"started anew": f.heal})
		if code != exitDone || !strings.Contains(out, "chain: sealing") {
			f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
		}
		f.whole(buildV1, f.ids()...)
	})
	f.part("rollback, a host killed", func() {
		target := f.stall(true)
		_, code := f.follow(f.command(append([]string{"rollback", "--to-height", fmt.Sprint(target), "--yes", "-v"}, hurry...)...), map[string]func(*exec.Cmd){
			phase("hold", "done"): f.heal, phase("go", "begun"): func(*exec.Cmd) { f.again(f.Reboot(f.t.Context(), "004")) }})
		f.through(code)
		f.whole(buildV1, f.ids()...)
	})
	f.part("decree, the tool killed", func() {
		target := f.stall(true)
		args := append([]string{"decree", "submit", "--seq", "2", "--target", fmt.Sprint(target), "--yes", "-v"}, hurry...)
		was := f.starts()
		_, code := f.follow(f.command(args...), map[string]func(*exec.Cmd){"001  decree    done": killTool})
		f.anew(was)
		f.heal(nil)
		f.through(code)
		f.whole(buildV1, f.ids()...)
	})
}

// starts is when the node of each host was started.
func (f *realFleet) starts() map[string]string {
	out := map[string]string{}
	for _, id := range f.ids() {
		for _, c := range f.nodes(id) {
			out[id] = c.State.StartedAt
		}
	}
	return out
}

// anew waits until every node has started anew since a decree: the votes that were held back would certify what it prunes.
func (f *realFleet) anew(was map[string]string) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		same := 0
		for id, at := range f.starts() {
			if at == was[id] {
				same++
			}
		}
		if same == 0 {
			return
		}
	}
	f.t.Fatal("the decree did not make every node start anew")
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

func (f *realFleet) restartFolder(took []string, lost realhosts.Host) restartFiles {
	f.t.Helper()
	r := restartFiles{realFleet: f, dir: filepath.Join(f.dir, fmt.Sprint("restart-", time.Now().UnixNano())), took: took, lost: lost, skip: []string{"--skip", lost.ID}}
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
	r.must(0, append([]string{"restart", "gather", "--operator", "ann", "--sign-key", r.at("sign_ann"), "--out", r.at("evidence/ann.json")}, r.skip...)...)
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
	archive := r.must(0, append([]string{"restart", "archive-check", "002", "--k", fmt.Sprint(m.Restart.K), "-o", "json"}, r.skip...)...)
	if err := os.WriteFile(r.at("archive.json"), []byte(archive), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.must(0, append(record, "--out", r.at("record"), "--archive-check", r.at("archive.json"), "--commit", "0123456789abcdef0123456789abcdef01234567",
		"--image", strings.TrimSuffix(image.Ref, ":"+tag)+"@"+image.Digest, "--build", r.at("build.txt"), "--operator", "ann", "--sign-key", r.at("sign_ann"),
		// Three readings of the hosts are behind; the execution verifies it all twice before it goes.
		"--start-at", time.Now().Add(10*time.Second+3*time.Since(began)).UTC().Format(time.RFC3339), "--waive", "trigger=a test")...)
	return image.Build
}

// execute is the command line of restart execute.
func (r restartFiles) execute() []string {
	return append([]string{"restart", "execute", r.at("record"), "--allowed-signers", r.at("signers"), "--yes", "-v"}, r.skip...)
}

// verified asks restart verify until it holds: nodes that join need some time.
func (r restartFiles) verified() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, code := r.run(append([]string{"restart", "verify", r.at("record"), "--allowed-signers", r.at("signers"), "--operator", "ann"}, r.skip...)...)
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
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
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
	return append([]string{"restart", "unbar", r.lost.NodeID, "--image", "qnet:" + tag, "--at", time.Now().Add(ahead).UTC().Format(time.RFC3339), "--yes", "-v"}, r.skip...), image.Build
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
		_, code := f.follow(f.command(line...), map[string]func(*exec.Cmd){"002  · start_next intent": func(*exec.Cmd) { f.killAgents("002", false) }})
		f.through(code)
		f.whole(build, took...)
	})
	f.part("restart, a host killed", func() {
		f.unsealed("003")
		r = f.restartFolder(took, lost)
		build := r.record("again")
		was = r.inodes()
		_, code := f.follow(f.command(r.execute()...), map[string]func(*exec.Cmd){phase("data", "done"): func(*exec.Cmd) { f.again(f.Reboot(f.t.Context(), "001")) }})
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
