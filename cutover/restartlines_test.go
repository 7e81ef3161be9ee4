package cutover

import (
	"testing"

	"github.com/qnetops/qnetops/observe"
)

// TestPinOfACutLog: what lies between the beginning and the end of a long log may
// hold the refusal of a node, unless the node is seen to follow the chain above K.
func TestPinOfACutLog(t *testing.T) {
	v := testValues()
	for name, c := range map[string]struct {
		sealed uint64
		cut    bool
		want   observe.Verdict
	}{
		"whole, stands at K": {v.K(), false, observe.Pass},
		"cut, stands at K":   {v.K(), true, observe.Unknown},
		"cut, follows":       {v.K() + 2, true, observe.Pass},
	} {
		after := restarted(c.sealed, v.Head()+200, func(r *RestartReading) { r.Lines.Cut = c.cut })
		if got := judgePin(v, after); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}
