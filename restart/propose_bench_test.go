package restart_test

import (
	"crypto/ed25519"
	"crypto/sha3"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// spread is a hash that does not compress or compare like a made-up one.
func spread(kind string, index uint64) *node.Hash {
	h := node.Hash(sha3.Sum256(binary.LittleEndian.AppendUint64([]byte(kind), index)))
	return &h
}

// usualEvidence is one operator's file as gather writes it, of a chain of last macroblocks: the newest 64 and last-64·2^i.
func usualEvidence(name string, hosts, committee int, last uint64) restart.Evidence {
	ev := restart.Evidence{Schema: restart.EvidenceSchema, Fleet: "bench", Operator: name, ID: fmt.Sprintf("%032x", sha3.Sum256([]byte(name)))[:32],
		Number: 1, Tool: "bench", TakenAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Network: spread("network", 0), Asked: []restart.IndexRange{}}
	var indices []uint64
	for step := uint64(1) << 40; step >= 64; step /= 2 {
		if step < last {
			indices = append(indices, last-step)
		}
	}
	for i := last - 63; i <= last; i++ {
		indices = append(indices, i)
	}
	for j := range hosts {
		h := restart.HostFinding{ID: fmt.Sprintf("%03d", j+1), NodeID: fmt.Sprintf("%s_%03d", name, j+1), Build: "abcdef0", Reachable: true,
			Height: ptr(last*90 + 5), Sealed: &last, Finalized: ptr(last * 90), FloorAtLeast: ptr(last * 90), Committee: ids(committee),
			Banned: []string{}, Keys: map[string]node.Hash{}, Snapshots: []restart.Snapshot{}, Macroblocks: []restart.Macroblock{}, Lines: []restart.Line{}}
		for k, id := range h.Committee {
			h.Keys[id] = *spread("key", uint64(k))
		}
		for _, i := range indices {
			mb := entry(i)
			mb.Hash, mb.Previous, mb.Digest, mb.Proof = spread("hash", i), spread("hash", i-1), spread("digest", i), goodCertificate(committee)
			mb.Timestamp, mb.Proof.Checkpoint = ptr(1_700_000_000+i*90), *spread("checkpoint", i)
			h.Macroblocks = append(h.Macroblocks, mb)
		}
		ev.Hosts = append(ev.Hosts, h)
	}
	return ev
}

// signedFleet is the evidence of many operators, signed.
func signedFleet(tb testing.TB, operators, hosts, committee int, last uint64) ([]restart.File, restart.Signers) {
	tb.Helper()
	var files []restart.File
	var allowed strings.Builder
	for i := range operators {
		name := fmt.Sprintf("op%03d@example.org", i)
		key := ed25519.NewKeyFromSeed(spread("seed", uint64(i))[:])
		signer, err := ssh.NewSignerFromSigner(key)
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Fprintf(&allowed, "%s %s", name, ssh.MarshalAuthorizedKey(signer.PublicKey()))
		data, err := restart.Canonical(usualEvidence(name, hosts, committee, last))
		if err != nil {
			tb.Fatal(err)
		}
		sig, err := restart.Sign(signer, data)
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, restart.File{Name: name + ".json", Data: data, Sig: sig})
	}
	signers, err := restart.ParseAllowedSigners("signers", []byte(allowed.String()))
	if err != nil {
		tb.Fatal(err)
	}
	return files, signers
}

// peakBytes is the largest resident size since resetPeak, or 0 where the system does not say.
func peakBytes() float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb * 1024
		}
	}
	return 0
}

func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// BenchmarkPropose reads, verifies, decodes and merges the files of 100 operators over a history of 100,000 macroblocks and
// chooses K. Target (issue 4): under 1 s and 300 MB; the files themselves are part of the memory.
func BenchmarkPropose(b *testing.B) {
	const last = 100_000
	for _, size := range []struct{ hosts, committee int }{{1, 6}, {2, 6}, {6, 6}, {2, 100}} {
		b.Run(fmt.Sprintf("hosts=%d/committee=%d", size.hosts, size.committee), func(b *testing.B) {
			files, signers := signedFleet(b, 100, size.hosts, size.committee, last)
			total := 0
			for _, f := range files {
				total += len(f.Data)
			}
			now := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
			resetPeak()
			b.ReportAllocs()
			for b.Loop() {
				m := restart.Merge(files, signers, now)
				p, err := restart.Propose(m, restart.ProposeOptions{})
				if err != nil || p.K == nil || *p.K != last {
					b.Fatalf("%v %v %v", err, p.Stop, p.LeftOut)
				}
			}
			b.ReportMetric(float64(total)/1e6, "input-MB")
			b.ReportMetric(peakBytes()/1e6, "peak-MB")
		})
	}
}

// BenchmarkProposeAlone chooses from evidence that was read: a fork far below the newest macroblocks is the worst of it.
func BenchmarkProposeAlone(b *testing.B) {
	var ops []restart.OperatorEvidence
	for i := range 100 {
		ev := usualEvidence(fmt.Sprintf("op%03d", i), 6, 6, 100_000)
		if i%2 == 1 {
			for j := range ev.Hosts {
				branch(&ev.Hosts[j], 50_000)
			}
		}
		ops = append(ops, restart.OperatorEvidence{Evidence: ev})
	}
	m := merged(ops...)
	b.ReportAllocs()
	for b.Loop() {
		p, err := restart.Propose(m, restart.ProposeOptions{})
		if err != nil || p.K != nil || len(p.Needed) != 100 {
			b.Fatalf("%v %v %v", err, p.K, len(p.Needed))
		}
	}
}
