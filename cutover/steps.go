package cutover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// crew is what the procedures that change all hosts at once have in common: they
// do one thing on every host and tally it, stop and start nodes with a look
// afterwards, and tell about their hosts in the end.
type crew struct {
	plan  Plan
	fleet *fleet.Fleet

	mu    sync.Mutex
	last  Tally                         // of the phase that was worked on last
	nodes map[string]rolling.NodeResult // what was watched, by host
}

func newCrew(plan Plan, f *fleet.Fleet) *crew {
	return &crew{plan: plan, fleet: f, last: Tally{}, nodes: map[string]rolling.NodeResult{}}
}

// keep remembers how the hosts stand, for the document.
func (c *crew) keep(t Tally) Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = t
	return t
}

// all lets every host of the plan finish a phase.
func (c *crew) all(text string) Tally {
	t := Tally{}
	for _, id := range c.plan.Hosts {
		t.finish(id, "%s", text)
	}
	return t
}

// here are the hosts that still take part, and away those that the barriers of
// these phases were passed without, as they stood then.
func (c *crew) here(ctx context.Context, r *Run, phases ...PhaseName) (ids []string, away Tally) {
	away = passedBy(ctx, r, phases...)
	return slices.DeleteFunc(slices.Clone(c.plan.Hosts), func(id string) bool { _, gone := away[id]; return gone }), away
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

// open says who keeps the phase from being over.
func (c *crew) open(r *Run, t Tally) []string { return Judge(c.plan.Hosts, t, membersWaived(r)) }

// membersWaived says that a person who has seen how the operation holds lets hosts
// go that are lost. The waiver of a plan is none: that was for members whom nobody
// here can look at, and would let an own host go on with blocks that the others drop.
func membersWaived(r *Run) bool {
	_, ok := waived("members", r.Waivers)
	return ok && r.Again
}

// work is done on one host, by its id; after is asked about one that has stopped.
type (
	work  func(ctx context.Context, id string) (Standing, error)
	after func(ctx context.Context, id string, s Standing) (Standing, error)
)

// each does one thing on several hosts, on all of them at the same time: nodes
// that are started together wait for each other. What concerns one host is its
// standing in t; only what stops the whole operation is an error.
func (c *crew) each(ctx context.Context, ids []string, t Tally, do work) (Tally, error) {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for _, id := range ids {
		wg.Go(func() {
			s, err := do(ctx, id)
			switch {
			case err != nil && ofAll(err):
				s = Standing{State: Failed, Text: err.Error()}
			case err != nil:
				s, err = c.failed(ctx, id, err), nil
			}
			mu.Lock()
			defer mu.Unlock()
			if t[id] = s; err != nil {
				errs = append(errs, fmt.Errorf("host %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return t, errors.Join(append(errs, ctx.Err())...)
}

// change is each for what changes the hosts: each accepts this operation's epoch
// first, which waits for a transaction in hand there, and in the end the lease
// must still be held.
func (c *crew) change(ctx context.Context, r *Run, ids []string, t Tally, do work) (Tally, error) {
	t, err := c.each(ctx, ids, t, func(ctx context.Context, id string) (Standing, error) {
		if err := r.TakeFence(ctx, id); err != nil {
			return Standing{}, err
		}
		return do(ctx, id)
	})
	return t, errors.Join(err, r.Lease.Check(ctx))
}

// failed sorts a host that did not get there: one that cannot be reached, or one
// that was tried and failed.
func (c *crew) failed(ctx context.Context, id string, err error) Standing {
	s := lookAt(context.WithoutCancel(ctx), c.fleet, id)
	if !s.Reached && !s.Gone {
		return Standing{State: Missing, Text: err.Error()}
	}
	text := err.Error()
	var refused *host.Error // a host that says what is to be done about it
	if errors.As(err, &refused) && refused.HintText != "" {
		text += " (" + refused.HintText + ")"
	}
	return Standing{State: Failed, Text: text, Down: !s.runs()}
}

// ofAll says that an error of one host stops the whole operation.
func ofAll(err error) bool {
	var (
		fenced *host.FencedError
		doubt  *rolling.InDoubtError
	)
	return errors.As(err, &fenced) || errors.As(err, &doubt) || errors.Is(err, journal.ErrFenced) || errors.Is(err, context.Canceled)
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

// tell says how each host stands in a phase.
func (c *crew) tell(r *Run, phase PhaseName, t Tally) {
	for _, id := range c.plan.Hosts {
		if s, known := t[id]; known {
			r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(phase), State: string(s.State), Text: s.Text})
		}
	}
}

// cleared is the end of what the operation has set aside on a host. What cannot be
// cleared keeps the operation open: it lies in the way of the next plan, with the
// variables it carries.
func (c *crew) cleared(ctx context.Context, r *Run, id, text string, err error) (Standing, error) {
	switch {
	case err == nil:
		return Standing{State: Finished, Text: text}, nil
	case ofAll(err):
		return Standing{}, err
	}
	s := c.failed(ctx, id, err)
	if s.State == Failed {
		s.Text = fmt.Sprintf("what was set aside is not cleared: %v; qnetops resume %s clears it once that is mended, "+
			"with --waive leftover=REASON it stays", err, r.Op.ID())
	}
	return s, nil
}

// tidy clears the successors that failed on hosts that did not get to one that runs:
// those that were passed by, or all where the operation is closed as it stands. A
// host that cannot be reached is left, and named by whoever looks at it.
func (c *crew) tidy(ctx context.Context, r *Run, runner *rolling.Runner, t Tally) (Tally, error) {
	out := maps.Clone(t)
	done, err := c.each(ctx, slices.Sorted(maps.Keys(t)), Tally{}, func(ctx context.Context, id string) (Standing, error) {
		p := runner.Plan.Node(id)
		if p == nil || !lookAt(ctx, c.fleet, id).Reached {
			return Standing{State: Missing}, ctx.Err()
		}
		if err := r.TakeFence(ctx, id); err != nil {
			return Standing{}, err
		}
		return c.cleared(ctx, r, id, "", runner.ClearFailed(ctx, *p))
	})
	for id, s := range done {
		if s.State == Failed {
			s.Down = false // that it is down is no reason to leave it there
			out[id] = s
		}
	}
	return out, err
}

// closed is tidy for an operation that is closed as it stands.
func (c *crew) closed(ctx context.Context, r *Run, runner *rolling.Runner) error {
	t, err := c.tidy(ctx, r, runner, c.all(""))
	if open := c.open(r, t); err == nil && len(open) > 0 {
		err = &rolling.StoppedError{Operation: r.Op.ID(), Reason: "not everything can be cleared away: " + strings.Join(open, "; "),
			Next: fmt.Sprintf("mend what keeps it there, then the same qnetops abort %s again; with --waive leftover=REASON it stays",
				r.Op.ID())}
	}
	return err
}

// watch follows a host's successor through its milestones.
func (c *crew) watch(ctx context.Context, runner *rolling.Runner, id string) (Standing, error) {
	result, err := runner.Watch(ctx, *runner.Plan.Node(id))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[id] = result
	return Standing{State: Finished, Text: "passed M0 to M4"}, err
}

// results tells about every host from what was done last; roll has the restart
// policies they have in the end.
func (c *crew) results(roll rolling.Plan) []HostResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []HostResult
	for _, id := range c.plan.Hosts {
		res := HostResult{ID: id, State: Waiting, Text: notBegun, Milestones: []rolling.Milestone{}}
		if t, known := c.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if n, known := c.nodes[id]; known {
			res.Milestones = n.Milestones
		}
		if p := roll.Node(id); p != nil && p.NextPolicy != nil && res.State == Finished {
			res.RestartPolicy = p.NextPolicy.Name
		}
		out = append(out, res)
	}
	return out
}

// seenResults is results with the restart policies that are seen now.
func (c *crew) seenResults(ctx context.Context) []HostResult {
	sights := lookAll(ctx, c.fleet, c.plan.Hosts)
	out := c.results(rolling.Plan{})
	for i := range out {
		out[i].RestartPolicy = sights[out[i].ID].Policy
	}
	return out
}

// stopRounds bounds the tries to stop a node: each waits itself for the node's
// flush, so a host that is left over is one that cannot be reached.
const stopRounds = 4

// stopAll stops every node of a roll, each for good until told otherwise, and
// looks. then is asked about each host that has stopped, where it is not nil.
//
// What is starting comes up first, while the others still run: a genesis node waits
// for three of them.
func (c *crew) stopAll(ctx context.Context, r *Run, roll rolling.Plan, then after) (t Tally, err error) {
	if _, err := c.each(ctx, c.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		s := lookAt(ctx, c.fleet, id)
		if !s.Reached || !s.runs() {
			return Standing{}, ctx.Err()
		}
		return Standing{}, c.cameUp(ctx, r, id, s)
	}); err != nil {
		return Tally{}, err
	}
	for round := 1; ; round++ {
		t, err = c.each(ctx, c.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
			if p := roll.Node(id); p != nil {
				if err := c.stop(ctx, r, *p, p.ContainerID, "stop the node and wait for its flush"); err != nil {
					return Standing{}, err
				}
			}
			s := judgeStopped(lookAt(ctx, c.fleet, id), stepBegun(ctx, r, id, string(actStop)))
			if s.State != Finished || then == nil {
				return s, nil
			}
			return then(ctx, id, s)
		})
		c.tell(r, Hold, t)
		if err != nil || len(c.open(r, t)) == 0 || round == stopRounds {
			return t, err
		}
		if !wait(ctx, max(c.fleet.Inventory().Block, time.Second)) {
			return t, ctx.Err()
		}
	}
}

// stop stops one node for good, if it is the container expect ("": whatever bears
// the node's name). One that is starting is waited for, and one that is down
// already only loses its restart policy. A host that cannot be seen is left: the
// next look says so.
func (c *crew) stop(ctx context.Context, r *Run, p rolling.NodePlan, expect, title string) error {
	s := lookAt(ctx, c.fleet, p.ID)
	if !s.Reached || !s.runs() && s.Policy == policyHalted {
		return ctx.Err()
	}
	req := host.StateRequest{Container: p.Container, ExpectID: cmp.Or(expect, s.Container), Policy: &host.Policy{Name: policyHalted}}
	if !s.runs() {
		return bring(ctx, r, p.ID, string(actNo), "set restart policy "+policyHalted, req)
	}
	if err := c.cameUp(ctx, r, p.ID, s); err != nil {
		return err
	}
	req.State, req.StopTimeoutSeconds = host.StateStopped, p.StopTimeout
	return bring(ctx, r, p.ID, string(actStop), title, req)
}

// upBlocks is how long a planned stop waits for a node that is starting, in block
// times: the deadline of M1 (DESIGN.md 3.4).
const upBlocks = 240

// cameUp waits until a node that is starting has come up, or the time for it is
// over: a stop before that is not flushed (facts 5.1).
func (c *crew) cameUp(ctx context.Context, r *Run, id string, s sight) error {
	limit := upBlocks*c.fleet.Inventory().Block - time.Since(s.Started)
	if limit <= 0 {
		return ctx.Err()
	}
	return repeat(ctx, max(c.fleet.Inventory().Block, leastPoll), limit, func(bool) (bool, error) {
		lines, err := runLines(ctx, c.fleet, id, s.Since)
		// A log that cannot be read keeps nobody; the limit counts from the start.
		up := err != nil || slices.ContainsFunc(lines, node.BringupComplete)
		if !up {
			r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: "bringup", State: string(observe.Unknown),
				Text: "the node is still starting; a stop now would not be flushed"})
		}
		return up, ctx.Err()
	})
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
		return Standing{State: Failed, Down: true, Text: fmt.Sprintf("ended with exit code %d: it may not have flushed; qnetops "+
			"abort starts all nodes again", s.ExitCode)}
	}
	return Standing{State: Finished, Down: true, Text: "stopped, exit code 0 after its flush"}
}

