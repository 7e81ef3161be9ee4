package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
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

// manifestAt is the manifest of a restart from macroblock k, from what one host's node serves.
func manifestAt(t *testing.T, h *Host, k uint64, excluded ...string) []byte {
	t.Helper()
	client := node.Client{Base: h.APIBase(), HTTP: h.HTTP()}
	digest := func(i uint64) (node.Hash, node.Hash) {
		mb, err := client.Macroblock(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		proof, err := client.Proof(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		if err := proof.Check(&mb); err != nil {
			t.Fatal(err)
		}
		return mb.Hash(), proof.Fields().DigestV2()
	}
	m := manifest.Manifest{Pin: manifest.Pin{Index: k}}
	_, m.Pin.DigestPred = digest(k - 1)
	m.Pin.Hash, m.Pin.DigestAnchor = digest(k)
	slices.Sort(excluded)
	m.Restart = manifest.Restart{ResumeFromMB: k, ResumeMBHash: m.Pin.Hash, Excluded: excluded}
	if found := manifest.Validate(m, manifest.Known{}); len(found) > 0 {
		t.Fatalf("%+v", found)
	}
	raw, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestRestartOfAFleet: two of six are gone, the chain parks at its horizon, and an image with a manifest brings it back: one
// host serves the state, the others rename their data aside and join.
func TestRestartOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 6, Seed: 25, History: 360})
		hosts := l.Hosts()
		waitHeight(t, l, 470)
		for _, id := range []string{"005", "006"} {
			if err := l.Inject(id, FaultStop, ""); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(node.HorizonBlocks * 5 / 4 * l.Block()) // the turns of the two cost time
		position := func(h *Host) node.Position {
			t.Helper()
			client := node.Client{Base: h.APIBase(), HTTP: h.HTTP()}
			p, err := client.Position(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", h.ID(), err)
			}
			return p
		}
		parked := strings.Join(hosts[0].engine.LastLines(hosts[0].spec.Container, 5), "\n")
		if !strings.Contains(parked, "[WARN][PROD] parked reason=roster_derivation_horizon h=") {
			t.Fatalf("not parked: %s", parked)
		}
		k := position(hosts[0]).LastSealed
		added, err := l.AddImage("restart", manifestAt(t, hosts[0], k, hosts[4].NodeID(), hosts[5].NodeID()))
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range hosts[:4] {
			if err := h.engine.StopContainer(h.spec.Container); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				if err := os.Rename(h.DataDir(), h.DataDir()+"-above"); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(h.DataDir(), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, h := range hosts[:4] {
			withContainer(t, h, added.Ref, "always")
		}
		time.Sleep(500 * l.Block())
		for _, h := range hosts[1:4] {
			if p := position(h); p.LastSealed < k+2 {
				t.Errorf("%s sealed %d after a restart from %d", h.ID(), p.LastSealed, k)
			}
		}
		s := l.Status(t.Context())
		if s.Nodes[1].Build != added.Build {
			t.Errorf("build %s, want %s", s.Nodes[1].Build, added.Build)
		}
		if log := strings.Join(hosts[0].engine.LastLines(hosts[0].spec.Container, 10_000), "\n"); !strings.Contains(log, "v2_below_ws mb=") {
			t.Errorf("the host with data above K does not fail closed: %s", log)
		}
		clean(t, l)
	})
}
