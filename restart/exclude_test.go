package restart_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/restart"
)

// stall is a chain of 40 macroblocks with six members, whose certificates leave out another one each time: as if all voted
// and the first five votes made it. Members in silentFrom never sign from that window on.
func stall(silentFrom map[int]uint64) restart.Merged {
	m := merged(operator("alice", honest("001", 1, 40), honest("002", 1, 40)), operator("bob", honest("003", 1, 40)))
	member := 0
	for i := range m.Operators {
		m.Operators[i].Evidence.TakenAt = time.Unix(40*90+1, 0) // after the newest seal
		for j := range m.Operators[i].Evidence.Hosts {
			h := hostOf(m, i, j)
			h.Committee, h.NodeID = ids(6), ids(6)[member]
			member++
			for k := range h.Macroblocks {
				h.Macroblocks[k].Proof = votes(h.Macroblocks[k].Index, member, silentFrom)
			}
		}
	}
	return m
}

// votes is the certificate that one host made of a window's votes: five of six, without the silent one if there is one, else
// without whoever voted last.
func votes(index uint64, host int, silentFrom map[int]uint64) *restart.Certificate {
	without := int(index+uint64(host))%6 + 1
	for member, from := range silentFrom {
		if index >= from {
			without = member
		}
	}
	c := goodCertificate(6)
	c.Signers = slices.Delete(ids(6), without-1, without)
	return c
}

func exclude(t *testing.T, m restart.Merged, o restart.ExcludeOptions) restart.Exclusion {
	t.Helper()
	return restart.Exclude(m, propose(t, m, restart.ProposeOptions{}), o)
}

func identity(t *testing.T, x restart.Exclusion, member int) restart.Identity {
	t.Helper()
	for _, id := range x.Identities {
		if id.ID == ids(6)[member-1] {
			return id
		}
	}
	t.Fatalf("no member %d: %+v", member, x.Identities)
	return restart.Identity{}
}

func wantList(t *testing.T, x restart.Exclusion, members ...int) {
	t.Helper()
	want := []string{}
	for _, m := range members {
		want = append(want, ids(6)[m-1])
	}
	if !slices.Equal(x.Excluded, want) {
		t.Errorf("the list is %v, want %v: %+v", x.Excluded, want, x.Identities)
	}
}

func TestExcludeProposes(t *testing.T) {
	x := exclude(t, stall(nil), restart.ExcludeOptions{})
	if wantList(t, x); len(x.Refused) > 0 || !slices.Equal(x.Alive, ids(6)[:3]) || !slices.Equal(x.SignedUntil, ids(6)[3:]) || *x.Stalled != 40 || len(x.Windows) != 40 {
		t.Errorf("a fleet where everybody is missing from some certificate: %+v", x)
	}
	x = exclude(t, stall(map[int]uint64{6: 21}), restart.ExcludeOptions{})
	wantList(t, x, 6)
	id := identity(t, x, 6)
	if id.Verdict != restart.ExcludeProposed || id.SilentWindows != 20 || *id.LastSigned != 20 || !slices.Equal(id.SilentBy, []string{"alice", "bob"}) {
		t.Errorf("%+v", id)
	}
	// 6 members need 5, and 5 signed until the end, of whom three answer; without the sixth 5 need 4.
	if x.Before != (restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 3, SignedUntil: 2}) || x.After != (restart.Arithmetic{Committee: 5, Quorum: 4, Alive: 3, SignedUntil: 2, Spare: 1}) {
		t.Errorf("before %+v, after %+v", x.Before, x.After)
	}
	if *id.With != x.After || *id.Without != x.Before || *id.Returns != (restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 4, SignedUntil: 2, Spare: 1}) {
		t.Errorf("with %+v, without %+v, returns %+v", id.With, id.Without, id.Returns)
	}
	if len(x.Refused) > 0 || len(x.Warnings) != 1 || !strings.Contains(x.Warnings[0], "nothing was seen since the stall: genesis_node_004, genesis_node_005") {
		t.Errorf("%v %v", x.Warnings, x.Refused)
	}
	x = exclude(t, stall(map[int]uint64{6: 32}), restart.ExcludeOptions{}) // silent in 9 windows
	if wantList(t, x); !strings.Contains(identity(t, x, 6).Why, "silent in 9 windows since by 2 operators, fewer than 10") || x.Before.Voting() != 6 {
		t.Errorf("%+v", identity(t, x, 6))
	}
	x = exclude(t, stall(map[int]uint64{6: 31}), restart.ExcludeOptions{}) // in 10, and so not shown alive either
	if wantList(t, x, 6); x.Before.Voting() != 5 {
		t.Errorf("%+v", x.Before)
	}
}

