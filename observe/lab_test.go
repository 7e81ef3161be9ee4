package observe_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
)

// open starts a lab in memory, waits until it seals, and connects to it.
func open(t *testing.T, block time.Duration) (*lab.Lab, *fleet.Fleet) {
	t.Helper()
	l, err := lab.New(lab.Config{Nodes: 6, Block: block, Dir: t.TempDir(), History: 90 * 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitHeight(t.Context(), 90*12+100); err != nil {
		t.Fatal(err)
	}
	path, err := l.WriteFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inv, err := fleet.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fleet.Open(t.Context(), inv, nil, fleet.Options{Dial: l.Dial, Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return l, f
}

// TestOnLab looks at a whole fleet over SSH, healthy and with each fault that a
// view must name.
func TestOnLab(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a whole lab")
	}
	synctest.Test(t, func(t *testing.T) {
		const block = time.Second
		l, f := open(t, block)
		look := func() observe.View {
			v, err := observe.Observe(t.Context(), f, observe.Options{Signers: true})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		v := look()
		if v.Verdict != observe.Healthy {
			t.Fatalf("%s %q", v.Verdict, v.Reasons)
		}
		n := v.Node("006")
		if n.NodeID == "" || n.Build == nil || n.Container == nil || n.Container.Digest == "" || n.Disk == nil || n.ClockOffset == nil || n.Container.StartedAt == nil {
			t.Errorf("006: %+v, faults %v", n, n.Faults)
		}
		if v.Seal == nil || len(v.Seal.Committee) != 6 || v.Seal.Quorum != 5 || len(v.Seal.Signers) != 6 {
			t.Errorf("seal %+v", v.Seal)
		}
		if voters, err := observe.Quorum(t.Context(), f, "003"); err != nil || voters.Count != 5 || !voters.Enough() {
			t.Errorf("voters %+v %v", voters, err)
		}
		for _, c := range []struct {
			kind, arg string
			after     time.Duration
			node      observe.State
			fleet     observe.State
		}{
			{"fork", "", 2 * block, observe.Fork, observe.Fork},
			{"lag", "20", 30 * block, observe.Behind, observe.Behind},
			{"lie-height", "1000", 2 * block, observe.StateUnknown, observe.StateUnknown},
			{"ratelimit", "", 2 * block, observe.StateUnknown, observe.StateUnknown},
			{"hang-health", "", 2 * block, observe.Healthy, observe.Healthy},
			{"isolate", "", 40 * block, observe.Isolated, observe.Behind},
			{"stop", "", 2 * block, observe.Down, observe.Behind},
		} {
			if err := l.Inject("003", c.kind, c.arg); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.after) // the fake clock of synctest
			v := look()
			if n := v.Node("003"); n.Verdict != c.node || v.Verdict != c.fleet {
				t.Errorf("%s: node %s, fleet %s, want %s, %s: %q %q", c.kind, n.Verdict, v.Verdict, c.node, c.fleet, n.Reasons, v.Reasons)
			}
			if err := l.Clear("003", c.kind); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * block)
		}
	})
}
