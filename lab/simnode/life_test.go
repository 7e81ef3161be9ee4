package simnode

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/node"
)

const history = EnvHistory + "=360"

// upBlocks is a little more than a healthy genesis node takes to be brought up.
const upBlocks = secStabilise + 5

func TestBootGenesisWaits(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids[:4]...)
		l.blocks(10)
		// RPC is up before P2P and consensus: answering says nothing about them.
		if code, body := n.get("/healthz"); code != 200 || body != "ok h=360 build=1111111" {
			t.Fatalf("healthz while waiting for peers: %d %q", code, body)
		}
		l.blocks(105)
		if n.out.count("bringup_complete") != 0 {
			t.Fatal("brought up before the 120 s wait for the absent peer")
		}
		l.blocks(10) // after 120 s, three of four are enough, without stabilisation
		if n.out.count("net_ready peers=3 stable=0s") != 1 || n.out.count("bringup_complete") != 1 {
			t.Fatalf("not brought up after 120 s with three peers:\n%s", n.out)
		}
	})
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids[:3]...) // two peers only: for ever
		l.blocks(600)
		if n.out.count("bringup_complete") != 0 || n.out.count("[ERR][NODE] CRITICAL: Genesis node timeout with 2 peers, quorum needs 3!") == 0 {
			t.Fatalf("log with two peers:\n%s", n.out)
		}
		l.start(l.ids[3])
		l.blocks(2)
		if n.out.count("net_ready peers=3 stable=0s") != 1 || n.out.count("bringup_complete") != 1 {
			t.Fatalf("not brought up once three peers are there:\n%s", n.out)
		}
	})
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids...)
		l.blocks(55)
		if n.out.count("bringup_complete") != 0 {
			t.Fatal("no stabilisation after all four are connected")
		}
		l.blocks(10)
		if n.out.count("net_ready peers=4 stable=60s") != 1 || n.out.count("bringup_complete") != 1 {
			t.Fatalf("not brought up after stabilisation:\n%s", n.out)
		}
	})
}

func TestBootLines(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids...)
		l.blocks(upBlocks)
		if c := n.out.count("[INFO][BOOT] subsystem_started name="); c != 12 {
			t.Errorf("%d subsystem lines, want 12", c)
		}
		if n.out.count("contract_satisfied") != 0 {
			t.Error("boot contract audited before 120 s")
		}
		l.blocks(120)
		if n.out.count("[INFO][BOOT] contract_satisfied required=12 started=12") != 1 {
			t.Error("no audit line 120 s after bring-up")
		}
		log := n.out.String()
		for _, pair := range [][2]string{{"net_ready", "runtime_started"}, {"runtime_started", "production_start"}, {"production_start", "bringup_complete"}} {
			if strings.Index(log, pair[0]) > strings.Index(log, pair[1]) {
				t.Errorf("%s is not before %s", pair[0], pair[1])
			}
		}
	})
}

func TestSigtermAndFlush(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids...)
		l.blocks(20)
		if code := n.term(); code != 143 || n.out.count("node terminating") != 0 {
			t.Fatalf("SIGTERM before bring-up: exit %d, log:\n%s", code, n.out)
		}
		if _, err := os.Stat(filepath.Join(n.dir, fileClean)); err == nil {
			t.Error("flushed although the handler is not installed yet")
		}
		n.start()
		l.blocks(2 * upBlocks)
		if code := n.term(); code != 0 || n.out.count("[INFO][SHUTDOWN] node terminating") != 1 {
			t.Fatalf("SIGTERM after bring-up: exit %d, log:\n%s", code, n.out)
		}
		if _, err := os.Stat(filepath.Join(n.dir, fileClean)); err != nil {
			t.Errorf("not flushed: %v", err)
		}
	})
}

