package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/host"
)

// ClockTolerance is the offset from which on a clock is a finding: a node drops
// messages whose time is seconds away, and blocks come once a second.
const ClockTolerance = time.Second

// LowDisk is the free space below which a disk is a finding, in bytes: the 5 GB
// that a roll keeps beside image and log archive.
const LowDisk = 5 << 30

// HostReport is what Check found on one host. What could not be read is nil or
// empty and has an entry in Findings; nothing is assumed.
type HostReport struct {
	ID      string
	Address string
	User    string
	Reached bool
	HostKey string // verified: kind and SHA256 fingerprint
	Server  string // version line of sshd

	Engine         *EngineInfo
	ClockOffset    *time.Duration // the host's clock less this machine's
	Disks          []host.DiskFacts
	Container      *host.ContainerFacts
	Ports          []Port   // published by the node's container
	TLSTerminators []string // names of containers that look like a TLS proxy
	Updaters       []string // names of containers that replace others by themselves
	LogLevel       string   // QNET_LOG_LEVEL, "" when not set (the node's default is 3)
	Stray          []string // names of one-shot variables still on the container
	NodeBuild      string   // of /healthz, "" when it did not answer

	Findings []Finding
}

// Finding is something an operator should know about a host.
type Finding struct {
	Name  string // connect, engine, clock, disk, container, ports, node, stray, updater, log_level
	Fatal bool   // a host with it can not be rolled
	Text  string
	Hint  string
}

func (r *HostReport) find(name string, fatal bool, hint, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{Name: name, Fatal: fatal, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// fail records an error with its own hint.
func (r *HostReport) fail(name string, err error) {
	f := Finding{Name: name, Fatal: true, Text: err.Error()}
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		f.Hint = hinted.Hint()
	}
	r.Findings = append(r.Findings, f)
}

// OK says that nothing fatal was found.
func (r *HostReport) OK() bool {
	for _, f := range r.Findings {
		if f.Fatal {
			return false
		}
	}
	return true
}

// Check looks at every host of the fleet in parallel and reads only. Reports
// come in the order of hosts.toml, hosts that could not be reached among them.
func Check(ctx context.Context, f *Fleet) []HostReport {
	reports := make([]HostReport, len(f.hosts))
	index := map[string]*HostReport{}
	for i, h := range f.hosts {
		reports[i] = HostReport{ID: h.ID, Address: h.Address, User: h.User}
		index[h.ID] = &reports[i]
	}
	var mu sync.Mutex
	errs := f.Each(ctx, func(ctx context.Context, c *Conn) error {
		mu.Lock()
		r := index[c.host.ID]
		mu.Unlock()
		c.check(ctx, r)
		return nil
	})
	for id, err := range errs {
		index[id].fail("connect", err)
	}
	return reports
}

func (c *Conn) check(ctx context.Context, r *HostReport) {
	r.Reached, r.HostKey, r.Server = true, c.HostKey(), c.Server()
	c.checkEngine(ctx, r)
	c.checkContainer(ctx, r)
	c.checkClock(ctx, r)
	c.checkDisks(ctx, r)
	if health, err := c.Node().Healthz(ctx); err != nil {
		r.fail("node", err)
	} else {
		r.NodeBuild = health.Build
	}
}

func (c *Conn) checkEngine(ctx context.Context, r *HostReport) {
	info, err := c.engine.Info(ctx)
	if err != nil {
		r.fail("engine", err)
		return
	}
	r.Engine = &info
	list, err := c.engine.Containers(ctx)
	if err != nil {
		r.fail("engine", err)
		return
	}
	for _, other := range list {
		c.checkNeighbour(r, other)
	}
}

func (c *Conn) checkNeighbour(r *HostReport, other Container) {
	running := other.State == "running" || other.State == "restarting"
	switch {
	case other.Name == c.host.Container:
		r.Ports = other.Ports
		if running && other.NetworkMode != "host" && !publishes(other.Ports, c.host.APIPort) && len(other.Ports) > 0 {
			r.find("ports", true, "set api_port in hosts.toml to the published port", "container %s does not publish port %d", other.Name, c.host.APIPort)
		}
	case running && imageNamed(other, updaterImages):
		r.Updaters = append(r.Updaters, other.Name)
		r.find("updater", false, "stop it, or exclude the node's container from it, before a roll", "container %s (%s) replaces other containers by itself", other.Name, other.Image)
	case running && imageNamed(other, tlsImages):
		r.TLSTerminators = append(r.TLSTerminators, other.Name)
	}
}

func publishes(ports []Port, port int) bool {
	for _, p := range ports {
		if int(p.Host) == port && p.Proto == "tcp" {
			return true
		}
	}
	return false
}

var (
	updaterImages = []string{"watchtower", "ouroboros", "shepherd"}
	tlsImages     = []string{"caddy", "nginx", "traefik", "haproxy", "envoy", "stunnel", "qnet-tls"}
)

// imageNamed compares the last part of an image's name, and a container's name.
func imageNamed(c Container, words []string) bool {
	image := c.Image
	if i := strings.LastIndexByte(image, '/'); i >= 0 {
		image = image[i+1:]
	}
	for _, word := range words {
		if strings.Contains(image, word) || strings.Contains(c.Name, word) {
			return true
		}
	}
	return false
}

func (c *Conn) checkContainer(ctx context.Context, r *HostReport) {
	facts, err := c.Inspect(ctx)
	if err != nil {
		r.fail("container", err)
		return
	}
	r.Container, r.LogLevel, r.Stray = &facts, facts.LogLevel, facts.OneShot
	if len(r.Stray) > 0 {
		r.find("stray", false, "they act again on every start: a roll leaves them out", "container %s still carries %s", facts.Name, strings.Join(r.Stray, ", "))
	}
	if !facts.Running() {
		r.find("container", false, "look at its last lines: docker logs --tail 50 "+facts.Name+" on the host", "container %s is %s (exit code %d)", facts.Name, facts.State, facts.ExitCode)
	}
	if level := facts.LogLevel; level != "" && level < "3" {
		r.find("log_level", false, "milestones are then read from other sources, which takes longer; 3 is the node's default", "QNET_LOG_LEVEL is %s, so the node hides the lines that a roll watches for", level)
	}
}

func (c *Conn) checkClock(ctx context.Context, r *HostReport) {
	reading, err := c.clock(ctx)
	if err != nil {
		r.fail("clock", err)
		return
	}
	offset := reading.offset
	r.ClockOffset = &offset
	if offset.Abs()-reading.within >= ClockTolerance {
		r.find("clock", false, "look at the time service of the host (chronyc tracking), and at this machine's", "clock is %s away from this machine's", offset.Round(time.Millisecond))
	}
}

// checkDisks reads the data directory's disk and the engine's, which holds
// images and logs.
func (c *Conn) checkDisks(ctx context.Context, r *HostReport) {
	var paths []string
	switch {
	case c.host.DataPath != "":
		paths = append(paths, c.host.DataPath)
	case r.Container != nil && r.Container.DataDir.HostPath != "":
		paths = append(paths, r.Container.DataDir.HostPath)
	}
	if r.Engine != nil && r.Engine.Root != "" {
		paths = append(paths, r.Engine.Root)
	}
	for _, path := range paths {
		disk, err := c.Disk(ctx, path)
		if err != nil {
			r.fail("disk", err)
			continue
		}
		r.Disks = append(r.Disks, disk)
		if disk.FreeBytes < LowDisk {
			r.find("disk", false, "make room before a roll: image, log archive and 5 GB are needed", "%s has %.1f GB left", path, float64(disk.FreeBytes)/1e9)
		}
	}
}
