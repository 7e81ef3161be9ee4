package realhosts

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/docker/client"
)

// readyWithin bounds how long an engine or an SSH server may take to answer after its start. These are real
// programs on a busy machine; nothing here scales with the block time.
const readyWithin = 60 * time.Second

// startEngine starts containerd, unless it runs, and dockerd, and waits until the engine answers.
func (c *Cluster) startEngine(ctx context.Context, host Host, init Process) error {
	running, err := named(init, "containerd")
	if err != nil {
		return err
	}
	if len(running) == 0 {
		// A containerd of its own, as a packaged engine has: killing dockerd then leaves containers running.
		if err := c.daemon(ctx, host, init, "containerd", "containerd"); err != nil {
			return err
		}
	}
	return c.startDockerd(ctx, host, init)
}

func (c *Cluster) startDockerd(ctx context.Context, host Host, init Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	err := poll(ctx, 10*time.Millisecond, "containerd of host "+host.ID, func() (bool, error) {
		_, err := os.Stat(c.paths.in(host.ID, "run/containerd/containerd.sock"))
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	if running, err := named(init, "dockerd"); err != nil || len(running) > 0 {
		return err
	}
	// A pid file of a killed dockerd may name a living process by now; dockerd would refuse to start.
	os.Remove(c.paths.in(host.ID, "run/docker.pid"))
	argv := []string{"dockerd", "--containerd", "/run/containerd/containerd.sock", "--pidfile", "/run/docker.pid",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/" + cgroupName(c.state) + "/" + host.ID}
	for _, network := range insecureNetworks {
		argv = append(argv, "--insecure-registry", network)
	}
	if err := c.daemon(ctx, host, init, "dockerd", argv...); err != nil {
		return err
	}
	return c.awaitEngine(ctx, host, init)
}

func (c *Cluster) awaitEngine(ctx context.Context, host Host, init Process) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	log := filepath.Join(c.paths.log(host.ID), "dockerd.log")
	look := time.Now().Add(deadAfter)
	return poll(ctx, 50*time.Millisecond, "the engine of host "+host.ID, func() (bool, error) {
		if _, err := engine.Ping(ctx); err == nil {
			return true, nil
		}
		if time.Now().Before(look) {
			return false, nil
		}
		look = time.Now().Add(deadAfter)
		running, err := named(init, "dockerd")
		if err == nil && len(running) == 0 {
			err = fmt.Errorf("dockerd died; see %s%s", log, lastLines(log, 3))
		}
		return false, err
	})
}

// deadAfter is how often a starting engine is looked for among the processes: the look reads all of /proc.
const deadAfter = 2 * time.Second

func cgroupName(st *State) string { return "qnetops-lab-" + st.ID }

// named lists the processes of a host by their command name (at most 15 characters, as the kernel keeps it).
func named(init Process, name string) ([]hostProcess, error) {
	all, err := processesIn(init)
	if err != nil {
		return nil, err
	}
	var out []hostProcess
	for _, proc := range all {
		if proc.Name == name {
			out = append(out, proc)
		}
	}
	return out, nil
}

// EngineSocket is the engine's socket of a host as seen from outside. The path may be too long to connect to
// directly (108 bytes); DialEngine has no such limit.
func (c *Cluster) EngineSocket(id string) string { return c.paths.in(id, "run/docker.sock") }

// DialEngine connects to the engine of a host from outside.
func (c *Cluster) DialEngine(ctx context.Context, id string) (net.Conn, error) {
	conn, err := dialSocket(ctx, c.EngineSocket(id))
	if err != nil {
		return nil, fmt.Errorf("host %s: connecting to its engine: %w", id, err)
	}
	return conn, nil
}

// Engine returns a client of the engine of a host, past its SSH server. The caller closes it.
func (c *Cluster) Engine(id string) (*client.Client, error) {
	if _, err := c.state.host(id); err != nil {
		return nil, err
	}
	engine, err := client.NewClientWithOpts(client.WithHost("http://engine"), client.WithAPIVersionNegotiation(),
		client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) { return c.DialEngine(ctx, id) }))
	if err != nil {
		return nil, fmt.Errorf("making a client for the engine of host %s: %w", id, err)
	}
	return engine, nil
}
