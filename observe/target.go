package observe

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
)

// crew is the fleet as this package needs it.
type crew interface {
	Name() string
	Block() time.Duration
	Hosts() []fleet.Host
	// Target gives the connection to a host, or the error of the failed connect.
	Target(ctx context.Context, id string) (target, error)
}

// target is one host: its node and what its engine and its system say. All of it
// only reads.
type target interface {
	Node() *node.Client
	// Rest gives up idle connections to the node and the engine.
	Rest()
	Inspect(ctx context.Context) (host.ContainerFacts, error)
	Containers(ctx context.Context) ([]fleet.Container, error)
	// Digests lists repository@sha256:… of an image id.
	Digests(ctx context.Context, imageID string) ([]string, error)
	Clock(ctx context.Context) (time.Duration, error)
	Disk(ctx context.Context, path string) (host.DiskFacts, error)
	// Lines reads the log of the node's container: from since on, or the last
	// tail lines when tail is above 0.
	Lines(ctx context.Context, since time.Time, tail int) ([]node.LogLine, error)
}

// errNotFound is implemented by errors that mean "the engine has no such thing".
func notFound(err error) bool {
	e, ok := errors.AsType[*fleet.EngineError](err)
	return ok && e.Fault == fleet.EngineNotFound
}

// fleetCrew is a crew of real connections.
type fleetCrew struct{ f *fleet.Fleet }

func (c fleetCrew) Name() string         { return c.f.Inventory().Name }
func (c fleetCrew) Block() time.Duration { return c.f.Inventory().Block }
func (c fleetCrew) Hosts() []fleet.Host  { return c.f.Hosts() }

// Target dials again only where the connection is known to be dead; reading twice
// does no harm.
func (c fleetCrew) Target(ctx context.Context, id string) (target, error) {
	conn, err := c.f.Conn(ctx, id)
	if isErr[*fleet.DroppedError](err) {
		conn, err = c.f.Redial(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return connTarget{conn}, nil
}

type connTarget struct{ *fleet.Conn }

func (t connTarget) Containers(ctx context.Context) ([]fleet.Container, error) {
	return t.Engine().Containers(ctx)
}

func (t connTarget) Digests(ctx context.Context, imageID string) ([]string, error) {
	image, err := t.Engine().Image(ctx, imageID)
	return image.Digests, err
}

func (t connTarget) Lines(ctx context.Context, since time.Time, tail int) ([]node.LogLine, error) {
	logs, err := t.Engine().Logs(ctx, t.Host().Container, fleet.LogOptions{Since: since, Tail: tail, Timestamps: true})
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	var out []node.LogLine
	for {
		line, err := logs.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		// Whatever else the node prints is of no use here and could be large.
		if l := node.ParseStreamLine(line.Text, line.Stderr); l.Level != "" {
			out = append(out, l)
		}
	}
}
