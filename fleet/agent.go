package fleet

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/host"
)

// uploads is how many hosts receive the agent binary at a time: it is some
// tens of megabytes, and an operator's uplink is shared with the reads.
const uploads = 5

// agentBinary is the file that is installed on hosts. It stays open from the
// first look on, so that what is sent is what was hashed even if the file is
// replaced meanwhile.
type agentBinary struct {
	path  string
	slots chan struct{}

	once sync.Once
	file *os.File
	size int64
	sum  string
	os   string
	arch string
	err  error
}

func newAgentBinary(path string) *agentBinary {
	return &agentBinary{path: path, slots: make(chan struct{}, uploads)}
}

func (b *agentBinary) load() error {
	b.once.Do(func() { b.err = b.read() })
	return b.err
}

func (b *agentBinary) read() error {
	if b.path == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding the own executable: %w", err)
		}
		b.path = self
	}
	file, err := os.Open(b.path)
	if err != nil {
		return fmt.Errorf("opening the agent binary: %w", err)
	}
	hash := sha256.New()
	if b.size, err = io.Copy(hash, file); err != nil {
		file.Close()
		return fmt.Errorf("reading the agent binary: %w", err)
	}
	b.file, b.sum = file, hex.EncodeToString(hash.Sum(nil))
	b.os, b.arch = platform(file)
	return nil
}

// platform reads for which system a binary was built: from Go's build
// information, or from the ELF header where that was stripped.
func platform(file io.ReaderAt) (goos, goarch string) {
	if info, err := buildinfo.Read(file); err == nil {
		for _, s := range info.Settings {
			switch s.Key {
			case "GOOS":
				goos = s.Value
			case "GOARCH":
				goarch = s.Value
			}
		}
		if goos != "" && goarch != "" {
			return goos, goarch
		}
	}
	header, err := elf.NewFile(file)
	if err != nil {
		return "", ""
	}
	defer header.Close()
	if header.OSABI != elf.ELFOSABI_NONE && header.OSABI != elf.ELFOSABI_LINUX {
		return "", ""
	}
	return "linux", elfArch[header.Machine]
}

var elfArch = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_RISCV: "riscv64", elf.EM_PPC64: "ppc64le", elf.EM_S390: "s390x", elf.EM_386: "386", elf.EM_ARM: "arm"}

var unameArch = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x", "i686": "386", "armv7l": "arm", "armv6l": "arm"}

func (b *agentBinary) close() {
	if b.file != nil {
		b.file.Close()
	}
}

// agentProcess is the agent of one Conn.
type agentProcess struct {
	client *host.Client
	hello  host.Hello
	stderr *tailBuffer
}

func (c *Conn) runningAgent() *host.Client {
	if a := c.agent.Load(); a != nil && !a.ended() {
		return a.client
	}
	return nil
}

// agentGone says that this connection had an agent which has ended.
func (c *Conn) agentGone() bool {
	a := c.agent.Load()
	return a != nil && a.ended()
}

func (a *agentProcess) ended() bool {
	select {
	case <-a.client.Done():
		return true
	default:
		return false
	}
}

// Agent gives the client of the host agent, one per Conn. The first call
// installs the binary where this content is not on the host yet, and starts it.
// An agent that has ended is not started again: what it did is to be looked at
// over a connection of its own (Redial).
func (c *Conn) Agent(ctx context.Context) (*host.Client, error) {
	if err := c.starting.enter(ctx); err != nil {
		return nil, fmt.Errorf("host %s: waiting for the host agent: %w", c.host.ID, err)
	}
	defer c.starting.leave()
	a := c.agent.Load()
	if a == nil {
		var err error
		if a, err = c.startAgent(ctx); err != nil {
			return nil, err
		}
		c.agent.Store(a)
	}
	if a.ended() {
		return nil, c.agentEnded(a)
	}
	return a.client, nil
}

func (c *Conn) agentEnded(a *agentProcess) error {
	if c.link.isDead() {
		return c.link.dropped()
	}
	return &AgentError{Host: c.host.ID, Step: "running", Stderr: a.stderr.String(), Err: errors.New("it has ended")}
}

func (c *Conn) startAgent(ctx context.Context) (*agentProcess, error) {
	b := c.fleet.binary
	if err := b.load(); err != nil {
		return nil, &AgentError{Host: c.host.ID, Step: "install", Err: err}
	}
	if err := c.checkPlatform(ctx, b); err != nil {
		return nil, err
	}
	if err := c.install(ctx, b); err != nil {
		return nil, c.agentError("install", err)
	}
	return c.launch(ctx, b.sum)
}

