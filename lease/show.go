package lease

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qnetops/qnetops/internal/sqldb"
)

// Info is one lease as the store shows it.
type Info struct {
	Scope       string
	Writer      string
	WriterEpoch int64
	Generation  uint64
	Released    bool
	Expired     bool          // by the database's clock
	LastBeat    time.Time     // by the database's clock; on SQLite when the lease was last taken, raised or released
	Age         time.Duration // since LastBeat, by the same clock
	Holder      Holder
	Guards      []Guard // sessions that have the lock; Postgres only
	Locked      bool    // a live session, or on SQLite a live process, has the lock

	token    string
	renewals int64
}

// Live reports whether somebody has the lease as far as the store can tell.
func (i Info) Live() bool { return !i.Released && (i.Locked || !i.Expired) }

// ErrNone is the answer about a scope that nobody has ever held.
var ErrNone = errors.New("nobody has ever held a lease of that name in this store")

// List shows all leases of a store, by name.
func List(ctx context.Context, db *sqldb.DB) ([]Info, error) {
	if err := prepare(ctx, db); err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT scope FROM qnetops_lease ORDER BY scope`)
	if err != nil {
		return nil, fmt.Errorf("listing the leases: %w", err)
	}
	defer rows.Close()
	var scopes []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		scopes = append(scopes, s)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	var out []Info
	for _, s := range scopes {
		i, err := Show(ctx, db, s)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

// Show looks at one lease; ErrNone where there is none.
func Show(ctx context.Context, db *sqldb.DB, scope string) (Info, error) {
	if err := prepare(ctx, db); err != nil {
		return Info{}, err
	}
	show := showPostgres
	if db.Dialect == sqldb.SQLite {
		show = showLocal
	}
	i, err := show(ctx, db, scope)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNone
	}
	if err != nil {
		return Info{}, fmt.Errorf("lease %s: %w", scope, err)
	}
	return i, nil
}

func showPostgres(ctx context.Context, db *sqldb.DB, scope string) (Info, error) {
	i := Info{Scope: scope}
	var generation int64
	var age float64
	var holder string
	err := db.QueryRowContext(ctx, `SELECT writer_id, writer_epoch, session_token, generation, renewals, released, lease_expires_at <= clock_timestamp(),
		updated_at, extract(epoch FROM clock_timestamp() - updated_at)::float8, holder::text FROM qnetops_lease WHERE scope = $1`, scope).
		Scan(&i.Writer, &i.WriterEpoch, &i.token, &generation, &i.renewals, &i.Released, &i.Expired, &i.LastBeat, &age, &holder)
	if err != nil {
		return i, err
	}
	i.Generation, i.Age = uint64(generation), time.Duration(age*float64(time.Second))
	_ = json.Unmarshal([]byte(holder), &i.Holder)
	rows, err := db.QueryContext(ctx, sqlGuards, Identity{Scope: scope, Writer: i.Writer, Epoch: i.WriterEpoch}.key())
	if err != nil {
		return i, err
	}
	defer rows.Close()
	for rows.Next() {
		var g Guard
		if err := rows.Scan(&g.PID, &g.Name, &g.Address); err != nil {
			return i, err
		}
		i.Guards = append(i.Guards, g)
	}
	i.Locked = len(i.Guards) > 0
	return i, rows.Err()
}

func showLocal(ctx context.Context, db *sqldb.DB, scope string) (Info, error) {
	i := Info{Scope: scope, Expired: true}
	var generation int64
	var updated, holder string
	err := db.QueryRowContext(ctx, db.Rebind(`SELECT writer_id, writer_epoch, session_token, generation, released, updated_at, holder FROM qnetops_lease WHERE scope = $1`), scope).
		Scan(&i.Writer, &i.WriterEpoch, &i.token, &generation, &i.Released, &updated, &holder)
	if err != nil {
		return i, err
	}
	i.Generation = uint64(generation)
	i.LastBeat, _ = time.Parse(time.RFC3339Nano, updated)
	i.Age = time.Since(i.LastBeat)
	_ = json.Unmarshal([]byte(holder), &i.Holder)
	// The lock is in the store's folder unless the holder was told otherwise. Only whether its process lives is looked at here:
	// trying the lock could make a newcomer fail.
	i.Locked = !i.Released && i.Holder.Live()
	return i, nil
}

// Live reports whether the very process lives on this machine.
func (h Holder) Live() bool {
	return h.PID > 0 && h.Started > 0 && h.BootID == bootID() && startTime(h.PID) == h.Started
}

// Entry is one line of a lease's history.
type Entry struct {
	At         time.Time
	Generation uint64
	Event      string // acquired, raised, released, revoked
	Writer     string
	Detail     json.RawMessage
}

// History returns the newest n entries of a lease, newest first.
func History(ctx context.Context, db *sqldb.DB, scope string, n int) ([]Entry, error) {
	if err := prepare(ctx, db); err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, db.Rebind(`SELECT at, generation, event, writer_id, detail FROM qnetops_lease_log WHERE scope = $1 ORDER BY id DESC LIMIT $2`), scope, n)
	if err != nil {
		return nil, fmt.Errorf("reading the history of lease %s: %w", scope, err)
	}
	defer rows.Close()
	var out []Entry
	for rows.Next() {
		var e Entry
		var at any
		var generation int64
		var detail []byte
		if err := rows.Scan(&at, &generation, &e.Event, &e.Writer, &detail); err != nil {
			return nil, err
		}
		switch at := at.(type) {
		case time.Time:
			e.At = at.UTC()
		case string:
			e.At, _ = time.Parse(time.RFC3339Nano, at)
		}
		e.Generation, e.Detail = uint64(generation), detail
		out = append(out, e)
	}
	return out, rows.Err()
}

// Break takes a lease away from its holder: the row gets a token that nobody has, and the next number. A live holder is LOST
// with its next proof, within a beat on Postgres and within a second on SQLite; after a pause it changes nothing. A successor on
// Postgres begins a whole silence later, and ends the session of a holder that is paused and keeps its lock. Only the
// lease that was shown is broken: where the owner has changed since, the error is ErrChanged.
func Break(ctx context.Context, db *sqldb.DB, i Info, reason, by string) error {
	if reason == "" {
		return errors.New("breaking a lease needs a reason")
	}
	b := make([]byte, 8)
	rand.Read(b)
	token := revoked + hex.EncodeToString(b)
	if i.Generation >= math.MaxInt64 {
		return fmt.Errorf("breaking lease %s: no larger number is left", i.Scope)
	}
	return db.Write(ctx, func(tx *sqldb.Tx) error {
		if db.Dialect == sqldb.Postgres {
			var generation int64
			err := tx.QueryRow(ctx, sqlRevoke, i.Scope, i.token, int64(i.Generation), i.renewals, token, reason, by).Scan(&generation)
			if errors.Is(err, sql.ErrNoRows) {
				return fmt.Errorf("breaking lease %s: %w", i.Scope, ErrChanged)
			}
			return err
		}
		rows, err := tx.Exec(ctx, `UPDATE qnetops_lease SET generation = generation + 1, session_token = $4, released = 1, updated_at = $5
			WHERE scope = $1 AND session_token = $2 AND generation = $3`, i.Scope, i.token, int64(i.Generation), token, stampText())
		if err == nil && rows != 1 {
			err = ErrChanged
		}
		if err != nil {
			return fmt.Errorf("breaking lease %s: %w", i.Scope, err)
		}
		id := Identity{Scope: i.Scope, Writer: i.Writer, Epoch: i.WriterEpoch}
		return note(ctx, tx, id, i.Generation+1, "revoked", i.token, map[string]any{"reason": reason, "by": by, "revoked_generation": i.Generation,
			"owner": i.Holder.Owner, "host": i.Holder.Host, "pid": i.Holder.PID})
	})
}

// ErrChanged is a lease that is not any more what was shown.
var ErrChanged = errors.New("its owner has changed since it was shown; look again")

// KillHolder ends the recorded process of a holder on this machine: a paused process keeps its file lock for ever. The start
// time makes sure that it is that very process.
func KillHolder(i Info) error {
	h := i.Holder
	if !h.Live() {
		return fmt.Errorf("process %d on %s is not running here, or is another one by now", h.PID, h.Host)
	}
	fd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return fmt.Errorf("reaching process %d: %w", h.PID, err)
	}
	defer unix.Close(fd)
	if !h.Live() { // the handle is of whoever had the number when it was opened
		return fmt.Errorf("process %d is another one by now", h.PID)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("ending process %d: %w", h.PID, err)
	}
	return nil
}
