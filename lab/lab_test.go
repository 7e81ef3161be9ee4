package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/qnetops/qnetops/host"
)

// up starts a lab and waits for a few blocks.
func up(t *testing.T, cfg Config) *Lab {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	return l
}

func waitHeight(t *testing.T, l *Lab, height uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2000*l.Block())
	defer cancel()
	if err := l.WaitHeight(ctx, height); err != nil {
		t.Fatal(err)
	}
}

// connect logs in to a host with the operator's key and its pinned host key.
func connect(t *testing.T, l *Lab, id string) *ssh.Client {
	t.Helper()
	c, err := tryConnect(t, l, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tryConnect(t *testing.T, l *Lab, id string) (*ssh.Client, error) {
	t.Helper()
	h, err := l.Host(id)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Dial(t.Context(), "tcp", h.addr())
	if err != nil {
		return nil, err
	}
	conn, chans, reqs, err := ssh.NewClientConn(nc, h.addr(), &ssh.ClientConfig{User: h.spec.User,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(l.ClientKey())}, HostKeyCallback: ssh.FixedHostKey(h.key.PublicKey())})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return ssh.NewClient(conn, chans, reqs), nil
}

// run runs one command and returns what it printed and its exit status.
func run(t *testing.T, c *ssh.Client, line string, stdin []byte) (string, string, int) {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out, errb bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = bytes.NewReader(stdin), &out, &errb
	var exit *ssh.ExitError
	switch err := s.Run(line); {
	case err == nil:
		return out.String(), errb.String(), 0
	case errors.As(err, &exit):
		return out.String(), errb.String(), exit.ExitStatus()
	default:
		t.Fatalf("%s: %v", line, err)
		return "", "", -1
	}
}

// install places a file as the agent and returns its hash.
func install(t *testing.T, c *ssh.Client) string {
	t.Helper()
	bytes := []byte("not really a program")
	sum := sha256.Sum256(bytes)
	sha := hex.EncodeToString(sum[:])
	if _, errs, code := run(t, c, host.Install(sha).String(), bytes); code != 0 {
		t.Fatalf("install: %d %s", code, errs)
	}
	return sha
}

// agent starts the host agent through SSH.
func agent(t *testing.T, c *ssh.Client) *host.Client {
	t.Helper()
	sha := install(t, c)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(host.Agent(sha, "").String()); err != nil {
		t.Fatal(err)
	}
	cl := host.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	t.Cleanup(func() { cl.Close(); s.Close() })
	return cl
}

func clean(t *testing.T, l *Lab) {
	t.Helper()
	if v := l.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
	if r := l.Refusals(); len(r) > 0 {
		t.Errorf("refusals: %q", r)
	}
}

func TestSixNodesInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 6, Seed: 1})
		waitHeight(t, l, 200)
		st := l.Status(t.Context())
		for i, n := range st.Nodes {
			if n.Build != "1111111" || n.State != "running" || n.Image != Repository+":v1" {
				t.Errorf("node %+v", n)
			}
			want := fmt.Sprintf("genesis_node_%03d", i+1)
			if i == 5 {
				want = n.NodeID
				if !strings.HasPrefix(want, "super_node_") {
					t.Errorf("node 006 is %s", want)
				}
			}
			if n.NodeID != want {
				t.Errorf("node %d is %s", i, n.NodeID)
			}
		}
		// a window of 90 blocks is sealed by a quorum: its proof is served
		h, _ := l.Host("006")
		resp, err := h.HTTP().Get(h.APIBase() + "/api/v1/macroblock/1/proof")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var proof map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&proof); err != nil || proof["error"] != nil {
			t.Errorf("proof %v, %v", proof, err)
		}
		clean(t, l)
	})
}

