package fleet

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/sshd"
)

// fakeEngine answers the reads with the bodies of the Docker API's
// specification and refuses everything else.
type fakeEngine struct {
	api   string
	now   func() time.Time // of the host's clock, nil: a fixed one
	mu    sync.Mutex
	paths []string
	logs  func(rw http.ResponseWriter, r *http.Request)
}

func (e *fakeEngine) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.paths = append(e.paths, r.Method+" "+r.URL.Path)
	e.mu.Unlock()
	rw.Header().Set("Content-Type", "application/json")
	rest, versioned := strings.CutPrefix(r.URL.Path, "/v"+e.api)
	switch {
	case r.URL.Path == "/_ping":
		rw.Header().Set("Api-Version", e.api)
		rw.Header().Set("Ostype", "linux")
	case !versioned || r.Method != http.MethodGet:
		rw.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(rw, `{"message":"not served"}`)
	case rest == "/info":
		now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
		if e.now != nil {
			now = e.now()
		}
		fmt.Fprintf(rw, `{"ServerVersion":"20.10.24","OSType":"linux","Architecture":"x86_64","DockerRootDir":"/var/lib/docker","Driver":"overlay2","LoggingDriver":"json-file","Containers":2,"ContainersRunning":1,"Images":3,"SystemTime":%q}`, now.Format(time.RFC3339Nano))
	case rest == "/containers/json" && r.URL.Query().Get("all") == "1":
		fmt.Fprint(rw, `[{"Id":"bb","Names":["/qnet-tls"],"Image":"caddy:2","ImageID":"sha256:2","State":"running","Status":"Up 3 hours","Created":1767323045,"Ports":[],"Labels":{},"HostConfig":{"NetworkMode":"host"},"NetworkSettings":{"Networks":{"host":{}}},"Mounts":[]},
{"Id":"aa","Names":["/other/link","/qnet-genesis-001"],"Image":"qnet:v1","ImageID":"sha256:1","State":"running","Status":"Up 2 hours","Created":1767323045,"Labels":{"com.docker.compose.project":"node"},"Ports":[{"IP":"0.0.0.0","PrivatePort":8001,"PublicPort":8001,"Type":"tcp"},{"PrivatePort":9876,"Type":"tcp"}],"HostConfig":{"NetworkMode":"default"},"NetworkSettings":{"Networks":{"bridge":{}}},"Mounts":[{"Type":"bind","Source":"/opt/qnet/data","Destination":"/app/data","RW":true}]}]`)
	case rest == "/images/json":
		if strings.Contains(r.URL.Query().Get("filters"), "gone") {
			fmt.Fprint(rw, `[]`)
			return
		}
		fmt.Fprint(rw, `[{"Id":"sha256:1","RepoTags":["qnet:v1"],"RepoDigests":["registry.example.org/qnet@sha256:d1"],"Size":1000,"Created":1767323045}]`)
	case strings.HasSuffix(rest, "/logs") && strings.HasPrefix(rest, "/containers/qnet-genesis-001/"):
		e.logs(rw, r)
	case rest == "/events":
		fmt.Fprintln(rw, `{"Type":"container","Action":"die","Actor":{"ID":"aa","Attributes":{"name":"qnet-genesis-001","image":"qnet:v1","exitCode":"137","secret.label":"x"}},"time":1767323045,"timeNano":1767323045000000001}`)
	default:
		rw.WriteHeader(http.StatusNotFound)
		fmt.Fprint(rw, `{"message":"No such container"}`)
	}
}

func engineWorld(t *testing.T, api string, test func(t *testing.T, c *Conn, m *machine, e *fakeEngine)) {
	t.Helper()
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		e := &fakeEngine{api: api}
		serveHTTP(t, m.engine, e)
		test(t, w.conn(w.open(), "001"), m, e)
	})
}

