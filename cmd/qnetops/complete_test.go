package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/journal"
)

// TestFlagsAndValuesComplete: what a shell offers is what the command line takes.
func TestFlagsAndValuesComplete(t *testing.T) {
	dir := t.TempDir()
	hosts := filepath.Join(dir, "hosts.toml")
	example, err := os.ReadFile("../../hosts.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hosts, example, 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state.db")
	db, store, err := openJournal(t.Context(), globals{state: state})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, end := range []journal.State{journal.Done, journal.Stopped} {
		op, err := store.Begin(t.Context(), journal.Spec{Kind: "roll", Fleet: "f", Operator: "ann", Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Finish(t.Context(), end, "over"); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, op.ID())
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"QNETOPS_HOSTS": hosts, "QNETOPS_STATE": state}
	offered := func(words ...string) []string {
		var out, errs bytes.Buffer
		s := streams{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(k string) string { return env[k] }}
		if code := Main(context.Background(), append(append([]string{"qnetops"}, words...), completeFlag), s); code != exitDone || errs.Len() > 0 {
			t.Errorf("%q: code %d, %s", words, code, errs.String())
		}
		return strings.Fields(out.String())
	}
	for _, c := range []struct {
		words      []string
		has, hasNo []string
	}{
		{[]string{""}, []string{"status", "roll", "restore"}, []string{"host"}},
		{[]string{"ro"}, []string{"roll"}, []string{"status"}},
		{[]string{"roll", "--"}, []string{"--set-env", "--canary", "--hosts", "--help"}, []string{"--check"}},
		{[]string{"status", "--hosts", "x.toml", "--c"}, []string{"--check"}, []string{"--canary"}},
		{[]string{"restore", ""}, []string{"001", "006"}, nil},
		{[]string{"roll", "--canary", "00"}, []string{"001"}, nil},
		{[]string{"roll", "--only", "001,00"}, []string{"001,006"}, nil},
		{[]string{"roll", "--on-fail", ""}, []string{"hold", "restore"}, nil},
		{[]string{"resume", ""}, ids[1:], ids[:1]},
		{[]string{"ops", ""}, ids, nil},
		{[]string{"lease", "sh"}, []string{"show"}, []string{"run"}},
		{[]string{"rehearse", ""}, []string{"roll"}, nil},
		{[]string{"nosuch", ""}, nil, nil},
		{[]string{"restore", "--hosts", "/nowhere", ""}, nil, []string{"001"}},
	} {
		got := offered(c.words...)
		for _, want := range c.has {
			if !slices.Contains(got, want) {
				t.Errorf("%q: %q is not offered: %q", c.words, want, got)
			}
		}
		for _, no := range c.hasNo {
			if slices.Contains(got, no) {
				t.Errorf("%q: %q is offered", c.words, no)
			}
		}
	}
}

// TestUsageOfAMissingState: a mistyped path is no new journal.
func TestUsageOfAMissingState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "typo.db")
	for _, words := range [][]string{{"ops"}, {"ops", "roll-1"}, {"resume", "roll-1"}, {"abort", "roll-1"}, {"lease", "show", "--name", "x"}} {
		var out, errs bytes.Buffer
		s := streams{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(string) string { return "" }}
		code := Main(context.Background(), append(append([]string{"qnetops"}, words...), "--state", path), s)
		if code != exitUsage || !strings.Contains(errs.String(), path) || !strings.Contains(errs.String(), "hint:") {
			t.Errorf("%q: code %d\n%s", words, code, errs.String())
		}
		if _, err := os.Stat(path); err == nil {
			t.Fatalf("%q made %s", words, path)
		}
	}
}
