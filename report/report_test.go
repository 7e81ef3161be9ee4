package report_test

import (
	"strings"
	"testing"

	"github.com/qnetops/qnetops/report"
)

// Every cell must come out whole and in its own column: an operator copies
// digests and reasons from here.
func TestTableKeepsCellsWholeAndAligned(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	table := report.Table{Head: []string{"node", "digest", "why"}}
	table.Add("001", digest, "ok")
	table.Add("genesis-2", "-")
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("want 3 lines, got %d:\n%s", len(lines), b.String())
	}
	if !strings.Contains(lines[1], digest) {
		t.Errorf("digest was cut: %q", lines[1])
	}
	col := strings.Index(lines[0], "DIGEST")
	if col < 0 || strings.Index(lines[1], digest) != col || lines[2][col] != '-' {
		t.Errorf("columns do not line up:\n%s", b.String())
	}
}
