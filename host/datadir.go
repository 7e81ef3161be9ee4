package host

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// neverCarried are the variables a successor never takes over, and why (facts
// 5.1 and 7: each of them did harm when it was carried).
func neverCarried(name string) (why string, never bool) {
	switch {
	case strings.HasPrefix(name, "QNET_ROLLBACK_"):
		return "would roll the chain back at every start", true
	case name == "QNET_RECOVERY_HALTED":
		return "a flag of one roll, not a setting", true
	case name == "QNET_BUILD_ID":
		return "set by the image; a carried one lies about the build", true
	case name == "QNET_HALT_HEIGHT":
		return "would halt the node again", true
	case name == "QNET_CLEAN_DATA", name == "QNET_FORCE_RESET", name == "QNET_CONFIRM_RESET":
		return "deletes or resets data at every start", true
	}
	return "", false
}

// OneShot says whether a variable must not outlive one start. QNET_BUILD_ID is
// not among them: every image carries it.
func OneShot(name string) bool {
	_, never := neverCarried(name)
	return never && name != "QNET_BUILD_ID"
}

// Variables that a cut-over arms on purpose (facts 5.1).
const (
	VarHaltHeight       = "QNET_HALT_HEIGHT"
	VarRollbackToSealed = "QNET_ROLLBACK_TO_LAST_SEALED"
	VarRollbackToHeight = "QNET_ROLLBACK_TO_HEIGHT"
)

// validArmed refuses what no cut-over arms: what deletes data, and a value that
// the node would silently take for not set.
func validArmed(v EnvVar) error {
	switch v.Name {
	case VarHaltHeight, VarRollbackToHeight:
		if publicHeight(v.Value) == nil {
			return errorf(CodeBadRequest, "", "arming %s is refused: its value is not a height", v.Name)
		}
	case VarRollbackToSealed:
		if v.Value != "1" {
			return errorf(CodeBadRequest, "", "arming %s is refused: its value is 1 or nothing", v.Name)
		}
	default:
		return errorf(CodeBadRequest, "", "arming %q is refused: no cut-over arms it", v.Name)
	}
	return nil
}

// publicHeight lets a height through and nothing else: above 0, in plain digits.
func publicHeight(s string) *uint64 {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 || s[0] == '+' {
		return nil
	}
	return &n
}

func oneShotOf(names []string) []string {
	var out []string
	for _, n := range names {
		if OneShot(n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// stateRuns says whether a container in this state may have a process. A paused
// one holds its data directory open; a restarting one may start at any moment.
func stateRuns(state string) bool {
	switch state {
	case "running", "paused", "restarting", "removing":
		return true
	}
	return false
}

// mountPoint is one entry of an inspect's Mounts.
type mountPoint struct {
	Type        string
	Name        string
	Source      string
	Destination string
	ReadOnly    bool
}

const (
	dataFirst  = "/app/data"
	dataSecond = "/app/node_data"
)

// dataDir finds the data directory in effect: env is QNET_DATA_DIR of the
// container (merged with its image by the engine), nil when not set. Without it
// the node takes /app/data, then /app/node_data, whichever exists (facts 5.1).
func dataDir(env *string, mounts []mountPoint) DataDir {
	if env != nil && *env != "" {
		return locate(path.Clean(*env), mounts)
	}
	if d := locate(dataFirst, mounts); d.Kind != DataNone {
		return d
	}
	if d := locate(dataSecond, mounts); d.Kind != DataNone {
		d.Ambiguous = "QNET_DATA_DIR is not set and only " + dataSecond + " is mounted: if the image has " + dataFirst + ", the node uses that and its data goes with the container"
		return d
	}
	return DataDir{ContainerPath: dataFirst, Kind: DataNone}
}

// locate maps a path inside a container to the host by its longest mount.
func locate(p string, mounts []mountPoint) DataDir {
	d := DataDir{ContainerPath: p, Kind: DataNone}
	best := ""
	for _, m := range mounts {
		dst := path.Clean(m.Destination)
		under := p == dst || dst == "/" || strings.HasPrefix(p, dst+"/")
		if !under || len(dst) < len(best) {
			continue
		}
		best = dst
		rest := strings.TrimPrefix(strings.TrimPrefix(p, dst), "/")
		switch {
		case m.Type == DataBind && m.Source != "":
			d.Kind, d.HostPath = DataBind, path.Join(m.Source, rest)
		case m.Type == DataVolume && (m.Source != "" || m.Name != ""):
			d.Kind, d.HostPath = DataVolume, path.Join(firstOf(m.Source, "volume:"+m.Name), rest)
		default: // tmpfs and whatever else is gone with the container
			d.Kind, d.HostPath = DataNone, ""
		}
	}
	return d
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
