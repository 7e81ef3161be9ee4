package lease_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
)

// The faults of other programs of this kind, by the issue in which their users met them. Those that a numbered scenario
// already holds are named at that scenario; those about processes are in package run.

// etcd-io/etcd#11456: a lock that was waited for was granted without another look at the lease behind it.
func TestIssueLockGrantedAfterAWait(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		first := s.hold(s.as("first", p))
		o := s.as("waits", p)
		o.Wait = time.Minute
		c := s.take(context.Background(), o)
		s.wait(400 * time.Millisecond)
		s.exec(s.sql(), `UPDATE qnetops_lease SET writer_id = 'other', session_token = 'x', generation = 9, lease_expires_at = clock_timestamp() + interval '1 hour' WHERE scope = 'scene'`)
		s.lost(first, lease.CodeGuardLost, p.Beat)
		s.none(c, p.Silence+time.Second) // it has the lock now, and the lease is somebody else's
	})
}

// etcd-io/etcd#5571: the loss was never reported while the server stayed away.
func TestIssueServerStaysAway(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	scenario(t, server.DSN, func(s *scene) {
		proxy := server.NewProxy(t)
		o := s.as("first", steady())
		o.DB = s.dbAt(server.Over(s.dsn, "127.0.0.1", proxy.Port))
		h := s.hold(o)
		proxy.Cut()
		defer proxy.Heal()
		s.lost(h, lease.CodeTooOld, steady().Exit)
	})
}

// etcd-io/etcd#15247 and #12528: a stalled old leader released what was not his any more.
func TestIssueLateRelease(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		first := s.hold(s.as("first", fast()))
		s.crash(first)
		second := s.hold(s.as("second", fast()))
		if err := first.LateRelease(context.Background()); err != nil {
			s.soft("%v", err)
		}
		if token, generation, released := s.row(); released || token != second.SessionToken() || generation != 2 {
			t.Errorf("after the late release: %s %d %v", token, generation, released)
		}
		if err := second.Check(context.Background()); err != nil {
			s.soft("%v", err)
		}
	})
}

// kubernetes/kubernetes#23731: the loser was never told. Also what `lease break` does.
func TestIssueLoserIsTold(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		h := s.hold(s.as("first", p))
		info, err := lease.Show(context.Background(), s.db(), "scene")
		if err != nil || !info.Live() || !info.Locked || info.Holder.Owner != "first" || len(info.Guards) != 1 || info.Guards[0].PID != int64(h.GuardPID()) || info.Age > 5*time.Second {
			t.Errorf("shown as %+v (%v)", info, err)
		}
		if err := lease.Break(context.Background(), s.db(), info, "", "me"); err == nil {
			t.Error("broken without a reason")
		}
		if err := lease.Break(context.Background(), s.db(), info, "it is stuck", "me"); err != nil {
			t.Fatal(err)
		}
		s.lost(h, lease.CodeGuardLost, p.Beat)
		if err := lease.Break(context.Background(), s.db(), info, "again", "me"); !errors.Is(err, lease.ErrChanged) {
			t.Errorf("broken twice: %v", err)
		}
		next := s.hold(s.as("second", p))
		if next.How() != lease.ByRelease || next.Token().Epoch != 3 {
			t.Errorf("%s %d", next.How(), next.Token().Epoch)
		}
		log, err := lease.History(context.Background(), s.db(), "scene", 10)
		if err != nil || len(log) != 3 || log[1].Event != "revoked" || log[1].Generation != 2 || !strings.Contains(string(log[1].Detail), "it is stuck") || time.Since(log[1].At) > time.Hour {
			t.Errorf("history %+v (%v)", log, err)
		}
	})
}

// neochaotic/leoflow#1199: what recycles idle connections must not end the one that holds the lock.
func TestIssueIdleSessionTimeout(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		conn := s.sql()
		var name string
		if err := conn.QueryRow(context.Background(), "SELECT current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		_ = s.hold(s.as("makes the tables", steady())).Release(context.Background())
		s.exec(conn, "ALTER DATABASE "+name+" SET idle_session_timeout = '700ms'")
		control := s.sql()
		slow := steady()
		slow.Beat, slow.Exit, slow.Silence, slow.Dead = 1200*time.Millisecond, 3*time.Second, 5*time.Second, 6*time.Second
		h := s.hold(s.as("first", slow))
		s.wait(3 * time.Second)
		s.alive(h)
		if err := control.Ping(context.Background()); err == nil {
			t.Error("the control lives: the setting does nothing")
		}
	})
}

// GreptimeTeam/greptimedb#7670: giving up in the middle left the lock with a session that nobody owned.
func TestIssueCancelledAcquire(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := steady()
		s.crash(s.hold(s.as("first", p)))
		for i := range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(5+20*i)*time.Millisecond)
			if h, err := lease.Hold(ctx, s.as("gives up", p)); err == nil {
				t.Fatalf("taken within the silence by %s", h.How())
			}
			cancel()
		}
		until := time.Now().Add(10 * time.Second)
		for {
			var n int
			if err := s.sql().QueryRow(context.Background(), `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
				WHERE l.locktype = 'advisory' AND d.datname = current_database()`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%d locks are left", n)
			}
			s.wait(20 * time.Millisecond)
		}
	})
}

