package node

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// LogLine is one line of a node's log, taken apart. A line of another shape keeps
// its text and has no level.
type LogLine struct {
	Level  string // INFO, WARN, ERR, ERROR, CRIT, FATAL, METRICS, …
	Module string // BFT2, CONS, NODE, …
	// Event is the first bare word of the message, for example macroblock_sealed.
	Event string
	// Keys holds the key=value tokens. A key that appears twice with different
	// values is left out: it cannot be trusted.
	Keys   map[string]string
	Text   string    // the message as written, without prefix and timestamp
	Time   time.Time // from the engine's timestamps; zero when there were none
	Stderr bool      // set by whoever knows the stream; fatal lines go to stderr
}

// ParseLine takes a raw line apart. It never fails.
func ParseLine(raw string) LogLine {
	raw = strings.TrimRight(raw, "\r\n")
	var l LogLine
	l.Time, raw = cutTimestamp(raw)
	l.Text = raw
	level, rest, ok := cutBracket(raw)
	if !ok {
		return l
	}
	module, rest, ok := cutBracket(rest)
	if !ok {
		return l
	}
	l.Level, l.Module, l.Text = level, module, strings.TrimLeft(rest, " ")
	l.scan()
	return l
}

// ParseStreamLine is ParseLine with the stream the line came from.
func ParseStreamLine(raw string, stderr bool) LogLine {
	l := ParseLine(raw)
	l.Stderr = stderr
	return l
}

// cutTimestamp takes the RFC 3339 prefix that the engine adds on request.
func cutTimestamp(s string) (time.Time, string) {
	const shortest = len("2006-01-02T15:04:05Z")
	if len(s) < shortest || s[0] < '0' || s[0] > '9' {
		return time.Time{}, s
	}
	stamp, rest, _ := strings.Cut(s, " ")
	t, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return time.Time{}, s
	}
	return t, rest
}

// cutBracket takes "[WORD]" off the front. Words are short and made of capitals,
// digits, dash and underscore, so that prose in brackets is not taken for a level.
func cutBracket(s string) (word, rest string, ok bool) {
	if s == "" || s[0] != '[' {
		return "", s, false
	}
	end := strings.IndexByte(s, ']')
	if end < 2 || end > 32 {
		return "", s, false
	}
	word = s[1:end]
	for _, r := range word {
		if (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return "", s, false
		}
	}
	return word, s[end+1:], true
}

// scan fills Event and Keys from the message. Keys are matched whole: a token is
// split at its first "=", so neither foreign_signers=0 nor build=x-h=5 is taken
// for another key.
func (l *LogLine) scan() {
	var torn map[string]bool
	for rest := l.Text; rest != ""; {
		var token string
		token, rest = nextToken(rest)
		key, value, isPair := strings.Cut(token, "=")
		key = strings.TrimLeft(key, "(")
		if !isPair || !isKey(key) {
			if l.Event == "" && isWord(token) {
				l.Event = token
			}
			continue
		}
		if value != "" && value[0] != '[' && value[0] != '"' {
			value = strings.TrimRight(value, ",;)")
		}
		if old, dup := l.Keys[key]; dup && old != value {
			if torn == nil {
				torn = map[string]bool{}
			}
			torn[key] = true
		}
		if l.Keys == nil {
			l.Keys = make(map[string]string, 8)
		}
		l.Keys[key] = value
	}
	for key := range torn {
		delete(l.Keys, key)
	}
}

// nextToken cuts at white space, but keeps a bracketed or quoted value together.
func nextToken(s string) (token, rest string) {
	s = strings.TrimLeft(s, " \t")
	end := strings.IndexAny(s, " \t")
	if end < 0 {
		return s, ""
	}
	if eq := strings.IndexByte(s[:end], '='); eq >= 0 && eq+1 < end {
		var closer byte
		switch s[eq+1] {
		case '[':
			closer = ']'
		case '"':
			closer = '"'
		}
		if closer != 0 {
			if n := strings.IndexByte(s[eq+2:], closer); n >= 0 {
				end = eq + 2 + n + 1
			}
		}
	}
	return s[:end], s[end:]
}

func isKey(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			return false
		}
	}
	return true
}

// isWord reports whether a token can name an event: it starts with a letter and
// is no pair.
func isWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') && !strings.Contains(s, "=")
}

