package realhosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/qnetops/qnetops/lab/simnode"
)

// hostFault is a fault of a host or its engine. Those without clear happen once.
type hostFault struct {
	inject, clear func(*Cluster, context.Context, Host) error
}

// hostFaults are the faults of this backend, next to those of the node itself. Faults that a real engine has no
// switch for (create-fail, start-fail, disk-full, log-rotate) exist in the process backend alone.
func hostFaults() map[string]hostFault {
	return map[string]hostFault{
		"stop":           {stopNode, startNode},
		"power-off":      {byID((*Cluster).PowerOff), byID((*Cluster).Reboot)},
		"reboot":         {byID((*Cluster).Reboot), nil},
		"partition":      {byID((*Cluster).Partition), byID((*Cluster).Heal)},
		"drop-ssh":       {byID((*Cluster).DropSSH), nil},
		"host-key":       {changeKey, restoreKey},
		"engine-down":    {byID((*Cluster).StopEngine), byID((*Cluster).StartEngine)},
		"engine-kill":    {byID((*Cluster).KillEngine), byID((*Cluster).StartEngine)},
		"engine-restart": {byID((*Cluster).RestartEngine), nil},
		"pull-fail":      {refuseRegistry, allowRegistry},
		"second-updater": {startUpdater, stopUpdater},
	}
}

func byID(f func(*Cluster, context.Context, string) error) func(*Cluster, context.Context, Host) error {
	return func(c *Cluster, ctx context.Context, host Host) error { return f(c, ctx, host.ID) }
}

// FaultKinds lists what Inject knows.
func FaultKinds() []string {
	kinds := slices.Collect(maps.Keys(hostFaults()))
	for _, kind := range simnode.Kinds() {
		kinds = append(kinds, string(kind))
	}
	slices.Sort(kinds)
	return kinds
}

// Inject sets a fault on a host or its node. An unknown kind or host is an error that lists the known ones.
func (c *Cluster) Inject(ctx context.Context, id, kind, arg string) error {
	host, err := c.state.host(id)
	if err != nil {
		return err
	}
	fault, ofHost := hostFaults()[kind]
	switch {
	case !ofHost && !slices.Contains(simnode.Kinds(), simnode.Kind(kind)):
		return fmt.Errorf("unknown fault %q: known are %s", kind, strings.Join(FaultKinds(), ", "))
	case !ofHost:
		return c.setNodeFault(host, kind, arg)
	case arg != "":
		return fmt.Errorf("fault %s takes no argument", kind)
	}
	if err := fault.inject(c, ctx, host); err != nil {
		return fmt.Errorf("fault %s on host %s: %w", kind, id, err)
	}
	if fault.clear == nil {
		return nil
	}
	return c.writeFaults(host, append(c.faultsOf(host), kind))
}

// nodeFaultFile is read by the running node, one fault a line.
func (c *Cluster) nodeFaultFile(host Host) string { return c.paths.in(host.ID, DataDir+"/lab-faults") }

func (c *Cluster) setNodeFault(host Host, kind, arg string) error {
	if err := new(simnode.Faults).Set(simnode.Kind(kind), arg); err != nil {
		return err
	}
	lines := slices.DeleteFunc(readLines(c.nodeFaultFile(host)), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return name == kind
	})
	line := kind
	if arg != "" {
		line += "=" + arg
	}
	return writeLines(c.nodeFaultFile(host), append(lines, line))
}

// Faults lists the faults that are set, by host.
func (c *Cluster) Faults() map[string][]string {
	out := map[string][]string{}
	for _, host := range c.state.Hosts {
		if set := slices.Concat(c.faultsOf(host), readLines(c.nodeFaultFile(host))); len(set) > 0 {
			slices.Sort(set)
			out[host.ID] = set
		}
	}
	return out
}

// ClearFaults takes all faults back, newest first. It goes on after an error and returns all of them.
func (c *Cluster) ClearFaults(ctx context.Context) error {
	var errs []error
	for _, host := range c.state.Hosts {
		for _, kind := range slices.Backward(c.faultsOf(host)) {
			if fault, ok := hostFaults()[kind]; ok {
				if err := fault.clear(c, ctx, host); err != nil {
					errs = append(errs, fmt.Errorf("clearing fault %s on host %s: %w", kind, host.ID, err))
				}
			}
		}
		errs = append(errs, c.writeFaults(host, nil), writeLines(c.nodeFaultFile(host), nil))
	}
	return errors.Join(errs...)
}

