package node

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"golang.org/x/crypto/sha3"
)

type vectorFile struct {
	Sanity  struct{ Empty, Abc string } `json:"sha3_256_sanity"`
	Bincode struct {
		VecEmpty struct {
			Value []string
			Hex   string
		} `json:"vecstring_empty"`
		VecTwo struct {
			Value []string
			Hex   string
		} `json:"vecstring_two"`
		EE struct {
			Value []Producer
			Hex   string
		} `json:"eligible_empty"`
		ET struct {
			Value []Producer
			Hex   string
		} `json:"eligible_two"`
	}
	Macroblocks []vector
	Distinct    []struct {
		Why string
		A   Hash `json:"a_v2"`
		B   Hash `json:"b_v2"`
	} `json:"distinctness"`
	Quorum []struct {
		N, F    int
		Quorum  int `json:"quorum_size"`
		Relaxed int `json:"relaxed_quorum"`
	}
	Gates []struct {
		Tip, Lead, Gate, Epoch, Ahead uint64
		Rendered                      string
	} `json:"gate_heights"`
	Bodies map[string]json.RawMessage `json:"http_bodies"`
	Galc   struct {
		Example string
		Sum     Hash `json:"sha3_256_of_example"`
	} `json:"galc_preimage"`
}

type vector struct {
	Name   string
	Inputs struct {
		Height, Timestamp uint64
		PreviousHash      Hash       `json:"previous_hash"`
		StateRoot         Hash       `json:"state_root"`
		MicroBlocks       []Hash     `json:"micro_blocks"`
		Eligible          []Producer `json:"eligible_producers_decoded"`
		EligibleHex       *string    `json:"eligible_producers_hex"`
		Beacon            *Hash      `json:"randomness_beacon"`
		Committee         []string   `json:"consensus_committee"`
		Banned            []string   `json:"banned_validators_decoded"`
		BannedHex         *string    `json:"banned_validators_hex"`
	}
	Expected struct {
		Hash    Hash  `json:"macroblock_hash"`
		V1      Hash  `json:"committee_fields_digest_v1"`
		V2      Hash  `json:"committee_fields_digest_v2"`
		Epoch   *Hash `json:"epoch_commitment"`
		CP      *Hash `json:"checkpoint_hash"`
		Content *Hash `json:"checkpoint_content_digest"`
	}
	Checkpoint map[string]json.RawMessage
}

