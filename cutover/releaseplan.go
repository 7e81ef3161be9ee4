package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// genesisTogether are so many genesis nodes as find each other at a start: one and
// three others.
const genesisTogether = 4

// ReleasePlan is the part of the release of a halted fleet.
type ReleasePlan struct {
	// Of is the halt whose policies are given back; "" where they were named.
	Of   string       `json:"of"`
	Roll rolling.Plan `json:"roll"`
	// From is the highest height a node stopped at: votes and seals above it prove
	// the new start.
	From uint64 `json:"from"`
	// First are the genesis hosts, which are started before the others; at least
	// Least of them must be there, for a genesis that sees fewer than three others
	// waits for ever (facts 3, 8 #14).
	First []string `json:"first"`
	Least int      `json:"least"`
	// Asides are the older containers set aside on each host, by its id: those from
	// before the arming go with the armed ones.
	Asides map[string][]string `json:"asides"`
}

// ReleaseAsk is what the operator asked of a release.
type ReleaseAsk struct {
	Ask
	Image string
	// Policy is the restart policy of every node where no halt of this fleet is in
	// the journal; "" takes the recorded ones.
	Policy string
}

// releaseInput is what a release rests on besides the view and the agents.
type releaseInput struct {
	Of       string
	Policies map[string]host.Policy
	IDs      map[string]string // host -> node id; nil: not known
	Members  rolling.Arithmetic
	Sights   map[string]sight
	Roles    map[string]string
}

func (a ReleaseAsk) spec(policies map[string]host.Policy) rolling.Spec {
	return rolling.Spec{Image: a.Image, Targets: a.Hosts, Skipped: a.Skipped, Waivers: a.Waivers, Policies: policies, KeepOld: true}
}

// newReleasePlan decides the plan of a release. It is pure.
func newReleasePlan(view observe.View, in rolling.Inputs, ask ReleaseAsk, known releaseInput) Plan {
	p := base(KindRelease, view.Fleet, ask.Ask)
	roll := rolling.New(view, in, ask.spec(known.Policies))
	roll.Kind, roll.Committee = "release", known.Members
	for i := range roll.Nodes {
		roll.Nodes[i].Why = "all are started together, genesis hosts first"
	}
	rel := &ReleasePlan{Of: known.Of, Roll: roll, First: []string{}, Asides: map[string][]string{}}
	p.Release, p.Committee = rel, known.Members
	for _, id := range p.Hosts {
		if known.Roles[id] == fleet.RoleGenesis {
			rel.First = append(rel.First, id)
		}
		if stop := known.Sights[id].Stop; stop != nil {
			rel.From = max(rel.From, stop.Height)
		}
		rel.Asides[id] = asides(in.Nodes[id].Facts)
	}
	rel.Least = min(genesisTogether, genesisOf(known.Roles))
	p.Threshold = Threshold{Rule: "every committee member of the inventory", Absent: members(p.Committee.Members, p.Hosts,
		known.IDs)}
	if p.At != "" {
		p.AtPhase = Go
	}
	p.Phases = []Phase{
		{Prepare, "pull the image by digest and create every successor, stopped, without QNET_HALT_HEIGHT",
			"qnetops abort: the successors are removed", ""},
		{Hold, "every host is looked at again: halted, its successor ready", "qnetops abort, as above", ""},
		{Go, "start the successors, genesis hosts first, the others after them", "none; qnetops resume goes on",
			"the first successor that is started: it may write blocks by new rules"},
		{Verify, "each node passes M0 to M4", "none; the old containers are kept until every node has passed", ""},
		{Release, "archive the logs of the old containers and remove them", "none is needed", ""},
	}
	return p
}

func genesisOf(roles map[string]string) int {
	n := 0
	for _, r := range roles {
		if r == fleet.RoleGenesis {
			n++
		}
	}
	return n
}

// asides lists the containers of a node that were set aside, oldest first: the
// stamp in their names sorts by time.
func asides(f host.Facts) []string {
	out := []string{}
	if f.Container == nil {
		return out
	}
	for _, s := range f.Siblings {
		if strings.HasPrefix(s.Name, f.Container.Name+"-pre-") {
			out = append(out, s.Name)
		}
	}
	slices.Sort(out)
	return out
}

// checkHalted asks every host to be halted for good.
func checkHalted(p Plan, sights map[string]sight) []observe.Check {
	var out []observe.Check
	for _, id := range p.Hosts {
		s := sights[id]
		c := observe.Check{Name: "halted", Verdict: observe.Pass}
		switch {
		case !s.Reached:
			c.Verdict, c.Reason = observe.Unknown, id+" cannot be seen: "+s.Why+"; leave it out by name with --skip "+id
		case s.runs():
			c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("%s is %s: a release starts a fleet that has halted", id, s.State)
		case s.Stop == nil:
			c.Reason = fmt.Sprintf("%s: %s, exit code %d, by other means than the halt height", id, s.State, s.ExitCode)
		case !s.Stop.Flushed:
			c.Verdict, c.Reason = observe.Fail, id+": its log does not say that the storage was flushed; look at it before it is started"
		default:
			c.Reason = fmt.Sprintf("%s: stopped at height %d, restart policy %s", id, s.Stop.Height, s.Policy)
		}
		out = append(out, c)
	}
	return out
}

func checkGenesis(p Plan) observe.Check {
	return checkStartSet(len(p.Release.First), 0, p.Release.Least)
}