// 1.41 is Docker 20.10, the oldest that must work.
func TestEngineReads(t *testing.T) {
	for _, api := range []string{"1.41", "1.47"} {
		engineWorld(t, api, func(t *testing.T, c *Conn, m *machine, e *fakeEngine) {
			ctx := t.Context()
			info, err := c.Engine().Info(ctx)
			if err != nil || info.Version != "20.10.24" || info.API != api || info.Root != "/var/lib/docker" || !info.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)) {
				t.Errorf("Info = %+v, %v", info, err)
			}
			list, err := c.Engine().Containers(ctx)
			want := Container{ID: "aa", Name: "qnet-genesis-001", Image: "qnet:v1", ImageID: "sha256:1", State: "running", Status: "Up 2 hours",
				Created: time.Unix(1767323045, 0).UTC(), NetworkMode: "default", Networks: []string{"bridge"}, Compose: "node",
				Ports:  []Port{{"0.0.0.0", 8001, 8001, "tcp"}, {"", 0, 9876, "tcp"}},
				Mounts: []Mount{{Kind: "bind", Source: "/opt/qnet/data", Destination: "/app/data", Writable: true}}}
			if err != nil || len(list) != 2 || !reflect.DeepEqual(list[0], want) {
				t.Errorf("Containers = %+v, %v", list, err)
			}
			i, err := c.Engine().Image(ctx, "qnet:v1")
			if err != nil || i.ID != "sha256:1" || i.Digests[0] != "registry.example.org/qnet@sha256:d1" || i.Bytes != 1000 {
				t.Errorf("Image = %+v, %v", i, err)
			}
			var fault *EngineError
			if _, err := c.Engine().Image(ctx, "gone:v1"); !errors.As(err, &fault) || fault.Fault != EngineNotFound {
				t.Errorf("missing image: %v", err)
			}
			// No read may bring an environment: inspects are not among the requests.
			for _, p := range e.paths {
				if strings.HasPrefix(p, "POST") || strings.HasSuffix(p, "/json") && !strings.HasSuffix(p, "/containers/json") && !strings.HasSuffix(p, "/images/json") {
					t.Errorf("asked for %s", p)
				}
			}
			if n := m.srv.Stats().Forwards; n != 1 {
				t.Errorf("%d channels to the engine, want 1", n)
			}
		})
	}
}

// TestRestKeepsTheConnection: what Rest closes are the channels of both HTTP clients;
// the next reads open new ones on the same SSH connection.
func TestRestKeepsTheConnection(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, m *machine, _ *fakeEngine) {
		m.serveNode()
		read := func(want int) {
			t.Helper()
			if err := c.Engine().Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Node().Healthz(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := m.srv.Stats().Forwards; got != want {
				t.Errorf("%d channels were opened, want %d", got, want)
			}
		}
		read(2)
		read(2)
		c.Rest()
		read(4)
		if len(m.w.dials) != 1 {
			t.Errorf("%d SSH connections, want 1", len(m.w.dials))
		}
	})
}

func TestEngineTooOld(t *testing.T) {
	engineWorld(t, "1.40", func(t *testing.T, c *Conn, _ *machine, _ *fakeEngine) {
		_, err := c.Engine().Containers(t.Context())
		var fault *EngineError
		if !errors.As(err, &fault) || fault.Fault != EngineTooOld || !strings.Contains(err.Error(), "1.40") || !strings.Contains(fault.Hint(), "20.10") {
			t.Errorf("%v, want EngineTooOld", err)
		}
	})
}

func TestEngineMissingContainer(t *testing.T) {
	engineWorld(t, "1.43", func(t *testing.T, c *Conn, _ *machine, _ *fakeEngine) {
		_, err := c.Engine().Logs(t.Context(), "nobody", LogOptions{})
		var fault *EngineError
		if !errors.As(err, &fault) || fault.Fault != EngineNotFound {
			t.Errorf("%v, want EngineNotFound", err)
		}
	})
}

// The socket is not permitted and no agent can be had: the error names the
// channel and the agent's trouble.
func TestEngineSocketRefused(t *testing.T) {
	for _, refused := range []error{syscall.EACCES, syscall.ENOENT} {
		bubble(t, func(t *testing.T, w *world) {
			m := w.add(nil)
			m.socket = refused
			c := w.conn(w.open(), "001")
			_, err := c.Engine().Info(t.Context())
			var fault *ForwardingError
			if !errors.As(err, &fault) || fault.Target != DefaultEngineSocket || !strings.Contains(fault.Hint(), "AllowStreamLocalForwarding") {
				t.Errorf("%v, want a ForwardingError for the socket", err)
			}
			var agent *AgentError
			if !errors.As(err, &agent) {
				t.Errorf("%v: says nothing of the agent", err)
			}
			_, err = c.Engine().Logs(t.Context(), "qnet-genesis-001", LogOptions{Follow: true})
			if !errors.As(err, &fault) {
				t.Errorf("follow: %v, want a ForwardingError", err)
			}
		})
	}
}

