package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// Steps of a decree in the journal: the one request, and where the nodes stood
// before it, which tells whether it took place.
const (
	stepDecree = "decree"
	stepBefore = "fleet/before"
)

// gossipBlocks is how long, in block times, the gossip of a decree may take, and the
// three seconds after which a node that has it exits (facts 1.18); leastGossip is that
// in real time.
const (
	gossipBlocks = 10
	leastGossip  = 5 * time.Second
)

// decreeBlocks is how long, in block times, a decree may take until every node has
// exited: three seconds, and the way of the gossip (facts 1.18).
const decreeBlocks = 60

// leastDecree is real time: engines start containers again at their own pace.
const leastDecree = 30 * time.Second

// before is where one node stood when the decree was sent.
type before struct {
	Container string    `json:"container"`
	Started   time.Time `json:"started"`
	Height    *uint64   `json:"height"`
}

// restarted says whether a node's process began anew since then.
func (b before) restarted(s sight) bool {
	return s.Reached && (s.Container != b.Container || s.Started.After(b.Started))
}

// DecreeResult is what a decree did on one host. Pruned is nil where nothing lay
// above the target, or where the first height after the start was not seen.
type DecreeResult struct {
	Restarted bool    `json:"restarted"`
	From      *uint64 `json:"from_height"`
	Lowest    *uint64 `json:"lowest_height"` // seen after the start
	Pruned    *bool   `json:"pruned"`
	// runs: the node was seen to run; unnoted: it was away when it was noted where the
	// nodes stand.
	runs, unnoted bool
}

// stepLowest is where the lowest heights since the start are kept, for a process
// that comes when the nodes are long past them.
const stepLowest = "fleet/lowest"

// lowest is the lowest height that was seen of a node since it started anew, and how
// long after the start. A node passes its former height by itself in a while: a look
// from then on tells nothing of what it dropped.
type lowest struct {
	Height uint64        `json:"height"`
	After  time.Duration `json:"after_ns"`
	// Others is the highest height another node showed then: from there a node takes
	// blocks much faster than they are made.
	Others uint64 `json:"others"`
}

// tells says whether a node cannot have come from target to its former height when
// it was seen, neither by itself nor after the others.
func (l *lowest) tells(target uint64, b before, block time.Duration) bool {
	return l.Height < *b.Height || *b.Height > target && l.Others < *b.Height && l.After < time.Duration(*b.Height-target)*block
}

// decree is the Procedure of a decree.
type decree struct {
	*crew
	pulse   *chainWatch
	lowest  map[string]lowest // by host; this, results and refused under the crew's lock
	results map[string]DecreeResult
	handed  map[string]bool   // who was handed the decree after the others, in this process
	refused map[string]string // what such a node answered
}

func newDecree(plan Plan, f *fleet.Fleet) *decree {
	return &decree{crew: newCrew(plan, f), pulse: &chainWatch{fleet: f}, lowest: map[string]lowest{},
		results: map[string]DecreeResult{}, handed: map[string]bool{}, refused: map[string]string{}}
}

// Do runs one phase.
func (d *decree) Do(ctx context.Context, r *Run, phase PhaseName) (t Tally, err error) {
	switch phase {
	case Prepare:
		t, err = d.note(ctx, r)
	case Go:
		t, err = d.submit(ctx, r)
	case Verify:
		t, err = d.verify(ctx, r)
	default:
		return nil, fmt.Errorf("a decree has no phase %s", phase)
	}
	return d.keep(t), err
}

// note writes down where every node stands.
func (d *decree) note(ctx context.Context, r *Run) (Tally, error) {
	sights := lookAll(ctx, d.fleet, d.plan.Hosts)
	t, all := Tally{}, map[string]before{}
	for _, id := range d.plan.Hosts {
		s := sights[id]
		switch {
		case !s.Reached:
			t[id] = Standing{State: Missing, Text: s.Why}
		case !s.runs():
			t[id] = Standing{State: Failed, Down: true, Text: "it does not run"}
		case !comesBack(s.Policy):
			t[id] = Standing{State: Failed, Text: "restart policy " + s.Policy + ": it would exit and not be started again (docker update " +
				"--restart always)"}
		default:
			all[id] = before{Container: s.Container, Started: s.Started, Height: s.Height}
			t.finish(id, "runs, restart policy %s", s.Policy)
		}
	}
	return t, errors.Join(ctx.Err(), r.Record(ctx, stepBefore, "note where the nodes stand", all))
}

