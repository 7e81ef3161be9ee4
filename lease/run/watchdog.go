package run

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// Watchdogs say how the command shows that it is well. What is overdue for Timeout ends the run.
type Watchdogs struct {
	File    string        // must change (be touched, rewritten or replaced)
	Command string        // `sh -c` of it must succeed
	Socket  bool          // a `beat` must arrive on the socket
	Timeout time.Duration // 0 is DefaultWatchdog
}

// DefaultWatchdog is the timeout of watchdogs that name none.
const DefaultWatchdog = 30 * time.Second

func (w Watchdogs) any() bool { return w.File != "" || w.Command != "" || w.Socket }

// watch reports the first watchdog that is overdue. It shares nothing with the rest of the program but the beat. Its clock
// is Go's, which stands still while the machine is suspended: a command that could not run was not stuck.
func watch(ctx context.Context, w Watchdogs, k *kids, beat *atomic.Int64, begin time.Time, overdue func(string)) {
	if w.File != "" {
		go watchFile(ctx, w, overdue)
	}
	if w.Command != "" {
		go watchCommand(ctx, w, k, overdue)
	}
	if w.Socket {
		go watchBeat(ctx, w, beat, begin, overdue)
	}
}

func (w Watchdogs) every() time.Duration {
	return min(max(w.Timeout/10, 10*time.Millisecond), time.Second)
}

func watchFile(ctx context.Context, w Watchdogs, overdue func(string)) {
	tick := time.NewTicker(w.every())
	defer tick.Stop()
	last, _ := os.Stat(w.File)
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := os.Stat(w.File)
		if err == nil && changed(last, now) {
			last, since = now, time.Now()
		}
		if time.Since(since) >= w.Timeout {
			overdue(fmt.Sprintf("watchdog: %s has not changed for %s", w.File, w.Timeout))
			return
		}
	}
}

// changed does not compare the file's time with any clock: only that it is another one counts.
func changed(a, b fs.FileInfo) bool {
	return a == nil || !os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size()
}

func watchBeat(ctx context.Context, w Watchdogs, beat *atomic.Int64, begin time.Time, overdue func(string)) {
	tick := time.NewTicker(w.every())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(begin)-time.Duration(beat.Load()) >= w.Timeout {
			overdue(fmt.Sprintf("watchdog: no beat on the socket for %s", w.Timeout))
			return
		}
	}
}

// watchCommand runs the probe again and again. A probe that hangs is left to its own: the watchdog does not wait for it.
func watchCommand(ctx context.Context, w Watchdogs, k *kids, overdue func(string)) {
	tick := time.NewTicker(max(w.Timeout/3, 10*time.Millisecond))
	defer tick.Stop()
	over := time.NewTimer(w.Timeout)
	defer over.Stop()
	results := make(chan error, 1)
	running := false
	why := "it has not ended"
	for {
		if !running {
			running = true
			go func() { results <- probe(ctx, w, k) }()
		}
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			overdue(fmt.Sprintf("watchdog: the probe has not succeeded for %s: %s", w.Timeout, why))
			return
		case err := <-results:
			if err == nil {
				over.Reset(w.Timeout)
				why = "it has not ended"
			} else {
				why = err.Error()
			}
			select {
			case <-ctx.Done():
				return
			case <-over.C:
				overdue(fmt.Sprintf("watchdog: the probe has not succeeded for %s: %s", w.Timeout, why))
				return
			case <-tick.C:
			}
			running = false
		}
	}
}

// probe runs the command once, with what it starts in a group of its own that ends with it.
func probe(ctx context.Context, w Watchdogs, k *kids) error {
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", w.Command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := k.start(cmd, true); err != nil {
		return err
	}
	defer k.forget(cmd.Process.Pid)
	return cmd.Wait()
}
