package ledger

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/crypto/sha3"

	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/node"
)

// NodeConfig says what a node of a ledger is.
type NodeConfig struct {
	// ID is the node's identity; it need not be a member.
	ID string
	// Build is what /healthz reports; empty: a build without stamp.
	Build string
	// Archive keeps everything: an archive of the epochs sealed, and signatures for good.
	Archive bool
	// Snapshots are the heights of the snapshots held; nil is what a node keeps by itself: the newest three and 90.
	Snapshots []uint64
	// Lines are printed in the log after those of every node.
	Lines []string
}

// Node is one node of a ledger. Its methods may be called from any goroutine.
type Node struct {
	l       *Ledger
	cfg     NodeConfig
	gate    *simnode.Gate
	permits chan struct{} // snapshot transfers
	handler http.Handler

	setting sync.Mutex // one change of faults at a time
	mu      sync.Mutex
	faults  map[Kind]*fault // replaced, never changed
	chain   *branch
	reads   map[uint64]uint64 // proofs served by index
	asked   map[string]int
	refused []string
}

// Node makes a node without faults.
func (l *Ledger) Node(cfg NodeConfig) *Node {
	const permits = 16 // facts 1.12
	if cfg.Build == "" {
		cfg.Build = "v1.0.0-unstamped"
	}
	n := &Node{l: l, cfg: cfg, gate: simnode.NewGate(l.cfg.Block), permits: make(chan struct{}, permits), chain: l.main,
		faults: map[Kind]*fault{}, reads: map[uint64]uint64{}, asked: map[string]int{}}
	n.handler = n.routes()
	return n
}

// ID is the node's identity.
func (n *Node) ID() string { return n.cfg.ID }

func (n *Node) faultSet() map[Kind]*fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults
}

// seen is the node at one moment.
func (n *Node) seen() (*branch, map[Kind]*fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.chain, n.faults
}

// Asked counts the requests since the last Forget by route, such as "/api/v1/macroblock/{index}/proof".
func (n *Node) Asked() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.asked)
}

// Refused lists the requests that no route answers. A tool that is right leaves it empty.
func (n *Node) Refused() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.refused)
}

// Forget sets the counts of requests to zero.
func (n *Node) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.asked)
	n.refused = nil
}

// Sealed is the index of the last macroblock this node holds sealed.
func (n *Node) Sealed() uint64 {
	sealed := n.l.cfg.Macroblocks
	if f := n.faultSet()[FaultLag]; f != nil {
		sealed -= min(sealed, f.n)
	}
	return sealed
}

// Finalized is the height that is final by the two-chain rule. The certified floor, which no route serves, is one
// checkpoint higher.
func (n *Node) Finalized() uint64 { return node.WindowHead(n.Sealed()) }

// Hash is the hash of macroblock i on the chain this node is on, whatever it serves of it. It must be sealed.
func (n *Node) Hash(i uint64) node.Hash {
	chain, _ := n.seen()
	return chain.hash(i)
}

// holds says whether a macroblock is there to be served.
func (n *Node) holds(i uint64) bool {
	missing := n.faultSet()[FaultMissing]
	return i >= 1 && i <= n.Sealed() && (missing == nil || !missing.hits(i))
}

// Macroblock is macroblock i as this node serves it. It must be sealed.
func (n *Node) Macroblock(i uint64) node.Macroblock {
	chain, faults := n.seen()
	micro := chain.micro(i)
	mb := node.Macroblock{Index: i, Height: i, Timestamp: n.l.stamp(node.WindowHead(i)), MicroBlocksCount: uint64(len(micro)),
		MicroBlocks: micro, StateRoot: chain.stateRoot(i, micro), PreviousHash: chain.hash(i - 1)}
	if faults[FaultWrongNumber].hits(i) {
		mb.Height++
	}
	return mb
}

// Fields are the digest inputs of macroblock i as this node serves them.
func (n *Node) Fields(i uint64) node.CommitteeFields { return n.unsigned(i).Fields() }

// unsigned is the proof of macroblock i without its signatures.
func (n *Node) unsigned(i uint64) node.Proof {
	chain, faults := n.seen()
	l := n.l
	certified := l.eligible(i)
	if f := faults[FaultOtherDigest]; f.hits(i) {
		certified = with(certified, "other "+f.rest)
	}
	raw := eligibleRaw(certified)
	p := node.Proof{Index: i, Epoch: i, Checkpoint: chain.checkpoint(i, raw), Committee: l.Committee(i), EligibleRaw: raw, Banned: l.banned(i)}
	if f := faults[FaultBadSeal]; f.hits(i) && !n.healed(f, i) {
		p.EligibleRaw = eligibleRaw(with(certified, "bad seal"))
	}
	quorum := node.QuorumSize(len(p.Committee))
	if faults[FaultRelaxed].hits(i) && i > 1 {
		anchor := chain.checkpoint(i-1, eligibleRaw(l.eligible(i-1)))
		p.Checkpoint.RecoveryAnchor = &node.RecoveryAnchor{AnchorMB: i - 1, Digest: anchor.ContentDigest()}
		p.RecoveryAnchorCheckpoint = &anchor
		quorum = node.RelaxedQuorum(len(p.Committee))
	}
	if faults[FaultShort].hits(i) {
		quorum--
	}
	p.Signers = n.signers(p.Committee, i)[:quorum]
	if faults[FaultNoCommittee].hits(i) {
		p.Committee = nil
	}
	return p
}