func TestExcludeUnderLists(t *testing.T) {
	silent := map[int]uint64{6: 1}
	for _, c := range []struct {
		name   string
		change func(m *restart.Merged)
		why    string
	}{
		{"signed at one node only", func(m *restart.Merged) {
			c := at(hostOf(*m, 1, 0), 40).Proof
			c.Signers = append(slices.Clone(c.Signers[1:]), ids(6)[5])
		}, "signed in window 40"},
		{"signed in a faulty certificate", func(m *restart.Merged) {
			c := at(hostOf(*m, 1, 0), 39).Proof
			c.Fault, c.Signers = "signers", []string{ids(6)[5]}
		}, "signed in window 39; silent in 1 windows since"},
		{"one operator only", func(m *restart.Merged) { m.Operators, m.Expected = m.Operators[:1], m.Expected[:1] }, "only one operator's evidence"},
		{"two operators, one machine", func(m *restart.Merged) {
			m.Operators[0].Evidence.Hosts = m.Operators[0].Evidence.Hosts[:1]
			hostOf(*m, 1, 0).NodeID = hostOf(*m, 0, 0).NodeID
		}, "silent in 0 windows"},
		{"the other operator's certificates are faulty", func(m *restart.Merged) {
			for i := range hostOf(*m, 1, 0).Macroblocks {
				hostOf(*m, 1, 0).Macroblocks[i].Proof.Fault = "beacon"
			}
		}, "silent in 0 windows"},
		{"not in the committee of these windows", func(m *restart.Merged) {
			for i := range hostOf(*m, 1, 0).Macroblocks {
				if mb := &hostOf(*m, 1, 0).Macroblocks[i]; mb.Index < 40 {
					mb.Proof.Members = ids(5)
				}
			}
		}, "silent in 1 windows"},
		{"its log says that it takes part", func(m *restart.Merged) {
			hostOf(*m, 1, 0).NodeID = ids(6)[5]
			hostOf(*m, 1, 0).Lines = []restart.Line{{Kind: "[INFO][CONS] participating", Text: "[INFO][CONS] validator=true mb=41 participating active_lock=acquired", SHA256: "aa"}}
		}, "its log says that it took part in window 41"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantList(t, exclude(t, stall(silent), restart.ExcludeOptions{}), 6)
			m := stall(silent)
			c.change(&m)
			x := exclude(t, m, restart.ExcludeOptions{})
			wantList(t, x)
			if id := identity(t, x, 6); id.Verdict != restart.ExcludeNotProposed || !strings.Contains(id.Why, c.why) {
				t.Errorf("%+v", id)
			}
		})
	}
}

// A line that it takes part is taken back by one of the same window that it does not vote.
func TestExcludeReadsLogs(t *testing.T) {
	m := stall(map[int]uint64{6: 1})
	h := hostOf(m, 1, 0)
	h.NodeID = ids(6)[5]
	h.Lines = []restart.Line{
		{Kind: "[INFO][CONS] participating", Text: "[INFO][CONS] validator=true mb=40 participating active_lock=acquired", SHA256: "aa"},
		{Kind: "[WARN][CONS] window_end_abstain", Text: "[WARN][CONS] window_end_abstain mb=40 eligible=6 committee=6 reason=underivable", SHA256: "bb"},
		{Kind: "[INFO][PROD] parked", Text: "[WARN][PROD] parked reason=roster_derivation_horizon h=3 seal_base=4 rotation=live", SHA256: "cc"},
	}
	x := exclude(t, m, restart.ExcludeOptions{})
	wantList(t, x, 6)
	want := []restart.Excerpt{{Host: "bob/003", Kind: "[INFO][CONS] participating", Window: 40, SHA256: "aa"}, {Host: "bob/003", Kind: "[WARN][CONS] window_end_abstain", Window: 40, SHA256: "bb"}}
	if id := identity(t, x, 6); !slices.Equal(id.Excerpts, want) || id.LastTakingIn != nil {
		t.Errorf("%+v", id)
	}
}

