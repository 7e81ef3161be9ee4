package realhosts

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkSixHosts brings the fleet of the README up and down. It reports how long up takes until all engines and
// SSH servers answer and all containers run, how long down takes, and the memory of one host without its node
// (proportional set size of dockerd, containerd, shims, proxies and sshd).
func BenchmarkSixHosts(b *testing.B) {
	if missing := Missing(); len(missing) > 0 {
		b.Skip("missing: ", strings.Join(missing, ", "))
	}
	for b.Loop() {
		started := time.Now()
		c, err := Up(b.Context(), Config{Nodes: 6, Dir: filepath.Join(b.TempDir(), "lab"), Binary: nodeBinary(b), Progress: func(line string) { b.Log(line) }})
		if err != nil {
			b.Fatal(err)
		}
		up := time.Since(started)
		memory := memoryPerHost(b, c)
		started = time.Now()
		if err := c.Down(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(up.Seconds(), "s-up")
		b.ReportMetric(time.Since(started).Seconds(), "s-down")
		b.ReportMetric(memory, "MB/host")
	}
}

func memoryPerHost(b *testing.B, c *Cluster) float64 {
	b.Helper()
	var kilobytes float64
	for _, host := range c.Hosts() {
		_, init, err := c.at(host.ID)
		if err != nil {
			b.Fatal(err)
		}
		all, err := processesIn(init)
		if err != nil {
			b.Fatal(err)
		}
		byName := map[string]float64{}
		for _, proc := range all {
			byName[proc.Name] += pss(proc.PID)
			kilobytes += pss(proc.PID)
		}
		if host.Index == 1 {
			b.Log("kB by program on host 001: ", fmt.Sprint(byName))
		}
	}
	return kilobytes / 1024 / float64(len(c.Hosts()))
}

func pss(pid int) float64 {
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "Pss:" {
			n, _ := strconv.ParseFloat(fields[1], 64)
			return n
		}
	}
	return 0
}
