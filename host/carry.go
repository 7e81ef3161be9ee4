package host

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// CarryOptions steer BuildCreate.
type CarryOptions struct {
	Image    string   // reference of the new image, as the successor will show it
	SetEnv   []EnvVar // public settings that override
	OneShot  []EnvVar // variables that a cut-over arms on purpose
	HostName string   // the host's own name: a container in the host's network shows it without having asked for it
	// MACInEndpoint: the engine takes a MAC address per endpoint only (API 1.44 on).
	MACInEndpoint bool
}

// NetworkAttach is one further network the successor joins after its creation.
type NetworkAttach struct {
	Name     string
	Endpoint json.RawMessage
}

// Creation is everything that makes a successor.
type Creation struct {
	Body     json.RawMessage // body of POST /containers/create
	Networks []NetworkAttach // to connect afterwards, in this order
	Report   CarryReport
}

// allowance is what Compare may find different between an old container and its
// successor: the path, and the one value it may have there.
type allowance struct {
	want     map[string]any // expected value by path; nil: absent
	hostname string         // "id": the successor's own short id
	image    string
	newMount map[string]bool // mount points that come from the new image's volumes
	volumes  map[string]bool // mount points re-attached by name, whose mode text may change
}

// carrier holds one BuildCreate in progress.
type carrier struct {
	opts                 CarryOptions
	old, oldCfg, oldHost object
	oldImg, newImg       object // Config of the images
	newKnown             bool
	cfg, host            object // what is sent
	report               CarryReport
	allow                allowance
	mode                 string
}

// BuildCreate computes the creation of a successor from the old container's raw
// inspect, its image and the new image (nil while that is not on the host).
// What equals the old image's default is not sent, so that the new image's
// default arrives; everything else is, unknown fields included.
func BuildCreate(oldInspect, oldImage, newImage json.RawMessage, opts CarryOptions) (Creation, error) {
	c := &carrier{opts: opts}
	if err := c.read(oldInspect, oldImage, newImage); err != nil {
		return Creation{}, err
	}
	if c.oldHost["AutoRemove"] == true {
		return Creation{}, errorf(CodeNotCarried, "recreate it once without --rm", "the container removes itself when it stops (--rm): it cannot be set aside")
	}
	c.cfg, c.host = clone(c.oldCfg).(object), clone(c.oldHost).(object)
	if err := c.env(); err != nil {
		return Creation{}, err
	}
	c.command()
	c.health()
	for _, f := range []string{"Labels", "ExposedPorts", "Volumes"} {
		c.mapping(f)
	}
	for _, f := range []string{"User", "WorkingDir", "StopSignal"} {
		c.scalar(f)
	}
	c.unknownFields()
	c.identity()
	if err := c.volumes(); err != nil {
		return Creation{}, err
	}
	networks, err := c.networks()
	if err != nil {
		return Creation{}, err
	}
	c.policy()
	c.hostConfig()
	c.data()
	c.warn()
	body := clone(c.cfg).(object)
	body["HostConfig"] = c.host
	if len(networks.first) > 0 {
		body["NetworkingConfig"] = object{"EndpointsConfig": networks.first}
	}
	raw, err := encode(body)
	if err != nil {
		return Creation{}, err
	}
	c.report.allow = c.allow
	return Creation{Body: raw, Networks: networks.rest, Report: c.report}, nil
}

