package host

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func decodeAuth(t *testing.T, s string) map[string]string {
	t.Helper()
	b, err := base64.URLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// bubble runs fn with a connected rig in a bubble.
func bubble(t *testing.T, fn func(r *rig)) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		fn(r)
	})
}

func TestReadsStartNoGuardianAndLeakNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		h, err := r.client.Hello(r.ctx)
		if err != nil || h.Version != "test" || h.GuardianPID != 0 {
			t.Errorf("%+v %v", h, err)
		}
		r.e.mu.Lock()
		for _, s := range []struct{ name, image, bind string }{{"watchtower", "containrrr/watchtower:latest", ""}, {"qnet-tls", "caddy:2", ""}, {"backup", "busybox", "/srv"}, {nodeName + "-pre-9", "q", ""}} {
			o := mustObj(`{"Image":"` + imgOld + `","HostConfig":{"NetworkMode":"default","RestartPolicy":{"Name":"no"}}}`)
			if s.bind != "" {
				o["HostConfig"].(object)["Binds"] = []any{s.bind + ":/b"}
			}
			c, msg := r.e.make(s.name, o)
			if msg != "" {
				t.Fatal(msg)
			}
			c.cfg["Image"] = s.image
			c.status = "running"
		}
		r.e.mu.Unlock()
		f, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName, DataPaths: []string{"/srv/qnet"}})
		if err != nil {
			t.Fatal(err)
		}
		c := f.Container
		if c.State != "running" || c.DataDir.HostPath != "/srv/qnet" || c.RestartPolicy != "always" || c.StartedAt.IsZero() || f.Engine.APIVersion != "1.41" {
			t.Errorf("%+v %+v", c, f.Engine)
		}
		if !slices.Equal(f.Updaters, []string{"watchtower"}) || !slices.Equal(f.TLSTerminators, []string{"qnet-tls"}) {
			t.Errorf("updaters %v, tls %v", f.Updaters, f.TLSTerminators)
		}
		var sib []string
		for _, s := range f.Siblings {
			sib = append(sib, fmt.Sprintf("%s %v %v %s", s.Name, s.SharesData, s.Writable, s.RestartPolicy))
		}
		slices.Sort(sib)
		if !slices.Equal(sib, []string{"backup true true no", nodeName + "-pre-9 false false no"}) {
			t.Errorf("siblings %q", sib)
		}
		if len(f.Disks) != 1 || f.Disks[0].Path != "/srv/qnet" || f.Disks[0].FreeBytes != 1<<40 {
			t.Errorf("disks %+v", f.Disks)
		}
		lines, err := r.client.LastLines(r.ctx, nodeName, 1)
		if err != nil || !slices.Equal(lines, []string{"2026-01-01T00:00:01Z seed is ***"}) {
			t.Errorf("lines %q %v", lines, err)
		}
		rep, err := r.client.Carry(r.ctx, CarryRequest{Container: nodeName, ImageDigest: imgNew})
		if err != nil || rep.NewBuild != "2222222" {
			t.Errorf("%+v %v", rep, err)
		}
		for _, v := range []any{f, rep, lines} {
			if b, _ := json.Marshal(v); strings.Contains(string(b), "sentinel") {
				t.Errorf("a secret left the host: %s", b)
			}
		}
		if f, err := r.client.Facts(r.ctx, FactsRequest{Container: "absent"}); err != nil || f.Container != nil {
			t.Errorf("absent container: %+v %v", f.Container, err)
		}
		if len(r.guards) != 0 {
			t.Error("a read started a guardian")
		}
	})
}

// tap keeps a copy of all that crosses a connection.
type tap struct {
	net.Conn
	seen *strings.Builder
}

func (c tap) Write(b []byte) (int, error) { c.seen.Write(b); return c.Conn.Write(b) }

