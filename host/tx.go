package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// MinStopTimeout is the least time a node gets to flush its database, in
	// seconds, whatever the container's own timeout says (facts 5.1: Signals).
	MinStopTimeout = 60

	settleWatch = 30 * time.Second // how long a stop that was refused may still take effect
	settlePoll  = 2 * time.Second
	enginePoll  = 500 * time.Millisecond
	// takeoverGrace lets a call that a dead process had sent reach its effect
	// before anyone looks.
	takeoverGrace = 2 * time.Second
	failLines     = 30
)

// errUnsettled says that a transaction could not be brought to its end now; its
// log stays open and the next writer settles it.
var errUnsettled = errors.New("local transaction not settled")

// driver brings one replace or put-back to its end, from wherever it stands.
type driver struct {
	cfg   Config
	eng   *engine
	log   *txLog
	fence func() error // asked before each step
	wait  time.Duration
}

// run observes, decides and acts until the end. It stops without a word when
// ctx dies, as the process does that it stands for; whoever comes next goes on.
func (d *driver) run(ctx context.Context) (ReplaceResult, error) {
	for {
		if err := d.fence(); err != nil {
			return ReplaceResult{Outcome: InDoubt, Reason: err.Error()}, errors.Join(errUnsettled, err)
		}
		p := replay(d.log.entries)
		o, err := d.observeUntil(ctx, *p.spec)
		if err != nil {
			return ReplaceResult{Outcome: InDoubt, OldID: p.spec.OldID, NewID: p.spec.NextID, Reason: err.Error()}, err
		}
		d.wait = max(d.wait, d.cfg.engineWait()) // one that goes away under way is waited for
		d.noteExit(*p.spec, o)
		a := decide(o, p)
		switch a.Step {
		case stepEnd:
			return d.end(ctx, p, a)
		case stepTurn:
			d.log.note(TxEntry{Step: stepTurn, State: TxDone, Text: a.Why})
		default:
			err = d.step(ctx, *p.spec, a.Step, p.fails[a.Step])
		}
		if err != nil {
			return ReplaceResult{Outcome: InDoubt, OldID: p.spec.OldID, NewID: p.spec.NextID, Reason: err.Error()}, err
		}
	}
}

// step logs the intent, acts and logs the outcome. A refusal is an outcome; a
// call without an answer is none: the next observation tells.
func (d *driver) step(ctx context.Context, s TxSpec, step string, fails int) error {
	if fails > 0 {
		if err := pause(ctx, min(time.Second<<(fails-1), 5*time.Second)); err != nil {
			return err
		}
	}
	d.log.note(TxEntry{Step: step, State: TxIntent})
	text, err := d.perform(ctx, s, step)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err == nil:
		d.log.note(TxEntry{Step: step, State: TxDone, Text: text})
	case isCode(err, CodeEngineAway): // observeUntil waits for the engine
	default:
		text = d.redacted(ctx, s, err)
		if refused := (*Error)(nil); errors.As(err, &refused) && refused.HintText != "" {
			text += " (" + refused.HintText + ")"
		}
		d.log.note(TxEntry{Step: step, State: TxFailed, Text: text})
	}
	return nil
}

// redacted is an engine's refusal without the secrets of either container: a
// runtime may quote what it was given.
func (d *driver) redacted(ctx context.Context, s TxSpec, err error) string {
	msg := err.Error()
	for _, id := range []string{s.OldID, s.NextID} {
		if id == "" {
			continue
		}
		_, o, ierr := d.eng.inspect(ctx, id)
		if ierr != nil && !isCode(ierr, CodeNotFound) {
			return "the engine refused; its words are left out because the secrets in them could not be told"
		}
		msg = redact(errors.New(msg), o).Error()
	}
	return msg
}

