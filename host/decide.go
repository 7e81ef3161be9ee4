package host

import "fmt"

// seen is one container as the engine shows it now.
type seen struct {
	Exists    bool
	ID        string
	Name      string
	State     string
	Policy    Policy
	StartedAt string
	ExitCode  int
	OOMKilled bool
	OneShot   string // names of variables that act at every start
}

func (s seen) runs() bool { return s.Exists && stateRuns(s.State) }

// observation is what a step is decided on; it is made anew before each.
type observation struct{ Old, Next seen }

// action is the next thing to do: a step, a turn, or the end.
type action struct {
	Step    string
	Why     string  // of a turn or an end
	Outcome Outcome // of an end
}

// How often the engine may refuse a step before it is given up, and how often a
// step may be needed again because something outside undoes it.
const (
	maxFails   = 3
	maxStarts  = 3
	maxRepeats = 6
)

// decide is the whole of a replace and of a put-back: what was observed and what
// the log says give the next action. The agent, a guardian that takes over and a
// later connection all use it, so any of them ends where the others would have.
//
// A replace whose old container must not be started again has no way back: it
// goes forward as long as it can and is held where that fails.
//
// Its one law: a container is started only when the same observation shows the
// other one stopped, with restart policy `no`, so that nothing but us starts it.
func decide(o observation, p progress) action {
	if p.back {
		return decideBack(o, p)
	}
	return decideForward(o, p)
}

func turn(format string, args ...any) action {
	return action{Step: stepTurn, Why: fmt.Sprintf(format, args...)}
}

func stuck(format string, args ...any) action {
	return action{Step: stepEnd, Outcome: InDoubt, Why: fmt.Sprintf(format, args...)}
}

func decideForward(o observation, p progress) action {
	old, next := o.Old, o.Next
	hold := p.holds(old) != ""
	orTurn := orTurn
	if hold && next.runs() && !old.runs() {
		orTurn = orStuck // there is no way back, and the node runs
	}
	switch {
	case !next.Exists:
		return turn("the successor is gone")
	case old.runs() && next.runs():
		return turn("the old container was started beside its successor")
	case hold && old.runs() && old.Policy.Name != "no": // a daemon that restarts must not start it again either
		return orTurn(p, stepOldNo, "the restart policy of the old container cannot be cleared")
	case old.runs():
		return orTurn(p, stepStopOld, "the old container cannot be stopped")
	case old.Exists && old.Policy.Name != "no":
		return orTurn(p, stepOldNo, "the restart policy of the old container cannot be cleared")
	case !next.runs() && p.fails[stepStartNext] > 0:
		return turn("%s", because(p, stepStartNext, "the successor could not be started"))
	case !next.runs() && p.done[stepStartNext] > 0:
		return turn("the successor ended at once with exit code %d", next.ExitCode)
	case !next.runs() && p.intents[stepStartNext] >= maxStarts:
		return turn("the successor was started %d times and does not run", maxStarts)
	case !next.runs():
		return action{Step: stepStartNext}
	case next.Policy != p.spec.nextPolicy(): // after the start: the node is down until then
		return orTurn(p, stepNextPolicy, "the restart policy of the successor cannot be set")
	case old.Exists && old.Name == p.spec.Name:
		return orTurn(p, stepOldAside, "the old container cannot be renamed")
	case next.Name != p.spec.Name:
		return orTurn(p, stepNextName, "the successor cannot take the node's name")
	}
	return action{Step: stepEnd, Outcome: Replaced}
}

// because adds what a step was refused with, which is what an operator has to mend.
func because(p progress, step, what string) string {
	if why := p.why[step]; why != "" {
		return what + ": " + why
	}
	return what
}

// orTurn does a step unless it was refused too often or does not hold.
func orTurn(p progress, step, why string) action {
	if p.fails[step] >= maxFails || p.intents[step] >= maxRepeats {
		return turn("%s", because(p, step, why))
	}
	return action{Step: step}
}

func orStuck(p progress, step, why string) action {
	if p.fails[step] >= maxFails || p.intents[step] >= 2*maxRepeats {
		return stuck("%s", because(p, step, why))
	}
	return action{Step: step}
}

func decideBack(o observation, p progress) action {
	old, next := o.Old, o.Next
	switch {
	case !old.Exists:
		return stuck("the old container is gone; it cannot be put back")
	case p.holds(old) != "" && !old.runs():
		return decideHold(o, p)
	case next.runs():
		return orStuck(p, stepStopNext, "the successor cannot be stopped; the old container was not started beside it")
	case next.Exists && p.startOpen:
		// Nothing runs, but a start may be on its way: a stop after it settles that.
		return orStuck(p, stepStopNext, "a start of the successor may be on its way and cannot be stopped")
	case next.Exists && next.Policy.Name != "no":
		return orStuck(p, stepNextNo, "the restart policy of the successor cannot be cleared")
	case old.runs() && p.intents[stepStopOld] > 0 && old.StartedAt == p.spec.OldStarted && p.done[stepSettleOld] == 0:
		return action{Step: stepSettleOld}
	case old.Policy != p.spec.Policy:
		return orStuck(p, stepOldPolicy, "the restart policy of the old container cannot be restored")
	case !old.runs():
		return orStuck(p, stepStartOld, "the old container cannot be started")
	case nextInWay(next, p):
		return orStuck(p, stepNextFailed, "the successor cannot be renamed out of the way")
	case old.Name != p.spec.Name:
		return orStuck(p, stepOldName, "the old container cannot take the node's name back")
	}
	return action{Step: stepEnd, Outcome: PutBack, Why: p.reason}
}

// nextInWay says whether the successor is to be renamed; from its own temporary
// name only as long as the engine does not refuse.
func nextInWay(next seen, p progress) bool {
	return next.Exists && next.Name != p.spec.FailedName && (next.Name == p.spec.Name || p.fails[stepNextFailed] < maxFails)
}

// decideHold leaves the old container stopped for good, under the node's name: the
// host is on exactly one container, which nothing starts. A successor that runs
// after all, or that was never tried, is the only way to a running node.
func decideHold(o observation, p progress) action {
	old, next := o.Old, o.Next
	switch {
	case next.runs(), next.Exists && p.intents[stepStartNext] == 0 && p.turns < 2:
		return decideForward(o, p)
	case next.Exists && p.startOpen:
		return orStuck(p, stepStopNext, "a start of the successor may be on its way and cannot be stopped")
	case next.Exists && next.Policy.Name != "no":
		return orStuck(p, stepNextNo, "the restart policy of the successor cannot be cleared")
	case old.Policy.Name != "no":
		return orStuck(p, stepOldNo, "the restart policy of the old container cannot be cleared")
	case nextInWay(next, p):
		return orStuck(p, stepNextFailed, "the successor cannot be renamed out of the way")
	case old.Name != p.spec.Name:
		return orStuck(p, stepOldName, "the old container cannot take the node's name back")
	}
	why := "the old container was not started again: " + p.holds(old)
	if p.reason != "" {
		why = p.reason + "; " + why
	}
	return action{Step: stepEnd, Outcome: Held, Why: why}
}
