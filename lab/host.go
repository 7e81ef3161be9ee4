package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/lab/sshd"
)

const (
	engineSocket = host.DefaultSocket
	diskTotal    = 500 << 30
	diskFree     = 300 << 30
)

// Host is one machine of the lab.
type Host struct {
	lab    *Lab
	index  int
	spec   HostSpec
	root   string // real directory of the host's /
	engine *engine.Engine
	sshd   *sshd.Server
	key    ssh.Signer
	faults *simnode.Faults // of the node, whatever container runs it
	ledger *ledger.Node    // the node itself where the chain stands still, else nil

	mu        sync.Mutex
	address   string
	port      int
	powerOff  bool
	listeners map[int]*hostListener // by port on the host
	procs     map[int]*proc
	refused   []string
	hashed    map[string]bool // agents whose bytes were verified
}

func (l *Lab) newHost(i int, spec HostSpec) (*Host, error) {
	h := &Host{lab: l, index: i, spec: spec, root: filepath.Join(l.cfg.Dir, "hosts", spec.ID), address: spec.Address, port: spec.SSHPort,
		faults: &simnode.Faults{}, listeners: map[int]*hostListener{}, procs: map[int]*proc{}, hashed: map[string]bool{}}
	if l.cfg.Ledger != nil {
		h.ledger = l.cfg.Ledger(i)
	}
	for _, dir := range []string{spec.DataPath, "/root", "/var/lib/docker"} {
		if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
			return nil, fmt.Errorf("making host %s: %w", spec.ID, err)
		}
	}
	var err error
	if h.key, err = ssh.NewSignerFromKey(edKey(l.cfg.Seed, "host "+spec.ID)); err != nil {
		return nil, fmt.Errorf("making the host key: %w", err)
	}
	h.engine = engine.New(engine.Config{Host: "lab-" + spec.ID, Root: h.root, Registry: l.registry, Runner: &runner{h},
		APIVersion: spec.APIVersion, FreeBytes: func() uint64 { return h.disk().FreeBytes }, Identity: identity,
		OnRequest: h.beforeRequest, OnResponse: h.afterRequest, Seed: uint64(l.cfg.Seed)})
	h.sshd = sshd.New(sshd.Config{HostKey: h.key, Users: map[string][]ssh.PublicKey{spec.User: {l.client.PublicKey()}},
		Exec: h.exec, DialTCP: h.dialLoopback, DialHop: h.dialHop, DialUnix: h.dialUnix, ForbidForwarding: spec.ForbidForwarding,
		MaxStartups: sshd.DefaultStartups, Seed: uint64(l.cfg.Seed)})
	return h, nil
}

// ID is the host's id in the inventory.
func (h *Host) ID() string { return h.spec.ID }

// Spec is what the host was built from.
func (h *Host) Spec() HostSpec { return h.spec }

// Engine is the host's Docker engine.
func (h *Host) Engine() *engine.Engine { return h.engine }

// Root is the real directory that stands for the host's /.
func (h *Host) Root() string { return h.root }

// DataDir is the real directory of the node's data.
func (h *Host) DataDir() string { return filepath.Join(h.root, h.spec.DataPath) }

// NodeID is the id of the host's node.
func (h *Host) NodeID() string {
	if h.ledger != nil {
		return h.ledger.ID()
	}
	return simnode.NodeID(h.lab.nodeEnv(h.index, h.spec))
}

// Ledger is the host's node where Config.Ledger gave one, else nil.
func (h *Host) Ledger() *ledger.Node { return h.ledger }

// Faults are the faults of the host's node.
func (h *Host) Faults() *simnode.Faults { return h.faults }

func (h *Host) setAddr(address string, port int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.address, h.port = address, port
}

func (h *Host) where() (string, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.address, h.port
}

func (h *Host) addr() string {
	a, p := h.where()
	return net.JoinHostPort(a, strconv.Itoa(p))
}

func (h *Host) off() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.powerOff
}

func (h *Host) setOff(off bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.powerOff = off
}

// identity is what two running containers must not share.
func identity(env []string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, _ := strings.Cut(kv, "="); v != "" && (k == "QNET_BOOTSTRAP_ID" || k == "QNET_WALLET_SEED") {
			return simnode.NodeID(env)
		}
	}
	return ""
}

// now is the host's clock, which the fault skew turns.
func (h *Host) now() time.Time {
	arg, on := h.faults.All()[simnode.FaultSkew]
	if !on {
		return time.Now()
	}
	secs, err := strconv.ParseFloat(arg, 64)
	if err != nil {
		secs = 5
	}
	return time.Now().Add(time.Duration(secs * float64(time.Second)))
}

// disk is the host's one file system; the fault disk-full leaves the bytes of
// its argument, or none.
func (h *Host) disk() host.DiskFacts {
	d := host.DiskFacts{Path: "/", FreeBytes: diskFree, TotalBytes: diskTotal}
	if arg, on := h.engine.Fault(engine.FaultDiskFull); on {
		d.FreeBytes, _ = strconv.ParseUint(arg, 10, 64)
	}
	return d
}

// createNode creates the node's container with the settings of facts 5.2.
func (h *Host) createNode(tag string) error {
	ref := Repository + ":" + tag
	if err := h.engine.Load(ref); err != nil {
		return err
	}
	body := h.createBody(ref)
	if h.spec.Create != nil {
		h.spec.Create(body)
	}
	return h.createFrom(body)
}

func (h *Host) createFrom(body map[string]any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding the create request: %w", err)
	}
	if _, err := h.engine.CreateContainer(h.spec.Container, b); err != nil {
		return fmt.Errorf("creating container %s: %w", h.spec.Container, err)
	}
	return nil
}

