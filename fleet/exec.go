package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

const (
	maxOutput  = 4 << 20 // of a command's answer; inspect of a container is some KB
	stderrTail = 4 << 10
	errorChunk = 512 // what is read of it at once: nearly always nothing
)

func itoa(n int) string { return strconv.Itoa(n) }

// run runs one command of host.Commands and returns its output. what names it
// in errors. A dead connection is *DroppedError: the command may have run.
func (l *link) run(ctx context.Context, what, line string, stdin io.Reader) ([]byte, error) {
	p, err := l.start(ctx, line, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var tail tailBuffer
	var side sync.WaitGroup
	side.Go(func() { io.CopyBuffer(&tail, p.Stderr(), make([]byte, errorChunk)) })
	side.Go(func() {
		if stdin != nil {
			io.Copy(p, stdin)
		}
		p.CloseWrite()
	})
	out, _ := io.ReadAll(io.LimitReader(p, maxOutput))
	if len(out) == maxOutput {
		return nil, fmt.Errorf("%s: host %s: answer larger than %d bytes", what, l.name, maxOutput)
	}
	<-p.exit
	p.Close()
	side.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: host %s: %w", what, l.name, ctx.Err())
	case p.status < 0 && p.signal == "" && l.waitDead(ctx):
		return nil, fmt.Errorf("%s: %w", what, l.dropped())
	case p.status != 0:
		return out, &CommandError{Host: l.name, What: what, Exit: p.status, Stderr: tail.String()}
	}
	return out, nil
}

// waitDead tells whether a channel that ended without a status did so because
// the connection went. The channel's end is noticed a moment before.
func (l *link) waitDead(ctx context.Context) bool {
	select {
	case <-l.dead:
		return true
	default:
	}
	_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
	if err == nil {
		return false
	}
	select {
	case <-l.dead:
	case <-ctx.Done():
	}
	return true
}

// tailBuffer keeps the end of what is written to it.
type tailBuffer struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - stderrTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(bytes.TrimSpace(t.buf)), "?")
}
