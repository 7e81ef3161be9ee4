package simnode

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// The pin on the chain's way (facts 4.7, 6.3). The facts name the refusals and not how a node behaves after one; here it
// fails closed in this way: it stays up, serves what it has, and neither produces nor votes nor takes anything.
const (
	tagMismatch = "v2_ws_pin_mismatch" // macroblock K is another one
	tagBelow    = "v2_below_ws"        // data above K that does not follow from the restart
	tagDefer    = "v2_qc_defer_anchor" // the pin has no digests to check K with
)

// snapshotPermits are the transfers a node serves at a time, over HTTP and to joining nodes together.
const snapshotPermits = 16

// judgePin checks a directory's chain against the pin at boot. With nothing above K and no other K it goes on from there
// under the release's exclusions, and the directory follows the restart from now on.
func (p *proc) judgePin() error {
	pin := p.c.pin()
	if pin.Index == 0 {
		return nil
	}
	if p.c.holds(pin.Index) && !pin.Hash.IsZero() {
		if have := p.c.macroblock(pin.Index).Hash(); have != pin.Hash {
			p.failClosed(tagMismatch, fmt.Sprintf("have=%.16s want=%.16s", have, pin.Hash))
			return nil
		}
	}
	if !p.s.release.active() || p.meta.Era == pin.Index {
		return nil
	}
	if head := node.WindowHead(pin.Index); p.c.tip() > head || p.c.floor() > head {
		p.failClosed(tagBelow, fmt.Sprintf("local_h=%d certified_floor=%d pin_h=%d", p.c.tip(), p.c.floor(), head))
		return nil
	}
	p.c.bar(true)
	p.meta.Era = pin.Index
	p.era = pin.Index
	return p.st.writeJSON(fileMeta, p.meta)
}

// judgeSynced checks macroblock K when it came from a peer: its hash, and with the digests what the hash does not cover.
func (p *proc) judgeSynced() {
	pin := p.c.pin()
	have := p.c.macroblock(pin.Index).Hash()
	switch {
	case !pin.Hash.IsZero() && have != pin.Hash:
		p.failClosed(tagMismatch, fmt.Sprintf("have=%.16s want=%.16s", have, pin.Hash))
	case pin.DigestAnchor.IsZero() || pin.DigestPred.IsZero():
		p.failClosed(tagDefer, "reason=digests_absent")
	case p.c.digest(pin.Index) != pin.DigestAnchor || (pin.Index > 1 && p.c.digest(pin.Index-1) != pin.DigestPred):
		p.failClosed(tagMismatch, "reason=committee_digest")
	}
}

func (p *proc) failClosed(tag, detail string) {
	p.latch = fmt.Sprintf("%s mb=%d %s", tag, p.c.pin().Index, detail)
	p.sayLatched()
}

func (p *proc) sayLatched() { p.log.always("[ERR][SYNC] %s action=fail_closed", p.latch) }

// bound is the height up to which a peer's data counts: above the macroblock of this node's restart, what a peer holds that
// does not follow the restart is of the abandoned chain.
func (p *proc) bound(pe *peer) uint64 {
	if p.era > pe.era {
		return node.WindowHead(p.era)
	}
	return math.MaxUint64
}

// upTo is the part of a batch that does not go above a height.
func upTo(list []block, h uint64) []block {
	n, _ := slices.BinarySearchFunc(list, h, func(b block, h uint64) int {
		if b.H <= h {
			return -1
		}
		return 1
	})
	return list[:n]
}

// adopts decides on a certificate for another checkpoint than this node derives. Where only who is left out differs, the
// quorum's word counts once a whole window stands on it; until then, and for ever against this node's own release, the node
// refuses. It says false for a refusal; what has another reason is left to the fork rule.
func (p *proc) adopts(from string, ct cert) bool {
	if len(ct.Bars) == 0 && !p.c.barring && len(p.c.bars) == 0 {
		return true
	}
	same, disputed := p.c.explains(ct)
	const window = node.MacroblockBlocks / node.CheckpointBlocks
	if same && p.peers[from].certs >= ct.Index+window {
		p.c.note(ct.Index, ct.Bars)
		p.cur = ballot{}
		return p.prepare()
	}
	if !same && !disputed {
		return true
	}
	if p.tick >= p.disputeTick {
		p.disputeTick = p.tick + 10
		p.log.warn("[WARN][BFT2] persist_refused reason=epoch_commitment_mismatch head=%d detail=left_out_%d_here_%d",
			ct.Index*node.CheckpointBlocks, len(ct.Bars), len(p.c.barsAt(ct.Index)))
	}
	return false
}

