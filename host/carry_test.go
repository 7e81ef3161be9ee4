package host

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// obj reads JSON text as the agent would.
func obj(t *testing.T, s string) object {
	t.Helper()
	o, err := decodeObject(json.RawMessage(s), "a test")
	if err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	return o
}

const imgOld = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
const imgNew = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

const oldImageJSON = `{"Id":"` + imgOld + `","Os":"linux","Architecture":"amd64","Config":{
 "Env":["PATH=/bin","QNET_DATA_DIR=/app/data","QNET_BUILD_ID=1111111","RUST_LOG=info","GONE=1"],"Cmd":["node"],"Entrypoint":["/entry"],
 "Labels":{"version":"1","kept":"x"},"ExposedPorts":{"8001/tcp":{},"9876/tcp":{}},"Volumes":{"/app/cache":{}},"WorkingDir":"/app","User":"root","StopSignal":"SIGTERM",
 "Healthcheck":{"Test":["CMD","old"],"Interval":30000000000,"Retries":3},"Tty":false,"NewThing":{"a":1}}}`

const newImageJSON = `{"Id":"` + imgNew + `","Os":"linux","Architecture":"amd64","Config":{
 "Env":["PATH=/bin:/sbin","QNET_DATA_DIR=/app/data","QNET_BUILD_ID=2222222","RUST_LOG=warn"],"Cmd":["node","--v2"],"Entrypoint":["/entry2"],
 "Labels":{"version":"2","kept":"x"},"ExposedPorts":{"8001/tcp":{}},"Volumes":{"/app/cache":{},"/app/fresh":{}},"WorkingDir":"/srv","User":"root","StopSignal":"SIGINT",
 "Healthcheck":{"Test":["CMD","new"],"Interval":10000000000,"Retries":5},"NewThing":{"a":2}}}`

// trial is one container of the old image, its creation and what the engine made of it.
type trial struct {
	t        *testing.T
	e        *fakeEngine
	old      json.RawMessage
	creation Creation
	body     object
	made     object
	diff     []Difference
}

// try creates a container as an operator would, from the given creation body,
// and takes it through BuildCreate, the engine and Compare.
func try(t *testing.T, body string, set ...EnvVar) *trial {
	t.Helper()
	x := begin(t, body)
	x.build(set...)
	x.create()
	return x
}

func begin(t *testing.T, body string) *trial {
	t.Helper()
	e := &fakeEngine{cs: map[string]*fakeContainer{}, images: map[string]object{}, refs: map[string]string{}}
	e.images[imgOld], e.images[imgNew] = obj(t, oldImageJSON), obj(t, newImageJSON)
	o := obj(t, body)
	if o["Image"] == nil {
		o["Image"] = imgOld
	}
	h, _ := o["HostConfig"].(object)
	if h == nil {
		h = object{}
		o["HostConfig"] = h
	}
	if len(list(h, "Binds")) == 0 && h["Mounts"] == nil {
		h["Binds"] = []any{"/srv/qnet:/app/data"}
	}
	if h["NetworkMode"] == nil {
		h["NetworkMode"] = "default"
	}
	c, msg := e.make("qnet-genesis-001", o)
	if msg != "" {
		t.Fatal(msg)
	}
	c.host["RestartPolicy"] = object{"Name": "always", "MaximumRetryCount": json.Number("0")}
	raw, _ := e.raw("qnet-genesis-001")
	return &trial{t: t, e: e, old: raw}
}

func (x *trial) build(set ...EnvVar) {
	x.t.Helper()
	var err error
	x.creation, err = BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(newImageJSON), CarryOptions{Image: imgNew, SetEnv: set, HostName: "host-1"})
	if err != nil {
		x.t.Fatal(err)
	}
	x.body = obj(x.t, string(x.creation.Body))
}

