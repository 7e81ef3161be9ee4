package cutover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	return s, r.Record(ctx, id+"/"+stepStopped, fmt.Sprintf("stopped; %s holds %d files, %d bytes", inv.Path, inv.Files, inv.Bytes), h)
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

// copySeconds is how long one step copies: short enough for a step, and the next
// one goes on where it ended.
const copySeconds = 600

// data copies the directory of the archive host, and then sets those of the other
// hosts aside one after the other, each only while the archive host is shown to
// hold the state of K.
func (x *restarting) data(ctx context.Context, r *Run) (Tally, error) {
	here, t := x.here(ctx, r)
	p := x.plan.Restart
	for _, id := range here {
		if h := p.host(id); h.Copy != "" {
			s, err := x.copyOne(ctx, r, h)
			if t[id] = s; err != nil || s.State != Finished {
				return x.waiting(t, "waits for the copy of "+id), err
			}
		}
	}
	for _, id := range here {
		if !p.joins(id) {
			if _, done := t[id]; !done {
				t.finish(id, "its data stays as it is")
			}
			continue
		}
		s, err := x.asideOne(ctx, r, p.host(id))
		if t[id] = s; err != nil {
			return x.waiting(t, "not begun"), err
		}
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Data), State: string(s.State), Text: s.Text})
	}
	return x.apart(t), ctx.Err()
}

