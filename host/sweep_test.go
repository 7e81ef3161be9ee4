package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// rig is one host in a bubble: an engine with a running node, an agent with its
// guardian, and an operator's client.
type rig struct {
	t   testing.TB
	e   *fakeEngine
	cfg Config
	dir string

	mu       sync.Mutex
	guards   []*LocalGuardian
	ctx      context.Context // the host
	stopAll  context.CancelFunc
	killA    context.CancelFunc
	served   chan struct{} // process A has ended
	client   *Client
	w        *Writer
	noGuards bool
	asked    bool // the replace is one without a way back, to a successor with policy `no`
}

// stopGuards makes every further start of a guardian fail.
func (r *rig) stopGuards() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noGuards = true
}

type fixedDisk struct{ free uint64 }

func (fixedDisk) Now() time.Time { return time.Now() }
func (d fixedDisk) Disk(p string) (DiskFacts, error) {
	return DiskFacts{Path: p, FreeBytes: d.free, TotalBytes: 1 << 40}, nil
}

func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "host")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var claim1 = Claim{Fleet: "f", Store: "s", Owner: "ann", Operation: "roll-1", Epoch: 7}

const nodeName = "qnet-genesis-001"

func newRig(t testing.TB, dir string) *rig {
	r := &rig{t: t, e: newFakeEngine(), dir: dir}
	r.ctx, r.stopAll = context.WithCancel(context.Background())
	r.cfg = Config{Root: dir, StateDir: "/var/lib/qnetops", DialEngine: r.e.dial, Version: "test", Facts: fixedDisk{1 << 40},
		StartGuardian: func(context.Context) (Process, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.noGuards {
				return nil, errors.New("no processes left")
			}
			g := StartLocalGuardian(r.ctx, r.cfg, 100+len(r.guards))
			r.guards = append(r.guards, g)
			return g, nil
		}}
	r.e.images[imgOld], r.e.images[imgNew] = mustObj(oldImageJSON), mustObj(newImageJSON)
	c, msg := r.e.make(nodeName, mustObj(`{"Image":"`+imgOld+`","Env":["QNET_WALLET_SEED=sentinel words here"],"HostConfig":{"NetworkMode":"default","Binds":["/srv/qnet:/app/data"],"RestartPolicy":{"Name":"always","MaximumRetryCount":0}}}`))
	if msg != "" {
		t.Fatal(msg)
	}
	r.e.mu.Lock()
	r.e.run(c)
	c.log = "2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z seed is sentinel words here\n"
	r.e.mu.Unlock()
	return r
}

func mustObj(s string) object {
	o, err := decodeObject(json.RawMessage(s), "a test")
	if err != nil {
		panic(err)
	}
	return o
}

// connect starts a process A and a client of it.
func (r *rig) connect(claim Claim) {
	near, far := net.Pipe()
	ctx, kill := context.WithCancel(r.ctx)
	done := make(chan struct{})
	r.killA, r.served = kill, done
	go func() {
		defer close(done)
		_ = Serve(ctx, r.cfg, far, far)
		kill()
		far.Close()
	}()
	r.client = NewClient(near)
	r.w = r.client.Writer(claim)
}

