package cutover_test

import (
	"slices"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// TestGoodHaltAndRelease is the main job: armed one by one, stopped at the height,
// down for good, and started together on the new image with what they had before.
func TestGoodHaltAndRelease(t *testing.T) {
	inLab(t, 6, func(t *testing.T, w *world) {
		before := map[string][]string{}
		for _, id := range w.ids() {
			before[id] = w.files(id)
		}
		tool := w.tool()
		h := w.far(6)
		doc, err := tool.halt(cutover.HaltAsk{Ask: tool.ask(), Height: h})
		if err != nil {
			t.Fatal(err)
		}
		if doc.Outcome != rolling.OutcomeDone || doc.Spread == nil || *doc.Spread > 60 || len(doc.Hosts) != 6 {
			t.Errorf("%+v", doc)
		}
		for _, n := range doc.Hosts {
			if n.StopHeight == nil || *n.StopHeight < h || n.Flushed == nil || !*n.Flushed || n.RestartPolicy != "no" || n.State != cutover.Finished {
				t.Errorf("%+v", n)
			}
			w.down(n.ID)
		}
		w.stays()
		tool.exit()
		tool = w.tool()
		out, err := tool.release(cutover.ReleaseAsk{Ask: tool.ask(), Image: "qnet:v2"})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range out.Hosts {
			if n.State != cutover.Finished || len(n.Milestones) != 5 {
				t.Errorf("%+v", n)
			}
			for _, m := range n.Milestones {
				if m.Verdict != "pass" {
					t.Errorf("%s: %+v", n.ID, m)
				}
			}
		}
		for _, id := range w.ids() {
			w.runs(id, "v2")
			w.kept(id, before[id])
		}
		w.healthy()
		w.clean()
	})
}

// stays asserts that a halted fleet stays halted: through restarts of every engine,
// a boot of a host, and time (invariant 12).
func (w *world) stays() {
	w.Helper()
	for i, id := range w.ids() {
		fault := "engine-restart"
		if i == 1 {
			fault = "reboot"
		}
		w.inject(id, fault, "")
	}
	time.Sleep(30 * time.Second)
	for _, id := range w.ids() {
		w.down(id)
	}
}

// kept asserts that no file of a data directory is gone.
func (w *world) kept(id string, before []string) {
	w.Helper()
	now := w.files(id)
	for _, f := range before {
		if !slices.Contains(now, f) {
			w.Errorf("%s: file %s of its data is gone", id, f)
		}
	}
}
