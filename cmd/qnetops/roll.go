package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

func rollCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:      "roll",
		Usage:     "replace the container of each node, one node at a time, proving each is back in the chain",
		ArgsUsage: "[IMAGE]",
		Description: "Without IMAGE each node keeps its present digest (for --set-env). The plan is printed with its digest and asked for;\n" +
			"a node is stopped only when the others reach quorum without it, and the next one only when this one passed M0 to M4.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "set-env", Usage: "set a public variable on the successor: `NAME=VALUE` (repeatable)"},
			&cli.StringFlag{Name: "canary", Usage: "roll this node first (after unhealthy ones): `ID`"},
			&cli.StringFlag{Name: "on-fail", Value: "restore", Usage: "what happens to a node that fails M0 or M1: restore or hold"},
			&cli.BoolFlag{Name: "recovery-halted", Usage: "the chain stands: skip M3 and M4, one node at a time with all others reachable"},
			&cli.StringFlag{Name: "finish", Usage: "archive and remove the old containers that operation `OP` kept"},
		},
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			if op := c.String("finish"); op != "" {
				return runFinish(c.Context, s, g, op)
			}
			spec, err := readRollSpec(c, s, g)
			if err != nil {
				return err
			}
			return runRoll(c.Context, s, g, spec)
		},
	}
}

// readRollSpec checks the flags of roll; all faults at once.
func readRollSpec(c *cli.Context, s streams, g globals) (rolling.Spec, error) {
	spec := rolling.Spec{Image: c.Args().First(), Canary: c.String("canary"), RecoveryHalted: c.Bool("recovery-halted"),
		Waivers: g.waivers, Skipped: g.skip}
	var faults []string
	if c.NArg() > 1 {
		faults = append(faults, fmt.Sprintf("roll takes one image, got %q", c.Args().Slice()))
	}
	switch c.String("on-fail") {
	case "hold":
		spec.HoldOnFail = true
	case "restore":
	default:
		faults = append(faults, fmt.Sprintf("--on-fail %q: want restore or hold", c.String("on-fail")))
	}
	for _, assignment := range c.StringSlice("set-env") {
		v, err := rolling.ParseSetEnv(assignment)
		if err != nil {
			faults = append(faults, "--set-env: "+err.Error())
			continue
		}
		spec.SetEnv = append(spec.SetEnv, v)
	}
	if spec.Image == "" && len(spec.SetEnv) == 0 && len(faults) == 0 {
		faults = append(faults, "roll needs an IMAGE, or --set-env to recreate each node on the image it has")
	}
	if len(faults) > 0 {
		return spec, &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops roll --help"}
	}
	return spec, nil
}

// rollRun carries what one run of roll, resume or abort works with.
type rollRun struct {
	s     streams
	g     globals
	inv   *fleet.Inventory
	fleet *fleet.Fleet
	tell  *teller
}

func runRoll(ctx context.Context, s streams, g globals, spec rolling.Spec) error {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := targets(inv, g, &spec); err != nil {
		return err
	}
	r := &rollRun{s: s, g: g, inv: inv, fleet: f, tell: newTeller(s, g, inv)}
	defer r.tell.close()
	r.tell.say("reading the fences of %d hosts of fleet %s (a new agent is placed first where it is missing)", len(inv.Hosts), inv.Name)
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := rolling.ReadFences(ctx, f, store.ID()); err != nil {
		return err
	}
	if err := unfinished(ctx, store, inv.Name); err != nil {
		return err
	}
	plan, err := r.propose(ctx, spec)
	if err != nil || g.dryRun {
		return err
	}
	if len(plan.Targets()) == 0 {
		return r.nothingToDo(plan)
	}
	if err := confirm(ctx, s, g, fmt.Sprintf("roll %d node(s) of fleet %s by plan %.12s?", len(plan.Targets()), inv.Name, plan.Digest())); err != nil {
		return err
	}
	return r.withLease(ctx, db, store, func(ctx context.Context, held *mutation) error {
		return r.start(ctx, held, spec, plan)
	})
}

