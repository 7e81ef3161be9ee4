package cutover_test

import (
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

// TestDecreeBelowOneFloor: one host that holds more final than the target is enough
// to refuse a decree, by name, before anything is sent.
func TestDecreeBelowOneFloor(t *testing.T) {
	inLab(t, 5, func(t *testing.T, w *world) {
		w.inject("005", "isolate", "") // the others go on without it
		tool := w.tool()
		target := w.certified("005")
		sigs := tool.endorse(1, target)
		w.Blocks(200)
		posts := w.posts()
		ask := cutover.DecreeAsk{Ask: tool.ask(needed), Seq: 1, Target: target, Sigs: sigs}
		ask.Hosts, ask.Skipped = []string{"004", "005"}, []string{"001", "002", "003"}
		_, err := tool.decree(ask)
		w.mustRefuse(err, "certified_floor", "004")
		if posts.Load() != 0 || tool.unfinished() != "" {
			t.Errorf("handed over %d times, operation %q", posts.Load(), tool.unfinished())
		}
		w.clean()
	})
}

// TestUnbarTakenBack: until the moment has come everything can be taken back by
// another process; from then on abort refuses and says what leads on.
func TestUnbarTakenBack(t *testing.T) {
	inOpened(t, func(t *testing.T, w *world, tool *tool, ask cutover.UnbarAsk, build string) {
		before := map[string]string{}
		for _, id := range survivors {
			before[id] = w.node(id).ID
		}
		tool.dieAt(cutover.Hold, "done")
		if _, err := tool.unbar(ask); err == nil {
			t.Fatal("the process did not die")
		}
		tool.exit()
		tool = w.tool()
		if doc, err := tool.ops().Abort(tool.ctx, tool.unfinished()); err != nil || doc.Outcome != "aborted" {
			t.Fatalf("%+v %v", doc, err)
		}
		for _, id := range survivors {
			if c := w.node(id); c.ID != before[id] || c.State != "running" || len(w.all(id)) != 1 {
				t.Errorf("%s: %s", id, names(w.all(id)))
			}
		}
		tool.dieAt(cutover.Go, "done")
		if _, err := tool.unbar(ask); err == nil {
			t.Fatal("the process did not die")
		}
		tool.exit()
		tool = w.tool()
		open := tool.unfinished()
		_, err := tool.ops().Abort(tool.ctx, open)
		w.mustRefuse(err, "point_of_no_return", "qnetops resume "+open)
		if doc, err := tool.ops().Resume(tool.ctx, open); err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		for _, id := range survivors {
			if c := w.all(id); len(c) != 1 || !strings.Contains(strings.Join(c[0].Env, " "), "QNET_BUILD_ID="+build) {
				t.Errorf("%s: %s", id, names(c))
			}
		}
		w.sealing(survivors...)
		w.clean()
	})
}

// TestRestartFromAStoppedArchive: where finality is forged the chain runs on and
// prunes, so the archive host is stopped at once after its check. It serves the
// restart from there, and is not started before the release.
func TestRestartFromAStoppedArchive(t *testing.T) {
	inLab(t, 6, func(t *testing.T, w *world) {
		const archive = "002"
		tool := w.tool()
		v := tool.values(nil)
		v.Forged = true
		w.Blocks(300) // sealed on, by whatever forged it
		ask := tool.restartAsk(v, soon())
		checked, err := ask.CheckArchive(tool.ctx, archive, 3)
		if err != nil || !checked.Serves() {
			t.Fatalf("%+v %v", checked.Checks, err)
		}
		if err := w.host(archive).Engine().StopContainer(w.host(archive).Spec().Container); err != nil {
			t.Fatal(err)
		}
		w.Blocks(300)
		stopped := w.node(archive).StartedAt
		_, err = tool.restart(ask)
		w.mustRefuse(err, "archive", archive) // no check was made before it was stopped
		ask.Checked = checked
		doc, err := tool.restart(ask)
		if err != nil || doc.Outcome != rolling.OutcomeDone {
			t.Fatalf("%+v %v", doc, err)
		}
		for _, e := range w.changes() {
			if strings.Contains(e, archive) && strings.Contains(e, "start") && strings.Contains(e, "pre-") {
				t.Errorf("the old container was started: %s", e)
			}
		}
		if w.node(archive).StartedAt.Equal(stopped) {
			t.Error("the archive host was not started on the release")
		}
		w.sealing(survivors...)
		w.clean()
	})
}

// TestRestartWithoutArchive: an archive host that is down, has no snapshot or cannot
// read what it holds is refused with nothing changed.
func TestRestartWithoutArchive(t *testing.T) {
	inStalled(t, func(t *testing.T, w *world, tool *tool, v cutover.RestartValues) {
		const archive = "002"
		before := len(w.changes())
		for _, fault := range []string{"stop", "no-snapshot", "storage-error"} {
			w.inject(archive, fault, "")
			w.Blocks(20)
			_, err := tool.restart(tool.restartAsk(v, soon()))
			w.mustRefuse(err, "archive", "")
			w.Clear(archive, fault)
			w.Blocks(400) // it has come up, where it was down
		}
		if now := w.changes(); len(now) > before || tool.unfinished() != "" {
			t.Errorf("changed: %q, open: %q", now[before:], tool.unfinished())
		}
		w.clean()
	})
}
