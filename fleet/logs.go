package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// LogOptions choose which lines of a container's log are read.
type LogOptions struct {
	Since      time.Time // zero: from the beginning
	Until      time.Time // zero: to the end
	Tail       int       // only the last lines; 0: all
	Follow     bool
	Timestamps bool // each line begins with the engine's RFC 3339 time and a space
}

// LogLine is one line without its newline.
type LogLine struct {
	Stderr bool
	Text   string
}

// Logs is a stream of lines of both outputs of a container in the order the
// engine gives them.
type Logs struct {
	body    io.ReadCloser
	r       *bufio.Reader
	link    *link
	ctx     context.Context
	started bool
	raw     bool // a container with a terminal: one stream without frames
	partial [2][]byte
	lines   []LogLine
	err     error
}

// maxLogLine bounds a line; a longer one is cut into pieces of this size.
const maxLogLine = 1 << 20

// Logs opens a container's log. The caller closes it; a followed log also ends
// with ctx.
func (e *Engine) Logs(ctx context.Context, name string, opts LogOptions) (*Logs, error) {
	var body io.ReadCloser
	err := e.use(ctx, "reading the log of "+name, func(ctx context.Context, api *client.Client) error {
		var err error
		body, err = api.ContainerLogs(ctx, name, container.LogsOptions{
			ShowStdout: true, ShowStderr: true, Since: engineTime(opts.Since), Until: engineTime(opts.Until),
			Timestamps: opts.Timestamps, Follow: opts.Follow, Tail: tailWord(opts.Tail),
		})
		return err
	})
	if e.forwarding(err) {
		body, err = e.agentLogs(ctx, name, opts, err)
	}
	if err != nil {
		return nil, err
	}
	return &Logs{body: body, r: bufio.NewReaderSize(body, 32<<10), link: e.conn.link, ctx: ctx}, nil
}

func engineTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

func tailWord(n int) string {
	if n <= 0 {
		return "all"
	}
	return strconv.Itoa(n)
}

// Next gives the next line. io.EOF is the end of the log (with Follow: the
// container ended); *DroppedError a lost connection.
func (l *Logs) Next() (LogLine, error) {
	for len(l.lines) == 0 {
		if l.err != nil {
			return LogLine{}, l.err
		}
		if err := l.fill(); err != nil {
			l.flush()
			l.err = l.explain(err)
		}
	}
	line := l.lines[0]
	l.lines = l.lines[1:]
	return line, nil
}

// All ranges over the rest of the log; an error other than the end comes last.
func (l *Logs) All() iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		for {
			line, err := l.Next()
			if errors.Is(err, io.EOF) || !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the stream.
func (l *Logs) Close() error { return l.body.Close() }

func (l *Logs) explain(err error) error {
	switch {
	case l.ctx.Err() != nil:
		return l.ctx.Err()
	case errors.Is(err, io.EOF):
		return io.EOF
	case l.link.waitDead(l.ctx):
		return l.link.dropped()
	}
	return &EngineError{Host: l.link.name, Fault: EngineAnswer, What: "reading a log", Err: err}
}

// fill reads one frame: a byte for the stream, three zeros, the length. A
// container with a terminal sends no frames; its text is told by its start,
// since no log text begins with a control byte and three zeros.
func (l *Logs) fill() error {
	head, err := l.r.Peek(8)
	if !l.started && len(head) > 0 {
		l.started = true
		l.raw = len(head) < 8 || head[0] > 2 || !bytes.Equal(head[1:4], []byte{0, 0, 0})
	}
	if l.raw {
		buf := make([]byte, 4<<10)
		n, err := l.r.Read(buf)
		l.take(0, buf[:n])
		return err
	}
	if err != nil {
		if len(head) > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	stream, size := head[0], int64(binary.BigEndian.Uint32(head[4:]))
	if stream > 2 || head[1]|head[2]|head[3] != 0 {
		return errors.New("frame header is not one of a log")
	}
	l.r.Discard(8)
	for size > 0 {
		buf := make([]byte, min(size, 64<<10))
		if _, err := io.ReadFull(l.r, buf); err != nil {
			return io.ErrUnexpectedEOF
		}
		l.take(stream, buf)
		size -= int64(len(buf))
	}
	return nil
}

func (l *Logs) take(stream byte, data []byte) {
	p := &l.partial[stream>>1] // 0 and 1 are stdout, 2 is stderr
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			break
		}
		l.emit(stream, append(*p, data[:i]...))
		*p, data = (*p)[:0], data[i+1:]
	}
	*p = append(*p, data...)
	if len(*p) >= maxLogLine {
		l.emit(stream, *p)
		*p = (*p)[:0]
	}
}

func (l *Logs) emit(stream byte, text []byte) {
	l.lines = append(l.lines, LogLine{Stderr: stream == 2, Text: string(bytes.TrimSuffix(text, []byte{'\r'}))})
}

func (l *Logs) flush() {
	for i := range l.partial {
		if len(l.partial[i]) > 0 {
			l.emit(byte(i*2), l.partial[i])
			l.partial[i] = nil
		}
	}
}
