package restart

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// reachBytes is how much of a snapshot is read from another host: enough to see that it flows.
const reachBytes = 64 << 10

// reachAtOnce bounds the hosts that read from the designated one at a time; it has sixteen permits for all.
const reachAtOnce = 4

// A chain that moves usually shows it soon; one stands when no height moved for standBlocks block times (DESIGN.md 3.4).
const (
	soonBlocks  = 3
	standBlocks = 15
)

// ask bounds one question in time.
func (r *archiveRun) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.in.Patience)
	defer cancel()
	return question(ctx)
}

// read is ask for a transfer. One that flows and is not done when the time is over is slow, and that is what is to be measured.
func (r *archiveRun) read(ctx context.Context, transfer func(context.Context) (node.Transfer, error)) (t node.Transfer, err error) {
	err = r.ask(ctx, func(ctx context.Context) (err error) {
		t, err = transfer(ctx)
		return err
	})
	if t.Bytes > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return t, nil
	}
	return t, err
}

// each asks all hosts that were reached, at most so many at a time.
func (r *archiveRun) each(limit int, ask func(i int, h ArchiveHost)) {
	var wg sync.WaitGroup
	permits := make(chan struct{}, limit)
	for i, h := range r.in.Hosts {
		permits <- struct{}{}
		wg.Go(func() {
			defer func() { <-permits }()
			ask(i, h)
		})
	}
	wg.Wait()
}

const hostsAtOnce = 64

// heights reads where every node stands; nil for those that do not say.
func (r *archiveRun) heights(ctx context.Context) []*node.Position {
	out := make([]*node.Position, len(r.in.Hosts))
	r.each(hostsAtOnce, func(i int, h ArchiveHost) {
		if h.Node == nil {
			return
		}
		_ = r.ask(ctx, func(ctx context.Context) error {
			p, err := h.Node.Position(ctx)
			if err == nil {
				out[i] = &p
			}
			return err
		})
	})
	return out
}

// moving compares the heights with those at the start, soon and, where none moved, again after standBlocks: one node that moved
// is enough, none that did is only an answer where somebody said his height both times.
func (r *archiveRun) moving(ctx context.Context, before []*node.Position, begun time.Time) {
	for _, blocks := range []time.Duration{soonBlocks, standBlocks} {
		t := time.NewTimer(blocks*r.in.Block - time.Since(begun))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if r.compareHeights(before, r.heights(ctx)); r.out.Prune.Moving == nil || *r.out.Prune.Moving {
			return
		}
	}
}

func (r *archiveRun) compareHeights(before, after []*node.Position) {
	var moved *bool
	for i := range after {
		a, b := before[i], after[i]
		if b != nil && r.in.Hosts[i].ID == r.in.Designated && r.out.SnapshotHeight != nil {
			left := *r.out.SnapshotHeight + node.SnapshotKeep*node.SnapshotBlocks
			left -= min(left, b.Height)
			r.out.Prune.Blocks = &left
		}
		if a == nil || b == nil {
			continue
		}
		yes := b.Height > a.Height || b.LastSealed > a.LastSealed || moved != nil && *moved
		moved = &yes
	}
	r.out.Prune.Moving = moved
}

// holders asks every host what state it holds, and names the last one.
func (r *archiveRun) holders(ctx context.Context) {
	out := make([]Holder, len(r.in.Hosts))
	r.each(hostsAtOnce, func(i int, h ArchiveHost) { out[i] = r.holder(ctx, h) })
	slices.SortFunc(out, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
	var yes []string
	open := 0
	for _, h := range out {
		switch h.Holds {
		case HeldYes:
			yes = append(yes, h.ID)
		case HeldUnknown:
			open++
		}
	}
	r.out.Holders = out
	if len(yes) == 1 {
		r.out.LastHolder = &yes[0]
		r.note("%s is the only host shown to hold state at or below macroblock %d: do not touch it", yes[0], r.in.K)
	}
	if open > 0 {
		r.note("of %d hosts it is not known whether they hold such state", open)
	}
}

func (r *archiveRun) holder(ctx context.Context, h ArchiveHost) Holder {
	out := Holder{ID: h.ID, Holds: HeldUnknown}
	if h.Node == nil {
		out.Reason = "not reached"
		if h.Err != nil {
			out.Reason += ": " + publicReason(h.Err)
		}
		return out
	}
	var s node.Snapshot
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		s, err = h.Node.SnapshotLatest(ctx, &r.out.MaxHeight)
		return err
	})
	switch {
	case err == nil:
		out.Holds, out.Height = HeldYes, &s.Height
	case isNotFound(err):
		out.Holds, out.Reason = HeldNo, "offers no snapshot at or below that height"
	default:
		out.Reason = publicReason(err)
	}
	return out
}

