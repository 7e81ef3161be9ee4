package rolling_test

import (
	"testing"
	"time"

	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling"
)

func TestOneNode(t *testing.T) {
	began := time.Now()
	inLab(t, lab.Config{Nodes: 4, Block: 20 * time.Millisecond}, func(w *world) {
		bubble := time.Now()
		doc, err := w.tool().roll(rolling.Spec{Image: "qnet:v2", Targets: []string{"002"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range w.events {
			t.Logf("%s %s %s %s %s %s", e.At.Sub(bubble), e.Node, e.Kind, e.Name, e.State, e.Text)
		}
		t.Logf("%+v in %s", doc, time.Since(bubble))
		w.runs("002", "v2")
		w.clean()
	})
	t.Logf("real %s", time.Since(began))
}