// nicolastakashi/prom-analytics-proxy#585: the locked session went back to the pool, and the holder never looked again.
func TestIssueGuardIsNoPoolConnection(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		o := s.as("first", steady())
		h := s.hold(o)
		o.DB.SetMaxIdleConns(0) // the pool lets go of everything it has
		if err := o.DB.Ping(); err != nil {
			s.soft("%v", err)
		}
		o.DB.Close()
		s.wait(600 * time.Millisecond)
		if err := h.Check(context.Background()); err != nil {
			s.soft("the lease hung on the pool: %v", err)
		}
	})
}

// JasperFx/wolverine#4261: unsynchronised use of the lock's connection. (In simulated time: TestManyFencesAndARelease.)
func TestIssueHundredFences(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		h := s.hold(s.as("first", steady()))
		var all sync.WaitGroup
		errs := make(chan error, 100)
		for range 100 {
			all.Go(func() { errs <- h.Check(context.Background()) })
		}
		all.Wait()
		for range 100 {
			if err := <-errs; err != nil {
				s.soft("%v", err)
			}
		}
		begin := time.Now()
		if err := h.Release(context.Background()); err != nil {
			s.soft("%v", err)
		}
		s.within("the release", time.Since(begin), 5*time.Second/3)
	})
}

// cilium/cilium#42920: a hook that hangs held up the end.
func TestIssueStuckHook(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		var exited time.Duration
		done := make(chan struct{})
		block := make(chan struct{})
		defer close(block)
		o := s.as("first", fast())
		o.Exit = func(lease.Code, string) { exited = boot(); close(done) }
		o.OnEvent = s.log.Hook("first", func(e lease.Event) {
			if e.State == lease.Lost {
				<-block
			}
		})
		h := s.hold(o)
		s.exec(s.sql(), "SELECT pg_terminate_backend($1)", int64(h.GuardPID()))
		begin := boot()
		<-done
		s.within("the exit beside a hook that hangs", exited-begin, 400*time.Millisecond)
		<-h.Dead()
	})
}

// A foreign lock on the row is not a loss, but nothing may begin under it: a rival could be about to take the lease.
func TestForeignRowLock(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		h := s.hold(s.as("first", steady()))
		tx, err := s.sql().Begin(context.Background())
		if err != nil {
			s.soft("%v", err)
		}
		if _, err := tx.Exec(context.Background(), `SELECT 1 FROM qnetops_lease WHERE scope = 'scene' FOR UPDATE`); err != nil {
			s.soft("%v", err)
		}
		if err := h.Check(context.Background()); !errors.Is(err, lease.ErrBusy) {
			s.soft("a fence under a foreign lock: %v", err)
		}
		s.wait(time.Second)
		s.alive(h)
		_ = tx.Rollback(context.Background())
		if err := h.Check(context.Background()); err != nil {
			s.soft("afterwards: %v", err)
		}
	})
}

