package restart

import (
	"context"
	"crypto/sha3"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	chain "github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/node"
)

// textLog is a log in memory.
type textLog []string

func (l textLog) Tail(_ context.Context, n int, each func(string)) error {
	for _, line := range l[max(0, len(l)-n):] {
		each(line)
	}
	return nil
}

// stand is a few nodes of one ledger, as hosts.
type stand struct {
	t      testing.TB
	ledger *chain.Ledger
	nodes  []*chain.Node
	hosts  []Host
}

// newStand makes hosts 001, 002, … with these faults ("kind=arg kind=arg" per host).
func newStand(t testing.TB, cfg chain.Config, faults ...string) *stand {
	t.Helper()
	if cfg.Members == 0 {
		cfg.Members = 6
	}
	l, err := chain.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return standOn(t, l, faults...)
}

// standOn is newStand on a ledger that is there: what its members signed once they need not sign again.
func standOn(t testing.TB, l *chain.Ledger, faults ...string) *stand {
	t.Helper()
	s := &stand{t: t, ledger: l}
	for i, list := range faults {
		n := l.Node(chain.NodeConfig{ID: l.Members()[i%len(l.Members())], Build: "1234567", Archive: i == 0})
		for _, f := range strings.Fields(list) {
			kind, arg, _ := strings.Cut(f, "=")
			if err := n.Set(chain.Kind(kind), arg); err != nil {
				t.Fatal(err)
			}
		}
		c, closed := n.Open()
		t.Cleanup(closed)
		s.nodes = append(s.nodes, n)
		s.hosts = append(s.hosts, Host{ID: fmt.Sprintf("%03d", i+1), Node: c, Log: textLog(n.Lines())})
	}
	return s
}

func gatherOptions() Options {
	return Options{Fleet: "lab", Operator: "ann@example.org", ID: strings.Repeat("0a", 16), Number: 1, Tool: "test", Now: time.Now()}
}

// gather gathers and demands that what was found can be written and read back.
func (s *stand) gather(opts Options) Evidence {
	s.t.Helper()
	ev, err := Gather(s.t.Context(), s.hosts, opts)
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := Canonical(ev)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := Decode("evidence.json", data); err != nil {
		s.t.Fatalf("what was gathered cannot be read: %v", err)
	}
	return ev
}

func (h HostFinding) macroblock(t testing.TB, i uint64) Macroblock {
	t.Helper()
	for _, m := range h.Macroblocks {
		if m.Index == i {
			return m
		}
	}
	t.Fatalf("host %s: nothing about macroblock %d", h.ID, i)
	return Macroblock{}
}

