package host

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var bob = Claim{Fleet: "f", Store: "s", Owner: "bob", Operation: "roll-2", Epoch: 8}

func putBackRequest() PutBackRequest {
	return PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-1", FailedName: nodeName + "-failed-1"}
}

// refusing makes the engine refuse to start both containers, or lets it recover.
func (r *rig) refusing(rep StageReport, why string) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.e.cs[rep.OldID].startErr, r.e.cs[rep.NextID].startErr = why, why
}

// doubtful has a replace end in doubt: the engine starts nothing.
func (r *rig) doubtful() StageReport {
	r.t.Helper()
	rep := r.stage()
	r.refusing(rep, "cgroup: no space left")
	res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
	if err != nil || res.Outcome != InDoubt || res.Reason == "" {
		r.t.Fatalf("%+v %v", res, err)
	}
	return rep
}

// TestInDoubtIsTakenUpAgain: an engine that started nothing recovers, and
// whichever request comes next brings the node to exactly one container.
func TestInDoubtIsTakenUpAgain(t *testing.T) {
	for name, next := range map[string]func(*rig, StageReport) (Outcome, error){
		"replace": func(r *rig, rep StageReport) (Outcome, error) {
			res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
			return res.Outcome, err
		},
		"put back": func(r *rig, rep StageReport) (Outcome, error) {
			res, err := r.w.PutBack(r.ctx, putBackRequest(), nil)
			return res.Outcome, err
		},
		"take fence": func(r *rig, rep StageReport) (Outcome, error) {
			r.client.Close()
			r.connect(bob)
			_, err := r.w.TakeFence(r.ctx)
			return PutBack, err
		},
	} {
		bubble(t, func(r *rig) {
			rep := r.doubtful()
			if again, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil || again.Outcome != InDoubt {
				t.Errorf("%s: while the engine still refuses: %+v %v", name, again, err)
			}
			r.refusing(rep, "")
			out, err := next(r, rep)
			if err != nil || out != PutBack || r.settled(rep, name) != PutBack {
				t.Errorf("%s: %s %v", name, out, err)
			}
			s, err := r.client.Situation(r.ctx, nodeName, "roll-1")
			if err != nil || s.Unsettled || s.Entries[len(s.Entries)-1].Outcome != PutBack || !strings.Contains(s.Entries[len(s.Entries)-1].Text, "could not be started") {
				t.Errorf("%s: %+v %v", name, s.Entries, err)
			}
		})
	}
}

func TestPutBackInDoubtIsTakenUpAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		if _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil {
			t.Fatal(err)
		}
		r.refusing(rep, "no")
		for range 2 {
			if res, err := r.w.PutBack(r.ctx, putBackRequest(), nil); err != nil || res.Outcome != InDoubt {
				t.Fatalf("%+v %v", res, err)
			}
		}
		r.refusing(rep, "")
		for range 2 { // and told again, when the answer was lost
			if res, err := r.w.PutBack(r.ctx, putBackRequest(), nil); err != nil || res.Outcome != PutBack {
				t.Errorf("%+v %v", res, err)
			}
		}
		if out := r.settled(rep, "put back again"); out != PutBack {
			t.Error(out)
		}
	})
}

