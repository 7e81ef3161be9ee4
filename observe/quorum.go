package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// ErrNoCommittee says that no node serves a proof from which the committee can
// be read; nothing may be stopped then.
var ErrNoCommittee = errors.New("no node serves a proof that names the committee")

// CommitteeError says that nodes name different committees for one macroblock.
type CommitteeError struct {
	Index uint64
	Hosts [2]string
}

func (e *CommitteeError) Error() string {
	return fmt.Sprintf("hosts %s and %s name different committees for macroblock %d", e.Hosts[0], e.Hosts[1], e.Index)
}

// Hint says what to look at.
func (e *CommitteeError) Hint() string {
	return "one of them holds a bad seal and should drop it by itself; look again, then at qnetops status"
}

// Quorum counts from live readings who would vote while one host is stopped. Its
// requests to one node are paced to stay under half of the node's rate limit, so
// a call may take some block times. Use an Electorate to ask again and again: it
// remembers certificates it has read.
func Quorum(ctx context.Context, f *fleet.Fleet, without string) (Voters, error) {
	return NewElectorate(f).Count(ctx, without)
}

// Electorate counts voters again and again and remembers the certificates that
// do not change.
type Electorate struct {
	crew crew

	mu     sync.Mutex
	proofs map[string]map[uint64]node.Proof // host id -> macroblock -> proof
	ids    map[string]string                // host id -> node id
	began  struct {                         // the first reading of the tip
		at  time.Time
		tip uint64
	}
}

// paceBlocks is how many blocks must have passed before their pace is believed.
const paceBlocks = 30

// pace is the time a block has taken since the first count. Before that is
// known the chain is taken to run at half its speed.
func (e *Electorate) pace(now time.Time, tip uint64, block time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.began.at.IsZero() {
		e.began.at, e.began.tip = now, tip
	}
	if tip < e.began.tip+paceBlocks {
		return max(2*block, now.Sub(e.began.at)/time.Duration(max(tip-min(tip, e.began.tip), 1)))
	}
	return now.Sub(e.began.at) / time.Duration(tip-e.began.tip)
}

// NewElectorate gives an empty memory over a fleet.
func NewElectorate(f *fleet.Fleet) *Electorate { return newElectorate(fleetCrew{f}) }

func newElectorate(c crew) *Electorate {
	return &Electorate{crew: c, proofs: map[string]map[uint64]node.Proof{}, ids: map[string]string{}}
}

// ballot is one host while voters are counted.
type ballot struct {
	reading  VoterReading
	target   target
	position node.Position
	pace     *pacer
}

// Count reads the fleet and counts. The error is an ended ctx, ErrNoCommittee or
// a *CommitteeError; hosts that fail simply do not count.
func (e *Electorate) Count(ctx context.Context, without string) (Voters, error) {
	block := e.crew.Block()
	if block <= 0 {
		block = node.BlockTime
	}
	patience := max(3*block, leastTimeout)
	ballots := e.read(ctx, block, patience)
	committee, err := e.committee(ctx, ballots, patience)
	if err != nil {
		return Voters{}, err
	}
	in := VoterInput{Now: time.Now(), Block: block, Committee: committee, Tip: believedTip(ballots, block), Without: without}
	in.Pace = e.pace(in.Now, in.Tip, block)
	in.Signers = e.signers(ctx, ballots, committee, patience)
	e.participation(ctx, ballots, in, block)
	for _, b := range ballots {
		in.Hosts = append(in.Hosts, b.reading)
	}
	if err := ctx.Err(); err != nil {
		return Voters{}, err
	}
	return CountVoters(in), nil
}

// read takes position, id and last start of every host.
func (e *Electorate) read(ctx context.Context, block, patience time.Duration) []*ballot {
	hosts := e.crew.Hosts()
	ballots := make([]*ballot, len(hosts))
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for i, h := range hosts {
		b := &ballot{reading: VoterReading{HostID: h.ID}, pace: newPacer(block)}
		ballots[i] = b
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if err := e.readOne(ctx, b, patience); err != nil {
				b.reading.Reachable, b.reading.Why = false, err.Error()
			}
		})
	}
	wg.Wait()
	return ballots
}