// TestGatherHealthyNodes compares every part of the evidence with the chain it is about.
func TestGatherHealthyNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const last = 300
		s := newStand(t, chain.Config{Macroblocks: last}, "", "", "lag=1")
		ev := s.gather(gatherOptions())
		for k, h := range ev.Hosts {
			n := s.nodes[k]
			sealed := n.Sealed()
			var indices []uint64
			for _, m := range h.Macroblocks {
				indices = append(indices, m.Index)
				if m.Index > sealed {
					if m.Held != HeldNo {
						t.Errorf("host %s: macroblock %d is %s, it was not sealed there", h.ID, m.Index, m.Held)
					}
					continue
				}
				digest, mb := n.Fields(m.Index).DigestV2(), n.Macroblock(m.Index)
				if m.Held != HeldYes || *m.Hash != n.Hash(m.Index) || *m.Previous != mb.PreviousHash || *m.Timestamp != mb.Timestamp || m.Digest == nil || *m.Digest != digest {
					t.Fatalf("host %s: %+v", h.ID, m)
				}
				p := n.Proof(m.Index)
				c := m.Proof
				if c.Fault != "" || c.Relaxed || c.Committee != 6 || c.Quorum != 5 || c.Members != nil || !slices.Equal(c.Signers, p.Signers) || c.Checkpoint != p.Checkpoint.Hash() ||
					c.Signatures != (Signatures{Valid: len(p.Signers)}) {
					t.Fatalf("host %s: certificate of %d: %+v", h.ID, m.Index, c)
				}
			}
			// The third host is a macroblock behind; all are compared at the same indices below the newest two hold.
			// The third host is a macroblock behind: it is compared with the others where they are, and shows its own newest 64.
			hostWant := s.planOf(last)
			if sealed == last-1 {
				hostWant = append(hostWant, last-NewestSealed)
			}
			slices.Sort(hostWant)
			if !slices.Equal(indices, slices.Compact(hostWant)) {
				t.Errorf("host %s: macroblocks %v, want %v", h.ID, indices, hostWant)
			}
			if !h.Reachable || h.Reason != "" || h.NodeID != n.ID() || h.Build != "1234567" || *h.Height != s.ledger.Height() || *h.Sealed != sealed ||
				!slices.Equal(h.Committee, s.ledger.Committee(sealed)) || len(h.Banned) != 0 || h.Banned == nil || h.Recovery == nil || h.Recovery.Armed {
				t.Errorf("host %s: %+v", h.ID, h)
			}
			floor := max(*h.Finalized, sealed*90)
			// Each node is parked and names its seal base: the certified child of its last seal, which is no macroblock's head.
			if *h.FloorAtLeast != floor || h.FloorExact == nil || *h.FloorExact != floor+node.CheckpointBlocks || *h.Finalized != n.Finalized() {
				t.Errorf("host %s: floor %d, exact %v, want %d", h.ID, *h.FloorAtLeast, h.FloorExact, floor)
			}
			for id, key := range n.Proof(sealed).CommitteePubkeys {
				raw, err := hex.DecodeString(key)
				if err != nil || h.Keys[id] != sha3.Sum256(raw) {
					t.Errorf("host %s: key of %s is %s", h.ID, id, h.Keys[id])
				}
			}
			if h.Archive == nil || h.Archive.Enabled != (k == 0) || len(h.Keys) != 6 {
				t.Errorf("host %s: archive %+v, %d keys", h.ID, h.Archive, len(h.Keys))
			}
			var heights []uint64
			for _, snap := range h.Snapshots {
				heights = append(heights, snap.Height)
			}
			top := sealed * 90 / 3600 * 3600
			if !slices.Equal(heights, []uint64{top, top - 3600, top - 7200, 90}) {
				t.Errorf("host %s: snapshots %v", h.ID, heights)
			}
			if refused := n.Refused(); len(refused) > 0 {
				t.Errorf("host %s was asked what it does not know: %v", h.ID, refused)
			}
		}
		if sum := Summarize(ev); *sum.Common != last-1 || len(sum.Disagreements)+len(sum.Unreachable) != 0 || *sum.Hosts[0].Common != s.nodes[0].Hash(last-1) {
			t.Errorf("%+v", sum)
		}
	})
}

// planOf is the usual indices for a newest macroblock.
func (s *stand) planOf(last uint64) []uint64 {
	var out []uint64
	for i := last; i > 0 && i > last-min(last, 64); i-- {
		out = append(out, i)
	}
	for step := uint64(64); step < last; step *= 2 {
		out = append(out, last-step)
	}
	return out
}

