package cutover_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/rolling"
)

// TestUnbarAtOneMoment: after a restart the fleet changes to an image that keeps
// the pin and bars nobody, all nodes at the time that was named.
func TestUnbarAtOneMoment(t *testing.T) {
	inLab(t, 6, func(t *testing.T, w *world) {
		w.T = t
		w.stall()
		tool := w.tool()
		defer tool.exit()
		v := tool.values(nil)
		if _, err := tool.restart(tool.restartAsk(v, time.Now().Add(20*time.Minute))); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(manifest.Manifest{Restart: manifest.Restart{Excluded: []string{}}, Pin: v.Manifest.Pin})
		if err != nil {
			t.Fatal(err)
		}
		image, err := w.lab.AddImage("open", raw)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(10 * time.Minute).Truncate(time.Second)
		ask := cutover.UnbarAsk{Ask: cutover.Ask{Hosts: survivors, Skipped: []string{"005", "006"}, At: time.Now().Add(-time.Minute)}, Image: image.Ref, Identities: v.Manifest.Restart.Excluded}
		ops := tool.ops()
		p, err := ops.ProposeUnbar(tool.ctx, ask)
		if err != nil {
			t.Fatal(err)
		}
		w.mustRefuse(p.Refused(), "start_time", "ago")
		ask.At = at
		if p, err = ops.ProposeUnbar(tool.ctx, ask); err != nil || p.Refused() != nil {
			t.Fatalf("%v, %v", err, p.Refused())
		}
		doc, err := ops.Unbar(tool.ctx, ask, p.Plan)
		if tool.note(doc, err) != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		var first, last time.Time
		for _, id := range survivors {
			c := w.all(id)
			if len(c) != 1 || c[0].State != "running" || !strings.Contains(strings.Join(c[0].Env, " "), "QNET_BUILD_ID="+image.Build) {
				t.Errorf("%s: %s", id, names(c))
				continue
			}
			if s := c[0].StartedAt; first.IsZero() || s.Before(first) {
				first = s
			}
			if s := c[0].StartedAt; s.After(last) {
				last = s
			}
		}
		if first.Before(at) || last.Sub(first) > time.Minute {
			t.Errorf("started from %s to %s, named was %s", first, last, at)
		}
		w.clean()
	})
}