func (c *carrier) read(oldInspect, oldImage, newImage json.RawMessage) error {
	var err error
	if c.old, err = decodeObject(oldInspect, "the container"); err != nil {
		return err
	}
	oldImg, err := decodeObject(oldImage, "the old image")
	if err != nil {
		return err
	}
	newImg := object{}
	if c.newKnown = len(newImage) > 0; c.newKnown {
		if newImg, err = decodeObject(newImage, "the new image"); err != nil {
			return err
		}
	}
	c.oldCfg, c.oldHost = sub(c.old, "Config"), sub(c.old, "HostConfig")
	if c.oldCfg == nil || c.oldHost == nil || str(c.old, "Id") == "" {
		return errorf(CodeEngine, "", "the engine's description of the container lacks Id, Config or HostConfig")
	}
	c.oldImg, c.newImg = sub(oldImg, "Config"), sub(newImg, "Config")
	c.mode = str(c.oldHost, "NetworkMode")
	c.allow = allowance{want: map[string]any{}, image: c.opts.Image, newMount: map[string]bool{}, volumes: map[string]bool{}}
	c.report = CarryReport{NewKnown: c.newKnown, OldBuild: buildOf(oldImg), NewBuild: buildOf(newImg),
		Carried: []Item{}, LeftOut: []Item{}, Ambiguous: []Item{}, Inherited: []Item{}, Set: []Item{}, Warnings: []string{}}
	return nil
}

func (c *carrier) carried(field, name, why string) {
	c.report.Carried = append(c.report.Carried, Item{field, name, why})
}

// inherited notes a setting that equals the old image's default. Whether an
// operator asked for that very value cannot be known; where the new image
// differs, that matters, and the plan shows it.
func (c *carrier) inherited(field, name string, differs bool) {
	it := Item{Field: field, Name: name}
	c.report.Inherited = append(c.report.Inherited, it)
	if c.newKnown && differs {
		it.Why = "equal to the old image's default; the new image's default applies"
		c.report.Ambiguous = append(c.report.Ambiguous, it)
	}
}

// env keeps what differs from the old image's variables.
func (c *carrier) env() error {
	was, now, next := envMap(texts(c.oldImg, "Env")), envMap(texts(c.oldCfg, "Env")), envMap(texts(c.newImg, "Env"))
	set := map[string]EnvVar{}
	for _, v := range c.opts.SetEnv {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.Contains(v.Value, "\x00") {
			return errorf(CodeBadRequest, "", "setting a variable: its name or value cannot be one")
		}
		if why, never := neverCarried(v.Name); never {
			return errorf(CodeBadRequest, "one-shot and destructive variables belong to a cut-over", "setting %s is refused: %s", v.Name, why)
		}
		set[v.Name] = v
	}
	for _, v := range c.opts.OneShot {
		if err := validArmed(v); err != nil {
			return err
		}
		set[v.Name] = v
	}
	send, expect := []string{}, map[string]envEntry{}
	for n, e := range next {
		expect[n] = e
	}
	done := map[string]bool{}
	for _, e := range parseEnv(texts(c.oldCfg, "Env")) {
		if done[e.name] || now[e.name] != e { // of a name given twice the last counts
			continue
		}
		done[e.name] = true
		why, never := neverCarried(e.name)
		image, inImage := was[e.name]
		_, overridden := set[e.name]
		switch {
		case never:
			c.report.LeftOut = append(c.report.LeftOut, Item{"Env", e.name, why})
		case overridden:
		case inImage && image == e:
			n, has := next[e.name]
			c.inherited("Env", e.name, !has || n != e)
		default:
			send = append(send, e.String())
			expect[e.name] = e
			c.carried("Env", e.name, "")
		}
	}
	for _, v := range slices.Concat(c.opts.SetEnv, c.opts.OneShot) {
		e := envEntry{name: v.Name, value: set[v.Name].Value}
		if expect[v.Name] == e && slices.Contains(send, e.String()) {
			continue
		}
		send = append(send, e.String())
		expect[v.Name] = e
		c.report.Set = append(c.report.Set, Item{"Env", v.Name, "given for this operation"})
	}
	c.cfg["Env"] = anyList(send)
	for _, n := range keys(was, now, next, expect) {
		if e, ok := expect[n]; ok {
			c.allow.want["Config.Env."+n] = e.String()
		} else {
			c.allow.want["Config.Env."+n] = nil
		}
	}
	return nil
}

