package engine

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestConfigMergesImageDefaultsAsDockerDoes(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("c1", map[string]any{"Env": []string{"X=1", "FOO=user"}, "HostConfig": map[string]any{
			"Binds": []string{"/srv/data:/app/data"}, "PortBindings": map[string]any{"10876/udp": []any{map[string]any{"HostIp": "127.0.0.1", "HostPort": "10876"}}}}})
		_, o := r.raw("GET", "/v1.41/containers/c1/json", nil)
		cfg := o["Config"].(map[string]any)
		// order and content as engine 20.10 gave for the same request
		if got := fmt.Sprint(cfg["Env"]); got != "[X=1 FOO=user PATH=/bin QNET_BUILD_ID=v1]" {
			t.Errorf("env %s", got)
		}
		if got := words(cfg["Entrypoint"], cfg["Cmd"], o["Path"], o["Args"]); got != "[/qnet] [run] /qnet [run]" {
			t.Errorf("command %s", got)
		}
		if got := fmt.Sprint(cfg["ExposedPorts"]); got != "map[10876/udp:map[] 8001/tcp:map[]]" {
			t.Errorf("exposed %s", got)
		}
		if h := cfg["Hostname"].(string); h != o["Id"].(string)[:12] {
			t.Errorf("hostname %s", h)
		}
		if _, has := cfg["StopTimeout"]; has {
			t.Error("StopTimeout shown though unset")
		}
		hc := o["HostConfig"].(map[string]any)
		if hc["NetworkMode"] != "default" || hc["ShmSize"] != float64(67108864) || hc["RestartPolicy"].(map[string]any)["Name"] != "" {
			t.Errorf("host config %v", hc)
		}
		for _, k := range []string{"KernelMemory", "CgroupnsMode", "MaskedPaths", "Ulimits", "IOMaximumBandwidth", "Links"} {
			if _, has := hc[k]; !has {
				t.Errorf("HostConfig.%s is missing", k)
			}
		}
		mounts := o["Mounts"].([]any)
		if len(mounts) != 2 || mounts[0].(map[string]any)["Propagation"] != "rprivate" || mounts[1].(map[string]any)["Type"] != "volume" {
			t.Errorf("mounts %v", mounts)
		}
		st := o["State"].(map[string]any)
		if st["Status"] != "created" || st["StartedAt"] != "0001-01-01T00:00:00Z" {
			t.Errorf("state %v", st)
		}
		// an own entrypoint shuts out the image's command
		r.mustCreate("c2", map[string]any{"Entrypoint": []string{"/own"}})
		if got := words(r.field("c2", "Config", "Cmd"), r.field("c2", "Path")); got != "<nil> /own" {
			t.Errorf("own entrypoint: %s", got)
		}
	})
}

func TestCreateRefusesWhatDockerRefuses(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("taken", map[string]any{})
		img := testRepo + ":v1"
		host := func(v map[string]any) map[string]any { return map[string]any{"Image": img, "HostConfig": v} }
		cases := []struct {
			code    int
			message string
			name    string
			body    any
		}{
			{409, `The container name "/taken" is already in use`, "taken", map[string]any{"Image": img}},
			{404, "No such image: nothing:latest", "a1", map[string]any{"Image": "nothing"}},
			{400, "Config cannot be empty", "a1", map[string]any{}},
			{400, "Invalid container name (a/b)", "a/b", map[string]any{"Image": img}},
			{400, "cannot be connected to network endpoints: bridge, other", "a1", map[string]any{"Image": img,
				"NetworkingConfig": map[string]any{"EndpointsConfig": map[string]any{"bridge": nil, "other": nil}}}},
			{400, "maximum retry count cannot be used", "a1", host(map[string]any{"RestartPolicy": map[string]any{"Name": "always", "MaximumRetryCount": 3}})},
			{400, "invalid restart policy 'sometimes'", "a1", host(policy("sometimes"))},
			{400, "bind source path does not exist", "a1", host(map[string]any{"Mounts": []any{map[string]any{"Type": "bind", "Source": "/none", "Target": "/x"}}})},
			{400, "Duplicate mount point: /x", "a1", host(map[string]any{"Binds": []string{"/a:/x", "/b:/x"}})},
			{400, "hostname and the UTS mode", "a1", map[string]any{"Image": img, "Hostname": "h", "HostConfig": map[string]any{"UTSMode": "host"}}},
			{400, "hostname and the network mode", "a1", map[string]any{"Image": img, "Hostname": "h", "HostConfig": map[string]any{"NetworkMode": "container:x"}}},
		}
		for _, c := range cases {
			r.want(c.code, c.message, "POST", "/v1.41/containers/create?name="+c.name, c.body)
		}
		if n := len(r.e.Containers()); n != 1 {
			t.Fatalf("%d containers, want the first only", n)
		}
	})
}

