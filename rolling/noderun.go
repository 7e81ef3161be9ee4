package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// stage of one node, as found on its host.
type stage string

const (
	stageWaiting  stage = "waiting"  // the old container runs, nothing staged
	stageStaged   stage = "staged"   // the successor exists, never started
	stageReplaced stage = "replaced" // the successor runs, the old one is aside
	stageRolled   stage = "rolled"   // the successor runs, nothing is aside
	stageUnclear  stage = "unclear"  // none of these: a person or the agent must settle it
)

// stageOf decides from what is really on the host how far a node is; the
// journal only says what was intended.
func stageOf(s host.Situation, p NodePlan) stage {
	// A container that this operation set aside before the plan was made, in an
	// earlier replace of the same node, says nothing about this one.
	earlier := s.Aside != nil && s.Current != nil && s.Aside.ID != p.ContainerID && s.Current.ID == p.ContainerID
	switch {
	case s.Unsettled || s.Current == nil:
		return stageUnclear
	case s.Current.ID == p.ContainerID && (s.Aside == nil || earlier) && s.Next == nil:
		return stageWaiting
	case s.Current.ID == p.ContainerID && (s.Aside == nil || earlier):
		return stageStaged
	case s.Current.ID != p.ContainerID && s.Aside != nil && s.Aside.ID == p.ContainerID:
		return stageReplaced
	case s.Aside == nil && s.Next == nil && s.Current.Running() && ours(s):
		return stageRolled
	}
	return stageUnclear
}

// ours says whether the host's own log names the running container as the
// successor that this operation put there; any other was made by somebody else.
func ours(s host.Situation) bool {
	for _, e := range s.Entries {
		if e.Tx == "replace" && e.Outcome == host.Replaced && e.Result != nil && e.Result.NewID == s.Current.ID {
			return true
		}
	}
	return false
}

// node takes one node from where it stands to rolled, or says why not.
func (r *Runner) node(ctx context.Context, p NodePlan) (NodeResult, error) {
	result := NodeResult{ID: p.ID, Outcome: NodeUntouched, Milestones: []Milestone{}}
	situation, err := r.situation(ctx, p)
	if err != nil {
		return result, err
	}
	switch stageOf(situation, p) {
	case stageRolled:
		r.recall(ctx, p, situation.Current.ID, &result)
		if len(result.Milestones) == 0 || firstFailed(result.Milestones) != nil {
			// Somebody removed the old container before the successor had proven
			// itself; it is still to be watched.
			at := situation.Current.StartedAt
			return r.reenter(ctx, p, result, host.ReplaceResult{Outcome: host.Replaced, NewID: situation.Current.ID, StartedAt: at, StoppedAt: at})
		}
		result.Outcome = NodeRolled
		return result, nil
	case stageReplaced:
		if r.recall(ctx, p, situation.Current.ID, &result); r.Plan.Arm != nil && situation.Current.Running() &&
			len(result.Milestones) > 0 && firstFailed(result.Milestones) == nil {
			return r.finish(ctx, p, result) // it was proven; only its old container is kept
		}
		return r.reenter(ctx, p, result, replacedAs(situation))
	case stageUnclear:
		return result, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: "the containers on the host fit no step of this operation: " + describe(situation)}
	}
	if err := r.ready(ctx, p); err != nil {
		return result, err
	}
	done, err := r.replace(ctx, p)
	if err != nil {
		// Whatever became of it, it cannot be called untouched any more.
		result.Outcome, result.Reason = NodeHeld, "the replace did not end: "+err.Error()
		return result, err
	}
	result.Killed = done.Killed
	if done.Outcome == host.Held {
		result.Outcome, result.Reason = NodeHeld, done.Reason
		return result, &StoppedError{Operation: r.Op.ID(), Node: p.ID, LastLines: tail(done.LastLines, 12),
			Reason: "the successor did not start and the old container was not started again (" + p.OnFailWhy + "): " + done.Reason + "; the node is down"}
	}
	if done.Outcome == host.PutBack {
		down := done.StartedAt.Sub(done.StoppedAt).Seconds()
		result.DowntimeSeconds = &down
		return r.restored(ctx, p, result, done, "the successor did not start: "+done.Reason)
	}
	return r.reenter(ctx, p, result, done)
}

// replacedAs rebuilds the result of a replace from what is on the host, for a
// resume that did not see it happen.
func replacedAs(s host.Situation) host.ReplaceResult {
	return host.ReplaceResult{Outcome: host.Replaced, OldID: s.Aside.ID, NewID: s.Current.ID,
		StoppedAt: s.Aside.FinishedAt, StartedAt: s.Current.StartedAt}
}