// TestInDoubtPutRightByHandIsLeftAlone: what a person has done about a doubt is
// not undone by the next contact.
func TestInDoubtPutRightByHandIsLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		hand func(e *fakeEngine, old, next *fakeContainer) (runs *fakeContainer)
		want Outcome // of the replace asked for again; "": refused as changed
	}{
		"the successor runs in its place": {func(e *fakeEngine, old, next *fakeContainer) *fakeContainer {
			old.name, next.name = nodeName+"-pre-1", nodeName
			next.host["RestartPolicy"] = object{"Name": "always"}
			old.host["RestartPolicy"] = object{"Name": "no"}
			e.run(next)
			return next
		}, Replaced},
		"the old one runs": {func(e *fakeEngine, old, next *fakeContainer) *fakeContainer {
			old.name, old.host["RestartPolicy"] = nodeName, object{"Name": "unless-stopped"}
			e.run(old)
			return old
		}, PutBack},
		"a third container bears the name": {func(e *fakeEngine, old, next *fakeContainer) *fakeContainer {
			old.name = "kept"
			c, msg := e.make(nodeName, mustObj(`{"Image":"`+imgOld+`","HostConfig":{"NetworkMode":"default","Binds":["/srv/qnet:/app/data"]}}`))
			if msg != "" {
				panic(msg)
			}
			e.run(c)
			return c
		}, ""},
		"a third container runs on the data": {func(e *fakeEngine, old, next *fakeContainer) *fakeContainer {
			c, msg := e.make("mine", mustObj(`{"Image":"`+imgOld+`","HostConfig":{"NetworkMode":"default","Binds":["/srv/qnet:/app/data"]}}`))
			if msg != "" {
				panic(msg)
			}
			e.run(c)
			return c
		}, ""},
	} {
		bubble(t, func(r *rig) {
			rep := r.doubtful()
			r.refusing(rep, "")
			r.e.mu.Lock()
			runs := c.hand(r.e, r.e.cs[rep.OldID], r.e.cs[rep.NextID])
			r.e.count = true
			r.e.mu.Unlock()
			if _, err := r.client.Writer(claim1).TakeFence(r.ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if i := slices.IndexFunc(r.e.counted, func(s string) bool { return strings.HasPrefix(s, "POST") }); i >= 0 {
				t.Errorf("%s: a contact changed something: %s", name, r.e.counted[i])
			}
			res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
			if c.want == "" && !isCode(err, CodeChanged) && !isCode(err, CodeConflict) || c.want != "" && (err != nil || res.Outcome != c.want) {
				t.Errorf("%s: asked again: %+v %v", name, res, err)
			}
			if runs.status != "running" || len(r.e.violate) > 0 {
				t.Errorf("%s: %s %v", name, runs.status, r.e.violate)
			}
			if c.want != "" {
				r.settled(rep, name)
			}
		})
	}
}

// TestOlderDoubtDoesNotCount: what came after a transaction in doubt has taken its place.
func TestOlderDoubtDoesNotCount(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC) }
	log := func(op string, s int, end Outcome) []TxEntry {
		l := []TxEntry{{At: at(s), Operation: op, Tx: txReplace, Step: stepBegin, Spec: &TxSpec{Name: "node"}}}
		if end != "" {
			l = append(l, TxEntry{At: at(s), Tx: txReplace, Step: stepEnd, Outcome: end})
		}
		return l
	}
	for _, c := range []struct {
		name string
		logs [][]TxEntry
		want int
	}{
		{"alone", [][]TxEntry{log("a", 1, InDoubt)}, 1},
		{"newest", [][]TxEntry{log("a", 3, InDoubt), log("b", 1, Replaced)}, 1},
		{"replaced since", [][]TxEntry{log("a", 1, InDoubt), log("b", 2, Replaced)}, 0},
		{"held since", [][]TxEntry{log("a", 2, Held), log("b", 1, InDoubt)}, 0},
		{"another one is open, whatever the clock said", [][]TxEntry{log("a", 5, InDoubt), log("b", 1, "")}, 0},
		{"open one first", [][]TxEntry{log("a", 1, ""), log("b", 5, InDoubt)}, 0},
	} {
		if got := doubts(c.logs); len(got) != c.want {
			t.Errorf("%s: %d", c.name, len(got))
		}
	}
}

// oneShotBad stages a successor that cannot start for a container that must not
// start again.
func (r *rig) oneShotBad() StageReport { return r.stageFor(plays[3]) }

func TestHeldOneShotIsNotStartedAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.oneShotBad()
		r.e.count = true
		for range 2 {
			res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
			if err != nil || res.Outcome != Held || !strings.Contains(res.Reason, "QNET_ROLLBACK_TO_HEIGHT") || !strings.Contains(res.Reason, "could not be started") {
				t.Fatalf("%+v %v", res, err)
			}
			if res.StoppedAt.IsZero() || !res.StartedAt.IsZero() {
				t.Errorf("stopped %s, started %s", res.StoppedAt, res.StartedAt)
			}
		}
		if out := r.settled(rep, "held"); out != Held {
			t.Error(out)
		}
		s, err := r.client.Situation(r.ctx, nodeName, "roll-1")
		if err != nil || s.Unsettled || s.Aside != nil || s.Current.ID != rep.OldID || s.Failed.ID != rep.NextID || s.Current.RestartPolicy != "no" {
			t.Errorf("%+v %v", s, err)
		}
		// It stays so, for the next contact and for a daemon that restarts.
		r.e.restartDaemon(time.Second)
		time.Sleep(time.Minute)
		w := r.client.Writer(bob)
		if _, err := w.TakeFence(r.ctx); err != nil {
			t.Error(err)
		}
		if out := r.settled(rep, "after the next contact"); out != Held {
			t.Error(out)
		}
		_, err = w.PutBack(r.ctx, putBackRequest(), nil)
		var e *Error
		if !errors.Is(err, ErrOneShot) || !errors.As(err, &e) || e.Code != "one_shot" || !strings.Contains(e.Hint(), "QNET_ROLLBACK_TO_HEIGHT") {
			t.Errorf("put back unasked: %v", err)
		}
		if out := r.settled(rep, "refused"); out != Held {
			t.Error(out)
		}
		r.e.mu.Lock()
		r.e.counted = nil // from here on the start is asked for
		r.e.count = false
		r.e.mu.Unlock()
		req := putBackRequest()
		req.AllowOneShot = true
		res, err := w.PutBack(r.ctx, req, nil)
		if err != nil || res.Outcome != PutBack || r.settled(rep, "put back") != PutBack {
			t.Errorf("%+v %v", res, err)
		}
	})
}

// TestHeldWhereAsked: NoPutBack holds whatever the old container carries, and a
// put-back that is asked for by itself may start it.
func TestHeldWhereAsked(t *testing.T) {
	for _, failed := range []string{"-failed-1", "-failed-2"} {
		bubble(t, func(r *rig) {
			rep := r.stageFor(plays[1])
			req := replaceRequest(rep)
			req.NoPutBack = true
			res, err := r.w.Replace(r.ctx, req, nil)
			old, next := r.e.cs[rep.OldID], r.e.cs[rep.NextID]
			if err != nil || res.Outcome != Held || old.status != "exited" || old.name != nodeName || next.name != nodeName+"-failed-1" {
				t.Fatalf("%+v %v; old %s %s, successor %s", res, err, old.name, old.status, next.name)
			}
			for _, c := range []*fakeContainer{old, next} {
				if policyFrom(r.e.view(c)).Name != "no" {
					t.Errorf("%s may be revived", c.name)
				}
			}
			back := putBackRequest()
			back.FailedName = nodeName + failed
			res, err = r.w.PutBack(r.ctx, back, nil)
			if err != nil || res.Outcome != PutBack || next.name != back.FailedName {
				t.Errorf("%+v %v, successor %s", res, err, next.name)
			}
			// The successor never ran: the node is down since the old container ended.
			if !res.StoppedAt.Equal(old.finished) || !res.StartedAt.Equal(old.started) {
				t.Errorf("down from %s to %s, it ended %s and was started %s", res.StoppedAt, res.StartedAt, old.finished, old.started)
			}
			if old.status != "running" || old.name != nodeName || policyFrom(r.e.view(old)) != always {
				t.Errorf("old %s %s", old.name, old.status)
			}
		})
	}
}

