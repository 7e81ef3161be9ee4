package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qnetops/qnetops/internal/sqldb"
)

// settings reads how the store's own connections reach the server, so that the guard reaches the same one.
func settings(ctx context.Context, db *sqldb.DB) (*pgx.ConnConfig, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("reaching the store: %w", err)
	}
	defer conn.Close()
	var cfg *pgx.ConnConfig
	err = conn.Raw(func(driver any) error {
		pg, ok := driver.(interface{ Conn() *pgx.Conn })
		if !ok {
			return errors.New("the Postgres driver is not pgx")
		}
		cfg = pg.Conn().Config()
		return nil
	})
	return cfg, err
}

// holdPostgres takes a lease on Postgres: session lock first, then the row, then the first proof.
func holdPostgres(ctx context.Context, o settled) (*Held, error) {
	who := claimant{id: o.id, sess: newSession(o.Token == ""), holder: o.holder, policy: o.policy}
	if o.Token != "" {
		who.sess.token = o.Token
	}
	c := &candidate{o: o}
	var cfg *pgx.ConnConfig
	var storeID string
	err := c.persist(ctx, o.clock.Now()+o.Wait, func() (err error) {
		if cfg, err = settings(ctx, o.DB); err != nil {
			return err
		}
		if err = writable(ctx, cfg, who); err != nil {
			return err
		}
		if storeID, err = o.DB.StoreID(ctx); err != nil {
			return err
		}
		return prepare(ctx, o.DB)
	})
	if err != nil {
		return nil, o.named(err)
	}
	said := false
	dialGuard := func(ctx context.Context) (store, error) {
		s, err := dial(ctx, cfg, who, who.sess.guardName(), guardParams(o.policy))
		if err != nil {
			return nil, err
		}
		if !s.pool {
			s.holder.Mode = Guarded
			return s, nil
		}
		if o.RequireFast {
			s.sever()
			return nil, &RefusedError{Code: CodePooler, What: "a pooler stands before the database, so no session lock can be held, and --require-fast was given",
				Advice: "give the DSN of the server itself, or leave out --require-fast: a successor then waits for the TTL"}
		}
		if !said { // before anything is published: nobody may take this session for one that keeps a lock
			said = true
			if o.Token == "" {
				who.sess = newSession(false)
			}
			o.emit(Event{At: o.clock.Now(), State: Guarding, Text: "fast take-over is off: a pooler stands before the database; a successor waits for the TTL"})
		}
		s.sess, s.holder.Mode = who.sess, TTLOnly
		return s, nil
	}
	c.dial = dialGuard
	t, err := c.run(ctx)
	if err != nil {
		return nil, o.named(err)
	}
	return begin(ctx, o, t, storeID, cfg, who, dialGuard)
}

// writable refuses a replica, and a role without rights, before anything tries to write.
func writable(ctx context.Context, cfg *pgx.ConnConfig, who claimant) error {
	s, err := dial(ctx, cfg, who, who.sess.writerName(), nil)
	if err != nil {
		return err
	}
	defer s.sever()
	var there, create, write bool
	err = s.conn.QueryRow(ctx, `SELECT to_regclass('qnetops_lease') IS NOT NULL, COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false),
		COALESCE(has_table_privilege(to_regclass('qnetops_lease'), 'INSERT') AND has_table_privilege(to_regclass('qnetops_lease'), 'UPDATE'), false)`).
		Scan(&there, &create, &write)
	switch {
	case err != nil:
		return fmt.Errorf("asking the store for our rights: %w", err)
	case !there && !create:
		return &RefusedError{Code: CodeUsage, What: "permission denied: the role may not create tables in this database", Advice: "let a role with that right run `qnetops lease show` once, or grant CREATE on the schema"}
	case there && !write:
		return &RefusedError{Code: CodeUsage, What: "permission denied: the role may not write to qnetops_lease", Advice: "grant SELECT, INSERT and UPDATE on the qnetops_ tables, and the use of their sequences"}
	}
	return nil
}

