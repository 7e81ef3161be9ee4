package realhosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/internal/need"
)

// needHosts skips, or fails with CI=true, where the backend cannot run.
func needHosts(t *testing.T) {
	t.Helper()
	if missing := Missing(); len(missing) > 0 {
		need.Missing(t, strings.Join(missing, ", "), "the hosts backend needs root, Docker, OpenSSH, iproute2 and iptables")
	}
}

// nodeBinary builds the test's stand-in for the node.
func nodeBinary(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./testdata/node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the node: %v\n%s", err, out)
	}
	return path
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// dial opens an SSH connection as an operator would: pinned host key, the lab's client key.
func dial(t *testing.T, c *Cluster, host Host, user string) (*ssh.Client, error) {
	t.Helper()
	known, err := knownhosts.New(c.KnownHosts())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(c.KeyFile())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(data)
	if err != nil {
		t.Fatal(err)
	}
	return ssh.Dial("tcp", net.JoinHostPort(host.Address, strconv.Itoa(host.SSHPort)), &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: known, Timeout: 3 * time.Second,
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
	})
}

func mustDial(t *testing.T, c *Cluster, host Host) *ssh.Client {
	t.Helper()
	conn, err := dial(t, c, host, "root")
	if err != nil {
		t.Fatalf("ssh to %s: %v", host.ID, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func remoteRun(conn *ssh.Client, line string) (string, error) {
	session, err := conn.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	out, err := session.CombinedOutput(line)
	return string(out), err
}

// get asks the node through an SSH channel to the host's own loopback.
func get(conn *ssh.Client, path string) (string, error) {
	web := http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return conn.DialContext(ctx, network, addr)
		}}}
	answer, err := web.Get("http://127.0.0.1:8001" + path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// eventually waits for the answer yes; what it waits for is named when time is up.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	if err := poll(within(t, 2*time.Minute), 100*time.Millisecond, what, func() (bool, error) { return ask(), nil }); err != nil {
		t.Fatal(err)
	}
}

func starts(c *Cluster, id string) int {
	data, _ := os.ReadFile(c.Path(id, DataDir+"/starts"))
	return len(data)
}

func nodeAnswers(t *testing.T, c *Cluster, host Host) func() bool {
	return func() bool {
		conn, err := dial(t, c, host, "root")
		if err != nil {
			return false
		}
		defer conn.Close()
		body, err := get(conn, "/healthz")
		return err == nil && body == "ok h=0 build=1111111"
	}
}

// TestCluster walks one lab through all it offers. The parts share the lab and follow each other: bringing one up
// takes seconds.
func TestCluster(t *testing.T) {
	needHosts(t)
	binary := nodeBinary(t)
	// A deep folder: the engine's socket inside has a path longer than a socket address may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 20))
	c, err := Up(within(t, 2*time.Minute), Config{Nodes: 3, SuperFrom: 3, Dir: dir, Binary: binary, Block: 100 * time.Millisecond,
		NodeEnv: func(i int) []string {
			return []string{fmt.Sprintf("QNET_WALLET_SEED=sentinel seed %d", i), "QNET_ADMIN_SECRET=sentinel admin"}
		}, Container: func(i int, settings *container.Config, host *container.HostConfig) {
			settings.Labels, host.Memory = map[string]string{"lab.test": strconv.Itoa(i)}, 256<<20
		}, Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(within(t, 3*time.Minute)); err != nil {
			t.Error(err)
		}
	})
	for _, part := range []struct {
		name string
		run  func(*testing.T, *Cluster)
	}{
		{"inventory", testInventory}, {"ssh", testSSH}, {"container", testContainer}, {"pull by digest", testPull},
		{"peers, isolate, partition", testCut}, {"agents and dropped ssh", func(t *testing.T, c *Cluster) { testAgents(t, c, binary) }}, {"engine", testEngine},
		{"faults", testFaults}, {"engine faults", testEngineFaults}, {"reboot", testReboot}, {"host key", testHostKey}, {"second up is refused", func(t *testing.T, c *Cluster) { testSecondUp(t, c, binary) }}, {"down", testDown},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, c) }) {
			return
		}
	}
}

func testInventory(t *testing.T, c *Cluster) {
	var ports []int
	var names []string
	for _, host := range c.Hosts() {
		ports, names = append(ports, host.SSHPort), append(names, host.Container)
	}
	// facts 5.2: genesis on 2222, super nodes on 22.
	if !slices.Equal(ports, []int{2222, 2222, 22}) || !slices.Equal(names, []string{"qnet-genesis-001", "qnet-genesis-002", "qnet-super-node"}) {
		t.Errorf("ports %v, containers %v", ports, names)
	}
	if info, err := os.Stat(c.KeyFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("client key: %v %v", info, err)
	}
	if _, err := Open(filepath.Dir(c.HostsFile())); err != nil {
		t.Error(err)
	}
}

