package cutover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// rollback is the Procedure of a rollback.
type rollback struct {
	*crew
	pulse   *chainWatch
	results map[string]RollbackResult // under the crew's lock
}

func newRollback(plan Plan, f *fleet.Fleet) *rollback {
	return &rollback{crew: newCrew(plan, f), pulse: &chainWatch{fleet: f}, results: map[string]RollbackResult{}}
}

// roll never starts an old container by itself where its successor does not start:
// with its blocks above the target it would pull the others forward again.
func (x *rollback) roll(r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Rollback.Roll)
	runner.NoPutBack = true
	return runner
}

// Do runs one phase.
func (x *rollback) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		if err := x.roll(r).StageAll(ctx); err != nil {
			return nil, err
		}
		t = x.all("its successor is ready")
	case Hold:
		t, err = x.stopAll(ctx, r, x.plan.Rollback.Roll, nil)
	case Go:
		t, err = x.start(ctx, r)
	case Verify:
		t, err = x.verify(ctx, r)
	case Release:
		t, err = x.disarm(ctx, r)
	default:
		return nil, fmt.Errorf("a rollback has no phase %s", phase)
	}
	return x.keep(t), err
}

// bootBlocks is how long, in block times, a node may take to come up: its boot
// waits end by then, where they end at all (facts 3).
const bootBlocks = 330

// runLines reads the lines of one run of a node that this package goes by.
func runLines(ctx context.Context, f *fleet.Fleet, id string, since time.Time) ([]node.LogLine, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return nil, err
	}
	var out []node.LogLine
	_, err = observe.SawLine(ctx, conn, conn.Host().Container, since, func(l node.LogLine) bool {
		if l.Module == "ROLLBACK" || l.Module == "PROD" || l.Module == "BFT2" || node.BringupComplete(l) || strings.Contains(l.Text,
			"already_signed_this_round") {
			out = append(out, l)
		}
		return false
	})
	return out, err
}

// start swaps the successors in, all at once: nodes that go back alone would be
// pulled forward again by the rest. Before the first it looks once more that the
// fleet is down.
func (x *rollback) start(ctx context.Context, r *Run) (Tally, error) {
	here, away := x.here(ctx, r, Hold)
	if !r.Touched(ctx) {
		t := Tally{}
		for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
			t[id] = judgeStopped(s, stepBegun(ctx, r, id, string(actStop)))
		}
		if ctx.Err() != nil || len(x.open(r, t)) > 0 {
			return t, ctx.Err()
		}
	}
	runner := x.roll(r)
	return x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
		return x.startOne(ctx, r, runner, id)
	})
}

// startOne brings one host to its successor that runs.
func (x *rollback) startOne(ctx context.Context, r *Run, runner *rolling.Runner, id string) (Standing, error) {
	p := runner.Plan.Node(id)
	if err := runner.SwapIn(ctx, *p); err != nil {
		return Standing{}, err
	}
	s := lookAt(ctx, x.fleet, id)
	if s.Reached && !s.runs() {
		// One that never came up is started again: that it goes back a second time takes
		// nothing. One that was up may have signed what it would drop then.
		if standing, over := x.wasUp(ctx, id, s); over {
			return standing, nil
		}
		req := host.StateRequest{Container: p.Container, ExpectID: s.Container, State: host.StateRunning}
		if err := bring(ctx, r, id, string(actStart), "start the successor again", req); err != nil {
			return Standing{}, err
		}
		s = lookAt(ctx, x.fleet, id)
	}
	switch {
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}, nil
	case !s.runs():
		return Standing{State: Failed, Text: fmt.Sprintf("its successor ended with exit code %d", s.ExitCode), Down: true}, nil
	}
	return Standing{State: Finished, Text: "its successor runs"}, nil
}

// wasUp says how a successor stands that ended and must not be started with the
// variable again: it would go back once more, below what it has signed since. verify
// starts it without.
func (x *rollback) wasUp(ctx context.Context, id string, s sight) (Standing, bool) {
	text := fmt.Sprintf("its successor ended with exit code %d", s.ExitCode)
	switch lines, err := runLines(ctx, x.fleet, id, s.Since); {
	case err != nil:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("%s, and its log, which tells whether it may be started again, "+
			"cannot be read: %v", text, err)}, true
	case slices.ContainsFunc(lines, node.BringupComplete):
		return Standing{State: Finished, Down: true, Text: text + " after it had come up; it is not sent back a second time"}, true
	}
	return Standing{}, false
}

