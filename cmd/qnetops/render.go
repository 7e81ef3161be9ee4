package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/rolling"
)

// printJSON writes one document, indented, with a final newline.
func printJSON(w io.Writer, doc any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(doc)
}

// planDocument is the answer of roll --dry-run -o json (qnetops/plan/v1).
type planDocument struct {
	rolling.Plan
	Digest string          `json:"digest"`
	Checks []observe.Check `json:"checks"`
}

// printPlan shows the plan: on stdout where it is the answer (--dry-run or a
// table), on stderr where the answer is a JSON document of the roll.
func (r *rollRun) printPlan(plan rolling.Plan, checks []observe.Check) error {
	if r.g.json && r.g.dryRun {
		return printJSON(r.s.out, planDocument{Plan: plan, Digest: plan.Digest(), Checks: checks})
	}
	w := r.s.out
	if r.g.json {
		w = r.s.err
	}
	fmt.Fprintf(w, "plan %.12s: roll fleet %s", plan.Digest(), plan.Fleet)
	if plan.Image.Digest != "" {
		fmt.Fprintf(w, " to %s\n  %s\n", plan.Image.Ref, plan.Image.Digest)
	} else {
		fmt.Fprintf(w, ", each node on the image it has\n")
	}
	for _, v := range plan.Env {
		fmt.Fprintf(w, "set on every successor: %s=%s\n", v.Name, v.Value)
	}
	fmt.Fprintf(w, "committee of %d, quorum %d: %d may be down at once; one node at a time\n", plan.Committee.Size, plan.Committee.Quorum, plan.Committee.Spare)
	if plan.RecoveryHalted {
		fmt.Fprintln(w, "recovery of a halted chain: M3 and M4 are skipped, old containers stay until roll --finish")
	}
	fmt.Fprintf(w, "activation heights (gates): %s\n", plan.Gates)
	t := report.Table{Head: []string{"turn", "node", "container", "from", "to", "on failure", "why here"}}
	for i, p := range plan.Nodes {
		to := shortDigest(p.ToDigest)
		if p.Action == rolling.ActionNone {
			to = "unchanged: " + p.ActionWhy
		}
		t.Add(fmt.Sprint(i+1), p.ID, p.Container, shortDigest(p.FromDigest)+" "+p.FromBuild, to, p.OnFail, p.Why)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	printCarry(w, plan)
	printChecks(w, checks, plan)
	return nil
}

// printCarry folds nodes that carry the same settings over into one line.
func printCarry(w io.Writer, plan rolling.Plan) {
	lists := []struct {
		title string
		of    func(rolling.NodePlan) []string
	}{
		{"carried over", func(p rolling.NodePlan) []string { return names(p.Carried, false) }},
		{"left out", func(p rolling.NodePlan) []string { return names(p.LeftOut, true) }},
		{"ambiguous (equal to the old image's default, so the new default applies)", func(p rolling.NodePlan) []string { return names(p.Ambiguous, false) }},
		{"warning", func(p rolling.NodePlan) []string { return p.CarryWarnings }},
		{"failure holds", func(p rolling.NodePlan) []string {
			if p.OnFail == "hold" {
				return []string{p.OnFailWhy}
			}
			return nil
		}},
	}
	for _, l := range lists {
		var texts []string
		nodes := map[string][]string{}
		for _, p := range plan.Targets() {
			text := strings.Join(l.of(p), ", ")
			if text == "" {
				continue
			}
			if nodes[text] == nil {
				texts = append(texts, text)
			}
			nodes[text] = append(nodes[text], p.ID)
		}
		for _, text := range texts {
			fmt.Fprintf(w, "%s, %s: %s\n", l.title, strings.Join(nodes[text], ","), text)
		}
	}
}

func names(items []host.Item, why bool) []string {
	var out []string
	for _, i := range items {
		text := i.Field
		if i.Name != "" {
			text += " " + i.Name
		}
		if why && i.Why != "" {
			text += " (" + i.Why + ")"
		}
		out = append(out, text)
	}
	return out
}

func printChecks(w io.Writer, checks []observe.Check, plan rolling.Plan) {
	passed := 0
	for _, c := range checks {
		if c.Verdict == observe.Pass && !slices.Contains([]string{"quorum", "gates", "gates_crossing"}, c.Name) {
			passed++
			continue
		}
		note := ""
		for _, wv := range plan.Waivers {
			if wv.Check == c.Name && c.Verdict != observe.Pass {
				note = " (waived: " + wv.Reason + ")"
			}
		}
		fmt.Fprintf(w, "check %s: %s: %s%s\n", c.Name, c.Verdict, c.Reason, note)
	}
	fmt.Fprintf(w, "checks that pass besides: %d\n", passed)
}

// shortDigest keeps the repository's last part and twelve digits.
func shortDigest(ref string) string {
	name, digest, ok := strings.Cut(ref, "@sha256:")
	if !ok {
		return strings.TrimPrefix(ref, "sha256:")
	}
	return name[strings.LastIndex(name, "/")+1:] + "@" + digest[:min(12, len(digest))]
}

// printDocument is the answer of roll, resume, abort and restore.
func (r *rollRun) printDocument(doc rolling.Document, cause error) error {
	if r.g.json {
		return printJSON(r.s.out, doc)
	}
	if len(doc.Nodes) == 0 { // refused before any node was looked at, which the error says; or there was none to look at
		if cause == nil {
			fmt.Fprintln(r.s.out, lastLine(doc, cause))
		}
		return nil
	}
	t := report.Table{Head: []string{"node", "outcome", "down", "M0 stable", "M1 rpc", "M2 converged", "M3 finality", "M4 production", "reason"}}
	for _, n := range doc.Nodes {
		row := []string{n.ID, n.Outcome, seconds(n.DowntimeSeconds)}
		for i := range 5 {
			cell := "-"
			if i < len(n.Milestones) {
				cell = strings.TrimSuffix(n.Milestones[i].Verdict+" "+seconds(n.Milestones[i].Seconds), " -")
			}
			row = append(row, cell)
		}
		reason := firstLine(n.Reason)
		if n.Killed {
			reason = strings.TrimSpace("the old process had to be killed; " + reason)
		}
		t.Add(append(row, reason)...)
	}
	if err := t.Write(r.s.out); err != nil {
		return err
	}
	fmt.Fprintln(r.s.out, lastLine(doc, cause))
	return nil
}

func lastLine(doc rolling.Document, cause error) string {
	switch {
	case cause == nil && doc.Outcome == rolling.OutcomeStopped:
		return fmt.Sprintf("aborted: operation %s%s", doc.Operation, outcomes(doc))
	case cause == nil && doc.Operation == "":
		return "done: nothing to do, every node runs the image already"
	case cause == nil:
		return fmt.Sprintf("done: operation %s%s", doc.Operation, outcomes(doc))
	case doc.Outcome == rolling.OutcomeInDoubt:
		return fmt.Sprintf("in doubt: operation %s%s", doc.Operation, outcomes(doc))
	}
	return fmt.Sprintf("stopped: operation %s%s", doc.Operation, outcomes(doc))
}

// outcomes counts the nodes by what became of them, as the end of a line; "" where there are none.
func outcomes(doc rolling.Document) string {
	var parts []string
	for _, o := range []string{rolling.NodeRolled, rolling.NodeRestored, rolling.NodeHeld, rolling.NodeUntouched} {
		n := 0
		for _, node := range doc.Nodes {
			if node.Outcome == o {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf(", %d %s", n, o))
		}
	}
	return strings.Join(parts, "")
}

func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1fs", *v)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
