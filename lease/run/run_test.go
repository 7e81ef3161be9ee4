package run_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/lease/leasetest"
	"github.com/qnetops/qnetops/lease/run"
)

// The test binary is also the supervisor, the reaper and the command: a process cannot be killed or stopped from within.
func TestMain(m *testing.M) {
	switch os.Getenv("LEASE_RUN_ROLE") {
	case "supervisor":
		os.Exit(supervisor())
	case "reaper":
		if err := run.Reap(os.Getenv("LEASE_RUN_LOCK")); err != nil {
			fmt.Fprintln(os.Stderr, "reaper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case "worker":
		worker()
		os.Exit(0)
	case "nothing":
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "6") // they mostly wait
	os.Exit(pgtest.Main(m))
}

// spec is what a test asks of a supervisor.
type spec struct {
	State, Dir, Writer, Profile, Log string
	TTL, Silence, ExitAge            time.Duration
	Wait, Stop                       time.Duration
	RequireFast, Churn, StuckLog     bool
	Token                            string
	Watch                            run.Watchdogs
	Args                             []string
	Env                              []string
}

func supervisor() int {
	var s spec
	if err := json.Unmarshal([]byte(os.Getenv("LEASE_RUN_SPEC")), &s); err != nil {
		panic(err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if s.Churn {
		go churn()
	}
	p, err := lease.PolicyOf(s.Profile)
	if err != nil {
		panic(err)
	}
	if s.TTL > 0 {
		p = p.Lower(s.TTL)
	}
	if s.Silence > 0 {
		p.Silence = s.Silence
	}
	if s.ExitAge > 0 {
		p.Exit = s.ExitAge
	}
	env := append([]string{}, s.Env...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEASE_RUN_") {
			env = append(env, e)
		}
	}
	return run.Run(context.Background(), run.Config{
		Lease: lease.Options{Scope: "svc", Writer: s.Writer, Owner: "test@here", Wait: s.Wait, Policy: &p, RequireFast: s.RequireFast, Dir: s.Dir, Token: s.Token},
		Open:  func(ctx context.Context) (*sqldb.DB, error) { return sqldb.Open(ctx, s.State) },
		Dir:   s.Dir, Args: s.Args, Env: env, Stdin: nil, Stdout: os.Stdout, Stderr: os.Stderr, StopTimeout: s.Stop, Watch: s.Watch,
		Signals: signals, Exit: syscall.Exit, Log: os.Stderr,
		Reaper: func(lock string) (*exec.Cmd, error) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "LEASE_RUN_ROLE=reaper", "LEASE_RUN_LOCK="+lock)
			return cmd, nil
		},
	})
}

// churn makes the runtime end threads all the time.
func churn() {
	for {
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(done)
		}()
		<-done
		<-time.After(time.Millisecond)
	}
}

// worker is a command that writes down that it is alive: one line each few milliseconds, with its generation and the
// clock that all processes of the machine share. Two of these alive at once is what must never be.
func worker() {
	f, err := os.OpenFile(os.Getenv("WORK_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	signal.Ignore(syscall.SIGHUP)
	if os.Getenv("WORK_DEAF") != "" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGINT)
	}
	touch := os.Getenv("WORK_TOUCH")
	for {
		now := lease.BootTime{}.Now()
		fmt.Fprintf(f, "%s %s %d\n", os.Getenv(run.EnvGeneration), strconv.Itoa(os.Getpid()), now)
		if touch != "" {
			if _, err := os.Stat(touch + ".stop"); err != nil {
				_ = os.WriteFile(touch, []byte(strconv.FormatInt(int64(now), 10)), 0o600)
			}
		}
		<-time.After(4 * time.Millisecond)
	}
}

// fixture is one state folder, one store and one log of the commands that ran.
type fixture struct {
	*testing.T
	state, dir, log string
	late            atomic.Int64 // the worst lateness of a timer since the test began
}

