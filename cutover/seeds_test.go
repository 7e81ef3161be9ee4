package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// seedOnly is the variable that runs one seed alone, and tells all of it.
const seedOnly = "QNETOPS_SEED"

// seeds are those of a run: one by its number, a fixed few of every kind, or 500.
func seeds(t *testing.T) (out []uint64, verbose bool) {
	t.Helper()
	if only := os.Getenv(seedOnly); only != "" {
		n, err := strconv.ParseUint(only, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedOnly, err)
		}
		return []uint64{n}, true
	}
	n := uint64(len(seedKinds) + 4) // each kind, and no more than a run in CI may take
	if full() {
		n = 500
	}
	for seed := range n {
		out = append(out, seed)
	}
	return out, false
}

// TestSeededCutovers runs cut-overs that are drawn from seeds: a kind, a fleet, what
// befalls it and when, and what the operator does about it. Nothing that happens may
// break an invariant of DESIGN.md 2. What decides is an oracle that looks at engines,
// data directories and what the tool let out, and knows nothing of the tool's own.
func TestSeededCutovers(t *testing.T) {
	all, verbose := seeds(t)
	for _, seed := range all {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if !testing.Short() {
				t.Parallel()
			}
			r := &seeded{seed: seed, verbose: verbose, rng: rand.New(rand.NewPCG(seed, 20260101))}
			r.s = draw(seed, r.rng)
			// A fleet has the seed of its number too, so that a run is one of a kind.
			rollingtest.InLab(t, lab.Config{Nodes: r.s.nodes, Block: quick, Seed: int64(seed) + 1}, func(t *testing.T,
				w *rollingtest.World) {
				r.w = worldOf(w)
				r.run()
			})
		})
	}
}

// seeded is one run.
type seeded struct {
	w       *world
	seed    uint64
	rng     *rand.Rand
	s       *seedScene
	o       *oracle
	blows   *strikes
	verbose bool
	story   []string
	began   time.Time
	ops     []string // that were begun, in their order
	ends    []string // how each process ended
	closed  bool     // the last was closed as it stands, beyond its point of no return
}

// tell keeps the story of a run, for the one that fails.
func (r *seeded) tell(format string, args ...any) {
	line := fmt.Sprintf("%8.2fs ", time.Since(r.began).Seconds()) + fmt.Sprintf(format, args...)
	r.w.Note(line)
	if r.verbose {
		fmt.Println(line)
		return
	}
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.story = append(r.story, line)
}

// run takes a fleet through one cut-over and everything that befalls it.
func (r *seeded) run() {
	r.began = time.Now()
	r.s.set(r.w, r.rng)
	r.o = newOracle(r.w, r.s)
	blows := drawBlows(r.rng, r.s)
	r.blows = newStrikes(r.w, blows, r.tell)
	r.w.lab.OnEngineResponse(func(host, method, _ string) {
		if method != "GET" && method != "HEAD" {
			r.blows.changed(host)
			r.o.sample(host)
		}
	})
	r.tell("seed %d: %s on %d nodes; blows: %v", r.seed, r.s.kind, r.s.nodes, blows)
	r.operate()
	r.blows.end()
	r.w.lab.OnEngineResponse(nil)
	r.o.close()
	r.w.Logf("seed %d: %s on %d nodes; %s; %s; events %d, %s", r.seed, r.s.kind, r.s.nodes, r.blows.fell(),
		strings.Join(r.ends, ", "), r.blows.events, time.Since(r.began).Round(time.Second))
	if broken := r.o.verdict(); len(broken) > 0 || r.w.Failed() {
		r.w.Errorf("seed %d (%s, %d nodes) breaks:\n  %s\nreplay it: %s=%d go test -run '^TestSeededCutovers$' ./cutover\n%s",
			r.seed, r.s.kind, r.s.nodes,
			strings.Join(broken, "\n  "), seedOnly, r.seed, strings.Join(r.story, "\n"))
	}
}

// outcomeOf is the end of a process in a word or two.
func outcomeOf(doc cutover.Document, err error) string {
	var refused *rolling.RefusedError
	switch {
	case err == nil:
		return doc.Outcome
	case errors.As(err, &refused):
		return "refused " + refused.Checks[0].Name
	case errors.Is(err, context.Canceled):
		return "killed"
	}
	return doc.Outcome
}

// patience bounds one run of the operator's process: nothing waits for ever.
const patience = time.Hour