func TestNoSecretCrossesTheWire(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		near, far := net.Pipe()
		var seen strings.Builder
		r.served = make(chan struct{})
		go func() { defer close(r.served); _ = Serve(r.ctx, r.cfg, far, tap{far, &seen}); far.Close() }()
		r.client = NewClient(near)
		r.w = r.client.Writer(claim1)
		rep := r.stage()
		r.e.find(nodeName + "-next").startErr = "bad variable: sentinel words here"
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), func(TxEvent) {})
		if err != nil || res.Outcome != PutBack {
			t.Errorf("%+v %v", res, err)
		}
		if _, err := r.client.Situation(r.ctx, nodeName, "roll-1"); err != nil {
			t.Error(err)
		}
		if _, err := r.client.TxLog(r.ctx, "roll-1"); err != nil {
			t.Error(err)
		}
		r.client.Close()
		synctest.Wait()
		if strings.Contains(seen.String(), "sentinel") {
			t.Errorf("a secret left the host")
		}
		err = filepath.WalkDir(filepath.Join(dir, "var"), func(p string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				b, _ := os.ReadFile(p)
				if strings.Contains(string(b), "sentinel") {
					t.Errorf("a secret is in %s", p)
				}
				if st, _ := os.Stat(p); st.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v", p, st.Mode())
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestSuccessorThatCannotStartIsPutBack(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		next := r.e.find(nodeName + "-next")
		next.startErr, next.log = "port is already allocated", "last words\n"
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
		if err != nil || res.Outcome != PutBack || !strings.Contains(res.Reason, "could not be started: ") || !slices.Equal(res.LastLines, []string{"last words"}) {
			t.Errorf("%+v %v", res, err)
		}
		for _, part := range []string{"port is already allocated", "systemctl restart docker"} { // what it is, and what to do about it
			if !strings.Contains(res.Reason, part) {
				t.Errorf("%q does not say %q", res.Reason, part)
			}
		}
		r.settled(rep, "put back")
		if down := res.StartedAt.Sub(res.StoppedAt); res.StoppedAt.IsZero() || down < 0 || down > 10*time.Second {
			t.Errorf("down from %s to %s", res.StoppedAt, res.StartedAt)
		}
		s, err := r.client.Situation(r.ctx, nodeName, "roll-1")
		if err != nil || s.Unsettled || s.Current.ID != rep.OldID || s.Failed == nil || s.Failed.ID != rep.NextID || s.Aside != nil || s.Next != nil {
			t.Errorf("%+v %v", s, err)
		}
		if last := s.Entries[len(s.Entries)-1]; last.Step != stepEnd || last.Outcome != PutBack || last.Result == nil {
			t.Errorf("last entry %+v", last)
		}
	})
}

func TestCrashAtOnceEndsOnOneContainer(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		r.e.find(nodeName + "-next").crash = true
		r.e.hook = nil
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
		if err != nil {
			t.Fatal(err)
		}
		// In virtual time the replace is over before the crash: M0 is what finds it,
		// and a put-back must work then.
		time.Sleep(time.Second)
		if res.Outcome == Replaced {
			if _, err := r.w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1"}, nil); err != nil {
				t.Error(err)
			}
		}
		r.settled(rep, "crash")
	})
}

func TestKilledStopIsReported(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		r.e.stopFor = time.Hour
		req := replaceRequest(rep)
		req.StopTimeoutSeconds = 5 // the floor holds
		from := time.Now()
		res, err := r.w.Replace(r.ctx, req, nil)
		if err != nil || res.Outcome != Replaced || !res.Killed {
			t.Errorf("%+v %v", res, err)
		}
		if d := time.Since(from); d < 60*time.Second || d > 70*time.Second {
			t.Errorf("the node had %s to stop, want 60 s", d)
		}
	})
}

func TestReplaceRefusesWhatChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rig, req *ReplaceRequest)
		code   string
	}{
		"other old id":        {func(r *rig, q *ReplaceRequest) { q.ExpectOldID = "x" }, CodeChanged},
		"other next id":       {func(r *rig, q *ReplaceRequest) { q.ExpectNextID = "x" }, CodeChanged},
		"old reconfigured":    {func(r *rig, q *ReplaceRequest) { r.e.find(nodeName).host["Memory"] = json.Number("5") }, CodeChanged},
		"old policy changed":  {func(r *rig, q *ReplaceRequest) { r.e.find(nodeName).host["RestartPolicy"] = object{"Name": "no"} }, CodeChanged},
		"next reconfigured":   {func(r *rig, q *ReplaceRequest) { r.e.find(nodeName + "-next").host["Memory"] = json.Number("5") }, CodeChanged},
		"next started before": {func(r *rig, q *ReplaceRequest) { r.e.find(nodeName + "-next").status = "exited" }, CodeChanged},
		"aside name taken":    {func(r *rig, q *ReplaceRequest) { q.AsideName = "third" }, CodeConflict},
		"names equal":         {func(r *rig, q *ReplaceRequest) { q.AsideName = q.FailedName }, CodeBadRequest},
		"third on the data": {func(r *rig, q *ReplaceRequest) {
			c := r.e.find("third")
			c.mounts = []any{object{"Type": "bind", "Source": "/srv/qnet", "Destination": "/x", "RW": true}}
			c.status = "running"
		}, CodeConflict},
	} {
		bubble(t, func(r *rig) {
			rep := r.stage()
			r.e.mu.Lock()
			if _, msg := r.e.make("third", mustObj(`{"Image":"`+imgOld+`","HostConfig":{}}`)); msg != "" {
				t.Fatal(msg)
			}
			req := replaceRequest(rep)
			c.change(r, &req)
			r.e.mu.Unlock()
			_, err := r.w.Replace(r.ctx, req, nil)
			if !isCode(err, c.code) {
				t.Errorf("%s: %v", name, err)
			}
			if o := r.e.find(nodeName); o.status != "running" || o.id != rep.OldID {
				t.Errorf("%s: something was changed", name)
			}
		})
	}
}

