package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/observe"
)

// stepLimit bounds one local transaction as seen from here: the agent itself
// waits up to fifteen minutes for an engine that is away.
const stepLimit = 20 * time.Minute

// Runner runs a plan. It owns none of its parts.
type Runner struct {
	Fleet *fleet.Fleet
	Op    *journal.Op
	Lease lease.Lease
	Plan  Plan
	// Emit receives progress; it is called from several goroutines.
	Emit func(Event)
	// Of names the operation whose containers are meant, where that is another
	// one than Op (roll --finish); "" is Op itself.
	Of string

	// Waivers are counted beside those of the plan.
	Waivers []Waiver
	// Again says that a person took the operation up again, by resume or abort, and so
	// has seen what it waits for.
	Again bool
	// CheckBuild judges the stamp of the new image once it is known; nil: the
	// gates are not checked. What it refuses stops the roll before any node is.
	CheckBuild func(ctx context.Context, build string) error

	// Turn is asked last before a node is stopped; what it refuses stops the roll
	// with that node untouched. Nil: nothing more to ask.
	Turn func(ctx context.Context, p NodePlan) error
	// Back is called by Disarm when a node's old container runs again, before the
	// next node is touched; nil: nothing more is to be done.
	Back func(ctx context.Context, p NodePlan) error
	// Closing are the hosts of an operation that is closed as it stands: among these
	// the rules of --recovery-halted hold, whether or not the chain moves. Nil: it is
	// not closed.
	Closing []string
	// From is the height the chain stood at when every node was stopped; nil: it
	// runs, and the tip at each node's start counts.
	From *uint64

	// Among are the hosts that are on this run's chain: their heights and certificates
	// are the fleet's. What hosts of another chain show (a restart leaves some behind)
	// says nothing about a node's way back. Nil: all hosts.
	Among []string

	// NoPutBack never starts the old container again where a successor does not
	// start: after a cut-over it would write by rules that are left behind.
	NoPutBack bool

	// aborts says that the operation is being aborted, passed which hosts that goes past.
	aborts bool
	passed map[string]bool

	// electorate remembers the certificates read for the quorum arithmetic.
	electorate *observe.Electorate
	board      *board // of the nodes that are watched together
}

// among are the hosts whose word on heights and seals counts.
func (r *Runner) among() []string {
	if r.Among != nil {
		return r.Among
	}
	return r.Fleet.Inventory().IDs()
}

// of is the operation whose containers this run works on.
func (r *Runner) of() string {
	if r.Of != "" {
		return r.Of
	}
	return r.Op.ID()
}

// Outcomes of a roll and of one node in it.
const (
	OutcomeDone    = "done"
	OutcomeStopped = "stopped"
	OutcomeInDoubt = "in_doubt"

	NodeRolled    = "rolled"
	NodeRestored  = "restored"
	NodeHeld      = "held"
	NodeUntouched = "untouched"
)

// NodeResult is what became of one node.
type NodeResult struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	// DowntimeSeconds from the engine's own stop and start times; nil when the
	// node was not touched.
	DowntimeSeconds *float64    `json:"downtime_seconds"`
	Milestones      []Milestone `json:"milestones"`
	// Killed says that the old process did not end in its stop time.
	Killed  bool   `json:"killed"`
	Archive string `json:"archive,omitempty"`
}

// Document is the answer of roll and resume (qnetops/roll/v1).
type Document struct {
	Schema     string       `json:"schema"`
	Operation  string       `json:"operation"`
	PlanDigest string       `json:"plan_digest"`
	Outcome    string       `json:"outcome"`
	Nodes      []NodeResult `json:"nodes"`
}

