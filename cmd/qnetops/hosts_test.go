package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/nat"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/realhosts"
)

// hostsLabBlock keeps six real engines and nodes comfortable on two cores.
const hostsLabBlock = 60 * time.Millisecond

// bench is a lab of real hosts with the program that operates it.
type realFleet struct {
	*realhosts.Cluster
	t       *testing.T
	program string
	dir     string
	store   string // where the journal is; empty: a file in dir
	mu      sync.Mutex
	said    bytes.Buffer // everything any command printed
}

// program builds the static binary that the operator, the agents and the
// nodes' images all use.
func buildProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qnetops")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return path
}

// upFleet brings real hosts up; shape may change each node's container.
func upFleet(t *testing.T, nodes int) *realFleet {
	t.Helper()
	need.Linux(t)
	need.Root(t)
	need.Program(t, "dockerd", "containerd", "sshd", "iptables", "ip")
	f := &realFleet{t: t, program: buildProgram(t), dir: t.TempDir()}
	f.raise(realhosts.Config{Nodes: nodes, Block: hostsLabBlock, Progress: func(s string) { t.Log(s) }})
	return f
}

// raise brings the hosts up, and takes them down when the test is over.
func (f *realFleet) raise(cfg realhosts.Config) {
	f.t.Helper()
	cfg.Dir, cfg.Binary, cfg.NodeEnv = filepath.Join(f.dir, "lab"), f.program, sentinelEnv
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Minute)
	defer cancel()
	cluster, err := realhosts.Up(ctx, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Cluster = cluster
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := cluster.Down(ctx); err != nil {
			f.t.Errorf("taking the lab down: %v", err)
		}
	})
}

// command prepares one command line of the real program.
func (f *realFleet) command(line ...string) *exec.Cmd {
	cmd := exec.Command(f.program, line...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "QNETOPS_HOSTS=" + f.HostsFile(), "QNETOPS_STATE=" + cmp.Or(f.store, filepath.Join(f.dir, "state.db"))}
	return cmd
}

