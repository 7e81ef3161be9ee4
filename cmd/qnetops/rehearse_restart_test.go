package main

import "testing"

// TestRehearseRestart: production stops at the horizon, a chain that is flat for
// longer than the trigger is restarted by the ordinary commands, stale data fails
// closed, and a malformed manifest is named by its code.
func TestRehearseRestart(t *testing.T) {
	t.Parallel()
	doc, report := rehearsed(t, "restart", "--block", "10ms")
	wantActs(t, doc, report, map[string][]int{
		"so are those of hosts":             {-1}, // and production parks at the horizon
		"finality is flat for":              {-1},
		"rollback --to-last-sealed":         {exitRefused},
		"restart gather, by":                {exitDone, exitDone},
		"restart propose-k":                 {exitDone},
		"restart exclude":                   {exitDone},
		"restart archive-check":             {exitDone},
		"restart record --out":              {exitDone},
		"restart verify-record":             {exitDone},
		"restart execute":                   {exitDone},
		"restart verify restart-record ver": {exitDone, exitDone},
		"restart retire":                    {exitRefused},
		"host 005 starts the release by hand on the data it had": {-1},
		"restart verify restart-record, with that host":          {exitRefused, exitRefused},
		"manifest validate":                       {exitDone, exitRefused},
		"nothing of a data directory was deleted": {-1},
	})
}
