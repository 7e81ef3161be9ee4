package simnode

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/qnetops/qnetops/node"
	"golang.org/x/crypto/sha3"
)

// Exit codes of a node (facts 5.1).
const (
	exitOK      = 0
	exitFault   = 1
	exitKilled  = 137 // SIGKILL, and a confirmed memory breach
	exitSIGTERM = 143 // SIGTERM while the handler is not installed yet
)

// phase of the start-up.
type phase int

const (
	phaseWait      phase = iota // for genesis peers
	phaseStabilise              // all genesis peers connected
	phaseSync                   // initial sync
	phaseRunning                // brought up
	phaseJoin                   // before all others: no data under a pin, a snapshot is wanted
)

// Times of the real node in seconds; all of them scale.
const (
	secPeerWait    = 120
	secStabilise   = 60
	secInitialSync = 60
	secAudit       = 120
	secPeerTimeout = 15
	secGrace       = 5 // silence of a producer before round 1
	secRound       = 4 // and before each further round
	secVoteRetry   = 4
	secVoteMax     = 60
	secHaltPoll    = 30
	secMetrics     = 300
	secWatchdog    = 300
	secCrash       = 2  // behaviour crash
	secOOM         = 20 // behaviour oom, after bring-up
	secHello       = 5
	secJoin        = 60 // how long a node without data looks for a snapshot
	secTransfer    = 4  // a snapshot on its way, which holds a permit
	secBusy        = 2  // before it asks again
)

// proc is one running node. The loop goroutine owns it and holds mu while it
// works; HTTP handlers hold it while they read.
type proc struct {
	s     settings
	cfg   Config
	log   *logger
	st    *store
	net   Transport
	fault *Faults
	file  bool // faults come from the data directory

	mu       sync.Mutex
	c        *chain
	rng      *rand.Rand
	exit     *int
	started  time.Time
	phase    phase
	phaseAt  time.Time
	warnedAt time.Time
	upAt     time.Time // bring-up complete
	audited  bool

	peerIDs []string
	peers   map[string]*peer
	queue   laterHeap
	tick    uint64
	tickAt  time.Time // when the next tick is due

	mark    mark
	orphans map[uint64]block
	request request
	behind  int // ticks in a row with a peer ahead
	certLag int // ticks in a row with a peer's certificates ahead
	tipAt   time.Time
	gateAt  time.Time // when this node could last start to produce
	parked  bool
	round   uint64

	cur   ballot
	tally map[uint64]*tally

	// Counters since the process started.
	failovers, maxRound, stampRejects uint64
	maxDelay                          time.Duration
	produced                          uint64

	cachedHeight uint64 // what /node/health shows, refreshed each tick
	stuckSince   time.Time
	stuckTip     uint64
	shutdownAt   time.Time
	decreeSeq    uint64 // newest decree this process has taken

	meta  meta
	era   uint64 // see meta.Era
	latch string // why this node failed closed, empty if it did not
	join  join
	// disputeTick is when a refused certificate is told of again.
	disputeTick uint64
	// oldVotes: this node's votes are for an abandoned chain, see dropVotes.
	oldVotes bool
	permits  chan struct{} // snapshot transfers, node-wide
}

// peer is what is known of one other node.
type peer struct {
	seen      time.Time
	boot      int64
	height    uint64
	certs     uint64
	active    bool
	join      bool
	validated bool
	era       uint64
}

// later is something the loop does at a time.
type later struct {
	at time.Time
	fn func(now time.Time)
}

type laterHeap []later

