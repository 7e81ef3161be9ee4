package host

import (
	"bytes"
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
	"time"
)

// Bounds of a request to the node. The answer's is above what package node
// reads of any answer, so that a reader's own bound speaks first.
const (
	maxNodePath   = 8 << 10
	maxNodeBody   = 1 << 20
	maxNodeAnswer = 33 << 20
	// metricsOffset is what the node adds to its API port for its metrics.
	metricsOffset = 100
)

// NodeRequest is one HTTP request to the node on the host's own loopback, for
// hosts whose sshd opens no channel to it. There is no way to any other address,
// and no header but the content type: an Origin would make nobody of the caller.
type NodeRequest struct {
	Port        int    `json:"port"`              // api_port of the host
	Metrics     bool   `json:"metrics,omitempty"` // the metrics port that belongs to it
	Method      string `json:"method"`            // GET, or POST to / and /rpc
	Path        string `json:"path"`              // with its query
	ContentType string `json:"content_type,omitempty"`
	Body        []byte `json:"body,omitempty"`
}

// NodeAnswer is the node's answer. The body is read as it comes and is closed
// by the caller; reading it to the end or closing it ends the request. A body
// that breaks off gives an error that is io.ErrUnexpectedEOF.
type NodeAnswer struct {
	Status      int           `json:"status"`
	ContentType string        `json:"content_type,omitempty"`
	RetryAfter  string        `json:"retry_after,omitempty"`
	Body        io.ReadCloser `json:"-"`
}

// LogsRequest asks for a container's log as the engine gives it.
type LogsRequest struct {
	Node       string    `json:"node"`      // the node's container, whose family may be read
	Container  string    `json:"container"` // name or id of one of the family
	Since      time.Time `json:"since,omitzero"`
	Until      time.Time `json:"until,omitzero"`
	Tail       int       `json:"tail,omitempty"` // 0: all
	Follow     bool      `json:"follow,omitempty"`
	Timestamps bool      `json:"timestamps,omitempty"`
}

// EventsRequest asks what happens to the containers of a node's family.
type EventsRequest struct {
	Node  string    `json:"node"`
	Names []string  `json:"names,omitempty"` // names or ids; none: the whole family
	Since time.Time `json:"since,omitzero"`  // zero: from now
}

// ContainerEvent is one event. The labels, which an engine adds to each, and the
// command lines of execs stay on the host.
type ContainerEvent struct {
	Time     time.Time `json:"time"`
	Action   string    `json:"action"`
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Image    string    `json:"image,omitempty"`
	ExitCode string    `json:"exit_code,omitempty"`
	Signal   string    `json:"signal,omitempty"`
}

func newNodeTransport(cfg Config) *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		if cfg.DialNode == nil {
			d := net.Dialer{Timeout: 10 * time.Second}
			return d.DialContext(ctx, "tcp", address)
		}
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		return cfg.DialNode(ctx, port)
	}}
}

// target checks a request and gives its address.
func (r NodeRequest) target() (string, error) {
	bad := func(why string) (string, error) {
		return "", errorf(CodeBadRequest, "", "request to the node: %s", why)
	}
	port := r.Port
	if r.Metrics {
		port += metricsOffset
	}
	u, err := url.ParseRequestURI(r.Path)
	switch {
	case r.Port < 1 || port > 65535:
		return bad("no such port")
	case err != nil || u.Scheme != "" || !strings.HasPrefix(r.Path, "/") || len(r.Path) > maxNodePath:
		return bad("path is not one")
	case len(r.Body) > maxNodeBody:
		return bad("body is too large")
	case r.Method == http.MethodGet && len(r.Body) == 0:
	case r.Method == http.MethodPost && (r.Path == "/" || r.Path == "/rpc"):
	default:
		return bad(r.Method + " is not for this path")
	}
	return "http://127.0.0.1:" + strconv.Itoa(port) + r.Path, nil
}

// nodeHTTP sends the head of the answer and then its body.
func (h *hostOps) nodeHTTP(ctx context.Context, p NodeRequest, f *flow) error {
	target, err := p.target()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, p.Method, target, bytes.NewReader(p.Body))
	if err != nil {
		return errorf(CodeBadRequest, "", "request to the node: its address is not one")
	}
	if p.ContentType != "" {
		req.Header.Set("Content-Type", p.ContentType)
	}
	resp, err := h.node.RoundTrip(req) // no redirects: a node sends none
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errorf(CodeNodeAway, "is the node up, and is api_port right in hosts.toml", "node does not answer on %s: %v", req.URL.Host, err)
	}
	defer resp.Body.Close()
	head := NodeAnswer{Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), RetryAfter: resp.Header.Get("Retry-After")}
	if err := f.send(ctx, head); err != nil {
		return err
	}
	return f.copy(ctx, resp.Body, maxNodeAnswer)
}

// ofFamily says whether a container of this name is the node's or one that this
// program puts beside it (NODE-next-…, NODE-pre-…).
func ofFamily(node, name string) bool {
	return node != "" && (name == node || strings.HasPrefix(name, node+"-"))
}

func notOfFamily(node, ref string) error {
	return errorf(CodeBadRequest, "", "container %s is not one of node container %s", ref, node)
}