// Uint reads a key as a whole number; a missing key or another form is not ok.
func (l LogLine) Uint(key string) (uint64, bool) {
	v, found := l.Keys[key]
	if !found || v == "" || v[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(v, 10, 64)
	return n, err == nil
}

// Seconds reads a key written like "60s".
func (l LogLine) Seconds(key string) (time.Duration, bool) {
	v, ok := strings.CutSuffix(l.Keys[key], "s")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(v, 10, 31)
	return time.Duration(n) * time.Second, err == nil
}

// is matches module and event exactly.
func (l LogLine) is(module, event string) bool { return l.Module == module && l.Event == event }

// has reports a bare word in the message.
func (l LogLine) has(word string) bool {
	for w := range strings.FieldsSeq(l.Text) {
		if w == word {
			return true
		}
	}
	return false
}

// Seal is a logged seal. Not every seal is logged; its absence proves nothing.
type Seal struct {
	Window, Round, HeadHeight uint64
	Signers                   int    // size of this certificate
	Role                      string // leader or replica: who proposed, not who signed
}

// Sealed reads macroblock_sealed in its current form and that of the first v2
// builds, which give an index and no role. A line whose numbers contradict each
// other, or with no signer, is not a seal.
func Sealed(l LogLine) (Seal, bool) {
	if !l.is("BFT2", "macroblock_sealed") {
		return Seal{}, false
	}
	head, ok1 := l.Uint("head_h")
	signers, ok2 := l.Uint("signers")
	if !ok1 || !ok2 || signers == 0 || signers > MaxCommittee || head == 0 || head%MacroblockBlocks != 0 {
		return Seal{}, false
	}
	s := Seal{Window: head / MacroblockBlocks, HeadHeight: head, Signers: int(signers), Role: l.Keys["role"]}
	if _, current := l.Keys["window"]; !current {
		_, old := l.Uint("idx")
		return s, old
	}
	window, ok1 := l.Uint("window")
	round, ok2 := l.Uint("round")
	s.Round = round
	return s, ok1 && ok2 && window == s.Window && (s.Role == "leader" || s.Role == "replica")
}

// Participation reads the line a node prints once a window when it is in roster
// and committee and in step. It comes before anything is signed: see Defer and
// Abstain, which take it back.
func Participation(l LogLine) (window uint64, ok bool) {
	if l.Module != "CONS" || l.Keys["validator"] != "true" || !l.has("participating") {
		return 0, false
	}
	return l.Uint("mb")
}

// Defer reads checkpoint_defer: the node put its vote for the window off.
func Defer(l LogLine) (window uint64, ok bool) {
	if !l.is("CONS", "checkpoint_defer") {
		return 0, false
	}
	return l.Uint("mb")
}

// Abstain reads window_end_abstain: the node does not vote in the window.
func Abstain(l LogLine) (window uint64, ok bool) {
	if !l.is("CONS", "window_end_abstain") {
		return 0, false
	}
	return l.Uint("mb")
}

// NotInCommittee reads the line of a node outside the committee of a window.
func NotInCommittee(l LogLine) (window uint64, ok bool) {
	if l.Module != "COMMITTEE" || !l.has("NOT_IN_COMMITTEE") {
		return 0, false
	}
	return l.Uint("mb")
}

// ConsensusSkip reads the line of a node too far behind to take part in a window.
func ConsensusSkip(l LogLine) (window uint64, ok bool) {
	if !l.is("MB", "consensus_skip_unsynced") {
		return 0, false
	}
	return l.Uint("mb")
}

// FailoverReading is a failover metrics line. Whether the counters start anew
// with every line is not known; compare two readings instead of judging one.
type FailoverReading struct {
	Events          uint64
	MaxTimeoutRound uint64
}

// FailoverMetrics reads [METRICS][FAILOVER]; both counters must be there, in any order.
func FailoverMetrics(l LogLine) (FailoverReading, bool) {
	if l.Level != "METRICS" || l.Module != "FAILOVER" {
		return FailoverReading{}, false
	}
	events, ok1 := l.Uint("failover_events")
	round, ok2 := l.Uint("max_timeout_round")
	return FailoverReading{events, round}, ok1 && ok2
}

// BringupComplete reads the end of the boot: from here on a stop is flushed.
func BringupComplete(l LogLine) bool { return l.is("NODE", "bringup_complete") }

// ProductionStart reads the start of the production loop.
func ProductionStart(l LogLine) bool { return l.is("NODE", "production_start") }

// Fatal reports a line after which the process exits.
func Fatal(l LogLine) bool { return l.Level == "FATAL" }

// Grave reports fatal, critical and error lines, under every spelling in use.
func Grave(l LogLine) bool {
	switch l.Level {
	case "FATAL", "CRIT", "ERR", "ERROR":
		return true
	}
	return false
}

// HaltArmed reads the line a node with a halt height prints at start.
func HaltArmed(l LogLine) (height uint64, ok bool) {
	if l.Module != "HALT" {
		return 0, false
	}
	return l.Uint("QNET_HALT_HEIGHT")
}

// HaltReached reads the stop on a halt height; current may exceed it.
func HaltReached(l LogLine) (height, current uint64, ok bool) {
	if !l.is("HALT", "Reached") {
		return 0, 0, false
	}
	height, ok1 := l.Uint("halt_height")
	current, ok2 := l.Uint("current")
	return height, current, ok1 && ok2 && current >= height
}

// HaltStopped reads the last line before the exit on a halt height.
func HaltStopped(l LogLine) bool {
	return l.Module == "HALT" && strings.HasPrefix(l.Text, "Node stopped.")
}

// Parked reads the line of a producer beyond the roster horizon.
func Parked(l LogLine) (height, sealBase uint64, ok bool) {
	if !l.is("PROD", "parked") || l.Keys["reason"] != "roster_derivation_horizon" {
		return 0, 0, false
	}
	height, ok1 := l.Uint("h")
	sealBase, ok2 := l.Uint("seal_base")
	return height, sealBase, ok1 && ok2
}

// Truncated reads a rollback that dropped blocks at boot.
func Truncated(l LogLine) (to, dropped uint64, ok bool) {
	if l.Module != "ROLLBACK" {
		return 0, 0, false
	}
	to, ok1 := l.Uint("truncated_to")
	dropped, ok2 := l.Uint("dropped")
	return to, dropped, ok1 && ok2
}

// RollbackRefused reads the refusal of a rollback below the certified floor.
func RollbackRefused(l LogLine) (target, floor uint64, ok bool) {
	if !l.is("ROLLBACK", "refused") {
		return 0, 0, false
	}
	target, ok1 := l.Uint("target")
	floor, ok2 := l.Uint("certified_floor")
	return target, floor, ok1 && ok2
}

// QCRejection is a refused certificate. Fields the line does not carry are nil.
type QCRejection struct {
	Event                               string // qc_rejected or catchup_rejected
	Signers, Committee, Quorum, Foreign *uint64
}

// QCRejected reads qc_rejected and catchup_rejected wherever the word stands.
func QCRejected(l LogLine) (QCRejection, bool) {
	var r QCRejection
	for _, word := range []string{"qc_rejected", "catchup_rejected"} {
		if l.Level != "" && l.has(word) {
			r.Event = word
		}
	}
	for key, to := range map[string]**uint64{
		"signers": &r.Signers, "committee": &r.Committee, "quorum": &r.Quorum, "foreign_signers": &r.Foreign,
	} {
		if v, ok := l.Uint(key); ok {
			*to = &v
		}
	}
	return r, r.Event != ""
}

// ManifestActive reads the line of a release that carries a restart manifest.
func ManifestActive(l LogLine) (resumeFrom, excluded uint64, ok bool) {
	if !l.is("RESTART", "manifest_active") {
		return 0, 0, false
	}
	resumeFrom, ok1 := l.Uint("resume_from_mb")
	excluded, ok2 := l.Uint("excluded")
	return resumeFrom, excluded, ok1 && ok2
}

// MalformedManifest reads the refusal to start on a bad restart manifest.
func MalformedManifest(l LogLine) (code string, ok bool) {
	if !l.is("RESTART", "malformed_manifest") {
		return "", false
	}
	code, ok = l.Keys["err"]
	return code, ok
}

// SubsystemsMissing reads the boot contract that ends the process.
func SubsystemsMissing(l LogLine) (names []string, ok bool) {
	if !l.is("BOOT", "subsystems_missing") {
		return nil, false
	}
	return strings.Split(l.Keys["names"], ","), true
}

// RootAdopted reads a genesis-signed live checkpoint: macroblock and the first 16
// hex digits of its hash.
func RootAdopted(l LogLine) (mb uint64, hash16 string, ok bool) {
	if !l.is("GALC", "root_adopted") {
		return 0, "", false
	}
	mb, ok = l.Uint("mb")
	return mb, l.Keys["hash"], ok && len(l.Keys["hash"]) == 16
}
