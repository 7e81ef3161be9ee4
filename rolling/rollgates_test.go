package rolling_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// TestRollChecksGates: what the gates refuse is found before a host is changed,
// and a build that agrees with the running ones is rolled.
func TestRollChecksGates(t *testing.T) {
	inLab(t, lab.Config{Nodes: 5, Block: fast}, func(t *testing.T, w *world) {
		source := func(height string) string {
			path := filepath.Join(t.TempDir(), "feature_gates.rs")
			text := "pub mod id { pub const RULE: &str = \"some_rule\"; }\npub const RULE_GATE_HEIGHT: u64 = " + height +
				";\nconst ACTIVATIONS: &[(&str, u64)] = &[\n    (id::RULE, RULE_GATE_HEIGHT),\n];\n"
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		old := source("604_800")
		tool := w.tool()
		defer tool.Exit()

		spec := tool.spec("qnet:v2")
		spec.Gates = rolling.GatesFromFiles{Old: old, Now: source("14_400")}
		mark := len(w.Lab.Requests())
		_, err := tool.roll(spec)
		w.MustRefuse(err, "gates", "too_near")
		for _, id := range w.IDs() {
			w.runs(id, "v1")
		}
		for _, r := range w.Lab.Requests()[mark:] {
			if r.Method == "POST" && (strings.Contains(r.Path, "/stop") || strings.Contains(r.Path, "/create")) {
				t.Errorf("a refused roll asked an engine for %s", r)
			}
		}

		spec.Gates = rolling.GatesFromFiles{Old: old, Now: old}
		if _, err := tool.roll(spec); err != nil {
			t.Fatal(err)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v2")
		}
	})
}
