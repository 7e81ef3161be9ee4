package rolling_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// The host whose node is rolled in the kill matrix, and what dies there. "tool"
// is the operator's process.
const (
	victimHost = "002"
	killTool   = "tool"
)

func victims() []string { return append([]string{killTool}, lab.Kills()...) }

// point is a moment of a roll: the nth time that something is seen.
type point struct {
	what string
	nth  int
}

func (p point) String() string { return fmt.Sprintf("%s %d", p.what, p.nth) }

// ofReplace says whether a point lies in the replace transaction, whose every
// boundary is killed at in an ordinary run too.
func (p point) ofReplace() bool {
	return strings.HasPrefix(p.what, "tx ") || strings.Contains(p.what, "replace")
}

// timeline sees the points of a roll as they pass.
type timeline struct {
	w  *world
	on func(point) // called for each

	mu     sync.Mutex
	counts map[string]int
	inTx   bool
	order  []point
}

// follow watches one host and one run of the tool.
func (w *world) follow(t *tool, on func(point)) *timeline {
	tl := &timeline{w: w, on: on, counts: map[string]int{}}
	w.Lab.OnEngineRequest(func(host, method, path string) { tl.engine(host, "request", method, path) })
	w.Lab.OnEngineResponse(func(host, method, path string) { tl.engine(host, "response", method, path) })
	w.Lab.OnAgentRequest(func(host, method string) {
		if host == victimHost && slices.Contains([]string{"take_fence", "pull", "stage", "replace", "finish", "discard", "release_fence"}, method) {
			tl.pass("agent " + method)
		}
	})
	w.Lab.OnAgentOutput(tl.output)
	t.Emit = func(e rolling.Event) {
		if e.Kind == rolling.KindStep {
			if e.Name == "replace" {
				tl.mu.Lock()
				tl.inTx = e.State == "begun"
				tl.mu.Unlock()
			}
			tl.pass("step " + e.Name + " " + e.State)
		}
		if e.Kind == rolling.KindMilestone && e.State == string(observe.Pass) {
			tl.pass("milestone " + e.Name)
		}
	}
	return tl
}

// output takes the local steps and the last word of a transaction from what the agent sends.
func (tl *timeline) output(host string, line []byte) {
	var out struct {
		Event  *struct{ Step, State string }
		Result *struct{ Outcome string }
	}
	if host != victimHost || json.Unmarshal(line, &out) != nil {
		return
	}
	switch {
	case out.Event != nil && out.Event.Step != "":
		tl.pass("tx " + out.Event.Step + " " + out.Event.State)
	case out.Result != nil && out.Result.Outcome != "":
		tl.pass("tx answer " + out.Result.Outcome)
	}
}

var moving = regexp.MustCompile(`[0-9a-f]{64}|-(pre|next|failed)-[0-9a-zA-Z]+|^/v[0-9.]+`)

// engine counts what changes something, and in the replace every request.
func (tl *timeline) engine(host, side, method, path string) {
	tl.mu.Lock()
	counts := host == victimHost && (method != "GET" || tl.inTx)
	tl.mu.Unlock()
	if counts {
		tl.pass("engine " + side + " " + method + " " + moving.ReplaceAllString(path, ""))
	}
}

func (tl *timeline) pass(what string) {
	tl.mu.Lock()
	tl.counts[what]++
	p := point{what, tl.counts[what]}
	tl.order = append(tl.order, p)
	tl.mu.Unlock()
	if tl.on != nil {
		tl.on(p)
	}
}

// stop ends the watching.
func (tl *timeline) stop() []point {
	tl.w.Lab.OnEngineRequest(nil)
	tl.w.Lab.OnEngineResponse(nil)
	tl.w.Lab.OnAgentRequest(nil)
	tl.w.Lab.OnAgentOutput(nil)
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return tl.order
}

func killLab() lab.Config { return lab.Config{Nodes: 4, Block: fast} }