func (d *driver) perform(ctx context.Context, s TxSpec, step string) (string, error) {
	no := Policy{Name: "no"}
	switch step {
	case stepStopOld:
		return "", d.eng.stop(ctx, s.OldID, s.Timeout)
	case stepStopNext:
		return "", d.eng.stop(ctx, s.NextID, s.Timeout)
	case stepOldNo:
		return "", d.eng.setPolicy(ctx, s.OldID, no)
	case stepNextNo:
		return "", d.eng.setPolicy(ctx, s.NextID, no)
	case stepNextPolicy:
		return "", d.eng.setPolicy(ctx, s.NextID, s.nextPolicy())
	case stepOldPolicy:
		return "", d.eng.setPolicy(ctx, s.OldID, s.Policy)
	case stepStartNext:
		return "", d.eng.start(ctx, s.NextID)
	case stepStartOld:
		return "", d.eng.start(ctx, s.OldID)
	case stepOldAside:
		return "", d.eng.rename(ctx, s.OldID, s.AsideName)
	case stepNextName:
		return "", d.eng.rename(ctx, s.NextID, s.Name)
	case stepNextFailed:
		return "", d.eng.rename(ctx, s.NextID, s.FailedName)
	case stepOldName:
		return "", d.eng.rename(ctx, s.OldID, s.Name)
	case stepSettleOld:
		return d.settleOld(ctx, s)
	}
	return "", fmt.Errorf("unknown step %s", step)
}

// killedMark begins the text of a stop that ended in SIGKILL.
const killedMark = "killed: "

// noteExit logs how a container ended that was just stopped. Exit 137 without
// the kernel's OOM killer means the engine had to kill it after the timeout.
func (d *driver) noteExit(s TxSpec, o observation) {
	last := d.log.entries[len(d.log.entries)-1]
	if last.State != TxDone || last.Step != stepStopOld && last.Step != stepStopNext {
		return
	}
	step, c := stepExitOld, o.Old
	if last.Step == stepStopNext {
		step, c = stepExitNext, o.Next
	}
	if c.runs() || !c.Exists {
		return
	}
	text := "exit code " + strconv.Itoa(c.ExitCode)
	if c.ExitCode == 137 && !c.OOMKilled {
		text = killedMark + text + " after " + strconv.Itoa(s.Timeout) + " s"
	}
	d.log.note(TxEntry{Step: step, State: TxDone, Text: text})
}

// settleOld watches an old container whose stop was refused: the signal may have
// reached it, and it may still end.
func (d *driver) settleOld(ctx context.Context, s TxSpec) (string, error) {
	deadline := time.Now().Add(settleWatch)
	for time.Now().Before(deadline) {
		o, err := d.observe(ctx, s)
		if err != nil {
			return "", err
		}
		if !o.Old.runs() {
			return "the old container ended after all", nil
		}
		if err := pause(ctx, settlePoll); err != nil {
			return "", err
		}
	}
	return "the old container runs on", nil
}

// observe looks at both containers by id, so that no rename can mislead it.
func (d *driver) observe(ctx context.Context, s TxSpec) (observation, error) {
	type sight struct {
		seen
		err error
	}
	other := make(chan sight, 1) // both at once: the node may be down
	go func() {
		next, err := d.look(ctx, s.NextID)
		other <- sight{next, err}
	}()
	old, err := d.look(ctx, s.OldID)
	next := <-other
	return observation{Old: old, Next: next.seen}, errors.Join(err, next.err)
}

func (d *driver) look(ctx context.Context, id string) (seen, error) {
	if id == "" {
		return seen{}, nil
	}
	_, o, err := d.eng.inspect(ctx, id)
	if isCode(err, CodeNotFound) {
		return seen{}, nil
	}
	if err != nil {
		return seen{}, err
	}
	return seenOf(o), nil
}

func seenOf(o object) seen {
	st := sub(o, "State")
	return seen{Exists: true, ID: str(o, "Id"), Name: strings.TrimPrefix(str(o, "Name"), "/"), State: str(st, "Status"),
		Policy: policyFrom(o), StartedAt: str(st, "StartedAt"), ExitCode: number(st, "ExitCode"), OOMKilled: st["OOMKilled"] == true,
		OneShot: strings.Join(oneShotIn(o), ", ")}
}

