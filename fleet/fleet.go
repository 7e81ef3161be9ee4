package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Fleet is a set of hosts of an inventory, connected for one run.
type Fleet struct {
	inv    *Inventory
	hosts  []Host
	opts   Options
	fanout int
	dialer *dialer
	binary *agentBinary
	config *sshConfig

	mu    sync.Mutex
	conns map[string]*Conn
	errs  map[string]error
}

// Open connects to the hosts with these ids (none: all of them) in parallel. A
// host that fails does not fail the others: its error is kept and given by Conn.
// Open itself fails for an unknown id, unreadable known_hosts, or an ended ctx.
func Open(ctx context.Context, inv *Inventory, ids []string, opts Options) (*Fleet, error) {
	hosts, err := inv.Select(ids, nil)
	if err != nil {
		return nil, err
	}
	f := newFleet(inv, hosts, opts)
	if _, err := f.dialer.known.db(inv.SSH.KnownHosts); err != nil {
		return nil, err
	}
	f.parallel(ctx, hosts, func(ctx context.Context, h Host) {
		f.open(ctx, h, false)
	})
	if err := ctx.Err(); err != nil {
		f.Close()
		return nil, fmt.Errorf("connecting to the fleet: %w", err)
	}
	return f, nil
}

func newFleet(inv *Inventory, hosts []Host, opts Options) *Fleet {
	opts = opts.withDefaults()
	f := &Fleet{
		inv: inv, hosts: hosts, opts: opts, fanout: inv.SSH.Fanout,
		binary: newAgentBinary(opts.AgentBinary), config: newSSHConfig(opts.Getenv),
		conns: map[string]*Conn{}, errs: map[string]error{},
		dialer: &dialer{
			dial: opts.Dial, keys: newKeyring(opts), known: newHostKeys(), timeout: inv.SSH.ConnectTimeout,
			interval: inv.SSH.Keepalive, starts: inv.SSH.Starts, slots: map[string]*slot{}, limits: map[string]chan struct{}{},
		},
	}
	if opts.Fanout > 0 {
		f.fanout = opts.Fanout
	}
	return f
}

// open connects one host and records the outcome.
func (f *Fleet) open(ctx context.Context, h Host, renew bool) (*Conn, error) {
	route, err := f.route(ctx, h, nil)
	var l *link
	if err == nil {
		l, err = f.dialer.link(ctx, route, renew)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.opts.Log.Debug("connect", "host", h.ID, "error", err)
		if !renew || f.conns[h.ID] == nil {
			// A host that was connected once stays known by how it was lost, so
			// that one refused attempt while it boots is not its last word.
			f.errs[h.ID] = err
		}
		return nil, err
	}
	delete(f.errs, h.ID)
	c := newConn(f, h, l)
	f.conns[h.ID] = c
	return c, nil
}

// parallel runs do for each host, at most fanout at a time.
func (f *Fleet) parallel(ctx context.Context, hosts []Host, do func(context.Context, Host)) {
	var g errgroup.Group
	g.SetLimit(max(f.fanout, 1))
	for _, h := range hosts {
		g.Go(func() error {
			do(ctx, h)
			return nil
		})
	}
	g.Wait()
}

// Close ends all connections and the agents that run over them.
func (f *Fleet) Close() error {
	f.mu.Lock()
	conns := slices.Collect(maps.Values(f.conns))
	f.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
	f.dialer.close()
	f.binary.close()
	return nil
}

// Inventory is hosts.toml.
func (f *Fleet) Inventory() *Inventory { return f.inv }

// Hosts are the hosts of this run in the order of hosts.toml.
func (f *Fleet) Hosts() []Host { return slices.Clone(f.hosts) }

func (f *Fleet) host(id string) (Host, error) {
	for _, h := range f.hosts {
		if h.ID == id {
			return h, nil
		}
	}
	known := make([]string, len(f.hosts))
	for i, h := range f.hosts {
		known[i] = h.ID
	}
	return Host{}, &UnknownHostError{IDs: []string{id}, Known: known, Path: f.inv.Path}
}

// Conn is the connection to a host made by Open or Redial: the typed error of
// the failed connect, *DroppedError when it has died since.
func (f *Fleet) Conn(_ context.Context, id string) (*Conn, error) {
	if _, err := f.host(id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.errs[id]; err != nil {
		return nil, err
	}
	c := f.conns[id]
	if c == nil {
		return nil, &UnreachableError{Host: id, Err: errors.New("not connected in this run")}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Redial connects again to a host whose connection has died or never came
// about, or whose agent has ended; else the old one is returned. The caller has decided that a
// second attempt is right: what was in flight on the old one is unknown.
func (f *Fleet) Redial(ctx context.Context, id string) (*Conn, error) {
	h, err := f.host(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	old := f.conns[id]
	f.mu.Unlock()
	if old != nil && old.Err() == nil && !old.agentGone() {
		return old, nil
	}
	if old != nil {
		old.close()
	}
	return f.open(ctx, h, true)
}

// Each runs fn on every host in parallel and returns the errors by id, those of
// hosts without a connection among them. The map is empty when all went well.
func (f *Fleet) Each(ctx context.Context, fn func(context.Context, *Conn) error) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	f.parallel(ctx, f.hosts, func(ctx context.Context, h Host) {
		c, err := f.Conn(ctx, h.ID)
		if err == nil {
			err = fn(ctx, c)
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed[h.ID] = err
		}
	})
	return failed
}
