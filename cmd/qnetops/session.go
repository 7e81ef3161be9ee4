package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"

	_ "github.com/jackc/pgx/v5/stdlib" // the Postgres driver of --state postgres://…
	"golang.org/x/term"
	_ "modernc.org/sqlite" // the SQLite driver of --state FILE

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/lease"
)

// openFleet loads the inventory and connects to every host of it: also hosts
// that are not targets count for quorum and comparison.
func openFleet(ctx context.Context, s streams, g globals) (*fleet.Inventory, *fleet.Fleet, error) {
	inv, err := fleet.Load(g.hosts)
	if err != nil {
		return nil, nil, err
	}
	if _, err := inv.Select(g.only, g.skip); err != nil {
		return nil, nil, err
	}
	f, err := fleet.Open(ctx, inv, inv.IDs(), fleetOptions(s, g))
	if err != nil {
		return nil, nil, err
	}
	return inv, f, nil
}

func fleetOptions(s streams, g globals) fleet.Options {
	level := slog.LevelWarn
	if g.verbose {
		level = slog.LevelDebug
	}
	return fleet.Options{
		Prompt: &prompter{s: s}, AgentBinary: g.agent, Version: version, Getenv: s.getenv,
		Log: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: level})),
	}
}

// openJournal opens the state store; the caller closes the database.
func openJournal(ctx context.Context, g globals) (*sqldb.DB, *journal.Store, error) {
	if g.state == "" {
		return nil, nil, &usageError{text: "where is the journal? neither --state, XDG_STATE_HOME nor HOME says", hint: "give --state FILE or --state postgres://…"}
	}
	db, err := sqldb.Open(ctx, g.state)
	if err != nil {
		return nil, nil, err
	}
	store, err := journal.Open(ctx, db)
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return db, store, nil
}

// acquire takes the fleet's lease for this process.
func acquire(ctx context.Context, s streams, g globals, db *sqldb.DB, scope string) (lease.Lease, error) {
	dir := ""
	if sqldb.IsPostgres(g.state) {
		path, err := defaultState(s.getenv)
		if err != nil {
			return nil, err
		}
		dir = filepath.Dir(path)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return lease.Acquire(ctx, lease.Options{DB: db, Dir: dir, Scope: scope, Owner: operator(s), Wait: g.wait, Version: version, Command: "qnetops"})
}

// operator names the person for the journal and the fence: user@machine.
func operator(s streams) string {
	name := s.getenv("QNETOPS_OPERATOR")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	machine, _ := os.Hostname()
	return name + "@" + machine
}

// prompter asks on the terminal, one question at a time.
type prompter struct {
	s  streams
	mu sync.Mutex
}

// errNoTerminal is why a question cannot be asked.
var errNoTerminal = errors.New("there is no terminal to ask on")

// Passphrase asks without echo.
func (p *prompter) Passphrase(_ context.Context, keyFile string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	file, ok := p.s.in.(*os.File)
	if !ok || !p.s.ask {
		return nil, fmt.Errorf("passphrase of %s: %w", keyFile, errNoTerminal)
	}
	fmt.Fprintf(p.s.err, "passphrase of %s: ", keyFile)
	answer, err := term.ReadPassword(int(file.Fd()))
	fmt.Fprintln(p.s.err)
	return answer, err
}

// Confirm asks for yes or no; no answer is no.
func (p *prompter) Confirm(_ context.Context, question string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.s.err, "%s [y/N] ", question)
	line, err := bufio.NewReader(p.s.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if err != nil {
		fmt.Fprintln(p.s.err)
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}

// confirm asks before a change, naming what will happen; --yes answers it.
func confirm(ctx context.Context, s streams, g globals, question string) error {
	if g.yes {
		return nil
	}
	if !s.ask {
		return &usageError{text: "this changes the fleet and nobody can be asked here", hint: "add --yes once you have read the plan (--dry-run shows it)"}
	}
	ok, err := (&prompter{s: s}).Confirm(ctx, question)
	if err != nil {
		return err
	}
	if !ok {
		return &refusal{text: "not confirmed, nothing was changed", hint: "run it again and answer y; --yes answers beforehand, --dry-run only shows"}
	}
	return nil
}
