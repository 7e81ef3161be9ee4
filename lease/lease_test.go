package lease_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
)

func TestMain(m *testing.M) {
	// The tests of this package mostly wait; how many wait at once need not follow from the number of processors.
	_ = flag.Set("test.parallel", "8")
	os.Exit(pgtest.Main(m))
}

func open(t *testing.T, dsn string) *sqldb.DB {
	t.Helper()
	db, err := sqldb.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func take(t *testing.T, db *sqldb.DB, dir string) lease.Lease {
	t.Helper()
	l, err := lease.Acquire(t.Context(), lease.Options{DB: db, Dir: dir, Scope: "mainnet", Owner: "ann@desk"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

// stores runs a test on both databases.
func stores(t *testing.T, run func(t *testing.T, dsn, dir string)) {
	t.Run("sqlite", func(t *testing.T) {
		dir := t.TempDir()
		run(t, filepath.Join(dir, "state.db"), dir)
	})
	t.Run("postgres", func(t *testing.T) { run(t, pgtest.DSN(t), t.TempDir()) })
}

func TestLease(t *testing.T) {
	stores(t, func(t *testing.T, dsn, dir string) {
		first := take(t, open(t, dsn), dir)
		token := first.Token()
		store, err := open(t, dsn).StoreID(t.Context())
		if err != nil || token.Fleet != "mainnet" || token.Owner != "ann@desk" || token.Store != store || token.Epoch != 1 || token.Operation != "" {
			t.Errorf("first token %+v (%v)", token, err)
		}
		heldBy(t, dsn, dir, os.Getpid())

		raised, err := first.Raise(t.Context(), 41, "roll-1")
		if err != nil || raised.Epoch != 42 || raised.Operation != "roll-1" || first.Token() != raised {
			t.Errorf("raised over the hosts' 41: %+v, %v", raised, err)
		}
		if again, err := first.Raise(t.Context(), 3, "roll-2"); err != nil || again.Epoch != 43 {
			t.Errorf("raised over an older record: %+v, %v", again, err)
		}
		if _, err := first.Raise(t.Context(), math.MaxUint64, "roll-3"); err == nil {
			t.Error("raised past the largest number")
		}
		if err := first.Check(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := first.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if !errors.Is(context.Cause(first.Context()), lease.ErrReleased) {
			t.Errorf("context after release: %v", context.Cause(first.Context()))
		}
		if err := first.Check(t.Context()); !errors.Is(err, lease.ErrReleased) {
			t.Errorf("check after release: %v", err)
		}
		if _, err := first.Raise(t.Context(), 100, "x"); !errors.Is(err, lease.ErrReleased) {
			t.Errorf("raise after release: %v", err)
		}
		if second := take(t, open(t, dsn), dir); second.Token().Epoch != 44 {
			t.Errorf("the epoch after a release is %d", second.Token().Epoch)
		}
		if _, err := lease.Acquire(t.Context(), lease.Options{DB: open(t, dsn), Dir: dir, Scope: "testnet"}); err != nil {
			t.Errorf("another fleet: %v", err)
		}
	})
}

func heldBy(t *testing.T, dsn, dir string, pid int) {
	t.Helper()
	_, err := lease.Acquire(t.Context(), lease.Options{DB: open(t, dsn), Dir: dir, Scope: "mainnet", Owner: "bob"})
	var held *lease.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("taken while held: %v", err)
	}
	host, _ := os.Hostname()
	if held.Scope != "mainnet" || held.Owner == "" || held.Owner == "bob" || held.Host != host || held.PID != pid || time.Since(held.Since) > time.Minute {
		t.Errorf("the holder is named as %+v", held)
	}
	if !strings.Contains(err.Error(), held.Owner) || held.Hint() == "" {
		t.Errorf("says %q, hint %q", err, held.Hint())
	}
}

// Two machines share a Postgres but no folder: the session lock must do what the file lock cannot.
func TestPostgresAcrossMachines(t *testing.T) {
	dsn := pgtest.DSN(t)
	db := open(t, dsn)
	l := take(t, db, t.TempDir())
	heldBy(t, dsn, t.TempDir(), os.Getpid())
	// The server ends the holder's session: the lease is lost, and the holder finds out by itself.
	if _, err := open(t, dsn).ExecContext(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("a lost session was not noticed")
	}
	if cause := context.Cause(l.Context()); !errors.Is(cause, lease.ErrLost) {
		t.Errorf("cause %v", cause)
	}
	if err := l.Check(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("check: %v", err)
	}
	if next := take(t, open(t, dsn), t.TempDir()); next.Token().Epoch <= l.Token().Epoch {
		t.Errorf("epoch %d after %d", next.Token().Epoch, l.Token().Epoch)
	}
}

// Whoever removes the lock file lets a second process in; the first one must then notice and stop.
func TestRemovedLockFile(t *testing.T) {
	dir := t.TempDir()
	dsn := filepath.Join(dir, "state.db")
	old := take(t, open(t, dsn), "")
	locks, _ := filepath.Glob(filepath.Join(dir, "lease-mainnet-*.lock"))
	if len(locks) != 1 {
		t.Fatal(locks)
	}
	if err := os.Remove(locks[0]); err != nil {
		t.Fatal(err)
	}
	next := take(t, open(t, dsn), "")
	if err := old.Check(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the old holder: %v", err)
	}
	if _, err := old.Raise(t.Context(), 0, "x"); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the old holder raises: %v", err)
	}
	if err := next.Check(t.Context()); err != nil {
		t.Errorf("the new holder: %v", err)
	}
}

func TestContextEndsWithItsParent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := lease.Acquire(ctx, lease.Options{DB: open(t, filepath.Join(t.TempDir(), "s.db")), Scope: "f"})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-l.Context().Done()
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("an interrupted program still holds its lease until it releases: %v", err)
	}
	if err := l.Release(ctx); err != nil {
		t.Errorf("release under the context that was interrupted: %v", err)
	}
}

// SIGKILL of the holder frees the lease at once, and the epoch goes on rising.
func TestKilledHolder(t *testing.T) {
	stores(t, func(t *testing.T, dsn, dir string) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
		cmd.Env = append(os.Environ(), "LEASE_HELPER="+dsn, "LEASE_DIR="+dir)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		line, err := bufio.NewReader(pipe).ReadString('\n')
		if line != "holding 8\n" {
			t.Fatalf("the holder says %q (%v)", line, err)
		}
		heldBy(t, dsn, dir, cmd.Process.Pid)

		waited := make(chan lease.Lease, 1)
		db := open(t, dsn)
		go func() {
			l, err := lease.Acquire(t.Context(), lease.Options{DB: db, Dir: dir, Scope: "mainnet", Owner: "bob", Wait: 30 * time.Second})
			if err != nil {
				t.Error(err)
			}
			waited <- l
		}()
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		l := <-waited
		if l == nil {
			t.FailNow()
		}
		defer l.Release(context.Background())
		if l.Token().Epoch != 9 {
			t.Errorf("epoch %d after the killed holder's 8", l.Token().Epoch)
		}
	})
}

