package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// quietBlocks bounds the wait for the stop: a phase in which no height rises and
// no host changes for so many block times is over, whoever is missing.
const quietBlocks = 300

// nearBlocks before the height the hosts are looked at once a block time; before
// that every farBlocks are enough.
const (
	nearBlocks = 120
	farBlocks  = 10
	leastPoll  = 100 * time.Millisecond
	leastQuiet = 10 * time.Second
)

// halt is the Procedure of a halt.
type halt struct {
	plan  Plan
	fleet *fleet.Fleet

	seen map[string]sight // the newest look
	last Tally
	come progress

	mu    sync.Mutex
	armed map[string]string // host -> container that was armed, from the journal
	stops map[string]*Stop  // host -> its stop, from the journal; nil until read
}

// load reads once what the journal knows: which containers were armed, and which
// nodes have stopped. A process that takes the operation over rests on it.
func (h *halt) load(ctx context.Context, r *Run) error {
	h.mu.Lock()
	known := h.stops != nil
	h.mu.Unlock()
	if known {
		return nil
	}
	return h.read(ctx, r)
}

// read is load for what may have been armed since.
func (h *halt) read(ctx context.Context, r *Run) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	h.armed, h.stops = map[string]string{}, map[string]*Stop{}
	for _, s := range steps {
		id, name := splitStep(s.ID)
		var done host.ReplaceResult
		var stop Stop
		switch {
		case s.State != journal.StepDone:
		case name == "replace" && json.Unmarshal(s.Result, &done) == nil:
			h.armed[id] = done.NewID
		case name == "stopped" && json.Unmarshal(s.Result, &stop) == nil:
			h.stops[id] = &stop
		}
	}
	return nil
}

func (h *halt) roll(r *Run) *rolling.Runner { return r.Session.Runner(h.plan.Halt.Roll) }

// Do runs one phase.
func (h *halt) Do(ctx context.Context, r *Run, phase PhaseName) (Tally, error) {
	switch phase {
	case Prepare:
		return h.arm(ctx, r)
	case Hold, Go, Verify:
		return h.wait(ctx, r, phase)
	}
	return nil, fmt.Errorf("a halt has no phase %s", phase)
}

// arm is the roll that arms; before each node the time left is looked at. Once the
// height has come nobody is armed any more, and what the roll says of a node that it
// was watching, such as that it has stopped, is not the point.
func (h *halt) arm(ctx context.Context, r *Run) (Tally, error) {
	if tally, over, err := h.overtaken(ctx, r); over || err != nil {
		return tally, err
	}
	runner := h.roll(r)
	runner.Turn = func(ctx context.Context, p rolling.NodePlan) error { return h.timeLeft(ctx, runner, p) }
	nodes, err := runner.Arm(ctx)
	tally := Tally{}
	for _, n := range nodes {
		if n.Outcome == rolling.NodeRolled {
			tally.finish(n.ID, "armed")
			continue
		}
		tally[n.ID] = Standing{State: Waiting, Text: n.Outcome + " " + n.Reason}
	}
	h.last = tally
	if err == nil {
		return tally, h.read(ctx, r) // what was armed just now
	}
	var stopped *rolling.StoppedError
	if ctx.Err() == nil && errors.As(err, &stopped) && !stopped.Interrupted {
		if late, over, lookErr := h.overtaken(ctx, r); over {
			return late, lookErr
		}
	}
	return tally, err
}

// overtaken says whether the height has come while nodes were being armed. Where all
// are armed by then the halt goes on. Otherwise those that are not run on past the
// height, and to start one again that has stopped there is for a person to say.
func (h *halt) overtaken(ctx context.Context, r *Run) (Tally, bool, error) {
	if !r.Touched(ctx) {
		return nil, false, nil // nobody is armed: too late is all it is
	}
	if err := h.read(ctx, r); err != nil {
		return nil, false, err
	}
	sights := lookAll(ctx, h.fleet, h.plan.Hosts)
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
	if !hasCome(h.plan.Halt.Height, h.armed, sights) {
		return nil, false, nil
	}
	tally, not := judgeArmed(h.plan.Hosts, h.armed, sights)
	h.seen, h.last = sights, tally
	open := Judge(h.plan.Hosts, tally, membersWaived(r))
	switch {
	case len(not) > 0 && len(open) > 0:
		return tally, true, h.notArmed(r, open)
	case len(open) > 0:
		return tally, true, nil // the barrier names who cannot be seen
	}
	for _, id := range not { // it is ended without them, and what was staged there would be in the way
		if !sights[id].Reached {
			continue
		}
		if err := h.roll(r).Discard(ctx, *h.plan.Halt.Roll.Node(id)); err != nil {
			return tally, true, err
		}
	}
	return tally, true, nil
}