// targets fills in the ids to roll.
func targets(inv *fleet.Inventory, g globals, spec *rolling.Spec) error {
	hosts, err := inv.Select(g.only, g.skip)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		spec.Targets = append(spec.Targets, h.ID)
	}
	if spec.Canary == "" {
		return nil
	}
	for _, id := range spec.Targets {
		if id == spec.Canary {
			return nil
		}
	}
	return &fleet.UnknownHostError{IDs: []string{spec.Canary}, Known: spec.Targets, Path: inv.Path + " (--canary)"}
}

// unfinished refuses early; Begin decides for good.
func unfinished(ctx context.Context, store *journal.Store, name string) error {
	records, err := store.List(ctx, name)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if !rec.State.Finished() {
			return &journal.UnfinishedError{ID: rec.ID, Kind: rec.Kind, State: rec.State}
		}
	}
	return nil
}

// look observes, gathers and decides: the same three steps before the question
// and again under the lease.
func (r *rollRun) look(ctx context.Context, spec rolling.Spec) (observe.View, rolling.Inputs, rolling.Plan, error) {
	view, err := observe.Observe(ctx, r.fleet, observe.Options{})
	if err != nil {
		return view, rolling.Inputs{}, rolling.Plan{}, err
	}
	in, err := rolling.Gather(ctx, r.fleet, spec)
	if err != nil {
		return view, in, rolling.Plan{}, err
	}
	return view, in, rolling.New(view, in, spec), nil
}

// propose prints the plan with its checks and refuses it where they do.
func (r *rollRun) propose(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	r.tell.say("looking at the nodes")
	view, in, plan, err := r.look(ctx, spec)
	if err != nil {
		return plan, err
	}
	checks := rolling.Preflight(view, in, plan)
	if len(plan.Targets()) > 0 {
		checks = append(checks, r.voters(ctx, plan)...)
	}
	if err := r.printPlan(plan, checks); err != nil {
		return plan, err
	}
	if refused := rolling.Refusals(checks, plan); len(refused) > 0 {
		return plan, &rolling.RefusedError{Checks: refused}
	}
	if spec.RecoveryHalted {
		return plan, rolling.Halted(ctx, func(ctx context.Context) (observe.View, error) {
			return observe.Observe(ctx, r.fleet, observe.Options{})
		}, r.inv.Block)
	}
	return plan, nil
}

// voters shows the quorum arithmetic of the first node; every node's own is
// measured again at its turn. Only arithmetic that could never hold refuses.
func (r *rollRun) voters(ctx context.Context, plan rolling.Plan) []observe.Check {
	if plan.RecoveryHalted {
		return nil
	}
	first := plan.Targets()[0]
	c := observe.Check{Name: "quorum", Verdict: observe.Unknown}
	voters, err := observe.Quorum(ctx, r.fleet, first.ID)
	if err != nil {
		c.Reason = err.Error()
		return []observe.Check{c}
	}
	c.Reason = fmt.Sprintf("committee of %d (window %d), quorum %d; %d vote without %s",
		len(voters.Committee.Members), voters.Committee.Index, voters.Committee.Quorum, voters.Count, first.ID)
	c.Verdict = observe.Pass
	if !voters.Enough() {
		c.Verdict = observe.Fail
		c.Reason += "; not counted: " + strings.Join(voters.Missing(), ", ")
	}
	return []observe.Check{c}
}

// start begins the operation under the lease: the fleet is looked at again and
// the plan must come out the same, or nothing is done.
func (r *rollRun) start(ctx context.Context, held *mutation, spec rolling.Spec, plan rolling.Plan) error {
	raw, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	op, err := held.store.Begin(ctx, journal.Spec{Kind: "roll", Fleet: r.inv.Name, Operator: operator(r.s), Epoch: held.lease.Token().Epoch,
		Plan: raw, PlanDigest: plan.Digest(), Waivers: waivers(r.s, plan)})
	if err != nil {
		return err
	}
	r.tell.operation(op.ID())
	if err := held.fence(ctx, r.fleet, op.ID(), ids(plan)); err != nil {
		_ = op.Finish(context.WithoutCancel(ctx), journal.Aborted, "the fence was refused, nothing was changed: "+err.Error())
		return err
	}
	_, _, again, err := r.look(ctx, spec)
	if err == nil && again.Digest() != plan.Digest() {
		err = &rolling.PlanChangedError{Printed: plan.Digest(), Now: again.Digest()}
	}
	if err != nil {
		_ = op.Finish(context.WithoutCancel(ctx), journal.Aborted, "nothing was changed: "+err.Error())
		return errors.Join(err, held.unfence(ctx, r.fleet))
	}
	runner := &rolling.Runner{Fleet: r.fleet, Op: op, Lease: held.lease, Plan: plan, Emit: r.tell.event}
	doc, err := runner.Run(ctx)
	return r.end(ctx, held, op, doc, err)
}

