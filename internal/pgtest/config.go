package pgtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (s *Server) arguments() []string {
	args := []string{"-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-c", "fsync=off", "-c", "shared_buffers=16MB",
		"-c", "max_connections=100", "-c", "log_min_messages=warning", "-c", "listen_addresses=" + s.TCP}
	if s.Port != 0 {
		args = append(args, "-p", strconv.Itoa(s.Port))
	}
	for _, setting := range s.Settings {
		args = append(args, "-c", setting)
	}
	return args
}

// append adds to a file of the cluster, which keeps its owner.
func (s *Server) append(t testing.TB, file, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, "data", file), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// enter moves this thread into the server's namespace. The thread is never used for anything else.
func (s *Server) enter() error {
	if s.Namespace == "" {
		return nil
	}
	f, err := os.Open(filepath.Join("/run/netns", s.Namespace))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// Over is the DSN of a database as it is reached over TCP at another address: of a proxy, or across a namespace's link.
func (s *Server) Over(dsn, address string, port int) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // one of ours
	}
	u.Host = net.JoinHostPort(address, strconv.Itoa(port))
	u.RawQuery = "sslmode=disable"
	return u.String()
}

// Address is where the server listens with Config.TCP.
func (s *Server) Address() string { return net.JoinHostPort(s.TCP, strconv.Itoa(s.Port)) }

// fakeClock is the library that lets a test step the clock of one process.
func fakeClock() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

func (s *Server) clockFile() string { return filepath.Join(s.dir, "clock") }

func (s *Server) fakeEnv(t testing.TB) []string {
	t.Helper()
	if !s.FakeClock {
		return nil
	}
	s.StepClock(t, 0)
	return []string{"LD_PRELOAD=" + fakeClock(), "FAKETIME_TIMESTAMP_FILE=" + s.clockFile(), "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
}

// StepClock sets how far the server's wall clock is from the machine's.
func (s *Server) StepClock(t testing.TB, by time.Duration) {
	t.Helper()
	next := s.clockFile() + ".next"
	if err := os.WriteFile(next, []byte(fmt.Sprintf("%+d\n", int(by.Seconds()))), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(next, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, s.clockFile()); err != nil { // never half a file
		t.Fatal(err)
	}
}
