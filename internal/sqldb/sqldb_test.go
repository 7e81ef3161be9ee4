package sqldb_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/internal/sqldb"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, dsn string) *sqldb.DB {
	t.Helper()
	db, err := sqldb.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func stores(t *testing.T, run func(t *testing.T, dsn string)) {
	t.Run("sqlite", func(t *testing.T) { run(t, filepath.Join(t.TempDir(), "state.db")) })
	t.Run("postgres", func(t *testing.T) { run(t, pgtest.DSN(t)) })
}

// A path may hold every character that means something in a DSN.
func TestStoreIDIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a dir?%20#x&mode=memory", "state ü.db")
	var ids [2]string
	for i := range ids {
		db := open(t, path)
		var err error
		if ids[i], err = db.StoreID(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Close()
	}
	if len(ids[0]) != 16 || ids[0] != ids[1] {
		t.Error(ids)
	}
	if other, err := open(t, filepath.Join(t.TempDir(), "other.db")).StoreID(t.Context()); err != nil || other == ids[0] {
		t.Error(other, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// The settings that make a committed row survive a power cut, and that keep the file private.
func TestSQLiteSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "state.db")
	db := open(t, path)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
		var got string
		if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s, want %s (%v)", pragma, got, want, err)
		}
	}
	if _, err := db.StoreID(t.Context()); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(p)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v (%v)", filepath.Base(p), info.Mode().Perm(), want, err)
		}
	}
	db.Close()
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, path)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("an open file was left at %v", info.Mode().Perm())
	}
}

// database makes a store of several pages and returns its bytes.
func database(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "good.db")
	db := open(t, path)
	if _, err := db.Exec(`CREATE TABLE x (n integer primary key, text text)`); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := db.Exec(`INSERT INTO x VALUES (?1, ?2)`, i, strings.Repeat("y", 200)); err != nil {
			t.Fatal(err)
		}
	}
	db.Close()
	data, err := os.ReadFile(path)
	if err != nil || len(data) < 3*4096 {
		t.Fatal(len(data), err)
	}
	return data
}

func TestBadFilesAreRefusedAndLeftAlone(t *testing.T) {
	good := database(t)
	damaged := bytes.Clone(good)
	for i := 4096; i < len(damaged)-100; i++ {
		damaged[i] = 0xA5
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"text":       {[]byte("name = \"mainnet\"\n# an inventory given to the wrong flag\n"), "no SQLite database"},
		"short text": {[]byte("x"), "no SQLite database"},
		"headed":     {append([]byte("SQLite format 3\x00"), bytes.Repeat([]byte{7}, 5000)...), "no SQLite database"},
		"damaged":    {damaged, "damaged"},
		"cut off":    {good[:4096+100], "damaged"},
		"header":     {good[:16], "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state.db")
			if err := os.WriteFile(path, c.data, 0o640); err != nil {
				t.Fatal(err)
			}
			_, err := sqldb.Open(t.Context(), path)
			var oe *sqldb.OpenError
			if !errors.As(err, &oe) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || oe.Hint() == "" {
				t.Errorf("opened with: %v", err)
			}
			after, _ := os.ReadFile(path)
			info, _ := os.Stat(path)
			if !bytes.Equal(after, c.data) || info.Mode().Perm() != 0o640 {
				t.Errorf("the file was changed (%d bytes, %v)", len(after), info.Mode())
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 {
				t.Errorf("files were left behind: %v", left)
			}
		})
	}
	for name, path := range map[string]string{
		"a folder":        t.TempDir(),
		"nothing":         "",
		"other scheme":    "mysql://root:hunter2@192.0.2.1/x",
		"below a file":    filepath.Join(writeFile(t, "x"), "state.db"),
		"bad address":     "postgres://u:hunter2@192.0.2.1:port/x",
		"closed port":     "postgres://u:hunter2@127.0.0.1:1/x?sslmode=disable",
		"closed, in args": "postgres://127.0.0.1:1/x?sslmode=disable&user=u&password=hunter2",
	} {
		_, err := sqldb.Open(t.Context(), path)
		var hinted interface{ Hint() string }
		if err == nil || !errors.As(err, &hinted) || hinted.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
			t.Errorf("%s: the error holds the password: %v", name, err)
		}
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnEmptyFileBecomesAStore(t *testing.T) {
	if _, err := open(t, writeFile(t, "")).StoreID(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRebind(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"))
	in := `SELECT $2, '$1', "a$1", $1, '' || $10 WHERE x = '$3''$4' AND y = $ `
	want := `SELECT ?2, '$1', "a$1", ?1, '' || ?10 WHERE x = '$3''$4' AND y = $ `
	if got := db.Rebind(in); got != want {
		t.Errorf("%s", got)
	}
	var a, b string
	if err := db.QueryRow(db.Rebind(`SELECT $2, $1`), "one", "two").Scan(&a, &b); err != nil || a != "two" || b != "one" {
		t.Error(a, b, err)
	}
}

func schema(n int) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		m[fmt.Sprintf("%05d_t.sql", i)] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"-- +goose Up\nCREATE TABLE t%d (n integer primary key);\n-- +goose Down\nDROP TABLE t%d;\n", i, i)}
	}
	return m
}

