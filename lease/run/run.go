package run

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
)

// Config is one `lease run`.
type Config struct {
	Lease       lease.Options                            // DB and Exit are filled in here
	Open        func(context.Context) (*sqldb.DB, error) // opens the store; tried again while there is time to wait
	Dir         string                                   // state folder: locked file, socket, exit records
	Args        []string                                 // the command
	Env         []string                                 // its environment; the lease's variables are added
	Stdin       *os.File                                 // all three are handed to the command as they are
	Stdout      *os.File                                 //
	Stderr      *os.File                                 //
	StopTimeout time.Duration                            // between the forwarded signal and SIGKILL
	Watch       Watchdogs                                //
	Reaper      func(lockPath string) (*exec.Cmd, error) // the program whose body is Reap(lockPath)
	Signals     <-chan os.Signal                         // what the supervisor was asked to do
	Exit        func(code int)                           // ends the process at once, without any clean-up of the language
	Log         io.Writer                                // one line for each thing a person should know
}

// Run keeps a command under a lease and returns the exit code: the command's own, or one of lease.Code. Where the lease is
// lost or a watchdog fires it does not return: it calls Config.Exit.
func Run(ctx context.Context, c Config) int {
	r := &runner{c: c, log: newLines(c.Log), run: newRunName()}
	code := r.all(ctx)
	r.log.flush(100 * time.Millisecond)
	return code
}

type runner struct {
	c    Config
	log  *lines
	run  string
	path files
	id   lease.Identity

	exits  *os.File
	memory *os.File
	page   *page
	lock   *lease.FileLock
	live   atomic.Pointer[lease.Held] // set once it is held
	beat   atomic.Int64               // when the last beat came, since begin
	begin  time.Time

	kids   kids
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the command has been reaped
	status syscall.WaitStatus
	firing atomic.Bool
}

func newRunName() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func (r *runner) all(ctx context.Context) int {
	path, code, err := command(r.c.Args, r.c.Env)
	if err != nil {
		return r.refuse(code, err)
	}
	r.id = lease.Identity{Scope: r.c.Lease.Scope, Writer: r.c.Lease.Writer, Epoch: max(1, r.c.Lease.WriterEpoch)}
	r.path = paths(r.c.Dir, r.id)
	if err := os.MkdirAll(r.c.Dir, 0o700); err != nil {
		return r.refuse(lease.CodeUsage, err)
	}
	if r.exits, err = openExits(r.path.exits); err != nil {
		return r.refuse(lease.CodeUsage, err)
	}
	if r.memory, r.page, err = newPage(); err != nil {
		return r.refuse(lease.CodeUsage, err)
	}
	copy(r.page.run[:], r.run)
	r.page.supervisor.Store(int64(os.Getpid()))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan os.Signal, 1)
	go r.listenSignals(ctx, cancel, stop)
	if err := r.acquire(ctx); err != nil {
		r.giveUp()
		return r.failed(err)
	}
	if err := r.start(path); err != nil {
		r.giveUp()
		return r.refuse(lease.CodeCannotRun, err)
	}
	return r.supervise(stop)
}

// command finds the program before anything is taken: a misspelt name must not cost a lease.
func command(args, env []string) (string, lease.Code, error) {
	if len(args) == 0 {
		return "", lease.CodeUsage, errors.New("no command is given")
	}
	path, err := exec.LookPath(args[0])
	switch {
	case err == nil:
		return path, 0, nil
	case errors.Is(err, fs.ErrPermission):
		return "", lease.CodeCannotRun, fmt.Errorf("running %s: %w", args[0], err)
	default:
		return "", lease.CodeNotFound, fmt.Errorf("running %s: %w", args[0], err)
	}
}

func (r *runner) held() *lease.Held { return r.live.Load() }

// giveUp gives back a lease under which nothing has been started.
func (r *runner) giveUp() {
	if h := r.held(); h != nil {
		_ = h.Release(context.Background())
	}
	r.page.done.Store(1)
}

// failed maps what kept us from the lease to an exit code.
func (r *runner) failed(err error) int {
	var policy *lease.PolicyError
	var refused *lease.RefusedError
	var held *lease.HeldError
	code := lease.CodeUsage
	switch {
	case errors.As(err, &policy):
		code = lease.CodePolicy
	case errors.As(err, &refused):
		code = refused.Code
	case errors.As(err, &held):
		code = held.Code()
	case lease.LossCode(err) != 0:
		code = lease.LossCode(err)
	case errors.Is(err, context.Canceled):
		code = 130
	}
	return r.refuse(code, err)
}

