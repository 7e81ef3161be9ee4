package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

// maxBuildText bounds the build instructions, in bytes.
const maxBuildText = 1 << 20

func recordCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "record", Usage: "write and sign the folder that is published before a restart is executed; exit 3 when it must not be", ArgsUsage: "EVIDENCE…",
		Description: "EVIDENCE is as for propose-k. K and the list of those barred are computed anew, by the same flags as for propose-k and exclude.\n" +
			"A trigger that does not hold is overridden by --waive trigger=REASON, which is published.",
		Flags: append(restartExclude(s).Flags, // K and the list are asked for in the same words
			&cli.StringFlag{Name: "out", Usage: "the folder to make, `DIR`"},
			&cli.StringFlag{Name: "manifest", Usage: "write only the manifest, to `FILE` (.toml, .json or .rs), for the release that is still to be cut"},
			&cli.StringFlag{Name: "archive-check", Usage: "what restart archive-check HOST -o json printed, `FILE`"},
			&cli.StringFlag{Name: "commit", Usage: "the release: `COMMIT` of the node's source, 7 to 40 hex digits"},
			&cli.StringFlag{Name: "image", Usage: "the release: `REPOSITORY@sha256:…`"},
			&cli.StringFlag{Name: "build", Usage: "how anyone builds that image from that commit, a text in `FILE`"},
			&cli.StringFlag{Name: "start-at", Usage: "nobody starts before this `TIME`, such as 2026-03-01T18:00:00Z"},
			&cli.StringFlag{Name: "rollback-useless", Usage: "no rollback was done because it would not help: `REASON` (published)"},
			&cli.StringFlag{Name: "operator", EnvVars: []string{"QNETOPS_OPERATOR"}, Usage: "your `NAME` in the allowed-signers file (default: user@machine)"},
			&cli.StringFlag{Name: "sign-key", Usage: "the SSH key to sign with, `FILE`; a .pub file means the agent's key (default: the agent's only key)"},
		),
		Action: func(c *cli.Context) error { return runRecord(c, s) },
	}
}

// recordDocumentJSON is the answer of restart record (qnetops/restartrecord/v1); the record itself has a schema of its own.
type recordDocumentJSON struct {
	Schema       string         `json:"schema"`
	Folder       *string        `json:"folder"` // null: nothing was written
	RecordSHA256 string         `json:"record_sha256"`
	Record       restart.Record `json:"record"`
}

func runRecord(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	in, err := readRecordInput(c, s, g)
	if err != nil {
		return err
	}
	if path := c.String("manifest"); path != "" {
		return draftManifest(s, path, in)
	}
	signer, done, err := openSignKey(c.Context, s, c.String("sign-key"))
	if err != nil {
		return err
	}
	defer done()
	r, folder, err := restart.NewRecord(in, signer, renderRecord)
	if err != nil {
		return refusedRecord(err)
	}
	doc := recordDocumentJSON{Schema: "qnetops/restartrecord/v1", RecordSHA256: restart.FileHash(folder[restart.RecordName]), Record: r}
	if dir := c.String("out"); !g.dryRun {
		if err := folder.Write(dir); err != nil {
			return unusableFolder(err)
		}
		doc.Folder = &dir
	}
	if g.json {
		return printJSON(s.out, doc)
	}
	return printRecord(s, doc)
}

// refusedRecord is why there is no record: the evidence does not allow one, or a file cannot be read.
func refusedRecord(err error) error {
	var refused *restart.RecordRefused
	if errors.As(err, &refused) {
		return &refusal{text: refused.Error(), hint: refused.Hint()}
	}
	return unreadableEvidence(err)
}

