package cutover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qnetops/qnetops/restart"
)

// ReadySchema names an operator's readiness file.
const ReadySchema = "qnetops/restart-ready/v1"

// MaxReady bounds a readiness file, in bytes.
const MaxReady = 1 << 20

// Ready is an operator's signed word that his nodes are ready for the restart of
// one record: canonical JSON (RFC 8785) with a detached SSHSIG beside it.
type Ready struct {
	Schema   string      `json:"schema"`
	Record   string      `json:"record_sha256"`
	Fleet    string      `json:"fleet"`
	Operator string      `json:"operator"`
	At       time.Time   `json:"at"`
	Nodes    []ReadyNode `json:"nodes"`
}

// ReadyNode is one node that will take part.
type ReadyNode struct {
	Host   string `json:"host"`
	NodeID string `json:"node_id"`
}

// NewReady is the readiness of the hosts of a plan whose identity is known.
func NewReady(p Plan, operator string, now time.Time) Ready {
	r := Ready{Schema: ReadySchema, Record: p.Restart.Values.Record, Fleet: p.Fleet, Operator: operator,
		At: now.UTC().Truncate(time.Second), Nodes: []ReadyNode{}}
	for _, h := range p.Restart.Hosts {
		if h.NodeID != "" {
			r.Nodes = append(r.Nodes, ReadyNode{h.ID, h.NodeID})
		}
	}
	return r
}

// Sign gives the file and its signature.
func (r Ready) Sign(signer restart.Signer) (data, sig []byte, err error) {
	if data, err = restart.Canonical(r); err != nil {
		return nil, nil, err
	}
	sig, err = restart.Sign(signer, data)
	return data, sig, err
}

// DecodeReady reads a readiness file and checks its signature with the keys of the
// one who reads. It must be of this record, by whom it says, and not from the
// future by more than an hour.
func DecodeReady(data, sig []byte, signers restart.Signers, record string, now time.Time) (Ready, error) {
	var r Ready
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if len(data) > MaxReady {
		return r, fmt.Errorf("it is %d bytes, more than %d", len(data), MaxReady)
	}
	if err := dec.Decode(&r); err != nil {
		return Ready{}, fmt.Errorf("it is not the JSON that restart execute --ready-out writes: %w", err)
	}
	again, err := restart.Canonical(r)
	switch {
	case err != nil:
		return Ready{}, err
	case r.Schema != ReadySchema:
		return Ready{}, fmt.Errorf("schema is %.80q, want %q", r.Schema, ReadySchema)
	case !bytes.Equal(again, data):
		return Ready{}, errors.New("it is not the canonical form of what it says")
	}
	signed, err := restart.Verify(signers, data, sig, now)
	switch {
	case err != nil:
		return Ready{}, err
	case !slices.Contains(signed.Principals, r.Operator):
		return Ready{}, fmt.Errorf("it is signed with a key of %s, not of %.80q, who says that he is ready",
			strings.Join(signed.Principals, ", "), r.Operator)
	case r.Record != record:
		return Ready{}, fmt.Errorf("it is for the record %.12s, this one is %.12s", r.Record, record)
	case r.At.After(now.Add(time.Hour)):
		return Ready{}, fmt.Errorf("it is of %s, which is still to come", r.At.Format(time.RFC3339))
	}
	return r, nil
}

// identities are the node ids that files of other operators vouch for. An identity
// that two of them claim, or that is one of the own hosts, is a fault.
func identities(own []string, files []Ready) (ids []string, faults []string) {
	by := map[string]string{}
	for _, id := range own {
		by[id] = "your own hosts"
	}
	for _, f := range files {
		for _, n := range f.Nodes {
			if other, taken := by[n.NodeID]; taken && other != f.Operator {
				faults = append(faults, fmt.Sprintf("%s is claimed by %s and by %s", n.NodeID, other, f.Operator))
				continue
			}
			if by[n.NodeID] == "" {
				ids = append(ids, n.NodeID)
			}
			by[n.NodeID] = f.Operator
		}
	}
	slices.Sort(ids)
	return ids, faults
}
