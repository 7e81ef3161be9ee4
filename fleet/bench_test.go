package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab/memnet"
	"github.com/qnetops/qnetops/lab/sshd"
	"golang.org/x/crypto/ssh"
)

// BenchmarkStatusReads connects to hosts with verified keys and reads each
// node once: what a status costs beside the wait between its two samples.
// "kept" is the same read on connections that are there already. MB is the heap
// and stacks of both sides in this process, after the reads, less what was in
// use before the servers came.
func BenchmarkStatusReads(b *testing.B) {
	for _, n := range []int{100, 500, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", n), func(b *testing.B) { benchmarkReads(b, n) })
	}
}

func benchmarkReads(b *testing.B, n int) {
	before := inUse()
	w := newWorld(b)
	for range n {
		addCheap(w)
	}
	w.writeKnown()
	var kept, used time.Duration
	var memory float64
	read := func(ctx context.Context, c *Conn) error {
		_, err := c.Node().Healthz(ctx)
		return err
	}
	b.ResetTimer()
	for range b.N {
		used -= cpu()
		f, err := Open(b.Context(), w.inv, nil, w.opts)
		if err != nil {
			b.Fatal(err)
		}
		if errs := f.Each(b.Context(), read); len(errs) > 0 {
			b.Fatal(errs)
		}
		b.StopTimer()
		used += cpu()
		memory = max(memory, float64(inUse()-before)/1e6)
		begin := time.Now()
		if errs := f.Each(b.Context(), read); len(errs) > 0 {
			b.Fatal(errs)
		}
		kept += time.Since(begin)
		f.Close()
		b.StartTimer()
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/run")
	b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/run")
	b.ReportMetric(kept.Seconds()/float64(b.N), "s/kept")
	b.ReportMetric(memory, "MB")
}

// addCheap is add without what this benchmark does not measure: every host
// shares one node.
func addCheap(w *world) {
	n := len(w.inv.Hosts) + 1
	m := w.add(func(h *Host, cfg *sshd.Config) {
		cfg.DialTCP = func(ctx context.Context, _ string, _ int) (net.Conn, error) {
			c, err := w.nodes["h1.example.org:22"].node.Dial(ctx, "sshd")
			return leanConn{c}, err
		}
		cfg.Users = map[string][]ssh.PublicKey{"root": {testSigner(userSeed).PublicKey()}}
	})
	if n == 1 {
		m.node = memnet.Listen("127.0.0.1:8001")
		serveHTTP(w.t, m.node, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprint(rw, "ok h=4711 build=1111111")
		}))
	}
}

// leanConn copies with small buffers, so that the servers' share of the memory
// does not drown what is measured.
type leanConn struct{ *memnet.Conn }

func (c leanConn) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(onlyWriter{c.Conn}, onlyReader{r}, make([]byte, 1<<10))
}
func (c leanConn) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(onlyWriter{w}, onlyReader{c.Conn}, make([]byte, 1<<10))
}

type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// cpu is the processor time of this process. On a busy machine it tells more
// than the clock: divided by the free processors it is the least a run takes.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