func (r *rig) stage() StageReport {
	r.t.Helper()
	if _, err := r.w.TakeFence(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	rep, err := r.w.Stage(r.ctx, StageRequest{Container: nodeName, ImageDigest: imgNew, NextName: nodeName + "-next", Operation: r.w.claim.Operation})
	if err != nil {
		r.t.Fatal(err)
	}
	if len(rep.Unexplained) > 0 || !rep.DataDir.OK {
		r.t.Fatalf("staged with %v, data %+v", rep.Unexplained, rep.DataDir)
	}
	return rep
}

func replaceRequest(rep StageReport) ReplaceRequest {
	return ReplaceRequest{Container: nodeName, NextName: nodeName + "-next", AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1",
		ExpectOldID: rep.OldID, ExpectNextID: rep.NextID}
}

// end takes the host down and checks that nothing is left running.
func (r *rig) end() {
	r.client.Close()
	r.stopAll()
	r.e.shutdown()
	synctest.Wait()
}

// quiet says that the agent and every guardian have ended by themselves.
func (r *rig) quiet() {
	r.t.Helper()
	select {
	case <-r.served:
	default:
		r.t.Errorf("the agent still runs")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.guards {
		select {
		case <-g.Done():
		default:
			r.t.Errorf("guardian %d still runs", g.pid)
		}
	}
}

// settled checks invariant 4: one container runs under the node's name with the
// node's policy, the other is stopped with policy `no`; never were there two.
func (r *rig) settled(rep StageReport, what string) Outcome {
	r.t.Helper()
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	for _, v := range r.e.violate {
		r.t.Errorf("%s: %s", what, v)
	}
	old, next := r.e.cs[rep.OldID], r.e.cs[rep.NextID]
	outcome, run, rest, name := Replaced, next, old, nodeName+"-pre-1"
	if old.status == "running" {
		outcome, run, rest, name = PutBack, old, next, nodeName+"-failed-1"
	}
	pol := func(c *fakeContainer) string { return str(sub(c.host, "RestartPolicy"), "Name") }
	if r.asked || len(oneShotIn(r.e.view(old))) > 0 {
		if slices.ContainsFunc(r.e.counted, func(s string) bool { return strings.HasSuffix(s, "/"+old.id+"/start") }) {
			r.t.Errorf("%s: an old container that must not start was started again", what)
		}
		if ended := r.asked && next.status == "exited" && next.name == nodeName; ended && old.status != "running" && old.name == nodeName+"-pre-1" {
			return Replaced // its engine died after that, and nothing is to start it again
		}
		if old.status != "running" && next.status != "running" {
			if old.name != nodeName || pol(old) != "no" || next.name != nodeName+"-failed-1" || pol(next) != "no" {
				r.t.Errorf("%s: held with old %s (policy %s), successor %s (policy %s)", what, old.name, pol(old), next.name, pol(next))
			}
			return Held
		}
	}
	policy := "always"
	if r.asked && outcome == Replaced {
		policy = "no"
	}
	if run.status != "running" || run.name != nodeName || pol(run) != policy {
		r.t.Errorf("%s: node runs on %s (%s, policy %s)", what, run.name, run.status, pol(run))
	}
	untouched := outcome == PutBack && rest.status == "created" && rest.name == nodeName+"-next"
	if rest.status == "running" || pol(rest) != "no" || rest.name != name && !untouched {
		r.t.Errorf("%s: the other is %s (%s, policy %s)", what, rest.name, rest.status, pol(rest))
	}
	return outcome
}

func (r *rig) killGuards() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.guards {
		g.Kill()
	}
}

// fault is something that befalls the host around one engine request.
type fault struct {
	name string
	when string
	hit  func(r *rig) hookResult
	// settles: what befell leaves both processes dead; the next contact settles.
	later bool
}

var faults = []fault{
	{"agent killed before", "before", func(r *rig) hookResult { r.killA(); return hookResult{drop: true} }, false},
	{"agent killed, request still done a second later", "before", func(r *rig) hookResult { r.killA(); return hookResult{drop: true, late: time.Second} }, false},
	{"agent killed after", "after", func(r *rig) hookResult { r.killA(); return hookResult{drop: true} }, false},
	{"guardian killed before", "before", func(r *rig) hookResult { r.killGuards(); return hookResult{} }, false},
	{"guardian killed after", "after", func(r *rig) hookResult { r.killGuards(); return hookResult{} }, false},
	{"connection dropped before", "before", func(r *rig) hookResult { r.client.Close(); return hookResult{} }, false},
	{"connection dropped after", "after", func(r *rig) hookResult { r.client.Close(); return hookResult{} }, false},
	{"connection and guardian", "after", func(r *rig) hookResult { r.killGuards(); r.client.Close(); return hookResult{} }, false},
	{"daemon restarts before", "before", func(r *rig) hookResult { r.e.restartDaemon(3 * time.Second); return hookResult{drop: true} }, false},
	{"daemon restarts after", "after", func(r *rig) hookResult { r.e.restartDaemon(3 * time.Second); return hookResult{drop: true} }, false},
	{"daemon away five minutes, connection dropped", "after", func(r *rig) hookResult {
		r.client.Close()
		r.e.restartDaemon(5 * time.Minute)
		return hookResult{drop: true}
	}, false},
	{"agent killed and daemon restarts", "after", func(r *rig) hookResult { r.killA(); r.e.restartDaemon(time.Minute); return hookResult{drop: true} }, false},
	{"request refused", "before", func(r *rig) hookResult { return hookResult{fail: 500} }, false},
	{"answer lost", "after", func(r *rig) hookResult { return hookResult{drop: true} }, false},
	{"both killed before", "before", func(r *rig) hookResult { r.killA(); r.killGuards(); return hookResult{drop: true} }, true},
	{"both killed after, request done later", "before", func(r *rig) hookResult {
		r.killA()
		r.killGuards()
		return hookResult{drop: true, late: time.Second}
	}, true},
	{"both killed after", "after", func(r *rig) hookResult { r.killA(); r.killGuards(); return hookResult{drop: true} }, true},
}

// play is one kind of replace.
type play struct {
	name    string
	oneShot bool // the old container carries a variable that acts at every start
	bad     bool // the successor cannot start
	asked   bool // the replace is asked for without a way back, as cut-overs do
	want    Outcome
	never   []Outcome
}

var plays = []play{
	{"good", false, false, false, Replaced, []Outcome{Held}},
	{"bad", false, true, false, PutBack, []Outcome{Replaced, Held}},
	{"one-shot", true, false, false, Replaced, nil},
	{"one-shot bad", true, true, false, Held, []Outcome{Replaced}},
	{"no way back", false, false, true, Replaced, nil},
	{"no way back bad", false, true, true, Held, []Outcome{Replaced}},
}

// requestOf is the replace that a play asks for.
func (r *rig) requestOf(rep StageReport) ReplaceRequest {
	req := replaceRequest(rep)
	if r.asked {
		req.NoPutBack, req.NextPolicy = true, &Policy{Name: "no"}
	}
	return req
}

// stageFor stages a successor as the play has it.
func (r *rig) stageFor(p play) StageReport {
	r.t.Helper()
	r.asked = p.asked
	if p.oneShot {
		r.e.mu.Lock()
		c := r.e.find(nodeName)
		c.cfg["Env"] = append(list(c.cfg, "Env"), "QNET_ROLLBACK_TO_HEIGHT=5")
		r.e.mu.Unlock()
	}
	rep := r.stage()
	if p.bad {
		r.e.mu.Lock()
		r.e.find(nodeName + "-next").startErr = "driver failed programming external connectivity: port is already allocated"
		r.e.mu.Unlock()
	}
	return rep
}

// strike lets a fault hit the n-th engine request from now on.
func (r *rig) strike(f fault, n int) (struck *bool) {
	struck = new(bool)
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.e.count = true
	n += len(r.e.counted)
	r.e.hook = func(i int, when string) hookResult {
		if i == n && when == f.when && !*struck {
			*struck = true
			return f.hit(r)
		}
		return hookResult{}
	}
	return struck
}

// closed checks that no log on the host is open.
func (r *rig) closed(what string) {
	r.t.Helper()
	logs, err := r.cfg.allTx()
	if err != nil {
		r.t.Error(err)
	}
	for _, l := range logs {
		if p := replay(l); p.unsettled() || p.inDoubt() {
			r.t.Errorf("%s: the log is still open or in doubt", what)
		}
	}
}

// scenario runs one replace with a fault at request n; it says whether the fault struck.
func scenario(t *testing.T, dir string, f fault, n int, p play) (hit bool, outcome Outcome) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stageFor(p)
		struck := r.strike(f, n)
		what := fmt.Sprintf("request %d, %s", n, f.name)
		res, err := r.w.Replace(r.ctx, r.requestOf(rep), nil)
		if err == nil && res.Outcome == InDoubt {
			t.Errorf("%s: in doubt: %s", what, res.Reason)
		}
		time.Sleep(20 * time.Minute)
		r.client.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.e.counted != nil && n <= len(r.e.counted) {
			what += " (" + r.e.counted[n-1] + ")"
		}
		r.quiet()
		if f.later {
			r.e.mu.Lock()
			r.e.hook = nil
			for _, v := range r.e.violate {
				t.Errorf("%s: %s", what, v)
			}
			r.e.mu.Unlock()
			r.connect(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
			if _, err := r.w.TakeFence(r.ctx); err != nil {
				t.Errorf("%s: next contact: %v", what, err)
			}
			time.Sleep(time.Minute)
		}
		outcome = r.settled(rep, what)
		if err == nil && res.Outcome != outcome {
			t.Errorf("%s: reported %s, is %s", what, res.Outcome, outcome)
		}
		r.closed(what)
		hit = *struck
	})
	return hit, outcome
}

