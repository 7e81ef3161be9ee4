package lab

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/lab/ledger"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/simnode"
)

const (
	// MaxNodes bounds a lab.
	MaxNodes = 1000
	// FleetName is the name of the lab's fleet in hosts.toml.
	FleetName = "lab"
	// genesisNodes is how many genesis identities there are (facts 5.1).
	genesisNodes = 5
	// requestLog bounds the log of requests.
	requestLog = 200_000
	// rebootTime is how long a rebooting host is away.
	rebootTime = 2 * time.Second
)

// Config says what New builds.
type Config struct {
	// Nodes is the number of hosts, 1 to MaxNodes.
	Nodes int
	// SuperFrom is the number of the first host that is a super node; 0, and
	// anything above, means 6: there are five genesis identities.
	SuperFrom int
	// Block is the block time; 0 means one second. All the node's times scale.
	Block time.Duration
	// Dir holds the hosts' file systems and, after WriteFiles, the inventory.
	Dir string
	// Seed of everything that is random: keys, ids, the nodes' choices.
	Seed int64
	// History is the number of blocks of pre-made history.
	History uint64
	// Image is the tag the nodes run at first, default v1.
	Image string
	// Version is what the agents call themselves, default "lab".
	Version string
	// Mirror, when above 0, makes hosts above this number run no node of their
	// own: their API shows the node of one of the first hosts. It is for
	// measuring many hosts, where a thousand nodes would measure the lab.
	Mirror int
	// Ledger, when it is set, gives the node of host i (from 1): one of a
	// stalled chain with a history of any length, which several labs can share.
	// Nil for a host keeps its simulated node. Faults of such a host's node are
	// those of ledger.Kinds.
	Ledger func(i int) *ledger.Node
	// Host changes host i (from 1) before it is built.
	Host func(i int, h *HostSpec)
	// Progress is told what happens, in words for a person.
	Progress func(string)
}

// HostSpec describes one host; Config.Host may change it.
type HostSpec struct {
	ID, Role, Address string
	SSHPort           int
	Container         string
	User              string // login name; not root: sudo is needed for the engine
	NoSudo            bool   // sudo asks for a password
	DockerGroup       bool   // the user may open the engine's socket
	ForbidForwarding  bool   // sshd: AllowTcpForwarding no
	Jump              string // id of the host that is the only way to this one's sshd
	APIVersion        string // of the engine, default 1.41
	APIPort           int    // published on the host, default 8001
	DataPath          string // data directory on the host
	Uname             string // answer of uname -sm, default this machine's
	Env               []string
	// Create changes the request that creates the node's container.
	Create func(body map[string]any)
}

// Request is one request that a host saw.
type Request struct {
	Host   string
	Origin string // ssh, agent:PID, guardian:PID
	Method string
	Path   string
	At     time.Time
}

// Lab is a running or stopped lab.
type Lab struct {
	cfg      Config
	registry *engine.Registry
	hub      *simnode.Hub
	signer   *simnode.Signer
	chain    []string // the chain's parameters, defaults of every image
	hosts    []*Host
	client   ssh.Signer
	keyPEM   []byte
	began    time.Time

	mu         sync.Mutex
	started    bool
	closed     bool
	listening  bool
	pid        int
	identities map[string]string // identity -> host that runs it
	joined     map[string]int
	violations []string
	requests   []Request
	hooks      hooks
	faults     map[string]map[string]string // host -> kind -> argument
	formats    map[string]format            // parsed templates of docker inspect
	control    *controlServer
	done       chan struct{}
	wg         sync.WaitGroup
	ctx        context.Context
	end        context.CancelFunc
}

// hooks are a test's eyes; all may be nil.
type hooks struct {
	engineRequest  func(host, method, path string)
	engineResponse func(host, method, path string)
	agentRequest   func(host, method string)
	agentOutput    func(host string, line []byte)
}

