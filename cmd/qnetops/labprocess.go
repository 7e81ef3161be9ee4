package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/realhosts"
	"github.com/qnetops/qnetops/lab/simnode"
)

// labHistory gives a fresh lab four sealed windows at once, so that a committee
// of six exists and a roll need not wait for the warm-up of 180 blocks.
const labHistory = 360

// labLog is what a lab of its own process writes its errors to.
const labLog = "lab.log"

// labSettle is how many blocks a lab produces before it is called up: one window
// and a little.
const labSettle = 95

// startProcessLab builds a lab of the process backend on loopback ports and
// writes the files an operator needs.
func startProcessLab(config lab.Config) (*lab.Lab, error) {
	l, err := lab.New(config)
	if err != nil {
		return nil, err
	}
	if err := l.Listen(); err != nil {
		l.Close()
		return nil, err
	}
	if err := l.Start(); err != nil {
		l.Close()
		return nil, err
	}
	if _, err := l.WriteFiles(l.Dir()); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// sentinelEnv gives the real hosts the secrets that the process lab plants, so
// that a search for them means the same on both.
func sentinelEnv(i int) []string {
	var env []string
	for name, value := range lab.Sentinels() {
		if name == "QNET_WALLET_SEED" {
			value += "-" + realhosts.HostID(i) // two wallets are two nodes
		}
		env = append(env, name+"="+value)
	}
	sort.Strings(env)
	return env
}

// processLab is a lab of the process backend in another process.
type processLab struct{ client *lab.Client }

// Kinds lists the faults of this backend.
func (processLab) Kinds() []string { return lab.Kinds() }

// Inject sets a fault.
func (p processLab) Inject(ctx context.Context, node, kind, arg string) error {
	return p.client.Fault(ctx, node, kind, arg)
}

// AddImage adds a release to the lab's registry.
func (p processLab) AddImage(ctx context.Context, tag string, manifest []byte) (simnode.AddedImage, error) {
	return p.client.AddImage(ctx, tag, manifest)
}

// ClearFaults takes all faults back.
func (p processLab) ClearFaults(ctx context.Context) error { return p.client.Clear(ctx, "", "") }

// Down ends the lab.
func (p processLab) Down(ctx context.Context) error { return p.client.Down(ctx) }

// Rows reads the nodes past SSH.
func (p processLab) Rows(ctx context.Context) ([]labRow, error) {
	status, err := p.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	var rows []labRow
	for _, n := range status.Nodes {
		row := labRow{Node: n.ID, Address: n.Address, Height: n.Height, State: n.State + " " + n.Image, Faults: []string{}}
		if n.Build != "" {
			row.Build = &n.Build
		}
		for kind, arg := range n.Faults {
			if arg != "" {
				kind = fmt.Sprintf("%s=%s", kind, arg)
			}
			row.Faults = append(row.Faults, kind)
		}
		sort.Strings(row.Faults)
		rows = append(rows, row)
	}
	return rows, nil
}

// removeProcessLab deletes what a lab of this backend made of its hosts, and only
// where one did: a new lab is a new chain, and must not find the blocks of an older
// one. The operator's own files in the folder stay.
func removeProcessLab(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, labLog)); err != nil {
		return nil // no lab was ever started here
	}
	for _, made := range []string{"hosts", "agents", "proc"} {
		if err := os.RemoveAll(filepath.Join(dir, made)); err != nil {
			return err
		}
	}
	return nil
}
