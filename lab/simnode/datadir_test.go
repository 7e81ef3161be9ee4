package simnode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inventory lists the files of a data directory with their sizes.
func inventory(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = info.Size()
	}
	return files
}

func TestDataDirHoldsADatabase(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 100)
		n := l.nodes[l.ids[0]]
		n.term()
		before := inventory(t, n.dir)
		for _, name := range []string{"CURRENT", "MANIFEST-000001", "IDENTITY", "OPTIONS-000005", "blocks.jsonl", "macroblocks.jsonl", "meta.json", "signed-mark.json"} {
			if before[name] == 0 {
				t.Errorf("%s is missing or empty: %v", name, before)
			}
		}
		if _, ok := before["LOCK"]; !ok {
			t.Error("no LOCK")
		}
		if raw, err := os.ReadFile(filepath.Join(n.dir, "CURRENT")); err != nil || strings.TrimSpace(string(raw)) != "MANIFEST-000001" {
			t.Errorf("CURRENT %q, %v", raw, err)
		}
		// Renamed aside and put back, it is the same node's data.
		h := filepath.Join(filepath.Dir(n.dir), "aside")
		if err := os.Rename(n.dir, h); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(h, n.dir); err != nil {
			t.Fatal(err)
		}
		l.hub.Cut(n.id)
		n.start()
		l.blocks(2)
		if got := n.heightNow(); got < 400 {
			t.Errorf("height %d", got)
		}
		for name := range before {
			if _, ok := inventory(t, n.dir)[name]; !ok && name != fileClean {
				t.Errorf("%s went away", name)
			}
		}
	})
}

// TestEntryPointWipesABrokenDatabase: whoever deletes CURRENT or the MANIFEST by hand loses everything at the next start.
func TestEntryPointWipesABrokenDatabase(t *testing.T) {
	for _, victims := range [][]string{{"CURRENT"}, {"MANIFEST-000001"}, {"CURRENT", "MANIFEST-000001"}} {
		bubble(t, 5, 0, nil, func(t *testing.T, l *labNet) {
			l.start(l.ids...)
			l.blocks(upBlocks + 60)
			n := l.nodes[l.ids[0]]
			n.term()
			for _, v := range victims {
				if err := os.Remove(filepath.Join(n.dir, v)); err != nil {
					t.Fatal(err)
				}
			}
			l.hub.Cut(n.id)
			n.start()
			l.blocks(2)
			if h := n.heightNow(); h != 0 || n.out.count("[entrypoint]") != 1 {
				t.Errorf("%v: height %d, log\n%s", victims, h, n.out)
			}
			n.halt()
			n.start() // what it founded anew is whole again
			l.blocks(1)
			if n.out.count("[entrypoint]") != 1 {
				t.Errorf("%v: wiped twice", victims)
			}
		})
	}
	// Without database files there is nothing to judge: a directory with a mark and no chain is left alone.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if wiped, err := enterImage(dir); wiped || err != nil {
		t.Errorf("wiped %v, %v", wiped, err)
	}
	if left := inventory(t, dir); len(left) != 1 || left["note.txt"] != 4 {
		t.Errorf("left %v", left)
	}
}