// sample is how many requests a sweep goes on at a time: every one, or with
// -short some, each fault beginning at another.
func sample() int {
	if testing.Short() {
		return 5
	}
	return 1
}

// TestSweepReplace lets every fault strike at every engine request of a replace
// that would succeed, and of one whose successor cannot start, with a way back
// and without.
func TestSweepReplace(t *testing.T) {
	for _, p := range plays {
		t.Run(p.name, func(t *testing.T) {
			for i, f := range faults {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					outcomes := map[Outcome]int{}
					every := sample()
					if p.oneShot || p.asked {
						every = max(every, 3) // each fault at others
					}
					n := 1 + i%every
					for ; n < 200; n += every {
						struck, out := scenario(t, tempDir(t), f, n, p)
						outcomes[out]++
						if !struck || t.Failed() {
							break
						}
					}
					if n < 15 {
						t.Errorf("struck at %d requests only", n-1)
					}
					for _, o := range p.never {
						if outcomes[o] > 0 {
							t.Errorf("%s: %v", o, outcomes)
						}
					}
					if outcomes[p.want] == 0 {
						t.Errorf("never %s: %v", p.want, outcomes)
					}
				})
			}
		})
	}
}

func TestReplaceAndPutBack(t *testing.T) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stage()
		var steps []string
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), func(e TxEvent) {
			if e.State == TxDone {
				steps = append(steps, e.Step)
			}
		})
		if err != nil || res.Outcome != Replaced || res.Killed || res.OldID != rep.OldID || res.NewID != rep.NextID {
			t.Fatalf("%+v %v", res, err)
		}
		want := []string{stepBegin, stepStopOld, stepExitOld, stepOldNo, stepStartNext, stepNextPolicy, stepOldAside, stepNextName, stepEnd}
		if !slices.Equal(steps, want) {
			t.Errorf("steps %v, want %v", steps, want)
		}
		if down := res.StartedAt.Sub(res.StoppedAt); down < 0 || down > time.Second {
			t.Errorf("down for %s between the end of the old and the start of the new", down)
		}
		if again, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil || again.Outcome != Replaced {
			t.Errorf("asked again: %+v %v", again, err)
		}
		if out := r.settled(rep, "replace"); out != Replaced {
			t.Error(out)
		}
		// After the replace nothing but the id and the image differs in the policy.
		_, next := r.e.raw(nodeName)
		if policyFrom(next) != (Policy{Name: "always"}) {
			t.Errorf("policy %+v", policyFrom(next))
		}
		back, err := r.w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1", ExpectAsideID: rep.OldID}, nil)
		if err != nil || back.Outcome != PutBack {
			t.Fatalf("%+v %v", back, err)
		}
		if out := r.settled(rep, "put back"); out != PutBack {
			t.Error(out)
		}
	})
}

