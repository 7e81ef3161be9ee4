package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// AgentDir is where agents are placed on a host, one file per content hash.
const AgentDir = "/var/lib/qnetops/agent"

// InstallPath is where the agent binary with this SHA-256 lives on a host.
func InstallPath(sha256hex string) string { return AgentDir + "/qnetops-" + sha256hex }

// InstallScript takes the hash as $1 and the binary on stdin. The file appears
// under its name only when it is whole and its hash is right.
const InstallScript = `set -eu; umask 077; d=` + AgentDir + `; mkdir -p "$d"; t="$d/.incoming-$1.$$"; trap 'rm -f "$t"' EXIT; cat >"$t"; echo "$1  $t" | sha256sum -c - >/dev/null; chmod 0755 "$t"; mv -f "$t" "$d/qnetops-$1"`

// CommandKind names one of the few commands qnetops runs over SSH.
type CommandKind string

// The whole list.
const (
	CmdUname    CommandKind = "uname"
	CmdInspect  CommandKind = "inspect"
	CmdClock    CommandKind = "clock"
	CmdDisk     CommandKind = "disk"
	CmdChecksum CommandKind = "checksum"
	CmdInstall  CommandKind = "install"
	CmdAgent    CommandKind = "agent"
)

// Command is one command line for a host.
type Command struct {
	Kind      CommandKind
	Sudo      bool   // prefixed with `sudo -n --`
	Container string // CmdInspect
	Path      string // CmdDisk
	SHA256    string // CmdChecksum, CmdInstall, CmdAgent
	Socket    string // CmdAgent, "" for the engine's default
}

// Uname asks for the operating system and the machine: `Linux x86_64`.
func Uname() Command { return Command{Kind: CmdUname} }

// Inspect reads a container through ReadTemplate.
func Inspect(container string) Command { return Command{Kind: CmdInspect, Container: container} }

// Clock asks for seconds since the epoch with nanoseconds.
func Clock() Command { return Command{Kind: CmdClock} }

// Disk asks for the space of the file system that holds path, in bytes.
func Disk(path string) Command { return Command{Kind: CmdDisk, Path: path} }

// Checksum asks for the hash of an installed agent.
func Checksum(sha string) Command { return Command{Kind: CmdChecksum, SHA256: sha} }

// Install places an agent whose bytes are sent on stdin.
func Install(sha string) Command { return Command{Kind: CmdInstall, SHA256: sha} }

// Agent starts an installed agent; it speaks the protocol on stdin and stdout.
func Agent(sha, socket string) Command { return Command{Kind: CmdAgent, SHA256: sha, Socket: socket} }

// WithSudo is the same command through `sudo -n --`.
func (c Command) WithSudo(sudo bool) Command {
	c.Sudo = sudo
	return c
}

// Argv is the command as a list of arguments.
func (c Command) Argv() []string {
	var a []string
	switch c.Kind {
	case CmdUname:
		a = []string{"uname", "-sm"}
	case CmdInspect:
		a = []string{"docker", "inspect", "--type", "container", "--format", ReadTemplate, c.Container}
	case CmdClock:
		a = []string{"date", "+%s.%N"}
	case CmdDisk:
		a = []string{"df", "-P", "-B1", c.Path}
	case CmdChecksum:
		a = []string{"sha256sum", InstallPath(c.SHA256)}
	case CmdInstall:
		a = []string{"sh", "-c", InstallScript, "sh", c.SHA256}
	case CmdAgent:
		a = []string{InstallPath(c.SHA256), "host"}
		if c.Socket != "" {
			a = append(a, "--socket", c.Socket)
		}
	}
	if c.Sudo {
		a = append([]string{"sudo", "-n", "--"}, a...)
	}
	return a
}

// String is the command line, each argument quoted once for a POSIX shell.
func (c Command) String() string {
	argv := c.Argv()
	q := make([]string, len(argv))
	for i, a := range argv {
		q[i] = Quote(a)
	}
	return strings.Join(q, " ")
}

