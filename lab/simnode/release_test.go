package simnode

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
)

// TestManifestRefusals: the node's judgement of a manifest is that of package manifest, for every code, on manifests drawn
// from few values so that they often agree and often do not.
func TestManifestRefusals(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 1))
	hash := func() node.Hash { return node.Hash{byte(rng.IntN(3))} }
	ids := []string{"genesis_node_001", "genesis_node_002", "super_node_0a"}
	seen := map[string]int{}
	for range 20_000 {
		var m manifest.Manifest
		m.Restart = manifest.Restart{ResumeFromMB: uint64(rng.IntN(3)), ResumeMBHash: hash()}
		m.Pin = manifest.Pin{Index: uint64(rng.IntN(3)), Hash: hash(), DigestAnchor: hash(), DigestPred: hash()}
		for range rng.IntN(4) {
			m.Restart.Excluded = append(m.Restart.Excluded, ids[rng.IntN(len(ids))])
		}
		raw, err := m.JSON()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseManifest(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		want := ""
		for _, f := range manifest.Validate(m, manifest.Known{}) {
			if f.FromNode() {
				want = f.Code
			}
		}
		if got.Refusal() != want {
			t.Fatalf("%s: %q, want %q", raw, got.Refusal(), want)
		}
		seen[want]++
	}
	if len(seen) != 8 {
		t.Errorf("not every code was drawn: %v", seen)
	}
}

// goodManifest is a manifest that the node starts with.
func goodManifest() Manifest {
	h := node.Hash{1}
	return Manifest{Restart: Restart{ResumeFromMB: 3, ResumeMBHash: h, Excluded: []string{"a", "b"}},
		Pin: Pin{Index: 3, Hash: h, DigestAnchor: node.Hash{2}, DigestPred: node.Hash{3}}}
}

func (n *labNode) startWith(m Manifest, env ...string) {
	n.lab.t.Helper()
	kv, err := m.Env()
	if err != nil {
		n.lab.t.Fatal(err)
	}
	n.start(append(env, kv)...)
}

func TestMalformedManifestRefusesToStart(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		for want, spoil := range map[string]func(*Manifest){
			"restart_hash_without_height":               func(m *Manifest) { m.Restart.ResumeFromMB = 0 },
			"restart_excludes_without_height":           func(m *Manifest) { m.Restart.ResumeFromMB, m.Restart.ResumeMBHash = 0, node.Hash{} },
			"restart_zero_hash":                         func(m *Manifest) { m.Restart.ResumeMBHash = node.Hash{} },
			"restart_disagrees_with_ws_pin_index":       func(m *Manifest) { m.Pin.Index++ },
			"restart_disagrees_with_ws_pin_hash":        func(m *Manifest) { m.Pin.Hash = node.Hash{9} },
			"restart_without_committee_digests":         func(m *Manifest) { m.Pin.DigestPred = node.Hash{} },
			"restart_excluded_not_sorted_or_duplicated": func(m *Manifest) { m.Restart.Excluded = []string{"a", "a"} },
		} {
			m := goodManifest()
			spoil(&m)
			before := n.out.count("manifest_active")
			n.startWith(m, "QNET_CLEAN_DATA=1")
			if code := n.exited(1); code != 1 {
				t.Errorf("%s: exit %d", want, code)
			}
			if n.out.count("[FATAL][RESTART] malformed_manifest err="+want+" — refusing to start\n") != 1 || n.out.count("manifest_active") != before {
				t.Errorf("%s: log\n%s", want, n.out)
			}
		}
		// Storage was not opened: not even the folder is there.
		if _, err := os.Stat(n.dir); !os.IsNotExist(err) {
			t.Errorf("data directory was touched: %v", err)
		}
		n.start(EnvManifest + `={"restart":{"from":3}}`)
		if code := n.exited(1); code != 1 || n.out.count("[FATAL][LAB]") != 1 {
			t.Errorf("a manifest that cannot be read: exit %d", code)
		}
	})
}

func TestManifestActiveOnEveryGoodStart(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		for want := 1; want <= 2; want++ {
			n.startWith(goodManifest())
			l.blocks(1)
			n.halt()
			if got := n.out.count("[WARN][RESTART] manifest_active resume_from_mb=3 excluded=2\n"); got != want {
				t.Errorf("%d lines after %d starts", got, want)
			}
		}
		pinOnly := goodManifest()
		pinOnly.Restart = Restart{}
		n.startWith(pinOnly)
		l.blocks(1)
		if n.out.count("manifest_active") != 2 {
			t.Error("a bumped pin alone is no active manifest")
		}
	})
}
