package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

// evidenceFlags are what every choice from the operators' evidence takes.
func evidenceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "allowed-signers", Usage: "the operators and their keys, `FILE` in the form of ssh-keygen; all of them are asked for evidence"},
		&cli.StringFlag{Name: "below", Usage: "choose K below macroblock `N`"},
		&cli.StringFlag{Name: "forged", Usage: "finality is forged from macroblock `INDEX` on: choose K strictly below it"},
		&cli.StringSliceFlag{Name: "absent", Usage: "choose without an operator: `ID=REASON` (published with K, repeatable)"},
	}
}

func restartProposeK(s streams) *cli.Command {
	return &cli.Command{
		Name: "propose-k", Usage: "choose the macroblock to resume from, by the evidence alone; exit 3 when there is none", ArgsUsage: "EVIDENCE…",
		Description: "EVIDENCE is a file of restart gather with its signature FILE.sig beside it, or a folder: all *.json in it.",
		Flags:       evidenceFlags(),
		Action:      func(c *cli.Context) error { return runProposeK(c, s) },
	}
}

func restartExclude(s streams) *cli.Command {
	return &cli.Command{
		Name: "exclude", Usage: "propose whom to bar from the restart, with the evidence on every member; exit 3 when the list must not be published", ArgsUsage: "EVIDENCE…",
		Description: "EVIDENCE is as for propose-k. A barred identity stays filtered from eligibility until a release un-bars it.",
		Flags: append(evidenceFlags(),
			&cli.StringSliceFlag{Name: "add", Usage: "bar an identity that the evidence does not show silent: `ID=REASON` (repeatable)"},
			&cli.StringSliceFlag{Name: "drop", Usage: "take `ID` off the list (repeatable)"},
			&cli.StringFlag{Name: "list", Usage: "judge the list in `FILE` (one id a line, sorted) in place of the proposed one"},
		),
		Action: func(c *cli.Context) error { return runExclude(c, s) },
	}
}

// choiceInput is the evidence as it was merged, and how K is to be chosen from it.
type choiceInput struct {
	signers string // path of the allowed-signers file
	merged  restart.Merged
	options restart.ProposeOptions
	places  []string // the arguments
}

func readChoice(c *cli.Context) (choiceInput, error) {
	in := choiceInput{signers: c.String("allowed-signers"), places: c.Args().Slice()}
	usage := "qnetops " + commandPath(c) + " --allowed-signers FILE EVIDENCE…"
	switch {
	case in.signers == "":
		return in, &usageError{text: "without --allowed-signers nobody's evidence counts", hint: usage}
	case len(in.places) == 0:
		return in, &usageError{text: "no evidence is named", hint: usage + "; each is a file of restart gather, or a folder with such files"}
	}
	var err error
	if in.options, err = readProposeOptions(c); err != nil {
		return in, err
	}
	data, err := readBounded(in.signers, restart.MaxSigners)
	if err != nil {
		return in, err
	}
	signers, err := restart.ParseAllowedSigners(in.signers, data)
	if err != nil {
		return in, unreadableEvidence(err)
	}
	files, err := readEvidence(in.places)
	if err != nil {
		return in, err
	}
	in.merged = restart.Merge(files, signers, time.Now())
	return in, nil
}

// readProposeOptions reads the flags that narrow the choice; every fault of them is reported at once.
func readProposeOptions(c *cli.Context) (restart.ProposeOptions, error) {
	var o restart.ProposeOptions
	var faults []string
	for name, into := range map[string]*uint64{"below": &o.Below, "forged": &o.Forged} {
		text := c.String(name)
		if !c.IsSet(name) {
			continue
		}
		v, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil || v == 0 {
			faults = append(faults, fmt.Sprintf("--%s %q is no index of a macroblock; they count from 1", name, text))
		}
		*into = v
	}
	absent, bad := pairs(c, "absent")
	faults = append(faults, bad...)
	for _, p := range absent {
		o.Absent = append(o.Absent, restart.Absent{Operator: p[0], Reason: p[1]})
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return o, &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops " + commandPath(c) + " --help"}
	}
	return o, nil
}

// pairs reads the values of a repeatable flag ID=REASON.
func pairs(c *cli.Context, name string) (out [][2]string, faults []string) {
	for _, text := range c.StringSlice(name) {
		id, reason, ok := strings.Cut(text, "=")
		id, reason = strings.TrimSpace(id), strings.TrimSpace(reason)
		if !ok || id == "" || reason == "" {
			faults = append(faults, fmt.Sprintf("--%s %q: want ID=REASON with a reason", name, text))
			continue
		}
		out = append(out, [2]string{id, reason})
	}
	return out, faults
}

