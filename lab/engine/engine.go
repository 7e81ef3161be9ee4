package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Runner starts the processes of containers.
type Runner interface {
	// Start runs p until it ends or is signalled. It must not call back into
	// the engine. An error is a start that failed, as when runc refuses.
	Start(ctx context.Context, p Process) (Running, error)
}

// Running is a started process.
type Running interface {
	// Signal delivers a signal by name, SIGTERM or SIGKILL.
	Signal(name string) error
	// Wait returns the exit code once the process has ended. A process that
	// got SIGKILL returns 137.
	Wait() int
}

// Process is what a Runner needs to know of a container.
type Process struct {
	ContainerID string
	Name        string // at start; a later rename does not reach the process
	Image       string // reference the container was created with
	ImageID     string
	Entrypoint  []string
	Cmd         []string
	Env         []string
	Hostname    string
	User        string
	HostNetwork bool // shares the host's ports
	Mounts      []Mount
	Ports       []Port
	Stdout      io.Writer
	Stderr      io.Writer
}

// Mount is a bind or a volume of a running container.
type Mount struct {
	Destination string
	HostPath    string // path on the lab host
	Dir         string // the real directory behind it
	Volume      string // name, when it is a volume
	ReadOnly    bool
}

// Port is a published port.
type Port struct {
	Proto         string
	ContainerPort int
	HostIP        string
	HostPort      int
}

// Config describes one engine.
type Config struct {
	Host       string // the host's name
	Root       string // real directory that stands for the host's /
	Registry   *Registry
	Runner     Runner
	APIVersion string // "1.41" when empty; up to "1.47"
	// PullTime is how long a pull takes; 0 means 40 ms.
	PullTime time.Duration
	// FreeBytes says how much space the host's disk has; nil means plenty.
	FreeBytes func() uint64
	// Identity names the node a container's variables stand for; two running
	// containers with one identity are a violation. nil: not checked.
	Identity func(env []string) string
	// OnRequest sees every request before it is handled. When it returns false
	// the connection is broken and the request has no effect, as when the
	// client died before it was sent. origin is the Tag of the connection.
	OnRequest func(origin string, r *http.Request) bool
	// OnResponse sees every request after it took effect and before the answer
	// is sent.
	OnResponse func(origin string, r *http.Request)
	// OnChange is called after a container started or ended.
	OnChange func()
	Seed     uint64
}

const (
	defaultAPI = "1.41"
	minAPI     = "1.24"
	// reviveDelay is how long a restarted engine is away.
	reviveDelay = 200 * time.Millisecond
	// shutdownGrace is the engine's own limit for stopping containers at its end.
	shutdownGrace = 15 * time.Second
)

// Engine is one emulated engine.
type Engine struct {
	cfg Config

	mu         sync.Mutex
	rng        *rand.Rand
	created    time.Time
	containers map[string]*container // by full id
	names      map[string]string     // name -> id
	images     map[string]*localImage
	networks   map[string]*network // by name
	volumes    map[string]*volume
	events     eventLog
	faults     map[string]string
	down       bool // the daemon is not running: connections are refused
	stopping   bool // the daemon is shutting down: no restarts by policy
	closed     bool
	unknown    []string
	violations []string
	nextPID    int
	seq        int

	srv   *http.Server
	conns *connListener
	open  map[net.Conn]struct{}
	wg    sync.WaitGroup
	ctx   context.Context
	end   context.CancelFunc
}

// New returns an engine without containers. Close ends it.
func New(cfg Config) *Engine {
	if cfg.APIVersion == "" {
		cfg.APIVersion = defaultAPI
	}
	if cfg.PullTime == 0 {
		cfg.PullTime = 40 * time.Millisecond
	}
	if cfg.Registry == nil {
		cfg.Registry = NewRegistry()
	}
	e := &Engine{cfg: cfg, created: time.Now(), rng: rand.New(rand.NewPCG(cfg.Seed, hashOf(cfg.Host))),
		containers: map[string]*container{}, names: map[string]string{}, images: map[string]*localImage{},
		volumes: map[string]*volume{}, faults: map[string]string{}, open: map[net.Conn]struct{}{}, nextPID: 4000}
	e.ctx, e.end = context.WithCancel(context.Background())
	e.networks = e.defaultNetworks()
	e.conns = newConnListener()
	e.srv = &http.Server{Handler: http.HandlerFunc(e.serveHTTP), ConnContext: withConn}
	e.wg.Go(func() { e.srv.Serve(e.conns) })
	return e
}

