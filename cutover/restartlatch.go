package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// latch is in the journal while a node stays stopped: the hash that it showed, or
// what its node said instead of going back. Clearing it writes an empty one.
type latch struct {
	Hash    string `json:"hash,omitempty"`
	Refused string `json:"refused,omitempty"`
}

func (l latch) set() bool { return l != latch{} }

func latchOf(ctx context.Context, r *Run, id string) (l latch) {
	if raw := r.Result(ctx, id+"/"+stepLatched); raw == nil || json.Unmarshal(raw, &l) != nil {
		return latch{}
	}
	return l
}

// text says why a node stays stopped, and how a person lets it go on.
func (l latch) text(r *Run, id string) string {
	op := r.Op.ID()
	if l.Refused != "" {
		return fmt.Sprintf("did not go back: %s. It was stopped for good with its data unchanged; qnetops resume %s --waive "+
			"latched=%s sets its data aside and lets it join anew, "+
			"while another host serves; --waive members=REASON goes on without it", l.Refused, op, id)
	}
	return fmt.Sprintf("shows another macroblock K than the record and was stopped for good; find out why, then clear it by name: "+
		"qnetops resume %s --waive latched=%s, or go on without it: --waive members=REASON", op, id)
}

// cleared says that a person let a latched node go on, by its name.
func cleared(r *Run, id string) bool {
	for _, w := range r.Waivers {
		if w.Check == "latched" && slices.Contains(strings.Split(w.Reason, ","), id) {
			return true
		}
	}
	return false
}

// lookNew looks at a node that was started on the release. One that shows another
// K, or did not go back, is latched, and its standing comes back; one that a person
// has cleared by its name is started again, and judged anew.
func (x *restarting) lookNew(ctx context.Context, r *Run, id string) (RestartReading, *Standing, error) {
	if l := latchOf(ctx, r, id); l.set() {
		if !cleared(r, id) {
			s, err := x.keptDown(ctx, r, id, l)
			return RestartReading{}, &s, err
		}
		if why, err := x.letGo(ctx, r, id, l); why != "" || err != nil {
			return RestartReading{}, &Standing{State: Waiting, Down: true, Text: why}, err
		}
	}
	if x.goesBack(ctx, r, id) {
		if res, known := x.said(ctx, r, id); known && !res.ok() {
			s, err := x.latch(ctx, r, id, latch{Refused: res.Text})
			return RestartReading{}, &s, err
		}
	}
	got := readRestartAt(ctx, x.fleet, id, x.plan.Restart.Values, shallow)
	if got.wrongHash(x.plan.Restart.Values) {
		s, err := x.latch(ctx, r, id, latch{Hash: got.HashK.String()})
		return got, &s, err
	}
	return got, nil, nil
}

// latch stops a node for good: neither its engine nor a resume starts it before a
// person has cleared it by name. It is journaled first: a node that has stopped does
// not show any more what it was stopped for.
func (x *restarting) latch(ctx context.Context, r *Run, id string, l latch) (Standing, error) {
	if err := r.Record(ctx, id+"/"+stepLatched, "to be stopped for good: "+l.Hash+l.Refused, l); err != nil {
		return Standing{}, err
	}
	return x.keptDown(ctx, r, id, l)
}

// keptDown sees that a latched node is stopped for good, and stops it where it runs.
func (x *restarting) keptDown(ctx context.Context, r *Run, id string, l latch) (Standing, error) {
	title := "stop the node that shows another macroblock K"
	if l.Refused != "" {
		title = "stop the node that did not go back"
	}
	if err := x.stop(ctx, r, *x.plan.Restart.Roll.Node(id), "", title); err != nil {
		return Standing{}, err
	}
	switch s := lookAt(ctx, x.fleet, id); {
	case !s.Reached:
		return Standing{State: Missing, Text: "is to stay stopped, and cannot be seen: " + s.Why}, ctx.Err()
	case s.runs():
		return Standing{State: Failed, Text: "still runs, and must not: it " + l.text(r, id)}, ctx.Err()
	}
	return Standing{State: Failed, Down: true, Text: l.text(r, id)}, ctx.Err()
}