func isNotFound(err error) bool {
	var missing *node.NotFoundError
	return errors.As(err, &missing) && !missing.Uncertain
}

// verdict is pass for no error, fail for one that says the thing is not there, and unknown for all others: a busy node, a rate
// limit and a timeout say nothing about what the node holds.
func verdict(err error) observe.Verdict {
	var proof *node.ProofError
	switch {
	case err == nil:
		return observe.Pass
	case isNotFound(err), errors.As(err, &proof):
		return observe.Fail
	}
	return observe.Unknown
}

// snapshot asks the designated host for the newest snapshot at or below K·90 and reads of it what shows that it is served.
func (r *archiveRun) snapshot(ctx context.Context) {
	if r.host.Node == nil {
		r.add(ArchiveSnapshot, observe.Unknown, nil, "%s could not be reached: %s", r.host.ID, publicReason(r.host.Err))
		return
	}
	var s node.Snapshot
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		s, err = r.host.Node.SnapshotLatest(ctx, &r.out.MaxHeight)
		return err
	})
	switch {
	case isNotFound(err):
		r.add(ArchiveSnapshot, observe.Fail, nil, "%s offers no snapshot at or below height %d", r.host.ID, r.out.MaxHeight)
		return
	case err != nil:
		r.add(ArchiveSnapshot, observe.Unknown, nil, "%s", publicReason(err))
		return
	case s.Height == 0:
		r.add(ArchiveSnapshot, observe.Unknown, nil, "%s offers a snapshot of height 0, which is none", r.host.ID)
		return
	}
	r.out.NodeID, r.out.SnapshotHeight = clipped(s.NodeID), &s.Height
	r.add(ArchiveSnapshot, observe.Pass, nil, "%s offers the snapshot of height %d, %d blocks below the end of macroblock %d", r.host.ID, s.Height, r.out.MaxHeight-s.Height, r.in.K)
	r.transfer(ctx, s.Height)
	r.archive(ctx)
}

// transfer reads the manifest with the first and the last chunk, and the first bytes of the whole. One of the two ways is
// enough for a joiner.
func (r *archiveRun) transfer(ctx context.Context, height uint64) {
	seen := map[string]string{}
	say := func(what string, t node.Transfer, err error) observe.Verdict {
		seen[what] = fmt.Sprintf("%d bytes in %s", t.Bytes, t.Elapsed.Round(time.Millisecond))
		if err != nil {
			seen[what] = publicReason(err)
		}
		return verdict(err)
	}
	chunks := r.chunks(ctx, height, seen, say)
	t, err := r.read(ctx, func(ctx context.Context) (node.Transfer, error) {
		return r.host.Node.SnapshotFrame(ctx, height, r.in.ReadBytes)
	})
	frame := say("whole", t, err)
	r.measure(t)
	if t.Size != nil && r.out.SnapshotBytes == nil {
		r.out.SnapshotBytes = t.Size
	}
	got := better(chunks, frame)
	reason := "it is served in chunks and as a whole"
	switch {
	case chunks == observe.Pass && frame != observe.Pass:
		reason = "it is served in chunks; as a whole: " + seen["whole"]
	case got == observe.Pass && chunks != observe.Pass:
		reason = "it is served as a whole; in chunks: " + firstOf(seen, "manifest", "first chunk", "last chunk")
	case got != observe.Pass:
		reason = "it could not be read: " + firstOf(seen, "whole", "manifest", "first chunk", "last chunk")
	}
	r.add(ArchiveTransfer, got, seen, "%s", reason)
	r.forecast()
	if r.out.Rate == nil {
		r.add(ArchiveThroughput, observe.Unknown, nil, "nothing was read of which a rate could be measured")
		return
	}
	size := "of unknown size"
	if r.out.SnapshotBytes != nil {
		size = fmt.Sprintf("of %d bytes", *r.out.SnapshotBytes)
	}
	r.add(ArchiveThroughput, observe.Pass, nil, "%d bytes a second, measured on %d bytes; the snapshot is %s", *r.out.Rate, r.out.ReadBytes, size)
}

func firstOf(seen map[string]string, keys ...string) string {
	for _, k := range keys {
		if seen[k] != "" {
			return k + ": " + seen[k]
		}
	}
	return "nothing was asked"
}

