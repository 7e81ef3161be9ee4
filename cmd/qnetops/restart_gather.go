package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

func restartGather(s streams) *cli.Command {
	return &cli.Command{
		Name: "gather", Usage: "write and sign what your own nodes hold of the chain: one file an operator",
		Flags: []cli.Flag{
			&cli.Uint64Flag{Name: "from", Usage: "first `MACROBLOCK` of a range to add (with --to)"},
			&cli.Uint64Flag{Name: "to", Usage: "last `MACROBLOCK` of the range"},
			&cli.StringFlag{Name: "operator", EnvVars: []string{"QNETOPS_OPERATOR"}, Usage: "your `NAME` in the allowed-signers file (default: user@machine)"},
			&cli.StringFlag{Name: "sign-key", Usage: "the SSH key to sign with, `FILE`; a .pub file means the agent's key (default: the agent's only key)"},
			&cli.StringFlag{Name: "out", Usage: "write to this `FILE` and FILE.sig (default: evidence-OPERATOR-ID-NUMBER.json)"},
			&cli.StringFlag{Name: "supplement", Usage: "add to your earlier evidence `FILE`: same id, next number"},
		},
		Action: func(c *cli.Context) error {
			o, err := readGatherOptions(c, s)
			if err != nil {
				return err
			}
			return o.run(c.Context, s)
		},
	}
}

// gatherOptions are the flags of restart gather after they were checked.
type gatherOptions struct {
	g        globals
	ranges   []restart.IndexRange
	operator string
	key, out string
	id       string
	number   uint64
	earlier  *restart.Evidence // of --supplement
}

func readGatherOptions(c *cli.Context, s streams) (gatherOptions, error) {
	g, err := readGlobals(c, s)
	if err != nil {
		return gatherOptions{}, err
	}
	if err := noArguments(c); err != nil {
		return gatherOptions{}, err
	}
	o := gatherOptions{g: g, operator: c.String("operator"), key: c.String("sign-key"), out: c.String("out"), id: restart.NewID(), number: 1}
	if o.operator == "" {
		o.operator = operator(s)
	}
	if c.IsSet("from") != c.IsSet("to") {
		return o, &usageError{text: "--from and --to go together", hint: "qnetops restart gather --from A --to B"}
	}
	if c.IsSet("from") {
		o.ranges = []restart.IndexRange{{From: c.Uint64("from"), To: c.Uint64("to")}}
	}
	if err := restart.CheckRanges(o.ranges); err != nil {
		var ranges *restart.RangeError
		if errors.As(err, &ranges) {
			return o, &usageError{text: ranges.Error(), hint: ranges.Hint()}
		}
		return o, err
	}
	if path := c.String("supplement"); path != "" {
		if err := o.supplement(path, c.IsSet("operator")); err != nil {
			return o, err
		}
	}
	if o.out == "" {
		o.out = fmt.Sprintf("evidence-%s-%s-%d.json", fileName(o.operator), o.id, o.number)
	}
	return o, o.free()
}

// fileName is a principal as part of a file's name.
func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("@._-", r):
			return r
		}
		return '_'
	}, s)
}

// supplement takes operator and id from an earlier file: what is added must be by the same operator and of the same stall.
func (o *gatherOptions) supplement(path string, named bool) error {
	data, err := readBounded(path, restart.MaxEvidence)
	if err != nil {
		return &usageError{text: err.Error(), hint: "--supplement takes your earlier evidence file"}
	}
	ev, err := restart.Decode(path, data)
	if err != nil {
		return unreadableEvidence(err)
	}
	if named && o.operator != ev.Operator {
		return &usageError{text: fmt.Sprintf("%s is evidence of %s, not of %s", path, ev.Operator, o.operator), hint: "an operator adds to his own evidence only; leave --supplement out for a first file"}
	}
	o.operator, o.id, o.number, o.earlier = ev.Operator, ev.ID, ev.Number+1, &ev
	return nil
}

// unreadableEvidence makes a file that cannot be read the operator's to correct.
func unreadableEvidence(err error) error {
	var faults *restart.FileFaults
	if errors.As(err, &faults) {
		return &usageError{text: faults.Error(), hint: faults.Hint()}
	}
	return err
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	// A pipe would keep even its opening waiting for a writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &usageError{text: path + " is no regular file", hint: "give the path of a file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &usageError{text: fmt.Sprintf("%s is larger than %d bytes", path, limit), hint: "this is no file that qnetops wrote"}
	}
	return data, err
}

