package node

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// kv builds a key map from "a=1 b=2"; ~ stands for a space in a value.
func kv(s string) map[string]string {
	m := map[string]string{}
	for f := range strings.FieldsSeq(s) {
		k, v, _ := strings.Cut(f, "=")
		m[k] = strings.ReplaceAll(v, "~", " ")
	}
	return m
}

// TestParseLineShapes holds every line shape the facts name.
func TestParseLineShapes(t *testing.T) {
	for _, c := range []struct{ raw, level, module, event, keys string }{
		{"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica", "INFO", "BFT2", "macroblock_sealed", "window=35706 round=107135 head_h=3213540 signers=5 role=replica"},
		{"[INFO][BFT2] macroblock_sealed idx=35706 head_h=3213540 signers=5", "INFO", "BFT2", "macroblock_sealed", "idx=35706 head_h=3213540 signers=5"},
		{"[WARN][BFT2] seal_deferred window=7 reason=parent_absent", "WARN", "BFT2", "seal_deferred", "window=7 reason=parent_absent"},
		{"[WARN][BFT2] seal_skipped window=7 reason=seal_inputs_absent", "WARN", "BFT2", "seal_skipped", "window=7 reason=seal_inputs_absent"},
		{"[WARN][BFT2] persist_refused reason=x head=630 detail=epoch_commitment_mismatch", "WARN", "BFT2", "persist_refused", "reason=x head=630 detail=epoch_commitment_mismatch"},
		{"[WARN][BFT2] macroblock_save_failed window=7 err=io", "WARN", "BFT2", "macroblock_save_failed", "window=7 err=io"},
		{"[INFO][BFT2] checkpoint_final round=21 finalized_h=630", "INFO", "BFT2", "checkpoint_final", "round=21 finalized_h=630"},
		{"[WARN][BFT2] finalize_deferred round=21 head_h=630 chain_h=629 state_match=true content_ok=false", "WARN", "BFT2", "finalize_deferred", "round=21 head_h=630 chain_h=629 state_match=true content_ok=false"},
		{"[INFO][BFT2] intra_checkpoint_signalled cp_index=22 head=660 k=30", "INFO", "BFT2", "intra_checkpoint_signalled", "cp_index=22 head=660 k=30"},
		{"[INFO][MB] sync_adopt_finality adopted=7 qc_frontier=8 tip_mb=9 content_fr=7", "INFO", "MB", "sync_adopt_finality", "adopted=7 qc_frontier=8 tip_mb=9 content_fr=7"},
		{"[WARN][MB] finality_lag_redrive fin=1 tip=2 boundary=3 kind=macro", "WARN", "MB", "finality_lag_redrive", "fin=1 tip=2 boundary=3 kind=macro"},
		{"[INFO][CONS] validator=true mb=35707 participating active_lock=acquired", "INFO", "CONS", "participating", "validator=true mb=35707 active_lock=acquired"},
		{"[WARN][CONS] checkpoint_defer mb=35707 reason=anchor_unsealed_frozen", "WARN", "CONS", "checkpoint_defer", "mb=35707 reason=anchor_unsealed_frozen"},
		{"[WARN][CONS] window_end_abstain mb=35707 eligible=6 committee=0 reason=underivable", "WARN", "CONS", "window_end_abstain", "mb=35707 eligible=6 committee=0 reason=underivable"},
		{"[INFO][ASYNC-CONS] mb=7 role=PROPOSER start_h=541 end_h=630 async=true", "INFO", "ASYNC-CONS", "", "mb=7 role=PROPOSER start_h=541 end_h=630 async=true"},
		{"[INFO][COMMITTEE] mb=7 node=super_node_4f2c9a10 NOT_IN_COMMITTEE total=6 committee=5 → skip_consensus (will receive MB via sync)", "INFO", "COMMITTEE", "NOT_IN_COMMITTEE", "mb=7 node=super_node_4f2c9a10 total=6 committee=5"},
		{"[WARN][MB] consensus_skip_unsynced mb=7 local_h=500 reason=behind", "WARN", "MB", "consensus_skip_unsynced", "mb=7 local_h=500 reason=behind"},
		{"[METRICS][FAILOVER] failover_events=0 max_timeout_round=0 max_slot_delay=2s", "METRICS", "FAILOVER", "", "failover_events=0 max_timeout_round=0 max_slot_delay=2s"},
		{"[WARN][BFT2] qc_rejected index=107136 signers=3 committee=6 quorum=5", "WARN", "BFT2", "qc_rejected", "index=107136 signers=3 committee=6 quorum=5"},
		{"[WARN][BFT2] catchup_rejected window=35706 signers=5 foreign_signers=0", "WARN", "BFT2", "catchup_rejected", "window=35706 signers=5 foreign_signers=0"},
		{"[WARN][BFT2] catchup_rejected window=35706 foreign_signers=0", "WARN", "BFT2", "catchup_rejected", "window=35706 foreign_signers=0"},
		{"[WARN][BFT2] inbound_refused rejects=1 verify_failed=2 cert_shed=3", "WARN", "BFT2", "inbound_refused", "rejects=1 verify_failed=2 cert_shed=3"},
		{"[WARN][BFT2] catchup_pull next_window=8 last_signaled=7 peer_window=9 action=fetch", "WARN", "BFT2", "catchup_pull", "next_window=8 last_signaled=7 peer_window=9 action=fetch"},
		{"[WARN][BFT2] committee_unresolved win=7 action=buffer", "WARN", "BFT2", "committee_unresolved", "win=7 action=buffer"},
		{"[ERROR][BFT2] consensus_not_started reason=vote_commitments_unreadable err=io", "ERROR", "BFT2", "consensus_not_started", "reason=vote_commitments_unreadable err=io"},
		{"[WARN][BFT2] startup_sync_skipped idx=3 reason=checkpoint_qc_unreadable", "WARN", "BFT2", "startup_sync_skipped", "idx=3 reason=checkpoint_qc_unreadable"},
		{"[INFO][BFT2] runtime_started committee=5 view_timeout_ms=4000", "INFO", "BFT2", "runtime_started", "committee=5 view_timeout_ms=4000"},
		{"[INFO][BFT2] runtime_boot node=genesis_node_001", "INFO", "BFT2", "runtime_boot", "node=genesis_node_001"},
		{"[INFO][HALT] QNET_HALT_HEIGHT=1000 — node will stop at this block (coordinated upgrade)", "INFO", "HALT", "node", "QNET_HALT_HEIGHT=1000"},
		{"[INFO][HALT] Reached halt_height=1000 current=1017 — flushing and stopping for coordinated upgrade", "INFO", "HALT", "Reached", "halt_height=1000 current=1017"},
		{"[INFO][HALT] storage.flush_all() complete", "INFO", "HALT", "storage.flush_all()", ""},
		{"[ERR][HALT] storage.flush_all() failed: io", "ERR", "HALT", "storage.flush_all()", ""},
		{"[INFO][HALT] Node stopped. Update binary and restart (remove QNET_HALT_HEIGHT).", "INFO", "HALT", "Node", ""},
		{"[CRIT][STATE] escalate=halt_signal", "CRIT", "STATE", "", "escalate=halt_signal"},
		{"[CRIT][NODE] halt_requested", "CRIT", "NODE", "halt_requested", ""},
		{"[ERR][ROLLBACK] refused target=90 certified_floor=180 reason=certified_checkpoint_irrevocable action=start_unchanged", "ERR", "ROLLBACK", "refused", "target=90 certified_floor=180 reason=certified_checkpoint_irrevocable action=start_unchanged"},
		{"[ERR][ROLLBACK] no_certified_point_found action=start_unchanged", "ERR", "ROLLBACK", "no_certified_point_found", "action=start_unchanged"},
		{"[INFO][ROLLBACK] already_at_or_below target=90", "INFO", "ROLLBACK", "already_at_or_below", "target=90"},
		{"[INFO][ROLLBACK] truncated_to=3213540 dropped=417 — remove the env var before the next start", "INFO", "ROLLBACK", "remove", "truncated_to=3213540 dropped=417"},
		{"[ERR][ROLLBACK] failed target=90 err=io action=start_unchanged", "ERR", "ROLLBACK", "failed", "target=90 err=io action=start_unchanged"},
		{"[WARN][ROLLBACK] signed_mark_lowered from_h=99 from_w=2 to_h=90 to_w=1 reason=blocks_abandoned", "WARN", "ROLLBACK", "signed_mark_lowered", "from_h=99 from_w=2 to_h=90 to_w=1 reason=blocks_abandoned"},
		{"[ERR][ROLLBACK] signed_mark_lower_failed to=90 err=io — this node will refuse to produce", "ERR", "ROLLBACK", "signed_mark_lower_failed", "to=90 err=io"},
		{"[CRIT][ROLLBACK] trueup_candidates_truncated staged=4 dropped=2", "CRIT", "ROLLBACK", "trueup_candidates_truncated", "staged=4 dropped=2"},
		{"[FATAL][RESTART] malformed_manifest err=restart_zero_hash — refusing to start", "FATAL", "RESTART", "malformed_manifest", "err=restart_zero_hash"},
		{"[WARN][RESTART] manifest_active resume_from_mb=35706 excluded=1", "WARN", "RESTART", "manifest_active", "resume_from_mb=35706 excluded=1"},
		{"[FATAL][GEN] WS restart pin active (K=35706) with empty local chain — refusing to mint fresh genesis (would wipe balances, no re-mint path). Recovery MUST cold-join from macroblock K. Halting to retry sync.", "FATAL", "GEN", "WS", "K=35706"},
		{"[WARN][PROD] parked reason=roster_derivation_horizon h=3216420 seal_base=3213540 rotation=live", "WARN", "PROD", "parked", "reason=roster_derivation_horizon h=3216420 seal_base=3213540 rotation=live"},
		{"[WARN][TIMEOUT] failover_round_capped round=50 cap=50 mb=7 action=hold+recovery_sync", "WARN", "TIMEOUT", "failover_round_capped", "round=50 cap=50 mb=7 action=hold+recovery_sync"},
		{"[WARN][TIMEOUT] window_amplified from=1 to=2 floor=1 ticks=3", "WARN", "TIMEOUT", "window_amplified", "from=1 to=2 floor=1 ticks=3"},
		{"[WARN][SYNC] stalled h=5 target=9", "WARN", "SYNC", "stalled", "h=5 target=9"},
		{"[INFO][SYNC] initial_sync_complete h=5", "INFO", "SYNC", "initial_sync_complete", "h=5"},
		{"[WARN][SYNC] initial_sync_below_frontier h=5 frontier=9 action=continue", "WARN", "SYNC", "initial_sync_below_frontier", "h=5 frontier=9 action=continue"},
		{"[WARN][MB-CHECK] missing=2 list=[7, 9]", "WARN", "MB-CHECK", "", "missing=2 list=[7,~9]"},
		{"[INFO][MB-CHECK] verified count=3 range=7-9", "INFO", "MB-CHECK", "verified", "count=3 range=7-9"},
		{"[INFO][NODE] net_ready peers=4 stable=60s", "INFO", "NODE", "net_ready", "peers=4 stable=60s"},
		{"[INFO][NODE] production_start", "INFO", "NODE", "production_start", ""},
		{"[INFO][NODE] bringup_complete", "INFO", "NODE", "bringup_complete", ""},
		{"[ERR][NODE] CRITICAL: Genesis node timeout with 2 peers, quorum needs 4!", "ERR", "NODE", "CRITICAL:", ""},
		{"[CRIT][WATCHDOG] chain_stuck h=5", "CRIT", "WATCHDOG", "chain_stuck", "h=5"},
		{"[CRIT][FAILOVER] stuck action=stay_up_degraded reason=restart_budget_exhausted", "CRIT", "FAILOVER", "stuck", "action=stay_up_degraded reason=restart_budget_exhausted"},
		{"[INFO][BOOT] subsystem_started name=sync", "INFO", "BOOT", "subsystem_started", "name=sync"},
		{"[WARN][BOOT] subsystem_skipped name=x reason=y", "WARN", "BOOT", "subsystem_skipped", "name=x reason=y"},
		{"[INFO][BOOT] contract_satisfied required=12 started=12", "INFO", "BOOT", "contract_satisfied", "required=12 started=12"},
		{"[FATAL][BOOT] subsystems_missing count=2 names=a,b action=exit", "FATAL", "BOOT", "subsystems_missing", "count=2 names=a,b action=exit"},
		{"[WARN][MONITOR] no_peers_connected", "WARN", "MONITOR", "no_peers_connected", ""},
		{"[FATAL][PREFLIGHT] checks_failed node_type=super err=ports", "FATAL", "PREFLIGHT", "checks_failed", "node_type=super err=ports"},
		{"[WARN][PREFLIGHT] incomplete node_type=super failed=a,b", "WARN", "PREFLIGHT", "incomplete", "node_type=super failed=a,b"},
		{"[CRIT][RPC] rpc_server port=8001 exited unexpectedly — restarting node", "CRIT", "RPC", "rpc_server", "port=8001"},
		{"[FATAL][RPC] Cannot bind port 8001", "FATAL", "RPC", "Cannot", ""},
		{"[INFO][MEMORY] node=a rss_mb=1 virt_mb=2 delta_mb=-3 mempool_txs=0 mempool_mb=0 tx_pool=0 sync_q=0 macro_q=0 peers=5 rate_limit=0 producer_cache=0", "INFO", "MEMORY", "", "node=a rss_mb=1 virt_mb=2 delta_mb=-3 mempool_txs=0 mempool_mb=0 tx_pool=0 sync_q=0 macro_q=0 peers=5 rate_limit=0 producer_cache=0"},
		{"[CRIT][MEMORY] node=a rss_mb=9 limit=8 OOM_IMMINENT graceful_shutdown", "CRIT", "MEMORY", "OOM_IMMINENT", "node=a rss_mb=9 limit=8"},
		{"[CRIT][MEMORY] node=a rss_mb=9 limit=8 FATAL_BREACH recheck_in=30s …", "CRIT", "MEMORY", "FATAL_BREACH", "node=a rss_mb=9 limit=8 recheck_in=30s"},
		{"[WARN][MEMORY] oom_backoff boot_delay=40s consecutive=2", "WARN", "MEMORY", "oom_backoff", "boot_delay=40s consecutive=2"},
		{"[CRIT][STORAGE] node=a state=critically_full action=admin_required", "CRIT", "STORAGE", "", "node=a state=critically_full action=admin_required"},
		{"[WARN][API] shutdown_rejected_external ip=192.0.2.7", "WARN", "API", "shutdown_rejected_external", "ip=192.0.2.7"},
		{"[INFO][SHUTDOWN] node terminating", "INFO", "SHUTDOWN", "node", ""},
		{"[INFO][GALC] root_adopted mb=35680 hash=a03b167e311e5221", "INFO", "GALC", "root_adopted", "mb=35680 hash=a03b167e311e5221"},
		// What is no log line of a node keeps its text and has no level.
		{"", "", "", "", ""},
		{"thread 'main' panicked at src/main.rs:1: signers=0", "", "", "", ""},
		{"[note] [INFO][BFT2] macroblock_sealed window=1", "", "", "", ""},
		{"[INFO] only one bracket signers=5", "", "", "", ""},
		{"🚀 starting", "", "", "", ""},
	} {
		for _, prefix := range []string{"", "2026-07-05T10:20:30.123456789Z "} {
			l := ParseLine(prefix + c.raw + "\r\n")
			if l.Level != c.level || l.Module != c.module || l.Event != c.event {
				t.Errorf("%q: [%s][%s] event %q, want [%s][%s] event %q", c.raw, l.Level, l.Module, l.Event, c.level, c.module, c.event)
			}
			if want := kv(c.keys); !maps.Equal(l.Keys, want) {
				t.Errorf("%q: keys %v, want %v", c.raw, l.Keys, want)
			}
			if (prefix != "") == l.Time.IsZero() {
				t.Errorf("%q: time %v", prefix+c.raw, l.Time)
			}
			if c.level == "" && l.Text != c.raw {
				t.Errorf("unknown line %q kept as %q", c.raw, l.Text)
			}
		}
	}
}