// verify reads what each node did, and then sees the chain go on.
func (x *rollback) verify(ctx context.Context, r *Run) (Tally, error) {
	here, away := x.here(ctx, r, Hold, Go)
	back, away, err := x.rejoin(ctx, r, away)
	if err != nil {
		return away, err
	}
	here = append(here, back...)
	t, err := x.outcomes(ctx, r, here)
	if ended := x.ended(ctx, r, t); err == nil && len(ended) > 0 {
		if err = x.putBack(ctx, r, x.allBut(ended), true); err == nil {
			t, err = x.outcomes(ctx, r, here)
		}
	}
	for id, s := range away {
		t[id] = s
	}
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	return t, x.pulse.run(ctx, r, here, "a rollback")
}

// rejoin takes hosts that were passed by and are back: each goes back alone, while the
// others run, and follows them. back are those that are on their way.
func (x *rollback) rejoin(ctx context.Context, r *Run, away Tally) (back []string, still Tally, err error) {
	var seen []string
	for id, s := range lookAll(ctx, x.fleet, slices.Sorted(maps.Keys(away))) {
		if rejoins(x.plan.Rollback.Roll.Node(id).ContainerID, s) {
			seen = append(seen, id)
		}
	}
	runner := x.roll(r)
	t, err := x.change(ctx, r, seen, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		r.Say(rolling.Event{Node: id, Kind: rolling.KindNote, Name: string(Verify), Text: "it is back, and goes back now"})
		return x.startOne(ctx, r, runner, id)
	})
	still = maps.Clone(away)
	for id, s := range t {
		if still[id] = s; s.State == Finished {
			delete(still, id)
			back = append(back, id)
		}
	}
	slices.Sort(back)
	return back, still, err
}

// rejoins says whether a host that was passed by can be taken along again. One whose
// successor is down has refused, or ended, and was seen to: it is for the end to judge.
func rejoins(old string, s sight) bool { return s.Reached && (s.Container == old || s.runs()) }

// ended are the hosts whose node has gone back and does not run any more.
func (x *rollback) ended(ctx context.Context, r *Run, t Tally) (ids []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, s := range t {
		if s.State == Failed && s.Down && (x.results[id].ok() || stepBegun(ctx, r, id, "putback")) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (x *rollback) allBut(ids []string) Tally {
	t := x.all("")
	for _, id := range ids {
		delete(t, id)
	}
	return t
}

// outcomes waits until every node has said what its rollback did and has come up.
func (x *rollback) outcomes(ctx context.Context, r *Run, here []string) (t Tally, err error) {
	block := x.fleet.Inventory().Block
	err = repeat(ctx, max(block, leastPoll), max(bootBlocks*block, leastPulse), func(late bool) (bool, error) {
		t, err = x.each(ctx, here, Tally{}, func(ctx context.Context, id string) (Standing, error) {
			return x.outcome(ctx, r, id, late), nil
		})
		x.tell(r, Verify, t)
		return settledAll(t), err
	})
	return t, err
}

func (x *rollback) outcome(ctx context.Context, r *Run, id string, late bool) Standing {
	var (
		lines []node.LogLine
		err   error
	)
	at := lookAt(ctx, x.fleet, id)
	if at.Reached && at.Container == x.plan.Rollback.Roll.Node(id).ContainerID && stepBegun(ctx, r, id, "putback") {
		if at.runs() {
			return Standing{State: Finished, Text: "went back, ended, and runs without the variable again"}
		}
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("went back, and its container without the variable ended with exit "+
			"code %d", at.ExitCode)}
	}
	if at.Reached {
		lines, err = runLines(ctx, x.fleet, id, at.Since)
	}
	s, res := judgeBack(x.plan.Rollback.Target, at, lines, err, late)
	x.mu.Lock()
	defer x.mu.Unlock()
	if res.Outcome != RollbackUnknown || x.results[id].Outcome == "" {
		x.results[id] = res
	}
	return s
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
		return Standing{State: Failed, Text: fmt.Sprintf("%s; it has not come up in %d block times: a genesis node waits for "+
			"three others (facts 8 #14)", res.Text, bootBlocks)}, res
	case !up:
		return Standing{State: Waiting, Text: res.Text + "; it is starting"}, res
	}
	return Standing{State: Finished, Text: res.Text}, res
}

// leftAlone is said of a host that a rollback ended without.
func leftAlone(p rolling.NodePlan) string {
	text := "took no part and is left as it stands: before it is started, its own blocks above the target must go: " +
		"qnetops rollback of it alone, the others left out with --skip"
	if p.Policy != nil {
		text += "; its restart policy was " + p.Policy.Name
	}
	return text
}

