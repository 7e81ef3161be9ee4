package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// rehearseHalt is a halt with an engine that restarts in the middle and one that
// restarts when all is down, and the release on another image.
func rehearseHalt(ctx context.Context, s streams, nodes int, block time.Duration, file string) error {
	dir, err := os.MkdirTemp("", "qnetops-rehearsal-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &rehearsal{s: s, dir: dir, title: "a halt"}
	began := time.Now()
	fmt.Fprintf(s.err, "lab of %d hosts, one block every %s (all times of the nodes scale with it)\n", nodes, block)
	l, err := startProcessLab(lab.Config{Nodes: nodes, Block: block, Dir: dir, History: labHistory, Version: version})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.WaitFor(ctx, "every node to move", moving); err != nil {
		return err
	}
	r.acts = append(r.acts, act{what: "lab up, every node moves", took: time.Since(began)})
	// Room to arm all nodes, and to look around before the first is.
	height := topOf(l.Status(ctx)) + uint64(2*nodes+1)*rolling.ExpectedNode
	r.run(ctx, "halt --height 1 --yes", exitRefused, nil)
	middle := r.restartInTheMiddle(ctx, l, height)
	r.run(ctx, fmt.Sprintf("halt --height %d --yes", height), exitDone, nil)
	r.acts = append(r.acts, middle())
	r.run(ctx, "halt status", exitDone, nil)
	r.acts = append(r.acts, r.staysDown(ctx, l))
	r.run(ctx, "halt release qnet:v2 --yes", exitDone, nil)
	r.run(ctx, "status --check", exitDone, nil)
	r.checkLab(l)
	return r.finish(file)
}

func topOf(s lab.Status) (top uint64) {
	for _, n := range s.Nodes {
		if n.Height != nil {
			top = max(top, *n.Height)
		}
	}
	return top
}

// restartInTheMiddle restarts the engine of one host between the arming and the
// stop. What it returns waits for that and says what became of it.
func (r *rehearsal) restartInTheMiddle(ctx context.Context, l *lab.Lab, height uint64) func() act {
	const before = 200 // blocks before the height: every node is armed by then
	done := make(chan act, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		a := act{what: "the engine of host 002 restarts while the fleet is armed"}
		err := l.WaitFor(ctx, "the blocks before the height", func(s lab.Status) bool { return topOf(s)+before >= height })
		if err == nil {
			err = l.Inject("002", lab.FaultEngineRestart, "")
		}
		if err != nil {
			a.wrong = err.Error()
		}
		done <- a
	}()
	return func() act {
		cancel()
		return <-done
	}
}

// staysDown restarts every engine of the halted fleet; nothing may come back.
func (r *rehearsal) staysDown(ctx context.Context, l *lab.Lab) act {
	a := act{what: "every engine restarts, and the fleet stays halted"}
	began := time.Now()
	for _, h := range l.Hosts() {
		if err := l.Inject(h.ID(), lab.FaultEngineRestart, ""); err != nil {
			a.wrong = err.Error()
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(3 * time.Second):
	}
	var up []string
	for _, n := range l.Status(ctx).Nodes {
		if n.State != "exited" {
			up = append(up, n.ID+" is "+n.State)
		}
	}
	if len(up) > 0 {
		a.wrong = strings.Join(up, ", ")
	}
	a.took = time.Since(began)
	return a
}
