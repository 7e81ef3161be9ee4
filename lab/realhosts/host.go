package realhosts

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed boot.sh
var bootScript string

// machineFiles are copied into a host's /etc: what the dynamic linker, iptables' alternatives and names of ports
// need. Nothing of the machine's users, keys or settings goes in.
var machineFiles = []string{"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "protocols", "services", "localtime"}

// prepareHost makes the folder that becomes the host's root, once in the life of a lab.
func (c *Cluster) prepareHost(ctx context.Context, host Host) error {
	for _, dir := range []string{"etc/ssh", "etc/docker", "etc/containerd", "var/lib", "var/log", "var/tmp", "opt", "srv",
		"home/ops/.ssh", "root/.ssh"} {
		if err := os.MkdirAll(c.paths.in(host.ID, dir), 0o755); err != nil {
			return fmt.Errorf("making host %s: %w", host.ID, err)
		}
	}
	if err := os.MkdirAll(c.paths.log(host.ID), 0o755); err != nil {
		return fmt.Errorf("making host %s: %w", host.ID, err)
	}
	files := []string{"cp", "-a", "-t", c.paths.in(host.ID, "etc/")}
	for _, name := range machineFiles {
		if source := filepath.Join("/etc", name); exists(source) {
			files = append(files, source)
		}
	}
	if _, err := run(ctx, files...); err != nil {
		return err
	}
	if err := os.Symlink("/run", c.paths.in(host.ID, "var/run")); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making host %s: %w", host.ID, err)
	}
	for name, text := range map[string]string{
		"etc/hostname":    hostname(c.state, host) + "\n",
		"etc/hosts":       "127.0.0.1 localhost\n" + host.Address + " " + hostname(c.state, host) + "\n",
		"etc/resolv.conf": "",
		"etc/os-release":  "NAME=\"qnetops lab\"\nID=qnetops-lab\n",
		// Files alone: the machine's own sources may know root as locked, and sshd believes them.
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"etc/passwd": "root:*:0:0:root:/root:/bin/sh\nsshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n" +
			"ops:*:1000:1000::/home/ops:/bin/sh\nnobody:*:65534:65534::/:/usr/sbin/nologin\n",
		"etc/group":                  "root:*:0:\ndocker:*:999:\nops:*:1000:\nnogroup:*:65534:\n",
		"etc/containerd/config.toml": "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
	} {
		if err := os.WriteFile(c.paths.in(host.ID, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("making host %s: %w", host.ID, err)
		}
	}
	return c.prepareSSH(host)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func hostname(st *State, host Host) string { return "qnet-" + host.ID + "-" + st.ID }

// boot starts a host whose folder is ready: its init, its network, its engine, its SSH server.
func (c *Cluster) boot(ctx context.Context, host Host) error {
	init, err := c.startInit(ctx, host)
	if err != nil {
		return fmt.Errorf("host %s: %w", host.ID, err)
	}
	if err := connectHost(ctx, c.state, host, init); err != nil {
		return fmt.Errorf("host %s: connecting it: %w", host.ID, err)
	}
	if err := c.startSSH(ctx, host, init); err != nil {
		return err
	}
	return c.startEngine(ctx, host, init)
}

// startInit makes the namespaces. The process is not tied to this one: the lab outlives the call.
func (c *Cluster) startInit(ctx context.Context, host Host) (Process, error) {
	for _, volatile := range []string{"run", "tmp"} {
		if err := c.emptyFolder(c.paths.in(host.ID, volatile)); err != nil {
			return Process{}, err
		}
	}
	if err := os.Chmod(c.paths.in(host.ID, "tmp"), 0o1777|os.ModeSticky); err != nil {
		return Process{}, fmt.Errorf("preparing /tmp: %w", err)
	}
	log, err := c.openLog(host, "boot")
	if err != nil {
		return Process{}, err
	}
	defer log.Close()
	ready, told, err := os.Pipe()
	if err != nil {
		return Process{}, fmt.Errorf("making a pipe: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command("/bin/sh", "-c", bootScript, marker, c.state.ID, hostname(c.state, host), c.paths.host(host.ID))
	cmd.Env = []string{"PATH=" + searchPath}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{told}
	cmd.SysProcAttr = initAttr()
	err = cmd.Start()
	told.Close()
	if err != nil {
		return Process{}, fmt.Errorf("starting its init: %w", err)
	}
	go cmd.Wait() // reaps it for as long as this process lives
	init, err := identify(cmd.Process.Pid)
	if err != nil {
		return Process{}, fmt.Errorf("its init died at once; see %s", log.Name())
	}
	if err := writeJSON(c.paths.init(host.ID), init); err != nil {
		return Process{}, err
	}
	return init, awaitReady(ctx, ready, log.Name())
}

func awaitReady(ctx context.Context, ready *os.File, log string) error {
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	defer stop()
	word := make([]byte, 16)
	if n, _ := ready.Read(word); n == 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("booting: %w", context.Cause(ctx))
		}
		return fmt.Errorf("booting failed; see %s%s", log, lastLines(log, 3))
	}
	return nil
}

// lastLines adds the end of a log to an error: ": line; line", or nothing.
func lastLines(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if lines = lines[max(0, len(lines)-n):]; lines[0] == "" {
		return ""
	}
	return ": " + strings.Join(lines, "; ")
}

func (c *Cluster) openLog(host Host, name string) (*os.File, error) {
	path := filepath.Join(c.paths.log(host.ID), name+".log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening log: %w", err)
	}
	return file, nil
}

// init returns the running init of a host.
func (c *Cluster) init(host Host) (Process, error) {
	data, err := os.ReadFile(c.paths.init(host.ID))
	if err != nil {
		return Process{}, fmt.Errorf("host %s was never booted: %w", host.ID, err)
	}
	var init Process
	if err := json.Unmarshal(data, &init); err != nil {
		return Process{}, fmt.Errorf("reading %s: %w", c.paths.init(host.ID), err)
	}
	if !init.Alive() {
		return Process{}, &HostDownError{Host: host.ID}
	}
	return init, nil
}

// HostDownError says that a host of the lab has no power.
type HostDownError struct{ Host string }

func (e *HostDownError) Error() string { return "host " + e.Host + " is down" }

// Hint says how to bring it back.
func (e *HostDownError) Hint() string { return "reboot it, or bring the lab down and up again" }

// entering is the argv that runs a program inside a host.
func entering(init Process, argv ...string) []string {
	return append([]string{"nsenter", "--target", fmt.Sprint(init.PID), "--mount", "--net", "--pid", "--uts", "--ipc", "--"}, argv...)
}

func enter(ctx context.Context, init Process, argv ...string) ([]byte, error) {
	if !init.Alive() {
		return nil, fmt.Errorf("process %d is gone", init.PID)
	}
	return run(ctx, entering(init, argv...)...)
}

// daemon starts a program inside a host as a child of its init, so that it ends with the host and with nothing
// else. Its output is appended to a log of the lab.
func (c *Cluster) daemon(ctx context.Context, host Host, init Process, name string, argv ...string) error {
	log, err := c.openLog(host, name)
	if err != nil {
		return err
	}
	defer log.Close()
	full := entering(init, append([]string{"sh", "-c", `setsid "$@" </dev/null &`, "sh"}, argv...)...)
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env = []string{"PATH=" + searchPath, "HOME=/root"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("host %s: starting %s: %w", host.ID, name, err)
	}
	return nil
}