func (d *decree) before(ctx context.Context, r *Run) map[string]before {
	all := map[string]before{}
	if raw := r.Result(ctx, stepBefore); raw != nil && json.Unmarshal(raw, &all) != nil {
		return nil
	}
	return all
}

// accepted says whether the request is known to have taken place.
func (d *decree) accepted(ctx context.Context, r *Run) bool {
	return r.Result(ctx, d.plan.Decree.Via+"/"+stepDecree) != nil
}

// submit hands the decree over, unless that is known to have happened.
func (d *decree) submit(ctx context.Context, r *Run) (Tally, error) {
	if !d.accepted(ctx, r) {
		if t, err := d.note(ctx, r); err != nil || len(d.open(r, t)) > 0 {
			return t, err // a countdown may lie behind: what was true then need not be now
		}
		if err := d.post(ctx, r); err != nil {
			return d.last, err
		}
	}
	return d.all("the decree is out"), nil
}

// hand is the journaled request to the node of one host.
//
// A node that was asked before and has this number applied has taken that request
// after all, or another one of the same number; the looks at every node that follow
// tell.
func (d *decree) hand(ctx context.Context, r *Run, id string) (answer host.DecreeAnswer, err error) {
	p, asked := d.plan.Decree, stepBegun(ctx, r, id, stepDecree)
	hst, _ := d.fleet.Inventory().Host(id)
	req := host.DecreeRequest{Container: hst.Container, Port: hst.APIPort, Seq: p.Seq, Target: p.Target, Sigs: p.Sigs}
	err = r.Step(ctx, id, stepDecree, fmt.Sprintf("hand decree %d to the node", p.Seq), func(ctx context.Context,
		w *host.Writer) (any, error) {
		var err error
		answer, err = w.Decree(ctx, req)
		switch {
		case errors.Is(err, host.ErrNodeDoubt), errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("%w: %w", err, journal.ErrUnknownOutcome)
		case err != nil:
			return nil, err
		case asked && strings.Contains(answer.Refused, seqApplied):
			answer = host.DecreeAnswer{Accepted: true}
		case !answer.Accepted:
			return nil, fmt.Errorf("the node refuses: %s", answer.Refused)
		}
		return answer, nil
	})
	return answer, err
}

func (d *decree) post(ctx context.Context, r *Run) error {
	p := d.plan.Decree
	answer, err := d.hand(ctx, r, p.Via)
	switch {
	case answer.Refused != "" && r.Again:
		return &rolling.StoppedError{Operation: r.Op.ID(), Node: p.Via, Reason: fmt.Sprintf("it refuses decree %d: %s%s", p.Seq,
			answer.Refused, meaning(answer.Refused)),
			Next: fmt.Sprintf("nothing has happened: qnetops abort %s ends it, then submit what the node asks for", r.Op.ID())}
	case answer.Refused != "":
		return &rolling.RefusedError{Checks: []observe.Check{{Name: "decree", Verdict: observe.Fail,
			Reason: fmt.Sprintf("the node of host %s refuses decree %d: %s%s", p.Via, p.Seq, answer.Refused, meaning(answer.Refused))}}}
	case err != nil && ctx.Err() == nil && errors.Is(err, journal.ErrUnknownOutcome):
		r.Say(rolling.Event{Node: p.Via, Kind: rolling.KindNote, Name: stepDecree, State: "in_doubt",
			Text: "the answer was lost; looking whether the nodes start anew"})
		if err := d.settle(ctx, r, false); err != nil || d.accepted(ctx, r) {
			return err
		}
		return &rolling.StoppedError{Operation: r.Op.ID(), Node: p.Via, Reason: "the decree did not reach the nodes: none of " +
			"them has started anew",
			Next: fmt.Sprintf("qnetops resume %s sends it again; qnetops abort %s ends it, nothing has happened", r.Op.ID(), r.Op.ID())}
	}
	return err
}

