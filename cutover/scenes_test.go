package cutover_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/rolling"
)

// scene is a fleet that needs one kind of cut-over, and what the matrices need to
// know of that kind.
type scene struct {
	*world
	phases []cutover.PhaseName
	hosts  []string                                // that take part
	dead   string                                  // the host that is dead from the start, "" for none
	asleep []cutover.PhaseName                     // at whose beginning no node runs, and none may come back by itself
	begin  func(t *tool) (cutover.Document, error) // the command
	nature func(t *tool)                           // what the chain's own nodes do meanwhile, whoever runs the operation
	ended  func()                                  // how the hosts that take part stand in the end

	before map[string]map[string]int64 // every file of the data directories
	pruned *uint64                     // the nodes themselves take their blocks above it
	booted string                      // the host whose node is in its boot when the others halt, and cannot come up to flush; "" for none
}

// kind of a cut-over: how many nodes its fleet has, how many where one is dead and
// the rest is to be enough, and its phases.
type kind struct {
	name        string
	nodes, more int
	phases      []cutover.PhaseName
	set         func(s *scene)
}

// kinds are all the operations on all hosts at once.
func kinds() []kind {
	const prepare, hold, data, then, verify, release = cutover.Prepare, cutover.Hold, cutover.Data, cutover.Go, cutover.Verify, cutover.Release
	return []kind{
		{"halt", 4, 7, []cutover.PhaseName{prepare, hold, then, verify}, (*scene).toHalt},
		{"release", 4, 5, []cutover.PhaseName{prepare, hold, then, verify, release}, (*scene).toRelease},
		{"rollback", 5, 7, []cutover.PhaseName{prepare, hold, then, verify, release}, (*scene).toRollback},
		{"decree", 5, 5, []cutover.PhaseName{prepare, then, verify}, (*scene).toDecree},
		{"restart", 6, 8, []cutover.PhaseName{prepare, hold, data, then, verify, release}, (*scene).toRestart},
		{"unbar", 6, 8, []cutover.PhaseName{prepare, hold, then, verify, release}, (*scene).toUnbar},
	}
}

// on brings a fleet to where a kind is needed. dead is the host that is lost before
// anybody asks for the operation.
func (k kind) on(w *world, dead string) *scene {
	s := &scene{world: w, phases: k.phases, hosts: without(w.ids(), dead), dead: dead, nature: func(*tool) {}}
	k.set(s)
	s.before = map[string]map[string]int64{}
	for _, id := range w.ids() {
		s.before[id] = w.dataFiles(id)
		if s.pruned != nil {
			name := filepath.Join(filepath.Base(w.host(id).Spec().DataPath), "blocks.jsonl")
			s.before[id][name] = w.blockBytes(id, *s.pruned)
		}
	}
	return s
}

func without(ids []string, out ...string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(out, id) })
}

// process starts one process of an operator, in the nature of things.
func (s *scene) process() *tool {
	t := s.tool()
	s.nature(t)
	return t
}

// ask is what every command is asked: all hosts, or those that are not dead.
func (s *scene) ask(waivers ...rolling.Waiver) cutover.Ask {
	a := cutover.Ask{Hosts: slices.Clone(s.hosts), Skipped: without(s.ids(), s.hosts...), Waivers: waivers}
	if s.dead != "" {
		a.Waivers = append(a.Waivers, rolling.Waiver{Check: "members", Reason: s.dead + " is lost"})
	}
	return a
}

// die takes a host away for good: its node ends and nobody comes to it any more.
func (s *scene) die(id string) {
	s.inject(id, "drop-ssh", "hold")
	_ = s.host(id).Engine().StopContainer(s.host(id).Spec().Container) // it may be down already
}

// revive brings a host back: it can be reached, and boots.
func (s *scene) revive(id string) {
	s.Clear(id, "drop-ssh")
	s.inject(id, "reboot", "")
}

func (s *scene) kill() {
	if s.dead != "" {
		s.die(s.dead)
	}
}