func TestRestartSyncsAndParticipates(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(150)
		for _, id := range []string{l.ids[1], l.ids[5]} {
			n := l.nodes[id]
			at := n.heightNow()
			n.term()
			l.blocks(250)
			n.start()
			l.blocks(2)
			if h := n.heightNow(); h < at {
				t.Fatalf("%s: data directory did not survive: %d after %d", id, h, at)
			}
			l.blocks(20)
			ref := l.nodes[l.ids[0]]
			if h, tip := n.heightNow(), ref.heightNow(); h+2 < tip {
				t.Fatalf("%s: %d behind %d after sync", id, h, tip)
			}
			l.blocks(upBlocks + 180)
			w := n.heightNow() / 90
			if !strings.Contains(n.out.String(), "participating active_lock=acquired") {
				t.Errorf("%s does not take part again", id)
			}
			voted := false
			for _, other := range l.ids {
				voted = voted || slices.Contains(l.nodes[other].proofOf(w-1).QC.Signers, id)
			}
			if !voted {
				t.Errorf("%s is in nobody's certificate of window %d", id, w-1)
			}
			mb := n.mbOf(w - 1)
			checkProof(t, mb, n.proofOf(w-1))
			if mb.hash() != ref.mbOf(w-1).hash() {
				t.Errorf("%s holds another macroblock %d", id, w-1)
			}
		}
	})
}

func TestKilledNodeKeepsItsData(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(200)
		n := l.nodes[l.ids[2]]
		h, s := n.heightNow(), n.sealedNow()
		n.halt()
		// A torn last line, as a power cut leaves it.
		f, err := os.OpenFile(filepath.Join(n.dir, fileBlocks), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(`{"h":9`)
		_ = f.Close()
		for _, id := range l.ids {
			l.nodes[id].halt()
		}
		n.start("QNETOPS_LAB_HISTORY=0") // pinned at the first start
		l.blocks(3)
		if got, sealed := n.heightNow(), n.sealedNow(); got != h || sealed != s {
			t.Errorf("after a kill: height %d sealed %d, want %d and %d", got, sealed, h, s)
		}
	})
}

func TestDataDirSharedIsAViolation(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		a, b := l.nodes[l.ids[0]], l.nodes[l.ids[1]]
		b.dir = a.dir
		a.start()
		l.blocks(1)
		b.start()
		if code := b.exited(5); code != 1 {
			t.Errorf("exit code %d", code)
		}
		if len(l.bad) != 1 || l.bad[0].Kind != "data_dir_shared" || l.bad[0].NodeID != b.id {
			t.Errorf("violations: %+v", l.bad)
		}
		if _, err := os.Stat(filepath.Join(a.dir, fileTaint)); err != nil {
			t.Errorf("directory not tainted: %v", err)
		}
	})
}

func TestFailover(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		who, _ := l.nodes[l.ids[0]].json("/api/v1/producer/status")["current_producer"].(string)
		if err := l.nodes[who].faults.Set(FaultFailover, ""); err != nil {
			t.Fatal(err)
		}
		l.blocks(4)
		before := l.nodes[l.ids[0]].heightNow()
		l.blocks(20)
		for _, id := range l.ids {
			h := l.nodes[id].json("/api/v1/node/health")
			if h["failover_count"].(float64) < 1 || h["max_timeout_round_seen"].(float64) != 1 || h["current_timeout_round"].(float64) != 0 {
				t.Errorf("%s: %v", id, h)
			}
		}
		if h := l.nodes[l.ids[0]].heightNow(); h < before+8 {
			t.Errorf("height %d -> %d: the next producer did not take over for the turn", before, h)
		}
		row := l.nodes[l.ids[0]].json("/api/v1/failovers")["failovers"].([]any)[0].(map[string]any)
		if row["failed_producer"] != who || row["emergency_producer"] == who || row["block_type"] != "microblock" {
			t.Errorf("failover row: %v", row)
		}
		if got := l.nodes[l.ids[0]].json("/api/v1/network/failovers")["status"]; got != "success" {
			t.Errorf("alias: status %v", got)
		}
		l.blocks(300)
		if l.nodes[l.ids[0]].out.count("[METRICS][FAILOVER] failover_events=0") != 0 || l.nodes[l.ids[0]].out.count("max_timeout_round=1") == 0 {
			t.Errorf("metrics line:\n%s", l.nodes[l.ids[0]].out)
		}
	})
}

