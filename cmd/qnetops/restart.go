package main

import (
	"github.com/urfave/cli/v2"
)

func restartCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "restart", Usage: "choose the macroblock a stalled or forged chain resumes from, and publish the choice",
		Action: func(*cli.Context) error {
			return &usageError{text: "restart needs one of its steps", hint: "qnetops restart --help lists them in their order"}
		},
		Subcommands: restartSteps(s),
	}
}

// restartSteps are the steps of a restart in the order in which they are taken.
func restartSteps(s streams) []*cli.Command {
	return []*cli.Command{restartGather(s), restartProposeK(s), restartExclude(s), archiveCheckCommand(s), recordCommand(s), verifyRecordCommand(s),
		restartExecuteCommand(s), restartVerifyCommand(s), restartRetireCommand(s), restartUnbarCommand(s)}
}
