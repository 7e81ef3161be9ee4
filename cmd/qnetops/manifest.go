package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/internal/tomlfile"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/report"
)

func manifestCommand(s streams) *cli.Command {
	committee := []cli.Flag{
		&cli.StringFlag{Name: "committee", Usage: "members of the committee at the stall, by `ID`s with commas: barred ids must be among them"},
		&cli.StringFlag{Name: "alive", Usage: "members shown alive, by `ID`s with commas: enough must remain to seal"},
	}
	return &cli.Command{
		Name: "manifest", Usage: "the restart manifest of a release: validate, render, parse, compare",
		Action: func(c *cli.Context) error {
			return &usageError{text: "manifest needs one of: validate, render, parse, diff", hint: "qnetops manifest validate FILE; FILE is .toml, .json, or the node's genesis_constants.rs"}
		},
		Subcommands: []*cli.Command{
			{Name: "validate", Usage: "would a node start with it, and is it what was meant; exit 3 when not", ArgsUsage: "FILE", Flags: committee,
				Action: func(c *cli.Context) error { return runManifestValidate(c, s) }},
			{Name: "render", Usage: "print the constants for the node's source, or a patch of it", ArgsUsage: "FILE",
				Flags:  []cli.Flag{&cli.StringFlag{Name: "patch", Usage: "print the change to this genesis_constants.rs, `FILE`, as a unified diff"}},
				Action: func(c *cli.Context) error { return runManifestRender(c, s) }},
			{Name: "parse", Usage: "read the constants back from the node's source", ArgsUsage: "GENESIS_CONSTANTS_RS",
				Action: func(c *cli.Context) error { return runManifestParse(c, s) }},
			{Name: "diff", Usage: "name the fields in which two manifests differ, whatever their forms", ArgsUsage: "A B",
				Flags:  []cli.Flag{&cli.BoolFlag{Name: "check", Usage: "exit 3 when they differ"}},
				Action: func(c *cli.Context) error { return runManifestDiff(c, s) }},
		},
	}
}

// unreadableFile makes a file that cannot be read the operator's to correct.
func unreadableFile(err error) error {
	var file *manifest.FileError
	if errors.As(err, &file) {
		return &usageError{text: file.Error(), hint: file.Hint()}
	}
	return err
}

func loadManifest(path string) (manifest.Loaded, error) {
	l, err := manifest.Load(path)
	return l, unreadableFile(err)
}

type manifestFinding struct {
	Code string `json:"code"`
	Line *int   `json:"line"`
	Text string `json:"text"`
	Key  string `json:"key"`
}

func manifestFindings(l manifest.Loaded, known manifest.Known) []manifestFinding {
	out := []manifestFinding{}
	for _, f := range manifest.Validate(l.Manifest, known) {
		found := manifestFinding{Code: f.Code, Text: f.Text, Key: f.Key}
		if p := l.At(f.Key); p.Line > 0 {
			found.Line = &p.Line
		}
		out = append(out, found)
	}
	return out
}

// refused says which rules a manifest breaks.
func refusedManifest(l manifest.Loaded, found []manifestFinding) error {
	var codes []string
	for _, f := range found {
		codes = append(codes, f.Code)
	}
	return &refusal{text: fmt.Sprintf("%s is no manifest to release: %s", l.Name, strings.Join(codes, ", ")), hint: "a code without tool_ is the node's own: it would refuse to start"}
}

func (f manifestFinding) text(name string) string {
	place := name
	if f.Line != nil {
		place = fmt.Sprintf("%s:%d", name, *f.Line)
	}
	return fmt.Sprintf("%s: %s: %s: %s", place, f.Key, f.Code, f.Text)
}

func runManifestValidate(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	path, err := oneArgument(c, "manifest")
	if err != nil {
		return err
	}
	known := manifest.Known{Committee: splitIDs(c.String("committee")), Alive: splitIDs(c.String("alive"))}
	if len(known.Alive) > 0 && len(known.Committee) == 0 {
		return &usageError{text: "--alive needs --committee: a quorum is one of a committee", hint: "qnetops manifest validate FILE --committee IDS --alive IDS"}
	}
	l, err := loadManifest(path)
	if err != nil {
		return err
	}
	found := manifestFindings(l, known)
	if g.json {
		err = printJSON(s.out, struct {
			Schema string            `json:"schema"`
			OK     bool              `json:"ok"`
			Active bool              `json:"restart"`
			Errors []manifestFinding `json:"errors"`
		}{"qnetops/manifestvalidate/v1", len(found) == 0, l.Active(), found})
		if err != nil {
			return err
		}
	} else {
		for _, f := range found {
			fmt.Fprintln(s.out, f.text(path))
		}
	}
	if len(found) > 0 {
		return refusedManifest(l, found)
	}
	if !g.json {
		fmt.Fprintf(s.out, "%s is wellformed: %s\n", path, manifestSummary(l.Manifest))
	}
	return nil
}

