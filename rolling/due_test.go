package rolling

import (
	"slices"
	"testing"
)

// TestDueCertificatesAreTheNewest: a node that is looked at long after its start is
// judged by what it seals now, not by a walk through everything since.
func TestDueCertificatesAreTheNewest(t *testing.T) {
	fetched := map[uint64]bool{}
	for round := uint64(0); round < 3; round++ {
		newest := 580 + round
		got := due(fetched, 5, newest)
		if len(got) == 0 || got[0] != newest || !slices.IsSortedFunc(got, func(a, b uint64) int { return int(b) - int(a) }) {
			t.Fatalf("round %d: %v, want %d first", round, got, newest)
		}
		for _, index := range got {
			if fetched[index] {
				t.Errorf("window %d is asked for twice", index)
			}
			fetched[index] = true
		}
	}
	if got := due(map[uint64]bool{1: true}, 0, 1); len(got) != 0 {
		t.Errorf("window 0 has no certificate: %v", got)
	}
	if got := due(map[uint64]bool{}, 7, 6); len(got) != 0 {
		t.Errorf("nothing is sealed above the restart yet: %v", got)
	}
}
