package journal_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
)

// BenchmarkStep is one step with both of its commits on disk, in a journal that already holds a long operation.
func BenchmarkStep(b *testing.B) {
	db, err := sqldb.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	s, err := journal.Open(b.Context(), db)
	if err != nil {
		b.Fatal(err)
	}
	op, err := s.Begin(b.Context(), journal.Spec{Kind: "roll", Fleet: "f", Epoch: 1})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for range 1000 {
		must(b, op, &n)
	}
	for b.Loop() {
		must(b, op, &n)
	}
}

func must(b *testing.B, op *journal.Op, n *int) {
	*n++
	err := op.Do(b.Context(), journal.Step{ID: fmt.Sprintf("step-%d", *n)}, func(context.Context) (any, error) { return nil, nil })
	if err != nil {
		b.Fatal(err)
	}
}