// The faults of a host are kept beside its root, so that another process can clear them.
func (c *Cluster) faultFile(host Host) string {
	return filepath.Join(c.paths.host(host.ID), "faults")
}

func (c *Cluster) faultsOf(host Host) []string { return readLines(c.faultFile(host)) }

func (c *Cluster) writeFaults(host Host, kinds []string) error {
	return writeLines(c.faultFile(host), kinds)
}

func readLines(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

// writeLines replaces a file; no lines, no file.
func writeLines(path string, lines []string) error {
	var err error
	if len(lines) == 0 {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else if err = os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o644); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("recording faults: %w", err)
	}
	return nil
}

func stopNode(c *Cluster, ctx context.Context, host Host) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	return engine.ContainerStop(ctx, host.Container, container.StopOptions{})
}

func startNode(c *Cluster, ctx context.Context, host Host) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	return engine.ContainerStart(ctx, host.Container, container.StartOptions{})
}

// hostKeyFiles are set aside while the fault host-key is on.
func (c *Cluster) hostKeyFiles(host Host) []string {
	path := c.paths.in(host.ID, "etc/ssh/ssh_host_ed25519_key")
	return []string{path, path + ".pub"}
}

func changeKey(c *Cluster, ctx context.Context, host Host) error {
	if slices.Contains(c.faultsOf(host), "host-key") {
		return errors.New("it is set already")
	}
	for _, path := range c.hostKeyFiles(host) {
		if err := os.Rename(path, path+".pinned"); err != nil {
			return err
		}
	}
	if err := c.NewHostKey(host.ID); err != nil {
		return err
	}
	return c.RestartSSH(ctx, host.ID)
}

func restoreKey(c *Cluster, ctx context.Context, host Host) error {
	for _, path := range c.hostKeyFiles(host) {
		if err := os.Rename(path+".pinned", path); err != nil {
			return err
		}
	}
	return c.RestartSSH(ctx, host.ID)
}

// registryRule refuses the host's connections to the registry, as a firewall in between would.
func (c *Cluster) registryRule(op string) []string {
	return []string{"iptables", "-w", op, "OUTPUT", "-p", "tcp", "-d", c.state.address(1), "--dport", "5000", "-j", "REJECT", "--reject-with", "tcp-reset"}
}

func refuseRegistry(c *Cluster, ctx context.Context, host Host) error {
	_, err := c.Exec(ctx, host.ID, c.registryRule("-I")...)
	return err
}

// allowRegistry takes the rule back; a reboot has done so already.
func allowRegistry(c *Cluster, ctx context.Context, host Host) error {
	if _, err := c.Exec(ctx, host.ID, c.registryRule("-C")...); err != nil {
		return nil
	}
	_, err := c.Exec(ctx, host.ID, c.registryRule("-D")...)
	return err
}

// updaterName is the container, and updaterImage the image, by which a second updater is recognised (facts 5.2). What
// runs in it is the lab's node without data or peers: it updates nothing and joins nothing.
const (
	updaterName  = "watchtower"
	updaterImage = "containrrr/watchtower:latest"
)

func startUpdater(c *Cluster, ctx context.Context, host Host) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	node, err := engine.ContainerInspect(ctx, host.Container)
	if err != nil {
		return err
	}
	if err := engine.ImageTag(ctx, node.Image, updaterImage); err != nil {
		return err
	}
	settings := &container.Config{Image: updaterImage, Env: []string{simnode.EnvObserver + "=1"},
		Labels: map[string]string{"com.centurylinklabs.watchtower": "true"}}
	created, err := engine.ContainerCreate(ctx, settings, nil, nil, nil, updaterName)
	if err != nil {
		return err
	}
	return engine.ContainerStart(ctx, created.ID, container.StartOptions{})
}

func stopUpdater(c *Cluster, ctx context.Context, host Host) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := engine.ContainerRemove(ctx, updaterName, container.RemoveOptions{Force: true}); err != nil {
		return err
	}
	_, err = engine.ImageRemove(ctx, updaterImage, image.RemoveOptions{})
	return err
}