// TestGatherFaultyNodes: each thing a node can have wrong is told as what it is, and nothing else becomes of it.
func TestGatherFaultyNodes(t *testing.T) {
	t.Parallel()
	const last, at = 6, 4
	led, err := chain.New(chain.Config{Macroblocks: last, Members: 6})
	if err != nil {
		t.Fatal(err)
	}
	held := func(fault string, more func(m Macroblock) bool) func(testing.TB, Evidence) bool {
		return func(t testing.TB, ev Evidence) bool {
			m := ev.Hosts[1].macroblock(t, at)
			return m.Held == HeldYes && m.Hash != nil && m.Proof != nil && m.Proof.Fault == fault && (more == nil || more(m))
		}
	}
	unproven := func(reason string) func(testing.TB, Evidence) bool {
		return func(t testing.TB, ev Evidence) bool {
			m := ev.Hosts[1].macroblock(t, at)
			return m.Held == HeldYes && m.Hash != nil && m.Proof == nil && m.Digest == nil && strings.Contains(m.Reason, reason)
		}
	}
	for faults, ok := range map[string]func(testing.TB, Evidence) bool{
		"missing=4": func(t testing.TB, ev Evidence) bool {
			m := ev.Hosts[1].macroblock(t, at)
			return m.Held == HeldNo && m.Hash == nil
		},
		"storage-error=4": func(t testing.TB, ev Evidence) bool {
			m := ev.Hosts[1].macroblock(t, at)
			return m.Held == HeldUnknown && strings.Contains(m.Reason, "Failed to get macroblock")
		},
		"wrong-number=4": func(t testing.TB, ev Evidence) bool {
			m := ev.Hosts[1].macroblock(t, at)
			return m.Held == HeldUnknown && strings.Contains(m.Reason, "asked for 4, got index 4 height ")
		},
		"pruned=1":       unproven(node.ProofSigsPruned),
		"no-qc=4":        unproven(node.ProofNoQC),
		"relaxed=4":      held(node.FaultRecovery, func(m Macroblock) bool { return m.Proof.Relaxed && m.Digest != nil }),
		"short=4":        held(node.FaultQuorum, func(m Macroblock) bool { return m.Digest != nil && len(m.Proof.Signers) == 4 }),
		"no-committee=4": held(node.FaultCommitment, func(m Macroblock) bool { return m.Digest == nil && m.Reason != "" }),
		"bad-sig=4":      held("", func(m Macroblock) bool { return m.Proof.Signatures == Signatures{Valid: 4, Invalid: 1} }),
		"opaque-sigs=4": held("", func(m Macroblock) bool {
			s := m.Proof.Signatures
			return s.Valid == 0 && s.Invalid == 0 && s.Unreadable == 5 && strings.Contains(s.Reason, "not understood")
		}),
		"bad-seal=4": held(node.FaultCommitment, func(m Macroblock) bool { return m.Digest == nil }),
		// It heals with the second reading, which is made because hosts differ.
		"bad-seal=4:1": held("", func(m Macroblock) bool { return m.Digest != nil }),
		"other-digest=4": func(t testing.TB, ev Evidence) bool {
			d := Summarize(ev).Disagreements
			return len(d) == 1 && d[0].Index == at && d[0].Kind == "digest" && len(d[0].Values) == 3
		},
		"armed": func(_ testing.TB, ev Evidence) bool {
			r := ev.Hosts[1].Recovery
			return r != nil && r.Armed && r.AnchorMB > 0
		},
		"no-snapshots": func(_ testing.TB, ev Evidence) bool {
			return ev.Hosts[1].Snapshots != nil && len(ev.Hosts[1].Snapshots) == 0
		},
		"ratelimit": func(_ testing.TB, ev Evidence) bool {
			h := ev.Hosts[1]
			return h.Height == nil && strings.Contains(h.Reason, "position: the node limits the rate") && h.Snapshots == nil && h.Committee == nil && h.Archive == nil && h.Recovery == nil
		},
		"hang": func(_ testing.TB, ev Evidence) bool {
			h := ev.Hosts[1]
			return h.Height == nil && strings.Contains(h.Reason, "no answer in time") && len(h.Lines) > 0
		},
	} {
		t.Run(faults, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := standOn(t, led, "", faults, "")
				ev := s.gather(gatherOptions())
				if !ok(t, ev) {
					t.Errorf("%+v\n%s", ev.Hosts[1].macroblockOrNone(at), ev.Hosts[1].Reason)
				}
				for _, h := range []HostFinding{ev.Hosts[0], ev.Hosts[2]} {
					m := h.macroblock(t, at)
					if !h.Reachable || h.Reason != "" || m.Proof == nil || m.Proof.Fault != "" || m.Digest == nil {
						t.Errorf("the fault of 002 shows on %s: %+v", h.ID, m)
					}
				}
			})
		})
	}
}

func (h HostFinding) macroblockOrNone(i uint64) any {
	for _, m := range h.Macroblocks {
		if m.Index == i {
			return fmt.Sprintf("%+v certificate %+v", m, m.Proof)
		}
	}
	return "nothing"
}

// TestGatherFindsTheExactFork: wherever chains part, the macroblock before, the first different one and the next are in the
// evidence of each host, and no host was asked more than the search and the usual readings need.
func TestGatherFindsTheExactFork(t *testing.T) {
	t.Parallel()
	const last = 1000
	places := []uint64{377}
	if full() {
		places = []uint64{1, 377, last - 3}
	}
	for _, at := range places {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStand(t, chain.Config{Macroblocks: last, Members: 1}, "", fmt.Sprintf("fork=%d", at))
				ev := s.gather(gatherOptions())
				sum := Summarize(ev)
				if len(sum.Disagreements) == 0 || sum.Disagreements[0].Index != at || sum.Disagreements[0].Kind != "hash" {
					t.Fatalf("%d disagreements, first %+v", len(sum.Disagreements), sum.Disagreements[:min(1, len(sum.Disagreements))])
				}
				for k, h := range ev.Hosts {
					for _, i := range []uint64{at - 1, at, at + 1} {
						if i == 0 {
							continue
						}
						if m := h.macroblock(t, i); *m.Hash != s.nodes[k].Hash(i) || m.Proof == nil {
							t.Errorf("host %s: macroblock %d: %+v", h.ID, i, m)
						}
					}
					// All usual ones twice more where they differ, the search, and three around the fork.
					usual := len(s.planOf(last))
					if n := s.nodes[k].Asked()["/api/v1/macroblock/{index}"]; n > 3*usual+Requests(last)+3 {
						t.Errorf("host %s was asked for %d macroblocks", h.ID, n)
					}
				}
			})
		})
	}
}

