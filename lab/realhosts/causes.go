package realhosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/lab/simnode"
)

// The causes of host faults. What is mounted for one is mounted inside the host and gone after a reboot; taking a
// fault back that a reboot took back already is no error.

// script makes a fault of a shell script inside the host.
func script(text string) func(*Cluster, context.Context, Host, string) error {
	return func(c *Cluster, ctx context.Context, host Host, _ string) error {
		_, err := c.Exec(ctx, host.ID, "sh", "-euc", text)
		return err
	}
}

func undo(text string) func(*Cluster, context.Context, Host) error {
	return func(c *Cluster, ctx context.Context, host Host) error {
		_, err := c.Exec(ctx, host.ID, "sh", "-euc", text)
		return err
	}
}

const (
	// The engine downloads into this folder: a pull finds no space left on the device, for real. What statfs says
	// of the data folder stays true; a lab does not fill the machine's disk.
	diskFull = `mkdir -p /var/lib/docker/tmp && mount -t tmpfs -o size=4k tmpfs /var/lib/docker/tmp
cat /dev/zero >/var/lib/docker/tmp/full 2>&- || :`
	diskFree = `if mountpoint -q /var/lib/docker/tmp; then umount /var/lib/docker/tmp; fi`

	// A container's writable layer is registered in this folder. Running containers do not need it.
	createFail = `for d in /var/lib/docker/image/*/layerdb/mounts; do mount --bind "$d" "$d" && mount -o remount,bind,ro "$d"; done`
	createWork = `for d in /var/lib/docker/image/*/layerdb/mounts; do if mountpoint -q "$d"; then umount "$d"; fi; done`

	// A runc that refuses to create and does all else. %[1]s is the real one.
	startFailScript = `mkdir -p /run/lab && cp %[1]s /run/lab/runc && cat >/run/lab/refuse <<'X'
#!/bin/sh
for arg; do
	if [ "$arg" = create ]; then
		echo "lab: the fault start-fail is set" >&2
		exit 1
	fi
done
exec /run/lab/runc "$@"
X
chmod 755 /run/lab/refuse && mount --bind /run/lab/refuse %[1]s`
	startWorkScript = `if mountpoint -q %[1]s; then umount %[1]s; fi`
)

func startFail(c *Cluster, ctx context.Context, host Host, _ string) error {
	return script(fmt.Sprintf(startFailScript, find("runc")))(c, ctx, host, "")
}

func startWork(c *Cluster, ctx context.Context, host Host) error {
	return undo(fmt.Sprintf(startWorkScript, find("runc")))(c, ctx, host)
}

// withEngine runs work with a client of a host's engine.
func (c *Cluster) withEngine(host Host, work func(*client.Client) error) error {
	engine, err := c.Engine(host.ID)
	if err != nil {
		return err
	}
	defer engine.Close()
	return work(engine)
}

func stopNode(c *Cluster, ctx context.Context, host Host, _ string) error {
	return c.withEngine(host, func(engine *client.Client) error {
		return engine.ContainerStop(ctx, host.Container, container.StopOptions{})
	})
}

func startNode(c *Cluster, ctx context.Context, host Host) error {
	return c.withEngine(host, func(engine *client.Client) error {
		return engine.ContainerStart(ctx, host.Container, container.StartOptions{})
	})
}

// dropSSH cuts connections; with hold the server ends too, and none is accepted until the fault is cleared.
func dropSSH(c *Cluster, ctx context.Context, host Host, arg string) error {
	if arg == "hold" {
		_, init, err := c.at(host.ID)
		if err != nil {
			return err
		}
		listeners, _, err := c.sshProcesses(host, init)
		if err != nil {
			return err
		}
		for _, proc := range listeners {
			if err := proc.kill(ctx); err != nil {
				return err
			}
		}
	}
	return c.DropSSH(ctx, host.ID)
}

// hostKeyFiles are set aside while the fault host-key is on.
func (c *Cluster) hostKeyFiles(host Host) []string {
	path := c.paths.in(host.ID, "etc/ssh/ssh_host_ed25519_key")
	return []string{path, path + ".pub"}
}

