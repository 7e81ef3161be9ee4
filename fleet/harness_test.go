package fleet

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/sshd"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// testSigner makes the same ed25519 key for the same seed.
func testSigner(seed int) ssh.Signer {
	s, err := ssh.NewSignerFromKey(testKey(seed))
	if err != nil {
		panic(err)
	}
	return s
}

func testKey(seed int) ed25519.PrivateKey {
	raw := bytes.Repeat([]byte{byte(seed), byte(seed >> 8)}, ed25519.SeedSize/2)
	return ed25519.NewKeyFromSeed(raw)
}

const (
	userSeed  = 7
	wrongSeed = 8
)

// writeKey puts a private key file into dir, with a passphrase if one is given.
func writeKey(t testing.TB, dir, name string, key any, passphrase string) string {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// world is a network in memory: addresses with SSH servers behind them.
type world struct {
	t     testing.TB
	dir   string
	inv   *Inventory
	known []string // lines of known_hosts
	nodes map[string]*machine
	dials []string
	mu    sync.Mutex
	opts  Options
}

// machine is one host of the world.
type machine struct {
	w      *world
	id     string
	ln     *memnet.Listener
	srv    *sshd.Server
	node   *memnet.Listener // 127.0.0.1:8001 on the host
	engine *memnet.Listener // the engine's socket
	mu     sync.Mutex
	ran    []host.Command
	files  map[string]string // agents installed: hash -> content
	exec   func(ctx context.Context, cmd host.Command, stdin io.Reader, stdout, stderr io.Writer) int
	socket error // what opening the engine's socket gives
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, dir: t.TempDir(), nodes: map[string]*machine{}}
	key := writeKey(t, w.dir, "id", testKey(userSeed), "")
	w.inv = &Inventory{Name: "test", Block: time.Second, Path: "hosts.toml", SSH: SSH{
		KnownHosts: []string{filepath.Join(w.dir, "known_hosts")}, IdentitiesOnly: true,
		ConnectTimeout: DefaultConnectTimeout, Keepalive: DefaultKeepalive, Fanout: DefaultFanout, Starts: DefaultStarts,
	}}
	w.inv.hopDefaults = Host{User: "root", Port: 22, Key: key, Sudo: true, APIPort: DefaultAPIPort, EngineSocket: DefaultEngineSocket}
	// Never the own executable: a test program that is started as an agent runs all tests again.
	w.opts = Options{AgentBinary: filepath.Join(w.dir, "no-agent"), Dial: w.dial, Getenv: func(name string) string {
		if name == "HOME" {
			return w.dir
		}
		return ""
	}}
	return w
}

func (w *world) dial(ctx context.Context, _, address string) (net.Conn, error) {
	w.mu.Lock()
	m := w.nodes[address]
	w.dials = append(w.dials, address)
	w.mu.Unlock()
	if m == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return m.ln.Dial(ctx, "operator:1")
}

// add puts a host into the world, the inventory and known_hosts. The host key
// has the seed 100 + the host's place.
func (w *world) add(change func(*Host, *sshd.Config)) *machine {
	n := len(w.inv.Hosts) + 1
	h := w.inv.hopDefaults
	h.ID, h.Address, h.Role = fmt.Sprintf("%03d", n), fmt.Sprintf("h%d.example.org", n), RoleGenesis
	h.Container = "qnet-genesis-" + h.ID
	m := &machine{w: w, id: h.ID, node: memnet.Listen("127.0.0.1:8001"), engine: memnet.Listen("docker.sock"), files: map[string]string{}}
	cfg := sshd.Config{
		HostKey: testSigner(100 + n), Users: map[string][]ssh.PublicKey{"root": {testSigner(userSeed).PublicKey()}, "ops": {testSigner(userSeed).PublicKey()}},
		Exec: m.run, DialTCP: m.dialTCP, DialUnix: m.dialUnix,
	}
	if change != nil {
		change(&h, &cfg)
	}
	target := net.JoinHostPort(h.Address, itoa(h.Port))
	m.ln, m.srv = memnet.Listen(target), sshd.New(cfg)
	w.inv.Hosts = append(w.inv.Hosts, h)
	w.nodes[target] = m
	w.known = append(w.known, knownhosts.Line([]string{target}, cfg.HostKey.PublicKey()))
	go m.srv.Serve(m.ln)
	w.t.Cleanup(func() { m.srv.Close(); m.node.Close(); m.engine.Close() })
	return m
}