func (h *halt) notArmed(r *Run, open []string) error {
	id := r.Op.ID()
	return &rolling.StoppedError{Operation: id, Reason: fmt.Sprintf("held in phase %s: height %d has come before every node was "+
		"armed: %s", Prepare, h.plan.Halt.Height, strings.Join(open, "; ")),
		Next: fmt.Sprintf("qnetops abort %s takes the halt back: what has stopped is started again as it was, and the height can "+
			"be named anew; or stop the nodes that are not armed by hand (docker stop), and qnetops resume %s --waive "+
			"members=REASON ends it as a halt", id, id)}
}

func (h *halt) timeLeft(ctx context.Context, runner *rolling.Runner, p rolling.NodePlan) error {
	tip := rolling.FleetHeight(ctx, h.fleet, "", askLimit)
	if tip == nil {
		return errors.New("no node's height can be read, so nobody knows how much time is left")
	}
	nodes, armed := h.plan.Halt.Roll.Targets(), 0
	for _, n := range nodes {
		if runner.Result(ctx, n.ID+"/replace") != nil {
			armed++
		}
	}
	height := h.plan.Halt.Height
	left, need := height-min(height, *tip), leftBlocks(len(nodes), armed)
	if left >= need {
		runner.Say(rolling.Event{Node: p.ID, Kind: rolling.KindWait, Name: "time_left", State: string(observe.Pass),
			Text: fmt.Sprintf("%d blocks to height %d, %d needed", left, height, need)})
		return nil
	}
	return &TooLateError{Node: p.ID, Height: height, Tip: *tip, Left: left, Need: need, Next: *tip + needBlocks(len(nodes)) +
		uint64(armed)*rolling.ExpectedNode}
}

// wait looks at all hosts again and again: in hold until the chain has come to
// the height, in go until every node has stopped for good, in verify once more,
// because a node may have come back since.
func (h *halt) wait(ctx context.Context, r *Run, phase PhaseName) (Tally, error) {
	block := h.fleet.Inventory().Block
	quiet := max(quietBlocks*block, leastQuiet)
	moved := time.Now()
	for {
		still := phase != Hold && time.Since(moved) >= quiet/2
		tally, sights, err := h.round(ctx, r, phase, still)
		if err != nil {
			return tally, err
		}
		top := highest(sights)
		near := top == nil || *top+nearBlocks >= h.plan.Halt.Height
		switch {
		case phase == Hold && h.begun(sights, top):
			return h.passOn(tally), nil
		case phase != Hold && len(Judge(h.plan.Hosts, tally, membersWaived(r))) == 0:
			return tally, nil
		}
		if h.come.grows(tally, sights, h.stops) {
			moved = time.Now()
		}
		if time.Since(moved) >= quiet {
			return tally, nil // the barrier names who is missing
		}
		every := max(block, leastPoll)
		if !near {
			every = max(farBlocks*block, leastPoll)
		}
		if !wait(ctx, every) {
			return tally, ctx.Err()
		}
	}
}

// begun says whether the stop has begun: the chain has come to the height or a
// node has stopped.
func (h *halt) begun(sights map[string]sight, top *uint64) bool {
	if top != nil && *top >= h.plan.Halt.Height {
		return true
	}
	return h.halted(sights)
}

// passOn lets every host out of hold: the chain is at the height, and nobody's
// absence keeps the others from stopping there. Go asks for each again.
func (h *halt) passOn(t Tally) Tally {
	out := Tally{}
	for id, s := range t {
		out.finish(id, "%s", s.Text)
	}
	return out
}

// round looks at every host once, does what is to be done and tells how each
// stands. still says that nothing has moved for long.
func (h *halt) round(ctx context.Context, r *Run, phase PhaseName, still bool) (Tally, map[string]sight, error) {
	if err := h.load(ctx, r); err != nil {
		return nil, nil, err
	}
	sights := lookAll(ctx, h.fleet, h.plan.Hosts)
	if ctx.Err() != nil {
		return nil, sights, ctx.Err()
	}
	var (
		mu    sync.Mutex
		tally = Tally{}
		errs  []error
	)
	still = still && h.halted(sights)
	rolling.Each(ctx, h.plan.Hosts, func(ctx context.Context, id string) {
		known, err := h.keep(ctx, r, id, sights[id])
		s := ofLater(sights[id], known)
		s.Stuck = still
		standing, todo := judgeHalt(h.plan.Halt.Height, h.armed[id], s, known, othersRun(sights, id))
		if err == nil && todo != actNone {
			err = h.act(ctx, r, id, s, todo)
		}
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(phase), State: string(standing.State), Text: standing.Text})
		mu.Lock()
		defer mu.Unlock()
		tally[id] = standing
		errs = append(errs, err)
	})
	h.seen, h.last = sights, tally
	return tally, sights, errors.Join(errs...)
}