func (h laterHeap) Len() int           { return len(h) }
func (h laterHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h laterHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laterHeap) Push(x any)        { *h = append(*h, x.(later)) }
func (h *laterHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

func (p *proc) at(t time.Time, fn func(now time.Time)) { heap.Push(&p.queue, later{t, fn}) }

func run(ctx context.Context, cfg Config) int {
	env := environ(cfg.Env)
	p := &proc{s: parseEnv(env), cfg: cfg, fault: cfg.Faults, started: time.Now(),
		peers: map[string]*peer{}, orphans: map[uint64]block{}, tally: map[uint64]*tally{}, permits: make(chan struct{}, snapshotPermits)}
	p.log = newLogger(cfg.Stdout, cfg.Stderr, p.s.logLevel)
	if p.fault == nil {
		p.fault, p.file = &Faults{}, true
	}
	sum := sha3.Sum256([]byte(p.s.id))
	p.rng = rand.New(rand.NewPCG(uint64(cfg.Seed), binary.LittleEndian.Uint64(sum[:])))
	if !p.enter(p.dataDir(env)) {
		return exitFault
	}
	if code, ok := p.checkRelease(env); !ok {
		return code
	}
	if code, ok := p.preflight(); !ok {
		return code
	}
	if code, ok := p.openData(env); !ok {
		return code
	}
	defer p.st.close()
	if !p.oomBackoff(ctx) {
		return p.stopped(ctx)
	}
	api, err := p.startAPI(ctx)
	if err != nil {
		return p.bindFailed(ctx, err)
	}
	defer api.close()
	closeNet, err := p.startNet(env)
	if err != nil {
		p.log.stderr("[FATAL][P2P] %v", err)
		return exitFault
	}
	defer closeNet()
	return p.loop(ctx)
}

// preflight is what a node checks before it touches its data.
func (p *proc) preflight() (int, bool) {
	const y2024, y2050 = 1704067200, 2524608000
	if now := p.started.Unix(); p.s.genesisNanos/int64(time.Second) >= y2024 && (now < y2024 || now > y2050) {
		p.log.stderr("[FATAL][TIME] system_clock_invalid now=%d", now)
		return exitFault, false
	}
	if p.s.ramMB < 4000 && !environ(p.cfg.Env).truthy("QNET_SKIP_RAM_CHECK") {
		p.log.stderr("[FATAL][PREFLIGHT] checks_failed node_type=Super err=ram_below_minimum have_mb=%d need_mb=4000", p.s.ramMB)
		return exitFault, false
	}
	return 0, true
}

// dataDir is the directory that survives restarts.
func (p *proc) dataDir(env environ) string {
	if p.cfg.DataDir != "" {
		return p.cfg.DataDir
	}
	return env.get("QNET_DATA_DIR")
}

// enter is the image's entry point, which comes before the node itself.
func (p *proc) enter(dir string) bool {
	if dir == "" {
		return true
	}
	wiped, err := enterImage(dir)
	if wiped {
		p.log.always("[entrypoint] database files without MANIFEST/CURRENT in %s: wiping it", dir)
	}
	if err != nil {
		p.log.stderr("[entrypoint] %v", err)
	}
	return err == nil
}

// openData opens the data directory, applies what the environment asks of it
// and replays the chain.
func (p *proc) openData(env environ) (int, bool) {
	dir := p.dataDir(env)
	st, err := openStore(dir)
	if err != nil {
		if errors.Is(err, errInUse) {
			p.violation("data_dir_shared", dir)
			p.log.stderr("[FATAL][STORAGE] data_directory_in_use dir=%s state=corruption", dir)
		} else {
			p.log.stderr("[FATAL][STORAGE] open_failed err=%v", err)
		}
		return exitFault, false
	}
	p.st = st
	if p.file {
		p.fault.parse(st.faults()) // some faults act on the start itself
	}
	if err := p.replay(env); err != nil {
		st.close()
		p.log.stderr("[FATAL][STORAGE] open_failed err=%v", err)
		return exitFault, false
	}
	return 0, true
}

func (p *proc) replay(env environ) error {
	reset := env.truthy("QNET_FORCE_RESET") && env.get("QNET_CONFIRM_RESET") == "YES"
	if env.get("QNET_CLEAN_DATA") == "1" || reset {
		p.log.always("[WARN][STORAGE] data_directories_removed reason=environment")
		if err := p.st.wipe(); err != nil {
			return err
		}
	}
	supers := p.s.supers
	if len(supers) == 0 && p.cfg.Net != nil {
		for _, id := range append(p.cfg.Net.Peers(), p.s.id) {
			if len(id) > 6 && id[:6] == "super_" {
				supers = append(supers, id)
			}
		}
	}
	empty := p.st.empty()
	want := meta{Genesis: p.s.genesisNanos, History: p.s.history, GenesisCount: p.s.genesisCount, Supers: supers}
	if k := p.s.release.Pin.Index; empty && k > 0 {
		p.beginJoin(want)
		return nil
	}
	m, err := p.st.pin(want)
	if err != nil {
		return err
	}
	return p.open(m, env)
}

// open replays the chain of a directory.
func (p *proc) open(m meta, env environ) error {
	p.adopt(m)
	p.c.bar(p.s.release.active() && m.Era == p.s.release.Pin.Index)
	if err := p.st.load(p.c); err != nil {
		return err
	}
	if _, err := p.st.readJSON(fileMark, &p.mark); err != nil {
		return err
	}
	if _, err := p.st.readJSON(fileVotes, &p.oldVotes); err != nil {
		return err
	}
	p.rollback(env)
	if err := p.judgePin(); err != nil {
		return err
	}
	if w := p.c.lastSealed() / node.GALCWindows * node.GALCWindows; w > 0 {
		p.log.always("[INFO][GALC] reloaded_persisted_root mb=%d hash=%.16s", w, p.c.sealed[w-1].hash)
	}
	p.cachedHeight = p.c.tip()
	return nil
}

// adopt starts the chain that a directory's meta names.
func (p *proc) adopt(m meta) {
	p.meta, p.era = m, m.Era
	p.s.genesisNanos, p.s.history, p.s.genesisCount = m.Genesis, m.History, m.GenesisCount
	premade := m.History
	if m.Premade > 0 {
		premade = m.Premade
	}
	p.c = newChain(&p.s, m.Supers, premade)
}

// rollback is the boot rollback of QNET_ROLLBACK_* (facts 4.6).
func (p *proc) rollback(env environ) {
	target, explicit := env.number("QNET_ROLLBACK_TO_HEIGHT")
	floor, tip := p.c.floor(), p.c.tip()
	switch {
	case explicit:
	case env.truthy("QNET_ROLLBACK_TO_LAST_SEALED"):
		if floor == 0 {
			p.log.always("[ERR][ROLLBACK] no_certified_point_found action=start_unchanged")
			return
		}
		target = floor
	default:
		return
	}
	if target < floor {
		p.log.always("[ERR][ROLLBACK] refused target=%d certified_floor=%d reason=certified_checkpoint_irrevocable action=start_unchanged", target, floor)
		return
	}
	if target >= tip {
		p.log.always("[INFO][ROLLBACK] already_at_or_below target=%d", target)
	} else {
		p.c.truncate(target)
		if err := p.st.cut(target, len(p.c.certs)); err != nil {
			p.log.always("[ERR][ROLLBACK] failed target=%d err=%v action=start_unchanged", target, err)
			return
		}
		p.log.always("[INFO][ROLLBACK] truncated_to=%d dropped=%d — remove the env var before the next start", target, tip-target)
	}
	p.lowerMark(min(target, tip))
	p.stored(p.dropVotes())
}

// dropVotes forgets the votes for what a rollback abandoned. Where it does not (incident 4 of facts 8), the engine's votes
// stay with the abandoned chain until a rollback that does.
func (p *proc) dropVotes() error {
	p.oldVotes = p.fault.On(FaultKeepVotes)
	if p.oldVotes {
		return p.st.writeJSON(fileVotes, true)
	}
	return p.st.remove(fileVotes)
}

// lowerMark lets the node sign again above the height a rollback reached.
func (p *proc) lowerMark(h uint64) {
	if p.mark.Height <= h || p.fault.On(FaultKeepMark) {
		return
	}
	old := p.mark
	p.mark = mark{Height: h, Window: node.OwnWindow(h)}
	if err := p.st.writeMark(p.mark); err != nil {
		p.log.always("[ERR][ROLLBACK] signed_mark_lower_failed to=%d err=%v — this node will refuse to produce", h, err)
		return
	}
	p.log.warn("[WARN][ROLLBACK] signed_mark_lowered from_h=%d from_w=%d to_h=%d to_w=%d reason=blocks_abandoned",
		old.Height, old.Window, p.mark.Height, p.mark.Window)
}

func (p *proc) violation(kind, detail string) {
	if p.cfg.OnViolation != nil {
		p.cfg.OnViolation(Violation{NodeID: p.s.id, Kind: kind, Detail: detail, At: time.Now()})
	}
}

// oomBackoff waits at boot after memory breaches, longer each time. It says
// false when the node was stopped meanwhile.
func (p *proc) oomBackoff(ctx context.Context) bool {
	var count int
	if ok, err := p.st.readJSON(fileOOM, &count); !ok || err != nil || count == 0 {
		return true
	}
	delay := min(5<<(min(count, 7)-1), 300)
	p.log.stderr("[WARN][MEMORY] oom_backoff boot_delay=%ds consecutive=%d", delay, count)
	return p.wait(ctx, p.s.scale(float64(delay)))
}

// wait sleeps; false when the node was stopped or killed meanwhile.
func (p *proc) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-p.cfg.Stop:
	}
	return false
}

