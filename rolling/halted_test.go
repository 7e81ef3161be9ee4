package rolling_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// TestRecoveryHalted: refused while the chain moves; on a chain that stands M3
// and M4 are skipped, the old containers stay, and finish removes them.
func TestRecoveryHalted(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		spec := tool.spec("qnet:v2")
		spec.RecoveryHalted = true
		_, err := tool.roll(spec)
		w.MustRefuse(err, "recovery_halted", "went from height")
		tool.Exit()

		for _, id := range w.IDs() {
			w.Inject(id, "stop-producing", "")
		}
		w.Blocks(100)
		tool = w.tool()
		_, err = tool.roll(tool.spec("qnet:v2"))
		w.MustRefuse(err, "fleet", "--recovery-halted is the mode for that")
		down := w.watchDown()
		doc, err := tool.roll(spec)
		if err != nil {
			t.Fatal(err)
		}
		if down.worst != 1 || !slices.Equal(down.order, w.IDs()) {
			t.Errorf("order %v, %d down at once", down.order, down.worst)
		}
		for _, id := range w.IDs() {
			n := nodeOf(doc, id)
			if n.Outcome != rolling.NodeRolled || verdict(n, "M2") != "pass" || verdict(n, "M3") != "skipped" || verdict(n, "M4") != "skipped" || !strings.Contains(n.Reason, "--finish") {
				t.Errorf("%+v", n)
			}
			if got := w.Nodes(id); len(got) != 2 || len(w.Running(id)) != 1 || !rollingtest.IsImage(w.Running(id)[0], "v2") {
				t.Errorf("%s: %s, want the old one kept", id, rollingtest.Names(got))
			}
		}
		done := tool.Op()
		tool.Exit()
		w.finishKept(done)
		for _, id := range w.IDs() {
			w.runs(id, "v2")
			w.archived(id, 1)
		}
		w.Clean()
	})
}

// finishKept is the command `qnetops roll --finish OP`.
func (w *world) finishKept(of string) {
	w.Helper()
	tool := w.tool()
	defer tool.Exit()
	doc, err := tool.Ops().Finish(w.Context(), of)
	if err != nil || len(doc.Nodes) != 4 {
		w.Errorf("finish: %+v, %v", doc, err)
	}
}

// TestInvariant3OldContainerStays: while a node is held the old container is
// there, stopped, with restart policy no; restore puts it back by itself, without
// the journal that knows why.
func TestInvariant3OldContainerStays(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		var early []string
		w.Lab.OnEngineRequest(func(host, method, path string) {
			if method == "DELETE" {
				early = append(early, host+" "+path)
			}
		})
		tool := w.tool()
		_, err := tool.roll(tool.spec("qnet:mute", "002"))
		w.stopped(err, "002", "M3")
		if len(early) > 0 {
			t.Errorf("removed before every milestone passed: %q", early)
		}
		for _, c := range w.Nodes("002") {
			if strings.Contains(c.Name, "-pre-") && (c.State != "exited" || c.RestartPolicy != "no") {
				t.Errorf("set aside: %+v", c)
			}
		}
		tool.Exit()

		lost := w.toolAt("new.db") // the operator's state is gone
		var fenced *host.FencedError
		if _, err := lost.restore("002"); !errors.As(err, &fenced) {
			t.Errorf("the host is of another store: %v", err)
		}
		lost.Exit()
		for _, id := range w.IDs() { // what breaking the lease will do
			os.Remove(filepath.Join(w.Host(id).Root(), host.DefaultStateDir, "fence.json"))
		}
		lost = w.toolAt("new.db")
		result, err := lost.restore("002")
		if err != nil || result.Outcome != rolling.NodeRestored || verdict(result, "M2") != "pass" {
			t.Fatalf("%+v %v", result, err)
		}
		if got := w.Running("002"); len(got) != 1 || !rollingtest.IsImage(got[0], "v1") || got[0].RestartPolicy != "always" {
			t.Errorf("running %+v", got)
		}
		lost.Exit()
		if _, err := w.tool().restore("003"); !errors.As(err, new(*rolling.NothingAsideError)) {
			t.Errorf("nothing is aside on 003: %v", err)
		}
		w.Clean()
	})
}

// TestRestoreInTheMiddle: the ordinary way back needs no more than the node's id,
// also while its operation is open; abort then ends that operation.
func TestRestoreInTheMiddle(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		_, err := tool.roll(tool.spec("qnet:mute", "002", "003"))
		stop := w.stopped(err, "002", "M3")
		tool.Exit()
		tool = w.tool()
		if result, err := tool.restore("002"); err != nil || result.Outcome != rolling.NodeRestored {
			t.Fatalf("%+v %v", result, err)
		}
		tool.Exit()
		w.abortAll(stop.Operation)
		w.Clean()
	})
}

// lockedBuffer collects what several goroutines say.
type lockedBuffer struct {
	mu  sync.Mutex
	all []byte
}

func (b *lockedBuffer) write(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, p...)
}

// TestInvariant7SecretsStayOnTheirHost: the sentinel values are found in nothing
// that leaves a host: journal, events, documents, plans, errors, agent output.
func TestInvariant7SecretsStayOnTheirHost(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		var out lockedBuffer
		w.Lab.OnAgentOutput(func(_ string, line []byte) { out.write(line) })
		for _, tag := range []string{"crash", "gap", "v2"} {
			tool := w.tool()
			spec := tool.spec("qnet:"+tag, "002")
			_, err := tool.roll(spec)
			if tag == "v2" && err != nil {
				t.Fatal(err)
			}
			tool.Exit()
			if tag != "v2" {
				w.abortAll(w.stopped(err, "002", "").Operation)
			}
		}
		files, err := filepath.Glob(filepath.Join(w.Dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out.write(raw)
		}
		for _, e := range w.Events() {
			w.Note(e)
		}
		for _, text := range w.Said() {
			out.write([]byte(text))
		}
		if len(files) < 4 || !bytes.Contains(out.all, []byte("QNET_WALLET_SEED")) || !bytes.Contains(out.all, []byte("stop_old")) {
			t.Fatalf("the search looked at too little: %v", files)
		}
		for name, value := range lab.Sentinels() {
			if at := bytes.Index(out.all, []byte(value)); at >= 0 {
				t.Errorf("the value of %s got out: …%s…", name, out.all[max(0, at-200):min(len(out.all), at+60)])
			}
		}
		w.Clean()
	})
}