// readEvidence reads the files and folders that were named, and the signature beside each file. Every path that cannot be
// read is named.
func readEvidence(places []string) ([]restart.File, error) {
	var out []restart.File
	var faults []error
	for _, place := range places {
		paths, err := evidencePaths(place)
		if err != nil {
			faults = append(faults, err)
		}
		for _, path := range paths {
			f, err := readEvidenceFile(path)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			out = append(out, f)
		}
	}
	return out, errors.Join(faults...)
}

func evidencePaths(place string) ([]string, error) {
	info, err := os.Stat(place)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{place}, nil
	}
	entries, err := os.ReadDir(place)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) == ".json" {
			out = append(out, filepath.Join(place, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, &usageError{text: "the folder " + place + " has no *.json in it", hint: "evidence is FILE.json with FILE.json.sig beside it"}
	}
	return out, nil
}

// readEvidenceFile reads a file with its signature; that there is none is for the merging to say.
func readEvidenceFile(path string) (restart.File, error) {
	f := restart.File{Name: path}
	var err error
	if f.Data, err = readBounded(path, restart.MaxEvidence); err != nil {
		return f, err
	}
	f.Sig, err = readBounded(path+".sig", restart.MaxSigners)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	return f, err
}

// chooseK reads the evidence and chooses K from it; how it was asked for is the operator's to correct.
func chooseK(c *cli.Context) (choiceInput, restart.Proposal, error) {
	in, err := readChoice(c)
	if err != nil {
		return in, restart.Proposal{}, err
	}
	p, err := restart.Propose(in.merged, in.options)
	var option *restart.OptionError
	if errors.As(err, &option) {
		err = &usageError{text: option.Error(), hint: option.Hint()}
	}
	return in, p, err
}

// command is a command line on the same evidence, as a shell takes it.
func (in choiceInput) command(step string) string {
	parts := []string{"qnetops restart", step, "--allowed-signers", shellWord(in.signers)}
	if in.options.Below > 0 {
		parts = append(parts, "--below", fmt.Sprint(in.options.Below))
	}
	if in.options.Forged > 0 {
		parts = append(parts, "--forged", fmt.Sprint(in.options.Forged))
	}
	for _, a := range in.options.Absent {
		parts = append(parts, "--absent", shellWord(a.Operator+"="+a.Reason))
	}
	for _, place := range in.places {
		parts = append(parts, shellWord(place))
	}
	return strings.Join(parts, " ")
}

// shellWord is a word as a shell takes it whole.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func runProposeK(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	in, p, err := chooseK(c)
	if err != nil {
		return err
	}
	if g.json {
		err = printJSON(s.out, p)
	} else {
		err = in.printProposal(s.out, p)
	}
	if err == nil && p.K == nil {
		err = &refusal{text: "no K: " + p.Stop, hint: in.next(p)}
	}
	return err
}

// next is what to do after a choice, or where there was none.
func (in choiceInput) next(p restart.Proposal) string {
	switch p.StopCode {
	case "":
		return in.command("exclude")
	case restart.StopUndecided:
		return strings.Join(append(in.needed(p.Needed), "then the same command with the new files; --below N chooses without them"), "\n      ")
	case restart.StopNoEvidence:
		hint := "get the file of each operator and its .sig, or waive him by name with --absent ID=REASON; files that were left out are listed"
		if slices.ContainsFunc(p.LeftOut, func(l restart.LeftOut) bool { return l.Code == restart.CodeConflict }) {
			hint += "; of files in conflict their operator says which hold, and the others are left out of the command"
		}
		return hint
	case restart.StopStale:
		return "he gathers anew (qnetops restart gather) and his old files are left out of the command; where nobody can reach him: --absent ID=REASON"
	case restart.StopContradiction:
		return in.settle(p.Disagreements[0])
	}
	n := len(p.Refused)
	if n == 0 || p.Refused[n-1].Index <= 2 {
		return "nothing older is left to choose; an operator who lost everything is waived by name with --absent ID=REASON"
	}
	older := p.Refused[n-1].Index - 1
	return "the reasons are listed for each macroblock; an older one is added, by each operator to his newest file, with " + supplementCommand("FILE", older-1, older)
}

