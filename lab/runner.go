package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/node"
)

// runner runs the containers of one host: nodes as simnode.Run or as the node
// of a ledger, anything else as a process that idles.
type runner struct{ h *Host }

// process is a running container.
type process struct {
	cancel context.CancelFunc
	stop   chan struct{}
	once   sync.Once
	done   chan struct{}
	code   int
}

// Start runs p until it ends or is signalled.
func (r *runner) Start(ctx context.Context, p engine.Process) (engine.Running, error) {
	ctx, cancel := context.WithCancel(ctx)
	run := &process{cancel: cancel, stop: make(chan struct{}), done: make(chan struct{})}
	if len(p.Entrypoint) == 0 || p.Entrypoint[0] != "/qnetops" || r.h.source() != r.h {
		go run.idle(ctx)
		return run, nil
	}
	if r.h.ledger != nil {
		go r.ledger(ctx, p, run)
		return run, nil
	}
	dir, err := r.dataDir(p)
	if err != nil {
		cancel()
		return nil, err
	}
	go r.node(ctx, p, dir, run)
	return run, nil
}

// dataDir is what is mounted at the node's data directory; without a mount the
// data lives in the container's own layer and goes with it.
func (r *runner) dataDir(p engine.Process) (string, error) {
	for _, m := range p.Mounts {
		if m.Destination == "/app/data" {
			return m.Dir, nil
		}
	}
	dir := filepath.Join(r.h.root, "var/lib/docker/overlay2", p.ContainerID[:32], "data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the container's layer: %w", err)
	}
	return dir, nil
}

// node is one life of a node.
func (r *runner) node(ctx context.Context, p engine.Process, dir string, run *process) {
	l, id := r.h.lab, simnode.NodeID(p.Env)
	l.enter(id, r.h.spec.ID)
	run.code = simnode.Run(ctx, simnode.Config{Env: p.Env, DataDir: dir, Stdout: p.Stdout, Stderr: p.Stderr,
		Listen: func(_, addr string) (net.Listener, error) { return r.h.listen(p, addr) },
		Net:    l.hub.Join(id), Stop: run.stop, Faults: r.h.faults, Signer: l.signer, Seed: l.cfg.Seed + int64(r.h.index),
		OnViolation: func(v simnode.Violation) {
			l.violation(fmt.Sprintf("%s: %s: %s %s", r.h.spec.ID, v.NodeID, v.Kind, v.Detail))
		}})
	l.leave(id)
	run.cancel()
	close(run.done)
}

// ledger is one life of a node of a stalled chain: it prints its log and answers.
func (r *runner) ledger(ctx context.Context, p engine.Process, run *process) {
	defer close(run.done)
	defer run.cancel()
	ln, err := r.h.listen(p, fmt.Sprintf("0.0.0.0:%d", node.DefaultAPIPort))
	if err != nil {
		fmt.Fprintf(p.Stderr, "[FATAL][RPC] Cannot bind port %d: %v\n", node.DefaultAPIPort, err)
		run.code = 1
		return
	}
	for _, line := range r.h.ledger.Lines() {
		fmt.Fprintln(p.Stdout, line)
	}
	defer r.h.ledger.Serve(ln)()
	select {
	case <-ctx.Done():
		run.code = 137
	case <-run.stop:
	}
}

func (p *process) idle(ctx context.Context) {
	select {
	case <-ctx.Done():
		p.code = 137
	case <-p.stop:
	}
	p.cancel()
	close(p.done)
}

// Signal delivers SIGTERM or SIGKILL; a node ignores what else there is.
func (p *process) Signal(name string) error {
	switch name {
	case "SIGKILL":
		p.cancel()
	case "SIGTERM", "SIGINT", "15":
		p.once.Do(func() { close(p.stop) })
	}
	return nil
}

// Wait returns the exit code.
func (p *process) Wait() int {
	<-p.done
	return p.code
}

// hostListener is a container's listener, reachable through host ports.
type hostListener struct {
	*memnet.Listener
	host  *Host
	ports []int
	once  sync.Once
}

// listen binds a port inside a container and publishes it on the host.
func (h *Host) listen(p engine.Process, addr string) (net.Listener, error) {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	l := &hostListener{Listener: memnet.Listen(addr), host: h}
	for _, pub := range p.Ports {
		if pub.Proto == "tcp" && pub.ContainerPort == port {
			l.ports = append(l.ports, pub.HostPort)
		}
	}
	if p.HostNetwork {
		l.ports = []int{port}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hp := range l.ports {
		if h.listeners[hp] != nil {
			return nil, fmt.Errorf("binding port %d: %w", hp, syscall.EADDRINUSE)
		}
	}
	for _, hp := range l.ports {
		h.listeners[hp] = l
	}
	return l, nil
}

// Close ends the listener and frees its host ports.
func (l *hostListener) Close() error {
	var err error
	l.once.Do(func() {
		l.host.mu.Lock()
		for _, hp := range l.ports {
			if l.host.listeners[hp] == l {
				delete(l.host.listeners, hp)
			}
		}
		l.host.mu.Unlock()
		err = l.Listener.Close()
	})
	return err
}