// TestSweepPutBack lets every fault strike at every request of a put-back.
func TestSweepPutBack(t *testing.T) {
	for i, f := range faults {
		for n := 1 + i%sample(); n < 100; n += sample() {
			struck := false
			dir := tempDir(t)
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, dir)
				defer r.end()
				r.connect(claim1)
				rep := r.stage()
				if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
					t.Fatal(err)
				}
				r.e.mu.Lock()
				r.e.count = true
				r.e.hook = func(i int, when string) hookResult {
					if i == n && when == f.when && !struck {
						struck = true
						return f.hit(r)
					}
					return hookResult{}
				}
				r.e.mu.Unlock()
				_, _ = r.w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1"}, nil)
				time.Sleep(20 * time.Minute)
				r.client.Close()
				time.Sleep(time.Minute)
				r.quiet()
				if f.later {
					r.e.mu.Lock()
					r.e.hook = nil
					r.e.mu.Unlock()
					r.connect(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
					if _, err := r.w.TakeFence(r.ctx); err != nil {
						t.Error(err)
					}
				}
				r.settled(rep, fmt.Sprintf("put-back, request %d, %s", n, f.name))
			})
			if !struck || t.Failed() {
				break
			}
		}
	}
}

// TestSweepNextContact lets both processes die at every change of a replace, and
// then every fault strike while the next contact settles, at every fifth request
// of it and each time at others. Where the fault leaves nobody who could go on,
// the contact after that does.
func TestSweepNextContact(t *testing.T) {
	var both []fault
	for _, f := range faults {
		if f.later {
			both = append(both, f)
		}
	}
	far, of := 5, []play{plays[0], plays[1], plays[3]}
	if testing.Short() {
		far, of = 11, []play{plays[0], plays[3]}
	}
	for _, p := range of {
		t.Run(p.name, func(t *testing.T) {
			at := changesOf(t, p)
			for i, f := range faults {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					hits := 0
					for k := i % min(sample(), 3); k < len(at); k += min(sample(), 3) {
						for m := 1 + (i+k)%far; ; m += far {
							if !nextContact(t, tempDir(t), p, both[(i+k)%len(both)], at[k], f, m) || t.Failed() {
								break
							}
							hits++
						}
					}
					if hits == 0 {
						t.Error("never struck")
					}
				})
			}
		})
	}
}

