package cutover

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/rolling"
)

func h(n uint64) *uint64 { return &n }

func TestForetell(t *testing.T) {
	for name, c := range map[string]struct {
		target, height, floor *uint64
		will, words           string
	}{
		"drop":              {h(900), h(1000), h(870), RollbackDrop, "100 blocks are dropped"},
		"at the tip":        {h(1000), h(1000), h(870), RollbackNothing, "nothing above 1000"},
		"behind the target": {h(1000), h(940), h(870), RollbackNothing, "at height 940"},
		"below the floor":   {h(840), h(1000), h(870), RollbackRefuse, "certified point at 870"},
		"on the floor":      {h(870), h(1000), h(870), RollbackDrop, "130 blocks"},
		"last sealed":       {nil, h(1000), h(870), RollbackDrop, "at most 130 blocks"},
		"nothing sealed":    {nil, h(50), h(0), RollbackUnknown, "without a certified point"},
		"height unknown":    {h(900), nil, h(870), RollbackUnknown, "cannot be read"},
		"floor unknown":     {nil, h(900), nil, RollbackUnknown, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			f := foretell("001", c.target, c.height, c.floor)
			if f.Will != c.will || !strings.Contains(f.Text, c.words) {
				t.Errorf("%+v, want %s with %q", f, c.will, c.words)
			}
		})
	}
}

// TestReadRollback holds every line of facts 4.6 to what it means.
func TestReadRollback(t *testing.T) {
	const (
		truncated = "[INFO][ROLLBACK] truncated_to=3213540 dropped=417 — remove the env var before the next start"
		mark      = "[WARN][ROLLBACK] signed_mark_lowered from_h=9 from_w=1 to_h=3 to_w=1 reason=blocks_abandoned"
	)
	for name, c := range map[string]struct {
		target *uint64
		lines  []string
		want   string
		words  string
	}{
		"truncated":     {nil, []string{truncated, mark}, RollbackDrop, "417 blocks dropped"},
		"to the height": {h(3213540), []string{truncated}, RollbackDrop, "truncated to 3213540"},
		"to another":    {h(3213510), []string{truncated}, RollbackFailed, "and not to 3213510"},
		"already":       {h(90), []string{"[INFO][ROLLBACK] already_at_or_below target=90"}, RollbackNothing, "90"},
		"refused":       {h(90), []string{"[ERR][ROLLBACK] refused target=90 certified_floor=120 reason=certified_checkpoint_irrevocable action=start_unchanged"}, RollbackRefuse, "floor is 120"},
		"no point":      {nil, []string{"[ERR][ROLLBACK] no_certified_point_found action=start_unchanged"}, RollbackNoPoint, "unchanged"},
		"failed":        {h(90), []string{"[ERR][ROLLBACK] failed target=90 err=io action=start_unchanged"}, RollbackFailed, "err=io"},
		"mark not lowered": {nil, []string{truncated, "[ERR][ROLLBACK] signed_mark_lower_failed to=3213540 err=io — this node will refuse to produce"},
			RollbackNoMark, "refuses to produce"},
		"a warning beside": {nil, []string{"[WARN][ROLLBACK] delete_fail h=9", truncated}, RollbackDrop, "417"},
		"another module":   {nil, []string{"[INFO][SYNC] truncated_to=5 dropped=1"}, RollbackUnknown, "nothing of a rollback"},
		"nothing":          {nil, nil, RollbackUnknown, "nothing of a rollback"},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []node.LogLine
			for _, l := range c.lines {
				lines = append(lines, node.ParseLine(l))
			}
			res := readRollback(c.target, lines)
			if res.Outcome != c.want || !strings.Contains(res.Text, c.words) || res.ok() != (c.want == RollbackDrop || c.want == RollbackNothing) {
				t.Errorf("%+v, want %s with %q", res, c.want, c.words)
			}
		})
	}
}

func TestJudgeStopped(t *testing.T) {
	down := sight{Reached: true, State: "exited", Policy: policyHalted}
	killed, open := down, down
	killed.ExitCode, open.Policy = 137, "always"
	for name, c := range map[string]struct {
		s    sight
		ours bool
		want State
	}{
		"stopped":     {down, true, Finished},
		"killed":      {killed, true, Failed},
		"down before": {killed, false, Finished},
		"policy left": {open, true, Waiting},
		"runs":        {sight{Reached: true, State: "running"}, true, Waiting},
		"away":        {sight{Why: "no route"}, true, Missing},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judgeStopped(c.s, c.ours); got.State != c.want || got.Text == "" {
				t.Errorf("%+v, want %s", got, c.want)
			}
		})
	}
}

