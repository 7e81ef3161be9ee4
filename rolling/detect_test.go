package rolling_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// truth asks a node itself, every twentieth of a second, and remembers when things first were so.
type truth struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (tr *truth) mark(name string, is bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if _, before := tr.seen[name]; is && !before {
		tr.seen[name] = time.Now()
	}
}

func (tr *truth) at(name string) time.Time {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.seen[name]
}

// watch follows a node until the context ends: its build, and whether it is near the fleet with a peer.
func (tr *truth) watch(ctx context.Context, w *world, id, build string) {
	h, other := w.Host(id), w.Host("001")
	for ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		tr.mark("M1", strings.HasSuffix(strings.TrimSpace(page(h, "/healthz")), "build="+build))
		var mine, fleet, peers struct {
			Height *uint64 `json:"height"`
			Peers  *uint64 `json:"validated_peers"`
		}
		_ = json.Unmarshal([]byte(page(h, "/api/v1/debug/consensus-position")), &mine)
		_ = json.Unmarshal([]byte(page(other, "/api/v1/debug/consensus-position")), &fleet)
		_ = json.Unmarshal([]byte(page(h, "/api/v1/node/health")), &peers)
		near := mine.Height != nil && fleet.Height != nil && *fleet.Height < *mine.Height+10
		tr.mark("M2", !tr.at("M1").IsZero() && near && peers.Peers != nil && *peers.Peers > 0)
	}
}

func page(h *lab.Host, path string) string {
	resp, err := h.HTTP().Get(h.APIBase() + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(b)
}

// TestMilestonesAreSeenWithinASecond: on a chain of the real pace a milestone is reported at most a second after it became true
// (DESIGN.md section 6); the time is the lab's, so that a slow machine changes nothing.
func TestMilestonesAreSeenWithinASecond(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: time.Second}, func(t *testing.T, w *world) {
		tr := &truth{seen: map[string]time.Time{}}
		passed := map[string]rolling.Event{}
		tool := w.tool()
		defer tool.Exit()
		tool.Emit = func(e rolling.Event) {
			if e.Kind == rolling.KindMilestone && e.State == string(observe.Pass) {
				if _, twice := passed[e.Name]; !twice {
					passed[e.Name] = e
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		watching.Go(func() { tr.watch(ctx, w, "002", lab.BuildID("v2")) })
		defer watching.Wait() // the lab's time stands still once the test is over
		defer stop()
		if _, err := tool.roll(tool.spec("qnet:v2", "002")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"M1", "M2"} {
			since := tr.at(name)
			if since.IsZero() {
				t.Fatalf("the node itself never showed %s", name)
			}
			lag := passed[name].At.Sub(since)
			t.Logf("%s: reported %v after it became true", name, lag.Round(10*time.Millisecond))
			if lag > time.Second || lag < -100*time.Millisecond {
				t.Errorf("%s was reported %v after it became true", name, lag)
			}
		}
		m := regexp.MustCompile(`no restart in ([0-9ms.]+) after bring-up`).FindStringSubmatch(passed["M0"].Text)
		if m == nil {
			t.Fatalf("M0: %q", passed["M0"].Text)
		}
		soaked, err := time.ParseDuration(m[1])
		if err != nil || soaked < 130*time.Second || soaked > 131*time.Second {
			t.Errorf("M0 was reported after a soak of %v (%v), want 130 s and at most one more", soaked, err)
		}
	})
}
