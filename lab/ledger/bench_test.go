package ledger

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/qnetops/qnetops/lab/simnode"
)

// BenchmarkNew reports what 100,000 macroblocks cost: time, and bytes kept.
func BenchmarkNew(b *testing.B) {
	var l *Ledger
	for b.Loop() {
		l = made(b, Config{Macroblocks: 100_000})
	}
	b.StopTimer()
	var with, without runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&with)
	runtime.KeepAlive(l)
	l = nil
	runtime.GC()
	runtime.ReadMemStats(&without)
	b.ReportMetric(float64(with.HeapAlloc-without.HeapAlloc), "kept-B")
}

// BenchmarkServe reports one answer: a macroblock anywhere, a proof that was signed before, and one that has to be signed.
func BenchmarkServe(b *testing.B) {
	for _, members := range []int{6, 1000} {
		l := made(b, Config{Macroblocks: 1000, Members: members})
		n := l.Node(NodeConfig{ID: "genesis_node_001"})
		serve := func(path string) {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = "127.0.0.1:1"
			n.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				b.Fatal(w.Code)
			}
		}
		b.Run(fmt.Sprintf("macroblock/%d", members), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				serve(fmt.Sprintf("/api/v1/macroblock/%d", i%1000+1))
			}
		})
		b.Run(fmt.Sprintf("proof-again/%d", members), func(b *testing.B) {
			serve("/api/v1/macroblock/500/proof")
			for b.Loop() {
				serve("/api/v1/macroblock/500/proof")
			}
		})
		b.Run(fmt.Sprintf("proof-first/%d", members), func(b *testing.B) {
			for b.Loop() {
				l.signer = simnode.NewSigner()
				serve("/api/v1/macroblock/500/proof")
			}
		})
	}
}