// ready makes the last checks before a node is stopped: its successor still
// matches, the others vote without it, and it is not its turn to produce.
func (r *Runner) ready(ctx context.Context, p NodePlan) error {
	report, err := r.stage(ctx, p)
	if err != nil {
		return err
	}
	if checks := explain(p, report, r.Plan); len(checks) > 0 {
		return &StoppedError{Operation: r.Op.ID(), Node: p.ID, Err: &RefusedError{Checks: checks}, Reason: "its successor no longer matches"}
	}
	if err := r.settled(ctx, p); err != nil {
		return err
	}
	if err := r.mayStop(ctx, p); err != nil || r.Turn == nil {
		return err
	}
	return r.Turn(ctx, p)
}

// mayStop waits until the others vote without the node and it does not produce.
func (r *Runner) mayStop(ctx context.Context, p NodePlan) error {
	for {
		if err := r.quorum(ctx, p); err != nil {
			return err
		}
		// A wait makes the count old; the fleet may have lost a voter meanwhile.
		if waited, err := r.turn(ctx, p); err != nil || !waited {
			return err
		}
	}
}

func (r *Runner) replace(ctx context.Context, p NodePlan) (host.ReplaceResult, error) {
	stamp := time.Now().UTC().Format("20060102T150405Z")
	var done host.ReplaceResult
	err := r.step(ctx, p.ID, "replace", "stop the old container, start the successor", func(ctx context.Context, w *host.Writer) (any, error) {
		report, err := w.Client().Situation(ctx, p.Container, r.of())
		if err != nil {
			return nil, err
		}
		if report.Next == nil {
			return nil, fmt.Errorf("the staged successor is gone: %w", host.ErrChanged)
		}
		done, err = w.Replace(ctx, host.ReplaceRequest{
			Container: p.Container, NextName: r.nextName(p),
			AsideName: p.Container + "-pre-" + stamp, FailedName: p.Container + "-failed-" + stamp,
			StopTimeoutSeconds: p.StopTimeout, ExpectOldID: p.ContainerID, ExpectNextID: report.Next.ID,
			NextPolicy: p.NextPolicy, NoPutBack: r.NoPutBack,
		}, r.tx(p))
		return done, err
	})
	return r.afterTx(ctx, p, "replace", done, err)
}

func (r *Runner) tx(p NodePlan) func(host.TxEvent) {
	return func(e host.TxEvent) {
		r.emit(Event{Node: p.ID, Kind: KindTx, Name: e.Step, State: e.State, Text: e.Text})
	}
}

// reconnect is how long a lost connection is tried again inside one run; the
// agent on the host settles the transaction by itself either way.
const reconnect = 30 * time.Second

// afterTx settles a transaction whose answer was lost by looking, never by
// repeating it.
func (r *Runner) afterTx(ctx context.Context, p NodePlan, step string, done host.ReplaceResult, err error) (host.ReplaceResult, error) {
	if err == nil {
		if done.Outcome == host.InDoubt {
			return done, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: done.Reason}
		}
		return done, nil
	}
	if !isGone(err) && !errors.Is(err, context.DeadlineExceeded) {
		return done, err
	}
	r.emit(Event{Node: p.ID, Kind: KindNote, Name: step, Text: "connection lost; the agent on the host settles by itself, looking again"})
	situation, lookErr := r.lookAgain(ctx, p)
	if lookErr == nil {
		lookErr = r.settleNode(ctx, p, situation)
	}
	if lookErr != nil {
		return done, &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the connection was lost during " + step + " and could not be made again", Err: errors.Join(err, lookErr)}
	}
	if held := heldAs(situation, p); held != nil {
		if step == "replace" {
			return *held, nil
		}
		return done, r.lostBefore(p, err)
	}
	if err := r.restoreLost(situation, p, err); err != nil {
		return done, err
	}
	switch stageOf(situation, p) {
	case stageReplaced, stageRolled:
		if situation.Aside == nil {
			return host.ReplaceResult{Outcome: host.Replaced, NewID: situation.Current.ID, StartedAt: situation.Current.StartedAt, StoppedAt: situation.Current.StartedAt}, nil
		}
		return replacedAs(situation), nil
	case stageWaiting, stageStaged:
		if step == "replace" && situation.Failed == nil {
			// Nothing of a successor that ran: the request never took effect.
			return done, r.lostBefore(p, err)
		}
		return host.ReplaceResult{Outcome: host.PutBack, OldID: situation.Current.ID, StoppedAt: situation.Current.StartedAt,
			StartedAt: situation.Current.StartedAt, Reason: "the agent undid it after the connection was lost"}, nil
	}
	return done, &InDoubtError{Operation: r.Op.ID(), Node: p.ID, Reason: describe(situation), Err: err}
}

