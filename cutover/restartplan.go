package cutover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// Data is the phase in which what lies above K is dealt with.
const Data PhaseName = "data"

// RestartPlan is the part of the execution of a restart.
type RestartPlan struct {
	Values RestartValues `json:"values"`
	// Archive is the host that serves the state of K; "": none of this fleet does.
	Archive string        `json:"archive"`
	Hosts   []RestartHost `json:"hosts"`
	// Others are the identities that signed files of other operators vouch for.
	Others []string     `json:"others"`
	Roll   rolling.Plan `json:"roll"`
	// First are the genesis hosts, started before the rest and after the archive.
	First []string `json:"first"`
	// Stamp is in the names of what is set aside.
	Stamp string `json:"stamp"`
}

// RestartHost is what is done with one host's data.
type RestartHost struct {
	ID     string `json:"id"`
	NodeID string `json:"node_id"` // "" where it is not known
	// Way is rollback, rename or none (restart.WayRollback and so on).
	Way      string `json:"way"`
	DataPath string `json:"data_path"`
	// Aside is where the directory goes, Copy that of the archive host before; of a
	// host of way rollback, where they go if its node refuses.
	Aside string `json:"aside,omitempty"`
	Copy  string `json:"copy,omitempty"`
	// Policy is the restart policy of a host of way rollback once the variable is
	// gone again; until then it is `no`, for each start would go back once more.
	Policy *host.Policy `json:"policy,omitempty"`
}

func (p RestartPlan) host(id string) RestartHost {
	for _, h := range p.Hosts {
		if h.ID == id {
			return h
		}
	}
	return RestartHost{}
}

// joins says that a host starts with no data and fetches the state of K.
func (p RestartPlan) joins(id string) bool {
	return id != p.Archive && p.host(id).Way == restart.WayRename
}

// own are the identities of the hosts.
func (p RestartPlan) own() []string {
	var out []string
	for _, h := range p.Hosts {
		if h.NodeID != "" {
			out = append(out, h.NodeID)
		}
	}
	return out
}

// survivors tallies the identities of these hosts and of the other operators.
func (p RestartPlan) survivors(hosts []string) Survivors {
	ready := slices.Clone(p.Others)
	for _, h := range p.Hosts {
		if slices.Contains(hosts, h.ID) {
			ready = append(ready, h.NodeID)
		}
	}
	return p.Values.count(ready)
}

// together says whether the genesis hosts among these, and the nodes of others, find
// each other at a start (facts 3); as many as the plan has are enough where it was
// begun with fewer, by the waiver.
func (p RestartPlan) together(hosts []string) bool {
	n := len(p.Others)
	for _, id := range p.First {
		if slices.Contains(hosts, id) {
			n++
		}
	}
	return n >= min(genesisTogether, len(p.First)+len(p.Others))
}

// RestartAsk is what the operator asked of an execution.
type RestartAsk struct {
	Ask
	Values  RestartValues
	StartAt time.Time // of the record; nobody starts before it
	Archive string    // host; "" is that of the record, where it is of this fleet
	Policy  string    // restart policy of nodes that have none now
	Ready   []Ready   // of other operators, verified
	// Verify runs the verification of the record against the own hosts again.
	Verify func(context.Context) (restart.Verification, restart.Evidence, error)
	// Checked is the archive check of the record: where finality is forged its host was
	// stopped at once, and cannot be asked any more.
	Checked restart.ArchiveCheck
	// CheckArchive asks a host once more for what the nodes that join will need.
	CheckArchive func(ctx context.Context, host string, joiners int) (restart.ArchiveCheck, error)
}

// start is when the nodes are started.
func (a RestartAsk) start() time.Time {
	if a.At.IsZero() {
		return a.StartAt
	}
	return a.At
}

// spec is that of a roll to the image of the record. The order is by id, so that
// the moods of a stalled chain do not move it.
func (a RestartAsk) spec(policies map[string]host.Policy) rolling.Spec {
	return rolling.Spec{Image: a.Values.Image, Targets: a.Hosts, Skipped: a.Skipped, Waivers: a.Waivers, HoldOnFail: true,
		KeepOld: true, RecoveryHalted: true, Policies: policies}
}