// TestHeldIsOnOneContainer: the engine dies right after the old container was set aside, and with it the successor, which nothing
// starts again (seed 164). Whoever ends the replace, the agent, its guardian or a later contact, leaves the old container under the
// node's name, stopped, with policy `no`, also for an engine that restarts; the successor can be staged and tried once more.
func TestHeldIsOnOneContainer(t *testing.T) {
	dies := func(r *rig) hookResult { r.e.restartDaemon(3 * time.Second); return hookResult{drop: true} }
	for name, f := range map[string]fault{
		"agent":         {"", "after", dies, false},
		"guardian":      {"", "after", func(r *rig) hookResult { r.killA(); return dies(r) }, false},
		"later contact": {"", "after", func(r *rig) hookResult { r.killA(); r.killGuards(); return dies(r) }, true},
	} {
		bubble(t, func(r *rig) {
			rep := r.stageFor(plays[0])
			req := replaceRequest(rep)
			req.NoPutBack, req.NextPolicy = true, &Policy{Name: "no"}
			struck := r.strikeAt(f, "/"+rep.OldID+"/rename")
			_, _ = r.w.Replace(r.ctx, req, nil)
			time.Sleep(20 * time.Minute)
			r.client.Close()
			if f.later {
				r.connect(bob)
				if _, err := r.w.TakeFence(r.ctx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				r.client.Close()
			}
			time.Sleep(time.Minute)
			for _, when := range []string{"in the end", "after the engine restarted"} {
				old, next := r.e.cs[rep.OldID], r.e.cs[rep.NextID]
				if !*struck || old.name != nodeName || old.status != "exited" || policyFrom(r.e.view(old)).Name != "no" ||
					next.name != req.FailedName || next.status == "running" || policyFrom(r.e.view(next)).Name != "no" {
					t.Errorf("%s, %s: struck %v, old %s %s, successor %s %s", name, when, *struck, old.name, old.status, next.name, next.status)
				}
				r.e.restartDaemon(time.Second)
				time.Sleep(time.Minute)
			}
			r.closed(name)
			r.connect(claim1)
			if f.later {
				return
			}
			rep = r.stage()
			req = replaceRequest(rep)
			req.AsideName, req.FailedName = nodeName+"-pre-2", nodeName+"-failed-2"
			if res, err := r.w.Replace(r.ctx, req, nil); err != nil || res.Outcome != Replaced {
				t.Errorf("%s: once more: %+v %v", name, res, err)
			}
		})
	}
}

// TestPutBackOfOneShotIsRefused after a replace that went well.
func TestPutBackOfOneShotIsRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stageFor(plays[2])
		if res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil || res.Outcome != Replaced {
			t.Fatalf("%+v %v", res, err)
		}
		if _, err := r.w.PutBack(r.ctx, putBackRequest(), nil); !errors.Is(err, ErrOneShot) {
			t.Errorf("%v", err)
		}
		if out := r.settled(rep, "refused"); out != Replaced {
			t.Error(out)
		}
		req := putBackRequest()
		req.AllowOneShot = true
		// In doubt half way, it is asked for again: without the word it stays down.
		r.refusing(rep, "no")
		if res, err := r.w.PutBack(r.ctx, req, nil); err != nil || res.Outcome != InDoubt {
			t.Errorf("%+v %v", res, err)
		}
		if _, err := r.w.PutBack(r.ctx, putBackRequest(), nil); !errors.Is(err, ErrOneShot) {
			t.Errorf("asked again without the word: %v", err)
		}
		r.refusing(rep, "")
		if res, err := r.w.PutBack(r.ctx, req, nil); err != nil || res.Outcome != PutBack {
			t.Errorf("%+v %v", res, err)
		}
	})
}

// TestHoldPrefersARunningSuccessor: where there is no way back, a successor that
// runs and cannot take the node's name stays up, and the next contact goes on.
func TestHoldPrefersARunningSuccessor(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stageFor(plays[2])
		r.e.mu.Lock()
		r.e.count = true
		r.e.hook = func(i int, when string) hookResult {
			r.e.mu.Lock()
			defer r.e.mu.Unlock()
			if when == "before" && strings.HasSuffix(r.e.counted[i-1], "/rename") {
				return hookResult{fail: 500}
			}
			return hookResult{}
		}
		r.e.mu.Unlock()
		res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil)
		if err != nil || res.Outcome != InDoubt || r.e.cs[rep.NextID].status != "running" || r.e.cs[rep.OldID].status != "exited" {
			t.Errorf("%+v %v", res, err)
		}
		r.e.mu.Lock()
		r.e.hook = nil
		r.e.mu.Unlock()
		if res, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); err != nil || res.Outcome != Replaced || r.settled(rep, "again") != Replaced {
			t.Errorf("%+v %v", res, err)
		}
	})
}

