package host

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nodeSource is the node of the real-engine test: it locks its data directory,
// as a database does, and leaves a mark if another holds it.
const nodeSource = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	dir := os.Getenv("QNET_DATA_DIR")
	f, err := os.OpenFile(dir+"/LOCK", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		os.WriteFile(dir+"/VIOLATION", nil, 0o600)
		os.Exit(3)
	}
	runs, _ := os.OpenFile(dir+"/runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	fmt.Fprintln(runs, os.Getenv("QNET_BUILD_ID"))
	fmt.Println("node", os.Getenv("QNET_BUILD_ID"), "is up")
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	<-c
	time.Sleep(time.Second)
	fmt.Println("node has flushed")
}
`

// realEngine is a dockerd of its own in a network namespace of its own.
type realEngine struct {
	t    testing.TB
	dir  string
	sock string
	cmd  *exec.Cmd
	h    *hostOps
}

// needEngine skips with a line that says what is missing; under CI nothing is skipped.
func needEngine(t testing.TB) {
	missing := ""
	for _, p := range []string{"dockerd", "unshare", "ip"} {
		if _, err := exec.LookPath(p); err != nil {
			missing += " " + p
		}
	}
	if os.Getuid() != 0 {
		missing += " root"
	}
	if missing == "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("the real-engine test needs:%s", missing)
	}
	t.Skipf("the real-engine test needs:%s", missing)
}

func newRealEngine(t testing.TB) *realEngine {
	needEngine(t)
	dir, err := os.MkdirTemp("", "hosteng") // short: a socket path has a limit
	if err != nil {
		t.Fatal(err)
	}
	e := &realEngine{t: t, dir: dir, sock: filepath.Join(dir, "s.sock")}
	e.h = newOps(Config{DialEngine: e.dial})
	e.boot()
	t.Cleanup(func() {
		rows, _ := e.h.eng.list(context.Background())
		for _, r := range rows {
			_ = e.post("/containers/"+r.ID+"/update", nil, object{"RestartPolicy": object{"Name": "no"}}, nil)
			_ = e.h.eng.do(context.Background(), http.MethodDelete, "/containers/"+r.ID, url.Values{"force": {"1"}, "v": {"1"}}, nil, nil)
		}
		e.halt()
		os.RemoveAll(dir)
	})
	return e
}

func (e *realEngine) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", e.sock)
}

func (e *realEngine) boot() {
	e.t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.t.Fatal(err)
	}
	defer log.Close()
	if e.cmd == nil {
		// The namespace outlives the engine, as a host's does.
		e.netns("add")
		e.t.Cleanup(func() { e.netns("del") })
	}
	e.cmd = exec.Command("nsenter", "--net=/run/netns/"+e.ns(), "unshare", "-m", "--", "dockerd", "--data-root", e.dir+"/data", "--exec-root", e.dir+"/exec",
		"--pidfile", e.dir+"/pid", "--host", "unix://"+e.sock, "--storage-driver", "vfs")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if e.h.eng.ping(context.Background()) == nil {
			return
		}
		if time.Now().After(end) {
			out, _ := os.ReadFile(filepath.Join(e.dir, "log"))
			e.t.Fatalf("dockerd does not come up: %s", out[max(0, len(out)-2000):])
		}
	}
}

func (e *realEngine) ns() string { return filepath.Base(e.dir) }

func (e *realEngine) netns(what string) {
	e.t.Helper()
	if out, err := exec.Command("ip", "netns", what, e.ns()).CombinedOutput(); err != nil {
		e.t.Errorf("ip netns %s: %v %s", what, err, out)
	}
	if what == "add" {
		if out, err := exec.Command("ip", "-n", e.ns(), "link", "set", "lo", "up").CombinedOutput(); err != nil {
			e.t.Errorf("loopback: %v %s", err, out)
		}
	}
}

func (e *realEngine) halt() {
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		e.t.Error(err)
	}
	if err := e.cmd.Wait(); err != nil {
		e.t.Logf("dockerd ended: %v", err)
	}
}

func (e *realEngine) post(path string, q url.Values, body, out any) error {
	return e.h.eng.do(context.Background(), http.MethodPost, path, q, body, out)
}

func (e *realEngine) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// importImage makes an image of one static program with the given defaults.
func (e *realEngine) importImage(tag string, binary []byte, changes ...string) string {
	e.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range []string{"app/", "app/data/", "tmp/"} {
		e.must(w.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	e.must(w.WriteHeader(&tar.Header{Name: "node", Mode: 0o755, Size: int64(len(binary))}))
	_, err := w.Write(binary)
	e.must(err)
	e.must(w.Close())
	req, err := http.NewRequest(http.MethodPost, "http://docker/v1.41/images/create?"+url.Values{"fromSrc": {"-"}, "repo": {"qnet"}, "tag": {tag}, "changes": changes}.Encode(), &b)
	e.must(err)
	resp, err := e.h.eng.http.Do(req)
	e.must(err)
	defer resp.Body.Close()
	e.must(readPull(resp.Body, nil))
	_, o, err := e.h.eng.image(context.Background(), "qnet:"+tag)
	e.must(err)
	return str(o, "Id")
}

func buildNode(t testing.TB) []byte {
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte(nodeSource), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "node"), src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the node: %v %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "node"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// cases are containers as operators make them. DATA stands for the data folder.
var realCases = []struct{ name, body string }{
	{"rich", `{"Env":["MINE=a b","QNET_WALLET_SEED=sentinel one two"],"Labels":{"owner":"me"},"User":"0:0","StopTimeout":90,"StopSignal":"SIGINT","Hostname":"validator",
	 "ExposedPorts":{"8001/tcp":{},"9000/udp":{}},"Volumes":{"/mine":{}},"Healthcheck":{"Test":["CMD","/node","x"],"Interval":3600000000000},
	 "HostConfig":{"Binds":["DATA:/app/data"],"Mounts":[{"Type":"bind","Source":"DATA","Target":"/ro","ReadOnly":true,"BindOptions":{"Propagation":"rprivate"}},{"Type":"volume","Target":"/typed"},{"Type":"tmpfs","Target":"/scratch","TmpfsOptions":{"SizeBytes":1048576}}],
	 "Tmpfs":{"/run":"rw,size=64k"},"Ulimits":[{"Name":"nofile","Soft":4096,"Hard":8192}],"Memory":268435456,"MemoryReservation":134217728,"CpuShares":512,"OomScoreAdj":100,"PidsLimit":200,
	 "LogConfig":{"Type":"json-file","Config":{"max-size":"200m","max-file":"50"}},"PortBindings":{"8001/tcp":[{"HostIp":"127.0.0.1","HostPort":"18001"}],"9000/udp":[{"HostPort":"19000"}]},
	 "ExtraHosts":["peer:192.0.2.1"],"CapAdd":["NET_ADMIN"],"CapDrop":["MKNOD"],"SecurityOpt":["no-new-privileges"],"ShmSize":33554432,"ReadonlyRootfs":true,"Dns":["192.0.2.53"],"Init":true,"RestartPolicy":{"Name":"always"}}}`},
	{"two networks", `{"MacAddress":"02:42:c6:33:64:09","HostConfig":{"NetworkMode":"lan1","Binds":["DATA:/app/data"],"RestartPolicy":{"Name":"unless-stopped"}},
	 "NetworkingConfig":{"EndpointsConfig":{"lan1":{"Aliases":["node"],"IPAMConfig":{"IPv4Address":"198.51.100.9"}}}}}`},
	{"host network", `{"HostConfig":{"NetworkMode":"host","Binds":["DATA:/app/data:rw"],"RestartPolicy":{"Name":"on-failure","MaximumRetryCount":3}}}`},
	{"another's network", `{"HostConfig":{"NetworkMode":"container:other","Binds":["DATA:/app/data"],"RestartPolicy":{"Name":"always"}}}`},
	{"none, own entrypoint, named volume", `{"Entrypoint":["/node"],"Cmd":["mine"],"HostConfig":{"NetworkMode":"none","Binds":["qnetvol:/app/data"],"RestartPolicy":{"Name":"no"}}}`},
	{"mount syntax", `{"HostConfig":{"Mounts":[{"Type":"bind","Source":"DATA","Target":"/app/data"}],"RestartPolicy":{"Name":"always"}}}`},
}

// TestRealEngine takes containers through stage, replace and finish on a real
// engine: the inspects must differ only where the report says, the data must be
// found again, and two must never run at once.
func TestRealEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves the real engine out")
	}
	e := newRealEngine(t)
	bin := buildNode(t)
	oldID := e.importImage("v1", bin, "ENV QNET_DATA_DIR=/app/data", "ENV QNET_BUILD_ID=1111111", "ENV RUST_LOG=info", `ENTRYPOINT ["/node"]`, `CMD ["a"]`, "LABEL version=1", "EXPOSE 8001", "VOLUME /cache", "WORKDIR /app")
	newID := e.importImage("v2", bin, "ENV QNET_DATA_DIR=/app/data", "ENV QNET_BUILD_ID=2222222", "ENV RUST_LOG=warn", `ENTRYPOINT ["/node"]`, `CMD ["b"]`, "LABEL version=2", "EXPOSE 8001", "EXPOSE 9876", "VOLUME /cache", "VOLUME /fresh", "WORKDIR /")
	for i, name := range []string{"lan1", "lan2"} {
		subnet := []string{"198.51.100.0/24", "192.0.2.0/24"}[i]
		e.must(e.post("/networks/create", nil, object{"Name": name, "IPAM": object{"Config": []any{object{"Subnet": subnet}}}}, nil))
	}
	e.run("other", fmt.Sprintf(`{"Image":%q,"HostConfig":{"Binds":["%s:/app/data"]}}`, oldID, e.data("other")))
	for i, c := range realCases {
		t.Run(c.name, func(t *testing.T) { e.t = t; e.takeThrough(i, c.body, oldID, newID) })
	}
	t.Run("successor that cannot start", func(t *testing.T) { e.t = t; e.badSuccessor(oldID, bin) })
	t.Run("engine restarts while the old one stops", func(t *testing.T) { e.t = t; e.restartInside(oldID, newID) })
	e.t = t
}

func (e *realEngine) data(name string) string {
	d := filepath.Join(e.dir, "host-"+name)
	if err := os.MkdirAll(d, 0o755); err != nil {
		e.t.Fatal(err)
	}
	return d
}

func (e *realEngine) run(name, body string) string {
	e.t.Helper()
	id, err := e.h.eng.create(context.Background(), name, json.RawMessage(body))
	e.must(err)
	e.must(e.h.eng.start(context.Background(), id))
	return id
}

// agent serves this engine with state in a folder of its own.
func (e *realEngine) agent(name string) *Writer {
	cfg := Config{Root: filepath.Join(e.dir, "root-"+name), StateDir: DefaultStateDir, DialEngine: e.dial, Version: "test", Facts: osFacts{}}
	ctx, cancel := context.WithCancel(context.Background())
	cfg.StartGuardian = func(context.Context) (Process, error) { return StartLocalGuardian(ctx, cfg, 2), nil }
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); _ = Serve(ctx, cfg, far, far); far.Close() }()
	c := NewClient(near)
	e.t.Cleanup(func() { c.Close(); <-done; cancel() })
	w := c.Writer(claim1)
	if _, err := w.TakeFence(ctx); err != nil {
		e.t.Fatal(err)
	}
	return w
}

func (e *realEngine) takeThrough(i int, body, oldID, newID string) {
	t, ctx := e.t, context.Background()
	name := fmt.Sprintf("node-%d", i)
	data := e.data(name)
	o := mustObj(strings.ReplaceAll(body, "DATA", data))
	o["Image"] = oldID
	raw, err := json.Marshal(o)
	e.must(err)
	id, err := e.h.eng.create(ctx, name, raw)
	e.must(err)
	if strings.Contains(body, "lan1") {
		e.must(e.h.eng.connect(ctx, "lan2", id, json.RawMessage(`{"Aliases":["second"],"IPAMConfig":{"IPv4Address":"192.0.2.44"}}`)))
	}
	e.must(e.h.eng.start(ctx, id))
	before, beforeObj, err := e.h.eng.inspect(ctx, id)
	e.must(err)
	w := e.agent(name)
	rep, err := w.Stage(ctx, StageRequest{Container: name, ImageDigest: newID, NextName: name + "-next", Operation: claim1.Operation, SetEnv: []EnvVar{{"PUBLIC", "1"}}})
	e.must(err)
	if len(rep.Unexplained) > 0 || !rep.DataDir.OK {
		t.Fatalf("unexplained %v, data %+v", rep.Unexplained, rep.DataDir)
	}
	res, err := w.Replace(ctx, ReplaceRequest{Container: name, NextName: name + "-next", AsideName: name + "-pre-1", FailedName: name + "-failed-1", ExpectOldID: id, ExpectNextID: rep.NextID}, nil)
	if err != nil || res.Outcome != Replaced || res.Killed {
		t.Fatalf("%+v %v", res, err)
	}
	after, afterObj, err := e.h.eng.inspect(ctx, name)
	e.must(err)
	// Now that it runs, only what the plan said may differ; the policy is the old one again.
	images := map[string]json.RawMessage{}
	for _, img := range []string{oldID, newID} {
		images[img], _, err = e.h.eng.image(ctx, img)
		e.must(err)
	}
	info, err := e.h.eng.info(ctx)
	e.must(err)
	c, err := BuildCreate(before, images[oldID], images[newID], CarryOptions{Image: newID, SetEnv: []EnvVar{{"PUBLIC", "1"}}, HostName: info.Name})
	e.must(err)
	for _, m := range []string{"Name", "MaximumRetryCount"} {
		delete(c.Report.allow.want, "HostConfig.RestartPolicy."+m)
	}
	if d := Compare(before, after, c.Report); len(d) > 0 {
		t.Errorf("running, the successor differs: %v", d)
	}
	env := envMap(texts(sub(afterObj, "Config"), "Env"))
	if env["QNET_BUILD_ID"].value != "2222222" || env["RUST_LOG"].value != "warn" || env["PUBLIC"].value != "1" {
		t.Errorf("new defaults did not arrive")
	}
	if a, b := find(list(beforeObj, "Mounts"), "/cache"), find(list(afterObj, "Mounts"), "/cache"); str(a, "Name") == "" || str(a, "Name") != str(b, "Name") {
		t.Errorf("anonymous volume %s became %s", str(a, "Name"), str(b, "Name"))
	}
	e.runs(afterObj, "1111111", "2222222")
	fin, err := w.Finish(ctx, FinishRequest{Container: name, AsideName: name + "-pre-1", LogDir: "/logs"}, nil)
	if err != nil || fin.Bytes == 0 {
		t.Errorf("%+v %v", fin, err)
	}
	if _, _, err := e.h.eng.inspect(ctx, id); !isCode(err, CodeNotFound) {
		t.Errorf("the old container is still there: %v", err)
	}
	e.templateReads(afterObj)
}

// runs reads which builds have run on the data, in order, and that never two did at once.
func (e *realEngine) runs(inspect object, want ...string) {
	e.t.Helper()
	dir := dataDirOf(inspect).HostPath
	var got []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		raw, err := os.ReadFile(filepath.Join(dir, "runs"))
		if got = strings.Fields(string(raw)); err == nil && len(got) >= len(want) {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		e.t.Errorf("builds that ran on the data: %v, want %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "VIOLATION")); err == nil {
		e.t.Error("two containers ran on one data directory")
	}
}

// templateReads checks the template of hosts without an agent with the real docker client.
func (e *realEngine) templateReads(inspect object) {
	e.t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		return
	}
	argv := Inspect(strings.TrimPrefix(str(inspect, "Name"), "/")).Argv()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.sock)
	out, err := cmd.Output()
	e.must(err)
	f, err := ParseReadTemplate(out)
	e.must(err)
	want := factsOf(inspect)
	if f.ID != want.ID || f.Name != want.Name || f.RestartPolicy != want.RestartPolicy || strings.Join(f.EnvNames, ",") != strings.Join(want.EnvNames, ",") ||
		!f.StartedAt.Equal(want.StartedAt) || f.DataDir.HostPath != want.DataDir.HostPath || bytes.Contains(out, []byte("sentinel")) {
		e.t.Errorf("template reads %+v, agent reads %+v", f, want)
	}
}

func (e *realEngine) badSuccessor(oldID string, bin []byte) {
	t, ctx := e.t, context.Background()
	broken := e.importImage("broken", bin, "ENV QNET_DATA_DIR=/app/data", `ENTRYPOINT ["/absent"]`)
	id := e.run("bad", fmt.Sprintf(`{"Image":%q,"HostConfig":{"Binds":["%s:/app/data"],"RestartPolicy":{"Name":"always"}}}`, oldID, e.data("bad")))
	w := e.agent("bad")
	rep, err := w.Stage(ctx, StageRequest{Container: "bad", ImageDigest: broken, NextName: "bad-next", Operation: claim1.Operation})
	e.must(err)
	res, err := w.Replace(ctx, ReplaceRequest{Container: "bad", NextName: "bad-next", AsideName: "bad-pre-1", FailedName: "bad-failed-1", ExpectOldID: id, ExpectNextID: rep.NextID}, nil)
	if err != nil || res.Outcome != PutBack {
		t.Fatalf("%+v %v", res, err)
	}
	_, o, err := e.h.eng.inspect(ctx, "bad")
	e.must(err)
	if s := seenOf(o); s.ID != id || s.State != "running" || s.Policy != always {
		t.Errorf("put back as %+v", s)
	}
	e.runs(o, "1111111", "1111111")
}

func (e *realEngine) restartInside(oldID, newID string) {
	t, ctx := e.t, context.Background()
	id := e.run("cut", fmt.Sprintf(`{"Image":%q,"HostConfig":{"Binds":["%s:/app/data"],"RestartPolicy":{"Name":"always"}}}`, oldID, e.data("cut")))
	w := e.agent("cut")
	rep, err := w.Stage(ctx, StageRequest{Container: "cut", ImageDigest: newID, NextName: "cut-next", Operation: claim1.Operation})
	e.must(err)
	begun := make(chan struct{}, 1)
	type result struct {
		res ReplaceResult
		err error
	}
	ended := make(chan result, 1)
	go func() {
		res, err := w.Replace(ctx, ReplaceRequest{Container: "cut", NextName: "cut-next", AsideName: "cut-pre-1", FailedName: "cut-failed-1", ExpectOldID: id, ExpectNextID: rep.NextID}, func(ev TxEvent) {
			if ev.Step == stepStopOld && ev.State == TxIntent {
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
		ended <- result{res, err}
	}()
	<-begun
	e.halt()
	e.boot()
	r := <-ended
	if r.err != nil || r.res.Outcome != Replaced {
		t.Fatalf("%+v %v", r.res, r.err)
	}
	_, o, err := e.h.eng.inspect(ctx, "cut")
	e.must(err)
	if s := seenOf(o); s.ID != rep.NextID || s.State != "running" || s.Policy != always {
		t.Errorf("the node is %+v", s)
	}
	if _, err := os.Stat(filepath.Join(e.data("cut"), "VIOLATION")); err == nil {
		t.Error("two containers ran on one data directory")
	}
}

// BenchmarkReplaceDowntime reports how long a node is down in a replace, over a
// bare stop and start of the same container on the same engine.
func BenchmarkReplaceDowntime(b *testing.B) {
	e := newRealEngine(b)
	bin, ctx := buildNode(b), context.Background()
	img := e.importImage("v1", bin, "ENV QNET_DATA_DIR=/app/data", `ENTRYPOINT ["/node"]`)
	id := e.run("node", fmt.Sprintf(`{"Image":%q,"HostConfig":{"Binds":["%s:/app/data"],"RestartPolicy":{"Name":"always"}}}`, img, e.data("bench")))
	w := e.agent("bench")
	var bare, replace time.Duration
	for i := range b.N {
		from := time.Now()
		e.must(e.h.eng.stop(ctx, id, 60))
		e.must(e.h.eng.start(ctx, id))
		bare += time.Since(from)
		rep, err := w.Stage(ctx, StageRequest{Container: "node", ImageDigest: img, NextName: "node-next", Operation: claim1.Operation})
		e.must(err)
		var down, up time.Time
		res, err := w.Replace(ctx, ReplaceRequest{Container: "node", NextName: "node-next", AsideName: fmt.Sprintf("node-pre-%d", i), FailedName: fmt.Sprintf("node-failed-%d", i), ExpectOldID: id, ExpectNextID: rep.NextID}, func(ev TxEvent) {
			switch {
			case ev.Step == stepStopOld && ev.State == TxIntent:
				down = ev.At
			case ev.Step == stepStartNext && ev.State == TxDone:
				up = ev.At
			}
		})
		if err != nil || res.Outcome != Replaced {
			b.Fatalf("%+v %v", res, err)
		}
		replace += up.Sub(down)
		id = res.NewID
	}
	b.ReportMetric(bare.Seconds()/float64(b.N), "bare-s")
	b.ReportMetric(replace.Seconds()/float64(b.N), "replace-s")
	b.ReportMetric(replace.Seconds()/bare.Seconds(), "ratio")
}