// process runs one process of the tool from begin to end.
func (r *seeded) process(what string, waivers []rolling.Waiver, fn func(t *tool,
	ops *cutover.Operations) (cutover.Document, error)) (doc cutover.Document, err error) {
	t := r.w.tool()
	defer t.exit()
	r.blows.live(t)
	t.emit = func(e rolling.Event) {
		if e.Kind != rolling.KindWait {
			r.tell("  %s %s %s %s: %s", e.Node, e.Kind, e.Name, e.State, e.Text)
		}
		if e.Kind == rolling.KindNote && e.Name == string(cutover.Hold) && e.State == "done" && r.s.kind == cutover.KindRestart {
			r.o.stopped()
		}
		r.s.during(e)
		r.blows.event(e)
	}
	late := time.AfterFunc(patience, func() {
		r.o.broken(ruleEnds, "%s does not end within %s", what, patience)
		t.cancel()
	})
	defer late.Stop()
	mark := len(r.w.lab.Requests())
	doc, err = fn(t, t.ops(waivers...))
	_ = t.note(doc, err)
	r.tell("%s: outcome %q, error %v", what, doc.Outcome, err)
	r.ends = append(r.ends, what+": "+outcomeOf(doc, err))
	if op := t.op(); op != "" && !slices.Contains(r.ops, op) {
		r.ops = append(r.ops, op)
	}
	r.judge(t, what, doc, err, mark)
	return doc, err
}

// judge asks the oracle about the end of one process.
func (r *seeded) judge(t *tool, what string, doc cutover.Document, err error, mark int) {
	dead := t.ctx.Err() != nil
	t.exit()
	r.tell("%s", r.w.lab.Status(r.w.Context()))
	r.settle()
	r.o.always()
	look := r.w.tool()
	defer look.exit()
	open := look.unfinished()
	var refused *rolling.RefusedError
	switch {
	case errors.As(err, &refused) && open == "" && t.op() == "":
		r.o.untouched(what, r.w.lab.Requests()[mark:])
	case err == nil && open != "":
		r.o.broken(ruleTrue, "%s says %s, and operation %s is open", what, doc.Outcome, open)
	case err != nil && open != "" && !dead:
		text := err.Error()
		var hint interface{ Hint() string }
		if errors.As(err, &hint) {
			text += "\n" + hint.Hint()
		}
		r.o.next(open, text)
	}
	if err == nil {
		r.isTrue(doc, look)
	}
}

// untouched asks that no agent changed anything on an engine.
func (o *oracle) untouched(what string, requests []lab.Request) {
	for _, q := range requests {
		if q.Method != "GET" && q.Method != "HEAD" && (strings.HasPrefix(q.Origin, "agent:") || strings.HasPrefix(q.Origin,
			"guardian:")) {
			o.broken(ruleRefused, "%s: %s %s %s", what, q.Host, q.Method, q.Path)
		}
	}
}

// settle lets the hosts come to rest: whatever died, a host's node ends up on one
// container without the operator.
func (r *seeded) settle() {
	mayWait := func(id string) bool {
		faults := r.w.lab.Faults(id)
		_, down := faults[engine.FaultEngineDown]
		_, start := faults[engine.FaultStartFail]
		return down || start || r.blows.befell(id, lab.KillBoth, lab.KillHost, blowRemove)
	}
	for range 180 {
		quiet := true
		for _, id := range r.s.hosts {
			named := slices.ContainsFunc(r.w.all(id), func(c engine.Summary) bool { return c.Name == r.w.host(id).Spec().Container })
			quiet = quiet && named && len(r.w.host(id).Agents(lab.KillAgent))+len(r.w.host(id).Agents(lab.KillGuardian)) == 0
		}
		if quiet {
			break
		}
		r.w.Wait(time.Second)
	}
	r.o.fate(mayWait)
}

// operate is what a person does: runs the command, and then what it says, as told or
// not quite, until the operation has ended or the person gives up.
func (r *seeded) operate() {
	begin := func(t *tool, _ *cutover.Operations) (cutover.Document, error) { return r.s.begin(t) }
	_, err := r.process("the command", nil, begin)
	if r.open() == "" && err != nil && r.rng.IntN(4) > 0 { // it was refused, or went back by itself: mend, and once more
		r.mend()
		_, err = r.process("the command again", nil, begin)
	}
	for try := range r.rng.IntN(3) {
		id := r.open()
		if id == "" {
			break
		}
		r.w.Wait(time.Duration(r.rng.IntN(8_000)) * time.Millisecond)
		if r.rng.IntN(2) == 0 {
			r.mend()
		}
		if r.rng.IntN(4) == 0 {
			_, err = r.process(fmt.Sprintf("abort %d", try), nil, r.abort(id))
		} else {
			_, err = r.process(fmt.Sprintf("resume %d", try), nil, r.resume(id))
		}
	}
	r.blows.end()
	if id := r.open(); id != "" && r.rng.IntN(5) == 0 {
		r.tell("gives up on %s: %v", id, err)
		r.nags(id)
	} else {
		r.finish()
		r.ended()
	}
	r.shake()
}

