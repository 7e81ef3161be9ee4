package restart

import (
	"context"
	"crypto/sha3"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/node"
)

// leastTimeout is the shortest patience with one request: a lab's blocks may be short, its machine is not faster for that.
const leastTimeout = 2 * time.Second

// logTimeout is the patience with the engine, which has some megabytes to send; it never scales.
const logTimeout = time.Minute

// gathered is what is found on one host.
type gathered struct {
	g            *gathering
	host         Host
	certificates *Certificates
	slots        chan struct{}
	pace         *pace

	mu      sync.Mutex
	silent  int                    // requests in a row without an answer
	faults  map[string]string      // question -> why it has no answer
	found   HostFinding            // all but Macroblocks
	blocks  map[uint64]*Macroblock // by index
	members map[uint64][]string    // committee of each certificate
	last    *node.Proof            // of the last sealed macroblock
}

// note remembers why a question has no answer, in words that may be published, and tells the operator the whole of it.
func (h *gathered) note(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.faults, what)
	if err == nil {
		h.found.Reachable = true
		return
	}
	h.faults[what] = publicReason(err)
	h.g.say(h.host.ID, what+": "+err.Error())
}

const errSilent = foundError("not asked: the node left several requests in a row without an answer")

// ask puts one question to the node, at its pace. A node that limits the rate is asked again after the time it names, as
// long as the host's patience lasts.
func ask[T any](ctx context.Context, h *gathered, question func(context.Context) (T, error)) (T, error) {
	var none T
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return none, ctx.Err()
	}
	for {
		if h.isSilent() {
			return none, errSilent
		}
		if err := h.pace.wait(ctx); err != nil {
			return none, err
		}
		one, cancel := context.WithTimeout(ctx, max(3*h.g.block, leastTimeout))
		v, err := question(one)
		cancel()
		var limited *node.RateLimitedError
		if !errors.As(err, &limited) {
			h.heard(err)
			return v, err
		}
		if !h.pace.limited(ctx, limited.RetryAfter) {
			return none, err
		}
	}
}

func (h *gathered) isSilent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silent >= silentAfter
}

func (h *gathered) heard(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, context.DeadlineExceeded) {
		h.silent++
		return
	}
	h.silent = 0
}

// position is the first reading: where the node stands.
func (h *gathered) position(ctx context.Context) {
	h.g.say(h.host.ID, "reading its position")
	p, err := ask(ctx, h, h.host.Node.Position)
	if err == nil && (p.Height > MaxSafe || p.LastSealed > MaxSafe/node.MacroblockBlocks || p.FinalizedHeight > MaxSafe) {
		err = errors.New("heights that cannot be")
	}
	h.note("position", err)
	if err != nil {
		return
	}
	floor := max(p.FinalizedHeight, node.WindowHead(p.LastSealed))
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &h.found
	f.Height, f.Sealed, f.Finalized, f.FloorAtLeast = &p.Height, &p.LastSealed, &p.FinalizedHeight, &floor
	if p.TipHash != nil {
		tip := p.TipHash.String()
		f.TipHash = &tip
	}
}

// plan lists the macroblocks to read: the newest of the fleet's base and of this node, last-64·2^i, and the ranges.
func (h *gathered) plan(base uint64, ranges []IndexRange) []uint64 {
	want := map[uint64]bool{}
	newest := func(last uint64) {
		for i := last; i > 0 && i+NewestSealed > last; i-- {
			want[i] = true
		}
	}
	newest(base)
	if h.found.Sealed != nil {
		newest(*h.found.Sealed)
	}
	for step := uint64(NewestSealed); step < base; step *= 2 {
		want[base-step] = true
	}
	for _, r := range ranges {
		for i := r.From; i <= r.To; i++ {
			want[i] = true
		}
	}
	return slices.Sorted(maps.Keys(want))
}

// read reads macroblocks and their certificates. What is known stays when it cannot be read again.
func (h *gathered) read(ctx context.Context, indices []uint64) {
	if len(indices) > 1 {
		h.g.say(h.host.ID, fmt.Sprintf("reading %d macroblocks", len(indices)))
	}
	slices.Reverse(indices) // the newest matter most, should time run out
	next := make(chan uint64)
	var wg sync.WaitGroup
	for range min(readsAtOnce, len(indices)) {
		wg.Go(func() {
			for i := range next {
				m, proof := h.readOne(ctx, i)
				h.keep(m, proof)
			}
		})
	}
	for _, i := range indices {
		next <- i
	}
	close(next)
	wg.Wait()
}

func (h *gathered) keep(m Macroblock, proof *node.Proof) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.blocks[m.Index]; old != nil && old.Held != HeldUnknown && m.Held == HeldUnknown ||
		old != nil && old.Proof != nil && m.Proof == nil && m.Hash != nil && *old.Hash == *m.Hash {
		return
	}
	h.found.Reachable = h.found.Reachable || m.Held != HeldUnknown
	h.blocks[m.Index] = &m
	delete(h.members, m.Index)
	if proof == nil {
		return
	}
	h.members[m.Index] = append([]string{}, proof.Committee...)
	if h.found.Sealed != nil && m.Index == *h.found.Sealed {
		h.last = proof
	}
}

