package cutover_test

import (
	"errors"
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

// TestUnbarWaitsForANodeThatIsStarting: a node that was started anew just before the
// moment changes once it has come up, for before that it does not flush; the others
// run until then, for it waits for them.
func TestUnbarWaitsForANodeThatIsStarting(t *testing.T) {
	inOpened(t, func(t *testing.T, w *world, tool *tool, ask cutover.UnbarAsk, build string) {
		tool.when(cutover.Go, "begun", func() { w.again("003") })
		seen := 0
		was := tool.emit
		tool.emit = func(e rolling.Event) {
			was(e)
			if e.Kind != rolling.KindStep || e.Name != "replace" || e.State != "done" {
				return
			}
			for _, c := range w.all(e.Node) {
				if strings.Contains(c.Name, "-pre-") {
					if seen++; c.ExitCode != 0 {
						t.Errorf("%s: %s, want it flushed", e.Node, names(w.all(e.Node)))
					}
				}
			}
		}
		if doc, err := tool.unbar(ask); err != nil || doc.Outcome != rolling.OutcomeDone || seen != len(survivors) {
			t.Fatalf("%d seen, %+v\n%v", seen, doc, err)
		}
		w.clean()
	})
}

// TestUnbarTakenBackWithoutALostHost: a host that is lost before the moment keeps the
// operation open, by name, until a person passes it by.
func TestUnbarTakenBackWithoutALostHost(t *testing.T) {
	inOpened(t, func(t *testing.T, w *world, tool *tool, ask cutover.UnbarAsk, build string) {
		tool.dieAt(cutover.Hold, "done")
		if _, err := tool.unbar(ask); err == nil {
			t.Fatal("the process did not die")
		}
		op := tool.op()
		tool.exit()
		w.inject("003", "drop-ssh", "hold")
		tool = w.tool()
		_, err := tool.ops().Abort(tool.ctx, op)
		var hint interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), "003") || !errors.As(err, &hint) ||
			!strings.Contains(hint.Hint(), "--waive members=REASON") {
			t.Fatalf("got %v", err)
		}
		tool.exit()
		tool = w.tool()
		defer tool.exit()
		if doc, err := tool.ops(because).Resume(tool.ctx, op); err != nil || doc.Outcome != "aborted" || tool.unfinished() != "" {
			t.Fatalf("%+v\n%v", doc, err)
		}
		for _, id := range survivors {
			if id != "003" && len(w.all(id)) != 1 {
				t.Errorf("%s: %s", id, names(w.all(id)))
			}
		}
		w.clean()
	})
}