func TestRejoins(t *testing.T) {
	for name, c := range map[string]struct {
		s    sight
		want bool
	}{
		"down on its old container":    {sight{Reached: true, Container: "old", State: "exited"}, true},
		"runs its old container":       {sight{Reached: true, Container: "old", State: "running"}, true},
		"runs its successor":           {sight{Reached: true, Container: "new", State: "running"}, true},
		"refused, and stopped by hand": {sight{Reached: true, Container: "new", State: "exited"}, false},
		"cannot be reached":            {sight{}, false},
	} {
		if got := rejoins("old", c.s); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestJudgeLeft(t *testing.T) {
	old := rolling.NodePlan{ContainerID: "old", Policy: &host.Policy{Name: "always"}}
	at := func(container, state string) sight { return sight{Reached: true, Container: container, State: state} }
	for name, c := range map[string]struct {
		s    sight
		of   ending
		left bool
	}{
		"went back and runs":                   {at("new", "running"), ending{went: true}, false},
		"went back and ended":                  {at("new", "exited"), ending{went: true}, false},
		"went back, ended and was passed by":   {at("new", "exited"), ending{gone: true, went: true}, false},
		"ended before it went back":            {at("new", "exited"), ending{}, true},
		"refused and was stopped by hand":      {at("new", "exited"), ending{gone: true}, true},
		"held on its old container":            {at("old", "exited"), ending{}, true},
		"took no part and runs":                {at("old", "running"), ending{gone: true}, true},
		"was put back":                         {at("old", "running"), ending{putBack: true}, false},
		"was put back and went down":           {at("old", "exited"), ending{gone: true, putBack: true}, false},
		"cannot be reached, and was passed by": {sight{Why: "no route"}, ending{gone: true}, true},
		"cannot be reached, and is waited for": {sight{Why: "no route"}, ending{}, false},
	} {
		if got, left := judgeLeft(old, c.s, c.of); left != c.left || left && got.State == Finished {
			t.Errorf("%s: %+v %v", name, got, left)
		}
	}
}

func TestJudgeBack(t *testing.T) {
	done := node.ParseLine("[INFO][ROLLBACK] truncated_to=900 dropped=5 — remove the env var before the next start")
	refused := node.ParseLine("[ERR][ROLLBACK] refused target=900 certified_floor=930 reason=certified_checkpoint_irrevocable action=start_unchanged")
	up := node.ParseLine("[INFO][NODE] bringup_complete")
	runs := sight{Reached: true, State: "running"}
	for name, c := range map[string]struct {
		s     sight
		lines []node.LogLine
		late  bool
		want  State
	}{
		"done and up":      {runs, []node.LogLine{done, up}, false, Finished},
		"starting":         {runs, []node.LogLine{done}, false, Waiting},
		"never came up":    {runs, []node.LogLine{done}, true, Failed},
		"nothing said yet": {runs, nil, false, Waiting},
		"nothing said":     {runs, []node.LogLine{up}, true, Failed},
		"refused":          {runs, []node.LogLine{refused, up}, false, Failed},
		"died":             {sight{Reached: true, State: "exited", ExitCode: 1}, []node.LogLine{done}, false, Failed},
		"away":             {sight{Why: "no route"}, nil, true, Missing},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := judgeBack(h(900), c.s, c.lines, nil, c.late); got.State != c.want {
				t.Errorf("%+v, want %s", got, c.want)
			}
		})
	}
}

// TestPulse: silence, blocks without a seal and a slow chain are told apart, none
// later than 180 block times after it could first be told.
func TestPulse(t *testing.T) {
	block := time.Second
	for name, c := range map[string]struct {
		height  func(s uint64) uint64 // s seconds after the nodes came up
		sealed  func(s uint64) uint64
		want    string
		atMost  int
		atLeast int
	}{
		"seals":             {func(s uint64) uint64 { return 900 + s }, func(s uint64) uint64 { return 10 + s/125 }, ChainSealing, 125, 125},
		"silent":            {func(uint64) uint64 { return 900 }, func(uint64) uint64 { return 10 }, ChainSilent, 180, 180},
		"unsealed":          {func(s uint64) uint64 { return 900 + s }, func(uint64) uint64 { return 10 }, ChainUnsealed, 181, 180},
		"catches up":        {func(s uint64) uint64 { return 900 + 5*s }, func(uint64) uint64 { return 10 }, ChainUnsealed, 181, 180},
		"slow":              {func(s uint64) uint64 { return 900 + s/2 }, func(uint64) uint64 { return 10 }, ChainSlow, 182, 180},
		"late, then silent": {func(s uint64) uint64 { return 900 + min(s/170, 1) }, func(uint64) uint64 { return 10 }, ChainSlow, 350, 350},
	} {
		t.Run(name, func(t *testing.T) {
			p := pulse{block: block, need: 2, chain: Chain{FromHeight: 900, FromSealed: 10}}
			now := time.Unix(1_000_000, 0)
			for s := range 400 {
				n := uint64(s)
				got := p.feed(now.Add(time.Duration(s)*block), []uint64{900, c.height(n), c.height(n)}, []uint64{10, c.sealed(n), c.sealed(n)})
				if got.Verdict == ChainWaiting {
					continue
				}
				if got.Verdict != c.want || s < c.atLeast || s > c.atMost || got.Text == "" {
					t.Errorf("after %d s: %+v, want %s", s, got, c.want)
				}
				return
			}
			t.Error("never told")
		})
	}
}