func (x *trial) create() {
	x.t.Helper()
	w := httptest.NewRecorder()
	x.e.serveCreate(w, "next", x.creation.Body)
	if w.Code != 201 {
		x.t.Fatalf("creation refused: %s", w.Body)
	}
	for _, n := range x.creation.Networks {
		b, _ := json.Marshal(map[string]any{"Container": "next", "EndpointConfig": n.Endpoint})
		x.e.serveConnect(httptest.NewRecorder(), n.Name, b)
	}
	raw, o := x.e.raw("next")
	x.made, x.diff = o, Compare(x.old, raw, x.creation.Report)
}

func (x *trial) same() *trial {
	x.t.Helper()
	if len(x.diff) > 0 {
		x.t.Errorf("unexplained: %v", x.diff)
	}
	return x
}

func names(items []Item, field string) []string {
	var out []string
	for _, i := range items {
		if i.Field == field {
			out = append(out, i.Name)
		}
	}
	slices.Sort(out)
	return out
}

func wantNames(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestTrap01InheritedDefaultsAreNotPinned(t *testing.T) {
	x := try(t, `{"Env":["MINE=a=b","RUST_LOG=debug","QNET_WALLET_SEED=sentinel words"],"Labels":{"owner":"me"}}`).same()
	env := envMap(texts(sub(x.made, "Config"), "Env"))
	for name, want := range map[string]string{"PATH": "/bin:/sbin", "RUST_LOG": "debug", "MINE": "a=b", "QNET_BUILD_ID": "2222222", "QNET_WALLET_SEED": "sentinel words"} {
		if env[name].value != want {
			t.Errorf("%s = %q, want %q", name, env[name].value, want)
		}
	}
	if _, ok := env["GONE"]; ok {
		t.Error("a default that the new image dropped was pinned")
	}
	r := x.creation.Report
	wantNames(t, "carried", names(r.Carried, "Env"), "MINE", "QNET_WALLET_SEED", "RUST_LOG")
	wantNames(t, "ambiguous", names(r.Ambiguous, "Env"), "GONE", "PATH")
	wantNames(t, "inherited", names(r.Inherited, "Env"), "GONE", "PATH", "QNET_DATA_DIR")
	wantNames(t, "labels carried", names(r.Carried, "Labels"), "owner")
	wantNames(t, "labels ambiguous", names(r.Ambiguous, "Labels"), "version")
	if str(sub(x.made, "Config", "Labels"), "version") != "2" || str(sub(x.made, "Config"), "WorkingDir") != "/srv" {
		t.Error("a new default did not arrive")
	}
	if b, _ := json.Marshal(r); strings.Contains(string(b), "sentinel") {
		t.Error("a value is in the report")
	}
}

func TestTrap02CommandAndEntrypointAreAPair(t *testing.T) {
	for _, c := range []struct {
		name, body string
		ep, cmd    string // of the successor
	}{
		{"neither", `{}`, `["/entry2"]`, `["node","--v2"]`},
		{"command only", `{"Cmd":["mine"]}`, `["/entry2"]`, `["mine"]`},
		{"entrypoint, image's command by coincidence", `{"Entrypoint":["/mine"],"Cmd":["node"]}`, `["/mine"]`, `["node"]`},
		{"entrypoint alone", `{"Entrypoint":["/mine"]}`, `["/mine"]`, `null`},
		{"image's entrypoint given, so no command", `{"Entrypoint":["/entry"]}`, `["/entry"]`, `null`},
		{"entrypoint cleared", `{"Entrypoint":[""],"Cmd":["sh"]}`, `null`, `["sh"]`},
	} {
		x := try(t, c.body).same()
		ep, _ := json.Marshal(sub(x.made, "Config")["Entrypoint"])
		cmd, _ := json.Marshal(sub(x.made, "Config")["Cmd"])
		if string(ep) != c.ep || string(cmd) != c.cmd {
			t.Errorf("%s: entrypoint %s command %s, want %s %s", c.name, ep, cmd, c.ep, c.cmd)
		}
	}
}

func TestTrap03Hostname(t *testing.T) {
	x := try(t, `{}`).same()
	if h := sub(x.made, "Config")["Hostname"]; h != str(x.made, "Id")[:12] {
		t.Errorf("generated host name frozen: %v", h)
	}
	if h := sub(try(t, `{"Hostname":"validator-1"}`).same().made, "Config")["Hostname"]; h != "validator-1" {
		t.Errorf("given host name lost: %v", h)
	}
	for _, mode := range []string{"host", "container:abc"} {
		x := try(t, `{"HostConfig":{"NetworkMode":"`+mode+`"}}`).same()
		if _, sent := x.body["Hostname"]; sent {
			t.Errorf("%s: host name sent", mode)
		}
	}
	if h := sub(try(t, `{"Hostname":"own","HostConfig":{"NetworkMode":"host"}}`).same().made, "Config")["Hostname"]; h != "own" {
		t.Errorf("host network, given name: %v", h)
	}
	if _, sent := try(t, `{"HostConfig":{"UTSMode":"host"}}`).same().body["Hostname"]; sent {
		t.Error("host name sent beside a shared UTS namespace")
	}
}

func TestTrap04AliasesLoseTheShortID(t *testing.T) {
	x := try(t, `{"HostConfig":{"NetworkMode":"lan"},"NetworkingConfig":{"EndpointsConfig":{"lan":{"Aliases":["node"]}}}}`).same()
	sent := texts(sub(x.body, "NetworkingConfig", "EndpointsConfig", "lan"), "Aliases")
	wantNames(t, "aliases sent", sent, "node")
	for _, mode := range []string{"host", "none", "default"} {
		x := try(t, `{"HostConfig":{"NetworkMode":"`+mode+`"}}`).same()
		if x.body["NetworkingConfig"] != nil {
			t.Errorf("%s: endpoints sent: %v", mode, x.body["NetworkingConfig"])
		}
	}
}

func TestTrap05SeveralNetworks(t *testing.T) {
	x := begin(t, `{"HostConfig":{"NetworkMode":"lan"}}`)
	c := x.e.find("qnet-genesis-001")
	x.e.join(c, "backup", object{"Aliases": []any{"b"}, "GwPriority": json.Number("5")})
	x.e.join(c, "admin", object{"IPAMConfig": object{"IPv4Address": "198.51.100.7"}})
	x.old, _ = x.e.raw("qnet-genesis-001")
	x.build()
	if eps := sub(x.body, "NetworkingConfig", "EndpointsConfig"); len(eps) != 1 || eps["lan"] == nil {
		t.Errorf("creation names %v, want lan alone", keys(eps))
	}
	var order []string
	for _, n := range x.creation.Networks {
		order = append(order, n.Name)
	}
	if !slices.Equal(order, []string{"backup", "admin"}) { // the higher priority first
		t.Errorf("connected in order %v", order)
	}
	x.create()
	x.same()
	// And a network that was not joined is found.
	delete(x.e.find("next").networks, "admin")
	raw, _ := x.e.raw("next")
	if d := Compare(x.old, raw, x.creation.Report); len(d) == 0 || !strings.HasPrefix(d[0].Path, "Networks.admin") {
		t.Errorf("a lost network is not found: %v", d)
	}
}

func TestTrap05NetworkModeByID(t *testing.T) {
	x := begin(t, `{"HostConfig":{"NetworkMode":"lan"}}`)
	c := x.e.find("qnet-genesis-001")
	c.host["NetworkMode"] = "net-la"
	x.old, _ = x.e.raw("qnet-genesis-001")
	x.build()
	if eps := sub(x.body, "NetworkingConfig", "EndpointsConfig"); eps["net-la"] == nil || len(x.creation.Networks) != 0 {
		t.Errorf("endpoint of a network named by id: %v, %v", eps, x.creation.Networks)
	}
}

func TestTrap06AddressesAskedForAndGenerated(t *testing.T) {
	x := try(t, `{"HostConfig":{"NetworkMode":"lan"},"NetworkingConfig":{"EndpointsConfig":{"lan":{"IPAMConfig":{"IPv4Address":"198.51.100.9","LinkLocalIPs":["169.254.1.1"]}}}}}`).same()
	ep := sub(x.body, "NetworkingConfig", "EndpointsConfig", "lan")
	if str(sub(ep, "IPAMConfig"), "IPv4Address") != "198.51.100.9" || len(list(sub(ep, "IPAMConfig"), "LinkLocalIPs")) != 1 {
		t.Errorf("static addresses lost: %v", ep)
	}
	for _, generated := range []string{"MacAddress", "IPAddress", "NetworkID"} {
		if ep[generated] != nil {
			t.Errorf("generated %s carried", generated)
		}
	}
	x = try(t, `{"MacAddress":"02:00:00:00:00:01","HostConfig":{"NetworkMode":"lan"}}`).same()
	if x.body["MacAddress"] != "02:00:00:00:00:01" {
		t.Error("a MAC address that was asked for is lost")
	}
	c, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(newImageJSON), CarryOptions{Image: imgNew, MACInEndpoint: true})
	if err != nil {
		t.Fatal(err)
	}
	b := obj(t, string(c.Body))
	if b["MacAddress"] != nil || str(sub(b, "NetworkingConfig", "EndpointsConfig", "lan"), "MacAddress") != "02:00:00:00:00:01" {
		t.Errorf("engine of API 1.44 on wants the MAC in the endpoint: %s", c.Body)
	}
}