// startAgain starts the nodes that stopAll stopped as they were, all together; one
// that was down before stays down, and so does one that is named in not.
func (c *crew) startAgain(ctx context.Context, r *Run, roll rolling.Plan, not Tally) error {
	t, err := c.each(ctx, c.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		if s, stays := not[id]; stays {
			return s, nil
		}
		p := roll.Node(id)
		stopped, policy := stepBegun(ctx, r, id, string(actStop)), stepBegun(ctx, r, id, string(actNo))
		if p == nil || !stopped && !policy {
			return Standing{State: Finished, Text: "was not stopped"}, nil
		}
		req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy}
		if stopped {
			req.State = host.StateRunning
		}
		if err := bring(ctx, r, id, string(actStart), "start the node as it was", req); err != nil {
			return Standing{}, err
		}
		switch s := lookAt(ctx, c.fleet, id); {
		case stopped && !s.Reached:
			return Standing{State: Missing, Text: s.Why}, nil
		case stopped && !s.runs():
			return Standing{State: Failed, Down: true, Text: fmt.Sprintf("does not run again: exit code %d", s.ExitCode)}, nil
		}
		return Standing{State: Finished, Text: "runs as it was"}, nil
	})
	for id, s := range t {
		if p := roll.Node(id); s.State == Missing && p != nil && p.Policy != nil && stepBegun(ctx, r, id, string(actStop)) {
			s.Text += "; its node is left stopped, its restart policy was " + p.Policy.Name
			t[id] = s
		}
	}
	c.tell(r, Hold, c.keep(t))
	if open := c.open(r, t); err == nil && len(open) > 0 {
		err = r.Held(Hold, open)
	}
	return err
}