// free refuses names that are taken, before anything is read: evidence is never written over.
func (o gatherOptions) free() error {
	if o.g.dryRun {
		return nil
	}
	for _, path := range []string{o.out, o.out + ".sig"} {
		if _, err := os.Lstat(path); err == nil {
			return &usageError{text: path + " is there already, and evidence is never written over", hint: "name another file with --out; add to it with --supplement " + shellWord(o.out)}
		}
	}
	if info, err := os.Stat(filepath.Dir(o.out)); err != nil || !info.IsDir() {
		return &usageError{text: "there is no folder " + filepath.Dir(o.out), hint: "make it, or name another file with --out"}
	}
	return nil
}

func (o gatherOptions) run(ctx context.Context, s streams) error {
	var signer restart.Signer
	if !o.g.dryRun {
		key, done, err := openSignKey(ctx, s, o.key)
		if err != nil {
			return err
		}
		defer done()
		signer = key
	}
	inv, f, err := openFleet(ctx, s, o.g)
	if err != nil {
		return err
	}
	defer f.Close()
	hosts, err := inv.Select(o.g.only, o.g.skip)
	if err != nil {
		return err
	}
	var ids []string
	for _, h := range hosts {
		ids = append(ids, h.ID)
	}
	ev, err := restart.Gather(ctx, restart.FleetHosts(ctx, f, ids), restart.Options{
		Fleet: inv.Name, Operator: o.operator, ID: o.id, Number: o.number, Tool: "qnetops " + version, Now: time.Now(),
		Ranges: o.ranges, Network: o.network(), Block: inv.Block, Progress: gatherProgress(s, o.g),
	})
	if err != nil {
		return err
	}
	if !o.g.dryRun {
		if err := o.write(ev, signer); err != nil {
			return err
		}
	}
	return o.show(s, ev)
}

// openSignKey opens the key to sign with, before anything is read: a passphrase is asked for while somebody is there.
func openSignKey(ctx context.Context, s streams, file string) (restart.Signer, func(), error) {
	keys := restart.KeySource{Passphrase: (&prompter{s: s}).Passphrase, AgentSocket: s.getenv("SSH_AUTH_SOCK")}
	signer, done, err := keys.Open(ctx, file)
	var key *restart.KeyError
	if errors.As(err, &key) {
		err = &usageError{text: key.Error(), hint: key.Hint()}
	}
	return signer, done, err
}

// network is what earlier evidence named: no node says it.
func (o gatherOptions) network() *node.Hash {
	if o.earlier == nil {
		return nil
	}
	return o.earlier.Network
}

// gatherProgress prints what is being done: with a pipe and without -v only what went wrong matters, and that is in the answer.
func gatherProgress(s streams, g globals) func(host, text string) {
	if !g.verbose && !s.live {
		return nil
	}
	out := make(chan struct{}, 1) // one line at a time
	return func(host, text string) {
		out <- struct{}{}
		defer func() { <-out }()
		if host != "" {
			text = host + ": " + text
		}
		fmt.Fprintln(s.err, text)
	}
}

// write puts the evidence and its signature on disk. The signature goes first, so that a file of evidence without one means
// that it was taken away.
func (o gatherOptions) write(ev restart.Evidence, signer restart.Signer) error {
	data, err := restart.Canonical(ev)
	if err != nil {
		return err
	}
	// What would not be read back must not be signed.
	if _, err := restart.Decode(o.out, data); err != nil {
		return fmt.Errorf("the evidence is not fit to be written, please report this: %w", err)
	}
	sig, err := restart.Sign(signer, data)
	if err != nil {
		return err
	}
	if err := writeNew(o.out+".sig", sig); err != nil {
		return err
	}
	if err := writeNew(o.out, data); err != nil {
		return errors.Join(err, os.Remove(o.out+".sig"))
	}
	return nil
}

// writeNew writes a file whole or not at all, and never over another one.
func writeNew(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".evidence-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path) // fails where the name is taken
}

// gatherDocument is qnetops/restartgather/v1.
type gatherDocument struct {
	Schema        string                 `json:"schema"`
	File          *string                `json:"file"`
	Signature     *string                `json:"signature"`
	Operator      string                 `json:"operator"`
	ID            string                 `json:"id"`
	Number        uint64                 `json:"number"`
	TakenAt       time.Time              `json:"taken_at"`
	NewestCommon  *uint64                `json:"newest_common"`
	Hosts         []gatherHost           `json:"hosts"`
	Disagreements []restart.Disagreement `json:"disagreements"`
	Unreachable   []string               `json:"unreachable"`
	Next          string                 `json:"next"`
}

