package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/qnetops/qnetops/report"
)

// roll is the main job and its failure: v1 to v2 through the ordinary command,
// then an image that crashes, which must be put back by itself.
func (r *rehearsal) roll(ctx context.Context) {
	r.healthy(ctx)
	r.command(ctx, want{exit: exitDone, judge: r.rolled("rolled", r.nodes), label: "roll qnet:v2 --yes"}, "roll", "qnet:v2", "--yes", "-o", "json")
	r.command(ctx, want{exit: exitStopped, judge: r.rolled("restored", 1), label: "roll qnet:crash --yes"}, "roll", "qnet:crash", "--yes", "-o", "json")
	r.command(ctx, want{exit: exitDone}, "abort", r.unfinished(ctx))
	r.healthy(ctx)
}

// rollSummary is what a rehearsal reads of the answer of a roll.
type rollSummary struct {
	Outcome string `json:"outcome"`
	Nodes   []struct {
		ID         string   `json:"id"`
		Outcome    string   `json:"outcome"`
		Down       *float64 `json:"downtime_seconds"`
		Milestones []struct {
			Name    string   `json:"name"`
			Verdict string   `json:"verdict"`
			Seconds *float64 `json:"seconds"`
		} `json:"milestones"`
	} `json:"nodes"`
}

// rolled judges the answer of a roll.
func (r *rehearsal) rolled(outcome string, n int) func(string) string {
	return func(out string) string {
		var d rollSummary
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			return "an answer that cannot be read: " + err.Error()
		}
		r.timeline(d)
		return d.want(outcome, n)
	}
}

// want says what is wrong unless exactly n nodes had the outcome and no other
// node was touched.
func (d rollSummary) want(outcome string, n int) string {
	counts := map[string]int{}
	for _, node := range d.Nodes {
		counts[node.Outcome]++
	}
	if counts[outcome] != n || counts[outcome]+counts["untouched"] != len(d.Nodes) {
		return fmt.Sprintf("want %d %s and no other node touched, got %v", n, outcome, counts)
	}
	return ""
}

// timeline prints the times per node and milestone of one roll.
func (r *rehearsal) timeline(doc rollSummary) {
	t := report.Table{Head: []string{"node", "outcome", "down", "M0", "M1", "M2", "M3", "M4"}}
	for _, n := range doc.Nodes {
		row := []string{n.ID, n.Outcome, seconds(n.Down)}
		for _, m := range n.Milestones {
			row = append(row, strings.TrimSuffix(m.Verdict+" "+seconds(m.Seconds), " -"))
		}
		t.Add(row...)
	}
	_ = t.Write(r.s.err) // a terminal that is gone must not fail the rehearsal
}

// unfinished finds the operation the failed roll left behind.
func (r *rehearsal) unfinished(ctx context.Context) string {
	db, store, err := openJournal(ctx, globals{state: r.path("state.db")})
	if err != nil {
		return "none"
	}
	defer db.Close()
	records, err := store.List(ctx, "")
	if err != nil || len(records) == 0 {
		return "none"
	}
	return records[0].ID
}