// TestGuardianSettlesWhatItsAgentMaySettle: the agent that settles the
// transaction of an older claim dies alone; its guardian goes on.
func TestGuardianSettlesWhatItsAgentMaySettle(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		bothDie := fault{"", "after", func(r *rig) hookResult { r.killA(); r.killGuards(); return hookResult{drop: true} }, true}
		agentDies := fault{"", "before", func(r *rig) hookResult { r.killA(); return hookResult{drop: true} }, false}
		first := r.strikeAt(bothDie, "/"+rep.OldID+"/stop")
		_, _ = r.w.Replace(r.ctx, replaceRequest(rep), nil)
		time.Sleep(time.Minute)
		r.client.Close()
		second := r.strikeAt(agentDies, "/"+rep.OldID+"/update")
		r.connect(bob)
		if _, err := r.w.TakeFence(r.ctx); err == nil {
			t.Error("a dead agent answered")
		}
		time.Sleep(time.Minute)
		if !*first || !*second {
			t.Errorf("struck %v, %v", *first, *second)
		}
		r.settled(rep, "guardian after a takeover")
		r.closed("guardian after a takeover")
	})
}

// strikeAt lets a fault hit the next engine request whose path ends so.
func (r *rig) strikeAt(f fault, path string) (struck *bool) {
	struck = new(bool)
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.e.count = true
	r.e.hook = func(i int, when string) hookResult {
		r.e.mu.Lock()
		ours := strings.HasSuffix(r.e.counted[i-1], path)
		r.e.mu.Unlock()
		if ours && when == f.when && !*struck {
			*struck = true
			return f.hit(r)
		}
		return hookResult{}
	}
	return struck
}

// TestGuardianLeavesANewerClaimAlone: the record is of neither its agent's claim
// nor the transaction's.
func TestGuardianLeavesANewerClaimAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		rec  Claim
		told Claim
		ours bool
	}{
		{"the transaction's own record", claim1, Claim{}, true},
		{"its agent took over", bob, bob, true},
		{"another took over since", Claim{Fleet: "f", Store: "s", Owner: "cyd", Operation: "roll-3", Epoch: 9}, bob, false},
		{"another took over, never told", bob, Claim{}, false},
		{"same epoch as told, another owner", Claim{Fleet: "f", Store: "s", Owner: "eve", Operation: "roll-2", Epoch: 8}, bob, false},
	} {
		bubble(t, func(r *rig) {
			rep := r.stage()
			l, err := r.cfg.openTx("roll-1", nodeName, txReplace, byAgent)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := newOps(r.cfg).beginReplace(r.ctx, replaceRequest(rep), l, 7)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(l.add(TxEntry{Step: stepBegin, State: TxDone, Spec: spec}), r.cfg.writeFence(FenceRecord{Claim: c.rec})); err != nil {
				t.Fatal(err)
			}
			l.close()
			if err := takeOver(r.ctx, r.cfg, c.told); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if settled := r.e.cs[rep.NextID].status == "running"; settled != c.ours {
				t.Errorf("%s: settled %v", c.name, settled)
			}
		})
	}
}

// TestLockFollowsItsName: a lock file that was replaced while somebody waited
// for it excludes nobody, so the waiter goes to the one that bears the name.
func TestLockFollowsItsName(t *testing.T) {
	cfg := Config{Root: tempDir(t), StateDir: "/s"}
	synctest.Test(t, func(t *testing.T) {
		first, err := cfg.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *flock, 1)
		go func() {
			l, err := cfg.lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(time.Second + lockPoll/2) // between two of its looks
		if err := os.Remove(cfg.state(lockFile)); err != nil {
			t.Fatal(err)
		}
		second, err := tryLock(cfg.state(lockFile)) // before the waiter looks again
		if err != nil || second == nil {
			t.Fatal(second, err)
		}
		first.unlock()
		time.Sleep(time.Second)
		select {
		case <-got:
			t.Fatal("two hold the lock")
		default:
		}
		second.unlock()
		time.Sleep(time.Second)
		select {
		case l := <-got:
			l.unlock()
		default:
			t.Error("a free lock was not taken")
		}
	})
}

// TestLockOfAFileThatWasReplaced: between opening and locking it, somebody put
// another file, or none, in its place.
func TestLockOfAFileThatWasReplaced(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		name := tempDir(t) + "/lock"
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if replaced {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if l, err := lockOpened(f, name); l != nil || err != nil {
			t.Errorf("replaced %v: locked a file that nobody else will look at: %v", replaced, err)
		}
		l, err := tryLock(name)
		if err != nil || l == nil {
			t.Fatalf("replaced %v: %v", replaced, err)
		}
		l.unlock()
	}
}

