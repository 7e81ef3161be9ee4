package rolling

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/journal"
	"github.com/qnetops/qnetops/observe"
)

const (
	oldDigest = "registry.example.org/qnet@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	newDigest = "registry.example.org/qnet@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func fleetOf(states map[string]observe.State) observe.View {
	v := observe.View{Fleet: "test", Verdict: observe.Healthy, Seal: &observe.SealView{Index: 12, Committee: committee(6)}}
	for _, id := range []string{"001", "002", "003", "004", "005", "006"} {
		state, ok := states[id]
		if !ok {
			state = observe.Healthy
		}
		offset := 10 * time.Millisecond
		v.Nodes = append(v.Nodes, observe.NodeView{ID: id, Reachable: true, Verdict: state, ClockOffset: &offset})
	}
	return v
}

func inputs() Inputs {
	in := Inputs{Image: &host.Image{Digest: newDigest, SizeBytes: 1_000_000_000, Arch: "amd64"}, Nodes: map[string]NodeInput{}}
	for _, id := range []string{"001", "002", "003", "004", "005", "006"} {
		in.Nodes[id] = NodeInput{
			Facts: host.Facts{Container: &host.ContainerFacts{ID: "old" + id, Name: "qnet-genesis-" + id, ImageRef: "qnet:v1", ImageDigests: []string{oldDigest}, StopTimeoutSeconds: 10},
				Disks: []host.DiskFacts{{Path: "/var/lib/docker", FreeBytes: 50_000_000_000}}},
			Carry:   host.CarryReport{DataDir: host.DataDirCheck{OK: true}, Carried: []host.Item{{Field: "Env", Name: "B"}, {Field: "Env", Name: "A"}}},
			Present: host.Image{Digest: oldDigest, ID: "sha256:1", Arch: "amd64", Build: "1111111"},
		}
	}
	return in
}

func spec() Spec {
	return Spec{Image: "qnet:v2", Targets: []string{"003", "001", "002", "006", "005", "004"}, Canary: "004"}
}

func TestPlanOrder(t *testing.T) {
	plan := New(fleetOf(map[string]observe.State{"005": observe.Behind}), inputs(), spec())
	var got []string
	for _, p := range plan.Nodes {
		got = append(got, p.ID)
	}
	if want := []string{"005", "004", "001", "002", "003", "006"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want unhealthy, canary, then by id: %v", got, want)
	}
	if !strings.Contains(plan.Nodes[0].Why, "behind") || plan.Nodes[1].Why != "canary" {
		t.Errorf("the order is not explained: %q, %q", plan.Nodes[0].Why, plan.Nodes[1].Why)
	}
}

// Invariant 9: same view, same inputs, same digest; what moves by itself
// (heights, the index of the newest seal, clocks, free space) is not in it.
func TestInvariant9PlanDigestHoldsNothingThatMoves(t *testing.T) {
	first := New(fleetOf(nil), inputs(), spec())
	view, in := fleetOf(nil), inputs()
	height, offset := uint64(5000), 30*time.Millisecond
	view.Seal.Index = 13
	view.TakenAt = time.Now()
	for i := range view.Nodes {
		view.Nodes[i].Height, view.Nodes[i].ClockOffset = &height, &offset
	}
	for id, n := range in.Nodes {
		n.Facts.Now = time.Now()
		n.Facts.Disks = []host.DiskFacts{{Path: "/var/lib/docker", FreeBytes: 49_000_000_000}}
		n.Carry.Carried = []host.Item{{Field: "Env", Name: "A"}, {Field: "Env", Name: "B"}}
		in.Nodes[id] = n
	}
	if second := New(view, in, spec()); second.Digest() != first.Digest() {
		t.Error("the digest changed although nothing that matters did")
	}
	changed := inputs()
	n := changed.Nodes["002"]
	n.Facts.Container.ID = "another"
	if New(fleetOf(nil), changed, spec()).Digest() == first.Digest() {
		t.Error("another container on 002 gives the same digest")
	}
}

func TestPlanArithmetic(t *testing.T) {
	// facts 3: at six members the quorum is five, so only one may be down.
	plan := New(fleetOf(nil), inputs(), spec())
	if plan.Committee.Size != 6 || plan.Committee.Quorum != 5 || plan.Committee.Spare != 1 {
		t.Errorf("committee %+v, want 6 members, quorum 5, spare 1", plan.Committee)
	}
	if plan.Nodes[0].StopTimeout != 60 {
		t.Errorf("stop timeout %d s: a node needs 60 s to flush", plan.Nodes[0].StopTimeout)
	}
}

func TestPlanLeavesNodesOnTheImageAlone(t *testing.T) {
	in := inputs()
	n := in.Nodes["001"]
	n.Present.Digest = newDigest
	in.Nodes["001"] = n
	plan := New(fleetOf(nil), in, spec())
	if p := plan.Node("001"); p.Action != ActionNone || p.ActionWhy == "" {
		t.Errorf("001 runs the digest already, but the plan says %s %q", p.Action, p.ActionWhy)
	}
	n.Carry.LeftOut = []host.Item{{Field: "Env", Name: "QNET_ROLLBACK_TO_LAST_SEALED", Why: "one-shot"}}
	in.Nodes["001"] = n
	if p := New(fleetOf(nil), in, spec()).Node("001"); p.Action != ActionReplace {
		t.Error("a node that carries a one-shot variable is worth recreating on the same image")
	}
}

// DESIGN 3.4: where the old container carries a one-shot variable, putting it
// back would act again, so failure holds.
func TestOneShotVariableMakesFailureHold(t *testing.T) {
	in := inputs()
	in.Nodes["001"].Facts.Container.OneShot = []string{"QNET_CLEAN_DATA"}
	p := New(fleetOf(nil), in, spec()).Node("001")
	if p.OnFail != "hold" || !strings.Contains(p.OnFailWhy, "QNET_CLEAN_DATA") {
		t.Errorf("on failure %s (%s)", p.OnFail, p.OnFailWhy)
	}
}

func TestPreflight(t *testing.T) {
	refusing := func(view observe.View, in Inputs, s Spec) []string {
		plan := New(view, in, s)
		var names []string
		for _, c := range Refusals(Preflight(view, in, plan), plan) {
			names = append(names, c.Name)
		}
		return names
	}
	change := func(edit func(*NodeInput)) Inputs {
		in := inputs()
		n := in.Nodes["003"]
		edit(&n)
		in.Nodes["003"] = n
		return in
	}
	stopped := fleetOf(nil)
	stopped.Verdict = observe.Stalled
	forked := fleetOf(nil)
	forked.Verdict = observe.Fork
	skewed := fleetOf(nil)
	far := -1500 * time.Millisecond
	skewed.Nodes[2].ClockOffset = &far
	mute := fleetOf(nil)
	mute.Nodes[2].Reachable = false
	noClock := fleetOf(nil)
	noClock.Nodes[2].ClockOffset = nil
	for _, c := range []struct {
		name string
		view observe.View
		in   Inputs
		want []string
	}{
		{"all well", fleetOf(nil), inputs(), nil},
		{"unreachable", mute, inputs(), []string{"reachable"}},
		{"agent failed", fleetOf(nil), change(func(n *NodeInput) { n.Err = errors.New("no") }), []string{"reachable"}},
		{"forked", forked, inputs(), []string{"fork"}},
		{"stalled", stopped, inputs(), []string{"fleet"}},
		{"clock off by more than a second", skewed, inputs(), []string{"clock"}},
		{"clock not read", noClock, inputs(), []string{"clock"}},
		{"data directory moves", fleetOf(nil), change(func(n *NodeInput) { n.Carry.DataDir.OK = false }), []string{"data_dir"}},
		{"watchtower", fleetOf(nil), change(func(n *NodeInput) { n.Facts.Updaters = []string{"watchtower"} }), []string{"second_updater"}},
		{"disk full", fleetOf(nil), change(func(n *NodeInput) { n.Facts.Disks[0].FreeBytes = 5_999_999_999 }), []string{"disk"}},
		{"disk just enough", fleetOf(nil), change(func(n *NodeInput) { n.Facts.Disks[0].FreeBytes = 6_000_000_000 }), nil},
		{"disk not read", fleetOf(nil), change(func(n *NodeInput) { n.Facts.Disks[0].Error = "no" }), []string{"disk"}},
		{"an old container is still aside", fleetOf(nil), change(func(n *NodeInput) {
			n.Facts.Siblings = []host.Sibling{{Name: "qnet-genesis-003-pre-20260101T000000Z"}}
		}), []string{"leftover"}},
		{"another container on the data", fleetOf(nil), change(func(n *NodeInput) {
			n.Facts.Siblings = []host.Sibling{{Name: "backup", SharesData: true, Writable: true}}
		}), []string{"data_shared"}},
		{"no container", fleetOf(nil), change(func(n *NodeInput) { n.Facts.Container = nil; n.Carry.DataDir.OK = true }), []string{"container"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := refusing(c.view, c.in, spec()); !slices.Equal(got, c.want) {
				t.Errorf("refusing checks %v, want %v", got, c.want)
			}
		})
	}
	t.Run("a waiver counts for its own check only", func(t *testing.T) {
		s := spec()
		s.Waivers = []Waiver{{"clock", "measured by hand"}}
		if got := refusing(skewed, inputs(), s); len(got) != 0 {
			t.Errorf("waived, still refused by %v", got)
		}
		s.Waivers = []Waiver{{"data_dir", "please"}}
		in := change(func(n *NodeInput) { n.Carry.DataDir.OK = false })
		if got := refusing(fleetOf(nil), in, s); !slices.Equal(got, []string{"data_dir"}) {
			t.Error("the data directory check must not be waivable")
		}
	})
}

func container(id, state string) *host.ContainerFacts {
	return &host.ContainerFacts{ID: id, Name: "c-" + id, State: state}
}

func TestStageIsReadFromTheHost(t *testing.T) {
	p := NodePlan{ID: "001", ContainerID: "old"}
	done := []host.TxEntry{{Tx: "replace", Outcome: host.Replaced, Result: &host.ReplaceResult{NewID: "new"}}}
	for _, c := range []struct {
		name string
		s    host.Situation
		want stage
	}{
		{"untouched", host.Situation{Current: container("old", "running")}, stageWaiting},
		{"staged", host.Situation{Current: container("old", "running"), Next: container("new", "created")}, stageStaged},
		{"replaced", host.Situation{Current: container("new", "running"), Aside: container("old", "exited"), Entries: done}, stageReplaced},
		{"finished", host.Situation{Current: container("new", "running"), Entries: done}, stageRolled},
		{"somebody else's after ours", host.Situation{Current: container("theirs", "running"), Entries: done}, stageUnclear},
		{"ours has ended", host.Situation{Current: container("new", "exited"), Entries: done}, stageUnclear},
		{"somebody else's container", host.Situation{Current: container("new", "running")}, stageUnclear},
		{"another container aside", host.Situation{Current: container("new", "running"), Aside: container("strange", "exited")}, stageUnclear},
		{"nothing there", host.Situation{}, stageUnclear},
		{"unsettled", host.Situation{Current: container("old", "running"), Unsettled: true}, stageUnclear},
		{"put back, the failed one kept", host.Situation{Current: container("old", "running"), Failed: container("new", "exited"), Entries: done}, stageWaiting},
	} {
		if got := stageOf(c.s, p); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestStepsInDoubtAreSettledByLooking(t *testing.T) {
	p := NodePlan{ID: "001", ContainerID: "old"}
	waiting := host.Situation{Current: container("old", "running")}
	replaced := host.Situation{Current: container("new", "running"), Aside: container("old", "exited")}
	rolled := host.Situation{Current: container("new", "running"), Entries: []host.TxEntry{{Tx: "replace", Outcome: host.Replaced, Result: &host.ReplaceResult{NewID: "new"}}}}
	for _, c := range []struct {
		step string
		s    host.Situation
		want journal.StepState
	}{
		{"replace", waiting, journal.StepFailed},
		{"replace", replaced, journal.StepDone},
		{"replace", rolled, journal.StepDone},
		{"putback", waiting, journal.StepDone},
		{"putback", replaced, journal.StepFailed},
		{"finish", replaced, journal.StepFailed},
		{"finish", rolled, journal.StepDone},
		{"pull", waiting, journal.StepFailed},
		{"stage", waiting, journal.StepFailed},
		{"replace", host.Situation{}, journal.StepInDoubt},
	} {
		if got, _ := settledAs(c.step, c.s, p); got != c.want {
			t.Errorf("%s with %s: %s, want %s", c.step, describe(c.s), got, c.want)
		}
	}
}

func TestResolveRef(t *testing.T) {
	for _, c := range []struct{ image, registry, want string }{
		{"qnet:v2", "registry.example.org", "registry.example.org/qnet:v2"},
		{"team/qnet:v2", "registry.example.org:5000", "registry.example.org:5000/team/qnet:v2"},
		{"other.example.org/qnet:v2", "registry.example.org", "other.example.org/qnet:v2"},
		{"localhost/qnet", "", "localhost/qnet"},
		{"qnet:v2", "", ""},
		{"team/qnet:v2", "", ""},
	} {
		got, err := ResolveRef(c.image, c.registry)
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("ResolveRef(%q, %q) = %q, %v; want %q", c.image, c.registry, got, err, c.want)
		}
	}
}

func TestParseSetEnv(t *testing.T) {
	for _, ok := range []string{"QNET_LOG_LEVEL=3", "A=", "LIST=a,b=c", "QNET_WALLET_SEED_FILE=/run/seed"} {
		v, err := ParseSetEnv(ok)
		if err != nil {
			t.Errorf("%s: %v", ok, err)
			continue
		}
		if v.Name+"="+v.Value != ok {
			t.Errorf("%s read as %s=%s", ok, v.Name, v.Value)
		}
	}
	for _, bad := range []string{"", "=x", "NAME", "1A=x", "QNET_WALLET_SEED=hunter2", "QNET_API_KEY_ADMIN=hunter2", "MY_PASSWORD=hunter2",
		"QNET_ACTIVATION_CODE=hunter2", "T_TOKEN=hunter2", "QNET_ADMIN_SECRET=hunter2", "QNET_CLEAN_DATA=1", "QNET_ROLLBACK_TO_HEIGHT=5", "QNET_HALT_HEIGHT=9", "QNET_BUILD_ID=abc"} {
		_, err := ParseSetEnv(bad)
		if err == nil {
			t.Errorf("%s was accepted", bad)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the refusal of %s repeats the value", bad)
		}
	}
}

// TestLeftoverNamesWhatWorks: what is done about a container that an operation left depends on what it is; only one that was set
// aside can be finished or put back.
func TestLeftoverNamesWhatWorks(t *testing.T) {
	p := NodePlan{ID: "003", Container: "qnet-genesis-003"}
	const once = "once no open operation needs it (qnetops ops), docker rm qnet-genesis-003"
	for kind, want := range map[string]struct{ check, words, not string }{
		"pre-20260101T000000Z":    {"leftover", "roll --finish OP removes it, restore 003 puts it back", "docker rm"},
		"next-1a2b":               {"leftover", "id ends in -1a2b; " + once + "-next-1a2b on the host", "restore"},
		"failed-20260101T000000Z": {"data_shared", "at 20260101T000000Z; " + once + "-failed-20260101T000000Z on", "restore"},
		"elsewhere":               {"data_shared", "two processes on one database destroy it", "docker rm"},
	} {
		sibling := host.Sibling{Name: p.Container + "-" + kind, State: "exited", SharesData: true, Writable: true}
		c := checkLeftover(p, NodeInput{Facts: host.Facts{Siblings: []host.Sibling{sibling}}})
		if c.Name != want.check || c.Verdict != observe.Fail || !strings.Contains(c.Reason, want.words) || strings.Contains(c.Reason, want.not) {
			t.Errorf("%s: %s: %s: %s", kind, c.Name, c.Verdict, c.Reason)
		}
	}
}