func TestExcludeByHand(t *testing.T) {
	six := ids(6)
	for _, c := range []struct {
		name     string
		silent   map[int]uint64
		options  restart.ExcludeOptions
		list     []int
		refused  string
		warnings string
	}{
		{name: "added", silent: map[int]uint64{6: 1}, options: restart.ExcludeOptions{Add: []restart.Added{{ID: six[4], Reason: "seen to forge"}}}, list: []int{5, 6},
			warnings: six[4] + " is listed and signed until the stall"},
		{name: "added, and it answers", options: restart.ExcludeOptions{Add: []restart.Added{{ID: six[0], Reason: "seen to forge"}}}, list: []int{1},
			warnings: six[0] + " is listed and shown alive"},
		{name: "dropped", silent: map[int]uint64{6: 1}, options: restart.ExcludeOptions{Drop: []string{six[5]}}, warnings: "no fault is tolerated afterwards: 3 identities are shown alive and 2 signed until the stall and 5 of 6 must sign"},
		{name: "dropped and not listed", silent: map[int]uint64{6: 1}, options: restart.ExcludeOptions{Drop: []string{six[0]}}, list: []int{6}, warnings: "not on the list anyway"},
		{name: "a list", silent: map[int]uint64{6: 1}, options: restart.ExcludeOptions{List: []string{six[5]}, ListName: "bar.txt"}, list: []int{6}},
		{name: "an empty list", silent: map[int]uint64{6: 1}, options: restart.ExcludeOptions{List: []string{}, ListName: "bar.txt"}},
		{name: "unsorted", options: restart.ExcludeOptions{List: []string{six[5], six[4]}, ListName: "bar.txt"}, list: []int{5, 6}, refused: "bar.txt: \"genesis_node_005\" after \"genesis_node_006\""},
		{name: "doubled", options: restart.ExcludeOptions{List: []string{six[5], six[5]}, ListName: "bar.txt"}, list: []int{6}, refused: "strictly ascending"},
		{name: "outside, in the list", options: restart.ExcludeOptions{List: []string{"zz"}, ListName: "bar.txt"}, refused: "bar.txt: zz is not in the stalled committee"},
		{name: "outside, added", options: restart.ExcludeOptions{Add: []restart.Added{{ID: "zz", Reason: "r"}}}, refused: "--add: zz is not in the stalled committee"},
		{name: "outside, dropped", options: restart.ExcludeOptions{Drop: []string{"zz"}}, refused: "--drop: zz"},
		{name: "added and dropped", options: restart.ExcludeOptions{Add: []restart.Added{{ID: six[0], Reason: "r"}}, Drop: []string{six[0]}}, refused: "both name"},
		{name: "added twice", options: restart.ExcludeOptions{Add: []restart.Added{{ID: six[0], Reason: "r"}, {ID: six[0], Reason: "r"}}}, list: []int{1}, refused: "twice"},
		{name: "no reason", options: restart.ExcludeOptions{Add: []restart.Added{{ID: six[0]}}}, list: []int{1}, refused: "no reason"},
		{name: "nobody left", options: restart.ExcludeOptions{List: six, ListName: "bar.txt"}, list: []int{1, 2, 3, 4, 5, 6}, refused: "nobody"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := exclude(t, stall(c.silent), c.options)
			wantList(t, x, c.list...)
			if got := strings.Join(x.Refused, "\n"); (c.refused == "") != (got == "") || !strings.Contains(got, c.refused) {
				t.Errorf("refused %q, want %q", got, c.refused)
			}
			if got := strings.Join(x.Warnings, "\n"); !strings.Contains(got, c.warnings) {
				t.Errorf("warnings %q, want %q", got, c.warnings)
			}
		})
	}
}

