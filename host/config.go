package host

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"time"
)

// Config is what an agent needs of its host. The zero value of a duration or a
// limit means the ordinary one.
type Config struct {
	Root          string // path prefix of everything the agent touches on disk; "" on a real host
	StateDir      string // fence, locks and transaction logs, before Root is put in front
	DialEngine    func(ctx context.Context) (net.Conn, error)
	DialNode      func(ctx context.Context, port int) (net.Conn, error) // a port on the host's loopback; nil: the real one
	Version       string
	StartGuardian func(ctx context.Context) (Process, error) // ctx bounds the start; the guardian outlives it
	DockerConfig  string                                     // the folder that holds config.json with the registry logins, before Root
	Facts         FactsSource

	detach bool // a process of its own: signals of the session it was started in are ignored

	// EngineWait bounds how long a transaction waits for an engine that went away.
	EngineWait time.Duration
}

// Process is a started guardian as the agent sees it. Reading and writing goes
// over the link; the link breaks when either side dies.
type Process interface {
	io.ReadWriteCloser
	PID() int
	Done() <-chan struct{} // closed when the guardian has ended
}

// FactsSource reads what the operating system knows; a lab injects its own.
type FactsSource interface {
	Now() time.Time
	Disk(path string) (DiskFacts, error)
}

const (
	// DefaultStateDir is where an agent keeps its fence and logs.
	DefaultStateDir = "/var/lib/qnetops"
	// DefaultSocket is the engine's usual socket.
	DefaultSocket = "/var/run/docker.sock"

	engineWait = 15 * time.Minute
)

func (c Config) engineWait() time.Duration {
	if c.EngineWait > 0 {
		return c.EngineWait
	}
	return engineWait
}

// path puts the root in front of an absolute path of the host.
func (c Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.Root}, elem...)...)
}

func (c Config) state(elem ...string) string {
	return c.path(append([]string{c.StateDir}, elem...)...)
}

func (c Config) now() time.Time {
	if c.Facts != nil {
		return c.Facts.Now()
	}
	return time.Now()
}