// checkStartSet refuses to start fewer genesis hosts together than find each other:
// one that sees fewer than three others waits for ever (facts 3, 8 #14). others are
// those of other operators that are known to start with them.
func checkStartSet(first, others, least int) observe.Check {
	c := observe.Check{Name: "start_set", Verdict: observe.Pass, Reason: fmt.Sprintf("%d genesis hosts are started first, %d "+
		"are needed", first, least)}
	if others > 0 {
		c.Reason += fmt.Sprintf(", %d others are ready or run", others)
	}
	if first+others < least {
		c.Verdict = observe.Fail
		c.Reason += ": with fewer they would wait for each other for ever"
	}
	return c
}

// genesisAmong counts the genesis hosts among these; without a list those of the
// whole inventory.
func genesisAmong(view observe.View, ids ...string) (n int) {
	for _, v := range view.Nodes {
		if v.Role == fleet.RoleGenesis && (len(ids) == 0 || slices.Contains(ids, v.ID)) {
			n++
		}
	}
	return n
}

// runningBeside counts the genesis hosts that run and take no part: a node that
// starts finds them.
func runningBeside(view observe.View, hosts []string) (n int) {
	for _, v := range view.Nodes {
		if v.Role == fleet.RoleGenesis && !slices.Contains(hosts, v.ID) && v.Height != nil {
			n++
		}
	}
	return n
}

// startSet is checkStartSet for hosts of a fleet that was looked at.
func startSet(view observe.View, hosts []string, others int) observe.Check {
	return checkStartSet(genesisAmong(view, hosts...), others, min(genesisTogether, genesisAmong(view)+others))
}

// notOfRelease are checks of a roll that ask for a fleet that runs, or that the
// release answers itself.
func notOfRelease(c observe.Check) bool {
	return slices.Contains([]string{"fleet", "committee", "leftover"}, c.Name)
}

// ProposeRelease looks at the halted fleet and decides.
func (o *Operations) ProposeRelease(ctx context.Context, ask ReleaseAsk) (Proposal, error) {
	known, err := o.known(ctx, ask)
	if err != nil {
		return Proposal{}, err
	}
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	in, err := rolling.Gather(ctx, o.Fleet, ask.spec(known.Policies))
	if err != nil {
		return Proposal{}, err
	}
	known.Sights = lookAll(ctx, o.Fleet, ask.Hosts)
	p := Proposal{Plan: newReleasePlan(view, in, ask, known)}
	rolls := slices.DeleteFunc(rolling.Preflight(view, in, p.Plan.Release.Roll), notOfRelease)
	p.Checks = slices.Concat(checkStart(ask.At, time.Now()), checkHalted(p.Plan, known.Sights),
		[]observe.Check{checkGenesis(p.Plan), checkMembers(p.Plan)}, checkPolicies(p.Plan), rolls)
	return p, ctx.Err()
}

func checkPolicies(p Plan) []observe.Check {
	var out []observe.Check
	for _, n := range p.Release.Roll.Nodes {
		if n.NextPolicy == nil {
			out = append(out, observe.Check{Name: "policy", Verdict: observe.Unknown,
				Reason: n.ID + ": the restart policy it had before it was armed is not in the journal; name it with --policy always"})
		}
	}
	return out
}

// known reads from the journal what the newest halt of the fleet recorded.
func (o *Operations) known(ctx context.Context, ask ReleaseAsk) (releaseInput, error) {
	in := releaseInput{Policies: map[string]host.Policy{}, Roles: map[string]string{},
		Members: rolling.Arithmetic{Members: []string{}}}
	for _, h := range o.Fleet.Inventory().Hosts {
		in.Roles[h.ID] = h.Role
	}
	records, err := o.Store.List(ctx, o.Fleet.Inventory().Name)
	if err != nil {
		return in, err
	}
	for _, rec := range records { // newest first
		if ended, err := o.haltEnded(ctx, rec); err != nil {
			return in, err
		} else if !ended {
			continue
		}
		plan, err := LoadPlan(rec.Plan, rec.PlanDigest)
		if err != nil {
			return in, fmt.Errorf("operation %s: %w", rec.ID, err)
		}
		if plan.Halt == nil {
			return in, fmt.Errorf("operation %s: %w", rec.ID, errors.New("its plan holds no halt"))
		}
		in.fill(rec.ID, plan)
		break
	}
	for _, id := range ask.Hosts {
		if ask.Policy != "" {
			in.Policies[id] = host.Policy{Name: ask.Policy}
		}
	}
	return in, nil
}

// haltEnded says whether a record is of a halt that left its fleet down: one that is
// done, or that was closed as it stood.
func (o *Operations) haltEnded(ctx context.Context, rec journal.Record) (bool, error) {
	if rec.Kind != KindHalt || rec.State != journal.Aborted {
		return rec.Kind == KindHalt && rec.State == journal.Done, nil
	}
	op, err := o.Store.Op(ctx, rec.ID)
	if err != nil {
		return false, err
	}
	steps, err := op.Steps(ctx)
	return slices.ContainsFunc(steps, func(s journal.StepRecord) bool { return s.ID == stepClosing }), err
}

// fill takes over what a halt recorded. Who the members' hosts are was settled
// then: no node of a halted fleet can be asked.
func (in *releaseInput) fill(op string, plan Plan) {
	in.Of, in.Members, in.IDs = op, plan.Committee, plan.Halt.IDs
	for _, n := range plan.Halt.Roll.Nodes {
		if n.Policy != nil {
			in.Policies[n.ID] = *n.Policy
		}
	}
}

// ReleaseHalt runs a release that was printed and confirmed.
func (o *Operations) ReleaseHalt(ctx context.Context, ask ReleaseAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) { return o.ProposeRelease(ctx, ask) })
}
