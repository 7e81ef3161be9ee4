package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the two processes of a real agent.
func TestMain(m *testing.M) {
	switch os.Getenv("QNETOPS_TEST_ROLE") {
	case "agent":
		if err := Serve(context.Background(), processConfig(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "guardian":
		if err := Guard(context.Background(), processConfig(), StdLink()); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// processConfig is what a real host would have, but for the root and the way to
// make this binary a guardian.
func processConfig() Config {
	cfg := OSConfig("test", os.Getenv("QNETOPS_TEST_SOCKET"))
	cfg.Root = os.Getenv("QNETOPS_TEST_ROOT")
	cfg.StartGuardian = func(context.Context) (Process, error) {
		os.Setenv("QNETOPS_TEST_ROLE", "guardian")
		defer os.Setenv("QNETOPS_TEST_ROLE", "agent")
		return StartDetached("/proc/self/exe")
	}
	return cfg
}

// serveSocket puts the fake engine on a unix socket for other processes.
func serveSocket(t *testing.T, e *fakeEngine) string {
	sock := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	go e.srv.Serve(l)
	t.Cleanup(func() { l.Close() })
	return sock
}

type stdio struct{ link }

func startAgent(t *testing.T, root, sock string) (*exec.Cmd, *Client) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "QNETOPS_TEST_ROLE=agent", "QNETOPS_TEST_ROOT="+root, "QNETOPS_TEST_SOCKET="+sock)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // reaps it; the pipes are left to the client
		defer close(ended)
		cmd.Process.Wait()
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended; in.Close(); out.Close() })
	return cmd, NewClient(stdio{link{Reader: out, Writer: in, close: func() error { return in.Close() }}})
}

func session(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	return f[3] // state, ppid, pgrp, session
}

func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

// eventually waits in real time for other processes.
func eventually(t *testing.T, what string, fn func() bool) {
	t.Helper()
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if fn() {
			return
		}
	}
	t.Errorf("not in 40 s: %s", what)
}

// TestRealProcesses runs both processes and kills one, then the other, then cuts
// the connection, in the middle of a real replace.
func TestRealProcesses(t *testing.T) {
	for _, kill := range []string{"agent", "guardian", "connection", "hangup"} {
		t.Run(kill, func(t *testing.T) {
			dir := tempDir(t)
			r := newRig(t, dir)
			defer r.stopAll()
			r.e.stopFor = 1500 * time.Millisecond
			sock := serveSocket(t, r.e)
			cmd, client := startAgent(t, dir, sock)
			r.client, r.w = client, client.Writer(claim1)
			rep := r.stage()
			h, err := client.Hello(r.ctx)
			if err != nil || h.PID != cmd.Process.Pid || h.GuardianPID == 0 {
				t.Fatalf("%+v %v", h, err)
			}
			if s := session(h.GuardianPID); s != strconv.Itoa(h.GuardianPID) {
				t.Errorf("guardian %d is in session %s", h.GuardianPID, s)
			}
			answer := make(chan error, 1)
			go func() { _, err := r.w.Replace(r.ctx, replaceRequest(rep), nil); answer <- err }()
			eventually(t, "the stop has begun", func() bool {
				r.e.mu.Lock()
				defer r.e.mu.Unlock()
				c := r.e.cs[rep.OldID]
				return c.stopping != nil
			})
			switch kill {
			case "agent":
				cmd.Process.Kill()
			case "guardian":
				syscall.Kill(h.GuardianPID, syscall.SIGKILL)
			case "connection":
				client.Close()
			case "hangup":
				cmd.Process.Signal(syscall.SIGHUP)
				syscall.Kill(h.GuardianPID, syscall.SIGHUP)
			}
			eventually(t, "the node runs on the successor", func() bool {
				r.e.mu.Lock()
				defer r.e.mu.Unlock()
				c := r.e.find(nodeName)
				return c != nil && c.id == rep.NextID && c.status == "running"
			})
			err = <-answer
			if want := kill == "guardian" || kill == "hangup"; (err == nil) != want {
				t.Errorf("answer: %v", err)
			}
			client.Close()
			eventually(t, "nothing is left running", func() bool { return !alive(cmd.Process.Pid) && !alive(h.GuardianPID) })
			eventually(t, "the log is closed", func() bool {
				open, err := newOps(r.cfg).anyOpen()
				return err == nil && !open
			})
			r.settled(rep, kill)
		})
	}
}