// run runs a command to its end and returns what it printed and its exit code.
func (f *realFleet) run(line ...string) (string, int) {
	f.t.Helper()
	cmd := f.command(line...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	f.keep(out.Bytes(), errs.Bytes())
	code := 0
	if err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			f.t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	f.t.Logf("qnetops %s: exit %d", strings.Join(line, " "), code)
	if code != 0 {
		f.t.Logf("%s", errs.String())
	}
	return out.String(), code
}

func (f *realFleet) keep(parts ...[]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range parts {
		f.said.Write(p)
	}
}

// must runs a command that has to end with this exit code.
func (f *realFleet) must(code int, line ...string) string {
	f.t.Helper()
	out, got := f.run(line...)
	if got != code {
		f.t.Fatalf("qnetops %s: exit code %d, want %d\n%s", strings.Join(line, " "), got, code, out)
	}
	return out
}

// runUntil starts a command and calls break_ once a line of its progress holds
// mark; it returns the exit code when the command has ended (-1: killed).
func (f *realFleet) runUntil(mark string, breakIt func(*exec.Cmd), line ...string) int {
	f.t.Helper()
	cmd := f.command(append(line, "-v")...)
	progress, err := cmd.StderrPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	seen := false
	for scan := bufio.NewScanner(progress); scan.Scan(); {
		f.keep(scan.Bytes(), []byte("\n"))
		if !seen && strings.Contains(scan.Text(), mark) {
			seen = true
			breakIt(cmd)
		}
	}
	_ = cmd.Wait()
	if !seen {
		f.t.Errorf("qnetops %s never said %q", strings.Join(line, " "), mark)
	}
	return cmd.ProcessState.ExitCode()
}

// unfinished is the id of the newest operation.
func (f *realFleet) newest() string {
	f.t.Helper()
	var doc struct{ Operations []struct{ ID, State string } }
	if err := json.Unmarshal([]byte(f.must(0, "ops", "-o", "json")), &doc); err != nil || len(doc.Operations) == 0 {
		f.t.Fatalf("no operations: %v", err)
	}
	return doc.Operations[0].ID
}

func (f *realFleet) docker(id string) *client.Client {
	f.t.Helper()
	api, err := f.Engine(id)
	if err != nil {
		f.t.Fatal(err)
	}
	return api
}

// inspect returns the raw inspect of a container, as any tool would see it.
func (f *realFleet) inspect(id, name string) map[string]any {
	f.t.Helper()
	api := f.docker(id)
	defer api.Close()
	_, raw, err := api.ContainerInspectWithRaw(f.t.Context(), name, false)
	if err != nil {
		f.t.Fatalf("host %s: %v", id, err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		f.t.Fatal(err)
	}
	return out
}

// running lists the running containers of a host that have the node's data.
func (f *realFleet) running(id string) []string {
	f.t.Helper()
	api := f.docker(id)
	defer api.Close()
	list, err := api.ContainerList(f.t.Context(), container.ListOptions{})
	if err != nil {
		return nil
	}
	var out []string
	for _, c := range list {
		for _, m := range c.Mounts {
			if m.Destination == "/app/data" {
				out = append(out, strings.TrimPrefix(c.Names[0], "/"))
			}
		}
	}
	return out
}

// oneContainer asserts invariant 4 on a host, within a bounded time.
func (f *realFleet) oneContainer(id string) {
	f.t.Helper()
	var last []string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		if last = f.running(id); len(last) == 1 {
			return
		}
		if len(last) > 1 {
			f.t.Fatalf("host %s: two containers on one data directory: %v", id, last)
		}
	}
	f.t.Fatalf("host %s runs %v, want exactly one container", id, last)
}

// recreate replaces a node's container by one with other settings and the
// same identity.
func (f *realFleet) recreate(id string, change func(*container.Config, *container.HostConfig) *network.NetworkingConfig, also ...string) {
	f.t.Helper()
	ctx := f.t.Context()
	api := f.docker(id)
	defer api.Close()
	name := f.host(id).Container
	old, err := api.ContainerInspect(ctx, name)
	if err != nil {
		f.t.Fatal(err)
	}
	image, err := api.ImageInspect(ctx, old.Image)
	if err != nil {
		f.t.Fatal(err)
	}
	config := &container.Config{Image: old.Config.Image}
	for _, kv := range old.Config.Env {
		if !slices.Contains(image.Config.Env, kv) {
			config.Env = append(config.Env, kv)
		}
	}
	hostConfig := &container.HostConfig{Binds: old.HostConfig.Binds, PortBindings: old.HostConfig.PortBindings,
		RestartPolicy: old.HostConfig.RestartPolicy, LogConfig: old.HostConfig.LogConfig}
	networks := change(config, hostConfig)
	timeout := 60
	if err := api.ContainerStop(ctx, name, container.StopOptions{Timeout: &timeout}); err != nil {
		f.t.Fatal(err)
	}
	if err := api.ContainerRemove(ctx, name, container.RemoveOptions{}); err != nil {
		f.t.Fatal(err)
	}
	made, err := api.ContainerCreate(ctx, config, hostConfig, networks, nil, name)
	if err != nil {
		f.t.Fatalf("host %s: %v", id, err)
	}
	for _, more := range also {
		if err := api.NetworkConnect(ctx, more, made.ID, &network.EndpointSettings{Aliases: []string{"second"}}); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := api.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		f.t.Fatalf("host %s: %v", id, err)
	}
}

func (f *realFleet) host(id string) realhosts.Host {
	for _, h := range f.Hosts() {
		if h.ID == id {
			return h
		}
	}
	f.t.Fatalf("no host %s", id)
	return realhosts.Host{}
}

func (f *realFleet) network(id, name, subnet string) {
	f.t.Helper()
	api := f.docker(id)
	defer api.Close()
	if _, err := api.NetworkCreate(f.t.Context(), name, network.CreateOptions{Driver: "bridge",
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: subnet}}}}); err != nil {
		f.t.Fatal(err)
	}
}

