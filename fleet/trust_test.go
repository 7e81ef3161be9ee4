package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/lab/sshd"
	"github.com/skeema/knownhosts"
)

func TestTrust(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		known := w.add(nil)
		w.addBastion()
		behind := w.add(func(h *Host, _ *sshd.Config) { h.Jump, h.Port = "002", 2203 })
		w.add(nil) // changed
		w.add(nil) // declined
		w.add(nil) // down
		delete(w.nodes, "h6.example.org:22")
		file := filepath.Join(w.dir, "new", "known_hosts")
		w.inv.SSH.KnownHosts = []string{file}
		os.MkdirAll(filepath.Dir(file), 0o700)
		start := w.known[0] + "\n" + knownhosts.Line([]string{"h4.example.org"}, testSigner(99).PublicKey()) // no newline at the end
		if err := os.WriteFile(file, []byte(start), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &prompter{answers: []bool{true, true, false}}
		w.opts.Prompt = p
		results, err := Trust(t.Context(), w.inv, nil, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		want := []TrustOutcome{TrustKnown, TrustAdded, TrustAdded, TrustRefused, TrustDeclined, TrustFailed}
		for i, r := range results {
			if r.Outcome != want[i] {
				t.Errorf("host %s: %s (%v), want %s", r.Host, r.Outcome, r.Err, want[i])
			}
		}
		if len(p.asked) != 3 || !strings.Contains(p.asked[1], fingerprint(testSigner(103).PublicKey())) || !strings.Contains(p.asked[1], "h3.example.org:2203") {
			t.Errorf("asked %q", p.asked)
		}
		text, _ := os.ReadFile(file)
		wrote := start + "\n" + w.known[1] + "\n" + w.known[2] + "\n"
		if string(text) != wrote {
			t.Errorf("known_hosts\n%s\nwant\n%s", text, wrote)
		}
		if known.srv.Stats().Logins+behind.srv.Stats().Logins != 0 {
			t.Error("looking at a key logged in")
		}
		if got := TrustSummary(results); got != "1 known, 2 added, 1 declined, 1 refused, 1 failed" {
			t.Error(got)
		}
		f, err := Open(t.Context(), w.inv, []string{"001", "002", "003"}, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w.conn(f, "003")
	})
}

func TestTrustMakesThePrivateFile(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.add(nil)
		file := filepath.Join(w.dir, "ssh", "known_hosts")
		w.inv.SSH.KnownHosts = []string{file}
		w.opts.Prompt = &prompter{answers: []bool{true}}
		if _, err := Trust(t.Context(), w.inv, nil, w.opts); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	})
}
