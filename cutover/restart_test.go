package cutover_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// alive are the hosts that a stall leaves: one more than the chain tolerates is
// away, 005 and 006 of six.
func (w *world) alive() []string {
	ids := w.ids()
	return ids[:len(ids)-(len(ids)-1)/3-1]
}

// stall takes the other nodes away, and lets these make blocks that are never sealed.
func (w *world) stall() {
	w.Helper()
	for _, id := range without(w.ids(), w.alive()...) {
		if err := w.host(id).Engine().StopContainer(w.host(id).Spec().Container); err != nil {
			w.Fatal(err)
		}
	}
	w.Blocks(600)
}

// soon is a start time that all operators can keep.
func soon() time.Time { return time.Now().Add(20 * time.Minute) }

// inStalled runs fn with a fleet that has stalled and what a record of it says.
func inStalled(t *testing.T, fn func(*testing.T, *world, *tool, cutover.RestartValues)) {
	t.Helper()
	inStalledOf(t, 6, fn)
}

// inStalledOf is inStalled with so many nodes: of eight five are left, all of them
// genesis nodes, one more than are needed to start.
func inStalledOf(t *testing.T, nodes int, fn func(*testing.T, *world, *tool, cutover.RestartValues)) {
	t.Helper()
	inLab(t, nodes, func(t *testing.T, w *world) {
		w.stall()
		tool := w.tool()
		fn(t, w, tool, tool.values(nil))
	})
}

var survivors = []string{"001", "002", "003", "004"}

// client is the node of a host as a tool asks it.
func (t *tool) client(id string) *node.Client {
	t.w.Helper()
	conn, err := rolling.Reach(t.ctx, t.fleet, id)
	if err != nil {
		t.w.Fatal(err)
	}
	return conn.Node()
}

// values are what a record of the stalled fleet would say, with an image that was
// built for it. change may spoil the manifest of the image.
func (t *tool) values(change func(m *manifest.Manifest)) cutover.RestartValues {
	t.w.Helper()
	ctx := t.ctx
	pos, err := t.client("001").Position(ctx)
	if err != nil {
		t.w.Fatal(err)
	}
	k := pos.LastSealed
	digest := func(index uint64) (hash, digest node.Hash) {
		mb, err := t.client("001").Macroblock(ctx, index)
		if err != nil {
			t.w.Fatal(err)
		}
		proof, err := t.client("001").Proof(ctx, index)
		if err != nil {
			t.w.Fatal(err)
		}
		return mb.Hash(), proof.Fields().DigestV2()
	}
	hash, anchor := digest(k)
	_, pred := digest(k - 1)
	proof, err := t.client("001").Proof(ctx, k)
	if err != nil {
		t.w.Fatal(err)
	}
	var alive []string
	for _, id := range t.w.alive() {
		h, err := t.client(id).NodeHealth(ctx)
		if err != nil {
			t.w.Fatal(err)
		}
		alive = append(alive, h.NodeID)
	}
	m := manifest.Manifest{Restart: manifest.Restart{ResumeFromMB: k, ResumeMBHash: hash, Excluded: []string{}},
		Pin: manifest.Pin{Index: k, Hash: hash, DigestAnchor: anchor, DigestPred: pred}}
	for _, id := range proof.Committee {
		if !slices.Contains(alive, id) {
			m.Restart.Excluded = append(m.Restart.Excluded, id)
		}
	}
	built := m
	if change != nil {
		change(&built)
	}
	image := t.w.image("restart", built)
	slices.Sort(alive)
	return cutover.RestartValues{Record: strings.Repeat("a", 64), Publisher: "ann", Image: strings.TrimSuffix(image.Ref, ":restart") + "@" + image.Digest, Manifest: m,
		Needed: node.QuorumSize(len(alive)), Remaining: alive, Operators: []string{"ann"}, ArchiveFleet: t.fleet.Inventory().Name, ArchiveHost: "002"}
}