type gatherHost struct {
	ID         string     `json:"id"`
	Reachable  bool       `json:"reachable"`
	Reason     string     `json:"reason"`
	LastSealed *uint64    `json:"last_sealed"`
	Height     *uint64    `json:"height"`
	CommonHash *node.Hash `json:"common_hash"`
	Held       int        `json:"held"`
	Missing    int        `json:"missing"`
	Unknown    int        `json:"unknown"`
	Faulty     int        `json:"faulty"`
}

func (o gatherOptions) document(ev restart.Evidence) gatherDocument {
	sum := restart.Summarize(ev)
	doc := gatherDocument{Schema: "qnetops/restartgather/v1", Operator: ev.Operator, ID: ev.ID, Number: ev.Number, TakenAt: ev.TakenAt,
		NewestCommon: sum.Common, Hosts: []gatherHost{}, Disagreements: sum.Disagreements, Unreachable: sum.Unreachable,
		Next: "qnetops restart gather without --dry-run"}
	if !o.g.dryRun {
		sig := o.out + ".sig"
		doc.File, doc.Signature = &o.out, &sig
		doc.Next = "qnetops restart propose-k --allowed-signers FILE " + shellWord(o.out) + " and the files of the other operators"
	}
	for _, h := range sum.Hosts {
		doc.Hosts = append(doc.Hosts, gatherHost{h.ID, h.Reachable, h.Reason, h.Sealed, h.Height, h.Common, h.Held, h.Missing, h.Unknown, h.Faulty})
	}
	return doc
}

func (o gatherOptions) show(s streams, ev restart.Evidence) error {
	doc := o.document(ev)
	if o.g.json {
		return printJSON(s.out, doc)
	}
	common := "hash at the newest common"
	if doc.NewestCommon != nil {
		common = fmt.Sprintf("hash at %d", *doc.NewestCommon)
	}
	t := report.Table{Head: []string{"host", "last sealed", "height", common, "held", "missing", "unknown", "certificate amiss"}}
	for _, h := range doc.Hosts {
		t.Add(h.ID, number(h.LastSealed), number(h.Height), shortHash(h.CommonHash), fmt.Sprint(h.Held), fmt.Sprint(h.Missing), fmt.Sprint(h.Unknown), fmt.Sprint(h.Faulty))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, h := range doc.Hosts {
		switch {
		case !h.Reachable:
			fmt.Fprintf(s.out, "%s is unreachable: %s\n", h.ID, h.Reason)
		case h.Reason != "":
			fmt.Fprintf(s.out, "%s: unknown: %s\n", h.ID, h.Reason)
		}
	}
	printDisagreements(s.out, doc.Disagreements)
	if o.g.dryRun {
		fmt.Fprintln(s.out, "nothing was written (--dry-run)")
		return nil
	}
	fmt.Fprintf(s.out, "%s (%s, number %d) and %s.sig are written\nnext: %s\n", o.out, doc.Operator, doc.Number, o.out, doc.Next)
	return nil
}

// shownDisagreements is how many disagreements a person is shown; the file and -o json hold all of them.
const shownDisagreements = 3

func printDisagreements(w io.Writer, list []restart.Disagreement) {
	for i, d := range list {
		if i == shownDisagreements {
			fmt.Fprintf(w, "and %d more disagreements (-o json lists them)\n", len(list)-i)
			return
		}
		sides := map[string][]string{}
		for host, value := range d.Values {
			if own, _, of := strings.Cut(host, " previous of "); of && d.Values[own] == value {
				continue // it says the same of the macroblock itself
			}
			sides[value] = append(sides[value], host)
		}
		var text []string
		for value, hosts := range sides {
			slices.Sort(hosts)
			text = append(text, strings.Join(hosts, ",")+" "+value[:12])
		}
		slices.Sort(text)
		fmt.Fprintf(w, "macroblock %d: different %s: %s\n", d.Index, d.Kind, strings.Join(text, "; "))
	}
}

func number(v *uint64) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprint(*v)
}

func shortHash(h *node.Hash) string {
	if h == nil {
		return "?"
	}
	return h.Short()
}
