package simnode

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
)

// message is everything nodes say to each other. T tells which fields count.
type message struct {
	T       string    `json:"t"`
	Network node.Hash `json:"n,omitzero"`
	Boot    int64     `json:"b,omitempty"`
	Height  uint64    `json:"h,omitempty"`
	Certs   uint64    `json:"c,omitempty"`
	Active  bool      `json:"a,omitempty"`
	Join    bool      `json:"j,omitempty"`
	Max     int       `json:"m,omitempty"`
	Block   *block    `json:"k,omitempty"`
	Blocks  []block   `json:"l,omitempty"`
	Vote    *vote     `json:"v,omitempty"`
	QCs     []cert    `json:"q,omitempty"`
	Decree  *decree   `json:"d,omitempty"`
	Era     uint64    `json:"e,omitempty"` // macroblock of the restart the sender's data follows
	Busy    bool      `json:"y,omitempty"`
	// Notes say who is left out at certificates the sender holds.
	Notes map[uint64][]string `json:"x,omitempty"`
}

// Message types.
const (
	msgHello  = "hello"  // Network, Boot, Height, Certs, Active, Join
	msgBlock  = "block"  // Block
	msgGet    = "get"    // blocks from Height on, at most Max
	msgBlocks = "blocks" // Blocks, Height of the sender
	msgVote   = "vote"   // Vote
	msgGetQC  = "getqc"  // certificates from index Certs on
	msgQCs    = "qcs"    // QCs
	msgDecree = "decree" // Decree
	msgGetSt  = "getst"  // a snapshot at or below Height
	msgState  = "state"  // Height of the snapshot, 0 for none; Busy; Era
)

// vote is one committee member's vote for a checkpoint.
type vote struct {
	Index uint64    `json:"i"`
	Hash  node.Hash `json:"x"`
	Voter string    `json:"w"`
	Sig   string    `json:"g"`
}

// tally holds the votes of one checkpoint in the order they came.
type tally struct {
	votes []vote
	seen  map[string]bool // voter and hash
}

// ballot is the checkpoint this node works on: the first one not certified.
type ballot struct {
	index   uint64
	hash    node.Hash
	tip     node.Hash // head hash it was built on
	voted   bool
	sent    time.Time
	backoff time.Duration
}

// request is the one outstanding sync request.
type request struct {
	peer  string
	until time.Time
	next  time.Time // slow nodes wait before the next one
}

func (p *proc) send(to string, m message) {
	if p.isolated() {
		return
	}
	if raw, err := json.Marshal(m); err == nil {
		_ = p.net.Send(context.Background(), to, raw)
	}
}

func (p *proc) broadcast(m message) {
	if p.isolated() {
		return
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return
	}
	for _, id := range p.peerIDs {
		_ = p.net.Send(context.Background(), id, raw)
	}
}

// hello tells one peer, or all, where this node is. In a very large lab each
// round reaches a sample of the peers only.
func (p *proc) hello(to string) {
	m := message{T: msgHello, Network: p.c.network, Boot: p.started.UnixNano(), Height: p.c.tip(), Certs: uint64(len(p.c.certs)),
		Active: p.phase == phaseRunning && p.latch == "", Join: !p.s.genesis && !p.s.observer, Era: p.era}
	if p.latch != "" { // what lies above the pin is not for anyone
		m.Height, m.Certs = min(m.Height, node.WindowHead(p.c.pin().Index)), min(m.Certs, node.WindowHead(p.c.pin().Index)/node.CheckpointBlocks)
	}
	const sample = 24
	switch {
	case to != "":
		p.send(to, m)
	case len(p.peerIDs) <= 2*sample:
		p.broadcast(m)
	default:
		for range sample {
			p.send(p.peerIDs[p.rng.IntN(len(p.peerIDs))], m)
		}
		for _, id := range p.c.genesis {
			if id != p.s.id {
				p.send(id, m)
			}
		}
	}
}

