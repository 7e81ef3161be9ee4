package cutover_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/engine"
)

// The rules of the oracle, each of which TestOracle sees broken.
const (
	ruleTwo      = "two containers on one data directory" // invariant 4
	ruleOne      = "one container, old or new"            // invariant 4
	ruleSettings = "every setting is kept"                // invariant 5
	ruleSecret   = "secrets stay on their host"           // invariant 7
	ruleTrue     = "done is true"                         // invariant 8
	ruleFiles    = "nothing is deleted"                   // invariant 11
	ruleHolder   = "a holder of K is left"                // invariant 11
	ruleHalted   = "what is halted stays halted"          // invariant 12
	ruleOneShot  = "one-shot variables are removed"       // invariant 12
	ruleFork     = "one hash at each height"              // no fork is made
	ruleBack     = "taken back is as it was"
	ruleNext     = "what is not done says what is next"
	ruleEnds     = "an operation can be ended"
	ruleRefused  = "refused changes nothing"
	ruleUnknown  = "nothing is asked that no host knows"
)

// oracle watches a run, and knows nothing of the tool's own: it looks at the
// containers of the engines, the files of the data directories, and what the tool
// let out.
type oracle struct {
	w      *world
	s      *seedScene
	images *images
	was    map[string]before
	exact  map[string][]file // host -> what its stopped node's data was

	mu     sync.Mutex
	found  []string
	halted map[string]bool             // containers that stopped on their height for good
	looked map[string]bool             // ended runs that were looked at for that
	sealed map[point]map[string]string // hash -> who held it
	times  int
	stop   chan struct{}
	done   chan struct{}
}

// before is a host before the operation.
type before struct {
	node     engine.Summary
	count    int // its node's containers
	files    []file
	dirs     []string
	settings string
}

// point is a checkpoint of the chain from genesis (era 0) or from a restart.
type point struct{ era, index uint64 }

// inspected is what the rules read of inspect JSON.
type inspected struct {
	ID              string `json:"Id"`
	Config          map[string]any
	HostConfig      map[string]any
	Mounts          []struct{ Source, Destination string }
	NetworkSettings struct{ Networks map[string]any }
}

func newOracle(w *world, s *seedScene) *oracle {
	o := &oracle{w: w, s: s, images: newImages(w), was: map[string]before{}, exact: map[string][]file{},
		halted: map[string]bool{}, looked: map[string]bool{},
		sealed: map[point]map[string]string{}, stop: make(chan struct{}), done: make(chan struct{})}
	for _, id := range w.ids() {
		b := before{count: len(w.all(id)), files: inventory(w.host(id)), dirs: dataDirs(w.host(id))}
		for _, c := range w.all(id) {
			if c.Name == w.host(id).Spec().Container {
				b.node, b.settings = c, o.images.settings(o.inspect(id, c.ID))
			}
		}
		o.was[id] = b
	}
	o.chain()
	go o.watch()
	return o
}

// broken notes that a rule is broken, once for each thing that is wrong.
func (o *oracle) broken(rule, format string, args ...any) {
	text := rule + ": " + fmt.Sprintf(format, args...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.found, text) {
		o.found = append(o.found, text)
	}
}

func (o *oracle) verdict() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.found)
}

func (o *oracle) inspect(id, container string) (out inspected) {
	raw, err := o.w.host(id).Engine().Inspect(container)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil && !strings.Contains(err.Error(), "No such container") {
		o.w.Errorf("inspect on %s: %v", id, err)
	}
	return out
}

// watch looks at every host again and again, besides the looks after each change.
func (o *oracle) watch() {
	defer close(o.done)
	for {
		select {
		case <-o.stop:
			return
		case <-time.After(5 * quick):
			for _, id := range o.w.ids() {
				o.sample(id)
			}
		}
	}
}

func (o *oracle) close() {
	close(o.stop)
	<-o.done
}

// sample asks for what must hold at every instant.
func (o *oracle) sample(id string) {
	var running []engine.Summary
	for _, c := range o.w.all(id) {
		key := c.ID + c.StartedAt.String() + c.RestartPolicy
		o.mu.Lock()
		halted, looked := o.halted[c.ID], o.looked[key]
		o.looked[key] = looked || c.State == "exited"
		o.mu.Unlock()
		switch {
		case c.State == "running":
			running = append(running, c)
			if halted {
				o.broken(ruleHalted, "%s: %s stopped on its height, with policy no, and runs again", id, c.Name)
			}
		case c.State == "exited" && c.RestartPolicy == "no" && !halted:
			if !looked && reachedHeight(o.w.host(id).Engine(), c) {
				o.mu.Lock()
				o.halted[c.ID] = true
				o.mu.Unlock()
			}
		}
	}
	o.shared(id, running)
	if o.s.kind == cutover.KindRestart && o.sometimes(10) {
		o.holder()
	}
}

