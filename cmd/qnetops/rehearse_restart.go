package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/sshkey"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// restart is a chain that stalls for good and is restarted from a macroblock, by
// two operators of one fleet.
func (r *rehearsal) restart(ctx context.Context) {
	x := &restartRehearsal{rehearsal: r}
	r.healthy(ctx)
	x.stall(ctx)
	decided := time.Now()
	x.choose(ctx)
	x.publish(ctx)
	x.execute(ctx)
	if !r.failed() {
		r.restored = time.Since(decided)
	}
	x.afterwards(ctx)
}

// restartRehearsal is what its acts know of each other.
type restartRehearsal struct {
	*rehearsal
	gone, left []string // hosts whose node is gone, and the others
	k          uint64
	release    manifest.Manifest
	image      string
	hosts      map[string][]string  // of each operator, of those that are left
	files      map[string]inventory // of the data directories, before anything was done
}

// The operators of the rehearsal.
const (
	ann = "ann"
	bob = "bob"
)

// stall takes nodes away until nothing is sealed any more: the last one long before
// the others, so that the certificates show it silent. It waits until the trigger of
// a restart holds, and sees production stop at the horizon on the way.
func (x *restartRehearsal) stall(ctx context.Context) {
	x.gone = x.tooMany()
	for _, h := range x.lab.Hosts()[:x.nodes-len(x.gone)] {
		x.left = append(x.left, h.ID())
	}
	const silent = (restart.MinSilentWindows + 2) * node.MacroblockBlocks
	last := x.gone[len(x.gone)-1:]
	x.do(ctx, fmt.Sprintf("the node of host %s is gone: %d blocks, sealed by the others", last[0], silent), "seals go on", func() string {
		if err := x.inject(last, lab.FaultStop, ""); err != nil {
			return err.Error()
		}
		from := topOf(x.lab.Status(ctx))
		return errorText(x.until(ctx, func() bool { return topOf(x.lab.Status(ctx)) >= from+silent }))
	})
	more := x.gone[:len(x.gone)-1]
	x.do(ctx, fmt.Sprintf("so are those of hosts %s: nothing is sealed any more", strings.Join(more, ", ")),
		fmt.Sprintf("production parks %d blocks past the seal base", node.HorizonBlocks), func() string {
			if err := x.inject(more, lab.FaultStop, ""); err != nil {
				return err.Error()
			}
			return x.parked(ctx)
		})
	x.command(ctx, want{exit: exitRefused, says: []string{"stalled"}}, "status", "--check")
	x.command(ctx, want{exit: exitRefused, says: []string{"members"}}, "rollback", "--to-last-sealed", "--dry-run")
	flat := restart.FlatBlocks * x.block
	x.do(ctx, fmt.Sprintf("finality is flat for %s, which is %d block times", flat, restart.FlatBlocks), "the trigger of a restart", func() string { return x.waitFlat(ctx, flat) })
	x.files = x.inventories()
}

// parked waits until the nodes that are left have stopped producing by themselves,
// and says where they did not stop at the horizon.
func (x *restartRehearsal) parked(ctx context.Context) string {
	var height, base uint64
	var wrong []string
	err := x.until(ctx, func() bool {
		wrong = wrong[:0]
		for _, id := range x.left {
			pos, err := x.position(ctx, id)
			if height, base = x.lastParked(id); err != nil || height == 0 || pos.Height != height || height != base+node.HorizonBlocks {
				wrong = append(wrong, fmt.Sprintf("host %s is at %d, it says parked at %d with seal base %d", id, pos.Height, height, base))
			}
			x.k = max(x.k, pos.LastSealed)
		}
		return len(wrong) == 0
	})
	if err != nil {
		return strings.Join(append(wrong, err.Error()), "; ")
	}
	fmt.Fprintf(x.s.err, "all %d nodes park at %d, %d blocks past the seal base %d; last sealed macroblock %d\n", len(x.left), height, height-base, base, x.k)
	return ""
}

