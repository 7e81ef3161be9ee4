package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/cutover"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
)

func restartExecuteCommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "execute", Usage: "carry a verified record out on your hosts: stop, set data above K aside, start the release", ArgsUsage: "FOLDER [READY…]",
		Description: "The record is verified again against your own hosts and your own allowed-signers file. Until the first node is started on the release,\n" +
			"qnetops abort takes everything back; data directories are renamed and copied, never deleted. READY are the signed files of other\n" +
			"operators (FILE and FILE.sig), whose identities count for the threshold. --ready-out writes yours and changes nothing.",
		Flags: []cli.Flag{signersFlag(),
			&cli.StringFlag{Name: "at", Usage: "start the nodes at this `TIME` (RFC 3339, UTC), not before that of the record (default: that of the record)"},
			&cli.StringFlag{Name: "archive", Usage: "the host of yours that serves the state of K, `ID` (default: that of the record, where it is yours)"},
			&cli.StringFlag{Name: "policy", Usage: "the restart policy of nodes that have none now: `NAME`"},
			&cli.StringFlag{Name: "ready-out", Usage: "write your signed readiness to `FILE` and FILE.sig, and stop there"},
			&cli.StringFlag{Name: "operator", EnvVars: []string{"QNETOPS_OPERATOR"}, Usage: "with --ready-out: your `NAME` in the allowed-signers file (default: user@machine)"},
			&cli.StringFlag{Name: "sign-key", Usage: "with --ready-out: the SSH key to sign with, `FILE` (default: the agent's only key)"},
		},
		Action: func(c *cli.Context) error { return runRestartExecute(c, s) },
	}
}

// execution is what one run of restart execute has read before any host is asked.
type execution struct {
	c       *cli.Context
	s       streams
	g       globals
	dir     string
	in      restart.VerifyInput
	record  restart.Record
	ask     cutover.RestartAsk
	readyTo string
}

func runRestartExecute(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	x, err := readExecution(c, s, g)
	if err != nil {
		return err
	}
	return withFleet(c.Context, s, g, func(r *rollRun) error {
		base, err := r.ask(x.ask.At)
		if err != nil {
			return err
		}
		x.ask.Ask = base
		x.ask.Verify = x.verify
		x.ask.CheckArchive = func(ctx context.Context, id string, joiners int) (restart.ArchiveCheck, error) {
			return x.checkArchive(ctx, r, id, joiners)
		}
		ops := r.cutovers()
		if x.readyTo == "" {
			if err := ops.Free(c.Context); err != nil {
				return err
			}
		}
		r.tell.say("verifying the record against your hosts, and asking the archive host")
		p, err := ops.ProposeRestart(c.Context, x.ask)
		if err != nil {
			return unreadableEvidence(err)
		}
		if x.readyTo != "" {
			return x.ready(r, p)
		}
		return r.carryOut(c.Context, p, fmt.Sprintf("restart fleet %s from macroblock %d", r.inv.Name, x.ask.Values.K()),
			func() (cutover.Document, error) { return ops.ExecuteRestart(c.Context, x.ask, p.Plan) })
	})
}

// readExecution reads flags and files; all faults at once.
func readExecution(c *cli.Context, s streams, g globals) (*execution, error) {
	at, err := readAt(c, g)
	if err == nil {
		err = knownPolicy(c.String("policy"))
	}
	switch {
	case err != nil:
		return nil, err
	case c.NArg() == 0:
		return nil, &usageError{text: "restart execute needs the folder of the record", hint: "qnetops restart execute --help"}
	case c.String("allowed-signers") == "":
		return nil, &usageError{text: "without --allowed-signers nobody's signature counts", hint: "give your own file, not the one in the folder: whoever forged a record forged that too"}
	}
	x := &execution{c: c, s: s, g: g, dir: c.Args().First(), readyTo: c.String("ready-out")}
	if x.in, x.record, err = readVerifyInput(c, x.dir); err != nil {
		return nil, err
	}
	sha := restart.FileHash(x.in.Folder[restart.RecordName])
	x.ask = cutover.RestartAsk{Ask: cutover.Ask{At: at}, Values: cutover.ValuesOf(x.record, sha), StartAt: x.record.StartAt, Checked: x.record.Archive,
		Archive: c.String("archive"), Policy: c.String("policy")}
	x.ask.Ready, err = readReady(c.Args().Tail(), x.in.Signers, sha)
	return x, err
}

