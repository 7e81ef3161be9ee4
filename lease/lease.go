package lease

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/qnetops/qnetops/internal/sqldb"
)

// Token is the right to change a fleet, as hosts and the journal see it. Epoch only ever grows for one fleet.
type Token struct {
	Fleet     string // the scope of the lease: the fleet's name
	Store     string // id of the state store that counts the epochs
	Owner     string // who holds it, for people
	Operation string // the journaled operation it acts for, "" before Raise
	Epoch     uint64
}

// Lease is a held right. Its context is a child of the one given to Acquire and ends, with ErrLost as its cause, when the
// right is lost: work that runs under it stops by itself.
type Lease interface {
	Token() Token
	Context() context.Context
	// Raise sets the epoch to max(own, seen)+1, where seen is the largest epoch found on the hosts, and binds the token to
	// an operation. The new number is in the store before Raise returns.
	Raise(ctx context.Context, seen uint64, operation string) (Token, error)
	// Check proves that the right is still held. Call it before each effect outside; an error means: do not act.
	Check(ctx context.Context) error
	// Release gives the right back. Calling it again does nothing. The counter stays.
	Release(ctx context.Context) error
}

// Options say which right is wanted.
type Options struct {
	DB    *sqldb.DB
	Dir   string        // folder of the lock files; "" is the folder of the SQLite store
	Scope string        // the fleet's name
	Owner string        // shown to whoever finds the lease held, such as user@machine
	Wait  time.Duration // how long to wait for another holder; 0 is not at all
}

// The ways a lease ends.
var (
	ErrLost     = errors.New("the lease is lost: another process has taken over, or its lock is gone")
	ErrReleased = errors.New("the lease was given back")
)

// HeldError names the process that holds the lease.
type HeldError struct {
	Scope string
	Owner string
	Host  string
	PID   int
	Since time.Time
}

func (e *HeldError) Error() string {
	msg := fmt.Sprintf("the lease of fleet %s is held by %s", e.Scope, cmp.Or(e.Owner, "another process"))
	if e.PID != 0 {
		msg += fmt.Sprintf(" (process %d on %s", e.PID, cmp.Or(e.Host, "an unnamed machine"))
		if !e.Since.IsZero() {
			msg += ", since " + e.Since.UTC().Format(time.RFC3339)
		}
		msg += ")"
	}
	return msg
}

// Hint says what to do next.
func (e *HeldError) Hint() string {
	return "nothing was changed; wait for it to end, `qnetops ops` shows what it does"
}

