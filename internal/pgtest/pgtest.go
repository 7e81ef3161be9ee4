// Package pgtest runs a real Postgres for tests: a cluster of its own in a temporary folder, reached by a unix socket, gone
// when the test ends. What a database does under races and crashes cannot be learned from an imitation.
package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
)

const startWait = 60 * time.Second

// Config changes how a server is run. The zero value is a server that is reached by its unix socket alone.
type Config struct {
	TCP       string   // also listen at this address, on a free port
	Namespace string   // network namespace to run in, as `ip netns add` names it; needs root
	FakeClock bool     // the server's wall clock can be stepped with StepClock; needs libfaketime
	Settings  []string // further "name=value"
}

// Server is a running Postgres.
type Server struct {
	Config
	Port     int // with TCP
	bin, dir string
	cred     *syscall.Credential // nil: the server runs as we do

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  bytes.Buffer
	next int // number of the next database
}

// Start runs a new cluster for the length of the test. It skips the test (fails it with CI=true) where no Postgres is installed.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith is Start with a server of another kind.
func StartWith(t testing.TB, config Config) *Server {
	t.Helper()
	s := &Server{Config: config, bin: need.Postgres(t)}
	if config.FakeClock && fakeClock() == "" {
		need.Missing(t, "libfaketime", "scripts/test.sh installs it where it may")
	}
	if config.TCP != "" {
		s.Port = freePort(t)
	}
	t.Cleanup(s.remove)
	s.make(t)
	return s
}

// shared is the one server of a test binary that uses Main.
var shared struct {
	sync.Mutex
	server *Server
}

// Main runs the tests of a package and afterwards ends the server that DSN shares among them:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	defer func() {
		if shared.server != nil {
			shared.server.remove()
		}
	}()
	return m.Run()
}

// DSN is a new, empty database on the server that the package's tests share. The package needs Main.
func DSN(t testing.TB) string {
	t.Helper()
	bin := need.Postgres(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = &Server{bin: bin}
		shared.server.make(t)
	}
	return shared.server.DSN(t)
}

func (s *Server) make(t testing.TB) {
	t.Helper()
	if err := s.folder(); err != nil {
		t.Fatal(err)
	}
	initdb := s.command("initdb", "-D", filepath.Join(s.dir, "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("making a Postgres cluster: %v\n%s", err, out)
	}
	if s.Namespace != "" { // its link ends on this machine and nowhere else
		s.append(t, "pg_hba.conf", "host all all 198.18.0.0/15 trust\n")
	}
	s.Run(t)
}

func (s *Server) remove() {
	s.Kill()
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// folder makes the cluster's folder. Postgres refuses to run as root, so root gives it to the user postgres; the path is kept
// short (a unix socket's is limited to 107 bytes) and outside folders that this user may not enter.
func (s *Server) folder() (err error) {
	if s.dir, err = os.MkdirTemp("/tmp", "pgtest"); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("there is no user postgres to run the server as, which refuses to run as root: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: false}
	return os.Chown(s.dir, uid, gid)
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

// Run starts the server again after Stop or Kill, on the same data, and waits until it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Reset()
	s.cmd = s.command("postgres", s.arguments()...)
	s.cmd.Env = append(s.cmd.Env, s.fakeEnv(t)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	// The server must not outlive a test binary that is killed. The kernel sends this signal when the starting thread ends,
	// so a goroutine keeps that thread for as long as the server runs.
	s.cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	started, done := make(chan error, 1), make(chan struct{})
	cmd := s.cmd
	go func() {
		runtime.LockOSThread()
		defer close(done)
		err := s.enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting Postgres: %v", err)
	}
	s.done = done
	if err := s.answer(); err != nil {
		t.Fatalf("waiting for Postgres: %v\n%s", err, s.log.String())
	}
}

func (s *Server) answer() error {
	db, err := sql.Open("pgx", s.dsn("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	limit := time.NewTimer(startWait)
	defer limit.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := db.PingContext(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("the server has ended: %w", err)
		case <-limit.C:
			return err
		case <-again.C:
		}
	}
}

// DSN makes a new, empty database and returns its address, "postgres://…".
func (s *Server) DSN(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.next++
	name := "t" + strconv.Itoa(s.next)
	s.mu.Unlock()
	db, err := sql.Open("pgx", s.dsn("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatalf("making a database: %v", err)
	}
	return s.dsn(name)
}

func (s *Server) dsn(database string) string {
	q := url.Values{"host": {s.dir}, "sslmode": {"disable"}}
	if s.Port != 0 {
		q.Set("port", strconv.Itoa(s.Port))
	}
	return "postgres://postgres@/" + database + "?" + q.Encode()
}

// PID is the server's process, for tests that pause it.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

// Stop ends the server in order (a fast shutdown). Kill ends it as a crash would.
func (s *Server) Stop() { s.signal(syscall.SIGINT) }

// Kill ends the server at once; its next Run recovers from its log.
func (s *Server) Kill() { s.signal(syscall.SIGQUIT) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	if cmd == nil || done == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGCONT) // a paused server could not hear the other one
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
	case <-time.After(startWait):
		_ = cmd.Process.Kill()
		<-done
	}
}
