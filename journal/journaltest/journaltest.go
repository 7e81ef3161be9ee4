// Package journaltest holds what every store of the journal must do, as one suite of tests. SQLite and Postgres differ in
// locking, types and errors; whoever writes an operation down must not notice.
package journaltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
)

// Run runs the suite. Each call of open gives a connection to one and the same store of a test; fresh starts a new, empty
// store and returns its open.
func Run(t *testing.T, fresh func(t *testing.T) (open func() *sqldb.DB)) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, open func() *sqldb.DB)
	}{
		{"identity", identity},
		{"life", life},
		{"intent first", intentFirst},
		{"failed steps are tried again", retry},
		{"done steps are passed over", passOver},
		{"in doubt until settled", doubt},
		{"cut short", cutShort},
		{"unknown outcome", unknownOutcome},
		{"panic", panics},
		{"one unfinished", oneUnfinished},
		{"begin at once", beginAtOnce},
		{"steps at once", stepsAtOnce},
		{"fenced", fenced},
		{"fenced mid-step", fencedMidStep},
		{"fleet's newest epoch", fleetEpoch},
		{"finish", finish},
		{"append only", appendOnly},
		{"any text", anyText},
		{"reader", reader},
		{"order", order},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

func store(t *testing.T, db *sqldb.DB) *journal.Store {
	t.Helper()
	s, err := journal.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func spec(epoch uint64) journal.Spec {
	return journal.Spec{Kind: "roll", Fleet: "mainnet", Operator: "ann@desk", Epoch: epoch, PlanDigest: "d1",
		Plan: json.RawMessage(`{"order":["001","002"]}`), Waivers: []journal.Waiver{{Check: "second_updater", Reason: "known", By: "ann"}},
		Data: json.RawMessage(`{"image":"qnet:v2"}`)}
}

func begin(t *testing.T, s *journal.Store, epoch uint64) *journal.Op {
	t.Helper()
	op, err := s.Begin(t.Context(), spec(epoch))
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func step(t *testing.T, op *journal.Op, id string) journal.StepRecord {
	t.Helper()
	steps, err := op.Steps(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("no step %s in %+v", id, steps)
	return journal.StepRecord{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ok(context.Context) (any, error) { return nil, nil }

var errBroken = errors.New("broken")

func identity(t *testing.T, open func() *sqldb.DB) {
	var wg sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids { // opened by several at once, as by several operators on the first day
		db := open()
		wg.Go(func() {
			s, err := journal.Open(t.Context(), db)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if len(id) < 16 || id != ids[0] {
			t.Errorf("ids of one store: %q", ids)
		}
	}
}

func life(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	before := time.Now().Add(-time.Second)
	op := begin(t, s, 3)
	if !strings.HasPrefix(op.ID(), "roll-2") || strings.Count(op.ID(), "-") != 2 {
		t.Errorf("id %s", op.ID())
	}
	must(t, op.Do(t.Context(), journal.Step{ID: "001/replace", Title: "replace 001"}, func(context.Context) (any, error) {
		return map[string]int{"seconds": 12}, nil
	}))
	must(t, op.Note(t.Context(), "barrier", []string{"001"}))
	must(t, op.Finish(t.Context(), journal.Done, "rolled 1"))

	again, err := store(t, open()).Op(t.Context(), op.ID())
	must(t, err)
	r, err := again.Record(t.Context())
	must(t, err)
	if r.ID != op.ID() || r.Kind != "roll" || r.Fleet != "mainnet" || r.Operator != "ann@desk" || r.State != journal.Done || r.Epoch != 3 ||
		string(r.Plan) != `{"order":["001","002"]}` || r.PlanDigest != "d1" || string(r.Data) != `{"image":"qnet:v2"}` || r.Summary != "rolled 1" ||
		len(r.Waivers) != 1 || r.Waivers[0] != (journal.Waiver{Check: "second_updater", Reason: "known", By: "ann"}) {
		t.Errorf("record %+v", r)
	}
	if r.StartedAt.Before(before) || r.FinishedAt == nil || r.FinishedAt.Before(r.StartedAt) || r.StartedAt.Location() != time.UTC {
		t.Errorf("times %v %v", r.StartedAt, r.FinishedAt)
	}
	if len(r.Steps) != 1 || r.Steps[0].State != journal.StepDone || string(r.Steps[0].Result) != `{"seconds":12}` ||
		r.Steps[0].Title != "replace 001" || r.Steps[0].Attempt != 1 || r.Steps[0].FinishedAt == nil {
		t.Errorf("steps %+v", r.Steps)
	}
	events, err := again.Events(t.Context())
	must(t, err)
	var what []string
	for i, e := range events {
		what = append(what, e.What)
		if i > 0 && e.Seq <= events[i-1].Seq {
			t.Errorf("entry %d is numbered %d after %d", i, e.Seq, events[i-1].Seq)
		}
	}
	if got := strings.Join(what, " "); got != "begin intent outcome note finish" {
		t.Errorf("events: %s", got)
	}
	if _, err := s.Op(t.Context(), "roll-none"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("an unknown id: %v", err)
	}
}

// Another connection sees the intent while the act is under way: it was committed before.
func intentFirst(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	other := store(t, open())
	must(t, op.Do(t.Context(), journal.Step{ID: "a"}, func(ctx context.Context) (any, error) {
		seen, err := other.Op(ctx, op.ID())
		if err != nil {
			return nil, err
		}
		if s := step(t, seen, "a"); s.State != journal.StepIntent || s.FinishedAt != nil {
			t.Errorf("during the act: %+v", s)
		}
		return nil, nil
	}))
	if s := step(t, op, "a"); s.State != journal.StepDone {
		t.Errorf("after the act: %+v", s)
	}
}

func retry(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	err := op.Do(t.Context(), journal.Step{ID: "a"}, func(context.Context) (any, error) { return "partial", errBroken })
	if err != errBroken {
		t.Errorf("the function's own error comes back: %v", err)
	}
	if s := step(t, op, "a"); s.State != journal.StepFailed || s.Error != "broken" || s.Attempt != 1 || string(s.Result) != `"partial"` {
		t.Errorf("first attempt: %+v", s)
	}
	must(t, op.Do(t.Context(), journal.Step{ID: "a"}, ok))
	if s := step(t, op, "a"); s.State != journal.StepDone || s.Error != "" || s.Attempt != 2 {
		t.Errorf("second attempt: %+v", s)
	}
}

func passOver(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	calls := 0
	for range 3 {
		must(t, op.Do(t.Context(), journal.Step{ID: "a"}, func(context.Context) (any, error) { calls++; return nil, nil }))
	}
	if calls != 1 {
		t.Errorf("a done step was carried out %d times", calls)
	}
}

// crash leaves a step with an intent only, as a killed process does.
func crash(t *testing.T, op *journal.Op, s journal.Step) {
	t.Helper()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer func() { _ = recover() }()
		_ = op.Do(context.Background(), s, func(context.Context) (any, error) { panic("the process ends here") })
	}()
	<-gone
}

func doubt(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	crash(t, op, journal.Step{ID: "act"})
	crash(t, op, journal.Step{ID: "look", Looks: true})

	next, err := store(t, open()).Op(t.Context(), op.ID())
	must(t, err)
	must(t, next.Resume(t.Context(), 2))
	if s := step(t, next, "act"); s.State != journal.StepInDoubt || s.Error == "" || s.FinishedAt != nil {
		t.Errorf("act after a crash: %+v", s)
	}
	if s := step(t, next, "look"); s.State != journal.StepFailed {
		t.Errorf("look after a crash: %+v", s)
	}
	r, err := next.Record(t.Context())
	must(t, err)
	if u := r.Unsettled(); len(u) != 1 || u[0].ID != "act" || r.State != journal.Running || r.Epoch != 2 {
		t.Errorf("record %+v", r)
	}
	called := false
	err = next.Do(t.Context(), journal.Step{ID: "act"}, func(context.Context) (any, error) { called = true; return nil, nil })
	var in *journal.InDoubtError
	if !errors.As(err, &in) || in.Step != "act" || called {
		t.Errorf("a step in doubt was repeated (%v): %v", called, err)
	}
	if err := next.Finish(t.Context(), journal.Done, ""); !errors.As(err, &in) {
		t.Errorf("done with a step in doubt: %v", err)
	}
	must(t, next.Settle(t.Context(), "act", journal.StepInDoubt, "the host does not answer", nil))
	must(t, next.Settle(t.Context(), "act", journal.StepDone, "the new container runs", map[string]string{"id": "c1"}))
	if s := step(t, next, "act"); s.State != journal.StepDone || s.Note != "the new container runs" || string(s.Result) != `{"id":"c1"}` || s.FinishedAt == nil {
		t.Errorf("settled: %+v", s)
	}
	if err := next.Settle(t.Context(), "act", journal.StepFailed, "", nil); err == nil {
		t.Error("a settled step was settled again")
	}
	if err := next.Settle(t.Context(), "never", journal.StepDone, "", nil); err == nil {
		t.Error("a step that never began was settled")
	}
	if err := next.Settle(t.Context(), "act", journal.StepIntent, "", nil); err == nil {
		t.Error("settled as intent")
	}
	must(t, next.Do(t.Context(), journal.Step{ID: "act"}, func(context.Context) (any, error) { t.Error("repeated"); return nil, nil }))

	crash(t, next, journal.Step{ID: "act2"})
	must(t, next.Resume(t.Context(), 2)) // the same epoch may come back to itself
	must(t, next.Settle(t.Context(), "act2", journal.StepFailed, "nothing of it is there", nil))
	must(t, next.Do(t.Context(), journal.Step{ID: "act2"}, ok))
	if s := step(t, next, "act2"); s.State != journal.StepDone || s.Attempt != 2 || s.Note != "" {
		t.Errorf("tried again after it was settled as not done: %+v", s)
	}
	must(t, next.Finish(t.Context(), journal.Done, ""))
}

// An act that gives up because its context ended may have happened; its outcome is written although the context is over.
func cutShort(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	ctx, cancel := context.WithCancel(t.Context())
	give := func(ctx context.Context) (any, error) { cancel(); return nil, fmt.Errorf("asking: %w", ctx.Err()) }
	if err := op.Do(ctx, journal.Step{ID: "act"}, give); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if s := step(t, op, "act"); s.State != journal.StepInDoubt {
		t.Errorf("act: %+v", s)
	}
	ran := false
	if err := op.Do(ctx, journal.Step{ID: "late"}, func(context.Context) (any, error) { ran = true; return nil, nil }); err == nil || ran {
		t.Errorf("began under a context that was over: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	_ = op.Do(ctx, journal.Step{ID: "look", Looks: true}, give)
	if s := step(t, op, "look"); s.State != journal.StepFailed {
		t.Errorf("look: %+v", s)
	}
	ctx, cancel = context.WithCancel(t.Context())
	must(t, op.Do(ctx, journal.Step{ID: "through"}, func(context.Context) (any, error) { cancel(); return 1, nil }))
	if s := step(t, op, "through"); s.State != journal.StepDone {
		t.Errorf("through: %+v", s)
	}
	must(t, op.Finish(ctx, journal.Stopped, "interrupted")) // with the dead context, as a program that was interrupted does
}

func unknownOutcome(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	err := op.Do(t.Context(), journal.Step{ID: "a"}, func(context.Context) (any, error) {
		return nil, fmt.Errorf("connection lost: %w", journal.ErrUnknownOutcome)
	})
	if !errors.Is(err, journal.ErrUnknownOutcome) {
		t.Error(err)
	}
	if s := step(t, op, "a"); s.State != journal.StepInDoubt || !strings.HasPrefix(s.Error, "connection lost") {
		t.Errorf("%+v", s)
	}
}

func panics(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	crash(t, op, journal.Step{ID: "a"})
	if s := step(t, op, "a"); s.State != journal.StepIntent {
		t.Errorf("%+v", s)
	}
	must(t, op.Do(t.Context(), journal.Step{ID: "b"}, ok)) // and the store is not left locked
}

func oneUnfinished(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	op := begin(t, s, 1)
	for _, state := range []journal.State{journal.Running, journal.Stopped, journal.InDoubt} {
		if state != journal.Running {
			must(t, op.Finish(t.Context(), state, ""))
		}
		_, err := s.Begin(t.Context(), spec(2))
		var u *journal.UnfinishedError
		if !errors.As(err, &u) || u.ID != op.ID() || u.Kind != "roll" || u.State != state || !strings.Contains(u.Hint(), op.ID()) {
			t.Errorf("%s: %v", state, err)
		}
	}
	other := spec(1)
	other.Fleet = "testnet"
	if _, err := s.Begin(t.Context(), other); err != nil {
		t.Errorf("another fleet: %v", err)
	}
	must(t, op.Finish(t.Context(), journal.Aborted, "given up"))
	begin(t, s, 2)
}

// Many begin on one fleet at the same moment, each over a connection of its own: one wins, the others are told who.
func beginAtOnce(t *testing.T, open func() *sqldb.DB) {
	const n = 8
	stores := make([]*journal.Store, n)
	for i := range stores {
		stores[i] = store(t, open())
	}
	var mu sync.Mutex
	var winners []string
	var losers []*journal.UnfinishedError
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, s := range stores {
		wg.Go(func() {
			<-start
			op, err := s.Begin(t.Context(), spec(1))
			mu.Lock()
			defer mu.Unlock()
			var u *journal.UnfinishedError
			switch {
			case err == nil:
				winners = append(winners, op.ID())
			case errors.As(err, &u):
				losers = append(losers, u)
			default:
				t.Errorf("an unclear answer: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(winners) != 1 || len(losers) != n-1 {
		t.Fatalf("%d winners, %d losers", len(winners), len(losers))
	}
	for _, u := range losers {
		if u.ID != winners[0] {
			t.Errorf("told of %s, the winner is %s", u.ID, winners[0])
		}
	}
}

func stepsAtOnce(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := op.Do(t.Context(), journal.Step{ID: fmt.Sprintf("host-%02d", i)}, ok); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	steps, err := op.Steps(t.Context())
	must(t, err)
	for _, s := range steps {
		if s.State != journal.StepDone {
			t.Errorf("%+v", s)
		}
	}
	if len(steps) != 12 {
		t.Errorf("%d steps", len(steps))
	}
}

// The paused writer that wakes up after another took over writes nothing and acts no more.
func fenced(t *testing.T, open func() *sqldb.DB) {
	old := begin(t, store(t, open()), 1)
	must(t, old.Do(t.Context(), journal.Step{ID: "a"}, ok))
	next, err := store(t, open()).Op(t.Context(), old.ID())
	must(t, err)
	must(t, next.Resume(t.Context(), 5))
	before, err := next.Events(t.Context())
	must(t, err)

	acted := false
	act := func(context.Context) (any, error) { acted = true; return nil, nil }
	for name, err := range map[string]error{
		"do":     old.Do(t.Context(), journal.Step{ID: "b"}, act),
		"redo":   old.Do(t.Context(), journal.Step{ID: "a"}, act),
		"settle": old.Settle(t.Context(), "a", journal.StepDone, "", nil),
		"note":   old.Note(t.Context(), "n", nil),
		"finish": old.Finish(t.Context(), journal.Done, ""),
		"resume": old.Resume(t.Context(), 4),
	} {
		if !errors.Is(err, journal.ErrFenced) {
			t.Errorf("%s by the old writer: %v", name, err)
		}
	}
	after, err := next.Events(t.Context())
	must(t, err)
	if acted || len(after) != len(before) {
		t.Errorf("acted %v, %d entries became %d", acted, len(before), len(after))
	}
	must(t, next.Finish(t.Context(), journal.Aborted, ""))
	if err := old.Note(t.Context(), "n", nil); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("after the end: %v", err)
	}
}

func fencedMidStep(t *testing.T, open func() *sqldb.DB) {
	old := begin(t, store(t, open()), 1)
	other := store(t, open())
	var next *journal.Op
	err := old.Do(t.Context(), journal.Step{ID: "a"}, func(ctx context.Context) (any, error) {
		var err error
		if next, err = other.Op(ctx, old.ID()); err != nil {
			return nil, err
		}
		return nil, next.Resume(ctx, 2)
	})
	if !errors.Is(err, journal.ErrFenced) {
		t.Errorf("overtaken while acting: %v", err)
	}
	if s := step(t, next, "a"); s.State != journal.StepInDoubt {
		t.Errorf("for the successor the step is in doubt: %+v", s)
	}
}

func fleetEpoch(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	must(t, begin(t, s, 7).Finish(t.Context(), journal.Done, ""))
	if _, err := s.Begin(t.Context(), spec(6)); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("an older epoch began: %v", err)
	}
	begin(t, s, 7)
}

func finish(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	op := begin(t, s, 1)
	if err := op.Finish(t.Context(), journal.Running, ""); err == nil {
		t.Error("running is no end")
	}
	must(t, op.Finish(t.Context(), journal.Stopped, "001 held"))
	r, err := op.Record(t.Context())
	must(t, err)
	if r.FinishedAt != nil || r.State != journal.Stopped || r.Summary != "001 held" {
		t.Errorf("%+v", r)
	}
	must(t, op.Resume(t.Context(), 2))
	must(t, op.Finish(t.Context(), journal.Done, "all"))
	for name, err := range map[string]error{
		"do":     op.Do(t.Context(), journal.Step{ID: "a"}, ok),
		"note":   op.Note(t.Context(), "n", nil),
		"finish": op.Finish(t.Context(), journal.Aborted, ""),
		"resume": op.Resume(t.Context(), 3),
	} {
		if !errors.Is(err, journal.ErrFinished) {
			t.Errorf("%s after the end: %v", name, err)
		}
	}
}

func appendOnly(t *testing.T, open func() *sqldb.DB) {
	db := open()
	op := begin(t, store(t, db), 1)
	must(t, op.Do(t.Context(), journal.Step{ID: "a"}, ok))
	for _, q := range []string{`UPDATE qnetops_entry SET state = 'failed'`, `DELETE FROM qnetops_entry`} {
		if _, err := db.ExecContext(t.Context(), q); err == nil {
			t.Errorf("the store took: %s", q)
		}
	}
	if s := step(t, op, "a"); s.State != journal.StepDone {
		t.Errorf("%+v", s)
	}
}

// Output of programs ends up in errors: zero bytes, broken UTF-8 and lengths without bound.
func anyText(t *testing.T, open func() *sqldb.DB) {
	op := begin(t, store(t, open()), 1)
	bad := "Fehler: \xff\x00 ünï 'quoted' $1 " + strings.Repeat("x", 100_000)
	_ = op.Do(t.Context(), journal.Step{ID: "a"}, func(context.Context) (any, error) { return nil, errors.New(bad) })
	s := step(t, op, "a")
	if s.State != journal.StepFailed || !strings.HasPrefix(s.Error, "Fehler: \uFFFD\uFFFD ünï 'quoted' $1 xxx") || len(s.Error) > 10_000 {
		t.Errorf("kept %.60q (%d bytes)", s.Error, len(s.Error))
	}
	err := op.Do(t.Context(), journal.Step{ID: "b"}, func(context.Context) (any, error) { return make(chan int), nil })
	if err == nil || step(t, op, "b").State != journal.StepDone {
		t.Errorf("a result that is not JSON: %v, %+v", err, step(t, op, "b"))
	}
}

func reader(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	op, err := s.Op(t.Context(), begin(t, s, 1).ID())
	must(t, err)
	if err := op.Do(t.Context(), journal.Step{ID: "a"}, ok); err == nil {
		t.Error("written without a resume")
	}
	must(t, op.Resume(t.Context(), 1))
	must(t, op.Do(t.Context(), journal.Step{ID: "a"}, ok))
}

func order(t *testing.T, open func() *sqldb.DB) {
	s := store(t, open())
	var ids []string
	for i := range 3 {
		op := begin(t, s, uint64(i+1))
		must(t, op.Do(t.Context(), journal.Step{ID: "b"}, ok))
		must(t, op.Do(t.Context(), journal.Step{ID: "a"}, ok))
		must(t, op.Finish(t.Context(), journal.Done, ""))
		ids = append([]string{op.ID()}, ids...)
	}
	other := spec(1)
	other.Fleet = "testnet"
	_, err := s.Begin(t.Context(), other)
	must(t, err)
	list, err := s.List(t.Context(), "mainnet")
	must(t, err)
	if len(list) != 3 {
		t.Fatalf("%d operations", len(list))
	}
	for i, r := range list {
		if r.ID != ids[i] || len(r.Steps) != 2 || r.Steps[0].ID != "b" || r.Steps[1].ID != "a" {
			t.Errorf("%d: %s %+v, want %s", i, r.ID, r.Steps, ids[i])
		}
	}
	if all, err := s.List(t.Context(), ""); err != nil || len(all) != 4 {
		t.Errorf("all: %d, %v", len(all), err)
	}
}
