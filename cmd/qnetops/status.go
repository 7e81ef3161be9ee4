package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
)

// foldAbove is the fleet size from which nodes that look the same share a row;
// below it a row for each is easier to read.
const foldAbove = 16

func statusCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show every node and the fleet's verdict",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "check", Usage: "exit 3 unless the fleet is healthy"}},
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			if err := noArguments(c); err != nil {
				return err
			}
			return runStatus(c, s, g)
		},
	}
}

func runStatus(c *cli.Context, s streams, g globals) error {
	defer sparing(s)()
	inv, f, err := openFleet(c.Context, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	var (
		open    []observe.StatusOperation
		unknown error
		journal sync.WaitGroup
	)
	journal.Go(func() { open, unknown = openOperations(c.Context, g, inv.Name) })
	view, err := observe.Observe(c.Context, f, observe.Options{})
	journal.Wait()
	if err != nil {
		return err
	}
	shown := chosen(view, g)
	if g.json {
		doc := shown.Document()
		doc.Open = open
		err = printJSON(s.out, doc)
	} else if err = printStatus(s.out, shown, g.verbose); err == nil {
		printOpen(s.out, open)
	}
	if err != nil {
		return err
	}
	if unknown != nil {
		fmt.Fprintf(s.err, "note: whether an operation is unfinished is not known: %v\n", unknown)
	}
	if c.Bool("check") && view.Verdict != observe.Healthy {
		return &refusal{text: fmt.Sprintf("fleet %s is %s", view.Fleet, view.Verdict), hint: "RUNBOOK.md, exit code 3; qnetops hosts check looks at the hosts themselves"}
	}
	return nil
}

// garbagePercent is how much garbage may lie beside what is in use. Nearly all of
// an answer is garbage once it is judged, so little of it is worth keeping: hundreds
// of hosts fit into half the memory, at no processor time that could be measured.
const garbagePercent = 30

// sparing keeps memory low until the returned function is called, unless the
// operator chose a value (GOGC).
func sparing(s streams) func() {
	if s.getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(garbagePercent)
	return func() { debug.SetGCPercent(before) }
}

// chosen narrows what is shown; the verdict is always the whole fleet's.
func chosen(view observe.View, g globals) observe.View {
	if len(g.only)+len(g.skip) == 0 {
		return view
	}
	var nodes []observe.NodeView
	for _, n := range view.Nodes {
		if (len(g.only) == 0 || contains(g.only, n.ID)) && !contains(g.skip, n.ID) {
			nodes = append(nodes, n)
		}
	}
	view.Nodes = nodes
	return view
}

func contains(list []string, id string) bool {
	for _, v := range list {
		if v == id {
			return true
		}
	}
	return false
}

func printStatus(w io.Writer, view observe.View, verbose bool) error {
	t := report.Table{Head: []string{"node", "verdict", "height", "behind", "sealed", "lag", "peers", "round", "build", "image", "state", "restarts", "policy", "clock", "disk free"}}
	for _, g := range groups(view, verbose) {
		n := g.First
		image, state, restarts, policy := "?", "?", "?", "?"
		if c := n.Container; c != nil {
			image, state, policy = c.Image, c.State, c.RestartPolicy
			if c.Digest != "" {
				image = shortDigest(c.Digest)
			}
			if c.RestartCount != nil {
				restarts = fmt.Sprint(*c.RestartCount)
			}
		}
		t.Add(strings.Join(g.IDs, ","), string(n.Verdict), g.Height.String(), g.Behind.String(), g.LastSealed.String(), g.SealedLag.String(),
			g.ValidatedPeers.String(), g.TimeoutRound.String(), unknown(n.Build), image, state, restarts, policy, clock(g.ClockOffset), disk(n.Disk))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, n := range view.Nodes {
		for _, reason := range n.Reasons {
			said := slices.ContainsFunc(view.Reasons, func(of string) bool { return strings.Contains(of, n.ID) && strings.Contains(of, reason) })
			if n.Verdict != observe.Healthy && !said {
				fmt.Fprintf(w, "%s is %s: %s\n", n.ID, n.Verdict, reason)
			}
		}
	}
	for _, o := range observe.Odd(view) {
		fmt.Fprintf(w, "odd: %s: %s\n", strings.Join(o.IDs, ","), strings.Join(o.Differences, "; "))
	}
	printNotes(w, view)
	if view.Seal != nil && view.Seal.Quorum > 0 {
		fmt.Fprintf(w, "newest common seal: macroblock %d, committee of %d, quorum %d\n", view.Seal.Index, len(view.Seal.Committee), view.Seal.Quorum)
	}
	fmt.Fprintf(w, "fleet %s is %s\n", view.Fleet, view.Verdict)
	for _, reason := range view.Reasons {
		fmt.Fprintf(w, "  %s\n", reason)
	}
	if view.Verdict == observe.Halted {
		fmt.Fprintln(w, "next: qnetops halt status shows where each node stopped; qnetops halt release IMAGE starts the fleet")
	}
	return nil
}

// groups folds a large fleet; a small one keeps a row a node.
func groups(view observe.View, verbose bool) []observe.Group {
	if len(view.Nodes) > foldAbove && !verbose {
		return observe.Fold(view)
	}
	var out []observe.Group
	for _, n := range view.Nodes {
		one := view
		one.Nodes = []observe.NodeView{n}
		out = append(out, observe.Fold(one)...)
	}
	return out
}

// printNotes names every check that does not pass, folding nodes of which the
// same is said: one-shot variables and a second updater nag in every status.
func printNotes(w io.Writer, view observe.View) {
	var order []string
	nodes := map[string][]string{}
	for _, n := range view.Nodes {
		if !n.Reachable {
			continue
		}
		for _, c := range observe.NodeChecks(n) {
			if c.Verdict == observe.Pass {
				continue
			}
			text := fmt.Sprintf("%s %s: %s", c.Name, c.Verdict, c.Reason)
			if nodes[text] == nil {
				order = append(order, text)
			}
			nodes[text] = append(nodes[text], n.ID)
		}
	}
	for _, text := range order {
		fmt.Fprintf(w, "check %s (%s)\n", text, strings.Join(nodes[text], ","))
	}
}

func unknown(v *string) string {
	if v == nil {
		return "?"
	}
	return *v
}

func clock(d *time.Duration) string {
	if d == nil {
		return "?"
	}
	return d.Round(time.Millisecond).String()
}

func disk(d *observe.DiskView) string {
	if d == nil {
		return "?"
	}
	return fmt.Sprintf("%.0f GB", float64(d.FreeBytes)/1e9)
}