func (r *runner) refuse(code lease.Code, err error) int {
	r.record("exit", int(code), err.Error())
	r.log.say("error: %v", err)
	var hint interface{ Hint() string }
	if errors.As(err, &hint) && hint.Hint() != "" {
		r.log.say("hint: %s", hint.Hint())
	}
	return int(code)
}

func (r *runner) record(event string, code int, reason string) {
	if r.exits == nil {
		return
	}
	rec := Record{Run: r.run, Event: event, PID: os.Getpid(), Reason: reason}
	if r.page != nil {
		rec.Generation = uint64(r.page.generation.Load())
	}
	if event == "start" {
		rec.Command = filepath.Base(r.c.Args[0])
	} else {
		rec.Code = &code
	}
	writeRecord(r.exits, rec)
}

// acquire takes the locked file of this machine, then the lease.
func (r *runner) acquire(ctx context.Context) error {
	o := r.c.Lease
	if _, err := policyOf(o); err != nil {
		return err
	}
	begin := time.Now()
	if err := r.waitLocal(ctx, o); err != nil {
		return err
	}
	p := r.page
	db, err := r.openStore(ctx, o, begin)
	if err != nil {
		return err
	}
	if o.Wait > 0 {
		o.Wait = max(0, o.Wait-time.Since(begin))
	}
	o.DB, o.Exit, o.OnProof = db, r.hardExit, func(edge time.Duration) { p.proven.Store(max(p.proven.Load(), int64(edge))) }
	events := o.OnEvent
	o.OnEvent = func(e lease.Event) {
		r.tell(e)
		if events != nil {
			events(e)
		}
	}
	held, err := lease.Hold(ctx, o)
	if err != nil {
		return err
	}
	r.live.Store(held)
	p.generation.Store(int64(held.Token().Epoch))
	switch held.Mode() {
	case lease.Guarded:
		p.exit.Store(int64(held.Policy().Exit))
	case lease.TTLOnly:
		p.exit.Store(int64(held.Policy().TTL / 2))
	}
	if err := r.startReaper(); err != nil {
		return err
	}
	return ctx.Err()
}

func policyOf(o lease.Options) (p lease.Policy, err error) {
	if p, err = lease.PolicyOf(o.Profile); err != nil {
		return p, err
	}
	if o.Policy != nil {
		p = *o.Policy
	}
	_, err = p.Check()
	return p, err
}