// variety gives every node but the first the settings that recreating a
// container is known to lose (anchors of the container recreate problem).
func (f *realFleet) variety() {
	f.recreate("002", func(c *container.Config, h *container.HostConfig) *network.NetworkingConfig {
		h.Binds = nil
		h.Mounts = []mount.Mount{
			{Type: mount.TypeBind, Source: realhosts.DataDir, Target: "/app/data", BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}},
			{Type: mount.TypeTmpfs, Target: "/scratch", TmpfsOptions: &mount.TmpfsOptions{SizeBytes: 8 << 20}},
		}
		h.Tmpfs = map[string]string{"/cache": "size=4m,noexec"}
		h.Ulimits = []*container.Ulimit{{Name: "nofile", Soft: 512, Hard: 1024}}
		c.Labels = map[string]string{"operator": "example", "com.docker.compose.project": "qnet", "quote": `a "b" $(c) \u0026`}
		return nil
	})
	f.network("003", "front", "198.18.1.0/24")
	f.network("003", "back", "198.18.2.0/24")
	f.recreate("003", func(c *container.Config, h *container.HostConfig) *network.NetworkingConfig {
		h.NetworkMode = "front"
		c.Env = append(c.Env, "MULTI=line one\nline two", "ODD=$(reboot) `x` 'q' \"d\"")
		return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			"front": {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: "198.18.1.77"}, Aliases: []string{"first"}}}}
	}, "back")
	f.recreate("004", func(c *container.Config, h *container.HostConfig) *network.NetworkingConfig {
		h.NetworkMode, h.PortBindings = "host", nil
		h.Memory, h.MemorySwap, h.CPUShares = 512<<20, 1<<30, 512
		h.CapAdd, h.SecurityOpt, h.ExtraHosts = []string{"NET_ADMIN"}, []string{"no-new-privileges"}, []string{"seed.example.org:192.0.2.1"}
		return nil
	})
	f.recreate("005", func(c *container.Config, h *container.HostConfig) *network.NetworkingConfig {
		for port := range h.PortBindings {
			h.PortBindings[port] = []nat.PortBinding{{HostIP: "0.0.0.0", HostPort: port.Port()}}
		}
		h.PortBindings["8001/tcp"] = []nat.PortBinding{{HostIP: "127.0.0.1", HostPort: "8001"}}
		stop := 75
		c.StopTimeout, c.StopSignal, c.Hostname, c.Domainname = &stop, "SIGTERM", "validator-5", "example.org"
		c.Healthcheck = &container.HealthConfig{Test: []string{"CMD", "/qnetops", "lab", "node", "--probe"}, Interval: 7 * time.Second, Retries: 9}
		h.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "11m", "max-file": "3", "tag": "{{.Name}}"}}
		c.Volumes = map[string]struct{}{"/app/extra": {}}
		return nil
	})
	f.recreate("006", func(c *container.Config, h *container.HostConfig) *network.NetworkingConfig {
		c.WorkingDir, c.User, c.Tty = "/app", "0:0", false
		h.ReadonlyRootfs, h.Init, h.ShmSize, h.OomScoreAdj = true, new(bool), 32<<20, 100
		h.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
		h.DNS, h.GroupAdd = []string{"192.0.2.53"}, []string{"1000"}
		return nil
	})
}

// volatile are the fields of an inspect that belong to one container and not to
// its settings.
func volatile(path string) bool {
	for _, prefix := range []string{"Id", "Created", "State.", "Image", "Name", "ResolvConfPath", "HostnamePath", "HostsPath", "LogPath", "GraphDriver.", "RestartCount",
		"HostConfig.ContainerIDFile", "NetworkSettings.SandboxID", "NetworkSettings.SandboxKey", "NetworkSettings.EndpointID", "NetworkSettings.MacAddress",
		"Config.Image", "ProcessLabel", "Args", "AppArmorProfile"} {
		if path == strings.TrimSuffix(prefix, ".") || strings.HasPrefix(path, prefix) && strings.HasSuffix(prefix, ".") {
			return true
		}
	}
	if strings.HasPrefix(path, "Args[") || strings.HasPrefix(path, "ExecIDs") {
		return true // Args follow Cmd, which the image gives here; ExecIDs is a health check that runs right now
	}
	return strings.HasPrefix(path, "NetworkSettings.") && (strings.HasSuffix(path, ".EndpointID") || strings.HasSuffix(path, ".MacAddress") || strings.HasSuffix(path, ".NetworkID"))
}

