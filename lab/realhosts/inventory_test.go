package realhosts_test

import (
	"testing"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/lab/realhosts"
)

// TestInventoryLoads reads the written hosts.toml the way every command does.
func TestInventoryLoads(t *testing.T) {
	dir := t.TempDir()
	path, hosts := realhosts.InventoryForTest(t, dir, 6)
	inv, err := fleet.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Hosts) != 6 || inv.Block.String() != "250ms" || inv.Registry != "198.51.100.1:5000" {
		t.Errorf("inventory %+v", inv)
	}
	for i, host := range inv.Hosts {
		want := hosts[i]
		if host.ID != want.ID || host.Address != want.Address || host.Port != want.SSHPort || host.Role != want.Role || host.Container != want.Container || host.APIPort != 8001 {
			t.Errorf("host %+v, want %+v", host, want)
		}
	}
}
