package host

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestArmedIsLetThrough: a cut-over arms its own variables, with values the node
// understands, and no others; one that the old container carried is replaced.
func TestArmedIsLetThrough(t *testing.T) {
	x := try(t, `{"Env":["QNET_HALT_HEIGHT=9"]}`)
	for name, c := range map[string]struct {
		v  EnvVar
		ok bool
	}{
		"halt height":        {EnvVar{VarHaltHeight, "4200"}, true},
		"rollback to height": {EnvVar{VarRollbackToHeight, "4200"}, true},
		"rollback to sealed": {EnvVar{VarRollbackToSealed, "1"}, true},
		"sealed, other word": {EnvVar{VarRollbackToSealed, "yes"}, false},
		"not a number":       {EnvVar{VarHaltHeight, "4_200"}, false},
		"signed":             {EnvVar{VarHaltHeight, "+5"}, false},
		"zero":               {EnvVar{VarHaltHeight, "0"}, false},
		"empty":              {EnvVar{VarHaltHeight, ""}, false},
		"wipes the data":     {EnvVar{"QNET_CLEAN_DATA", "1"}, false},
		"resets the height":  {EnvVar{"QNET_FORCE_RESET", "1"}, false},
		"ordinary":           {EnvVar{"QNET_ARCHIVE", "1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := BuildCreate(x.old, json.RawMessage(oldImageJSON), json.RawMessage(newImageJSON), CarryOptions{Image: imgNew, OneShot: []EnvVar{c.v}})
			if (err == nil) != c.ok {
				t.Fatalf("error %v, want let through: %v", err, c.ok)
			}
			if !c.ok {
				return
			}
			env := texts(obj(t, string(got.Body)), "Env")
			if !slices.Contains(env, c.v.Name+"="+c.v.Value) || slices.Contains(env, "QNET_HALT_HEIGHT=9") {
				t.Errorf("environment %q", env)
			}
			if !slices.Equal(names(got.Report.Set, "Env"), []string{c.v.Name}) {
				t.Errorf("set %v", got.Report.Set)
			}
		})
	}
}

// TestPolicyOfTheSuccessor: a successor can get a policy of its own, and the old
// container still comes back with the one it had.
func TestPolicyOfTheSuccessor(t *testing.T) {
	bubble(t, func(r *rig) {
		rep := r.stage()
		req := replaceRequest(rep)
		req.NextPolicy = &Policy{Name: "on-failure"}
		res, err := r.w.Replace(r.ctx, req, nil)
		if err != nil || res.Outcome != Replaced {
			t.Fatalf("%+v %v", res, err)
		}
		if p := policyFrom(mustObjOf(r, rep.NextID)); p != *req.NextPolicy {
			t.Errorf("policy of the successor %+v", p)
		}
		back, err := r.w.PutBack(r.ctx, PutBackRequest{Container: nodeName, AsideName: req.AsideName, FailedName: req.FailedName}, nil)
		if err != nil || back.Outcome != PutBack {
			t.Fatalf("%+v %v", back, err)
		}
		if p := policyFrom(mustObjOf(r, rep.OldID)); p != always {
			t.Errorf("policy of the old container %+v", p)
		}
		req.NextPolicy = &Policy{Name: "sometimes"}
		if _, err := r.w.Replace(r.ctx, req, nil); !isCode(err, CodeBadRequest) {
			t.Errorf("an unknown policy: %v", err)
		}
	})
}

func mustObjOf(r *rig, id string) object {
	_, o := r.e.raw(id)
	return o
}

// TestState: policy, stop and start by looking first; a repeat does nothing, and
// a start beside another container on the data is refused.
func TestState(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := r.w.TakeFence(r.ctx); err != nil {
			t.Fatal(err)
		}
		facts, err := r.client.Facts(r.ctx, FactsRequest{Container: nodeName})
		if err != nil {
			t.Fatal(err)
		}
		id := facts.Container.ID
		no := &Policy{Name: "no"}
		for _, c := range []struct {
			name, state, policy string
			req                 StateRequest
			steps               string
		}{
			{"nothing asked", "running", "always", StateRequest{}, ""},
			{"stopped for good", "exited", "no", StateRequest{Policy: no, State: StateStopped}, "policy intent policy done stop intent stop done"},
			{"asked again", "exited", "no", StateRequest{Policy: no, State: StateStopped}, ""},
			{"started", "running", "no", StateRequest{State: StateRunning}, "start intent start done"},
			{"policy alone", "running", "always", StateRequest{Policy: &always}, "policy intent policy done"},
		} {
			var steps []string
			c.req.Container, c.req.ExpectID = nodeName, id
			got, err := r.w.State(r.ctx, c.req, func(e TxEvent) { steps = append(steps, e.Step+" "+e.State) })
			if err != nil || got.State != c.state || got.RestartPolicy != c.policy || strings.Join(steps, " ") != c.steps {
				t.Errorf("%s: %s, policy %s, steps %q, %v", c.name, got.State, got.RestartPolicy, steps, err)
			}
		}
		if _, err := r.w.State(r.ctx, StateRequest{Container: nodeName, ExpectID: "other", State: StateStopped}, nil); !isCode(err, CodeChanged) {
			t.Errorf("another container: %v", err)
		}
		if _, err := r.w.State(r.ctx, StateRequest{Container: nodeName, ExpectID: id, State: "paused"}, nil); !isCode(err, CodeBadRequest) {
			t.Errorf("an unknown state: %v", err)
		}
		if _, err := r.w.State(r.ctx, StateRequest{Container: nodeName, ExpectID: id, State: StateStopped}, nil); err != nil {
			t.Fatal(err)
		}
		r.e.mu.Lock()
		third, msg := r.e.make("third", mustObj(`{"Image":"`+imgOld+`","HostConfig":{}}`))
		if msg != "" {
			r.e.mu.Unlock()
			t.Fatal(msg)
		}
		third.mounts = []any{object{"Type": "bind", "Source": "/srv/qnet", "Destination": "/x", "RW": true}}
		third.status = "running"
		r.e.mu.Unlock()
		if _, err := r.w.State(r.ctx, StateRequest{Container: nodeName, ExpectID: id, State: StateRunning}, nil); !isCode(err, CodeConflict) {
			t.Errorf("a start beside another container: %v", err)
		}
	})
}
