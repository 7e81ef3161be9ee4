package cutover

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/rolling"
)

// askLimit bounds one look at one host; what hangs counts as not seen.
const askLimit = 15 * time.Second

// haltTail is how many last lines of an ended run are searched for its stop; a
// handful follow it.
const haltTail = 200

// lookAll looks at every host at once. It only reads.
func lookAll(ctx context.Context, f *fleet.Fleet, ids []string) map[string]sight {
	var mu sync.Mutex
	out := map[string]sight{}
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		s := lookAt(ctx, f, id)
		mu.Lock()
		defer mu.Unlock()
		out[id] = s
	})
	return out
}

func lookAt(ctx context.Context, f *fleet.Fleet, id string) sight {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return sight{Why: err.Error()}
	}
	c, err := conn.Inspect(ctx)
	if err != nil {
		var engine *fleet.EngineError
		return sight{Why: err.Error(), Gone: errors.As(err, &engine) && engine.Fault == fleet.EngineNotFound}
	}
	s := sight{Reached: true, Container: c.ID, State: c.State, ExitCode: c.ExitCode, Restarts: c.RestartCount,
		Policy:  c.RestartPolicy,
		Retries: c.RestartRetries, Armed: c.HaltHeight, OneShot: c.OneShot, Started: c.StartedAt, Since: c.LogSince()}
	if s.runs() {
		bounded, done := context.WithTimeout(ctx, max(f.Inventory().Block, 2*time.Second))
		defer done()
		if z, err := conn.Node().Healthz(bounded); err == nil {
			s.Height = &z.Height
		}
		return s
	}
	lines, err := tailOf(ctx, conn, c.Name, c.LogSince())
	if err != nil {
		return sight{Why: "its log cannot be read: " + err.Error()}
	}
	if s.Stop = stopOf(c.ID, lines); s.Stop != nil {
		s.Stop.Started = c.StartedAt.UTC()
	}
	return s
}

// tailOf reads the end of the log of the run whose lines begin at since.
func tailOf(ctx context.Context, conn *fleet.Conn, container string, since time.Time) ([]node.LogLine, error) {
	logs, err := conn.Engine().Logs(ctx, container, fleet.LogOptions{Since: since, Tail: haltTail, Timestamps: true})
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	var out []node.LogLine
	for {
		line, err := logs.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, node.ParseStreamLine(line.Text, line.Stderr))
	}
}

// highest is the highest height of the sights that is not far above all others.
func highest(sights map[string]sight) *uint64 {
	var top, second *uint64
	for _, s := range sights {
		switch h := s.Height; {
		case h == nil:
		case top == nil || *h > *top:
			top, second = h, top
		case second == nil || *h > *second:
			second = h
		}
	}
	if top != nil && second != nil && *top-*second >= node.BehindBlocks {
		return second
	}
	return top
}
