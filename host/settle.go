package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// settleAll brings every open transaction of this host to its end. The caller
// holds the lock.
func (h *hostOps) settleAll(ctx context.Context, by string, wait time.Duration, fence func(TxSpec) error) error {
	logs, err := h.cfg.allTx()
	if err != nil {
		return err
	}
	for _, entries := range logs {
		p := replay(entries)
		if !p.unsettled() {
			continue
		}
		// A call that a dead process had sent may still be on its way.
		if err := pause(ctx, takeoverGrace); err != nil {
			return err
		}
		l, err := h.cfg.openTx(entries[0].Operation, entries[0].Container, p.tx, by)
		if err != nil {
			return err
		}
		d := &driver{cfg: h.cfg, eng: h.eng, log: l, fence: func() error { return fence(*p.spec) }, wait: wait}
		_, err = d.run(ctx)
		l.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// settleEarlier settles what earlier transactions have left: the open ones, and
// those that ended in doubt and that nobody has put right since. wait bounds how
// long it waits for an engine that is away at the beginning.
func (a *agent) settleEarlier(claim Claim, wait time.Duration) error {
	fence := func(TxSpec) error { return a.cfg.mayWrite(claim) }
	err := a.ops.settleAll(a.life, byAgent, wait, fence)
	if err == nil {
		err = a.settleDoubts(claim)
	}
	if err != nil {
		return fmt.Errorf("settling an earlier transaction on this host: %w", err)
	}
	return nil
}

func (a *agent) settleDoubts(claim Claim) error {
	logs, err := a.cfg.allTx()
	if err != nil {
		return err
	}
	for _, entries := range doubts(logs) {
		p := replay(entries)
		spec, o, err := a.ops.takeUp(a.life, p, p.tx, claim.Epoch)
		switch {
		case isCode(err, CodeChanged), isCode(err, CodeConflict):
			continue // another hand has made something else of this node
		case isCode(err, CodeEngineAway):
			return nil // nothing is known and nothing can be done; the next write looks again
		case err != nil:
			return err
		case standsAlone(*spec, o) || hopeless(*spec, p.tx, o):
			continue
		}
		if err := a.ensureGuardian(claim); err != nil {
			return err
		}
		l, err := a.cfg.openTx(entries[0].Operation, entries[0].Container, p.tx, byAgent)
		if err != nil {
			return err
		}
		_, err = a.drive(claim, *spec, p.reason, l)
		l.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// doubts are the logs whose transaction ended in doubt and is the newest of its
// container: whatever came later has taken its place.
func doubts(logs [][]TxEntry) (out [][]TxEntry) {
	newest := map[string]progress{}
	for _, l := range logs {
		if p := replay(l); p.spec != nil {
			was, known := newest[p.spec.Name]
			if !known || !was.unsettled() && (p.unsettled() || p.began.After(was.began)) {
				newest[p.spec.Name] = p
			}
		}
	}
	for _, l := range logs {
		if p := replay(l); p.inDoubt() && newest[p.spec.Name].began.Equal(p.began) && !newest[p.spec.Name].unsettled() {
			out = append(out, l)
		}
	}
	return out
}

// takeUp plans to drive a transaction that ended in doubt once more, as a replace
// or as a put-back, from what is there now: a replace to where it stands already,
// else back, or, where the old container is gone, forward. A node that another hand has given another container since
// is refused.
func (h *hostOps) takeUp(ctx context.Context, p progress, tx string, epoch uint64) (*TxSpec, observation, error) {
	s := *p.spec
	s.Epoch, s.Back = epoch, false
	d := &driver{cfg: h.cfg, eng: h.eng}
	o, err := d.observe(ctx, s)
	if err != nil {
		return nil, o, err
	}
	_, named, err := h.eng.inspect(ctx, s.Name)
	if err != nil && !isCode(err, CodeNotFound) {
		return nil, o, err
	}
	id := str(named, "Id")
	if !o.Old.Exists && !o.Next.Exists || id != "" && id != s.OldID && id != s.NextID {
		return nil, o, errorf(CodeChanged, "look again and plan anew", "the node %s is no longer on the containers of its last transaction", s.Name)
	}
	if err := h.nobodyElse(ctx, s.DataPath, s.OldID, s.NextID); err != nil {
		return nil, o, err
	}
	inPlace := tx == txReplace && decideForward(o, freshly(s, tx)).Outcome == Replaced
	s.Back = o.Old.Exists && !inPlace
	return &s, o, nil
}

// freshly is the progress of a transaction that has only begun.
func freshly(s TxSpec, tx string) progress {
	return replay([]TxEntry{{Tx: tx, Step: stepBegin, Spec: &s}})
}

// standsAlone says that the node runs in order on one of the two, by whatever hand.
func standsAlone(s TxSpec, o observation) bool {
	ok := func(c seen) bool {
		return c.runs() && c.Name == s.Name && (c.Policy == s.Policy || c.Policy.Name != "no")
	}
	return o.Old.runs() != o.Next.runs() && (ok(o.Old) || ok(o.Next))
}

// hopeless says that there is nothing to try.
func hopeless(s TxSpec, tx string, o observation) bool {
	a := decide(o, freshly(s, tx))
	return a.Step == stepEnd && a.Outcome == InDoubt
}

// again answers a request that was made before. What has ended well is told
// again, for the answer had been lost; what ended in doubt is driven once more
// from what is there now. ok is false where the request is a new one.
func (a *agent) again(ctx context.Context, claim Claim, p progress, l *txLog) (r ReplaceResult, ok bool, err error) {
	if !p.ended {
		return r, false, nil
	}
	if !p.inDoubt() {
		if p.result == nil {
			return r, false, nil
		}
		return *p.result, true, nil
	}
	spec, _, err := a.ops.takeUp(ctx, p, l.tx, claim.Epoch)
	if err != nil {
		return r, true, err
	}
	r, err = a.drive(claim, *spec, p.reason, l)
	return r, true, err
}

// putBackAgain is again for a put-back, whose names are all that tells it from
// another one.
func (a *agent) putBackAgain(ctx context.Context, claim Claim, req PutBackRequest, l *txLog) (r ReplaceResult, ok bool, err error) {
	p := replay(l.entries)
	if !p.ended || p.spec.AsideName != req.AsideName || req.ExpectAsideID != "" && req.ExpectAsideID != p.spec.OldID {
		return r, false, nil
	}
	switch p.outcome {
	case PutBack:
		_, cur, err := a.ops.eng.inspect(ctx, req.Container)
		if err != nil && !isCode(err, CodeNotFound) {
			return r, false, err
		}
		if p.spec.FailedName != req.FailedName || str(cur, "Id") != p.spec.OldID {
			return r, false, nil
		}
	case InDoubt:
		_, old, err := a.ops.eng.inspect(ctx, p.spec.OldID)
		if err != nil && !isCode(err, CodeNotFound) {
			return r, false, err
		}
		if err := mayStartAgain(old, req.AllowOneShot); err != nil {
			return r, true, err
		}
	default:
		return r, false, nil
	}
	return a.again(ctx, claim, p, l)
}

// oneShotIn names the variables of a container that act again at every start.
func oneShotIn(inspect object) []string {
	var names []string
	for _, e := range parseEnv(texts(sub(inspect, "Config"), "Env")) {
		names = append(names, e.name)
	}
	return oneShotOf(names)
}

// mayStartAgain refuses to start an old container once more whose variables
// would act once more, unless that was asked for.
func mayStartAgain(old object, allowed bool) error {
	names := oneShotIn(old)
	if allowed || len(names) == 0 {
		return nil
	}
	all := strings.Join(names, ", ")
	return errorf(CodeOneShot, "it carries "+all+": put it back only where it is wanted that this acts once more, or run the node on a container without it",
		"container %s carries %s, which would act again if it were started", strings.TrimPrefix(str(old, "Name"), "/"), all)
}

// heldSpec is what the newest transaction of an old container was about, where that
// was held; nil where it was not. A put-back that did not get to its end leaves it held.
func heldSpec(logs [][]TxEntry, oldID string) *TxSpec {
	var last progress
	for _, p := range transactions(logs) {
		failed := p.tx == txPutBack && p.outcome != PutBack
		if p.spec.OldID == oldID && !failed && !p.began.Before(last.began) {
			last = p
		}
	}
	if last.outcome != Held {
		return nil
	}
	return last.spec
}

// transactions are all replaces and put-backs in the logs of a host; replay sees the last of each log alone.
func transactions(logs [][]TxEntry) (out []progress) {
	for _, l := range logs {
		for from, e := range l {
			if e.Step != stepBegin {
				continue
			}
			to := len(l)
			if next := slices.IndexFunc(l[from+1:], func(e TxEntry) bool { return e.Step == stepBegin }); next >= 0 {
				to = from + 1 + next
			}
			if p := replay(l[from:to]); p.spec != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// heldSuccessor is the successor of a replace that was held; nil when there is none.
func (h *hostOps) heldSuccessor(ctx context.Context, logs [][]TxEntry, oldID string) (object, error) {
	s := heldSpec(logs, oldID)
	if s == nil || s.NextID == "" {
		return nil, nil
	}
	_, next, err := h.eng.inspect(ctx, s.NextID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return next, err
}
