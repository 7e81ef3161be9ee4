package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/rolling"
)

func haltCommand(s streams) *cli.Command {
	at := func() cli.Flag {
		return &cli.StringFlag{Name: "at", Usage: "count down to this `TIME` (RFC 3339, UTC) and look again before it goes"}
	}
	policy := func() cli.Flag {
		return &cli.StringFlag{Name: "policy", Usage: "the restart policy the nodes get back, where no halt in the journal recorded it: `NAME`"}
	}
	return &cli.Command{
		Name:  "halt",
		Usage: "stop the whole fleet at a height, and start it again on another image",
		Description: "halt --height H arms every node, one by one, and returns when all have stopped at the height and can be started by\n" +
			"nothing but halt release IMAGE. Until the first node stops, halt disarm takes it back.",
		Flags: []cli.Flag{&cli.Uint64Flag{Name: "height", Usage: "stop at the first poll at or above height `H`"}, at()},
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			start, err := readAt(c, g)
			if err == nil && c.NArg() > 0 {
				err = &usageError{text: fmt.Sprintf("halt has no command %q", c.Args().First()), hint: "qnetops halt --help"}
			}
			if err == nil && c.Uint64("height") == 0 {
				err = &usageError{text: "halt needs --height H, above 0", hint: "qnetops status shows the heights; qnetops halt --help"}
			}
			if err != nil {
				return err
			}
			return runHalt(c.Context, s, g, c.Uint64("height"), start)
		},
		Subcommands: []*cli.Command{
			{Name: "status", Usage: "how every node stands: armed height, policy, stop height; reads only", Action: func(c *cli.Context) error {
				g, err := readGlobals(c, s)
				if err == nil {
					err = noArguments(c)
				}
				if err != nil {
					return err
				}
				return runHaltStatus(c.Context, s, g)
			}},
			{Name: "disarm", Usage: "take an armed halt back, node by node, before the first node has stopped", Flags: []cli.Flag{policy()}, Action: func(c *cli.Context) error {
				g, err := readGlobals(c, s)
				if err == nil {
					err = errors.Join(noArguments(c), knownPolicy(c.String("policy")))
				}
				if err != nil {
					return err
				}
				return runDisarm(c.Context, s, g, c.String("policy"))
			}},
			{Name: "release", Usage: "start the halted fleet on IMAGE, all nodes together", ArgsUsage: "IMAGE", Flags: []cli.Flag{at(), policy()}, Action: func(c *cli.Context) error {
				g, err := readGlobals(c, s)
				if err != nil {
					return err
				}
				image, err := oneArgument(c, "image")
				if err != nil {
					return err
				}
				start, err := readAt(c, g)
				if err == nil {
					err = knownPolicy(c.String("policy"))
				}
				if err != nil {
					return err
				}
				return runRelease(c.Context, s, g, cutover.ReleaseAsk{Ask: cutover.Ask{At: start}, Image: image, Policy: c.String("policy")})
			}},
		},
	}
}

// readAt reads --at and refuses what makes no sense for a cut-over.
func readAt(c *cli.Context, g globals) (time.Time, error) {
	if len(g.only) > 0 {
		return time.Time{}, &usageError{text: "a cut-over concerns the whole fleet: it takes no --only", hint: "leave single hosts out by name with --skip ID"}
	}
	text := c.String("at")
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if _, offset := at.Zone(); err != nil || offset != 0 {
		return time.Time{}, &usageError{text: fmt.Sprintf("--at %q: want a time in UTC such as 2030-01-02T15:04:05Z", text), hint: "date -u +%Y-%m-%dT%H:%M:%SZ shows the time now"}
	}
	return at, nil
}

func knownPolicy(name string) error {
	if slices.Contains([]string{"", "always", "unless-stopped", "on-failure"}, name) {
		return nil
	}
	return &usageError{text: fmt.Sprintf("--policy %q: want always, unless-stopped or on-failure", name), hint: "qnetops halt release --help"}
}

// ask fills in what every cut-over is asked with.
func (r *rollRun) ask(at time.Time) (cutover.Ask, error) {
	a := cutover.Ask{At: at, Skipped: r.g.skip, Waivers: r.g.waivers}
	hosts, err := r.inv.Select(nil, r.g.skip)
	for _, h := range hosts {
		a.Hosts = append(a.Hosts, h.ID)
	}
	return a, err
}