// letGo starts a latched node that was cleared by name. One that did not go back
// joins anew, its data set aside, which waits for a host that serves; the archive
// host keeps its data for the others and is brought to K after them. why says what
// is waited for.
func (x *restarting) letGo(ctx context.Context, r *Run, id string, l latch) (why string, err error) {
	h := x.plan.Restart.host(id)
	if l.Refused != "" && id != x.plan.Restart.Archive {
		here, _ := x.here(ctx, r, Hold, Data, Go)
		if why := x.second(ctx, here, id); why != "" {
			return "its data is not set aside: " + why, ctx.Err()
		}
		if err := x.aside(ctx, r, h); err != nil {
			return "", err
		}
	}
	if err := x.startNew(ctx, r, id, "start the node that was cleared by name"); err != nil {
		return "", err
	}
	return "", r.Record(ctx, id+"/"+stepLatched, "cleared by name", latch{})
}

// startNew starts the container of the release that bears a node's name.
func (x *restarting) startNew(ctx context.Context, r *Run, id, title string) error {
	p := x.plan.Restart.Roll.Node(id)
	s := lookAt(ctx, x.fleet, id)
	if !s.Reached {
		return errors.New(s.Why)
	}
	req := host.StateRequest{Container: p.Container, ExpectID: s.Container, Policy: p.NextPolicy, State: host.StateRunning}
	if err := bring(ctx, r, id, string(actStart), title, req); err != nil {
		return err
	}
	if s := lookAt(ctx, x.fleet, id); !s.Reached || !s.runs() {
		return fmt.Errorf("it does not run again: %s", s.Why)
	}
	return nil
}

// aside sets a stopped host's data aside, once.
func (x *restarting) aside(ctx context.Context, r *Run, h RestartHost) error {
	if r.Result(ctx, h.ID+"/"+stepAside) != nil {
		return nil
	}
	title := "set " + h.DataPath + " aside as " + h.Aside
	_, err := x.move(ctx, r, h, stepAside, title, func(ctx context.Context, w *host.Writer, m host.DataMove,
		ev func(host.TxEvent)) (host.DataMoved, error) {
		return w.DataAside(ctx, m, ev)
	})
	return err
}

// carriesMore says that the archive host still has what lies above K: it serves
// the others with it, and is brought to K after them.
func (x *restarting) carriesMore(ctx context.Context, r *Run) bool {
	h := x.plan.Restart.host(x.plan.Restart.Archive)
	return h.Way == restart.WayRename || h.Way == restart.WayRollback && !x.goesBack(ctx, r, h.ID)
}

// trim brings an archive host that carries blocks above K to K, once another host
// serves: its directory is copied, unless it was before, and set aside, and it joins
// anew.
func (x *restarting) trim(ctx context.Context, r *Run, here []string, t Tally) (Tally, error) {
	h := x.plan.Restart.host(x.plan.Restart.Archive)
	if !x.carriesMore(ctx, r) || r.Result(ctx, h.ID+"/"+stepTrimmed) != nil {
		return t, nil
	}
	if !stepBegun(ctx, r, h.ID, stepAside) {
		if why := x.second(ctx, here, h.ID); why != "" {
			t[h.ID] = Standing{State: Waiting, Text: "keeps its data: " + why}
			return t, ctx.Err()
		}
	}
	s, err := x.standing(ctx, h.ID, x.trimOne(ctx, r, h))
	if s.State == Failed || s.State == Missing || err != nil {
		t[h.ID] = s
		return t, err
	}
	v, block := x.plan.Restart.Values, x.fleet.Inventory().Block
	err = repeat(ctx, max(block, leastPoll), max(joinBlocks*block, leastQuiet), func(bool) (bool, error) {
		t[h.ID] = judgeJoined(v, readRestartAt(ctx, x.fleet, h.ID, v, shallow), false)
		return settledAll(Tally{h.ID: t[h.ID]}), ctx.Err()
	})
	return t, err
}

// second says why no other host is shown to serve the state of K.
func (x *restarting) second(ctx context.Context, here []string, id string) (why string) {
	return x.served(ctx, joinBlocks, slices.DeleteFunc(slices.Clone(here), func(other string) bool { return other == id })...)
}

