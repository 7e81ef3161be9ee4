package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

func resumeCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "resume", ArgsUsage: "OP",
		Usage: "go on with an operation from what is really on the hosts",
		Action: func(c *cli.Context) error {
			return onOperation(c, s, onOp{(*rolling.Operations).Resume, (*cutover.Operations).Resume})
		},
	}
}

func abortCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "abort", ArgsUsage: "OP",
		Usage: "end an operation: put the node in flight back, leave finished nodes; take a cut-over back",
		Action: func(c *cli.Context) error {
			return onOperation(c, s, onOp{(*rolling.Operations).Abort, (*cutover.Operations).Abort})
		},
	}
}

// onOp is one command on an operation, by what the operation is.
type onOp struct {
	roll    func(*rolling.Operations, context.Context, string) (rolling.Document, error)
	cutover func(*cutover.Operations, context.Context, string) (cutover.Document, error)
}

// onOperation runs resume or abort on the operation named. That it exists and
// is open is looked up first: a misspelt id must not cost a round of all hosts.
func onOperation(c *cli.Context, s streams, do onOp) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	id, err := oneArgument(c, "operation id (qnetops ops lists them)")
	if err != nil {
		return err
	}
	if g.dryRun || len(g.only)+len(g.skip) > 0 {
		return &usageError{text: c.Command.Name + " goes on with the whole operation as it was planned: it takes no --dry-run, --only or --skip",
			hint: "qnetops ops " + id + " shows its steps, qnetops status the fleet"}
	}
	kind, err := openOperation(c.Context, g, id)
	if err != nil {
		return err
	}
	return withFleet(c.Context, s, g, func(r *rollRun) error {
		if slices.Contains(cutover.Kinds(), kind) {
			doc, err := do.cutover(r.cutovers(), c.Context, id)
			return r.answerCutover(doc, err)
		}
		doc, err := do.roll(r.ops, c.Context, id)
		return r.answer(doc, err)
	})
}

// openOperation says what kind of operation is unfinished under id.
func openOperation(ctx context.Context, g globals, id string) (kind string, err error) {
	if err := g.needState(id); err != nil {
		return "", err
	}
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return "", err
	}
	defer db.Close()
	op, err := store.Op(ctx, id)
	if err != nil {
		return "", err
	}
	record, err := op.Record(ctx)
	if err == nil && record.State.Finished() {
		return "", &rolling.NotOpenError{ID: id, Why: "it is " + string(record.State)}
	}
	return record.Kind, err
}

// runFinish archives and removes what a finished roll kept aside.
func runFinish(ctx context.Context, s streams, g globals, id string) error {
	if err := g.needState(id); err != nil {
		return err
	}
	return withFleet(ctx, s, g, func(r *rollRun) error {
		if err := r.ops.Free(ctx); err != nil || g.dryRun {
			return err
		}
		if err := confirm(ctx, s, g, fmt.Sprintf("archive and remove the old containers that %s kept? There is no way back to them afterwards.", id)); err != nil {
			return err
		}
		doc, err := r.ops.Finish(ctx, id)
		return r.answer(doc, err)
	})
}
