package sqldb_test

import (
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/qnetops/qnetops/internal/sqldb"
)

func TestStoreIDIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a dir?%20#x", "state.db")
	var ids [2]string
	for i := range ids {
		db, err := sqldb.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if ids[i], err = db.StoreID(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Close()
	}
	if ids[0] == "" || ids[0] != ids[1] {
		t.Fatal(ids)
	}
}
