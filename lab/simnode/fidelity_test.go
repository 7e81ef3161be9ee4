package simnode

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFidelityTable: every test named in lab/FIDELITY.md exists, and every row
// names one.
func TestFidelityTable(t *testing.T) {
	raw, err := os.ReadFile("../FIDELITY.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9]+)`")
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	have := map[string]bool{}
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, own...) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, fn := range declared.FindAllStringSubmatch(string(src), -1) {
			room := filepath.Base(filepath.Dir(file))
			if room == ".." {
				room = "lab"
			}
			have[room+"."+fn[1]] = true
		}
	}
	rows := 0
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| Fact") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test in row %q", line)
		}
		for _, m := range tests {
			if !have[m[1]+"."+m[2]] {
				t.Errorf("no test %s.%s", m[1], m[2])
			}
		}
	}
	if rows < 40 {
		t.Errorf("%d rows read", rows)
	}
}
