package engine

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// timeJSON prints a time as inspect does; the zero time is year one.
func timeJSON(t time.Time) string {
	if t.IsZero() {
		return "0001-01-01T00:00:00Z"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// inspectJSON is container inspect under an API version.
func (e *Engine) inspectJSON(c *container, version string, size bool) object {
	dir := "/var/lib/docker/containers/" + c.id
	file := func(name string) string {
		if c.sandbox == "" { // nothing is written before the first start
			return ""
		}
		return dir + "/" + name
	}
	layer := "/var/lib/docker/overlay2/" + c.id[:32]
	config := clone(c.config)
	config["Image"] = str(c.config, "Image")
	o := object{"Id": c.id, "Created": timeJSON(c.created), "Path": c.path, "Args": c.args, "State": c.stateJSON(),
		"Image": c.image.id, "ResolvConfPath": file("resolv.conf"), "HostnamePath": file("hostname"), "HostsPath": file("hosts"),
		"LogPath": file(c.id + "-json.log"), "Name": "/" + c.name, "RestartCount": c.restartCount, "Driver": "overlay2",
		"Platform": "linux", "MountLabel": "", "ProcessLabel": "", "AppArmorProfile": "", "ExecIDs": nil,
		"HostConfig": clone(c.hostConfig),
		"GraphDriver": object{"Data": object{"LowerDir": layer + "-init/diff", "MergedDir": layer + "/merged",
			"UpperDir": layer + "/diff", "WorkDir": layer + "/work"}, "Name": "overlay2"},
		"Mounts": c.mountsJSON(true), "Config": config, "NetworkSettings": c.networkSettings(version)}
	if c.run != nil {
		o["AppArmorProfile"] = "docker-default"
	}
	if size {
		o["SizeRw"], o["SizeRootFs"] = 0, c.image.image.Size
	}
	return o
}

func (c *container) stateJSON() object {
	o := object{"Status": c.status, "Running": c.running(), "Paused": false, "Restarting": c.restarting(),
		"OOMKilled": c.oomKilled, "Dead": false, "Pid": c.pid, "ExitCode": c.exitCode, "Error": c.errText,
		"StartedAt": timeJSON(c.started), "FinishedAt": timeJSON(c.finished)}
	if h := c.health(); h != "" {
		o["Health"] = object{"Status": h, "FailingStreak": 0, "Log": []any{}}
	}
	return o
}

// health is the state of the health check. The lab does not run the check; a
// process that lives is healthy after one interval.
func (c *container) health() string {
	hc := sub(c.config, "Healthcheck")
	if test := list(hc, "Test"); len(test) == 0 || test[0] == "NONE" || c.started.IsZero() {
		return ""
	}
	interval := time.Duration(number(hc["Interval"]))
	if interval == 0 {
		interval = 30 * time.Second
	}
	switch {
	case c.run == nil:
		return "unhealthy"
	case time.Since(c.started) < interval:
		return "starting"
	}
	return "healthy"
}

// mountsJSON is Mounts; lists leave the source of volumes out.
func (c *container) mountsJSON(full bool) []object {
	out := []object{}
	for _, m := range c.mounts {
		o := object{"Type": m.kind, "Source": m.source, "Destination": m.dest, "Mode": m.mode, "RW": m.rw, "Propagation": m.propagation}
		if m.kind == "volume" {
			o["Name"], o["Driver"] = m.name, "local"
			if !full {
				o["Source"] = ""
			}
		}
		out = append(out, o)
	}
	return out
}

// networkSettings keeps the old fields, which repeat the default bridge.
func (c *container) networkSettings(version string) object {
	nets := object{}
	for _, name := range c.order {
		nets[name] = c.endpointJSON(name, version, true)
	}
	o := object{"Bridge": "", "SandboxID": c.sandbox, "HairpinMode": false, "LinkLocalIPv6Address": "",
		"LinkLocalIPv6PrefixLen": 0, "Ports": c.portsJSON(), "SandboxKey": "", "SecondaryIPAddresses": nil,
		"SecondaryIPv6Addresses": nil, "EndpointID": "", "Gateway": "", "GlobalIPv6Address": "", "GlobalIPv6PrefixLen": 0,
		"IPAddress": "", "IPPrefixLen": 0, "IPv6Gateway": "", "MacAddress": "", "Networks": nets}
	if c.sandbox != "" {
		o["SandboxKey"] = "/var/run/docker/netns/" + c.sandbox[:12]
	}
	if b := c.endpoints["bridge"]; b != nil {
		o["EndpointID"], o["Gateway"], o["IPAddress"], o["IPPrefixLen"], o["MacAddress"] = b.endpointID, b.gateway, b.ip, b.bits, b.mac
	}
	return o
}

// listJSON is one row of the container list.
func (e *Engine) listJSON(c *container, version string) object {
	nets := object{}
	for _, name := range c.order {
		nets[name] = c.endpointJSON(name, version, false)
	}
	return object{"Id": c.id, "Names": []string{"/" + c.name}, "Image": e.shownImage(c), "ImageID": c.image.id,
		"Command": strings.TrimSpace(c.path + " " + strings.Join(c.args, " ")), "Created": c.created.Unix(),
		"Ports": c.portList(), "Labels": orEmpty(sub(c.config, "Labels")), "State": c.status, "Status": c.statusText(),
		"HostConfig": object{"NetworkMode": c.hostConfig["NetworkMode"]}, "NetworkSettings": object{"Networks": nets},
		"Mounts": c.mountsJSON(false)}
}

// shownImage is the reference of a list row: the id once the reference names
// another image, as when a tag has moved.
func (e *Engine) shownImage(c *container) string {
	ref := str(c.config, "Image")
	if img := e.findImage(ref); img == nil || img != c.image {
		return c.image.id
	}
	return ref
}

// statusText is the human column of a list.
func (c *container) statusText() string {
	switch c.status {
	case "running":
		s := "Up " + roughly(time.Since(c.started))
		switch h := c.health(); h {
		case "":
			return s
		case "starting":
			return s + " (health: starting)"
		default:
			return s + " (" + h + ")"
		}
	case "restarting":
		return fmt.Sprintf("Restarting (%d) %s ago", c.exitCode, roughly(time.Since(c.finished)))
	case "exited":
		return fmt.Sprintf("Exited (%d) %s ago", c.exitCode, roughly(time.Since(c.finished)))
	}
	return "Created"
}

func roughly(d time.Duration) string {
	switch s := int(d.Seconds()); {
	case s < 1:
		return "Less than a second"
	case s == 1:
		return "1 second"
	case s < 60:
		return strconv.Itoa(s) + " seconds"
	case s < 120:
		return "About a minute"
	case s < 3600:
		return strconv.Itoa(s/60) + " minutes"
	case s < 7200:
		return "About an hour"
	default:
		return strconv.Itoa(s/3600) + " hours"
	}
}

// list answers GET /containers/json.
func (e *Engine) list(f filters, all bool, limit int, version string) ([]object, error) {
	if err := f.known("ancestor", "before", "exited", "expose", "health", "id", "isolation", "is-task", "label", "name",
		"network", "publish", "since", "status", "volume"); err != nil {
		return nil, err
	}
	out := []object{}
	for _, c := range e.sorted() {
		if !all && limit == 0 && len(f["status"]) == 0 && !c.running() {
			continue
		}
		if e.listed(c, f) {
			out = append(out, e.listJSON(c, version))
		}
		if limit > 0 && len(out) == limit {
			break
		}
	}
	return out, nil
}

func (e *Engine) listed(c *container, f filters) bool {
	ancestor := f.any("ancestor", func(w string) bool { img := e.findImage(w); return img != nil && img == c.image })
	network := f.any("network", func(w string) bool { n := e.findNetwork(w); return n != nil && c.endpoints[n.name] != nil })
	vol := f.any("volume", func(w string) bool {
		for _, m := range c.mounts {
			if m.name == w || m.dest == w || m.source == w {
				return true
			}
		}
		return false
	})
	health := f.any("health", func(w string) bool { return w == orDefault(c.health(), "none") })
	return ancestor && network && vol && health && f.prefix("id", c.id) && f.contains("name", c.name) &&
		f.exact("status", c.status) && f.exact("exited", strconv.Itoa(c.exitCode)) && f.labels(sub(c.config, "Labels"))
}

// find finds a container by id, name or the start of an id.
func (e *Engine) find(ref string) *container {
	ref = strings.TrimPrefix(ref, "/")
	if c := e.containers[ref]; c != nil {
		return c
	}
	if id, ok := e.names[ref]; ok {
		return e.containers[id]
	}
	var found *container
	for id, c := range e.containers {
		if len(ref) > 0 && strings.HasPrefix(id, ref) {
			if found != nil {
				return nil
			}
			found = c
		}
	}
	return found
}

// Inspect returns the raw inspect JSON of a container, as the API shows it.
func (e *Engine) Inspect(ref string) (json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.find(ref)
	if c == nil {
		return nil, refused(404, "No such container: %s", ref)
	}
	b, err := json.Marshal(e.inspectJSON(c, e.cfg.APIVersion, false))
	if err != nil {
		return nil, fmt.Errorf("encoding inspect: %w", err)
	}
	return b, nil
}

// Summary is what a lab wants to know of a container.
type Summary struct {
	ID, Name, Image, ImageID, State string
	ExitCode, RestartCount          int
	RestartPolicy                   string
	Env                             []string
	StartedAt, FinishedAt           time.Time
}

// Containers lists all containers, newest first.
func (e *Engine) Containers() []Summary {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Summary
	for _, c := range e.sorted() {
		out = append(out, Summary{ID: c.id, Name: c.name, Image: str(c.config, "Image"), ImageID: c.image.id, State: c.status,
			ExitCode: c.exitCode, RestartCount: c.restartCount, RestartPolicy: policyName(c.hostConfig),
			Env: append([]string(nil), c.env()...), StartedAt: c.started, FinishedAt: c.finished})
	}
	return out
}

// LastLines returns the newest n log lines of a container.
func (e *Engine) LastLines(ref string, n int) []string {
	e.mu.Lock()
	c := e.find(ref)
	e.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.logs.last(n)
}

// CreateContainer creates a container from the JSON body of the API.
func (e *Engine) CreateContainer(name string, body []byte) (string, error) {
	o, err := decodeObject(body)
	if err != nil {
		return "", fmt.Errorf("reading the request: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.create(name, o)
	if err != nil {
		return "", err
	}
	return c.id, nil
}

// StartContainer starts a container on behalf of the lab.
func (e *Engine) StartContainer(ref string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.find(ref)
	if c == nil {
		return refused(404, "No such container: %s", ref)
	}
	if err := e.start(c); err != nil && !isNotModified(err) {
		return err
	}
	return nil
}

// RemoveContainer removes a container by force, on behalf of the lab.
func (e *Engine) RemoveContainer(ref string) error {
	e.mu.Lock()
	c := e.find(ref)
	e.mu.Unlock()
	if c == nil {
		return refused(404, "No such container: %s", ref)
	}
	return e.remove(c, true, true)
}

// StopContainer stops a container by hand, on behalf of the lab.
func (e *Engine) StopContainer(ref string) error {
	e.mu.Lock()
	c := e.find(ref)
	e.mu.Unlock()
	if c == nil {
		return refused(404, "No such container: %s", ref)
	}
	if err := e.stop(c, -1); err != nil && !isNotModified(err) {
		return err
	}
	return nil
}
