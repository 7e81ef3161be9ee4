package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// DecreePlan is the part of a recovery decree: an order, signed by a quorum of the
// genesis nodes, after which every node prunes above Target and starts anew.
type DecreePlan struct {
	Seq    uint64 `json:"seq"`
	Target uint64 `json:"target_height"` // blocks
	Via    string `json:"via"`           // the host whose node is handed it
	// Genesis are the node ids whose signatures count; empty: not known.
	Genesis []string          `json:"genesis"`
	Quorum  int               `json:"quorum"` // of the genesis set
	Sigs    []node.DecreeSig  `json:"sigs"`
	IDs     map[string]string `json:"ids"` // host -> node id
}

// DecreeAsk is what the operator asked of a decree. Sigs are gathered before it is
// planned: two signatures of one node over one decree need not be equal.
type DecreeAsk struct {
	Ask
	Seq, Target uint64
	Sigs        []node.DecreeSig
}

// genesisSize is the size of the genesis set where it cannot be read (facts 3).
const genesisSize = 5

// firstMacroblock has the genesis set for its committee (facts 3: heights up to 180).
const firstMacroblock = 1

// Endorsement is one host's answer to the request to sign.
type Endorsement struct {
	Host   string `json:"host"`
	NodeID string `json:"node_id,omitempty"`
	Sig    string `json:"sig,omitempty"`
	// Reason is why there is no signature.
	Reason string `json:"reason,omitempty"`
}

// EndorsementDocument holds the signatures of one operator's genesis hosts
// (qnetops/endorsement/v1); decree submit reads it.
type EndorsementDocument struct {
	Schema     string        `json:"schema"`
	Fleet      string        `json:"fleet"`
	Seq        uint64        `json:"seq"`
	Target     uint64        `json:"target_height"`
	Quorum     int           `json:"quorum"` // of the genesis set: so many are needed in all
	Signatures []Endorsement `json:"signatures"`
	Missing    []Endorsement `json:"missing"`
}

// EndorsementSchema is the schema of an EndorsementDocument.
const EndorsementSchema = "qnetops/endorsement/v1"

// Sigs are the document's signatures as the node takes them.
func (d EndorsementDocument) Sigs() []node.DecreeSig {
	var out []node.DecreeSig
	for _, e := range d.Signatures {
		out = append(out, node.DecreeSig{NodeID: e.NodeID, Sig: e.Sig})
	}
	return out
}

// MergeSigs joins lists of signatures, the first of each node, ordered by node.
func MergeSigs(lists ...[]node.DecreeSig) []node.DecreeSig {
	out := []node.DecreeSig{}
	for _, s := range slices.Concat(lists...) {
		if !slices.ContainsFunc(out, func(o node.DecreeSig) bool { return o.NodeID == s.NodeID }) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b node.DecreeSig) int { return strings.Compare(a.NodeID, b.NodeID) })
	return out
}

// Endorse has the nodes of the genesis hosts among ids sign a decree. It changes
// nothing on them. A target below what a host certainly holds certified is refused
// before anything is signed.
func Endorse(ctx context.Context, f *fleet.Fleet, ids []string, seq, target uint64) (EndorsementDocument, error) {
	doc := EndorsementDocument{Schema: EndorsementSchema, Fleet: f.Inventory().Name, Seq: seq, Target: target,
		Quorum:     node.QuorumSize(genesisSize),
		Signatures: []Endorsement{}, Missing: []Endorsement{}}
	view, err := observe.Observe(ctx, f, observe.Options{})
	if err != nil {
		return doc, err
	}
	ask := DecreeAsk{Ask: Ask{Hosts: ids}, Seq: seq, Target: target}
	if err := refused(checkTarget("decree_height", &target, view, decreeForecasts(view, ask)), nil); err != nil {
		return doc, err
	}
	var mu sync.Mutex
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		h, _ := f.Inventory().Host(id)
		if h.Role != fleet.RoleGenesis {
			return
		}
		e := endorseOne(ctx, f, id, seq, target)
		mu.Lock()
		defer mu.Unlock()
		if e.Reason == "" {
			doc.Signatures = append(doc.Signatures, e)
		} else {
			doc.Missing = append(doc.Missing, e)
		}
	})
	for _, list := range [][]Endorsement{doc.Signatures, doc.Missing} {
		slices.SortFunc(list, func(a, b Endorsement) int { return strings.Compare(a.Host, b.Host) })
	}
	if n := len(genesisSet(ctx, f, ids)); n > 0 {
		doc.Quorum = node.QuorumSize(n)
	}
	return doc, ctx.Err()
}

