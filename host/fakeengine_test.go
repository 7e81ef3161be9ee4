package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fakeEngine is a small Docker Engine for tests: a state machine with restart
// policies, daemon restarts and a hook around every request. What it does not
// know it refuses with 501.
type fakeEngine struct {
	mu      sync.Mutex
	cs      map[string]*fakeContainer
	images  map[string]object // by id
	refs    map[string]string // repo@digest or tag -> id
	seq     int
	down    bool
	conns   map[net.Conn]bool
	counted []string // "METHOD path" of requests while counting
	count   bool
	hook    func(n int, when string) hookResult
	violate []string
	stopFor time.Duration // what a node needs to stop
	dials   chan net.Conn
	srv     *http.Server
	pulls   int
	auth    []string
	dist    map[string]string // ref -> digest

	dropOnCreate string // a HostConfig member this engine loses
	apiVersion   string
}

// hookResult tells the engine what to do with a request.
type hookResult struct {
	drop bool // close the connection without an answer
	fail int  // answer with this status
	late time.Duration
}

type fakeContainer struct {
	id, name, imageID string
	cfg, host         object
	mounts            []any
	networks          object
	status            string
	exit              int
	started, finished time.Time
	manual, ever      bool
	stopping          chan struct{}
	log               string
	startErr          string
	crash             bool
	gen               int
}

func newFakeEngine() *fakeEngine {
	e := &fakeEngine{cs: map[string]*fakeContainer{}, images: map[string]object{}, refs: map[string]string{}, conns: map[net.Conn]bool{},
		stopFor: 5 * time.Second, dials: make(chan net.Conn), dist: map[string]string{}}
	e.srv = &http.Server{Handler: e}
	go e.srv.Serve(e)
	return e
}

// Accept, Close and Addr make the engine its own listener.
func (e *fakeEngine) Accept() (net.Conn, error) {
	c, ok := <-e.dials
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (e *fakeEngine) Close() error   { return nil }
func (e *fakeEngine) Addr() net.Addr { return &net.UnixAddr{} }

func (e *fakeEngine) shutdown() {
	e.sever()
	close(e.dials)
	e.srv.Close()
}

func (e *fakeEngine) dial(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	down := e.down
	e.mu.Unlock()
	if down {
		return nil, fmt.Errorf("connection refused")
	}
	a, b := net.Pipe()
	e.mu.Lock()
	e.conns[b] = true
	e.mu.Unlock()
	select {
	case e.dials <- b:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *fakeEngine) sever() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		c.Close()
	}
	e.conns = map[net.Conn]bool{}
}

// restartDaemon ends all containers and the API, and comes back after `away`,
// reviving what its policies say, containers never started included: an engine
// that did that would be the worst one.
func (e *fakeEngine) restartDaemon(away time.Duration) {
	e.mu.Lock()
	e.down = true
	for _, c := range e.cs {
		if c.status == "running" || c.status == "restarting" {
			e.exited(c, 143)
			c.gen++
		}
	}
	e.mu.Unlock()
	e.sever()
	time.AfterFunc(away, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, c := range e.cs {
			switch p := str(sub(c.host, "RestartPolicy"), "Name"); {
			case c.status == "running", c.startErr != "":
			case p == "always", p == "unless-stopped" && !c.manual, p == "on-failure" && c.exit != 0:
				e.run(c)
			}
		}
		e.down = false
	})
}

func (e *fakeEngine) run(c *fakeContainer) {
	c.status, c.started, c.ever, c.exit = "running", time.Now(), true, 0
	c.gen++
	running := []string{}
	for _, o := range e.cs {
		if o.status == "running" && dataDirOf(e.view(o)).HostPath == dataDirOf(e.view(c)).HostPath {
			running = append(running, o.name)
		}
	}
	if len(running) > 1 {
		e.violate = append(e.violate, fmt.Sprintf("two on one data directory: %v", running))
	}
	if c.crash {
		gen := c.gen
		time.AfterFunc(100*time.Millisecond, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			if c.gen == gen && c.status == "running" {
				e.exited(c, 1)
			}
		})
	}
}

func (e *fakeEngine) exited(c *fakeContainer, code int) {
	c.status, c.exit, c.finished = "exited", code, time.Now()
	if c.stopping != nil {
		close(c.stopping)
		c.stopping = nil
	}
}

