package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/rolling"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

// globals are the flags every command takes.
type globals struct {
	hosts, state string
	only, skip   []string
	json         bool
	yes, dryRun  bool
	waivers      []rolling.Waiver
	agent        string
	wait         time.Duration
	verbose      bool
	stateGiven   bool // --state or its variable names the store
}

// stateMissing says whether the store is a file that is not there.
func (g globals) stateMissing() bool {
	if g.state == "" || sqldb.IsPostgres(g.state) {
		return false
	}
	_, err := os.Stat(g.state)
	return errors.Is(err, fs.ErrNotExist)
}

// needState refuses to look for something in a store that does not exist: a
// mistyped path must not become a new, empty journal.
func (g globals) needState(what string) error {
	if !g.stateMissing() {
		return nil
	}
	return &usageError{text: fmt.Sprintf("%s: there is no state file %s", what, g.state),
		hint: "--state FILE (or QNETOPS_STATE) names the store that the operation was run with; qnetops roll makes one"}
}

func newApp(s streams) *cli.App {
	return &cli.App{
		Name:                      "qnetops",
		Usage:                     "see, roll and rehearse a fleet of QNet validator hosts",
		Version:                   version,
		HideVersion:               true,
		Writer:                    s.out,
		ErrWriter:                 s.err,
		DisableSliceFlagSeparator: true, // a value may hold a comma (--set-env K=a,b)
		// The default handler would exit inside Run and lose wrapped codes.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return &usageError{text: err.Error(), hint: "qnetops --help"}
		},
		Flags:    globalFlags(),
		Commands: commands(s),
		CommandNotFound: func(_ *cli.Context, name string) {
			fmt.Fprintf(s.err, "error: unknown command %q\n", name)
		},
	}
}

func commands(s streams) []*cli.Command {
	list := []*cli.Command{
		statusCommand(s), hostsCommand(s), rollCommand(s), haltCommand(s), rollbackCommand(s), decreeCommand(s), resumeCommand(s), abortCommand(s), restoreCommand(s),
		opsCommand(s), gatesCommand(s), manifestCommand(s), restartCommand(s), leaseCommand(s), labCommand(s), rehearseCommand(s), hostAgentCommand(s), versionCommand(s), completionCommand(s),
	}
	for _, c := range list {
		usageErrors(c)
	}
	return list
}

// usageErrors makes urfave's own complaints carry exit code 2 on every level.
func usageErrors(c *cli.Command) {
	c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
		return &usageError{text: c.Name + ": " + err.Error(), hint: "qnetops " + c.Name + " --help lists the flags"}
	}
	c.CustomHelpTemplate = cli.CommandHelpTemplate
	if len(c.Subcommands) > 0 {
		c.CustomHelpTemplate = cli.SubcommandHelpTemplate
	}
	c.CustomHelpTemplate += globalHelp
	for _, sub := range c.Subcommands {
		usageErrors(sub)
	}
}

// globalHelp ends the help of every command: the flags that work everywhere.
const globalHelp = `
GLOBAL OPTIONS (before or after the command; qnetops --help explains them):
   --hosts FILE, --state DSN, --only IDs, --skip IDs, -o table|json, --yes, --dry-run,
   --waive CHECK=REASON, --wait DURATION, --agent FILE, --no-color, -v
`