func endorseOne(ctx context.Context, f *fleet.Fleet, id string, seq, target uint64) Endorsement {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return Endorsement{Host: id, Reason: err.Error()}
	}
	sig, err := conn.Node().DecreeEndorse(ctx, seq, target)
	if err != nil {
		return Endorsement{Host: id, Reason: err.Error()}
	}
	return Endorsement{Host: id, NodeID: sig.NodeID, Sig: sig.Sig}
}

// genesisSet reads the genesis ids from the committee of the first macroblock; nil
// where no host serves it, or where two hosts name different ones.
func genesisSet(ctx context.Context, f *fleet.Fleet, ids []string) []string {
	var (
		mu    sync.Mutex
		found [][]string
	)
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		conn, err := rolling.Reach(ctx, f, id)
		if err != nil {
			return
		}
		proof, err := conn.Node().Proof(ctx, firstMacroblock)
		if err != nil || len(proof.Committee) == 0 {
			return
		}
		set := slices.Sorted(slices.Values(proof.Committee))
		mu.Lock()
		defer mu.Unlock()
		found = append(found, set)
	})
	if len(found) == 0 || slices.ContainsFunc(found, func(s []string) bool { return !slices.Equal(s, found[0]) }) {
		return nil
	}
	return found[0]
}

// NewDecree decides the plan of a decree. It is pure.
func NewDecree(view observe.View, ask DecreeAsk, genesis []string, members rolling.Arithmetic) Plan {
	p := base(KindDecree, view.Fleet, ask.Ask)
	d := &DecreePlan{Seq: ask.Seq, Target: ask.Target, Genesis: append([]string{}, genesis...), Sigs: MergeSigs(ask.Sigs),
		IDs: nodeIDs(view), Quorum: node.QuorumSize(genesisSize)}
	if len(genesis) > 0 {
		d.Quorum = node.QuorumSize(len(genesis))
	}
	for _, id := range p.Hosts {
		if n := view.Node(id); d.Via == "" && n != nil && n.Role == fleet.RoleGenesis && n.Height != nil {
			d.Via = id
		}
	}
	p.Decree, p.Committee = d, members
	p.Threshold = Threshold{Rule: fmt.Sprintf("%d signatures of the genesis set, restart policies that bring every node back",
		d.Quorum), Absent: []string{}}
	if p.At != "" {
		p.AtPhase = Go
	}
	p.Phases = []Phase{
		{Prepare, "look at every node and note where it stands; its restart policy must start it again",
			"qnetops abort: nothing has been sent", ""},
		{Go, fmt.Sprintf("hand decree %d to the node of host %s, once; it gossips it", d.Seq, d.Via), "none; qnetops resume goes on",
			fmt.Sprintf("the request: every node that takes the decree deletes its blocks above %d", d.Target)},
		{Verify, fmt.Sprintf("every node was restarted, is pruned and has come up; blocks and a new seal within %d block times",
			stalledBlocks), "none is needed", ""},
	}
	return p
}

func decreeForecasts(view observe.View, ask DecreeAsk) []Forecast {
	return forecasts(view, RollbackAsk{Ask: ask.Ask, Target: &ask.Target})
}

// checkSigs holds the signatures to their form: the node drops a malformed entry in
// silence. Whether a signature is true the node alone can say.
func checkSigs(d DecreePlan) observe.Check {
	c := observe.Check{Name: "signatures", Verdict: observe.Pass}
	var faults, have []string
	for _, s := range d.Sigs {
		switch err := s.CheckForm(); {
		case err != nil:
			faults = append(faults, err.Error())
		case slices.Contains(have, s.NodeID):
			faults = append(faults, s.NodeID+" signs twice")
		case len(d.Genesis) > 0 && !slices.Contains(d.Genesis, s.NodeID):
			faults = append(faults, s.NodeID+" is not of the genesis set and does not count")
		default:
			have = append(have, s.NodeID)
		}
	}
	if len(have) < d.Quorum {
		short := fmt.Sprintf("%d signatures, %d are needed", len(have), d.Quorum)
		gone := func(id string) bool { return slices.Contains(have, id) }
		if missing := slices.DeleteFunc(slices.Clone(d.Genesis), gone); len(missing) > 0 {
			short += "; not there: " + strings.Join(missing, ", ")
		}
		faults = append(faults, short)
	}
	switch {
	case len(faults) > 0:
		c.Verdict, c.Reason = observe.Fail, strings.Join(faults, "; ")
	case len(d.Genesis) == 0:
		c.Verdict, c.Reason = observe.Unknown, "no node serves macroblock 1, or nodes name different committees for it, so "+
			"nobody knows whose signatures count"
	default:
		c.Reason = fmt.Sprintf("%d of %d genesis nodes have signed, %d are needed: %s", len(have), len(d.Genesis), d.Quorum,
			strings.Join(have, ", "))
	}
	return c
}

