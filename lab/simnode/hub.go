package simnode

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Envelope is one received message.
type Envelope struct {
	From string
	Msg  []byte
}

// Transport carries messages between nodes. Delivery is best effort: a node
// repairs what is lost. Messages are not changed after Send.
type Transport interface {
	// Send hands a message over without waiting for the peer.
	Send(ctx context.Context, to string, msg []byte) error
	// Receive is the stream of incoming messages; always the same channel.
	Receive() <-chan Envelope
	// Peers lists the ids of all peers that could be reached, sorted.
	Peers() []string
}

// Hub is the in-memory network of a lab.
type Hub struct {
	mu    sync.Mutex
	ports map[string]*port
	ids   []string // of ports, sorted
	links map[string]*link
	rng   *rand.Rand
}

// link holds what is wrong with one node's line.
type link struct {
	cut   bool
	delay time.Duration
	drop  float64
}

// port is one node's end of the hub.
type port struct {
	hub *Hub
	id  string
	in  chan Envelope
}

// inboxSize bounds what a node that does not read keeps waiting.
const inboxSize = 4096

// NewHub makes an empty network; seed decides which messages Drop loses.
func NewHub(seed int64) *Hub {
	return &Hub{ports: map[string]*port{}, links: map[string]*link{}, rng: rand.New(rand.NewPCG(uint64(seed), 1))}
}

// Join plugs a node in and returns its end. A second Join of the same id
// replaces the first: that is a restart.
func (h *Hub) Join(id string) Transport {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &port{hub: h, id: id, in: make(chan Envelope, inboxSize)}
	h.ports[id] = p
	h.ids = slices.Sorted(maps.Keys(h.ports))
	return p
}

// Leave unplugs a node.
func (h *Hub) Leave(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ports, id)
	h.ids = slices.Sorted(maps.Keys(h.ports))
}

// Cut loses all messages from and to a node until Heal.
func (h *Hub) Cut(id string) { h.change(id, func(l *link) { l.cut = true }) }

// Heal repairs a node's line: no cut, no delay, no loss.
func (h *Hub) Heal(id string) { h.change(id, func(l *link) { *l = link{} }) }

// Delay holds each message from or to a node back for d.
func (h *Hub) Delay(id string, d time.Duration) { h.change(id, func(l *link) { l.delay = d }) }

// Drop loses the given share (0 to 1) of the messages from and to a node.
func (h *Hub) Drop(id string, share float64) { h.change(id, func(l *link) { l.drop = share }) }

func (h *Hub) change(id string, fn func(*link)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[id]
	if l == nil {
		l = &link{}
		h.links[id] = l
	}
	fn(l)
}

// route decides what happens to one message.
func (h *Hub) route(from, to string) (dst *port, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	dst = h.ports[to]
	for _, id := range []string{from, to} {
		l := h.links[id]
		if l == nil {
			continue
		}
		if l.cut || (l.drop > 0 && h.rng.Float64() < l.drop) {
			return nil, 0
		}
		delay += l.delay
	}
	return dst, delay
}

func (p *port) Send(_ context.Context, to string, msg []byte) error {
	dst, delay := p.hub.route(p.id, to)
	if dst == nil {
		return nil
	}
	env := Envelope{From: p.id, Msg: msg}
	if delay > 0 {
		time.AfterFunc(delay, func() { dst.put(env) })
		return nil
	}
	dst.put(env)
	return nil
}

// put never waits: a full inbox loses the message, as a full socket would.
func (p *port) put(env Envelope) {
	select {
	case p.in <- env:
	default:
	}
}

func (p *port) Receive() <-chan Envelope { return p.in }

func (p *port) Peers() []string {
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	ids := make([]string, 0, len(p.hub.ids))
	for _, id := range p.hub.ids {
		if id != p.id {
			ids = append(ids, id)
		}
	}
	return ids
}