func fix(t *testing.T, state string) *fixture {
	dir := t.TempDir()
	f := &fixture{T: t, state: state, dir: dir, log: filepath.Join(dir, "work.log")}
	if state == "" {
		f.state = filepath.Join(dir, "state.db")
	}
	t.Cleanup(f.check)
	go f.canary()
	return f
}

func (f *fixture) canary() {
	for f.Context().Err() == nil {
		begin := time.Now()
		<-time.After(10 * time.Millisecond)
		f.late.Store(max(f.late.Load(), int64(time.Since(begin)-10*time.Millisecond)))
	}
}

// soft fails the test unless the machine was too loaded for what it asks. What must never be is never asked in this way.
func (f *fixture) soft(format string, args ...any) {
	f.Helper()
	if late := time.Duration(f.late.Load()); late > 60*time.Millisecond {
		f.Logf("on a machine where a timer was %v late: "+format, append([]any{late.Round(time.Millisecond)}, args...)...)
		return
	}
	f.Errorf(format, args...)
}

// check holds what the commands wrote to what a lease is for.
func (f *fixture) check() {
	data, err := os.ReadFile(f.log)
	if err != nil {
		return
	}
	type life struct{ from, to int64 }
	lives := map[uint64]*life{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var generation uint64
		var pid, at int64
		if _, err := fmt.Sscan(lines.Text(), &generation, &pid, &at); err != nil {
			continue
		}
		if lives[generation] == nil {
			lives[generation] = &life{from: at}
		}
		lives[generation].to = max(lives[generation].to, at)
	}
	l := &leasetest.Log{}
	for g, life := range lives {
		who := fmt.Sprint("generation ", g)
		l.Begin(who, g, time.Duration(life.from))
		l.End(who, time.Duration(life.to))
	}
	l.Check(f)
}

// proc is a running supervisor.
type proc struct {
	*exec.Cmd
	out  *bytes.Buffer
	done chan struct{}
	code int
	at   time.Duration // when it ended
}

func (f *fixture) spec(more func(*spec)) spec {
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	s := spec{State: f.state, Dir: f.dir, Writer: "svc", Profile: lease.Steady, Stop: 5 * time.Second, Args: []string{self},
		Env: []string{"LEASE_RUN_ROLE=worker", "WORK_LOG=" + f.log}}
	if more != nil {
		more(&s)
	}
	return s
}

func (f *fixture) start(more func(*spec)) *proc { return f.startTo(more, nil) }

func (f *fixture) startTo(more func(*spec), stderr io.Writer) *proc {
	f.Helper()
	s := f.spec(more)
	text, _ := json.Marshal(s)
	p := &proc{Cmd: exec.Command("/proc/self/exe"), out: &bytes.Buffer{}, done: make(chan struct{})}
	p.Env = append(os.Environ(), "LEASE_RUN_ROLE=supervisor", "LEASE_RUN_SPEC="+string(text))
	p.Stdout, p.Stderr = p.out, p.out
	if stderr != nil {
		p.Stdout, p.Stderr = stderr, stderr
	}
	p.WaitDelay = time.Second // a command that outlives its supervisor would keep the pipe
	if err := p.Start(); err != nil {
		f.Fatal(err)
	}
	go func() {
		_ = p.Wait()
		p.code, p.at = p.ProcessState.ExitCode(), boot()
		close(p.done)
	}()
	f.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Kill()
		<-p.done
		if f.Failed() && stderr == nil {
			f.Logf("supervisor %d: code %d\n%s", p.Process.Pid, p.code, p.out.String())
		}
	})
	return p
}

func boot() time.Duration { return lease.BootTime{}.Now() }