func TestBlotsEveryValueThatCouldBeSecret(t *testing.T) {
	image := obj(t, `{"Config":{"Env":["QNET_DATA_DIR=/app/data","MODE=default mode","QNET_API_KEY=shipped-key"]}}`)
	c := obj(t, `{"Config":{"Env":["QNET_DATA_DIR=/app/data","MODE=another mode","QNET_API_KEY=shipped-key","QNET_REGION=europe-west","QNET_OPERATOR=short","EXPLORER_DSN=postgres://u:pw@198.51.100.7/x",
	 "PORT=1234567","RATIO=-12.3456","FLAG=disabled","RUST_LOG=WARNING","PIN_CODE=1234567","QNET_PASS=abcd","MULTI=first line\nline two\nx"]}}`)
	got := secretsOf(c, image)
	want := []string{"another mode", "shipped-key", "europe-west", "postgres://u:pw@198.51.100.7/x", "1234567", "abcd", "first line\nline two\nx", "first line", "line two"}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%q is not blotted out", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("blotted out: %q", got)
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return len(b) - len(a) }) {
		t.Errorf("a shorter one first leaves the rest of a longer one: %q", got)
	}
	if without := secretsOf(c, nil); !slices.Contains(without, "/app/data") {
		t.Error("without an image nothing is public")
	}
}

func TestLastLinesBlotOrdinaryVariables(t *testing.T) {
	bubble(t, func(r *rig) {
		r.e.mu.Lock()
		c := r.e.find(nodeName)
		c.cfg["Env"] = append(list(c.cfg, "Env"), "QNET_UPSTREAM=http://u:pw@192.0.2.9/")
		c.log = "data in /app/data\nupstream http://u:pw@192.0.2.9/ is slow\n"
		r.e.mu.Unlock()
		lines, err := r.client.LastLines(r.ctx, nodeName, 5)
		if err != nil || !slices.Equal(lines, []string{"data in /app/data", "upstream *** is slow"}) {
			t.Errorf("%q %v", lines, err)
		}
		r.e.mu.Lock()
		delete(r.e.images, imgOld)
		r.e.mu.Unlock()
		lines, err = r.client.LastLines(r.ctx, nodeName, 5)
		if err != nil || !slices.Equal(lines, []string{"data in ***", "upstream *** is slow"}) {
			t.Errorf("without the image: %q %v", lines, err)
		}
	})
}

// TestMACOfAFurtherNetworkIsNamed: it is not carried, and the plan must say so.
func TestMACOfAFurtherNetworkIsNamed(t *testing.T) {
	for _, c := range []struct {
		mac, ip   string
		perPoint  bool
		ambiguous bool
	}{
		{"02:00:00:00:00:07", "198.51.100.9", true, true},
		{"02:42:c6:33:64:09", "198.51.100.9", true, false}, // made by the engine out of the address
		{"02:42:C6:33:64:09", "198.51.100.9", true, false},
		{"02:42:c6:33:64:09", "198.51.100.10", true, true},
		{"", "198.51.100.9", true, false},
		{"02:00:00:00:00:07", "198.51.100.9", false, false}, // an engine before API 1.44 took none there
	} {
		old := obj(t, `{"Id":"`+strings.Repeat("ab", 32)+`","Config":{"Cmd":["x"]},"HostConfig":{"NetworkMode":"lan1","Binds":["/srv:/app/data"]},
		 "NetworkSettings":{"Networks":{"lan1":{"MacAddress":"02:00:00:00:00:01","IPAddress":"192.0.2.2"},"lan2":{}}}}`)
		ep := sub(old, "NetworkSettings", "Networks", "lan2")
		ep["MacAddress"], ep["IPAddress"] = c.mac, c.ip
		raw, err := encode(old)
		if err != nil {
			t.Fatal(err)
		}
		cr, err := BuildCreate(raw, []byte(oldImageJSON), []byte(newImageJSON), CarryOptions{Image: imgNew, MACInEndpoint: c.perPoint})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, it := range cr.Report.Ambiguous {
			if it.Field == "MacAddress" {
				got = append(got, it.Name)
			}
		}
		if (len(got) == 1 && got[0] == "lan2") != c.ambiguous || len(got) > 1 {
			t.Errorf("%+v: ambiguous %q", c, got)
		}
	}
}
