package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dcontainer "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	dfilters "github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	dnetwork "github.com/docker/docker/api/types/network"
	dvolume "github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/jsonmessage"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-connections/nat"
)

func TestClientLifeOfAContainer(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ctx := t.Context()
		cfg := &dcontainer.Config{Image: testRepo + ":v1", Env: []string{"A=1"}}
		hc := &dcontainer.HostConfig{RestartPolicy: dcontainer.RestartPolicy{Name: "always"}, Binds: []string{"/srv/data:/app/data"},
			PortBindings: nat.PortMap{"8001/tcp": {{HostPort: "8001"}}}, LogConfig: dcontainer.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "200m"}}}
		made, err := r.cli.ContainerCreate(ctx, cfg, hc, nil, nil, "node")
		if err != nil {
			t.Fatal(err)
		}
		if v := r.cli.ClientVersion(); v != "1.41" {
			t.Errorf("negotiated %s", v)
		}
		if err := r.cli.ContainerStart(ctx, made.ID, dcontainer.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := r.cli.ContainerInspect(ctx, "node")
		if err != nil {
			t.Fatal(err)
		}
		bridge := got.NetworkSettings.Networks["bridge"]
		if !got.State.Running || bridge.IPAddress != "172.17.0.2" || bridge.MacAddress != "02:42:ac:11:00:02" || got.HostConfig.LogConfig.Config["max-size"] != "200m" {
			t.Errorf("inspect %+v %+v", got.State, bridge)
		}
		if err := r.cli.ContainerRename(ctx, "node", "node-pre"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.cli.ContainerUpdate(ctx, "node-pre", dcontainer.UpdateConfig{RestartPolicy: dcontainer.RestartPolicy{Name: "no"}}); err != nil {
			t.Fatal(err)
		}
		waited, errs := r.cli.ContainerWait(ctx, made.ID, dcontainer.WaitConditionNotRunning)
		timeout := 60
		if err := r.cli.ContainerStop(ctx, "node-pre", dcontainer.StopOptions{Timeout: &timeout}); err != nil {
			t.Fatal(err)
		}
		select {
		case w := <-waited:
			if w.StatusCode != 0 {
				t.Errorf("exit code %d", w.StatusCode)
			}
		case err := <-errs:
			t.Fatal(err)
		}
		list, err := r.cli.ContainerList(ctx, dcontainer.ListOptions{All: true, Filters: dfilters.NewArgs(dfilters.Arg("name", "^/node-pre$"))})
		if err != nil || len(list) != 1 || list[0].State != "exited" || list[0].Names[0] != "/node-pre" {
			t.Fatalf("list %+v, %v", list, err)
		}
		if err := r.cli.ContainerRemove(ctx, "node-pre", dcontainer.RemoveOptions{RemoveVolumes: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.cli.ContainerInspect(ctx, made.ID); !isNotFound(err) {
			t.Errorf("after remove: %v", err)
		}
		if vols, err := r.cli.VolumeList(ctx, dvolume.ListOptions{}); err != nil || len(vols.Volumes) != 0 {
			t.Errorf("the anonymous volume stayed: %+v, %v", vols.Volumes, err)
		}
	})
}

func TestClientPullByTagAndDigest(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d, err := r.cli.DistributionInspect(ctx, testRepo+":v2", "")
		if err != nil || d.Descriptor.Digest.String() != r.digest["v2"] {
			t.Fatalf("distribution %+v, %v", d, err)
		}
		byDigest := testRepo + "@" + r.digest["v2"]
		out, err := r.cli.ImagePull(ctx, byDigest, image.PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var last jsonmessage.JSONMessage
		progress := map[string]int64{}
		for dec := json.NewDecoder(out); ; {
			var m jsonmessage.JSONMessage
			if err := dec.Decode(&m); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if m.Progress != nil && m.Progress.Total > 0 {
				progress[m.ID] = m.Progress.Current
			}
			last = m
		}
		if !strings.HasPrefix(last.Status, "Status: Downloaded newer image") || len(progress) != layers {
			t.Errorf("last %+v, progress %v", last, progress)
		}
		img, err := r.cli.ImageInspect(ctx, byDigest)
		if err != nil || !reflect.DeepEqual(img.RepoDigests, []string{byDigest}) || len(img.RepoTags) != 0 {
			t.Fatalf("by digest: %+v, %v", img, err)
		}
		if img.Config.Labels["version"] != "v2" || img.Os != "linux" || img.Architecture != "amd64" {
			t.Errorf("config %+v", img.Config)
		}
		if _, err := r.cli.ContainerCreate(ctx, &dcontainer.Config{Image: byDigest}, nil, nil, nil, "by-digest"); err != nil {
			t.Error(err)
		}
		if _, err := r.cli.ImagePull(ctx, testRepo+":none", image.PullOptions{}); !isNotFound(err) || !strings.Contains(err.Error(), "manifest unknown") {
			t.Errorf("missing tag: %v", err)
		}
		if _, err := r.cli.ImagePull(ctx, "qnet:v1", image.PullOptions{}); err == nil || !strings.Contains(err.Error(), "pull access denied for qnet") {
			t.Errorf("a bare name must not be found by luck: %v", err)
		}
	})
}

