//go:build long

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// longMarks are the moments of a one-node roll at which something dies: every
// journaled step and every step of the local transaction.
func longMarks() []string {
	return []string{"pull      begun", "stage     begun", "stop_old intent", "policy_old_no intent", "start_next intent", "policy_next intent",
		"rename_old_aside intent", "rename_next intent", "milestones begun", "finish    begun", "archive intent", "remove_aside intent"}
}

// TestLongKillMatrixOnRealHosts kills everything that can die at every step of
// a roll on real hosts, and goes on with the command that was hinted.
func TestLongKillMatrixOnRealHosts(t *testing.T) {
	f := upFleet(t, 6)
	f.healthy()
	f.committee(6)
	deaths := map[string]func(*exec.Cmd, string){
		"tool":       func(cmd *exec.Cmd, _ string) { _ = cmd.Process.Kill() },
		"agent":      func(_ *exec.Cmd, id string) { f.killAgents(id, false) },
		"guardian":   func(_ *exec.Cmd, id string) { f.killAgents(id, true) },
		"both":       func(_ *exec.Cmd, id string) { f.killAgents(id, true); f.killAgents(id, false) },
		"connection": func(_ *exec.Cmd, id string) { f.do(f.DropSSH(f.t.Context(), id)) },
		"engine": func(_ *exec.Cmd, id string) {
			f.do(f.KillEngine(f.t.Context(), id))
			f.do(f.StartEngine(f.t.Context(), id))
		},
		"host": func(_ *exec.Cmd, id string) { f.do(f.Reboot(f.t.Context(), id)) },
	}
	round, images := 0, []string{"qnet:v2", "qnet:v1"}
	for _, what := range []string{"tool", "agent", "guardian", "both", "connection", "engine", "host"} {
		for i, mark := range longMarks() {
			t.Run(what+" at "+mark, func(t *testing.T) {
				id := fmt.Sprintf("%03d", i%6+1)
				round++
				code := f.runUntil(mark, func(cmd *exec.Cmd) { deaths[what](cmd, id) },
					"roll", images[(round/6)%2], "--set-env", fmt.Sprintf("ROUND=%d", round), "--only", id, "--yes")
				if what != "both" && what != "host" {
					f.oneContainer(id)
				}
				f.resumeUntilDone(code)
				f.oneContainer(id)
				f.healthy()
			})
		}
	}
	f.noSecrets()
}

func (f *realFleet) do(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Error(err)
	}
}

// resumeUntilDone does what the hint says; a host that boots or an engine that
// starts may need a second try.
func (f *realFleet) resumeUntilDone(code int) {
	f.t.Helper()
	for try := 0; code != exitDone && try < 6; try++ {
		if state := f.newestState(); state == "done" || state == "aborted" {
			return // nothing had been changed when it ended
		}
		_, code = f.run("resume", f.newest())
		if code != exitDone {
			time.Sleep(5 * time.Second)
		}
	}
	if code != exitDone {
		f.t.Fatalf("resume never succeeded, last exit code %d", code)
	}
}

func (f *realFleet) newestState() string {
	var doc struct{ Operations []struct{ State string } }
	if err := json.Unmarshal([]byte(f.must(0, "ops", "-o", "json")), &doc); err != nil || len(doc.Operations) == 0 {
		f.t.Fatalf("no operations: %v", err)
	}
	return doc.Operations[0].State
}

// TestLongBadImagesOnRealHosts: every bad image stops at its milestone with one
// node touched, and is put back where that is promised.
func TestLongBadImagesOnRealHosts(t *testing.T) {
	f := upFleet(t, 6)
	f.healthy()
	f.committee(6)
	for _, c := range []struct{ image, outcome, milestone string }{
		{"crash", "restored", "M0"}, {"gap", "restored", "M0"}, {"oom", "restored", "M0"}, {"liar", "restored", "M1"}, {"mute", "held", "M3"},
	} {
		t.Run(c.image, func(t *testing.T) {
			out := f.must(exitStopped, "roll", "qnet:"+c.image, "--yes", "-o", "json")
			var doc rollSummary
			if err := json.Unmarshal([]byte(out), &doc); err != nil {
				t.Fatal(err)
			}
			if wrong := doc.want(c.outcome, 1); wrong != "" {
				t.Error(wrong)
			}
			for _, n := range doc.Nodes {
				for _, m := range n.Milestones {
					if m.Verdict == "fail" && m.Name != c.milestone {
						t.Errorf("node %s failed at %s, want %s", n.ID, m.Name, c.milestone)
					}
				}
			}
			f.must(0, "abort", f.newest())
			f.healthy()
		})
	}
	t.Run("slow passes", func(t *testing.T) {
		out, code := f.run("roll", "qnet:slow", "--only", "002", "--yes")
		for try := 0; code == exitRefused && try < 3; try++ { // a node that caught up meanwhile has another place in the plan
			f.healthy()
			out, code = f.run("roll", "qnet:slow", "--only", "002", "--yes")
		}
		if code != exitDone {
			t.Errorf("exit code %d\n%s", code, out)
		}
		f.healthy()
	})
}
