package simnode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/node"
)

// labNet is a lab of nodes on one hub, made inside a synctest bubble.
type labNet struct {
	t     *testing.T
	hub   *Hub
	block time.Duration
	nodes map[string]*labNode
	ids   []string
	env   []string
	bad   []Violation
}

// labNode is one node that can be stopped and started again.
type labNode struct {
	lab    *labNet
	id     string
	env    []string
	dir    string
	faults *Faults
	out    *lines
	mu     sync.Mutex
	ports  map[string]*pipeListener
	stop   chan struct{}
	kill   context.CancelFunc
	done   chan struct{}
	code   int
}

// lines is a log that can be searched while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.Write(b) }

func (l *lines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.String() }

func (l *lines) count(sub string) int { return strings.Count(l.String(), sub) }

const superSeed = "seed of the sixth node"

// bubble runs a test inside a synctest bubble with a lab of genesis nodes
// 1..genesis and super nodes; everything is stopped at its end.
func bubble(t *testing.T, genesis, supers int, env []string, fn func(t *testing.T, l *labNet)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &labNet{t: t, hub: NewHub(1), block: 100 * time.Millisecond, nodes: map[string]*labNode{}}
		time.Sleep(time.Hour)
		l.env = append([]string{EnvBlock + "=100ms", fmt.Sprintf("%s=%d", EnvGenesis, time.Now().UnixNano()), "QNET_BUILD_ID=1111111"}, env...)
		var superIDs []string
		for i := range supers {
			superIDs = append(superIDs, SuperID(fmt.Sprintf("%s %d", superSeed, i)))
		}
		for i := 1; i <= genesis; i++ {
			l.add(dir, GenesisID(i), fmt.Sprintf("QNET_BOOTSTRAP_ID=%03d", i))
		}
		for i, id := range superIDs {
			l.add(dir, id, fmt.Sprintf("QNET_WALLET_SEED=%s %d", superSeed, i))
		}
		l.env = append(l.env, EnvSupers+"="+strings.Join(superIDs, ","))
		defer func() {
			for _, n := range l.nodes {
				n.halt()
			}
		}()
		fn(t, l)
	})
}

func (l *labNet) add(dir, id, identity string) {
	l.ids = append(l.ids, id)
	l.nodes[id] = &labNode{lab: l, id: id, env: []string{identity}, dir: filepath.Join(dir, id), faults: &Faults{}, out: &lines{}, ports: map[string]*pipeListener{}}
}

func (l *labNet) start(ids ...string) {
	for _, id := range ids {
		l.nodes[id].start()
	}
}

// blocks lets the given number of block times pass.
func (l *labNet) blocks(n int) { time.Sleep(time.Duration(n) * l.block); synctest.Wait() }

func (n *labNode) start(env ...string) {
	if n.done != nil {
		n.lab.t.Fatalf("%s is running", n.id)
	}
	ctx, kill := context.WithCancel(context.Background())
	n.kill, n.stop, n.done = kill, make(chan struct{}), make(chan struct{})
	cfg := Config{Env: append(append(append([]string{}, n.lab.env...), n.env...), env...), DataDir: n.dir, Stdout: n.out, Stderr: n.out,
		Listen: n.listen, Net: n.lab.hub.Join(n.id), Stop: n.stop, Faults: n.faults, Seed: int64(len(n.id)),
		OnViolation: func(v Violation) { n.lab.bad = append(n.lab.bad, v) }}
	done := n.done
	go func() { n.code = Run(ctx, cfg); n.lab.hub.Leave(n.id); close(done) }()
}

// halt ends the node like SIGKILL, if it still runs.
func (n *labNode) halt() {
	if n.done == nil {
		return
	}
	n.kill()
	<-n.done
	n.done = nil
}

// term ends the node like SIGTERM and returns its exit code.
func (n *labNode) term() int {
	close(n.stop)
	<-n.done
	n.kill()
	n.done = nil
	return n.code
}