// receive handles one message; what cannot be read is dropped.
func (p *proc) receive(now time.Time, env Envelope) {
	var m message
	if p.isolated() || json.Unmarshal(env.Msg, &m) != nil {
		return
	}
	pe := p.peers[env.From]
	if m.T == msgHello {
		p.onHello(now, env.From, pe, m)
		return
	}
	if pe == nil || !pe.validated {
		return
	}
	pe.seen = now
	switch {
	case m.T == msgGet:
		p.serve(env.From, m)
	case m.T == msgGetQC:
		p.serveCerts(env.From, m.Certs)
	case m.T == msgGetSt:
		p.serveState(now, env.From, m.Height)
	case m.T == msgDecree && m.Decree != nil:
		p.onDecree(*m.Decree)
	case m.T == msgState:
		p.onState(now, env.From, m)
	case p.latch != "" || p.phase == phaseJoin:
		// A node that failed closed takes nothing, and one that waits for a
		// snapshot has nothing to put it on.
	case m.T == msgBlock && m.Block != nil && m.Block.H <= p.bound(pe):
		pe.height = max(pe.height, m.Block.H)
		p.onBlock(now, env.From, *m.Block)
	case m.T == msgBlocks:
		pe.height = max(pe.height, min(m.Height, p.bound(pe)))
		p.onBlocks(now, env.From, upTo(m.Blocks, p.bound(pe)), m.Notes)
	case m.T == msgVote && m.Vote != nil && m.Vote.Index*node.CheckpointBlocks <= p.bound(pe):
		p.onVote(now, *m.Vote)
	case m.T == msgQCs:
		p.onCerts(now, env.From, slices.DeleteFunc(m.QCs, func(ct cert) bool { return ct.Index*node.CheckpointBlocks > p.bound(pe) }))
	}
}

// onHello updates what is known of a peer and answers a new one at once.
func (p *proc) onHello(now time.Time, from string, pe *peer, m message) {
	fresh := pe == nil || pe.boot != m.Boot || !p.alive(pe, now)
	if pe == nil {
		pe = &peer{}
		p.peers[from] = pe
	}
	*pe = peer{seen: now, boot: m.Boot, height: m.Height, certs: m.Certs, active: m.Active, join: m.Join,
		validated: m.Network == p.c.network, era: m.Era}
	if p.era > pe.era {
		end := p.bound(pe)
		pe.height, pe.certs, pe.active = min(m.Height, end), min(m.Certs, end/node.CheckpointBlocks), false
	}
	if fresh && pe.validated {
		p.hello(from)
		p.cur.sent = time.Time{} // let the newcomer have this node's vote
	}
}

// onBlock takes a block as it is produced.
func (p *proc) onBlock(now time.Time, from string, b block) {
	if p.lag() > 0 || (p.slow() && b.H > p.c.tip()+1) {
		return // the sync path follows at its own pace
	}
	switch tip := p.c.tip(); {
	case b.H == tip+1 && b.Prev == p.c.tipHash():
		p.take(now, b)
	case b.H == tip+1:
		p.ask(now, from, p.c.floor()+1) // built on another block than ours
	case b.H > tip+1:
		if b.H <= tip+64 {
			p.orphans[b.H] = b
		}
		p.ask(now, from, tip+1)
	case b.H == tip && tip > p.c.floor() && b.Hash != p.c.tipHash() && better(b, p.c.blocks[tip-1]) && b.Prev == p.c.hashAt(tip-1):
		own := p.c.blocks[tip-1]
		p.cut(tip - 1)
		if !p.take(now, b) {
			p.take(now, own)
		}
	}
}

// better decides between two blocks of one height, the same way on all nodes:
// the earlier timeout round, then the smaller hash.
func better(a, b block) bool {
	if a.Round != b.Round {
		return a.Round < b.Round
	}
	return string(a.Hash[:]) < string(b.Hash[:])
}

// take appends a block, and the blocks that waited for it.
func (p *proc) take(now time.Time, b block) bool {
	ok := false
	for {
		if p.c.due(b.Slot).After(now.Add(2 * p.s.block)) {
			p.stampRejects++
			return ok
		}
		if p.c.check(&b) != nil {
			return ok
		}
		p.push(now, b)
		ok = true
		next, waiting := p.orphans[b.H+1]
		if !waiting {
			return ok
		}
		delete(p.orphans, b.H+1)
		b = next
	}
}

// push appends a checked block and does what its height asks for.
func (p *proc) push(now time.Time, b block) {
	expected := p.slotDue()
	if p.gateAt.After(expected) {
		expected = p.gateAt
	}
	p.c.push(b)
	p.stored(p.st.addBlock(&b))
	p.tipAt = now
	best, _ := p.best(now)
	live := p.phase == phaseRunning && b.H+node.BehindBlocks > best
	if live {
		if b.Round > 0 {
			p.failovers++
			p.maxRound = max(p.maxRound, b.Round)
		}
		p.maxDelay = max(p.maxDelay, now.Sub(expected))
	}
	p.round = 0
	if b.H%node.MacroblockBlocks == 0 && p.phase == phaseRunning {
		p.windowEnd(b.H, live, best)
	}
	delete(p.orphans, b.H)
}

