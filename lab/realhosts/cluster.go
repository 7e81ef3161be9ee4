package realhosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qnetops/qnetops/lab/sshkey"
)

// Cluster is a lab that is up. Its methods may be used from several goroutines; a host is booted or stopped by one
// at a time.
type Cluster struct {
	paths         layout
	state         *State
	closeRegistry func() error // nil where another process serves it
	mu            sync.Mutex   // serialises what stops and starts parts of hosts
}

// AliveError says that a folder holds a lab that is up.
type AliveError struct {
	Dir string
	PID int
}

func (e *AliveError) Error() string {
	return fmt.Sprintf("a lab is up in %s (process %d)", e.Dir, e.PID)
}

// Hint says how to replace it.
func (e *AliveError) Hint() string { return "bring it down first: qnetops lab down --dir " + e.Dir }

// startsAtOnce limits hosts that boot in parallel: an engine's start is mostly work of the processor.
const startsAtOnce = 4

// Up builds a lab and returns when every host's SSH server and engine answer and every node's container is started.
// Whether the chain already moves is for the caller to see. The calling process serves the registry and counts as
// the owner of the lab: when it ends, hosts run on, pulls fail, and the next Up anywhere stops the lab.
// When Up fails it takes down what it made.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if missing := Missing(); len(missing) > 0 {
		return nil, &NeedError{Missing: missing}
	}
	c, err := claim(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := c.build(ctx, cfg); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), downWithin)
		defer cancel()
		return nil, errors.Join(err, c.Down(cleanup))
	}
	return c, nil
}

// claim takes the folder and a network. From its return on, Down can undo everything.
func claim(ctx context.Context, cfg Config) (*Cluster, error) {
	unlock, err := lockSetup(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := freeFolder(ctx, cfg.Dir); err != nil {
		return nil, err
	}
	if err := reapDead(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the lab's folder: %w", err)
	}
	owner, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	id := newLabID()
	st := &State{ID: id, Owner: owner, Bridge: bridgePrefix + id, Block: cfg.Block, CreatedAt: time.Now().UTC()}
	c := &Cluster{paths: layout{cfg.Dir}, state: st}
	if err := claimNetwork(ctx, st, cfg.Dir); err != nil {
		return nil, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	for i := range cfg.Nodes {
		st.Hosts = append(st.Hosts, newHost(st, cfg, i+1))
	}
	if err := st.save(cfg.Dir); err != nil {
		return nil, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// freeFolder makes sure that the folder holds no living lab and no files of somebody else under our names.
func freeFolder(ctx context.Context, dir string) error {
	st, err := loadState(dir)
	switch {
	case err == nil && st.Owner.Alive():
		return &AliveError{Dir: dir, PID: st.Owner.PID}
	case err == nil:
		return Down(ctx, dir)
	case !errors.Is(err, ErrNoLab):
		return err
	}
	for _, path := range (layout{dir}).made() {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists and was not made by a lab; choose an empty folder", path)
		}
	}
	return nil
}

func (c *Cluster) build(ctx context.Context, cfg Config) error {
	cfg.Progress(fmt.Sprintf("making %d hosts on %s, registry %s", cfg.Nodes, c.state.Bridge, c.state.Registry))
	if _, err := sshkey.Write(c.paths.key(), "qnetops lab"); err != nil {
		return err
	}
	if err := c.serveRegistry(ctx); err != nil {
		return err
	}
	if err := c.buildHosts(ctx, cfg); err != nil {
		return err
	}
	if err := errors.Join(c.writeKnownHosts(), c.writeHostsFile()); err != nil {
		return err
	}
	// The chain starts now: a genesis from before the engines were ready would be a chain that failed its first slots.
	genesis := time.Now()
	cfg.Progress("starting the nodes")
	return c.each(ctx, func(ctx context.Context, host Host) error { return c.runNode(ctx, cfg, host, genesis) })
}

// buildHosts boots all hosts and pulls the first image on each, while the images are being pushed.
func (c *Cluster) buildHosts(ctx context.Context, cfg Config) error {
	pushed := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(pushed)
		return c.pushImages(ctx, cfg)
	})
	group.Go(func() error {
		return c.each(ctx, func(ctx context.Context, host Host) error {
			if err := c.prepareHost(ctx, host); err != nil {
				return err
			}
			if err := c.boot(ctx, host); err != nil {
				return err
			}
			<-pushed
			if err := c.pullFirst(ctx, cfg, host); err != nil {
				return err
			}
			cfg.Progress(fmt.Sprintf("host %s is up: ssh root@%s port %d, container %s", host.ID, host.Address, host.SSHPort, host.Container))
			return nil
		})
	})
	return group.Wait()
}

// each works on several hosts at a time and ends with the first error.
func (c *Cluster) each(ctx context.Context, work func(context.Context, Host) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(startsAtOnce)
	for _, host := range c.state.Hosts {
		group.Go(func() error { return work(ctx, host) })
	}
	return group.Wait()
}

// Open takes hold of a lab that another process brought up.
func Open(dir string) (*Cluster, error) {
	real, err := realDir(dir)
	if err != nil {
		return nil, err
	}
	st, err := loadState(real)
	if err != nil {
		return nil, err
	}
	return &Cluster{paths: layout{real}, state: st}, nil
}

// Hosts lists the hosts in order.
func (c *Cluster) Hosts() []Host { return slices.Clone(c.state.Hosts) }

// State is a copy of the lab's record.
func (c *Cluster) State() State {
	st := *c.state
	st.Hosts = c.Hosts()
	return st
}

// HostsFile is the inventory, KeyFile the client's private key and KnownHosts the pinned host keys.
func (c *Cluster) HostsFile() string  { return c.paths.hostsFile() }
func (c *Cluster) KeyFile() string    { return c.paths.key() }
func (c *Cluster) KnownHosts() string { return c.paths.knownHosts() }

// Path is where a file of a host lies as seen from outside: Path("001", "/opt/qnet/data").
func (c *Cluster) Path(id, inside string) string { return c.paths.in(id, inside) }

// LogDir is where the logs of a host's boot, sshd, containerd and dockerd lie.
func (c *Cluster) LogDir(id string) string { return c.paths.log(id) }

// Close stops serving the registry, if this process does. The hosts run on.
func (c *Cluster) Close() error {
	if c.closeRegistry == nil {
		return nil
	}
	if err := c.closeRegistry(); err != nil {
		return fmt.Errorf("stopping the registry: %w", err)
	}
	return nil
}

// Wait returns nil once the lab was brought down, by whichever process. The owner of a lab waits here.
func (c *Cluster) Wait(ctx context.Context) error {
	return poll(ctx, 200*time.Millisecond, "the lab to go down", func() (bool, error) {
		st, err := loadState(c.paths.dir)
		return errors.Is(err, ErrNoLab) || err == nil && st.ID != c.state.ID, nil
	})
}

// downWithin bounds taking down a lab that failed to come up.
const downWithin = 60 * time.Second

// Down stops the lab of a folder, whoever brought it up, and deletes what Up made there; DIR/log stays. A folder
// without a lab is ErrNoLab.
func Down(ctx context.Context, dir string) error {
	c, err := Open(dir)
	if err != nil {
		return err
	}
	return c.Down(ctx)
}

// Down stops the lab and deletes what Up made; the folder with the logs stays. It may be called again after an error.
func (c *Cluster) Down(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.Close(), stop(ctx, c.state, c.paths.dir)); err != nil {
		return fmt.Errorf("stopping the lab: %w", err)
	}
	for _, path := range c.paths.made() {
		if err := removeTree(path); err != nil {
			return err
		}
	}
	return removeTree(filepath.Join(c.paths.dir, StateFile))
}

