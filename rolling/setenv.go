package rolling

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/observe"
)

// filePath is what a NAME_FILE may hold: a seed's words must not pass as one.
var filePath = regexp.MustCompile(`^/[^\s]+$`)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// secretWords mark names whose values are secrets (facts 5.1: seeds, admin
// secret, API keys, activation code). Given with --set-env they would stand in
// the shell history, the journal and the plan.
var secretWords = []string{"SEED", "SECRET", "KEY", "CODE", "TOKEN", "PASS"}

// ParseSetEnv reads NAME=VALUE. The value is public and stored; it may hold
// any character, commas and equal signs too. Secret-looking names are refused
// unless they are NAME_FILE=path, one-shot names always.
func ParseSetEnv(assignment string) (host.EnvVar, error) {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok || !envName.MatchString(name) {
		// The text is not repeated: what stands there may be a secret.
		return host.EnvVar{}, fmt.Errorf("want NAME=VALUE with a name of letters, digits and underscores")
	}
	if host.OneShot(name) {
		return host.EnvVar{}, fmt.Errorf("%s acts once and must not live in a container; that is what cut-overs are for", name)
	}
	if name == "QNET_BUILD_ID" {
		return host.EnvVar{}, fmt.Errorf("%s comes from the image; a container's own value would make /healthz lie about the build", name)
	}
	if !strings.HasSuffix(name, "_FILE") {
		for _, word := range secretWords {
			if strings.Contains(strings.ToUpper(name), word) {
				return host.EnvVar{}, fmt.Errorf("%s looks like a secret and would be stored in the journal; put it in a file on the host and set %s_FILE=PATH", name, name)
			}
		}
	}
	if strings.HasSuffix(name, "_FILE") && !filePath.MatchString(value) {
		return host.EnvVar{}, fmt.Errorf("%s must be the absolute path of a file in the container", name)
	}
	if strings.ContainsRune(value, 0) {
		return host.EnvVar{}, fmt.Errorf("the value of %s holds a zero byte", name)
	}
	return host.EnvVar{Name: name, Value: value}, nil
}

// Compare says where a look at the fleet differs from what the plan was to
// bring about; empty when every node runs what it should and the chain agrees.
func Compare(view observe.View, plan Plan) []string {
	var out []string
	for _, p := range plan.Nodes {
		n := view.Node(p.ID)
		switch {
		case n == nil || !n.Reachable:
			out = append(out, p.ID+" cannot be reached")
		case n.Container == nil:
			out = append(out, p.ID+": its container cannot be read")
		case n.Container.State != "running":
			out = append(out, fmt.Sprintf("%s: its container is %s", p.ID, n.Container.State))
		case !runs(n.Container, p.ToDigest):
			out = append(out, fmt.Sprintf("%s runs %s, not %s", p.ID, n.Container.Digest, p.ToDigest))
		case p.Action == ActionReplace && n.Container.ID == p.ContainerID:
			out = append(out, p.ID+" still runs the old container")
		case n.Verdict != observe.Healthy && !plan.RecoveryHalted:
			out = append(out, fmt.Sprintf("%s is %s: %s", p.ID, n.Verdict, firstReason(n.Reasons, "no reason")))
		}
	}
	if !plan.RecoveryHalted && (view.Verdict == observe.Stalled || view.Verdict == observe.Halted) {
		out = append(out, "the fleet is "+string(view.Verdict)+": "+firstReason(view.Reasons, ""))
	}
	if view.Verdict == observe.Fork {
		out = append(out, "the fleet is forked: "+firstReason(view.Reasons, ""))
	}
	return out
}

// runs compares by the bytes' digest; the repository name before it may differ
// between hosts that pulled through different names.
func runs(c *observe.ContainerView, want string) bool {
	if c.ImageID == want {
		return true
	}
	_, digest, ok := strings.Cut(want, "@")
	return ok && strings.HasSuffix(c.Digest, digest)
}