// sometimes is true once in n times, for a look that takes its time.
func (o *oracle) sometimes(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.times++
	return o.times%n == 0
}

// reachedHeight says whether the last words of a run are that it ends by its height.
func reachedHeight(e *engine.Engine, c engine.Summary) bool {
	return c.ExitCode == 0 && carries(c.Env, "QNET_HALT_HEIGHT") &&
		slices.ContainsFunc(e.LastLines(c.ID, 12), func(l string) bool { return strings.Contains(l, "Reached halt_height=") })
}

func carries(env []string, name string) bool {
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name) })
}

// shared compares the data directories of what runs on a host.
func (o *oracle) shared(id string, running []engine.Summary) {
	if len(running) < 2 {
		return
	}
	on := map[string]string{}
	for _, c := range running {
		for _, m := range o.inspect(id, c.ID).Mounts {
			if other := on[m.Source]; other != "" {
				o.broken(ruleTwo, "%s: %s and %s run on %s", id, other, c.Name, m.Source)
			}
			on[m.Source] = c.Name
		}
	}
}

// holder asks that the data directory in use of some host holds macroblock K.
func (o *oracle) holder() {
	for _, id := range o.w.ids() {
		if certs(o.w.host(id).DataDir())[checkpoint(o.s.k)] != "" {
			return
		}
	}
	o.broken(ruleHolder, "no host has macroblock %d in the directory its node runs on", o.s.k)
}

// stopped keeps what the data of nodes that are down is: from here on it must all be
// found again.
func (o *oracle) stopped() {
	for _, id := range o.s.hosts {
		if !slices.ContainsFunc(o.w.all(id), func(c engine.Summary) bool { return c.State == "running" }) {
			o.exact[id] = inventory(o.w.host(id))
		}
	}
}

// chain reads every certificate that the hosts' nodes have on disk. Above the
// macroblock of a restart the abandoned chain is another one.
func (o *oracle) chain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	var forks []string
	for _, id := range o.w.ids() {
		dir := o.w.host(id).DataDir()
		of := era(dir)
		for index, hash := range certs(dir) {
			at := point{0, index}
			if index > checkpoint(of) {
				at.era = of
			}
			if o.sealed[at] == nil {
				o.sealed[at] = map[string]string{}
			}
			if o.sealed[at][hash] = id; len(o.sealed[at]) > 1 {
				forks = append(forks, fmt.Sprintf("checkpoint %d is certified as %v", index, o.sealed[at]))
			}
		}
	}
	for _, f := range forks {
		o.found = append(o.found, ruleFork+": "+f)
	}
}

// top is the newest checkpoint that at least n hosts have a certificate of.
func (o *oracle) top(n int) (best uint64) {
	count := map[uint64]int{}
	for _, id := range o.s.hosts {
		for index := range certs(o.w.host(id).DataDir()) {
			if count[index]++; count[index] >= n {
				best = max(best, index)
			}
		}
	}
	return best
}

// fate asks each host for one container of the node's name at the most one of which
// runs. Hosts that may wait for the next contact are passed over.
func (o *oracle) fate(mayWait func(id string) bool) {
	for _, id := range o.s.hosts {
		named, running := 0, 0
		for _, c := range o.w.all(id) {
			if c.Name == o.w.host(id).Spec().Container {
				named++
			}
			if c.State == "running" {
				running++
			}
		}
		if running > 1 {
			o.broken(ruleOne, "%s: %s", id, names(o.w.all(id)))
		}
		if named != 1 && !mayWait(id) {
			o.broken(ruleOne, "%s: no container bears the node's name: %s", id, names(o.w.all(id)))
		}
		if agents := len(o.w.host(id).Agents("agent")) + len(o.w.host(id).Agents("guardian")); agents > 0 && !mayWait(id) {
			o.broken(ruleOne, "%s: %d agent processes are left", id, agents)
		}
	}
}

// kept compares the settings of what now bears the node's name with those before.
func (o *oracle) kept() {
	for _, id := range o.s.hosts {
		for _, c := range o.w.all(id) {
			if c.Name != o.w.host(id).Spec().Container {
				continue
			}
			if now := o.images.settings(o.inspect(id, c.ID)); now != o.was[id].settings {
				o.broken(ruleSettings, "%s: was %s, is %s", id, o.was[id].settings, now)
			}
		}
	}
}

