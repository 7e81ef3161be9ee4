package simnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bind tries of the API port (facts 1.0).
const (
	bindTries   = 10
	secBindWait = 2
)

// errStopped: the node was stopped while it waited.
var errStopped = errors.New("stopped")

// api is the node's HTTP side.
type api struct {
	p       *proc
	servers []*http.Server
	wg      sync.WaitGroup // servers and connections
	done    chan struct{}
	limits  limiter
	signer  *Signer
}

// startAPI binds the API port, with the node's patience, and the metrics port
// if it can.
func (p *proc) startAPI(ctx context.Context) (*api, error) {
	a := &api{p: p, done: make(chan struct{}), limits: limiter{s: &p.s, buckets: map[string]*bucket{}}, signer: p.cfg.Signer}
	if a.signer == nil {
		a.signer = NewSigner()
	}
	l, err := p.bind(ctx)
	if err != nil {
		return nil, err
	}
	a.serve(l, a.routes())
	if ml, err := p.listen(p.s.apiPort + 100); err == nil {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /metrics", a.metrics)
		a.serve(ml, mux)
	}
	return a, nil
}

func (p *proc) listen(port int) (net.Listener, error) {
	listen := p.cfg.Listen
	if listen == nil {
		listen = net.Listen
	}
	return listen("tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(port)))
}

func (p *proc) bind(ctx context.Context) (net.Listener, error) {
	for try := 1; ; try++ {
		l, err := p.listen(p.s.apiPort)
		if err == nil {
			return l, nil
		}
		p.log.always("[WARN][RPC] bind_retry port=%d try=%d err=%v", p.s.apiPort, try, err)
		if try == bindTries {
			return nil, err
		}
		if !p.wait(ctx, p.s.scale(secBindWait)) {
			return nil, errStopped
		}
	}
}

func (a *api) serve(l net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ConnState: func(_ net.Conn, st http.ConnState) {
		switch st {
		case http.StateNew:
			a.wg.Add(1)
		case http.StateClosed, http.StateHijacked:
			a.wg.Done()
		}
	}}
	a.servers = append(a.servers, srv)
	a.wg.Go(func() { _ = srv.Serve(l) })
}

// close ends all connections and waits for their goroutines.
func (a *api) close() {
	close(a.done)
	for _, srv := range a.servers {
		_ = srv.Close()
	}
	a.wg.Wait()
}

// caller is who a request counts as.
type caller struct {
	ip       string
	internal bool // may use operator routes
	exempt   bool // from the rate limit
}

// caller applies the node's rules (facts 1.0): the peer address; only for
// loopback the last X-Forwarded-For entry; and nobody at all with an Origin.
func (a *api) caller(r *http.Request) caller { return callerOf(r, a.p.s.whitelist) }

func callerOf(r *http.Request, whitelist map[string]bool) caller {
	ip := remoteIP(r.RemoteAddr)
	if xff := r.Header.Get("X-Forwarded-For"); ip.IsLoopback() && xff != "" {
		parts := strings.Split(xff, ",")
		named, err := netip.ParseAddr(strings.TrimSpace(parts[len(parts)-1]))
		if err != nil || named.IsLoopback() {
			named = netip.IPv4Unspecified() // the host itself, by another name
		}
		ip = named
	}
	listed := whitelist[ip.String()]
	c := caller{ip: ip.String(), exempt: ip.IsLoopback() || listed}
	c.internal = (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || listed) && !ip.IsUnspecified()
	if r.Header.Get("Origin") != "" {
		c.internal = false
	}
	return c
}

// remoteIP is the address of a connection. One without an IP address comes
// through the in-memory engine and counts as its bridge gateway.
func remoteIP(addr string) netip.Addr {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return ap.Addr().Unmap()
	}
	return netip.AddrFrom4([4]byte{172, 17, 0, 1})
}

// keyed says whether a valid API key exempts this request.
func (a *api) keyed(r *http.Request) bool {
	path := r.URL.Path
	if path != "/rpc" && path != "/" && path != "/api/v1/blocks/headers" && !strings.HasPrefix(path, "/api/v1/archive") {
		return false
	}
	return slices.Contains(a.p.s.apiKeys, r.Header.Get("X-API-Key"))
}

// limiter counts requests by caller and bucket. Windows scale with the block
// time.
type limiter struct {
	s       *settings
	mu      sync.Mutex
	buckets map[string]*bucket
	reads   bucket // the node-wide budget of /api/v1/height
}

type bucket struct {
	start   time.Time
	count   int
	blocked time.Time
}

// Buckets: name, requests a minute, seconds blocked after that.
const (
	bucketRead      = "read_only"
	bucketBenchmark = "benchmark"
	secWindow       = 60
	readBudget      = 3000
)

