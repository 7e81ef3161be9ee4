package engine

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var nameRule = regexp.MustCompile(`^/?[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)

// configDefaults is Config as a container without any setting shows it.
func configDefaults() object {
	return object{"Hostname": "", "Domainname": "", "User": "", "AttachStdin": false, "AttachStdout": false,
		"AttachStderr": false, "Tty": false, "OpenStdin": false, "StdinOnce": false, "Env": nil, "Cmd": nil,
		"Image": "", "Volumes": nil, "WorkingDir": "", "Entrypoint": nil, "OnBuild": nil, "Labels": nil}
}

// configOptional are the fields that are shown only when they are set.
var configOptional = []string{"ExposedPorts", "Healthcheck", "ArgsEscaped", "NetworkDisabled", "MacAddress",
	"StopSignal", "StopTimeout", "Shell"}

// hostConfigDefaults is HostConfig of a container created with nothing but an
// image, as engine 20.10 shows it.
func (e *Engine) hostConfigDefaults() object {
	o := object{"Binds": nil, "ContainerIDFile": "", "LogConfig": object{"Type": "json-file", "Config": object{}},
		"NetworkMode": "default", "PortBindings": nil, "RestartPolicy": object{"Name": "", "MaximumRetryCount": 0},
		"AutoRemove": false, "VolumeDriver": "", "VolumesFrom": nil, "CapAdd": nil, "CapDrop": nil,
		"CgroupnsMode": "host", "Dns": nil, "DnsOptions": nil, "DnsSearch": nil, "ExtraHosts": nil, "GroupAdd": nil,
		"IpcMode": "private", "Cgroup": "", "Links": nil, "OomScoreAdj": 0, "PidMode": "", "Privileged": false,
		"PublishAllPorts": false, "ReadonlyRootfs": false, "SecurityOpt": nil, "UTSMode": "", "UsernsMode": "",
		"ShmSize": 67108864, "Runtime": "runc", "ConsoleSize": []int{0, 0}, "Isolation": "", "CpuShares": 0,
		"Memory": 0, "NanoCpus": 0, "CgroupParent": "", "BlkioWeight": 0, "BlkioWeightDevice": nil,
		"BlkioDeviceReadBps": nil, "BlkioDeviceWriteBps": nil, "BlkioDeviceReadIOps": nil, "BlkioDeviceWriteIOps": nil,
		"CpuPeriod": 0, "CpuQuota": 0, "CpuRealtimePeriod": 0, "CpuRealtimeRuntime": 0, "CpusetCpus": "",
		"CpusetMems": "", "Devices": nil, "DeviceCgroupRules": nil, "DeviceRequests": nil, "MemoryReservation": 0,
		"MemorySwap": 0, "MemorySwappiness": nil, "OomKillDisable": false, "PidsLimit": nil, "Ulimits": nil,
		"CpuCount": 0, "CpuPercent": 0, "IOMaximumIOps": 0, "IOMaximumBandwidth": 0,
		"MaskedPaths": []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
		"ReadonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}}
	if !e.atLeast("1.42") {
		o["KernelMemory"], o["KernelMemoryTCP"] = 0, 0
	} else {
		o["CgroupnsMode"], o["OomKillDisable"] = "private", nil
	}
	if e.atLeast("1.45") {
		o["NetworkMode"] = "bridge"
	}
	return clone(o)
}

// hostConfigOptional are the HostConfig fields shown only when they are set.
func (e *Engine) hostConfigOptional() []string {
	known := []string{"Tmpfs", "Mounts", "Init", "StorageOpt", "Sysctls"}
	if e.atLeast("1.43") {
		known = append(known, "Annotations")
	}
	return known
}

// createRequest is the body of /containers/create, taken apart.
type createRequest struct {
	name       string
	config     object
	hostConfig object
	endpoints  map[string]object // NetworkingConfig.EndpointsConfig
	order      []string          // of the endpoints: the mode's network first
}

// pick copies what the engine knows of a user's object over the defaults; what
// it does not know is dropped in silence, as the real one does.
func pick(user, defaults object, optional []string) object {
	out := clone(defaults)
	for k := range defaults {
		if v, ok := lookupFold(user, k); ok && v != nil {
			out[k] = v
		}
	}
	for _, k := range optional {
		if v, ok := lookupFold(user, k); ok && !isZero(v) {
			out[k] = v
		}
	}
	return out
}

func isZero(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case string:
		return x == ""
	case bool:
		return !x
	case []any:
		return len(x) == 0
	case object:
		return len(x) == 0
	}
	return false
}

// createBody reads and checks what a client sent.
func (e *Engine) createBody(name string, body object) (createRequest, error) {
	r := createRequest{name: strings.TrimPrefix(name, "/"), endpoints: map[string]object{}}
	if len(body) == 0 || str(body, "Image") == "" {
		return r, refused(400, "Config cannot be empty in order to create a container")
	}
	if name != "" && !nameRule.MatchString(name) {
		return r, refused(400, "Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
	}
	hc, _ := lookupFold(body, "HostConfig")
	userHost, _ := hc.(object)
	r.config = pick(body, configDefaults(), configOptional)
	r.hostConfig = pick(userHost, e.hostConfigDefaults(), e.hostConfigOptional())
	normalizeHostConfig(r.hostConfig)
	if e.atLeast("1.44") {
		delete(r.config, "MacAddress") // moved to the endpoint
	}
	nc, _ := lookupFold(body, "NetworkingConfig")
	ncObj, _ := nc.(object)
	for n, v := range sub(ncObj, "EndpointsConfig") {
		ep, _ := v.(object)
		r.endpoints[n] = ep
	}
	return r, e.checkCreate(&r)
}

// normalizeHostConfig gives nested values the shape the engine stores.
func normalizeHostConfig(hc object) {
	rp := sub(hc, "RestartPolicy")
	hc["RestartPolicy"] = object{"Name": str(rp, "Name"), "MaximumRetryCount": number(rp["MaximumRetryCount"])}
	lc := sub(hc, "LogConfig")
	typ := str(lc, "Type")
	if typ == "" {
		typ = "json-file"
	}
	cfg := sub(lc, "Config")
	if cfg == nil {
		cfg = object{}
	}
	hc["LogConfig"] = object{"Type": typ, "Config": cfg}
	if str(hc, "NetworkMode") == "" {
		hc["NetworkMode"] = "default"
	}
	if number(hc["ShmSize"]) == 0 {
		hc["ShmSize"] = 67108864
	}
	for port, v := range sub(hc, "PortBindings") {
		items, _ := v.([]any)
		bindings := make([]any, 0, len(items))
		for _, it := range items {
			b, _ := it.(object)
			bindings = append(bindings, object{"HostIp": str(b, "HostIp"), "HostPort": str(b, "HostPort")})
		}
		sub(hc, "PortBindings")[port] = bindings
	}
}

// checkCreate refuses what Docker refuses before it looks at the image.
func (e *Engine) checkCreate(r *createRequest) error {
	mode := str(r.hostConfig, "NetworkMode")
	if err := checkRestartPolicy(sub(r.hostConfig, "RestartPolicy")); err != nil {
		return err
	}
	if r.hostConfig["AutoRemove"] == true && policyName(r.hostConfig) != "no" {
		return refused(400, "can't create 'AutoRemove' container with restart policy")
	}
	container := strings.HasPrefix(mode, "container:")
	switch {
	case container && str(r.config, "Hostname") != "":
		return refused(400, "conflicting options: hostname and the network mode")
	case str(r.hostConfig, "UTSMode") == "host" && str(r.config, "Hostname") != "":
		return refused(400, "conflicting options: hostname and the UTS mode")
	case container && len(sub(r.hostConfig, "PortBindings")) > 0:
		return refused(400, "conflicting options: port publishing and the container type network mode")
	case container && len(sub(r.config, "ExposedPorts")) > 0:
		return refused(400, "conflicting options: port exposing and the container type network mode")
	}
	names := sortedKeys(r.endpoints)
	if len(names) > 1 && !e.atLeast("1.44") {
		return refused(400, "Container cannot be connected to network endpoints: %s", strings.Join(names, ", "))
	}
	first := modeNetwork(mode)
	r.order = nil
	if first != "" {
		r.order = append(r.order, first)
	}
	for _, n := range names {
		if n != first && modeNetwork(n) != first {
			r.order = append(r.order, n)
		}
	}
	return nil
}

// modeNetwork is the network a network mode names, or nothing.
func modeNetwork(mode string) string {
	switch {
	case mode == "default" || mode == "":
		return "bridge"
	case strings.HasPrefix(mode, "container:"):
		return ""
	}
	return mode
}

func checkRestartPolicy(p object) error {
	name, n := str(p, "Name"), number(p["MaximumRetryCount"])
	switch name {
	case "always", "unless-stopped", "no":
		if n != 0 {
			return refused(400, "maximum retry count cannot be used with restart policy '%s'", name)
		}
	case "on-failure":
		if n < 0 {
			return refused(400, "maximum retry count cannot be negative")
		}
	case "":
	default:
		return refused(400, "invalid restart policy '%s'", name)
	}
	return nil
}

// create makes a container; the caller holds the lock.
func (e *Engine) create(name string, body object) (*container, error) {
	r, err := e.createBody(name, body)
	if err != nil {
		return nil, err
	}
	img := e.findImage(str(r.config, "Image"))
	if img == nil {
		return nil, refused(404, "No such image: %s", withTag(str(r.config, "Image")))
	}
	if err := e.createFault(r.name); err != nil {
		return nil, err
	}
	if r.name == "" {
		r.name = "lab_" + e.newID()[:8]
	}
	if err := e.nameFree(r.name); err != nil {
		return nil, err
	}
	e.seq++
	c := &container{engine: e, id: e.newID(), seq: e.seq, name: r.name, created: time.Now().UTC(), image: img,
		config: r.config, hostConfig: r.hostConfig, status: "created", logs: newLogBuffer()}
	mergeConfig(c.config, img.image.configJSON())
	c.entry()
	if len(c.path) == 0 {
		return nil, refused(400, "No command specified")
	}
	if err := e.resolveMounts(c); err != nil {
		return nil, err
	}
	e.finishCreate(c, r)
	return c, nil
}

// finishCreate fills what depends on the container's identity and stores it.
func (e *Engine) finishCreate(c *container, r createRequest) {
	mode := str(c.hostConfig, "NetworkMode")
	if str(c.config, "Hostname") == "" {
		switch {
		case mode == "host", str(c.hostConfig, "UTSMode") == "host":
			c.config["Hostname"] = e.cfg.Host
		case strings.HasPrefix(mode, "container:"): // shows the other container's
		default:
			c.config["Hostname"] = c.id[:12]
		}
	}
	for _, n := range r.order {
		ep := newEndpoint(r.endpoints[n])
		if n == "bridge" && r.endpoints[n] == nil { // the client may write "default"
			ep = newEndpoint(r.endpoints["default"])
		}
		if mac := str(c.config, "MacAddress"); mac != "" && n == modeNetwork(mode) {
			ep.userMAC = mac
		}
		c.addEndpoint(n, ep)
	}
	e.exposeBound(c)
	e.containers[c.id] = c
	e.names[c.name] = c.id
	e.emitContainer(c, "create", nil)
}

// exposeBound exposes the ports that are published, as the engine does.
func (e *Engine) exposeBound(c *container) {
	exposed := sub(c.config, "ExposedPorts")
	for p := range sub(c.hostConfig, "PortBindings") {
		if exposed == nil {
			exposed = object{}
		}
		exposed[p] = object{}
	}
	if exposed != nil {
		c.config["ExposedPorts"] = exposed
	}
}

func (e *Engine) nameFree(name string) error {
	if id, taken := e.names[name]; taken {
		return refused(409, "Conflict. The container name \"/%s\" is already in use by container \"%s\". You have to remove (or rename) that container to be able to reuse that name.", name, id)
	}
	return nil
}

// mergeConfig adds the image's defaults to a container's configuration, by
// Docker's rules: the user's entrypoint shuts out the image's command.
func mergeConfig(user, img object) {
	for _, k := range []string{"User", "WorkingDir", "StopSignal"} {
		if str(user, k) == "" && str(img, k) != "" {
			user[k] = img[k]
		}
	}
	for _, k := range []string{"ExposedPorts", "Volumes", "Labels"} {
		mergeMap(user, img, k)
	}
	mergeEnv(user, img)
	if len(list(user, "Entrypoint")) == 0 {
		if len(list(user, "Cmd")) == 0 {
			user["Cmd"] = img["Cmd"]
		}
		if user["Entrypoint"] == nil {
			user["Entrypoint"] = img["Entrypoint"]
		}
	}
	mergeHealthcheck(user, img)
}

func mergeMap(user, img object, key string) {
	add := sub(img, key)
	if len(add) == 0 {
		if key == "Labels" && user[key] == nil {
			user[key] = object{}
		}
		return
	}
	out := sub(user, key)
	if out == nil {
		out = object{}
	}
	for k, v := range add {
		if _, has := out[k]; !has {
			out[k] = v
		}
	}
	user[key] = out
}

func mergeEnv(user, img object) {
	env := append([]string(nil), list(user, "Env")...)
	has := map[string]bool{}
	for _, kv := range env {
		k, _, _ := strings.Cut(kv, "=")
		has[k] = true
	}
	for _, kv := range list(img, "Env") {
		if k, _, _ := strings.Cut(kv, "="); !has[k] {
			env = append(env, kv)
		}
	}
	if env == nil {
		env = []string{}
	}
	user["Env"] = env
}

func mergeHealthcheck(user, img object) {
	from := sub(img, "Healthcheck")
	if from == nil {
		return
	}
	own := sub(user, "Healthcheck")
	if own == nil {
		user["Healthcheck"] = clone(from)
		return
	}
	if len(list(own, "Test")) == 0 {
		own["Test"] = from["Test"]
	}
	for _, k := range []string{"Interval", "Timeout", "StartPeriod", "Retries"} {
		if number(own[k]) == 0 && from[k] != nil {
			own[k] = from[k]
		}
	}
}

// mount is a mount of a container as inspect shows it.
type mount struct {
	kind, name, source, dest, mode string
	rw                             bool
	propagation                    string
	anonymous                      bool
}

// resolveMounts works out the mounts from binds, mounts and volumes.
func (e *Engine) resolveMounts(c *container) error {
	seen := map[string]bool{}
	add := func(m mount) error {
		if seen[m.dest] {
			return refused(400, "Duplicate mount point: %s", m.dest)
		}
		seen[m.dest] = true
		c.mounts = append(c.mounts, m)
		return nil
	}
	for _, b := range list(c.hostConfig, "Binds") {
		m, err := e.bindMount(b)
		if err != nil {
			return err
		}
		if err := add(m); err != nil {
			return err
		}
	}
	mounts, _ := c.hostConfig["Mounts"].([]any)
	for _, v := range mounts {
		spec, _ := v.(object)
		m, err := e.specMount(spec)
		if err != nil {
			return err
		}
		if err := add(m); err != nil {
			return err
		}
	}
	for _, dest := range sortedKeys(sub(c.config, "Volumes")) {
		if !seen[dest] {
			m := e.volumeMount("", dest)
			if err := add(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindMount reads "source:destination[:mode]".
func (e *Engine) bindMount(spec string) (mount, error) {
	parts := strings.Split(spec, ":")
	if len(parts) < 2 || len(parts) > 3 || !strings.HasPrefix(parts[1], "/") {
		return mount{}, refused(400, "invalid volume specification: '%s'", spec)
	}
	mode := ""
	if len(parts) == 3 {
		mode = parts[2]
	}
	rw, propagation := true, "rprivate"
	for _, o := range strings.Split(mode, ",") {
		switch o {
		case "", "rw", "z", "Z", "nocopy", "consistent", "cached", "delegated":
		case "ro":
			rw = false
		case "private", "rprivate", "shared", "rshared", "slave", "rslave":
			propagation = o
		default:
			return mount{}, refused(400, "invalid mode: %s", mode)
		}
	}
	if !strings.HasPrefix(parts[0], "/") {
		m := e.volumeMount(parts[0], parts[1])
		m.mode, m.rw = mode, rw
		return m, nil
	}
	if _, err := os.Stat(e.path(parts[0])); err != nil { // binds create their source
		if err := e.ensureDir(parts[0]); err != nil {
			return mount{}, refused(500, "error while creating mount source path '%s'", parts[0])
		}
	}
	return mount{kind: "bind", source: parts[0], dest: parts[1], mode: mode, rw: rw, propagation: propagation}, nil
}

// specMount reads one entry of HostConfig.Mounts.
func (e *Engine) specMount(spec object) (mount, error) {
	source, dest := str(spec, "Source"), str(spec, "Target")
	switch typ := str(spec, "Type"); typ {
	case "bind":
		if _, err := os.Stat(e.path(source)); err != nil {
			return mount{}, refused(400, "invalid mount config for type \"bind\": bind source path does not exist: %s", source)
		}
		p := str(sub(spec, "BindOptions"), "Propagation")
		if p == "" {
			p = "rprivate"
		}
		return mount{kind: "bind", source: source, dest: dest, rw: spec["ReadOnly"] != true, propagation: p}, nil
	case "volume":
		m := e.volumeMount(source, dest)
		m.mode, m.rw = "z", spec["ReadOnly"] != true
		return m, nil
	case "tmpfs":
		return mount{kind: "tmpfs", dest: dest, rw: spec["ReadOnly"] != true}, nil
	default:
		return mount{}, refused(400, "invalid mount config for type \"%s\": mount type unknown", typ)
	}
}

// volumeMount mounts a named volume, or a new anonymous one for an empty name.
func (e *Engine) volumeMount(name, dest string) mount {
	v := e.ensureVolume(name)
	return mount{kind: "volume", name: v.name, source: v.mountpoint(), dest: dest, rw: true, anonymous: name == ""}
}

// entry works out path and arguments from entrypoint and command.
func (c *container) entry() {
	c.path = ""
	argv := append(append([]string(nil), list(c.config, "Entrypoint")...), list(c.config, "Cmd")...)
	c.args = []string{}
	if len(argv) > 0 {
		c.path, c.args = argv[0], argv[1:]
	}
}

// bindings lists the published ports as they were asked for.
func (c *container) bindings() ([]Port, error) {
	var out []Port
	for _, key := range sortedKeys(sub(c.hostConfig, "PortBindings")) {
		num, proto, ok := strings.Cut(key, "/")
		if !ok {
			proto = "tcp"
		}
		port, err := strconv.Atoi(num)
		if err != nil {
			return nil, refused(400, "invalid port specification: \"%s\"", key)
		}
		items, _ := sub(c.hostConfig, "PortBindings")[key].([]any)
		for _, it := range items {
			b, _ := it.(object)
			hp, _ := strconv.Atoi(str(b, "HostPort"))
			out = append(out, Port{Proto: proto, ContainerPort: port, HostIP: str(b, "HostIp"), HostPort: hp})
		}
	}
	return out, nil
}

// String is used in messages about port conflicts.
func (p Port) String() string {
	ip := p.HostIP
	if ip == "" {
		ip = "0.0.0.0"
	}
	return fmt.Sprintf("%s:%d", ip, p.HostPort)
}
