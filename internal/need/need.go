// Package need lets a test say what it cannot run without.
//
// On a person's machine such a test is skipped with a line that names what is missing. With CI=true in the environment it
// fails instead: a check that is silently left out protects nothing.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// Root needs the rights of root, for network namespaces and mounts.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root", "run the tests as root")
	}
}

// Linux needs that operating system.
func Linux(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		Missing(t, "Linux", "run the tests on Linux")
	}
}

// Program needs all of the named programs and returns their paths in the same order. The folders of system programs are
// searched too: they are often not in a person's PATH.
func Program(t testing.TB, names ...string) []string {
	t.Helper()
	paths := make([]string, len(names))
	for i, name := range names {
		if paths[i] = find(name); paths[i] == "" {
			Missing(t, "the program "+name, "scripts/test.sh installs it where it may")
		}
	}
	return paths
}

func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

// Postgres needs the server's programs (initdb, postgres) and returns the folder of the newest version found.
func Postgres(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	slices.SortFunc(found, func(a, b string) int { // 9 before 15: by length first
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		if a < b {
			return -1
		}
		return 1
	})
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	if path := find("initdb"); path != "" {
		return filepath.Dir(path)
	}
	Missing(t, "a Postgres server (initdb)", "scripts/test.sh installs it where it may")
	return ""
}

// Missing ends the test: skipped, or failed with CI=true.
func Missing(t testing.TB, what, hint string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this test needs %s, and with CI=true nothing is left out: %s", what, hint)
	}
	t.Skipf("left out: this test needs %s (%s)", what, hint)
}
