package observe

import (
	"testing"
	"time"
)

// On a chain of two-second blocks a window of 90 blocks took 180 s: a node that
// was restarted 100 s ago was restarted in it, whatever the block time says.
func TestARestartOnASlowChainIsSeen(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	started, height := now.Add(-100*time.Second), uint64(980)
	in := VoterInput{Now: now, Block: time.Second, Pace: 2 * time.Second, Tip: height,
		Committee: Committee{Index: 10, Members: []string{"a"}, Quorum: 1}, Signers: map[uint64][]string{10: {"a"}},
		Hosts: []VoterReading{{HostID: "001", NodeID: "a", Reachable: true, Height: &height, StartedAt: &started}}}
	// Height 980 is block 80 of window 11, which began 160 s ago.
	if v := CountVoters(in); v.Count != 0 {
		t.Errorf("counted: %+v", v.Counted)
	}
	in.Pace = 0
	if v := CountVoters(in); v.Count != 1 {
		t.Errorf("at one block a second the window began 80 s ago: %+v", v.Counted)
	}
}
