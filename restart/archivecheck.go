package restart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// ArchiveSchema names the document of restart archive-check.
const ArchiveSchema = "qnetops/archive-check/v1"

// The checks of an archive check, in the order in which they are made.
const (
	ArchiveSnapshot   = "snapshot"    // the host offers a snapshot at or below K·90
	ArchiveTransfer   = "transfer"    // and lets it be read
	ArchiveThroughput = "throughput"  // at a rate that was measured
	ArchiveReach      = "reach"       // also from other hosts; asked only where its address can be dialled from there
	ArchiveMacro      = "macroblocks" // macroblocks and proofs from there to K can be had
	ArchiveBodies     = "bodies"      // and the blocks
	ArchiveKeep       = "keep"        // the snapshot will not be pruned before it is needed
)

// snapshotPermits is how many transfers a node serves at a time (facts 3).
const snapshotPermits = 16

// ArchiveHost is a host of the inventory as it is asked.
type ArchiveHost struct {
	ID   string
	Node *node.Client // nil: not reached, Err says why
	Err  error
	// Peer is the API of the designated host's node as this host reaches it over the network; nil: not asked from here.
	Peer *node.Client
}

// ArchiveInput says what is asked of whom.
type ArchiveInput struct {
	Fleet      string
	Designated string
	K          uint64
	Forged     bool // the chain runs on with forged finality, so the snapshots are pruned meanwhile
	Block      time.Duration
	Hosts      []ArchiveHost
	Joiners    int    // nodes that will fetch the state, those of other operators counted
	ReadBytes  int64  // how much of a snapshot is read at most to measure the rate
	Sample     int    // macroblocks, and blocks, asked for beside the first and the last
	Seed       uint64 // of the sample
	Patience   time.Duration
	Now        func() time.Time
}

// ArchiveCheck is what a node that joins would find.
type ArchiveCheck struct {
	Schema    string          `json:"schema"`
	Fleet     string          `json:"fleet"`
	Host      string          `json:"host"`
	NodeID    string          `json:"node_id"` // as the host names itself; empty: unknown
	At        time.Time       `json:"at"`
	K         uint64          `json:"k"`
	MaxHeight uint64          `json:"max_height"` // K·90: a snapshot above it is of no use
	Forged    bool            `json:"forged"`
	OK        bool            `json:"ok"` // all checks pass
	Checks    []observe.Check `json:"checks"`
	// SnapshotHeight is the newest snapshot at or below MaxHeight that the host offers; nil: none, or unknown.
	SnapshotHeight *uint64       `json:"snapshot_height"`
	SnapshotBytes  *uint64       `json:"snapshot_bytes"`
	Chunks         *uint64       `json:"chunks"`
	ReadBytes      uint64        `json:"read_bytes"`       // what the rate was measured on
	Rate           *uint64       `json:"bytes_per_second"` // of one transfer
	Fetch          FetchForecast `json:"fetch"`
	Macroblocks    Sampled       `json:"macroblocks"`
	Bodies         Sampled       `json:"bodies"`
	Prune          PruneForecast `json:"prune"`
	Holders        []Holder      `json:"holders"` // by host id
	// LastHolder is the only host of the inventory that was shown to hold state at or below K. It must not be touched.
	LastHolder *string         `json:"last_holder"`
	StopNow    *string         `json:"stop_now"` // the host to stop at once, before the chain prunes its state
	Archive    *ArchiveFinding `json:"archive"`
	Seed       uint64          `json:"seed"`
	Notes      []string        `json:"notes"`
}

// FetchForecast is how long all joiners need for the snapshot, in seconds. At most Transfers of them are served at a time. Best
// is with each transfer as fast as the one measured, Worst with all of them sharing that rate; nil: size or rate is unknown.
type FetchForecast struct {
	Joiners   int     `json:"joiners"`
	Transfers int     `json:"transfers"`
	Best      *uint64 `json:"best_seconds"`
	Worst     *uint64 `json:"worst_seconds"`
}

// Sampled is a range of indices or heights, both ends included, and those of it that were asked for.
type Sampled struct {
	From  uint64   `json:"from"`
	To    uint64   `json:"to"`
	Asked []uint64 `json:"asked"`
}

