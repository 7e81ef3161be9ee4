package fleet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab/sshd"
	"github.com/qnetops/qnetops/lease"
)

const inspected = `{"id":"aa","name":"/qnet-genesis-001","image_ref":"qnet:v1","image_id":"sha256:1","created":"2026-01-02T03:04:05Z","state":"running","exit_code":0,"oom_killed":false,"started_at":"2026-01-02T03:04:05Z","finished_at":"0001-01-01T00:00:00Z","restart_count":2,"restart_policy":"always","stop_timeout":null,"log_path":"","env_names":["QNET_HALT_HEIGHT","PATH"],"log_level":[],"compose":null,"mounts":[{"type":"bind","source":"/opt/qnet/data","destination":"/app/data"}]}`

type execFunc = func(ctx context.Context, cmd host.Command, stdin io.Reader, stdout, stderr io.Writer) int

// readExec answers the commands that read; its clock is three seconds ahead.
func readExec(testing.TB) execFunc {
	return func(_ context.Context, cmd host.Command, _ io.Reader, out, _ io.Writer) int {
		switch cmd.Kind {
		case host.CmdInspect:
			fmt.Fprintln(out, inspected)
		case host.CmdClock:
			at := time.Now().Add(3 * time.Second)
			fmt.Fprintf(out, "%d.%09d\n", at.Unix(), at.Nanosecond())
		case host.CmdDisk:
			fmt.Fprintf(out, "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/sda1 100 30 70 30%% /\n")
		default:
			return 127
		}
		return 0
	}
}

func failExec(code int, text string) execFunc {
	return func(_ context.Context, _ host.Command, _ io.Reader, _, stderr io.Writer) int {
		io.WriteString(stderr, text)
		return code
	}
}

// agentHost keeps installed binaries and runs a stand-in that speaks the
// agent's protocol.
type agentHost struct {
	uname   string
	files   map[string][]byte
	damage  bool // what comes in is not what was sent
	crash   string
	uploads int
	facts   string
}

func (a *agentHost) exec(ctx context.Context, cmd host.Command, stdin io.Reader, out, stderr io.Writer) int {
	switch cmd.Kind {
	case host.CmdUname:
		fmt.Fprintln(out, a.uname)
	case host.CmdChecksum:
		data, ok := a.files[cmd.SHA256]
		if !ok {
			fmt.Fprintf(stderr, "sha256sum: %s: No such file or directory\n", host.InstallPath(cmd.SHA256))
			return 1
		}
		fmt.Fprintf(out, "%s  %s\n", sum(data), host.InstallPath(cmd.SHA256))
	case host.CmdInstall:
		a.uploads++
		data, _ := io.ReadAll(stdin)
		if a.damage {
			data = data[1:]
		}
		if sum(data) != cmd.SHA256 { // as sha256sum -c in the install script
			io.WriteString(stderr, "sha256sum: WARNING: 1 computed checksum did NOT match\n")
			return 1
		}
		a.files[cmd.SHA256] = data
	case host.CmdAgent:
		return a.serve(stdin, out, stderr)
	default:
		return 127
	}
	return 0
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func (a *agentHost) serve(stdin io.Reader, out, stderr io.Writer) int {
	if a.crash != "" {
		io.WriteString(stderr, strings.Repeat("noise\n", 5000)+a.crash+"\n")
		return 2
	}
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		var req struct {
			ID     uint64          `json:"id"`
			Method string          `json:"method"`
			Claim  json.RawMessage `json:"claim"`
		}
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			return 1
		}
		result := `{"version":"test","os":"linux","arch":"amd64","pid":7,"guardian_pid":8}`
		switch req.Method {
		case "facts":
			result = a.facts
		case "take_fence":
			result = string(req.Claim)
		case "logs": // it is open; then the engine's frames
			frames := base64.StdEncoding.EncodeToString([]byte("\x01\x00\x00\x00\x00\x00\x00\x02a\n\x02\x00\x00\x00\x00\x00\x00\x02b\n"))
			fmt.Fprintf(out, `{"id":%d,"event":""}`+"\n"+`{"id":%d,"event":%q}`+"\n", req.ID, req.ID, frames)
			result = "null"
		}
		fmt.Fprintf(out, `{"id":%d,"result":%s}`+"\n", req.ID, result)
	}
	return 0
}

