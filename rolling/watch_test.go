package rolling_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

// when runs fn once, at the first event of that kind, name and state.
func (t *tool) when(kind, name, state string, fn func()) {
	var once sync.Once
	t.Emit = func(e rolling.Event) {
		if e.Kind == kind && e.Name == name && e.State == state {
			once.Do(fn)
		}
	}
}

// TestInvariant6UnknownHolds: what happens to the watching, not to the node, does
// not fail a node; what cannot be read holds it.
func TestInvariant6UnknownHolds(t *testing.T) {
	for _, c := range []struct {
		name        string
		kind, arg   string
		node        string // of the fault
		from, state string // milestone event at which it begins
		clear       time.Duration
		held        string // milestone at which the node is held, "" where it passes
		words       string // that were seen in that milestone's readings
		at          string
	}{
		{name: "the connection drops", kind: "drop-ssh", node: "002", from: "M2", state: "pass"},
		{name: "the connection drops and stays away", kind: "drop-ssh", arg: "hold", node: "002", from: "M1", state: "pass", clear: 5 * time.Second},
		{name: "all the others' connections drop", kind: "drop-ssh", node: "others", from: "M1", state: "pass"},
		{name: "the log is rotated away", kind: "log-rotate", node: "002", from: "M2", state: "pass"},
		{name: "another node fails its turns", kind: "failover", node: "others", from: "M3", state: "pass", clear: 3 * time.Second, at: "M4", words: "counting again"},
		{name: "peers cannot be read", kind: "hang-health", node: "002", from: "M1", state: "pass", held: "M2", at: "M2", words: "the node's peers cannot be read"},
		{name: "peers cannot be read for a while", kind: "hang-health", node: "002", from: "M1", state: "pass", clear: 5 * time.Second, at: "M2", words: "the node's peers cannot be read"},
		{name: "it claims a height that cannot be", kind: "lie-height", arg: "1000", node: "002", from: "M1", state: "pass", held: "M2", at: "M2", words: "one of them cannot be"},
		{name: "it claims such a height later", kind: "lie-height", arg: "1000", node: "002", from: "M3", state: "pass", held: "M4", at: "M4", words: "one of them cannot be"},
		{name: "another one claims such a height", kind: "lie-height", arg: "1000", node: "003", from: "M1", state: "pass"},
		{name: "every request meets the rate limit", kind: "ratelimit", node: "002", from: "M1", state: "pass", held: "M2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
				tool := w.tool()
				tool.when(rolling.KindMilestone, c.from, c.state, func() { w.disturb(c.node, c.kind, c.arg, c.clear) })
				doc, err := tool.roll(tool.spec("qnet:v2", "002"))
				n := nodeOf(doc, "002")
				if c.held == "" {
					if err != nil {
						t.Fatalf("%v: %+v", err, n.Milestones)
					}
					w.allPassed(n)
					w.runs("002", "v2")
				} else {
					w.stopped(err, "002", c.held)
					if n.Outcome != rolling.NodeHeld || verdict(n, c.held) != string(observe.Fail) {
						t.Errorf("%+v", n)
					}
				}
				if c.words != "" && !strings.Contains(strings.Join(w.saw("002", rolling.KindMilestone, c.at), "\n"), c.words) {
					t.Errorf("%s never said %q: %q", c.at, c.words, w.saw("002", rolling.KindMilestone, c.at))
				}
				w.Clean()
			})
		})
	}
}

// disturb sets a fault on a node, or on all but 002, and takes it back in time.
func (w *world) disturb(node, kind, arg string, clear time.Duration) {
	ids := []string{node}
	if node == "others" {
		ids = []string{"001", "003", "004"}
	}
	for _, id := range ids {
		w.Inject(id, kind, arg)
	}
	if clear > 0 {
		timer := time.AfterFunc(clear, func() { _ = w.Lab.Clear("", kind) })
		w.Cleanup(func() { timer.Stop() })
	}
}

// TestLogLevelTwo: where participation lines cannot exist, signers decide.
func TestLogLevelTwo(t *testing.T) {
	cfg := lab.Config{Nodes: 4, Block: fast, Host: func(i int, h *lab.HostSpec) {
		if i == 2 {
			h.Env = []string{"QNET_LOG_LEVEL=2"}
		}
	}}
	inLab(t, cfg, func(t *testing.T, w *world) {
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:v2", "002"))
		if err != nil {
			t.Fatal(err)
		}
		w.allPassed(nodeOf(doc, "002"))
		for _, m := range nodeOf(doc, "002").Milestones {
			if m.Name == "M3" && !strings.HasPrefix(m.Reason, "signed") {
				t.Errorf("M3: %s", m.Reason)
			}
		}
		if !tool.plan.Node("002").LinesHidden || tool.plan.Node("002").Carried == nil {
			t.Errorf("plan %+v", tool.plan.Node("002"))
		}
		w.Clean()
	})
}