func TestReplaceRefusesAnUnexplainedSuccessor(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		// This engine drops a memory limit.
		r.e.mu.Lock()
		r.e.find(nodeName).host["Memory"] = json.Number("1073741824")
		r.e.dropOnCreate = "Memory"
		r.e.mu.Unlock()
		rep, err := r.w.Stage(r.ctx, StageRequest{Container: nodeName, ImageDigest: imgNew, NextName: nodeName + "-next", Operation: "roll-1"})
		if err != nil || len(rep.Unexplained) != 1 || rep.Unexplained[0] != (Difference{"HostConfig.Memory", DiffMissing}) {
			t.Fatalf("%+v %v", rep.Unexplained, err)
		}
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); !isCode(err, CodeUnexplained) {
			t.Errorf("%v", err)
		}
	})
}

func TestStageIsIdempotent(t *testing.T) {
	bubble(t, func(r *rig) {
		a, b := r.stage(), r.stage()
		if a.NextID != b.NextID {
			t.Error("a second stage made a second successor")
		}
		// After a change of the running container the old successor is not it any more.
		r.e.mu.Lock()
		r.e.find(nodeName).host["Memory"] = json.Number("1073741824")
		r.e.mu.Unlock()
		if c := r.stage(); c.NextID == a.NextID {
			t.Error("a stale successor was taken")
		}
		if err := r.w.Discard(r.ctx, nodeName); !isCode(err, CodeConflict) {
			t.Errorf("the running container was discarded: %v", err)
		}
		for range 2 {
			if err := r.w.Discard(r.ctx, nodeName+"-next"); err != nil {
				t.Error(err)
			}
		}
		if r.e.find(nodeName+"-next") != nil || r.e.find(nodeName) == nil || len(r.e.violate) > 0 {
			t.Errorf("discard: %v", r.e.violate)
		}
		if _, err := r.w.Stage(r.ctx, StageRequest{Container: nodeName, ImageDigest: "sha256:" + sha, NextName: "n", Operation: "roll-1"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("stage without the image: %v", err)
		}
	})
}

func TestGuardianIsStartedAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		r.killGuards()
		synctest.Wait()
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
			t.Fatal(err)
		}
		if len(r.guards) != 2 {
			t.Errorf("%d guardians were started, want 2", len(r.guards))
		}
		h, err := r.client.Hello(r.ctx)
		if err != nil || h.GuardianPID != 101 {
			t.Errorf("%+v %v", h, err)
		}
	})
}

func TestNoTransactionWithoutAGuardian(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		r.killGuards()
		synctest.Wait()
		r.mu.Lock()
		r.guards = nil
		r.mu.Unlock()
		r.stopGuards()
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); !isCode(err, CodeGuardian) {
			t.Errorf("%v", err)
		}
		if r.e.find(nodeName).id != rep.OldID || r.e.find(nodeName).status != "running" {
			t.Error("something was changed")
		}
	})
}