// New builds a lab. Nothing runs until Start.
func New(cfg Config) (*Lab, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Lab{cfg: cfg, registry: engine.NewRegistry(), hub: simnode.NewHub(cfg.Seed), signer: simnode.NewSigner(), identities: map[string]string{},
		joined: map[string]int{}, faults: map[string]map[string]string{}, formats: map[string]format{}, done: make(chan struct{}), pid: 4000, began: time.Now()}
	l.ctx, l.end = context.WithCancel(context.Background())
	if l.client, l.keyPEM, err = clientKey(cfg.Seed); err != nil {
		return nil, err
	}
	specs := make([]HostSpec, cfg.Nodes)
	for i := range specs {
		specs[i] = cfg.hostSpec(i + 1)
	}
	if err := l.pushImages(specs); err != nil {
		return nil, err
	}
	for i := range specs {
		h, err := l.newHost(i+1, specs[i])
		if err != nil {
			l.Close()
			return nil, err
		}
		l.hosts = append(l.hosts, h)
	}
	return l, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Nodes < 1 || c.Nodes > MaxNodes {
		return c, fmt.Errorf("nodes must be 1 to %d, not %d", MaxNodes, c.Nodes)
	}
	if c.Block < 0 {
		return c, fmt.Errorf("block time must be positive, not %s", c.Block)
	}
	if c.Dir == "" {
		return c, errors.New("no folder given for the lab")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("finding folder %s: %w", c.Dir, err)
	}
	c.Dir = dir
	if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o700); err != nil {
		return c, fmt.Errorf("making the folder of the lab: %w", err)
	}
	if c.SuperFrom < 1 || c.SuperFrom > genesisNodes+1 {
		c.SuperFrom = genesisNodes + 1
	}
	if c.Block == 0 {
		c.Block = time.Second
	}
	if c.Image == "" {
		c.Image = "v1"
	}
	if c.Version == "" {
		c.Version = "lab"
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c, nil
}

// HostID is the inventory id of host i (from 1).
func HostID(i int) string { return fmt.Sprintf("%03d", i) }

// hostSpec lays out host i: names, ports and paths as facts 5.2 shows them.
func (c Config) hostSpec(i int) HostSpec {
	h := HostSpec{ID: HostID(i), Role: "genesis", Address: fmt.Sprintf("192.0.2.%d", 10+(i-1)%200), SSHPort: 2222,
		Container: "qnet-genesis-" + HostID(i), User: "root", APIPort: 8001, DataPath: "/root/qnet_data", Uname: uname()}
	if i >= c.SuperFrom {
		h.Role, h.SSHPort, h.Container, h.DataPath = "super", 22, "qnet-super-node", "/opt/qnet/data"
	}
	if round := (i - 1) / 200; round > 0 { // addresses repeat in a large lab, ports do not
		h.SSHPort = 2200 + round
	}
	if c.Host != nil {
		c.Host(i, &h)
	}
	return h
}

// uname is what a host of this program's own platform prints: the agent that is
// installed is this very program.
func uname() string {
	name := map[string]string{"linux": "Linux", "darwin": "Darwin", "freebsd": "FreeBSD"}[runtime.GOOS]
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if runtime.GOOS == "darwin" && runtime.GOARCH == "arm64" {
		arch = "arm64"
	}
	if name == "" || arch == "" {
		return runtime.GOOS + " " + runtime.GOARCH
	}
	return name + " " + arch
}

// Start creates and starts the node's container on every host.
func (l *Lab) Start() error {
	l.mu.Lock()
	if l.started || l.closed {
		l.mu.Unlock()
		return errors.New("the lab was started already")
	}
	l.started = true
	l.mu.Unlock()
	for _, h := range l.hosts {
		if err := h.createNode(l.cfg.Image); err != nil {
			return fmt.Errorf("host %s: %w", h.spec.ID, err)
		}
	}
	for _, h := range l.hosts {
		if err := h.engine.StartContainer(h.spec.Container); err != nil {
			return fmt.Errorf("host %s: %w", h.spec.ID, err)
		}
	}
	l.cfg.Progress(fmt.Sprintf("%d nodes started", len(l.hosts)))
	return nil
}

// Close ends everything that runs. The files under Dir stay.
func (l *Lab) Close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	control := l.control
	close(l.done)
	l.mu.Unlock()
	if control != nil {
		control.close()
	}
	for _, h := range l.hosts {
		h.killAgents("")
		h.sshd.DropAll()
	}
	l.end()
	var wg sync.WaitGroup
	for _, h := range l.hosts {
		wg.Go(func() {
			h.sshd.Close()
			h.engine.Close()
		})
	}
	wg.Wait()
	l.wg.Wait()
}

// Done is closed when the lab is closed, also when another process asked for it.
func (l *Lab) Done() <-chan struct{} { return l.done }

// spawn runs f as a goroutine that Close waits for.
func (l *Lab) spawn(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.wg.Go(f)
	}
}

// Dial reaches the SSH server of a host by its address in hosts.toml; it fits
// fleet.Options.Dial.
func (l *Lab) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dialling %s: %w", addr, err)
	}
	for _, h := range l.hosts {
		if h.addr() != addr {
			continue
		}
		if h.spec.Jump != "" {
			break
		}
		return h.dialSSH("198.51.100.1:50000")
	}
	return nil, &net.OpError{Op: "dial", Net: network, Addr: memnet.Addr{Name: addr}, Err: syscall.EHOSTUNREACH}
}