// with adds an identity that nobody has to an eligible set, where it belongs in the order.
func with(ids []string, name string) []string {
	sum := sha3.Sum256([]byte(name))
	ids = append(slices.Clone(ids), fmt.Sprintf("super_node_%x", sum[:4]))
	slices.Sort(ids)
	return ids
}

// healed says whether a bad seal was dropped and fetched anew: the proof was served as often as the fault allows.
func (n *Node) healed(f *fault, i uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return f.n > 0 && n.reads[i] > f.n
}

// signers are those who sign in window i in the order their votes reached this node.
func (n *Node) signers(committee []string, i uint64) []string {
	voters := n.l.voters(committee, i)
	sum := sha3.Sum256(fmt.Appendf(nil, "%d %s %d", n.l.cfg.Seed, n.cfg.ID, i))
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
	rng.Shuffle(len(voters), func(a, b int) { voters[a], voters[b] = voters[b], voters[a] })
	return voters
}

// Proof is the proof of macroblock i as this node serves it, signed.
func (n *Node) Proof(i uint64) node.Proof {
	p := n.unsigned(i)
	chain, faults := n.seen()
	signAs, keyAs := func(id string) string { return id }, func(id string) string { return id }
	if chain.lied(i) {
		invented := func(id string) string { return "invented by " + n.cfg.ID + " for " + id }
		signAs = invented
		if faults[FaultLie].rest != "sigs" {
			keyAs = invented
		}
	}
	hash := p.Checkpoint.Hash()
	p.CommitteePubkeys = map[string]string{}
	for _, id := range slices.Concat(p.Committee, p.Signers) {
		p.CommitteePubkeys[id] = n.l.signer.PublicKey(keyAs(id))
	}
	for _, id := range p.Signers {
		p.Sigs = append(p.Sigs, n.l.signer.Vote(signAs(id), hash))
	}
	if faults[FaultBadSig].hits(i) {
		p.Sigs[0] = n.l.signer.Vote("another than "+p.Signers[0], hash)
	}
	if faults[FaultOpaqueSigs].hits(i) {
		for k, id := range p.Signers {
			sum := sha3.Sum256([]byte(id + hash.String()))
			p.Sigs[k] = "sealed!" + base64.RawURLEncoding.EncodeToString(sum[:])
		}
	}
	return p
}

// lied says whether macroblock w of this chain is an invention.
func (b *branch) lied(w uint64) bool {
	for b = b.owner(w); b != nil; b = b.parent {
		if b.kind == FaultLie {
			return true
		}
	}
	return false
}

// pruned says whether the signatures of macroblock i are gone here: too old, and in no archive.
func (n *Node) pruned(i uint64) bool {
	age := uint64(node.QCSigRetention)
	if f := n.faultSet()[FaultPruned]; f != nil {
		age = f.n
	}
	if n.cfg.Archive && node.WindowHead(i) <= n.epochs()*node.EpochBlocks {
		return false
	}
	return i+age < n.Sealed()
}

// epochs is how many epochs are sealed from end to end, and so archived where there is an archive.
func (n *Node) epochs() uint64 { return node.WindowHead(n.Sealed()) / node.EpochBlocks }

// snapshots lists the heights of the snapshots held, ascending.
func (n *Node) snapshots() []uint64 {
	if n.faultSet()[FaultNoSnapshots] != nil {
		return nil
	}
	if n.cfg.Snapshots != nil {
		return slices.Sorted(slices.Values(n.cfg.Snapshots))
	}
	var list []uint64
	top := node.WindowHead(n.Sealed()) / node.SnapshotBlocks * node.SnapshotBlocks
	if n.Sealed() >= 1 {
		list = append(list, node.MacroblockBlocks)
	}
	for k := uint64(node.SnapshotKeep); k > 0; k-- {
		if below := (k - 1) * node.SnapshotBlocks; top > below {
			list = append(list, top-below)
		}
	}
	return list
}

// Lines are the log of this node since its start.
func (n *Node) Lines() []string {
	committee, sealed := n.l.Committee(node.WindowOf(n.l.Height())), n.Sealed()
	lines := []string{fmt.Sprintf("[INFO][BFT2] runtime_started committee=%d view_timeout_ms=4000", len(committee)), "[INFO][NODE] bringup_complete"}
	for w := sealed - min(sealed, 3) + 1; w <= sealed; w++ {
		head := node.WindowHead(w)
		lines = append(lines, fmt.Sprintf("[INFO][BFT2] macroblock_sealed window=%d round=%d head_h=%d signers=%d role=replica",
			w, head/node.CheckpointBlocks, head, node.QuorumSize(len(n.l.Committee(w)))))
	}
	if k := sealed / node.GALCWindows * node.GALCWindows; k > 0 {
		lines = append(lines, fmt.Sprintf("[INFO][GALC] root_adopted mb=%d hash=%.16s", k, n.Hash(k)))
	}
	if n.l.cfg.Above == node.HorizonBlocks {
		base := node.WindowHead(sealed) + node.CheckpointBlocks // the certified child of the last seal
		lines = append(lines, fmt.Sprintf("[WARN][PROD] parked reason=roster_derivation_horizon h=%d seal_base=%d rotation=live", n.l.Height(), base))
	}
	return append(lines, n.cfg.Lines...)
}
