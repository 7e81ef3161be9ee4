package restart

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Bounds of what evidence takes from a log.
const (
	// LogTail is how many of the newest lines of a node's log are looked through. A parked node prints one a second, so it
	// reaches back five hours at the least.
	LogTail = 20_000
	// MaxLines is how many lines of one host enter the evidence, the newest first.
	MaxLines = 200
	// maxLinesOfKind keeps a line that repeats every second from pushing out the ones that came once.
	maxLinesOfKind = 40
)

// withheld stands for each part of a line that is not known to be public.
const withheld = "***"

// lineKind is a kind of line that says something about a stall (facts 4), and the keys whose values are shown.
type lineKind struct {
	module, word string
	keys         string
}

// lineKinds are the kinds that are taken, besides every line of level FATAL: seals and what kept them from being made, votes
// and what was not voted for, certificates refused, rollbacks, the genesis-signed checkpoint, parking, restart manifest.
func lineKinds() []lineKind {
	return []lineKind{
		{"BFT2", "macroblock_sealed", "window round head_h signers role idx"},
		{"BFT2", "seal_deferred", "window reason"},
		{"BFT2", "seal_skipped", "window reason"},
		{"BFT2", "persist_refused", "head reason detail"},
		{"BFT2", "macroblock_save_failed", "window"},
		{"BFT2", "finalize_deferred", "round head_h chain_h state_match content_ok"},
		{"BFT2", "qc_rejected", "index signers committee quorum"},
		{"BFT2", "catchup_rejected", "window signers foreign_signers"},
		{"BFT2", "committee_unresolved", "win action"},
		{"BFT2", "consensus_not_started", "reason"},
		{"CONS", "participating", "validator mb active_lock"},
		{"CONS", "checkpoint_defer", "mb reason"},
		{"CONS", "window_end_abstain", "mb eligible committee reason"},
		{"COMMITTEE", "NOT_IN_COMMITTEE", "mb total committee"},
		{"MB", "consensus_skip_unsynced", "mb local_h network_h reason"},
		{"MB", "finality_lag_redrive", "fin tip boundary kind"},
		{"GALC", "root_adopted", "mb hash"},
		{"GALC", "reloaded_persisted_root", "mb hash"},
		{"ROLLBACK", "refused", "target certified_floor reason action"},
		{"ROLLBACK", "no_certified_point_found", "action"},
		{"ROLLBACK", "already_at_or_below", "target"},
		{"ROLLBACK", "truncated_to", "truncated_to dropped"},
		{"ROLLBACK", "failed", "target action"},
		{"ROLLBACK", "signed_mark_lowered", "from_h from_w to_h to_w reason"},
		{"ROLLBACK", "signed_mark_lower_failed", "to"},
		{"RESTART", "malformed_manifest", "err"},
		{"RESTART", "manifest_active", "resume_from_mb excluded"},
		{"PROD", "parked", "reason h seal_base rotation"},
		{"PROD", "already_signed_this_round", "h hwm_h action"},
		{"HALT", "Reached", "halt_height current"},
		{"BOOT", "subsystems_missing", "count action"},
		{"WATCHDOG", "chain_stuck", "h network secs"},
		{"WATCHDOG", "chain_halted", "h network secs"},
	}
}

// lineWords are the words that a node writes as values and in brackets in front. Other words are withheld: a word list's
// seed consists of words too.
const lineWords = ` INFO WARN ERR ERROR CRIT FATAL GEN PREFLIGHT RPC NODE STATE MEMORY STORAGE
 leader replica true false acquired macro intra live
 parent_absent ban_set_underivable seal_inputs_absent epoch_commitment_mismatch anchor_unsealed_frozen underivable
 behind_network vote_commitments_unreadable certified_checkpoint_irrevocable blocks_abandoned roster_derivation_horizon
 start_unchanged fetch buffer yield exit
 restart_hash_without_height restart_excludes_without_height restart_zero_hash restart_disagrees_with_ws_pin_index
 restart_disagrees_with_ws_pin_hash restart_without_committee_digests restart_excluded_not_sorted_or_duplicated `

// linePicker takes the lines of one log that matter, oldest first, and forgets the others.
type linePicker struct {
	kinds  map[string]lineKind // by module and word
	number *regexp.Regexp
	digest *regexp.Regexp
	newest time.Time // lines after it carry no time: the host's clock is ahead
	count  int
	kept   map[string][]pickedLine
	floor  *uint64 // of the newest line that names it
}

