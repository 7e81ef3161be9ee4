package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/rolling"
)

func restartUnbarCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "unbar", Usage: "let barred identities back: all nodes change to an image that no longer bars them, at one moment", ArgsUsage: "ID…",
		Description: "Never a roll: if some nodes let an identity back before the others, the two groups derive different committees. Every operator names the\n" +
			"same time. Identities that still are among the peers are named with a warning.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "image", Usage: "the release whose manifest no longer bars them, `IMAGE`"},
			&cli.StringFlag{Name: "at", Usage: "change at this `TIME` (RFC 3339, UTC), the same for all operators"},
		},
		Action: func(c *cli.Context) error { return runUnbar(c, s) },
	}
}

func runUnbar(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	at, err := readAt(c, g)
	if err != nil {
		return err
	}
	var faults []string
	if c.NArg() == 0 {
		faults = append(faults, "no identity is named")
	}
	for _, name := range []string{"image", "at"} {
		if c.String(name) == "" {
			faults = append(faults, "--"+name+" is missing")
		}
	}
	if len(faults) > 0 {
		return &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops restart unbar --help"}
	}
	return withFleet(c.Context, s, g, func(r *rollRun) error {
		base, err := r.ask(at)
		if err != nil {
			return err
		}
		ops, ask := r.cutovers(), cutover.UnbarAsk{Ask: base, Image: c.String("image"), Identities: c.Args().Slice()}
		if _, err := rolling.ResolveRef(ask.Image, r.inv.Registry); err != nil {
			return &usageError{text: err.Error(), hint: strings.Join(hints(err), "; ")}
		}
		if err := ops.Free(c.Context); err != nil {
			return err
		}
		r.tell.say("looking at the nodes")
		p, err := ops.ProposeUnbar(c.Context, ask)
		if err != nil {
			return err
		}
		return r.carryOut(c.Context, p, fmt.Sprintf("let %s back into fleet %s", strings.Join(ask.Identities, ", "), r.inv.Name),
			func() (cutover.Document, error) { return ops.Unbar(c.Context, ask, p.Plan) })
	})
}
