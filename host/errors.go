package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Codes of an Error, as they cross the wire.
const (
	CodeBadRequest   = "bad_request"
	CodeUnknown      = "unknown_method"
	CodeFenced       = "fenced"
	CodeNotFound     = "not_found"
	CodeAuth         = "auth"
	CodeNoSpace      = "no_space"
	CodeConflict     = "conflict"
	CodeChanged      = "changed"     // what is on the host is not what the plan rests on
	CodeUnexplained  = "unexplained" // the successor differs in a way nobody asked for
	CodeDataDir      = "data_dir"
	CodeEngine       = "engine"
	CodeEngineAway   = "engine_away"
	CodeEngineTooOld = "engine_too_old"
	CodeNotCarried   = "not_carried" // a setting that cannot be taken over
	CodeOneShot      = "one_shot"    // the container would act again at its start
	CodeGuardian     = "guardian"
	CodeCancelled    = "cancelled"
	CodeNodeAway     = "node_away"  // nothing answers on the node's port
	CodeNodeDoubt    = "node_doubt" // the node was told something and its answer is not known
	CodeCut          = "cut"        // an answer broke off
	CodeTooLarge     = "too_large"
	CodeInternal     = "internal"
)

// Sentinels for errors.Is on an *Error, by code.
var (
	ErrNotFound   = errors.New("not found")
	ErrAuth       = errors.New("login refused")
	ErrNoSpace    = errors.New("no space left")
	ErrChanged    = errors.New("changed since it was planned")
	ErrDataDir    = errors.New("data directory would change")
	ErrEngineAway = errors.New("engine does not answer")
	ErrOneShot    = errors.New("carries a variable that acts at every start")
	ErrNodeDoubt  = errors.New("whether the node took it is not known")
)

var sentinels = map[string]error{
	CodeNotFound: ErrNotFound, CodeAuth: ErrAuth, CodeNoSpace: ErrNoSpace,
	CodeChanged: ErrChanged, CodeDataDir: ErrDataDir, CodeEngineAway: ErrEngineAway, CodeOneShot: ErrOneShot,
	CodeCut: io.ErrUnexpectedEOF, CodeNodeDoubt: ErrNodeDoubt,
}

// Error is a refusal or a failure on the host. Its text never holds a value of
// an environment variable.
type Error struct {
	Code     string          `json:"code"`
	Message  string          `json:"message"`
	HintText string          `json:"hint,omitempty"`
	Detail   json.RawMessage `json:"detail,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Hint says what to do next.
func (e *Error) Hint() string { return e.HintText }

// Is matches the sentinel of the error's code.
func (e *Error) Is(target error) bool {
	s := sentinels[e.Code]
	return s != nil && s == target
}

func errorf(code, hint, format string, args ...any) *Error {
	return &Error{Code: code, HintText: hint, Message: fmt.Sprintf(format, args...)}
}

// FencedError is the host's refusal of a claim. Record is what the host holds.
type FencedError struct {
	Record FenceRecord
	Claim  Claim
	Reason string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("host is fenced: %s (held by %s, operation %s, epoch %d; asked with epoch %d)",
		e.Reason, e.Record.Owner, e.Record.Operation, e.Record.Epoch, e.Claim.Epoch)
}

// Hint says who to talk to.
func (e *FencedError) Hint() string {
	if e.Record.Epoch == 0 {
		return "take the fence of this host first"
	}
	if e.Record.Store != e.Claim.Store || e.Record.Fleet != e.Claim.Fleet {
		return fmt.Sprintf("another store (fleet %s, owner %s) holds this host; end its operation, or take it over with `qnetops lease break`",
			e.Record.Fleet, e.Record.Owner)
	}
	return "a newer operation of this fleet has taken over; look at `qnetops ops`"
}

// ConnectionError says that the connection to the agent ended before the
// answer came. For a write the outcome is in doubt: look at Situation.
type ConnectionError struct{ Err error }

func (e *ConnectionError) Error() string {
	if e.Err == nil {
		return "connection to the host agent closed"
	}
	return "connection to the host agent closed: " + e.Err.Error()
}

func (e *ConnectionError) Unwrap() error { return e.Err }

// Hint says what to do next.
func (e *ConnectionError) Hint() string {
	return "the agent finishes or undoes a transaction in hand by itself; connect again and look at what is there"
}