// readReady reads the readiness files of other operators with their signatures.
func readReady(files []string, signers restart.Signers, sha string) ([]cutover.Ready, error) {
	var out []cutover.Ready
	var faults []string
	for _, file := range files {
		r, err := func() (cutover.Ready, error) {
			data, err := readBounded(file, cutover.MaxReady)
			if err != nil {
				return cutover.Ready{}, err
			}
			sig, err := readBounded(file+restart.SigSuffix, cutover.MaxReady)
			if err != nil {
				return cutover.Ready{}, err
			}
			return cutover.DecodeReady(data, sig, signers, sha, time.Now())
		}()
		if err != nil {
			faults = append(faults, filepath.Base(file)+": "+err.Error())
			continue
		}
		out = append(out, r)
	}
	if len(faults) > 0 {
		return nil, &usageError{text: strings.Join(faults, "\n  "), hint: "each file lies beside its signature FILE.sig; ask its operator for both again"}
	}
	return out, nil
}

// verify is restart verify-record, with the own hosts gathered now.
func (x *execution) verify(ctx context.Context) (restart.Verification, restart.Evidence, error) {
	in := x.in
	var err error
	if in.Own, in.Block, err = gatherOwn(ctx, x.s, x.g, x.record); err != nil {
		return restart.Verification{}, restart.Evidence{}, err
	}
	in.Now = time.Now()
	v, err := restart.VerifyRecord(in)
	return v, in.Own, err
}

func (x *execution) checkArchive(ctx context.Context, r *rollRun, id string, joiners int) (restart.ArchiveCheck, error) {
	h, _ := r.inv.Host(id)
	in := restart.ArchiveInput{Fleet: r.inv.Name, Designated: id, K: x.ask.Values.K(), Forged: x.ask.Values.Forged, Block: r.inv.Block, Joiners: joiners,
		ReadBytes: 16 << 20, Sample: 16, Seed: rand.Uint64N(1 << 32), Patience: archivePatience, Now: time.Now}
	in.Hosts = archiveHosts(ctx, r.ops.Fleet, peerAddress(h, ""))
	return restart.CheckArchive(ctx, in)
}

// ready writes what the other operators count by. Too few identities are no reason
// not to: that is what the files are for.
func (x *execution) ready(r *rollRun, p cutover.Proposal) error {
	if err := r.printCutover(p); err != nil {
		return err
	}
	others := p
	others.Checks = slices.DeleteFunc(slices.Clone(p.Checks), func(c observe.Check) bool { return c.Name == "survivors" })
	if err := others.Refused(); err != nil {
		return err
	}
	signer, done, err := openSignKey(x.c.Context, x.s, x.c.String("sign-key"))
	if err != nil {
		return err
	}
	defer done()
	by := firstText(x.c.String("operator"), operator(x.s))
	data, sig, err := cutover.NewReady(p.Plan, by, time.Now()).Sign(signer)
	if err != nil {
		return err
	}
	if _, err := cutover.DecodeReady(data, sig, x.in.Signers, x.ask.Values.Record, time.Now()); err != nil {
		return &refusal{text: "the others would not take it: " + err.Error(), hint: "--operator and --sign-key name you as the allowed-signers file does"}
	}
	if err := errors.Join(writeNew(x.readyTo, data), writeNew(x.readyTo+restart.SigSuffix, sig)); err != nil {
		return &usageError{text: err.Error(), hint: "name a file that is not there yet"}
	}
	fmt.Fprintf(x.s.err, "%s and %s%s are written: send both to the other operators; nothing was changed\n", x.readyTo, x.readyTo, restart.SigSuffix)
	return nil
}
