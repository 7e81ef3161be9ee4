package journal

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/qnetops/qnetops/internal/sqldb"
)

//go:embed migrations
var files embed.FS

// Store is a journal in an open database.
type Store struct {
	db *sqldb.DB
	id string
}

// Open makes or brings up to date the journal's tables and gives the store its id at first use.
func Open(ctx context.Context, db *sqldb.DB) (*Store, error) {
	schema, err := fs.Sub(files, "migrations/"+string(db.Dialect))
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx, schema, "qnetops_journal_schema"); err != nil {
		return nil, err
	}
	id, err := db.StoreID(ctx)
	if err != nil {
		return nil, err
	}
	return &Store{db: db, id: id}, nil
}

// ID is the random name of the store, the same at every opening. Hosts keep it in their fence record.
func (s *Store) ID() string { return s.id }

// Begin starts an operation. It is refused with *UnfinishedError while one of the fleet is unfinished (also when two begin
// at the same moment: one wins), and with ErrFenced where the fleet's journal has seen a newer epoch.
func (s *Store) Begin(ctx context.Context, spec Spec) (*Op, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	id, err := newID(spec.Kind, now)
	if err != nil {
		return nil, err
	}
	waivers, err := json.Marshal(append([]Waiver{}, spec.Waivers...))
	if err != nil {
		return nil, err
	}
	op := &Op{store: s, id: id, epoch: spec.Epoch}
	err = s.db.Write(ctx, func(tx *sqldb.Tx) error {
		if err := s.free(ctx, tx, spec); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO qnetops_operation
			(id, kind, fleet, operator, state, epoch, plan, plan_digest, waivers, data, started_at)
			VALUES ($1, $2, $3, $4, 'running', $5, $6, $7, $8, $9, $10)`,
			id, spec.Kind, clean(spec.Fleet), clean(spec.Operator), int64(spec.Epoch), clean(string(spec.Plan)), spec.PlanDigest,
			clean(string(waivers)), clean(string(spec.Data)), stamp(now))
		if err != nil {
			return err
		}
		return op.add(ctx, tx, entry{what: "begin"})
	})
	if sqldb.KindOf(err) == sqldb.Conflict { // lost the race: the winner is in the store now
		if other := s.unfinished(ctx, spec.Fleet); other != nil {
			return nil, other
		}
	}
	if err != nil {
		return nil, fmt.Errorf("beginning a %s of fleet %s: %w", spec.Kind, spec.Fleet, err)
	}
	return op, nil
}

func (s Spec) check() error {
	if s.Kind == "" || s.Fleet == "" {
		return errors.New("beginning an operation: kind and fleet are required")
	}
	for name, doc := range map[string]json.RawMessage{"plan": s.Plan, "data": s.Data} {
		if len(doc) > 0 && !json.Valid(doc) {
			return fmt.Errorf("beginning a %s: its %s is not JSON", s.Kind, name)
		}
	}
	return nil
}

// free refuses a fleet with an unfinished operation, and an epoch that is older than one the fleet's journal has seen.
func (s *Store) free(ctx context.Context, tx *sqldb.Tx, spec Spec) error {
	var u UnfinishedError
	err := tx.QueryRow(ctx, `SELECT id, kind, state FROM qnetops_operation WHERE fleet = $1 AND state IN ('running', 'stopped', 'in_doubt')`,
		spec.Fleet).Scan(&u.ID, &u.Kind, &u.State)
	if err == nil {
		return &u
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var newest int64
	if err := tx.QueryRow(ctx, `SELECT COALESCE(MAX(epoch), 0) FROM qnetops_operation WHERE fleet = $1`, spec.Fleet).Scan(&newest); err != nil {
		return err
	}
	if uint64(newest) > spec.Epoch {
		return fmt.Errorf("epoch %d, the fleet's journal is at %d: %w", spec.Epoch, newest, ErrFenced)
	}
	return nil
}

func (s *Store) unfinished(ctx context.Context, fleet string) *UnfinishedError {
	var u UnfinishedError
	err := s.db.QueryRowContext(ctx, s.db.Rebind(`SELECT id, kind, state FROM qnetops_operation
		WHERE fleet = $1 AND state IN ('running', 'stopped', 'in_doubt')`), fleet).Scan(&u.ID, &u.Kind, &u.State)
	if err != nil {
		return nil
	}
	return &u
}

// Op is the operation of that id, as its present writer left it: Resume takes it over. ErrNotFound where there is none.
func (s *Store) Op(ctx context.Context, id string) (*Op, error) {
	var epoch int64
	err := s.db.QueryRowContext(ctx, s.db.Rebind(`SELECT epoch FROM qnetops_operation WHERE id = $1`), id).Scan(&epoch)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("operation %s: %w", id, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("reading operation %s: %w", id, err)
	}
	return &Op{store: s, id: id, epoch: uint64(epoch), reader: true}, nil
}

// List gives the operations of a fleet, newest first, with their steps. An empty fleet means all.
func (s *Store) List(ctx context.Context, fleet string) (out []Record, err error) {
	err = s.db.Read(ctx, func(tx *sqldb.Tx) error {
		out, err = readRecords(ctx, tx, `WHERE $1 = '' OR fleet = $1 ORDER BY seq DESC`, fleet)
		if err != nil {
			return err
		}
		for i := range out {
			events, err := readEvents(ctx, tx, out[i].ID)
			if err != nil {
				return err
			}
			out[i].Steps = fold(events)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing operations: %w", err)
	}
	return out, nil
}

func readRecords(ctx context.Context, tx *sqldb.Tx, where string, args ...any) ([]Record, error) {
	rows, err := tx.Query(ctx, `SELECT id, kind, fleet, operator, state, epoch, plan, plan_digest, waivers, data, summary, started_at, finished_at
		FROM qnetops_operation `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		var r Record
		var plan, waivers, data, started string
		var finished sql.NullString
		var epoch int64
		if err := rows.Scan(&r.ID, &r.Kind, &r.Fleet, &r.Operator, &r.State, &epoch, &plan, &r.PlanDigest, &waivers, &data,
			&r.Summary, &started, &finished); err != nil {
			return nil, err
		}
		r.Epoch, r.Plan, r.Data = uint64(epoch), raw(plan), raw(data)
		if err := json.Unmarshal([]byte(waivers), &r.Waivers); err != nil {
			return nil, fmt.Errorf("operation %s: reading its waivers: %w", r.ID, err)
		}
		if r.StartedAt, err = time.Parse(time.RFC3339Nano, started); err != nil {
			return nil, fmt.Errorf("operation %s: %w", r.ID, err)
		}
		if finished.Valid {
			at, err := time.Parse(time.RFC3339Nano, finished.String)
			if err != nil {
				return nil, fmt.Errorf("operation %s: %w", r.ID, err)
			}
			r.FinishedAt = &at
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// readEvents reads an operation's entries in their order: all, or those of one step.
func readEvents(ctx context.Context, tx *sqldb.Tx, op string, step ...any) ([]looksEvent, error) {
	where := `WHERE op = $1`
	if len(step) > 0 {
		where += ` AND step = $2`
	}
	rows, err := tx.Query(ctx, `SELECT seq, at, epoch, what, step, attempt, state, looks, title, error, data
		FROM qnetops_entry `+where+` ORDER BY seq`, append([]any{op}, step...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []looksEvent
	for rows.Next() {
		var e looksEvent
		var at, data string
		var epoch int64
		var looks int
		if err := rows.Scan(&e.Seq, &at, &epoch, &e.What, &e.Step, &e.Attempt, &e.State, &looks, &e.Title, &e.Error, &data); err != nil {
			return nil, err
		}
		if e.At, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.Seq, err)
		}
		e.Epoch, e.looks, e.Data = uint64(epoch), looks != 0, raw(data)
		out = append(out, e)
	}
	return out, rows.Err()
}

// looksEvent is an Event with what only the folding needs.
type looksEvent struct {
	Event
	looks bool
}

// fold turns the entries of an operation into the latest attempt of each step.
func fold(events []looksEvent) []StepRecord {
	var out []StepRecord
	index := map[string]int{}
	for _, e := range events {
		switch e.What {
		case "intent":
			i, ok := index[e.Step]
			if !ok {
				i = len(out)
				index[e.Step] = i
				out = append(out, StepRecord{})
			}
			out[i] = StepRecord{ID: e.Step, Title: e.Title, Looks: e.looks, State: StepIntent, Attempt: e.Attempt, Epoch: e.Epoch, StartedAt: e.At}
		case "outcome", "settle":
			i, ok := index[e.Step]
			if !ok {
				continue
			}
			s, at := &out[i], e.At
			s.State, s.Error, s.FinishedAt = StepState(e.State), e.Error, &at
			if len(e.Data) > 0 {
				s.Result = e.Data
			}
			if e.What == "settle" {
				s.Note = e.Title
			}
			if s.State == StepInDoubt {
				s.FinishedAt = nil
			}
		}
	}
	return out
}

// newID is short, readable and sorts by time: roll-20260102T030405Z-1a2b.
func newID(kind string, now time.Time) (string, error) {
	tail := make([]byte, 2)
	if _, err := rand.Read(tail); err != nil {
		return "", err
	}
	return kind + "-" + now.Format("20060102T150405Z") + "-" + hex.EncodeToString(tail), nil
}

// stamp writes a time so that text order is time order.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// clean makes any text storable: Postgres takes neither zero bytes nor broken UTF-8, and both turn up in a program's output.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
