package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
)

// Reads whose answer is long or has no end send it in items, as events of the
// request. The sender has at most streamWindow of them on the way and sends on
// as the reader takes them (method more): a slow reader stops its own stream
// and nothing else, and no queue grows on either side.
const (
	streamWindow = 32
	streamChunk  = 16 << 10 // bytes of an item that carries part of a body
)

type moreParams struct {
	ID uint64 `json:"id"`
	N  int    `json:"n"`
}

// flow is the agent's side of a stream.
type flow struct {
	id   uint64
	out  *outbox
	room chan struct{}
}

// flow begins the stream of a request.
func (a *agent) flow(id uint64) *flow {
	f := &flow{id: id, out: a.out, room: make(chan struct{}, streamWindow)}
	f.more(streamWindow)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flows[id] = f
	return f
}

// more makes room for n further items; what goes beyond the window is a
// reader's mistake and does not count.
func (f *flow) more(n int) {
	for range min(n, streamWindow) {
		select {
		case f.room <- struct{}{}:
		default:
			return
		}
	}
}

// send waits for room and sends one item.
func (f *flow) send(ctx context.Context, v any) error {
	select {
	case <-f.room:
		return f.out.item(f.id, v)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// copy sends a body to its end in items of bytes, at most limit of them (0: no
// bound). An answer that breaks off is CodeCut.
func (f *flow) copy(ctx context.Context, body io.Reader, limit int64) error {
	buf := make([]byte, streamChunk)
	for sent := int64(0); ; {
		n, err := body.Read(buf)
		if n > 0 {
			if sent += int64(n); limit > 0 && sent > limit {
				return errorf(CodeTooLarge, "", "answer is larger than %d bytes", limit)
			}
			if err := f.send(ctx, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return errorf(CodeCut, "", "answer broke off: %v", err)
		}
	}
}

// stream is the client's side. One goroutine at a time calls next; close may
// come from another.
type stream struct {
	c      *Client
	id     uint64
	items  chan json.RawMessage
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // why it ended, io.EOF for its end; set before done is closed
	owed   int   // items taken and not yet told
}

var (
	errStreamClosed  = errors.New("stream was closed")
	errStreamOverrun = errors.New("host agent sent more than it was asked for")
)

// stream sends a request whose answer comes in items. It lives until its end,
// ctx's or close.
func (c *Client) stream(ctx context.Context, method string, params any) *stream {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{c: c, items: make(chan json.RawMessage, streamWindow), cancel: cancel, done: make(chan struct{})}
	id, k := c.expect(s.take)
	s.id = id
	go func() {
		defer cancel(nil)
		defer close(s.done)
		s.err = c.exchange(ctx, id, k, request{Method: method}, params, nil)
		switch {
		case s.err == nil:
			s.err = io.EOF
		case errors.Is(s.err, context.Canceled):
			s.err = context.Cause(ctx)
		}
	}()
	return s
}

// take runs on the client's reader and never waits.
func (s *stream) take(raw json.RawMessage) {
	select {
	case s.items <- raw:
	default:
		s.cancel(errStreamOverrun)
	}
}

// next gives the next item, or why there is none: io.EOF at the end.
func (s *stream) next() (json.RawMessage, error) {
	select {
	case item := <-s.items:
		return item, s.took()
	case <-s.done:
	}
	select { // what came before the end counts
	case item := <-s.items:
		return item, nil
	default:
		return nil, s.err
	}
}

func (s *stream) took() error {
	if s.owed++; s.owed < streamWindow/2 {
		return nil
	}
	p, err := json.Marshal(moreParams{ID: s.id, N: s.owed})
	if err != nil {
		return err
	}
	s.owed = 0
	if err := s.c.out.write(request{Method: methodMore, Params: p}); err != nil {
		s.c.end(err)
		return s.c.connErr()
	}
	return nil
}

func (s *stream) close() { s.cancel(errStreamClosed) }

// streamBody is the rest of a stream as a body.
type streamBody struct {
	s    *stream
	left []byte
}

func (b *streamBody) Read(p []byte) (int, error) {
	for len(b.left) == 0 {
		raw, err := b.s.next()
		if err != nil {
			return 0, err
		}
		if err := json.Unmarshal(raw, &b.left); err != nil {
			return 0, errorf(CodeBadRequest, "", "host agent sent an item that is not part of a body")
		}
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

func (b *streamBody) Close() error {
	b.s.close()
	return nil
}
