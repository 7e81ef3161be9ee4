package lease

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// FleetWriter is the writer id of the commands that change a fleet: they all share it, so that any operator can take over
// from one that died. The person is in the Holder.
const FleetWriter = "qnetops"

// adoptable marks a token whose holder keeps a session lock and proves itself several times a second. Only such a holder may
// be taken over before its TTL is over. A token of any other form is never adopted.
const adoptable = "heartbeat-v1:"

// revoked marks the token of a lease that a person took away. Nobody has it; whoever had the lease may not know yet.
const revoked = "revoked:"

// Identity is who may take over from whom without waiting for the TTL.
type Identity struct {
	Scope  string // what is held: a fleet, or the name of a service
	Writer string
	Epoch  int64 // of the writer's configuration; another number is another identity
}

// key is the number of the session lock. It is the same in every version of this program.
func (i Identity) key() int64 {
	sum := sha256.Sum256([]byte("qnetops-writer-lease\x00" + i.Scope + "\x00" + i.Writer + "\x00" + strconv.FormatInt(i.Epoch, 10)))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func (i Identity) check() error {
	switch {
	case i.Scope == "" || i.Writer == "":
		return errors.New("a lease needs a scope and a writer id")
	case i.Epoch < 0:
		return fmt.Errorf("the writer epoch %d is below zero", i.Epoch)
	case strings.ContainsRune(i.Scope+i.Writer, 0):
		return errors.New("a zero byte in the name of a lease")
	}
	return nil
}

// session is one run of one holder.
type session struct {
	token string
	app   string // application_name prefix of all its connections, unique to it
}

// newSession draws a token. Without a session lock (guarded false) the token is one that nobody adopts.
func newSession(guarded bool) session {
	b := make([]byte, 22)
	rand.Read(b)
	s := session{token: hex.EncodeToString(b[:16]), app: "qn-" + hex.EncodeToString(b[16:])}
	if guarded {
		s.token = adoptable + s.token
	}
	return s
}

func (s session) guardName() string  { return s.app + "-guard" }
func (s session) writerName() string { return s.app + "-w" }

// fixed refuses a session token chosen by a person: two processes that share one cannot be told apart.
func fixed(token string, allowed bool) error {
	switch {
	case token == "":
		return nil
	case !allowed:
		return &RefusedError{Code: CodeUsage, What: "a fixed session token", Advice: "leave it out; --allow-fixed-token only where something else guarantees that one process runs"}
	case strings.HasPrefix(token, "heartbeat-"):
		return &RefusedError{Code: CodeUsage, What: "a fixed session token with the prefix of a heartbeat token", Advice: "nobody may adopt a fixed token; choose another"}
	}
	return nil
}

// Holder says for people who holds a lease. TTL and Silence also tell a successor how long this holder may still act.
type Holder struct {
	Owner     string    `json:"owner,omitempty"`
	Host      string    `json:"host,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Started   uint64    `json:"started,omitempty"` // start time of the process in clock ticks since boot
	BootID    string    `json:"boot_id,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Version   string    `json:"version,omitempty"`
	Command   string    `json:"command,omitempty"`
	Operation string    `json:"operation,omitempty"`
	Profile   string    `json:"profile,omitempty"`
	Mode      Mode      `json:"mode,omitempty"`
	TTL       float64   `json:"ttl_seconds,omitempty"`
	Silence   float64   `json:"silence_seconds,omitempty"`
}

func (h Holder) held(scope string) *HeldError {
	return &HeldError{Scope: scope, Owner: h.Owner, Host: h.Host, PID: h.PID, Since: h.Since, Operation: h.Operation}
}

// Self describes this process.
func Self(owner, host string) Holder {
	return Holder{Owner: owner, Host: host, PID: os.Getpid(), Started: startTime(os.Getpid()), BootID: bootID(), Since: time.Now().UTC()}
}
