package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/rolling"
)

func rollbackCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:  "rollback",
		Usage: "take the whole fleet back to what it holds certified, or to a height above that",
		Description: "For a fleet that is stalled or forked above its last seal. Every node is stopped and started together with the\n" +
			"node's own rollback variable; what each did is read from its log; blocks and a new seal must follow within 180\n" +
			"block times; then the variable is removed again, one node at a time. No rollback goes below a certified point.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "to-last-sealed", Usage: "each node goes to the last certified point it holds"},
			&cli.Uint64Flag{Name: "to-height", Usage: "every node goes to height `H`, a multiple of 30 at or above every certified point"},
			&cli.StringFlag{Name: "at", Usage: "stop the nodes at this `TIME` (RFC 3339, UTC), after a last look"},
		},
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err == nil {
				err = noArguments(c)
			}
			if err != nil {
				return err
			}
			start, err := readAt(c, g)
			if err == nil && c.Bool("to-last-sealed") == c.IsSet("to-height") {
				err = &usageError{text: "rollback takes either --to-last-sealed or --to-height H", hint: "qnetops rollback --help"}
			}
			if err == nil && c.IsSet("to-height") && c.Uint64("to-height") == 0 {
				err = &usageError{text: "--to-height 0: the chain begins at 1, and no rollback goes there", hint: "qnetops status shows the heights"}
			}
			if err != nil {
				return err
			}
			var target *uint64
			if c.IsSet("to-height") {
				h := c.Uint64("to-height")
				target = &h
			}
			return runRollback(c.Context, s, g, target, start)
		},
	}
}

func runRollback(ctx context.Context, s streams, g globals, target *uint64, at time.Time) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		base, err := r.ask(at)
		if err != nil {
			return err
		}
		ops, ask := r.cutovers(), cutover.RollbackAsk{Ask: base, Target: target}
		if err := ops.Free(ctx); err != nil {
			return err
		}
		r.tell.say("looking at the nodes")
		p, err := ops.ProposeRollback(ctx, ask)
		if err != nil {
			return err
		}
		if g.json && g.dryRun {
			if err := printJSON(s.out, struct {
				cutover.Plan
				Digest    string             `json:"digest"`
				Checks    []observe.Check    `json:"checks"`
				Forecasts []cutover.Forecast `json:"forecasts"`
			}{p.Plan, p.Plan.Digest(), p.Checks, p.Forecasts}); err != nil {
				return err
			}
			return p.Refused()
		}
		if err := r.printForecasts(p.Forecasts); err != nil {
			return err
		}
		where := "the last certified point of each node"
		if target != nil {
			where = fmt.Sprintf("height %d", *target)
		}
		return r.carryOut(ctx, p.Proposal, fmt.Sprintf("take fleet %s back to %s", r.inv.Name, where),
			func() (cutover.Document, error) { return ops.Rollback(ctx, ask, p.Plan) })
	})
}

// printForecasts says what will happen on each host, and what cannot be read.
func (r *rollRun) printForecasts(hosts []cutover.Forecast) error {
	w := r.s.out
	if r.g.json {
		w = r.s.err
	}
	t := report.Table{Head: []string{"host", "height", "certified at least to", "will", "because"}}
	for _, f := range hosts {
		t.Add(f.ID, blocksWord(f.Height), blocksWord(f.FloorAtLeast), f.Will, f.Text)
	}
	return t.Write(w)
}

// printWentOn is the end of a cut-over whose point is that the chain goes on.
func (r *rollRun) printWentOn(doc cutover.Document) error {
	t := report.Table{Head: []string{"host", "state", "outcome", "policy", "what was seen"}}
	for _, h := range doc.Hosts {
		outcome := "-"
		if h.Rollback != nil {
			outcome = strings.ReplaceAll(h.Rollback.Outcome, "_", " ") + ": " + h.Rollback.Text
		}
		if h.Decree != nil {
			outcome = decreeWord(*h.Decree)
		}
		t.Add(h.ID, string(h.State), outcome, orDash(h.RestartPolicy), firstLine(h.Text))
	}
	if err := t.Write(r.s.out); err != nil {
		return err
	}
	if doc.Chain != nil {
		fmt.Fprintf(r.s.out, "chain: %s: %s\n", strings.ReplaceAll(doc.Chain.Verdict, "_", " "), doc.Chain.Text)
	}
	fmt.Fprintln(r.s.out, cutoverLine(doc))
	if doc.Outcome == rolling.OutcomeDone {
		fmt.Fprintln(r.s.out, "next: qnetops status --check")
	}
	return nil
}

func decreeWord(d cutover.DecreeResult) string {
	switch {
	case !d.Restarted:
		return "not started anew"
	case d.Pruned == nil:
		return "started anew"
	case *d.Pruned:
		return fmt.Sprintf("pruned from %s to %s", blocksWord(d.From), blocksWord(d.Lowest))
	}
	return "not pruned"
}