// works waits until a command of that generation has written, and says when its first line was.
func (f *fixture) works(generation uint64, limit time.Duration) time.Duration {
	f.Helper()
	until := time.Now().Add(limit)
	for {
		if at, ok := f.first(generation); ok {
			return at
		}
		if time.Now().After(until) {
			f.Fatalf("generation %d did not begin within %v", generation, limit)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (f *fixture) first(generation uint64) (time.Duration, bool) {
	data, _ := os.ReadFile(f.log)
	prefix := []byte(strconv.FormatUint(generation, 10) + " ")
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		if bytes.HasPrefix(line, prefix) {
			fields := bytes.Fields(line)
			if len(fields) == 3 {
				n, _ := strconv.ParseInt(string(fields[2]), 10, 64)
				return time.Duration(n), true
			}
		}
	}
	return 0, false
}

// last is when a command of that generation last wrote.
func (f *fixture) last(generation uint64) (at time.Duration) {
	data, _ := os.ReadFile(f.log)
	prefix := []byte(strconv.FormatUint(generation, 10) + " ")
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		if fields := bytes.Fields(line); bytes.HasPrefix(line, prefix) && len(fields) == 3 {
			n, _ := strconv.ParseInt(string(fields[2]), 10, 64)
			at = max(at, time.Duration(n))
		}
	}
	return at
}

// lives is false, and the test is over, where a loaded machine has ended a healthy supervisor before its turn.
func (f *fixture) lives(p *proc) bool {
	f.Helper()
	select {
	case <-p.done:
		f.soft("a healthy supervisor has ended: %d\n%s", p.code, p.out)
		return false
	default:
		return true
	}
}

func (p *proc) kill() time.Duration {
	_ = p.Process.Kill()
	return boot()
}

func (p *proc) ends(f *fixture, limit time.Duration) int {
	f.Helper()
	select {
	case <-p.done:
		return p.code
	case <-time.After(limit):
		f.Fatalf("the supervisor has not ended within %v", limit)
		return 0
	}
}

func atLeast(t testing.TB, what string, took, bound time.Duration) {
	t.Helper()
	if took < bound {
		t.Errorf("%s after %v, sooner than %v", what, took, bound)
	}
}

func (f *fixture) within(what string, took, value time.Duration) {
	f.Helper()
	if took <= 3*value {
		return
	}
	start := f.bareStart()
	if took <= 3*value+startsInARow*start {
		f.Logf("%s took %v: more than three times %v, on a machine that needs %v to start a program", what, took, value, start)
		return
	}
	f.soft("%s took %v, more than three times %v", what, took, value)
}

// startsInARow is how many programs are started one after the other between a supervisor's start and its command's first
// line: supervisor, reaper, the starter of the command, a shell and the command.
const startsInARow = 5

// bareStart is how long this machine takes at present to start this program and see it end: the longest of three, since
// the work that slowed the measured thing comes and goes.
func (f *fixture) bareStart() time.Duration {
	f.Helper()
	var longest time.Duration
	for range 3 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "LEASE_RUN_ROLE=nothing")
		begin := boot()
		if err := cmd.Run(); err != nil {
			f.Fatal(err)
		}
		longest = max(longest, boot()-begin)
	}
	return longest
}

// gone waits until no process of the command is left.
func (f *fixture) quiet(limit time.Duration) {
	f.Helper()
	until := time.Now().Add(limit)
	for before := int64(-1); ; {
		st, err := os.Stat(f.log)
		if err == nil && st.Size() == before {
			return
		}
		if err == nil {
			before = st.Size()
		}
		if time.Now().After(until) {
			f.Fatal("the command still writes")
		}
		<-time.After(60 * time.Millisecond)
	}
}

func TestScenario01CrashAndRestart(t *testing.T) {
	t.Parallel()
	for profile, silence := range map[string]time.Duration{lease.Fast: time.Second, lease.Steady: 2 * time.Second} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			f := fix(t, pgtest.DSN(t))
			set := func(s *spec) { s.Profile = profile }
			first := f.start(set)
			f.works(1, time.Minute)
			killed := first.kill()
			<-first.done
			f.start(set)
			began := f.works(2, time.Minute)
			atLeast(t, "the successor began", began-killed, silence)
			f.within("the take-over", began-killed, silence+300*time.Millisecond)
		})
	}
}