// PruneForecast is when the snapshot goes: a node keeps its newest three, one every 3,600 blocks, and the one of height 90 for
// good (facts 3).
type PruneForecast struct {
	Never  bool    `json:"never"` // it is the one of height 90
	At     *uint64 `json:"at_height"`
	Blocks *uint64 `json:"blocks_left"` // of the host's height now; nil: unknown
	// Moving says whether any node of the inventory moved while the check ran; nil: unknown.
	Moving  *bool   `json:"moving"`
	Seconds *uint64 `json:"seconds_left"` // at the normal pace; nil: unknown, or not while the chain stands
}

// Holder is one host's word on what state it holds.
type Holder struct {
	ID     string  `json:"id"`
	Holds  Held    `json:"holds"`
	Height *uint64 `json:"height"` // of its newest snapshot at or below K·90
	Reason string  `json:"reason,omitempty"`
}

// archiveRun is one archive check under way.
type archiveRun struct {
	in   ArchiveInput
	out  *ArchiveCheck
	host ArchiveHost
}

// CheckArchive asks the designated host's node for what a joiner will need, and every host of the inventory for what state it
// holds. It only reads. Refusals and faults of the hosts are in the document; the error is for an input that makes no sense and
// for an ended context.
func CheckArchive(ctx context.Context, in ArchiveInput) (ArchiveCheck, error) {
	if in.K < 2 || in.K > MaxK {
		return ArchiveCheck{}, &KError{in.K}
	}
	at := slices.IndexFunc(in.Hosts, func(h ArchiveHost) bool { return h.ID == in.Designated })
	if at < 0 {
		return ArchiveCheck{}, fmt.Errorf("checking the archive: %q is no host of fleet %s", in.Designated, in.Fleet)
	}
	out := ArchiveCheck{Schema: ArchiveSchema, Fleet: in.Fleet, Host: in.Designated, At: in.Now().UTC().Truncate(time.Second), K: in.K, MaxHeight: node.WindowHead(in.K),
		Forged: in.Forged, Seed: in.Seed, Notes: []string{}, Fetch: FetchForecast{Joiners: in.Joiners, Transfers: snapshotPermits},
		Macroblocks: Sampled{Asked: []uint64{}}, Bodies: Sampled{Asked: []uint64{}}}
	r := &archiveRun{in, &out, in.Hosts[at]}
	before, begun := r.heights(ctx), time.Now()
	r.holders(ctx)
	r.snapshot(ctx)
	r.reach(ctx)
	r.history(ctx)
	r.moving(ctx, before, begun)
	r.keep()
	if err := ctx.Err(); err != nil {
		return out, fmt.Errorf("checking the archive: %w", err)
	}
	out.OK = !slices.ContainsFunc(out.Checks, func(c observe.Check) bool { return c.Verdict != observe.Pass })
	return out, nil
}

// MaxK is the largest macroblock of which the last height fits into a canonical document.
const MaxK = MaxSafe / node.MacroblockBlocks

// KError is a K that cannot be one.
type KError struct{ K uint64 }

func (e *KError) Error() string { return fmt.Sprintf("macroblock %d cannot be a K", e.K) }

// Hint says what a K is.
func (e *KError) Hint() string {
	return "K is the index of a sealed macroblock, from 2 on; qnetops restart propose-k names it"
}

// MaxArchive is the largest document of an archive check that is read, in bytes.
const MaxArchive = 16 << 20

// DecodeArchive reads the document of restart archive-check -o json. The error is *FileFaults.
func DecodeArchive(name string, data []byte) (ArchiveCheck, error) {
	var a ArchiveCheck
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(&a)
	if err == nil && len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		err = errors.New("something follows the document")
	}
	switch {
	case err == nil && a.Schema != ArchiveSchema:
		err = fmt.Errorf("schema is %q, want %q", clipped(a.Schema), ArchiveSchema)
	case err == nil && a.OK != (len(a.Failing()) == 0 && len(a.Checks) > 0):
		err = errors.New("ok does not follow from the checks")
	case err == nil:
		err = fitToPublish(a)
	}
	if err != nil {
		return ArchiveCheck{}, &FileFaults{[]FileFault{{File: name, What: clipped(err.Error())}}, "give what qnetops restart archive-check HOST -o json printed"}
	}
	return a, nil
}

// fitToPublish says whether a document can be part of a record.
func fitToPublish(v any) error {
	form, err := Canonical(v)
	if err == nil && notPlain(form) >= 0 {
		err = errors.New("it holds a control character, or one that hides text or turns it round")
	}
	return err
}

