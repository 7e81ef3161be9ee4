package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func sample() Document {
	d := Document{Title: "Restart <of> *qnet*"}
	d.Heading("What")
	d.Text("K is %d | agreed", 495)
	d.List("genesis_node_001", "# no heading", "a\nb")
	t := Table{Head: []string{"id", "why"}}
	t.Add("n|1", "says `x` <b>", "cut")
	t.Add("n2")
	d.Table(t)
	d.Table(Table{Head: []string{"none"}})
	d.List()
	d.Code("fn main() {}\n```\n<script>\n")
	return d
}

func TestMarkdown(t *testing.T) {
	d := sample()
	var b bytes.Buffer
	if err := d.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	want := `# Restart \<of\> \*qnet\*

## What

K is 495 \| agreed

- genesis_node_001
- \# no heading
- a b

| id | why |
| --- | --- |
| n\|1 | says ` + "\\`x\\`" + ` \<b\> |
| n2 |  |

` + "````\nfn main() {}\n```\n<script>\n````\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// The page is well-formed, loads nothing, and holds what it was given as text.
func TestHTML(t *testing.T) {
	d := sample()
	var b bytes.Buffer
	if err := d.HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "<b>", "src=", "href=", "http:", "https:", "url(", "<of>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, want := range []string{"<h1>Restart &lt;of&gt; *qnet*</h1>", "<td>n|1</td><td>says `x` &lt;b&gt;</td>", "<td>n2</td><td></td>", "<pre>fn main() {}\n```\n&lt;script&gt;</pre>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	body := page[strings.Index(page, "<body>"):strings.Index(page, "</html>")]
	for dec := xml.NewDecoder(strings.NewReader(body)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the tags do not nest: %v", err)
		}
	}
}

// Text that is made to hide or to reorder what a person reads loses the characters that do it.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"a\x1b[31mb": "a [31mb", "a\r\n\tb": "a b", "a\u202eb": "a b", "a\xffb": "a\ufffdb", " a  b ": "a b"} {
		if got := oneLine(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzDocument(f *testing.F) {
	f.Add("a|b", "`` ` ``")
	f.Fuzz(func(t *testing.T, text, code string) {
		d := Document{Title: text}
		d.Text("%s", text)
		d.List(text)
		table := Table{Head: []string{text, "b"}}
		table.Add(text)
		d.Table(table)
		var md, page bytes.Buffer
		err := d.Markdown(&md)
		d.Code(code)
		if err := errors.Join(err, d.HTML(&page)); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(page.String(), "<"); n != strings.Count(page.String(), ">") {
			t.Errorf("%d opening and %d closing brackets", n, strings.Count(page.String(), ">"))
		}
		for line := range strings.Lines(md.String()) {
			if strings.HasPrefix(line, "| ") && strings.Count(strings.ReplaceAll(strings.ReplaceAll(line, `\\`, ""), `\|`, ""), "|") != 3 {
				t.Errorf("a cell breaks its row: %q", line)
			}
		}
	})
}