func TestScenario02StandbyTakesOver(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	fast := func(s *spec) { s.Profile = lease.Fast }
	first := f.start(fast)
	f.works(1, time.Minute)
	for range 3 {
		dir := t.TempDir() // as on another machine: only the database stands between them
		f.start(func(s *spec) { fast(s); s.Dir, s.Wait = dir, time.Minute })
	}
	<-time.After(time.Second)
	if !f.lives(first) {
		return
	}
	killed := first.kill()
	began := f.works(2, time.Minute)
	atLeast(t, "the standby began", began-killed, time.Second)
	f.within("the take-over", began-killed, 1550*time.Millisecond)
	<-time.After(time.Second)
	if _, ok := f.first(3); ok {
		f.soft("a second standby took it from the first")
	}
}

func TestScenario03WatchdogReleases(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"file", "command", "socket"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := fix(t, pgtest.DSN(t))
			touch := filepath.Join(f.dir, "touch")
			first := f.start(func(s *spec) {
				s.Watch.Timeout = 3 * time.Second // a slow machine takes its time until the first touch
				s.Env = append(s.Env, "WORK_TOUCH="+touch)
				switch kind {
				case "file":
					s.Watch.File = touch
				case "command":
					s.Watch.Command = "test ! -e " + touch + ".stop"
				case "socket":
					s.Watch.Socket = true // nobody sends
				}
			})
			f.works(1, time.Minute)
			if kind != "socket" {
				<-time.After(4 * time.Second)
				select {
				case <-first.done:
					t.Fatal("ended although all was well")
				default:
				}
				_ = os.WriteFile(touch+".stop", nil, 0o600)
			}
			if code := first.ends(f, 20*time.Second); code != int(lease.CodeWatchdog) {
				f.soft("code %d, want 93\n%s", code, first.out)
				return
			}
			f.start(nil)
			// Two starts of a test binary are in it; the bound without them is held in package lease.
			f.within("the take-over after a watchdog", f.works(2, time.Minute)-first.at, time.Second)
			runs, err := run.Runs(f.dir, lease.Identity{Scope: "svc", Writer: "svc", Epoch: 1})
			if err != nil || len(runs) != 2 || runs[0].Code == nil || *runs[0].Code != 93 || !strings.Contains(runs[0].Reason, "watchdog") {
				t.Errorf("the true end of the previous run: %+v %v", runs, err)
			}
		})
	}
}

func TestScenario04WatchdogWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	proxy := server.NewProxy(t)
	dsn := server.DSN(t)
	f := fix(t, server.Over(dsn, "127.0.0.1", proxy.Port))
	touch := filepath.Join(f.dir, "touch")
	first := f.start(func(s *spec) {
		s.Profile = lease.Steady
		s.Watch = run.Watchdogs{File: touch, Timeout: 3 * time.Second}
		s.Env = append(s.Env, "WORK_TOUCH="+touch)
	})
	f.works(1, time.Minute)
	_ = os.WriteFile(touch+".stop", nil, 0o600)
	<-time.After(2700 * time.Millisecond)
	proxy.Cut()
	begin := boot()
	code := first.ends(f, time.Minute)
	// Whichever comes first: the age of the proofs, or the watchdog with a release that cannot succeed.
	if code != int(lease.CodeWithheld) && code != int(lease.CodeTooOld) {
		t.Errorf("code %d\n%s", code, first.out)
	}
	f.within("the exit", first.at-begin, 5200*time.Millisecond)
	proxy.Heal()
	db, err := sqldb.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if info, err := lease.Show(t.Context(), db, "svc"); err != nil || info.Released {
		t.Errorf("%+v %v", info, err)
	}
}

func TestScenario07ShortPauses(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	p := f.start(func(s *spec) { s.Profile = lease.Steady })
	f.works(1, time.Minute)
	for range 3 {
		_ = p.Process.Signal(syscall.SIGSTOP)
		<-time.After(300 * time.Millisecond)
		_ = p.Process.Signal(syscall.SIGCONT)
		<-time.After(400 * time.Millisecond)
	}
	select {
	case <-p.done:
		f.soft("a pause of 0.3 s ended it: %d\n%s", p.code, p.out)
		return
	default:
	}
	_ = p.Process.Signal(syscall.SIGSTOP)
	stopped := boot()
	<-time.After(2500 * time.Millisecond)
	// 26 too: the reaper has killed the command meanwhile, although its supervisor could do nothing.
	f.quiet(5 * time.Second)
	f.within("the command's end while its supervisor was stopped", f.last(1)-stopped, 1300*time.Millisecond)
	resumed := boot()
	_ = p.Process.Signal(syscall.SIGCONT)
	if code := p.ends(f, 5*time.Second); code != int(lease.CodeTooOld) && code != int(lease.CodeGuardLost) {
		t.Errorf("code %d\n%s", code, p.out)
	}
	f.within("the exit after the pause", p.at-resumed, 150*time.Millisecond)
}

