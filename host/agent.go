package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"time"
)

// Times of an agent.
const (
	// settleOnTake bounds how long taking the fence waits for an absent engine.
	settleOnTake = 30 * time.Second
	guardianEnds = 5 * time.Second
	guardianBoot = 20 * time.Second
	flushAnswers = 2 * time.Second
)

// Who wrote a line of a transaction log.
const (
	byAgent    = "agent"
	byGuardian = "guardian"
)

// agent is process A of one connection.
type agent struct {
	cfg Config
	ops *hostOps
	out *outbox

	life context.Context // the process: its end is a kill, nothing is tidied up
	conn context.Context // the connection: its end cancels everything but transactions

	write sync.Mutex // one change at a time
	wg    sync.WaitGroup

	mu       sync.Mutex
	cancels  map[uint64]context.CancelFunc
	flows    map[uint64]*flow
	guardian Process
	told     Claim // what the guardian was told last
}

// Serve is process A: it answers the requests on in until in ends. A local
// transaction in hand is finished first, then the guardian is sent home. The end
// of ctx is the death of the process: Serve returns at once, and the guardian
// settles what is open.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	if cfg.detach {
		detach()
	}
	conn, drop := context.WithCancel(ctx)
	defer drop()
	a := &agent{cfg: cfg, ops: newOps(cfg), out: newOutbox(out), life: ctx, conn: conn, cancels: map[uint64]context.CancelFunc{}, flows: map[uint64]*flow{}}
	requests := make(chan request)
	readErr := make(chan error, 1)
	go func() { readErr <- a.readRequests(in, requests) }()
	err := a.loop(requests, readErr, in)
	drop()
	if ctx.Err() != nil {
		a.die()
		return ctx.Err()
	}
	a.wg.Wait() // transactions in hand
	if ctx.Err() != nil {
		a.die()
		return ctx.Err()
	}
	a.dismiss()
	a.out.close()
	select { // give the last answers a moment
	case <-a.out.done:
	case <-time.After(flushAnswers):
	}
	return err
}

// die is what remains of a killed process: its link to the guardian breaks.
func (a *agent) die() {
	a.out.close()
	a.mu.Lock()
	g := a.guardian
	a.guardian = nil
	a.mu.Unlock()
	if g != nil {
		g.Close()
	}
}

func (a *agent) readRequests(in io.Reader, to chan<- request) error {
	r := newLineReader(in)
	for {
		var req request
		if err := r.next(&req); err != nil {
			return err
		}
		select {
		case to <- req:
		case <-a.conn.Done():
			return a.conn.Err()
		}
	}
}

func (a *agent) loop(requests <-chan request, readErr <-chan error, in io.Reader) error {
	for {
		select {
		case <-a.life.Done():
			if c, ok := in.(io.Closer); ok {
				c.Close() // frees the reader
			}
			return a.life.Err()
		case err := <-readErr:
			if err == io.EOF {
				return nil
			}
			if isCode(err, CodeBadRequest) {
				a.out.answer(0, nil, err)
				return err
			}
			return nil // a connection that breaks is an ordinary end
		case req := <-requests:
			a.accept(req)
		}
	}
}

// accept starts a request. It lives on the connection and on the caller's
// patience, but for a transaction that has begun: that lives on the process.
func (a *agent) accept(req request) {
	if req.Method == methodCancel || req.Method == methodMore {
		a.steer(req)
		return
	}
	ctx, cancel := context.WithCancel(a.conn)
	a.mu.Lock()
	a.cancels[req.ID] = cancel
	a.mu.Unlock()
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		defer cancel()
		v, err := a.serve(ctx, req)
		a.mu.Lock()
		delete(a.cancels, req.ID)
		delete(a.flows, req.ID)
		a.mu.Unlock()
		if a.life.Err() != nil {
			return // a dead process says nothing
		}
		if errors.Is(err, context.Canceled) {
			err = errorf(CodeCancelled, "", "%s was cancelled", req.Method)
		}
		a.out.answer(req.ID, v, err)
	}()
}

// steer is what a client says of a request under way.
func (a *agent) steer(req request) {
	var p moreParams // a cancel has the id alone
	if json.Unmarshal(req.Params, &p) != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.flows[p.ID]; f != nil && req.Method == methodMore {
		f.more(p.N)
	}
	if cancel := a.cancels[p.ID]; cancel != nil && req.Method == methodCancel {
		cancel()
	}
}

func params[T any](req request) (T, error) {
	var v T
	if err := json.Unmarshal(req.Params, &v); err != nil {
		return v, errorf(CodeBadRequest, "", "parameters of %s are not what is expected", req.Method)
	}
	return v, nil
}

// with decodes the parameters of a request and runs fn on them.
func with[P, R any](req request, fn func(P) (R, error)) (any, error) {
	p, err := params[P](req)
	if err != nil {
		return nil, err
	}
	return fn(p)
}