// command treats entrypoint and command as the pair they are: an engine takes
// the image's command only where neither was given.
func (c *carrier) command() {
	ep, cmd := c.oldCfg["Entrypoint"], c.oldCfg["Cmd"]
	iep, icmd := c.oldImg["Entrypoint"], c.oldImg["Cmd"]
	keepEP := !same(ep, iep)
	if !keepEP && empty(cmd) && !empty(icmd) {
		keepEP = true // only an entrypoint that was given makes the image's command vanish
	}
	keepCmd := keepEP || !same(cmd, icmd)
	delete(c.cfg, "Entrypoint")
	delete(c.cfg, "Cmd")
	wantEP, wantCmd := c.newImg["Entrypoint"], c.newImg["Cmd"]
	switch {
	case keepEP && empty(ep):
		c.cfg["Entrypoint"], wantEP = []any{""}, nil // how the API says "none, not even the image's"
		c.carried("Entrypoint", "", "cleared")
	case keepEP:
		c.cfg["Entrypoint"], wantEP = ep, ep
		c.carried("Entrypoint", "", "")
	case !empty(ep):
		c.inherited("Entrypoint", "", !same(ep, c.newImg["Entrypoint"]))
	}
	switch {
	case keepCmd:
		wantCmd = cmd
		if !empty(cmd) {
			c.cfg["Cmd"] = cmd
			c.carried("Cmd", "", "")
		}
	case !empty(cmd):
		c.inherited("Cmd", "", !same(cmd, c.newImg["Cmd"]))
	}
	c.allow.want["Config.Entrypoint"], c.allow.want["Config.Cmd"] = wantEP, wantCmd
}

// health works member by member, as the engine merges it.
func (c *carrier) health() {
	now, was, next := sub(c.oldCfg, "Healthcheck"), sub(c.oldImg, "Healthcheck"), sub(c.newImg, "Healthcheck")
	send := object{}
	for _, k := range keys(now, was, next) {
		want := next[k]
		switch {
		case zero(now[k]):
		case same(now[k], was[k]):
			c.inherited("Healthcheck", k, !same(now[k], next[k]))
		default:
			send[k], want = now[k], now[k]
			c.carried("Healthcheck", k, "")
		}
		if zero(want) {
			want = nil
		}
		c.allow.want["Config.Healthcheck."+k] = want
	}
	delete(c.cfg, "Healthcheck")
	if len(send) > 0 {
		c.cfg["Healthcheck"] = send
	}
}

// mapping subtracts the old image's entries of a field that is a set or a map.
func (c *carrier) mapping(field string) {
	now, was, next := sub(c.oldCfg, field), sub(c.oldImg, field), sub(c.newImg, field)
	bound := sub(c.oldHost, "PortBindings") // nil where nothing is published
	send := object{}
	for _, k := range keys(now, was, next) {
		v, has := now[k]
		old, inImage := was[k]
		n, inNew := next[k]
		path := "Config." + field + "." + k
		if inNew {
			c.allow.want[path] = present(n)
		} else {
			c.allow.want[path] = nil
		}
		_, published := bound[k]
		published = published && field == "ExposedPorts"
		switch {
		case !has:
		case inImage && same(v, old) && !published:
			c.inherited(field, k, !inNew || !same(v, n))
		default:
			send[k] = v
			c.allow.want[path] = present(v)
			c.carried(field, k, "")
		}
	}
	delete(c.cfg, field)
	if len(send) > 0 {
		c.cfg[field] = send
	}
}

// present makes the empty object of a set visible to a comparison.
func present(v any) any {
	if empty(v) {
		return true
	}
	return v
}

func (c *carrier) scalar(field string) {
	now, was, next := c.oldCfg[field], c.oldImg[field], c.newImg[field]
	c.allow.want["Config."+field] = next
	switch {
	case empty(now):
	case same(now, was):
		delete(c.cfg, field)
		c.inherited(field, "", !same(now, next))
	default:
		c.allow.want["Config."+field] = now
		c.carried(field, "", "")
	}
}

