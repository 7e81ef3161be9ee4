package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
)

// Answers are small and hosts are many: buffers of HTTP connections, in bytes.
const (
	readBuffer  = 2 << 10
	writeBuffer = 1 << 10
)

// Conn is the one connection of a run to a host.
type Conn struct {
	fleet *Fleet
	host  Host
	link  *link

	once   sync.Once
	node   *node.Client
	http   atomic.Pointer[http.Transport]
	engine *Engine

	starting gate // held while the agent is installed and started
	agent    atomic.Pointer[agentProcess]
	noAgent  atomic.Pointer[error] // why no agent is to be had for reads
}

func newConn(f *Fleet, h Host, l *link) *Conn {
	c := &Conn{fleet: f, host: h, link: l, starting: newGate()}
	c.engine = newEngine(c)
	return c
}

// Host is the inventory's entry.
func (c *Conn) Host() Host { return c.host }

// Dead is closed when the connection is lost or closed.
func (c *Conn) Dead() <-chan struct{} { return c.link.dead }

// Err is why the connection is dead: *DroppedError, nil while it lives.
func (c *Conn) Err() error {
	if !c.link.isDead() {
		return nil
	}
	return c.link.dropped()
}

// HostKey is the verified host key as OpenSSH shows it: kind and SHA256 fingerprint.
func (c *Conn) HostKey() string { return c.link.key }

// Server is the version line of the host's sshd.
func (c *Conn) Server() string { return string(c.link.conn.ServerVersion()) }

// Node speaks to the node through a channel to the host's loopback, and through
// the host agent where sshd's policy forbids that channel. A call fails with
// *ForwardingError where nothing listens, or where the channel is forbidden and
// no agent is to be had (the error tells why).
func (c *Conn) Node() *node.Client {
	c.once.Do(func() {
		direct := &http.Transport{
			DialContext:         c.dialNode,
			MaxConnsPerHost:     4,
			MaxIdleConnsPerHost: 1,
			DisableCompression:  true,
			ReadBufferSize:      readBuffer,
			WriteBufferSize:     writeBuffer,
		}
		c.http.Store(direct)
		c.node = &node.Client{
			Base:        "http://127.0.0.1:" + itoa(c.host.APIPort),
			MetricsBase: "http://127.0.0.1:" + itoa(c.host.APIPort+100),
			HTTP:        &http.Client{Transport: &nodeTransport{conn: c, direct: direct}},
		}
	})
	return c.node
}

func (c *Conn) dialNode(ctx context.Context, _, address string) (net.Conn, error) {
	addr, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return c.link.dialTCP(ctx, addr, n)
}

// Engine reads the host's Docker engine.
func (c *Conn) Engine() *Engine { return c.engine }

// command runs one command of the fixed list, by sudo where the host needs it.
func (c *Conn) command(ctx context.Context, what string, cmd host.Command, root bool) ([]byte, error) {
	cmd = cmd.WithSudo(root && c.host.NeedsSudo())
	if err := cmd.Validate(); err != nil {
		return nil, fmt.Errorf("host %s: %s: %w", c.host.ID, what, err)
	}
	out, err := c.link.run(ctx, what, cmd.String(), nil)
	return out, c.sudoError(cmd, err)
}

// sudoError recognises sudo's own refusal: it speaks before the command does.
func (c *Conn) sudoError(cmd host.Command, err error) error {
	var failed *CommandError
	if cmd.Sudo && errors.As(err, &failed) && strings.HasPrefix(failed.Stderr, "sudo:") {
		return &SudoError{Host: c.host.ID, User: c.host.User, Text: strings.TrimPrefix(failed.Stderr, "sudo: ")}
	}
	return err
}

// Inspect reads the node's container: through the agent where it runs, else by
// docker inspect with a template that prints no values. No such container:
// *EngineError with EngineNotFound.
func (c *Conn) Inspect(ctx context.Context) (host.ContainerFacts, error) {
	if a := c.runningAgent(); a != nil {
		facts, err := a.Facts(ctx, host.FactsRequest{Container: c.host.Container})
		if err != nil {
			return host.ContainerFacts{}, fmt.Errorf("host %s: inspecting %s: %w", c.host.ID, c.host.Container, err)
		}
		if facts.Container == nil {
			return host.ContainerFacts{}, c.noContainer("no such container")
		}
		return *facts.Container, nil
	}
	out, err := c.command(ctx, "docker inspect", host.Inspect(c.host.Container), true)
	if err != nil {
		return host.ContainerFacts{}, c.inspectError(err)
	}
	facts, err := host.ParseReadTemplate(out)
	if err != nil {
		return host.ContainerFacts{}, fmt.Errorf("host %s: %w", c.host.ID, err)
	}
	return facts, nil
}

func (c *Conn) noContainer(text string) error {
	return &EngineError{Host: c.host.ID, Fault: EngineNotFound, What: "inspecting " + c.host.Container, Err: errors.New(text)}
}

