package rolling

import (
	"context"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
)

// board is what several watchers of one fleet read together: without it each of n
// watchers would ask all n nodes once a block time, and run into the nodes' rate
// limit (300 a minute, facts 1.0). A nil board is a watcher on its own.
type board struct {
	mu      sync.Mutex
	at      time.Time
	heights map[string]uint64

	sealsAt time.Time
	fetched map[string]map[uint64]bool
	seals   []SealSighting
}

// Together lets all nodes that this runner watches at the same time share their
// readings of the rest of the fleet.
func (r *Runner) Together() {
	r.board = &board{heights: map[string]uint64{}, fetched: map[string]map[uint64]bool{}}
}

// height is heightAmong from readings that are at most one round old.
func (b *board) height(ctx context.Context, f *fleet.Fleet, among []string, without string, limit, every time.Duration) *uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) >= every {
		b.heights, b.at = readHeights(ctx, f, among, "", limit), time.Now()
	}
	var heights []uint64
	for id, h := range b.heights {
		if id != without {
			heights = append(heights, h)
		}
	}
	return believed(heights)
}

// since gives the certificates that came to the board after a watcher's last look,
// reading one more of each node at most once a round.
func (b *board) since(cursor int, every time.Duration, read func(map[string]map[uint64]bool) []SealSighting) ([]SealSighting, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.sealsAt) >= every {
		b.seals, b.sealsAt = append(b.seals, read(b.fetched)...), time.Now()
	}
	return b.seals[cursor:], len(b.seals)
}
