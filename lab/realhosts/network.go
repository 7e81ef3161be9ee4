package realhosts

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bridgePrefix starts the name of every bridge of this package; the lab's id follows. Names of network devices
// end at 15 characters.
const bridgePrefix = "qnl"

// maxAlias is how long the alias of a network device may be (IFALIASZ less its final zero). It holds the lab's folder.
const maxAlias = 255

// slots are the blocks of 64 addresses that labs share, all from ranges set aside for documentation, so that a lab
// can never shadow an address that somebody uses. The first lab gets the first one.
var slots = []struct {
	subnet string
	base   int
}{
	{"198.51.100.", 0}, {"198.51.100.", 64}, {"198.51.100.", 128}, {"198.51.100.", 192},
	{"192.0.2.", 0}, {"192.0.2.", 64}, {"192.0.2.", 128}, {"192.0.2.", 192},
}

// insecureNetworks are what engines pull from without TLS: every slot.
var insecureNetworks = []string{"198.51.100.0/24", "192.0.2.0/24"}

// NoAddressError says that every block of addresses is taken by a lab that is up.
type NoAddressError struct{ Labs []string }

func (e *NoAddressError) Error() string {
	return "no free block of addresses: labs are up in " + strings.Join(e.Labs, ", ")
}

// Hint says how to free one.
func (e *NoAddressError) Hint() string { return "bring one down: qnetops lab down --dir DIR" }

func newLabID() string {
	var b [3]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// lockSetup keeps two labs from choosing the same addresses. An abstract socket is a lock that leaves no file and
// ends with its holder; like bridges it belongs to the network namespace.
func lockSetup(ctx context.Context) (func(), error) {
	var held net.Listener
	err := poll(ctx, 50*time.Millisecond, "another lab's setup", func() (bool, error) {
		l, err := net.Listen("unix", "@qnetops-realhosts-setup")
		if errors.Is(err, unix.EADDRINUSE) {
			return false, nil
		}
		held = l
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	return func() { held.Close() }, nil
}

// usedAddress tells whether any interface of the machine has an address in the slot.
func usedAddress(subnet string, base int) (bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("listing addresses: %w", err)
	}
	_, block, err := net.ParseCIDR(fmt.Sprintf("%s%d/26", subnet, base))
	if err != nil {
		return false, err
	}
	for _, addr := range addrs {
		if ip, _, err := net.ParseCIDR(addr.String()); err == nil && block.Contains(ip) {
			return true, nil
		}
	}
	return false, nil
}

// claimNetwork chooses a free slot, records it through save and makes the bridge. The caller holds lockSetup.
func claimNetwork(ctx context.Context, st *State, dir string) error {
	if len(dir) > maxAlias {
		return fmt.Errorf("the path of folder %s is longer than %d characters", dir, maxAlias)
	}
	for _, slot := range slots {
		used, err := usedAddress(slot.subnet, slot.base)
		if err != nil {
			return err
		}
		if used {
			continue
		}
		st.Subnet, st.Base = slot.subnet, slot.base
		st.Registry = st.address(1) + ":5000"
		if err := st.save(dir); err != nil {
			return err
		}
		return makeBridge(ctx, st, dir)
	}
	bridges, err := labBridges()
	if err != nil {
		return err
	}
	return &NoAddressError{Labs: slices.Sorted(maps.Values(bridges))}
}

func makeBridge(ctx context.Context, st *State, dir string) error {
	for _, argv := range [][]string{
		{"ip", "link", "add", st.Bridge, "type", "bridge"},
		{"ip", "link", "set", st.Bridge, "alias", dir},
		{"ip", "addr", "add", st.address(1) + "/26", "dev", st.Bridge},
		{"ip", "link", "set", st.Bridge, "up"},
	} {
		if _, err := run(ctx, argv...); err != nil {
			return err
		}
	}
	// Where bridged frames pass the machine's packet filter, a Docker engine on the machine itself has set its
	// FORWARD chain to drop: without a rule hosts could not reach each other.
	if filtered() {
		_, err := run(ctx, append([]string{"iptables", "-w", "-I"}, forwardRule(st)...)...)
		return err
	}
	return nil
}

func filtered() bool {
	data, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return err == nil && strings.TrimSpace(string(data)) == "1"
}

func forwardRule(st *State) []string {
	return []string{"FORWARD", "-i", st.Bridge, "-o", st.Bridge, "-j", "ACCEPT"}
}

// removeNetwork deletes the bridge, the rule and any veth that outlived its host. Missing parts are no error.
func removeNetwork(ctx context.Context, st *State) error {
	var errs []error
	for _, host := range st.Hosts {
		errs = append(errs, removeLink(ctx, host.Veth))
	}
	if linkExists(st.Bridge) {
		if _, err := run(ctx, append([]string{"iptables", "-w", "-C"}, forwardRule(st)...)...); err == nil {
			_, err = run(ctx, append([]string{"iptables", "-w", "-D"}, forwardRule(st)...)...)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, removeLink(ctx, st.Bridge))...)
}

func linkExists(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func removeLink(ctx context.Context, name string) error {
	if !linkExists(name) {
		return nil
	}
	if _, err := run(ctx, "ip", "link", "del", name); err != nil && linkExists(name) {
		return err
	}
	return nil
}

// labBridges lists the bridges of all labs on the machine with the folder each belongs to, which its alias names.
func labBridges() (map[string]string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network devices: %w", err)
	}
	out := map[string]string{}
	for _, link := range links {
		if !strings.HasPrefix(link.Name, bridgePrefix) || len(link.Name) != len(bridgePrefix)+6 {
			continue
		}
		if alias, err := os.ReadFile("/sys/class/net/" + link.Name + "/ifalias"); err == nil && len(alias) > 1 {
			out[link.Name] = strings.TrimSpace(string(alias))
		}
	}
	return out, nil
}

// connectHost gives a fresh host its eth0. The hardware address is fixed by the host's number, so that the others'
// neighbour tables stay right when the host is booted again.
func connectHost(ctx context.Context, st *State, host Host, init Process) error {
	if err := removeLink(ctx, host.Veth); err != nil {
		return err
	}
	mac := fmt.Sprintf("02:51:%s:%s:%s:%02x", st.ID[0:2], st.ID[2:4], st.ID[4:6], host.Index)
	for _, argv := range [][]string{
		{"ip", "link", "add", host.Veth, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", fmt.Sprint(init.PID)},
		{"ip", "link", "set", host.Veth, "master", st.Bridge, "up"},
	} {
		if _, err := run(ctx, argv...); err != nil {
			return err
		}
	}
	_, err := enter(ctx, init, "sh", "-c", fmt.Sprintf("ip addr add %s/26 dev eth0 && ip link set eth0 up && ip route add default via %s",
		host.Address, st.address(1)))
	return err
}

// CommandError is a program of the machine or of a host that failed, with what it said.
type CommandError struct {
	Argv   []string
	Output string
	Err    error
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("running %s: %v", strings.Join(e.Argv, " "), e.Err)
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

func (e *CommandError) Unwrap() error { return e.Err }

// run executes a program of the machine and returns its standard output.
func run(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+searchPath)
	// A child that keeps the pipe open must not hold the caller for ever. On a busy machine a process that another
	// goroutine is just starting holds it too, until its exec.
	cmd.WaitDelay = 15 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, &CommandError{Argv: argv, Output: strings.TrimSpace(stderr.String()), Err: err}
	}
	return out, nil
}
