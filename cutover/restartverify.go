package cutover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qnetops/qnetops/fleet"
	"github.com/qnetops/qnetops/manifest"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// RestartVerifySchema names the document of restart verify.
const RestartVerifySchema = "qnetops/restart-verify/v1"

// RestartVerify is whether an executed restart holds, by the nodes themselves.
type RestartVerify struct {
	Schema   string           `json:"schema"`
	OK       bool             `json:"ok"` // every check passes
	At       time.Time        `json:"at"`
	Operator string           `json:"operator"`
	Record   string           `json:"record_sha256"`
	K        uint64           `json:"k"`
	Checks   []observe.Check  `json:"checks"`
	Hosts    []RestartReading `json:"hosts"`
	// Index and Hash are of the newest macroblock that all the nodes show alike, for
	// the other operators to compare; null: there is none.
	Index *uint64    `json:"index"`
	Hash  *node.Hash `json:"hash"`
	// OldSide are the hosts that still carry data above K or are on the old side.
	OldSide []OldSide `json:"old_side"`
	Told    []Told    `json:"told"`
}

// OldSide is a host that is not with the restarted chain, and why.
type OldSide struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// newSealBlocks is how long new seals are waited for between the looks, in block
// times: a window, and what its certificate needs. leastSeal is that in real time: on
// a fast lab chain two windows may be shorter than one look at all hosts.
const (
	newSealBlocks = 2 * node.MacroblockBlocks
	leastSeal     = 10 * time.Second
)

// VerifyRestart looks at the hosts until a new seal was seen on several of them,
// or the time for one is over. It only reads. docs are the documents of other
// operators.
func VerifyRestart(ctx context.Context, f *fleet.Fleet, ids []string, v RestartValues, operator string,
	docs []RestartVerify) (RestartVerify, error) {
	before := readRestart(ctx, f, ids, v)
	after := before
	block := f.Inventory().Block
	for began := time.Now(); ctx.Err() == nil; {
		if len(ids) == 0 || time.Since(began) >= max(newSealBlocks*block, leastSeal) || !wait(ctx, max(5*block, leastPoll)) {
			break
		}
		after = readRestart(ctx, f, ids, v)
		if judgeSeals(v, before, after).Verdict == observe.Pass && judgeBlocks(v, before, after).Verdict == observe.Pass {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return RestartVerify{}, err
	}
	common := compareSealed(ctx, f, after, v.K())
	told := tell(ctx, f, ids, docs)
	return verdictOf(v, operator, before, after, common, told), ctx.Err()
}

// tell asks the own nodes for what the other operators compare at.
func tell(ctx context.Context, f *fleet.Fleet, ids []string, docs []RestartVerify) []Told {
	out := []Told{}
	for _, d := range docs {
		t := Told{By: d.Operator, Record: d.Record}
		if d.Index != nil && d.Hash != nil {
			t.Index, t.Hash = *d.Index, *d.Hash
			for _, id := range ids {
				if t.Own = hashOn(ctx, f, id, t.Index); t.Own != nil {
					break
				}
			}
		}
		out = append(out, t)
	}
	return out
}

// verdictOf puts the document together. It is pure.
func verdictOf(v RestartValues, operator string, before, after []RestartReading, common uint64, told []Told) RestartVerify {
	doc := RestartVerify{Schema: RestartVerifySchema, At: time.Now().UTC().Truncate(time.Second), Operator: operator,
		Record: v.Record, K: v.K(),
		Checks: JudgeRestart(v, before, after, common, told), Hosts: after, OldSide: []OldSide{}, Told: told}
	for _, r := range after {
		if why := r.oldSide(v); why != "" {
			doc.OldSide = append(doc.OldSide, OldSide{r.ID, why})
		}
		if r.Common != nil && common > 0 {
			doc.Index, doc.Hash = &common, r.Common
		}
	}
	if judgeTips(after, common).Verdict != observe.Pass {
		doc.Index, doc.Hash = nil, nil
	}
	doc.OK = !slices.ContainsFunc(doc.Checks, func(c observe.Check) bool { return c.Verdict != observe.Pass })
	return doc
}

// DecodeRestartVerify reads another operator's document.
func DecodeRestartVerify(data []byte) (RestartVerify, error) {
	var d RestartVerify
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("it is not the JSON that restart verify prints: %w", err)
	}
	if d.Schema != RestartVerifySchema {
		return d, fmt.Errorf("schema is %q, want %q", d.Schema, RestartVerifySchema)
	}
	if d.Operator == "" || (d.Index == nil) != (d.Hash == nil) {
		return d, errors.New("it names no operator, or only half of what is compared")
	}
	return d, nil
}

// RetireBlocks is how long the restarted chain must have been stable before the
// manifest may go, in blocks: an epoch.
const RetireBlocks = 14_400

// RestartRetire is whether and with what the manifest is retired.
type RestartRetire struct {
	Schema string          `json:"schema"`
	OK     bool            `json:"ok"`
	K      uint64          `json:"k"`
	Record string          `json:"record_sha256"`
	Stable *uint64         `json:"stable_blocks"` // sealed above K, on the node that has least; null: not known
	Left   *uint64         `json:"blocks_left"`
	Checks []observe.Check `json:"checks"`
	Barred []string        `json:"barred"`
	// Cleared is the manifest of a next release that lets the barred identities
	// register again, Kept the one that leaves them barred. Both keep the pin.
	Cleared manifest.Manifest `json:"cleared"`
	Kept    manifest.Manifest `json:"kept"`
}

// Retire judges a verification for the retirement of its manifest. It is pure.
func Retire(v RestartValues, doc RestartVerify) RestartRetire {
	r := RestartRetire{Schema: "qnetops/restart-retire/v1", K: v.K(), Record: v.Record, Checks: slices.Clone(doc.Checks),
		Barred: append([]string{}, v.Manifest.Restart.Excluded...), Cleared: manifest.Manifest{Pin: v.Manifest.Pin}, Kept: v.Manifest}
	r.Cleared.Restart.Excluded = []string{}
	stable := observe.Check{Name: "stable", Verdict: observe.Unknown, Reason: "not every node says what it has sealed"}
	if least := leastSealed(doc.Hosts); least != nil {
		blocks := node.WindowHead(*least) - min(node.WindowHead(*least), v.Head())
		left := uint64(RetireBlocks) - min(RetireBlocks, blocks)
		r.Stable, r.Left = &blocks, &left
		stable.Verdict, stable.Reason = observe.Pass, fmt.Sprintf("%d blocks are sealed above macroblock %d", blocks, v.K())
		if left > 0 {
			stable.Verdict, stable.Reason = observe.Fail, fmt.Sprintf("%d blocks are sealed above macroblock %d, %d are needed: %d "+
				"are missing", blocks, v.K(), uint64(RetireBlocks), left)
		}
	}
	r.Checks = append(r.Checks, stable)
	r.OK = !slices.ContainsFunc(r.Checks, func(c observe.Check) bool { return c.Verdict != observe.Pass })
	return r
}

func leastSealed(hosts []RestartReading) (least *uint64) {
	for _, h := range hosts {
		if h.Sealed == nil {
			return nil
		}
		if least == nil || *h.Sealed < *least {
			least = h.Sealed
		}
	}
	return least
}
