package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/rolling"
)

func restoreCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "restore", ArgsUsage: "NODE",
		Usage: "put the old container of one node back; needs no journal of the operation that set it aside",
		Action: func(c *cli.Context) error {
			g, err := readGlobals(c, s)
			if err != nil {
				return err
			}
			id, err := oneArgument(c, "node id")
			if err != nil {
				return err
			}
			return runRestore(c.Context, s, g, id)
		},
	}
}

func runRestore(ctx context.Context, s streams, g globals, id string) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		if _, err := rolling.ReadFences(ctx, r.ops.Fleet, r.ops.Store.ID()); err != nil {
			return err
		}
		plan, err := r.ops.LookBack(ctx, id, g.waivers)
		if err != nil {
			return err
		}
		p := plan.Nodes[0]
		name := p.Aside
		if p.Held() {
			name = p.Container
			r.tell.say("node %s: container %s, which was stopped for good, is started again (image %s)", id, name, p.FromRef)
		} else {
			r.tell.say("node %s: container %s comes back in the place of %s (image %s)", id, name, p.Container, p.FromRef)
		}
		if g.dryRun {
			return nil
		}
		if err := confirm(ctx, s, g, fmt.Sprintf("put %s back on node %s?", name, id)); err != nil {
			return err
		}
		doc, err := r.ops.Restore(ctx, plan)
		return r.answer(doc, err)
	})
}