// chunks reads the manifest and the ends of the snapshot by chunks.
func (r *archiveRun) chunks(ctx context.Context, height uint64, seen map[string]string, say func(string, node.Transfer, error) observe.Verdict) observe.Verdict {
	var m node.SnapshotManifest
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		m, err = r.host.Node.SnapshotManifest(ctx, height)
		return err
	})
	if err != nil {
		return say("manifest", node.Transfer{}, err)
	}
	r.out.SnapshotBytes, r.out.Chunks = m.Size, m.Chunks
	if m.Chunks == nil || *m.Chunks == 0 {
		seen["manifest"] = "does not say how many chunks there are"
		return observe.Unknown
	}
	seen["manifest"] = fmt.Sprintf("%d chunks", *m.Chunks)
	out := observe.Pass
	for _, c := range []struct {
		what  string
		chunk uint64
	}{{"first chunk", 0}, {"last chunk", *m.Chunks - 1}} {
		t, err := r.read(ctx, func(ctx context.Context) (node.Transfer, error) {
			return r.host.Node.SnapshotChunk(ctx, height, c.chunk, r.in.ReadBytes)
		})
		out = worse(out, say(c.what, t, err))
		r.measure(t)
	}
	return out
}

// measure keeps the rate of the largest transfer: short ones measure the round trip.
func (r *archiveRun) measure(t node.Transfer) {
	if rate := uint64(t.Rate()); rate > 0 && t.Bytes >= r.out.ReadBytes {
		r.out.Rate, r.out.ReadBytes = &rate, t.Bytes
	}
}

// reach reads from the other hosts over the network. The answer must come from the designated node: an address that leads the
// asking host to itself would show its own state.
func (r *archiveRun) reach(ctx context.Context) {
	if r.out.SnapshotHeight == nil {
		return
	}
	seen := map[string]string{}
	out, asked := observe.Pass, []string{}
	var mu sync.Mutex
	r.each(reachAtOnce, func(_ int, h ArchiveHost) {
		if h.Peer == nil || h.ID == r.in.Designated {
			return
		}
		err := r.reachFrom(ctx, h)
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, h.ID)
		out = worse(out, verdict(err))
		seen[h.ID] = "the first bytes came"
		if err != nil {
			seen[h.ID] = publicReason(err)
		}
	})
	if len(asked) == 0 {
		r.note("no other host was asked to fetch from %s, so the network between them is not proven", r.in.Designated)
		return
	}
	if out == observe.Pass {
		r.add(ArchiveReach, out, seen, "%d other hosts can fetch from it", len(asked))
		return
	}
	var bad []string
	for id, text := range seen {
		if text != "the first bytes came" {
			bad = append(bad, id)
		}
	}
	slices.Sort(bad)
	r.add(ArchiveReach, out, seen, "%s cannot fetch from it: %s", strings.Join(bad, ", "), seen[bad[0]])
}

func (r *archiveRun) reachFrom(ctx context.Context, h ArchiveHost) error {
	return r.ask(ctx, func(ctx context.Context) error {
		s, err := h.Peer.SnapshotLatest(ctx, &r.out.MaxHeight)
		if err != nil {
			return err
		}
		if clipped(s.NodeID) != r.out.NodeID {
			return foundError(fmt.Sprintf("the node that answers is %s, not %s", clipped(s.NodeID), r.out.NodeID))
		}
		_, err = h.Peer.SnapshotFrame(ctx, s.Height, reachBytes)
		return err
	})
}

// archive reads the list of archived epochs, which also serve blocks that the node itself has pruned.
func (r *archiveRun) archive(ctx context.Context) {
	err := r.ask(ctx, func(ctx context.Context) error {
		a, err := r.host.Node.Archive(ctx)
		if err != nil {
			return err
		}
		out := ArchiveFinding{Enabled: a.Enabled, Segments: []ArchiveSegment{}}
		for _, s := range a.Segments {
			out.Segments = append(out.Segments, ArchiveSegment{Epoch: s.Epoch, First: s.FirstHeight, Last: s.LastHeight, Complete: len(s.Missing) == 0})
		}
		r.out.Archive = &out
		return nil
	})
	if err != nil {
		r.note("the list of archived epochs could not be read: %s", publicReason(err))
	}
}

