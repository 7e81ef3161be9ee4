package host

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Client speaks to one agent over one connection. It is safe for concurrent
// use. After the connection ended every call returns a *ConnectionError.
type Client struct {
	rw   io.ReadWriteCloser
	out  *lineWriter
	done chan struct{}

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*call
	err   error // why the connection ended; set before done is closed
	close sync.Once
}

type call struct {
	event  func(json.RawMessage)
	answer chan response // capacity 1
}

// NewClient starts reading answers from rw.
func NewClient(rw io.ReadWriteCloser) *Client {
	c := &Client{rw: rw, out: &lineWriter{w: rw}, done: make(chan struct{}), calls: map[uint64]*call{}}
	go c.read()
	return c
}

// Close ends the connection. The agent finishes a transaction in hand and exits.
func (c *Client) Close() error {
	c.end(nil)
	return nil
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

func (c *Client) end(err error) {
	c.close.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.done)
		c.rw.Close()
	})
}

func (c *Client) read() {
	r := newLineReader(c.rw)
	for {
		var resp response
		if err := r.next(&resp); err != nil {
			c.end(err)
			return
		}
		c.mu.Lock()
		k := c.calls[resp.ID]
		c.mu.Unlock()
		switch {
		case resp.ID == 0 && resp.Error != nil:
			c.end(resp.Error)
			return
		case k == nil: // an answer to a call whose caller has gone
		case resp.Event != nil:
			if k.event != nil {
				k.event(resp.Event)
			}
		default:
			k.answer <- resp
			c.forget(resp.ID)
		}
	}
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	delete(c.calls, id)
	c.mu.Unlock()
}

func (c *Client) connErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &ConnectionError{Err: c.err}
}

// do sends one request and waits for its end. When ctx ends first the agent is
// told to cancel (it ignores that for a transaction, which it always settles).
func (c *Client) do(ctx context.Context, method string, claim *Claim, params, result any, event func(json.RawMessage)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	id, k := c.expect(event)
	return c.exchange(ctx, id, k, request{Method: method, Claim: claim}, params, result)
}

