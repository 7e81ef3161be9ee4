package cutover_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the journal's store

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// down asserts that a host's node has halted and can be started by nothing but a
// person.
func (w *world) down(id string) {
	w.Helper()
	c := w.node(id)
	if c.State != "exited" || c.ExitCode != 0 || c.RestartPolicy != "no" || !slices.ContainsFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, "QNET_HALT_HEIGHT=") }) {
		w.Errorf("%s: %s, want it halted", id, names(w.all(id)))
	}
}

// runs asserts that one container is left on a host, that it runs an image with
// the policy it had, and carries no halt height.
func (w *world) runs(id, tag string) {
	w.Helper()
	got := w.all(id)
	c := w.node(id)
	if len(got) != 1 || c.State != "running" || c.RestartPolicy != "always" || !slices.Contains(c.Env, "QNET_BUILD_ID="+lab.BuildID(tag)) ||
		slices.ContainsFunc(c.Env, func(e string) bool { return strings.HasPrefix(e, "QNET_HALT_HEIGHT=") }) {
		w.Errorf("host %s: %s, want one that runs %s", id, names(got), tag)
	}
}

// far is a height that leaves time to arm n nodes.
func (w *world) far(n int) uint64 { return w.tip() + uint64(2*n+1)*rolling.ExpectedNode }

// files lists every file below a host's data directory but those the node
// rewrites, with nothing but its name.
func (w *world) files(id string) []string {
	w.Helper()
	root := filepath.Join(w.host(id).Root(), w.host(id).Spec().DataPath)
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// sealing asserts that on each of these hosts the newest seal rises, twice.
func (w *world) sealing(ids ...string) {
	w.Helper()
	tool := w.tool()
	defer tool.exit()
	first := map[string]uint64{}
	for range 120 {
		risen := 0
		for _, id := range ids {
			pos, err := tool.client(id).Position(tool.ctx)
			if err != nil {
				continue // it may be starting
			}
			if _, known := first[id]; !known {
				first[id] = pos.LastSealed
			}
			if pos.LastSealed >= first[id]+2 {
				risen++
			}
		}
		if risen == len(ids) {
			return
		}
		w.Blocks(10)
	}
	w.Errorf("seals do not rise on all of %v: %v at first", ids, first)
}

// inventory asserts that no file of a data directory is gone: each stands where it
// was or in a directory that was set aside, and none that is only appended to is
// shorter there.
func (w *world) inventory(before map[string]map[string]int64) {
	w.Helper()
	for id, files := range before {
		now := w.dataFiles(id)
		for name, size := range files {
			if filepath.Base(name) == "CLEAN" {
				continue // the node's own mark of a flush, taken away by its next start
			}
			top, rest, _ := strings.Cut(name, string(filepath.Separator))
			there := false
			for path, is := range now {
				dir, inside, _ := strings.Cut(path, string(filepath.Separator))
				appended := strings.HasSuffix(rest, ".jsonl")
				there = there || inside == rest && strings.HasPrefix(dir, top) && (!appended || is >= size)
			}
			if !there {
				w.Errorf("%s: %s with %d bytes is gone or shorter: %v", id, name, size, now)
			}
		}
	}
}

// blockBytes is how long the file of a node's blocks is up to a height.
func (w *world) blockBytes(id string, height uint64) (size int64) {
	w.Helper()
	raw, err := os.ReadFile(filepath.Join(w.host(id).Root(), w.host(id).Spec().DataPath, "blocks.jsonl"))
	if err != nil {
		w.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var block struct {
			Height uint64 `json:"h"`
		}
		if err := json.Unmarshal(line, &block); err != nil {
			w.Fatal(err)
		}
		if block.Height <= height {
			size += int64(len(line))
		}
	}
	return size
}