// lookAgain connects again, takes the fence (which waits for the transaction
// in hand and settles what a dead agent left) and reads what is there.
func (r *Runner) lookAgain(ctx context.Context, p NodePlan) (host.Situation, error) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), reconnect)
	defer cancel()
	for {
		situation, err := func() (host.Situation, error) {
			w, err := r.writer(limit, p.ID)
			if err != nil {
				return host.Situation{}, err
			}
			if _, err := w.TakeFence(limit); err != nil {
				return host.Situation{}, err
			}
			return r.situation(limit, p)
		}()
		if err == nil || isFenced(err) {
			return situation, err
		}
		select {
		case <-limit.Done():
			return host.Situation{}, err
		case <-time.After(time.Second):
		}
	}
}

// reenter watches the replaced node through its milestones and ends its turn.
func (r *Runner) reenter(ctx context.Context, p NodePlan, result NodeResult, done host.ReplaceResult) (NodeResult, error) {
	down := done.StartedAt.Sub(done.StoppedAt).Seconds()
	result.DowntimeSeconds = &down
	result.Outcome = NodeHeld
	want, err := r.expect(ctx, p, done)
	if err != nil {
		return result, err
	}
	result.Milestones, err = r.milestones(ctx, p, want)
	if err != nil {
		result.Reason = "milestones not settled"
		return result, err
	}
	failed := firstFailed(result.Milestones)
	if failed == nil {
		return r.finish(ctx, p, result)
	}
	lines := r.lastLines(ctx, p)
	reason := fmt.Sprintf("%s (%s) failed: %s", failed.Name, failed.Title, failed.Reason)
	if p.OnFail == "restore" && (failed.Name == "M0" || failed.Name == "M1") {
		why := r.atHalt(ctx, p)
		if why == "" {
			return r.putBack(ctx, p, result, reason, lines)
		}
		p.OnFail, p.OnFailWhy = "hold", why
	}
	result.Reason = reason
	if p.OnFail != "restore" {
		reason += " (held: " + p.OnFailWhy + ")"
	}
	return result, &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: reason + "; the node is held on the new container, the old one is set aside", LastLines: lines}
}

// expect reads what the milestones are measured against.
func (r *Runner) expect(ctx context.Context, p NodePlan, done host.ReplaceResult) (Expectation, error) {
	tip := r.From
	if tip == nil {
		tip = heightAmong(ctx, r.Fleet, r.among(), p.ID, 5*time.Second)
	}
	if ctx.Err() != nil {
		return Expectation{}, ctx.Err()
	}
	if tip == nil && !r.Plan.RecoveryHalted {
		return Expectation{}, errors.New("no other node's height can be read, so the window of the restart is unknown")
	}
	if tip == nil {
		tip = new(uint64)
	}
	want := expectation(r.Fleet, done, *tip)
	if at, err := r.startTip(ctx, p, done.NewID, *tip); err == nil {
		want.StartHeight = at
	}
	want.Build = r.build(ctx, p)
	want.LinesHidden = p.LinesHidden
	for _, v := range r.Plan.Env {
		if v.Name == "QNET_LOG_LEVEL" {
			want.LinesHidden = linesHidden(v.Value)
		}
	}
	want.WaiveBuild, _ = r.Plan.waived("build_stamp")
	want.Halted, want.Armed = r.standing(ctx), r.Plan.Arm != nil
	return want, nil
}

// startTip keeps the fleet's tip at the first look after the start, so that a
// resume hours later still asks for a window above the restart and not above
// itself.
func (r *Runner) startTip(ctx context.Context, p NodePlan, container string, tip uint64) (uint64, error) {
	type mark struct {
		Container string `json:"container"`
		Tip       uint64 `json:"tip"`
	}
	if raw := r.result(ctx, p.ID+"/started"); raw != nil {
		var m mark
		if json.Unmarshal(raw, &m) == nil && m.Container == container {
			return m.Tip, nil
		}
	}
	err := r.record(ctx, p.ID+"/started", "note the fleet's tip at the start", mark{container, tip})
	return tip, err
}

// build is the QNET_BUILD_ID the stage step read from the new image.
func (r *Runner) build(ctx context.Context, p NodePlan) string {
	var report host.StageReport
	if raw := r.result(ctx, p.ID+"/stage"); raw != nil && json.Unmarshal(raw, &report) == nil {
		return report.NewBuild
	}
	return ""
}