func TestFinishArchivesPrunesAndRemoves(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stage()
		fin := FinishRequest{Container: nodeName, AsideName: nodeName + "-pre-1", LogDir: "/root/qnet-logs", Keep: 2}
		if _, err := r.w.Finish(r.ctx, fin, nil); err == nil {
			t.Error("finished before anything was set aside")
		}
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
			t.Fatal(err)
		}
		logs := filepath.Join(dir, "root/qnet-logs")
		if err := os.MkdirAll(logs, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{nodeName + "-pre-0a.log.gz", nodeName + "-pre-0b.log.gz", "other-pre-0.log.gz", nodeName + "-pre-0.txt"} {
			if err := os.WriteFile(filepath.Join(logs, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r.e.mu.Lock()
		r.e.find(nodeName).status = "exited"
		r.e.mu.Unlock()
		if _, err := r.w.Finish(r.ctx, fin, nil); !isCode(err, CodeConflict) {
			t.Errorf("the way back was removed while the successor is down: %v", err)
		}
		r.e.mu.Lock()
		r.e.find(nodeName).status = "running"
		r.e.mu.Unlock()
		res, err := r.w.Finish(r.ctx, fin, nil)
		if err != nil || res.Archive != "/root/qnet-logs/"+nodeName+"-pre-1.log.gz" || res.Bytes == 0 {
			t.Fatalf("%+v %v", res, err)
		}
		f, err := os.Open(filepath.Join(logs, nodeName+"-pre-1.log.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(z); err != nil || string(b) != "2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z seed is sentinel words here\n" {
			t.Errorf("archive holds %q, %v", b, err)
		}
		if st, _ := f.Stat(); st.Mode().Perm() != 0o600 {
			t.Errorf("archive mode %v", st.Mode())
		}
		left, _ := filepath.Glob(logs + "/*")
		for i := range left {
			left[i] = filepath.Base(left[i])
		}
		if want := []string{"other-pre-0.log.gz", nodeName + "-pre-0.txt", nodeName + "-pre-0b.log.gz", nodeName + "-pre-1.log.gz"}; !slices.Equal(left, want) {
			t.Errorf("left %q, want %q", left, want)
		}
		if r.e.find(nodeName+"-pre-1") != nil || len(r.e.violate) > 0 {
			t.Errorf("aside not removed, or volumes with it: %v", r.e.violate)
		}
		if again, err := r.w.Finish(r.ctx, fin, nil); err != nil || again.Archive != res.Archive {
			t.Errorf("asked again: %+v %v", again, err)
		}
	})
}

func TestFinishKeepsTheContainerWhenTheDiskIsFull(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.cfg.Facts = fixedDisk{archiveReserve - 1}
		r.connect(claim1)
		rep := r.stage()
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
			t.Fatal(err)
		}
		_, err := r.w.Finish(r.ctx, FinishRequest{Container: nodeName, AsideName: nodeName + "-pre-1", LogDir: "/logs"}, nil)
		if !errors.Is(err, ErrNoSpace) || r.e.find(nodeName+"-pre-1") == nil {
			t.Errorf("%v", err)
		}
		if left, _ := filepath.Glob(dir + "/logs/*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestResolveAndPull(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.cfg.DockerConfig = "/root/.docker"
		if err := os.MkdirAll(filepath.Join(dir, "root/.docker"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "root/.docker/config.json"), []byte(`{"auths":{"r.example.org":{"auth":"dXNlcjpzZW50aW5lbA=="}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		digest := "sha256:" + sha
		r.e.dist["r.example.org/qnet:v2"] = digest
		r.e.refs["remote:r.example.org/qnet@"+digest] = imgNew
		r.connect(claim1)
		if _, err := r.client.Resolve(r.ctx, "r.example.org/qnet:none"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v", err)
		}
		img, err := r.client.Resolve(r.ctx, "r.example.org/qnet:v2")
		if err != nil || img.Digest != "r.example.org/qnet@"+digest || img.Present || img.Build != "" || img.Arch != "amd64" {
			t.Fatalf("%+v %v", img, err)
		}
		if len(r.e.auth) == 0 || decodeAuth(t, r.e.auth[0])["password"] != "sentinel" {
			t.Error("the host's login was not used")
		}
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := r.w.Pull(r.ctx, "r.example.org/qnet:v2", nil); !isCode(err, CodeBadRequest) {
			t.Errorf("pulled by tag: %v", err)
		}
		if _, err := r.w.Pull(r.ctx, "r.example.org/qnet@sha256:"+strings.Repeat("0", 64), nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("an error inside a pull's 200: %v", err)
		}
		var seen []PullProgress
		img, err = r.w.Pull(r.ctx, img.Digest, func(p PullProgress) { seen = append(seen, p) })
		if err != nil || !img.Present || img.Build != "2222222" || img.ID != imgNew {
			t.Errorf("%+v %v", img, err)
		}
		if !slices.ContainsFunc(seen, func(p PullProgress) bool { return p.Layer == "l1" && p.CurrentBytes == 5 && p.TotalBytes == 10 }) {
			t.Errorf("progress %+v", seen)
		}
		pulls := r.e.pulls
		if _, err := r.w.Pull(r.ctx, img.Digest, nil); err != nil || r.e.pulls != pulls {
			t.Errorf("pulled again: %v", err)
		}
		if img, err := r.client.Resolve(r.ctx, "r.example.org/qnet:v2"); err != nil || !img.Present || img.Build != "2222222" {
			t.Errorf("%+v %v", img, err)
		}
	})
}

func TestClientAfterTheConnectionDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := NewClient(near)
		errs := make(chan error, 1)
		go func() { _, err := c.Hello(context.Background()); errs <- err }()
		buf := make([]byte, 1024)
		if _, err := far.Read(buf); err != nil {
			t.Fatal(err)
		}
		far.Close()
		var ce *ConnectionError
		if err := <-errs; !errors.As(err, &ce) || ce.Hint() == "" {
			t.Errorf("a call in flight: %v", err)
		}
		<-c.Done()
		if _, err := c.Fence(context.Background()); !errors.As(err, &ce) {
			t.Errorf("a later call: %v", err)
		}
	})
}

func TestServeRefusesGarbage(t *testing.T) {
	bubble(t, func(r *rig) {
		for _, line := range []string{`{"id":5,"method":"no_such"}`, `{"id":6,"method":"replace","params":{}}`, `{"id":7,"method":"facts","params":[]}`} {
			near, far := net.Pipe()
			go func() { _ = Serve(r.ctx, r.cfg, far, far); far.Close() }()
			if _, err := io.WriteString(near, line+"\n"); err != nil {
				t.Fatal(err)
			}
			var resp response
			if err := newLineReader(near).next(&resp); err != nil || resp.Error == nil || resp.ID == 0 {
				t.Errorf("%s: %+v %v", line, resp, err)
			}
			near.Close()
		}
		near, far := net.Pipe()
		go func() { _ = Serve(r.ctx, r.cfg, far, far); far.Close() }()
		c := NewClient(near)
		if _, err := io.WriteString(near, "garbage\n"); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
	})
}

func TestOldEngineIsRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		r.e.apiVersion = "1.40"
		_, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName})
		if !isCode(err, CodeEngineTooOld) {
			t.Errorf("%v", err)
		}
	})
}

func TestEngineDownIsTyped(t *testing.T) {
	bubble(t, func(r *rig) {
		r.e.mu.Lock()
		r.e.down = true
		r.e.mu.Unlock()
		_, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName})
		var he interface{ Hint() string }
		if !errors.Is(err, ErrEngineAway) || !errors.As(err, &he) || he.Hint() == "" {
			t.Errorf("%v", err)
		}
	})
}

func TestOperatorFencedInsideATransaction(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		bob := Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8}
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), func(e TxEvent) {
			if e.Step == stepStopOld && e.State == TxIntent { // someone writes the record past the lock
				if err := r.cfg.writeFence(FenceRecord{Claim: bob}); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil || res.Outcome != InDoubt || !strings.Contains(res.Reason, "bob") {
			t.Errorf("%+v %v", res, err)
		}
		if policyFrom(r.e.view(r.e.cs[rep.OldID])).Name != "always" {
			t.Error("a step was taken after the fence had closed")
		}
		s, err := r.client.Situation(r.ctx, nodeName, "roll-1")
		if err != nil || !s.Unsettled {
			t.Errorf("%+v %v", s, err)
		}
		f, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName})
		if err != nil || !slices.Equal(f.Unsettled, []OpenTx{{"roll-1", nodeName, txReplace}}) {
			t.Errorf("%+v %v", f.Unsettled, err)
		}
		if _, err := r.client.Writer(bob).TakeFence(r.ctx); err != nil {
			t.Error(err)
		}
		r.settled(rep, "after the newcomer came")
	})
}

func TestEngineAwayLongerThanAnyoneWaits(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), func(e TxEvent) {
			if e.Step == stepOldNo && e.State == TxIntent {
				go r.e.restartDaemon(time.Hour)
			}
		})
		if err != nil || res.Outcome != InDoubt {
			t.Errorf("%+v %v", res, err)
		}
		if _, err := r.w.TakeFence(r.ctx); !errors.Is(err, ErrEngineAway) {
			t.Errorf("the next contact while the engine is away: %v", err)
		}
		r.client.Close()
		time.Sleep(time.Minute)
		r.quiet()
		time.Sleep(time.Hour)
		r.connect(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Error(err)
		}
		r.settled(rep, "after the engine came back")
	})
}

func TestAPIVersion(t *testing.T) {
	for v, want := range map[string]string{"1.41": "1.41", "1.43": "1.43", "1.47": "1.47", "1.60": "1.51"} {
		bubble(t, func(r *rig) {
			r.e.apiVersion = v
			f, err := r.client.Facts(r.ctx, FactsRequest{})
			if err != nil || f.Engine.APIVersion != want {
				t.Errorf("engine %s: %s %v", v, f.Engine.APIVersion, err)
			}
		})
	}
}

// TestStalledConnectionHoldsUpNothing: a stalled connection holds up no transaction.
func TestStalledConnectionHoldsUpNothing(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stage()
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() { defer close(served); _ = Serve(r.ctx, r.cfg, far, far); far.Close() }()
		p, _ := json.Marshal(replaceRequest(rep))
		b, _ := json.Marshal(request{ID: 1, Method: methodReplace, Claim: &claim1, Params: p})
		if _, err := near.Write(append(b, '\n')); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // nobody reads an answer
		if out := r.settled(rep, "stalled"); out != Replaced {
			t.Error(out)
		}
		near.Close()
		<-served
	})
}

// TestFullDiskInsideATransaction: the log takes no more lines after the
// beginning; the node must not stay down for that.
func TestFullDiskInsideATransaction(t *testing.T) {
	for _, bad := range []bool{false, true} {
		bubble(t, func(r *rig) {
			rep := r.stage()
			if bad {
				r.e.find(nodeName + "-next").startErr = "no"
			}
			ops := newOps(r.cfg)
			l, err := r.cfg.openTx("roll-1", nodeName, txReplace, byAgent)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := ops.beginReplace(r.ctx, replaceRequest(rep), l, 7)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.add(TxEntry{Step: stepBegin, State: TxDone, Spec: spec}); err != nil {
				t.Fatal(err)
			}
			l.close() // every further write fails
			d := &driver{cfg: r.cfg, eng: ops.eng, log: l, fence: func() error { return nil }, wait: time.Minute}
			res, err := d.run(r.ctx)
			if err != nil || res.Outcome != r.settled(rep, "full disk") {
				t.Errorf("%+v %v", res, err)
			}
			// Whoever finds the log decides by what is there and ends on one container too.
			if err := ops.settleAll(r.ctx, byGuardian, time.Minute, func(TxSpec) error { return nil }); err != nil {
				t.Error(err)
			}
			if now := r.settled(rep, "settled again"); now != res.Outcome {
				if !bad { // a put-back whose turn was not written is tried forward once more
					t.Errorf("%s became %s", res.Outcome, now)
				}
			}
		})
	}
}

// TestPutBackByAnotherOperation: a restore knows nothing but names; the node's
// restart policy comes from the log of the replace, whoever made it.
func TestPutBackByAnotherOperation(t *testing.T) {
	for _, removed := range []bool{false, true} {
		bubble(t, func(r *rig) {
			rep := r.stage()
			if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
				t.Fatal(err)
			}
			if removed {
				r.e.mu.Lock()
				delete(r.e.cs, rep.NextID)
				r.e.mu.Unlock()
			}
			w := r.client.Writer(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "restore-1", Epoch: 9})
			if _, err := w.TakeFence(r.ctx); err != nil {
				t.Fatal(err)
			}
			res, err := w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1"}, nil)
			if err != nil || res.Outcome != PutBack {
				t.Fatalf("%+v %v", res, err)
			}
			c := r.e.find(nodeName)
			if c.id != rep.OldID || c.status != "running" || policyFrom(r.e.view(c)) != always {
				t.Errorf("node is %s, %s, %+v", c.id, c.status, policyFrom(r.e.view(c)))
			}
			if _, err := w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-2"}, nil); !errors.Is(err, ErrNotFound) {
				t.Errorf("put back twice: %v", err)
			}
		})
	}
}