// logs sends the engine's log stream as it is, frames and all: they tell the two
// outputs apart. The first item is empty and says that the log is open.
func (h *hostOps) logs(ctx context.Context, p LogsRequest, f *flow) error {
	_, o, err := h.eng.inspect(ctx, p.Container)
	if err != nil {
		return err
	}
	if !ofFamily(p.Node, strings.TrimPrefix(str(o, "Name"), "/")) {
		return notOfFamily(p.Node, p.Container)
	}
	q := url.Values{}
	if p.Tail > 0 {
		q.Set("tail", strconv.Itoa(p.Tail))
	}
	for key, at := range map[string]time.Time{"since": p.Since, "until": p.Until} {
		if !at.IsZero() {
			q.Set(key, engineTime(at))
		}
	}
	for key, on := range map[string]bool{"follow": p.Follow, "timestamps": p.Timestamps} {
		if on {
			q.Set(key, "1")
		}
	}
	body, err := h.eng.rawLogs(ctx, str(o, "Id"), q)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := f.send(ctx, []byte{}); err != nil {
		return err
	}
	return f.copy(ctx, body, 0)
}

// engineTime writes a time as the engine's queries take it.
func engineTime(t time.Time) string {
	return strconv.FormatInt(t.Unix(), 10) + "." + strconv.FormatInt(int64(1e9+t.Nanosecond()), 10)[1:]
}

var containerID = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

// engineEvent is what is read of an event.
type engineEvent struct {
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
	TimeNano int64 `json:"timeNano"`
}

func (e engineEvent) public() ContainerEvent {
	a := e.Actor.Attributes
	action := e.Action
	if strings.HasPrefix(action, "exec_") {
		action, _, _ = strings.Cut(action, ":") // a command line follows
	}
	return ContainerEvent{Time: time.Unix(0, e.TimeNano).UTC(), Action: action, ID: e.Actor.ID, Name: a["name"], Image: a["image"],
		ExitCode: a["exitCode"], Signal: a["signal"]}
}

// events sends events of the family until the reader or the engine ends. An
// engine matches names by their beginning, so the family is checked here again.
func (h *hostOps) events(ctx context.Context, p EventsRequest, f *flow) error {
	filters := map[string][]string{"type": {"container"}}
	for _, name := range p.Names {
		if !ofFamily(p.Node, name) && !containerID.MatchString(name) {
			return notOfFamily(p.Node, name)
		}
		filters["container"] = append(filters["container"], name)
	}
	raw, err := json.Marshal(filters)
	if err != nil {
		return err
	}
	q := url.Values{"filters": {string(raw)}}
	if !p.Since.IsZero() {
		q.Set("since", engineTime(p.Since))
	}
	prefix, err := h.eng.negotiate(ctx)
	if err != nil {
		return err
	}
	resp, err := h.eng.open(ctx, http.MethodGet, prefix+"/events", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var e engineEvent
		switch err := d.Decode(&e); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return errorf(CodeEngineAway, "is the Docker daemon running?", "engine ended its stream of events")
		case err != nil:
			return h.eng.away(http.MethodGet, "/events", err)
		}
		if a := e.Actor.Attributes; !ofFamily(p.Node, a["name"]) && !ofFamily(p.Node, strings.TrimPrefix(a["oldName"], "/")) {
			continue
		}
		if err := f.send(ctx, e.public()); err != nil {
			return err
		}
	}
}

// NodeHTTP sends one request to the node on the host's loopback. The whole
// exchange, the body too, is bounded by ctx. Errors: *Error with CodeNodeAway
// where nothing answers there.
func (c *Client) NodeHTTP(ctx context.Context, req NodeRequest) (NodeAnswer, error) {
	if _, err := req.target(); err != nil {
		return NodeAnswer{}, err
	}
	s := c.stream(ctx, methodNodeHTTP, req)
	var answer NodeAnswer
	raw, err := s.next()
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err != nil {
		s.close()
		return NodeAnswer{}, headless(err)
	}
	answer.Body = &streamBody{s: s}
	return answer, nil
}

// headless is the error of a stream that ended before its first item.
func headless(err error) error {
	if errors.Is(err, io.EOF) {
		return errorf(CodeCut, "", "host agent gave no answer")
	}
	return err
}

// Logs opens the log of a container of the node's family. The bytes are those
// of the engine: frames that tell the outputs apart, or plain text where the
// container has a terminal. The caller closes it; it ends with ctx.
func (c *Client) Logs(ctx context.Context, req LogsRequest) (io.ReadCloser, error) {
	s := c.stream(ctx, methodLogs, req)
	if _, err := s.next(); err != nil {
		s.close()
		return nil, headless(err)
	}
	return &streamBody{s: s}, nil
}

// Events calls fn for each event until ctx, the engine or the connection ends
// and gives the reason. While fn runs no further event is taken.
func (c *Client) Events(ctx context.Context, req EventsRequest, fn func(ContainerEvent)) error {
	s := c.stream(ctx, methodEvents, req)
	defer s.close()
	for {
		raw, err := s.next()
		if err != nil {
			return headless(err)
		}
		var e ContainerEvent
		if err := json.Unmarshal(raw, &e); err != nil {
			return errorf(CodeBadRequest, "", "host agent sent an event that is none")
		}
		fn(e)
	}
}
