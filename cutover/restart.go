package cutover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// restarting is the Procedure of the execution of a restart.
type restarting struct {
	plan  Plan
	fleet *fleet.Fleet

	mu    sync.Mutex
	last  Tally
	nodes map[string]rolling.NodeResult
}

func newRestart(plan Plan, f *fleet.Fleet) *restarting {
	return &restarting{plan: plan, fleet: f, last: Tally{}, nodes: map[string]rolling.NodeResult{}}
}

// Steps of one host beside those of a roll.
const (
	stepStopped  = "held"        // how it ended and what its data directory held then
	stepCopied   = "copy_data"   // of the archive host
	stepAside    = "aside_data"  // its data directory is set aside
	stepBackData = "back_data"   // and put back
	stepLatched  = "latched"     // it shows another K and stays stopped
	stepTrimmed  = "trim_policy" // the archive host has its restart policy back after it was brought to K
)

func (x *restarting) roll(r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Restart.Roll)
	head := x.plan.Restart.Values.Head()
	runner.From, runner.NoPutBack = &head, true
	return runner
}

// Do runs one phase.
func (x *restarting) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		err = x.roll(r).StageAll(ctx)
		t = x.all("its successor is ready")
	case Hold:
		t, err = x.hold(ctx, r)
	case Data:
		t, err = x.data(ctx, r)
	case Go:
		t, err = x.start(ctx, r)
	case Verify:
		t, err = x.verify(ctx, r)
	case Release:
		t, err = x.clear(ctx, r)
	default:
		return nil, fmt.Errorf("a restart has no phase %s", phase)
	}
	x.mu.Lock()
	x.last = t
	x.mu.Unlock()
	return t, err
}

func (x *restarting) all(text string) Tally {
	t := Tally{}
	for _, id := range x.plan.Hosts {
		t.finish(id, "%s", text)
	}
	return t
}

// here are the hosts that still take part: those no barrier was passed without.
func (x *restarting) here(ctx context.Context, r *Run) (ids []string, away Tally) {
	away = passedBy(ctx, r, Hold, Data, Go)
	for _, id := range x.plan.Hosts {
		if _, gone := away[id]; !gone {
			ids = append(ids, id)
		}
	}
	return ids, away
}

// apart lets hosts that cannot be seen go, where the rest reaches the threshold
// and the archive host is among it.
func (x *restarting) apart(t Tally) Tally {
	var there []string
	for id, s := range t {
		if s.State == Finished {
			there = append(there, id)
		}
	}
	s := x.plan.Restart.survivors(there)
	archive := x.plan.Restart.Archive
	if !s.Enough() || archive != "" && t[archive].State != Finished {
		return t
	}
	for id, st := range t {
		if st.State == Missing {
			t[id] = Standing{State: Apart, Text: st.Text + "; it takes no part: " + s.String()}
		}
	}
	return t
}

// hold stops every node, and writes down what its data directory held then.
func (x *restarting) hold(ctx context.Context, r *Run) (Tally, error) {
	for round := 1; ; round++ {
		t, err := x.holdRound(ctx, r)
		if err != nil || len(Judge(x.plan.Hosts, t, false)) == 0 {
			return t, err
		}
		if round == stopRounds {
			return x.apart(t), nil
		}
		if !wait(ctx, max(x.fleet.Inventory().Block, time.Second)) {
			return t, ctx.Err()
		}
	}
}

func (x *restarting) holdRound(ctx context.Context, r *Run) (Tally, error) {
	t, err := x.each(ctx, x.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		s := lookAt(ctx, x.fleet, id)
		p := x.plan.Restart.Roll.Node(id)
		if s.Reached && (s.runs() || s.Policy != policyHalted) && p != nil {
			req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: &host.Policy{Name: policyHalted}, State: host.StateStopped, StopTimeoutSeconds: p.StopTimeout}
			if err := bring(ctx, r, id, string(actStop), "stop the node and wait for its flush", req); err != nil {
				return Standing{}, err
			}
			s = lookAt(ctx, x.fleet, id)
		}
		standing := judgeStopped(s, stepBegun(ctx, r, id, string(actStop)))
		if standing.State != Finished {
			return standing, nil
		}
		return x.noteHeld(ctx, r, id, standing)
	})
	for _, id := range x.plan.Hosts {
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Hold), State: string(t[id].State), Text: t[id].Text})
	}
	return t, err
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

