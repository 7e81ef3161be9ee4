package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/journal/journaltest"
)

func opener(t *testing.T, dsn string) func() *sqldb.DB {
	return func() *sqldb.DB {
		t.Helper()
		db, err := sqldb.Open(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
}

func TestSQLite(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) func() *sqldb.DB {
		return opener(t, filepath.Join(t.TempDir(), "state.db"))
	})
}

func TestPostgres(t *testing.T) {
	server := pgtest.Start(t)
	journaltest.Run(t, func(t *testing.T) func() *sqldb.DB { return opener(t, server.DSN(t)) })
	t.Run("killed between intent and outcome", func(t *testing.T) { killed(t, server.DSN(t)) })
	t.Run("two processes begin at once", func(t *testing.T) { beginTwice(t, server.DSN(t)) })
	t.Run("the server dies during the act", func(t *testing.T) {
		dsn := server.DSN(t)
		db := opener(t, dsn)()
		s, err := journal.Open(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		op, err := s.Begin(t.Context(), journal.Spec{Kind: "roll", Fleet: "f", Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		err = op.Do(t.Context(), journal.Step{ID: "act"}, func(context.Context) (any, error) { server.Kill(); return nil, nil })
		var in *journal.InDoubtError
		if !errors.As(err, &in) || in.Step != "act" {
			t.Errorf("the outcome could not be written: %v", err)
		}
		server.Run(t)
		inDoubtAfterResume(t, dsn, "act")
	})
}

func TestSQLiteKilledBetweenIntentAndOutcome(t *testing.T) {
	killed(t, filepath.Join(t.TempDir(), "state.db"))
}

func TestSQLiteTwoProcessesBeginAtOnce(t *testing.T) {
	beginTwice(t, filepath.Join(t.TempDir(), "state.db"))
}

// killed carries out a step in another process, ends that process with SIGKILL in the middle of the act, and looks.
func killed(t *testing.T, dsn string) {
	cmd, out := helper(t, "act", dsn)
	defer cmd.Wait()
	if line := out(); line != "acting" {
		t.Fatalf("the other process says %q", line)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	inDoubtAfterResume(t, dsn, "act")
}

func inDoubtAfterResume(t *testing.T, dsn, id string) {
	t.Helper()
	s, err := journal.Open(t.Context(), opener(t, dsn)())
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), "")
	if err != nil || len(list) != 1 || len(list[0].Unsettled()) != 1 || list[0].State != journal.Running {
		t.Fatalf("%+v, %v", list, err)
	}
	op, err := s.Op(t.Context(), list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := op.Resume(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	steps, err := op.Steps(t.Context())
	if err != nil || len(steps) == 0 {
		t.Fatal(steps, err)
	}
	last := steps[len(steps)-1]
	if last.ID != id || last.State != journal.StepInDoubt {
		t.Errorf("after the crash: %+v", last)
	}
	if err := op.Settle(t.Context(), id, journal.StepDone, "seen", nil); err != nil {
		t.Error(err)
	}
	if err := op.Finish(t.Context(), journal.Done, ""); err != nil {
		t.Error(err)
	}
}

// beginTwice lets two processes begin at the same moment.
func beginTwice(t *testing.T, dsn string) {
	if _, err := journal.Open(t.Context(), opener(t, dsn)()); err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	var outs []func() string
	for range 2 {
		cmd, out := helper(t, "begin", dsn, gate)
		defer cmd.Wait()
		if line := out(); line != "ready" {
			t.Fatalf("the other process says %q", line)
		}
		outs = append(outs, out)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := outs[0](), outs[1]()
	if strings.HasPrefix(b, "won ") {
		a, b = b, a
	}
	if id, ok := strings.CutPrefix(a, "won "); !ok || b != "lost to "+id {
		t.Errorf("%q and %q", a, b)
	}
}

// helper runs TestHelperProcess in a process of its own and returns a reader of its lines.
func helper(t *testing.T, mode string, args ...string) (*exec.Cmd, func() string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), "JOURNAL_HELPER="+mode, "JOURNAL_ARGS="+strings.Join(args, "\n"))
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(pipe)
	return cmd, func() string {
		lines.Scan()
		return lines.Text()
	}
}

// TestHelperProcess is the other process of the tests above.
func TestHelperProcess(t *testing.T) {
	mode, args := os.Getenv("JOURNAL_HELPER"), strings.Split(os.Getenv("JOURNAL_ARGS"), "\n")
	if mode == "" {
		return
	}
	s, err := journal.Open(t.Context(), opener(t, args[0])())
	if err != nil {
		t.Fatal(err)
	}
	spec := journal.Spec{Kind: "roll", Fleet: "f", Operator: "other", Epoch: 1}
	switch mode {
	case "act":
		op, err := s.Begin(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Do(t.Context(), journal.Step{ID: "before"}, func(context.Context) (any, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
		_ = op.Do(t.Context(), journal.Step{ID: "act"}, func(context.Context) (any, error) {
			fmt.Println("acting")
			select {} // until killed
		})
	case "begin":
		fmt.Println("ready")
		for {
			if _, err := os.Stat(args[1]); err == nil {
				break
			}
		}
		op, err := s.Begin(t.Context(), spec)
		var u *journal.UnfinishedError
		switch {
		case err == nil:
			fmt.Println("won " + op.ID())
		case errors.As(err, &u):
			fmt.Println("lost to " + u.ID)
		default:
			fmt.Println("error:", err)
		}
	}
}
