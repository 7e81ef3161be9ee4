package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// rollback is the Procedure of a rollback.
type rollback struct {
	plan  Plan
	fleet *fleet.Fleet
	pulse *chainWatch

	mu      sync.Mutex
	last    Tally
	results map[string]RollbackResult
}

func newRollback(plan Plan, f *fleet.Fleet) *rollback {
	return &rollback{plan: plan, fleet: f, pulse: &chainWatch{fleet: f}, last: Tally{}, results: map[string]RollbackResult{}}
}

func (x *rollback) roll(r *Run) *rolling.Runner { return r.Session.Runner(x.plan.Rollback.Roll) }

// Do runs one phase.
func (x *rollback) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		if err := x.roll(r).StageAll(ctx); err != nil {
			return nil, err
		}
		t = Tally{}
		for _, id := range x.plan.Hosts {
			t.finish(id, "its successor is ready")
		}
	case Hold:
		t, err = x.stop(ctx, r)
	case Go:
		t, err = x.start(ctx, r)
	case Verify:
		t, err = x.verify(ctx, r)
	case Release:
		t, err = x.disarm(ctx, r)
	default:
		return nil, fmt.Errorf("a rollback has no phase %s", phase)
	}
	x.last = t
	return t, err
}

// stopRounds bounds the tries to stop a node: each waits itself for the node's
// flush, so a host that is left over is one that cannot be reached.
const stopRounds = 4

// stop stops all nodes, each for good until told otherwise.
func (x *rollback) stop(ctx context.Context, r *Run) (Tally, error) {
	_, members := r.Waived("members")
	for round := 1; ; round++ {
		t, err := x.stopRound(ctx, r)
		if err != nil || len(Judge(x.plan.Hosts, t, members)) == 0 || round == stopRounds {
			return t, err
		}
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(max(x.fleet.Inventory().Block, time.Second)):
		}
	}
}

func (x *rollback) stopRound(ctx context.Context, r *Run) (Tally, error) {
	err := x.each(ctx, lookAll(ctx, x.fleet, x.plan.Hosts), func(ctx context.Context, id string, s sight) error {
		if !s.Reached || !s.runs() && s.Policy == policyHalted {
			return nil
		}
		if s.runs() {
			if err := x.settled(ctx, id, s); err != nil {
				return err
			}
		}
		hst, _ := x.fleet.Inventory().Host(id)
		req := host.StateRequest{Container: hst.Container, ExpectID: s.Container, Policy: &host.Policy{Name: policyHalted}}
		if !s.runs() {
			return bring(ctx, r, id, string(actNo), "set restart policy "+policyHalted, req)
		}
		req.State = host.StateStopped
		if p := x.plan.Rollback.Roll.Node(id); p != nil {
			req.StopTimeoutSeconds = p.StopTimeout
		}
		return bring(ctx, r, id, string(actStop), "stop the node and wait for its flush", req)
	})
	if err != nil {
		return nil, err
	}
	t := Tally{}
	for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
		t[id] = judgeStopped(s, x.begun(ctx, r, id, actStop))
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Hold), State: string(t[id].State), Text: t[id].Text})
	}
	return t, ctx.Err()
}

// judgeStopped says how a host stands on the way to a fleet that is down. ours says
// that this operation stopped it.
func judgeStopped(s sight, ours bool) Standing {
	switch {
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}
	case s.runs():
		return Standing{State: Waiting, Text: "it still runs"}
	case s.Policy != policyHalted:
		return Standing{State: Waiting, Down: true, Text: "stopped; its restart policy is still " + s.Policy}
	case !ours:
		return Standing{State: Finished, Down: true, Text: fmt.Sprintf("was down before, exit code %d", s.ExitCode)}
	case s.ExitCode != 0:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("ended with exit code %d: it may not have flushed; qnetops abort starts all nodes again", s.ExitCode)}
	}
	return Standing{State: Finished, Down: true, Text: "stopped, exit code 0 after its flush"}
}

// bootBlocks is how long, in block times, a node may take to come up: its boot
// waits end by then, where they end at all (facts 3).
const bootBlocks = 330

// settled waits until a node that is starting has come up: a stop before that is
// not flushed (facts 5.1).
func (x *rollback) settled(ctx context.Context, id string, s sight) error {
	limit := time.Duration(bootBlocks) * x.fleet.Inventory().Block
	for time.Since(s.Started) < limit {
		lines, err := runLines(ctx, x.fleet, id, s.Started)
		if err != nil || slices.ContainsFunc(lines, node.BringupComplete) {
			return ctx.Err() // a log that cannot be read keeps nobody; the limit counts from the start
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(x.fleet.Inventory().Block, leastPoll)):
		}
	}
	return nil
}

