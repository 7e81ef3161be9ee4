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
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/lab/memnet"
)

// readRig is an agent with an engine and a node made of handlers, and a tap on
// what the agent sends.
type readRig struct {
	client *Client
	sent   strings.Builder
	engine http.HandlerFunc
	node   http.HandlerFunc
}

func readBubble(t *testing.T, test func(t *testing.T, r *readRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &readRig{}
		ctx, stop := context.WithCancel(t.Context())
		engine, node := memnet.Listen("engine"), memnet.Listen("127.0.0.1:8001")
		es := &http.Server{Handler: http.HandlerFunc(r.serveEngine)}
		ns := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.node(w, q) })}
		go es.Serve(engine)
		go ns.Serve(node)
		cfg := Config{DialEngine: func(ctx context.Context) (net.Conn, error) { return engine.Dial(ctx, "agent") },
			DialNode: func(ctx context.Context, port int) (net.Conn, error) {
				if port != 8001 {
					return nil, syscall.ECONNREFUSED
				}
				return node.Dial(ctx, "agent")
			}}
		near, far := memnet.Pipe("client", "agent")
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, cfg, far, tap{far, &r.sent}); far.Close() }()
		r.client = NewClient(near)
		test(t, r)
		r.client.Close()
		<-served
		stop()
		es.Close()
		ns.Close()
	})
}

func (r *readRig) serveEngine(w http.ResponseWriter, q *http.Request) {
	path := strings.TrimPrefix(q.URL.Path, "/v1.41")
	names := map[string]string{nodeName: nodeName, nodeName + "-pre-1": nodeName + "-pre-1", "0123456789ab": nodeName, "other": "other", nodeName + "2": nodeName + "2"}
	ref, inspect := strings.CutSuffix(strings.TrimPrefix(path, "/containers/"), "/json")
	switch {
	case path == "/version":
		fmt.Fprint(w, `{"Version":"20.10.24","ApiVersion":"1.41","MinAPIVersion":"1.12"}`)
	case inspect && names[ref] == "":
		w.WriteHeader(404)
		fmt.Fprint(w, `{"message":"No such container"}`)
	case inspect:
		fmt.Fprintf(w, `{"Id":"id-of-%s","Name":"/%s","Config":{"Env":["QNET_WALLET_SEED=sentinel words"]}}`, names[ref], names[ref])
	default:
		r.engine(w, q)
	}
}

func isHostCode(t *testing.T, err error, code string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%v, want code %s", err, code)
	}
}

func TestNodeRequestThroughTheAgent(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		long := bytes.Repeat([]byte("0123456789abcdef"), 80_000) // several windows
		var seen []string
		r.node = func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			seen = append(seen, fmt.Sprintf("%s %s %s %q origin=%q", q.Method, q.Host, q.URL, body, q.Header["Origin"]))
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Set-Cookie", "nothing for us")
			w.WriteHeader(429)
			w.Write(long)
		}
		ask := func(q NodeRequest) (NodeAnswer, []byte) {
			t.Helper()
			a, err := r.client.NodeHTTP(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(a.Body)
			if err != nil {
				t.Fatal(err)
			}
			return a, body
		}
		a, body := ask(NodeRequest{Port: 8001, Method: "GET", Path: "/api/v1/x?y=1"})
		if a.Status != 429 || a.ContentType != "application/json" || a.RetryAfter != "7" || !bytes.Equal(body, long) {
			t.Errorf("%d %q %q, %d bytes of %d", a.Status, a.ContentType, a.RetryAfter, len(body), len(long))
		}
		ask(NodeRequest{Port: 7901, Metrics: true, Method: "POST", Path: "/rpc", ContentType: "application/json", Body: []byte("{}")})
		want := []string{`GET 127.0.0.1:8001 /api/v1/x?y=1 "" origin=[]`, `POST 127.0.0.1:8001 /rpc "{}" origin=[]`}
		if !slices.Equal(seen, want) {
			t.Errorf("the node saw %q", seen)
		}
		synctest.Wait()
		if strings.Contains(r.sent.String(), "nothing for us") {
			t.Error("a header that nobody reads left the host")
		}
		_, err := r.client.NodeHTTP(t.Context(), NodeRequest{Port: 8002, Method: "GET", Path: "/healthz"})
		isHostCode(t, err, CodeNodeAway)
		for _, bad := range []NodeRequest{
			{Port: 8001, Method: "POST", Path: "/api/v1/shutdown"}, {Port: 8001, Method: "POST", Path: "/rpc?x"}, {Port: 8001, Method: "DELETE", Path: "/"},
			{Port: 8001, Method: "GET", Path: "http://192.0.2.1/"}, {Port: 8001, Method: "GET", Path: "@192.0.2.1/"},
			{Port: 8001, Method: "GET", Path: "/\r\nOrigin: x"}, {Port: 0, Method: "GET", Path: "/"}, {Port: 65500, Metrics: true, Method: "GET", Path: "/"},
			{Port: 8001, Method: "GET", Path: "/", Body: []byte("x")}, {Port: 8001, Method: "POST", Path: "/rpc", Body: make([]byte, maxNodeBody+1)},
			{Port: 8001, Method: "GET", Path: "/" + strings.Repeat("x", maxNodePath)},
		} {
			_, err := r.client.NodeHTTP(t.Context(), bad)
			isHostCode(t, err, CodeBadRequest)
			// the agent does not rely on its client's check
			isHostCode(t, r.client.do(t.Context(), methodNodeHTTP, nil, bad, nil, nil), CodeBadRequest)
		}
		if len(seen) != 2 {
			t.Errorf("a refused request reached the node: %q", seen)
		}
	})
}

