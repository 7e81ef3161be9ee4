package realhosts

import (
	"fmt"
	"os"
	"strings"
)

// writeHostsFile writes the inventory that every command takes with --hosts. Paths are relative to it.
func (c *Cluster) writeHostsFile() error {
	var out strings.Builder
	fmt.Fprintf(&out, "# Written by `qnetops lab up`; gone with `qnetops lab down`.\nfleet = %q\n\n", "lab-"+c.state.ID)
	fmt.Fprintf(&out, "[chain]\nblock = %q\n\n[images]\nregistry = %q\n\n", c.state.Block.String(), c.state.Registry)
	fmt.Fprintf(&out, "[ssh]\nuser = \"root\"\nkey = \"id_ed25519\"\nknown_hosts = [\"known_hosts\"]\n")
	for _, host := range c.state.Hosts {
		fmt.Fprintf(&out, "\n[[host]]\nid = %q\naddress = %q\nport = %d\nrole = %q\ncontainer = %q\n", host.ID, host.Address, host.SSHPort, host.Role, host.Container)
	}
	if err := os.WriteFile(c.paths.hostsFile(), []byte(out.String()), 0o644); err != nil {
		return fmt.Errorf("writing the inventory: %w", err)
	}
	return nil
}
