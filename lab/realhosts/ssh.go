package realhosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/qnetops/qnetops/lab/sshkey"
)

const sshdConfig = `Port %d
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
MaxSessions 10
PrintMotd no
PidFile /run/sshd.pid
SetEnv PATH=%s
`

// prepareSSH writes a host's SSH settings: a new host key, the lab's client key for root and for the plain user
// ops, who may log in and may not use the engine.
func (c *Cluster) prepareSSH(host Host) error {
	if err := c.NewHostKey(host.ID); err != nil {
		return err
	}
	client, err := os.ReadFile(c.paths.key() + ".pub")
	if err != nil {
		return fmt.Errorf("reading the client key: %w", err)
	}
	config := fmt.Sprintf(sshdConfig, host.SSHPort, searchPath)
	if err := os.WriteFile(c.paths.in(host.ID, "etc/ssh/sshd_config"), []byte(config), 0o644); err != nil {
		return fmt.Errorf("writing sshd_config: %w", err)
	}
	for home, owner := range map[string]int{"root": 0, "home/ops": 1000} {
		path := c.paths.in(host.ID, filepath.Join(home, ".ssh/authorized_keys"))
		err := errors.Join(os.WriteFile(path, client, 0o600), os.Chmod(filepath.Dir(path), 0o700),
			os.Chown(path, owner, owner), os.Chown(filepath.Dir(path), owner, owner), os.Chown(filepath.Dir(filepath.Dir(path)), owner, owner))
		if err != nil {
			return fmt.Errorf("writing authorized keys: %w", err)
		}
	}
	return nil
}

// NewHostKey replaces the SSH host key of a host. A running sshd uses it from its next start (Reboot or
// RestartSSH) on; known_hosts keeps the old one, which is what makes it a changed key.
func (c *Cluster) NewHostKey(id string) error {
	_, err := sshkey.Write(c.paths.in(id, "etc/ssh/ssh_host_ed25519_key"), "lab host "+id)
	return err
}

// writeKnownHosts pins the present host keys, in the form [address]:port.
func (c *Cluster) writeKnownHosts() error {
	var out bytes.Buffer
	for _, host := range c.state.Hosts {
		data, err := os.ReadFile(c.paths.in(host.ID, "etc/ssh/ssh_host_ed25519_key.pub"))
		if err != nil {
			return fmt.Errorf("reading host key: %w", err)
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey(data)
		if err != nil {
			return fmt.Errorf("reading host key of %s: %w", host.ID, err)
		}
		address := net.JoinHostPort(host.Address, strconv.Itoa(host.SSHPort))
		fmt.Fprintln(&out, knownhosts.Line([]string{knownhosts.Normalize(address)}, key))
	}
	if err := os.WriteFile(c.paths.knownHosts(), out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing known hosts: %w", err)
	}
	return nil
}

// startSSH starts the SSH server of a host and waits until it greets.
func (c *Cluster) startSSH(ctx context.Context, host Host, init Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if _, err := enter(ctx, init, "mkdir", "-p", "/run/sshd"); err != nil {
		return err
	}
	// sshd starts its sessions by its own path, which therefore must be absolute; with -D it stays a child of init.
	if err := c.daemon(ctx, host, init, "sshd", find("sshd"), "-D", "-e"); err != nil {
		return err
	}
	address := net.JoinHostPort(host.Address, strconv.Itoa(host.SSHPort))
	return poll(ctx, 20*time.Millisecond, "the SSH server of host "+host.ID, func() (bool, error) {
		return greets(ctx, address), nil
	})
}

func greets(ctx context.Context, address string) bool {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	word := make([]byte, 4)
	_, err = conn.Read(word)
	return err == nil && string(word) == "SSH-"
}

// sshProcesses lists the SSH server's processes of a host: the listener, and those of each connection.
func (c *Cluster) sshProcesses(host Host, init Process) (listener []hostProcess, sessions []hostProcess, err error) {
	all, err := processesIn(init)
	if err != nil {
		return nil, nil, err
	}
	for _, proc := range all {
		if !strings.HasPrefix(proc.Name, "sshd") {
			continue
		}
		if strings.Contains(strings.Join(proc.Argv, " "), "[listener]") {
			listener = append(listener, proc)
		} else {
			sessions = append(sessions, proc)
		}
	}
	return listener, sessions, nil
}