func TestScenario08StoppedWhileATwinWaits(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	fast := func(s *spec) { s.Profile = lease.Fast }
	first := f.start(fast)
	f.works(1, time.Minute)
	dir := t.TempDir()
	f.start(func(s *spec) { fast(s); s.Dir, s.Wait = dir, time.Minute })
	<-time.After(500 * time.Millisecond)
	if !f.lives(first) {
		return
	}
	_ = first.Process.Signal(syscall.SIGSTOP)
	<-time.After(6 * time.Second)
	if _, ok := f.first(2); ok {
		t.Error("the twin got in while the session of the stopped one lived")
	}
	resumed := boot()
	_ = first.Process.Signal(syscall.SIGCONT)
	first.ends(f, 5*time.Second)
	f.within("the exit", first.at-resumed, 100*time.Millisecond)
	began := f.works(2, time.Minute)
	atLeast(t, "the twin began", began-resumed, time.Second)
	f.within("the take-over", began-first.at, 1500*time.Millisecond)
}

// A holder that is paused keeps its lock for ever; once a person has broken the lease a successor gets in without a wait of its
// own being asked for, a whole silence later, and the one who wakes up ends.
func TestBreakOfAPausedHolder(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	set := func(s *spec) { s.Profile = lease.Fast }
	first := f.start(set)
	f.works(1, time.Minute)
	if !f.lives(first) {
		return
	}
	_ = first.Process.Signal(syscall.SIGSTOP)
	db, err := sqldb.Open(t.Context(), f.state)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	info, err := lease.Show(t.Context(), db, "svc")
	if err != nil {
		t.Fatal(err)
	}
	broken := boot()
	if err := lease.Break(t.Context(), db, info, "it is paused", "me"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // another machine's: on its own one the paused process also keeps a file lock
	f.start(func(s *spec) { set(s); s.Dir = dir })
	began := f.works(3, time.Minute)
	atLeast(t, "the successor began", began-broken, time.Second)
	f.within("the take-over", began-broken, 3*time.Second)
	resumed := boot()
	_ = first.Process.Signal(syscall.SIGCONT)
	if code := first.ends(f, 5*time.Second); code != int(lease.CodeTooOld) && code != int(lease.CodeGuardLost) {
		t.Errorf("code %d\n%s", code, first.out)
	}
	f.within("the exit after the pause", first.at-resumed, 150*time.Millisecond)
}

func TestScenario09StoppedBeyondTheTTL(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	set := func(s *spec) { s.Profile, s.TTL = lease.Fast, 3*time.Second }
	first := f.start(set)
	f.works(1, time.Minute)
	if !f.lives(first) {
		return
	}
	_ = first.Process.Signal(syscall.SIGSTOP)
	stopped := boot()
	dir := t.TempDir()
	f.start(func(s *spec) { set(s); s.Dir, s.Wait = dir, time.Minute })
	began := f.works(2, time.Minute)
	atLeast(t, "the successor began", began-stopped, 3*time.Second)
	f.within("the reclaim", began-stopped, 4800*time.Millisecond)
	_ = first.Process.Signal(syscall.SIGCONT)
	if code := first.ends(f, 5*time.Second); code != int(lease.CodeTooOld) && code != int(lease.CodeGuardLost) {
		t.Errorf("code %d", code)
	}
	<-time.After(time.Second) // what the old one could still do would be seen by check
}

func TestScenario24FullLogPipe(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	_ = syscall.SetNonblock(fd, true)
	for {
		if _, err := syscall.Write(fd, make([]byte, 4096)); err != nil {
			break // full, and nobody reads
		}
	}
	_ = syscall.SetNonblock(fd, false)
	touch := filepath.Join(f.dir, "touch")
	first := f.startTo(func(s *spec) {
		s.Watch = run.Watchdogs{File: touch, Timeout: 3 * time.Second}
		s.Env = append(s.Env, "WORK_TOUCH="+touch)
	}, w)
	f.works(1, time.Minute)
	_ = os.WriteFile(touch+".stop", nil, 0o600)
	begin := boot()
	if code := first.ends(f, 15*time.Second); code != int(lease.CodeWatchdog) {
		f.soft("watchdog with a full log: code %d", code)
	}
	f.within("the exit", first.at-begin, 4*time.Second)

	_ = os.Remove(touch + ".stop")
	second := f.startTo(nil, w)
	f.works(2, time.Minute)
	db, err := sqldb.Open(t.Context(), f.state)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	info, err := lease.Show(t.Context(), db, "svc")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Break(t.Context(), db, info, "test", "me"); err != nil {
		t.Fatal(err)
	}
	begin = boot()
	if code := second.ends(f, 10*time.Second); code != int(lease.CodeGuardLost) {
		t.Errorf("loss with a full log: code %d", code)
	}
	f.within("the exit", second.at-begin, 400*time.Millisecond)
}

// Issues hashicorp/consul#9788, #2022, #1210 and #797: whatever ends the supervisor, neither child nor grandchild stays,
// not even one that has left group and session.
func TestScenario25NothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string]string{
		"background":  self + " & wait",
		"double fork": "(" + self + " &) ; sleep 60",
		"own session": "setsid " + self + " & sleep 60",
	}
	for name, script := range shapes {
		for _, state := range []string{"postgres", "sqlite"} {
			t.Run(name+"/"+state, func(t *testing.T) {
				t.Parallel()
				dsn := ""
				if state == "postgres" {
					dsn = pgtest.DSN(t)
				}
				f := fix(t, dsn)
				set := func(s *spec) { s.Args = []string{"/bin/sh", "-c", script} }
				first := f.start(set)
				f.works(1, time.Minute)
				if !f.lives(first) {
					return
				}
				killed := first.kill()
				f.start(set)
				began := f.works(2, time.Minute)
				if last := f.last(1); last >= began {
					t.Error("the grandchild was alive when the successor's command began")
				}
				if state == "sqlite" {
					f.within("the take-over", began-killed, 700*time.Millisecond)
				}
			})
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			f := fix(t, "")
			p := f.start(func(s *spec) {
				s.Args, s.Stop = []string{"/bin/sh", "-c", "trap '' TERM QUIT HUP; " + self + " & wait; sleep 60"}, 300*time.Millisecond
				s.Env = append(s.Env, "WORK_DEAF=1")
			})
			f.works(1, time.Minute)
			_ = p.Process.Signal(sig)
			p.ends(f, 10*time.Second)
			f.quiet(3 * time.Second)
		})
	}
}

