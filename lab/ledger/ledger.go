package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/sha3"

	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/node"
)

// genesisNodes is how many genesis identities there are (facts 5.1).
const genesisNodes = 5

// Config says what New makes.
type Config struct {
	// Seed of everything that is random. Two ledgers of one Config are equal.
	Seed int64
	// Macroblocks is the index of the last sealed macroblock, at least 1.
	Macroblocks uint64
	// Members is how many identities are eligible, 1 to node.MaxCommittee: the genesis identities first, then super
	// nodes. The committee of the first two windows is the genesis identities alone.
	Members int
	// Above is how many blocks were made above the head of the last sealed macroblock: at least 30, for a seal needs a
	// certified child, and at most node.HorizonBlocks, which 0 stands for: such a chain is parked.
	Above uint64
	// Block is the block time; 0 is one second. Timestamps are seconds of real time.
	Block time.Duration
	// Stalled is when the newest block was made; zero is the start of 2026. A test on a clock of its own sets it.
	Stalled time.Time
	// Silent maps identities to the first window from which they sign nothing.
	Silent map[string]uint64
	// Banned maps identities to the first window in whose ban set they are. A banned identity is not eligible any more,
	// and out of the committee two windows later.
	Banned map[string]uint64
}

// Ledger is a chain that stands still. Its methods may be called from any goroutine.
type Ledger struct {
	cfg     Config
	began   time.Time // when height 0 was
	genesis []string
	members []string // sorted
	network node.Hash
	signer  *simnode.Signer
	main    *branch

	mu       sync.Mutex
	branches map[string]*branch
}

// New makes a ledger and the hashes of all its macroblocks: 100,000 of them take a second or two.
func New(cfg Config) (*Ledger, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, fmt.Errorf("making a ledger: %w", err)
	}
	l := &Ledger{cfg: cfg, signer: simnode.NewSigner(), branches: map[string]*branch{}}
	l.began = cfg.Stalled.Add(-time.Duration(l.Height()) * cfg.Block)
	if l.began.Unix() < 0 {
		return nil, fmt.Errorf("making a ledger: a history of %d blocks of %s before %s begins before 1970", l.Height(), cfg.Block, cfg.Stalled)
	}
	for n := 1; n <= cfg.Members; n++ {
		if n <= genesisNodes {
			l.genesis = append(l.genesis, simnode.GenesisID(n))
			continue
		}
		l.members = append(l.members, simnode.SuperID(fmt.Sprintf("ledger %d member %d", cfg.Seed, n)))
	}
	l.members = slices.Concat(l.genesis, l.members)
	slices.Sort(l.members)
	if err := l.canSeal(); err != nil {
		return nil, fmt.Errorf("making a ledger: %w", err)
	}
	l.network = sha3.Sum256(fmt.Appendf(nil, "qnetops-ledger %d %d", cfg.Seed, cfg.Members))
	l.main = l.grow(nil, 1, "", "main")
	return l, nil
}

