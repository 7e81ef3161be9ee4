package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

var start = time.Date(2026, 7, 5, 10, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// hash gives a hash of its own for every name.
func hash(name string) node.Hash {
	var h node.Hash
	copy(h[:], name)
	return h
}

// tipAt is the common chain's hash of a height.
func tipAt(h uint64) *node.Hash { return ptr(hash(fmt.Sprintf("block %d", h))) }

// good is a node in place: samples at the given heights, one block time apart.
func good(id string, heights ...uint64) NodeView {
	n := NodeView{
		ID: id, Role: "genesis", Reachable: true, NodeID: "genesis_node_" + id,
		Container: &ContainerView{Name: "qnet-genesis-" + id, State: "running", RestartCount: ptr(0), RestartPolicy: "always"},
		Build:     ptr("1111111"), ValidatedPeers: ptr(uint64(5)), LogLevel: ptr(""),
		LastSealed: ptr(uint64(10)), SealedLag: ptr(uint64(1)), UpdatersKnown: true,
		ClockOffset: ptr(time.Duration(0)), Disk: &DiskView{"/data", 1 << 40, 1 << 41},
	}
	for i, h := range heights {
		n.Samples = append(n.Samples, Sample{Round: i, At: start.Add(time.Duration(i) * time.Second), Height: h, TipHash: tipAt(h)})
	}
	if len(heights) > 0 {
		n.Height = ptr(heights[len(heights)-1])
	}
	n.Seals = []SealReading{{Round: len(heights), Index: 10, Hash: hash("mb 10")}}
	return n
}

// six is a healthy fleet, to which a case makes its change.
func six(edit func(nodes []NodeView)) View {
	v := View{Fleet: "test", Block: time.Second, TakenAt: start}
	for i := 1; i <= 6; i++ {
		v.Nodes = append(v.Nodes, good(fmt.Sprintf("%03d", i), 1000, 1001))
	}
	if edit != nil {
		edit(v.Nodes)
	}
	return v
}

func (n *NodeView) retip(heights ...uint64) {
	for i := range n.Samples {
		if slices.Contains(heights, n.Samples[i].Height) {
			n.Samples[i].TipHash = ptr(hash(fmt.Sprintf("other %d", n.Samples[i].Height)))
		}
	}
}

func (n *NodeView) resample(heights ...uint64) {
	id, seals := n.ID, n.Seals
	*n = good(id, heights...)
	n.Seals = seals
}

// silentNode is a node whose every question failed.
func silentNode(n *NodeView, err error) {
	n.Samples, n.Seals, n.Height, n.ValidatedPeers, n.SealedLag, n.LastSealed, n.Build = nil, nil, nil, nil, nil, nil, nil
	n.Faults = []Fault{{askPosition, err}, {askHealthz, err}, {askHealth, err}}
}

func TestJudge(t *testing.T) {
	limited := &node.RateLimitedError{Path: "/x", RetryAfter: 30 * time.Second}
	odd := &node.AnswerError{Path: "/x", Reason: "height is missing", Status: 200}
	refused := errors.New("connection refused")
	for name, c := range map[string]struct {
		edit  func([]NodeView)
		fleet State
		odd   map[string]State // nodes that are not healthy
		say   string           // in the fleet's reasons
	}{
		"healthy": {nil, Healthy, nil, ""},
		"behind by ten": {func(n []NodeView) { n[2].resample(990, 991) }, Behind,
			map[string]State{"003": Behind}, "10 blocks behind"},
		"nine is not behind": {func(n []NodeView) { n[2].resample(991, 992) }, Healthy, nil, "no height in common"},
		"fork at equal heights, twice": {func(n []NodeView) { n[2].retip(1000, 1001) }, Fork,
			map[string]State{"003": Fork}, "another tip hash than 5 nodes at height 1001"},
		"different once is not a fork yet": {func(n []NodeView) { n[2].retip(1001) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "read only once"},
		"different once, then equal": {func(n []NodeView) { n[2].retip(1000) }, Healthy, nil, ""},
		"fork in half marks both sides": {func(n []NodeView) {
			for i := range 3 {
				n[i].retip(1000, 1001)
			}
		}, Fork, map[string]State{"001": Fork, "002": Fork, "003": Fork, "004": Fork, "005": Fork, "006": Fork}, "3 nodes"},
		"sealed history differs, twice": {func(n []NodeView) {
			for i := range n {
				n[i].Seals = append(n[i].Seals, SealReading{Round: 3, Index: 10, Hash: hash("mb 10")})
			}
			n[4].Seals[0].Hash, n[4].Seals[1].Hash = hash("bad"), hash("bad")
		}, Fork, map[string]State{"005": Fork}, "another hash of macroblock 10"},
		"a bad seal that was refetched": {func(n []NodeView) {
			for i := range n {
				n[i].Seals = append(n[i].Seals, SealReading{Round: 3, Index: 10, Hash: hash("mb 10")})
			}
			n[4].Seals[0].Hash = hash("bad")
		}, Healthy, nil, ""},
		"equal hash, other committee fields, twice": {func(n []NodeView) {
			for i := range n {
				n[i].Seals = []SealReading{{2, 10, hash("mb 10"), ptr(hash("fields"))}, {3, 10, hash("mb 10"), ptr(hash("fields"))}}
			}
			n[1].Seals[0].Digest, n[1].Seals[1].Digest = ptr(hash("x")), ptr(hash("x"))
		}, Fork, map[string]State{"002": Fork}, "other committee fields"},
		"no common height, seals agree": {func(n []NodeView) { n[2].resample(1002, 1003) }, Healthy, nil, "no height in common"},
		"no common height, nothing sealed in common": {func(n []NodeView) { n[2].resample(1002, 1003); n[2].Seals = nil }, StateUnknown,
			map[string]State{"003": StateUnknown}, "nothing|no height and no sealed"},
		"tip hash not known, seals agree": {func(n []NodeView) { n[2].Samples[0].TipHash, n[2].Samples[1].TipHash = nil, nil }, Healthy, nil, "no height in common"},
		"isolated and gap 0": {func(n []NodeView) { n[2].ValidatedPeers = ptr(uint64(0)) }, Behind,
			map[string]State{"003": Isolated}, "no validated peer"},
		"rate limited": {func(n []NodeView) { silentNode(&n[2], limited) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "limits the rate"},
		"rate limited after good samples": {func(n []NodeView) { n[2].Faults = []Fault{{askPosition, limited}} }, StateUnknown,
			map[string]State{"003": StateUnknown}, "limits the rate"},
		"storage error on the macroblock": {func(n []NodeView) { n[2].Faults = []Fault{{askSeal, odd}} }, StateUnknown,
			map[string]State{"003": StateUnknown}, "height is missing"},
		"answer of another shape": {func(n []NodeView) { silentNode(&n[2], odd) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "height is missing"},
		"no answer in time": {func(n []NodeView) { silentNode(&n[2], fmt.Errorf("asking: %w", context.DeadlineExceeded)) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "no answer in time"},
		"health route hangs, node fine": {func(n []NodeView) {
			n[2].ValidatedPeers = nil
			n[2].Faults = []Fault{{askHealth, context.DeadlineExceeded}}
		}, Healthy, nil, "validated peers not known"},
		"health route hangs, sampled twice at one height": {func(n []NodeView) {
			n[2].resample(1001, 1001)
			n[2].ValidatedPeers = nil
		}, Healthy, nil, "validated peers not known"},
		"a fork names the drifting clock": {func(n []NodeView) {
			n[2].retip(1000, 1001)
			n[2].ClockOffset = ptr(3 * time.Second)
		}, Fork, map[string]State{"003": Fork}, "clock: off by 3s"},
		"health route hangs, nothing shared": {func(n []NodeView) {
			n[2].resample(1002, 1003)
			n[2].ValidatedPeers, n[2].Seals = nil, nil
		}, StateUnknown, map[string]State{"003": StateUnknown}, ""},
		"height goes back": {func(n []NodeView) { n[2].resample(1001, 1000) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "went back from 1001 to 1000"},
		"two sources contradict": {func(n []NodeView) { n[2].HealthzHeight = ptr(uint64(2000)) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "/healthz says height 2000"},
		"a lie far above everybody": {func(n []NodeView) { n[2].resample(2000, 2001) }, StateUnknown,
			map[string]State{"003": StateUnknown}, "it claims height 2001, 1000 above"},
		"host not reached": {func(n []NodeView) {
			n[2] = NodeView{ID: "003", Err: errors.New("no route to host"), Faults: nil}
		}, StateUnknown, map[string]State{"003": Down}, "no route to host"},
		"container exited": {func(n []NodeView) {
			silentNode(&n[2], refused)
			n[2].Container.State, n[2].Container.ExitCode = "exited", 137
		}, Behind, map[string]State{"003": Down}, "exit code 137"},
		"exit 0 without a halt line is no halt": {func(n []NodeView) {
			silentNode(&n[2], refused)
			n[2].Container.State = "exited"
		}, Behind, map[string]State{"003": Down}, "exit code 0"},
		"running, nothing listens": {func(n []NodeView) { silentNode(&n[2], refused) }, Behind,
			map[string]State{"003": Down}, "the node does not answer"},
		"no container": {func(n []NodeView) {
			silentNode(&n[2], refused)
			n[2].Container, n[2].NoContainer = nil, true
		}, Behind, map[string]State{"003": Down}, "no container"},
		"engine cannot be read": {func(n []NodeView) { n[2].Container = nil }, StateUnknown,
			map[string]State{"003": StateUnknown}, "container not read"},
		"one node halted": {func(n []NodeView) {
			silentNode(&n[2], refused)
			n[2].Container.State, n[2].HaltHeight = "exited", ptr(uint64(1000))
		}, Behind, map[string]State{"003": Halted}, "halt height 1000"},
		"one node does not seal": {func(n []NodeView) { n[2].SealedLag = ptr(uint64(5)) }, Behind,
			map[string]State{"003": Stalled}, "5 windows old"},
		"lag of four is normal": {func(n []NodeView) { n[2].SealedLag = ptr(uint64(4)) }, Healthy, nil, ""},
		"fork wins over unknown": {func(n []NodeView) { n[2].retip(1000, 1001); silentNode(&n[3], limited) }, Fork,
			map[string]State{"003": Fork, "004": StateUnknown}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(six(c.edit))
			if v.Verdict != c.fleet {
				t.Errorf("fleet %s, want %s: %q", v.Verdict, c.fleet, v.Reasons)
			}
			for _, n := range v.Nodes {
				want := Healthy
				if s, ok := c.odd[n.ID]; ok {
					want = s
				}
				if n.Verdict != want {
					t.Errorf("node %s %s, want %s: %q", n.ID, n.Verdict, want, n.Reasons)
				}
				if n.Verdict != Healthy && len(n.Reasons) == 0 {
					t.Errorf("node %s is %s without a reason", n.ID, n.Verdict)
				}
			}
			all := strings.Join(v.Reasons, "\n")
			if !slices.ContainsFunc(strings.Split(c.say, "|"), func(s string) bool { return strings.Contains(all, s) }) {
				t.Errorf("reasons %q do not say %q", v.Reasons, c.say)
			}
			again := Judge(six(c.edit))
			if fmt.Sprint(again.Verdict, again.Reasons) != fmt.Sprint(v.Verdict, v.Reasons) {
				t.Error("the same readings gave other words")
			}
		})
	}
}

func TestJudgeWholeFleet(t *testing.T) {
	all := func(edit func(*NodeView)) func([]NodeView) {
		return func(nodes []NodeView) {
			for i := range nodes {
				edit(&nodes[i])
			}
		}
	}
	still := func(span time.Duration) func(*NodeView) {
		return func(n *NodeView) {
			n.resample(1000, 1000)
			n.Samples[1].At = start.Add(span)
		}
	}
	for name, c := range map[string]struct {
		edit  func([]NodeView)
		fleet State
		node  State
	}{
		"no height moved in 15 block times":  {all(still(15 * time.Second)), Stalled, Stalled},
		"not moved, not watched long enough": {all(still(14 * time.Second)), StateUnknown, StateUnknown},
		// Produced on an abandoned chain, or certified through the tip without a
		// body: heights rise, nothing seals.
		"heights rise, nothing seals": {all(func(n *NodeView) { n.SealedLag = ptr(uint64(5)) }), Stalled, Stalled},
		"all exited on the halt height": {all(func(n *NodeView) {
			silentNode(n, errors.New("refused"))
			n.Container.State, n.HaltHeight = "exited", ptr(uint64(1000))
		}), Halted, Halted},
		"all exited by a crash": {all(func(n *NodeView) {
			silentNode(n, errors.New("refused"))
			n.Container.State, n.Container.ExitCode = "exited", 1
		}), Stalled, Down},
		"nobody reached": {all(func(n *NodeView) { *n = NodeView{ID: n.ID, Err: errors.New("no route")} }), StateUnknown, Down},
		"all limited":    {all(func(n *NodeView) { silentNode(n, &node.RateLimitedError{}) }), StateUnknown, StateUnknown},
	} {
		v := Judge(six(c.edit))
		if v.Verdict != c.fleet || v.Nodes[0].Verdict != c.node {
			t.Errorf("%s: fleet %s, node %s, want %s, %s (%q)", name, v.Verdict, v.Nodes[0].Verdict, c.fleet, c.node, v.Reasons)
		}
	}
	if v := Judge(View{}); v.Verdict != StateUnknown {
		t.Errorf("an empty view is %s", v.Verdict)
	}
}

// TestBehindAllowsForTheTimeBetweenReadings: on a fast lab chain the last node
// asked is ahead of the first only because it was asked later.
func TestBehindAllowsForTheTimeBetweenReadings(t *testing.T) {
	v := six(func(n []NodeView) {
		n[5].resample(1012, 1013)
		for i := range n[5].Samples {
			n[5].Samples[i].At = n[5].Samples[i].At.Add(12 * time.Second)
		}
	})
	got := Judge(v)
	for _, n := range got.Nodes {
		if n.Verdict != Healthy || *n.Behind != 0 {
			t.Errorf("%s: %s, behind %d: %q", n.ID, n.Verdict, *n.Behind, n.Reasons)
		}
	}
}

func TestBehindIsAgainstTheFleet(t *testing.T) {
	v := Judge(six(func(n []NodeView) { n[0].resample(970, 971); n[1].resample(2000, 2001) }))
	if b := v.Node("001").Behind; b == nil || *b != 30 {
		t.Errorf("behind %v, want 30: the lie at 2001 must not count", b)
	}
	if b := v.Node("002").Behind; b != nil {
		t.Errorf("behind of a node that is not believed is %d, want unknown", *b)
	}
}

func TestJudgeLoneNode(t *testing.T) {
	v := Judge(View{Block: time.Second, Nodes: []NodeView{good("001", 5, 6)}})
	if v.Verdict != Healthy {
		t.Errorf("%s %q", v.Verdict, v.Reasons)
	}
}

// TestJudgeThousand: comparing a thousand nodes must not cost a thousand squared.
func TestJudgeThousand(t *testing.T) {
	v := View{Block: time.Second}
	for i := range 1000 {
		v.Nodes = append(v.Nodes, good(fmt.Sprintf("%04d", i), 1000+uint64(i%2), 1001+uint64(i%2)))
	}
	v.Nodes[500].retip(1000, 1001)
	began := time.Now()
	got := Judge(v)
	if got.Verdict != Fork || got.Nodes[500].Verdict != Fork {
		t.Errorf("%s %q", got.Verdict, got.Reasons[:1])
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		edit func([]NodeView)
		want string
	}{
		"settled":   {nil, ""},
		"suspicion": {func(n []NodeView) { n[2].retip(1001) }, openFork},
		"no common": {func(n []NodeView) { n[2].resample(1004, 1005) }, openApart},
		"nothing moved": {func(n []NodeView) {
			for i := range n {
				n[i].resample(7, 7)
			}
		}, openStill},
		"nobody answers": {func(n []NodeView) {
			for i := range n {
				silentNode(&n[i], context.DeadlineExceeded)
			}
		}, ""},
		"settled fork": {func(n []NodeView) { n[2].retip(1000, 1001) }, ""},
	} {
		if got := open(six(c.edit)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
