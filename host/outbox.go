package host

import (
	"encoding/json"
	"io"
	"sync"
)

// maxQueue bounds what waits for a slow connection; events beyond it are
// dropped, answers and the items of streams are not.
const maxQueue = 4096

// outbox writes answers in its own goroutine: a connection that has stalled must
// never hold up a transaction.
type outbox struct {
	w    *lineWriter
	mu   sync.Mutex
	cond *sync.Cond
	q    []response
	shut bool
	done chan struct{}
}

func newOutbox(w io.Writer) *outbox {
	o := &outbox{w: &lineWriter{w: w}, done: make(chan struct{})}
	o.cond = sync.NewCond(&o.mu)
	go o.run()
	return o
}

func (o *outbox) run() {
	defer close(o.done)
	for {
		o.mu.Lock()
		for len(o.q) == 0 && !o.shut {
			o.cond.Wait()
		}
		if len(o.q) == 0 {
			o.mu.Unlock()
			return
		}
		r := o.q[0]
		o.q = o.q[1:]
		o.mu.Unlock()
		if o.w.write(r) != nil {
			o.close() // nobody reads any more
			return
		}
	}
}

func (o *outbox) put(r response) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shut {
		return
	}
	o.q = append(o.q, r)
	o.cond.Signal()
}

// full says whether events have to be dropped.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.q) >= maxQueue
}

func (o *outbox) event(id uint64, v any) {
	if b, err := json.Marshal(v); err == nil && !o.full() {
		o.put(response{ID: id, Event: b})
	}
}

// item is an event that is never dropped: the window of its stream bounds them.
func (o *outbox) item(id uint64, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	o.put(response{ID: id, Event: b})
	return nil
}

func (o *outbox) answer(id uint64, v any, err error) {
	if err != nil {
		o.put(response{ID: id, Error: wireError(err)})
		return
	}
	b, merr := json.Marshal(v)
	if merr != nil {
		o.put(response{ID: id, Error: wireError(merr)})
		return
	}
	o.put(response{ID: id, Result: b})
}

// close lets what is queued go out and ends the writer.
func (o *outbox) close() {
	o.mu.Lock()
	o.shut = true
	o.cond.Signal()
	o.mu.Unlock()
}