// files asks for everything that was in the data directories. What the chain has not
// certified a node may drop by itself; what was there when it was stopped may not.
func (o *oracle) files() {
	for _, id := range o.s.hosts {
		now := inventory(o.w.host(id))
		for _, gone := range lost(o.was[id].files, now, true) {
			o.broken(ruleFiles, "%s: %s", id, gone)
		}
		for _, gone := range lost(o.exact[id], now, false) {
			o.broken(ruleFiles, "%s, when its node had stopped: %s", id, gone)
		}
	}
}

// secrets searches all that the tool let out, and the operator's folder with the
// journal in it.
func (o *oracle) secrets() {
	texts := map[string]string{"what was said": strings.Join(o.w.Said(), "\n")}
	raw, err := json.Marshal(o.w.Events())
	if err != nil {
		o.w.Error(err)
	}
	texts["events"] = string(raw)
	err = filepath.WalkDir(o.w.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			body, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			texts[filepath.Base(path)] = string(body)
		}
		return nil
	})
	if err != nil {
		o.w.Error(err)
	}
	for where, text := range texts {
		for name, value := range lab.Sentinels() {
			if strings.Contains(text, value) {
				o.broken(ruleSecret, "the value of %s is in %s", name, where)
			}
		}
	}
}

// always asks for what must hold at every end of a process.
func (o *oracle) always() {
	for _, v := range o.w.lab.Violations() {
		o.broken(ruleTwo, "the lab saw: %s", v)
	}
	for _, r := range o.w.lab.Refusals() {
		o.broken(ruleUnknown, "%s", r)
	}
	o.chain()
	o.files()
	o.secrets()
}

// disarmed asks that no container of the node carries a one-shot variable.
func (o *oracle) disarmed(ids []string) {
	for _, id := range ids {
		for _, c := range o.w.all(id) {
			for _, kv := range c.Env {
				name, _, _ := strings.Cut(kv, "=")
				if oneShot(name) && o.s.kind != cutover.KindHalt {
					o.broken(ruleOneShot, "%s: %s carries %s", id, c.Name, name)
				}
			}
		}
	}
}

// oneShot are the variables that act again at every start (facts 5.1).
func oneShot(name string) bool {
	return name == "QNET_HALT_HEIGHT" || strings.HasPrefix(name, "QNET_ROLLBACK_") || name == "QNET_FORCE_RESET" ||
		name == "QNET_CLEAN_DATA"
}

// back asks that a host is as it was before the operation.
func (o *oracle) back(befell func(id string, what ...string) bool) {
	for _, id := range o.s.hosts {
		was, all := o.was[id], o.w.all(id)
		i := slices.IndexFunc(all, func(c engine.Summary) bool { return c.Name == o.w.host(id).Spec().Container })
		switch {
		case i < 0:
			o.broken(ruleBack, "%s: no container of the node's name", id)
			continue
		case all[i].ID != was.node.ID:
			o.broken(ruleBack, "%s: %s is another container", id, all[i].Name)
		case all[i].RestartPolicy != was.node.RestartPolicy:
			o.broken(ruleBack, "%s: restart policy %s, was %s", id, all[i].RestartPolicy, was.node.RestartPolicy)
		case was.node.State == "running" && all[i].State != "running" && !befell(id, blowStop):
			o.broken(ruleBack, "%s: it is %s", id, all[i].State)
		case was.node.State != "running" && all[i].State == "running":
			o.broken(ruleBack, "%s: it runs and did not", id)
		}
		if len(all) != was.count {
			o.broken(ruleBack, "%s: %s", id, names(all))
		}
		for _, dir := range dataDirs(o.w.host(id)) {
			if !slices.Contains(was.dirs, dir) && !strings.Contains(dir, "-copy-") { // the copy is kept
				o.broken(ruleBack, "%s: %s is left", id, dir)
			}
		}
	}
}

// commandIn finds the commands that a text names.
var commandIn = regexp.MustCompile("qnetops ([a-z]+)(?: ([A-Za-z0-9-]+))?")

// contract are the commands of DESIGN.md 4.
const contract = "status watch hosts roll resume abort restore ops gates restart manifest halt rollback decree " +
	"diagnose incident backup lease movement lab rehearse version"

// next asks that what a stopped operation says names commands that there are, and
// one of them for this operation.
func (o *oracle) next(op, text string) {
	named := false
	for _, m := range commandIn.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(strings.Fields(contract), m[1]) {
			o.broken(ruleNext, "there is no command %q: %s", m[0], text)
		}
		if m[1] == "resume" || m[1] == "abort" {
			named = named || m[2] == op
			if m[2] != op {
				o.broken(ruleNext, "%q names another operation than %s", m[0], op)
			}
		}
	}
	if !named {
		o.broken(ruleNext, "%s: neither resume nor abort is named: %s", op, text)
	}
}
