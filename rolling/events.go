package rolling

import "time"

// Event is one thing that happened during a roll, for whoever renders
// progress. Events carry names, ids and numbers, never values of settings.
type Event struct {
	At        time.Time `json:"at"`
	Operation string    `json:"operation"`
	Node      string    `json:"node"`
	// Kind is step, tx, pull, milestone, wait or note.
	Kind string `json:"kind"`
	// Name of the step, local step, layer, milestone or check.
	Name string `json:"name"`
	// State: begun, done, failed, or a verdict.
	State string `json:"state"`
	Text  string `json:"text"`
}

// Kinds of an Event.
const (
	KindStep      = "step"
	KindTx        = "tx"
	KindPull      = "pull"
	KindMilestone = "milestone"
	KindWait      = "wait"
	KindNote      = "note"
)
