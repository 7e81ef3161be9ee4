package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/lab/engine"
)

// brokenManifest is one that every node refuses.
const brokenManifest = `{"restart":{"resume_from_mb":3,"resume_mb_hash":"0000000000000000000000000000000000000000000000000000000000000000","excluded":[]},` +
	`"ws_checkpoint":{"index":3,"hash":"0000000000000000000000000000000000000000000000000000000000000000",` +
	`"digest_anchor":"0000000000000000000000000000000000000000000000000000000000000000","digest_pred":"0000000000000000000000000000000000000000000000000000000000000000"}}`

// withContainer replaces the node's container of a host by one with another image, policy and further variables, as an
// operator would by hand.
func withContainer(t *testing.T, h *Host, ref, policy string, env ...string) {
	t.Helper()
	name := h.spec.Container
	if err := h.engine.Load(ref); err != nil {
		t.Fatal(err)
	}
	if err := h.engine.StopContainer(name); err != nil {
		t.Fatal(err)
	}
	if err := h.engine.RemoveContainer(name); err != nil {
		t.Fatal(err)
	}
	body := h.createBody(ref)
	body["Env"] = append(h.lab.nodeEnv(h.index, h.spec), env...)
	body["HostConfig"].(map[string]any)["RestartPolicy"] = map[string]any{"Name": policy}
	if err := h.createFrom(body); err != nil {
		t.Fatal(err)
	}
	if err := h.engine.StartContainer(name); err != nil {
		t.Fatal(err)
	}
}

func containerOf(h *Host) engine.Summary {
	list := h.engine.Containers()
	return list[slices.IndexFunc(list, func(c engine.Summary) bool { return c.Name == h.spec.Container })]
}

func TestAddedImageCarriesItsManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 21})
		waitHeight(t, l, 2)
		if _, err := l.AddImage("restart", []byte(`{"restart":{"k":1}}`)); err == nil || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("a manifest with an unknown key: %v", err)
		}
		if _, err := l.AddImage("v2", []byte(brokenManifest)); err == nil {
			t.Error("v2 was replaced")
		}
		added, err := l.AddImage("restart", []byte(brokenManifest))
		if err != nil || added.Ref != Repository+":restart" || !strings.HasPrefix(added.Digest, "sha256:") || len(added.Build) != 12 {
			t.Fatalf("%+v, %v", added, err)
		}
		again, err := l.AddImage("restart", []byte(brokenManifest))
		if err != nil || again != added {
			t.Errorf("equal content, another image: %+v and %+v, %v", again, added, err)
		}
		h := l.Hosts()[0]
		withContainer(t, h, added.Ref, "no")
		time.Sleep(time.Second)
		c := containerOf(h)
		if c.State != "exited" || c.ExitCode != 1 {
			t.Errorf("%s, exit code %d", c.State, c.ExitCode)
		}
		log := strings.Join(h.engine.LastLines(h.spec.Container, 20), "\n")
		if !strings.Contains(log, "[FATAL][RESTART] malformed_manifest err=restart_zero_hash — refusing to start") {
			t.Errorf("log %q", log)
		}
		clean(t, l)
	})
}

// TestHaltedNodeStaysDownOnlyWithoutItsPolicy: exit 0 on a halt height is brought back by `always` and produces until its
// next poll, again and again; `on-failure` and `no` leave it down, also when the engine restarts.
func TestHaltedNodeStaysDownOnlyWithoutItsPolicy(t *testing.T) {
	halted := func(t *testing.T, policy string, check func(t *testing.T, l *Lab, h *Host)) {
		synctest.Test(t, func(t *testing.T) {
			l := up(t, Config{Nodes: 1, Seed: 22})
			h := l.Hosts()[0]
			waitHeight(t, l, 5)
			withContainer(t, h, Repository+":v1", policy, "QNET_HALT_HEIGHT=20")
			check(t, l, h)
			clean(t, l)
		})
	}
	lines := func(h *Host, part string) int {
		n := 0
		for _, line := range h.engine.LastLines(h.spec.Container, 100_000) {
			n += strings.Count(line, part)
		}
		return n
	}
	t.Run("always", func(t *testing.T) {
		halted(t, "always", func(t *testing.T, l *Lab, h *Host) {
			var at []uint64
			for i := range 3 {
				for lines(h, "[INFO][HALT] Reached halt_height=20 current=") == i {
					time.Sleep(time.Second)
				}
				var stop uint64
				for _, line := range h.engine.LastLines(h.spec.Container, 100_000) {
					if _, rest, ok := strings.Cut(line, "Reached halt_height=20 current="); ok {
						if _, err := fmt.Sscan(rest, &stop); err != nil {
							t.Fatal(err)
						}
					}
				}
				at = append(at, stop)
			}
			for i := 1; i < len(at); i++ {
				if grown := at[i] - at[i-1]; grown < 1 || grown > 40 {
					t.Errorf("stopped at %v: the node makes blocks until its next poll, 30 block times after bring-up", at)
				}
			}
			if c := containerOf(h); c.RestartCount < 2 {
				t.Errorf("%d restarts", c.RestartCount)
			}
		})
	})
	for _, policy := range []string{"on-failure", "no"} {
		t.Run(policy, func(t *testing.T) {
			halted(t, policy, func(t *testing.T, l *Lab, h *Host) {
				time.Sleep(5 * time.Minute)
				down := func(when string) {
					t.Helper()
					if c := containerOf(h); c.State != "exited" || c.ExitCode != 0 || c.RestartCount != 0 {
						t.Errorf("%s: %s, exit code %d, %d restarts", when, c.State, c.ExitCode, c.RestartCount)
					}
				}
				down("halted")
				for _, kill := range []string{KillEngine, KillHost} {
					if err := l.Kill(h.spec.ID, kill); err != nil {
						t.Fatal(err)
					}
					time.Sleep(3 * time.Minute)
					down("after " + kill)
				}
			})
		})
	}
	t.Run("on-failure brings a crash back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := up(t, Config{Nodes: 1, Seed: 23})
			h := l.Hosts()[0]
			withContainer(t, h, Repository+":crash", "on-failure")
			time.Sleep(time.Minute)
			if c := containerOf(h); c.RestartCount < 2 {
				t.Errorf("%d restarts after exit 1", c.RestartCount)
			}
		})
	})
	t.Run("on-failure does not survive a restart of the engine", func(t *testing.T) {
		// The engine's SIGTERM makes the node flush and exit 0, which the policy takes for done.
		synctest.Test(t, func(t *testing.T) {
			l := up(t, Config{Nodes: 1, Seed: 24})
			h := l.Hosts()[0]
			withContainer(t, h, Repository+":v1", "on-failure")
			waitHeight(t, l, 5)
			if err := l.Inject(h.spec.ID, FaultEngineRestart, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Minute)
			if c := containerOf(h); c.State != "exited" || c.ExitCode != 0 {
				t.Errorf("%s, exit code %d", c.State, c.ExitCode)
			}
		})
	})
}
