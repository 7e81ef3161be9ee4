package realhosts

import (
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab/sshkey"
)

// InventoryForTest writes the inventory of a lab that is not up.
func InventoryForTest(t *testing.T, dir string, nodes int) (string, []Host) {
	t.Helper()
	st := &State{ID: "abc123", Subnet: "198.51.100.", Registry: "198.51.100.1:5000", Block: 250 * time.Millisecond}
	cfg := Config{SuperFrom: 6, NodeEnv: func(int) []string { return nil }}
	for i := range nodes {
		st.Hosts = append(st.Hosts, newHost(st, cfg, i+1))
	}
	c := &Cluster{paths: layout{dir}, state: st}
	if _, err := sshkey.Write(c.KeyFile(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := writeLines(c.KnownHosts(), []string{"# none"}); err != nil {
		t.Fatal(err)
	}
	if err := c.writeHostsFile(); err != nil {
		t.Fatal(err)
	}
	return c.HostsFile(), st.Hosts
}