// halted says whether any node has stopped on the height.
func (h *halt) halted(sights map[string]sight) bool {
	for _, s := range sights {
		if s.Stop != nil {
			return true
		}
	}
	return false
}

func othersRun(sights map[string]sight, id string) bool {
	for other, s := range sights {
		if other != id && s.Reached && s.State == "running" {
			return true
		}
	}
	return false
}

// keep journals a stop the first time it is seen and returns what is known of it:
// a node that comes back later is told by that, also by another process.
func (h *halt) keep(ctx context.Context, r *Run, id string, s sight) (*Stop, error) {
	h.mu.Lock()
	known := h.stops[id]
	stop := newest(s, known)
	h.stops[id] = stop
	h.mu.Unlock()
	if stop == known {
		return known, nil
	}
	return stop, r.Record(ctx, id+"/stopped", fmt.Sprintf("stopped at height %d", stop.Height), stop)
}

// act brings one host where it should be. Every act may be repeated, so one whose
// answer was lost, or whose host is away for a moment, is simply tried again in
// the next round.
func (h *halt) act(ctx context.Context, r *Run, id string, s sight, todo act) error {
	if todo == actForce {
		return h.force(ctx, r, id, s)
	}
	hst, _ := h.fleet.Inventory().Host(id)
	req := host.StateRequest{Container: hst.Container, ExpectID: s.Container}
	title := ""
	switch todo {
	case actArm:
		req.Policy, title = &host.Policy{Name: policyArmed}, "set restart policy "+policyArmed
	case actNo:
		req.Policy, title = &host.Policy{Name: policyHalted}, "set restart policy "+policyHalted+" and read it back"
	case actStop:
		req.Policy, req.State, title = &host.Policy{Name: policyHalted}, host.StateStopped, "stop the node that came back"
	case actStart:
		req.State, title = host.StateRunning, "start the node that ended before the height"
	}
	return bring(ctx, r, id, string(todo), title, req)
}

// force journals that a node is stopped without having come to it by itself; that
// it runs although it has stopped is what the next look acts on.
func (h *halt) force(ctx context.Context, r *Run, id string, s sight) error {
	stop := &Stop{Container: s.Container, Armed: h.plan.Halt.Height, At: time.Now().UTC(), Started: s.Started.UTC(), Forced: true}
	title := "to be stopped, for it crashes again and again"
	if s.Height != nil {
		stop.Height = *s.Height
		title = fmt.Sprintf("to be stopped at height %d", stop.Height)
	}
	if err := r.Record(ctx, id+"/stopped", title, stop); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stops[id] = stop
	return nil
}

// bring is one repeatable step. A host that is away is no error of the operation:
// the next look says so by itself.
func bring(ctx context.Context, r *Run, id, name, title string, req host.StateRequest) error {
	err := r.Step(ctx, id, name, title, func(ctx context.Context, w *host.Writer) (any, error) {
		facts, err := w.State(ctx, req, func(e host.TxEvent) {
			r.Say(rolling.Event{Node: id, Kind: rolling.KindTx, Name: e.Step, State: e.State, Text: e.Text})
		})
		if err != nil {
			return nil, err
		}
		return map[string]string{"container": facts.ID, "state": facts.State, "restart_policy": facts.RestartPolicy}, nil
	})
	var fenced *host.FencedError
	if err == nil || errors.As(err, &fenced) || errors.Is(err, journal.ErrFenced) || r.Lease.Check(ctx) != nil {
		return err
	}
	if settle := settleRepeatable(ctx, r, id); settle != nil {
		return settle
	}
	r.Say(rolling.Event{Node: id, Kind: rolling.KindNote, Name: name, State: "failed", Text: err.Error() +
		"; tried again at the next look"})
	return ctx.Err()
}

// repeatable says whether a step changes nothing when it is done once more.
func repeatable(name string) bool {
	switch act(name) {
	case actArm, actNo, actStop, actStart:
		return true
	}
	return false
}