// timelineOfRoll records the points of an undisturbed roll.
func timelineOfRoll(t *testing.T) (points []point) {
	t.Run("undisturbed", func(t *testing.T) {
		inLab(t, killLab(), func(t *testing.T, w *world) {
			tool := w.tool()
			tl := w.follow(tool, nil)
			if _, err := tool.roll(tool.spec("qnet:v2", victimHost)); err != nil {
				t.Fatal(err)
			}
			points = tl.stop()
			w.runs(victimHost, "v2")
			w.Clean()
		})
	})
	return points
}

// kill is one field of the matrix.
type kill struct {
	at     point
	victim string
	abort  bool // what follows: resume, or abort
}

func (k kill) String() string {
	after := "resume"
	if k.abort {
		after = "abort"
	}
	return strings.ReplaceAll(fmt.Sprintf("%s/%s/%s", k.victim, k.at, after), " ", "_")
}

// phases are the moments at which the tool itself always dies, followed by both
// a resume and an abort.
var phases = []string{"agent pull", "agent stage", "agent replace", "milestone M2", "agent finish"}

// matrix chooses: with the tag long, or QNETOPS_LONG set, all of it; else every boundary of the replace
// once, with the victims in turn, and a sample of the rest.
func matrix(points []point) []kill {
	rnd := rand.New(rand.NewPCG(20260101, 2))
	var out []kill
	for i, p := range points {
		for j, v := range victims() {
			k := kill{p, v, rnd.IntN(3) == 0}
			switch {
			case v == killTool && slices.Contains(phases, p.what) && p.nth == 1:
				k.abort = false
				out = append(out, k, kill{p, v, true})
			case long || os.Getenv("QNETOPS_LONG") != "":
				out = append(out, k)
			case p.ofReplace() && !strings.HasPrefix(p.what, "engine") && (i+j)%len(victims()) == 0:
				out = append(out, k)
			case rnd.IntN(50) == 0:
				out = append(out, k)
			}
		}
	}
	return out
}

// TestInvariant4KillAnything kills each thing at each boundary of a roll. The
// node ends up on exactly one container without the operator, and resume or
// abort brings the fleet to one image with nothing left over.
func TestInvariant4KillAnything(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole fleets")
	}
	points := timelineOfRoll(t)
	if len(points) < 40 {
		t.Fatalf("only %d points seen: %v", len(points), points)
	}
	t.Run("killed", func(t *testing.T) {
		for _, k := range matrix(points) {
			t.Run(k.String(), func(t *testing.T) {
				t.Parallel()
				inLab(t, killLab(), func(t *testing.T, w *world) { w.killed(k) })
			})
		}
	})
}

// killed runs one field of the matrix.
func (w *world) killed(k kill) {
	tool := w.tool()
	var fired atomic.Bool
	var once sync.Once
	tl := w.follow(tool, func(p point) {
		if p == k.at {
			once.Do(func() { fired.Store(true); w.strike(tool, k.victim) })
		}
	})
	_, err := tool.roll(tool.spec("qnet:v2", victimHost))
	tl.stop()
	tool.Exit()
	w.Logf("the roll: %v", err)
	if !fired.Load() {
		w.Errorf("the roll never came to %s", k.at)
	}
	w.settles(k)
	if last := w.carryOn(k); last != nil {
		err = last
	}
	w.releases(err)
	w.healthy("")
	w.Clean()
}

func (w *world) strike(t *tool, victim string) {
	if victim == killTool {
		t.Kill()
		return
	}
	if err := w.Lab.Kill(victimHost, victim); err != nil {
		w.Errorf("kill: %v", err)
	}
}