// expect enters a call under a new id.
func (c *Client) expect(event func(json.RawMessage)) (uint64, *call) {
	k := &call{event: event, answer: make(chan response, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	c.calls[c.next] = k
	return c.next, k
}

func (c *Client) exchange(ctx context.Context, id uint64, k *call, req request, params, result any) error {
	defer c.forget(id)
	method := req.Method
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", method, err)
	}
	req.ID, req.Params = id, raw
	if err := c.out.write(req); err != nil {
		c.end(err)
		return c.connErr()
	}
	select {
	case resp := <-k.answer:
		return finish(method, resp, result)
	case <-c.done:
		select { // the answer may have come just before the end
		case resp := <-k.answer:
			return finish(method, resp, result)
		default:
		}
		return c.connErr()
	case <-ctx.Done():
		p, _ := json.Marshal(cancelParams{ID: id})
		// Best effort: where the connection is gone there is nothing to cancel.
		_ = c.out.write(request{Method: methodCancel, Params: p})
		return ctx.Err()
	}
}

func finish(method string, resp response, result any) error {
	if resp.Error != nil {
		return fromWire(resp.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("decoding the answer to %s: %w", method, err)
	}
	return nil
}

// Hello asks who answers.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.do(ctx, methodHello, nil, nil, &h, nil)
	return h, err
}

// Fence reads the fence record; nil when this host was never claimed.
func (c *Client) Fence(ctx context.Context) (*FenceRecord, error) {
	var r *FenceRecord
	err := c.do(ctx, methodFence, nil, nil, &r, nil)
	return r, err
}

// Facts reads the host.
func (c *Client) Facts(ctx context.Context, req FactsRequest) (Facts, error) {
	var f Facts
	err := c.do(ctx, methodFacts, nil, req, &f, nil)
	return f, err
}

// Resolve asks the host's engine, with the host's own login, which digest ref
// means now. Errors: ErrNotFound, ErrAuth, ErrEngineAway.
func (c *Client) Resolve(ctx context.Context, ref string) (Image, error) {
	var i Image
	err := c.do(ctx, methodResolve, nil, refParams{ref}, &i, nil)
	return i, err
}

// Carry says what a successor would take over. It works before the new image is
// on the host; NewKnown is false then.
func (c *Client) Carry(ctx context.Context, req CarryRequest) (CarryReport, error) {
	var r CarryReport
	err := c.do(ctx, methodCarry, nil, req, &r, nil)
	return r, err
}

// Situation reads what is really there and the log of operation for container.
func (c *Client) Situation(ctx context.Context, container, operation string) (Situation, error) {
	var s Situation
	err := c.do(ctx, methodSituation, nil, situationParams{container, operation}, &s, nil)
	return s, err
}

// TxLog reads the log this host kept of an operation.
func (c *Client) TxLog(ctx context.Context, operation string) ([]TxEntry, error) {
	var l []TxEntry
	err := c.do(ctx, methodTxLog, nil, nameParams{operation}, &l, nil)
	return l, err
}

// LastLines reads the last n log lines of a container, with secrets blotted out.
func (c *Client) LastLines(ctx context.Context, container string, n int) ([]string, error) {
	var l []string
	err := c.do(ctx, methodLastLines, nil, linesParams{container, n}, &l, nil)
	return l, err
}

// Writer changes the host under one claim. The host refuses every call with a
// *FencedError once it has accepted a newer claim.
type Writer struct {
	c     *Client
	claim Claim
}

// Writer returns the writing half for claim.
func (c *Client) Writer(claim Claim) *Writer { return &Writer{c: c, claim: claim} }

// Claim is the claim this writer sends.
func (w *Writer) Claim() Claim { return w.claim }

// Client is the reading half of the same connection.
func (w *Writer) Client() *Client { return w.c }

func (w *Writer) do(ctx context.Context, method string, params, result any, event func(json.RawMessage)) error {
	return w.c.do(ctx, method, &w.claim, params, result, event)
}

// TakeFence makes the host accept this claim, waiting for a transaction in
// hand; an unsettled transaction is settled first. Refusal: *FencedError.
func (w *Writer) TakeFence(ctx context.Context) (FenceRecord, error) {
	var r FenceRecord
	err := w.do(ctx, methodTakeFence, nil, &r, nil)
	return r, err
}

// ReleaseFence marks this claim as ended. The record and its epoch stay.
func (w *Writer) ReleaseFence(ctx context.Context) error {
	return w.do(ctx, methodReleaseFence, nil, nil, nil)
}

// TakeOver replaces an unreleased record of another store, exactly as it was
// seen, by a released one of this claim (`lease break`). ErrChanged: it is not
// that record any more.
func (w *Writer) TakeOver(ctx context.Context, expect FenceRecord, reason string) (FenceRecord, error) {
	var r FenceRecord
	err := w.do(ctx, methodTakeOver, takeOverParams{expect, reason}, &r, nil)
	return r, err
}

func events[T any](fn func(T)) func(json.RawMessage) {
	if fn == nil {
		return nil
	}
	return func(raw json.RawMessage) {
		var v T
		if json.Unmarshal(raw, &v) == nil {
			fn(v)
		}
	}
}

// Pull pulls an image by digest with the host's own login.
func (w *Writer) Pull(ctx context.Context, digestRef string, progress func(PullProgress)) (Image, error) {
	var i Image
	err := w.do(ctx, methodPull, refParams{digestRef}, &i, events(progress))
	return i, err
}

// Stage creates the successor, stopped, under a temporary name, connects its
// networks and compares it with the old container. Idempotent by NextName.
func (w *Writer) Stage(ctx context.Context, req StageRequest) (StageReport, error) {
	var r StageReport
	err := w.do(ctx, methodStage, req, &r, nil)
	return r, err
}

// Discard removes a successor that was never started; ErrNotFound is not an error.
func (w *Writer) Discard(ctx context.Context, name string) error {
	return w.do(ctx, methodDiscard, nameParams{name}, nil, nil)
}

// Replace runs the local transaction that puts the successor in place. An error
// means that nothing was changed or, as *ConnectionError or a context error,
// that the outcome is to be read from Situation.
func (w *Writer) Replace(ctx context.Context, req ReplaceRequest, ev func(TxEvent)) (ReplaceResult, error) {
	var r ReplaceResult
	err := w.do(ctx, methodReplace, req, &r, events(ev))
	return r, err
}

// PutBack runs the local transaction that puts the old container back.
func (w *Writer) PutBack(ctx context.Context, req PutBackRequest, ev func(TxEvent)) (ReplaceResult, error) {
	var r ReplaceResult
	err := w.do(ctx, methodPutBack, req, &r, events(ev))
	return r, err
}

// State brings the node's container into a state and tells what is there then.
// An error with nothing done, or a *ConnectionError, after which it is asked again.
func (w *Writer) State(ctx context.Context, req StateRequest, ev func(TxEvent)) (ContainerFacts, error) {
	var f ContainerFacts
	err := w.do(ctx, methodState, req, &f, events(ev))
	return f, err
}

// Finish archives the log of the container that was set aside and removes it,
// never its volumes. Refused while the successor is not running.
func (w *Writer) Finish(ctx context.Context, req FinishRequest, ev func(TxEvent)) (FinishResult, error) {
	var r FinishResult
	err := w.do(ctx, methodFinish, req, &r, events(ev))
	return r, err
}
