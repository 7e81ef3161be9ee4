package fleet

import (
	"context"
	"log/slog"
	"net"
	"os"
)

// Prompter asks the operator. Implementations serve one question at a time.
type Prompter interface {
	// Passphrase asks for the passphrase of a key file.
	Passphrase(ctx context.Context, keyFile string) ([]byte, error)
	// Confirm shows a text and asks for yes or no. No answer is no.
	Confirm(ctx context.Context, question string) (bool, error)
}

// Options of a run. The zero value works: the own executable is the agent, no
// question can be asked.
type Options struct {
	// Prompt asks for passphrases and for trust in a host key; nil: keys with a
	// passphrase are not usable unless the SSH agent holds them.
	Prompt Prompter
	// AgentBinary is the program installed on hosts, default the own executable.
	AgentBinary string
	// Dial opens the first hop; default net.Dialer. A lab in memory puts its own here.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Fanout overrides [ssh] fanout when above 0.
	Fanout int
	// Version of this program, for the agent's log.
	Version string
	Log     *slog.Logger
	// Getenv finds SSH_AUTH_SOCK and HOME, default os.Getenv.
	Getenv func(string) string
}

func (o Options) withDefaults() Options {
	if o.Dial == nil {
		// Keepalive of TCP stays on; the SSH keepalive finds a dead peer sooner.
		var d net.Dialer
		o.Dial = d.DialContext
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	return o
}