// holder is what the lock file and the counter row say about the present owner.
type holder struct {
	Owner string    `json:"owner"`
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

func (h holder) held(scope string) *HeldError {
	return &HeldError{Scope: scope, Owner: h.Owner, Host: h.Host, PID: h.PID, Since: h.Since}
}

//go:embed migrations/*.sql
var files embed.FS

const (
	pollEvery  = 50 * time.Millisecond // how soon a waiting process notices that the lock is free
	watchEvery = time.Second           // how often a holder looks whether it still holds
	storeWait  = 10 * time.Second      // bound of the store's part in a release
)

// held is the lease of one process: a file lock on this machine, a session lock where the store is Postgres, and a counter.
type held struct {
	db     *sqldb.DB
	file   *lockFile
	guard  *guard // nil on SQLite
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the watcher has ended

	mu    sync.Mutex
	token Token
}

// Acquire takes the lease of a scope, waiting at most opts.Wait. *HeldError names the holder it could not get past.
func Acquire(ctx context.Context, opts Options) (Lease, error) {
	if opts.Scope == "" || opts.DB == nil {
		return nil, errors.New("taking a lease: scope and store are required")
	}
	store, err := opts.DB.StoreID(ctx)
	if err != nil {
		return nil, fmt.Errorf("taking the lease of fleet %s: %w", opts.Scope, err)
	}
	schema, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	if err := opts.DB.Migrate(ctx, schema, "qnetops_lease_schema"); err != nil {
		return nil, fmt.Errorf("taking the lease of fleet %s: %w", opts.Scope, err)
	}
	host, _ := os.Hostname()
	me := holder{Owner: opts.Owner, Host: host, PID: os.Getpid(), Since: time.Now().UTC()}
	l := &held{db: opts.DB, done: make(chan struct{}), token: Token{Fleet: opts.Scope, Store: store, Owner: opts.Owner}}
	if err := l.lock(ctx, opts, me); err != nil {
		return nil, err
	}
	if l.token.Epoch, err = l.count(ctx, me); err != nil {
		l.unlock()
		return nil, fmt.Errorf("taking the lease of fleet %s: %w", opts.Scope, err)
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	go l.watch()
	return l, nil
}

// lock takes the locks, trying again until opts.Wait is over.
func (l *held) lock(ctx context.Context, opts Options, me holder) error {
	dir := opts.Dir
	if dir == "" && opts.DB.Path() != "" {
		dir = filepath.Dir(opts.DB.Path())
	}
	if dir == "" {
		return errors.New("taking a lease: no folder for its lock file is given")
	}
	path := filepath.Join(dir, lockName(opts.Scope, l.token.Store))
	limit := time.NewTimer(opts.Wait)
	defer limit.Stop()
	again := time.NewTicker(pollEvery)
	defer again.Stop()
	for {
		err := l.tryLock(ctx, path, me)
		var taken *HeldError
		if err == nil || !errors.As(err, &taken) || opts.Wait <= 0 {
			return err
		}
		select {
		case <-limit.C:
			return err
		case <-ctx.Done():
			return fmt.Errorf("waiting for the lease of fleet %s: %w", opts.Scope, ctx.Err())
		case <-again.C:
		}
	}
}

func (l *held) tryLock(ctx context.Context, path string, me holder) error {
	file, other, err := tryLockFile(path, me)
	if err != nil {
		return fmt.Errorf("taking the lease of fleet %s: %w", l.token.Fleet, err)
	}
	if file == nil {
		return other.held(l.token.Fleet)
	}
	if l.db.Dialect == sqldb.Postgres {
		// The file lock ends at this machine; the session lock also stops an operator on another one.
		guard, err := tryGuard(ctx, l.db, l.token.Fleet)
		if err != nil {
			file.unlock()
			return fmt.Errorf("taking the lease of fleet %s: %w", l.token.Fleet, err)
		}
		if guard == nil {
			file.unlock()
			return l.recorded(ctx).held(l.token.Fleet)
		}
		l.guard = guard
	}
	l.file = file
	return nil
}

func (l *held) unlock() {
	if l.guard != nil {
		l.guard.release()
	}
	l.file.unlock()
}

// recorded is what the counter row says about the holder; empty where it says nothing.
func (l *held) recorded(ctx context.Context) (h holder) {
	var text string
	err := l.db.QueryRowContext(ctx, l.db.Rebind(`SELECT holder FROM qnetops_lease_counter WHERE scope = $1`), l.token.Fleet).Scan(&text)
	if err == nil {
		_ = json.Unmarshal([]byte(text), &h)
	}
	return h
}

// count moves the counter on by one and returns it.
func (l *held) count(ctx context.Context, me holder) (uint64, error) {
	text, err := json.Marshal(me)
	if err != nil {
		return 0, err
	}
	var generation int64
	err = l.db.Write(ctx, func(tx *sqldb.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO qnetops_lease_counter (scope, generation) VALUES ($1, 0) ON CONFLICT (scope) DO NOTHING`, l.token.Fleet); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `UPDATE qnetops_lease_counter SET generation = generation + 1, holder = $2 WHERE scope = $1 RETURNING generation`,
			l.token.Fleet, string(text)).Scan(&generation)
	})
	return uint64(generation), err
}

func (l *held) Token() Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

func (l *held) Context() context.Context { return l.ctx }

func (l *held) Raise(ctx context.Context, seen uint64, operation string) (Token, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.alive(); err != nil {
		return Token{}, err
	}
	next := max(l.token.Epoch, seen)
	if next >= math.MaxInt64 {
		return Token{}, fmt.Errorf("raising the epoch of fleet %s: a host shows %d, which leaves no larger number", l.token.Fleet, seen)
	}
	next++
	var rows int64
	err := l.db.Write(ctx, func(tx *sqldb.Tx) (err error) {
		rows, err = tx.Exec(ctx, `UPDATE qnetops_lease_counter SET generation = $3 WHERE scope = $1 AND generation = $2`,
			l.token.Fleet, int64(l.token.Epoch), int64(next))
		return err
	})
	if err != nil {
		return Token{}, fmt.Errorf("raising the epoch of fleet %s: %w", l.token.Fleet, err)
	}
	if rows != 1 {
		l.cancel(ErrLost)
		return Token{}, fmt.Errorf("raising the epoch of fleet %s: %w", l.token.Fleet, ErrLost)
	}
	l.token.Epoch, l.token.Operation = next, operation
	return l.token, nil
}

// alive reports why the lease has ended, nil while it has not.
func (l *held) alive() error {
	switch err := context.Cause(l.ctx); {
	case errors.Is(err, ErrLost), errors.Is(err, ErrReleased):
		return fmt.Errorf("fleet %s: %w", l.token.Fleet, err)
	}
	return nil
}

func (l *held) Check(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.alive(); err != nil {
		return err
	}
	err := l.prove(ctx)
	if errors.Is(err, ErrLost) {
		l.cancel(ErrLost)
	}
	return err
}

// prove looks at the lock, the session and the counter. ErrLost is certain loss; any other error is "cannot tell".
func (l *held) prove(ctx context.Context) error {
	if !l.file.still() {
		return fmt.Errorf("fleet %s: its lock file was replaced: %w", l.token.Fleet, ErrLost)
	}
	if l.guard != nil {
		if err := l.guard.still(ctx); err != nil {
			return fmt.Errorf("fleet %s: %w", l.token.Fleet, err)
		}
	}
	var generation int64
	err := l.db.QueryRowContext(ctx, l.db.Rebind(`SELECT generation FROM qnetops_lease_counter WHERE scope = $1`), l.token.Fleet).Scan(&generation)
	if err != nil {
		return fmt.Errorf("checking the lease of fleet %s: %w", l.token.Fleet, err)
	}
	if uint64(generation) != l.token.Epoch {
		return fmt.Errorf("fleet %s: the store is at epoch %d, ours is %d: %w", l.token.Fleet, generation, l.token.Epoch, ErrLost)
	}
	return nil
}

// watch ends the context soon after a loss that nobody asked about.
func (l *held) watch() {
	defer close(l.done)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(l.ctx, storeWait)
			_ = l.Check(ctx) // "cannot tell" is for the next Check before an effect; only loss ends the context
			cancel()
		}
	}
}

func (l *held) Release(ctx context.Context) error {
	l.cancel(ErrReleased)
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file.released() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
	defer cancel()
	err := l.db.Write(ctx, func(tx *sqldb.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE qnetops_lease_counter SET holder = '{}' WHERE scope = $1 AND generation = $2`, l.token.Fleet, int64(l.token.Epoch))
		return err
	})
	l.unlock() // whatever the store said: the right must not outlive the wish to give it back
	if err != nil {
		return fmt.Errorf("giving back the lease of fleet %s: %w", l.token.Fleet, err)
	}
	return nil
}