func vectors(t testing.TB) vectorFile {
	t.Helper()
	b, err := os.ReadFile("testdata/qnet-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectorFile
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t testing.TB, s *string) []byte {
	t.Helper()
	if s == nil {
		return nil
	}
	b, err := hex.DecodeString(*s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (v vector) fields(t testing.TB) CommitteeFields {
	return CommitteeFields{
		Eligible: unhex(t, v.Inputs.EligibleHex), Beacon: v.Inputs.Beacon,
		Committee: v.Inputs.Committee, Banned: unhex(t, v.Inputs.BannedHex),
	}
}

func (v vector) block() MacroBlock {
	in := v.Inputs
	return MacroBlock{in.Height, in.Timestamp, in.PreviousHash, in.StateRoot, in.MicroBlocks}
}

// checkpoint turns the vector's form (a number for the supply, a remark for the
// hashes) into the wire form and reads it as an answer would be read.
func (v vector) checkpoint(t testing.TB) *Checkpoint {
	t.Helper()
	if v.Checkpoint == nil {
		return nil
	}
	v.Checkpoint["window_mb_hashes"], _ = json.Marshal(v.Inputs.MicroBlocks)
	v.Checkpoint["total_supply"] = json.RawMessage(`"` + string(v.Checkpoint["total_supply"]) + `"`)
	b, _ := json.Marshal(v.Checkpoint)
	var c Checkpoint
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestVectorsSHA3(t *testing.T) {
	v := vectors(t)
	for in, want := range map[string]string{"": v.Sanity.Empty, "abc": v.Sanity.Abc} {
		if got := sha3.Sum256([]byte(in)); hex.EncodeToString(got[:]) != want {
			t.Errorf("sha3(%q) = %x, want %s", in, got, want)
		}
	}
}

func TestVectorsBincode(t *testing.T) {
	v := vectors(t).Bincode
	for _, c := range []struct {
		value []Producer
		hex   string
	}{{v.EE.Value, v.EE.Hex}, {v.ET.Value, v.ET.Hex}} {
		b := EncodeEligible(c.value)
		if hex.EncodeToString(b) != c.hex {
			t.Errorf("EncodeEligible(%v) = %x, want %s", c.value, b, c.hex)
		}
		back, err := DecodeEligible(b)
		if err != nil || len(back) != len(c.value) {
			t.Fatalf("DecodeEligible: %v %v", back, err)
		}
		for i := range back {
			if back[i] != c.value[i] {
				t.Errorf("entry %d = %v, want %v", i, back[i], c.value[i])
			}
		}
	}
	for _, c := range []struct {
		value []string
		hex   string
	}{{v.VecEmpty.Value, v.VecEmpty.Hex}, {v.VecTwo.Value, v.VecTwo.Hex}} {
		b := EncodeStrings(c.value)
		if hex.EncodeToString(b) != c.hex {
			t.Errorf("EncodeStrings(%v) = %x, want %s", c.value, b, c.hex)
		}
		if back, err := DecodeStrings(b); err != nil || len(back) != len(c.value) {
			t.Fatalf("DecodeStrings: %v %v", back, err)
		}
	}
}

func TestDecodeRefusesBadLengths(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":      {},
		"short":      {1, 0, 0},
		"huge count": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"huge item":  append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"left over":  append(EncodeStrings(nil), 0),
	} {
		if _, err := DecodeStrings(b); err == nil {
			t.Errorf("DecodeStrings %s: no error", name)
		}
		if _, err := DecodeEligible(b); err == nil {
			t.Errorf("DecodeEligible %s: no error", name)
		}
	}
}

func TestVectorsMacroblocks(t *testing.T) {
	all := vectors(t).Macroblocks
	if len(all) != 4 {
		t.Fatalf("%d macroblock vectors, want 4", len(all))
	}
	for _, v := range all {
		t.Run(v.Name, func(t *testing.T) {
			if got := v.block().Hash(); got != v.Expected.Hash {
				t.Errorf("hash %s, want %s", got, v.Expected.Hash)
			}
			f := v.fields(t)
			if got := f.DigestV1(); got != v.Expected.V1 {
				t.Errorf("digest v1 %s, want %s", got, v.Expected.V1)
			}
			if got := f.DigestV2(); got != v.Expected.V2 {
				t.Errorf("digest v2 %s, want %s", got, v.Expected.V2)
			}
			if v.Expected.Epoch != nil {
				if got := EpochCommitment(f.Eligible, v.Inputs.Committee, v.Inputs.Banned); got != *v.Expected.Epoch {
					t.Errorf("epoch commitment %s, want %s", got, *v.Expected.Epoch)
				}
			}
			if v.Inputs.Eligible != nil {
				if got := EncodeEligible(v.Inputs.Eligible); string(got) != string(f.Eligible) {
					t.Errorf("eligible bytes %x", got)
				}
				if got := EncodeStrings(v.Inputs.Banned); string(got) != string(f.Banned) {
					t.Errorf("banned bytes %x", got)
				}
			}
			c := v.checkpoint(t)
			if c == nil {
				return
			}
			if got := c.Hash(); got != *v.Expected.CP {
				t.Errorf("checkpoint hash %s, want %s", got, *v.Expected.CP)
			}
			if got := c.ContentDigest(); got != *v.Expected.Content {
				t.Errorf("content digest %s, want %s", got, *v.Expected.Content)
			}
			if got := Beacon(v.Inputs.MicroBlocks); got != c.Beacon {
				t.Errorf("beacon %s, want %s", got, c.Beacon)
			}
			bare := *c
			bare.RecoveryAnchor = nil
			if bare.ContentDigest() != c.ContentDigest() {
				t.Error("content digest depends on the recovery pin")
			}
			if c.RecoveryAnchor != nil && bare.Hash() == c.Hash() {
				t.Error("checkpoint hash ignores the recovery pin")
			}
		})
	}
}

func TestVectorsDistinctness(t *testing.T) {
	v := vectors(t)
	small, none := v.Macroblocks[0].fields(t), v.Macroblocks[3].fields(t)
	noBans, zeroEligible, reordered := small, none, small
	noBans.Banned = nil
	zeroEligible.Eligible = []byte{}
	reordered.Committee = append([]string{}, small.Committee...)
	for i, j := 0, len(reordered.Committee)-1; i < j; i, j = i+1, j-1 {
		reordered.Committee[i], reordered.Committee[j] = reordered.Committee[j], reordered.Committee[i]
	}
	want := []struct{ a, b Hash }{
		{small.DigestV2(), noBans.DigestV2()},
		{none.DigestV2(), zeroEligible.DigestV2()},
		{small.DigestV2(), reordered.DigestV2()},
	}
	for i, d := range v.Distinct {
		got := want[i]
		// The vectors list the pair in either order.
		if !(got.a == d.A && got.b == d.B) && !(got.a == d.B && got.b == d.A) {
			t.Errorf("%s: %s %s, want %s %s", d.Why, got.a, got.b, d.A, d.B)
		}
		if got.a == got.b {
			t.Errorf("%s: digests are equal", d.Why)
		}
	}
}

func TestVectorsQuorum(t *testing.T) {
	for _, q := range vectors(t).Quorum {
		if got := QuorumSize(q.N); got != q.Quorum {
			t.Errorf("QuorumSize(%d) = %d, want %d", q.N, got, q.Quorum)
		}
		if got := RelaxedQuorum(q.N); got != q.Relaxed {
			t.Errorf("RelaxedQuorum(%d) = %d, want %d", q.N, got, q.Relaxed)
		}
	}
	if QuorumSize(-1) != 0 {
		t.Error("a negative committee has a quorum")
	}
}

func TestVectorsGates(t *testing.T) {
	for _, g := range vectors(t).Gates {
		got := ProposeGate(g.Tip, g.Lead)
		if got != (GateProposal{g.Gate, g.Epoch, g.Ahead}) {
			t.Errorf("ProposeGate(%d, %d) = %+v, want %+v", g.Tip, g.Lead, got, g)
		}
		if s := Underscored(got.Height); s != g.Rendered {
			t.Errorf("Underscored(%d) = %s, want %s", got.Height, s, g.Rendered)
		}
	}
	if got := ProposeGate(1<<63, 1<<63); got != (GateProposal{}) {
		t.Errorf("overflow gives %+v", got)
	}
	for v, want := range map[uint64]string{0: "0", 999: "999", 1000: "1_000", 123456: "123_456"} {
		if got := Underscored(v); got != want {
			t.Errorf("Underscored(%d) = %s", v, got)
		}
	}
}

func TestVectorsGalc(t *testing.T) {
	v := vectors(t).Galc
	if got := Hash(sha3.Sum256([]byte(v.Example))); got != v.Sum {
		t.Errorf("sum %s, want %s", got, v.Sum)
	}
	var parts [7]string
	rest := v.Example
	for i := range parts {
		var cut string
		cut, rest, _ = cutColon(rest)
		parts[i] = cut
	}
	h := func(s string) Hash {
		x, err := ParseHash(s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	// parts: tag, version, network, K, hash, anchor, pred; rest is the height.
	got := GenesisCheckpointText(h(parts[2]), 35680, h(parts[4]), h(parts[5]), h(parts[6]), mustUint(t, rest))
	if parts[3] != "35680" || got != v.Example {
		t.Errorf("text %s, want %s", got, v.Example)
	}
}

func TestWindows(t *testing.T) {
	for _, c := range []struct{ h, window, own, round uint64 }{
		{0, 0, 0, 0}, {1, 1, 0, 0}, {30, 1, 0, 0}, {31, 1, 0, 1}, {60, 1, 0, 1}, {61, 1, 0, 2},
		{89, 1, 0, 2}, {90, 1, 1, 2}, {91, 2, 1, 3}, {3213540, 35706, 35706, 107117}, {3213541, 35707, 35706, 107118},
	} {
		if got := WindowOf(c.h); got != c.window {
			t.Errorf("WindowOf(%d) = %d, want %d", c.h, got, c.window)
		}
		if got := OwnWindow(c.h); got != c.own {
			t.Errorf("OwnWindow(%d) = %d, want %d", c.h, got, c.own)
		}
		if got := RoundOf(c.h); got != c.round {
			t.Errorf("RoundOf(%d) = %d, want %d", c.h, got, c.round)
		}
	}
	if WindowHead(35706) != 3213540 {
		t.Error("WindowHead(35706) != 3213540")
	}
}

func TestParseHashRefuses(t *testing.T) {
	good := "ac1035132b59c51dc43ed9f8a9dc6382a1e3eda2a7915db21f30b3ad6d59f6e2"
	h, err := ParseHash(good)
	if err != nil || h.String() != good || h.IsZero() {
		t.Fatalf("ParseHash: %v %v", h, err)
	}
	for _, s := range []string{"", good[:63], good + "0", "AC" + good[2:], "zz" + good[2:], " " + good[1:], "0x" + good[2:]} {
		if _, err := ParseHash(s); err == nil {
			t.Errorf("ParseHash(%q): no error", s)
		}
	}
}
