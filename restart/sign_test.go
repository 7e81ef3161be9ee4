package restart

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/qnetops/qnetops/internal/need"
)

func shaOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// testKey is the ed25519 key of a name, the same in every run.
func testKey(t testing.TB, name string) (ed25519.PrivateKey, ssh.Signer) {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	key := ed25519.NewKeyFromSeed(seed[:])
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, signer
}

// allowedLine is a line of an allowed-signers file.
func allowedLine(principals, options string, signer ssh.Signer) string {
	if options != "" {
		principals += " " + options
	}
	return principals + " " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
}

func allowed(t testing.TB, lines ...string) Signers {
	t.Helper()
	s, err := ParseAllowedSigners("allowed_signers", []byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signed(t testing.TB, signer ssh.Signer, data []byte) []byte {
	t.Helper()
	sig, err := Sign(signer, data)
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

func TestVerify(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, ann := testKey(t, "ann")
	_, bob := testKey(t, "bob")
	data := []byte(`{"what":"was seen"}`)
	sig := signed(t, ann, data)
	block, _ := pem.Decode(sig)
	flipped := bytes.Clone(block.Bytes)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		line string
		data []byte
		sig  []byte
		code string
		want string
	}{
		"good":                {allowedLine("ann", "", ann), data, sig, "", ""},
		"good, bounded":       {allowedLine("ann", `namespaces="git,qnet*",valid-after="20260101Z",valid-before="20270101Z"`, ann), data, sig, "", ""},
		"nobody's key":        {allowedLine("ann", "", bob), data, sig, CodeUnknownSigner, "no operator"},
		"other namespace":     {allowedLine("ann", `namespaces="git"`, ann), data, sig, CodeUnknownSigner, "other namespaces"},
		"excepted namespace":  {allowedLine("ann", `namespaces="*,!qnetops"`, ann), data, sig, CodeUnknownSigner, "other namespaces"},
		"not yet":             {allowedLine("ann", `valid-after="20260102030406Z"`, ann), data, sig, CodeUnknownSigner, "only after"},
		"no more":             {allowedLine("ann", `valid-before="202601020304Z"`, ann), data, sig, CodeUnknownSigner, "only before"},
		"changed byte":        {allowedLine("ann", "", ann), []byte(`{"what":"was Seen"}`), sig, CodeChanged, "other bytes"},
		"changed signature":   {allowedLine("ann", "", ann), data, pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: flipped}), CodeChanged, "other bytes"},
		"none":                {allowedLine("ann", "", ann), data, []byte("\n"), CodeBadSignature, "no signature"},
		"cut off":             {allowedLine("ann", "", ann), data, sig[:len(sig)/2], CodeBadSignature, "armored"},
		"something before it": {allowedLine("ann", "", ann), data, append([]byte("x\n"), sig...), CodeBadSignature, "armored"},
		"two of them":         {allowedLine("ann", "", ann), data, append(bytes.Clone(sig), sig...), CodeBadSignature, "armored"},
		"another PEM":         {allowedLine("ann", "", ann), data, pem.EncodeToMemory(&pem.Block{Type: "PGP", Bytes: block.Bytes}), CodeBadSignature, "PGP"},
		"huge":                {allowedLine("ann", "", ann), data, bytes.Repeat([]byte("x"), maxSignature+1), CodeBadSignature, "more than"},
	} {
		who, err := Verify(allowed(t, c.line), c.data, c.sig, now)
		if c.code == "" {
			if err != nil || who.Key != ssh.FingerprintSHA256(ann.PublicKey()) || strings.Join(who.Principals, " ") != "ann" {
				t.Errorf("%s: %+v, %v", name, who, err)
			}
			continue
		}
		bad, ok := err.(*SignatureError)
		if !ok || bad.Code != c.code || !strings.Contains(bad.Reason, c.want) || bad.Hint() == "" {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.want)
		}
	}
	// The namespace is part of what is signed.
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 0x20
		if _, err := Verify(allowed(t, allowedLine("ann", "", ann)), changed, sig, now); err == nil {
			t.Errorf("byte %d may be changed", i)
		}
	}
}

