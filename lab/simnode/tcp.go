package simnode

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// TCPConfig is the transport between real hosts. Each node dials every peer
// and only sends on the connections it dialled, so that a peer's address may
// change by NAT without harm.
type TCPConfig struct {
	ID    string
	Peers map[string]string // peer id -> host:port
	// Listener accepts the peers' connections; the transport closes it.
	Listener net.Listener
	// Dial defaults to a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Retry is the longest wait between two tries to reach a peer (default 1s).
	Retry time.Duration
}

// TCP is a Transport of length-prefixed JSON frames over TCP.
type TCP struct {
	cfg    TCPConfig
	in     chan Envelope
	out    map[string]chan []byte
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

// maxFrame bounds one message; a batch of blocks is the largest.
const maxFrame = 8 << 20

// greeting is the first frame on a connection: who dialled.
type greeting struct {
	ID string `json:"id"`
}

// ParsePeers reads the form of [EnvPeers].
func ParsePeers(list string) (map[string]string, error) {
	peers := map[string]string{}
	for entry := range strings.SplitSeq(list, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		id, addr, ok := strings.Cut(entry, "@")
		if _, _, err := net.SplitHostPort(addr); !ok || id == "" || err != nil {
			return nil, fmt.Errorf("peer %q: want id@host:port", entry)
		}
		peers[id] = addr
	}
	return peers, nil
}

// NewTCP starts the transport; Close stops it.
func NewTCP(cfg TCPConfig) *TCP {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	if cfg.Retry <= 0 {
		cfg.Retry = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &TCP{cfg: cfg, in: make(chan Envelope, inboxSize), out: map[string]chan []byte{}, cancel: cancel, conns: map[net.Conn]bool{}}
	for id, addr := range cfg.Peers {
		if id == cfg.ID {
			continue
		}
		queue := make(chan []byte, 1024)
		t.out[id] = queue
		t.wg.Go(func() { t.send(ctx, addr, queue) })
	}
	t.wg.Go(t.accept)
	return t
}

// Close ends all connections and waits for the transport's goroutines.
func (t *TCP) Close() error {
	t.cancel()
	err := t.cfg.Listener.Close()
	t.mu.Lock()
	t.closed = true
	for c := range t.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
	return err
}

// Send queues a message; a full queue or an unknown peer is an error.
func (t *TCP) Send(_ context.Context, to string, msg []byte) error {
	queue, ok := t.out[to]
	if !ok {
		return fmt.Errorf("sending to %s: unknown peer", to)
	}
	select {
	case queue <- msg:
		return nil
	default:
		return errors.New("sending to " + to + ": queue full")
	}
}

// Receive is the stream of incoming messages.
func (t *TCP) Receive() <-chan Envelope { return t.in }

// Peers lists the configured peers, reachable or not.
func (t *TCP) Peers() []string {
	ids := make([]string, 0, len(t.out))
	for id := range t.out {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// track registers a connection for Close; false when already closed.
func (t *TCP) track(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return false
	}
	t.conns[c] = true
	return true
}

func (t *TCP) untrack(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

func (t *TCP) accept() {
	for {
		c, err := t.cfg.Listener.Accept()
		if err != nil {
			return
		}
		if t.track(c) {
			t.wg.Go(func() { defer t.untrack(c); t.read(c) })
		}
	}
}

func (t *TCP) read(c net.Conn) {
	r := bufio.NewReader(c)
	first, err := readFrame(r)
	var hello greeting
	if err != nil || json.Unmarshal(first, &hello) != nil || t.out[hello.ID] == nil {
		return
	}
	for {
		msg, err := readFrame(r)
		if err != nil {
			return
		}
		select {
		case t.in <- Envelope{From: hello.ID, Msg: msg}:
		default: // as a full socket buffer: lost, repaired by sync
		}
	}
}

// send keeps one outgoing connection alive and writes the queue to it.
func (t *TCP) send(ctx context.Context, addr string, queue <-chan []byte) {
	wait := t.cfg.Retry / 16
	for ctx.Err() == nil {
		c, err := t.cfg.Dial(ctx, "tcp", addr)
		if err == nil && t.track(c) {
			wait = t.cfg.Retry / 16
			t.write(ctx, c, queue)
			t.untrack(c)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(wait*2, t.cfg.Retry)
	}
}

func (t *TCP) write(ctx context.Context, c net.Conn, queue <-chan []byte) {
	hello, _ := json.Marshal(greeting{ID: t.cfg.ID})
	if writeFrame(c, hello) != nil {
		return
	}
	// The peer never writes on this connection: a read that returns means it
	// has gone, which a node with nothing to send would not notice.
	gone := make(chan struct{})
	t.wg.Go(func() { defer close(gone); _, _ = c.Read(make([]byte, 1)) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case msg := <-queue:
			_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
			if writeFrame(c, msg) != nil {
				return
			}
		}
	}
}

func writeFrame(w io.Writer, msg []byte) error {
	buf := make([]byte, 4, 4+len(msg))
	binary.BigEndian.PutUint32(buf, uint32(len(msg)))
	_, err := w.Write(append(buf, msg...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, fmt.Errorf("reading frame: %d bytes is too large", n)
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}
