package simnode

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// logger writes the node's log. Lines of kind I and W exist only from a log
// level on; all others are always printed (facts 4).
type logger struct {
	mu       sync.Mutex
	out, err io.Writer
	level    atomic.Int32
}

const (
	levelWarn = 2
	levelInfo = 3
)

func newLogger(out, err io.Writer, level int) *logger {
	if out == nil {
		out = io.Discard
	}
	if err == nil {
		err = io.Discard
	}
	l := &logger{out: out, err: err}
	l.level.Store(int32(level))
	return l
}

// always prints whatever the level is.
func (l *logger) always(format string, args ...any) { l.write(l.out, format, args) }

// info prints a line marked (I), warn one marked (W).
func (l *logger) info(format string, args ...any) {
	if l.level.Load() >= levelInfo {
		l.write(l.out, format, args)
	}
}

func (l *logger) warn(format string, args ...any) {
	if l.level.Load() >= levelWarn {
		l.write(l.out, format, args)
	}
}

// stderr prints to the error stream: fatal and boot-backoff lines.
func (l *logger) stderr(format string, args ...any) { l.write(l.err, format, args) }

func (l *logger) write(w io.Writer, format string, args []any) {
	line := fmt.Appendf(nil, format, args...)
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = w.Write(line)
}