// image adds an image that was built with a manifest.
func (w *world) image(tag string, m manifest.Manifest) simnode.AddedImage {
	w.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		w.Fatal(err)
	}
	image, err := w.lab.AddImage(tag, raw)
	if err != nil {
		w.Fatal(err)
	}
	return image
}

// restartAsk is what `qnetops restart execute FOLDER` asks, with a record that
// holds.
func (t *tool) restartAsk(v cutover.RestartValues, at time.Time) cutover.RestartAsk {
	ask := cutover.RestartAsk{Ask: cutover.Ask{Hosts: t.w.alive(), Skipped: without(t.w.ids(), t.w.alive()...)}, Values: v, StartAt: at}
	ask.Verify = func(ctx context.Context) (restart.Verification, restart.Evidence, error) {
		ev, err := restart.Gather(ctx, restart.FleetHosts(ctx, t.fleet, t.w.alive()), restart.Options{Fleet: t.fleet.Inventory().Name, Operator: "ann", ID: restart.NewID(), Number: 1,
			Tool: "test", Now: time.Now(), Ranges: []restart.IndexRange{{From: v.K() - 1, To: v.K()}}, Block: t.fleet.Inventory().Block})
		return restart.Verification{OK: true, K: v.K(), Shown: t.w.alive()}, ev, err
	}
	ask.CheckArchive = func(ctx context.Context, id string, joiners int) (restart.ArchiveCheck, error) {
		in := restart.ArchiveInput{Fleet: t.fleet.Inventory().Name, Designated: id, K: v.K(), Forged: v.Forged, Block: t.fleet.Inventory().Block, Joiners: joiners, ReadBytes: 1 << 20,
			Sample: 4, Seed: 1, Patience: 30 * time.Second, Now: time.Now}
		for _, h := range t.w.alive() {
			if conn, err := rolling.Reach(ctx, t.fleet, h); err == nil {
				in.Hosts = append(in.Hosts, restart.ArchiveHost{ID: h, Node: conn.Node()})
			}
		}
		check, err := restart.CheckArchive(ctx, in)
		for i := range check.Checks { // no time passes while bytes flow in this lab
			if c := &check.Checks[i]; c.Name == restart.ArchiveThroughput && c.Verdict == observe.Unknown {
				c.Verdict = observe.Pass
			}
		}
		return check, err
	}
	return ask
}

// dataFiles lists every file below the folders that hold the data of a host and
// what was set aside from it.
func (w *world) dataFiles(id string) map[string]int64 {
	w.Helper()
	dir := filepath.Join(w.host(id).Root(), w.host(id).Spec().DataPath)
	out := map[string]int64{}
	found, err := filepath.Glob(dir + "*")
	if err != nil {
		w.Fatal(err)
	}
	for _, top := range found {
		err := filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				info, err := d.Info()
				if err != nil {
					return err
				}
				rel, _ := filepath.Rel(filepath.Dir(dir), p)
				out[rel] = info.Size()
			}
			return err
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	return out
}

// onNewChain asserts that restart verify finds nothing on the hosts.
func (t *tool) onNewChain(v cutover.RestartValues, ids []string) {
	t.w.Helper()
	doc, err := cutover.VerifyRestart(t.ctx, t.fleet, ids, v, "ann", nil)
	if err != nil {
		t.w.Fatal(err)
	}
	for _, c := range doc.Checks {
		if c.Verdict != observe.Pass {
			t.w.Errorf("%s %s: %s", c.Name, c.Verdict, c.Reason)
		}
	}
}

func TestRestartFromStallToFinality(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		doc, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
		if err != nil {
			t.Fatalf("%+v\n%v", doc, err)
		}
		if doc.Outcome != rolling.OutcomeDone {
			t.Errorf("%+v", doc)
		}
		for _, id := range survivors {
			if c := w.all(id); len(c) != 1 || c[0].State != "running" || c[0].RestartPolicy != "always" {
				t.Errorf("%s: %s", id, names(c))
			}
		}
		tool.onNewChain(v, survivors)
		for _, id := range survivors {
			aside := fmt.Sprintf("-above-%d-", v.K())
			if files := w.dataFiles(id); !slices.ContainsFunc(keysOf(files), func(f string) bool { return strings.Contains(f, aside) }) {
				t.Errorf("%s: nothing was set aside: %v", id, keysOf(files))
			}
		}
		w.clean()
	})
}

