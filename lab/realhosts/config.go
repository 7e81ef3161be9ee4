package realhosts

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/qnetops/qnetops/lab/simnode"
)

// MaxNodes bounds a lab: hosts sit at .11 and up in a block of 64 addresses.
const MaxNodes = 50

// GenesisNodes is how many genesis identities there are: QNET_BOOTSTRAP_ID 001..005 (facts 5.1).
const GenesisNodes = 5

// Config says what Up builds.
type Config struct {
	// Nodes is the number of hosts, 1..MaxNodes.
	Nodes int
	// SuperFrom is the number of the first host that is a super node; those before it are genesis nodes. Zero, and
	// anything beyond it, means 6.
	SuperFrom int
	// Dir holds everything of the lab. It must be empty, missing, or hold a lab that is down or dead.
	Dir string
	// Block is the block time given to every node by the image (QNETOPS_LAB_BLOCK). Zero means one second.
	Block time.Duration
	// Binary is a static executable that becomes /qnetops in every image. It is run as
	// `/qnetops lab node --image NAME`, and as `/qnetops lab node --probe` by the image's health check.
	Binary string
	// NodeEnv gives further environment of node i (from 1), KEY=VALUE: the sentinel secrets, and what else a test
	// wants. It wins over what Up sets itself. The id of a super node derives from its QNET_WALLET_SEED, so seeds
	// must differ; nil gives each node one of its own.
	NodeEnv func(i int) []string
	// Container may change what the container of node i is created with, after everything else is set.
	Container func(i int, settings *container.Config, host *container.HostConfig)
	// Images replaces DefaultImages.
	Images []ImageSpec
	// Image is the tag that nodes run at first. Empty means v1.
	Image string
	// Progress is told what happens, in words for a person. It may be called from several goroutines.
	Progress func(string)
}

func (c Config) withDefaults() (Config, error) {
	if c.Nodes < 1 || c.Nodes > MaxNodes {
		return c, fmt.Errorf("nodes must be 1..%d, not %d", MaxNodes, c.Nodes)
	}
	if c.Dir == "" {
		return c, errors.New("no folder given for the lab")
	}
	dir, err := realDir(c.Dir)
	if err != nil {
		return c, err
	}
	c.Dir = dir
	if c.SuperFrom < 1 || c.SuperFrom > GenesisNodes+1 {
		c.SuperFrom = GenesisNodes + 1
	}
	if c.Block == 0 {
		c.Block = time.Second
	}
	if c.Block < 0 {
		return c, fmt.Errorf("block time must be positive, not %s", c.Block)
	}
	if c.NodeEnv == nil {
		c.NodeEnv = func(i int) []string { return []string{"QNET_WALLET_SEED=lab wallet of host " + HostID(i)} }
	}
	if c.Container == nil {
		c.Container = func(int, *container.Config, *container.HostConfig) {}
	}
	if c.Images == nil {
		c.Images = DefaultImages()
	}
	if c.Image == "" {
		c.Image = "v1"
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c, staticBinary(c.Binary)
}

// realDir makes a path absolute and free of symbolic links as far as it exists. Paths of mounts in
// /proc/self/mountinfo are real paths; only like compares with like.
func realDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("finding folder %s: %w", dir, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, os.ErrNotExist) {
		parent, err := realDir(filepath.Dir(abs))
		if err != nil {
			return "", err
		}
		return filepath.Join(parent, filepath.Base(abs)), nil
	}
	if err != nil {
		return "", fmt.Errorf("finding folder %s: %w", dir, err)
	}
	return real, nil
}

// staticBinary refuses an executable that a FROM scratch image could not start: the container would fail with a
// "no such file" that names the wrong file.
func staticBinary(path string) error {
	if path == "" {
		return errors.New("no binary given for the node image")
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading node binary %s: %w", path, err)
	}
	defer file.Close()
	for _, prog := range file.Progs {
		if prog.Type == elf.PT_INTERP {
			return &DynamicBinaryError{Path: path}
		}
	}
	return nil
}

// DynamicBinaryError says that the node binary needs a loader that an image FROM scratch does not have.
type DynamicBinaryError struct{ Path string }

func (e *DynamicBinaryError) Error() string {
	return fmt.Sprintf("node binary %s is dynamically linked", e.Path)
}

// Hint says how to build a binary that works.
func (e *DynamicBinaryError) Hint() string { return "build it with CGO_ENABLED=0" }

// HostID is the inventory id of host i (from 1): 001, 002, ...
func HostID(i int) string { return fmt.Sprintf("%03d", i) }

// newHost lays out host i: names, ports and log limits as facts 5.2 shows them for genesis and super nodes.
func newHost(st *State, cfg Config, i int) Host {
	host := Host{
		ID: HostID(i), Index: i, Role: "genesis",
		Address: st.address(10 + i), SSHPort: 2222,
		Container: fmt.Sprintf("qnet-genesis-%03d", i),
		Veth:      fmt.Sprintf("qv%s%d", st.ID, i),
	}
	if i >= cfg.SuperFrom {
		host.Role, host.SSHPort, host.Container = "super", 22, "qnet-super-node"
	}
	host.NodeID = simnode.NodeID(identityEnv(cfg, i))
	return host
}