// Those shown alive must reach the quorum of what is left: of seven with three long silent, four are alive and a list of one
// leaves six who need five.
func TestExcludeRefusesTooFew(t *testing.T) {
	m := stall(nil)
	for i := range m.Operators {
		for j := range m.Operators[i].Evidence.Hosts {
			h := hostOf(m, i, j)
			h.Committee = ids(7)
			for k := range h.Macroblocks {
				c := &restart.Certificate{Committee: 7, Quorum: 5, Signers: ids(7)[:5]}
				if index := h.Macroblocks[k].Index; index > 20 {
					c.Signers, c.Fault = ids(7)[:4], "quorum" // what keeps the chain from sealing
				}
				h.Macroblocks[k].Proof = c
			}
		}
	}
	x := restart.Exclude(m, restart.Proposal{K: ptr(uint64(20))}, restart.ExcludeOptions{List: ids(7)[6:], ListName: "bar.txt"})
	if len(x.Refused) != 1 || !strings.Contains(x.Refused[0], "3 identities are shown alive and 1 signed until the stall, fewer than the 5 that the remaining committee of 6 needs") || x.After.Spare != -1 {
		t.Errorf("%v %+v", x.Refused, x.After)
	}
	x = restart.Exclude(m, restart.Proposal{K: ptr(uint64(20))}, restart.ExcludeOptions{List: ids(7)[4:], ListName: "bar.txt"})
	if len(x.Refused) != 0 || x.After != (restart.Arithmetic{Committee: 4, Quorum: 3, Alive: 3, SignedUntil: 1, Spare: 1}) {
		t.Errorf("%v %+v", x.Refused, x.After)
	}
}

// What counts as a sign of life after the stall, and how hosts that do not answer weigh. The rule by hand: of six members who all
// signed to the end, five must sign.
func TestExcludeAliveSinceTheStall(t *testing.T) {
	line := func(h *restart.HostFinding, id, text string) {
		h.NodeID, h.Lines = id, []restart.Line{{Kind: "k", Text: text, SHA256: "aa"}}
	}
	away := func(m *restart.Merged, hosts ...string) {
		for _, id := range hosts {
			m.Operators[1].Evidence.Hosts = append(m.Operators[1].Evidence.Hosts, restart.HostFinding{ID: id, Reason: "no answer in time"})
		}
	}
	for _, c := range []struct {
		name    string
		silent  map[int]uint64
		change  func(m *restart.Merged)
		options restart.ExcludeOptions
		life    string // of the first member
		after   restart.Arithmetic
		refused string
	}{
		{name: "its node answered", life: restart.LifeAlive, after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 3, SignedUntil: 3, Spare: 1}},
		{name: "its node answered before the newest seal", change: func(m *restart.Merged) { m.Operators[0].Evidence.TakenAt = time.Unix(40*90, 0) }, life: restart.LifeSigned,
			after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 1, SignedUntil: 5, Spare: 1}},
		{name: "read before the newest seal, and a supplement of another host", change: func(m *restart.Merged) {
			m.Operators[0].ReadAt = map[string]time.Time{"001": time.Unix(40*90, 0)}
		}, life: restart.LifeSigned, after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 2, SignedUntil: 4, Spare: 1}},
		{name: "nobody says when the newest seal was", change: func(m *restart.Merged) {
			for i := range m.Operators {
				for j := range m.Operators[i].Evidence.Hosts {
					at(hostOf(*m, i, j), 40).Timestamp = nil
				}
			}
		}, life: restart.LifeSigned, after: restart.Arithmetic{Committee: 6, Quorum: 5, SignedUntil: 6, Spare: 1}},
		{name: "only its log speaks after the stall", change: func(m *restart.Merged) {
			m.Operators[0].Evidence.TakenAt = time.Unix(40*90, 0)
			line(hostOf(*m, 0, 0), ids(6)[0], "[INFO][CONS] validator=true mb=41 participating active_lock=acquired")
		}, life: restart.LifeAlive, after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 2, SignedUntil: 4, Spare: 1}},
		{name: "its log of the window of the stall says nothing of later", change: func(m *restart.Merged) {
			m.Operators[0].Evidence.TakenAt = time.Unix(40*90, 0)
			line(hostOf(*m, 0, 0), ids(6)[0], "[INFO][CONS] validator=true mb=40 participating active_lock=acquired")
		}, life: restart.LifeSigned, after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 1, SignedUntil: 5, Spare: 1}},
		{name: "long silent, and its node answers", silent: map[int]uint64{1: 5}, life: restart.LifeNone,
			after: restart.Arithmetic{Committee: 5, Quorum: 4, Alive: 2, SignedUntil: 3, Spare: 1}},
		{name: "one host does not answer", change: func(m *restart.Merged) { away(m, "004") }, life: restart.LifeAlive,
			after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 3, SignedUntil: 3, Away: 1}},
		{name: "two do not answer", change: func(m *restart.Merged) { away(m, "004", "005") }, life: restart.LifeAlive,
			after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 3, SignedUntil: 3, Away: 2, Spare: -1}, refused: "2 of which must be behind hosts that did not answer (bob/004, bob/005), fewer than the 5"},
		{name: "two do not answer, and they are barred", change: func(m *restart.Merged) { away(m, "004", "005") }, life: restart.LifeAlive,
			options: restart.ExcludeOptions{List: ids(6)[4:], ListName: "bar.txt"}, after: restart.Arithmetic{Committee: 4, Quorum: 3, Alive: 3, SignedUntil: 1, Spare: 1}},
		{name: "the silent one is what does not answer", silent: map[int]uint64{6: 5}, change: func(m *restart.Merged) { away(m, "004") }, life: restart.LifeAlive,
			after: restart.Arithmetic{Committee: 5, Quorum: 4, Alive: 3, SignedUntil: 2, Spare: 1}},
		{name: "more hosts do not answer than members are left", change: func(m *restart.Merged) { away(m, "004", "005", "006", "007", "008") }, life: restart.LifeAlive,
			after: restart.Arithmetic{Committee: 6, Quorum: 5, Alive: 3, SignedUntil: 3, Away: 3, Spare: -2}, refused: "fewer than the 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := stall(c.silent)
			if c.change != nil {
				c.change(&m)
			}
			x := restart.Exclude(m, restart.Proposal{K: ptr(uint64(40))}, c.options)
			if id := identity(t, x, 1); id.Life != c.life || x.After != c.after {
				t.Errorf("%s, after %+v, want %s, %+v; %+v", id.Life, x.After, c.life, c.after, x.Warnings)
			}
			if got := strings.Join(x.Refused, "\n"); (c.refused == "") != (got == "") || !strings.Contains(got, c.refused) {
				t.Errorf("refused %q, want %q", got, c.refused)
			}
		})
	}
}

