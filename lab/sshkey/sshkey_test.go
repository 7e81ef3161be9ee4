package sshkey_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/lab/sshkey"
)

// TestWrite: both files hold the same key, and only its owner reads the private one.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	public, err := sshkey.Write(path, "alice")
	if err != nil {
		t.Fatal(err)
	}
	private, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil || !bytes.Equal(signer.PublicKey().Marshal(), public.Marshal()) {
		t.Errorf("the private half does not belong to the public one: %v", err)
	}
	line, err := os.ReadFile(path + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	key, comment, _, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil || comment != "alice" || !bytes.Equal(key.Marshal(), public.Marshal()) {
		t.Errorf("%s: %v", line, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the private key: %v, %v", info, err)
	}
	if _, err := sshkey.Write(filepath.Join(path, "below-a-file"), ""); err == nil {
		t.Error("a key was written below a file")
	}
}