// openStore opens the store, again and again while there is time: after a restart of the machine it may come up after us.
func (r *runner) openStore(ctx context.Context, o lease.Options, begin time.Time) (*sqldb.DB, error) {
	for {
		db, err := r.c.Open(ctx)
		if err == nil || o.Wait >= 0 && time.Since(begin) >= o.Wait {
			return db, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// waitLocal takes the locked file. Whatever is left of a dead predecessor on this machine still has it; that is waited for
// also where no waiting for others was asked for, as long as its supervisor is known to be gone.
func (r *runner) waitLocal(ctx context.Context, o lease.Options) error {
	host, _ := os.Hostname()
	me := lease.Self(o.Owner, host)
	begin := time.Now()
	for {
		lock, other, err := lease.TryFileLock(r.path.lock, me, o.IKnow)
		if err != nil {
			return err
		}
		if lock != nil {
			r.lock = lock
			return nil
		}
		waited := time.Since(begin)
		if o.Wait >= 0 && waited >= o.Wait && (other.Live() || waited >= 2*time.Second) {
			return &lease.HeldError{Scope: o.Scope, Owner: other.Owner, Host: other.Host, PID: other.PID, Since: other.Since, Twin: true,
				Note: "it or what it started still runs on this machine"}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *runner) tell(e lease.Event) {
	switch {
	case e.State == lease.Lost:
		r.log.say("lease %s lost: %s", r.id.Scope, e.Text)
	case e.State == lease.Released || e.State == lease.Withheld:
		// whoever ends the run says why
	case e.Text != "":
		r.log.say("lease %s: %s", r.id.Scope, e.Text)
	case e.State == lease.Proving:
		r.log.say("lease %s: taken, generation %d (%s)", r.id.Scope, e.Generation, e.How)
	}
}

// hardExit is the end after a loss. The command first; then one write on another goroutine, for which a moment is waited;
// then the end, whatever hangs. The reaper finishes what this could not.
func (r *runner) hardExit(code lease.Code, why string) {
	if r.page != nil {
		r.page.code.CompareAndSwap(0, int64(code))
		if g := int(r.page.group.Load()); g > 1 {
			_ = unix.Kill(-g, unix.SIGKILL)
		}
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		r.record("exit", int(code), why)
	}()
	select {
	case <-written:
	case <-time.After(20 * time.Millisecond):
	}
	r.log.say("lease %s lost: %s", r.id.Scope, why)
	r.c.Exit(int(code))
}

// startReaper starts the second process. It is there before the command, and a new one is started if it dies.
func (r *runner) startReaper() error {
	life, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	r.kids.keep(ours) // open for as long as this process lives: its end is the reaper's signal
	cmd, err := r.c.Reaper(r.path.lock)
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{life, r.memory, r.exits, r.lock.File()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = nil
	if err := r.kids.start(cmd, true); err != nil {
		return fmt.Errorf("starting the reaper: %w", err)
	}
	life.Close()
	go func() {
		_ = cmd.Wait()
		r.kids.forget(cmd.Process.Pid)
		if r.page.done.Load() == 0 && !r.firing.Load() {
			_ = r.startReaper() // without it a stopped supervisor would leave the command running
		}
	}()
	return nil
}

// start runs the command on a thread that lives as long as it does: the kernel sends Pdeathsig when that thread ends.
func (r *runner) start(path string) error {
	l, sock, err := listen(r.path.sock)
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: r.c.Args, Stdin: r.c.Stdin, Stdout: r.c.Stdout, Stderr: r.c.Stderr}
	token := r.held().Token()
	cmd.Env = append(append([]string{}, r.c.Env...), EnvScope+"="+r.id.Scope, EnvGeneration+"="+strconv.FormatUint(token.Epoch, 10), EnvSocket+"="+sock)
	cmd.ExtraFiles = []*os.File{r.lock.File()}
	if f := r.held().LockFile(); f != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if r.c.Stdin != nil && isTerminal(r.c.Stdin) {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(r.c.Stdin.Fd())
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	r.cmd, r.ended, r.begin = cmd, make(chan struct{}), time.Now()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, after the command
		err := r.kids.start(cmd, false)
		started <- err
		if err != nil {
			return
		}
		state, _ := cmd.Process.Wait()
		if state != nil {
			r.status, _ = state.Sys().(syscall.WaitStatus)
		}
		r.kids.forget(cmd.Process.Pid)
		close(r.ended)
	}()
	if err := <-started; err != nil {
		l.Close()
		return fmt.Errorf("running %s: %w", r.c.Args[0], err)
	}
	r.page.group.Store(int64(cmd.Process.Pid))
	r.record("start", 0, "")
	go serve(l, r.held(), func() { r.beat.Store(int64(time.Since(r.begin))) })
	r.closeWith(l, sock)
	return nil
}

func (r *runner) closeWith(l net.Listener, sock string) {
	go func() {
		<-r.ended
		l.Close()
		_ = os.Remove(sock)
	}()
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// listenSignals forwards what the supervisor is told. A signal that asks for the end comes first to the waiting for the
// lease, then to the command.
func (r *runner) listenSignals(ctx context.Context, cancel context.CancelFunc, stop chan<- os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig, ok := <-r.c.Signals:
			if !ok {
				return
			}
			group := 0
			if r.page != nil {
				group = int(r.page.group.Load())
			}
			if group == 0 {
				cancel()
				continue
			}
			if s, ok := sig.(syscall.Signal); ok {
				_ = unix.Kill(-group, s)
				if s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGHUP || s == syscall.SIGQUIT {
					select {
					case stop <- s:
					default:
					}
				}
			}
		}
	}
}

// tree is what belongs to the command.
func (r *runner) tree() tree {
	return tree{group: int(r.page.group.Load()), lock: r.path.lock, root: os.Getpid(), apart: r.kids.apart()}
}

// supervise waits for the command's end, a request to stop, or a watchdog.
func (r *runner) supervise(stop <-chan os.Signal) int {
	watching, cancel := context.WithCancel(context.Background())
	defer cancel()
	if w := r.c.Watch; w.any() {
		if w.Timeout <= 0 {
			w.Timeout = DefaultWatchdog
		}
		watch(watching, w, &r.kids, &r.beat, r.begin, func(why string) {
			if r.firing.CompareAndSwap(false, true) {
				r.watchdogExit(why)
			}
		})
	}
	var kill <-chan time.Time
	reap := time.NewTicker(time.Second)
	defer reap.Stop()
	for {
		select {
		case <-stop:
			if kill == nil {
				kill = time.After(max(r.c.StopTimeout, time.Millisecond))
			}
		case <-kill:
			_ = r.tree().kill()
		case <-reap.C:
			r.kids.reapStrangers()
		case <-r.ended:
			if !r.firing.CompareAndSwap(false, true) {
				select {} // a watchdog is ending the process
			}
			cancel()
			return r.finish()
		}
	}
}

// finish gives the lease back once nothing of the command is left.
func (r *runner) finish() int {
	r.restoreTerminal()
	code := r.status.ExitStatus()
	if r.status.Signaled() {
		code = 128 + int(r.status.Signal())
	}
	reason := "the command has ended"
	limit, cancel := context.WithTimeout(context.Background(), r.held().Policy().Release)
	defer cancel()
	if !r.clear(limit) {
		reason = "something that the command has started does not end; the lease is not given back"
		r.log.say("lease %s: %s", r.id.Scope, reason)
		code = int(lease.CodeWithheld)
		r.record("exit", code, reason)
		r.page.code.Store(int64(code))
		return code
	}
	if err := r.held().Release(context.Background()); err != nil {
		r.log.say("lease %s: %v", r.id.Scope, err)
	}
	r.record("exit", code, reason)
	r.page.done.Store(1)
	return code
}

// clear kills what is left and reports whether nothing is.
func (r *runner) clear(ctx context.Context) bool {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		n := r.tree().kill()
		r.kids.reapStrangers()
		select {
		case <-r.ended:
			if n == 0 {
				return true
			}
		default:
		}
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
}

func (r *runner) restoreTerminal() {
	if r.cmd.SysProcAttr.Foreground {
		_ = unix.IoctlSetPointerInt(int(r.c.Stdin.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// watchdogExit ends a run whose command is stuck. The end comes from a timer that nothing here can hold up.
func (r *runner) watchdogExit(why string) {
	limit := r.held().Policy().Release
	time.AfterFunc(limit, func() { r.end(lease.CodeWithheld, why+"; not everything ended in time, the lease is not given back") })
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	deadline := time.Now().Add(limit)
	if !r.clear(ctx) {
		select {} // the timer ends it
	}
	err := r.held().Abandon(time.Until(deadline), why)
	r.page.done.Store(1)
	if err != nil {
		r.end(lease.CodeWithheld, fmt.Sprintf("%s; %v", why, err))
	}
	r.end(lease.CodeWatchdog, why)
}

// end is hardExit without a loss.
func (r *runner) end(code lease.Code, why string) {
	r.page.code.CompareAndSwap(0, int64(code))
	written := make(chan struct{})
	go func() {
		defer close(written)
		r.record("exit", int(code), why)
	}()
	select {
	case <-written:
	case <-time.After(20 * time.Millisecond):
	}
	r.log.say("lease %s: %s", r.id.Scope, why)
	r.log.flush(20 * time.Millisecond)
	r.c.Exit(int(code))
}

// kids are the processes that the supervisor has started itself. Orphans of the command become its children too and must be
// reaped, but the exit status of its own must not be taken away from whoever waits for it.
type kids struct {
	mu    sync.Mutex
	own   map[int]bool // true: no part of the command
	files []*os.File
}

func (k *kids) keep(f *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.files = append(k.files, f)
}

func (k *kids) start(cmd *exec.Cmd, apart bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := cmd.Start()
	if err == nil {
		if k.own == nil {
			k.own = map[int]bool{}
		}
		k.own[cmd.Process.Pid] = apart
	}
	return err
}

func (k *kids) forget(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.own, pid)
}

func (k *kids) apart() map[int]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[int]bool{}
	for pid, apart := range k.own {
		if apart {
			out[pid] = true
		}
	}
	return out
}

// reapStrangers takes the exit status of orphans.
func (k *kids) reapStrangers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	self := os.Getpid()
	for _, p := range processes() {
		if p.parent != self || p.state != 'Z' {
			continue
		}
		if _, own := k.own[p.pid]; !own {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}
