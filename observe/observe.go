package observe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// Options of Observe.
type Options struct {
	// Progress is told what is being done; nil is fine. It may be called from
	// several goroutines.
	Progress func(Event)
	// Signers asks every node, not only one, for the certificate of the newest
	// common macroblock, and compares the committee fields.
	Signers bool
	// Voters counts who votes, from the certificates of the last ten windows and
	// the logs, and adds the check "votes": a node whose consensus is frozen
	// follows the chain, answers every route, and is healthy by all else.
	Voters bool
}

// Event is a step of looking.
type Event struct {
	Host string // "" for the fleet
	Text string
}

const (
	// atOnce bounds how many hosts are asked at the same time for what must be of one
	// moment, their positions; thoroughly is the bound for answers that are large or
	// many, which would all be in memory at once.
	atOnce     = 256
	thoroughly = 64
	// leastTimeout is the shortest patience with one request: a lab's blocks may
	// be short, its machine is not faster for that.
	leastTimeout = 2 * time.Second
	// hostTimeout is the patience with engine and SSH, which never scales.
	hostTimeout = 15 * time.Second
	// leastStep and leastStill keep a fast lab chain from being polled more often
	// than answers take, and from being called stalled for a hiccup.
	leastStep  = 20 * time.Millisecond
	leastStill = 1500 * time.Millisecond
)

// Observe looks at all hosts of the fleet at once and judges what it saw. Two
// samples of each node are taken one block time apart, more within three block
// times while something is open, and up to fifteen only while nothing moves. A
// host or node that fails is a NodeView with its reason; the only error is an
// ended ctx. One call costs about seven requests a node; called again and again
// it must be three block times apart to stay under half of the node's rate limit.
func Observe(ctx context.Context, f *fleet.Fleet, opts Options) (View, error) {
	return look(ctx, fleetCrew{f}, opts)
}

func look(ctx context.Context, c crew, opts Options) (View, error) {
	s := newSurvey(c, opts)
	s.connect(ctx)
	s.sample(ctx)
	// What hosts and slow routes say is gathered while the chain moves on.
	var details sync.WaitGroup
	details.Go(func() { s.details(ctx) })
	s.resample(ctx)
	s.seals(ctx)
	details.Wait()
	if err := ctx.Err(); err != nil {
		return View{}, err
	}
	v := Judge(s.view())
	if opts.Voters {
		s.say("", "counting who votes")
		voters, err := newElectorate(c).Count(ctx, "")
		if err := ctx.Err(); err != nil {
			return View{}, err
		}
		if err == nil {
			v.Voters = &voters
		}
		v.Checks = append(v.Checks, votesCheck(voters, err))
	}
	return v, nil
}

// survey is one observation in progress. Each part of a node is written by one
// goroutine at a time: samples and seals by the rounds, the rest by details.
type survey struct {
	crew    crew
	opts    Options
	block   time.Duration
	began   time.Time
	round   int
	nodes   []*subject
	sealing *SealView

	mu     sync.Mutex
	hashes map[node.Hash][]node.Hash // block hashes by the macroblock that holds them
}

// subject is one host under observation.
type subject struct {
	host   fleet.Host
	target target
	seen   NodeView         // by the rounds
	facts  NodeView         // by details
	lost   bool             // did not answer in time: not asked again
	block  *node.Macroblock // the newest that was read
	proof  *node.Proof
}

func newSurvey(c crew, opts Options) *survey {
	s := &survey{crew: c, opts: opts, block: c.Block(), began: time.Now(), hashes: map[node.Hash][]node.Hash{}}
	if s.block <= 0 {
		s.block = node.BlockTime
	}
	for _, h := range c.Hosts() {
		s.nodes = append(s.nodes, &subject{host: h, seen: NodeView{ID: h.ID, Role: h.Role}})
	}
	return s
}

func (s *survey) say(host, text string) {
	if s.opts.Progress != nil {
		s.opts.Progress(Event{host, text})
	}
}

// patience is the time one request to a node may take.
func (s *survey) patience() time.Duration { return max(3*s.block, leastTimeout) }

// each runs fn for the subjects, so many at once, and waits for all.
func each(limit int, nodes []*subject, fn func(*subject)) {
	var wg sync.WaitGroup
	gate := make(chan struct{}, limit)
	for _, n := range nodes {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			fn(n)
		})
	}
	wg.Wait()
}

func (s *survey) connect(ctx context.Context) {
	each(atOnce, s.nodes, func(n *subject) {
		n.target, n.seen.Err = s.crew.Target(ctx, n.host.ID)
		n.seen.Reachable = n.seen.Err == nil
		if n.seen.Err != nil {
			s.say(n.host.ID, "not reached: "+n.seen.Err.Error())
		}
	})
}

