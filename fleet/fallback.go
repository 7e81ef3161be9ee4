package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/qnetops/qnetops/host"
)

// Where sshd opens no channel to the engine's socket, or the user may not open
// it, the host agent (by sudo) answers what it can of the same reads. The agent
// knows the node's container and its siblings, resolves images and gives last
// lines; it follows neither logs nor events. What it cannot do stays the
// ForwardingError of the channel.

// forwarding tells whether the engine's socket is what could not be reached.
func (e *Engine) forwarding(err error) bool {
	var refused *ForwardingError
	return errors.As(err, &refused) && refused.Target == e.conn.host.EngineSocket
}

// viaAgent runs read with the agent in the place of a channel that was refused.
func (e *Engine) viaAgent(ctx context.Context, refused error, read func(*host.Client) error) error {
	agent, err := e.conn.Agent(ctx)
	if err == nil {
		err = read(agent)
	}
	if err != nil {
		return fmt.Errorf("%w; and by the host agent: %w", refused, err)
	}
	return nil
}

func (e *Engine) agentInfo(ctx context.Context, refused error) (EngineInfo, error) {
	var info EngineInfo
	err := e.viaAgent(ctx, refused, func(a *host.Client) error {
		facts, err := a.Facts(ctx, host.FactsRequest{})
		info = EngineInfo{Version: facts.Engine.Version, API: facts.Engine.APIVersion, OS: "linux", Root: facts.Engine.Root, Time: facts.Now}
		return err
	})
	return info, err
}

// agentContainers is the node's container and what the agent calls its
// siblings; other containers of the host are not in it.
func (e *Engine) agentContainers(ctx context.Context, refused error) ([]Container, error) {
	var list []Container
	err := e.viaAgent(ctx, refused, func(a *host.Client) error {
		facts, err := a.Facts(ctx, host.FactsRequest{Container: e.conn.host.Container})
		if err != nil {
			return err
		}
		if c := facts.Container; c != nil {
			list = append(list, Container{ID: c.ID, Name: c.Name, Image: c.ImageRef, ImageID: c.ImageID, State: c.State, Created: c.Created, Compose: c.Compose})
		}
		for _, s := range facts.Siblings {
			list = append(list, Container{ID: s.ID, Name: s.Name, Image: s.Image, State: s.State})
		}
		return nil
	})
	return list, err
}

func (e *Engine) agentImage(ctx context.Context, ref string, refused error) (Image, error) {
	var i Image
	err := e.viaAgent(ctx, refused, func(a *host.Client) error {
		found, err := a.Resolve(ctx, ref)
		switch {
		case err != nil:
			return err
		case !found.Present:
			return e.noImage(ref)
		}
		i = Image{ID: found.ID, Bytes: found.SizeBytes, Tags: []string{found.Ref}}
		if found.Digest != "" {
			i.Digests = []string{found.Digest}
		}
		return nil
	})
	return i, err
}

// agentLogs gives the last lines; the agent does not tell the streams apart.
func (e *Engine) agentLogs(ctx context.Context, name string, opts LogOptions, refused error) (*Logs, error) {
	if opts.Follow || opts.Tail <= 0 || opts.Timestamps || !opts.Since.IsZero() || !opts.Until.IsZero() {
		return nil, refused
	}
	l := &Logs{body: io.NopCloser(strings.NewReader("")), err: io.EOF}
	err := e.viaAgent(ctx, refused, func(a *host.Client) error {
		lines, err := a.LastLines(ctx, name, opts.Tail)
		for _, line := range lines {
			l.lines = append(l.lines, LogLine{Text: line})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}
