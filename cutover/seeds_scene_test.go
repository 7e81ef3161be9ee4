package cutover_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/rolling"
)

// quick is the block time of the fleets of seeds: half of that of the other tests,
// because a run of them waits for many blocks.
const quick = fast / 2

// seedKinds are the cut-overs that seeds draw, the cheap ones more often; a seed's kind
// is its place in it.
var seedKinds = []string{cutover.KindDecree, cutover.KindRollback, cutover.KindRestart, cutover.KindRelease,
	cutover.KindRollback, cutover.KindDecree,
	cutover.KindRestart, cutover.KindHalt, cutover.KindRollback, cutover.KindUnbar, cutover.KindDecree, cutover.KindRelease}

// seedScene is a fleet in the state that a kind of cut-over needs, and the command.
type seedScene struct {
	kind  string
	nodes int
	hosts []string // that take part
	begin func(t *tool) (cutover.Document, error)
	// during is what happens in the world meanwhile, such as that the silent nodes of
	// a rollback speak again.
	during func(e rolling.Event)
	silent []string // nodes that do not vote, which is why the chain does not seal
	target uint64   // of a rollback or a decree: blocks above it may go
	image  string   // that all nodes shall run, "" for the one they have
	policy string   // that the nodes shall have in the end, "" for the one they have
	k      uint64   // of a restart
	hashK  string   // in hex
	height uint64   // of a halt
}

// draw chooses the kind of a seed and how many hosts the fleet has.
func draw(seed uint64, rng *rand.Rand) *seedScene {
	s := &seedScene{kind: seedKinds[seed%uint64(len(seedKinds))], nodes: 4 + rng.IntN(3)}
	switch s.kind {
	case cutover.KindHalt:
		s.nodes = 4 // it is armed one by one, which is most of the time it takes
	case cutover.KindRestart, cutover.KindUnbar:
		s.nodes = 6 // two of them are lost
	}
	return s
}

