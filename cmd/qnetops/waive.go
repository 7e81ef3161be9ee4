package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/restart"
	"github.com/qnetops/qnetops/rolling"
)

// readWaivers reads --waive CHECK=REASON. A waiver of a check that the command does not make would be taken for an override and
// do nothing.
func readWaivers(list []string, command string) (out []rolling.Waiver, faults []string) {
	known, seen := waivable(command), map[string]bool{}
	for _, w := range list {
		check, reason, ok := strings.Cut(w, "=")
		reason = strings.TrimSpace(reason)
		switch {
		case !ok || reason == "":
			faults = append(faults, fmt.Sprintf("--waive %q: want CHECK=REASON with a reason", w))
		case len(known) == 0:
			faults = append(faults, fmt.Sprintf("--waive %q: %s makes no waivable check", w, command))
		case !slices.Contains(known, check):
			faults = append(faults, fmt.Sprintf("--waive %q: %s has no waivable check of that name (waivable: %s)", check, command, strings.Join(known, ", ")))
		case seen[check]:
			faults = append(faults, fmt.Sprintf("--waive %s is given twice: give one reason", check))
		default:
			out = append(out, rolling.Waiver{Check: check, Reason: reason})
		}
		seen[check] = true
	}
	return out, faults
}

// waivable are the checks that --waive may name with a command.
func waivable(command string) []string {
	switch first, step, _ := strings.Cut(command, " "); first {
	case "roll", "resume", "abort", "restore", "rollback", "decree":
		return rolling.WaivableChecks()
	case "halt":
		if step != "status" {
			return rolling.WaivableChecks()
		}
	case "restart":
		switch step {
		case "record":
			return []string{restart.TriggerCheck}
		case "execute", "retire", "unbar":
			return rolling.WaivableChecks()
		}
	}
	return nil
}