func policyFrom(o object) Policy {
	p := sub(o, "HostConfig", "RestartPolicy")
	return Policy{Name: policyName(str(p, "Name")), MaximumRetryCount: number(p, "MaximumRetryCount")}
}

// observeUntil observes, waiting for an engine that is away.
func (d *driver) observeUntil(ctx context.Context, s TxSpec) (observation, error) {
	deadline := time.Now().Add(d.wait)
	for {
		o, err := d.observe(ctx, s)
		if err == nil {
			return o, nil
		}
		if ctx.Err() != nil {
			return o, ctx.Err()
		}
		if !time.Now().Before(deadline) {
			return o, errors.Join(errUnsettled, err)
		}
		if err := pause(ctx, enginePoll); err != nil {
			return o, err
		}
	}
}

// end writes the last entry and makes the result from what is seen.
func (d *driver) end(ctx context.Context, p progress, a action) (ReplaceResult, error) {
	r := ReplaceResult{Outcome: a.Outcome, Reason: a.Why, OldID: p.spec.OldID, NewID: p.spec.NextID}
	first := stepExitOld
	if p.tx == txPutBack {
		first = stepExitNext
	}
	for _, e := range d.log.entries[lastBegin(d.log.entries):] {
		if e.Step == first && e.State == TxDone && strings.HasPrefix(e.Text, killedMark) {
			r.Killed = true
		}
	}
	d.times(ctx, p, &r)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	logged := r
	d.log.note(TxEntry{Step: stepEnd, State: TxDone, Text: a.Why, Outcome: a.Outcome, Result: &logged})
	if a.Outcome != Replaced && p.spec.NextID != "" {
		r.LastLines = lastLines(ctx, d.eng, p.spec.NextID, failLines)
	}
	return r, nil
}

// times reads from the engine when the node went down and when it was up again;
// both are zero when it never went down. An engine keeps the time a container
// ended when it starts it again.
func (d *driver) times(ctx context.Context, p progress, r *ReplaceResult) {
	stopped, started := p.spec.OldID, p.spec.NextID
	switch r.Outcome {
	case Held:
		_, a, err := d.eng.inspect(ctx, stopped)
		if err == nil {
			r.StoppedAt = timeOf(sub(a, "State"), "FinishedAt")
		}
		return
	case PutBack:
		started = p.spec.OldID
		if p.tx == txPutBack {
			stopped = p.spec.NextID
		}
	}
	_, b, err := d.eng.inspect(ctx, started)
	if err != nil || stopped == started && str(sub(b, "State"), "StartedAt") == p.spec.OldStarted {
		return
	}
	a := b
	if stopped != "" && stopped != started {
		if _, a, err = d.eng.inspect(ctx, stopped); err != nil {
			return
		}
	}
	r.StoppedAt, r.StartedAt = timeOf(sub(a, "State"), "FinishedAt"), timeOf(sub(b, "State"), "StartedAt")
	if p.tx == txPutBack && r.StoppedAt.IsZero() { // what was in the way never ran: the node is down since its old container ended
		r.StoppedAt = timeOf(sub(b, "State"), "FinishedAt")
	}
}

func lastBegin(entries []TxEntry) int {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].Step == stepBegin {
			return i
		}
	}
	return 0
}

func timeOf(o object, key string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, str(o, key))
	if err != nil {
		return time.Time{}
	}
	return realTime(t)
}

