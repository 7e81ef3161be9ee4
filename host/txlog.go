package host

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"
)

// Names of the transactions and of their steps, as they stand in the log.
const (
	txStage   = "stage"
	txDiscard = "discard"
	txReplace = "replace"
	txPutBack = "put_back"
	txFinish  = "finish"
	txState   = "state"
	txDecree  = "decree"

	stepBegin = "begin"
	stepTurn  = "turn" // forward is given up, from here on the old container is put back
	stepEnd   = "end"

	stepStopOld     = "stop_old"
	stepOldNo       = "policy_old_no"
	stepNextPolicy  = "policy_next"
	stepStartNext   = "start_next"
	stepOldAside    = "rename_old_aside"
	stepNextName    = "rename_next"
	stepStopNext    = "stop_next"
	stepNextNo      = "policy_next_no"
	stepSettleOld   = "settle_old" // a stop that failed may still take effect: watch
	stepOldPolicy   = "policy_old"
	stepStartOld    = "start_old"
	stepNextFailed  = "rename_next_failed"
	stepOldName     = "rename_old"
	stepCreate      = "create_next"
	stepExitOld     = "exit_old" // how the old container ended
	stepExitNext    = "exit_next"
	stepArchive     = "archive"
	stepRemoveAside = "remove_aside"
	stepPolicy      = "policy"
	stepStop        = "stop"
	stepStart       = "start"
	stepDecree      = "decree"
)

// stepsOfNode are the steps between which the node is down.
var stepsOfNode = map[string]bool{stepStopOld: true, stepOldNo: true, stepStartNext: true, stepStopNext: true, stepNextNo: true,
	stepOldPolicy: true, stepStartOld: true, stepExitOld: true, stepExitNext: true}

// txLog is the append-only log of one operation on one container. Every line is
// on the disk before the thing it announces is done.
type txLog struct {
	f         *os.File
	op        string
	container string
	tx        string
	by        string
	entries   []TxEntry
	good      int64 // length up to the last whole line
	now       func() time.Time
	watch     func(TxEvent) // may be nil
}

const txDir = "tx"

func (c Config) txPath(op, container string) string {
	return c.state(txDir, op+"-"+container+".jsonl")
}

// openTx opens or makes the log. A torn last line, the trace of a crash while
// writing it, is cut off: what it announced was not begun.
func (c Config) openTx(op, container, tx, by string) (*txLog, error) {
	if !ValidContainerName(op) || !ValidContainerName(container) {
		return nil, errorf(CodeBadRequest, "", "operation %q or container %q cannot name a log file", op, container)
	}
	if err := os.MkdirAll(c.state(txDir), 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of transaction logs: %w", err)
	}
	name := c.txPath(op, container)
	entries, good, err := readTx(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a transaction log: %w", err)
	}
	if err := errors.Join(f.Truncate(good), seekEnd(f), f.Sync(), syncDir(filepath.Dir(name))); err != nil {
		f.Close()
		return nil, fmt.Errorf("opening a transaction log: %w", err)
	}
	return &txLog{f: f, op: op, container: container, tx: tx, by: by, entries: entries, good: good, now: c.now}, nil
}

func seekEnd(f *os.File) error {
	_, err := f.Seek(0, 2)
	return err
}

func (l *txLog) close() { l.f.Close() }

// add appends one entry and returns when it is on the disk.
func (l *txLog) add(e TxEntry) error {
	e.At, e.Operation, e.Container, e.Tx, e.By = l.now().UTC(), l.op, l.container, l.tx, l.by
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encoding a transaction entry: %w", err)
	}
	n, err := l.f.Write(append(b, '\n'))
	if err == nil && !(e.State == TxDone && stepsOfNode[e.Step]) {
		// The outcome of a step while the node is down goes to the disk with the
		// next intent: should it be lost, an observation says the same.
		err = l.f.Sync()
	}
	if err != nil {
		// No half line may stay: the next one would be written behind it.
		_ = errors.Join(l.f.Truncate(l.good), seekEnd(l.f))
		return fmt.Errorf("writing a transaction entry: %w", err)
	}
	l.good += int64(n)
	l.keep(e)
	return nil
}

func (l *txLog) keep(e TxEntry) {
	l.entries = append(l.entries, e)
	if l.watch != nil {
		l.watch(TxEvent{Step: e.Step, State: e.State, At: e.At, Text: e.Text})
	}
}

// note is add for a transaction that has begun: where the disk takes no more, it
// goes on from memory. A node that is stopped half way because its disk is full
// would be worse than a log with a gap, and whoever finds that log decides by
// what is there.
func (l *txLog) note(e TxEntry) {
	if l.add(e) == nil {
		return
	}
	e.At, e.Operation, e.Container, e.Tx, e.By = l.now().UTC(), l.op, l.container, l.tx, l.by
	l.keep(e)
}

