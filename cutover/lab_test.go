package cutover_test

import (
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
