package lab

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/host"
)

const testContainer = "qnet-genesis-001"

func claim(epoch uint64) host.Claim {
	return host.Claim{Fleet: FleetName, Store: "store1", Owner: "tester", Operation: "roll-1", Epoch: epoch}
}

// prepare pulls and stages qnet:v2 next to the running v1.
func prepare(t *testing.T, w *host.Writer) (host.StageReport, host.Facts) {
	t.Helper()
	ctx := t.Context()
	if _, err := w.TakeFence(ctx); err != nil {
		t.Fatal(err)
	}
	img, err := w.Client().Resolve(ctx, Repository+":v2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Pull(ctx, img.Digest, nil); err != nil {
		t.Fatal(err)
	}
	facts, err := w.Client().Facts(ctx, host.FactsRequest{Container: testContainer})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := w.Stage(ctx, host.StageRequest{Container: testContainer, ImageDigest: img.Digest, NextName: testContainer + "-next", Operation: "roll-1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Unexplained) > 0 {
		t.Fatalf("unexplained differences: %+v", rep.Unexplained)
	}
	return rep, facts
}

func replaceRequest(rep host.StageReport, facts host.Facts) host.ReplaceRequest {
	return host.ReplaceRequest{Container: testContainer, NextName: testContainer + "-next", AsideName: testContainer + "-pre",
		FailedName: testContainer + "-failed", StopTimeoutSeconds: 60, ExpectOldID: facts.Container.ID, ExpectNextID: rep.NextID}
}

func TestReplaceThroughTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 12})
		waitHeight(t, l, 3)
		w := agent(t, connect(t, l, "001")).Writer(claim(1))
		rep, facts := prepare(t, w)
		res, err := w.Replace(t.Context(), replaceRequest(rep, facts), nil)
		if err != nil || res.Outcome != host.Replaced {
			t.Fatalf("replace %+v, %v", res, err)
		}
		h := l.Hosts()[0]
		states := map[string]string{}
		for _, c := range h.Engine().Containers() {
			states[c.Name] = c.State + " " + c.RestartPolicy
		}
		if states[testContainer] != "running always" || states[testContainer+"-pre"] != "exited no" || len(states) != 2 {
			t.Errorf("containers %v", states)
		}
		waitHeight(t, l, 5)
		if s := l.Status(t.Context()).Nodes[0]; s.Build != "2222222" {
			t.Errorf("after the replace: %+v", s)
		}
		fin, err := w.Finish(t.Context(), host.FinishRequest{Container: testContainer, AsideName: testContainer + "-pre", LogDir: "/root/qnet-logs"}, nil)
		if err != nil || fin.Bytes == 0 {
			t.Fatalf("finish %+v, %v", fin, err)
		}
		if n := len(h.Engine().Containers()); n != 1 {
			t.Errorf("%d containers left", n)
		}
		clean(t, l)
	})
}

// TestOneContainerWhateverDies kills one thing at the n-th engine request of a
// replace, for every n, and looks for invariant 4: one running container, old or
// new, and never two on one data directory. Where both agent processes or the
// whole host died, it may take the next contact.
func TestOneContainerWhateverDies(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 5
	}
	for _, what := range Kills() {
		for _, side := range []string{"before", "after"} {
			t.Run(what+" "+side, func(t *testing.T) {
				for n := 1; ; n += step {
					reached := false
					synctest.Test(t, func(t *testing.T) { reached = dieAt(t, what, side, n) })
					if t.Failed() || !reached {
						if n < 10 {
							t.Errorf("only %d engine requests in a replace", n)
						}
						return
					}
				}
			})
		}
	}
}

// dieAt runs one replace and kills at its n-th engine request; it reports
// whether the replace had that many.
func dieAt(t *testing.T, what, side string, n int) bool {
	// A process that only waits: the chain is not what is tested.
	l := up(t, Config{Nodes: 1, Seed: 13, Host: func(_ int, h *HostSpec) {
		h.Create = func(body map[string]any) { body["Entrypoint"] = []string{"/wait"} }
	}})
	cl := agent(t, connect(t, l, "001"))
	w := cl.Writer(claim(1))
	rep, facts := prepare(t, w)
	count := 0
	at := ""
	hook := func(id, method, path string) {
		if count++; count == n {
			at = method + " " + path
			l.Kill(id, what)
		}
	}
	if side == "before" {
		l.OnEngineRequest(hook)
	} else {
		l.OnEngineResponse(hook)
	}
	res, err := w.Replace(t.Context(), replaceRequest(rep, facts), nil)
	if err != nil && res.Outcome == host.Replaced {
		t.Errorf("n=%d: replaced, and the error %v", n, err)
	}
	time.Sleep(4 * time.Minute)
	synctest.Wait()
	if what == KillBoth || what == KillHost {
		if _, err := agent(t, connect(t, l, "001")).Writer(claim(2)).TakeFence(t.Context()); err != nil {
			t.Errorf("n=%d: the next contact: %v", n, err)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
	}
	running := []string{}
	for _, c := range l.Hosts()[0].Engine().Containers() {
		if c.State == "running" {
			running = append(running, c.Name)
		}
	}
	if len(running) != 1 || running[0] != testContainer {
		t.Errorf("n=%d, %s killed %s %s: running %q, outcome %q, %v", n, what, side, at, running, res.Outcome, err)
	}
	if v := l.Violations(); len(v) > 0 {
		t.Errorf("n=%d, %s killed %s %s: %q", n, what, side, at, v)
	}
	return count >= n
}

func TestDeadAgentsFilesAreOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 14})
		w := agent(t, connect(t, l, "001")).Writer(claim(7))
		if _, err := w.TakeFence(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.OnAgentRequest(func(id, method string) {
			if method == "release_fence" {
				l.Kill(id, KillBoth)
			}
		})
		if err := w.ReleaseFence(t.Context()); err == nil {
			t.Error("a dead agent released the fence")
		}
		rec, err := agent(t, connect(t, l, "001")).Fence(t.Context())
		if err != nil || rec == nil || rec.Released || rec.Epoch != 7 {
			t.Errorf("fence %+v, %v", rec, err)
		}
	})
}

func TestAgentOutputHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1})
		var seen strings.Builder
		l.OnAgentOutput(func(id string, line []byte) { fmt.Fprintf(&seen, "%s %s", id, line) })
		if _, err := agent(t, connect(t, l, "001")).Hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(seen.String(), `001 {"id":1,`) {
			t.Errorf("seen %q", seen.String())
		}
	})
}