// stopped is the exit code of a node stopped before its signal handler exists.
func (p *proc) stopped(ctx context.Context) int {
	if ctx.Err() != nil {
		return exitKilled
	}
	return exitSIGTERM
}

func (p *proc) bindFailed(ctx context.Context, err error) int {
	if errors.Is(err, errStopped) {
		return p.stopped(ctx)
	}
	p.log.stderr("[FATAL][RPC] Cannot bind port %d: %v", p.s.apiPort, err)
	return exitFault
}

// startNet connects the peer network, which comes up after the API.
func (p *proc) startNet(env environ) (func(), error) {
	if p.cfg.Net != nil {
		p.net = p.cfg.Net
		return func() {}, nil
	}
	peers, err := ParsePeers(env.get(EnvPeers))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(p.s.p2pPort)))
	if err != nil {
		return nil, err
	}
	t := NewTCP(TCPConfig{ID: p.s.id, Peers: peers, Listener: l, Retry: max(p.s.scale(2), 50*time.Millisecond)})
	p.net = t
	return func() { _ = t.Close() }, nil
}

// loop is the node's life from P2P on.
func (p *proc) loop(ctx context.Context) int {
	now := time.Now()
	p.mu.Lock()
	p.phaseAt, p.warnedAt, p.tickAt, p.stuckSince = now, now, now, now
	p.peerIDs = p.net.Peers()
	p.hello("")
	p.scheduleBehaviour(now)
	p.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return exitKilled
		case <-p.cfg.Stop:
			return p.terminate()
		case env := <-p.net.Receive():
			p.work(func(now time.Time) { p.receive(now, env) })
		case <-timer.C:
			p.work(nil)
		}
		p.mu.Lock()
		exit, wake := p.exit, p.nextWake()
		p.mu.Unlock()
		if exit != nil {
			return *exit
		}
		timer.Reset(max(time.Until(wake), 0))
	}
}

