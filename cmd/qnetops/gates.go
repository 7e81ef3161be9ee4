package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/gates"
	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/report"
)

func gatesCommand(s streams) *cli.Command {
	tip := &cli.StringFlag{Name: "tip", Usage: "height of the chain, `H` (default: the highest of the whole inventory)"}
	return &cli.Command{
		Name: "gates", Usage: "activation heights of the node's rules: list, propose, check a new build",
		Action: func(c *cli.Context) error {
			return &usageError{text: "gates needs one of: list, propose, check", hint: "qnetops gates list SOURCE; SOURCE is feature_gates.rs, a folder of the node's source, or FOLDER@COMMIT"}
		},
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "show the gates of a build and how far away they are", ArgsUsage: "SOURCE", Flags: []cli.Flag{tip},
				Action: func(c *cli.Context) error { return runGatesList(c, s) }},
			{Name: "propose", Usage: "the first height that a new gate may have", Flags: []cli.Flag{tip},
				Action: func(c *cli.Context) error { return runGatesPropose(c, s) }},
			{Name: "check", Usage: "judge the gates of a new build against the one that runs; exit 3 when it must not be rolled", ArgsUsage: "OLD NEW", Flags: []cli.Flag{tip},
				Action: func(c *cli.Context) error { return runGatesCheck(c, s) }},
		},
	}
}

// gateClock is what the distance to a gate is measured from.
type gateClock struct {
	tip   *uint64 // nil where nobody says
	block time.Duration
	now   time.Time
}

// expected is when a height is reached, for documents; all null where that cannot be said.
type expected struct {
	Blocks   *uint64    `json:"blocks"`
	At       *time.Time `json:"expected_at"`
	Earliest *time.Time `json:"earliest_at"`
}

func (k gateClock) expect(height *uint64) expected {
	if height == nil || k.tip == nil {
		return expected{}
	}
	e := gates.Expect(*height, *k.tip, k.block, k.now)
	if e == nil {
		return expected{}
	}
	at, earliest := e.At.Truncate(time.Second), e.Earliest.Truncate(time.Second)
	return expected{Blocks: &e.Blocks, At: &at, Earliest: &earliest}
}

func (e expected) cells() []string {
	if e.At == nil {
		return []string{"-", "-"}
	}
	return []string{fmt.Sprint(*e.Blocks), e.At.Format("2006-01-02 15:04Z")}
}

const catchUpNote = "times assume the normal pace; after a halt the chain may catch up to five times faster, so a gate can come as early as a fifth of that time"

// readTip takes the tip from --tip, else from the fleet. Without either, tip is nil.
func readTip(c *cli.Context, s streams, g globals) (gateClock, error) {
	k := gateClock{block: node.BlockTime, now: time.Now()}
	if text := c.String("tip"); text != "" {
		tip, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return k, &usageError{text: fmt.Sprintf("--tip %q is no height", text), hint: "a height is a whole number; underscores may stand in it"}
		}
		k.tip = &tip
		return k, nil
	}
	if _, err := os.Stat(g.hosts); errors.Is(err, fs.ErrNotExist) && !c.IsSet("hosts") {
		return k, nil
	}
	inv, f, err := openFleet(c.Context, s, g)
	if err != nil {
		return k, err
	}
	defer f.Close()
	k.block = inv.Block
	heights, failed := fleetHeights(c.Context, f)
	k.tip = highest(s, heights, failed)
	return k, c.Context.Err()
}

