package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Node is what Gather asks of a node; *node.Client answers it.
type Node interface {
	Position(ctx context.Context) (node.Position, error)
	Healthz(ctx context.Context) (node.Healthz, error)
	NodeInfo(ctx context.Context) (node.NodeInfo, error)
	RecoveryStatus(ctx context.Context) (node.RecoveryStatus, error)
	Macroblock(ctx context.Context, index uint64) (node.Macroblock, error)
	Proof(ctx context.Context, index uint64) (node.Proof, error)
	SnapshotLatest(ctx context.Context, maxHeight *uint64) (node.Snapshot, error)
	Archive(ctx context.Context) (node.Archive, error)
}

// Log reads the newest lines of the node's log, oldest first, each with the engine's timestamp in front.
type Log interface {
	Tail(ctx context.Context, lines int, each func(line string)) error
}

// Host is one of the operator's hosts as Gather needs it.
type Host struct {
	ID   string
	Node Node // nil: not reached, see Err
	Log  Log  // nil: its log is unknown
	Err  error
}

// Options of Gather.
type Options struct {
	Fleet, Operator string
	ID              string // 32 hex digits, NewID for a first file
	Number          uint64 // 1 for a first file
	Tool            string // version of this program
	Now             time.Time
	Ranges          []IndexRange
	Network         *node.Hash // genesis block, where the operator says it; no route of the node does
	// Block is the chain's block time, 0 for one second. It scales the node's rate limit, and waiting.
	Block time.Duration
	// Patience bounds what one host may take in all; 0 is DefaultPatience and what the ranges need.
	Patience time.Duration
	// Progress is told what is being done, from several goroutines; nil is fine.
	Progress func(host, text string)
}

const (
	// DefaultPatience is what a host may take whose node answers slowly or limits the rate.
	DefaultPatience = 3 * time.Minute
	// MaxAsked is how many macroblocks may be asked for beside the usual ones: two reads each at half the node's rate.
	MaxAsked = 2_000
	// MaxSnapshots is how many snapshots are looked for: a node keeps three and the first.
	MaxSnapshots = 5
	// rereads is how often an index is read again of which hosts say different things: a node drops a bad seal of its own
	// and fetches it again (facts 8 #24).
	rereads = 2
	// besideMacroblocks is how many reads go to everything else.
	besideMacroblocks = 12
	// readsAtOnce is how many requests one node answers at a time.
	readsAtOnce = 4
	// silentAfter is after how many unanswered requests in a row a node is asked nothing more.
	silentAfter = 3
)

// RangeError is a range that cannot be asked for.
type RangeError struct{ text string }

func (e *RangeError) Error() string { return e.text }

// Hint says what a range is.
func (e *RangeError) Hint() string {
	return fmt.Sprintf("give --from A --to B with 1 <= A <= B, at most %d macroblocks; longer ones in several files (--supplement)", MaxAsked)
}

// Gather reads what the nodes of the operator's hosts hold of the chain. A host that fails is in the evidence with its
// reason, and so is every single reading that failed. The error is an ended ctx, a range that cannot be asked for
// (*RangeError), or *NothingError when not one host answered.
func Gather(ctx context.Context, hosts []Host, opts Options) (Evidence, error) {
	ranges, err := joinRanges(opts.Ranges)
	if err != nil {
		return Evidence{}, err
	}
	g := newGathering(hosts, opts, ranges)
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, g.patience())
	defer cancel()
	g.each(func(h *gathered) { h.position(ctx) })
	base := g.base()
	g.each(func(h *gathered) {
		var beside sync.WaitGroup
		beside.Go(func() { h.details(ctx) })
		h.read(ctx, h.plan(base, ranges))
		beside.Wait()
	})
	g.settle(ctx)
	g.forks(ctx)
	if err := outer.Err(); err != nil {
		return Evidence{}, fmt.Errorf("gathering: %w", err)
	}
	return g.evidence(ranges)
}

// NothingError says that no host answered.
type NothingError struct {
	Hosts   []string
	Reasons []string
}