// restartInput is what the plan rests on besides the view and the agents.
type restartInput struct {
	Own      restart.Evidence
	Verified restart.Verification
	Data     map[string]host.DataInventory
	DataErr  map[string]error
	Archive  *restart.ArchiveCheck // nil: not asked
	Stopped  *time.Time            // when the archive host was, by this machine's clock; nil: it runs, or unknown
	Roles    map[string]string
}

// NewRestart decides the plan of an execution. It is pure.
func NewRestart(view observe.View, in rolling.Inputs, ask RestartAsk, known restartInput) Plan {
	base := base(KindRestart, view.Fleet, Ask{Hosts: ask.Hosts, Skipped: ask.Skipped, Waivers: ask.Waivers, At: ask.start()})
	policies := map[string]host.Policy{}
	for _, id := range ask.Hosts {
		if p, ok := policyOf(in.Nodes[id].Facts.Container, ask.Policy); ok {
			policies[id] = p
		}
	}
	roll := rolling.New(view, in, ask.spec(policies))
	roll.Kind, roll.RecoveryHalted = "restart", false
	roll.Committee = rolling.Arithmetic{Members: slices.Clone(ask.Values.Remaining), Size: len(ask.Values.Remaining),
		Quorum: ask.Values.Needed, Spare: len(ask.Values.Remaining) - ask.Values.Needed}
	for i := range roll.Nodes {
		roll.Nodes[i].Why = "all are started together: the archive host, genesis hosts, the others"
	}
	rp := &RestartPlan{Values: ask.Values, Archive: ask.archive(view.Fleet), Roll: roll, First: []string{},
		Stamp: ask.StartAt.UTC().Format("20060102T150405Z"), Hosts: []RestartHost{}}
	ids := nodeIDs(view)
	for _, id := range base.Hosts {
		nodeID := cmp.Or(ids[id], nodeIDIn(known.Own, id), ask.checkedID(view.Fleet, id))
		rp.Hosts = append(rp.Hosts, rp.hostPlan(id, nodeID, in, known))
		if known.Roles[id] == fleet.RoleGenesis {
			rp.First = append(rp.First, id)
		}
	}
	rp.Others, _ = identities(rp.own(), ask.Ready)
	rp.Others = append([]string{}, rp.Others...)
	base.Restart, base.Committee, base.AtPhase = rp, roll.Committee, Go
	base.Threshold = Threshold{Rule: fmt.Sprintf("%d of the %d identities that are not barred, and the archive host",
		ask.Values.Needed, len(ask.Values.Remaining)),
		Absent: rp.survivors(base.Hosts).Missing}
	base.Phases = restartPhases(*rp)
	return base
}

func restartPhases(p RestartPlan) []Phase {
	create, run, verify, end := "", "", "", ""
	if ids := p.back(); len(ids) > 0 {
		v, who := p.Values.backVariable(), strings.Join(ids, ", ")
		create = fmt.Sprintf(", with %s=%s and restart policy %s on %s", v.Name, v.Value, policyHalted, who)
		run = fmt.Sprintf("; %s go back to %d before they read their state", who, p.Values.Head())
		verify = fmt.Sprintf("; qnetops abort --waive point_of_no_return=REASON removes %s and closes the operation as it stands",
			v.Name)
		end = fmt.Sprintf("; then remove %s, one node after the other under the quorum rule, each after its bring-up", v.Name)
	}
	return []Phase{
		{Prepare, "pull the image of the record by digest and create every successor, stopped" + create,
			"qnetops abort: the successors are removed", ""},
		{Hold, "stop every node; each flushes and exits 0, its restart policy is " + policyHalted,
			"qnetops abort: the nodes are started again as they were", ""},
		{Data, p.dataDoes(), "qnetops abort: the directories are renamed back", ""},
		{Go, "start the archive host, then the genesis hosts, then the others, each that joins only while the archive host serves" +
			run,
			"none; qnetops resume goes on", "the first successor that is started: it may write blocks of the new chain"},
		{Verify, fmt.Sprintf("hash of macroblock %d on every node; each passes M0 to M4; new seals on several nodes, no barred "+
			"identity in them; "+
			"an archive host that carries more is brought to K by a second one", p.Values.K()), "none; a node with a wrong hash is " +
			"stopped and stays so" + verify, ""},
		{Release, "archive the logs of the old containers and remove them; what was set aside stays" + end, "none is needed", ""},
	}
}

