package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// State is where an operation stands.
type State string

// An operation is unfinished while running, stopped or in doubt.
const (
	Running State = "running"
	Stopped State = "stopped"
	InDoubt State = "in_doubt"
	Done    State = "done"
	Aborted State = "aborted"
)

// Finished reports whether nothing more is to be done for an operation in that state.
func (s State) Finished() bool { return s == Done || s == Aborted }

// StepState is where a step stands.
type StepState string

// A step that reads "intent" is being carried out by a live process, or its process died: Resume tells, by turning the
// intents it finds into StepInDoubt.
const (
	StepIntent  StepState = "intent"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepInDoubt StepState = "in_doubt"
)

// Waiver is a check that a person overrode by name.
type Waiver struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
	By     string `json:"by"`
}

// Spec is what an operation is begun with. Plan and Data are JSON; neither may hold secrets, as both are shown.
type Spec struct {
	Kind       string // "roll", …: also the first part of the id
	Fleet      string
	Operator   string
	Epoch      uint64 // of the lease token
	Plan       json.RawMessage
	PlanDigest string
	Waivers    []Waiver
	Data       json.RawMessage
}

// Record is an operation as the store has it. Times are UTC.
type Record struct {
	ID         string
	Kind       string
	Fleet      string
	Operator   string
	State      State
	Epoch      uint64
	Plan       json.RawMessage
	PlanDigest string
	Waivers    []Waiver
	Data       json.RawMessage
	Summary    string
	StartedAt  time.Time
	FinishedAt *time.Time
	Steps      []StepRecord // in the order of their first intent
}

// Unsettled lists the steps that have an intent and no known outcome.
func (r Record) Unsettled() []StepRecord {
	var out []StepRecord
	for _, s := range r.Steps {
		if s.unsettled() {
			out = append(out, s)
		}
	}
	return out
}

// Step names a unit of work. ID is stable over resumes, such as "001/replace".
type Step struct {
	ID    string
	Title string
	// Looks marks a step that changes nothing, such as waiting for a milestone. Cut short it is failed, not in doubt, and
	// may simply be done again.
	Looks bool
}

// StepRecord is the latest attempt of a step.
type StepRecord struct {
	ID         string
	Title      string
	Looks      bool
	State      StepState
	Attempt    int // from 1
	Epoch      uint64
	StartedAt  time.Time  // of this attempt
	FinishedAt *time.Time // nil while there is no outcome
	Error      string
	Note       string // how it was settled, "" where it was not
	Result     json.RawMessage
}

func (s StepRecord) unsettled() bool {
	return s.State == StepInDoubt || s.State == StepIntent && !s.Looks
}

// Event is one entry of an operation's journal.
type Event struct {
	Seq     int64
	At      time.Time
	Epoch   uint64
	What    string // begin, resume, intent, outcome, settle, note, finish
	Step    string
	Attempt int
	State   string
	Title   string // of a step; the event's name for a note
	Error   string
	Data    json.RawMessage
}

// Sentinels a caller decides on.
var (
	// ErrNotFound: no operation of that id.
	ErrNotFound = errors.New("no such operation")
	// ErrFenced: a newer epoch owns the operation or the fleet. The writer that gets it must stop at once.
	ErrFenced = errors.New("a newer epoch has taken over")
	// ErrFinished: the operation is done or aborted; nothing can be added.
	ErrFinished = errors.New("the operation is finished")
	// ErrUnknownOutcome is returned (wrapped) by a step's function that cannot tell whether its act took place, such as one
	// whose connection broke after the request was sent. The step is then in doubt, not failed.
	ErrUnknownOutcome = errors.New("whether it happened is not known")
)

// UnfinishedError refuses a new operation while one of the fleet is unfinished.
type UnfinishedError struct {
	ID, Kind string
	State    State
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("operation %s (%s) of this fleet is unfinished: %s", e.ID, e.Kind, strings.ReplaceAll(string(e.State), "_", " "))
}

// Hint says what to do next.
func (e *UnfinishedError) Hint() string {
	return fmt.Sprintf("`qnetops ops %s` shows where it stands; then `qnetops resume %s` or `qnetops abort %s`", e.ID, e.ID, e.ID)
}

// InDoubtError is a step that may have happened. Err is set when its outcome could not be written down.
type InDoubtError struct {
	Operation, Step string
	Err             error
}

func (e *InDoubtError) Error() string {
	msg := fmt.Sprintf("step %s of operation %s may have happened", e.Step, e.Operation)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

func (e *InDoubtError) Unwrap() error { return e.Err }

// Hint says what to do next.
func (e *InDoubtError) Hint() string {
	return fmt.Sprintf("it is settled by looking, not by repeating: `qnetops resume %s` looks at the host", e.Operation)
}