func (e *fakeEngine) find(ref string) *fakeContainer {
	if c := e.cs[ref]; c != nil {
		return c
	}
	for _, c := range e.cs {
		if c.name == ref || len(ref) >= 12 && strings.HasPrefix(c.id, ref) {
			return c
		}
	}
	return nil
}

var versioned = regexp.MustCompile(`^/v1\.(\d+)(/.*)$`)

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	n, hook := 0, e.hook
	if e.count {
		e.counted = append(e.counted, r.Method+" "+r.URL.Path)
		n = len(e.counted)
	}
	e.mu.Unlock()
	act := func(when string) bool {
		if hook == nil || n == 0 {
			return true
		}
		h := hook(n, when)
		if h.late > 0 {
			go func() {
				time.Sleep(h.late)
				e.handle(&recorder{}, r, body)
			}()
		}
		if h.fail > 0 {
			reply(w, h.fail, object{"message": "refused for a test"})
			return false
		}
		if h.drop {
			panic(http.ErrAbortHandler)
		}
		return true
	}
	if !act("before") {
		return
	}
	rec := &recorder{}
	e.handle(rec, r, body)
	if !act("after") {
		return
	}
	e.mu.Lock()
	down := e.down
	e.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler)
	}
	if rec.status != 0 {
		w.WriteHeader(rec.status)
	}
	w.Write(rec.buf.Bytes())
}

type recorder struct {
	status int
	buf    bytes.Buffer
	head   http.Header
}

func (r *recorder) Header() http.Header {
	if r.head == nil {
		r.head = http.Header{}
	}
	return r.head
}
func (r *recorder) WriteHeader(s int)           { r.status = s }
func (r *recorder) Write(b []byte) (int, error) { return r.buf.Write(b) }

func reply(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	if v != nil {
		json.NewEncoder(w).Encode(v)
	}
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	reply(w, status, object{"message": fmt.Sprintf(format, args...)})
}

func (e *fakeEngine) handle(w http.ResponseWriter, r *http.Request, body []byte) {
	p := r.URL.Path
	if m := versioned.FindStringSubmatch(p); m != nil {
		p = m[2]
	}
	seg := strings.Split(strings.Trim(p, "/"), "/")
	route := r.Method + " " + seg[0]
	if a := r.Header.Get("X-Registry-Auth"); a != "" {
		e.mu.Lock()
		e.auth = append(e.auth, a)
		e.mu.Unlock()
	}
	switch {
	case p == "/_ping":
		w.Write([]byte("OK"))
	case p == "/version":
		reply(w, 200, object{"Version": "20.10.24", "ApiVersion": firstOf(e.apiVersion, "1.41"), "MinAPIVersion": "1.12", "Os": "linux", "Arch": "amd64"})
	case p == "/info":
		reply(w, 200, object{"Name": "host-1", "DockerRootDir": "/var/lib/docker"})
	case p == "/containers/json":
		e.serveList(w)
	case route == "GET images" && seg[len(seg)-1] == "json":
		e.serveImage(w, strings.Join(seg[1:len(seg)-1], "/"))
	case route == "GET distribution":
		ref := strings.Join(seg[1:len(seg)-1], "/")
		d, ok := e.dist[ref]
		if !ok {
			refuse(w, 404, "manifest unknown: %s", ref)
			return
		}
		reply(w, 200, object{"Descriptor": object{"digest": d}, "Platforms": []any{object{"os": "linux", "architecture": "amd64"}}})
	case p == "/images/create":
		e.servePull(w, r)
	case p == "/containers/create":
		e.serveCreate(w, r.URL.Query().Get("name"), body)
	case route == "POST networks" && len(seg) == 3 && seg[2] == "connect":
		e.serveConnect(w, seg[1], body)
	case seg[0] == "containers" && len(seg) >= 2:
		e.serveContainer(w, r, seg, body)
	default:
		refuse(w, 501, "not known here: %s %s", r.Method, p)
	}
}

func (e *fakeEngine) serveList(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []any{}
	for _, c := range e.cs {
		out = append(out, object{"Id": c.id, "Names": []any{"/" + c.name}, "Image": c.cfg["Image"], "State": c.status, "Labels": c.cfg["Labels"], "Mounts": c.mounts})
	}
	reply(w, 200, out)
}

