package observe

import (
	"context"
	"slices"

	"github.com/qnetops/qnetops/node"
)

// sealReads is how often the sealed history is read when nodes differ: a
// difference is called a fork only when it is read twice.
const sealReads = 2

// seals compares the sealed history at the newest macroblock the nodes hold in
// common and reads the committee that certified it.
func (s *survey) seals(ctx context.Context) {
	index := s.commonSeal()
	if index == 0 {
		return
	}
	s.say("", "comparing sealed history")
	for read := range sealReads {
		s.readSeals(ctx, index)
		cmp := compare(s.sights().Nodes)
		if !cmp.seals.any(cmp.seals.suspects) && !cmp.digests.any(cmp.digests.suspects) || read == sealReads-1 {
			break
		}
		if !wait(ctx, max(s.block, leastStep)) {
			return
		}
	}
	s.sealing = s.sealView(ctx, index)
}

// commonSeal is the highest macroblock at least two nodes hold, or the highest
// of the only node that holds any.
func (s *survey) commonSeal() uint64 {
	var held []uint64
	for _, n := range s.reachable() {
		if l := n.seen.LastSealed; l != nil && *l > 0 {
			held = append(held, *l)
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

// readSeals asks every node for the common macroblock, a node that is not there
// yet for its own newest one, and one node in front for those of the late ones.
func (s *survey) readSeals(ctx context.Context, index uint64) {
	round := s.round
	s.round++
	var front *subject
	var late []uint64
	for _, n := range s.reachable() {
		switch l := n.seen.LastSealed; {
		case l == nil || *l == 0:
		case *l >= index && front == nil:
			front = n
		case *l < index && !slices.Contains(late, *l):
			late = append(late, *l)
		}
	}
	each(thoroughly, s.reachable(), func(n *subject) {
		defer n.target.Rest()
		if n.seen.LastSealed == nil || *n.seen.LastSealed == 0 {
			return
		}
		s.readSeal(ctx, n, min(index, *n.seen.LastSealed), round)
		if n == front {
			for _, l := range late[:min(len(late), 8)] { // a few are enough to know a straggler
				s.readSeal(ctx, n, l, round)
			}
		}
	})
}

func (s *survey) readSeal(ctx context.Context, n *subject, index uint64, round int) {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	mb, err := n.target.Node().Macroblock(ctx, index)
	n.seen.note(askSeal, err)
	if err != nil {
		return
	}
	reading := SealReading{Round: round, Index: index, Hash: mb.Hash()}
	if s.opts.Signers {
		p, err := n.target.Node().Proof(ctx, index)
		n.seen.note(askProof, err)
		if err == nil && committeeHolds(p) == nil {
			digest := p.Fields().DigestV2()
			reading.Digest = &digest
		}
		if err == nil && (n.proof == nil || n.proof.Index <= index) {
			n.proof = &p
		}
	}
	n.seen.Seals = append(n.seen.Seals, reading)
	if n.block == nil || n.block.Index <= index {
		mb.MicroBlocks = s.shared(reading.Hash, mb.MicroBlocks)
		n.block = &mb
	}
}

// shared is the one copy of the block hashes under a macroblock. The macroblock's
// hash is computed from them, so nodes with the same one hold the same list, and a
// fleet of hundreds needs it in memory once.
func (s *survey) shared(macroblock node.Hash, blocks []node.Hash) []node.Hash {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.hashes[macroblock]; ok {
		return known
	}
	s.hashes[macroblock] = blocks
	return blocks
}

// sealView describes the common macroblock: the hash most nodes hold, and the
// committee of the first proof that holds against the block of its own node.
func (s *survey) sealView(ctx context.Context, index uint64) *SealView {
	hash, ok := s.mostHeld(index)
	if !ok {
		return nil
	}
	v := &SealView{Index: index, Hash: hash, Signers: map[string][]string{}}
	for _, n := range s.reachable() {
		if n.block == nil || n.block.Index != index || n.block.Hash() != hash {
			continue
		}
		p := n.proof
		if p == nil && v.Committee == nil {
			p = s.askProof(ctx, n, index)
		}
		if p == nil || p.Index != index {
			continue
		}
		if err := p.Check(n.block); err != nil && !relaxed(err) {
			n.seen.note(askProof, err)
			continue
		}
		v.Signers[n.host.ID] = p.Signers
		if v.Committee == nil && len(p.Committee) > 0 {
			v.Committee, v.Quorum = p.Committee, node.QuorumSize(len(p.Committee))
		}
	}
	return v
}

// relaxed reports a certificate that is valid but not by a full quorum: it still
// says who the committee is.
func relaxed(err error) bool {
	f, ok := err.(*node.ProofFault)
	return ok && f.Code == node.FaultRecovery
}

func (s *survey) askProof(ctx context.Context, n *subject, index uint64) *node.Proof {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	p, err := n.target.Node().Proof(ctx, index)
	n.seen.note(askProof, err)
	if err != nil {
		return nil
	}
	return &p
}

func (s *survey) mostHeld(index uint64) (node.Hash, bool) {
	count := map[node.Hash]int{}
	var best node.Hash
	for _, n := range s.nodes {
		for i := len(n.seen.Seals) - 1; i >= 0; i-- {
			if r := n.seen.Seals[i]; r.Index == index {
				count[r.Hash]++
				if count[r.Hash] > count[best] {
					best = r.Hash
				}
				break
			}
		}
	}
	return best, len(count) > 0
}
