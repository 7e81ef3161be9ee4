package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/report"
)

func rehearseCommand(s streams) *cli.Command {
	flags := func() []cli.Flag {
		return []cli.Flag{
			&cli.StringFlag{Name: "report", Usage: "write the timeline to `FILE` (Markdown)"},
			&cli.DurationFlag{Name: "block", Value: 20 * time.Millisecond, Usage: "block `TIME` of the lab"},
			&cli.IntFlag{Name: "nodes", Value: 6, Usage: "how many `HOSTS`"},
		}
	}
	of := func(rehearse func(context.Context, streams, int, time.Duration, string) error) cli.ActionFunc {
		return func(c *cli.Context) error {
			if c.NArg() > 0 {
				return &usageError{text: fmt.Sprintf("no rehearsal of %q", c.Args().Slice()), hint: "qnetops rehearse roll, or halt"}
			}
			return rehearse(c.Context, s, c.Int("nodes"), c.Duration("block"), c.String("report"))
		}
	}
	return &cli.Command{
		Name: "rehearse", Usage: "do it all on a lab first, with a failure on the way, and show the timeline",
		Flags: flags(), Action: of(rehearseRoll),
		Subcommands: []*cli.Command{
			{Name: "roll", Usage: "qnet:v1 to qnet:v2, then an image that crashes and is put back", Flags: flags(), Action: of(rehearseRoll)},
			{Name: "halt", Usage: "a halt at a height with an engine that restarts in the middle, then the release on qnet:v2", Flags: flags(), Action: of(rehearseHalt)},
		},
	}
}

// rehearsal runs ordinary commands on a lab and remembers what they took and
// whether they ended as they should.
type rehearsal struct {
	s     streams
	dir   string
	acts  []act
	spoke strings.Builder
	title string // what is rehearsed
}

// act is one line of the timeline.
type act struct {
	what     string
	took     time.Duration
	code     int
	expected int
	wrong    string
}