func TestUnknownRequestsAreRefusedAndRecorded(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		id := r.mustCreate("c1", map[string]any{})
		r.want(501, "does not know POST /containers/c1/exec", "POST", "/v1.41/containers/c1/exec", nil)
		r.want(501, "", "GET", "/swarm", nil)
		r.want(501, "", "POST", "/containers/"+id+"/pause", nil)
		r.want(400, "client version 1.99 is too new. Maximum supported API version is 1.41", "GET", "/v1.99/containers/json", nil)
		r.want(400, "too old", "GET", "/v1.10/containers/json", nil)
		want := []string{"POST /containers/c1/exec", "GET /swarm", "POST /containers/" + id + "/pause"}
		if got := r.e.Unknown(); !reflect.DeepEqual(got, want) {
			t.Fatalf("recorded %q", got)
		}
	})
}

func TestRestartPolicyBacksOffAndForgets(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("crash", map[string]any{"Env": []string{"EXIT=1@1s"}, "HostConfig": policy("always")})
		r.want(204, "", "POST", "/containers/crash/start", nil)
		start := time.Now()
		// lives of 1 s, pauses of 100, 200, 400 ms: the fourth life begins at 3.7 s
		time.Sleep(3650 * time.Millisecond)
		synctest.Wait()
		if got := r.field("crash", "State", "Status"); got != "restarting" {
			t.Errorf("at 3.65 s: %v", got)
		}
		if got := r.field("crash", "State", "Running"); got != true {
			t.Error("a container that waits for its restart counts as running")
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if got := words(r.field("crash", "State", "Status"), r.field("crash", "RestartCount")); got != "running 3" {
			t.Errorf("at %v: %s", time.Since(start), got)
		}
		r.want(204, "", "POST", "/containers/crash/stop", nil)
		r.want(204, "", "POST", "/containers/crash/start", nil)
		if got := r.field("crash", "RestartCount"); got != float64(0) {
			t.Errorf("a start by hand resets the count, got %v", got)
		}
	})
}

func TestStopEndsAWaitingRestart(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("crash", map[string]any{"Env": []string{"EXIT=3@1ms"}, "HostConfig": policy("always")})
		r.want(204, "", "POST", "/containers/crash/start", nil)
		time.Sleep(50 * time.Millisecond)
		r.want(409, "restarting container", "DELETE", "/containers/crash", nil)
		r.want(204, "", "POST", "/containers/crash/stop", nil)
		time.Sleep(time.Minute)
		if got := words(r.field("crash", "State", "Status"), r.field("crash", "State", "ExitCode")); got != "exited 3" {
			t.Errorf("got %s", got)
		}
		r.want(304, "", "POST", "/containers/crash/stop", nil)
	})
}