type pickedLine struct {
	order int
	line  Line
}

func newLinePicker(now time.Time) *linePicker {
	p := &linePicker{kinds: map[string]lineKind{}, kept: map[string][]pickedLine{}, newest: now.Add(clockSlack),
		number: regexp.MustCompile(`^[0-9]{1,20}$`), digest: regexp.MustCompile(`^([0-9a-f]{16}|[0-9a-f]{64})$`)}
	for _, k := range lineKinds() {
		p.kinds[k.module+" "+k.word] = k
	}
	return p
}

// see looks at one line as the engine gave it, its timestamp in front.
func (p *linePicker) see(raw string) {
	p.count++
	l := node.ParseLine(raw)
	k, known := p.kinds[l.Module+" "+l.Event]
	if first, _, pair := strings.Cut(l.Text, "="); !known && pair {
		k, known = p.kinds[l.Module+" "+first] // a line that begins with its first pair
	}
	if !known && !node.Fatal(l) {
		return
	}
	if floor, ok := floorIn(l); ok && floor <= MaxSafe {
		p.floor = &floor
	}
	if !known {
		k = lineKind{module: l.Module}
	}
	sum := sha256.Sum256([]byte(raw))
	out := Line{Kind: p.kind(l, k), Text: p.text(l, k), SHA256: hex.EncodeToString(sum[:])}
	if !l.Time.IsZero() && !l.Time.After(p.newest) {
		at := l.Time.UTC()
		out.At = &at
	}
	list := append(p.kept[out.Kind], pickedLine{p.count, out})
	p.kept[out.Kind] = list[max(0, len(list)-maxLinesOfKind):]
}

// floorIn reads the certified floor from a line that names it: a refused rollback, or a producer that is parked, whose seal
// base is the higher of its last seal and of what it holds certified (facts 3).
func floorIn(l node.LogLine) (floor uint64, ok bool) {
	if _, floor, ok = node.RollbackRefused(l); ok {
		return floor, true
	}
	_, floor, ok = node.Parked(l)
	return floor, ok
}

// kind is what a line begins with: [LEVEL][MODULE] and its word, as far as they are public.
func (p *linePicker) kind(l node.LogLine, k lineKind) string {
	module := l.Module
	if k.word == "" && !publicWord(module) && !p.knowsModule(module) {
		module = withheld
	}
	level := l.Level
	if !publicWord(level) {
		level = withheld
	}
	return strings.TrimSpace("[" + level + "][" + module + "] " + k.word)
}

func (p *linePicker) knowsModule(module string) bool {
	return slices.ContainsFunc(lineKinds(), func(k lineKind) bool { return k.module == module })
}

func publicWord(s string) bool {
	return s != "" && !strings.ContainsAny(s, " \n") && strings.Contains(lineWords, " "+s+" ") || strings.Contains(lineWords, "\n"+s+" ") || strings.Contains(lineWords, " "+s+"\n")
}

// text is a line without anything that is not known to be public: the secrets of a node are not known here, and a list of
// what may be shown needs no knowledge of them.
func (p *linePicker) text(l node.LogLine, k lineKind) string {
	out := []string{p.kind(l, lineKind{module: k.module})}
	for _, token := range strings.Fields(l.Text) {
		if !p.public(token, k) {
			token = withheld
		}
		if token != withheld || out[len(out)-1] != withheld {
			out = append(out, token)
		}
	}
	return strings.Join(out, " ")
}

func (p *linePicker) public(token string, k lineKind) bool {
	if token == k.word && k.word != "" {
		return true
	}
	key, value, pair := strings.Cut(token, "=")
	if !pair || !slices.Contains(strings.Fields(k.keys), key) {
		return false
	}
	return p.number.MatchString(value) || publicWord(value) || key == "hash" && p.digest.MatchString(value)
}

// lines are the newest lines that were taken, oldest first. Where there are too many, the kinds with the most give way.
func (p *linePicker) lines() []Line {
	total := 0
	for _, list := range p.kept {
		total += len(list)
	}
	for ; total > MaxLines; total-- {
		most := ""
		for kind, list := range p.kept {
			if n := len(p.kept[most]); len(list) > n || len(list) == n && kind < most {
				most = kind
			}
		}
		p.kept[most] = p.kept[most][1:]
	}
	var all []pickedLine
	for _, list := range p.kept {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b pickedLine) int { return cmp.Compare(a.order, b.order) })
	out := []Line{}
	for _, l := range all {
		out = append(out, l.line)
	}
	return out
}
