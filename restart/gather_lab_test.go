package restart

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/lab"
)

// TestGatherOverSSH reads a whole fleet over its SSH servers and engines: one node stopped, one that limits the rate, one
// with a broken store, one host that is away. No secret of any host is in the evidence.
func TestGatherOverSSH(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a whole lab")
	}
	synctest.Test(t, func(t *testing.T) {
		const history = 90 * 12
		l, err := lab.New(lab.Config{Nodes: 6, Dir: t.TempDir(), History: history})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		if err := l.WaitHeight(t.Context(), history+200); err != nil {
			t.Fatal(err)
		}
		for id, fault := range map[string]string{"002": "storage-error", "003": "stop", "004": "ratelimit"} {
			if err := l.Inject(id, fault, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Inject("005", "drop-ssh", "hold"); err != nil {
			t.Fatal(err)
		}
		path, err := l.WriteFiles(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		inv, err := fleet.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fleet.Open(t.Context(), inv, nil, fleet.Options{Dial: l.Dial, Getenv: func(string) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		var said []string
		words := make(chan string, 1000)
		opts := gatherOptions()
		opts.Block, opts.Now, opts.Progress = inv.Block, time.Now(), func(host, text string) { words <- host + " " + text }
		ev, err := Gather(t.Context(), FleetHosts(t.Context(), f, inv.IDs()), opts)
		if err != nil {
			t.Fatal(err)
		}
		close(words)
		for w := range words {
			said = append(said, w)
		}
		data, err := Canonical(ev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode("e.json", data); err != nil {
			t.Fatal(err)
		}
		for name, value := range lab.Sentinels() {
			if strings.Contains(string(data)+strings.Join(said, "\n"), value) {
				t.Errorf("%s is shown", name)
			}
		}
		for _, h := range []HostFinding{ev.Hosts[0], ev.Hosts[5]} {
			last := h.macroblock(t, *h.Sealed)
			if h.Reason != "" || last.Proof == nil || last.Proof.Fault != "" || last.Proof.Signatures.Valid < 5 || len(h.Lines) == 0 || h.NodeID == "" {
				t.Errorf("host %s: %q %+v", h.ID, h.Reason, last)
			}
		}
		broken, stopped, limited, away := ev.Hosts[1], ev.Hosts[2], ev.Hosts[3], ev.Hosts[4]
		for _, m := range broken.Macroblocks {
			if m.Held != HeldUnknown || m.Reason == "" {
				t.Errorf("002: %+v", m)
			}
		}
		if broken.Committee != nil || broken.Height == nil {
			t.Errorf("002: %+v", broken)
		}
		if stopped.Height != nil || len(stopped.Lines) == 0 || !strings.Contains(stopped.Reason, "nothing listens") {
			t.Errorf("003: %q, %d lines", stopped.Reason, len(stopped.Lines))
		}
		if limited.Height != nil || !strings.Contains(limited.Reason, "limits the rate") {
			t.Errorf("004: %q", limited.Reason)
		}
		if away.Reachable || away.Reason == "" || len(away.Lines)+len(away.Macroblocks) > 0 {
			t.Errorf("005: %+v", away)
		}
	})
}