func (s *scene) toHalt() {
	s.kill()
	s.begin = func(t *tool) (cutover.Document, error) {
		return t.halt(cutover.HaltAsk{Ask: s.ask(), Height: s.far(len(s.hosts))})
	}
	s.ended = func() {
		for _, id := range without(s.hosts, s.booted) {
			s.world.down(id)
		}
		if s.booted != "" {
			if c := s.node(s.booted); c.State != "exited" || c.RestartPolicy != "no" {
				s.Errorf("%s: %s, want it down for good", s.booted, names(s.all(s.booted)))
			}
		}
		t := s.tool()
		if _, err := t.release(cutover.ReleaseAsk{Ask: s.ask(), Image: "qnet:v2"}); err != nil {
			s.Fatal(err)
		}
		t.exit()
		s.run("v2")
	}
}

func (s *scene) run(tag string) {
	for _, id := range s.hosts {
		s.runs(id, tag)
	}
}

func (s *scene) toRelease() {
	s.asleep = []cutover.PhaseName{cutover.Prepare, cutover.Hold, cutover.Go}
	t := s.tool()
	if _, err := t.halt(cutover.HaltAsk{Ask: t.ask(), Height: s.far(len(s.ids()))}); err != nil {
		s.Fatal(err)
	}
	t.exit()
	s.kill()
	s.begin = func(t *tool) (cutover.Document, error) {
		return t.release(cutover.ReleaseAsk{Ask: s.ask(), Image: "qnet:v2"})
	}
	s.ended = func() { s.run("v2") }
}

// unseal silences as many nodes as the chain does not bear, the dead one among
// them, and lets blocks pile up that nobody certifies.
func (s *scene) unseal() (floor uint64, muted []string) {
	n := len(s.ids())
	away := (n-1)/3 + 1
	s.kill()
	if s.dead != "" {
		away--
	}
	muted = s.hosts[1 : 1+away]
	for _, id := range muted {
		s.inject(id, "mute", "")
	}
	s.Blocks(130)
	return s.certified(s.hosts...), muted
}

func (s *scene) toRollback() {
	s.asleep = []cutover.PhaseName{cutover.Go}
	floor, muted := s.unseal()
	s.pruned = &floor
	s.nature = func(t *tool) {
		t.when(cutover.Go, "begun", func() {
			for _, id := range muted {
				s.Clear(id, "mute")
			}
		})
	}
	s.begin = func(t *tool) (cutover.Document, error) {
		return t.rollback(cutover.RollbackAsk{Ask: s.ask(needed)})
	}
	s.ended = func() { s.unarmed(s.hosts...) }
}

func (s *scene) toDecree() {
	target, muted := s.unseal()
	s.pruned = &target
	s.nature = func(t *tool) {
		t.emit = func(e rolling.Event) {
			if e.Kind == rolling.KindWait && e.Name == string(cutover.Verify) && strings.HasPrefix(e.Text, "started anew") &&
				slices.Contains(muted, e.Node) {
				s.Clear(e.Node, "mute")
			}
		}
	}
	s.begin = func(t *tool) (cutover.Document, error) {
		doc, err := cutover.Endorse(t.ctx, t.fleet, s.hosts, 1, target)
		if err != nil {
			return cutover.Document{}, err
		}
		return t.decree(cutover.DecreeAsk{Ask: s.ask(needed), Seq: 1, Target: target, Sigs: doc.Sigs()})
	}
	s.ended = func() { s.unarmed(s.hosts...) }
}

func (s *scene) toRestart() {
	s.asleep = []cutover.PhaseName{cutover.Data, cutover.Go}
	s.stall()
	t := s.tool()
	v := t.values(nil)
	t.exit()
	s.hosts = without(s.alive(), s.dead)
	s.kill()
	s.begin = func(t *tool) (cutover.Document, error) {
		ask := t.restartAsk(v, s.moment())
		ask.Hosts, ask.Skipped = slices.Clone(s.hosts), without(s.ids(), s.hosts...)
		return t.restart(ask)
	}
	s.ended = func() {
		t := s.tool()
		defer t.exit()
		t.onNewChain(v, s.hosts)
	}
}

