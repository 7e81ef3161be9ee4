package sqldb

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dialect is the kind of database behind a DB.
type Dialect string

// The two stores we run on.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// openTimeout bounds the first contact with a store that is asked for without a deadline.
const openTimeout = 15 * time.Second

// DB is an open store.
type DB struct {
	*sql.DB
	Dialect Dialect
	where   string // for people: the path, or the DSN without its password
	path    string // SQLite only: the file, absolute
}

// Open opens the store at dsn: "postgres://…" (or "postgresql://…") through the driver "pgx", anything else is the path of
// a SQLite file, which is made (mode 0600, its folder 0700) where it is missing. SQLite runs in WAL mode with synchronous=FULL,
// so that a committed row survives a power cut. An existing file is checked before it is touched. Errors are *OpenError with
// a hint and never hold a password.
func Open(ctx context.Context, dsn string) (*DB, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	if IsPostgres(dsn) {
		return openPostgres(ctx, dsn)
	}
	return openSQLite(ctx, dsn)
}

// IsPostgres reports whether dsn names a Postgres server rather than a file.
func IsPostgres(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// Where names the store for people: the file, or the server without its password.
func (d *DB) Where() string { return d.where }

// Path is the absolute path of the SQLite file, "" on Postgres.
func (d *DB) Path() string { return d.path }

func openPostgres(ctx context.Context, dsn string) (*DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, &OpenError{Where: "(a postgres DSN)", What: "the DSN is not a valid address", // the parser's text would quote the password
			hint: "write postgres://USER@HOST:PORT/DATABASE; special characters in a password are percent-encoded"}
	}
	d := &DB{Dialect: Postgres, where: redact(u)}
	if d.DB, err = sql.Open("pgx", dsn); err != nil {
		return nil, d.refused("", errors.New("the DSN is not understood"))
	}
	d.SetMaxOpenConns(8)
	d.SetConnMaxIdleTime(time.Minute)
	if err := d.PingContext(ctx); err != nil {
		d.Close()
		return nil, d.refused("", scrub(err, u))
	}
	return d, nil
}

// redact drops the password wherever a DSN can hold one: in the user part and as a parameter.
func redact(u *url.URL) string {
	c := *u
	if c.User != nil {
		c.User = url.User(c.User.Username())
	}
	q := c.Query()
	for _, k := range []string{"password", "sslpassword"} {
		q.Del(k)
	}
	c.RawQuery = q.Encode()
	return c.String()
}

// scrub keeps an error only where its text does not repeat the password.
func scrub(err error, u *url.URL) error {
	secrets := []string{u.Query().Get("password"), u.Query().Get("sslpassword")}
	if pw, ok := u.User.Password(); ok {
		secrets = append(secrets, pw)
	}
	for _, s := range secrets {
		if s != "" && strings.Contains(err.Error(), s) {
			return errors.New("the server refused the connection")
		}
	}
	return err
}

func openSQLite(ctx context.Context, path string) (*DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil || path == "" {
		return nil, &OpenError{Where: path, What: "no path is given", Err: err, hint: "give --state a file or a postgres:// DSN"}
	}
	d := &DB{Dialect: SQLite, where: path, path: abs}
	if strings.Contains(path, "://") {
		return nil, &OpenError{Where: "(a DSN)", What: "only postgres:// is known besides a path", hint: "give --state a file or a postgres:// DSN"}
	}
	if err := d.prepareFile(ctx); err != nil {
		return nil, err
	}
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "trusted_schema(0)"}}
	if d.DB, err = sql.Open("sqlite", fileURI(abs, q)); err != nil {
		return nil, d.refused("", err)
	}
	// One connection: writers queue here instead of failing on each other. Readers in other processes are not held up by WAL.
	d.SetMaxOpenConns(1)
	var mode string
	if err := d.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		d.Close()
		return nil, d.refused("", err)
	}
	if mode != "wal" {
		d.Close()
		return nil, d.refused("its file system cannot hold a write-ahead log (mode "+mode+")", nil)
	}
	return d, nil
}

// fileURI spells a path so that blanks, percent signs and question marks in it reach SQLite unchanged.
func fileURI(path string, q url.Values) string {
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String()
}

// prepareFile makes a missing file, or checks an existing one without changing it.
func (d *DB) prepareFile(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
		return d.refused("making its folder", err)
	}
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		f, err := os.OpenFile(d.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return d.refused("making the file", bare(err))
		}
		return f.Close()
	}
	if err != nil {
		return d.refused("", bare(err))
	}
	if !info.Mode().IsRegular() {
		return &OpenError{Where: d.where, What: "it is not a regular file", hint: "give --state the path of a file, not of a folder"}
	}
	if err := d.checkHeader(); err != nil {
		return err
	}
	if info.Size() > 0 {
		if err := d.checkContent(ctx); err != nil {
			return err
		}
	}
	if info.Mode().Perm()&0o077 != 0 {
		// Plans and host names are nobody else's business. Not ours to change: then it was somebody's decision.
		_ = os.Chmod(d.path, 0o600)
	}
	return nil
}

