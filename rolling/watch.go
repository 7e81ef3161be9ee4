package rolling

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// leastPoll keeps a fast lab chain from being polled more often than the
// readings take.
const leastPoll = 100 * time.Millisecond

// proofsAtOnce bounds the certificates fetched per node and round, so that the
// polls stay under half of the node's rate bucket (300 a minute, facts 1.0).
const proofsAtOnce = 1

// watcher gathers sightings of one node and feeds them to its Reentry.
type watcher struct {
	fleet     *fleet.Fleet
	among     []string // hosts of the same chain, this one among them
	id        string
	container string
	want      Expectation
	reentry   *Reentry
	changed   func(Milestone)

	lines    <-chan node.LogLine
	opening  chan (<-chan node.LogLine)
	unfollow context.CancelFunc
	follows  bool
	hurry    chan struct{}
	// offset is the host's clock less this machine's: what the engine dates is
	// compared with what is timed here.
	offset  time.Duration
	fetched map[string]map[uint64]bool
	board   *board // nil: this watcher is alone
	cursor  int    // certificates of the board seen so far
}

// watch waits until the node's milestones are all settled, streaming every
// change. It returns early only when ctx ends.
func watch(ctx context.Context, f *fleet.Fleet, among []string, id, container string, want Expectation, shared *board,
	changed func(Milestone)) ([]Milestone, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watcher{fleet: f, among: among, id: id, container: container, changed: changed, board: shared,
		hurry: make(chan struct{}, 1), fetched: map[string]map[uint64]bool{}}
	w.opening = make(chan (<-chan node.LogLine), 1)
	w.unfollow = func() {}
	if conn, err := reach(ctx, f, id); err == nil {
		bounded, done := context.WithTimeout(ctx, askLimit)
		w.offset, _ = conn.Clock(bounded) // not known: taken as none, which the check clock has made sure of
		done()
	}
	want.StartedAt = want.StartedAt.Add(-w.offset)
	w.want, w.reentry = want, NewReentry(want)
	every := w.every()
	timer := time.NewTimer(0)
	defer timer.Stop()
	reported := map[string]Milestone{}
	for {
		select {
		case <-ctx.Done():
			return w.reentry.Milestones(), ctx.Err()
		case <-timer.C:
		case <-w.hurry:
		}
		w.reentry.Feed(w.sight(ctx))
		for _, m := range w.reentry.Milestones() {
			if reported[m.Name].Verdict != m.Verdict || reported[m.Name].Reason != m.Reason {
				reported[m.Name] = m
				changed(m)
			}
		}
		if ctx.Err() == nil && w.reentry.Done() {
			return w.reentry.Milestones(), nil
		}
		timer.Reset(every)
	}
}

// sight takes one round of readings; what cannot be read stays nil.
func (w *watcher) sight(ctx context.Context) Sighting {
	s := Sighting{}
	run := ctx
	// Whatever hangs, the deadlines must be looked at.
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := reach(ctx, w.fleet, w.id)
	var wg sync.WaitGroup
	if err == nil {
		w.stream(run, conn)
		wg.Add(2)
		go func() { defer wg.Done(); w.sightContainer(ctx, conn, &s) }()
		go func() { defer wg.Done(); w.sightNode(ctx, conn, &s) }()
	}
	heights := w.others(ctx)
	wg.Wait()
	s.FleetHeight = heights
	s.Lines = w.drain()
	if w.reentry.want.NodeID == "" && conn != nil {
		w.reentry.want.NodeID = nodeID(ctx, conn.Node())
	}
	s.Seals = w.seals(ctx, s)
	s.At = time.Now()
	return s
}

// stream follows the log of the successor and the engine's events once per
// connection; a die or start event brings the next look forward.
func (w *watcher) stream(ctx context.Context, conn *fleet.Conn) {
	select {
	case w.lines = <-w.opening:
	default:
	}
	if w.lines != nil || w.follows {
		return
	}
	w.follows = true
	w.unfollow()
	ctx, w.unfollow = context.WithCancel(ctx)
	go func() {
		lines, err := observe.FollowLog(ctx, conn, w.container, w.want.StartedAt.Add(w.offset-time.Second))
		if err != nil {
			ended := make(chan node.LogLine)
			close(ended)
			lines = ended // the next look tries again
		}
		w.opening <- lines
	}()
	events, _ := conn.Engine().Events(ctx, time.Now(), w.container)
	go func() {
		for range events {
			select {
			case w.hurry <- struct{}{}:
			default:
			}
		}
	}()
}

// drain takes the log lines that have come since the last look. A stream that
// ended is opened again on the next look; lines seen twice do no harm, because
// every rule on them is a set of windows.
func (w *watcher) drain() []node.LogLine {
	var out []node.LogLine
	for {
		select {
		case line, open := <-w.lines:
			if !open {
				w.lines, w.follows = nil, false
				return out
			}
			if !line.Time.IsZero() {
				line.Time = line.Time.Add(-w.offset)
			}
			out = append(out, line)
		default:
			return out
		}
	}
}

func (w *watcher) sightContainer(ctx context.Context, conn *fleet.Conn, s *Sighting) {
	c, err := conn.Inspect(ctx)
	if err != nil {
		return
	}
	running := c.Running()
	s.Running, s.ContainerID, s.State, s.ExitCode = &running, c.ID, c.State, c.ExitCode
	s.RestartCount, s.StartedAt = &c.RestartCount, c.StartedAt.Add(-w.offset)
}