func (a *agent) serve(ctx context.Context, req request) (any, error) {
	switch req.Method {
	case methodHello:
		return a.hello(), nil
	case methodFence:
		return a.cfg.readFence()
	case methodFacts:
		return with(req, func(p FactsRequest) (Facts, error) { return a.ops.facts(ctx, p) })
	case methodResolve:
		return with(req, func(p refParams) (Image, error) { return a.ops.resolve(ctx, p.Ref) })
	case methodCarry:
		return with(req, func(p CarryRequest) (CarryReport, error) { return a.ops.carry(ctx, p) })
	case methodSituation:
		return with(req, func(p situationParams) (Situation, error) { return a.ops.situation(ctx, p) })
	case methodTxLog:
		return with(req, func(p nameParams) ([]TxEntry, error) { return a.ops.txLog(p.Name) })
	case methodData:
		return with(req, func(p DataRequest) (DataInventory, error) { return a.ops.dataInventory(ctx, p) })
	case methodLastLines:
		return with(req, func(p linesParams) ([]string, error) { return readLines(ctx, a.ops.eng, p.Container, p.N) })
	}
	if v, known, err := a.serveStream(ctx, req); known {
		return v, err
	}
	if err := validClaim(req.Claim); err != nil {
		if !writes[req.Method] {
			return nil, errorf(CodeUnknown, "the agent on the host is of another version", "unknown request %q", req.Method)
		}
		return nil, err
	}
	return a.change(ctx, req, *req.Claim)
}

// serveStream serves the reads whose answer comes in items.
func (a *agent) serveStream(ctx context.Context, req request) (v any, known bool, err error) {
	switch req.Method {
	case methodNodeHTTP:
		v, err = with(req, func(p NodeRequest) (any, error) { return nil, a.ops.nodeHTTP(ctx, p, a.flow(req.ID)) })
	case methodLogs:
		v, err = with(req, func(p LogsRequest) (any, error) { return nil, a.ops.logs(ctx, p, a.flow(req.ID)) })
	case methodEvents:
		v, err = with(req, func(p EventsRequest) (any, error) { return nil, a.ops.events(ctx, p, a.flow(req.ID)) })
	default:
		return nil, false, nil
	}
	return v, true, err
}

var writes = map[string]bool{methodTakeFence: true, methodReleaseFence: true, methodTakeOver: true, methodPull: true, methodStage: true,
	methodDiscard: true, methodReplace: true, methodPutBack: true, methodFinish: true, methodState: true, methodDecree: true,
	methodDataAside: true, methodDataCopy: true, methodDataBack: true}

// change runs one write. The lock of the host is held for the whole of it, so a
// newcomer's claim waits for a transaction in hand; a pull changes no container
// and does not make others wait.
func (a *agent) change(ctx context.Context, req request, claim Claim) (any, error) {
	if req.Method == methodPull {
		if err := a.cfg.mayWrite(claim); err != nil {
			return nil, err
		}
		return with(req, func(p refParams) (Image, error) {
			return a.ops.pull(ctx, p.Ref, func(pp PullProgress) { a.out.event(req.ID, pp) })
		})
	}
	a.write.Lock()
	defer a.write.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lock, err := a.cfg.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.unlock()
	switch req.Method {
	case methodTakeFence:
		return a.takeFence(ctx, claim)
	case methodReleaseFence:
		return nil, a.releaseFence(claim)
	case methodTakeOver:
		return with(req, func(p takeOverParams) (FenceRecord, error) { return a.cfg.takeOver(claim, p) })
	}
	if err := a.cfg.mayWrite(claim); err != nil {
		return nil, err
	}
	if err := a.ensureGuardian(claim); err != nil {
		return nil, err
	}
	if err := a.settleEarlier(claim, a.cfg.engineWait()); err != nil {
		return nil, err
	}
	return a.changeContainer(ctx, req, claim)
}

func (a *agent) changeContainer(ctx context.Context, req request, claim Claim) (any, error) {
	watch := func(e TxEvent) { a.out.event(req.ID, e) }
	switch req.Method {
	case methodStage:
		return with(req, func(p StageRequest) (StageReport, error) {
			if p.Operation != "" && p.Operation != claim.Operation {
				return StageReport{}, errorf(CodeBadRequest, "", "the request is of another operation than its claim")
			}
			return logged(a.cfg, claim, p.Container, txStage, watch, func(l *txLog) (StageReport, error) { return a.ops.stage(ctx, p, l) })
		})
	case methodDiscard:
		return with(req, func(p nameParams) (any, error) {
			return logged(a.cfg, claim, p.Name, txDiscard, watch, func(l *txLog) (any, error) { return nil, a.ops.discard(ctx, p.Name, l) })
		})
	case methodReplace:
		return with(req, func(p ReplaceRequest) (ReplaceResult, error) {
			return logged(a.cfg, claim, p.Container, txReplace, watch, func(l *txLog) (ReplaceResult, error) { return a.replace(ctx, claim, p, l) })
		})
	case methodPutBack:
		return with(req, func(p PutBackRequest) (ReplaceResult, error) {
			return logged(a.cfg, claim, p.Container, txPutBack, watch, func(l *txLog) (ReplaceResult, error) { return a.putBack(ctx, claim, p, l) })
		})
	case methodState:
		return with(req, func(p StateRequest) (ContainerFacts, error) {
			return logged(a.cfg, claim, p.Container, txState, watch, func(l *txLog) (ContainerFacts, error) { return a.ops.bring(ctx, p, l) })
		})
	case methodDecree:
		return with(req, func(p DecreeRequest) (DecreeAnswer, error) {
			return logged(a.cfg, claim, p.Container, txDecree, watch, func(l *txLog) (DecreeAnswer, error) { return a.ops.decree(a.life, p, l) })
		})
	case methodFinish:
		return with(req, func(p FinishRequest) (FinishResult, error) {
			return logged(a.cfg, claim, p.Container, txFinish, watch, func(l *txLog) (FinishResult, error) { return a.ops.finishTx(ctx, p, l) })
		})
	}
	return a.changeData(ctx, req, claim, watch)
}

