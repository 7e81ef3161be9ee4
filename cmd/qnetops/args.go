package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/urfave/cli/v2"
)

// reorder rewrites a command line into the one order that urfave/cli v2
// understands: global flags, command path, flags of the command, arguments.
// Operators type flags wherever the thought comes ("roll qnet:v2 --yes",
// "status --hosts h.toml"); without this a flag behind an argument would be
// taken for an argument and silently do nothing.
func reorder(app *cli.App, argv []string) ([]string, error) {
	r := reordering{app: app, commands: app.Commands}
	tokens := argv[1:]
	for i := 0; i < len(tokens); i++ {
		token := tokens[i]
		switch {
		case token == "--":
			r.args = append(r.args, tokens[i+1:]...)
			r.literal = true
			i = len(tokens)
		case len(token) > 1 && token[0] == '-':
			used, err := r.flag(tokens[i:])
			if err != nil {
				return nil, err
			}
			i += used - 1
		default:
			if err := r.word(token); err != nil {
				return nil, err
			}
		}
	}
	return r.line(argv[0]), nil
}

type reordering struct {
	app      *cli.App
	commands []*cli.Command
	path     []string
	chain    []*cli.Command
	globals  []string
	locals   []string
	args     []string
	literal  bool
}

// word takes a token that is no flag: the next part of the command path while
// one fits, an argument otherwise.
func (r *reordering) word(token string) error {
	if len(r.args) == 0 {
		for _, c := range r.commands {
			if c.HasName(token) {
				r.path = append(r.path, token)
				r.chain = append(r.chain, c)
				r.commands = c.Subcommands
				return nil
			}
		}
		if len(r.chain) == 0 && token != "help" && token != "h" {
			return &usageError{
				text: fmt.Sprintf("unknown command %q", token),
				hint: suggest(token, commandNames(r.app.Commands), "qnetops --help lists the commands"),
			}
		}
		if len(r.commands) > 0 && len(r.chain) > 0 && r.chain[len(r.chain)-1].Action == nil {
			return &usageError{
				text: fmt.Sprintf("unknown command %q", strings.Join(append(append([]string{}, r.path...), token), " ")),
				hint: suggest(token, commandNames(r.commands), "known: "+strings.Join(commandNames(r.commands), ", ")),
			}
		}
	}
	r.args = append(r.args, token)
	return nil
}

// flag takes tokens[0] (and its value) and returns how many tokens it used.
func (r *reordering) flag(tokens []string) (int, error) {
	name, _, hasValue := strings.Cut(strings.TrimLeft(tokens[0], "-"), "=")
	if name == "help" || name == "h" {
		r.locals = append(r.locals, tokens[0])
		return 1, nil
	}
	into, found := r.lookup(name)
	if found == nil {
		return 0, &usageError{
			text: fmt.Sprintf("unknown flag %s%s", tokens[0], r.where()),
			hint: suggest(name, r.flagNames(), r.helpHint()),
		}
	}
	if hasValue || isBool(found) {
		*into = append(*into, tokens[0])
		return 1, nil
	}
	if len(tokens) < 2 {
		return 0, &usageError{text: fmt.Sprintf("flag --%s needs a value%s", name, r.where()), hint: r.helpHint()}
	}
	// Joined with "=" so that a value that begins with a dash stays a value.
	*into = append(*into, tokens[0]+"="+tokens[1])
	return 2, nil
}

func (r *reordering) lookup(name string) (*[]string, cli.Flag) {
	if n := len(r.chain); n > 0 {
		if f := findFlag(r.chain[n-1].Flags, name); f != nil {
			return &r.locals, f
		}
	}
	if f := findFlag(r.app.Flags, name); f != nil {
		return &r.globals, f
	}
	return nil, nil
}

func (r *reordering) line(program string) []string {
	out := append([]string{program}, r.globals...)
	out = append(out, r.path...)
	out = append(out, r.locals...)
	dashed := r.literal
	for _, a := range r.args {
		dashed = dashed || strings.HasPrefix(a, "-")
	}
	if dashed {
		out = append(out, "--")
	}
	return append(out, r.args...)
}

func (r *reordering) where() string {
	if len(r.path) == 0 {
		return ""
	}
	return " for " + strings.Join(r.path, " ")
}

func (r *reordering) helpHint() string {
	return strings.TrimSpace("qnetops "+strings.Join(r.path, " ")) + " --help lists the flags"
}

func (r *reordering) flagNames() []string {
	flags := append([]cli.Flag{}, r.app.Flags...)
	if n := len(r.chain); n > 0 {
		flags = append(flags, r.chain[n-1].Flags...)
	}
	var out []string
	for _, f := range flags {
		out = append(out, "--"+f.Names()[0])
	}
	return out
}

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}

func isBool(f cli.Flag) bool {
	_, ok := f.(*cli.BoolFlag)
	return ok
}

func commandNames(commands []*cli.Command) []string {
	var out []string
	for _, c := range commands {
		if !c.Hidden {
			out = append(out, c.Name)
		}
	}
	sort.Strings(out)
	return out
}

// suggest names the known word nearest to what was typed; a hint that guesses
// wildly is worse than none, so at most two letters may differ.
func suggest(typed string, known []string, otherwise string) string {
	best, distance := "", 3
	for _, k := range known {
		if d := editDistance(strings.TrimLeft(typed, "-"), strings.TrimLeft(k, "-")); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return fmt.Sprintf("did you mean %s? %s", best, otherwise)
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
