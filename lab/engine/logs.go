package engine

import (
	"bytes"
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// logKeep bounds what one container's log holds in memory: the newest entries.
const logKeep = 200_000

// logTime is how the engine prints the time before a log line: nine digits of
// fraction always, unlike time.RFC3339Nano.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"

// entry is one line of a log, with its newline.
type entry struct {
	at     time.Time
	stream string
	line   []byte
}

// logBuffer is a container's log. It outlives the container's processes.
type logBuffer struct {
	mu      sync.Mutex
	cond    *sync.Cond
	entries []entry
	first   int  // number of entries[0]
	live    bool // a process writes
	gone    bool
	partial map[string][]byte
}

func newLogBuffer() *logBuffer {
	b := &logBuffer{partial: map[string][]byte{}}
	b.cond = sync.NewCond(&b.mu)
	return b
}

// open says that a process is about to write.
func (b *logBuffer) open() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live = true
}

// closeWriters ends the lines of a process; streams that follow end too.
func (b *logBuffer) closeWriters() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, stream := range []string{"stdout", "stderr"} {
		if p := b.partial[stream]; len(p) > 0 {
			b.add(stream, append(p, '\n'))
			b.partial[stream] = nil
		}
	}
	b.live = false
	b.cond.Broadcast()
}

// finish is the end of the container.
func (b *logBuffer) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live, b.gone = false, true
	b.cond.Broadcast()
}

// rotate drops all but the newest n entries, as log rotation does.
func (b *logBuffer) rotate(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cut := len(b.entries) - n; cut > 0 {
		b.entries = append([]entry(nil), b.entries[cut:]...)
		b.first += cut
	}
}

func (b *logBuffer) add(stream string, line []byte) {
	b.entries = append(b.entries, entry{at: time.Now().UTC(), stream: stream, line: line})
	if n := len(b.entries) - logKeep; n > 0 {
		b.entries = append(b.entries[:0:0], b.entries[n:]...)
		b.first += n
	}
	b.cond.Broadcast()
}

func (b *logBuffer) writer(stream string) io.Writer { return &logWriter{b, stream} }

// logWriter cuts a stream into lines.
type logWriter struct {
	b      *logBuffer
	stream string
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	buf := append(w.b.partial[w.stream], p...)
	for {
		i := bytes.IndexByte(buf, '\n')
		if i < 0 {
			break
		}
		w.b.add(w.stream, append([]byte(nil), buf[:i+1]...))
		buf = buf[i+1:]
	}
	w.b.partial[w.stream] = append([]byte(nil), buf...)
	return len(p), nil
}

// logQuery is what a client asks of a log.
type logQuery struct {
	stdout, stderr bool
	since, until   time.Time
	tail           int // -1: all
	timestamps     bool
	follow         bool
	tty            bool
}

// stream writes a log to w until it is told. Following ends with the process,
// as it does with the real engine: a client that wants the next process's lines
// has to ask again.
func (b *logBuffer) stream(w io.Writer, q logQuery, done <-chan struct{}, flush func()) {
	stop := make(chan struct{})
	defer close(stop)
	ended := false
	go func() { // a client that has left wakes the wait below
		select {
		case <-done:
			b.mu.Lock()
			ended = true
			b.cond.Broadcast()
			b.mu.Unlock()
		case <-stop:
		}
	}()
	b.mu.Lock()
	next := b.start(q)
	for {
		batch := append([]entry(nil), b.entries[max(0, next-b.first):]...)
		next = b.first + len(b.entries)
		follow := q.follow && b.live && !b.gone && !ended
		if len(batch) == 0 && !follow {
			b.mu.Unlock()
			return
		}
		if len(batch) == 0 {
			b.cond.Wait()
			continue
		}
		b.mu.Unlock()
		for _, e := range batch {
			if q.wants(e) {
				if err := q.write(w, e); err != nil {
					return
				}
			}
		}
		flush()
		b.mu.Lock()
	}
}

// start is the number of the first entry to send: the tail counts the newest
// entries of the wanted streams.
func (b *logBuffer) start(q logQuery) int {
	if q.tail < 0 {
		return b.first
	}
	i := len(b.entries)
	for n := 0; i > 0 && n < q.tail; i-- {
		if e := b.entries[i-1]; e.stream == "stdout" && q.stdout || e.stream == "stderr" && q.stderr {
			n++
		}
	}
	return b.first + i
}

func (q logQuery) wants(e entry) bool {
	if e.stream == "stdout" && !q.stdout || e.stream == "stderr" && !q.stderr {
		return false
	}
	return !e.at.Before(q.since) && (q.until.IsZero() || !e.at.After(q.until))
}

// write sends one frame: a byte for the stream, three of nothing, the length.
func (q logQuery) write(w io.Writer, e entry) error {
	line := e.line
	if q.timestamps {
		line = append([]byte(e.at.Format(logTime)+" "), line...)
	}
	if !q.tty {
		var head [8]byte
		head[0] = 1
		if e.stream == "stderr" {
			head[0] = 2
		}
		binary.BigEndian.PutUint32(head[4:], uint32(len(line)))
		line = append(head[:], line...)
	}
	_, err := w.Write(line)
	return err
}

// last returns the newest n lines, for the lab's own use.
func (b *logBuffer) last(n int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := max(0, len(b.entries)-n)
	out := make([]string, 0, n)
	for _, e := range b.entries[from:] {
		out = append(out, string(bytes.TrimRight(e.line, "\n")))
	}
	return out
}
