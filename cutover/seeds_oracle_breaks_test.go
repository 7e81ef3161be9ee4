package cutover_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// TestOracle breaks every rule of the oracle on purpose, and sees it reported; a
// fleet that nothing befalls breaks none.
func TestOracle(t *testing.T) {
	if !testing.Short() {
		t.Parallel()
	}
	rollingtest.InLab(t, lab.Config{Nodes: 4, Block: quick}, func(t *testing.T, base *rollingtest.World) {
		w := worldOf(base)
		w.Blocks(100) // certificates beyond the made-up history
		calm := breakable(w)
		calm.all()
		if found := calm.verdict(); len(found) > 0 {
			t.Errorf("nothing was broken: %q", found)
		}
		for _, c := range breaks() {
			o := breakable(w)
			c.do(o)
			found := o.verdict()
			if len(found) == 0 {
				t.Errorf("%s: not reported when %s", c.rule, c.when)
			}
			for _, f := range found {
				if !strings.HasPrefix(f, c.rule+": ") {
					t.Errorf("when %s: %s", c.when, f)
				}
			}
		}
	})
}

// breakable is an oracle of the fleet as it is now; it is told when to look.
func breakable(w *world) *oracle {
	o := newOracle(w, &seedScene{kind: cutover.KindRollback, hosts: w.ids()})
	o.close()
	return o
}

// all looks at everything that can be looked at in a fleet that is as it was.
func (o *oracle) all() {
	for _, id := range o.s.hosts {
		o.sample(id)
	}
	o.s.k = uint64(len(certs(o.w.host("001").DataDir()))) // some macroblock that is there
	for index := range certs(o.w.host("001").DataDir()) {
		if index%3 == 0 {
			o.s.k = index / 3
		}
	}
	o.holder()
	o.stopped()
	o.fate(func(string) bool { return false })
	o.kept()
	o.always()
	o.disarmed(o.s.hosts)
	o.runs(o.s.hosts)
	o.back(func(string, ...string) bool { return false })
	o.next("halt-1", "qnetops resume halt-1 goes on; qnetops abort halt-1 goes back; qnetops status shows it")
}

// aBreak is a way to break a rule.
type aBreak struct {
	rule, when string
	do         func(o *oracle)
}

func must(o *oracle, err error) {
	o.w.Helper()
	if err != nil {
		o.w.Fatal(err)
	}
}

// breaks are in an order in which what one leaves behind does not hinder the next.
func breaks() []aBreak {
	return slices.Concat(breaksOfWords(), breaksOfNodes(), breaksOfFiles(), lastBreaks())
}

func breaksOfWords() []aBreak {
	return []aBreak{
		{ruleNext, "a command does not exist", func(o *oracle) { o.next("halt-1", "qnetops mend all; qnetops resume halt-1") }},
		{ruleNext, "another operation is named", func(o *oracle) {
			o.next("halt-1",
				"qnetops resume halt-1; qnetops abort halt-2")
		}},
		{ruleNext, "nothing is named", func(o *oracle) { o.next("halt-1", "held in phase go") }},
		{ruleRefused, "an agent created a container", func(o *oracle) {
			o.untouched("x", []lab.Request{{Host: "001", Origin: "ssh", Method: "GET"}, {Host: "001", Origin: "agent:4001",
				Method: "POST", Path: "/containers/create"}})
		}},
		{ruleUnknown, "an engine is asked what it does not know", func(o *oracle) {
			near, far := net.Pipe()
			must(o, o.w.host("001").Engine().ServeConn(far))
			req, err := http.NewRequest(http.MethodGet, "http://engine/v1.41/nonsense", nil)
			must(o, err)
			go func() { _ = req.Write(near) }()
			_, err = http.ReadResponse(bufio.NewReader(near), req)
			must(o, err)
			_ = near.Close()
			for _, r := range o.w.lab.Refusals() {
				o.broken(ruleUnknown, "%s", r)
			}
		}},
		{ruleTrue, "running nodes are said to have halted", func(o *oracle) { o.isHalted(o.s.hosts) }},
		{ruleTrue, "a node has another policy than was asked for", func(o *oracle) { o.s.policy = "no"; o.runs([]string{"001"}) }},
		{ruleTrue, "a node has another image than was asked for",
			func(o *oracle) { o.s.image = lab.Repository + ":v2"; o.runs([]string{"001"}) }},
	}
}

func breaksOfNodes() []aBreak {
	return []aBreak{
		{ruleHolder, "every directory was set aside", func(o *oracle) {
			o.s.k = 12
			for _, id := range o.s.hosts {
				must(o, os.Rename(o.w.host(id).DataDir(), o.w.host(id).DataDir()+"-x"))
			}
			o.holder()
			for _, id := range o.s.hosts {
				must(o, os.Rename(o.w.host(id).DataDir()+"-x", o.w.host(id).DataDir()))
			}
		}},
		{ruleBack, "a directory is left", func(o *oracle) {
			left := o.w.host("001").DataDir() + "-above-12-x"
			must(o, os.Mkdir(left, 0o755))
			o.back(func(string, ...string) bool { return false })
			must(o, os.Remove(left))
		}},
		{ruleBack, "a node was recreated", func(o *oracle) {
			o.w.byHand("001", "", "always")
			o.back(func(string, ...string) bool { return false })
		}},
		{ruleSettings, "a variable was added", func(o *oracle) { o.w.byHand("001", "", "always", "QNET_MORE=1"); o.kept() }},
		{ruleOneShot, "a variable is left", func(o *oracle) {
			o.w.byHand("002", "", "always", "QNET_HALT_HEIGHT=1000000")
			o.disarmed([]string{"002"})
		}},
		{ruleOneShot, "a look does not name it", func(o *oracle) {
			t := o.w.tool()
			defer t.exit()
			view, err := observe.Observe(t.ctx, t.fleet, observe.Options{})
			must(o, err)
			if o.named(view); len(o.verdict()) > 0 {
				o.w.Errorf("the look names it: %q", o.verdict())
			}
			view.Node("002").Container.OneShot = nil
			o.named(view)
		}},
		{ruleHalted, "a halted node is started", func(o *oracle) {
			o.w.byHand("002", "", "no", fmt.Sprintf("QNET_HALT_HEIGHT=%d", o.w.tip()+20))
			for o.w.node("002").State != "exited" {
				o.w.Blocks(10)
			}
			if o.sample("002"); len(o.verdict()) > 0 {
				o.w.Errorf("a halt is none: %q", o.verdict())
			}
			must(o, o.w.host("002").Engine().StartContainer(o.w.node("002").ID))
			o.sample("002")
		}},
	}
}