// each does one thing on several hosts at once. What concerns one host is its
// standing; only what stops the whole operation is an error.
func (x *restarting) each(ctx context.Context, ids []string, t Tally, do func(context.Context, string) (Standing, error)) (Tally, error) {
	var (
		mu   sync.Mutex
		errs []error
	)
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		s, err := do(ctx, id)
		if err != nil && !ofAll(err) {
			at := lookAt(context.WithoutCancel(ctx), x.fleet, id)
			s = Standing{State: Failed, Text: err.Error(), Down: at.Reached && !at.runs()}
			if !at.Reached {
				s.State = Missing
			}
			err = nil
		}
		mu.Lock()
		defer mu.Unlock()
		t[id] = s
		if err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", id, err))
		}
	})
	return t, errors.Join(append(errs, ctx.Err())...)
}

// ofAll says that an error of one host stops the whole operation.
func ofAll(err error) bool {
	var (
		fenced *host.FencedError
		doubt  *rolling.InDoubtError
	)
	return errors.As(err, &fenced) || errors.As(err, &doubt) || errors.Is(err, journal.ErrFenced) || errors.Is(err, context.Canceled)
}

// start starts the archive host, then the genesis hosts, then the others. Before
// the first it looks once more that everything is as it was left: a countdown lies
// in between.
func (x *restarting) start(ctx context.Context, r *Run) (Tally, error) {
	here, t := x.here(ctx, r)
	if !r.Touched(ctx) {
		if err := x.unmoved(ctx, r, here); err != nil {
			return t, err
		}
	}
	p := x.plan.Restart
	var archive, first, later []string
	for _, id := range here {
		switch {
		case id == p.Archive:
			archive = append(archive, id)
		case slices.Contains(p.First, id):
			first = append(first, id)
		default:
			later = append(later, id)
		}
	}
	for _, batch := range [][]string{archive, first, later} {
		var err error
		if t, err = x.each(ctx, batch, t, func(ctx context.Context, id string) (Standing, error) { return x.startOne(ctx, r, id) }); err != nil {
			return t, err
		}
		if len(archive) > 0 && t[archive[0]].State != Finished {
			return x.waiting(t, "waits for the archive host "+archive[0]), nil
		}
	}
	return x.apart(t), r.Lease.Check(ctx)
}

// waiting fills in the hosts that were not come to.
func (x *restarting) waiting(t Tally, text string) Tally {
	for _, id := range x.plan.Hosts {
		if _, known := t[id]; !known {
			t[id] = Standing{State: Waiting, Text: text}
		}
	}
	return t
}

// startOne brings one host to its successor that runs. One that joins is started
// only while the archive host is seen to serve.
func (x *restarting) startOne(ctx context.Context, r *Run, id string) (Standing, error) {
	p := x.plan.Restart
	runner := x.roll(r)
	n := runner.Plan.Node(id)
	if p.joins(id) && !runner.Swapped(ctx, *n) {
		if why := x.serves(ctx, p.Archive); why != "" {
			return Standing{State: Waiting, Down: true, Text: "is not started: " + why}, nil
		}
	}
	if err := runner.SwapIn(ctx, *n); err != nil {
		if code := malformedIn(err); code != "" {
			return Standing{State: Failed, Down: true, Text: "the node refuses the manifest of the image: " + code + "; the release must be cut anew"}, nil
		}
		return Standing{}, err
	}
	return x.accepted(ctx, r, id)
}