var plainArg = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Quote quotes one argument for a POSIX shell.
func Quote(s string) string {
	if plainArg.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// SplitWords undoes Quote: it splits a line made of plain and single-quoted
// words and refuses everything else a shell would interpret.
func SplitWords(line string) ([]string, error) {
	var words []string
	var cur strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		ch := line[i]
		switch {
		case quoted && ch == '\'':
			quoted = false
		case quoted:
			cur.WriteByte(ch)
		case ch == '\'':
			quoted, in = true, true
		case ch == '\\' && i+1 < len(line) && line[i+1] == '\'':
			cur.WriteByte('\'')
			in = true
			i++
		case ch == ' ':
			if in {
				words = append(words, cur.String())
				cur.Reset()
				in = false
			}
		case plainArg.MatchString(string(ch)):
			cur.WriteByte(ch)
			in = true
		default:
			return nil, fmt.Errorf("splitting a command line: character %q outside of quotes", ch)
		}
	}
	if quoted {
		return nil, fmt.Errorf("splitting a command line: quote not closed")
	}
	if in {
		words = append(words, cur.String())
	}
	return words, nil
}

var (
	containerName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)
	hexSHA256     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ValidContainerName says whether Docker would take this name.
func ValidContainerName(s string) bool { return containerName.MatchString(s) }

// Validate refuses arguments that no command of the list may carry.
func (c Command) Validate() error {
	switch c.Kind {
	case CmdUname, CmdClock:
	case CmdInspect:
		if !ValidContainerName(c.Container) {
			return fmt.Errorf("container name %q is not one Docker takes", c.Container)
		}
	case CmdDisk:
		if !path.IsAbs(c.Path) {
			return fmt.Errorf("path %q is not absolute", c.Path)
		}
	case CmdChecksum, CmdInstall, CmdAgent:
		if !hexSHA256.MatchString(c.SHA256) {
			return fmt.Errorf("%q is not a SHA-256 in lower-case hex", c.SHA256)
		}
		if c.Socket != "" && !path.IsAbs(c.Socket) {
			return fmt.Errorf("socket %q is not an absolute path", c.Socket)
		}
	default:
		return fmt.Errorf("unknown command kind %q", c.Kind)
	}
	return nil
}

// ParseCommand is the inverse of String and accepts nothing else: a line is a
// Command only if building that Command gives the same line again.
func ParseCommand(line string) (Command, error) {
	words, err := SplitWords(line)
	if err != nil {
		return Command{}, err
	}
	var c Command
	if len(words) > 3 && words[0] == "sudo" && words[1] == "-n" && words[2] == "--" {
		c.Sudo = true
		words = words[3:]
	}
	if len(words) == 0 {
		return Command{}, fmt.Errorf("empty command")
	}
	last := words[len(words)-1]
	switch words[0] {
	case "uname":
		c.Kind = CmdUname
	case "docker":
		c.Kind, c.Container = CmdInspect, last
	case "date":
		c.Kind = CmdClock
	case "df":
		c.Kind, c.Path = CmdDisk, last
	case "sha256sum":
		c.Kind, c.SHA256 = CmdChecksum, strings.TrimPrefix(last, AgentDir+"/qnetops-")
	case "sh":
		c.Kind, c.SHA256 = CmdInstall, last
	default:
		c.Kind, c.SHA256 = CmdAgent, strings.TrimPrefix(words[0], AgentDir+"/qnetops-")
		if len(words) == 4 {
			c.Socket = last
		}
	}
	if c.Validate() != nil || c.String() != line {
		return Command{}, fmt.Errorf("not a command of this tool: %.80q", line)
	}
	return c, nil
}

// ReadTemplate is the --format of `docker inspect` for hosts without an agent.
// It prints one JSON line: NAMES of environment variables and no values but
// that of QNET_LOG_LEVEL. `.Id` exists only in the raw form of an inspect, so the
// docker client (20.10 and later) always runs the template on raw JSON, where a
// key missing from an older or newer engine can be asked for with `index`.
const ReadTemplate = `{"id":{{json .Id}},"name":{{json .Name}},"image_ref":{{json .Config.Image}},"image_id":{{json .Image}},` +
	`"created":{{json (index . "Created")}},` +
	`"state":{{json .State.Status}},"exit_code":{{json .State.ExitCode}},"oom_killed":{{json .State.OOMKilled}},` +
	`"started_at":{{json .State.StartedAt}},"finished_at":{{json .State.FinishedAt}},"restart_count":{{json .RestartCount}},` +
	`"restart_policy":{{json .HostConfig.RestartPolicy.Name}},"stop_timeout":{{json (index .Config "StopTimeout")}},` +
	`"log_path":{{json (index . "LogPath")}},` +
	`"env_names":[{{range $i, $e := .Config.Env}}{{if $i}},{{end}}{{json (index (split $e "=") 0)}}{{end}}],` +
	`"log_level":[{{range .Config.Env}}{{$p := split . "="}}{{if eq (index $p 0) "QNET_LOG_LEVEL"}}{{json (index $p 1)}}{{end}}{{end}}],` +
	`"compose":{{with .Config.Labels}}{{json (index . "com.docker.compose.project")}}{{else}}null{{end}},` +
	`"mounts":[{{range $i, $m := .Mounts}}{{if $i}},{{end}}{"type":{{json (index $m "Type")}},"source":{{json (index $m "Source")}},"destination":{{json (index $m "Destination")}}}{{end}}]}`