// elfBinary makes a file that looks like an agent: the test program itself is one
// for this machine, and too large for a test; its ELF header is enough.
func elfBinary(t *testing.T, dir, name string, machine byte) string {
	t.Helper()
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	header[16], header[18], header[20], header[52], header[54], header[58] = 2, machine, 1, 64, 56, 64
	data := append(header, bytes.Repeat([]byte("agent "), 200_000)...) // over a megabyte: more than one SSH window update
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

const amd64Machine, arm64Machine = 62, 183

func agentWorld(t *testing.T, change func(*Host, *sshd.Config), test func(t *testing.T, w *world, m *machine, a *agentHost)) {
	t.Helper()
	bubble(t, func(t *testing.T, w *world) {
		m := w.add(change)
		a := &agentHost{uname: "Linux x86_64", files: map[string][]byte{}, facts: `{"container":` + "null" + `}`}
		m.exec = a.exec
		w.opts.AgentBinary = elfBinary(t, w.dir, "agent", amd64Machine)
		test(t, w, m, a)
	})
}

func TestAgentIsInstalledOnceAndVerified(t *testing.T) {
	agentWorld(t, func(h *Host, _ *sshd.Config) { h.User = "ops" }, func(t *testing.T, w *world, m *machine, a *agentHost) {
		content, _ := os.ReadFile(w.opts.AgentBinary)
		for run := range 2 {
			f := w.open()
			c := w.conn(f, "001")
			first, err := c.Agent(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if second, err := c.Agent(t.Context()); err != nil || second != first {
				t.Errorf("a second agent on one connection: %v", err)
			}
			if a.uploads != 1 {
				t.Errorf("run %d: %d uploads, want 1", run+1, a.uploads)
			}
			f.Close()
		}
		if !bytes.Equal(a.files[sum(content)], content) {
			t.Error("what was installed is not the binary")
		}
		want := []host.CommandKind{host.CmdUname, host.CmdChecksum, host.CmdInstall, host.CmdAgent, host.CmdUname, host.CmdChecksum, host.CmdAgent}
		if got := m.kinds(); !reflect.DeepEqual(got, want) {
			t.Errorf("commands %v, want %v", got, want)
		}
		for _, cmd := range m.ran {
			if want := cmd.Kind != host.CmdUname; cmd.Sudo != want {
				t.Errorf("%s by sudo: %v, want %v", cmd.Kind, cmd.Sudo, want)
			}
		}
	})
}

// A file of the right name with other content is replaced, not trusted.
func TestDamagedAgentIsReplaced(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		content, _ := os.ReadFile(w.opts.AgentBinary)
		a.files[sum(content)] = []byte("something else")
		if _, err := w.conn(w.open(), "001").Agent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a.uploads != 1 || !bytes.Equal(a.files[sum(content)], content) {
			t.Error("a damaged agent stayed")
		}
	})
}

func TestDamagedUploadStartsNothing(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		a.damage = true
		_, err := w.conn(w.open(), "001").Agent(t.Context())
		var fault *AgentError
		if !errors.As(err, &fault) || fault.Step != "install" || !strings.Contains(err.Error(), "did NOT match") || fault.Hint() == "" {
			t.Errorf("%v, want an AgentError of the install", err)
		}
		for _, k := range m.kinds() {
			if k == host.CmdAgent {
				t.Error("a damaged agent was started")
			}
		}
	})
}

func TestWrongPlatform(t *testing.T) {
	for uname, words := range map[string]string{"Linux aarch64": "linux/arm64", "FreeBSD amd64": "freebsd/amd64", "Linux mips": `"Linux mips"`} {
		agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
			a.uname = uname
			_, err := w.conn(w.open(), "001").Agent(t.Context())
			var fault *PlatformError
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), words) || fault.Hint() == "" {
				t.Errorf("%s: %v, want a PlatformError", uname, err)
			}
			if uname == "Linux aarch64" && !strings.Contains(fault.Hint(), "--agent FILE") {
				t.Errorf("hint %q", fault.Hint())
			}
			if a.uploads != 0 {
				t.Error("installed on a host of another platform")
			}
		})
	}
}