// malformedIn finds the node's refusal in the last lines of a successor that ended
// at once.
func malformedIn(err error) string {
	var (
		stopped *rolling.StoppedError
		lines   RestartLines
	)
	if !errors.As(err, &stopped) {
		return ""
	}
	for _, l := range stopped.LastLines {
		if at := strings.Index(l, "[FATAL]"); at >= 0 {
			lines.add(node.ParseLine(l[at:]))
		}
	}
	return lines.Malformed
}

// accepted waits until the node has said what it makes of its manifest; the
// archive host must serve, too.
func (x *restarting) accepted(ctx context.Context, r *Run, id string) (Standing, error) {
	v, block := x.plan.Restart.Values, x.fleet.Inventory().Block
	limit := max(bootBlocks*block, leastQuiet)
	for began := time.Now(); ; {
		got, latched, err := x.lookNew(ctx, r, id)
		if latched != nil || err != nil {
			return *cmp.Or(latched, &Standing{}), err
		}
		standing := judgeStarted(v, got)
		if standing.State == Finished && id == x.plan.Restart.Archive {
			if why := x.serves(ctx, id); why != "" {
				standing = Standing{State: Waiting, Text: why}
			}
		}
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Go), State: string(standing.State), Text: standing.Text})
		if standing.State == Finished || standing.State == Failed || time.Since(began) >= limit {
			return standing, nil
		}
		if !wait(ctx, max(block, leastPoll)) {
			return standing, ctx.Err()
		}
	}
}

// judgeStarted says how a node stands that was just started on the release.
func judgeStarted(v RestartValues, r RestartReading) Standing {
	switch want := uint64(len(v.Manifest.Restart.Excluded)); {
	case !r.Reached:
		return Standing{State: Missing, Text: r.Why}
	case r.Lines.Malformed != "":
		return Standing{State: Failed, Down: !r.runs(), Text: "the node refuses the manifest of the image: " + r.Lines.Malformed + "; the release must be cut anew"}
	case r.Lines.Fatal != "":
		return Standing{State: Failed, Down: !r.runs(), Text: "the node refuses to start: " + r.Lines.Fatal}
	case !r.runs():
		return Standing{State: Failed, Down: true, Text: "its successor ended"}
	case r.Lines.Active && (r.Lines.Resume != v.K() || r.Lines.Excluded != want):
		return Standing{State: Failed, Text: fmt.Sprintf("the image resumes from macroblock %d and bars %d, the record says %d and %d", r.Lines.Resume, r.Lines.Excluded, v.K(), want)}
	case !r.Lines.Active:
		return Standing{State: Waiting, Text: "has not said yet that the manifest is active"}
	}
	return Standing{State: Finished, Text: fmt.Sprintf("runs the release, resumes from macroblock %d", v.K())}
}