func (r *Runner) milestones(ctx context.Context, p NodePlan, want Expectation) ([]Milestone, error) {
	r.emit(Event{Node: p.ID, Kind: KindStep, Name: "milestones", State: "begun", Text: "watch the node back into the chain"})
	seen, err := watch(ctx, r.Fleet, r.among(), p.ID, want.ContainerID, want, r.board, func(m Milestone) {
		r.emit(Event{Node: p.ID, Kind: KindMilestone, Name: m.Name, State: m.Verdict, Text: m.Reason})
	})
	if err != nil {
		return seen, err
	}
	return seen, r.record(ctx, p.ID+"/milestones", "milestones M0 to M4", proof{want.ContainerID, seen})
}

// proof is what one container showed; it says nothing about another one.
type proof struct {
	Container  string      `json:"container"`
	Milestones []Milestone `json:"milestones"`
}

// finish ends the stay of the old container, unless a milestone was skipped:
// then it stays until the operator finishes the operation.
func (r *Runner) finish(ctx context.Context, p NodePlan, result NodeResult) (NodeResult, error) {
	result.Outcome = NodeRolled
	if r.Plan.KeepOld {
		return result, nil
	}
	if skipped(result.Milestones) {
		result.Reason = "milestones were skipped: the old container stays until roll --finish " + r.Op.ID()
		return result, nil
	}
	archive, err := r.Archive(ctx, p)
	result.Archive = archive.Archive
	if err != nil {
		return result, err
	}
	return result, r.ClearFailed(ctx, p)
}

// Archive writes the old container's log to the host's archive and removes the
// container; its data is on the host and stays.
func (r *Runner) Archive(ctx context.Context, p NodePlan) (host.FinishResult, error) {
	var done host.FinishResult
	err := r.step(ctx, p.ID, "finish", "archive the old log, remove the old container", func(ctx context.Context, w *host.Writer) (any, error) {
		situation, err := w.Client().Situation(ctx, p.Container, r.of())
		if err != nil {
			return nil, err
		}
		if situation.Aside == nil {
			return nil, nil
		}
		done, err = w.Finish(ctx, host.FinishRequest{Container: p.Container, AsideName: situation.Aside.Name, LogDir: r.Fleet.Inventory().LogArchive}, r.tx(p))
		return done, err
	})
	return done, err
}

// putBack brings the old container back and calls the node restored only once
// it passed M0 to M2; until then it counts as down.
func (r *Runner) putBack(ctx context.Context, p NodePlan, result NodeResult, reason string, lines []string) (NodeResult, error) {
	done, err := r.PutBack(ctx, p)
	if err != nil {
		return result, err
	}
	if len(done.LastLines) == 0 {
		done.LastLines = lines
	}
	return r.restored(ctx, p, result, done, reason)
}

// PutBack runs the local transaction that puts the old container back.
func (r *Runner) PutBack(ctx context.Context, p NodePlan) (host.ReplaceResult, error) {
	stamp := time.Now().UTC().Format("20060102T150405Z")
	var done host.ReplaceResult
	err := r.step(ctx, p.ID, "putback", "put the old container back", func(ctx context.Context, w *host.Writer) (any, error) {
		situation, err := w.Client().Situation(ctx, p.Container, r.of())
		if err != nil {
			return nil, err
		}
		aside, name := situation.Aside, p.Container+"-pre-"+stamp
		switch {
		case aside != nil:
			name = aside.Name
		case heldAs(situation, p) != nil:
			aside = situation.Current // it bears the node's name already
		default:
			return nil, fmt.Errorf("no container is set aside: %w", host.ErrNotFound)
		}
		if err := r.oneShot(p.ID, aside); err != nil {
			return nil, err
		}
		done, err = w.PutBack(ctx, host.PutBackRequest{Container: p.Container, AsideName: name,
			FailedName: p.Container + "-failed-" + stamp, StopTimeoutSeconds: p.StopTimeout, AllowOneShot: len(aside.OneShot) > 0}, r.tx(p))
		return done, err
	})
	done, err = r.afterTx(ctx, p, "putback", done, err)
	if err == nil && done.Outcome != host.PutBack {
		err = &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: "the old container was not put back: the connection was lost before it began"}
	}
	return done, err
}