// needed is one command for each operator: two in one round would both make the next number of his files. Where his ranges are too
// far apart for one, the newest come first, and the next round asks for the rest.
func (in choiceInput) needed(list []restart.NeededRange) []string {
	spans := map[string]restart.IndexRange{}
	for _, r := range slices.Backward(list) { // by operator and index, ascending
		span, ok := spans[r.Operator]
		switch {
		case !ok:
			spans[r.Operator] = r.IndexRange
		case span.To-r.From < restart.MaxAsked:
			spans[r.Operator] = restart.IndexRange{From: r.From, To: span.To}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		out = append(out, in.adds(name, spans[name].From, spans[name].To))
	}
	return out
}

// settle is how the hosts' operators settle a contradiction: a node may have healed since, and one that has not is left out by its
// own operator, never by a majority of the others.
func (in choiceInput) settle(d restart.Disagreement) string {
	from, to := max(d.Index, 1), max(d.Index, 1)
	operators := map[string]bool{}
	for who := range d.Values {
		if strings.Contains(who, " previous of ") {
			to = d.Index + 1 // whose word on this one stands in the next
		}
		for _, op := range in.merged.Operators {
			if strings.HasPrefix(who, op.Evidence.Operator+"/") {
				operators[op.Evidence.Operator] = true
			}
		}
	}
	lines := []string{"each operator reads that window again, in case a node has healed:"}
	for _, name := range slices.Sorted(maps.Keys(operators)) {
		lines = append(lines, in.adds(name, from, to))
	}
	return strings.Join(append(lines, "then the same command with the new files. Whose host still differs gathers anew without it (--skip HOST, no --supplement), which",
		"makes a new id: he withdraws his files of the old one, and they are left out of the command"), "\n      ")
}

// adds is the command by which an operator adds a range to the newest of his files.
func (in choiceInput) adds(operator string, from, to uint64) string {
	file := "FILE"
	for _, op := range in.merged.Operators {
		if op.Evidence.Operator == operator && len(op.Files) > 0 {
			file = op.Files[len(op.Files)-1].Name
		}
	}
	return operator + " adds: " + supplementCommand(file, from, to)
}

func supplementCommand(file string, from, to uint64) string {
	return fmt.Sprintf("qnetops restart gather --supplement %s --from %d --to %d", shellWord(file), from, to)
}

func (in choiceInput) printProposal(w io.Writer, p restart.Proposal) error {
	if p.K == nil {
		fmt.Fprintf(w, "no K: %s\n", p.Stop)
	} else {
		t := report.Table{Head: []string{"K", fmt.Sprint(*p.K)}}
		t.Add("hash(K)", p.Hash.String())
		t.Add("digest(K)", p.Digest.String())
		t.Add("digest(K-1)", p.DigestPred.String())
		t.Add("verified by", p.Verified)
		t.Add("held by", strings.Join(p.HeldBy, ", "))
		if err := t.Write(w); err != nil {
			return err
		}
		if p.VerifiedNote != "" {
			fmt.Fprintf(w, "not verified by signatures: %s\n", p.VerifiedNote)
		}
	}
	for _, a := range p.Absent {
		fmt.Fprintf(w, "without %s: %s\n", a.Operator, a.Reason)
	}
	if err := printRefusals(w, p.Refused); err != nil {
		return err
	}
	printDisagreements(w, p.Disagreements)
	if err := printWays(w, p); err != nil {
		return err
	}
	printNeeded(w, p.Needed)
	for _, l := range p.LeftOut {
		fmt.Fprintf(w, "left out: %s: %s: %s\n", l.Name, l.Code, l.Reason)
	}
	if p.K != nil {
		forged := ""
		if in.options.Forged > 0 {
			forged = " --forged"
		}
		fmt.Fprintf(w, "next, who has the archive host: qnetops restart archive-check HOST --k %d%s -o json > archive-check.json\nnext: %s\n", *p.K, forged, in.next(p))
	}
	return nil
}

// printRefusals folds neighbours that were refused for one reason into a range.
func printRefusals(w io.Writer, list []restart.Refusal) error {
	if len(list) == 0 {
		return nil
	}
	t := report.Table{Head: []string{"refused", "why"}}
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1].Reason == list[i].Reason && list[j+1].Index+1 == list[j].Index {
			j++
		}
		span := fmt.Sprint(list[i].Index)
		if j > i {
			span = fmt.Sprintf("%d..%d", list[j].Index, list[i].Index)
		}
		t.Add(span, list[i].Reason)
		i = j + 1
	}
	return t.Write(w)
}

func printWays(w io.Writer, p restart.Proposal) error {
	if p.K == nil || len(p.Hosts) == 0 {
		return nil
	}
	t := report.Table{Head: []string{"host", "certified floor", "way to K", "because"}}
	for _, h := range p.Hosts {
		t.Add(h.ID, number(h.CertifiedFloor), h.Way, h.Reason)
	}
	return t.Write(w)
}

func printNeeded(w io.Writer, list []restart.NeededRange) {
	for _, r := range list {
		fmt.Fprintf(w, "needed from %s: macroblocks %d to %d (%s)\n", r.Operator, r.From, r.To, r.Reason)
	}
}