func (r *rollRun) cutovers() *cutover.Operations { return &cutover.Operations{Operations: r.ops} }

func runHalt(ctx context.Context, s streams, g globals, height uint64, at time.Time) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		base, err := r.ask(at)
		if err != nil {
			return err
		}
		ops, ask := r.cutovers(), cutover.HaltAsk{Ask: base, Height: height}
		if err := ops.Free(ctx); err != nil {
			return err
		}
		r.tell.say("looking at the nodes")
		p, err := ops.ProposeHalt(ctx, ask)
		if err != nil {
			return err
		}
		return r.carryOut(ctx, p, fmt.Sprintf("halt fleet %s at height %d", r.inv.Name, height), func() (cutover.Document, error) { return ops.Halt(ctx, ask, p.Plan) })
	})
}

func runRelease(ctx context.Context, s streams, g globals, ask cutover.ReleaseAsk) error {
	return withFleet(ctx, s, g, func(r *rollRun) (err error) {
		if ask.Ask, err = r.ask(ask.At); err != nil {
			return err
		}
		if _, err := rolling.ResolveRef(ask.Image, r.inv.Registry); err != nil {
			return &usageError{text: err.Error(), hint: strings.Join(hints(err), "; ")}
		}
		ops := r.cutovers()
		if err := ops.Free(ctx); err != nil {
			return err
		}
		r.tell.say("looking at the nodes")
		p, err := ops.ProposeRelease(ctx, ask)
		if err != nil {
			return err
		}
		return r.carryOut(ctx, p, fmt.Sprintf("start fleet %s on %s", r.inv.Name, ask.Image), func() (cutover.Document, error) { return ops.ReleaseHalt(ctx, ask, p.Plan) })
	})
}

// carryOut prints a cut-over's plan, refuses it where its checks do, asks, and runs it.
func (r *rollRun) carryOut(ctx context.Context, p cutover.Proposal, question string, run func() (cutover.Document, error)) error {
	if err := r.printCutover(p); err != nil {
		return err
	}
	if err := p.Refused(); err != nil || r.g.dryRun {
		return err
	}
	if err := confirm(ctx, r.s, r.g, fmt.Sprintf("%s by plan %.12s?", question, p.Plan.Digest())); err != nil {
		return err
	}
	doc, err := run()
	if leftAsFound(doc, err) {
		r.tell.close()
		return err
	}
	return r.answerCutover(doc, err)
}

// leftAsFound says of a first run that it was refused and left every host as it was found, which the error says: the document
// would tell of nodes that nobody touched. One that stopped later tells what it has done, whatever its reason was.
func leftAsFound(doc cutover.Document, cause error) bool {
	var (
		refused *rolling.RefusedError
		stopped *rolling.StoppedError
	)
	return errors.As(cause, &refused) && !errors.As(cause, &stopped) && !doc.Phases[0].Passed
}