// Run does the plan from wherever the fleet stands: a new roll and a resumed
// one take the same way, because every node is looked at first. The document
// is complete whatever the error.
func (r *Runner) Run(ctx context.Context) (Document, error) {
	doc := Document{Schema: docSchema, Operation: r.Op.ID(), PlanDigest: r.Plan.Digest(), Nodes: []NodeResult{}}
	for _, p := range r.Plan.Nodes {
		doc.Nodes = append(doc.Nodes, NodeResult{ID: p.ID, Outcome: NodeUntouched, Reason: p.ActionWhy, Milestones: []Milestone{}})
	}
	err := r.prepare(ctx)
	if err == nil {
		err = r.roll(ctx, &doc)
	}
	doc.Outcome = outcomeOf(err)
	return doc, err
}

func outcomeOf(err error) string {
	var doubt *InDoubtError
	switch {
	case err == nil:
		return OutcomeDone
	case errors.As(err, &doubt):
		return OutcomeInDoubt
	}
	return OutcomeStopped
}

// prepare pulls the image by digest on every host and stages every successor
// before the first node is stopped: what cannot be pulled, created or
// explained must be known while nothing has changed.
func (r *Runner) prepare(ctx context.Context) error {
	ids := r.targets()
	errs, diff := r.stageAll(ctx, ids)
	if ctx.Err() != nil {
		errs = append(errs, ctx.Err())
	}
	if len(diff) > 0 {
		errs = append(errs, &RefusedError{Checks: diff})
	}
	if err := errors.Join(errs...); err != nil {
		return r.backOut(ctx, ids, err)
	}
	return nil
}

// prepareNode pulls and stages one node unless it has gone past that.
func (r *Runner) prepareNode(ctx context.Context, p NodePlan) ([]observe.Check, error) {
	situation, err := r.situation(ctx, p)
	if err != nil {
		return nil, err
	}
	if stageOf(situation, p) != stageWaiting {
		return nil, nil
	}
	if r.Plan.Image.Digest != "" {
		if err := r.pull(ctx, p); err != nil {
			return nil, err
		}
	}
	report, err := r.stage(ctx, p)
	if err != nil {
		return nil, err
	}
	checks := explain(p, report, r.Plan)
	if r.CheckBuild != nil {
		if err := r.CheckBuild(ctx, report.NewBuild); err != nil {
			checks = append(checks, observe.Check{Name: "gates", Verdict: observe.Unknown, Reason: p.ID + ": " + err.Error()})
		}
	}
	return checks, nil
}

func (r *Runner) pull(ctx context.Context, p NodePlan) error {
	return r.step(ctx, p.ID, "pull", "pull "+p.ToDigest, func(ctx context.Context, w *host.Writer) (any, error) {
		image, err := w.Pull(ctx, p.ToDigest, func(progress host.PullProgress) {
			r.emit(Event{Node: p.ID, Kind: KindPull, Name: progress.Layer, State: progress.Status,
				Text: fmt.Sprintf("%d of %d bytes", progress.CurrentBytes, progress.TotalBytes)})
		})
		return image, err
	})
}

func (r *Runner) stage(ctx context.Context, p NodePlan) (host.StageReport, error) {
	var report host.StageReport
	err := r.step(ctx, p.ID, "stage", "create the successor, stopped, and compare", func(ctx context.Context, w *host.Writer) (any, error) {
		var err error
		report, err = w.Stage(ctx, host.StageRequest{Container: p.Container, ImageDigest: p.ToDigest,
			NextName: r.nextName(p), Operation: r.Op.ID(), SetEnv: r.Plan.Env, OneShot: r.Plan.oneShot()})
		return report, err
	})
	return report, err
}

