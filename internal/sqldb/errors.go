package sqldb

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// OpenError is a store that cannot be used. Nothing in it was changed.
type OpenError struct {
	Where string // path, or DSN without its password
	What  string
	Err   error
	hint  string
}

func (e *OpenError) Error() string {
	msg := "opening the state store " + e.Where
	if e.What != "" {
		msg += ": " + e.What
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

func (e *OpenError) Unwrap() error { return e.Err }

// Hint says what to do next.
func (e *OpenError) Hint() string { return e.hint }

// NewerSchemaError is a store that a later version of the program has written.
type NewerSchemaError struct {
	Where, Table    string
	Found, Supports int64
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("opening the state store %s: its schema (%s) is version %d, this program knows %d", e.Where, e.Table, e.Found, e.Supports)
}

// Hint says what to do next.
func (e *NewerSchemaError) Hint() string {
	return "use the version of the program that wrote it; an older one could misread what is under way"
}

// Kind sorts an error of a driver by what it means for the caller.
type Kind int

// The kinds that somebody decides on.
const (
	Other      Kind = iota
	Conflict        // a row with that key is already there
	Busy            // another process holds the store; trying again may help
	Damaged         // the file is no database or is damaged
	Full            // no space left
	ReadOnly        // the store may not be written
	Unopenable      // the file cannot be opened
	Absent          // a table is not there
)

// KindOf classifies an error of either driver. It looks at the code the driver gives, never at its text.
func KindOf(err error) Kind {
	var sqlite interface{ Code() int }
	var pg interface{ SQLState() string }
	switch {
	case err == nil:
		return Other
	case errors.As(err, &pg):
		return postgresKind(pg.SQLState())
	case errors.As(err, &sqlite):
		return sqliteKind(sqlite.Code())
	}
	return Other
}

// sqliteKind reads SQLite's result codes (sqlite.org/rescode.html); the low byte is the primary code.
func sqliteKind(code int) Kind {
	switch code {
	case 1555, 2067, 2579: // SQLITE_CONSTRAINT_PRIMARYKEY, _UNIQUE, _ROWID
		return Conflict
	}
	switch code & 0xff {
	case 5, 6: // BUSY, LOCKED
		return Busy
	case 11, 26: // CORRUPT, NOTADB
		return Damaged
	case 13: // FULL
		return Full
	case 8: // READONLY
		return ReadOnly
	case 14: // CANTOPEN
		return Unopenable
	}
	return Other
}

// postgresKind reads SQLSTATE codes (Postgres manual, appendix A).
func postgresKind(state string) Kind {
	switch state {
	case "23505":
		return Conflict
	case "40001", "40P01", "55P03":
		return Busy
	case "53100":
		return Full
	case "25006", "42501":
		return ReadOnly
	case "42P01":
		return Absent
	}
	if strings.HasPrefix(state, "XX") {
		return Damaged
	}
	return Other
}

// refused wraps what went wrong while opening in an OpenError with the hint that fits.
func (d *DB) refused(what string, err error) error {
	e := &OpenError{Where: d.where, What: what, Err: err}
	switch KindOf(err) {
	case Damaged:
		e.What = "the file is no SQLite database or is damaged"
		e.hint = "it was left as it is; point --state at another file, or put a copy back in its place"
	case Busy:
		e.hint = "another process is writing to it and did not let go; see who has it open"
	case Full:
		e.hint = "free some space on that file system"
	case ReadOnly, Unopenable:
		e.hint = "check owner and mode of the file and its folder"
	default:
		e.hint = "check --state (QNETOPS_STATE)"
		if d.Dialect == Postgres {
			e.hint = "check that the server runs and that the DSN in --state (QNETOPS_STATE) is right"
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.hint = "the server did not answer in time; check address and network"
	}
	return e
}
