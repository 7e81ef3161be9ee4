package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestREADMEFirstRoll runs the very commands of the README's first roll, in
// their order, with the real program as child processes on loopback.
func TestREADMEFirstRoll(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^\./qnetops (.+)$`).FindAllStringSubmatch(string(raw), -1)
	if len(lines) < 6 {
		t.Fatalf("only %d commands found in the README", len(lines))
	}
	program := buildProgram(t)
	dir := t.TempDir()
	run := func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, strings.Fields(line)...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		// Where the last command of the page did not run.
		cmd := exec.Command(program, "lab", "down", "--dir", filepath.Join(dir, "lab-dir"))
		_ = cmd.Run()
	})
	said := map[string]string{}
	for _, m := range lines {
		out, err := run(m[1])
		if err != nil {
			t.Fatalf("qnetops %s: %v\n%s", m[1], err, out)
		}
		said[strings.Fields(m[1])[0]] = out
	}
	for command, want := range map[string]string{"status": "is healthy", "roll": "6 rolled", "ops": "done"} {
		if !strings.Contains(said[command], want) {
			t.Errorf("qnetops %s does not say %q:\n%s", command, want, said[command])
		}
	}
}

// TestRehearseRoll is the README's first command: it must pass on any machine,
// without root and without Docker.
func TestRehearseRoll(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.md")
	s, out, errs := testStreams(t)
	if code := Main(t.Context(), []string{"qnetops", "rehearse", "roll", "--report", file}, s); code != exitDone {
		t.Fatalf("exit code %d\n%s\n%s", code, errs, out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"roll qnet:v2", "roll qnet:crash", "| 4 | yes |"} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the report does not hold %q:\n%s", want, raw)
		}
	}
}