func TestTrap07BindsAndMounts(t *testing.T) {
	x := try(t, `{"HostConfig":{"Binds":["/srv/qnet:/app/data:rw,z,rslave","/etc/seed:/seed:ro"],"Mounts":[{"Type":"bind","Source":"/srv/x","Target":"/x","ReadOnly":true,"BindOptions":{"Propagation":"rshared","NonRecursive":true}}]}}`).same()
	wantNames(t, "binds", texts(sub(x.body, "HostConfig"), "Binds"), "/srv/qnet:/app/data:rw,z,rslave", "/etc/seed:/seed:ro",
		str(find(list(x.made, "Mounts"), "/app/cache"), "Name")+":/app/cache")
	m, _ := list(sub(x.body, "HostConfig"), "Mounts")[0].(object)
	if sub(m, "BindOptions")["NonRecursive"] != true {
		t.Error("bind options lost")
	}
}

func find(mounts []any, dst string) object {
	for _, v := range mounts {
		if m, _ := v.(object); str(m, "Destination") == dst {
			return m
		}
	}
	return nil
}

func TestTrap08AnonymousVolumes(t *testing.T) {
	x := try(t, `{"Volumes":{"/mine":{}},"HostConfig":{"Binds":["/srv/qnet:/app/data"],"Mounts":[{"Type":"volume","Target":"/typed"}]}}`).same()
	_, old := x.e.raw("qnet-genesis-001")
	for _, dst := range []string{"/mine", "/typed", "/app/cache"} {
		a, b := str(find(list(old, "Mounts"), dst), "Name"), str(find(list(x.made, "Mounts"), dst), "Name")
		if a == "" || a != b {
			t.Errorf("%s: volume %q became %q", dst, a, b)
		}
	}
	if find(list(x.made, "Mounts"), "/app/fresh") == nil {
		t.Error("the new image's own volume is missing")
	}
	// An empty new volume in the place of the old one is found.
	find(x.e.find("next").mounts, "/mine")["Name"] = "other"
	raw, _ := x.e.raw("next")
	if d := Compare(x.old, raw, x.creation.Report); len(d) != 1 || d[0].Path != "Mounts./mine:Name" {
		t.Errorf("a lost volume is not found: %v", d)
	}
}

