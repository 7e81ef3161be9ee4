package observe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qnetops/qnetops/fleet"
)

// Names of the checks of a view.
const (
	CheckOneShot       = "one_shot"
	CheckSecondUpdater = "second_updater"
	CheckClock         = "clock"
	CheckRestartPolicy = "restart_policy"
	CheckDisk          = "disk"
	CheckTLSTerminator = "tls_terminator"
	CheckLogLevel      = "log_level"
	CheckLeftover      = "leftover"
	CheckVotes         = "votes" // only in a view with Options.Voters
)

const (
	// clockBound is how far a host's clock may be off: a drift beyond a second
	// has made a node choose another leader than the rest.
	clockBound = time.Second
	// diskSpare must be free before anything is pulled or archived.
	diskSpare = 5_000_000_000
	// seenLevel is the lowest QNET_LOG_LEVEL at which seal and participation
	// lines exist; it is also the default.
	seenLevel = 3
)

// NodeChecks answers the checks for one node. It is pure.
func NodeChecks(n NodeView) []Check {
	return []Check{
		n.checkOneShot(), n.checkUpdater(), n.checkClock(), n.checkPolicy(),
		n.checkDisk(), n.checkTLS(), n.checkLogLevel(), n.checkLeftover(),
	}
}

// Checks answers each check for the whole view: it fails if it fails anywhere and
// is unknown if it is unknown anywhere else. Evidence holds every node's answer.
func Checks(v View) []Check {
	var out []Check
	for _, n := range v.Nodes {
		for i, c := range NodeChecks(n) {
			if i == len(out) {
				out = append(out, Check{Name: c.Name, Verdict: Pass, Evidence: map[string]string{}})
			}
			t := &out[i]
			t.Evidence[n.ID] = c.Reason
			if c.Verdict == Fail || c.Verdict == Unknown && t.Verdict == Pass {
				t.Verdict = c.Verdict
			}
		}
	}
	for i := range out {
		out[i].Reason = summary(v, i, out[i].Verdict)
	}
	return out
}

func summary(v View, check int, verdict Verdict) string {
	if verdict == Pass {
		return "no node has anything to say against it"
	}
	var parts []string
	for _, n := range v.Nodes {
		if c := NodeChecks(n)[check]; c.Verdict == verdict {
			parts = append(parts, n.ID+": "+c.Reason)
		}
	}
	return strings.Join(parts, "; ")
}

func answer(name string, verdict Verdict, format string, args ...any) Check {
	return Check{Name: name, Verdict: verdict, Reason: fmt.Sprintf(format, args...)}
}

// notSeen is the answer where the reading is missing.
func (n NodeView) notSeen(name, what, ask string) Check {
	if n.NoContainer && ask == askContainer {
		return answer(name, Unknown, "there is no container of the configured name")
	}
	err := n.fault(ask)
	if err == nil {
		err = n.Err
	}
	return answer(name, Unknown, "%s not read: %s", what, errText(err))
}

func (n NodeView) checkOneShot() Check {
	switch {
	case n.Container == nil:
		return n.notSeen(CheckOneShot, "variables", askContainer)
	case len(n.Container.OneShot) > 0:
		return answer(CheckOneShot, Fail, "%s would act again at every start", strings.Join(n.Container.OneShot, ", "))
	}
	return answer(CheckOneShot, Pass, "none")
}

func (n NodeView) checkUpdater() Check {
	switch {
	case len(n.Updaters) > 0:
		return answer(CheckSecondUpdater, Fail, "%s replaces containers outside any roll", strings.Join(n.Updaters, ", "))
	case !n.UpdatersKnown:
		return n.notSeen(CheckSecondUpdater, "containers", askContainers)
	}
	return answer(CheckSecondUpdater, Pass, "none")
}

func (n NodeView) checkClock() Check {
	if n.ClockOffset == nil {
		return n.notSeen(CheckClock, "clock", askClock)
	}
	off := n.ClockOffset.Round(time.Millisecond)
	if off.Abs() > clockBound {
		return answer(CheckClock, Fail, "off by %s, at most %s is safe", off, clockBound)
	}
	if d := n.ClockDriftSecs; d != nil && (*d > 1 || *d < -1) {
		return answer(CheckClock, Fail, "the node itself measures a drift of %d s", *d)
	}
	return answer(CheckClock, Pass, "off by %s", off)
}

func (n NodeView) checkPolicy() Check {
	if n.Container == nil {
		return n.notSeen(CheckRestartPolicy, "restart policy", askContainer)
	}
	switch p := n.Container.RestartPolicy; p {
	case "always", "unless-stopped":
		return answer(CheckRestartPolicy, Pass, "%s", p)
	case "":
		return answer(CheckRestartPolicy, Unknown, "the engine names no policy")
	default:
		return answer(CheckRestartPolicy, Fail, "%s: the node does not come back by itself in every case", p)
	}
}

