package need_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/qnetops/qnetops/internal/need"
)

// TestMissingHelper is the body that TestMissing runs in a process of its own, since a test cannot watch itself fail.
func TestMissingHelper(t *testing.T) {
	if os.Getenv("NEED_HELPER") == "" {
		return // only TestMissing runs it
	}
	need.Program(t, "no-such-program-anywhere")
	t.Error("went on without the program")
}

func TestMissing(t *testing.T) {
	run := func(ci string) (string, error) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestMissingHelper$", "-test.v")
		cmd.Env = append(os.Environ(), "NEED_HELPER=1", "CI="+ci)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("")
	if err != nil || !strings.Contains(out, "SKIP") || !strings.Contains(out, "no-such-program-anywhere") {
		t.Errorf("without CI: %v\n%s", err, out)
	}
	out, err = run("true")
	if err == nil || !strings.Contains(out, "FAIL") || !strings.Contains(out, "no-such-program-anywhere") {
		t.Errorf("with CI=true: %v\n%s", err, out)
	}
}

func TestProgramFinds(t *testing.T) {
	if got := need.Program(t, "sh"); len(got) != 1 || !strings.HasSuffix(got[0], "/sh") {
		t.Error(got)
	}
}
