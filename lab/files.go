package lab

import (
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// Names of the files that WriteFiles makes.
const (
	HostsFile      = "hosts.toml"
	KeyFile        = "id_ed25519"
	KnownHostsFile = "known_hosts"
)

// clientKey makes the operator's key.
func clientKey(seed int64) (ssh.Signer, []byte, error) {
	key := edKey(seed, "operator")
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("making the client key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, "operator of the lab")
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the client key: %w", err)
	}
	return signer, pem.EncodeToMemory(block), nil
}

// ClientKey is the operator's private key, which every host accepts.
func (l *Lab) ClientKey() ssh.Signer { return l.client }

// WriteFiles writes hosts.toml, the operator's key and known_hosts into dir and
// returns the path of hosts.toml. Paths in it are relative to it.
func (l *Lab) WriteFiles(dir string) (string, error) {
	var toml, known strings.Builder
	fmt.Fprintf(&toml, "# Written by `qnetops lab up`.\nfleet = %q\n\n[chain]\nblock = %q\n\n[images]\nregistry = %q\n\n", FleetName, l.cfg.Block.String(), RegistryHost)
	fmt.Fprintf(&toml, "[ssh]\nkey = %q\nknown_hosts = [%q]\n", KeyFile, KnownHostsFile)
	for _, h := range l.hosts {
		address, port := h.where()
		fmt.Fprintf(&toml, "\n[[host]]\nid = %q\naddress = %q\nport = %d\nuser = %q\nrole = %q\ncontainer = %q\napi_port = %d\n",
			h.spec.ID, address, port, h.spec.User, h.spec.Role, h.spec.Container, h.spec.APIPort)
		if h.spec.Jump != "" {
			fmt.Fprintf(&toml, "jump = %q\n", h.spec.Jump)
		}
		fmt.Fprintln(&known, knownhosts.Line([]string{knownhosts.Normalize(h.addr())}, h.key.PublicKey()))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("writing the lab's files: %w", err)
	}
	files := []struct {
		name string
		data string
		mode os.FileMode
	}{{HostsFile, toml.String(), 0o644}, {KnownHostsFile, known.String(), 0o644}, {KeyFile, string(l.keyPEM), 0o600}}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		os.Remove(path) // a mode is only given to a new file
		if err := os.WriteFile(path, []byte(f.data), f.mode); err != nil {
			return "", fmt.Errorf("writing the lab's files: %w", err)
		}
	}
	return filepath.Join(dir, HostsFile), nil
}