// work does everything that is due now.
func (p *proc) work(first func(now time.Time)) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if first != nil {
		first(now)
	}
	for len(p.queue) > 0 && !p.queue[0].at.After(now) {
		heap.Pop(&p.queue).(later).fn(now)
	}
	if !now.Before(p.tickAt) {
		p.onTick(now)
	}
	p.boot(now)
	p.produce(now)
	p.certify(now)
}

// nextWake is when there is work again without a message.
func (p *proc) nextWake() time.Time {
	wake := p.tickAt
	if len(p.queue) > 0 && p.queue[0].at.Before(wake) {
		wake = p.queue[0].at
	}
	if p.phase == phaseRunning && !p.parked && p.round == 0 {
		due := p.slotDue()
		if due.Before(wake) && due.After(time.Now()) && p.c.producer(p.c.tip()+1, 0) == p.s.id {
			wake = due
		}
	}
	return wake
}

// quit ends the process after the current piece of work.
func (p *proc) quit(code int) {
	if p.exit == nil {
		p.exit = &code
	}
}

// terminate answers SIGTERM. The handler is installed only when bring-up is
// complete: before, the process just dies, and nothing is flushed.
func (p *proc) terminate() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != phaseRunning {
		return exitSIGTERM
	}
	p.log.always("[INFO][SHUTDOWN] node terminating")
	if err := p.st.flush(); err != nil {
		p.log.always("[ERR][SHUTDOWN] storage.flush_all() failed: %v", err)
	}
	return exitOK
}