func (h *Host) createBody(ref string) map[string]any {
	size, files := "200m", "50"
	if h.spec.Role == "super" {
		size, files = "100m", "10"
	}
	bind := func(port int) []any { return []any{map[string]any{"HostIp": "", "HostPort": strconv.Itoa(port)}} }
	ports := map[string]any{"8001/tcp": bind(h.spec.APIPort), "9876/tcp": bind(9876), "9877/tcp": bind(9877), "10876/udp": bind(10876)}
	return map[string]any{
		"Image": ref, "Env": h.lab.nodeEnv(h.index, h.spec), "Labels": map[string]any{"lab.host": h.spec.ID},
		"HostConfig": map[string]any{
			"Binds": []any{h.spec.DataPath + ":/app/data"}, "PortBindings": ports,
			"RestartPolicy": map[string]any{"Name": "always"},
			"LogConfig":     map[string]any{"Type": "json-file", "Config": map[string]any{"max-size": size, "max-file": files}},
			"Ulimits":       []any{map[string]any{"Name": "nofile", "Soft": 65536, "Hard": 65536}},
		},
	}
}

// source is the host whose node answers on this one; see Config.Mirror.
func (h *Host) source() *Host {
	if n := h.lab.cfg.Mirror; n > 0 && h.index > n {
		return h.lab.hosts[(h.index-1)%n]
	}
	return h
}

// dialSSH connects to the host's SSH server.
func (h *Host) dialSSH(from string) (net.Conn, error) {
	addr := h.addr()
	if h.off() || h.sshd.Refusing() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: memnet.Addr{Name: addr}, Err: syscall.ECONNREFUSED}
	}
	c, s := memnet.Pipe(from, addr)
	h.lab.spawn(func() { h.sshd.ServeConn(s) })
	return c, nil
}

// dialHop connects to the SSH server of a host that this one is the jump host
// of; to everything else sshd's PermitOpen says no.
func (h *Host) dialHop(_ context.Context, _, address string) (net.Conn, error) {
	for _, other := range h.lab.hosts {
		if other.spec.Jump == h.spec.ID && other.addr() == address {
			from, _ := h.where()
			return other.dialSSH(net.JoinHostPort(from, "40000"))
		}
	}
	return nil, fmt.Errorf("dialling %s: %w", address, syscall.EACCES)
}

// dialLoopback is dialTCP for sshd. Where all SSH servers listen on this
// machine's loopback the hosts behind this one are there too.
func (h *Host) dialLoopback(ctx context.Context, user string, port int) (net.Conn, error) {
	if c, err := h.dialHop(ctx, user, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
		return c, nil
	}
	return h.dialTCP(ctx, user, port)
}

// dialTCP connects to a port on the host's loopback.
func (h *Host) dialTCP(ctx context.Context, _ string, port int) (net.Conn, error) {
	h = h.source()
	h.mu.Lock()
	l := h.listeners[port]
	h.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dialling 127.0.0.1:%d: %w", port, syscall.ECONNREFUSED)
	}
	return l.Dial(ctx, "172.17.0.1:40000")
}

// dialUnix connects to the engine's socket, for those who may.
func (h *Host) dialUnix(_ context.Context, user, path string) (net.Conn, error) {
	if path != engineSocket && path != "/run/docker.sock" {
		return nil, fmt.Errorf("dialling %s: %w", path, syscall.ENOENT)
	}
	if user != "root" && !h.spec.DockerGroup {
		return nil, fmt.Errorf("dialling %s: %w", path, os.ErrPermission)
	}
	return h.dialEngine("ssh")
}

// dialEngine opens a connection to the engine on behalf of a process.
func (h *Host) dialEngine(origin string) (*memnet.Conn, error) {
	c, s := memnet.Pipe(origin, engineSocket)
	s.Tag = origin
	if err := h.engine.ServeConn(s); err != nil {
		return nil, err
	}
	return c, nil
}

// HTTP is a client for the node's API on the host's loopback.
func (h *Host) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		return h.dialTCP(ctx, "lab", n)
	}}}
}

// APIBase is the address of the node's API for HTTP.
func (h *Host) APIBase() string { return fmt.Sprintf("http://127.0.0.1:%d", h.spec.APIPort) }

// beforeRequest is the engine's hook before a request; false drops it because
// its sender has just been killed.
func (h *Host) beforeRequest(origin string, r *http.Request) bool {
	l := h.lab
	l.mu.Lock()
	l.requests = append(l.requests, Request{Host: h.spec.ID, Origin: origin, Method: r.Method, Path: r.URL.Path, At: time.Now()})
	if n := len(l.requests) - requestLog; n > requestLog/4 { // in big cuts: each moves all that is kept
		l.requests = slices.Delete(l.requests, 0, n)
	}
	hook := l.hooks.engineRequest
	l.mu.Unlock()
	if hook != nil {
		hook(h.spec.ID, r.Method, r.URL.Path)
	}
	return h.alive(origin) && !h.engine.Down()
}

func (h *Host) afterRequest(_ string, r *http.Request) {
	if hook := h.lab.hook().engineResponse; hook != nil {
		hook(h.spec.ID, r.Method, r.URL.Path)
	}
}

// alive says whether the process behind an origin still lives.
func (h *Host) alive(origin string) bool {
	_, pid, ok := strings.Cut(origin, ":")
	if !ok {
		return true
	}
	n, err := strconv.Atoi(pid)
	if err != nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.procs[n] != nil
}

func (h *Host) refuse(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = append(h.refused, what)
}

func (h *Host) refusedCommands() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.refused)
}
