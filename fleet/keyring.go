package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// usualKeys are tried where no key is configured, as ssh does.
var usualKeys = []string{"id_ed25519", "id_ecdsa", "id_rsa"}

// keyring holds the keys of a run: the SSH agent is asked once for its list,
// a file is read once, a passphrase asked for once.
type keyring struct {
	prompt Prompter
	getenv func(string) string
	asking gate // one question at a time

	mu    sync.Mutex
	files map[string]*keyFile

	agentOnce sync.Once
	agentConn net.Conn
	agentKeys []ssh.Signer
	agentErr  error
}

func newKeyring(o Options) *keyring {
	return &keyring{prompt: o.Prompt, getenv: o.Getenv, asking: newGate(), files: map[string]*keyFile{}}
}

func (k *keyring) close() {
	if k.agentConn != nil {
		k.agentConn.Close()
	}
}

// offer is what one handshake brings: signers in the order they are shown, and
// words about each for an error.
type offer struct {
	signers []ssh.Signer
	names   []string
	notes   []string
}

func (o *offer) add(s ssh.Signer, name string) {
	for _, have := range o.signers {
		if bytes.Equal(have.PublicKey().Marshal(), s.PublicKey().Marshal()) {
			return
		}
	}
	o.signers = append(o.signers, s)
	o.names = append(o.names, name)
}

// offer assembles the keys for one hop; every hop gets the same chain. The
// configured keys come first, from the agent where it holds them. The rest of
// the agent follows only where nothing is configured or identities_only is off:
// sshd counts each shown key as a try (MaxAuthTries 6). wait wraps the waiting
// for a passphrase so that it does not count against the connect timeout.
func (k *keyring) offer(ctx context.Context, keys []string, only bool, wait func(func())) *offer {
	o := &offer{}
	held := k.agent(o)
	for _, file := range keys {
		k.offerFile(ctx, o, held, file, wait, true)
	}
	if len(keys) > 0 && only {
		return o
	}
	for _, s := range held {
		o.add(s, "agent key "+fingerprint(s.PublicKey()))
	}
	if len(keys) > 0 {
		return o
	}
	for _, name := range usualKeys {
		file := filepath.Join(k.getenv("HOME"), ".ssh", name)
		if _, err := os.Stat(file); err == nil {
			k.offerFile(ctx, o, held, file, wait, false)
		}
	}
	return o
}

func (k *keyring) offerFile(ctx context.Context, o *offer, held []ssh.Signer, file string, wait func(func()), configured bool) {
	kf := k.file(file)
	if kf.public == nil {
		if configured {
			o.notes = append(o.notes, kf.err.Error())
		}
		return
	}
	for _, s := range held {
		if bytes.Equal(s.PublicKey().Marshal(), kf.public.Marshal()) {
			o.add(s, file+" (from the agent)")
			return
		}
	}
	if kf.err != nil {
		o.notes = append(o.notes, kf.err.Error())
		return
	}
	o.add(&fileSigner{ctx: ctx, ring: k, file: kf, wait: wait}, file)
}

// agent lists the keys of the SSH agent, nil where there is none.
func (k *keyring) agent(o *offer) []ssh.Signer {
	k.agentOnce.Do(func() {
		socket := k.getenv("SSH_AUTH_SOCK")
		if socket == "" {
			return
		}
		k.agentConn, k.agentErr = net.Dial("unix", socket)
		if k.agentErr == nil {
			k.agentKeys, k.agentErr = agent.NewClient(k.agentConn).Signers()
		}
	})
	if k.agentErr != nil {
		o.notes = append(o.notes, fmt.Sprintf("SSH agent not usable: %v", k.agentErr))
	}
	return k.agentKeys
}

// keyFile is a private key on this machine. Its public half is known without
// the passphrase, so that only a key the host would accept is asked for.
type keyFile struct {
	path   string
	public ssh.PublicKey
	pem    []byte // private half while locked
	err    error  // why the private half cannot be used

	// Guarded by keyring.asking.
	signer ssh.Signer
	locked error // the answer to a failed passphrase, kept: one question a run
}

func (k *keyring) file(path string) *keyFile {
	k.mu.Lock()
	defer k.mu.Unlock()
	kf, ok := k.files[path]
	if !ok {
		kf = readKeyFile(path)
		k.files[path] = kf
	}
	return kf
}

func readKeyFile(path string) *keyFile {
	kf := &keyFile{path: path}
	text, err := os.ReadFile(path)
	if err != nil {
		kf.err = fmt.Errorf("reading key: %w", err)
		kf.public = readPublic(path + ".pub")
		return kf
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
		kf.public, kf.err = public, fmt.Errorf("key %s is a public key and the SSH agent does not hold the private one", path)
		return kf
	}
	signer, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		kf.signer, kf.public = signer, signer.PublicKey()
	case errors.As(err, &locked):
		kf.pem, kf.public = text, locked.PublicKey
		if kf.public == nil { // older PEM forms say nothing about the public half
			kf.public = readPublic(path + ".pub")
		}
		if kf.public == nil {
			kf.err = fmt.Errorf("key %s has a passphrase and no %s.pub beside it", path, filepath.Base(path))
		}
	default:
		kf.err = fmt.Errorf("key %s: %w", path, err)
	}
	return kf
}

func readPublic(path string) ssh.PublicKey {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil
	}
	return public
}

// unlock gives the signer, asking for the passphrase the first time. wait wraps
// the waiting for the operator.
func (k *keyring) unlock(ctx context.Context, kf *keyFile, wait func(func())) (signer ssh.Signer, err error) {
	wait(func() {
		if err = k.asking.enter(ctx); err != nil {
			return
		}
		defer k.asking.leave()
		if kf.signer == nil && kf.locked == nil {
			kf.signer, kf.locked = kf.open(ctx, k.prompt)
		}
		signer, err = kf.signer, kf.locked
	})
	return signer, err
}

func (kf *keyFile) open(ctx context.Context, prompt Prompter) (ssh.Signer, error) {
	if prompt == nil {
		return nil, fmt.Errorf("key %s has a passphrase and there is nobody to ask: put it into the SSH agent (ssh-add)", kf.path)
	}
	for range 3 {
		secret, err := prompt.Passphrase(ctx, kf.path)
		if err != nil {
			return nil, fmt.Errorf("asking for the passphrase of %s: %w", kf.path, err)
		}
		signer, err := ssh.ParsePrivateKeyWithPassphrase(kf.pem, secret)
		clear(secret)
		if err == nil {
			return signer, nil
		}
	}
	return nil, fmt.Errorf("key %s: wrong passphrase", kf.path)
}

// fileSigner signs with a key file and unlocks it at the moment of use, which
// comes only after the host said that it would accept the key.
type fileSigner struct {
	ctx  context.Context
	ring *keyring
	file *keyFile
	wait func(func())
	err  error
}

func (s *fileSigner) PublicKey() ssh.PublicKey { return s.file.public }

func (s *fileSigner) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	return s.SignWithAlgorithm(r, data, "")
}

// SignWithAlgorithm lets RSA keys sign with SHA-2, the only kind sshd takes now.
func (s *fileSigner) SignWithAlgorithm(_ io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	signer, err := s.ring.unlock(s.ctx, s.file, s.wait)
	if err != nil {
		s.err = err
		return nil, err
	}
	if as, ok := signer.(ssh.AlgorithmSigner); ok && algorithm != "" {
		return as.SignWithAlgorithm(rand.Reader, data, algorithm)
	}
	return signer.Sign(rand.Reader, data)
}
