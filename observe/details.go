package observe

import (
	"context"
	"sync"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
)

// haltTail is how many last lines of an exited container are searched for its
// halt line; a handful follow it.
const haltTail = 200

// details asks the hosts and the routes of the nodes that may hang. Every
// question has its own patience, so that one that hangs spoils no other.
func (s *survey) details(ctx context.Context) {
	var nodes []*subject
	for _, n := range s.nodes {
		if n.target != nil {
			nodes = append(nodes, n)
		}
	}
	each(thoroughly, nodes, func(n *subject) {
		defer n.target.Rest()
		d := &detail{survey: s, subject: n}
		var wg sync.WaitGroup
		wg.Go(func() { d.health(ctx) })
		wg.Go(func() { d.identity(ctx) })
		wg.Go(func() { d.container(ctx) })
		wg.Go(func() { d.containers(ctx) })
		wg.Go(func() { d.clock(ctx) })
		wg.Wait()
	})
}

type detail struct {
	survey  *survey
	subject *subject
	mu      sync.Mutex
}

// set records one answer; facts is written by several goroutines.
func (d *detail) set(what string, err error, fill func(*NodeView)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subject.facts.note(what, err)
	if err == nil {
		fill(&d.subject.facts)
	}
}

func (d *detail) health(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.survey.patience())
	defer cancel()
	h, err := d.subject.target.Node().NodeHealth(ctx)
	d.set(askHealth, err, func(n *NodeView) {
		n.ValidatedPeers, n.Peers, n.TimeoutRound = &h.ValidatedPeers, &h.Peers, &h.CurrentTimeoutRound
		n.FailoverCount, n.ClockDriftSecs = &h.FailoverCount, &h.ClockDriftEMASecs
	})
}

func (d *detail) identity(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.survey.patience())
	defer cancel()
	id, err := nodeID(ctx, d.subject.target.Node())
	d.set(askID, err, func(n *NodeView) { n.NodeID = id })
}

// nodeID reads the id that certificates carry. The health route has a display
// name, which need not be it.
func nodeID(ctx context.Context, c *node.Client) (string, error) {
	info, err := c.NodeInfo(ctx)
	if err == nil {
		return info.NodeID, nil
	}
	if isErr[*node.RateLimitedError](err) || isTimeout(err) {
		return "", err
	}
	status, again := c.ProducerStatus(ctx)
	if again != nil {
		return "", err
	}
	return status.NodeID, nil
}

func (d *detail) container(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	c, err := d.subject.target.Inspect(ctx)
	if err != nil {
		d.set(askContainer, err, nil)
		d.mu.Lock()
		d.subject.facts.NoContainer = notFound(err)
		d.mu.Unlock()
		return
	}
	view := containerView(c)
	if view.Digest == "" && c.ImageID != "" {
		digests, err := d.subject.target.Digests(ctx, c.ImageID)
		d.set(askImage, err, func(*NodeView) {
			if len(digests) > 0 {
				view.Digest = digests[0]
			}
		})
	}
	level := c.LogLevel
	d.set(askContainer, nil, func(n *NodeView) { n.Container, n.LogLevel = view, &level })
	d.disk(ctx, c)
	d.halt(ctx, c)
}

func containerView(c host.ContainerFacts) *ContainerView {
	v := &ContainerView{
		Name: c.Name, ID: c.ID, Image: c.ImageRef, ImageID: c.ImageID, State: c.State, ExitCode: c.ExitCode,
		RestartCount: &c.RestartCount, RestartPolicy: c.RestartPolicy, OneShot: c.OneShot,
		StartedAt: whenever(c.StartedAt), FinishedAt: whenever(c.FinishedAt),
	}
	if len(c.ImageDigests) > 0 {
		v.Digest = c.ImageDigests[0]
	}
	return v
}

func whenever(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (d *detail) disk(ctx context.Context, c host.ContainerFacts) {
	path := d.subject.host.DataPath
	if path == "" {
		path = c.DataDir.HostPath
	}
	if path == "" {
		return
	}
	f, err := d.subject.target.Disk(ctx, path)
	d.set(askDisk, err, func(n *NodeView) { n.Disk = &DiskView{f.Path, f.FreeBytes, f.TotalBytes} })
}

// halt looks for the halt line of a container that exited as a halted one does.
func (d *detail) halt(ctx context.Context, c host.ContainerFacts) {
	if c.State != "exited" || c.ExitCode != 0 {
		return
	}
	lines, err := d.subject.target.Lines(ctx, time.Time{}, haltTail)
	d.set(askLog, err, func(n *NodeView) { n.HaltHeight = haltedAt(lines) })
}

// haltedAt finds the halt line of the last run in a log that may hold several.
func haltedAt(lines []node.LogLine) *uint64 {
	var at *uint64
	for _, l := range lines {
		if height, _, ok := node.HaltReached(l); ok {
			at = &height
		}
		if node.BringupComplete(l) || node.ProductionStart(l) {
			at = nil // a later start: the halt before it is history
		}
	}
	return at
}

func (d *detail) containers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	list, err := d.subject.target.Containers(ctx)
	d.set(askContainers, err, func(n *NodeView) { n.containersOf(list, d.subject.host.Container) })
}

func (d *detail) clock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	off, err := d.subject.target.Clock(ctx)
	d.set(askClock, err, func(n *NodeView) { n.ClockOffset = &off })
}