// rehearseRoll is the main job and its failure: v1 to v2 through the ordinary
// command, then an image that crashes, which must be put back by itself.
func rehearseRoll(ctx context.Context, s streams, nodes int, block time.Duration, file string) error {
	dir, err := os.MkdirTemp("", "qnetops-rehearsal-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &rehearsal{s: s, dir: dir, title: "a roll"}
	began := time.Now()
	fmt.Fprintf(s.err, "lab of %d hosts, one block every %s (all times of the nodes scale with it)\n", nodes, block)
	l, err := startProcessLab(lab.Config{Nodes: nodes, Block: block, Dir: dir, History: labHistory, Version: version})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.WaitFor(ctx, "every node to move", moving); err != nil {
		return err
	}
	r.acts = append(r.acts, act{what: "lab up, every node moves", took: time.Since(began)})
	r.run(ctx, "status --check", exitDone, nil)
	r.run(ctx, "roll qnet:v2 --yes", exitDone, func(doc rollSummary) string { return doc.want("rolled", nodes) })
	r.run(ctx, "roll qnet:crash --yes", exitStopped, func(doc rollSummary) string { return doc.want("restored", 1) })
	r.run(ctx, "abort "+r.unfinished(ctx), exitDone, nil)
	r.run(ctx, "status --check", exitDone, nil)
	r.checkLab(l)
	return r.finish(file)
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

// rollSummary is what a rehearsal reads of the answer of a roll.
type rollSummary struct {
	Outcome string `json:"outcome"`
	Nodes   []struct {
		ID         string   `json:"id"`
		Outcome    string   `json:"outcome"`
		Down       *float64 `json:"downtime_seconds"`
		Milestones []struct {
			Name    string   `json:"name"`
			Verdict string   `json:"verdict"`
			Seconds *float64 `json:"seconds"`
		} `json:"milestones"`
	} `json:"nodes"`
}

// want says what is wrong unless exactly n nodes had the outcome and no other
// node was touched.
func (d rollSummary) want(outcome string, n int) string {
	counts := map[string]int{}
	for _, node := range d.Nodes {
		counts[node.Outcome]++
	}
	if counts[outcome] != n || counts[outcome]+counts["untouched"] != len(d.Nodes) {
		return fmt.Sprintf("want %d %s and no other node touched, got %v", n, outcome, counts)
	}
	return ""
}

// run gives one ordinary command line to the same Main that a shell would.
func (r *rehearsal) run(ctx context.Context, line string, expected int, judge func(rollSummary) string) {
	fmt.Fprintf(r.s.err, "\n$ qnetops %s\n", line)
	var out strings.Builder
	s := r.s
	s.out, s.ask = &out, false
	args := append([]string{"qnetops"}, strings.Fields(line)...)
	args = append(args, "--hosts", filepath.Join(r.dir, lab.HostsFile), "--state", filepath.Join(r.dir, "state.db"))
	if judge != nil {
		args = append(args, "-o", "json")
	}
	began := time.Now()
	a := act{what: line, expected: expected}
	a.code = Main(ctx, args, s)
	a.took = time.Since(began)
	if judge != nil {
		var doc rollSummary
		if err := json.Unmarshal([]byte(out.String()), &doc); err != nil {
			a.wrong = "its answer is not readable: " + err.Error()
		} else {
			a.wrong = judge(doc)
			r.timeline(doc)
		}
	} else {
		fmt.Fprint(r.s.err, out.String())
	}
	if a.code != expected {
		a.wrong = strings.TrimSpace(fmt.Sprintf("exit code %d, want %d; %s", a.code, expected, a.wrong))
	}
	r.spoke.WriteString(out.String())
	r.acts = append(r.acts, a)
}

// timeline prints the times per node and milestone of one roll.
func (r *rehearsal) timeline(doc rollSummary) {
	t := report.Table{Head: []string{"node", "outcome", "down", "M0", "M1", "M2", "M3", "M4"}}
	for _, n := range doc.Nodes {
		row := []string{n.ID, n.Outcome, seconds(n.Down)}
		for _, m := range n.Milestones {
			row = append(row, strings.TrimSuffix(m.Verdict+" "+seconds(m.Seconds), " -"))
		}
		t.Add(row...)
	}
	_ = t.Write(r.s.err) // a terminal that is gone must not fail the rehearsal
}

// unfinished finds the operation the failed roll left behind.
func (r *rehearsal) unfinished(ctx context.Context) string {
	db, store, err := openJournal(ctx, globals{state: filepath.Join(r.dir, "state.db")})
	if err != nil {
		return "none"
	}
	defer db.Close()
	records, err := store.List(ctx, "")
	if err != nil || len(records) == 0 {
		return "none"
	}
	return records[0].ID
}

// checkLab asks the lab itself what no command can see: two containers on one
// data directory at any moment, and secrets in what was printed.
func (r *rehearsal) checkLab(l *lab.Lab) {
	a := act{what: "the lab saw no rule broken, no secret was printed"}
	if broken := l.Violations(); len(broken) > 0 {
		a.wrong = strings.Join(broken, "; ")
	}
	for name, value := range lab.Sentinels() {
		if strings.Contains(r.spoke.String(), value) {
			a.wrong = strings.TrimSpace(a.wrong + " the value of " + name + " was printed")
		}
	}
	r.acts = append(r.acts, a)
}

func (r *rehearsal) finish(file string) error {
	t := report.Table{Head: []string{"what", "took", "exit", "as it should"}}
	failed := 0
	var total time.Duration
	var md strings.Builder
	md.WriteString("# Rehearsal of " + r.title + "\n\n| what | took | exit | as it should |\n| --- | --- | --- | --- |\n")
	for _, a := range r.acts {
		verdict := "yes"
		if a.wrong != "" {
			verdict = "NO: " + a.wrong
			failed++
		}
		total += a.took
		took := a.took.Round(10 * time.Millisecond).String()
		t.Add(a.what, took, fmt.Sprint(a.code), verdict)
		fmt.Fprintf(&md, "| %s | %s | %d | %s |\n", a.what, took, a.code, verdict)
	}
	fmt.Fprintln(r.s.out)
	if err := t.Write(r.s.out); err != nil {
		return err
	}
	if file != "" {
		if err := os.WriteFile(file, []byte(md.String()), 0o644); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("rehearsal: %d of %d acts did not end as they should", failed, len(r.acts))
	}
	fmt.Fprintf(r.s.out, "rehearsal passed in %s\n", total.Round(100*time.Millisecond))
	return nil
}
