package lease

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/internal/sqldb"
)

// lockName is the file of one scope in one store: readable, and unique whatever characters a fleet's name has.
func lockName(scope, store string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + store))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, scope)
	return "lease-" + readable[:min(len(readable), 40)] + "-" + hex.EncodeToString(sum[:6]) + ".lock"
}

// lockFile is a flock. The kernel drops it with the process, however that ends. The file itself stays: removing it would let
// two processes lock two files of one name.
type lockFile struct {
	f    *os.File
	path string
}

// tryLockFile takes the lock, or says who holds it (file is nil then).
func tryLockFile(path string, me holder) (file *lockFile, other holder, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, holder{}, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, holder{}, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer f.Close()
		data, _ := io.ReadAll(io.LimitReader(f, 4096))
		_ = json.Unmarshal(data, &other) // who it is helps; that it is held is certain without
		return nil, other, nil
	case err != nil:
		f.Close()
		return nil, holder{}, fmt.Errorf("locking %s: %w", path, err)
	}
	l := &lockFile{f: f, path: path}
	if !l.still() { // somebody removed the file between open and lock
		f.Close()
		return nil, holder{}, fmt.Errorf("locking %s: the file was replaced meanwhile", path)
	}
	text, err := json.Marshal(me)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(text, '\n'), 0)
	}
	if err != nil {
		f.Close()
		return nil, holder{}, fmt.Errorf("writing %s: %w", path, err)
	}
	return l, holder{}, nil
}

// still reports whether the locked file is the one that a newcomer would find.
func (l *lockFile) still() bool {
	if l.f == nil {
		return false
	}
	mine, err := l.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(l.path)
	return err == nil && os.SameFile(mine, there)
}

func (l *lockFile) released() bool { return l.f == nil }

func (l *lockFile) unlock() {
	if l.f == nil {
		return
	}
	_ = l.f.Truncate(0)
	_ = l.f.Close() // closing drops the lock
	l.f = nil
}

// guard is one Postgres session that holds an advisory lock. The server drops it with the session.
type guard struct {
	conn *sql.Conn
	key  int64
}

// tryGuard takes the session lock of a scope; nil without an error means that another session has it.
func tryGuard(ctx context.Context, db *sqldb.DB, scope string) (*guard, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte("qnetops-lease\x00" + scope))
	g := &guard{conn: conn, key: int64(binary.BigEndian.Uint64(sum[:8]))}
	var got bool
	if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, g.key).Scan(&got); err != nil {
		conn.Close()
		return nil, err
	}
	if !got {
		return nil, conn.Close()
	}
	return g, nil
}

// guardWait bounds one question to the guard session. The driver closes a session whose question was cut short, so the
// caller's own deadline must not reach it.
const guardWait = 5 * time.Second

// still proves that this very session holds the lock. A session that answers no more has lost it.
func (g *guard) still(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("asking the store for the lease: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardWait)
	defer cancel()
	var mine bool
	err := g.conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND pid = pg_backend_pid() AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint) = $1)`, g.key).Scan(&mine)
	if err != nil || !mine {
		return fmt.Errorf("the session that held the lock is gone: %w", ErrLost)
	}
	return nil
}

// release ends the session rather than returning it to the pool: a pooled session would keep the lock.
func (g *guard) release() {
	_ = g.conn.Raw(func(any) error { return errDiscard })
	_ = g.conn.Close()
}

// errDiscard makes database/sql close a connection instead of keeping it.
var errDiscard = driver.ErrBadConn