// handled are the members of Config with rules of their own; notMerged those an
// engine never takes from an image, so that they are simply sent.
var (
	handled   = []string{"Env", "Cmd", "Entrypoint", "Healthcheck", "Labels", "ExposedPorts", "Volumes", "User", "WorkingDir", "StopSignal", "Image", "Hostname", "MacAddress"}
	notMerged = []string{"Domainname", "AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce", "NetworkDisabled", "StopTimeout", "Shell", "OnBuild", "ArgsEscaped"}
)

// unknownFields sends what has no rule. Where an image has the same member with
// the same content, it is taken for an inherited default.
func (c *carrier) unknownFields() {
	for _, k := range keys(c.oldCfg) {
		v := c.oldCfg[k]
		if slices.Contains(handled, k) || zero(v) && k != "StopTimeout" || empty(v) {
			continue
		}
		if was, ok := c.oldImg[k]; ok && same(v, was) && !slices.Contains(notMerged, k) {
			delete(c.cfg, k)
			for p := range flatLeaves("Config."+k, v) {
				c.allow.want[p] = nil
			}
			for p, n := range flatLeaves("Config."+k, c.newImg[k]) {
				c.allow.want[p] = n
			}
			c.inherited(k, "", !same(v, c.newImg[k]))
			continue
		}
		c.carried(k, "", "")
	}
}

// identity settles image, host name and MAC address.
func (c *carrier) identity() {
	c.cfg["Image"] = c.opts.Image
	id, name := str(c.old, "Id"), str(c.oldCfg, "Hostname")
	shared := strings.HasPrefix(c.mode, "container:") || str(c.oldHost, "UTSMode") != ""
	generated := len(id) >= 12 && name == id[:12] || c.mode == "host" && name == c.opts.HostName
	switch {
	case name == "":
		c.allow.hostname = "id"
	case shared:
		delete(c.cfg, "Hostname")
		c.allow.hostname = "id"
		c.report.LeftOut = append(c.report.LeftOut, Item{"Hostname", "", "the container shares another's host name"})
	case generated:
		delete(c.cfg, "Hostname")
		c.allow.hostname = "id"
		c.report.LeftOut = append(c.report.LeftOut, Item{"Hostname", "", "generated; a new one is made"})
	default:
		c.carried("Hostname", "", "")
	}
	if mac := str(c.oldCfg, "MacAddress"); mac != "" {
		c.carried("MacAddress", "", "asked for at creation")
	}
}

// volumes re-attaches anonymous volumes by the name the engine gave them:
// without that a successor starts with new, empty ones.
func (c *carrier) volumes() error {
	named := map[string]bool{} // destinations that HostConfig names with a source
	var binds []any
	for _, b := range texts(c.oldHost, "Binds") {
		parts := strings.Split(b, ":")
		if len(parts) < 2 {
			continue // a path alone asks for an anonymous volume
		}
		named[path.Clean(parts[1])] = true
		binds = append(binds, b)
	}
	byDest := map[string]object{}
	for _, v := range list(c.old, "Mounts") {
		m, _ := v.(object)
		byDest[path.Clean(str(m, "Destination"))] = m
	}
	mounts, _ := clone(c.host["Mounts"]).([]any)
	for _, v := range mounts {
		m, _ := v.(object)
		dst := path.Clean(str(m, "Target"))
		named[dst] = true
		if str(m, "Type") != DataVolume || str(m, "Source") != "" {
			continue
		}
		name := str(byDest[dst], "Name")
		if name == "" {
			return errorf(CodeNotCarried, "", "the volume at %s has no name to attach it by", dst)
		}
		m["Source"] = name
		c.allow.volumes[dst] = true
		c.carried("Mounts", dst, "anonymous volume, attached again by its name")
	}
	for _, dst := range keys(byDest) {
		m := byDest[dst]
		if named[dst] || str(m, "Type") != DataVolume {
			continue
		}
		if str(m, "Name") == "" {
			return errorf(CodeNotCarried, "", "the volume at %s has no name to attach it by", dst)
		}
		b := str(m, "Name") + ":" + dst
		if rw, ok := m["RW"].(bool); ok && !rw {
			b += ":ro"
		}
		binds = append(binds, b)
		named[dst] = true
		c.allow.volumes[dst] = true
		c.carried("Volumes", dst, "anonymous volume, attached again by its name")
	}
	if len(c.allow.volumes) > 0 {
		c.host["Binds"], c.host["Mounts"] = binds, mounts
		c.allow.want["HostConfig.Binds"], c.allow.want["HostConfig.Mounts"] = any(binds), any(mounts)
	}
	for dst := range sub(c.newImg, "Volumes") {
		if _, tmpfs := sub(c.oldHost, "Tmpfs")[dst]; !named[path.Clean(dst)] && !tmpfs {
			c.allow.newMount[path.Clean(dst)] = true
		}
	}
	return nil
}

