package host

import (
	"testing"
	"time"
)

// The engine notes the start of a container after its process runs, so a line of that run can be older than the start; one of
// the run before must not be taken for it.
func TestLogSince(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before := func(d time.Duration) time.Time { return start.Add(-d) }
	for name, c := range map[string]struct {
		facts ContainerFacts
		want  time.Time
	}{
		"never started":                    {ContainerFacts{State: "created"}, time.Time{}},
		"first run":                        {ContainerFacts{State: "running", StartedAt: start}, before(time.Second)},
		"the run before ended long ago":    {ContainerFacts{State: "running", StartedAt: start, FinishedAt: before(time.Hour)}, before(time.Second)},
		"the run before ended just before": {ContainerFacts{State: "running", StartedAt: start, FinishedAt: before(200 * time.Millisecond)}, before(100 * time.Millisecond)},
		"ended":                            {ContainerFacts{State: "exited", StartedAt: start, FinishedAt: start.Add(time.Minute)}, before(100 * time.Millisecond)},
		// What was seen of a real engine: a process that ends at once has ended before its start is noted.
		"ended at once": {ContainerFacts{State: "exited", StartedAt: start, FinishedAt: before(2 * time.Millisecond)}, before(100 * time.Millisecond)},
	} {
		if got := c.facts.LogSince(); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