// begin starts the beat and the monitor on what was taken, and returns with the first proof. Nothing has acted until then.
func begin(ctx context.Context, o settled, t taken, storeID string, cfg *pgx.ConnConfig, who claimant, dialGuard func(context.Context) (store, error)) (*Held, error) {
	mode := Guarded
	if t.store.pooled() {
		mode = TTLOnly
	}
	h := newHeld(ctx, o, mode, t.how, Token{Fleet: o.id.Scope, Store: storeID, Owner: o.Owner, Epoch: t.generation})
	k := newKeeper(h, t.store, t.generation)
	k.onProof = o.OnProof
	if mode == TTLOnly {
		k.redial = dialGuard
	}
	k.giveBack = func(ctx context.Context, generation uint64, why string) error {
		return giveBack(ctx, cfg, who, generation, why)
	}
	h.keep = k
	h.write = func(ctx context.Context, fn writeFunc) error { return k.fencedWrite(ctx, cfg, who, fn) }
	if err := k.prove(ctx, o); err != nil {
		return nil, o.named(err)
	}
	return h, nil
}

// prove runs the loops until the first proof has landed. A lease without one by the exit age is lost.
func (k *pgKeeper) prove(ctx context.Context, o settled) error {
	o.emit(Event{At: o.clock.Now(), State: Proving, Generation: k.generation.Load(), How: k.h.how})
	k.start()
	select {
	case <-k.first:
		return k.h.alive()
	case <-k.h.dead.Done():
		return k.h.alive()
	case <-ctx.Done():
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.h.policy.Release)
		defer cancel()
		return errors.Join(ctx.Err(), k.h.release(end, 0, "interrupted before the first proof"))
	}
}

// giveBack releases on a connection of its own: whatever hangs on the others cannot hold it up. There is one attempt.
func giveBack(ctx context.Context, cfg *pgx.ConnConfig, who claimant, generation uint64, why string) error {
	s, err := dial(ctx, cfg, who, who.sess.app+"-end", nil)
	if err != nil {
		return err
	}
	defer s.sever()
	_, err = s.durable(ctx, sqlRelease, who.id.Scope, who.sess.token, int64(generation), why)
	return err // no row: it was not ours any more, which is as good
}

type writeFunc func(context.Context, pgx.Tx) error

// Write runs fn in one durable transaction that commits only if the lease is still ours, and that a successor can overtake
// only after it has ended. It may take longer than the TTL; meanwhile fences answer ErrDeferred. Postgres only.
func (h *Held) Write(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	if h.write == nil {
		return errors.New("a fenced write needs a lease on Postgres")
	}
	w, err := h.Admit()
	if err != nil {
		return err
	}
	defer w.Done()
	if err := h.write(ctx, fn); err != nil {
		return fmt.Errorf("writing under the lease %s: %w", h.id.Scope, err)
	}
	return nil
}

// writeParams make the server end a write whose process is gone instead of committing it late.
func writeParams(p Policy) map[string]string {
	params := guardParams(p)
	delete(params, "statement_timeout")
	params["synchronous_commit"] = "on"
	return params
}

func (k *pgKeeper) fencedWrite(ctx context.Context, cfg *pgx.ConnConfig, who claimant, fn writeFunc) error {
	s, err := dial(ctx, cfg, who, who.sess.writerName(), writeParams(k.h.policy))
	if err != nil {
		return err
	}
	defer s.sever()
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	err = k.inWrite(ctx, who, tx, fn)
	if err != nil {
		// Our row is about to be free again as it was before. If that is already too old for us, we must be gone first.
		if k.h.clock.Now()-k.renewed.at() >= k.h.policy.TTL-k.h.policy.Silence {
			_ = k.h.lose(CodeGuardLost, "a write that kept the lease from being renewed failed after the TTL was nearly over")
		}
		rolling, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return errors.Join(err, tx.Rollback(rolling))
	}
	if err := tx.Commit(ctx); err != nil {
		return &UnknownError{Component: "commit", Err: err}
	}
	return nil
}

func (k *pgKeeper) inWrite(ctx context.Context, who claimant, tx pgx.Tx, fn writeFunc) error {
	own := func() error {
		tag, err := tx.Exec(ctx, sqlWriteBegin, who.id.Scope, who.id.Writer, who.id.Epoch, who.sess.token, int64(k.generation.Load()), k.h.policy.TTL.Seconds())
		if err == nil && tag.RowsAffected() != 1 {
			err = k.h.lose(CodeGuardLost, "another session has the lease")
		}
		return err
	}
	if err := own(); err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return own() // the first one's expiry is as old as the write is long
}
