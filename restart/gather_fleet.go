package restart

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"

	"github.com/qnetops/qnetops/fleet"
)

// NewID draws the id of an operator's evidence.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// FleetHosts are hosts of an open fleet as Gather needs them, those that were not reached among them.
func FleetHosts(ctx context.Context, f *fleet.Fleet, ids []string) []Host {
	var out []Host
	for _, id := range ids {
		conn, err := f.Conn(ctx, id)
		if err != nil {
			out = append(out, Host{ID: id, Err: err})
			continue
		}
		out = append(out, Host{ID: id, Node: conn.Node(), Log: fleetLog{conn}})
	}
	return out
}

// fleetLog reads the log of the node's container.
type fleetLog struct{ conn *fleet.Conn }

func (l fleetLog) Tail(ctx context.Context, lines int, each func(string)) error {
	logs, err := l.conn.Engine().Logs(ctx, l.conn.Host().Container, fleet.LogOptions{Tail: lines, Timestamps: true})
	if err != nil {
		return err
	}
	defer logs.Close()
	for {
		line, err := logs.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		each(line.Text)
	}
}
