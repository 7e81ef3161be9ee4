package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

// maxVerifyDocument bounds another operator's document, in bytes.
const maxVerifyDocument = 16 << 20

func signersFlag() cli.Flag {
	return &cli.StringFlag{Name: "allowed-signers", Usage: "the operators and their keys as you know them, `FILE`; never the one in the folder"}
}

func restartVerifyCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "is the restarted chain the one of the record, and does it seal; exit 3 when not", ArgsUsage: "FOLDER [DOCUMENT…]",
		Description: "It only reads. DOCUMENT is what restart verify -o json printed for another operator: where the record has evidence of several, the\n" +
			"nodes of three of them must show the same newest macroblock.",
		Flags: []cli.Flag{signersFlag(),
			&cli.StringFlag{Name: "operator", EnvVars: []string{"QNETOPS_OPERATOR"}, Usage: "your `NAME` in the document (default: user@machine)"}},
		Action: func(c *cli.Context) error {
			return runRestartVerify(c, s, func(g globals, v cutover.RestartValues, doc cutover.RestartVerify) error {
				return answerRestartVerify(s, g, doc)
			})
		},
	}
}

func restartRetireCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "retire", Usage: "may the next release drop the manifest, and what must it hold; exit 3 when not yet", ArgsUsage: "FOLDER [DOCUMENT…]",
		Description: "It only reads, and asks for 14,400 sealed blocks above K on every node. The pin stays in every case; whether the barred identities may\n" +
			"come back is a choice to publish. Letting them back is a cut-over: restart unbar.",
		Flags: []cli.Flag{signersFlag()},
		Action: func(c *cli.Context) error {
			return runRestartVerify(c, s, func(g globals, v cutover.RestartValues, doc cutover.RestartVerify) error {
				return answerRetire(s, g, cutover.Retire(v, doc))
			})
		},
	}
}

func runRestartVerify(c *cli.Context, s streams, answer func(globals, cutover.RestartValues, cutover.RestartVerify) error) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	if c.NArg() == 0 {
		return &usageError{text: c.Command.Name + " needs the folder of the record", hint: "qnetops restart " + c.Command.Name + " --help"}
	}
	r, sha, err := readSignedRecord(c, c.Args().First())
	if err != nil {
		return err
	}
	docs, err := readVerifyDocuments(c.Args().Tail())
	if err != nil {
		return err
	}
	v := cutover.ValuesOf(r, sha)
	doc, err := verifyFleet(c.Context, s, g, v, firstText(c.String("operator"), operator(s)), docs)
	if err != nil {
		return err
	}
	return answer(g, v, doc)
}

func firstText(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func verifyFleet(ctx context.Context, s streams, g globals, v cutover.RestartValues, by string, docs []cutover.RestartVerify) (cutover.RestartVerify, error) {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return cutover.RestartVerify{}, err
	}
	defer f.Close()
	chosen, err := inv.Select(g.only, g.skip)
	if err != nil {
		return cutover.RestartVerify{}, err
	}
	var ids []string
	for _, h := range chosen {
		ids = append(ids, h.ID)
	}
	return cutover.VerifyRestart(ctx, f, ids, v, by, docs)
}

// readSignedRecord reads a record that its operator signed with a key that the
// reader knows. What it rests on was verified before the restart; its trigger no
// longer holds once the chain goes on.
func readSignedRecord(c *cli.Context, dir string) (restart.Record, string, error) {
	if c.String("allowed-signers") == "" {
		return restart.Record{}, "", &usageError{text: "without --allowed-signers nobody's signature counts", hint: "give your own file, not the one in the folder"}
	}
	in, r, err := readVerifyInput(c, dir)
	if err != nil {
		return r, "", err
	}
	data := in.Folder[restart.RecordName]
	signed, err := restart.Verify(in.Signers, data, in.Folder[restart.RecordName+restart.SigSuffix], r.CreatedAt)
	if err == nil && !slices.Contains(signed.Principals, r.Operator) {
		err = fmt.Errorf("it is signed with a key of %s, not of %s, who says that he published it", strings.Join(signed.Principals, ", "), clip(r.Operator))
	}
	if err != nil {
		return r, "", &refusal{text: fmt.Sprintf("the record in %s does not count: %v", dir, err), hint: "qnetops restart verify-record shows every difference"}
	}
	return r, restart.FileHash(data), nil
}