// checkSeq compares with what this journal knows. The last number that was applied
// is served nowhere; the node itself refuses one at or below it.
func checkSeq(seq uint64, last *uint64) observe.Check {
	c := observe.Check{Name: "decree_seq", Verdict: observe.Pass, Reason: fmt.Sprintf("number %d; the last one applied cannot "+
		"be read, the node refuses one at or below it", seq)}
	switch {
	case seq == 0:
		c.Verdict, c.Reason = observe.Fail, "number 0: the first decree has 1"
	case last != nil && seq <= *last:
		c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("number %d: this journal knows of decree %d; take %d or more", seq, *last,
			*last+1)
	}
	return c
}

// comesBack says whether the engine starts a node again that has exited by itself.
func comesBack(policy string) bool { return policy == "always" || policy == "unless-stopped" }

// checkComesBack asks that every node is started again when it exits.
func checkComesBack(p Plan, sights map[string]sight) []observe.Check {
	var out []observe.Check
	for _, id := range p.Hosts {
		s := sights[id]
		c := observe.Check{Name: "comes_back", Verdict: observe.Pass, Reason: id + ": restart policy " + s.Policy}
		switch {
		case !s.Reached:
			c.Verdict, c.Reason = observe.Unknown, id+" cannot be seen: "+s.Why+"; leave it out by name with --skip "+id
		case !s.runs():
			c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("%s is %s: it would not take the decree; start it, or leave it out by "+
				"name with --skip %s", id, s.State, id)
		case !comesBack(s.Policy):
			c.Verdict, c.Reason = observe.Fail, fmt.Sprintf("%s: restart policy %s: the node exits to start anew, and nothing would "+
				"start it again (docker update --restart always)", id, s.Policy)
		}
		out = append(out, c)
	}
	return out
}

func checkVia(d DecreePlan) observe.Check {
	if d.Via == "" {
		return observe.Check{Name: "via", Verdict: observe.Fail, Reason: "no genesis host whose node answers could be handed the " +
			"decree"}
	}
	return observe.Check{Name: "via", Verdict: observe.Pass, Reason: "host " + d.Via}
}

// ProposeDecree looks at the fleet and decides.
func (o *Operations) ProposeDecree(ctx context.Context, ask DecreeAsk) (Proposal, error) {
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	last, err := o.lastDecree(ctx)
	if err != nil {
		return Proposal{}, err
	}
	members := rolling.New(view, rolling.Inputs{}, rolling.Spec{}).Committee
	p := Proposal{Plan: NewDecree(view, ask, genesisSet(ctx, o.Fleet, ask.Hosts), members)}
	p.Checks = slices.Concat(checkStart(ask.At, time.Now()), []observe.Check{checkSeq(ask.Seq, last), checkSigs(*p.Plan.Decree),
		checkVia(*p.Plan.Decree)},
		checkTarget("decree_height", &ask.Target, view, decreeForecasts(view, ask)),
		[]observe.Check{checkNeeded(view), checkSealedHistory(view)}, checkComesBack(p.Plan, lookAll(ctx, o.Fleet, ask.Hosts)))
	return p, ctx.Err()
}

// lastDecree is the highest number of a decree of this fleet that the journal knows
// to have been handed over, or may have been.
func (o *Operations) lastDecree(ctx context.Context) (*uint64, error) {
	records, err := o.Store.List(ctx, o.Fleet.Inventory().Name)
	if err != nil {
		return nil, err
	}
	var last *uint64
	for _, rec := range records {
		if rec.Kind != KindDecree || !rec.State.Finished() || !handedOver(rec) {
			continue
		}
		plan, err := LoadPlan(rec.Plan, rec.PlanDigest)
		if err != nil || plan.Decree == nil {
			return nil, fmt.Errorf("operation %s: %w", rec.ID, errors.Join(err, errors.New("its plan holds no decree")))
		}
		if last == nil || plan.Decree.Seq > *last {
			last = &plan.Decree.Seq
		}
	}
	return last, nil
}

func handedOver(rec journal.Record) bool {
	return slices.ContainsFunc(rec.Steps, func(s journal.StepRecord) bool {
		_, name := splitStep(s.ID)
		return name == stepDecree && s.State != journal.StepFailed
	})
}

// Decree hands a decree over that was printed and confirmed.
func (o *Operations) Decree(ctx context.Context, ask DecreeAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) { return o.ProposeDecree(ctx, ask) })
}
