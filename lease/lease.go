package lease

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
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

// Options say which right is wanted, and how it is kept.
type Options struct {
	DB    *sqldb.DB     // Postgres: a guarded lease; SQLite: a file lock, for this machine only
	Dir   string        // folder of the lock file on SQLite; "" is the folder of the store
	Scope string        // the fleet's name, or that of a service
	Owner string        // shown to whoever finds the lease held, such as user@machine
	Wait  time.Duration // how long to wait for another holder; 0 is not at all, below 0 is for ever. A dead predecessor's silence is waited for in any case

	Writer      string  // who may take over from whom; "" is FleetWriter
	WriterEpoch int64   // 0 is 1
	Profile     string  // "" is Steady
	Policy      *Policy // instead of a profile
	// RequireFast refuses a connection on which no session lock can be held (a pooler), instead of falling back to the TTL.
	RequireFast bool
	// Exit is called first when the lease is lost, with the exit code and the reason. A program that must not live one
	// moment longer ends itself in it; it must not block. nil only ends the context.
	Exit func(Code, string)
	// OnProof is called with the clock's time of each newer proof.
	OnProof func(time.Duration)
	// OnEvent hears of each step. It must not block.
	OnEvent func(Event)
	Command string // shown to others
	Version string // shown to others
	Clock   Clock  // nil is BootTime
	Token   string // a fixed session token; refused without AllowFixedToken
	// AllowFixedToken admits Token. Two processes with one token cannot be told apart: such a lease is never adopted.
	AllowFixedToken bool
	// IKnow keeps the lock file on a file system (nfs, cifs, fuse, 9p) whose locks are not known to hold.
	IKnow bool
}

// settled are the options with everything filled in.
type settled struct {
	Options
	id     Identity
	policy Policy
	clock  Clock
	emit   func(Event)
	holder Holder
}

func settle(o Options) (settled, error) {
	s := settled{Options: o, clock: o.Clock, emit: o.OnEvent}
	if o.DB == nil {
		return s, errors.New("taking a lease: a store is required")
	}
	s.id = Identity{Scope: o.Scope, Writer: cmp.Or(o.Writer, FleetWriter), Epoch: cmp.Or(o.WriterEpoch, 1)}
	if err := s.id.check(); err != nil {
		return s, fmt.Errorf("taking a lease: %w", err)
	}
	if err := fixed(o.Token, o.AllowFixedToken); err != nil {
		return s, err
	}
	policy, err := PolicyOf(o.Profile)
	if err != nil {
		return s, err
	}
	if o.Policy != nil {
		policy = *o.Policy
	}
	warnings, err := policy.Check()
	if err != nil {
		return s, err
	}
	s.policy = policy
	if s.clock == nil {
		s.clock = BootTime{}
	}
	if s.emit == nil {
		s.emit = func(Event) {}
	}
	for _, w := range warnings {
		s.emit(Event{At: s.clock.Now(), State: Idle, Text: w})
	}
	host, _ := os.Hostname()
	s.holder = Holder{Owner: o.Owner, Host: host, PID: os.Getpid(), Started: startTime(os.Getpid()), BootID: bootID(), Since: time.Now().UTC(), Version: o.Version,
		Command: o.Command, Profile: policy.Profile, TTL: policy.TTL.Seconds(), Silence: policy.Silence.Seconds()}
	return s, nil
}

// bootID tells one run of a machine from the next, "" where the system does not say.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// startTime is when a process was started, in clock ticks since boot: with it a pid names one process only. 0 is not known,
// or a process that has ended and is only waiting to be noticed.
func startTime(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name may hold blanks and brackets
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

//go:embed migrations/postgres/*.sql migrations/sqlite/*.sql
var files embed.FS

// schemaVersion is the number of the newest migration.
const schemaVersion = 2

// prepare brings the tables up to date. Where they are, one question says so: a successor is on its way.
func prepare(ctx context.Context, db *sqldb.DB) error {
	var version sql.NullInt64
	err := db.QueryRowContext(ctx, `SELECT max(version_id) FROM qnetops_lease_schema`).Scan(&version)
	if err == nil && version.Int64 == schemaVersion {
		return nil
	}
	schema, err := fs.Sub(files, "migrations/"+string(db.Dialect))
	if err != nil {
		return err
	}
	return db.Migrate(ctx, schema, "qnetops_lease_schema")
}

// Acquire takes the lease of a scope. *HeldError names the holder it could not get past, *PolicyError an unsafe timing,
// *RefusedError a set-up on which no lease can be kept.
func Acquire(ctx context.Context, opts Options) (Lease, error) {
	h, err := Hold(ctx, opts)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Hold is Acquire with everything that a lease can do.
func Hold(ctx context.Context, opts Options) (*Held, error) {
	o, err := settle(opts)
	if err != nil {
		return nil, err
	}
	if o.DB.Dialect == sqldb.Postgres {
		return holdPostgres(ctx, o)
	}
	return holdLocal(ctx, o)
}

// named wraps an error with whose lease was wanted.
func (s settled) named(err error) error {
	var held *HeldError
	if errors.As(err, &held) {
		return err
	}
	return fmt.Errorf("taking the lease of fleet %s: %w", s.id.Scope, err)
}
