package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/client"

	"github.com/qnetops/qnetops/lab/memnet"
)

const testRepo = "registry.lab.example:5000/qnet"

// fakeRunner starts processes that run until they are signalled, as their
// variables say: EXIT=code[@duration], STUBBORN=1 ignores SIGTERM.
type fakeRunner struct {
	mu    sync.Mutex
	procs []Process
	fail  error
}

type fakeProc struct {
	once sync.Once
	done chan struct{}
	code int
	deaf bool
	out  io.Writer
}

func (r *fakeRunner) Start(_ context.Context, p Process) (Running, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, r.fail
	}
	r.procs = append(r.procs, p)
	f := &fakeProc{done: make(chan struct{}), out: p.Stdout}
	fmt.Fprintf(p.Stdout, "start %d\n", len(r.procs))
	fmt.Fprintln(p.Stderr, "warning")
	for _, kv := range p.Env {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "STUBBORN":
			f.deaf = true
		case "EXIT":
			code, after, _ := strings.Cut(v, "@")
			d, _ := time.ParseDuration(after)
			n := 0
			fmt.Sscan(code, &n)
			time.AfterFunc(d, func() { f.end(n) })
		}
	}
	return f, nil
}

func (f *fakeProc) end(code int) {
	f.once.Do(func() { f.code = code; close(f.done) })
}

func (f *fakeProc) Signal(name string) error {
	switch {
	case name == "SIGKILL":
		f.end(137)
	case !f.deaf:
		fmt.Fprintln(f.out, "got "+name)
		f.end(0)
	}
	return nil
}

func (f *fakeProc) Wait() int { <-f.done; return f.code }

// rig is one engine and clients for it.
type rig struct {
	t      *testing.T
	e      *Engine
	run    *fakeRunner
	reg    *Registry
	digest map[string]string
	cli    *client.Client
}

func testImage(version string) Image {
	return Image{Entrypoint: []string{"/qnet"}, Cmd: []string{"run"}, Env: []string{"PATH=/bin", "FOO=image", "QNET_BUILD_ID=" + version},
		Labels: map[string]string{"version": version}, ExposedPorts: []string{"8001/tcp"}, Volumes: []string{"/app/cache"},
		Healthcheck: &Healthcheck{Test: []string{"CMD", "/qnet", "health"}, Interval: 30 * time.Second}, StopSignal: "SIGTERM",
		Size: 90 << 20, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, run: &fakeRunner{}, reg: NewRegistry(), digest: map[string]string{}}
	for _, v := range []string{"v1", "v2"} {
		d, err := r.reg.Push(testRepo+":"+v, testImage(v))
		if err != nil {
			t.Fatal(err)
		}
		r.digest[v] = d
	}
	cfg := Config{Host: "host1", Root: t.TempDir(), Registry: r.reg, Runner: r.run, Seed: 7}
	if change != nil {
		change(&cfg)
	}
	r.e = New(cfg)
	t.Cleanup(r.e.Close)
	if err := r.e.Load(testRepo + ":v1"); err != nil {
		t.Fatal(err)
	}
	r.cli = r.client()
	return r
}

func (r *rig) client() *client.Client {
	cli, err := client.NewClientWithOpts(client.WithHost("tcp://lab"), client.WithAPIVersionNegotiation(), client.WithDialContext(r.dial))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cli.Close() })
	return cli
}

func (r *rig) dial(context.Context, string, string) (net.Conn, error) {
	c, s := memnet.Pipe("test", "docker.sock")
	if err := r.e.ServeConn(s); err != nil {
		return nil, err
	}
	return c, nil
}

// raw sends one request without the Docker client.
func (r *rig) raw(method, path string, body any) (int, map[string]any) {
	r.t.Helper()
	code, b := r.rawBytes(method, path, body)
	var o map[string]any
	json.Unmarshal(b, &o)
	return code, o
}

func (r *rig) rawBytes(method, path string, body any) (int, []byte) {
	r.t.Helper()
	b, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://lab"+path, bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	tr := &http.Transport{DialContext: r.dial, DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	out, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, out
}

// want sends a request and checks its status and a part of its message.
func (r *rig) want(code int, message, method, path string, body any) map[string]any {
	r.t.Helper()
	got, o := r.raw(method, path, body)
	text, _ := o["message"].(string)
	if got != code || !strings.Contains(text, message) {
		r.t.Fatalf("%s %s: want %d %q, got %d %v", method, path, code, message, got, o)
	}
	return o
}

func (r *rig) mustCreate(name string, body map[string]any) string {
	r.t.Helper()
	if body["Image"] == nil {
		body["Image"] = testRepo + ":v1"
	}
	return r.want(201, "", "POST", "/containers/create?name="+name, body)["Id"].(string)
}

// field digs into inspect.
func (r *rig) field(ref string, path ...string) any {
	r.t.Helper()
	_, o := r.raw("GET", "/containers/"+ref+"/json", nil)
	var v any = o
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			r.t.Fatalf("inspect %s: no %v in %v", ref, path, o)
		}
		v = m[p]
	}
	return v
}

func policy(name string) map[string]any {
	return map[string]any{"RestartPolicy": map[string]any{"Name": name}}
}

func bubble(t *testing.T, change func(*Config), body func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { body(t, newRig(t, change)) })
}

// words prints values with a space between all of them.
func words(v ...any) string { return strings.TrimSpace(fmt.Sprintln(v...)) }