func (e *Electorate) readOne(parent context.Context, b *ballot, patience time.Duration) error {
	b.reading.NodeID = e.knownID(b.reading.HostID)
	t, err := e.crew.Target(parent, b.reading.HostID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	if b.position, err = t.Node().Position(ctx); err != nil {
		return err
	}
	if b.reading.NodeID == "" {
		if b.reading.NodeID, err = nodeID(ctx, t.Node()); err == nil {
			e.mu.Lock()
			e.ids[b.reading.HostID] = b.reading.NodeID
			e.mu.Unlock()
		}
	}
	b.target, b.reading.Reachable, b.reading.Height = t, true, &b.position.Height
	slow, stop := context.WithTimeout(parent, hostTimeout)
	defer stop()
	c, err := t.Inspect(slow)
	if err != nil || c.StartedAt.IsZero() || c.State != "running" {
		return nil // the last start stays unknown, and with it the vote
	}
	started := c.StartedAt
	if off, err := t.Clock(slow); err == nil {
		started = started.Add(-off)
	}
	b.reading.StartedAt = &started
	return nil
}

// knownID gives the id read earlier in this run. A node keeps its id over a
// restart, and knowing it tells which member a node that is down was.
func (e *Electorate) knownID(hostID string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ids[hostID]
}

// believedTip is the highest height, less what a node claims far above a
// majority that stands together.
func believedTip(ballots []*ballot, block time.Duration) uint64 {
	v := View{Block: block}
	for _, b := range ballots {
		if b.reading.Height != nil {
			v.Nodes = append(v.Nodes, NodeView{Samples: []Sample{{Height: *b.reading.Height}}})
		}
	}
	j := judgement{view: &v, why: make([]string, len(v.Nodes))}
	j.overclaims()
	j.measure()
	if j.best == nil {
		return 0
	}
	return j.best.Height
}

// committeeHolds checks that a proof's committee is the one its certificate
// commits to. Without the macroblock itself nothing more can be said.
func committeeHolds(p node.Proof) error {
	switch {
	case len(p.Committee) == 0:
		return fmt.Errorf("proof of macroblock %d names no committee", p.Index)
	case p.Checkpoint.WindowHeadHeight != node.WindowHead(p.Index),
		node.Beacon(p.Checkpoint.WindowMBHashes) != p.Checkpoint.Beacon,
		node.EpochCommitment(p.EligibleRaw, p.Committee, p.Banned) != p.Checkpoint.EpochCommitment:
		return fmt.Errorf("proof of macroblock %d contradicts itself", p.Index)
	}
	for i, id := range p.Signers {
		if !slices.Contains(p.Committee, id) || slices.Contains(p.Signers[:i], id) {
			return fmt.Errorf("proof of macroblock %d has signers that cannot be", p.Index)
		}
	}
	return nil
}

// committee is that of the newest macroblock for which some node serves a proof
// that holds; all nodes that serve one for it must name the same.
func (e *Electorate) committee(ctx context.Context, ballots []*ballot, patience time.Duration) (Committee, error) {
	for back := range uint64(signerWindows) {
		index := newestSeal(ballots)
		if index <= back {
			break
		}
		index -= back
		var out Committee
		var from string
		e.proofsOf(ctx, ballots, index, patience)
		for _, b := range ballots {
			p, ok := e.proof(b.reading.HostID, index)
			switch {
			case !ok || committeeHolds(p) != nil:
			case from == "":
				from = b.reading.HostID
				out = Committee{Index: index, Members: p.Committee, Quorum: node.QuorumSize(len(p.Committee))}
			case !slices.Equal(out.Members, p.Committee):
				e.forget(index)
				return Committee{}, &CommitteeError{index, [2]string{from, b.reading.HostID}}
			}
		}
		if from != "" {
			return out, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return Committee{}, err
	}
	return Committee{}, ErrNoCommittee
}

// newestSeal is the highest sealed macroblock a node says it holds, but no more
// than a window above what the second one says: one word alone may be a lie.
func newestSeal(ballots []*ballot) uint64 {
	var held []uint64
	for _, b := range ballots {
		if b.target != nil {
			held = append(held, b.position.LastSealed)
		}
	}
	slices.Sort(held)
	switch n := len(held); n {
	case 0:
		return 0
	case 1:
		return held[0]
	default:
		return min(held[n-1], held[n-2]+1)
	}
}

// signers unites the signers of the last ten windows over all nodes. It stops as
// soon as every member was seen, since more windows could add nothing.
func (e *Electorate) signers(ctx context.Context, ballots []*ballot, c Committee, patience time.Duration) map[uint64][]string {
	out := map[uint64][]string{}
	seen := map[string]bool{}
	for back := range uint64(signerWindows) {
		if c.Index <= back || ctx.Err() != nil {
			break
		}
		index := c.Index - back
		e.proofsOf(ctx, ballots, index, patience)
		for _, b := range ballots {
			p, ok := e.proof(b.reading.HostID, index)
			if !ok || committeeHolds(p) != nil {
				continue
			}
			for _, id := range p.Signers {
				seen[id] = true
				if !slices.Contains(out[index], id) {
					out[index] = append(out[index], id)
				}
			}
		}
		if !slices.ContainsFunc(c.Members, func(id string) bool { return !seen[id] }) {
			break
		}
	}
	return out
}

// proofsOf fetches what is not remembered yet of one macroblock, from all nodes
// at once, each at its own pace.
func (e *Electorate) proofsOf(ctx context.Context, ballots []*ballot, index uint64, patience time.Duration) {
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for _, b := range ballots {
		if _, have := e.proof(b.reading.HostID, index); have || b.target == nil || b.position.LastSealed < index {
			continue
		}
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if !b.pace.wait(ctx) {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			p, err := b.target.Node().Proof(ctx, index)
			if err != nil {
				return
			}
			// Signatures and keys are megabytes on a large committee and are not
			// looked at here.
			p.Sigs, p.CommitteePubkeys = nil, nil
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.proofs[b.reading.HostID] == nil {
				e.proofs[b.reading.HostID] = map[uint64]node.Proof{}
			}
			e.proofs[b.reading.HostID][index] = p
			// A long roll passes many windows; what is out of reach is let go.
			maps.DeleteFunc(e.proofs[b.reading.HostID], func(old uint64, _ node.Proof) bool { return old+2*signerWindows < index })
		})
	}
	wg.Wait()
}

func (e *Electorate) proof(hostID string, index uint64) (node.Proof, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, ok := e.proofs[hostID][index]
	return p, ok
}

// forget drops what was remembered of a macroblock: a bad seal is refetched.
func (e *Electorate) forget(index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.proofs {
		delete(m, index)
	}
}

// participation reads the logs of the nodes that no certificate vouches for.
func (e *Electorate) participation(ctx context.Context, ballots []*ballot, in VoterInput, block time.Duration) {
	signed := in.signed()
	since := in.Now.Add(-(participationWindows + 1) * node.MacroblockBlocks * block).Add(-leastTimeout)
	var wg sync.WaitGroup
	for _, b := range ballots {
		if b.target == nil || signed[b.reading.NodeID] {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, hostTimeout)
			defer cancel()
			lines, err := b.target.Lines(ctx, since, 0)
			if err == nil {
				b.reading.Participated = participated(lines)
			}
		})
	}
	wg.Wait()
}

// pacer spaces requests to one node: half of RateRequests in RateWindow, both of
// which scale with the block time. The first two may go at once.
type pacer struct {
	step time.Duration
	next time.Time
}

func newPacer(block time.Duration) *pacer {
	step := 2 * time.Duration(float64(node.RateWindow)/node.RateRequests*float64(block)/float64(node.BlockTime))
	return &pacer{step: step, next: time.Now().Add(-step)}
}

func (p *pacer) wait(ctx context.Context) bool {
	now := time.Now()
	if p.next.Before(now.Add(-p.step)) {
		p.next = now.Add(-p.step)
	}
	d := p.next.Sub(now)
	p.next = p.next.Add(p.step)
	return d <= 0 && ctx.Err() == nil || wait(ctx, d)
}