// The counter of the temporary lease goes on, in both stores, and an old program that still runs finds itself overtaken.
func TestUpgradeKeepsTheCounter(t *testing.T) {
	stores(t, func(t *testing.T, dsn, dir string) {
		db := open(t, dsn)
		if _, err := db.StoreID(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{
			`CREATE TABLE qnetops_lease_counter (scope text PRIMARY KEY, generation bigint NOT NULL CHECK (generation >= 0), holder text NOT NULL DEFAULT '{}')`,
			`INSERT INTO qnetops_lease_counter VALUES ('mainnet', 41, '{}')`,
			map[sqldb.Dialect]string{
				sqldb.SQLite:   `CREATE TABLE qnetops_lease_schema (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')))`,
				sqldb.Postgres: `CREATE TABLE qnetops_lease_schema (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now())`,
			}[db.Dialect],
			map[sqldb.Dialect]string{
				sqldb.SQLite:   `INSERT INTO qnetops_lease_schema (version_id, is_applied) VALUES (0, 1), (1, 1)`,
				sqldb.Postgres: `INSERT INTO qnetops_lease_schema (version_id, is_applied) VALUES (0, true), (1, true)`,
			}[db.Dialect],
		} {
			if _, err := db.ExecContext(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		l := take(t, db, dir)
		if got := l.Token().Epoch; got <= 41 {
			t.Errorf("the epoch after an upgrade is %d, the old store was at 41", got)
		}
		var old int
		if err := db.QueryRowContext(t.Context(), `SELECT generation FROM qnetops_lease_counter`).Scan(&old); err != nil || old == 41 {
			t.Errorf("an old program would not notice: its counter is %d (%v)", old, err)
		}
	})
}

// A fleet that moves to another store goes on counting from what its hosts have seen.
func TestMovingToAnotherStore(t *testing.T) {
	dir := t.TempDir()
	old := take(t, open(t, filepath.Join(dir, "old.db")), "")
	token, err := old.Raise(t.Context(), 77, "roll-1")
	if err != nil {
		t.Fatal(err)
	}
	_ = old.Release(t.Context())
	next := take(t, open(t, pgtest.DSN(t)), dir)
	raised, err := next.Raise(t.Context(), token.Epoch, "roll-2")
	if err != nil || raised.Epoch <= token.Epoch || raised.Store == token.Store {
		t.Errorf("%+v after %+v (%v)", raised, token, err)
	}
	info, err := lease.Show(t.Context(), open(t, filepath.Join(dir, "old.db")), "mainnet")
	if err != nil || !info.Released || info.Generation != token.Epoch {
		t.Errorf("%+v %v", info, err)
	}
}

// Break on SQLite: the holder notices by itself.
func TestBreakOnSQLite(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "s.db")
	l := take(t, open(t, dsn), "")
	if _, err := l.Raise(t.Context(), 3, "roll-9"); err != nil {
		t.Fatal(err)
	}
	info, err := lease.Show(t.Context(), open(t, dsn), "mainnet")
	if err != nil || !info.Locked || info.Holder.Operation != "roll-9" || info.Generation != 4 || info.Holder.Owner != "ann@desk" {
		t.Fatalf("%+v %v", info, err)
	}
	if err := lease.Break(t.Context(), open(t, dsn), info, "gone home", "me"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the holder does not notice")
	}
	if err := l.Check(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Error(err)
	}
	// The lock stays until the process that had the lease has wound down.
	if _, err := lease.Acquire(t.Context(), lease.Options{DB: open(t, dsn), Scope: "mainnet"}); !errors.As(err, new(*lease.HeldError)) {
		t.Errorf("taken while the broken holder still runs: %v", err)
	}
	_ = l.Release(t.Context())
	if next := take(t, open(t, dsn), ""); next.Token().Epoch != 6 {
		t.Errorf("epoch %d after the revoked 5", next.Token().Epoch)
	}
	log, err := lease.History(t.Context(), open(t, dsn), "mainnet", 2)
	if err != nil || len(log) != 2 || log[1].Event != "revoked" || log[0].Event != "acquired" || log[0].At.IsZero() {
		t.Errorf("%+v %v", log, err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	refused := func(t *testing.T, o lease.Options, code lease.Code, says string) {
		t.Helper()
		o.Scope = "scene"
		_, err := lease.Hold(t.Context(), o)
		var r *lease.RefusedError
		if !errors.As(err, &r) || r.Code != code || !strings.Contains(err.Error(), says) || r.Hint() == "" {
			t.Errorf("%v, want code %d and %q", err, code, says)
		}
	}
	t.Run("replica", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		u, _ := url.Parse(dsn)
		// A database that is read-only for everybody is to us what a replica is.
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = on", strings.TrimPrefix(u.Path, "/"))); err != nil {
			t.Fatal(err)
		}
		refused(t, lease.Options{DB: open(t, dsn), Wait: time.Minute}, lease.CodeUsage, "replica")
	})
	t.Run("rights", func(t *testing.T) {
		dsn := pgtest.DSN(t)
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if _, err := conn.Exec(t.Context(), "CREATE ROLE poor LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC"); err != nil {
			t.Fatal(err)
		}
		poor := strings.Replace(dsn, "postgres@", "poor@", 1)
		_, err = lease.Hold(t.Context(), lease.Options{DB: open(t, poor), Scope: "scene"})
		var hint interface{ Hint() string }
		if !errors.As(err, &hint) || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%v", err)
		}
	})
	t.Run("newer schema", func(t *testing.T) {
		stores(t, func(t *testing.T, dsn, dir string) {
			db := open(t, dsn)
			_ = take(t, db, dir).Release(t.Context())
			if _, err := db.ExecContext(t.Context(), `INSERT INTO qnetops_lease_schema (version_id, is_applied) VALUES (99, `+map[sqldb.Dialect]string{sqldb.SQLite: "1", sqldb.Postgres: "true"}[db.Dialect]+`)`); err != nil {
				t.Fatal(err)
			}
			_, err := lease.Hold(t.Context(), lease.Options{DB: db, Dir: dir, Scope: "mainnet"})
			if !errors.As(err, new(*sqldb.NewerSchemaError)) {
				t.Error(err)
			}
		})
	})
	t.Run("token", func(t *testing.T) {
		refused(t, lease.Options{DB: open(t, filepath.Join(t.TempDir(), "s.db")), Token: "mine"}, lease.CodeUsage, "fixed session token")
	})
	t.Run("policy", func(t *testing.T) {
		p := *steady()
		p.Silence = time.Second
		_, err := lease.Hold(t.Context(), lease.Options{DB: open(t, filepath.Join(t.TempDir(), "s.db")), Scope: "x", Policy: &p})
		if !errors.As(err, new(*lease.PolicyError)) {
			t.Error(err)
		}
	})
}
