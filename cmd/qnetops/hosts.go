package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/report"
)

func hostsCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "hosts", Usage: "look at the hosts themselves: keys, engine, clock, disk, ports",
		Action: func(c *cli.Context) error {
			return &usageError{text: "hosts needs one of: check, trust, facts", hint: "qnetops hosts check"}
		},
		Subcommands: []*cli.Command{
			{Name: "check", Usage: "say what on each host would get in the way; exit 3 when something must be mended",
				Action: func(c *cli.Context) error { return runHosts(c, s, true) }},
			{Name: "facts", Usage: "show what each host is", Action: func(c *cli.Context) error { return runHosts(c, s, false) }},
			{Name: "trust", Usage: "show each unknown host key's fingerprint and remember those you confirm",
				Action: func(c *cli.Context) error { return runTrust(c, s) }},
		},
	}
}

// hostDocument is one host of hosts check and hosts facts (qnetops/hosts/v1).
type hostDocument struct {
	ID             string         `json:"id"`
	Address        string         `json:"address"`
	OK             bool           `json:"ok"`
	HostKey        string         `json:"host_key"`
	SSHServer      string         `json:"ssh_server"`
	Engine         *engineSummary `json:"engine"`
	ClockOffset    *float64       `json:"clock_offset_seconds"`
	Disks          []diskSummary  `json:"disks"`
	Container      *string        `json:"container"`
	Image          *string        `json:"image"`
	State          *string        `json:"state"`
	RestartPolicy  *string        `json:"restart_policy"`
	DataPath       *string        `json:"data_path"`
	Build          string         `json:"build"`
	Ports          []string       `json:"ports"`
	TLSTerminators []string       `json:"tls_terminators"`
	Updaters       []string       `json:"updaters"`
	LogLevel       string         `json:"log_level"`
	Stray          []string       `json:"one_shot_variables"`
	Findings       []finding      `json:"findings"`
}