// TestPulseWantsSeveral: one node's word for a seal is not enough, and nothing that
// cannot be read counts.
func TestPulseWantsSeveral(t *testing.T) {
	p := pulse{block: time.Second, need: 2, chain: Chain{FromHeight: 900, FromSealed: 10}}
	now := time.Unix(1_000_000, 0)
	if got := p.feed(now, []uint64{950, 950}, []uint64{11, 10}); got.Verdict != ChainWaiting {
		t.Errorf("%+v", got)
	}
	if got := p.feed(now.Add(time.Second), nil, nil); got.Verdict != ChainWaiting || got.Height != nil || got.Sealed != nil {
		t.Errorf("%+v", got)
	}
	if got := p.feed(now.Add(2*time.Second), []uint64{951, 951}, []uint64{11, 11}); got.Verdict != ChainSealing {
		t.Errorf("%+v", got)
	}
}

func TestOmens(t *testing.T) {
	o := newOmens()
	for id, l := range map[string]string{
		"001": "[WARN][PROD] already_signed_this_round h=9 hwm_h=12 action=yield", "002": "[ERR][ROLLBACK] signed_mark_lower_failed to=9 err=io",
		"003": "[WARN][PROD] parked reason=roster_derivation_horizon h=9 seal_base=1", "004": "[WARN][BFT2] qc_rejected index=1 signers=3 committee=6 quorum=5",
		"005": "[INFO][BFT2] checkpoint_final round=3 finalized_h=90",
	} {
		o.see(id, node.ParseLine(l))
	}
	text := o.String()
	for _, want := range []string{"001 yield", "002 could not lower", "003 are parked", "004 refuse"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if strings.Contains(text, "005") {
		t.Errorf("%q names a healthy node", text)
	}
	if next := nextOf(ChainSilent, o); !strings.Contains(next, "once more") {
		t.Errorf("%q", next)
	}
}

func TestSealedHistory(t *testing.T) {
	seal := func(id string, index uint64, hash byte) observe.NodeView {
		return observe.NodeView{ID: id, Seals: []observe.SealReading{{Index: index, Hash: node.Hash{hash}}}}
	}
	same := observe.View{Nodes: []observe.NodeView{seal("001", 9, 1), seal("002", 9, 1), seal("003", 8, 2), {ID: "004"}}}
	if c := checkSealedHistory(same); c.Verdict != observe.Pass {
		t.Errorf("%+v", c)
	}
	other := observe.View{Nodes: append(slices.Clone(same.Nodes), seal("005", 8, 3))}
	if c := checkSealedHistory(other); c.Verdict != observe.Fail || !strings.Contains(c.Reason, "macroblocks 8") {
		t.Errorf("%+v", c)
	}
}

func TestJudgeDoubt(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	was := map[string]before{"001": {Container: "a", Started: at}, "002": {Container: "b", Started: at}, "003": {Container: "c", Started: at}}
	same := func(id string) sight { return sight{Reached: true, State: "running", Container: id, Started: at} }
	anew := func(id string) sight {
		return sight{Reached: true, State: "running", Container: id, Started: at.Add(time.Minute)}
	}
	for name, c := range map[string]struct {
		sights map[string]sight
		late   bool
		want   journal.StepState
	}{
		"two started anew": {map[string]sight{"001": anew("a"), "002": anew("b"), "003": same("c")}, false, journal.StepDone},
		"one is chance":    {map[string]sight{"001": anew("a"), "002": same("b"), "003": same("c")}, true, journal.StepInDoubt},
		"none":             {map[string]sight{"001": same("a"), "002": same("b"), "003": same("c")}, true, journal.StepFailed},
		"none yet":         {map[string]sight{"001": same("a"), "002": same("b"), "003": same("c")}, false, journal.StepInDoubt},
		"one is away":      {map[string]sight{"001": same("a"), "002": same("b"), "003": {}}, true, journal.StepInDoubt},
		"nobody seen":      {nil, true, journal.StepInDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			if got, text := judgeDoubt(was, c.sights, c.late); got != c.want || text == "" {
				t.Errorf("%s %q, want %s", got, text, c.want)
			}
		})
	}
	if got, _ := judgeDoubt(nil, nil, true); got != journal.StepInDoubt {
		t.Errorf("nothing known of before: %s", got)
	}
}

