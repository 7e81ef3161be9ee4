package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of engine calls. A stop has its own, longer one.
const (
	callTimeout = 2 * time.Minute
	// startTimeout is generous: a start waits for mounts, networks and ports.
	startTimeout = 5 * time.Minute
	// stopMargin is what an engine may need beyond the time it was told to wait.
	stopMargin = 3 * time.Minute
)

// API versions this program speaks: below the first it refuses. It uses the
// engine's own version, so that what an inspect shows a creation takes (an older
// one would lose newer settings), but none in which an inspect no longer tells a
// MAC address that was asked for in Config.MacAddress.
const (
	minAPI      = 41
	maxAPI      = 51
	endpointMAC = 44 // from here on a MAC address is asked for per endpoint
)

// engine is the host's Docker Engine over raw HTTP: no client library, so that
// answers stay raw JSON.
type engine struct {
	http *http.Client

	mu      sync.Mutex
	prefix  string // "/v1.41" once negotiated
	api     int
	version engineVersion
}

type engineVersion struct {
	Version       string
	APIVersion    string `json:"ApiVersion"`
	MinAPIVersion string
	Os            string
	Arch          string
}

func newEngine(dial func(ctx context.Context) (net.Conn, error)) *engine {
	return &engine{http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		// One connection a request: after an engine restart no stale one is used.
		DisableKeepAlives: true,
	}}}
}

// minor reads the 41 of "1.41".
func minor(v string) int {
	_, m, ok := strings.Cut(v, ".")
	n, err := strconv.Atoi(m)
	if !ok || err != nil {
		return 0
	}
	return n
}

// negotiate asks the engine once which API versions it has, and gives the path
// prefix of the one to use.
func (e *engine) negotiate(ctx context.Context) (string, error) {
	e.mu.Lock()
	prefix := e.prefix
	e.mu.Unlock()
	if prefix != "" {
		return prefix, nil
	}
	var v engineVersion
	if err := e.call(ctx, http.MethodGet, "/version", nil, nil, nil, &v); err != nil {
		return "", err
	}
	api := minor(v.APIVersion)
	if api < minAPI {
		return "", errorf(CodeEngineTooOld, "update the engine to 20.10 or newer", "engine %s speaks API %s; 1.%d is the oldest this program knows", v.Version, v.APIVersion, minAPI)
	}
	api = max(min(api, maxAPI), minor(v.MinAPIVersion))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prefix, e.api, e.version = fmt.Sprintf("/v1.%d", api), api, v
	return e.prefix, nil
}

// facts is what negotiate found last.
func (e *engine) facts() (api int, v engineVersion) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.api, e.version
}

// forget drops what is known of an engine that went away: it may come back newer.
func (e *engine) forget() {
	e.mu.Lock()
	e.prefix = ""
	e.mu.Unlock()
}

// do makes a versioned call bounded by callTimeout.
func (e *engine) do(ctx context.Context, method, path string, q url.Values, body, out any) error {
	return e.bounded(ctx, callTimeout, method, path, q, body, out)
}

func (e *engine) bounded(ctx context.Context, bound time.Duration, method, path string, q url.Values, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	prefix, err := e.negotiate(ctx)
	if err != nil {
		return err
	}
	return e.call(ctx, method, prefix+path, q, nil, body, out)
}

func (e *engine) call(ctx context.Context, method, path string, q url.Values, header http.Header, body, out any) error {
	resp, err := e.open(ctx, method, path, q, header, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return e.away(method, path, err)
	}
	switch o := out.(type) {
	case nil:
		return nil
	case *json.RawMessage:
		*o = raw
		return nil
	default:
		if err := json.Unmarshal(raw, out); err != nil {
			return errorf(CodeEngine, "", "engine answered %s %s with something that is not the expected JSON", method, path)
		}
		return nil
	}
}

// open makes a call and returns the open answer of a success.
func (e *engine) open(ctx context.Context, method, path string, q url.Values, header http.Header, body any) (*http.Response, error) {
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding a call to the engine: %w", err)
		}
		rd = bytes.NewReader(b)
	}
	u := "http://docker" + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, rd)
	if err != nil {
		return nil, fmt.Errorf("building a call to the engine: %w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, e.away(method, path, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, statusError(method, path, resp)
	}
	return resp, nil
}