// Issue patroni/patroni#3639: the reaper is armed until the command has been reaped, also during a planned stop.
func TestReaperStaysArmedDuringAStop(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	p := f.start(func(s *spec) { s.Stop, s.Env = time.Minute, append(s.Env, "WORK_DEAF=1") })
	f.works(1, time.Minute)
	_ = p.Process.Signal(syscall.SIGTERM)
	<-time.After(300 * time.Millisecond)
	_ = p.Process.Signal(syscall.SIGSTOP)
	f.quiet(6 * time.Second)
}

// Issue golang/go#27505: Pdeathsig follows the thread. Threads that come and go must not kill the command.
func TestThreadsComeAndGo(t *testing.T) {
	t.Parallel()
	f := fix(t, "")
	p := f.start(func(s *spec) { s.Churn = true })
	f.works(1, time.Minute)
	<-time.After(4 * time.Second)
	select {
	case <-p.done:
		t.Fatalf("the command ended: %d\n%s", p.code, p.out)
	default:
	}
	if boot()-f.last(1) > time.Second {
		t.Error("the command is dead")
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*spec)
		code int
		says string
	}{
		"the command's own":  {func(s *spec) { s.Args = []string{"sh", "-c", "exit 7"} }, 7, ""},
		"killed by a signal": {func(s *spec) { s.Args = []string{"sh", "-c", "kill -9 $$"} }, 137, ""},
		"not there":          {func(s *spec) { s.Args = []string{"no-such-program-anywhere"} }, 127, "no-such-program-anywhere"},
		"not executable":     {func(s *spec) { s.Args = []string{"/etc/passwd"} }, 126, "permission denied"},
		"unsafe timing":      {func(s *spec) { s.Profile, s.Silence, s.ExitAge = lease.Fast, time.Second, 1250*time.Millisecond }, 97, "1.25s + monitor 50ms + work 0s + late 150ms < silence 1s does not hold"},
		"fixed token":        {func(s *spec) { s.Token = "mine"; s.State = "" }, 125, "fixed session token"},
		"no command":         {func(s *spec) { s.Args = nil }, 125, "no command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fix(t, "")
			p := f.start(func(s *spec) {
				state := s.State
				c.set(s)
				if s.State == "" {
					s.State = state
				}
			})
			if code := p.ends(f, time.Minute); code != c.code || !strings.Contains(p.out.String(), c.says) {
				t.Errorf("code %d, want %d\n%s", code, c.code, p.out)
			}
		})
	}
}

