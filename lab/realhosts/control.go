package realhosts

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/host"
)

// at finds a running host.
func (c *Cluster) at(id string) (Host, Process, error) {
	host, err := c.state.host(id)
	if err != nil {
		return Host{}, Process{}, err
	}
	init, err := c.init(host)
	return host, init, err
}

// Exec runs a program inside a host, as root and past SSH, and returns its standard output. It is for looking; a
// *CommandError holds what a failing program said.
func (c *Cluster) Exec(ctx context.Context, id string, argv ...string) ([]byte, error) {
	_, init, err := c.at(id)
	if err != nil {
		return nil, err
	}
	return enter(ctx, init, argv...)
}

// KillEngine kills dockerd as a crash would. Containers run on, their ports on the host's loopback are gone, and
// nothing restarts the engine until StartEngine.
func (c *Cluster) KillEngine(ctx context.Context, id string) error {
	return c.endEngine(ctx, id, unix.SIGKILL)
}

// StopEngine ends dockerd in order: it stops the containers first.
func (c *Cluster) StopEngine(ctx context.Context, id string) error {
	return c.endEngine(ctx, id, unix.SIGTERM)
}

func (c *Cluster) endEngine(ctx context.Context, id string, sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, init, err := c.at(id)
	if err != nil {
		return err
	}
	return endAll(ctx, init, "dockerd", sig)
}

// endAll signals every process of a name in a host and waits until all are gone.
func endAll(ctx context.Context, init Process, name string, sig unix.Signal) error {
	running, err := named(init, name)
	if err != nil {
		return err
	}
	for _, proc := range running {
		err = errors.Join(err, proc.signal(sig))
	}
	for _, proc := range running {
		err = errors.Join(err, proc.wait(ctx))
	}
	return err
}

// StartEngine starts dockerd where it does not run, and waits until it answers.
func (c *Cluster) StartEngine(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, init, err := c.at(id)
	if err != nil {
		return err
	}
	return c.startEngine(ctx, host, init)
}

// RestartEngine is what an upgrade of the engine's package does: stop in order, start again.
func (c *Cluster) RestartEngine(ctx context.Context, id string) error {
	if err := c.StopEngine(ctx, id); err != nil {
		return err
	}
	return c.StartEngine(ctx, id)
}

// DropSSH cuts every SSH connection of a host. What ran in them runs on; the listener takes new ones.
func (c *Cluster) DropSSH(ctx context.Context, id string) error {
	host, init, err := c.at(id)
	if err != nil {
		return err
	}
	_, sessions, err := c.sshProcesses(host, init)
	if err != nil {
		return err
	}
	for _, proc := range sessions {
		err = errors.Join(err, proc.kill(ctx))
	}
	return err
}

// RestartSSH starts the SSH server anew, with the host key it finds then. Connections stay up.
func (c *Cluster) RestartSSH(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, init, err := c.at(id)
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
	return c.startSSH(ctx, host, init)
}

// PowerOff ends everything in a host at once: containers, engine, agents, SSH. Its files stay.
func (c *Cluster) PowerOff(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.powerOff(ctx, id)
}

func (c *Cluster) powerOff(ctx context.Context, id string) error {
	host, init, err := c.at(id)
	var down *HostDownError
	if errors.As(err, &down) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := init.kill(ctx); err != nil {
		return fmt.Errorf("host %s: %w", id, err)
	}
	return removeLink(ctx, host.Veth)
}

// Reboot is PowerOff and a boot. The engine starts containers by their restart policy.
func (c *Cluster) Reboot(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, err := c.state.host(id)
	if err != nil {
		return err
	}
	if err := c.powerOff(ctx, id); err != nil {
		return err
	}
	return c.boot(ctx, host)
}

// Partition pulls a host's network cable: no SSH, no peers, and the node itself runs on.
func (c *Cluster) Partition(ctx context.Context, id string) error { return c.setLink(ctx, id, "down") }

// Heal undoes Partition and Isolate.
func (c *Cluster) Heal(ctx context.Context, id string) error {
	if err := c.setLink(ctx, id, "up"); err != nil {
		return err
	}
	return c.dropForwarded(ctx, id, false)
}

func (c *Cluster) setLink(ctx context.Context, id, state string) error {
	host, err := c.state.host(id)
	if err != nil {
		return err
	}
	_, err = run(ctx, "ip", "link", "set", host.Veth, state)
	return err
}

// Isolate cuts the containers of a host off from all other hosts while SSH still reaches the host, and the node's
// port still answers on the host's loopback.
func (c *Cluster) Isolate(ctx context.Context, id string) error {
	return c.dropForwarded(ctx, id, true)
}

// Slow lets what a host sends through at a rate, in tc's words ("1mbit"): answers and logs come late, and so do its node's
// votes. What it receives is as fast as before; Fast and a reboot undo it.
func (c *Cluster) Slow(ctx context.Context, id, rate string) error {
	_, err := c.Exec(ctx, id, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "4s")
	return err
}

// Fast undoes Slow; a host that is not slow is an error.
func (c *Cluster) Fast(ctx context.Context, id string) error {
	_, err := c.Exec(ctx, id, "tc", "qdisc", "del", "dev", "eth0", "root")
	return err
}

// dropForwarded keeps exactly one dropping rule for each direction, or none, in front of the engine's own rules.
func (c *Cluster) dropForwarded(ctx context.Context, id string, drop bool) error {
	_, init, err := c.at(id)
	if err != nil {
		return err
	}
	for _, side := range []string{"-i", "-o"} {
		rule := []string{"FORWARD", side, "eth0", "-j", "DROP"}
		_, missing := enter(ctx, init, append([]string{"iptables", "-w", "-C"}, rule...)...)
		switch {
		case drop && missing != nil:
			_, err = enter(ctx, init, append([]string{"iptables", "-w", "-I"}, rule...)...)
		case !drop && missing == nil:
			_, err = enter(ctx, init, append([]string{"iptables", "-w", "-D"}, rule...)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AgentProcess is a process of the host agent, by its pid outside the host.
type AgentProcess struct {
	Process
	// Guardian tells the second process of the pair from the one that serves requests.
	Guardian bool
	Argv     []string
}

// Agents lists the host agent's processes on a host.
func (c *Cluster) Agents(id string) ([]AgentProcess, error) {
	_, init, err := c.at(id)
	if err != nil {
		return nil, err
	}
	all, err := processesIn(init)
	if err != nil {
		return nil, err
	}
	var out []AgentProcess
	for _, proc := range all {
		if len(proc.Argv) > 1 && path.Dir(proc.Argv[0]) == host.AgentDir && proc.Argv[1] == "host" {
			guardian := slices.ContainsFunc(proc.Argv, func(arg string) bool { return strings.HasPrefix(arg, "--guardian") })
			out = append(out, AgentProcess{Process: proc.Process, Guardian: guardian, Argv: proc.Argv})
		}
	}
	return out, nil
}

// AgentPIDs lists the pids of the host agent's processes as this machine sees them.
func (c *Cluster) AgentPIDs(id string) ([]int, error) {
	agents, err := c.Agents(id)
	var out []int
	for _, agent := range agents {
		out = append(out, agent.PID)
	}
	return out, err
}

// Kill sends a signal to an agent process; KILL, STOP and CONT are what tests want.
func (p AgentProcess) Kill(sig unix.Signal) error { return p.signal(sig) }
