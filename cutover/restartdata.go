package cutover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// heldData is what a data directory held when its node had stopped. A host whose
// directory still is that holds what it was shown to serve before.
type heldData struct {
	Container string `json:"container"`
	Path      string `json:"path"`
	Files     uint64 `json:"files"`
	Bytes     uint64 `json:"bytes"`
	Digest    string `json:"digest"`
}

// noteHeld journals once what a stopped host holds.
func (x *restarting) noteHeld(ctx context.Context, r *Run, id string, s Standing) (Standing, error) {
	if _, known := x.held(ctx, r, id); known {
		return s, nil
	}
	inv, err := dataOf(ctx, x.fleet, id, "")
	if err != nil {
		return Standing{}, err
	}
	p := x.plan.Restart.Roll.Node(id)
	h := heldData{Container: p.ContainerID, Path: inv.Path, Files: inv.Files, Bytes: inv.Bytes, Digest: inv.Digest}
	return s, r.Record(ctx, id+"/"+stepStopped, fmt.Sprintf("stopped; %s holds %d files, %d bytes", inv.Path, inv.Files,
		inv.Bytes), h)
}

func (x *restarting) held(ctx context.Context, r *Run, id string) (heldData, bool) {
	var h heldData
	raw := r.Result(ctx, id+"/"+stepStopped)
	return h, raw != nil && json.Unmarshal(raw, &h) == nil
}

// holds says why a stopped host is not shown to hold what it held when it was
// stopped; "" where it does. It reads the directory anew.
func (x *restarting) holds(ctx context.Context, r *Run, id string) string {
	if id == "" {
		return "no host of this fleet holds the state of K"
	}
	was, known := x.held(ctx, r, id)
	if !known {
		return "what " + id + " held was not written down"
	}
	s := lookAt(ctx, x.fleet, id)
	switch {
	case !s.Reached:
		return id + " cannot be seen: " + s.Why
	case s.runs():
		return id + " runs again, by another hand"
	case s.Container != was.Container:
		return id + " has another container than the one that was stopped"
	}
	now, err := dataOf(ctx, x.fleet, id, "")
	switch {
	case err != nil:
		return fmt.Sprintf("the data directory of %s cannot be read: %v", id, err)
	case now.Path != was.Path || now.Digest != was.Digest || !now.Database:
		return fmt.Sprintf("%s of %s does not hold any more what it held when the node was stopped", was.Path, id)
	}
	return ""
}

// data copies the directory of the archive host, and then sets those of the other
// hosts aside one after the other, each only while the archive host is shown to
// hold the state of K.
//
// A step whose answer was lost says nothing of its host: it is asked for again before
// the host is passed by.
func (x *restarting) data(ctx context.Context, r *Run) (Tally, error) {
	for round := 1; ; round++ {
		t, err := x.dataRound(ctx, r)
		lost := func(s Standing) bool { return s.State == Missing }
		if err != nil || round == stopRounds || !slices.ContainsFunc(slices.Collect(maps.Values(t)), lost) {
			return x.apart(t), err
		}
		if err := x.Settle(ctx, r); err != nil {
			return t, err
		}
		if !wait(ctx, max(x.fleet.Inventory().Block, time.Second)) {
			return t, ctx.Err()
		}
	}
}

func (x *restarting) dataRound(ctx context.Context, r *Run) (Tally, error) {
	here, t := x.here(ctx, r, Hold, Data, Go)
	p := x.plan.Restart
	for _, id := range here {
		if h := p.host(id); id == p.Archive && h.Way == restart.WayRename {
			s, err := x.copyOne(ctx, r, h)
			if t[id] = s; err != nil || s.State != Finished {
				return x.waiting(t, "waits for the copy of "+id), err
			}
		}
	}
	for _, id := range here {
		if !p.joins(id) {
			if _, done := t[id]; !done {
				t.finish(id, "%s", x.stays(id))
			}
			continue
		}
		s, err := x.asideOne(ctx, r, p.host(id))
		if t[id] = s; err != nil {
			return x.waiting(t, "not begun"), err
		}
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Data), State: string(s.State), Text: s.Text})
	}
	return t, ctx.Err()
}

func (x *restarting) stays(id string) string {
	if x.plan.Restart.host(id).Way == restart.WayRollback {
		return fmt.Sprintf("its data stays: its node goes back to %d when it starts", x.plan.Restart.Values.Head())
	}
	return "its data stays as it is"
}

func (x *restarting) asideOne(ctx context.Context, r *Run, h RestartHost) (Standing, error) {
	if why := x.holds(ctx, r, x.plan.Restart.Archive); why != "" {
		return Standing{State: Waiting, Down: true, Text: "is not set aside: " + why + "; no procedure is known without a host " +
			"that holds the state"}, ctx.Err()
	}
	if err := x.aside(ctx, r, h); err != nil {
		return x.standing(ctx, h.ID, err)
	}
	return Standing{State: Finished, Down: true, Text: "set aside as " + h.Aside}, nil
}

