package observe

import (
	"time"

	"github.com/qnetops/qnetops/node"
)

// StatusSchema names the JSON form of a view.
const StatusSchema = "qnetops/status/v1"

// StatusDocument is the JSON form of a view. What is not known is null; times are
// RFC 3339 in UTC, heights and windows plain numbers.
type StatusDocument struct {
	Schema  string       `json:"schema"`
	TakenAt time.Time    `json:"taken_at"`
	Fleet   StatusFleet  `json:"fleet"`
	Nodes   []StatusNode `json:"nodes"`
	Seal    *StatusSeal  `json:"seal"`
	Checks  []Check      `json:"checks"`
	// Open are the operations on the fleet that are not finished, newest first; null
	// where whoever looks could not read the journal. A view does not know of it.
	Open []StatusOperation `json:"open_operations"`
}

// StatusOperation is an operation that runs now, or was left midway and is to be
// resumed or aborted.
type StatusOperation struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	State     string    `json:"state"`
	Operator  string    `json:"operator"`
	StartedAt time.Time `json:"started_at"`
}

// StatusFleet is the verdict on the whole.
type StatusFleet struct {
	Name    string   `json:"name"`
	Verdict State    `json:"verdict"`
	Reasons []string `json:"reasons"`
}

// StatusNode is one node.
type StatusNode struct {
	ID                 string           `json:"id"`
	Role               string           `json:"role"`
	NodeID             *string          `json:"node_id"`
	Reachable          bool             `json:"reachable"`
	Container          *StatusContainer `json:"container"`
	Build              *string          `json:"build"`
	Height             *uint64          `json:"height"`
	Behind             *uint64          `json:"behind"`
	TipHash            *node.Hash       `json:"tip_hash"`
	LastSealed         *uint64          `json:"last_sealed"`
	SealedLag          *uint64          `json:"sealed_lag"`
	Finalized          *uint64          `json:"finalized"`
	ValidatedPeers     *uint64          `json:"validated_peers"`
	TimeoutRound       *uint64          `json:"timeout_round"`
	FailoverCount      *uint64          `json:"failover_count"`
	ClockOffsetSeconds *float64         `json:"clock_offset_seconds"`
	Disk               *StatusDisk      `json:"disk"`
	LogLevel           *string          `json:"log_level"`
	SecondUpdaters     []string         `json:"second_updaters"` // null: not known
	Leftovers          []string         `json:"leftovers"`       // null: not known
	HaltHeight         *uint64          `json:"halt_height"`
	Verdict            State            `json:"verdict"`
	Reasons            []string         `json:"reasons"`
}

// StatusContainer is the node's container.
type StatusContainer struct {
	Name          string     `json:"name"`
	Image         string     `json:"image"`
	Digest        *string    `json:"digest"`
	State         string     `json:"state"` // Docker's word
	StartedAt     *time.Time `json:"started_at"`
	RestartCount  *int       `json:"restart_count"`
	RestartPolicy string     `json:"restart_policy"`
	OneShot       []string   `json:"one_shot"`
}

// StatusDisk is the space under the node's data.
type StatusDisk struct {
	Path       string `json:"path"`
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

// StatusSeal is the newest macroblock in common.
type StatusSeal struct {
	Index     uint64              `json:"index"`
	Hash      node.Hash           `json:"hash"`
	Committee []string            `json:"committee"` // null: not known
	Quorum    *int                `json:"quorum"`
	Signers   map[string][]string `json:"signers"`
}

// Document gives the JSON form of the view.
func (v View) Document() StatusDocument {
	d := StatusDocument{
		Schema: StatusSchema, TakenAt: v.TakenAt.UTC(), Nodes: []StatusNode{}, Checks: v.Checks,
		Fleet: StatusFleet{Name: v.Fleet, Verdict: v.Verdict, Reasons: list(v.Reasons)},
	}
	if d.Checks == nil {
		d.Checks = []Check{}
	}
	for _, n := range v.Nodes {
		d.Nodes = append(d.Nodes, n.document())
	}
	if v.Seal != nil {
		d.Seal = &StatusSeal{Index: v.Seal.Index, Hash: v.Seal.Hash, Committee: v.Seal.Committee, Signers: v.Seal.Signers}
		if v.Seal.Quorum > 0 {
			d.Seal.Quorum = &v.Seal.Quorum
		}
	}
	return d
}

func (n NodeView) document() StatusNode {
	d := StatusNode{
		ID: n.ID, Role: n.Role, NodeID: text(n.NodeID), Reachable: n.Reachable, Container: n.Container.document(),
		Build: n.Build, Height: n.Height, Behind: n.Behind, TipHash: n.TipHash, LastSealed: n.LastSealed,
		SealedLag: n.SealedLag, Finalized: n.Finalized, ValidatedPeers: n.ValidatedPeers, TimeoutRound: n.TimeoutRound,
		FailoverCount: n.FailoverCount, LogLevel: n.LogLevel, HaltHeight: n.HaltHeight,
		Verdict: n.Verdict, Reasons: list(n.Reasons),
	}
	if n.ClockOffset != nil {
		secs := n.ClockOffset.Round(time.Millisecond).Seconds()
		d.ClockOffsetSeconds = &secs
	}
	if n.Disk != nil {
		d.Disk = &StatusDisk{n.Disk.Path, n.Disk.FreeBytes, n.Disk.TotalBytes}
	}
	if n.UpdatersKnown {
		d.SecondUpdaters, d.Leftovers = list(n.Updaters), list(n.Leftovers)
	}
	return d
}

func (c *ContainerView) document() *StatusContainer {
	if c == nil {
		return nil
	}
	d := &StatusContainer{
		Name: c.Name, Image: c.Image, Digest: text(c.Digest), State: c.State, RestartCount: c.RestartCount,
		RestartPolicy: c.RestartPolicy, OneShot: list(c.OneShot),
	}
	if c.StartedAt != nil {
		at := c.StartedAt.UTC()
		d.StartedAt = &at
	}
	return d
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// list makes an empty list of a nil one, because null means "not known".
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