// runLines reads the lines of one run of a node that this package goes by.
func runLines(ctx context.Context, f *fleet.Fleet, id string, started time.Time) ([]node.LogLine, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return nil, err
	}
	var out []node.LogLine
	_, err = observe.SawLine(ctx, conn, conn.Host().Container, started, func(l node.LogLine) bool {
		if l.Module == "ROLLBACK" || l.Module == "PROD" || l.Module == "BFT2" || node.BringupComplete(l) || strings.Contains(l.Text, "already_signed_this_round") {
			out = append(out, l)
		}
		return false
	})
	return out, err
}

// begun says whether a step of a host was ever begun in this operation.
func (x *rollback) begun(ctx context.Context, r *Run, id string, what act) bool {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return true // unknown is not fine
	}
	for _, s := range steps {
		if of, name := splitStep(s.ID); of == id && name == string(what) {
			return true
		}
	}
	return false
}

// each runs fn on every host that was looked at. What it returns concerns the whole
// operation: a lost fence, an ended context.
func (x *rollback) each(ctx context.Context, sights map[string]sight, fn func(context.Context, string, sight) error) error {
	var (
		mu   sync.Mutex
		errs []error
	)
	rolling.Each(ctx, slices.Sorted(maps.Keys(sights)), func(ctx context.Context, id string) {
		if err := fn(ctx, id, sights[id]); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return errors.Join(append(errs, ctx.Err())...)
}

// start swaps the successors in, all at once: nodes that go back alone would be
// pulled forward again by the rest. Before the first it looks once more that the
// fleet is down.
func (x *rollback) start(ctx context.Context, r *Run) (Tally, error) {
	away := passedBy(ctx, r, Hold)
	if !r.Touched(ctx) {
		t := Tally{}
		for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
			t[id] = judgeStopped(s, x.begun(ctx, r, id, actStop))
		}
		_, members := r.Waived("members")
		if ctx.Err() != nil || len(Judge(x.plan.Hosts, t, members)) > 0 {
			return t, ctx.Err()
		}
	}
	var mu sync.Mutex
	t, here := away, map[string]sight{}
	for _, id := range x.plan.Hosts {
		if _, gone := away[id]; !gone {
			here[id] = sight{}
		}
	}
	runner := x.roll(r)
	err := x.each(ctx, here, func(ctx context.Context, id string, _ sight) error {
		s, err := x.startOne(ctx, r, runner, id)
		mu.Lock()
		defer mu.Unlock()
		t[id] = s
		return err
	})
	return t, errors.Join(err, r.Lease.Check(ctx))
}

// startOne brings one host to its successor that runs. A fault of one host is its
// standing; only a lost fence or a doubt concerns all.
func (x *rollback) startOne(ctx context.Context, r *Run, runner *rolling.Runner, id string) (Standing, error) {
	p := runner.Plan.Node(id)
	err := runner.SwapIn(ctx, *p)
	s := lookAt(context.WithoutCancel(ctx), x.fleet, id)
	if err == nil && s.Reached && !s.runs() {
		// A successor that ended is started again: the fleet has not gone on yet, so
		// that it goes back a second time takes nothing.
		err = bring(ctx, r, id, string(actStart), "start the successor again", host.StateRequest{Container: p.Container, ExpectID: s.Container, State: host.StateRunning})
		s = lookAt(context.WithoutCancel(ctx), x.fleet, id)
	}
	var (
		fenced *host.FencedError
		doubt  *rolling.InDoubtError
	)
	switch {
	case errors.As(err, &fenced), errors.As(err, &doubt):
		return Standing{State: Failed, Text: err.Error()}, err
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}, nil
	case err != nil:
		return Standing{State: Failed, Text: err.Error(), Down: !s.runs()}, nil
	case !s.runs():
		return Standing{State: Failed, Text: fmt.Sprintf("its successor ended with exit code %d", s.ExitCode), Down: true}, nil
	}
	return Standing{State: Finished, Text: "its successor runs"}, nil
}

// passedBy are the hosts that did not finish a phase whose barrier was passed
// without them, as they stood then.
func passedBy(ctx context.Context, r *Run, phases ...PhaseName) Tally {
	out := Tally{}
	for _, phase := range phases {
		for id, s := range r.barrierOf(ctx, phase) {
			if s.State != Finished {
				out[id] = s
			}
		}
	}
	return out
}

// verify reads what each node did, and then sees the chain go on.
func (x *rollback) verify(ctx context.Context, r *Run) (Tally, error) {
	away := passedBy(ctx, r, Hold, Go)
	var here []string
	for _, id := range x.plan.Hosts {
		if _, gone := away[id]; !gone {
			here = append(here, id)
		}
	}
	t, err := x.outcomes(ctx, r, here)
	for id, s := range away {
		t[id] = s
	}
	_, members := r.Waived("members")
	if err != nil || len(Judge(x.plan.Hosts, t, members)) > 0 {
		return t, err
	}
	return t, x.pulse.run(ctx, r, here, "a rollback")
}