func TestHeldExitCodes(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	f.start(nil)
	f.works(1, time.Minute)
	dir := t.TempDir()
	twin := f.start(func(s *spec) { s.Dir, s.Wait = dir, 300*time.Millisecond })
	other := f.start(func(s *spec) { s.Dir, s.Writer = dir, "other" })
	here := f.start(func(s *spec) { s.Wait = 100 * time.Millisecond })
	for name, c := range map[string]struct {
		p    *proc
		code lease.Code
	}{"twin": {twin, lease.CodeTwin}, "other identity": {other, lease.CodeHeld}, "same machine": {here, lease.CodeTwin}} {
		if code := c.p.ends(f, time.Minute); code != int(c.code) || !strings.Contains(c.p.out.String(), "test@here") {
			t.Errorf("%s: code %d, want %d\n%s", name, code, c.code, c.p.out)
		}
	}
}

// The command asks for a fence on its socket; after a loss there is no yes any more.
func TestCheckFromWithin(t *testing.T) {
	t.Parallel()
	f := fix(t, pgtest.DSN(t))
	p := f.start(func(s *spec) {
		s.Profile = lease.Steady
		s.Args = []string{"/bin/sh", "-c", "echo $QNETOPS_LEASE_SOCK > " + f.dir + "/sock; echo $QNETOPS_LEASE_SCOPE $QNETOPS_LEASE_GENERATION > " + f.dir + "/env; exec " + s.Args[0]}
	})
	f.works(1, time.Minute)
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(f.dir, name))
		return strings.TrimSpace(string(b))
	}
	if env := read("env"); env != "svc 1" {
		t.Errorf("environment: %q", env)
	}
	for _, line := range []string{"check", "beat", "show"} {
		if g, err := run.Ask(t.Context(), read("sock"), line); err != nil || g != 1 {
			f.soft("%s: %d %v", line, g, err)
		}
	}
	if _, err := run.Ask(t.Context(), read("sock"), "nonsense"); err == nil {
		t.Error("nonsense was answered with yes")
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := run.Ask(t.Context(), read("sock"), "check"); err != nil {
				f.soft("%v", err)
			}
		})
	}
	wg.Wait()
	_ = p.Process.Signal(syscall.SIGTERM)
	p.ends(f, 10*time.Second)
	if _, err := run.Ask(t.Context(), read("sock"), "check"); err == nil {
		t.Error("yes after the end")
	}
	if _, err := run.Ask(t.Context(), "", "check"); err == nil {
		t.Error("yes outside of lease run")
	}
}
