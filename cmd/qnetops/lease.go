package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
	"github.com/qnetops/qnetops/lease/run"
	"github.com/qnetops/qnetops/report"
)

func leaseCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "lease", Usage: "the right to change a fleet: who has it, run a service under one, break one",
		Subcommands: []*cli.Command{leaseShowCommand(s), leaseRunCommand(s), leaseCheckCommand(s), leaseHistoryCommand(s), leaseBreakCommand(s), leaseReaperCommand()},
	}
}

func nameFlag() cli.Flag {
	return &cli.StringFlag{Name: "name", Usage: "`NAME` of the lease (default: the fleet of the inventory)"}
}

// leaseOf opens the store and names the lease: --name, or the fleet.
func leaseOf(c *cli.Context, s streams) (g globals, db *sqldb.DB, name string, err error) {
	if g, err = readGlobals(c, s); err != nil {
		return g, nil, "", err
	}
	if err := noArguments(c); err != nil {
		return g, nil, "", err
	}
	if name = c.String("name"); name == "" {
		inv, err := fleet.Load(g.hosts)
		if err != nil {
			return g, nil, "", err
		}
		name = inv.Name
	}
	// Without a store of one's own nobody has held anything in it; break may be
	// the first thing an operator does who takes over from another one.
	if c.Command.Name != "break" && g.stateGiven {
		if err := g.needState("lease " + c.Command.Name); err != nil {
			return g, nil, "", err
		}
	}
	db, err = sqldb.Open(c.Context, g.state)
	return g, db, name, err
}

type leaseDocument struct {
	Schema      string        `json:"schema"`
	Name        string        `json:"name"`
	State       string        `json:"state"` // held, released, expired
	Generation  uint64        `json:"generation"`
	Writer      string        `json:"writer"`
	WriterEpoch int64         `json:"writer_epoch"`
	Holder      *lease.Holder `json:"holder"`
	LastBeat    time.Time     `json:"last_beat"`
	BeatAge     float64       `json:"beat_age_seconds"`
	Locked      bool          `json:"locked"`
	Guards      []lease.Guard `json:"guards"`
}

func describeLease(i lease.Info) leaseDocument {
	d := leaseDocument{Schema: "qnetops/lease/v1", Name: i.Scope, State: "held", Generation: i.Generation, Writer: i.Writer, WriterEpoch: i.WriterEpoch,
		LastBeat: i.LastBeat.UTC(), BeatAge: i.Age.Seconds(), Locked: i.Locked, Guards: i.Guards}
	if d.Guards == nil {
		d.Guards = []lease.Guard{}
	}
	switch {
	case i.Released:
		d.State = "released"
	case !i.Live():
		d.State = "expired"
	}
	if !i.Released {
		d.Holder = &i.Holder
	}
	return d
}

func leaseShowCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "who holds the lease, where, since when, for what, and when it was last renewed",
		Flags: []cli.Flag{nameFlag()},
		Action: func(c *cli.Context) error {
			g, db, name, err := leaseOf(c, s)
			if err != nil {
				return err
			}
			defer db.Close()
			info, err := lease.Show(c.Context, db, name)
			if errors.Is(err, lease.ErrNone) {
				info, err = lease.Info{Scope: name, Released: true}, nil
			}
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(s.out, describeLease(info))
			}
			return printLease(s, info)
		},
	}
}

func printLease(s streams, i lease.Info) error {
	d := describeLease(i)
	t := report.Table{Head: []string{"", "lease"}}
	t.Add("name", i.Scope)
	t.Add("state", d.State)
	t.Add("generation", fmt.Sprint(i.Generation))
	if d.Holder != nil {
		h := i.Holder
		t.Add("holder", h.Owner)
		t.Add("on", fmt.Sprintf("%s, process %d", h.Host, h.PID))
		t.Add("since", h.Since.UTC().Format(time.RFC3339))
		t.Add("operation", h.Operation)
		t.Add("last beat", i.Age.Round(time.Millisecond).String()+" ago")
		t.Add("lock", map[bool]string{true: "held by a live session or process", false: "nobody has it"}[i.Locked])
		t.Add("kept by", fmt.Sprintf("%s (%s)", h.Mode, h.Profile))
	}
	for _, g := range i.Guards {
		t.Add("session", fmt.Sprintf("backend %d %s %s", g.PID, g.Name, g.Address))
	}
	return t.Write(s.out)
}

func leaseCheckCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "within `lease run`: prove the lease now, before an effect (0: act; 92: do not)",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "beat", Usage: "feed the socket's watchdog as well"}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			socket := s.getenv(run.EnvSocket)
			if socket == "" {
				return &usageError{text: "lease check works within lease run only: " + run.EnvSocket + " is not set", hint: "qnetops lease show asks the store instead"}
			}
			if c.Bool("beat") {
				if _, err := run.Ask(c.Context, socket, "beat"); err != nil {
					printError(s.err, err)
					return exitStatus(lease.CodeFence)
				}
			}
			generation, err := run.Ask(c.Context, socket, "check")
			if err != nil {
				printError(s.err, err)
				return exitStatus(lease.CodeFence)
			}
			if c.String("output") == "json" {
				return printJSON(s.out, map[string]any{"schema": "qnetops/leasecheck/v1", "generation": generation})
			}
			fmt.Fprintln(s.out, generation)
			return nil
		},
	}
}

type leaseHistoryDocument struct {
	Schema string              `json:"schema"`
	Name   string              `json:"name"`
	Log    []leaseHistoryEntry `json:"log"`
	Runs   []run.Ended         `json:"runs"` // of `lease run` on this machine
}

type leaseHistoryEntry struct {
	At         time.Time       `json:"at"`
	Generation uint64          `json:"generation"`
	Event      string          `json:"event"`
	Writer     string          `json:"writer"`
	Detail     json.RawMessage `json:"detail"`
}

func leaseHistoryCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "history", Usage: "who held the lease, and how each run of `lease run` on this machine ended",
		Flags: []cli.Flag{nameFlag(), dirFlag(), epochFlag(), &cli.IntFlag{Name: "last", Value: 20, Usage: "the newest `N`"}},
		Action: func(c *cli.Context) error {
			g, db, name, err := leaseOf(c, s)
			if err != nil {
				return err
			}
			defer db.Close()
			n := c.Int("last")
			entries, err := lease.History(c.Context, db, name, n)
			if err != nil {
				return err
			}
			dir, err := leaseDir(c, s)
			if err != nil {
				return err
			}
			runs, err := run.Runs(dir, lease.Identity{Scope: name, Writer: name, Epoch: c.Int64("writer-epoch")})
			if err != nil {
				return err
			}
			doc := leaseHistoryDocument{Schema: "qnetops/leasehistory/v1", Name: name, Log: []leaseHistoryEntry{}, Runs: append([]run.Ended{}, runs[max(0, len(runs)-n):]...)}
			for _, e := range entries {
				doc.Log = append(doc.Log, leaseHistoryEntry{At: e.At, Generation: e.Generation, Event: e.Event, Writer: e.Writer, Detail: e.Detail})
			}
			if g.json {
				return printJSON(s.out, doc)
			}
			return printHistory(s, doc)
		},
	}
}

func printHistory(s streams, doc leaseHistoryDocument) error {
	t := report.Table{Head: []string{"at", "generation", "event", "by", "how", "reason"}}
	for _, e := range doc.Log {
		var d struct{ Owner, How, Reason, Why, By, Operation string }
		_ = json.Unmarshal(e.Detail, &d)
		t.Add(e.At.UTC().Format(time.RFC3339), fmt.Sprint(e.Generation), e.Event, firstOf(d.By, d.Owner), firstOf(d.How, d.Operation), firstOf(d.Reason, d.Why))
	}
	if err := t.Write(s.out); err != nil || len(doc.Runs) == 0 {
		return err
	}
	r := report.Table{Head: []string{"run started", "ended", "generation", "command", "exit code", "why"}}
	for _, e := range doc.Runs {
		ended, code := "-", "-"
		if e.Ended != nil {
			ended = e.Ended.UTC().Format(time.RFC3339)
		}
		why := e.Reason
		if e.Code != nil {
			code = fmt.Sprint(*e.Code)
			if m := lease.Code(*e.Code).Meaning(); m != "" {
				why += " (" + m + ")"
			}
		}
		r.Add(e.Started.UTC().Format(time.RFC3339), ended, fmt.Sprint(e.Generation), e.Command, code, why)
	}
	return r.Write(s.out)
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func leaseBreakCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "break", Usage: "take a lease away from its holder, who then can change nothing any more",
		Flags: []cli.Flag{nameFlag(),
			&cli.StringFlag{Name: "reason", Usage: "why (required; kept in the history)"},
			&cli.BoolFlag{Name: "kill-holder", Usage: "also end the holder's process on this machine (a paused one keeps its file lock)"}},
		Action: func(c *cli.Context) error {
			if c.String("reason") == "" {
				return &usageError{text: "lease break needs --reason", hint: "say why: the history keeps it"}
			}
			g, db, name, err := leaseOf(c, s)
			if err != nil {
				return err
			}
			defer db.Close()
			return runLeaseBreak(c.Context, s, g, db, name, c.String("reason"), c.Bool("kill-holder"))
		},
	}
}

