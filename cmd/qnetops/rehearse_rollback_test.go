package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rehearsed runs a rehearsal and returns its document and its report.
func rehearsed(t *testing.T, args ...string) (rehearsalDocument, string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a whole fleet")
	}
	file := filepath.Join(t.TempDir(), "report.md")
	s, out, errs := testStreams(t)
	code := Main(t.Context(), append([]string{"qnetops", "rehearse", "--report", file, "-o", "json"}, args...), s)
	if code != exitDone {
		t.Fatalf("exit code %d\n%s\n%s", code, errs, out)
	}
	var doc rehearsalDocument
	if err := json.Unmarshal([]byte(out.String()), &doc); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if doc.Schema != rehearsalSchema || !doc.OK || len(doc.Rehearsals) != 1 {
		t.Errorf("%+v", doc)
	}
	return doc, string(raw)
}

// acted finds an act by the beginning of its name: how often it was there, and with
// which exit codes.
func acted(doc rehearsalDocument, begins string) (codes []int) {
	for _, a := range doc.Rehearsals[0].Acts {
		if !strings.HasPrefix(a.Act, begins) {
			continue
		}
		code := -1
		if a.ExitCode != nil {
			code = *a.ExitCode
		}
		codes = append(codes, code)
	}
	return codes
}

// wantActs asserts that the acts were there with these codes, and stand in the report.
func wantActs(t *testing.T, doc rehearsalDocument, report string, want map[string][]int) {
	t.Helper()
	for name, codes := range want {
		got := acted(doc, name)
		if len(got) != len(codes) {
			t.Errorf("act %q: exit codes %v, want %v", name, got, codes)
			continue
		}
		for i := range codes {
			if got[i] != codes[i] {
				t.Errorf("act %q: exit codes %v, want %v", name, got, codes)
			}
		}
		if !strings.Contains(report, "| "+name) {
			t.Errorf("the report does not hold %q:\n%s", name, report)
		}
	}
	if !strings.Contains(report, "from the decision to restored finality") || doc.Rehearsals[0].RestoredSeconds <= 0 {
		t.Errorf("nobody learns how long it took:\n%s", report)
	}
}

// TestRehearseRollback: a stalled fleet goes back by its variable, and once more by
// a decree; what cannot be done is refused with code 3.
func TestRehearseRollback(t *testing.T) {
	t.Parallel()
	doc, report := rehearsed(t, "rollback", "--block", "10ms")
	wantActs(t, doc, report, map[string][]int{
		"status --check": {exitDone, exitRefused, exitDone, exitRefused, exitDone},
		"rollback to a height between two certified points": {exitRefused},
		"rollback --to-last-sealed --yes":                   {exitDone},
		"decree endorse below what is certified":            {exitRefused},
		"decree submit":                                     {exitDone},
		"no container carries the variable any more":        {-1},
	})
}

// TestRehearseNamesTheActThatFailed: the acts after it are not played, and what was
// expected and what came is said.
func TestRehearseNamesTheActThatFailed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a whole fleet")
	}
	s, out, errs := testStreams(t)
	after := false
	bad := script{"test", "a test", "", 10 * time.Millisecond, func(r *rehearsal, ctx context.Context) {
		r.command(ctx, want{exit: exitDone}, "restart", "propose-k", "--allowed-signers", "/nowhere", "/nowhere")
		r.do(ctx, "what follows", "nothing", func() string { after = true; return "" })
	}}
	result, err := rehearse(t.Context(), s, bad, 5)
	if err != nil {
		t.Fatal(err)
	}
	doc := rehearsalDocument{Schema: rehearsalSchema, OK: true}
	doc.add(result)
	file := filepath.Join(t.TempDir(), "report.md")
	err = answerRehearsals(s, globals{}, doc, file)
	var failed *rehearsalError
	if !errors.As(err, &failed) || exitCode(t.Context(), err) != exitError {
		t.Fatalf("%v", err)
	}
	for _, say := range []string{"rehearsal of a test, act 2, restart propose-k", "expected exit code 0", "came exit code 2: ", "/nowhere"} {
		if !strings.Contains(err.Error(), say) {
			t.Errorf("does not say %q: %v", say, err)
		}
	}
	if after || len(result.Acts) != 2 || result.OK {
		t.Errorf("went on after it: %+v", result)
	}
	raw, bads := os.ReadFile(file)
	if bads != nil || !strings.Contains(string(raw), "NO: exit code 2") || !strings.Contains(out.String(), "NO") || strings.Contains(out.String(), "passed") {
		t.Errorf("%v\n%s\n%s\n%s", bads, raw, out, errs)
	}
}

// TestRehearseInterrupted: Ctrl-C is no failure of an act that was never played.
func TestRehearseInterrupted(t *testing.T) {
	s, _, errs := testStreams(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := Main(ctx, []string{"qnetops", "rehearse", "rollback", "--block", "10ms"}, s); code != exitInterrupted {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
