package restart

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
)

// clockSlack is how far clocks of one fleet may be apart before a time counts as one of the future.
const clockSlack = 5 * time.Minute

// maxName bounds names of operators, hosts and nodes, in bytes.
const maxName = 256

// judgeEvidence looks for what the shape of the file cannot show: values that contradict each other.
func judgeEvidence(name string, ev Evidence) []FileFault {
	j := judge{file: name}
	j.want(ev.Schema == EvidenceSchema, "schema", "is %q, want %s", clipped(ev.Schema), EvidenceSchema)
	j.name("operator", ev.Operator)
	j.name("fleet", ev.Fleet)
	j.want(isHex(ev.ID, 32), "id", "want 32 lower-case hex digits")
	j.want(ev.Number > 0, "number", "is 0, the first file has number 1")
	j.want(!ev.TakenAt.IsZero() && ev.TakenAt.Nanosecond() == 0, "taken_at", "want a time of whole seconds")
	for i, r := range ev.Asked {
		j.want(r.From > 0 && r.From <= r.To, fmt.Sprintf("asked[%d]", i), "%d to %d is no range of macroblocks, which begin at 1", r.From, r.To)
	}
	last := ""
	for i, h := range ev.Hosts {
		key := fmt.Sprintf("hosts[%d]", i)
		j.name(key+".id", h.ID)
		j.want(!strings.ContainsAny(h.ID, "/ "), key+".id", "%q holds a slash or a space: it is shown as operator/host", clipped(h.ID))
		j.want(i == 0 || h.ID > last, key+".id", "%q is listed twice or out of order", clipped(h.ID))
		last = h.ID
		j.host(key, h, ev.TakenAt)
	}
	return j.faults
}

type judge struct {
	file   string
	faults []FileFault
}

func (j *judge) want(ok bool, key, format string, args ...any) {
	if !ok {
		j.faults = append(j.faults, FileFault{File: j.file, Key: key, What: fmt.Sprintf(format, args...)})
	}
}

func (j *judge) name(key, s string) {
	j.want(s != "" && len(s) <= maxName && isPlain(s), key, "want a name of 1 to %d bytes without control characters", maxName)
}

// ids are identities of which each stands there once.
func (j *judge) ids(key string, list []string) {
	seen := make(map[string]bool, len(list))
	for i, id := range list {
		j.want(id != "" && len(id) <= maxName, fmt.Sprintf("%s[%d]", key, i), "want an identity of 1 to %d bytes", maxName)
		j.want(!seen[id], fmt.Sprintf("%s[%d]", key, i), "%s stands there twice", clipped(id))
		seen[id] = true
	}
}

func isHex(s string, digits int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b)*2 == digits && s == strings.ToLower(s)
}

func (j *judge) host(key string, h HostFinding, taken time.Time) {
	j.want(h.Reachable || h.Reason != "", key+".reason", "a host that was not reached needs a reason")
	j.want(h.Reachable || len(h.Macroblocks)+len(h.Lines)+len(h.Committee)+len(h.Snapshots) == 0 && h.NodeID == "" && h.Height == nil && h.Sealed == nil,
		key+".reachable", "is false, and yet there are readings of the node")
	if h.TipHash != nil {
		_, err := node.ParseHash(*h.TipHash)
		j.want(err == nil, key+".tip_hash", "%v", err)
	}
	j.want(len(h.Committee) <= node.MaxCommittee, key+".committee", "has %d members, more than %d", len(h.Committee), node.MaxCommittee)
	j.want(len(h.NodeID) <= maxName, key+".node_id", "is longer than %d bytes", maxName)
	j.want(len(h.Lines) <= MaxLines, key+".lines", "are %d, more than %d", len(h.Lines), MaxLines)
	j.ids(key+".committee", h.Committee)
	if len(h.Keys) > len(h.Committee) {
		j.want(false, key+".keys", "are %d of a committee of %d", len(h.Keys), len(h.Committee))
		return
	}
	for id := range h.Keys {
		j.want(slices.Contains(h.Committee, id), key+".keys."+clipped(id), "is not in the committee")
	}
	for i, m := range h.Macroblocks {
		at := fmt.Sprintf("%s.macroblocks[%d]", key, i)
		j.want(m.Index > 0, at+".index", "is 0, there is no such macroblock")
		j.want(i == 0 || m.Index > h.Macroblocks[i-1].Index, at+".index", "%d is listed twice or out of order", m.Index)
		j.macroblock(at, m)
	}
	for i, l := range h.Lines {
		at := fmt.Sprintf("%s.lines[%d]", key, i)
		j.want(l.Kind != "", at+".kind", "is empty")
		j.want(isHex(l.SHA256, 64), at+".sha256", "want 64 lower-case hex digits")
		j.want(l.At == nil || !l.At.After(taken.Add(clockSlack)), at+".at", "is later than taken_at")
	}
}

func (j *judge) macroblock(key string, m Macroblock) {
	switch m.Held {
	case HeldYes:
		j.want(m.Hash != nil, key+".hash", "a macroblock that is held has a hash")
	case HeldNo, HeldUnknown:
		j.want(m.Hash == nil && m.Digest == nil && m.Proof == nil, key+".held", "is %s, and yet there are readings of the macroblock", m.Held)
		j.want(m.Held == HeldNo || m.Reason != "", key+".reason", "what is unknown needs a reason")
	default:
		j.want(false, key+".held", "is %q, want %s, %s or %s", clipped(string(m.Held)), HeldYes, HeldNo, HeldUnknown)
	}
	if m.Proof != nil {
		j.certificate(key+".certificate", *m.Proof)
	}
}

func (j *judge) certificate(key string, c Certificate) {
	j.want(c.Committee >= 0 && c.Committee <= node.MaxCommittee, key+".committee", "%d is no size of a committee", c.Committee)
	j.want(c.Quorum == node.QuorumSize(c.Committee), key+".quorum", "is %d, the quorum of %d members is %d", c.Quorum, c.Committee, node.QuorumSize(c.Committee))
	j.want(c.Members == nil || len(c.Members) == c.Committee, key+".members", "are %d of a committee of %d", len(c.Members), c.Committee)
	s := c.Signatures
	j.want(s.Valid >= 0 && s.Invalid >= 0 && s.Unreadable >= 0 && s.Valid+s.Invalid+s.Unreadable <= len(c.Signers), key+".signatures",
		"%d valid, %d invalid, %d unreadable of %d signers", s.Valid, s.Invalid, s.Unreadable, len(c.Signers))
	j.want(c.Fault != "" || !c.Relaxed && len(c.Signers) >= c.Quorum && c.Quorum > 0, key+".fault",
		"is empty, and yet the certificate is relaxed or short of its quorum")
}
