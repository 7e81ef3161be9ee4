package rolling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/gates"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
)

// GateReader reads the activation heights that builds were compiled with. An
// image does not show them, the node's source does.
type GateReader interface {
	// Running reads those of a build that a node runs, New those of the build to
	// roll; build is the stamp QNET_BUILD_ID, empty where there is none.
	Running(ctx context.Context, build string) (gates.Set, error)
	New(ctx context.Context, build string) (gates.Set, error)
}

// GatesFromSource finds every build as a commit of the repository in a folder.
type GatesFromSource struct{ Dir string }

// Running reads the commit a node's build stamp names.
func (g GatesFromSource) Running(ctx context.Context, build string) (gates.Set, error) {
	if !gates.IsCommit(build) {
		return gates.Set{}, fmt.Errorf("the build stamp %q names no commit; give --gates OLD,NEW instead", build)
	}
	return gates.LoadCommit(ctx, g.Dir, build)
}

// New reads the commit that the new image's stamp names. As long as the image
// has not been pulled its stamp is not known, and the folder stands for it as
// it is checked out; the stamp is compared once a successor is staged.
func (g GatesFromSource) New(ctx context.Context, build string) (gates.Set, error) {
	if build == "" {
		return gates.Load(ctx, g.Dir)
	}
	return g.Running(ctx, build)
}

// GatesFromFiles takes the operator's word for which sources the old and the
// new build were made from. Where a source is a commit, a stamp that names
// another commit is refused.
type GatesFromFiles struct{ Old, Now string }

// Running reads Old.
func (g GatesFromFiles) Running(ctx context.Context, build string) (gates.Set, error) {
	return loadFor(ctx, g.Old, build)
}

// New reads Now.
func (g GatesFromFiles) New(ctx context.Context, build string) (gates.Set, error) {
	return loadFor(ctx, g.Now, build)
}

func loadFor(ctx context.Context, spec, build string) (gates.Set, error) {
	set, err := gates.Load(ctx, spec)
	if err == nil && set.Commit != "" && gates.IsCommit(build) && !strings.HasPrefix(set.Commit, build) {
		err = fmt.Errorf("%s is commit %.12s, and the build says it was made from %s", spec, set.Commit, build)
	}
	return set, err
}

// BuildGates are the gates of one build.
type BuildGates struct {
	Build string   // stamp
	Nodes []string // that run it; empty for the new build
	Set   gates.Set
	Err   error
}

// GateInput is what is known of the gates of all builds before a roll: every
// running one of the whole inventory, since also a node that is no target
// replays the same blocks.
type GateInput struct {
	Running   []BuildGates // by stamp
	New       BuildGates
	Unstamped []string // nodes that answer and do not say what they run
	Silent    []string // nodes that do not answer
}

// ReadGates reads the gates of the builds in a view and of the new image.
func ReadGates(ctx context.Context, r GateReader, view observe.View, image host.Image) (*GateInput, error) {
	in := &GateInput{New: BuildGates{Build: image.Build}}
	nodes := map[string][]string{}
	for _, n := range view.Nodes {
		switch {
		case !n.Reachable:
			in.Silent = append(in.Silent, n.ID)
		case n.Build == nil || !gates.IsCommit(*n.Build):
			in.Unstamped = append(in.Unstamped, n.ID)
		default:
			nodes[*n.Build] = append(nodes[*n.Build], n.ID)
		}
	}
	in.New.Set, in.New.Err = r.New(ctx, image.Build)
	for _, build := range slices.Sorted(maps.Keys(nodes)) {
		b := BuildGates{Build: build, Nodes: nodes[build]}
		b.Set, b.Err = r.Running(ctx, build)
		in.Running = append(in.Running, b)
	}
	return in, ctx.Err()
}

// text names what is compared. It holds nothing that moves, since it is part of
// the plan.
func (in *GateInput) text() string {
	if in == nil {
		return "not checked (--source DIR or --gates OLD,NEW checks them)"
	}
	var old []string
	for _, b := range in.Running {
		old = append(old, b.source())
	}
	return "checked: " + strings.Join(old, ", ") + " -> " + in.New.source()
}

func (b BuildGates) source() string {
	if b.Err != nil {
		return b.Build + " (cannot be read)"
	}
	return b.Set.Source
}

