// Package report renders what qnetops found out as text for a person: plain
// tables for a terminal or a pipe. It knows nothing about fleets; callers
// hand it headings and rows.
package report

import (
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Table is rows of text under headings. Rows shorter than the headings are
// padded with empty cells; longer rows are cut, so that a renderer never sees
// a ragged table.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends one row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write renders the table without frames: columns separated by two spaces,
// which survives copying into a chat or an issue. Nothing is wrapped or
// shortened, because a cut digest or reason cannot be acted on.
func (t *Table) Write(w io.Writer) error {
	none := tw.CellPadding{Global: tw.Padding{Left: "", Right: "  ", Overwrite: true}}
	left := tw.CellAlignment{Global: tw.AlignLeft}
	plain := tw.CellFormatting{AutoWrap: tw.WrapNone, AutoFormat: tw.Off}
	table := tablewriter.NewTable(w,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders: tw.BorderNone,
			Symbols: tw.NewSymbols(tw.StyleNone),
			Settings: tw.Settings{
				Lines:      tw.LinesNone,
				Separators: tw.SeparatorsNone,
			},
		})),
		tablewriter.WithConfig(tablewriter.Config{
			Header:   tw.CellConfig{Formatting: plain, Alignment: left, Padding: none},
			Row:      tw.CellConfig{Formatting: plain, Alignment: left, Padding: none},
			Behavior: tw.Behavior{TrimSpace: tw.Off},
		}),
	)
	head := make([]string, len(t.Head))
	for i, h := range t.Head {
		head[i] = strings.ToUpper(h)
	}
	table.Header(head)
	for _, row := range t.Rows {
		if err := table.Append(fit(row, len(head))); err != nil {
			return err
		}
	}
	return table.Render()
}

func fit(row []string, n int) []string {
	out := make([]string, n)
	copy(out, row)
	return out
}
