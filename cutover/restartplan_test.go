package cutover

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// stalledInput is a fleet of four hosts that stand above K, as a plan sees it.
func stalledInput() (observe.View, rolling.Inputs, RestartAsk, restartInput) {
	v := testValues()
	v.ArchiveFleet, v.ArchiveHost = "f", "002"
	start := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	view := observe.View{Fleet: "f"}
	in := rolling.Inputs{Nodes: map[string]rolling.NodeInput{}, Image: &host.Image{Digest: v.Image}}
	known := restartInput{Verified: restart.Verification{OK: true}, Data: map[string]host.DataInventory{}, DataErr: map[string]error{}, Roles: map[string]string{},
		Archive: &restart.ArchiveCheck{K: v.K(), Checks: []observe.Check{{Name: "snapshot", Verdict: observe.Pass}}}}
	ask := RestartAsk{Ask: Ask{}, Values: v, StartAt: start}
	height, sealed, floor := v.Head()+200, v.K(), v.Head()+30
	for i := range 4 {
		id := fmt.Sprintf("00%d", i+1)
		ask.Hosts = append(ask.Hosts, id)
		dir := host.DataDir{ContainerPath: "/app/data", HostPath: "/srv/qnet", Kind: host.DataBind}
		view.Nodes = append(view.Nodes, observe.NodeView{ID: id, NodeID: fmt.Sprintf("n%d", i+1), Reachable: true})
		in.Nodes[id] = rolling.NodeInput{Facts: host.Facts{Container: &host.ContainerFacts{ID: "c" + id, Name: "qnet", State: "running", RestartPolicy: "always", DataDir: dir}}}
		known.Data[id] = host.DataInventory{DataDir: dir, Path: dir.HostPath, Exists: true, Database: true, Files: 9, Bytes: 1000, Disk: host.DiskFacts{FreeBytes: 1 << 40}}
		known.Roles[id] = fleet.RoleGenesis
		known.Own.Hosts = append(known.Own.Hosts, restart.HostFinding{ID: id, Reachable: true, Height: &height, Sealed: &sealed, FloorAtLeast: &floor})
	}
	return view, in, ask, known
}

func TestNewRestart(t *testing.T) {
	view, in, ask, known := stalledInput()
	at := *known.Own.Hosts[3].Sealed * 90
	known.Own.Hosts[3].Height, known.Own.Hosts[3].FloorAtLeast = &at, nil // 004 has nothing above K
	p := NewRestart(view, in, ask, known)
	var ways []string
	for _, h := range p.Restart.Hosts {
		ways = append(ways, fmt.Sprintf("%s %s %s %s joins=%v", h.ID, h.Way, h.Aside, h.Copy, p.Restart.joins(h.ID)))
	}
	const aside = "/srv/qnet-above-10-20260301T180000Z"
	if want := "001 rename " + aside + "  joins=true|002 rename " + aside + " /srv/qnet-copy-10-20260301T180000Z joins=false|003 rename " + aside + "  joins=true|004 none   joins=false"; strings.Join(ways, "|") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(ways, "|"), want)
	}
	if p.AtPhase != Go || p.At != "2026-03-01T18:00:00Z" || p.Restart.Archive != "002" || p.Restart.joiners() != 2 || len(p.Threshold.Absent) != 0 {
		t.Errorf("%+v", p)
	}
	if again := NewRestart(view, in, ask, known); again.Digest() != p.Digest() {
		t.Error("the same view gives another plan")
	}
	if n := p.Restart.Roll.Node("001"); n.NextPolicy == nil || n.NextPolicy.Name != "always" || n.ToDigest != ask.Values.Image {
		t.Errorf("%+v", n)
	}
	back, err := LoadPlan([]byte(mustJSON(t, p)), p.Digest())
	if err != nil || back.Restart.Values.K() != 10 {
		t.Errorf("%v", err)
	}
}

