package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/report"
)

func decreeCommand(s streams) *cli.Command {
	numbers := func() []cli.Flag {
		return []cli.Flag{
			&cli.Uint64Flag{Name: "seq", Usage: "number `N` of the decree, above that of the last one that was applied"},
			&cli.Uint64Flag{Name: "target", Usage: "every block above height `H` is deleted; a multiple of 30 at or above every certified point"},
		}
	}
	return &cli.Command{
		Name: "decree", Usage: "prune the whole network to a height by an order that a quorum of the genesis nodes has signed",
		Subcommands: []*cli.Command{
			{Name: "endorse", Usage: "have your genesis hosts sign a decree; nothing happens to the chain by it",
				Flags: append(numbers(), &cli.StringFlag{Name: "out", Usage: "write the signatures to `FILE`, for the operator who submits"}),
				Action: func(c *cli.Context) error {
					g, seq, target, err := readDecree(c, s)
					if err == nil {
						err = noArguments(c)
					}
					if err != nil {
						return err
					}
					return runEndorse(c.Context, s, g, seq, target, c.String("out"))
				}},
			{Name: "submit", ArgsUsage: "[FILE]...", Usage: "join the signatures of the files with those of your genesis hosts, hand the decree over once, see it carried out",
				Flags: append(numbers(), &cli.StringFlag{Name: "at", Usage: "hand it over at this `TIME` (RFC 3339, UTC), after a last look"}),
				Action: func(c *cli.Context) error {
					g, seq, target, err := readDecree(c, s)
					if err != nil {
						return err
					}
					at, err := readAt(c, g)
					if err != nil {
						return err
					}
					return runSubmit(c.Context, s, g, cutover.DecreeAsk{Ask: cutover.Ask{At: at}, Seq: seq, Target: target}, c.Args().Slice())
				}},
		},
	}
}

func readDecree(c *cli.Context, s streams) (g globals, seq, target uint64, err error) {
	if g, err = readGlobals(c, s); err != nil {
		return g, 0, 0, err
	}
	seq, target = c.Uint64("seq"), c.Uint64("target")
	if seq == 0 || target == 0 {
		err = &usageError{text: c.Command.FullName() + " needs --seq N and --target H, both above 0", hint: "all operators sign the same two numbers; qnetops decree --help"}
	}
	return g, seq, target, err
}

func runEndorse(ctx context.Context, s streams, g globals, seq, target uint64, out string) error {
	inv, f, err := openFleet(ctx, s, g)
	if err != nil {
		return err
	}
	defer f.Close()
	ids, err := genesisHosts(inv, g)
	if err != nil {
		return err
	}
	if g.dryRun {
		fmt.Fprintf(s.err, "decree %d to height %d would be signed by the nodes of hosts %s\n", seq, target, strings.Join(ids, ","))
		return nil
	}
	if err := confirm(ctx, s, g, fmt.Sprintf("sign decree %d, which deletes every block above height %d, with the nodes of hosts %s?", seq, target, strings.Join(ids, ","))); err != nil {
		return err
	}
	doc, err := cutover.Endorse(ctx, f, ids, seq, target)
	if err != nil {
		return err
	}
	if out != "" && len(doc.Signatures) > 0 {
		raw, bad := json.MarshalIndent(doc, "", "  ")
		if err = bad; err == nil {
			err = writeNew(out, append(raw, '\n'))
		}
	}
	return errors.Join(err, printEndorsement(s, g, doc, out), short(doc))
}

// short is the refusal of an endorsement that misses a host.
func short(doc cutover.EndorsementDocument) error {
	if len(doc.Missing) == 0 {
		return nil
	}
	return &refusal{text: fmt.Sprintf("%d of %d hosts have not signed", len(doc.Missing), len(doc.Missing)+len(doc.Signatures)),
		hint: "mend what the reasons name and run it again, or leave a host out by name with --skip; " + fmt.Sprint(doc.Quorum) + " signatures are needed in all"}
}

// genesisHosts are the chosen hosts of the genesis set, by id.
func genesisHosts(inv *fleet.Inventory, g globals) ([]string, error) {
	hosts, err := inv.Select(g.only, g.skip)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, h := range hosts {
		if h.Role == fleet.RoleGenesis {
			ids = append(ids, h.ID)
		}
	}
	if len(ids) == 0 {
		return nil, &usageError{text: inv.Path + ": none of the chosen hosts has role genesis, and no other node's signature counts", hint: "set role = \"genesis\" on the hosts of nodes 001 to 005"}
	}
	return ids, nil
}