func TestParseLineTimestamp(t *testing.T) {
	l := ParseStreamLine("2026-07-05T10:20:30.123456789Z [FATAL][BOOT] subsystems_missing count=1 names=a action=exit", true)
	want := time.Date(2026, 7, 5, 10, 20, 30, 123456789, time.UTC)
	if !l.Time.Equal(want) || !l.Stderr || !Fatal(l) {
		t.Errorf("%+v", l)
	}
	for _, raw := range []string{"2026-07-05 [INFO][NODE] x", "20260705T102030Z [INFO][NODE] x y z", "1234567890123456789012 blocks"} {
		if l := ParseLine(raw); !l.Time.IsZero() || l.Text != raw {
			t.Errorf("%q: %+v", raw, l)
		}
	}
	// A line with nothing but a stamp is an empty line.
	if l := ParseLine("2026-07-05T10:20:30.1Z"); l.Time.IsZero() || l.Text != "" {
		t.Errorf("%+v", l)
	}
}

// TestKeysAreWhole: an earlier tool read foreign_signers=0 as signers=0 and took
// the quorum for zero; a build id with "h=" in it broke its height.
func TestKeysAreWhole(t *testing.T) {
	l := ParseLine("[WARN][BFT2] catchup_rejected window=35706 foreign_signers=0")
	if v, ok := l.Uint("signers"); ok {
		t.Errorf("signers = %d from foreign_signers", v)
	}
	l = ParseLine("[INFO][NODE] started build=abc-h=99 h=5")
	if v, ok := l.Uint("h"); !ok || v != 5 {
		t.Errorf("h = %d %v", v, ok)
	}
	if l.Keys["build"] != "abc-h=99" {
		t.Errorf("build = %q", l.Keys["build"])
	}
	l = ParseLine("[WARN][BFT2] qc_rejected signers=3 committee=6 signers=5")
	if v, ok := l.Uint("signers"); ok {
		t.Errorf("torn key read as %d", v)
	}
	l = ParseLine("[WARN][BFT2] qc_rejected (signers=3, committee=6; quorum=5)")
	for key, want := range map[string]uint64{"signers": 3, "committee": 6, "quorum": 5} {
		if v, ok := l.Uint(key); !ok || v != want {
			t.Errorf("%s = %d %v, want %d", key, v, ok, want)
		}
	}
	l = ParseLine("[X][Y] a=-1 b=+1 c=1.5 d= e=99999999999999999999 f=0x1 g=1s h=é")
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "none"} {
		if v, ok := l.Uint(key); ok {
			t.Errorf("%s read as %d", key, v)
		}
	}
	if d, ok := l.Seconds("g"); !ok || d != time.Second {
		t.Errorf("g = %v", d)
	}
}