// changesOf finds the engine requests of a replace that change something.
func changesOf(t *testing.T, p play) (at []int) {
	dir := tempDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stageFor(p)
		r.strike(fault{}, 0)
		if res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil || res.Outcome != p.want {
			t.Errorf("%+v %v", res, err)
		}
		for i, c := range r.e.counted {
			if strings.HasPrefix(c, "POST") {
				at = append(at, i+1)
			}
		}
	})
	if len(at) < 4 { // of one that is held: stop, policy, start, the failed one's name
		t.Fatalf("only %d changes", len(at))
	}
	return at
}

func nextContact(t *testing.T, dir string, p play, first fault, n int, f fault, m int) (struck bool) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dir)
		defer r.end()
		r.connect(claim1)
		rep := r.stageFor(p)
		hit := r.strike(first, n)
		_, _ = r.w.Replace(r.ctx, replaceRequest(rep), nil)
		time.Sleep(time.Minute)
		r.client.Close()
		if !*hit {
			t.Fatalf("%s at %d did not strike", first.name, n)
		}
		r.connect(Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8})
		hit = r.strike(f, m)
		_, err := r.w.TakeFence(r.ctx)
		what := fmt.Sprintf("replace: %s at %d, then %s at %d", first.name, n, f.name, m)
		time.Sleep(20 * time.Minute)
		r.client.Close()
		time.Sleep(time.Minute)
		r.quiet()
		r.e.mu.Lock()
		r.e.hook = nil
		r.e.mu.Unlock()
		struck = *hit
		if !struck && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		// Until its first look at both containers, a contact waits for it 30 s only and says so.
		if left, lerr := newOps(r.cfg).anyOpen(); lerr != nil || struck && f.later || left && m <= 4 && strings.Contains(f.name, "five minutes") {
			r.connect(Claim{Fleet: "f", Store: "s", Owner: "cyd", Operation: "roll-3", Epoch: 9})
			if _, err = r.w.TakeFence(r.ctx); err != nil || lerr != nil {
				t.Errorf("%s: the contact after that: %v %v", what, err, lerr)
			}
		}
		if out := r.settled(rep, what); slices.Contains(p.never, out) {
			t.Errorf("%s: %s", what, out)
		}
		r.closed(what)
	})
	return struck
}
