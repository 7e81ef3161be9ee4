package realhosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StateFile is the record of a lab inside its folder.
const StateFile = "realhosts.json"

// State is what a lab is made of. It is written before the things it names are made, and deleted last.
type State struct {
	// ID is random; the bridge, the veths, the cgroups and the marker of each init derive from it.
	ID string `json:"id"`
	// Owner is the process that called Up and serves the registry. Without it the lab is dead.
	Owner Process `json:"owner"`
	// Subnet is the first address of the lab's 64, without the last number: "198.51.100.", and Base that number.
	Subnet    string        `json:"subnet"`
	Base      int           `json:"base"`
	Bridge    string        `json:"bridge"`
	Registry  string        `json:"registry"`
	Block     time.Duration `json:"block"`
	Hosts     []Host        `json:"hosts"`
	CreatedAt time.Time     `json:"created_at"`
}

// Host is one host of the lab as the inventory and a test see it.
type Host struct {
	ID        string `json:"id"`
	Index     int    `json:"index"`
	Role      string `json:"role"`
	NodeID    string `json:"node_id"`
	Address   string `json:"address"`
	SSHPort   int    `json:"ssh_port"`
	Container string `json:"container"`
	Veth      string `json:"veth"`
}

func (s *State) address(last int) string { return fmt.Sprintf("%s%d", s.Subnet, s.Base+last) }

func (s *State) host(id string) (Host, error) {
	known := make([]string, 0, len(s.Hosts))
	for _, host := range s.Hosts {
		if host.ID == id {
			return host, nil
		}
		known = append(known, host.ID)
	}
	return Host{}, fmt.Errorf("no host %q in this lab; known: %s", id, strings.Join(known, ", "))
}

// ErrNoLab says that a folder holds no record of a lab.
var ErrNoLab = errors.New("no lab of the hosts backend here")

func loadState(dir string) (*State, error) {
	data, err := os.ReadFile(filepath.Join(dir, StateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoLab)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the lab's record: %w", err)
	}
	var st State
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, StateFile), err)
	}
	if st.ID == "" || st.Bridge == "" {
		return nil, fmt.Errorf("reading %s: no lab id", filepath.Join(dir, StateFile))
	}
	return &st, nil
}

func (s *State) save(dir string) error { return writeJSON(filepath.Join(dir, StateFile), s) }

// writeJSON replaces a file in one step: a reader sees the old or the new content, never half.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// layout names the paths of a lab.
type layout struct{ dir string }

func (l layout) host(id string) string     { return filepath.Join(l.dir, "hosts", id) }
func (l layout) root(id string) string     { return filepath.Join(l.host(id), "root") }
func (l layout) init(id string) string     { return filepath.Join(l.host(id), "init.json") }
func (l layout) log(id string) string      { return filepath.Join(l.dir, "log", id) }
func (l layout) registry() string          { return filepath.Join(l.dir, "registry") }
func (l layout) hostsFile() string         { return filepath.Join(l.dir, "hosts.toml") }
func (l layout) key() string               { return filepath.Join(l.dir, "id_ed25519") }
func (l layout) knownHosts() string        { return filepath.Join(l.dir, "known_hosts") }
func (l layout) in(id, path string) string { return filepath.Join(l.root(id), path) }

// made lists what Up puts directly into the folder, the log folder apart: that one outlives Down.
func (l layout) made() []string {
	return []string{filepath.Join(l.dir, "hosts"), l.registry(), l.hostsFile(), l.key(), l.key() + ".pub", l.knownHosts()}
}