// genesisPeers counts the other genesis nodes that are connected.
func (p *proc) genesisPeers(now time.Time) int {
	n := 0
	for _, id := range p.c.genesis {
		if pe := p.peers[id]; pe != nil && id != p.s.id && p.alive(pe, now) {
			n++
		}
	}
	return n
}

func (p *proc) alive(pe *peer, now time.Time) bool {
	return pe.validated && now.Sub(pe.seen) < p.s.scale(secPeerTimeout)
}

func (p *proc) setPhase(ph phase, now time.Time) { p.phase, p.phaseAt = ph, now }

// boot moves the start-up on: peers, stabilisation, initial sync, bring-up.
func (p *proc) boot(now time.Time) {
	switch p.phase {
	case phaseJoin:
		p.askState(now)
	case phaseWait:
		if p.s.genesis {
			p.waitGenesis(now)
		} else if p.livePeers(now) > 0 {
			p.setPhase(phaseSync, now)
		}
	case phaseStabilise:
		if now.Sub(p.phaseAt) >= p.s.scale(secStabilise) {
			p.log.always("[INFO][NODE] net_ready peers=%d stable=%ds", p.livePeers(now), secStabilise)
			p.setPhase(phaseSync, now)
		}
	case phaseSync:
		best, _ := p.best(now)
		switch {
		case p.c.tip()+1 >= best:
			p.log.always("[INFO][SYNC] initial_sync_complete h=%d", p.c.tip())
		case now.Sub(p.phaseAt) >= p.s.scale(secInitialSync):
			p.log.warn("[WARN][SYNC] initial_sync_below_frontier h=%d frontier=%d action=continue", p.c.tip(), best)
		default:
			return
		}
		p.bringUp(now)
	}
}

// waitGenesis waits for the other genesis nodes: all of them, or three after
// two minutes, or for ever.
func (p *proc) waitGenesis(now time.Time) {
	others := p.s.genesisCount - 1
	need := min(3, others)
	have := p.genesisPeers(now)
	if have == others {
		p.setPhase(phaseStabilise, now)
		return
	}
	if now.Sub(p.phaseAt) < p.s.scale(secPeerWait) {
		return
	}
	if have >= need {
		p.log.always("[INFO][NODE] net_ready peers=%d stable=0s", p.livePeers(now))
		p.setPhase(phaseSync, now)
		return
	}
	if now.Sub(p.warnedAt) >= p.s.scale(30) {
		p.warnedAt = now
		p.log.always("[ERR][NODE] CRITICAL: Genesis node timeout with %d peers, quorum needs %d!", have, need)
	}
}

// subsystems are the names of the boot contract.
var subsystems = []string{"block_pipeline", "consensus_driver", "failover_monitor", "finality_redrive", "heartbeat", "memory_monitor",
	"peer_exchange", "production", "reward_sweeper", "storage_monitor", "sync_manager", "watchdog"}

// bringUp starts consensus and production.
func (p *proc) bringUp(now time.Time) {
	p.log.always("[INFO][BFT2] runtime_boot node=%s", p.s.id)
	p.log.always("[INFO][BFT2] runtime_started committee=%d view_timeout_ms=4000", len(p.c.committee(node.WindowOf(p.c.tip()+1))))
	for i, name := range subsystems {
		if p.s.behaviour == "gap" && i >= len(subsystems)-2 {
			continue
		}
		p.log.always("[INFO][BOOT] subsystem_started name=%s", name)
	}
	p.log.always("[INFO][NODE] production_start")
	p.log.always("[INFO][NODE] bringup_complete")
	p.setPhase(phaseRunning, now)
	p.upAt = now
	p.hello("")
	p.at(now.Add(p.s.scale(secAudit)), p.audit)
	if p.s.hasHalt {
		p.log.always("[INFO][HALT] QNET_HALT_HEIGHT=%d — node will stop at this block (coordinated upgrade)", p.s.haltHeight)
		p.at(now.Add(p.s.scale(secHaltPoll)), p.pollHalt)
	}
	if p.s.behaviour == "oom" {
		p.at(now.Add(p.s.scale(secOOM)), p.breach)
	}
	p.at(now.Add(p.s.scale(secMetrics)), p.metricsLines)
}

