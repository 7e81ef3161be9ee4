//go:build long

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/pgtest"
)

// longCut is one kind of cut-over on a fleet of its own.
type longCut struct {
	kind   string
	supers int
	phases []string // whose barriers the operator's machine is lost at
	host   string   // where something dies
	strike string   // the line of progress at which it dies
	dead   string   // the line at which a host loses its power
	// begin brings the fleet to where the cut-over is called for, and returns its command line with what must be done at
	// lines of its progress for the fleet to go on.
	begin func(f *realFleet) (line []string, at marks)
	// end asserts what must be true of the fleet, from the stop to restored finality. Its commands have the journal of the
	// cut-over.
	end func(f *realFleet, command func(...string) *exec.Cmd)
}

// longBlock leaves the real parts of a cut-over room on a busy machine.
const longBlock = 2 * cutoverBlock

const midSwap = "003  · start_next intent"

func longCuts() []longCut {
	hurry := []string{"--waive", "fleet=the lag is short in a test"}
	return []longCut{
		{kind: "halt", phases: []string{"prepare", "hold", "go", "verify"}, host: "003", strike: midSwap, dead: phase("hold", "begun"),
			begin: func(f *realFleet) ([]string, marks) {
				return []string{"halt", "--height", f.far(8)}, marks{}
			},
			end: func(f *realFleet, command func(...string) *exec.Cmd) {
				f.downForGood()
				if out, code := f.drain(command("halt", "release", "qnet:v2", "--yes", "-v"), nil); code != exitDone {
					f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
				}
				f.whole(buildV2, f.ids()...)
			}},
		{kind: "release", phases: []string{"prepare", "hold", "go", "verify", "release"}, host: "003", strike: midSwap, dead: phase("hold", "begun"),
			begin: func(f *realFleet) ([]string, marks) {
				f.ends("halt", "--height", f.far(4))
				return []string{"halt", "release", "qnet:v2"}, marks{}
			},
			end: func(f *realFleet, _ func(...string) *exec.Cmd) { f.whole(buildV2, f.ids()...) }},
		{kind: "rollback", phases: []string{"prepare", "hold", "go", "verify", "release"}, host: "003", strike: midSwap, dead: phase("hold", "begun"),
			begin: func(f *realFleet) ([]string, marks) {
				f.stall(true)
				return append([]string{"rollback", "--to-last-sealed"}, hurry...), marks{phase("hold", "done"): f.heal}
			},
			end: func(f *realFleet, _ func(...string) *exec.Cmd) { f.whole(buildV1, f.ids()...) }},
		{kind: "decree", phases: []string{"prepare", "go", "verify"}, host: "001", strike: "001  decree    begun", dead: phase("verify", "begun"),
			begin: func(f *realFleet) ([]string, marks) {
				target := f.stall(true)
				was := f.starts()
				return append([]string{"decree", "submit", "--seq", "1", "--target", fmt.Sprint(target)}, hurry...),
					marks{phase("go", "done"): func(*exec.Cmd) {
						healed := make(chan struct{})
						f.t.Cleanup(func() { <-healed })
						go func() { // what is printed is not to wait for it
							defer close(healed)
							f.again(f.anew(was))
							f.heal(nil)
						}()
					}}
			},
			end: func(f *realFleet, _ func(...string) *exec.Cmd) { f.whole(buildV1, f.ids()...) }},
		{kind: "restart", supers: 1, phases: []string{"prepare", "hold", "data", "go", "verify", "release"}, host: "003", strike: midSwap, dead: phase("data", "done"),
			begin: func(f *realFleet) ([]string, marks) {
				return f.restartable().execute(), marks{}
			},
			end: func(f *realFleet, _ func(...string) *exec.Cmd) {
				f.whole("", f.ids()[:cutoverNodes]...)
				f.restartMade().verified()
			}},
		{kind: "unbar", supers: 1, phases: []string{"prepare", "hold", "go", "verify", "release"}, host: "003", strike: midSwap, dead: phase("hold", "begun"),
			begin: func(f *realFleet) ([]string, marks) {
				r := f.restartable()
				if out, code := f.follow(f.command(r.execute()...), nil); code != exitDone {
					f.t.Fatalf("exit %d\n%s", code, tail(out, 12))
				}
				line, _ := r.unbar("open", 30*time.Second)
				return line, marks{}
			},
			end: func(f *realFleet, _ func(...string) *exec.Cmd) { f.whole("", f.ids()[:cutoverNodes]...) }},
	}
}

