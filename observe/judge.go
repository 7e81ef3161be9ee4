package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/node"
)

// Judge gives every node and the fleet a verdict with reasons, and fills Behind
// and Checks. It is pure: it looks at the readings in the view and nothing else,
// so the same readings give the same words.
func Judge(v View) View {
	v.Nodes = slices.Clone(v.Nodes)
	j := judgement{view: &v, cmp: compare(v.Nodes), why: make([]string, len(v.Nodes))}
	for i := range v.Nodes {
		j.why[i] = v.Nodes[i].distrust()
	}
	j.overclaims()
	j.measure()
	for i := range v.Nodes {
		n := &v.Nodes[i]
		n.Verdict, n.Reasons = j.node(i)
	}
	v.Verdict, v.Reasons = j.fleet()
	v.Checks = Checks(v)
	return v
}

type judgement struct {
	view *View
	cmp  comparison
	why  []string // why node i's readings are not trusted, "" when they are
	best *Sample  // the highest believed reading
}

// distrust says why a node's numbers cannot be used: refused by the rate limit,
// of another shape, or contradicting each other.
func (n NodeView) distrust() string {
	for _, f := range n.Faults {
		switch f.What {
		case askPosition, askHealthz, askHealth, askSeal:
		default:
			continue
		}
		if isErr[*node.RateLimitedError](f.Err) || isErr[*node.AnswerError](f.Err) {
			return f.Err.Error()
		}
	}
	for i := 1; i < len(n.Samples); i++ {
		if a, b := n.Samples[i-1].Height, n.Samples[i].Height; b < a {
			return fmt.Sprintf("its height went back from %d to %d", a, b)
		}
	}
	if n.HealthzHeight != nil && len(n.Samples) > 0 {
		if a, b := *n.HealthzHeight, n.Samples[0].Height; max(a, b)-min(a, b) >= BehindBlocks {
			return fmt.Sprintf("/healthz says height %d, consensus-position %d", a, b)
		}
	}
	return ""
}

