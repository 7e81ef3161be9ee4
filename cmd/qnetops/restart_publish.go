package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

// archivePatience bounds one question to a node, in real time: it is the network's, not the chain's.
const archivePatience = 30 * time.Second

func archiveCheckCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "archive-check", Usage: "would nodes that join find the state of K on this host; exit 3 when not", ArgsUsage: "HOST",
		Flags: []cli.Flag{
			&cli.Uint64Flag{Name: "k", Usage: "macroblock to resume from, `K` (default: the last one that HOST has sealed)"},
			&cli.BoolFlag{Name: "forged", Usage: "finality is forged and the chain runs on: the host will be stopped to keep its state"},
			&cli.IntFlag{Name: "joiners", Usage: "`N` nodes will fetch the state, those of other operators counted (default: all other hosts)"},
			&cli.StringFlag{Name: "address", Usage: "`HOST:PORT` at which other hosts reach its node (default: its address and API port in hosts.toml)"},
			&cli.IntFlag{Name: "sample", Value: 16, Usage: "ask for `N` macroblocks and blocks beside the first and the last"},
			&cli.Uint64Flag{Name: "seed", Usage: "of the sample, `N`, to repeat one (default: drawn)"},
			&cli.IntFlag{Name: "read-mb", Value: 16, Usage: "read at most `MB` of the snapshot to measure the rate"},
		},
		Action: func(c *cli.Context) error { return runArchiveCheck(c, s) },
	}
}

// mostSample keeps an archive check below half of a node's bucket of 300 requests a minute.
const mostSample = 32

func runArchiveCheck(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	id, err := oneArgument(c, "host (an id of hosts.toml)")
	if err != nil {
		return err
	}
	if err := archiveFlags(c); err != nil {
		return err
	}
	inv, f, err := openFleet(c.Context, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	host, ok := inv.Host(id)
	if !ok {
		return &fleet.UnknownHostError{IDs: []string{id}, Known: inv.IDs(), Path: inv.Path}
	}
	in := restart.ArchiveInput{Fleet: inv.Name, Designated: id, K: c.Uint64("k"), Forged: c.Bool("forged"), Block: inv.Block, Joiners: c.Int("joiners"),
		ReadBytes: int64(c.Int("read-mb")) << 20, Sample: c.Int("sample"), Seed: c.Uint64("seed"), Patience: archivePatience, Now: time.Now}
	if !c.IsSet("joiners") {
		in.Joiners = len(inv.Hosts) - 1
	}
	if !c.IsSet("seed") {
		in.Seed = rand.Uint64N(1 << 32)
	}
	in.Hosts = archiveHosts(c.Context, f, peerAddress(host, c.String("address")))
	if in.K == 0 {
		if in.K, err = lastSealed(c.Context, in); err != nil {
			return err
		}
	}
	doc, err := restart.CheckArchive(c.Context, in)
	if err != nil {
		return err
	}
	if g.json {
		err = printJSON(s.out, doc)
	} else {
		err = printArchiveCheck(s, doc)
	}
	if err == nil && !doc.OK {
		err = archiveRefusal(doc)
	}
	return err
}

// archiveFlags finds all faults of the flags at once.
func archiveFlags(c *cli.Context) error {
	var faults []string
	if k := c.Uint64("k"); c.IsSet("k") && (k < 2 || k > restart.MaxK) {
		faults = append(faults, fmt.Sprintf("--k %d is no macroblock to resume from: the first is 2", k))
	}
	if n := c.Int("joiners"); n < 0 {
		faults = append(faults, fmt.Sprintf("--joiners %d is no number of nodes", n))
	}
	if n := c.Int("sample"); n < 0 || n > mostSample {
		faults = append(faults, fmt.Sprintf("--sample %d: want 0 to %d, the node limits the rate of requests", n, mostSample))
	}
	if n := c.Int("read-mb"); n < 1 || n > 4096 {
		faults = append(faults, fmt.Sprintf("--read-mb %d: want 1 to 4096", n))
	}
	if v := c.Uint64("seed"); v > restart.MaxSafe {
		faults = append(faults, fmt.Sprintf("--seed %d: want at most %d, so that it can be published", v, uint64(restart.MaxSafe)))
	}
	if a := c.String("address"); a != "" {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			faults = append(faults, fmt.Sprintf("--address %q: want HOST:PORT", a))
		}
	}
	if len(faults) > 0 {
		return &usageError{text: strings.Join(faults, "\n  "), hint: "qnetops restart archive-check --help"}
	}
	return nil
}