func (r *seeded) resume(id string) func(*tool, *cutover.Operations) (cutover.Document, error) {
	return func(t *tool, ops *cutover.Operations) (cutover.Document, error) { return ops.Resume(t.ctx, id) }
}

func (r *seeded) abort(id string) func(*tool, *cutover.Operations) (cutover.Document, error) {
	return func(t *tool, ops *cutover.Operations) (cutover.Document, error) { return ops.Abort(t.ctx, id) }
}

// open is the fleet's unfinished operation.
func (r *seeded) open() string {
	t := r.w.tool()
	defer t.exit()
	return t.unfinished()
}

// mend takes every fault back and lets the hosts come up. The nodes that are silent
// in a scene are none of them: they are what the operation is for.
func (r *seeded) mend() {
	r.tell("everything is mended")
	for _, id := range r.w.ids() {
		for kind := range r.w.lab.Faults(id) {
			if kind != "mute" || !slices.Contains(r.s.silent, id) {
				r.w.Clear(id, kind)
			}
		}
	}
	r.w.Wait(3 * time.Second) // a host that boots is back by then
}

// finish brings an operation to its end by the means that the tool names: resume,
// then abort, then the waivers.
func (r *seeded) finish() {
	r.mend()
	r.w.Clear("", "")
	r.start()
	because := "the seed says so"
	for try := range 8 {
		id := r.open()
		if id == "" {
			return
		}
		waivers := []rolling.Waiver{{Check: "members", Reason: because}}
		switch {
		case try < 2:
			_, _ = r.process("last resume", nil, r.resume(id))
		case try < 4:
			_, _ = r.process("last resume, without who is missing", waivers, r.resume(id))
		case try < 6:
			_, _ = r.process("last abort", nil, r.abort(id))
		default:
			r.closed = true
			_, _ = r.process("closing", append(waivers, rolling.Waiver{Check: "point_of_no_return", Reason: because}), r.abort(id))
		}
		r.w.Wait(3 * time.Second)
	}
	if id := r.open(); id != "" {
		r.o.broken(ruleEnds, "operation %s cannot be ended by resume, abort or waivers", id)
	}
}

// start starts by hand what another hand stopped, where that is no part of what the
// operation holds down.
func (r *seeded) start() {
	for _, id := range r.s.hosts {
		for _, c := range r.w.all(id) {
			if c.Name == r.w.host(id).Spec().Container && c.State == "exited" && c.RestartPolicy != "no" && !carries(c.Env,
				"QNET_HALT_HEIGHT") {
				r.tell("%s is started by hand", id)
				_ = r.w.host(id).Engine().StartContainer(c.ID)
			}
		}
	}
	r.w.Wait(2 * time.Second)
}

// nags: an operation that somebody gave up is unfinished in the journal, and a host
// that carries a one-shot variable is named by every look at the fleet.
func (r *seeded) nags(id string) {
	t := r.w.tool()
	defer t.exit()
	op, err := t.store.Op(t.ctx, id)
	if err != nil {
		r.w.Fatal(err)
	}
	rec, err := op.Record(t.ctx)
	if err != nil || !slices.Contains([]journal.State{journal.Running, journal.Stopped, journal.InDoubt}, rec.State) {
		r.o.broken(ruleNext, "operation %s is %s in the journal (%v)", id, rec.State, err)
	}
	r.w.Clear("", "")
	r.w.Wait(3 * time.Second) // a host that boots is back by then
	view, err := observe.Observe(t.ctx, t.fleet, observe.Options{})
	if err != nil {
		r.w.Fatal(err)
	}
	r.o.named(view)
}

// named asks that a view names the one-shot variables that a container carries.
func (o *oracle) named(view observe.View) {
	for _, id := range o.s.hosts {
		n := view.Node(id)
		for _, c := range o.w.all(id) {
			for _, kv := range c.Env {
				name, _, _ := strings.Cut(kv, "=")
				if c.Name == o.w.host(id).Spec().Container && oneShot(name) && n.Reachable && (n.Container == nil ||
					!slices.Contains(n.Container.OneShot, name)) {
					o.broken(ruleOneShot, "%s carries %s and a look at the fleet does not say so", id, name)
				}
			}
		}
	}
}

