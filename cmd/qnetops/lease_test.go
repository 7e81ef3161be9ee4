package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/internal/sqldb"
	"github.com/qnetops/qnetops/lease"
)

// leaseCLI runs one command line of the lease family.
func leaseCLI(t *testing.T, env map[string]string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	s := streams{in: strings.NewReader(""), out: &o, err: &e, getenv: func(k string) string { return env[k] }}
	app := newApp(s)
	if app.Command("lease") == nil {
		app.Commands = append(app.Commands, leaseCommand(s))
	}
	ordered, err := reorder(app, append([]string{"qnetops"}, args...))
	if err == nil {
		err = app.RunContext(t.Context(), ordered)
	}
	var status exitStatus
	switch {
	case errors.As(err, &status):
		code = int(status)
	case err != nil:
		printError(&e, err)
		code = exitCode(t.Context(), err)
	}
	return code, o.String(), e.String()
}

func TestLeaseCommands(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state.db")
	env := map[string]string{"HOME": dir, "QNETOPS_OPERATOR": "eve"}
	show := func() (d leaseDocument) {
		t.Helper()
		code, out, errs := leaseCLI(t, env, "lease", "show", "--name", "mainnet", "--state", state, "-o", "json")
		if err := json.Unmarshal([]byte(out), &d); code != 0 || err != nil {
			t.Fatalf("%d %s %s %v", code, out, errs, err)
		}
		return d
	}
	if code, _, errs := leaseCLI(t, env, "lease", "show", "--name", "mainnet", "--state", state); code != exitUsage || !strings.Contains(errs, "no state file") {
		t.Errorf("a store that is not there: %d %s", code, errs)
	}
	db, err := sqldb.Open(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if d := show(); d.State != "released" || d.Holder != nil || d.Generation != 0 {
		t.Errorf("before anything: %+v", d)
	}
	l, err := lease.Acquire(t.Context(), lease.Options{DB: db, Scope: "mainnet", Owner: "ann@desk"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release(context.Background())
	if _, err := l.Raise(t.Context(), 4, "roll-1"); err != nil {
		t.Fatal(err)
	}
	if d := show(); d.State != "held" || d.Holder == nil || d.Holder.Owner != "ann@desk" || d.Holder.Operation != "roll-1" || d.Generation != 5 || !d.Locked {
		t.Errorf("while held: %+v", d)
	}
	if code, out, _ := leaseCLI(t, env, "lease", "show", "--name", "mainnet", "--state", state); code != 0 || !strings.Contains(out, "ann@desk") || !strings.Contains(out, "roll-1") {
		t.Errorf("%d %s", code, out)
	}
	if code, _, errs := leaseCLI(t, env, "lease", "break", "--name", "mainnet", "--state", state); code != exitUsage || !strings.Contains(errs, "--reason") {
		t.Errorf("without a reason: %d %s", code, errs)
	}
	if code, _, errs := leaseCLI(t, env, "lease", "break", "--name", "mainnet", "--state", state, "--reason", "x"); code != exitUsage || !strings.Contains(errs, "--yes") {
		t.Errorf("nobody to ask: %d %s", code, errs)
	}
	if l.Check(t.Context()) != nil {
		t.Error("broken without a yes")
	}
	if code, out, errs := leaseCLI(t, env, "lease", "break", "--name", "mainnet", "--state", state, "--reason", "gone home", "--yes"); code != 0 || !strings.Contains(out, "generation 5 of ann@desk is void") || !strings.Contains(errs, "roll-1") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if err := l.Check(t.Context()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the holder after a break: %v", err)
	}
	_ = l.Release(t.Context())
	if code, _, errs := leaseCLI(t, env, "lease", "break", "--name", "mainnet", "--state", state, "--reason", "x", "--yes"); code != exitRefused || !strings.Contains(errs, "nobody holds") {
		t.Errorf("twice: %d %s", code, errs)
	}
	code, out, _ := leaseCLI(t, env, "lease", "history", "--name", "mainnet", "--state", state, "-o", "json")
	var h leaseHistoryDocument
	if err := json.Unmarshal([]byte(out), &h); code != 0 || err != nil || len(h.Log) != 3 || h.Log[0].Event != "revoked" || !strings.Contains(string(h.Log[0].Detail), "eve@") {
		t.Errorf("%d %s %v", code, out, err)
	}
	if code, out, _ := leaseCLI(t, env, "lease", "history", "--name", "mainnet", "--state", state); code != 0 || !strings.Contains(out, "gone home") {
		t.Errorf("%d %s", code, out)
	}
}

func TestLeaseRunUsage(t *testing.T) {
	env := map[string]string{"HOME": t.TempDir()}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"lease", "run", "--", "true"}, 125, "--name"},
		{[]string{"lease", "run", "--name", "x"}, 125, "command"},
		{[]string{"lease", "run", "--name", "x", "--wait", "soon", "--", "true"}, 125, "--wait"},
		{[]string{"lease", "check"}, exitUsage, "lease run"},
	} {
		if code, _, errs := leaseCLI(t, env, c.args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: %d %s", c.args, code, errs)
		}
	}
	env["QNETOPS_LEASE_SOCK"] = filepath.Join(t.TempDir(), "nobody")
	if code, _, errs := leaseCLI(t, env, "lease", "check"); code != 92 || !strings.Contains(errs, "do not act") {
		t.Errorf("a supervisor that is gone: %d %s", code, errs)
	}
}
