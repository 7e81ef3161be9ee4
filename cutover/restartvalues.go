package cutover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/restart"
)

// RestartValues are what the steps after a restart's record go by. They come from a
// record that was verified and from nothing else.
type RestartValues struct {
	Record    string            `json:"record_sha256"` // of record.json, in hex
	Publisher string            `json:"publisher"`
	Image     string            `json:"image"` // repository@sha256:…
	Manifest  manifest.Manifest `json:"manifest"`
	// Needed is the quorum of Remaining, the identities that are not barred: so many
	// must run the release before anything is sealed.
	Needed    int      `json:"needed"`
	Remaining []string `json:"remaining"`
	// Operators gave evidence; tips are compared between three of them, or all.
	Operators []string `json:"operators"`
	// The host that serves the state of K, in the words of its own fleet.
	ArchiveFleet string `json:"archive_fleet"`
	ArchiveHost  string `json:"archive_host"`
	Forged       bool   `json:"forged"`
}

// K is the macroblock the chain resumes from.
func (v RestartValues) K() uint64 { return v.Manifest.Restart.ResumeFromMB }

// Head is the last height of K.
func (v RestartValues) Head() uint64 { return node.WindowHead(v.K()) }

// digest is the part of the image's name that is its content.
func (v RestartValues) digest() string {
	_, digest, _ := strings.Cut(v.Image, "@")
	return digest
}

// ValuesOf takes the values out of a record with this SHA-256.
func ValuesOf(r restart.Record, sha string) RestartValues {
	v := RestartValues{Record: sha, Publisher: r.Operator, Image: r.Release.Image, Manifest: r.Manifest.Manifest,
		Needed: r.Thresholds.SurvivorsNeeded, Remaining: []string{}, Operators: []string{},
		ArchiveFleet: r.Archive.Fleet, ArchiveHost: r.Archive.Host, Forged: r.Choice.Forged > 0}
	for _, id := range r.Thresholds.Committee {
		if !slices.Contains(r.Manifest.Restart.Excluded, id) {
			v.Remaining = append(v.Remaining, id)
		}
	}
	for _, by := range r.Exclusion.Operators {
		if !slices.Contains(v.Operators, by) {
			v.Operators = append(v.Operators, by)
		}
	}
	return v
}

// Survivors are those of the remaining identities that are there, and those that
// are missing, both in the order of the committee.
type Survivors struct {
	Needed  int      `json:"needed"`
	Have    []string `json:"have"`
	Missing []string `json:"missing"`
}

// Enough says whether anything can be sealed.
func (s Survivors) Enough() bool { return s.Needed > 0 && len(s.Have) >= s.Needed }

// String is the tally by identity in one line.
func (s Survivors) String() string {
	text := fmt.Sprintf("%d of %d identities, %d needed", len(s.Have), len(s.Have)+len(s.Missing), s.Needed)
	if len(s.Missing) > 0 {
		text += "; missing: " + strings.Join(s.Missing, ", ")
	}
	return text
}

// count tallies the identities that are ready. An identity counts once, whoever
// names it, and one that is barred or no member never does.
func (v RestartValues) count(ready []string) Survivors {
	s := Survivors{Needed: v.Needed, Have: []string{}, Missing: []string{}}
	for _, id := range v.Remaining {
		if slices.Contains(ready, id) {
			s.Have = append(s.Have, id)
		} else {
			s.Missing = append(s.Missing, id)
		}
	}
	return s
}