// stop ends all processes of a lab and takes its network and cgroups away; files stay. Killing an init is enough:
// the kernel kills everything in its pid namespace and reports the init dead only after that.
func stop(ctx context.Context, st *State, dir string) error {
	inits, err := findInits()
	if err != nil {
		return err
	}
	var errs []error
	for _, init := range inits {
		if init.Lab == st.ID && init.dir() == dir {
			errs = append(errs, init.signal(killSignal))
		}
	}
	for _, init := range inits {
		if init.Lab == st.ID && init.dir() == dir {
			errs = append(errs, init.wait(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(removeNetwork(ctx, st), removeCgroups(ctx, st))
}

// reapDead stops the labs whose owner is gone, wherever their folders are, and what is left of labs whose folder is
// gone. Their files stay for Down. The caller holds lockSetup, so no lab is in the middle of claiming.
func reapDead(ctx context.Context) error {
	found, err := labsOnMachine()
	if err != nil {
		return err
	}
	for lab := range found {
		st, err := loadState(lab.dir)
		known := err == nil && st.ID == lab.id
		if known && st.Owner.Alive() {
			continue
		}
		if !known {
			st = &State{ID: lab.id, Bridge: bridgePrefix + lab.id}
		}
		if err := stop(ctx, st, lab.dir); err != nil {
			return fmt.Errorf("stopping the dead lab in %s: %w", lab.dir, err)
		}
	}
	return nil
}

type labRef struct{ id, dir string }

// labsOnMachine finds labs by their inits and by their bridges: one that died early has only the latter.
func labsOnMachine() (map[labRef]bool, error) {
	inits, err := findInits()
	if err != nil {
		return nil, err
	}
	bridges, err := labBridges()
	if err != nil {
		return nil, err
	}
	found := map[labRef]bool{}
	for _, init := range inits {
		found[labRef{init.Lab, init.dir()}] = true
	}
	for name, dir := range bridges {
		found[labRef{strings.TrimPrefix(name, bridgePrefix), dir}] = true
	}
	return found, nil
}
