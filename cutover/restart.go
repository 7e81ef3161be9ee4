package cutover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// restarting is the Procedure of the execution of a restart.
type restarting struct{ *crew }

func newRestart(plan Plan, f *fleet.Fleet) *restarting { return &restarting{newCrew(plan, f)} }

// Steps of one host beside those of a roll.
const (
	stepStopped   = "held"        // how it ended and what its data directory held then
	stepCopied    = "copy_data"   // of the archive host
	stepAside     = "aside_data"  // its data directory is set aside
	stepBackData  = "back_data"   // and put back
	stepLatched   = "latched"     // it is stopped and stays so until a person clears it
	stepTrimBegun = "trim_begun"  // the archive host may be down until it has been brought to K
	stepTrimmed   = "trim_policy" // the archive host has its restart policy back after it was brought to K
)

// roll is the roll to the release; that of one host's successor is rollOf.
func (x *restarting) roll(r *Run) *rolling.Runner {
	runner := r.Session.Runner(x.plan.Restart.Roll)
	head := x.plan.Restart.Values.Head()
	runner.From, runner.NoPutBack, runner.Among = &head, true, x.plan.Hosts
	return runner
}

// Do runs one phase.
func (x *restarting) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		if err := x.stage(ctx, r); err != nil {
			return nil, err
		}
		t = x.all("its successor is ready")
	case Hold:
		note := func(ctx context.Context, id string, s Standing) (Standing, error) { return x.noteHeld(ctx, r, id, s) }
		t, err = x.stopAll(ctx, r, x.plan.Restart.Roll, note)
		t = x.apart(t)
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
	return x.keep(t), err
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
	if !s.Enough() || archive != "" && t[archive].State != Finished || !x.plan.Restart.together(there) {
		return t
	}
	for id, st := range t {
		if st.State == Missing {
			t[id] = Standing{State: Apart, Text: st.Text + "; it takes no part: " + s.String()}
		}
	}
	return t
}

// start starts the archive host, then the genesis hosts, then the others. Before
// the first it looks once more that everything is as it was left: a countdown lies
// in between.
func (x *restarting) start(ctx context.Context, r *Run) (Tally, error) {
	here, t := x.here(ctx, r, Hold, Data, Go)
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
		if t, err = x.change(ctx, r, batch, t, func(ctx context.Context, id string) (Standing, error) {
			return x.startOne(ctx, r, id)
		}); err != nil {
			return t, err
		}
		if len(archive) > 0 && t[archive[0]].State != Finished {
			return x.waiting(t, "waits for the archive host "+archive[0]), nil
		}
	}
	return x.apart(t), nil
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
	runner := x.rollOf(r, id)
	n := runner.Plan.Node(id)
	if p.joins(id) && !runner.Swapped(ctx, *n) {
		if why := x.served(ctx, bootBlocks, p.Archive); why != "" {
			return Standing{State: Waiting, Down: true, Text: "is not started: " + why}, ctx.Err()
		}
	}
	if err := runner.SwapIn(ctx, *n); err != nil {
		if code := malformedIn(err); code != "" {
			return Standing{State: Failed, Down: true, Text: refusesManifest(code)}, nil
		}
		return Standing{}, err
	}
	return x.accepted(ctx, r, id)
}