func TestStopProducingEverywhereStalls(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		for _, n := range l.nodes {
			_ = n.faults.Set(FaultStopProducing, "")
		}
		l.blocks(2)
		n := l.nodes[l.ids[0]]
		h := n.heightNow()
		l.blocks(400)
		if got := n.heightNow(); got != h {
			t.Fatalf("height %d -> %d", h, got)
		}
		if n.num(pathPosition, "certified_round_next_slot") != 50 || n.out.count("failover_round_capped round=50 cap=50") == 0 || n.out.count("[CRIT][WATCHDOG] chain_halted") == 0 {
			t.Errorf("stall is not told:\n%s", n.out)
		}
		for _, n := range l.nodes {
			n.faults.Clear()
		}
		l.blocks(60)
		if got := n.heightNow(); got < h+20 {
			t.Errorf("height %d -> %d after the stall", h, got)
		}
	})
}

func TestPartitionHealsToOneChain(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		alone := l.nodes[l.ids[2]]
		_ = alone.faults.Set(FaultIsolate, "")
		l.blocks(120)
		at := alone.heightNow()
		if v := alone.json("/api/v1/node/health"); v["validated_peers"].(float64) != 0 || v["status"] != "healthy" || v["sync_status"] != "bootstrap" || v["network_height"] != v["height"] {
			t.Errorf("an isolated genesis node looks healthy and synchronized: %v", v)
		}
		if s := alone.json("/api/v1/sync/status"); s["sync_progress"] != "100.00%" || s["is_syncing"] != false {
			t.Errorf("sync status alone: %v", s)
		}
		l.blocks(60)
		if got := alone.heightNow(); got != at {
			t.Errorf("isolated node went on by itself: %d -> %d", at, got)
		}
		alone.faults.Clear(FaultIsolate)
		l.blocks(60)
		ref := l.nodes[l.ids[0]]
		if a, b := alone.heightNow(), ref.heightNow(); a+1 < b {
			t.Fatalf("%d behind %d after healing:\n%s", a, b, alone.out)
		}
		if a, b := alone.json("/api/v1/microblock/470")["hash"], ref.json("/api/v1/microblock/470")["hash"]; a != b {
			t.Errorf("hash at 470: %v and %v", a, b)
		}
	})
}

func TestForkedBranchIsReplaced(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(75)
		// A producer whose line is slow makes blocks after the others gave up on
		// it: two branches, of which all nodes keep the same one.
		who, _ := l.nodes[l.ids[0]].json("/api/v1/producer/status")["current_producer"].(string)
		l.hub.Delay(who, 12*l.block)
		l.blocks(120)
		l.hub.Heal(who)
		l.blocks(60)
		ref := l.nodes[l.ids[0]]
		h := ref.heightNow() - 2
		for _, id := range l.ids {
			n := l.nodes[id]
			if got := n.heightNow(); got < h {
				t.Fatalf("%s: %d below %d:\n%s", id, got, h, n.out)
			}
			for _, at := range []string{"380", "400", "420"} {
				if a, b := n.json("/api/v1/microblock/" + at)["hash"], ref.json("/api/v1/microblock/" + at)["hash"]; a != b {
					t.Errorf("%s: hash at %s is %v, elsewhere %v", id, at, a, b)
				}
			}
		}
		sealed := ref.sealedNow()
		l.blocks(200)
		if ref.sealedNow() <= sealed {
			t.Error("sealing does not go on after the fork")
		}
	})
}

func TestLossyNetworkStillSeals(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		for _, id := range l.ids {
			l.hub.Drop(id, 0.1)
		}
		l.start(l.ids...)
		l.blocks(800)
		n := l.nodes[l.ids[0]]
		if s := n.sealedNow(); s < 8 {
			t.Errorf("sealed %d at %d with lost messages", s, n.heightNow())
		}
		for _, id := range l.ids[1:] {
			if a, b := l.nodes[id].mbOf(7).hash(), n.mbOf(7).hash(); a != b {
				t.Errorf("%s holds another macroblock 7", id)
			}
		}
	})
}

func TestLagFault(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		n, ref := l.nodes[l.ids[4]], l.nodes[l.ids[0]]
		_ = n.faults.Set(FaultLag, "25")
		l.blocks(150)
		if gap := ref.heightNow() - n.heightNow(); gap < 24 || gap > 33 {
			t.Errorf("gap %d, want about 25", gap)
		}
		if v := n.json("/api/v1/node/health"); v["status"] != "syncing" {
			t.Errorf("status %v", v["status"])
		}
		n.faults.Clear()
		l.blocks(30)
		if gap := ref.heightNow() - n.heightNow(); gap > 1 {
			t.Errorf("gap %d after the fault", gap)
		}
	})
}