// set brings the fleet into the state that the kind needs.
func (s *seedScene) set(w *world, rng *rand.Rand) {
	w.Helper()
	s.hosts, s.during = w.ids(), func(rolling.Event) {}
	switch s.kind {
	case cutover.KindHalt:
		s.height = w.far(s.nodes) + uint64(rng.IntN(200))
		s.begin = func(t *tool) (cutover.Document, error) {
			if tip := w.tip(); tip+uint64(2*s.nodes)*rolling.ExpectedNode >= s.height { // asked again later
				s.height = w.far(s.nodes)
			}
			return t.halt(cutover.HaltAsk{Ask: t.ask(), Height: s.height})
		}
	case cutover.KindRelease:
		s.halted(w)
		s.policy = "always"
		s.image = lab.Repository + ":" + pick(rng, "v2", "v2", "v2", "v2", "v2", "v2", "slow", "mute", "crash", "v1")
		s.begin = func(t *tool) (cutover.Document, error) {
			return t.release(cutover.ReleaseAsk{Ask: t.ask(), Image: s.image, Policy: s.policy})
		}
	case cutover.KindRollback:
		s.rollback(w, rng)
	case cutover.KindDecree:
		s.decree(w, rng)
	case cutover.KindRestart:
		s.restart(w)
	case cutover.KindUnbar:
		s.unbar(w)
	}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// halted makes every node stop on a halt height, as a halt leaves it.
func (s *seedScene) halted(w *world) {
	w.Helper()
	height := w.tip() + 40
	for _, id := range s.hosts {
		w.byHand(id, "", "no", fmt.Sprintf("QNET_HALT_HEIGHT=%d", height))
	}
	for _, id := range s.hosts {
		for w.node(id).State != "exited" {
			w.Blocks(10)
		}
	}
}

// byHand replaces the node's container of a host, as a person would: by another
// image ("" for the same) and policy, with further variables, on the data it has.
func (w *world) byHand(id, image, policy string, env ...string) {
	w.Helper()
	e, name := w.host(id).Engine(), w.host(id).Spec().Container
	raw, err := e.Inspect(name)
	if err != nil {
		w.Fatal(err)
	}
	var old inspected
	if err := json.Unmarshal(raw, &old); err != nil {
		w.Fatal(err)
	}
	body := old.Config
	delete(body, "Hostname")
	had := list(body["Env"])
	if image != "" {
		if err := e.Load(image); err != nil {
			w.Fatal(err)
		}
		own := w.defaults(list(old.Config["Env"]))
		had = own
		body = map[string]any{"Image": image, "Labels": map[string]any{"lab.host": id}}
	}
	body["Env"] = append(slices.Clone(had), env...)
	old.HostConfig["RestartPolicy"] = map[string]any{"Name": policy}
	body["HostConfig"] = old.HostConfig
	request, err := json.Marshal(body)
	if err == nil {
		err = e.StopContainer(name)
	}
	if err == nil {
		err = e.RemoveContainer(name)
	}
	if err == nil {
		_, err = e.CreateContainer(name, request)
	}
	if err == nil {
		err = e.StartContainer(name)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// defaults leaves of a container's variables those that are no defaults of v1.
func (w *world) defaults(env []string) []string {
	w.Helper()
	of := list(newImages(w).config(lab.Repository + ":v1")["Env"])
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return slices.Contains(of, kv) })
}

// list is a JSON list of strings.
func list(v any) (out []string) {
	all, _ := v.([]any)
	for _, x := range all {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// speak lets the silent nodes of a scene vote again.
func (s *seedScene) speak(w *world) {
	for _, id := range s.silent {
		w.Clear(id, "mute")
	}
}

func (s *seedScene) rollback(w *world, rng *rand.Rand) {
	s.target, s.silent = w.unsealed(60), []string{"002", "003"}
	ask := func(t *tool) cutover.RollbackAsk {
		ask := cutover.RollbackAsk{Ask: t.ask(needed)}
		if s.target%2 == 0 && s.nodes%2 == 0 {
			ask.Target = &s.target
		}
		return ask
	}
	s.begin = func(t *tool) (cutover.Document, error) { return t.rollback(ask(t)) }
	if rng.IntN(8) == 0 {
		return // nobody mends the silent nodes: the chain does not go on
	}
	s.during = func(e rolling.Event) {
		if e.Kind == rolling.KindNote && e.Name == string(cutover.Go) && e.State == "begun" {
			s.speak(w)
		}
	}
}

func (s *seedScene) decree(w *world, rng *rand.Rand) {
	s.target, s.silent = w.unsealed(60), []string{"002", "003"}
	seq := uint64(0)
	s.begin = func(t *tool) (cutover.Document, error) {
		seq++
		doc, err := cutover.Endorse(t.ctx, t.fleet, s.hosts, seq, s.target)
		if t.note(doc, err) != nil {
			return cutover.Document{}, err
		}
		return t.decree(cutover.DecreeAsk{Ask: t.ask(needed), Seq: seq, Target: s.target, Sigs: doc.Sigs()})
	}
	if rng.IntN(8) == 0 {
		return
	}
	s.during = func(e rolling.Event) { // each when it has pruned: before that its own vote would certify what the others drop
		if e.Kind == rolling.KindWait && e.Name == string(cutover.Verify) && strings.HasPrefix(e.Text, "started anew") &&
			slices.Contains(s.silent, e.Node) {
			w.Clear(e.Node, "mute")
		}
	}
}

func (s *seedScene) restart(w *world) {
	s.hosts = survivors
	w.Blocks(200) // beyond the history that is made up, so that K is on disk
	w.stall()
	t := w.tool()
	v := t.values(nil)
	t.exit()
	s.k, s.hashK, s.image = v.K(), v.Manifest.Restart.ResumeMBHash.String(), v.Image
	s.begin = func(t *tool) (cutover.Document, error) {
		return t.restart(t.restartAsk(v, time.Now().Add(3*time.Minute).Truncate(time.Second)))
	}
}

// unbar starts four of six nodes anew from a macroblock, by hand, and lets them seal.
func (s *seedScene) unbar(w *world) {
	w.Helper()
	s.hosts = survivors
	w.Blocks(200) // beyond the history that is made up, so that K is on disk
	w.stall()
	t := w.tool()
	v := t.values(nil)
	t.exit()
	s.k, s.hashK = v.K(), v.Manifest.Restart.ResumeMBHash.String()
	empty := func(id string) {
		h := w.host(id)
		if err := h.Engine().StopContainer(h.Spec().Container); err != nil {
			w.Fatal(err)
		}
		if err := os.Rename(h.DataDir(), h.DataDir()+"-by-hand"); err != nil {
			w.Fatal(err)
		}
		if err := os.Mkdir(h.DataDir(), 0o755); err != nil {
			w.Fatal(err)
		}
	}
	const archive = "002"
	for _, id := range s.hosts {
		if id != archive {
			empty(id)
		}
	}
	for _, id := range s.hosts {
		w.byHand(id, v.Image, "always")
	}
	w.sealed("001", checkpoint(s.k+1))
	empty(archive)
	w.byHand(archive, v.Image, "always")
	w.sealed(archive, checkpoint(s.k+3))
	w.Blocks(90) // settled: a roll asks for nodes that have voted lately
	image := w.image("open", manifest.Manifest{Restart: manifest.Restart{Excluded: []string{}}, Pin: v.Manifest.Pin})
	s.image = image.Ref
	s.begin = func(t *tool) (cutover.Document, error) {
		return t.unbar(cutover.UnbarAsk{Ask: cutover.Ask{Hosts: survivors, Skipped: []string{"005", "006"},
			At: time.Now().Add(30 * time.Second).Truncate(time.Second)},
			Image: image.Ref, Identities: v.Manifest.Restart.Excluded})
	}
}

// checkpoint is the checkpoint that is a macroblock.
func checkpoint(macroblock uint64) uint64 {
	return macroblock * node.MacroblockBlocks / node.CheckpointBlocks
}

// sealed waits until a host's data holds the certificate of a checkpoint.
func (w *world) sealed(id string, index uint64) {
	w.Helper()
	for range 600 {
		if certs(w.host(id).DataDir())[index] != "" {
			return
		}
		w.Blocks(10)
	}
	w.Fatalf("%s does not come to checkpoint %d: %s", id, index, w.lab.Status(w.Context()))
}