// away wraps a failure of the connection: the call may or may not have been done.
func (e *engine) away(method, path string, err error) error {
	e.forget()
	if errors.Is(err, context.Canceled) {
		return err
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	hint := "is the Docker daemon running, and may this user open its socket?"
	return errorf(CodeEngineAway, hint, "engine does not answer %s %s: %v", method, path, err)
}

// statusError reads the engine's refusal.
func statusError(method, path string, resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		raw = nil
	}
	var m struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &m) != nil || m.Message == "" {
		m.Message = strings.TrimSpace(string(raw))
	}
	code, hint := classify(resp.StatusCode, m.Message)
	return errorf(code, hint, "engine refused %s %s (%d): %s", method, unversioned(path), resp.StatusCode, m.Message)
}

func unversioned(path string) string {
	if strings.HasPrefix(path, "/v1.") {
		if i := strings.IndexByte(path[1:], '/'); i > 0 {
			return path[1+i:]
		}
	}
	return path
}

// classify finds the code of a refusal. Engines pass on a registry's words with
// varying status codes, so the words count too.
func classify(status int, msg string) (code, hint string) {
	low := strings.ToLower(msg)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(low, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no space left"):
		return CodeNoSpace, "free space on the file system of the engine's data root"
	case has("port is already allocated", "address already in use"):
		// An engine that was killed leaves a docker-proxy that holds the port until the engine is started anew.
		return CodeEngine, "docker ps -a and ss -ltnp on the host show who holds the port; where it is a docker-proxy that an engine " +
			"left behind when it was killed, restart the engine: systemctl restart docker"
	case has("unauthorized", "authentication required", "no basic auth", "denied") || status == http.StatusUnauthorized:
		return CodeAuth, "log in on the host: docker login REGISTRY"
	case status == http.StatusNotFound || has("manifest unknown", "not found: manifest"):
		return CodeNotFound, ""
	case status == http.StatusConflict:
		return CodeConflict, ""
	case status == http.StatusBadRequest:
		return CodeBadRequest, ""
	}
	return CodeEngine, ""
}

func isCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// inspect reads a container raw.
func (e *engine) inspect(ctx context.Context, ref string) (json.RawMessage, object, error) {
	var raw json.RawMessage
	if err := e.do(ctx, http.MethodGet, "/containers/"+url.PathEscape(ref)+"/json", nil, nil, &raw); err != nil {
		return nil, nil, err
	}
	o, err := decodeObject(raw, "a container")
	return raw, o, err
}

// image reads an image raw. Path escaping would break names with slashes.
func (e *engine) image(ctx context.Context, ref string) (json.RawMessage, object, error) {
	var raw json.RawMessage
	if err := e.do(ctx, http.MethodGet, "/images/"+ref+"/json", nil, nil, &raw); err != nil {
		return nil, nil, err
	}
	o, err := decodeObject(raw, "an image")
	return raw, o, err
}

// listed is one row of the container list, which carries no environment.
type listed struct {
	ID     string `json:"Id"`
	Names  []string
	Image  string
	State  string
	Labels map[string]string
	Mounts []struct {
		Type, Name, Source, Destination string
		RW                              bool
	}
}

func (l listed) name() string {
	for _, n := range l.Names {
		if strings.Count(n, "/") == 1 { // "/a/b" is a link
			return strings.TrimPrefix(n, "/")
		}
	}
	return ""
}

func (e *engine) list(ctx context.Context) ([]listed, error) {
	var l []listed
	err := e.do(ctx, http.MethodGet, "/containers/json", url.Values{"all": {"1"}}, nil, &l)
	return l, err
}

func (e *engine) create(ctx context.Context, name string, body json.RawMessage) (string, error) {
	var r struct {
		ID string `json:"Id"`
	}
	if err := e.do(ctx, http.MethodPost, "/containers/create", url.Values{"name": {name}}, body, &r); err != nil {
		return "", err
	}
	if r.ID == "" {
		return "", errorf(CodeEngine, "", "engine created a container without an id")
	}
	return r.ID, nil
}

