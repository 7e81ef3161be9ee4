package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/qnetops/qnetops/host"
)

// Where sshd opens no channel to the node or to the engine's socket, or the user
// may not open that, the host agent (by sudo) answers the same reads. It knows
// the node's container and those that belong to it, and no other. What it cannot
// do stays the ForwardingError of the channel.

// reader gives the agent for reads. Where it cannot be had that is remembered:
// a status makes many reads, and each would try again.
func (c *Conn) reader(ctx context.Context) (*host.Client, error) {
	if a := c.runningAgent(); a != nil {
		return a, nil
	}
	if why := c.noAgent.Load(); why != nil {
		return nil, *why
	}
	a, err := c.Agent(ctx)
	if err != nil && ctx.Err() == nil && !c.link.isDead() && lasting(err) {
		c.noAgent.Store(&err)
	}
	return a, err
}

// lasting tells whether a second try to have an agent would end the same way.
func lasting(err error) bool {
	var (
		agent    *AgentError
		platform *PlatformError
		sudo     *SudoError
	)
	return errors.As(err, &agent) || errors.As(err, &platform) || errors.As(err, &sudo)
}

// agentFault gives an error of a read by the agent this package's words.
func (c *Conn) agentFault(ctx context.Context, what string, err error) error {
	var gone *host.ConnectionError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(err, &gone) && c.link.waitDead(ctx):
		return fmt.Errorf("%s: %w", what, c.link.dropped())
	}
	return fmt.Errorf("host %s: %s by the host agent: %w", c.host.ID, what, err)
}

// nodeTransport asks the node through a channel. Once sshd's policy has
// forbidden the channel to a port it goes through the agent; a port on which
// nothing listens is no such case.
type nodeTransport struct {
	conn    *Conn
	direct  *http.Transport
	refused sync.Map // address -> *ForwardingError
}

// RoundTrip implements http.RoundTripper.
func (t *nodeTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if known, ok := t.refused.Load(req.URL.Host); ok {
		if req.Body != nil {
			req.Body.Close()
		}
		return t.byAgent(req, known.(*ForwardingError))
	}
	resp, err := t.direct.RoundTrip(req)
	var refused *ForwardingError
	if !errors.As(err, &refused) || !refused.Denied {
		return resp, err
	}
	t.refused.Store(req.URL.Host, refused)
	return t.byAgent(req, refused)
}

// byAgent sends a request that has not been sent yet: its body is taken anew.
func (t *nodeTransport) byAgent(req *http.Request, refused *ForwardingError) (*http.Response, error) {
	ask, err := t.request(req)
	if err != nil {
		return nil, err
	}
	agent, err := t.conn.reader(req.Context())
	if err != nil {
		return nil, fmt.Errorf("%w; and by the host agent: %w", refused, err)
	}
	answer, err := agent.NodeHTTP(req.Context(), ask)
	if err != nil {
		return nil, t.conn.agentFault(req.Context(), "asking the node", err)
	}
	resp := &http.Response{Status: http.StatusText(answer.Status), StatusCode: answer.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: answer.Body, ContentLength: -1, Request: req}
	for name, value := range map[string]string{"Content-Type": answer.ContentType, "Retry-After": answer.RetryAfter} {
		if value != "" {
			resp.Header.Set(name, value)
		}
	}
	return resp, nil
}

func (t *nodeTransport) request(req *http.Request) (host.NodeRequest, error) {
	ask := host.NodeRequest{Port: t.conn.host.APIPort, Method: req.Method, Path: req.URL.RequestURI(), ContentType: req.Header.Get("Content-Type")}
	ask.Metrics = req.URL.Port() != itoa(ask.Port)
	if req.Body == nil {
		return ask, nil
	}
	if req.GetBody == nil {
		return ask, errors.New("a request with a body that cannot be read twice")
	}
	body, err := req.GetBody()
	if err != nil {
		return ask, err
	}
	defer body.Close()
	ask.Body, err = io.ReadAll(body)
	return ask, err
}

// forwarding tells whether the engine's socket is what could not be reached.
func (e *Engine) forwarding(err error) bool {
	var refused *ForwardingError
	return errors.As(err, &refused) && refused.Target == e.conn.host.EngineSocket
}

// viaAgent runs read with the agent in the place of a channel that was refused.
func (e *Engine) viaAgent(ctx context.Context, what string, refused error, read func(*host.Client) error) error {
	agent, err := e.conn.reader(ctx)
	if err != nil {
		return fmt.Errorf("%w; and by the host agent: %w", refused, err)
	}
	err = read(agent)
	var known *EngineError
	fault := &EngineError{Host: e.conn.host.ID, What: what, Err: err}
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, host.ErrNotFound):
		fault.Fault = EngineNotFound
		return fault
	case errors.Is(err, host.ErrEngineAway):
		fault.Fault = EngineUnreachable
		return fault
	}
	return e.conn.agentFault(ctx, what, err)
}

func (e *Engine) agentInfo(ctx context.Context, refused error) (EngineInfo, error) {
	var info EngineInfo
	err := e.viaAgent(ctx, "info", refused, func(a *host.Client) error {
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
	err := e.viaAgent(ctx, "listing containers", refused, func(a *host.Client) error {
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
	err := e.viaAgent(ctx, "looking for image "+ref, refused, func(a *host.Client) error {
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

// agentLogs opens the log as the engine gives it.
func (e *Engine) agentLogs(ctx context.Context, name string, opts LogOptions, refused error) (body io.ReadCloser, err error) {
	err = e.viaAgent(ctx, "reading the log of "+name, refused, func(a *host.Client) error {
		var err error
		body, err = a.Logs(ctx, host.LogsRequest{Node: e.conn.host.Container, Container: name, Since: opts.Since, Until: opts.Until,
			Tail: opts.Tail, Follow: opts.Follow, Timestamps: opts.Timestamps})
		return err
	})
	return body, err
}

// agentEvents follows events; it gives its reason to end as Events does.
func (e *Engine) agentEvents(ctx context.Context, since time.Time, names []string, out chan<- Event, refused error) error {
	return e.viaAgent(ctx, "following events", refused, func(a *host.Client) error {
		req := host.EventsRequest{Node: e.conn.host.Container, Names: names, Since: since}
		return a.Events(ctx, req, func(ev host.ContainerEvent) {
			event := Event{Time: ev.Time, Action: ev.Action, Container: ev.ID, Name: ev.Name, Image: ev.Image, ExitCode: ev.ExitCode, Signal: ev.Signal}
			select {
			case out <- event:
			case <-ctx.Done():
			}
		})
	})
}