// outcomes waits until every node has said what its rollback did and has come up.
func (x *rollback) outcomes(ctx context.Context, r *Run, here []string) (Tally, error) {
	limit := max(time.Duration(bootBlocks)*x.fleet.Inventory().Block, leastPulse)
	began := time.Now()
	for {
		t := x.outcomeRound(ctx, r, here, time.Since(began) >= limit)
		waits := slices.ContainsFunc(here, func(id string) bool { return t[id].State == Waiting || t[id].State == Missing })
		if ctx.Err() != nil || !waits || time.Since(began) >= limit {
			return t, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(max(x.fleet.Inventory().Block, leastPoll)):
		}
	}
}

func (x *rollback) outcomeRound(ctx context.Context, r *Run, here []string, late bool) Tally {
	t := Tally{}
	sights := lookAll(ctx, x.fleet, here)
	rolling.Each(ctx, here, func(ctx context.Context, id string) {
		var lines []node.LogLine
		var err error
		if sights[id].Reached {
			lines, err = runLines(ctx, x.fleet, id, sights[id].Started)
		}
		s, res := judgeBack(x.plan.Rollback.Target, sights[id], lines, err, late)
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Verify), State: string(s.State), Text: s.Text})
		x.mu.Lock()
		defer x.mu.Unlock()
		t[id] = s
		if res.Outcome != RollbackUnknown || x.results[id].Outcome == "" {
			x.results[id] = res
		}
	})
	return t
}

// judgeBack says how a node stands that was started with the variable. late says
// that the time to come up is over.
func judgeBack(target *uint64, s sight, lines []node.LogLine, unread error, late bool) (Standing, RollbackResult) {
	res := readRollback(target, lines)
	up := slices.ContainsFunc(lines, node.BringupComplete)
	switch {
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}, res
	case !s.runs():
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("%s; then it ended with exit code %d", res.Text, s.ExitCode)}, res
	case unread != nil:
		return Standing{State: Missing, Text: "its log cannot be read: " + unread.Error()}, res
	case res.Outcome != RollbackUnknown && !res.ok():
		return Standing{State: Failed, Text: res.Text}, res
	case res.Outcome == RollbackUnknown && late:
		return Standing{State: Failed, Text: res.Text + ", and the time for it is over"}, res
	case res.Outcome == RollbackUnknown:
		return Standing{State: Waiting, Text: res.Text + " yet"}, res
	case !up && late:
		return Standing{State: Failed, Text: fmt.Sprintf("%s; it has not come up in %d block times: a genesis node waits for three others (facts 8 #14)", res.Text, bootBlocks)}, res
	case !up:
		return Standing{State: Waiting, Text: res.Text + "; it is starting"}, res
	}
	return Standing{State: Finished, Text: res.Text}, res
}

// disarm puts the containers without the variable back, one by one, and gives the
// restart policies back. A node that is down goes first: it costs no vote.
func (x *rollback) disarm(ctx context.Context, r *Run) (Tally, error) {
	away := passedBy(ctx, r, Hold, Go)
	if _, err := x.putBack(ctx, r, away, false); err != nil {
		return away, err
	}
	t := Tally{}
	for _, id := range x.plan.Hosts {
		if _, gone := away[id]; gone {
			t[id] = Standing{State: Missing, Text: "took no part and is left as it stands: before it is started, its own blocks above the target must go: " +
				"qnetops rollback of it alone, the others left out with --skip"}
			continue
		}
		t.finish(id, "runs without the variable")
	}
	return t, x.policies(ctx, r, away)
}

// putBack disarms every node that took part.
func (x *rollback) putBack(ctx context.Context, r *Run, away Tally, standing bool) ([]rolling.NodeResult, error) {
	runner := x.roll(r)
	plan := runner.Plan
	plan.RecoveryHalted = standing
	sights := lookAll(ctx, x.fleet, x.plan.Hosts)
	plan.Nodes = slices.DeleteFunc(slices.Clone(plan.Nodes), func(p rolling.NodePlan) bool { _, gone := away[p.ID]; return gone })
	slices.SortStableFunc(plan.Nodes, func(a, b rolling.NodePlan) int { // Disarm takes the last first
		return rank(sights[a.ID]) - rank(sights[b.ID])
	})
	runner.Plan = plan
	return runner.Disarm(ctx)
}

func rank(s sight) int {
	if s.runs() {
		return 0
	}
	return 1
}

