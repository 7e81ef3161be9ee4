package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lease"
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
			&cli.StringFlag{Name: "source", Usage: "check activation heights: the builds are commits of the node's repository in `DIR`"},
			&cli.StringFlag{Name: "gates", Usage: "check activation heights between two sources: `OLD,NEW` (each feature_gates.rs, a folder, or FOLDER@COMMIT)"},
			&cli.StringFlag{Name: "finish", Usage: "archive and remove the old containers that operation `OP` kept"},
		},
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			if op := c.String("finish"); op != "" {
				if c.NArg() > 0 {
					return &usageError{text: "roll --finish OP takes no image", hint: "qnetops roll --help"}
				}
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
		if slices.ContainsFunc(spec.SetEnv, func(o host.EnvVar) bool { return o.Name == v.Name }) {
			faults = append(faults, "--set-env: "+v.Name+" is given twice")
		}
		spec.SetEnv = append(spec.SetEnv, v)
	}
	var err error
	if spec.Gates, err = readGateSource(c, spec.Image); err != nil {
		faults = append(faults, err.Error())
	}
	if spec.Image == "" && len(spec.SetEnv) == 0 && len(faults) == 0 {
		faults = append(faults, "roll needs an IMAGE, or --set-env to recreate each node on the image it has")
	}
	if len(faults) > 0 {
		return spec, &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops roll --help"}
	}
	return spec, nil
}

// readGateSource reads --source and --gates; nil: the gates are not checked.
func readGateSource(c *cli.Context, image string) (rolling.GateReader, error) {
	dir, pair := c.String("source"), c.String("gates")
	if !c.IsSet("source") && !c.IsSet("gates") {
		return nil, nil
	}
	if image == "" {
		return nil, errors.New("--source and --gates compare the running builds with a new IMAGE, and none is given")
	}
	if c.IsSet("source") && c.IsSet("gates") {
		return nil, errors.New("--source and --gates exclude each other: one finds the builds by their stamps, the other takes them as given")
	}
	if c.IsSet("source") {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("--source %q: want the folder of the node's git repository", dir)
		}
		return rolling.GatesFromSource{Dir: dir}, nil
	}
	old, now, ok := strings.Cut(pair, ",")
	if !ok || old == "" || now == "" || strings.Contains(now, ",") {
		return nil, fmt.Errorf("--gates %q: want OLD,NEW", pair)
	}
	for _, spec := range []string{old, now} {
		if _, err := loadGates(c.Context, spec); err != nil {
			return nil, fmt.Errorf("--gates: %w", err)
		}
	}
	return rolling.GatesFromFiles{Old: old, Now: now}, nil
}

// rollRun carries what one run of roll, resume, abort or restore works with.
type rollRun struct {
	s    streams
	g    globals
	inv  *fleet.Inventory
	ops  *rolling.Operations
	tell *teller
}

// withFleet opens fleet, journal and progress for a command that changes a
// fleet, and closes them after it.
func withFleet(ctx context.Context, s streams, g globals, fn func(*rollRun) error) error {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return err
	}
	defer db.Close()
	r := &rollRun{s: s, g: g, inv: inv, tell: newTeller(s, g, inv)}
	defer r.tell.close()
	r.ops = &rolling.Operations{Fleet: f, Store: store, Operator: operator(s), Waivers: g.waivers, Emit: r.tell.event, Began: r.tell.operation,
		Acquire: func(ctx context.Context) (lease.Lease, error) { return acquire(ctx, s, g, db, inv.Name) }}
	r.tell.say("reading the fences of %d hosts of fleet %s (a new agent is placed first where it is missing)", len(inv.Hosts), inv.Name)
	return fn(r)
}

func runRoll(ctx context.Context, s streams, g globals, spec rolling.Spec) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		if err := targets(r.inv, g, &spec); err != nil {
			return err
		}
		if spec.Image != "" {
			if _, err := rolling.ResolveRef(spec.Image, r.inv.Registry); err != nil {
				return &usageError{text: err.Error(), hint: strings.Join(hints(err), "; ")}
			}
		}
		if err := r.ops.Free(ctx); err != nil {
			return err
		}
		plan, err := r.propose(ctx, spec)
		if err != nil || g.dryRun {
			return err
		}
		if len(plan.Targets()) == 0 {
			return r.nothingToDo(plan)
		}
		if err := confirm(ctx, s, g, fmt.Sprintf("roll %d node(s) of fleet %s by plan %.12s?", len(plan.Targets()), r.inv.Name, plan.Digest())); err != nil {
			return err
		}
		doc, err := r.ops.Roll(ctx, spec, plan)
		return r.answer(doc, err)
	})
}

// answer prints the document of an operation that came to exist; a fault in
// printing it never hides what happened to the fleet.
func (r *rollRun) answer(doc rolling.Document, cause error) error {
	r.tell.close()
	if doc.Operation == "" {
		return cause
	}
	return errors.Join(cause, r.printDocument(doc, cause))
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
	if spec.Canary == "" || slices.Contains(spec.Targets, spec.Canary) {
		return nil
	}
	return &fleet.UnknownHostError{IDs: []string{spec.Canary}, Known: spec.Targets, Path: inv.Path + " (--canary)"}
}

// propose prints the plan with its checks and refuses it where they do.
func (r *rollRun) propose(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	r.tell.say("looking at the nodes")
	p, err := r.ops.Propose(ctx, spec)
	if err != nil {
		return p.Plan, err
	}
	if err := r.printPlan(p.Plan, p.Checks); err != nil {
		return p.Plan, err
	}
	if err := p.Refused(); err != nil {
		return p.Plan, err
	}
	if spec.RecoveryHalted {
		return p.Plan, r.ops.Standing(ctx)
	}
	return p.Plan, nil
}

func (r *rollRun) nothingToDo(plan rolling.Plan) error {
	r.tell.close()
	doc := rolling.Document{Schema: "qnetops/roll/v1", PlanDigest: plan.Digest(), Outcome: rolling.OutcomeDone, Nodes: []rolling.NodeResult{}}
	for _, p := range plan.Nodes {
		doc.Nodes = append(doc.Nodes, rolling.NodeResult{ID: p.ID, Outcome: rolling.NodeUntouched, Reason: p.ActionWhy, Milestones: []rolling.Milestone{}})
	}
	return r.printDocument(doc, nil)
}