// Failing lists the names of the checks that do not pass, with their verdicts.
func (a ArchiveCheck) Failing() []string {
	var out []string
	for _, c := range a.Checks {
		if c.Verdict != observe.Pass {
			out = append(out, c.Name+" "+string(c.Verdict))
		}
	}
	return out
}

// Serves reports whether the host can be the archive of a restart: everything passes, but that on a chain that runs on with
// forged finality the snapshot is not safe before the host is stopped, which is the next step and no reason to choose another.
func (a ArchiveCheck) Serves() bool {
	return len(a.Checks) > 0 && !slices.ContainsFunc(a.Checks, func(c observe.Check) bool {
		return c.Verdict != observe.Pass && !(a.Forged && c.Name == ArchiveKeep && c.Verdict == observe.Fail && a.StopNow != nil)
	})
}

// Kept says whether a host that was stopped then, because finality is forged and the chain prunes as it runs on, still holds the
// snapshot that this check found on it, and why. The time to pruning is counted from the check at the normal pace of the chain,
// which is the fastest.
func (a ArchiveCheck) Kept(stopped time.Time) (ok bool, why string) {
	until := a.At
	switch {
	case !a.Serves() || !a.Forged:
		return false, "no check shows that it served while the chain ran on"
	case a.Prune.Never:
		return true, "its snapshot is never pruned"
	case a.Prune.Seconds == nil:
		return false, "when its snapshot is pruned is not known"
	default:
		until = until.Add(time.Duration(min(*a.Prune.Seconds, 1<<31)) * time.Second)
	}
	why = "its snapshot was safe until " + until.Format(time.RFC3339)
	return !stopped.After(until), why
}

func (r *archiveRun) add(name string, verdict observe.Verdict, evidence map[string]string, format string, args ...any) {
	r.out.Checks = append(r.out.Checks, observe.Check{Name: name, Verdict: verdict, Reason: fmt.Sprintf(format, args...), Evidence: evidence})
}

func (r *archiveRun) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// keep says when the snapshot will be gone.
func (r *archiveRun) keep() {
	p, s := &r.out.Prune, r.out.SnapshotHeight
	switch {
	case s == nil:
		r.add(ArchiveKeep, observe.Unknown, nil, "no snapshot is known that could be kept")
		return
	case *s == node.MacroblockBlocks:
		p.Never = true
		r.add(ArchiveKeep, observe.Pass, nil, "the snapshot of height %d is never pruned", *s)
		return
	}
	gone := *s + node.SnapshotKeep*node.SnapshotBlocks
	p.At = &gone
	switch {
	case p.Moving == nil:
		r.add(ArchiveKeep, observe.Unknown, nil, "whether the chain moves is not known; the snapshot is pruned when one of height %d is written", gone)
	case !*p.Moving:
		r.add(ArchiveKeep, observe.Pass, nil, "the chain stands, so nothing is pruned; when it moves the snapshot goes at height %d", gone)
	default:
		r.out.StopNow = &r.in.Designated
		left := "at an unknown time"
		if p.Blocks != nil {
			pace := time.Duration(min(*p.Blocks, 1<<31)) * r.in.Block
			seconds := uint64(pace / time.Second)
			p.Seconds = &seconds
			left = fmt.Sprintf("in %d blocks, about %s", *p.Blocks, pace.Round(time.Second))
		}
		r.add(ArchiveKeep, observe.Fail, nil, "the chain moves: the snapshot is pruned at height %d, %s; stop %s now to keep its state", gone, left, r.in.Designated)
	}
}

// wholeSeconds rounds up: a canonical document has whole numbers only.
func wholeSeconds(v float64) uint64 { return uint64(math.Ceil(min(v, MaxSafe))) }

// forecast says how long the joiners will be fetching.
func (r *archiveRun) forecast() {
	f := &r.out.Fetch
	if r.out.SnapshotBytes == nil || r.out.Rate == nil || f.Joiners <= 0 {
		return
	}
	one := float64(*r.out.SnapshotBytes) / float64(*r.out.Rate)
	rounds := (f.Joiners + f.Transfers - 1) / f.Transfers
	best, worst := wholeSeconds(one*float64(rounds)), wholeSeconds(one*float64(f.Joiners))
	f.Best, f.Worst = &best, &worst
}
