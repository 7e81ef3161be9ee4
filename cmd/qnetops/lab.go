package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/realhosts"
	"github.com/qnetops/qnetops/lab/simnode"
)

// The two backends of a lab.
const (
	backendProcess = "process"
	backendHosts   = "hosts"
)

func labCommand(s streams) *cli.Command {
	dir := &cli.StringFlag{Name: "dir", Value: "lab", Usage: "the lab's `FOLDER`"}
	return &cli.Command{
		Name: "lab", Usage: "a fleet of your own to try everything on",
		Action: func(*cli.Context) error {
			return &usageError{text: "lab needs one of: up, status, fault, image, down", hint: "qnetops lab up --dir DIR"}
		},
		Subcommands: []*cli.Command{
			{Name: "up", Usage: "start a lab and say how to use it", Action: func(c *cli.Context) error { return runLabUp(c, s) },
				Flags: append(labShape(), dir)},
			{Name: "serve", Hidden: true, Usage: "the lab's own process, started by lab up", Action: func(c *cli.Context) error { return runLabServe(c, s) },
				Flags: append(labShape(), dir)},
			{Name: "status", Usage: "show the lab's nodes and their faults", Flags: []cli.Flag{dir}, Action: func(c *cli.Context) error { return runLabStatus(c, s) }},
			{Name: "fault", ArgsUsage: "NODE KIND[=ARG]", Usage: "break something: inject a fault, or clear them all with --clear",
				Description: "NODE is an id of lab status. The commonest kinds: stop (the node is stopped by hand), mute (it never votes; two of six, and nothing is\n" +
					"sealed any more), engine-restart, reboot, drop-ssh=hold (the host cannot be reached), image=TAG (as by hand, on the data it has).",
				Flags:  []cli.Flag{dir, &cli.BoolFlag{Name: "clear", Usage: "take all faults back"}, &cli.BoolFlag{Name: "kinds", Usage: "list the kinds"}},
				Action: func(c *cli.Context) error { return runLabFault(c, s) }},
			labImageCommand(s, dir),
			{Name: "down", Usage: "stop the lab and delete what it made", Flags: []cli.Flag{dir}, Action: func(c *cli.Context) error { return runLabDown(c, s) }},
			labNodeCommand(),
		},
	}
}

func labShape() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "nodes", Value: 6, Usage: "how many `HOSTS`; from the sixth on they are super nodes"},
		&cli.DurationFlag{Name: "block", Value: 100 * time.Millisecond, Usage: "block `TIME`; all times of the nodes scale with it"},
		&cli.StringFlag{Name: "backend", Value: backendProcess, Usage: "process (any machine) or hosts (Linux, root: real sshd and Docker)"},
	}
}

// labHandle is a running lab as seen from another process.
type labHandle interface {
	Inject(ctx context.Context, node, kind, arg string) error
	ClearFaults(ctx context.Context) error
	Down(ctx context.Context) error
	Rows(ctx context.Context) ([]labRow, error)
	Kinds() []string
	AddImage(ctx context.Context, tag string, manifest []byte) (simnode.AddedImage, error)
}

// labRow is one node in lab status (qnetops/lab/v1).
type labRow struct {
	Node    string   `json:"node"`
	Address string   `json:"address"`
	Height  *uint64  `json:"height"`
	Build   *string  `json:"build"`
	State   string   `json:"state"`
	Faults  []string `json:"faults"`
}

// openLab finds out which backend a folder holds.
func openLab(ctx context.Context, dir string) (labHandle, error) {
	if _, err := os.Stat(filepath.Join(dir, realhosts.StateFile)); err == nil {
		cluster, err := realhosts.Open(dir)
		if err != nil {
			return nil, err
		}
		return hostsLab{cluster}, nil
	}
	client, err := lab.Connect(ctx, dir)
	if err != nil {
		return nil, err
	}
	return processLab{client}, nil
}

// labStart bounds the start of a lab: real engines need some seconds each.
const labStart = 3 * time.Minute

