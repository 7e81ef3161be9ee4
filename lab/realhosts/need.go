package realhosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// searchPath is the PATH inside every host and of the programs Up runs.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// programs are what a lab needs of the machine; all are found in the packages docker-engine or docker.io,
// openssh-server, iproute2, iptables and util-linux.
var programs = []string{"dockerd", "containerd", "runc", "docker", "docker-proxy", "sshd", "ip", "iptables", "nsenter",
	"mount", "umount", "mountpoint", "pivot_root", "setsid", "sh"}

// NeedError lists what the machine lacks for a lab of this backend.
type NeedError struct{ Missing []string }

func (e *NeedError) Error() string {
	return "the hosts backend cannot run here: missing " + strings.Join(e.Missing, ", ")
}

// Hint names the way without: the process backend needs nothing.
func (e *NeedError) Hint() string {
	return "install them and run as root on Linux, or use --backend process"
}

// Missing lists what the hosts backend would need and this machine does not have; empty means ready.
func Missing() []string {
	out := osMissing()
	if os.Geteuid() != 0 {
		out = append(out, "root")
	}
	for _, name := range programs {
		if path := find(name); path == "" {
			out = append(out, name)
		} else if !strings.HasPrefix(path, "/usr/") && !strings.HasPrefix(path, "/bin/") && !strings.HasPrefix(path, "/sbin/") {
			// A host sees of the machine's programs only these folders.
			out = append(out, name+" below /usr (it is "+path+")")
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup"); err != nil {
		out = append(out, "/sys/fs/cgroup")
	}
	return out
}

// find returns the real path of a program on searchPath, "" if there is none.
func find(name string) string {
	for _, dir := range strings.Split(searchPath, ":") {
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
	}
	return ""
}