// dataDoes says what becomes of the data directories while no node runs.
func (p RestartPlan) dataDoes() string {
	if !slices.ContainsFunc(p.Hosts, func(h RestartHost) bool { return h.Way == restart.WayRename }) {
		return "every data directory stays where it is"
	}
	text := fmt.Sprintf("set the data directories with blocks above %d aside, only while another host is shown to hold the "+
		"state", p.Values.Head())
	if p.host(p.Archive).Way == restart.WayRename {
		text += "; that of the archive host is copied"
	}
	if ids := p.back(); len(ids) > 0 {
		text += "; those of " + strings.Join(ids, ", ") + " stay: their nodes go back by themselves"
	}
	return text
}

// archive is the host that serves, where it is of this fleet.
func (a RestartAsk) archive(fleetName string) string {
	id := a.Archive
	if id == "" && a.Values.ArchiveFleet == fleetName {
		id = a.Values.ArchiveHost
	}
	if !slices.Contains(a.Hosts, id) {
		return ""
	}
	return id
}

// checkedID is how a host named itself when the record's archive check asked it: it
// may have been stopped since.
func (a RestartAsk) checkedID(fleetName, id string) string {
	if a.Checked.Fleet != fleetName || a.Checked.Host != id {
		return ""
	}
	return a.Checked.NodeID
}

// policyOf is the restart policy a node gets back.
func policyOf(c *host.ContainerFacts, asked string) (host.Policy, bool) {
	switch {
	case c != nil && c.RestartPolicy != policyHalted && c.RestartPolicy != policyArmed:
		return host.Policy{Name: c.RestartPolicy, MaximumRetryCount: c.RestartRetries}, true
	case asked != "":
		return host.Policy{Name: asked}, true
	}
	return host.Policy{}, false
}

// hostPlan says what is done with one host. The rollback variable is for a host
// whose certified floor is known not to be above K; what is not known is renamed.
func (p *RestartPlan) hostPlan(id, nodeID string, in rolling.Inputs, known restartInput) RestartHost {
	h := RestartHost{ID: id, NodeID: nodeID, Way: restart.WayRename}
	if c := in.Nodes[id].Facts.Container; c != nil {
		h.DataPath = c.DataDir.HostPath
	}
	if w, _ := wayOfHost(known.Own, id, p.Values.K()); w.Way == restart.WayNone || w.Way == restart.WayRollback {
		h.Way = w.Way
	}
	if h.Way == restart.WayNone {
		return h
	}
	m := p.move(h, "", "")
	h.Aside = m.Aside()
	if id == p.Archive {
		h.Copy = m.Copy()
	}
	if n := p.Roll.Node(id); h.Way == restart.WayRollback && n != nil && n.NextPolicy != nil {
		h.Policy, n.NextPolicy = n.NextPolicy, &host.Policy{Name: policyHalted}
	}
	return h
}

// move is the data move of a host with this container under its name.
func (p *RestartPlan) move(h RestartHost, container, id string) host.DataMove {
	return host.DataMove{Container: container, ExpectID: id, Path: h.DataPath, K: p.Values.K(), Stamp: p.Stamp}
}

func wayOfHost(ev restart.Evidence, id string, k uint64) (restart.HostWay, bool) {
	for _, f := range ev.Hosts {
		if f.ID == id {
			return restart.WayOf(f, k), true
		}
	}
	return restart.HostWay{ID: id, Way: restart.WayUnknown, Reason: "it was not gathered"}, false
}

func nodeIDIn(ev restart.Evidence, id string) string {
	for _, f := range ev.Hosts {
		if f.ID == id {
			return f.NodeID
		}
	}
	return ""
}

