package lease

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// The ways a lease ends, and the two answers to a fence that are neither yes nor lost.
var (
	ErrLost     = errors.New("the lease is lost: another process has taken over, or its lock is gone")
	ErrReleased = errors.New("the lease was given back")
	// ErrDeferred: our own long write keeps the lease from being renewed. Try again when it has ended.
	ErrDeferred = errors.New("the lease is held, but our own write keeps it from being renewed: no effect may begin now")
	// ErrBusy: somebody else has the lease's row locked, perhaps to take it. Nothing may begin; trying again later may help.
	ErrBusy = errors.New("the lease's row is locked by somebody else: no effect may begin now")
)

// lostError is why a lease was lost. It is an ErrLost.
type lostError struct {
	code Code
	why  string
}

func (e *lostError) Error() string        { return e.why + ": " + ErrLost.Error() }
func (e *lostError) Is(target error) bool { return target == ErrLost }

// LossCode is the exit code that belongs to a loss, 0 where err is none.
func LossCode(err error) Code {
	var lost *lostError
	switch {
	case errors.As(err, &lost):
		return lost.code
	case errors.Is(err, ErrLost):
		return CodeGuardLost
	}
	return 0
}

// HeldError names the process that holds the lease.
type HeldError struct {
	Scope     string
	Owner     string
	Host      string
	PID       int
	Since     time.Time
	Operation string
	Twin      bool   // a live process of our own identity; otherwise one of another
	Note      string // what a candidate found out while it waited
}

func (e *HeldError) Error() string {
	msg := fmt.Sprintf("the lease of fleet %s is held by %s", e.Scope, cmp.Or(e.Owner, "another process"))
	if e.PID != 0 {
		msg += fmt.Sprintf(" (process %d on %s", e.PID, cmp.Or(e.Host, "an unnamed machine"))
		if !e.Since.IsZero() {
			msg += ", since " + e.Since.UTC().Format(time.RFC3339)
		}
		msg += ")"
	}
	if e.Operation != "" {
		msg += " for " + e.Operation
	}
	if e.Note != "" {
		msg += "; " + e.Note
	}
	return msg
}

// Hint says what to do next.
func (e *HeldError) Hint() string {
	return "nothing was changed; wait for it to end, `qnetops lease show` and `qnetops ops` say what it does"
}

// Code is the exit code of `lease run`.
func (e *HeldError) Code() Code {
	if e.Twin {
		return CodeTwin
	}
	return CodeHeld
}

// RefusedError is a set-up on which no lease can be kept. Nothing was changed.
type RefusedError struct {
	Code   Code
	What   string
	Err    error
	Advice string
}

func (e *RefusedError) Error() string {
	if e.Err == nil {
		return "lease refused: " + e.What
	}
	return "lease refused: " + e.What + ": " + e.Err.Error()
}

func (e *RefusedError) Unwrap() error { return e.Err }

// Hint says what to do next.
func (e *RefusedError) Hint() string { return e.Advice }
