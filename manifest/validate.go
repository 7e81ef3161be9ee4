package manifest

import (
	"fmt"
	"math"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Finding is a rule that a manifest breaks. A code without the prefix tool_ is the node's own: a node with that manifest
// refuses to start.
type Finding struct {
	Code string
	Key  string // the field to look at
	Text string
}

// FromNode reports whether the node itself refuses.
func (f Finding) FromNode() bool { return !strings.HasPrefix(f.Code, "tool_") }

// Known is what is known of the chain beside the manifest. Everything in it is optional; what is absent is not checked.
type Known struct {
	Committee []string // members of the committee at the stall
	Alive     []string // identities of it that were shown alive
	K         *Computed
}

// Computed is what was computed from a macroblock's fields, and not copied.
type Computed struct {
	Index                          uint64
	Hash, DigestAnchor, DigestPred node.Hash
}

// Validate judges a manifest: the node's rules in the node's order, of which it reports the first that is broken and no more
// (facts 6.1), and then all of our own.
func Validate(m Manifest, known Known) []Finding {
	var out []Finding
	if first := wellformed(m); first != nil {
		out = append(out, *first)
	}
	t := &tool{m: m, found: out}
	t.pin()
	t.ids()
	t.committee(known)
	t.computed(known.K)
	return t.found
}

// wellformed is the check that the node makes before it opens its storage.
func wellformed(m Manifest) *Finding {
	r, pin := m.Restart, m.Pin
	switch {
	case r.ResumeFromMB == 0 && !r.ResumeMBHash.IsZero():
		return &Finding{"restart_hash_without_height", KeyResumeHash, "a hash to resume from is set, and no macroblock"}
	case r.ResumeFromMB == 0 && len(r.Excluded) > 0:
		return &Finding{"restart_excludes_without_height", KeyExcluded, "identities are barred, and there is no macroblock to resume from"}
	case r.ResumeFromMB == 0:
		return nil
	case r.ResumeMBHash.IsZero():
		return &Finding{"restart_zero_hash", KeyResumeHash, fmt.Sprintf("the hash of macroblock %d is zero: any macroblock would be trusted there", r.ResumeFromMB)}
	case r.ResumeFromMB != pin.Index:
		return &Finding{"restart_disagrees_with_ws_pin_index", KeyResumeFrom, fmt.Sprintf("the restart resumes from macroblock %d, the pin is %d", r.ResumeFromMB, pin.Index)}
	case r.ResumeMBHash != pin.Hash:
		return &Finding{"restart_disagrees_with_ws_pin_hash", KeyResumeHash, fmt.Sprintf("the restart names %s, the pin %s", r.ResumeMBHash, pin.Hash)}
	case pin.DigestAnchor.IsZero():
		return &Finding{"restart_without_committee_digests", KeyDigestAnchor, fmt.Sprintf("the digest of macroblock %d is zero: a forged committee would be trusted there", pin.Index)}
	case pin.DigestPred.IsZero():
		return &Finding{"restart_without_committee_digests", KeyDigestPred, fmt.Sprintf("the digest of the macroblock before %d is zero: a forged committee would be trusted there", pin.Index)}
	}
	for i := 1; i < len(r.Excluded); i++ {
		if r.Excluded[i-1] >= r.Excluded[i] {
			return &Finding{"restart_excluded_not_sorted_or_duplicated", fmt.Sprintf("%s[%d]", KeyExcluded, i), fmt.Sprintf("%q does not come after %q: the list must ascend by bytes, without doubles", r.Excluded[i], r.Excluded[i-1])}
		}
	}
	return nil
}

// tool holds the rules that the node leaves out.
type tool struct {
	m     Manifest
	found []Finding
}

func (t *tool) find(code, key, format string, args ...any) {
	t.found = append(t.found, Finding{"tool_" + code, key, fmt.Sprintf(format, args...)})
}

// pin judges the pin alone: with no restart the node checks nothing of it before a sync fails on it.
func (t *tool) pin() {
	p := t.m.Pin
	k := max(p.Index, t.m.Restart.ResumeFromMB)
	if p.Index == 0 {
		for _, f := range []struct {
			key string
			h   node.Hash
		}{{KeyHash, p.Hash}, {KeyDigestAnchor, p.DigestAnchor}, {KeyDigestPred, p.DigestPred}} {
			if !f.h.IsZero() {
				t.find("pin_without_index", f.key, "a value is set for the pin, and the pin has no macroblock: the node would ignore it")
			}
		}
	}
	if k == 1 {
		key := KeyIndex
		if p.Index != 1 {
			key = KeyResumeFrom
		}
		t.find("k_below_2", key, "macroblock 1 has none before it, so there is no digest of K-1; K must be 2 or more")
	}
	if k > math.MaxUint64/node.MacroblockBlocks {
		t.find("k_too_large", KeyIndex, "macroblock %d would end beyond the largest height", k)
	}
	if p.Index > 0 && !t.m.Active() {
		if p.Hash.IsZero() {
			t.find("pin_zero_hash", KeyHash, "macroblock %d is pinned with a hash of zero: any macroblock would be trusted there", p.Index)
		}
		if p.DigestAnchor.IsZero() || p.DigestPred.IsZero() {
			key := KeyDigestAnchor
			if !p.DigestAnchor.IsZero() {
				key = KeyDigestPred
			}
			t.find("pin_without_digests", key, "macroblock %d is pinned without its digests: the node starts, and every node that joins fails later", p.Index)
		}
	}
	t.distinct()
}

// distinct finds a value that was pasted twice: the three are hashes of different things.
func (t *tool) distinct() {
	p := t.m.Pin
	if !p.DigestAnchor.IsZero() && p.DigestAnchor == p.DigestPred {
		t.find("digests_equal", KeyDigestPred, "the digests of K and K-1 are the same value, which two macroblocks never have: one was pasted twice")
	}
	if p.Hash.IsZero() {
		return
	}
	if p.Hash == p.DigestAnchor {
		t.find("digest_is_hash", KeyDigestAnchor, "the digest of K is the hash of K: one was pasted twice")
	}
	if p.Hash == p.DigestPred {
		t.find("digest_is_hash", KeyDigestPred, "the digest of K-1 is the hash of K: one was pasted twice")
	}
}

// ids finds entries that can be no node id, and so bar nobody.
func (t *tool) ids() {
	for i, id := range t.m.Restart.Excluded {
		key := fmt.Sprintf("%s[%d]", KeyExcluded, i)
		switch {
		case id == "":
			t.find("excluded_bad_id", key, "an id is empty")
		case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }):
			t.find("excluded_bad_id", key, "%q holds a character that no node id has", id)
		}
	}
}

