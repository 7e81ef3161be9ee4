package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// replaceAgain stages a successor anew and replaces by it without a way back, under names of its own. bad: it cannot start.
func (r *rig) replaceAgain(n int, bad bool) (StageReport, ReplaceResult) {
	r.t.Helper()
	rep := r.stage()
	if bad {
		r.e.mu.Lock()
		r.e.cs[rep.NextID].startErr = "port is already allocated"
		r.e.mu.Unlock()
	}
	req := replaceRequest(rep)
	req.NoPutBack, req.AsideName, req.FailedName = true, fmt.Sprint(nodeName, "-pre-", n), fmt.Sprint(nodeName, "-failed-", n)
	res, err := r.w.Replace(r.ctx, req, nil)
	if want := map[bool]Outcome{true: Held, false: Replaced}[bad]; err != nil || res.Outcome != want {
		r.t.Fatalf("replace %d: %+v %v", n, res, err)
	}
	return rep, res
}

// TestHeldTwiceKeepsThePolicy: a container that was held, once or again, has restart policy `no` from that alone: the successor
// that starts at last gets the policy from before. One that never had another keeps `no`.
func TestHeldTwiceKeepsThePolicy(t *testing.T) {
	for _, policy := range []Policy{always, {Name: "on-failure", MaximumRetryCount: 3}, {Name: "no"}} {
		t.Run(policy.Name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.e.mu.Lock()
				r.e.find(nodeName).host["RestartPolicy"] = object{"Name": policy.Name, "MaximumRetryCount": float64(policy.MaximumRetryCount)}
				r.e.mu.Unlock()
				for n := range 2 {
					rep, _ := r.replaceAgain(n, true)
					if p := policyFrom(mustObjOf(r, rep.OldID)); p.Name != "no" {
						t.Errorf("held with policy %+v", p)
					}
				}
				rep, _ := r.replaceAgain(2, false)
				if p := policyFrom(mustObjOf(r, rep.NextID)); p != policy {
					t.Errorf("the successor has policy %+v, want %+v", p, policy)
				}
			})
		})
	}
}

// TestHeldInACutOverKeepsThePolicy: a cut-over takes the policy of the node before it replaces its container, and names the one
// that the successor is to have. The next replace of a node that was held in it gives that, where it names none.
func TestHeldInACutOverKeepsThePolicy(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		state := StateRequest{Container: nodeName, ExpectID: rep.OldID, Policy: &Policy{Name: "no"}, State: StateStopped}
		if _, err := r.w.State(r.ctx, state, nil); err != nil {
			t.Fatal(err)
		}
		rep = r.stage()
		r.e.mu.Lock()
		r.e.cs[rep.NextID].startErr = "port is already allocated"
		r.e.mu.Unlock()
		req := replaceRequest(rep)
		req.NoPutBack, req.NextPolicy = true, &always
		if res, err := r.w.Replace(r.ctx, req, nil); err != nil || res.Outcome != Held {
			t.Fatalf("%+v %v", res, err)
		}
		r.replaceAgain(2, true)
		rep, _ = r.replaceAgain(3, false)
		if p := policyFrom(mustObjOf(r, rep.NextID)); p != always {
			t.Errorf("the successor has policy %+v", p)
		}
	})
}

// TestFactsNameAHeldNode: that the container of the node's name is one that was held is read from the host's log, whatever stands
// beside it: neither that its successor is gone nor that an older container is aside changes it.
func TestFactsNameAHeldNode(t *testing.T) {
	bubble(t, func(r *rig) {
		held := func(when string, want bool) {
			t.Helper()
			f, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName})
			if err != nil || f.Container == nil || f.Held != want {
				t.Errorf("%s: %+v, held %v, want %v (%v)", when, f.Container, f.Held, want, err)
			}
		}
		held("at first", false)
		first, _ := r.replaceAgain(1, false)
		held("replaced", false)
		rep, _ := r.replaceAgain(2, true)
		if rep.OldID != first.NextID {
			t.Fatalf("%s was replaced, want %s", rep.OldID, first.NextID)
		}
		held("beside an older one", true)
		r.e.mu.Lock()
		delete(r.e.cs, rep.NextID)
		r.e.cs[rep.OldID].startErr = "cgroup: no space left"
		r.e.mu.Unlock()
		held("its successor is gone", true)
		back := PutBackRequest{Container: nodeName, AsideName: nodeName + "-pre-held", FailedName: nodeName + "-failed-3"}
		if res, err := r.w.PutBack(r.ctx, back, nil); err != nil || res.Outcome != InDoubt {
			t.Fatalf("%+v %v", res, err)
		}
		held("a put-back could not start it", true)
		r.e.mu.Lock()
		r.e.cs[rep.OldID].startErr = ""
		r.e.mu.Unlock()
		// Another operation does it: it knows that from the log of the first.
		r.client.Close()
		r.connect(bob)
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		if res, err := r.w.PutBack(r.ctx, back, nil); err == nil && res.Outcome != PutBack {
			t.Errorf("%+v", res)
		}
		res, err := r.client.Situation(r.ctx, nodeName, claim1.Operation)
		if err != nil {
			t.Fatal(err)
		}
		// It is down since it ended itself, and up since it was started.
		end := res.Entries[len(res.Entries)-1].Result
		if c := r.e.cs[rep.OldID]; end == nil || !end.StartedAt.Equal(c.started) || !end.StoppedAt.Equal(c.finished) {
			t.Errorf("%+v, ended %s, started %s", end, c.finished, c.started)
		}
		if c := r.e.cs[rep.OldID]; c.status != "running" || c.name != nodeName || policyFrom(r.e.view(c)) != always {
			t.Errorf("%s is %s", c.name, c.status)
		}
		held("put back", false)
	})
}