// allow counts one request; when it is refused, it says for how many seconds.
func (l *limiter) allow(name, ip string) (retry int, ok bool) {
	limit, block := max(3*l.s.rateLimit, 300), 30.0
	if name == bucketBenchmark {
		limit, block = 5, 300
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name+" "+ip]
	if b == nil {
		b = &bucket{}
		l.buckets[name+" "+ip] = b
	}
	now := time.Now()
	if now.Before(b.blocked) {
		return l.seconds(b.blocked.Sub(now)), false
	}
	if now.Sub(b.start) >= l.s.scale(secWindow) || !b.blocked.IsZero() {
		*b = bucket{start: now}
	}
	if b.count++; b.count > limit {
		b.blocked = now.Add(l.s.scale(block))
		return l.seconds(b.blocked.Sub(now)), false
	}
	return 0, true
}

// spend takes one read of the node-wide budget.
func (l *limiter) spend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.reads.start) >= l.s.scale(secWindow) {
		l.reads = bucket{start: now}
	}
	l.reads.count++
	return l.reads.count <= readBudget
}

// seconds rounds up to seconds of the real chain.
func (l *limiter) seconds(d time.Duration) int { return int((d + l.s.block - 1) / l.s.block) }

// routes is the whole surface of facts section 1.
func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK") })
	get := func(path string, fn http.HandlerFunc) { mux.HandleFunc("GET "+path, a.limited(fn)) }
	get("/api/v1/node/health", a.nodeHealth)
	get("/api/v1/sync/status", a.syncStatus)
	get("/api/v1/height", a.height)
	get("/api/v1/debug/consensus-position", a.position)
	get("/api/v1/producer/status", a.producerStatus)
	get("/api/v1/peers", a.peers)
	get("/api/v1/blocks/stats", a.blocksStats)
	get("/api/v1/microblock/{h}", number("h", a.microblock))
	get("/api/v1/macroblock/{index}", number("index", a.macroblock))
	get("/api/v1/macroblock/{index}/proof", number("index", a.proof))
	get("/api/v1/snapshot/latest", a.snapshotLatest)
	mux.HandleFunc("GET /api/v1/snapshot/{h}", a.limitedShort(number("h", a.snapshot)))
	get("/api/v1/snapshot/{h}/manifest", number("h", a.snapshotManifest))
	get("/api/v1/snapshot/{h}/chunk/{i}", number("h", a.snapshotChunk))
	get("/api/v1/failovers", a.failovers)
	get("/api/v1/network/failovers", a.failovers)
	get("/api/v1/reputation/history", a.reputation)
	get("/api/v1/archive", a.archive)
	get("/api/v1/archive/segment/{epoch}", number("epoch", a.archiveSegment))
	mux.HandleFunc("POST /api/v1/shutdown", a.shutdown)
	mux.HandleFunc("POST /rpc", a.limited(a.rpc))
	mux.HandleFunc("POST /{$}", a.limited(a.rpc))
	mux.HandleFunc("GET /genesis/block", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusNotFound, m{"error": "genesis block not available"})
	})
	return mux
}

// m is a JSON object.
type m = map[string]any

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, s)
}

// float keeps the decimal point that the node prints on whole floats.
func float(v float64) json.RawMessage { return json.RawMessage(strconv.FormatFloat(v, 'f', 1, 64)) }

// limited puts a handler behind the read_only bucket: a refusal is HTTP 200.
func (a *api) limited(next http.HandlerFunc) http.HandlerFunc {
	return a.gate(next, func(w http.ResponseWriter, retry int) { reply(w, http.StatusOK, limitBody(retry)) })
}

// limitedShort is the snapshot download's variant with the short body.
func (a *api) limitedShort(next http.HandlerFunc) http.HandlerFunc {
	return a.gate(next, func(w http.ResponseWriter, _ int) { reply(w, http.StatusOK, m{"error": "Rate limit exceeded"}) })
}

func limitBody(retry int) m {
	return m{"success": false, "error": "Rate limit exceeded", "retry_after_seconds": retry,
		"message": fmt.Sprintf("Too many requests. Please wait %d seconds before retrying.", retry)}
}

func (a *api) gate(next http.HandlerFunc, refuse func(http.ResponseWriter, int)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.p.fault.On(FaultRateLimit) {
			refuse(w, 30)
			return
		}
		if c := a.caller(r); !c.exempt && !a.keyed(r) {
			if retry, ok := a.limits.allow(bucketRead, c.ip); !ok {
				refuse(w, retry)
				return
			}
		}
		next(w, r)
	}
}

// number parses a path parameter; one that is no u64 matches no route.
func number(name string, next func(http.ResponseWriter, *http.Request, uint64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseUint(r.PathValue(name), 10, 64)
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next(w, r, n)
	}
}

// read runs fn with the node's state held still.
func (a *api) read(fn func(p *proc)) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	fn(a.p)
}

// hang waits until the caller gives up or the node ends.
func (a *api) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-a.done:
	}
}

// shown is a height as this node reports it.
func (p *proc) shown(h uint64) uint64 {
	return uint64(max(int64(h)+p.fault.num(FaultLieHeight, 1000), 0))
}

// build is the build id this node reports.
func (p *proc) build() string {
	if arg, ok := p.fault.get(FaultLieBuild); ok {
		if arg == "" {
			arg = "0000000"
		}
		return arg
	}
	if p.s.behaviour == "liar" && p.s.lieBuild != "" {
		return p.s.lieBuild
	}
	return p.s.build
}