func TestMigrate(t *testing.T) {
	stores(t, func(t *testing.T, dsn string) {
		db := open(t, dsn)
		for _, n := range []int{1, 1, 3, 3} {
			if err := db.Migrate(t.Context(), schema(n), "room_schema"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.Exec(`INSERT INTO t3 VALUES (1)`); err != nil {
			t.Error(err)
		}
		err := db.Migrate(t.Context(), schema(2), "room_schema")
		var newer *sqldb.NewerSchemaError
		if !errors.As(err, &newer) || newer.Found != 3 || newer.Supports != 2 || newer.Hint() == "" {
			t.Errorf("an older program: %v", err)
		}
		if err := db.Migrate(t.Context(), schema(0), "other_schema"); err == nil {
			t.Error("migrations that are not there were taken as done")
		}
		bad := fstest.MapFS{"00001_x.sql": {Data: []byte("-- +goose Up\nCREATE TABLE half (n integer);\nCREATE TABEL y;\n")}}
		if err := db.Migrate(t.Context(), bad, "bad_schema"); err == nil {
			t.Error("a faulty migration passed")
		}
		if _, err := db.Exec(`INSERT INTO half VALUES (1)`); err == nil {
			t.Error("half a migration remained")
		}
	})
}

// Several programs start for the first time at once.
func TestMigrateAtOnce(t *testing.T) {
	stores(t, func(t *testing.T, dsn string) {
		var wg sync.WaitGroup
		for range 6 {
			db := open(t, dsn)
			wg.Go(func() {
				if err := db.Migrate(t.Context(), schema(3), "room_schema"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestWrite(t *testing.T) {
	stores(t, func(t *testing.T, dsn string) {
		db := open(t, dsn)
		if err := db.Migrate(t.Context(), schema(1), "room_schema"); err != nil {
			t.Fatal(err)
		}
		no := errors.New("no")
		err := db.Write(t.Context(), func(tx *sqldb.Tx) error {
			if _, err := tx.Exec(t.Context(), `INSERT INTO t1 VALUES ($1)`, 1); err != nil {
				return err
			}
			return no
		})
		if err != no {
			t.Error(err)
		}
		insert := func(n int) error {
			return db.Write(t.Context(), func(tx *sqldb.Tx) error {
				rows, err := tx.Exec(t.Context(), `INSERT INTO t1 VALUES ($1)`, n)
				if err == nil && rows != 1 {
					t.Errorf("%d rows", rows)
				}
				return err
			})
		}
		if err := insert(1); err != nil {
			t.Errorf("after a transaction that failed: %v", err)
		}
		if err := insert(1); sqldb.KindOf(err) != sqldb.Conflict {
			t.Errorf("a doubled key is of kind %v: %v", sqldb.KindOf(err), err)
		}
		var n int
		err = db.Read(t.Context(), func(tx *sqldb.Tx) error {
			return tx.QueryRow(t.Context(), `SELECT count(*) FROM t1 WHERE n = $1`, 1).Scan(&n)
		})
		if err != nil || n != 1 {
			t.Error(n, err)
		}
	})
}

// Two connections add to one row at once; no addition is lost and none is refused as busy.
func TestWritersQueue(t *testing.T) {
	stores(t, func(t *testing.T, dsn string) {
		db := open(t, dsn)
		if _, err := db.Exec(`CREATE TABLE c (n integer)`); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(`INSERT INTO c VALUES (0)`); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			db := open(t, dsn)
			wg.Go(func() {
				for range 10 {
					err := db.Write(t.Context(), func(tx *sqldb.Tx) error {
						var n int
						if err := tx.QueryRow(t.Context(), `SELECT n FROM c`+tx.ForUpdate()).Scan(&n); err != nil {
							return err
						}
						_, err := tx.Exec(t.Context(), `UPDATE c SET n = $1`, n+1)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var n int
		if err := db.QueryRow(`SELECT n FROM c`).Scan(&n); err != nil || n != 40 {
			t.Error(n, err)
		}
	})
}

func TestPostgresWritesAreDurable(t *testing.T) {
	dsn := pgtest.DSN(t)
	db := open(t, dsn)
	if _, err := db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	db = open(t, dsn)
	var before, inside string
	if err := db.QueryRow(`SHOW synchronous_commit`).Scan(&before); err != nil {
		t.Fatal(err)
	}
	err := db.Write(t.Context(), func(tx *sqldb.Tx) error {
		return tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&inside)
	})
	if err != nil || before != "off" || inside != "on" {
		t.Errorf("the server's default %s, a write's %s (%v)", before, inside, err)
	}
}

func TestKindOf(t *testing.T) {
	if k := sqldb.KindOf(fmt.Errorf("x: %w", sql.ErrNoRows)); k != sqldb.Other {
		t.Error(k)
	}
	if k := sqldb.KindOf(nil); k != sqldb.Other {
		t.Error(k)
	}
	path := filepath.Join(t.TempDir(), "s.db")
	db := open(t, path)
	other, err := sql.Open("sqlite", "file:"+path) // no busy timeout: the answer comes at once
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	err = db.Write(t.Context(), func(*sqldb.Tx) error {
		_, err := other.ExecContext(context.Background(), `CREATE TABLE y (n)`)
		return err
	})
	if sqldb.KindOf(err) != sqldb.Busy {
		t.Errorf("kind %v: %v", sqldb.KindOf(err), err)
	}
}