// explain turns what a staged successor shows beyond the plan into refusals.
func explain(p NodePlan, report host.StageReport, plan Plan) []observe.Check {
	var out []observe.Check
	for _, d := range report.Unexplained {
		out = append(out, observe.Check{Name: "carry_over", Verdict: observe.Fail,
			Reason: fmt.Sprintf("%s: %s is %s in the successor and nothing in the plan explains it", p.ID, d.Path, d.Kind)})
	}
	if !report.DataDir.OK {
		out = append(out, observe.Check{Name: "data_dir", Verdict: observe.Fail, Reason: p.ID + ": " + report.DataDir.Why})
	}
	if report.OldID != p.ContainerID {
		out = append(out, observe.Check{Name: "container", Verdict: observe.Fail,
			Reason: p.ID + ": the container is not the one the plan was made for"})
	}
	if _, waived := plan.waived("build_stamp"); report.NewBuild == "" && !waived {
		out = append(out, observe.Check{Name: "build_stamp", Verdict: observe.Unknown,
			Reason: p.ID + ": the image carries no QNET_BUILD_ID, so M1 could never tell the new build from the old one"})
	}
	return out
}

// backOut leaves every host as it was found: staged successors are removed,
// nothing was stopped. A node that an earlier run already replaced stays.
func (r *Runner) backOut(ctx context.Context, ids []string, cause error) error {
	if r.touched(ctx) {
		return r.stopped("", cause)
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	eachOf(cleanup, ids, func(ctx context.Context, id string) {
		p := *r.Plan.Node(id)
		_ = r.clearStaged(ctx, p) // a leftover is found by the next plan's check "leftover"
	})
	r.note("backed out", cause.Error())
	if err := r.Op.Finish(cleanup, journal.Aborted, "nothing was changed: "+cause.Error()); err != nil {
		// A step is in doubt: a successor may be left on a host that is away.
		return r.stopped("", errors.Join(cause, err))
	}
	return cause
}

// engineComes is how long an engine that does not answer is waited for: one that is
// restarted is back by then, and one that is gone must keep nobody waiting.
const engineComes = time.Minute

// clearStaged removes what was staged on a host, waiting a while for an engine
// that is restarting: it may be why the staging failed.
func (r *Runner) clearStaged(ctx context.Context, p NodePlan) error {
	for began := time.Now(); ; {
		err := r.discardLost(ctx, p)
		if !errors.Is(err, host.ErrEngineAway) || time.Since(began) >= engineComes {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(3 * time.Second):
		}
	}
}

// waived returns the reason a check was waived with, now or in the plan.
func (r *Runner) waived(check string) (string, bool) {
	for _, w := range r.Waivers {
		if w.Check == check {
			return w.Reason, true
		}
	}
	return r.Plan.waived(check)
}

// touched says whether any node of this operation was ever stopped.
func (r *Runner) touched(ctx context.Context) bool {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return true // unknown is not fine
	}
	for _, s := range steps {
		if isStep(s.ID, "replace") {
			return true
		}
	}
	return false
}

// roll takes the nodes one after the other and never touches the next one
// after a failure.
func (r *Runner) roll(ctx context.Context, doc *Document) error {
	for i, p := range r.Plan.Nodes {
		if p.Action == ActionNone {
			continue
		}
		result, err := r.node(ctx, p)
		if err == nil {
			err = r.ClearFailed(ctx, p) // of an earlier attempt
		}
		doc.Nodes[i] = result
		if err != nil {
			return r.stopped(p.ID, err)
		}
	}
	return nil
}

// stopped wraps an error with what the operator needs to go on, unless it says
// already.
func (r *Runner) stopped(id string, err error) error {
	var (
		stopped *StoppedError
		doubt   *InDoubtError
	)
	if errors.As(err, &stopped) || errors.As(err, &doubt) || isFenced(err) || errors.Is(err, lease.ErrLost) {
		return err
	}
	return &StoppedError{Operation: r.Op.ID(), Node: id, Err: err, Interrupted: errors.Is(err, context.Canceled)}
}