// TestGatherRanges takes what was asked for in, once, and refuses what cannot be.
func TestGatherRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, chain.Config{Macroblocks: 500, Members: 1}, "")
		opts := gatherOptions()
		opts.Ranges = []IndexRange{{20, 29}, {10, 20}, {495, 510}}
		ev := s.gather(opts)
		if !slices.Equal(ev.Asked, []IndexRange{{10, 29}, {495, 510}}) {
			t.Errorf("asked %v", ev.Asked)
		}
		for i := uint64(10); i < 30; i++ {
			if m := ev.Hosts[0].macroblock(t, i); m.Proof == nil || *m.Hash != s.nodes[0].Hash(i) {
				t.Errorf("macroblock %d: %+v", i, m)
			}
		}
		if m := ev.Hosts[0].macroblock(t, 510); m.Held != HeldNo {
			t.Errorf("macroblock 510 is %s", m.Held)
		}
		for _, bad := range []IndexRange{{0, 5}, {7, 6}, {1, MaxAsked + 1}, {1, 1 << 60}} {
			opts.Ranges = []IndexRange{bad}
			if _, err := Gather(t.Context(), s.hosts, opts); !errorAs[*RangeError](err) {
				t.Errorf("%v: %v", bad, err)
			}
		}
	})
}

func errorAs[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// TestGatherWithoutAnswers names every host where nobody answers, and otherwise has the silent ones in the evidence.
func TestGatherWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, chain.Config{Macroblocks: 70, Members: 1}, "", "hang")
		s.hosts[1].Log = nil
		s.hosts = append(s.hosts, Host{ID: "003", Err: errors.New("dialling 192.0.2.7 as root with /home/ann/.ssh/id: refused")})
		ev := s.gather(gatherOptions())
		for _, h := range ev.Hosts[1:] {
			if h.Reachable || h.Reason == "" || len(h.Macroblocks) > 0 {
				t.Errorf("%+v", h)
			}
		}
		if text := fmt.Sprint(ev); strings.Contains(text, "192.0.2.7") || strings.Contains(text, "/home/ann") {
			t.Error("the evidence holds how the operator reaches his hosts")
		}
		s.hosts = s.hosts[1:]
		_, err := Gather(t.Context(), s.hosts, gatherOptions())
		if !errorAs[*NothingError](err) || !strings.Contains(err.Error(), "002") || !strings.Contains(err.Error(), "003") {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Gather(ctx, s.hosts, gatherOptions()); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// limitedNode counts requests by time and limits the rate for a while.
type limitedNode struct {
	Node
	mu    sync.Mutex
	at    []time.Time
	until time.Time // refuses before
	early int       // requests while the bucket was shut
}

func (n *limitedNode) take() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.at = append(n.at, now)
	if len(n.at) == 40 {
		n.until = now.Add(node.RateBlock)
	}
	if now.Before(n.until) {
		n.early++
		return &node.RateLimitedError{Path: "/", RetryAfter: n.until.Sub(now).Truncate(time.Second) + time.Second}
	}
	return nil
}

func (n *limitedNode) Macroblock(ctx context.Context, i uint64) (node.Macroblock, error) {
	if err := n.take(); err != nil {
		return node.Macroblock{}, err
	}
	return n.Node.Macroblock(ctx, i)
}

func (n *limitedNode) Proof(ctx context.Context, i uint64) (node.Proof, error) {
	if err := n.take(); err != nil {
		return node.Proof{}, err
	}
	return n.Node.Proof(ctx, i)
}