// logged opens the log of an operation on a container around fn.
func logged[T any](cfg Config, claim Claim, container, tx string, watch func(TxEvent), fn func(*txLog) (T, error)) (T, error) {
	l, err := cfg.openTx(claim.Operation, container, tx, byAgent)
	if err != nil {
		var none T
		return none, err
	}
	defer l.close()
	l.watch = watch
	return fn(l)
}

// replace begins the transaction and drives it to its end.
func (a *agent) replace(ctx context.Context, claim Claim, req ReplaceRequest, l *txLog) (ReplaceResult, error) {
	if p := replay(l.entries); p.ended && p.tx == txReplace && p.spec.OldID == req.ExpectOldID && p.spec.NextID == req.ExpectNextID {
		if r, ok, err := a.again(ctx, claim, p, l); ok || err != nil {
			return r, err
		}
	}
	spec, err := a.ops.beginReplace(ctx, req, l, claim.Epoch)
	if err != nil {
		return ReplaceResult{}, err
	}
	return a.drive(claim, *spec, "", l)
}

func (a *agent) putBack(ctx context.Context, claim Claim, req PutBackRequest, l *txLog) (ReplaceResult, error) {
	if r, ok, err := a.putBackAgain(ctx, claim, req, l); ok || err != nil {
		return r, err
	}
	logs, err := a.cfg.allTx()
	if err != nil {
		return ReplaceResult{}, err
	}
	spec, err := a.ops.beginPutBack(ctx, req, logs, claim.Epoch)
	if err != nil {
		return ReplaceResult{}, err
	}
	return a.drive(claim, *spec, "", l)
}

// drive logs the beginning; from there on the transaction is settled by someone,
// whatever becomes of this process. why is the reason of an earlier try that
// this one goes on with.
func (a *agent) drive(claim Claim, spec TxSpec, why string, l *txLog) (ReplaceResult, error) {
	if err := l.add(TxEntry{Step: stepBegin, State: TxDone, Text: why, Spec: &spec}); err != nil {
		return ReplaceResult{}, err
	}
	d := &driver{cfg: a.cfg, eng: a.ops.eng, log: l, fence: func() error { return a.cfg.mayWrite(claim) }, wait: a.cfg.engineWait()}
	r, err := d.run(a.life)
	if err != nil && a.life.Err() == nil {
		return r, nil // in doubt, with the reason in it: the log stays open for the next writer
	}
	return r, err
}

// takeFence accepts a claim and settles what an earlier one has left open.
func (a *agent) takeFence(ctx context.Context, claim Claim) (FenceRecord, error) {
	rec, err := a.cfg.readFence()
	if err != nil {
		return FenceRecord{}, err
	}
	if fe := judgeTake(rec, claim); fe != nil {
		return FenceRecord{}, fe
	}
	now := FenceRecord{Claim: claim, Since: a.cfg.now().UTC(), Version: a.cfg.Version}
	open, openErr := a.ops.anyOpen()
	if openErr == nil && open {
		// Before the record says so: from then on nobody else settles.
		openErr = a.ensureGuardian(claim)
	}
	if rec != nil && rec.Claim == claim && !rec.Released {
		now = *rec
	} else if err := a.cfg.writeFence(now); err != nil {
		return FenceRecord{}, err
	}
	if openErr != nil {
		return now, openErr
	}
	if err := a.settleEarlier(claim, settleOnTake); err != nil {
		return now, err
	}
	return now, ctx.Err()
}

func (h *hostOps) anyOpen() (bool, error) {
	logs, err := h.cfg.allTx()
	if err != nil {
		return false, err
	}
	for _, l := range logs {
		if replay(l).unsettled() {
			return true, nil
		}
	}
	return false, nil
}

func (a *agent) releaseFence(claim Claim) error {
	rec, err := a.cfg.readFence()
	if err != nil {
		return err
	}
	if rec != nil && rec.Claim == claim && rec.Released {
		return nil
	}
	if fe := judgeWrite(rec, claim); fe != nil {
		return fe
	}
	rec.Released = true
	return a.cfg.writeFence(*rec)
}

func (a *agent) hello() Hello {
	h := Hello{Version: a.cfg.Version, OS: runtime.GOOS, Arch: runtime.GOARCH, PID: os.Getpid()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.guardian != nil {
		h.GuardianPID = a.guardian.PID()
	}
	return h
}
