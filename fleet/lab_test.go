package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/node"
)

// labFleet runs a test on a lab in virtual time; the nodes have sealed a window
// when it begins. change may edit the files before they are read.
func labFleet(t *testing.T, cfg lab.Config, change func(dir string), test func(t *testing.T, l *lab.Lab, f *Fleet)) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole lab")
	}
	synctest.Test(t, func(t *testing.T) {
		cfg.Dir, cfg.Seed, cfg.History = t.TempDir(), 1, 90*4
		l, err := lab.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		if err := l.WaitHeight(t.Context(), 90*4+5); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file, err := l.WriteFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(dir)
		}
		inv, err := Load(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(t.Context(), inv, nil, Options{Dial: l.Dial, Getenv: func(string) string { return "" },
			AgentBinary: elfBinary(t, dir, "agent", amd64Machine)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		test(t, l, f)
	})
}

// Host 001 forbids all forwarding, 002 has a user who may not open the engine's
// socket, 003 does both and takes sudo away; the others are ordinary.
func hostsThatRefuse(i int, h *lab.HostSpec) {
	h.Uname = "Linux x86_64"
	h.ForbidForwarding = i == 1 || i == 3
	if i == 2 || i == 3 {
		h.User = "ops"
	}
	h.NoSudo = i == 3
}

// What a status reads comes by the agent where sshd or the socket refuses, and
// is what the ordinary host gives.
func TestReadsThroughTheAgentOnALab(t *testing.T) {
	labFleet(t, lab.Config{Nodes: 5, Host: hostsThatRefuse}, nil, func(t *testing.T, l *lab.Lab, f *Fleet) {
		methods := map[string]map[string]int{}
		l.OnAgentRequest(func(id, method string) {
			if methods[id] == nil {
				methods[id] = map[string]int{}
			}
			methods[id][method]++
		})
		var secrets []string
		l.OnAgentOutput(func(_ string, line []byte) {
			for _, v := range lab.Sentinels() {
				if strings.Contains(string(line), v) {
					secrets = append(secrets, string(line))
				}
			}
		})
		plain, err := f.Conn(t.Context(), "004")
		if err != nil {
			t.Fatal(err)
		}
		want, err := plain.Node().Proof(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"001", "002"} {
			c, err := f.Conn(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			readNode(t, c, want)
			readLogAndEvents(t, l, c)
		}
		if methods["001"]["node_http"] != 5 || methods["002"]["node_http"] != 0 || methods["004"] != nil {
			t.Errorf("agents were asked %v", methods)
		}
		if n := count(l.Refusals(), "001: direct-tcpip 127.0.0.1:8001"); n != 1 {
			t.Errorf("the forbidden channel was asked for %d times, want 1", n)
		}
		if len(secrets) != 0 {
			t.Errorf("secrets left the hosts: %q", secrets)
		}
	})
}

func count(list []string, text string) int {
	n := 0
	for _, s := range list {
		if s == text {
			n++
		}
	}
	return n
}

func readNode(t *testing.T, c *Conn, proof node.Proof) {
	t.Helper()
	id, n := c.Host().ID, c.Node()
	if h, err := n.Healthz(t.Context()); err != nil || h.Height < 90*4 || h.Build != "1111111" {
		t.Errorf("%s: Healthz %+v, %v", id, h, err)
	}
	if p, err := n.Position(t.Context()); err != nil || p.TipHash == nil {
		t.Errorf("%s: Position %+v, %v", id, p, err)
	}
	if h, err := n.NodeHealth(t.Context()); err != nil || h.NodeID != "genesis_node_"+id {
		t.Errorf("%s: NodeHealth %+v, %v", id, h, err)
	}
	if p, err := n.Proof(t.Context(), 3); err != nil || p.Checkpoint.Hash() != proof.Checkpoint.Hash() || !p.FullQuorum() {
		t.Errorf("%s: Proof %v", id, err)
	}
	if info, err := n.NodeInfo(t.Context()); err != nil { // a POST with a body
		t.Errorf("%s: NodeInfo %+v, %v", id, info, err)
	}
}

// readLogAndEvents follows both while the engine restarts the container.
func readLogAndEvents(t *testing.T, l *lab.Lab, c *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	id, name := c.Host().ID, c.Host().Container
	list, err := c.Engine().Containers(ctx)
	if err != nil || len(list) != 1 || list[0].Name != name {
		t.Errorf("%s: Containers %+v, %v", id, list, err)
	}
	logs, err := c.Engine().Logs(ctx, name, LogOptions{Since: time.Now().Add(-10 * time.Second), Follow: true, Timestamps: true})
	if err != nil {
		t.Fatalf("%s: Logs %v", id, err)
	}
	defer logs.Close()
	for range 3 { // each comes as the node prints it
		line, err := logs.Next()
		if err != nil {
			t.Fatalf("%s: Next %v", id, err)
		}
		if parsed := node.ParseLine(line.Text); time.Since(parsed.Time) > time.Minute {
			t.Errorf("%s: %q is of %v", id, line.Text, parsed.Time)
		}
	}
	events, errs := c.Engine().Events(ctx, time.Now(), name)
	h, err := l.Host(id)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { h.Engine().StopContainer(name); h.Engine().StartContainer(name) })
	var seen []string
	for e := range events {
		if e.Name != name {
			t.Errorf("%s: event %+v", id, e)
		}
		if seen = append(seen, e.Action); e.Action == "start" {
			cancel()
			break
		}
	}
	if err := <-errs; !strings.Contains(strings.Join(seen, " "), "die stop start") || !errors.Is(err, context.Canceled) {
		t.Errorf("%s: events %q, %v", id, seen, err)
	}
	for { // a followed log ends with the process; with ctx at the latest
		if _, err := logs.Next(); err != nil {
			break
		}
	}
	if a := c.runningAgent(); a != nil { // what was given up has ended there too, and holds nothing up
		if _, err := a.Hello(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Neither a channel nor sudo: the error says which setting and which line of
// sudoers would help, and the host is not asked for an agent again and again.
func TestReadsThatNothingAllowsOnALab(t *testing.T) {
	labFleet(t, lab.Config{Nodes: 4, Host: hostsThatRefuse}, nil, func(t *testing.T, l *lab.Lab, f *Fleet) {
		c, err := f.Conn(t.Context(), "003")
		if err != nil {
			t.Fatal(err)
		}
		_, health := c.Node().Healthz(t.Context())
		_, logs := c.Engine().Logs(t.Context(), c.Host().Container, LogOptions{Follow: true})
		_, errs := c.Engine().Events(t.Context(), time.Now(), c.Host().Container)
		for what, err := range map[string]error{"AllowTcpForwarding": health, "AllowStreamLocalForwarding": logs, "group docker": <-errs} {
			var refused *ForwardingError
			var sudo *SudoError
			if !errors.As(err, &refused) || !strings.Contains(refused.Hint(), what) || !errors.As(err, &sudo) || !strings.Contains(sudo.Hint(), "NOPASSWD") {
				t.Errorf("%v, want a ForwardingError with a hint of %s and a SudoError", err, what)
			}
			var hint interface{ Hint() string }
			if errors.As(err, &hint) && !strings.Contains(hint.Hint(), "sudo") {
				t.Errorf("hint %q", hint.Hint())
			}
		}
		if c.noAgent.Load() == nil {
			t.Error("that there is no agent was forgotten")
		}
	})
}

// A node that is down is told as that on either way; where the channel is
// allowed, that nothing listens is no reason to take the agent.
func TestNodeThatIsDownBehindTheAgent(t *testing.T) {
	labFleet(t, lab.Config{Nodes: 4, Host: hostsThatRefuse}, nil, func(t *testing.T, l *lab.Lab, f *Fleet) {
		c, err := f.Conn(t.Context(), "001")
		if err != nil {
			t.Fatal(err)
		}
		h, err := l.Host("001")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Engine().StopContainer(c.Host().Container); err != nil {
			t.Fatal(err)
		}
		_, err = c.Node().Healthz(t.Context())
		var away *host.Error
		if !errors.As(err, &away) || away.Code != host.CodeNodeAway || !strings.Contains(away.Hint(), "is the node up") {
			t.Errorf("%v, want %s", err, host.CodeNodeAway)
		}
		direct, err := f.Conn(t.Context(), "004")
		if err != nil {
			t.Fatal(err)
		}
		if h, err = l.Host("004"); err != nil {
			t.Fatal(err)
		}
		if err := h.Engine().StopContainer(direct.Host().Container); err != nil {
			t.Fatal(err)
		}
		_, err = direct.Node().Healthz(t.Context())
		var refused *ForwardingError
		if !errors.As(err, &refused) || refused.Denied || direct.runningAgent() != nil || direct.noAgent.Load() != nil {
			t.Errorf("%v, want a ForwardingError and no agent", err)
		}
		var fault *EngineError
		if _, err := c.Engine().Logs(t.Context(), c.Host().Container+"-pre-x", LogOptions{}); !errors.As(err, &fault) || fault.Fault != EngineNotFound {
			t.Errorf("%v, want EngineNotFound", err)
		}
	})
}

// Host 002 is reached through 001 and through nothing else.
func TestJumpHostOnALab(t *testing.T) {
	behind := func(i int, h *lab.HostSpec) {
		if i == 2 {
			h.Jump = "001"
		}
	}
	labFleet(t, lab.Config{Nodes: 4, Host: behind}, nil, func(t *testing.T, l *lab.Lab, f *Fleet) {
		h, _ := f.Inventory().Host("002")
		if _, err := l.Dial(t.Context(), "tcp", "192.0.2.11:2222"); h.Jump != "001" || err == nil {
			t.Fatalf("002 has jump %q and was reached without it: %v", h.Jump, err)
		}
		c, err := f.Conn(t.Context(), "002")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Node().NodeHealth(t.Context()); err != nil || n.NodeID != "genesis_node_002" {
			t.Errorf("NodeHealth %+v, %v", n, err)
		}
		if list, err := c.Engine().Containers(t.Context()); err != nil || list[0].Name != "qnet-genesis-002" {
			t.Errorf("Containers %+v, %v", list, err)
		}
		if r := l.Refusals(); len(r) != 0 {
			t.Errorf("refusals %q", r)
		}
	})
	forget := func(line string) func(string) {
		return func(dir string) {
			file := filepath.Join(dir, lab.KnownHostsFile)
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var kept []string
			for l := range strings.Lines(string(raw)) {
				if !strings.HasPrefix(l, line) {
					kept = append(kept, l)
				}
			}
			if err := os.WriteFile(file, []byte(strings.Join(kept, "")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for hop, address := range map[string]string{"first": "192.0.2.10:2222", "second": "192.0.2.11:2222"} {
		name, port, _ := strings.Cut(address, ":")
		labFleet(t, lab.Config{Nodes: 4, Host: behind}, forget("["+name+"]:"+port), func(t *testing.T, l *lab.Lab, f *Fleet) {
			_, err := f.Conn(t.Context(), "002")
			var fault *HostKeyError
			if !errors.As(err, &fault) || fault.Fault != KeyUnknown || fault.Address != address {
				t.Errorf("unknown key on the %s hop: %v, want that of %s", hop, err, address)
			}
			if _, err := f.Conn(t.Context(), "001"); (err == nil) != (hop == "second") {
				t.Errorf("unknown key on the %s hop: the jump host gives %v", hop, err)
			}
		})
	}
}
