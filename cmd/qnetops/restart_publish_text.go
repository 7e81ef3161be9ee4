package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
	"github.com/qnetops/qnetops/report"
	"github.com/qnetops/qnetops/restart"
)

// The record for people. Both are made of the record alone.
const (
	recordMarkdown = "record.md"
	recordHTML     = "record.html"
)

// shownRefusals bounds the macroblocks newer than K that a person is shown; record.json lists them.
const shownRefusals = 20

// renderRecord writes a record as Markdown and as one page.
func renderRecord(r restart.Record) (restart.Folder, error) {
	d := recordDocument(r)
	var md, page bytes.Buffer
	if err := errors.Join(d.Markdown(&md), d.HTML(&page)); err != nil {
		return nil, err
	}
	return restart.Folder{recordMarkdown: md.Bytes(), recordHTML: page.Bytes()}, nil
}

func recordDocument(r restart.Record) report.Document {
	d := report.Document{Title: fmt.Sprintf("Restart of the chain from macroblock %d", r.K)}
	d.Text("Published by %s on %s with %s. Nobody starts before %s.", r.Operator, utc(r.CreatedAt), r.Tool, utc(r.StartAt))
	d.Text("This text says what %s says, and that file is what counts: compare its SHA-256 with the other operators over another channel than the one "+
		"this came by, and check everything in it from your own hosts with qnetops restart verify-record.", restart.RecordName)
	recordValues(&d, r)
	recordTrigger(&d, r)
	recordThresholds(&d, r)
	recordExclusion(&d, r)
	recordSteps(&d, r)
	recordArchive(&d, r)
	recordChoice(&d, r)
	d.Heading("The constants of the release")
	d.Code(manifest.Render(r.Manifest.Manifest))
	d.Heading("Building the release")
	d.Code(r.Release.Build)
	d.Heading("Assumptions")
	d.List(r.Assumptions...)
	d.Heading("Files")
	t := report.Table{Head: []string{"file", "bytes", "SHA-256"}}
	for _, f := range r.Files {
		t.Add(f.Name, fmt.Sprint(f.Bytes), f.SHA256)
	}
	d.Table(t)
	return d
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func recordValues(d *report.Document, r restart.Record) {
	d.Heading("What is restarted")
	t := report.Table{Head: []string{"what", "value"}}
	t.Add("K", fmt.Sprint(r.K))
	t.Add("last block kept", fmt.Sprint(node.WindowHead(r.K)))
	t.Add("hash(K)", r.Hash.String())
	t.Add("digest(K)", r.Digest.String())
	t.Add("digest(K-1)", r.DigestPred.String())
	t.Add("verified by", r.Proposal.Verified)
	t.Add("start", utc(r.StartAt))
	t.Add("release commit", r.Release.Commit)
	t.Add("image", r.Release.Image)
	t.Add("archive host", r.Archive.Fleet+"/"+r.Archive.Host)
	t.Add("barred", fmt.Sprintf("%d of %d", len(r.Exclusion.Excluded), len(r.Exclusion.Committee)))
	d.Table(t)
}

func recordTrigger(d *report.Document, r restart.Record) {
	d.Heading("Why a restart")
	d.Text("Trigger: %s, %s.", r.Trigger.Kind, r.Trigger.Verdict)
	if r.Trigger.Waived != "" {
		d.Text("The trigger was waived by %s: %s", r.Operator, r.Trigger.Waived)
	}
	d.Table(checksTable(r.Trigger.Checks))
	var readings []string
	for _, c := range r.Trigger.Checks {
		for _, host := range slices.Sorted(maps.Keys(c.Evidence)) {
			readings = append(readings, c.Name+" "+host+": "+c.Evidence[host])
		}
	}
	d.List(readings...)
}

func checksTable(checks []observe.Check) report.Table {
	t := report.Table{Head: []string{"check", "verdict", "reason"}}
	for _, c := range checks {
		t.Add(c.Name, string(c.Verdict), c.Reason)
	}
	return t
}

func recordThresholds(d *report.Document, r restart.Record) {
	th := r.Thresholds
	d.Heading("Who is needed")
	d.Text("The committee of macroblock %d has %d members and needs %d to seal. Without those barred %d remain and %d of them must run the release before "+
		"anything is sealed: %s.", th.Window, len(th.Committee), th.Quorum, th.Remaining, th.SurvivorsNeeded, quorumText(r.Exclusion.After))
	t := report.Table{Head: []string{"member", "since the stall", "barred"}}
	for _, id := range r.Exclusion.Identities {
		t.Add(id.ID, sinceText(id.Life), yesNo(contains(r.Exclusion.Excluded, id.ID)))
	}
	d.Table(t)
}

func recordExclusion(d *report.Document, r restart.Record) {
	d.Heading("Who is barred")
	if len(r.Exclusion.Excluded) == 0 {
		d.Text("Nobody.")
	} else {
		d.Text("Who disagrees says so before the release ships. An identity that returns while it is barred changes nothing: it is filtered everywhere. "+
			"Un-barring is a cut-over of its own. Windows looked at: %d, by evidence of %s.", len(r.Exclusion.Windows), strings.Join(r.Exclusion.Operators, ", "))
	}
	t := report.Table{Head: []string{"identity", "verdict", "silent windows", "seen by", "why", "once un-barred and back"}}
	var excerpts []string
	for _, id := range r.Exclusion.Identities {
		if !contains(r.Exclusion.Excluded, id.ID) && id.Verdict != restart.ExcludeDropped {
			continue
		}
		returns := ""
		if id.Returns != nil {
			returns = quorumText(*id.Returns)
		}
		t.Add(id.ID, id.Verdict, fmt.Sprint(id.SilentWindows), strings.Join(id.SilentBy, ", "), id.Why, returns)
		for _, e := range id.Excerpts {
			excerpts = append(excerpts, fmt.Sprintf("%s: %s of window %d on %s, line with SHA-256 %s", id.ID, e.Kind, e.Window, e.Host, e.SHA256))
		}
	}
	d.Table(t)
	d.List(excerpts...)
	d.List(r.Exclusion.Warnings...)
}

// recordSteps is what each operator does, in the order of the guide (Coordinated restart 5 to 7).
func recordSteps(d *report.Document, r restart.Record) {
	d.Heading("What each operator does")
	archive := r.Archive.Fleet + "/" + r.Archive.Host
	d.List("Before the start: verify this record from your own hosts; build the image or check its digest; pull it on every host.",
		"Stop every node, and leave it stopped.",
		"Bring what lies above block "+fmt.Sprint(node.WindowHead(r.K))+" out of the way on each host as the table of hosts says. Nothing is deleted; never empty a data directory "+
			"while "+archive+" is not shown to serve.",
		"At the start: "+archive+" and the genesis nodes first, then the rest.",
		"A node whose hash of macroblock "+fmt.Sprint(r.K)+" is another one stays off.",
		"Afterwards: last_sealed_mb_index rises on several nodes, the first new macroblock's eligible set holds nobody who is barred, tips are equal on at least three operators.")
	t := report.Table{Head: []string{"host", "certified floor", "way to K", "because"}}
	for _, h := range r.Proposal.Hosts {
		t.Add(h.ID, number(h.CertifiedFloor), h.Way, h.Reason)
	}
	d.Table(t)
}

func recordArchive(d *report.Document, r restart.Record) {
	a := r.Archive
	d.Heading("Where nodes that join fetch the state")
	d.Text("%s/%s offered the snapshot of height %s on %s. This is what its operator saw; look again before you remove anything.", a.Fleet, a.Host, number(a.SnapshotHeight), utc(a.At))
	d.Table(checksTable(a.Checks))
	if a.Fetch.Best != nil && a.Fetch.Worst != nil {
		d.Text("%d nodes fetch it %d at a time: %s at best, %s at worst.", a.Fetch.Joiners, a.Fetch.Transfers, secondsText(*a.Fetch.Best), secondsText(*a.Fetch.Worst))
	}
	if a.LastHolder != nil {
		d.Text("%s is the only host shown to hold such state: it must not be touched.", *a.LastHolder)
	}
	if a.StopNow != nil {
		d.Text("The chain runs on and prunes: the node on %s is to be stopped at once and left stopped.", *a.StopNow)
	}
	d.List(a.Notes...)
}

func recordChoice(d *report.Document, r restart.Record) {
	p := r.Proposal
	d.Heading("Why this K")
	d.Text("Held by %s.", strings.Join(p.HeldBy, ", "))
	var notes []string
	for _, a := range p.Absent {
		notes = append(notes, "without "+a.Operator+": "+a.Reason)
	}
	for _, l := range p.LeftOut {
		notes = append(notes, "left out "+l.Name+": "+l.Code+": "+l.Reason)
	}
	for _, g := range p.Disagreements {
		notes = append(notes, fmt.Sprintf("macroblock %d: different %s at %d hosts", g.Index, g.Kind, len(g.Values)))
	}
	d.List(notes...)
	t := report.Table{Head: []string{"newer macroblock", "refused because"}}
	for i, f := range p.Refused {
		if i == shownRefusals {
			t.Add("…", fmt.Sprintf("%d more in %s", len(p.Refused)-i, restart.RecordName))
			break
		}
		t.Add(fmt.Sprint(f.Index), f.Reason)
	}
	d.Table(t)
}