// clip keeps foreign text on one line of a terminal.
func clip(s string) string { return fmt.Sprintf("%.80q", s) }

func readVerifyDocuments(files []string) ([]cutover.RestartVerify, error) {
	var docs []cutover.RestartVerify
	var faults []string
	for _, file := range files {
		data, err := readBounded(file, maxVerifyDocument)
		if err == nil {
			var d cutover.RestartVerify
			if d, err = cutover.DecodeRestartVerify(data); err == nil {
				docs = append(docs, d)
			}
		}
		if err != nil {
			faults = append(faults, filepath.Base(file)+": "+err.Error())
		}
	}
	if len(faults) > 0 {
		return nil, &usageError{text: strings.Join(faults, "\n  "), hint: "give what restart verify -o json printed for the other operators"}
	}
	return docs, nil
}

func answerRestartVerify(s streams, g globals, doc cutover.RestartVerify) error {
	if g.json {
		if err := printJSON(s.out, doc); err != nil {
			return err
		}
	} else if err := printRestartVerify(s, doc); err != nil {
		return err
	}
	if doc.OK {
		return nil
	}
	return &refusal{text: "the restart is not shown to hold: " + failing(doc.Checks), hint: "docs/restart-execute.md says what each check means; nodes that join need some time"}
}

func failing(checks []observe.Check) string {
	var out []string
	for _, c := range checks {
		if c.Verdict != observe.Pass {
			out = append(out, c.Name+" "+string(c.Verdict))
		}
	}
	return strings.Join(out, ", ")
}

func printJudged(s streams, checks []observe.Check) error {
	t := report.Table{Head: []string{"check", "verdict", "reason"}}
	for _, c := range checks {
		t.Add(c.Name, string(c.Verdict), c.Reason)
	}
	return t.Write(s.out)
}

func printRestartVerify(s streams, doc cutover.RestartVerify) error {
	if err := printJudged(s, doc.Checks); err != nil {
		return err
	}
	t := report.Table{Head: []string{"host", "state", "height", "sealed", "set aside"}}
	for _, h := range doc.Hosts {
		t.Add(h.ID, h.State, optional(h.Height), optional(h.Sealed), strings.Join(h.Asides, ", "))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, o := range doc.OldSide {
		fmt.Fprintf(s.out, "old side: %s %s\n", o.ID, o.Why)
	}
	if doc.Index != nil {
		fmt.Fprintf(s.out, "compare with the others: macroblock %d has hash %s\n", *doc.Index, doc.Hash)
	}
	if doc.OK {
		fmt.Fprintf(s.out, "the chain goes on from macroblock %d\n", doc.K)
	}
	return nil
}

func answerRetire(s streams, g globals, doc cutover.RestartRetire) error {
	if g.json {
		if err := printJSON(s.out, doc); err != nil {
			return err
		}
	} else if err := printRetire(s, doc); err != nil {
		return err
	}
	if doc.OK {
		return nil
	}
	return &refusal{text: "the manifest must not be retired yet: " + failing(doc.Checks), hint: "qnetops restart verify shows how the chain stands"}
}

func printRetire(s streams, doc cutover.RestartRetire) error {
	if err := printJudged(s, doc.Checks); err != nil || !doc.OK {
		return err
	}
	fmt.Fprintf(s.out, "The next release keeps WS_CHECKPOINT and both digests at macroblock %d.\n", doc.K)
	if len(doc.Barred) == 0 {
		fmt.Fprintf(s.out, "Nobody is barred, so RESTART_MANIFEST is cleared:\n\n%s", manifest.Render(doc.Cleared))
		return nil
	}
	fmt.Fprintf(s.out, "Barred: %s. Publish which of the two it is:\n\nThey stay barred, the manifest stays as it is:\n\n%s\n", strings.Join(doc.Barred, ", "), manifest.Render(doc.Kept))
	fmt.Fprintf(s.out, "They may come back, RESTART_MANIFEST is cleared. All nodes change to that release at one moment (restart unbar), never one by one:\n\n%s", manifest.Render(doc.Cleared))
	return nil
}