// dataBack renames back what was set aside; the copy of the archive host stays.
func (x *restarting) dataBack(ctx context.Context, r *Run) error {
	t, err := x.each(ctx, x.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		h := x.plan.Restart.host(id)
		if !x.plan.Restart.joins(id) || !stepBegun(ctx, r, id, stepAside) {
			return Standing{State: Finished}, nil
		}
		if r.Result(ctx, id+"/"+stepBackData) != nil { // an abort that was held later: the node may run on it already
			return Standing{State: Finished, Text: "its data is back"}, nil
		}
		_, err := x.move(ctx, r, h, stepBackData, "put "+h.Aside+" back", func(ctx context.Context, w *host.Writer, m host.DataMove,
			ev func(host.TxEvent)) (host.DataMoved, error) {
			return w.DataBack(ctx, m, ev)
		})
		return Standing{State: Finished}, err
	})
	if open := x.open(r, t); err == nil && len(open) > 0 {
		err = r.Held(Data, open)
	}
	return err
}

// displaced are the hosts whose data is not in its place: nothing is started on them,
// it would begin a database of its own.
func (x *restarting) displaced(ctx context.Context, r *Run) Tally {
	out := Tally{}
	for _, id := range x.plan.Hosts {
		if x.plan.Restart.joins(id) && stepBegun(ctx, r, id, stepAside) && r.Result(ctx, id+"/"+stepBackData) == nil {
			out[id] = Standing{State: Failed, Down: true, Text: "its data is still " + x.plan.Restart.host(id).Aside + " and was not put " +
				"back: before its node is started, rename it to " + x.plan.Restart.host(id).DataPath}
		}
	}
	return out
}

// unmoved refuses to start anything when what was left before the countdown is not
// as it was.
func (x *restarting) unmoved(ctx context.Context, r *Run, here []string) error {
	var open []string
	for _, id := range here {
		s := lookAt(ctx, x.fleet, id)
		switch {
		case !s.Reached && x.plan.Restart.Archive != id:
			continue // go sees for itself, and the threshold decides
		case !s.Reached:
			open = append(open, id+": "+s.Why)
		case s.runs():
			open = append(open, id+": runs again, by another hand")
		}
	}
	if a := x.plan.Restart.Archive; a != "" {
		if why := x.holds(ctx, r, a); why != "" {
			open = append(open, why)
		}
	}
	if len(open) > 0 {
		return r.Held(Go, open)
	}
	return ctx.Err()
}

// verify sees every node on the chain from K. First the hashes: a node that shows
// another K is stopped for good. When a second host serves, the archive host is
// brought to K. Then every node passes its milestones, and new macroblocks are
// sealed without the barred.
func (x *restarting) verify(ctx context.Context, r *Run) (Tally, error) {
	here, away := x.here(ctx, r, Hold, Data, Go)
	if a := x.plan.Restart.Archive; r.Result(ctx, a+"/"+stepTrimBegun) != nil {
		// It may be down, in the middle of what another process began.
		t, err := x.trim(ctx, r, here, maps.Clone(away))
		if _, open := t[a]; err != nil || open && t[a].State != Finished {
			return x.waiting(t, "waits for the archive host "+a), err
		}
	}
	t, err := x.hashes(ctx, r, here, away)
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	if t, err = x.trim(ctx, r, here, t); err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	runner := x.roll(r)
	runner.Together()
	t, err = x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) { return x.watch(ctx, runner, id) })
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	return t, x.sealing(ctx, r, slices.DeleteFunc(here, func(id string) bool { return t[id].State != Finished }))
}

// sealing asks for what restart verify asks for, as far as own hosts can tell. The
// rollback variable goes after it.
func (x *restarting) sealing(ctx context.Context, r *Run, here []string) error {
	doc, err := VerifyRestart(ctx, x.fleet, here, x.plan.Restart.Values, "", nil)
	if err != nil {
		return err
	}
	var open []string
	for _, c := range doc.Checks {
		later := c.Name == CheckOperator || c.Name == CheckTemp && len(x.plan.Restart.back()) > 0
		if c.Verdict != observe.Pass && !later {
			open = append(open, c.Name+" "+string(c.Verdict)+": "+c.Reason)
		}
	}
	if len(open) > 0 {
		return r.Held(Verify, open)
	}
	return nil
}

// joinBlocks is how long a node may take to fetch the state of K, in block times.
const joinBlocks = 600

// hashes waits until every node shows K, with the recorded hash. The archive host,
// which may carry more, is only asked for its hash.
func (x *restarting) hashes(ctx context.Context, r *Run, here []string, away Tally) (t Tally, err error) {
	v, block := x.plan.Restart.Values, x.fleet.Inventory().Block
	err = repeat(ctx, max(block, leastPoll), max(joinBlocks*block, leastQuiet), func(bool) (bool, error) {
		t, err = x.each(ctx, here, maps.Clone(away), func(ctx context.Context, id string) (Standing, error) {
			got, latched, err := x.lookNew(ctx, r, id)
			if latched != nil || err != nil {
				return *cmp.Or(latched, &Standing{}), err
			}
			return judgeJoined(v, got, id == x.plan.Restart.Archive), nil
		})
		x.tell(r, Verify, t)
		return settledAll(t), err
	})
	return x.apart(t), err
}

// judgeJoined says how a node stands on its way to K.
func judgeJoined(v RestartValues, r RestartReading, archive bool) Standing {
	s := judgeStarted(v, r)
	switch {
	case s.State == Failed || s.State == Missing:
		return s
	case r.HashK == nil:
		return Standing{State: Waiting, Text: fmt.Sprintf("does not show macroblock %d yet", v.K())}
	case !archive && len(r.Lines.Mismatch) > 0:
		return Standing{State: Failed, Text: "carries data above K and failed closed: " + r.oldSide(v)}
	}
	return Standing{State: Finished, Text: fmt.Sprintf("shows macroblock %d with the recorded hash", v.K())}
}