func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hosts", EnvVars: []string{"QNETOPS_HOSTS"}, Value: "hosts.toml", Usage: "the inventory `FILE`"},
		&cli.StringFlag{Name: "state", EnvVars: []string{"QNETOPS_STATE"}, Usage: "journal and lease: a SQLite file or postgres://… `DSN` (default: in the user's state folder)"},
		&cli.StringFlag{Name: "only", Usage: "these hosts alone, by `ID`s with commas"},
		&cli.StringFlag{Name: "skip", Usage: "leave these hosts out, by `ID`s with commas"},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` of the answer: table or json"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show the plan and its checks, change nothing"},
		&cli.StringSliceFlag{Name: "waive", Usage: "override a check by name: `CHECK=REASON` (journaled, repeatable)"},
		&cli.DurationFlag{Name: "wait", Usage: "wait this long for another holder of the fleet's lease: `DURATION`"},
		&cli.StringFlag{Name: "agent", Usage: "the qnetops binary to place on the hosts, `FILE` (default: this program)"},
		&cli.BoolFlag{Name: "no-color", EnvVars: []string{"NO_COLOR"}, Usage: "plain text"},
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "say more on stderr"},
	}
}

// readGlobals checks the global flags; every fault of them is reported at once.
func readGlobals(c *cli.Context, s streams) (globals, error) {
	g := globals{
		hosts: c.String("hosts"), state: c.String("state"),
		only: splitIDs(c.String("only")), skip: splitIDs(c.String("skip")),
		yes: c.Bool("yes"), dryRun: c.Bool("dry-run"), agent: c.String("agent"), wait: fleetWait(c), verbose: c.Bool("verbose"),
		stateGiven: c.IsSet("state"),
	}
	var faults []string
	switch c.String("output") {
	case "json":
		g.json = true
	case "table":
	default:
		faults = append(faults, fmt.Sprintf("--output %q: want table or json", c.String("output")))
	}
	var bad []string
	g.waivers, bad = readWaivers(c.StringSlice("waive"), commandPath(c))
	faults = append(faults, bad...)
	if g.agent != "" {
		if _, err := os.Stat(g.agent); err != nil {
			faults = append(faults, fmt.Sprintf("--agent: %v", err))
		}
	}
	if g.state == "" {
		// Commands that only look need no journal, so none is missed here.
		g.state, _ = defaultState(s.getenv)
	}
	for _, name := range []string{"only", "skip"} {
		if c.IsSet(name) && len(splitIDs(c.String(name))) == 0 {
			faults = append(faults, fmt.Sprintf("--%s %q names no host; an empty list must not mean all of them", name, c.String(name)))
		}
	}
	if len(faults) > 0 {
		return g, &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops --help lists the global flags"}
	}
	return g, nil
}

// fleetWait is the global --wait; lease run has one of its own, which also
// takes a word.
func fleetWait(c *cli.Context) time.Duration {
	lineage := c.Lineage()
	for i := len(lineage) - 1; i >= 0; i-- { // from the program's own flags inwards
		if d := lineage[i].Duration("wait"); d != 0 {
			return d
		}
	}
	return 0
}

// defaultState is the SQLite file in the user's state folder.
func defaultState(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "qnetops", "state.db"), nil
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "qnetops", "state.db"), nil
	}
	return "", fmt.Errorf("no --state, and neither XDG_STATE_HOME nor HOME says where the state folder is")
}

func splitIDs(list string) []string {
	var out []string
	for _, id := range strings.Split(list, ",") {
		if id = strings.TrimSpace(id); id != "" {
			out = append(out, id)
		}
	}
	return out
}

// commandPath is the command as it is typed after the program's name, such as "restart record".
func commandPath(c *cli.Context) string {
	var path []string
	for _, at := range c.Lineage() { // the innermost first, the program itself last
		if at.Command != nil && at.Command.Name != "" && at.Command.Name != c.App.Name {
			path = append([]string{at.Command.Name}, path...)
		}
	}
	return strings.Join(path, " ")
}

// noArguments refuses arguments to a command that takes none.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return &usageError{text: fmt.Sprintf("%s takes no arguments, got %q", commandPath(c), c.Args().Slice()), hint: "qnetops " + commandPath(c) + " --help"}
	}
	return nil
}

// oneArgument returns the only argument of a command.
func oneArgument(c *cli.Context, what string) (string, error) {
	if c.NArg() != 1 {
		return "", &usageError{text: fmt.Sprintf("%s takes exactly one %s, got %d arguments", commandPath(c), what, c.NArg()), hint: "qnetops " + commandPath(c) + " --help"}
	}
	return c.Args().First(), nil
}
