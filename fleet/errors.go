package fleet

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNotInFleet is wrapped by every error about an id that hosts.toml does not
// know or that was not opened in this run.
var ErrNotInFleet = errors.New("not in the fleet")

// UnreachableError says that no SSH conversation with a host came about: the
// network refused, or the peer hung up before it had shown a host key.
type UnreachableError struct {
	Host    string // id in hosts.toml, or the name of a jump host
	Address string // host:port as dialled
	Via     string // name of the jump host the dial went through, "" for none
	Err     error
}

func (e *UnreachableError) Error() string {
	if e.Via != "" {
		return fmt.Sprintf("host %s: reaching %s through %s: %v", e.Host, e.Address, e.Via, e.Err)
	}
	return fmt.Sprintf("host %s: reaching %s: %v", e.Host, e.Address, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Hint names what an operator looks at first.
func (e *UnreachableError) Hint() string {
	if e.Via != "" {
		return "check that sshd on the jump host allows TCP forwarding and that it can reach the address"
	}
	return "check address and port in hosts.toml, the firewall, and that sshd runs"
}

// KeyFault is the kind of disagreement between known_hosts and a host key.
type KeyFault string

// The kinds of host key faults. A changed key and an unknown key need opposite
// reactions, so they are never told in the same words.
const (
	KeyUnknown KeyFault = "unknown"
	KeyChanged KeyFault = "changed"
	KeyRevoked KeyFault = "revoked"
)

// HostKeyError says that the key a host showed is not the one known_hosts
// holds. The conversation ended before anything else was said.
type HostKeyError struct {
	Host      string
	Address   string // name and port as dialled: the name known_hosts is asked for
	Fault     KeyFault
	Presented string   // SHA256 fingerprint with key type, "" when the host offered no key of a recorded kind
	Known     []string // SHA256 fingerprints with key type and file:line
	Files     []string // the known_hosts files asked
}

func (e *HostKeyError) Error() string {
	switch e.Fault {
	case KeyChanged:
		shown := e.Presented
		if shown == "" {
			shown = "no key of a recorded kind"
		}
		return fmt.Sprintf("host %s: host key changed: %s shows %s, known_hosts holds %s",
			e.Host, e.Address, shown, strings.Join(e.Known, ", "))
	case KeyRevoked:
		return fmt.Sprintf("host %s: host key of %s is marked as revoked: %s", e.Host, e.Address, e.Presented)
	}
	return fmt.Sprintf("host %s: host key unknown: no entry for %s in %s, it shows %s",
		e.Host, e.Address, strings.Join(e.Files, ", "), e.Presented)
}

// Hint differs by fault: an unknown key can be trusted after a comparison, a
// changed one must be explained first.
func (e *HostKeyError) Hint() string {
	switch e.Fault {
	case KeyChanged:
		return "someone may be listening in, or the host was set up anew: compare the fingerprint on the host's console, then remove the old line by hand and run `qnetops hosts trust`"
	case KeyRevoked:
		return "do not use this host until its key was replaced"
	}
	return "compare the fingerprint on the host's console, then run `qnetops hosts trust`"
}

// AuthError says that the host key was right and the host refused every key
// that was offered.
type AuthError struct {
	Host    string
	Address string
	User    string
	Offered []string // names of the keys offered, never their contents
	Notes   []string // why a key could not be offered (agent not reachable, wrong passphrase)
	Err     error
}

func (e *AuthError) Error() string {
	offered := "no key to offer"
	if len(e.Offered) > 0 {
		offered = "offered " + strings.Join(e.Offered, ", ")
	}
	text := fmt.Sprintf("host %s: %s refuses user %s (%s)", e.Host, e.Address, e.User, offered)
	if len(e.Notes) > 0 {
		text += ": " + strings.Join(e.Notes, "; ")
	}
	return text
}

func (e *AuthError) Unwrap() error { return e.Err }

// Hint tells where keys and users come from.
func (e *AuthError) Hint() string {
	return "check user and key in hosts.toml, that the agent holds the key (ssh-add -l), and ~/.ssh/authorized_keys on the host; with identities_only only the configured key is offered"
}

// TimeoutError says that a host did not answer within the bound.
type TimeoutError struct {
	Host  string
	What  string // what was waited for
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("host %s: %s: no answer within %s", e.Host, e.What, e.After)
}

// Timeout makes the error one of net.Error's kind.
func (e *TimeoutError) Timeout() bool { return true }

// Hint names the two usual causes.
func (e *TimeoutError) Hint() string {
	return "a silent host is usually a firewall that drops packets or a machine out of memory; raise [ssh] connect_timeout only for slow links"
}

// DroppedError says that the one connection of the run to this host is dead.
// Nothing reconnects by itself: whether a command in flight ran is unknown.
type DroppedError struct {
	Host string
	Err  error
}

func (e *DroppedError) Error() string {
	return fmt.Sprintf("host %s: connection lost: %v", e.Host, e.Err)
}

func (e *DroppedError) Unwrap() error { return e.Err }

// Hint says what a lost connection means for work in progress.
func (e *DroppedError) Hint() string {
	return "work begun on the host finishes or undoes itself there; look with `qnetops status`, then `qnetops resume`"
}

// ForwardingError says that sshd did not open a channel that a read needs.
type ForwardingError struct {
	Host   string
	Target string // "127.0.0.1:8001", a socket path, or "session"
	Denied bool   // sshd said that policy forbids it; false: it tried and failed, or did not say
	Err    error
}

func (e *ForwardingError) Error() string {
	verb := "cannot open"
	if e.Denied {
		verb = "forbids"
	}
	return fmt.Sprintf("host %s: sshd %s a channel to %s: %v", e.Host, verb, e.Target, e.Err)
}

func (e *ForwardingError) Unwrap() error { return e.Err }

// Hint names the setting of sshd_config or the service behind the channel.
func (e *ForwardingError) Hint() string {
	switch {
	case e.Target == sessionTarget:
		return "sshd opens no further session: raise MaxSessions in sshd_config, or end other users of this connection"
	case strings.HasPrefix(e.Target, "/"):
		return "allow AllowStreamLocalForwarding in sshd_config, or let the user open the socket (group docker), or set sudo so that the host agent reads for you"
	case e.Denied:
		return "set AllowTcpForwarding local (or yes) in sshd_config and check PermitOpen, or set sudo so that the host agent reads for you"
	}
	return "nothing listens there: is the node up, and is api_port right in hosts.toml"
}

// EngineFault is the kind of trouble with a host's Docker engine.
type EngineFault string

// The kinds of engine trouble.
const (
	EngineTooOld      EngineFault = "too_old"
	EngineUnreachable EngineFault = "unreachable"
	EnginePermission  EngineFault = "permission"
	EngineNotFound    EngineFault = "not_found"
	EngineAnswer      EngineFault = "answer"
)

// EngineError says that a read from the Docker engine of a host failed.
type EngineError struct {
	Host  string
	Fault EngineFault
	What  string // what was asked
	API   string // API version of the engine, "" when not known
	Err   error
}

func (e *EngineError) Error() string {
	if e.Fault == EngineTooOld {
		return fmt.Sprintf("host %s: docker engine speaks API %s, %s or newer is needed", e.Host, e.API, MinEngineAPI)
	}
	return fmt.Sprintf("host %s: docker engine: %s: %v", e.Host, e.What, e.Err)
}

func (e *EngineError) Unwrap() error { return e.Err }

// Hint is what to do about the kind of trouble.
func (e *EngineError) Hint() string {
	switch e.Fault {
	case EngineTooOld:
		return "upgrade Docker on the host to 20.10 or newer"
	case EngineUnreachable:
		return "is the Docker daemon up (systemctl status docker), and is engine_socket right in hosts.toml"
	case EnginePermission:
		return "put the SSH user into group docker, or set sudo and allow it without a password"
	case EngineNotFound:
		return "check container in hosts.toml against `docker ps -a` on the host"
	}
	return "look at the engine's log on the host (journalctl -u docker)"
}

// PlatformError says that the agent binary cannot run on a host.
type PlatformError struct {
	Host             string
	OS, Arch         string // of the host, in Go's words
	BinOS, BinArch   string // of the binary
	Binary           string // file name
	NotAnExecutable  bool
	HostWords        string // what uname said
	UnknownArchWords bool
}

func (e *PlatformError) Error() string {
	if e.NotAnExecutable {
		return fmt.Sprintf("host %s: agent binary %s is not an executable this program can recognise", e.Host, e.Binary)
	}
	if e.UnknownArchWords {
		return fmt.Sprintf("host %s: platform %q is not one this program knows", e.Host, e.HostWords)
	}
	return fmt.Sprintf("host %s: is %s/%s, the agent binary %s is for %s/%s", e.Host, e.OS, e.Arch, e.Binary, e.BinOS, e.BinArch)
}

// Hint names the flag that gives another binary.
func (e *PlatformError) Hint() string {
	if e.OS != "" && e.OS != "linux" {
		return "only Linux hosts can be changed by this program"
	}
	return fmt.Sprintf("build or download qnetops for linux/%s and pass it by --agent FILE", orDefault(e.Arch, "<arch of the host>"))
}

// AgentError says that the host agent could not be installed or started, or
// ended by itself. Stderr is the end of what it said.
type AgentError struct {
	Host   string
	Step   string // platform, install, start
	Stderr string
	Err    error
}

func (e *AgentError) Error() string {
	text := fmt.Sprintf("host %s: host agent: %s: %v", e.Host, e.Step, e.Err)
	if e.Stderr != "" {
		text += ": " + strings.ReplaceAll(strings.TrimSpace(e.Stderr), "\n", " | ")
	}
	return text
}

func (e *AgentError) Unwrap() error { return e.Err }

// Hint follows the step.
func (e *AgentError) Hint() string {
	var sudo *SudoError
	if errors.As(e.Err, &sudo) {
		return sudo.Hint()
	}
	if e.Step == "install" {
		return "the agent is kept in /var/lib/qnetops/agent: check space, and that the file system allows execution"
	}
	return "run the host agent's --help on the host to see whether the binary starts at all"
}

// CommandError says that one of the few commands of this package failed.
type CommandError struct {
	Host   string
	What   string // short name of the command
	Exit   int    // exit status, -1 when it ended by a signal or without one
	Stderr string
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("host %s: %s: exit status %d", e.Host, e.What, e.Exit)
	if e.Stderr != "" {
		text += ": " + strings.ReplaceAll(strings.TrimSpace(e.Stderr), "\n", " | ")
	}
	return text
}

// SudoError says that `sudo -n` wanted a password.
type SudoError struct {
	Host string
	User string
	Text string
}

func (e *SudoError) Error() string {
	return fmt.Sprintf("host %s: user %s may not use sudo without a password: %s", e.Host, e.User, e.Text)
}

// Hint is the line sudoers needs.
func (e *SudoError) Hint() string {
	return fmt.Sprintf("add `%s ALL=(root) NOPASSWD: ALL` to /etc/sudoers.d/qnetops on the host, or set user = \"root\"", e.User)
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
