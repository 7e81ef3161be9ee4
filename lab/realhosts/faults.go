package realhosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/qnetops/qnetops/lab/simnode"
)

// hostFault is a fault of a host or its engine. One without clear happens once; arg says whether it takes one.
type hostFault struct {
	inject func(c *Cluster, ctx context.Context, host Host, arg string) error
	clear  func(c *Cluster, ctx context.Context, host Host) error
	arg    func(arg string) error
}

// hostFaults are the faults of this backend, next to those of the node itself. The words are those of the process
// backend; the causes are real ones.
func hostFaults() map[string]hostFault {
	return map[string]hostFault{
		"stop":           {inject: stopNode, clear: startNode},
		"power-off":      {inject: once((*Cluster).PowerOff), clear: byID((*Cluster).Reboot)},
		"reboot":         {inject: once((*Cluster).Reboot)},
		"partition":      {inject: once((*Cluster).Partition), clear: byID((*Cluster).Heal)},
		"drop-ssh":       {inject: dropSSH, clear: byID((*Cluster).RestartSSH), arg: oneOf("hold")},
		"host-key":       {inject: changeKey, clear: restoreKey},
		"engine-down":    {inject: once((*Cluster).StopEngine), clear: byID((*Cluster).StartEngine)},
		"engine-kill":    {inject: once((*Cluster).KillEngine), clear: byID((*Cluster).StartEngine)},
		"engine-restart": {inject: once((*Cluster).RestartEngine)},
		"pull-fail":      {inject: refuseRegistry, clear: allowRegistry},
		"disk-full":      {inject: script(diskFull), clear: undo(diskFree)},
		"create-fail":    {inject: script(createFail), clear: undo(createWork)},
		"start-fail":     {inject: startFail, clear: startWork},
		"log-rotate":     {inject: truncateLogs},
		"log-level":      {inject: setLogLevel, clear: clearLogLevel, arg: oneOf("0", "1", "2", "3", "4", "5")},
		"second-updater": {inject: startUpdater, clear: stopUpdater},
	}
}

func once(f func(*Cluster, context.Context, string) error) func(*Cluster, context.Context, Host, string) error {
	return func(c *Cluster, ctx context.Context, host Host, _ string) error { return f(c, ctx, host.ID) }
}

func byID(f func(*Cluster, context.Context, string) error) func(*Cluster, context.Context, Host) error {
	return func(c *Cluster, ctx context.Context, host Host) error { return f(c, ctx, host.ID) }
}

func oneOf(known ...string) func(string) error {
	return func(arg string) error {
		if arg != "" && !slices.Contains(known, arg) {
			return fmt.Errorf("argument %q is not known: none, or one of %s", arg, strings.Join(known, ", "))
		}
		return nil
	}
}

// FaultKinds lists what Inject knows.
func FaultKinds() []string {
	kinds := slices.Collect(maps.Keys(hostFaults()))
	for _, kind := range simnode.Kinds() {
		kinds = append(kinds, string(kind))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Inject sets a fault on a host or its node. An unknown kind or host is an error that lists the known ones.
func (c *Cluster) Inject(ctx context.Context, id, kind, arg string) error {
	host, err := c.state.host(id)
	if err != nil {
		return err
	}
	fault, ofHost := hostFaults()[kind]
	if !ofHost {
		if !slices.Contains(simnode.Kinds(), simnode.Kind(kind)) {
			return fmt.Errorf("unknown fault %q: known are %s", kind, strings.Join(FaultKinds(), ", "))
		}
		return c.setNodeFault(host, kind, arg)
	}
	if fault.arg == nil && arg != "" {
		return fmt.Errorf("fault %s takes no argument", kind)
	}
	if fault.arg != nil {
		if err := fault.arg(arg); err != nil {
			return fmt.Errorf("fault %s: %w", kind, err)
		}
	}
	if has(readLines(c.faultFile(host)), kind) {
		return fmt.Errorf("fault %s is set on host %s already; clear it first", kind, id)
	}
	if err := fault.inject(c, ctx, host, arg); err != nil {
		return fmt.Errorf("fault %s on host %s: %w", kind, id, err)
	}
	if fault.clear == nil || kind == "drop-ssh" && arg == "" {
		return nil // happened, and is over
	}
	return writeLines(c.faultFile(host), put(readLines(c.faultFile(host)), kind, arg))
}

// nodeFaultFile is read by the running node, one fault a line.
func (c *Cluster) nodeFaultFile(host Host) string { return c.paths.in(host.ID, DataDir+"/lab-faults") }

// faultFile keeps the faults of a host beside its root, so that another process can clear them.
func (c *Cluster) faultFile(host Host) string {
	return filepath.Join(c.paths.host(host.ID), "faults")
}

func (c *Cluster) setNodeFault(host Host, kind, arg string) error {
	if err := new(simnode.Faults).Set(simnode.Kind(kind), arg); err != nil {
		return err
	}
	return writeLines(c.nodeFaultFile(host), put(readLines(c.nodeFaultFile(host)), kind, arg))
}

// Faults lists the faults that are set, by host: kind or kind=argument.
func (c *Cluster) Faults() map[string][]string {
	out := map[string][]string{}
	for _, host := range c.state.Hosts {
		if set := slices.Concat(readLines(c.faultFile(host)), readLines(c.nodeFaultFile(host))); len(set) > 0 {
			slices.Sort(set)
			out[host.ID] = set
		}
	}
	return out
}

// ClearFaults takes all faults back, newest first. It goes on after an error and returns all of them.
func (c *Cluster) ClearFaults(ctx context.Context) error {
	var errs []error
	for _, host := range c.state.Hosts {
		for _, line := range slices.Backward(readLines(c.faultFile(host))) {
			errs = append(errs, c.ClearFault(ctx, host.ID, kindOf(line)))
		}
		errs = append(errs, writeLines(c.nodeFaultFile(host), nil))
	}
	return errors.Join(errs...)
}

// ClearFault takes one fault of one host back; one that is not set is no error.
func (c *Cluster) ClearFault(ctx context.Context, id, kind string) error {
	host, err := c.state.host(id)
	if err != nil {
		return err
	}
	if !slices.Contains(FaultKinds(), kind) {
		return fmt.Errorf("unknown fault %q: known are %s", kind, strings.Join(FaultKinds(), ", "))
	}
	fault, ofHost := hostFaults()[kind]
	if !ofHost {
		return writeLines(c.nodeFaultFile(host), without(readLines(c.nodeFaultFile(host)), kind))
	}
	if !has(readLines(c.faultFile(host)), kind) {
		return nil
	}
	if err := fault.clear(c, ctx, host); err != nil {
		return fmt.Errorf("clearing fault %s on host %s: %w", kind, id, err)
	}
	return writeLines(c.faultFile(host), without(readLines(c.faultFile(host)), kind))
}

func kindOf(line string) string {
	kind, _, _ := strings.Cut(line, "=")
	return kind
}

func has(lines []string, kind string) bool {
	return slices.ContainsFunc(lines, func(line string) bool { return kindOf(line) == kind })
}

func without(lines []string, kind string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return kindOf(line) == kind })
}

func put(lines []string, kind, arg string) []string {
	if arg != "" {
		arg = "=" + arg
	}
	return append(without(lines, kind), kind+arg)
}

func readLines(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

// writeLines replaces a file; no lines, no file.
func writeLines(path string, lines []string) error {
	var err error
	if len(lines) == 0 {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else if err = os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o644); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