// settles asserts that soon one container runs, whoever died. When both agents
// or the host died between two steps it may wait; then a look names it.
func (w *world) settles(k kill) {
	w.Helper()
	for range 180 {
		time.Sleep(time.Second)
		if len(w.Running(victimHost)) == 1 {
			return
		}
	}
	if k.victim != lab.KillBoth && k.victim != lab.KillHost {
		w.Fatalf("after three minutes: %s", rollingtest.Names(w.Nodes(victimHost)))
	}
	tool := w.tool()
	defer tool.Exit()
	view, err := observe.Observe(w.Context(), tool.Fleet, observe.Options{})
	if err != nil {
		w.Fatal(err)
	}
	if n := view.Node(victimHost); n.Verdict == observe.Healthy || len(n.Reasons) == 0 {
		w.Errorf("the node waits for the next contact and the view says %s, %q", n.Verdict, n.Reasons)
	}
	w.Logf("waits for the next contact: %s", rollingtest.Names(w.Nodes(victimHost)))
}

// carryOn resumes or aborts until the operation has ended. A resume may stop
// once more: what was killed may have cost the successor its soak.
func (w *world) carryOn(k kill) (last error) {
	w.Helper()
	for try := range 4 {
		tool := w.tool()
		open := tool.Unfinished()
		if open == "" {
			tool.Exit()
			break
		}
		var err error
		if k.abort {
			_, err = tool.abort(open)
		} else {
			_, err = tool.resume(open)
		}
		last = err
		tool.Exit()
		w.Logf("try %d: %v", try+1, err)
		var doubt *rolling.InDoubtError
		if errors.As(err, &doubt) {
			w.Fatalf("in doubt: %v", err)
		}
	}
	tool := w.tool()
	defer tool.Exit()
	if open := tool.Unfinished(); open != "" {
		w.Fatalf("operation %s did not end: %s", open, rollingtest.Names(w.Nodes(victimHost)))
	}
	if ops := tool.Operations(); len(ops) > 0 { // asked again for what has ended
		if _, err := tool.resume(ops[0].ID); !errors.Is(err, journal.ErrFinished) {
			w.Errorf("a second resume: %v", err)
		}
	}
	want := "v2"
	switch ops := tool.Operations(); {
	case len(ops) == 0 || ops[0].State == journal.Aborted && !k.abort:
		// It had ended before anything was changed; the same command works again.
		w.runs(victimHost, "v1")
		if _, err := tool.roll(tool.spec("qnet:v2", victimHost)); err != nil {
			w.Fatalf("again: %v", err)
		}
	case ops[0].State == journal.Aborted:
		want = "v1"
		if got := w.Nodes(victimHost); len(got) == 1 && rollingtest.IsImage(got[0], "v2") {
			want = "v2" // it had passed its milestones before the abort
		}
	}
	w.runs(victimHost, want)
	for _, id := range w.IDs() {
		if id != victimHost {
			w.runs(id, "v1")
		}
	}
	return last
}

// releases: what died while the fence was given back leaves it held; that was
// said, and the next operation of the same store is not hindered by it.
func (w *world) releases(said error) {
	w.Helper()
	held := w.heldFences()
	if len(held) == 0 {
		return
	}
	if said == nil && !w.told("fence") {
		w.Errorf("the fences of %v are held and nobody was told", held)
	}
	tool := w.tool()
	defer tool.Exit()
	claim, err := tool.Acquire(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	highest, err := rolling.ReadFences(w.Context(), tool.Fleet, tool.Store.ID())
	if err == nil {
		_, err = claim.Raise(w.Context(), highest, "next")
	}
	if err == nil {
		err = rolling.TakeFences(w.Context(), tool.Fleet, claim.Token(), held)
	}
	if err == nil {
		err = rolling.ReleaseFences(w.Context(), tool.Fleet, claim.Token())
	}
	if err != nil {
		w.Errorf("the next operation: %v", err)
	}
}

// unfinished is the id of the fleet's open operation.
func unfinished(t *tool) string {
	for _, r := range t.Operations() {
		if !r.State.Finished() {
			return r.ID
		}
	}
	return ""
}