func TestBehaviours(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		n := l.nodes[l.ids[1]]

		n.term()
		n.start(EnvBehaviour + "=crash")
		if code := n.exited(10); code != 1 || n.out.count("[FATAL][NODE]") != 1 {
			t.Errorf("crash: exit %d", code)
		}

		n.start(EnvBehaviour+"=gap", "QNET_BUILD_ID=3333333")
		l.blocks(upBlocks + 100)
		if _, body := n.get("/healthz"); !strings.HasSuffix(body, "build=3333333") {
			t.Errorf("gap: healthz before the audit %q", body)
		}
		if code := n.exited(40); code != 1 || n.out.count("[FATAL][BOOT] subsystems_missing count=2 names=sync_manager,watchdog action=exit") != 1 {
			t.Errorf("gap: exit %d, log:\n%s", code, n.out)
		}

		n.start(EnvBehaviour + "=oom")
		if code := n.exited(upBlocks + 40); code != 137 || n.out.count("OOM_IMMINENT graceful_shutdown") != 1 {
			t.Errorf("oom: exit %d", code)
		}
		n.start(EnvBehaviour + "=oom")
		l.blocks(2)
		if n.out.count("[WARN][MEMORY] oom_backoff boot_delay=5s consecutive=1") != 1 {
			t.Errorf("no backoff after a breach:\n%s", n.out)
		}
		n.halt()

		n.start(EnvBehaviour+"=liar", "QNET_BUILD_ID=5555555", EnvLieBuild+"=1111111")
		l.blocks(10)
		if _, body := n.get("/healthz"); !strings.HasSuffix(body, "build=1111111") {
			t.Errorf("liar: %q", body)
		}
		n.halt()
	})
}

func TestMuteNeverParticipates(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[1]]
		l.start(l.ids[0], l.ids[2], l.ids[3], l.ids[4], l.ids[5])
		n.start(EnvBehaviour + "=mute")
		l.blocks(upBlocks + 300)
		if n.out.count("participating") != 0 || n.out.count("bringup_complete") != 1 {
			t.Errorf("log of a mute node:\n%s", n.out)
		}
		w := n.sealedNow()
		if w < 6 {
			t.Fatalf("sealed %d", w)
		}
		for _, id := range l.ids {
			if slices.Contains(l.nodes[id].proofOf(w).QC.Signers, n.id) {
				t.Errorf("a mute node signed on %s", id)
			}
		}
		if h := n.num("/api/v1/node/health", "failover_count"); h != 0 {
			t.Errorf("a mute node produces: %d failovers", h)
		}
	})
}

func TestSlowCatchesUpLate(t *testing.T) {
	bubble(t, 5, 1, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		n, ref := l.nodes[l.ids[1]], l.nodes[l.ids[0]]
		n.term()
		l.blocks(200)
		n.start(EnvBehaviour + "=slow")
		l.blocks(20)
		if gap := ref.heightNow() - n.heightNow(); gap < 50 {
			t.Errorf("gap %d: not slow", gap)
		}
		l.blocks(180)
		if gap := ref.heightNow() - n.heightNow(); gap > 2 {
			t.Errorf("gap %d: not caught up", gap)
		}
		l.blocks(100)
		if n.out.count("participating") < 2 {
			t.Errorf("slow node does not take part:\n%s", n.out)
		}
	})
}