func (e *NothingError) Error() string {
	lines := make([]string, len(e.Hosts))
	for i, id := range e.Hosts {
		lines[i] = "  " + id + ": " + e.Reasons[i]
	}
	return fmt.Sprintf("no evidence: none of %d hosts answered\n%s", len(e.Hosts), strings.Join(lines, "\n"))
}

// Hint says where to look.
func (e *NothingError) Hint() string {
	return "qnetops hosts check says what keeps each host from answering"
}

// CheckRanges says whether ranges can be asked for, before anybody is connected to: *RangeError.
func CheckRanges(ranges []IndexRange) error {
	_, err := joinRanges(ranges)
	return err
}

// joinRanges puts ranges in order and overlapping ones together.
func joinRanges(in []IndexRange) ([]IndexRange, error) {
	out, total := []IndexRange{}, uint64(0)
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b IndexRange) int { return slices.Compare([]uint64{a.From, a.To}, []uint64{b.From, b.To}) })
	for _, r := range in {
		if r.From == 0 || r.To < r.From || r.To > MaxSafe {
			return nil, &RangeError{fmt.Sprintf("%d to %d is no range of macroblocks", r.From, r.To)}
		}
		if n := len(out); n > 0 && r.From <= out[n-1].To+1 {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	for _, r := range out {
		if total += min(r.To-r.From+1, MaxAsked+1); total > MaxAsked {
			return nil, &RangeError{fmt.Sprintf("the ranges hold more than %d macroblocks", MaxAsked)}
		}
	}
	return out, nil
}

// gathering is one run of Gather.
type gathering struct {
	opts  Options
	block time.Duration
	reads int // per host, estimated
	hosts []*gathered
}

func newGathering(hosts []Host, opts Options, ranges []IndexRange) *gathering {
	g := &gathering{opts: opts, block: opts.Block, reads: besideMacroblocks + 2*(NewestSealed+20)}
	if g.block <= 0 {
		g.block = node.BlockTime
	}
	for _, r := range ranges {
		g.reads += 2 * int(r.To-r.From+1)
	}
	certificates := NewCertificates()
	for _, h := range hosts {
		n := &gathered{g: g, host: h, certificates: certificates, slots: make(chan struct{}, readsAtOnce),
			pace: newPace(g.block), blocks: map[uint64]*Macroblock{}, members: map[uint64][]string{}, faults: map[string]string{}}
		n.found = HostFinding{ID: h.ID, Macroblocks: []Macroblock{}, Lines: []Line{}}
		if h.Node == nil {
			n.note("host", cmp.Or[error](h.Err, errNotConnected))
		}
		g.hosts = append(g.hosts, n)
	}
	slices.SortFunc(g.hosts, func(a, b *gathered) int { return strings.Compare(a.host.ID, b.host.ID) })
	return g
}

func (g *gathering) patience() time.Duration {
	if g.opts.Patience > 0 {
		return g.opts.Patience
	}
	// Reads beyond the first RateRequests/2 come at half the node's rate.
	paced := time.Duration(2*g.reads) * node.RateWindow / node.RateRequests
	return DefaultPatience + paced
}

func (g *gathering) say(host, text string) {
	if g.opts.Progress != nil {
		g.opts.Progress(host, text)
	}
}

// each runs fn for the hosts that answer, at once.
func (g *gathering) each(fn func(*gathered)) {
	var wg sync.WaitGroup
	for _, h := range g.hosts {
		if h.host.Node != nil {
			wg.Go(func() { fn(h) })
		}
	}
	wg.Wait()
}

// base is the newest macroblock that two hosts say they hold, or the only one's: with one node ahead, or lying, the others
// are still compared at the same indices.
func (g *gathering) base() uint64 {
	var held []uint64
	for _, h := range g.hosts {
		if h.found.Sealed != nil && *h.found.Sealed > 0 {
			held = append(held, *h.found.Sealed)
		}
	}
	slices.Sort(held)
	switch len(held) {
	case 0:
		return 0
	case 1:
		return held[0]
	}
	return held[len(held)-2]
}

// evidence puts together what was found.
func (g *gathering) evidence(ranges []IndexRange) (Evidence, error) {
	ev := Evidence{Schema: EvidenceSchema, Fleet: g.opts.Fleet, Operator: g.opts.Operator, ID: g.opts.ID, Number: g.opts.Number,
		Tool: g.opts.Tool, TakenAt: g.opts.Now.UTC().Truncate(time.Second), Network: g.opts.Network, Asked: ranges, Hosts: []HostFinding{}}
	answered := false
	var nothing NothingError
	for _, h := range g.hosts {
		f := h.finding()
		answered = answered || f.Reachable
		nothing.Hosts, nothing.Reasons = append(nothing.Hosts, f.ID), append(nothing.Reasons, f.Reason)
		ev.Hosts = append(ev.Hosts, f)
	}
	if !answered {
		return Evidence{}, &nothing
	}
	return ev, nil
}

// settle reads again where hosts of one operator say different things of a macroblock, or a certificate does not fit it,
// after a block time and at most twice: what stays is believed.
func (g *gathering) settle(ctx context.Context) {
	for range rereads {
		odd := g.odd()
		if len(odd) == 0 || !pause(ctx, g.block) {
			return
		}
		g.say("", fmt.Sprintf("reading %d macroblocks again, where nodes differ", len(odd)))
		g.each(func(h *gathered) {
			var again []uint64
			for _, i := range odd {
				if _, read := h.blocks[i]; read {
					again = append(again, i)
				}
			}
			h.read(ctx, again)
		})
	}
}

// odd are the indices of which something is odd: a hash or digest that differs, a certificate that contradicts its
// macroblock. A recovery pin or a pruned certificate is no contradiction.
func (g *gathering) odd() []uint64 {
	hashes, digests := map[uint64]node.Hash{}, map[uint64]node.Hash{}
	odd := map[uint64]bool{}
	differs := func(seen map[uint64]node.Hash, index uint64, h *node.Hash) bool {
		if h == nil {
			return false
		}
		first, ok := seen[index]
		if !ok {
			seen[index] = *h
		}
		return ok && first != *h
	}
	for _, h := range g.hosts {
		for i, m := range h.blocks {
			bad := m.Proof != nil && m.Proof.Fault != "" && m.Proof.Fault != node.FaultRecovery
			if differs(hashes, i, m.Hash) || differs(digests, i, m.Digest) || bad {
				odd[i] = true
			}
		}
	}
	var out []uint64
	for i := range odd {
		out = append(out, i)
	}
	slices.Sort(out)
	return out
}

// parted says whether two nodes have different hashes of one macroblock.
func (g *gathering) parted() bool {
	seen := map[uint64]node.Hash{}
	for _, h := range g.hosts {
		for i, m := range h.blocks {
			if m.Hash == nil {
				continue
			}
			if first, ok := seen[i]; ok && first != *m.Hash {
				return true
			}
			seen[i] = *m.Hash
		}
	}
	return false
}

// forks looks for the exact macroblock at which hosts part, between the newest at which they are known to agree and the
// first at which they are known not to, and takes it and its neighbours into the evidence.
func (g *gathering) forks(ctx context.Context) {
	var branches []Branch
	top := map[string]uint64{}
	for _, h := range g.hosts {
		for i, m := range h.blocks {
			if m.Hash != nil {
				top[h.host.ID] = max(top[h.host.ID], i)
			}
		}
		if top[h.host.ID] > 0 {
			branches = append(branches, Branch{h.host.ID, top[h.host.ID], h})
		}
	}
	if !g.parted() {
		return
	}
	g.say("", "looking for the macroblock at which nodes part")
	found := FindForks(ctx, branches, 0)
	g.each(func(h *gathered) {
		var around []uint64
		for _, f := range found.Forks {
			for _, i := range []uint64{f.Index - 1, f.Index, f.Index + 1, f.Agreed} {
				if _, read := h.blocks[i]; i > 0 && i <= top[h.host.ID] && !read && !slices.Contains(around, i) {
					around = append(around, i)
				}
			}
		}
		slices.Sort(around)
		h.read(ctx, around)
	})
	for _, h := range g.hosts {
		if why, ok := found.Unknown[h.host.ID]; ok {
			h.note("looking for forks", errors.New(why))
		}
	}
}

// pause waits, and says whether there is reason to go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