// exited waits for the node to end by itself.
func (n *labNode) exited(blocks int) int {
	n.lab.t.Helper()
	select {
	case <-n.done:
	case <-time.After(time.Duration(blocks) * n.lab.block):
		n.lab.t.Fatalf("%s still runs after %d blocks; log:\n%s", n.id, blocks, n.out)
	}
	n.kill()
	n.done = nil
	return n.code
}

// pipeListener is a listener for in-memory connections that seem to come from
// a given address.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

type pipeConn struct {
	net.Conn
	from net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.from }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (n *labNode) listen(_, addr string) (net.Listener, error) {
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	_, port, _ := net.SplitHostPort(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[port] = l
	return l, nil
}

// do sends one request from an address to one of the node's ports.
func (n *labNode) do(from, port string, req *http.Request) (int, string, http.Header, error) {
	ctx, cancel := context.WithTimeout(req.Context(), 10*time.Second)
	defer cancel()
	resp, err := n.response(from, port, req.WithContext(ctx))
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.Header, err
}

// response is one exchange on a connection of its own.
func (n *labNode) response(from, port string, req *http.Request) (*http.Response, error) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		n.mu.Lock()
		l := n.ports[port]
		n.mu.Unlock()
		if l == nil {
			return nil, errors.New("connection refused")
		}
		client, server := net.Pipe()
		select {
		case l.conns <- pipeConn{server, &net.TCPAddr{IP: net.ParseIP(from), Port: 40000}}:
			return client, nil
		case <-l.done:
			return nil, errors.New("connection refused")
		}
	}
	return (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(req)
}

func (n *labNode) get(path string) (int, string) {
	n.lab.t.Helper()
	req, _ := http.NewRequest(http.MethodGet, "http://node"+path, nil)
	code, body, _, err := n.do("127.0.0.1", "8001", req)
	if err != nil {
		n.lab.t.Fatalf("%s: GET %s: %v", n.id, path, err)
	}
	return code, body
}

func (n *labNode) json(path string) map[string]any {
	n.lab.t.Helper()
	_, body := n.get(path)
	var v map[string]any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		n.lab.t.Fatalf("%s: GET %s: %v in %q", n.id, path, err, body)
	}
	return v
}

func (n *labNode) num(path, field string) uint64 {
	n.lab.t.Helper()
	v, ok := n.json(path)[field].(float64)
	if !ok {
		n.lab.t.Fatalf("%s: GET %s: no number %s", n.id, path, field)
	}
	return uint64(v)
}

const pathPosition = "/api/v1/debug/consensus-position"

func (n *labNode) heightNow() uint64 { n.lab.t.Helper(); return n.num(pathPosition, "height") }

func (n *labNode) sealedNow() uint64 {
	n.lab.t.Helper()
	return n.num(pathPosition, "last_sealed_mb_index")
}

// proofBody is the served proof in the shape of facts 1.11.
type proofBody struct {
	Index, Epoch uint64
	Checkpoint   node.Checkpoint
	QC           struct{ Signers, Sigs []string }
	Committee    []string
	Pubkeys      map[string]string `json:"committee_pubkeys"`
	EligibleRaw  string            `json:"eligible_raw"`
	Banned       []string
	Error        string
}

func (n *labNode) proofOf(i uint64) proofBody {
	n.lab.t.Helper()
	_, body := n.get(fmt.Sprintf("/api/v1/macroblock/%d/proof", i))
	var p proofBody
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		n.lab.t.Fatalf("%s: proof of %d: %v in %q", n.id, i, err, body)
	}
	return p
}

type mbBody struct {
	Index, Height, Timestamp uint64
	MicroBlocks              []node.Hash `json:"micro_blocks"`
	StateRoot                node.Hash   `json:"state_root"`
	PreviousHash             node.Hash   `json:"previous_hash"`
	Error                    string
}

func (n *labNode) mbOf(i uint64) mbBody {
	n.lab.t.Helper()
	_, body := n.get(fmt.Sprintf("/api/v1/macroblock/%d", i))
	var v mbBody
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		n.lab.t.Fatalf("%s: macroblock %d: %v in %q", n.id, i, err, body)
	}
	return v
}