func (n NodeView) checkDisk() Check {
	switch {
	case n.Disk == nil:
		return n.notSeen(CheckDisk, "free space", askDisk)
	case n.Disk.FreeBytes < diskSpare:
		return answer(CheckDisk, Fail, "%d of %d bytes free under %s, %d wanted", n.Disk.FreeBytes, n.Disk.TotalBytes, n.Disk.Path, uint64(diskSpare))
	}
	return answer(CheckDisk, Pass, "%d bytes free under %s", n.Disk.FreeBytes, n.Disk.Path)
}

// checkTLS fails where a terminator is there and does not run: clients that come
// by name find nothing while the node is fine. Having none is a choice.
func (n NodeView) checkTLS() Check {
	if !n.UpdatersKnown {
		return n.notSeen(CheckTLSTerminator, "containers", askContainers)
	}
	for _, t := range n.TLSTerminators {
		if !strings.HasSuffix(t, "(running)") {
			return answer(CheckTLSTerminator, Fail, "%s does not run", t)
		}
	}
	if len(n.TLSTerminators) == 0 {
		return answer(CheckTLSTerminator, Pass, "none on this host")
	}
	return answer(CheckTLSTerminator, Pass, "%s", strings.Join(n.TLSTerminators, ", "))
}

func (n NodeView) checkLogLevel() Check {
	if n.LogLevel == nil {
		return n.notSeen(CheckLogLevel, "log level", askContainer)
	}
	if *n.LogLevel == "" {
		return answer(CheckLogLevel, Pass, "default (%d)", seenLevel)
	}
	level, err := strconv.Atoi(*n.LogLevel)
	switch {
	case err != nil:
		return answer(CheckLogLevel, Unknown, "QNET_LOG_LEVEL is not a number")
	case level < seenLevel:
		return answer(CheckLogLevel, Fail, "QNET_LOG_LEVEL=%d hides seals and participation; only signers of certificates can prove a vote", level)
	}
	return answer(CheckLogLevel, Pass, "QNET_LOG_LEVEL=%d", level)
}

func (n NodeView) checkLeftover() Check {
	switch {
	case len(n.Leftovers) > 0:
		return answer(CheckLeftover, Fail, "%s from an earlier operation", strings.Join(n.Leftovers, ", "))
	case !n.UpdatersKnown:
		return n.notSeen(CheckLeftover, "containers", askContainers)
	}
	return answer(CheckLeftover, Pass, "none")
}

// votesCheck passes when every committee member votes, fails when one does not,
// and is unknown when the committee could not be read.
func votesCheck(v Voters, err error) Check {
	if err != nil {
		return answer(CheckVotes, Unknown, "not counted: %s", err)
	}
	c := answer(CheckVotes, Pass, "%d of %d vote, quorum %d", v.Count, len(v.Committee.Members), v.Committee.Quorum)
	if missing := v.Missing(); len(missing) > 0 {
		c.Verdict = Fail
		c.Reason += "; not counted: " + strings.Join(missing, ", ")
	}
	c.Evidence = map[string]string{}
	for _, l := range v.Counted {
		if l.HostID != "" {
			c.Evidence[l.HostID] = l.Why
		}
	}
	return c
}

// updaterImages are the last parts of image names whose containers replace
// others when a registry has something newer.
var updaterImages = []string{"watchtower", "ouroboros", "wud", "whats-up-docker", "shepherd"}

// terminatorImages are images that usually end TLS in front of a node.
var terminatorImages = []string{"caddy", "nginx", "traefik", "haproxy", "envoy"}

// imageName is the last part of a reference without tag and digest.
func imageName(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	ref = ref[strings.LastIndexByte(ref, '/')+1:]
	ref, _, _ = strings.Cut(ref, ":")
	return ref
}

// containersOf sorts a host's containers by what they mean for the node.
func (n *NodeView) containersOf(list []fleet.Container, own string) {
	n.UpdatersKnown = true
	for _, c := range list {
		image := imageName(c.Image)
		name, runs := strings.ToLower(c.Name), c.State == "running" || c.State == "restarting"
		switch {
		case c.Name == own:
		case isLeftover(c.Name, own):
			n.Leftovers = append(n.Leftovers, fmt.Sprintf("%s (%s)", c.Name, c.State))
		case slices.Contains(updaterImages, image) || strings.Contains(name, "watchtower"):
			if runs {
				n.Updaters = append(n.Updaters, c.Name)
			}
		case slices.Contains(terminatorImages, image) || strings.HasSuffix(name, "-tls"):
			n.TLSTerminators = append(n.TLSTerminators, fmt.Sprintf("%s (%s)", c.Name, c.State))
		}
	}
}

// isLeftover recognises what an operation names beside the node's container.
func isLeftover(name, own string) bool {
	for _, word := range []string{"-pre-", "-next-", "-failed-"} {
		if strings.HasPrefix(name, own+word) {
			return true
		}
	}
	return false
}