// history asks for what lies between the snapshot and the end of K: a joiner replays it.
func (r *archiveRun) history(ctx context.Context) {
	if r.out.SnapshotHeight == nil {
		return
	}
	s, rng := *r.out.SnapshotHeight, rand.New(rand.NewPCG(r.in.Seed, 0))
	// The digests of K and of K-1 are pinned, so these two are needed whatever the snapshot is.
	first := max(min(s/node.MacroblockBlocks+1, r.in.K-1), 1)
	r.out.Macroblocks = sampled(first, r.in.K, r.in.Sample, rng)
	known := map[uint64]node.Macroblock{}
	r.macroblocks(ctx, known)
	if s >= r.out.MaxHeight {
		r.add(ArchiveBodies, observe.Pass, nil, "the snapshot is at the end of macroblock %d: no block is needed", r.in.K)
		return
	}
	r.out.Bodies = sampled(s+1, r.out.MaxHeight, r.in.Sample, rng)
	r.bodies(ctx, known)
	r.note("blocks were asked for by HTTP; a joiner fetches them from its peers, which cannot be asked here")
}

// sampled is a range with its first, its last and so many others of it, ascending.
func sampled(from, to uint64, others int, rng *rand.Rand) Sampled {
	pick := map[uint64]bool{from: true, to: true}
	for span := to - from + 1; uint64(len(pick)) < min(span, uint64(others)+2); {
		pick[from+rng.Uint64N(span)] = true
	}
	out := Sampled{From: from, To: to}
	for v := range pick {
		out.Asked = append(out.Asked, v)
	}
	slices.Sort(out.Asked)
	return out
}

func (r *archiveRun) macroblocks(ctx context.Context, known map[uint64]node.Macroblock) {
	seen, out := map[string]string{}, observe.Pass
	for _, i := range r.out.Macroblocks.Asked {
		err := r.macroblock(ctx, i, known)
		if err == nil {
			err = r.ask(ctx, func(ctx context.Context) error {
				p, err := r.host.Node.Proof(ctx, i)
				if err != nil {
					return err
				}
				mb := known[i]
				return p.Check(&mb)
			})
		}
		var fault *node.ProofFault
		v := verdict(err)
		if errors.As(err, &fault) {
			v = observe.Fail
		}
		out = worse(out, v)
		if err != nil {
			seen[fmt.Sprint(i)] = publicReason(err)
		}
	}
	r.report(ArchiveMacro, "macroblocks", r.out.Macroblocks, out, seen)
}

func (r *archiveRun) macroblock(ctx context.Context, i uint64, known map[uint64]node.Macroblock) error {
	if _, ok := known[i]; ok {
		return nil
	}
	return r.ask(ctx, func(ctx context.Context) error {
		mb, err := r.host.Node.Macroblock(ctx, i)
		if err == nil {
			known[i] = mb
		}
		return err
	})
}

// bodies asks for blocks and compares their hashes with those that the macroblock names.
func (r *archiveRun) bodies(ctx context.Context, known map[uint64]node.Macroblock) {
	seen, out := map[string]string{}, observe.Pass
	for _, h := range r.out.Bodies.Asked {
		v, text := r.body(ctx, h, known)
		out = worse(out, v)
		if v != observe.Pass {
			seen[fmt.Sprint(h)] = text
		}
	}
	r.report(ArchiveBodies, "blocks", r.out.Bodies, out, seen)
}

func (r *archiveRun) body(ctx context.Context, h uint64, known map[uint64]node.Macroblock) (observe.Verdict, string) {
	var b node.Microblock
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		b, err = r.host.Node.Microblock(ctx, h)
		return err
	})
	if err != nil {
		return verdict(err), publicReason(err)
	}
	if b.Hash == nil {
		return observe.Unknown, "the answer has no hash that could be compared"
	}
	w := node.WindowOf(h)
	if err := r.macroblock(ctx, w, known); err != nil {
		return observe.Unknown, "nothing to compare with: " + publicReason(err)
	}
	at := int(h - node.WindowHead(w-1) - 1)
	if list := known[w].MicroBlocks; at >= len(list) || list[at] != *b.Hash {
		return observe.Fail, fmt.Sprintf("is %s, which macroblock %d does not name", b.Hash, w)
	}
	return observe.Pass, ""
}

// report says how a sample went.
func (r *archiveRun) report(name, what string, s Sampled, v observe.Verdict, seen map[string]string) {
	total := s.To - s.From + 1
	if v == observe.Pass {
		r.add(name, v, nil, "%d of %d %s from %d to %d were asked for and served", len(s.Asked), total, what, s.From, s.To)
		return
	}
	for _, i := range s.Asked {
		if text := seen[fmt.Sprint(i)]; text != "" {
			r.add(name, v, seen, "%d of %d asked for (from %d to %d) were not had; first %d: %s", len(seen), len(s.Asked), s.From, s.To, i, text)
			return
		}
	}
}