// hashOf spreads a name over 64 bits (FNV-1a).
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Serve accepts connections from a listener until it is closed.
func (e *Engine) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accepting: %w", err)
		}
		if err := e.ServeConn(c); err != nil {
			c.Close()
		}
	}
}

// ServeConn hands a connection to the engine and returns at once. It fails
// with ECONNREFUSED while the engine is down.
func (e *Engine) ServeConn(c net.Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down || e.closed {
		return fmt.Errorf("connecting to the engine: %w", syscall.ECONNREFUSED)
	}
	e.open[c] = struct{}{}
	e.conns.put(&trackedConn{Conn: c, engine: e})
	return nil
}

// trackedConn forgets itself when it is closed.
type trackedConn struct {
	net.Conn
	engine *Engine
}

func (c *trackedConn) Close() error {
	c.engine.mu.Lock()
	delete(c.engine.open, c.Conn)
	c.engine.mu.Unlock()
	return c.Conn.Close()
}

// severLocked breaks every connection at once.
func (e *Engine) severLocked() {
	for c := range e.open {
		breakConn(c)
	}
	clear(e.open)
}

func breakConn(c net.Conn) {
	if s, ok := c.(interface{ Sever() }); ok {
		s.Sever()
		return
	}
	c.Close()
}

// Close kills the containers, ends the engine and waits for it.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed, e.stopping = true, true
	e.severLocked()
	var runs []*run
	for _, c := range e.containers {
		c.cancelRestart()
		if c.run != nil {
			runs = append(runs, c.run)
		}
	}
	e.mu.Unlock()
	for _, r := range runs {
		r.proc.Signal("SIGKILL")
	}
	e.end()
	e.srv.Close()
	e.conns.Close()
	e.wg.Wait()
}

// Outage is a way for the daemon to go away.
type Outage int

// The outages.
const (
	// Orderly is `systemctl restart docker`: containers are stopped, then
	// revived by their policy.
	Orderly Outage = iota
	// Crashed is a killed daemon: containers run on for a moment; when it is
	// back it stops what it finds running, because live restore is off, and
	// revives by policy.
	Crashed
	// PowerLost ends containers and daemon at the same instant. What was
	// running is found dead with exit code 255.
	PowerLost
)

// Restart is an orderly outage from begin to end.
func (e *Engine) Restart(ctx context.Context) error { return e.outage(ctx, Orderly, reviveDelay) }

// Crash is a crash and the daemon's return.
func (e *Engine) Crash(ctx context.Context) error { return e.outage(ctx, Crashed, reviveDelay) }

// PowerLoss takes the host away for d.
func (e *Engine) PowerLoss(ctx context.Context, d time.Duration) error {
	return e.outage(ctx, PowerLost, d)
}

func (e *Engine) outage(ctx context.Context, kind Outage, d time.Duration) error {
	e.GoDown(kind)
	return e.ComeBack(ctx, kind, d)
}

// GoDown makes the daemon disappear at once: every connection breaks and new
// ones are refused. It does not wait, so that a request hook may call it.
func (e *Engine) GoDown(kind Outage) {
	e.mu.Lock()
	e.disappearLocked()
	var runs []*run
	for _, c := range e.containers {
		if kind == PowerLost && c.run != nil {
			c.run.powerLost = true
			runs = append(runs, c.run)
		}
	}
	e.mu.Unlock()
	for _, r := range runs {
		r.proc.Signal("SIGKILL")
	}
}

func (e *Engine) disappearLocked() {
	e.down, e.stopping = true, true
	for _, c := range e.containers {
		if c.restarting() { // its waiting goroutine dies with the daemon
			c.cancelRestart()
			c.setStopped(c.exitCode)
		}
	}
	e.severLocked()
	e.events.drop()
}

