package simnode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Kind of a fault that can be set on a running node.
type Kind string

// The faults of a node. Those with an argument say what it means; without one
// the default in brackets counts.
const (
	FaultMute          Kind = "mute"           // never votes, no participation line
	FaultAbstain       Kind = "abstain"        // participates by log, then abstains
	FaultIsolate       Kind = "isolate"        // no message in or out
	FaultLag           Kind = "lag"            // =BLOCKS [20] behind the network, does not produce
	FaultSlow          Kind = "slow"           // catches up slowly
	FaultSkew          Kind = "skew"           // =SECONDS [5] of clock drift
	FaultHangHealth    Kind = "hang-health"    // /api/v1/node/health hangs; =all: /healthz too
	FaultLieHeight     Kind = "lie-height"     // =BLOCKS [1000] added to every reported height
	FaultLieBuild      Kind = "lie-build"      // =BUILD [0000000] reported by /healthz
	FaultRateLimit     Kind = "ratelimit"      // every API request is refused by the rate limit
	FaultFailover      Kind = "failover"       // skips its own turns
	FaultFork          Kind = "fork"           // reports another tip hash
	FaultStopProducing Kind = "stop-producing" // never produces, not even for others
	FaultStorageError  Kind = "storage-error"  // macroblock reads fail
	FaultLogLevel      Kind = "log-level"      // =0..5 [2] instead of QNET_LOG_LEVEL
	FaultSnapshotBusy  Kind = "snapshot-busy"  // all permits for snapshots are taken
	FaultNoSnapshot    Kind = "no-snapshot"    // holds no snapshot
	FaultPruned        Kind = "pruned"         // =HEIGHT [of the last seal] has no block bodies up to there but those its newest snapshot below stands for
	FaultKeepMark      Kind = "keep-mark"      // a rollback leaves the signing mark: the node produces nothing after it
	FaultKeepVotes     Kind = "keep-votes"     // a rollback leaves the vote commitments: nothing is sealed after it
)

// Kinds lists the faults a node knows.
func Kinds() []Kind {
	return []Kind{FaultMute, FaultAbstain, FaultIsolate, FaultLag, FaultSlow, FaultSkew, FaultHangHealth, FaultLieHeight,
		FaultLieBuild, FaultRateLimit, FaultFailover, FaultFork, FaultStopProducing, FaultStorageError, FaultLogLevel,
		FaultSnapshotBusy, FaultNoSnapshot, FaultPruned, FaultKeepMark, FaultKeepVotes}
}

// Faults are the faults set on one node. The zero value has none; all methods
// may be called from any goroutine.
type Faults struct {
	mu  sync.Mutex
	set map[Kind]string
}

// Set turns a fault on. An unknown kind or an unusable argument is an error
// that lists what is known.
func (f *Faults) Set(kind Kind, arg string) error {
	if !slices.Contains(Kinds(), kind) {
		return fmt.Errorf("unknown node fault %q: known are %s", kind, joinKinds())
	}
	switch kind {
	case FaultLag, FaultLieHeight, FaultSkew, FaultLogLevel, FaultPruned:
		if _, err := strconv.ParseInt(arg, 10, 32); arg != "" && err != nil {
			return fmt.Errorf("fault %s: argument %q is not a number", kind, arg)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(f.set)
	if next == nil {
		next = map[Kind]string{}
	}
	next[kind] = arg
	f.set = next
	return nil
}

// Clear turns the named faults off, or all of them when none is named.
func (f *Faults) Clear(kinds ...Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(kinds) == 0 {
		f.set = nil
		return
	}
	next := maps.Clone(f.set)
	for _, k := range kinds {
		delete(next, k)
	}
	f.set = next
}

// All returns the faults that are on with their arguments.
func (f *Faults) All() map[Kind]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.set)
}

// On says whether a fault is on.
func (f *Faults) On(kind Kind) bool { _, ok := f.get(kind); return ok }

func (f *Faults) get(kind Kind) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	arg, ok := f.set[kind]
	return arg, ok
}

// num is a fault's number: 0 when it is off, def when it has no argument.
func (f *Faults) num(kind Kind, def int64) int64 {
	arg, ok := f.get(kind)
	if !ok {
		return 0
	}
	if n, err := strconv.ParseInt(arg, 10, 64); err == nil {
		return n
	}
	return def
}

// parse replaces all faults by the lines of a fault file; lines it cannot use
// are ignored.
func (f *Faults) parse(text string) {
	f.Clear()
	for line := range strings.Lines(text) {
		kind, arg, _ := strings.Cut(strings.TrimSpace(line), "=")
		if kind != "" {
			_ = f.Set(Kind(kind), arg)
		}
	}
}

func joinKinds() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
