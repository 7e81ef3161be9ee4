package lease

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/internal/sqldb"
)

// lockName is the file of one scope in one store: readable, and unique whatever characters a fleet's name has.
func lockName(scope, store string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + store))
	return "lease-" + Readable(scope) + "-" + hex.EncodeToString(sum[:6]) + ".lock"
}

// Readable turns a name into one that is safe in a file's name; it is not unique.
func Readable(name string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
	return safe[:min(len(safe), 40)]
}

// FileLock is a flock. The kernel drops it when the last process that has inherited it is gone, however that ends. The file
// itself stays: removing it would let two processes lock two files of one name.
type FileLock struct {
	mu   sync.Mutex
	f    *os.File
	path string
}

// remote file systems: their locks may be kept by one machine, or by none.
var remote = map[int64]string{0x6969: "nfs", 0xff534d42: "cifs", 0xfe534d42: "smb", 0x517b: "smb", 0x65735546: "fuse", 0x01021997: "9p", 0x564c: "ncp", 0x5346414f: "afs"}

// checkFolder refuses a folder on which a lock is not known to hold.
func checkFolder(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	return checkMagic(dir, int64(uint32(st.Type)))
}

func checkMagic(dir string, magic int64) error {
	name, ok := remote[magic]
	if !ok {
		return nil
	}
	return &RefusedError{Code: CodeUsage, What: fmt.Sprintf("the lock file would be in %s, which is on a file system of type %s whose locks may not hold", dir, name),
		Advice: "use a local folder for --state, or a Postgres store; --i-know if you are certain of its locks"}
}

// TryFileLock takes the lock, or says who holds it (the lock is nil then).
func TryFileLock(path string, me Holder, iKnow bool) (lock *FileLock, other Holder, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, Holder{}, err
	}
	if !iKnow {
		if err := checkFolder(filepath.Dir(path)); err != nil {
			return nil, Holder{}, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, Holder{}, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer f.Close()
		data, _ := io.ReadAll(io.LimitReader(f, 4096))
		_ = json.Unmarshal(data, &other) // who it is helps; that it is held is certain without
		return nil, other, nil
	case err != nil:
		f.Close()
		return nil, Holder{}, fmt.Errorf("locking %s: %w", path, err)
	}
	l := &FileLock{f: f, path: path}
	if !l.Still() { // somebody removed the file between open and lock
		f.Close()
		return nil, Holder{}, nil
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
		return nil, Holder{}, fmt.Errorf("writing %s: %w", path, err)
	}
	return l, Holder{}, nil
}

// Still reports whether the locked file is the one that a newcomer would find.
func (l *FileLock) Still() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
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

// File is the locked file, to be inherited by processes that the lock must outlive us for.
func (l *FileLock) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f
}

// Path is its name.
func (l *FileLock) Path() string { return l.path }

// Close drops this process's part of the lock.
func (l *FileLock) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return
	}
	_ = l.f.Close()
	l.f = nil
}

const (
	lockPoll   = 50 * time.Millisecond // how soon a waiting process notices that the lock is free
	dyingWait  = time.Second           // how long what a dead holder has started may take to go
	watchEvery = time.Second           // how often a holder looks whether it still holds
)

// localKeeper keeps a lease on one machine: the kernel's lock is the truth, the store only counts and remembers.
type localKeeper struct {
	h       *Held
	db      *sqldb.DB
	lock    *FileLock
	token   string
	stop    chan struct{}
	stopOne sync.Once
}

func holdLocal(ctx context.Context, o settled) (*Held, error) {
	store, err := o.DB.StoreID(ctx)
	if err == nil {
		err = prepare(ctx, o.DB)
	}
	if err != nil {
		return nil, o.named(err)
	}
	dir := o.Dir
	if dir == "" {
		dir = filepath.Dir(o.DB.Path())
	}
	o.holder.Mode = Local
	lock, err := waitLock(ctx, o, filepath.Join(dir, lockName(o.id.Scope, store)))
	if err != nil {
		return nil, o.named(err)
	}
	k := &localKeeper{db: o.DB, lock: lock, token: newSession(false).token, stop: make(chan struct{})}
	generation, err := k.count(ctx, o)
	if err != nil {
		lock.Close()
		return nil, o.named(err)
	}
	h := newHeld(ctx, o, Local, ByLock, Token{Fleet: o.id.Scope, Store: store, Owner: o.Owner, Epoch: generation})
	o.emit(Event{At: o.clock.Now(), State: Proving, Generation: generation, How: ByLock})
	h.keep, k.h = k, h
	h.enter(Holding)
	go k.watch()
	return h, nil
}

// waitLock takes the file lock, trying again until o.Wait is over.
func waitLock(ctx context.Context, o settled, path string) (*FileLock, error) {
	limit := o.clock.Now() + o.Wait
	again := time.NewTicker(lockPoll)
	defer again.Stop()
	for {
		lock, other, err := TryFileLock(path, o.holder, o.IKnow)
		if err != nil || lock != nil {
			return lock, err
		}
		// What a dead holder has started still has the lock and is about to go.
		dying := other.PID > 0 && !other.Live() && o.clock.Now() < limit+dyingWait
		if o.Wait >= 0 && o.clock.Now() >= limit && !dying {
			h := other.held(o.id.Scope)
			h.Twin, h.Operation = true, operationOf(ctx, o.DB, o.id.Scope)
			return nil, h
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the lock: %w", ctx.Err())
		case <-again.C:
		}
	}
}

