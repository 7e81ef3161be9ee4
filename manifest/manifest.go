package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Schema names the JSON form. A JSON file may leave it out.
const Schema = "qnetops/manifest/v1"

// Restart is RESTART_MANIFEST: which macroblock the chain resumes from and who is barred. All zero and empty: no restart.
type Restart struct {
	ResumeFromMB uint64    `toml:"resume_from_mb" json:"resume_from_mb"`
	ResumeMBHash node.Hash `toml:"resume_mb_hash" json:"resume_mb_hash"`
	Excluded     []string  `toml:"excluded" json:"excluded"` // node ids, strictly ascending by bytes
}

// Pin is WS_CHECKPOINT and its two digests: the macroblock from which a node that joins verifies the chain.
type Pin struct {
	Index        uint64    `toml:"index" json:"index"`
	Hash         node.Hash `toml:"hash" json:"hash"`
	DigestAnchor node.Hash `toml:"digest_anchor" json:"digest_anchor"` // committee-fields digest of macroblock Index
	DigestPred   node.Hash `toml:"digest_pred" json:"digest_pred"`     // of Index-1
}

// Manifest is the five constants of a release.
type Manifest struct {
	Restart Restart `toml:"restart" json:"restart"`
	Pin     Pin     `toml:"ws_checkpoint" json:"ws_checkpoint"`
}

// The keys of the fields in files, positions, findings and differences.
const (
	KeyResumeFrom   = "restart.resume_from_mb"
	KeyResumeHash   = "restart.resume_mb_hash"
	KeyExcluded     = "restart.excluded"
	KeyIndex        = "ws_checkpoint.index"
	KeyHash         = "ws_checkpoint.hash"
	KeyDigestAnchor = "ws_checkpoint.digest_anchor"
	KeyDigestPred   = "ws_checkpoint.digest_pred"
)

// Keys lists all keys in the order of the file.
func Keys() []string {
	return []string{KeyResumeFrom, KeyResumeHash, KeyExcluded, KeyIndex, KeyHash, KeyDigestAnchor, KeyDigestPred}
}

// Active reports whether a restart is in effect, as the node sees it.
func (m Manifest) Active() bool { return m.Restart.ResumeFromMB > 0 }

// Equal reports whether two manifests are the same value.
func (m Manifest) Equal(o Manifest) bool { return len(Diff(m, o)) == 0 }

// text is a field as it is shown; the list in the form of both TOML and JSON.
func (m Manifest) text(key string) string {
	switch key {
	case KeyResumeFrom:
		return strconv.FormatUint(m.Restart.ResumeFromMB, 10)
	case KeyResumeHash:
		return m.Restart.ResumeMBHash.String()
	case KeyExcluded:
		quoted := make([]string, len(m.Restart.Excluded))
		for i, id := range m.Restart.Excluded {
			quoted[i] = quote(id)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case KeyIndex:
		return strconv.FormatUint(m.Pin.Index, 10)
	case KeyHash:
		return m.Pin.Hash.String()
	case KeyDigestAnchor:
		return m.Pin.DigestAnchor.String()
	case KeyDigestPred:
		return m.Pin.DigestPred.String()
	}
	return ""
}

// quote writes a string with escapes that TOML and JSON both know.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// TOML writes the manifest as a file. It fails for a number that TOML cannot hold.
func (m Manifest) TOML() ([]byte, error) {
	for _, key := range []string{KeyResumeFrom, KeyIndex} {
		if v, _ := strconv.ParseUint(m.text(key), 10, 64); v > math.MaxInt64 {
			return nil, fmt.Errorf("writing the manifest: %s %d does not fit into TOML's 64-bit numbers", key, v)
		}
	}
	var b bytes.Buffer
	b.WriteString("# Restart manifest: the five constants of a release of the node.\n\n[restart]\n")
	field := func(key string, quoted bool) {
		value := m.text(key)
		if quoted {
			value = quote(value)
		}
		fmt.Fprintf(&b, "%s = %s\n", key[strings.Index(key, ".")+1:], value)
	}
	field(KeyResumeFrom, false)
	field(KeyResumeHash, true)
	if len(m.Restart.Excluded) < 3 {
		field(KeyExcluded, false)
	} else {
		b.WriteString("excluded = [\n")
		for _, id := range m.Restart.Excluded {
			fmt.Fprintf(&b, "  %s,\n", quote(id))
		}
		b.WriteString("]\n")
	}
	b.WriteString("\n[ws_checkpoint]\n")
	field(KeyIndex, false)
	field(KeyHash, true)
	field(KeyDigestAnchor, true)
	field(KeyDigestPred, true)
	return b.Bytes(), nil
}

// Document is the JSON form with its schema.
type Document struct {
	Schema string `json:"schema"`
	Manifest
}

// Document returns the JSON form; an empty list is [], never null.
func (m Manifest) Document() Document {
	if m.Restart.Excluded == nil {
		m.Restart.Excluded = []string{}
	}
	return Document{Schema: Schema, Manifest: m}
}

// JSON writes the manifest as a JSON file.
func (m Manifest) JSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m.Document()); err != nil {
		return nil, fmt.Errorf("writing the manifest: %w", err)
	}
	return b.Bytes(), nil
}

// Difference is a field in which two manifests differ.
type Difference struct {
	Key string `json:"key"`
	A   string `json:"a"`
	B   string `json:"b"`
}

// Diff lists the fields in which a and b differ, in the order of the file. A list of ids is one field; OnlyIn tells its parts.
func Diff(a, b Manifest) []Difference {
	var out []Difference
	for _, key := range Keys() {
		if key == KeyExcluded && slices.Equal(a.Restart.Excluded, b.Restart.Excluded) {
			continue
		}
		if ta, tb := a.text(key), b.text(key); key == KeyExcluded || ta != tb {
			out = append(out, Difference{key, ta, tb})
		}
	}
	return out
}

// OnlyIn lists the ids that a bars and b does not.
func OnlyIn(a, b Manifest) []string {
	var out []string
	for _, id := range a.Restart.Excluded {
		if !slices.Contains(b.Restart.Excluded, id) {
			out = append(out, id)
		}
	}
	return out
}