// pause waits on a timer or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginReplace checks everything a replace rests on and changes nothing.
func (h *hostOps) beginReplace(ctx context.Context, req ReplaceRequest, log *txLog, epoch uint64) (*TxSpec, error) {
	if err := validNames(req.Container, req.NextName, req.AsideName, req.FailedName); err != nil {
		return nil, err
	}
	if err := validPolicy(req.NextPolicy); err != nil {
		return nil, err
	}
	_, old, err := h.eng.inspect(ctx, req.Container)
	if err != nil {
		return nil, fmt.Errorf("reading the running container: %w", err)
	}
	_, next, err := h.eng.inspect(ctx, req.NextName)
	if err != nil {
		return nil, fmt.Errorf("reading the staged successor: %w", err)
	}
	if str(old, "Id") != req.ExpectOldID || str(next, "Id") != req.ExpectNextID || str(old, "Id") == str(next, "Id") {
		return nil, errorf(CodeChanged, "look again and plan anew", "the containers on this host are not those of the plan")
	}
	stage := lastStage(log.entries, req.ExpectNextID)
	if err := checkStage(stage, old, next); err != nil {
		return nil, err
	}
	if err := h.namesFree(ctx, req.AsideName, req.FailedName); err != nil {
		return nil, err
	}
	if err := h.nobodyElse(ctx, stage.DataPath, req.ExpectOldID, req.ExpectNextID); err != nil {
		return nil, err
	}
	policy, err := h.ordinaryPolicy(old)
	if err != nil {
		return nil, err
	}
	return &TxSpec{OldID: req.ExpectOldID, NextID: req.ExpectNextID, Name: req.Container, NextName: req.NextName,
		AsideName: req.AsideName, FailedName: req.FailedName, Policy: policy, Timeout: stopTimeout(old, req.StopTimeoutSeconds),
		DataPath: stage.DataPath, OldStarted: str(sub(old, "State"), "StartedAt"), Epoch: epoch, Hold: holdWhy(old, req.NoPutBack),
		NextPolicy: req.NextPolicy}, nil
}

// ordinaryPolicy is the restart policy that a node's container has in ordinary times. One that a replace stopped for good and
// held has `no` from that: a successor that took it over would not come back after the next crash.
func (h *hostOps) ordinaryPolicy(old object) (Policy, error) {
	policy := policyFrom(old)
	if policy.Name != "no" {
		return policy, nil
	}
	logs, err := h.cfg.allTx()
	if err != nil {
		return policy, err
	}
	switch s := heldSpec(logs, str(old, "Id")); {
	case s == nil:
		return policy, nil
	case s.Policy.Name == "no": // a cut-over had taken it before: what the successor was to have is what it had
		return s.nextPolicy(), nil
	default:
		return s.Policy, nil
	}
}

// holdWhy says why a replace must not start its old container again.
func holdWhy(old object, asked bool) string {
	names := strings.Join(oneShotIn(old), ", ")
	switch {
	case names != "":
		return "it carries " + names + ", which would act again"
	case asked:
		return "this operation does not put it back"
	}
	return ""
}

// checkStage holds the present state of both containers against what the stage proved.
func checkStage(s *TxStage, old, next object) error {
	again := "stage the successor again and look at the differences"
	switch {
	case s == nil:
		return errorf(CodeChanged, again, "this host has no record of staging the successor in this operation")
	case s.Unexplained > 0:
		return errorf(CodeUnexplained, again, "the successor differs in %d ways nobody asked for", s.Unexplained)
	case !s.DataOK:
		return errorf(CodeDataDir, "", "the successor would not find the node's data directory")
	case s.OldID != str(old, "Id") || s.OldPrint != fingerprint(old):
		return errorf(CodeChanged, again, "the running container was changed since its successor was staged")
	case s.NextPrint != fingerprint(next):
		return errorf(CodeChanged, again, "the successor was changed since it was staged")
	case str(sub(next, "State"), "Status") != "created":
		return errorf(CodeChanged, again, "the successor was started already")
	}
	return nil
}

