package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/rolling"
)

func restoreCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "restore", ArgsUsage: "NODE",
		Usage: "put the old container of one node back; needs no journal of the operation that set it aside",
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			id, err := oneArgument(c, "node id")
			if err != nil {
				return err
			}
			return runRestore(c.Context, s, g, id)
		},
	}
}

func runRestore(ctx context.Context, s streams, g globals, id string) error {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	r := &rollRun{s: s, g: g, inv: inv, fleet: f, tell: newTeller(s, g, inv)}
	defer r.tell.close()
	if _, err := rolling.ReadFences(ctx, f, store.ID()); err != nil {
		return err
	}
	restoring := &rolling.Restoring{Fleet: f, Emit: r.tell.event}
	plan, err := restoring.Look(ctx, id)
	if err != nil {
		return err
	}
	r.tell.say("node %s: container %s comes back in the place of %s (image %s)", id, plan.Aside, plan.Container, plan.Current)
	if g.dryRun {
		return nil
	}
	if err := confirm(ctx, s, g, fmt.Sprintf("put %s back on node %s?", plan.Aside, id)); err != nil {
		return err
	}
	return r.withLease(ctx, db, store, func(ctx context.Context, held *mutation) error {
		return r.restore(ctx, held, restoring, plan)
	})
}

// restore journals itself as an operation of its own, or as a note of the
// unfinished one: a node must be able to come back in the middle of a roll.
func (r *rollRun) restore(ctx context.Context, held *mutation, restoring *rolling.Restoring, plan rolling.RestorePlan) error {
	raw, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	op, err := held.store.Begin(ctx, journal.Spec{Kind: "restore", Fleet: r.inv.Name, Operator: operator(r.s), Epoch: held.lease.Token().Epoch, Plan: raw})
	var unfinished *journal.UnfinishedError
	within := errors.As(err, &unfinished)
	if within {
		if op, err = held.store.Op(ctx, unfinished.ID); err == nil {
			err = op.Resume(ctx, held.lease.Token().Epoch)
		}
	}
	if err != nil {
		return err
	}
	if err := held.fence(ctx, r.fleet, op.ID(), []string{plan.ID}); err != nil {
		return errors.Join(err, closeRestore(ctx, op, within, journal.Aborted, "nothing was changed"))
	}
	restoring.Lease = held.lease
	var result rolling.NodeResult
	err = op.Do(ctx, journal.Step{ID: plan.ID + "/restore", Title: "put " + plan.Aside + " back"}, func(ctx context.Context) (any, error) {
		var err error
		result, err = restoring.Run(ctx, plan)
		return result, err
	})
	state, text := journal.Done, "node "+plan.ID+" is restored"
	if err != nil {
		state, text = journal.Aborted, err.Error()
	}
	err = errors.Join(err, closeRestore(ctx, op, within, state, text))
	if !within {
		err = errors.Join(err, held.unfence(ctx, r.fleet))
	}
	r.tell.close()
	doc := rolling.Document{Schema: "qnetops/roll/v1", Operation: op.ID(), Outcome: rolling.OutcomeDone, Nodes: []rolling.NodeResult{result}}
	if err != nil {
		doc.Outcome = rolling.OutcomeStopped
	}
	return errors.Join(err, r.printDocument(doc, err))
}

// closeRestore ends the restore's own operation; the one it ran within stays
// stopped, because the rest of it is still to be decided.
func closeRestore(ctx context.Context, op *journal.Op, within bool, state journal.State, text string) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if within {
		return op.Finish(ctx, journal.Stopped, text)
	}
	return op.Finish(ctx, state, text)
}
