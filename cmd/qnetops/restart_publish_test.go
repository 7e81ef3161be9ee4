package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/lab/ledger"
)

// ledgerBlock keeps what waits for blocks short.
const ledgerBlock = 20 * time.Millisecond

// ledgerFleet is one operator's hosts on loopback, whose nodes are of a stalled chain: member first+i of it on host i.
func ledgerFleet(t *testing.T, led *ledger.Ledger, first, hosts int) (inventory string, l *lab.Lab) {
	t.Helper()
	l, err := startProcessLab(lab.Config{Nodes: hosts, Block: ledgerBlock, Dir: t.TempDir(), Seed: int64(first), Ledger: func(i int) *ledger.Node {
		return led.Node(ledger.NodeConfig{ID: led.Members()[first+i-1], Build: lab.BuildID("v1")})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return filepath.Join(l.Dir(), lab.HostsFile), l
}

// stalledLedger is a chain of so many macroblocks that stands since three hours.
func stalledLedger(t *testing.T, macroblocks uint64) *ledger.Ledger {
	t.Helper()
	led, err := ledger.New(ledger.Config{Seed: 3, Macroblocks: macroblocks, Members: 6, Block: ledgerBlock, Stalled: time.Now().Add(-3 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return led
}

func TestArchiveCheckCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a lab")
	}
	hosts, l := ledgerFleet(t, stalledLedger(t, 95), 0, 3)
	doc := answer(t, exitDone, "restart", "archive-check", "002", "--hosts", hosts, "--seed", "5", "--joiners", "20")
	if doc["schema"] != "qnetops/archive-check/v1" || doc["ok"] != true || doc["k"] != 95.0 || doc["snapshot_height"] != 7200.0 || doc["seed"] != 5.0 {
		t.Errorf("%v", doc)
	}
	if fetch := doc["fetch"].(map[string]any); fetch["joiners"] != 20.0 || fetch["worst_seconds"] == nil {
		t.Errorf("%v", fetch)
	}
	out, errs, code := runLine(t, "restart", "archive-check", "002", "--hosts", hosts, "--k", "50")
	for _, say := range []string{"snapshot     pass", "snapshot of height 3600", "002 serves the state of macroblock 50"} {
		if code != exitDone || !strings.Contains(out, say) {
			t.Errorf("exit %d, does not say %q:\n%s%s", code, say, out, errs)
		}
	}
	if err := l.Inject("002", string(ledger.FaultNoSnapshots), ""); err != nil {
		t.Fatal(err)
	}
	if err := l.Inject("003", string(ledger.FaultNoSnapshots), ""); err != nil {
		t.Fatal(err)
	}
	doc = answer(t, exitRefused, "restart", "archive-check", "002", "--hosts", hosts)
	if doc["ok"] != false || doc["last_holder"] != "001" || doc["snapshot_height"] != nil {
		t.Errorf("%v", doc)
	}
	for args, want := range map[string]int{
		"002 --k 1": exitUsage, "002 --k 0": exitUsage, "009": exitUsage, "": exitUsage, "002 003": exitUsage, "002 --sample 33": exitUsage,
		"002 --read-mb 0": exitUsage, "002 --seed 18446744073709551615": exitUsage, "002 --joiners -1": exitUsage, "002 --address nowhere": exitUsage,
	} {
		line := append([]string{"restart", "archive-check", "--hosts", hosts}, strings.Fields(args)...)
		if out, errs, code := runLine(t, line...); code != want || out != "" || !strings.Contains(errs, "hint: ") {
			t.Errorf("%s: exit %d, want %d\n%s%s", args, code, want, out, errs)
		}
	}
	if _, errs, _ := runLine(t, "restart", "archive-check", "002", "--hosts", hosts, "--k", "1", "--sample", "99", "--joiners", "-1"); strings.Count(errs, "--") < 3 {
		t.Errorf("not all faults at once:\n%s", errs)
	}
}
