package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// inventory is the size of each file of a host's data directory, by its path in it.
type inventory map[string]int64

// inventories lists every file of the data directories of all hosts.
func (r *rehearsal) inventories() map[string]inventory {
	out := map[string]inventory{}
	for _, h := range r.lab.Hosts() {
		out[h.ID()] = filesBelow(h.DataDir())
	}
	return out
}

func filesBelow(dir string) inventory {
	out := inventory{}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // what cannot be read is missing in the comparison
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			rel, _ := filepath.Rel(dir, path)
			out[rel] = info.Size()
		}
		return nil
	})
	return out
}

// lost names the files that were in a data directory and are neither there nor in
// what was set aside from it. The record of a running process's lock is no data.
func (r *rehearsal) lost(before map[string]inventory) string {
	var wrong []string
	for _, h := range r.lab.Hosts() {
		dirs, err := filepath.Glob(h.DataDir() + "*")
		if err != nil {
			return err.Error()
		}
		for file, size := range before[h.ID()] {
			if !slices.ContainsFunc(dirs, func(dir string) bool { return holds(filepath.Join(dir, file), size) }) {
				wrong = append(wrong, fmt.Sprintf("host %s: %s of %d bytes", h.ID(), file, size))
			}
		}
	}
	slices.Sort(wrong)
	if len(wrong) == 0 {
		return ""
	}
	return "gone or shorter: " + strings.Join(wrong, "; ")
}

func holds(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() >= size
}
