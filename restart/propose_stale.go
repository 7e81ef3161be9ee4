package restart

import (
	"fmt"
	"time"
)

// stale says whose evidence is older than the stall; "" where nobody's is. Such a file would make K older than it has to be: its
// operator cannot show what was sealed after he took it, and whoever hands the files on could have kept it from an earlier stall.
// It is told by a macroblock that a host of another operator shows with a certificate that counts, that was sealed after the
// evidence was taken, and that is newer than all it shows. One that could not be K anyway does not matter.
func (c *choice) stale() string {
	for _, p := range c.parties {
		taken, newest := p.taken()
		if !p.present || taken.IsZero() {
			continue
		}
		for i := len(c.indices) - 1; i >= 0 && c.indices[i] > newest; i-- {
			if index := c.indices[i]; c.options.allows(index) {
				if w, at := c.sealedAfter(taken, index, p.name); w != nil {
					return fmt.Sprintf("the evidence of %s was taken at %s, before macroblock %d was sealed at %s (%s shows it): it is of an earlier time than the stall",
						p.name, taken.UTC().Format(time.RFC3339), index, at.Format(time.RFC3339), w.name())
				}
			}
		}
	}
	return ""
}

// taken is when an operator read his hosts last, and the newest macroblock that any of them shows or says it has sealed.
func (p *party) taken() (at time.Time, newest uint64) {
	for _, w := range p.hosts {
		newest = max(newest, w.finding.newest())
		if w.read.After(at) {
			at = w.read
		}
	}
	return at, newest
}

// sealedAfter is a host of another operator that shows a macroblock sealed after a time. A seal that is later than its own
// evidence is a lie about time, and shows nothing.
func (c *choice) sealedAfter(taken time.Time, index uint64, operator string) (*witness, time.Time) {
	for _, w := range c.claims[index] {
		mb := w.entries[index]
		if w.operator == operator || w.at(index) != stateHolds || mb.Timestamp == nil || mb.Proof == nil || faultOf(mb.Proof) != "" {
			continue
		}
		if at := unixTime(*mb.Timestamp); at.After(taken.Add(clockSlack)) && !at.After(w.read.Add(clockSlack)) {
			return w, at
		}
	}
	return nil, time.Time{}
}

// allows says whether a macroblock may be K as far as the bounds go.
func (o ProposeOptions) allows(index uint64) bool {
	return (o.Below == 0 || index < o.Below) && (o.Forged == 0 || index < o.Forged)
}
