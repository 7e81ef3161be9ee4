package restart

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/node"
)

// desk makes signed files of operators.
type desk struct {
	t       *testing.T
	now     time.Time
	signers map[string]ssh.Signer
	list    Signers
}

func newDesk(t *testing.T, operators ...string) *desk {
	d := &desk{t: t, now: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), signers: map[string]ssh.Signer{}}
	var lines []string
	for _, name := range operators {
		_, signer := testKey(t, name)
		d.signers[name] = signer
		lines = append(lines, allowedLine(name, "", signer))
	}
	d.list = allowed(t, lines...)
	return d
}

// evidence is the sample as given by an operator.
func (d *desk) evidence(operator string, change func(*Evidence)) Evidence {
	ev := sampleEvidence()
	ev.Operator, ev.ID = operator, shaOf(operator)[:32]
	if change != nil {
		change(&ev)
	}
	return ev
}

func (d *desk) file(name, key string, ev Evidence) File {
	d.t.Helper()
	data, err := Canonical(ev)
	if err != nil {
		d.t.Fatal(err)
	}
	return File{Name: "some/dir/" + name, Data: data, Sig: signed(d.t, d.signers[key], data)}
}

func operators(m Merged) string {
	var out []string
	for _, o := range m.Operators {
		out = append(out, fmt.Sprintf("%s:%d", o.Evidence.Operator, len(o.Files)))
	}
	return strings.Join(out, " ")
}

func codes(m Merged) string {
	var out []string
	for _, l := range m.LeftOut {
		out = append(out, l.Name+" "+l.Code)
	}
	return strings.Join(out, ", ")
}

func TestMergeLeavesOutWhatDoesNotCount(t *testing.T) {
	d := newDesk(t, "ann", "bob", "eve")
	a, b := d.file("a", "ann", d.evidence("ann", nil)), d.file("b", "bob", d.evidence("bob", nil))
	if m := Merge([]File{b, a, a}, d.list, d.now); operators(m) != "ann:1 bob:1" || len(m.LeftOut) != 0 || strings.Join(m.Expected, " ") != "ann bob eve" {
		t.Fatalf("%s; %s; %v", operators(m), codes(m), m.Expected)
	} else if f := m.Operators[0].Files[0]; f.Name != "a" || f.Number != 1 || f.SHA256 != shaOf(string(a.Data)) || f.Signer != "ann" || f.Key != ssh.FingerprintSHA256(d.signers["ann"].PublicKey()) {
		t.Errorf("%+v", f)
	}
	net1, net2 := node.Hash{1}, node.Hash{2}
	_, stranger := testKey(t, "stranger")
	d.signers["stranger"] = stranger
	number := func(n uint64, more ...func(*Evidence)) func(*Evidence) {
		return func(ev *Evidence) {
			ev.Number = n
			for _, f := range more {
				f(ev)
			}
		}
	}
	tool := func(s string) func(*Evidence) { return func(ev *Evidence) { ev.Tool = s } }
	changed := func(f File, change func(*File)) File { change(&f); return f }
	for name, c := range map[string]struct {
		files     []File
		operators string
		left      string
		reason    string
	}{
		"changed byte":             {[]File{a, changed(b, func(f *File) { f.Data = slices.Clone(f.Data); f.Data[20] ^= 1 })}, "ann:1", "b changed", "other bytes"},
		"no signature":             {[]File{a, changed(b, func(f *File) { f.Sig = nil })}, "ann:1", "b bad_signature", "no signature"},
		"another's signature":      {[]File{a, changed(b, func(f *File) { f.Sig = a.Sig })}, "ann:1", "b changed", ""},
		"stranger":                 {[]File{a, d.file("b", "stranger", d.evidence("bob", nil))}, "ann:1", "b unknown_signer", "no operator"},
		"speaks as another":        {[]File{a, d.file("b", "eve", d.evidence("bob", nil))}, "ann:1", "b unknown_signer", "speaks as bob"},
		"unreadable":               {[]File{a, d.file("b", "bob", d.evidence("bob", func(ev *Evidence) { ev.Hosts[0].Macroblocks[0].Index = 0 }))}, "ann:1", "b unreadable", "there is no such macroblock"},
		"from the future":          {[]File{a, d.file("b", "bob", d.evidence("bob", func(ev *Evidence) { ev.TakenAt = d.now.Add(time.Hour) }))}, "ann:1", "b future", "still to come"},
		"one number, two contents": {[]File{a, b, d.file("c", "bob", d.evidence("bob", tool("other")))}, "ann:1", "b conflict, c conflict", "2 contents under number 1"},
		"conflict in a supplement": {[]File{a, b, d.file("c", "bob", d.evidence("bob", number(2))), d.file("d", "bob", d.evidence("bob", number(2, tool("other"))))}, "ann:1 bob:1", "c conflict, d conflict", "number 2"},
		"two ids":                  {[]File{a, b, d.file("c", "bob", d.evidence("bob", func(ev *Evidence) { ev.ID = strings.Repeat("1", 32) }))}, "ann:1", "b conflict, c conflict", "2 ids"},
		"two fleets":               {[]File{a, b, d.file("c", "bob", d.evidence("bob", number(2, func(ev *Evidence) { ev.Fleet = "test" })))}, "ann:1", "b conflict, c conflict", "2 ids"},
		"gap":                      {[]File{a, b, d.file("c", "bob", d.evidence("bob", number(4)))}, "ann:1 bob:2", "c gap", "follows on 1"},
		"first one missing":        {[]File{a, d.file("c", "bob", d.evidence("bob", number(2)))}, "ann:1 bob:1", "c gap", "follows on 0"},
		"two networks": {[]File{d.file("a", "ann", d.evidence("ann", func(ev *Evidence) { ev.Network = &net1 })), d.file("b", "bob", d.evidence("bob", func(ev *Evidence) { ev.Network = &net2 })), d.file("e", "eve", d.evidence("eve", nil))},
			"eve:1", "a other_chain, b other_chain", "010000000000 (ann), 020000000000 (bob)"},
		"nothing": {nil, "", "", ""},
	} {
		m := Merge(c.files, d.list, d.now)
		if operators(m) != c.operators || codes(m) != c.left || len(m.LeftOut) > 0 && !strings.Contains(m.LeftOut[0].Reason, c.reason) {
			t.Errorf("%s: %q, left out %q %v", name, operators(m), codes(m), m.LeftOut)
		}
		if m.Operators == nil || m.LeftOut == nil {
			t.Errorf("%s: a list is nil", name)
		}
	}
}

