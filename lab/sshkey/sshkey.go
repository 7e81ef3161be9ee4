// Package sshkey makes key pairs of OpenSSH for the people and hosts of a lab.
package sshkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Write makes an ed25519 key pair of OpenSSH at path (mode 0600) and path.pub, and
// returns the public half.
func Write(path, comment string) (ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making key %s: %w", path, err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, fmt.Errorf("encoding key %s: %w", path, err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("encoding key %s: %w", path, err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, fmt.Errorf("writing key: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " " + comment + "\n"
	if err := os.WriteFile(path+".pub", []byte(line), 0o644); err != nil {
		return nil, fmt.Errorf("writing key: %w", err)
	}
	return key, nil
}