// ProposeRestart verifies the record once more, looks at the fleet and decides.
func (o *Operations) ProposeRestart(ctx context.Context, ask RestartAsk) (Proposal, error) {
	known := restartInput{Roles: map[string]string{}, Data: map[string]host.DataInventory{}, DataErr: map[string]error{}}
	for _, h := range o.Fleet.Inventory().Hosts {
		known.Roles[h.ID] = h.Role
	}
	var err error
	if known.Verified, known.Own, err = ask.Verify(ctx); err != nil {
		return Proposal{}, err
	}
	view, err := observe.Observe(ctx, o.Fleet, observe.Options{})
	if err != nil {
		return Proposal{}, err
	}
	in, err := rolling.Gather(ctx, o.Fleet, ask.spec(nil))
	if err != nil {
		return Proposal{}, err
	}
	readData(ctx, o.Fleet, ask.Hosts, known)
	plan := NewRestart(view, in, ask, known)
	if a := plan.Restart.Archive; a != "" {
		check, err := ask.CheckArchive(ctx, a, plan.Restart.joiners())
		if err != nil {
			return Proposal{}, err
		}
		known.Archive, known.Stopped = &check, stoppedAt(view.Node(a))
	}
	p := Proposal{Plan: plan}
	p.Checks = slices.Concat(checkStart(ask.start(), time.Now()), judgeAsk(plan, ask, known, in),
		[]observe.Check{startSet(view, plan.Hosts, len(plan.Restart.Others))}, checkHostsData(plan, known),
		checkArmed(plan, in), checkGoneAgain(plan, in),
		slices.DeleteFunc(rolling.Preflight(view, in, plan.Restart.Roll), notOfRestart))
	return p, ctx.Err()
}

// joiners counts the nodes that will fetch the state, those of others too.
func (p RestartPlan) joiners() int {
	n := len(p.Others)
	for _, h := range p.Hosts {
		if p.joins(h.ID) {
			n++
		}
	}
	return n
}

// readData reads what is in every data directory.
func readData(ctx context.Context, f *fleet.Fleet, ids []string, known restartInput) {
	var mu sync.Mutex
	rolling.Each(ctx, ids, func(ctx context.Context, id string) {
		inv, err := dataOf(ctx, f, id, "")
		mu.Lock()
		defer mu.Unlock()
		known.Data[id], known.DataErr[id] = inv, err
	})
}

func dataOf(ctx context.Context, f *fleet.Fleet, id, aside string) (host.DataInventory, error) {
	conn, err := rolling.Reach(ctx, f, id)
	if err != nil {
		return host.DataInventory{}, err
	}
	agent, err := conn.Agent(ctx)
	if err != nil {
		return host.DataInventory{}, err
	}
	return agent.Data(ctx, host.DataRequest{Container: conn.Host().Container, Aside: aside})
}

// notOfRestart are checks of a roll that ask for a fleet that is well, or that
// the execution answers itself.
func notOfRestart(c observe.Check) bool {
	return slices.Contains([]string{"fleet", "fork", "committee"}, c.Name)
}

// judgeAsk holds the record, the image, the survivors and the archive host against
// what was seen.
func judgeAsk(p Plan, ask RestartAsk, known restartInput, in rolling.Inputs) []observe.Check {
	rp := p.Restart
	record := observe.Check{Name: "record", Verdict: observe.Pass, Reason: fmt.Sprintf("record %.12s of %s holds: macroblock "+
		"%d, shown by %s", rp.Values.Record,
		rp.Values.Publisher, rp.Values.K(), strings.Join(known.Verified.Shown, ", "))}
	if !known.Verified.OK {
		record.Verdict, record.Reason = observe.Fail, "the record does not hold:"
		for _, d := range known.Verified.Differences {
			record.Reason += fmt.Sprintf(" %s %s: %s;", d.Where, d.Code, d.What)
		}
	}
	image := observe.Check{Name: "image", Verdict: observe.Pass, Reason: rp.Values.Image}
	if in.Image == nil || !strings.HasSuffix(in.Image.Digest, rp.Values.digest()) || rp.Values.digest() == "" {
		image.Verdict, image.Reason = observe.Fail, "the hosts do not find the image "+rp.Values.Image+" of the record"
	}
	early := observe.Check{Name: "start_time", Verdict: observe.Pass, Reason: "the nodes are started at " + p.At}
	if ask.start().Before(ask.StartAt) {
		early.Verdict, early.Reason = observe.Fail, fmt.Sprintf("--at is before the start of the record, %s: nobody starts "+
			"before it", ask.StartAt.UTC().Format(time.RFC3339))
	}
	return []observe.Check{record, image, early, judgeThreshold(p, ask), judgeArchive(p, ask.Checked, known)}
}