// moment is the one an operation names that has to name one.
func (s *scene) moment() time.Time { return time.Now().Add(s.notice).Truncate(time.Second) }

func (s *scene) toUnbar() {
	s.stall()
	t := s.tool()
	v := t.values(nil)
	if _, err := t.restart(t.restartAsk(v, s.moment())); err != nil {
		s.Fatal(err)
	}
	t.exit()
	image := s.image("open", manifest.Manifest{Restart: manifest.Restart{Excluded: []string{}}, Pin: v.Manifest.Pin})
	s.hosts = without(s.alive(), s.dead)
	s.kill()
	s.begin = func(t *tool) (cutover.Document, error) {
		ask := s.ask()
		ask.At = time.Now().Add(min(s.notice, time.Minute)).Truncate(time.Second)
		return t.unbar(cutover.UnbarAsk{Ask: ask, Image: image.Ref, Identities: v.Manifest.Restart.Excluded})
	}
	s.ended = func() {
		for _, id := range s.hosts {
			if c := s.all(id); len(c) != 1 || c[0].State != "running" || c[0].RestartPolicy != "always" || !slices.Contains(c[0].Env, "QNET_BUILD_ID="+image.Build) {
				s.Errorf("%s: %s, want one of the image that bars nobody", id, names(c))
			}
		}
	}
}

// good takes the operation from its start to restored finality.
func (s *scene) good() {
	s.Helper()
	p := s.process()
	_, err := s.begin(p)
	s.finished(p, err)
	s.restored()
}

// lost makes a process die at a barrier, and another one take over, until there is
// no barrier left: state says whether before it is passed ("done") or behind it.
func (s *scene) lost(state string) {
	s.Helper()
	p := s.process()
	p.dieAt(s.phases[0], state)
	_, err := s.begin(p)
	for i := range s.phases {
		if err == nil {
			s.Fatalf("process %d did not die", i)
		}
		p.exit()
		p = s.process()
		if i+1 < len(s.phases) {
			p.dieAt(s.phases[i+1], state)
		}
		_, err = p.ops().Resume(p.ctx, p.unfinished())
	}
	s.finished(p, err)
}

// through resumes an operation, each time by another process, until it has ended.
// One that was given up before anything was changed is asked for again.
func (s *scene) through(p *tool, err error, waivers ...rolling.Waiver) {
	s.Helper()
	for range 5 {
		if err == nil {
			break
		}
		s.Logf("run: %v", err)
		if errors.As(err, new(*rolling.InDoubtError)) {
			if !strings.Contains(err.Error(), "the host cannot be looked at") {
				s.Fatalf("in doubt: %v", err)
			}
			s.Wait(30 * time.Second) // it boots
		}
		p.exit()
		p = s.process()
		s.Wait(time.Second)
		switch open := p.unfinished(); {
		case open == "":
			_, err = s.begin(p)
		case strings.Contains(err.Error(), "qnetops abort starts all nodes again"):
			if _, err = p.ops().Abort(p.ctx, open); err == nil {
				_, err = s.begin(p)
			}
		case strings.Contains(err.Error(), "no other node runs that it could follow"): // it ended below the height of a halt
			_, err = p.ops(append(waivers, membersOf("it ended before the others"))...).Resume(p.ctx, open)
		default:
			_, err = p.ops(waivers...).Resume(p.ctx, open)
		}
	}
	s.finished(p, err)
}

// finished asserts that the newest operation came to its end.
func (s *scene) finished(p *tool, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("the last run: %v", err)
	}
	if ops := p.Operations(); len(ops) == 0 || ops[0].State != journal.Done {
		s.Errorf("the journal says %v", ops)
	}
	p.exit()
}

// restored asserts that finality is back: on every host that takes part seals rise,
// and no file of any data directory is gone.
func (s *scene) restored() {
	s.Helper()
	s.ended()
	s.sealing(s.hosts...)
	s.inventory(s.before)
	s.clean()
}