// checkHeader needs 16 bytes to tell a foreign file, and write permission to tell a store that could only be read.
func (d *DB) checkHeader() error {
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		e := &OpenError{Where: d.where, Err: bare(err), hint: "check owner and mode of the file"}
		return e
	}
	defer f.Close()
	head := make([]byte, 16)
	n, _ := f.Read(head)
	if n > 0 && !bytes.Equal(head[:n], []byte("SQLite format 3\x00")[:n]) || n > 0 && n < 16 {
		return &OpenError{Where: d.where, What: "the file is no SQLite database",
			hint: "it was left as it is; point --state at another file"}
	}
	return nil
}

// checkContent asks SQLite itself. Opening without the WAL setting changes nothing in a sound or a damaged file.
func (d *DB) checkContent(ctx context.Context) error {
	db, err := sql.Open("sqlite", fileURI(d.path, url.Values{"_pragma": {"busy_timeout(10000)"}}))
	if err != nil {
		return d.refused("", err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var answer string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&answer); err != nil {
		return d.refused("", err)
	}
	if answer != "ok" {
		return &OpenError{Where: d.where, What: "the file is damaged: " + answer,
			hint: "it was left as it is; put a copy back in its place, or point --state at another file"}
	}
	return nil
}

func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Rebind turns the $1, $2 … of a statement into what the dialect wants. Text in quotes is left alone.
func (d *DB) Rebind(query string) string {
	if d.Dialect == Postgres || !strings.Contains(query, "$") {
		return query
	}
	out := []byte(query)
	var quote byte
	for i, c := range out {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '$' && i+1 < len(out) && out[i+1] >= '0' && out[i+1] <= '9':
			out[i] = '?'
		}
	}
	return string(out)
}

// Tx is a transaction whose statements use $1, $2 … on both dialects.
type Tx struct {
	tx *sql.Tx
	db *DB
}

// Exec runs a statement and says how many rows it touched.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := t.tx.ExecContext(ctx, t.db.Rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// QueryRow asks for one row.
func (t *Tx) QueryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, t.db.Rebind(query), args...)
}

// Query asks for rows; they must be closed before the next statement.
func (t *Tx) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, t.db.Rebind(query), args...)
}

// ForUpdate is the clause that locks the rows of a SELECT: SQLite's write transaction has locked everything already.
func (t *Tx) ForUpdate() string {
	if t.db.Dialect == Postgres {
		return " FOR UPDATE"
	}
	return ""
}

// Write runs fn in one durable write transaction: SQLite takes its write lock at the start (BEGIN IMMEDIATE), Postgres is
// told to wait for the disk whatever the server's default is. When fn fails nothing of it remains. When Write itself fails
// on the way out, whether the transaction took place is not known to the caller.
func (d *DB) Write(ctx context.Context, fn func(tx *Tx) error) error {
	return d.inTx(ctx, nil, fn)
}

// Read runs fn over one consistent state of the store.
func (d *DB) Read(ctx context.Context, fn func(tx *Tx) error) error {
	return d.inTx(ctx, &sql.TxOptions{Isolation: d.snapshot(), ReadOnly: d.Dialect == Postgres}, fn)
}

func (d *DB) snapshot() sql.IsolationLevel {
	if d.Dialect == Postgres {
		return sql.LevelRepeatableRead
	}
	return sql.LevelDefault
}

func (d *DB) inTx(ctx context.Context, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	tx, err := d.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("starting a transaction: %w", err)
	}
	defer tx.Rollback()
	if d.Dialect == Postgres && opts == nil {
		if _, err := tx.ExecContext(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
			return fmt.Errorf("asking for a durable transaction: %w", err)
		}
	}
	if err := fn(&Tx{tx: tx, db: d}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	return nil
}

// StoreID is the random name of this store, made at the first call and the same ever after. Fence records on hosts carry it,
// so that two operators with different stores notice each other.
func (d *DB) StoreID(ctx context.Context) (string, error) {
	if err := d.Migrate(ctx, storeSchema, "qnetops_store_schema"); err != nil {
		return "", err
	}
	id := make([]byte, 8)
	rand.Read(id)
	var got string
	err := d.Write(ctx, func(tx *Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO qnetops_store (one, id) VALUES (1, $1) ON CONFLICT (one) DO NOTHING`, hex.EncodeToString(id)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT id FROM qnetops_store WHERE one = 1`).Scan(&got)
	})
	if err != nil {
		return "", fmt.Errorf("reading the id of the state store: %w", err)
	}
	return got, nil
}
