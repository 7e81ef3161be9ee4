package cutover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// Bounds of what is read of one run's log. A node says within its first lines what
// it makes of its manifest and its data; a node that refuses writes it last. The
// log between may hold many gigabytes.
const (
	headLines = 4_000
	tailLines = 4_000
)

// RestartLines is what the log of the present run says of the release.
type RestartLines struct {
	Read bool `json:"read"` // its beginning and its end were read
	// Cut says that there are more lines between the two, which were not read.
	Cut bool `json:"cut"`
	// Malformed is the code with which the node refuses the manifest; "" where none.
	Malformed string `json:"malformed"`
	// Active, Resume and Excluded are of the line manifest_active.
	Active   bool   `json:"active"`
	Resume   uint64 `json:"resume_from_mb"`
	Excluded uint64 `json:"excluded"`
	// Mismatch are the tags of a node that failed closed on the pin, and Fatal what
	// else it refused to start for.
	Mismatch []string `json:"mismatch"`
	Fatal    string   `json:"fatal,omitempty"`
}

// pinTags are the refusals of the sync path under a pin (facts 4.7).
func pinTags() []string { return []string{"v2_ws_pin_mismatch", "v2_below_ws", "v2_qc_defer_anchor"} }

// add takes one line of the log in. A node writes a tag of the last kind while it
// catches up, too, so it is no mismatch by itself.
func (l *RestartLines) add(line node.LogLine) {
	if code, ok := node.MalformedManifest(line); ok {
		l.Malformed = code
	}
	if k, n, ok := node.ManifestActive(line); ok {
		l.Active, l.Resume, l.Excluded = true, k, n
	}
	if node.Fatal(line) && line.Module != "RESTART" {
		l.Fatal = line.Text
	}
	for _, tag := range pinTags() {
		if strings.Contains(line.Text, tag) && !slices.Contains(l.Mismatch, tag) && tag != "v2_qc_defer_anchor" {
			l.Mismatch = append(l.Mismatch, tag)
		}
	}
}

// logSource opens the log of a container, as an engine does.
type logSource func(ctx context.Context, container string, o fleet.LogOptions) (*fleet.Logs, error)

// read takes in the log of the run that began at started: all of it where it is
// short, else its first and its last lines. What was read before a failure counts.
func (l *RestartLines) read(ctx context.Context, open logSource, container string, started time.Time) error {
	opts := fleet.LogOptions{Since: started, Timestamps: true}
	whole, err := l.upTo(ctx, open, container, opts, headLines)
	if err == nil && !whole {
		opts.Tail = tailLines
		_, err = l.upTo(ctx, open, container, opts, tailLines)
	}
	l.Read, l.Cut = err == nil, !whole
	if err != nil {
		return fmt.Errorf("reading the log of %s: %w", container, err)
	}
	return nil
}

// upTo takes in at most so many lines, and says whether there were no more.
func (l *RestartLines) upTo(ctx context.Context, open logSource, container string, opts fleet.LogOptions,
	lines int) (all bool, err error) {
	logs, err := open(ctx, container, opts)
	if err != nil {
		return false, err
	}
	defer logs.Close()
	for range lines {
		line, err := logs.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		l.add(node.ParseStreamLine(line.Text, line.Stderr))
	}
	return false, nil
}
