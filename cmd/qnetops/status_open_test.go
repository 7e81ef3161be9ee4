package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
)

// TestStatusNamesOpenOperations: whoever looks at the fleet learns of what was left midway and how it goes on. An operation of
// another fleet is none of its, a finished one is not named, and a journal that cannot be read hides no node.
func TestStatusNamesOpenOperations(t *testing.T) {
	t.Parallel()
	l, err := startProcessLab(lab.Config{Nodes: 1, Block: 20 * time.Millisecond, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	hosts := filepath.Join(l.Dir(), lab.HostsFile)
	inv, err := fleet.Load(hosts)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state.db")
	line := []string{"status", "--hosts", hosts, "--state", state}
	if open := answer(t, exitDone, "status", "--hosts", hosts)["open_operations"].([]any); len(open) != 0 {
		t.Errorf("without a journal: %v", open)
	}
	if open := answer(t, exitDone, line...)["open_operations"]; open != nil {
		t.Errorf("a journal that was named and is not there says %v", open)
	}
	db, store, err := openJournal(t.Context(), globals{state: state})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(of string, end journal.State) string {
		op, err := store.Begin(t.Context(), journal.Spec{Kind: "roll", Fleet: of, Operator: "ann", Epoch: 1})
		if err == nil {
			err = op.Finish(t.Context(), end, "over")
		}
		if err != nil {
			t.Fatal(err)
		}
		return op.ID()
	}
	begin(inv.Name, journal.Done)
	begin("another", journal.Stopped)
	left := begin(inv.Name, journal.Stopped)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	open := answer(t, exitDone, line...)["open_operations"].([]any)
	if len(open) != 1 || open[0].(map[string]any)["id"] != left || open[0].(map[string]any)["operator"] != "ann" {
		t.Errorf("%v, want %s alone", open, left)
	}
	s, out, errs := testStreams(t)
	if code := Main(t.Context(), append([]string{"qnetops"}, line...), s); code != exitDone || !strings.Contains(out.String(), "qnetops resume "+left) {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	line[len(line)-1] = l.Dir() // no file
	s, out, errs = testStreams(t)
	if code := Main(t.Context(), append([]string{"qnetops"}, line...), s); code != exitDone || !strings.Contains(out.String(), "001") ||
		!strings.Contains(errs.String(), "whether an operation is unfinished is not known") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}
