package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errUnknown marks a request that is not emulated.
var errUnknown = errors.New("not emulated")

// connListener hands connections to net/http.
type connListener struct {
	mu     sync.Mutex
	cond   *sync.Cond
	queue  []net.Conn
	closed bool
}

func newConnListener() *connListener {
	l := &connListener{}
	l.cond = sync.NewCond(&l.mu)
	return l
}

func (l *connListener) put(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, c)
	l.cond.Signal()
}

// Accept waits for the next connection.
func (l *connListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

// Close ends Accept.
func (l *connListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Broadcast()
	return nil
}

// Addr names the socket the engine stands for.
func (l *connListener) Addr() net.Addr {
	return &net.UnixAddr{Name: "/var/run/docker.sock", Net: "unix"}
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// Tagged is a connection that says who opened it.
type Tagged interface{ Origin() string }

// origin names the process behind a request.
func origin(r *http.Request) string {
	if tc, ok := r.Context().Value(connKey{}).(*trackedConn); ok {
		if t, ok := tc.Conn.(Tagged); ok {
			return t.Origin()
		}
	}
	return ""
}

// atLeast compares the engine's own API version.
func (e *Engine) atLeast(v string) bool { return !versionLess(e.cfg.APIVersion, v) }

// versionLess compares versions such as 1.41.
func versionLess(a, b string) bool {
	pa, pb := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(pa), len(pb)) {
		x, _ := strconv.Atoi(pa[i])
		y, _ := strconv.Atoi(pb[i])
		if x != y {
			return x < y
		}
	}
	return len(pa) < len(pb)
}

var versionPath = regexp.MustCompile(`^/v(\d+\.\d+)(/.*)$`)

// serveHTTP is the entry of every request.
func (e *Engine) serveHTTP(w http.ResponseWriter, r *http.Request) {
	from := origin(r)
	if e.cfg.OnRequest != nil && !e.cfg.OnRequest(from, r) {
		panic(http.ErrAbortHandler) // breaks the connection without an answer
	}
	rec := &responder{ResponseWriter: w, engine: e, before: func() {
		if e.cfg.OnResponse != nil {
			e.cfg.OnResponse(from, r)
		}
	}}
	h := w.Header()
	h.Set("Api-Version", e.cfg.APIVersion)
	h.Set("Docker-Experimental", "false")
	h.Set("Ostype", "linux")
	h.Set("Server", "Docker/"+e.serverVersion()+" (linux)")
	version, path := e.cfg.APIVersion, r.URL.Path
	if m := versionPath.FindStringSubmatch(path); m != nil {
		version, path = m[1], m[2]
		if versionLess(e.cfg.APIVersion, version) {
			rec.fail(refused(400, "client version %s is too new. Maximum supported API version is %s", version, e.cfg.APIVersion))
			return
		}
		if versionLess(version, minAPI) {
			rec.fail(refused(400, "client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version", version, minAPI))
			return
		}
	}
	q := &call{engine: e, w: rec, r: r, version: version, path: path}
	if err := q.route(); err != nil {
		e.answerError(rec, r, path, err)
	}
	rec.once.Do(rec.before)
}

func (e *Engine) answerError(rec *responder, r *http.Request, path string, err error) {
	var a *apiError
	switch {
	case errors.Is(err, errUnknown):
		e.mu.Lock()
		e.unknown = append(e.unknown, r.Method+" "+path)
		e.mu.Unlock()
		rec.fail(refused(http.StatusNotImplemented, "the lab engine does not know %s %s", r.Method, path))
	case errors.As(err, &a):
		rec.fail(a)
	default:
		rec.fail(refused(500, "%s", err.Error()))
	}
}

// responder runs the response hook before the first byte leaves.
type responder struct {
	http.ResponseWriter
	engine *Engine
	once   sync.Once
	before func()
}

func (w *responder) WriteHeader(code int) {
	w.once.Do(w.before)
	w.ResponseWriter.WriteHeader(code)
}

func (w *responder) Write(p []byte) (int, error) {
	w.once.Do(w.before)
	return w.ResponseWriter.Write(p)
}

// Flush sends what is buffered.
func (w *responder) Flush() {
	w.once.Do(w.before)
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *responder) fail(err *apiError) {
	if err.status == http.StatusNotModified {
		w.WriteHeader(err.status)
		return
	}
	w.json(err.status, object{"message": err.message})
}

func (w *responder) json(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = 500, []byte(`{"message":"encoding the answer"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// jsonStream sends JSON values one by one.
type jsonStream struct {
	w   http.ResponseWriter
	enc *json.Encoder
}

func newStream(w http.ResponseWriter) *jsonStream {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	s := &jsonStream{w: w, enc: json.NewEncoder(w)}
	s.flush()
	return s
}

func (s *jsonStream) flush() {
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

func (s *jsonStream) send(v any) {
	s.enc.Encode(v) // a client that has left is noticed through its context
	s.flush()
}

// call is one request being answered.
type call struct {
	engine  *Engine
	w       *responder
	r       *http.Request
	version string
	path    string
}

func (q *call) param(name string) string { return q.r.URL.Query().Get(name) }

func (q *call) flag(name string) bool {
	v := strings.ToLower(q.param(name))
	return v == "1" || v == "true" || v == "yes" || v == "on"
}

func (q *call) filters() (filters, error) { return parseFilters(q.param("filters")) }

// body reads a JSON object; an empty body is an empty object.
func (q *call) body() (object, error) {
	b, err := io.ReadAll(io.LimitReader(q.r.Body, 16<<20))
	if err != nil {
		return nil, refused(400, "reading the request: %v", err)
	}
	if len(b) == 0 {
		return object{}, nil
	}
	o, err := decodeObject(b)
	if err != nil {
		return nil, refused(400, "invalid JSON: %v", err)
	}
	return o, nil
}

// locked runs f under the engine's lock.
func (e *Engine) locked(f func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return f()
}

// answer runs f under the lock and sends what it returns.
func (q *call) answer(status int, f func() (any, error)) error {
	var v any
	err := q.engine.locked(func() (err error) { v, err = f(); return err })
	if err != nil {
		return err
	}
	q.w.json(status, v)
	return nil
}

// done runs f, under the lock unless it takes it itself, and sends no content.
func (q *call) done(err error) error {
	if err != nil {
		return err
	}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (q *call) route() error {
	e := q.engine
	parts := strings.Split(strings.Trim(q.path, "/"), "/")
	switch parts[0] {
	case "_ping":
		q.w.Header().Set("Cache-Control", "no-cache, no-store, must-revalidate")
		q.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		q.w.WriteHeader(200)
		if q.r.Method != http.MethodHead {
			io.WriteString(q.w, "OK")
		}
		return nil
	case "version":
		return q.answer(200, func() (any, error) { return e.versionJSON(), nil })
	case "info":
		return q.answer(200, func() (any, error) { return e.infoJSON(), nil })
	case "events":
		return q.events()
	case "system":
		if q.path == "/system/df" && q.r.Method == "GET" {
			return q.answer(200, func() (any, error) { return e.dfJSON(q.version) })
		}
	case "containers":
		return q.containers(parts[1:])
	case "images":
		return q.images(strings.TrimPrefix(q.path, "/images/"))
	case "distribution":
		if name, ok := strings.CutSuffix(strings.TrimPrefix(q.path, "/distribution/"), "/json"); ok && q.r.Method == "GET" {
			o, err := e.distribution(name, q.r.Header.Get("X-Registry-Auth"))
			if err != nil {
				return err
			}
			q.w.json(200, o)
			return nil
		}
	case "networks":
		return q.networks(parts[1:])
	case "volumes":
		return q.volumes(parts[1:])
	}
	return errUnknown
}

func (q *call) containers(parts []string) error {
	e := q.engine
	switch {
	case len(parts) == 1 && parts[0] == "json" && q.r.Method == "GET":
		f, err := q.filters()
		if err != nil {
			return err
		}
		limit, _ := strconv.Atoi(q.param("limit"))
		return q.answer(200, func() (any, error) { return e.list(f, q.flag("all"), max(0, limit), q.version) })
	case len(parts) == 1 && parts[0] == "create" && q.r.Method == "POST":
		body, err := q.body()
		if err != nil {
			return err
		}
		return q.answer(201, func() (any, error) {
			c, err := e.create(q.param("name"), body)
			if err != nil {
				return nil, err
			}
			return object{"Id": c.id, "Warnings": []string{}}, nil
		})
	case len(parts) == 1 && q.r.Method == "DELETE":
		c, err := q.container(parts[0])
		if err != nil {
			return err
		}
		return q.done(e.remove(c, q.flag("force"), q.flag("v")))
	case len(parts) == 2:
		return q.container2(parts[0], parts[1])
	}
	return errUnknown
}

func (q *call) container(ref string) (*container, error) {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	c := q.engine.find(ref)
	if c == nil {
		return nil, refused(404, "No such container: %s", ref)
	}
	return c, nil
}

// container2 answers /containers/{ref}/{verb}.
func (q *call) container2(ref, verb string) error {
	e := q.engine
	known := map[string]string{"json": "GET", "logs": "GET", "start": "POST", "stop": "POST", "restart": "POST",
		"kill": "POST", "wait": "POST", "rename": "POST", "update": "POST"}
	if known[verb] == "" || known[verb] != q.r.Method {
		return errUnknown
	}
	c, err := q.container(ref)
	if err != nil {
		return err
	}
	timeout := time.Duration(-1)
	if t, err := strconv.Atoi(q.param("t")); err == nil && t >= 0 {
		timeout = time.Duration(t) * time.Second
	}
	switch verb {
	case "json":
		return q.answer(200, func() (any, error) { return e.inspectJSON(c, q.version, q.flag("size")), nil })
	case "logs":
		return q.logs(c)
	case "start":
		return q.done(e.locked(func() error { return e.start(c) }))
	case "stop":
		return q.done(e.stop(c, timeout))
	case "restart":
		return q.done(e.restart(c, timeout))
	case "kill":
		return q.done(e.kill(c, q.param("signal")))
	case "rename":
		return q.done(e.locked(func() error { return e.rename(c, q.param("name")) }))
	case "update":
		body, err := q.body()
		if err != nil {
			return err
		}
		return q.answer(200, func() (any, error) { return object{"Warnings": nil}, e.update(c, body) })
	}
	return q.wait(c)
}

// wait answers POST /containers/{ref}/wait: the header at once, the code later.
func (q *call) wait(c *container) error {
	e := q.engine
	cond := orDefault(q.param("condition"), "not-running")
	if cond != "not-running" && cond != "next-exit" && cond != "removed" {
		return refused(400, "invalid condition: %q", cond)
	}
	out := newStream(q.w)
	e.mu.Lock()
	gone, exits := c.gone(), c.exits
	over := func() bool {
		switch {
		case e.containers[c.id] == nil:
			return true
		case cond == "not-running":
			return !c.running()
		case cond == "next-exit":
			return c.exits > exits
		}
		return false
	}
	for !over() {
		ch := c.next()
		e.mu.Unlock()
		select {
		case <-ch:
		case <-gone:
		case <-q.r.Context().Done():
			return nil
		}
		e.mu.Lock()
	}
	code := c.exitCode
	e.mu.Unlock()
	out.send(object{"StatusCode": code, "Error": nil})
	return nil
}

func (q *call) logs(c *container) error {
	lq := logQuery{stdout: q.flag("stdout"), stderr: q.flag("stderr"), timestamps: q.flag("timestamps"), follow: q.flag("follow"), tail: -1}
	if !lq.stdout && !lq.stderr {
		return refused(400, "Bad parameters: you must choose at least one stream")
	}
	if n, err := strconv.Atoi(q.param("tail")); err == nil && n >= 0 {
		lq.tail = n
	}
	var err error
	if lq.since, err = queryTime(q.param("since")); err != nil {
		return err
	}
	if lq.until, err = queryTime(q.param("until")); err != nil {
		return err
	}
	lq.tty = c.config["Tty"] == true
	if !versionLess(q.version, "1.42") {
		q.w.Header().Set("Content-Type", "application/vnd.docker.multiplexed-stream")
	}
	q.w.WriteHeader(200)
	q.w.Flush()
	c.logs.stream(q.w, lq, q.r.Context().Done(), q.w.Flush)
	return nil
}

// queryTime reads a Unix time with an optional fraction, or RFC 3339.
func queryTime(s string) (time.Time, error) {
	if s == "" || s == "0" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	sec, frac, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		return time.Time{}, refused(400, "strconv.ParseInt: parsing %q: invalid syntax", s)
	}
	nano, _ := strconv.ParseInt((frac + "000000000")[:9], 10, 64)
	return time.Unix(n, nano), nil
}

func (q *call) events() error {
	f, err := q.filters()
	if err != nil {
		return err
	}
	since, err := queryTime(q.param("since"))
	if err != nil {
		return err
	}
	until, err := queryTime(q.param("until"))
	if err != nil {
		return err
	}
	e := q.engine
	e.mu.Lock()
	next := e.events.seq + len(e.events.past)
	if q.param("since") != "" {
		next = 0
	}
	e.mu.Unlock()
	out := newStream(q.w)
	var end <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		end = t.C
	}
	for {
		e.mu.Lock()
		batch, n, wake, dead := e.events.from(next)
		next = n
		e.mu.Unlock()
		for _, ev := range batch {
			if !ev.at.Before(since) && (until.IsZero() || !ev.at.After(until)) && f.event(ev.body) {
				out.send(ev.body)
			}
		}
		select {
		case <-wake:
		case <-dead:
			return nil
		case <-end:
			return nil
		case <-q.r.Context().Done():
			return nil
		}
	}
}

func (q *call) images(rest string) error {
	e := q.engine
	switch {
	case rest == "json" && q.r.Method == "GET":
		f, err := q.filters()
		if err != nil {
			return err
		}
		return q.answer(200, func() (any, error) { return e.listImages(f) })
	case rest == "create" && q.r.Method == "POST":
		return e.pull(q.w, q.r)
	case strings.HasSuffix(rest, "/json") && q.r.Method == "GET":
		name := strings.TrimSuffix(rest, "/json")
		return q.answer(200, func() (any, error) {
			img := e.findImage(name)
			if img == nil {
				return nil, refused(404, "No such image: %s", withTag(name))
			}
			return e.imageJSON(img), nil
		})
	case q.r.Method == "DELETE":
		return q.answer(200, func() (any, error) { return e.removeImage(rest, q.flag("force")) })
	}
	return errUnknown
}

func (q *call) networks(parts []string) error {
	e := q.engine
	find := func(ref string) (*network, error) {
		if n := e.findNetwork(ref); n != nil {
			return n, nil
		}
		return nil, refused(404, "network %s not found", ref)
	}
	switch {
	case (len(parts) == 0 || parts[0] == "") && q.r.Method == "GET":
		f, err := q.filters()
		if err != nil {
			return err
		}
		return q.answer(200, func() (any, error) { return e.listNetworks(f) })
	case len(parts) == 1 && parts[0] == "create" && q.r.Method == "POST":
		body, err := q.body()
		if err != nil {
			return err
		}
		return q.answer(201, func() (any, error) {
			n, err := e.createNetwork(body)
			if err != nil {
				return nil, err
			}
			return object{"Id": n.id, "Warning": ""}, nil
		})
	case len(parts) == 1 && q.r.Method == "GET":
		return q.answer(200, func() (any, error) {
			n, err := find(parts[0])
			if err != nil {
				return nil, err
			}
			return e.networkJSON(n, true), nil
		})
	case len(parts) == 1 && q.r.Method == "DELETE":
		return q.done(e.locked(func() error {
			n, err := find(parts[0])
			if err != nil {
				return err
			}
			return e.removeNetwork(n)
		}))
	case len(parts) == 2 && q.r.Method == "POST" && (parts[1] == "connect" || parts[1] == "disconnect"):
		return q.networkMember(parts[0], parts[1] == "connect", find)
	}
	return errUnknown
}

func (q *call) networkMember(ref string, connect bool, find func(string) (*network, error)) error {
	e := q.engine
	body, err := q.body()
	if err != nil {
		return err
	}
	err = e.locked(func() error {
		n, err := find(ref)
		if err != nil {
			return err
		}
		c := e.find(str(body, "Container"))
		if c == nil {
			return refused(404, "No such container: %s", str(body, "Container"))
		}
		if connect {
			return e.connect(n, c, sub(body, "EndpointConfig"))
		}
		return e.disconnect(n, c, body["Force"] == true)
	})
	if err != nil {
		return err
	}
	q.w.WriteHeader(200)
	return nil
}

func (q *call) volumes(parts []string) error {
	e := q.engine
	switch {
	case (len(parts) == 0 || parts[0] == "") && q.r.Method == "GET":
		f, err := q.filters()
		if err != nil {
			return err
		}
		return q.answer(200, func() (any, error) { return e.listVolumes(f) })
	case len(parts) == 1 && parts[0] == "create" && q.r.Method == "POST":
		body, err := q.body()
		if err != nil {
			return err
		}
		return q.answer(201, func() (any, error) {
			v, err := e.createVolume(body)
			if err != nil {
				return nil, err
			}
			return v.json(), nil
		})
	case len(parts) == 1 && q.r.Method == "GET":
		return q.answer(200, func() (any, error) {
			v := e.volumes[parts[0]]
			if v == nil {
				return nil, refused(404, "get %s: no such volume", parts[0])
			}
			return v.json(), nil
		})
	case len(parts) == 1 && q.r.Method == "DELETE":
		name, err := url.PathUnescape(parts[0])
		if err != nil {
			return refused(400, "invalid volume name")
		}
		return q.done(e.locked(func() error { return e.removeVolume(name) }))
	}
	return errUnknown
}