func judgeThreshold(p Plan, ask RestartAsk) observe.Check {
	s := p.Restart.survivors(p.Hosts)
	c := observe.Check{Name: "survivors", Verdict: observe.Pass, Reason: s.String()}
	if !s.Enough() {
		c.Verdict = observe.Fail
		c.Reason += "; other operators give their files with restart execute --ready-out FILE"
	}
	if _, faults := identities(p.Restart.own(), ask.Ready); len(faults) > 0 {
		c.Verdict, c.Reason = observe.Fail, strings.Join(faults, "; ")
	}
	return c
}

// judgeArchive asks for the host that serves. Without one in this fleet nothing
// here may be set aside; a fleet that sets nothing aside needs none.
func judgeArchive(p Plan, checked restart.ArchiveCheck, known restartInput) observe.Check {
	c := observe.Check{Name: "archive", Verdict: observe.Pass}
	switch a := known.Archive; {
	case p.Restart.Archive == "" && !slices.ContainsFunc(p.Restart.Hosts,
		func(h RestartHost) bool { return h.Way == restart.WayRename }):
		c.Reason = "no host sets its data aside"
	case p.Restart.Archive == "":
		c.Verdict = observe.Fail
		c.Reason = "no host of this fleet is named that serves the state of K, and no procedure is known to bring hosts to K " +
			"while only another operator's host is said to hold it; name one of your own with --archive HOST"
	case a == nil:
		c.Verdict, c.Reason = observe.Unknown, p.Restart.Archive+" was not asked"
	case a.Serves() && a.K == p.Restart.Values.K():
		c.Reason = fmt.Sprintf("%s serves the state of macroblock %d", p.Restart.Archive, a.K)
	default:
		var why string
		if c.Verdict, why = keptStopped(p, checked, known.Stopped); c.Verdict == observe.Pass {
			c.Reason = why
			return c
		}
		c.Reason = fmt.Sprintf("%s is not shown to serve the state of macroblock %d: %s%s", p.Restart.Archive,
			p.Restart.Values.K(), strings.Join(a.Failing(), ", "), why)
	}
	return c
}

// keptStopped says whether an archive host that does not run holds what the record's
// check found on it: where finality is forged the chain runs on and prunes, so the
// host was stopped at once after the check, and to start it now would lose the state.
func keptStopped(p Plan, checked restart.ArchiveCheck, stopped *time.Time) (observe.Verdict, string) {
	id := p.Restart.Archive
	if stopped == nil || checked.Host != id || checked.Fleet != p.Fleet || checked.K != p.Restart.Values.K() {
		return observe.Fail, ""
	}
	at := stopped.UTC().Format(time.RFC3339)
	ok, why := checked.Kept(*stopped)
	if !ok {
		return observe.Fail, fmt.Sprintf("; it was stopped at %s, and %s: choose another host with restart archive-check", at, why)
	}
	return observe.Pass, fmt.Sprintf("%s served the state of macroblock %d at %s and was stopped at %s; %s. It is not started before "+
		"the release", id, checked.K, checked.At.Format(time.RFC3339), at, why)
}

// stoppedAt is when a node was stopped, by this machine's clock; nil where it runs,
// or where its clock was not read.
func stoppedAt(n *observe.NodeView) *time.Time {
	if n == nil || n.Container == nil || n.Container.State != "exited" || n.Container.FinishedAt == nil || n.ClockOffset == nil {
		return nil
	}
	at := n.Container.FinishedAt.Add(-*n.ClockOffset)
	return &at
}

// checkHostsData shows what is done with every data directory, with full paths,
// space and who holds the state meanwhile, and refuses what cannot be done.
func checkHostsData(p Plan, known restartInput) []observe.Check {
	var out []observe.Check
	for _, h := range p.Restart.Hosts {
		out = append(out, checkHostData(p.Restart, h, known.Data[h.ID], known.DataErr[h.ID], known.Own))
	}
	return out
}

