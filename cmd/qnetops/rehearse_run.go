package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/node"
)

// rehearsal runs ordinary commands on a lab and remembers what they took and
// whether they ended as they should.
type rehearsal struct {
	s     streams
	dir   string // of the lab, and of the operator's files
	lab   *lab.Lab
	nodes int
	block time.Duration
	acts  []act
	spoke strings.Builder // all that was printed
	// restored is how long it took from the decision to new seals; 0: not measured.
	restored time.Duration
}

// act is one line of the timeline.
type act struct {
	Act      string  `json:"act"`
	Seconds  float64 `json:"seconds"`
	ExitCode *int    `json:"exit_code"` // null: no command
	Expected string  `json:"expected"`
	Came     string  `json:"came"` // what came instead; "" where it ended as it should
	OK       bool    `json:"ok"`
}

// rehearse plays a script on a lab of its own.
func rehearse(ctx context.Context, s streams, one script, nodes int) (rehearsalResult, error) {
	dir, err := os.MkdirTemp("", "qnetops-rehearsal-")
	if err != nil {
		return rehearsalResult{}, err
	}
	defer os.RemoveAll(dir)
	r := &rehearsal{s: s, dir: dir, nodes: nodes, block: one.block}
	fmt.Fprintf(s.err, "rehearsal of %s: lab of %d hosts, one block every %s (all times of the nodes scale with it)\n", one.title, nodes, one.block)
	began := time.Now()
	r.do(ctx, "lab up, every node moves", "every node makes blocks", func() string {
		l, err := startProcessLab(lab.Config{Nodes: nodes, Block: one.block, Dir: dir, History: labHistory, Version: version})
		if err == nil {
			r.lab = l
			err = l.WaitFor(ctx, "every node to move", moving)
		}
		return errorText(err)
	})
	if r.lab != nil {
		defer r.lab.Close()
		one.play(r, ctx)
		r.checkLab(ctx)
	}
	return rehearsalResult{Name: one.name, Title: one.title, Nodes: nodes, Block: one.block.String(), Seconds: inSeconds(time.Since(began)),
		RestoredSeconds: inSeconds(r.restored), Acts: r.acts, OK: !r.failed()}, nil
}

func inSeconds(d time.Duration) float64 { return d.Round(10 * time.Millisecond).Seconds() }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// failed says that an act did not end as it should: what would follow shows
// nothing any more.
func (r *rehearsal) failed() bool {
	return slices.ContainsFunc(r.acts, func(a act) bool { return !a.OK })
}

// do is one act. What it returns is what came instead, "" where all is well. After
// a failed act, or when the operator gave up, nothing is done.
func (r *rehearsal) do(ctx context.Context, what, expected string, play func() string) bool {
	return r.act(ctx, act{Act: what, Expected: expected}, func(*act) string {
		fmt.Fprintf(r.s.err, "\n— %s\n", what)
		return play()
	})
}

func (r *rehearsal) act(ctx context.Context, a act, play func(*act) string) bool {
	if r.failed() {
		return false
	}
	began := time.Now()
	if a.Came = errorText(ctx.Err()); a.Came == "" {
		a.Came = strings.TrimSpace(play(&a))
	}
	a.Seconds, a.OK = inSeconds(time.Since(began)), a.Came == ""
	if !a.OK {
		fmt.Fprintf(r.s.err, "NOT AS IT SHOULD: expected %s; came %s\n", a.Expected, a.Came)
	}
	r.acts = append(r.acts, a)
	return a.OK
}

// want is how a command must end.
type want struct {
	exit  int
	says  []string                // on either stream
	judge func(out string) string // of the answer; returns what is wrong
	label string                  // in the timeline, where the whole line is too long
}

// command gives one ordinary command line to the same Main that a shell would, and
// returns its answer.
func (r *rehearsal) command(ctx context.Context, w want, args ...string) (answer string) {
	line := r.line(args)
	expected := fmt.Sprintf("exit code %d", w.exit)
	for _, text := range w.says {
		expected += fmt.Sprintf(", %q", text)
	}
	if w.label == "" {
		w.label = line
	}
	r.act(ctx, act{Act: w.label, Expected: expected}, func(a *act) string {
		out, errs, code := r.shell(ctx, args)
		a.ExitCode, answer = &code, out
		return w.differs(code, out, errs)
	})
	return answer
}

// shell runs a command line and shows what it prints.
func (r *rehearsal) shell(ctx context.Context, args []string) (answer, said string, code int) {
	fmt.Fprintf(r.s.err, "\n$ qnetops %s\n", r.line(args))
	var out, errs strings.Builder
	s := r.s
	s.out, s.err, s.ask = &out, io.MultiWriter(r.s.err, &errs), false
	code = Main(ctx, slices.Concat([]string{"qnetops"}, args, []string{"--hosts", r.path(lab.HostsFile), "--state", r.path("state.db")}), s)
	r.spoke.WriteString(out.String() + errs.String())
	if !strings.HasPrefix(out.String(), "{") { // a document is for programs
		fmt.Fprint(r.s.err, out.String())
	}
	return out.String(), errs.String(), code
}