func ids(plan rolling.Plan) []string {
	var out []string
	for _, p := range plan.Targets() {
		out = append(out, p.ID)
	}
	return out
}

func waivers(s streams, plan rolling.Plan) []journal.Waiver {
	var out []journal.Waiver
	for _, w := range plan.Waivers {
		out = append(out, journal.Waiver{Check: w.Check, Reason: w.Reason, By: operator(s)})
	}
	return out
}

// end looks at the fleet once more: the exit code and the last line come from
// what is there now, not from what was intended.
func (r *rollRun) end(ctx context.Context, held *mutation, op *journal.Op, doc rolling.Document, cause error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	plan, err := journaledPlan(ctx, op)
	if err == nil && cause == nil {
		cause = r.verify(ctx, op.ID(), plan, &doc)
	}
	record, err := op.Record(ctx)
	if err == nil && !record.State.Finished() {
		state, summary := journal.Done, "every node passed its milestones"
		if cause != nil {
			state, summary = stateOf(cause), cause.Error()
		}
		if err := op.Finish(ctx, state, summary); err != nil {
			cause = errors.Join(cause, err)
		} else {
			record.State = state
		}
	}
	if record.State.Finished() {
		cause = errors.Join(cause, held.unfence(ctx, r.fleet))
	}
	r.tell.close()
	if err := r.printDocument(doc, cause); err != nil {
		return err
	}
	return cause
}

func stateOf(cause error) journal.State {
	var doubt *rolling.InDoubtError
	if errors.As(cause, &doubt) {
		return journal.InDoubt
	}
	return journal.Stopped
}

// verify compares the last look with the plan.
func (r *rollRun) verify(ctx context.Context, op string, plan rolling.Plan, doc *rolling.Document) error {
	view, err := observe.Observe(ctx, r.fleet, observe.Options{})
	if err != nil {
		return &rolling.StoppedError{Operation: op, Reason: "the last look at the fleet failed", Err: err}
	}
	if wrong := rolling.Compare(view, plan); len(wrong) > 0 {
		doc.Outcome = rolling.OutcomeStopped
		return &rolling.StoppedError{Operation: op, Reason: "the last look at the fleet shows something else than the plan: " + strings.Join(wrong, "; ")}
	}
	r.tell.say("fleet %s is %s", view.Fleet, view.Verdict)
	return nil
}

func (r *rollRun) nothingToDo(plan rolling.Plan) error {
	doc := rolling.Document{Schema: "qnetops/roll/v1", PlanDigest: plan.Digest(), Outcome: rolling.OutcomeDone, Nodes: []rolling.NodeResult{}}
	for _, p := range plan.Nodes {
		doc.Nodes = append(doc.Nodes, rolling.NodeResult{ID: p.ID, Outcome: rolling.NodeUntouched, Reason: p.ActionWhy, Milestones: []rolling.Milestone{}})
	}
	return r.printDocument(doc, nil)
}

func journaledPlan(ctx context.Context, op *journal.Op) (rolling.Plan, error) {
	record, err := op.Record(ctx)
	if err != nil {
		return rolling.Plan{}, err
	}
	if record.Kind != "roll" {
		return rolling.Plan{}, &refusal{text: fmt.Sprintf("operation %s is a %s, not a roll", record.ID, record.Kind)}
	}
	return rolling.LoadPlan(record.Plan, record.PlanDigest)
}