// TestRestartChecks: each refusal says what, where and with which numbers.
func TestRestartChecks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *rolling.Inputs, ask *RestartAsk, known *restartInput)
		want   string // check: words
	}{
		"fine":                {nil, ""},
		"record differs":      {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { k.Verified.OK = false }, "record: does not hold"},
		"other image":         {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { in.Image.Digest = "x@sha256:66" }, "image: do not find"},
		"image has no digest": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { a.Values.Image = "qnet:v2" }, "image: do not find"},
		"before the record":   {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { a.At = a.StartAt.Add(-time.Second) }, "start_time: before the start of the record"},
		"too few":             {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { a.Values.Needed = 5 }, "survivors: 4 of 4 identities, 5 needed"},
		"claimed twice": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			a.Ready = []Ready{{Operator: "bob", Nodes: []ReadyNode{{"9", "n1"}}}}
		}, "survivors: n1 is claimed"},
		"archive elsewhere": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { a.Values.ArchiveFleet = "g" }, "archive: no procedure is known"},
		"archive left out":  {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { a.Archive = "009" }, "archive: no procedure is known"},
		"archive not asked": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { k.Archive = nil }, "archive: was not asked"},
		"archive fails": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.Archive.Checks[0].Verdict = observe.Unknown
		}, "archive: snapshot unknown"},
		"archive stopped in time": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { stoppedAfter(a, k, 600*time.Second) }, ""},
		"archive stopped too late": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			stoppedAfter(a, k, 601*time.Second)
		}, "archive: its snapshot was safe until 2026-03-01T17:10:00Z: choose another host"},
		"archive stopped, nothing forged": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			stoppedAfter(a, k, time.Second)
			a.Checked.Forged = false
		}, "archive: no check shows"},
		"archive stopped, another was checked": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			stoppedAfter(a, k, time.Second)
			a.Checked.Host = "003"
		}, "archive: snapshot fail"},
		"archive of another K": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { k.Archive.K = 9 }, "archive: is not shown"},
		"data unread":          {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) { k.DataErr["001"] = errors.New("no answer") }, "data: 001: its data directory cannot be read"},
		"data elsewhere": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("001", func(d *host.DataInventory) { d.Path = "/mnt" })
		}, "data: 001: the data directory is /mnt"},
		"no database": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("001", func(d *host.DataInventory) { d.Database = false })
		}, "data: holds no database"},
		"volume": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("001", func(d *host.DataInventory) { d.DataDir.Kind = "volume" })
		}, "data: no procedure is known"},
		"space not known": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("001", func(d *host.DataInventory) { d.Disk.Error = "x" })
		}, "data: the space cannot be read"},
		"no room for the copy": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("002", func(d *host.DataInventory) { d.Disk.FreeBytes = copyFree })
		}, "data: which needs 5368710120 bytes"},
		"no room to join": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			k.edit("003", func(d *host.DataInventory) { d.Disk.FreeBytes = 499 })
		}, "data: will not fit"},
		"policy not known": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			in.Nodes["001"].Facts.Container.RestartPolicy = "no"
		}, "policy: --policy always"},
		"policy named": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			in.Nodes["001"].Facts.Container.RestartPolicy, a.Policy = "no", "always"
		}, ""},
		"one-shot left": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			in.Nodes["001"].Facts.Container.OneShot = []string{"QNET_HALT_HEIGHT"}
		}, "armed: carries QNET_HALT_HEIGHT"},
		"started before its time": {func(in *rolling.Inputs, a *RestartAsk, k *restartInput) {
			in.Nodes["001"].Facts.Container.ImageDigests = []string{a.Values.Image}
		}, "image: 001 runs the image of the record already"},
	} {
		t.Run(name, func(t *testing.T) {
			view, in, ask, known := stalledInput()
			if c.change != nil {
				c.change(&in, &ask, &known)
			}
			p := NewRestart(view, in, ask, known)
			checks := append(append(judgeAsk(p, ask, known, in), checkHostsData(p, known)...), append(checkArmed(p, in), checkGoneAgain(p, in)...)...)
			var bad []string
			for _, k := range checks {
				if k.Verdict != observe.Pass {
					bad = append(bad, k.Name+": "+k.Reason)
				}
			}
			check, words, _ := strings.Cut(c.want, ": ")
			switch {
			case c.want == "" && len(bad) > 0:
				t.Errorf("refused: %q", bad)
			case c.want != "" && (len(bad) != 1 || !strings.HasPrefix(bad[0], check+": ") || !strings.Contains(bad[0], words)):
				t.Errorf("got %q, want %q", bad, c.want)
			}
		})
	}
}

// stoppedAfter stops the archive host so long after the check of the record, which found
// that its snapshot goes in ten minutes.
func stoppedAfter(a *RestartAsk, k *restartInput, after time.Duration) {
	at, left := time.Date(2026, 3, 1, 17, 0, 0, 0, time.UTC), uint64(600)
	a.Checked = restart.ArchiveCheck{Fleet: "f", Host: "002", K: 10, At: at, Forged: true, StopNow: &a.Values.ArchiveHost, Prune: restart.PruneForecast{Seconds: &left},
		Checks: []observe.Check{{Name: "snapshot", Verdict: observe.Pass}, {Name: restart.ArchiveKeep, Verdict: observe.Fail}}}
	k.Archive.Checks[0].Verdict = observe.Fail
	stopped := at.Add(after)
	k.Stopped = &stopped
}

func (k *restartInput) edit(id string, change func(d *host.DataInventory)) {
	d := k.Data[id]
	change(&d)
	k.Data[id] = d
}