// ComeBack is the rest of an outage: what happens to the containers, d of
// absence, and the daemon's start. It returns when the engine answers again.
func (e *Engine) ComeBack(ctx context.Context, kind Outage, d time.Duration) error {
	switch kind {
	case Orderly:
		e.stopAll(shutdownGrace)
	case PowerLost:
		e.awaitExits()
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	if kind == Crashed {
		e.stopAll(shutdownGrace)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errors.New("the engine is closed")
	}
	if _, held := e.faults[FaultEngineDown]; !held {
		e.appearLocked()
	}
	return nil
}

// appearLocked starts the daemon: it revives by policy what was ever started.
func (e *Engine) appearLocked() {
	e.down, e.stopping = false, false
	for _, c := range e.sorted() {
		if c.startedBefore && c.run == nil && c.wantsRestart() {
			c.restartCount, c.exitOnNext = 0, false
			e.startLocked(c)
		}
	}
}

// awaitExits waits until no process is left.
func (e *Engine) awaitExits() {
	e.mu.Lock()
	var runs []*run
	for _, c := range e.containers {
		if c.run != nil {
			runs = append(runs, c.run)
		}
	}
	e.mu.Unlock()
	for _, r := range runs {
		<-r.exited
	}
}

// stopAll stops the running containers as a daemon does at its end.
func (e *Engine) stopAll(grace time.Duration) {
	type victim struct {
		r   *run
		sig string
		t   time.Duration
	}
	e.mu.Lock()
	var victims []victim
	for _, c := range e.containers {
		if c.run != nil {
			victims = append(victims, victim{c.run, c.stopSignal(), max(grace, c.stopTimeout())})
		}
	}
	e.mu.Unlock()
	var wg sync.WaitGroup
	for _, v := range victims {
		wg.Go(func() { endProcess(v.r, v.sig, v.t) })
	}
	wg.Wait()
}

// pause waits for d unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// sorted returns the containers, newest first, as lists show them.
func (e *Engine) sorted() []*container {
	all := make([]*container, 0, len(e.containers))
	for _, c := range e.containers {
		all = append(all, c)
	}
	sort.Slice(all, func(i, j int) bool {
		if !all[i].created.Equal(all[j].created) {
			return all[i].created.After(all[j].created)
		}
		return all[i].seq > all[j].seq
	})
	return all
}

// newID returns 64 hex digits from the engine's own seed.
func (e *Engine) newID() string {
	return fmt.Sprintf("%016x%016x%016x%016x", e.rng.Uint64(), e.rng.Uint64(), e.rng.Uint64(), e.rng.Uint64())
}

// path is the real place of a path on the host.
func (e *Engine) path(hostPath string) string { return filepath.Join(e.cfg.Root, hostPath) }

// Down reports whether the daemon refuses connections.
func (e *Engine) Down() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// Unknown lists the requests that were refused as not emulated.
func (e *Engine) Unknown() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.unknown...)
}

// Violations lists what must never happen: two running containers on one data
// directory, or with one identity.
func (e *Engine) Violations() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.violations...)
}

// noteViolations looks at a container that is about to run.
func (e *Engine) noteViolations(c *container) {
	for _, o := range e.containers {
		if o == c || o.run == nil {
			continue
		}
		for _, m := range c.mounts {
			for _, n := range o.mounts {
				if p := sharedPath(m, n); p != "" {
					e.violations = append(e.violations, fmt.Sprintf("%s: %s and %s run on one data directory %s", e.cfg.Host, o.name, c.name, p))
				}
			}
		}
		if e.cfg.Identity == nil {
			continue
		}
		if id := e.cfg.Identity(c.env()); id != "" && id == e.cfg.Identity(o.env()) {
			e.violations = append(e.violations, fmt.Sprintf("%s: %s and %s run with one identity", e.cfg.Host, o.name, c.name))
		}
	}
}

// sharedPath is the host path two mounts both write, or nothing.
func sharedPath(a, b mount) string {
	if a.source == "" || a.source != b.source || (!a.rw && !b.rw) || strings.HasSuffix(a.source, ".sock") {
		return ""
	}
	return a.source
}

// ensureDir creates a directory of the host.
func (e *Engine) ensureDir(hostPath string) error {
	if err := os.MkdirAll(e.path(hostPath), 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", hostPath, err)
	}
	return nil
}