// agentError leaves the types that speak for themselves alone.
func (c *Conn) agentError(step string, err error) error {
	var failed *CommandError
	if errors.As(err, &failed) {
		return &AgentError{Host: c.host.ID, Step: step, Stderr: failed.Stderr, Err: fmt.Errorf("%s: exit status %d", failed.What, failed.Exit)}
	}
	var sudo *SudoError
	if errors.As(err, &sudo) {
		return &AgentError{Host: c.host.ID, Step: step, Err: sudo}
	}
	return err
}

func (c *Conn) checkPlatform(ctx context.Context, b *agentBinary) error {
	out, err := c.command(ctx, "uname", host.Uname(), false)
	if err != nil {
		return c.agentError("platform", err)
	}
	fault := &PlatformError{Host: c.host.ID, Binary: b.path, BinOS: b.os, BinArch: b.arch, HostWords: strings.TrimSpace(string(out))}
	words := strings.Fields(string(out))
	if len(words) == 2 {
		fault.OS, fault.Arch = strings.ToLower(words[0]), unameArch[words[1]]
	}
	switch {
	case fault.OS == "" || fault.Arch == "":
		fault.UnknownArchWords = true
	case b.os == "" || b.arch == "":
		fault.NotAnExecutable = true
	case fault.OS == b.os && fault.Arch == b.arch:
		return nil
	}
	return fault
}

// install puts the binary under the name of its hash unless it is there. The
// hash is computed on the host both times: before, of what lies there, and by
// the install script, of what came in.
func (c *Conn) install(ctx context.Context, b *agentBinary) error {
	out, err := c.command(ctx, "sha256sum", host.Checksum(b.sum), true)
	if err == nil && strings.HasPrefix(string(out), b.sum+" ") {
		return nil
	}
	var failed *CommandError
	if err != nil && !errors.As(err, &failed) { // exit 1 is a file that is not there
		return err
	}
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-b.slots }()
	cmd := host.Install(b.sum).WithSudo(c.host.NeedsSudo())
	c.fleet.opts.Log.Info("installing the host agent", "host", c.host.ID, "sha256", b.sum, "bytes", b.size)
	_, err = c.link.run(ctx, "installing the agent", cmd.String(), io.NewSectionReader(b.file, 0, b.size))
	return c.sudoError(cmd, err)
}

// launch starts the agent and waits for its first word.
func (c *Conn) launch(ctx context.Context, sum string) (*agentProcess, error) {
	socket := c.host.EngineSocket
	if socket == DefaultEngineSocket {
		socket = ""
	}
	cmd := host.Agent(sum, socket).WithSudo(c.host.NeedsSudo())
	p, err := c.link.start(ctx, cmd.String(), true)
	if err != nil {
		return nil, fmt.Errorf("starting the host agent: %w", err)
	}
	a := &agentProcess{stderr: &tailBuffer{}}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		io.Copy(a.stderr, p.Stderr())
	}()
	a.client = host.NewClient(&agentPipe{process: p})
	if a.hello, err = a.client.Hello(ctx); err == nil {
		return a, nil
	}
	a.client.Close()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("host %s: starting the host agent: %w", c.host.ID, ctx.Err())
	}
	if c.link.waitDead(ctx) {
		return nil, c.link.dropped()
	}
	<-p.exit // the channel is closed after agentGrace, so both end
	<-heard
	failed := c.sudoError(cmd, &CommandError{Host: c.host.ID, What: "qnetops host", Exit: p.status, Stderr: a.stderr.String()})
	var sudo *SudoError
	if errors.As(failed, &sudo) {
		return nil, c.agentError("start", failed)
	}
	return nil, &AgentError{Host: c.host.ID, Step: "start", Stderr: a.stderr.String(), Err: err}
}

// agentPipe is the agent's stdin and stdout. Closing it ends its stdin first,
// which is how an agent learns that it is to finish; the channel follows.
type agentPipe struct {
	*process
	once sync.Once
}

func (p *agentPipe) Close() error {
	p.once.Do(func() {
		p.CloseWrite()
		// The agent may finish a transaction before it ends; nobody waits for that
		// here, and closing the channel does not stop it.
		go func() {
			t := time.NewTimer(agentGrace)
			defer t.Stop()
			select {
			case <-p.exit:
			case <-t.C:
			}
			p.process.Close()
		}()
	})
	return nil
}

// agentGrace is how long a session stays open for an agent that was told to end.
const agentGrace = 2 * time.Second