// checks judges the new build against every running one, with the highest
// height of the whole inventory as the tip (facts 6.4).
func (in *GateInput) checks(view observe.View, plan Plan) []observe.Check {
	if in == nil {
		return nil
	}
	tip, known := highestHeight(view)
	if !known {
		return []observe.Check{{Name: "gates", Verdict: observe.Unknown, Reason: "no node says a height, so there is no tip to measure the gates from"}}
	}
	judged := observe.Check{Name: "gates", Verdict: observe.Pass}
	var reasons []string
	worse := func(v observe.Verdict, format string, args ...any) {
		if judged.Verdict != observe.Fail {
			judged.Verdict = v
		}
		reasons = append(reasons, fmt.Sprintf(format, args...))
	}
	if len(in.Unstamped) > 0 {
		worse(observe.Fail, "%s answer without a build stamp: whether their gates differ cannot be known", strings.Join(in.Unstamped, ", "))
	}
	if in.New.Err != nil {
		worse(observe.Unknown, "the new build's gates: %v", in.New.Err)
	}
	for _, b := range in.Running {
		if b.Err != nil {
			worse(observe.Unknown, "the gates of %s (%s): %v", b.Build, strings.Join(b.Nodes, ", "), b.Err)
			continue
		}
		if in.New.Err != nil {
			continue
		}
		report := gates.Check(b.Set, in.New.Set, tip)
		verdict := observe.Pass
		if !report.OK() {
			verdict = observe.Fail
		}
		worse(worseOf(judged.Verdict, verdict), "against %.12s (%s): %s", b.Build, strings.Join(b.Nodes, ", "), gateFindings(report))
	}
	if len(in.Silent) > 0 {
		reasons = append(reasons, "warning: "+strings.Join(in.Silent, ", ")+" did not answer and may be ahead or run another build")
	}
	judged.Reason = fmt.Sprintf("tip %d; %s", tip, strings.Join(reasons, "; "))
	return append([]observe.Check{judged}, in.crossing(tip, plan)...)
}

// worseOf keeps the worse of two verdicts: fail, unknown, pass.
func worseOf(a, b observe.Verdict) observe.Verdict {
	rank := map[observe.Verdict]int{observe.Fail: 2, observe.Unknown: 1}
	if rank[a] >= rank[b] {
		return a
	}
	return b
}

func gateFindings(r gates.Report) string {
	out := []string{r.Summary()}
	for _, f := range r.Findings {
		out = append(out, fmt.Sprintf("%s %s: %s", f.Severity, f.Code, f.Text))
	}
	return strings.Join(out, "; ")
}

func highestHeight(view observe.View) (tip uint64, known bool) {
	for _, n := range view.Nodes {
		if n.Height != nil {
			tip, known = max(tip, *n.Height), true
		}
	}
	return tip, known
}

// longestTurn is how many blocks one node's turn takes at most when it passes:
// the deadlines of its milestones (DESIGN.md 3.4), one block a second.
const longestTurn = 240 + 3*600

// crossing warns when a gate is reached before the roll must be over: a fleet
// that is half rolled crosses it on two builds (facts 8, 6).
func (in *GateInput) crossing(tip uint64, plan Plan) []observe.Check {
	if in.New.Err != nil {
		return nil
	}
	blocks := uint64(len(plan.Targets())) * longestTurn
	near := gates.WouldCross(in.New.Set, tip, blocks)
	if len(near) == 0 {
		return nil
	}
	var names []string
	for _, g := range near {
		names = append(names, fmt.Sprintf("%s at %d (in %d blocks)", g.Feature, *g.Height, *g.Height-tip))
	}
	return []observe.Check{{Name: "gates_crossing", Verdict: observe.Pass,
		Reason: fmt.Sprintf("warning: a roll of %d nodes may last %d blocks, and before that the chain reaches %s; nodes that are still on the old build cross there on it",
			len(plan.Targets()), blocks, strings.Join(names, ", "))}}
}

// staged compares the stamp of the image as pulled with what was judged before:
// a registry tells the digest of an image and not what it was built from.
func (in *GateInput) staged(ctx context.Context, r GateReader, build string) error {
	set, err := r.New(ctx, build)
	if err != nil {
		return err
	}
	if a, b := heights(in.New.Set), heights(set); !maps.Equal(a, b) {
		return fmt.Errorf("build %s has other activation heights than %s, which was judged", build, in.New.Set.Source)
	}
	return nil
}

// heights are a build's rules and when they begin, as text; an unreadable one
// is unlike any other.
func heights(s gates.Set) map[string]string {
	out := map[string]string{}
	for _, g := range s.Gates {
		if _, twice := out[g.Feature]; twice {
			continue // the first one wins in the node too
		}
		out[g.Feature] = g.Why
		if g.Height != nil {
			out[g.Feature] = fmt.Sprint(*g.Height)
		}
	}
	return out
}
