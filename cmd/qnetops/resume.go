package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/rolling"
)

// mutation is what a changing command holds: the lease and the journal.
type mutation struct {
	lease lease.Lease
	store *journal.Store
}

// withLease runs fn under the fleet's lease with an epoch above every one the
// hosts have seen. The context of fn dies with the lease.
func (r *rollRun) withLease(ctx context.Context, db *sqldb.DB, store *journal.Store, fn func(context.Context, *mutation) error) error {
	held, err := acquire(ctx, r.s, r.g, db, r.inv.Name)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := detached(ctx)
		defer cancel()
		_ = held.Release(end) // the lock ends with the process at the latest
	}()
	highest, err := rolling.ReadFences(held.Context(), r.fleet, store.ID())
	if err != nil {
		return err
	}
	if _, err := held.Raise(held.Context(), highest, ""); err != nil {
		return err
	}
	return fn(held.Context(), &mutation{lease: held, store: store})
}

// fence binds the token to the operation and writes its epoch to every host
// that answers, before the first change.
func (m *mutation) fence(ctx context.Context, f *fleet.Fleet, op string, must []string) error {
	token, err := m.lease.Raise(ctx, 0, op)
	if err != nil {
		return err
	}
	return rolling.TakeFences(ctx, f, token, must)
}

// unfence marks the records as released once the operation has ended.
func (m *mutation) unfence(ctx context.Context, f *fleet.Fleet) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	return rolling.ReleaseFences(ctx, f, m.lease.Token())
}

// detached is for what must happen after an interrupt too, in bounded time.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

func resumeCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "resume", ArgsUsage: "OP",
		Usage: "go on with an operation from what is really on the hosts",
		Action: func(c *cli.Context) error {
			return withOperation(c, s, func(ctx context.Context, r *rollRun, held *mutation, runner *rolling.Runner) error {
				doc, err := runner.Run(ctx)
				return r.end(ctx, held, runner.Op, doc, err)
			})
		},
	}
}

func abortCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "abort", ArgsUsage: "OP",
		Usage: "end an operation: put the node in flight back, leave finished nodes",
		Action: func(c *cli.Context) error {
			return withOperation(c, s, func(ctx context.Context, r *rollRun, held *mutation, runner *rolling.Runner) error {
				doc, err := runner.Abort(ctx)
				return r.endAbort(ctx, held, runner.Op, doc, err)
			})
		},
	}
}

// endAbort closes the operation where every node is known to be in order.
func (r *rollRun) endAbort(ctx context.Context, held *mutation, op *journal.Op, doc rolling.Document, cause error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if cause != nil {
		_ = op.Finish(ctx, stateOf(cause), cause.Error())
	} else {
		cause = errors.Join(op.Finish(ctx, journal.Aborted, summary(doc)), held.unfence(ctx, r.fleet))
	}
	r.tell.close()
	if err := r.printDocument(doc, cause); err != nil {
		return err
	}
	return cause
}

func summary(doc rolling.Document) string {
	counts := map[string]int{}
	for _, n := range doc.Nodes {
		counts[n.Outcome]++
	}
	text := fmt.Sprintf("aborted: %d rolled, %d restored, %d untouched", counts[rolling.NodeRolled], counts[rolling.NodeRestored], counts[rolling.NodeUntouched])
	if counts[rolling.NodeRolled] > 0 && counts[rolling.NodeRolled] < len(doc.Nodes) {
		text += "; the fleet runs mixed builds"
	}
	return text
}

// withOperation takes an unfinished operation over: lease, a newer epoch on
// every host, and a look at each step in doubt before anything is done.
func withOperation(c *cli.Context, s streams, fn func(context.Context, *rollRun, *mutation, *rolling.Runner) error) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	id, err := oneArgument(c, "operation id (qnetops ops lists them)")
	if err != nil {
		return err
	}
	ctx := c.Context
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	op, err := store.Op(ctx, id)
	if err != nil {
		return err
	}
	plan, err := journaledPlan(ctx, op)
	if err != nil {
		return err
	}
	record, err := op.Record(ctx)
	if err != nil {
		return err
	}
	if record.State.Finished() {
		return &refusal{text: fmt.Sprintf("operation %s is %s", id, record.State), hint: "qnetops ops " + id + " shows what it did"}
	}
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	if inv.Name != record.Fleet {
		return &refusal{text: fmt.Sprintf("operation %s is of fleet %s, the inventory is of fleet %s", id, record.Fleet, inv.Name), hint: "give the right file with --hosts"}
	}
	r := &rollRun{s: s, g: g, inv: inv, fleet: f, tell: newTeller(s, g, inv)}
	defer r.tell.close()
	return r.withLease(ctx, db, store, func(ctx context.Context, held *mutation) error {
		if err := held.fence(ctx, f, id, ids(plan)); err != nil {
			return err
		}
		if err := op.Resume(ctx, held.lease.Token().Epoch); err != nil {
			return err
		}
		r.tell.operation(id)
		runner := &rolling.Runner{Fleet: f, Op: op, Lease: held.lease, Plan: plan, Emit: r.tell.event}
		if err := runner.Settle(ctx); err != nil {
			end, cancel := detached(ctx)
			defer cancel()
			_ = op.Finish(end, stateOf(err), err.Error())
			return err
		}
		return fn(ctx, r, held, runner)
	})
}

// runFinish archives and removes what a finished roll kept aside.
func runFinish(ctx context.Context, s streams, g globals, id string) error {
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	op, err := store.Op(ctx, id)
	if err != nil {
		return err
	}
	plan, err := journaledPlan(ctx, op)
	if err != nil {
		return err
	}
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	r := &rollRun{s: s, g: g, inv: inv, fleet: f, tell: newTeller(s, g, inv)}
	defer r.tell.close()
	if err := unfinished(ctx, store, inv.Name); err != nil {
		return err
	}
	if err := confirm(ctx, s, g, fmt.Sprintf("archive and remove the old containers that %s kept on %d node(s)? There is no way back to them afterwards.", id, len(plan.Targets()))); err != nil {
		return err
	}
	return r.withLease(ctx, db, store, func(ctx context.Context, held *mutation) error {
		end, err := held.store.Begin(ctx, journal.Spec{Kind: "finish", Fleet: inv.Name, Operator: operator(s), Epoch: held.lease.Token().Epoch, PlanDigest: plan.Digest()})
		if err != nil {
			return err
		}
		if err := held.fence(ctx, f, id, ids(plan)); err != nil {
			return errors.Join(err, end.Finish(context.WithoutCancel(ctx), journal.Aborted, "nothing was changed: "+err.Error()))
		}
		runner := &rolling.Runner{Fleet: f, Op: end, Lease: held.lease, Plan: plan, Emit: r.tell.event, Of: id}
		results, err := runner.FinishAll(ctx)
		state, text := journal.Done, fmt.Sprintf("%d old containers removed", len(results))
		if err != nil {
			state, text = journal.Aborted, err.Error()
		}
		err = errors.Join(err, end.Finish(context.WithoutCancel(ctx), state, text), held.unfence(ctx, f))
		r.tell.close()
		for _, res := range results {
			fmt.Fprintf(s.out, "archived %s (%d bytes)\n", res.Archive, res.Bytes)
		}
		return err
	})
}
