package rolling

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/gates"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/observe"
)

// gateSource is a feature_gates.rs with one rule.
func gateSource(height string) string {
	return `pub mod id { pub const RULE: &str = "some_rule"; }
pub const RULE_GATE_HEIGHT: u64 = ` + height + `;
const ACTIVATIONS: &[(&str, u64)] = &[
    (id::RULE, RULE_GATE_HEIGHT),
];
`
}

func gateSet(t *testing.T, height string) gates.Set {
	t.Helper()
	set, err := gates.Parse("feature_gates.rs", []byte(gateSource(height)))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// builds is a GateReader over builds in memory.
type builds map[string]gates.Set

func (b builds) Running(_ context.Context, build string) (gates.Set, error) {
	set, ok := b[build]
	if !ok {
		return set, errors.New("no such commit: " + build)
	}
	return set, nil
}

func (b builds) New(ctx context.Context, build string) (gates.Set, error) {
	return b.Running(ctx, build)
}

const (
	buildA = "aaaaaaa1"
	buildB = "bbbbbbb2"
	buildN = "eeeeeee9"
)

// gatesView is a fleet at a tip; running says what each node's stamp is, "" for
// one that shows none, "-" for one that is not reached.
func gatesView(tip uint64, running map[string]string) observe.View {
	view := fleetOf(nil)
	for i := range view.Nodes {
		n := &view.Nodes[i]
		build, ok := running[n.ID]
		if !ok {
			build = buildA
		}
		switch build {
		case "":
		case "-":
			n.Reachable = false
			continue
		default:
			n.Build = &build
		}
		h := tip - uint64(i)
		n.Height = &h
	}
	return view
}

// TestGatesBeforeARoll: the rules of facts 6.4, against every build that runs
// anywhere in the inventory and from the highest of all heights.
func TestGatesBeforeARoll(t *testing.T) {
	const tip = 1_000_000
	same := builds{buildA: gateSet(t, "2_016_000"), buildN: gateSet(t, "2_016_000")}
	for _, c := range []struct {
		name    string
		source  builds
		running map[string]string
		want    observe.Verdict
		words   []string
	}{
		{"nothing changes", same, nil, observe.Pass, []string{"tip 1000000"}},
		{"crossed and moved", builds{buildA: gateSet(t, "907_200"), buildN: gateSet(t, "2_016_000")}, nil, observe.Fail, []string{"crossed_frozen"}},
		{"frozen at exactly the margin", builds{buildA: gateSet(t, "1_028_800"), buildN: gateSet(t, "2_016_000")}, nil, observe.Fail, []string{"crossed_frozen"}},
		{"moved while far enough", builds{buildA: gateSet(t, "1_036_800"), buildN: gateSet(t, "2_016_000")}, nil, observe.Pass, nil},
		{"new height too near", builds{buildA: gateSet(t, "2_016_000"), buildN: gateSet(t, "1_022_400")}, nil, observe.Fail, []string{"too_near"}},
		{"one node runs another build", builds{buildA: gateSet(t, "2_016_000"), buildB: gateSet(t, "907_200"), buildN: gateSet(t, "2_016_000")},
			map[string]string{"005": buildB}, observe.Fail, []string{"bbbbbbb2 (005)", "crossed_frozen", "aaaaaaa1 (001, 002, 003, 004, 006)"}},
		{"a node without a stamp", same, map[string]string{"002": ""}, observe.Fail, []string{"002 answer without a build stamp"}},
		{"a stamp that names no commit", same, map[string]string{"002": "v1.0.0-unstamped"}, observe.Fail, []string{"002"}},
		{"a node that is away", same, map[string]string{"002": "-"}, observe.Pass, []string{"warning: 002 did not answer"}},
		{"a build the source does not have", same, map[string]string{"002": buildB}, observe.Unknown, []string{"no such commit: bbbbbbb2"}},
		{"the new build is not there", builds{buildA: gateSet(t, "2_016_000")}, nil, observe.Unknown, []string{"the new build's gates"}},
		{"fail outweighs unknown", builds{buildA: gateSet(t, "2_016_000")}, map[string]string{"002": ""}, observe.Fail, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			view := gatesView(tip, c.running)
			in := inputs()
			var err error
			if in.Gates, err = ReadGates(t.Context(), c.source, view, host.Image{Build: buildN}); err != nil {
				t.Fatal(err)
			}
			plan := New(view, in, spec())
			i := slices.IndexFunc(Preflight(view, in, plan), func(c observe.Check) bool { return c.Name == "gates" })
			if i < 0 {
				t.Fatal("no check")
			}
			got := Preflight(view, in, plan)[i]
			if got.Verdict != c.want {
				t.Errorf("%s: %s", got.Verdict, got.Reason)
			}
			for _, w := range c.words {
				if !strings.Contains(got.Reason, w) {
					t.Errorf("%q is not in: %s", w, got.Reason)
				}
			}
			if Waivable("gates") {
				t.Error("a gate must not be waivable: a roll over it forks the chain")
			}
		})
	}
	t.Run("no tip", func(t *testing.T) {
		view := fleetOf(nil)
		in := inputs()
		in.Gates = &GateInput{New: BuildGates{Set: gateSet(t, "2_016_000")}}
		if checks := in.Gates.checks(view, New(view, in, spec())); len(checks) != 1 || checks[0].Verdict != observe.Unknown {
			t.Errorf("%+v", checks)
		}
	})
}