func testSSH(t *testing.T, c *Cluster) {
	for _, host := range c.Hosts() {
		conn := mustDial(t, c, host)
		if out, err := remoteRun(conn, "docker inspect --format '{{.State.Status}}' "+host.Container); err != nil || out != "running\n" {
			t.Errorf("%s: docker inspect over ssh: %q %v", host.ID, out, err)
		}
		eventually(t, "the node on the host's loopback", nodeAnswers(t, c, host))
	}
	host := c.Hosts()[0]
	conn := mustDial(t, c, host)
	engine, err := client.NewClientWithOpts(client.WithHost("http://engine"), client.WithAPIVersionNegotiation(),
		client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return conn.DialContext(ctx, "unix", "/var/run/docker.sock")
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	list, err := engine.ContainerList(within(t, time.Minute), container.ListOptions{All: true})
	if err != nil || len(list) != 1 || list[0].Names[0] != "/"+host.Container {
		t.Errorf("containers through the forwarded socket: %v %v", list, err)
	}
	plain, err := dial(t, c, host, "ops")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if out, err := remoteRun(plain, "docker ps"); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("a plain user may use the engine: %q %v", out, err)
	}
}

// testContainer compares the container with facts 5.2, and its environment with what was asked for.
func testContainer(t *testing.T, c *Cluster) {
	for _, host := range c.Hosts() {
		out, err := c.Exec(within(t, time.Minute), host.ID, "docker", "inspect", host.Container)
		if err != nil {
			t.Fatal(err)
		}
		var got []container.InspectResponse
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		settings := got[0].HostConfig
		wantLog := map[string]string{"max-size": "200m", "max-file": "50"}
		if host.Role == "super" {
			wantLog = map[string]string{"max-size": "100m", "max-file": "10"}
		}
		if settings.RestartPolicy.Name != "always" || !slices.Equal(settings.Binds, []string{"/opt/qnet/data:/app/data"}) ||
			fmt.Sprint(settings.LogConfig.Config) != fmt.Sprint(wantLog) || len(settings.PortBindings) != 4 {
			t.Errorf("%s: host config %+v", host.ID, settings)
		}
		if settings.Memory != 256<<20 || got[0].Config.Labels["lab.test"] != strconv.Itoa(host.Index) {
			t.Errorf("%s: Config.Container had no effect: %+v", host.ID, got[0].Config.Labels)
		}
		env := got[0].Config.Env
		peers := "QNETOPS_LAB_PEERS=genesis_node_001@" + c.Hosts()[0].Address + ":9876,genesis_node_002@" + c.Hosts()[1].Address + ":9876," +
			c.Hosts()[2].NodeID + "@" + c.Hosts()[2].Address + ":9876"
		for _, want := range []string{fmt.Sprintf("QNET_WALLET_SEED=sentinel seed %d", host.Index), "QNET_ADMIN_SECRET=sentinel admin", peers,
			"QNETOPS_LAB_BLOCK=100ms", "QNETOPS_LAB_GENESIS_COUNT=2", "QNET_BUILD_ID=1111111"} {
			if !slices.Contains(env, want) {
				t.Errorf("%s: no %q in %q", host.ID, want, env)
			}
		}
		if bootstrap := slices.Contains(env, "QNET_BOOTSTRAP_ID="+host.ID); bootstrap != (host.Role == "genesis") {
			t.Errorf("%s: bootstrap id %v for role %s", host.ID, bootstrap, host.Role)
		}
	}
}

func testPull(t *testing.T, c *Cluster) {
	ctx := within(t, 2*time.Minute)
	digest, err := c.Digest(ctx, "v2")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := c.Engine("002")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	ref := strings.TrimSuffix(c.Image("v2"), ":v2") + "@" + digest
	if err := pull(ctx, engine, ref); err != nil {
		t.Fatal(err)
	}
	image, err := engine.ImageInspect(ctx, ref)
	if err != nil || !slices.Contains(image.Config.Env, "QNET_BUILD_ID=2222222") || image.Config.Healthcheck == nil {
		t.Errorf("image by digest: %+v %v", image.Config, err)
	}
	if err := pull(ctx, engine, c.Image("nothing")); err == nil {
		t.Error("pulled an image that does not exist")
	}
}