// served waits so many block times until one of the hosts is seen to serve; "" where
// one does. A host that is busy answers the next time.
func (x *restarting) served(ctx context.Context, blocks time.Duration, by ...string) (why string) {
	if len(by) == 0 {
		return "no other host takes part"
	}
	block := x.fleet.Inventory().Block
	err := repeat(ctx, max(block, leastPoll), max(blocks*block, leastQuiet), func(bool) (bool, error) {
		for _, id := range by {
			if why = x.serves(ctx, id); why == "" {
				return true, nil
			}
		}
		return false, ctx.Err()
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// trimOne stops the archive host, sets its data aside and starts it again. Each of
// its acts may be repeated.
func (x *restarting) trimOne(ctx context.Context, r *Run, h RestartHost) error {
	if r.Result(ctx, h.ID+"/"+stepAside) == nil {
		if err := r.Record(ctx, h.ID+"/"+stepTrimBegun, "the archive host is to be brought to K", h); err != nil {
			return err
		}
		if err := x.stop(ctx, r, *x.plan.Restart.Roll.Node(h.ID), "", "stop the archive host: another one serves"); err != nil {
			return err
		}
		if r.Result(ctx, h.ID+"/"+stepCopied) == nil || h.Way == restart.WayRollback {
			if s, err := x.copyOne(ctx, r, h); err != nil || s.State != Finished {
				return errors.Join(err, errors.New(s.Text))
			}
		}
		if err := x.aside(ctx, r, h); err != nil {
			return err
		}
	}
	if err := x.startNew(ctx, r, h.ID, "start the archive host, which joins anew"); err != nil {
		return err
	}
	return r.Record(ctx, h.ID+"/"+stepTrimmed, "the archive host was brought to K", map[string]string{"aside": h.Aside,
		"copy": h.Copy})
}

// copySeconds is how long one step copies: short enough for a step, and the next
// one goes on where it ended.
const copySeconds = 600

// copyOne copies until the copy is whole.
func (x *restarting) copyOne(ctx context.Context, r *Run, h RestartHost) (Standing, error) {
	title := "copy " + h.DataPath + " to " + h.Copy
	for {
		done, err := x.move(ctx, r, h, stepCopied, title, func(ctx context.Context, w *host.Writer, m host.DataMove,
			ev func(host.TxEvent)) (host.DataMoved, error) {
			m.Seconds = copySeconds
			return w.DataCopy(ctx, m, ev)
		})
		if err != nil {
			return x.standing(ctx, h.ID, err)
		}
		text := fmt.Sprintf("%s: %d of %d bytes", h.Copy, done.Bytes, done.Total)
		r.Say(rolling.Event{Node: h.ID, Kind: rolling.KindWait, Name: string(Data), Text: text})
		if done.Finished {
			return Standing{State: Finished, Down: true, Text: "copied to " + text}, nil
		}
		if err := ctx.Err(); err != nil {
			return Standing{State: Waiting, Down: true, Text: text}, err
		}
	}
}

// standing sorts an error of one host: one that stops all is passed on.
func (x *restarting) standing(ctx context.Context, id string, err error) (Standing, error) {
	t, err := x.each(ctx, []string{id}, Tally{}, func(context.Context, string) (Standing, error) { return Standing{}, err })
	return t[id], err
}

// move is one journaled data move on the container that bears the node's name. It
// may be asked for again whatever became of it.
func (x *restarting) move(ctx context.Context, r *Run, h RestartHost, name, title string,
	do func(context.Context, *host.Writer, host.DataMove, func(host.TxEvent)) (host.DataMoved, error)) (host.DataMoved, error) {
	var done host.DataMoved
	s := lookAt(ctx, x.fleet, h.ID)
	if !s.Reached {
		return done, errors.New(s.Why)
	}
	p := x.plan.Restart.Roll.Node(h.ID)
	m := x.plan.Restart.move(h, p.Container, s.Container)
	err := r.Step(ctx, h.ID, name, title, func(ctx context.Context, w *host.Writer) (any, error) {
		var err error
		done, err = do(ctx, w, m, func(e host.TxEvent) {
			r.Say(rolling.Event{Node: h.ID, Kind: rolling.KindTx, Name: e.Step, State: e.State, Text: e.Text})
		})
		return done, err
	})
	return done, err
}