// flatten turns an inspect into paths and values.
func flatten(into map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			flatten(into, strings.TrimPrefix(path+"."+k, "."), inner)
		}
	case []any:
		for i, inner := range v {
			flatten(into, fmt.Sprintf("%s[%d]", path, i), inner)
		}
	default:
		into[path] = fmt.Sprint(v)
	}
}

// settings is what of an inspect must survive a roll, as sorted lines. Lists
// whose order means nothing are sorted; env, labels, cmd and health check that
// come from the image are judged apart.
func settings(c map[string]any) map[string]string {
	config := c["Config"].(map[string]any)
	for _, image := range []string{"Env", "Cmd", "Labels", "Healthcheck", "Hostname"} {
		delete(config, image)
	}
	for _, key := range []string{"Mounts"} {
		if list, ok := c[key].([]any); ok {
			slices.SortFunc(list, func(a, b any) int {
				return strings.Compare(a.(map[string]any)["Destination"].(string), b.(map[string]any)["Destination"].(string))
			})
		}
	}
	if list, ok := c["NetworkSettings"].(map[string]any); ok {
		if networks, ok := list["Networks"].(map[string]any); ok {
			for _, n := range networks {
				// The engine adds the container's own short id as an alias.
				if aliases, ok := n.(map[string]any)["Aliases"].([]any); ok {
					n.(map[string]any)["Aliases"] = slices.DeleteFunc(aliases, func(a any) bool { return strings.HasPrefix(c["Id"].(string), a.(string)) })
				}
			}
		}
	}
	flat := map[string]string{}
	flatten(flat, "", c)
	for path := range flat {
		if volatile(path) {
			delete(flat, path)
		}
	}
	return flat
}

// userEnv is the environment less what the image gives.
func userEnv(c map[string]any, image []string) map[string]string {
	out := map[string]string{}
	for _, kv := range c["Config"].(map[string]any)["Env"].([]any) {
		if !slices.Contains(image, kv.(string)) {
			name, value, _ := strings.Cut(kv.(string), "=")
			out[name] = value
		}
	}
	return out
}

func (f *realFleet) imageEnv(id, ref string) []string {
	api := f.docker(id)
	defer api.Close()
	image, err := api.ImageInspect(f.t.Context(), ref)
	if err != nil {
		f.t.Fatal(err)
	}
	return image.Config.Env
}

// TestRollOnRealHosts is the main job on real sshd and Docker engines: all
// settings survive, data survives, one node at a time, and no secret leaves.
func TestRollOnRealHosts(t *testing.T) {
	f := upFleet(t, 6)
	f.variety()
	before := map[string]map[string]any{}
	marks := map[string]string{}
	for _, h := range f.Hosts() {
		before[h.ID] = f.inspect(h.ID, h.Container)
		mark := f.Path(h.ID, filepath.Join(realhosts.DataDir, "operator-was-here"))
		if err := os.WriteFile(mark, []byte(h.ID), 0o644); err != nil {
			t.Fatal(err)
		}
		marks[h.ID] = mark
	}
	f.healthy()
	f.committee(6)
	stop := f.watchProcesses()
	out := f.must(0, "roll", "qnet:v2", "--yes", "-o", "json")
	stop()
	var doc rollSummary
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if wrong := doc.want("rolled", 6); wrong != "" {
		t.Fatal(wrong)
	}
	for _, n := range doc.Nodes {
		for _, m := range n.Milestones {
			if m.Verdict != "pass" {
				t.Errorf("node %s: %s is %s", n.ID, m.Name, m.Verdict)
			}
		}
	}
	for _, h := range f.Hosts() {
		f.sameSettings(h, before[h.ID])
		if raw, err := os.ReadFile(marks[h.ID]); err != nil || string(raw) != h.ID {
			t.Errorf("host %s: data did not survive: %v", h.ID, err)
		}
		if got := f.running(h.ID); len(got) != 1 || got[0] != h.Container {
			t.Errorf("host %s runs %v", h.ID, got)
		}
	}
	t.Run("restart", f.restarts)
	t.Run("bad images", f.badImages)
	t.Run("killed", f.killedOnce)
	f.noSecrets()
}