// TestGatherKeepsToHalfTheRate: never more in a window than the bucket holds, half of it on the whole, and what was refused
// is read when the node says so.
func TestGatherKeepsToHalfTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, chain.Config{Macroblocks: 250, Members: 1}, "opaque-sigs")
		n := &limitedNode{Node: s.hosts[0].Node}
		s.hosts[0].Node = n
		opts := gatherOptions()
		opts.Ranges = []IndexRange{{1, 250}}
		ev := s.gather(opts)
		for _, m := range ev.Hosts[0].Macroblocks {
			if m.Held != HeldYes || m.Proof == nil {
				t.Fatalf("macroblock %d: %s %s", m.Index, m.Held, m.Reason)
			}
		}
		if n.early > 2*readsAtOnce {
			t.Errorf("%d requests while the node refused", n.early)
		}
		for i, at := range n.at {
			j := i
			for j < len(n.at) && n.at[j].Sub(at) < node.RateWindow {
				j++
			}
			if j-i > node.RateRequests {
				t.Fatalf("%d requests within %s", j-i, node.RateWindow)
			}
		}
		took := n.at[len(n.at)-1].Sub(n.at[0])
		if most := node.RateRequests/2 + int(took*(node.RateRequests/2)/node.RateWindow) + 1; len(n.at) > most {
			t.Errorf("%d requests in %s, at most %d", len(n.at), took, most)
		}
	})
}

// TestTheExactFloorComesFromTheLog takes the floor of a refused rollback or of a parked producer, unless more is certified by now.
func TestTheExactFloorComesFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, chain.Config{Macroblocks: 8, Members: 1}, "")
		for _, floor := range []uint64{8*90 + 600, 8 * 90, 100} {
			for _, line := range []string{
				"[ERR][ROLLBACK] refused target=5 certified_floor=%d reason=certified_checkpoint_irrevocable action=start_unchanged",
				"[WARN][PROD] parked reason=roster_derivation_horizon h=9000 seal_base=%d rotation=live",
			} {
				s.hosts[0].Log = textLog{fmt.Sprintf(line, floor)}
				h := s.gather(gatherOptions()).Hosts[0]
				if want := floor >= *h.FloorAtLeast; want != (h.FloorExact != nil) || want && *h.FloorExact != floor {
					t.Errorf("%s: floor %d: at least %d, exact %v", line, floor, *h.FloorAtLeast, h.FloorExact)
				}
			}
		}
	})
}

// TestGatherIsOfOneMind: the same nodes give the same evidence.
func TestGatherIsOfOneMind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, chain.Config{Macroblocks: 30, Members: 1}, "", "fork=20", "missing=7-9")
		opts := gatherOptions()
		first, err := Canonical(s.gather(opts))
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(s.hosts)
		again, err := Canonical(s.gather(opts))
		if err != nil || string(first) != string(again) {
			t.Errorf("%v, %d and %d bytes", err, len(first), len(again))
		}
	})
}

