package fleet

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// openSSH starts the system's sshd on loopback, for root, with one ed25519 and
// one ECDSA host key, and returns a host entry and known_hosts lines for it.
func openSSH(t *testing.T, w *world, options ...string) Host {
	t.Helper()
	need.Root(t)
	programs := need.Program(t, "sshd", "ssh-keygen")
	dir := t.TempDir()
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd wants it for privilege separation
		t.Fatal(err)
	}
	for _, kind := range []string{"ed25519", "ecdsa"} {
		if out, err := exec.Command(programs[1], "-q", "-t", kind, "-N", "", "-f", filepath.Join(dir, kind)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	authorized := filepath.Join(dir, "authorized_keys")
	if err := os.WriteFile(authorized, ssh.MarshalAuthorizedKey(testSigner(userSeed).PublicKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	// HOME of its own: a shell's start-up files on this machine are not under test.
	config := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s/ed25519\nHostKey %s/ecdsa\nAuthorizedKeysFile %s\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nSetEnv HOME=%s\n%s\n",
		port, dir, dir, authorized, dir, strings.Join(options, "\n"))
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(programs[0], "-D", "-e", "-f", filepath.Join(dir, "config"))
	log := &tailBuffer{}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that panics leaves no server behind
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("sshd said: %s", log)
		}
	})
	// Only the ECDSA key is recorded, though sshd and this library would rather use the other.
	recorded := readPublic(filepath.Join(dir, "ecdsa.pub"))
	w.known = append(w.known, knownhosts.Line([]string{net.JoinHostPort("127.0.0.1", itoa(port))}, recorded))
	w.opts.Dial = nil
	h := w.inv.hopDefaults
	h.ID, h.Address, h.Port, h.Container, h.EngineSocket = "001", "127.0.0.1", port, "qnet-genesis-001", filepath.Join(dir, "engine.sock")
	waitFor(t, h)
	return h
}

// waitFor ends when sshd listens.
func waitFor(t *testing.T, h Host) {
	t.Helper()
	for range 100 {
		c, err := net.Dial("tcp", net.JoinHostPort(h.Address, itoa(h.Port)))
		if err == nil {
			c.Close()
			return
		}
		pause(t.Context(), 50*time.Millisecond)
	}
	t.Fatal("sshd does not listen")
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestRealOpenSSH(t *testing.T) {
	w := newWorld(t)
	h := openSSH(t, w)
	node, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.APIPort = node.Addr().(*net.TCPAddr).Port
	serveHTTP(t, node, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(rw, "ok h=4711 build=1111111")
	}))
	socket, err := net.Listen("unix", h.EngineSocket)
	if err != nil {
		t.Fatal(err)
	}
	serveHTTP(t, socket, &fakeEngine{api: "1.41", now: time.Now})
	w.inv.Hosts = []Host{h}
	c := w.conn(w.open(), "001")

	if !strings.HasPrefix(c.HostKey(), "ecdsa-sha2-nistp256 SHA256:") {
		t.Errorf("host key %s, known_hosts holds the ECDSA one", c.HostKey())
	}
	if !strings.HasPrefix(c.Server(), "SSH-2.0-OpenSSH") {
		t.Errorf("server %s", c.Server())
	}
	if health, err := c.Node().Healthz(t.Context()); err != nil || health.Height != 4711 {
		t.Errorf("direct-tcpip: %+v, %v", health, err)
	}
	if info, err := c.Engine().Info(t.Context()); err != nil || info.Version != "20.10.24" {
		t.Errorf("direct-streamlocal: %+v, %v", info, err)
	}
	if offset, err := c.Clock(t.Context()); err != nil || offset.Abs() > time.Second {
		t.Errorf("exec of date: %v, %v", offset, err)
	}
	if disk, err := c.Disk(t.Context(), "/"); err != nil || disk.TotalBytes == 0 || disk.FreeBytes > disk.TotalBytes {
		t.Errorf("exec of df: %+v, %v", disk, err)
	}
	errs := make(chan error)
	for range 20 { // twice sshd's MaxSessions
		go func() { _, err := c.Clock(t.Context()); errs <- err }()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Errorf("20 commands at a time: %v", err)
		}
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestRealOpenSSHRefusals(t *testing.T) {
	w := newWorld(t)
	h := openSSH(t, w, "AllowTcpForwarding no", "AllowStreamLocalForwarding no", "MaxSessions 1")
	w.inv.Hosts = []Host{h}
	c := w.conn(w.open(), "001")
	var refused *ForwardingError
	if _, err := c.Node().Healthz(t.Context()); !errors.As(err, &refused) || !refused.Denied {
		t.Errorf("AllowTcpForwarding no: %v", err)
	}
	if err := c.Engine().Ping(t.Context()); !errors.As(err, &refused) || refused.Target != h.EngineSocket {
		t.Errorf("AllowStreamLocalForwarding no: %v", err)
	}
	errs := make(chan error)
	for range 4 {
		go func() { _, err := c.Clock(t.Context()); errs <- err }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Errorf("MaxSessions 1: %v", err)
		}
	}
}

// Each failure of a connect keeps its type with the real server.
func TestRealOpenSSHTypedFailures(t *testing.T) {
	w := newWorld(t)
	h := openSSH(t, w)
	w.inv.Hosts = []Host{h}
	good := w.known[0]
	w.known = []string{"# none"}
	var key *HostKeyError
	if _, err := w.open().Conn(t.Context(), "001"); !errors.As(err, &key) || key.Fault != KeyUnknown {
		t.Errorf("unknown key: %v", err)
	}
	w.known = []string{knownhosts.Line([]string{net.JoinHostPort(h.Address, itoa(h.Port))}, testSigner(99).PublicKey())}
	if _, err := w.open().Conn(t.Context(), "001"); !errors.As(err, &key) || key.Fault != KeyChanged {
		t.Errorf("changed key: %v", err)
	}
	w.known = []string{good}
	w.inv.Hosts[0].Key = writeKey(t, w.dir, "wrong", testKey(wrongSeed), "")
	var auth *AuthError
	if _, err := w.open().Conn(t.Context(), "001"); !errors.As(err, &auth) {
		t.Errorf("wrong key: %v", err)
	}
	w.inv.Hosts[0].Port = freePort(t)
	var gone *UnreachableError
	if _, err := w.open().Conn(t.Context(), "001"); !errors.As(err, &gone) {
		t.Errorf("closed port: %v", err)
	}
}
