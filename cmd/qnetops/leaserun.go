package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/lease/run"
)

func dirFlag() cli.Flag {
	return &cli.StringFlag{Name: "dir", Usage: "state `FOLDER` of this machine: locks, exit records (default: the user's state folder)"}
}

func epochFlag() cli.Flag {
	return &cli.Int64Flag{Name: "writer-epoch", Value: 1, Usage: "`NUMBER` of the writer's configuration: another number waits for the TTL"}
}

func leaseRunCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "run", ArgsUsage: "-- CMD [ARG…]", Usage: "run a command under a lease; nothing of it is left when another may begin",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the lease and of the writer (required)"},
			&cli.StringFlag{Name: "profile", Value: lease.Steady, Usage: "timing: " + strings.Join(lease.Profiles(), " or ")},
			&cli.StringFlag{Name: "wait", Value: "0s", Usage: "how long to wait for another holder: a `DURATION`, or forever"},
			&cli.DurationFlag{Name: "ttl", Usage: "how long a lease lives without renewal (default 60s)"},
			&cli.DurationFlag{Name: "silence", Hidden: true}, &cli.DurationFlag{Name: "exit-age", Hidden: true},
			&cli.BoolFlag{Name: "require-fast", Usage: "refuse a pooler before the database instead of falling back to the TTL"},
			dirFlag(), epochFlag(),
			&cli.DurationFlag{Name: "stop-timeout", Value: 10 * time.Second, Usage: "between SIGTERM and SIGKILL"},
			&cli.StringFlag{Name: "watchdog-file", Usage: "`FILE` that the command must touch"},
			&cli.StringFlag{Name: "watchdog-cmd", Usage: "shell `COMMAND` that must succeed"},
			&cli.BoolFlag{Name: "watchdog-socket", Usage: "the command must send `beat` on its socket (lease check --beat)"},
			&cli.DurationFlag{Name: "watchdog-timeout", Value: run.DefaultWatchdog, Usage: "overdue after this, the run ends"},
			&cli.StringFlag{Name: "token", Hidden: true}, &cli.BoolFlag{Name: "allow-fixed-token", Hidden: true},
			&cli.BoolFlag{Name: "i-know", Usage: "keep the locked file on a network file system"},
		},
		Action: func(c *cli.Context) error {
			config, err := runConfig(c, s)
			if err != nil {
				printError(s.err, err)
				return exitStatus(lease.CodeUsage)
			}
			// Signals are the command's from here on: the program's own handler would end us at the second one.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			signals := make(chan os.Signal, 8)
			signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
			signal.Ignore(syscall.SIGTTOU)
			config.Signals = signals
			if code := run.Run(context.WithoutCancel(c.Context), config); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// runConfig turns flags into a run.Config; every error of it is one of how the command was called.
func runConfig(c *cli.Context, s streams) (run.Config, error) {
	g, err := readGlobals(c, s)
	if err != nil {
		return run.Config{}, err
	}
	name := c.String("name")
	if name == "" {
		return run.Config{}, &usageError{text: "lease run needs --name", hint: "qnetops lease run --name NAME -- CMD"}
	}
	wait := time.Duration(-1)
	if text := c.String("wait"); text != "forever" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			return run.Config{}, &usageError{text: fmt.Sprintf("--wait %q: want a duration such as 30s, or forever", text)}
		}
	}
	dir, err := leaseDir(c, s)
	if err != nil {
		return run.Config{}, err
	}
	config := run.Config{
		Lease: lease.Options{Scope: name, Writer: name, WriterEpoch: c.Int64("writer-epoch"), Owner: operator(s), Wait: wait, Profile: c.String("profile"),
			RequireFast: c.Bool("require-fast"), Version: version, Dir: dir, Token: c.String("token"), AllowFixedToken: c.Bool("allow-fixed-token"), IKnow: c.Bool("i-know")},
		Open: func(ctx context.Context) (*sqldb.DB, error) { return sqldb.Open(ctx, g.state) },
		Dir:  dir, Args: c.Args().Slice(), Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StopTimeout: c.Duration("stop-timeout"), Reaper: startReaper, Exit: syscall.Exit, Log: s.err,
		Watch: run.Watchdogs{File: c.String("watchdog-file"), Command: c.String("watchdog-cmd"), Socket: c.Bool("watchdog-socket"), Timeout: c.Duration("watchdog-timeout")},
	}
	if len(config.Args) == 0 {
		return config, &usageError{text: "lease run needs a command", hint: "qnetops lease run --name NAME -- CMD"}
	}
	config.Lease.Command = filepath.Base(config.Args[0])
	if policy, err := lease.PolicyOf(config.Lease.Profile); err == nil {
		config.Lease.Policy = tuned(c, policy)
	}
	return config, nil
}

// tuned changes single values of a profile; nil where none is given. What is unsafe is refused by the lease itself.
func tuned(c *cli.Context, p lease.Policy) *lease.Policy {
	if !c.IsSet("ttl") && !c.IsSet("silence") && !c.IsSet("exit-age") {
		return nil
	}
	if c.IsSet("ttl") {
		p = p.Lower(c.Duration("ttl"))
	}
	if c.IsSet("silence") {
		p.Silence = c.Duration("silence")
	}
	if c.IsSet("exit-age") {
		p.Exit = c.Duration("exit-age")
	}
	p.Profile += "-changed"
	return &p
}

// leaseDir is the folder of what must be on this machine, whatever the store is.
func leaseDir(c *cli.Context, s streams) (string, error) {
	if dir := c.String("dir"); dir != "" {
		return filepath.Abs(dir)
	}
	path, err := defaultState(s.getenv)
	return filepath.Dir(path), err
}

// startReaper is this program again, as the process that outlives a stopped or killed supervisor.
func startReaper(lockPath string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(self, "lease", "reaper", lockPath), nil
}

func leaseReaperCommand() *cli.Command {
	return &cli.Command{
		Name: "reaper", Hidden: true, Usage: "started by lease run",
		Action: func(c *cli.Context) error {
			path, err := oneArgument(c, "locked file")
			if err != nil {
				return err
			}
			return run.Reap(path)
		},
	}
}