func keysOf(m map[string]int64) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// TestRestartOperatorLostAtEveryBarrier: at each barrier, and at the beginning of
// each phase, the operator's machine is lost; a process that knows the store alone
// brings the restart to its end.
func TestRestartOperatorLostAtEveryBarrier(t *testing.T) {
	for _, state := range []string{"begun", "done"} {
		t.Run(state, func(t *testing.T) {
			inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
				tool.dieAt(cutover.Prepare, state)
				_, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
				w.lost(tool, err, state, cutover.Hold, cutover.Data, cutover.Go, cutover.Verify, cutover.Release)
				tool = w.tool()
				defer tool.exit()
				tool.onNewChain(v, survivors)
				w.clean()
			})
		})
	}
}

// TestRestartTakenBack: until the first successor is started everything goes back:
// the data directories, the containers, the policies; not one file is gone.
func TestRestartTakenBack(t *testing.T) {
	for _, phase := range []cutover.PhaseName{cutover.Prepare, cutover.Hold, cutover.Data} {
		t.Run(string(phase), func(t *testing.T) {
			inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
				before := map[string]map[string]int64{}
				for _, id := range survivors {
					before[id] = w.dataFiles(id)
				}
				tool.dieAt(phase, "done")
				if _, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute))); err == nil {
					t.Fatal("the process did not die")
				}
				tool.exit()
				tool = w.tool()
				defer func() { tool.exit() }()
				if phase == cutover.Data { // the archive host has nothing to put back, and cannot be started: the others run when it is aborted anew
					w.inject("002", "drop-ssh", "hold")
					if _, err := tool.ops().Abort(tool.ctx, tool.unfinished()); err == nil {
						t.Fatal("taken back without a host")
					}
					w.Clear("002", "drop-ssh")
					tool.exit()
					tool = w.tool()
				}
				if _, err := tool.ops().Abort(tool.ctx, tool.unfinished()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(400 * fast)
				for _, id := range survivors {
					w.runs(id, "v1")
					after := w.dataFiles(id)
					for name, size := range before[id] {
						if now, there := after[name]; !there || strings.HasSuffix(name, ".jsonl") && now < size {
							t.Errorf("%s: %s had %d bytes, there %v, now %d", id, name, size, there, now)
						}
					}
				}
				w.clean()
			})
		})
	}
}

// TestRestartWithOneHostDead: a host that dies under way is passed by where the
// others reach the threshold, and named.
func TestRestartWithOneHostDead(t *testing.T) {
	inStalledOf(t, 8, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		tool.when(cutover.Hold, "begun", func() {
			w.inject("004", "drop-ssh", "hold")
		})
		doc, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, h := range doc.Hosts {
			if want := map[bool]cutover.State{true: cutover.Apart, false: cutover.Finished}[h.ID == "004"]; h.State != want {
				t.Errorf("%s is %s: %s", h.ID, h.State, h.Text)
			}
		}
		tool.onNewChain(v, without(w.alive(), "004"))
		if err := w.lab.Clear("004", "drop-ssh"); err != nil {
			t.Fatal(err)
		}
		w.clean()
	})
}

// TestRestartHoldsWithoutThreshold: with two hosts gone too few identities are
// left; nothing is set aside and nothing started, and it can be taken back.
func TestRestartHoldsWithoutThreshold(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		tool.when(cutover.Hold, "begun", func() {
			w.inject("003", "drop-ssh", "hold")
			w.inject("004", "drop-ssh", "hold")
		})
		_, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
		if err == nil || !strings.Contains(err.Error(), "held in phase hold") || !strings.Contains(err.Error(), "003: missing") {
			t.Fatalf("got %v", err)
		}
		for _, id := range survivors {
			if files := strings.Join(keysOf(w.dataFiles(id)), " "); strings.Contains(files, "-above-") || strings.Contains(files, "-copy-") {
				t.Errorf("%s: %s", id, files)
			}
		}
	})
}

