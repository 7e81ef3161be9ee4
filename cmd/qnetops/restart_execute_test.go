package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Bad input of the steps after a record is told what, why and what to do, with code 2.
func TestRestartExecuteUsage(t *testing.T) {
	dir := t.TempDir()
	signers := filepath.Join(dir, "signers")
	if err := os.WriteFile(signers, []byte("ann ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		say  []string
	}{
		{[]string{"restart", "execute"}, []string{"folder of the record"}},
		{[]string{"restart", "execute", dir}, []string{"--allowed-signers", "not the one in the folder"}},
		{[]string{"restart", "execute", dir, "--allowed-signers", signers, "--at", "tomorrow"}, []string{"--at", "UTC"}},
		{[]string{"restart", "execute", dir, "--allowed-signers", signers, "--only", "001"}, []string{"whole fleet", "--skip"}},
		{[]string{"restart", "execute", dir, "--allowed-signers", signers, "--policy", "no"}, []string{"--policy", "always"}},
		{[]string{"restart", "execute", dir, "--allowed-signers", signers}, []string{"record.json"}},
		{[]string{"restart", "verify"}, []string{"folder of the record"}},
		{[]string{"restart", "verify", dir}, []string{"--allowed-signers"}},
		{[]string{"restart", "verify", dir, "--allowed-signers", signers}, []string{"record.json"}},
		{[]string{"restart", "retire"}, []string{"folder of the record"}},
		{[]string{"restart", "unbar"}, []string{"no identity", "--image is missing", "--at is missing"}},
		{[]string{"restart", "unbar", "n1", "--image", "qnet:v2", "--at", "2030"}, []string{"--at", "UTC"}},
	} {
		out, errs, code := runLine(t, c.args...)
		if code != exitUsage {
			t.Errorf("%v: exit %d, want %d\n%s%s", c.args, code, exitUsage, out, errs)
		}
		for _, say := range c.say {
			if !strings.Contains(out+errs, say) {
				t.Errorf("%v: does not say %q:\n%s%s", c.args, say, out, errs)
			}
		}
	}
}
