package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// script is one rehearsal.
type script struct {
	name, title, usage string
	// block is the block time of the lab where none is given: short where long waits are measured in blocks.
	block time.Duration
	play  func(*rehearsal, context.Context)
}

// scripts are the rehearsals in the order of `rehearse all`, the most frequent job first.
func scripts() []script {
	return []script{
		{"roll", "a roll", "qnet:v1 to qnet:v2, then an image that crashes and is put back", 20 * time.Millisecond, (*rehearsal).roll},
		{"halt", "a halt", "a halt at a height with an engine that restarts in the middle, then the release on qnet:v2", 10 * time.Millisecond, (*rehearsal).halt},
		{"rollback", "a rollback and a decree", "a fleet that stalls above its last seal goes back, once by its variable and once by a decree", 10 * time.Millisecond, (*rehearsal).rollback},
		{"restart", "a coordinated restart", "from a stall to evidence, K, a record, its execution and new seals; with a node on stale data and a malformed manifest",
			5 * time.Millisecond, (*rehearsal).restart},
	}
}

// The bounds of a rehearsal's lab: below five nodes one failure is a stall.
const (
	leastRehearsed = 5
	mostRehearsed  = 100
)

func rehearseCommand(s streams) *cli.Command {
	flags := func() []cli.Flag {
		return []cli.Flag{
			&cli.StringFlag{Name: "report", Usage: "write the timeline to `FILE` (Markdown)"},
			&cli.DurationFlag{Name: "block", Usage: "block `TIME` of the lab, with which all times of its nodes scale (default: 20ms for roll, 10ms for halt and rollback, 5ms for restart)"},
			&cli.IntFlag{Name: "nodes", Value: 6, Usage: fmt.Sprintf("how many `HOSTS`, %d to %d", leastRehearsed, mostRehearsed)},
		}
	}
	of := func(list []script) cli.ActionFunc {
		return func(c *cli.Context) error { return runRehearsals(c, s, list) }
	}
	var subs []*cli.Command
	for _, one := range scripts() {
		subs = append(subs, &cli.Command{Name: one.name, Usage: one.usage, Flags: flags(), Action: of([]script{one})})
	}
	subs = append(subs, &cli.Command{Name: "all", Usage: "all of them, each on a lab of its own, and one timeline at the end", Flags: flags(), Action: of(scripts())})
	return &cli.Command{
		Name: "rehearse", Usage: "do it all on a lab first, with a failure on the way, and show the timeline",
		Description: "Every act is an ordinary command of this program, on a lab in this process: no root, no Docker, no fleet of yours is touched.\n" +
			"It stops at the first act that does not end as it should, says what was expected and what came, and exits with 1.\n" +
			"Without the name of a rehearsal it is that of a roll.",
		Flags: flags(), Action: of(scripts()[:1]), Subcommands: subs,
	}
}

// runRehearsals plays the scripts one after the other.
func runRehearsals(c *cli.Context, s streams, list []script) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	nodes, block := c.Int("nodes"), c.Duration("block")
	switch {
	case c.NArg() > 0:
		return &usageError{text: fmt.Sprintf("no rehearsal of %q", c.Args().Slice()), hint: "qnetops rehearse with one of: " + strings.Join(scriptNames(), ", ") + ", all"}
	case nodes < leastRehearsed || nodes > mostRehearsed:
		return &usageError{text: fmt.Sprintf("--nodes %d: want %d to %d", nodes, leastRehearsed, mostRehearsed), hint: "qnetops rehearse --help"}
	case c.IsSet("block") && block < time.Millisecond:
		return &usageError{text: fmt.Sprintf("--block %s: want at least 1ms", block), hint: "qnetops rehearse --help"}
	}
	doc := rehearsalDocument{Schema: rehearsalSchema, OK: true, Version: version, At: time.Now().UTC().Truncate(time.Second), Rehearsals: []rehearsalResult{}}
	for _, one := range list {
		if block > 0 {
			one.block = block
		}
		result, err := rehearse(c.Context, s, one, nodes)
		if err != nil {
			return err
		}
		doc.add(result)
		if c.Context.Err() != nil {
			break
		}
	}
	err = answerRehearsals(s, g, doc, c.String("report"))
	if stopped := c.Context.Err(); stopped != nil {
		return fmt.Errorf("the rehearsal was interrupted; its lab is gone, nothing of yours was touched: %w", stopped)
	}
	return err
}

func scriptNames() (out []string) {
	for _, one := range scripts() {
		out = append(out, one.name)
	}
	return slices.Clip(out)
}
