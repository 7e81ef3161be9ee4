package simnode

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"golang.org/x/crypto/sha3"

	"github.com/qnetops/qnetops/node"
)

// Manifest is what a restart compiles into a release of the node (facts 6.1, 6.2): the restart manifest and the pin. Its JSON
// form is that of a manifest file, which is how an image of the lab carries it in [EnvManifest]. The zero value is a release
// without either.
type Manifest struct {
	Schema  string  `json:"schema,omitempty"`
	Restart Restart `json:"restart"`
	Pin     Pin     `json:"ws_checkpoint"`
}

// Restart is RESTART_MANIFEST.
type Restart struct {
	ResumeFromMB uint64    `json:"resume_from_mb"`
	ResumeMBHash node.Hash `json:"resume_mb_hash"`
	Excluded     []string  `json:"excluded"`
}

// Pin is WS_CHECKPOINT with its two digests.
type Pin struct {
	Index        uint64    `json:"index"`
	Hash         node.Hash `json:"hash"`
	DigestAnchor node.Hash `json:"digest_anchor"` // of macroblock Index
	DigestPred   node.Hash `json:"digest_pred"`   // of the one before it
}

// ParseManifest reads the JSON form; keys it does not know are an error.
func ParseManifest(text []byte) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("reading the lab image's manifest: %w", err)
	}
	return m, nil
}

// Env is the variable of an image that was built with this manifest.
func (m Manifest) Env() (string, error) {
	if m.Restart.Excluded == nil {
		m.Restart.Excluded = []string{}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("writing the lab image's manifest: %w", err)
	}
	return EnvManifest + "=" + string(raw), nil
}

// Build is the QNET_BUILD_ID of an image with this manifest under a tag: equal content, equal build.
func (m Manifest) Build(tag string) string {
	env, _ := m.Env() // plain data
	sum := sha3.Sum256([]byte(tag + "\x00" + env))
	return hex.EncodeToString(sum[:6])
}

// AddedImage is an image that was added to the registry of a lab while it ran.
type AddedImage struct {
	Ref    string `json:"ref"`    // registry, repository and tag
	Digest string `json:"digest"` // sha256:…
	Build  string `json:"build"`  // QNET_BUILD_ID of the image
}

// active says whether the release resumes the chain from a macroblock.
func (m Manifest) active() bool { return m.Restart.ResumeFromMB > 0 }

// Refusal is the code with which a node of this release refuses to start, empty when the manifest is well-formed. The order
// is the node's.
func (m Manifest) Refusal() string {
	r, pin := m.Restart, m.Pin
	switch {
	case r.ResumeFromMB == 0 && !r.ResumeMBHash.IsZero():
		return "restart_hash_without_height"
	case r.ResumeFromMB == 0 && len(r.Excluded) > 0:
		return "restart_excludes_without_height"
	case r.ResumeFromMB == 0:
		return ""
	case r.ResumeMBHash.IsZero():
		return "restart_zero_hash"
	case r.ResumeFromMB != pin.Index:
		return "restart_disagrees_with_ws_pin_index"
	case r.ResumeMBHash != pin.Hash:
		return "restart_disagrees_with_ws_pin_hash"
	case pin.DigestAnchor.IsZero() || pin.DigestPred.IsZero():
		return "restart_without_committee_digests"
	}
	for i := 1; i < len(r.Excluded); i++ {
		if r.Excluded[i-1] >= r.Excluded[i] {
			return "restart_excluded_not_sorted_or_duplicated"
		}
	}
	return ""
}

// checkRelease is the check that comes before storage opens.
func (p *proc) checkRelease(env environ) (int, bool) {
	text := env.get(EnvManifest)
	if text == "" {
		return 0, true
	}
	m, err := ParseManifest([]byte(text))
	if err != nil {
		p.log.stderr("[FATAL][LAB] %v", err)
		return exitFault, false
	}
	if code := m.Refusal(); code != "" {
		p.log.stderr("[FATAL][RESTART] malformed_manifest err=%s — refusing to start", code)
		return exitFault, false
	}
	p.s.release = m
	if m.active() {
		p.log.stderr("[WARN][RESTART] manifest_active resume_from_mb=%d excluded=%d", m.Restart.ResumeFromMB, len(m.Restart.Excluded))
	}
	return 0, true
}