// draftManifest writes the manifest of a record whose release does not exist yet.
func draftManifest(s streams, path string, in restart.RecordInput) error {
	m, err := restart.DraftManifest(in)
	if err != nil {
		return refusedRecord(err)
	}
	var data []byte
	switch strings.ToLower(filepath.Ext(path)) {
	case ".rs":
		data = []byte(manifest.Render(m))
	case ".json":
		data, err = m.JSON()
	default:
		data, err = m.TOML()
	}
	if err != nil {
		return err
	}
	if err := writeNew(path, data); err != nil {
		return &usageError{text: err.Error(), hint: "name a file that is not there yet; a manifest is never written over"}
	}
	fmt.Fprintf(s.out, "%s is written: %s\nnext: cut the release with it (qnetops manifest render %s --patch genesis_constants.rs), then restart record with its commit and digest\n",
		path, manifestSummary(m), path)
	return nil
}

func unusableFolder(err error) error {
	var folder *restart.FolderError
	if errors.As(err, &folder) {
		return &usageError{text: folder.Error(), hint: folder.Hint()}
	}
	return err
}

// readRecordInput reads flags and files; everything that is missing or cannot be read is named at once.
func readRecordInput(c *cli.Context, s streams, g globals) (restart.RecordInput, error) {
	in := restart.RecordInput{Tool: "qnetops " + version, Operator: c.String("operator"), Now: time.Now(), RollbackUseless: strings.TrimSpace(c.String("rollback-useless")),
		Release: restart.Release{Commit: c.String("commit"), Image: c.String("image")}}
	if in.Operator == "" {
		in.Operator = operator(s)
	}
	var faults []error
	note := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	note(recordFlags(c, g, &in))
	inv, err := fleet.Load(g.hosts)
	note(err)
	if err == nil {
		in.Fleet, in.Block = inv.Name, inv.Block
	}
	note(readRecordFiles(c, &in))
	options, err := readProposeOptions(c)
	note(err)
	exclude, err := readExcludeOptions(c)
	note(err)
	in.Choice = restart.RecordChoice{Below: options.Below, Forged: options.Forged, Absent: options.Absent, Add: exclude.Add, Drop: exclude.Drop, List: exclude.List}
	if exclude.ListName != "" {
		in.Choice.ListName = filepath.Base(exclude.ListName)
	}
	return in, errors.Join(faults...)
}

// recordFlags checks the flags that need no file.
func recordFlags(c *cli.Context, g globals, in *restart.RecordInput) error {
	var faults []string
	required := []string{"allowed-signers", "archive-check", "commit", "image", "build", "start-at"}
	switch {
	case c.String("manifest") != "" && g.dryRun:
		faults = append(faults, "--manifest writes a file, --dry-run writes none: use one of them")
	case c.String("manifest") != "":
		required = required[:1]
	case !g.dryRun:
		required = append(required, "out")
	}
	for _, name := range required {
		if c.String(name) == "" {
			faults = append(faults, "--"+name+" is missing")
		}
	}
	if c.NArg() == 0 {
		faults = append(faults, "no evidence is named")
	}
	if text := c.String("start-at"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			faults = append(faults, fmt.Sprintf("--start-at %q is no time: want one such as 2026-03-01T18:00:00Z", text))
		}
		in.StartAt = at
	}
	for _, w := range g.waivers {
		in.Waived = w.Reason // of the trigger, a record has no other check that can be waived
	}
	if len(faults) > 0 {
		return &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops restart record --help"}
	}
	return nil
}

func readRecordFiles(c *cli.Context, in *restart.RecordInput) error {
	var faults []error
	read := func(flag string, limit int64) []byte {
		if c.String(flag) == "" {
			return nil
		}
		data, err := readBounded(c.String(flag), limit)
		if err != nil {
			faults = append(faults, err)
		}
		return data
	}
	if in.Signers = read("allowed-signers", restart.MaxSigners); in.Signers != nil {
		_, err := restart.ParseAllowedSigners(c.String("allowed-signers"), in.Signers)
		faults = append(faults, unreadableEvidence(err))
	}
	in.Release.Build = string(read("build", maxBuildText))
	if data := read("archive-check", restart.MaxArchive); data != nil {
		archive, err := restart.DecodeArchive(c.String("archive-check"), data)
		in.Archive = archive
		faults = append(faults, unreadableEvidence(err))
	}
	files, err := readEvidence(c.Args().Slice())
	in.Files = files
	return errors.Join(append(faults, err)...)
}