func refusesManifest(code string) string {
	return "the node refuses the manifest of the image: " + code + "; the release must be cut anew"
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

// accepted waits until the node has said what it makes of its manifest, and of its
// rollback where it goes back; the archive host must serve, too.
func (x *restarting) accepted(ctx context.Context, r *Run, id string) (s Standing, err error) {
	block := x.fleet.Inventory().Block
	err = repeat(ctx, max(block, leastPoll), max(bootBlocks*block, leastQuiet), func(bool) (bool, error) {
		if s, err = x.begins(ctx, r, id); err != nil {
			return false, err
		}
		x.tell(r, Go, Tally{id: s})
		return s.State == Finished || s.State == Failed, nil
	})
	return s, err
}

// begins looks once at a node that was just started on the release.
func (x *restarting) begins(ctx context.Context, r *Run, id string) (Standing, error) {
	got, latched, err := x.lookNew(ctx, r, id)
	if latched != nil || err != nil {
		return *cmp.Or(latched, &Standing{}), err
	}
	s := judgeStarted(x.plan.Restart.Values, got)
	if s.State == Finished && x.goesBack(ctx, r, id) {
		if res, known := x.said(ctx, r, id); known {
			s.Text += "; " + res.Text
		} else {
			s = Standing{State: Waiting, Text: "has not said yet what its rollback did"}
		}
	}
	if s.State == Finished && id == x.plan.Restart.Archive {
		if why := x.serves(ctx, id); why != "" {
			s = Standing{State: Waiting, Text: why}
		}
	}
	return s, nil
}

// judgeStarted says how a node stands that was just started on the release.
func judgeStarted(v RestartValues, r RestartReading) Standing {
	switch want := uint64(len(v.Manifest.Restart.Excluded)); {
	case !r.Reached:
		return Standing{State: Missing, Text: r.Why}
	case r.Lines.Malformed != "":
		return Standing{State: Failed, Down: !r.runs(), Text: refusesManifest(r.Lines.Malformed)}
	case r.Lines.Fatal != "":
		return Standing{State: Failed, Down: !r.runs(), Text: "the node refuses to start: " + r.Lines.Fatal}
	case !r.runs():
		return Standing{State: Failed, Down: true, Text: "its successor ended"}
	case r.Lines.Active && (r.Lines.Resume != v.K() || r.Lines.Excluded != want):
		return Standing{State: Failed, Text: fmt.Sprintf("the image resumes from macroblock %d and bars %d, the record says %d and %d",
			r.Lines.Resume, r.Lines.Excluded, v.K(), want)}
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
		return x.startAgain(ctx, r, x.plan.Restart.Roll, x.displaced(ctx, r))
	case Prepare:
		return x.discard(ctx, r, x.roll(r))
	}
	return nil
}

// Returnable looks whether a successor was started anywhere.
func (x *restarting) Returnable(ctx context.Context, r *Run) error {
	return noReturn(swapped(ctx, x.roll(r)), "the release was started on %s and may have written blocks of the new chain. "+
		"Mend what holds it and qnetops resume %s; "+
		"qnetops abort %s --waive point_of_no_return=REASON closes the operation as it stands. What was set aside stays in any case",
		r.Op.ID(), r.Op.ID())
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
		if slices.Contains([]string{stepCopied, stepAside, stepBackData, stepStopped, stepLatched, stepRolledBack}, name) ||
			repeatable(name) {
			if err := r.Op.Settle(context.WithoutCancel(ctx), s.ID, journal.StepFailed, "it may be done again; the host remembers "+
				"how far it came", nil); err != nil {
				return err
			}
		}
	}
	runner := x.roll(r)
	if plan, known := x.unsetKnown(ctx, r); known {
		runner.Plan.Nodes = slices.Clone(runner.Plan.Nodes) // the plan of the restart stays what it is
		for i, n := range runner.Plan.Nodes {
			if later := plan.Node(n.ID); later != nil {
				runner.Plan.Nodes[i] = *later
			}
		}
	}
	return runner.Settle(ctx)
}

// clear ends the stay of the old containers, and then of the rollback variable,
// node by node. What was set aside of their data stays: the operator removes it
// when nobody needs it any more.
func (x *restarting) clear(ctx context.Context, r *Run) (Tally, error) {
	here, away := x.here(ctx, r, Hold, Data, Go, Verify)
	runner := x.roll(r)
	_, unsetting := x.unsetKnown(ctx, r) // then they are gone, and what is aside now is not of before the restart
	for id, s := range away {
		if seen := lookAt(ctx, x.fleet, id); seen.Reached && len(seen.OneShot) > 0 {
			s.Text += "; its container still carries " + strings.Join(seen.OneShot, ", ")
			away[id] = s
		}
	}
	away, err := x.tidy(ctx, r, runner, away)
	if err != nil {
		return away, err
	}
	t, err := x.change(ctx, r, here, away, func(ctx context.Context, id string) (Standing, error) {
		clear := runner.Clear
		if unsetting {
			clear = runner.ClearFailed
		}
		err := clear(ctx, *runner.Plan.Node(id))
		return x.cleared(ctx, r, id, "its old container is archived and removed"+x.left(ctx, r, id), err)
	})
	if err != nil || len(x.open(r, t)) > 0 {
		return t, err
	}
	here = slices.DeleteFunc(here, func(id string) bool { return t[id].State != Finished })
	return t, x.unset(ctx, r, here, false)
}

// left says what stays of a host's old data.
func (x *restarting) left(ctx context.Context, r *Run, id string) string {
	h := x.plan.Restart.host(id)
	text := ""
	if r.Result(ctx, id+"/"+stepAside) != nil {
		text += "; its old data stays as " + h.Aside
	}
	if r.Result(ctx, id+"/"+stepCopied) != nil {
		text += " and " + h.Copy
	}
	return text
}

// hosts tells about every host; one that went back has what its node said of that.
func (x *restarting) hosts(ctx context.Context, r *Run) []HostResult {
	out := x.results(x.plan.Restart.Roll)
	for i := range out {
		h := x.plan.Restart.host(out[i].ID)
		if h.Way != restart.WayRollback {
			continue
		}
		if res, known := x.backResult(ctx, r, h.ID); known {
			out[i].Rollback = &res
		}
		if h.Policy != nil && r.Passed(ctx, Release) && out[i].State == Finished {
			out[i].RestartPolicy = h.Policy.Name
		}
	}
	return out
}
