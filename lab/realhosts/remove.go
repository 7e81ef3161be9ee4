package realhosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// MountedError says that a folder was not deleted because something is mounted below it: deleting would walk into
// the mount.
type MountedError struct {
	Folder string
	Mounts []string
}

func (e *MountedError) Error() string {
	return fmt.Sprintf("not deleting %s: mounted below it: %s", e.Folder, strings.Join(e.Mounts, ", "))
}

// Hint says what to do about it.
func (e *MountedError) Hint() string { return "unmount them, then bring the lab down again" }

// removeTree deletes a folder or file, and refuses while anything is mounted at or below it.
func removeTree(path string) error {
	mounts, err := mountsBelow(path)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return &MountedError{Folder: path, Mounts: mounts}
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("deleting %s: %w", path, err)
	}
	return nil
}

// mountsBelow lists the mount points at or below a path in this process's mount namespace.
func mountsBelow(path string) ([]string, error) {
	real, err := realDir(path)
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	defer file.Close()
	var out []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return nil, fmt.Errorf("reading mounts: odd line %q", lines.Text())
		}
		if point := unescapeMount(fields[4]); point == real || strings.HasPrefix(point, real+"/") {
			out = append(out, point)
		}
	}
	return out, lines.Err()
}

// unescapeMount undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// emptyFolder makes a folder that holds nothing.
func (c *Cluster) emptyFolder(path string) error {
	if err := removeTree(path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", path, err)
	}
	return nil
}

// removeCgroups deletes the empty cgroups that containers killed with their host left behind. A busy one is tried
// again: the kernel takes a moment to let go of dead processes.
func removeCgroups(ctx context.Context, st *State) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return poll(ctx, 50*time.Millisecond, "the lab's cgroups to empty", func() (bool, error) {
		found, err := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName(st))
		if err != nil {
			return false, err
		}
		for _, root := range append(found, "/sys/fs/cgroup/"+cgroupName(st)) {
			err := removeCgroup(root)
			if errors.Is(err, syscall.EBUSY) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		if err = syscall.Rmdir(dirs[i]); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}
