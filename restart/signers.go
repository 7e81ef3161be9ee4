package restart

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// MaxSigners is the largest allowed-signers file that is read, in bytes.
const MaxSigners = 1 << 20

// Signers are the operators and their keys: ssh-keygen's allowed-signers file.
type Signers struct {
	Name    string // of the file
	entries []signer
}

// signer is one line of the file.
type signer struct {
	line          int
	principals    []string
	key           ssh.PublicKey
	namespaces    []string  // patterns; nil: all
	after, before time.Time // zero: no bound
}

// Principals are the operators of the file, each once, in its order.
func (s Signers) Principals() []string {
	var out []string
	for _, e := range s.entries {
		for _, p := range e.principals {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// of names the operators whose key it is at a time; none: why not.
func (s Signers) of(key ssh.PublicKey, at time.Time) (principals []string, why string) {
	why = "no operator in " + s.Name + " has this key"
	for _, e := range s.entries {
		if !bytes.Equal(e.key.Marshal(), key.Marshal()) {
			continue
		}
		switch place := fmt.Sprintf("%s:%d", s.Name, e.line); {
		case e.namespaces != nil && !matches(e.namespaces, Namespace):
			why = place + " allows this key for other namespaces only"
		case !e.after.IsZero() && at.Before(e.after):
			why = place + " allows this key only after " + e.after.UTC().Format(time.RFC3339)
		case !e.before.IsZero() && at.After(e.before):
			why = place + " allowed this key only before " + e.before.UTC().Format(time.RFC3339)
		default:
			for _, p := range e.principals {
				if !slices.Contains(principals, p) {
					principals = append(principals, p)
				}
			}
		}
	}
	return principals, why
}

// matches is ssh's list of patterns: one must match, and none that begins with "!".
func matches(patterns []string, s string) bool {
	found := false
	for _, p := range patterns {
		negated, ok := strings.CutPrefix(p, "!")
		switch {
		case ok && glob(negated, s):
			return false
		case !ok && glob(p, s):
			found = true
		}
	}
	return found
}

// glob matches ssh's patterns, whose only signs are * and ?.
func glob(pattern, s string) bool {
	for pattern != "" {
		switch {
		case pattern[0] == '*':
			for i := range len(s) + 1 {
				if glob(pattern[1:], s[i:]) {
					return true
				}
			}
			return false
		case s == "" || pattern[0] != '?' && pattern[0] != s[0]:
			return false
		}
		pattern, s = pattern[1:], s[1:]
	}
	return s == ""
}

// ParseAllowedSigners reads an allowed-signers file (ssh-keygen(1)): a line is principals with commas, options, the kind of
// key, the key in base64, and a comment. Principals must be written out, because each is an operator who is asked for
// evidence. Times without Z are local ones, as for ssh-keygen. The error is *FileFaults with every fault of the file.
func ParseAllowedSigners(name string, data []byte) (Signers, error) {
	s := Signers{Name: name}
	p := signersParser{file: name}
	if len(data) > MaxSigners {
		return Signers{}, &FileFaults{[]FileFault{{File: name, What: fmt.Sprintf("is %d bytes, more than %d", len(data), MaxSigners)}}, signersHint}
	}
	text := string(data)
	if rest, ok := strings.CutPrefix(text, "\ufeff"); ok {
		p.line = 1
		p.fault("", "begins with a byte order mark, which would be part of the first principal")
		text = rest
	}
	for line := range strings.Lines(text) {
		p.line++
		p.rest = strings.TrimSpace(line)
		if p.rest == "" || p.rest[0] == '#' {
			continue
		}
		if e, ok := p.entry(); ok {
			s.entries = append(s.entries, e)
		}
	}
	if len(p.faults) == 0 && len(s.entries) == 0 {
		p.line = 0
		p.fault("", "names nobody")
	}
	if len(p.faults) > 0 {
		return Signers{}, &FileFaults{p.faults, signersHint}
	}
	return s, nil
}

const signersHint = "a line of the allowed-signers file is: PRINCIPAL [namespaces=\"" + Namespace + "\"] ssh-ed25519 AAAA… COMMENT"

type signersParser struct {
	file   string
	line   int
	rest   string
	faults []FileFault
}

func (p *signersParser) fault(key, format string, args ...any) {
	p.faults = append(p.faults, FileFault{File: p.file, Line: p.line, Key: clipped(key), What: fmt.Sprintf(format, args...)})
}

// word cuts the next field off: to white space outside double quotes.
func (p *signersParser) word() string {
	quoted, i := false, 0
	for ; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '\\' && i+1 < len(p.rest) && p.rest[i+1] == '"':
			i++
		case c == '"':
			quoted = !quoted
		case (c == ' ' || c == '\t') && !quoted:
			w := p.rest[:i]
			p.rest = strings.TrimLeft(p.rest[i:], " \t")
			return w
		}
	}
	w := p.rest
	if quoted {
		p.fault(w, "has no closing quote")
	}
	p.rest = ""
	return w
}

func (p *signersParser) entry() (signer, bool) {
	before := len(p.faults)
	e := signer{line: p.line}
	e.principals = p.principals(p.word())
	next := p.word()
	if !isKeyType(next) {
		p.options(&e, next)
		next = p.word()
	}
	e.key = p.key(next, p.word())
	return e, len(p.faults) == before
}

func (p *signersParser) principals(word string) []string {
	var out []string
	for _, name := range strings.Split(strings.Trim(word, `"`), ",") {
		switch {
		case name == "":
			p.fault(word, "has an empty principal")
		case strings.ContainsAny(name, "*?!"):
			p.fault(name, "is a pattern; write out the name of each operator, because evidence is asked of each")
		case slices.Contains(out, name):
			p.fault(name, "stands there twice")
		case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
			p.fault(name, "holds a control character, or is not UTF-8")
		}
		out = append(out, name)
	}
	return out
}

// isKeyType tells the kind of a key from a list of options.
func isKeyType(s string) bool {
	return strings.HasPrefix(s, "ssh-") || strings.HasPrefix(s, "ecdsa-") || strings.HasPrefix(s, "sk-")
}

func (p *signersParser) options(e *signer, word string) {
	seen := map[string]bool{}
	for _, opt := range splitOptions(word) {
		name, value, has := strings.Cut(opt, "=")
		name = strings.ToLower(name)
		if seen[name] {
			p.fault(name, "stands there twice")
		}
		seen[name] = true
		text, err := unquote(value)
		switch {
		case name == "cert-authority":
			p.fault(name, "is not accepted: with an authority somebody else decides who the operators are; list each operator's own key")
		case name != "namespaces" && name != "valid-after" && name != "valid-before":
			p.fault(opt, "is neither an option (namespaces, valid-after, valid-before) nor the kind of a key")
		case !has || err != nil:
			p.fault(name, `wants a value in quotes, %s="…"`, name)
		case name == "namespaces":
			e.namespaces = strings.Split(text, ",")
			if slices.Contains(e.namespaces, "") {
				p.fault(name, "has an empty entry")
			}
		case name == "valid-after":
			e.after = p.when(name, text)
		default:
			e.before = p.when(name, text)
		}
	}
	if !e.after.IsZero() && !e.before.IsZero() && !e.after.Before(e.before) {
		p.fault("valid-before", "is not later than valid-after: the key never counts")
	}
}

// splitOptions cuts at commas outside quotes.
func splitOptions(s string) []string {
	var out []string
	quoted, from := false, 0
	for i := range len(s) {
		switch {
		case s[i] == '"' && (i == 0 || s[i-1] != '\\'):
			quoted = !quoted
		case s[i] == ',' && !quoted:
			out = append(out, s[from:i])
			from = i + 1
		}
	}
	return append(out, s[from:])
}

func unquote(s string) (string, error) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", errors.New("is not in quotes")
	}
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`), nil
}

// when reads ssh-keygen's times: YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, local unless Z follows.
func (p *signersParser) when(key, text string) time.Time {
	digits, utc := strings.CutSuffix(text, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(layout) != len(digits) {
			continue
		}
		if t, err := time.ParseInLocation(layout, digits, zone); err == nil {
			return t
		}
	}
	p.fault(key, "%q is no time: want YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with Z for UTC", clipped(text))
	return time.Time{}
}

func (p *signersParser) key(kind, text string) ssh.PublicKey {
	if kind == "" || text == "" {
		p.fault("", "ends before the key")
		return nil
	}
	blob, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		p.fault(kind, "the key is not base64: %v", err)
		return nil
	}
	key, err := ssh.ParsePublicKey(blob)
	switch {
	case err != nil:
		p.fault(kind, "the key cannot be read: %v", err)
	case key.Type() != kind:
		p.fault(kind, "the key is one of the kind %s", key.Type())
	case strings.Contains(kind, "-cert-") || kind == "ssh-dss":
		p.fault(kind, "is not accepted; use ed25519, ecdsa or rsa keys")
	}
	return key
}
