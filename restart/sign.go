package restart

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// Signer is a key that signs.
type Signer = ssh.Signer

// Sign makes the detached signature of data: an armored SSHSIG in Namespace over SHA-512, as `ssh-keygen -Y sign` makes it.
func Sign(signer Signer, data []byte) ([]byte, error) {
	sig, err := sshsig.Sign(bytes.NewReader(data), signer, sshsig.HashSHA512, Namespace)
	if err != nil {
		return nil, fmt.Errorf("signing with %s: %w", ssh.FingerprintSHA256(signer.PublicKey()), err)
	}
	return sshsig.Armor(sig), nil
}

// Codes of a SignatureError; they are those of LeftOut.
const (
	CodeBadSignature  = "bad_signature"  // none, unreadable, or made for another purpose
	CodeUnknownSigner = "unknown_signer" // the key is not that of an operator, or not at this time
	CodeChanged       = "changed"        // an operator's key, over other bytes
)

// SignatureError is a signature that does not count.
type SignatureError struct {
	Code   string
	Reason string
}

func (e *SignatureError) Error() string { return e.Reason }

// Hint says what to do about it.
func (e *SignatureError) Hint() string {
	switch e.Code {
	case CodeUnknownSigner:
		return "add the operator's key to the allowed-signers file once you have compared its fingerprint with him over another channel"
	case CodeChanged:
		return "the file is not the one that was signed: ask its operator for both files again"
	}
	return "the signature lies beside its file as FILE.sig, made by ssh-keygen -Y sign -n " + Namespace + " or by qnetops"
}

// Signed says who signed.
type Signed struct {
	Principals []string // operators whose key it is, in the order of the allowed-signers file
	Key        string   // fingerprint, SHA256:…
}

// Verify checks a detached armored signature of data by one of the signers, whose keys count at the given time. The hash
// inside may be SHA-512 or SHA-256. The error is *SignatureError.
func Verify(signers Signers, data, armored []byte, at time.Time) (Signed, error) {
	sig, err := unarmor(armored)
	if err != nil {
		return Signed{}, &SignatureError{CodeBadSignature, err.Error()}
	}
	key := ssh.FingerprintSHA256(sig.PublicKey)
	if sig.Namespace != Namespace {
		return Signed{}, &SignatureError{CodeBadSignature, fmt.Sprintf("the signature is for the namespace %q, not for %q", clipped(sig.Namespace), Namespace)}
	}
	principals, why := signers.of(sig.PublicKey, at)
	if len(principals) == 0 {
		return Signed{}, &SignatureError{CodeUnknownSigner, fmt.Sprintf("signed with %s: %s", key, why)}
	}
	if err := sshsig.Verify(bytes.NewReader(data), sig, sig.PublicKey, sig.HashAlgorithm, Namespace); err != nil {
		return Signed{}, &SignatureError{CodeChanged, fmt.Sprintf("the signature with %s of %s is one over other bytes: %v", key, principals[0], err)}
	}
	return Signed{principals, key}, nil
}

// maxSignature is more than any kind of key makes.
const maxSignature = 64 << 10

func unarmor(armored []byte) (*sshsig.Signature, error) {
	if len(bytes.TrimSpace(armored)) == 0 {
		return nil, errors.New("there is no signature")
	}
	if len(armored) > maxSignature {
		return nil, fmt.Errorf("the signature is %d bytes, more than %d", len(armored), maxSignature)
	}
	// pem skips what stands before and after; a file with more than one signature in it would be read by its first.
	block, rest := pem.Decode(armored)
	if block == nil || !bytes.HasPrefix(bytes.TrimLeft(armored, " \t\r\n"), []byte("-----BEGIN ")) || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the signature is not one armored SSH SIGNATURE and nothing else")
	}
	sig, err := sshsig.Unarmor(armored)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the signature cannot be read: %w", err)
	case sig.HashAlgorithm != sshsig.HashSHA512 && sig.HashAlgorithm != sshsig.HashSHA256:
		return nil, fmt.Errorf("the signature's hash is %q, want sha512 or sha256", clipped(sig.HashAlgorithm.String()))
	}
	if _, cert := sig.PublicKey.(*ssh.Certificate); cert {
		return nil, errors.New("the signature is by a certificate; sign with the key itself")
	}
	return sig, nil
}

