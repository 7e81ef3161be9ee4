package simnode

import (
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Batches of the sync path. A fork is repaired in one batch: it is never longer
// than the production horizon.
const (
	batchBlocks = 3000
	batchSlow   = 6
	batchSigs   = 4000
)

// sync asks for what this node lacks: blocks, then certificates.
func (p *proc) sync(now time.Time) {
	if p.latch != "" || p.phase == phaseJoin {
		return
	}
	best, who := p.best(now)
	if lag := p.lag(); best > lag {
		best -= lag
	} else {
		best = 0
	}
	if best > p.c.tip() {
		p.behind++
	} else {
		p.behind = 0
	}
	if p.behind >= 2 || best > p.c.tip()+node.BehindBlocks {
		p.ask(now, who, p.c.tip()+1)
	}
	if p.behind > 0 && p.behind%30 == 0 {
		p.log.always("[WARN][SYNC] stalled h=%d target=%d", p.c.tip(), best)
	}
	p.syncCerts(now)
}

// syncCerts fetches certificates this node did not form itself.
func (p *proc) syncCerts(now time.Time) {
	own := uint64(len(p.c.certs))
	var who string
	certs := own
	for id, pe := range p.peers {
		if p.alive(pe, now) && pe.certs > certs {
			who, certs = id, pe.certs
		}
	}
	if certs == own || p.c.tip() < (own+1)*node.CheckpointBlocks {
		p.certLag = 0
		return
	}
	p.certLag++
	if p.certLag >= 4 || certs > own+1 {
		p.send(who, message{T: msgGetQC, Certs: own + 1})
	}
}

// ask requests blocks from a height on, one request at a time.
func (p *proc) ask(now time.Time, who string, from uint64) {
	if now.Before(p.request.until) || now.Before(p.request.next) || who == "" {
		return
	}
	n := batchBlocks
	if p.slow() {
		n = batchSlow
		p.request.next = now.Add(p.s.scale(1.5))
	}
	if lag := p.lag(); lag > 0 {
		best, _ := p.best(now)
		if best < lag+from {
			return
		}
		n = min(n, int(best-lag-from)+1)
	}
	p.request.peer, p.request.until = who, now.Add(max(p.s.scale(4), 40*time.Millisecond))
	p.send(who, message{T: msgGet, Height: from, Max: n})
}

// serve answers a request for blocks.
func (p *proc) serve(to string, m message) {
	tip := p.c.tip()
	if m.Height < 1 || m.Height > tip || m.Max < 1 {
		return
	}
	end := min(m.Height-1+uint64(min(m.Max, batchBlocks)), tip)
	if from, to := p.pruned(); m.Height <= to && end >= from {
		if end = from - 1; end < m.Height {
			return
		}
	}
	p.send(to, message{T: msgBlocks, Height: tip, Blocks: p.c.blocks[m.Height-1 : end], Notes: p.c.barsFor(m.Height, end)})
}

// pruned is the range of blocks whose bodies this node has not: nothing unless the fault is on. To other nodes the blocks
// below the newest snapshot in reach stand for its state.
func (p *proc) pruned() (from, to uint64) {
	if !p.fault.On(FaultPruned) {
		return 0, 0
	}
	to = uint64(max(p.fault.num(FaultPruned, int64(node.WindowHead(p.c.lastSealed()))), 0))
	for _, h := range p.c.snapshots() {
		if h <= to {
			from = max(from, h)
		}
	}
	return from + 1, to
}

// serveCerts answers a request for certificates; the batch is bounded by its
// signatures, which a large committee has many of.
func (p *proc) serveCerts(to string, from uint64) {
	if from < 1 || from > uint64(len(p.c.certs)) {
		return
	}
	var list []cert
	sigs := 0
	for _, ct := range p.c.certs[from-1:] {
		if sigs += len(ct.Sigs); len(list) > 0 && sigs > batchSigs {
			break
		}
		list = append(list, ct)
	}
	p.send(to, message{T: msgQCs, QCs: list})
}

// onBlocks takes a batch: the continuation of this chain, or another branch
// that replaces ours above the certified floor if it is longer.
func (p *proc) onBlocks(now time.Time, from string, list []block, notes map[uint64][]string) {
	if from == p.request.peer {
		p.request.until = time.Time{}
	}
	for i, ids := range notes {
		if i > uint64(len(p.c.certs)) {
			p.c.note(i, ids)
		}
	}
	if len(list) == 0 || list[0].H > p.c.tip()+1 || list[0].H == 0 {
		return
	}
	if list[0].Prev != p.c.hashAt(list[0].H-1) {
		if list[0].H > p.c.floor()+1 {
			p.ask(now, from, p.c.floor()+1)
		}
		return
	}
	for len(list) > 0 && list[0].H <= p.c.tip() && list[0].Hash == p.c.hashAt(list[0].H) {
		list = list[1:]
	}
	if len(list) == 0 {
		return
	}
	before := p.c.tip()
	if fork := list[0].H; fork <= before {
		last := list[len(list)-1]
		if fork <= p.c.floor() || last.H < before || (last.H == before && !better(last, p.c.blocks[last.H-1])) {
			return
		}
		if !p.replace(now, list) {
			return
		}
	} else {
		p.takeAll(now, list)
	}
	// At once, but only after progress: a peer whose blocks this node does not
	// take would be asked without end.
	if best, who := p.best(now); best > p.c.tip()+1 && p.c.tip() > before {
		p.ask(now, who, p.c.tip()+1)
	}
}

// takeAll takes a batch up to the first block that does not follow.
func (p *proc) takeAll(now time.Time, list []block) {
	for _, b := range list {
		if b.H == p.c.tip()+1 && !p.take(now, b) {
			break
		}
	}
}

// replace gives up this node's blocks for another branch. One that breaks off
// below the blocks it is to replace is refused: the nodes it comes from derive
// another roster than this one.
func (p *proc) replace(now time.Time, list []block) bool {
	fork, before := list[0].H, p.c.tip()
	own := slices.Clone(p.c.blocks[fork-1:])
	p.cut(fork - 1)
	p.takeAll(now, list)
	if p.c.tip() < before {
		p.cut(fork - 1)
		p.takeAll(now, own)
		return false
	}
	p.log.always("[WARN][FORK] branch_replaced fork_h=%d local_h=%d branch_h=%d", fork, before, list[len(list)-1].H)
	return true
}

// onCerts adopts certificates of peers. A valid certificate for another
// checkpoint than ours means that this node is on an abandoned branch.
func (p *proc) onCerts(now time.Time, from string, list []cert) {
	adopted := 0
	for _, ct := range list {
		if ct.Index != uint64(len(p.c.certs))+1 {
			continue
		}
		if !p.prepare() {
			break
		}
		if ct.Hash != p.cur.hash && !p.adopts(from, ct) {
			break
		}
		if !p.c.validCert(ct) {
			members := len(p.c.committee(node.WindowOf(ct.Index * node.CheckpointBlocks)))
			p.log.warn("[WARN][BFT2] qc_rejected index=%d signers=%d committee=%d quorum=%d", ct.Index, len(ct.Signers), members, node.QuorumSize(members))
			break
		}
		if ct.Hash != p.cur.hash {
			p.log.always("[WARN][FORK] certified_elsewhere round=%d local_h=%d", ct.Index, p.c.tip())
			p.cut(p.c.floor())
			p.ask(now, from, p.c.tip()+1)
			break
		}
		p.certified(ct, true)
		adopted++
	}
	if adopted > 0 {
		p.certLag = 0
		p.log.always("[INFO][MB] sync_adopt_finality adopted=%d qc_frontier=%d tip_mb=%d content_fr=%d", adopted, p.c.floor(), node.OwnWindow(p.c.tip()), p.c.floor())
	}
}