// policy holds the successor at `no`: a stopped container with another policy
// may be started by a daemon that restarts, beside the one it will replace.
func (c *carrier) policy() {
	c.report.HeldPolicy = true
	held := object{"Name": "no", "MaximumRetryCount": json.Number("0")}
	c.host["RestartPolicy"] = held
	c.allow.want["HostConfig.RestartPolicy.Name"] = "no"
	c.allow.want["HostConfig.RestartPolicy.MaximumRetryCount"] = json.Number("0")
}

func (c *carrier) hostConfig() {
	for _, k := range keys(c.oldHost) {
		switch v := c.oldHost[k]; {
		case k == "RestartPolicy":
			c.carried("HostConfig", k, "set when the old container is proven stopped")
		case !zero(v):
			c.carried("HostConfig", k, "")
		}
	}
}

// data compares the data directory in effect before and after, as far as it can
// be told before the creation.
func (c *carrier) data() {
	d := DataDirCheck{Old: dataDirOf(c.old)}
	if c.newKnown {
		env := map[string]envEntry{}
		for k, v := range c.allow.want {
			if name, ok := strings.CutPrefix(k, "Config.Env."); ok && v != nil {
				env[name] = parseEnv([]string{v.(string)})[0]
			}
		}
		mounts := mountsOf(c.old)
		for dst := range c.allow.newMount {
			mounts = append(mounts, mountPoint{Type: DataVolume, Destination: dst})
		}
		d.New = dataDir(dataEnv(env), mounts)
	} else {
		d.New = d.Old
	}
	c.report.DataDir = judgeData(d)
	if !c.newKnown {
		c.report.DataDir.New = DataDir{}
	}
}

// judgeData says whether the node would find its data again.
func judgeData(d DataDirCheck) DataDirCheck {
	switch {
	case d.Old.Kind == DataNone:
		d.Why = "the data directory " + d.Old.ContainerPath + " is not on the host: it would go with the old container"
	case d.Old.Ambiguous != "":
		d.Why = d.Old.Ambiguous
	case d.New.Ambiguous != "":
		d.Why = d.New.Ambiguous
	case d.Old.HostPath != d.New.HostPath:
		d.Why = fmt.Sprintf("the data directory would move from %s to %s", d.Old.HostPath, firstOf(d.New.HostPath, "inside the container"))
	default:
		d.OK = true
	}
	return d
}

func (c *carrier) warn() {
	if p := str(sub(c.oldCfg, "Labels"), "com.docker.compose.project"); p != "" {
		c.report.Warnings = append(c.report.Warnings, "compose project "+p+" owns this container: its next `up` recreates it from its own file")
	}
	if !c.newKnown {
		c.report.Warnings = append(c.report.Warnings, "the new image is not on the host yet: what it changes is not known")
	}
}
