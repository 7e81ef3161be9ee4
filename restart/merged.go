package restart

import (
	"time"

	"github.com/qnetops/qnetops/node"
)

// Merged is what all operators' files say together, after everything that is not to be believed was left out.
type Merged struct {
	Operators []OperatorEvidence `json:"operators"` // by Operator, ascending
	LeftOut   []LeftOut          `json:"left_out"`
	// Expected are the principals of the allowed-signers file: the operators whose evidence is asked for.
	Expected []string `json:"expected"`
}

// OperatorEvidence is one operator's file with his supplements taken in.
type OperatorEvidence struct {
	Evidence Evidence  `json:"evidence"`
	Files    []FileRef `json:"files"` // the files it came from, by Number
	// ReadAt is when each host was read last, by its id: a supplement need not read all of them, and what an earlier file says
	// of the others is no newer for it.
	ReadAt map[string]time.Time `json:"read_at"`
}

// readAt is when a host was read last.
func (e OperatorEvidence) readAt(host string) time.Time {
	if at, ok := e.ReadAt[host]; ok {
		return at
	}
	return e.Evidence.TakenAt
}

// FileRef names a file of evidence by its content.
type FileRef struct {
	Name   string `json:"name"`   // base name
	Number uint64 `json:"number"` // of the evidence in it
	SHA256 string `json:"sha256"`
	Signer string `json:"signer"` // principal
	Key    string `json:"key"`    // fingerprint SHA256:… of the key that signed it
}

// LeftOut is a file, or a part of one, that does not count, and why.
type LeftOut struct {
	Name   string `json:"name"`
	Code   string `json:"code"` // bad_signature, unknown_signer, changed, unreadable, conflict, other_chain, future, gap, superseded
	Reason string `json:"reason"`
}

// Refusal is a macroblock newer than K, and why it was not chosen.
type Refusal struct {
	Index  uint64 `json:"index"`
	Reason string `json:"reason"`
}

// Disagreement is a macroblock of which nodes say different things. Values maps "operator/host" to what it said.
type Disagreement struct {
	Index  uint64            `json:"index"`
	Kind   string            `json:"kind"` // hash or digest
	Values map[string]string `json:"values"`
}

// HostWay says how one host can be brought to K (DESIGN.md 3.7).
type HostWay struct {
	ID             string  `json:"id"` // "operator/host"
	CertifiedFloor *uint64 `json:"certified_floor"`
	Way            string  `json:"way"` // rollback, rename, none (nothing above K), unknown
	Reason         string  `json:"reason"`
}

// Proposal is the choice of K, or why there is none. It is the document of `restart propose-k`.
type Proposal struct {
	Schema        string         `json:"schema"` // qnetops/propose-k/v1
	K             *uint64        `json:"k"`      // nil: none, see Stop and Needed
	Hash          *node.Hash     `json:"hash"`
	Digest        *node.Hash     `json:"digest"`
	DigestPred    *node.Hash     `json:"digest_pred"`
	HeldBy        []string       `json:"held_by"` // "operator/host"
	Absent        []Absent       `json:"absent"`
	Refused       []Refusal      `json:"refused"` // newest first
	Disagreements []Disagreement `json:"disagreements"`
	Hosts         []HostWay      `json:"hosts"`
	Verified      string         `json:"verified"` // signatures or agreement
	VerifiedNote  string         `json:"verified_note"`
	Stop          string         `json:"stop,omitempty"` // why there is no K, with the first offending window
	StopCode      string         `json:"stop_code,omitempty"`
	Needed        []NeededRange  `json:"needed,omitempty"` // what each operator has to add before it can be decided
	LeftOut       []LeftOut      `json:"left_out"`
}

// Absent is an operator who gave no evidence and was waived by name.
type Absent struct {
	Operator string `json:"operator"`
	Reason   string `json:"reason"`
}

// NeededRange is a range an operator's supplement has to cover (restart gather --from --to).
type NeededRange struct {
	Operator string `json:"operator"`
	IndexRange
	Reason string `json:"reason"` // what is not known of it so far, by host
}