// ParseReadTemplate reads one line printed by ReadTemplate. The data directory
// is found from the mounts alone, because QNET_DATA_DIR's value is not printed.
func ParseReadTemplate(out []byte) (ContainerFacts, error) {
	var t struct {
		ID            string    `json:"id"`
		Name          string    `json:"name"`
		ImageRef      string    `json:"image_ref"`
		ImageID       string    `json:"image_id"`
		Created       time.Time `json:"created"`
		State         string    `json:"state"`
		ExitCode      int       `json:"exit_code"`
		OOMKilled     bool      `json:"oom_killed"`
		StartedAt     time.Time `json:"started_at"`
		FinishedAt    time.Time `json:"finished_at"`
		RestartCount  int       `json:"restart_count"`
		RestartPolicy string    `json:"restart_policy"`
		StopTimeout   *int      `json:"stop_timeout"`
		LogPath       *string   `json:"log_path"`
		EnvNames      []string  `json:"env_names"`
		LogLevel      []string  `json:"log_level"`
		Compose       *string   `json:"compose"`
		Mounts        []struct {
			Type        string `json:"type"`
			Source      string `json:"source"`
			Destination string `json:"destination"`
		} `json:"mounts"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(out), &t); err != nil {
		return ContainerFacts{}, fmt.Errorf("reading the answer of docker inspect: it is not the expected JSON line")
	}
	if t.ID == "" || t.State == "" {
		return ContainerFacts{}, fmt.Errorf("reading the answer of docker inspect: id or state is missing")
	}
	f := ContainerFacts{
		ID: t.ID, Name: strings.TrimPrefix(t.Name, "/"), ImageRef: t.ImageRef, ImageID: t.ImageID, Created: t.Created,
		State: t.State, ExitCode: t.ExitCode, OOMKilled: t.OOMKilled, StartedAt: realTime(t.StartedAt), FinishedAt: realTime(t.FinishedAt),
		RestartCount: t.RestartCount, RestartPolicy: policyName(t.RestartPolicy), EnvNames: t.EnvNames, OneShot: oneShotOf(t.EnvNames),
	}
	if t.StopTimeout != nil {
		f.StopTimeoutSeconds = *t.StopTimeout
	}
	if t.LogPath != nil {
		f.LogPath = *t.LogPath
	}
	if t.Compose != nil {
		f.Compose = *t.Compose
	}
	if len(t.LogLevel) > 0 {
		f.LogLevel = publicLogLevel(t.LogLevel[len(t.LogLevel)-1])
	}
	if i := strings.IndexByte(t.ImageRef, '@'); i >= 0 {
		f.ImageDigests = []string{t.ImageRef}
	}
	var mounts []mountPoint
	for _, m := range t.Mounts {
		mounts = append(mounts, mountPoint{Type: m.Type, Source: m.Source, Destination: m.Destination})
	}
	f.DataDir = dataDir(nil, mounts)
	for _, n := range t.EnvNames {
		if n == "QNET_DATA_DIR" && f.DataDir.Ambiguous == "" {
			f.DataDir.Ambiguous = "QNET_DATA_DIR is set; its value is read by the agent only"
		}
	}
	return f, nil
}

// realTime turns Docker's year-one "never" into the zero time.
func realTime(t time.Time) time.Time {
	if t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// policyName gives Docker's empty policy its name.
func policyName(s string) string {
	if s == "" {
		return "no"
	}
	return s
}

// publicLogLevel lets a log level through and nothing else.
func publicLogLevel(s string) string {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 9 {
		return s
	}
	return "?"
}