// reachable are the subjects that are worth asking.
func (s *survey) reachable() []*subject {
	var out []*subject
	for _, n := range s.nodes {
		if n.target != nil && !n.lost {
			out = append(out, n)
		}
	}
	return out
}

// sample takes one round of positions, the first with /healthz beside it.
func (s *survey) sample(ctx context.Context) {
	first := s.round == 0
	each(atOnce, s.reachable(), func(n *subject) {
		defer n.target.Rest()
		ctx, cancel := context.WithTimeout(ctx, s.patience())
		defer cancel()
		var beside sync.WaitGroup
		var health node.Healthz
		var err error
		if first {
			beside.Go(func() { health, err = n.target.Node().Healthz(ctx) })
		}
		n.position(ctx, s.round)
		beside.Wait()
		if first {
			n.healthz(health, err)
		}
	})
	s.round++
}

func (n *subject) position(ctx context.Context, round int) {
	asked := time.Now()
	p, err := n.target.Node().Position(ctx)
	n.seen.note(askPosition, err)
	if err != nil {
		n.lost = isTimeout(err) || isTimeout(ctx.Err())
		return
	}
	at := asked.Add(time.Since(asked) / 2)
	v := &n.seen
	v.Samples = append(v.Samples, Sample{Round: round, At: at, Height: p.Height, TipHash: p.TipHash})
	v.Height, v.TipHash = &p.Height, p.TipHash
	v.LastSealed, v.SealedLag, v.Finalized = &p.LastSealed, &p.SealedLag, &p.FinalizedHeight
}

func (n *subject) healthz(h node.Healthz, err error) {
	n.seen.note(askHealthz, err)
	if err != nil {
		return
	}
	n.seen.HealthzHeight = &h.Height
	if h.Build != "" {
		n.seen.Build = &h.Build
	}
}

// note remembers how the last question of a kind went.
func (n *NodeView) note(what string, err error) {
	n.Faults = slices.DeleteFunc(n.Faults, func(f Fault) bool { return f.What == what })
	if err != nil {
		n.Faults = append(n.Faults, Fault{what, err})
	}
}

// resample takes the second sample and as many more as are worth waiting for.
func (s *survey) resample(ctx context.Context) {
	step := max(s.block, leastStep)
	still := max(stallBlocks*s.block, leastStill)
	for ctx.Err() == nil {
		passed := time.Since(s.began)
		switch why := open(s.sights()); {
		case s.round >= 2 && why == "":
			return
		case s.round >= 2 && passed >= quietBlocks*s.block && why != openStill:
			return
		case s.watched() >= still:
			return
		case len(s.reachable()) == 0 || s.round >= 2 && !s.anySample():
			return
		case s.round >= 2:
			s.say("", "looking again: "+why)
		}
		if !wait(ctx, step) {
			return
		}
		s.sample(ctx)
	}
}

func (s *survey) anySample() bool {
	return slices.ContainsFunc(s.nodes, func(n *subject) bool { return len(n.seen.Samples) > 0 })
}

// watched is the time since the first sample that was taken.
func (s *survey) watched() time.Duration {
	var longest time.Duration
	for _, n := range s.nodes {
		if l := n.seen.last(); l != nil {
			longest = max(longest, l.At.Sub(n.seen.Samples[0].At))
		}
	}
	return longest
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sights is what the rounds have seen so far, while details are still at work.
func (s *survey) sights() View {
	v := View{Fleet: s.crew.Name(), Block: s.block, TakenAt: s.began, Seal: s.sealing}
	for _, n := range s.nodes {
		v.Nodes = append(v.Nodes, n.seen)
	}
	return v
}

// view adds what details gathered; only after they are done.
func (s *survey) view() View {
	v := s.sights()
	for i, n := range s.nodes {
		v.Nodes[i] = v.Nodes[i].with(n.facts)
	}
	return v
}

// with adds what details gathered to what the rounds gathered.
func (n NodeView) with(d NodeView) NodeView {
	n.Container, n.NoContainer, n.NodeID = d.Container, d.NoContainer, d.NodeID
	n.ValidatedPeers, n.Peers, n.TimeoutRound = d.ValidatedPeers, d.Peers, d.TimeoutRound
	n.FailoverCount, n.ClockDriftSecs = d.FailoverCount, d.ClockDriftSecs
	n.ClockOffset, n.Disk, n.LogLevel, n.HaltHeight = d.ClockOffset, d.Disk, d.LogLevel, d.HaltHeight
	n.Updaters, n.UpdatersKnown, n.TLSTerminators, n.Leftovers = d.Updaters, d.UpdatersKnown, d.TLSTerminators, d.Leftovers
	n.Faults = slices.Concat(n.Faults, d.Faults)
	return n
}
