package realhosts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process names one process beyond the reuse of its pid: start time is in clock ticks since boot (field 22 of
// /proc/PID/stat), and the boot id tells boots apart.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func identify(pid int) (Process, error) {
	start, state, err := startTime(pid)
	if err != nil {
		return Process{}, err
	}
	if state == 'X' || state == 'Z' && !hasThreads(pid) {
		return Process{}, fmt.Errorf("process %d is dead", pid)
	}
	return Process{PID: pid, Start: start, Boot: bootID()}, nil
}

// hasThreads says whether a process whose first thread is a zombie still has others: until they are gone too it
// holds its files, sockets and locks.
func hasThreads(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(threads) > 1
}

// startTime reads the start time and the state letter of a process. The command name in the middle may hold any
// character, so fields are counted from its closing parenthesis.
func startTime(pid int) (uint64, byte, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 {
		return 0, 0, fmt.Errorf("process %d: unreadable stat", pid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// Alive says whether exactly this process still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	now, err := identify(p.PID)
	return err == nil && now.Start == p.Start
}

// kill sends SIGKILL to exactly this process and waits until it is gone.
func (p Process) kill(ctx context.Context) error {
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p Process) wait(ctx context.Context) error {
	return poll(ctx, 10*time.Millisecond, fmt.Sprintf("process %d to end", p.PID), func() (bool, error) { return !p.Alive(), nil })
}

// poll asks until the answer is yes, an error comes, or ctx ends. what is for the error: "waiting for what".
func poll(ctx context.Context, every time.Duration, what string, ask func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		ok, err := ask()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// hostProcess is a process seen from outside the host.
type hostProcess struct {
	Process
	// Inner is its pid inside the host.
	Inner int
	Name  string
	Argv  []string
}

// pids lists all process ids of the machine.
func pids() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var out []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

// processesIn lists the processes in the pid namespace of a host's init. Container processes are not among them:
// they live in namespaces of their own below it.
func processesIn(init Process) ([]hostProcess, error) {
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init.PID))
	if err != nil {
		return nil, fmt.Errorf("reading the namespace of process %d: %w", init.PID, err)
	}
	all, err := pids()
	if err != nil {
		return nil, err
	}
	var out []hostProcess
	for _, pid := range all {
		if own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || own != ns {
			continue // gone, or of another host
		}
		if proc, err := lookAt(pid); err == nil {
			out = append(out, proc)
		}
	}
	return out, nil
}

func lookAt(pid int) (hostProcess, error) {
	id, err := identify(pid)
	if err != nil {
		return hostProcess{}, err
	}
	proc := hostProcess{Process: id, Argv: argv(pid)}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return hostProcess{}, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch fields := strings.Fields(value); {
		case key == "Name" && len(fields) > 0:
			proc.Name = fields[0]
		case key == "NSpid" && len(fields) > 0:
			proc.Inner, _ = strconv.Atoi(fields[len(fields)-1])
		}
	}
	return proc, nil
}

func argv(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// marker is argument zero of the init script of every lab host. With the arguments after it (lab id, host name,
// folder of the host) it finds the processes of a lab whose record was lost.
const marker = "qnetops-lab-host"

// labInit is an init found by its marker.
type labInit struct {
	Process
	Lab, Name, Folder string
}

// dir is the folder of the lab: the host's folder is DIR/hosts/<id>.
func (i labInit) dir() string { return filepath.Dir(filepath.Dir(i.Folder)) }

func findInits() ([]labInit, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	var out []labInit
	for _, pid := range all {
		args := argv(pid)
		if len(args) != 7 || args[3] != marker {
			continue
		}
		if id, err := identify(pid); err == nil {
			out = append(out, labInit{Process: id, Lab: args[4], Name: args[5], Folder: args[6]})
		}
	}
	return out, nil
}