// beginPutBack finds what a put-back rests on and changes nothing.
func (h *hostOps) beginPutBack(ctx context.Context, req PutBackRequest, logs [][]TxEntry, epoch uint64) (*TxSpec, error) {
	if err := validNames(req.Container, req.AsideName, req.FailedName); err != nil {
		return nil, err
	}
	_, cur, err := h.eng.inspect(ctx, req.Container)
	if err != nil && !isCode(err, CodeNotFound) {
		return nil, fmt.Errorf("reading the running container: %w", err)
	}
	_, aside, err := h.eng.inspect(ctx, req.AsideName)
	if isCode(err, CodeNotFound) && cur != nil && heldSpec(logs, str(cur, "Id")) != nil {
		aside, cur, err = cur, nil, nil // it was held, and bears the node's name
	}
	if err != nil {
		return nil, fmt.Errorf("reading the container that was set aside: %w", err)
	}
	asideID := str(aside, "Id")
	if cur == nil {
		if cur, err = h.heldSuccessor(ctx, logs, asideID); err != nil {
			return nil, fmt.Errorf("reading the successor that was held: %w", err)
		}
	}
	curID := str(cur, "Id")
	if req.ExpectAsideID != "" && req.ExpectAsideID != asideID || req.ExpectCurrentID != "" && req.ExpectCurrentID != curID || asideID == curID {
		return nil, errorf(CodeChanged, "look again and plan anew", "the containers on this host are not those of the plan")
	}
	if err := mayStartAgain(aside, req.AllowOneShot); err != nil {
		return nil, err
	}
	if strings.TrimPrefix(str(cur, "Name"), "/") != req.FailedName {
		if err := h.namesFree(ctx, req.FailedName); err != nil {
			return nil, err
		}
	}
	data := dataDirOf(aside)
	if err := h.nobodyElse(ctx, data.HostPath, asideID, curID); err != nil {
		return nil, err
	}
	policy, known := policyOf(logs, asideID)
	if !known {
		policy = policyFrom(cur)
	}
	timeout := stopTimeout(cur, req.StopTimeoutSeconds)
	return &TxSpec{OldID: asideID, NextID: curID, Name: req.Container, AsideName: req.AsideName, FailedName: req.FailedName,
		Policy: policy, Timeout: timeout, DataPath: data.HostPath, Back: true, Epoch: epoch}, nil
}

// stopTimeout is the longest of what was asked, the container's own and the floor.
func stopTimeout(inspect object, asked int) int {
	return max(asked, number(sub(inspect, "Config"), "StopTimeout"), MinStopTimeout)
}

func validNames(names ...string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if !ValidContainerName(n) {
			return errorf(CodeBadRequest, "", "container name %q is not one Docker takes", n)
		}
		if seen[n] {
			return errorf(CodeBadRequest, "", "container name %q is used twice in one request", n)
		}
		seen[n] = true
	}
	return nil
}

func (h *hostOps) namesFree(ctx context.Context, names ...string) error {
	for _, n := range names {
		_, _, err := h.eng.inspect(ctx, n)
		if err == nil {
			return errorf(CodeConflict, "", "a container named %s exists already", n)
		}
		if !isCode(err, CodeNotFound) {
			return err
		}
	}
	return nil
}

// nobodyElse refuses while a third container runs that may write to the data directory.
func (h *hostOps) nobodyElse(ctx context.Context, dataPath string, ours ...string) error {
	others, err := h.sharers(ctx, dataPath)
	if err != nil {
		return err
	}
	for _, o := range others {
		mine := false
		for _, id := range ours {
			mine = mine || o.ID == id
		}
		if !mine && o.Writable && stateRuns(o.State) {
			return errorf(CodeConflict, "stop it first", "container %s runs on the same data directory %s", o.Name, dataPath)
		}
	}
	return nil
}

// under says whether p is dir or below it.
func under(p, dir string) bool {
	return p != "" && dir != "" && (p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/"))
}

// sharers lists the containers with a mount that overlaps the data directory.
func (h *hostOps) sharers(ctx context.Context, dataPath string) ([]Sibling, error) {
	rows, err := h.eng.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	var out []Sibling
	for _, r := range rows {
		s := Sibling{Name: r.name(), ID: r.ID, Image: r.Image, State: r.State}
		for _, m := range r.Mounts {
			src := m.Source
			if src == "" && m.Name != "" {
				src = "volume:" + m.Name
			}
			if under(dataPath, src) || under(src, dataPath) {
				s.SharesData = true
				s.Writable = s.Writable || m.RW
			}
		}
		if s.SharesData {
			out = append(out, s)
		}
	}
	return out, nil
}