func printEndorsement(s streams, g globals, doc cutover.EndorsementDocument, out string) error {
	if g.json {
		return printJSON(s.out, doc)
	}
	t := report.Table{Head: []string{"host", "node", "signature", "reason"}}
	for _, e := range slices.Concat(doc.Signatures, doc.Missing) {
		sig := orDash(e.Sig)
		if len(sig) > 24 {
			sig = sig[:21] + "..."
		}
		t.Add(e.Host, orDash(e.NodeID), sig, orDash(firstLine(e.Reason)))
	}
	if err := t.Write(s.out); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "decree %d to height %d: %d signatures here, %d are needed in all\n", doc.Seq, doc.Target, len(doc.Signatures), doc.Quorum)
	if out == "" {
		fmt.Fprintln(s.out, "--out FILE (or -o json) gives them whole, for decree submit")
	} else if len(doc.Signatures) > 0 {
		fmt.Fprintln(s.out, "written to "+out)
	}
	return nil
}

// readEndorsement reads a file of signatures and holds it to the decree that is to
// be submitted.
func readEndorsement(path string, seq, target uint64) ([]node.DecreeSig, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, &usageError{text: err.Error(), hint: "name the files that decree endorse --out wrote"}
	}
	var doc cutover.EndorsementDocument
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err = d.Decode(&doc)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the document")
		}
	}
	bad := func(why string) error {
		return &usageError{text: path + ": " + why, hint: "decree endorse --seq N --target H --out FILE writes such a file"}
	}
	switch {
	case err != nil:
		return nil, bad("not a file of decree endorse: " + err.Error())
	case doc.Schema != cutover.EndorsementSchema:
		return nil, bad(fmt.Sprintf("schema is %q, want %q", doc.Schema, cutover.EndorsementSchema))
	case doc.Seq != seq || doc.Target != target:
		return nil, bad(fmt.Sprintf("it endorses decree %d to height %d, not decree %d to height %d", doc.Seq, doc.Target, seq, target))
	}
	for i, sig := range doc.Sigs() {
		if err := sig.CheckForm(); err != nil {
			return nil, bad(fmt.Sprintf("signatures[%d]: %v", i, err))
		}
	}
	return doc.Sigs(), nil
}

// readEndorsements reads all files and names the faults of all.
func readEndorsements(paths []string, seq, target uint64) ([]node.DecreeSig, error) {
	var (
		sigs   []node.DecreeSig
		faults []string
	)
	for _, path := range paths {
		more, err := readEndorsement(path, seq, target)
		if err != nil {
			faults = append(faults, err.Error())
		}
		sigs = append(sigs, more...)
	}
	if len(faults) > 0 {
		return nil, &usageError{text: strings.Join(faults, "\n  "), hint: "decree endorse --seq N --target H --out FILE writes such files"}
	}
	return sigs, nil
}

func runSubmit(ctx context.Context, s streams, g globals, ask cutover.DecreeAsk, files []string) error {
	given, err := readEndorsements(files, ask.Seq, ask.Target)
	if err != nil {
		return err
	}
	return withFleet(ctx, s, g, func(r *rollRun) (err error) {
		if ask.Ask, err = r.ask(ask.At); err != nil {
			return err
		}
		ops := r.cutovers()
		if err := ops.Free(ctx); err != nil {
			return err
		}
		if ask.Sigs, err = r.gatherSigs(ctx, ask, given); err != nil {
			return err
		}
		r.tell.say("looking at the nodes")
		p, err := ops.ProposeDecree(ctx, ask)
		if err != nil {
			return err
		}
		return r.carryOut(ctx, p, fmt.Sprintf("hand decree %d, which deletes every block above height %d, to the network", ask.Seq, ask.Target),
			func() (cutover.Document, error) { return ops.Decree(ctx, ask, p.Plan) })
	})
}

// gatherSigs has one's own genesis hosts sign what the files leave open.
func (r *rollRun) gatherSigs(ctx context.Context, ask cutover.DecreeAsk, given []node.DecreeSig) ([]node.DecreeSig, error) {
	ids, err := genesisHosts(r.inv, globals{only: ask.Hosts})
	if err != nil {
		if len(given) > 0 {
			return given, nil // the files hold all there is
		}
		return nil, err
	}
	r.tell.say("asking hosts %s for their signatures", strings.Join(ids, ","))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	doc, err := cutover.Endorse(ctx, r.ops.Fleet, ids, ask.Seq, ask.Target)
	for _, m := range doc.Missing {
		r.tell.say("host %s does not sign: %s", m.Host, m.Reason)
	}
	return cutover.MergeSigs(given, doc.Sigs()), err
}
