package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/lease"
)

// Writer is the half of the agent that changes the host, bound to a lease's
// token. The host compares the token's epoch before each of its steps, so a
// Writer of a lease that was lost changes nothing.
func (c *Conn) Writer(ctx context.Context, token lease.Token) (*host.Writer, error) {
	switch {
	case token.Epoch == 0 || token.Store == "":
		return nil, fmt.Errorf("host %s: %w", c.host.ID, errNoLease)
	case token.Fleet != c.fleet.inv.Name:
		return nil, fmt.Errorf("host %s: the lease is of fleet %q, the inventory of %q", c.host.ID, token.Fleet, c.fleet.inv.Name)
	}
	agent, err := c.Agent(ctx)
	if err != nil {
		return nil, err
	}
	return agent.Writer(host.Claim{Fleet: token.Fleet, Store: token.Store, Owner: token.Owner, Operation: token.Operation, Epoch: token.Epoch}), nil
}

var errNoLease = errors.New("changing a host needs a lease")