func TestReportingFaults(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(100)
		n, ref := l.nodes[l.ids[1]], l.nodes[l.ids[0]]
		set := func(k Kind, arg string) {
			t.Helper()
			n.faults.Clear()
			if err := n.faults.Set(k, arg); err != nil {
				t.Fatal(err)
			}
		}
		set(FaultLieHeight, "500")
		if a, b := n.heightNow(), ref.heightNow(); a != b+500 {
			t.Errorf("lie-height: %d and %d", a, b)
		}
		set(FaultLieBuild, "7654321")
		if _, body := n.get("/healthz"); !strings.HasSuffix(body, "build=7654321") {
			t.Errorf("lie-build: %q", body)
		}
		set(FaultFork, "")
		if a, b := n.json(pathPosition), ref.json(pathPosition); a["height"] != b["height"] || a["tip_hash"] == b["tip_hash"] {
			t.Errorf("fork: %v and %v", a, b)
		}
		set(FaultRateLimit, "")
		if v := n.json(pathPosition); v["success"] != false || v["error"] != "Rate limit exceeded" || v["retry_after_seconds"] == nil {
			t.Errorf("ratelimit: %v", v)
		}
		set(FaultSkew, "7")
		if v := n.num("/api/v1/node/health", "clock_drift_ema_secs"); v != 7 {
			t.Errorf("skew: %d", v)
		}
		set(FaultStorageError, "")
		if v := n.json("/api/v1/macroblock/2"); v["error"] != "Failed to get macroblock" || v["details"] != "internal error" {
			t.Errorf("storage error: %v", v)
		}
		if v := n.json("/api/v1/macroblock/2/proof"); v["error"] != "macroblock_not_found" {
			t.Errorf("storage error in proof: %v", v)
		}
		set(FaultHangHealth, "")
		start := time.Now()
		if _, _, _, err := n.do("127.0.0.1", "8001", newGet("/api/v1/node/health")); err == nil || time.Since(start) < 10*time.Second {
			t.Errorf("hang-health answered: %v", err)
		}
		if code, _ := n.get("/healthz"); code != 200 {
			t.Error("healthz hangs too")
		}
		set(FaultLogLevel, "")
		l.blocks(2)
		seals := n.out.count("checkpoint_final")
		l.blocks(70)
		if n.out.count("checkpoint_final") != seals {
			t.Error("log-level fault: an INFO line at level 2")
		}
		set(FaultMute, "")
		before := n.out.count("participating")
		l.blocks(100)
		if n.out.count("participating") != before {
			t.Error("mute fault: participation line")
		}
		set(FaultAbstain, "")
		l.blocks(100)
		if n.out.count("window_end_abstain mb=") == 0 {
			t.Error("abstain fault: no line")
		}
	})
}

func TestUnknownFault(t *testing.T) {
	var f Faults
	err := f.Set("nonsense", "")
	if err == nil || !strings.Contains(err.Error(), "hang-health") {
		t.Errorf("error %v does not list the known faults", err)
	}
	if f.Set(FaultLag, "many") == nil {
		t.Error("lag takes a word as number")
	}
	f.parse("lag=3\n\nunknown\nmute\n")
	if got := f.All(); len(got) != 2 || got[FaultLag] != "3" {
		t.Errorf("fault file: %v", got)
	}
}

func TestHaltHeight(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids[1:]...)
		n.start("QNET_HALT_HEIGHT=400")
		l.blocks(upBlocks)
		if n.out.count("[INFO][HALT] QNET_HALT_HEIGHT=400 — node will stop at this block (coordinated upgrade)") != 1 {
			t.Error("no start line")
		}
		if code := n.exited(100); code != 0 || n.out.count("Reached halt_height=400 current=4") != 1 || n.out.count("storage.flush_all() complete") != 1 {
			t.Errorf("exit %d, log:\n%s", code, n.out)
		}
		// Started again with the variable it comes up and runs until its next poll.
		before := l.nodes[l.ids[1]].heightNow()
		n.start("QNET_HALT_HEIGHT=400")
		l.blocks(upBlocks + 15)
		if h := n.heightNow(); h <= before {
			t.Errorf("height %d, want above %d", h, before)
		}
		if code := n.exited(40); code != 0 {
			t.Errorf("second exit %d", code)
		}
		n.start("QNET_HALT_HEIGHT=4oo")
		l.blocks(upBlocks + 100)
		if c := n.out.count("[INFO][HALT] QNET_HALT_HEIGHT="); c != 2 {
			t.Errorf("an unparsable height counts: %d start lines", c)
		}
	})
}

