package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/report"
)

func opsCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "ops", ArgsUsage: "[OP]", Usage: "list operations, or show one with its steps",
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			if c.NArg() > 1 {
				_, err := oneArgument(c, "operation id")
				return err
			}
			return runOps(c.Context, s, g, c.Args().First())
		},
	}
}

type opsDocument struct {
	Schema     string     `json:"schema"`
	Operations []opsEntry `json:"operations"`
}

type opsEntry struct {
	ID         string           `json:"id"`
	Kind       string           `json:"kind"`
	Fleet      string           `json:"fleet"`
	State      string           `json:"state"`
	Operator   string           `json:"operator"`
	StartedAt  time.Time        `json:"started_at"`
	FinishedAt *time.Time       `json:"finished_at"`
	PlanDigest string           `json:"plan_digest"`
	Summary    string           `json:"summary"`
	Waivers    []journal.Waiver `json:"waivers"`
	Plan       json.RawMessage  `json:"plan,omitempty"`
	Steps      []opsStep        `json:"steps"`
}

type opsStep struct {
	ID         string     `json:"id"`
	Title      string     `json:"title"`
	State      string     `json:"state"`
	Attempt    int        `json:"attempt"`
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
	Error      *string    `json:"error"`
	Note       string     `json:"note,omitempty"`
}

// runOps reads the journal alone: it must work when no host answers. The
// inventory only narrows the list to its fleet, where it can be read.
func runOps(ctx context.Context, s streams, g globals, id string) error {
	if g.stateMissing() && !g.stateGiven && id == "" {
		return printOperations(s, g, nil, false) // nothing was ever run here
	}
	if err := g.needState("ops"); err != nil {
		return err
	}
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	name := ""
	if inv, err := fleet.Load(g.hosts); err == nil && id == "" {
		name = inv.Name
	}
	var records []journal.Record
	if id == "" {
		records, err = store.List(ctx, name)
	} else {
		var op *journal.Op
		if op, err = store.Op(ctx, id); err == nil {
			var record journal.Record
			record, err = op.Record(ctx)
			records = append(records, record)
		}
	}
	if err != nil {
		return err
	}
	if id != "" && !g.json {
		return printOp(s, describeOp(records[0], true))
	}
	return printOperations(s, g, records, id != "")
}

// printOperations lists operations in the form that was asked for; one that was
// asked for by name comes with its plan.
func printOperations(s streams, g globals, records []journal.Record, whole bool) error {
	doc := opsDocument{Schema: "qnetops/ops/v1", Operations: []opsEntry{}}
	for _, r := range records {
		doc.Operations = append(doc.Operations, describeOp(r, whole))
	}
	if g.json {
		return printJSON(s.out, doc)
	}
	return printOps(s, doc)
}

func describeOp(r journal.Record, whole bool) opsEntry {
	d := opsEntry{ID: r.ID, Kind: r.Kind, Fleet: r.Fleet, State: string(r.State), Operator: r.Operator, StartedAt: r.StartedAt,
		FinishedAt: r.FinishedAt, PlanDigest: r.PlanDigest, Summary: r.Summary, Waivers: r.Waivers, Steps: []opsStep{}}
	if whole {
		d.Plan = r.Plan
	}
	for _, step := range r.Steps {
		o := opsStep{ID: step.ID, Title: step.Title, State: string(step.State), Attempt: step.Attempt, StartedAt: step.StartedAt, FinishedAt: step.FinishedAt, Note: step.Note}
		if step.Error != "" {
			o.Error = &step.Error
		}
		d.Steps = append(d.Steps, o)
	}
	return d
}

func printOps(s streams, doc opsDocument) error {
	if len(doc.Operations) == 0 {
		fmt.Fprintln(s.out, "no operations yet")
		return nil
	}
	t := report.Table{Head: []string{"operation", "state", "operator", "started", "summary"}}
	for _, o := range doc.Operations {
		t.Add(o.ID, o.State, o.Operator, o.StartedAt.Format(time.RFC3339), firstLine(o.Summary))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, o := range doc.Operations {
		nextOfOp(s, o)
	}
	return nil
}

// nextOfOp says what to do with an operation that is not finished.
func nextOfOp(s streams, o opsEntry) {
	if !journal.State(o.State).Finished() {
		fmt.Fprintf(s.out, "next: qnetops resume %s, or qnetops abort %s%s\n", o.ID, o.ID, abortable(o.Kind))
	}
}

// abortable says until when an operation of a kind can be aborted, "" for any time.
func abortable(kind string) string {
	if slices.Contains(cutover.Kinds(), kind) {
		return " while its point of no return is ahead"
	}
	return ""
}

func printOp(s streams, o opsEntry) error {
	fmt.Fprintf(s.out, "%s  %s  by %s  plan %.12s\n", o.ID, o.State, o.Operator, o.PlanDigest)
	if o.Summary != "" {
		fmt.Fprintln(s.out, o.Summary)
	}
	for _, w := range o.Waivers {
		fmt.Fprintf(s.out, "waived: %s (%s, by %s)\n", w.Check, w.Reason, w.By)
	}
	t := report.Table{Head: []string{"step", "state", "try", "started", "took", "error"}}
	for _, step := range o.Steps {
		took := "-"
		if step.FinishedAt != nil {
			took = step.FinishedAt.Sub(step.StartedAt).Round(time.Millisecond).String()
		}
		text := step.Note
		if step.Error != nil {
			text = firstLine(*step.Error)
		}
		t.Add(step.ID, step.State, fmt.Sprint(step.Attempt), step.StartedAt.Format(time.RFC3339), took, text)
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	nextOfOp(s, o)
	return nil
}
