package cutover_test

import (
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the store that operators share

	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/lab"
	"github.com/qnetops/qnetops/rolling/rollingtest"
)

// handBlock is the block time of the fleets that run in real time.
const handBlock = 40 * time.Millisecond

// TestHandOverOnPostgres: the operator's machine is lost at every barrier, before it
// is passed and behind it; each time another machine, which has an inventory of its
// own and shares the Postgres alone, takes the operation over. Real connections do
// not go with virtual time, so these fleets run in real time, side by side.
func TestHandOverOnPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole fleets in real time")
	}
	t.Parallel()
	server := pgtest.Start(t)
	states := map[bool][]string{true: {"begun", "done"}}
	var all sync.WaitGroup // the tool that runs tests would take only as many at a time as there are processors; these wait
	for i, k := range kinds() {
		states[false] = []string{states[true][i%2]}
		for _, state := range states[full()] {
			all.Go(func() {
				t.Run(k.name+"/"+state, func(t *testing.T) {
					dsn := server.DSN(t)
					w := worldOf(rollingtest.Up(t, lab.Config{Nodes: k.nodes, Block: handBlock}))
					w.shared, w.notice = dsn, 40*time.Second
					s := k.on(w, "")
					s.lost(state)
					s.restored()
				})
			})
		}
	}
	all.Wait()
}