// fleetHeights asks every node of the inventory, also those that are no targets.
func fleetHeights(ctx context.Context, f *fleet.Fleet) (map[string]uint64, map[string]error) {
	var mu sync.Mutex
	heights := map[string]uint64{}
	failed := f.Each(ctx, func(ctx context.Context, conn *fleet.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		h, err := conn.Node().Healthz(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		heights[conn.Host().ID] = h.Height
		return nil
	})
	return heights, failed
}

// highest is the tip of the fleet. A node that does not answer may be ahead, and one that is far ahead of all others may lie:
// both are said, because everything is measured from here.
func highest(s streams, heights map[string]uint64, failed map[string]error) *uint64 {
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(s.err, "note: %s: no height: %v\n", id, failed[id])
	}
	if len(heights) == 0 {
		return nil
	}
	ids := slices.SortedFunc(maps.Keys(heights), func(a, b string) int {
		if heights[a] != heights[b] {
			if heights[a] > heights[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	tip := heights[ids[0]]
	if len(ids) > 1 && tip-heights[ids[1]] > node.EpochBlocks {
		fmt.Fprintf(s.err, "note: %s says %d, more than an epoch above every other node (next %s: %d); its word is the tip here, --tip overrides it\n", ids[0], tip, ids[1], heights[ids[1]])
	}
	return &tip
}

// needTip is readTip for commands that decide something.
func needTip(c *cli.Context, s streams, g globals) (gateClock, error) {
	k, err := readTip(c, s, g)
	if err != nil || k.tip != nil {
		return k, err
	}
	if _, err := os.Stat(g.hosts); err == nil {
		return k, errors.New("no node of the inventory says a height, so there is no tip to measure from")
	}
	return k, &usageError{text: "the tip is not known: there is no inventory and no --tip", hint: "give --tip H, or --hosts FILE to ask the fleet"}
}

// loadGates reads a source; one that cannot be read is the operator's to correct.
func loadGates(ctx context.Context, spec string) (gates.Set, error) {
	set, err := gates.Load(ctx, spec)
	var source *gates.SourceError
	if ctx.Err() == nil && errors.As(err, &source) {
		return set, &usageError{text: source.Error(), hint: source.Hint()}
	}
	return set, err
}

type gatesListDocument struct {
	Schema string     `json:"schema"`
	Source string     `json:"source"`
	Commit *string    `json:"commit"`
	Tip    *uint64    `json:"tip"`
	Gates  []gateLine `json:"gates"`
}

type gateLine struct {
	Feature string      `json:"feature"`
	Height  *uint64     `json:"height"`
	Epoch   *uint64     `json:"epoch"`
	State   gates.State `json:"state"`
	Line    int         `json:"line"`
	Const   string      `json:"constant"`
	File    string      `json:"file"`
	At      int         `json:"height_line"`
	expected
}

func runGatesList(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	spec, err := oneArgument(c, "source (feature_gates.rs, a folder, or FOLDER@COMMIT)")
	if err != nil {
		return err
	}
	set, err := loadGates(c.Context, spec)
	if err != nil {
		return err
	}
	k, err := readTip(c, s, g)
	if err != nil {
		return err
	}
	doc := gatesListDocument{Schema: "qnetops/gateslist/v1", Source: set.Source, Tip: k.tip, Gates: []gateLine{}}
	if set.Commit != "" {
		doc.Commit = &set.Commit
	}
	var bad tomlfile.Problems
	for _, gate := range set.Gates {
		line := gateLine{Feature: gate.Feature, Height: gate.Height, State: gate.State(k.tip), Line: gate.Line, Const: gate.Const, File: gate.File, At: gate.At, expected: k.expect(gate.Height)}
		if gate.Height != nil {
			epoch := *gate.Height / node.EpochBlocks
			line.Epoch = &epoch
		} else {
			bad = append(bad, tomlfile.Problem{File: set.Source, Line: gate.Line, Key: gate.Feature, What: gate.Why})
		}
		doc.Gates = append(doc.Gates, line)
	}
	if g.json {
		err = printJSON(s.out, doc)
	} else {
		err = printGates(s, doc)
	}
	if err == nil && len(bad) > 0 {
		err = bad
	}
	return err
}

func printGates(s streams, doc gatesListDocument) error {
	t := report.Table{Head: []string{"feature", "height", "epoch", "state", "blocks to go", "expected", "line"}}
	pending := false
	for _, l := range doc.Gates {
		height, epoch := "?", "?"
		if l.Height != nil {
			height, epoch = node.Underscored(*l.Height), fmt.Sprint(*l.Epoch)
		}
		pending = pending || l.State == gates.Pending
		t.Add(append(append([]string{l.Feature, height, epoch, string(l.State)}, l.cells()...), fmt.Sprint(l.Line))...)
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	if doc.Tip == nil {
		fmt.Fprintln(s.out, "no tip is known, so no state: give --tip H, or --hosts FILE to ask the fleet")
		return nil
	}
	fmt.Fprintf(s.out, "tip %s\n", node.Underscored(*doc.Tip))
	if pending {
		fmt.Fprintln(s.out, catchUpNote)
	}
	return nil
}

func runGatesPropose(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	if err := noArguments(c); err != nil {
		return err
	}
	k, err := needTip(c, s, g)
	if err != nil {
		return err
	}
	p, ok := gates.Propose(*k.tip)
	if !ok {
		return &usageError{text: fmt.Sprintf("above the tip %d there is no epoch boundary left", *k.tip), hint: "correct --tip"}
	}
	e := k.expect(&p.Height)
	if g.json {
		return printJSON(s.out, struct {
			Schema   string `json:"schema"`
			Tip      uint64 `json:"tip"`
			Gate     uint64 `json:"gate"`
			Epoch    uint64 `json:"epoch"`
			Ahead    uint64 `json:"ahead"`
			Rendered string `json:"rendered"`
			Lead     uint64 `json:"lead"`
			Margin   uint64 `json:"margin"`
			expected
		}{"qnetops/gatespropose/v1", *k.tip, p.Height, p.Epoch, p.Ahead, node.Underscored(p.Height), node.GateLead, node.GateMargin, e})
	}
	fmt.Fprintf(s.out, "%s\nepoch %d, %d blocks above the tip %d (lead %d); from %d blocks away on it is frozen\n", node.Underscored(p.Height), p.Epoch, p.Ahead, *k.tip, node.GateLead, node.GateMargin)
	if e.At != nil {
		fmt.Fprintf(s.out, "expected %s, not before %s\n%s\n", e.At.Format(time.RFC3339), e.Earliest.Format(time.RFC3339), catchUpNote)
	}
	return nil
}

type gateChange struct {
	gates.Change
	expected
}

type gatesCheckDocument struct {
	Schema   string          `json:"schema"`
	OK       bool            `json:"ok"`
	Tip      uint64          `json:"tip"`
	Old      string          `json:"old"`
	New      string          `json:"new"`
	Findings []gates.Finding `json:"findings"`
	Changes  []gateChange    `json:"changes"`
}

func runGatesCheck(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	if c.NArg() != 2 {
		return &usageError{text: fmt.Sprintf("gates check takes the running and the new source, got %d arguments", c.NArg()), hint: "qnetops gates check OLD NEW; each is feature_gates.rs, a folder of the node's source, or FOLDER@COMMIT"}
	}
	old, errOld := loadGates(c.Context, c.Args().Get(0))
	now, errNew := loadGates(c.Context, c.Args().Get(1))
	if err := errors.Join(errOld, errNew); err != nil {
		return err
	}
	k, err := needTip(c, s, g)
	if err != nil {
		return err
	}
	r := gates.Check(old, now, *k.tip)
	doc := gatesCheckDocument{Schema: "qnetops/gatescheck/v1", OK: r.OK(), Tip: *k.tip, Old: old.Source, New: now.Source, Findings: append([]gates.Finding{}, r.Findings...), Changes: []gateChange{}}
	for _, change := range r.Changes {
		doc.Changes = append(doc.Changes, gateChange{change, k.expect(change.New)})
	}
	if g.json {
		err = printJSON(s.out, doc)
	} else {
		err = printGatesCheck(s, doc, r)
	}
	if err == nil && !doc.OK {
		err = &refusal{text: "gates " + r.Summary(), hint: "keep the height of a crossed gate; put a new one where gates propose says"}
	}
	return err
}

func printGatesCheck(s streams, doc gatesCheckDocument, r gates.Report) error {
	if len(doc.Changes) > 0 {
		t := report.Table{Head: []string{"feature", "change", "old", "new", "blocks to go", "expected"}}
		for _, change := range doc.Changes {
			t.Add(append([]string{change.Feature, change.Kind, heightText(change.Old), heightText(change.New)}, change.cells()...)...)
		}
		if err := t.Write(s.out); err != nil {
			return err
		}
	}
	for _, f := range doc.Findings {
		fmt.Fprintf(s.out, "%s %s %s: %s\n", f.Severity, f.Code, f.Feature, f.Text)
	}
	fmt.Fprintf(s.out, "tip %s: %s\n", node.Underscored(doc.Tip), r.Summary())
	if len(doc.Changes) > 0 {
		fmt.Fprintln(s.out, catchUpNote)
	}
	return nil
}

func heightText(h *uint64) string {
	if h == nil {
		return "-"
	}
	return node.Underscored(*h)
}
