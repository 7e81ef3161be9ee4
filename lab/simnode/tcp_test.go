package simnode

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTCPTransport(t *testing.T) {
	la, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lb, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addrB := lb.Addr().String()
	a := NewTCP(TCPConfig{ID: "a", Peers: map[string]string{"a": "127.0.0.1:1", "b": addrB}, Listener: la, Retry: 50 * time.Millisecond})
	defer a.Close()
	peersOfB := map[string]string{"a": la.Addr().String()}
	b := NewTCP(TCPConfig{ID: "b", Peers: peersOfB, Listener: lb, Retry: 50 * time.Millisecond})
	if got := a.Peers(); len(got) != 1 || got[0] != "b" {
		t.Errorf("peers of a: %v", got)
	}
	receive := func(tr *TCP, want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			select {
			case env := <-tr.Receive():
				if env.From == "a" && string(env.Msg) == want {
					return
				}
			case <-deadline:
				t.Fatalf("%q did not arrive", want)
			}
		}
	}
	if err := a.Send(context.Background(), "b", []byte("one")); err != nil {
		t.Fatal(err)
	}
	receive(b, "one")
	if a.Send(context.Background(), "c", nil) == nil {
		t.Error("sending to an unknown peer is no error")
	}
	// The peer restarts: the sender finds it again by itself.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	lb, err = net.Listen("tcp", addrB)
	if err != nil {
		t.Fatal(err)
	}
	b = NewTCP(TCPConfig{ID: "b", Peers: peersOfB, Listener: lb, Retry: 50 * time.Millisecond})
	defer b.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_ = a.Send(context.Background(), "b", []byte("two"))
			}
		}
	}()
	receive(b, "two")
}

func TestTCPRefusesStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := NewTCP(TCPConfig{ID: "a", Peers: map[string]string{"b": "127.0.0.1:1"}, Listener: l})
	defer a.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = writeFrame(c, []byte(`{"id":"stranger"}`))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a stranger is not cut off")
	}
}

func TestParsePeers(t *testing.T) {
	got, err := ParsePeers("genesis_node_001@198.51.100.11:9876, super_node_3a985da7@198.51.100.16:9876,")
	if err != nil || len(got) != 2 || got["super_node_3a985da7"] != "198.51.100.16:9876" {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"x", "@198.51.100.1:1", "a@198.51.100.1"} {
		if _, err := ParsePeers(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestHubFaults(t *testing.T) {
	h := NewHub(1)
	a, b := h.Join("a"), h.Join("b")
	got := func() int {
		n := 0
		for {
			select {
			case <-b.Receive():
				n++
			default:
				return n
			}
		}
	}
	send := func(n int) {
		for range n {
			_ = a.Send(context.Background(), "b", []byte("x"))
		}
	}
	if send(3); got() != 3 {
		t.Error("messages are lost on a good line")
	}
	h.Cut("b")
	if send(3); got() != 0 {
		t.Error("messages pass a cut")
	}
	h.Heal("b")
	h.Drop("b", 0.5)
	send(400)
	if n := got(); n < 120 || n > 280 {
		t.Errorf("%d of 400 pass a line that loses half", n)
	}
	h.Heal("b")
	old := b
	b = h.Join("b") // a restart
	if send(1); got() != 1 || len(old.Receive()) != 0 {
		t.Error("a restarted node does not get its messages")
	}
	if p := b.Peers(); len(p) != 1 || p[0] != "a" {
		t.Errorf("peers %v", p)
	}
	send(inboxSize + 10) // never waits
}

// TestRealNodesOverTCP runs nodes with nothing injected: real sockets and real
// time, as in a container.
func TestRealNodesOverTCP(t *testing.T) {
	const n = 4
	var p2p, api [n]int
	var peers []string
	for i := range n {
		p2p[i], api[i] = freePort(t), freePort(t)
		peers = append(peers, fmt.Sprintf("%s@127.0.0.1:%d", GenesisID(i+1), p2p[i]))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outs := [n]*lines{}
	done := make(chan int, n)
	for i := range n {
		outs[i] = &lines{}
		cfg := Config{Stdout: outs[i], Stderr: outs[i], DataDir: t.TempDir(), Env: []string{EnvBlock + "=20ms", EnvHistory + "=360", EnvGenesisCount + "=4",
			fmt.Sprintf("%s=%d", EnvGenesis, time.Now().UnixNano()/int64(time.Hour)*int64(time.Hour)), EnvPeers + "=" + strings.Join(peers, ","),
			fmt.Sprintf("QNET_BOOTSTRAP_ID=%03d", i+1), "QNET_P2P_PORT=" + strconv.Itoa(p2p[i]), "QNET_API_PORT=" + strconv.Itoa(api[i])}}
		go func() { done <- Run(ctx, cfg) }()
	}
	deadline := time.Now().Add(30 * time.Second)
	for outs[0].count("[INFO][BFT2] checkpoint_final") < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("no certificates over TCP:\n%s", outs[0])
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	for range n {
		if code := <-done; code != exitKilled {
			t.Errorf("exit %d", code)
		}
	}
}

// freePort finds a port below those that the system gives to outgoing connections: one of them may be taken by anybody
// between the look and the use.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 15_000 + rand.IntN(15_000)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no free port")
	return 0
}
