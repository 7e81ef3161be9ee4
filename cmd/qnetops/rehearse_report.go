package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/qnetops/qnetops/report"
)

const rehearsalSchema = "qnetops/rehearsal/v1"

// rehearsalDocument is the answer of rehearse.
type rehearsalDocument struct {
	Schema     string            `json:"schema"`
	OK         bool              `json:"ok"`
	Version    string            `json:"version"`
	At         time.Time         `json:"at"`
	Seconds    float64           `json:"seconds"`
	Rehearsals []rehearsalResult `json:"rehearsals"`
}

// rehearsalResult is one rehearsal.
type rehearsalResult struct {
	Name    string  `json:"name"`
	Title   string  `json:"-"`
	OK      bool    `json:"ok"`
	Nodes   int     `json:"nodes"`
	Block   string  `json:"block"`
	Seconds float64 `json:"seconds"`
	// RestoredSeconds is the time from the decision to restored finality; 0: it is not measured there.
	RestoredSeconds float64 `json:"restored_seconds"`
	Acts            []act   `json:"acts"`
}

func (d *rehearsalDocument) add(r rehearsalResult) {
	d.Rehearsals = append(d.Rehearsals, r)
	d.OK = d.OK && r.OK
	d.Seconds += r.Seconds
}

// wrong is the first act of a rehearsal that did not end as it should.
func (r rehearsalResult) wrong() (number int, a act) {
	for i, a := range r.Acts {
		if !a.OK {
			return i + 1, a
		}
	}
	return 0, act{}
}

// restored is the time that a rehearsal is for.
func (r rehearsalResult) restored() string {
	if r.RestoredSeconds == 0 {
		return ""
	}
	text := fmt.Sprintf("%s: from the decision to restored finality %.1f s", r.Title, r.RestoredSeconds)
	if block, err := time.ParseDuration(r.Block); err == nil && block > 0 {
		text += fmt.Sprintf(", which is %.0f block times of %s", r.RestoredSeconds/block.Seconds(), r.Block)
	}
	return text
}

// answerRehearsals prints one timeline of all that was rehearsed, and names what
// went wrong.
func answerRehearsals(s streams, g globals, doc rehearsalDocument, file string) error {
	if file != "" {
		if err := os.WriteFile(file, []byte(doc.markdown()), 0o644); err != nil {
			return err
		}
	}
	var err error
	if g.json {
		err = printJSON(s.out, doc)
	} else {
		err = doc.print(s)
	}
	if err != nil {
		return err
	}
	var wrong []string
	for _, r := range doc.Rehearsals {
		if n, a := r.wrong(); n > 0 {
			wrong = append(wrong, fmt.Sprintf("rehearsal of %s, act %d, %s: expected %s; came %s", r.Title, n, a.Act, a.Expected, a.Came))
		}
	}
	if len(wrong) > 0 {
		return &rehearsalError{strings.Join(wrong, "\n  ")}
	}
	if !g.json {
		fmt.Fprintf(s.out, "rehearsal passed in %.1f s\n", doc.Seconds)
	}
	return nil
}

// rehearsalError says which act went wrong.
type rehearsalError struct{ text string }

func (e *rehearsalError) Error() string { return e.text }

// Hint says where the rest is.
func (e *rehearsalError) Hint() string {
	return "what the act printed stands above; a slow or busy machine may need a longer --block"
}

func (d rehearsalDocument) print(s streams) error {
	t := report.Table{Head: []string{"rehearsal", "what", "took", "exit", "as it should"}}
	for _, r := range d.Rehearsals {
		for _, a := range r.Acts {
			t.Add(r.Name, a.Act, fmt.Sprintf("%.2f s", a.Seconds), a.exit(), map[bool]string{true: "yes", false: "NO"}[a.OK])
		}
	}
	fmt.Fprintln(s.out)
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, r := range d.Rehearsals {
		if text := r.restored(); text != "" {
			fmt.Fprintln(s.out, text)
		}
	}
	return nil
}

func (a act) exit() string {
	if a.ExitCode == nil {
		return "-"
	}
	return fmt.Sprint(*a.ExitCode)
}

func (a act) verdict() string {
	if a.OK {
		return "yes"
	}
	return "NO: " + a.Came
}

// markdown is the report to keep.
func (d rehearsalDocument) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Rehearsal\n\nqnetops %s, %s\n", d.Version, d.At.Format(time.RFC3339))
	for _, r := range d.Rehearsals {
		fmt.Fprintf(&b, "\n## Rehearsal of %s\n\n%d nodes, one block every %s, %.1f s in all\n\n| what | took | exit | as it should |\n| --- | --- | --- | --- |\n",
			r.Title, r.Nodes, r.Block, r.Seconds)
		for _, a := range r.Acts {
			fmt.Fprintf(&b, "| %s | %.2f s | %s | %s |\n", cell(a.Act), a.Seconds, a.exit(), cell(a.verdict()))
		}
		if text := r.restored(); text != "" {
			fmt.Fprintf(&b, "\n%s.\n", text)
		}
	}
	return b.String()
}

// cell keeps a text in its cell.
func cell(text string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text) }