// runLeaseBreak takes away what keeps this store's operators from changing the
// fleet: the lease in this store, if somebody holds it, and then the fence
// records that another store has left on the hosts.
func runLeaseBreak(ctx context.Context, s streams, g globals, db *sqldb.DB, name, reason string, kill bool) error {
	info, err := lease.Show(ctx, db, name)
	inStore := err == nil && (!info.Released || info.Locked)
	if errors.Is(err, lease.ErrNone) {
		err = nil // a store in which nobody ever held it; the hosts may know another one
	}
	if err != nil {
		return err
	}
	if inStore {
		err = breakInStore(ctx, s, g, db, info, reason, kill)
	}
	inv, loadErr := fleet.Load(g.hosts)
	if err != nil || loadErr != nil || inv.Name != name {
		if err == nil && !inStore {
			err = errors.Join(&refusal{text: fmt.Sprintf("nobody holds the lease %s in this store", name)}, loadErr)
		}
		return err // a service's lease has no hosts
	}
	return breakOnHosts(ctx, s, g, reason, inStore)
}

// breakOnHosts takes over the fence records of other stores, as they are shown.
func breakOnHosts(ctx context.Context, s streams, g globals, reason string, inStore bool) error {
	return withFleet(ctx, s, g, func(r *rollRun) error {
		held, err := r.ops.Foreign(ctx)
		if err != nil {
			return err
		}
		if len(held) == 0 && !inStore {
			return &refusal{text: "nobody holds the fleet: neither this store's lease nor the record of another store on any host that answers"}
		}
		if len(held) == 0 {
			return nil
		}
		for _, h := range held {
			fmt.Fprintf(s.err, "host %s: held by %s, operation %s, epoch %d, since %s (another state store)\n", h.ID, h.Record.Owner, h.Record.Operation, h.Record.Epoch, h.Record.Since.UTC().Format(time.RFC3339))
		}
		if err := confirm(ctx, s, g, fmt.Sprintf("take over %d host(s)? The holder can change nothing there any more.", len(held))); err != nil {
			return err
		}
		if err := r.ops.TakeOver(ctx, held, reason); err != nil {
			return err
		}
		r.tell.close()
		fmt.Fprintf(s.out, "%d host(s) taken over from %s\n", len(held), held[0].Record.Owner)
		return nil
	})
}

func breakInStore(ctx context.Context, s streams, g globals, db *sqldb.DB, info lease.Info, reason string, kill bool) error {
	name := info.Scope
	if err := printLease(streams{out: s.err}, info); err != nil {
		return err
	}
	h := info.Holder
	question := fmt.Sprintf("take the lease %s away from %s (process %d on %s)? Whatever it is doing stops where it is.", name, h.Owner, h.PID, h.Host)
	if err := confirm(ctx, s, g, question); err != nil {
		return err
	}
	if err := lease.Break(ctx, db, info, reason, operator(s)); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "the lease %s is broken: generation %d of %s is void\n", name, info.Generation, h.Owner)
	if kill {
		if err := lease.KillHolder(info); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "process %d was killed\n", h.PID)
	} else if db.Dialect == sqldb.SQLite && info.Locked || h.Live() {
		fmt.Fprintf(s.out, "process %d stops within a second; should it be paused and keep its file lock: lease break --kill-holder\n", h.PID)
	}
	return nil
}
