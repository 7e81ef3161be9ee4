package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/sshd"
)

// What Kill can kill.
const (
	KillAgent      = "agent"      // process A, which serves the requests
	KillGuardian   = "guardian"   // process B, which watches A
	KillBoth       = "both"       // both processes of all agents
	KillConnection = "connection" // every SSH connection of the host
	KillEngine     = "engine"     // the Docker daemon
	KillHost       = "host"       // the power; the host boots again
)

// Kills lists what Kill knows.
func Kills() []string {
	return []string{KillAgent, KillGuardian, KillBoth, KillConnection, KillEngine, KillHost}
}

// proc is one process of an agent: a goroutine whose every way to the world
// can be cut at once.
type proc struct {
	host   *Host
	kind   string // KillAgent or KillGuardian
	pid    int
	ctx    context.Context
	cancel context.CancelFunc
	root   string // a symbolic link to the host's root that goes with the process
	done   chan struct{}

	mu    sync.Mutex
	dead  bool
	conns []*memnet.Conn
}

// newProc registers a process.
func (h *Host) newProc(kind string) (*proc, error) {
	p := &proc{host: h, kind: kind, pid: h.lab.nextPID(), done: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(h.lab.ctx)
	p.root = filepath.Join(h.lab.cfg.Dir, "proc", fmt.Sprintf("%s-%d", h.spec.ID, p.pid))
	os.Remove(p.root) // of a lab that ran here before
	if err := os.Symlink(h.root, p.root); err != nil {
		p.cancel()
		return nil, fmt.Errorf("starting a process on host %s: %w", h.spec.ID, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.procs[p.pid] = p
	return p, nil
}

// ended removes a process that has returned by itself or after a kill.
func (p *proc) ended() {
	p.host.mu.Lock()
	delete(p.host.procs, p.pid)
	p.host.mu.Unlock()
	p.cut()
	close(p.done)
}

// kill is SIGKILL. The context goes first, because an agent writes nothing more
// once it has ended; then the files and the connections are out of reach, so
// that whatever the goroutine still does has no effect.
func (p *proc) kill() {
	p.host.mu.Lock()
	delete(p.host.procs, p.pid)
	p.host.mu.Unlock()
	p.cut()
}

func (p *proc) cut() {
	p.mu.Lock()
	first := !p.dead
	p.dead = true
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	p.cancel()
	if first {
		os.Remove(p.root)
	}
	for _, c := range conns {
		c.Sever()
	}
}

// own makes a connection die with the process.
func (p *proc) own(c *memnet.Conn) {
	p.mu.Lock()
	dead := p.dead
	if !dead {
		p.conns = append(p.conns, c)
		c.OnClose(func() { p.disown(c) })
	}
	p.mu.Unlock()
	if dead {
		c.Sever()
	}
}

func (p *proc) disown(c *memnet.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(p.conns, func(o *memnet.Conn) bool { return o == c })
}

// config is the process's view of its host.
func (p *proc) config(socket string) host.Config {
	return host.Config{Root: p.root, StateDir: host.DefaultStateDir, Version: p.host.lab.cfg.Version,
		DockerConfig: "/root/.docker", Facts: hostFacts{p.host},
		DialEngine: func(context.Context) (net.Conn, error) {
			if socket != "" && socket != engineSocket {
				return nil, &net.OpError{Op: "dial", Net: "unix", Addr: memnet.Addr{Name: socket}, Err: os.ErrNotExist}
			}
			c, err := p.host.dialEngine(fmt.Sprintf("%s:%d", p.kind, p.pid))
			if err != nil {
				return nil, err
			}
			p.own(c)
			return c, nil
		},
		DialNode: func(ctx context.Context, port int) (net.Conn, error) {
			c, err := p.host.dialTCP(ctx, "root", port)
			if err != nil {
				return nil, err
			}
			if conn, ok := c.(*memnet.Conn); ok {
				p.own(conn)
			}
			return c, nil
		},
		StartGuardian: func(context.Context) (host.Process, error) { return p.host.startGuardian(p, socket) },
	}
}

// hostFacts is what the agent reads from the operating system.
type hostFacts struct{ h *Host }

// Now is the host's clock.
func (f hostFacts) Now() time.Time { return f.h.now() }

// Disk is the host's one file system, whatever the path.
func (f hostFacts) Disk(path string) (host.DiskFacts, error) {
	d := f.h.disk()
	d.Path = path
	return d, nil
}

// guardianLink is process B as its agent sees it.
type guardianLink struct {
	*memnet.Conn
	p *proc
}

func (g guardianLink) PID() int              { return g.p.pid }
func (g guardianLink) Done() <-chan struct{} { return g.p.done }

// startGuardian starts process B of agent a. Its life is its own.
func (h *Host) startGuardian(a *proc, socket string) (host.Process, error) {
	g, err := h.newProc(KillGuardian)
	if err != nil {
		return nil, err
	}
	near, far := memnet.Pipe(fmt.Sprintf("agent:%d", a.pid), fmt.Sprintf("guardian:%d", g.pid))
	a.own(near)
	g.own(far)
	h.lab.spawn(func() {
		defer g.ended()
		host.Guard(g.ctx, g.config(socket), far) // its log on the host says what it did
	})
	return guardianLink{near, g}, nil
}

// runAgent is the command `qnetops host`: process A on the streams of a session.
// It outlives the session, as the real one does.
func (h *Host) runAgent(socket string, stdin io.Reader, stdout, stderr io.Writer) int {
	p, err := h.newProc(KillAgent)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	near, far := memnet.Pipe("session", fmt.Sprintf("agent:%d", p.pid))
	p.own(far)
	h.lab.spawn(func() {
		h.feed(p, near, stdin)
		near.CloseWrite()
	})
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		h.drain(near, stdout)
	}()
	err = host.Serve(p.ctx, p.config(socket), far, far)
	killed := p.ctx.Err() != nil
	far.Close()
	<-drained
	p.ended()
	switch {
	case killed:
		return sshd.Killed
	case err != nil && err != io.EOF:
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// feed passes requests to an agent, line by line, past the test's hook.
func (h *Host) feed(p *proc, to io.Writer, from io.Reader) {
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			var req struct{ Method string }
			if hook := h.lab.hook().agentRequest; hook != nil && json.Unmarshal(line, &req) == nil {
				hook(h.spec.ID, req.Method)
			}
			if _, werr := to.Write(line); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// drain passes an agent's answers on, line by line, past the test's hook. A
// session that has ended loses them; the agent does not notice.
func (h *Host) drain(from *memnet.Conn, to io.Writer) {
	r := bufio.NewReader(from)
	gone := false
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			if hook := h.lab.hook().agentOutput; hook != nil {
				hook(h.spec.ID, line)
			}
			if !gone {
				_, werr := to.Write(line)
				gone = werr != nil
			}
		}
		if err != nil {
			return
		}
	}
}

// Agents lists the pids of the agent processes of one kind that live on a host.
func (h *Host) Agents(kind string) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pids []int
	for pid, p := range h.procs {
		if p.kind == kind {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// killAgents kills all processes of one kind, or of both for an empty kind.
func (h *Host) killAgents(kind string) {
	h.mu.Lock()
	var victims []*proc
	for _, p := range h.procs {
		if kind == "" || p.kind == kind {
			victims = append(victims, p)
		}
	}
	h.mu.Unlock()
	for _, p := range victims { // first all contexts: none may act on another's death
		p.cancel()
	}
	for _, p := range victims {
		p.kill()
	}
}

// Kill kills a part of a host at once; see Kills. It does not wait, so that a
// hook may call it. What comes back by itself (engine, host) does so later.
func (l *Lab) Kill(hostID, what string) error {
	h, err := l.Host(hostID)
	if err != nil {
		return err
	}
	switch what {
	case KillAgent, KillGuardian:
		h.killAgents(what)
	case KillBoth:
		h.killAgents("")
	case KillConnection:
		h.sshd.DropAll()
	case KillEngine:
		h.engine.GoDown(engine.Crashed)
		l.spawn(func() { h.engine.ComeBack(l.ctx, engine.Crashed, 200*time.Millisecond) })
	case KillHost:
		h.reboot()
	default:
		return fmt.Errorf("nothing on a host is called %q: known are %s", what, strings.Join(Kills(), ", "))
	}
	return nil
}

// reboot is a loss of power and a boot.
func (h *Host) reboot() {
	h.setOff(true)
	h.sshd.Refuse(true)
	h.killAgents("")
	h.engine.GoDown(engine.PowerLost)
	h.sshd.DropAll()
	h.lab.spawn(func() {
		h.engine.ComeBack(h.lab.ctx, engine.PowerLost, rebootTime)
		h.setOff(false)
		_, held := h.lab.Faults(h.spec.ID)[FaultDropSSH]
		h.sshd.Refuse(held)
	})
}