func runExclude(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	o, err := readExcludeOptions(c)
	if err != nil {
		return err
	}
	in, p, err := chooseK(c)
	if err != nil {
		return err
	}
	x := restart.Exclude(in.merged, p, o)
	if g.json {
		err = printJSON(s.out, x)
	} else {
		err = printExclusion(s.out, x, in.merged.LeftOut)
	}
	if err == nil && len(x.Refused) > 0 {
		hint := "correct the list; bar fewer rather than more: who is barred in error cannot vote"
		if p.K == nil {
			hint = in.next(p)
		}
		err = &refusal{text: "no list to publish: " + strings.Join(x.Refused, "\n  "), hint: hint}
	}
	return err
}

func readExcludeOptions(c *cli.Context) (restart.ExcludeOptions, error) {
	o := restart.ExcludeOptions{Drop: c.StringSlice("drop"), ListName: c.String("list")}
	added, faults := pairs(c, "add")
	if len(faults) > 0 {
		return o, &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops restart exclude --help"}
	}
	for _, p := range added {
		o.Add = append(o.Add, restart.Added{ID: p[0], Reason: p[1]})
	}
	if o.ListName == "" {
		return o, nil
	}
	data, err := readBounded(o.ListName, restart.MaxList)
	if err != nil {
		return o, err
	}
	o.List, err = restart.ParseList(o.ListName, data)
	return o, unreadableEvidence(err)
}

func printExclusion(w io.Writer, x restart.Exclusion, left []restart.LeftOut) error {
	switch {
	case len(x.Excluded) > 0:
		fmt.Fprintf(w, "bar %d of %d: %s\n", len(x.Excluded), len(x.Committee), strings.Join(x.Excluded, ", "))
	case x.Stalled != nil:
		fmt.Fprintf(w, "bar nobody of the committee of %d\n", len(x.Committee))
	}
	if x.Stalled != nil {
		fmt.Fprintf(w, "committee of macroblock %d; %d windows looked at; evidence of %s\n", *x.Stalled, len(x.Windows), strings.Join(x.Operators, ", "))
		fmt.Fprintf(w, "quorum now: %s\nquorum with the list: %s\n", quorumText(x.Before), quorumText(x.After))
		if err := printIdentities(w, x); err != nil {
			return err
		}
	}
	if len(x.Unanswered) > 0 {
		fmt.Fprintf(w, "hosts whose node did not answer: %s\n", strings.Join(x.Unanswered, ", "))
	}
	for _, text := range x.Warnings {
		fmt.Fprintf(w, "warning: %s\n", text)
	}
	for _, l := range left {
		fmt.Fprintf(w, "left out: %s: %s: %s\n", l.Name, l.Code, l.Reason)
	}
	if len(x.Refused) == 0 {
		fmt.Fprintln(w, "next: publish the list with its evidence (qnetops restart record); anyone may object before the release ships")
	}
	return nil
}

func quorumText(a restart.Arithmetic) string {
	text := fmt.Sprintf("%d of %d must sign, %d shown alive", a.Quorum, a.Committee, a.Alive)
	if a.SignedUntil > 0 {
		text += fmt.Sprintf(", %d signed until the stall", a.SignedUntil)
	}
	if a.Away > 0 {
		text += fmt.Sprintf(" (%d of them behind hosts that do not answer)", a.Away)
	}
	if a.Spare < 0 {
		return fmt.Sprintf("%s, %d too few", text, -a.Spare)
	}
	return fmt.Sprintf("%s, %d may fail", text, a.Spare)
}

// sinceText is what is known of an identity since the stall.
func sinceText(life string) string {
	switch life {
	case restart.LifeAlive:
		return "alive"
	case restart.LifeSigned:
		return "signed until the stall"
	}
	return "not shown alive"
}

func printIdentities(w io.Writer, x restart.Exclusion) error {
	t := report.Table{Head: []string{"identity", "verdict", "since the stall", "silent", "last signed", "why"}}
	for _, id := range x.Identities {
		last := "-"
		if id.LastSigned != nil {
			last = fmt.Sprint(*id.LastSigned)
		}
		t.Add(id.ID, id.Verdict, sinceText(id.Life), fmt.Sprint(id.SilentWindows), last, id.Why)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, id := range x.Identities {
		if id.With == nil {
			continue
		}
		fmt.Fprintf(w, "%s: with the entry %s; without it %s\n", id.ID, quorumText(*id.With), quorumText(*id.Without))
		fmt.Fprintf(w, "%s: if it comes back while barred nothing changes, it is filtered everywhere; un-barred and voting %s\n", id.ID, quorumText(*id.Returns))
	}
	return nil
}
