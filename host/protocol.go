package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// The protocol: one JSON object a line in both directions. A request has an id
// chosen by the client; it is answered by any number of events and then by one
// result or one error with the same id. Cancel and more concern an earlier
// request and have no answer. Requests may overlap; writes are taken
// one after the other. An answer with id 0 concerns the connection as a whole.

// maxLine bounds one protocol line; a log tail is the largest thing that crosses.
const maxLine = 8 << 20

// methods of the agent.
const (
	methodHello        = "hello"
	methodFence        = "fence"
	methodFacts        = "facts"
	methodResolve      = "resolve"
	methodCarry        = "carry"
	methodSituation    = "situation"
	methodTxLog        = "tx_log"
	methodLastLines    = "last_lines"
	methodNodeHTTP     = "node_http"
	methodLogs         = "logs"
	methodEvents       = "events"
	methodTakeFence    = "take_fence"
	methodReleaseFence = "release_fence"
	methodTakeOver     = "take_over"
	methodPull         = "pull"
	methodStage        = "stage"
	methodDiscard      = "discard"
	methodReplace      = "replace"
	methodPutBack      = "put_back"
	methodFinish       = "finish"
	methodState        = "state"
	methodDecree       = "decree"
	methodData         = "data"
	methodDataAside    = "data_aside"
	methodDataCopy     = "data_copy"
	methodDataBack     = "data_back"
	methodCancel       = "cancel"
	methodMore         = "more"
)

type request struct {
	ID     uint64          `json:"id"`
	Method string          `json:"method"`
	Claim  *Claim          `json:"claim,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
}

type response struct {
	ID     uint64          `json:"id"`
	Event  json.RawMessage `json:"event,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

type cancelParams struct {
	ID uint64 `json:"id"`
}

type nameParams struct {
	Name string `json:"name"`
}

type refParams struct {
	Ref string `json:"ref"`
}

type situationParams struct {
	Container string `json:"container"`
	Operation string `json:"operation"`
}

type linesParams struct {
	Container string `json:"container"`
	N         int    `json:"n"`
}

// lineWriter writes whole lines from several goroutines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a protocol line: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("writing a protocol line: %w", err)
	}
	return nil
}

// lineReader yields whole lines; a line beyond maxLine is an error.
type lineReader struct{ s *bufio.Scanner }

func newLineReader(r io.Reader) *lineReader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &lineReader{s: s}
}

// next decodes the next line into v; io.EOF at the end.
func (l *lineReader) next(v any) error {
	for l.s.Scan() {
		if len(l.s.Bytes()) == 0 {
			continue
		}
		if err := json.Unmarshal(l.s.Bytes(), v); err != nil {
			return errorf(CodeBadRequest, "", "a protocol line is not valid JSON of the expected shape")
		}
		return nil
	}
	if err := l.s.Err(); err != nil {
		return err
	}
	return io.EOF
}

// wireError turns any error into what crosses the wire.
func wireError(err error) *Error {
	var fe *FencedError
	if errors.As(err, &fe) {
		detail, merr := json.Marshal(struct {
			Record FenceRecord `json:"record"`
			Claim  Claim       `json:"claim"`
			Reason string      `json:"reason"`
		}{fe.Record, fe.Claim, fe.Reason})
		if merr != nil {
			detail = nil
		}
		return &Error{Code: CodeFenced, Message: fe.Error(), HintText: fe.Hint(), Detail: detail}
	}
	var e *Error
	if errors.As(err, &e) {
		return &Error{Code: e.Code, Message: err.Error(), HintText: e.HintText, Detail: e.Detail}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// fromWire turns an error that crossed the wire back into its type.
func fromWire(e *Error) error {
	if e.Code != CodeFenced || e.Detail == nil {
		return e
	}
	var d struct {
		Record FenceRecord `json:"record"`
		Claim  Claim       `json:"claim"`
		Reason string      `json:"reason"`
	}
	if json.Unmarshal(e.Detail, &d) != nil {
		return e
	}
	return &FencedError{Record: d.Record, Claim: d.Claim, Reason: d.Reason}
}
