package rolling

import (
	"errors"
	"fmt"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
)

// RefusedError says that checks did not pass and nothing was changed.
type RefusedError struct {
	Checks []observe.Check
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("refused, nothing was changed:")
	for _, c := range e.Checks {
		fmt.Fprintf(&b, "\n  check %s: %s: %s", c.Name, c.Verdict, c.Reason)
	}
	return b.String()
}

// Hint names the waivable checks among the refusing ones.
func (e *RefusedError) Hint() string {
	var names []string
	seen := map[string]bool{}
	for _, c := range e.Checks {
		if Waivable(c.Name) && !seen[c.Name] {
			seen[c.Name] = true
			names = append(names, fmt.Sprintf("--waive %s=REASON", c.Name))
		}
	}
	if len(names) == 0 {
		return "mend what the check names, then run the same command again"
	}
	return "mend what the check names; or, if you know better, " + strings.Join(names, " ") + " (journaled)"
}

// StoppedError says that a roll stopped with the fleet partly changed.
type StoppedError struct {
	Operation string
	Node      string
	Reason    string
	// LastLines are the last log lines of the container that failed.
	LastLines []string
	// Interrupted says that the operator stopped it.
	Interrupted bool
	// Next says what to do where resume and abort of a roll are not all of it.
	Next string
	Err  error
}

func (e *StoppedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "operation %s stopped", e.Operation)
	if e.Node != "" {
		fmt.Fprintf(&b, " at node %s", e.Node)
	}
	if e.Reason != "" {
		b.WriteString(": " + e.Reason)
	}
	if e.Err != nil {
		// A refusal says of itself that nothing was changed, which is not true of what stopped midway.
		b.WriteString(": " + strings.ReplaceAll(e.Err.Error(), "refused, nothing was changed:", "refused:"))
	}
	if len(e.LastLines) > 0 {
		b.WriteString("\n  last lines of the failing container:")
		for _, l := range e.LastLines {
			b.WriteString("\n    " + l)
		}
	}
	return b.String()
}

func (e *StoppedError) Unwrap() error { return e.Err }

// Hint names the commands that go on from here.
func (e *StoppedError) Hint() string {
	if e.Next != "" {
		return e.Next
	}
	next := fmt.Sprintf("qnetops status shows the fleet; qnetops resume %s goes on, qnetops abort %s puts the node in flight back", e.Operation, e.Operation)
	var refused *host.Error // a host that says what is to be done about it
	if errors.As(e.Err, &refused) && refused.HintText != "" {
		return refused.HintText + "; " + next
	}
	return next
}

// InDoubtError says that what happened on a host cannot be told from here.
type InDoubtError struct {
	Operation, Node, Reason string
	Err                     error
}

func (e *InDoubtError) Error() string {
	s := fmt.Sprintf("operation %s is in doubt at node %s: %s", e.Operation, e.Node, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *InDoubtError) Unwrap() error { return e.Err }

// Hint says where to look.
func (e *InDoubtError) Hint() string {
	return fmt.Sprintf("look at node %s (qnetops status; docker ps -a on the host); then qnetops resume %s or qnetops abort %s", e.Node, e.Operation, e.Operation)
}

// PlanChangedError says that the fleet no longer is what the plan was made
// for; nothing was changed.
type PlanChangedError struct{ Printed, Now string }

func (e *PlanChangedError) Error() string {
	return fmt.Sprintf("the plan changed between printing (%.12s) and starting (%.12s); nothing was changed", e.Printed, e.Now)
}

// Hint says how to go on.
func (e *PlanChangedError) Hint() string { return "run the command again and read the new plan" }