func (f *realFleet) healthy() {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		if out, code := f.run("status", "--check"); code == 0 {
			return
		} else if time.Now().After(deadline) {
			f.t.Fatalf("the fleet does not become healthy:\n%s", out)
		}
	}
}

// committee waits until the newest common seal names so many members: the sixth
// node of a young chain joins only after its first windows.
func (f *realFleet) committee(members int) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		out, _ := f.run("status", "-o", "json")
		var doc struct{ Seal *struct{ Committee []string } }
		if err := json.Unmarshal([]byte(out), &doc); err == nil && doc.Seal != nil && len(doc.Seal.Committee) == members {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("the committee never had %d members:\n%s", members, out)
		}
	}
}

// sameSettings compares a node's container with its predecessor independently
// of the program's own comparison.
func (f *realFleet) sameSettings(h realhosts.Host, old map[string]any) {
	f.t.Helper()
	now := f.inspect(h.ID, h.Container)
	oldEnv, newEnv := userEnv(old, f.imageEnv(h.ID, old["Image"].(string))), userEnv(now, f.imageEnv(h.ID, now["Image"].(string)))
	delete(oldEnv, "QNET_BUILD_ID")
	if !maps.Equal(oldEnv, newEnv) {
		// Names only: a test log is no place for secrets either.
		f.t.Errorf("host %s: environment differs: %v became %v", h.ID, slices.Sorted(maps.Keys(oldEnv)), slices.Sorted(maps.Keys(newEnv)))
	}
	oldLabels, newLabels := old["Config"].(map[string]any)["Labels"], now["Config"].(map[string]any)["Labels"]
	for _, name := range []string{"operator", "com.docker.compose.project", "quote"} {
		if a, b := field(oldLabels, name), field(newLabels, name); a != b {
			f.t.Errorf("host %s: label %s was %q and is %q", h.ID, name, a, b)
		}
	}
	if h.ID == "005" {
		for _, key := range []string{"Hostname", "Healthcheck"} {
			if a, b := fmt.Sprint(old["Config"].(map[string]any)[key]), fmt.Sprint(now["Config"].(map[string]any)[key]); a != b {
				f.t.Errorf("host 005: %s was %s and is %s", key, a, b)
			}
		}
	}
	was, is := settings(old), settings(now)
	for path, value := range was {
		if reattached(h.ID, path) {
			continue
		}
		if got, ok := is[path]; !ok || got != value {
			f.t.Errorf("host %s: %s was %q and is %q", h.ID, path, value, got)
		}
	}
	for path, value := range is {
		if _, ok := was[path]; !ok && !reattached(h.ID, path) {
			f.t.Errorf("host %s: %s is new: %q", h.ID, path, value)
		}
	}
}

// reattached: the anonymous volume of host 005 comes back by its name, which
// an inspect shows as a bind and with the engine's default mode; the name of the
// volume itself (Mounts[1].Name) is compared like everything else.
func reattached(id, path string) bool {
	return id == "005" && (path == "HostConfig.Binds[1]" || path == "Mounts[1].Mode")
}

func field(labels any, name string) string {
	if m, ok := labels.(map[string]any); ok {
		return fmt.Sprint(m[name])
	}
	return ""
}

// badImages: the cheapest bad image on real hosts; the others run on the
// process lab and in the long tests.
func (f *realFleet) badImages(t *testing.T) {
	out, code := f.run("roll", "qnet:crash", "--yes", "-o", "json")
	var doc rollSummary
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitStopped {
		t.Fatalf("exit code %d, want %d: %v", code, exitStopped, err)
	}
	if wrong := doc.want("restored", 1); wrong != "" {
		t.Error(wrong)
	}
	f.must(0, "abort", f.newest())
	f.healthy()
}