// settleRepeatable takes the doubt off such steps, of one host or ("") of all: a
// look at the host decides anew whether they are needed.
func settleRepeatable(ctx context.Context, r *Run, id string) error {
	record, err := r.Op.Record(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, s := range record.Unsettled() {
		of, name := splitStep(s.ID)
		if id != "" && of != id || !repeatable(name) {
			continue
		}
		if err := r.Op.Settle(context.WithoutCancel(ctx), s.ID, journal.StepFailed, "it may be done again; the next look decides",
			nil); err != nil {
			return err
		}
	}
	return nil
}

// Undo disarms: only prepare has anything to take back. A host that cannot be looked at
// is left armed where a person passes it by.
func (h *halt) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	if phase != Prepare {
		return nil
	}
	runner := h.roll(r)
	_, err := runner.Disarm(ctx)
	var (
		unseen  *rolling.UnseenError
		stopped *rolling.StoppedError
	)
	switch {
	case !errors.As(err, &unseen):
		return err
	case !membersWaived(r):
		if errors.As(err, &stopped) {
			stopped.Next += "; a host that will not come back is passed by with --waive members=REASON"
		}
		return err
	}
	for _, id := range unseen.Hosts {
		r.Say(rolling.Event{Node: id, Kind: rolling.KindNote, Name: "disarm", Text: "passed by: once its host answers, qnetops " +
			"restore " + id + " puts back the container it had before it was armed, if it was; with --waive one_shot=REASON where it " +
			"has stopped at the height since"})
	}
	runner.Plan.Nodes = slices.DeleteFunc(slices.Clone(runner.Plan.Nodes), func(p rolling.NodePlan) bool {
		return slices.Contains(unseen.Hosts, p.ID)
	})
	_, err = runner.Disarm(ctx) // what else there was to say
	return err
}

// Returnable looks whether a node has stopped at the height, or would before all are
// disarmed. A fleet of which a part was never armed cannot halt: it can be taken back
// at any time.
func (h *halt) Returnable(ctx context.Context, r *Run) error {
	if err := h.read(ctx, r); err != nil {
		return err
	}
	sights := lookAll(ctx, h.fleet, h.plan.Hosts)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, not := judgeArmed(h.plan.Hosts, h.armed, sights)
	if len(not) > 0 && !r.Passed(ctx, Prepare) {
		return nil
	}
	c := observe.Check{Name: "point_of_no_return", Verdict: observe.Fail}
	next := "; the fleet is started again by qnetops halt release IMAGE (with the image it has, if nothing is to change), " +
		"once this operation has ended: qnetops resume " + r.Op.ID()
	for _, id := range h.plan.Hosts {
		if stop, err := h.keep(ctx, r, id, sights[id]); err != nil || stop != nil {
			c.Reason = id + " has stopped at the halt height: what is armed is not disarmed any more" + next
			return errors.Join(err, &rolling.RefusedError{Checks: []observe.Check{c}})
		}
	}
	top, armed := highest(sights), len(h.plan.Hosts)-len(not)
	switch {
	case top == nil && r.Touched(ctx):
		c.Verdict, c.Reason = observe.Unknown, "no node's height can be read, so nobody knows whether the height is ahead"
	case top != nil && *top >= h.plan.Halt.Height:
		c.Reason = fmt.Sprintf("the chain is at %d, the halt height is %d: the nodes stop within 30 blocks%s", *top,
			h.plan.Halt.Height, next)
	case top != nil && h.plan.Halt.Height-*top < backBlocks(armed):
		c.Reason = fmt.Sprintf("the chain is at %d, %d blocks before the halt height %d, and %d blocks are needed to disarm %d nodes "+
			"(%d x %d): the last of them would stop before their turn%s", *top, h.plan.Halt.Height-*top, h.plan.Halt.Height,
			backBlocks(armed), armed, armed, rolling.ExpectedNode, next)
	default:
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{c}}
}

// Settle settles the steps in doubt: what may be repeated by itself, the rest by
// looking at the hosts.
func (h *halt) Settle(ctx context.Context, r *Run) error {
	if err := settleRepeatable(ctx, r, ""); err != nil {
		return err
	}
	return h.roll(r).Settle(ctx)
}

// hosts tells about every host from the newest look.
func (h *halt) hosts(ctx context.Context, r *Run) []HostResult {
	if err := h.load(ctx, r); err != nil {
		return nil
	}
	if h.seen == nil {
		h.seen = lookAll(ctx, h.fleet, h.plan.Hosts)
	}
	var out []HostResult
	for _, id := range h.plan.Hosts {
		s := h.seen[id]
		res := HostResult{ID: id, State: Missing, Text: s.Why, RestartPolicy: s.Policy, Milestones: []rolling.Milestone{}}
		if t, known := h.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if stop, err := h.keep(ctx, r, id, s); err == nil && stop != nil && stop.Height > 0 {
			if res.StopHeight = &stop.Height; !stop.Forced {
				res.Flushed = &stop.Flushed
			}
		}
		out = append(out, res)
	}
	return out
}
