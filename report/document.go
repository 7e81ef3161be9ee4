package report

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Document is a text for people in one model, written as Markdown and as one HTML file. Equal documents give equal bytes, so
// that a text that was published can be compared with the document it was made from. All of it is taken as plain text: what a
// node or another operator wrote becomes no markup in either form.
type Document struct {
	Title  string
	Blocks []Block
}

// Block is one part of a document: the first of its fields that is set.
type Block struct {
	Heading string   // of what follows
	Text    string   // a paragraph
	List    []string // one point each
	Table   *Table
	Code    string // shown as it is
}

// Heading begins a section.
func (d *Document) Heading(text string) { d.Blocks = append(d.Blocks, Block{Heading: text}) }

// Text adds a paragraph; an empty one adds nothing.
func (d *Document) Text(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		d.Blocks = append(d.Blocks, Block{Text: text})
	}
}

// List adds points; none add nothing.
func (d *Document) List(points ...string) {
	if len(points) > 0 {
		d.Blocks = append(d.Blocks, Block{List: points})
	}
}

// Table adds a table; one without rows adds nothing.
func (d *Document) Table(t Table) {
	if len(t.Rows) > 0 {
		d.Blocks = append(d.Blocks, Block{Table: &t})
	}
}

// Code adds text that is shown as it is, for copying.
func (d *Document) Code(text string) { d.Blocks = append(d.Blocks, Block{Code: text}) }

// Markdown writes the document as Markdown with tables (GitHub's form).
func (d *Document) Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# " + mdLine(d.Title) + "\n")
	for _, block := range d.Blocks {
		b.WriteString("\n")
		switch {
		case block.Heading != "":
			b.WriteString("## " + mdLine(block.Heading) + "\n")
		case block.Text != "":
			b.WriteString(mdLine(block.Text) + "\n")
		case block.List != nil:
			for _, point := range block.List {
				b.WriteString("- " + mdLine(point) + "\n")
			}
		case block.Table != nil:
			mdTable(&b, block.Table)
		default:
			fence := fenceFor(block.Code)
			b.WriteString(fence + "\n" + strings.TrimRight(block.Code, "\n") + "\n" + fence + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mdTable(b *strings.Builder, t *Table) {
	row := func(cells []string) {
		b.WriteString("|")
		for _, c := range fit(cells, len(t.Head)) {
			b.WriteString(" " + mdLine(c) + " |")
		}
		b.WriteString("\n")
	}
	row(t.Head)
	b.WriteString("|" + strings.Repeat(" --- |", len(t.Head)) + "\n")
	for _, r := range t.Rows {
		row(r)
	}
}

// mdLine makes text one line in which nothing is markup. An underscore inside a word is none, and ids are full of them.
func mdLine(s string) string {
	var b strings.Builder
	for i, r := range oneLine(s) {
		if strings.ContainsRune("\\`*<>|[]&~$", r) || i == 0 && strings.ContainsRune("#+-=_", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// oneLine joins the lines of a text and takes control characters out, which could hide text or change a terminal.
func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))), " ")
}

// fenceFor is a fence longer than every run of backticks in the code.
func fenceFor(code string) string {
	longest, run := 0, 0
	for _, r := range code {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	return strings.Repeat("`", max(3, longest+1))
}

// style is all that the page needs; it loads nothing.
const style = `body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}
h1,h2{line-height:1.2}table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #999;padding:.25rem .5rem;text-align:left;vertical-align:top}
td,pre{font-family:ui-monospace,monospace;font-size:14px}pre{background:#f3f3f3;padding:1rem;overflow-x:auto}
@media print{body{max-width:none;margin:0}}`

// HTML writes the document as one page that loads nothing from anywhere.
func (d *Document) HTML(w io.Writer) error {
	var b strings.Builder
	e := func(s string) string { return html.EscapeString(oneLine(s)) }
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"+
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"+
		"<meta name=\"viewport\" content=\"width=device-width\">\n<title>%s</title>\n<style>\n%s\n</style>\n</head>\n<body>\n<h1>%s</h1>\n", e(d.Title), style, e(d.Title))
	for _, block := range d.Blocks {
		switch {
		case block.Heading != "":
			fmt.Fprintf(&b, "<h2>%s</h2>\n", e(block.Heading))
		case block.Text != "":
			fmt.Fprintf(&b, "<p>%s</p>\n", e(block.Text))
		case block.List != nil:
			b.WriteString("<ul>\n")
			for _, point := range block.List {
				fmt.Fprintf(&b, "<li>%s</li>\n", e(point))
			}
			b.WriteString("</ul>\n")
		case block.Table != nil:
			htmlTable(&b, block.Table, e)
		default:
			fmt.Fprintf(&b, "<pre>%s</pre>\n", html.EscapeString(strings.TrimRight(block.Code, "\n")))
		}
	}
	b.WriteString("</body>\n</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func htmlTable(b *strings.Builder, t *Table, e func(string) string) {
	row := func(cells []string, tag string) {
		b.WriteString("<tr>")
		for _, c := range fit(cells, len(t.Head)) {
			fmt.Fprintf(b, "<%s>%s</%s>", tag, e(c), tag)
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("<table>\n")
	row(t.Head, "th")
	for _, r := range t.Rows {
		row(r, "td")
	}
	b.WriteString("</table>\n")
}