// inspectError sorts the failures of `docker inspect`. The docker command has
// one exit status for all of them, so its words decide; what is not recognised
// stays a CommandError.
func (c *Conn) inspectError(err error) error {
	var failed *CommandError
	if !errors.As(err, &failed) {
		return err
	}
	text := strings.ToLower(failed.Stderr)
	fault := &EngineError{Host: c.host.ID, What: "inspecting " + c.host.Container, Err: errors.New(failed.Stderr)}
	switch {
	case strings.Contains(text, "no such"):
		fault.Fault = EngineNotFound
	case strings.Contains(text, "permission denied"):
		fault.Fault = EnginePermission
	case strings.Contains(text, "cannot connect to the docker daemon"), failed.Exit == 127:
		fault.Fault = EngineUnreachable
	default:
		return err
	}
	return fault
}

// clockReading is one comparison of clocks. The time there is taken to be from
// the middle of the exchange, so half of what it took bounds the error.
type clockReading struct {
	offset, within time.Duration
}

func readingOf(before, after, there time.Time) clockReading {
	took := after.Sub(before)
	// Round drops the monotonic reading: the wall clocks are what is compared.
	return clockReading{offset: there.Sub(before.Add(took / 2).Round(0)), within: took / 2}
}

// sharpClock is an error that needs no second look.
const sharpClock = 250 * time.Millisecond

// clockPatience bounds the second look: an engine that hangs costs no more.
const clockPatience = 5 * time.Second

// Clock is the host's clock less this machine's. A login shell with slow
// start-up files makes `date` late; then the engine, which has no shell before
// it, is asked as well and the sharper of both readings counts.
func (c *Conn) Clock(ctx context.Context) (time.Duration, error) {
	r, err := c.clock(ctx)
	return r.offset, err
}

func (c *Conn) clock(ctx context.Context) (clockReading, error) {
	before := time.Now()
	out, err := c.command(ctx, "date", host.Clock(), false)
	after := time.Now()
	if err != nil {
		return clockReading{}, err
	}
	there, err := parseClock(string(out))
	if err != nil {
		return clockReading{}, fmt.Errorf("host %s: reading the clock: %w", c.host.ID, err)
	}
	best := readingOf(before, after, there)
	if best.within <= sharpClock {
		return best, nil
	}
	second, cancel := context.WithTimeout(ctx, clockPatience)
	defer cancel()
	before = time.Now()
	if info, err := c.engine.info(second); err == nil && !info.Time.IsZero() {
		if r := readingOf(before, time.Now(), info.Time); r.within < best.within {
			best = r
		}
	}
	return best, nil
}

// parseClock reads seconds and, where date knows %N, nanoseconds.
func parseClock(text string) (time.Time, error) {
	whole, fraction, _ := strings.Cut(strings.TrimSpace(text), ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a time", text)
	}
	nanos := int64(0)
	if len(fraction) == 9 {
		if nanos, err = strconv.ParseInt(fraction, 10, 64); err != nil {
			return time.Time{}, fmt.Errorf("%q is not a time", text)
		}
	}
	return time.Unix(seconds, nanos), nil
}

// Disk is the space of the file system that holds a path of the host.
func (c *Conn) Disk(ctx context.Context, path string) (host.DiskFacts, error) {
	out, err := c.command(ctx, "df", host.Disk(path), true)
	if err != nil {
		return host.DiskFacts{}, err
	}
	facts, err := parseDisk(path, string(out))
	if err != nil {
		return host.DiskFacts{}, fmt.Errorf("host %s: reading the space of %s: %w", c.host.ID, path, err)
	}
	return facts, nil
}

// parseDisk reads the POSIX form of df in bytes: a head line and one line of
// device, total, used, available, percentage, mount point. A device name may
// hold spaces, so the columns are counted from the percentage.
func parseDisk(path, text string) (host.DiskFacts, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 2 {
		return host.DiskFacts{}, fmt.Errorf("df answered %d lines, not 2", len(lines))
	}
	words := strings.Fields(lines[1])
	for i := 4; i < len(words); i++ {
		if !strings.HasSuffix(words[i], "%") && words[i] != "-" {
			continue
		}
		total, err1 := strconv.ParseUint(words[i-3], 10, 64)
		free, err2 := strconv.ParseUint(words[i-1], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return host.DiskFacts{}, fmt.Errorf("df's numbers: %w", err)
		}
		return host.DiskFacts{Path: path, FreeBytes: free, TotalBytes: total}, nil
	}
	return host.DiskFacts{}, fmt.Errorf("df's line is not understood: %q", lines[1])
}

// close ends what runs over the connection.
func (c *Conn) close() {
	if a := c.agent.Load(); a != nil {
		a.client.Close()
	}
	c.Rest()
}

// Rest gives up what idle HTTP connections to node and engine hold: buffers and two
// goroutines each, which with many hosts are most of what this program needs. The
// SSH connection stays; the next question opens a channel anew.
func (c *Conn) Rest() {
	if tr := c.http.Load(); tr != nil {
		tr.CloseIdleConnections()
	}
	c.engine.rest()
}