// policies gives every node that took part the restart policy it had.
func (x *rollback) policies(ctx context.Context, r *Run, away Tally) error {
	return x.each(ctx, lookAll(ctx, x.fleet, x.plan.Hosts), func(ctx context.Context, id string, s sight) error {
		p := x.plan.Rollback.Roll.Node(id)
		if _, gone := away[id]; gone || p.Policy == nil || s.Reached && s.Policy == p.Policy.Name {
			return nil
		}
		req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy}
		if err := bring(ctx, r, id, string(actArm), "give restart policy "+p.Policy.Name+" back", req); err != nil {
			return err
		}
		if s := lookAt(ctx, x.fleet, id); s.Policy != p.Policy.Name {
			return &rolling.StoppedError{Operation: r.Op.ID(), Node: id, Reason: "its restart policy reads " + s.Policy + ", not " + p.Policy.Name + " as before"}
		}
		return nil
	})
}

// Undo takes a phase back: nodes that were stopped are started as they were, then
// the successors are removed.
func (x *rollback) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	switch phase {
	case Prepare:
		return x.roll(r).DiscardAll(ctx)
	case Hold:
		return x.startAgain(ctx, r)
	}
	return nil
}

func (x *rollback) startAgain(ctx context.Context, r *Run) error {
	err := x.each(ctx, lookAll(ctx, x.fleet, x.plan.Hosts), func(ctx context.Context, id string, s sight) error {
		p := x.plan.Rollback.Roll.Node(id)
		stopped, policy := x.begun(ctx, r, id, actStop), x.begun(ctx, r, id, actNo)
		if !stopped && !policy {
			return nil
		}
		req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy}
		if stopped {
			req.State = host.StateRunning
		}
		return bring(ctx, r, id, string(actStart), "start the node as it was", req)
	})
	if err != nil {
		return err
	}
	var open []string
	for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
		if x.begun(ctx, r, id, actStop) && !(s.Reached && s.runs()) {
			open = append(open, id+" does not run again "+s.Why)
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		return r.Held(Hold, open)
	}
	return ctx.Err()
}

// Returnable looks whether a successor was started anywhere.
func (x *rollback) Returnable(ctx context.Context, r *Run) error {
	runner := x.roll(r)
	var on []string
	for _, p := range x.plan.Rollback.Roll.Targets() {
		if runner.Swapped(ctx, p) {
			on = append(on, p.ID)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf("%s was started with the variable: its blocks above the target are gone. Mend what holds it and qnetops resume %s; "+
			"or qnetops abort %s --waive point_of_no_return=REASON removes the variable everywhere and closes the operation as it stands",
			strings.Join(on, ", "), r.Op.ID(), r.Op.ID())}}}
}

// Close leaves an operation beyond its point of no return: the variable goes from
// every node, by the rules of a chain that stands where it stands.
func (x *rollback) Close(ctx context.Context, r *Run) error {
	away := passedBy(ctx, r, Hold, Go)
	if _, err := x.putBack(ctx, r, away, true); err != nil {
		return err
	}
	return x.policies(ctx, r, away)
}

// Settle settles the steps in doubt: what may be repeated by itself, the rest by
// looking at the hosts.
func (x *rollback) Settle(ctx context.Context, r *Run) error {
	if err := settleRepeatable(ctx, r, ""); err != nil {
		return err
	}
	return x.roll(r).Settle(ctx)
}

func (x *rollback) hosts(ctx context.Context, r *Run) []HostResult {
	x.recall(ctx, r)
	sights := lookAll(ctx, x.fleet, x.plan.Hosts)
	var out []HostResult
	for _, id := range x.plan.Hosts {
		res := HostResult{ID: id, State: Waiting, Text: "not looked at", RestartPolicy: sights[id].Policy, Milestones: []rolling.Milestone{}}
		if t, known := x.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if back, known := x.results[id]; known {
			res.Rollback = &back
		}
		out = append(out, res)
	}
	return out
}

// recall keeps what the nodes said: their containers with the variable, and the
// logs with them, go in the end.
func (x *rollback) recall(ctx context.Context, r *Run) {
	const step = "fleet/outcomes"
	x.mu.Lock()
	defer x.mu.Unlock()
	known := map[string]RollbackResult{}
	if raw := r.Result(ctx, step); raw != nil && json.Unmarshal(raw, &known) == nil {
		for id, res := range known {
			if x.results[id].Outcome == "" {
				x.results[id] = res
			}
		}
	}
	if len(x.results) > 0 && !maps.EqualFunc(known, x.results, func(a, b RollbackResult) bool { return a.Text == b.Text }) {
		_ = r.Record(ctx, step, "what the nodes said of their rollback", x.results) // for the document alone
	}
}

func (x *rollback) chain() *Chain { return x.pulse.report() }