// A signature above the window that all operators show is a sign of life, and one in a certificate that does not hold is enough not
// to be proposed, and not enough to count.
func TestExcludeSignsAboveTheStall(t *testing.T) {
	for _, fault := range []string{"", "signers"} {
		m := stall(map[int]uint64{6: 1})
		hostOf(m, 1, 0).Macroblocks, hostOf(m, 1, 0).Sealed = hostOf(m, 1, 0).Macroblocks[:38], ptr(uint64(38)) // bob is two windows behind
		c := at(hostOf(m, 0, 0), 40).Proof
		c.Signers, c.Fault = append(slices.Clone(c.Signers[1:]), ids(6)[5]), fault
		x := exclude(t, m, restart.ExcludeOptions{})
		wantList(t, x)
		want := map[string]string{"": restart.LifeAlive, "signers": restart.LifeSigned}[fault]
		if id := identity(t, x, 6); *x.Stalled != 38 || id.Life != want || *id.LastSigned != 40 {
			t.Errorf("fault %q: %+v", fault, id)
		}
	}
}

// Two operators who list one machine are not independent of each other by the other machines that one of them has beside it.
func TestExcludeOneMachineOfTwoOperators(t *testing.T) {
	m := stall(map[int]uint64{6: 1})
	wantList(t, exclude(t, m, restart.ExcludeOptions{}), 6)
	hostOf(m, 1, 0).NodeID = hostOf(m, 0, 0).NodeID // bob's only host is alice's 001, and alice has 002 too
	x := exclude(t, m, restart.ExcludeOptions{})
	wantList(t, x)
	if id := identity(t, x, 6); id.SilentWindows != 0 {
		t.Errorf("%+v", id)
	}
}

func TestExcludeWantsOneCommittee(t *testing.T) {
	m := stall(map[int]uint64{6: 1})
	hostOf(m, 1, 0).Committee = append(ids(5), "zz")
	x := exclude(t, m, restart.ExcludeOptions{})
	if len(x.Excluded) > 0 || len(x.Refused) != 1 || !strings.Contains(x.Refused[0], "the committee of macroblock 40 is not the same at alice/001 and bob/003") {
		t.Errorf("%v", x.Refused)
	}
	m = stall(map[int]uint64{6: 1}) // bob is two windows behind: the stall is judged at what both show
	hostOf(m, 1, 0).Macroblocks, hostOf(m, 1, 0).Sealed = hostOf(m, 1, 0).Macroblocks[:38], ptr(uint64(38))
	if x := exclude(t, m, restart.ExcludeOptions{}); x.Stalled == nil || *x.Stalled != 38 {
		t.Errorf("%v %v", x.Stalled, x.Refused)
	}
	m = stall(map[int]uint64{6: 1})
	m.Expected = append(m.Expected, "mute")
	if x := exclude(t, m, restart.ExcludeOptions{}); len(x.Refused) != 1 || !strings.Contains(x.Refused[0], "there is no K") {
		t.Errorf("%v", x.Refused)
	}
	if x := exclude(t, restart.Merged{}, restart.ExcludeOptions{}); len(x.Refused) != 2 {
		t.Errorf("%v", x.Refused)
	}
}

func TestExcludeSameBytesInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := stall(map[int]uint64{6: 15})
	for i := range m.Operators[0].Evidence.Hosts {
		hostOf(m, 0, i).Lines = []restart.Line{{Text: fmt.Sprintf("[INFO][CONS] validator=true mb=%d participating", 38+i), SHA256: "aa"}}
	}
	first, _ := json.Marshal(exclude(t, m, restart.ExcludeOptions{}))
	for range 20 {
		if again, _ := json.Marshal(exclude(t, shuffled(r, m), restart.ExcludeOptions{})); !bytes.Equal(first, again) {
			t.Fatalf("%s\n%s", first, again)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := restart.ParseList("bar.txt", []byte("# who\ngenesis_node_001\n\ngenesis_node_002"))
	if err != nil || !slices.Equal(got, []string{"genesis_node_001", "genesis_node_002"}) {
		t.Errorf("%v %v", got, err)
	}
	for text, say := range map[string]string{
		"b\na\n":         "bar.txt:2: a comes after b",
		"a\nb\na\n":      "bar.txt:3: a is on line 1 already",
		"a\r\n":          "bar.txt:1: ends in a carriage return",
		"\ufeffa\n":      "bar.txt:1: begins with a byte order mark",
		"a b\n":          "bar.txt:1: \"a b\": an identity has no spaces",
		"a\n\xff\n":      "bar.txt:2: is not UTF-8",
		"b\na\na b\nc\r": "bar.txt:4: ends in",
	} {
		_, err := restart.ParseList("bar.txt", []byte(text))
		var faults *restart.FileFaults
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v, want %q", text, err, say)
		}
	}
	if _, err := restart.ParseList("bar.txt", make([]byte, restart.MaxList+1)); err == nil {
		t.Error("a huge list is read")
	}
}

// Whatever is read is a list that a node starts with.
func FuzzParseList(f *testing.F) {
	f.Add([]byte("a\nb\n"))
	f.Add([]byte("# x\n\na\r\n"))
	f.Add([]byte("\ufeffa\nb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := restart.ParseList("f", data)
		if err != nil {
			return
		}
		for i, id := range list {
			if id == "" || strings.ContainsAny(id, " \t\r\n") || i > 0 && id <= list[i-1] {
				t.Fatalf("%q", list)
			}
		}
	})
}

// TestExcludeWarnsOfTheBoot: a genesis node waits for three others, so four must be left that are started. The sixth is none.
func TestExcludeWarnsOfTheBoot(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent map[int]uint64
		list   []int
		left   int // named in the warning; 0: there is none
	}{
		{"nobody", nil, nil, 0},
		{"one that is no genesis node", nil, []int{6}, 0},
		{"one genesis node", nil, []int{5}, 0},
		{"one, and the sixth", nil, []int{5, 6}, 0},
		{"two", nil, []int{4, 5}, 3},
		{"one, and one that is dead", map[int]uint64{4: 1}, []int{5}, 3},
	} {
		o := restart.ExcludeOptions{List: []string{}, ListName: "bar.txt"}
		for _, n := range c.list {
			o.List = append(o.List, ids(6)[n-1])
		}
		x := exclude(t, stall(c.silent), o)
		at := slices.IndexFunc(x.Warnings, func(w string) bool { return strings.Contains(w, "waits at boot for three others") })
		if (at >= 0) != (c.left > 0) {
			t.Errorf("%s: %q", c.name, x.Warnings)
		}
		if at >= 0 && !strings.Contains(x.Warnings[at], fmt.Sprintf("and %d are left: genesis_node_001, genesis_node_002, genesis_node_003.", c.left)) {
			t.Errorf("%s: %s", c.name, x.Warnings[at])
		}
	}
}