func (m *machine) dialTCP(ctx context.Context, _ string, port int) (net.Conn, error) {
	if port == 8001 {
		return m.node.Dial(ctx, "sshd")
	}
	return nil, syscall.ECONNREFUSED
}

func (m *machine) dialUnix(ctx context.Context, _, path string) (net.Conn, error) {
	if path != DefaultEngineSocket {
		return nil, syscall.ENOENT
	}
	if m.socket != nil {
		return nil, m.socket
	}
	return m.engine.Dial(ctx, "sshd")
}

// run refuses what is no command of the fixed list.
func (m *machine) run(ctx context.Context, _, line string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd, err := host.ParseCommand(line)
	if err != nil {
		m.w.t.Errorf("host %s was asked to run something else: %v", m.id, err)
		return 127
	}
	m.mu.Lock()
	m.ran = append(m.ran, cmd)
	m.mu.Unlock()
	if m.exec == nil {
		return 127
	}
	return m.exec(ctx, cmd, stdin, stdout, stderr)
}

func (m *machine) kinds() []host.CommandKind {
	m.mu.Lock()
	defer m.mu.Unlock()
	var kinds []host.CommandKind
	for _, c := range m.ran {
		kinds = append(kinds, c.Kind)
	}
	return kinds
}

// serveHTTP answers on a listener of the machine.
func serveHTTP(t testing.TB, l net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
}

// serveNode answers /healthz as the node does.
func (m *machine) serveNode() {
	serveHTTP(m.w.t, m.node, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(rw, "ok h=4711 build=1111111")
	}))
}

// addBastion adds a jump host to every address of the world.
func (w *world) addBastion() *machine {
	return w.add(func(_ *Host, cfg *sshd.Config) {
		cfg.DialHop = func(ctx context.Context, _, address string) (net.Conn, error) {
			w.mu.Lock()
			m := w.nodes[address]
			w.mu.Unlock()
			if m == nil {
				return nil, syscall.EHOSTUNREACH
			}
			return m.ln.Dial(ctx, "bastion:1")
		}
	})
}

// open writes known_hosts and opens the fleet.
func (w *world) open(ids ...string) *Fleet {
	w.t.Helper()
	w.writeKnown()
	f, err := Open(context.Background(), w.inv, ids, w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { f.Close() })
	return f
}

func (w *world) writeKnown() {
	w.t.Helper()
	if err := os.WriteFile(w.inv.SSH.KnownHosts[0], []byte(strings.Join(w.known, "\n")+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) conn(f *Fleet, id string) *Conn {
	w.t.Helper()
	c, err := f.Conn(context.Background(), id)
	if err != nil {
		w.t.Fatalf("Conn(%s): %v", id, err)
	}
	return c
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// prompter answers from lists.
type prompter struct {
	mu          sync.Mutex
	passphrases []string
	answers     []bool
	asked       []string
	delay       time.Duration
}

func (p *prompter) Passphrase(ctx context.Context, file string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, filepath.Base(file))
	if err := pause(ctx, p.delay); err != nil {
		return nil, err
	}
	if len(p.passphrases) == 0 {
		return nil, io.EOF
	}
	s := p.passphrases[0]
	p.passphrases = p.passphrases[1:]
	return []byte(s), nil
}

func (p *prompter) Confirm(_ context.Context, question string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, question)
	if len(p.answers) == 0 {
		return false, nil
	}
	a := p.answers[0]
	p.answers = slices.Delete(p.answers, 0, 1)
	return a, nil
}
