package cutover

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// HaltStatus is what every host shows of a halt (qnetops/halt/v1). Unknown is nil.
type HaltStatus struct {
	Schema string     `json:"schema"`
	Nodes  []HaltNode `json:"nodes"`
	Spread *uint64    `json:"spread"` // between the lowest and the highest stop, in blocks
}

// HaltNode is one host of a HaltStatus.
type HaltNode struct {
	ID            string  `json:"id"`
	Reachable     bool    `json:"reachable"`
	ArmedHeight   *uint64 `json:"armed_height"` // nil: not armed, or not known where Armed is true
	Armed         *bool   `json:"armed"`        // QNET_HALT_HEIGHT is set
	RestartPolicy string  `json:"restart_policy"`
	State         string  `json:"state"` // Docker's word
	ExitCode      int     `json:"exit_code"`
	Height        *uint64 `json:"height"`
	BlocksLeft    *uint64 `json:"blocks_left"`
	StopHeight    *uint64 `json:"stop_height"`
	Flushed       *bool   `json:"flushed"`
	Reason        string  `json:"reason"`
}

// LookHalt reads how every host stands; it changes nothing and needs no journal.
func LookHalt(ctx context.Context, f *fleet.Fleet, ids []string) HaltStatus {
	doc := HaltStatus{Schema: "qnetops/halt/v1", Nodes: make([]HaltNode, len(ids))}
	var mu sync.Mutex
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		n := lookHalt(ctx, f, id)
		mu.Lock()
		defer mu.Unlock()
		doc.Nodes[slices.Index(ids, id)] = n
	})
	var stops []HostResult
	for _, n := range doc.Nodes {
		stops = append(stops, HostResult{StopHeight: n.StopHeight})
	}
	doc.Spread = spread(stops)
	return doc
}

func lookHalt(ctx context.Context, f *fleet.Fleet, id string) HaltNode {
	s := lookAt(ctx, f, id)
	n := HaltNode{ID: id, Reachable: s.Reached, Reason: s.Why, RestartPolicy: s.Policy, State: s.State, ExitCode: s.ExitCode,
		Height: s.Height}
	if !s.Reached {
		return n
	}
	armed := slices.Contains(s.OneShot, host.VarHaltHeight)
	n.Armed, n.ArmedHeight = &armed, s.Armed
	if s.Stop != nil {
		n.StopHeight, n.Flushed = &s.Stop.Height, &s.Stop.Flushed
		n.ArmedHeight = &s.Stop.Armed
	}
	if armed && n.ArmedHeight == nil {
		n.ArmedHeight = armedLine(ctx, f, id, s)
	}
	if s.runs() && n.ArmedHeight != nil && n.Height != nil {
		left := *n.ArmedHeight - min(*n.ArmedHeight, *n.Height)
		n.BlocksLeft = &left
	}
	return n
}

// armedLine reads the height from the line an armed node prints at bring-up.
func armedLine(ctx context.Context, f *fleet.Fleet, id string, s sight) (out *uint64) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return nil
	}
	h, _ := f.Inventory().Host(id)
	found, err := observe.SawLine(ctx, conn, h.Container, s.Since, func(l node.LogLine) bool {
		armed, ok := node.HaltArmed(l)
		if ok {
			out = &armed
		}
		return ok
	})
	if err != nil || !found {
		return nil
	}
	return out
}

// Recorded are the restart policies that the newest halt of the fleet recorded
// before it armed the nodes, by host id, and the operation's id; empty where the
// journal knows of none.
func (o *Operations) Recorded(ctx context.Context) (string, map[string]host.Policy, error) {
	out := map[string]host.Policy{}
	records, err := o.Store.List(ctx, o.Fleet.Inventory().Name)
	if err != nil {
		return "", out, err
	}
	for _, rec := range records { // newest first
		var plan Plan
		if rec.Kind != KindHalt || json.Unmarshal(rec.Plan, &plan) != nil || plan.Halt == nil {
			continue
		}
		for _, n := range plan.Halt.Roll.Nodes {
			if n.Policy != nil {
				out[n.ID] = *n.Policy
			}
		}
		return rec.ID, out, nil
	}
	return "", out, nil
}

// OpenHalt is the id of the fleet's halt that is under way; "" where there is none.
func (o *Operations) OpenHalt(ctx context.Context) (string, error) {
	records, err := o.Store.List(ctx, o.Fleet.Inventory().Name)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(records, func(r journal.Record) bool { return r.Kind == KindHalt && !r.State.Finished() })
	if i < 0 {
		return "", nil
	}
	return records[i].ID, nil
}