func (r *Runner) restored(ctx context.Context, p NodePlan, result NodeResult, done host.ReplaceResult, reason string) (NodeResult, error) {
	stop := &StoppedError{Operation: r.Op.ID(), Node: p.ID, Reason: reason, LastLines: tail(done.LastLines, 12)}
	result.Outcome, result.Reason = NodeHeld, reason+"; the old container was put back and has not proven itself yet"
	tip := heightAmong(ctx, r.Fleet, r.among(), p.ID, 5*time.Second)
	if tip == nil {
		tip = new(uint64)
	}
	want := expectation(r.Fleet, done, *tip)
	want.Build, want.OnlyRejoined = p.FromBuild, true
	if want.Build == "" {
		want.WaiveBuild = "the old image is not stamped"
	}
	seen, err := watch(ctx, r.Fleet, r.among(), p.ID, want.ContainerID, want, r.board, func(m Milestone) {
		r.emit(Event{Node: p.ID, Kind: KindMilestone, Name: m.Name, State: m.Verdict, Text: "old container: " + m.Reason})
	})
	if err != nil {
		stop.Err, stop.Interrupted = err, interrupted(ctx, err)
		return result, stop
	}
	if failed := firstFailed(seen); failed != nil {
		stop.Reason += fmt.Sprintf("; the old container is back, but %s failed: %s", failed.Name, failed.Reason)
		return result, stop
	}
	if err := r.record(ctx, p.ID+"/restored", "the old container passed M0 to M2 again", proof{want.ContainerID, seen}); err != nil {
		stop.Err = err
		return result, stop
	}
	result.Outcome, result.Reason = NodeRestored, reason
	stop.Reason += "; the old container was put back and passed M0 to M2"
	stop.Err = r.onOld(ctx, r.ClearFailed(ctx, p))
	return result, stop
}

func (r *Runner) lastLines(ctx context.Context, p NodePlan) []string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	agent, err := agentAgain(ctx, r.Fleet, p.ID)
	if err != nil {
		return nil
	}
	lines, err := agent.LastLines(ctx, p.Container, 12)
	if err != nil {
		return nil
	}
	return lines
}

// recall fills in what an earlier run of the operation wrote down about the
// container that runs now.
func (r *Runner) recall(ctx context.Context, p NodePlan, container string, result *NodeResult) {
	var seen proof
	if raw := r.result(ctx, p.ID+"/milestones"); raw != nil && json.Unmarshal(raw, &seen) == nil && seen.Container == container {
		result.Milestones = seen.Milestones
	}
	var done host.ReplaceResult
	if raw := r.result(ctx, p.ID+"/replace"); raw != nil && json.Unmarshal(raw, &done) == nil && !done.StartedAt.IsZero() {
		down := done.StartedAt.Sub(done.StoppedAt).Seconds()
		result.DowntimeSeconds, result.Killed = &down, done.Killed
	}
}

func firstFailed(milestones []Milestone) *Milestone {
	for i, m := range milestones {
		if m.Verdict == string(observe.Fail) {
			return &milestones[i]
		}
	}
	return nil
}

func skipped(milestones []Milestone) bool {
	for _, m := range milestones {
		if m.Verdict == verdictSkipped {
			return true
		}
	}
	return false
}

func tail(lines []string, n int) []string {
	if len(lines) > n {
		return lines[len(lines)-n:]
	}
	return lines
}

func describe(s host.Situation) string {
	var parts []string
	for _, c := range []struct {
		role string
		c    *host.ContainerFacts
	}{{"current", s.Current}, {"aside", s.Aside}, {"next", s.Next}, {"failed", s.Failed}} {
		if c.c != nil {
			parts = append(parts, fmt.Sprintf("%s %s is %s", c.role, c.c.Name, c.c.State))
		}
	}
	if len(parts) == 0 {
		return "no container of this node is there"
	}
	return strings.Join(parts, ", ")
}

// bringupWait is how long a planned stop waits for bring-up: the node's SIGTERM
// handler exists only after it, so an earlier stop would not be flushed.
func (r *Runner) settled(ctx context.Context, p NodePlan) error {
	block := r.Fleet.Inventory().Block
	return r.until(ctx, p, "bringup", time.Duration(deadlineRPC)*block, func(ctx context.Context) (bool, string, error) {
		conn, err := reach(ctx, r.Fleet, p.ID)
		if err != nil {
			return false, "", err
		}
		c, err := conn.Inspect(ctx)
		if err != nil {
			return false, "", err
		}
		if !c.Running() || time.Since(c.StartedAt) >= time.Duration(deadlineRPC)*block {
			return true, "", nil
		}
		done, err := observe.SawLine(ctx, conn, p.Container, c.LogSince(), node.BringupComplete)
		return done, "the node is still starting; a stop now would not be flushed", err
	})
}