func TestPullErrorsStandInsideTheStream(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		for fault, want := range map[string]string{FaultPullFail: "503 Service Unavailable", FaultDiskFull: "no space left on device"} {
			r.e.Inject(fault, "")
			out, err := r.cli.ImagePull(t.Context(), testRepo+":v2", image.PullOptions{})
			if err != nil {
				t.Fatalf("%s: the answer must be 200: %v", fault, err)
			}
			err = jsonmessage.DisplayJSONMessagesStream(out, io.Discard, 0, false, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", fault, err)
			}
			if _, err := r.cli.ImageInspect(t.Context(), testRepo+":v2"); !isNotFound(err) {
				t.Errorf("%s: a broken pull left an image: %v", fault, err)
			}
			r.e.Clear("")
		}
		auth := base64.URLEncoding.EncodeToString([]byte(`{"username":"lab"}`))
		r.reg.RequireAuth(auth)
		if _, err := r.cli.ImagePull(t.Context(), testRepo+":v2", image.PullOptions{}); err == nil || !strings.Contains(err.Error(), "no basic auth credentials") {
			t.Errorf("without a login: %v", err)
		}
		if _, err := r.cli.ImagePull(t.Context(), testRepo+":v2", image.PullOptions{RegistryAuth: auth}); err != nil {
			t.Errorf("with a login: %v", err)
		}
	})
}

func readLogs(t *testing.T, r *rig, o dcontainer.LogsOptions) (string, string) {
	t.Helper()
	rc, err := r.cli.ContainerLogs(t.Context(), "c1", o)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	var out, errb bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &errb, rc); err != nil {
		t.Fatal(err)
	}
	return out.String(), errb.String()
}

func TestClientLogs(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("c1", map[string]any{})
		first := time.Now()
		r.want(204, "", "POST", "/containers/c1/start", nil)
		time.Sleep(time.Hour)
		r.want(204, "", "POST", "/containers/c1/restart", nil)
		both := dcontainer.LogsOptions{ShowStdout: true, ShowStderr: true}
		out, errs := readLogs(t, r, both)
		if out != "start 1\ngot SIGTERM\nstart 2\n" || errs != "warning\nwarning\n" {
			t.Errorf("the log must survive a restart: %q %q", out, errs)
		}
		tail := both
		tail.Tail, tail.Timestamps = "2", true
		out, errs = readLogs(t, r, tail)
		stamp := first.Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000000Z")
		if out != stamp+" start 2\n" || errs != stamp+" warning\n" {
			t.Errorf("tail: %q %q, want %s", out, errs, stamp)
		}
		since := both
		since.Since = first.Add(time.Minute).Format(time.RFC3339Nano)
		if out, _ = readLogs(t, r, since); out != "got SIGTERM\nstart 2\n" {
			t.Errorf("since: %q", out)
		}
		until := both
		until.Until = first.Add(time.Minute).Format(time.RFC3339Nano)
		if out, _ = readLogs(t, r, until); out != "start 1\n" {
			t.Errorf("until: %q", out)
		}
		r.e.RotateLogs(1)
		if out, errs = readLogs(t, r, both); out+errs != "warning\n" {
			t.Errorf("rotated: %q", out+errs)
		}
		r.want(400, "choose at least one stream", "GET", "/containers/c1/logs", nil)
	})
}

func TestFollowEndsWithTheProcess(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.mustCreate("c1", map[string]any{"HostConfig": policy("always")})
		r.want(204, "", "POST", "/containers/c1/start", nil)
		done := make(chan string)
		go func() {
			out, _ := readLogs(t, r, dcontainer.LogsOptions{ShowStdout: true, Follow: true})
			done <- out
		}()
		synctest.Wait()
		r.want(204, "", "POST", "/containers/c1/kill?signal=SIGTERM", nil)
		if out := <-done; out != "start 1\ngot SIGTERM\n" {
			t.Errorf("followed %q", out)
		}
	})
}