// leftOut are the hosts that the end of a rollback leaves as they stand: those on
// their old container that took no part, those whose node ended before it had gone
// back, and those that were passed by and cannot be reached. Any other whose successor
// was started has it taken away, up or down.
func (x *rollback) leftOut(ctx context.Context, r *Run) (Tally, error) {
	x.recall(ctx, r)
	out, passed := Tally{}, passedBy(ctx, r, Hold, Go, Verify)
	for id, s := range lookAll(ctx, x.fleet, x.plan.Hosts) {
		_, gone := passed[id]
		of := ending{gone: gone || !s.Reached && membersWaived(r), putBack: stepBegun(ctx, r, id, "putback")}
		old := *x.plan.Rollback.Roll.Node(id)
		if s.Reached && !s.runs() && s.Container != old.ContainerID {
			of.went = x.wentBack(ctx, id, s)
		}
		if standing, left := judgeLeft(old, s, of); left {
			out[id] = standing
		}
	}
	return out, ctx.Err()
}

// ending is what is known of a host at the end of a rollback.
type ending struct {
	gone    bool // its barriers were passed without it
	putBack bool // its old container was put back by this operation, or may have been
	went    bool // it is known to have dropped what is above the target
}

// judgeLeft says whether the end of a rollback leaves a host as it stands, and how
// that is: whatever may still hold the blocks that the others have dropped must not be
// started.
func judgeLeft(old rolling.NodePlan, s sight, of ending) (Standing, bool) {
	switch {
	case !s.Reached && of.gone:
		return Standing{State: Missing, Text: "cannot be reached: " + s.Why + "; where it was started with the variable it carries it " +
			"still, and qnetops status names that once it is back"}, true
	case !s.Reached:
		return Standing{}, false // the step on it fails, and says why
	case s.Container == old.ContainerID && (of.gone || !s.runs()) && !of.putBack:
		return Standing{State: Missing, Down: !s.runs(), Text: leftAlone(old)}, true
	case s.Container != old.ContainerID && !s.runs() && !of.went:
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("ended with exit code %d and is not shown to have gone back: it "+
			"stays down, and its container carries the variable. Look into its log; before it is started without, its own blocks above "+
			"the target must go", s.ExitCode)}, true
	}
	return Standing{}, false
}

// wentBack says whether a node that is down on its successor is known to have dropped
// what is above the target, from what was noted or from its log.
func (x *rollback) wentBack(ctx context.Context, id string, s sight) bool {
	x.mu.Lock()
	res := x.results[id]
	x.mu.Unlock()
	if res.Outcome == "" || res.Outcome == RollbackUnknown {
		lines, err := runLines(ctx, x.fleet, id, s.Since)
		if err != nil {
			return false
		}
		res = readRollback(x.plan.Rollback.Target, lines)
	}
	return res.ok()
}

// disarm puts the containers without the variable back, one by one, and gives the
// restart policies back. A node that is down goes first: it costs no vote.
func (x *rollback) disarm(ctx context.Context, r *Run) (Tally, error) {
	_, away := x.here(ctx, r, Hold, Go, Verify)
	back, away, err := x.rejoin(ctx, r, away)
	if err == nil && len(back) > 0 {
		var t Tally
		t, err = x.outcomes(ctx, r, back)
		if open := Judge(back, t, membersWaived(r)); err == nil && len(open) > 0 {
			maps.Copy(away, t)
			return away, r.Held(Release, open)
		}
	}
	if err != nil {
		return away, err
	}
	if away, err = x.leftOut(ctx, r); err != nil {
		return away, err
	}
	if err := x.putBack(ctx, r, away, false); err != nil {
		return away, err
	}
	t := x.all("runs without the variable")
	maps.Copy(t, away)
	if err := x.policies(ctx, r, away); err != nil {
		return t, err
	}
	return x.tidy(ctx, r, x.roll(r), t)
}