func (e *fakeEngine) serveImage(w http.ResponseWriter, ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := ref
	if i, ok := e.refs[ref]; ok {
		id = i
	}
	img, ok := e.images[id]
	if !ok {
		refuse(w, 404, "No such image: %s", ref)
		return
	}
	reply(w, 200, img)
}

func (e *fakeEngine) servePull(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ref := r.URL.Query().Get("fromImage") + "@" + r.URL.Query().Get("tag")
	e.pulls++
	fmt.Fprintf(w, `{"status":"Pulling fs layer","id":"l1"}`+"\n"+`{"status":"Downloading","id":"l1","progressDetail":{"current":5,"total":10}}`+"\n")
	id, ok := e.refs["remote:"+ref]
	if !ok {
		fmt.Fprintf(w, `{"error":"manifest unknown","errorDetail":{"message":"manifest unknown"}}`+"\n")
		return
	}
	e.refs[ref] = id
	fmt.Fprintf(w, `{"status":"Pull complete","id":"l1","progressDetail":{}}`+"\n")
}

// mergeImage does what an engine does with an image's defaults at creation.
func mergeImage(cfg, img object) {
	have := envMap(texts(cfg, "Env"))
	env := list(cfg, "Env")
	for _, s := range texts(img, "Env") {
		if _, ok := have[parseEnv([]string{s})[0].name]; !ok {
			env = append(env, s)
		}
	}
	cfg["Env"] = env
	for _, f := range []string{"ExposedPorts", "Labels", "Volumes"} {
		m, _ := cfg[f].(object)
		if m == nil {
			m = object{}
		}
		for k, v := range sub(img, f) {
			if _, ok := m[k]; !ok {
				m[k] = v
			}
		}
		cfg[f] = m
		if len(m) == 0 {
			cfg[f] = nil
		}
	}
	if len(list(cfg, "Entrypoint")) == 0 {
		if len(list(cfg, "Cmd")) == 0 {
			cfg["Cmd"] = img["Cmd"]
		}
		if cfg["Entrypoint"] == nil {
			cfg["Entrypoint"] = img["Entrypoint"]
		}
	}
	if ep := list(cfg, "Entrypoint"); len(ep) == 1 && ep[0] == "" {
		cfg["Entrypoint"] = nil
	}
	if ih := sub(img, "Healthcheck"); ih != nil {
		h, _ := cfg["Healthcheck"].(object)
		if h == nil {
			h = object{}
		}
		for k, v := range ih {
			if zero(h[k]) {
				h[k] = v
			}
		}
		cfg["Healthcheck"] = h
	}
	if cfg["NewThing"] == nil { // a default of some future engine
		cfg["NewThing"] = img["NewThing"]
	}
	for _, f := range []string{"User", "WorkingDir", "StopSignal"} {
		if s := str(cfg, f); s == "" && str(img, f) != "" {
			cfg[f] = img[f]
		}
	}
}

func (e *fakeEngine) serveCreate(w http.ResponseWriter, name string, body []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o, err := decodeObject(body, "a creation")
	if err != nil {
		refuse(w, 400, "bad body")
		return
	}
	if e.find(name) != nil {
		refuse(w, 409, "Conflict. The container name %q is already in use", name)
		return
	}
	c, msg := e.make(name, o)
	if msg != "" {
		refuse(w, 400, "%s", msg)
		return
	}
	reply(w, 201, object{"Id": c.id, "Warnings": []any{}})
}

