package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// row is the lease as one look shows it.
type row struct {
	Identity
	Token      string
	Generation uint64
	Renewals   int64
	Released   bool
	Expired    bool          // by the database's clock
	Left       time.Duration // by the database's clock
	Updated    time.Time     // for people
	Holder     Holder
}

// same reports whether nobody has touched the lease between two looks.
func (r row) same(o row) bool {
	return r.Token == o.Token && r.Generation == o.Generation && r.Renewals == o.Renewals
}

// proof is the answer to one question of a holder.
type proof struct {
	PID      uint32
	Guard    bool // this session has the lock
	Renewed  bool
	Mine     bool
	Expired  bool
	InMargin bool // so little of the TTL is left that no effect may begin
	OwnLock  bool // a write of our own keeps the row
}

// store is one session with the database that keeps the lease. Its calls never overlap.
type store interface {
	pooled() bool // no session lock can be held
	lock(ctx context.Context) (bool, error)
	observe(ctx context.Context) (row, bool, error)
	// claim takes the lease from what was observed (nil: no row); ok is false where it had changed.
	claim(ctx context.Context, from *row, how How) (generation uint64, ok bool, err error)
	prove(ctx context.Context, generation uint64) (proof, error)
	raise(ctx context.Context, from, to uint64, operation string) (bool, error)
	// evict ends the sessions that have the lock; it says how many it could end.
	evict(ctx context.Context) (int, error)
	// sever closes the socket at once.
	sever()
}

// claimant is what a store writes into the row.
type claimant struct {
	id     Identity
	sess   session
	holder Holder
	policy Policy
}

// pgStore is a session of its own, never pooled and never replaced.
type pgStore struct {
	claimant
	conn *pgx.Conn
	pool bool
}

// Startup parameters of a guard. Any role may set them. The server ends the session of a machine that fell silent after
// 1 + 3x1 s, notices a client that went away in the middle of a statement, and a statement that hangs ends by itself.
func guardParams(p Policy) map[string]string {
	return map[string]string{
		"statement_timeout":                   fmt.Sprint(p.Query.Milliseconds()),
		"idle_session_timeout":                "0",
		"idle_in_transaction_session_timeout": "0",
		"tcp_keepalives_idle":                 "1",
		"tcp_keepalives_interval":             "1",
		"tcp_keepalives_count":                fmt.Sprint(max(1, int(p.Dead/time.Second)-1)),
		"tcp_user_timeout":                    fmt.Sprint(p.Dead.Milliseconds()),
		"client_connection_check_interval":    "250",
		// Renewals need not survive a crash of the server. Whatever changes the owner asks for the disk itself.
		"synchronous_commit": "off",
	}
}

const connectWait = 5 * time.Second

// dial opens a session. Where a pooler is in between it says so: then no session lock can be held.
func dial(ctx context.Context, base *pgx.ConnConfig, c claimant, name string, params map[string]string) (*pgStore, error) {
	cfg := base.Copy()
	if cfg.ConnectTimeout == 0 || cfg.ConnectTimeout > connectWait {
		cfg.ConnectTimeout = connectWait
	}
	if cfg.ValidateConnect == nil {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	for k, v := range params {
		cfg.RuntimeParams[k] = v
	}
	cfg.RuntimeParams["application_name"] = name
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // one round trip, and no prepared statement that a pooler would lose
	conn, err := pgx.ConnectConfig(ctx, cfg)
	pool := false
	if state(err) == "08P01" && len(params) > 0 { // "unsupported startup parameter": only a pooler says that
		pool = true
		for k := range params {
			delete(cfg.RuntimeParams, k)
		}
		delete(cfg.RuntimeParams, "application_name")
		conn, err = pgx.ConnectConfig(ctx, cfg)
	}
	if err != nil {
		return nil, refuse(err)
	}
	s := &pgStore{claimant: c, conn: conn, pool: pool}
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		s.sever()
		return nil, fmt.Errorf("asking the session for its number: %w", err)
	}
	s.pool = pool || pid != conn.PgConn().PID() // a pooler makes up the number it gives at the start
	return s, nil
}

// refuse turns what the server says at the door into a refusal where trying again cannot help.
func refuse(err error) error {
	switch code := state(err); {
	case errors.Is(err, pgconn.ErrReadOnlyConnection), code == "25006":
		return &RefusedError{Code: CodeUsage, What: "the database is a replica or read-only", Err: errors.New("it accepts no writes"),
			Advice: "give the DSN of the primary, or several hosts with target_session_attrs=read-write"}
	case code == "42704":
		return &RefusedError{Code: CodeUsage, What: "the server does not know a setting the guard needs", Err: err, Advice: "Postgres 14 or newer is needed"}
	case code == "42501" || code == "28P01" || code == "28000" || code == "3D000":
		return &RefusedError{Code: CodeUsage, What: "the database does not let us in or lacks rights", Err: err, Advice: "the role needs to connect, create tables once, and write to qnetops_lease and qnetops_lease_log"}
	}
	return fmt.Errorf("opening the guarding session: %w", err)
}

