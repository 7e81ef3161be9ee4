package cutover_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

// full says that every field of the matrices is run: with the tag long, or with
// QNETOPS_LONG set.
func full() bool { return long || os.Getenv("QNETOPS_LONG") != "" }

// field is one of a matrix: a kind of cut-over, a phase, what happens there.
type field struct {
	kind
	phase cutover.PhaseName
	what  string
}

func (f field) String() string {
	return strings.Trim(fmt.Sprintf("%s/%s/%s", f.name, f.phase, f.what), "/")
}

// matrix runs fn for every field, or for those that are chosen for every day.
func matrix(t *testing.T, whats []string, daily []string, nodes func(kind) int, fn func(*scene, field)) {
	met := 0
	for _, k := range kinds() {
		for _, f := range k.fields(whats) {
			if !full() && !slices.Contains(daily, f.String()) {
				continue
			}
			met++
			t.Run(f.String(), func(t *testing.T) {
				inLab(t, nodes(k), func(t *testing.T, w *world) { fn(k.on(w, ""), f) })
			})
		}
	}
	if met < len(daily) {
		t.Errorf("%d of %d chosen fields are none: %q", len(daily)-met, len(daily), daily)
	}
}

// each runs fn for every kind, or for those that are chosen for every day.
func each(t *testing.T, daily []string, fn func(*testing.T, kind)) {
	for _, k := range kinds() {
		if full() || slices.Contains(daily, k.name) {
			t.Run(k.name, func(t *testing.T) { fn(t, k) })
		}
	}
}

// fields of a kind.
func (k kind) fields(whats []string) (out []field) {
	for _, what := range whats {
		for _, p := range k.phases {
			out = append(out, field{k, p, what})
		}
	}
	return out
}

func few(k kind) int  { return k.nodes }
func many(k kind) int { return max(k.nodes, k.more) }

// TestMatrixUndisturbed: every kind of cut-over from its start to restored finality.
func TestMatrixUndisturbed(t *testing.T) {
	each(t, []string{"decree", "unbar"}, func(t *testing.T, k kind) {
		inLab(t, k.nodes, func(t *testing.T, w *world) { k.on(w, "").good() })
	})
}

// TestMatrixDeadFromTheStart: a host that is dead before anybody asks is left out by
// name; the others are enough, and finality is back on them.
func TestMatrixDeadFromTheStart(t *testing.T) {
	last := map[string]string{"halt": "007", "release": "005", "rollback": "007", "decree": "005", "restart": "005", "unbar": "005"}
	each(t, []string{"release", "decree", "restart", "unbar"}, func(t *testing.T, k kind) {
		inLab(t, k.more, func(t *testing.T, w *world) { k.on(w, last[k.name]).good() })
	})
}

// TestMatrixDies: a host dies when a phase begins. The operation holds and names it,
// or passes it by where the kind has a threshold. When it is back, or passed by with
// the waiver, the operation ends and finality is back.
func TestMatrixDies(t *testing.T) {
	matrix(t, []string{"back", "away"}, []string{"release/go/back", "rollback/verify/away", "decree/verify/back", "restart/go/away", "restart/verify/away"}, many, func(s *scene, f field) {
		const victim = "003"
		p := s.process()
		died := false
		p.when(f.phase, "begun", func() {
			if !died {
				died = true
				s.die(victim)
			}
		})
		doc, err := s.begin(p)
		if !died {
			s.Fatalf("the operation never came to %s: %v", f.phase, err)
		}
		if err != nil && !strings.Contains(err.Error(), victim) {
			s.Errorf("does not name the host that died: %v", err)
		}
		if err == nil && hostOf(doc, victim).State == cutover.Finished && f.phase != cutover.Verify && f.phase != cutover.Release {
			s.Errorf("%+v", hostOf(doc, victim))
		}
		apart := hostOf(doc, victim).State == cutover.Apart
		if f.what != "back" || apart {
			s.dead, s.hosts = victim, without(s.hosts, victim)
		}
		if f.what == "back" {
			s.revive(victim)
			s.through(p, err)
		} else {
			s.through(p, err, rolling.Waiver{Check: "members", Reason: victim + " is lost"})
		}
		s.restored()
	})
}

// slows are the ways in which a host is slow: its node catches up late, lags, runs
// on a wrong clock, or answers its health late; its engine takes seconds.
func slows() []string { return []string{"slow", "engine", "lag", "skew", "hang-health"} }