func (h *gathered) readOne(ctx context.Context, index uint64) (Macroblock, *node.Proof) {
	out := Macroblock{Index: index, Held: HeldUnknown}
	mb, err := ask(ctx, h, func(ctx context.Context) (node.Macroblock, error) { return h.host.Node.Macroblock(ctx, index) })
	if err == nil && mb.Timestamp > MaxSafe {
		err = errors.New("a timestamp that cannot be")
	}
	var missing *node.NotFoundError
	switch {
	case errors.As(err, &missing) && !missing.Uncertain:
		out.Held = HeldNo
		return out, nil
	case err != nil:
		out.Reason = publicReason(err)
		return out, nil
	}
	hash := mb.Hash()
	out.Held, out.Hash, out.Previous, out.Timestamp = HeldYes, &hash, &mb.PreviousHash, &mb.Timestamp
	proof, err := ask(ctx, h, func(ctx context.Context) (node.Proof, error) { return h.host.Node.Proof(ctx, index) })
	if err == nil {
		err = usable(proof)
	}
	if err != nil {
		out.Reason = "certificate: " + publicReason(err)
		return out, nil
	}
	if node.EpochCommitment(proof.EligibleRaw, proof.Committee, proof.Banned) == proof.Checkpoint.EpochCommitment && slices.IsSorted(proof.Committee) {
		digest := proof.Fields().DigestV2()
		out.Digest = &digest
	} else {
		out.Reason = "digest: the committee fields are not the certified ones"
	}
	out.Proof = h.certificate(proof, mb)
	return out, &proof
}

func (h *gathered) certificate(p node.Proof, mb node.Macroblock) *Certificate {
	c := &Certificate{Checkpoint: p.Checkpoint.Hash(), Committee: len(p.Committee), Quorum: node.QuorumSize(len(p.Committee)),
		Relaxed: p.Checkpoint.RecoveryAnchor != nil, Signers: append([]string{}, p.Signers...), Signatures: h.certificates.Verify(p)}
	var fault *node.ProofFault
	if err := p.Check(&mb); errors.As(err, &fault) {
		c.Fault = fault.Code
	}
	return c
}

// usable refuses proofs that cannot be: they would fill the evidence, or make it one that nobody may read.
func usable(p node.Proof) error {
	if len(p.Committee) > node.MaxCommittee || len(p.Signers) > node.MaxCommittee {
		return fmt.Errorf("a committee of %d and %d signers, more than %d", len(p.Committee), len(p.Signers), node.MaxCommittee)
	}
	for _, id := range slices.Concat(p.Committee, p.Signers, p.Banned) {
		if id == "" || len(id) > maxName || !isPlain(id) {
			return foundError("an identity without a name, or with one that cannot be shown")
		}
	}
	if committee := slices.Sorted(slices.Values(p.Committee)); len(slices.Compact(committee)) < len(p.Committee) {
		return foundError("a committee with an identity twice")
	}
	return nil
}

// HashAt makes a host an Asker; what was read already is not asked for again.
func (h *gathered) HashAt(ctx context.Context, index uint64) (node.Hash, error) {
	h.mu.Lock()
	m := h.blocks[index]
	h.mu.Unlock()
	if m != nil && m.Hash != nil {
		return *m.Hash, nil
	}
	mb, err := ask(ctx, h, func(ctx context.Context) (node.Macroblock, error) { return h.host.Node.Macroblock(ctx, index) })
	if err != nil {
		return node.Hash{}, err
	}
	return mb.Hash(), nil
}

// details reads everything that is not a macroblock.
func (h *gathered) details(ctx context.Context) {
	n := h.host.Node
	var wg sync.WaitGroup
	wg.Go(func() {
		v, err := ask(ctx, h, n.Healthz)
		h.set("healthz", err, func(f *HostFinding) { f.Build = clipped(v.Build) })
	})
	wg.Go(func() {
		v, err := ask(ctx, h, n.NodeInfo)
		if err == nil && (len(v.NodeID) > maxName || !isPlain(v.NodeID)) {
			err = errors.New("an id that cannot be")
		}
		h.set("node id", err, func(f *HostFinding) { f.NodeID = v.NodeID })
	})
	wg.Go(func() { h.recovery(ctx) })
	wg.Go(func() { h.snapshots(ctx) })
	wg.Go(func() { h.archive(ctx) })
	wg.Go(func() { h.log(ctx) })
	wg.Wait()
}

func (h *gathered) set(what string, err error, fill func(*HostFinding)) {
	h.note(what, err)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fill(&h.found)
}