func TestTrap09PortsWithoutExposedPorts(t *testing.T) {
	x := begin(t, `{"HostConfig":{"PortBindings":{"9000/tcp":[{"HostIp":"127.0.0.1","HostPort":"9000"}],"9876/tcp":[{"HostIp":"","HostPort":"9876"}]}}}`)
	c := x.e.find("qnet-genesis-001")
	c.cfg["ExposedPorts"] = nil
	x.old, _ = x.e.raw("qnet-genesis-001")
	x.build() // must not crash
	x = try(t, `{"ExposedPorts":{"9000/tcp":{},"9876/tcp":{}},"HostConfig":{"PortBindings":{"9000/tcp":[{"HostIp":"127.0.0.1","HostPort":"9000"}],"9876/tcp":[{"HostIp":"","HostPort":"9876"}]}}}`).same()
	b, _ := list(sub(x.made, "HostConfig", "PortBindings"), "9000/tcp")[0].(object)
	if str(b, "HostIp") != "127.0.0.1" {
		t.Error("a port bound to loopback is open to the world")
	}
	if _, ok := sub(x.made, "Config", "ExposedPorts")["9876/tcp"]; !ok {
		t.Error("a published port is not exposed because only the old image exposed it")
	}
}

func TestTrap10And11ValuesPassUnchanged(t *testing.T) {
	for _, v := range []string{"a\nb", `$(id) "q" 'q' & < >`, "", "é\u2028", `back\slash`} {
		b, _ := json.Marshal(map[string]any{"Env": []string{"TRICKY=" + v}})
		x := try(t, string(b)).same()
		if got := envMap(texts(sub(x.made, "Config"), "Env"))["TRICKY"].value; got != v {
			t.Errorf("%q became %q", v, got)
		}
	}
	x := try(t, `{"Env":["RUST_LOG"]}`).same() // without `=`: takes the image's variable away
	if e := envMap(texts(sub(x.made, "Config"), "Env"))["RUST_LOG"]; !e.bare {
		t.Errorf("a removed variable came back: %q", e)
	}
}

