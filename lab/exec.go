package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"text/template"

	"github.com/docker/docker/api/types/container"

	"github.com/qnetops/qnetops/host"
)

// exec answers a command line as the host would. It knows the commands of
// host.Commands and nothing else: everything else ends with 127 and is recorded.
func (h *Host) exec(_ context.Context, user, line string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd, err := host.ParseCommand(line)
	if err != nil {
		h.refuse("command " + line)
		name, _, _ := strings.Cut(line, " ")
		fmt.Fprintf(stderr, "sh: 1: %s: not found\n", name)
		return 127
	}
	root := user == "root"
	if cmd.Sudo && !root {
		if h.spec.NoSudo {
			fmt.Fprintln(stderr, "sudo: a password is required")
			return 1
		}
		root = true
	}
	switch cmd.Kind {
	case host.CmdUname:
		fmt.Fprintln(stdout, h.spec.Uname)
	case host.CmdClock:
		now := h.now()
		fmt.Fprintf(stdout, "%d.%09d\n", now.Unix(), now.Nanosecond())
	case host.CmdDisk:
		return h.df(cmd.Path, stdout, stderr)
	case host.CmdInspect:
		return h.dockerInspect(root, cmd.Container, host.ReadTemplate, stdout, stderr)
	case host.CmdChecksum:
		return h.checksum(root, cmd.SHA256, stdout, stderr)
	case host.CmdInstall:
		return h.install(root, cmd.SHA256, stdin, stderr)
	case host.CmdAgent:
		return h.startAgent(root, cmd, stdin, stdout, stderr)
	}
	return 0
}

func (h *Host) path(p string) string { return filepath.Join(h.root, p) }

func (h *Host) df(path string, stdout, stderr io.Writer) int {
	if _, err := os.Stat(h.path(path)); err != nil {
		fmt.Fprintf(stderr, "df: %s: No such file or directory\n", path)
		return 1
	}
	d := h.disk()
	used := d.TotalBytes - d.FreeBytes
	fmt.Fprintf(stdout, "Filesystem     1-blocks         Used    Available Capacity Mounted on\n/dev/vda1 %d %d %d %d%% /\n",
		d.TotalBytes, used, d.FreeBytes, used*100/d.TotalBytes)
	return 0
}

// dockerInspect is `docker inspect --type container --format F NAME`.
func (h *Host) dockerInspect(root bool, name, format string, stdout, stderr io.Writer) int {
	fail := func(text string) int {
		fmt.Fprintln(stdout)
		fmt.Fprintln(stderr, text)
		return 1
	}
	if !root && !h.spec.DockerGroup {
		return fail("permission denied while trying to connect to the Docker daemon socket at unix://" + engineSocket + ": connect: permission denied")
	}
	if h.engine.Down() {
		return fail("Cannot connect to the Docker daemon at unix://" + engineSocket + ". Is the docker daemon running?")
	}
	raw, err := h.engine.Inspect(name)
	if err != nil {
		return fail("Error response from daemon: " + err.Error())
	}
	out, err := h.lab.formatInspect(format, raw)
	if err != nil {
		return fail("template parsing error: " + err.Error())
	}
	stdout.Write(append(out, '\n'))
	return 0
}

// format is a parsed --format of docker inspect.
type format struct {
	tmpl *template.Template
	// raw: the template names a field that docker's typed struct does not have,
	// so the typed run fails whatever the container is.
	raw bool
}

