package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
)

// testStreams runs commands without a terminal and without the caller's
// environment.
func testStreams(t *testing.T) (streams, *strings.Builder, *strings.Builder) {
	t.Helper()
	var out, errs strings.Builder
	home := t.TempDir()
	return streams{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(name string) string {
		if name == "HOME" {
			return home
		}
		return ""
	}}, &out, &errs
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	s, _, _ := testStreams(t)
	app := newApp(s)
	for _, c := range []struct{ typed, want string }{
		{"roll qnet:v2 --yes --canary 001", "--yes roll --canary=001 qnet:v2"},
		{"roll --canary=001 --hosts h.toml qnet:v2", "--hosts=h.toml roll --canary=001 qnet:v2"},
		{"-o json status --check", "-o=json status --check"},
		{"status --check -o json", "-o=json status --check"},
		{"roll --set-env A=1,2 --set-env B=-3", "roll --set-env=A=1,2 --set-env=B=-3"},
		{"hosts check --only 001,002", "--only=001,002 hosts check"},
		{"ops -- -odd", "ops -- -odd"},
	} {
		got, err := reorder(app, append([]string{"qnetops"}, strings.Fields(c.typed)...))
		if err != nil {
			t.Errorf("%s: %v", c.typed, err)
			continue
		}
		if !slices.Equal(got[1:], strings.Fields(c.want)) {
			t.Errorf("%s\n became %q\n want   %q", c.typed, got[1:], strings.Fields(c.want))
		}
	}
}

func TestUsageFaultsExitWith2AndSayWhatToDo(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.toml")
	if err := os.WriteFile(bad, []byte("fleet = 3\nnope = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		say  []string
	}{
		{"rol qnet:v2", []string{"rol", "did you mean roll"}},
		{"status --chekc", []string{"--chekc", "did you mean --check"}},
		{"roll --canary", []string{"--canary", "needs a value"}},
		{"roll", []string{"IMAGE"}},
		{"roll a b", []string{"one image"}},
		{"roll qnet:v2 --on-fail maybe", []string{"--on-fail", "restore or hold"}},
		{"roll qnet:v2 --set-env QNET_WALLET_SEED=x --set-env QNET_CLEAN_DATA=1", []string{"QNET_WALLET_SEED_FILE", "QNET_CLEAN_DATA"}},
		{"status -o yaml", []string{"table or json"}},
		{"status --waive nothing=because", []string{"waivable"}},
		{"status --waive clock=", []string{"reason"}},
		{"status --waive clock=because", []string{"status makes no waivable check"}},
		{"roll qnet:v2 --waive trigger=because", []string{"roll has no waivable check", "clock"}},
		{"roll qnet:v2 --waive clock=a --waive clock=b", []string{"clock is given twice"}},
		{"halt status --waive clock=because", []string{"halt status makes no waivable check"}},
		{"restart propose-k --waive trigger=because", []string{"restart propose-k makes no waivable check"}},
		{"restart exclude --waive trigger=because", []string{"restart exclude makes no waivable check"}},
		{"restart gather --waive trigger=because", []string{"restart gather makes no waivable check"}},
		{"restart verify-record x --waive trigger=because", []string{"restart verify-record makes no waivable check"}},
		{"restart archive-check 001 --waive trigger=because", []string{"restart archive-check makes no waivable check"}},
		{"restart record --waive clock=because", []string{"restart record has no waivable check", "waivable: trigger)"}},
		{"restart record --waive trigger=a --waive trigger=b", []string{"trigger is given twice"}},
		{"status --hosts " + filepath.Join(dir, "absent.toml"), []string{"absent.toml"}},
		{"status --hosts " + bad, []string{"bad.toml:1", "bad.toml:2", "nope"}},
		{"status extra", []string{"extra"}},
		{"hosts", []string{"check"}},
		{"resume", []string{"operation id"}},
	} {
		s, out, errs := testStreams(t)
		code := Main(context.Background(), append([]string{"qnetops"}, strings.Fields(c.args)...), s)
		text := out.String() + errs.String()
		if code != exitUsage {
			t.Errorf("%s: exit code %d, want %d\n%s", c.args, code, exitUsage, text)
		}
		for _, say := range c.say {
			if !strings.Contains(text, say) {
				t.Errorf("%s: does not say %q:\n%s", c.args, say, text)
			}
		}
	}
}

// The exit codes are one table: in code, in the runbook's pages and in the
// README.
func TestExitCodesAreTheDocumentedOnes(t *testing.T) {
	for file, pattern := range map[string]string{
		"RUNBOOK.md": `(?m)^## Exit code (\d+): (.+)$`,
		"README.md":  `(?m)^\| (\d+) \| (.+) \|$`,
	} {
		raw, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		var found []exitMeaning
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(raw), -1) {
			code, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, exitMeaning{code, m[2]})
		}
		if !slices.Equal(found, exitTable()) {
			t.Errorf("%s lists\n%v\nthe program has\n%v", file, found, exitTable())
		}
	}
}

// Every command named in the README and the runbook must exist, with its
// flags: a page that names a command that is not there fails at the worst time.
func TestDocumentedCommandsExist(t *testing.T) {
	s, _, _ := testStreams(t)
	app := newApp(s)
	command := regexp.MustCompile("`(qnetops [^`]+)`|(?m)^\\./(qnetops .+)$")
	for _, file := range []string{"README.md", "RUNBOOK.md"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := command.FindAllStringSubmatch(string(raw), -1)
		if len(found) < 5 {
			t.Errorf("%s: only %d commands found; has the form of the page changed?", file, len(found))
		}
		for _, m := range found {
			line := m[1] + m[2]
			line = strings.TrimSuffix(line, " COMMAND --help")
			if _, err := reorder(app, strings.Fields(line)); err != nil {
				t.Errorf("%s names %q: %v", file, line, err)
			}
		}
	}
}

func TestLeaseRunHasItsOwnCodes(t *testing.T) {
	for _, line := range []string{"lease run --no-such-flag -- true", "lease run -- true", "lease run --name x --wait soon -- true"} {
		s, _, errs := testStreams(t)
		if code := Main(context.Background(), append([]string{"qnetops"}, strings.Fields(line)...), s); code != 125 {
			t.Errorf("%s: exit code %d, want 125\n%s", line, code, errs)
		}
	}
}

func TestGlobalWaitIsRead(t *testing.T) {
	s, _, _ := testStreams(t)
	app := newApp(s)
	var got globals
	for _, c := range app.Commands {
		if c.Name == "status" {
			c.Action = func(c *cli.Context) (err error) { got, err = readGlobals(c, s); return err }
		}
	}
	line, err := reorder(app, []string{"qnetops", "status", "--wait", "90s"})
	if err == nil {
		err = app.Run(line)
	}
	if err != nil || got.wait != 90*time.Second {
		t.Errorf("wait is %s, %v", got.wait, err)
	}
}