func TestTrap12StopSettings(t *testing.T) {
	x := try(t, `{"StopSignal":"SIGQUIT","StopTimeout":0}`).same()
	if x.body["StopSignal"] != "SIGQUIT" || x.body["StopTimeout"] != json.Number("0") {
		t.Errorf("stop settings sent: %v %v", x.body["StopSignal"], x.body["StopTimeout"])
	}
	if s := sub(try(t, `{}`).same().made, "Config")["StopSignal"]; s != "SIGINT" {
		t.Errorf("new image's stop signal: %v", s)
	}
	for _, c := range []struct{ own, asked, want int }{{0, 0, 60}, {10, 30, 60}, {300, 60, 300}, {60, 120, 120}} {
		o := object{"Config": object{"StopTimeout": c.own}}
		if got := stopTimeout(o, c.asked); got != c.want {
			t.Errorf("own %d, asked %d: %d s, want %d", c.own, c.asked, got, c.want)
		}
	}
}

func TestTrap13To16HostSettingsAndUnknownFields(t *testing.T) {
	host := `"LogConfig":{"Type":"json-file","Config":{"max-size":"200m","max-file":"50"}},"Memory":4294967296,"MemorySwappiness":0,"OomScoreAdj":-500,
	 "Ulimits":[{"Name":"nofile","Soft":1048576,"Hard":1048576}],"Tmpfs":{"/run":"size=64m"},"ExtraHosts":["a:192.0.2.1"],"Privileged":false,"ReadonlyRootfs":true,
	 "SecurityOpt":["no-new-privileges"],"CapAdd":["SYS_NICE"],"Links":["/db:/qnet-genesis-001/database"],"FutureLimit":{"Deep":[1,{"x":2.50}]}`
	x := try(t, `{"FutureField":{"k":1},"NewThing":{"a":1},"Labels":{"com.docker.compose.project":"qnet","com.docker.compose.config-hash":"ff"},"HostConfig":{`+host+`}}`).same()
	sent := sub(x.body, "HostConfig")
	want := obj(t, "{"+host+"}")
	for k, v := range want {
		if !same(sent[k], v) {
			t.Errorf("HostConfig.%s sent as %v, was %v", k, sent[k], v)
		}
	}
	if !same(x.body["FutureField"], obj(t, `{"k":1}`)) {
		t.Error("a field this program does not know is lost")
	}
	if x.body["NewThing"] != nil {
		t.Error("an unknown field equal to the old image's default is pinned")
	}
	if p := str(sub(sent, "RestartPolicy"), "Name"); p != "no" || !x.creation.Report.HeldPolicy {
		t.Errorf("a staged successor has restart policy %q", p)
	}
	if w := x.creation.Report.Warnings; len(w) != 1 || !strings.Contains(w[0], "compose project qnet") {
		t.Errorf("no warning about compose: %q", w)
	}
}