// operationOf is what the row says the holder is doing, "" where it does not say.
func operationOf(ctx context.Context, db *sqldb.DB, scope string) string {
	var text string
	var h Holder
	if err := db.QueryRowContext(ctx, db.Rebind(`SELECT holder FROM qnetops_lease WHERE scope = $1`), scope).Scan(&text); err != nil {
		return ""
	}
	_ = json.Unmarshal([]byte(text), &h)
	return h.Operation
}

func stampText() string { return time.Now().UTC().Format(time.RFC3339Nano) }

// note writes a line of the lease's history.
func note(ctx context.Context, tx *sqldb.Tx, id Identity, generation uint64, event, token string, detail any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO qnetops_lease_log (at, scope, generation, event, session_token, writer_id, writer_epoch, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, stampText(), id.Scope, int64(generation), event, token, id.Writer, id.Epoch, string(text))
	return err
}

// count moves the generation on by one and returns it.
func (k *localKeeper) count(ctx context.Context, o settled) (uint64, error) {
	text, err := json.Marshal(o.holder)
	if err != nil {
		return 0, err
	}
	var generation int64
	err = k.db.Write(ctx, func(tx *sqldb.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO qnetops_lease (scope, writer_id, writer_epoch, session_token, generation, released, updated_at)
			VALUES ($1, $2, $3, '', 0, 1, $4) ON CONFLICT (scope) DO NOTHING`, o.id.Scope, o.id.Writer, o.id.Epoch, stampText()); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `UPDATE qnetops_lease SET generation = generation + 1, writer_id = $2, writer_epoch = $3, session_token = $4,
			released = 0, updated_at = $5, holder = $6 WHERE scope = $1 RETURNING generation`,
			o.id.Scope, o.id.Writer, o.id.Epoch, k.token, stampText(), string(text)).Scan(&generation)
		if err != nil {
			return err
		}
		return note(ctx, tx, o.id, uint64(generation), "acquired", k.token, o.holder)
	})
	return uint64(generation), err
}

func (k *localKeeper) fence(ctx context.Context) error {
	if !k.lock.Still() {
		return k.h.lose(CodeGuardLost, "the lock file was replaced")
	}
	var generation int64
	var token string
	err := k.db.QueryRowContext(ctx, k.db.Rebind(`SELECT generation, session_token FROM qnetops_lease WHERE scope = $1`), k.h.id.Scope).Scan(&generation, &token)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return k.h.lose(CodeGuardLost, "the store no longer knows the lease")
	case err != nil:
		return fmt.Errorf("asking the store: %w", err)
	case token != k.token:
		return k.h.lose(CodeGuardLost, fmt.Sprintf("the store is at epoch %d under another session", generation))
	}
	return nil
}

func (k *localKeeper) raise(ctx context.Context, from, to uint64, operation string) error {
	if !k.lock.Still() {
		return k.h.lose(CodeGuardLost, "the lock file was replaced")
	}
	var rows int64
	err := k.db.Write(ctx, func(tx *sqldb.Tx) (err error) {
		rows, err = tx.Exec(ctx, `UPDATE qnetops_lease SET generation = $4, updated_at = $5, holder = json_set(holder, '$.operation', $6)
			WHERE scope = $1 AND session_token = $2 AND generation = $3 AND released = 0`, k.h.id.Scope, k.token, int64(from), int64(to), stampText(), operation)
		if err != nil || rows != 1 {
			return err
		}
		return note(ctx, tx, k.h.id, to, "raised", k.token, map[string]string{"operation": operation})
	})
	if err == nil && rows != 1 {
		return k.h.lose(CodeGuardLost, "the store is at another epoch")
	}
	return err
}

// watch ends the context soon after a loss that nobody asked about.
func (k *localKeeper) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(context.Background(), storeWait)
			_ = k.fence(ctx) // "cannot tell" is for the next fence; a loss has ended the lease
			cancel()
		}
	}
}

func (k *localKeeper) lost() { k.stopOne.Do(func() { close(k.stop) }) }

func (k *localKeeper) drop() {
	k.lost()
	k.lock.Close()
}

func (k *localKeeper) release(ctx context.Context, why string) error {
	err := k.db.Write(ctx, func(tx *sqldb.Tx) error {
		rows, err := tx.Exec(ctx, `UPDATE qnetops_lease SET released = 1, updated_at = $3, holder = '{}' WHERE scope = $1 AND session_token = $2`,
			k.h.id.Scope, k.token, stampText())
		if err != nil || rows != 1 {
			return err
		}
		return note(ctx, tx, k.h.id, k.h.Token().Epoch, "released", k.token, map[string]string{"why": why})
	})
	k.drop() // whatever the store said: the right must not outlive the wish to give it back
	return err
}
