package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Defaults of hosts.toml; hosts.example.toml shows each and a test compares.
const (
	DefaultUser           = "root"
	DefaultSSHPort        = 22
	DefaultAPIPort        = 8001        // QNET_API_PORT of the node's image
	DefaultBlock          = time.Second // one block a second
	DefaultKnownHosts     = "~/.ssh/known_hosts"
	DefaultConnectTimeout = 10 * time.Second // per hop, a passphrase prompt not counted
	DefaultKeepalive      = 10 * time.Second
	DefaultFanout         = 64 // hosts worked on at a time
	DefaultStarts         = 8  // below the 10 of sshd's MaxStartups 10:30:100
	DefaultEngineSocket   = "/var/run/docker.sock"
	DefaultLogArchive     = "/root/qnet-logs"
	DefaultSuperContainer = "qnet-super-node"
)

// The roles of a host.
const (
	RoleGenesis = "genesis"
	RoleSuper   = "super"
)

// Inventory is hosts.toml after its faults were refused and its defaults put
// in. It is not changed after Load.
type Inventory struct {
	Name       string        // name of the fleet; the fence record on each host carries it
	Block      time.Duration // block time of the chain; every chain-related wait scales by it
	Registry   string        // where an image name without a registry resolves, "" for nowhere
	LogArchive string        // folder on the hosts for logs of replaced containers
	SSH        SSH
	Hosts      []Host // in the order of the file
	Path       string // of hosts.toml

	hopDefaults Host // what [ssh] says, for jump hosts that are written out
}

// SSH holds what concerns all connections of a run.
type SSH struct {
	KnownHosts     []string // absolute paths; the first one is written by Trust
	UseConfig      bool     // ask `ssh -G` for what hosts.toml leaves open
	IdentitiesOnly bool     // a configured key is the only one offered
	ConnectTimeout time.Duration
	Keepalive      time.Duration // interval; a silent peer is dead after three
	Fanout         int           // hosts worked on at a time
	Starts         int           // handshakes in progress through one first hop
}

// Host is one machine of the fleet and the node on it.
type Host struct {
	ID           string
	Address      string // name or IP as dialled, and as known_hosts is asked
	Port         int    // of sshd
	User         string
	Key          string // private key file, "" for the agent's and the usual ones
	Container    string
	APIPort      int    // of the node, on the host's loopback
	Role         string // RoleGenesis or RoleSuper
	Jump         string // as written: ids and [user@]address[:port], comma separated, nearest first
	Sudo         bool   // use `sudo -n` where User is not root
	EngineSocket string // of Docker on the host
	DataPath     string // of the node's data on the host, "" for what the container mounts

	// What hosts.toml says itself wins over `ssh -G`, a default does not.
	said saidFields
}

type saidFields struct{ user, port, key, jump bool }

// NeedsSudo says whether commands on this host run by `sudo -n`.
func (h Host) NeedsSudo() bool { return h.Sudo && h.User != "root" }

// IDs lists the ids of all hosts in the order of the file.
func (inv *Inventory) IDs() []string {
	ids := make([]string, len(inv.Hosts))
	for i, h := range inv.Hosts {
		ids[i] = h.ID
	}
	return ids
}

// Host finds a host by id.
func (inv *Inventory) Host(id string) (Host, bool) {
	for _, h := range inv.Hosts {
		if h.ID == id {
			return h, true
		}
	}
	return Host{}, false
}

// UnknownHostError names ids that hosts.toml does not have.
type UnknownHostError struct {
	IDs   []string
	Known []string
	Path  string
}

func (e *UnknownHostError) Error() string {
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.IDs, ", "), ErrNotInFleet, e.Path)
}

func (e *UnknownHostError) Unwrap() error { return ErrNotInFleet }

// Hint lists the ids that exist.
func (e *UnknownHostError) Hint() string {
	return "the fleet has " + strings.Join(e.Known, ", ")
}

// Select returns the hosts named by only (all of them when it is empty) less
// those named by skip, in the order of hosts.toml. An id that does not exist is
// an error in either list: a misspelt --skip must not leave a host in.
func (inv *Inventory) Select(only, skip []string) ([]Host, error) {
	var unknown []string
	for _, id := range slices.Concat(only, skip) {
		if _, ok := inv.Host(id); !ok && !slices.Contains(unknown, id) {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 {
		return nil, &UnknownHostError{IDs: unknown, Known: inv.IDs(), Path: inv.Path}
	}
	var hosts []Host
	for _, h := range inv.Hosts {
		if (len(only) == 0 || slices.Contains(only, h.ID)) && !slices.Contains(skip, h.ID) {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return nil, ErrNothingSelected
	}
	return hosts, nil
}

// ErrNothingSelected says that the lists of hosts to take and to leave out
// leave none: a verdict about no host would read as a good one.
var ErrNothingSelected = errors.New("no host is left of the fleet after --only and --skip")