func TestClientEvents(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		begin := time.Now()
		msgs, errs := r.cli.Events(t.Context(), events.ListOptions{Filters: dfilters.NewArgs(dfilters.Arg("type", "container"), dfilters.Arg("container", "node"))})
		synctest.Wait()
		r.mustCreate("node", map[string]any{})
		r.mustCreate("other", map[string]any{})
		for _, verb := range []string{"start", "stop"} {
			r.want(204, "", "POST", "/containers/node/"+verb, nil)
		}
		// the order a real engine gave for a stop: kill, die, stop
		want := []string{"create", "start", "kill", "die", "stop"}
		for i, w := range want {
			select {
			case m := <-msgs:
				if string(m.Action) != w || m.Actor.Attributes["name"] != "node" || m.Actor.Attributes["image"] != testRepo+":v1" {
					t.Fatalf("event %d: %+v", i, m)
				}
				if w == "die" && m.Actor.Attributes["exitCode"] != "0" {
					t.Errorf("die: %v", m.Actor.Attributes)
				}
			case err := <-errs:
				t.Fatal(err)
			}
		}
		past, errs := r.cli.Events(t.Context(), events.ListOptions{Since: fmt.Sprint(begin.Unix()), Until: fmt.Sprint(time.Now().Unix()),
			Filters: dfilters.NewArgs(dfilters.Arg("event", "die"))})
		n := 0
		for {
			select {
			case <-past:
				n++
				continue
			case err := <-errs:
				if err != io.EOF {
					t.Fatal(err)
				}
			}
			break
		}
		if n != 1 {
			t.Errorf("%d past deaths", n)
		}
	})
}