func testCut(t *testing.T, c *Cluster) {
	ctx := within(t, 3*time.Minute)
	one, two := c.Hosts()[0], c.Hosts()[1]
	conn := mustDial(t, c, one)
	sees := func(id string) func() bool {
		return func() bool { body, err := get(conn, "/reach"); return err == nil && strings.Contains(body, id) }
	}
	eventually(t, "all peers reach each other", func() bool { return sees(two.NodeID)() && sees(c.Hosts()[2].NodeID)() })
	if err := c.Isolate(ctx, two.ID); err != nil {
		t.Fatal(err)
	}
	if sees(two.NodeID)() {
		t.Error("an isolated node is reached")
	}
	if !nodeAnswers(t, c, two)() {
		t.Error("an isolated host does not answer its operator")
	}
	if err := c.Heal(ctx, two.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the healed node to be reached", sees(two.NodeID))
	if err := c.Partition(ctx, two.ID); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t, c, two, "root"); err == nil {
		conn.Close()
		t.Error("ssh into a partitioned host")
	}
	if _, err := c.Exec(ctx, two.ID, "docker", "exec", two.Container, "/qnetops", "lab", "node", "--probe"); err != nil {
		t.Errorf("the node of a partitioned host does not run on: %v", err)
	}
	if err := c.Heal(ctx, two.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ssh after the partition", nodeAnswers(t, c, two))
}

// testAgents starts the two processes of an agent over SSH, drops the connection and finds both still there.
func testAgents(t *testing.T, c *Cluster, binary string) {
	ctx := within(t, 3*time.Minute)
	host := c.Hosts()[2]
	conn := mustDial(t, c, host)
	install := "mkdir -p /var/lib/qnetops/agent && cat > /var/lib/qnetops/agent/qnetops-abc && chmod 755 /var/lib/qnetops/agent/qnetops-abc"
	copySession, err := conn.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	copySession.Stdin = file
	if err := copySession.Run(install); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"host", "host --guardian"} {
		session, err := conn.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := session.Start("setsid /var/lib/qnetops/agent/qnetops-abc " + args); err != nil {
			t.Fatal(err)
		}
	}
	agents := func() []AgentProcess { found, _ := c.Agents(host.ID); return found }
	eventually(t, "both agent processes", func() bool { return len(agents()) == 2 })
	cut := make(chan error, 1)
	go func() { cut <- conn.Wait() }()
	if err := c.DropSSH(ctx, host.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cut:
	case <-ctx.Done():
		t.Fatal("the connection lives on")
	}
	if got := agents(); len(got) != 2 || got[0].Guardian == got[1].Guardian {
		t.Fatalf("agents after the drop: %+v", got)
	}
	for _, agent := range agents() {
		if agent.Guardian {
			continue
		}
		if err := agent.Kill(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "one agent to be killed", func() bool { return len(agents()) == 1 })
	if got := agents(); !got[0].Guardian {
		t.Error("the wrong one was killed")
	}
}

func testEngine(t *testing.T, c *Cluster) {
	ctx := within(t, 3*time.Minute)
	host := c.Hosts()[0]
	before := starts(c, host.ID)
	if err := c.KillEngine(ctx, host.ID); err != nil {
		t.Fatal(err)
	}
	if conn, err := c.DialEngine(ctx, host.ID); err == nil {
		conn.Close()
		t.Error("a killed engine answers")
	}
	if got := starts(c, host.ID); got != before {
		t.Errorf("the node was started again (%d, was %d) by killing the engine alone", got, before)
	}
	if err := c.StartEngine(ctx, host.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policy to revive the node", func() bool { return starts(c, host.ID) > before && nodeAnswers(t, c, host)() })
	before = starts(c, host.ID)
	if err := c.RestartEngine(ctx, host.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node after a restart of the engine", func() bool { return starts(c, host.ID) > before && nodeAnswers(t, c, host)() })
}

func testFaults(t *testing.T, c *Cluster) {
	ctx := within(t, 3*time.Minute)
	host := c.Hosts()[0]
	for _, bad := range []struct{ host, kind, arg, want string }{
		{host.ID, "no-such", "", "known are"}, {"099", "stop", "", "known: 001, 002, 003"}, {host.ID, "skew", "x", "not a number"}, {host.ID, "stop", "5", "takes no argument"},
	} {
		if err := c.Inject(ctx, bad.host, bad.kind, bad.arg); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s=%s on %s: %v, want %q", bad.kind, bad.arg, bad.host, err, bad.want)
		}
	}
	if err := errors.Join(c.Inject(ctx, host.ID, "mute", ""), c.Inject(ctx, host.ID, "skew", "7"), c.Inject(ctx, host.ID, "pull-fail", ""),
		c.Inject(ctx, host.ID, "second-updater", "")); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(c.Path(host.ID, DataDir+"/lab-faults")); err != nil || string(data) != "mute\nskew=7\n" {
		t.Errorf("fault file of the node: %q %v", data, err)
	}
	engine, err := c.Engine(host.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := pull(ctx, engine, c.Image("v2")); err == nil {
		t.Error("pulled with pull-fail set")
	}
	out, err := c.Exec(ctx, host.ID, "docker", "ps", "--format", "{{.Names}} {{.Image}}")
	if err != nil || !strings.Contains(string(out), "watchtower containrrr/watchtower") {
		t.Errorf("no second updater: %q %v", out, err)
	}
	if got := c.Faults()[host.ID]; !slices.Equal(got, []string{"mute", "pull-fail", "second-updater", "skew=7"}) {
		t.Errorf("faults set: %q", got)
	}
	if err := c.Inject(ctx, host.ID, "pull-fail", ""); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the same fault twice: %v", err)
	}
	if err := c.ClearFaults(ctx); err != nil {
		t.Fatal(err)
	}
	if err := pull(ctx, engine, c.Image("v2")); err != nil {
		t.Errorf("pull after the faults were cleared: %v", err)
	}
	if _, err := os.Stat(c.Path(host.ID, DataDir+"/lab-faults")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("fault file is still there: %v", err)
	}
	if len(c.Faults()) != 0 {
		t.Errorf("faults left: %v", c.Faults())
	}
}

// testEngineFaults sets faults of the engine one by one: each has its effect while it is set, and none after.
func testEngineFaults(t *testing.T, c *Cluster) {
	ctx := within(t, 3*time.Minute)
	host := c.Hosts()[1]
	engine, err := c.Engine(host.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	create := func() error {
		_, err := engine.ContainerCreate(ctx, &container.Config{Image: c.Image("v1")}, nil, nil, nil, "probe")
		return err
	}
	start := func() error { return engine.ContainerStart(ctx, "probe", container.StartOptions{}) }
	remove := func() error { return engine.ContainerRemove(ctx, "probe", container.RemoveOptions{Force: true}) }
	for _, fault := range []struct {
		kind, want string
		fails      func() error
		works      func() error
	}{
		{"disk-full", "no space left on device", func() error { return pull(ctx, engine, c.Image("slow")) }, func() error { return pull(ctx, engine, c.Image("slow")) }},
		{"create-fail", "read-only file system", create, create},
		{"start-fail", "runtime", start, func() error { return errors.Join(start(), remove()) }},
	} {
		if err := c.Inject(ctx, host.ID, fault.kind, ""); err != nil {
			t.Fatal(err)
		}
		if err := fault.fails(); err == nil || !strings.Contains(err.Error(), fault.want) {
			t.Errorf("%s: %v, want %q", fault.kind, err, fault.want)
		}
		if err := c.ClearFault(ctx, host.ID, fault.kind); err != nil {
			t.Fatal(err)
		}
		if err := fault.works(); err != nil {
			t.Errorf("%s cleared: %v", fault.kind, err)
		}
	}
	if err := c.Inject(ctx, host.ID, "log-level", "1"); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(ctx, host.ID, "docker", "inspect", "--format", "{{.Config.Env}}", host.Container); err != nil || !strings.Contains(string(out), "QNET_LOG_LEVEL=1") {
		t.Errorf("log-level: %s %v", out, err)
	}
	if err := c.Inject(ctx, host.ID, "log-rotate", ""); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(ctx, host.ID, "docker", "logs", host.Container); err != nil || len(out) > 0 {
		t.Errorf("log after log-rotate: %q %v", out, err)
	}
	if err := c.Inject(ctx, host.ID, "drop-ssh", "hold"); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t, c, host, "root"); err == nil {
		conn.Close()
		t.Error("ssh accepted with drop-ssh=hold")
	}
	if err := c.ClearFaults(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(ctx, host.ID, "docker", "inspect", "--format", "{{.Config.Env}}", host.Container); err != nil || strings.Contains(string(out), "QNET_LOG_LEVEL") {
		t.Errorf("log-level cleared: %s %v", out, err)
	}
	mustDial(t, c, host)
}

func testReboot(t *testing.T, c *Cluster) {
	ctx := within(t, 3*time.Minute)
	host := c.Hosts()[2]
	before := starts(c, host.ID)
	old, err := c.init(host)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Reboot(ctx, host.ID); err != nil {
		t.Fatal(err)
	}
	if old.Alive() {
		t.Error("the old init lives")
	}
	eventually(t, "the node after a reboot", func() bool { return starts(c, host.ID) > before && nodeAnswers(t, c, host)() })
	if agents, err := c.AgentPIDs(host.ID); err != nil || len(agents) != 0 {
		t.Errorf("agents outlived the host: %v %v", agents, err)
	}
	conn := mustDial(t, c, c.Hosts()[0])
	eventually(t, "peers to reach the rebooted node", func() bool {
		body, err := get(conn, "/reach")
		return err == nil && strings.Contains(body, host.NodeID)
	})
}

func testHostKey(t *testing.T, c *Cluster) {
	ctx := within(t, 2*time.Minute)
	host := c.Hosts()[1]
	if err := c.Inject(ctx, host.ID, "host-key", ""); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t, c, host, "root")
	var changed *knownhosts.KeyError
	if !errors.As(err, &changed) || len(changed.Want) != 1 {
		t.Errorf("changed host key: %v", err)
	}
	if err := c.ClearFaults(ctx); err != nil {
		t.Fatal(err)
	}
	mustDial(t, c, host)
}

func testSecondUp(t *testing.T, c *Cluster, binary string) {
	dir := filepath.Dir(c.HostsFile())
	_, err := Up(within(t, time.Minute), Config{Nodes: 1, Dir: dir, Binary: binary})
	var alive *AliveError
	if !errors.As(err, &alive) || alive.PID != os.Getpid() {
		t.Errorf("second up in the same folder: %v", err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "hosts.toml"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(within(t, time.Minute), Config{Nodes: 1, Dir: foreign, Binary: binary}); err == nil || !strings.Contains(err.Error(), "not made by a lab") {
		t.Errorf("up over somebody's hosts.toml: %v", err)
	}
	if data, _ := os.ReadFile(filepath.Join(foreign, "hosts.toml")); string(data) != "mine" {
		t.Error("somebody's hosts.toml was touched")
	}
}

// testDown takes the lab down as another process would, from its folder alone.
func testDown(t *testing.T, c *Cluster) {
	st, dir := c.State(), filepath.Dir(c.HostsFile())
	mine := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	down := make(chan error, 1)
	go func() { down <- c.Wait(within(t, 3*time.Minute)) }()
	if err := Down(within(t, 3*time.Minute), dir); err != nil {
		t.Fatal(err)
	}
	if err := <-down; err != nil {
		t.Errorf("the owner was not told: %v", err)
	}
	next, err := claim(within(t, 3*time.Minute), Config{Nodes: 1, SuperFrom: 6, Dir: filepath.Join(t.TempDir(), "next"), NodeEnv: func(int) []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if listener, err := next.listenRegistry(within(t, 3*time.Minute)); err != nil {
		t.Errorf("the owner keeps the address of the registry: %v", err)
	} else {
		listener.Close()
	}
	if err := next.Down(within(t, 3*time.Minute)); err != nil {
		t.Error(err)
	}
	assertGone(t, &st, dir)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if !slices.Equal(left, []string{filepath.Join(dir, "log"), mine}) {
		t.Errorf("left in the folder: %q", left)
	}
	if log, err := os.ReadFile(filepath.Join(c.LogDir("001"), "dockerd.log")); err != nil || !strings.Contains(string(log), "API listen") {
		t.Errorf("dockerd's log: %v", err)
	}
	if err := Down(within(t, time.Minute), dir); !errors.Is(err, ErrNoLab) {
		t.Errorf("second down: %v", err)
	}
}

// assertGone looks for anything of a lab on the machine: processes, devices, mounts, cgroups.
func assertGone(t *testing.T, st *State, dir string) {
	t.Helper()
	inits, err := findInits()
	if err != nil {
		t.Fatal(err)
	}
	for _, init := range inits {
		if init.Lab == st.ID {
			t.Errorf("init %d of host %s lives", init.PID, init.Name)
		}
	}
	all, err := pids()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		if line := strings.Join(argv(pid), " "); strings.Contains(line, cgroupName(st)) {
			t.Errorf("process %d lives: %s", pid, line)
		}
	}
	for _, name := range append([]string{st.Bridge}, veths(st)...) {
		if linkExists(name) {
			t.Errorf("device %s is left", name)
		}
	}
	if mounts, err := mountsBelow(dir); err != nil || len(mounts) > 0 {
		t.Errorf("mounts left: %q %v", mounts, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		if groups, _ := filepath.Glob(pattern + cgroupName(st)); len(groups) > 0 {
			t.Errorf("cgroups left: %q", groups)
		}
	}
}

func veths(st *State) []string {
	var out []string
	for _, host := range st.Hosts {
		out = append(out, host.Veth)
	}
	return out
}
