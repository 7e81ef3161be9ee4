package simnode

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkNodes reports the share of one core that a whole lab takes in one
// process, and whether its chain stays free of failovers.
func BenchmarkNodes(b *testing.B) {
	for _, c := range []struct {
		nodes int
		block time.Duration
	}{{6, 20 * time.Millisecond}, {6, 10 * time.Millisecond}, {100, 200 * time.Millisecond}} {
		b.Run(fmt.Sprintf("%d/%v", c.nodes, c.block), func(b *testing.B) { benchLab(b, c.nodes, c.block) })
	}
}

func benchLab(b *testing.B, nodes int, block time.Duration) {
	hub := NewHub(1)
	ctx, cancel := context.WithCancel(b.Context())
	var up sync.WaitGroup
	first := &lines{}
	env := []string{EnvBlock + "=" + block.String(), EnvHistory + "=360", fmt.Sprintf("%s=%d", EnvGenesis, time.Now().UnixNano())}
	ids, identities := []string{}, []string{}
	var supers []string
	for i := 1; i <= nodes; i++ {
		identity := fmt.Sprintf("QNET_BOOTSTRAP_ID=%03d", i)
		if i > 5 {
			identity = fmt.Sprintf("QNET_WALLET_SEED=seed %d", i)
			supers = append(supers, NodeID([]string{identity}))
		}
		ids, identities = append(ids, NodeID([]string{identity})), append(identities, identity)
	}
	env = append(env, EnvSupers+"="+strings.Join(supers, ","))
	for i, id := range ids {
		cfg := Config{DataDir: b.TempDir(), Net: hub.Join(id), Seed: int64(i), Env: append([]string{identities[i]}, env...),
			Listen: func(string, string) (net.Listener, error) {
				return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}, nil
			}}
		if i == 0 {
			cfg.Stdout = first
		}
		up.Go(func() { Run(ctx, cfg) })
	}
	for first.count("bringup_complete") == 0 {
		time.Sleep(block)
	}
	time.Sleep(5 * block)
	start, cpu := time.Now(), cpuTime()
	for b.Loop() {
		time.Sleep(100 * block)
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(time.Since(start)), "cores")
	cancel()
	up.Wait()
	b.ReportMetric(float64(first.count("checkpoint_final")), "checkpoints")
	b.ReportMetric(float64(first.count("failover_events=")-first.count("failover_events=0")), "lines-with-failovers")
}

func cpuTime() time.Duration {
	var ru syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