// seqApplied is in the refusal of a node that has applied this number or a higher one
// (facts 1.18).
const seqApplied = "seq at or below"

// meaning adds to a refusal of the node what it asks of the operator.
func meaning(words string) string {
	switch {
	case strings.Contains(words, seqApplied):
		return ": this number or a higher one was applied before; have a higher one endorsed"
	case strings.Contains(words, "signature quorum not met"):
		return ": at least one signature is not true for this number and height; gather them again with decree endorse"
	case strings.Contains(words, "certified floor"):
		return ": no decree goes there; take the floor it names or more"
	case strings.Contains(words, "local interface only"):
		return ": the agent on the host is not seen as an internal caller (facts 1.0)"
	}
	return ""
}

// settle decides by looking whether a decree in doubt took place: the nodes exit and
// start anew where it did. It is never sent again before that is known. byWord lets a
// person's word count where they do not show it: it is said of what was in doubt then,
// and not of a request of this run.
func (d *decree) settle(ctx context.Context, r *Run, byWord bool) error {
	record, err := r.Op.Record(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, s := range record.Unsettled() {
		id, name := splitStep(s.ID)
		if name != stepDecree {
			continue
		}
		if id != d.plan.Decree.Via { // the others have it
			if err := r.Op.Settle(context.WithoutCancel(ctx), s.ID, journal.StepFailed, "it may be handed over again: a node that has "+
				"taken it refuses its number", nil); err != nil {
				return err
			}
			continue
		}
		state, text, err := d.look(ctx, r)
		if err != nil {
			return err
		}
		if said, why := d.word(r); state == journal.StepInDoubt && byWord && said != "" {
			state, text = said, "by the operator's word: "+why
		}
		if state == journal.StepInDoubt {
			return &rolling.InDoubtError{Operation: r.Op.ID(), Node: d.plan.Decree.Via, Reason: "whether the decree was taken: " + text +
				fmt.Sprintf("; whoever has looked at the nodes' logs says so: qnetops resume %s --waive decree_taken=REASON, or --waive "+
					"decree_not_taken=REASON", r.Op.ID())}
		}
		if err := r.Op.Settle(context.WithoutCancel(ctx), s.ID, state, "looked: "+text,
			host.DecreeAnswer{Accepted: state == journal.StepDone}); err != nil {
			return err
		}
		r.Say(rolling.Event{Node: d.plan.Decree.Via, Kind: rolling.KindNote, Name: s.ID, State: string(state),
			Text: "settled by looking: " + text})
	}
	return nil
}

// word is what a person says of the decree who has looked where the nodes do not tell;
// "" for nothing.
func (d *decree) word(r *Run) (state journal.StepState, why string) {
	if !r.Again {
		return "", ""
	}
	if why, said := waived("decree_taken", r.Waivers); said {
		return journal.StepDone, "it was taken, " + why
	}
	if why, said := waived("decree_not_taken", r.Waivers); said {
		return journal.StepFailed, "it was not taken, " + why
	}
	return "", ""
}

// look waits until the nodes show whether they took the decree.
func (d *decree) look(ctx context.Context, r *Run) (state journal.StepState, text string, err error) {
	was, block := d.before(ctx, r), d.fleet.Inventory().Block
	err = repeat(ctx, max(block, leastPoll), max(decreeBlocks*block, leastDecree), func(late bool) (bool, error) {
		state, text = judgeDoubt(was, lookAll(ctx, d.fleet, slices.Sorted(maps.Keys(was))), late)
		return state != journal.StepInDoubt, ctx.Err()
	})
	return state, text, err
}

// judgeDoubt says whether a decree was taken, from which nodes have started anew:
// two of them do not by chance. late says that the time for it is over.
func judgeDoubt(was map[string]before, sights map[string]sight, late bool) (journal.StepState, string) {
	var anew, unseen []string
	for id, b := range was {
		switch s := sights[id]; {
		case !s.Reached:
			unseen = append(unseen, id)
		case b.restarted(s) || !s.runs():
			anew = append(anew, id)
		}
	}
	slices.Sort(anew)
	slices.Sort(unseen)
	switch {
	case len(was) == 0:
		return journal.StepInDoubt, "it is not known where the nodes stood before"
	case len(anew) >= min(2, len(was)):
		return journal.StepDone, strings.Join(anew, ", ") + " have ended or started anew since it was sent"
	case late && len(anew)+len(unseen) == 0:
		return journal.StepFailed, "no node has started anew since it was sent"
	}
	return journal.StepInDoubt, fmt.Sprintf("started anew: %s; cannot be seen: %s", orNone(anew), orNone(unseen))
}

func orNone(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}

// verify sees every node start anew with its blocks above the target gone, and the
// chain go on.
func (d *decree) verify(ctx context.Context, r *Run) (t Tally, err error) {
	was, away := d.before(ctx, r), passedBy(ctx, r, Prepare, Go)
	if raw := r.Result(ctx, stepLowest); raw != nil && json.Unmarshal(raw, &d.lowest) != nil {
		d.lowest = map[string]lowest{}
	}
	if t, err = d.await(ctx, r, was, away); err != nil || len(d.open(r, t)) > 0 {
		return t, err
	}
	var here []string
	for _, id := range d.plan.Hosts {
		if t[id].State == Finished {
			here = append(here, id)
		}
	}
	return t, d.pulse.run(ctx, r, here, "a decree")
}

// await waits until every node has started anew and come up, or the time for it is
// over. Who has missed the decree when the gossip must have reached him is handed it:
// the longer he holds the blocks that the others have dropped, with their votes, the
// more likely it is that he certifies them alone.
func (d *decree) await(ctx context.Context, r *Run, was map[string]before, away Tally) (t Tally, err error) {
	block := d.fleet.Inventory().Block
	gossiped := time.Now().Add(max(gossipBlocks*block, leastGossip))
	err = repeat(ctx, max(block, leastPoll), max((decreeBlocks+bootBlocks)*block, leastDecree), func(late bool) (bool, error) {
		known := len(d.lowest)
		t = d.round(ctx, r, was, late)
		if len(d.lowest) > known {
			if err := r.Record(ctx, stepLowest, "note how low the nodes started anew", d.lowest); err != nil {
				return false, err
			}
		}
		missed := d.missed()
		if len(missed) > 0 && (late || time.Now().After(gossiped)) {
			if err := d.handOver(ctx, r, missed); err != nil {
				return false, err
			}
			maps.DeleteFunc(away, func(id string, _ Standing) bool { return slices.Contains(missed, id) }) // they are back
			was = d.before(ctx, r)
		}
		waits := maps.Clone(t)
		maps.DeleteFunc(waits, func(id string, _ Standing) bool { _, gone := away[id]; return gone })
		return len(missed) == 0 && settledAll(waits), ctx.Err()
	})
	return t, err
}

// highestOf is the highest height that another host shows.
func highestOf(sights map[string]sight, but string) (top uint64) {
	for id, s := range sights {
		if id != but && s.Reached && s.Height != nil {
			top = max(top, *s.Height)
		}
	}
	return top
}

func (d *decree) round(ctx context.Context, r *Run, was map[string]before, late bool) Tally {
	t := Tally{}
	sights := lookAll(ctx, d.fleet, d.plan.Hosts)
	rolling.Each(ctx, d.plan.Hosts, func(ctx context.Context, id string) {
		s := sights[id]
		up := false
		if s.Reached && s.runs() {
			lines, err := runLines(ctx, d.fleet, id, s.Since)
			up = err == nil && slices.ContainsFunc(lines, node.BringupComplete)
		}
		alike := d.alike(ctx, id)
		d.mu.Lock()
		defer d.mu.Unlock()
		b, known := was[id]
		if low, seen := d.lowest[id]; known && b.restarted(s) && s.Height != nil && (!seen || *s.Height < low.Height) {
			d.lowest[id] = lowest{*s.Height, time.Since(s.Started), highestOf(sights, id)}
		}
		var low *lowest
		if l, seen := d.lowest[id]; seen {
			low = &l
		}
		var res DecreeResult
		t[id], res = judgeDecree(d.plan.Decree.Target, d.fleet.Inventory().Block, b, known, s, low, up, late)
		switch words := d.refused[id]; {
		case words == "" || !res.missed() || !s.runs():
		case alike > 0:
			t[id] = Standing{State: Finished, Text: fmt.Sprintf("has pruned nothing: it was away, and holds macroblock %d of the chain "+
				"that the others went on with", alike)}
		case late:
			t[id] = Standing{State: Failed, Text: "it was handed the decree and refuses it: " + words}
		default:
			t[id] = Standing{State: Waiting, Text: "it was handed the decree and refuses it: " + words + "; whether it is on the chain of " +
				"the others shows with their next seal"}
		}
		res.runs = s.runs()
		if s.Reached { // else what was seen of it before stays, or nothing is known
			d.results[id] = res
		}
		r.Say(rolling.Event{Node: id, Kind: rolling.KindWait, Name: string(Verify), State: string(t[id].State), Text: t[id].Text})
	})
	return t
}

// judgeDecree says how a node stands after a decree to target. low is the lowest
// height seen since its start, nil for none, up that it has come up, late that the
// time is over.
func judgeDecree(target uint64, block time.Duration, b before, known bool, s sight, low *lowest, up, late bool) (Standing,
	DecreeResult) {
	res := DecreeResult{From: b.Height}
	if low != nil {
		res.Lowest = &low.Height
	}
	open := func(text string) Standing {
		if late {
			return Standing{State: Failed, Text: text + ", and the time for it is over", Down: s.Reached && !s.runs()}
		}
		return Standing{State: Waiting, Text: text, Down: s.Reached && !s.runs()}
	}
	switch {
	case !s.Reached:
		return Standing{State: Missing, Text: s.Why}, res
	case !known:
		res.unnoted = true
		return Standing{State: Missing, Text: "it is not known where it stood before the decree"}, res
	case !s.runs():
		return open(fmt.Sprintf("it ended with exit code %d and has not been started again (restart policy %s)", s.ExitCode,
			s.Policy)), res
	case !b.restarted(s):
		return open("it has not started anew: the decree has not reached it, or its certified floor is above the target and it " +
			"refuses"), res
	}
	res.Restarted = true
	text := "started anew"
	switch above := b.Height != nil && *b.Height > target; {
	case low != nil && above && !low.tells(target, b, block):
		text += fmt.Sprintf("; it was seen at height %d only %s later, when it could have passed the %d it was at before",
			low.Height, low.After.Round(time.Second), *b.Height)
	case low != nil && above:
		pruned := low.Height < *b.Height
		res.Pruned = &pruned
		if text += fmt.Sprintf(" at height %d, was at %d", low.Height, *b.Height); !pruned {
			return Standing{State: Failed, Text: text + ": nothing was pruned"}, res
		}
	case above:
		text += "; its height has not been seen since"
	default:
		text += ", nothing above the target was seen on it before"
	}
	if !up {
		return open(text + "; it has not come up yet"), res
	}
	return Standing{State: Finished, Text: text}, res
}

// Undo has nothing to take back: before the request nothing is changed.
func (d *decree) Undo(context.Context, *Run, PhaseName) error { return nil }

// Returnable refuses once the decree is out.
func (d *decree) Returnable(ctx context.Context, r *Run) error {
	if !d.accepted(ctx, r) {
		return nil
	}
	return &rolling.RefusedError{Checks: []observe.Check{{Name: "point_of_no_return", Verdict: observe.Fail,
		Reason: fmt.Sprintf("decree %d is out and the nodes prune by it; qnetops resume %s goes on looking", d.plan.Decree.Seq,
			r.Op.ID())}}}
}

// Settle settles the request where its outcome is not known.
func (d *decree) Settle(ctx context.Context, r *Run) error { return d.settle(ctx, r, true) }

func (d *decree) hosts(ctx context.Context, _ *Run) []HostResult {
	out := d.seenResults(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range out {
		if x, known := d.results[out[i].ID]; known {
			out[i].Decree = &x
		}
	}
	return out
}

func (d *decree) chain() *Chain { return d.pulse.report() }
