package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/node"
)

// statusWait bounds one node's answer in a status.
const statusWait = 2 * time.Second

// NodeStatus is what the lab itself sees of a node, past SSH.
type NodeStatus struct {
	ID        string            `json:"id"`
	NodeID    string            `json:"node_id"`
	Address   string            `json:"address"`
	Container string            `json:"container"` // the running one, empty when none runs
	Image     string            `json:"image"`
	State     string            `json:"state"` // of the node's container, Docker's word
	ExitCode  int               `json:"exit_code"`
	Height    *uint64           `json:"height"`
	Build     string            `json:"build"`
	Faults    map[string]string `json:"faults,omitempty"`
	Agents    int               `json:"agents"` // agent processes that live
}

// Status is the lab at one moment.
type Status struct {
	Nodes      []NodeStatus `json:"nodes"`
	Violations []string     `json:"violations"`
	Refusals   []string     `json:"refusals"`
}

// Status asks every node.
func (l *Lab) Status(ctx context.Context) Status {
	s := Status{Nodes: make([]NodeStatus, len(l.hosts)), Violations: l.Violations(), Refusals: l.Refusals()}
	var wg sync.WaitGroup
	for i, h := range l.hosts {
		wg.Go(func() { s.Nodes[i] = h.status(ctx) })
	}
	wg.Wait()
	return s
}

func (h *Host) status(ctx context.Context) NodeStatus {
	n := NodeStatus{ID: h.spec.ID, NodeID: h.NodeID(), Address: h.addr(), State: "missing", Faults: h.lab.Faults(h.spec.ID),
		Agents: len(h.Agents(KillAgent)) + len(h.Agents(KillGuardian))}
	for _, c := range h.engine.Containers() {
		if identity(c.Env) == "" {
			continue
		}
		if c.Name == h.spec.Container || c.State == "running" {
			n.State, n.Image, n.ExitCode = c.State, c.Image, c.ExitCode
		}
		if c.State == "running" {
			n.Container = c.Name
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	client := node.Client{Base: h.APIBase(), HTTP: h.HTTP()}
	if z, err := client.Healthz(ctx); err == nil {
		n.Height, n.Build = &z.Height, z.Build
	}
	return n
}

// WaitFor waits until ok says yes to the lab's status, looking once per half a
// block time and at least every 250 ms. When ctx ends first the error shows the
// last status.
func (l *Lab) WaitFor(ctx context.Context, what string, ok func(Status) bool) error {
	t := time.NewTicker(min(max(l.cfg.Block/2, 5*time.Millisecond), 250*time.Millisecond))
	defer t.Stop()
	for {
		s := l.Status(ctx)
		if ok(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last seen: %s", what, ctx.Err(), s)
		case <-t.C:
		}
	}
}

// WaitHeight waits until every node has reached a height.
func (l *Lab) WaitHeight(ctx context.Context, height uint64) error {
	return l.WaitFor(ctx, fmt.Sprintf("height %d on all nodes", height), func(s Status) bool {
		return !slices.ContainsFunc(s.Nodes, func(n NodeStatus) bool { return n.Height == nil || *n.Height < height })
	})
}

// String is one line for an error.
func (s Status) String() string {
	var b strings.Builder
	for _, n := range s.Nodes {
		height := "?"
		if n.Height != nil {
			height = fmt.Sprint(*n.Height)
		}
		fmt.Fprintf(&b, "%s %s h=%s build=%s; ", n.ID, n.State, height, n.Build)
	}
	return strings.TrimSuffix(b.String(), "; ")
}
