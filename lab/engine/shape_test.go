package engine

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var idKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// shape lists every path of a JSON value with its type.
func shape(v any, path string, out map[string]bool) {
	switch x := v.(type) {
	case map[string]any:
		out[path+" object"] = true
		for k, e := range x {
			if idKey.MatchString(k) {
				k = "*"
			}
			shape(e, path+"."+k, out)
		}
	case []any:
		out[path+" list"] = true
		for _, e := range x {
			shape(e, path+"[]", out)
		}
	case string:
		out[path+" string"] = true
	case bool:
		out[path+" bool"] = true
	case float64:
		out[path+" number"] = true
	default:
		out[path+" null"] = true
	}
}

// realShapes reads what a real engine answered, by name of the answer.
func realShapes(t *testing.T) map[string]bool {
	t.Helper()
	f, err := os.Open("testdata/engine-20.10.shapes")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if !strings.HasPrefix(s.Text(), "#") {
			out[s.Text()] = true
		}
	}
	return out
}

// notShown are the differences that are meant: the real image was imported, so
// it had no digest, and the real engine had just made its bridge.
var notShown = regexp.MustCompile(`^(bridge\.IPAM\.Config\[\]\.Gateway|images?(\[\])?\.RepoDigests)`)

// TestShapesEqualARealEngine sends the requests that a real engine was sent and
// compares the answers' fields and types, in both directions.
func TestShapesEqualARealEngine(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		img := testImage("v1")
		img.StopSignal = "" // the real image had none
		if _, err := r.reg.Push(testRepo+":v1", img); err != nil {
			t.Fatal(err)
		}
		r.want(200, "", "DELETE", "/images/"+testRepo+":v1", nil)
		if err := r.e.Load(testRepo + ":v1"); err != nil {
			t.Fatal(err)
		}
		r.want(201, "", "POST", "/networks/create", map[string]any{"Name": "back", "IPAM": map[string]any{"Config": []any{map[string]any{"Subnet": "172.30.0.0/16"}}}})
		body := `{"Image":"` + testRepo + `:v1","Env":["A=1"],"HostConfig":{"Binds":["/srv/d1:/app/data"],"NetworkMode":"back",
			"RestartPolicy":{"Name":"always"},"PortBindings":{"8001/tcp":[{"HostPort":"8001"}]},
			"LogConfig":{"Type":"json-file","Config":{"max-size":"200m"}},"Ulimits":[{"Name":"nofile","Soft":1024,"Hard":1024}],
			"Tmpfs":{"/q":"size=10m"}},"NetworkingConfig":{"EndpointsConfig":{"back":{"IPAMConfig":{"IPv4Address":"172.30.0.9"},"Aliases":["al"]}}},"StopTimeout":33}`
		r.want(201, "", "POST", "/containers/create?name=node", json.RawMessage(body))
		got := map[string]bool{}
		ask := func(name, path string) {
			code, b := r.rawBytes("GET", path, nil)
			var v any
			if err := json.Unmarshal(b, &v); err != nil || code != 200 {
				t.Fatalf("%s: %d %s", name, code, b)
			}
			shape(v, name, got)
		}
		ask("created", "/containers/node/json")
		r.want(204, "", "POST", "/containers/node/start", nil)
		time.Sleep(1500 * time.Millisecond)
		ask("running", "/containers/node/json")
		ask("list", "/containers/json")
		ask("network", "/networks/back")
		ask("bridge", "/networks/bridge")
		ask("image", "/images/"+testRepo+":v1/json")
		ask("images", "/images/json")
		ask("volumes", "/volumes")
		ask("version", "/version")
		r.want(204, "", "POST", "/containers/node/stop?t=5", nil)
		ask("exited", "/containers/node/json")
		real := realShapes(t)
		var diff []string
		for s := range real {
			if !got[s] && !notShown.MatchString(s) {
				diff = append(diff, "missing: "+s)
			}
		}
		for s := range got {
			if !real[s] && !notShown.MatchString(s) {
				diff = append(diff, "extra: "+s)
			}
		}
		slices.Sort(diff)
		if len(diff) > 0 {
			t.Errorf("%d differences from a real engine:\n%s", len(diff), strings.Join(diff, "\n"))
		}
		if len(real) < 500 {
			t.Error(fmt.Sprint("only ", len(real), " shapes to compare with"))
		}
	})
}