func TestSealed(t *testing.T) {
	for raw, want := range map[string]Seal{
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica": {35706, 107135, 3213540, 5, "replica"},
		"[INFO][BFT2] macroblock_sealed role=leader signers=4 head_h=90 round=3 window=1":                {1, 3, 90, 4, "leader"},
		"[INFO][BFT2] macroblock_sealed idx=107135 head_h=3213540 signers=5":                             {35706, 0, 3213540, 5, ""},
	} {
		if got, ok := Sealed(ParseLine(raw)); !ok || got != want {
			t.Errorf("%s: %+v %v", raw, got, ok)
		}
	}
	for _, raw := range []string{
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 foreign_signers=5 role=replica",
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=0 role=replica",
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=1001 role=replica",
		"[INFO][BFT2] macroblock_sealed window=35707 round=107135 head_h=3213540 signers=5 role=replica",
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213541 signers=5 role=replica",
		"[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=boss",
		"[INFO][BFT2] macroblock_sealed head_h=3213540 signers=5",
		"[INFO][OTHER] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica",
		"[INFO][BFT2] not macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica",
		"macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica",
	} {
		if got, ok := Sealed(ParseLine(raw)); ok {
			t.Errorf("%s: read as %+v", raw, got)
		}
	}
}

