package run

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/qnetops/qnetops/lease"
)

// The environment of the command.
const (
	EnvScope      = "QNETOPS_LEASE_SCOPE"
	EnvGeneration = "QNETOPS_LEASE_GENERATION" // the fencing number: give it to every target that can compare it
	EnvSocket     = "QNETOPS_LEASE_SOCK"
)

// files are the paths of one identity in a state folder.
type files struct{ lock, exits, sock string }

func paths(dir string, id lease.Identity) files {
	sum := sha256.Sum256([]byte(id.Scope + "\x00" + id.Writer + "\x00" + strconv.FormatInt(id.Epoch, 10)))
	base := filepath.Join(dir, "run-"+lease.Readable(id.Scope)+"-"+hex.EncodeToString(sum[:6]))
	return files{lock: base + ".lock", exits: base + ".exits", sock: base + ".sock"}
}

const (
	longestSocket = 107 // of a unix address on Linux
	askWait       = 5 * time.Second
)

// listen opens the socket of the command. In a folder whose name is too long for a socket it is in a temporary one.
func listen(path string) (net.Listener, string, error) {
	if len(path) > longestSocket {
		dir, err := os.MkdirTemp("", "qnl")
		if err != nil {
			return nil, "", err
		}
		path = filepath.Join(dir, "s")
	}
	_ = os.Remove(path) // of a run that was killed; the lock says that it is gone
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, "", fmt.Errorf("opening the command's socket: %w", err)
	}
	return l, path, os.Chmod(path, 0o600)
}

// serve answers one line for each line: `check` is a fence, `beat` feeds the watchdog, `show` only tells.
func serve(l net.Listener, held *lease.Held, beat func()) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				_ = conn.SetWriteDeadline(time.Now().Add(askWait))
				if _, err := fmt.Fprintln(conn, answer(strings.TrimSpace(lines.Text()), held, beat)); err != nil {
					return
				}
			}
		}()
	}
}

func answer(ask string, held *lease.Held, beat func()) string {
	switch ask {
	case "beat":
		beat()
	case "show":
	case "check":
		ctx, cancel := context.WithTimeout(context.Background(), held.Policy().Exit)
		defer cancel()
		if err := held.Check(ctx); err != nil {
			return "no " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
	default:
		return "error unknown request; known: check, beat, show"
	}
	return fmt.Sprintf("ok %d %s", held.Token().Epoch, held.State())
}

// RefusedError is a fence that did not pass: do not act.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "do not act: " + e.Why }

// Hint says what to do next.
func (e *RefusedError) Hint() string {
	return "if the lease is only deferred or busy, ask again later; if it is lost, this command is about to be killed"
}

// Ask sends one line to the supervisor from within its command and returns the generation. Everything but a clear yes is an
// error.
func Ask(ctx context.Context, socket, line string) (generation uint64, err error) {
	if socket == "" {
		return 0, errors.New("this does not run under `lease run`: " + EnvSocket + " is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, &RefusedError{Why: "the supervisor does not answer: " + err.Error()}
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return 0, &RefusedError{Why: "the supervisor does not answer: " + err.Error()}
	}
	text, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return 0, &RefusedError{Why: "the supervisor does not answer: " + err.Error()}
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	number, _, _ := strings.Cut(rest, " ")
	if word != "ok" {
		return 0, &RefusedError{Why: rest}
	}
	generation, err = strconv.ParseUint(number, 10, 64)
	return generation, err
}