// serves says why a host is not shown to hold and serve the state of K; "" where
// it does. It asks the running node.
func (x *restarting) serves(ctx context.Context, id string) string {
	if id == "" {
		return "no host of this fleet serves the state of K"
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	v := x.plan.Restart.Values
	conn, err := rolling.Reach(ctx, x.fleet, id)
	if err != nil {
		return id + " cannot be reached: " + err.Error()
	}
	hash, missing, err := hashAt(ctx, conn.Node(), v.K())
	switch {
	case err != nil:
		return fmt.Sprintf("%s does not show macroblock %d: %v", id, v.K(), err)
	case missing:
		return fmt.Sprintf("%s has no macroblock %d", id, v.K())
	case *hash != v.Manifest.Restart.ResumeMBHash:
		return fmt.Sprintf("%s shows another macroblock %d", id, v.K())
	}
	head := v.Head()
	snap, err := conn.Node().SnapshotLatest(ctx, &head)
	if err != nil || !snap.Available || snap.Height > head {
		return fmt.Sprintf("%s offers no snapshot at or below %d", id, head)
	}
	return ""
}

// Undo takes a phase back: directories are renamed back, nodes started again as
// they were, successors removed.
func (x *restarting) Undo(ctx context.Context, r *Run, phase PhaseName) error {
	switch phase {
	case Data:
		return x.dataBack(ctx, r)
	case Hold:
		return x.runAgain(ctx, r)
	case Prepare:
		return x.roll(r).DiscardAll(ctx)
	}
	return nil
}

func (x *restarting) runAgain(ctx context.Context, r *Run) error {
	_, err := x.each(ctx, x.plan.Hosts, Tally{}, func(ctx context.Context, id string) (Standing, error) {
		p := x.plan.Restart.Roll.Node(id)
		if !stepBegun(ctx, r, id, string(actStop)) || p == nil {
			return Standing{State: Finished}, nil
		}
		req := host.StateRequest{Container: p.Container, ExpectID: p.ContainerID, Policy: p.Policy, State: host.StateRunning}
		if err := bring(ctx, r, id, string(actStart), "start the node again as it was", req); err != nil {
			return Standing{}, err
		}
		if s := lookAt(ctx, x.fleet, id); !s.runs() {
			return Standing{}, &rolling.InDoubtError{Operation: r.Op.ID(), Node: id, Reason: "it does not run again"}
		}
		return Standing{State: Finished}, nil
	})
	return err
}

// Returnable looks whether a successor was started anywhere.
func (x *restarting) Returnable(ctx context.Context, r *Run) error {
	runner := x.roll(r)
	var on []string
	for _, p := range x.plan.Restart.Roll.Targets() {
		if runner.Swapped(ctx, p) {
			on = append(on, p.ID)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf("the release was started on %s and may have written blocks of the new chain. Mend what holds it and qnetops resume %s; "+
			"to close the operation as it stands: --waive point_of_no_return=REASON. What was set aside stays in any case", strings.Join(on, ", "), r.Op.ID())}}}
}

// Settle settles the steps in doubt. Data moves settle by themselves when they are
// asked for again, the rest by looking at the hosts.
func (x *restarting) Settle(ctx context.Context, r *Run) error {
	record, err := r.Op.Record(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, s := range record.Unsettled() {
		_, name := splitStep(s.ID)
		if slices.Contains([]string{stepCopied, stepAside, stepBackData, stepStopped, stepLatched}, name) || repeatable(name) {
			if err := r.Op.Settle(context.WithoutCancel(ctx), s.ID, journal.StepFailed, "it may be done again; the host remembers how far it came", nil); err != nil {
				return err
			}
		}
	}
	return x.roll(r).Settle(ctx)
}

// clear ends the stay of the old containers. What was set aside of their data
// stays: the operator removes it when nobody needs it any more.
func (x *restarting) clear(ctx context.Context, r *Run) (Tally, error) {
	here, away := x.here(ctx, r)
	runner := x.roll(r)
	return x.each(ctx, here, away, func(ctx context.Context, id string) (Standing, error) {
		if _, err := runner.Archive(ctx, *runner.Plan.Node(id)); err != nil {
			return Standing{}, err
		}
		text := "its old container is archived and removed"
		if h := x.plan.Restart.host(id); h.Way == restart.WayRename {
			text += "; its old data stays as " + h.Aside
			if h.Copy != "" {
				text += " and " + h.Copy
			}
		}
		return Standing{State: Finished, Text: text}, nil
	})
}

func (x *restarting) hosts(context.Context, *Run) []HostResult {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []HostResult
	for _, id := range x.plan.Hosts {
		res := HostResult{ID: id, State: Waiting, Text: "not begun", Milestones: []rolling.Milestone{}}
		if t, known := x.last[id]; known {
			res.State, res.Text = t.State, t.Text
		}
		if n, known := x.nodes[id]; known {
			res.Milestones = n.Milestones
		}
		if p := x.plan.Restart.Roll.Node(id); p != nil && p.NextPolicy != nil && res.State == Finished {
			res.RestartPolicy = p.NextPolicy.Name
		}
		out = append(out, res)
	}
	return out
}
