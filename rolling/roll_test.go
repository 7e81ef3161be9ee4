package rolling_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// fast is the block time of tests whose subject is not the chain's own time.
const fast = rollingtest.Fast

// seen follows what runs on every host from the engines' own events: the hosts
// in the order in which their node stopped, and the most nodes down at once.
type outage struct {
	mu    sync.Mutex
	order []string
	worst int
}

// watchDown looks at all engines before and after every request that changes
// something: a container can only begin or end there.
func (w *world) watchDown() *outage {
	o := &outage{}
	look := func(host, method, _ string) {
		if method == "GET" {
			return
		}
		down := 0
		for _, id := range w.IDs() {
			if len(w.Running(id)) == 0 {
				down++
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.worst = max(o.worst, down)
		if len(w.Running(host)) == 0 && !slices.Contains(o.order, host) {
			o.order = append(o.order, host)
		}
	}
	w.Lab.OnEngineRequest(look)
	w.Lab.OnEngineResponse(look)
	return o
}

func (w *world) inspect(id string) map[string]any {
	w.Helper()
	raw, err := w.Host(id).Engine().Inspect(w.Host(id).Spec().Container)
	if err != nil {
		w.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		w.Fatal(err)
	}
	return out
}

// TestGoodRoll is the main job: v1 to v2 on six nodes.
func TestGoodRoll(t *testing.T) {
	inLab(t, lab.Config{}, func(t *testing.T, w *world) {
		before := map[string]map[string]any{}
		for _, id := range w.IDs() {
			before[id] = w.inspect(id)
			// Older archives: the newest five are kept.
			for _, day := range []string{"01", "02", "03", "04", "05", "06"} {
				path := filepath.Join(w.Host(id).Root(), "root/qnet-logs", w.Host(id).Spec().Container+"-pre-199901"+day+"T000000Z.log.gz")
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		height := w.heights()
		down := w.watchDown()
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:v2"))
		if err != nil {
			t.Fatal(err)
		}
		if down.worst != 1 || !slices.Equal(down.order, w.IDs()) {
			t.Errorf("stopped in order %v, at worst %d down; want one by one by id", down.order, down.worst)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v2")
			w.allPassed(nodeOf(doc, id))
			w.archived(id, 5)
			w.differs(id, before[id], w.inspect(id))
			if w.heights()[id] < height[id]+200 {
				t.Errorf("%s: height %d after %d: its data did not survive", id, w.heights()[id], height[id])
			}
		}
		if ops := tool.Operations(); len(ops) != 1 || ops[0].State != journal.Done || len(ops[0].Unsettled()) > 0 {
			t.Errorf("journal %+v", ops)
		}
		w.healthy("v2")
		w.Clean()
	})
}

func (w *world) heights() map[string]uint64 {
	out := map[string]uint64{}
	for _, n := range w.Lab.Status(w.Context()).Nodes {
		if n.Height != nil {
			out[n.ID] = *n.Height
		}
	}
	return out
}

// allPassed asserts five milestones that all passed, in bounded time.
func (w *world) allPassed(n rolling.NodeResult) {
	w.Helper()
	if n.Outcome != rolling.NodeRolled || len(n.Milestones) != 5 || n.Killed || n.DowntimeSeconds == nil || *n.DowntimeSeconds < 0 {
		w.Errorf("%s: %+v", n.ID, n)
	}
	for _, m := range n.Milestones {
		if m.Verdict != string(observe.Pass) || m.Seconds == nil {
			w.Errorf("%s: milestone %+v", n.ID, m)
		}
	}
}

// archived asserts that the old log is among the archives and how many are kept.
func (w *world) archived(id string, want int) {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.Host(id).Root(), "root/qnet-logs", w.Host(id).Spec().Container+"-pre-*.log.gz"))
	if err != nil {
		w.Fatal(err)
	}
	slices.Sort(found)
	if len(found) != want || !strings.Contains(found[len(found)-1], "-pre-2000") || strings.Contains(found[0], "-pre-19990101") {
		w.Errorf("%s: archives %v, want the newest %d with the new one", id, found, want)
	}
}

// differs asserts that two inspects differ only where a roll from v1 to v2 says:
// in the image and its defaults, and in what every container has of its own.
func (w *world) differs(id string, before, after map[string]any) {
	w.Helper()
	for _, key := range []string{"HostConfig", "Mounts", "Name", "Platform", "Driver"} {
		if !reflect.DeepEqual(before[key], after[key]) {
			w.Errorf("%s: %s was %v, is %v", id, key, before[key], after[key])
		}
	}
	old, fresh := before["Config"].(map[string]any), after["Config"].(map[string]any)
	defaults := []string{"Image", "Env", "Cmd", "Labels", "Healthcheck", "Hostname"}
	for key := range old {
		if !slices.Contains(defaults, key) && !reflect.DeepEqual(old[key], fresh[key]) {
			w.Errorf("%s: Config.%s was %v, is %v", id, key, old[key], fresh[key])
		}
	}
	gone, added := setDiff(old["Env"], fresh["Env"])
	if want := []string{"QNET_BUILD_ID=1111111", "QNET_LAB_DEFAULT=one", "QNET_LAB_ONLY_V1=1"}; !slices.Equal(gone, want) {
		w.Errorf("%s: environment lost %q, want the old image's defaults %q", id, gone, want)
	}
	if want := []string{"QNET_BUILD_ID=2222222", "QNET_LAB_DEFAULT=two", "QNET_LAB_ONLY_V2=1"}; !slices.Equal(added, want) {
		w.Errorf("%s: environment gained %q, want the new image's defaults %q", id, added, want)
	}
	if labels := fresh["Labels"].(map[string]any); labels["lab.host"] != id || labels["lab.only.v1"] != nil || labels["lab.only.v2"] != "1" {
		w.Errorf("%s: labels %v", id, labels)
	}
}

func setDiff(old, fresh any) (gone, added []string) {
	in := func(list any, s any) bool { return slices.Contains(list.([]any), s) }
	for _, v := range old.([]any) {
		if !in(fresh, v) {
			gone = append(gone, v.(string))
		}
	}
	for _, v := range fresh.([]any) {
		if !in(old, v) {
			added = append(added, v.(string))
		}
	}
	slices.Sort(gone)
	slices.Sort(added)
	return gone, added
}

// healthy asserts that the whole fleet is and that every fence is released.
func (w *world) healthy(tag string) {
	w.Helper()
	view := w.Healthy()
	for _, n := range view.Nodes {
		if tag != "" && (n.Build == nil || *n.Build != lab.BuildID(tag)) {
			w.Errorf("%s is not of build %s", n.ID, lab.BuildID(tag))
		}
	}
	if held := w.heldFences(); len(held) > 0 {
		w.Errorf("fences still held: %v", held)
	}
}

// heldFences lists the hosts whose fence is not released.
func (w *world) heldFences() []string {
	w.Helper()
	var out []string
	for _, id := range w.IDs() {
		if rec := w.fenceOf(id); rec != nil && !rec.Released {
			out = append(out, id)
		}
	}
	return out
}

// fenceOf reads a host's record from its disk; nil where there is none.
func (w *world) fenceOf(id string) *host.FenceRecord {
	w.Helper()
	raw, err := os.ReadFile(filepath.Join(w.Host(id).Root(), host.DefaultStateDir, "fence.json"))
	if os.IsNotExist(err) {
		return nil
	}
	var rec host.FenceRecord
	if err == nil {
		err = json.Unmarshal(raw, &rec)
	}
	if err != nil {
		w.Fatal(err)
	}
	return &rec
}
