// Command qnetops runs a fleet of QNet validator hosts: it shows the fleet,
// rolls it to a new image node by node, and rehearses that on a lab of its
// own. This package parses flags, calls the rooms that do the work, renders
// what they answer and picks the exit code; it decides nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/qnetops/qnetops/lease"
)

func main() {
	ctx, stop := interruptible(context.Background(), os.Exit)
	code := Main(ctx, os.Args, osStreams())
	stop()
	os.Exit(code)
}

// streams is everything a command may talk to: answers go to out, progress
// and errors to err, questions are answered on in.
type streams struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	// live says whether err is a terminal that can redraw lines.
	live bool
	// ask says whether a person can answer questions on in.
	ask bool
}

func osStreams() streams {
	return streams{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv,
		live: term.IsTerminal(int(os.Stderr.Fd())),
		ask:  term.IsTerminal(int(os.Stdin.Fd())),
	}
}

// interruptible returns a context that the first interrupt cancels, so that a
// running step can end and be journaled; the second one exits at once. What a
// host agent has in hand it finishes by itself either way.
func interruptible(parent context.Context, exit func(int)) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			exit(exitInterrupted)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// answerWriter remembers that what was asked for could not be written: a full disk
// must not look like a healthy fleet.
type answerWriter struct {
	w   io.Writer
	err error
}

// Write passes on to the answer's destination.
func (a *answerWriter) Write(b []byte) (int, error) {
	n, err := a.w.Write(b)
	if err != nil && a.err == nil {
		a.err = err
	}
	return n, err
}

// Main runs one command line and returns the exit code of the table in
// exit.go. It never exits the process itself.
func Main(ctx context.Context, args []string, s streams) int {
	out := &answerWriter{w: s.out}
	s.out = out
	app := newApp(s)
	if len(args) > 1 && args[len(args)-1] == completeFlag {
		for _, c := range completions(ctx, s, app, args[1:len(args)-1]) {
			fmt.Fprintln(s.out, c)
		}
		return exitDone
	}
	ordered, err := reorder(app, args)
	if err == nil {
		err = app.RunContext(ctx, ordered)
	}
	if err == nil && out.err != nil {
		err = fmt.Errorf("writing the answer: %w", out.err)
		printError(s.err, err)
		return exitError
	}
	if err == nil {
		return exitDone
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	printError(s.err, err)
	if isLeaseRun(args) {
		return int(lease.CodeUsage) // its table is its own: CMD's codes pass through
	}
	return exitCode(ctx, err)
}

// isLeaseRun says whether a command line is one of `lease run`.
func isLeaseRun(args []string) bool {
	for i := 1; i+1 < len(args) && args[i] != "--"; i++ {
		if args[i] == "lease" && args[i+1] == "run" {
			return true
		}
	}
	return false
}