type engineSummary struct {
	Version string `json:"version"`
	API     string `json:"api"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Root    string `json:"root"`
}

type diskSummary struct {
	Path       string `json:"path"`
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

type finding struct {
	Name  string `json:"name"`
	Fatal bool   `json:"fatal"`
	Text  string `json:"text"`
	Hint  string `json:"hint"`
}

// chosenHosts reads the flags and the inventory of a command that looks at the
// hosts themselves, and the ids that --only and --skip leave.
func chosenHosts(c *cli.Context, s streams) (globals, *fleet.Inventory, []string, error) {
	g, err := readGlobals(c, s)
	if err != nil {
		return g, nil, nil, err
	}
	if err := noArguments(c); err != nil {
		return g, nil, nil, err
	}
	inv, err := fleet.Load(g.hosts)
	if err != nil {
		return g, nil, nil, err
	}
	chosen, err := inv.Select(g.only, g.skip)
	if err != nil {
		return g, nil, nil, err
	}
	var ids []string
	for _, h := range chosen {
		ids = append(ids, h.ID)
	}
	return g, inv, ids, nil
}

func runHosts(c *cli.Context, s streams, check bool) error {
	g, inv, ids, err := chosenHosts(c, s)
	if err != nil {
		return err
	}
	f, err := fleet.Open(c.Context, inv, ids, fleetOptions(s, g))
	if err != nil {
		return err
	}
	defer f.Close()
	var docs []hostDocument
	var wrong []string
	reports := fleet.Check(c.Context, f)
	if err := c.Context.Err(); err != nil {
		return err
	}
	for _, r := range reports {
		docs = append(docs, describeHost(r))
		if !r.OK() {
			wrong = append(wrong, r.ID)
		}
	}
	if err := printHosts(s, g, docs, check); err != nil {
		return err
	}
	if check && len(wrong) > 0 {
		return &refusal{text: fmt.Sprintf("%d of %d hosts cannot be rolled: %s", len(wrong), len(docs), strings.Join(wrong, ", ")), hint: "mend what is listed above, then run hosts check again"}
	}
	return nil
}

func describeHost(r fleet.HostReport) hostDocument {
	d := hostDocument{ID: r.ID, Address: r.Address, OK: r.OK(), HostKey: r.HostKey, SSHServer: r.Server, Build: r.NodeBuild,
		Ports: []string{}, Disks: []diskSummary{}, TLSTerminators: append([]string{}, r.TLSTerminators...),
		Updaters: append([]string{}, r.Updaters...), LogLevel: r.LogLevel, Stray: append([]string{}, r.Stray...), Findings: []finding{}}
	if r.Engine != nil {
		d.Engine = &engineSummary{r.Engine.Version, r.Engine.API, r.Engine.OS, r.Engine.Arch, r.Engine.Root}
	}
	if r.ClockOffset != nil {
		seconds := r.ClockOffset.Seconds()
		d.ClockOffset = &seconds
	}
	for _, disk := range r.Disks {
		d.Disks = append(d.Disks, diskSummary{disk.Path, disk.FreeBytes, disk.TotalBytes})
	}
	if ct := r.Container; ct != nil {
		d.Container, d.Image, d.State, d.RestartPolicy, d.DataPath = &ct.Name, &ct.ImageRef, &ct.State, &ct.RestartPolicy, &ct.DataDir.HostPath
	}
	for _, p := range r.Ports {
		d.Ports = append(d.Ports, fmt.Sprintf("%s:%d->%d/%s", p.HostIP, p.Host, p.Container, p.Proto))
	}
	for _, f := range r.Findings {
		d.Findings = append(d.Findings, finding{f.Name, f.Fatal, f.Text, f.Hint})
	}
	return d
}

func printHosts(s streams, g globals, docs []hostDocument, check bool) error {
	if g.json {
		return printJSON(s.out, struct {
			Schema string         `json:"schema"`
			Hosts  []hostDocument `json:"hosts"`
		}{"qnetops/hosts/v1", docs})
	}
	t := report.Table{Head: []string{"host", "ok", "engine", "clock", "container", "state", "policy", "build", "log level", "data"}}
	for _, d := range docs {
		t.Add(d.ID, yesNo(d.OK), engineText(d.Engine), offsetText(d.ClockOffset), text(d.Container), text(d.State), text(d.RestartPolicy), d.Build, d.LogLevel, text(d.DataPath))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	for _, d := range docs {
		if !check {
			fmt.Fprintf(s.out, "%s: key %s; ports %s; TLS %s\n", d.ID, d.HostKey, strings.Join(d.Ports, " "), none(d.TLSTerminators))
			for _, disk := range d.Disks {
				fmt.Fprintf(s.out, "%s: %s has %.1f of %.1f GB free\n", d.ID, disk.Path, float64(disk.FreeBytes)/1e9, float64(disk.TotalBytes)/1e9)
			}
		}
		for _, f := range d.Findings {
			kind := "note"
			if f.Fatal {
				kind = "must be mended"
			}
			fmt.Fprintf(s.out, "%s: %s: %s: %s\n", d.ID, kind, f.Name, f.Text)
			if f.Hint != "" {
				fmt.Fprintf(s.out, "    hint: %s\n", f.Hint)
			}
		}
	}
	return nil
}

func runTrust(c *cli.Context, s streams) error {
	g, inv, ids, err := chosenHosts(c, s)
	if err != nil {
		return err
	}
	options := fleetOptions(s, g)
	if g.dryRun {
		options.Prompt = &noPrompter{prompter{s: s}}
	} else if g.yes {
		options.Prompt = &yesPrompter{prompter{s: s}}
	} else if !s.ask {
		return &usageError{text: "host keys are confirmed by a person and nobody can be asked here", hint: "run it on a terminal; --yes accepts every unknown key unseen, which only a rehearsal should do"}
	}
	results, err := fleet.Trust(c.Context, inv, ids, options)
	if err != nil {
		return err
	}
	return printTrust(s, g, results)
}

// yesPrompter confirms unknown keys after showing them; changed keys are
// refused by fleet whatever is answered.
type yesPrompter struct{ prompter }

// Confirm shows the question and answers yes.
func (p *yesPrompter) Confirm(_ context.Context, question string) (bool, error) {
	fmt.Fprintf(p.s.err, "%s yes (--yes)\n", question)
	return true, nil
}

// noPrompter shows every unknown key and confirms none.
type noPrompter struct{ prompter }

// Confirm shows the question and answers no.
func (p *noPrompter) Confirm(_ context.Context, question string) (bool, error) {
	fmt.Fprintf(p.s.err, "%s no (--dry-run)\n", question)
	return false, nil
}

func printTrust(s streams, g globals, results []fleet.TrustResult) error {
	type entry struct {
		Host        string `json:"host"`
		Address     string `json:"address"`
		Fingerprint string `json:"fingerprint"`
		Outcome     string `json:"outcome"`
		Error       string `json:"error,omitempty"`
	}
	var entries []entry
	var bad []string
	t := report.Table{Head: []string{"host", "address", "outcome", "key"}}
	for _, r := range results {
		e := entry{Host: r.Host, Address: r.Address, Fingerprint: r.Fingerprint, Outcome: string(r.Outcome)}
		if r.Err != nil {
			e.Error = r.Err.Error()
		}
		entries = append(entries, e)
		t.Add(e.Host, e.Address, e.Outcome, e.Fingerprint+" "+e.Error)
		if r.Outcome != fleet.TrustKnown && r.Outcome != fleet.TrustAdded {
			bad = append(bad, r.Host)
		}
	}
	var err error
	if g.json {
		err = printJSON(s.out, struct {
			Schema string  `json:"schema"`
			Hosts  []entry `json:"hosts"`
		}{"qnetops/trust/v1", entries})
	} else {
		err = t.Write(s.out)
	}
	if err == nil && len(bad) > 0 {
		err = &refusal{text: "not trusted: " + strings.Join(bad, ", "), hint: "compare the fingerprint with the host's console; a changed key is never replaced here (ssh-keygen -R removes the old one)"}
	}
	return err
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func text(v *string) string {
	if v == nil || *v == "" {
		return "-"
	}
	return *v
}

func none(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func engineText(e *engineSummary) string {
	if e == nil {
		return "?"
	}
	return e.Version + " (API " + e.API + ")"
}

func offsetText(v *float64) string {
	if v == nil {
		return "?"
	}
	return time.Duration(*v * float64(time.Second)).Round(time.Millisecond).String()
}