// manifestSummary says in a line what a release with this manifest does.
func manifestSummary(m manifest.Manifest) string {
	switch {
	case m.Active() && len(m.Restart.Excluded) == 0:
		return fmt.Sprintf("restart from macroblock %d, nobody barred", m.Restart.ResumeFromMB)
	case m.Active():
		return fmt.Sprintf("restart from macroblock %d, %d identities barred", m.Restart.ResumeFromMB, len(m.Restart.Excluded))
	case m.Pin.Index > 0:
		return fmt.Sprintf("no restart, pinned at macroblock %d", m.Pin.Index)
	}
	return "no restart and no pin (inert)"
}

func runManifestRender(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	path, err := oneArgument(c, "manifest")
	if err != nil {
		return err
	}
	l, err := loadManifest(path)
	if err != nil {
		return err
	}
	if found := manifestFindings(l, manifest.Known{}); len(found) > 0 {
		for _, f := range found {
			fmt.Fprintln(s.err, f.text(path))
		}
		return refusedManifest(l, found)
	}
	var patch *string
	if target := c.String("patch"); target != "" {
		src, err := manifest.ReadFile(target)
		if err != nil {
			return unreadableFile(err)
		}
		text, err := manifest.UnifiedDiff(target, src, l.Manifest)
		if err != nil {
			return err
		}
		patch = &text
	}
	constants := manifest.Render(l.Manifest)
	switch {
	case g.json:
		return printJSON(s.out, struct {
			Schema    string  `json:"schema"`
			Constants string  `json:"constants"`
			Patch     *string `json:"patch"`
		}{"qnetops/manifestrender/v1", constants, patch})
	case patch == nil:
		fmt.Fprint(s.out, constants)
	case *patch == "":
		fmt.Fprintf(s.err, "%s holds these values already\n", c.String("patch"))
	default:
		fmt.Fprint(s.out, *patch)
	}
	return nil
}

func runManifestParse(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	path, err := oneArgument(c, "genesis_constants.rs")
	if err != nil {
		return err
	}
	src, err := manifest.ReadFile(path)
	if err != nil {
		return unreadableFile(err)
	}
	l, err := manifest.Parse(path, src)
	if err != nil {
		return err
	}
	if g.json {
		return printJSON(s.out, l.Document())
	}
	text, err := l.TOML()
	if err != nil {
		return err
	}
	_, err = s.out.Write(text)
	return err
}

func runManifestDiff(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	if c.NArg() != 2 {
		return &usageError{text: fmt.Sprintf("manifest diff takes two manifests, got %d arguments", c.NArg()), hint: "qnetops manifest diff A B; each is .toml, .json, or genesis_constants.rs"}
	}
	a, errA := loadManifest(c.Args().Get(0))
	b, errB := loadManifest(c.Args().Get(1))
	if err := joinFaults(errA, errB); err != nil {
		return err
	}
	differences := append([]manifest.Difference{}, manifest.Diff(a.Manifest, b.Manifest)...)
	if g.json {
		err = printJSON(s.out, struct {
			Schema      string                `json:"schema"`
			Equal       bool                  `json:"equal"`
			Differences []manifest.Difference `json:"differences"`
			OnlyA       []string              `json:"barred_only_in_a"`
			OnlyB       []string              `json:"barred_only_in_b"`
		}{"qnetops/manifestdiff/v1", len(differences) == 0, differences, append([]string{}, manifest.OnlyIn(a.Manifest, b.Manifest)...), append([]string{}, manifest.OnlyIn(b.Manifest, a.Manifest)...)})
	} else {
		err = printManifestDiff(s, a, b, differences)
	}
	if err == nil && c.Bool("check") && len(differences) > 0 {
		err = &refusal{text: fmt.Sprintf("the manifests differ in %d fields", len(differences)), hint: "nothing may be released before all operators have the same one"}
	}
	return err
}

// joinFaults keeps the lists of faults of two files one list.
func joinFaults(errs ...error) error {
	var all tomlfile.Problems
	for _, err := range errs {
		var p tomlfile.Problems
		if err != nil && !errors.As(err, &p) {
			return errors.Join(errs...)
		}
		all = append(all, p...)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

func printManifestDiff(s streams, a, b manifest.Loaded, differences []manifest.Difference) error {
	if len(differences) == 0 {
		fmt.Fprintln(s.out, "the same")
		return nil
	}
	t := report.Table{Head: []string{"field", a.Name, b.Name}}
	for _, d := range differences {
		if d.Key == manifest.KeyExcluded {
			t.Add(d.Key, idsText(a, b), idsText(b, a))
			continue
		}
		t.Add(d.Key, d.A, d.B)
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, side := range []struct {
		name string
		ids  []string
	}{{a.Name, manifest.OnlyIn(a.Manifest, b.Manifest)}, {b.Name, manifest.OnlyIn(b.Manifest, a.Manifest)}} {
		if len(side.ids) > 0 {
			fmt.Fprintf(s.out, "barred only in %s: %s\n", side.name, strings.Join(side.ids, ", "))
		}
	}
	return nil
}

// idsText is a list of barred ids in a cell; the ids that only one side has are printed below the table.
func idsText(l, other manifest.Loaded) string {
	text := fmt.Sprintf("%d ids", len(l.Restart.Excluded))
	if len(manifest.OnlyIn(l.Manifest, other.Manifest))+len(manifest.OnlyIn(other.Manifest, l.Manifest)) == 0 {
		text += ", ordered or repeated otherwise"
	}
	return text
}
