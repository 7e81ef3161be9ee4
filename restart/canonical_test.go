package restart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

// TestCanonical holds the form to the rules of RFC 8785.
func TestCanonical(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	type inner struct {
		B uint64 `json:"b"`
		A *int   `json:"a"`
	}
	var hash node.Hash
	hash[0] = 0xab
	for want, v := range map[string]any{
		`{"a":1,"b":[true,false,null,"x"],"c":{}}`: map[string]any{"c": map[string]any{}, "b": []any{true, false, nil, "x"}, "a": 1},
		`{"a":null,"b":9007199254740991}`:          inner{B: MaxSafe},
		// The sample of RFC 8785 3.2.3: keys by UTF-16 code units, so U+1F600 (D83D) goes before U+FB33.
		"{\"\\r\":1,\"1\":2,\"\u0080\":3,\"\u00f6\":4,\"\u20ac\":5,\"\U0001f600\":6,\"\ufb33\":7}": map[string]int{"\u20ac": 5, "\r": 1, "\ufb33": 7, "1": 2, "\U0001f600": 6, "\u0080": 3, "\u00f6": 4},
		// Its sample of escapes.
		"\"\u20ac$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"": "\u20ac$\u000f\u000aA'B\"\\\\\"/",
		"\"\\b\\f\\t\u2028<>&\u007f\"":              "\b\f\t\u2028<>&\u007f",
		`"2026-01-02T03:04:05Z"`:                    at,
		`"ab` + strings.Repeat("00", 31) + `"`:      hash,
		`[-1,0]`:                                    []int{-1, 0},
		`[0,5]`:                                     []float64{math.Copysign(0, -1), 5},
		`null`:                                      []string(nil),
		`[]`:                                        []string{},
		`{"from":1,"operator":"o","to":2}`: struct {
			Operator string `json:"operator"`
			IndexRange
		}{"o", IndexRange{1, 2}},
		`"aGk="`:   []byte("hi"),
		`{"n":12}`: map[string]any{"n": json.Number("12")},
		`{"s":"18446744073709551615"}`: struct {
			S uint64 `json:"s,string"`
		}{math.MaxUint64},
		`{"raw":{"a":1,"b":2}}`: map[string]any{"raw": json.RawMessage(`{ "b" : 2, "a":1 }`)},
	} {
		got, err := Canonical(v)
		if err != nil || string(got) != want {
			t.Errorf("%s\n%s\n%v", want, got, err)
		}
		if !json.Valid(got) {
			t.Errorf("%s is no JSON", got)
		}
	}
	for place, v := range map[string]any{
		"a[1]: the number 9007199254740992": map[string]any{"a": []uint64{1, MaxSafe + 1}},
		"the number -9007199254740992":      int64(-MaxSafe - 1),
		"the number 0.5":                    0.5,
		"a: the number 1e3":                 map[string]any{"a": json.Number("1e3")},
		"b: text \"\\xff\"":                 map[string]any{"b": "\xff"},
		"has no form":                       map[string]any{"c": make(chan int)},
		"a map with keys of type int":       map[int]int{1: 1},
		"hosts[0].height: the number":       Evidence{Hosts: []HostFinding{{Height: ptr(uint64(math.MaxUint64))}}},
	} {
		if got, err := Canonical(v); err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %s, %v", place, got, err)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// sampleEvidence is small and has something of everything.
func sampleEvidence() Evidence {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var h, p node.Hash
	h[0], p[0] = 1, 2
	return Evidence{
		Schema: EvidenceSchema, Fleet: "main", Operator: "ann@example.org", ID: strings.Repeat("ab", 16), Number: 1, Tool: "qnetops dev", TakenAt: at,
		Asked: []IndexRange{{3, 4}},
		Hosts: []HostFinding{
			{ID: "001", NodeID: "genesis_node_001", Build: "1234567", Reachable: true, Height: ptr(uint64(500)), TipHash: ptr(h.String()), Sealed: ptr(uint64(4)),
				Finalized: ptr(uint64(360)), Committee: []string{"a", "b", "c", "d"}, Banned: []string{}, Keys: map[string]node.Hash{"a": h}, FloorAtLeast: ptr(uint64(360)),
				Recovery: &RecoveryFinding{HeardFrom: 3}, Snapshots: []Snapshot{{90, 1767322000}}, Archive: &ArchiveFinding{Segments: []ArchiveSegment{}},
				Macroblocks: []Macroblock{
					{Index: 3, Held: HeldNo},
					{Index: 4, Held: HeldYes, Hash: &h, Previous: &p, Timestamp: ptr(uint64(1767323000)), Digest: &p,
						Proof: &Certificate{Checkpoint: h, Committee: 4, Quorum: 3, Signers: []string{"a", "b", "c"}, Signatures: Signatures{Valid: 3}}},
					{Index: 5, Held: HeldUnknown, Reason: "the node reports: Failed to get macroblock"},
				},
				Lines: []Line{{At: &at, Kind: "[INFO][BFT2] macroblock_sealed", Text: "[INFO][BFT2] macroblock_sealed window=4", SHA256: strings.Repeat("0", 64)}}},
			{ID: "002", Reason: "host: SSH does not reach the host", Macroblocks: []Macroblock{}, Lines: []Line{}},
		},
	}
}

func sampleBytes(t testing.TB) []byte {
	t.Helper()
	b, err := Canonical(sampleEvidence())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeReadsWhatCanonicalWrote(t *testing.T) {
	data := sampleBytes(t)
	ev, err := Decode("e.json", data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Canonical(ev)
	if err != nil || !bytes.Equal(again, data) || ev.Hosts[0].Macroblocks[1].Proof.Quorum != 3 {
		t.Errorf("%v\n%s\n%s", err, data, again)
	}
	if bytes.HasSuffix(data, []byte("\n")) {
		t.Error("the canonical form ends with a newline")
	}
}

// TestDecodeFaults: every kind of bad input has its place and its reason, and all of one file are told at once.
func TestDecodeFaults(t *testing.T) {
	good := string(sampleBytes(t))
	hash := "01" + strings.Repeat("0", 62)
	for name, c := range map[string]struct {
		from, to string
		want     []string // parts of the error
	}{
		"unknown key":          {`"fleet":`, `"fleeet":"x","fleet":`, []string{`e.json:1:`, `fleeet: is not known`}},
		"doubled key":          {`"fleet":"main"`, `"fleet":"main","fleet":"main"`, []string{`fleet: stands there twice`}},
		"missing key":          {`"fleet":"main",`, ``, []string{`fleet: is missing`}},
		"another case":         {`"fleet"`, `"Fleet"`, []string{`Fleet: is not known`, `fleet: is missing`}},
		"byte order mark":      {`{"asked"`, "\ufeff" + `{"asked"`, []string{`e.json:1:1: begins with a byte order mark`}},
		"CRLF":                 {`,"fleet"`, ",\r\n\"fleet\"", []string{`e.json:1:`, `carriage return`}},
		"white space":          {`,"fleet"`, ",\n \"fleet\"", []string{`e.json:1:`, `canonical form`}},
		"newline at the end":   {`"tool":"qnetops dev"}`, `"tool":"qnetops dev"}` + "\n", []string{`canonical form`}},
		"order of keys":        {`"schema":"qnetops/evidence/v1"`, `"schema":"qnetops/evidence/v2"`, []string{`schema: is "qnetops/evidence/v2"`}},
		"not UTF-8":            {`"main"`, "\"ma\xffin\"", []string{`is not UTF-8`}},
		"escaped otherwise":    {`"main"`, `"\u006dain"`, []string{`canonical form`}},
		"trailing data":        {`"tool":"qnetops dev"}`, `"tool":"qnetops dev"}{}`, []string{`goes on after its end`}},
		"short hash":           {`"hash":"` + hash, `"hash":"` + hash[2:], []string{`hosts[0].macroblocks[1].hash`, `62 characters`}},
		"upper-case hash":      {`"hash":"` + hash, `"hash":"A1` + hash[2:], []string{`upper-case`}},
		"index 0":              {`"index":3`, `"index":0`, []string{`hosts[0].macroblocks[0].index: is 0`}},
		"listed twice":         {`"index":4`, `"index":3`, []string{`macroblocks[1].index: 3 is listed twice or out of order`}},
		"out of order":         {`"index":5`, `"index":1`, []string{`macroblocks[2].index: 1 is listed twice or out of order`}},
		"host twice":           {`"id":"002"`, `"id":"001"`, []string{`hosts[1].id: "001" is listed twice`}},
		"negative":             {`"height":500`, `"height":-500`, []string{`hosts[0].height: -500 is not a whole number`}},
		"fraction":             {`"height":500`, `"height":500.5`, []string{`hosts[0].height: 500.5 is not a whole number`}},
		"exponent":             {`"height":500`, `"height":5e2`, []string{`5e2 is not a whole number`}},
		"too large":            {`"height":500`, `"height":9007199254740992`, []string{`9007199254740992 is not a whole number`}},
		"number in quotes":     {`"height":500`, `"height":"500"`, []string{`hosts[0].height: want a number`}},
		"line of the future":   {`"at":"2026-01-02T03:04:05Z"`, `"at":"2026-01-02T03:24:05Z"`, []string{`hosts[0].lines[0].at: is later than taken_at`}},
		"no time":              {`"taken_at":"2026-01-02T03:04:05Z"`, `"taken_at":"2026-01-02"`, []string{`taken_at: is no usable value`}},
		"fraction of a second": {`"taken_at":"2026-01-02T03:04:05Z"`, `"taken_at":"2026-01-02T03:04:05.5Z"`, []string{`taken_at: want a time of whole seconds`}},
		"another zone":         {`"taken_at":"2026-01-02T03:04:05Z"`, `"taken_at":"2026-01-02T03:04:05+00:00"`, []string{`canonical form`}},
		"id":                   {`"id":"` + strings.Repeat("ab", 16), `"id":"` + strings.Repeat("AB", 16), []string{`id: want 32 lower-case hex digits`}},
		"held":                 {`"held":"held"`, `"held":"maybe"`, []string{`macroblocks[1].held: is "maybe"`}},
		"missing with hash":    {`"held":"held"`, `"held":"missing"`, []string{`macroblocks[1].held: is missing, and yet`}},
		"unreachable, read":    {`"reachable":true`, `"reachable":false`, []string{`hosts[0].reachable`}},
		"wrong quorum":         {`"quorum":3`, `"quorum":2`, []string{`certificate.quorum: is 2, the quorum of 4 members is 3`}},
		"short of quorum":      {`"signers":["a","b","c"]`, `"signers":["a","b"]`, []string{`certificate.fault: is empty`, `signatures: 3 valid`}},
		"number 0":             {`"number":1`, `"number":0`, []string{`number: is 0`}},
		"control character":    {`"operator":"ann@example.org"`, `"operator":"ann\u0007"`, []string{`operator: want a name`}},
		"hidden text":          {`"fleet":"main"`, "\"fleet\":\"ma\u202ein\"", []string{`e.json:1:`, `hides text`, `fleet: want a name`}},
		"a byte of a terminal": {`"build":"1234567"`, `"build":"\u001b[2J"`, []string{`e.json:1:`, `control character`}},
		"a host with a slash":  {`"id":"002"`, `"id":"0/2"`, []string{`hosts[1].id: "0/2" holds a slash`}},
		"a member twice":       {`"committee":["a","b","c","d"]`, `"committee":["a","b","b","d"]`, []string{`committee[2]: b stands there twice`}},
		"range":                {`{"from":3,"to":4}`, `{"from":4,"to":3}`, []string{`asked[0]: 4 to 3 is no range`}},
		"two faults":           {`"fleet":"main","hosts"`, `"fleet":7,"hostz"`, []string{`fleet: want text`, `hostz: is not known`, `hosts: is missing`}},
		"a list for a name":    {`"fleet":"main"`, `"fleet":["main"]`, []string{`fleet: want text in quotes`}},
		"a text for a list":    {`"lines":[]`, `"lines":"none"`, []string{`hosts[1].lines: want a list`}},
		"too deep":             {`"fleet":"main"`, `"fleet":` + strings.Repeat("[", 50) + strings.Repeat("]", 50), []string{`nested more than`}},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if bad == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		_, err := Decode("e.json", []byte(bad))
		faults, ok := err.(*FileFaults)
		if !ok || faults.Hint() == "" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in\n%v", name, want, err)
			}
		}
	}
	if _, err := Decode("e.json", bytes.Repeat([]byte(" "), MaxEvidence+1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("huge: %v", err)
	}
}

// Input that is made to take long is refused as fast as it is read: faults without end, a long key above many values, lines and
// keys that would be compared each with each.
func TestDecodeOfHostileSize(t *testing.T) {
	t.Parallel()
	const many = 50_000
	for name, text := range map[string]string{
		"faults without end":           `{"asked":[` + strings.Repeat("1,", many) + `1]}`,
		"a long key above many values": `{"` + strings.Repeat("k", 1<<18) + `":[` + strings.Repeat("0,", many) + `0]}`,
		"unknown keys without end":     "{" + strings.Repeat(`"a":1,`, many) + `"b":1}`,
	} {
		_, err := Decode("e.json", []byte(text))
		faults, ok := err.(*FileFaults)
		if !ok || len(faults.Faults) == 0 || len(faults.Faults) > maxFaults {
			t.Errorf("%s: %v", name, err)
		}
		if len(err.Error()) > 100_000 {
			t.Errorf("%s: %d bytes of error", name, len(err.Error()))
		}
	}
	ev := sampleEvidence()
	for i := range MaxLines + 1 {
		ev.Hosts[0].Lines = append(ev.Hosts[0].Lines, Line{Kind: "k", SHA256: shaOf(fmt.Sprint(i))})
	}
	for i := range 5000 {
		ev.Hosts[0].Keys[fmt.Sprint(i)] = node.Hash{}
	}
	data, err := Canonical(ev)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Decode("e.json", data)
	for _, say := range []string{"hosts[0].lines: are 202, more than 200", "hosts[0].keys: are 5001 of a committee of 4"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want %q", err, say)
		}
	}
}

// What is unshown in a text is refused or blanked wherever a text of somebody else is shown, and nothing else is.
func TestUnshown(t *testing.T) {
	for text, plain := range map[string]bool{
		"genesis_node_001": true, "Ünïcode – 節点 🙂": true, "a\tb": false, "a\x1b[2J": false, "a\u007f": false, "a\u0085": false, "a\u2028b": false, "abc\u202etxt": false,
		"a\u200bb": false, "\ufeffa": false, "a\u00adb": false, "a\xff": false, "": true,
	} {
		if isPlain(text) != plain {
			t.Errorf("%q: plain %v", text, !plain)
		}
		if !isPlain(clipped(text)) {
			t.Errorf("%q is shown as %q", text, clipped(text))
		}
		if form, err := Canonical(text); err == nil && (notPlain(form) < 0) != plain {
			t.Errorf("%q: the document %s is judged otherwise", text, form)
		}
	}
	if at := notPlain([]byte(`{"a":"say \"x\" in C:\\dir","b":"\u0007"}`)); at != 33 {
		t.Errorf("at %d", at)
	}
}

// TestDecodeRefusesEveryCutAndEveryChangedByte: no prefix is evidence, and no byte can be changed without either being
// refused or saying something else.
func TestDecodeRefusesEveryCutAndEveryChangedByte(t *testing.T) {
	data := sampleBytes(t)
	step := 7 // every byte takes its turn where there is time
	if full() {
		step = 1
	}
	for n := 0; n < len(data); n += step {
		if _, err := Decode("e.json", data[:n]); err == nil || n > 0 && !strings.Contains(err.Error(), "e.json:1:") {
			t.Fatalf("cut off at %d: %v", n, err)
		}
	}
	for i := 0; i < len(data); i += step {
		for _, bit := range []byte{1, 0x20, 0x80} {
			changed := bytes.Clone(data)
			changed[i] ^= bit
			ev, err := Decode("e.json", changed)
			if err != nil {
				continue
			}
			if again, err := Canonical(ev); err != nil || !bytes.Equal(again, changed) {
				t.Fatalf("byte %d changed by %#x: %v", i, bit, err)
			}
		}
	}
}

// FuzzDecode: what is accepted has the canonical form of exactly these bytes, what is not has a place.
func FuzzDecode(f *testing.F) {
	small := sampleEvidence() // large seeds spend the fuzzer's time on making them small
	small.Hosts = small.Hosts[1:]
	small.Hosts[0].Reachable, small.Hosts[0].Macroblocks = true, []Macroblock{{Index: 3, Held: HeldNo}}
	data, err := Canonical(small)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"qnetops/evidence/v1"}`))
	f.Add(bytes.Replace(data, []byte(`"index":3`), []byte(`"index":-3`), 1))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ev, err := Decode("f", data)
		if err != nil {
			if faults, ok := err.(*FileFaults); !ok || len(faults.Faults) == 0 {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if again, err := Canonical(ev); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%v\n%s\n%s", err, data, again)
		}
	})
}

// BenchmarkDecode reads evidence of six hosts as large as a fleet of six makes it.
func BenchmarkDecode(b *testing.B) {
	ev := sampleEvidence()
	host := ev.Hosts[0]
	proven := host.Macroblocks[1]
	host.Macroblocks, ev.Hosts = nil, nil
	for i := range 80 {
		proven.Index = uint64(i + 1)
		host.Macroblocks = append(host.Macroblocks, proven)
	}
	for i := range 6 {
		host.ID = fmt.Sprintf("%03d", i)
		ev.Hosts = append(ev.Hosts, host)
	}
	data, err := Canonical(ev)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Decode("e.json", data); err != nil {
			b.Fatal(err)
		}
	}
}
