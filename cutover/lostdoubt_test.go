package cutover_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/rolling"
)

// TestLostInDoubt: the process dies while a host is asked for its replace, and that machine is lost with it: what became of the
// step can never be looked up. That is in doubt until a person passes the host by; the others then go on to the end.
func TestLostInDoubt(t *testing.T) {
	inLab(t, 8, func(t *testing.T, w *world) {
		s := sceneOf(w, "rollback")
		victim := s.hosts[len(s.hosts)-1]
		p := s.process()
		died := false
		w.lab.OnAgentRequest(func(id, method string) {
			if id == victim && method == "replace" && !died {
				died = true
				p.kill()
			}
		})
		if _, err := s.begin(p); err == nil || !died {
			t.Fatalf("died %v: %v", died, err)
		}
		w.lab.OnAgentRequest(nil)
		s.die(victim)
		p.exit()
		p = s.process()
		open := p.unfinished()
		var doubt *rolling.InDoubtError
		_, err := p.ops().Abort(p.ctx, open)
		if !errors.As(err, &doubt) || doubt.Node != victim || !strings.Contains(err.Error(), "--waive members=REASON") {
			t.Fatalf("abort: %v", err)
		}
		p, err = s.again(p)
		if !errors.As(err, &doubt) || doubt.Node != victim {
			t.Fatalf("resume: %v", err)
		}
		if p, err = s.again(p, membersOf("its machine is lost")); err != nil || p.unfinished() != "" {
			t.Fatalf("passed by: open %q, %v", p.unfinished(), err)
		}
		p.exit()
		for _, id := range without(s.hosts, victim) {
			if c := w.node(id); c.State != "running" {
				t.Errorf("%s: %s", id, names(w.all(id)))
			}
		}
	})
}
