package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/qnetops/qnetops/lab/realhosts"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/report"
)

// hostsLab is a lab of the hosts backend.
type hostsLab struct{ *realhosts.Cluster }

// Kinds lists the faults of this backend.
func (hostsLab) Kinds() []string { return realhosts.FaultKinds() }

// Rows reads every node through its engine and its address on the bridge.
func (l hostsLab) Rows(ctx context.Context) ([]labRow, error) {
	faults := l.Faults()
	var rows []labRow
	for _, h := range l.Hosts() {
		row := labRow{Node: h.ID, Address: fmt.Sprintf("%s:%d", h.Address, h.SSHPort), State: "engine down", Faults: append([]string{}, faults[h.ID]...)}
		if err := l.row(ctx, h, &row); err != nil && ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (l hostsLab) row(ctx context.Context, h realhosts.Host, row *labRow) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, err := l.ContainerState(ctx, h.ID)
	if err != nil {
		return err
	}
	row.State = state
	client := &node.Client{Base: "http://" + h.Address + ":8001", HTTP: http.DefaultClient}
	health, err := client.Healthz(ctx)
	if err != nil {
		return err
	}
	row.Height, row.Build = &health.Height, &health.Build
	return nil
}

func printLab(s streams, g globals, rows []labRow) error {
	if g.json {
		return printJSON(s.out, struct {
			Schema string   `json:"schema"`
			Nodes  []labRow `json:"nodes"`
		}{"qnetops/lab/v1", rows})
	}
	t := report.Table{Head: []string{"node", "address", "height", "build", "container", "faults"}}
	for _, r := range rows {
		height := "?"
		if r.Height != nil {
			height = fmt.Sprint(*r.Height)
		}
		t.Add(r.Node, r.Address, height, unknown(r.Build), r.State, none(r.Faults))
	}
	return t.Write(s.out)
}
