package cutover_test

import (
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/rolling"
)

// inOpened runs fn with a fleet that has restarted and the wish to let the barred
// ones back, all nodes at one moment.
func inOpened(t *testing.T, fn func(t *testing.T, w *world, tool *tool, ask cutover.UnbarAsk, build string)) {
	t.Helper()
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		if _, err := tool.restart(tool.restartAsk(v, soon())); err != nil {
			t.Fatal(err)
		}
		tool.exit()
		image := w.image("open", manifest.Manifest{Restart: manifest.Restart{Excluded: []string{}}, Pin: v.Manifest.Pin})
		tool = w.tool()
		fn(t, w, tool, cutover.UnbarAsk{Ask: cutover.Ask{Hosts: survivors, Skipped: []string{"005", "006"}, At: time.Now().Add(10 * time.Minute).Truncate(time.Second)},
			Image: image.Ref, Identities: v.Manifest.Restart.Excluded}, image.Build)
	})
}

// TestUnbarAtOneMoment: after a restart the fleet changes to an image that keeps
// the pin and bars nobody, all nodes at the time that was named.
func TestUnbarAtOneMoment(t *testing.T) {
	inOpened(t, func(t *testing.T, w *world, tool *tool, ask cutover.UnbarAsk, build string) {
		late := ask
		late.At = time.Now().Add(-time.Minute)
		_, err := tool.unbar(late)
		w.mustRefuse(err, "start_time", "ago")
		doc, err := tool.unbar(ask)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v\n%v", doc, err)
		}
		var first, last time.Time
		for _, id := range survivors {
			c := w.all(id)
			if len(c) != 1 || c[0].State != "running" || !strings.Contains(strings.Join(c[0].Env, " "), "QNET_BUILD_ID="+build) {
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
		if first.Before(ask.At) || last.Sub(first) > time.Minute {
			t.Errorf("started from %s to %s, named was %s", first, last, ask.At)
		}
		w.clean()
	})
}