func isErr[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

func (n NodeView) last() *Sample {
	if len(n.Samples) == 0 {
		return nil
	}
	return &n.Samples[len(n.Samples)-1]
}

// overclaims takes the word away from a node that stands far above a majority
// that stands together: a height nobody confirms would make everybody else behind.
func (j *judgement) overclaims() {
	var heights []uint64
	for i, n := range j.view.Nodes {
		if s := n.last(); s != nil && j.why[i] == "" {
			heights = append(heights, s.Height)
		}
	}
	slices.Sort(heights)
	top, ok := majority(heights)
	if !ok {
		return
	}
	for i, n := range j.view.Nodes {
		s := n.last()
		if s == nil || j.why[i] != "" || s.Height < top+BehindBlocks {
			continue
		}
		if s.Height >= top+BehindBlocks+j.blocksSince(s, top) {
			j.why[i] = fmt.Sprintf("it claims height %d, %d above a majority that stands at %d", s.Height, s.Height-top, top)
		}
	}
}

// majority finds more than half of the heights (two at least) within BehindBlocks
// of each other and returns their highest. heights is sorted.
func majority(heights []uint64) (top uint64, ok bool) {
	for lo := range heights {
		hi := lo
		for hi+1 < len(heights) && heights[hi+1]-heights[lo] < BehindBlocks {
			hi++
		}
		if size := hi - lo + 1; size >= 2 && 2*size > len(heights) {
			top, ok = heights[hi], true
		}
	}
	return top, ok
}

// blocksSince is how many blocks the chain may have made between the readings of
// nodes at or below a height and reading s: a fast lab chain moves while a loaded
// machine asks one node after the other.
func (j *judgement) blocksSince(s *Sample, height uint64) uint64 {
	var latest time.Time
	for i, n := range j.view.Nodes {
		if o := n.last(); o != nil && j.why[i] == "" && o.Height <= height && o.At.After(latest) {
			latest = o.At
		}
	}
	return blocksBetween(latest, s.At, j.view.Block)
}

func blocksBetween(from, to time.Time, block time.Duration) uint64 {
	if from.IsZero() || !to.After(from) || block <= 0 {
		return 0
	}
	return uint64(to.Sub(from) / block)
}

// measure finds the highest believed reading and how far each node is below it.
func (j *judgement) measure() {
	for i, n := range j.view.Nodes {
		if s := n.last(); s != nil && j.why[i] == "" && (j.best == nil || s.Height > j.best.Height) {
			j.best = s
		}
	}
	for i := range j.view.Nodes {
		n := &j.view.Nodes[i]
		n.Behind = nil
		if s := n.last(); s != nil && j.best != nil && j.why[i] == "" {
			behind := j.best.Height - s.Height
			behind -= min(behind, blocksBetween(s.At, j.best.At, j.view.Block))
			n.Behind = &behind
		}
	}
}

// node judges one node. The order is from what is certain and worst to what is
// fine; each step may only speak when the ones above had nothing to say.
func (j *judgement) node(i int) (State, []string) {
	n := j.view.Nodes[i]
	if state, why := n.dead(); state != "" {
		return state, []string{why}
	}
	if j.why[i] != "" {
		return StateUnknown, []string{j.why[i]}
	}
	if n.last() == nil {
		return n.silent()
	}
	if n.Container == nil {
		return StateUnknown, []string{"container not read: " + errText(n.fault(askContainer))}
	}
	if why, yes := j.cmp.forked(i); yes {
		reasons := []string{why}
		// A drifting clock has made a node choose another leader than the rest.
		if c := n.checkClock(); c.Verdict == Fail {
			reasons = append(reasons, "clock: "+c.Reason)
		}
		return Fork, reasons
	}
	if why, yes := j.cmp.doubted(i); yes {
		return StateUnknown, []string{why}
	}
	if n.ValidatedPeers != nil && *n.ValidatedPeers == 0 && len(j.view.Nodes) > 1 {
		return Isolated, []string{"no validated peer"}
	}
	if n.Behind != nil && *n.Behind >= BehindBlocks {
		return Behind, []string{fmt.Sprintf("%d blocks behind height %d", *n.Behind, j.best.Height)}
	}
	return j.standing(i)
}

// dead judges what the host and its engine say, before the node is asked.
func (n NodeView) dead() (State, string) {
	switch {
	case !n.Reachable:
		return Down, "host not reached, counted as down: " + errText(n.Err)
	case n.NoContainer && n.last() != nil:
		return StateUnknown, "a node answers, but no container of the configured name is on the host"
	case n.NoContainer:
		return Down, "no container of the configured name on the host"
	case n.Container == nil || n.Container.State == "running":
		return "", ""
	case n.Container.State == "exited" && n.Container.ExitCode == 0 && n.HaltHeight != nil:
		return Halted, fmt.Sprintf("exited on halt height %d", *n.HaltHeight)
	case n.Container.State == "exited" || n.Container.State == "restarting":
		return Down, fmt.Sprintf("container %s, exit code %d", n.Container.State, n.Container.ExitCode)
	}
	return Down, "container " + n.Container.State
}

// silent judges a node whose position was never read. No answer in time is not
// the same as nobody there.
func (n NodeView) silent() (State, []string) {
	err := n.fault(askPosition)
	switch {
	case err == nil:
		return StateUnknown, []string{"it was not asked"}
	case isTimeout(err):
		return StateUnknown, []string{"no answer in time: " + errText(err)}
	case n.Container == nil:
		return StateUnknown, []string{"neither container nor node can be read: " + errText(err)}
	}
	return Down, []string{"the container runs, the node does not answer: " + errText(err)}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

func errText(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}

// standing judges a node that is in place: does its chain move and seal, and does
// anybody share its history.
func (j *judgement) standing(i int) (State, []string) {
	n := j.view.Nodes[i]
	var said []string
	if j.stoodStill() {
		return Stalled, []string{fmt.Sprintf("no height moved in %d block times", stallBlocks)}
	}
	if n.SealedLag != nil && *n.SealedLag > maxSealedLag {
		return Stalled, []string{fmt.Sprintf("the last seal is %d windows old", *n.SealedLag)}
	}
	alone := j.answering() < 2
	if !alone && j.cmp.tips.agrees[i] == 0 {
		if j.cmp.seals.agrees[i] == 0 {
			return StateUnknown, []string{"no height and no sealed macroblock in common with another node"}
		}
		said = append(said, "no height in common with another node; sealed history agrees")
	}
	if n.ValidatedPeers == nil {
		said = append(said, "validated peers not known: "+errText(n.fault(askHealth)))
		// A node that shows a fresh block of the others is not alone, whatever its
		// health route does; it has hung before on a good node.
		if fresh := j.cmp.tips.agrees[i] > 0 || j.cmp.seals.agrees[i] > 0 && n.moved(); alone || !fresh {
			return StateUnknown, said
		}
	}
	if !j.moved() {
		return StateUnknown, append(said, "no movement seen yet")
	}
	return Healthy, said
}

func (n NodeView) moved() bool {
	return len(n.Samples) > 1 && n.last().Height > n.Samples[0].Height
}

// answering counts the nodes whose position was read and is trusted.
func (j *judgement) answering() int {
	count := 0
	for i, n := range j.view.Nodes {
		if n.last() != nil && j.why[i] == "" {
			count++
		}
	}
	return count
}

// moved reports that some trusted node's height rose between its samples.
func (j *judgement) moved() bool {
	for i, n := range j.view.Nodes {
		if j.why[i] == "" && n.moved() {
			return true
		}
	}
	return false
}

// stoodStill reports that nothing moved for as long as it takes to say so.
func (j *judgement) stoodStill() bool {
	return j.answering() > 0 && !j.moved() && j.watched() >= stallBlocks*j.view.Block
}

// watched is the longest time over which one trusted node was sampled.
func (j *judgement) watched() time.Duration {
	var longest time.Duration
	for i, n := range j.view.Nodes {
		if s := n.last(); s != nil && j.why[i] == "" {
			longest = max(longest, s.At.Sub(n.Samples[0].At))
		}
	}
	return longest
}

// fleet judges the whole: a fork before anything else, then what stands still,
// then what could not be seen, then what is merely late.
func (j *judgement) fleet() (State, []string) {
	by := map[State][]string{}
	for _, n := range j.view.Nodes {
		by[n.Verdict] = append(by[n.Verdict], n.ID+": "+strings.Join(n.Reasons, "; "))
	}
	unreached := j.unreached()
	switch total := len(j.view.Nodes); {
	case total == 0:
		return StateUnknown, []string{"no node was looked at"}
	case len(by[Fork]) > 0:
		return Fork, j.reasons(by, Fork)
	case len(by[Halted]) == total:
		return Halted, []string{"every node exited on a halt height"}
	case j.stoodStill():
		return Stalled, append([]string{fmt.Sprintf("no height moved in %d block times", stallBlocks)}, j.reasons(by, StateUnknown, Down, Isolated, Halted)...)
	case j.sealsLag():
		return Stalled, append([]string{fmt.Sprintf("the last seal is more than %d windows old on every node", maxSealedLag)}, j.reasons(by, StateUnknown, Down, Isolated, Behind, Halted)...)
	case len(by[Down])+len(by[Halted]) == total && len(unreached) == 0:
		return Stalled, append([]string{"no node runs"}, j.reasons(by, Down, Halted)...)
	case len(by[StateUnknown]) > 0 || len(unreached) > 0:
		return StateUnknown, j.reasons(by, StateUnknown, Down, Isolated, Behind, Stalled, Halted)
	case len(by[Healthy]) == total:
		return Healthy, j.remarks()
	}
	return Behind, j.reasons(by, Down, Isolated, Behind, Stalled, Halted)
}

func (j *judgement) reasons(by map[State][]string, states ...State) []string {
	var out []string
	for _, s := range states {
		for _, r := range by[s] {
			id, why, _ := strings.Cut(r, ": ")
			out = append(out, fmt.Sprintf("%s %s: %s", id, s, why))
		}
	}
	return out
}

// remarks are the reasons of healthy nodes: said, without spoiling the verdict.
func (j *judgement) remarks() []string {
	var out []string
	for _, n := range j.view.Nodes {
		for _, r := range n.Reasons {
			out = append(out, n.ID+": "+r)
		}
	}
	return out
}

func (j *judgement) unreached() []string {
	var out []string
	for _, n := range j.view.Nodes {
		if !n.Reachable {
			out = append(out, n.ID)
		}
	}
	return out
}

// sealsLag reports that no node has seen a fresh seal. A node whose lag is not
// known does not vote; at least one must be known.
func (j *judgement) sealsLag() bool {
	known := 0
	for i, n := range j.view.Nodes {
		if n.SealedLag == nil || j.why[i] != "" {
			continue
		}
		if *n.SealedLag <= maxSealedLag {
			return false
		}
		known++
	}
	return known > 0
}

// open says what more samples could settle: "" when nothing.
func open(v View) string {
	cmp := compare(v.Nodes)
	j := judgement{view: &v, cmp: cmp, why: make([]string, len(v.Nodes))}
	for i := range v.Nodes {
		j.why[i] = v.Nodes[i].distrust()
	}
	switch {
	case j.answering() == 0:
		return ""
	case !j.moved():
		return openStill
	case cmp.tips.any(cmp.tips.suspects):
		return openFork
	}
	for i, n := range v.Nodes {
		if n.last() != nil && j.why[i] == "" && j.answering() > 1 && cmp.tips.agrees[i]+cmp.tips.splits[i] == 0 {
			return openApart
		}
	}
	return ""
}

// What a view may leave open.
const (
	openStill = "no height moved"
	openFork  = "tip hashes differ"
	openApart = "no common height"
)