// killedOnce kills one thing in the middle of each operation.
func (f *realFleet) killedOnce(t *testing.T) {
	kill := func(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
	t.Run("the tool in a replace, then resume", func(t *testing.T) {
		f.runUntil("start_next intent", kill, "roll", "--set-env", "ROUND=1", "--only", "001", "--yes")
		f.oneContainer("001")
		f.must(0, "resume", f.newest())
		f.healthy()
	})
	t.Run("the agent in a replace", func(t *testing.T) {
		code := f.runUntil("stop_old intent", func(*exec.Cmd) { f.killAgents("002", false) }, "roll", "--set-env", "ROUND=2", "--only", "002", "--yes")
		f.oneContainer("002")
		if code != 0 {
			f.must(0, "resume", f.newest())
		}
		f.healthy()
	})
	t.Run("the engine in a replace", func(t *testing.T) {
		code := f.runUntil("start_next intent", func(*exec.Cmd) {
			if err := f.KillEngine(t.Context(), "003"); err != nil {
				t.Error(err)
			}
			if err := f.StartEngine(t.Context(), "003"); err != nil {
				t.Error(err)
			}
		}, "roll", "--set-env", "ROUND=3", "--only", "003", "--yes")
		f.oneContainer("003")
		if code != 0 {
			f.must(0, "resume", f.newest())
		}
		f.healthy()
	})
	t.Run("the tool in an abort", func(t *testing.T) {
		f.runUntil("milestones begun", kill, "roll", "--set-env", "ROUND=4", "--only", "004", "--yes")
		f.runUntil("start_old intent", kill, "abort", f.newest())
		f.oneContainer("004")
		f.must(0, "abort", f.newest())
		f.healthy()
	})
	t.Run("the tool in a restore", func(t *testing.T) {
		f.runUntil("milestones begun", kill, "roll", "--set-env", "ROUND=5", "--only", "005", "--yes")
		f.runUntil("stop_next intent", kill, "restore", "005", "--yes")
		f.oneContainer("005")
		f.must(0, "abort", f.newest())
		f.healthy()
	})
}

func (f *realFleet) killAgents(id string, guardian bool) {
	f.t.Helper()
	agents, err := f.Agents(id)
	if err != nil {
		f.t.Error(err)
	}
	for _, a := range agents {
		if a.Guardian == guardian {
			if err := a.Kill(9); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// watchProcesses looks for secrets in the command lines of all processes of
// this machine while a command runs.
func (f *realFleet) watchProcesses() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
			}
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, file := range files {
				raw, err := os.ReadFile(file)
				if err != nil {
					continue // ended meanwhile
				}
				for name, value := range lab.Sentinels() {
					if bytes.Contains(raw, []byte(value)) {
						f.t.Errorf("the value of %s stands in the arguments of %s", name, file)
					}
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// noSecrets searches everything that was printed or stored for the planted
// values, and first proves that the search would find one.
func (f *realFleet) noSecrets() {
	f.t.Helper()
	places := map[string][]byte{"the output of all commands": f.said.Bytes()}
	files, err := filepath.Glob(filepath.Join(f.dir, "state.db*"))
	if err != nil || len(files) == 0 {
		f.t.Fatalf("no state file: %v", err)
	}
	for _, h := range f.Hosts() {
		// What the agent leaves on a host must not hold them either.
		tx, _ := filepath.Glob(f.Path(h.ID, "/var/lib/qnetops/tx/*"))
		files = append(files, append(tx, f.Path(h.ID, "/var/lib/qnetops/fence.json"))...)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.t.Fatal(err)
		}
		places[file] = raw
	}
	for name, value := range lab.Sentinels() {
		for place, raw := range places {
			if bytes.Contains(raw, []byte(value)) {
				f.t.Errorf("the value of %s stands in %s", name, place)
			}
		}
	}
	control := fmt.Sprint(f.inspect("001", f.host("001").Container))
	if !strings.Contains(control, lab.Sentinels()["QNET_ADMIN_SECRET"]) {
		f.t.Error("the planted secret is not even in the container; the search above proves nothing")
	}
}
