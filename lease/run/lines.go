package run

import (
	"fmt"
	"io"
	"time"
)

// lines writes to a log that may be full: whoever says something never waits.
type lines struct {
	queue chan string
	done  chan struct{}
}

func newLines(w io.Writer) *lines {
	l := &lines{queue: make(chan string, 64), done: make(chan struct{}, 1)}
	go func() {
		for line := range l.queue {
			if line == "" {
				select {
				case l.done <- struct{}{}:
				default:
				}
				continue
			}
			_, _ = io.WriteString(w, line)
		}
	}()
	return l
}

// say drops the line where the log does not take it.
func (l *lines) say(format string, args ...any) {
	select {
	case l.queue <- fmt.Sprintf(format, args...) + "\n":
	default:
	}
}

// flush gives the log a moment to take what was said.
func (l *lines) flush(limit time.Duration) {
	select {
	case l.queue <- "":
	default:
		return
	}
	select {
	case <-l.done:
	case <-time.After(limit):
	}
}