// formatInspect runs a template as docker's client does: first over its typed
// struct, and over the raw JSON when that fails, with missing keys an error.
func (l *Lab) formatInspect(text string, raw []byte) ([]byte, error) {
	l.mu.Lock()
	f, known := l.formats[text]
	l.mu.Unlock()
	if !known {
		tmpl, err := template.New("").Funcs(inspectFuncs()).Parse(text)
		if err != nil {
			return nil, err
		}
		f.tmpl = tmpl
	}
	var out bytes.Buffer
	if !f.raw {
		var typed container.InspectResponse
		err := json.Unmarshal(raw, &typed)
		if err == nil {
			err = f.tmpl.Execute(&out, typed)
		}
		if err == nil {
			return out.Bytes(), nil
		}
		f.raw = strings.Contains(err.Error(), "can't evaluate field")
	}
	l.mu.Lock()
	l.formats[text] = f
	l.mu.Unlock()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var loose any
	if err := d.Decode(&loose); err != nil {
		return nil, err
	}
	strict, err := f.tmpl.Clone() // hosts share the parsed template
	if err != nil {
		return nil, err
	}
	out.Reset()
	if err := strict.Option("missingkey=error").Execute(&out, loose); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// inspectFuncs are the functions docker's client gives to templates.
func inspectFuncs() template.FuncMap {
	return template.FuncMap{
		"json": func(v any) (string, error) {
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			err := e.Encode(v)
			return strings.TrimSpace(b.String()), err
		},
		"split": strings.Split,
		"join":  joinElements,
		"title": func(s string) string {
			if s == "" {
				return s
			}
			return strings.ToUpper(s[:1]) + s[1:]
		},
		"lower": strings.ToLower,
		"upper": strings.ToUpper,
		"pad": func(s string, before, after int) string {
			if s == "" {
				return s
			}
			return strings.Repeat(" ", before) + s + strings.Repeat(" ", after)
		},
		"truncate": func(s string, n int) string { return s[:min(n, len(s))] },
		"println":  fmt.Sprintln,
	}
}

func joinElements(list any, sep string) (string, error) {
	if list == nil {
		return "", nil
	}
	v := reflect.ValueOf(list)
	if v.Kind() != reflect.Slice && v.Kind() != reflect.Array {
		return "", fmt.Errorf("expected slice, got %T", list)
	}
	parts := make([]string, v.Len())
	for i := range parts {
		parts[i] = fmt.Sprint(v.Index(i).Interface())
	}
	return strings.Join(parts, sep), nil
}

func (h *Host) checksum(root bool, sha string, stdout, stderr io.Writer) int {
	path := host.InstallPath(sha)
	if !root { // the folder is 0700
		fmt.Fprintf(stderr, "sha256sum: %s: Permission denied\n", path)
		return 1
	}
	sum, err := h.sum(path)
	if err != nil {
		fmt.Fprintf(stderr, "sha256sum: %s: No such file or directory\n", path)
		return 1
	}
	fmt.Fprintf(stdout, "%s  %s\n", sum, path)
	return 0
}

func (h *Host) sum(path string) (string, error) {
	f, err := os.Open(h.path(path))
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// install is host.InstallScript: the bytes appear under their name only when
// their hash is right. Hosts of one lab share the bytes on this machine's disk.
func (h *Host) install(root bool, sha string, stdin io.Reader, stderr io.Writer) int {
	if !root {
		fmt.Fprintf(stderr, "mkdir: cannot create directory '%s': Permission denied\n", filepath.Dir(host.AgentDir))
		return 1
	}
	if h.disk().FreeBytes == 0 {
		io.Copy(io.Discard, stdin)
		fmt.Fprintln(stderr, "cat: write error: No space left on device")
		return 1
	}
	err := h.place(sha, stdin)
	if errors.Is(err, errWrongHash) {
		fmt.Fprintln(stderr, "sha256sum: WARNING: 1 computed checksum did NOT match")
		return 1
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

var errWrongHash = errors.New("computed checksum did not match")

func (h *Host) place(sha string, stdin io.Reader) error {
	store := filepath.Join(h.lab.cfg.Dir, "agents")
	if err := os.MkdirAll(store, 0o700); err != nil {
		return fmt.Errorf("storing the agent: %w", err)
	}
	tmp, err := os.CreateTemp(store, ".incoming-")
	if err != nil {
		return fmt.Errorf("storing the agent: %w", err)
	}
	defer os.Remove(tmp.Name())
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(tmp, hash), stdin)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
	if err != nil {
		return fmt.Errorf("storing the agent: %w", err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != sha {
		return errWrongHash
	}
	shared, target := filepath.Join(store, sha), h.path(host.InstallPath(sha))
	if _, err := os.Stat(shared); err != nil {
		if err := os.Rename(tmp.Name(), shared); err != nil {
			return fmt.Errorf("storing the agent: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return fmt.Errorf("storing the agent: %w", err)
	}
	os.Remove(target)
	if err := os.Link(shared, target); err != nil {
		return fmt.Errorf("storing the agent: %w", err)
	}
	return nil
}

// startAgent runs the host agent if the named file is there.
func (h *Host) startAgent(root bool, cmd host.Command, stdin io.Reader, stdout, stderr io.Writer) int {
	path := host.InstallPath(cmd.SHA256)
	switch _, err := os.Stat(h.path(path)); {
	case !root:
		fmt.Fprintf(stderr, "sh: 1: %s: Permission denied\n", path)
		return 126
	case err != nil:
		fmt.Fprintf(stderr, "sh: 1: %s: not found\n", path)
		return 127
	}
	return h.runAgent(cmd.Socket, stdin, stdout, stderr)
}