// Without a dialler of a lab's the agent goes to the host's own loopback.
func TestNodeRequestOverRealLoopback(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "ok h=1") }))
	defer srv.Close()
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), Config{}, far, far) }()
	c := NewClient(near)
	a, err := c.NodeHTTP(t.Context(), NodeRequest{Port: srv.Listener.Addr().(*net.TCPAddr).Port, Method: "GET", Path: "/healthz"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(a.Body); err != nil || string(b) != "ok h=1" || a.Status != 200 {
		t.Errorf("%d %q %v", a.Status, b, err)
	}
	c.Close()
	<-served
}

func TestNodeAnswersThatEndBadly(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		left := make(chan struct{})
		r.node = func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/cut":
				w.Header().Set("Content-Length", "100")
				w.Write([]byte("half"))
			case "/hang":
				<-q.Context().Done()
				close(left)
			}
		}
		get := func(ctx context.Context, path string) error {
			a, err := r.client.NodeHTTP(ctx, NodeRequest{Port: 8001, Method: "GET", Path: path})
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, a.Body)
			return err
		}
		if err := get(t.Context(), "/cut"); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a cut body: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := get(ctx, "/hang"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a node that hangs: %v", err)
		}
		<-left // the cancel has reached the node
	})
}

func TestBodyAboveItsLimit(t *testing.T) {
	for limit, code := range map[int64]string{0: "", 100: "", 99: CodeTooLarge} {
		f := &flow{out: newOutbox(io.Discard), room: make(chan struct{}, 1)}
		f.more(1)
		err := f.copy(t.Context(), bytes.NewReader(make([]byte, 100)), limit)
		f.out.close()
		if code != "" {
			isHostCode(t, err, code)
		} else if err != nil {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// A reader that takes nothing stops its own stream at the source, and no other
// request of the connection waits for it.
func TestSlowReaderHoldsUpNothing(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		var produced atomic.Int64
		left := make(chan struct{})
		r.engine = func(w http.ResponseWriter, q *http.Request) {
			defer close(left)
			for i := 0; q.Context().Err() == nil; i++ {
				n, err := fmt.Fprintf(w, "%015d\n", i)
				if err != nil {
					return
				}
				produced.Add(int64(n))
			}
		}
		body, err := r.client.Logs(t.Context(), LogsRequest{Node: nodeName, Container: nodeName, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // all stand still
		stuck := produced.Load()
		if limit := int64(streamWindow*streamChunk + 1<<20); stuck > limit { // the rest is what the engine's connection holds
			t.Errorf("%d bytes on the way, want at most %d", stuck, limit)
		}
		for range 100 {
			if _, err := r.client.Hello(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		line := make([]byte, 16)
		for i := 0; i < 80_000; i++ { // some windows, in order
			if _, err := io.ReadFull(body, line); err != nil || string(line) != fmt.Sprintf("%015d\n", i) {
				t.Fatalf("line %d is %q, %v", i, line, err)
			}
		}
		body.Close()
		<-left
		synctest.Wait()
		if _, err := io.Copy(io.Discard, body); err == nil {
			t.Error("a closed log ends as if it had come to its end")
		}
	})
}

func TestLogsOfTheFamilyOnly(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		var asked []string
		r.engine = func(w http.ResponseWriter, q *http.Request) {
			asked = append(asked, q.URL.Path+"?"+q.URL.RawQuery)
			fmt.Fprint(w, "\x01\x00\x00\x00\x00\x00\x00\x04one\n\x02\x00\x00\x00\x00\x00\x00\x04two\n")
		}
		at := time.Unix(1767323045, 6)
		for _, name := range []string{nodeName, nodeName + "-pre-1", "0123456789ab"} {
			body, err := r.client.Logs(t.Context(), LogsRequest{Node: nodeName, Container: name, Since: at, Until: at.Add(time.Second), Tail: 5, Timestamps: true})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(body); err != nil || string(got) != "\x01\x00\x00\x00\x00\x00\x00\x04one\n\x02\x00\x00\x00\x00\x00\x00\x04two\n" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if want := "/v1.41/containers/id-of-" + nodeName + "-pre-1/logs?since=1767323045.000000006&stderr=1&stdout=1&tail=5&timestamps=1&until=1767323046.000000006"; asked[1] != want {
			t.Errorf("asked %s, want %s", asked[1], want)
		}
		for _, name := range []string{"other", nodeName + "2"} {
			_, err := r.client.Logs(t.Context(), LogsRequest{Node: nodeName, Container: name})
			isHostCode(t, err, CodeBadRequest)
		}
		_, err := r.client.Logs(t.Context(), LogsRequest{Container: nodeName})
		isHostCode(t, err, CodeBadRequest)
		_, err = r.client.Logs(t.Context(), LogsRequest{Node: nodeName, Container: "nobody"})
		isHostCode(t, err, CodeNotFound)
		if len(asked) != 3 {
			t.Errorf("asked %q", asked)
		}
	})
}

func TestEventsOfTheFamilyWithoutLabels(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		var query string
		left := make(chan struct{})
		r.engine = func(w http.ResponseWriter, q *http.Request) {
			defer close(left)
			query = q.URL.Query().Get("filters") + " " + q.URL.Query().Get("since")
			emit := func(action, name, more string) {
				fmt.Fprintf(w, `{"Type":"container","Action":%q,"Actor":{"ID":"aa","Attributes":{"name":%q,"image":"qnet:v1","label":"sentinel"%s}},"timeNano":1767323045000000001}`+"\n", action, name, more)
			}
			emit("die", nodeName, `,"exitCode":"137"`)
			emit("start", "other", "")
			emit("start", nodeName+"2", "")
			emit("exec_create: sh -c sentinel", nodeName, "")
			emit("rename", "elsewhere", `,"oldName":"/`+nodeName+`-pre-1"`)
			w.(http.Flusher).Flush()
			<-q.Context().Done()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var got []ContainerEvent
		err := r.client.Events(ctx, EventsRequest{Node: nodeName, Names: []string{nodeName, "0123456789ab"}, Since: time.Unix(1767323045, 0)}, func(e ContainerEvent) {
			if got = append(got, e); len(got) == 3 {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		at := time.Unix(1767323045, 1).UTC()
		want := []ContainerEvent{{at, "die", "aa", nodeName, "qnet:v1", "137", ""}, {at, "exec_create", "aa", nodeName, "qnet:v1", "", ""}, {at, "rename", "aa", "elsewhere", "qnet:v1", "", ""}}
		if !slices.Equal(got, want) {
			t.Errorf("%+v", got)
		}
		if filters, _ := json.Marshal(map[string][]string{"container": {nodeName, "0123456789ab"}, "type": {"container"}}); query != string(filters)+" 1767323045.000000000" {
			t.Errorf("asked %s", query)
		}
		<-left // the cancel has reached the engine
		synctest.Wait()
		if strings.Contains(r.sent.String(), "sentinel") {
			t.Error("a label or a command line left the host")
		}
		isHostCode(t, r.client.Events(t.Context(), EventsRequest{Node: nodeName, Names: []string{"other"}}, nil), CodeBadRequest)
	})
}

func TestEventsEndWithTheEngineAndTheAgent(t *testing.T) {
	readBubble(t, func(t *testing.T, r *readRig) {
		r.engine = func(http.ResponseWriter, *http.Request) {}
		err := r.client.Events(t.Context(), EventsRequest{Node: nodeName}, nil)
		if !errors.Is(err, ErrEngineAway) {
			t.Errorf("an engine that ends its stream: %v", err)
		}
		r.engine = func(w http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
		time.AfterFunc(time.Minute, func() { r.client.Close() })
		var gone *ConnectionError
		if err := r.client.Events(t.Context(), EventsRequest{Node: nodeName}, nil); !errors.As(err, &gone) {
			t.Errorf("a connection that ends: %v", err)
		}
	})
}
