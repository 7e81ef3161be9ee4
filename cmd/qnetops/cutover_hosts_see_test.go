package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/realhosts"
)

// marks are what is done when a line of a command's progress holds these words, once each.
type marks map[string]func(*exec.Cmd)

// phase is how the progress of a cut-over says that a phase begins, or that its barrier was passed.
func phase(name, state string) string { return fmt.Sprintf("  %-9s %s ", name, state) }

// follow runs a command and does what belongs to a line of its progress, once, when that line comes. It returns what was
// printed and the exit code (-1: killed).
func (f *realFleet) follow(cmd *exec.Cmd, at marks) (string, int) {
	f.t.Helper()
	todo := maps.Clone(at)
	out, code := f.drain(cmd, todo)
	for try := 0; try < 3 && len(todo) == len(at) && strings.Contains(out, "the plan changed between"); try++ {
		// A node that has just come back has another place in the order; nothing was changed, and it is to be asked again.
		f.healthy()
		out, code = f.drain(f.command(cmd.Args[1:]...), todo)
	}
	if at = todo; len(at) > 0 {
		f.t.Errorf("qnetops %s never said %q\n%s", strings.Join(cmd.Args[1:], " "), slices.Collect(maps.Keys(at)), tail(out, 25))
	}
	return out, code
}

// ends runs a command that must end well.
func (f *realFleet) ends(line ...string) {
	f.t.Helper()
	if out, code := f.follow(f.command(append(line, "--yes", "-v")...), nil); code != exitDone {
		f.t.Fatalf("qnetops %s: exit %d\n%s", strings.Join(line, " "), code, tail(out, 12))
	}
}

// drain is follow for a command that need not come to all those lines; it takes out of the map what was done.
func (f *realFleet) drain(cmd *exec.Cmd, at marks) (string, int) {
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
	return fmt.Sprintf("%s: %s (%d), policy %s, image %s, one-shot %v", c.Name, c.State.Status, c.State.ExitCode,
		c.HostConfig.RestartPolicy.Name, c.Config.Image, c.oneShot())
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

// nodes is nodesOf for a host that answers.
func (f *realFleet) nodes(id string) []inspected {
	f.t.Helper()
	all, err := f.nodesOf(id)
	if err != nil {
		f.t.Fatalf("host %s: %v", id, err)
	}
	return all
}

// nodesOf asks the docker program of a host for every container, running or not, that has the node's data.
func (f *realFleet) nodesOf(id string) (all []inspected, err error) {
	list, err := f.Exec(f.t.Context(), id, "docker", "ps", "-aq", "--no-trunc")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(list))
	if len(ids) == 0 {
		return nil, nil
	}
	raw, err := f.Exec(f.t.Context(), id, append([]string{"docker", "inspect"}, ids...)...)
	if err != nil {
		return nil, fmt.Errorf("docker inspect: %w", err)
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("docker inspect: %w", err)
	}
	return slices.DeleteFunc(all, func(c inspected) bool {
		return !slices.ContainsFunc(c.Mounts, func(m struct{ Destination string }) bool { return m.Destination == "/app/data" })
	}), nil
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
		if len(got) != 1 || got[0].State.Status != "running" || got[0].HostConfig.RestartPolicy.Name != "always" ||
			len(got[0].oneShot()) > 0 || build != "" && !slices.Contains(got[0].Config.Env, "QNET_BUILD_ID="+build) {
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
			if passing(filepath.Base(name)) {
				continue
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

// passing are files that come and go: the mark of a flushed stop, which the node takes away as it starts; those of this test;
// half of a replacement under way.
func passing(file string) bool {
	return file == "CLEAN" || strings.HasPrefix(file, "lab-faults") || slices.Contains([]string{".new", ".tmp"}, filepath.Ext(file))
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