func changeKey(c *Cluster, ctx context.Context, host Host, _ string) error {
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
		if err := os.Rename(path+".pinned", path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return c.RestartSSH(ctx, host.ID)
}

// registryRule refuses the host's connections to the registry, as a firewall in between would.
func (c *Cluster) registryRule(op string) []string {
	return []string{"iptables", "-w", op, "OUTPUT", "-p", "tcp", "-d", c.state.address(1), "--dport", "5000", "-j", "REJECT", "--reject-with", "tcp-reset"}
}

func refuseRegistry(c *Cluster, ctx context.Context, host Host, _ string) error {
	_, err := c.Exec(ctx, host.ID, c.registryRule("-I")...)
	return err
}

func allowRegistry(c *Cluster, ctx context.Context, host Host) error {
	if _, err := c.Exec(ctx, host.ID, c.registryRule("-C")...); err != nil {
		return nil
	}
	_, err := c.Exec(ctx, host.ID, c.registryRule("-D")...)
	return err
}

// truncateLogs empties the log files of all containers, as a logrotate with copytruncate does behind the engine's back.
func truncateLogs(c *Cluster, ctx context.Context, host Host, _ string) error {
	return c.withEngine(host, func(engine *client.Client) error {
		list, err := engine.ContainerList(ctx, container.ListOptions{All: true})
		if err != nil {
			return err
		}
		for _, entry := range list {
			detail, err := engine.ContainerInspect(ctx, entry.ID)
			if err != nil {
				return err
			}
			err = os.Truncate(c.paths.in(host.ID, detail.LogPath), 0)
			if err != nil && detail.LogPath != "" && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

func setLogLevel(c *Cluster, ctx context.Context, host Host, arg string) error {
	if arg == "" {
		arg = "2"
	}
	return c.recreate(ctx, host, "QNET_LOG_LEVEL="+arg)
}

func clearLogLevel(c *Cluster, ctx context.Context, host Host) error {
	return c.recreate(ctx, host, "")
}

// recreate replaces the node's container by one with another log level, as an operator would by hand: the level is
// read once, at start.
func (c *Cluster) recreate(ctx context.Context, host Host, level string) error {
	return c.withEngine(host, func(engine *client.Client) error {
		old, err := engine.ContainerInspect(ctx, host.Container)
		if err != nil {
			return err
		}
		settings := old.Config
		settings.Env = slices.DeleteFunc(settings.Env, func(pair string) bool { return strings.HasPrefix(pair, "QNET_LOG_LEVEL=") })
		if level != "" {
			settings.Env = append(settings.Env, level)
		}
		if strings.HasPrefix(old.ID, settings.Hostname) {
			settings.Hostname = "" // made of the old id
		}
		if err := engine.ContainerStop(ctx, old.ID, container.StopOptions{}); err != nil {
			return err
		}
		if err := engine.ContainerRemove(ctx, old.ID, container.RemoveOptions{}); err != nil {
			return err
		}
		created, err := engine.ContainerCreate(ctx, settings, old.HostConfig, nil, nil, host.Container)
		if err != nil {
			return err
		}
		return engine.ContainerStart(ctx, created.ID, container.StartOptions{})
	})
}

// updaterName is the container, and updaterImage the image, by which a second updater is recognised (facts 5.2). What
// runs in it is the lab's node without data or peers: it updates nothing and joins nothing.
const (
	updaterName  = "watchtower"
	updaterImage = "containrrr/watchtower:latest"
)

func startUpdater(c *Cluster, ctx context.Context, host Host, _ string) error {
	return c.withEngine(host, func(engine *client.Client) error {
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
	})
}

func stopUpdater(c *Cluster, ctx context.Context, host Host) error {
	return c.withEngine(host, func(engine *client.Client) error {
		if err := engine.ContainerRemove(ctx, updaterName, container.RemoveOptions{Force: true}); err != nil {
			return err
		}
		_, err := engine.ImageRemove(ctx, updaterImage, image.RemoveOptions{})
		return err
	})
}

// killSignal ends a process at once.
const killSignal = unix.SIGKILL
