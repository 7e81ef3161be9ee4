package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
)

// BenchmarkStatus measures `qnetops status` as a whole process against SSH
// hosts on loopback with pinned keys, beyond the block time that lies between
// its two samples by design. All but six hosts show one of the six nodes, so that
// what is measured is the operator's side and not a thousand votes.
func BenchmarkStatus(b *testing.B) {
	program := buildBench(b)
	for _, hosts := range []int{100, 500, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) { benchStatus(b, program, hosts) })
	}
}

// benchBlock keeps the boot of the lab short; it is taken off the result.
const benchBlock = 200 * time.Millisecond

func benchStatus(b *testing.B, program string, hosts int) {
	dir := b.TempDir()
	l, err := startProcessLab(lab.Config{Nodes: hosts, Block: benchBlock, Dir: dir, History: labHistory, Mirror: 6,
		Host: func(_ int, h *lab.HostSpec) { h.Env = append(h.Env, "QNET_API_RATE_LIMIT=10000") }}) // six nodes answer for all hosts
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	// On a chain that stands status waits for 15 block times to see that it does.
	if err := l.WaitFor(ctx, "every node to answer on a chain that moves", moving); err != nil {
		b.Fatal(err)
	}
	var worst uint64 // kB
	b.ResetTimer()
	for range b.N {
		cmd := exec.CommandContext(ctx, program, "status", "-o", "json", "--hosts", filepath.Join(dir, lab.HostsFile))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		peak := peakMemory(cmd.Process.Pid)
		if err := cmd.Wait(); err != nil {
			b.Fatalf("%v\n%s", err, errs.String())
		}
		worst = max(worst, <-peak)
		var doc observe.StatusDocument
		if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Nodes) != hosts {
			b.Fatalf("%d nodes of %d: %v", len(doc.Nodes), hosts, err)
		}
		for _, n := range doc.Nodes {
			if !n.Reachable || n.Height == nil {
				b.Fatalf("node %s was not read", n.ID)
			}
		}
	}
	b.StopTimer()
	beyond := b.Elapsed()/time.Duration(b.N) - benchBlock
	b.ReportMetric(beyond.Seconds(), "s-beyond-block/op")
	b.ReportMetric(float64(worst)/1024, "MB-peak")
}

// peakMemory follows the high-water mark of a process until it is gone, in kB. The number that the kernel gives with the exit
// status is no use: it begins with the memory of the process that started it.
func peakMemory(pid int) <-chan uint64 {
	out := make(chan uint64, 1)
	go func() {
		var peak uint64
		for {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, ok := strings.Cut(string(raw), "VmHWM:")
			if err != nil || !ok {
				out <- peak
				return
			}
			if fields := strings.Fields(rest); len(fields) > 0 {
				if kb, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
					peak = max(peak, kb)
				}
			}
			<-time.After(2 * time.Millisecond)
		}
	}()
	return out
}

func buildBench(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "qnetops")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("building the program: %v\n%s", err, out)
	}
	return path
}

// BenchmarkVersion measures how long the smallest command takes to start.
func BenchmarkVersion(b *testing.B) {
	program := buildBench(b)
	b.ResetTimer()
	for range b.N {
		if err := exec.CommandContext(b.Context(), program, "version").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