// copyFree is what a copy leaves free, in bytes, as the host's agent asks too.
const copyFree = 5 << 30

func checkHostData(p *RestartPlan, h RestartHost, inv host.DataInventory, err error, own restart.Evidence) observe.Check {
	c := observe.Check{Name: "data", Verdict: observe.Fail}
	way, _ := wayOfHost(own, h.ID, p.Values.K())
	state := fmt.Sprintf("%s: %s holds %d files, %d bytes, %d bytes are free there; %s", h.ID, inv.Path, inv.Files, inv.Bytes,
		inv.Disk.FreeBytes, way.Reason)
	switch {
	case err != nil:
		c.Verdict, c.Reason = observe.Unknown, fmt.Sprintf("%s: its data directory cannot be read: %v", h.ID, err)
	case inv.Path != h.DataPath:
		c.Reason = fmt.Sprintf("%s: the data directory is %s, the container says %s", h.ID, inv.Path, h.DataPath)
	case h.Way == restart.WayNone:
		c.Verdict, c.Reason = observe.Pass, state+"; it stays as it is"
	case h.Way == restart.WayRollback && !inv.Database:
		c.Reason = fmt.Sprintf("%s: %s holds no database", h.ID, inv.Path)
	case h.Way == restart.WayRollback:
		v := p.Values.backVariable()
		c.Verdict, c.Reason = observe.Pass, fmt.Sprintf("%s; its node goes back by itself with %s=%s, which is removed after new "+
			"seals", state, v.Name, v.Value)
	case inv.DataDir.Kind != host.DataBind || inv.DataDir.Ambiguous != "":
		c.Reason = fmt.Sprintf("%s: its data is a %s %s and cannot be set aside by a rename: no procedure is known", h.ID,
			inv.DataDir.Kind, inv.DataDir.Ambiguous)
	case !inv.Database:
		c.Reason = fmt.Sprintf("%s: %s holds no database", h.ID, inv.Path)
	case inv.Disk.Error != "":
		c.Verdict, c.Reason = observe.Unknown, state+"; the space cannot be read: "+inv.Disk.Error
	case h.Copy != "" && inv.Disk.FreeBytes < inv.Bytes+copyFree:
		c.Reason = fmt.Sprintf("%s; it is copied to %s first, which needs %d bytes", state, h.Copy, inv.Bytes+copyFree)
	case h.Copy != "":
		c.Verdict, c.Reason = observe.Pass, fmt.Sprintf("%s; it is copied to %s, and set aside as %s when a second host serves",
			state, h.Copy, h.Aside)
	case inv.Disk.FreeBytes < inv.Bytes/2:
		c.Reason = fmt.Sprintf("%s; what it fetches anew will not fit beside what is set aside", state)
	default:
		c.Verdict, c.Reason = observe.Pass, fmt.Sprintf("%s; it is set aside as %s; %s holds the state meanwhile", state, h.Aside,
			p.Archive)
	}
	return c
}

// checkGoneAgain refuses nodes that would get no restart policy back, and those
// that run the image already.
func checkGoneAgain(p Plan, in rolling.Inputs) []observe.Check {
	var out []observe.Check
	for _, n := range p.Restart.Roll.Nodes {
		if n.NextPolicy == nil {
			out = append(out, observe.Check{Name: "policy", Verdict: observe.Unknown,
				Reason: n.ID + ": the restart policy it has in ordinary times is not known; name it with --policy always"})
		}
		if n.Action != rolling.ActionReplace && in.Nodes[n.ID].Err == nil {
			out = append(out, observe.Check{Name: "image", Verdict: observe.Fail, Reason: n.ID +
				" runs the image of the record already: it was started before its time"})
		}
	}
	return out
}

// ExecuteRestart runs an execution that was printed and confirmed.
func (o *Operations) ExecuteRestart(ctx context.Context, ask RestartAsk, plan Plan) (Document, error) {
	return o.Execute(ctx, plan, func(ctx context.Context) (Proposal, error) { return o.ProposeRestart(ctx, ask) })
}
