package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/lease/leasetest"
)

// scene is one run of a scenario. What a loaded machine makes untrue (a healthy holder that was not run in time, an upper
// bound) is tried again; what must never be untrue fails at once.
type scene struct {
	*testing.T
	log  *leasetest.Log
	dsn  string
	late atomic.Int64 // the worst lateness of a timer since the scene began
	stop chan struct{}
	ends []func()
}

type tooLoaded struct{ why string }

const tries = 5

// scenario runs body until the machine let it run as it should, and holds every run to what a lease is for.
func scenario(t *testing.T, dsn func(testing.TB) string, body func(s *scene)) {
	t.Helper()
	for try := 1; ; try++ {
		why := attempt(t, dsn, body)
		if why == "" {
			return
		}
		if try == tries {
			t.Fatalf("the machine is too loaded for this: %s", why)
		}
		t.Logf("again, the machine was late: %s", why)
	}
}

func attempt(t *testing.T, dsn func(testing.TB) string, body func(s *scene)) (again string) {
	t.Helper()
	s := &scene{T: t, log: &leasetest.Log{}, dsn: dsn(t), stop: make(chan struct{})}
	go s.canary()
	defer func() {
		close(s.stop)
		for _, end := range s.ends {
			end()
		}
		s.log.Check(t) // also of a run that is repeated: never two holders, however loaded the machine is
		if r := recover(); r != nil {
			loaded, ok := r.(tooLoaded)
			if !ok {
				panic(r)
			}
			again = loaded.why
		}
	}()
	body(s)
	return ""
}

