package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/qnetops/qnetops/observe"
)

// journalLimit bounds how long `status` waits for the journal: the fleet must be seen even where its store is away.
const journalLimit = 5 * time.Second

// openOperations reads the unfinished operations of a fleet, newest first. A default store that does not exist has none and is
// not made; one that was named and is not there says nothing.
func openOperations(ctx context.Context, g globals, fleet string) ([]observe.StatusOperation, error) {
	open := []observe.StatusOperation{}
	switch {
	case g.stateMissing() && g.stateGiven:
		return nil, g.needState("status")
	case g.stateMissing():
		return open, nil
	}
	ctx, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	records, err := store.List(ctx, fleet)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if !r.State.Finished() {
			open = append(open, observe.StatusOperation{ID: r.ID, Kind: r.Kind, State: string(r.State), Operator: r.Operator, StartedAt: r.StartedAt})
		}
	}
	return open, nil
}

// printOpen names the unfinished operations, each with the commands that end it.
func printOpen(w io.Writer, open []observe.StatusOperation) {
	for _, o := range open {
		fmt.Fprintf(w, "operation %s (%s, by %s since %s) is not finished: qnetops ops %s shows it; unless somebody runs it now, "+
			"qnetops resume %s, or qnetops abort %s%s\n", o.ID, o.Kind, o.Operator, o.StartedAt.UTC().Format(time.RFC3339), o.ID, o.ID, o.ID,
			abortable(o.Kind))
	}
}