func TestHealthcheckMembers(t *testing.T) {
	x := try(t, `{"Healthcheck":{"Test":["CMD","mine"],"Retries":9}}`).same()
	h := sub(x.made, "Config", "Healthcheck")
	if texts(h, "Test")[1] != "mine" || number(h, "Retries") != 9 || number(h, "Interval") != 10000000000 {
		t.Errorf("healthcheck %v", h)
	}
	wantNames(t, "ambiguous", names(x.creation.Report.Ambiguous, "Healthcheck"), "Interval")
	if h := sub(try(t, `{"Healthcheck":{"Test":["NONE"]}}`).same().made, "Config", "Healthcheck"); texts(h, "Test")[0] != "NONE" {
		t.Errorf("a disabled healthcheck is back: %v", h)
	}
	if h := sub(try(t, `{}`).same().made, "Config", "Healthcheck"); texts(h, "Test")[1] != "new" {
		t.Errorf("the new image's healthcheck did not arrive: %v", h)
	}
}

func TestNeverCarried(t *testing.T) {
	never := []string{"QNET_ROLLBACK_TO_LAST_SEALED=1", "QNET_ROLLBACK_TO_HEIGHT=5", "QNET_RECOVERY_HALTED=1", "QNET_BUILD_ID=feed", "QNET_HALT_HEIGHT=9",
		"QNET_CLEAN_DATA=1", "QNET_FORCE_RESET=1", "QNET_CONFIRM_RESET=YES"}
	b, _ := json.Marshal(map[string]any{"Env": never})
	x := try(t, string(b)).same()
	env := envMap(texts(sub(x.made, "Config"), "Env"))
	for _, s := range never {
		name := parseEnv([]string{s})[0].name
		if e, ok := env[name]; ok && e.value != "2222222" {
			t.Errorf("%s was carried", name)
		}
		if name != "QNET_BUILD_ID" && !OneShot(name) {
			t.Errorf("%s does not count as one-shot", name)
		}
		_, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(newImageJSON), CarryOptions{SetEnv: []EnvVar{{name, "1"}}})
		if err == nil {
			t.Errorf("%s may be set", name)
		}
	}
	if env["QNET_BUILD_ID"].value != "2222222" || x.creation.Report.OldBuild != "1111111" || x.creation.Report.NewBuild != "2222222" {
		t.Error("build id is not the new image's")
	}
	if len(names(x.creation.Report.LeftOut, "Env")) != len(never) {
		t.Errorf("left out: %v", x.creation.Report.LeftOut)
	}
}

func TestSetEnv(t *testing.T) {
	x := try(t, `{"Env":["A=1","RUST_LOG=debug"]}`, EnvVar{"A", "2"}, EnvVar{"B", "x=y"}, EnvVar{"PATH", "/p"}).same()
	env := envMap(texts(sub(x.made, "Config"), "Env"))
	for n, v := range map[string]string{"A": "2", "B": "x=y", "PATH": "/p", "RUST_LOG": "debug"} {
		if env[n].value != v {
			t.Errorf("%s=%q, want %q", n, env[n].value, v)
		}
	}
	wantNames(t, "set", names(x.creation.Report.Set, "Env"), "A", "B", "PATH")
}