// printCutover shows a plan: on stdout where it is the answer, on stderr where the
// answer is a JSON document.
func (r *rollRun) printCutover(p cutover.Proposal) error {
	if r.g.json && r.g.dryRun {
		return printJSON(r.s.out, struct {
			cutover.Plan
			Digest string `json:"digest"`
			Checks any    `json:"checks"`
		}{p.Plan, p.Plan.Digest(), p.Checks})
	}
	w := r.s.out
	if r.g.json {
		w = r.s.err
	}
	fmt.Fprintf(w, "plan %.12s: %s of fleet %s, hosts %s\n", p.Plan.Digest(), p.Plan.Kind, p.Plan.Fleet, strings.Join(p.Plan.Hosts, ","))
	if p.Plan.At != "" {
		fmt.Fprintf(w, "phase %s begins at %s\n", p.Plan.AtPhase, p.Plan.At)
	}
	t := report.Table{Head: []string{"phase", "does", "undone by"}}
	for _, phase := range p.Plan.Phases {
		t.Add(string(phase.Name), phase.Does, phase.Undo)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, phase := range p.Plan.Phases {
		if phase.NoReturn != "" {
			fmt.Fprintf(w, "POINT OF NO RETURN in phase %s: %s\n", phase.Name, phase.NoReturn)
		}
	}
	fmt.Fprintf(w, "each phase begins when every host has finished the one before; asked for: %s (committee of %d, quorum %d)\n",
		p.Plan.Threshold.Rule, p.Plan.Committee.Size, p.Plan.Committee.Quorum)
	printPolicies(w, p.Plan)
	printChecks(w, p.Checks, rolling.Plan{Waivers: p.Plan.Waivers})
	return nil
}

// printPolicies says which restart policies the nodes have now, or get back.
func printPolicies(w io.Writer, p cutover.Plan) {
	var nodes []rolling.NodePlan
	title := "restart policies recorded, to be given back by the release"
	switch {
	case p.Halt != nil:
		nodes = p.Halt.Roll.Nodes
	case p.Release != nil:
		nodes, title = p.Release.Roll.Nodes, "restart policies given back"
	case p.Rollback != nil:
		nodes, title = p.Rollback.Roll.Nodes, "restart policies recorded, given back in phase release"
	}
	var parts []string
	for _, n := range nodes {
		policy := n.Policy
		if p.Release != nil {
			policy = n.NextPolicy
		}
		if policy != nil {
			parts = append(parts, n.ID+" "+policy.Name)
		}
	}
	if len(parts) > 0 {
		fmt.Fprintf(w, "%s: %s\n", title, strings.Join(parts, ", "))
	}
}

// answerCutover prints the document of a cut-over that came to exist.
func (r *rollRun) answerCutover(doc cutover.Document, cause error) error {
	r.tell.close()
	if doc.Operation == "" {
		return cause // it never came to exist
	}
	if r.g.json {
		return errors.Join(cause, printJSON(r.s.out, doc))
	}
	if doc.Kind == cutover.KindRollback || doc.Kind == cutover.KindDecree {
		return errors.Join(cause, r.printWentOn(doc))
	}
	t := report.Table{Head: []string{"host", "state", "stop height", "flushed", "policy", "M0", "M1", "M2", "M3", "M4", "what was seen"}}
	for _, h := range doc.Hosts {
		row := []string{h.ID, string(h.State), blocksWord(h.StopHeight), flushedWord(h.Flushed), orDash(h.RestartPolicy)}
		for i := range 5 {
			cell := "-"
			if i < len(h.Milestones) {
				cell = strings.TrimSuffix(h.Milestones[i].Verdict+" "+seconds(h.Milestones[i].Seconds), " -")
			}
			row = append(row, cell)
		}
		t.Add(append(row, firstLine(h.Text))...)
	}
	err := t.Write(r.s.out)
	fmt.Fprintln(r.s.out, cutoverLine(doc))
	if next := nextOfCutover(doc); next != "" {
		fmt.Fprintln(r.s.out, "next: "+next)
	}
	return errors.Join(cause, err)
}

// nextOfCutover is the command that comes after a cut-over that is done.
func nextOfCutover(doc cutover.Document) string {
	if doc.Outcome != rolling.OutcomeDone {
		return "" // the error has a hint
	}
	switch doc.Kind {
	case cutover.KindHalt:
		return "qnetops halt release IMAGE starts the fleet, with the image it has where nothing is to change; until then it stays down"
	case cutover.KindRestart:
		return "qnetops restart verify --allowed-signers FILE FOLDER shows whether the chain goes on"
	case cutover.KindRelease, cutover.KindUnbar:
		return "qnetops status --check"
	}
	return ""
}

func cutoverLine(doc cutover.Document) string {
	passed, next := 0, ""
	for _, p := range doc.Phases {
		if p.Passed {
			passed++
		} else if next == "" {
			next = string(p.Name)
		}
	}
	line := fmt.Sprintf("%s: operation %s, %d of %d phases", strings.ReplaceAll(doc.Outcome, "_", " "), doc.Operation, passed, len(doc.Phases))
	if doc.Outcome != rolling.OutcomeDone && next != "" {
		line += ", before the end of " + next
	}
	if doc.Spread != nil {
		line += fmt.Sprintf(", stop heights %d blocks apart", *doc.Spread)
	}
	return line
}

func blocksWord(v *uint64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

func flushedWord(v *bool) string {
	switch {
	case v == nil:
		return "-"
	case *v:
		return "yes"
	}
	return "no"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func runHaltStatus(ctx context.Context, s streams, g globals) error {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	hosts, err := inv.Select(g.only, g.skip)
	if err != nil {
		return err
	}
	var ids []string
	for _, h := range hosts {
		ids = append(ids, h.ID)
	}
	doc := cutover.LookHalt(ctx, f, ids)
	if err := ctx.Err(); err != nil {
		return err
	}
	if g.json {
		return printJSON(s.out, doc)
	}
	t := report.Table{Head: []string{"host", "armed height", "policy", "state", "height", "blocks left", "time left", "stop height", "flushed", "reason"}}
	for _, n := range doc.Nodes {
		armed := blocksWord(n.ArmedHeight)
		if n.ArmedHeight == nil && n.Armed != nil && *n.Armed {
			armed = "?"
		}
		state := orDash(n.State)
		if n.State == "exited" {
			state = fmt.Sprintf("exited (%d)", n.ExitCode)
		}
		t.Add(n.ID, armed, orDash(n.RestartPolicy), state, blocksWord(n.Height), blocksWord(n.BlocksLeft), timeLeft(n.BlocksLeft, inv.Block), blocksWord(n.StopHeight), flushedWord(n.Flushed), firstLine(n.Reason))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	if doc.Spread != nil {
		fmt.Fprintf(s.out, "stop heights are %d blocks apart\n", *doc.Spread)
	}
	return nil
}

// timeLeft is how long so many blocks take.
func timeLeft(blocks *uint64, block time.Duration) string {
	if blocks == nil {
		return "-"
	}
	return (time.Duration(*blocks) * block).Round(time.Second).String()
}

// halting is the refusal to disarm while the halt runs. To wait for that to end, as is advised elsewhere, would pass the point
// of no return.
type halting struct{ *lease.HeldError }

func (e *halting) Unwrap() error { return e.HeldError }

// Hint says what to do next.
func (e *halting) Hint() string {
	return "nothing was changed; do not wait: interrupt the qnetops halt that runs (Ctrl-C, it is journaled), then qnetops halt disarm"
}

// runDisarm takes a halt under way back, as abort does. Where the journal knows of
// none, what is armed is rolled back to a container without the variable.
func runDisarm(ctx context.Context, s streams, g globals, policy string) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		ops := r.cutovers()
		open, err := ops.OpenHalt(ctx)
		if err != nil {
			return err
		}
		if open != "" {
			if g.dryRun {
				r.tell.say("halt %s would be taken back node by node, the last armed first", open)
				return nil
			}
			if err := confirm(ctx, s, g, fmt.Sprintf("disarm the nodes that %s armed, one by one?", open)); err != nil {
				return err
			}
			doc, err := ops.Abort(ctx, open)
			if held := (*lease.HeldError)(nil); errors.As(err, &held) {
				return &halting{held}
			}
			return r.answerCutover(doc, err)
		}
		return r.disarmByRoll(ctx, ops, policy)
	})
}

// disarmByRoll recreates each armed node from its own image without the variable.
func (r *rollRun) disarmByRoll(ctx context.Context, ops *cutover.Operations, policy string) error {
	if err := ops.Free(ctx); err != nil {
		return err
	}
	spec := rolling.Spec{Waivers: r.g.waivers, Skipped: r.g.skip, Policies: map[string]host.Policy{}}
	_, recorded, err := ops.Recorded(ctx)
	if err != nil {
		return err
	}
	for _, n := range cutover.LookHalt(ctx, ops.Fleet, r.inv.IDs()).Nodes {
		if n.Armed == nil || !*n.Armed || slices.Contains(r.g.skip, n.ID) {
			continue
		}
		if n.State != "running" {
			return &refusal{text: fmt.Sprintf("host %s: its armed node is %s: what has stopped is not disarmed", n.ID, n.State), hint: "qnetops halt release IMAGE starts a halted fleet"}
		}
		spec.Targets = append(spec.Targets, n.ID)
		back, known := recorded[n.ID]
		if policy != "" {
			back, known = host.Policy{Name: policy}, true
		}
		if !known {
			return &refusal{text: fmt.Sprintf("host %s: no halt in this journal recorded its restart policy", n.ID), hint: "name the policy with --policy always"}
		}
		spec.Policies[n.ID] = back
	}
	if len(spec.Targets) == 0 {
		r.tell.say("no reachable node is armed: nothing to do")
		return nil
	}
	plan, err := r.propose(ctx, spec)
	if err != nil || r.g.dryRun {
		return err
	}
	if err := confirm(ctx, r.s, r.g, fmt.Sprintf("disarm %d node(s) by plan %.12s?", len(plan.Targets()), plan.Digest())); err != nil {
		return err
	}
	doc, err := r.ops.Roll(ctx, spec, plan)
	return r.answer(doc, err)
}