func TestRollbackVariables(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids...)
		l.blocks(upBlocks + 50) // about 412
		floor := n.num(pathPosition, "finalized_height") + 30
		for _, id := range l.ids {
			l.nodes[id].halt()
		}
		check := func(want string, height func(h uint64) bool, env ...string) {
			t.Helper()
			n.start(env...)
			l.blocks(3)
			if n.out.count(want) == 0 {
				t.Errorf("%v: no line %q in\n%s", env, want, n.out)
			}
			if h := n.heightNow(); !height(h) {
				t.Errorf("%v: height %d, floor %d", env, h, floor)
			}
			n.halt()
		}
		above := func(h uint64) bool { return h > floor }
		check("refused target=100 certified_floor=", above, "QNET_ROLLBACK_TO_HEIGHT=100", "QNET_ROLLBACK_TO_LAST_SEALED=1")
		check("already_at_or_below target=9000", above, "QNET_ROLLBACK_TO_HEIGHT=9000")
		check("initial", func(h uint64) bool { return true }, "QNET_ROLLBACK_TO_HEIGHT=abc")
		check("truncated_to=", func(h uint64) bool { return h == floor }, "QNET_ROLLBACK_TO_LAST_SEALED=true")
		var got mark
		if raw, err := os.ReadFile(filepath.Join(n.dir, fileMark)); err == nil {
			_ = json.Unmarshal(raw, &got)
		}
		if got.Height > floor {
			t.Errorf("signing mark %d above the floor %d", got.Height, floor)
		}
	})
}

// rolledBack is a fleet that lost its quorum, went on to produce, and was then rolled back with all nodes up again.
func rolledBack(l *labNet, fault Kind, victims int) {
	l.start(l.ids...)
	l.blocks(upBlocks + 50)
	for _, id := range l.ids[:2] {
		_ = l.nodes[id].faults.Set(FaultAbstain, "")
	}
	l.blocks(150) // blocks above the floor that are never certified
	for i, id := range l.ids {
		n := l.nodes[id]
		n.faults.Clear()
		n.halt()
		if i < victims {
			_ = n.faults.Set(fault, "")
		}
	}
	l.startAll("QNET_ROLLBACK_TO_LAST_SEALED=1")
	l.blocks(upBlocks)
}

// startAll starts all nodes with a variable.
func (l *labNet) startAll(env ...string) {
	for _, id := range l.ids {
		l.nodes[id].start(env...)
	}
}

// healed rolls back once more without the fault, after which the chain goes on.
func healed(t *testing.T, l *labNet) {
	t.Helper()
	n := l.nodes[l.ids[0]]
	for _, id := range l.ids {
		l.nodes[id].halt()
		l.nodes[id].faults.Clear()
	}
	l.startAll("QNET_ROLLBACK_TO_LAST_SEALED=1")
	l.blocks(upBlocks)
	h, sealed := n.heightNow(), n.sealedNow()
	l.blocks(300)
	if n.heightNow() < h+250 || n.sealedNow() < sealed+2 {
		t.Errorf("height %d -> %d, sealed %d -> %d after another rollback\n%s", h, n.heightNow(), sealed, n.sealedNow(), n.out)
	}
}

// TestRollbackThatKeepsTheMark is incident 2 of facts 8: nobody produces, and every node says by which mark it yields.
func TestRollbackThatKeepsTheMark(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		rolledBack(l, FaultKeepMark, 5)
		n := l.nodes[l.ids[0]]
		h := n.heightNow()
		l.blocks(180)
		if got := n.heightNow(); got != h {
			t.Fatalf("height %d -> %d", h, got)
		}
		yields := 0
		for _, id := range l.ids {
			out := l.nodes[id].out
			if out.count("truncated_to=") != 1 || out.count("signed_mark_lowered") != 0 {
				t.Errorf("%s:\n%s", id, out)
			}
			if strings.Contains(out.String(), "already_signed_this_round h=") && strings.Contains(out.String(), " hwm_h=") {
				yields++
			}
		}
		if yields == 0 {
			t.Error("no node says why")
		}
		healed(t, l)
	})
}