// step runs one journaled change on one host: the lease is checked before it,
// the intent is on disk before the request leaves, and an interrupt lets it
// end instead of leaving it half known.
func (r *Runner) step(ctx context.Context, id, name, title string, do func(context.Context, *host.Writer) (any, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.Lease.Check(ctx); err != nil {
		return err
	}
	writer, err := r.writer(ctx, id)
	if err != nil {
		return err
	}
	stepID, err := r.freshStep(ctx, id+"/"+name)
	if err != nil {
		return err
	}
	r.emit(Event{Node: id, Kind: KindStep, Name: name, State: "begun", Text: title})
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
	defer cancel()
	err = r.Op.Do(bounded, journal.Step{ID: stepID, Title: title}, func(ctx context.Context) (any, error) {
		result, err := do(ctx, writer)
		if isGone(err) {
			err = fmt.Errorf("%w: %w", err, journal.ErrUnknownOutcome)
		}
		return result, err
	})
	if err != nil {
		r.emit(Event{Node: id, Kind: KindStep, Name: name, State: "failed", Text: err.Error()})
		return fmt.Errorf("%s: %w", name, err)
	}
	r.emit(Event{Node: id, Kind: KindStep, Name: name, State: "done", Text: title})
	return nil
}

// record journals something that was only looked at.
func (r *Runner) record(ctx context.Context, step, title string, result any) error {
	id, err := r.freshStep(ctx, step)
	if err != nil {
		return err
	}
	return r.Op.Do(context.WithoutCancel(ctx), journal.Step{ID: id, Title: title, Looks: true}, func(context.Context) (any, error) {
		return result, nil
	})
}

// freshStep numbers the attempts of a step that is done again, because a step
// that is done is never carried out twice under one id: 001/replace, then
// 001/replace#2 after the node was put back.
func (r *Runner) freshStep(ctx context.Context, base string) (string, error) {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return "", err
	}
	done := 0
	for _, s := range steps {
		if isStep(s.ID, base) && s.State == journal.StepDone {
			done++
		}
	}
	if done == 0 {
		return base, nil
	}
	return fmt.Sprintf("%s#%d", base, done+1), nil
}

// isStep says whether a step id is base or a later attempt of it; a base
// without a node matches the step of any node.
func isStep(id, base string) bool {
	id, _, _ = strings.Cut(id, "#")
	return id == base || strings.HasSuffix(id, "/"+base)
}

// result is the outcome of the newest finished attempt of a step, or nil.
func (r *Runner) result(ctx context.Context, base string) json.RawMessage {
	steps, err := r.Op.Steps(context.WithoutCancel(ctx))
	if err != nil {
		return nil
	}
	var newest json.RawMessage
	for _, s := range steps {
		if isStep(s.ID, base) && s.State == journal.StepDone {
			newest = s.Result
		}
	}
	return newest
}

func (r *Runner) writer(ctx context.Context, id string) (*host.Writer, error) {
	return writerOf(ctx, r.Fleet, id, r.Lease.Token())
}

func (r *Runner) situation(ctx context.Context, p NodePlan) (host.Situation, error) {
	agent, err := agentAgain(ctx, r.Fleet, p.ID)
	if err != nil {
		return host.Situation{}, err
	}
	return agent.Situation(ctx, p.Container, r.of())
}

func (r *Runner) emit(e Event) {
	if r.Emit == nil {
		return
	}
	e.At, e.Operation = time.Now(), r.Op.ID()
	r.Emit(e)
}

func (r *Runner) note(name, text string) {
	r.emit(Event{Kind: KindNote, Name: name, Text: text})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = r.Op.Note(ctx, name, map[string]string{"text": text}) // progress only; steps are what resume rests on
}

func (r *Runner) nextName(p NodePlan) string { return p.Container + "-next-" + r.suffix() }

// suffix is the part of the operation's id that tells its containers apart.
func (r *Runner) suffix() string {
	id := r.of()
	for i := len(id) - 1; i >= 0; i-- {
		if id[i] == '-' {
			return id[i+1:]
		}
	}
	return id
}

// LoadPlan reads the plan of a journaled roll.
func LoadPlan(raw json.RawMessage, digest string) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("reading the journaled plan: %w", err)
	}
	if have := p.Digest(); have != digest {
		return p, fmt.Errorf("the journaled plan has digest %.12s, its operation names %.12s: it was written by another version or changed", have, digest)
	}
	return p, nil
}
