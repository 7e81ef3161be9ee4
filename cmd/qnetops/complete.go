package main

import (
	"context"
	"sort"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
)

// completeFlag is what a completion script puts behind the words typed so far;
// the last of them is the one to complete, and may be empty.
const completeFlag = "--generate-bash-completion"

// completions lists what the last word of a command line may become: flags
// after a dash, the values this program knows (hosts, operations, images of no
// one), else commands. It never fails: a wrong inventory completes nothing.
func completions(ctx context.Context, s streams, app *cli.App, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	last, before := words[len(words)-1], words[:len(words)-1]
	r := reordering{app: app, commands: app.Commands}
	var pending cli.Flag // wants the next word as its value
	for _, w := range before {
		switch {
		case pending != nil:
			pending = nil
		case strings.HasPrefix(w, "-") && len(w) > 1:
			name, _, hasValue := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if _, f := r.lookup(name); f != nil && !hasValue && !isBool(f) {
				pending = f
			}
		default:
			if r.word(w) != nil {
				return nil
			}
		}
	}
	var out []string
	switch {
	case pending != nil:
		out = valuesOf(s, pending.Names()[0], before, last)
	case strings.HasPrefix(last, "-"):
		out = append(r.flagNames(), "--help")
	case len(r.commands) > 0 && len(r.args) == 0:
		out = commandNames(r.commands)
	case len(r.args) == 0:
		out = argumentsOf(ctx, s, strings.Join(r.path, " "), before)
	}
	var fit []string
	for _, o := range out {
		if strings.HasPrefix(o, last) {
			fit = append(fit, o)
		}
	}
	sort.Strings(fit)
	return fit
}

// valuesOf completes the value of a flag. Lists of ids go on behind a comma.
func valuesOf(s streams, flag string, before []string, last string) []string {
	switch flag {
	case "only", "skip", "canary":
		head := last[:strings.LastIndex(last, ",")+1]
		var out []string
		for _, id := range hostIDs(s, before) {
			out = append(out, head+id)
		}
		return out
	case "output":
		return []string{"json", "table"}
	case "on-fail":
		return []string{"hold", "restore"}
	case "backend":
		return []string{"hosts", "process"}
	case "profile":
		return []string{"fast", "steady"}
	}
	return nil
}

// argumentsOf completes the argument of a command.
func argumentsOf(ctx context.Context, s streams, command string, before []string) []string {
	switch command {
	case "restore":
		return hostIDs(s, before)
	case "resume", "abort", "ops":
		return operationIDs(ctx, s, before, command == "ops")
	case "completion":
		return []string{"bash", "zsh"}
	}
	return nil
}

// given finds the value of a global flag among the words typed so far.
func given(words []string, flag, otherwise string) string {
	for i, w := range words {
		name, value, joined := strings.Cut(strings.TrimLeft(w, "-"), "=")
		switch {
		case !strings.HasPrefix(w, "-") || name != flag:
		case joined:
			return value
		case i+1 < len(words):
			return words[i+1]
		}
	}
	return otherwise
}

func hostIDs(s streams, words []string) []string {
	path := s.getenv("QNETOPS_HOSTS")
	if path == "" {
		path = "hosts.toml"
	}
	inv, err := fleet.Load(given(words, "hosts", path))
	if err != nil {
		return nil
	}
	return inv.IDs()
}

// operationIDs are the operations of the journal; resume and abort want those
// that are not finished.
func operationIDs(ctx context.Context, s streams, words []string, all bool) []string {
	state := s.getenv("QNETOPS_STATE")
	if state == "" {
		state, _ = defaultState(s.getenv)
	}
	g := globals{state: given(words, "state", state)}
	if g.stateMissing() {
		return nil
	}
	db, store, err := openJournal(ctx, g)
	if err != nil {
		return nil
	}
	defer db.Close()
	records, err := store.List(ctx, "")
	if err != nil {
		return nil
	}
	var out []string
	for _, r := range records {
		if all || !r.State.Finished() {
			out = append(out, r.ID)
		}
	}
	return out
}