// peerAddress is where other hosts reach a host's node, "" where that cannot be: a loopback address leads each of them to itself.
func peerAddress(h fleet.Host, said string) string {
	if said != "" {
		return said
	}
	if ip := net.ParseIP(h.Address); h.Address == "localhost" || ip != nil && ip.IsLoopback() {
		return ""
	}
	return net.JoinHostPort(h.Address, strconv.Itoa(h.APIPort))
}

// archiveHosts are all hosts of the inventory; each that was reached also asks for the peer over the network, through its SSH
// connection.
func archiveHosts(ctx context.Context, f *fleet.Fleet, peer string) []restart.ArchiveHost {
	var out []restart.ArchiveHost
	for _, h := range f.Hosts() {
		conn, err := f.Conn(ctx, h.ID)
		a := restart.ArchiveHost{ID: h.ID, Err: err}
		if err == nil {
			a.Node = conn.Node()
			if peer != "" {
				a.Peer = &node.Client{Base: "http://" + peer, HTTP: &http.Client{Transport: a.Node.HTTP.Transport}}
			}
		}
		out = append(out, a)
	}
	return out
}

// lastSealed is the K of a check that was given none.
func lastSealed(ctx context.Context, in restart.ArchiveInput) (uint64, error) {
	for _, h := range in.Hosts {
		if h.ID != in.Designated {
			continue
		}
		err := h.Err
		if h.Node != nil {
			ctx, cancel := context.WithTimeout(ctx, archivePatience)
			defer cancel()
			var p node.Position
			if p, err = h.Node.Position(ctx); err == nil && p.LastSealed >= 2 {
				return p.LastSealed, nil
			}
		}
		if err == nil {
			return 0, &refusal{text: h.ID + " has no sealed macroblock from which a chain could resume", hint: "give --k, or another host"}
		}
		return 0, fmt.Errorf("asking %s for its last sealed macroblock: %w", h.ID, err)
	}
	return 0, fmt.Errorf("%s is not in the fleet", in.Designated)
}

func printArchiveCheck(s streams, doc restart.ArchiveCheck) error {
	t := report.Table{Head: []string{"check", "verdict", "reason"}}
	for _, c := range doc.Checks {
		t.Add(c.Name, string(c.Verdict), c.Reason)
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	holders := report.Table{Head: []string{"host", "state at or below K", "snapshot", "reason"}}
	for _, h := range doc.Holders {
		holders.Add(h.ID, string(h.Holds), optional(h.Height), h.Reason)
	}
	if err := holders.Write(s.out); err != nil {
		return err
	}
	if f := doc.Fetch; f.Best != nil && f.Worst != nil {
		fmt.Fprintf(s.out, "%d nodes fetch %d bytes, %d at a time: %s at best, %s when they share the rate that was measured\n",
			f.Joiners, *doc.SnapshotBytes, f.Transfers, secondsText(*f.Best), secondsText(*f.Worst))
	} else {
		fmt.Fprintln(s.out, "how long all nodes will be fetching is not known")
	}
	for _, n := range doc.Notes {
		fmt.Fprintf(s.out, "note: %s\n", n)
	}
	if doc.StopNow != nil {
		fmt.Fprintf(s.out, "stop the node on %s at once: the chain runs on and will prune its state\n", *doc.StopNow)
	}
	if doc.OK {
		fmt.Fprintf(s.out, "%s serves the state of macroblock %d\n", doc.Host, doc.K)
	}
	return nil
}

func archiveRefusal(doc restart.ArchiveCheck) error {
	r := &refusal{text: fmt.Sprintf("%s is not shown to serve the state of macroblock %d: %s", doc.Host, doc.K, strings.Join(doc.Failing(), ", ")),
		hint: "run it again where a node was busy, or designate another host; docs/restart.md says what each check means"}
	if doc.Serves() {
		r.text = fmt.Sprintf("%s serves the state of macroblock %d, and will prune it: %s", doc.Host, doc.K, checkReason(doc.Checks, restart.ArchiveKeep))
		r.hint = "stop that node now and leave it stopped; the document of this check can be used for the record"
	}
	return r
}

func checkReason(checks []observe.Check, name string) string {
	for _, c := range checks {
		if c.Name == name {
			return c.Reason
		}
	}
	return ""
}

func optional(v *uint64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

func secondsText(v uint64) string { return (time.Duration(min(v, 1<<32)) * time.Second).String() }