func printRecord(s streams, doc recordDocumentJSON) error {
	r := doc.Record
	t := report.Table{Head: []string{"K", fmt.Sprint(r.K)}}
	t.Add("hash(K)", r.Hash.String())
	t.Add("digest(K)", r.Digest.String())
	t.Add("digest(K-1)", r.DigestPred.String())
	t.Add("start", utc(r.StartAt))
	t.Add("release", r.Release.Commit+" "+r.Release.Image)
	t.Add("archive host", r.Archive.Fleet+"/"+r.Archive.Host)
	t.Add("barred", none(r.Exclusion.Excluded))
	t.Add("needed", quorumText(r.Exclusion.After))
	t.Add("trigger", fmt.Sprintf("%s, %s", r.Trigger.Kind, r.Trigger.Verdict))
	t.Add("record.json", "SHA-256 "+doc.RecordSHA256)
	if err := t.Write(s.out); err != nil {
		return err
	}
	if r.Trigger.Waived != "" {
		fmt.Fprintf(s.out, "the trigger is waived: %s\n", r.Trigger.Waived)
	}
	for _, w := range r.Exclusion.Warnings {
		fmt.Fprintf(s.out, "warning: %s\n", w)
	}
	if r.Archive.StopNow != nil {
		fmt.Fprintf(s.out, "stop the node on %s at once: the chain runs on and will prune its state\n", *r.Archive.StopNow)
	}
	if doc.Folder == nil {
		fmt.Fprintln(s.out, "nothing was written (--dry-run)")
		return nil
	}
	fmt.Fprintf(s.out, "%s is written. Publish it whole, and say the SHA-256 of record.json to the others over another channel.\n", *doc.Folder)
	fmt.Fprintf(s.out, "next, each operator from his own hosts: qnetops restart verify-record --allowed-signers FILE %s\n", filepath.Base(*doc.Folder))
	return nil
}

func verifyRecordCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "verify-record", Usage: "recompute a published record from its evidence and from your own hosts; exit 3 when anything differs", ArgsUsage: "FOLDER",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "allowed-signers", Usage: "the operators and their keys as you know them, `FILE`; never the one in the folder"},
		},
		Action: func(c *cli.Context) error { return runVerifyRecord(c, s) },
	}
}

func runVerifyRecord(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	dir, err := oneArgument(c, "folder of a record")
	if err != nil {
		return err
	}
	if c.String("allowed-signers") == "" {
		return &usageError{text: "without --allowed-signers nobody's signature counts", hint: "give your own file, not the one in the folder: whoever forged a record forged that too"}
	}
	in, r, err := readVerifyInput(c, dir)
	if err != nil {
		return err
	}
	if within(dir, c.String("allowed-signers")) {
		return &usageError{text: c.String("allowed-signers") + " lies in the folder that it is to judge", hint: "give your own file: whoever forged a record forged that too"}
	}
	if in.Own, in.Block, err = gatherOwn(c.Context, s, g, r); err != nil {
		return err
	}
	in.Now = time.Now()
	v, err := restart.VerifyRecord(in)
	if err != nil {
		return unreadableEvidence(err)
	}
	if g.json {
		err = printJSON(s.out, v)
	} else {
		err = printVerification(s, v)
	}
	if err == nil && !v.OK {
		err = &refusal{text: fmt.Sprintf("the record in %s does not hold: %d differences", dir, len(v.Differences)), hint: "do not act on it; show the differences to who published it, over another channel"}
	}
	return err
}

