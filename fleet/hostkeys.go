package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// hostKeys answers from known_hosts files, each set read once a run.
type hostKeys struct {
	mu  sync.Mutex
	dbs map[string]*knownhosts.HostKeyDB
}

func newHostKeys() *hostKeys { return &hostKeys{dbs: map[string]*knownhosts.HostKeyDB{}} }

// db reads the files that exist. None at all is an empty book: every host is
// then unknown, which says what to do better than a missing file would.
func (k *hostKeys) db(files []string) (*knownhosts.HostKeyDB, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := strings.Join(files, "\x00")
	if db, ok := k.dbs[name]; ok {
		return db, nil
	}
	var present []string
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			present = append(present, file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading known_hosts: %w", err)
		}
	}
	db, err := knownhosts.NewDB(present...)
	if err != nil {
		return nil, fmt.Errorf("reading known_hosts: %w", err)
	}
	k.dbs[name] = db
	return db, nil
}

// forget makes the next question read the files again.
func (k *hostKeys) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.dbs)
}

// verifier checks the host key of one handshake and remembers how far it came.
type verifier struct {
	host     string
	address  string // the name known_hosts is asked for
	files    []string
	db       *knownhosts.HostKeyDB
	known    []knownhosts.PublicKey
	verified bool
	fault    *HostKeyError
	key      ssh.PublicKey
}

func (k *hostKeys) verifier(host, address string, files []string) (*verifier, error) {
	db, err := k.db(files)
	if err != nil {
		return nil, err
	}
	return &verifier{host: host, address: address, files: files, db: db, known: db.HostKeys(address)}, nil
}

// algorithms are those known_hosts holds for the address, so that a host with
// keys of several kinds shows the recorded one. For an unknown host they are
// the plain kinds, best first: that key is the one an operator is asked about.
func (v *verifier) algorithms() []string {
	if len(v.known) == 0 {
		return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return v.db.HostKeyAlgorithms(v.address)
}

// check is the ssh.HostKeyCallback. The remote address is replaced: the library
// wants to parse it, and behind a jump host or in memory it is no IP address.
// What counts is the name that was dialled.
func (v *verifier) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	v.key = key
	err := v.db.HostKeyCallback()(v.address, &net.TCPAddr{IP: net.IPv4zero}, key)
	if err == nil {
		v.verified = true
		return nil
	}
	var revoked *xknownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		v.fault = v.error(KeyRevoked)
	case knownhosts.IsHostKeyChanged(err):
		v.fault = v.error(KeyChanged)
	case knownhosts.IsHostUnknown(err):
		v.fault = v.error(KeyUnknown)
	default: // a certificate that does not hold, e.g. expired or for another name
		return fmt.Errorf("verifying the host key: %w", err)
	}
	return v.fault
}

func (v *verifier) error(fault KeyFault) *HostKeyError {
	e := &HostKeyError{Host: v.host, Address: v.address, Fault: fault, Files: slices.Clone(v.files)}
	if v.key != nil {
		e.Presented = fingerprint(v.key)
	}
	for _, key := range v.known {
		e.Known = append(e.Known, fingerprint(key.PublicKey))
	}
	return e
}

// fingerprint is the text OpenSSH shows, with the kind of key before it.
func fingerprint(key ssh.PublicKey) string {
	return strings.TrimPrefix(key.Type(), "ssh-") + " " + ssh.FingerprintSHA256(key)
}