// committee judges who is barred by what is known of the committee (facts 6.1, exclusion rule): barred ids are members, and
// those shown alive are enough for a quorum of the members that remain.
func (t *tool) committee(known Known) {
	if len(known.Committee) == 0 {
		return
	}
	member, barred, alive := set(known.Committee), set(t.m.Restart.Excluded), set(known.Alive)
	for i, id := range t.m.Restart.Excluded {
		if !member[id] {
			t.find("excluded_not_in_committee", fmt.Sprintf("%s[%d]", KeyExcluded, i), "%q was no member of the committee at the stall", id)
		}
	}
	left, voting := 0, 0
	for id := range member {
		if !barred[id] {
			left++
			if alive[id] {
				voting++
			}
		}
	}
	need := node.QuorumSize(left)
	switch {
	case left == 0:
		t.find("excluded_breaks_quorum", KeyExcluded, "the whole committee is barred")
	case len(known.Alive) > 0 && voting < need:
		t.find("excluded_breaks_quorum", KeyExcluded, "%d members remain and need %d to seal, and only %d of them were shown alive", left, need, voting)
	}
}

func set(list []string) map[string]bool {
	out := map[string]bool{}
	for _, id := range list {
		out[id] = true
	}
	return out
}

// computed compares the pin with what was computed from the chain.
func (t *tool) computed(k *Computed) {
	p := t.m.Pin
	if k == nil {
		return
	}
	if k.Index != p.Index {
		t.find("index_not_k", KeyIndex, "the pin is macroblock %d, the one computed is %d", p.Index, k.Index)
		return
	}
	for _, c := range []struct {
		key, what, code string
		got, want       node.Hash
	}{
		{KeyHash, "hash of K", "hash_not_of_k", p.Hash, k.Hash},
		{KeyDigestAnchor, "digest of K", "digest_not_of_k", p.DigestAnchor, k.DigestAnchor},
		{KeyDigestPred, "digest of K-1", "digest_not_of_k_minus_1", p.DigestPred, k.DigestPred},
	} {
		if c.got != c.want {
			t.find(c.code, c.key, "the %s is %s, computed from its fields it is %s", c.what, c.got, c.want)
		}
	}
}