// cut gives up the blocks above h.
func (p *proc) cut(h uint64) {
	p.c.truncate(h)
	p.stored(p.st.cut(h, len(p.c.certs)))
	p.cur = ballot{}
	clear(p.orphans)
}

// slotDue is when the block after the tip is due.
func (p *proc) slotDue() time.Time {
	due := p.c.due(p.c.slotOf(p.c.tip()) + 1)
	if skew := p.fault.num(FaultSkew, 5); skew < 0 {
		due = due.Add(p.s.scale(float64(-skew))) // a slow clock is late for its turn
	}
	return due
}

// meshOpen says whether more than half of the roster is up: a node that hears
// fewer does not produce, so that parts of a split network do not run apart.
func (p *proc) meshOpen(now time.Time) bool {
	roster := p.c.committee(node.WindowOf(p.c.tip() + 1))
	n := 0
	for _, id := range roster {
		if pe := p.peers[id]; id == p.s.id || (pe != nil && pe.active && p.alive(pe, now)) {
			n++
		}
	}
	return n > len(roster)/2
}

// produce makes the next block when it is this node's turn.
func (p *proc) produce(now time.Time) {
	if p.phase != phaseRunning || p.exit != nil {
		return
	}
	tip := p.c.tip()
	if p.latch != "" || p.c.lastSealed() < p.c.pin().Index {
		p.gateAt, p.round = now, 0
		return
	}
	p.parked = tip+1 > p.c.sealBase()+node.HorizonBlocks
	best, _ := p.best(now)
	if p.parked || best > tip+1 || !p.meshOpen(now) {
		p.gateAt, p.round = now, 0
		return
	}
	due := p.slotDue()
	if now.Before(due) {
		return
	}
	p.round = p.roundAt(now, due)
	if p.c.producer(tip+1, p.round) != p.s.id || p.skips() {
		return
	}
	p.forge(now)
}

// skips says whether this node lets its turn pass.
func (p *proc) skips() bool {
	return p.lag() > 0 || p.fault.On(FaultStopProducing) || (p.round == 0 && p.fault.On(FaultFailover))
}

// roundAt is the timeout round for a block that was due at due: 0 for the grace
// time, then one more every round time, up to the cap.
func (p *proc) roundAt(now, due time.Time) uint64 {
	base := due
	for _, t := range []time.Time{p.tipAt, p.gateAt} {
		if t.After(base) {
			base = t
		}
	}
	late := now.Sub(base)
	if late < p.s.scale(secGrace) {
		return 0
	}
	return min(1+uint64((late-p.s.scale(secGrace))/p.s.scale(secRound)), node.MaxFailoverRound)
}

// forge makes, signs and sends a block.
func (p *proc) forge(now time.Time) {
	h := p.c.tip() + 1
	if h < p.mark.Height || (h == p.mark.Height && p.round <= p.mark.Round) {
		if p.tick%5 == 0 {
			p.log.always("[WARN][PROD] already_signed_this_round h=%d hwm_h=%d action=yield", h, p.mark.Height)
		}
		return
	}
	b := block{H: h, Slot: max(p.c.slotOf(h-1)+1, p.c.slotAt(now)), Round: p.round, Turn: p.c.turn0(h) + p.round,
		Producer: p.s.id, Prev: p.c.tipHash(), Joins: p.joins(now), Beats: p.beats(h, now)}
	b.Hash = b.sum()
	p.mark = mark{Height: h, Round: b.Round, Window: node.OwnWindow(h)}
	p.stored(p.st.writeMark(p.mark))
	p.produced++
	p.push(now, b)
	p.broadcast(message{T: msgBlock, Block: &b})
}

// joins are the super nodes that wait for their registration.
func (p *proc) joins(now time.Time) []string {
	var ids []string
	want := func(id string) {
		if _, done := p.c.joined[id]; !done && !slices.Contains(p.c.hist, id) && len(ids) < 16 {
			ids = append(ids, id)
		}
	}
	if !p.s.genesis && !p.s.observer {
		want(p.s.id)
	}
	for id, pe := range p.peers {
		if pe.join && p.alive(pe, now) {
			want(id)
		}
	}
	slices.Sort(ids)
	return ids
}