func (w *watcher) sightNode(ctx context.Context, conn *fleet.Conn, s *Sighting) {
	ctx, cancel := context.WithTimeout(ctx, max(w.want.Block, 2*time.Second))
	defer cancel()
	client := conn.Node()
	if w.reentry.reached(w.reentry.m1) {
		if status, err := client.NodeHealth(ctx); err == nil {
			s.Status = &status
		}
		if position, err := client.Position(ctx); err == nil {
			s.Position = &position
		}
		return
	}
	if health, err := client.Healthz(ctx); err == nil {
		s.Health = &health
	}
}

// others returns the highest height any other reachable node shows.
func (w *watcher) others(ctx context.Context) *uint64 {
	limit := max(w.want.Block, 2*time.Second)
	if w.board != nil {
		return w.board.height(ctx, w.fleet, w.among, w.id, limit, w.every())
	}
	return heightAmong(ctx, w.fleet, w.among, w.id, limit)
}

// every is how often a watcher looks.
func (w *watcher) every() time.Duration { return max(w.want.Block, leastPoll) }

// FleetHeight asks every reachable host but one for its height and returns the
// highest that can be believed, or nil when none answers.
func FleetHeight(ctx context.Context, f *fleet.Fleet, without string, limit time.Duration) *uint64 {
	return heightAmong(ctx, f, f.Inventory().IDs(), without, limit)
}

// heightAmong is FleetHeight of some hosts.
func heightAmong(ctx context.Context, f *fleet.Fleet, among []string, without string, limit time.Duration) *uint64 {
	var heights []uint64
	for _, h := range readHeights(ctx, f, among, without, limit) {
		heights = append(heights, h)
	}
	return believed(heights)
}

// readHeights asks every reachable one of some hosts but one for its height, by host id.
func readHeights(ctx context.Context, f *fleet.Fleet, among []string, without string, limit time.Duration) map[string]uint64 {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var (
		mu      sync.Mutex
		heights = map[string]uint64{}
	)
	eachOf(ctx, among, func(ctx context.Context, id string) {
		if id == without {
			return
		}
		conn, err := connOf(ctx, f, id)
		if err != nil {
			return
		}
		health, err := conn.Node().Healthz(ctx)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		heights[id] = health.Height
	})
	return heights
}

// believed is the highest height unless it is far above what every other node
// shows: one node's word must neither fail nor pass a milestone.
func believed(heights []uint64) *uint64 {
	slices.Sort(heights)
	n := len(heights)
	switch {
	case n == 0:
		return nil
	case n > 1 && heights[n-1]-heights[n-2] >= observe.BehindBlocks:
		return &heights[n-2]
	}
	return &heights[n-1]
}

// seals reads the certificates of windows above the restart from every node:
// each node assembles its own from the votes it collected, so the union over
// nodes says more about who voted than any one list (facts 2.6).
func (w *watcher) seals(ctx context.Context, s Sighting) []SealSighting {
	if s.Position == nil || !w.reentry.reached(w.reentry.m2) || w.reentry.reached(w.reentry.m3) {
		return nil
	}
	if w.board == nil {
		return w.readSeals(ctx, s.Position.LastSealed, w.fetched)
	}
	seals, cursor := w.board.since(w.cursor, w.every(), func(fetched map[string]map[uint64]bool) []SealSighting {
		return w.readSeals(ctx, s.Position.LastSealed, fetched)
	})
	w.cursor = cursor
	return seals
}

// readSeals reads one more certificate of each node, up to the newest seal, and
// notes in fetched which.
func (w *watcher) readSeals(ctx context.Context, newest uint64, fetched map[string]map[uint64]bool) []SealSighting {
	from := node.WindowOf(w.want.StartHeight) + 1
	var (
		mu  sync.Mutex
		out []SealSighting
	)
	ctx, cancel := context.WithTimeout(ctx, max(w.want.Block, 2*time.Second))
	defer cancel()
	for _, id := range w.among {
		if fetched[id] == nil {
			fetched[id] = map[uint64]bool{}
		}
	}
	eachOf(ctx, w.among, func(ctx context.Context, id string) {
		conn, err := connOf(ctx, w.fleet, id)
		if err != nil {
			return
		}
		for _, index := range due(fetched[id], from, newest) {
			proof, err := conn.Node().Proof(ctx, index)
			if err != nil {
				return
			}
			mu.Lock()
			fetched[id][index] = true
			out = append(out, SealSighting{Index: index, Committee: proof.Committee, Signers: proof.Signers})
			mu.Unlock()
		}
	})
	return out
}

// due lists the windows whose certificate a node has not been asked for, the newest
// first: whoever resumes hours after the start need not read through all of them to
// come to one that proves a vote.
func due(fetched map[uint64]bool, from, to uint64) []uint64 {
	var out []uint64
	for index := to; index >= from && index > 0 && len(out) < proofsAtOnce; index-- {
		if !fetched[index] {
			out = append(out, index)
		}
	}
	return out
}

// nodeID reads the node's own name; "" where it cannot be read.
func nodeID(ctx context.Context, c *node.Client) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	info, err := c.NodeInfo(ctx)
	if err != nil {
		return ""
	}
	return info.NodeID
}

// expectation is what the container that runs after a transaction is measured
// by: the successor, or the old one where it was put back.
func expectation(f *fleet.Fleet, result host.ReplaceResult, tip uint64) Expectation {
	id := result.NewID
	if result.Outcome == host.PutBack {
		id = result.OldID
	}
	return Expectation{Block: f.Inventory().Block, ContainerID: id, StartedAt: result.StartedAt, StartHeight: tip}
}