// keygen runs ssh-keygen.
func keygen(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), need.Program(t, "ssh-keygen")[0], args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestInteropWithSSHKeygen: ssh-keygen accepts our signatures, we accept its, and both refuse what is wrong.
func TestInteropWithSSHKeygen(t *testing.T) {
	t.Parallel()
	need.Program(t, "ssh-keygen")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	data := []byte(`{"height":120,"schema":"qnetops/evidence/v1"}`)
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(in(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		t.Run(kind, func(t *testing.T) {
			key := in("id_" + kind)
			if out, err := keygen(t, nil, "-q", "-t", kind, "-N", "", "-C", "", "-f", key); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			signer, done, err := KeySource{}.Open(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			_, other := testKey(t, "other")
			write("allowed", []byte("# operators\n"+allowedLine("ann@example.org", `namespaces="qnetops"`, signer)))
			write("others", []byte(allowedLine("ann@example.org", "", other)))
			write("ours.json", data)
			write("ours.json.sig", signed(t, signer, data))
			verify := func(allowed, namespace string, data []byte) error {
				_, err := keygen(t, data, "-Y", "verify", "-f", in(allowed), "-I", "ann@example.org", "-n", namespace, "-s", in("ours.json.sig"))
				return err
			}
			if err := verify("allowed", "qnetops", data); err != nil {
				t.Errorf("ssh-keygen refuses our signature: %v", err)
			}
			if verify("allowed", "file", data) == nil || verify("others", "qnetops", data) == nil || verify("allowed", "qnetops", append(bytes.Clone(data), '\n')) == nil {
				t.Error("ssh-keygen accepts what is not ours")
			}
			file, err := os.ReadFile(in("allowed"))
			if err != nil {
				t.Fatal(err)
			}
			signers, err := ParseAllowedSigners("allowed", file)
			if err != nil {
				t.Fatal(err)
			}
			for _, hash := range []string{"sha512", "sha256"} {
				for namespace, good := range map[string]bool{"qnetops": true, "file": false} {
					os.Remove(in("theirs.json.sig"))
					write("theirs.json", data)
					if out, err := keygen(t, nil, "-Y", "sign", "-O", "hashalg="+hash, "-f", key, "-n", namespace, in("theirs.json")); err != nil {
						t.Fatalf("%v %s", err, out)
					}
					sig, err := os.ReadFile(in("theirs.json.sig"))
					if err != nil {
						t.Fatal(err)
					}
					if _, err := Verify(signers, data, sig, time.Now()); (err == nil) != good {
						t.Errorf("%s in %s: %v", hash, namespace, err)
					}
					if _, err := Verify(signers, data[1:], sig, time.Now()); err == nil {
						t.Errorf("%s in %s: a changed file is accepted", hash, namespace)
					}
				}
			}
		})
	}
}

// TestSSHKeygenReadsTheSameFile: options mean to ssh-keygen what they mean here.
func TestSSHKeygenReadsTheSameFile(t *testing.T) {
	need.Program(t, "ssh-keygen")
	dir := t.TempDir()
	_, ann := testKey(t, "ann")
	data := []byte("x")
	sig := filepath.Join(dir, "x.sig")
	if err := os.WriteFile(sig, signed(t, ann, data), 0o600); err != nil {
		t.Fatal(err)
	}
	armored, err := os.ReadFile(sig)
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []string{"", `namespaces="qnetops"`, `namespaces="git"`, `namespaces="git,qn?tops"`, `namespaces="*,!qnetops"`, `NAMESPACES="qnetops"`,
		`valid-before="20300101"`, `valid-before="20200101Z"`, `valid-after="20300101"`, `valid-after="20200101000000Z",valid-before="203001010000"`} {
		file := filepath.Join(dir, "allowed")
		line := allowedLine(`"ann"`, options, ann)
		if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		out, theirs := keygen(t, data, "-Y", "verify", "-f", file, "-I", "ann", "-n", "qnetops", "-s", sig)
		_, ours := Verify(allowed(t, line), data, armored, time.Now())
		if (theirs == nil) != (ours == nil) {
			t.Errorf("%s: ssh-keygen says %v (%s), we say %v", options, theirs, strings.TrimSpace(out), ours)
		}
	}
}

func TestAllowedSignersFaults(t *testing.T) {
	_, ann := testKey(t, "ann")
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(ann.PublicKey())))
	text := strings.Join([]string{
		"# comment",
		"",
		"ann " + key + " a comment",
		"*@example.org " + key,
		"bob cert-authority " + key,
		"bob valid-after=\"tomorrow\" " + key,
		"bob valid-after=\"20270101\",valid-before=\"20260101\" " + key,
		"bob frobnicate " + key,
		"bob namespaces=qnetops " + key,
		"bob ssh-ed25519",
		"bob ssh-ed25519 !!!",
		"bob ssh-rsa " + strings.Fields(key)[1],
		"bob,bob " + key,
		"bob namespaces=\"qnetops " + key,
		"bob ssh-ed25519 " + strings.Fields(key)[1][:40],
		"bob valid-before=\"20260101\",valid-before=\"20260101\" " + key,
	}, "\r\n")
	_, err := ParseAllowedSigners("dir/allowed", []byte(text))
	faults, ok := err.(*FileFaults)
	if !ok {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, f := range faults.Faults {
		if seen[f.Line] == "" {
			seen[f.Line] = f.String()
		}
	}
	for line, want := range map[int]string{4: "pattern", 5: "decides who", 6: "no time", 7: "not later", 8: "neither an option", 9: "in quotes", 10: "before the key",
		11: "base64", 12: "ssh-ed25519", 13: "twice", 14: "quote", 15: "short read", 16: "twice"} {
		if !strings.HasPrefix(seen[line], fmt.Sprintf("dir/allowed:%d: ", line)) || !strings.Contains(seen[line], want) {
			t.Errorf("line %d: %q, want %q", line, seen[line], want)
		}
	}
	if len(seen) != 13 {
		t.Errorf("faults in %d lines: %v", len(seen), seen)
	}
	for _, empty := range []string{"", "# nobody\n", "\ufeffann " + key} {
		if _, err := ParseAllowedSigners("a", []byte(empty)); err == nil {
			t.Errorf("%q is accepted", empty)
		}
	}
	s := allowed(t, "ann,anna "+key+"\n", "bob "+key+"\n", "ann "+key+"\n")
	if got := strings.Join(s.Principals(), " "); got != "ann anna bob" {
		t.Errorf("principals %s", got)
	}
}

// TestOpenKey opens keys from files and from an agent, with and without a passphrase.
func TestOpenKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private := func(name, passphrase string) ([]byte, ssh.Signer) {
		t.Helper()
		key, signer := testKey(t, name)
		block, err := ssh.MarshalPrivateKey(key, "")
		if passphrase != "" {
			block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
		}
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(block), signer
	}
	open, ann := private("ann", "")
	locked, bob := private("bob", "open sesame")
	_, carl := testKey(t, "carl")
	plain, sealed := file("plain", open), file("locked", locked)
	annPub, carlPub := file("ann.pub", ssh.MarshalAuthorizedKey(ann.PublicKey())), file("carl.pub", ssh.MarshalAuthorizedKey(carl.PublicKey()))
	asked := 0
	answers := func(list ...string) func(context.Context, string) ([]byte, error) {
		return func(_ context.Context, path string) ([]byte, error) {
			asked++
			if path != sealed || len(list) == 0 {
				return nil, fmt.Errorf("nobody there")
			}
			answer := list[0]
			list = list[1:]
			return []byte(answer), nil
		}
	}
	socket := serveAgent(t, "ann", "bob")
	one := serveAgent(t, "ann")
	for name, c := range map[string]struct {
		from  KeySource
		file  string
		want  ssh.Signer
		asked int
		fault string
	}{
		"file":                     {KeySource{}, plain, ann, 0, ""},
		"second try":               {KeySource{Passphrase: answers("wrong", "open sesame")}, sealed, bob, 2, ""},
		"wrong three times":        {KeySource{Passphrase: answers("a", "b", "c", "open sesame")}, sealed, nil, 3, "wrong passphrase"},
		"nobody to ask":            {KeySource{}, sealed, nil, 0, "nobody to ask"},
		"no answer":                {KeySource{Passphrase: answers()}, sealed, nil, 1, "nobody there"},
		"agent's for a file":       {KeySource{AgentSocket: socket}, sealed, bob, 0, ""},
		"agent's by public file":   {KeySource{AgentSocket: socket}, annPub, ann, 0, ""},
		"not in the agent":         {KeySource{AgentSocket: socket}, carlPub, nil, 0, "does not hold"},
		"public without an agent":  {KeySource{}, annPub, nil, 0, "no SSH agent"},
		"the agent's only key":     {KeySource{AgentSocket: one}, "", ann, 0, ""},
		"one of two, not named":    {KeySource{AgentSocket: socket}, "", nil, 0, "holds 2 keys"},
		"nothing named, no agent":  {KeySource{}, "", nil, 0, "no SSH agent"},
		"an agent that is not one": {KeySource{AgentSocket: plain}, "", nil, 0, "cannot be reached"},
		"no such file":             {KeySource{}, filepath.Join(dir, "none"), nil, 0, "no such file"},
		"not a key":                {KeySource{}, file("text", []byte("hello")), nil, 0, "text"},
	} {
		asked = 0
		signer, done, err := c.from.Open(t.Context(), c.file)
		if c.want == nil {
			key, ok := err.(*KeyError)
			if !ok || !strings.Contains(err.Error(), c.fault) || key.Hint() == "" || strings.Contains(err.Error(), "sesame") {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || !bytes.Equal(signer.PublicKey().Marshal(), c.want.PublicKey().Marshal()) {
			t.Errorf("%s: %v", name, err)
		} else {
			if _, err := Verify(allowed(t, allowedLine("x", "", c.want)), []byte("data"), signed(t, signer, []byte("data")), time.Now()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			done()
		}
		if asked != c.asked {
			t.Errorf("%s: asked %d times, want %d", name, asked, c.asked)
		}
	}
}

// serveAgent runs an SSH agent with the keys of these names on a socket.
func serveAgent(t *testing.T, names ...string) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, name := range names {
		key, _ := testKey(t, name)
		if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "agent") // a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = agent.ServeAgent(ring, conn)
			}()
		}
	}()
	return ln.Addr().String()
}