// TestGatesCrossedMeanwhile: six nodes may take 6*2040 blocks; a gate within
// that is a warning, one above it is not, and the plan's digest does not move
// with the tip.
func TestGatesCrossedMeanwhile(t *testing.T) {
	source := builds{buildA: gateSet(t, "1_008_000"), buildN: gateSet(t, "1_008_000")}
	digests := map[string]bool{}
	for tip, warned := range map[uint64]bool{1_008_000 - 12_240: true, 1_008_000 - 12_241: false, 1_007_999: true, 1_008_000: false} {
		view := gatesView(tip, nil)
		in := inputs()
		var err error
		if in.Gates, err = ReadGates(t.Context(), source, view, host.Image{Build: buildN}); err != nil {
			t.Fatal(err)
		}
		plan := New(view, in, spec())
		digests[plan.Digest()] = true
		got := slices.ContainsFunc(Preflight(view, in, plan), func(c observe.Check) bool {
			return c.Name == "gates_crossing" && c.Verdict == observe.Pass && strings.Contains(c.Reason, "some_rule at 1008000")
		})
		if got != warned {
			t.Errorf("tip %d: warned %v", tip, got)
		}
	}
	if len(digests) != 1 {
		t.Error("the plan's digest moves with the tip")
	}
}

// TestGatesFromARepository: a stamp is looked up as a commit, never as a branch;
// an image that is not pulled yet is stood for by the tree, and its stamp is
// compared afterwards.
func TestGatesFromARepository(t *testing.T) {
	git := need.Program(t, "git")[0]
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(git, append([]string{"-C", dir, "-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q")
	file := filepath.Join(dir, filepath.FromSlash(gates.File))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	var commits []string
	for _, h := range []string{"2_016_000", "2_030_400"} {
		if err := os.WriteFile(file, []byte(gateSource(h)), 0o600); err != nil {
			t.Fatal(err)
		}
		run("add", "-A")
		run("commit", "-q", "-m", h)
		commits = append(commits, run("rev-parse", "HEAD"))
	}
	source := GatesFromSource{Dir: dir}
	for i, want := range []uint64{2_016_000, 2_030_400} {
		set, err := source.Running(t.Context(), commits[i][:8])
		if err != nil || *set.Gates[0].Height != want {
			t.Errorf("%v %v", set.Gates, err)
		}
	}
	if _, err := source.Running(t.Context(), "main"); err == nil {
		t.Error("a branch was taken for a build")
	}
	view := gatesView(1_000_000, nil)
	in, err := ReadGates(t.Context(), source, view, host.Image{}) // not pulled: no stamp yet
	if err != nil || in.New.Err != nil || *in.New.Set.Gates[0].Height != 2_030_400 {
		t.Fatalf("%+v %v", in.New, err)
	}
	if err := in.staged(t.Context(), source, commits[1][:7]); err != nil {
		t.Errorf("the build that was judged: %v", err)
	}
	if err := in.staged(t.Context(), source, commits[0][:7]); err == nil || !strings.Contains(err.Error(), "other activation heights") {
		t.Errorf("another build than was judged: %v", err)
	}
	if err := in.staged(t.Context(), source, "feedfacefeed"); err == nil {
		t.Error("a stamp of no commit passed")
	}
	files := GatesFromFiles{Old: dir + "@" + commits[0], Now: dir + "@" + commits[1]}
	if _, err := files.Running(t.Context(), commits[1][:9]); err == nil {
		t.Error("a node whose stamp is another commit passed")
	}
	if _, err := files.Running(t.Context(), commits[0][:9]); err != nil {
		t.Error(err)
	}
}