func TestHelperProcess(t *testing.T) {
	dsn := os.Getenv("LEASE_HELPER")
	if dsn == "" {
		return
	}
	l := take(t, open(t, dsn), os.Getenv("LEASE_DIR"))
	token, err := l.Raise(t.Context(), 7, "roll-1")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("holding", token.Epoch)
	select {} // until killed
}

func TestWait(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "s.db")
	first := take(t, open(t, dsn), "")
	start := time.Now()
	_, err := lease.Acquire(t.Context(), lease.Options{DB: open(t, dsn), Scope: "mainnet", Wait: 120 * time.Millisecond})
	var held *lease.HeldError
	if took := time.Since(start); !errors.As(err, &held) || took < 120*time.Millisecond {
		t.Errorf("after %v: %v", took, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lease.Acquire(ctx, lease.Options{DB: open(t, dsn), Scope: "mainnet", Wait: time.Hour}); err == nil {
		t.Error("waited under a context that is over")
	}
	go func() { _ = first.Release(context.Background()) }()
	l, err := lease.Acquire(t.Context(), lease.Options{DB: open(t, dsn), Scope: "mainnet", Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Release(t.Context())
}

// Never two: many take and give back at once, each over a connection of its own.
func TestOnlyOne(t *testing.T) {
	dsn := filepath.Join(t.TempDir(), "s.db")
	open(t, dsn)
	var inside, most int
	var epochs []uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 6 {
		db := open(t, dsn)
		wg.Go(func() {
			for range 3 {
				l, err := lease.Acquire(t.Context(), lease.Options{DB: db, Scope: "mainnet", Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				epochs = append(epochs, l.Token().Epoch)
				mu.Unlock()
				if err := l.Check(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				inside--
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d held it at once", most)
	}
	for i, e := range epochs {
		if e != uint64(i+1) {
			t.Errorf("epochs in order of holding: %v", epochs)
			break
		}
	}
}

func TestNames(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"))
	for _, scope := range []string{"../../etc/passwd", "a b", "ünï", strings.Repeat("x", 300), "a/b", "a_b"} {
		l, err := lease.Acquire(t.Context(), lease.Options{DB: db, Scope: scope})
		if err != nil {
			t.Errorf("%.20q: %v", scope, err)
			continue
		}
		defer l.Release(context.Background())
	}
	if _, err := lease.Acquire(t.Context(), lease.Options{DB: db}); err == nil {
		t.Error("a lease of nothing")
	}
}