// ended asks for what must hold when the operation has ended.
func (r *seeded) ended() {
	r.o.fate(func(string) bool { return false })
	r.o.kept()
	r.o.always()
	t := r.w.tool()
	defer t.exit()
	records, err := t.store.List(t.ctx, t.fleet.Inventory().Name)
	if err != nil || len(records) == 0 {
		return
	}
	if records[0].State == journal.Aborted && !r.closed {
		r.o.back(func(id string, what ...string) bool { return false })
	}
}

// shake lets every engine restart and one host boot: what is down for good stays so,
// and nothing runs twice.
func (r *seeded) shake() {
	for i, id := range r.s.hosts {
		kill := lab.KillEngine
		if i == 1 {
			kill = lab.KillHost
		}
		if err := r.w.lab.Kill(id, kill); err != nil {
			r.w.Error(err)
		}
	}
	r.w.Wait(5 * time.Second)
	for _, id := range r.s.hosts {
		r.o.sample(id)
	}
	r.o.always()
}

// isTrue asks the fleet itself whether what an operation says of its end is so.
func (r *seeded) isTrue(doc cutover.Document, look *tool) {
	var there []string
	for _, h := range doc.Hosts {
		if h.State == cutover.Finished {
			there = append(there, h.ID)
		}
	}
	if doc.Outcome != rolling.OutcomeDone {
		if doc.Outcome == "aborted" && !r.closed {
			r.o.back(r.blows.befell)
		}
		return
	}
	r.o.disarmed(there)
	if r.s.kind == cutover.KindHalt {
		r.o.isHalted(there)
		return
	}
	r.o.runs(there)
	r.goesOn(there)
}

// isHalted asks that the nodes are down, flushed, and for good.
func (o *oracle) isHalted(ids []string) {
	for _, id := range ids {
		for _, c := range o.w.all(id) {
			if c.Name != o.w.host(id).Spec().Container {
				continue
			}
			if c.State != "exited" || c.RestartPolicy != "no" {
				o.broken(ruleTrue, "%s is said to have halted: %s", id, names(o.w.all(id)))
			}
		}
	}
}

// runs asks that one container is left on each host, with the image and the policy
// that were asked for.
func (o *oracle) runs(ids []string) {
	for _, id := range ids {
		all := o.w.all(id)
		policy := o.s.policy
		if policy == "" {
			policy = o.was[id].node.RestartPolicy
		}
		switch {
		case len(all) != 1:
			o.broken(ruleTrue, "%s is said to be done: %s", id, names(all))
		case all[0].RestartPolicy != policy:
			o.broken(ruleTrue, "%s is said to be done: policy %s, not %s", id, all[0].RestartPolicy, policy)
		case o.s.image == "" && all[0].ImageID != o.was[id].node.ImageID:
			o.broken(ruleTrue, "%s is said to be done: image %s", id, all[0].Image)
		case o.s.image != "" && o.images.build(all[0].Image) != o.images.build(o.s.image):
			o.broken(ruleTrue, "%s is said to be done: image %s, not %s", id, all[0].Image, o.s.image)
		}
	}
}

// goesOn asks that heights and seals rise once nothing is broken any more, that all
// show the same macroblock, and that a restart's is the one of its record.
func (r *seeded) goesOn(ids []string) {
	r.blows.end()
	r.w.Clear("", "")
	r.start()
	was := r.o.top(2)
	for range 60 {
		if r.o.top(2) >= was+3 {
			break
		}
		r.w.Blocks(30)
	}
	if now := r.o.top(2); now < was+3 {
		r.o.broken(ruleTrue, "the chain does not seal after what is said to be done: checkpoint %d, was %d: %s", now, was,
			r.w.lab.Status(r.w.Context()))
	}
	if r.s.kind != cutover.KindRestart {
		return
	}
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(r.w.Context(), 5*time.Second)
		client := node.Client{Base: r.w.host(id).APIBase(), HTTP: r.w.host(id).HTTP()}
		mb, err := client.Macroblock(ctx, r.s.k)
		cancel()
		if err == nil && mb.Hash().String() != r.s.hashK {
			r.o.broken(ruleTrue, "%s shows another macroblock %d than the record", id, r.s.k)
		}
	}
}