func (h *gathered) recovery(ctx context.Context) {
	v, err := ask(ctx, h, h.host.Node.RecoveryStatus)
	r := &RecoveryFinding{Armed: v.Armed, HeardFrom: v.HeardFrom}
	if v.Armed && v.AnchorMB != nil {
		r.AnchorMB = *v.AnchorMB
	}
	if err == nil && (r.AnchorMB > MaxSafe || r.HeardFrom > MaxSafe) {
		err = errors.New("numbers that cannot be")
	}
	h.set("recovery status", err, func(f *HostFinding) { f.Recovery = r })
}

// snapshots walks down from the newest one.
func (h *gathered) snapshots(ctx context.Context) {
	found := []Snapshot{}
	var below *uint64
	for range MaxSnapshots {
		v, err := ask(ctx, h, func(ctx context.Context) (node.Snapshot, error) { return h.host.Node.SnapshotLatest(ctx, below) })
		if err == nil && (v.Height == 0 || v.Height > MaxSafe || v.Timestamp < 0 || v.Timestamp > MaxSafe) {
			err = errors.New("a snapshot that cannot be")
		}
		var none *node.NotFoundError
		if errors.As(err, &none) {
			break
		}
		if err != nil {
			h.note("snapshots", err)
			if len(found) > 0 {
				break // those are there; whether more are is what the reason is about
			}
			return
		}
		found = append(found, Snapshot{v.Height, uint64(v.Timestamp)})
		if v.Height == 1 {
			break
		}
		next := v.Height - 1
		below = &next
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found.Snapshots, h.found.Reachable = found, true
}

// maxSegments is more than seven years of epochs.
const maxSegments = 20_000

func (h *gathered) archive(ctx context.Context) {
	v, err := ask(ctx, h, h.host.Node.Archive)
	a := &ArchiveFinding{Enabled: v.Enabled, Segments: []ArchiveSegment{}}
	for _, s := range v.Segments {
		a.Segments = append(a.Segments, ArchiveSegment{s.Epoch, s.FirstHeight, s.LastHeight, len(s.Missing) == 0})
		if s.LastHeight > MaxSafe || s.FirstHeight > s.LastHeight || s.Epoch > MaxSafe {
			err = errors.New("a segment that cannot be")
		}
	}
	if err == nil && len(a.Segments) > maxSegments {
		err = fmt.Errorf("%d segments, more than %d", len(a.Segments), maxSegments)
	}
	h.set("archive", err, func(f *HostFinding) { f.Archive = a })
}

// errNoLog and errNotConnected are what was not given to Gather.
const (
	errNoLog        = foundError("no log to read")
	errNotConnected = foundError("not connected")
)

func (h *gathered) log(ctx context.Context) {
	if h.host.Log == nil {
		h.note("log", errNoLog)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	picker := newLinePicker(h.g.opts.Now)
	err := h.host.Log.Tail(ctx, LogTail, picker.see)
	h.note("log", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	// What was read before a failure is there all the same.
	h.found.Lines = picker.lines()
	h.found.Reachable = h.found.Reachable || picker.count > 0
	if f := h.found.FloorAtLeast; picker.floor != nil && (f == nil || *picker.floor >= *f) {
		h.found.FloorExact = picker.floor // an older line than the floor that is certain by now says nothing
	}
}

// finding puts the host's part of the evidence together.
func (h *gathered) finding() HostFinding {
	f := h.found
	h.certified(&f)
	if !f.Reachable {
		f.Macroblocks, f.Lines = []Macroblock{}, []Line{}
	} else {
		for _, i := range slices.Sorted(maps.Keys(h.blocks)) {
			m := *h.blocks[i]
			if m.Proof != nil && (f.Committee == nil || !slices.Equal(h.members[i], f.Committee)) {
				c := *m.Proof
				c.Members = h.members[i]
				m.Proof = &c
			}
			f.Macroblocks = append(f.Macroblocks, m)
		}
	}
	var reasons []string
	for _, what := range slices.Sorted(maps.Keys(h.faults)) {
		reasons = append(reasons, what+": "+h.faults[what])
	}
	f.Reason = strings.Join(reasons, "; ")
	return f
}

// certified takes committee, bans and keys from the certificate of the last sealed macroblock, where it commits to them.
func (h *gathered) certified(f *HostFinding) {
	p := h.last
	if f.Sealed == nil || *f.Sealed == 0 {
		return
	}
	if p == nil || len(p.Committee) == 0 || h.blocks[*f.Sealed].Digest == nil {
		h.faults["committee"] = "the certificate of the last sealed macroblock does not show it"
		return
	}
	f.Committee, f.Banned, f.Keys = p.Committee, append([]string{}, p.Banned...), map[string]node.Hash{}
	for _, id := range p.Committee {
		if key, err := hex.DecodeString(p.CommitteePubkeys[id]); err == nil && len(key) > 0 {
			f.Keys[id] = sha3.Sum256(key)
		}
	}
}
