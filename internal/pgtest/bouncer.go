package pgtest

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
)

// Bouncer runs a PgBouncer in transaction mode before the server and returns the DSN of the same database through it.
// Further lines go into its configuration.
func (s *Server) Bouncer(t testing.TB, dsn string, lines ...string) string {
	t.Helper()
	program := need.Program(t, "pgbouncer")[0]
	dir := filepath.Join(s.dir, "bouncer"+fmt.Sprint(time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if s.cred != nil {
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	port := freePort(t)
	// With auth_type any the pooler logs in as one user.
	config := fmt.Sprintf("[databases]\n* = user=postgres host=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nauth_type = any\npool_mode = transaction\n"+
		"unix_socket_dir = %s\ndefault_pool_size = 1\nmax_client_conn = 50\n", s.dir, port, dir)
	if s.Port != 0 {
		t.Fatal("a pooler goes before a server that is reached by its unix socket")
	}
	for _, l := range lines {
		config += l + "\n"
	}
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-q", file)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // as for the server: the signal comes when this thread ends
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting PgBouncer: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	through := s.Over(dsn, "127.0.0.1", port)
	awaitDSN(t, through)
	return through
}

func awaitDSN(t testing.TB, dsn string) {
	t.Helper()
	db, err := sql.Open("pgx", dsn+"&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	limit := time.Now().Add(startWait)
	for {
		if err = db.Ping(); err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("waiting for PgBouncer: %v", err)
		}
		<-time.After(20 * time.Millisecond)
	}
}