func runLabUp(c *cli.Context, s streams) error {
	dir, err := filepath.Abs(c.String("dir"))
	if err != nil {
		return err
	}
	if b := c.String("backend"); b != backendProcess && b != backendHosts {
		return &usageError{text: fmt.Sprintf("--backend %q: want process or hosts", b)}
	}
	if n := c.Int("nodes"); n < 1 || n > 1000 {
		return &usageError{text: fmt.Sprintf("--nodes %d: want 1 to 1000", n)}
	}
	if c.Duration("block") < time.Millisecond {
		return &usageError{text: fmt.Sprintf("--block %s: want at least 1ms", c.Duration("block"))}
	}
	if handle, err := openLab(c.Context, dir); err == nil {
		if _, err := handle.Rows(c.Context); err == nil {
			return &refusal{text: "a lab runs in " + dir + " already", hint: "qnetops lab down --dir " + dir + " stops it, another --dir starts a second one"}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if c.String("backend") == backendProcess {
		if err := removeProcessLab(dir); err != nil {
			return err
		}
	}
	if err := startLabProcess(c.Context, s, dir, c); err != nil {
		return err
	}
	hosts, state := filepath.Join(dir, "hosts.toml"), filepath.Join(dir, "state.db")
	fmt.Fprintf(s.out, `lab is up in %s
  see it:      qnetops status --hosts %s
  roll it:     qnetops roll qnet:v2 --hosts %s --state %s
  break it:    qnetops lab fault 002 stop --dir %s      (kinds: qnetops lab fault --kinds --dir %s)
  stop it:     qnetops lab down --dir %s
images: qnet:v1 (running), qnet:v2, and the bad ones qnet:crash, gap, oom, liar, mute, slow; lab image adds a release with a restart manifest
in each shell: export QNETOPS_HOSTS=%s QNETOPS_STATE=%s
`, dir, hosts, hosts, state, dir, dir, dir, hosts, state)
	if _, err := os.Stat(state); err == nil {
		fmt.Fprintf(s.err, "note: %s is the journal of an earlier lab; delete it, or its unfinished operations stand in the way\n", state)
	}
	return nil
}

// startLabProcess starts `lab serve` in a session of its own, so that it
// outlives this command and its terminal, and waits until it says ready.
func startLabProcess(ctx context.Context, s streams, dir string, c *cli.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(dir, labLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd := exec.Command(self, "lab", "serve", "--dir", dir, "--nodes", fmt.Sprint(c.Int("nodes")), "--block", c.Duration("block").String(), "--backend", c.String("backend"))
	cmd.Stderr, cmd.Stdout, cmd.Dir = logFile, write, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("starting the lab's process: %w", err)
	}
	return awaitLab(ctx, s, read, cmd, logFile.Name())
}

// awaitLab relays the lab's progress until it is ready, has failed, or the
// operator gives up; a lab that is not ready is stopped again.
func awaitLab(ctx context.Context, s streams, from io.Reader, cmd *exec.Cmd, logName string) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(from); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	limit := time.NewTimer(labStart)
	defer limit.Stop()
	failed := func(why string) error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return fmt.Errorf("the lab did not start: %s (log: %s)", why, logName)
	}
	last := "no reason given"
	for {
		select {
		case line, open := <-lines:
			switch {
			case !open:
				return failed(last)
			case line == labReady:
				return cmd.Process.Release()
			}
			last = line
			fmt.Fprintln(s.err, line)
		case <-limit.C:
			return failed(fmt.Sprintf("not ready in %s, last: %s", labStart, last))
		case <-ctx.Done():
			return failed("interrupted")
		}
	}
}

// labReady is the line the lab's process prints once it can be used.
const labReady = "ready"

func runLabServe(c *cli.Context, s streams) error {
	say := func(text string) { fmt.Fprintln(s.out, text) }
	wait, err := serveLab(c, say)
	if err != nil {
		say(err.Error())
		return err
	}
	say(labReady)
	// The reader of the pipe is gone from here on.
	return wait(c.Context)
}