// TestLinesOfALog: the kinds that matter are taken with their times and hashes, and of a line only what is public.
func TestLinesOfALog(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const secret = "abandon-ability-7f3a9c51"
	cases := map[string]string{
		"[INFO][BFT2] macroblock_sealed window=2 round=6 head_h=180 signers=5 role=replica": "[INFO][BFT2] macroblock_sealed window=2 round=6 head_h=180 signers=5 role=replica",
		"[INFO][CONS] validator=true mb=3 participating active_lock=acquired":               "[INFO][CONS] validator=true mb=3 participating active_lock=acquired",
		"[WARN][CONS] checkpoint_defer mb=3 reason=anchor_unsealed_frozen":                  "[WARN][CONS] checkpoint_defer mb=3 reason=anchor_unsealed_frozen",
		"[WARN][CONS] checkpoint_defer mb=3 reason=" + secret:                               "[WARN][CONS] checkpoint_defer mb=3 ***",
		"[INFO][GALC] root_adopted mb=40 hash=0123456789abcdef":                             "[INFO][GALC] root_adopted mb=40 hash=0123456789abcdef",
		"[INFO][GALC] root_adopted mb=40 hash=" + secret:                                    "[INFO][GALC] root_adopted mb=40 ***",
		"[INFO][ROLLBACK] truncated_to=180 dropped=7 — remove the env var":                  "[INFO][ROLLBACK] truncated_to=180 dropped=7 ***",
		"[FATAL][BOOT] subsystems_missing count=2 names=a,b action=exit":                    "[FATAL][BOOT] subsystems_missing count=2 *** action=exit",
		"[FATAL][PREFLIGHT] checks_failed node_type=Super err=" + secret:                    "[FATAL][PREFLIGHT] ***",
		"[FATAL][PREFLIGHT] " + secret:                                                      "[FATAL][PREFLIGHT] ***",
		"[FATAL][" + strings.ToUpper(secret) + "] x":                                        "[FATAL][***] ***",
		"[INFO][MEMORY] node=x rss_mb=612":                                                  "",
		"[INFO][CONF] QNET_ADMIN_SECRET=" + secret:                                          "",
		secret: "",
	}
	for raw, want := range cases {
		p := newLinePicker(now)
		line := "2026-01-02T03:00:00.000000001Z " + raw
		p.see(line)
		got := p.lines()
		if want == "" {
			if len(got) > 0 {
				t.Errorf("%q was taken: %+v", raw, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Text != want || got[0].SHA256 != shaOf(line) || got[0].At == nil || got[0].At.Nanosecond() != 1 {
			t.Errorf("%q: %+v, want %q", raw, got, want)
			continue
		}
		if got[0].Kind != strings.Join(strings.Fields(want)[:1], "")+kindWord(want) {
			t.Errorf("%q: kind %q", raw, got[0].Kind)
		}
	}
	p := newLinePicker(now)
	p.see("2027-01-02T03:00:00Z [FATAL][BOOT] x")
	if p.lines()[0].At != nil {
		t.Error("a line of the future has a time")
	}
}

// kindWord is the word of a line that its kind names.
func kindWord(text string) string {
	for _, k := range lineKinds() {
		if strings.Contains(text, "["+k.module+"]") && (strings.Contains(text, " "+k.word+" ") || strings.Contains(text, " "+k.word+"=")) {
			return " " + k.word
		}
	}
	return ""
}

// TestALineThatRepeatsPushesNothingOut: one line a second for hours, and the rare ones are still there, in order.
func TestALineThatRepeatsPushesNothingOut(t *testing.T) {
	p := newLinePicker(time.Now())
	p.see("[INFO][GALC] root_adopted mb=40 hash=0123456789abcdef")
	for i := range 20_000 {
		p.see(fmt.Sprintf("[WARN][PROD] parked reason=roster_derivation_horizon h=%d seal_base=90 rotation=live", i))
	}
	for i := range 500 {
		for _, k := range lineKinds() {
			p.see(fmt.Sprintf("[WARN][%s] %s mb=%d", k.module, k.word, i))
		}
	}
	lines := p.lines()
	kinds := map[string]int{}
	for _, l := range lines {
		kinds[l.Kind]++
	}
	if len(lines) != MaxLines || !strings.Contains(lines[0].Text, "root_adopted") {
		t.Errorf("%d lines, the first %q", len(lines), lines[0].Text)
	}
	for kind, n := range kinds {
		if n > maxLinesOfKind {
			t.Errorf("%d lines of %s", n, kind)
		}
	}
	if len(kinds) < len(lineKinds()) {
		t.Errorf("%d kinds: %v", len(kinds), slices.Sorted(maps.Keys(kinds)))
	}
}

// readyNode answers at once what it was asked before, so that what is measured is not the node.
type readyNode struct {
	Node
	mu     sync.Mutex
	blocks map[uint64]node.Macroblock
	proofs map[uint64]node.Proof
}

func (n *readyNode) Macroblock(ctx context.Context, i uint64) (node.Macroblock, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m, ok := n.blocks[i]; ok {
		return m, nil
	}
	m, err := n.Node.Macroblock(ctx, i)
	n.blocks[i] = m
	return m, err
}

func (n *readyNode) Proof(ctx context.Context, i uint64) (node.Proof, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p, ok := n.proofs[i]; ok {
		return p, nil
	}
	p, err := n.Node.Proof(ctx, i)
	n.proofs[i] = p
	return p, err
}

// BenchmarkGather is evidence of six hosts, written and read back, beyond the time in which the nodes answer.
func BenchmarkGather(b *testing.B) {
	s := newStand(b, chain.Config{Macroblocks: 1000}, "", "", "", "", "", "")
	for i := range s.hosts {
		s.hosts[i].Node = &readyNode{Node: s.hosts[i].Node, blocks: map[uint64]node.Macroblock{}, proofs: map[uint64]node.Proof{}}
	}
	opts := gatherOptions()
	opts.Block = time.Millisecond // the pace is the node's own time
	s.gather(opts)
	for b.Loop() {
		s.gather(opts)
	}
}