// state is the SQLSTATE in an error, "" where there is none.
func state(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// rowBusy reports that a statement gave up waiting for a lock: somebody writes under the lease.
func rowBusy(err error) bool {
	switch state(err) {
	case "57014", "55P03", "40001", "40P01":
		return true
	}
	return false
}

func (s *pgStore) pooled() bool { return s.pool }

// sever closes the socket. The driver's own way waits for the server, for up to 15 s.
func (s *pgStore) sever() { _ = s.conn.PgConn().Conn().Close() }

func (s *pgStore) lock(ctx context.Context) (got bool, err error) {
	err = s.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1::bigint)", s.id.key()).Scan(&got)
	return got, err
}

func (s *pgStore) observe(ctx context.Context) (row, bool, error) {
	return observe(ctx, s.conn, s.id.Scope)
}

func observe(ctx context.Context, conn *pgx.Conn, scope string) (row, bool, error) {
	r := row{Identity: Identity{Scope: scope}}
	var generation int64
	var left float64
	var holder string
	err := conn.QueryRow(ctx, sqlObserve, scope).Scan(&r.Writer, &r.Epoch, &r.Token, &generation, &r.Renewals, &r.Released, &r.Expired, &left, &r.Updated, &holder)
	if errors.Is(err, pgx.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("looking at the lease %s: %w", scope, err)
	}
	r.Generation, r.Left = uint64(generation), time.Duration(left*float64(time.Second))
	_ = json.Unmarshal([]byte(holder), &r.Holder) // for people; a holder of another version may write more
	return r, true, nil
}

// durable runs one statement in a transaction that waits for the disk: in a pipeline both are one transaction.
func (s *pgStore) durable(ctx context.Context, query string, args ...any) (n int64, err error) {
	b := &pgx.Batch{}
	b.Queue("SELECT set_config('synchronous_commit', 'on', true)")
	b.Queue(query, args...)
	res := s.conn.SendBatch(ctx, b)
	_, err = res.Exec()
	if err == nil {
		err = res.QueryRow().Scan(&n)
	}
	if closing := res.Close(); err == nil {
		err = closing // the commit happens here
	}
	return n, err
}

func (s *pgStore) claim(ctx context.Context, from *row, how How) (uint64, bool, error) {
	text, err := json.Marshal(s.holder)
	if err != nil {
		return 0, false, err
	}
	args := []any{s.id.Scope, s.id.Writer, s.id.Epoch, s.sess.token, s.policy.TTL.Seconds(), string(text), string(how)}
	query := sqlInsert
	if from != nil {
		query = sqlClaim
		args = append(args, from.Token, int64(from.Generation), from.Renewals, how == ByRelease || how == ByExpiry)
	}
	generation, err := s.durable(ctx, query, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("claiming the lease %s: %w", s.id.Scope, err)
	}
	return uint64(generation), true, nil
}

func (s *pgStore) prove(ctx context.Context, generation uint64) (p proof, err error) {
	var renewed int64
	var pid int64
	err = s.conn.QueryRow(ctx, sqlProve, s.id.Scope, s.id.Writer, s.id.Epoch, s.sess.token, s.policy.TTL.Seconds(), s.id.key(),
		s.sess.writerName(), int64(generation), s.policy.Margin().Seconds()).
		Scan(&pid, &p.Guard, &renewed, &p.Mine, &p.Expired, &p.InMargin, &p.OwnLock)
	p.PID, p.Renewed = uint32(pid), renewed > 0
	if s.pool {
		p.Guard, p.OwnLock = true, false // neither exists here: the row alone decides
	} else if err == nil && p.PID != s.conn.PgConn().PID() {
		p.Guard = false
	}
	return p, err
}

func (s *pgStore) raise(ctx context.Context, from, to uint64, operation string) (bool, error) {
	n, err := s.durable(ctx, sqlRaise, s.id.Scope, s.sess.token, int64(from), s.holder.Owner, int64(to), s.policy.TTL.Seconds(), operation)
	return n == 1, err
}

func (s *pgStore) evict(ctx context.Context) (int, error) {
	guards, err := guards(ctx, s.conn, s.id.key())
	if err != nil {
		return 0, err
	}
	n := 0
	for _, g := range guards {
		var ok bool
		if err := s.conn.QueryRow(ctx, "SELECT pg_terminate_backend($1::int)", int64(g.PID)).Scan(&ok); err != nil {
			return n, fmt.Errorf("ending the session %d of the silent holder: %w", g.PID, err)
		}
		if ok {
			n++
		}
	}
	return n, nil
}

// Guard is a session that has the lock of a lease.
type Guard struct {
	PID     int64  `json:"pid"`
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
}

func guards(ctx context.Context, conn *pgx.Conn, key int64) ([]Guard, error) {
	rows, err := conn.Query(ctx, sqlGuards, key)
	if err != nil {
		return nil, fmt.Errorf("looking for the guarding session: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Guard])
}