func TestDataDirectory(t *testing.T) {
	for _, c := range []struct {
		name, body string
		ok         bool
		host       string
	}{
		{"bind", `{}`, true, "/srv/qnet"},
		{"own path by variable", `{"Env":["QNET_DATA_DIR=/data/db"],"HostConfig":{"Binds":["/srv/d:/data"]}}`, true, "/srv/d/db"},
		{"named volume", `{"HostConfig":{"Binds":["qnetvol:/app/data"]}}`, true, "/var/lib/docker/volumes/qnetvol/_data"},
		{"in the container's own layer", `{"HostConfig":{"Binds":["/srv/nd:/app/node_data"]}}`, false, ""},
		{"on tmpfs", `{"HostConfig":{"Binds":["/x:/y"],"Tmpfs":{"/app/data":""}}}`, false, ""},
		{"node_data by variable", `{"Env":["QNET_DATA_DIR=/app/node_data"],"HostConfig":{"Binds":["/srv/nd:/app/node_data"]}}`, true, "/srv/nd"},
	} {
		x := try(t, c.body).same()
		if d := x.creation.Report.DataDir; d.OK != c.ok || c.ok && (d.Old.HostPath != c.host || d.New.HostPath != c.host) || !c.ok && d.Why == "" {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
	// The new image's default moves the directory: nothing may be touched.
	x := begin(t, `{}`)
	moved := strings.Replace(newImageJSON, "QNET_DATA_DIR=/app/data", "QNET_DATA_DIR=/var/lib/qnet", 1)
	c, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(moved), CarryOptions{Image: imgNew})
	if err != nil || c.Report.DataDir.OK {
		t.Errorf("a moved data directory passes: %+v %v", c.Report.DataDir, err)
	}
	// So does a volume that the new image declares above the bind's inside.
	shadow := strings.Replace(newImageJSON, `"/app/fresh":{}`, `"/app/data/db":{}`, 1)
	shadow = strings.Replace(shadow, "QNET_DATA_DIR=/app/data", "QNET_DATA_DIR=/app/data/db", 1)
	c, err = BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(shadow), CarryOptions{Image: imgNew})
	if err != nil || c.Report.DataDir.OK {
		t.Errorf("a shadowed data directory passes: %+v %v", c.Report.DataDir, err)
	}
}

func TestDataDirOrder(t *testing.T) {
	m := func(dsts ...string) (out []mountPoint) {
		for _, d := range dsts {
			out = append(out, mountPoint{Type: "bind", Source: "/host" + d, Destination: d})
		}
		return out
	}
	own := "/own/"
	for _, c := range []struct {
		env       *string
		mounts    []mountPoint
		path      string
		host      string
		ambiguous bool
	}{
		{nil, m("/app/data", "/app/node_data"), "/app/data", "/host/app/data", false},
		{nil, m("/app/node_data"), "/app/node_data", "/host/app/node_data", true},
		{nil, m("/app"), "/app/data", "/host/app/data", false},
		{nil, nil, "/app/data", "", false},
		{&own, m("/own", "/app/data"), "/own", "/host/own", false},
		{&own, m("/app/data"), "/own", "", false},
		{nil, m("/app/data2", "/"), "/app/data", "/host/app/data", false},
	} {
		d := dataDir(c.env, c.mounts)
		if d.ContainerPath != c.path || d.HostPath != c.host || (d.Ambiguous != "") != c.ambiguous {
			t.Errorf("%+v: got %+v", c, d)
		}
	}
}

