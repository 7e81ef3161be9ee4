package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/qnetops/qnetops/lease"
)

// Record is one line of the file that remembers how each run ended. A container engine forgets the exit code of a run with
// the start of the next one; this does not.
type Record struct {
	At         time.Time `json:"at"`
	Run        string    `json:"run"`   // one per run of the supervisor
	Event      string    `json:"event"` // start, exit, reaped
	PID        int       `json:"pid,omitempty"`
	Generation uint64    `json:"generation,omitempty"`
	Code       *int      `json:"code,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Command    string    `json:"command,omitempty"` // its name only: arguments may hold secrets
}

const exitsLimit = 1 << 20 // the file is turned over at this size; one old one is kept

// openExits opens the file for lines of one write each. It is opened before anything can go wrong.
func openExits(path string) (*os.File, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > exitsLimit {
		_ = os.Rename(path, path+".old")
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// writeRecord appends one line with one write: lines of several processes do not mix.
func writeRecord(f *os.File, r Record) {
	r.At = time.Now().UTC()
	line, err := json.Marshal(r)
	if err == nil {
		_, _ = f.Write(append(line, '\n'))
	}
}

// Ended is one run and how it ended.
type Ended struct {
	Run        string     `json:"run"`
	Started    time.Time  `json:"started_at"`
	Ended      *time.Time `json:"ended_at"`
	PID        int        `json:"pid"`
	Generation uint64     `json:"generation"`
	Command    string     `json:"command"`
	Code       *int       `json:"code"` // nil: still running, or killed without a chance to say
	Reason     string     `json:"reason"`
}

// Runs reads the runs of a lease from its folder, oldest first. No file is no runs.
func Runs(dir string, id lease.Identity) ([]Ended, error) {
	path := paths(dir, id).exits
	var out []Ended
	at := map[string]int{}
	for _, p := range []string{path + ".old", path} {
		data, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			var r Record
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue // a line cut short by a crash of the machine
			}
			i, known := at[r.Run]
			if !known {
				i = len(out)
				at[r.Run] = i
				out = append(out, Ended{Run: r.Run, Started: r.At, PID: r.PID})
			}
			out[i].add(r)
		}
	}
	return out, nil
}

func (e *Ended) add(r Record) {
	if r.Generation != 0 {
		e.Generation = r.Generation
	}
	if r.Command != "" {
		e.Command = r.Command
	}
	if r.Event == "start" {
		return
	}
	at := r.At
	e.Ended = &at
	if r.Code != nil {
		e.Code = r.Code
	}
	if e.Reason == "" {
		e.Reason = r.Reason
	}
}
