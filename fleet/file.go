package fleet

import (
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// inventoryFile is hosts.toml as written. Pointers tell what is absent from
// what is zero, since a port of 0 is a fault and no port is the default.
type inventoryFile struct {
	Fleet string `toml:"fleet"`
	Chain struct {
		Block *string `toml:"block"`
	} `toml:"chain"`
	Images struct {
		Registry string `toml:"registry"`
	} `toml:"images"`
	SSH  sshFile `toml:"ssh"`
	Logs struct {
		Archive *string `toml:"archive"`
	} `toml:"logs"`
	Hosts []hostFile `toml:"host"`
}

type sshFile struct {
	User           *string  `toml:"user"`
	Port           *int64   `toml:"port"`
	Key            string   `toml:"key"`
	Jump           string   `toml:"jump"`
	IdentitiesOnly *bool    `toml:"identities_only"`
	KnownHosts     []string `toml:"known_hosts"`
	UseConfig      *bool    `toml:"use_ssh_config"`
	ConnectTimeout *string  `toml:"connect_timeout"`
	Keepalive      *string  `toml:"keepalive"`
	Fanout         *int64   `toml:"fanout"`
	Starts         *int64   `toml:"starts"`
}

type hostFile struct {
	ID           string  `toml:"id"`
	Address      string  `toml:"address"`
	Role         string  `toml:"role"`
	Port         *int64  `toml:"port"`
	User         *string `toml:"user"`
	Key          *string `toml:"key"`
	Jump         *string `toml:"jump"`
	Sudo         *bool   `toml:"sudo"`
	Container    *string `toml:"container"`
	APIPort      *int64  `toml:"api_port"`
	EngineSocket *string `toml:"engine_socket"`
	DataPath     *string `toml:"data_path"`
}

var (
	idPattern        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	fleetPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	containerPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]+$`)
	userPattern      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*\$?$`)
	addressPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)
	registryPattern  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9._/-]+)?$`)
)

// builder turns an inventoryFile into an Inventory and collects every fault on
// the way; fault takes the key as tomlfile names it, e.g. "host[2].port".
type builder struct {
	dir   string // of hosts.toml: relative paths start there
	home  string
	fault func(key, what, hint string)
	files map[string]bool // key files already looked for, so that one missing default key is one fault
}

func (b *builder) inventory(f *inventoryFile) *Inventory {
	inv := &Inventory{Name: f.Fleet, Registry: f.Images.Registry}
	if f.Fleet == "" {
		b.fault("fleet", "is missing", `give the fleet a name, e.g. fleet = "mainnet": hosts remember which fleet may change them`)
	} else if !fleetPattern.MatchString(f.Fleet) {
		b.fault("fleet", fmt.Sprintf("%q is not a name", f.Fleet), "use letters, digits, dot, dash and underscore")
	}
	inv.Block = b.duration("chain.block", f.Chain.Block, DefaultBlock, time.Millisecond, time.Hour)
	if inv.Registry != "" && !registryPattern.MatchString(inv.Registry) {
		b.fault("images.registry", fmt.Sprintf("%q is not a registry", inv.Registry), "write host[:port][/path] without a scheme, e.g. registry.example.org:5000")
	}
	inv.LogArchive = b.absolute("logs.archive", f.Logs.Archive, DefaultLogArchive)
	inv.SSH = b.ssh(&f.SSH)
	defaults := b.hostDefaults(&f.SSH)
	inv.hopDefaults = defaults
	for i := range f.Hosts {
		inv.Hosts = append(inv.Hosts, b.host(fmt.Sprintf("host[%d].", i), &f.Hosts[i], defaults))
	}
	if len(f.Hosts) == 0 {
		b.fault("host", "no [[host]] in the file", "add one [[host]] table for each machine; see hosts.example.toml")
	}
	b.duplicates(inv)
	b.jumps(inv, f.SSH.Jump)
	return inv
}

func (b *builder) ssh(f *sshFile) SSH {
	s := SSH{
		UseConfig:      f.UseConfig != nil && *f.UseConfig,
		IdentitiesOnly: f.IdentitiesOnly == nil || *f.IdentitiesOnly,
		ConnectTimeout: b.duration("ssh.connect_timeout", f.ConnectTimeout, DefaultConnectTimeout, 10*time.Millisecond, 10*time.Minute),
		Keepalive:      b.duration("ssh.keepalive", f.Keepalive, DefaultKeepalive, 10*time.Millisecond, 10*time.Minute),
		Fanout:         b.number("ssh.fanout", f.Fanout, DefaultFanout, 1, 10000),
		Starts:         b.number("ssh.starts", f.Starts, DefaultStarts, 1, 1000),
	}
	files := f.KnownHosts
	if files == nil {
		files = []string{DefaultKnownHosts}
	}
	if len(files) == 0 {
		b.fault("ssh.known_hosts", "is empty", "name at least one file: host keys are always verified")
	}
	for _, file := range files {
		s.KnownHosts = append(s.KnownHosts, b.path(file))
	}
	return s
}

// hostDefaults is what [ssh] says for hosts that say nothing.
func (b *builder) hostDefaults(f *sshFile) Host {
	h := Host{User: DefaultUser, Port: DefaultSSHPort, Sudo: true, APIPort: DefaultAPIPort, EngineSocket: DefaultEngineSocket}
	h.said = saidFields{user: f.User != nil, port: f.Port != nil, key: f.Key != "", jump: f.Jump != ""}
	h.User = b.user("ssh.user", f.User, h.User)
	h.Port = b.port("ssh.port", f.Port, h.Port)
	h.Key = b.key("ssh.key", f.Key)
	h.Jump = f.Jump
	return h
}

func (b *builder) host(at string, f *hostFile, h Host) Host {
	h.ID, h.Address, h.Role = f.ID, f.Address, f.Role
	switch {
	case f.ID == "":
		b.fault(at+"id", "is missing", `give every host an id of its own, e.g. id = "001"`)
	case !idPattern.MatchString(f.ID):
		b.fault(at+"id", fmt.Sprintf("%q is not an id", f.ID), "use letters, digits, dash and underscore")
	}
	b.address(at+"address", f.Address)
	switch f.Role {
	case RoleGenesis, RoleSuper:
	case "":
		b.fault(at+"role", "is missing", `write role = "genesis" or role = "super"`)
	default:
		b.fault(at+"role", fmt.Sprintf("%q is not a role", f.Role), `write role = "genesis" or role = "super"`)
	}
	h.said.port = h.said.port || f.Port != nil
	h.Port = b.port(at+"port", f.Port, h.Port)
	h.said.user = h.said.user || f.User != nil
	h.User = b.user(at+"user", f.User, h.User)
	if f.Key != nil {
		h.said.key = true
		h.Key = b.key(at+"key", *f.Key)
	}
	if f.Jump != nil {
		h.said.jump = true
		h.Jump = *f.Jump
	}
	if f.Sudo != nil {
		h.Sudo = *f.Sudo
	}
	h.Container = b.container(at+"container", f, h)
	h.APIPort = b.port(at+"api_port", f.APIPort, h.APIPort)
	h.EngineSocket = b.absolute(at+"engine_socket", f.EngineSocket, h.EngineSocket)
	if f.DataPath != nil && *f.DataPath != "" {
		h.DataPath = b.absolute(at+"data_path", f.DataPath, "")
	}
	return h
}

func (b *builder) container(key string, f *hostFile, h Host) string {
	switch {
	case f.Container == nil && h.Role == RoleSuper:
		return DefaultSuperContainer
	case f.Container == nil:
		return "qnet-genesis-" + h.ID
	case !containerPattern.MatchString(*f.Container):
		b.fault(key, fmt.Sprintf("%q is not a container name", *f.Container), "copy the name that `docker ps` shows")
	}
	return *f.Container
}

func (b *builder) address(key, address string) {
	switch {
	case address == "":
		b.fault(key, "is missing", "write the name or IP address that ssh would dial")
	case net.ParseIP(address) != nil:
	case strings.Contains(address, "@"):
		b.fault(key, fmt.Sprintf("%q has a user in it", address), "write the user under user")
	case strings.Contains(address, ":"):
		b.fault(key, fmt.Sprintf("%q has a port in it", address), "write the port under port; an IPv6 address stands without brackets")
	case !addressPattern.MatchString(address):
		b.fault(key, fmt.Sprintf("%q is not a host name", address), "write the name or IP address that ssh would dial")
	}
}

func (b *builder) user(key string, user *string, otherwise string) string {
	if user == nil {
		return otherwise
	}
	if !userPattern.MatchString(*user) {
		b.fault(key, fmt.Sprintf("%q is not a user name", *user), "write the login name on the host")
	}
	return *user
}

func (b *builder) port(key string, port *int64, otherwise int) int {
	if port == nil {
		return otherwise
	}
	if *port < 1 || *port > 65535 {
		b.fault(key, fmt.Sprintf("%d is not a port", *port), "ports are 1 to 65535")
		return otherwise
	}
	return int(*port)
}

func (b *builder) number(key string, n *int64, otherwise, low, high int) int {
	if n == nil {
		return otherwise
	}
	if *n < int64(low) || *n > int64(high) {
		b.fault(key, fmt.Sprintf("%d is out of range", *n), fmt.Sprintf("give a number from %d to %d", low, high))
		return otherwise
	}
	return int(*n)
}

func (b *builder) duration(key string, text *string, otherwise, low, high time.Duration) time.Duration {
	if text == nil {
		return otherwise
	}
	d, err := time.ParseDuration(*text)
	switch {
	case err != nil:
		b.fault(key, fmt.Sprintf("%q is not a duration", *text), `write a number with a unit, e.g. "1s" or "100ms"`)
	case d < low || d > high:
		b.fault(key, fmt.Sprintf("%s is out of range", *text), fmt.Sprintf("give a duration from %s to %s", low, high))
	default:
		return d
	}
	return otherwise
}

// absolute checks a path on the hosts.
func (b *builder) absolute(key string, p *string, otherwise string) string {
	if p == nil {
		return otherwise
	}
	if !path.IsAbs(*p) || strings.ContainsAny(*p, "\x00\n") {
		b.fault(key, fmt.Sprintf("%q is not an absolute path", *p), "paths on a host start with a slash")
	}
	return *p
}

// path resolves a path on this machine: ~ is the home folder, anything
// relative starts at the folder of hosts.toml.
func (b *builder) path(p string) string {
	if p == "~" || strings.HasPrefix(p, "~/") {
		return filepath.Join(b.home, p[1:])
	}
	if !filepath.IsAbs(p) {
		return filepath.Join(b.dir, p)
	}
	return filepath.Clean(p)
}

// key resolves a private key file and wants it to exist. The public half alone
// is enough where an agent holds the private one, as with ssh's IdentityFile.
func (b *builder) key(at, key string) string {
	if key == "" {
		return ""
	}
	file := b.path(key)
	if b.files[file] {
		return file
	}
	if info, err := os.Stat(file); err == nil && !info.IsDir() {
		return file
	}
	if _, err := os.Stat(file + ".pub"); err == nil {
		return file
	}
	b.files[file] = true
	b.fault(at, fmt.Sprintf("key file %s does not exist", file), "give the private key, or the public one as FILE.pub when the SSH agent holds the private one")
	return file
}

func (b *builder) duplicates(inv *Inventory) {
	ids, addresses := map[string]int{}, map[string]int{}
	for i, h := range inv.Hosts {
		if first, seen := ids[h.ID]; seen && h.ID != "" {
			b.fault(fmt.Sprintf("host[%d].id", i), fmt.Sprintf("%q is the id of host[%d] already", h.ID, first), "every host needs an id of its own")
		} else {
			ids[h.ID] = i
		}
		if h.Address == "" {
			continue
		}
		at := net.JoinHostPort(strings.ToLower(h.Address), strconv.Itoa(h.Port))
		if first, seen := addresses[at]; seen {
			b.fault(fmt.Sprintf("host[%d].address", i), fmt.Sprintf("%s is the address of host[%d] already", at, first), "one entry for each machine; two nodes on one machine cannot be rolled apart")
		} else {
			addresses[at] = i
		}
	}
}

// jumps checks every jump entry and refuses chains that lead back.
func (b *builder) jumps(inv *Inventory, common string) {
	if common != "" {
		b.hops("ssh.jump", inv, common)
	}
	for i, h := range inv.Hosts {
		key := fmt.Sprintf("host[%d].jump", i)
		if h.Jump == "" {
			continue
		}
		if h.Jump != common && !b.hops(key, inv, h.Jump) {
			continue
		}
		if loop := jumpLoop(inv, h.ID, nil); loop != nil {
			b.fault(key, "leads back to the host itself: "+strings.Join(loop, " -> "), `a host that is reached directly says jump = ""`)
		}
	}
}

func (b *builder) hops(key string, inv *Inventory, jump string) bool {
	for _, word := range strings.Split(jump, ",") {
		if _, ok := inv.Host(word); ok {
			continue
		}
		if _, err := parseHop(word); err != nil {
			b.fault(key, err.Error(), "write ids of hosts or [user@]address[:port], separated by commas, nearest first")
			return false
		}
	}
	return true
}

// jumpLoop follows the ids named in jumps and returns the path that closes, or
// nil. Hops written out end a path: they have no jump of their own.
func jumpLoop(inv *Inventory, id string, seen []string) []string {
	if slices.Contains(seen, id) {
		return append(seen, id)
	}
	h, ok := inv.Host(id)
	if !ok || h.Jump == "" {
		return nil
	}
	for _, word := range strings.Split(h.Jump, ",") {
		if loop := jumpLoop(inv, word, append(slices.Clone(seen), id)); loop != nil {
			return loop
		}
	}
	return nil
}

// hop is one jump host written out as [user@]address[:port].
type hop struct {
	user, address string
	port          int // 0 when not written
}

func parseHop(word string) (hop, error) {
	var h hop
	rest := word
	if user, after, ok := strings.Cut(word, "@"); ok {
		if !userPattern.MatchString(user) {
			return hop{}, fmt.Errorf("jump %q: %q is not a user name", word, user)
		}
		h.user, rest = user, after
	}
	h.address = rest
	if host, port, err := net.SplitHostPort(rest); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return hop{}, fmt.Errorf("jump %q: %q is not a port", word, port)
		}
		h.address, h.port = host, n
	}
	h.address = strings.Trim(h.address, "[]")
	if net.ParseIP(h.address) == nil && !addressPattern.MatchString(h.address) {
		return hop{}, fmt.Errorf("jump %q is neither the id of a host nor an address", word)
	}
	return h, nil
}
