package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
)

// followBuffer holds what a node logs between two looks of a reader that drains
// once a block time; a node prints some ten lines a second.
const followBuffer = 4096

// FollowLog streams a container's log from since on, parsed, both outputs. The
// channel is closed when the container, the connection or ctx ends.
func FollowLog(ctx context.Context, conn *fleet.Conn, container string, since time.Time) (<-chan node.LogLine, error) {
	logs, err := conn.Engine().Logs(ctx, container, fleet.LogOptions{Since: since, Follow: true, Timestamps: true})
	if err != nil {
		return nil, err
	}
	out := make(chan node.LogLine, followBuffer)
	go func() {
		defer close(out)
		defer logs.Close()
		for line, err := range logs.All() {
			if err != nil {
				return
			}
			select {
			case out <- node.ParseStreamLine(line.Text, line.Stderr):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// SawLine reports whether a line of the container's log since then satisfies is.
func SawLine(ctx context.Context, conn *fleet.Conn, container string, since time.Time, is func(node.LogLine) bool) (bool, error) {
	logs, err := conn.Engine().Logs(ctx, container, fleet.LogOptions{Since: since, Timestamps: true})
	if err != nil {
		return false, err
	}
	defer logs.Close()
	for {
		line, err := logs.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("reading the log of %s: %w", container, err)
		case is(node.ParseStreamLine(line.Text, line.Stderr)):
			return true, nil
		}
	}
}