// restartable loses one node, stalls the chain, and makes a record.
func (f *realFleet) restartable() restartFiles {
	f.t.Helper()
	lost := f.host("005")
	f.sealed(6)
	f.again(f.Inject(f.t.Context(), lost.ID, "stop", ""))
	r := f.restartFolder(f.ids()[:cutoverNodes], lost)
	f.unsealed("003")
	r.record("restart", lost.NodeID)
	return r
}

// restartMade is the folder of the restart that was made.
func (f *realFleet) restartMade() restartFiles {
	f.t.Helper()
	found, err := filepath.Glob(filepath.Join(f.dir, "restart-*"))
	if err != nil || len(found) != 1 {
		f.t.Fatalf("%v: %v", found, err)
	}
	return restartFiles{realFleet: f, dir: found[0], skip: []string{"--skip", "005"}}
}

// downForGood asserts that nothing starts the nodes again. A host that booted after the others had stopped cannot come up
// alone to stop by itself, and was stopped in its boot; its exit code is not asked for.
func (f *realFleet) downForGood() {
	f.t.Helper()
	f.enginesAgain()
	for _, id := range f.ids() {
		for _, c := range f.nodes(id) {
			if c.State.Status == "running" || c.HostConfig.RestartPolicy.Name != "no" {
				f.t.Errorf("host %s: %s, want it down for good", id, c)
			}
		}
	}
}

// longTroubles are what happens in the middle, by name.
func longTroubles() []string {
	return []string{"tool", "agent", "both agents", "connection", "engine", "host", "one host dead", "one host slow"}
}

// TestLongCutoversOnRealHosts is every cut-over with everything that can die in its middle, each on a fleet of its own, brought
// to its end by the command that was named. -run 'TestLongCutoversOnRealHosts/halt/engine' runs one of them again.
func TestLongCutoversOnRealHosts(t *testing.T) {
	program := buildProgram(t)
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	for _, c := range longCuts() {
		for _, trouble := range longTroubles() {
			t.Run(c.kind+"/"+trouble, func(t *testing.T) {
				t.Parallel()
				f := upCutover(t, program, c.supers, longBlock)
				began, before := time.Now(), f.inventory()
				if trouble == "tool" {
					f.lostAtEveryBarrier(c, server.DSN(t))
				} else {
					f.troubled(c, trouble)
				}
				f.kept(before)
				if trouble != "tool" { // whose state is on the server
					f.noSecrets()
				}
				t.Logf("case %s/%s %.1f s", c.kind, trouble, time.Since(began).Seconds())
			})
		}
	}
}

// troubled runs a cut-over in which something dies, and resumes it until it is done.
func (f *realFleet) troubled(c longCut, trouble string) {
	ctx := f.t.Context()
	line, at := c.begin(f)
	mark, strike := c.strike, map[string]func(){
		"agent":       func() { f.killAgents(c.host, false) },
		"both agents": func() { f.killAgents(c.host, true); f.killAgents(c.host, false) },
		"connection":  func() { f.again(f.DropSSH(ctx, c.host)) },
		"engine":      func() { f.again(f.KillEngine(ctx, c.host), f.StartEngine(ctx, c.host)) },
		"host":        func() { f.again(f.Reboot(ctx, c.host)) },
		"one host dead": func() {
			f.again(f.PowerOff(ctx, "004"))
		},
		"one host slow": func() { f.again(f.Slow(ctx, "004", "2mbit")) },
	}[trouble]
	switch trouble {
	case "one host dead":
		mark = c.dead
	case "one host slow":
		mark = phase("prepare", "begun")
	}
	struck := false
	first := at[mark]
	at[mark] = func(cmd *exec.Cmd) {
		struck = true
		if first != nil {
			first(cmd)
		}
		strike()
	}
	out, code := f.drain(f.command(flagged(line)...), at)
	if !struck {
		f.t.Fatalf("never said %q", mark)
	}
	if trouble == "one host dead" {
		f.again(f.Reboot(ctx, "004")) // its power is back
	}
	f.onwards(c, line, out, code, at)
	c.end(f, f.command)
}