// readTx reads a log; good is the length up to the last whole line.
func readTx(name string) (entries []TxEntry, good int64, err error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, 0, err
	}
	s := bufio.NewScanner(bytes.NewReader(raw))
	s.Buffer(nil, maxLine)
	for s.Scan() {
		end := good + int64(len(s.Bytes())) + 1
		var e TxEntry
		if end > int64(len(raw)) || json.Unmarshal(s.Bytes(), &e) != nil {
			if end < int64(len(raw)) {
				return nil, 0, errorf(CodeInternal, "look at the file on the host", "transaction log %s is damaged in the middle", filepath.Base(name))
			}
			break
		}
		entries = append(entries, e)
		good = end
	}
	return entries, good, nil
}

// allTx reads every log of this host, oldest name first.
func (c Config) allTx() ([][]TxEntry, error) {
	names, err := filepath.Glob(c.state(txDir, "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("listing transaction logs: %w", err)
	}
	sort.Strings(names)
	var out [][]TxEntry
	for _, n := range names {
		e, _, err := readTx(n)
		if err != nil {
			return nil, err
		}
		if len(e) > 0 {
			out = append(out, e)
		}
	}
	return out, nil
}

// progress is what a log says about its last replace or put-back.
type progress struct {
	spec    *TxSpec
	tx      string
	back    bool
	reason  string
	ended   bool
	outcome Outcome
	result  *ReplaceResult
	began   time.Time
	turns   int

	intents map[string]int // since the transaction began, by step
	fails   map[string]int // definite refusals since it began or turned
	done    map[string]int
	why     map[string]string // the last refusal, by step
	// startOpen: a start of the successor was sent and nobody knows whether the
	// engine will still do it; a stop that came after it closes that.
	startOpen bool
}

// replay reads the state of the last replace or put-back out of a log; spec is
// nil when there was none.
func replay(entries []TxEntry) progress {
	var p progress
	for _, e := range entries {
		if e.Tx != txReplace && e.Tx != txPutBack {
			continue
		}
		if e.Step == stepBegin && e.Spec != nil {
			open := p.startOpen && p.spec.NextID == e.Spec.NextID
			p = progress{spec: e.Spec, tx: e.Tx, back: e.Spec.Back, reason: e.Text, began: e.At, startOpen: open,
				intents: map[string]int{}, fails: map[string]int{}, done: map[string]int{}, why: map[string]string{}}
			continue
		}
		if p.spec == nil {
			continue
		}
		p.apply(e)
	}
	return p
}

func (p *progress) apply(e TxEntry) {
	switch {
	case e.Step == stepEnd:
		p.ended, p.outcome, p.result = true, e.Outcome, e.Result
	case e.Step == stepTurn:
		p.back, p.reason, p.fails = true, e.Text, map[string]int{}
		p.turns++
	case e.State == TxIntent:
		p.intents[e.Step]++
		if e.Step == stepStartNext {
			p.startOpen = true
		}
	case e.State == TxFailed:
		p.fails[e.Step]++
		p.why[e.Step] = e.Text
		if e.Step == stepStartNext {
			p.startOpen = false
		}
	case e.State == TxDone:
		p.done[e.Step]++
		if e.Step == stepStartNext || e.Step == stepStopNext {
			p.startOpen = false
		}
	}
}

// unsettled says that a transaction has begun and not ended.
func (p progress) unsettled() bool { return p.spec != nil && !p.ended }

// inDoubt says that a transaction has ended and a person must look.
func (p progress) inDoubt() bool { return p.spec != nil && p.ended && p.outcome == InDoubt }

// holds says why the old container must not be started again, "" where it may.
// A log need not say so: the container itself shows it. A put-back has asked.
func (p progress) holds(old seen) string {
	switch {
	case p.tx == txPutBack:
		return ""
	case old.OneShot != "":
		return "it carries " + old.OneShot + ", which would act again"
	}
	return p.spec.Hold
}

// lastStage finds the newest finished stage of a successor in a log.
func lastStage(entries []TxEntry, nextID string) *TxStage {
	for i := len(entries) - 1; i >= 0; i-- {
		if s := entries[i].Stage; s != nil && s.NextID == nextID {
			return s
		}
	}
	return nil
}

// policyOf finds the ordinary policy of a container that was set aside, in any
// log of this host.
func policyOf(logs [][]TxEntry, oldID string) (Policy, bool) {
	for i := len(logs) - 1; i >= 0; i-- {
		for _, e := range logs[i] {
			if e.Spec != nil && e.Spec.OldID == oldID {
				return e.Spec.Policy, true
			}
		}
	}
	return Policy{}, false
}