// lastParked is the newest line of a node's log that says that it has parked.
func (x *restartRehearsal) lastParked(id string) (height, base uint64) {
	h, err := x.lab.Host(id)
	if err != nil {
		return 0, 0
	}
	for _, line := range h.Engine().LastLines(h.Spec().Container, 200) {
		if at, from, ok := node.Parked(node.ParseLine(line)); ok {
			height, base = at, from
		}
	}
	return height, base
}

// waitFlat waits until the newest seal is older than the trigger wants.
func (x *restartRehearsal) waitFlat(ctx context.Context, flat time.Duration) string {
	h, err := x.lab.Host(x.left[0])
	if err != nil {
		return err.Error()
	}
	client := node.Client{Base: h.APIBase(), HTTP: h.HTTP()}
	mb, err := client.Macroblock(ctx, x.k)
	if err != nil {
		return err.Error()
	}
	sealed := time.Unix(int64(mb.Timestamp), 0)
	return errorText(x.until(ctx, func() bool { return time.Since(sealed) > flat+time.Second }))
}

// until looks again every 200 ms.
func (r *rehearsal) until(ctx context.Context, ok func() bool) error {
	const patience = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not so within %s: %w", patience, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// choose gathers what the hosts of both operators hold and takes K and the list of
// the barred from it.
func (x *restartRehearsal) choose(ctx context.Context) {
	x.do(ctx, "both operators make a key", "an allowed-signers file", func() string { return errorText(x.keys()) })
	half := len(x.left)/2 + 1
	x.hosts = map[string][]string{ann: x.left[:half], bob: x.left[half:]}
	for _, who := range []string{ann, bob} {
		hosts := x.hosts[who]
		if who == bob {
			hosts = slices.Concat(hosts, x.gone)
		}
		x.command(ctx, want{exit: exitDone, label: "restart gather, by " + who}, "restart", "gather", "--only", strings.Join(hosts, ","), "--operator", who,
			"--sign-key", x.path("key-"+who), "--out", x.path("evidence/"+who+".json"))
	}
	x.supplements(ctx)
	x.command(ctx, want{exit: exitDone, label: "restart propose-k", judge: x.isK}, x.choice("propose-k", "-o", "json")...)
	x.command(ctx, want{exit: exitDone, label: "restart exclude", says: append(x.barred(), fmt.Sprintf("bar %d of %d", len(x.gone), x.nodes))}, x.exclusion("exclude")...)
	x.archiveChecked(ctx)
	x.command(ctx, want{exit: exitDone, label: "restart record --manifest restart.json"}, x.exclusion("record", "--manifest", x.path("restart.json"), "--operator", ann)...)
	x.command(ctx, want{exit: exitDone}, "manifest", "validate", x.path("restart.json"))
}

// choice is a command line on all evidence.
func (x *restartRehearsal) choice(step string, more ...string) []string {
	return append([]string{"restart", step, "--allowed-signers", x.path("signers"), x.path("evidence")}, more...)
}

// exclusion bars those who were silent, and by hand those who signed until the stall.
func (x *restartRehearsal) exclusion(step string, more ...string) []string {
	ids := x.barred()
	for _, id := range ids[:len(ids)-1] {
		more = append(more, "--add", id+"=its host is gone, said its operator")
	}
	return x.choice(step, more...)
}

// barred are the identities of the nodes that are gone, the first to go last.
func (x *restartRehearsal) barred() (ids []string) {
	for _, id := range x.gone {
		if h, err := x.lab.Host(id); err == nil {
			ids = append(ids, h.NodeID())
		}
	}
	return ids
}

// supplements does what an undecided choice asks each operator for, as long as it
// asks: on a busy machine not every reading succeeds at once.
func (x *restartRehearsal) supplements(ctx context.Context) {
	const rounds = 3
	asked := regexp.MustCompile(`(?m)(\w+) adds: qnetops restart gather --supplement (\S+) (--from \d+ --to \d+)$`)
	for round := 1; round <= rounds && !x.failed(); round++ {
		_, said, code := x.shell(ctx, x.choice("propose-k"))
		if code == exitDone {
			return
		}
		for _, m := range asked.FindAllStringSubmatch(said, -1) {
			args := []string{"restart", "gather", "--supplement", x.path("evidence/" + m[2]), "--sign-key", x.path("key-" + m[1]), "--out", x.path(fmt.Sprintf("evidence/%s-%d.json", m[1], round))}
			x.command(ctx, want{exit: exitDone, label: "restart gather --supplement, by " + m[1]}, append(args, strings.Fields(m[3])...)...)
		}
	}
}

// isK holds the choice to the last sealed macroblock, or to an older one where the
// answer says what is amiss above it, which is K from here on.
func (x *restartRehearsal) isK(out string) string {
	var doc struct {
		K       *uint64 `json:"k"`
		Refused []struct {
			Index uint64 `json:"index"`
		} `json:"refused"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.K == nil || *doc.K > x.k {
		return fmt.Sprintf("no K at or below the last sealed macroblock %d: %.300s", x.k, out)
	}
	for above := *doc.K + 1; above <= x.k; above++ {
		if !slices.ContainsFunc(doc.Refused, func(r struct {
			Index uint64 `json:"index"`
		}) bool {
			return r.Index == above
		}) {
			return fmt.Sprintf("K is %d, and nothing says what is amiss with macroblock %d", *doc.K, above)
		}
	}
	x.k = *doc.K
	return ""
}

func (x *restartRehearsal) archiveChecked(ctx context.Context) {
	out := x.command(ctx, want{exit: exitDone, label: "restart archive-check " + x.left[1]}, "restart", "archive-check", x.left[1], "--k", fmt.Sprint(x.k),
		"--joiners", fmt.Sprint(len(x.left)-1), "-o", "json")
	x.keep(ctx, "archive-check.json", out)
}

// keep writes an answer to a file of the operator, as a shell does with ">".
func (r *rehearsal) keep(ctx context.Context, name, text string) {
	if err := os.WriteFile(r.path(name), []byte(text), 0o600); err != nil {
		r.do(ctx, name+" is written", "a file", err.Error)
	}
}

// keys makes an SSH key for each operator on the spot.
func (x *restartRehearsal) keys() error {
	var signers strings.Builder
	for _, who := range []string{ann, bob} {
		if _, err := sshkey.Write(x.path("key-"+who), who); err != nil {
			return err
		}
		public, err := os.ReadFile(x.path("key-" + who + ".pub"))
		if err != nil {
			return err
		}
		fmt.Fprintf(&signers, "%s namespaces=%q %s", who, restart.Namespace, public)
	}
	if err := os.Mkdir(x.path("evidence"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(x.path("signers"), []byte(signers.String()), 0o600)
}

// publish cuts the release, makes the record and has the other operator verify it.
func (x *restartRehearsal) publish(ctx context.Context) {
	x.do(ctx, "the release is cut with that manifest", "an image with a digest", func() string { return errorText(x.cut()) })
	// Nobody starts before this time; what lies between took so long a moment ago.
	start := time.Now().Add(max(9*time.Second, 8*x.tookLately(8))).UTC().Truncate(time.Second)
	x.command(ctx, want{exit: exitDone, label: "restart record --out restart-record"}, x.exclusion("record", "--operator", ann, "--sign-key", x.path("key-"+ann),
		"--archive-check", x.path("archive-check.json"), "--rollback-useless", "the nodes that are missing are gone", "--commit", "0123456789abcdef", "--image", x.image,
		"--build", x.path("build.txt"), "--start-at", start.Format(time.RFC3339), "--out", x.path("restart-record"))...)
	x.command(ctx, want{exit: exitDone, label: "restart verify-record restart-record, by " + bob}, x.onRecord("verify-record")...)
}

// tookLately is what the last n acts took together.
func (r *rehearsal) tookLately(n int) time.Duration {
	var sum float64
	for _, a := range r.acts[max(0, len(r.acts)-n):] {
		sum += a.Seconds
	}
	return time.Duration(sum * float64(time.Second))
}

// onRecord is a command line on the published record.
func (x *restartRehearsal) onRecord(step string, more ...string) []string {
	return append([]string{"restart", step, "--allowed-signers", x.path("signers"), x.path("restart-record")}, more...)
}

// cut builds the release: an image with the manifest of the record.
func (x *restartRehearsal) cut() error {
	loaded, err := manifest.Load(x.path("restart.json"))
	if err != nil {
		return err
	}
	x.release = loaded.Manifest
	added, err := addLabImage(x.lab.AddImage, "restart", x.release)
	if err != nil {
		return err
	}
	x.image = byDigest(added)
	return os.WriteFile(x.path("build.txt"), []byte("make image\n"), 0o600)
}

// execute carries the record out and looks whether the chain is the one of the record.
func (x *restartRehearsal) execute(ctx context.Context) {
	gone := strings.Join(x.gone, ",")
	x.command(ctx, want{exit: exitDone, label: "restart execute restart-record --skip " + gone + " --yes"}, x.onRecord("execute", "--skip", gone, "--yes")...)
	x.verified(ctx)
	x.do(ctx, "nothing of a data directory was deleted", "every file from before, in what was set aside or where it was", func() string { return x.lost(x.files) })
}

// afterwards is what must not work: to retire the manifest at once, to come back on
// stale data, to start on a malformed manifest.
func (x *restartRehearsal) afterwards(ctx context.Context) {
	gone := strings.Join(x.gone, ",")
	x.command(ctx, want{exit: exitRefused, says: []string{"14400 are needed"}, label: "restart retire restart-record"}, x.onRecord("retire", "--skip", gone)...)
	stale, broken := x.gone[0], x.gone[len(x.gone)-1]
	x.do(ctx, "host "+stale+" starts the release by hand on the data it had", "the node fails closed", func() string {
		return errorText(x.startsAndSays(ctx, stale, "restart", "v2_below_ws"))
	})
	x.command(ctx, want{exit: exitRefused, says: []string{"v2_below_ws"}, label: "restart verify restart-record, with that host"}, x.onRecord("verify", "--skip", strings.Join(x.gone[1:], ","))...)
	const code = "restart_zero_hash"
	x.do(ctx, "a release is cut with a malformed manifest", "an image", func() string { return errorText(x.cutBroken()) })
	x.command(ctx, want{exit: exitRefused, says: []string{code}}, "manifest", "validate", x.path("broken.json"))
	x.do(ctx, "host "+broken+" starts it", "the node refuses to start", func() string { return errorText(x.startsAndSays(ctx, broken, "broken", "malformed_manifest")) })
	x.command(ctx, want{exit: exitRefused, says: []string{code}, label: "restart verify restart-record, with that host"}, x.onRecord("verify", "--skip", strings.Join(x.gone[:len(x.gone)-1], ","))...)
	x.verified(ctx)
}

// verified has both operators look; the second has the word of the first.
func (x *restartRehearsal) verified(ctx context.Context) {
	word := x.command(ctx, want{exit: exitRefused, says: []string{"1 of 2 operators"}, label: "restart verify restart-record, by " + bob},
		x.onRecord("verify", "--only", strings.Join(x.hosts[bob], ","), "--operator", bob, "-o", "json")...)
	x.keep(ctx, "verify-bob.json", word)
	gone := strings.Join(x.gone, ",")
	x.command(ctx, want{exit: exitDone, label: "restart verify restart-record verify-bob.json --skip " + gone}, x.onRecord("verify", x.path("verify-bob.json"), "--operator", ann, "--skip", gone)...)
}

func (x *restartRehearsal) cutBroken() error {
	bad := x.release
	bad.Restart.ResumeMBHash = node.Hash{}
	raw, err := bad.JSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(x.path("broken.json"), raw, 0o600); err != nil {
		return err
	}
	_, err = addLabImage(x.lab.AddImage, "broken", bad)
	return err
}

// startsAndSays starts an image on a host as by hand and waits for a line of its node.
func (x *restartRehearsal) startsAndSays(ctx context.Context, id, tag, word string) error {
	if err := x.lab.Inject(id, lab.FaultImage, tag); err != nil {
		return err
	}
	h, err := x.lab.Host(id)
	if err != nil {
		return err
	}
	return x.until(ctx, func() bool {
		return strings.Contains(strings.Join(h.Engine().LastLines(h.Spec().Container, 200), "\n"), word)
	})
}
