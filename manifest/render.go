package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/qnetops/qnetops/node"
)

// Render writes the five constants as they are to be pasted into the node's source, in the order that they stand there.
func Render(m Manifest) string {
	l := layout{newline: "\n"}
	var b strings.Builder
	fmt.Fprintf(&b, "pub const WS_CHECKPOINT: (u64, [u8; 32]) = (%d, %s);\n", m.Pin.Index, l.hash(m.Pin.Hash))
	fmt.Fprintf(&b, "pub const WS_CHECKPOINT_DIGEST_ANCHOR: [u8; 32] = %s;\n", l.hash(m.Pin.DigestAnchor))
	fmt.Fprintf(&b, "pub const WS_CHECKPOINT_DIGEST_PRED: [u8; 32] = %s;\n", l.hash(m.Pin.DigestPred))
	l.indent = "    "
	fmt.Fprintf(&b, "pub const RESTART_MANIFEST: RestartManifest = RestartManifest {\n    resume_from_mb: %d,\n    resume_mb_hash: %s,\n    excluded: %s,\n};\n",
		m.Restart.ResumeFromMB, l.hash(m.Restart.ResumeMBHash), l.list(m.Restart.Excluded))
	return b.String()
}

// layout is how a value is broken into lines.
type layout struct{ indent, newline string }

// hash writes 32 bytes as two lines of sixteen, and the zero hash as the source ships it.
func (l layout) hash(h node.Hash) string {
	if h.IsZero() {
		return "[0u8; 32]"
	}
	var b strings.Builder
	b.WriteString("[")
	for i, v := range h {
		if i%16 == 0 {
			b.WriteString(l.newline + l.indent + "    ")
		} else {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "0x%02x,", v)
	}
	b.WriteString(l.newline + l.indent + "]")
	return b.String()
}

func (l layout) list(ids []string) string {
	if len(ids) == 0 {
		return "&[]"
	}
	var b strings.Builder
	b.WriteString("&[")
	for _, id := range ids {
		b.WriteString(l.newline + l.indent + "    " + rustString(id) + ",")
	}
	b.WriteString(l.newline + l.indent + "]")
	return b.String()
}

// rustString writes a string literal; what does not print is escaped, so that the source shows what it holds.
func rustString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (l layout) value(m Manifest, key string) string {
	switch key {
	case KeyResumeHash:
		return l.hash(m.Restart.ResumeMBHash)
	case KeyHash:
		return l.hash(m.Pin.Hash)
	case KeyDigestAnchor:
		return l.hash(m.Pin.DigestAnchor)
	case KeyDigestPred:
		return l.hash(m.Pin.DigestPred)
	case KeyExcluded:
		return l.list(m.Restart.Excluded)
	}
	return m.text(key)
}

// edit replaces src[from:to].
type edit struct {
	span
	text string
}