func TestPlatformOfBinaries(t *testing.T) {
	self, err := os.Open(must(os.Executable()))
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if goos, arch := platform(self); goos != runtime.GOOS || arch != runtime.GOARCH {
		t.Errorf("own executable is %s/%s", goos, arch)
	}
	for machine, want := range map[byte]string{amd64Machine: "amd64", arm64Machine: "arm64"} {
		file, err := os.Open(elfBinary(t, t.TempDir(), "x", machine))
		if err != nil {
			t.Fatal(err)
		}
		if goos, arch := platform(file); goos != "linux" || arch != want {
			t.Errorf("%s/%s, want linux/%s", goos, arch, want)
		}
		file.Close()
	}
	if goos, arch := platform(strings.NewReader("#!/bin/sh\n")); goos != "" || arch != "" {
		t.Errorf("a script is %s/%s", goos, arch)
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

func TestAgentThatFailsToStartIsQuoted(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		a.crash = "cannot make /var/lib/qnetops: read-only file system"
		_, err := w.conn(w.open(), "001").Agent(t.Context())
		var fault *AgentError
		if !errors.As(err, &fault) || fault.Step != "start" || !strings.Contains(err.Error(), a.crash) || len(fault.Stderr) > stderrTail {
			t.Errorf("%v, want an AgentError with the end of stderr", err)
		}
	})
}

func TestWriterNeedsALeaseOfThisFleet(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		c := w.conn(w.open(), "001")
		for _, token := range []lease.Token{{}, {Fleet: "test", Store: "s"}, {Fleet: "other", Store: "s", Epoch: 4}} {
			if _, err := c.Writer(t.Context(), token); err == nil {
				t.Errorf("a writer for %+v", token)
			}
		}
		if len(m.kinds()) != 0 {
			t.Error("a refused writer touched the host")
		}
		token := lease.Token{Fleet: "test", Store: "s", Owner: "me", Operation: "roll-1", Epoch: 4}
		writer, err := c.Writer(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		record, err := writer.TakeFence(t.Context())
		if want := (host.Claim{Fleet: "test", Store: "s", Owner: "me", Operation: "roll-1", Epoch: 4}); err != nil || record.Claim != want {
			t.Errorf("claimed %+v, %v", record.Claim, err)
		}
	})
}

func TestInspectGoesThroughARunningAgent(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		a.facts = `{"container":{"id":"aa","name":"qnet-genesis-001","state":"running","restart_count":5}}`
		c := w.conn(w.open(), "001")
		if _, err := c.Agent(t.Context()); err != nil {
			t.Fatal(err)
		}
		facts, err := c.Inspect(t.Context())
		if err != nil || facts.RestartCount != 5 {
			t.Errorf("%+v, %v", facts, err)
		}
		for _, k := range m.kinds() {
			if k == host.CmdInspect {
				t.Error("docker inspect was run beside a running agent")
			}
		}
	})
}

// Where the engine's socket is closed to the user, the agent reads.
func TestEngineReadsThroughTheAgent(t *testing.T) {
	agentWorld(t, func(_ *Host, cfg *sshd.Config) { cfg.ForbidForwarding = true }, func(t *testing.T, w *world, m *machine, a *agentHost) {
		a.facts = `{"engine":{"version":"24.0","api_version":"1.43","root":"/var/lib/docker"},"container":{"id":"aa","name":"qnet-genesis-001","state":"running"},"siblings":[{"name":"qnet-genesis-001-pre-x","id":"bb","state":"exited"}]}`
		c := w.conn(w.open(), "001")
		info, err := c.Engine().Info(t.Context())
		if err != nil || info.Version != "24.0" || info.Root != "/var/lib/docker" {
			t.Errorf("%+v, %v", info, err)
		}
		list, err := c.Engine().Containers(t.Context())
		if err != nil || len(list) != 2 || list[0].State != "running" || list[1].ID != "bb" {
			t.Errorf("%+v, %v", list, err)
		}
		l, err := c.Engine().Logs(t.Context(), "qnet-genesis-001", LogOptions{Tail: 2})
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
		if !reflect.DeepEqual(got, []LogLine{{false, "a"}, {true, "b"}}) {
			t.Errorf("%+v", got)
		}
	})
}

func TestAgentThatEndedStaysEnded(t *testing.T) {
	agentWorld(t, nil, func(t *testing.T, w *world, m *machine, a *agentHost) {
		c := w.conn(w.open(), "001")
		agent, err := c.Agent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		agent.Close()
		var fault *AgentError
		if _, err := c.Agent(t.Context()); !errors.As(err, &fault) {
			t.Errorf("%v, want an AgentError", err)
		}
		m.srv.DropAll()
		<-c.Dead()
		var dropped *DroppedError
		if _, err := c.Agent(t.Context()); !errors.As(err, &dropped) {
			t.Errorf("%v, want a DroppedError", err)
		}
	})
}