// TestMatrixSlow: with one slow host the operation ends by itself, or holds, and
// ends when the host is well again.
func TestMatrixSlow(t *testing.T) {
	matrix(t, slows(), []string{"halt/go/skew", "release/verify/slow", "rollback/go/lag", "decree/prepare/engine", "restart/verify/slow", "unbar/go/engine"}, few, func(s *scene, f field) {
		const victim = "003"
		slow := func(on bool) {
			switch {
			case f.what == "engine" && on:
				s.lab.OnEngineRequest(func(id, _, _ string) {
					if id == victim {
						s.Wait(500 * time.Millisecond)
					}
				})
			case f.what == "engine":
				s.lab.OnEngineRequest(nil)
			case on:
				s.inject(victim, f.what, "")
			default:
				s.Clear(victim, f.what)
			}
		}
		p := s.process()
		p.when(f.phase, "begun", func() { slow(true) })
		_, err := s.begin(p)
		slow(false)
		s.through(p, err)
		s.restored()
	})
}

// TestMatrixEngineRestarts: an engine restarts, or a host boots, when a phase
// begins. Where the fleet is down nothing comes back by itself (invariant 12).
func TestMatrixEngineRestarts(t *testing.T) {
	matrix(t, []string{"engine-restart", "reboot"}, []string{"rollback/go/reboot", "decree/go/engine-restart", "restart/data/engine-restart", "unbar/verify/engine-restart"}, few, func(s *scene, f field) {
		p := s.process()
		var struck atomic.Bool
		p.when(f.phase, "begun", func() {
			if struck.Swap(true) {
				return
			}
			if !slices.Contains(s.asleep, f.phase) {
				s.booted = "003"
				s.inject("003", f.what, "")
				return
			}
			for _, id := range s.ids() {
				if slices.Contains(s.hosts, id) {
					s.inject(id, f.what, "")
				}
			}
			s.Wait(30 * time.Second)
			for _, id := range s.hosts {
				if got := s.Running(id); len(got) > 0 {
					s.Errorf("%s came back by itself: %s", id, names(s.all(id)))
				}
			}
		})
		_, err := s.begin(p)
		if !struck.Load() {
			s.Fatalf("the operation never came to %s: %v", f.phase, err)
		}
		s.through(p, err)
		s.restored()
	})
}

// TestMatrixOperatorLost: the operator's machine is lost at every barrier, before it
// is passed and behind it, and the operation resumed by a process that has the store
// alone. The full matrix has every kind; the others have tests of their own.
func TestMatrixOperatorLost(t *testing.T) {
	for _, k := range kinds() {
		for _, state := range []string{"begun", "done"} {
			if !full() && (k.name != "unbar" || state != "done") {
				continue
			}
			t.Run(k.name+"/"+state, func(t *testing.T) {
				inLab(t, k.nodes, func(t *testing.T, w *world) {
					s := k.on(w, "")
					s.lost(state)
					s.restored()
				})
			})
		}
	}
}

// TestMatrixAgentsDieInRestart: whatever dies on a host when a step on it begins,
// the restart comes to its end, and no data is gone.
func TestMatrixAgentsDieInRestart(t *testing.T) {
	steps := []string{"stage", "stop", "copy_data", "aside_data", "replace", "start", "finish"}
	for i, step := range steps {
		for j, victim := range lab.Kills() {
			if !full() && (j != i%len(lab.Kills()) || i%2 == 0) {
				continue
			}
			t.Run(step+"/"+victim, func(t *testing.T) {
				k := kinds()[slices.IndexFunc(kinds(), func(k kind) bool { return k.name == "restart" })]
				inLab(t, k.nodes, func(t *testing.T, w *world) {
					s := k.on(w, "")
					p := s.process()
					var struck atomic.Bool
					p.emit = func(e rolling.Event) {
						if e.Kind == rolling.KindStep && e.Name == step && e.State == "begun" && !struck.Swap(true) {
							if err := w.lab.Kill(e.Node, victim); err != nil {
								w.Errorf("kill: %v", err)
							}
						}
					}
					_, err := s.begin(p)
					if !struck.Load() {
						t.Fatalf("no step %s: %v", step, w.steps())
					}
					s.through(p, err)
					s.restored()
				})
			})
		}
	}
}

// steps lists the names of the steps that were begun.
func (w *world) steps() (out []string) {
	for _, e := range w.Events() {
		if name := cmp.Or(e.Name, e.Text); e.Kind == rolling.KindStep && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