func TestApart(t *testing.T) {
	view, in, ask, known := stalledInput()
	x := newRestart(NewRestart(view, in, ask, known), nil)
	for name, c := range map[string]struct {
		missing, failed string
		others          []string // nodes of other operators
		want            string
	}{
		"one away":                {"004", "", []string{"n9"}, "004=apart"},
		"one away of four in all": {"004", "", nil, "004=missing"}, // a genesis node waits for three others
		"two away":                {"003 004", "", nil, "003=missing 004=missing"},
		"the archive away":        {"002", "", []string{"n9"}, "002=missing"},
		"one failed":              {"", "004", []string{"n9"}, "004=failed"}, // it runs, or may: nobody passes it by unasked
		"one of each":             {"003", "004", nil, "003=missing 004=failed"},
	} {
		t.Run(name, func(t *testing.T) {
			x.plan.Restart.Others = c.others
			tally := x.all("stopped")
			for _, id := range strings.Fields(c.missing) {
				tally[id] = Standing{State: Missing}
			}
			for _, id := range strings.Fields(c.failed) {
				tally[id] = Standing{State: Failed}
			}
			var got []string
			tally = x.apart(tally)
			for _, id := range x.plan.Hosts {
				if tally[id].State != Finished {
					got = append(got, id+"="+string(tally[id].State))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), c.want)
			}
		})
	}
}

func TestReadyFiles(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	key := func(b byte) (ssh.Signer, string) {
		signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+b)), 32))))
		if err != nil {
			t.Fatal(err)
		}
		return signer, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	}
	bob, bobKey := key(1)
	eve, eveKey := key(2)
	signers, err := restart.ParseAllowedSigners("signers", []byte("bob namespaces=\"qnetops\" "+bobKey+"\neve namespaces=\"qnetops\" "+eveKey+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	good := Ready{Schema: ReadySchema, Record: "aa", Fleet: "g", Operator: "bob", At: now, Nodes: []ReadyNode{{"001", "n3"}}}
	for name, c := range map[string]struct {
		change func(r *Ready)
		signer ssh.Signer
		bytes  func(b []byte) []byte
		want   string
	}{
		"good":              {nil, bob, nil, ""},
		"by another":        {nil, eve, nil, "signed with a key of eve"},
		"of another":        {func(r *Ready) { r.Record = "bb" }, bob, nil, "for the record bb"},
		"from the future":   {func(r *Ready) { r.At = now.Add(2 * time.Hour) }, bob, nil, "still to come"},
		"other schema":      {func(r *Ready) { r.Schema = "x" }, bob, nil, "schema"},
		"changed":           {nil, bob, func(b []byte) []byte { return []byte(strings.Replace(string(b), "n3", "n4", 1)) }, "over other bytes"},
		"other form":        {nil, bob, func(b []byte) []byte { return append(b, '\n') }, "canonical"},
		"unknown key":       {nil, bob, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"at"`, `"att"`, 1)) }, "not the JSON"},
		"no JSON":           {nil, bob, func([]byte) []byte { return []byte("ready") }, "not the JSON"},
		"far too long":      {nil, bob, func(b []byte) []byte { return append(b, make([]byte, MaxReady)...) }, "more than"},
		"nodes twice in it": {func(r *Ready) { r.Nodes = append(r.Nodes, r.Nodes[0]) }, bob, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			r.Nodes = append([]ReadyNode{}, good.Nodes...)
			if c.change != nil {
				c.change(&r)
			}
			data, sig, err := r.Sign(c.signer)
			if err != nil {
				t.Fatal(err)
			}
			if c.bytes != nil {
				data = c.bytes(data)
			}
			got, err := DecodeReady(data, sig, signers, "aa", now)
			if c.want == "" && (err != nil || got.Operator != "bob") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%+v %v, want %q", got, err, c.want)
			}
		})
	}
	ids, faults := identities([]string{"n1"}, []Ready{{Operator: "bob", Nodes: []ReadyNode{{"1", "n2"}, {"2", "n2"}}}, {Operator: "eve", Nodes: []ReadyNode{{"1", "n2"}, {"2", "n1"}, {"3", "n4"}}}})
	if strings.Join(ids, " ") != "n2 n4" || len(faults) != 2 {
		t.Errorf("%v, %q", ids, faults)
	}
}

func FuzzDecodeReady(f *testing.F) {
	f.Add([]byte(`{"at":"2026-03-01T12:00:00Z","fleet":"g","nodes":[],"operator":"bob","record_sha256":"aa","schema":"qnetops/restart-ready/v1"}`), []byte("-----BEGIN SSH SIGNATURE-----"))
	f.Fuzz(func(t *testing.T, data, sig []byte) {
		if r, err := DecodeReady(data, sig, restart.Signers{}, "aa", time.Unix(0, 0)); err == nil {
			t.Errorf("nobody's signature counts, and it was taken: %+v", r)
		}
	})
}