// make is a creation by the engine's rules, with the lock held.
func (e *fakeEngine) make(name string, o object) (*fakeContainer, string) {
	e.seq++
	c := &fakeContainer{id: fmt.Sprintf("%064x", 0xabcdef000000+e.seq), name: name, status: "created", networks: object{}}
	c.id = c.id[52:] + c.id[:52]
	c.host, _ = o["HostConfig"].(object)
	delete(c.host, e.dropOnCreate)
	nets := sub(o, "NetworkingConfig", "EndpointsConfig")
	delete(o, "HostConfig")
	delete(o, "NetworkingConfig")
	c.cfg = o
	id := str(o, "Image")
	if i, ok := e.refs[id]; ok {
		id = i
	}
	img, ok := e.images[id]
	if !ok {
		return nil, "No such image"
	}
	c.imageID = id
	mode := str(c.host, "NetworkMode")
	if len(nets) > 1 {
		return nil, "Container cannot be connected to network endpoints: more than one"
	}
	if strings.HasPrefix(mode, "container:") && str(c.cfg, "Hostname") != "" {
		return nil, "conflicting options: hostname and the network mode"
	}
	mergeImage(c.cfg, sub(img, "Config"))
	e.attach(c, mode, nets)
	if str(c.cfg, "Hostname") == "" {
		c.cfg["Hostname"] = c.id[:12]
		if mode == "host" {
			c.cfg["Hostname"] = "host-1"
		}
	}
	if len(list(c.cfg, "Cmd"))+len(list(c.cfg, "Entrypoint")) == 0 {
		return nil, "No command specified"
	}
	c.mounts = e.mountsFor(c)
	e.cs[c.id] = c
	return c, ""
}

func (e *fakeEngine) attach(c *fakeContainer, mode string, nets object) {
	key := mode
	if defaultNetwork(mode) {
		key = "bridge"
	}
	if strings.HasPrefix(mode, "container:") {
		return
	}
	var ep object
	for _, v := range nets {
		ep, _ = v.(object)
	}
	e.join(c, key, ep)
}

func (e *fakeEngine) join(c *fakeContainer, name string, ep object) {
	if ep == nil {
		ep = object{}
	}
	e.seq++
	ep["NetworkID"], ep["MacAddress"], ep["IPAddress"] = "net-"+name, fmt.Sprintf("02:42:00:00:00:%02x", e.seq), fmt.Sprintf("192.0.2.%d", e.seq)
	if !defaultNetwork(name) && !fixedNetwork(name) {
		ep["Aliases"] = append(list(ep, "Aliases"), c.id[:12])
	}
	c.networks[name] = ep
}

func (e *fakeEngine) mountsFor(c *fakeContainer) []any {
	out := []any{}
	taken := map[string]bool{}
	for _, b := range texts(c.host, "Binds") {
		p := strings.Split(b, ":")
		m := object{"Type": "bind", "Source": p[0], "Destination": p[1], "Mode": "", "RW": true, "Propagation": "rprivate"}
		if !strings.HasPrefix(p[0], "/") {
			m = object{"Type": "volume", "Name": p[0], "Source": "/var/lib/docker/volumes/" + p[0] + "/_data", "Destination": p[1], "Driver": "local", "Mode": "z", "RW": true, "Propagation": ""}
		}
		if len(p) > 2 {
			m["Mode"] = p[2]
			m["RW"] = !strings.Contains(p[2], "ro")
		}
		taken[p[1]] = true
		out = append(out, m)
	}
	anon := func(dst string) {
		e.seq++
		name := fmt.Sprintf("%064x", e.seq)
		out = append(out, object{"Type": "volume", "Name": name, "Source": "/var/lib/docker/volumes/" + name + "/_data", "Destination": dst, "Driver": "local", "Mode": "", "RW": true, "Propagation": ""})
		taken[dst] = true
	}
	for _, v := range list(c.host, "Mounts") {
		m, _ := v.(object)
		switch {
		case str(m, "Type") == "volume" && str(m, "Source") == "":
			anon(str(m, "Target"))
		case str(m, "Type") == "volume":
			out = append(out, object{"Type": "volume", "Name": m["Source"], "Source": "/var/lib/docker/volumes/" + str(m, "Source") + "/_data", "Destination": m["Target"], "Driver": "local", "Mode": "z", "RW": true, "Propagation": ""})
		default:
			out = append(out, object{"Type": m["Type"], "Source": m["Source"], "Destination": m["Target"], "Mode": "", "RW": m["ReadOnly"] != true, "Propagation": ""})
		}
		taken[str(m, "Target")] = true
	}
	for _, dst := range keys(sub(c.cfg, "Volumes")) {
		if !taken[dst] {
			anon(dst)
		}
	}
	return out
}

func (e *fakeEngine) serveConnect(w http.ResponseWriter, network string, body []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o, _ := decodeObject(body, "a connect")
	c := e.find(str(o, "Container"))
	if c == nil {
		refuse(w, 404, "No such container")
		return
	}
	e.join(c, network, sub(o, "EndpointConfig"))
	reply(w, 200, nil)
}

