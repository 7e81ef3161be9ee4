package cutover_test

import (
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// The short names that the tests of this package use for what rollingtest has.
const (
	fast    = rollingtest.Fast
	history = rollingtest.History
)

func names(cs []engine.Summary) string { return rollingtest.Names(cs) }

// world is a fleet in memory with what the tests of a cut-over ask of it.
type world struct {
	*rollingtest.World
	lab    *lab.Lab
	dir    string
	shared string        // a store that every process reaches from a machine of its own; "": the file in dir
	notice time.Duration // from a command to the moment it names
}

// inLab runs fn in a bubble of virtual time with a fleet that seals.
func inLab(t *testing.T, nodes int, fn func(*testing.T, *world)) {
	t.Helper()
	if !testing.Short() {
		t.Parallel()
	}
	rollingtest.InLab(t, config(nodes), func(t *testing.T, w *rollingtest.World) { fn(t, worldOf(w)) })
}

func config(nodes int) lab.Config { return lab.Config{Nodes: nodes, Block: fast} }

func worldOf(w *rollingtest.World) *world {
	return &world{World: w, lab: w.Lab, dir: w.Dir, notice: 20 * time.Minute}
}

func (w *world) host(id string) *lab.Host            { w.Helper(); return w.Host(id) }
func (w *world) inject(id, kind, arg string)         { w.Helper(); w.Inject(id, kind, arg) }
func (w *world) ids() []string                       { return w.IDs() }
func (w *world) tip() uint64                         { return w.Tip() }
func (w *world) node(id string) engine.Summary       { w.Helper(); return w.Node(id) }
func (w *world) all(id string) []engine.Summary      { w.Helper(); return w.Nodes(id) }
func (w *world) clean()                              { w.Helper(); w.Clean() }
func (w *world) healthy()                            { w.Helper(); w.Healthy() }
func (w *world) mustRefuse(e error, c, words string) { w.Helper(); w.MustRefuse(e, c, words) }

// tool starts one process of an operator.
func (w *world) tool() *tool {
	w.Helper()
	if w.shared != "" {
		return w.toolOf(w.Elsewhere(w.shared))
	}
	return w.toolOf(w.Tool())
}