// join is a cold join under way.
type join struct {
	want  meta      // of the directory, once there is a snapshot
	until time.Time // of the request that is out
}

// beginJoin is the start of a node that has a pin and no data: it may not mint a genesis of its own.
func (p *proc) beginJoin(want meta) {
	if p.s.release.active() {
		want.Era = p.s.release.Pin.Index
	}
	p.c = newChain(&p.s, want.Supers, 0)
	p.phase, p.era, p.join.want = phaseJoin, want.Era, want
}

// askState asks one peer after the other for a snapshot at or below K, and ends the process when none gave one in time.
func (p *proc) askState(now time.Time) {
	if now.Before(p.join.until) {
		return
	}
	k := p.c.pin().Index
	if now.Sub(p.phaseAt) >= p.s.scale(secJoin) {
		p.log.stderr("[FATAL][GEN] WS restart pin active (K=%d) with empty local chain — refusing to mint fresh genesis (would wipe balances, no re-mint path). "+
			"Recovery MUST cold-join from macroblock K. Halting to retry sync.", k)
		p.quit(exitFault)
		return
	}
	p.join.until = now.Add(p.s.block)
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(p.peers)), func(id string) bool { return !p.alive(p.peers[id], now) })
	if len(ids) == 0 {
		return
	}
	p.join.until = now.Add(p.s.scale(2 * secTransfer))
	p.send(ids[p.rng.IntN(len(ids))], message{T: msgGetSt, Height: node.WindowHead(k)})
}

// serveState answers a joining node. The transfer takes a while, in which it holds a permit.
func (p *proc) serveState(now time.Time, to string, limit uint64) {
	var at uint64
	for _, h := range p.snapshots() {
		if h <= limit {
			at = max(at, h)
		}
	}
	switch {
	case at == 0:
		p.send(to, message{T: msgState})
	case !p.permit():
		p.send(to, message{T: msgState, Busy: true})
	default:
		p.at(now.Add(p.s.scale(secTransfer)), func(time.Time) {
			p.release()
			p.send(to, message{T: msgState, Height: at, Era: p.era})
		})
	}
}

// onState takes the answer to a request for a snapshot. In the lab the state at a height is the blocks below it, which the
// node then fetches like those above.
func (p *proc) onState(now time.Time, from string, m message) {
	if p.phase != phaseJoin {
		return
	}
	switch {
	case m.Busy:
		p.log.always("[WARN][SYNC] snapshot_refused peer=%s err=snapshot serve busy", short(from))
		p.join.until = now.Add(p.s.scale(secBusy))
		return
	case m.Height == 0:
		p.log.always("[WARN][SYNC] snapshot_refused peer=%s err=Snapshot not found max_h=%d", short(from), node.WindowHead(p.c.pin().Index))
		p.join.until = now.Add(p.s.block)
		return
	}
	want := p.join.want
	want.Premade = min(want.History, m.Height)
	if !p.s.release.active() {
		want.Era = m.Era
	}
	if _, err := p.st.pin(want); err != nil {
		p.stored(err)
		return
	}
	p.adopt(want)
	p.c.bar(p.s.release.active())
	p.stored(p.st.load(p.c))
	p.log.always("[INFO][SYNC] snapshot_applied h=%d peer=%s", m.Height, short(from))
	p.cur = ballot{}
	p.setPhase(phaseWait, now)
	p.warnedAt = now
	p.hello("")
}

// permit takes one of the transfers a node serves at a time; release gives it back.
func (p *proc) permit() bool {
	if p.fault.On(FaultSnapshotBusy) {
		return false
	}
	select {
	case p.permits <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *proc) release() { <-p.permits }

// snapshots are the heights of the snapshots this node shows.
func (p *proc) snapshots() []uint64 {
	if p.fault.On(FaultNoSnapshot) {
		return nil
	}
	return p.c.snapshots()
}