// edits are the replacements that bring a source file to m: only values that differ, each in the layout of its surroundings.
func edits(name string, src []byte, m Manifest) ([]edit, error) {
	r, err := read(name, src)
	if err != nil {
		return nil, err
	}
	changed := map[string]bool{}
	for _, d := range Diff(r.out.Manifest, m) {
		changed[d.Key] = true
	}
	// A field that is written as a part of the pin would follow it.
	changed[KeyResumeFrom] = changed[KeyResumeFrom] || r.indirect[KeyResumeFrom] && changed[KeyIndex]
	changed[KeyResumeHash] = changed[KeyResumeHash] || r.indirect[KeyResumeHash] && changed[KeyHash]
	var out []edit
	for _, key := range Keys() {
		if changed[key] {
			s := r.spans[key]
			out = append(out, edit{s, layoutAt(src, s.from).value(m, key)})
		}
	}
	slices.SortFunc(out, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	return out, nil
}

// layoutAt takes indentation and line end from the line that a value stands in.
func layoutAt(src []byte, at int) layout {
	start := bytes.LastIndexByte(src[:at], '\n') + 1
	line := bytes.TrimPrefix(src[start:at], []byte("\xef\xbb\xbf"))
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	l := layout{indent: string(indent), newline: "\n"}
	if end := bytes.IndexByte(src[at:], '\n'); end > 0 && src[at+end-1] == '\r' {
		l.newline = "\r\n"
	}
	return l
}

// Patch returns a genesis_constants.rs with these values and not another byte changed. A value that is the same already keeps
// its layout. The result is read back before it is returned, so an error here is better than a file that says something else.
func Patch(name string, src []byte, m Manifest) ([]byte, error) {
	list, err := edits(name, src, m)
	if err != nil {
		return nil, err
	}
	var out []byte
	at := 0
	for _, e := range list {
		out = append(append(out, src[at:e.from]...), e.text...)
		at = e.to
	}
	out = append(out, src[at:]...)
	back, err := Parse(name, out)
	if err != nil {
		return nil, fmt.Errorf("reading back the changed source: %w", err)
	}
	if d := Diff(m, back.Manifest); len(d) > 0 {
		return nil, fmt.Errorf("reading back the changed source: %s would be %s, not %s", d[0].Key, d[0].B, d[0].A)
	}
	return out, nil
}

// UnifiedDiff is the change of Patch as a unified diff that git apply and patch take; "" when nothing changes.
func UnifiedDiff(name string, src []byte, m Manifest) (string, error) {
	list, err := edits(name, src, m)
	if err != nil || len(list) == 0 {
		return "", err
	}
	if _, err := Patch(name, src, m); err != nil {
		return "", err
	}
	file := filepath.ToSlash(name)
	if i := strings.Index("/"+file, "/"+Source); i >= 0 {
		file = Source // from the root of the repository, wherever that is
	}
	file = strings.TrimPrefix(file, "/")
	d := differ{src: lines(src), list: list}
	return fmt.Sprintf("--- a/%s\n+++ b/%s\n%s", file, file, d.hunks()), nil
}

// line is one line of the source with its place.
type line struct {
	text string // with its line end
	from int
}

func lines(src []byte) []line {
	var out []line
	at := 0
	for l := range bytes.Lines(src) {
		out = append(out, line{string(l), at})
		at += len(l)
	}
	return out
}

type differ struct {
	src  []line
	list []edit
}

// change is a run of lines [from, to) that is replaced by text.
type change struct {
	from, to int
	text     string
}

// of returns the index of the line that holds a byte.
func (d differ) of(at int) int {
	i, exact := slices.BinarySearchFunc(d.src, at, func(l line, at int) int { return cmp.Compare(l.from, at) })
	if !exact {
		i--
	}
	return i
}

// changes turns edits of bytes into replaced lines; edits within one line become one change.
func (d differ) changes() []change {
	var out []change
	for i := 0; i < len(d.list); {
		from, to := d.of(d.list[i].from), d.of(d.list[i].to-1)+1
		var b strings.Builder
		at := d.src[from].from
		whole := func() int { return d.src[to-1].from + len(d.src[to-1].text) }
		flat := func(a, z int) string {
			var s strings.Builder
			for _, l := range d.src[from:to] {
				s.WriteString(l.text)
			}
			return s.String()[a-d.src[from].from : z-d.src[from].from]
		}
		for ; i < len(d.list) && d.list[i].from < whole(); i++ {
			to = max(to, d.of(d.list[i].to-1)+1)
			b.WriteString(flat(at, d.list[i].from) + d.list[i].text)
			at = d.list[i].to
		}
		b.WriteString(flat(at, whole()))
		out = append(out, change{from, to, b.String()})
	}
	return out
}

// hunks writes the changes with three lines around; those that are near share a hunk.
func (d differ) hunks() string {
	const around = 3
	var b strings.Builder
	all := d.changes()
	shift := 0
	for i := 0; i < len(all); {
		j := i + 1
		for j < len(all) && all[j].from-all[j-1].to <= 2*around {
			j++
		}
		from, to := max(all[i].from-around, 0), min(all[j-1].to+around, len(d.src))
		var body strings.Builder
		at, added, removed := from, 0, 0
		for _, c := range all[i:j] {
			d.write(&body, " ", d.src[at:c.from])
			d.write(&body, "-", d.src[c.from:c.to])
			now := lines([]byte(c.text))
			d.write(&body, "+", now)
			at, added, removed = c.to, added+len(now), removed+c.to-c.from
		}
		d.write(&body, " ", d.src[at:to])
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n%s", from+1, to-from, from+1+shift, to-from+added-removed, body.String())
		shift += added - removed
		i = j
	}
	return b.String()
}

func (d differ) write(b *strings.Builder, mark string, list []line) {
	for _, l := range list {
		b.WriteString(mark + l.text)
		if !strings.HasSuffix(l.text, "\n") {
			b.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