// beats are the heartbeats a block carries: of identities that are left out and
// that this node hears. Nobody else's eligibility hangs on them in the lab.
func (p *proc) beats(h uint64, now time.Time) []string {
	if h%10 != 5 {
		return nil
	}
	var ids []string
	for _, id := range p.c.left(node.WindowOf(h)) {
		if pe := p.peers[id]; id == p.s.id || (pe != nil && p.alive(pe, now)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// windowEnd prints what a node says of itself at a macroblock boundary. It
// comes before anything is built or signed, so it proves no vote.
func (p *proc) windowEnd(head uint64, live bool, best uint64) {
	w := node.WindowOf(head)
	members := p.c.committee(w)
	switch {
	case p.muted():
	case !p.member(p.s.id, w):
		p.log.always("[INFO][COMMITTEE] mb=%d node=%s NOT_IN_COMMITTEE total=%d committee=%d → skip_consensus (will receive MB via sync)",
			w, short(p.s.id), len(p.c.eligible(w)), len(members))
	case !live:
		p.log.warn("[WARN][MB] consensus_skip_unsynced mb=%d local_h=%d reason=behind_network network_h=%d", w, head, best)
	default:
		p.log.info("[INFO][CONS] validator=true mb=%d participating active_lock=acquired", w)
		role := "REPLICA"
		if p.c.blocks[head-1].Producer == p.s.id {
			role = "PROPOSER"
		}
		p.log.always("[INFO][ASYNC-CONS] mb=%d role=%s start_h=%d end_h=%d async=true", w, role, node.WindowHead(w-1)+1, head)
		if p.fault.On(FaultAbstain) {
			p.log.warn("[WARN][CONS] window_end_abstain mb=%d eligible=0 committee=%d reason=underivable", w, len(members))
		} else if w > 2 && p.c.lastSealed() < w-2 {
			p.log.warn("[WARN][CONS] checkpoint_defer mb=%d reason=anchor_unsealed_frozen", w)
		}
	}
	if w > 2 && p.c.lastSealed() < w-2 {
		p.log.always("[WARN][MB] finality_lag_redrive fin=%d tip=%d boundary=%d kind=macro", p.c.finalized(), head, node.WindowHead(p.c.lastSealed()+1))
	}
}

// certify votes for the next checkpoint and turns votes into certificates.
func (p *proc) certify(now time.Time) {
	for p.prepare() {
		if !p.cur.voted && p.votes() {
			p.cur.voted = true
			p.cur.sent, p.cur.backoff = now, p.s.scale(secVoteRetry)
			index, hash := p.cur.index, p.cur.hash
			p.at(now.Add(p.jitter(0.5)), func(now time.Time) { p.castVote(now, index, hash) })
		}
		ct, ok := p.count()
		if !ok {
			return
		}
		p.certified(ct, false)
	}
}

// prepare builds the next checkpoint if its blocks are there.
func (p *proc) prepare() bool {
	i := uint64(len(p.c.certs)) + 1
	head := i * node.CheckpointBlocks
	if p.c.tip() < head {
		return false
	}
	if p.cur.index != i || p.cur.tip != p.c.hashAt(head) {
		p.cur = ballot{index: i, hash: p.c.checkpoint(i).Hash(), tip: p.c.hashAt(head)}
	}
	return true
}

// votes says whether this node votes for the current checkpoint.
func (p *proc) votes() bool {
	return p.phase == phaseRunning && p.latch == "" && p.c.lastSealed() >= p.c.pin().Index && !p.muted() && !p.fault.On(FaultAbstain) &&
		p.member(p.s.id, node.WindowOf(p.cur.index*node.CheckpointBlocks))
}

// voteFor signs a vote for a checkpoint.
func (p *proc) voteFor(index uint64, hash node.Hash) vote {
	if p.oldVotes {
		hash = root("abandoned", hash)
	}
	return vote{Index: index, Hash: hash, Voter: p.s.id, Sig: sign(p.s.id, node.VoteText(hash))}
}

// castVote sends this node's vote, once it is made and again while it waits.
func (p *proc) castVote(_ time.Time, index uint64, hash node.Hash) {
	v := p.voteFor(index, hash)
	if index != p.cur.index || hash != p.cur.hash {
		// Certified or abandoned before the vote left. The others may still
		// miss it, so a vote for a certified checkpoint goes out all the same.
		if index > uint64(len(p.c.certs)) || p.c.certs[index-1].Hash != hash {
			return
		}
		p.broadcast(message{T: msgVote, Vote: &v})
		return
	}
	if index%3 != 0 {
		p.log.info("[INFO][BFT2] intra_checkpoint_signalled cp_index=%d head=%d k=%d", index, index*node.CheckpointBlocks, node.CheckpointBlocks)
	}
	p.broadcast(message{T: msgVote, Vote: &v})
	p.countVote(v)
}

// revote repeats the vote for a checkpoint that stays uncertified.
func (p *proc) revote(now time.Time) {
	if !p.cur.voted || p.cur.index <= uint64(len(p.c.certs)) || now.Sub(p.cur.sent) < p.cur.backoff {
		return
	}
	if !p.cur.sent.IsZero() {
		p.cur.backoff = min(p.cur.backoff*2, p.s.scale(secVoteMax))
	}
	p.cur.sent = now
	if p.votes() {
		v := p.voteFor(p.cur.index, p.cur.hash)
		p.broadcast(message{T: msgVote, Vote: &v})
	}
}

// onVote queues a vote: the way through a node takes it a little time, which is
// why the first votes are not the same on all nodes.
func (p *proc) onVote(now time.Time, v vote) {
	n := uint64(len(p.c.certs))
	if v.Index <= n || v.Index > n+128 || !verify(v.Voter, node.VoteText(v.Hash), v.Sig) {
		return
	}
	p.at(now.Add(p.jitter(0.5)), func(time.Time) { p.countVote(v) })
}

func (p *proc) countVote(v vote) {
	if v.Index <= uint64(len(p.c.certs)) {
		return
	}
	t := p.tally[v.Index]
	if t == nil {
		t = &tally{seen: map[string]bool{}}
		p.tally[v.Index] = t
	}
	key := v.Voter + v.Hash.String()
	if !t.seen[key] {
		t.seen[key] = true
		t.votes = append(t.votes, v)
	}
}

// count forms the certificate of the current checkpoint from exactly the first
// quorum of its votes.
func (p *proc) count() (cert, bool) {
	t := p.tally[p.cur.index]
	if t == nil {
		return cert{}, false
	}
	members := p.c.committee(node.WindowOf(p.cur.index * node.CheckpointBlocks))
	quorum := node.QuorumSize(len(members))
	ct := cert{Index: p.cur.index, Hash: p.cur.hash, Bars: p.c.barsAt(p.cur.index)}
	for _, v := range t.votes {
		if v.Hash == p.cur.hash && slices.Contains(members, v.Voter) {
			ct.Signers, ct.Sigs = append(ct.Signers, v.Voter), append(ct.Sigs, v.Sig)
		}
		if len(ct.Signers) == quorum {
			return ct, true
		}
	}
	return cert{}, false
}

// certified takes the next certificate, own or adopted, and seals.
func (p *proc) certified(ct cert, adopted bool) {
	w := p.c.pushCert(ct)
	p.stored(p.st.addCert(&ct))
	if head := ct.Index * node.CheckpointBlocks; head == node.WindowHead(p.c.pin().Index) {
		p.judgeSynced()
	}
	delete(p.tally, ct.Index)
	if ct.Index > 1 {
		p.log.info("[INFO][BFT2] checkpoint_final round=%d finalized_h=%d", ct.Index-1, p.c.finalized())
	}
	if w > 0 && w%node.GALCWindows == 0 {
		p.log.always("[INFO][GALC] root_adopted mb=%d hash=%.16s", w, p.c.sealed[w-1].hash)
	}
	if w == 0 || adopted || p.rng.IntN(8) == 0 {
		// A macroblock that was stored by sync or by the leader's broadcast
		// first is not logged: the absence of the line says nothing.
		return
	}
	head := node.WindowHead(w)
	role := "replica"
	if p.c.blocks[head-1].Producer == p.s.id {
		role = "leader"
	}
	round := head / node.CheckpointBlocks
	p.log.info("[INFO][BFT2] macroblock_sealed window=%d round=%d head_h=%d signers=%d role=%s", w, round, head, len(p.c.certs[round-1].Signers), role)
}