// KeySource finds the key an operator signs with.
type KeySource struct {
	// Passphrase asks for the passphrase of a key file; nil: files with one can only be used through the SSH agent.
	Passphrase func(ctx context.Context, file string) ([]byte, error)
	// AgentSocket is SSH_AUTH_SOCK, "" for no agent.
	AgentSocket string
}

// KeyError is a key that cannot be used for signing.
type KeyError struct {
	File string // "" where none was named
	Err  error
	hint string
}

func (e *KeyError) Error() string {
	if e.File == "" {
		return "signing key: " + e.Err.Error()
	}
	return "signing key " + e.File + ": " + e.Err.Error()
}

func (e *KeyError) Unwrap() error { return e.Err }

// Hint says how a key is named.
func (e *KeyError) Hint() string { return e.hint }

// Open gives the signer of a key file, and what closes it. A public key file names a key of the SSH agent, which is also
// used for a private one that it holds; with no file it is the agent's only key. Passphrases are asked for here and the
// answer is not kept. The error is *KeyError.
func (k KeySource) Open(ctx context.Context, file string) (Signer, func(), error) {
	fail := func(hint string, err error) (Signer, func(), error) {
		return nil, nil, &KeyError{file, err, hint}
	}
	held, done, agentErr := k.held()
	if file == "" {
		switch {
		case agentErr != nil:
			done()
			return fail("name a key with --sign-key FILE", agentErr)
		case len(held) != 1:
			done()
			return fail("name the key with --sign-key FILE (a .pub file means the agent's key)", fmt.Errorf("the SSH agent holds %d keys, and one must be meant", len(held)))
		}
		return held[0], done, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		done()
		return fail("give an OpenSSH private key, or a .pub file whose key the SSH agent holds", cause(err))
	}
	signer, public, err := readKey(text)
	for _, s := range held {
		if public != nil && bytes.Equal(s.PublicKey().Marshal(), public.Marshal()) {
			return s, done, nil
		}
	}
	done()
	switch locked := (*ssh.PassphraseMissingError)(nil); {
	case signer != nil:
		return signer, func() {}, nil
	case errors.As(err, &locked):
		signer, err := k.unlock(ctx, file, text)
		if err != nil {
			return fail("put the key into the SSH agent (ssh-add), or run this on a terminal", err)
		}
		return signer, func() {}, nil
	case err != nil:
		return fail("give an OpenSSH private key (ssh-keygen -t ed25519 makes one)", err)
	case agentErr != nil:
		return fail("start the agent and add the key (ssh-add), or name the private key's file", fmt.Errorf("is a public key: %w", agentErr))
	}
	return fail("add the key to the agent (ssh-add), or name the private key's file", errors.New("is a public key and the SSH agent does not hold its private half"))
}

// cause drops the path from an error that names it again.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// held are the agent's keys and what ends the conversation with it.
func (k KeySource) held() ([]ssh.Signer, func(), error) {
	if k.AgentSocket == "" {
		return nil, func() {}, errors.New("there is no SSH agent (SSH_AUTH_SOCK is not set)")
	}
	conn, err := net.Dial("unix", k.AgentSocket)
	if err != nil {
		return nil, func() {}, fmt.Errorf("the SSH agent cannot be reached: %w", err)
	}
	done := func() { conn.Close() }
	keys, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, done, fmt.Errorf("asking the SSH agent for its keys: %w", err)
	}
	return keys, done, nil
}

// readKey reads a key file: a signer where the private half is there and open, the public half where it is known.
func readKey(text []byte) (ssh.Signer, ssh.PublicKey, error) {
	if public, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
		return nil, public, nil
	}
	signer, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return signer, signer.PublicKey(), nil
	case errors.As(err, &locked):
		return nil, locked.PublicKey, err
	}
	return nil, nil, err
}

// passphraseTries is how often a wrong passphrase may be corrected, as ssh does.
const passphraseTries = 3

func (k KeySource) unlock(ctx context.Context, file string, text []byte) (ssh.Signer, error) {
	if k.Passphrase == nil {
		return nil, errors.New("has a passphrase and there is nobody to ask")
	}
	for range passphraseTries {
		secret, err := k.Passphrase(ctx, file)
		if err != nil {
			return nil, err
		}
		signer, err := ssh.ParsePrivateKeyWithPassphrase(text, secret)
		clear(secret)
		if err == nil {
			return signer, nil
		}
	}
	return nil, errors.New("wrong passphrase")
}