// TestRollbackThatKeepsTheVotes is incidents 3 and 4 of facts 8: blocks are made and nothing is sealed, up to the horizon.
func TestRollbackThatKeepsTheVotes(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		rolledBack(l, FaultKeepVotes, 2)
		n := l.nodes[l.ids[0]]
		h, sealed := n.heightNow(), n.sealedNow()
		l.blocks(180)
		if n.heightNow() < h+170 || n.sealedNow() != sealed {
			t.Errorf("height %d -> %d, sealed %d -> %d", h, n.heightNow(), sealed, n.sealedNow())
		}
		l.blocks(node.HorizonBlocks)
		if got, base := n.heightNow(), n.num(pathPosition, "finalized_height")+node.CheckpointBlocks; got != base+node.HorizonBlocks {
			t.Errorf("height %d, want parked at %d", got, base+node.HorizonBlocks)
		}
		// It stays so when the variable is gone and the fault too: the votes are on disk.
		for _, id := range l.ids {
			l.nodes[id].faults.Clear()
			l.nodes[id].halt()
			l.nodes[id].start()
		}
		l.blocks(upBlocks + 100)
		if n.sealedNow() != sealed {
			t.Errorf("sealed %d -> %d by a restart alone", sealed, n.sealedNow())
		}
		healed(t, l)
	})
}

func TestCleanDataWipes(t *testing.T) {
	bubble(t, 5, 0, nil, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		l.start(l.ids...)
		l.blocks(150)
		n.term()
		l.hub.Cut(n.id)
		n.start("QNET_CLEAN_DATA=1")
		l.blocks(3)
		if h := n.heightNow(); h != 0 {
			t.Errorf("height %d after QNET_CLEAN_DATA=1", h)
		}
		l.hub.Heal(n.id)
		l.blocks(30)
		if h := n.heightNow(); h < 80 {
			t.Errorf("height %d: no sync from nothing", h)
		}
		n.halt()
		n.start("QNET_CLEAN_DATA=true") // only the exact value 1 wipes
		l.blocks(1)
		if n.out.count("data_directories_removed") != 1 {
			t.Error("QNET_CLEAN_DATA=true wiped")
		}
	})
}

func TestPreflight(t *testing.T) {
	bubble(t, 5, 0, nil, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		n.start(EnvRAM + "=3999")
		if code := n.exited(2); code != 1 || n.out.count("[FATAL][PREFLIGHT] checks_failed node_type=Super err=") != 1 {
			t.Errorf("exit %d", code)
		}
	})
}

func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"QNET_BOOTSTRAP_ID=003"}, "genesis_node_003"},
		{[]string{"QNET_BOOTSTRAP_ID=003", "QNET_BOOTSTRAP_ID=004"}, "genesis_node_004"},
		// SHA3-256("abc") starts 3a985da7 (FIPS 202). An invalid bootstrap id is
		// silently no genesis id.
		{[]string{"QNET_WALLET_SEED=abc"}, "super_node_3a985da7"},
		{[]string{"QNET_BOOTSTRAP_ID=006", "QNET_WALLET_SEED=abc"}, "super_node_3a985da7"},
		{[]string{"QNET_BOOTSTRAP_ID=3", "QNET_WALLET_SEED=abc"}, "super_node_3a985da7"},
	} {
		if got := NodeID(c.env); got != c.want {
			t.Errorf("%v: %s, want %s", c.env, got, c.want)
		}
	}
}

func TestLogLevelHidesLines(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		quiet, normal := l.nodes[l.ids[0]], l.nodes[l.ids[1]]
		quiet.start("QNET_LOG_LEVEL=2")
		l.start(l.ids[1:]...)
		l.blocks(400)
		for _, line := range []string{"macroblock_sealed window=", "participating active_lock", "contract_satisfied", "checkpoint_final"} {
			if quiet.out.count(line) != 0 {
				t.Errorf("%q is there at level 2", line)
			}
			if normal.out.count(line) == 0 {
				t.Errorf("%q is missing at level 3", line)
			}
		}
		for _, line := range []string{"bringup_complete", "[METRICS][FAILOVER]"} {
			if quiet.out.count(line) == 0 {
				t.Errorf("%q always prints", line)
			}
		}
	})
}

func TestNotEverySealIsLogged(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(2000)
		for _, id := range l.ids {
			n := l.nodes[id]
			sealed := int(n.sealedNow()) - 3
			if lines := n.out.count("macroblock_sealed window="); lines < 1 || lines > sealed {
				t.Errorf("%s: %d lines for %d seals", id, lines, sealed)
			}
		}
		total, seals := 0, 0
		for _, id := range l.ids {
			total += l.nodes[id].out.count("macroblock_sealed window=")
			seals += int(l.nodes[id].sealedNow()) - 3
		}
		if total >= seals {
			t.Errorf("%d lines for %d seals: some must be silent", total, seals)
		}
	})
}

