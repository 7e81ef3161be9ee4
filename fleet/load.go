package fleet

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/qnetops/qnetops/internal/tomlfile"
)

// Load reads hosts.toml. A file with faults gives tomlfile.Problems: all of
// them at once, each as file:line:key with what to do; a file that cannot be
// read gives *tomlfile.FileError.
func Load(path string) (*Inventory, error) {
	file, positions, err := tomlfile.Decode[inventoryFile](path)
	if positions == nil {
		return nil, fmt.Errorf("loading the inventory: %w", err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("loading the inventory: %w", err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/" // only paths with ~ need it, and those then name a file that does not exist
	}
	b := &builder{dir: filepath.Dir(abs), home: home, fault: positions.Add, files: map[string]bool{}}
	inv := b.inventory(&file)
	inv.Path = path
	if err := positions.Err(); err != nil {
		return nil, err
	}
	return inv, nil
}