func TestOnFailureStopsAtItsLimit(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("limited", map[string]any{"Env": []string{"EXIT=1@1s"}, "HostConfig": map[string]any{"RestartPolicy": map[string]any{"Name": "on-failure", "MaximumRetryCount": 2}}})
		r.mustCreate("clean", map[string]any{"Env": []string{"EXIT=0@1s"}, "HostConfig": policy("on-failure")})
		r.want(204, "", "POST", "/containers/limited/start", nil)
		r.want(204, "", "POST", "/containers/clean/start", nil)
		time.Sleep(time.Hour)
		if got := words(r.field("limited", "State", "Status"), r.field("limited", "RestartCount")); got != "exited 2" {
			t.Errorf("limited: %s", got)
		}
		if got := words(r.field("clean", "State", "Status"), r.field("clean", "RestartCount")); got != "exited 0" {
			t.Errorf("exit 0 is no failure: %s", got)
		}
	})
}

// The reason for restart policy `no` on whatever is set aside (anchors b.8, 60).
func TestDaemonRestartRevivesByPolicy(t *testing.T) {
	for _, how := range []string{"restart", "crash", "power"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, r *rig) {
				for _, p := range []string{"always", "unless-stopped", "no"} {
					for _, state := range []string{"running", "stopped", "created"} {
						name := p + "-" + state
						r.mustCreate(name, map[string]any{"HostConfig": policy(p)})
						if state != "created" {
							r.want(204, "", "POST", "/containers/"+name+"/start", nil)
						}
						if state == "stopped" {
							r.want(204, "", "POST", "/containers/"+name+"/stop", nil)
						}
					}
				}
				var err error
				switch how {
				case "restart":
					err = r.e.Restart(t.Context())
				case "crash":
					err = r.e.Crash(t.Context())
				case "power":
					err = r.e.PowerLoss(t.Context(), 20*time.Second)
				}
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]string{"always-running": "running", "always-stopped": "running", "always-created": "created",
					"unless-stopped-running": "running", "unless-stopped-stopped": "exited", "unless-stopped-created": "created",
					"no-running": "exited", "no-stopped": "exited", "no-created": "created"}
				for name, state := range want {
					if got := r.field(name, "State", "Status"); got != state {
						t.Errorf("%s: %v, want %s", name, got, state)
					}
				}
				code := r.field("no-running", "State", "ExitCode")
				if want := map[string]float64{"restart": 0, "crash": 0, "power": 255}[how]; code != want {
					t.Errorf("exit code %v, want %v", code, want)
				}
			})
		})
	}
}

func TestUpdateOfThePolicyHoldsAcrossARestart(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("old", map[string]any{"HostConfig": policy("always")})
		r.want(204, "", "POST", "/containers/old/start", nil)
		r.want(204, "", "POST", "/containers/old/stop", nil)
		r.want(200, "", "POST", "/containers/old/update", policy("no"))
		r.want(400, "invalid restart policy 'x'", "POST", "/containers/old/update", policy("x"))
		if err := r.e.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := r.field("old", "State", "Status"); got != "exited" {
			t.Fatalf("a container with policy no came back: %v", got)
		}
	})
}

func TestStopWaitsThenKills(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("deaf", map[string]any{"Env": []string{"STUBBORN=1"}, "StopTimeout": 30, "HostConfig": policy("always")})
		for path, want := range map[string]time.Duration{"stop": 30 * time.Second, "stop?t=5": 5 * time.Second} {
			r.want(204, "", "POST", "/containers/deaf/start", nil)
			start := time.Now()
			r.want(204, "", "POST", "/containers/deaf/"+path, nil)
			if d := time.Since(start); d != want {
				t.Errorf("%s took %v", path, d)
			}
			if got := r.field("deaf", "State", "ExitCode"); got != float64(137) {
				t.Errorf("exit code %v", got)
			}
		}
	})
}

func TestPortConflictAtStart(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ports := func(ip string) map[string]any {
			return map[string]any{"HostConfig": map[string]any{"PortBindings": map[string]any{"8001/tcp": []any{map[string]any{"HostIp": ip, "HostPort": "8001"}}}}}
		}
		r.mustCreate("p1", ports(""))
		r.mustCreate("p2", ports("127.0.0.1"))
		r.want(204, "", "POST", "/containers/p1/start", nil)
		r.want(500, "Bind for 127.0.0.1:8001 failed: port is already allocated", "POST", "/containers/p2/start", nil)
		if got := words(r.field("p2", "State", "Status"), r.field("p2", "State", "ExitCode")); got != "created 128" {
			t.Errorf("after the refusal: %s", got)
		}
		if got := words(r.field("p1", "NetworkSettings", "Ports", "8001/tcp")); got != "[map[HostIp:0.0.0.0 HostPort:8001] map[HostIp::: HostPort:8001]]" {
			t.Errorf("ports %s", got)
		}
		r.want(204, "", "POST", "/containers/p1/stop", nil)
		r.want(204, "", "POST", "/containers/p2/start", nil)
	})
}