func TestSigningMarkStopsASecondBlock(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		// A mark far above the tip, as after a rollback that did not lower it.
		for _, id := range l.ids {
			n := l.nodes[id]
			st, err := openStore(n.dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.writeJSON(fileMark, mark{Height: 450, Round: node.MaxFailoverRound}); err != nil {
				t.Fatal(err)
			}
			st.close()
		}
		l.start(l.ids...)
		l.blocks(300)
		n := l.nodes[l.ids[0]]
		if h := n.heightNow(); h != 360 {
			t.Errorf("height %d: signed below its mark", h)
		}
		if n.out.count("already_signed_this_round")+l.nodes[l.ids[1]].out.count("already_signed_this_round") == 0 {
			t.Error("no line about the mark")
		}
	})
}

func newGet(path string) *http.Request {
	req, _ := http.NewRequest(http.MethodGet, "http://node"+path, nil)
	return req
}

func TestFleetRollbackGoesOn(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 50)
		for _, id := range l.ids {
			l.nodes[id].halt()
			l.nodes[id].start("QNET_ROLLBACK_TO_LAST_SEALED=1")
		}
		l.blocks(2)
		n := l.nodes[l.ids[0]]
		h, sealed := n.heightNow(), n.sealedNow()
		if h%30 != 0 {
			t.Fatalf("height %d after the rollback is no certified point", h)
		}
		l.blocks(upBlocks + 200)
		if n.heightNow() < h+150 || n.sealedNow() < sealed+2 {
			t.Errorf("height %d -> %d, sealed %d -> %d: the fleet does not go on", h, n.heightNow(), sealed, n.sealedNow())
		}
	})
}

func TestOneNodeLab(t *testing.T) {
	bubble(t, 1, 0, []string{EnvGenesisCount + "=1"}, func(t *testing.T, l *labNet) {
		l.start(l.ids...)
		l.blocks(upBlocks + 200)
		n := l.nodes[l.ids[0]]
		if n.sealedNow() != 1 {
			t.Errorf("height %d, sealed %d", n.heightNow(), n.sealedNow())
		}
		checkProof(t, n.mbOf(1), n.proofOf(1))
	})
}

func TestFaultFile(t *testing.T) {
	bubble(t, 5, 0, []string{history}, func(t *testing.T, l *labNet) {
		n := l.nodes[l.ids[0]]
		n.faults = nil // as in a container: nobody but the data directory tells it
		l.start(l.ids...)
		l.blocks(10)
		path := filepath.Join(n.dir, fileFaults)
		if err := os.WriteFile(path, []byte("lie-build=7654321\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		l.blocks(6)
		if _, body := n.get("/healthz"); !strings.HasSuffix(body, "build=7654321") {
			t.Errorf("fault file is not read: %q", body)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.blocks(6)
		if _, body := n.get("/healthz"); !strings.HasSuffix(body, "build=1111111") {
			t.Errorf("fault stays: %q", body)
		}
	})
}

func TestLongChainSyncAndGALC(t *testing.T) {
	bubble(t, 5, 0, []string{EnvHistory + "=3510"}, func(t *testing.T, l *labNet) {
		l.start(l.ids[:4]...)
		l.blocks(130 + 5000)
		late := l.nodes[l.ids[4]]
		late.start()
		l.blocks(40)
		ref := l.nodes[l.ids[0]]
		if a, b := late.heightNow(), ref.heightNow(); a+1 < b {
			t.Fatalf("%d behind %d", a, b)
		}
		if a, b := late.sealedNow(), ref.sealedNow(); a != b {
			t.Errorf("sealed %d, elsewhere %d", a, b)
		}
		w := uint64(80)
		if ref.sealedNow() < w {
			w = 40
		}
		want := fmt.Sprintf("[INFO][GALC] root_adopted mb=%d hash=%.16s", w, ref.mbOf(w).hash())
		if ref.out.count(want) != 1 || late.out.count(want) != 1 {
			t.Errorf("no line %q", want)
		}
		late.halt()
		late.start()
		l.blocks(2)
		if late.out.count("[INFO][GALC] reloaded_persisted_root mb=") != 1 {
			t.Error("root is not reloaded")
		}
	})
}
