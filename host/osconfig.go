package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// OSConfig is the configuration of a real host. socket is the engine's unix
// socket, "" for the usual one.
func OSConfig(version, socket string) Config {
	if socket == "" {
		socket = DefaultSocket
	}
	return Config{
		StateDir: DefaultStateDir,
		DialEngine: func(ctx context.Context) (net.Conn, error) {
			d := net.Dialer{Timeout: 10 * time.Second}
			return d.DialContext(ctx, "unix", socket)
		},
		Version:       version,
		StartGuardian: func(ctx context.Context) (Process, error) { return startGuardian(socket) },
		DockerConfig:  dockerConfigDir(),
		Facts:         osFacts{},
		detach:        true,
	}
}

func dockerConfigDir() string {
	if d := os.Getenv("DOCKER_CONFIG"); d != "" {
		return d
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// detach makes a process survive the end of the session it was started in: a
// hangup, an interrupt, and a write to an output that nobody reads any more.
// SIGTERM keeps its meaning.
func detach() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGINT)
}

// GuardianArgs are the arguments that make this program a guardian.
func GuardianArgs(socket string) []string { return []string{"host", "--guardian", "--socket", socket} }

// StdLink is a guardian's side of the link: its standard input and output.
func StdLink() io.ReadWriteCloser {
	return link{Reader: os.Stdin, Writer: os.Stdout, close: func() error { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }}
}

type link struct {
	io.Reader
	io.Writer
	close func() error
}

func (l link) Close() error { return l.close() }

// osProcess is a guardian in a session of its own. It is not bound to the life
// of its parent by the kernel: outliving it is what it is for.
type osProcess struct {
	link
	pid  int
	done chan struct{}
}

func (p *osProcess) PID() int              { return p.pid }
func (p *osProcess) Done() <-chan struct{} { return p.done }

func startGuardian(socket string) (Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return StartDetached(self, GuardianArgs(socket)...)
}

// StartDetached starts a program in a session of its own, with a pipe as its
// standard input and output and nothing else inherited.
func StartDetached(program string, args ...string) (Process, error) {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", filepath.Base(program), err)
	}
	p := &osProcess{link: link{Reader: out, Writer: in, close: func() error { return errors.Join(in.Close(), out.Close()) }},
		pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		// Only the end counts: a guardian killed by a signal is started again.
		_, _ = cmd.Process.Wait()
		close(p.done)
	}()
	return p, nil
}