func TestClientNetworks(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ctx := t.Context()
		if _, err := r.cli.NetworkCreate(ctx, "back", dnetwork.CreateOptions{IPAM: &dnetwork.IPAM{Config: []dnetwork.IPAMConfig{{Subnet: "172.30.0.0/16"}}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.cli.NetworkCreate(ctx, "side", dnetwork.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		static := &dnetwork.EndpointSettings{IPAMConfig: &dnetwork.EndpointIPAMConfig{IPv4Address: "172.30.0.9"}, Aliases: []string{"al"}}
		made, err := r.cli.ContainerCreate(ctx, &dcontainer.Config{Image: testRepo + ":v1"}, &dcontainer.HostConfig{NetworkMode: "back"},
			&dnetwork.NetworkingConfig{EndpointsConfig: map[string]*dnetwork.EndpointSettings{"back": static}}, nil, "node")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.cli.NetworkConnect(ctx, "side", "node", nil); err != nil {
			t.Fatal(err)
		}
		if err := r.cli.ContainerStart(ctx, "node", dcontainer.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := r.cli.ContainerInspect(ctx, "node")
		if err != nil {
			t.Fatal(err)
		}
		back, side := got.NetworkSettings.Networks["back"], got.NetworkSettings.Networks["side"]
		if back.IPAddress != "172.30.0.9" || back.MacAddress != "02:42:ac:1e:00:09" || !reflect.DeepEqual(back.Aliases, []string{"al", made.ID[:12]}) {
			t.Errorf("back %+v", back)
		}
		if side.IPAddress != "172.18.0.2" || !reflect.DeepEqual(side.Aliases, []string{made.ID[:12]}) {
			t.Errorf("side %+v", side)
		}
		n, err := r.cli.NetworkInspect(ctx, "back", dnetwork.InspectOptions{})
		if err != nil || n.Containers[made.ID].IPv4Address != "172.30.0.9/16" {
			t.Errorf("network %+v, %v", n, err)
		}
		bad := map[string]error{
			"only when connecting to networks with user configured subnets": r.cli.NetworkConnect(ctx, "side", "node", static),
			"alias is supported only for containers in user defined":        r.cli.NetworkConnect(ctx, "bridge", "node", &dnetwork.EndpointSettings{Aliases: []string{"a"}}),
			"endpoint with name node already exists in network side":        r.cli.NetworkConnect(ctx, "side", "node", nil),
			"has active endpoints": r.cli.NetworkRemove(ctx, "back"),
			"pre-defined network":  r.cli.NetworkRemove(ctx, "bridge"),
		}
		for want, err := range bad {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q, got %v", want, err)
			}
		}
		if err := r.cli.NetworkDisconnect(ctx, "side", "node", false); err != nil {
			t.Fatal(err)
		}
		list, err := r.cli.NetworkList(ctx, dnetwork.ListOptions{})
		if err != nil || len(list) != 5 {
			t.Errorf("%d networks, %v", len(list), err)
		}
	})
}

func TestNewerAPI(t *testing.T) {
	bubble(t, func(c *Config) { c.APIVersion = "1.47" }, func(t *testing.T, r *rig) {
		ctx := t.Context()
		if _, err := r.cli.NetworkCreate(ctx, "back", dnetwork.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		made, err := r.cli.ContainerCreate(ctx, &dcontainer.Config{Image: testRepo + ":v1"}, nil, &dnetwork.NetworkingConfig{
			EndpointsConfig: map[string]*dnetwork.EndpointSettings{"bridge": {MacAddress: "02:42:00:00:00:99"}, "back": {Aliases: []string{"al"}}}}, nil, "node")
		if err != nil {
			t.Fatal("two endpoints are allowed from 1.44 on:", err)
		}
		if err := r.cli.ContainerStart(ctx, made.ID, dcontainer.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := r.cli.ContainerInspect(ctx, "node")
		if err != nil {
			t.Fatal(err)
		}
		n := got.NetworkSettings.Networks
		if n["bridge"].MacAddress != "02:42:00:00:00:99" || !reflect.DeepEqual(n["back"].Aliases, []string{"al"}) ||
			!reflect.DeepEqual(n["back"].DNSNames, []string{"node", "al", made.ID[:12]}) {
			t.Errorf("networks %+v %+v", n["bridge"], n["back"])
		}
		if v := r.cli.ClientVersion(); v != "1.47" {
			t.Errorf("negotiated %s", v)
		}
	})
}

func TestClientVolumesAndDiskUsage(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ctx := t.Context()
		v, err := r.cli.VolumeCreate(ctx, dvolume.CreateOptions{Name: "data", Labels: map[string]string{"a": "b"}})
		if err != nil || v.Mountpoint != "/var/lib/docker/volumes/data/_data" {
			t.Fatalf("volume %+v, %v", v, err)
		}
		r.mustCreate("c1", map[string]any{"HostConfig": map[string]any{"Binds": []string{"data:/app/data:ro"}}})
		if err := r.cli.VolumeRemove(ctx, "data", false); err == nil || !strings.Contains(err.Error(), "volume is in use") {
			t.Errorf("in use: %v", err)
		}
		if err := r.cli.ContainerRemove(ctx, "c1", dcontainer.RemoveOptions{RemoveVolumes: true}); err != nil {
			t.Fatal(err)
		}
		got, err := r.cli.VolumeInspect(ctx, "data")
		if err != nil || got.Labels["a"] != "b" {
			t.Errorf("a named volume must stay: %+v, %v", got, err)
		}
		info, err := r.cli.Info(ctx)
		if err != nil || info.ServerVersion != "20.10.24" || info.Name != "host1" {
			t.Errorf("info %+v, %v", info.ServerVersion, err)
		}
		code, o := r.raw("GET", "/v1.41/system/df", nil)
		if code != 200 || o["LayersSize"] != float64(90<<20) {
			t.Errorf("df %d %v", code, o)
		}
	})
}

func TestImageRemoveAndMovedTag(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.mustCreate("c1", map[string]any{})
		if _, err := r.cli.ImageRemove(ctx, testRepo+":v1", image.RemoveOptions{}); err == nil || !strings.Contains(err.Error(), "is using its referenced image") {
			t.Errorf("in use: %v", err)
		}
		if _, err := r.reg.Push(testRepo+":v1", testImage("v1-again")); err != nil {
			t.Fatal(err)
		}
		if err := r.e.Load(testRepo + ":v1"); err != nil {
			t.Fatal(err)
		}
		list, err := r.cli.ContainerList(ctx, dcontainer.ListOptions{All: true})
		if err != nil || list[0].Image != list[0].ImageID {
			t.Errorf("a moved tag must not name the old container's image: %+v, %v", list, err)
		}
		images, err := r.cli.ImageList(ctx, image.ListOptions{})
		if err != nil || len(images) != 2 {
			t.Errorf("%d images, %v", len(images), err)
		}
	})
}

// isNotFound asks the client what the engine's status meant.
func isNotFound(err error) bool {
	//lint:ignore SA1019 its successor lives in a module that go.mod does not name
	return client.IsErrNotFound(err)
}