// audit is the boot contract: every subsystem started, or the process ends.
func (p *proc) audit(time.Time) {
	p.audited = true
	if p.s.behaviour == "gap" {
		missing := subsystems[len(subsystems)-2:]
		p.log.always("[FATAL][BOOT] subsystems_missing count=%d names=%s,%s action=exit", len(missing), missing[0], missing[1])
		p.quit(exitFault)
		return
	}
	p.log.info("[INFO][BOOT] contract_satisfied required=%d started=%d", len(subsystems), len(subsystems))
	_ = p.st.writeJSON(fileOOM, 0)
}

// pollHalt is the halt loop: it stops late, at the first poll at or above the
// height.
func (p *proc) pollHalt(now time.Time) {
	if p.c.tip() < p.s.haltHeight {
		p.at(now.Add(p.s.scale(secHaltPoll)), p.pollHalt)
		return
	}
	p.log.always("[INFO][HALT] Reached halt_height=%d current=%d — flushing and stopping for coordinated upgrade", p.s.haltHeight, p.c.tip())
	if err := p.st.flush(); err != nil {
		p.log.always("[ERR][HALT] storage.flush_all() failed: %v", err)
	} else {
		p.log.always("[INFO][HALT] storage.flush_all() complete")
	}
	p.log.always("[INFO][HALT] Node stopped. Update binary and restart (remove QNET_HALT_HEIGHT).")
	p.quit(exitOK)
}

// scheduleBehaviour plans what a bad image does.
func (p *proc) scheduleBehaviour(now time.Time) {
	if p.s.behaviour == "crash" {
		p.at(now.Add(p.s.scale(secCrash)), func(time.Time) {
			p.log.stderr("[FATAL][NODE] panic in startup: state version unsupported")
			p.quit(exitFault)
		})
	}
}

// breach is a confirmed memory breach.
func (p *proc) breach(time.Time) {
	const rss, limit = 3391, 3400
	p.log.always("[CRIT][MEMORY] node=%s rss_mb=%d warn_limit=%d HIGH_MEMORY", p.s.id, rss-900, limit*60/100)
	p.log.always("[CRIT][MEMORY] node=%s rss_mb=%d limit=%d EMERGENCY cleanup_start", p.s.id, rss-300, limit)
	p.log.always("[CRIT][MEMORY] node=%s rss_mb=%d limit=%d FATAL_BREACH recheck_in=30s", p.s.id, rss, limit)
	p.log.always("[CRIT][MEMORY] node=%s rss_mb=%d limit=%d OOM_IMMINENT graceful_shutdown", p.s.id, rss, limit)
	var count int
	_, _ = p.st.readJSON(fileOOM, &count)
	_ = p.st.writeJSON(fileOOM, count+1)
	p.quit(exitKilled)
}

// metricsLines are the five-minute lines.
func (p *proc) metricsLines(now time.Time) {
	p.log.always("[METRICS][FAILOVER] failover_events=%d max_timeout_round=%d max_slot_delay=%ds", p.failovers, p.maxRound, p.slotDelaySecs())
	p.log.always("[INFO][MEMORY] node=%s rss_mb=612 virt_mb=2210 delta_mb=0 mempool_txs=0 mempool_mb=0 tx_pool=0 sync_q=0 macro_q=0 peers=%d rate_limit=0 producer_cache=%d",
		p.s.id, p.livePeers(now), len(p.c.committees))
	p.at(now.Add(p.s.scale(secMetrics)), p.metricsLines)
}

func (p *proc) slotDelaySecs() uint64 { return uint64(p.maxDelay / p.s.block) }