func TestJudgeDecree(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	b := before{Container: "a", Started: at, Height: h(1000)}
	runs := sight{Reached: true, State: "running", Container: "a", Started: at.Add(time.Minute)}
	seen := func(height uint64) *lowest { return &lowest{height, time.Second, 0} }
	still := runs
	still.Started = at
	for name, c := range map[string]struct {
		b        before
		s        sight
		low      *lowest
		up, late bool
		want     State
	}{
		"pruned":            {b, runs, seen(900), true, false, Finished},
		"pruned, starting":  {b, runs, seen(900), false, false, Waiting},
		"not pruned":        {b, runs, seen(1000), true, false, Failed},
		"seen too late":     {b, runs, &lowest{1500, 100 * time.Second, 0}, true, false, Finished},
		"seen late enough":  {b, runs, &lowest{1500, 99 * time.Second, 0}, true, false, Failed},
		"others are ahead":  {b, runs, &lowest{1500, time.Second, 1500}, true, false, Finished}, // it may have their blocks
		"others are behind": {b, runs, &lowest{1500, time.Second, 999}, true, false, Failed},
		"height not seen":   {b, runs, nil, true, false, Finished},
		"nothing above":     {before{Container: "a", Started: at, Height: h(880)}, runs, seen(880), true, false, Finished},
		"not started anew":  {b, still, nil, true, false, Waiting},
		"never did":         {b, still, nil, true, true, Failed},
		"ended, not back":   {b, sight{Reached: true, State: "exited", Container: "a"}, nil, false, true, Failed},
		"on its way back":   {b, sight{Reached: true, State: "restarting", Container: "a", Started: at.Add(time.Second)}, nil, false, false, Waiting},
		"away":              {b, sight{Why: "no route"}, nil, false, true, Missing},
		"never came up":     {b, runs, seen(900), false, true, Failed},
		"somebody else's":   {b, sight{Reached: true, State: "running", Container: "z", Started: at}, seen(900), true, false, Finished},
	} {
		t.Run(name, func(t *testing.T) {
			got, res := judgeDecree(900, time.Second, c.b, true, c.s, c.low, c.up, c.late)
			if got.State != c.want {
				t.Errorf("%+v %+v, want %s", got, res, c.want)
			}
			if name == "seen too late" && res.Pruned != nil {
				t.Errorf("called %v without having been seen so", *res.Pruned)
			}
			if res.Pruned != nil && *res.Pruned && (c.low == nil || c.low.Height >= 1000) {
				t.Errorf("called pruned without having been seen so: %+v", res)
			}
		})
	}
}

func TestCheckSigs(t *testing.T) {
	genesis := []string{"g1", "g2", "g3", "g4", "g5"}
	sigs := func(ids ...string) (out []node.DecreeSig) {
		for _, id := range ids {
			out = append(out, node.DecreeSig{NodeID: id, Sig: "4142"})
		}
		return out
	}
	for name, c := range map[string]struct {
		genesis []string
		sigs    []node.DecreeSig
		want    observe.Verdict
		words   string
	}{
		"quorum":        {genesis, sigs("g1", "g2", "g3", "g5"), observe.Pass, "4 of 5"},
		"one short":     {genesis, sigs("g1", "g2", "g3"), observe.Fail, "not there: g4, g5"},
		"twice":         {genesis, sigs("g1", "g2", "g3", "g3"), observe.Fail, "g3 signs twice"},
		"a stranger":    {genesis, sigs("g1", "g2", "g3", "s6"), observe.Fail, "s6 is not of the genesis set"},
		"set not known": {nil, sigs("g1", "g2", "g3", "g4"), observe.Unknown, "whose signatures count"},
		"bad form":      {genesis, append(sigs("g1", "g2", "g3"), node.DecreeSig{NodeID: "g4", Sig: "0x41"}), observe.Fail, "g4 is not hex"},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkSigs(DecreePlan{Genesis: c.genesis, Quorum: 4, Sigs: c.sigs})
			if got.Verdict != c.want || !strings.Contains(got.Reason, c.words) {
				t.Errorf("%+v, want %s with %q", got, c.want, c.words)
			}
		})
	}
	merged := MergeSigs(sigs("g3", "g1"), sigs("g1", "g2"))
	if len(merged) != 3 || merged[0].NodeID != "g1" || merged[2].NodeID != "g3" {
		t.Errorf("%+v", merged)
	}
}