// discard removes the successors that were staged and not started.
func (c *crew) discard(ctx context.Context, r *Run, runner *rolling.Runner) error {
	t, err := c.each(ctx, c.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		p := runner.Plan.Node(id)
		if p == nil || p.Action != rolling.ActionReplace {
			return Standing{State: Finished}, nil
		}
		return Standing{State: Finished}, runner.Discard(ctx, *p)
	})
	if open := c.open(r, t); err == nil && len(open) > 0 {
		err = r.Held(Prepare, open)
	}
	return err
}

// swapped lists the targets of a runner on which a successor runs, or may run.
func swapped(ctx context.Context, runner *rolling.Runner) []string {
	var on []string
	for _, p := range runner.Plan.Targets() {
		if runner.Swapped(ctx, p) {
			on = append(on, p.ID)
		}
	}
	return on
}

// noReturn is the refusal to go back once successors run on some hosts; nil where
// none does. The first verb of format is for those hosts.
func noReturn(on []string, format string, args ...any) error {
	if len(on) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf(format, append([]any{strings.Join(on, ", ")}, args...)...)}}}
}

// splitStep takes a step's id apart: the host, and the name without the number of
// its repetition.
func splitStep(id string) (hostID, name string) {
	hostID, name, _ = strings.Cut(id, "/")
	name, _, _ = strings.Cut(name, "#")
	return hostID, name
}

// stepBegun says whether a step of a host was ever begun in this operation.
func stepBegun(ctx context.Context, r *Run, id, name string) bool {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return true // unknown is not fine
	}
	return slices.ContainsFunc(steps, func(s journal.StepRecord) bool {
		of, what := splitStep(s.ID)
		return of == id && what == name
	})
}

// repeat calls round at once and then every so often, until it says that nothing
// more is waited for. The call after the limit is the last one and is told so.
func repeat(ctx context.Context, every, limit time.Duration, round func(late bool) (done bool, err error)) error {
	for began := time.Now(); ; {
		late := time.Since(began) >= limit
		if done, err := round(late); err != nil || done || late {
			return err
		}
		if !wait(ctx, every) {
			return ctx.Err()
		}
	}
}

// wait lets some time pass; false when the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