func TestEngineDiesInAnAnswer(t *testing.T) {
	engineWorld(t, "1.43", func(t *testing.T, c *Conn, m *machine, e *fakeEngine) {
		e.logs = func(rw http.ResponseWriter, r *http.Request) {
			writeFrame(rw, 1, "one\n")
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		l, err := c.Engine().Logs(t.Context(), "qnet-genesis-001", LogOptions{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if line, err := l.Next(); err != nil || line.Text != "one" {
			t.Fatalf("%v, %v", line, err)
		}
		m.srv.DropAll()
		var dropped *DroppedError
		if _, err := l.Next(); !errors.As(err, &dropped) {
			t.Errorf("%v, want a DroppedError", err)
		}
	})
}

func writeFrame(w io.Writer, stream byte, text string) {
	head := [8]byte{stream}
	binary.BigEndian.PutUint32(head[4:], uint32(len(text)))
	w.Write(append(head[:], text...))
}

func TestLogs(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, _ *machine, e *fakeEngine) {
		var query string
		e.logs = func(rw http.ResponseWriter, r *http.Request) {
			query = r.URL.RawQuery
			writeFrame(rw, 1, "first\r\nsec")
			writeFrame(rw, 2, "[ERR] ünïcode\n")
			writeFrame(rw, 1, "ond\n\nlast without end")
		}
		opts := LogOptions{Since: time.Unix(1767323045, 6), Tail: 50, Timestamps: true}
		l, err := c.Engine().Logs(t.Context(), "qnet-genesis-001", opts)
		if err != nil {
			t.Fatal(err)
		}
		var got []LogLine
		for line, err := range l.All() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		want := []LogLine{{false, "first"}, {true, "[ERR] ünïcode"}, {false, "second"}, {false, ""}, {false, "last without end"}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		if query != "since=1767323045.000000006&stderr=1&stdout=1&tail=50&timestamps=1" {
			t.Errorf("asked %s", query)
		}
		if _, err := l.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestLogsOfATerminal(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, _ *machine, e *fakeEngine) {
		e.logs = func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "plain\r\ntext\r\n") }
		l, err := c.Engine().Logs(t.Context(), "qnet-genesis-001", LogOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"plain", "text"} {
			if line, err := l.Next(); err != nil || line.Text != want {
				t.Errorf("%v, %v", line, err)
			}
		}
	})
}

func TestCutLogIsAnError(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, _ *machine, e *fakeEngine) {
		e.logs = func(rw http.ResponseWriter, r *http.Request) {
			rw.Write([]byte{1, 0, 0, 0, 0, 0, 0, 9, 'h', 'a', 'l', 'f'})
		}
		l, err := c.Engine().Logs(t.Context(), "qnet-genesis-001", LogOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a frame that breaks off gives %v", err)
		}
	})
}

func TestEvents(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, _ *machine, _ *fakeEngine) {
		events, errs := c.Engine().Events(t.Context(), time.Time{}, "qnet-genesis-001")
		want := Event{Time: time.Unix(1767323045, 1).UTC(), Action: "die", Container: "aa", Name: "qnet-genesis-001", Image: "qnet:v1", ExitCode: "137"}
		if e := <-events; e != want {
			t.Errorf("%+v, want %+v", e, want)
		}
		if _, more := <-events; more {
			t.Error("an event too many")
		}
		if err := <-errs; err == nil {
			t.Error("an engine that ends the stream gives no error")
		}
	})
}

func TestCheckTellsWhatIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		w.add(nil)
		w.known[1] = "# unknown"
		m.serveNode()
		m.exec = readExec(t)
		serveHTTP(t, m.engine, &fakeEngine{api: "1.43"})
		reports := Check(t.Context(), w.open())
		r := reports[0]
		if !r.Reached || r.Engine == nil || r.Engine.Version != "20.10.24" || r.NodeBuild != "1111111" || r.ClockOffset == nil || *r.ClockOffset != 3*time.Second {
			out, _ := json.Marshal(r)
			t.Errorf("report %s", out)
		}
		if !reflect.DeepEqual(r.TLSTerminators, []string{"qnet-tls"}) || len(r.Ports) != 2 || !reflect.DeepEqual(r.Stray, []string{"QNET_HALT_HEIGHT"}) {
			t.Errorf("tls %v ports %v stray %v", r.TLSTerminators, r.Ports, r.Stray)
		}
		if len(r.Disks) != 2 || r.Disks[0].Path != "/opt/qnet/data" || r.Disks[0].FreeBytes != 70 || r.Disks[1].Path != "/var/lib/docker" {
			t.Errorf("disks %+v", r.Disks)
		}
		var names []string
		for _, f := range r.Findings {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != "stray clock disk disk" || !r.OK() {
			t.Errorf("findings %s", got)
		}
		if reports[1].Reached || reports[1].OK() || !strings.Contains(reports[1].Findings[0].Hint, "hosts trust") {
			t.Errorf("report of an unknown host %+v", reports[1])
		}
	})
}

