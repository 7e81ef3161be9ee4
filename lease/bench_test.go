package lease_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
)

func openB(b *testing.B, dsn string) *sqldb.DB {
	b.Helper()
	db, err := sqldb.Open(b.Context(), dsn)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return db
}

func holdB(b *testing.B, o lease.Options) *lease.Held {
	b.Helper()
	h, err := lease.Hold(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	return h
}

// report gives the median and the 99th percentile, and the median as a part of the TTL that a lease without this design
// would have to wait for.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[min(len(took)-1, len(took)*99/100)]
	b.ReportMetric(float64(p50.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
	b.ReportMetric(p50.Seconds()/time.Minute.Seconds(), "p50/TTL")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTakeover is from the end of one holder to the first proof of the next, of the same identity.
func BenchmarkTakeover(b *testing.B) {
	for _, profile := range lease.Profiles() {
		for _, end := range []string{"crash", "release", "crash with a standby"} {
			b.Run(profile+"/"+end, func(b *testing.B) {
				dsn := pgtest.DSN(b)
				o := lease.Options{DB: openB(b, dsn), Scope: "bench", Profile: profile}
				var took []time.Duration
				h := holdB(b, o)
				for b.Loop() {
					var begin time.Time
					next := make(chan *lease.Held, 1)
					switch end {
					case "crash":
						h.Crash()
						begin = time.Now()
						next <- holdB(b, o)
					case "release":
						if err := h.Release(context.Background()); err != nil {
							b.Fatal(err)
						}
						begin = time.Now()
						next <- holdB(b, o)
					default:
						w := o
						w.Wait = time.Minute
						go func() { h, _ := lease.Hold(context.Background(), w); next <- h }()
						<-time.After(time.Duration(300+len(took)*70%250) * time.Millisecond)
						h.Crash()
						begin = time.Now()
					}
					if h = <-next; h == nil {
						b.Fatal("not taken over")
					}
					took = append(took, time.Since(begin))
				}
				_ = h.Release(context.Background())
				report(b, took)
			})
		}
	}
}

// BenchmarkFence is one fence beside the beat.
func BenchmarkFence(b *testing.B) {
	for name, dsn := range map[string]func() string{"postgres": func() string { return pgtest.DSN(b) }, "sqlite": func() string { return filepath.Join(b.TempDir(), "s.db") }} {
		b.Run(name, func(b *testing.B) {
			h := holdB(b, lease.Options{DB: openB(b, dsn()), Scope: "bench"})
			defer h.Release(context.Background())
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				if err := h.Check(b.Context()); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			report(b, took)
		})
	}
}

// BenchmarkLocal is a whole lease on SQLite: lock, count, give back.
func BenchmarkLocal(b *testing.B) {
	db := openB(b, filepath.Join(b.TempDir(), "s.db"))
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		h := holdB(b, lease.Options{DB: db, Scope: fmt.Sprint("bench", i%3)})
		took = append(took, time.Since(begin))
		_ = h.Release(context.Background())
	}
	report(b, took)
}
