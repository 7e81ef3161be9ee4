package rolling_test

import (
	"context"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the journal's store

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// world is a fleet in memory with what the tests of a roll ask of it.
type world struct{ *rollingtest.World }

// inLab runs fn in a bubble of virtual time with a fleet that seals.
func inLab(t *testing.T, cfg lab.Config, fn func(*testing.T, *world)) {
	t.Helper()
	rollingtest.InLab(t, cfg, func(t *testing.T, w *rollingtest.World) { fn(t, &world{w}) })
}

// runs asserts that the one container left on a host runs an image.
func (w *world) runs(id, tag string) {
	w.Helper()
	got := w.Nodes(id)
	h := w.Host(id)
	if len(got) != 1 || got[0].State != "running" || got[0].Name != h.Spec().Container || !rollingtest.IsImage(got[0], tag) {
		w.Errorf("host %s: containers %s, want one that runs %s", id, rollingtest.Names(got), tag)
	}
}

// saw lists the events of a kind and name, as "state text".
func (w *world) saw(node, kind, name string) []string {
	var out []string
	for _, e := range w.Events() {
		if (node == "" || e.Node == node) && e.Kind == kind && e.Name == name {
			out = append(out, e.State+" "+e.Text)
		}
	}
	return out
}

// told says whether a note of that name was emitted.
func (w *world) told(name string) bool { return len(w.saw("", rolling.KindNote, name)) > 0 }

// changes lists the requests that change something on a host's engine, pulls
// and staged successors left out, since a mark.
func (w *world) changes(id string, since int) []string {
	var out []string
	for _, r := range w.Lab.Requests()[since:] {
		if r.Host == id && r.Method != "GET" && r.Method != "HEAD" {
			out = append(out, r.Origin+" "+r.Method+" "+r.Path)
		}
	}
	return out
}

// tool is one process of the operator's program, with the commands of a roll.
type tool struct {
	*rollingtest.Tool
	w     *world
	plan  rolling.Plan // of the last roll
	ready func()       // a test's hook, when the plan is confirmed and nothing has begun
}

func (w *world) tool() *tool { return &tool{Tool: w.Tool(), w: w} }

// toolAt starts the program with a journal of its own name.
func (w *world) toolAt(state string) *tool {
	return &tool{Tool: w.ToolAt(filepath.Join(w.Dir, state)), w: w}
}

// look decides as a command does before its question.
func (t *tool) look(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	p, err := t.Ops().Propose(ctx, spec)
	return p.Plan, err
}

// spec of a roll of the given nodes, none: all.
func (t *tool) spec(image string, targets ...string) rolling.Spec {
	if len(targets) == 0 {
		targets = t.Fleet.Inventory().IDs()
	}
	return rolling.Spec{Image: image, Targets: targets}
}

// propose is the part before the question: fences, look, checks.
func (t *tool) propose(ctx context.Context, spec rolling.Spec) (rolling.Plan, error) {
	ops := t.Ops()
	if err := ops.Free(ctx); err != nil {
		return rolling.Plan{}, err
	}
	p, err := ops.Propose(ctx, spec)
	if err != nil {
		return p.Plan, err
	}
	t.w.Note(p.Plan)
	t.w.Note(p.Checks)
	if err := p.Refused(); err != nil {
		return p.Plan, err
	}
	if spec.RecoveryHalted {
		return p.Plan, ops.Standing(ctx)
	}
	return p.Plan, nil
}

// roll is the command `qnetops roll`.
func (t *tool) roll(spec rolling.Spec) (rolling.Document, error) {
	doc, err := t.rollOnce(t.Ctx, spec)
	return t.said(doc, err)
}

func (t *tool) said(doc rolling.Document, err error) (rolling.Document, error) {
	t.w.Note(doc)
	if err != nil {
		t.w.Note(err)
	}
	return doc, err
}

func (t *tool) rollOnce(ctx context.Context, spec rolling.Spec) (rolling.Document, error) {
	plan, err := t.propose(ctx, spec)
	if err != nil {
		return rolling.Document{}, err
	}
	if len(plan.Targets()) == 0 {
		return rolling.Document{Outcome: rolling.OutcomeDone}, nil
	}
	t.plan = plan
	if t.ready != nil {
		t.ready()
	}
	return t.Ops().Roll(ctx, spec, plan)
}

// resume is the command `qnetops resume OP`.
func (t *tool) resume(id string) (rolling.Document, error) { return t.said(t.Ops().Resume(t.Ctx, id)) }

// abort is the command `qnetops abort OP`.
func (t *tool) abort(id string) (rolling.Document, error) { return t.said(t.Ops().Abort(t.Ctx, id)) }

// restore is the command `qnetops restore NODE`.
func (t *tool) restore(id string) (rolling.NodeResult, error) {
	ops := t.Ops()
	plan, err := ops.LookBack(t.Ctx, id, nil)
	if err != nil {
		return rolling.NodeResult{}, err
	}
	doc, err := t.said(ops.Restore(t.Ctx, plan))
	if len(doc.Nodes) == 0 {
		return rolling.NodeResult{}, err
	}
	return doc.Nodes[0], err
}

// outcomes is the outcome of each node of a document.
func outcomes(doc rolling.Document) map[string]string {
	out := map[string]string{}
	for _, n := range doc.Nodes {
		out[n.ID] = n.Outcome
	}
	return out
}

func nodeOf(doc rolling.Document, id string) rolling.NodeResult {
	for _, n := range doc.Nodes {
		if n.ID == id {
			return n
		}
	}
	return rolling.NodeResult{}
}

func verdict(n rolling.NodeResult, name string) string {
	for _, m := range n.Milestones {
		if m.Name == name {
			return m.Verdict
		}
	}
	return ""
}
