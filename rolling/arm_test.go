package rolling_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// armed runs fn in an operation whose plan arms a halt height on every node.
func (t *tool) armed(height string, fn func(context.Context, *rolling.Session, *rolling.Runner) error) error {
	spec := t.spec("")
	spec.Arm = &rolling.Arming{OneShot: []host.EnvVar{{Name: host.VarHaltHeight, Value: height}}, Policy: host.Policy{Name: "on-failure"}}
	plan, err := t.look(t.Ctx, spec)
	if err != nil {
		return err
	}
	t.plan = plan
	raw, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return t.Ops().Begin(t.Ctx, journal.Spec{Kind: "arm", Plan: raw, PlanDigest: plan.Digest()}, func(ctx context.Context, s *rolling.Session) error {
		return fn(ctx, s, s.Runner(plan))
	})
}

func policyOf(w *world, c engine.Summary) string { return c.RestartPolicy }

// TestArmAndDisarm: each node is recreated with the variable and the policy of an
// armed one, one by one, and its old container stays; disarming brings that back,
// and a process that is asked again goes on from what is there.
func TestArmAndDisarm(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		down := w.watchDown()
		before := map[string]map[string]any{}
		for _, id := range w.IDs() {
			before[id] = w.inspect(id)
		}
		tool := w.tool()
		began := w.heights()["001"]
		err := tool.armed("4000000", func(ctx context.Context, s *rolling.Session, r *rolling.Runner) error {
			nodes, err := r.Arm(ctx)
			if err != nil {
				return s.Stop(ctx, err)
			}
			took := w.heights()["001"] - began
			t.Logf("%d blocks a node", took/4)
			if took > 4*rolling.ExpectedNode {
				t.Errorf("arming took %d blocks a node, %d are reckoned with", took/4, rolling.ExpectedNode)
			}
			for _, n := range nodes {
				if n.Outcome != rolling.NodeRolled || verdict(n, "M3") != "pass" || verdict(n, "M4") != "skipped" {
					t.Errorf("%+v", n)
				}
			}
			for _, id := range w.IDs() {
				run := w.Running(id)
				if len(run) != 1 || len(w.Nodes(id)) != 2 || policyOf(w, run[0]) != "on-failure" || !slices.Contains(run[0].Env, "QNET_HALT_HEIGHT=4000000") {
					t.Errorf("%s: %s", id, rollingtest.Names(w.Nodes(id)))
				}
			}
			if again, err := r.Arm(ctx); err != nil || again[0].Outcome != rolling.NodeRolled {
				t.Errorf("asked again: %+v %v", again, err)
			}
			if _, err := r.Disarm(ctx); err != nil {
				return s.Stop(ctx, err)
			}
			return s.Finish(ctx, journal.Aborted, "disarmed")
		})
		if err != nil {
			t.Fatal(err)
		}
		if down.worst != 1 {
			t.Errorf("%d down at once", down.worst)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v1")
			after := w.inspect(id)
			if after["Id"] != before[id]["Id"] || after["HostConfig"].(map[string]any)["RestartPolicy"].(map[string]any)["Name"] != "always" {
				t.Errorf("%s is not the container it was before", id)
			}
		}
		w.healthy("v1")
		w.Clean()
	})
}

// TestArmStopsWhereTheTurnRefuses: what is asked last before a node is stopped
// leaves that node and all after it untouched.
func TestArmStopsWhereTheTurnRefuses(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		late := errors.New("too late")
		err := tool.armed("4000000", func(ctx context.Context, s *rolling.Session, r *rolling.Runner) error {
			r.Turn = func(_ context.Context, p rolling.NodePlan) error {
				if p.ID == "002" {
					return late
				}
				return nil
			}
			_, err := r.Arm(ctx)
			var stopped *rolling.StoppedError
			if !errors.As(err, &stopped) || !errors.Is(err, late) || stopped.Node != "002" {
				t.Errorf("got %v", err)
			}
			if _, err := r.Disarm(ctx); err != nil {
				return s.Stop(ctx, err)
			}
			return s.Finish(ctx, journal.Aborted, "disarmed")
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range w.IDs() {
			w.runs(id, "v1")
		}
		w.Clean()
	})
}