func TestSixNodesOnLoopback(t *testing.T) {
	dir := t.TempDir()
	l, err := New(Config{Nodes: 6, Block: 20 * time.Millisecond, Dir: dir, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Listen(); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, KeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("client key: %v, %v", info, err)
	}
	// reach the hosts with nothing but the files
	pem, err := os.ReadFile(filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		t.Fatal(err)
	}
	check, err := knownhosts.New(filepath.Join(dir, KnownHostsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range l.Hosts() {
		c, err := ssh.Dial("tcp", h.addr(), &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: check})
		if err != nil {
			t.Fatalf("%s: %v", h.ID(), err)
		}
		if out, _, code := run(t, c, "uname -sm", nil); out != uname()+"\n" || code != 0 {
			t.Errorf("%s: uname %q %d", h.ID(), out, code)
		}
		c.Close()
	}
	waitHeight(t, l, 30)
	clean(t, l)
}

func TestTheTwoWaysToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 3})
		waitHeight(t, l, 1)
		c := connect(t, l, "001")
		hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return c.Dial("tcp", "127.0.0.1:8001") }}}
		resp, err := hc.Get("http://127.0.0.1:8001/healthz")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if !strings.HasPrefix(string(b), "ok h=") || !strings.Contains(string(b), "build=1111111") {
			t.Errorf("healthz %q", b)
		}
		ec := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return c.Dial("unix", "/var/run/docker.sock") }}}
		resp, err = ec.Get("http://docker/v1.41/containers/json")
		if err != nil {
			t.Fatal(err)
		}
		b, _ = io.ReadAll(resp.Body)
		if !strings.Contains(string(b), "/qnet-genesis-001") || strings.Contains(string(b), "sentinel") {
			t.Errorf("containers %s", b)
		}
		out, errs, code := run(t, c, host.Inspect("qnet-genesis-001").String(), nil)
		facts, err := host.ParseReadTemplate([]byte(out))
		if code != 0 || err != nil {
			t.Fatalf("inspect %d %q: %v", code, errs, err)
		}
		if facts.RestartPolicy != "always" || facts.State != "running" || facts.DataDir.HostPath != "/root/qnet_data" || !slices.Contains(facts.EnvNames, "QNET_WALLET_SEED") {
			t.Errorf("facts %+v", facts)
		}
		for _, v := range Sentinels() {
			if strings.Contains(out, v) {
				t.Errorf("the template printed a secret")
			}
		}
		if _, errs, code := run(t, c, host.Inspect("nothing").String(), nil); code != 1 || !strings.Contains(errs, "No such container") {
			t.Errorf("missing container: %d %q", code, errs)
		}
		clean(t, l)
	})
}

func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 4})
		c := connect(t, l, "001")
		out, _, _ := run(t, c, host.Clock().String(), nil)
		var sec, nano int64
		if n, err := fmt.Sscanf(out, "%d.%d\n", &sec, &nano); n != 2 || err != nil || !time.Unix(sec, nano).Equal(time.Now()) {
			t.Errorf("date %q at %v", out, time.Now())
		}
		out, _, _ = run(t, c, host.Disk("/root").String(), nil)
		f := strings.Fields(out[strings.Index(out, "\n"):])
		if len(f) != 6 || f[3] != fmt.Sprint(uint64(diskFree)) {
			t.Errorf("df %q", out)
		}
		sha := install(t, c)
		if out, _, code := run(t, c, host.Checksum(sha).String(), nil); code != 0 || out != sha+"  "+host.InstallPath(sha)+"\n" {
			t.Errorf("checksum %d %q", code, out)
		}
		wrong := strings.Repeat("0", 64)
		if _, errs, code := run(t, c, host.Install(wrong).String(), []byte("x")); code == 0 {
			t.Errorf("a wrong hash was accepted: %s", errs)
		}
		if _, _, code := run(t, c, host.Agent(wrong, "").String(), nil); code != 127 {
			t.Errorf("an agent that is not there: %d", code)
		}
		if got := l.Refusals(); len(got) != 0 {
			t.Errorf("refusals %q", got)
		}
		for _, line := range []string{"rm -rf /", "docker rm qnet-genesis-001", "uname -a", "date +%s.%N; id"} {
			if _, _, code := run(t, c, line, nil); code != 127 {
				t.Errorf("%s: %d", line, code)
			}
		}
		if got := l.Refusals(); len(got) != 4 || got[0] != "001: command rm -rf /" {
			t.Errorf("refusals %q", got)
		}
	})
}

func TestUserWithoutRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 2, Seed: 5, Host: func(i int, h *HostSpec) { h.User, h.NoSudo = "ops", i == 2 }})
		c := connect(t, l, "001")
		if _, err := c.Dial("unix", "/var/run/docker.sock"); err == nil {
			t.Error("the engine's socket was open to ops")
		}
		if _, errs, code := run(t, c, host.Inspect("qnet-genesis-001").String(), nil); code != 1 || !strings.Contains(errs, "permission denied") {
			t.Errorf("inspect as ops: %d %q", code, errs)
		}
		if _, _, code := run(t, c, host.Inspect("qnet-genesis-001").WithSudo(true).String(), nil); code != 0 {
			t.Errorf("inspect by sudo: %d", code)
		}
		if _, errs, code := run(t, connect(t, l, "002"), host.Inspect("qnet-genesis-002").WithSudo(true).String(), nil); code != 1 || !strings.Contains(errs, "a password is required") {
			t.Errorf("without sudo: %d %q", code, errs)
		}
	})
}

func TestAgentRunsAndAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 6})
		var methods []string
		l.OnAgentRequest(func(_, m string) { methods = append(methods, m) })
		a := agent(t, connect(t, l, "001"))
		hello, err := a.Hello(t.Context())
		if err != nil || hello.Version != "lab" {
			t.Fatalf("hello %+v, %v", hello, err)
		}
		facts, err := a.Facts(t.Context(), host.FactsRequest{Container: "qnet-genesis-001", DataPaths: []string{"/root/qnet_data"}})
		if err != nil {
			t.Fatal(err)
		}
		if facts.Container == nil || facts.Container.State != "running" || len(facts.Disks) == 0 || facts.Disks[0].FreeBytes != diskFree {
			t.Errorf("facts %+v", facts)
		}
		if !reflect.DeepEqual(methods[:2], []string{"hello", "facts"}) {
			t.Errorf("the hook saw %q", methods)
		}
		h, _ := l.Host("001")
		if n := len(h.Agents(KillAgent)); n != 1 {
			t.Errorf("%d agents", n)
		}
		a.Close()
		<-a.Done()
		time.Sleep(time.Minute)
		synctest.Wait()
		if left := append(h.Agents(KillAgent), h.Agents(KillGuardian)...); len(left) != 0 {
			t.Errorf("left running: %v", left)
		}
		clean(t, l)
	})
}

func TestKilledAgentHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 1, Seed: 7})
		h, _ := l.Host("001")
		a := agent(t, connect(t, l, "001"))
		if _, err := a.Hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(l.Dir(), "proc", fmt.Sprintf("001-%d", h.Agents(KillAgent)[0]))
		if _, err := os.Stat(root); err != nil {
			t.Fatal(err)
		}
		l.OnEngineRequest(func(id, _, _ string) { l.Kill(id, KillAgent) })
		if _, err := a.Facts(t.Context(), host.FactsRequest{Container: "qnet-genesis-001"}); err == nil {
			t.Error("a dead agent answered")
		}
		if _, err := os.Lstat(root); err == nil {
			t.Error("a dead agent still reaches the host's files")
		}
		<-a.Done()
		if n := len(h.Agents(KillAgent)); n != 0 {
			t.Errorf("%d agents live", n)
		}
	})
}

func TestRebootAndEngineCrashReviveTheNode(t *testing.T) {
	for _, what := range []string{KillHost, KillEngine} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := up(t, Config{Nodes: 1, Seed: 8})
				waitHeight(t, l, 2)
				c := connect(t, l, "001")
				before := l.Hosts()[0].Engine().Containers()[0].StartedAt
				if err := l.Kill("001", what); err != nil {
					t.Fatal(err)
				}
				if what == KillHost {
					if c.Wait() == nil {
						t.Error("the connection must break")
					}
					if _, err := tryConnect(t, l, "001"); err == nil {
						t.Error("a host without power accepted a connection")
					}
				}
				time.Sleep(3 * time.Minute)
				got := l.Hosts()[0].Engine().Containers()[0]
				if got.State != "running" || !got.StartedAt.After(before) {
					t.Errorf("container %+v", got)
				}
				waitHeight(t, l, 3)
				connect(t, l, "001")
				clean(t, l)
			})
		})
	}
}

func TestTwoHostsWithOneIdentityAreAViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 2, Seed: 9, Host: func(i int, h *HostSpec) {
			if i == 2 {
				h.Env = []string{"QNET_BOOTSTRAP_ID=001"}
			}
		}})
		synctest.Wait()
		if v := l.Violations(); len(v) != 1 || !strings.Contains(v[0], "genesis_node_001 runs on hosts") {
			t.Errorf("violations %q", v)
		}
	})
}

func TestInspectFormatsAsDockerDoes(t *testing.T) {
	l, err := New(Config{Nodes: 1, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw := []byte(`{"Id":"abc","Name":"/n","State":{"Status":"running","Pid":7},"Config":{"Env":["A=1","B=2"],"New":"field"},"HostConfig":{}}`)
	for format, want := range map[string]string{
		`{{.Name}} {{.State.Status}}`: "/n running",
		`{{.ID}}`:                     "abc", // typed only
		`{{.Id}} {{json .State.Pid}}`: "abc 7",
		`{{range .Config.Env}}{{index (split . "=") 0}} {{end}}`:   "A B ",
		`{{.Id}} {{.Config.New}} {{json (index .Config "Other")}}`: "abc field null", // raw keeps what the struct drops
		`{{join .Config.Env ","}} {{upper .Name}}`:                 "A=1,B=2 /N",
	} {
		for range 2 { // the second run uses what the first one learnt
			if got, err := l.formatInspect(format, raw); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v, want %q", format, got, err, want)
			}
		}
	}
	for _, bad := range []string{`{{.Id}} {{.Nothing}}`, `{{`, `{{nofunc .Id}}`} {
		if got, err := l.formatInspect(bad, raw); err == nil {
			t.Errorf("%s gave %q", bad, got)
		}
	}
}

func TestMirroredHostsShowAnothersNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := up(t, Config{Nodes: 12, Mirror: 6, Seed: 15, History: 90 * 4})
		waitHeight(t, l, 90*5+10) // only hosts that run a node are members: the chain seals
		for i, n := range l.Status(t.Context()).Nodes {
			if n.State != "running" || n.Height == nil || n.Build != "1111111" {
				t.Errorf("node %+v", n)
			}
			if lines := l.Hosts()[i].Engine().LastLines(n.Container, 1); (len(lines) > 0) != (i < 6) {
				t.Errorf("host %s logs %q", n.ID, lines)
			}
		}
		clean(t, l)
	})
}