// A login shell that takes ten seconds makes date useless; the engine's clock is
// read without a shell.
func TestClockBehindASlowShell(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(nil)
		ahead := func() time.Time { return time.Now().Add(3 * time.Second) }
		serveHTTP(t, m.engine, &fakeEngine{api: "1.43", now: ahead})
		m.exec = func(ctx context.Context, cmd host.Command, in io.Reader, out, errs io.Writer) int {
			pause(ctx, 10*time.Second)
			return readExec(t)(ctx, cmd, in, out, errs)
		}
		offset, err := w.conn(w.open(), "001").Clock(t.Context())
		if err != nil || offset != 3*time.Second {
			t.Errorf("%v, %v; want 3s", offset, err)
		}
	})
}

func TestSudoIsUsedAndItsRefusalTyped(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(func(h *Host, _ *sshd.Config) { h.User = "ops" })
		m.exec = readExec(t)
		c := w.conn(w.open(), "001")
		facts, err := c.Inspect(t.Context())
		if err != nil || facts.Name != "qnet-genesis-001" || facts.RestartCount != 2 {
			t.Fatalf("%+v, %v", facts, err)
		}
		if !m.ran[0].Sudo {
			t.Error("a user other than root inspects without sudo")
		}
		m.exec = failExec(1, "sudo: a password is required\n")
		_, err = c.Inspect(t.Context())
		var sudo *SudoError
		if !errors.As(err, &sudo) || sudo.User != "ops" || !strings.Contains(sudo.Hint(), "NOPASSWD") {
			t.Errorf("%v, want a SudoError", err)
		}
		for text, want := range map[string]EngineFault{
			"Error: No such container: qnet-genesis-001":                                                   EngineNotFound,
			"permission denied while trying to connect to the Docker daemon socket":                        EnginePermission,
			"Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the daemon running?\n": EngineUnreachable,
		} {
			m.exec = failExec(1, text)
			_, err := c.Inspect(t.Context())
			var fault *EngineError
			if !errors.As(err, &fault) || fault.Fault != want || fault.Hint() == "" {
				t.Errorf("%q gives %v, want %s", text, err, want)
			}
		}
	})
}

func TestParseDisk(t *testing.T) {
	good := map[string][2]uint64{
		"Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/sda1 100 30 70 30% /\n":           {70, 100},
		"Filesystem 1-blocks Used Available Capacity Mounted on\nmy share on host 100 30 70 30% /a b\n": {70, 100},
	}
	for text, want := range good {
		d, err := parseDisk("/x", text)
		if err != nil || d.FreeBytes != want[0] || d.TotalBytes != want[1] || d.Path != "/x" {
			t.Errorf("%q: %+v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "one line", "h\n/dev/sda1 100 30 x 30% /", "h\n/dev/sda1 100 30"} {
		if d, err := parseDisk("/x", text); err == nil {
			t.Errorf("%q gives %+v", text, d)
		}
	}
}

func TestParseClock(t *testing.T) {
	for text, want := range map[string]time.Time{
		"1767323045.000000006\n": time.Unix(1767323045, 6),
		"1767323045.%N\n":        time.Unix(1767323045, 0),
		"1767323045.\n":          time.Unix(1767323045, 0),
	} {
		if got, err := parseClock(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "1767323045.00000000x"} {
		if got, err := parseClock(text); err == nil {
			t.Errorf("%q gives %v", text, got)
		}
	}
}

func TestCancelledReadIsNotTheEnginesFault(t *testing.T) {
	engineWorld(t, "1.41", func(t *testing.T, c *Conn, _ *machine, e *fakeEngine) {
		e.logs = func(rw http.ResponseWriter, r *http.Request) { rw.(http.Flusher).Flush(); <-r.Context().Done() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l, err := c.Engine().Logs(ctx, "qnet-genesis-001", LogOptions{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Next(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
		if c.Err() != nil {
			t.Error("a cancelled read killed the connection")
		}
	})
}