// Listen gives every host's SSH server a loopback port. Addresses in WriteFiles
// are those from then on. What is behind a jump host can then be reached without
// it too: all of this machine is one host to the kernel.
func (l *Lab) Listen() error {
	for _, h := range l.hosts {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("listening for host %s: %w", h.spec.ID, err)
		}
		h.setAddr("127.0.0.1", ln.Addr().(*net.TCPAddr).Port)
		l.spawn(func() { h.sshd.Serve(ln) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listening = true
	return nil
}

// Host returns a host by id, or an error that lists the known ones.
func (l *Lab) Host(id string) (*Host, error) {
	var known []string
	for _, h := range l.hosts {
		if h.spec.ID == id {
			return h, nil
		}
		known = append(known, h.spec.ID)
	}
	if len(known) > 12 {
		known = append(known[:12], "…")
	}
	return nil, fmt.Errorf("unknown node %q: known are %s", id, strings.Join(known, ", "))
}

// Hosts returns all hosts in order.
func (l *Lab) Hosts() []*Host { return slices.Clone(l.hosts) }

// Registry is the image registry of all hosts.
func (l *Lab) Registry() *engine.Registry { return l.registry }

// Hub is the network between the nodes.
func (l *Lab) Hub() *simnode.Hub { return l.hub }

// Dir is the folder of the lab.
func (l *Lab) Dir() string { return l.cfg.Dir }

// Block is the block time of the lab.
func (l *Lab) Block() time.Duration { return l.cfg.Block }

// Violations lists what must never happen and did: two containers on one data
// directory or with one identity, on one host or on two, and broken rules that
// a node saw.
func (l *Lab) Violations() []string {
	l.mu.Lock()
	out := slices.Clone(l.violations)
	l.mu.Unlock()
	for _, h := range l.hosts {
		out = append(out, h.engine.Violations()...)
	}
	return out
}

func (l *Lab) violation(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violations = append(l.violations, text)
}

// Refusals lists what hosts were asked and do not know: commands, SSH requests
// and engine requests. A tool that is right leaves it empty.
func (l *Lab) Refusals() []string {
	var out []string
	for _, h := range l.hosts {
		for _, s := range slices.Concat(h.refusedCommands(), h.sshd.Refusals(), h.engine.Unknown()) {
			out = append(out, h.spec.ID+": "+s)
		}
	}
	return out
}

// Requests returns the log of engine requests, oldest first.
func (l *Lab) Requests() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// OnEngineRequest calls f before an engine handles a request. When f kills the
// process that sent it, the request has no effect: it died before sending.
func (l *Lab) OnEngineRequest(f func(host, method, path string)) {
	l.setHooks(func(h *hooks) { h.engineRequest = f })
}

// OnEngineResponse calls f after an engine has carried a request out and before
// the answer leaves: a process killed here never learns what it did.
func (l *Lab) OnEngineResponse(f func(host, method, path string)) {
	l.setHooks(func(h *hooks) { h.engineResponse = f })
}

// OnAgentRequest calls f for each request that reaches a host agent, before the
// agent sees it.
func (l *Lab) OnAgentRequest(f func(host, method string)) {
	l.setHooks(func(h *hooks) { h.agentRequest = f })
}

// OnAgentOutput calls f for each line an agent sends, before the line leaves.
func (l *Lab) OnAgentOutput(f func(host string, line []byte)) {
	l.setHooks(func(h *hooks) { h.agentOutput = f })
}

func (l *Lab) setHooks(f func(*hooks)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.hooks)
}

func (l *Lab) hook() hooks {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hooks
}

func (l *Lab) nextPID() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid++
	return l.pid
}

// enter notes that an identity runs on a host; two hosts at a time are a
// violation, as two signers of one validator.
func (l *Lab) enter(identity, host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.joined[identity]++
	if other, ok := l.identities[identity]; ok && other != host {
		l.violations = append(l.violations, fmt.Sprintf("%s runs on hosts %s and %s", identity, other, host))
	}
	l.identities[identity] = host
}

// leave is the end of a process with an identity.
func (l *Lab) leave(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.joined[identity]--; l.joined[identity] <= 0 {
		delete(l.joined, identity)
		delete(l.identities, identity)
		l.hub.Leave(identity)
	}
}

// seeded derives a key seed from the lab's seed and a name.
func seeded(seed int64, name string) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(seed))
	sum := sha256.Sum256(append(b[:], name...))
	return sum[:]
}

// edKey is the Ed25519 key of a name. A lab protects nothing: equal seeds give
// equal keys, so that a run can be repeated.
func edKey(seed int64, name string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(seeded(seed, name))
}
