package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/host"
)

func versionCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version of this program",
		Action: func(c *cli.Context) error {
			if c.String("output") == "json" {
				return printJSON(s.out, map[string]string{"schema": "qnetops/version/v1", "version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			fmt.Fprintf(s.out, "qnetops %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// hostAgentCommand is what runs on a host; operators never type it.
func hostAgentCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "host", Hidden: true, Usage: "the host agent: requests on stdin, answers on stdout",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "socket", Usage: "the engine's `SOCKET`"},
			&cli.BoolFlag{Name: "guardian", Usage: "the second process, started by the first"},
		},
		Action: func(c *cli.Context) error {
			config := host.OSConfig(version, c.String("socket"))
			// For the agent the end of its context is a kill: a signal to the
			// process must not leave a transaction to the guardian alone.
			ctx := context.WithoutCancel(c.Context)
			if c.Bool("guardian") {
				return host.Guard(ctx, config, host.StdLink())
			}
			return host.Serve(ctx, config, s.in, s.out)
		},
	}
}

func completionCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a completion script for bash or zsh", ArgsUsage: "bash|zsh",
		Action: func(c *cli.Context) error {
			shell, err := oneArgument(c, "shell (bash or zsh)")
			if err != nil {
				return err
			}
			script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion}[shell]
			if !ok {
				return &usageError{text: fmt.Sprintf("no completion for %q", shell), hint: "qnetops completion bash, or zsh"}
			}
			_, err = fmt.Fprint(s.out, strings.TrimLeft(script, "\n"))
			return err
		},
	}
}

const bashCompletion = `
_qnetops() {
  local words=("${COMP_WORDS[@]:0:$COMP_CWORD+1}")
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _qnetops qnetops
`

const zshCompletion = `
#compdef qnetops
_qnetops() {
  local -a found
  found=("${(@f)$("${(@)words[1,CURRENT]}" --generate-bash-completion 2>/dev/null)}")
  _describe 'qnetops' found
}
compdef _qnetops qnetops
`
