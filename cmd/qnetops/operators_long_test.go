//go:build long

package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/pgtest"
)

// operator is one person's machine: a state of its own choice and a name.
func (f *realFleet) operator(name, state string, line ...string) *exec.Cmd {
	cmd := f.command(line...)
	cmd.Env = append(cmd.Env, "QNETOPS_STATE="+state, "QNETOPS_OPERATOR="+name, "HOME="+filepath.Join(f.dir, name))
	return cmd
}

// TestLongTwoOperatorsOnOnePostgres: at ten random moments the first operator is
// killed, paused or cut off (its packets dropped, both ways unannounced); the second takes the operation over and finishes it.
// No host may have accepted an older epoch after a newer one, and a paused first
// operator who wakes up changes nothing.
func TestLongTwoOperatorsOnOnePostgres(t *testing.T) {
	f := upFleet(t, 6)
	f.healthy()
	f.committee(6)
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	dsn := server.Over(server.DSN(t), server.TCP, server.Port) // a packet filter sees nothing of a unix socket
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	f.t.Cleanup(func() {
		_ = exec.Command("iptables", "-D", "OUTPUT", "-m", "owner", "--gid-owner", fmt.Sprint(cutGroup), "-j", "DROP").Run()
	})
	images := []string{"qnet:v2", "qnet:v1"}
	for i := range 10 {
		how := []string{"kill", "pause", "partition"}[i%3]
		id := fmt.Sprintf("%03d", i%6+1)
		t.Run(fmt.Sprintf("%d %s on %s", i, how, id), func(t *testing.T) {
			first := f.operator("first", dsn, "roll", images[(i/6)%2], "--set-env", fmt.Sprintf("TURN=%d", i), "--only", id, "--yes", "-v")
			first.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: cutGroup}}
			op := f.strike(first, how, time.Duration(rng.Int64N(int64(9*time.Second))))
			before := f.epochs()
			if op != "" {
				f.takeOver(dsn, op)
			}
			switch how {
			case "pause":
				f.do(first.Process.Signal(syscall.SIGCONT))
			case "partition":
				f.cut(false)
			}
			if err := first.Wait(); op != "" && err == nil {
				t.Error("the operator who lost the lease ended as if nothing had been")
			}
			f.oneContainer(id)
			for host, epoch := range f.epochs() {
				if epoch < before[host] {
					t.Errorf("host %s: epoch fell from %d to %d", host, before[host], epoch)
				}
			}
			f.healthy()
		})
	}
}

// strike waits until the operation exists and some more, then does the deed. It
// returns the operation's id, or "" when the roll had ended before.
func (f *realFleet) strike(cmd *exec.Cmd, how string, after time.Duration) string {
	f.t.Helper()
	progress, err := cmd.StderrPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	op := make(chan string, 1)
	go func() {
		for scan := bufio.NewScanner(progress); scan.Scan(); {
			f.keep(scan.Bytes(), []byte("\n"))
			if _, rest, ok := strings.Cut(scan.Text(), "operation roll-"); ok && len(op) == 0 && strings.Contains(rest, "(after a crash") {
				op <- "roll-" + strings.Fields(rest)[0]
			}
		}
		close(op)
	}()
	id := <-op
	time.Sleep(after)
	switch how {
	case "kill":
		f.do(cmd.Process.Kill())
	case "partition":
		f.cut(true)
	case "pause":
		f.do(cmd.Process.Signal(syscall.SIGSTOP))
	}
	return id
}

// cutGroup is the group that an operator runs in who can be cut off: the packets
// of its sockets alone are dropped, to the hosts and to the store, without either
// end being told.
const cutGroup = 4242

// cut drops, or lets through again, what the first operator sends.
func (f *realFleet) cut(off bool) {
	f.t.Helper()
	verb := "-D"
	if off {
		verb = "-I"
	}
	out, err := exec.Command("iptables", verb, "OUTPUT", "-m", "owner", "--gid-owner", fmt.Sprint(cutGroup), "-j", "DROP").CombinedOutput()
	if err != nil {
		f.t.Fatalf("iptables: %v\n%s", err, out)
	}
}

// takeOver resumes as the second operator until it is done; while the first one
// is only paused its lease must be broken.
func (f *realFleet) takeOver(dsn, op string) {
	f.t.Helper()
	for try := 0; try < 8; try++ {
		cmd := f.operator("second", dsn, "resume", op)
		out, err := cmd.CombinedOutput()
		f.keep(out)
		if err == nil || strings.Contains(string(out), "it is done") || strings.Contains(string(out), "it is aborted") {
			return
		}
		f.t.Logf("resume: %v\n%s", err, out)
		if strings.Contains(string(out), "is held by") {
			broken, err := f.operator("second", dsn, "lease", "break", "--reason", "the holder is paused", "--yes").CombinedOutput()
			f.keep(broken)
			f.t.Logf("lease break: %v\n%s", err, broken)
		}
		time.Sleep(2 * time.Second)
	}
	f.t.Errorf("the second operator could not finish %s", op)
}

// epochs reads what every host accepted last, from its disk.
func (f *realFleet) epochs() map[string]uint64 {
	f.t.Helper()
	out := map[string]uint64{}
	for _, h := range f.Hosts() {
		raw, err := os.ReadFile(f.Path(h.ID, "/var/lib/qnetops/fence.json"))
		if err != nil {
			f.t.Fatal(err)
		}
		var epoch uint64
		if _, rest, ok := strings.Cut(string(raw), `"epoch": `); ok {
			_, _ = fmt.Sscan(strings.TrimRight(strings.Fields(rest)[0], ","), &epoch)
		}
		out[h.ID] = epoch
	}
	return out
}

// TestLongTwoStatesOnOneFleet: a second operator with a state of his own is
// refused before any other check; after lease break the first one, waking up,
// changes nothing.
func TestLongTwoStatesOnOneFleet(t *testing.T) {
	f := upFleet(t, 4)
	f.healthy()
	f.committee(4)
	one, two := filepath.Join(f.dir, "one.db"), filepath.Join(f.dir, "two.db")
	first := f.operator("first", one, "roll", "qnet:v2", "--yes", "-v")
	if op := f.strike(first, "pause", 4*time.Second); op == "" {
		t.Fatal("the first roll ended before it could be paused")
	}
	run := func(line ...string) (string, int) {
		cmd := f.operator("second", two, line...)
		out, _ := cmd.CombinedOutput()
		f.keep(out)
		return string(out), cmd.ProcessState.ExitCode()
	}
	// An image that does not exist shows which check comes first.
	if out, code := run("roll", "qnet:none-such", "--yes"); code != exitLease || !strings.Contains(out, "first@") {
		t.Errorf("exit code %d, want 5 and the holder's name:\n%s", code, out)
	}
	if out, code := run("lease", "break", "--reason", "the first operator is gone", "--yes"); code != 0 {
		t.Fatalf("lease break: exit code %d\n%s", code, out)
	}
	before := map[string]string{}
	for _, h := range f.Hosts() {
		before[h.ID] = fmt.Sprint(f.inspect(h.ID, h.Container)["Id"])
	}
	f.do(first.Process.Signal(syscall.SIGCONT))
	if err := first.Wait(); err == nil {
		t.Error("the first operator ended well")
	}
	for _, h := range f.Hosts() {
		if got := fmt.Sprint(f.inspect(h.ID, h.Container)["Id"]); got != before[h.ID] {
			t.Errorf("host %s was changed by the operator who woke up", h.ID)
		}
		f.oneContainer(h.ID)
	}
}