// TestStateKeepsSecretsOut: a runtime that refuses a start may quote what it was given; neither the log, nor the events, nor the
// error show it.
func TestStateKeepsSecretsOut(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		r.e.mu.Lock()
		c := r.e.find(nodeName)
		c.startErr = "OCI runtime create failed: bad variable QNET_WALLET_SEED=sentinel words here: refused"
		r.e.mu.Unlock()
		req := StateRequest{Container: nodeName, ExpectID: c.id, State: StateStopped}
		if _, err := r.w.State(r.ctx, req, nil); err != nil {
			t.Fatal(err)
		}
		var said []string
		req.State = StateRunning
		_, err := r.w.State(r.ctx, req, func(e TxEvent) { said = append(said, e.Step+" "+e.State+" "+e.Text) })
		if err == nil {
			t.Fatal("it started")
		}
		said = append(said, err.Error())
		logs, globErr := filepath.Glob(filepath.Join(r.dir, "var/lib/qnetops", txDir, "*"))
		if globErr != nil || len(logs) == 0 {
			t.Fatalf("no logs: %v", globErr)
		}
		for _, name := range logs {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, string(b))
		}
		for _, s := range said {
			if strings.Contains(s, "sentinel") {
				t.Errorf("it shows a secret: %s", s)
			}
		}
		if all := strings.Join(said, "\n"); strings.Count(all, "OCI runtime create failed") < 3 {
			t.Errorf("the engine's reason is not in all of them:\n%s", all)
		}
	})
}

// TestHeldByTheNewest: the newest transaction of a container says whether it is held, also among several in one log; a put-back
// that did not get to its end leaves it held.
func TestHeldByTheNewest(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tx := func(name, old string, end Outcome) (l []TxEntry) {
		at = at.Add(time.Second)
		l = append(l, TxEntry{At: at, Tx: name, Step: stepBegin, Spec: &TxSpec{OldID: old, NextID: "next"}})
		if end != "" {
			l = append(l, TxEntry{At: at, Tx: name, Step: stepEnd, Outcome: end})
		}
		return l
	}
	for _, c := range []struct {
		name string
		txs  [][]TxEntry
		want bool
	}{
		{"held", [][]TxEntry{tx(txReplace, "b", Held)}, true},
		{"another one was", [][]TxEntry{tx(txReplace, "c", Held)}, false},
		{"replaced since", [][]TxEntry{tx(txReplace, "b", Held), tx(txReplace, "b", Replaced)}, false},
		{"held again", [][]TxEntry{tx(txReplace, "b", Held), tx(txReplace, "b", Held)}, true},
		{"put back since", [][]TxEntry{tx(txReplace, "b", Held), tx(txPutBack, "b", PutBack)}, false},
		{"put-back in doubt", [][]TxEntry{tx(txReplace, "b", Held), tx(txPutBack, "b", InDoubt)}, true},
		{"put-back cut short", [][]TxEntry{tx(txReplace, "b", Held), tx(txPutBack, "b", "")}, true},
		{"a put-back of one that was set aside", [][]TxEntry{tx(txReplace, "b", Replaced), tx(txPutBack, "b", InDoubt)}, false},
		{"under way", [][]TxEntry{tx(txReplace, "b", "")}, false},
	} {
		var one []TxEntry
		for _, l := range c.txs {
			one = append(one, l...)
		}
		for where, logs := range map[string][][]TxEntry{"in one log": {one}, "in logs of their own": c.txs} {
			if got := heldSpec(logs, "b") != nil; got != c.want {
				t.Errorf("%s, %s: held %v, want %v", c.name, where, got, c.want)
			}
		}
	}
}
