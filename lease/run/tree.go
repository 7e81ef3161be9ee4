package run

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what /proc says about one process.
type process struct {
	pid, parent, group int
	state              byte
}

func (p process) dead() bool { return p.state == 'Z' || p.state == 'X' }

// processes reads all that are visible. One that ends meanwhile is left out.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // the name before may hold anything
		if len(f) < 3 {
			continue
		}
		p := process{pid: pid, state: f[0][0]}
		p.parent, _ = strconv.Atoi(string(f[1]))
		p.group, _ = strconv.Atoi(string(f[2]))
		out = append(out, p)
	}
	return out
}

// tree is how the processes of a command are recognised.
type tree struct {
	group int          // its process group
	lock  string       // the locked file that all of them have inherited
	root  int          // all descendants of this process, which itself is spared; 0 for none
	apart map[int]bool // not part of the command, and neither is what descends from them
}

// members are the live processes of the command.
func (t tree) members() []int {
	all := processes()
	parents := map[int]int{}
	for _, p := range all {
		parents[p.pid] = p.parent
	}
	self := os.Getpid()
	var out []int
	for _, p := range all {
		if p.dead() || p.pid == self || p.pid == t.root || t.spared(p.pid, parents) {
			continue
		}
		if t.group > 0 && p.group == t.group || t.root > 0 && descends(p.pid, t.root, parents) || t.lock != "" && hasOpen(p.pid, t.lock) {
			out = append(out, p.pid)
		}
	}
	return out
}

func (t tree) spared(pid int, parents map[int]int) bool {
	for e := range t.apart {
		if pid == e || descends(pid, e, parents) {
			return true
		}
	}
	return false
}

func descends(pid, root int, parents map[int]int) bool {
	for range 4096 { // a bound in case the picture, taken while processes come and go, has a circle
		parent, ok := parents[pid]
		if !ok || parent <= 0 {
			return false
		}
		if parent == root {
			return true
		}
		pid = parent
	}
	return false
}

// hasOpen reports whether a process shares the lock of the file. One that merely has the file open does not: it may be a
// successor that tries the lock. Of processes of other users nothing can be seen.
func hasOpen(pid int, path string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if err != nil || strings.TrimSuffix(to, " (deleted)") != path {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name()))
		if err == nil && bytes.Contains(info, []byte("FLOCK")) {
			return true
		}
	}
	return false
}

// kill ends every process of the command that is there now and says how many there were. What they start meanwhile is found
// by the next call; the caller repeats until there are none.
func (t tree) kill() int {
	if t.group > 1 {
		_ = unix.Kill(-t.group, unix.SIGKILL)
	}
	members := t.members()
	for _, pid := range members {
		fd, err := unix.PidfdOpen(pid, 0) // the number cannot come to mean another process between look and kill
		if err != nil {
			if errors.Is(err, unix.ENOSYS) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			continue
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
	}
	return len(members)
}