func TestViolationsAreRecorded(t *testing.T) {
	identity := func(env []string) string {
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, "QNET_BOOTSTRAP_ID="); ok {
				return v
			}
		}
		return ""
	}
	bubble(t, func(c *Config) { c.Identity = identity }, func(t *testing.T, r *rig) {
		body := func() map[string]any {
			return map[string]any{"Env": []string{"QNET_BOOTSTRAP_ID=001"}, "HostConfig": map[string]any{"Binds": []string{"/srv/data:/app/data"}}}
		}
		r.mustCreate("old", body())
		r.mustCreate("new", body())
		r.want(204, "", "POST", "/containers/old/start", nil)
		if v := r.e.Violations(); len(v) != 0 {
			t.Fatalf("one container is no violation: %q", v)
		}
		r.want(204, "", "POST", "/containers/new/start", nil)
		want := []string{"host1: old and new run on one data directory /srv/data", "host1: old and new run with one identity"}
		if v := r.e.Violations(); !reflect.DeepEqual(v, want) {
			t.Fatalf("got %q", v)
		}
	})
}

func TestFaults(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("c1", map[string]any{})
		r.e.Inject(FaultStartFail, "")
		r.want(500, "OCI runtime create failed", "POST", "/containers/c1/start", nil)
		r.e.Inject(FaultCreateFail, "")
		r.want(500, "create-fail", "POST", "/containers/create?name=c2", map[string]any{"Image": testRepo + ":v1"})
		r.e.Inject(FaultDiskFull, "")
		r.want(500, "no space left on device", "POST", "/containers/create?name=c2", map[string]any{"Image": testRepo + ":v1"})
		if r.e.Inject("nonsense", "") {
			t.Error("an unknown fault was accepted")
		}
		r.e.Inject(FaultEngineDown, "")
		if _, err := r.dial(t.Context(), "", ""); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("a dead engine answered: %v", err)
		}
		r.e.Clear("")
		r.want(204, "", "POST", "/containers/c1/start", nil)
	})
}

// The hook before a request stands for a client that died just before it sent
// the request, the hook after it for one that never saw the answer.
func TestHooksSeeBothSidesOfARequest(t *testing.T) {
	var seen []string
	var r *rig
	change := func(c *Config) {
		c.OnRequest = func(_ string, req *http.Request) bool {
			seen = append(seen, "before "+req.URL.Path)
			return !strings.HasSuffix(req.URL.Path, "/start")
		}
		c.OnResponse = func(_ string, req *http.Request) {
			state := "gone"
			for _, c := range r.e.Containers() {
				state = c.Name
			}
			seen = append(seen, "after "+req.URL.Path+" "+state)
		}
	}
	bubble(t, change, func(t *testing.T, rg *rig) {
		r = rg
		r.mustCreate("one", map[string]any{})
		if code, b := r.rawBytes("POST", "/containers/one/start", nil); code != 0 {
			t.Fatalf("the request was answered: %d %s", code, b)
		}
		r.want(204, "", "POST", "/containers/one/rename?name=two", nil)
		want := []string{"before /containers/create", "after /containers/create one", "before /containers/one/start",
			"before /containers/one/rename", "after /containers/one/rename two"}
		if !reflect.DeepEqual(seen, want) {
			t.Fatalf("got %q", seen)
		}
		if got := r.e.Containers()[0].State; got != "created" {
			t.Fatalf("the dropped start took effect: %s", got)
		}
	})
}