// TestMalformedManifestIsReported: the node itself refuses it, and the tool says
// with which code; nothing but the archive host was started.
func TestMalformedManifestIsReported(t *testing.T) {
	inLab(t, 6, func(t *testing.T, w *world) {
		w.stall()
		tool := w.tool()
		defer tool.exit()
		v := tool.values(func(m *manifest.Manifest) { m.Restart.ResumeMBHash = node.Hash{} })
		doc, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
		if err == nil || !strings.Contains(err.Error(), "restart_zero_hash") {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range []string{"001", "003", "004"} {
			if c := w.node(id); c.State == "running" {
				t.Errorf("%s was started: %s", id, names(w.all(id)))
			}
		}
	})
}

// TestWrongHashIsLatched: a node that shows another K than the record is stopped
// for good, a resume leaves it so, and only its name lets it go on.
func TestWrongHashIsLatched(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		v.Manifest.Restart.ResumeMBHash[0] ^= 1
		down := func(when string) {
			t.Helper()
			if c := w.node("002"); c.State != "exited" || c.RestartPolicy != "no" {
				t.Errorf("%s: %s", when, names(w.all("002")))
			}
		}
		_, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute)))
		if err == nil || !strings.Contains(err.Error(), "002: failed: shows another macroblock K") {
			t.Fatalf("got %v", err)
		}
		down("latched")
		if _, err = tool.ops().Resume(tool.ctx, tool.op()); err == nil || !strings.Contains(err.Error(), "latched=002") {
			t.Fatalf("got %v", err)
		}
		down("after a resume")
		// By another hand it runs again: a resume does not take its word for it that it is stopped.
		if err := w.host("002").Engine().StartContainer(w.host("002").Spec().Container); err != nil {
			t.Fatal(err)
		}
		if _, err = tool.ops(membersOf("go on without it")).Resume(tool.ctx, tool.op()); err == nil {
			t.Fatal("the restart went on without its archive host")
		}
		down("started by hand")
		// Cleared by name it is started and judged anew: it still shows the other one.
		started := false
		tool.emit = func(e rolling.Event) {
			started = started || e.Node == "002" && strings.Contains(e.Text, "cleared by name")
		}
		if _, err = tool.ops(rolling.Waiver{Check: "latched", Reason: "002"}).Resume(tool.ctx, tool.op()); err == nil || !started {
			t.Fatalf("got %v, started %v", err, started)
		}
		down("after it was cleared")
	})
}

// TestRestartRefused: what is not ready is refused with nothing changed.
func TestRestartRefused(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		soon := soon()
		for _, c := range []struct {
			check, words string
			change       func(a *cutover.RestartAsk)
		}{
			{"start_time", "ago", func(a *cutover.RestartAsk) { a.StartAt = time.Now().Add(-time.Minute) }},
			{"start_time", "before the start of the record", func(a *cutover.RestartAsk) { a.At = time.Now().Add(time.Minute) }},
			{"survivors", "2 of 4 identities, 3 needed", func(a *cutover.RestartAsk) { a.Hosts = []string{"001", "002"} }},
			{"archive", "no host of this fleet", func(a *cutover.RestartAsk) { a.Values.ArchiveFleet = "another" }},
			{"record", "differs", func(a *cutover.RestartAsk) {
				a.Verify = func(ctx context.Context) (restart.Verification, restart.Evidence, error) {
					return restart.Verification{Differences: []restart.Difference{{Where: "k", Code: "differs", What: "12, want 11"}}}, restart.Evidence{}, nil
				}
			}},
		} {
			ask := tool.restartAsk(v, soon)
			c.change(&ask)
			_, err := tool.restart(ask)
			w.mustRefuse(err, c.check, c.words)
		}
		if open := tool.unfinished(); open != "" {
			t.Errorf("operation %s is open", open)
		}
		w.clean()
	})
}