func flagged(line []string) []string {
	for _, flag := range []string{"--yes", "-v"} {
		if !slices.Contains(line, flag) {
			line = append(slices.Clone(line), flag)
		}
	}
	return line
}

var operationNamed = regexp.MustCompile(`operation (\S+) \(after a crash`)

// stoppedInBoot is what is said of a node that was alone when its host came back: it could not come up, and was not flushed.
const stoppedInBoot = "qnetops abort starts all nodes again"

// engineAnew is what is said where an engine that was killed left a process behind that holds the node's port.
const engineAnew = "restart the engine: systemctl restart docker"

// byWord is what is said where one host alone has started anew: the decree or its own reboot.
const byWord = "--waive decree_not_taken=REASON"

// onwards does what was named last until the cut-over is done: it is resumed, or taken back and begun once more. One that was
// given up before anything was changed is asked for again.
func (f *realFleet) onwards(c longCut, line []string, out string, code int, at marks) {
	f.t.Helper()
	for try := 0; code != exitDone; try++ {
		if try == 6 {
			f.t.Fatalf("resume never succeeded, last exit code %d", code)
		}
		time.Sleep(3 * time.Second)
		next := []string{"resume", f.newest(), "-v"}
		if strings.Contains(out, engineAnew) {
			f.again(f.RestartEngine(f.t.Context(), c.host))
		}
		switch {
		case strings.Contains(out, stoppedInBoot):
			f.must(0, "abort", f.newest())
			next = flagged(line)
		case f.state() == "aborted":
			next = flagged(line)
		case strings.Contains(out, byWord): // the nodes of the other hosts have run on, so nobody gossiped it
			next = append(next, "--waive", "decree_not_taken=the others run on")
		}
		out, code = f.drain(f.command(next...), at)
	}
}

// lostAtEveryBarrier loses the operator's machine at each barrier. Each time another machine, which shares nothing with the
// one before but the Postgres server, takes the operation over.
func (f *realFleet) lostAtEveryBarrier(c longCut, dsn string) {
	f.store = dsn // what leads to the cut-over is in the journal that the machines share
	line, at := c.begin(f)
	machine := 0
	command := func(line ...string) *exec.Cmd {
		machine++
		name := fmt.Sprint("machine", machine)
		cmd := f.command(line...)
		cmd.Env = append(cmd.Env, "QNETOPS_OPERATOR="+name, "HOME="+filepath.Join(f.dir, name))
		return cmd
	}
	op, code := "", 0
	for _, name := range c.phases {
		mark := phase(name, "done")
		first := at[mark]
		lost := false
		at[mark] = func(cmd *exec.Cmd) {
			if first != nil {
				first(cmd)
			}
			killTool(cmd)
			lost = true
		}
		for try := 0; !lost; try++ {
			next := flagged(line)
			if op != "" {
				next = []string{"resume", op, "-v"}
			}
			var out string
			out, code = f.drain(command(next...), at)
			if found := operationNamed.FindStringSubmatch(out); op == "" && found != nil {
				op = found[1]
			}
			if !lost && (op == "" || code == exitDone || try == 10) {
				f.t.Fatalf("the machine was not lost at %q: exit %d\n%s", mark, code, tail(out, 15))
			}
			if !lost {
				time.Sleep(2 * time.Second) // the lease of the machine that was lost runs out
			}
		}
	}
	for try := 0; ; try++ {
		out, code := f.drain(command("resume", op, "-v"), at)
		if code == exitDone || strings.Contains(out, "it is done") {
			break
		}
		if try == 10 {
			f.t.Fatalf("the last resume: exit %d\n%s", code, tail(out, 15))
		}
		time.Sleep(2 * time.Second)
	}
	c.end(f, command)
}
