package host

import (
	"context"
	"errors"
	"slices"
)

// validPolicy refuses a restart policy the engine does not know; nil is none asked for.
func validPolicy(p *Policy) error {
	if p == nil || slices.Contains([]string{"no", "always", "unless-stopped", "on-failure"}, p.Name) {
		return nil
	}
	return errorf(CodeBadRequest, "", "restart policy %q is not one Docker has", p.Name)
}

// bring sets the policy of the node's container, then stops or starts it. Each of
// the three is looked at first, so that a repeat does only what is missing; each
// is a single act of the engine, so that nothing half done can be left behind.
// The policy goes first: a container that is stopped for good must not be one
// that a restarting daemon revives in between.
func (h *hostOps) bring(ctx context.Context, req StateRequest, log *txLog) (ContainerFacts, error) {
	if err := errors.Join(validNames(req.Container), validPolicy(req.Policy)); err != nil {
		return ContainerFacts{}, err
	}
	_, o, err := h.eng.inspect(ctx, req.Container)
	if err != nil {
		return ContainerFacts{}, err
	}
	id := str(o, "Id")
	if id != req.ExpectID {
		return ContainerFacts{}, errorf(CodeChanged, "look again and plan anew", "the container %s on this host is not the one that was meant", req.Container)
	}
	if req.Policy != nil && policyFrom(o) != *req.Policy {
		if err := acted(log, stepPolicy, req.Policy.Name, func() error { return h.eng.setPolicy(ctx, id, *req.Policy) }); err != nil {
			return ContainerFacts{}, err
		}
	}
	runs := stateRuns(str(sub(o, "State"), "Status"))
	switch {
	case req.State == StateStopped && runs:
		err = acted(log, stepStop, "", func() error { return h.eng.stop(ctx, id, stopTimeout(o, req.StopTimeoutSeconds)) })
	case req.State == StateRunning && !runs:
		if err = h.nobodyElse(ctx, dataDirOf(o).HostPath, id); err == nil {
			err = acted(log, stepStart, "", func() error { return redacted(h.eng.start(ctx, id), o) })
		}
	case req.State != "" && req.State != StateStopped && req.State != StateRunning:
		err = errorf(CodeBadRequest, "", "state %q is not one to ask for", req.State)
	}
	if err != nil {
		return ContainerFacts{}, err
	}
	return h.brought(ctx, req)
}

// brought reads back what is there and refuses to call it done where it is not.
func (h *hostOps) brought(ctx context.Context, req StateRequest) (ContainerFacts, error) {
	_, o, err := h.eng.inspect(ctx, req.ExpectID)
	if err != nil {
		return ContainerFacts{}, err
	}
	if req.Policy != nil && policyFrom(o) != *req.Policy {
		return ContainerFacts{}, errorf(CodeConflict, "", "the restart policy reads %s after it was set to %s", policyFrom(o).Name, req.Policy.Name)
	}
	if runs := stateRuns(str(sub(o, "State"), "Status")); req.State == StateStopped && runs {
		return ContainerFacts{}, errorf(CodeConflict, "", "the container still runs after it was stopped")
	}
	f, err := h.containerFacts(ctx, req.ExpectID)
	if err != nil || f == nil {
		return ContainerFacts{}, errors.Join(err, ErrNotFound)
	}
	return *f, nil
}

// redacted is redact for a call that may have gone well: a runtime that refuses a start may quote what it was given.
func redacted(err error, inspect object) error {
	if err == nil {
		return nil
	}
	return redact(err, inspect)
}

// acted does one act of the engine between its intent and its outcome.
func acted(log *txLog, step, text string, do func() error) error {
	if err := log.add(TxEntry{Step: step, State: TxIntent, Text: text}); err != nil {
		return err
	}
	if err := do(); err != nil {
		return errors.Join(err, log.add(TxEntry{Step: step, State: TxFailed, Text: err.Error()}))
	}
	return log.add(TxEntry{Step: step, State: TxDone, Text: text})
}
