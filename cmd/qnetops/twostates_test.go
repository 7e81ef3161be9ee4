package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
)

// person is one operator with a home and a state store of his own; the program runs as a child process that can be paused.
type person struct {
	*testing.T
	program, home, hosts, name string
}

func (p person) command(line ...string) *exec.Cmd {
	cmd := exec.Command(p.program, line...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.home, "QNETOPS_HOSTS=" + p.hosts,
		"QNETOPS_STATE=" + filepath.Join(p.home, p.name+".db"), "QNETOPS_OPERATOR=" + p.name}
	return cmd
}

func (p person) run(line ...string) (string, int) {
	p.Helper()
	cmd := p.command(line...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// pausedAt starts a command and stops its process at the first line of progress that holds the word.
func (p person) pausedAt(word string, line ...string) *exec.Cmd {
	p.Helper()
	cmd := p.command(line...)
	progress, err := cmd.StderrPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = cmd.Process.Kill() })
	seen := make(chan bool, 1)
	var once sync.Once
	go func() {
		for scan := bufio.NewScanner(progress); scan.Scan(); {
			if strings.Contains(scan.Text(), word) {
				once.Do(func() { seen <- cmd.Process.Signal(syscall.SIGSTOP) == nil })
			}
		}
		once.Do(func() { seen <- false })
	}()
	if !<-seen {
		p.Fatalf("%q ended without saying %q", line, word)
	}
	return cmd
}

// TestTwoStatesOnOneFleet: an operator with a state store of his own, in which nobody ever held a lease, is refused before any
// other check while another store has the fleet; after lease break he has it, and the first one, waking up, changes nothing.
func TestTwoStatesOnOneFleet(t *testing.T) {
	program, dir := buildProgram(t), t.TempDir()
	l, err := startProcessLab(lab.Config{Nodes: 4, Block: 20 * time.Millisecond, Dir: dir, History: labHistory})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.WaitFor(t.Context(), "every node to move", moving); err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(dir, lab.HostsFile)
	one := person{t, program, t.TempDir(), hosts, "ann"}
	two := person{t, program, t.TempDir(), hosts, "ben"}

	first := one.pausedAt("replace", "roll", "qnet:v2", "--yes", "-v")
	// An image that does not exist shows which check comes first.
	if out, code := two.run("roll", "qnet:none-such", "--yes"); code != exitLease || !strings.Contains(out, "ann@") || !strings.Contains(out, "lease break") {
		t.Errorf("exit code %d, want 5, the holder's name and the way out:\n%s", code, out)
	}
	if out, code := two.run("lease", "break", "--reason", "ann is gone", "--yes"); code != exitDone || !strings.Contains(out, "taken over from ann@") {
		t.Fatalf("lease break: exit code %d\n%s", code, out)
	}
	before := map[string]string{}
	for _, h := range l.Hosts() {
		before[h.ID()] = containersOf(h)
	}
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil || first.ProcessState.ExitCode() != exitLease {
		t.Errorf("the first operator, awake again: exit code %d, want 5", first.ProcessState.ExitCode())
	}
	for _, h := range l.Hosts() {
		if got := containersOf(h); got != before[h.ID()] {
			t.Errorf("host %s was changed by the operator who woke up:\n%s\n%s", h.ID(), before[h.ID()], got)
		}
	}
	if v := l.Violations(); len(v) > 0 {
		t.Errorf("%v", v)
	}
}

// containersOf lists a host's containers with all that an operation changes.
func containersOf(h *lab.Host) string {
	var b strings.Builder
	for _, c := range h.Engine().Containers() {
		fmt.Fprintf(&b, "%.12s %s %s %s\n", c.ID, c.Name, c.Image, c.State)
	}
	return b.String()
}
