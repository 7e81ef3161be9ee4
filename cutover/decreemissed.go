package cutover

import (
	"context"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/rolling"
)

// missed says that a node did not do what the decree asks for: it runs on, or was
// started anew by something else and has its blocks above the target still.
func (r DecreeResult) missed() bool { return !r.Restarted || r.Pruned != nil && !*r.Pruned }

// missed are the hosts whose node goes on as if there were no decree, while others
// have taken it: it was away or starting when they gossiped, or was ended before it
// could prune. Who was handed it in this process is asked no second time.
func (d *decree) missed() (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := false
	for id, res := range d.results {
		taken = taken || res.Restarted && !res.missed()
		if res.runs && (res.missed() || res.unnoted) && !d.handed[id] {
			ids = append(ids, id)
		}
	}
	if !taken {
		return nil
	}
	slices.Sort(ids)
	return ids
}

// noteLate writes down where the nodes stand that were away before.
func (d *decree) noteLate(ctx context.Context, r *Run, ids []string) error {
	all, late := d.before(ctx, r), false
	for id, s := range lookAll(ctx, d.fleet, ids) {
		if _, known := all[id]; !known && s.Reached {
			all[id], late = before{Container: s.Container, Started: s.Started, Height: s.Height}, true
		}
	}
	if !late || ctx.Err() != nil {
		return ctx.Err()
	}
	return r.Record(ctx, stepBefore, "note where nodes stand that were away", all)
}

// handOver gives the decree to nodes that have missed it. It is the same one: a node
// that has taken it refuses its number, and one that holds a certified point above
// the target says so.
func (d *decree) handOver(ctx context.Context, r *Run, ids []string) error {
	if err := d.noteLate(ctx, r, ids); err != nil {
		return err
	}
	t, err := d.change(ctx, r, ids, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		answer, err := d.hand(ctx, r, id)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.handed[id] = true
		switch {
		case strings.Contains(answer.Refused, seqApplied): // the gossip has reached it after all
			err = nil
		case answer.Refused != "":
			d.refused[id], err = answer.Refused+meaning(answer.Refused), nil
		}
		return Standing{State: Finished, Text: "was handed the decree, which it had missed"}, err
	})
	d.tell(r, Verify, t)
	if err != nil {
		return err
	}
	return d.settle(ctx, r, false)
}

// alike is the newest macroblock above the target that a node holds alike with all
// that have started anew and show it; 0: none is shown, or it has not refused. A node
// that was away takes the new chain from the others once that is certified, and has
// nothing more to prune.
func (d *decree) alike(ctx context.Context, id string) uint64 {
	d.mu.Lock()
	refused := d.refused[id] != ""
	d.mu.Unlock()
	if !refused {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	seal := func(id string, index uint64) (*node.Hash, uint64) {
		conn, err := rolling.Reach(ctx, d.fleet, id)
		if err != nil {
			return nil, 0
		}
		if index == 0 {
			pos, err := conn.Node().Position(ctx)
			if err != nil {
				return nil, 0
			}
			index = pos.LastSealed
		}
		hash, _, err := hashAt(ctx, conn.Node(), index)
		if err != nil {
			return nil, 0
		}
		return hash, index
	}
	own, index := seal(id, 0)
	if own == nil || node.WindowHead(index) <= d.plan.Decree.Target {
		return 0
	}
	agree := false
	for _, other := range d.plan.Hosts {
		d.mu.Lock()
		taken := d.results[other].Restarted
		d.mu.Unlock()
		if !taken || other == id {
			continue
		}
		theirs, _ := seal(other, index)
		if theirs != nil && *theirs != *own {
			return 0
		}
		agree = agree || theirs != nil
	}
	if !agree {
		return 0
	}
	return index
}