// copyOne copies until the copy is whole.
func (x *restarting) copyOne(ctx context.Context, r *Run, h RestartHost) (Standing, error) {
	for {
		done, err := x.move(ctx, r, h, stepCopied, "copy "+h.DataPath+" to "+h.Copy, func(ctx context.Context, w *host.Writer, m host.DataMove, ev func(host.TxEvent)) (host.DataMoved, error) {
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

func (x *restarting) asideOne(ctx context.Context, r *Run, h RestartHost) (Standing, error) {
	if why := x.holds(ctx, r, x.plan.Restart.Archive); why != "" {
		return Standing{State: Waiting, Down: true, Text: "is not set aside: " + why + "; no procedure is known without a host that holds the state"}, ctx.Err()
	}
	_, err := x.move(ctx, r, h, stepAside, "set "+h.DataPath+" aside as "+h.Aside, func(ctx context.Context, w *host.Writer, m host.DataMove, ev func(host.TxEvent)) (host.DataMoved, error) {
		return w.DataAside(ctx, m, ev)
	})
	if err != nil {
		return x.standing(ctx, h.ID, err)
	}
	return Standing{State: Finished, Down: true, Text: "set aside as " + h.Aside}, nil
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

// dataBack renames back what was set aside; the copy of the archive host stays.
func (x *restarting) dataBack(ctx context.Context, r *Run) error {
	t, err := x.each(ctx, x.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		h := x.plan.Restart.host(id)
		if !x.plan.Restart.joins(id) || !stepBegun(ctx, r, id, stepAside) {
			return Standing{State: Finished}, nil
		}
		_, err := x.move(ctx, r, h, stepBackData, "put "+h.Aside+" back", func(ctx context.Context, w *host.Writer, m host.DataMove, ev func(host.TxEvent)) (host.DataMoved, error) {
			return w.DataBack(ctx, m, ev)
		})
		return Standing{State: Finished}, err
	})
	if open := Judge(x.plan.Hosts, t, false); err == nil && len(open) > 0 {
		err = r.Held(Data, open) // nothing is started while its data is not in its place
	}
	return err
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
	here, away := x.here(ctx, r)
	t, err := x.hashes(ctx, r, here, away)
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	if t, err = x.trim(ctx, r, here, t); err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	t, err = x.each(ctx, here, away, func(ctx context.Context, id string) (Standing, error) {
		runner := x.roll(r)
		result, err := runner.Watch(ctx, *runner.Plan.Node(id))
		x.mu.Lock()
		x.nodes[id] = result
		x.mu.Unlock()
		return Standing{State: Finished, Text: "passed M0 to M4"}, err
	})
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	return t, x.sealing(ctx, r, here)
}

func (x *restarting) open(r *Run, t Tally) []string {
	_, members := r.Waived("members")
	return Judge(x.plan.Hosts, t, members)
}

// sealing asks for what restart verify asks for, as far as own hosts can tell.
func (x *restarting) sealing(ctx context.Context, r *Run, here []string) error {
	doc, err := VerifyRestart(ctx, x.fleet, here, x.plan.Restart.Values, "", nil)
	if err != nil {
		return err
	}
	var open []string
	for _, c := range doc.Checks {
		if c.Verdict != observe.Pass && c.Name != CheckOperator {
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
func (x *restarting) hashes(ctx context.Context, r *Run, here []string, away Tally) (Tally, error) {
	v, block := x.plan.Restart.Values, x.fleet.Inventory().Block
	limit := max(joinBlocks*block, leastQuiet)
	for began := time.Now(); ; {
		t, err := x.each(ctx, here, copyTally(away), func(ctx context.Context, id string) (Standing, error) {
			got, latched, err := x.lookNew(ctx, r, id)
			if latched != nil || err != nil {
				return *cmp.Or(latched, &Standing{}), err
			}
			return judgeJoined(v, got, id == x.plan.Restart.Archive), nil
		})
		late := time.Since(began) >= limit
		if err != nil || len(Judge(x.plan.Hosts, t, false)) == 0 || late || settledAll(t) {
			return x.apart(t), err
		}
		for id, s := range t {
			r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Verify), State: string(s.State), Text: s.Text})
		}
		if !wait(ctx, max(block, leastPoll)) {
			return t, ctx.Err()
		}
	}
}

func copyTally(t Tally) Tally {
	out := Tally{}
	for id, s := range t {
		out[id] = s
	}
	return out
}

// settledAll says that nobody is on his way any more.
func settledAll(t Tally) bool {
	for _, s := range t {
		if s.State == Waiting || s.State == Missing {
			return false
		}
	}
	return true
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

// lookNew looks at a node that was started on the release. One that shows another K
// is latched, and its standing comes back; one that a person has cleared by its
// name is started again, and judged anew.
func (x *restarting) lookNew(ctx context.Context, r *Run, id string) (RestartReading, *Standing, error) {
	v := x.plan.Restart.Values
	isLatched := latchOf(ctx, r, id) != ""
	if isLatched && !cleared(r, id) {
		return RestartReading{}, &Standing{State: Failed, Down: true, Text: latchedText(r, id)}, nil
	}
	if isLatched {
		p := x.plan.Restart.Roll.Node(id)
		req := host.StateRequest{Container: p.Container, ExpectID: lookAt(ctx, x.fleet, id).Container, Policy: p.NextPolicy, State: host.StateRunning}
		if err := bring(ctx, r, id, string(actStart), "start the node that was cleared by name", req); err != nil {
			return RestartReading{}, nil, err
		}
		if err := r.Record(ctx, id+"/"+stepLatched, "cleared by name", latch{}); err != nil {
			return RestartReading{}, nil, err
		}
	}
	got := readRestartAt(ctx, x.fleet, id, v)
	if got.wrongHash(v) {
		s, err := x.latch(ctx, r, id, got)
		return got, &s, err
	}
	return got, nil, nil
}

// latch is in the journal while a node stays stopped: the hash that it showed.
// Clearing it writes an empty one.
type latch struct {
	Hash string `json:"hash"`
}

func latchOf(ctx context.Context, r *Run, id string) string {
	var l latch
	if raw := r.Result(ctx, id+"/"+stepLatched); raw == nil || json.Unmarshal(raw, &l) != nil {
		return ""
	}
	return l.Hash
}

// latch stops a node that shows another K, for good: neither its engine nor a
// resume starts it before a person has cleared it by name.
func (x *restarting) latch(ctx context.Context, r *Run, id string, got RestartReading) (Standing, error) {
	p := x.plan.Restart.Roll.Node(id)
	s := lookAt(ctx, x.fleet, id)
	req := host.StateRequest{Container: p.Container, ExpectID: s.Container, Policy: &host.Policy{Name: policyHalted}, State: host.StateStopped, StopTimeoutSeconds: p.StopTimeout}
	if err := bring(ctx, r, id, string(actStop), "stop the node that shows another macroblock K", req); err != nil {
		return Standing{}, err
	}
	err := r.Record(ctx, id+"/"+stepLatched, fmt.Sprintf("shows hash %s", got.HashK), latch{got.HashK.String()})
	return Standing{State: Failed, Down: true, Text: latchedText(r, id)}, err
}

func latchedText(r *Run, id string) string {
	return fmt.Sprintf("shows another macroblock K than the record and was stopped for good; find out why, then clear it by name: "+
		"qnetops resume %s --waive latched=%s, or go on without it: --waive members=REASON", r.Op.ID(), id)
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

// trim brings an archive host that carries blocks above K to K, once another host
// serves: its directory, which was copied before, is set aside and it joins anew.
func (x *restarting) trim(ctx context.Context, r *Run, here []string, t Tally) (Tally, error) {
	h := x.plan.Restart.host(x.plan.Restart.Archive)
	if h.Copy == "" || h.Way != restart.WayRename || r.Result(ctx, h.ID+"/"+stepTrimmed) != nil {
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
	v := x.plan.Restart.Values
	block := x.fleet.Inventory().Block
	for began := time.Now(); ; {
		t[h.ID] = judgeJoined(v, readRestartAt(ctx, x.fleet, h.ID, v), false)
		if t[h.ID].State != Waiting && t[h.ID].State != Missing || time.Since(began) >= max(joinBlocks*block, leastQuiet) || !wait(ctx, max(block, leastPoll)) {
			return t, ctx.Err()
		}
	}
}

// second says why no other host is shown to serve the state of K.
func (x *restarting) second(ctx context.Context, here []string, archive string) string {
	limit := max(joinBlocks*x.fleet.Inventory().Block, leastQuiet)
	for began := time.Now(); ; {
		why := "no other host takes part"
		for _, id := range here {
			if id == archive {
				continue
			}
			if why = x.serves(ctx, id); why == "" {
				return ""
			}
		}
		if time.Since(began) >= limit || !wait(ctx, max(x.fleet.Inventory().Block, leastPoll)) {
			return why
		}
	}
}

// trimOne stops the archive host, sets its data aside and starts it again. Each of
// its acts may be repeated.
func (x *restarting) trimOne(ctx context.Context, r *Run, h RestartHost) error {
	p := x.plan.Restart.Roll.Node(h.ID)
	s := lookAt(ctx, x.fleet, h.ID)
	if !s.Reached {
		return errors.New(s.Why)
	}
	if raw := r.Result(ctx, h.ID+"/"+stepAside); raw == nil {
		req := host.StateRequest{Container: p.Container, ExpectID: s.Container, Policy: &host.Policy{Name: policyHalted}, State: host.StateStopped, StopTimeoutSeconds: p.StopTimeout}
		if err := bring(ctx, r, h.ID, string(actStop), "stop the archive host: another one serves", req); err != nil {
			return err
		}
		_, err := x.move(ctx, r, h, stepAside, "set "+h.DataPath+" aside as "+h.Aside, func(ctx context.Context, w *host.Writer, m host.DataMove, ev func(host.TxEvent)) (host.DataMoved, error) {
			return w.DataAside(ctx, m, ev)
		})
		if err != nil {
			return err
		}
	}
	req := host.StateRequest{Container: p.Container, ExpectID: s.Container, Policy: p.NextPolicy, State: host.StateRunning}
	if err := bring(ctx, r, h.ID, string(actStart), "start the archive host, which joins anew", req); err != nil {
		return err
	}
	if s := lookAt(ctx, x.fleet, h.ID); s.runs() {
		return r.Record(ctx, h.ID+"/"+stepTrimmed, "the archive host was brought to K", map[string]string{"aside": h.Aside, "copy": h.Copy})
	}
	return errors.New("the archive host does not run again")
}