func (s *scene) canary() {
	for {
		begin := time.Now()
		select {
		case <-s.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if late := int64(time.Since(begin) - 10*time.Millisecond); late > s.late.Load() {
			s.late.Store(late)
		}
	}
}

// soft fails the scene, or has it tried again where the machine was late.
func (s *scene) soft(format string, args ...any) {
	s.Helper()
	why := fmt.Sprintf(format, args...)
	if late := time.Duration(s.late.Load()); late > 60*time.Millisecond {
		panic(tooLoaded{fmt.Sprintf("%s (a timer was %v late)", why, late.Round(time.Millisecond))})
	}
	s.Fatal(why)
}

// fast is a policy for scenes in which nobody has to survive a loaded machine; roomy one for those who have to.
func fast() *lease.Policy { p, _ := lease.PolicyOf(lease.Fast); return &p }

func steady() *lease.Policy { p, _ := lease.PolicyOf(lease.Steady); return &p }

func ttl(p *lease.Policy, d time.Duration) *lease.Policy { q := p.Lower(d); return &q }

func (s *scene) db() *sqldb.DB { return s.dbAt(s.dsn) }

func (s *scene) dbAt(dsn string) *sqldb.DB {
	s.Helper()
	db, err := sqldb.Open(context.Background(), dsn)
	if err != nil {
		s.soft("opening the store: %v", err)
	}
	s.ends = append(s.ends, func() { db.Close() })
	return db
}

// as are the options of one holder; its name is also its owner.
func (s *scene) as(who string, p *lease.Policy) lease.Options {
	return lease.Options{DB: s.db(), Scope: "scene", Owner: who, Policy: p, OnEvent: s.log.Hook(who)}
}

// hold takes the lease and ends it with the scene.
func (s *scene) hold(o lease.Options) *lease.Held {
	s.Helper()
	h, err := lease.Hold(context.Background(), o)
	if err != nil {
		if lease.LossCode(err) != 0 {
			s.soft("lost at once: %v", err)
		}
		s.Fatalf("%s: %v", o.Owner, err)
	}
	s.ends = append(s.ends, func() { _ = h.Release(context.Background()) })
	return h
}

// crash ends a holder as SIGKILL would.
func (s *scene) crash(h *lease.Held) {
	h.Crash()
	s.log.End(h.Token().Owner, boot())
}

func boot() time.Duration { return lease.BootTime{}.Now() }

// lost waits for the loss and says how long it took.
func (s *scene) lost(h *lease.Held, code lease.Code, limit time.Duration) time.Duration {
	s.Helper()
	begin := boot()
	select {
	case <-h.Dead():
	case <-time.After(3*limit + time.Second):
		s.soft("not lost within three times %v", limit)
	}
	took := boot() - begin
	cause := context.Cause(h.Context())
	if !errors.Is(cause, lease.ErrLost) || h.State() != lease.Lost {
		s.Fatalf("state %s, cause %v", h.State(), cause)
	}
	if got := lease.LossCode(cause); code != 0 && got != code {
		s.soft("lost with code %d (%v), want %d", got, cause, code)
	}
	s.within("the loss", took, limit)
	if err := h.Check(context.Background()); !errors.Is(err, lease.ErrLost) {
		s.Errorf("a fence after the loss: %v", err)
	}
	return took
}

// alive fails where a holder that should live does not.
func (s *scene) alive(h *lease.Held) {
	s.Helper()
	if h.State() == lease.Lost {
		s.soft("a healthy holder was lost: %v", context.Cause(h.Context()))
	}
}

// within is an upper bound: three times the stated value.
func (s *scene) within(what string, took, value time.Duration) {
	s.Helper()
	if took > 3*value {
		s.soft("%s took %v, more than three times %v", what, took, value)
	}
}

// atLeast is a bound that must hold on any machine.
func (s *scene) atLeast(what string, took, bound time.Duration) {
	s.Helper()
	if took < bound {
		s.Errorf("%s took %v, less than %v", what, took, bound)
	}
}

func (s *scene) wait(d time.Duration) { <-time.After(d) }

// sql is a session of the test's own.
func (s *scene) sql() *pgx.Conn {
	s.Helper()
	conn, err := pgx.Connect(context.Background(), s.dsn)
	if err != nil {
		s.soft("connecting: %v", err)
	}
	s.ends = append(s.ends, func() { conn.Close(context.Background()) })
	return conn
}

func (s *scene) exec(conn *pgx.Conn, query string, args ...any) {
	s.Helper()
	if _, err := conn.Exec(context.Background(), query, args...); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
}

func (s *scene) row() (token string, generation int64, released bool) {
	s.Helper()
	conn, err := pgx.Connect(context.Background(), s.dsn)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(context.Background())
	err = conn.QueryRow(context.Background(), `SELECT session_token, generation, released FROM qnetops_lease WHERE scope = 'scene'`).Scan(&token, &generation, &released)
	if err != nil {
		s.Fatal(err)
	}
	return token, generation, released
}

// take runs Hold on a goroutine of its own.
func (s *scene) take(ctx context.Context, o lease.Options) <-chan result {
	out := make(chan result, 1)
	begin := boot()
	var ended sync.WaitGroup
	ended.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	s.ends = append(s.ends, func() { cancel(); ended.Wait() })
	go func() {
		defer ended.Done()
		h, err := lease.Hold(ctx, o)
		if h != nil {
			context.AfterFunc(ctx, func() { _ = h.Release(context.Background()) })
		}
		out <- result{h, err, boot() - begin}
	}()
	return out
}

type result struct {
	h    *lease.Held
	err  error
	took time.Duration
}

// got waits for a taker that must succeed.
func (s *scene) got(c <-chan result, limit time.Duration) result {
	s.Helper()
	select {
	case r := <-c:
		if r.err != nil {
			if lease.LossCode(r.err) != 0 {
				s.soft("lost at once: %v", r.err)
			}
			s.Fatal(r.err)
		}
		return r
	case <-time.After(3*limit + 2*time.Second):
		s.soft("not taken within three times %v", limit)
		panic("not reached")
	}
}

// none fails where somebody gets the lease within d.
func (s *scene) none(c <-chan result, d time.Duration) {
	s.Helper()
	select {
	case r := <-c:
		if r.err != nil {
			s.Fatalf("gave up after %v: %v", r.took, r.err)
		}
		// Where the holder was alive the log has two of them, and says so whatever the machine was like.
		s.soft("taken after %v as %s", r.took, r.h.How())
	case <-time.After(d):
	}
}