// FuzzAllowedSigners: whatever the file holds, it is read or refused with places.
func FuzzAllowedSigners(f *testing.F) {
	_, ann := testKey(f, "ann")
	f.Add([]byte(allowedLine("ann,anna", `namespaces="qnetops",valid-after="20260101"`, ann)))
	f.Add([]byte("# x\r\n\"a b\" cert-authority ssh-ed25519 AAAA\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseAllowedSigners("f", data)
		if err != nil {
			if faults, ok := err.(*FileFaults); !ok || len(faults.Faults) == 0 {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if len(s.Principals()) == 0 {
			t.Fatal("accepted, and names nobody")
		}
		Verify(s, data, nil, time.Now())
	})
}

// FuzzVerify: no bytes but a signature are one.
func FuzzVerify(f *testing.F) {
	_, ann := testKey(f, "ann")
	sig := signed(f, ann, []byte("data"))
	f.Add(sig)
	f.Fuzz(func(t *testing.T, armored []byte) {
		if _, err := Verify(allowed(t, allowedLine("ann", "", ann)), []byte("other data"), armored, time.Now()); err == nil {
			t.Fatal("accepted")
		}
	})
}

// A key drawn at random must not be taken for one of the file.
func TestAnyOtherKeyIsUnknown(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	_, ann := testKey(t, "ann")
	_, err = Verify(allowed(t, allowedLine("ann", "", ann)), []byte("x"), signed(t, signer, []byte("x")), time.Now())
	if bad, ok := err.(*SignatureError); !ok || bad.Code != CodeUnknownSigner {
		t.Errorf("%v", err)
	}
}
