package lease_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/qnetops/qnetops/lease"
)

// The document's table of exit codes is the one in the code.
func TestDocumentedCodes(t *testing.T) {
	text, err := os.ReadFile("../docs/lease.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[lease.Code]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[1])
		seen[lease.Code(n)] = true
		if want := lease.Code(n).Meaning(); m[2] != want {
			t.Errorf("docs/lease.md says of %d %q, the code %q", n, m[2], want)
		}
	}
	for c := lease.Code(1); c < 256; c++ {
		if c.Meaning() != "" && !seen[c] {
			t.Errorf("docs/lease.md lacks the code %d", c)
		}
	}
}
