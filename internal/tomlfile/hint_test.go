package tomlfile_test

import (
	"testing"

	"github.com/qnetops/qnetops/internal/tomlfile"
)

// TestHintCountsLines: what is to be mended are lines, and one line may have several faults; a key that is missing is a line too.
func TestHintCountsLines(t *testing.T) {
	at := func(lines ...int) (ps tomlfile.Problems) {
		for _, line := range lines {
			ps = append(ps, tomlfile.Problem{File: "hosts.toml", Line: line, What: "wrong"})
		}
		return ps
	}
	const one, all = "mend that line of hosts.toml", " of hosts.toml; they are all that is wrong"
	for _, c := range []struct {
		ps   tomlfile.Problems
		want string
	}{
		{at(), ""},
		{at(4), one},
		{at(4, 4), one},
		{at(4, 4, 7), "mend the 2 lines" + all},
		{at(1, 2, 3, 4, 5, 5), "mend the 5 lines" + all},
		{at(0, 0, 3), "mend the 3 lines" + all},
	} {
		if got := c.ps.Hint(); got != c.want {
			t.Errorf("%v: %q, want %q", c.ps, got, c.want)
		}
	}
}
