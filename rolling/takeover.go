package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
)

const kindBreak = "break"

// HeldHost is a host whose fence another store holds.
type HeldHost struct {
	ID     string
	Record host.FenceRecord
}

// Foreign lists the hosts that another store's unreleased record keeps from
// being changed by this one, in the order of their ids.
func (o *Operations) Foreign(ctx context.Context) ([]HeldHost, error) {
	var (
		mu   sync.Mutex
		held []HeldHost
		errs []error
	)
	eachOf(ctx, o.Fleet.Inventory().IDs(), func(ctx context.Context, id string) {
		agent, err := agentOf(ctx, o.Fleet, id)
		if err != nil {
			return // it cannot be taken over now; it is refused again when it is back
		}
		record, err := agent.Fence(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, fmt.Errorf("host %s: reading the fence: %w", id, err))
			return
		}
		if record != nil && record.Store != o.Store.ID() && !record.Released {
			held = append(held, HeldHost{ID: id, Record: *record})
		}
	})
	sort.Slice(held, func(i, j int) bool { return held[i].ID < held[j].ID })
	return held, errors.Join(errs...)
}

// TakeOver replaces exactly the records that a person has seen and decided on.
// The earlier holder, should it wake up, is refused by every one of these hosts;
// what it has in hand there ends first. It is journaled in this store.
func (o *Operations) TakeOver(ctx context.Context, held []HeldHost, reason string) error {
	plan, err := json.Marshal(held)
	if err != nil {
		return err
	}
	highest := uint64(0)
	for _, h := range held {
		highest = max(highest, h.Record.Epoch)
	}
	claim, err := o.Acquire(ctx)
	if err != nil {
		return err
	}
	defer o.giveBack(ctx, claim)
	if _, err := claim.Raise(claim.Context(), highest, ""); err != nil {
		return err
	}
	op, err := o.Store.Begin(ctx, journal.Spec{Kind: kindBreak, Fleet: o.Fleet.Inventory().Name, Operator: o.Operator,
		Epoch: claim.Token().Epoch, Plan: plan, Waivers: []journal.Waiver{{Check: "lease", Reason: reason, By: o.Operator}}})
	if err != nil {
		return err
	}
	token, err := claim.Raise(claim.Context(), highest, op.ID())
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range held {
		errs = append(errs, o.takeOne(ctx, op, token, h, reason))
	}
	err = errors.Join(errs...)
	state, text := journal.Done, fmt.Sprintf("%d fence records taken over: %s", len(held), reason)
	if err != nil {
		state, text = journal.Aborted, err.Error()
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	return errors.Join(err, op.Finish(end, state, text))
}

func (o *Operations) takeOne(ctx context.Context, op *journal.Op, token lease.Token, h HeldHost, reason string) error {
	conn, err := connOf(ctx, o.Fleet, h.ID)
	if err != nil {
		return err
	}
	w, err := conn.Writer(ctx, token)
	if err != nil {
		return fmt.Errorf("host %s: %w", h.ID, err)
	}
	// Repeating it does no harm: the record is compared before it is replaced.
	return op.Do(ctx, journal.Step{ID: h.ID + "/break", Title: "take the fence over from " + h.Record.Owner, Looks: true}, func(ctx context.Context) (any, error) {
		record, err := w.TakeOver(ctx, h.Record, reason)
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", h.ID, err)
		}
		return record, nil
	})
}

func (o *Operations) giveBack(ctx context.Context, claim lease.Lease) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	_ = claim.Release(end) // the lock ends with the process at the latest
}