// TestOneKeyIsOneOperator: a key that signs as two makes neither count.
func TestOneKeyIsOneOperator(t *testing.T) {
	d := newDesk(t, "ann", "bob")
	d.list = allowed(t, allowedLine("ann,bob", "", d.signers["ann"]), allowedLine("eve", "", d.signers["bob"]))
	m := Merge([]File{d.file("a", "ann", d.evidence("ann", nil)), d.file("b", "ann", d.evidence("bob", nil)), d.file("e", "bob", d.evidence("eve", nil))}, d.list, d.now)
	if operators(m) != "eve:1" || codes(m) != "a conflict, b conflict" || !strings.Contains(m.LeftOut[0].Reason, "ann and bob") {
		t.Errorf("%s; %v", operators(m), m.LeftOut)
	}
}

// TestSupplementsAreTakenIn: what a later file knows counts, what it does not know stays, and what it says otherwise is named.
func TestSupplementsAreTakenIn(t *testing.T) {
	d := newDesk(t, "ann")
	at := d.now.Add(-time.Hour)
	other := node.Hash{9}
	later := d.evidence("ann", func(ev *Evidence) {
		ev.Number, ev.TakenAt, ev.Asked = 2, at, []IndexRange{{1, 2}}
		h := &ev.Hosts[0]
		h.Height, h.Snapshots, h.Committee, h.Banned, h.Keys, h.Lines = nil, nil, []string{"a", "b", "c", "e"}, []string{"d"}, nil, nil
		proven := h.Macroblocks[1]
		again := proven
		again.Proof, again.Digest, again.Reason = nil, nil, "certificate: no answer in time"
		one := Macroblock{Index: 1, Held: HeldYes, Hash: proven.Hash, Proof: proven.Proof}
		h.Macroblocks = []Macroblock{one, {Index: 3, Held: HeldUnknown, Reason: "no answer in time"}, again, {Index: 5, Held: HeldYes, Hash: &other}}
		ev.Hosts[1] = HostFinding{ID: "002", Reachable: true, Height: ptr(uint64(7)), Macroblocks: []Macroblock{}, Lines: []Line{}}
		ev.Hosts = append(ev.Hosts, HostFinding{ID: "003", Reason: "host: SSH login refused", Macroblocks: []Macroblock{}, Lines: []Line{}})
	})
	third := d.evidence("ann", func(ev *Evidence) {
		ev.Number, ev.TakenAt = 3, at
		ev.Hosts = []HostFinding{{ID: "001", Reason: "host: SSH does not reach the host", Macroblocks: []Macroblock{}, Lines: []Line{}},
			{ID: "002", Reachable: true, Macroblocks: []Macroblock{{Index: 5, Held: HeldYes, Hash: &other}}, Lines: []Line{}}}
	})
	fourth := d.evidence("ann", func(ev *Evidence) {
		ev.Number, ev.TakenAt = 4, at
		ev.Hosts = []HostFinding{{ID: "002", Reachable: true, Macroblocks: []Macroblock{{Index: 5, Held: HeldNo}}, Lines: []Line{}}}
	})
	first := d.evidence("ann", nil)
	m := Merge([]File{d.file("4", "ann", fourth), d.file("3", "ann", third), d.file("1", "ann", first), d.file("2", "ann", later)}, d.list, d.now)
	if operators(m) != "ann:4" || codes(m) != "4 superseded" || !strings.Contains(m.LeftOut[0].Reason, "macroblock 5 as 090000000000 before") {
		t.Fatalf("%s; %v", operators(m), m.LeftOut)
	}
	ev := m.Operators[0].Evidence
	if ev.Number != 4 || !ev.TakenAt.Equal(at) || len(ev.Hosts) != 3 || len(ev.Asked) != 4 {
		t.Errorf("%+v", ev)
	}
	h := ev.Hosts[0]
	was := first.Hosts[0]
	if *h.Height != 500 || !reflect.DeepEqual(h.Snapshots, was.Snapshots) || !slices.Equal(h.Committee, later.Hosts[0].Committee) || len(h.Lines) != 1 {
		t.Errorf("001: %+v", h)
	}
	if one := h.macroblock(t, 1); one.Proof.Members != nil {
		t.Errorf("001: members of macroblock 1 are %v, the host's committee is meant", one.Proof.Members)
	}
	if h.macroblock(t, 3).Held != HeldNo || *h.macroblock(t, 5).Hash != other {
		t.Errorf("001: %+v", h.Macroblocks)
	}
	// Its certificate was seen before, under the committee of then.
	if four := h.macroblock(t, 4); four.Proof == nil || !slices.Equal(four.Proof.Members, was.Committee) {
		t.Errorf("001: %+v", four)
	}
	if h := ev.Hosts[1]; !h.Reachable || *h.Height != 7 || h.macroblock(t, 5).Held != HeldNo {
		t.Errorf("002: %+v", h)
	}
}

// TestMergeDoesNotDependOnTheOrder shuffles files good and bad.
func TestMergeDoesNotDependOnTheOrder(t *testing.T) {
	d := newDesk(t, "ann", "bob", "eve")
	files := []File{d.file("a", "ann", d.evidence("ann", nil)), d.file("a2", "ann", d.evidence("ann", func(ev *Evidence) { ev.Number = 2 })),
		d.file("b", "bob", d.evidence("bob", nil)), d.file("b", "bob", d.evidence("bob", func(ev *Evidence) { ev.Tool = "x" })),
		d.file("e", "bob", d.evidence("eve", nil)), {Name: "junk", Data: []byte("x")}, d.file("e", "eve", d.evidence("eve", func(ev *Evidence) { ev.Number = 3 }))}
	want := Merge(files, d.list, d.now)
	if operators(want) != "ann:2 eve:1" || len(want.LeftOut) != 5 {
		t.Fatalf("%s; %s", operators(want), codes(want))
	}
	for seed := range uint64(50) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		if got := Merge(files, d.list, d.now); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %s; %s", seed, operators(got), codes(got))
		}
	}
}