func (c Config) checked() (Config, error) {
	if c.Above == 0 {
		c.Above = node.HorizonBlocks
	}
	if c.Block == 0 {
		c.Block = node.BlockTime
	}
	if c.Stalled.IsZero() {
		c.Stalled = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	const most = 1 << 24 // macroblocks: the hashes of more would take gigabytes
	switch {
	case c.Macroblocks < 1 || c.Macroblocks > most:
		return c, fmt.Errorf("macroblocks must be 1 to %d, not %d", most, c.Macroblocks)
	case c.Members < 1 || c.Members > node.MaxCommittee:
		return c, fmt.Errorf("members must be 1 to %d, not %d", node.MaxCommittee, c.Members)
	case c.Above < node.CheckpointBlocks || c.Above > node.HorizonBlocks:
		return c, fmt.Errorf("blocks above the last seal must be %d to %d, not %d", node.CheckpointBlocks, node.HorizonBlocks, c.Above)
	case c.Block < 0:
		return c, fmt.Errorf("block time must be positive, not %s", c.Block)
	}
	c.Silent, c.Banned = maps.Clone(c.Silent), maps.Clone(c.Banned)
	return c, nil
}

// canSeal says whether every macroblock finds its quorum among those who sign. Only where a window changes who signs can
// that change.
func (l *Ledger) canSeal() error {
	windows := []uint64{1, 3}
	for id, from := range l.cfg.Silent {
		if !slices.Contains(l.members, id) {
			return fmt.Errorf("silent identity %q is no member", id)
		}
		windows = append(windows, from)
	}
	for id, from := range l.cfg.Banned {
		if !slices.Contains(l.members, id) {
			return fmt.Errorf("banned identity %q is no member", id)
		}
		windows = append(windows, from+2)
	}
	for _, w := range windows {
		if w < 1 || w > l.cfg.Macroblocks {
			continue
		}
		committee := l.Committee(w)
		if have, need := len(l.voters(committee, w)), node.QuorumSize(len(committee)); have < need || need == 0 {
			return fmt.Errorf("macroblock %d could not be sealed: %d of its committee of %d sign, %d are needed", w, have, len(committee), need)
		}
	}
	return nil
}

// Sealed is the index of the last sealed macroblock.
func (l *Ledger) Sealed() uint64 { return l.cfg.Macroblocks }

// Height is the height of the newest block.
func (l *Ledger) Height() uint64 { return node.WindowHead(l.cfg.Macroblocks) + l.cfg.Above }

// Members lists all identities, sorted.
func (l *Ledger) Members() []string { return slices.Clone(l.members) }

// Committee is the committee of window w: what macroblock w-2 sealed as eligible.
func (l *Ledger) Committee(w uint64) []string {
	if w <= 2 {
		return l.genesis
	}
	return l.eligible(w - 2)
}

func (l *Ledger) eligible(w uint64) []string {
	banned := l.banned(w)
	if len(banned) == 0 {
		return l.members
	}
	return slices.DeleteFunc(slices.Clone(l.members), func(id string) bool { return slices.Contains(banned, id) })
}

// banned is the ban set of macroblock w, sorted.
func (l *Ledger) banned(w uint64) []string {
	var ids []string
	for id, from := range l.cfg.Banned {
		if w >= from {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// voters are the members of a committee that sign in window w.
func (l *Ledger) voters(committee []string, w uint64) []string {
	return slices.DeleteFunc(slices.Clone(committee), func(id string) bool {
		from, silent := l.cfg.Silent[id]
		return silent && w >= from
	})
}

// stamp is the time of a block in unix seconds.
func (l *Ledger) stamp(h uint64) uint64 {
	return uint64(l.began.Add(time.Duration(h) * l.cfg.Block).Unix())
}

// Hash is the hash of macroblock w on the ledger's main chain, zero for index 0.
func (l *Ledger) Hash(w uint64) (node.Hash, error) {
	if w > l.cfg.Macroblocks {
		return node.Hash{}, errors.New("the ledger has no such macroblock")
	}
	return l.main.hash(w), nil
}

// branch is a chain from macroblock at on; below it is its parent.
type branch struct {
	l      *Ledger
	parent *branch
	at     uint64
	kind   Kind
	key    string
	base   node.Hash   // what its blocks follow from
	hashes []node.Hash // of macroblock at+k at k
}

// branch finds or grows a branch off parent.
func (l *Ledger) branch(parent *branch, at uint64, kind Kind, name string) *branch {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("%s/%s %d %s", parent.key, kind, at, name)
	b := l.branches[key]
	if b == nil {
		b = l.grow(parent, at, kind, key)
		l.branches[key] = b
	}
	return b
}

// grow makes a branch and the hashes of its macroblocks.
func (l *Ledger) grow(parent *branch, at uint64, kind Kind, key string) *branch {
	b := &branch{l: l, parent: parent, at: at, kind: kind, key: key}
	b.base = sha3.Sum256(fmt.Appendf(nil, "qnetops-ledger-branch %d %s", l.cfg.Seed, key))
	if at > l.cfg.Macroblocks {
		return b
	}
	b.hashes = make([]node.Hash, 0, l.cfg.Macroblocks-at+1)
	prev := b.hash(at - 1)
	micro := make([]node.Hash, node.MacroblockBlocks)
	for w := at; w <= l.cfg.Macroblocks; w++ {
		b.fill(micro, w)
		mb := node.MacroBlock{Height: w, Timestamp: l.stamp(node.WindowHead(w)), PreviousHash: prev, StateRoot: b.stateRoot(w, micro), MicroBlocks: micro}
		prev = mb.Hash()
		b.hashes = append(b.hashes, prev)
	}
	return b
}

// owner is the branch that macroblock w of this chain belongs to.
func (b *branch) owner(w uint64) *branch {
	for b.parent != nil && w < b.at {
		b = b.parent
	}
	return b
}

// hash is the hash of a sealed macroblock, zero for index 0.
func (b *branch) hash(w uint64) node.Hash {
	if w == 0 {
		return node.Hash{}
	}
	b = b.owner(w)
	return b.hashes[w-b.at]
}

// fill writes the block hashes of window w. A forged macroblock is made of the blocks it should be made of; what is false
// is what it says of the state after them.
func (b *branch) fill(micro []node.Hash, w uint64) {
	b = b.owner(w)
	for b.kind == FaultForged && w == b.at {
		b = b.parent.owner(w)
	}
	seed := b.base
	binary.LittleEndian.PutUint64(seed[:8], binary.LittleEndian.Uint64(seed[:8])^w)
	stream := rand.NewChaCha8(seed)
	for i := range micro {
		_, _ = stream.Read(micro[i][:]) // never fails
	}
}

// micro are the block hashes of window w.
func (b *branch) micro(w uint64) []node.Hash {
	micro := make([]node.Hash, node.MacroblockBlocks)
	b.fill(micro, w)
	return micro
}

// stateRoot is the state after window w.
func (b *branch) stateRoot(w uint64, micro []node.Hash) node.Hash {
	name := "state"
	if o := b.owner(w); o.kind == FaultForged && w == o.at {
		name = "forged-state"
	}
	return root(name, micro[len(micro)-1])
}

// root stands for a Merkle root after a block.
func root(name string, head node.Hash) node.Hash {
	return sha3.Sum256(append([]byte("qnetops-ledger-"+name), head[:]...))
}

// blockHash is the hash of block h; height 0 is the genesis block, whose hash names the network.
func (b *branch) blockHash(h uint64) node.Hash {
	if h == 0 {
		return b.l.network
	}
	return b.micro(node.WindowOf(h))[(h-1)%node.MacroblockBlocks]
}

// eligibleRaw encodes an eligible set as a macroblock stores it.
func eligibleRaw(ids []string) []byte {
	list := make([]node.Producer, len(ids))
	for i, id := range ids {
		list[i] = node.Producer{NodeID: id, Reputation: 7000}
	}
	return node.EncodeEligible(list)
}

// checkpoint is the boundary checkpoint of window w that commits to an eligible set. Its parent, an inner checkpoint, is
// served nowhere and is a hash of its own.
func (b *branch) checkpoint(w uint64, eligible []byte) node.Checkpoint {
	micro, committee := b.micro(w), b.l.Committee(w)
	head := micro[len(micro)-1]
	round := node.WindowHead(w) / node.CheckpointBlocks
	return node.Checkpoint{Index: round, Parent: &node.ParentQC{CheckpointHash: root("parent", head), Index: round - 1},
		WindowHeadHeight: node.WindowHead(w), WindowMBHashes: micro, StateRoot: b.stateRoot(w, micro), Beacon: node.Beacon(micro),
		EpochCommitment: node.EpochCommitment(eligible, committee, b.l.banned(w)), RegistryRoot: root("registry", head),
		LogsRoot: root("logs", head), DilithiumPKRoot: root("dpk", head), RewardEpochRoot: root("reward-epoch", head),
		TotalSupply: 1<<53 + 1 + w, // above what a JSON number holds exactly
		Timestamp:   b.l.stamp(node.WindowHead(w)), Proposer: committee[w%uint64(len(committee))]}
}