// producer asks a node itself, past SSH.
func (w *world) producer(id string) (now string, self string, next bool) {
	w.Helper()
	h := w.Host(id)
	resp, err := h.HTTP().Get(h.APIBase() + "/api/v1/producer/status")
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.Fatalf("producer status %d: %v", resp.StatusCode, err)
	}
	var s struct {
		Current string `json:"current_producer"`
		Node    string `json:"node_id"`
		Is      bool   `json:"is_producer"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		w.Fatal(err)
	}
	return s.Current, s.Node, s.Is
}

// TestProducerWaitsForItsTurn: a node that produces now or next is not stopped
// before its turn has ended.
func TestProducerWaitsForItsTurn(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4}, func(t *testing.T, w *world) {
		// Wait for a turn of 002 to begin, so that it is long enough to be met.
		for i := 0; ; i++ {
			now, self, _ := w.producer("002")
			before, _, _ := w.producer("001")
			if now == self && before == self {
				break
			}
			if i > 1000 {
				t.Fatal("002 never produced")
			}
			w.Blocks(1)
		}
		w.Lab.OnEngineRequest(func(host, method, path string) {
			if host == "002" && strings.HasSuffix(path, "/stop") {
				if now, self, next := w.producer("002"); now == self || next {
					t.Error("002 was stopped in its turn")
				}
			}
		})
		tool := w.tool()
		doc, err := tool.roll(tool.spec("qnet:v2", "002"))
		if err != nil {
			t.Fatal(err)
		}
		w.allPassed(nodeOf(doc, "002"))
		if got := w.saw("002", rolling.KindWait, "producing"); len(got) == 0 || !strings.Contains(got[0], "its turn ends in") {
			t.Errorf("waits: %q", got)
		}
		// It took a while, so the voters were counted again.
		if got := w.saw("002", rolling.KindWait, "quorum"); len(got) < 2 {
			t.Errorf("counts: %q", got)
		}
		w.Clean()
	})
}

// TestInvariant2RestartedNodeDoesNotCount: a member that was restarted in this
// window does not vote in it, so the next node waits.
func TestInvariant2RestartedNodeDoesNotCount(t *testing.T) {
	inLab(t, lab.Config{Nodes: 4, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.ready = func() {
			w.Inject("003", "stop", "")
			if err := w.Lab.Clear("003", "stop"); err != nil {
				t.Fatal(err)
			}
		}
		began := w.heights()["001"]
		var stopped uint64
		w.Lab.OnEngineRequest(func(host, method, path string) {
			if host == "002" && strings.HasSuffix(path, "/stop") {
				stopped = w.heights()["001"]
			}
		})
		if _, err := tool.roll(tool.spec("qnet:v2", "002")); err != nil {
			t.Fatal(err)
		}
		waits := w.saw("002", rolling.KindWait, "quorum")
		if len(waits) < 2 || !strings.Contains(waits[0], "2 of 4 vote without 002, quorum 3; not counted:") || !strings.Contains(waits[0], "genesis_node_003 (restarted in window") {
			t.Errorf("waits: %q", waits)
		}
		if (stopped-1)/90 <= (began-1)/90 {
			t.Errorf("stopped at height %d, in the window of the restart at %d", stopped, began)
		}
		w.Clean()
	})
}

// TestInvariant2VotersLostAfterTheQuestion: nobody is stopped when two members
// went down after the plan was confirmed; the numbers say why.
func TestInvariant2VotersLostAfterTheQuestion(t *testing.T) {
	inLab(t, lab.Config{Nodes: 6, Block: fast}, func(t *testing.T, w *world) {
		tool := w.tool()
		tool.when(rolling.KindStep, "pull", "begun", func() {
			w.Inject("004", "stop", "")
			w.Inject("005", "drop-ssh", "hold") // it votes, but nobody can see it
		})
		_, err := tool.roll(tool.spec("qnet:v2", "001"))
		w.stopped(err, "001", "check quorum did not pass")
		if !strings.Contains(err.Error(), "3 of 6 vote without 001, quorum 5; not counted:") {
			t.Errorf("no numbers: %v", err)
		}
		if got := w.changes("001", 0); len(got) == 0 || strings.Contains(strings.Join(got, " "), "/stop") {
			t.Errorf("changes %q", got)
		}
		w.Clean()
	})
}