func (e *engine) connect(ctx context.Context, network, container string, endpoint json.RawMessage) error {
	body := map[string]any{"Container": container, "EndpointConfig": endpoint}
	return e.do(ctx, http.MethodPost, "/networks/"+url.PathEscape(network)+"/connect", nil, body, nil)
}

func (e *engine) start(ctx context.Context, id string) error {
	return e.bounded(ctx, startTimeout, http.MethodPost, "/containers/"+id+"/start", nil, nil, nil)
}

// stop returns when the container has ended; after t seconds the engine kills it.
func (e *engine) stop(ctx context.Context, id string, t int) error {
	bound := time.Duration(t)*time.Second + stopMargin
	return e.bounded(ctx, bound, http.MethodPost, "/containers/"+id+"/stop", url.Values{"t": {strconv.Itoa(t)}}, nil, nil)
}

func (e *engine) setPolicy(ctx context.Context, id string, p Policy) error {
	body := map[string]any{"RestartPolicy": map[string]any{"Name": p.Name, "MaximumRetryCount": p.MaximumRetryCount}}
	return e.do(ctx, http.MethodPost, "/containers/"+id+"/update", nil, body, nil)
}

func (e *engine) rename(ctx context.Context, id, name string) error {
	return e.do(ctx, http.MethodPost, "/containers/"+id+"/rename", url.Values{"name": {name}}, nil, nil)
}

// remove deletes a stopped container and never its volumes.
func (e *engine) remove(ctx context.Context, id string) error {
	return e.do(ctx, http.MethodDelete, "/containers/"+id, url.Values{"v": {"0"}, "force": {"0"}}, nil, nil)
}

func (e *engine) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := e.call(ctx, http.MethodGet, "/_ping", nil, nil, nil, nil); err != nil {
		return err
	}
	return nil
}

type engineInfo struct {
	Name          string
	DockerRootDir string
}

func (e *engine) info(ctx context.Context) (engineInfo, error) {
	var i engineInfo
	err := e.do(ctx, http.MethodGet, "/info", nil, nil, &i)
	return i, err
}

// logs opens a container's log, both streams in one, with the engine's timestamps.
func (e *engine) logs(ctx context.Context, id string, tty bool, tail string) (io.ReadCloser, error) {
	q := url.Values{"timestamps": {"1"}}
	if tail != "" {
		q.Set("tail", tail)
	}
	body, err := e.rawLogs(ctx, id, q)
	if err != nil || tty {
		return body, err
	}
	return &demux{src: body}, nil
}

// rawLogs opens a container's log, both outputs, with the query's wishes.
func (e *engine) rawLogs(ctx context.Context, id string, q url.Values) (io.ReadCloser, error) {
	prefix, err := e.negotiate(ctx)
	if err != nil {
		return nil, err
	}
	q.Set("stdout", "1")
	q.Set("stderr", "1")
	resp, err := e.open(ctx, http.MethodGet, prefix+"/containers/"+id+"/logs", q, nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// demux strips the engine's frame headers (stream, three zero bytes, length)
// and yields both streams in the order they came.
type demux struct {
	src  io.ReadCloser
	left uint32
}

func (d *demux) Read(p []byte) (int, error) {
	for d.left == 0 {
		var h [8]byte
		if _, err := io.ReadFull(d.src, h[:]); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return 0, fmt.Errorf("log stream ends inside a frame header: %w", err)
			}
			return 0, err
		}
		if h[0] > 3 {
			return 0, errorf(CodeEngine, "", "log stream of the engine is not framed as expected")
		}
		d.left = uint32(h[4])<<24 | uint32(h[5])<<16 | uint32(h[6])<<8 | uint32(h[7])
	}
	if uint64(len(p)) > uint64(d.left) {
		p = p[:d.left]
	}
	n, err := d.src.Read(p)
	d.left -= uint32(n)
	if err == io.EOF && d.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (d *demux) Close() error { return d.src.Close() }