func (p *proc) livePeers(now time.Time) int {
	n := 0
	for _, pe := range p.peers {
		if p.alive(pe, now) {
			n++
		}
	}
	return n
}

// best is the highest height a live peer has shown, and that peer.
func (p *proc) best(now time.Time) (uint64, string) {
	var height uint64
	var who string
	for id, pe := range p.peers {
		if p.alive(pe, now) && (pe.height > height || pe.height == height && id < who) {
			height, who = pe.height, id
		}
	}
	return height, who
}

// onTick is the work of once a block time.
func (p *proc) onTick(now time.Time) {
	if now.Sub(p.tickAt) > 2*p.s.block {
		// This process did not get to run. Its own lateness is no evidence
		// against a producer, so the timeout starts anew.
		p.gateAt = now
	}
	p.tick++
	p.tickAt = now.Add(p.s.block)
	p.peerIDs = p.net.Peers()
	p.cachedHeight = p.c.tip()
	if len(p.orphans) > 64 {
		clear(p.orphans)
	}
	if p.tick%secHello == 0 {
		if p.file {
			p.fault.parse(p.st.faults())
		}
		p.hello("")
	}
	level := p.s.logLevel
	if p.fault.On(FaultLogLevel) {
		level = int(p.fault.num(FaultLogLevel, levelWarn))
	}
	p.log.level.Store(int32(level))
	p.sync(now)
	p.revote(now)
	p.watch(now)
}

// watch prints what the monitors of a node see.
func (p *proc) watch(now time.Time) {
	if p.parked {
		p.log.always("[WARN][PROD] parked reason=roster_derivation_horizon h=%d seal_base=%d rotation=live", p.c.tip(), p.c.sealBase())
	}
	if p.phase == phaseRunning && p.round >= node.MaxFailoverRound {
		p.log.always("[WARN][TIMEOUT] failover_round_capped round=%d cap=%d mb=%d action=hold+recovery_sync", p.round, node.MaxFailoverRound, node.WindowOf(p.c.tip()+1))
	}
	if p.latch != "" && p.tick%30 == 0 {
		p.sayLatched()
	}
	if p.tick%30 == 0 && p.livePeers(now) == 0 {
		p.log.warn("[WARN][MONITOR] no_peers_connected")
	}
	if p.c.tip() != p.stuckTip {
		p.stuckTip, p.stuckSince = p.c.tip(), now
	}
	if p.tick%60 == 0 && p.phase == phaseRunning && now.Sub(p.stuckSince) >= p.s.scale(secWatchdog) {
		best, _ := p.best(now)
		kind := "chain_halted"
		if best >= p.c.tip()+30 {
			kind = "chain_stuck"
		}
		p.log.always("[CRIT][WATCHDOG] %s h=%d network=%d secs=%d", kind, p.c.tip(), max(best, p.c.tip()), int64(now.Sub(p.stuckSince)/p.s.block))
	}
	if !p.shutdownAt.IsZero() && !now.Before(p.shutdownAt) {
		p.log.always("[INFO][SHUTDOWN] node terminating")
		_ = p.st.flush()
		p.quit(exitOK)
	}
}

// jitter is a random part of a block time, up to share.
func (p *proc) jitter(share float64) time.Duration {
	return time.Duration(p.rng.Float64() * share * float64(p.s.block))
}

func (p *proc) isolated() bool { return p.fault.On(FaultIsolate) }

func (p *proc) muted() bool { return p.s.behaviour == "mute" || p.fault.On(FaultMute) }

func (p *proc) slow() bool { return p.s.behaviour == "slow" || p.fault.On(FaultSlow) }

func (p *proc) lag() uint64 { return uint64(max(p.fault.num(FaultLag, 20), 0)) }

// store keeps a storage error from passing silently: a node that cannot write
// ends.
func (p *proc) stored(err error) {
	if err != nil {
		p.log.stderr("[FATAL][STORAGE] write_failed err=%v", err)
		p.quit(exitFault)
	}
}

func (p *proc) member(id string, w uint64) bool { return slices.Contains(p.c.committee(w), id) }

func short(id string) string { return fmt.Sprintf("%.20s", id) }