// within says whether a path leads into a folder, also by links.
func within(dir, path string) bool {
	dir, errDir := filepath.EvalSymlinks(dir)
	path, errPath := filepath.EvalSymlinks(path)
	if errDir != nil || errPath != nil {
		return false // reading them says what is wrong
	}
	dir, errDir = filepath.Abs(dir)
	path, errPath = filepath.Abs(path)
	rel, err := filepath.Rel(dir, path)
	return errDir == nil && errPath == nil && err == nil && filepath.IsLocal(rel)
}

// readVerifyInput reads the folder and the verifier's own signers before any host is asked.
func readVerifyInput(c *cli.Context, dir string) (restart.VerifyInput, restart.Record, error) {
	in := restart.VerifyInput{Render: renderRecord}
	path := c.String("allowed-signers")
	data, errSigners := readBounded(path, restart.MaxSigners)
	if errSigners == nil {
		in.Signers, errSigners = restart.ParseAllowedSigners(path, data)
	}
	folder, errFolder := restart.ReadFolder(dir)
	var r restart.Record
	if errFolder == nil {
		r, errFolder = restart.DecodeRecord(filepath.Join(dir, restart.RecordName), folder[restart.RecordName])
	}
	in.Folder = folder
	return in, r, errors.Join(unreadableEvidence(errSigners), unreadableEvidence(unusableFolder(errFolder)))
}

// gatherOwn reads K and the macroblock before it, and the newest ones, from the nodes of the one who verifies.
func gatherOwn(ctx context.Context, s streams, g globals, r restart.Record) (restart.Evidence, time.Duration, error) {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return restart.Evidence{}, 0, err
	}
	defer f.Close()
	chosen, err := inv.Select(g.only, g.skip)
	if err != nil {
		return restart.Evidence{}, 0, err
	}
	var ids []string
	for _, h := range chosen {
		ids = append(ids, h.ID)
	}
	ranges := []restart.IndexRange{{From: max(r.K, 2) - 1, To: max(r.K, 2)}}
	now := time.Now()
	ev, err := restart.Gather(ctx, restart.FleetHosts(ctx, f, ids), restart.Options{Fleet: inv.Name, Operator: operator(s), ID: restart.NewID(), Number: 1,
		Tool: "qnetops " + version, Now: now, Ranges: ranges, Block: inv.Block, Progress: gatherProgress(s, g)})
	var nothing *restart.NothingError
	if errors.As(err, &nothing) {
		// The rest of the record can still be judged, and that nobody shows K is a difference of its own.
		ev, err = restart.Evidence{Operator: operator(s), TakenAt: now, Hosts: []restart.HostFinding{}}, nil
		for i, id := range nothing.Hosts {
			ev.Hosts = append(ev.Hosts, restart.HostFinding{ID: id, Reason: nothing.Reasons[i]})
		}
	}
	return ev, inv.Block, err
}

func printVerification(s streams, v restart.Verification) error {
	if len(v.Differences) > 0 {
		t := report.Table{Head: []string{"where", "code", "difference"}}
		for _, d := range v.Differences {
			t.Add(d.Where, d.Code, d.What)
		}
		if err := t.Write(s.out); err != nil {
			return err
		}
	}
	for _, n := range v.Notes {
		fmt.Fprintf(s.out, "note: %s\n", n)
	}
	fmt.Fprintf(s.out, "record.json has the SHA-256 %s: compare it with %s over another channel\n", v.RecordSHA256, v.Operator)
	if v.OK {
		if v.Waived != nil {
			fmt.Fprintf(s.out, "its trigger does not hold and is waived by %s: %s\n", v.Waived.By, v.Waived.Reason)
		}
		fmt.Fprintf(s.out, "the record holds: K %d, signed by %s with %s, shown by your hosts %s; start %s\n", v.K, v.Operator, v.Key, strings.Join(v.Shown, ", "), utc(v.StartAt))
	}
	return nil
}
