package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEndorsementFiles: a file that is not what it should be is refused with its
// name, and what was written is read again.
func TestEndorsementFiles(t *testing.T) {
	const good = `{"schema":"qnetops/endorsement/v1","fleet":"f","seq":3,"target_height":900,"quorum":4,
		"signatures":[{"host":"001","node_id":"genesis_node_001","sig":"4142"}],"missing":[]}`
	for name, c := range map[string]struct{ text, want string }{
		"good":           {good, ""},
		"another seq":    {strings.Replace(good, `"seq":3`, `"seq":4`, 1), "endorses decree 4 to height 900, not decree 3"},
		"another height": {strings.Replace(good, `900`, `930`, 1), "to height 930"},
		"another schema": {strings.Replace(good, "endorsement", "status", 1), "schema is"},
		"unknown field":  {strings.Replace(good, `"fleet"`, `"flet"`, 1), "flet"},
		"bad signature":  {strings.Replace(good, "4142", "41zz", 1), "signatures[0]: signature of genesis_node_001 is not hex"},
		"two documents":  {good + good, "something follows"},
		"empty":          {"", "not a file of decree endorse"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "e.json")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			sigs, err := readEndorsements([]string{path}, 3, 900)
			switch {
			case c.want == "" && (err != nil || len(sigs) != 1 || sigs[0].NodeID != "genesis_node_001"):
				t.Errorf("%v %v", sigs, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path)):
				t.Errorf("%v, want %q and the path", err, c.want)
			}
		})
	}
}

// TestRollbackAndDecreeUsage: a command line that cannot be run costs exit code 2
// and says what to write instead.
func TestRollbackAndDecreeUsage(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"rollback", "either --to-last-sealed or --to-height"},
		{"rollback --to-last-sealed --to-height 900", "either --to-last-sealed or --to-height"},
		{"rollback --to-height 0", "--to-height 0"},
		{"rollback --to-last-sealed --only 001", "takes no --only"},
		{"rollback --to-last-sealed --at tomorrow", "want a time in UTC"},
		{"decree endorse --target 900", "--seq N and --target H"},
		{"decree submit --seq 3", "--seq N and --target H"},
		{"decree submit --seq 3 --target 900 /nonexistent.json", "/nonexistent.json"},
	} {
		s, _, errs := testStreams(t)
		code := Main(t.Context(), append([]string{"qnetops"}, strings.Fields(c.line)...), s)
		if code != exitUsage || !strings.Contains(fmt.Sprint(errs), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s", c.line, code, exitUsage, c.want, errs)
		}
	}
}

// Each check that can refuse a rollback or a decree has its line in the runbook.
func TestRollbackChecksAreInTheRunbook(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "RUNBOOK.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rollback_height", "decree_height", "certified_floor", "sealed_history", "signatures", "decree_seq", "decree", "comes_back", "via"} {
		if !strings.Contains(string(raw), "`"+name+"`") {
			t.Errorf("RUNBOOK.md says nothing about check %s", name)
		}
	}
}
