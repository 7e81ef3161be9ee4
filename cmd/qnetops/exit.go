package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/rolling"
)

// The exit codes are a contract with scripts and with RUNBOOK.md; a test
// compares exitTable with the runbook's pages.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2
	exitRefused     = 3
	exitStopped     = 4
	exitLease       = 5
	exitInDoubt     = 6
	exitInterrupted = 130
)

type exitMeaning struct {
	Code    int
	Meaning string
}

func exitTable() []exitMeaning {
	return []exitMeaning{
		{exitDone, "done"},
		{exitError, "error, nothing changed"},
		{exitUsage, "usage, configuration or an unreadable file"},
		{exitRefused, "a check refused, nothing changed"},
		{exitStopped, "stopped midway, resume or abort"},
		{exitLease, "lease held or lost"},
		{exitInDoubt, "in doubt, a person must look"},
		{exitInterrupted, "interrupted, journaled"},
	}
}

// usageError is a command line that cannot be run.
type usageError struct {
	text, hint string
}

func (e *usageError) Error() string { return e.text }

// Hint says how to write the command line instead.
func (e *usageError) Hint() string { return e.hint }

// refusal is a check of the command itself that did not pass.
type refusal struct {
	text, hint string
}

func (e *refusal) Error() string { return e.text }

// Hint says what to do about the refusal.
func (e *refusal) Hint() string { return e.hint }

// exitCode maps an error to the table. Where several apply the more serious
// one wins: 6 before 5 before 4 before 3, then an interrupt, then usage.
func exitCode(ctx context.Context, err error) int {
	var (
		inDoubt    *rolling.InDoubtError
		fenced     *host.FencedError
		held       *lease.HeldError
		stopped    *rolling.StoppedError
		refused    *rolling.RefusedError
		refusedCmd *refusal
		unfinished *journal.UnfinishedError
		notOpen    *rolling.NotOpenError
		changed    *rolling.PlanChangedError
		noAside    *rolling.NothingAsideError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &inDoubt):
		return exitInDoubt
	case errors.As(err, &fenced), errors.As(err, &held), errors.Is(err, lease.ErrLost), errors.Is(err, journal.ErrFenced):
		return exitLease
	case errors.As(err, &stopped):
		if stopped.Interrupted {
			return exitInterrupted
		}
		return exitStopped
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &refused), errors.As(err, &refusedCmd), errors.As(err, &unfinished),
		errors.As(err, &notOpen), errors.As(err, &changed), errors.As(err, &noAside),
		errors.Is(err, lease.ErrDeferred), errors.Is(err, lease.ErrBusy), errors.Is(err, lease.ErrChanged):
		return exitRefused
	case isUsage(err):
		return exitUsage
	}
	return exitError
}

// isUsage tells faults in what the operator wrote (flags, files) from faults
// of the world.
func isUsage(err error) bool {
	var (
		usage    *usageError
		problems tomlfile.Problems
		path     *fs.PathError
		unknown  *fleet.UnknownHostError
		file     *tomlfile.FileError
		store    *sqldb.OpenError
		policy   *lease.PolicyError
		setting  *lease.RefusedError
	)
	if errors.As(err, &store) {
		return !sqldb.IsPostgres(store.Where) // a file that is no store; a server that is away is an error of the world
	}
	return errors.As(err, &usage) || errors.As(err, &problems) || errors.As(err, &path) ||
		errors.As(err, &unknown) || errors.As(err, &policy) || errors.As(err, &setting) || errors.As(err, &file) || errors.Is(err, fleet.ErrNothingSelected) || errors.Is(err, journal.ErrNotFound)
}

// printError prints what happened and, where an error in the chain knows it,
// what to do next.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "error: %s\n", strings.TrimRight(err.Error(), "\n"))
	seen := map[string]bool{}
	for _, hint := range hints(err) {
		if hint != "" && !seen[hint] {
			seen[hint] = true
			fmt.Fprintf(w, "hint: %s\n", hint)
		}
	}
}

// hints collects the hints of the whole error tree, outermost first.
func hints(err error) []string {
	var out []string
	if h, ok := err.(interface{ Hint() string }); ok {
		out = append(out, h.Hint())
	}
	if err == journal.ErrNotFound {
		out = append(out, "qnetops ops lists the operations of this store; --state names another one")
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			out = append(out, hints(inner)...)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			out = append(out, hints(inner)...)
		}
	}
	return out
}