// serveLab starts the lab of either backend and returns what waits for its end.
func serveLab(c *cli.Context, say func(string)) (func(context.Context) error, error) {
	dir, nodes, block := c.String("dir"), c.Int("nodes"), c.Duration("block")
	if c.String("backend") == backendHosts {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cluster, err := realhosts.Up(c.Context, realhosts.Config{Nodes: nodes, Dir: dir, Block: block, Binary: self, NodeEnv: sentinelEnv, Progress: say})
		if err != nil {
			return nil, err
		}
		say("waiting for the chain to move")
		if err := awaitChain(c.Context, hostsLab{cluster}, labSettle); err != nil {
			return nil, errors.Join(err, cluster.Down(context.WithoutCancel(c.Context)))
		}
		return func(ctx context.Context) error {
			if err := cluster.Wait(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		}, nil
	}
	l, err := startProcessLab(lab.Config{Nodes: nodes, Block: block, Dir: dir, History: labHistory, Progress: say, Version: version})
	if err != nil {
		return nil, err
	}
	say("waiting for the chain to move")
	if err := l.WaitFor(c.Context, "every node to move", moving); err != nil {
		l.Close()
		return nil, err
	}
	if err := l.ServeControl(dir); err != nil {
		l.Close()
		return nil, err
	}
	return func(ctx context.Context) error {
		select {
		case <-l.Done():
		case <-ctx.Done():
			l.Close()
		}
		return nil
	}, nil
}

// awaitChain waits until every node is above a height: a lab that is called up
// before its chain moves would greet its first user with "stalled".
func awaitChain(ctx context.Context, handle labHandle, above uint64) error {
	for {
		rows, err := handle.Rows(ctx)
		if err != nil {
			return err
		}
		moving := len(rows) > 0
		for _, r := range rows {
			moving = moving && r.Height != nil && *r.Height > above
		}
		if moving {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func runLabStatus(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	handle, err := openLab(c.Context, c.String("dir"))
	if err != nil {
		return err
	}
	rows, err := handle.Rows(c.Context)
	if err != nil {
		return err
	}
	return printLab(s, g, rows)
}

func runLabFault(c *cli.Context, s streams) error {
	dir := c.String("dir")
	handle, err := openLab(c.Context, dir)
	if err != nil {
		return err
	}
	if c.Bool("kinds") {
		fmt.Fprintln(s.out, strings.Join(handle.Kinds(), "\n"))
		return nil
	}
	if c.Bool("clear") {
		if c.NArg() > 0 {
			return &usageError{text: "lab fault --clear takes all faults back and no arguments"}
		}
		if err := handle.ClearFaults(c.Context); err != nil {
			return err
		}
		fmt.Fprintln(s.out, "all faults are taken back")
		return nil
	}
	if c.NArg() != 2 {
		return &usageError{text: "lab fault takes NODE KIND[=ARG]", hint: "kinds: " + strings.Join(handle.Kinds(), ", ")}
	}
	kind, arg, _ := strings.Cut(c.Args().Get(1), "=")
	if err := handle.Inject(c.Context, c.Args().First(), kind, arg); err != nil {
		return &usageError{text: err.Error(),
			hint: fmt.Sprintf("qnetops lab status --dir %s shows the nodes, qnetops lab fault --kinds --dir %s the kinds", dir, dir)}
	}
	fmt.Fprintf(s.out, "fault %s is set on node %s; qnetops lab fault --clear --dir %s takes back every fault that lasts\n",
		c.Args().Get(1), c.Args().First(), dir)
	return nil
}

func runLabDown(c *cli.Context, s streams) error {
	handle, err := openLab(c.Context, c.String("dir"))
	if err != nil {
		return err
	}
	if err := handle.Down(c.Context); err != nil {
		return err
	}
	if _, process := handle.(processLab); process {
		if err := removeProcessLab(c.String("dir")); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.out, "lab in %s is down; its hosts are deleted, files of yours and the state file stay\n", c.String("dir"))
	return nil
}
