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

// BenchmarkTwoCommits is the bare act that BenchmarkStep is measured against: two small rows, each committed to disk.
func BenchmarkTwoCommits(b *testing.B) {
	db, err := sqldb.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE bare (n integer primary key, text text)`); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for range 2 {
			if _, err := db.Exec(`INSERT INTO bare (text) VALUES ('a row of about the size of a journal entry')`); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func must(b *testing.B, op *journal.Op, n *int) {
	*n++
	err := op.Do(b.Context(), journal.Step{ID: fmt.Sprintf("step-%d", *n)}, func(context.Context) (any, error) { return nil, nil })
	if err != nil {
		b.Fatal(err)
	}
}
