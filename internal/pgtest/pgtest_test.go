package pgtest_test

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/qnetops/qnetops/internal/pgtest"
)

// A killed server comes back with what was committed, and each DSN is a database of its own.
func TestServer(t *testing.T) {
	s := pgtest.Start(t)
	dsn := s.DSN(t)
	open := func(dsn string) *sql.DB {
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	if _, err := open(dsn).Exec("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	if _, err := open(s.DSN(t)).Exec("SELECT n FROM kept"); err == nil {
		t.Error("the second database sees the first one's table")
	}
	s.Kill()
	if err := open(dsn).Ping(); err == nil {
		t.Error("a killed server answers")
	}
	s.Run(t)
	var n int
	if err := open(dsn).QueryRow("SELECT n FROM kept").Scan(&n); err != nil || n != 7 {
		t.Errorf("after the restart: %d, %v", n, err)
	}
}