// putBack disarms every node that took part. Each has its restart policy back before
// the next is stopped: until then an engine that restarts would leave it down. One
// that was left so is started first.
func (x *rollback) putBack(ctx context.Context, r *Run, away Tally, standing bool) error {
	runner := x.roll(r)
	plan := runner.Plan
	plan.RecoveryHalted = standing
	sights := lookAll(ctx, x.fleet, x.plan.Hosts)
	plan.Nodes = slices.DeleteFunc(slices.Clone(plan.Nodes), func(p rolling.NodePlan) bool { _, gone := away[p.ID]; return gone })
	slices.SortStableFunc(plan.Nodes, func(a, b rolling.NodePlan) int { // Disarm takes the last first
		return rank(sights[a.ID]) - rank(sights[b.ID])
	})
	runner.Plan = plan
	if standing { // those that are left as they stand answer nobody
		for _, p := range plan.Nodes {
			runner.Closing = append(runner.Closing, p.ID)
		}
	}
	runner.Back = func(ctx context.Context, p rolling.NodePlan) error {
		if p.Policy == nil {
			return nil
		}
		return x.policyBack(ctx, r, p)
	}
	for _, p := range plan.Nodes {
		if sights[p.ID].Reached { // it may have been away when the operation was taken up
			if err := r.TakeFence(ctx, p.ID); err != nil {
				return fmt.Errorf("host %s: %w", p.ID, err)
			}
		}
		if err := x.startLeft(ctx, r, p, sights[p.ID]); err != nil {
			return err
		}
	}
	_, err := runner.Disarm(ctx)
	return err
}

// startLeft starts the old container of a node again that was put back and went down
// before it had its restart policy back.
func (x *rollback) startLeft(ctx context.Context, r *Run, p rolling.NodePlan, s sight) error {
	if !s.Reached || s.runs() || s.Container != p.ContainerID || !stepBegun(ctx, r, p.ID, "putback") {
		return nil
	}
	req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy, State: host.StateRunning}
	return bring(ctx, r, p.ID, string(actStart), "start the node that went down after it was put back", req)
}

func rank(s sight) int {
	if s.runs() {
		return 0
	}
	return 1
}

// policies gives every node that took part the restart policy it had.
func (x *rollback) policies(ctx context.Context, r *Run, away Tally) error {
	_, err := x.each(ctx, x.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		p := x.plan.Rollback.Roll.Node(id)
		if _, gone := away[id]; gone || p.Policy == nil {
			return Standing{State: Finished}, nil
		}
		return Standing{State: Finished}, x.policyBack(ctx, r, *p)
	})
	return err
}

func (x *rollback) policyBack(ctx context.Context, r *Run, p rolling.NodePlan) error {
	if s := lookAt(ctx, x.fleet, p.ID); s.Reached && s.Policy == p.Policy.Name {
		return nil
	}
	req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy}
	if err := bring(ctx, r, p.ID, string(actArm), "give restart policy "+p.Policy.Name+" back", req); err != nil {
		return err
	}
	switch s := lookAt(ctx, x.fleet, p.ID); {
	case !s.Reached:
		return &rolling.StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "its restart policy cannot be read back: " + s.Why}
	case s.Policy != p.Policy.Name:
		return &rolling.StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "its restart policy reads " + s.Policy + ", not " +
			p.Policy.Name + " as before"}
	}
	return nil
}

// Undo takes a phase back: nodes that were stopped are started as they were, then
// the successors are removed.
func (x *rollback) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	switch phase {
	case Prepare:
		return x.discard(ctx, r, x.roll(r))
	case Hold:
		return x.startAgain(ctx, r, x.plan.Rollback.Roll, nil)
	}
	return nil
}

// Returnable looks whether a successor was started anywhere. Where one was taken away
// again that does not bring the blocks back.
func (x *rollback) Returnable(ctx context.Context, r *Run) error {
	runner := x.roll(r)
	on := swapped(ctx, runner)
	for _, p := range runner.Plan.Targets() {
		if !slices.Contains(on, p.ID) && stepBegun(ctx, r, p.ID, "putback") {
			on = append(on, p.ID)
		}
	}
	return noReturn(on, "%s was started with the variable: its blocks above the target are gone. Mend "+
		"what holds it and qnetops resume %s; "+
		"or qnetops abort %s --waive point_of_no_return=REASON removes the variable everywhere and closes the operation as it "+
		"stands", r.Op.ID(), r.Op.ID())
}

// Close leaves an operation beyond its point of no return: the variable goes from
// every node, by the rules of a chain that stands where it stands. A node that is
// down on its old container stays so: started, it would bring the blocks back that
// the others have dropped.
func (x *rollback) Close(ctx context.Context, r *Run) error {
	away, err := x.leftOut(ctx, r)
	if err != nil {
		return err
	}
	if err := x.putBack(ctx, r, away, true); err != nil {
		return err
	}
	if err := x.policies(ctx, r, away); err != nil {
		return err
	}
	t := x.all("runs without the variable")
	maps.Copy(t, away)
	x.tell(r, Release, x.keep(t))
	return x.closed(ctx, r, x.roll(r))
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
	out := x.seenResults(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range out {
		if back, known := x.results[out[i].ID]; known {
			out[i].Rollback = &back
		}
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