func breaksOfFiles() []aBreak {
	return []aBreak{
		{ruleFiles, "a file was deleted", func(o *oracle) {
			must(o, os.Remove(filepath.Join(o.w.host("001").DataDir(), "IDENTITY")))
			o.files()
		}},
		{ruleFiles, "certified blocks were cut off", func(o *oracle) {
			must(o, os.Truncate(filepath.Join(o.w.host("002").DataDir(), "blocks.jsonl"), 100))
			o.files()
		}},
		{ruleFiles, "what a stopped node had is gone", func(o *oracle) {
			must(o, o.w.host("003").Engine().StopContainer(o.w.node("003").ID))
			o.stopped()
			must(o, os.Remove(filepath.Join(o.w.host("003").DataDir(), "signed-mark.json")))
			o.files()
		}},
		{ruleFork, "a checkpoint has two hashes", func(o *oracle) {
			at := uint64(0)
			for index := range certs(o.w.host("004").DataDir()) {
				at = max(at, index)
			}
			path := filepath.Join(o.w.host("003").DataDir(), "macroblocks.jsonl") // of a node that is down
			was, err := os.Stat(path)
			must(o, err)
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			must(o, err)
			_, err = fmt.Fprintf(f, "{\"i\":%d,\"x\":\"%s\"}\n", at, strings.Repeat("ab", 32))
			must(o, err)
			must(o, f.Close())
			o.chain()
			must(o, os.Truncate(path, was.Size()))
		}},
	}
}

func lastBreaks() []aBreak {
	return []aBreak{
		{ruleTrue, "the chain does not go on", func(o *oracle) { // three of four are spoilt by now
			r := &seeded{w: o.w, s: o.s, o: o, blows: newStrikes(o.w, nil, func(string, ...any) {})}
			must(o, o.w.host("001").Engine().StopContainer(o.w.node("001").ID))
			o.w.byHand("002", "", "no")
			must(o, o.w.host("002").Engine().StopContainer(o.w.node("002").ID))
			r.goesOn(nil)
		}},
		{ruleOne, "a container was removed", func(o *oracle) {
			must(o, o.w.host("003").Engine().RemoveContainer(o.w.node("003").ID))
			o.fate(func(string) bool { return false })
		}},
		{ruleTwo, "a second container runs", func(o *oracle) {
			id := "004"
			raw, err := o.w.host(id).Engine().Inspect(o.w.node(id).ID)
			must(o, err)
			var c inspected
			must(o, json.Unmarshal(raw, &c))
			body, err := json.Marshal(map[string]any{"Image": c.Config["Image"], "Env": c.Config["Env"],
				"HostConfig": map[string]any{"Binds": c.HostConfig["Binds"]}})
			must(o, err)
			second, err := o.w.host(id).Engine().CreateContainer(o.w.node(id).Name+"-next-1", body)
			must(o, err)
			must(o, o.w.host(id).Engine().StartContainer(second))
			o.sample(id)
		}},
		{ruleTwo, "the lab saw two", func(o *oracle) {
			for _, v := range o.w.lab.Violations() {
				o.broken(ruleTwo, "the lab saw: %s", v)
			}
		}},
		{ruleEnds, "an operation is none that can be resumed", func(o *oracle) {
			t := o.w.tool()
			_, err := t.store.Begin(t.ctx, journal.Spec{Kind: "roll", Fleet: t.fleet.Inventory().Name, Operator: "x", Epoch: 1,
				Plan: json.RawMessage("{}")})
			must(o, err)
			t.exit()
			r := &seeded{w: o.w, s: o.s, o: o, blows: newStrikes(o.w, nil, func(string, ...any) {})}
			r.finish()
			o.mu.Lock()
			defer o.mu.Unlock() // what else is spoilt by now is not the point
			o.found = slices.DeleteFunc(o.found, func(f string) bool { return !strings.HasPrefix(f, ruleEnds) })
		}},
		{ruleSecret, "a secret is in the journal's folder", func(o *oracle) {
			path := filepath.Join(o.w.dir, "state.db-x")
			must(o, os.WriteFile(path, []byte("x"+lab.Sentinels()["QNET_ADMIN_SECRET"]), 0o600))
			o.secrets()
			must(o, os.Remove(path))
		}},
		{ruleSecret, "a secret was said", func(o *oracle) {
			o.w.Note(io.EOF)
			o.w.Note("seed " + lab.Sentinels()["QNET_WALLET_SEED"])
			o.secrets()
		}},
	}
}