func TestCarryBeforeThePull(t *testing.T) {
	x := begin(t, `{"Env":["MINE=1"]}`)
	c, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), nil, CarryOptions{Image: "r/q@" + imgNew})
	if err != nil {
		t.Fatal(err)
	}
	r := c.Report
	if r.NewKnown || r.NewBuild != "" || len(r.Ambiguous) != 0 || !r.DataDir.OK {
		t.Errorf("report without the new image: %+v", r)
	}
	wantNames(t, "carried", names(r.Carried, "Env"), "MINE")
}

func TestSelfRemovingContainerIsRefused(t *testing.T) {
	x := begin(t, `{"HostConfig":{"AutoRemove":true}}`)
	if _, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(newImageJSON), CarryOptions{}); !isCode(err, CodeNotCarried) {
		t.Errorf("%v", err)
	}
}

// TestCompareFindsEveryLoss takes a rich successor and spoils one leaf after the
// other: each must be found, unless it is on the list of what may differ.
func TestCompareFindsEveryLoss(t *testing.T) {
	x := try(t, `{"Env":["MINE=1"],"Labels":{"l":"1"},"User":"u","Hostname":"h","StopTimeout":90,"ExposedPorts":{"1/tcp":{}},"HostConfig":{"NetworkMode":"lan",
	 "Memory":1,"Ulimits":[{"Name":"n","Soft":1,"Hard":2}],"LogConfig":{"Type":"json-file","Config":{"max-size":"1m"}},"PortBindings":{"1/tcp":[{"HostIp":"127.0.0.1","HostPort":"1"}]},"Future":{"x":true}},
	 "NetworkingConfig":{"EndpointsConfig":{"lan":{"IPAMConfig":{"IPv4Address":"192.0.2.77"},"Aliases":["a"]}}}}`).same()
	raw, _ := x.e.raw("next")
	n := 0
	spoil(t, obj(t, string(raw)), nil, func(path []string, spoiled json.RawMessage) {
		n++
		found := len(Compare(x.old, spoiled, x.creation.Report)) > 0
		if p := strings.Join(path, "."); found == mayDiffer(p) {
			t.Errorf("%s spoiled: found %v", p, found)
		}
	})
	if n < 60 {
		t.Errorf("only %d leaves spoiled", n)
	}
}

func mayDiffer(p string) bool {
	top, rest, _ := strings.Cut(p, ".")
	if p == "Id" { // another id makes the host name and an alias of the old one look given
		return false
	}
	if slices.Contains(generatedTop, top) {
		return true
	}
	if top == "NetworkSettings" {
		return !strings.Contains(rest, "IPAMConfig") && !strings.Contains(rest, "Aliases")
	}
	// A re-attached volume's mode text and the whole of a volume that the new image brings.
	return strings.HasPrefix(p, "Mounts.") && (strings.Contains(p, "/app/fresh") || strings.Contains(p, "/app/cache") && (strings.HasSuffix(p, "Mode") || strings.HasSuffix(p, "Propagation")))
}

// spoil calls fn with a copy of root for each string, number or switch in it, changed.
func spoil(t *testing.T, root object, path []string, fn func([]string, json.RawMessage)) {
	var walk func(v any, path []string, set func(any))
	walk = func(v any, path []string, set func(any)) {
		change := func(to any) {
			set(to)
			b, err := json.Marshal(root)
			if err != nil {
				t.Fatal(err)
			}
			set(v)
			fn(path, b)
		}
		switch e := v.(type) {
		case object:
			for _, k := range keys(e) {
				walk(e[k], append(slices.Clone(path), k), func(n any) { e[k] = n })
			}
		case []any:
			for i := range e {
				name := "#"
				if m, ok := e[i].(object); ok && m["Destination"] != nil {
					name = str(m, "Destination")
				}
				walk(e[i], append(slices.Clone(path), name), func(n any) { e[i] = n })
			}
		case string:
			if !strings.HasSuffix(strings.Join(path, "."), "Destination") {
				change("spoiled" + e)
			}
		case json.Number:
			change(json.Number("7" + e.String()))
		case bool:
			change(!e)
		}
	}
	walk(root, path, func(any) {})
}