func TestTypedReaders(t *testing.T) {
	p := ParseLine
	if w, ok := Participation(p("[INFO][CONS] validator=true mb=35707 participating active_lock=acquired")); !ok || w != 35707 {
		t.Errorf("participation %d %v", w, ok)
	}
	for _, raw := range []string{"[INFO][CONS] validator=false mb=35707 participating", "[INFO][CONS] validator=true mb=35707 not_participating",
		"[INFO][ASYNC-CONS] validator=true mb=35707 participating", "[INFO][CONS] validator=true participating"} {
		if w, ok := Participation(p(raw)); ok {
			t.Errorf("%s: %d", raw, w)
		}
	}
	if w, ok := Defer(p("[WARN][CONS] checkpoint_defer mb=7 reason=anchor_unsealed_frozen")); !ok || w != 7 {
		t.Errorf("defer %d %v", w, ok)
	}
	if w, ok := Abstain(p("[WARN][CONS] window_end_abstain mb=7 eligible=6 committee=0 reason=underivable")); !ok || w != 7 {
		t.Errorf("abstain %d %v", w, ok)
	}
	if w, ok := NotInCommittee(p("[INFO][COMMITTEE] mb=7 node=x NOT_IN_COMMITTEE total=6 committee=5 → skip_consensus")); !ok || w != 7 {
		t.Errorf("not in committee %d %v", w, ok)
	}
	if w, ok := ConsensusSkip(p("[WARN][MB] consensus_skip_unsynced mb=7 local_h=500 reason=x")); !ok || w != 7 {
		t.Errorf("skip %d %v", w, ok)
	}
	for _, raw := range []string{"[METRICS][FAILOVER] failover_events=2 max_timeout_round=1", "[METRICS][FAILOVER] x max_timeout_round=1 y=2 failover_events=2"} {
		if f, ok := FailoverMetrics(p(raw)); !ok || f != (FailoverReading{2, 1}) {
			t.Errorf("%s: %+v %v", raw, f, ok)
		}
	}
	if _, ok := FailoverMetrics(p("[METRICS][FAILOVER] failover_events=2")); ok {
		t.Error("half a metrics line was read")
	}
	if !BringupComplete(p("[INFO][NODE] bringup_complete")) || BringupComplete(p("[INFO][NODE] no bringup_complete")) || !ProductionStart(p("[INFO][NODE] production_start")) {
		t.Error("boot lines")
	}
	if h, ok := HaltArmed(p("[INFO][HALT] QNET_HALT_HEIGHT=1000 — node will stop at this block (coordinated upgrade)")); !ok || h != 1000 {
		t.Errorf("armed %d %v", h, ok)
	}
	if h, cur, ok := HaltReached(p("[INFO][HALT] Reached halt_height=1000 current=1017 — flushing and stopping for coordinated upgrade")); !ok || h != 1000 || cur != 1017 {
		t.Errorf("reached %d %d %v", h, cur, ok)
	}
	if _, _, ok := HaltReached(p("[INFO][HALT] Reached halt_height=1000 current=999 — x")); ok {
		t.Error("halted before the height")
	}
	if !HaltStopped(p("[INFO][HALT] Node stopped. Update binary and restart (remove QNET_HALT_HEIGHT).")) || HaltStopped(p("[INFO][NODE] Node stopped.")) {
		t.Error("halt stopped")
	}
	if h, base, ok := Parked(p("[WARN][PROD] parked reason=roster_derivation_horizon h=9 seal_base=7 rotation=live")); !ok || h != 9 || base != 7 {
		t.Error("parked")
	}
	if to, n, ok := Truncated(p("[INFO][ROLLBACK] truncated_to=3213540 dropped=417 — remove the env var before the next start")); !ok || to != 3213540 || n != 417 {
		t.Error("truncated")
	}
	if to, floor, ok := RollbackRefused(p("[ERR][ROLLBACK] refused target=90 certified_floor=180 reason=x action=y")); !ok || to != 90 || floor != 180 {
		t.Error("refused")
	}
	r, ok := QCRejected(p("[WARN][BFT2] something catchup_rejected signers=5 foreign_signers=0"))
	if !ok || r.Event != "catchup_rejected" || *r.Signers != 5 || *r.Foreign != 0 || r.Quorum != nil {
		t.Errorf("rejected %+v", r)
	}
	if k, n, ok := ManifestActive(p("[WARN][RESTART] manifest_active resume_from_mb=35706 excluded=1")); !ok || k != 35706 || n != 1 {
		t.Error("manifest")
	}
	if code, ok := MalformedManifest(p("[FATAL][RESTART] malformed_manifest err=restart_zero_hash — refusing to start")); !ok || code != "restart_zero_hash" {
		t.Error("malformed")
	}
	if names, ok := SubsystemsMissing(p("[FATAL][BOOT] subsystems_missing count=2 names=a,b action=exit")); !ok || len(names) != 2 {
		t.Error("subsystems")
	}
	if mb, h, ok := RootAdopted(p("[INFO][GALC] root_adopted mb=35680 hash=a03b167e311e5221")); !ok || mb != 35680 || h != "a03b167e311e5221" {
		t.Error("galc")
	}
	for raw, want := range map[string]bool{"[FATAL][A] x": true, "[CRIT][A] x": true, "[ERR][A] x": true, "[ERROR][A] x": true, "[WARN][A] x": false, "FATAL x": false} {
		if Grave(p(raw)) != want {
			t.Errorf("Grave(%s) = %v", raw, !want)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add("[INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica")
	f.Add("2026-07-05T10:20:30.1Z [WARN][MB-CHECK] missing=2 list=[7, 9] x=\"a b\" y=[")
	f.Add("[INFO][COMMITTEE] mb=7 NOT_IN_COMMITTEE → é=1 ==[ = (a=1)")
	f.Fuzz(func(t *testing.T, raw string) {
		l := ParseLine(raw)
		if !strings.Contains(raw, l.Text) {
			t.Errorf("text %q is not part of %q", l.Text, raw)
		}
		if (l.Level == "") != (l.Module == "") || l.Level == "" && (l.Keys != nil || l.Event != "") {
			t.Errorf("half a prefix: %+v", l)
		}
		for k, v := range l.Keys {
			// A key is whole: what stands before it in the text is no part of a key.
			at := strings.Index(l.Text, k+"="+v)
			if at < 0 {
				t.Fatalf("pair %s=%s is not in %q", k, v, l.Text)
			}
			for at >= 0 && at > 0 && !strings.ContainsRune(" \t(", rune(l.Text[at-1])) {
				next := strings.Index(l.Text[at+1:], k+"="+v)
				if next < 0 {
					if !strings.Contains(l.Text, "=\"") && !strings.Contains(l.Text, "=[") {
						t.Fatalf("pair %s=%s is the tail of another in %q", k, v, l.Text)
					}
					break
				}
				at += 1 + next
			}
		}
		if s, ok := Sealed(l); ok && (s.Signers < 1 || s.Window*MacroblockBlocks != s.HeadHeight) {
			t.Errorf("seal %+v", s)
		}
		Participation(l)
		QCRejected(l)
		FailoverMetrics(l)
	})
}

func BenchmarkParseLine(b *testing.B) {
	const line = "2026-07-05T10:20:30.123456789Z [INFO][BFT2] macroblock_sealed window=35706 round=107135 head_h=3213540 signers=5 role=replica"
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		ParseLine(line)
	}
}
