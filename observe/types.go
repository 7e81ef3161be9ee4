package observe

import (
	"time"

	"github.com/qnetops/qnetops/node"
)

// Verdict is the answer of a check. Unknown never counts as Pass.
type Verdict string

// The three answers.
const (
	Pass    Verdict = "pass"
	Fail    Verdict = "fail"
	Unknown Verdict = "unknown"
)

// Check is a question to a view or a node, with its answer.
type Check struct {
	Name     string            `json:"name"`
	Verdict  Verdict           `json:"verdict"`
	Reason   string            `json:"reason"`
	Evidence map[string]string `json:"evidence,omitempty"` // host id -> what was seen there
}

// State is the verdict on a node or a fleet.
type State string

// The words of both verdicts. Down and Isolated are for nodes only.
const (
	Healthy      State = "healthy"
	Behind       State = "behind"
	Stalled      State = "stalled"
	Halted       State = "halted"
	Down         State = "down"
	Isolated     State = "isolated"
	Fork         State = "fork"
	StateUnknown State = "unknown"
)

// Limits of the verdicts.
const (
	// BehindBlocks below the highest node makes a node behind.
	BehindBlocks = node.BehindBlocks
	// stallBlocks without movement make a fleet stalled; it is waited for only
	// when nothing moved in quietBlocks.
	stallBlocks = 15
	quietBlocks = 3
	// maxSealedLag windows are normal: a seal needs a certified child.
	maxSealedLag = 4
	// signerWindows is how many sealed windows of signers count as evidence.
	signerWindows = 10
	// participationWindows of log lines count as evidence.
	participationWindows = 2
)

// ContainerView is the node's container as its host shows it.
type ContainerView struct {
	Name          string
	ID            string
	Image         string // reference it was created with
	ImageID       string
	Digest        string // repository@sha256:…, "" when the image came from no registry
	State         string // Docker's word
	ExitCode      int
	StartedAt     *time.Time // nil: never started
	FinishedAt    *time.Time
	RestartCount  *int
	RestartPolicy string
	OneShot       []string // names of variables that must not outlive one start
}

// DiskView is the space of the file system that holds the node's data.
type DiskView struct {
	Path       string
	FreeBytes  uint64
	TotalBytes uint64
}

// Sample is one reading of where a node stands.
type Sample struct {
	Round   int // of sampling; the same for all nodes asked at the same time
	At      time.Time
	Height  uint64
	TipHash *node.Hash // nil when the node does not say
}

// SealReading is a sealed macroblock as one node holds it.
type SealReading struct {
	Round  int
	Index  uint64
	Hash   node.Hash
	Digest *node.Hash // of the committee fields, nil without a usable proof
}

// NodeView is what was seen of one node. A nil pointer is a reading that could
// not be had or not be trusted.
type NodeView struct {
	ID        string // of the host in the inventory
	Role      string
	Reachable bool  // the host answered over SSH
	Err       error // why it did not

	Container   *ContainerView
	NoContainer bool // the host answered: there is no container of the configured name
	NodeID      string

	Build          *string
	Height         *uint64
	HealthzHeight  *uint64 // of the first sample, from another source than Height
	Behind         *uint64 // against the highest believed height of the fleet
	TipHash        *node.Hash
	LastSealed     *uint64
	SealedLag      *uint64 // windows
	Finalized      *uint64
	ValidatedPeers *uint64
	Peers          *uint64
	TimeoutRound   *uint64
	FailoverCount  *uint64
	ClockDriftSecs *int64 // the node's own estimate

	ClockOffset    *time.Duration // the host's clock less this machine's
	Disk           *DiskView
	LogLevel       *string  // "" when the variable is not set
	Updaters       []string // containers that replace others by themselves
	UpdatersKnown  bool     // the list of containers could be read
	TLSTerminators []string // containers that look like a TLS proxy, "name (state)"
	Leftovers      []string // containers of this node set aside, staged or failed
	HaltHeight     *uint64  // the exited node stopped on this halt height
	FenceOwner     string   // who holds the host's fence; "" when not read or free

	Verdict State
	Reasons []string
	Samples []Sample
	Seals   []SealReading
	Faults  []Fault // answers that could not be trusted
}

// Fault is an answer that failed, by what was asked (one of the ask constants).
type Fault struct {
	What string
	Err  error
}

// What a node and its host are asked for.
const (
	askPosition   = "position"
	askHealthz    = "healthz"
	askHealth     = "health"
	askID         = "id"
	askSeal       = "seal"
	askProof      = "proof"
	askContainer  = "container"
	askContainers = "containers"
	askImage      = "image"
	askClock      = "clock"
	askDisk       = "disk"
	askLog        = "log"
)

func (n *NodeView) fault(what string) error {
	for _, f := range n.Faults {
		if f.What == what {
			return f.Err
		}
	}
	return nil
}

// SealView is the newest macroblock that the fleet holds in common.
type SealView struct {
	Index     uint64
	Hash      node.Hash
	Committee []string            // ids, from a proof that holds; nil when none did
	Quorum    int                 // of the committee; 0 when it is not known
	Signers   map[string][]string // host id -> signers of the certificate as that node assembled it
}

// View is what was observed of a fleet.
type View struct {
	Fleet   string
	Block   time.Duration
	TakenAt time.Time
	Nodes   []NodeView
	Verdict State
	Reasons []string
	Seal    *SealView
	Voters  *Voters // only when asked for
	Checks  []Check
}

// Node finds a node by its host id; nil when the view does not have it.
func (v View) Node(id string) *NodeView {
	for i := range v.Nodes {
		if v.Nodes[i].ID == id {
			return &v.Nodes[i]
		}
	}
	return nil
}
