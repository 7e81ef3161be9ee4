package ledger

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"

	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/node"
)

// Serve answers on a listener until stop is called, which closes it and leaves no goroutine behind.
func (n *Node) Serve(ln net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup // the server and its connections
	srv := &http.Server{Handler: n, ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				wg.Add(1)
			case http.StateClosed, http.StateHijacked:
				wg.Done()
			}
		}}
	wg.Go(func() { _ = srv.Serve(ln) })
	return func() {
		cancel()
		_ = srv.Close()
		wg.Wait()
	}
}

// Open serves the node in memory, also inside a testing/synctest bubble, and returns a client for it whose requests come
// from the node's own loopback: the rate limit does not count them. Close ends both.
func (n *Node) Open() (c *node.Client, close func()) {
	ln := memnet.Listen(n.cfg.ID)
	stop := n.Serve(ln)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.Dial(ctx, "127.0.0.1:40000") }}
	return &node.Client{Base: "http://node:8001", HTTP: &http.Client{Transport: transport}}, func() {
		transport.CloseIdleConnections()
		stop()
	}
}

// Listen serves the node on a port of this machine's loopback and returns the address of its API.
func (n *Node) Listen() (base string, close func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listening for %s: %w", n.cfg.ID, err)
	}
	return "http://" + ln.Addr().String(), n.Serve(ln), nil
}