func (e *fakeEngine) view(c *fakeContainer) object {
	ts := func(t time.Time) string {
		if t.IsZero() {
			return "0001-01-01T00:00:00Z"
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	return object{"Id": c.id, "Name": "/" + c.name, "Image": c.imageID, "Created": "2026-01-01T00:00:00Z", "RestartCount": 0, "Driver": "overlay2", "Platform": "linux",
		"LogPath": "/var/lib/docker/containers/" + c.id + "/" + c.id + "-json.log",
		"State":   object{"Status": c.status, "ExitCode": c.exit, "OOMKilled": false, "StartedAt": ts(c.started), "FinishedAt": ts(c.finished)},
		"Config":  c.cfg, "HostConfig": c.host, "Mounts": c.mounts, "NetworkSettings": object{"Networks": c.networks, "IPAddress": "192.0.2.9"}}
}

func (e *fakeEngine) raw(name string) (json.RawMessage, object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, err := json.Marshal(e.view(e.find(name)))
	if err != nil {
		panic(err)
	}
	o, err := decodeObject(b, "x")
	if err != nil {
		panic(err)
	}
	return b, o
}

func (e *fakeEngine) serveContainer(w http.ResponseWriter, r *http.Request, seg []string, body []byte) {
	e.mu.Lock()
	c := e.find(seg[1])
	if c == nil {
		e.mu.Unlock()
		refuse(w, 404, "No such container: %s", seg[1])
		return
	}
	if len(seg) == 3 && seg[2] == "stop" {
		e.mu.Unlock()
		e.serveStop(w, r, c)
		return
	}
	defer e.mu.Unlock()
	q := r.URL.Query()
	switch op := r.Method + " " + strings.Join(seg[2:], "/"); op {
	case "GET json":
		reply(w, 200, e.view(c))
	case "POST start":
		switch {
		case c.status == "running":
			w.WriteHeader(304)
		case c.startErr != "":
			c.exit = 128
			refuse(w, 500, "%s", c.startErr)
		default:
			c.manual = false
			e.run(c)
			w.WriteHeader(204)
		}
	case "POST update":
		o, _ := decodeObject(body, "an update")
		c.host["RestartPolicy"] = o["RestartPolicy"]
		reply(w, 200, object{"Warnings": nil})
	case "POST rename":
		if o := e.find(q.Get("name")); o != nil {
			refuse(w, 409, "Conflict. The container name is already in use")
			return
		}
		c.name = q.Get("name")
		w.WriteHeader(204)
	case "GET logs":
		for _, line := range strings.SplitAfter(c.log, "\n") {
			if line == "" {
				continue
			}
			h := make([]byte, 8)
			h[0] = 1
			binary.BigEndian.PutUint32(h[4:], uint32(len(line)))
			w.Write(h)
			w.Write([]byte(line))
		}
	case "DELETE ":
		if c.status == "running" {
			refuse(w, 409, "You cannot remove a running container")
			return
		}
		if q.Get("v") == "1" || q.Get("v") == "true" {
			e.violate = append(e.violate, "volumes removed")
		}
		delete(e.cs, c.id)
		w.WriteHeader(204)
	default:
		refuse(w, 501, "not known here: %s", op)
	}
}

func (e *fakeEngine) serveStop(w http.ResponseWriter, r *http.Request, c *fakeContainer) {
	e.mu.Lock()
	c.manual = true
	if c.status != "running" {
		e.mu.Unlock()
		w.WriteHeader(304)
		return
	}
	if c.stopping == nil {
		c.stopping = make(chan struct{})
		gen := c.gen
		t, _ := strconv.Atoi(r.URL.Query().Get("t"))
		after, code := e.stopFor, 0
		if limit := time.Duration(t) * time.Second; after > limit {
			after, code = limit, 137
		}
		// The signal is sent: what happens to the request does not matter any more.
		time.AfterFunc(after, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			if c.gen == gen && c.status == "running" {
				e.exited(c, code)
			}
		})
	}
	ch := c.stopping
	e.mu.Unlock()
	<-ch
	w.WriteHeader(204)
}