// differs says what came instead of what was wanted.
func (w want) differs(code int, out, errs string) string {
	if code != w.exit {
		return fmt.Sprintf("exit code %d: %s", code, lastError(errs))
	}
	for _, text := range w.says {
		if !strings.Contains(out+errs, text) {
			return fmt.Sprintf("exit code %d without %q: %s", code, text, lastError(errs))
		}
	}
	if w.judge == nil {
		return ""
	}
	return w.judge(out)
}

// lastError is the message with which a command says why it ended, on one line.
func lastError(errs string) string {
	_, last, found := strings.Cut(errs, "error: ")
	if !found {
		return "no error was printed"
	}
	last, _, _ = strings.Cut(last, "\nhint: ")
	return strings.Join(strings.Fields(last), " ")
}

// path is a file of the operator.
func (r *rehearsal) path(name string) string { return filepath.Join(r.dir, name) }

// line is a command line as one would type it in the rehearsal's folder.
func (r *rehearsal) line(args []string) string {
	var words []string
	for _, a := range args {
		a = strings.ReplaceAll(a, r.dir+string(filepath.Separator), "")
		if strings.ContainsAny(a, " '\"$*;") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// healthy is the last word of every good end. On a busy machine a node of a fast lab
// loses its peers for a moment: it is asked again for a while before it counts.
func (r *rehearsal) healthy(ctx context.Context) {
	if r.failed() {
		return
	}
	const settles = 20 * time.Second
	quiet := r.s
	quiet.out, quiet.err, quiet.ask = io.Discard, io.Discard, false
	soon, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	_ = r.until(soon, func() bool { // the command below is what judges
		return Main(soon, []string{"qnetops", "status", "--check", "--hosts", r.path(lab.HostsFile), "--state", r.path("state.db")}, quiet) == exitDone
	})
	r.command(ctx, want{exit: exitDone, says: []string{"is healthy"}}, "status", "--check")
}

// position is what the node of a host says of its place in the chain.
func (r *rehearsal) position(ctx context.Context, id string) (node.Position, error) {
	h, err := r.lab.Host(id)
	if err != nil {
		return node.Position{}, err
	}
	client := node.Client{Base: h.APIBase(), HTTP: h.HTTP()}
	return client.Position(ctx)
}

// certified is the newest certified height of the fleet: one checkpoint above what
// is final on the node that is ahead.
func (r *rehearsal) certified(ctx context.Context) (height uint64, err error) {
	for _, h := range r.lab.Hosts() {
		pos, err := r.position(ctx, h.ID())
		if err != nil {
			return 0, err
		}
		height = max(height, pos.FinalizedHeight+node.CheckpointBlocks)
	}
	return height, nil
}

// tooMany are the ids of so many hosts, from the last one down, that the rest is one
// short of the quorum.
func (r *rehearsal) tooMany() []string {
	var ids []string
	for _, h := range r.lab.Hosts() {
		ids = append(ids, h.ID())
	}
	return ids[node.QuorumSize(len(ids))-1:]
}

// inject sets one fault on several hosts.
func (r *rehearsal) inject(ids []string, kind, arg string) error {
	for _, id := range ids {
		if err := r.lab.Inject(id, kind, arg); err != nil {
			return err
		}
	}
	return nil
}

// during waits beside a command for a moment of the lab and then does something.
// What it returns is an act that says what became of it.
func (r *rehearsal) during(ctx context.Context, what, moment string, ok func(lab.Status) bool, then func() error) func() {
	if r.failed() {
		return func() {}
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		err := r.lab.WaitFor(ctx, moment, ok)
		if err == nil {
			err = then()
		}
		done <- err
	}()
	return func() {
		cancel()
		err := <-done
		r.do(context.WithoutCancel(ctx), what, "done when "+moment, func() string { return errorText(err) })
	}
}

// checkLab asks the lab itself what no command can see: two containers on one
// data directory at any moment, requests that no host knows, and secrets in what
// was printed.
func (r *rehearsal) checkLab(ctx context.Context) {
	r.do(ctx, "the lab saw no rule broken, no secret was printed", "no broken rule, no request that a host does not know, no secret", func() string {
		wrong := slices.Concat(r.lab.Violations(), r.lab.Refusals())
		for name, value := range lab.Sentinels() {
			if strings.Contains(r.spoke.String(), value) {
				wrong = append(wrong, "the value of "+name+" was printed")
			}
		}
		return strings.Join(wrong, "; ")
	})
}

// cutoverDone holds the document of a cut-over to its good end.
func cutoverDone(more func(cutover.Document) string) func(string) string {
	return func(out string) string {
		var doc cutover.Document
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			return "an answer that cannot be read: " + err.Error()
		}
		if doc.Outcome != "done" {
			return "outcome " + doc.Outcome
		}
		return more(doc)
	}
}

func topOf(s lab.Status) (top uint64) {
	for _, n := range s.Nodes {
		if n.Height != nil {
			top = max(top, *n.Height)
		}
	}
	return top
}

// moving says that every node is past the window it was started in: in that
// window it counts as restarted, and no roll could begin.
func moving(s lab.Status) bool {
	for _, n := range s.Nodes {
		if n.Height == nil || *n.Height <= labHistory+labSettle {
			return false
		}
	}
	return true
}
